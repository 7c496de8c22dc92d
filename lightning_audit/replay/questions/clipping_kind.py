"""Classify a fault of clipping by a few more replays.

The replays use a single gradient with zeros for the others, many equal gradients, or records in
another order. Their releases under the same random numbers are compared.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from lightning_audit.canaries.sample_batches import leaves, rows, taken
from lightning_audit.replay.random_places import same_numbers
from lightning_audit.replay.replay import Replay, Stopped
from lightning_audit.replay.step_replay import StepReplay

#: Replays a step with gradients in units of the clipping norm, ``[n, d]``, under a seed.
Given = Callable[[torch.Tensor, int], Replay]

#: Smallest number of gradients of a batch, and the norms used, in units of the clipping norm.
_SEVERAL, _LONG, _SHORT = 3, 1e4, 3.0
#: Largest number of tensors that are tested with a gradient in one tensor alone.
_TENSORS = 6
#: Relative difference of norms that are equal up to rounding.
_EQUAL = 2e-2
#: Change of a release by swapped records, in units of the clipping norm, that is more than
#: rounding.
_MOVES = 0.05


def sensitivity_kind(
    replay: StepReplay, batches: Sequence[Any], seed: int, tolerated: float, worst: float
) -> str:
    """Classify why one record moves a release by more than the clipping norm.

    Args:
        replay: of the step.
        batches: the physical batches of one logical step.
        seed: of the replays.
        tolerated: rounding, in units of the clipping norm.
        worst: largest change by a record, in units of the clipping norm.

    Returns:
        The kind of fault in the optimizer's clipping alone, see `clipping_kind`. If that is
        correct: "rows" if several gradients of a record are clipped one by one, "parts" if a
        record's contribution depends on the part of a split batch that it is in. Otherwise empty.
    """
    largest, kind = max(batches, key=rows), ""

    def alone(gradients: torch.Tensor, seed: int) -> Replay:
        return replay.run([largest], seed, rows=gradients, alone=True)

    if replay.clips_alone:
        kind = clipping_kind(replay, alone, rows(largest), seed, tolerated)
    with contextlib.suppress(Stopped):
        if not kind and _has_several_rows(replay, batches, seed, tolerated, worst):
            kind = "rows"
        if not kind and _parts_differ(replay, batches, seed, tolerated):
            kind = "parts"
    return kind


def _parts_differ(replay: StepReplay, batches: Sequence[Any], seed: int, tolerated: float) -> bool:
    """Return whether swapping records between parts of the batch changes a release.

    Swapping two pairs must change it by the sum of both changes, as if each part had a weight:
    changes by records whose gradients depend on other records do not add up.
    """
    base = replay.usual(batches, seed)
    within = len(batches) == 1
    sizes = [len(n) for n in base.norms] if within else [rows(batch) for batch in batches]
    ends = torch.tensor(sizes, dtype=torch.long).cumsum(0).tolist()
    large = [number for number, size in enumerate(sizes) if size > 1]
    joined = _joined(batches)
    if len(large) < 2 or joined is None or rows(joined) != ends[-1]:
        return False
    places = list(range(ends[-1]))
    parts = [places[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    one, other = parts[large[0]], parts[large[-1]]
    firsts, lasts = {one[0]: other[0], other[0]: one[0]}, {one[-1]: other[-1], other[-1]: one[-1]}
    turned = {a: b for part in parts for a, b in zip(part, reversed(part), strict=True)}
    replay.allow(4)
    moved = []
    for trade in (turned, firsts, lasts, firsts | lasts):
        order = [trade.get(place, place) for place in places]
        cuts = [places] if within else parts
        changed = [taken(joined, [order[place] for place in cut]) for cut in cuts]
        again = replay.run(changed, seed)
        if again.finite is None or not same_numbers(base, again):
            return False
        if len(again.release) != len(base.release):
            return False
        moved.append(again.release - base.release)
    in_part, first, last, both = moved
    alike = max(float(in_part.norm()), float((both - first - last).norm())) <= 2.0 * tolerated
    return alike and max(float(first.norm()), float(last.norm())) > _MOVES


def _joined(batches: Sequence[Any]) -> Any:
    """Concatenate the physical batches; None if their records have different shapes."""
    shapes = {tuple(tensor.shape[1:] for tensor in leaves(batch)) for batch in batches}
    if len(shapes) > 1:
        return None
    return _pytree.tree_map(lambda *tensors: torch.cat(tensors), *batches)


def _has_several_rows(
    replay: StepReplay, batches: Sequence[Any], seed: int, tolerated: float, worst: float
) -> bool:
    """Return whether each record has several gradients, each clipped as claimed."""
    found = replay.usual(batches, seed).rows
    times, rest = divmod(found, max(sum(map(rows, batches)), 1))
    if times < 2 or rest or worst > times * (1.0 + tolerated):
        return False
    zeros = torch.zeros(found, sum(replay.sizes), dtype=replay.dtype)
    long = zeros.clone()
    long[0] = _LONG * _dense(replay, seed)
    replay.allow(2)
    without, one = (replay.run(batches, seed, rows=each).finite for each in (zeros, long))
    if without is None or one is None:
        return False
    return float((one - without).norm()) <= 1.0 + tolerated


def _dense(replay: StepReplay, seed: int) -> torch.Tensor:
    """Return a random gradient of norm 1 over all tensors, ``[d]``."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(sum(replay.sizes), generator=generator, dtype=torch.float64)
    unit: torch.Tensor = dense / dense.norm()
    return unit


