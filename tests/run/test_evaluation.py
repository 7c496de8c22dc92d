import dataclasses
from typing import Any

import pytest
import torch
from hand_written_support import CLAIM, HandWritten
from opacus import PrivacyEngine
from stages import staged
from torch import nn
from torch.utils.data import DataLoader
from trained import violated, with_optimizer
from training_support import PrivateModule, digits, mlp, random_data

from lightning_audit import AuditReport, PrivacyClaim
from lightning_audit.report.text import records_of, warnings_of
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.divergences import isotropic_pair_epsilon


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
        quick=[(("no_dp",), 0, "INCONCLUSIVE"), (("unaudited",), 1, "VIOLATION")],
        heavy=[(("unaudited",), 0, "PASS"), (("unaudited", "replay.release"), 1, "PASS")],
    ),
)
def test_parameters_trained_aside_stand_in_the_way_of_a_pass(audited, allow, examinations, outcome):
    asked = {"allow": allow, "examinations": examinations, "on_violation": "warn"}
    verdict = audited(TrainsAHeadAside(), **asked).verdict
    assert verdict.outcome == outcome, verdict
    assert any("`head.weight`" in item for item in verdict.pass_blockers) == ("no_dp" in allow)


def test_report_holds_nothing_of_a_single_batch(trained):
    text = (trained(examinations=1, bounds="all").directory / "report.json").read_text()
    assert "batch_sizes" not in text
    assert "summed_grad" not in text


PRIVATE = PrivacyClaim(private_dataset_size=True)


PARAMETERS = sum(p.numel() for p in mlp().parameters())


def divisor(report: AuditReport) -> CheckResult | None:
    return next((c for c in report.checks if c.name == "expected_batch_size"), None)


def released_without_gradients(records: int, width: int = 20_000) -> torch.Tensor:
    """What Opacus releases in one step of a training whose records have no gradient."""
    net = nn.Linear(width, 1, bias=False)
    module, optimizer, private = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(random_data(records, width=2), batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        noise_generator=torch.Generator().manual_seed(0),
    )
    x, _ = next(iter(private))
    module(torch.zeros(len(x), width)).mean().backward()
    optimizer.step()
    return net.weight.grad.flatten()


# Opacus advises the secure mode, and remarks on the backward pass of an input without a gradient.
@pytest.mark.filterwarnings("ignore")
def test_opacus_releases_the_same_noise_at_another_size_where_a_record_is_missing():
    whole, without = released_without_gradients(200), released_without_gradients(199)
    torch.testing.assert_close(without, whole * 20 / 19)
    # In so many coordinates one step tells the two sizes apart.
    assert 20 * float(whole.std()) == pytest.approx(1.0, abs=0.02)
    assert isotropic_pair_epsilon(20 / 19, len(whole), 1e-5) > 80


def test_the_cost_of_the_runs_own_numbers_is_told_and_does_not_fail(trained):
    report = trained().report
    assert report.verdict.outcome == "PASS"
    assert warnings_of(report) == []
    found = divisor(report)
    assert (found.status, found.evidence["of_neighbours"]) == ("ok", [15])
    assert found.evidence["coordinates"] == 64 * PARAMETERS
    cost = isotropic_pair_epsilon(16 / 15, 64 * PARAMETERS, 1e-5)
    assert found.evidence["epsilon_of_divisor"] == pytest.approx(cost, rel=1e-9)
    assert f"costs epsilon {cost:.4g} at delta 1e-05" in found.message
    assert "the number of records is public" in found.message


@pytest.mark.parametrize("delta", [0.1, 1e-5])
def test_a_delta_of_batches_is_a_warning_also_if_no_rate_is_claimed(audited, delta):
    claim = dataclasses.replace(CLAIM, delta=delta, sample_rate=None)
    report = audited(HandWritten(), claim=claim, max_steps=3)
    assert records_of(report) is None
    told = [short for short, _ in warnings_of(report)]
    above = f"delta {delta:g} is above one over the number of records"
    assert told == ([above] if delta == 0.1 else [])


def test_few_private_records_and_many_parameters_are_a_violation(accused):
    module = PrivateModule(mlp(64, 128), dataset=digits(200), batch_size=20)
    report = accused(module, claimed_epsilon=20.0, claim=PRIVATE, steps=40)
    assert report.epsilon_spent < 20.0
    assert violated(report) == ["expected_batch_size"]
    assert report.verdict.kind == "accounting"
    assert report.verdict.fault.startswith("divided by a number that is computed from the records")
    evidence = divisor(report).evidence
    # The audit stops it at the end of the first epoch.
    assert (evidence["of_neighbours"], evidence["coordinates"]) == ([19], 10 * 26_122)
    assert evidence["epsilon_of_divisor"] == pytest.approx(877.6, abs=0.1)
    assert "set optimizer.expected_batch_size to a constant" in report.verdict.root.look_at


@pytest.mark.parametrize(
    ("make", "given", "status", "begins", "ends"),
    [
        (PrivateModule, {"claim": PRIVATE, "allow": ["expected_batch_size"]}, "allowed", "", ""),
        (
            lambda: PrivateModule(dataset=random_data(520)),  # 33 batches, of 15.76 records each
            *({"claim": PRIVATE}, "ok"),
            *("one record more or less does not change the divisor", ""),
        ),
        (
            PrivateModule,
            {"claim": PrivacyClaim(adjacency="replace_one", epsilon=40.0, delta=1e-5)},
            *("ok", "", "which replacing a record does not change"),
        ),
        # What make_private computes, and a constant all the same.
        (
            with_optimizer(lambda optimizer: setattr(optimizer, "expected_batch_size", 16)),
            {"claim": PrivacyClaim(private_dataset_size=True, expected_batch_size=16)},
            *(None, "", ""),
        ),
    ],
    ids=["allowed", "the same", "replaced", "the constant that is computed"],
)
@pytest.mark.one_in(4)
@pytest.mark.heavy_one_in(3)
def test_a_divisor_passes_where_it_is_allowed_the_same_or_a_constant(
    audited, make, given, status, begins, ends
):
    report = audited(make(), **given)
    assert report.verdict.outcome == "PASS"
    found = divisor(report)
    assert (found and found.status) == status
    if found is not None:
        assert found.message.startswith(begins)
        assert found.message.endswith(ends)


def test_a_stated_constant_that_is_not_the_divisor_excuses_nothing(accused):
    claim = PrivacyClaim(private_dataset_size=True, expected_batch_size=20)
    assert divisor(accused(PrivateModule(), claim=claim, steps=40)).status == "violated"


def test_a_cost_within_the_claim_of_private_records_cannot_pass(audited):
    verdict = audited(PrivateModule(), claimed_epsilon=1e6, claim=PRIVATE).verdict
    assert verdict.outcome == "INCONCLUSIVE"
    (lack,) = verdict.pass_blockers
    assert "the epsilon of both together is unknown" in lack
    assert "PrivacyClaim(expected_batch_size=...)" in lack


def test_a_fixed_divisor_by_hand_is_no_matter_of_the_number_of_records(audited):
    report = audited(HandWritten(), claim=dataclasses.replace(CLAIM, private_dataset_size=True))
    assert divisor(report) is None
    assert report.verdict.outcome != "VIOLATION"
    assert not any("number of records" in lack for lack in report.verdict.pass_blockers)
