"""The anytime bound on the run's epsilon, where the true noise varies without being declared."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opacus.optimizers import DPOptimizer
from scipy import stats
from stages import most_failures, staged
from trained import check
from training_support import PrivateModule

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase, StepHistory
from lightning_audit.accounting.spending import (
    cheapest,
    epsilon_at_ratio,
    epsilon_of_parts,
)
from lightning_audit.checks.accounting import LeakageBound, StudentBound
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.record.store import (
    INJECTED,
    NOT_PLANNED,
    Observation,
    RecordHeader,
    restore,
    snapshot,
)
from lightning_audit.results.audit_report import EpsilonBound
from lightning_audit.run.epsilons import betting_bound, end_bound, literature_bounds, mu_bound
from lightning_audit.stats.canary_bets import LeakageBet, LeastLogs, ProvedPart, score_mu
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson,
    mu_clopper_pearson,
)
from lightning_audit.stats.named_bounds import BOUND_NAMES, METHODS
from lightning_audit.stats.tradeoff import SubsampledGaussianTradeoff, gaussian_epsilon

K = 8


DELTA = 1e-5


HEADER = RecordHeader(tuple(f"canary {i}" for i in range(K)), ("weight",), (4,), 2)


MU_METHODS = [name for name in BOUND_NAMES if METHODS[name].quantity == "mu"]


class OfBounds(AuditMonitor):
    """Takes in what the bounds are made of, and leaves the tests aside."""

    def _test(self, seen: Observation) -> None:
        self.student.update(seen)
        self.guesses.update(seen)


def filled(header: RecordHeader, **fields: Any) -> np.ndarray:
    """Entries of a run at clipping norm 1 and 16 records a step."""
    entries = np.zeros(len(fields["coins"]), dtype=header.dtype)
    given = {"step": np.arange(len(entries)), "max_grad_norm": 1.0, "scale": 16.0, **fields}
    for name, values in given.items():
        entries[name] = values
    return entries


def taken_in(entries: np.ndarray, header: RecordHeader, kind: type = AuditMonitor) -> Any:
    made = kind(header, 1e-3)
    for seen in Observation.blocks(entries, header.planned_end):
        made.update(seen)
    return made


def monitor(
    steps: int = 40,
    *,
    sigma: Any = 1.0,
    noise: float = 1.0,
    rate: float = 0.1,
    status: int = INJECTED,
    seed: int = 0,
    header: RecordHeader = HEADER,
    kind: type[AuditMonitor] = AuditMonitor,
) -> AuditMonitor:
    """The checks after a run whose true noise is ``noise`` times the claimed one."""
    rng = np.random.default_rng(seed)
    claims = np.broadcast_to(sigma, (steps,))
    p = header.coin_probability
    coins = rng.integers(0, 2, (steps, K)) if p == 0.5 else rng.random((steps, K)) < p
    entries = filled(
        HEADER,
        canaries=status,
        noise_multiplier=claims,
        sample_rate=rate,
        coins=coins,
        readings=coins + noise * claims[:, None] * rng.standard_normal((steps, K)),
        tensor_squares=rng.chisquare(4, (steps, 1)),
    )
    return taken_in(entries, header, kind)


def by_name(made: AuditMonitor, significance: float = 0.05) -> dict[str, EpsilonBound]:
    return {bound.name: bound for bound in literature_bounds(made, DELTA, significance)}


def betting(made: AuditMonitor, level: float = 0.05) -> EpsilonBound:
    return betting_bound(made, DELTA, level)


def counts_of(made: AuditMonitor) -> ConfusionCounts:
    return made.guesses.middle


def test_every_bound_comes_with_its_labels():
    found = literature_bounds(monitor(), DELTA, 0.01)
    assert tuple(bound.name for bound in found) == BOUND_NAMES
    katz = found[BOUND_NAMES.index("katz")]
    assert katz.epsilon_lower is katz.mu_lower is None
    assert katz.delta == 0.0
    for bound in found:
        method = METHODS[bound.name]
        assert bound.significance == 0.01
        assert bound.interpretation == method.interpretation
        assert (bound.threshold, bound.looks) == ("fixed", "single")
        assert set(method.assumptions) < set(bound.assumptions)
        assert {"canaries of a step independent", "steps independent"} < set(bound.assumptions)
        said = " ".join(bound.assumptions)
        assert ("first noise multiplier only" in said) == (bound.name == "fdp_t")
        assert ("threshold half way" in said) == (bound.name != "fdp_t")
        assert ("the step is a Gaussian mechanism" in said) == (
            method.quantity == "epsilon" and bound.name != "katz"
        )
        assert ("epsilon of the run from mu" in said) == (bound.name != "katz")


def test_bounds_of_a_step_are_the_methods_own_and_are_composed_over_the_run():
    made = monitor(200, seed=2)
    found, counts = by_name(made), counts_of(made)
    mu = float(mu_clopper_pearson(counts, 0.05))
    assert mu > 0
    assert found["fdp_cp"].mu_lower == mu
    assert found["fdp_cp"].epsilon_step_lower == float(gaussian_epsilon(mu, DELTA))
    # At noise multiplier 1 the ratio of leakage to claim is mu.
    assert found["fdp_cp"].epsilon_lower == epsilon_at_ratio(made.history, mu, DELTA)
    step = float(epsilon_clopper_pearson(counts, DELTA, 0.05))
    assert step > 0
    assert found["eps_cp"].epsilon_step_lower == step
    assert float(gaussian_epsilon(found["eps_cp"].mu_lower, DELTA)) == pytest.approx(step, rel=1e-6)
    assert found["fdp_t"].mu_lower == made.student.mu_lower(0.05)[0]


def test_without_a_canary_there_is_no_bound_and_of_few_steps_a_small_one():
    for steps, status in ((0, INJECTED), (30, NOT_PLANNED)):
        assert literature_bounds(monitor(steps, status=status), DELTA, 0.05) == ()
    for bound in itertools.chain(*(literature_bounds(monitor(n), DELTA, 0.05) for n in (1, 2, 3))):
        assert 0 <= bound.epsilon_step_lower < 10
        assert bound.mu_lower is None or bound.mu_lower >= 0


def test_no_noise_at_all_is_no_error_and_the_scores_bound_is_infinite():
    found = by_name(monitor(300, noise=0.0))
    of_scores = found["fdp_t"]
    assert of_scores.mu_lower == of_scores.epsilon_lower == of_scores.epsilon_step_lower == math.inf
    for name in set(BOUND_NAMES) - {"fdp_t", "katz"}:
        assert found[name].epsilon_lower > 3
        assert found[name].mu_lower > 1.0


def test_an_unknown_sample_rate_leaves_the_steps_bounds():
    for noise in (1.0, 0.0):
        for bound in literature_bounds(monitor(300, rate=math.nan, noise=noise), DELTA, 0.05):
            assert bound.epsilon_lower is None
            # Katz' limit needs errors of each kind: without noise there are none.
            assert bound.epsilon_step_lower > 0 or (bound.name == "katz" and noise == 0.0)


def test_a_schedule_is_bounded_by_its_least_noise():
    made = monitor(300, sigma=np.repeat([2.0, 0.5, 1.0], 100))
    assert made.guesses.least_noise == 0.5
    found = by_name(made)
    mu = found["fdp_cp"].mu_lower
    assert mu == float(mu_clopper_pearson(counts_of(made), 0.05))
    # mu bounds the leakiest step, which claims 1 / 0.5.
    assert found["fdp_cp"].epsilon_lower == epsilon_at_ratio(made.history, 0.5 * mu, DELTA)
    mu_t, first = made.student.mu_lower(0.05)
    assert first == 2.0
    assert found["fdp_t"].epsilon_lower == epsilon_at_ratio(made.history, 2.0 * mu_t, DELTA)


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_the_betting_bound_is_of_the_noise_at_the_look_that_proves_most(sigma):
    made = monitor(200, sigma=sigma)
    bound = betting(made)
    none = betting(monitor(20, sigma=0.0))
    assert (none.mu_lower, none.epsilon_lower, none.epsilon_step_lower) == (0.0, 0.0, 0.0)
    assert (bound.name, bound.looks) == ("betting", "anytime")
    assert bound.mu_lower == made.leakage.ratio_lower(0.05) / sigma > 0
    assert bound.epsilon_step_lower == float(gaussian_epsilon(bound.mu_lower, DELTA))


RARE = replace(HEADER, coin_probability=0.1)


def test_bounds_of_rare_coins_are_those_that_hold_for_them():
    made = monitor(300, header=RARE, seed=1)
    found, counts = by_name(made), counts_of(made)
    assert set(found) == set(BOUND_NAMES) - {"fdp_t"}
    assert found["fdp_cp"].mu_lower == float(mu_clopper_pearson(counts, 0.05)) > 0
    assert found["eps_cp"].epsilon_step_lower == float(epsilon_clopper_pearson(counts, DELTA, 0.05))
    assert betting(made).assumptions[0] == "private coins of probability 0.1"
    assert betting(monitor(20)).assumptions[0] == "fair private coins"


def test_in_the_subsampled_game_a_steps_epsilon_is_of_its_own_curve():
    def of_step(noise: float) -> float:
        return SubsampledGaussianTradeoff(noise, 0.1).epsilon_at(DELTA)

    game = replace(RARE, game="subsampled")
    # Nothing is composed over the run, which takes most of the time.
    made, known = (monitor(400, sigma=0.3, rate=math.nan, header=header) for header in (game, RARE))
    found, plain = by_name(made), by_name(known)
    assert set(found) == {"fdp_cp", "fdp_pooled_cp", "fdp_bayes", "eps_cp"}
    for name, bound in found.items():
        # What is proved of the mechanism, and so of the run, is the same.
        assert bound.mu_lower == plain[name].mu_lower > 0
        assert 0 < bound.epsilon_step_lower < plain[name].epsilon_step_lower
        assert any("joins it with probability 0.1" in said for said in bound.assumptions)
        assert not any("joins it" in said for said in plain[name].assumptions)
    cp, bound = found["fdp_cp"], betting(made)
    assert cp.epsilon_step_lower == pytest.approx(of_step(1 / cp.mu_lower))
    assert cp.epsilon_step_lower < of_step(0.3)
    assert 1.0 < bound.mu_lower < 1 / 0.3
    assert bound.epsilon_step_lower == pytest.approx(of_step(1 / bound.mu_lower))


def misses(
    runs: int, steps: int, sigma: float, significance: float, header: RecordHeader = HEADER
) -> dict[str, int]:
    """How often each bound on mu exceeds the true one, 1 / sigma."""
    fair = header.coin_probability == 0.5
    found = {name: 0 for name in MU_METHODS if fair or name != "fdp_t"}
    for seed in range(runs):
        made = monitor(steps, sigma=sigma, seed=seed, header=header, kind=OfBounds)
        for name in found:
            method = METHODS[name]
            if method.from_counts is None:
                mu = made.student.mu_lower(significance)[0]
            else:
                mu = float(method.from_counts(counts_of(made), DELTA, significance))
            found[name] += mu > 1 / sigma
    return found


@pytest.mark.parametrize(
    ("runs", "steps", "sigma", "p"),
    [
        (100, 15, 1.0, 0.5),
        (100, 30, 0.7, 0.1),
        pytest.param(2000, 40, 1.0, 0.5, marks=pytest.mark.nightly),
        pytest.param(2000, 40, 3.0, 0.5, marks=pytest.mark.nightly),
        pytest.param(2000, 12, 0.5, 0.5, marks=pytest.mark.nightly),
        pytest.param(300, 40, 0.7, 0.1, marks=pytest.mark.heavy),
    ],
)
def test_bounds_on_mu_miss_no_oftener_than_their_significance(runs, steps, sigma, p):
    significance = 0.1
    allowed = stats.binom.isf(1e-3, runs, significance)
    found = misses(runs, steps, sigma, significance, replace(HEADER, coin_probability=p))
    assert max(found.values()) <= allowed, found
    # Not because they are 0 everywhere: the sharpest of them misses at times.
    assert max(found.values()) > 0


WITNESSES, LEVEL = 64, 0.05


WITNESSED = RecordHeader(HEADER.canaries, ("weight",), (WITNESSES,), 2)


def entries_of(
    noise: np.ndarray, *, seed: int = 0, sigma: float = 1.0, rate: float = 0.01
) -> np.ndarray:
    """Entries of a run whose true noise is ``noise`` times the claimed one, by step."""
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, (len(noise), K))
    return filled(
        WITNESSED,
        canaries=INJECTED,
        noise_multiplier=sigma,
        sample_rate=rate,
        coins=coins,
        readings=coins + sigma * noise[:, None] * rng.standard_normal(coins.shape),
        tensor_squares=noise[:, None] ** 2 * rng.chisquare(WITNESSES, (len(noise), 1)),
    )


def monitor_of(entries: np.ndarray) -> AuditMonitor:
    return taken_in(entries, WITNESSED)


def truth(noise: np.ndarray, rate: float = 0.01, sigma: float = 1.0) -> float:
    sizes, counts = np.unique(sigma * noise, return_counts=True)
    phases = [Phase(float(s), rate, int(n)) for s, n in zip(sizes, counts, strict=True)]
    return epsilon_of_history(phases, DELTA)


def changing(*parts: tuple[float, int]) -> np.ndarray:
    return np.concatenate([np.full(steps, size) for size, steps in parts])


def of_a_running_maximum(monitor: AuditMonitor, level: float = LEVEL) -> float:
    """The largest ratio ever rejected, composed over all steps."""
    return epsilon_at_ratio(monitor.history, monitor.leakage.ratio_lower(level), DELTA)


def test_a_ratio_is_composed_over_the_steps_that_it_was_proved_of_alone():
    noise = changing((0.5, 100), (2.0, 1200))
    monitor = monitor_of(entries_of(noise))
    bound, true = betting(monitor), truth(noise)
    assert of_a_running_maximum(monitor) > 1.05 * true
    assert 0.4 * true < bound.epsilon_lower <= true
    assert any("composed over the steps up to a look" in said for said in bound.assumptions)


@pytest.mark.heavy
def test_noise_that_is_raised_as_readme_allows_never_gives_more_than_its_cost():
    noise = changing((1.0, 400), (1.5, 2600))
    monitor = monitor_of(entries_of(noise))
    assert of_a_running_maximum(monitor) > truth(noise) >= betting(monitor).epsilon_lower > 0


NOISES = {
    "constant": changing((1.0, 300)),
    "rises": changing((0.6, 60), (1.0, 60), (1.6, 200)),
    "falls": changing((1.5, 150), (0.7, 150)),
    "alternates": np.tile([0.6, 1.4], 150),
}


@pytest.mark.parametrize(
    ("name", "level"),
    staged(
        quick=[("rises", 0.05)],
        heavy=[("falls", 1e-4)],
        nightly=[("constant", 0.05), ("falls", 0.05), ("alternates", 1e-4)],
    ),
)
def test_bound_is_that_of_the_best_look_of_all(name, level):
    entries = entries_of(NOISES[name], seed=3)
    claims, leakage, looks = StepHistory(), LeakageBound(WITNESSED), []
    for t, entry in enumerate(entries, start=1):
        claims.add(1.0, 0.01)
        leakage.update(Observation.of(entry))
        looks.append((t, leakage._bet.growth))
    ratios = leakage._bet.ratios(level, looks, [(1.0, 0.01, len(entries))])
    # Of looks that prove less of fewer steps there is no need.
    best, largest = 0.0, 0.0
    for (n, _), ratio in reversed([*zip(looks, map(float, ratios), strict=True)]):
        if ratio > largest:
            best = max(best, epsilon_at_ratio(claims.phases(n), ratio, DELTA) or 0.0)
            largest = ratio
    found = epsilon_of_parts(claims, leakage.front(level), DELTA)
    # Looks are kept 3 % apart, and three parts are composed: less may be proved, a little.
    assert 0.93 * best <= found <= best


def test_what_was_proved_of_early_steps_is_never_lost():
    monitor, before = AuditMonitor(WITNESSED, 1e-3), 0.0
    for t, entry in enumerate(entries_of(changing((0.5, 100), (4.0, 400)))):
        monitor.update(Observation.of(entry))
        if t % 50 == 49:
            now = betting(monitor).epsilon_lower
            assert now >= 0.97 * before
            before = max(before, now)


def test_a_resumed_audit_has_the_same_bounds():
    whole, resumed = (AuditMonitor(WITNESSED, 1e-3) for _ in range(2))
    for t, entry in enumerate(entries_of(changing((0.5, 120), (2.0, 180)))):
        whole.update(Observation.of(entry))
        if t in (60, 150, 210):
            resumed = restore(snapshot(resumed))
        resumed.update(Observation.of(entry))
    for level in (0.05, 1e-4, 0.013):
        assert betting(resumed, level) == betting(whole, level)
        assert mu_bound(resumed, DELTA, level) == mu_bound(whole, DELTA, level)


def proved_at(ratio: float, taken: Sequence[Phase]) -> ProvedPart:
    """What a bet of equal stakes proves where each of its logs is that of this ratio."""
    sigma, rate, steps = np.array([astuple(phase) for phase in taken]).T
    mus = np.array([score_mu(each) for each in sigma])
    made = LeastLogs(1.0, True, mus, rate, np.full(len(taken), 0.3), steps, 0.0)
    needed = float(steps @ made.logs(ratio / sigma[:, None])[:, 0])
    return ProvedPart(ratio, int(steps.sum()), lambda: [replace(made, needed=needed)])


def test_a_part_is_composed_of_its_own_claims():
    claims = StepHistory()
    for sigma, rate in [(1.0, 0.01)] * 30 + [(2.0, 0.01)] * 20 + [(1.0, 0.01)] * 50:
        claims.add(sigma, rate)
    assert claims.phases() == (Phase(1.0, 0.01, 80), Phase(2.0, 0.01, 20))
    first = [Phase(1.0, 0.01, 30), Phase(2.0, 0.01, 10)]
    assert claims.phases(40) == tuple(first)
    assert claims.runs(60) == (Phase(1.0, 0.01, 30), Phase(2.0, 0.01, 20), Phase(1.0, 0.01, 10))
    assert [claims.noise_at(n) for n in (30, 31, 51, None)] == [1.0, 2.0, 1.0, 1.0]
    assert StepHistory().phases() == ()
    part = proved_at(0.8, first)
    found = epsilon_of_parts(claims, [part], DELTA)
    assert found < epsilon_at_ratio(first, 0.8, DELTA)
    (bet,) = part.logs()
    least = min(epsilon_of_history(course, DELTA) for course in cheapest(bet, first))
    assert 0.95 * least < found <= 1.002 * least
    assert epsilon_of_parts(claims, [], DELTA) == 0.0
    claims.add(1.0, None)
    assert epsilon_of_parts(claims, [part], DELTA) is None


def planned(steps: int, end: int | None) -> AuditMonitor:
    """The first steps of one training, which is much less private from step 200 on."""
    entries = entries_of(changing((1.0, 200), (0.1, 50)))[:steps]
    return taken_in(entries, replace(WITNESSED, planned_end=end), OfBounds)


def test_the_one_look_is_at_the_planned_end_and_stays_what_it_was_there():
    (bound,) = end_bound(planned(200, 200), DELTA, LEVEL)
    assert (bound.name, bound.looks, bound.significance) == ("at_end", "single", LEVEL)
    assert bound.epsilon_lower == epsilon_at_ratio([Phase(1.0, 0.01, 200)], bound.mu_lower, DELTA)
    # A training that goes on keeps the look, whatever its later steps are.
    assert end_bound(planned(250, 200), DELTA, LEVEL) == (bound,)
    assert end_bound(planned(250, 250), DELTA, LEVEL)[0].mu_lower > bound.mu_lower
    assert end_bound(planned(199, 200), DELTA, LEVEL) == ()
    assert end_bound(planned(200, None), DELTA, LEVEL) == ()
    whole = taken_in(entries_of(np.ones(20)), replace(WITNESSED, planned_end=15))
    assert end_bound(restore(snapshot(whole)), DELTA, LEVEL) == end_bound(whole, DELTA, LEVEL)


def test_there_is_no_look_at_the_end_without_one_claim_and_fair_coins():
    made = monitor(40, sigma=np.repeat([1.0, 2.0], 20), header=replace(HEADER, planned_end=40))
    rare = monitor(40, header=replace(RARE, planned_end=40))
    assert end_bound(made, DELTA, LEVEL) == end_bound(rare, DELTA, LEVEL) == ()


#: Data terms by the past's readings, coins and number; each is added to eight canaries.
DATA: dict[str, Any] = {
    "none": lambda rng, z, b, t: np.zeros(K),
    "follows the past": lambda rng, z, b, t: -0.5 * z,
    "follows past coins": lambda rng, z, b, t: 2.0 * (b - 0.5),
    "heavy tails": lambda rng, z, b, t: rng.standard_cauchy(K),
    "skewed": lambda rng, z, b, t: rng.exponential(2.0, K),
    "bursts": lambda rng, z, b, t: 10.0 * (rng.random(K) < 0.02),
    "first step": lambda rng, z, b, t: np.full(K, 1e4 * (t == 0)),
    "alternates": lambda rng, z, b, t: np.full(K, 5.0 * (-1) ** t),
    "only while ahead": lambda rng, z, b, t: rng.choice([-3.0, 3.0], K) * (z @ (2 * b - 1) > 4),
}


def read(coins: np.ndarray, readings: np.ndarray, sigma: float) -> Any:
    """What `StudentBound` reads of a step."""
    return SimpleNamespace(coins=coins, readings=readings, noise_multiplier=sigma)


@pytest.mark.parametrize("runs", staged(quick=[25], nightly=[1000]))
@pytest.mark.parametrize("data", list(DATA))
def test_the_look_at_the_end_is_false_no_oftener_than_its_level(data, runs):
    rng, found = np.random.default_rng(list(DATA).index(data)), []
    for _ in range(runs):
        bound, z, b = StudentBound(HEADER), np.zeros(K), np.zeros(K)
        for t in range(60):
            term = DATA[data](rng, z, b, t)
            b = rng.integers(0, 2, K).astype(float)
            z = b + term + rng.standard_normal(K)
            bound.update(read(b, z, 1.0))
        found.append(bound.mu_lower(LEVEL)[0])
    assert np.sum(np.array(found) > 1.0) <= most_failures(runs, LEVEL, 1000)
    assert np.median(found) > 0.5 or data != "none"


@pytest.mark.parametrize("runs", staged(quick=[30], nightly=[4000]))
@pytest.mark.parametrize("times", [1.0, 2.0, 4.0])
def test_the_look_at_the_end_holds_where_data_oppose_the_past_coins_of_weak_canaries(times, runs):
    """Group means over all readings missed in .09: their difference holds the data's balance."""
    rng, sigma, steps = np.random.default_rng(int(times)), 30.0, 60
    bounds = [StudentBound(HEADER) for _ in range(runs)]
    balance = np.zeros((runs, K))
    for _ in range(steps):
        coins = rng.integers(0, 2, (runs, K)).astype(float)
        data = -times * sigma * balance / math.sqrt(steps)
        readings = coins + data + sigma * rng.standard_normal((runs, K))
        for bound, b, z in zip(bounds, coins, readings, strict=True):
            bound.update(read(b, z, sigma))
        balance += coins - 0.5
    found = np.array([bound.mu_lower(LEVEL)[0] for bound in bounds])
    assert np.sum(found > 1.0 / sigma) <= most_failures(runs, LEVEL, 1000)


