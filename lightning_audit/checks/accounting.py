"""Checks of accounting: leakage of the steps, the claimed epsilon, and the accountant's record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lightning_audit.accounting.composition import exceeds
from lightning_audit.accounting.history import Phase, StepHistory
from lightning_audit.checks.check import MEASURED, OF_BATCHES, Check, Fault
from lightning_audit.checks.sampling import (
    LEDGER_DRAWS,
    SAMPLING_RATE,
    BookkeepingCheck,
    DrawnBatches,
)
from lightning_audit.record.store import Observation, RecordHeader
from lightning_audit.results.audit_report import CheckResult, OperatingPoint, items_words
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.canary_bets import Claim, LeakageBet, LeastLogs, ProvedPart, SignalBet
from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.gaussian import noncentrality_lower
from lightning_audit.stats.sequential import PredictableCentre, SignedReadings

# --- The check `accounting`: whether the run's steps compose to at most the claimed epsilon.

#: Reason for no composition if the claim's `noise_coefficients` correlate the noise of steps.
NOT_COMPOSED = (
    "noise_coefficients claim noise that is correlated over steps, and steps are composed here "
    "only if their noise is independent"
)

_SPENT_MORE = Fault(
    "wrong_accounting",
    "The steps cost more than claimed",
    "wrong accounting: the steps cost more than is claimed",
    "the number of steps, the sample rate and the noise multiplier that the claim was made for: "
    "stop earlier, raise noise_multiplier, lower the sample rate, or claim the epsilon that the "
    "steps cost",
)
_NO_NOISE = dataclasses.replace(_SPENT_MORE, look_at="noise_multiplier, which must be above 0")

_OF_REPLACEMENT = Fault(
    "replacement_accounted_as_removal",
    "The claim covers removing a record, not replacing one",
    "wrong accounting: epsilon is promised if a record is replaced, and the claim covers only a "
    "record more or less",
    "which data sets are neighbors for the accountant: Opacus' accountants assume a record more or "
    "less, and replacing a record moves the sum of the gradients twice as far; claim the epsilon "
    "that replacing a record costs, or raise noise_multiplier",
)


def _of_no_noise(seen: Mapping[str, Any]) -> bool:
    return math.inf in (seen.get("epsilon_planned"), seen.get("epsilon_spent"))


def _holds_by_removal(seen: Mapping[str, Any]) -> bool:
    """Return whether the claim would hold if no record were replaced, but one added or removed."""
    removal = seen.get("epsilon_by_removal")
    return removal is not None and not exceeds(removal, seen["claimed_epsilon"])


ACCOUNTING = Check(
    "accounting",
    title="Epsilon of the steps",
    failed_title="Steps cost more than claimed",
    meaning="The steps that ran, or that are planned, compose to a larger epsilon than the claim.",
    look_at="the number of steps, the sampling rate and the noise multiplier that the claim was "
    "computed for, and whether it covers replaced records",
    topic="Total epsilon",
    kind="accounting",
    always=True,
    wrong=lambda seen: exceeds(
        seen.get("epsilon_planned") or seen["epsilon_spent"], seen["claimed_epsilon"]
    ),
    message="{what}",
    faults=(
        _OF_REPLACEMENT.rule(15, applies=_holds_by_removal),
        _NO_NOISE.rule(15, applies=_of_no_noise),
        _SPENT_MORE.rule(15),
    ),
    refutes=("claimed",),  # the epsilon of the steps holds
)


# --- The check `claim.stated`: whether the claim promises more than the optimizer states.

CLAIM = Check(
    "claim.stated",
    title="Claim and optimizer",
    failed_title="Claim exceeds the optimizer",
    meaning="The claim states more noise, a smaller clipping norm, a smaller batch or a lower "
    "sampling rate than the optimizer or its accountant.",
    look_at="what `PrivacyClaim` states and what make_private, or the optimizer, is given: they "
    "must be equal",
    topic="Total epsilon",
    kind="accounting",
    wrong=lambda seen: bool(seen["more"]),
    fine="the claim promises no more than the optimizer states",
    message=lambda seen: (
        f"the claim promises more privacy than the optimizer states: {'; '.join(seen['more'])}"
    ),
    refutes=("claimed", "spent"),
    faults=(
        Fault(
            "claim_above_optimizer",
            sentence="the claim promises more privacy than the optimizer or its accountant states",
        ).rule(-7.5, MEASURED),
    ),
)


@dataclass(frozen=True)
class StatedTwice:
    """A number that both the claim and the optimizer, or its accountant, state.

    Args:
        name: of the number.
        claimed: by the claim.
        stated: by the optimizer or its accountant.
        above: whether a larger number promises more privacy.
        rounding: relative difference that rounding makes.
    """

    name: str
    claimed: float
    stated: float
    above: bool = False
    rounding: float = 1e-6

    @property
    def promised(self) -> int:
        """1 if the claim promises more privacy, -1 if it promises less, else 0."""
        if abs(self.claimed - self.stated) <= self.rounding * self.stated:
            return 0
        return 1 if (self.claimed > self.stated) == self.above else -1

    def __str__(self) -> str:
        return f"{self.name} {self.claimed:.4g} is claimed, {self.stated:.4g} is stated"


def claim_result(pairs: Sequence[StatedTwice]) -> CheckResult:
    """Return the result of `claim.stated`.

    Args:
        pairs: before the first step, at least one.
    """
    return CLAIM.judged({"more": [str(pair) for pair in pairs if pair.promised > 0]})


#: How steps are composed, for Poisson batches and for shuffled ones.
AS_LOSS_DISTRIBUTIONS = "as privacy loss distributions"
ONE_STEP_AN_EPOCH = "with each record in one step an epoch"


@dataclass(frozen=True)
class PlannedCost:
    """Planned cost of a training that has not taken a step.

    Args:
        epsilon: at the delta of the claim.
        what: what costs it, with its verb: "the 5 epochs that are planned cost".
    """

    epsilon: float
    what: str


def accounting_result(
    epsilon_spent: float | None,
    claimed_epsilon: float | None,
    delta: float,
    source: str,
    epsilon_by_removal: float | None = None,
    lack: str = "",
    how: str = AS_LOSS_DISTRIBUTIONS,
    planned: PlannedCost | None = None,
    continues: bool = False,
    delta_above: bool = False,
    items: int = 1,
) -> CheckResult:
    """Compare the composed epsilon with the claim.

    Args:
        epsilon_spent: epsilon of the steps that ran; None if the sample rate is unknown.
        claimed_epsilon: the claim; None if there is none.
        delta: the delta of both.
        source: where the claim comes from, in words.
        epsilon_by_removal: epsilon of the same steps between data sets with a record added or
            removed, if ``epsilon_spent`` is between those with one replaced; else None.
        lack: why the epsilon of the steps is unknown, if not for the sample rate.
        how: how the steps were composed.
        planned: what the training will cost, if it was stopped before its first step.
        continues: whether ``epsilon_spent`` includes the fits that this one continues.
        delta_above: whether ``delta`` is above one over the number of records.
        items: of a record, for all of which the steps are composed.

    Returns:
        The result of the check `accounting`.
    """
    evidence = {"epsilon_spent": epsilon_spent, "claimed_epsilon": claimed_epsilon, "delta": delta}
    evidence |= {"delta_above_records": True} if delta_above else {}
    if planned is not None and claimed_epsilon is not None:
        cost = f"{planned.what} epsilon {planned.epsilon:.4g} at delta {delta:.3g} {how}"
        what = f"{cost}, {source} says {claimed_epsilon:.4g} (claimed)"
        return ACCOUNTING.judged({**evidence, "epsilon_planned": planned.epsilon}, what=what)
    if epsilon_spent is None or claimed_epsilon is None:
        unknown = lack or "the sample rate is unknown"
        lacks = unknown if epsilon_spent is None else "no epsilon is claimed"
        return ACCOUNTING.not_run(lacks, evidence)
    between = items_words(items)
    if epsilon_by_removal is not None:
        between += " if a record is replaced"
        evidence["epsilon_by_removal"] = epsilon_by_removal
    # Two ways to compose the same steps give slightly different numbers.
    numbers = (
        f"epsilon {epsilon_spent:.4g} at delta {delta:.3g}{between} {how} "
        f"(spent), {source} says {claimed_epsilon:.4g} (claimed)"
    )
    steps, more = "the steps so far", ""
    if continues:
        steps = "the steps of this training and of those that it continues"
        more = "; if the earlier ones share no record, state PrivacyClaim(new_data=True)"
    if _holds_by_removal(evidence):
        more = (
            f"; adding or removing one costs only {epsilon_by_removal:.4g}, which is what Opacus' "
            "accountants report"
        )
    return ACCOUNTING.judged(
        evidence, f"{steps} compose to {numbers}", what=f"{steps} cost {numbers}{more}"
    )


# --- Guesses of the private coins: error counts for bounds from the literature.

#: Thresholds: claimed standard deviations from the middle between out and in, in units of the
#: signal. They are fixed before the first reading.
_OFFSETS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_MIDDLE = 2


class Guesses:
    """Counts of right and wrong guesses of the coins, at thresholds fixed in advance.

    A canary is guessed to be in if its reading, minus the mean of its past residuals, exceeds the
    threshold. All canaries of all steps are pooled, in and out separately: coins need not be fair.

    Args:
        header: layout of the entries.
    """

    def __init__(self, header: RecordHeader) -> None:
        self._centre = PredictableCentre((len(header.canaries),))
        # Threshold x (fn, tp, fp, tn).
        self._counts = np.zeros((len(_OFFSETS), 4), dtype=np.int64)
        self._spread = math.nan
        #: Smallest noise multiplier of a step, of the largest claimed mu, which the bounds concern.
        self.least_noise = math.inf

    def update(self, seen: Observation) -> None:
        """Update with steps whose coins count."""
        coins, readings, sigma = seen.coins > 0, seen.readings, seen.noise_multiplier
        if math.isnan(self._spread):
            self._spread = sigma
        self.least_noise = min(self.least_noise, sigma)
        centred = readings - self._centre.update(readings - coins)
        guesses = centred > 0.5 + sigma * _OFFSETS[:, None, None]
        sides = (~guesses & coins, guesses & coins, guesses & ~coins, ~guesses & ~coins)
        self._counts += np.stack([side.sum(axis=(1, 2)) for side in sides], axis=1)

    @property
    def middle(self) -> ConfusionCounts:
        """Counts at the threshold in the middle between out and in."""
        fn, tp, fp, tn = self._counts[_MIDDLE]
        return ConfusionCounts(fn, tp, fp, tn)

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """Counts at every threshold, in units of the signal at the first step's noise."""
        if math.isnan(self._spread):
            return ()
        thresholds = 0.5 + self._spread * _OFFSETS
        return tuple(
            OperatingPoint(float(threshold), fn, tp, fp, tn)
            for threshold, (fn, tp, fp, tn) in zip(thresholds, self._counts.tolist(), strict=True)
        )


