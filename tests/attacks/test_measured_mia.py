from __future__ import annotations

import numpy as np
import pytest
from shadow_models import shadow_models

from lightning_audit.attacks import cross_fed_mia, measure_mia, normal_ratio
from lightning_audit.stats.attack_strength import attack_strength_posterior
from lightning_audit.stats.correlated_attacks import correlated_attack_posterior


def decision(score: float, out, inside, alpha: float) -> bool:
    """Algorithm 3 on one target, through the attack, which has its own twin."""
    scores = np.concatenate([out, inside])[:, None]
    membership = np.arange(len(scores))[:, None] >= len(out)
    return bool(normal_ratio(scores, membership, [[score]])[0, 0] >= -alpha)


def columns(known, record: int) -> tuple[list[float], list[float]]:
    scores, inside = known[0][:, record], known[1][:, record]
    return list(scores[~inside]), list(scores[inside])


@pytest.mark.parametrize("alpha", [0.1, 0.4])
def test_cross_fed_counts_are_those_of_algorithm_5(alpha) -> None:
    known = shadow_models(models=30, records=5)
    counts, n = cross_fed_mia(known[0], known[1], alpha)
    assert n == min(known[1].sum(axis=0).min(), (~known[1]).sum(axis=0).min())
    for r in range(5):
        out, inside = (side[:n] for side in columns(known, r))
        fp = sum(decision(out[j], out[:j] + out[j + 1 :], inside, alpha) for j in range(n))
        tp = sum(decision(inside[j], out, inside[:j] + inside[j + 1 :], alpha) for j in range(n))
        assert (int(counts.fp[r]), int(counts.tp[r])) == (fp, tp)
        assert (int(counts.n_out[r]), int(counts.n_in[r])) == (n, n)


@pytest.mark.parametrize("shadows", [2, 3])
def test_counts_are_those_of_algorithm_4(shadows) -> None:
    known = shadow_models(models=70, records=4, leakage=2.0)
    counts = measure_mia(known[0], known[1], 0.2, shadows=shadows)
    least = min(known[1].sum(axis=0).min(), (~known[1]).sum(axis=0).min())
    n = least // (2 * shadows + 1)
    assert n > 2
    for r in range(4):
        out, inside = columns(known, r)
        attacked = {False: out[:n], True: inside[:n]}
        rest = {False: iter(out[n:]), True: iter(inside[n:])}
        found = {False: 0, True: 0}
        # Each challenge takes models that no other one takes: first its own side's.
        own = {s: [[next(rest[s]) for _ in range(shadows)] for _ in range(n)] for s in rest}
        for side in (False, True):
            for j in range(n):
                other = [next(rest[not side]) for _ in range(shadows)]
                pair = (other, own[side][j]) if side else (own[side][j], other)
                found[side] += decision(attacked[side][j], *pair, 0.2)
        assert (int(counts.fp[r]), int(counts.tp[r])) == (found[False], found[True])
        assert (int(counts.n_out[r]), int(counts.n_in[r])) == (n, n)


def test_several_targets_of_the_false_positive_rate_are_rows() -> None:
    known = shadow_models(models=60, records=3)
    for measure in (lambda *a: cross_fed_mia(*a)[0], lambda *a: measure_mia(*a, shadows=3)):
        both = measure(known[0], known[1], [0.1, 0.5])
        assert both.shape == (2, 3)
        for k, alpha in enumerate((0.1, 0.5)):
            one = measure(known[0], known[1], alpha)
            assert np.array_equal(both.fp[k], one.fp)
            assert np.array_equal(both.fn[k], one.fn)


def test_losses_give_the_counts_of_scores() -> None:
    known = shadow_models(models=60, records=3)
    assert cross_fed_mia(-known[0], known[1]) == cross_fed_mia(known[0], known[1])
    assert measure_mia(-known[0], known[1]) == measure_mia(known[0], known[1])


def test_rates_are_near_those_of_the_normal_distributions() -> None:
    known = shadow_models(models=300, records=40, leakage=2.0, spread=0.0)
    counts, n = cross_fed_mia(known[0], known[1], 0.1)
    assert counts.fp.sum() / (40 * n) == pytest.approx(0.1, abs=0.02)
    # Phi(2 - 1.2816) = .764 of the members pass.
    assert counts.tp.sum() / (40 * n) == pytest.approx(0.764, abs=0.04)


@pytest.mark.heavy
def test_the_posteriors_take_the_counts() -> None:
    known = shadow_models(models=90, records=2, leakage=2.0)
    counts, cluster = cross_fed_mia(known[0], known[1])
    correlated = correlated_attack_posterior(counts, 1e-5, cluster).joint.epsilon
    independent = attack_strength_posterior(measure_mia(known[0], known[1], shadows=4), 1e-5)
    assert 0 < correlated.mean < 10
    assert 0 < independent.epsilon.mean < 10


def test_too_few_models_and_equal_scores_name_the_record() -> None:
    scores, membership, _, _ = shadow_models()
    with pytest.raises(ValueError, match=r"must have each record in at least 17"):
        measure_mia(scores, membership)
    with pytest.raises(ValueError, match="shadows=1 must be at least 2"):
        measure_mia(scores, membership, shadows=1)
    with pytest.raises(ValueError, match=r"alpha=1.5 must be in \(0, 1\)"):
        cross_fed_mia(scores, membership, 1.5)
    scores[~membership[:, 2], 2] = 0.5
    with pytest.raises(ValueError, match=r"record 2: std_out=0.0 must be > 0: equal losses"):
        cross_fed_mia(scores, membership)
    membership[:, 1] = np.arange(len(scores)) < 2
    with pytest.raises(ValueError, match=r"record 1 in 2 models, must have .* at least 3"):
        cross_fed_mia(scores, membership)