def test_mu_bound_states_what_it_rests_on():
    monitor = monitor_of(entries_of(changing((1.0, 290))))
    (bound,) = mu_bound(monitor, DELTA, LEVEL)
    assert (bound.name, bound.looks, bound.significance) == ("mu", "single", LEVEL)
    assert 0.8 < bound.mu_lower <= 1
    assert bound.epsilon_lower == epsilon_at_ratio(monitor.history, bound.mu_lower, DELTA)
    assert "signal and noise over their claims constant so far" in bound.assumptions
    assert any("both for any data" in said for said in bound.assumptions)
    assert mu_bound(AuditMonitor(WITNESSED, 1e-3), DELTA, LEVEL) == ()


class OtherNoise(DPOptimizer):
    """Adds noise of another multiplier than is stated."""

    taken = 0

    def true_noise(self, stated: float) -> float:
        raise NotImplementedError

    def add_noise(self) -> None:
        stated = self.noise_multiplier
        self.noise_multiplier = self.true_noise(stated)
        try:
            super().add_noise()
        finally:
            self.noise_multiplier = stated
        self.taken += 1


class RisingNoise(OtherNoise):
    """Less noise than stated at first, and more from step 80 on."""

    FACTORS = changing((0.6, 80), (2.0, 520))

    def true_noise(self, stated: float) -> float:
        return stated * self.FACTORS[min(self.taken, len(self.FACTORS) - 1)]