# --- Lower bounds on the leakage of steps, from the record alone, and the check `epsilon`.

EPSILON = Check(
    "epsilon",
    title="Lower bound on epsilon",
    failed_title="More leaks than claimed",
    meaning="The epsilon that the readings prove for the run is larger than the claim.",
    look_at="clipping and noise of each step, and the noise multiplier that the accountant "
    "records: the other findings say whether the noise or the clipping is at fault",
    topic="Total epsilon",
    kind="epsilon",
    weight=100,
    group="leakage",
    always=True,
    doubtful=True,
    wrong=lambda seen: (
        seen["epsilon_lower"] is not None
        and exceeds(seen["epsilon_lower"], seen["claimed_epsilon"])
    ),
    message="{what}",
    faults=(
        Fault(
            "leaks_more_than_claimed",
            sentence="more leaks than the claim allows, by noise and clipping together",
        ).rule(5),
    ),
)


#: Least ratio of the steps of two looks that are kept.
_APART = 1.03
#: Grid of a canary's signal over the clipping norm: a quarter percent apart up to 1.1, then coarse.
_SIGNAL_GRID = np.concatenate(
    [
        np.arange(0.05, 0.3, 0.05),
        np.geomspace(0.3, 1.1, 521),
        [1.15, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 5.0, 10.0, 30.0, 100.0, 300.0, 1000.0],
    ]
)


