from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refused_calls import refused_changes

from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson,
    epsilon_jeffreys,
    epsilon_katz,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.gaussian import mu_noncentral_t_from_scores
from lightning_audit.stats.named_bounds import BOUND_NAMES, METHODS, named_bound
from lightning_audit.stats.posteriors import epsilon_posterior_quantile, mu_posterior_quantile
from lightning_audit.stats.thresholds import (
    Fixed,
    Grid,
    Maximum,
    Simultaneous,
    Split,
    assumptions_of,
    words_of,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

DELTA, LEVEL, AT = 1e-4, 0.03, 0.6
RNG = np.random.default_rng(5)
INSIDE, OUTSIDE = 1.3 + RNG.standard_normal(400), RNG.standard_normal(350)
COUNTS = ConfusionCounts(
    fn=int((INSIDE <= AT).sum()),
    tp=int((INSIDE > AT).sum()),
    fp=int((OUTSIDE > AT).sum()),
    tn=int((OUTSIDE <= AT).sum()),
)

DIRECT: dict[str, Callable[[], Any]] = {
    "fdp_cp": lambda: mu_clopper_pearson(COUNTS, LEVEL),
    "fdp_pooled_cp": lambda: mu_pooled_clopper_pearson(COUNTS, LEVEL),
    "fdp_bayes": lambda: mu_posterior_quantile(LEVEL, COUNTS, region="one_sided"),
    "fdp_t": lambda: mu_noncentral_t_from_scores(INSIDE, OUTSIDE, LEVEL),
    "eps_cp": lambda: epsilon_clopper_pearson(COUNTS, DELTA, LEVEL),
    "eps_jeffreys": lambda: epsilon_jeffreys(COUNTS, DELTA, LEVEL),
    "eps_bayes": lambda: epsilon_posterior_quantile(LEVEL, COUNTS, DELTA, region="one_sided"),
    "katz": lambda: epsilon_katz(COUNTS, LEVEL),
}
WITH_RATES = ["fdp_cp", "eps_cp"]
BY_THRESHOLD = [name for name in BOUND_NAMES if name != "fdp_t"]
CHOICES: list[Any] = [Fixed(AT), Grid([0.0, AT, 1.2]), Split(), Maximum(), Simultaneous()]


def test_every_method_has_a_twin_here_and_its_own_name() -> None:
    assert set(DIRECT) == set(BOUND_NAMES)
    assert all(METHODS[name].name == name for name in BOUND_NAMES)
    assert [n for n in BOUND_NAMES if METHODS[n].from_rates is not None] == WITH_RATES
    assert [n for n in BOUND_NAMES if METHODS[n].from_counts is None] == ["fdp_t"]


@pytest.mark.parametrize("name", BOUND_NAMES)
def test_a_named_bound_is_what_the_function_gives(name: str) -> None:
    choice = None if name == "fdp_t" else Fixed(AT)
    bound = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, choice)
    value = float(DIRECT[name]())
    assert value > 0.3
    if METHODS[name].quantity == "mu":
        assert bound.mu_lower == value
        assert bound.epsilon_lower == float(gaussian_epsilon(value, DELTA))
    else:
        assert bound.mu_lower is None
        assert bound.epsilon_lower == value
    assert (bound.method, bound.significance, bound.valid) == (name, LEVEL, True)
    assert bound.delta == (0.0 if name == "katz" else DELTA)
    assert bound.interpretation == METHODS[name].interpretation
    rests = assumptions_of(choice) if choice else ()
    assert bound.assumptions == (*METHODS[name].assumptions, *rests)
    assert bound.threshold == (None if name == "fdp_t" else "fixed")
    assert bound.threshold_value == (None if name == "fdp_t" else AT)


