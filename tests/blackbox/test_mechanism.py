import math
from functools import partial

import numpy as np
import pytest
import torch
from refused_calls import refusals

from lightning_audit import PrivacyClaim
from lightning_audit.blackbox.mechanism import MechanismError, OutputSource, audit_mechanism
from lightning_audit.stats.tradeoff import ApproxDPTradeoff, GaussianTradeoff

ONE = ["a record"]


def laplace(data, rng, scale=1.0):
    return data + rng.laplace(0, scale)


def gaussian(data, rng):
    return np.asarray(data) + rng.normal(size=np.shape(data))


def test_correct_noise_passes_and_says_what_would_have_been_found():
    audit = audit_mechanism(laplace, 0.0, 1.0, (1.0, 0.0), max_samples=2000)
    assert audit.passed
    assert audit.samples == 2000
    assert 0.5 * 0.2689 < audit.detectable_error_rate < 0.2689
    assert "other data sets may show more" in str(audit)
    assert audit.epsilon_lower <= 1.0
    assert audit.estimate(0.1) == pytest.approx(1 - 0.1 * math.e, abs=0.1)


@pytest.mark.parametrize(
    "claim",
    [
        (0.5, 0.0),
        ApproxDPTradeoff(0.5, 1e-3),
        GaussianTradeoff(0.4),
        PrivacyClaim(epsilon=0.5, delta=1e-5),
        lambda alpha: 1 - np.asarray(alpha),  # perfect privacy
    ],
    ids=["pair", "epsilon", "mu", "claim", "function"],
)
def test_too_little_noise_is_refuted_whatever_the_claim_is_written_as(claim):
    audit = audit_mechanism(laplace, 0.0, 1.0, claim, max_samples=6000)
    assert audit.verdict.outcome == "VIOLATION"
    assert audit.log_e_value >= math.log(1000)
    assert 0 < audit.epsilon_lower <= 1.0
    assert audit.samples < 6000
    assert "epsilon is at least" in str(audit)


def test_the_claim_of_a_whole_training_is_its_composed_epsilon():
    claim = PrivacyClaim(noise_multiplier=2.0, sample_rate=0.1, steps=20, delta=1e-5)
    audit = audit_mechanism(laplace, 0.0, 0.1, claim, max_samples=600)
    assert (audit.claim, audit.delta) == (ApproxDPTradeoff(claim.composed_epsilon(), 1e-5), 1e-5)


def test_too_few_outputs_are_inconclusive_and_never_a_pass():
    audit = audit_mechanism(laplace, 0.0, 1.0, (1.0, 0.0), max_samples=64)
    assert (audit.verdict.outcome, audit.verdict.advice) == ("INCONCLUSIVE", "raise max_samples")
    large = audit_mechanism(laplace, 0.0, 1.0, (9.0, 0.0), max_samples=2000)
    assert large.verdict.outcome == "INCONCLUSIVE"
    assert "not even a perfect attack could be found" in large.verdict.pass_blockers[0]


def test_a_mechanism_without_noise_is_refuted_and_one_that_ignores_its_data_passes():
    audit = audit_mechanism(lambda data, rng: data, 0.0, 1.0, (2.0, 1e-5))
    assert audit.verdict.outcome == "VIOLATION"
    assert audit.samples < 200
    for output in (0.0, np.zeros(3)):
        ignores = audit_mechanism(lambda data, rng, o=output: o, 0, 1, (1.0, 0.0), max_samples=500)
        assert ignores.passed


def test_outputs_may_be_arrays_of_any_shape_integers_booleans_and_tensors():
    shift = np.zeros((3, 4))
    shift[1, 2] = 1.0

    def as_tensor(data, rng):
        return torch.tensor(gaussian(data, rng), requires_grad=True)

    for mechanism in (gaussian, as_tensor):
        audit = audit_mechanism(mechanism, 0 * shift, 3 * shift, (0.5, 1e-5))
        assert audit.verdict.outcome == "VIOLATION"

    def coin(data, rng):
        return bool(rng.random() < data)

    assert audit_mechanism(coin, 0.3, 0.7, (1.0, 0.0), max_samples=1500).passed
    assert not audit_mechanism(coin, 0.1, 0.9, (1.0, 0.0), max_samples=1500).passed


def test_an_audit_is_repeated_by_its_seed():
    def run(rng):
        audit = audit_mechanism(laplace, 0.0, 1.0, (0.8, 0.0), max_samples=400, rng=rng)
        return audit.log_e_value, audit.samples, audit.estimate.alpha.tolist()

    assert run(3) == run(np.random.default_rng(3))
    assert run(3) != run(4)


