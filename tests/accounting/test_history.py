import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_record import monitor_of, simulate

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import (
    Phase,
    StepHistory,
    bucket_up,
    compress,
    leaking,
    merge,
    rates_known,
)

sigmas = st.floats(0.05, 100)
phases = st.builds(Phase, sigmas, st.sampled_from([0.01, 0.1, 1.0]), st.integers(1, 10_000))
histories = st.lists(phases, max_size=20)


def _chi_square(history: list[Phase]) -> float:
    return sum(phase.steps * math.expm1(phase.noise_multiplier**-2) for phase in history)


@given(st.floats(1e-6, 1e6), st.sampled_from([1.0001, 1.02, 1.5, 2.0]))
def test_bucket_is_the_next_grid_point_upward(sigma, ratio):
    bucket = bucket_up(sigma, ratio)
    assert sigma <= bucket <= sigma * ratio * (1 + 1e-9)
    assert bucket_up(bucket, ratio) == bucket
    assert bucket_up(0.0, ratio) == 0.0


@given(histories)
def test_compressing_keeps_the_steps_and_never_lowers_noise(history):
    short = compress(history, max_phases=8, rounding="up")
    assert len(short) <= max(8, len({phase.sample_rate for phase in history}))
    assert sum(phase.steps for phase in short) == sum(phase.steps for phase in history)
    assert len({(phase.noise_multiplier, phase.sample_rate) for phase in short}) == len(short)
    before = sum(phase.steps / phase.noise_multiplier**2 for phase in history)
    assert sum(phase.steps / phase.noise_multiplier**2 for phase in short) <= before * (1 + 1e-9)
    kept = compress(history, max_phases=8, rounding="mean")
    assert _chi_square(kept) == pytest.approx(_chi_square(history), rel=1e-9)


def test_few_mechanisms_are_merged_exactly():
    history = [Phase(1.001, 0.01, 5), Phase(1.002, 0.01, 6), Phase(1.001, 0.01, 7)]
    assert compress(history) == [Phase(1.001, 0.01, 12), Phase(1.002, 0.01, 6)]


def test_many_mechanisms_are_bucketed():
    history = [Phase(1 + 0.001 * i, 0.01, 10) for i in range(1, 26)]
    assert compress(history, max_phases=25) == history
    assert compress(history) == [Phase(1.02, 0.01, 200), Phase(1.02**2, 0.01, 50)]


def test_steps_of_an_unknown_rate_are_merged_and_not_composed():
    unknown = Phase(1.0, None, 3)
    merged = merge([unknown, Phase(1.0, 0.01, 2), unknown])
    assert merged == [Phase(1.0, None, 6), Phase(1.0, 0.01, 2)]
    assert not rates_known([Phase(1.0, 0.01, 2), unknown])
    with pytest.raises(ValueError, match="sample_rate=None must be in"):
        epsilon_of_history([unknown], 1e-5)


def test_leakage_over_claim_divides_every_noise_multiplier():
    history, halved = ([Phase(s, 0.5, 3), Phase(3 * s, None, 1)] for s in (1.0, 0.5))
    assert leaking(history, 2.0) == halved


@pytest.mark.parametrize(
    ("steps", "simulated", "phases"),
    [
        (6, {"sigma": [2.0] * 3 + [1.0] * 2 + [2.0]}, (Phase(2, 0.01, 4), Phase(1, 0.01, 2))),
        (5, {"sample_rate": math.nan}, (Phase(1.0, None, 5),)),
    ],
)
def test_history_holds_the_phases_in_the_order_of_their_first_steps(steps, simulated, phases):
    assert monitor_of(simulate(steps, **simulated)).history == phases
    claims = StepHistory()
    claims.add(1.0, 0.0)  # a rate at which no record joins is unknown
    assert claims.runs() == (Phase(1.0, None, 1),)
