"""What the callback refuses, and which canaries it plans."""

from __future__ import annotations

import errno
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    mlp,
    trainer_for,
)

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.callbacks.trainer_refusals import refuse_trainer
from lightning_audit.canaries import BlockPair, Constant, Dirac, Random, Spread
from lightning_audit.record.store import INJECTED, NOT_PLANNED, read_observations
from lightning_audit.run.report_files import ReportFiles


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"delta": 0}, "delta=0"),
        ({"delta": 1}, "delta=1"),
        ({"delta": -1}, "delta=-1"),
        ({"delta": float("nan")}, "delta=nan"),
        ({"claimed_epsilon": 0}, "claimed_epsilon=0"),
        ({"claimed_epsilon": -1.0}, "claimed_epsilon=-1.0"),
        ({"claimed_epsilon": float("inf")}, "claimed_epsilon=inf"),
        ({"claimed_epsilon": "8"}, "claimed_epsilon='8'"),
        ({"num_canaries": 0}, "num_canaries=0"),
        ({"num_canaries": 2.5}, "num_canaries=2.5"),
        ({"oversize": 0.5}, "oversize=0.5"),
        ({"bounds": ["fdp"]}, "bounds holds 'fdp'; it must hold names of"),
        ({"bounds": "fdp_cp"}, "bounds='fdp_cp' must be a list; write ['fdp_cp']"),
        ({"oversize": 0}, "oversize=0"),
        ({"significance": 0}, "significance=0"),
        ({"significance": 1}, "significance=1"),
        ({"bound_significance": 0}, "bound_significance=0"),
        ({"every_n_steps": 0}, "every_n_steps=0"),
        ({"on_violation": "explode"}, "on_violation='explode'"),
        ({"on_inconclusive": "stop"}, "on_inconclusive='stop'"),
        ({"canaries": []}, "canaries=[]"),
        ({"canaries": ["Dirac"]}, "canaries holds 'Dirac'"),
        ({"canaries": [Dirac]}, "canaries holds <class"),
        ({"canaries": Dirac()}, "canaries"),
        ({"seed": -1}, "seed=-1"),
        ({"resolution": {"noise": 0.8}}, "resolution={'noise': 0.8} must be a Resolution; write"),
        ({"resolution": 0.8}, "resolution=0.8 must be a Resolution"),
        ({"claim": {"noise_multiplier": 1.0}}, "claim={'noise_multiplier': 1.0} must be a Priv"),
        ({"seed": "one"}, "seed='one'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_argument_out_of_range_is_named_with_its_value(
    arguments: dict[str, Any], value: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(value)) as raised:
        PrivacyAudit(**arguments)
    assert "must" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"delta": 0}, "less than one over the number of samples"),
        ({"claimed_epsilon": 0}, "leave it out"),
        ({"num_canaries": 0}, "an audit needs a canary"),
        ({"oversize": 0.5}, "below the clipping norm"),
        ({"oversize": 0}, "clipping norm"),
        ({"significance": 0}, "e.g. 0.001"),
        ({"every_n_steps": 0}, "a whole number >= 1"),
        ({"on_violation": "explode"}, "'raise', 'stop', 'warn'"),
        ({"canaries": []}, "leave it out for the default mix"),
        ({"canaries": ["Dirac"]}, "lightning_audit.canaries"),
    ],
)
def test_error_says_what_to_do(arguments: dict[str, Any], advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)):
        PrivacyAudit(**arguments)


@pytest.mark.parametrize(
    ("arguments", "both"),
    [
        (
            {"claimed_epsilon": 8.0, "claim": PrivacyClaim(epsilon=3.0, delta=1e-5)},
            ("claimed_epsilon=8.0", "claim.epsilon=3.0"),
        ),
        (
            {"delta": 1e-6, "claim": PrivacyClaim(epsilon=3.0, delta=1e-5)},
            ("delta=1e-06", "claim.delta=1e-05"),
        ),
    ],
)
def test_contradicting_claims_are_both_named(
    arguments: dict[str, Any], both: tuple[str, str]
) -> None:
    with pytest.raises(ValueError, match="give one of them") as raised:
        PrivacyAudit(**arguments)
    assert all(part in str(raised.value) for part in both)


