"""Looks at Opacus' steps between examinations, without a replay.

A replay begins in the state after a step, so it does not repeat a fault of every tenth step. Three
relations hold at every step, and a look costs little:

**The clipped sum is made of the rows.** At a few entries the sum is compared with the rows of
per-sample gradients, canaries included: first by Opacus' own rule, else by the linear system whose
solution is the factor of each row. A factor times the norm of its row is what a record adds. A
class that changes rows before it sums them gives no such system, and then nothing is concluded; but
a system that held at earlier steps and no longer holds is reported.

**The noise is at every entry.** Noise minus sum gives the noise itself at all entries: some that
are exactly zero, and rows of a matrix that are too small.

**The generator of the noise is not seeded anew.** Its initial seed is read after every step.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
import torch
from opacus.optimizers import DPPerLayerOptimizer
from scipy import special

from lightning_audit.checks.between import BetweenSteps
from lightning_audit.dpsgd.adapters import shows_its_noise
from lightning_audit.dpsgd.opacus import OpacusStep, as_number
from lightning_audit.hooks.gradient_tap import FINE
from lightning_audit.hooks.step_hooks import MethodHook
from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.session.own_clipping import own_methods
from lightning_audit.session.planner import StepPlanner

# --- What the rows of a step add to its sum.

#: Entries beyond the number of rows that determine their factors; and the least that do.
_SPARE, _LEAST_SPARE = 64, 8
#: Distance of sums that are equal up to rounding, and of sums that surely differ, in units of one
#: plus the norm of the sum.
_EQUAL, _APART = 1e-4, 1e-2
#: Diagonal of the system's triangle, over its largest entry, below which rows are dependent.
_DEPENDENT = 1e-6
#: Standard errors that are subtracted from a factor.
_ERRORS = 6.0

Relation = Literal["rule", "linear", "other", "unclear"]


def parts_of_sum(
    rows: FloatArray, norms: FloatArray, total: FloatArray, tolerance: float = _EQUAL
) -> tuple[Relation, FloatArray]:
    """Return how a clipped sum is made of its rows, and what each row adds to it at least.

    Args:
        rows: per-sample gradients at some entries, in units of the clipping norm, ``[n, m]``.
        norms: norms of the whole gradients, in this unit, ``[n]``.
        total: the sum at these entries, in this unit, ``[m]``.
        tolerance: distance of equal sums, relative to one plus the norm of ``total``.

    Returns:
        "rule" if each row is clipped to norm 1; "linear" if the sum is another combination of the
        rows; "other" if it is none; "unclear" if the entries do not determine it. And what each
        row adds, less `_ERRORS` standard errors, ``[n]``; zeros unless "linear".

    Example:
        >>> rows, norms = np.eye(3, 20), np.ones(3)
        >>> parts_of_sum(rows, norms, rows.sum(0))[0]
        'rule'
        >>> relation, parts = parts_of_sum(rows, norms, 2.0 * rows[0] + rows[1])
        >>> relation, parts.round(3).tolist()
        ('linear', [2.0, 1.0, 0.0])
    """
    found = np.zeros(len(rows))
    known = np.isfinite(rows).all(axis=1) & np.isfinite(norms) & (norms > 0.0)
    if not known.any() or not np.isfinite(total).all():
        return "unclear", found
    size = 1.0 + float(np.linalg.norm(total))
    usual = (rows[known] / np.maximum(norms[known], 1.0)[:, None]).sum(axis=0)
    if float(np.linalg.norm(usual - total)) <= tolerance * size:
        return "rule", found
    # A mask leaves zeros in the sum. What it hides of a row is not part of what the row adds.
    live = total != 0.0
    shown = np.linalg.norm(rows[:, live], axis=1)
    chosen = np.flatnonzero(known & (shown > 0.0))  # not a spike elsewhere, as a canary's
    whole = shown if rows[known][:, ~live].any() else norms
    system = (rows[chosen][:, live] / shown[chosen, None]).T
    spare = system.shape[0] - system.shape[1]
    if not len(chosen) or spare < _LEAST_SPARE:
        return "unclear", found
    q, r = np.linalg.qr(system)
    diagonal = np.abs(np.diag(r))
    if diagonal.min() < _DEPENDENT * diagonal.max():
        return "unclear", found
    factors = scipy.linalg.solve_triangular(r, q.T @ total[live])
    rest = float(np.linalg.norm(system @ factors - total[live]))
    if rest > tolerance * size:
        return ("other" if rest > _APART * size else "unclear"), found
    inverse = scipy.linalg.solve_triangular(r, np.eye(len(r)))
    errors = np.linalg.norm(inverse, axis=1) * rest / math.sqrt(spare)
    sure = np.abs(factors) - _ERRORS * errors
    found[chosen] = sure * whole[chosen] / shown[chosen]
    return "linear", found


# --- What the noise of a step is, at every entry.

#: Entries of a row of a matrix from which on its size is tested.
_WIDE = 32


def least_row(noise: FloatArray, counts: FloatArray) -> float:
    """Return the log p-value of the row of a matrix with the least noise, among all its rows.

    Args:
        noise: sums of squares of the rows' noise, over the claimed variance, ``[rows]``.
        counts: number of terms of each, ``[rows]``.
    """
    wide = counts >= _WIDE
    if not wide.any():
        return 0.0
    least = float(special.gammainc(counts[wide] / 2.0, noise[wide] / 2.0).min())
    return math.log(max(least, 1e-300)) + math.log(wide.sum())


# --- The looks at the steps of one optimizer.

#: Steps at the start that are all looked at, and one in how many later ones: of a class with own
#: code between backward pass and noise, and of Opacus' own classes.
_OWN, _OPACUS = (24, 8), (4, 16)
#: Largest number of rows of a part, and of parts of a step, that are held against the sum.
_MOST, _MOST_PARTS = 512, 8
#: What a record may add beyond the clipping norm by rounding; the same if the clipping norm is
#: that of the noise; entries that determine it.
_BEYOND, _BY_NOISE, _ENOUGH = 0.005, 0.1, 2000
#: Least factor of a row that is certainly a record's own, not one of its views.
_ALONE = 0.75
#: Seeds below this one can be tried; the seed of a generator that nobody has seeded.
_SMALL, _UNSEEDED = 2**32, 67_280_421_310_721
#: Ratio of all noise to the claim, at least and at most, if nothing else was done to the gradient.
_AS_CLAIMED = (0.5, 2.0)


class _Part(NamedTuple):
    """What a look holds of a part of a batch, at some entries of each tensor."""

    at: list[IndexArray]
    rows: list[FloatArray]
    norms: FloatArray
    before: list[FloatArray]
    tolerance: float


class Between:
    """Looks at the steps of an Opacus optimizer.

    Args:
        planner: of the steps.
    """

    def __init__(self, planner: StepPlanner) -> None:
        self._planner = planner
        self.seen = BetweenSteps()
        #: Whether an examination is asked for: a relation no longer holds.
        self.asks = False
        self._rng = np.random.default_rng(planner.config.coin_seed)
        self._first, self._every = _OPACUS
        self._taken = self._parts = 0
        self._looks = False
        self._part: _Part | None = None
        #: Parts of the step, each with its clipped sum and the clipping norm that clipped it.
        self._clipped: list[tuple[_Part, list[FloatArray], list[float]]] = []
        self._norms_then: list[float] = []
        self._norms_now: list[float] = []
        #: Number of steps at which the sum was made of its rows.
        self._held = 0
        self._seed: int | None = None

    @property
    def _step(self) -> OpacusStep:
        step = self._planner.step
        assert isinstance(step, OpacusStep)
        return step

    def hooks(self) -> list[MethodHook]:
        """Hook the optimizer's methods; before other hooks, so that canaries are still inside."""
        optimizer = self._step.optimizer
        names = ("clip_and_accumulate", "add_noise")
        own = own_methods(optimizer) or any(name in vars(optimizer) for name in names)
        self._first, self._every = _OWN if own else _OPACUS
        return [
            MethodHook(optimizer, names[0], self._begin_to_clip, self._end_clipping),
            MethodHook(optimizer, names[1], self._begin_noise, self._end_noise),
        ]

    def _norms(self) -> list[float]:
        """Return the clipping norm, or that of each tensor."""
        optimizer = self._step.optimizer
        if isinstance(optimizer, DPPerLayerOptimizer):
            return [as_number(norm) for norm in optimizer.max_grad_norms]
        return [as_number(optimizer.max_grad_norm)]

    # ------------------------------------------------------------------ the sum and its rows

    def _begin_step(self) -> None:
        self._clipped, self._norms_then = [], []
        self._looks = self._taken < self._first or self._rng.random() < 1.0 / self._every

    @torch.no_grad()
    def _begin_to_clip(self) -> None:
        if not self._parts:
            self._begin_step()
        self._part, self._parts = None, self._parts + 1
        if self._looks and self._parts <= _MOST_PARTS:
            self._norms_then = self._norms()
            self._part = self._read(fresh=self._parts == 1 and self._taken > 0)

    def _read(self, *, fresh: bool) -> _Part | None:
        """Read the rows of a part, and the sum so far, which is zero for the first part."""
        held = [_whole(getattr(p, "grad_sample", None)) for p in self._step.params]
        rows = [h.detach().reshape(len(h), -1) for h in held if h is not None and len(h)]
        count = len(rows[0]) if rows else 0
        same = len(rows) == len(held) and all(len(h) == count for h in rows)
        floats = all(p.dtype in FINE for p in self._step.params)
        if not same or not floats or count > _MOST:
            return None
        sizes = np.array([h.shape[1] for h in rows])
        wanted = np.ceil((2 * count + _SPARE) * sizes / sizes.sum()).astype(int)
        pairs = zip(sizes, wanted, strict=True)
        at = [np.unique(self._rng.integers(size, size=number)) for size, number in pairs]
        norms = [torch.linalg.vector_norm(h, dim=1, dtype=_at_least_single(h)) for h in rows]
        return _Part(
            at,
            [_home(h[:, _on(i, h)]) for h, i in zip(rows, at, strict=True)],
            np.stack([_home(norm) for norm in norms]),
            [np.zeros(len(i)) for i in at] if fresh else self._sums(at),
            max(_EQUAL, *(4.0 * torch.finfo(h.dtype).eps for h in rows)),
        )

    def _sums(self, at: list[IndexArray]) -> list[FloatArray]:
        sums = [getattr(p, "summed_grad", None) for p in self._step.params]
        return [
            np.zeros(len(i)) if s is None else _home(s.detach().reshape(-1)[_on(i, s)])
            for s, i in zip(sums, at, strict=True)
        ]

    @torch.no_grad()
    def _end_clipping(self) -> None:
        if (part := self._part) is not None:
            self._clipped.append((part, self._sums(part.at), self._norms_then))
        self._part = None

    def _hold(self, ratio: float | None) -> None:
        """Compare the sums of a step's parts with their rows.

        Args:
            ratio: size of the noise over its claim, from all entries; None if it is not known.
        """
        for part, after, then in self._clipped:
            pairs = [*zip(after, part.before, strict=True)]
            limits, beyond = self._norms_now, _BEYOND + part.tolerance
            if then != limits:
                if ratio is None:
                    continue
                limits, beyond = [ratio * norm for norm in limits], _BY_NOISE
            if len(limits) == 1:
                groups = [(np.concatenate(part.rows, 1), part.norms, pairs)]
            else:
                each = zip(part.rows, part.norms, pairs, strict=True)
                groups = [(rows, norms[None], [pair]) for rows, norms, pair in each]
            for (rows, norms, sums), limit in zip(groups, limits, strict=True):
                total = np.concatenate([now - before for now, before in sums])
                self._judge(rows, np.linalg.norm(norms, axis=0), total, limit, part, beyond)

    def _judge(
        self,
        rows: FloatArray,
        norms: FloatArray,
        total: FloatArray,
        limit: float,
        part: _Part,
        beyond: float,
    ) -> None:
        if not limit > 0.0:
            return
        relation, parts = parts_of_sum(rows / limit, norms / limit, total / limit, part.tolerance)
        number, fit = self._planner.recorder.steps, self._planner.fit
        self.seen.sums += 1
        if relation == "other" and self._held:
            self.asks |= self.seen.changed_at is None
            self.seen.changed_at = number if self.seen.changed_at is None else self.seen.changed_at
        self._held += relation in ("rule", "linear")
        k = int(np.argmax(parts))
        factor = float(parts[k] * limit / norms[k]) if norms[k] > 0.0 else 0.0
        # Several rows may be views of one record, which averages them.
        alone = (fit is not None and fit.views == 1) or factor > _ALONE
        if alone and parts[k] > 1.0 + beyond:
            self.seen.exceed(number, float(parts[k]))

    # ------------------------------------------------------------------ the noise

    def _begin_noise(self) -> None:
        if not self._parts:  # ghost clipping sums without rows
            self._begin_step()
        self._norms_now = self._norms() if self._looks else []

    @torch.no_grad()
    def _end_noise(self) -> None:
        self._parts, self._taken = 0, self._taken + 1
        if getattr(self._step.optimizer, "rank", 0) != 0:  # the first process adds the noise
            return
        self._look_at_seed()
        if self._looks:
            self._hold(self._look_at_noise())
        self._clipped = []

    def _look_at_seed(self) -> None:
        before, seed = self._seed, self._step.noise_seed()
        if seed is not None:
            self._seed, self.seen.seen_seed = seed, True
            self.seen.unseeded |= seed == _UNSEEDED
            self.seen.seeds += before is not None and before != seed < _SMALL

    def _look_at_noise(self) -> float | None:
        """Test a step's noise at all entries; return its size over the claim, None if unknown."""
        claim = self._step.claim(1)
        norm = math.hypot(*self._norms_now)
        std = claim.noise_multiplier * norm
        held = [(p.grad, getattr(p, "summed_grad", None)) for p in self._step.params]
        pairs = [
            (g.detach(), s.detach().reshape(g.shape))
            for g, s in held
            if g is not None and s is not None and g.numel() == s.numel()
        ]
        if not std > 0.0 or not pairs or any(g.dtype not in FINE for g, _ in pairs):
            return None
        zeros = expected = squares = count = 0.0
        log_p, tensors = 0.0, 0
        for grad, total in pairs:
            wide = grad.reshape(len(grad), -1) if grad.dim() > 1 else grad.reshape(1, -1)
            sums = total.reshape(wide.shape)
            noise, live = wide - sums, wide != 0.0
            rounding = torch.maximum(sums.abs(), noise.abs()) * torch.finfo(wide.dtype).eps
            told = torch.stack(
                [
                    ((noise == 0.0) & (sums != 0.0)).to(wide.dtype).sum(1),
                    rounding.sum(1),
                    (noise / std).square().mul(live).sum(1),
                    live.to(wide.dtype).sum(1),
                ]
            )
            own = _home(told)
            zeros, expected = zeros + own[0].sum(), expected + 0.4 * own[1].sum() / std
            squares, count = squares + own[2].sum(), count + own[3].sum()
            if grad.dim() > 1:
                tensors += 1
                log_p = min(log_p, least_row(own[2], own[3]))
        ratio = math.sqrt(squares / max(count, 1.0))
        low, high = _AS_CLAIMED
        plain = shows_its_noise(self._step.optimizer) or low < ratio < high
        if plain and math.isfinite(squares):
            number = self._planner.recorder.steps
            self.seen.take_noise(number, zeros, expected, log_p + math.log(max(tensors, 1)))
        return ratio if count > _ENOUGH else None


def _whole(held: Any) -> torch.Tensor | None:
    """Return the rows of a parameter, over all accumulated batches."""
    if isinstance(held, list):
        return torch.cat(held) if held else None
    return held if isinstance(held, torch.Tensor) else None


def _at_least_single(tensor: torch.Tensor) -> torch.dtype:
    return tensor.dtype if tensor.dtype in FINE else torch.float32


def _on(index: IndexArray, tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(index).to(tensor.device)


def _home(tensor: torch.Tensor) -> FloatArray:
    return np.asarray(tensor.detach().cpu().double().numpy())