@pytest.mark.heavy
def test_noise_that_rises_undeclared_in_a_training_proves_no_more_than_it_costs(audited):
    module = PrivateModule(optimizer_class=RisingNoise, noise_multiplier=1.0)
    report = audited(module, on_violation="warn", steps=600)
    ((sigma, rate, steps),) = report.history
    assert (sigma, steps) == (1.0, 600)
    true = truth(RisingNoise.FACTORS, rate)
    assert 0.2 * true < next(b for b in report.bounds if b.name == "betting").epsilon_lower <= true


class StatedSchedule(DPOptimizer):
    """States a noise multiplier of 5 for 500 steps and of 1 then; adds noise of 2 throughout."""

    taken = 0

    def pre_step(self, *args: Any, **kwargs: Any) -> bool:
        self.noise_multiplier = 5.0 if self.taken < 500 else 1.0
        return super().pre_step(*args, **kwargs)

    def add_noise(self) -> None:
        stated, self.noise_multiplier = self.noise_multiplier, 2.0
        super().add_noise()
        self.noise_multiplier = stated
        self.taken += 1


@pytest.mark.heavy
def test_a_schedule_that_is_stated_and_not_applied_proves_no_more_than_the_noise_costs(audited):
    module = PrivateModule(optimizer_class=StatedSchedule, noise_multiplier=5.0)
    report = audited(module, on_violation="warn", steps=600)
    (rate,) = {rate for _, rate, _ in report.history}
    assert [(sigma, steps) for sigma, _, steps in report.history] == [(5.0, 500), (1.0, 100)]
    true = truth(np.full(600, 2.0), rate)
    assert 0.2 * true < report.epsilon_lower <= true
    assert check(report, "epsilon").evidence["epsilon_lower"] <= true


