import math

import numpy as np
import pytest
from scipy import stats
from simulated_record import LABELS, SIGNIFICANCE, header, monitor_of, simulate, violated
from stages import staged

from lightning_audit.accounting.history import Phase
from lightning_audit.checks import accounting
from lightning_audit.checks.monitor import AuditMonitor, replay
from lightning_audit.record.store import INJECTED, Observation, restore, snapshot
from lightning_audit.results.audit_report import CheckResult


@pytest.mark.parametrize(
    ("spent", "claimed", "status"),
    [
        (1.0, 1.0, "ok"),
        (0.5, 8.0, "ok"),
        (1.0099, 1.0, "ok"),  # composition's own inaccuracy: 1 %
        (1.0101, 1.0, "violated"),
        (8.079, 8.0, "ok"),
        (8.081, 8.0, "violated"),
        (0.02, 0.01, "violated"),
        (0.0099, 1e-9, "violated"),
        (math.inf, 8.0, "violated"),
    ],
)
def test_steps_may_cost_a_little_over_the_claim(spent, claimed, status):
    result = accounting.accounting_result(spent, claimed, 1e-5, "the accountant")
    assert (result.status, result.kind) == (status, "accounting")
    assert accounting.exceeds(spent, claimed) == (status == "violated")
    assert bool(result.advice) == (status == "violated")
    if spent == math.inf:
        assert result.advice == "noise_multiplier, which must be above 0"
    assert f"epsilon {spent:.4g} at delta 1e-05 as privacy loss distributions (sp" in result.message
    assert result.message.endswith(f"the accountant says {claimed:.4g} (claimed)")
    evidence = {"epsilon_spent": spent, "claimed_epsilon": claimed, "delta": 1e-5}
    assert result.evidence == evidence


def test_what_replacing_costs_is_told_beside_what_removing_does():
    result = accounting.accounting_result(16.0, 8.0, 1e-5, "the accountant", 7.9)
    assert "epsilon 16 at delta 1e-05 if a record is replaced as privacy" in result.message
    assert result.evidence["epsilon_by_removal"] == 7.9
    assert "adding or removing one costs only 7.9, which is what Opacus'" in result.message
    # Steps that cost too much in either way are wrong by their number.
    more = accounting.accounting_result(32.0, 8.0, 1e-5, "the accountant", 15.0)
    assert "stop earlier" in more.advice


@pytest.mark.parametrize(
    ("spent", "claimed", "why"),
    [(None, 8.0, "the sample rate is unknown"), (8.0, None, "no epsilon is claimed")],
)
def test_an_unknown_is_not_compared(spent, claimed, why):
    result = accounting.accounting_result(spent, claimed, 1e-5, "the accountant")
    assert result.status == "not_run"
    assert why in result.message


def naive(entries: np.ndarray) -> list[list[int]]:
    """Counts by threshold (fn, tp, fp, tn), by plain loops over the whole past."""
    counts = [[0, 0, 0, 0] for _ in range(5)]
    past: list[np.ndarray] = []
    for entry in entries:
        if entry["canaries"] != INJECTED:
            continue
        for canary, (coin, reading) in enumerate(
            zip(entry["coins"].tolist(), entry["readings"].tolist(), strict=True)
        ):
            centre = sum(p[canary] for p in past) / (len(past) + 10)
            for i, offset in enumerate((-2, -1, 0, 1, 2)):
                guessed_in = reading - centre > (0.5 + offset * float(entry["noise_multiplier"]))
                place = {(1, 0): 0, (1, 1): 1, (0, 1): 2, (0, 0): 3}[coin, int(guessed_in)]
                counts[i][place] += 1
        past.append(entry["readings"] - entry["coins"])
    return counts


SIMULATED = {
    "healthy": {},
    "schedule": {"sigma": np.geomspace(3.0, 0.5, 60)},
    "data": {"data": 0.5},
    "some steps": {"every": 3},
    "dropped": {"dropped": range(0, 60, 7)},
    "less noise": {"noise": 0.2},
}


@pytest.mark.parametrize("name", SIMULATED)
def test_counts_are_those_of_plain_loops(name):
    made, entries = simulate(60, **SIMULATED[name])  # type: ignore[arg-type]
    guesses, expected = monitor_of((made, entries)).guesses, naive(entries)
    assert [[p.fn, p.tp, p.fp, p.tn] for p in guesses.points] == expected
    middle = guesses.middle
    assert [middle.fn, middle.tp, middle.fp, middle.tn] == expected[2]
    canaries = int((entries["canaries"] == INJECTED).sum()) * len(made.canaries)
    assert {sum(row) for row in expected} == {canaries}


