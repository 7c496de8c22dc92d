"""What Opacus 1.6 itself does is said of the training that uses it, with its size."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from counted_steps import report_of
from opacus.layers import DPMultiheadAttention
from shown_code import blocks, run
from torch import nn

from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.opacus import (
    chance_of_empty,
    noise_multiplier_with_count,
    opacus_result,
)
from lightning_audit.testing.faulty_trainings import AttentionMixesPlaces
from lightning_audit.testing.trainings import AdaptiveClipping

pytestmark = pytest.mark.training

NAME = "opacus_defects"


def of_the_page(name: str):
    """What a block of docs/opacus.md defines."""
    page = Path(__file__).parents[2] / "docs" / "opacus.md"
    (code,) = (block for block in blocks(page, "python") if name in block)
    return run(code)[name]


def blockers(**found) -> str:
    return REGISTRY[NAME].blocks(opacus_result(**found))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"averaged": True}, "the criterion averages the losses"),
        ({"alike": 2}, "2 processes"),
        ({"empty": "made_up", "chance": 0.01, "delta": 1e-5}, "with probability 0.01"),
        ({"count": (1.0, 0.6)}, "noise_multiplier is worth 0.569, not 1"),
    ],
)
def test_what_is_not_accounted_is_a_violation_with_its_size(found, words):
    result = opacus_result(**found)
    assert result.status == "violated"
    assert words in result.message
    assert result.advice


def test_a_bound_by_a_limit_theorem_prevents_a_pass_and_is_said_in_the_message():
    assert opacus_result(empty="made_up", chance=1e-6, delta=1e-5).status == "ok"
    none = {"empty": "stepped", "chance": 1.0}, {"empty": "left_out", "chance": 1e-6}
    for covered in none:
        assert blockers(**covered, delta=1e-5) == ""
    assert "noise_multiplier is worth 0.918, not 1" in blockers(count=(1.0, 2.0))
    assert "with probability 0.3" in blockers(empty="left_out", chance=0.3, delta=1e-5)
    found = opacus_result(gdp=True)
    assert found.status == "ok"
    assert found.message.startswith("Opacus' gdp accountant reports less")
    assert "accountant='prv'" in blockers(gdp=True)


@pytest.mark.parametrize("unclipped", [0, 3, 20])
def test_a_record_moves_the_count_over_the_real_batch_by_at_most_what_is_stated(unclipped):
    # The mean moves by less than 1 / count_std of its standard deviations, and by that almost.
    records, std = 20, 2.0
    shifts = [
        abs((unclipped + more) / (records + 1) - unclipped / records) * records / std
        for more in (0, 1)
    ]
    assert max(shifts) < 1.0 / std
    left = (1.0 - (2.0 * std) ** -2) ** -0.5
    together = math.sqrt(left**-2 + std**-2)
    assert noise_multiplier_with_count(1.0, std) == pytest.approx(1.0 / together)


def test_the_chance_of_an_empty_batch_is_that_of_a_simulation():
    rng = np.random.default_rng(0)
    empty = (rng.random((20_000, 8)) < 0.5).sum(axis=1) == 0
    assert chance_of_empty(0.5, 8, 1) == pytest.approx(empty.mean(), abs=0.002)
    assert chance_of_empty(0.5, 8, 10**6) == 1.0


def test_adaptive_clipping_as_opacus_has_it_lacks_a_pass_and_gets_it_when_allowed(tmp_path):
    report = report_of(tmp_path / "a", training=AdaptiveClipping, steps=3, examinations=0)
    assert any(NAME in one for one in report.verdict.pass_blockers)
    allowed = report_of(
        tmp_path / "b", training=AdaptiveClipping, steps=3, examinations=0, allow=[NAME]
    )
    assert not any(NAME in one for one in allowed.verdict.pass_blockers)


def test_the_optimizer_of_the_page_adapts_and_is_not_said_to_cost_more(tmp_path):
    centered, norms = of_the_page("CenteredCount"), []

    class Centered(AdaptiveClipping):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            optimizer.__class__ = centered
            return optimizer

        def on_train_batch_end(self, *_):
            norms.append(float(self.trainer.optimizers[0].max_grad_norm))

    report = report_of(tmp_path, training=Centered, steps=4, examinations=0)
    assert not any(NAME in one for one in report.verdict.pass_blockers)
    assert len(set(norms)) == 4


class InOrder(AttentionMixesPlaces):
    """As the page says."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        of_the_page("put_in_order")(self.net.attention)


def test_attention_that_lets_padding_past_its_mask_is_named(tmp_path):
    report = report_of(tmp_path, training=AttentionMixesPlaces, steps=4, examinations=1)
    (fault,) = report.verdict.faults
    assert (fault.finding, fault.name) == ("coupling", "attention_mixes_places")
    (found,) = (check for check in report.checks if check.status == "violated")
    assert "`net.attention` lets padding past its mask" in found.message
    assert found.evidence["attention"] == "net.attention"


@pytest.mark.nightly
def test_the_hook_of_the_page_puts_the_attention_in_order(tmp_path):
    report = report_of(tmp_path, training=InOrder, steps=4, examinations=1)
    assert {check.name: check.status for check in report.checks}["coupling"] == "ok"


def test_the_hook_of_the_page_computes_what_torch_does():
    torch.manual_seed(0)
    ours, theirs = (
        DPMultiheadAttention(8, 2, batch_first=True),
        nn.MultiheadAttention(8, 2, batch_first=True),
    )
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 5, 8)
    assert not torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-3)
    of_the_page("put_in_order")(ours)
    assert torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
