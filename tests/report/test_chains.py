from __future__ import annotations

import sys

import numpy as np
import pytest

from lightning_audit.report.chains import chain_diagnostics, trace_figure
from lightning_audit.stats.attack_strength.strength_posterior import attack_counts
from lightning_audit.stats.attack_strength.strength_sampler import sample_attack_strength


def autoregressive(rng: np.random.Generator, correlation: float, shape: tuple[int, int]):
    noise = rng.standard_normal(shape)
    chain = noise.copy()
    for i in range(1, shape[1]):
        chain[:, i] = correlation * chain[:, i - 1] + np.sqrt(1 - correlation**2) * noise[:, i]
    return chain


def test_dependent_samples_count_as_fewer_independent_ones() -> None:
    rng = np.random.default_rng(0)
    chains = np.stack([autoregressive(rng, r, (4, 5000)) for r in (0.0, 0.9)], axis=-1)
    free, dependent = chain_diagnostics(chains)
    # The exact factor of an autoregressive chain is (1 - r) / (1 + r).
    assert free.ess == pytest.approx(20_000, rel=0.1)
    assert dependent.ess == pytest.approx(20_000 * 0.1 / 1.9, rel=0.2)
    assert max(free.r_hat, dependent.r_hat) < 1.01
    assert free.ess_tail > dependent.ess_tail


def test_chains_at_different_places_have_a_large_r_hat() -> None:
    rng = np.random.default_rng(1)
    chains = rng.standard_normal((4, 500, 1)) + np.array([0, 0, 0, 3.0])[:, None, None]
    assert chain_diagnostics(chains)[0].r_hat > 1.2


def test_the_published_chain_is_judged_and_drawn() -> None:
    counts = attack_counts([40, 45], 100, [50, 40], 100)
    chains = [
        sample_attack_strength(counts, 0.01, 300, np.random.default_rng(i), start=start)
        for i, start in enumerate([(5.0, 0.1), (1.0, 0.8)])
    ]
    epsilon, strength = chain_diagnostics(chains)
    assert 1 < min(epsilon.ess, strength.ess) < 300
    figure = trace_figure(chains, ["epsilon", "s"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["epsilon", "s"]
    assert np.array_equal(figure.axes[0].get_lines()[1].get_ydata(), chains[1][:, 0])


def test_bad_chains_are_named() -> None:
    with pytest.raises(ValueError, match=r"chains have shape \(100, 2\), must be \[chains, iter"):
        chain_diagnostics(np.zeros((100, 2)))
    with pytest.raises(ValueError, match=r"names=\['a'\] must be 2, one a parameter"):
        trace_figure(np.zeros((2, 100, 2)), ["a"])


def test_without_arviz_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    with pytest.raises(ImportError, match=r"lightning-audit\[mcmc\]"):
        chain_diagnostics(np.zeros((2, 100, 1)))
