import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer

from lightning_audit.results.audit_report import AuditReport
from lightning_audit.stats.tradeoff import gaussian_epsilon
from lightning_audit.testing import selftest
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import (
    AdaptiveClipping,
    Functorch,
    PerLayer,
    Row,
    closing,
    planned,
    show,
    steps_of,
    summary,
    train_row,
)
from lightning_audit.testing.selftest_pool import Result
from lightning_audit.testing.trainings import random_data


def stepped(module: Functorch) -> DPOptimizer:
    """The optimizer after the backward pass of eight records."""
    torch.manual_seed(0)
    optimizer = module.configure_optimizers()
    module.training_step(random_data(records=8).tensors, 0).backward()
    return optimizer


@pytest.mark.filterwarnings("default")
def test_per_sample_gradients_by_functorch_are_those_of_hooks():
    module = Functorch()
    optimizer = stepped(module)
    assert isinstance(module.net, GradSampleModule)
    assert module.net.force_functorch
    sums = [g.sum(0) for g in optimizer.grad_samples]
    optimizer.zero_grad()
    whole = torch.nn.functional.cross_entropy(
        module.net(random_data(records=8).tensors[0]),
        random_data(records=8).tensors[1],
        reduction="sum",
    )
    grads = torch.autograd.grad(whole, optimizer.params)
    assert all(torch.allclose(s, g, atol=1e-4) for s, g in zip(sums, grads, strict=True))


@pytest.mark.filterwarnings("default")
def test_the_norms_of_the_layers_have_the_norm_of_the_whole():
    optimizer = PerLayer(max_grad_norm=0.7).configure_optimizers()
    norms = torch.tensor(optimizer.max_grad_norms)
    assert len(norms) == len(optimizer.params)
    assert norms.norm().item() == pytest.approx(0.7)


@pytest.mark.filterwarnings("default")
def test_the_adaptive_norm_follows_the_gradients():
    optimizer = stepped(AdaptiveClipping(max_grad_norm=10.0))
    assert isinstance(optimizer, AdaClipDPOptimizer)
    before = optimizer.max_grad_norm
    optimizer.step()
    assert optimizer.max_grad_norm < before  # no gradient is as long


def test_a_step_claims_the_papers_epsilon():
    claimed = gaussian_epsilon(1 / selftest.NOISE_MULTIPLIER, selftest.DELTA)
    assert claimed == pytest.approx(selftest.EPSILON, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "epsilon"), [(selftest.NoiseOfEpsilon157, 1.57), (selftest.NoiseOfEpsilon217, 2.17)]
)
def test_too_little_noise_has_the_true_epsilon_of_its_name(kind, epsilon):
    mu = 1 / (selftest.NOISE_MULTIPLIER * kind.factor)
    assert gaussian_epsilon(mu, selftest.DELTA) == pytest.approx(epsilon, rel=1e-6)


def test_as_many_observations_as_in_the_paper_come_of_half_the_steps_of_eight_canaries():
    assert selftest.PUBLISHED_STEPS * 8 / 2 == 2500


def test_violations_have_the_papers_settings_and_the_words_of_their_fault():
    found = {name: selftest.violations(name) for name in FAULTS}
    figures = {figure: fault for faults in found.values() for figure, fault in faults.items()}
    assert sorted(figures) == [
        "figure 7",
        "figure 8",
        "figure 9, epsilon 1.57",
        "figure 9, epsilon 2.17",
    ]
    assert {f.training for f in figures.values()} == {selftest.PublishedSettings}
    assert figures["figure 9, epsilon 1.57"].likely == FAULTS["half_noise"].likely
    module = selftest.PublishedSettings()
    assert len(module.data) == 50_000
    assert module.plain_loader().batch_size == 256


def test_every_fault_of_the_registry_is_trained_within_its_steps():
    assert {row.fault.name: row.fault for row in planned() if row.group == "fault"} == dict(FAULTS)


def test_named_faults_are_trained_alone_with_their_other_configurations():
    rows = planned(["half_noise"])
    assert {row.fault.name for row in rows} == {"half_noise", "noise_too_small"}
    assert {row.group for row in rows} == {"fault", "configuration", "published"}
    assert len(planned(["half_noise"], quick=True)) == 1


