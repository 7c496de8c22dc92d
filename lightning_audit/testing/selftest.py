"""The trainings of the selftest, and their results as a table, one line, and JSON.

**The violations of Nasr et al. 2023, with the paper's settings.** Section 6.3 audits single steps
that claim epsilon 1.27; appendix B gives delta 1e-5, batches of 256 (its ConvNet) and 2,500
observations each with and without a canary in every step. Here a training of 625 steps with eight
canaries, each in half of the steps, gives the same number of observations. The paper trains a
WideResNet on CIFAR-10 and on the same number of random images; here a small net is trained on the
same number of random records. The paper states no clipping norm; here it is 1.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from opacus.optimizers import DPOptimizer

from lightning_audit.checks.check import first_seen
from lightning_audit.checks.monitor import replay
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.report.text import print_lines, table
from lightning_audit.results.audit_report import AuditReport, CheckResult
from lightning_audit.stats.tradeoff import gaussian_mu
from lightning_audit.testing import trainings
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.faulty import ScaledNoise
from lightning_audit.testing.runs import train
from lightning_audit.testing.selftest_pool import Result, Row, finding_of, result_of, status_of
from lightning_audit.testing.trainings import (
    BY_HAND_CLAIM,
    INPUT_CANARY,
    AdaptiveClipping,
    Training,
)

# --- Further DP-SGD configurations, on the random data of `lightning_audit.testing.trainings`.


class Functorch(Training):
    """Per-sample gradients by functorch."""

    engine_arguments: ClassVar = {"grad_sample_mode": "functorch"}


class PerLayer(Training):
    """Every tensor has its own clipping norm; their squares sum to that of ``max_grad_norm``."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        number = len(list(self.net.parameters()))
        norms = [self.settings["max_grad_norm"] / number**0.5] * number
        self.net, optimizer, *_ = self.make_private(clipping="per_layer", max_grad_norm=norms)
        return self.plant(optimizer)


# --- The violations of Nasr et al. 2023, with the paper's settings.

EPSILON, DELTA = 1.27, 1e-5
NOISE_MULTIPLIER = 1.0 / float(gaussian_mu(EPSILON, DELTA))
RECORDS, BATCH_SIZE = 50_000, 256
PUBLISHED_STEPS = 625
#: True epsilons of too little noise: the smallest that f-DP detects, and the largest shown.
TOO_LARGE = (1.57, 2.17)


class PublishedSettings(Training):
    """Number of records, batch size and noise multiplier of the paper."""

    records, batch_size = RECORDS, BATCH_SIZE

    def __init__(self, plant: Callable[[DPOptimizer], DPOptimizer] | None = None) -> None:
        super().__init__(plant, noise_multiplier=NOISE_MULTIPLIER)


class NoiseOfEpsilon157(ScaledNoise):
    """Noise with which a step has epsilon 1.57."""

    factor = float(gaussian_mu(EPSILON, DELTA) / gaussian_mu(TOO_LARGE[0], DELTA))


class NoiseOfEpsilon217(ScaledNoise):
    """Noise with which a step has epsilon 2.17."""

    factor = float(gaussian_mu(EPSILON, DELTA) / gaussian_mu(TOO_LARGE[1], DELTA))


#: What the paper's violations change of a fault, by its name and by the figure that shows them.
_FIGURES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "clip_after_average": {"figure 7": {}},
    "few_seeds": {"figure 8": {}},
    "half_noise": {
        f"figure 9, epsilon {epsilon}": {"name": "noise_too_small", "optimizer": kind}
        for epsilon, kind in zip(TOO_LARGE, (NoiseOfEpsilon157, NoiseOfEpsilon217), strict=True)
    },
}


def violations(name: str) -> dict[str, Fault]:
    """Return the paper's violations that correspond to a fault, with the paper's settings.

    Returns:
        The faults by the figure that shows them.
    """
    fault = replace(FAULTS[name], training=PublishedSettings, steps=PUBLISHED_STEPS)
    return {figure: replace(fault, **own) for figure, own in _FIGURES.get(name, {}).items()}


# --- The trainings: faults, faults in other configurations, published violations, no fault.


#: Steps of healthy trainings, and of faults in other configurations.
STEPS = 100
#: Number of parts of a batch, each of which Lightning counts as a step.
_PARTS = {trainings.SplitBatches: 4, trainings.PhysicalBatches: 3}

