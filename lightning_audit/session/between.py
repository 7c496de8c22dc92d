"""Looks at Opacus' steps between examinations, without a replay.

A replay begins in the state after a step, so it does not repeat a fault of every tenth step. Three
relations hold at every step, and a look costs little:

**The clipped sum is made of the rows.** At a few entries the sum is compared with the rows of
per-sample gradients, canaries included: first by Opacus' own rule, else by the linear system whose
solution is the factor of each row. A factor times the norm of its row is what a record adds. A
class that changes rows before it sums them gives no such system, and then nothing is concluded; but
a system that held at earlier steps and no longer holds is reported. Rows that are clipped per
layer, accumulated or in half precision, and ghost clipping, which has none, are not looked at.

**The noise is at every entry.** Noisy gradient minus sum is the noise alone: entries where it is
exactly zero, and rows of a matrix whose sum of squares is too small for chance.

**The generator of the noise is not seeded again.** Its initial seed is read after every step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPPerLayerOptimizer
from scipy import special

from lightning_audit.dpsgd.adapters import shows_its_noise
from lightning_audit.dpsgd.opacus import as_number
from lightning_audit.hooks.gradient_tap import FINE, summed_by_opacus
from lightning_audit.layout import FloatArray
from lightning_audit.session.own_clipping import own_methods
from lightning_audit.session.planner import StepPlanner
from lightning_audit.stats.clipped_sums import parts_of_sum

# --- The looks at the steps of one optimizer.

#: Steps at the start that are all looked at, and one in how many later ones: of a class with own
#: code between backward pass and noise, and of Opacus' own classes.
_OWN, _OPACUS = (24, 8), (4, 16)
#: Entries that are read beyond twice the number of rows.
_SPARE = 64
#: Largest number of rows that are held against their sum.
_MOST = 512
#: What a record may add beyond the clipping norm by rounding; the same if the clipping norm is
#: that of the noise; entries that determine it.
_BEYOND, _BY_NOISE, _ENOUGH = 0.005, 0.1, 2000
#: Least factor of a row that is certainly a record's own, not one of its views.
_ALONE = 0.75
#: Relative difference of factors that are alike.
_LIKE = 0.02
#: Norm of a row that any clipping reduces, such as a canary's, in units of the clipping norm.
_HUGE = 100.0
#: Entries without noise that are a finding, beyond ten times those that rounding explains.
_ZEROS, _ROUNDED = 5, 10.0
#: Entries of a row from which on its size is tested, and the log p-value that is no chance.
_WIDE, _SURE = 32, math.log(1e-7)
#: Ratio of all noise to the claim, at least and at most, if nothing else was done to the gradient.
_LOW, _HIGH = 0.5, 2.0
#: Seeds below this one can be tried; how often a generator is seeded with one until that counts;
#: and the seed of a `torch.Generator()` that was never seeded.
_SMALL, _SEEDED, _CONSTANT = 2**32, 3, 67_280_421_310_721


class Between:
    """Looks at the steps of an Opacus optimizer.

    Args:
        planner: of the steps.
    """

    def __init__(self, planner: StepPlanner) -> None:
        self._planner = planner
        self._rng = np.random.default_rng(planner.config.coin_seed)
        #: Kind of what was found (`checks.between`) -> the first step, from 0, and its size.
        self.found: dict[str, tuple[int, float]] = {}
        #: How a row came to exceed the clipping norm, see `_clipping`.
        self.clipping = ""
        #: Whether an examination is asked for: the sum is no longer made of its rows.
        self.asks = False
        self._every = _OPACUS
        #: Number of steps, of parts of the present one, and of new seeds.
        self.taken = self._parts = self._seeds = 0
        self._looks = self._held = False
        self._seed: int | None = None
        #: The rows, their norms and the clipping norm when clipping began; then the sum.
        self._rows: tuple[FloatArray, FloatArray, float] | None = None
        self._at: list[torch.Tensor] = []
        self._total: FloatArray = np.zeros(0)
        self._limit = 0.0
        #: Number of looks at noise; entries without noise, and how many rounding explains.
        self._tests, self._zeros, self._rounded = 0, 0.0, 0.0

    @property
    def _step(self) -> Any:
        """The adapter, of Opacus."""
        return self._planner.step

    def begin(self) -> None:
        """Find out, before the session's hooks, whether the optimizer's clipping is own code."""
        optimizer = self._step.optimizer
        held = vars(optimizer).get("clip_and_accumulate")
        users = held is not None and not hasattr(held, "hook")  # and not a hook of ours
        self._every = _OWN if own_methods(optimizer) or users else _OPACUS

    def _note(self, kind: str, size: float = 0.0) -> None:
        self.found.setdefault(kind, (self._planner.recorder.steps, size))

    # ------------------------------------------------------------------ the sum and its rows

    def _begin_step(self) -> None:
        first, every = self._every
        self._looks = self.taken < first or self._rng.random() < 1.0 / every
        self._rows = None

    @torch.no_grad()
    def clipping_begins(self) -> None:
        """Read the rows of a part of the step, canaries included, if this step is looked at."""
        if not self._parts:
            self._begin_step()
        self._rows, self._parts = None, self._parts + 1
        if self._looks:
            self._read()

    def _read(self) -> None:
        """Read the rows of a part, and the sum so far, which is zero for the first part."""
        optimizer = self._step.optimizer
        held = [getattr(p, "grad_sample", None) for p in self._step.params]
        fine = [h for h in held if isinstance(h, torch.Tensor) and h.dtype in FINE]
        count = len(fine[0]) if fine and not isinstance(optimizer, DPPerLayerOptimizer) else 0
        if not 0 < count <= _MOST or [len(h) for h in fine] != [count] * len(held):
            return
        rows = [h.detach().reshape(count, -1) for h in fine]
        sizes = np.array([h.shape[1] for h in rows])
        wanted = np.ceil((2 * count + _SPARE) * sizes / sizes.sum()).astype(int)
        pairs = zip(sizes, wanted, strict=True)
        places = (self._rng.integers(size, size=number) for size, number in pairs)
        self._at = [torch.from_numpy(np.unique(at)) for at in places]
        norms = torch.stack([h.norm(dim=1).cpu().double() for h in rows]).norm(dim=0).numpy()
        few = [_home(h[:, at.to(h.device)]) for h, at in zip(rows, self._at, strict=True)]
        self._rows = np.concatenate(few, 1), norms, as_number(optimizer.max_grad_norm)
        self._total = 0.0 * self._sum() if self._parts == 1 and self.taken else self._sum()

    def _sum(self) -> FloatArray:
        sums = summed_by_opacus(self._step.params)
        parts = [
            np.zeros(len(at)) if s is None else _home(s.detach().reshape(-1)[at.to(s.device)])
            for s, at in zip(sums, self._at, strict=True)
        ]
        return np.concatenate(parts)

    @torch.no_grad()
    def clipping_ends(self) -> None:
        """Read what clipping has added to the sum."""
        if self._rows is not None:
            self._total = self._sum() - self._total

    def _hold(self, ratio: float | None) -> None:
        """Compare the sum with its rows.

        Args:
            ratio: size of the noise over its claim, from all entries; None if it is not known.
        """
        assert self._rows is not None
        rows, norms, then = self._rows
        limit, beyond = self._limit, _BEYOND
        if then != limit:
            limit, beyond = (ratio or 0.0) * limit, _BY_NOISE
        if not limit > 0.0:
            return
        relation, parts = parts_of_sum(rows / limit, norms / limit, self._total / limit)
        if relation == "other" and self._held:
            self.asks |= "sum" not in self.found
            self._note("sum")
        self._held |= relation in ("rule", "linear")
        k, planner = int(np.argmax(parts)), self._planner
        # Several rows may be views of one record, which averages them.
        alone = (planner.tried and planner.fit.views == 1) or parts[k] * limit > _ALONE * norms[k]
        if alone and parts[k] > 1.0 + beyond:
            self._note("row", float(parts[k]))
            self.clipping = self.clipping or _clipping(parts, norms / limit)

    # ------------------------------------------------------------------ the noise

    def noise_begins(self) -> None:
        """Read the clipping norm that the noise is in proportion to."""
        if not self._parts:  # ghost clipping sums without rows
            self._begin_step()
        self._limit = as_number(self._step.optimizer.max_grad_norm)

    @torch.no_grad()
    def noise_ends(self) -> None:
        """Judge the step's seed, noise and sum, while its canaries are still inside."""
        self._parts, self.taken = 0, self.taken + 1
        if getattr(self._step.optimizer, "rank", 0) != 0:  # the first process adds the noise
            return
        before, self._seed = self._seed, self._step.noise_seed()
        if self._seed == _CONSTANT:
            self._note("constant")
        if self._seed is not None and before is not None:
            self._seeds += before != self._seed < _SMALL
        if self._seeds >= _SEEDED:
            self._note("seeded")
        if self._looks:
            ratio = self._look_at_noise()
            if self._rows is not None:
                self._hold(ratio)

    def _look_at_noise(self) -> float | None:
        """Test a step's noise at all entries; return its size over the claim, None if unknown."""
        std = self._step.claim(1).noise_multiplier * self._limit
        params = self._step.params
        held = zip((p.grad for p in params), summed_by_opacus(params), strict=True)
        pairs = [(g, s) for g, s in held if g is not None and s is not None and g.dtype in FINE]
        if not std > 0.0 or not pairs or _few_values(pairs[0][0]):
            return None
        rows = [noise_by_row(grad.detach(), total.detach(), std) for grad, total in pairs]
        zeros, rounded, squares, counts = np.concatenate(rows, 1)
        ratio = math.sqrt(squares.sum() / max(counts.sum(), 1.0))
        if shows_its_noise(self._step.optimizer) or _LOW < ratio < _HIGH:
            self._tests += 1
            self._zeros, self._rounded = self._zeros + zeros.sum(), self._rounded + rounded.sum()
            if self._zeros > _ZEROS + _ROUNDED * self._rounded:
                self._note("zeros", float(self._zeros))
            low = special.gammainc(counts / 2.0, squares / 2.0)[counts >= _WIDE]
            # Looks share the significance: the weights 1 / (k (k + 1)) add up to 1.
            tests = max(len(low), 1) * self._tests * (self._tests + 1.0)
            if math.log(max(low.min(initial=1.0), 1e-300)) + math.log(tests) < _SURE:
                self._note("quiet")
        return ratio if counts.sum() > _ENOUGH else None