def test_thresholds_are_told_at_the_first_steps_noise_and_the_least_noise_is_kept():
    guesses = monitor_of(simulate(40, sigma=[2.0] * 10 + [1.0] * 20 + [3.0] * 10)).guesses
    assert [point.threshold for point in guesses.points] == [-3.5, -1.5, 0.5, 2.5, 4.5]
    assert guesses.least_noise == 1.0
    # That is of steps with canaries alone.
    for least, sigma in ((1.0, [1.0, 2.0, 2.0]), (2.0, [2.0, 1.0, 1.0])):
        assert monitor_of(simulate(30, sigma=sigma * 10, every=3)).guesses.least_noise == least
    middle = monitor_of(simulate(50, noise=0.0)).guesses.middle
    assert (middle.fn, middle.fp, middle.tp + middle.tn) == (0, 0, 400)


def test_a_reading_at_the_threshold_is_guessed_out():
    made, entries = simulate(1)
    entries["readings"][0], entries["coins"][0] = 0.5, 0
    guesses = accounting.Guesses(made)
    guesses.update(Observation.of(entries[0]))
    assert guesses.middle.tn == len(made.canaries)


#: Of the verdict's check on epsilon.
LEVEL = accounting.EPSILON.share * SIGNIFICANCE


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("data", [0.0, 1.0])
def test_correct_mechanism_leaks_at_most_its_claim(seed, sigma, data):
    monitor = monitor_of(simulate(150, seed=seed, sigma=sigma, data=data))
    assert monitor.leakage.ratio_lower(LEVEL) <= 1
    assert monitor.signal_over_noise(0.05).ratio_lower <= 1


@pytest.mark.parametrize("fault", [{"noise": 0.5}, {"shift": 2.0}])
def test_bounds_are_above_the_claim_where_twice_as_much_leaks(fault):
    monitor = monitor_of(simulate(300, **fault))  # type: ignore[arg-type]
    lower = monitor.leakage.ratio_lower(LEVEL)
    assert 1.2 < lower <= 2
    assert lower <= monitor.leakage.ratio_lower(0.05) <= 2
    assert 1.6 < monitor.signal_over_noise(0.05).ratio_lower <= 2


def test_noise_and_clipping_too_small_alike_leave_mu_within_the_claim():
    found = monitor_of(simulate(300, noise=0.5, shift=0.5)).signal_over_noise(0.05)
    assert found.signal_lower <= 0.5 <= found.noise_upper < 0.53
    assert 0.7 < found.ratio_lower <= 1


@pytest.mark.parametrize("sigma", [0.01, 0.5, 20.0, 1e4])
def test_bounds_are_on_the_scale_of_the_claim_whatever_the_noise_multiplier(sigma):
    monitor = monitor_of(simulate(60, sigma=sigma))
    assert 0 <= monitor.leakage.ratio_lower(0.05) <= 1
    found = monitor.signal_over_noise(0.05)
    assert 0 <= found.signal_lower <= 1 <= found.noise_upper < 1.2


def test_bound_is_tight_up_to_a_fifth_after_two_thousand_readings():
    assert 0.8 < monitor_of(simulate(250, sigma=0.7)).leakage.ratio_lower(0.05) <= 1


def test_bounds_are_zero_before_anything_was_seen():
    assert accounting.LeakageBound(header()).ratio_lower(0.05) == 0.0
    assert accounting.LeakageBound(header()).front(0.05) == []
    guesses = accounting.Guesses(header())
    middle = guesses.middle
    assert (guesses.points, guesses.least_noise) == ((), math.inf)
    assert (middle.fn, middle.tp, middle.fp, middle.tn) == (0, 0, 0, 0)
    found = AuditMonitor(header(), SIGNIFICANCE).signal_over_noise(0.05)
    assert (found, found.ratio_lower) == (accounting.SignalOverNoise(0.0, math.inf), 0.0)
    # A step without any noise leaks without bound.
    found = monitor_of(simulate(60, noise=0.0)).signal_over_noise(0.05)
    assert (found.noise_upper, found.ratio_lower) == (0.0, math.inf)