class LeakageBound:
    """Lower bounds on the leakage of the steps up to each look; see `LeakageBet`."""

    def __init__(self, header: RecordHeader) -> None:
        self._bet = LeakageBet(
            (len(header.canaries),), header.coin_probability, header.planned_steps
        )
        self._claims = StepHistory()
        self._seen = 0
        # For each look kept: steps with canaries, all steps, and the bets' wealth.
        self._looks: list[tuple[int, int, Floats]] = []

    def update(self, seen: Observation) -> None:
        """Update with steps whose coins count."""
        sigma, rate = seen.noise_multiplier, seen.sample_rate
        # If the rate is unknown, all steps have the same weight.
        rate = 1.0 if math.isnan(rate) or rate <= 0.0 else min(rate, 1.0)
        growths = self._bet.update(seen.coins, seen.readings, sigma, rate)
        self._claims.add(sigma, rate, len(growths))
        for step, growth in zip(seen.step.tolist(), growths, strict=True):
            self._seen += 1
            # The latest look is always the last one kept.
            if len(self._looks) > 1 and self._looks[-1][0] < _APART * self._looks[-2][0]:
                self._looks.pop()
            self._looks.append((self._seen, step + 1, growth))

    def front(self, significance: float) -> list[ProvedPart]:
        """Return what is proved for the steps up to each look, from the latest look back.

        All parts hold together with probability at least ``1 - significance``. The ratios increase
        and the numbers of steps decrease: no other look proves as large a ratio for more steps.
        """
        looks = [(seen, growth) for seen, _, growth in self._looks]
        ratios = self._bet.ratios(significance, looks, self._claims_up_to(self._seen))
        found: list[ProvedPart] = []
        for (seen, steps, growth), ratio in reversed([*zip(self._looks, ratios, strict=True)]):
            if ratio > max((part.ratio for part in found), default=0.0):
                logs = partial(self._logs, significance, seen, growth)
                found.append(ProvedPart(float(ratio), steps, logs))
        return found

    def _logs(self, significance: float, seen: int, growth: Floats) -> list[LeastLogs]:
        return self._bet.proved(significance, growth, self._claims_up_to(seen))

    def _claims_up_to(self, seen: int) -> list[Claim]:
        runs = self._claims.runs(seen)
        return [(run.noise_multiplier, run.known_rate, run.steps) for run in runs]

    def ratio_lower(self, significance: float) -> float:
        """Return the largest proved ratio, which some step exceeds; 0 if none is proved."""
        return max((part.ratio for part in self.front(significance)), default=0.0)


