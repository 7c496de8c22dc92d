import numpy as np
import pytest
import torch
from clippings import FAULTY, noisy
from privatizer import BATCH, NORM, SHAPES, SIGMA, Privatizer, Unrepeatable, audit
from refused_calls import refused_changes
from stages import staged

from lightning_audit.blackbox.privatize import (
    PrivatizeViolation,
    assert_privatizes,
    audit_privatize,
)


@pytest.mark.parametrize(
    ("sigma", "divisor"), [(0.3, None), (1.5, None), (10.0, None), (1.5, 32.0), (1.5, 1000.0)]
)
def test_correct_functions_pass(sigma, divisor):
    privatize = Privatizer(sigma=sigma, divisor=divisor or 1.0)
    found = audit(privatize, noise_multiplier=sigma, expected_batch_size=divisor)
    assert found.passed
    assert found.detectable_shift < 1.5
    assert found.noises["no gradient"].ratio == pytest.approx(1, abs=0.05)
    assert found.shifts["oversized"].shift < 1 + 4 * sigma / found.shifts["oversized"].gradients


def test_dividing_by_the_rows_is_right_for_batches_of_a_fixed_size():
    assert audit(Privatizer("divides by rows"), expected_batch_size=BATCH, batches="fixed").passed


def test_too_few_calls_beside_much_noise_are_inconclusive_if_no_seed_repeats_it():
    stated = {"noise_multiplier": 200.0, "calls": 20}
    found = audit(Unrepeatable(sigma=200.0), **stated)
    assert found.verdict.outcome == "INCONCLUSIVE"
    assert found.verdict.advice == "raise calls or batch_size"
    assert audit(Privatizer(sigma=200.0), **stated).passed


def test_a_sum_clipped_as_a_whole_is_no_pass_beside_any_noise():
    stated = {"noise_multiplier": 8.0, "calls": 60}
    found = audit(Unrepeatable("clip after sum", sigma=8.0), **stated)
    assert found.verdict.outcome == "INCONCLUSIVE"
    assert "a sum that is clipped as a whole" in str(found)
    exactly = audit(Privatizer("clip after sum", sigma=8.0), **stated)
    assert exactly.verdict.faults[0].name == "clip_after_average"
    assert exactly.shifts["against all others"].shift == pytest.approx(2.0, abs=1e-3)


def test_a_fault_found_exactly_takes_no_part_of_the_significance():
    found = audit(Privatizer("clips at twice"), significance=1e-300)
    assert found.verdict.outcome == "VIOLATION"
    assert "does not clip as stated, exactly up to rounding after" in str(found)
    assert max(noise.log_e for noise in found.noises.values()) < 10


def test_one_array_of_numpy_is_audited_as_a_list_of_tensors_is():
    rng = np.random.default_rng(0)

    def privatize(grads, factor=1.0):
        assert isinstance(grads, np.ndarray)
        norms = np.linalg.norm(grads.reshape(len(grads), -1), axis=1)
        clipped = np.minimum(1, NORM / np.maximum(norms, 1e-12))
        return np.tensordot(clipped, grads, 1) + factor * SIGMA * NORM * rng.normal(size=(6, 2))

    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM, "arrays": "numpy"}
    assert assert_privatizes(privatize, (6, 2), **stated).passed
    with pytest.raises(PrivatizeViolation, match=r"too small: 0\.43 to 0\.71 times the stated"):
        assert_privatizes(lambda grads: privatize(grads, 0.5), (6, 2), **stated)


def test_the_assertion_fails_a_unit_test_and_says_why():
    with pytest.raises(AssertionError, match="gradients are not clipped") as caught:
        assert_privatizes(
            Privatizer("no clipping"), SHAPES, noise_multiplier=SIGMA, max_grad_norm=NORM
        )
    assert caught.value.audit.verdict.kind == "mechanism"
    assert "Look at: where each per-sample gradient is scaled" in str(caught.value)


def test_a_gradient_of_one_number_is_audited():
    generator = torch.Generator().manual_seed(1)

    def privatize(grads, norm=NORM):
        return grads.clamp(-norm, norm).sum(0) + SIGMA * NORM * torch.randn(1, generator=generator)

    stated = {"noise_multiplier": SIGMA, "max_grad_norm": NORM}
    assert audit_privatize(privatize, (1,), **stated).passed
    twice = audit_privatize(lambda g: privatize(g, 2 * NORM), (1,), **stated)
    assert twice.verdict.faults[0].name == "clipping_norm_too_large"


