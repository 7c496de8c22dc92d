"""Which gradients are seen to be computed of releases alone, entry by entry."""

from collections.abc import Callable

import numpy as np
import pytest
from declared import fault_of
from simulated_record import monitor_of, simulate, verdict_of, violated

from lightning_audit.checks import update
from lightning_audit.checks.accounting import EPSILON
from lightning_audit.checks.check import MEASURED, entailed, group
from lightning_audit.checks.clipping import (
    CLIPPING_NORM,
    FINITE,
    LOSS_REDUCTION,
    SENSITIVITY,
    loss_reduction_result,
)
from lightning_audit.checks.replay import COUPLING
from lightning_audit.checks.sampling import LOGICAL_BATCH


def test_replaced_gradient_is_flagged_by_one_step_and_named():
    record = simulate(60, replaced=[7])
    assert violated(monitor_of(record)) == {"gradient_replaced"}
    verdict = verdict_of(record)
    assert (verdict.outcome, verdict.kind) == ("VIOLATION", "mechanism")
    assert verdict.fault.startswith("gradient replaced")
    assert "#313" in verdict.root.look_at


@pytest.mark.parametrize(
    ("check", "evidence", "fault"),
    [
        (update.NO_DP, {"plain_steps": 0, "private_steps": 9}, None),
        (update.NO_DP, {"plain_steps": 1, "private_steps": 9}, "no_dp"),
        (CLIPPING_NORM, {"largest_ratio": 1.05}, None),  # low precision rounds by that much
        (CLIPPING_NORM, {"largest_ratio": 1.2}, "wrong_norms"),
        (update.GRADIENT_REPLACED, {"replaced": 0}, None),
        (update.GRADIENT_REPLACED, {"replaced": 1}, "gradient_replaced"),
        (FINITE, {"lost_steps": 2}, None),  # of all records alike
        (FINITE, {"lost_steps": 2, "records": 1, "rows": 16}, "not_finite"),
        (update.UNSYNCHRONISED, {"synchronised": True}, None),
        (update.UNSYNCHRONISED, {"synchronised": False}, "unsynchronised"),
        (COUPLING, {"step": None}, None),
        (COUPLING, {"step": 0}, "records_coupled"),
        (LOGICAL_BATCH, {"carried_over": 0}, None),
        (LOGICAL_BATCH, {"carried_over": 1}, "batches_run_together"),
        (LOSS_REDUCTION, {"loss": "sum", "optimizer": "mean"}, None),  # warns, and is no fault
        (EPSILON, {"epsilon_lower": None, "claimed_epsilon": 3.0}, None),
        (EPSILON, {"epsilon_lower": 2.0, "claimed_epsilon": 3.0}, None),
        (EPSILON, {"epsilon_lower": 4.0, "claimed_epsilon": 3.0}, "leaks_more_than_claimed"),
    ],
)
def test_what_is_wrong_is_named(check, evidence, fault):
    assert fault_of(check, evidence) == fault


def test_a_loss_that_is_added_up_otherwise_warns():
    for loss, status in (("mean", "ok"), ("sum", "warned")):
        found = loss_reduction_result(loss, "mean")
        assert [one.status for one in found] == [status]


def test_what_replaces_the_gradient_explains_all_that_is_measured_of_it():
    measured = {name for of in MEASURED for name in group(of)}
    for check in (update.GRADIENT_REPLACED, update.UNSYNCHRONISED):
        assert check.faults
        assert all(set(entailed(rule)) == measured for rule in check.faults)
    assert {"sensitivity", "noise", "reuse.lag", "noise.shape", "epsilon"} <= measured
    assert SENSITIVITY.size_of == "signal"


def test_an_optimizer_beside_a_private_one_may_be_allowed_and_one_alone_may_not():
    assert "Allow('no_dp', optimizer=..., reason='...')" in update.no_dp_result(3, 5, "Adam").advice
    assert "Allow" not in update.no_dp_result(3, 0, "Adam").advice


N = 200


def followed(process: Callable[..., np.ndarray | None], steps: int = 60) -> bool:
    """Whether releases of noise beside data are followed; they get the data and the noise too."""
    rng, seen, state = np.random.default_rng(1), update.ReleaseProcessing(), {}
    for step in range(steps):
        data, noise = 0.3 * rng.normal(size=N), rng.normal(size=N)
        seen.update(step, data + noise, process(data + noise, data=data, noise=noise, state=state))
    return seen.followed


def low_pass(release, *, state, **_):
    state["m"] = 0.9 * state.get("m", release) + 0.1 * release
    return state["m"]


def heavy_ball(release, *, state, **_):
    state["m"] = 0.9 * state.get("m", 0.0) + release
    return state["m"]


def nesterov(release, *, state, **_):
    state["m"] = 0.9 * state.get("m", 0.0) + release
    return release + 0.9 * state["m"]


def mean_of_four(release, *, state, **_):
    state.setdefault("w", []).append(release)
    return np.mean(state["w"][-4:], axis=0)


@pytest.mark.parametrize(
    "process",
    [
        lambda release, **_: None,
        lambda release, **_: 0.2 * release,
        lambda release, **_: release / np.linalg.norm(release),
        lambda release, **_: np.where(np.abs(release) > 1.5, release, 0.0),
        lambda release, **_: np.sign(release),
        lambda release, **_: np.clip(release, -0.5, 0.5),
        lambda release, **_: np.round(release * 4) / 4,
        lambda release, **_: np.zeros(N),
        low_pass,
        heavy_ball,
        nesterov,
        mean_of_four,
    ],
)
def test_functions_of_releases_are_followed(process):
    assert followed(process)


@pytest.mark.parametrize(
    "process",
    [
        lambda release, noise, **_: release - noise,
        lambda release, noise, **_: release - 0.7 * noise,
        lambda release, data, **_: release + 0.1 * data,
        lambda release, data, **_: np.where(np.abs(release) > 2, data, release),
        lambda release, data, **_: np.full(N, np.nan),
    ],
)
def test_what_uses_more_than_releases_is_not_followed(process):
    assert not followed(process)


def test_a_few_steps_that_are_not_followed_are_let_go():
    rng, seen = np.random.default_rng(2), update.ReleaseProcessing()
    for step in range(200):
        release = rng.normal(size=N)
        seen.update(step, release, rng.normal(size=N) if step % 25 == 0 else None)
    assert seen.followed
    assert [step for step in range(300) if seen.was_unexplained(step)] == [*range(0, 200, 25)]