def test_claim_gives_epsilon_and_delta() -> None:
    audit = PrivacyAudit(claim=PrivacyClaim(epsilon=3.0, delta=1e-6))
    assert (audit.claimed_epsilon, audit.delta) == (3.0, 1e-6)
    assert PrivacyAudit(3.0, 1e-6, PrivacyClaim(epsilon=3.0, delta=1e-6)).delta == 1e-6


# ------------------------------------------------------------------ refused when training starts


def _refused(directory: Path, module: PrivateModule, audit: PrivacyAudit, **kwargs: Any) -> str:
    """The message of the refusal, which comes before the first step."""
    trainer = trainer_for(directory, audit, max_steps=8, **kwargs)
    with pytest.raises(MisconfigurationException) as raised:
        trainer.fit(module)
    assert trainer.global_step == 0
    report = directory / "audit" / "report.json"
    assert not report.exists() or AuditReport.load(report).verdict.outcome == "INCONCLUSIVE"
    return str(raised.value)


@pytest.mark.parametrize(
    "canary", [Dirac(tensor="net.9.weight"), Random(tensor="net.9.weight"), Constant(tensor="x")]
)
def test_canary_in_an_unknown_tensor_is_named_with_those_that_exist(
    tmp_path: Path, canary: Any
) -> None:
    trainer = trainer_for(tmp_path, PrivacyAudit(canaries=[canary]), max_steps=8)
    with pytest.raises((ValueError, MisconfigurationException)) as raised:
        trainer.fit(PrivateModule())
    assert trainer.global_step == 0
    assert f"tensor={canary.tensor!r}" in str(raised.value)
    assert "net.0.weight" in str(raised.value)


def test_canary_in_a_frozen_parameter_is_refused(tmp_path: Path) -> None:
    net = mlp()
    net[0].weight.requires_grad_(False)
    trainer = trainer_for(tmp_path, PrivacyAudit(canaries=[Dirac(tensor="net.0.weight")]))
    module = PrivateModule(net)
    with pytest.raises((ValueError, MisconfigurationException), match="trainable") as raised:
        trainer.fit(module)
    assert trainer.global_step == 0
    assert "tensor='net.0.weight'" in str(raised.value)
    assert_no_hooks_left(module)


def test_gradient_scaler_is_refused(tmp_path: Path) -> None:
    plugin = MixedPrecision("16-mixed", device="cpu")
    message = _refused(tmp_path, PrivateModule(), PrivacyAudit(), plugins=[plugin])
    assert "precision='16-mixed'" in message
    assert "'32-true' or 'bf16-mixed'" in message


def test_half_precision_is_refused(tmp_path: Path) -> None:
    message = _refused(tmp_path, PrivateModule(), PrivacyAudit(), precision="16-true")
    assert "precision='16-true'" in message
    assert "'32-true'" in message


