"""Rules that name the fault if `noise.shape` is violated: repeated values, or another shape."""

from __future__ import annotations

from lightning_audit.checks.base.candidates import Candidate, Case
from lightning_audit.checks.base.registry import group
from lightning_audit.checks.noise.noise_at_entries import NOISE_ENTRIES
from lightning_audit.checks.noise.noise_faults import added_ratio
from lightning_audit.checks.noise.normal_noise import NOISE_SHAPE
from lightning_audit.checks.randomness.shared_entries import REUSE_ENTRIES

#: Headlines of the faults that no check names alone.
HEADLINES = {
    "noise_repeated_in_step": "Noise repeats within a step",
}
#: Least share of repeated values in a step; ratio to the claim below which there is no noise.
_REPEATED, _NOTHING = 0.25, 1e-3


def repeated_in_step(case: Case) -> list[Candidate]:
    """Return the fault if many entries of a step share values, until a check of `reuse` sees it."""
    shape = case.violated.get(NOISE_SHAPE.name)
    share = 0.0 if shape is None else shape.evidence.get("repeated", 0.0)
    if (
        case.monitor is None
        or share < _REPEATED
        or case.first_of(group("reuse"))
        or added_ratio(case) < _NOTHING
        or _of_few_entries(case)
    ):
        return []
    found = case.candidate(
        "noise_repeated_in_step",
        case.first_of(case.sizes) or NOISE_SHAPE.name,
        f"noise re-used within a step: {share:.0%} of the values that are read occur at another "
        "entry, too",
        "whether each tensor draws its own noise, in its own shape: no seed or key may serve "
        "several tensors, and no value may be broadcast",
        {"repeated": share},
        explains=(*case.sizes, *case.beyond),
    )
    return [found]


def noise_of_another_shape(case: Case) -> list[Candidate]:
    """Return the fault if the noise has the right size and another distribution."""
    seen = case.violated.get(NOISE_SHAPE.name)
    if case.monitor is None or seen is None or repeated_in_step(case) or _of_few_entries(case):
        return []
    found = case.candidate(
        "noise_of_another_shape",
        NOISE_SHAPE.name,
        "noise of another shape: its standard deviation is right and its distribution is not the "
        "normal one that the accountant assumes",
        "which distribution the noise is drawn from, and whether it is rounded, clipped or cast to "
        "a type of low precision afterwards",
    )
    return [found]


def _of_few_entries(case: Case) -> bool:
    """Whether ties come from entries without noise, or from entries that share their noise."""
    checks = [NOISE_ENTRIES, REUSE_ENTRIES]
    return any(
        rule.applies(case.violated[check.name].evidence)
        for check in checks
        if check.name in case.violated
        for rule in check.faults
    )
