"""The check of the noise by replay: at every entry, by other random numbers and in other steps."""

from __future__ import annotations

import dataclasses

from lightning_audit.catalogue.check import Check, FaultRule, Group
from lightning_audit.catalogue.noise_checks import NOISE_WHOLE
from lightning_audit.catalogue.replay_checks import unanswered


def _rule(
    kinds: tuple[str, ...],
    name: str,
    sentence: str,
    look_at: str,
    rank: float,
    groups: tuple[Group, ...] = (),
) -> FaultRule:
    return FaultRule(
        name,
        sentence,
        look_at,
        rank,
        explains_groups=("noise", "reuse", "channel", "leakage", *groups),
        applies=lambda seen: seen.get("of") in kinds,
    )


REPLAY_NOISE = Check(
    "replay.noise",
    "noise that replays show to be missing at some entries, too small, used twice, of few values, "
    "not normal, or dependent on the records or on earlier noise",
    weight=20,
    group="channel",
    needs="the noise of no step was examined",
    always=True,
    blocks=unanswered,
    private=True,
    fine="the noise of replayed steps is as claimed at every entry",
    # Where a check of the steps tells the same fault, it has the same name.
    faults=(
        _rule(
            ("records",),
            "noise_depends_on_records",
            "noise that depends on the records: with other records, and the same random numbers, "
            "it is another one",
            "what the noise's size and seed are computed of: nothing of a batch may be in it",
            -10,
            ("replay", "clipping"),
        ),
        _rule(
            ("one_value",),
            "one_value_for_all_coordinates",
            "noise re-used: one noise value is shared by all coordinates of a step",
            "the shape that the noise is drawn with: it must be that of the gradient",
            -10,
        ),
        _rule(
            ("tensors",),
            "one_key_for_all_tensors",
            "noise re-used: one noise key is used for several tensors",
            "whether one seed or draw serves several tensors of a step",
            -10,
        ),
        _rule(
            ("twice",),
            "noise_numbers_twice",
            "noise re-used: the same numbers stand at several entries of one step's noise",
            "the shape that the noise is drawn with, and whether it is repeated, mirrored or "
            "rolled to that of the gradient",
            -10,
        ),
        _rule(
            ("draws",),
            "few_seeds",
            "noise re-used: the noise comes back at irregular steps, as from few seeds",
            "how the noise is seeded: whether seeds are drawn from a small range, or noise from a "
            "pool",
            -10,
        ),
        _rule(
            ("low_rank",),
            "noise_of_low_rank",
            "noise of low rank: that of a matrix has few directions, and the others have none",
            "the shape that the noise is drawn with, and what it is multiplied with",
            -10,
        ),
        _rule(
            ("neighbours",),
            "noise_alike_in_neighbours",
            "noise of neighbours: entries that are near each other have noise that depends on one "
            "another",
            "what is made of the noise after it is drawn: sums, filters, interpolation",
            -10,
        ),
        _rule(
            ("together",),
            "noise_alike_at_entries",
            "noise of entries that go together: some directions have less than the claimed noise",
            "whether entries or tensors share a draw, and what the noise is multiplied with",
            -10,
        ),
        _rule(
            (
                "few_values",
                "tails",
            ),
            "noise_of_another_shape",
            "noise of another shape: its standard deviation is right and its distribution is not "
            "the normal one that the accountant supposes",
            "which distribution the noise is drawn from, and whether it is rounded, clipped or "
            "cast to a type of low precision afterwards",
            -10,
        ),
        _rule(
            ("earlier",),
            "noise_correlated_over_steps",
            "noise correlated over steps: the noise of a step depends on that of earlier steps, "
            "otherwise than is claimed",
            "what the optimizer keeps of its noise from step to step; correlated noise needs an "
            "accountant of its own",
            12,
        ),
        _rule(
            ("missing",),
            "noise_missing_at_entries",
            "noise of some entries: single entries of the gradient have too little noise, or none",
            "masks, slices and shapes where the noise is drawn (Opacus: in add_noise)",
            12,
        ),
        _rule(
            ("scale",),
            "noise_too_small",
            "noise scale too small: every tensor has less noise than claimed",
            "compare the standard deviation of the noise that is drawn (Opacus: in add_noise) with "
            "noise_multiplier * max_grad_norm",
            0.64,
        ),
        dataclasses.replace(
            NOISE_WHOLE.faults[0], rank=12, applies=lambda seen: seen.get("of") == "tensor"
        ),
        _rule(
            ("small",),
            "noise_too_small_at_entries",
            "noise of some entries: it is smaller than claimed",
            "how the noise is drawn (Opacus: in add_noise), and what it is scaled by",
            12,
        ),
    ),
)