class _Trainer(SimpleNamespace):
    """As much of a Trainer of two processes as is looked at before any is started."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy=strategy, world_size=2, precision="32-true")


@pytest.mark.parametrize("kind", [FSDPStrategy, ModelParallelStrategy])
def test_a_strategy_that_shards_parameters_is_refused_with_advice(kind: type) -> None:
    with pytest.raises(MisconfigurationException, match=r"shards the parameters.*strategy='ddp'"):
        refuse_trainer(_Trainer(kind()), audits=1)


def test_processes_of_a_strategy_that_is_not_known_are_refused() -> None:
    with pytest.raises(MisconfigurationException, match=r"2 processes.*strategy='ddp'"):
        refuse_trainer(_Trainer(object()), audits=1)
    refuse_trainer(_Trainer(DDPStrategy()), audits=1)


def test_a_file_in_the_reports_place_is_refused_before_the_training(tmp_path: Path) -> None:
    taken, lost = tmp_path / "taken", tmp_path / "lost"
    taken.write_text("mine")
    lost.symlink_to(tmp_path / "nowhere")
    for directory in (taken, taken / "audit", lost, tmp_path / ("long" * 100)):
        message = _refused(tmp_path, PrivateModule(), PrivacyAudit(report_dir=directory))
        assert f"cannot write its report to {str(directory)!r}" in message
        assert "report_dir" in message
    assert taken.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch) -> None:
    def full(dir: Path) -> None:  # root may write everywhere, so the system's answer is given here
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(MisconfigurationException, match="Permission denied"):
        ReportFiles(tmp_path / "new" / "audit").take()
    monkeypatch.undo()
    files = ReportFiles(tmp_path / "new" / "audit")
    files.take()
    assert files.directory == tmp_path / "new" / "audit"  # the refused one does not hold it
    files.release()


def test_optimizer_that_runs_its_closure_many_times_is_refused(tmp_path: Path) -> None:
    module = PrivateModule(inner=lambda params: torch.optim.LBFGS(params, lr=0.1))
    message = _refused(tmp_path, module, PrivacyAudit())
    assert "LBFGS" in message
    assert "SGD or Adam" in message


# ------------------------------------------------------------------ planned canaries


def test_canaries_enter_each_nth_step_only(tmp_path: Path) -> None:
    report = fit(tmp_path, PrivateModule(), PrivacyAudit(every_n_steps=5, seed=1), max_steps=32)
    _, entries = read_observations(tmp_path / "audit" / "observations.bin")
    planned = entries["step"] % 5 == 0
    assert np.array_equal(entries["step"], np.arange(32))
    assert (entries["canaries"][planned] == INJECTED).all()
    assert (entries["canaries"][~planned] == NOT_PLANNED).all()
    assert not entries["coins"][~planned].any()
    assert not entries["readings"][~planned].any()
    assert (entries["tensor_squares"] > 0).all()
    assert report.observations == 7 * 8


def test_custom_canaries_are_used_by_name(tmp_path: Path) -> None:
    canaries = [
        Constant(tensor="net.2.weight"),
        Random(moving=True),
        Random(tensor="last_bias"),
        Dirac(tensor="net.0.bias"),
        Spread(moving=True),
        BlockPair(),
    ]
    report = fit(tmp_path, PrivateModule(), PrivacyAudit(canaries=canaries, seed=1), max_steps=96)
    assert report.verdict.outcome == "PASS", report.verdict
    header, entries = read_observations(tmp_path / "audit" / "observations.bin")
    assert sorted(header.canaries) == [
        "BlockPair(2 tensors)",
        "Constant(net.2.weight)",
        "Dirac(net.0.bias)",
        "Random(6 tensors, moving)",
        "Random(net.4.bias)",
        "Spread(6 tensors, moving)",
    ]
    assert (entries["canaries"] == INJECTED).all()
    assert report.settings["canaries"] == [repr(canary) for canary in canaries]
    # Each canary is alive: in, it reads one more than out.
    coins, readings = entries["coins"].astype(float), entries["readings"]
    for i, label in enumerate(header.canaries):
        shift = readings[coins[:, i] == 1, i].mean() - readings[coins[:, i] == 0, i].mean()
        assert 0.1 < shift < 1.9, label


def test_number_of_canaries_is_the_size_of_the_default_mix(tmp_path: Path) -> None:
    fit(tmp_path, PrivateModule(), PrivacyAudit(num_canaries=3, seed=1), max_steps=8)
    header, _ = read_observations(tmp_path / "audit" / "observations.bin")
    assert len(header.canaries) == 3