@dataclass(frozen=True)
class SignalOverNoise:
    """Limits of a canary's signal and of the noise, relative to their claims, at one look.

    Args:
        signal_lower: lower limit of what a canary adds in some step.
        noise_upper: upper limit of the noise in some step and coordinate.
    """

    signal_lower: float
    noise_upper: float

    @property
    def ratio_lower(self) -> float:
        """Lower limit of mu over its claim, if signal and noise over their claims are constant."""
        if self.signal_lower == 0.0:
            return 0.0
        return self.signal_lower / self.noise_upper if self.noise_upper > 0 else math.inf


class SignalBound:
    """Lower limit of what a canary adds, for any data and any noise."""

    def __init__(self, header: RecordHeader) -> None:
        self._k = len(header.canaries)
        self._coin_probability = header.coin_probability
        self._bet: SignalBet | None = None

    def update(self, seen: Observation) -> None:
        """Update with steps whose coins count."""
        if self._bet is None:
            scale = seen.noise_multiplier
            self._bet = SignalBet((self._k,), _SIGNAL_GRID, scale, self._coin_probability)
        self._bet.update(seen.coins, seen.readings)

    def lower(self, significance: float) -> float:
        """Return the limit, in units of what clipping allows; 0 if nothing is proved."""
        return float(self._bet.signal_lower(significance)) if self._bet is not None else 0.0