@pytest.mark.parametrize("name", BY_THRESHOLD)
def test_the_threshold_is_split_off_unless_it_is_chosen(name: str) -> None:
    ours = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL)
    assert ours == named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Split())
    assert ours.valid
    assert ours.threshold == "searched"


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: type(c).__name__)
def test_a_method_without_a_threshold_takes_none(choice: Any) -> None:
    message = rf"threshold={type(choice).__name__}\(.* is not for method='fdp_t'.*leave it out"
    with pytest.raises(ValueError, match=message):
        named_bound("fdp_t", INSIDE, OUTSIDE, DELTA, LEVEL, choice)
    assert named_bound("fdp_t", INSIDE, OUTSIDE, DELTA, LEVEL).rule is None


@pytest.mark.parametrize("name", BY_THRESHOLD)
@pytest.mark.parametrize("choice", CHOICES[:4], ids=lambda c: type(c).__name__)
def test_each_choice_of_threshold_is_labelled(name: str, choice: Any) -> None:
    bound = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, choice)
    assert (bound.threshold, bound.rule) == (choice.label, words_of(choice))
    assert bound.valid == (not isinstance(choice, Maximum))
    assert bound.threshold_value is not None
    assert bound.epsilon_lower > 0


@pytest.mark.parametrize("name", WITH_RATES)
@pytest.mark.parametrize("band", ["berk_jones", "dkw"])
def test_bands_serve_the_methods_that_upper_limits_of_the_rates_determine(
    name: str, band: Any
) -> None:
    bound = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Simultaneous(band))
    assert bound.valid
    assert bound.threshold == "searched"
    best = named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Maximum())
    assert 0 < bound.epsilon_lower < best.epsilon_lower


@pytest.mark.parametrize("name", sorted(set(BY_THRESHOLD) - set(WITH_RATES)))
def test_the_other_methods_refuse_bands_and_say_what_to_do(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Simultaneous\(.*\) is not for method='{name}'.* Split"):
        named_bound(name, INSIDE, OUTSIDE, DELTA, LEVEL, Simultaneous())


@pytest.mark.parametrize("name", BOUND_NAMES)
def test_scores_that_tell_nothing_prove_nothing(name: str) -> None:
    same = np.tile([0.0, 1.0, 2.0], 100)
    at: tuple[Any, Any] = (None, None) if name == "fdp_t" else (Fixed(0.5), Fixed(-AT))
    assert named_bound(name, same, same, DELTA, LEVEL, at[0]).epsilon_lower == 0.0
    assert named_bound(name, -INSIDE, -OUTSIDE, DELTA, LEVEL, at[1]).epsilon_lower == 0.0


@pytest.mark.parametrize("name", WITH_RATES)
def test_upper_limits_above_chance_prove_nothing(name: str) -> None:
    from_rates = METHODS[name].from_rates
    assert from_rates is not None
    rates = np.array([1e-9, 0.3, 0.5, 0.9, 1.0])
    fnr, fpr = (grid.ravel() for grid in np.meshgrid(rates, rates))
    values = from_rates(fnr, fpr, DELTA)
    assert (values[fnr + fpr >= 1.0] == 0.0).all()
    assert (values[fnr + fpr < 0.99] > 0.0).all()


test_an_error_names_the_argument_and_what_is_allowed = refused_changes(
    named_bound,
    {
        "method": "fdp_cp",
        "scores_in": INSIDE,
        "scores_out": OUTSIDE,
        "delta": DELTA,
        "significance": LEVEL,
    },
    ({"method": "dp_sniper"}, r"method='dp_sniper'.*fdp_cp.*katz"),
    ({"delta": 0.0}, r"delta=0.0 must be in \(0, 1\).*for delta = 0 use the method katz"),
    ({"delta": 1.0}, r"delta=1.0"),
    ({"significance": 0.0}, r"significance=0.0"),
    ({"scores_in": [[1.0], [2.0]]}, r"scores_in has shape \(2, 1\)"),
    ({"scores_out": [0.0, np.nan]}, r"scores_out holds nan"),
)
