"""The shape of the noise: `noise.shape`."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check

# What most of these look for shows in a step or two, with evidence that needs no larger share.
NOISE_SHAPE = Check(
    "noise.shape",
    "noise whose tails are not those of normal noise, or that lies on a lattice",
    title="Distribution of the noise",
    failed_title="Noise is not Gaussian",
    meaning="The noise does not have the tails of a normal distribution, or lies on a lattice, so "
    "the accountant's epsilon does not apply.",
    look_at="Check which distribution is drawn, and whether the noise is rounded, clipped or cast "
    "to low precision afterwards.",
    topic="Noise",
    weight=10,
    group="channel",
    needs="of no step were entries read between its noise and its update",
    each=True,
    always=True,
    doubtful=True,
    private=True,
    fine="the noise has the tails of normal noise, and no lattice",
)

CHECKS = (NOISE_SHAPE,)
