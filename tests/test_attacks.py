import math
from functools import partial

import numpy as np
import pytest
from refused_calls import refusals, refused, refused_changes
from scipy import special, stats

from lightning_audit.attacks import (
    attack_performance,
    cross_fed_mia,
    lira,
    log_probability,
    measure_mia,
    normal_ratio,
    out_quantile,
    rmia,
    score_difference,
    score_threshold,
)
from lightning_audit.stats.attack_strength import attack_strength_posterior
from lightning_audit.stats.correlated_attacks import correlated_attack_posterior

# --- Scores of shadow models with known distributions: each record has its own mean and leakage.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
ATTACKS = [lira, normal_ratio, rmia, score_difference, score_threshold]


def shadow_models(
    models=24, records=7, targets=3, leakage: float = 1.0, seed=0, spread: float = 0.5
) -> Arrays:
    """Scores and membership ``[models, records]``, targets and theirs ``[targets, records]``.

    A score is N(record's mean + leakage if in, std^2), where std is 1, or between 1 / (1 + spread)
    and 1 + spread.
    """
    rng = np.random.default_rng([seed, models, records])
    means = rng.normal(0, 2, records)
    stds = (1 + spread) ** rng.uniform(-1, 1, records)
    membership = np.zeros((models + targets, records), dtype=bool)
    for record in range(records):
        # Numbers of models differ between records, as with independent random halves.
        inside = rng.integers(models // 3, models - models // 3 + 1)
        membership[rng.permutation(models)[:inside], record] = True
    membership[models:] = rng.random((targets, records)) < 0.5
    scores = means + leakage * membership + stds * rng.standard_normal(membership.shape)
    return scores[:models], membership[:models], scores[models:], membership[models:]


def twin(scores, membership, targets, online: bool, pooled: bool) -> np.ndarray:
    """Algorithm 1 of arXiv:2112.03570, record by record."""
    models, records = scores.shape
    fits = {}
    for side in (True, False):
        groups = [
            [scores[m, r] for m in range(models) if membership[m, r] == side]
            for r in range(records)
        ]
        if side and not online:
            continue
        squares = [sum((s - np.mean(g)) ** 2 for s in g) for g in groups]
        degrees = [len(g) - 1 for g in groups]
        common = sum(squares) / sum(degrees)
        fits[side] = [
            (np.mean(g), np.sqrt(common if pooled else s / d))
            for g, s, d in zip(groups, squares, degrees, strict=True)
        ]
    result = np.empty(targets.shape)
    for (t, r), score in np.ndenumerate(targets):
        out = stats.norm(*fits[False][r])
        ratio = stats.norm(*fits[True][r]).pdf(score) / out.pdf(score) if online else 1.0
        result[t, r] = np.log(ratio) if online else out.cdf(score)
    return result


@pytest.mark.parametrize("variance", ["pooled", "own"])
@pytest.mark.parametrize("seed", [0, 1])
def test_online_is_the_ratio_of_the_published_densities(variance, seed):
    scores, membership, targets, _ = shadow_models(seed=seed)
    found = lira(scores, membership, targets, variance=variance)
    expected = twin(scores, membership, targets, True, variance == "pooled")
    assert found == pytest.approx(expected, abs=1e-9, rel=1e-9)


@pytest.mark.parametrize("variance", ["pooled", "own"])
def test_offline_has_the_published_distribution_function(variance):
    scores, membership, targets, _ = shadow_models(seed=2)
    found = lira(scores, membership, targets, online=False, variance=variance)
    expected = twin(scores, membership, targets, False, variance == "pooled")
    assert special.ndtr(found) == pytest.approx(expected, abs=1e-9)


LIRAS = [
    partial(lira, online=online, variance=variance)
    for online in (True, False)
    for variance in ("pooled", "own")
]


@pytest.mark.parametrize("attack", [*LIRAS, rmia])
def test_order_of_models_and_records_and_the_unit_do_not_matter(attack):
    scores, membership, targets, _ = shadow_models(seed=7 if attack is rmia else 3)
    found, rng = attack(scores, membership, targets), np.random.default_rng(0)
    models, records = rng.permutation(len(scores)), rng.permutation(scores.shape[1])
    moved = (a[models][:, records] for a in (scores, membership))
    again = attack(*moved, targets[:, records])
    assert again == pytest.approx(found[:, records], rel=1e-9, abs=0)
    if attack is not rmia:
        scaled = attack(5 + 3 * scores, membership, 5 + 3 * targets)
        assert scaled == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("online", [True, False])
def test_the_area_is_that_of_two_normal_distributions(online):
    known = shadow_models(400, 200, 100, leakage=1.5, spread=0.0)
    found = attack_performance(lira(*known[:3], online=online), known[3])
    assert found.auc == pytest.approx(special.ndtr(1.5 / np.sqrt(2)), abs=0.008)
    assert found.tpr[0.01] == pytest.approx(special.ndtr(1.5 + special.ndtri(0.01)), abs=0.03)


@pytest.mark.parametrize(
    ("attack", "models", "seed"),
    [
        *((attack, 60, 0) for attack in LIRAS),
        *((partial(rmia, offline_a=a), 40, 0) for a in (None, 0.5)),
        *((attack, 60, 7) for attack in (score_difference, normal_ratio)),
        (partial(out_quantile, level=0.8), 60, 7),
    ],
)
def test_without_leakage_the_area_is_a_half(attack, models, seed):
    known = shadow_models(models, 200, 100, leakage=0.0, seed=seed)
    found = attack_performance(attack(*known[:3]), known[3])
    # Four standard deviations of the area of 10,000 and 10,000 scores.
    assert found.auc == pytest.approx(0.5, abs=4 * np.sqrt(2 / 12 / 1e4))


def test_offline_needs_no_model_with_the_record():
    scores, membership, targets, _ = shadow_models()
    rest = np.zeros_like(membership)
    found = lira(scores, rest, targets, online=False, variance="own")
    assert found == pytest.approx((targets - scores.mean(axis=0)) / scores.std(axis=0, ddof=1))
    with pytest.raises(ValueError, match=r"record 0 in 0 models, must have .* at least 2"):
        lira(scores, rest, targets)
    with pytest.raises(ValueError, match=r"variance='global' must be one of \['own', 'pooled'\]"):
        lira(scores, membership, targets, variance="global")  # type: ignore[arg-type]


def test_far_scores_keep_their_order():
    scores, membership, targets, _ = shadow_models()
    far = np.stack([targets[0] + 1e3, targets[0] + 2e3])
    low, high = lira(scores, membership, far, online=False)
    assert np.all(high > low)


def decision(score: float, out, inside, alpha: float) -> bool:
    """Algorithm 3 on one target, through the attack, which has its own twin."""
    scores = np.concatenate([out, inside])[:, None]
    membership = np.arange(len(scores))[:, None] >= len(out)
    return bool(normal_ratio(scores, membership, [[score]])[0, 0] >= -alpha)


@pytest.mark.parametrize("alpha", [0.1, 0.4])
def test_cross_fed_counts_are_those_of_algorithm_5(alpha):
    known = shadow_models(models=30, records=5)
    counts, n = cross_fed_mia(known[0], known[1], alpha)
    assert n == min(known[1].sum(axis=0).min(), (~known[1]).sum(axis=0).min())
    for r in range(5):
        out, inside = (side[:n] for side in sides(known[0], known[1], r))
        fp = sum(decision(out[j], out[:j] + out[j + 1 :], inside, alpha) for j in range(n))
        tp = sum(decision(inside[j], out, inside[:j] + inside[j + 1 :], alpha) for j in range(n))
        assert (int(counts.fp[r]), int(counts.tp[r])) == (fp, tp)
        assert (int(counts.n_out[r]), int(counts.n_in[r])) == (n, n)


@pytest.mark.parametrize("shadows", [2, 3])
def test_counts_are_those_of_algorithm_4(shadows):
    known = shadow_models(models=70, records=4, leakage=2.0)
    counts = measure_mia(known[0], known[1], 0.2, shadows=shadows)
    n = min(known[1].sum(axis=0).min(), (~known[1]).sum(axis=0).min()) // (2 * shadows + 1)
    assert n > 2
    for r in range(4):
        out, inside = sides(known[0], known[1], r)
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


def test_several_targets_of_the_false_positive_rate_are_rows():
    known = shadow_models(models=60, records=3)
    for measure in (lambda *a: cross_fed_mia(*a)[0], lambda *a: measure_mia(*a, shadows=3)):
        both = measure(known[0], known[1], [0.1, 0.5])
        assert both.shape == (2, 3)
        for k, alpha in enumerate((0.1, 0.5)):
            one = measure(known[0], known[1], alpha)
            assert np.array_equal(both.fp[k], one.fp)
            assert np.array_equal(both.fn[k], one.fn)


def test_rates_are_near_those_of_the_normal_distributions():
    known = shadow_models(models=300, records=40, leakage=2.0, spread=0.0)
    counts, n = cross_fed_mia(known[0], known[1], 0.1)
    assert counts.fp.sum() / (40 * n) == pytest.approx(0.1, abs=0.02)
    # Phi(2 - 1.2816) = .764 of the members pass.
    assert counts.tp.sum() / (40 * n) == pytest.approx(0.764, abs=0.04)


@pytest.mark.heavy
def test_the_posteriors_take_the_counts():
    known = shadow_models(models=90, records=2, leakage=2.0)
    counts, cluster = cross_fed_mia(known[0], known[1])
    correlated = correlated_attack_posterior(counts, 1e-5, cluster).joint.epsilon
    independent = attack_strength_posterior(measure_mia(known[0], known[1], shadows=4), 1e-5)
    assert 0 < correlated.mean < 10
    assert 0 < independent.epsilon.mean < 10


def test_too_few_models_and_equal_scores_name_the_record():
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


def sides(scores, membership, record: int) -> tuple[list[float], list[float]]:
    """Scores of the models without a record, and with it."""
    pairs = list(zip(scores[:, record], membership[:, record], strict=True))
    return [s for s, i in pairs if not i], [s for s, i in pairs if i]


def test_the_threshold_attack_is_that_of_the_loss():
    scores, membership, targets, inside = shadow_models(targets=40)
    found = score_threshold(scores, membership, targets)
    assert np.array_equal(found, targets)
    losses = -log_probability(targets)
    assert np.array_equal(np.argsort(found, axis=None), np.argsort(-losses, axis=None))
    assert attack_performance(found, inside).auc == attack_performance(-losses, inside).auc


def test_log_probability_is_that_of_the_margin():
    for p in (1e-12, 0.2, 0.5, 0.99):
        assert log_probability(math.log(p / (1 - p))) == pytest.approx(math.log(p), rel=1e-9)
    assert log_probability(-1e4) == -1e4


def test_differences_are_from_the_mean_without_the_record():
    scores, membership, targets, _ = shadow_models(seed=1)
    found = score_difference(scores, membership, targets)
    for (t, r), score in np.ndenumerate(targets):
        out, _ = sides(scores, membership, r)
        assert found[t, r] == pytest.approx(score - sum(out) / len(out), abs=1e-9)


@pytest.mark.parametrize("level", [0.3, 0.5, 0.9])
def test_quantiles_are_those_of_the_scores_without_the_record(level):
    scores, membership, targets, _ = shadow_models(models=60, seed=2)
    found = out_quantile(scores, membership, targets, level=level)
    for (t, r), score in np.ndenumerate(targets):
        out = sorted(sides(scores, membership, r)[0])
        place = level * (len(out) - 1)
        below, share = int(place), place - int(place)
        quantile = out[below] * (1 - share) + out[min(below + 1, len(out) - 1)] * share
        assert found[t, r] == pytest.approx(score - quantile, abs=1e-9)


def test_the_normal_ratio_decides_as_algorithm_3():
    scores, membership, targets, _ = shadow_models(records=30, seed=5, leakage=2.0)
    found = normal_ratio(scores, membership, targets)
    for alpha in (0.02, 0.1, 0.5, 0.9):
        for (t, r), score in np.ndenumerate(targets):
            out, inside = (np.array(side) for side in sides(scores, membership, r))
            m0, v0, m1, v1 = out.mean(), out.var(ddof=1), inside.mean(), inside.var(ddof=1)
            # Appendix D: the published R has the opposite sign.
            big_r = (m0 / v0 - m1 / v1) / (1 / v1 - 1 / v0)
            shape = ((m0 + big_r) / np.sqrt(v0)) ** 2
            square = (score + big_r) ** 2 / v0
            if v0 > v1:
                decision = square <= stats.ncx2.ppf(alpha, 1, shape)
            else:
                decision = square >= stats.ncx2.isf(alpha, 1, shape)
            assert (found[t, r] >= -alpha) == decision


def test_the_normal_ratio_orders_a_record_as_lira_with_own_variances():
    scores, membership, targets, _ = shadow_models(targets=25, seed=6)
    p_values = normal_ratio(scores, membership, targets)
    ratios = lira(scores, membership, targets, variance="own")
    for r in range(scores.shape[1]):
        assert np.array_equal(np.argsort(p_values[:, r]), np.argsort(ratios[:, r]))
    assert normal_ratio(-scores, membership, -targets) == pytest.approx(p_values, abs=1e-12)


test_a_level_needs_models = refused_changes(
    partial(out_quantile, *shadow_models()[:3]),
    {},
    ({"level": 1.0}, r"level=1.0 must be in \(0, 1\)"),
    ({"level": 0.99}, r"record \d out of \d+ models, must have each record out of at least 100"),
    ({"level": 0.02}, "must have each record out of at least 50"),
)


def test_a_level_of_a_tenth_needs_ten_models_and_no_more():
    scores, targets = np.arange(10.0)[:, None], np.ones((1, 1))
    out_quantile(scores, np.zeros((10, 1), dtype=bool), targets, level=0.9)
    with pytest.raises(ValueError, match="at least 10"):
        out_quantile(scores[:9], np.zeros((9, 1), dtype=bool), targets, level=0.9)


def twin_rmia_attack(scores, membership, targets, gamma=1.0, a=None, population=None) -> np.ndarray:
    """The definition in arXiv:2312.03262, with probabilities and loops."""

    def probability(margin: float) -> float:
        return 1 / (1 + np.exp(-margin))

    def mean_of(column, inside) -> float:
        p_in = [probability(s) for s, i in zip(column, inside, strict=True) if i]
        p_out = [probability(s) for s, i in zip(column, inside, strict=True) if not i]
        if a is not None:
            return 0.5 * ((1 + a) * np.mean(p_out) + (1 - a))
        return 0.5 * (np.mean(p_in) + np.mean(p_out)) if p_in else float(np.mean(p_out))

    result = np.empty(targets.shape)
    for (t, x), target in np.ndenumerate(targets):
        ratio = probability(target) / mean_of(scores[:, x], membership[:, x])
        if population is None:
            pairs = [
                (targets[t, z], mean_of(scores[:, z], membership[:, z]))
                for z in range(targets.shape[1])
                if z != x
            ]
        else:
            shadow, attacked = population
            pairs = [
                (attacked[t, z], mean_of(shadow[:, z], [False] * len(shadow)))
                for z in range(shadow.shape[1])
            ]
        result[t, x] = np.mean([ratio / (probability(s) / p) >= gamma for s, p in pairs])
    return result


@pytest.mark.parametrize("gamma", [0.8, 1.0, 1.3])
@pytest.mark.parametrize("a", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("known_population", [False, True])
def test_shares_are_those_of_the_definition(gamma, a, known_population):
    scores, membership, targets, _ = shadow_models(records=9, seed=4)
    population = None
    if known_population:
        others = shadow_models(records=6, seed=5, leakage=0.0)
        population = others[0], others[2]
    found = rmia(scores, membership, targets, gamma=gamma, offline_a=a, population=population)
    expected = twin_rmia_attack(scores, membership, targets, gamma, a, population)
    assert found == pytest.approx(expected, abs=1e-9)
    assert 0 < found.mean() < 1


def test_log_probabilities_are_another_scale_of_the_same():
    scores, membership, targets, _ = shadow_models(seed=6)
    logs = log_probability(scores), membership, log_probability(targets)
    assert np.array_equal(rmia(*logs, scale="log_probability"), rmia(scores, membership, targets))


def test_probabilities_too_small_for_a_float_are_compared():
    scores, membership, targets, _ = shadow_models(seed=9)
    found = rmia(scores - 2000, membership, targets - 2000)
    # log p is the margin there: the online ratio is the margin less a mean of the record's.
    assert np.isfinite(found).all()
    assert found.std() > 0.1


def test_members_are_separated_better_than_by_their_own_scores():
    known = shadow_models(40, 200, 20, leakage=1.5)
    found = attack_performance(rmia(*known[:3]), known[3]).auc
    assert found > attack_performance(known[2], known[3]).auc + 0.1


test_bad_options_are_named = refused_changes(
    partial(rmia, *shadow_models()[:3]),
    {},
    ({"gamma": 0.0}, "gamma=0.0 must be a finite number > 0"),
    ({"offline_a": 1.5}, r"offline_a=1.5 must be in \[0, 1\]"),
    ({"offline_a": -1.0}, "offline_a=-1.0 must be a finite number >= 0"),
    ({"scale": "loss"}, "scale='loss' must be one of"),
    ({"scale": "log_probability"}, "scores holds .* must be at most 0"),
    ({"population": np.zeros(3)}, "must be two arrays"),
    ({"population": (np.zeros((24, 2)), np.zeros((3, 4)))}, r"must have \[24, p\] and \[3, p\]"),
    ({"population": (np.full((24, 2), np.nan), np.zeros((3, 2)))}, r"population\[0\] holds nan"),
)


def test_one_record_has_no_others():
    scores, membership, targets, _ = shadow_models(records=1)
    with pytest.raises(ValueError, match="scores has 1 record, must have at least 2"):
        rmia(scores, membership, targets)
    population = shadow_models(records=4, seed=1)
    rmia(scores, membership, targets, population=(population[0], population[2]))


def test_figures_are_those_of_all_pairs():
    _, _, targets, inside = shadow_models(records=40, targets=5, seed=1)
    found = attack_performance(targets, inside, fpr=(0.1, 0.02))
    members, others = targets[inside], targets[~inside]
    pairs = [(x > y) + 0.5 * (x == y) for x in members for y in others]
    assert found.auc == pytest.approx(np.mean(pairs), abs=1e-12)
    for rate in (0.1, 0.02):
        passing = [t for t in others if np.mean(others > t) <= rate]
        assert found.tpr[rate] == max(np.mean(members > t) for t in passing)
    assert (found.members, found.non_members) == (members.size, others.size)


test_bad_membership_and_nan_are_named = refused(
    attack_performance,
    ([[0.1, 0.2]], [[True, True]], "2 members and 0 others, must have some of both"),
    ([[0.1, 0.2]], [[False, False]], "membership has 0 members and 2 others"),
    ([[0.1, 0.2]], [[True]], r"shape \(1, 1\), must be that of attacked, \(1, 2\)"),
    ([[0.1, 0.2]], [[1, 0]], "membership has dtype int64, must be bool"),
    ([[0.1, np.nan]], [[True, False]], "attacked holds nan"),
)


def at(array: np.ndarray, index: tuple[int, int], value: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


SCORES, MEMBERSHIP, TARGETS, _ = shadow_models()
NAN = "holds nan or infinity"
test_bad_arguments_are_named = refusals(
    *(
        (partial(attack, *given), message)
        for attack in ATTACKS
        for *given, message in (
            (at(SCORES, (3, 2), np.nan), MEMBERSHIP, TARGETS, rf"scores {NAN}.*1 of 168, .*\(3, 2"),
            (SCORES, MEMBERSHIP, at(TARGETS, (1, 0), np.inf), rf"targets {NAN}.* at index \(1, 0"),
            (SCORES[:, 0], MEMBERSHIP, TARGETS, r"shape \(24,\), must be \[models, records\]"),
            (SCORES, MEMBERSHIP[:-1], TARGETS, r"shape \(23, 7\), must be that of scores, \(24, 7"),
            (SCORES, MEMBERSHIP.astype(int), TARGETS, "membership has dtype int64, must be bool"),
            (SCORES, MEMBERSHIP, TARGETS[:, :-1], r"shape \(3, 6\), must be .* for 7 records"),
        )
    )
)


@pytest.mark.parametrize(
    ("attack", "side", "least"),
    [
        *((attack, side, 2) for attack in (lira, normal_ratio) for side in ("in", "out")),
        *((rmia, side, 1) for side in ("in", "out")),
        (score_difference, "out", 1),
    ],
)
def test_a_record_on_one_side_of_too_few_models_is_named(attack, side, least):
    scores, membership, targets, _ = shadow_models()
    membership[:, 4] = side == "out"
    membership[: least - 1, 4] = side == "in"
    among = {"in": "in", "out": "out of"}[side]
    message = rf"record 4 {among} {least - 1} models, must have .* least {least} \(fewer: 1 of 7"
    with pytest.raises(ValueError, match=message):
        attack(scores, membership, targets)
    membership[: least + 1, 4] = side == "in"
    attack(scores, membership, targets)


@pytest.mark.parametrize("side", ["in", "out"])
def test_equal_scores_of_a_record_have_no_spread_of_their_own(side):
    scores, membership, targets, _ = shadow_models()
    scores[membership[:, 5] == (side == "in"), 5] = 0.1
    message = f"scores of record 5 by the models that it is {side}.* are equal .* pooled variance"
    for attack in (normal_ratio, lambda *a: lira(*a, variance="own")):
        with pytest.raises(ValueError, match=message):
            attack(scores, membership, targets)
    assert np.isfinite(lira(scores, membership, targets)).all()
    with pytest.raises(ValueError, match="random seeds of their own"):
        lira(np.full_like(scores, 0.1), membership, targets)


def test_arguments_are_not_changed():
    known = shadow_models()
    before = [a.copy() for a in known]
    for attack in ATTACKS:
        attack(*known[:3])[:] = 0.0
    assert all(np.array_equal(a, b) for a, b in zip(known, before, strict=True))
