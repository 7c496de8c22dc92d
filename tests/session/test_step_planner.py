"""When canaries enter a step, and that none stays where no step is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bare_session import BareSession

from lightning_audit import PrivacyClaim
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.record.store import INJECTED
from lightning_audit.session import planner

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


CLAIM = StepClaim(noise_multiplier=1.0, max_grad_norm=3.0, scale=8.0)


def entered(bare: BareSession) -> list[int]:
    """Numbers of the steps with canaries."""
    return np.flatnonzero(bare.column("canaries") == INJECTED).tolist()


@pytest.mark.parametrize("announced", [True, False])
def test_every_nth_step_has_canaries_laid_out_or_copied(announced: bool) -> None:
    bare = BareSession(every_n_steps=3)
    bare.train(8, announced=announced)
    assert entered(bare) == [0, 3, 6]


def test_copied_rows_are_thinned_after_the_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "FULL_STEPS", 4)
    monkeypatch.setattr(planner, "THINNED", 3)
    copied, laid_out = BareSession(every_n_steps=None), BareSession(every_n_steps=None)
    copied.train(10, announced=False)
    laid_out.train(10)
    assert entered(copied) == [0, 1, 2, 3, 6, 9]
    assert entered(laid_out) == list(range(10))


def test_one_step_in_so_many_has_no_canary_once_a_short_training_would_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "_FROM", 40)
    monkeypatch.setattr(planner, "_WITHOUT", 4)
    bare, again = BareSession(), BareSession()
    for each in (bare, again):
        each.train(200)
    without = sorted(set(range(200)) - set(entered(bare)))
    assert without[0] >= 40
    # 160 steps, a quarter of them: forty, give or take six.
    assert 20 < len(without) < 60
    assert entered(again) == entered(bare)


def test_one_canary_of_a_step_is_shorter_and_none_shorter_than_is_clipped() -> None:
    bare = BareSession()
    norms, turns = [], set()
    for _ in range(60):
        plan = bare.session.planner.flip(CLAIM)
        norms.append(plan.shorter * bare.session.planner.norm(CLAIM) / CLAIM.max_grad_norm)
        turns.add(plan.turn)
        bare.train(1)
    assert min(norms) >= 1.5
    assert max(norms) <= 1000.0
    # Log-uniform: as many below the geometric mean as above.
    assert 15 < np.sum(np.array(norms) < (1.5 * 1000.0) ** 0.5) < 45
    assert len(turns) == 60


def test_canaries_as_long_as_the_clipping_norm_are_not_shortened() -> None:
    assert BareSession(oversize=1.0).session.planner.flip(CLAIM).shorter == 1.0


def test_a_batch_that_is_given_up_leaves_no_row_and_costs_no_step() -> None:
    bare = BareSession()
    bare.train(1)
    for put_in in (False, True):
        bare.backward()
        if put_in:
            bare.session.inject()
        bare.session.start_batch()
        for p in bare.net.parameters():
            assert len(p.grad_sample) == 5
            assert not p.grad_sample.any()
        bare.optimizer.zero_grad()
    bare.train(1)
    assert entered(bare) == [0, 1]


def test_another_set_of_trained_parameters_ends_the_canaries_and_is_said_once() -> None:
    bare = BareSession()
    bare.train(2)
    frozen: Any = bare.net._module[0].bias
    frozen.requires_grad_(False)
    bare.train(2)
    (sentence,) = bare.session.pass_blockers()
    assert sentence.startswith("the set of trained parameters changed in step 3")
    assert entered(bare) == [0, 1]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, StepClaim(0.0, 2.0, 16.0, 4)),
        ({"epsilon": 1.0, "delta": 1e-5}, StepClaim(0.0, 2.0, 16.0, 4)),
        ({"noise_multiplier": 3.0}, StepClaim(3.0, 2.0, 16.0, 4)),
        ({"max_grad_norm": 0.5}, StepClaim(0.0, 0.5, 16.0, 4)),
        # Of one batch: a step adds up several.
        ({"expected_batch_size": 16}, StepClaim(0.0, 2.0, 64.0, 4)),
    ],
)
def test_what_is_stated_stands_before_what_the_optimizer_says(
    stated: dict[str, Any] | None, expected: StepClaim
) -> None:
    claim = None if stated is None else PrivacyClaim(**stated)
    assert BareSession(claim=claim).session.planner.claim(accumulated=4) == expected
