"""Makes docs/selftest.md by training every row: `python docs/build/selftest_page.py`.

For comparison, the bounds of the literature are computed on the observations of each training.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
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

For the engineer who wants to know what is found, and how soon, and for the lead who asks what a
PASS was tested against.

{summary}.

`lightning-audit selftest` trains [every known fault](faults.md) and correct trainings under
`PrivacyAudit`, each in a few seconds. It fails if a fault is not found under its name, or if a
correct training is accused. Each training has a fixed seed. This page shows a run of {date} with
lightning-audit {version}: {seconds:.0f} seconds, {jobs} trainings at a time.

*Found* means a violation with the finding and the name that the registry states; *warned* is the
same without loss of privacy, which fails no gate. *Named otherwise*, *not found*, *accused* and
*crashed* fail the selftest. The step is that at which the fault was found, of the trained
steps; "at the end" if only the report at the end shows it. The audit is evaluated after every step,
and accuses a correct training with probability at most 0.001 over all of them.
"""

_LITERATURE = """
## The bounds of the literature

On the same observations: the step from which on the bound on one step is above the claim of that
step, up to the end; with the threshold fixed in advance / with the threshold that has the largest
bound on the same data; "-" if it is not above the claim at the end. Trainings without any are left
out. The bounds are evaluated after each of the first {each} steps and then at intervals of a tenth,
which makes these numbers optimistic:

- Each bound holds for one look, at 95 %, at an end that is fixed in advance. The first look from
  which on it remains above the claim is known only in hindsight. A gate with such a bound accuses
  one correct training in twenty at its only look, and more if it looks again.
- The largest bound over all thresholds is **not valid**: papers plot it, and it accuses correct
  trainings.
- If the audit stops adding canaries, because the clipping is proved wrong, the training is run
  again with canaries in every step for these numbers.

`fdp_*` bound mu and are compared with signal over noise multiplier; `eps_cp` and `katz` bound
epsilon and are compared with the epsilon of that mu at delta {delta:g}. `katz` is a bound at delta
0, where a Gaussian mechanism claims nothing; it is compared as in the papers. These bounds are not
designed for faults that do not widen the gap between readings with and without a canary (repeated
noise, a second optimizer that is not private, wrong sampling): a number there may be chance. They
name no fault.

"""

_NEXT = """
Next: [plant a fault and see your build fail](test-your-gate.md), or what the lead decides with:
[what PASS means](how-it-works.md).
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
detect.
""",
    "healthy": """
"Figures 7-9" has the settings of the violations above.
""",
}


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


def needed_by(result: Compared, method: str) -> str:
    """Return the steps that a method needs with the fixed threshold, and with the largest bound."""
    both = [result.needed[method][name] for name in CHOICES]
    return " / ".join("-" if n is None else str(n) for n in both)


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
        )
    ]
    for group, title in HEADINGS.items():
        rows = [result for result in results if result.group == group]
        if rows:
            parts += [f"\n## {title}\n", _OF_GROUPS.get(group, ""), "\n"]
            parts += [_table(("training", "configuration", "answer"), map(_cells, rows))]
    return "".join([*parts, *_literature(results), _NEXT])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(result: Result) -> tuple[str, ...]:
    finding = f": `{result.finding}`" if result.finding else ""
    ends = "" if result.outcome in (None, "VIOLATION") else f", {result.outcome}"
    steps = f"step {steps_of(result)}" if result.finding else f"{result.steps} steps"
    return *_named(
        result
    ), f"{result.status}{finding}{ends}, {steps.replace('step end', 'at the end')}"


def _named(result: Result) -> tuple[str, str]:
    name = result.fault if result.group == "healthy" else f"`{result.fault}`"
    return name, result.configuration


def _literature(results: Sequence[Result]) -> list[str]:
    """Return what the bounds of the literature need, and the correct trainings they accuse."""
    compared = [result for result in results if isinstance(result, Compared)]
    if not compared:
        return []
    rows = [
        (*_named(result), shown)
        for result in compared
        if (
            shown := ", ".join(
                f"`{method}` {needed_by(result, method)}"
                for method in METHODS
                if any(result.needed.get(method, {}).values())
            )
        )
    ]
    healthy = [result for result in compared if result.group == "healthy"]
    counts = {
        method: [
            sum(row.needed.get(method, {}).get(choice) is not None for row in healthy)
            for choice in CHOICES
        ]
        for method in METHODS
    }
    accused = ", ".join(f"`{m}` {fixed} / {best}" for m, (fixed, best) in counts.items())
    return [
        _LITERATURE.format(each=EACH, delta=selftest.DELTA),
        _table(("training", "configuration", "above the claim from step"), rows),
        f"\nOf the {len(healthy)} correct trainings they accuse, by fixed / largest threshold: "
        f"{accused}.\n",
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