COURSES = {
    "rises": changing((1.0, 1000), (1.5, 9000)),
    "rises from half": changing((0.5, 300), (2.0, 9700)),
    "falls": changing((1.5, 5000), (1.0, 5000)),
    "falls late": changing((2.0, 9000), (0.5, 1000)),
    "alternates": np.tile([0.8, 1.25], 5000),
    "alternates slowly": np.tile(np.repeat([0.7, 1.4], 500), 10),
    "constant": np.ones(10_000),
}


RUNS = 200


def false_of(ratios: np.ndarray, steps: int, true: float) -> np.ndarray:
    """Which ratios cost more over the first steps than these did."""
    order = np.argsort(ratios)

    def too_large(place: int) -> bool:
        ratio = float(ratios[order[place]])
        return epsilon_of_history([Phase(1.0 / ratio, 0.01, steps)], DELTA) > true

    low, high = int(np.sum(ratios <= 0)), len(ratios)  # the first that is too large
    while low < high:
        middle = high - 1 if high == len(ratios) else (low + high) // 2
        if too_large(middle):
            high = middle
        else:
            low = middle + 1
    found = np.zeros(len(ratios), dtype=bool)
    found[order[high:]] = True
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("course", list(COURSES))
def test_no_look_proves_more_than_its_steps_cost_beyond_its_level(course):
    noise = COURSES[course]
    rng = np.random.default_rng(list(COURSES).index(course))
    bet = LeakageBet((RUNS, K), planned_steps=len(noise))
    looks = np.unique(np.geomspace(20, len(noise), 25).astype(int))
    looks = np.unique([*looks, 300, 400, 1000, 1100, 5000, 5500, 9000])
    missed, last = np.zeros(RUNS, dtype=bool), np.zeros(RUNS)
    for t, size in enumerate(noise, start=1):
        coins = rng.integers(0, 2, (RUNS, K)).astype(float)
        bet.update(coins, coins + size * rng.standard_normal((RUNS, K)), 1.0, 0.01)
        if t in looks:
            (last,) = bet.ratios(LEVEL, [(t, bet.growth)], [(1.0, 0.01, t)])
            missed |= false_of(last, t, truth(noise[:t]))
    print(f"\n{course}: {missed.mean():.3f} false at some look, median ratio {np.median(last):.3f}")
    assert missed.mean() <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)
    assert np.median(last) > 0