def test_a_row_can_be_sent_to_another_process_and_has_a_title_of_its_own():
    rows = planned()
    assert len({(row.group, row.title) for row in rows}) == len(rows)
    for row in rows:
        copied = pickle.loads(pickle.dumps(row))
        assert (copied.group, copied.title) == (row.group, row.title)
        assert copied.fault.training is row.fault.training


def test_a_fault_in_another_configuration_is_the_same_fault_for_as_many_optimizer_steps():
    own = FAULTS["half_noise"]
    others = {r.configuration: r.fault for r in planned(["half_noise"]) if r.group != "published"}
    assert {fault.optimizer for fault in others.values()} == {own.optimizer}
    assert others["split batches"].steps == 4 * others["functorch"].steps


def test_a_fault_of_the_clipping_is_not_trained_where_another_clipping_replaces_it():
    configurations = {row.configuration for row in planned(["no_clipping"])}
    assert not configurations & {"per layer", "adaptive clipping", "ghost clipping"}


def test_an_unknown_fault_is_refused():
    with pytest.raises(ValueError, match=r"--fault noisy must be one of .*half_noise"):
        planned(["noisy"])


# --- The table of results in text, and in one line.

FOUND = Result("fault", "half_noise", "Opacus", "found", 20, finding="noise", flagged_at=3)
AT_END = Result("fault", "few_seeds", "figure 8", "warned", 625, finding="reuse")
MISSED = Result("fault", "no_noise", "Opacus", "not found", 20, outcome="PASS")
CRASHED = Result("fault", "no_noise", "Opacus", "crashed", 20, error="ValueError: a pity")
HEALTHY = Result("healthy", "healthy", "Opacus", "not accused", 100, outcome="PASS")
ACCUSED = Result("healthy", "healthy", "by hand", "accused", 100, sentence="no noise")


def test_columns_stand_below_one_another_in_every_group(capsys):
    show([FOUND, AT_END, HEALTHY], 2.0)
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.strip().startswith("training ")]
    assert len(heads) == 2
    at = heads[0].index("answer")
    shown = [line[at:].split()[0] for line in lines if "Opacus" in line or "figure 8" in line]
    assert shown == ["found", "warned", "not"]


def test_steps_tell_where_a_finding_was_there_or_that_only_the_end_tells():
    assert [steps_of(r) for r in (FOUND, AT_END, MISSED)] == ["3 of 20", "end of 625", "- of 20"]


def test_failures_are_told_by_name_before_the_numbers():
    *failures, last = closing([FOUND, MISSED, CRASHED, HEALTHY, ACCUSED], 2.4)
    assert failures == [
        "NOT FOUND: no_noise, Opacus: PASS",
        "CRASHED: no_noise, Opacus: ValueError: a pity",
        "ACCUSED: healthy, by hand: no noise",
    ]
    assert last == "1 of 3 faults found and named; 1 of 2 healthy runs accused; 1 crashed; 2 s"


def test_a_group_that_was_not_trained_is_not_counted():
    assert summary([FOUND]) == "1 of 1 faults found and named"
    assert summary([HEALTHY]) == "0 of 1 healthy runs accused"


def trained(directory: Path, name: str, **changes: int) -> Result:
    return train_row(Row("fault", replace(FAULTS[name], **changes), "Opacus"), directory / "audit")


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("short_report")
def test_a_finding_of_the_record_is_placed_at_the_first_step_that_shows_it(tmp_path):
    result = trained(tmp_path, "half_noise")
    assert (result.status, result.finding, result.named) == ("found", "noise", True)
    assert result.flagged_at is not None
    assert AuditReport.load(tmp_path / "audit" / "report.json").steps == result.steps == 20
    shorter = trained(tmp_path / "shorter", "half_noise", steps=result.flagged_at - 1)
    assert shorter.finding != "noise"
    assert trained(tmp_path / "as long", "half_noise", steps=result.flagged_at).finding == "noise"


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("short_report")
def test_a_finding_with_a_step_in_its_evidence_is_placed_there(tmp_path):
    result = trained(tmp_path, "closure_runs_again", steps=4)
    assert (result.status, result.flagged_at) == ("found", 1)