class StudentBound:
    """Lower limit of one step's mu by the noncentral t, at one look.

    It uses the steps with the first noise multiplier.
    """

    def __init__(self, header: RecordHeader) -> None:
        self._readings = SignedReadings(len(header.canaries))

    def update(self, seen: Observation) -> None:
        """Update with steps whose coins count."""
        self._readings.update(seen.coins, seen.readings, seen.noise_multiplier)

    def mu_lower(self, significance: float) -> tuple[float, float]:
        """Return the lower limit of one step's mu, and the noise multiplier of these steps."""
        sigma = self._readings.noise_multiplier
        number, mean, squares = self._readings.statistics
        if sigma is None or number < 2:
            return 0.0, sigma or 1.0
        if squares == 0.0:  # no noise at all
            return (math.inf if mean > 0 else 0.0), sigma
        t = np.array([mean * math.sqrt(number * (number - 1.0) / squares)])
        limit = noncentrality_lower(t, np.array([number - 1.0]), significance)
        return 2.0 / math.sqrt(number) * float(limit[0]), sigma


# --- The ledger checks: compare the accountant's record and the use of batches with the steps.


def _recorded_too_little(seen: Mapping[str, Any]) -> str:
    if missing := seen["missing"]:
        return f"the accountant recorded {seen['steps'] - missing} of {seen['steps']} steps"
    return (
        f"the accountant recorded noise_multiplier {seen['told_noise']:.4g}, above that of every "
        "step"
    )


LEDGER_ACCOUNTANT = BookkeepingCheck(
    "ledger.accountant",
    title="What the accountant recorded",
    failed_title="Accountant recorded too little",
    meaning="The accountant recorded fewer steps than the optimizer took, or more noise than the "
    "optimizer stated.",
    look_at="what calls `accountant.step`, and with which `noise_multiplier`: `attach_step_hook` "
    "makes the optimizer call it once per step, with the noise multiplier and the sample rate that "
    "it states",
    always=True,
    wrong=lambda seen: seen["missing"] > 0 or seen["told_noise"] is not None,
    blocks=lambda found: found.message if found.evidence.get("hook") == "unread" else "",
    refutes=("claimed",),  # of the accountant; the steps are composed as they were taken
    message=_recorded_too_little,
    faults=(
        Fault(
            "accountant_not_told",
            "The accountant did not record all steps",
            "wrong accounting: the accountant did not record all steps",
            "what calls accountant.step: with attach_step_hook the optimizer does it at each step; "
            "a new PrivacyEngine has a new accountant: write lightning_audit.Rounds(..., "
            "continue_accountant=True), or load the earlier one's state, load_state_dict",
        ).rule(4, explains=("accounting", "epsilon"), applies=lambda seen: seen["missing"] > 0),
        Fault(
            "accountant_told_of_more_noise",
            "The accountant recorded more noise than was added",
            "wrong accounting: the accountant recorded more noise than the optimizer states",
        ).rule(4, explains=("accounting", "epsilon")),
    ),
)


def _on_used_batches(seen: Mapping[str, Any]) -> str:
    if seen["stale"]:
        return (
            f"{seen['stale']} of {seen['recognised']} examined steps were taken on a batch that an "
            "earlier step had used"
        )
    return f"{seen['again']} steps were taken on a batch that had already made a step"


LEDGER_STEPS = BookkeepingCheck(
    "ledger.steps",
    title="Steps taken per batch",
    failed_title="Several steps on one batch",
    meaning="Several steps were taken on one batch, and accounted as if each had drawn its own.",
    look_at="loops over `optimizer.step` within a batch, and batches that are kept for later: each "
    "step needs a new draw",
    wrong=lambda seen: seen["again"] > 0 or seen["stale"] > 0,
    private=True,
    fine="each step had its own batch",
    public=("message",),
    message=_on_used_batches,
    refutes=OF_BATCHES,
    faults=(
        Fault(
            "several_steps_on_one_batch",
            sentence="wrong sampling: several steps were taken on one batch",
        ).rule(11, explains=(SAMPLING_RATE.name,)),
    ),
)

