"""Which gradients are seen to be computed of releases alone, entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lightning_audit.checks.update import ReleaseProcessing

N = 200


def followed(process: Callable[..., np.ndarray | None], steps: int = 60) -> bool:
    """Whether releases of noise beside data are followed; they get the data and the noise too."""
    rng, seen, state = np.random.default_rng(1), ReleaseProcessing(), {}
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
def test_functions_of_releases_are_followed(process) -> None:
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
def test_what_uses_more_than_releases_is_not_followed(process) -> None:
    assert not followed(process)


def test_a_few_steps_that_are_not_followed_are_let_go() -> None:
    rng, seen = np.random.default_rng(2), ReleaseProcessing()
    for step in range(200):
        release = rng.normal(size=N)
        seen.update(step, release, rng.normal(size=N) if step % 25 == 0 else None)
    assert seen.followed
    assert [step for step in range(300) if seen.was_unexplained(step)] == [*range(0, 200, 25)]
