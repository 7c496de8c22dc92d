"""

Each stream has data that stay, data that follow the noise of the step before, and a canary that
clipping shrinks, so that a part of it is left in the draws of later steps.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from noise_steps import noise_seen
from stages import staged

from lightning_audit.checks.probes import (
    IN_ALL,
    LAGS,
    PER_TENSOR,
    REUSE_IN_ALL,
    Whitening,
    Witnesses,
    WitnessReducer,
    _Epochs,
    _Trace,
    choose_witnesses,
    noise_of,
)
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.layout import TensorSlot
from lightning_audit.record.store import INJECTED, RecordHeader
from lightning_audit.run.optimizers import to_arrays, to_tensors
from lightning_audit.session.recorder import Recorder

# --- What is left of a gradient without its clipped sums is the noise, or it is said why not.

RNG = np.random.default_rng(0)
SUMS, NOISE = 5.0 * RNG.standard_normal(400), RNG.standard_normal(400)


@pytest.mark.parametrize("size", [0.8, 1.0, 3.0])
def test_the_noise_is_in_units_of_its_claim(size):
    noise, why = noise_of(noise_seen(SUMS + 2.0 * size * NOISE, SUMS, 2.0))
    assert why == ""
    assert noise is not None
    np.testing.assert_allclose(noise, size * NOISE, atol=1e-12)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (noise_seen(SUMS + NOISE, None, 1.0), "the clipped sums that the noise was added to are"),
        (noise_seen(SUMS + NOISE, None, 1.0, lack="draws are not known"), "draws are not known"),
        (noise_seen(SUMS + 0.5 * NOISE, SUMS, 1.0), "is too small to be the noise"),
        (noise_seen(1.5 * (SUMS + NOISE), SUMS, 1.0), "is correlated with them"),
    ],
)
def test_what_is_not_the_noise_alone_is_not_taken_for_it(seen, why):
    noise, said = noise_of(seen)
    assert noise is None
    assert why in said


def test_few_small_entries_are_no_sign_of_missing_noise():
    noise, _ = noise_of(noise_seen(np.full(9, 0.2), np.full(9, 0.1), 1.0))
    assert noise is not None


# --- Draws of correlated noise are recovered, and what is not known of them is data for the tests.

C = (1.0, -0.5, -0.25)


def banded(draws: np.ndarray, coefficients: tuple[float, ...] = C) -> np.ndarray:
    """Noise of each step by its definition, draw by draw; ``[steps, n]``."""
    noise = np.zeros_like(draws)
    for t in range(len(draws)):
        for k, weight in enumerate(coefficients[: t + 1]):
            noise[t] += weight * draws[t - k]
    return noise


def draws(steps: int = 60, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((steps, width))


@pytest.mark.parametrize("coefficients", [C, (2.0, -1.0, -0.5), (1.0, -1.0), (1.0, 0.2, 0.0, -0.7)])
def test_the_draws_of_each_step_come_back(coefficients):
    drawn, made = draws(), Whitening(coefficients)
    only_ratios = tuple(weight / coefficients[0] for weight in coefficients)
    found = [made.draw(read) for read in banded(drawn, only_ratios)]
    assert np.array(found) == pytest.approx(drawn, abs=1e-9)
    assert made.settled


def test_a_rest_of_one_step_stands_beside_later_draws_as_the_response_says():
    drawn, made = draws(), Whitening(C)
    read = banded(drawn)
    read[10] += 3.0
    rest = np.array([made.draw(x) for x in read]) - drawn
    assert rest[:10] == pytest.approx(0.0, abs=1e-9)
    assert rest[10:13, 0] == pytest.approx([3.0, 1.5, 1.5])
    assert rest[-1] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("lost", ["not finite", "not read", "before"])
def test_draws_that_are_not_known_are_forgotten_after_some_steps(lost):
    drawn, made = draws(), Whitening(C)
    read, first = banded(drawn), 20
    if lost != "before":
        for x in read[:first]:
            made.draw(x)
        if lost == "not finite":
            assert np.isnan(made.draw(np.where(np.arange(5) == 2, np.nan, read[first]))).any()
        else:
            made.lose()
        first += 1
    else:
        made.begin_amid()
    settled, rest = [], []
    for t in range(first, 60):
        rest.append(np.abs(made.draw(read[t]) - drawn[t]).max())
        settled.append(made.settled)
    assert not settled[0]
    assert settled[-1]
    assert rest[0] > 0.1
    assert max(r for r, s in zip(rest, settled, strict=True) if s) < 0.05


def test_coefficients_that_sum_to_zero_never_forget():
    made = Whitening((1.0, -1.0))
    made.draw(np.ones(2))
    made.lose()
    for _ in range(5000):
        made.draw(np.ones(2))
    assert not made.settled


def test_where_nothing_was_released_nothing_was_drawn():
    made = Whitening(C)
    made.draw(np.array([1.0, 1.0]))
    assert made.draw(np.zeros(2), np.array([True, False])).tolist() == [0.0, 0.5]


def test_draws_go_on_from_a_checkpoint(tmp_path):
    drawn, made, again = draws(), Whitening(C), Whitening(C)
    read = banded(drawn)
    again.load(made.state())
    for x in read[:31]:
        made.draw(x)
    torch.save(to_tensors(made.state()), tmp_path / "state")
    again.load(to_arrays(torch.load(tmp_path / "state", weights_only=True)))
    assert [again.draw(x).tolist() for x in read[31:]] == [made.draw(x).tolist() for x in read[31:]]


# --- False alarms of all checks of the steps, on simulated steps with banded noise that is

K, WITNESSES = 4, Witnesses({0: np.arange(48), 1: np.arange(16)})
N = 64
#: The whole run's; each check has a share of it.
LEVEL = 0.05


def run_of(
    seed: int,
    steps: int,
    *,
    size: float = 1.0,
    coefficients: tuple[float, ...] = C,
    shift: float = 0.8,
    data: float = 0.3,
) -> Recorder:
    """A simulated training whose claim is ``C``, and its noise of other weights or size."""
    rng = np.random.default_rng(seed)
    header = RecordHeader(tuple("abcd"), ("w", "b"), WITNESSES.counts, LAGS, noise_coefficients=C)
    made = Recorder(header, LEVEL, WITNESSES, None, np.random.default_rng(seed))
    whole, alone = Whitening(C), Whitening(C)
    draws = size * rng.standard_normal((steps, N + K))
    stays, claim = data * rng.standard_normal(N + K), StepClaim(1.0, 1.0, 16.0)
    follows = np.zeros(N + K)
    for t in range(steps):
        noise = sum(c * draws[t - k] for k, c in enumerate(coefficients[: t + 1]))
        sums = stays + data * rng.standard_normal(N + K) + follows
        follows = -data * noise  # the gradient leads back to where the noise led away from
        coins = rng.integers(0, 2, K).astype(float)
        sums[N:] += coins * shift
        taken = np.concatenate([np.zeros(N), coins])  # as claimed
        drawn, own = whole.draw(sums + noise - taken), alone.draw(noise)
        made.take(
            noise_seen(
                (sums + own)[:N],
                sums[:N],
                at_cut=True,
                canaries=INJECTED,
                coins=coins,
                readings=drawn[N:] + coins,
                witnesses=drawn[:N],
                epoch=t // 40,
                max_grad_norm=claim.max_grad_norm,
                scale=claim.scale,
                sample_rate=0.1,
            )
        )
    return made


def flagged(recorder: Recorder) -> set[str]:
    return {c.name for c in recorder.results if c.status in ("violated", "warned")}


@pytest.mark.parametrize(
    ("runs", "steps", "most"), staged(heavy=[(10, 100, 0.1)], nightly=[(200, 160, 0.05)])
)
def test_right_banded_noise_alarms_in_fewer_runs_than_the_level(runs, steps, most):
    """Warnings have a level of their own, so that both may come in twice as many runs."""
    assert np.mean([bool(flagged(run_of(seed, steps))) for seed in range(runs)]) <= most


@pytest.mark.parametrize(
    ("finding", "steps", "fault"),
    [
        ("noise", 40, {"size": 0.5}),
        *(
            # Noise of other weights follows that of earlier steps.
            ("reuse.recurrence", 100, {"coefficients": weights})
            for weights in ((1.0,), (1.0, -0.5), (1.0, -0.5, 0.25))
        ),
        ("sensitivity", 150, {"shift": 3.0}),  # a canary that clipping lets through
    ],
)
def test_a_fault_is_seen_in_the_draws(finding, steps, fault):
    for seed in range(3):
        assert finding in flagged(run_of(seed, steps, **fault))


SHAPES = [(), (1,), (2,), (7,), (63,), (65,), (4, 3), (200,), (100, 30)]


def layout_of(*shapes: tuple[int, ...]) -> list[TensorSlot]:
    return [TensorSlot(f"tensor_{j}", shape) for j, shape in enumerate(shapes)]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def index(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_witnesses_are_distinct_few_and_off_the_canaries_where_there_is_room(shapes, share, seed):
    layout, rng = layout_of(*shapes), generator(seed)
    avoid = {
        j: np.sort(rng.permutation(slot.numel)[: round(share * slot.numel)])
        for j, slot in enumerate(layout)
    }
    witnesses = choose_witnesses(layout, avoid, rng)
    assert list(witnesses.index) == list(range(len(layout)))
    for j, slot in enumerate(layout):
        chosen = witnesses.index[j].tolist()
        assert chosen == sorted(set(chosen))
        assert chosen[0] >= 0
        assert chosen[-1] < slot.numel
        room = slot.numel - len(avoid[j])
        if room:
            assert set(chosen).isdisjoint(avoid[j].tolist())
            assert len(chosen) == min(PER_TENSOR, room)
        else:
            assert 1 <= len(chosen) <= PER_TENSOR
    assert witnesses.counts == tuple(len(witnesses.index[j]) for j in range(len(layout)))


@pytest.mark.parametrize(("tensors", "each"), [(1, 64), (64, 64), (100, 40), (5000, 1)])
def test_there_are_at_most_4096_in_all_but_one_in_every_tensor(tensors, each):
    witnesses = choose_witnesses(layout_of(*[(80,)] * tensors), {}, generator())
    assert witnesses.counts == (each,) * tensors
    assert sum(witnesses.counts) <= max(IN_ALL, tensors)


def test_tensors_share_low_coordinates_and_have_others_of_their_own():
    witnesses = choose_witnesses(layout_of((5000,), (70, 90), (100, 100)), {}, generator())
    first, second, third = (set(witnesses.index[j].tolist()) for j in range(3))
    assert len({i for i in first & second & third if i < 64}) >= PER_TENSOR // 2
    assert max(first) > 64
    assert first - second


def test_one_seed_gives_the_same_witnesses_and_another_seed_others():
    layout = layout_of((500,), (40, 40))

    def chosen(seed: int) -> list[list[int]]:
        return [i.tolist() for i in choose_witnesses(layout, {}, generator(seed)).index.values()]

    assert chosen(3) == chosen(3)
    assert chosen(3) != chosen(4)


class NaiveReducer:
    """The sums by their definition: plain loops, and the whole past kept."""

    def __init__(self, witnesses: Witnesses, lags: int) -> None:
        self.where = [
            (j, position, int(flat))
            for j in sorted(witnesses.index)
            for position, flat in enumerate(witnesses.index[j])
        ]
        self.tensors = len(witnesses.index)
        each = max(1, REUSE_IN_ALL // self.tensors)
        self.reuse = [i for i, (_, position, _) in enumerate(self.where) if position < each]
        self.lags = lags
        self.past: list[np.ndarray] = []
        self.variance = [1.0] * self.tensors
        self.excluded = 0

    def reduce(self, readings: np.ndarray, sigma: float) -> dict[str, Any]:
        steps = len(self.past)
        if not all(math.isfinite(reading) for reading in readings):
            return {
                "tensor_squares": [math.nan] * self.tensors,
                "lag_count": [0.0] * self.lags,
                "lag_squares": [0.0] * self.lags,
                **dict.fromkeys(
                    ("broadcast_count", "broadcast_squares", "pair_count", "pair_squares"), 0.0
                ),
            }
        residual = []
        for i, reading in enumerate(readings):
            centre = sum(earlier[i] for earlier in self.past) / (steps + 10)
            residual.append((reading - centre) / sigma)
        squares, counts = [0.0] * self.tensors, [0] * self.tensors
        for (tensor, _, _), r in zip(self.where, residual, strict=True):
            squares[tensor] += r * r
            counts[tensor] += 1
        limit = max(1.25, 1.05 * min(self.variance))
        used = [i for i in self.reuse if self.variance[self.where[i][0]] < limit]
        self.excluded += len(used) < len(self.reuse)
        if steps == 0:
            used = []

        lag_count, lag_squares = [0.0] * self.lags, [0.0] * self.lags
        for lag in range(1, min(steps, self.lags) + 1):
            earlier = self.past[steps - lag]
            lag_count[lag - 1] = float(len(used))
            for i in used:
                lag_squares[lag - 1] += ((earlier[i] - readings[i]) / sigma) ** 2

        broadcast, before = [0.0, 0.0], []
        for i in used:
            if before:
                broadcast[0] += 1
                broadcast[1] += (residual[i] - sum(before) / len(before)) ** 2
            before.append(residual[i])

        pair = [0.0, 0.0]
        for position, i in enumerate(self.reuse):
            same = [k for k in self.reuse[:position] if self.where[k][2] == self.where[i][2]]
            if same and i in used and same[-1] in used:
                pair[0] += 1
                pair[1] += (residual[i] - residual[same[-1]]) ** 2

        self.past.append(readings.copy())
        self.variance = [
            0.9 * v + 0.1 * (min(s / n, 4.0) if n else 4.0)
            for v, s, n in zip(self.variance, squares, counts, strict=True)
        ]
        return {
            "tensor_squares": squares,
            "lag_count": lag_count,
            "lag_squares": lag_squares,
            "broadcast_count": broadcast[0],
            "broadcast_squares": broadcast[1],
            "pair_count": pair[0],
            "pair_squares": pair[1],
        }


def reduced(reducer: WitnessReducer, *step: Any) -> dict[str, Any]:
    """The sums of one step."""
    return {name: column[0] for name, column in reducer.reduce(*step).items()}


def assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    own = {"epoch_count", "epoch_squares"}  # sums over epochs have a twin of their own
    assert set(got) - own == set(expected) - own
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("sigmas", ["constant", "changing"])
@pytest.mark.parametrize("lags", [LAGS, 3, 1])
def test_sums_are_those_of_plain_loops_over_the_whole_past(sigmas, lags):
    rng = generator(1)
    witnesses = choose_witnesses(layout_of((30, 5), (9,), (3,), (1,)), {}, rng)
    fast, naive = WitnessReducer(witnesses, lags), NaiveReducer(witnesses, lags)
    size = sum(witnesses.counts)
    # Data dominate the second tensor for a while: it leaves the re-use tests, and comes back.
    tensor = np.array([j for j, _, _ in naive.where])
    for step in range(75):
        sigma = 1.3 if sigmas == "constant" else float(rng.uniform(0.3, 4.0))
        readings = sigma * rng.standard_normal(size) + 0.2
        readings[tensor == 1] *= 5.0 if 10 <= step < 20 else 1.0
        if step in (0, 15, 40, 41):  # a step that is lost, before the first and among the others
            readings[step % size] = np.nan if step < 41 else np.inf
        assert_same(reduced(fast, readings, sigma), naive.reduce(readings, sigma))
    assert 0 < naive.excluded < 75


@pytest.mark.parametrize("seed", range(6))
def test_the_sums_of_a_block_are_those_of_its_steps(seed):
    rng = generator(seed)
    witnesses = choose_witnesses(layout_of((30, 5), (9,), (0, 3), (1,)), {}, rng)
    blocks, single = WitnessReducer(witnesses, 7), WitnessReducer(witnesses, 7)
    for sizes in rng.integers(1, 12, 12).tolist():
        sigmas = rng.choice([1.0, 1.7], sizes)
        rows = sigmas[:, None] * rng.standard_normal((sizes, sum(witnesses.counts))) + 0.2
        rows[:, :150] *= rng.choice([1.0, 3.0])
        rows[rng.random(sizes) < 0.2, 4] = np.nan
        epochs = np.sort(rng.integers(sizes, size=sizes) // 5)
        got = blocks.reduce(rows, sigmas, epochs)
        for i in range(sizes):
            expected = reduced(single, rows[i], sigmas[i], epochs[i])
            assert_same({name: column[i] for name, column in got.items()}, expected)
            assert np.array_equal(got["epoch_squares"][i], expected["epoch_squares"])


def test_sums_of_many_tensors_use_the_first_witnesses_of_each():
    rng = generator(2)
    witnesses = choose_witnesses(layout_of(*[(80,)] * 60), {}, rng)
    fast, naive = WitnessReducer(witnesses), NaiveReducer(witnesses, LAGS)
    assert len(naive.reuse) == 8 * 60
    for _ in range(3):
        readings = rng.standard_normal(sum(witnesses.counts))
        assert_same(reduced(fast, readings, 1.0), naive.reduce(readings, 1.0))


def test_a_single_witness_has_no_broadcast_pair_or_past():
    sums = reduced(WitnessReducer(Witnesses({0: index(0)})), np.array([1.5]), 0.5)
    assert sums["tensor_squares"].tolist() == [9.0]  # in units of the claimed noise
    assert sums["broadcast_count"] == sums["pair_count"] == 0
    assert not sums["lag_count"].any()


def test_a_tensor_without_coordinates_is_not_the_quietest():
    # Data are loud everywhere: the quietest tensor that has coordinates is used all the same.
    assert choose_witnesses(layout_of((0, 3), (5,)), {}, generator()).counts == (0, 5)
    rng, witnesses = generator(), Witnesses({0: index(), 1: np.arange(20), 2: np.arange(20)})
    fast, naive = WitnessReducer(witnesses), NaiveReducer(witnesses, LAGS)
    for _ in range(20):
        readings = rng.standard_normal(40) * np.repeat([1.6, 4.0], 20)
        sums = reduced(fast, readings, 1.0)
        assert_same(sums, naive.reduce(readings, 1.0))
    assert sums["broadcast_count"] == 19


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_step_that_is_lost_gives_no_sums_and_leaves_no_trace(value):
    rng, witnesses = generator(), Witnesses({0: np.arange(6), 1: np.arange(4)})
    with_it, without = WitnessReducer(witnesses, lags=3), WitnessReducer(witnesses, lags=3)
    for step in range(12):
        if step in (0, 1, 5, 9):
            lost = reduced(with_it, np.where(np.arange(10) == step, value, 1e9), 1.0)
            assert np.isnan(lost["tensor_squares"]).all()
            assert lost["lag_count"].tolist() == [0, 0, 0]
            assert lost["broadcast_count"] == lost["pair_count"] == 0
        readings = rng.standard_normal(10)
        assert_same(reduced(with_it, readings, 1.0), reduced(without, readings, 1.0))


def test_sums_over_epochs_are_differences_at_the_same_place():
    rng = generator(3)
    reducer = WitnessReducer(Witnesses({0: np.arange(20)}))
    kept: dict[tuple[int, int], np.ndarray] = {}
    for epoch in range(4):
        for position in range(5 + epoch % 2):  # epochs of different lengths
            readings = 2.0 * rng.standard_normal(20)
            sums = reduced(reducer, readings, 2.0, epoch)
            kept[epoch, position] = readings
            # In the second epoch the previous one is the first, and counts once.
            others = [epoch - 1] + ([0] if epoch > 1 else [])
            for column in range(2):
                past = kept.get((others[column], position)) if column < len(others) else None
                if past is None:
                    assert sums["epoch_count"][column] == 0
                    continue
                expected = float(np.sum(((readings - past) / 2.0) ** 2))
                assert sums["epoch_count"][column] == 20
                assert sums["epoch_squares"][column] == pytest.approx(expected, rel=1e-5)


def epochs_of(width: int, kept: int) -> _Epochs:
    """Epochs of which so many steps are kept."""
    made = _Epochs(width)
    made._first, made._previous, made._current = (_Trace(width, kept) for _ in range(3))
    return made


@pytest.mark.parametrize("lost", [(), (0,), (1, 3), (0, 1, 2, 3, 4, 5)])
@pytest.mark.parametrize("kept", [2, 5, 100])
def test_epochs_are_compared_as_by_a_plain_dictionary(lost, kept):
    rng, epochs = generator(4), epochs_of(4, kept)
    use = np.array([True, False, True, True])
    past: dict[tuple[int, int], np.ndarray | None] = {}
    compared = 0
    for epoch in range(4):
        for position in range(6):
            readings = rng.standard_normal(4)
            if epoch == 1 and position in lost:
                past[epoch, position] = None
                assert epochs.advance(epoch, np.full(4, np.nan)) == position
                continue
            past[epoch, position] = readings.astype(np.float32) if position < kept else None
            found = epochs.compare([epoch], readings[None], np.array([0.5]), use[None])
            sums = {name: column[0] for name, column in found.items()}
            # In the second epoch the previous one is the first: it counts once.
            others = [epoch - 1] * (epoch > 0) + [0] * (epoch > 1)
            for column in range(2):
                other = past[others[column], position] if column < len(others) else None
                gaps = (
                    []
                    if other is None
                    else [(r - o) / 0.5 for r, o in zip(readings, other, strict=True)]
                )
                terms = [gap**2 for gap, used in zip(gaps, use, strict=False) if used]
                assert sums["epoch_count"][column] == len(terms)
                assert sums["epoch_squares"][column] == pytest.approx(sum(terms), rel=1e-12)
                compared += len(terms)
    assert compared > 0


def test_an_epoch_number_that_comes_back_is_another_epoch():
    """Epochs are told apart by their change alone, as a loader that starts anew makes it."""
    epochs, use = epochs_of(1, 10), np.array([True])
    for epoch, expected in ((0, [0, 0]), (1, [1, 0]), (0, [1, 1])):
        found = epochs.compare([epoch], np.ones((1, 1)), np.ones(1), use[None])
        assert found["epoch_count"].tolist() == [expected]


@pytest.mark.parametrize("kept", [1, 15, 16, 17, 40])
def test_a_trace_keeps_its_first_steps_and_grows_no_further(kept):
    trace = _Trace(3, kept)
    assert trace.at(0) is None
    for step in range(60):
        assert trace.append(np.full(3, np.nan if step == 5 else float(step))) == step
        assert len(trace) == step + 1
        assert len(trace._rows) <= max(16, 2 * (step + 1))
        assert trace.at(step + 1) is None
    assert (len(trace._rows), trace._rows.dtype) == (kept, np.float32)
    for step in range(60):
        found = trace.at(step)
        if step == 5 or step >= kept:
            assert found is None
        else:
            assert found.tolist() == [float(step)] * 3
