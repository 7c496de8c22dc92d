"""Makes docs/selftest.md by training every row: `python docs/build/selftest_page.py`.

For comparison, the bounds of the literature are computed on the observations of each training.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from literature import CHOICES, EACH, METHODS, StepsNeeded, steps_needed

from lightning_audit import AuditReport, PrivacyAudit, __version__
from lightning_audit.record.report_directory import RECORD_NAME, REPORT_NAME
from lightning_audit.record.store import ENTERED, read_observations
from lightning_audit.testing import selftest
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.runs import train
from lightning_audit.testing.selftest import (
    HEADINGS,
    Row,
    planned,
    show,
    steps_of,
    summary,
    train_row,
)
from lightning_audit.testing.selftest_pool import Result, run_all

PAGE = Path(__file__).parents[1] / "selftest.md"

_HEAD = """# What the audit finds, and after how many steps

<!-- Made by `python docs/build/selftest_page.py`; do not edit. -->

{summary}.

`lightning-audit selftest` trains every fault of [the registry](faults.md) and correct trainings
under `PrivacyAudit`, each in a few seconds. It fails if a fault is not found under its name, or if
a correct training is accused. Each training has a fixed seed.
This page shows a run of {date} with lightning-audit {version}: {seconds:.0f} seconds, {jobs}
trainings at a time.

**answer**: *found* means a violation with the finding and the name that the registry states;
*warned* is the same without loss of privacy, which fails no gate. *named otherwise*, *not found*,
*accused* and *crashed* fail the selftest. **steps**: the step at which the fault was found, of the
trained steps; *end* if only the report at the end shows it. The audit is evaluated after every
step, and accuses a correct training with probability at most 0.001 over all of them.

The other columns are the bounds of the literature on the same observations: the step from which on
the bound on one step is above the claim of that step, up to the end; with the threshold fixed in
advance / with the threshold that has the largest bound on the same data; "-" if it is not above the
claim at the end. They are evaluated after each of the first {each} steps and then at
intervals of a tenth, which makes these columns optimistic:

- Each bound holds for one look, at 95 %, at an end that is fixed in advance. The first look from
  which on it remains above the claim is known only in hindsight. A gate with such a bound accuses
  one correct training in twenty at its only look, and more if it looks again.
- The largest bound over all thresholds is **not valid**: papers plot it, and it accuses correct
  trainings, as the last table shows.
- If the audit stops adding canaries, because the clipping is proved wrong, the training is run
  again with canaries in every step for these columns.

`fdp_*` bound mu and are compared with signal over noise multiplier; `eps_cp` and `katz` bound
epsilon and are compared with the epsilon of that mu at delta {delta:g}. `katz` is a bound at delta
0, where a Gaussian mechanism claims nothing; it is compared as in the papers. These bounds are not
designed for faults that do not widen the gap between readings with and without a canary (repeated
noise, a second optimizer that is not private, wrong sampling): a number there may be chance. They
name no fault.
"""

_OF_GROUPS = {
    "published": f"""
Section 6.3 and appendix B of *Tight Auditing of Differentially Private Machine Learning* (USENIX
Security 2023): single steps that claim epsilon {selftest.EPSILON} at delta
{selftest.DELTA:g}, which is noise multiplier {selftest.NOISE_MULTIPLIER:.3g}; batches of
{selftest.BATCH_SIZE}; 2,500 observations with and 2,500 without a canary. Here
{selftest.PUBLISHED_STEPS} steps with eight canaries, each in half of the steps, give the same
number. Changes, so that it runs in seconds: a small net on 50,000 random records instead of a
WideResNet on CIFAR-10 (the paper also uses this number of random images), clipping norm 1 (the text
gives none), canaries of 1000 times the clipping norm instead of exactly that norm. Figure 7 clips
after averaging, figure 8 draws the noise from 100 seeds, figure 9 adds too little noise: a step's
true epsilon is then 1.57, which f-DP detects in the paper, or 2.17, which the other methods do not
detect.""",
    "healthy": """
A number in the columns of the literature is a false accusation. "figures 7-9" has the settings of
the violations above.
""",
}
_COLUMNS = ("training", "configuration", "answer", "finding", "named", "outcome", "steps", *METHODS)


@dataclass(frozen=True)
class Compared(Result):
    """A result with the steps that the literature's methods need.

    Args:
        needed: by method and threshold, the step from which on its bound is above the claim.
    """

    needed: StepsNeeded = field(default_factory=dict)


class Observer(PrivacyAudit):
    """Keeps only the record, and adds canaries even if the clipping was found broken."""

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Forget that the clipping is broken."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        for session in self._run.sessions if self._run else ():
            session.recorder.clipping_is_broken = False

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute no bounds."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the records."""
        self._ended = True
        for session in self._run.sessions if self._run else ():
            session.recorder.flush()
            if session.store is not None:
                session.store.close(archive=False)


