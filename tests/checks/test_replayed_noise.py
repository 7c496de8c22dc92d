"""Each family of tests sees its kind of noise, and none sees anything in noise as it should be."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from lightning_audit.checks.replayed_noise import (
    CERTAIN,
    FAMILIES,
    MISSING,
    NOTHING,
    OF_RECORDS,
    REPLAY_NOISE,
    SCALE,
    SMALL,
    TENSOR,
    TOGETHER,
    Draws,
    NoiseLog,
    NoiseLook,
    Seen,
    copied_entries,
    draws_seen,
    few_values,
    forecasts,
    pair_rate,
    repeated_numbers,
)
from lightning_audit.checks.replayed_noise import successive_seen as successive

SHAPES = ((64, 16), (1, 64), (10, 64), (1, 10))
RNG = np.random.default_rng


def noise(count: int = 12, seed: int = 0, shapes: tuple[tuple[int, int], ...] = SHAPES):
    rng = RNG(seed)
    return [rng.normal(size=(count, *shape)).astype(np.float32).astype(float) for shape in shapes]


def drawn(tensors: list[np.ndarray], **given: object) -> dict[str, float]:
    names = [f"t{number}" for number in range(len(tensors))]
    released = [own[0] + 0.01 * RNG(9).normal(size=own[0].shape) for own in tensors]
    found = draws_seen(Draws(tensors, names, 1.0, with_rows=released, **given))
    assert all(seen.what for seen in found.values() if seen.log_e > 5.0)
    return {kind: seen.log_e for kind, seen in found.items()}


def each(change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    return [change(own.copy()) for own in noise()]


def some_small(own: np.ndarray) -> np.ndarray:
    own.reshape(len(own), -1)[:, ::50] *= 0.2
    return own


def first_row_small(own: np.ndarray) -> np.ndarray:
    own[:, 0] *= 0.3
    return own


def smoothed(own: np.ndarray) -> np.ndarray:
    flat = own.reshape(len(own), -1)
    return ((flat + 0.4 * np.roll(flat, 1, axis=1)) / math.sqrt(1.16)).reshape(own.shape)


def thin(own: np.ndarray) -> np.ndarray:
    count, rows, columns = own.shape
    if rows < 3:
        return own
    rng = RNG(1)
    return rng.normal(size=(count, rows, 2)) @ rng.normal(size=(count, 2, columns)) / math.sqrt(2)


def alike(own: list[np.ndarray]) -> list[np.ndarray]:
    own[1][:, 0] = own[2][:, 0]
    return own


def paired(own: list[np.ndarray], part: float = 0.9) -> list[np.ndarray]:
    """Entries of scattered pairs, of all tensors, that share most of their noise."""
    flat = np.concatenate([each.reshape(len(each), -1) for each in own], axis=1)
    one, other = RNG(3).permutation(flat.shape[1])[: flat.shape[1] // 2 * 2].reshape(2, -1)
    flat[:, other] = part * flat[:, one] + math.sqrt(1.0 - part**2) * flat[:, other]
    parts = np.split(flat, np.cumsum([each[0].size for each in own])[:-1], axis=1)
    return [each.reshape(shape.shape) for each, shape in zip(parts, own, strict=True)]


FAULTY = {
    "together": lambda: paired(noise(24)),
    "small": lambda: each(some_small),
    "scale": lambda: [0.9 * own for own in noise()],
    "small  ": lambda: each(first_row_small),
    "neighbours": lambda: each(smoothed),
    "low_rank": lambda: each(thin),
    "tails": lambda: [
        RNG(j).laplace(scale=math.sqrt(0.5), size=o.shape) for j, o in enumerate(noise())
    ],
    "tensors": lambda: alike(noise()),
    "draws": lambda: [np.concatenate([own[:9], own[:3]]) for own in noise()],
    "few_values": lambda: [np.round(8 * own) / 8 for own in noise()],
    "one_value": lambda: [np.full_like(own, 0.7) for own in noise()],
    "twice": lambda: [np.tile(own[:, :, :5], (1, 1, 13))[:, :, : own.shape[2]] for own in noise()],
}


@pytest.mark.parametrize("kind", FAULTY)
def test_a_fault_is_seen_by_its_family(kind):
    assert drawn(FAULTY[kind]())[kind.strip()] > 14.0


def test_what_is_larger_or_made_of_the_noise_or_one_number_is_no_fault():
    assert drawn([1.1 * own for own in paired(noise(24))])["together"] == 0.0
    assert max(drawn([0.5 * own for own in noise()], sized=False).values()) < 5.0
    seen = drawn(noise(4, shapes=((1, 1),)))
    assert set(seen) == set(FAMILIES)
    assert max(seen.values()) < 5.0


@pytest.mark.parametrize("count", [4, 12, 24])
@pytest.mark.parametrize("more", ["nothing", "a mean", "larger", "sizes of its own"])
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(5)
def test_correct_noise_is_not_accused(count, more):
    # By simulation; the e-values are proved for independent normal noise of at least the claim.
    largest, total = 0.0, []
    for seed in range(60):
        rng, found = RNG(1000 + seed), noise(count, seed)
        if more == "a mean":
            found = [own + 3.0 * rng.normal(size=own.shape[1:]) for own in found]
        elif more == "larger":
            found = [5.0 * own for own in found]
        elif more == "sizes of its own":
            found = [own * rng.uniform(1.0, 3.0, own.shape[1:]) for own in found]
            # Rows of their own sizes have a spectrum of their own.
        seen = drawn(found)
        assert CERTAIN not in seen.values()
        largest = max(largest, max(seen.values()))
        total.append(np.mean(np.exp(list(seen.values()))))
    assert largest < 12.0
    assert np.mean(total) < 1.2


@pytest.mark.parametrize(("part", "told"), [(0.5, "25%"), (0.0, "")])
def test_a_part_of_all_draws_is_told_where_the_whole_is_as_claimed(part, told):
    fixed = noise(1, seed=5)
    mixed = [
        part * f + math.sqrt(1 - part**2) * own for f, own in zip(fixed, noise(24), strict=True)
    ]
    names = ["a", "b", "c", "d"]
    said = Draws(mixed, names, 1.0).repeated_part
    assert bool(said) == bool(told)
    assert said[:1] == told[:1]
    assert Draws([0.8 * own for own in noise(24)], names, 1.0).repeated_part == ""


def test_less_noise_in_every_tensor_is_told_from_less_in_one():
    names = ["a", "b", "c", "d"]
    seen = draws_seen(Draws([0.5 * own for own in noise()], names, 1.0))
    assert SMALL not in seen
    assert seen[SCALE].what == (
        "the noise of every tensor is at most 0.55 times the stated (99 % confidence at one look, "
        "for Gaussian noise)"
    )
    assert NoiseLook(seen).largest[0] == SCALE
    assert seen["tails"] == NOTHING  # which supposes noise of the claimed size
    first, *others = noise()
    seen = draws_seen(Draws([0.5 * first, *others], names, 1.0))
    assert seen[TENSOR].log_e > 14.0
    assert seen[TENSOR].what.startswith("the noise of `a` is at most 0.5")
    assert not {SCALE, SMALL} & set(seen)
    half_quiet = first.copy()
    half_quiet.reshape(len(first), -1)[:, ::2] *= 0.01
    seen = draws_seen(Draws([half_quiet, *others], names, 1.0))
    assert seen[SMALL].log_e > 14.0
    assert not {SCALE, TENSOR} & set(seen)


@pytest.mark.parametrize("factor", [0.85, 0.9])
def test_noise_that_is_small_in_many_small_tensors_is_small_in_all_of_them(factor):
    """As adapters of low rank have; none of them has numbers enough to tell alone."""
    shapes = ((4, 8),) * 24
    small = [factor * own for own in noise(4, seed=1, shapes=shapes)]
    assert drawn(small[:1])[SMALL] < math.log(1000.0)
    seen = drawn(small)
    assert SCALE in seen
    assert seen[SCALE] > math.log(1000.0)
    assert seen["tails"] == NOTHING.log_e
    right = drawn(noise(4, seed=3, shapes=shapes))
    assert SCALE not in right
    assert right[SMALL] < math.log(100.0)


# --- Looks at the noise add up to one e-value, that goes on from a checkpoint without any noise.

FINE = NoiseLook({kind: Seen(0.0, "") for kind in FAMILIES}, draws=12, entries=30)
SURE = NoiseLook({**FINE.seen, MISSING: Seen(CERTAIN, "3 entries have none")}, 12, 30)


def test_the_looks_of_a_run_have_one_e_value():
    log, log_es = NoiseLog(), np.random.default_rng(0).normal(size=6)
    log.test.segment = 0  # without the weight of the first segment
    for step, log_e in enumerate(log_es):
        log.take(step, NoiseLook({"small": Seen(float(log_e), "small")}, kinds=1))
    number = np.arange(1, 7)
    weighted = np.sum(np.exp(log_es) / (number * (number + 1))) + 1.0 / 7.0
    last = log.test.log_e
    assert last <= math.log(1.5) + max(log_es)
    assert math.exp(log._log_sum) + 1.0 / 7.0 == pytest.approx(weighted)
    # Half of the whole is the product of one kind's values, which was not among these.
    by_step = np.cumsum(np.exp(log_es) / (number * (number + 1))) + 1.0 / (number + 1)
    assert math.exp(last) == pytest.approx((max(by_step) + 1.0) / 2.0)


def test_what_is_certain_is_found_and_named_by_the_sharpest_kind():
    log = NoiseLog()
    assert log.result(0.05, "examinations=0").message == "examinations=0"
    log.take(0, None, "no noise is claimed")
    assert log.result(0.05, "examinations=0").message == "no noise is claimed"
    log = NoiseLog()
    for step in range(40):
        log.take(step, FINE)
    assert not log.found(0.05)
    log.take(40, SURE)
    result = log.result(0.05)
    assert (result.status, result.evidence["violated_at_step"]) == ("violated", 40)
    assert result.evidence["of"] == MISSING
    rule = next(rule for rule in REPLAY_NOISE.faults if rule.applies(result.evidence))
    assert rule.fault.name == "noise_missing_at_entries"
    assert "3 entries have none" in result.message


def test_entries_that_go_together_a_little_in_every_look_are_found():
    # No look alone would do: log e of 5 each, of which the product alone grows.
    log = NoiseLog()
    for step in range(3):
        assert not log.found(1e-3)
        log.take(step, NoiseLook({**FINE.seen, TOGETHER: Seen(5.0, "they go together")}, 12, 30))
    log.take(9, NoiseLook({OF_RECORDS: NOTHING}, 4, 30))  # a look of another kind
    result = log.result(1e-3)
    assert result.status == "violated"
    assert (result.evidence["of"], result.evidence["finding"]) == (TOGETHER, "they go together")
    rule = next(rule for rule in REPLAY_NOISE.faults if rule.applies(result.evidence))
    assert rule.fault.name == "noise_alike_at_entries"


def test_a_kind_that_says_more_comes_before_a_larger_one():
    seen = {"small": Seen(900.0, "small"), OF_RECORDS: Seen(20.0, "of records")}
    assert NoiseLook(seen).largest == (OF_RECORDS, seen[OF_RECORDS])
    assert NoiseLook({**seen, OF_RECORDS: Seen(2.0, "")}).largest[0] == "small"


def test_one_look_alone_is_sure_at_one_in_a_thousand():
    assert NoiseLook({"small": Seen(math.log(999.0), "")}, kinds=1).findings == ()
    (found,) = NoiseLook({"small": Seen(math.log(1001.0), "small")}, kinds=1).findings
    assert found.describe() == "small"


# --- Numbers that come twice are told from numbers that agree by chance, on lattices too.


def draws(*shapes: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, n)).astype(np.float32).astype(float) for n in shapes]


REPEATED = {
    "tiled": lambda z: np.tile(z[:, :50], (1, 40))[:, : z.shape[1]],
    "mirrored": lambda z: np.concatenate([z[:, :800], z[:, :800][:, ::-1]], 1),
    "of the other sign": lambda z: np.concatenate([z[:, :800], -z[:, :800]], 1),
    "rolled in the other draw": lambda z: np.stack([z[0], np.roll(z[0], 321)]),
    "on a lattice": lambda z: np.tile(np.round(20 * z[:, :400]), (1, 4)),
    "one number for a row": lambda z: np.repeat(z[:, :80], 20, axis=1),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_numbers_that_stand_at_several_places_are_found(kind):
    assert repeated_numbers([REPEATED[kind](draws(1600)[0]), *draws(64, seed=1)])


def test_a_tensor_that_has_the_numbers_of_another_is_found():
    one, other = draws(300, 300)
    other[:, 100:200] = one[:, :100]
    assert repeated_numbers([one, other], across=True)
    assert not repeated_numbers([one, other])


@pytest.mark.parametrize("grid", [None, 1.0, 0.05, 2.0**-7])
@pytest.mark.parametrize("sizes", [(8,), (40, 3), (5000, 64), (200_000,)])
def test_numbers_that_are_drawn_anew_are_not(grid, sizes):
    for seed in range(20 if sum(sizes) < 1e5 else 2):
        found = draws(*sizes, seed=seed)
        if grid is not None:
            found = [np.round(z / grid) * grid for z in found]
        assert repeated_numbers(found) == ""
        assert repeated_numbers(found, across=True) == ""


def test_masks_of_zeros_are_no_numbers():
    (z,) = draws(2000)
    z[:, ::2] = 0.0
    z[:, :500] = 0.0
    assert repeated_numbers([z]) == ""


def test_the_rate_of_pairs_is_that_of_all_pairs():
    assert pair_rate(np.array([1.0, -1.0, 2.0, 0.0, 3.0])) == pytest.approx(1.0 / 6.0)
    assert pair_rate(np.zeros(3)) == 1.0


def test_few_values_count_only_beside_a_sum_of_many():
    rng = np.random.default_rng(0)
    noise = np.round(4 * rng.normal(size=3000)) / 4
    assert "values, and a release has others" in few_values(
        noise, noise + 0.01 * rng.normal(size=3000)
    )
    assert few_values(noise, noise + np.round(rng.normal(size=3000))) == ""
    fine = rng.normal(size=3000).astype(np.float32).astype(float)
    assert few_values(fine, fine + 0.01) == ""
    assert few_values(noise[:30], fine[:30]) == ""


def test_entries_that_are_copies_of_scattered_ones_are_counted():
    rng = np.random.default_rng(0)
    for copies in (0, 1, 40):
        draws = rng.normal(size=(12, 3000)).astype(np.float32)
        one, other = rng.permutation(3000)[: 2 * copies].reshape(2, copies)
        draws[:, other] = -draws[:, one]
        found = copied_entries(draws)
        assert found.startswith(f"{copies} of 3000 entries") if copies else not found


@pytest.mark.parametrize("draws", [4, 12, 24])
@pytest.mark.parametrize("unit", [1.0, 0.1, 1e-3])
def test_entries_of_noise_on_a_lattice_are_no_copies(draws, unit):
    noise = np.round(np.random.default_rng(1).normal(size=(draws, 20_000)) / unit) * unit
    assert not copied_entries(noise)
    noise[:, 100:200] = 0.0  # without noise
    assert not copied_entries(noise)


# --- Noise that earlier noise foretells is seen at any lag and of either sign; new noise is not.

STEPS, ENTRIES = 8, 2000


def fresh(seed: int = 0, steps: int = STEPS) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(steps, ENTRIES)))


def autoregressive(part: float) -> list[np.ndarray]:
    noise = fresh()
    for number in range(1, STEPS):
        noise[number] = part * noise[number - 1] + math.sqrt(1 - part**2) * noise[number]
    return noise


def minus_the_sum() -> list[np.ndarray]:
    noise = fresh()
    for number in range(1, STEPS):
        noise[number] = noise[number] - 0.5 * np.sum(noise[:number], axis=0)
    return noise


def at_lag(lag: int, sign: float) -> list[np.ndarray]:
    noise = fresh()
    return [noise[t] if t < lag else sign * noise[t - lag] for t in range(STEPS)]


@pytest.mark.parametrize(
    "noise",
    [
        autoregressive(0.4),
        autoregressive(-0.6),
        minus_the_sum(),
        *(at_lag(lag, sign) for lag in (1, 3, 6) for sign in (1.0, -1.0)),
    ],
)
def test_noise_that_depends_on_its_past_is_seen(noise):
    seen = successive(noise)
    assert seen.log_e > 14.0
    assert "noise of a step goes" in seen.what


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_new_noise_is_not(scale):
    # By simulation; proved by the signs of what is new, for noise of any size.
    rng, found = np.random.default_rng(3), []
    for seed in range(300):
        sizes = scale * rng.uniform(0.5, 4.0, ENTRIES)
        found.append(successive([sizes * z for z in fresh(seed, 3)]).log_e)
    assert np.mean(np.exp(found)) < 1.2
    assert max(found) < 7.0


def test_forecasts_are_of_the_past_alone():
    noise = fresh()
    made = [forecast.copy() for _, forecast in forecasts(noise[:5])]
    for later in noise[5:]:
        later[:] = np.nan
    for one, other in zip(made, [f for _, f in forecasts(noise[:5])], strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(made) == 5 + 1 + 1
    assert successive(fresh()[:1]).log_e == 0.0
