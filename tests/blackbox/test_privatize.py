from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lightning_audit.blackbox.outputs import MechanismError
from lightning_audit.blackbox.privatize import (
    PrivatizeViolation,
    assert_privatizes,
    audit_privatize,
)

SIGMA, NORM, BATCH, SHAPES = 1.5, 2.0, 32, [(4, 3), (5,)]


class Privatizer:
    """DP-SGD's gradient of a list of tensors, with one thing that may be wrong."""

    def __init__(self, fault: str = "", *, seed: int = 0, sigma: float = SIGMA, divisor=1.0):
        self.fault, self.sigma, self.divisor = fault, sigma, divisor
        self.generator = torch.Generator().manual_seed(seed)

    def factors(self, grads):
        flat = torch.cat([g.flatten(1) for g in grads], 1)
        norms = flat.norm(dim=1)
        match self.fault:
            case "no clipping":
                return [torch.ones_like(norms)] * len(grads)
            case "per tensor":
                return [(NORM / (g.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1) for g in grads]
            case "norm misses biases":
                norms = grads[0].flatten(1).norm(dim=1)
            case "clips at twice":
                return [(2 * NORM / (norms + 1e-6)).clamp(max=1)] * len(grads)
            case "scales up":  # min and max confused
                return [(NORM / (norms + 1e-6)).clamp(min=1, max=10)] * len(grads)
            case "clip after sum" | "clip after average":
                return [torch.ones_like(norms)] * len(grads)
        return [(NORM / (norms + 1e-6)).clamp(max=1)] * len(grads)

    def noise(self, like, number, rows):
        std = self.sigma * NORM
        size = tuple(like.shape)
        match self.fault:
            case "no noise":
                std = 0.0
            case "small noise":
                std = 0.8 * std
            case "no noise on biases":
                std = std * (number == 0)
            case "noise not times C":
                std = self.sigma
            case "noise divided by batch":
                std = std / BATCH
            case "shared noise":
                return std * torch.randn(1, generator=self.generator).expand(size)
            case "seeded noise":
                self.generator.manual_seed(number)
            case "noise follows gradients":
                std = std / (1 + float(rows.abs().max() > 10))
        return std * torch.randn(size, generator=self.generator)

    def __call__(self, grads):
        sums = [
            torch.einsum("i,i...->...", f, g)
            for f, g in zip(self.factors(grads), grads, strict=True)
        ]
        total = torch.cat([s.flatten() for s in sums]).norm()
        divisor = self.divisor
        if self.fault == "clip after sum":
            sums = [s * (NORM / (total + 1e-6)).clamp(max=1) for s in sums]
        if self.fault == "clip after average":
            factor = (NORM / (total / BATCH + 1e-6)).clamp(max=1)
            sums = [s * factor for s in sums]
        if self.fault == "divides by rows":
            divisor = len(grads[0])
        noisy = [s + self.noise(s, i, grads[0]) for i, s in enumerate(sums)]
        return [value / divisor for value in noisy]


def audit(privatize, **arguments):
    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM, "batch_size": BATCH, "calls": 120}
    return audit_privatize(privatize, SHAPES, **{**stated, **arguments})


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("no clipping", "no_clipping"),
        ("per tensor", "clip_per_tensor"),
        ("norm misses biases", "norm_misses_a_tensor"),
        ("clips at twice", "clipping_norm_too_large"),
        ("scales up", "no_clipping"),
        ("noise not times C", "noise_too_small"),
        ("clip after sum", "clip_after_average"),
        ("no noise", "no_noise"),
        ("small noise", "noise_too_small"),
        ("no noise on biases", "noise_too_small_in_a_tensor"),
        ("noise divided by batch", "noise_divided_by_batch"),
        ("shared noise", "noise_shared"),
        ("seeded noise", "noise_repeated"),
        ("noise follows gradients", "noise_follows_gradients"),
    ],
)
def test_a_fault_is_found_by_name(fault: str, name: str) -> None:
    found = audit(Privatizer(fault))
    assert found.verdict.outcome == "VIOLATION"
    assert found.verdict.faults[0].name == name


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("clip after average", "clip_after_average"),
        ("divides by rows", "divides_by_realised_batch"),
        ("noise divided by batch", "noise_divided_by_batch"),
        ("no clipping", "no_clipping"),
        ("per tensor", "clip_per_tensor"),
    ],
)
def test_a_fault_of_a_mean_is_found_by_name(fault: str, name: str) -> None:
    found = audit(Privatizer(fault, divisor=BATCH), expected_batch_size=BATCH)
    assert found.verdict.outcome == "VIOLATION"
    assert found.verdict.faults[0].name == name


