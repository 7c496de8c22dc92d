"""The checks of noise that is drawn anew for every entry of every step."""

from __future__ import annotations

import dataclasses

from lightning_audit.catalogue.check import Check, FaultRule

#: A fault that several checks tell.
CORRELATED_OVER_STEPS = "noise_correlated_over_steps"

REUSE_LAG = Check(
    "reuse.lag",
    "noise that is not drawn anew",
    weight=80,
    group="reuse",
    needs="no reading was compared with that of an earlier step",
    each=True,
    always=True,
    doubtful=True,
)

REUSE_BROADCAST = dataclasses.replace(
    REUSE_LAG,
    name="reuse.broadcast",
    weight=100,
    needs="no readings of one step were compared with each other",
)

REUSE_PAIR = dataclasses.replace(
    REUSE_LAG,
    name="reuse.pair",
    weight=70,
    needs="no readings of two tensors were compared with each other",
)

RECURRENCE = dataclasses.replace(
    REUSE_LAG,
    name="reuse.recurrence",
    finds="noise that comes back at irregular steps, as from few seeds, or depends on that of "
    "earlier steps otherwise than is claimed",
    # What it looks for shows in a step or two, with evidence that needs no larger share.
    weight=8,
    needs="of no step were entries read between its noise and its update",
    private=True,
    fine="no step's noise was that of an earlier step",
)

#: What the best forecast of the noise leaves of its variance where it tells anything.
_TOLD = 0.97

REUSE_FORECAST = dataclasses.replace(
    RECURRENCE,
    name="reuse.forecast",
    weight=5,
    finds="noise that depends on that of earlier steps: in part, with opposite sign, or so that "
    "it cancels",
    needs="no step's noise was read behind that of another step",
    fine="the noise of a step cannot be told from that of earlier steps",
    faults=(
        FaultRule(
            CORRELATED_OVER_STEPS,
            "noise correlated over steps: the noise of a step depends on that of earlier steps, "
            "otherwise than is claimed",
            "what is kept of the noise from step to step: a momentum, a running sum, a buffer or "
            "a generator that is restored, which the next noise is made of; and, where that is by "
            "design, whether PrivacyClaim(noise_coefficients=...) states the weights of the draws",
            rank=0.5,
            explains_groups=("reuse", "channel", "leakage"),
            applies=lambda seen: seen["left"] < _TOLD,
        ),
    ),
)

REUSE_ENTRIES = dataclasses.replace(
    RECURRENCE,
    name="reuse.entries",
    weight=5,
    finds="entries of a step that share their noise: tiled, mirrored, repeated along an axis",
    needs="of no step whole tensors were read beside their clipped sums",
    fine="no entries of a step share their noise",
    faults=(
        FaultRule(
            "noise_numbers_twice",
            "noise re-used: the same numbers stand at several entries of one step's noise",
            "the shape that the noise is drawn with, and whether it is repeated, mirrored or "
            "rolled to that of the gradient",
            rank=0.6,
            explains_groups=("reuse", "channel", "leakage"),
            applies=lambda seen: seen["left"] < _TOLD,
        ),
    ),
)

NOISE_RESTARTED = Check(
    "reuse.resume",
    "a seeded noise generator started again when the training was resumed",
    weight=2,
    needs="the first steps of the training or after the resume were not read",
    each=True,
    private=True,
    fine="the noise did not start again with the training",
    faults=(
        FaultRule(
            "noise_restarted",
            "noise re-used: a seeded generator started again when the training was resumed",
            "what seeds the noise before a resume: leave seed_everything out there, give it "
            "another seed than the training began with, draw the noise with "
            "PrivacyEngine(secure_mode=True), which no seed determines, or keep the state: "
            "checkpoint['rng'] = torch.get_rng_state() in on_save_checkpoint, "
            "torch.set_rng_state(checkpoint['rng']) in on_load_checkpoint (of a noise_generator: "
            "its get_state and set_state)",
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
    private=True,
    fine="every optimizer began with noise of its own",
    public=("shared",),
    faults=(
        FaultRule(
            "noise_shared_by_optimizers",
            "noise re-used: the generators of two optimizers started in the same state",
            "where the generators of the optimizers are seeded",
            rank=-3,
        ),
    ),
)
