"""The anytime bound on the run's epsilon, where the true noise varies without being declared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opacus.optimizers import DPOptimizer
from stages import staged
from training_support import PrivateModule, fit

from lightning_audit import PrivacyAudit
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase, StepHistory
from lightning_audit.accounting.spending import (
    MOST_COMPOSED,
    cheapest,
    composed_epsilon,
    epsilon_at_ratio,
    epsilon_of_parts,
)
from lightning_audit.checks.accounting import LeakageBound
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.record.store import INJECTED, RecordHeader, restore, snapshot
from lightning_audit.run.epsilons import betting_bound, mu_bound
from lightning_audit.stats.canary_bets import LeakageBet, LeastLogs, ProvedPart, score_mu

K, WITNESSES, DELTA, LEVEL = 8, 64, 1e-5, 0.05
HEADER = RecordHeader(tuple(f"canary {i}" for i in range(K)), ("weight",), (WITNESSES,), 2)


def entries_of(
    noise: np.ndarray, *, seed: int = 0, sigma: float = 1.0, rate: float = 0.01
) -> np.ndarray:
    """Entries of a run whose true noise is ``noise`` times the claimed one, by step."""
    rng = np.random.default_rng(seed)
    steps = len(noise)
    entries = np.zeros(steps, dtype=HEADER.dtype)
    coins = rng.integers(0, 2, (steps, K))
    fields = {
        "step": np.arange(steps),
        "canaries": INJECTED,
        "noise_multiplier": sigma,
        "max_grad_norm": 1.0,
        "scale": 16.0,
        "sample_rate": rate,
        "coins": coins,
        "readings": coins + sigma * noise[:, None] * rng.standard_normal((steps, K)),
        "tensor_squares": noise[:, None] ** 2 * rng.chisquare(WITNESSES, (steps, 1)),
    }
    for name, values in fields.items():
        entries[name] = values
    return entries


def monitor_of(entries: np.ndarray) -> AuditMonitor:
    made = AuditMonitor(HEADER, 1e-3)
    for entry in entries:
        made.update(entry)
    return made


def truth(noise: np.ndarray, rate: float = 0.01, sigma: float = 1.0) -> float:
    sizes, counts = np.unique(sigma * noise, return_counts=True)
    phases = [Phase(float(s), rate, int(n)) for s, n in zip(sizes, counts, strict=True)]
    return epsilon_of_history(phases, DELTA)


def changing(*parts: tuple[float, int]) -> np.ndarray:
    return np.concatenate([np.full(steps, size) for size, steps in parts])


def of_a_running_maximum(monitor: AuditMonitor, level: float = LEVEL) -> float:
    """The largest ratio ever rejected, composed over all steps."""
    epsilon = epsilon_at_ratio(monitor.history, monitor.leakage.ratio_lower(level), DELTA)
    assert epsilon is not None
    return epsilon


def test_a_ratio_is_composed_over_the_steps_that_it_was_proved_of_alone() -> None:
    noise = changing((0.5, 100), (2.0, 1200))
    monitor = monitor_of(entries_of(noise))
    bound, true = betting_bound(monitor, DELTA, LEVEL), truth(noise)
    assert bound.epsilon_lower is not None
    assert of_a_running_maximum(monitor) > 1.05 * true
    assert 0.4 * true < bound.epsilon_lower <= true
    assert any("composed over the steps up to a look" in said for said in bound.assumptions)


@pytest.mark.heavy
def test_noise_that_is_raised_as_readme_allows_never_gives_more_than_its_cost() -> None:
    noise = changing((1.0, 400), (1.5, 2600))
    monitor = monitor_of(entries_of(noise))
    bound = betting_bound(monitor, DELTA, LEVEL).epsilon_lower
    assert bound is not None
    assert of_a_running_maximum(monitor) > truth(noise) >= bound > 0


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
        heavy=[
            ("falls", 1e-4),
            *((name, 0.05) for name in ("constant", "falls", "alternates")),
            *((name, 1e-4) for name in ("constant", "rises", "alternates")),
        ],
    ),
)
def test_bound_is_that_of_the_best_look_of_all(name: str, level: float) -> None:
    entries = entries_of(NOISES[name], seed=3)
    claims, leakage, looks = StepHistory(), LeakageBound(HEADER), []
    for t, entry in enumerate(entries):
        claims.add(1.0, 0.01)
        leakage.update(entry)
        looks.append((t + 1, leakage._bet.growth))
    ratios = leakage._bet.ratios(level, looks, [(1.0, 0.01, len(entries))])
    # Of looks that prove less of fewer steps there is no need.
    best, largest = 0.0, 0.0
    for (n, _), ratio in reversed([*zip(looks, map(float, ratios), strict=True)]):
        if ratio > largest:
            best = max(best, epsilon_at_ratio(claims.phases(n), ratio, DELTA) or 0.0)
            largest = ratio
    found = epsilon_of_parts(claims, leakage.front(level), DELTA)
    assert found is not None
    # Looks are kept 3 % apart, and three parts are composed: less may be proved, a little.
    assert 0.93 * best <= found <= best


def test_what_was_proved_of_early_steps_is_never_lost() -> None:
    entries = entries_of(changing((0.5, 100), (4.0, 400)))
    monitor, before = AuditMonitor(HEADER, 1e-3), 0.0
    for t, entry in enumerate(entries):
        monitor.update(entry)
        if t % 50 == 49:
            now = betting_bound(monitor, DELTA, LEVEL).epsilon_lower
            assert now is not None
            assert now >= 0.97 * before
            before = max(before, now)


def test_a_resumed_audit_has_the_same_bounds() -> None:
    entries = entries_of(changing((0.5, 120), (2.0, 180)))
    whole, resumed = AuditMonitor(HEADER, 1e-3), AuditMonitor(HEADER, 1e-3)
    for t, entry in enumerate(entries):
        whole.update(entry)
        if t in (60, 150, 210):
            resumed = restore(snapshot(resumed))
        resumed.update(entry)
    for level in (0.05, 1e-4, 0.013):
        assert betting_bound(resumed, DELTA, level) == betting_bound(whole, DELTA, level)
        assert mu_bound(resumed, DELTA, level) == mu_bound(whole, DELTA, level)


def test_few_parts_are_composed_however_many_ratios_are_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = monitor_of(entries_of(changing((0.5, 100), (2.0, 500))))
    assert len(monitor.leakage.front(LEVEL)) > 10
    composed = []

    def counted(history: Sequence[Phase], *args: Any, **options: Any) -> float | None:
        composed.append(history)
        return composed_epsilon(history, *args, **options)

    monkeypatch.setattr("lightning_audit.accounting.spending.composed_epsilon", counted)
    betting_bound(monitor, DELTA, LEVEL)
    assert len(composed) == MOST_COMPOSED


def proved_at(ratio: float, taken: Sequence[Phase]) -> ProvedPart:
    """What a bet of equal stakes proves where each of its logs is that of this ratio."""
    sigma, rate, steps = np.array([astuple(phase) for phase in taken]).T
    mus = np.array([score_mu(each) for each in sigma])
    made = LeastLogs(1.0, True, mus, rate, np.full(len(taken), 0.3), steps, 0.0)
    needed = float(steps @ made.logs(ratio / sigma[:, None])[:, 0])
    return ProvedPart(ratio, int(steps.sum()), lambda: [replace(made, needed=needed)])


def test_a_part_is_composed_of_its_own_claims() -> None:
    claims = StepHistory()
    for sigma, rate in [(1.0, 0.01)] * 30 + [(2.0, 0.01)] * 20 + [(1.0, 0.01)] * 50:
        claims.add(sigma, rate)
    assert claims.phases() == (Phase(1.0, 0.01, 80), Phase(2.0, 0.01, 20))
    assert claims.phases(40) == (Phase(1.0, 0.01, 30), Phase(2.0, 0.01, 10))
    assert claims.runs(60) == (
        Phase(1.0, 0.01, 30),
        Phase(2.0, 0.01, 20),
        Phase(1.0, 0.01, 10),
    )
    assert [claims.noise_at(n) for n in (30, 31, 51, None)] == [1.0, 2.0, 1.0, 1.0]
    assert StepHistory().phases() == ()
    first = [Phase(1.0, 0.01, 30), Phase(2.0, 0.01, 10)]
    part = proved_at(0.8, first)
    found = epsilon_of_parts(claims, [part], DELTA)
    at_ratio = epsilon_at_ratio(first, 0.8, DELTA)
    assert found is not None
    assert at_ratio is not None
    assert found < at_ratio
    assert found == pytest.approx(epsilon_of_history(cheapest(part.logs(), first), DELTA), rel=2e-3)
    assert epsilon_of_parts(claims, [], DELTA) == 0.0
    claims.add(1.0, None)
    assert epsilon_of_parts(claims, [part], DELTA) is None


def test_mu_bound_states_what_it_rests_on() -> None:
    monitor = monitor_of(entries_of(changing((1.0, 290))))
    (bound,) = mu_bound(monitor, DELTA, LEVEL)
    assert (bound.name, bound.looks, bound.significance) == ("mu", "single", LEVEL)
    assert 0.8 < bound.mu_lower <= 1
    assert bound.epsilon_lower == epsilon_at_ratio(monitor.history, bound.mu_lower, DELTA)
    assert "signal and noise over their claims constant so far" in bound.assumptions
    assert any("both for any data" in said for said in bound.assumptions)
    assert mu_bound(AuditMonitor(HEADER, 1e-3), DELTA, LEVEL) == ()


# ------------------------------------------------------------------ a real training


class RisingNoise(DPOptimizer):
    """Less noise than stated at first, and more from step 80 on."""

    FACTORS = changing((0.6, 80), (2.0, 520))
    taken = 0

    def add_noise(self) -> None:
        stated = self.noise_multiplier
        self.noise_multiplier = stated * self.FACTORS[min(self.taken, len(self.FACTORS) - 1)]
        try:
            super().add_noise()
        finally:
            self.noise_multiplier = stated
        self.taken += 1


@pytest.mark.heavy
def test_noise_that_rises_undeclared_in_a_training_proves_no_more_than_it_costs(
    tmp_path: Path,
) -> None:
    module = PrivateModule(optimizer_class=RisingNoise, noise_multiplier=1.0)
    audit = PrivacyAudit(seed=1, on_violation="warn", report_dir=tmp_path / "audit")
    report = fit(tmp_path, module, audit, max_steps=600)
    (sigma, rate, steps), *others = report.history
    assert (sigma, steps, others) == (1.0, 600, [])
    assert rate is not None
    true = truth(RisingNoise.FACTORS, rate)
    proved = next(b for b in report.bounds if b.name == "betting")
    assert proved.epsilon_lower is not None
    assert 0.2 * true < proved.epsilon_lower <= true


class StatedSchedule(DPOptimizer):
    """States a noise multiplier of 5 for 500 steps and of 1 then; adds noise of 2 throughout."""

    taken = 0

    def pre_step(self, *args: Any, **kwargs: Any) -> bool:
        self.noise_multiplier = 5.0 if self.taken < 500 else 1.0
        self.taken += 1
        return super().pre_step(*args, **kwargs)

    def add_noise(self) -> None:
        stated, self.noise_multiplier = self.noise_multiplier, 2.0
        try:
            super().add_noise()
        finally:
            self.noise_multiplier = stated


@pytest.mark.heavy
def test_a_schedule_that_is_stated_and_not_applied_proves_no_more_than_the_noise_costs(
    tmp_path: Path,
) -> None:
    module = PrivateModule(optimizer_class=StatedSchedule, noise_multiplier=5.0)
    audit = PrivacyAudit(seed=1, on_violation="warn", report_dir=tmp_path / "audit")
    report = fit(tmp_path, module, audit, max_steps=600)
    rates = {rate for _, rate, _ in report.history}
    assert [(sigma, steps) for sigma, _, steps in report.history] == [(5.0, 500), (1.0, 100)]
    (rate,) = rates
    assert rate is not None
    true = truth(np.full(600, 2.0), rate)
    assert report.epsilon_lower is not None
    assert 0.2 * true < report.epsilon_lower <= true
    (check,) = [check for check in report.checks if check.name == "epsilon"]
    sure = check.evidence["epsilon_lower"]
    assert isinstance(sure, float)
    assert sure <= true


# ------------------------------------------------------------------ two hundred runs

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
def test_no_look_proves_more_than_its_steps_cost_beyond_its_level(course: str) -> None:
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


@pytest.mark.heavy
@pytest.mark.parametrize("course", ["rises", "rises from half"])
def test_the_whole_audit_of_a_long_run_proves_no_more_than_it_costs(course: str) -> None:
    noise = COURSES[course]
    monitor = monitor_of(entries_of(noise))
    bound, true = betting_bound(monitor, DELTA, LEVEL).epsilon_lower, truth(noise)
    print(f"\n{course}: {bound} of {true}, running maximum {of_a_running_maximum(monitor)}")
    assert bound is not None
    assert of_a_running_maximum(monitor) > 1.3 * true
    assert 0.5 * true < bound <= true
