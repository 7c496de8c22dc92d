"""The shape of the noise: `noise.shape`."""

from __future__ import annotations

from lightning_audit.checks.base.check import Check

# What most of these look for shows in a step or two, with evidence that needs no larger share.
NOISE_SHAPE = Check(
    "noise.shape",
    "noise whose tails are not those of normal noise, or that lies on a lattice",
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
