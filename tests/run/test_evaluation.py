from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import CLAIM, HandWritten
from opacus import PrivacyEngine
from stages import staged
from torch import nn
from torch.utils.data import DataLoader
from trained import Audited
from training_support import PrivateModule, digits, mlp, random_data, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.divergences import isotropic_pair_epsilon


def _report(tmp_path: Path, module: pl.LightningModule, *callbacks: Any, **options: Any):
    audit = PrivacyAudit(on_violation="warn", seed=1, **options.pop("audit", {}))
    trainer_for(tmp_path, audit, *callbacks, **options).fit(module)
    return audit.report


class TrainsAHeadAside(PrivateModule):
    """A second net, trained on the same data by an optimizer that Lightning does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.aside = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        features, labels = batch
        with torch.enable_grad():
            nn.functional.cross_entropy(self.head(features.detach()), labels).backward()
        self.aside.step()
        self.aside.zero_grad()


@pytest.mark.whole_report
@pytest.mark.parametrize(
    ("allow", "examinations", "outcome"),
    staged(
        # It learns of records, which a replay without one of them shows.
        quick=[((), 0, "INCONCLUSIVE"), (("unaudited",), 1, "VIOLATION")],
        heavy=[(("unaudited",), 0, "PASS"), (("unaudited", "replay.release"), 1, "PASS")],
    ),
)
def test_parameters_trained_aside_stand_in_the_way_of_a_pass(
    tmp_path: Path, allow: tuple[str, ...], examinations: int, outcome: str
) -> None:
    asked = {"allow": allow, "examinations": examinations}
    report: AuditReport = _report(tmp_path, TrainsAHeadAside(), max_steps=64, audit=asked)
    assert report.verdict.outcome == outcome, report.verdict
    assert any("`head.weight`" in item for item in report.verdict.pass_blockers) == (not allow)


@pytest.mark.whole_report
def test_report_holds_nothing_of_a_single_batch(tmp_path: Path) -> None:
    trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=32).fit(PrivateModule())
    text = (tmp_path / "audit" / "report.json").read_text()
    assert "batch_sizes" not in text
    assert "summed_grad" not in text


# --- The divisor that Opacus computes of the number of records, and what it costs to tell it.

PRIVATE = PrivacyClaim(private_dataset_size=True)
PARAMETERS = sum(p.numel() for p in mlp().parameters())


def divisor(report: AuditReport) -> CheckResult | None:
    return next((c for c in report.checks if c.name == "expected_batch_size"), None)


class SetByHand(PrivateModule):
    """Divides by a number that is set after make_private."""

    def __init__(self, by: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.by = by

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.expected_batch_size = self.by
        return optimizer


def released_without_gradients(records: int, width: int = 20_000) -> torch.Tensor:
    """What Opacus releases in one step of a training whose records have no gradient."""
    net = nn.Linear(width, 1, bias=False)
    loader = DataLoader(random_data(records, width=2), batch_size=20)
    module, optimizer, private = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        noise_generator=torch.Generator().manual_seed(0),
    )
    x, _ = next(iter(private))
    module(torch.zeros(len(x), width)).mean().backward()
    optimizer.step()
    (weight,) = net.parameters()
    return weight.grad.flatten()


# Opacus advises the secure mode, and remarks on the backward pass of an input without a gradient.
@pytest.mark.filterwarnings("ignore")
def test_opacus_releases_the_same_noise_at_another_size_where_a_record_is_missing() -> None:
    whole, without = released_without_gradients(200), released_without_gradients(199)
    torch.testing.assert_close(without, whole * 20 / 19)
    # In so many coordinates one step tells the two sizes apart.
    assert 20 * float(whole.std()) == pytest.approx(1.0, abs=0.02)
    assert isotropic_pair_epsilon(20 / 19, len(whole), 1e-5) > 80


def test_the_cost_of_the_runs_own_numbers_is_told_and_does_not_fail(audited: Audited) -> None:
    report = audited(PrivateModule())
    assert report.verdict.outcome == "PASS"
    found = divisor(report)
    assert (found.status, found.evidence["of_neighbours"]) == ("ok", [15])
    assert found.evidence["coordinates"] == 64 * PARAMETERS
    cost = isotropic_pair_epsilon(16 / 15, 64 * PARAMETERS, 1e-5)
    assert found.evidence["epsilon_of_divisor"] == pytest.approx(cost, rel=1e-9)
    assert f"costs epsilon {cost:.4g} at delta 1e-05" in found.message
    assert "the number of records is public" in found.message


def test_few_private_records_and_many_parameters_are_a_violation(accused: Audited) -> None:
    module = PrivateModule(mlp(64, 128), dataset=digits(200), batch_size=20)
    report = accused(module, claimed_epsilon=20.0, claim=PRIVATE, steps=40)
    assert report.epsilon_spent < 20.0
    assert [c.name for c in report.checks if c.status == "violated"] == ["expected_batch_size"]
    assert report.verdict.kind == "accounting"
    assert report.verdict.fault.startswith("divided by a number that is computed from the records")
    found = divisor(report)
    assert found.evidence["of_neighbours"] == [19]
    # The audit stops it at the end of the first epoch.
    assert found.evidence["coordinates"] == 10 * 26_122
    assert found.evidence["epsilon_of_divisor"] == pytest.approx(877.6, abs=0.1)
    assert "set optimizer.expected_batch_size to a constant" in report.verdict.advice


def test_a_violation_that_is_allowed_is_shown_and_does_not_fail(audited: Audited) -> None:
    report = audited(PrivateModule(), claim=PRIVATE, allow=["expected_batch_size"])
    assert report.verdict.outcome == "PASS"
    assert divisor(report).status == "allowed"


def test_private_records_that_leave_the_divisor_the_same_pass(audited: Audited) -> None:
    module = PrivateModule(dataset=random_data(520))  # 33 batches, of 15.76 records each
    report = audited(module, claim=PRIVATE)
    assert report.verdict.outcome == "PASS"
    assert divisor(report).message.startswith("one record more or less does not change the divisor")


@pytest.mark.parametrize(
    ("by", "claim"),
    [
        (15, PRIVATE),
        # What make_private computes, and a constant all the same.
        (16, PrivacyClaim(private_dataset_size=True, expected_batch_size=16)),
    ],
)
def test_a_divisor_that_is_a_constant_passes_with_private_records(
    audited: Audited, by: int, claim: PrivacyClaim
) -> None:
    report = audited(SetByHand(by), claim=claim)
    assert report.verdict.outcome == "PASS"
    assert divisor(report) is None


def test_a_stated_constant_that_is_not_the_divisor_excuses_nothing(accused: Audited) -> None:
    claim = PrivacyClaim(private_dataset_size=True, expected_batch_size=20)
    assert divisor(accused(PrivateModule(), claim=claim, steps=40)).status == "violated"


def test_a_cost_within_the_claim_of_private_records_cannot_pass(audited: Audited) -> None:
    report = audited(PrivateModule(), claimed_epsilon=1e6, claim=PRIVATE)
    assert report.verdict.outcome == "INCONCLUSIVE"
    (lack,) = report.verdict.pass_blockers
    assert "the epsilon of both together is unknown" in lack
    assert "PrivacyClaim(expected_batch_size=...)" in lack


def test_records_that_are_replaced_leave_the_divisor_the_same(audited: Audited) -> None:
    claim = PrivacyClaim(adjacency="replace_one", epsilon=40.0, delta=1e-5)
    report = audited(PrivateModule(), claim=claim)
    assert report.verdict.outcome == "PASS"
    assert divisor(report).message.endswith("which replacing a record does not change")


def test_a_fixed_divisor_by_hand_is_no_matter_of_the_number_of_records(audited: Audited) -> None:
    stated = {**CLAIM.to_dict(), "private_dataset_size": True}
    report = audited(HandWritten(dataset=random_data(4096)), claim=PrivacyClaim(**stated))
    assert divisor(report) is None
    assert report.verdict.outcome != "VIOLATION"
    assert not any("number of records" in lack for lack in report.verdict.pass_blockers)
