"""Checks of sampling: whether batches are drawn as the accountant assumes.

**The check `ledger.draws`: whether batches repeat, or records are drawn too often.** It runs in
memory and releases no index and no count. A resumed training starts it again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from lightning_audit.accounting.composition import Adjacency, epsilon_of_passes, exceeds
from lightning_audit.checks.check import OF_BATCHES, Check, Fault
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.divergences import isotropic_pair_epsilon
from lightning_audit.stats.sampling_tests import (
    RATE_RATIOS,
    PoissonBatchBets,
    RepeatBet,
    favoured_log_e,
    rate_log_e,
)
from lightning_audit.stats.sequential import log_mean_exp

#: A check of what the accountant assumes of batches and steps.
BookkeepingCheck = partial(Check, topic="Sampling and bookkeeping", kind="accounting")

# --- The check `expected_batch_size`: what a divisor computed from the data set costs.


def _unpaid(found: CheckResult) -> str:
    # The divisor's cost alone is within the claim; what it and the steps cost is not known.
    if found.status != "ok" or found.evidence.get("private_dataset_size") is not True:
        return ""
    return f"{found.message}: the epsilon of both together is unknown; look at {found.advice}"


def _divided(seen: Mapping[str, Any]) -> str:
    """Return what one record more or less changes, as text."""
    if not (others := seen["of_neighbours"]):
        return "one record more or less does not change the divisor of the gradients"
    divided = (
        f"gradients are divided by int(records * sample_rate) = {seen['expected_batch_size']:g}"
    )
    if "epsilon_of_divisor" not in seen:
        return f"{divided}, which replacing a record does not change"
    divided += f", and with one record more or less by {others[0]}"
    priced = (
        f"the different size of the noise alone costs epsilon {seen['epsilon_of_divisor']:.4g} at "
        f"delta {seen['delta']:.3g} ({seen['coordinates']:.3g} parameters times steps)"
    )
    if not seen.get("private_dataset_size"):
        return (
            f"{divided}: epsilon holds if the number of records is public, as is usual; if it is "
            f"private, {priced}: set expected_batch_size to a constant"
        )
    claimed = seen["claimed_epsilon"]
    more = "" if claimed is None else f", and {claimed:.4g} is claimed"
    return f"{divided}, and the number of records is private: {priced}{more}"


EXPECTED_BATCH_SIZE = BookkeepingCheck(
    "expected_batch_size",
    title="Divisor and data set size",
    failed_title="Divisor reveals data set size",
    meaning="Gradients are divided by a number computed from the data set, although the number of "
    "records is stated as private.",
    look_at="what the sum of gradients and noise is divided by: make_private computes it from the "
    "data set; after that set optimizer.expected_batch_size to a constant that is not computed "
    "from the records, unless it is one, and state it: PrivacyClaim(expected_batch_size=...)",
    each=True,
    blocks=_unpaid,
    # If the number of records is private, and revealing it costs more than the claim.
    wrong=lambda seen: (
        seen.get("private_dataset_size") is True
        and seen["claimed_epsilon"] is not None
        and exceeds(seen["epsilon_of_divisor"], seen["claimed_epsilon"])
    ),
    message=_divided,
    faults=(
        Fault(
            "divisor_tells_the_number_of_records",
            sentence="divided by a number that is computed from the records: the size of the noise "
            "reveals their number, which is stated as private",
        ).rule(10),
    ),
)


@dataclass(frozen=True)
class Promise:
    """What the claim promises about the records.

    Args:
        claimed_epsilon: of the whole training; None if nothing is claimed.
        delta: of that epsilon, in (0, 1).
        adjacency: of the neighboring data sets.
        private_size: whether the number of records is private.
        items: of the data set that a record makes.
    """

    claimed_epsilon: float | None
    delta: float
    adjacency: Adjacency = "add_remove"
    private_size: bool = False
    items: int = 1


def batch_size_result(
    expected: float, records: int, sample_rate: float, coordinates: int, promise: Promise
) -> CheckResult | None:
    """Return the result of `expected_batch_size`: how one record more or less changes the divisor.

    Opacus divides the noisy sum by ``int(records * sample_rate)``. If one record more or less
    changes this number, it changes the size of the noise in all coordinates of all steps, which
    distinguishes neighboring data sets. Usually the number of records is taken as public. Then
    nothing is wrong; the message states the assumption, and the check never fails.

    If the number is private, the cost is `isotropic_pair_epsilon` of the two divisors' ratio. It is
    exact for records with zero gradients, for which the claim must hold as well, so it is a lower
    bound for the mechanism with any noise multiplier. If it exceeds the claim, the claim is
    refuted. Otherwise the joint cost of divisor and steps is unknown, and nothing passes: for
    nonzero gradients the divisor changes the mean as well, and no accountant counts that. The
    sample rate is assumed to be a public constant.

    Args:
        expected: the divisor.
        records: number of records in the data set.
        sample_rate: the accountant's rate.
        coordinates: number of parameters times number of steps with noise.
        promise: what the claim promises about the records.

    Returns:
        The result; None if the divisor is another number, so that it was set by hand.
    """
    if expected != int(records * sample_rate):
        return None
    few = -promise.items, promise.items
    others = sorted({int((records + more) * sample_rate) for more in few} - {int(expected)})
    evidence: dict[str, Any] = {"expected_batch_size": expected, "of_neighbours": others}
    private = False
    if others and promise.adjacency != "replace_one":
        cost = max(_cost(expected, other, coordinates, promise.delta) for other in others)
        delta, private = promise.delta, promise.private_size
        evidence |= {"epsilon_of_divisor": cost, "coordinates": coordinates, "delta": delta}
    if private:
        evidence |= {"private_dataset_size": True, "claimed_epsilon": promise.claimed_epsilon}
    found = EXPECTED_BATCH_SIZE.judged(evidence, _divided(evidence))
    # What to do is shown at any cost.
    return dataclasses.replace(found, advice=EXPECTED_BATCH_SIZE.look_at if private else "")


def _cost(expected: float, other: int, coordinates: int, delta: float) -> float:
    """Return the epsilon of distinguishing the noise of both divisors."""
    if min(expected, other) <= 0:
        return math.inf
    return isotropic_pair_epsilon(expected / other, coordinates, delta) if coordinates else 0.0


# --- The check `logical_batch`: logical batches that run together.


def logical_batch_result(carried: int, epochs: int) -> CheckResult:
    """Return the result of `logical_batch`: the parts of a split batch must stay one batch.

    Args:
        carried: number of epochs that began with the rest of a logical batch of the previous one.
        epochs: number of epochs since batches are split.
    """
    return LOGICAL_BATCH.judged({"carried_over": carried, "epochs": epochs})


LOGICAL_BATCH = Check(
    "logical_batch",
    title="Boundaries of split batches",
    failed_title="Split batches run together",
    meaning="The rest of one logical batch is added to the next one, where a record can count "
    "twice.",
    look_at="how the loader that splits batches ends an epoch, and whether optimizer.step() is "
    "called on every part of a split batch, without `continue` or `break` before it (Lightning: "
    "epochs end at the length that Opacus' sampler estimates: write "
    "`class Whole(BatchSplittingSampler): def __len__(self): raise TypeError`, and return "
    "DataLoader(dataset, batch_sampler=Whole(sampler=..., max_batch_size=..., optimizer=...), "
    "collate_fn=loader.collate_fn) from train_dataloader)",
    topic="Sampling and bookkeeping",
    wrong=lambda seen: seen["carried_over"] > 0,
    private=True,
    fine="every epoch began with a logical batch of its own",
    message="{carried_over} of {epochs} epochs began with the rest of a logical batch of the "
    "previous one, which is added to the next batch: a record in both counts twice, with noise for "
    "one",
    faults=(
        Fault(
            "batches_run_together",
            sentence="logical batches run together: a record can count twice in one step",
        ).rule(-2),
    ),
)


# --- Converts the batches of a sampler to record numbers.


def record_numbers(batch: Any, records: int) -> np.ndarray[Any, Any] | None:
    """Return the numbers of a batch's records, in order; None if it is no list of such numbers.

    Args:
        batch: what a sampler yields; an iterator is not consumed.
        records: number of records in the data set; their numbers are 0 to ``records - 1``.
    """
    if hasattr(batch, "__next__"):
        return None
    try:
        numbers = np.asarray(batch)
    except Exception:  # a sampler may yield any object
        return None
    if numbers.size == 0:
        return np.zeros(0, dtype=np.int64)
    known = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
    if not known or not 0 <= numbers.min() <= numbers.max() < records:
        return None
    return numbers.astype(np.int64)


# --- The checks `sampling.not_poisson` and `sampling.rate`, for samplers of unknown type.

#: Name of the check of `drawn_batches`, which faults of the loader violate as well.
DRAWS = "ledger.draws"
#: Largest ratio of rates without a finding: a loader's rate is often rounded.
RATE_TOLERANCE = 1.01


def _unknown_sampling(found: CheckResult) -> str:
    # If no subsampling is accounted for, any sampling is fine.
    stated = [found.evidence.get(name) for name in ("accounted_rate", "sampling")]
    if found.status != "not_run" or stated == [None, None]:
        return ""
    if found.evidence.get("poisson"):
        return found.message
    return f"{found.message}; if it does, set allow={found.name!r}"


_NOT_POISSON = Fault(
    "not_poisson",
    "Batches are not Poisson-sampled",
    "wrong sampling: the loader is not Poisson although the accountant assumes it",
    "which loader the training iterates: that of PrivacyEngine.make_private is Poisson, unless it "
    "was called with poisson_sampling=False (then leave it at True, or claim the epsilon that "
    "holds: PrivacyClaim(sampling='shuffled', epsilon=..., delta=...)) (Lightning: it trains on "
    "that of the module or data module: pass make_private's to fit, write `def "
    "train_dataloader(self): return DPDataLoader.from_data_loader(loader)` (from "
    "opacus.data_loader), or wrap the data module in opacus.lightning.DPLightningDataModule)",
)
#: In the words of a loader without a batch sampler, which Poisson sampling and Opacus need.
_INFINITE = "_InfiniteConstantSampler"
_ITERABLE = dataclasses.replace(
    _NOT_POISSON,
    look_at="the data set: an IterableDataset gives no record by its index, so that nothing can "
    "draw Poisson batches from it: give the records a length, as DataLoader(list(dataset), "
    "batch_size=...) does if they fit into memory, give make_private that loader, and train on the "
    "one it returns (Lightning: return DPDataLoader.from_data_loader(loader), from "
    "opacus.data_loader, from train_dataloader)",
)

# For samplers whose type does not show how they draw; a wrong one is detected in a few batches.
NOT_POISSON = BookkeepingCheck(
    "sampling.not_poisson",
    title="How batches are drawn",
    failed_title="Batches are not Poisson-sampled",
    meaning="The accountant assumes that each record enters a batch independently with the same "
    "probability, and the loader draws otherwise.",
    look_at="which loader the training iterates: that of `make_private` with "
    "`poisson_sampling=True` draws Poisson batches",
    weight=10,
    always=True,
    wrong=lambda seen: seen["poisson"] is not True and seen.get("sampling") != "shuffled",
    blocks=_unknown_sampling,
    # The batches are private; the loader's type, and what is accounted for, are settings.
    private=True,
    fine="the batches agree with Poisson sampling",
    public=(
        "message",
        "loader",
        "loader_rate",
        "accounted_rate",
        "raised_in",
        "sampling",
        "poisson",
        "epsilon_that_holds",
    ),
    refutes=OF_BATCHES,
    message="{what}",
    faults=(
        Fault(
            "record_twice_in_a_batch",
            "A batch contains a record twice",
            "wrong sampling: a batch contains a record twice, which adds up to twice the clipping "
            "norm",
            "the sampler, and what fills batches up: draw each record at most once per batch, and "
            "do not pad batches",
        ).rule(
            6, explains=("sampling.rate", DRAWS), applies=lambda seen: bool(seen.get("doubled"))
        ),
        _ITERABLE.rule(
            6,
            explains=("sampling.rate", DRAWS),
            applies=lambda seen: _INFINITE in seen.get("loader", ""),
        ),
        _NOT_POISSON.rule(6, explains=("sampling.rate", DRAWS)),
    ),
)


def _drawn_more_often(seen: Mapping[str, Any]) -> str:
    accounted = seen["accounted_rate"]
    if "loader_rate" not in seen:
        return (
            f"records are drawn more often than with the accountant's probability {accounted:.4g}"
        )
    raised_in = seen.get("raised_in")
    since = "" if raised_in is None else f" from epoch {raised_in} on (the first is 0)"
    return (
        f"the loader's sample rate is {seen['loader_rate']:.4g}{since}, the accountant's "
        f"{accounted:.4g}"
    )


SAMPLING_RATE = dataclasses.replace(
    NOT_POISSON,
    name="sampling.rate",
    title="Sampling rate of the loader",
    failed_title="Records are drawn too often",
    meaning="Records enter batches more often than the accountant assumes, so the steps cost more "
    "than is accounted.",
    look_at="the batch size of the loader that is trained on, compared with that of the loader "
    "given to `make_private`, and whether the sampler favors some records",
    needs="no batch was seen for which the accountant recorded a rate",
    fine="the batches hold no more records than the accountant's rate allows",
    message=_drawn_more_often,
    always=False,
    wrong=lambda seen: seen["loader_rate"] > RATE_TOLERANCE * seen["accounted_rate"],
    blocks=None,
    faults=(
        Fault(
            "records_drawn_too_often",
            "Some records are drawn more often than accounted",
            "wrong sampling: some records are drawn more often than the accountant assumes",
            "the sampler: records that it favors or repeats early, and its rate compared with the "
            "accountant's, which must be the largest of all records",
        ).rule(
            9,
            explains=(DRAWS,),
            applies=lambda seen: "loader_rate" not in seen,  # found in the batches themselves
        ),
        Fault(
            "sampled_too_often_later",
            "The loader draws more often from some epoch on",
            "wrong sampling: from a later epoch on the loader draws more often than the accountant "
            "assumes",
            "what replaces the loader, or sets its batch sampler's sample_rate, between epochs: "
            "the accountant's step hook needs the new rate, or the loader keeps the old one",
        ).rule(9, explains=(DRAWS,), applies=lambda seen: seen.get("raised_in") is not None),
        Fault(
            "sampled_too_often",
            "The loader draws more often than accounted",
            "wrong sampling: the loader draws more often than the accountant assumes",
            "the batch sizes of the loader that is trained on and of the one that make_private was "
            "given: the loader and the accountant need the same rate, 1 / len(loader)",
        ).rule(9, explains=(DRAWS,)),
    ),
)


#: Largest sampling rate for which the tests are valid.
_LARGEST_RATE = 0.5

_SEEN = {
    "size": "batches are too equal in size: Poisson batches vary by about the root of their size",
    "unseen": "records are hardly ever drawn twice in an epoch: the sampler goes through the data "
    "instead of drawing every record independently for each batch",
    "repeated": "the batches of an epoch are those of the previous epoch",
}


class BatchCheck:
    """Test of the batches that a sampler yields, in memory: it releases no index and no count.

    Args:
        records: number of records in the data set, >= 1.
        significance: of the whole run.
    """

    def __init__(self, records: int, significance: float) -> None:
        self.records = records
        self._bets = PoissonBatchBets(records)
        self._poisson = NOT_POISSON.test(significance)
        self._rate = SAMPLING_RATE.test(significance)
        self._rate_wealth = np.zeros((2, len(RATE_RATIOS)))
        self._doubled = 0
        #: Why the batches cannot be tested; empty if they can.
        self.obstacle = ""
        #: Whether a record that is in a batch twice counts twice. It does not if the step averages
        #: its gradients before clipping, as for augmentations.
        self.twice_counts = True

    @property
    def batches(self) -> int:
        """Number of batches so far."""
        return self._bets.batches

    def start_epoch(self) -> None:
        """Record that the sampler starts an epoch."""
        self._bets.start_epoch()

    def take(self, batch: Any) -> None:
        """Update with a batch of the sampler; one that cannot be read ends the test."""
        if self.obstacle:
            return
        numbers = record_numbers(batch, self.records)
        if numbers is None:
            self.obstacle = "its batches are not lists of record numbers"
            return
        distinct = np.unique(numbers)
        self._doubled += len(distinct) < len(numbers)
        self._bets.update(distinct)
        self._poisson.update(self._bets.log_e, self._bets.batches - 1)

    def settle(self, rate: float | None) -> None:
        """Update the bets on the rate with the batches since the last call.

        Args:
            rate: the largest rate that the accountant recorded for these batches; None if unknown.
        """
        allowed = 1.0 if rate is None else RATE_TOLERANCE * rate
        if allowed < 1.0:
            for row, (trials, hits) in zip(self._rate_wealth, self._bets.counts, strict=True):
                row += rate_log_e(int(trials), int(hits), allowed)
            log_e = float(log_mean_exp(self._rate_wealth.ravel()))
            self._rate.update(log_e, self._bets.batches - 1)
        self._bets.counts[:] = 0

    def results(self, description: str, rate: float) -> tuple[CheckResult, ...]:
        """Return the results of `sampling.not_poisson` and `sampling.rate`.

        Args:
            description: the sampler, in words.
            rate: the accountant's sample rate, below 1.
        """
        self.settle(rate)
        unknown = {"accounted_rate": rate}
        if self._doubled and self.twice_counts:
            what = f"{description} yields batches that contain a record twice"
            found = NOT_POISSON.judged({"doubled": True, "poisson": False}, what=what)
        elif self.obstacle or self._doubled or rate > _LARGEST_RATE:
            twice = "a batch contains a record twice" if self._doubled else ""
            why = self.obstacle or twice or f"a sample rate of {rate:.3g} is too high to test"
            message = f"it is unknown whether {description} draws Poisson batches: {why}"
            found = NOT_POISSON.not_run(message, unknown)
        elif not self._poisson.violated and not self._could_have_seen():
            message = (
                f"{self._bets.batches} batches are too few or too small to test whether "
                f"{description} draws Poisson batches"
            )
            found = NOT_POISSON.not_run(message, unknown)
        else:
            seen = _SEEN[self._bets.NAMES[int(np.argmax(self._bets.wealth))]]
            found = NOT_POISSON.result(
                self._poisson,
                {"batches": self._bets.batches},
                fine=f"the batches of {description} agree with Poisson sampling",
                what=f"the accountant assumes Poisson sampling, but {description} draws otherwise: "
                f"{seen}",
            )
        return found, SAMPLING_RATE.result(
            self._rate,
            {"accounted_rate": rate},
            fine=f"the batches hold no more records than the accountant's rate {rate:.4g} allows",
        )

    def _could_have_seen(self) -> bool:
        """Return whether equal sizes, and batches without common records, would be detected."""
        needed = self._poisson.threshold + math.log(len(self._bets.NAMES))
        return bool(self._bets.could_win.min() >= needed)


# --- The check `ledger.draws`: whether batches repeat, or records are drawn too often.

_FOUND = {
    "again": "{again} of {batches} batches repeat earlier ones",
    "favoured": "some records are drawn more often than with the accountant's probability "
    "{rate:.4g}",
}

LEDGER_DRAWS = BookkeepingCheck(
    DRAWS,
    title="Independence of the draws",
    failed_title="Draws are not independent",
    meaning="Batches repeat, or some records are drawn more often than others.",
    look_at="what the sampler keeps or seeds at the start of an epoch, and whether it favors some "
    "records: each batch must be drawn independently, each record with the accountant's "
    "probability",
    weight=20,
    needs="no batch was seen whose records are known",
    private=True,
    fine="no batch repeats an earlier one, and no record is drawn too often",
    message=lambda seen: _FOUND[seen["of"]].format(**seen),
    public=("message",),
    refutes=OF_BATCHES,
    faults=(
        Fault(
            "batches_come_again",
            "Earlier batches are drawn again",
            "wrong sampling: earlier batches are drawn again",
            "what the sampler keeps or seeds at an epoch's start: each batch must be a new draw",
        ).rule(7, (), "of", "again"),
        Fault(
            "records_are_favoured",
            "Some records are drawn more often than others",
            "wrong sampling: some records are drawn more often than the accountant assumes",
            "how the sampler chooses records: the accountant needs the largest probability of all",
        ).rule(7, explains=(SAMPLING_RATE.name,)),
    ),
)


#: Largest number of records that are counted.
MOST_RECORDS = 50_000_000
#: Rates above the first, and data sets below the second, may give two new batches that begin alike.
_LARGE, _FEW = 0.25, 64


class DrawnBatches:
    """Test of the batches that a loader's sampler yields.

    Args:
        records: number of records in the data set, >= 1.
        significance: of the whole run.
    """

    def __init__(self, records: int, significance: float) -> None:
        self.records = records
        self._test = LEDGER_DRAWS.test(significance)
        self._bet = RepeatBet(records)
        self._counts = np.zeros(records if records <= MOST_RECORDS else 0, dtype=np.int32)
        self._batches = 0
        #: Largest rate that the accountant recorded; None while none is known.
        self.rate: float | None = None
        #: Why the batches cannot be tested; empty if they can.
        self.obstacle = "" if len(self._counts) else f"there are {records:,} records"
        self._waiting: list[np.ndarray[Any, Any]] = []

    def take(self, batch: Any) -> None:
        """Update with a batch of the sampler; one that cannot be read ends the test."""
        if self.obstacle:
            return
        numbers = record_numbers(batch, self.records)
        if numbers is None:
            self.obstacle = "its batches are not lists of record numbers"
            self._waiting = []
            return
        self._waiting.append(np.unique(numbers))
        if self.rate is not None:
            self._settle(self.rate)

    def _settle(self, rate: float) -> None:
        """Update the test with the batches that were drawn before the rate was known."""
        for indices in self._waiting:
            self._bet.update(hash(indices.tobytes()), len(indices), min(rate, 0.999))
            self._counts[indices] += 1
            self._batches += 1
        self._waiting = []

    @property
    def never_again(self) -> bool:
        """Whether new batches differ with near certainty, and none was drawn twice."""
        if self.obstacle or self.rate is None or self.rate > _LARGE or self.records < _FEW:
            return False
        self._settle(self.rate)
        return self._batches > 0 and not self._bet.again

    def result(self) -> CheckResult:
        """Return the result of `ledger.draws`."""
        if self.obstacle:
            return LEDGER_DRAWS.not_run(self.obstacle)
        if self.rate is None or self.rate >= 1.0:
            why = "the sample rate is unknown" if self.rate is None else "all records are taken"
            return LEDGER_DRAWS.not_run(why)
        self._settle(self.rate)
        favoured = 0.0
        if self._batches:
            allowed = min(RATE_TOLERANCE * self.rate, 0.999)
            favoured = favoured_log_e(self._counts, self._batches, allowed)
            self._test.update(float(log_mean_exp([self._bet.log_e, favoured])), self._batches - 1)
        evidence: dict[str, Any] = {}
        if self._test.violated:
            of = "again" if self._bet.log_e >= favoured else "favoured"
            evidence = {"batches": self._batches, "of": of}
        again, rate = self._bet.again, self.rate
        return LEDGER_DRAWS.result(self._test, evidence, again=again, rate=rate)


# --- The sampling checks: whether the loader draws its batches as the accountant assumes.

REPEATED = BookkeepingCheck(
    "sampling.repeated",
    title="Records shared among processes",
    failed_title="Every process draws all records",
    meaning="Each process draws from all records, so one record can enter a step several times.",
    look_at="whether the loader deals the records out to the processes, as "
    "`DPDataLoader.from_data_loader(loader, distributed=True)` does",
    wrong=lambda seen: seen["processes"] > 1,
    refutes=OF_BATCHES,
    message="each of {processes} processes draws from all records at rate {accounted_rate:.4g}, so "
    "a record may be clipped and added several times in a step, and is accounted once",
    faults=(
        Fault(
            "sampled_by_every_process",
            sentence="wrong sampling: every process draws from all records, so a record may enter "
            "a step several times",
        ).rule(8),
    ),
)


LoaderKind = Literal["poisson", "not_poisson", "unknown"]


def what_holds(noise_multiplier: float, passes: int, planned: int, delta: float) -> str:
    """Describe the epsilon that holds if each record enters one step per pass.

    Args:
        noise_multiplier: smallest noise multiplier of the steps, > 0.
        passes: number of passes over the data so far, >= 1.
        planned: number of them at the end of the training.
        delta: the delta.
    """

    def cost(passes: int) -> tuple[float, float]:
        zeroed = epsilon_of_passes(noise_multiplier, passes, delta)
        return zeroed, epsilon_of_passes(noise_multiplier, passes, delta, "replace_one")

    zeroed, replaced = cost(planned)
    many = "one epoch costs" if planned == 1 else f"{planned} epochs cost"
    seen = ""
    if planned > passes:
        many = f"the {planned} planned epochs cost"
        seen = " ({} seen so far: {:.4g} and {:.4g})".format(passes, *cost(passes))
    return (
        f". What holds: each record enters one step per epoch, so that {many} epsilon {zeroed:.4g} "
        f"at delta {delta:.3g} if a record is zeroed out, {replaced:.4g} if it is replaced{seen}"
    )


def sampling_results(
    kind: LoaderKind,
    description: str,
    loader_rate: float | None,
    accounted_rate: float | None,
    batch_sizes: Sequence[int],
    batches: BatchCheck | None = None,
    *,
    by_choice: bool = False,
    holds: str = "",
    epsilon_that_holds: float | None = None,
    raised_in: int | None = None,
) -> tuple[CheckResult, ...]:
    """Compare the loader with the Poisson sampling that the accountant assumes.

    Args:
        kind: what the loader's type shows.
        description: the loader's batch sampler, in words.
        loader_rate: the sampler's rate, None if it has none.
        accounted_rate: the accountant's rate, None if nothing is accounted.
        batch_sizes: sizes of the batches so far, without the last of each epoch; held in memory
            only, because no noise covers them.
        batches: the test of the batches, if the loader's type does not show how it draws.
        by_choice: whether make_private was called with ``poisson_sampling=False``.
        holds: which epsilon holds with this loader, in words; empty if that is unknown.
        epsilon_that_holds: the same as a number, for the adjacency of the claim.
        raised_in: epoch, from 0, since which the sampler has its rate; None if it always had it.

    Returns:
        Results of `sampling.not_poisson` and, for a Poisson loader, `sampling.rate`.
    """
    if accounted_rate is None or accounted_rate >= 1.0:
        return (NOT_POISSON.not_run("no subsampling is accounted for"),)
    if kind == "unknown" and batches is not None:
        return batches.results(description, accounted_rate)
    if kind == "unknown" and _too_equal(batch_sizes, accounted_rate):
        kind, description = "not_poisson", f"{description}, with batches all of one size"
    if kind == "not_poisson":
        chosen = "; make_private was called with poisson_sampling=False" * by_choice
        what = (
            f"the accountant assumes Poisson sampling at rate {accounted_rate:.4g}, but the "
            f"training's loader is not Poisson: {description}{chosen}{holds}"
        )
        evidence: dict[str, Any] = {"loader": description, "poisson": False}
        if epsilon_that_holds is not None:
            evidence["epsilon_that_holds"] = epsilon_that_holds
        return (NOT_POISSON.judged(evidence, what=what),)
    if kind == "unknown":
        message = f"it is unknown whether {description} draws Poisson batches"
        return (NOT_POISSON.not_run(message, {"accounted_rate": accounted_rate}),)
    poisson = NOT_POISSON.judged({"poisson": True}, f"the loader is Poisson: {description}")
    if loader_rate is None:
        return (poisson,)
    rates: dict[str, Any] = {"loader_rate": loader_rate, "accounted_rate": accounted_rate}
    if raised_in is not None:
        rates["raised_in"] = raised_in
    return poisson, SAMPLING_RATE.judged(rates, _drawn_more_often(rates))


def shuffled_result(kind: LoaderKind, description: str, *, once: bool) -> CheckResult:
    """Return the result of `sampling.not_poisson` if the claim states shuffled batches.

    Args:
        kind: what the loader's type shows.
        description: the loader's batch sampler, in words.
        once: whether each record enters at most one batch per epoch.
    """
    if once:
        message = f"each record enters at most one step per epoch, as claimed: {description}"
        evidence = {"poisson": False, "sampling": "shuffled"}
        return NOT_POISSON.judged(evidence, message)
    message = (
        f"sampling='shuffled' is claimed, and the loader is Poisson ({description}): leave "
        "sampling out of the claim"
        if kind == "poisson"
        else "sampling='shuffled' is claimed, and it is unknown whether each record enters at most "
        f"one step per epoch, once: {description}"
    )
    known = {"poisson": True} if kind == "poisson" else {}
    return NOT_POISSON.not_run(message, {"sampling": "shuffled", **known})


def repeated_result(processes: int, accounted_rate: float | None) -> CheckResult:
    """Return the result of `sampling.repeated`, for processes that each draw from all records.

    Args:
        processes: number of processes.
        accounted_rate: the accountant's rate, None if nothing is accounted.
    """
    if accounted_rate is None or accounted_rate >= 1.0:
        return REPEATED.not_run("no subsampling is accounted for")
    return REPEATED.judged({"processes": processes, "accounted_rate": accounted_rate})


def _too_equal(sizes: Sequence[int], rate: float) -> bool:
    """Return whether Poisson batches are all of one size with probability below 1e-9."""
    if not sizes or len(set(sizes)) > 1:
        return False
    variance = sizes[0] * (1.0 - rate)
    if variance < 1.0:
        return False
    most_likely = 1.0 / math.sqrt(2.0 * math.pi * variance)
    return (len(sizes) - 1) * math.log(most_likely) < math.log(1e-9)


#: The checks of this subject, in the order of the report.
CHECKS = (NOT_POISSON, SAMPLING_RATE, EXPECTED_BATCH_SIZE, LEDGER_DRAWS, REPEATED, LOGICAL_BATCH)