_ELSEWHERE = {
    "split batches": trainings.SplitBatches,
    "physical batches": trainings.PhysicalBatches,
    "functorch": Functorch,
    "per layer": PerLayer,
    "adaptive clipping": AdaptiveClipping,
    "ghost clipping": trainings.Ghost,
}
#: Configurations whose clipping differs from the one that clipping faults replace.
_CLIP_OTHERWISE = ("per layer", "adaptive clipping", "ghost clipping")
_NOISE_ELSEWHERE = ("half_noise", "no_noise_on_last_layer", "same_noise_at_every_step")
_CLIPPING_ELSEWHERE = ("no_clipping", "clip_at_twice")
#: Faults of `--quick`: one of the clipping and one of the noise.
_QUICK = ("no_clipping", "half_noise")


def planned(
    faults: Collection[str] = (), *, quick: bool = False, accelerator: str = "cpu"
) -> tuple[Row, ...]:
    """Return the trainings to run.

    Args:
        faults: names of faults; empty for all of them and the healthy trainings.
        quick: only two faults and one healthy training, or the named faults in their own trainings.
        accelerator: of the Trainer; faults of several processes train on the CPU.

    Raises:
        ValueError: a name is not that of a fault.
    """
    unknown = [name for name in faults if name not in FAULTS]
    if unknown:
        raise ValueError(f"--fault {unknown[0]} must be one of {', '.join(sorted(FAULTS))}.")
    wanted = [FAULTS[name] for name in dict.fromkeys(faults or (_QUICK if quick else FAULTS))]
    rows = [Row("fault", fault, _own_training(fault)) for fault in wanted]
    if not quick:
        for fault in wanted:
            rows += _elsewhere(fault)
            published = violations(fault.name).items()
            rows += [Row("published", violation, figure) for figure, violation in published]
    if not faults:
        rows += _healthy()[:1] if quick else _healthy()
    return tuple(rows if accelerator == "cpu" else (_moved(row, accelerator) for row in rows))


def _moved(row: Row, accelerator: str) -> Row:
    """Return a row that trains on an accelerator."""
    trainer = {**row.fault.trainer, "accelerator": accelerator}
    return replace(row, fault=replace(row.fault, trainer=trainer))


def _own_training(fault: Fault) -> str:
    # The first match: the trainings of faults derive from one of these.
    names = {
        trainings.HandWritten: "by hand",
        trainings.Distributed: "two processes",
        trainings.SplitBatches: "split batches",
        trainings.DeepTraining: "deep net",
        trainings.GhostInParts: "ghost clipping of physical batches",
        trainings.PhysicalBatches: "physical batches",
        trainings.Ghost: "ghost clipping",
    }
    fits = (name for kind, name in names.items() if issubclass(fault.training, kind))
    return next(fits, "Opacus")


def _elsewhere(fault: Fault) -> list[Row]:
    clipping = fault.name in _CLIPPING_ELSEWHERE
    if not clipping and fault.name not in _NOISE_ELSEWHERE:
        return []
    return [
        Row("configuration", replace(fault, training=training, steps=_steps(training)), name)
        for name, training in _ELSEWHERE.items()
        if not (clipping and name in _CLIP_OTHERWISE)
    ]


def _healthy() -> list[Row]:
    by_hand = {"claim": BY_HAND_CLAIM}
    fixed = {"claim": replace(BY_HAND_CLAIM, sampling="shuffled")}
    return [
        _sound("Opacus"),
        _sound("noise multiplier 0.5", settings={"noise_multiplier": 0.5}),
        _sound("deep net", trainings.DeepTraining),
        *(_sound(name, training) for name, training in _ELSEWHERE.items()),
        _sound("by hand", trainings.HandWritten, audit=by_hand),
        _sound("by hand, mean over fixed batches", trainings.MeanOverFixedBatches, audit=fixed),
        _sound("no accountant", trainings.Uncounted, ends="INCONCLUSIVE"),
        _sound("input canary", audit=INPUT_CANARY),
        _sound("by hand, input canary", trainings.HandWritten, audit={**by_hand, **INPUT_CANARY}),
        _sound("figures 7-9", PublishedSettings, steps=PUBLISHED_STEPS),
    ]


def _sound(configuration: str, training: type[Training] = Training, **own: Any) -> Row:
    settings = {"steps": _steps(training), "ends": "PASS", **own}
    return Row(
        "healthy", Fault("healthy", "nothing", "", training=training, **settings), configuration
    )


