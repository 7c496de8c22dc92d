"""What the accountant was told, and what batches were used for, beside the steps taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_audit.accounting.phases import Phase
from lightning_audit.checks.base.check import OF_BATCHES, Check, FaultRule
from lightning_audit.checks.sampling.drawn_batches import DrawnBatches
from lightning_audit.results.audit_report import CheckResult


def _unread(found: CheckResult) -> str:
    return found.message if found.evidence.get("hook") == "unread" else ""


LEDGER_ACCOUNTANT = Check(
    "ledger.accountant",
    "the accountant was told of fewer steps, or of more noise, than the optimizer took and stated",
    kind="accounting",
    always=True,
    wrong=lambda seen: seen["missing"] > 0 or seen["told_noise"] is not None,
    blocks=_unread,
    refutes=("claimed",),  # by an accountant; the steps are composed as they were taken
    faults=(
        FaultRule(
            "accountant_not_told",
            "wrong accounting: the accountant was not told of all steps",
            "who calls accountant.step: with attach_step_hook the optimizer does it at each step",
            rank=4,
            explains=("accounting", "epsilon"),
            applies=lambda seen: seen["missing"] > 0,
        ),
        FaultRule(
            "accountant_told_of_more_noise",
            "wrong accounting: the accountant was told of more noise than the optimizer states",
            "the noise_multiplier that accountant.step is given",
            rank=4,
            explains=("accounting", "epsilon"),
        ),
    ),
)

LEDGER_STEPS = Check(
    "ledger.steps",
    "several steps were taken on one batch, at once or later, which is accounted for as if each "
    "drew its own",
    kind="accounting",
    wrong=lambda seen: seen["again"] > 0 or seen["stale"] > 0,
    private=True,
    fine="each step had a batch of its own",
    public=("message",),
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "several_steps_on_one_batch",
            "wrong sampling: several steps were taken on one batch",
            "loops over optimizer.step within a batch, and batches that are kept for later: each "
            "step needs a batch that is drawn anew",
            rank=11,
            explains=("sampling.rate",),
        ),
    ),
)

#: Behind what was seen of the steps.
UNKNOWN_SCHEDULE = (
    "no schedule that is known: if a loss or another value without noise decides it, no epsilon "
    "holds. Step on every batch, or every k-th; set the noise by opacus.schedulers, stepped once a "
    "step or an epoch; or state allow=['ledger.schedule'] where steps, epochs, public data or "
    "released values alone decide it"
)


def _unknown(found: CheckResult) -> str:
    return found.message if found.status == "not_run" and found.evidence else ""


LEDGER_SCHEDULE = Check(
    "ledger.schedule",
    "batches are left out, or noise_multiplier changes, by no schedule that is known, as where a "
    "loss decides it (never a violation; replay.release tells whether records do)",
    kind="accounting",
    wrong=lambda _: False,
    blocks=_unknown,
)

LEDGER_RECORDS = Check(
    "ledger.records",
    "the data set holds records several times, so that they are drawn more often than is accounted",
    kind="accounting",
    wrong=lambda seen: seen["repeated"] > 0,
    private=True,
    fine="the data set holds each index once",
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "records_stand_several_times",
            "wrong sampling: the data set holds indices several times",
            "how its Subset or ConcatDataset is made: an index that stands there k times is drawn "
            "k times as often",
            rank=12,
            explains=("sampling.rate", "ledger.draws"),
        ),
    ),
)

CHECKS = (LEDGER_ACCOUNTANT, LEDGER_STEPS, LEDGER_SCHEDULE, LEDGER_RECORDS)


Told = Sequence[Sequence[float]]

#: Relative difference of two noise multipliers that are one.
_EQUAL = 1e-3


@dataclass
class Ledger:
    """What is written down beside the steps of a run.

    Args:
        draws: of the sampler; None where there is none to watch.
        again: steps beyond the first on the same records.
        unknown: batches of which it is not known whether their steps had the same records.
        recognised: steps whose batch was recognised where the layers saw it.
        stale: those on a batch that a step of an earlier batch had used.
        regiven: batches that came to the training again.
        repeated: indices of the data set that it holds several times; None if that is unknown.
        told_before: steps that the accountants had been told of when those of this process began.
        taken_before: steps that were taken by then.
        accountants: how many there are.
        begun: whether the two above were written down.
        steps: of all private optimizers.
        changes: steps whose noise multiplier is another one than that of the step before, by no
            schedule that is known.
        left_out: batches without a step, where they lie at no fixed distance; else 0.
        hook: "read" where the accountant behind each optimizer's step hook is known, "unread" where
            one cannot be followed, "none" where there is none.
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

    def results(self, told: Told, taken: Sequence[Phase]) -> list[CheckResult]:
        """Results of the checks of the ledger.

        Args:
            told: what the accountants hold: noise multiplier, sample rate, and number of steps.
            taken: the steps as they were claimed, in their order.
        """
        checks = [self._of_accountant(told, taken)]
        if taken:
            checks += [self._of_steps(), self._of_schedule()]
        if self.repeated is not None:
            checks.append(
                LEDGER_RECORDS.judged(
                    {"repeated": self.repeated},
                    LEDGER_RECORDS.fine,
                    f"the data set holds {self.repeated:,} indices several times",
                    "make the Subset or ConcatDataset of indices that differ",
                )
            )
        if self.draws is not None:
            checks.append(self.draws.result())
        return checks

    def _of_steps(self) -> CheckResult:
        fine = LEDGER_STEPS.fine
        if self.unknown:
            fine += "; of batches with several steps it is not known"
        # What a sampler of fresh batches never drew twice was held back on its way.
        regiven = 0 if self.draws is None or not self.draws.never_again else self.regiven
        evidence = {
            "again": self.again + regiven,
            "unknown": self.unknown,
            "recognised": self.recognised,
            "stale": self.stale,
        }
        wrong = (
            f"{self.stale} of {self.recognised} steps that were looked at were taken on a batch "
            "that a step had used before"
            if self.stale
            else f"{self.again + regiven} steps were taken on a batch that had made a step before"
        )
        return LEDGER_STEPS.judged(
            evidence, fine, wrong, "take one step for each batch that is drawn, and keep none"
        )

    def _of_schedule(self) -> CheckResult:
        # How many batches there were is not said: of split batches it is a number of the data.
        evidence = {name: getattr(self, name) for name in ("steps", "changes", "left_out")}
        found = [
            f"noise_multiplier changed at {self.changes} of {self.steps} steps"
            * bool(self.changes),
            f"{self.left_out} of {self.steps + self.left_out} batches made no step"
            * bool(self.left_out),
        ]
        if what := " and ".join(filter(None, found)):
            return LEDGER_SCHEDULE.not_run(f"{what}, by {UNKNOWN_SCHEDULE}", evidence)
        return LEDGER_SCHEDULE.judged(evidence, "steps and their noise follow a schedule", "", "")

    def _of_accountant(self, told: Told, taken: Sequence[Phase]) -> CheckResult:
        if self.hook != "read":
            why = (
                "what the optimizer's step hook tells an accountant cannot be followed: attach "
                "accountant.get_optimizer_hook_fn(sample_rate), or state "
                "PrivacyClaim(sample_rate=...)"
                if self.hook == "unread"
                else "no accountant feeds on the steps"
            )
            return LEDGER_ACCOUNTANT.not_run(f"not compared: {why}", {"hook": self.hook})
        known = sum(int(number) for *_, number in told)
        steps = sum(int(phase.steps) for phase in taken)
        missing = max(0, steps - self.taken_before - max(0, known - self.told_before))
        # Of several accountants it is not known which part of their histories came before.
        plain = not missing and (self.accountants < 2 or not self.told_before)
        more = _more_noise(_since(told, self.told_before), taken) if plain else None
        evidence = {
            "hook": self.hook,
            "steps": steps,
            "told": known,
            "missing": missing,
            "told_noise": more,
        }
        wrong = (
            f"the accountant was not told of {missing} of {steps} steps"
            if missing
            else f"the accountant was told of noise_multiplier {more:.4g}, which no step stated"
            if more is not None
            else ""
        )
        return LEDGER_ACCOUNTANT.judged(
            evidence,
            f"the accountant was told of all {steps} steps",
            wrong,
            "let the optimizer's step hook call accountant.step once a step, with what it states",
        )


def _since(told: Told, before: int) -> list[Sequence[float]]:
    """What was told behind so many steps, of which the last may have been added to."""
    left: list[Sequence[float]] = []
    for sigma, rate, steps in told:
        known, before = min(before, int(steps)), max(0, before - int(steps))
        if steps > known:
            left.append((sigma, rate, steps - known))
    return left


def _more_noise(told: Told, taken: Sequence[Phase]) -> float | None:
    """A noise multiplier that was told and is above all that the steps stated; None if none is."""
    stated = [phase.noise_multiplier for phase in taken]
    largest = max((float(sigma) for sigma, *_ in told), default=0.0)
    return largest if stated and largest > max(stated) * (1.0 + _EQUAL) else None