def clipping_kind(replay: StepReplay, given: Given, count: int, seed: int, tolerated: float) -> str:
    """Classify what the step does instead of clipping each gradient at the claimed norm.

    Args:
        replay: of a step in which some gradient adds more than the clipping norm.
        given: replays the step with gradients.
        count: gradients of a usual batch.
        seed: of the replays and of the direction.
        tolerated: rounding, in units of the clipping norm.

    Returns:
        "sum" if the sum is clipped, "none" if nothing is, "norm" if each gradient is clipped at a
        larger norm, "tensors" if each tensor is clipped on its own, "some" if gradients in some
        tensors are not clipped, "batch" if the clipping norm depends on the batch's gradients;
        otherwise empty.
    """
    if count < _SEVERAL:
        return ""
    batches = _batches(replay, count, seed)
    replay.allow(1 + len(batches))
    try:
        base = given(torch.zeros_like(batches["first"]), seed).finite
        if base is None:
            return ""
        added = {}
        for name, gradients in batches.items():
            release = given(gradients, seed).finite
            if release is None:
                return ""
            added[name] = float((release - base).norm())
    except Stopped:
        return ""
    return _kind(added, count, len(replay.sizes), 1.0 + tolerated)


def _batches(replay: StepReplay, count: int, seed: int) -> dict[str, torch.Tensor]:
    """Return the batches of gradients to replay, ``[count, d]`` each, by name."""
    dense = _dense(replay, seed)

    def alone(gradient: torch.Tensor, at: int) -> torch.Tensor:
        gradients = torch.zeros(count, len(gradient), dtype=replay.dtype)
        gradients[at] = gradient.to(replay.dtype)
        return gradients

    batches = {
        "first": alone(_LONG * dense, 0),
        "last": alone(_LONG * dense, -1),
        "longer": alone(2.0 * _LONG * dense, -1),
        "short": alone(_SHORT * dense, count // 2),
        "many": (_LONG * dense).to(replay.dtype).repeat(count, 1),
        "many longer": (2.0 * _LONG * dense).to(replay.dtype).repeat(count, 1),
    }
    ends = torch.tensor(replay.sizes).cumsum(0).tolist()
    chosen = torch.linspace(0, len(ends) - 1, min(_TENSORS, len(ends))).round().int().tolist()
    for number in dict.fromkeys(chosen):
        own = torch.zeros_like(dense)
        begin = ends[number] - replay.sizes[number]
        own[begin : ends[number]] = dense[begin : ends[number]]
        batches[f"tensor {number}"] = alone(_LONG * own / own.norm(), -1)
    return batches


def _kind(added: Mapping[str, float], count: int, tensors: int, allowed: float) -> str:
    """Return the kind, given the change by each batch in units of the clipping norm."""
    one, many = added["first"], added["many"]
    parts = [norm for name, norm in added.items() if name.startswith("tensor")]
    if one > allowed and _equal([one, *(added[n] for n in ("last", "many", "many longer"))]):
        return "sum"
    if not _equal([one, added["last"]]):
        return ""  # depends on the position in the batch
    if not _equal([many, count * one]):
        grows = many > count * allowed and _equal([2.0 * many, added["many longer"]])
        return "batch" if grows and max(one, *parts) < _LONG / (1.0 + _EQUAL) else ""
    if _equal([one, *parts, _LONG, added["longer"] / 2.0]) and _equal([added["short"], _SHORT]):
        return "none"
    whole = [norm for norm in parts if _equal([norm, _LONG])]
    if whole and all(norm <= allowed for norm in parts if norm not in whole):
        return "some" if len(whole) < len(parts) else ""
    steady = one > allowed and _equal([one, added["longer"]])
    if steady and _equal([one, *parts]) and _equal([added["short"], min(one, _SHORT)]):
        return "norm"
    by_parts = math.sqrt(tensors) * parts[0]
    return "tensors" if steady and max(parts) <= allowed and _equal([one, by_parts]) else ""


def _equal(norms: Sequence[float]) -> bool:
    return max(norms) <= (1.0 + _EQUAL) * min(norms)
