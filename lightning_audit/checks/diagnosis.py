"""From findings to the likely fault, in words an engineer can act on.

Rules, in the order in which they are tried; each rests on numbers that the checks show as their
evidence. The first finding that explains the others gives the name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.results import CheckResult

#: A residual this much smaller than the plain one speaks for re-used noise, not for small noise.
_REUSE_GAIN = 0.7
#: Ratios of reading to claim at which the noise of a tensor is taken to be right.
_HEALTHY = (0.95, 1.08)
#: Canaries at least this large tell a clipped one from one that is not, whatever the noise.
_OVERSIZE = 20.0
_NOISE = ("noise", "noise.tensor", "noise.canary", "noise.step")


@dataclass(frozen=True)
class Fault:
    """A likely fault.

    Args:
        sentence: what is wrong, in words.
        finding: name of the check that shows it.
    """

    sentence: str
    finding: str


def likely_fault(
    violated: Sequence[CheckResult], monitor: AuditMonitor | None, oversize: float
) -> Fault:
    """Name the fault behind the violated checks.

    Args:
        violated: the checks that count as violated, at least one.
        monitor: all checks after the last step; None if no step was observed.
        oversize: norm of the canaries over the clipping norm.

    Returns:
        The fault.
    """
    names = [check.name for check in violated]
    if "gradient_replaced" in names:
        return Fault(
            "gradient replaced: the closure ran again inside the optimizer's step, and the update "
            "used the raw gradient, without clipping and noise",
            "gradient_replaced",
        )
    if "no_dp" in names:
        return Fault("no DP-SGD: an optimizer steps that is not the private one", "no_dp")
    if "unsynchronised" in names:
        return Fault(
            "no synchronised DP-SGD: each process clips, adds noise and trains on its own, and the "
            "first one's model is kept",
            "unsynchronised",
        )
    if "reuse.resume" in names:
        return Fault(
            "noise re-used: a seeded generator started again when the training was resumed",
            "reuse.resume",
        )
    if "clipping.norm" in names:
        return Fault(
            "clipping by wrong norms: samples are clipped by norms that their gradients exceed",
            "clipping.norm",
        )
    if "finite" in names:
        return Fault(
            "not a number: a record whose gradient is not finite shows in the released gradient",
            "finite",
        )
    if "coupling" in names:
        return Fault(
            "records are not independent: a record's gradient depends on the others in its batch",
            "coupling",
        )
    if "reuse.optimizers" in names:
        return Fault(
            "noise re-used: the generators of two optimizers started in the same state",
            "reuse.optimizers",
        )
    if "logical_batch" in names:
        return Fault(
            "logical batches run together: a record can count twice in one step",
            "logical_batch",
        )
    if monitor is not None:
        if "sensitivity" in names:
            return Fault(_clipping_fault(monitor, oversize), "sensitivity")
        if "mu" in names and not set(names) & set(_NOISE) and monitor.sensitivity.shift_lower > 2:
            return Fault(_clipping_fault(monitor, oversize), "mu")
        reuse = _reuse_fault(names, monitor)
        if reuse:
            return reuse
        finding = next((name for name in _NOISE if name in names), None)
        if finding == "noise.step":
            return Fault("noise of some steps: a few steps have too little noise, or none", finding)
        if finding:
            return Fault(_noise_fault(monitor), finding)
    finding = next((name for name in ("mu", "epsilon") if name in names), None)
    if finding:
        return Fault("more leaks than the claim allows, by noise and clipping together", finding)
    if "sampling.not_poisson" in names:
        return Fault(
            "wrong sampling: the loader is not Poisson although the accountant supposes it",
            "sampling.not_poisson",
        )
    if "sampling.repeated" in names:
        return Fault(
            "wrong sampling: every process draws from all records, so a record may enter a step "
            "several times",
            "sampling.repeated",
        )
    if "sampling.rate" in names:
        return Fault(
            "wrong sampling: the loader draws more often than the accountant is told",
            "sampling.rate",
        )
    return Fault("wrong accounting: the steps that ran cost more than is claimed", names[0])


def _clipping_fault(monitor: AuditMonitor, oversize: float) -> str:
    shift = monitor.sensitivity.shift
    if monitor.sensitivity.sum_is_clipped:
        return (
            "clipping after averaging: the batch's mean gradient is clipped, not each sample's "
            "gradient before the sum"
        )
    loose = _unclipped(monitor, oversize)
    if loose:
        return (
            "clipping misses some tensors: "
            f"{', '.join(f'`{label}`' for label in loose)} passed with the full norm, and the "
            "other canaries were clipped"
        )
    if shift > 0.5 * oversize:
        return "no clipping: a canary passes with its full norm"
    spread, single = _shifts_by_width(monitor)
    if spread > 1.5 and single - 1.0 < (spread - 1.0) / 3.0:
        return (
            "clipping per tensor: each tensor is clipped to max_grad_norm on its own, so a whole "
            f"gradient passes with {spread:.3g} times that norm"
        )
    if monitor.header.canaries[0].endswith("(input)"):
        return (
            "clipping norm too large, or a record that counts more than once: a record adds "
            f"{shift:.3g} times max_grad_norm"
        )
    return f"clipping norm too large: gradients are clipped at {shift:.3g} times max_grad_norm"


def _unclipped(monitor: AuditMonitor, oversize: float) -> tuple[str, ...]:
    """Labels of the canaries that were not clipped, where most of them were; else none."""
    shifts = monitor.sensitivity.shifts()
    loose = shifts > 0.5 * oversize
    clipped = shifts < 0.1 * oversize
    if oversize < _OVERSIZE or not loose.any() or clipped.sum() <= loose.sum():
        return ()
    labels = np.array(monitor.header.canaries)[loose]
    return tuple(dict.fromkeys(labels.tolist()))


def _shifts_by_width(monitor: AuditMonitor) -> tuple[float, float]:
    """Mean shift of the canaries over many tensors, and of those in one; NaN where unseen."""
    shifts = monitor.sensitivity.shifts()
    wide, pair = (
        np.array([label.startswith(kind) for label in monitor.header.canaries])
        for kind in ("Spread", "BlockPair")
    )
    seen = ~np.isnan(shifts)
    groups = (shifts[wide & seen], shifts[~wide & ~pair & seen])
    spread, single = (float(np.mean(g)) if len(g) else math.nan for g in groups)
    return spread, single


def _reuse_fault(names: Sequence[str], monitor: AuditMonitor) -> Fault | None:
    reuse = monitor.reuse
    noise = monitor.witness_noise
    quiet = float(noise.ratios().min())
    for name, sentence in (
        ("reuse.broadcast", "one noise value is shared by all coordinates of a step"),
        ("reuse.pair", "one noise key is used for several tensors"),
    ):
        ratio = reuse.residual_ratio(name)
        if name in names and ratio is not None and ratio < _REUSE_GAIN * quiet:
            return Fault(f"noise re-used: {sentence}", name)
    if "reuse.lag" in names:
        # Fresh noise differs from earlier noise by sqrt(2) times its size, whatever the size. Where
        # the noise is constant the centre learns it, and the plain residual is small as well; but
        # then the re-use is seen first.
        noise_at, lag_at = noise.pooled.violated_at, reuse.evidence["reuse.lag"].violated_at
        first = noise_at is None or (lag_at is not None and lag_at < noise_at)
        if not first and reuse.lag_ratio() / math.sqrt(2.0) >= _REUSE_GAIN * quiet:
            return None
        return Fault(f"noise re-used: the same noise is added {reuse.period}", "reuse.lag")
    return None


def _noise_fault(monitor: AuditMonitor) -> str:
    noise = monitor.witness_noise
    ratios = noise.ratios()
    flagged = noise.flagged_tensors()
    smallest = float(ratios.min())
    others = [r for t, r in zip(monitor.header.tensors, ratios, strict=True) if t not in flagged]
    # The others read the claimed noise, and they are the majority: the scale is right there. (A
    # few tensors that read about the claim may do so by their data alone.)
    right = bool(others) and _HEALTHY[0] < float(np.median(others)) < _HEALTHY[1]
    if flagged and right and len(flagged) <= len(others):
        shown = ", ".join(f"`{name}`" for name in flagged[:5])
        what = "is missing" if smallest < 0.1 else f"is {smallest:.3g} times the claim or less"
        return f"noise of some tensors: the noise of {shown} {what}"
    batch = float(monitor.last_scale)
    if batch > 1 and 0.97 < smallest * batch < 1.4:
        return (
            f"noise divided by the batch size: noise and data are {smallest:.3g} times the claimed "
            f"noise, about one over the expected batch size of {batch:g}"
        )
    if smallest < 0.1:
        return "no noise: the gradients are released without noise, or with next to none"
    return f"noise scale too small: the noise is {smallest:.3g} times the claim or less"


def loses_no_privacy(violated: Sequence[CheckResult], monitor: AuditMonitor) -> bool:
    """Whether noise and clipping err together, so that the leakage stays within the claim.

    Args:
        violated: the checks that count as violated.
        monitor: all checks after the last step.
    """
    names = [check.name for check in violated]
    reuse = [name for name in names if name.startswith("reuse.")]
    # Too small a noise makes the differences small by which re-use is found.
    if not set(names) <= {*_NOISE, *reuse, "sensitivity"} or _reuse_fault(names, monitor):
        return False
    ratios = monitor.witness_noise.ratios()
    signal = monitor.sensitivity
    # The shift may be as large as its estimate plus its error, the noise as small as in any tensor.
    upper = 2.0 * signal.shift - signal.shift_lower
    return upper < 1.05 * float(ratios.min())