def test_data_that_dominate_the_witnesses_make_the_bound_small_and_not_wrong():
    quiet, loud = (monitor_of(simulate(290, data=d)).signal_over_noise(0.05) for d in (0.0, 3.0))
    assert loud.noise_upper > 3
    assert loud.ratio_lower < 0.5 * quiet.ratio_lower


def test_bound_holds_and_grows_while_the_noise_multiplier_decays():
    sigma = np.geomspace(2.0, 0.4, 300)
    lower = [monitor_of(simulate(n, sigma=sigma[:n])).leakage.ratio_lower(0.05) for n in (100, 300)]
    assert lower == sorted(lower)
    assert 0.3 < lower[-1] <= 1
    assert 0.8 < monitor_of(simulate(300, sigma=sigma)).signal_over_noise(0.05).ratio_lower <= 1


def test_a_front_holds_each_ratio_with_the_steps_up_to_the_look_that_rejects_it():
    # Half of the noise for 100 steps, then four times the claim: what was proved of the first
    # steps stays proved of them, and of no later ones.
    first, entries = simulate(100, noise=0.5)
    _, later = simulate(300, noise=4.0)
    later["step"] += 100
    monitor = replay(first, np.concatenate([entries, later]), SIGNIFICANCE)
    ratios, steps = np.array([(part.ratio, part.steps) for part in monitor.leakage.front(0.05)]).T
    assert (np.diff(ratios) > 0).all()
    assert (np.diff(steps) < 0).all()
    assert ratios[-1] > 1.2
    assert 90 <= steps[-1] <= 120
    assert ratios[0] < 0.8
    assert monitor.leakage.ratio_lower(0.05) == ratios[-1]
    again = restore(snapshot(monitor))
    assert [(p.ratio, p.steps) for p in again.leakage.front(0.05)] == [
        *zip(ratios, steps, strict=True)
    ]
    assert again.signal_over_noise(0.05) == monitor.signal_over_noise(0.05)


# ------------------------------------------------------------------ false statements


def two_valued(runs: int, sigma: float) -> int:
    """Runs of two correct steps that are accused, data of two values 100 sigma apart."""
    made, entries = simulate(2, sigma=sigma)
    rng, k, accused = np.random.default_rng(round(10 * sigma)), len(LABELS), 0
    for _ in range(runs):
        coins = rng.integers(0, 2, (2, k)).astype(float)
        entries["coins"] = coins
        data = 100 * sigma * rng.integers(0, 2, (2, k))
        entries["readings"] = coins + data + sigma * rng.standard_normal((2, k))
        accused += bool(violated(replay(made, entries, SIGNIFICANCE)))
    return accused


@pytest.mark.parametrize("runs", staged(heavy=[300], nightly=[4000]))
@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.7])
def test_data_of_two_values_far_apart_accuse_no_correct_training(sigma, runs):
    # A t test accused 13 to 16 of 4,000.
    accused = two_valued(runs, sigma)
    print(f"\nsigma {sigma}: {accused} of {runs}")
    assert accused <= stats.binom.isf(0.01, runs, SIGNIFICANCE)


def doubled(seed: int, steps: int, at: int) -> AuditMonitor:
    """Clipping norm and noise twice the claim from a step on: mu is the claim's throughout."""
    made, entries = simulate(at, seed=seed)
    _, later = simulate(steps - at, seed=seed + 10_000, noise=2.0, shift=2.0)
    later["step"] += at
    monitor = AuditMonitor(made, SIGNIFICANCE)
    for entry in (*entries, *later):
        monitor.update(Observation.of(entry))
    return monitor


@pytest.mark.parametrize("steps", staged(quick=[310], nightly=[600, 1500]))
def test_signal_and_noise_that_double_together_bound_mu_by_the_claim(steps):
    found = doubled(0, steps, 300).signal_over_noise(0.05)
    # Limits from looks of their own each would give 1 over 2, or 2 over 1.
    assert 0.4 < found.ratio_lower <= 1
    assert found.signal_lower <= 2
    assert found.noise_upper >= 1


@pytest.mark.parametrize("runs", staged(heavy=[3], nightly=[30]))
@pytest.mark.parametrize(("at", "steps"), [(300, 350), (300, 600), (100, 800)])
def test_doubled_signal_and_noise_bound_mu_within_the_level(at, steps, runs):
    ratios = [doubled(seed, steps, at).signal_over_noise(0.05).ratio_lower for seed in range(runs)]
    print(f"\ndoubled at {at} of {steps}: median {np.median(ratios):.3f}, {np.max(ratios):.3f}")
    assert np.sum(np.array(ratios) > 1) <= stats.binom.isf(0.01, runs, 0.05)