@pytest.mark.heavy
def test_a_true_claim_is_refuted_less_often_than_the_significance():
    runs, stated = 60, {"significance": 0.2, "max_samples": 600}
    audits = (audit_mechanism(laplace, 0, 1, (1.0, 0.0), rng=s, **stated) for s in range(runs))
    assert sum(audit.verdict.outcome == "VIOLATION" for audit in audits) <= 0.2 * runs


test_one_data_set_twice_is_refused = refusals(
    *(
        (
            partial(audit_mechanism, laplace, d0, d1, (1.0, 0.0)),
            r"^d0=.* and d1=.* must differ: .* one record in d1",
        )
        for d0, d1 in (
            *((ONE, ONE), ((1, "a"), (1, "a")), (np.array(["a"]), np.array(["a"]))),
            (torch.zeros(2, 3), torch.zeros(2, 3)),
        )
    )
)


class Incomparable:
    def __eq__(self, other):
        raise RuntimeError("records have no equality")

    __hash__ = None


@pytest.mark.parametrize(
    ("d0", "d1"),
    [
        (np.zeros(5), np.zeros(6)),
        (torch.zeros(5), torch.zeros(5, dtype=torch.float64)),
        (torch.zeros(5), np.zeros(5)),
        (np.array([Incomparable()]), np.array([Incomparable()])),
        ({"a": np.zeros(2)}, {"a": np.zeros(2)}),
        ([Incomparable()], [Incomparable()]),
    ],
)
def test_data_sets_of_any_type_that_may_differ_are_audited(d0, d1):
    assert audit_mechanism(lambda data, rng: 0.0, d0, d1, (1.0, 0.0), max_samples=500).passed


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"mechanism": 3}, TypeError, "mechanism=3 must be a function"),
        ({"claim": "8"}, TypeError, "claim='8' must be"),
        ({"claim": PrivacyClaim(noise_multiplier=1.0)}, ValueError, "has no delta"),
        ({"claim": lambda a: 0 * np.asarray(a)}, ValueError, "promises no privacy"),
        ({"significance": 0.0}, ValueError, r"significance=0\.0 must be"),
        ({"max_samples": 19}, ValueError, "max_samples=19 must be at least 20"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, kind, message):
    valid = {"mechanism": laplace, "d0": 0.0, "d1": 1.0, "claim": (1.0, 0.0)}
    with pytest.raises(kind, match=message):
        audit_mechanism(**{**valid, **arguments})


# --- Outputs of a mechanism are drawn in turn, checked, and refused with the call that failed.
def source(mechanism) -> OutputSource:
    return OutputSource(mechanism, (0, 1), np.random.default_rng(2))


def after(calls: int, returned):
    """A mechanism that returns something else from some call on."""
    seen = []

    def mechanism(data, rng):
        seen.append(data)
        return rng.normal() if len(seen) <= calls else returned(data)

    return mechanism


def fails(data):
    raise KeyError("age")


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (after(0, fails), r"mechanism\(d0, rng\) raised KeyError: 'age' \(call 1\)\."),
        (after(4, lambda d: math.nan), r"mechanism\(d0, rng\) returned 1 of 1 numbers that are no"),
        (after(1, lambda d: np.ones(3)), r"d1, rng\) returned shape \(3,\) after \(\); outputs mu"),
        (after(0, lambda d: "text"), "returned str of dtype <U4 and shape .* return real numbers"),
        (after(0, lambda d: []), "returned list of dtype float64 and shape .0,.; return real"),
        (after(0, lambda d: [[1.0], [1.0, 2.0]]), "returned list: setting an array element"),
        (after(2, lambda d: -1e200), "returned numbers beyond 1e.100; rescale them .call 3"),
    ],
)
def test_what_is_wrong_with_a_mechanism_is_told(mechanism, message):
    with pytest.raises(MechanismError, match=message):
        source(mechanism).draw(5)


def test_outputs_of_both_data_sets_are_drawn_in_turn_from_one_generator():
    calls = []

    def mechanism(data, rng):
        calls.append(data)
        return [[data + rng.random(), 1], [2, 3]]

    drawn = source(mechanism)
    p, q = drawn.draw(3)
    assert (calls, drawn.shape) == ([0, 1, 0, 1, 0, 1], (2, 2))
    assert p.shape == q.shape == (3, 2, 2)
    expected = np.random.default_rng(2).random(6)
    assert p[:, 0, 0] == pytest.approx(expected[::2])
    assert q[:, 0, 0] == pytest.approx(1 + expected[1::2])
