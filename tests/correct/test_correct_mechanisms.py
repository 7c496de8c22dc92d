"""Correct mechanisms beside plain DP-SGD pass or say which line to add; faults behind them do not.

`correct_mechanisms` says what each is.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import correct_mechanisms as ways
import pytest
import pytorch_lightning as pl
import torch
from after_noise_support import NoiseOnWeights
from correct_mechanisms import mechanism
from hand_written_support import CLAIM, HandWritten
from stages import staged
from training_support import fit, status

from lightning_audit import AuditReport, PrivacyAudit

pytestmark = pytest.mark.training

Build = Callable[[], pl.LightningModule]
SHOW = "lightning_audit.released(grads, module=net)"


def run(folder: Path, build: Build, seed: int = 1, steps: int = 100) -> AuditReport:
    torch.manual_seed(seed)
    module = build()
    claim = CLAIM if isinstance(module, HandWritten) else None
    audit = PrivacyAudit(seed=seed, claim=claim, on_violation="warn", examinations="auto")
    return fit(folder, module, audit, max_steps=steps)


def _of(name: str, build: Callable[..., pl.LightningModule], *parts: object) -> tuple[str, Build]:
    return name, lambda: build(*parts)


#: What passes once there were steps enough.
PASS = [
    _of(f"{p.__name__}-{where}", mechanism, ways.plain, p, where)
    for p in (ways.momentum, ways.muon, ways.adam, ways.with_public)
    for where in ("private", "inner", "shown")
] + [
    _of(f"{r.__name__}-shown", mechanism, r)
    for r in (ways.random_mask, ways.block_cyclic, ways.discrete)
]
#: What ends INCONCLUSIVE, with the line to add.
LINE = [
    *(
        _of(f"{p.__name__}-hidden", mechanism, ways.plain, p, "hidden")
        for p in (ways.momentum, ways.muon, ways.adam, ways.with_public, ways.scaled)
    ),
    *(
        _of(f"{r.__name__}-{where}", mechanism, r, ways.nothing, where)
        for r in (ways.block_cyclic, ways.own_mask, ways.subspace, ways.random_mask)
        for where in ("private", "hidden")
    ),
    _of("weights-by-hand", NoiseOnWeights),
    ("weights-by-opacus", lambda: ways.ByOpacus(optimizer_class=ways.NoiseOnWeightsInStep)),
    _of("mean-by-hand", ways.RunningMean),
    _of("mean-by-opacus", ways.RunningMeanByOpacus),
    _of("subspace-shown", mechanism, ways.subspace),
]


def _less(kind: type, **body: object) -> Callable[[], pl.LightningModule]:
    return lambda: type(kind.__name__, (kind,), body)()


def _by_opacus(kind: type, **body: object) -> Callable[[], pl.LightningModule]:
    made = type(kind.__name__, (kind,), body)
    return lambda: ways.ByOpacus(optimizer_class=made)


#: Faults, with a check that each violates.
FAULTS: list[tuple[str, Build, str]] = [
    ("half-noise-on-weights", _less(NoiseOnWeights, share=0.5), "replay.noise"),
    ("no-noise-on-weights", _less(NoiseOnWeights, share=0.0), "replay.noise"),
    ("half-weights-opacus", _by_opacus(ways.NoiseOnWeightsInStep, share=0.5), "replay.noise"),
    ("raw-mean", _less(ways.RunningMean, noise_of_mean=0.0), "replay.release"),
    ("quiet-mean", _less(ways.RunningMean, noise_of_mean=0.05), "replay.release"),
    ("raw-mean-opacus", _less(ways.RunningMeanByOpacus, noise_of_mean=0.0), "replay.release"),
    ("raw-momentum-hidden", ways.RawMomentum, "replay.release"),
    ("long-clip-hidden", _less(ways.LongClip), "replay.sensitivity"),
    (*_of("half-scaled", mechanism, ways.plain, ways.scaled, "hidden", 0.5), "replay.sensitivity"),
    *(
        (f"half-{p.__name__}-{where}", _of("", mechanism, ways.plain, p, where, 0.5)[1], "noise")
        for p, where in ((ways.muon, "private"), (ways.adam, "inner"), (ways.with_public, "shown"))
    ),
    *(
        (f"half-{r.__name__}-shown", _of("", mechanism, r, ways.nothing, "shown", 0.5)[1], "noise")
        for r in (ways.block_cyclic, ways.random_mask, ways.discrete)
    ),
]


def _some(cases: list[tuple[Any, ...]], *names: str) -> list[Any]:
    """These cases for each change, the others nightly."""
    left = [case for case in cases if case[0] not in names]
    return staged([case for case in cases if case not in left], nightly=left)


@pytest.mark.parametrize(("name", "build"), _some(PASS, "momentum-private", "random_mask-shown"))
def test_a_correct_mechanism_passes(tmp_path, name, build):
    report = run(tmp_path, build, steps=300)
    assert report.verdict.outcome == "PASS", (name, report.verdict)


@pytest.mark.parametrize(
    ("name", "build"), _some(LINE, "momentum-hidden", "random_mask-private", "block_cyclic-hidden")
)
def test_what_the_audit_cannot_tell_of_a_correct_mechanism_names_the_line_to_add(
    tmp_path, name, build
):
    report = run(tmp_path, build)
    assert report.verdict.outcome == "INCONCLUSIVE", (name, report.verdict)
    assert any(SHOW in blocker for blocker in report.verdict.pass_blockers), report.verdict


@pytest.mark.parametrize(
    ("name", "build", "check"),
    _some(FAULTS, "no-noise-on-weights", "quiet-mean", "raw-momentum-hidden", "half-adam-inner"),
)
def test_a_fault_behind_a_mechanism_is_found(tmp_path, name, build, check):
    report = run(tmp_path, build)
    assert report.verdict.outcome == "VIOLATION", (name, report.verdict)
    assert status(report, check) == "violated", report.verdict


@pytest.mark.parametrize("since", staged([60], nightly=[0]))
def test_noise_that_is_taken_back_behind_the_cut_does_not_pass(tmp_path, since):
    report = run(tmp_path, _by_opacus(ways.TakesNoiseBack, since=since), steps=300)
    assert report.verdict.outcome != "PASS", report.verdict


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize(("name", "build"), PASS + LINE)
def test_no_correct_mechanism_is_accused_with_any_seed(tmp_path, name, build, seed):
    report = run(tmp_path, build, seed)
    assert report.verdict.outcome != "VIOLATION", (name, report.verdict)
