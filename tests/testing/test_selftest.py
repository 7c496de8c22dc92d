import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

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


@pytest.mark.filterwarnings("default")
def test_configurations_clip_as_they_are_called():
    module = Functorch()
    module.configure_optimizers()
    assert module.net.force_functorch
    optimizer = PerLayer(max_grad_norm=0.7).configure_optimizers()
    norms = torch.tensor(optimizer.max_grad_norms)
    assert len(norms) == len(optimizer.params)
    assert norms.norm().item() == pytest.approx(0.7)
    torch.manual_seed(0)
    module = AdaptiveClipping(max_grad_norm=10.0)
    optimizer = module.configure_optimizers()
    module.training_step(random_data(records=8).tensors, 0).backward()
    optimizer.step()
    assert optimizer.max_grad_norm < 10.0  # no gradient is as long


@pytest.mark.parametrize(
    ("factor", "epsilon"),
    [
        (1.0, selftest.EPSILON),
        (selftest.NoiseOfEpsilon157.factor, 1.57),
        (selftest.NoiseOfEpsilon217.factor, 2.17),
    ],
)
def test_a_step_has_the_papers_epsilon_or_the_one_of_its_name(factor, epsilon):
    mu = 1 / (selftest.NOISE_MULTIPLIER * factor)
    assert gaussian_epsilon(mu, selftest.DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert selftest.PUBLISHED_STEPS * 8 / 2 == 2500  # the paper's observations


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
    others = {row.configuration: row.fault for row in rows if row.group != "published"}
    assert {fault.optimizer for fault in others.values()} == {FAULTS["half_noise"].optimizer}
    assert others["split batches"].steps == 4 * others["functorch"].steps
    # Another clipping would replace a fault of the clipping.
    configurations = {row.configuration for row in planned(["no_clipping"])}
    assert not configurations & {"per layer", "adaptive clipping", "ghost clipping"}
    with pytest.raises(ValueError, match=r"--fault noisy must be one of .*half_noise"):
        planned(["noisy"])


def test_a_row_can_be_sent_to_another_process_and_has_a_title_of_its_own():
    rows = planned()
    assert len({(row.group, row.title) for row in rows}) == len(rows)
    for row in rows:
        copied = pickle.loads(pickle.dumps(row))
        assert (copied.group, copied.title) == (row.group, row.title)
        assert copied.fault.training is row.fault.training


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
    assert [steps_of(r) for r in (FOUND, AT_END, MISSED)] == ["3 of 20", "end of 625", "- of 20"]
    heads = [line for line in lines if line.strip().startswith("training ")]
    assert len(heads) == 2
    at = heads[0].index("answer")
    shown = [line[at:].split()[0] for line in lines if "Opacus" in line or "figure 8" in line]
    assert shown == ["found", "warned", "not"]


def test_failures_are_told_by_name_before_the_numbers():
    *failures, last = closing([FOUND, MISSED, CRASHED, HEALTHY, ACCUSED], 2.4)
    assert failures == [
        "NOT FOUND: no_noise, Opacus: PASS",
        "CRASHED: no_noise, Opacus: ValueError: a pity",
        "ACCUSED: healthy, by hand: no noise",
    ]
    assert last == "1 of 3 faults found and named; 1 of 2 healthy runs accused; 1 crashed; 2 s"
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
    # A finding with a step in its evidence is placed there.
    result = trained(tmp_path / "at once", "closure_runs_again", steps=4)
    assert (result.status, result.flagged_at) == ("found", 1)
