"""Where clipping fails: at what gradients are clipped, told by a few more of them.

Each is put in alone, with zeros for the others, or many are equal; what they add to the release
under the same random numbers is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from lightning_audit.replay.replay import Stopped
from lightning_audit.replay.rows_replay import RowsReplay
from lightning_audit.replay.step_replay import StepReplay

#: Gradients of a batch at the least, and the norms that are put in, in clipping norms.
_SEVERAL, _LONG, _SHORT = 3, 1e4, 3.0
#: Tensors in which a gradient lies alone, at the most.
_TENSORS = 6
#: Relative difference of norms that are equal up to rounding.
_EQUAL = 2e-2


def clipping_kind(
    replay: StepReplay, given: RowsReplay, count: int, seed: int, tolerated: float
) -> str:
    """What is done instead of clipping each gradient at the claimed norm.

    Args:
        replay: of the step, in which some gradient adds more than the clipping norm.
        given: takes gradients.
        count: gradients of a usual batch.
        seed: of the replays and of the direction.
        tolerated: rounding, in units of the clipping norm.

    Returns:
        "sum" where all are clipped together, "none" where none is, "norm" where each is clipped at
        a larger norm, "tensors" where each tensor is on its own, "some" where gradients in some
        tensors pass whole; empty where it is none of these.
    """
    if count < _SEVERAL:
        return ""
    batches = _batches(replay, count, seed)
    replay.allow(1 + len(batches))
    try:
        base = given.run(torch.zeros_like(batches["first"]), seed).finite
        if base is None:
            return ""
        added = {}
        for name, rows in batches.items():
            release = given.run(rows, seed).finite
            if release is None:
                return ""
            added[name] = float((release - base).norm())
    except Stopped:
        return ""
    return _kind(added, count, len(replay.sizes), 1.0 + tolerated)


def _batches(replay: StepReplay, count: int, seed: int) -> dict[str, torch.Tensor]:
    """Gradients by what they show, ``[count, d]`` each."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(sum(replay.sizes), generator=generator, dtype=torch.float64)
    dense = dense / dense.norm()

    def alone(gradient: torch.Tensor, at: int) -> torch.Tensor:
        rows = torch.zeros(count, len(gradient), dtype=replay.dtype)
        rows[at] = gradient.to(replay.dtype)
        return rows

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
    """The kind, by what each batch adds, in clipping norms."""
    one, many = added["first"], added["many"]
    parts = [norm for name, norm in added.items() if name.startswith("tensor")]
    if one > allowed and _equal([one, *(added[n] for n in ("last", "many", "many longer"))]):
        return "sum"
    if not (_equal([one, added["last"]]) and _equal([many, count * one])):
        return ""  # it depends on the others, or on the place
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