def _steps(training: type[trainings.Training]) -> int:
    return STEPS * _PARTS.get(training, 1)


# --- The results as a table, as one line, and as JSON.

HEADINGS = {
    "fault": "Faults",
    "configuration": "The same faults in other configurations",
    "published": "Violations of Nasr et al. 2023",
    "healthy": "Healthy trainings",
}
COLUMNS = ("training", "configuration", "answer", "finding", "steps")


def show(results: Sequence[Result], seconds: float) -> None:
    """Print a table for each group, and the closing lines, to standard output."""
    rows = [cells(result) for result in results]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for group, title in HEADINGS.items():
        chosen = [cells(result) for result in results if result.group == group]
        if chosen:
            print_lines(table(COLUMNS, chosen, title=title, widths=widths), "")
    print_lines(*closing(results, seconds))


def cells(result: Result) -> tuple[str, ...]:
    """Return the cells of a row."""
    answer = f"{result.status}: {result.error}" if result.error else result.status
    return result.fault, result.configuration, answer, result.finding or "-", steps_of(result)


def steps_of(result: Result) -> str:
    """Return the step of the finding, and the number of trained steps."""
    if not result.finding:
        return f"- of {result.steps}"
    at = "end" if result.flagged_at is None else str(result.flagged_at)
    return f"{at} of {result.steps}"


def closing(results: Sequence[Result], seconds: float) -> list[str]:
    """Return the failures, one line each, and the summary with the total time."""
    lines = [
        f"{r.status.upper()}: {r.fault}, {r.configuration}: {r.error or r.sentence or r.outcome}"
        for r in results
        if r.failed
    ]
    return [*lines, f"{summary(results)}; {seconds:.0f} s"]


def summary(results: Sequence[Result]) -> str:
    """Return the summary line."""
    faults = [r for r in results if r.group != "healthy"]
    healthy = [r for r in results if r.group == "healthy"]
    counts = Counter(r.status for r in faults)
    parts = []
    if faults:
        parts.append(
            f"{counts['found'] + counts['warned']} of {len(faults)} faults found and named"
        )
    if healthy:
        accused = sum(r.status == "accused" for r in healthy)
        parts.append(f"{accused} of {len(healthy)} healthy runs accused")
    broken = sum(r.status == "crashed" for r in results)
    return "; ".join([*parts, *([f"{broken} crashed"] if broken else [])])


def as_json(results: Sequence[Result], seconds: float, exit_code: int) -> str:
    """Return all results as JSON."""
    fields = {
        "summary": summary(results),
        "exit_code": exit_code,
        "seconds": round(seconds, 1),
        "rows": [dataclasses.asdict(result) for result in results],
    }
    return json.dumps(fields, indent=2, allow_nan=False)


# --- Run one training of the selftest under audit, in the calling process.


def run_row(row: Row) -> Result:
    """Train a row under audit, and return the result."""
    with tempfile.TemporaryDirectory(prefix="row-") as name:
        return train_row(row, Path(name))


def train_row(row: Row, directory: Path) -> Result:
    """Train a row in one thread, and keep the audit's files in a directory."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    report = train(row.fault, directory, row.seed)
    if report is None or report.record is None:
        raise RuntimeError("the audit made no report, or no record")
    finding = finding_of(row, report)
    status, named = status_of(row, report)
    return result_of(
        row,
        status,
        report.steps,
        time.perf_counter() - started,
        outcome=report.verdict.outcome,
        finding=finding.name if finding else "",
        named=named,
        sentence=_sentence(report, finding),
        flagged_at=_flagged_at(finding, directory / RECORD_NAME, report) if finding else None,
    )


def _flagged_at(finding: CheckResult, record: Path, report: AuditReport) -> int | None:
    """Return the number of steps until the finding, from its evidence or from the record."""
    if (at := first_seen(finding.evidence)) is not None:
        return int(at) + 1
    significance = float(report.settings["significance"])
    header, entries = read_observations(record)

    def flagged(steps: int) -> bool:
        checks = replay(header, entries[:steps], significance).results()
        return any(c.name == finding.name and c.status == finding.status for c in checks)

    if not len(entries) or not flagged(len(entries)):
        return None
    steps = range(1, len(entries))  # a flagged check remains flagged
    return 1 + bisect.bisect_left(steps, True, key=flagged)


def _sentence(report: AuditReport, finding: CheckResult | None) -> str:
    if report.verdict.fault or finding is None:
        return report.verdict.fault
    return finding.message