def compare(row: Row) -> Compared:
    """Train a row; return the result of the audit and of the bounds of the literature."""
    with tempfile.TemporaryDirectory(prefix="row-") as name:
        directory = Path(name)
        result = train_row(row, directory / "audit")
        delta = AuditReport.load(directory / "audit" / REPORT_NAME).delta
        header, entries = read_observations(directory / "audit" / RECORD_NAME)
        if (~np.isin(entries["canaries"], ENTERED)).any():
            # The audit stopped adding canaries early; the literature's methods need all steps.
            train(row.fault, directory / "again", row.seed, Observer)
            header, entries = read_observations(directory / "again" / RECORD_NAME)
        return Compared(**vars(result), needed=steps_needed(header, entries, delta))


def needed_by(result: Result, method: str) -> str:
    """Return the steps that a method needs with the fixed threshold, and with the largest bound."""
    needed = _needed(result).get(method)
    if not needed:
        return "-"
    both = [needed[name] for name in CHOICES]
    return " / ".join("-" if n is None else str(n) for n in both)


def _needed(result: Result) -> Mapping[str, Mapping[str, int | None]]:
    return result.needed if isinstance(result, Compared) else {}


def markdown(results: Sequence[Result], seconds: float, jobs: int) -> str:
    """Return the page.

    Args:
        results: of all rows.
        seconds: duration of the run.
        jobs: number of parallel trainings.
    """
    parts = [
        _HEAD.format(
            summary=summary(results),
            date=datetime.now(UTC).date().isoformat(),
            version=__version__,
            seconds=seconds,
            jobs=jobs,
            each=EACH,
            delta=selftest.DELTA,
        )
    ]
    for group, title in HEADINGS.items():
        rows = [result for result in results if result.group == group]
        if rows:
            parts += [f"\n## {title}\n", _OF_GROUPS.get(group, ""), "\n", _table(rows)]
            parts += _false_accusations(rows) if group == "healthy" else []
    parts += _remarks(results)
    return "".join(parts)


def _table(rows: Sequence[Result]) -> str:
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *(_cells(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(result: Result) -> tuple[str, ...]:
    name = result.fault if result.group == "healthy" else f"`{result.fault}`"
    return (
        name,
        result.configuration,
        result.status,
        f"`{result.finding}`" if result.finding else "-",
        {True: "yes", False: "no", None: "-"}[result.named],
        result.outcome or "-",
        steps_of(result),
        *(needed_by(result, method) for method in METHODS),
    )


def _false_accusations(rows: Sequence[Result]) -> list[str]:
    """Count the healthy trainings that each method accuses."""
    counts = {
        method: [
            sum(_needed(row).get(method, {}).get(choice) is not None for row in rows)
            for choice in CHOICES
        ]
        for method in METHODS
    }
    told = ", ".join(f"`{m}` {fixed} / {best}" for m, (fixed, best) in counts.items())
    accused = sum(row.status == "accused" for row in rows)
    return [
        f"\nOf these {len(rows)} trainings the audit accuses {accused}. The bounds of the "
        "literature, by fixed / largest threshold, are above the claim at the end in: "
        f"{told}.\n"
    ]


def _remarks(results: Sequence[Result]) -> list[str]:
    """Return what is wrong in each fault, and why some are found late."""
    faults = dict.fromkeys(r.fault for r in results if r.group != "healthy")
    lines = [
        f"| `{name}` | {FAULTS[name].wrong} | {FAULTS[name].met_in} | {FAULTS[name].reason} |\n"
        for name in faults
        if name in FAULTS
    ]
    if not lines:
        return []
    return [
        "\n## What is wrong in each\n\n",
        "| fault | what is wrong | met in | remark |\n|---|---|---|---|\n",
        *lines,
    ]


def main() -> None:
    """Train all, and write the page."""
    started = time.perf_counter()
    jobs = os.cpu_count() or 1
    # Import it by module name, so that worker processes can find it.
    from selftest_page import compare as by_name

    results = run_all(planned(), jobs, by_name, lambda r: print(r.fault, r.status))
    seconds = time.perf_counter() - started
    show(results, seconds)
    PAGE.write_text(markdown(results, seconds, jobs), encoding="utf-8")


if __name__ == "__main__":
    main()