@pytest.mark.parametrize("factor", [0.9, 0.8])
def test_noise_somewhat_too_small_is_a_violation_and_no_question_of_units(factor: float) -> None:
    found = audit(Privatizer(sigma=factor * SIGMA))
    assert found.verdict.faults[0].name == "noise_too_small"
    assert found.noises["no gradient"].ratio == pytest.approx(factor, abs=0.04)


@pytest.mark.parametrize(
    ("sigma", "divisor"), [(0.3, None), (1.5, None), (10.0, None), (1.5, 32.0), (1.5, 1000.0)]
)
def test_correct_functions_pass(sigma: float, divisor: float | None) -> None:
    privatize = Privatizer(sigma=sigma, divisor=divisor or 1.0)
    found = audit(privatize, noise_multiplier=sigma, expected_batch_size=divisor)
    assert found.passed
    assert found.detectable_shift < 1.5
    assert found.noises["no gradient"].ratio == pytest.approx(1, abs=0.05)
    assert found.shifts["oversized"].shift < 1 + 4 * sigma / found.shifts["oversized"].gradients


def test_dividing_by_the_rows_is_right_for_batches_of_a_fixed_size() -> None:
    privatize = Privatizer("divides by rows")
    assert audit(privatize, expected_batch_size=BATCH, batches="fixed").passed


@pytest.mark.parametrize(("divisor", "stated"), [(1.0, 32.0), (32.0, None)])
def test_another_unit_is_no_violation_and_no_pass(divisor: float, stated: float | None) -> None:
    found = audit(Privatizer(divisor=divisor), expected_batch_size=stated)
    assert found.verdict.outcome == "INCONCLUSIVE"
    assert "sum and noise alike" in str(found)
    assert "the unit of the sum" in str(found)


def test_too_few_calls_beside_much_noise_are_inconclusive() -> None:
    found = audit(Privatizer(sigma=200.0), noise_multiplier=200.0, calls=20)
    assert found.verdict.outcome == "INCONCLUSIVE"
    assert found.verdict.advice == "raise calls or batch_size"


def test_a_sum_clipped_as_a_whole_is_no_pass_beside_any_noise() -> None:
    found = audit(Privatizer("clip after sum", sigma=8.0), noise_multiplier=8.0, calls=60)
    assert found.verdict.outcome == "INCONCLUSIVE"
    assert "a sum that is clipped as a whole" in str(found)


def test_one_array_of_numpy_is_audited_as_a_list_of_tensors_is() -> None:
    rng = np.random.default_rng(0)

    def privatize(grads, factor=1.0):
        assert isinstance(grads, np.ndarray)
        norms = np.linalg.norm(grads.reshape(len(grads), -1), axis=1)
        clipped = np.minimum(1, NORM / np.maximum(norms, 1e-12))
        return np.tensordot(clipped, grads, 1) + factor * SIGMA * NORM * rng.normal(size=(6, 2))

    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM, "arrays": "numpy"}
    assert assert_privatizes(privatize, (6, 2), **stated).passed
    with pytest.raises(PrivatizeViolation, match=r"the noise is too small: 0\.5"):
        assert_privatizes(lambda grads: privatize(grads, 0.5), (6, 2), **stated)


