"""The checks of noise that is drawn anew for every entry of every step."""

from __future__ import annotations

import dataclasses

from lightning_audit.catalogue.check import Check, FaultRule

REUSE_LAG = Check(
    "reuse.lag",
    "noise that is not drawn anew",
    share=0.09,
    group="reuse",
    needs="no reading was compared with that of an earlier step",
    each=True,
    always=True,
    doubtful=True,
)

REUSE_BROADCAST = dataclasses.replace(
    REUSE_LAG,
    name="reuse.broadcast",
    share=0.1,
    needs="no readings of one step were compared with each other",
)

REUSE_PAIR = dataclasses.replace(
    REUSE_LAG,
    name="reuse.pair",
    share=0.08,
    needs="no readings of two tensors were compared with each other",
)

RECURRENCE = dataclasses.replace(
    REUSE_LAG,
    name="reuse.recurrence",
    finds="noise that comes back at irregular steps, as from few seeds, or depends on that of "
    "earlier steps otherwise than is claimed",
    # What it looks for shows in a step or two, with evidence that needs no larger share.
    share=0.01,
    needs="of no step were entries read between its noise and its update",
)

NOISE_RESTARTED = Check(
    "reuse.resume",
    "a seeded noise generator started again when the training was resumed",
    wrong=lambda seen: seen["restarted"] is not False,
    faults=(
        FaultRule(
            "noise_restarted",
            "noise re-used: a seeded generator started again when the training was resumed",
            "where the noise generator is seeded, and whether its state is in the checkpoint",
            rank=-5,
            explains=("reuse.lag", "reuse.recurrence"),
        ),
    ),
)

NOISE_SHARED = Check(
    "reuse.optimizers",
    "the noise generators of two private optimizers started in one state",
    always=True,
    optimizers=2,
    wrong=lambda seen: seen["shared"] is not False,
    faults=(
        FaultRule(
            "noise_shared_by_optimizers",
            "noise re-used: the generators of two optimizers started in the same state",
            "where the generators of the optimizers are seeded",
            rank=-3,
        ),
    ),
)