@pytest.mark.parametrize("runs", staged(heavy=[40], nightly=[300]))
def test_quotient_of_signal_and_noise_misses_no_oftener_than_its_level(runs):
    significance = 0.2
    found = [
        monitor_of(simulate(40, seed=seed, sigma=0.5)).signal_over_noise(significance).ratio_lower
        for seed in range(runs)
    ]
    assert np.sum(np.array(found) > 1) <= stats.binom.isf(1e-3, runs, significance)
    assert np.median(found) > 0.7


# --- The accountant's history is held against the steps, one to one.

TAKEN = [Phase(1.0, 0.01, 40), Phase(1.2, 0.01, 10)]


def results(told: list[tuple[float, float, int]], **given: object) -> dict[str, CheckResult]:
    book = accounting.Ledger(hook="read", **given)  # type: ignore[arg-type]
    return {found.name: found for found in book.results(told, TAKEN)}


EARLIER = {"told_before": 30, "taken_before": 0}


@pytest.mark.parametrize(
    ("told", "earlier", "evidence"),
    [
        ([(1.0, 0.01, 40), (1.2, 0.01, 10)], {}, None),
        ([(1.0, 0.01, 70)], {}, None),  # of an earlier training
        ([(1.0, 0.01, 20)], {}, {"missing": 30}),
        # What was told before counts for no step of now, nor does its noise.
        ([(1.0, 0.01, 70)], EARLIER, {"missing": 10}),
        ([(1.0, 0.01, 80)], {"told_before": 40, "taken_before": 10}, None),
        ([(5.0, 0.01, 30), (1.2, 0.01, 50)], EARLIER, None),
        ([(5.0, 0.01, 31), (1.2, 0.01, 49)], EARLIER, {}),
        ([(2.0, 0.01, 50)], {}, {"told_noise": 2.0}),  # more than any step stated
    ],
)
def test_steps_and_noise_that_were_told_otherwise_are_found(told, earlier, evidence):
    found = results(told, **earlier)["ledger.accountant"]
    assert found.status == ("ok" if evidence is None else "violated")
    assert (evidence or {}).items() <= found.evidence.items()
    if evidence == {"missing": 30}:
        assert found.message == "the accountant recorded 20 of 50 steps"


@pytest.mark.parametrize(("hook", "part"), [("unread", "cannot be identified"), ("none", "no acc")])
def test_where_no_accountant_is_known_nothing_is_compared(hook, part):
    (found, *_) = accounting.Ledger(hook=hook).results([], TAKEN)
    assert found.status == "not_run"
    assert part in found.message
    assert found.evidence["hook"] == hook


def test_steps_on_one_batch_and_records_that_stand_twice_are_found():
    found = results([(1.0, 0.01, 50)], again=3, repeated=2)
    assert found["ledger.steps"].status == found["ledger.records"].status == "violated"
    found = results([(1.0, 0.01, 50)], unknown=3, repeated=0)
    assert found["ledger.steps"].status == found["ledger.records"].status == "ok"
    assert "for batches with several steps it is unknown" in found["ledger.steps"].message
    assert "ledger.records" not in results([(1.0, 0.01, 50)])


# --- The check `claim.stated`: a claim beside what the optimizer states.


@pytest.mark.parametrize(
    ("claimed", "stated", "above", "rounding", "promised"),
    [
        (2.0, 1.0, True, 1e-6, 1),
        (0.5, 1.0, True, 1e-6, -1),
        (1.0, 1.0 + 1e-9, True, 1e-6, 0),
        (0.5, 1.0, False, 1e-6, 1),
        (64 / 1797, 1 / 29, False, 1 / 29, 0),  # Opacus rounds to 1 / len(loader)
        (0.02, 1 / 29, False, 1 / 29, 1),
    ],
)
def test_a_claim_promises_more_or_less_than_is_stated(claimed, stated, above, rounding, promised):
    pair = accounting.StatedTwice("noise_multiplier", claimed, stated, above, rounding)
    assert pair.promised == promised
    result = accounting.claim_result([pair])
    assert result.status == ("violated" if promised > 0 else "ok")
    assert (f"noise_multiplier {claimed:.4g} is claimed" in result.message) == (promised > 0)