def test_the_assertion_fails_a_unit_test_and_says_why() -> None:
    with pytest.raises(AssertionError, match="gradients are not clipped") as caught:
        assert_privatizes(
            Privatizer("no clipping"), SHAPES, noise_multiplier=SIGMA, max_grad_norm=NORM
        )
    assert caught.value.audit.verdict.kind == "mechanism"
    assert "Look at: where each per-sample gradient is scaled" in str(caught.value)


def test_a_gradient_of_one_number_is_audited() -> None:
    generator = torch.Generator().manual_seed(1)

    def privatize(grads, norm=NORM):
        return grads.clamp(-norm, norm).sum(0) + SIGMA * NORM * torch.randn(1, generator=generator)

    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM}
    assert audit_privatize(privatize, (1,), **stated).passed
    twice = audit_privatize(lambda g: privatize(g, 2 * NORM), (1,), **stated)
    assert twice.verdict.faults[0].name == "clipping_norm_too_large"


@pytest.mark.heavy
def test_a_correct_function_is_refuted_less_often_than_the_significance() -> None:
    level, runs = 0.5, 15
    outcomes = [
        audit(Privatizer(seed=seed), significance=level, seed=seed, calls=80).verdict.outcome
        for seed in range(runs)
    ]
    assert outcomes.count("VIOLATION") <= level * runs


@pytest.mark.parametrize(
    ("privatize", "message"),
    [
        (
            lambda g: 1 / 0,
            r"privatize\(per_sample_grads\) raised ZeroDivisionError: .* \(call 1, 3",
        ),
        (lambda g: g, r"returned shapes \[\(32, 4, 3\), \(32, 5\)\], must be \[\(4, 3\), \(5,\)\]"),
        (lambda g: [x.sum(0) / 0 for x in g], "returned numbers that are not finite .* norms 0 to"),
        (
            lambda g: [x.mean(0) + torch.randn(x.shape[1:]) / (x.norm() < 5) for x in g],
            "not finite .* 32 gradients of norms 0 to 2e.03",
        ),
    ],
)
def test_what_is_wrong_with_a_function_is_told(privatize, message: str) -> None:
    with pytest.raises(MechanismError, match=message):
        audit(privatize)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": 0.0}, r"noise_multiplier=0\.0 must be a finite number > 0"),
        ({"max_grad_norm": -1.0}, r"max_grad_norm=-1\.0 must be"),
        ({"expected_batch_size": 0}, "expected_batch_size=0 must be"),
        ({"batches": "any"}, "batches='any' must be one of"),
        ({"arrays": "jax"}, "arrays='jax' must be one of"),
        ({"batch_size": 1}, "batch_size=1 must be at least 2"),
        ({"calls": 19}, "calls=19 must be at least 20"),
        ({"significance": 1.0}, r"significance=1\.0 must be"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(Privatizer(), **arguments)


def test_a_number_is_no_shape() -> None:
    with pytest.raises(TypeError, match=r"shapes=10 must be a tuple; give \(10,\) for a vector"):
        audit_privatize(Privatizer(), 10, noise_multiplier=1.0, max_grad_norm=1.0)


@pytest.mark.parametrize("shapes", [[], (), [()], [(3, 0)], ["ab"], [3, (2,)]])
def test_what_is_no_shape_is_refused(shapes) -> None:
    with pytest.raises(ValueError, match="must be the shape of a gradient"):
        audit_privatize(Privatizer(), shapes, noise_multiplier=1.0, max_grad_norm=1.0)


def test_the_calls_of_an_audit_are_counted_and_fewer_where_a_fault_is_plain() -> None:
    correct, faulty = audit(Privatizer()), audit(Privatizer("no clipping"))
    assert correct.calls == 8 * 121
    assert faulty.calls < correct.calls
    assert math.isfinite(correct.detectable_shift)
