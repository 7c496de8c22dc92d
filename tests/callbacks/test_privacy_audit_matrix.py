"""Every way to train is audited: the canary's signal is one, the noise is as claimed, the model
is what it would have been."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from places import DOCS
from stages import staged
from training_matrix import COMPARED, ROWS, Row, markdown
from training_support import assert_no_hooks_left, fit, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.record.store import ENTERED, read_observations

STEPS = 120
PAGE = DOCS / "which-trainings.md"


def name_of(row: Row) -> str:
    return f"{row.group}: {row.name}"


@pytest.mark.parametrize(
    "row", staged(quick=COMPARED, heavy=[row for row in ROWS if row not in COMPARED]), ids=name_of
)
@pytest.mark.one_in(2)
@pytest.mark.heavy_one_in(6)
def test_signal_is_one_and_noise_is_as_claimed(tmp_path: Path, row: Row) -> None:
    module = row.module()
    audit = PrivacyAudit(claimed_epsilon=1000.0, seed=1, **row.audit)
    report = fit(tmp_path, module, audit, **{"max_steps": STEPS, **row.trainer})
    _, entries = read_observations(tmp_path / "audit" / report.record)
    assert len(entries) >= STEPS
    entries = entries[row.first :]
    assert np.isin(entries["canaries"], ENTERED).all()
    assert not any(check.status in ("violated", "warned") for check in report.checks)
    assert any("copied" in note for note in report.notes) == row.copies
    assert_no_hooks_left(module)

    coins, sigma = entries["coins"], entries["noise_multiplier"][:, None]
    readings = entries["readings"]
    loud = (readings - coins).std(0) > 1.1 * np.sqrt((sigma**2).mean())
    if "canaries" in row.audit:  # an input's gradient is no stranger to the data's
        noise = next(check for check in report.checks if check.name == "noise")
        assert 0.95 < noise.evidence["smallest_ratio"] < 1.1
        sigma = np.full_like(sigma, (readings - coins).std())
    else:
        coins, readings = coins[:, ~loud], readings[:, ~loud]
        assert coins.shape[1] >= 3, "the data hide the noise of too many canaries"
        excess = ((readings - coins) / sigma).std() - 1.0
        # Data add up to a tenth where a canary is quiet; noise can only be too small by chance.
        assert -4.0 / np.sqrt(2.0 * coins.size) < excess < 0.1
    centred = coins - 0.5
    weights = centred / sigma**2
    shift = (weights * (readings - readings.mean(0))).sum() / (weights * centred).sum()
    assert abs(shift - 1.0) < 4.0 / np.sqrt((centred**2 / sigma**2).sum()) + 2.0**-7


@pytest.mark.parametrize(
    "row",
    staged(quick=COMPARED, nightly=[row for row in ROWS if row not in COMPARED]),
    ids=name_of,
)
@pytest.mark.one_in(2)
def test_model_is_what_it_would_be(tmp_path: Path, row: Row) -> None:
    ends = []
    for name, callbacks in (
        ("plain", []),
        ("audited", [PrivacyAudit(1000.0, seed=1, **row.audit)]),
    ):
        torch.manual_seed(3)
        module = row.module()
        trainer_for(tmp_path / name, *callbacks, **{**row.trainer, "max_steps": 24}).fit(module)
        flat = torch.cat([p.detach().flatten().double() for p in module.net.parameters()])
        ends.append((flat, _clipping_norm(module)))
    (plain, norm), (audited, audited_norm) = ends
    tolerance = 2.0**-8 if "bf16" in str(row.trainer) else 1e-6
    assert torch.linalg.norm(audited - plain) <= tolerance * torch.linalg.norm(plain)
    assert audited_norm == pytest.approx(norm, rel=1e-6)


def _clipping_norm(module: pl.LightningModule) -> float:
    """The clipping norm after the last step; 0 where the optimizer states none."""
    return float(getattr(module.trainer.optimizers[0], "max_grad_norm", 0.0))


def test_docs_page_is_made_of_the_matrix() -> None:
    assert PAGE.read_text() == markdown(), "run `python tests/support/training_matrix.py`"