@pytest.mark.heavy
def test_a_correct_function_is_refuted_less_often_than_the_significance():
    level, runs = 0.5, 15
    audits = (audit(Privatizer(seed=s), significance=level, seed=s, calls=80) for s in range(runs))
    assert sum(found.verdict.outcome == "VIOLATION" for found in audits) <= level * runs


test_arguments_out_of_range_are_refused = refused_changes(
    audit,
    {"privatize": Privatizer()},
    ({"noise_multiplier": 0.0}, r"noise_multiplier=0\.0 must be a finite number > 0"),
    ({"max_grad_norm": -1.0}, r"max_grad_norm=-1\.0 must be"),
    ({"expected_batch_size": 0}, "expected_batch_size=0 must be"),
    ({"batches": "any"}, "batches='any' must be one of"),
    ({"arrays": "jax"}, "arrays='jax' must be one of"),
    ({"batch_size": 1}, "batch_size=1 must be at least 2"),
    ({"calls": 19}, "calls=19 must be at least 20"),
    ({"significance": 1.0}, r"significance=1\.0 must be"),
)


@pytest.mark.parametrize("shapes", [[], (), [()], [(3, 0)], ["ab"], [3, (2,)]])
def test_what_is_no_shape_is_refused(shapes):
    with pytest.raises(ValueError, match="must be the shape of a gradient"):
        audit_privatize(Privatizer(), shapes, noise_multiplier=1.0, max_grad_norm=1.0)


# --- Every fault of a privatize function is found by its name.
FAULTS = [
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
]

#: Names of faulty clippings that a rule knows; the others' trial tells.
NAMES = {
    "by the mean norm of the batch": "clip_after_average",
    "micro-batches, their mean": "clip_after_average",
    "the mean of all": "clip_after_average",
    "norm of the first half": "norm_misses_a_tensor",
    "to a norm 5 % too large": "clipping_norm_too_large",
}


@pytest.mark.parametrize("function", staged(quick=[Privatizer], heavy=[Unrepeatable]))
@pytest.mark.parametrize(("fault", "name"), FAULTS)
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(3)
def test_a_fault_is_found_by_name_whether_or_not_the_noise_repeats(function, fault, name):
    found = audit(function(fault))
    assert (found.verdict.outcome, found.verdict.faults[0].name) == ("VIOLATION", name)


@pytest.mark.parametrize("fault", FAULTY)
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(3)
def test_a_faulty_clipping_is_found_and_named_by_a_gradient_that_shows_it(fault):
    torch.manual_seed(0)
    # More calls tell a norm that is somewhat too large from another unit.
    found = audit(noisy(FAULTY[fault]), calls=120 if "too large" in fault else 20).verdict
    assert found.outcome == "VIOLATION"
    assert found.faults[0].name == NAMES.get(fault, "clipping_misses_gradients")
    assert ("a single gradient moves" in found.faults[0].sentence) == (fault not in NAMES)


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
def test_a_fault_of_a_mean_is_found_by_name(fault, name):
    found = audit(Privatizer(fault, divisor=BATCH), expected_batch_size=BATCH)
    assert (found.verdict.outcome, found.verdict.faults[0].name) == ("VIOLATION", name)


@pytest.mark.parametrize("factor", [0.9, 0.8])
def test_noise_somewhat_too_small_is_a_violation_and_no_question_of_units(factor):
    found = audit(Privatizer(sigma=factor * SIGMA))
    assert found.verdict.faults[0].name == "noise_too_small"
    assert found.noises["no gradient"].ratio == pytest.approx(factor, abs=0.04)


@pytest.mark.parametrize(("divisor", "stated"), [(1.0, 32.0), (32.0, None)])
def test_another_unit_is_no_violation_and_no_pass(divisor, stated):
    found = audit(Privatizer(divisor=divisor), expected_batch_size=stated)
    assert found.verdict.outcome == "INCONCLUSIVE"
    assert "sum and noise alike" in str(found)
    assert "the unit of the sum" in str(found)