#: End of the message about steps without a known schedule.
UNKNOWN_SCHEDULE = (
    "no known schedule: if a loss or another value without noise decides it, no epsilon holds. "
    "Step on every batch, or every k-th; set the noise by opacus.schedulers, stepped once per step "
    "or epoch; or state allow=['ledger.schedule'] if only steps, epochs, public data or released "
    "values decide it"
)


LEDGER_SCHEDULE = BookkeepingCheck(
    "ledger.schedule",
    title="Schedule of steps and noise",
    failed_title="Schedule may depend on data",
    meaning="Batches are left out or `noise_multiplier` changes by no known schedule, so no "
    "epsilon holds if a loss, or another value without noise, decides it.",
    look_at="what decides whether a batch makes a step, and what sets `noise_multiplier`: steps, "
    "epochs, public data and released values may, a loss of training records may not",
    wrong=lambda _: False,
    blocks=lambda found: found.message if found.status == "not_run" and found.evidence else "",
    fine="steps and their noise follow a schedule",
)

LEDGER_RECORDS = BookkeepingCheck(
    "ledger.records",
    title="Duplicates in the data set",
    failed_title="Data set repeats records",
    meaning="The data set holds some records several times, so they are drawn more often than is "
    "accounted.",
    look_at="the indices that a `Subset` or `ConcatDataset` is made of, which must be distinct: "
    "one that it holds k times is drawn k times as often",
    wrong=lambda seen: seen["repeated"] > 0,
    private=True,
    fine="the data set holds each index once",
    message="the data set holds {repeated:,} indices several times",
    refutes=OF_BATCHES,
    faults=(
        Fault(
            "records_stand_several_times",
            sentence="wrong sampling: the data set holds indices several times",
        ).rule(12, explains=(SAMPLING_RATE.name, LEDGER_DRAWS.name)),
    ),
)


Recorded = Sequence[Sequence[float]]

#: Relative difference of two noise multipliers that are one.
_EQUAL = 1e-3
#: Why the accountant's record is unknown, by `Ledger.hook`.
_NOT_READ = {
    "unread": "the accountant that the optimizer's step hook calls cannot be identified: attach "
    "accountant.get_optimizer_hook_fn(sample_rate), or state PrivacyClaim(sample_rate=...)",
    "none": "no accountant records the steps",
}


