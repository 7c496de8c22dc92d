from __future__ import annotations

import pytest

from lightning_audit.stats.tradeoff import gaussian_epsilon
from lightning_audit.testing import selftest
from lightning_audit.testing.faults import FAULTS


def test_a_step_claims_the_papers_epsilon() -> None:
    claimed = gaussian_epsilon(1 / selftest.NOISE_MULTIPLIER, selftest.DELTA)
    assert claimed == pytest.approx(selftest.EPSILON, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "epsilon"), [(selftest.NoiseOfEpsilon157, 1.57), (selftest.NoiseOfEpsilon217, 2.17)]
)
def test_too_little_noise_has_the_true_epsilon_of_its_name(kind: type, epsilon: float) -> None:
    mu = 1 / (selftest.NOISE_MULTIPLIER * kind.factor)
    assert gaussian_epsilon(mu, selftest.DELTA) == pytest.approx(epsilon, rel=1e-6)


def test_as_many_observations_as_in_the_paper_come_of_half_the_steps_of_eight_canaries() -> None:
    assert selftest.PUBLISHED_STEPS * 8 / 2 == 2500


def test_violations_have_the_papers_settings_and_the_words_of_their_fault() -> None:
    found = {name: selftest.violations(name) for name in FAULTS}
    figures = {figure: fault for faults in found.values() for figure, fault in faults.items()}
    assert sorted(figures) == [
        "figure 7",
        "figure 8",
        "figure 9, epsilon 1.57",
        "figure 9, epsilon 2.17",
    ]
    assert {f.training for f in figures.values()} == {selftest.PublishedSettings}
    assert figures["figure 9, epsilon 1.57"].sentence == FAULTS["half_noise"].sentence
    module = selftest.PublishedSettings()
    assert len(module.data) == 50_000
    assert module.plain_loader().batch_size == 256