def _few_values(grad: torch.Tensor) -> bool:
    """Return whether a noisy gradient was rounded, as to its signs: then equal sums are chance."""
    some = grad.detach().reshape(-1)[:_ENOUGH]
    return 2 * len(torch.unique(some)) < int((some != 0.0).sum())


def _clipping(parts: FloatArray, norms: FloatArray) -> str:
    """Return how rows were clipped: "none", "sum" for all by one factor, or empty.

    Args:
        parts: what each row adds, in units of the clipping norm, ``[n]``.
        norms: of the rows, in this unit, ``[n]``.
    """
    known = parts > 0.0
    factors = parts[known] / norms[known]
    if len(factors) < 2 or np.ptp(factors) > _LIKE * factors.max():
        return ""
    if abs(factors.max() - 1.0) > _LIKE:
        return "sum"
    return "none" if norms[known].max() > _HUGE else ""  # a canary, which outlier clipping meets


def noise_by_row(grad: torch.Tensor, total: torch.Tensor, std: float) -> FloatArray:
    """Return, of each row of a tensor: entries without noise, how many rounding explains, ...

    ... the sum of squares over the claimed variance, and the number of entries, ``[4, rows]``.
    Entries that are exactly zero, as a mask leaves them, are none.
    """
    wide = grad.reshape(len(grad) if grad.dim() > 1 else 1, -1)
    sums = total.reshape(wide.shape)
    noise, live = wide - sums, wide != 0.0
    rounding = torch.maximum(sums.abs(), noise.abs()) * (0.4 * torch.finfo(wide.dtype).eps / std)
    terms = [(noise == 0.0) & live, rounding, (noise / std).square() * live, live]
    return _home(torch.stack([term.to(wide.dtype).sum(1) for term in terms]))


def _home(tensor: torch.Tensor) -> FloatArray:
    return np.asarray(tensor.detach().cpu().double().numpy())