@dataclass
class Ledger:
    """Counts of batches and of accounted steps of a run.

    Args:
        draws: batches of the sampler; None if there is none to watch.
        again: number of steps beyond the first on the same records.
        unknown: number of batches whose steps may or may not have had the same records.
        recognised: number of steps whose batch was identified at the input of the layers.
        stale: number of these on a batch that a step of an earlier batch had used.
        regiven: number of batches that the training got again.
        repeated: number of indices that the data set holds several times; None if unknown.
        told_before: number of steps in the accountants before the first step of this process.
        taken_before: number of steps taken before it.
        accountants: number of accountants.
        begun: whether the two numbers before it were recorded.
        steps: number of steps of all private optimizers.
        changes: number of steps whose noise multiplier differs from that of the previous step, by
            no known schedule.
        left_out: number of batches without a step, unless they are at a fixed distance; else 0.
        compared: number of steps whose clipped gradients were compared with their batch's records.
        other_rows: number of these with another number.
        elsewhere: whether steps may take other records than their batches hold.
        unfetched: whether a step took a batch that the followed loader did not yield.
        hook: "read" if the accountant that each optimizer's step hook calls is known, "unread" if
            some hook cannot be followed, "none" if there is no hook.
    """

    draws: DrawnBatches | None = None
    again: int = 0
    unknown: int = 0
    recognised: int = 0
    stale: int = 0
    regiven: int = 0
    repeated: int | None = None
    told_before: int = 0
    taken_before: int = 0
    accountants: int = 1
    hook: str = "none"
    begun: bool = False
    steps: int = 0
    changes: int = 0
    left_out: int = 0
    compared: int = 0
    other_rows: int = 0
    elsewhere: bool = False
    unfetched: bool = False

    def results(self, recorded: Recorded, taken: Sequence[Phase]) -> list[CheckResult]:
        """Return the results of the ledger checks.

        Args:
            recorded: history of the accountants: noise multiplier, sample rate, number of steps.
            taken: the steps as claimed, in order.
        """
        checks = [self._of_accountant(recorded, taken)]
        if taken:
            checks += [self._of_steps(), self._of_schedule()]
        if self.repeated is not None:
            checks.append(LEDGER_RECORDS.judged({"repeated": self.repeated}))
        if self.draws is not None:
            checks.append(self.draws.result())
        return checks

    def _of_steps(self) -> CheckResult:
        fine = LEDGER_STEPS.fine
        if self.unknown:
            fine += "; for batches with several steps it is unknown"
        # A batch that the sampler never drew twice was kept on its way to the training.
        regiven = 0 if self.draws is None or not self.draws.never_again else self.regiven
        evidence = {
            "again": (0 if self.elsewhere else self.again) + regiven,
            "unknown": self.unknown,
            "recognised": self.recognised,
            "stale": self.stale,
        }
        return LEDGER_STEPS.judged(evidence, fine)

    def _of_schedule(self) -> CheckResult:
        # The number of batches is not shown: for split batches it depends on the data.
        evidence = {name: getattr(self, name) for name in ("steps", "changes", "left_out")}
        found = []
        if self.changes:
            found.append(f"noise_multiplier changed at {self.changes} of {self.steps} steps")
        if self.left_out:
            batches = self.steps + self.left_out
            found.append(f"{self.left_out} of {batches} batches made no step")
        if found:
            message = f"{' and '.join(found)}, by {UNKNOWN_SCHEDULE}"
            return LEDGER_SCHEDULE.not_run(message, evidence)
        return LEDGER_SCHEDULE.judged(evidence)

    def _of_accountant(self, recorded: Recorded, taken: Sequence[Phase]) -> CheckResult:
        if self.hook in _NOT_READ:
            return LEDGER_ACCOUNTANT.not_run(_NOT_READ[self.hook], {"hook": self.hook})
        known = sum(int(number) for *_, number in recorded)
        steps = sum(int(phase.steps) for phase in taken)
        missing = max(0, steps - self.taken_before - max(0, known - self.told_before))
        # With several accountants it is unknown which parts of their histories are earlier.
        plain = not missing and (self.accountants < 2 or not self.told_before)
        more = _more_noise(_since(recorded, self.told_before), taken) if plain else None
        evidence = {"hook": self.hook, "steps": steps, "told": known, "missing": missing}
        evidence["told_noise"] = more
        return LEDGER_ACCOUNTANT.judged(evidence, f"the accountant recorded all {steps} steps")


def _since(recorded: Recorded, before: int) -> list[Sequence[float]]:
    """Return the history after the first ``before`` steps; an entry may be cut in two."""
    left: list[Sequence[float]] = []
    for sigma, rate, steps in recorded:
        known, before = min(before, int(steps)), max(0, before - int(steps))
        if steps > known:
            left.append((sigma, rate, steps - known))
    return left


def _more_noise(recorded: Recorded, taken: Sequence[Phase]) -> float | None:
    """Return a recorded noise multiplier above those of all steps; None if there is none."""
    stated = [phase.noise_multiplier for phase in taken]
    largest = max((float(sigma) for sigma, *_ in recorded), default=0.0)
    return largest if stated and largest > max(stated) * (1.0 + _EQUAL) else None


#: The checks of this subject, in the order of the report.
CHECKS = (
    ACCOUNTING,
    CLAIM,
    EPSILON,
    LEDGER_ACCOUNTANT,
    LEDGER_STEPS,
    LEDGER_SCHEDULE,
    LEDGER_RECORDS,
)
