"""False alarms of all checks of the steps, on simulated steps with banded noise that is declared.

Each stream has data that stay, data that follow the noise of the step before, and a canary that
clipping shrinks, so that a part of it is left in the draws of later steps.
"""

from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.checks.probes import LAGS, NoiseSeen, Whitening, Witnesses
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.record.store import INJECTED, RecordHeader
from lightning_audit.session.recorder import Recorder
from lightning_audit.session.step import ObservedStep

C = (1.0, -0.5, -0.25)
K, WITNESSES = 4, Witnesses({0: np.arange(48), 1: np.arange(16)})
N = 64
#: The whole run's; each check has a share of it.
LEVEL = 0.05


def run_of(
    seed: int,
    steps: int,
    *,
    size: float = 1.0,
    coefficients: tuple[float, ...] = C,
    shift: float = 0.8,
    data: float = 0.3,
) -> Recorder:
    """A simulated training whose claim is ``C``, and its noise of other weights or size."""
    rng = np.random.default_rng(seed)
    header = RecordHeader(tuple("abcd"), ("w", "b"), WITNESSES.counts, LAGS, noise_coefficients=C)
    made = Recorder(header, LEVEL, WITNESSES, None, np.random.default_rng(seed))
    whole, alone = Whitening(C), Whitening(C)
    draws = size * rng.standard_normal((steps, N + K))
    stays, claim = data * rng.standard_normal(N + K), StepClaim(1.0, 1.0, 16.0)
    follows = np.zeros(N + K)
    for t in range(steps):
        noise = sum(c * draws[t - k] for k, c in enumerate(coefficients[: t + 1]))
        sums = stays + data * rng.standard_normal(N + K) + follows
        follows = -data * noise  # the gradient leads back to where the noise led away from
        coins = rng.integers(0, 2, K).astype(float)
        sums[N:] += coins * shift
        taken = np.concatenate([np.zeros(N), coins])  # as claimed
        drawn = whole.draw(sums + noise - taken)
        own = alone.draw(noise)
        made.take(
            ObservedStep(
                claim=claim,
                status=INJECTED,
                coins=coins,
                readings=drawn[N:] + coins,
                witnesses=drawn[:N],
                epoch=t // 40,
                replaced=False,
                sample_rate=0.1,
                noise=NoiseSeen((sums + own)[:N], sums[:N], 1.0, at_cut=True),
            )
        )
    return made


def flagged(recorder: Recorder) -> set[str]:
    return {c.name for c in recorder.results if c.status in ("violated", "warned")}


def share_of_alarms(runs: int, steps: int) -> float:
    return float(np.mean([bool(flagged(run_of(seed, steps))) for seed in range(runs)]))


@pytest.mark.heavy
def test_right_banded_noise_alarms_in_fewer_runs_than_the_level() -> None:
    """Warnings have a level of their own, so that both may come in twice as many runs."""
    assert share_of_alarms(20, 100) <= 0.1


@pytest.mark.nightly
def test_right_banded_noise_alarms_in_fewer_of_many_runs_than_the_level() -> None:
    assert share_of_alarms(200, 160) <= 0.05


def test_half_of_the_banded_noise_is_too_small() -> None:
    for seed in range(3):
        assert "noise" in flagged(run_of(seed, 40, size=0.5))


@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, -0.5), (1.0, -0.5, 0.25)])
def test_noise_of_other_weights_follows_that_of_earlier_steps(
    coefficients: tuple[float, ...],
) -> None:
    for seed in range(3):
        assert "reuse.recurrence" in flagged(run_of(seed, 100, coefficients=coefficients))


def test_a_canary_that_clipping_lets_through_is_seen_in_the_draws() -> None:
    for seed in range(3):
        assert "sensitivity" in flagged(run_of(seed, 150, shift=3.0))
