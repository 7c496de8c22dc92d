"""The ledger checks: compare the accountant's record and the use of batches with the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_audit.accounting.phases import Phase
from lightning_audit.checks.base.check import OF_BATCHES, Check, FaultRule
from lightning_audit.checks.sampling.batch_sampling import SAMPLING_RATE
from lightning_audit.checks.sampling.drawn_batches import LEDGER_DRAWS, DrawnBatches
from lightning_audit.results.audit_report import CheckResult


def _unread(found: CheckResult) -> str:
    return found.message if found.evidence.get("hook") == "unread" else ""


LEDGER_ACCOUNTANT = Check(
    "ledger.accountant",
    "the accountant recorded fewer steps, or more noise, than the optimizer took and stated",
    title="What the accountant recorded",
    failed_title="Accountant recorded too little",
    meaning="The accountant recorded fewer steps than the optimizer took, or more noise than the "
    "optimizer stated.",
    look_at="Check what calls `accountant.step`, and with which `noise_multiplier`: "
    "`attach_step_hook` makes the optimizer call it once per step.",
    topic="Sampling and bookkeeping",
    kind="accounting",
    always=True,
    wrong=lambda seen: seen["missing"] > 0 or seen["told_noise"] is not None,
    blocks=_unread,
    refutes=("claimed",),  # of the accountant; the steps are composed as they were taken
    faults=(
        FaultRule(
            "accountant_not_told",
            "wrong accounting: the accountant did not record all steps",
            "what calls accountant.step: with attach_step_hook the optimizer does it at each step",
            headline="The accountant did not record all steps",
            rank=4,
            explains=("accounting", "epsilon"),
            applies=lambda seen: seen["missing"] > 0,
        ),
        FaultRule(
            "accountant_told_of_more_noise",
            "wrong accounting: the accountant recorded more noise than the optimizer states",
            "the noise_multiplier that accountant.step is called with",
            headline="The accountant recorded more noise than was added",
            rank=4,
            explains=("accounting", "epsilon"),
        ),
    ),
)

LEDGER_STEPS = Check(
    "ledger.steps",
    "several steps were taken on one batch, at once or later, and accounted as if each drew its "
    "own",
    title="Steps taken per batch",
    failed_title="Several steps on one batch",
    meaning="Several steps were taken on one batch, and accounted as if each had drawn its own.",
    look_at="Look for loops over `optimizer.step` within a batch, and for batches that are kept "
    "for later.",
    topic="Sampling and bookkeeping",
    kind="accounting",
    wrong=lambda seen: seen["again"] > 0 or seen["stale"] > 0,
    private=True,
    fine="each step had its own batch",
    public=("message",),
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "several_steps_on_one_batch",
            "wrong sampling: several steps were taken on one batch",
            "loops over optimizer.step within a batch, and batches that are kept for later: each "
            "step needs a new draw",
            headline="Several steps were taken on one batch",
            rank=11,
            explains=(SAMPLING_RATE.name,),
        ),
    ),
)

#: End of the message about steps without a known schedule.
UNKNOWN_SCHEDULE = (
    "no known schedule: if a loss or another value without noise decides it, no epsilon holds. "
    "Step on every batch, or every k-th; set the noise by opacus.schedulers, stepped once per step "
    "or epoch; or state allow=['ledger.schedule'] if only steps, epochs, public data or released "
    "values decide it"
)


def _unknown(found: CheckResult) -> str:
    return found.message if found.status == "not_run" and found.evidence else ""


LEDGER_SCHEDULE = Check(
    "ledger.schedule",
    "batches are left out, or noise_multiplier changes, by no known schedule, as if a loss decides "
    "it (never a violation; replay.release tests whether records do)",
    title="Schedule of steps and noise",
    failed_title="Schedule may depend on data",
    meaning="Batches are left out or `noise_multiplier` changes by no known schedule, so no "
    "epsilon holds if a loss, or another value without noise, decides it.",
    look_at="Check what decides whether a batch makes a step, and what sets `noise_multiplier`: "
    "steps, epochs, public data and released values may, a loss of training records may not.",
    topic="Sampling and bookkeeping",
    kind="accounting",
    wrong=lambda _: False,
    blocks=_unknown,
)

LEDGER_RECORDS = Check(
    "ledger.records",
    "the data set holds records several times, so that they are drawn more often than is accounted",
    title="Duplicates in the data set",
    failed_title="Data set repeats records",
    meaning="The data set holds some records several times, so they are drawn more often than is "
    "accounted.",
    look_at="Check the indices that a `Subset` or `ConcatDataset` is made of.",
    topic="Sampling and bookkeeping",
    kind="accounting",
    wrong=lambda seen: seen["repeated"] > 0,
    private=True,
    fine="the data set holds each index once",
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "records_stand_several_times",
            "wrong sampling: the data set holds indices several times",
            "how its Subset or ConcatDataset is made: an index that it holds k times is drawn k "
            "times as often",
            headline="The data set holds records several times",
            rank=12,
            explains=(SAMPLING_RATE.name, LEDGER_DRAWS.name),
        ),
    ),
)

CHECKS = (LEDGER_ACCOUNTANT, LEDGER_STEPS, LEDGER_SCHEDULE, LEDGER_RECORDS)


Told = Sequence[Sequence[float]]

#: Relative difference of two noise multipliers that are one.
_EQUAL = 1e-3


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

    def results(self, told: Told, taken: Sequence[Phase]) -> list[CheckResult]:
        """Return the results of the ledger checks.

        Args:
            told: history of the accountants: noise multiplier, sample rate, number of steps.
            taken: the steps as claimed, in order.
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
                    "make the Subset or ConcatDataset from distinct indices",
                )
            )
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
            "again": self.again + regiven,
            "unknown": self.unknown,
            "recognised": self.recognised,
            "stale": self.stale,
        }
        wrong = (
            f"{self.stale} of {self.recognised} examined steps were taken on a batch that an "
            "earlier step had used"
            if self.stale
            else f"{self.again + regiven} steps were taken on a batch that had already made a step"
        )
        return LEDGER_STEPS.judged(
            evidence, fine, wrong, "take one step on each batch that is drawn, and keep no batch"
        )

    def _of_schedule(self) -> CheckResult:
        # The number of batches is not shown: for split batches it depends on the data.
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
                "the accountant that the optimizer's step hook calls cannot be identified: attach "
                "accountant.get_optimizer_hook_fn(sample_rate), or state "
                "PrivacyClaim(sample_rate=...)"
                if self.hook == "unread"
                else "no accountant records the steps"
            )
            return LEDGER_ACCOUNTANT.not_run(f"not compared: {why}", {"hook": self.hook})
        known = sum(int(number) for *_, number in told)
        steps = sum(int(phase.steps) for phase in taken)
        missing = max(0, steps - self.taken_before - max(0, known - self.told_before))
        # With several accountants it is unknown which parts of their histories are earlier.
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
            f"the accountant recorded {steps - missing} of {steps} steps"
            if missing
            else f"the accountant recorded noise_multiplier {more:.4g}, above that of every step"
            if more is not None
            else ""
        )
        return LEDGER_ACCOUNTANT.judged(
            evidence,
            f"the accountant recorded all {steps} steps",
            wrong,
            "let the optimizer's step hook call accountant.step once per step, with the "
            "noise_multiplier and the sample rate that the optimizer states",
        )


def _since(told: Told, before: int) -> list[Sequence[float]]:
    """Return the history after the first ``before`` steps; an entry may be cut in two."""
    left: list[Sequence[float]] = []
    for sigma, rate, steps in told:
        known, before = min(before, int(steps)), max(0, before - int(steps))
        if steps > known:
            left.append((sigma, rate, steps - known))
    return left


def _more_noise(told: Told, taken: Sequence[Phase]) -> float | None:
    """Return a recorded noise multiplier above those of all steps; None if there is none."""
    stated = [phase.noise_multiplier for phase in taken]
    largest = max((float(sigma) for sigma, *_ in told), default=0.0)
    return largest if stated and largest > max(stated) * (1.0 + _EQUAL) else None
