"""Faults that repeated draws of the noise at every entry detect; see `faults`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faulty import faulty_draws as drawn

_THREE: Mapping[str, Any] = {"examinations": 3}

OF_THE_DRAW = (
    Fault(
        "tiled_noise",
        f"{drawn.TILE} numbers are drawn for a tensor's noise, and repeated",
        "reused noise buffers",
        optimizer=drawn.TiledNoise,
        named="noise_numbers_twice",
        audit=_THREE,
    ),
    Fault(
        "mirrored_noise",
        "half of each tensor's noise is the other half negated, in reverse order",
        "antithetic draws within a tensor",
        optimizer=drawn.MirroredNoise,
        named="noise_numbers_twice",
        audit=_THREE,
    ),
    Fault(
        "one_entry_in_a_hundred_without_noise",
        "one entry in a hundred has no noise",
        "off-by-one slices and masks",
        optimizer=drawn.OneInAHundredWithout,
        named="noise_missing_at_entries",
        audit=_THREE,
    ),
    Fault(
        "noise_in_half_precision",
        "the noise is drawn in bfloat16, for sums in single precision",
        "noise drawn in the dtype of the activations",
        optimizer=drawn.HalfPrecisionNoise,
        named="noise_of_another_shape",
        check="replay.noise",
        sentence="noise of another shape",
        audit=_THREE,
    ),
    Fault(
        "noise_of_a_pool",
        f"a step's noise is one of {drawn.POOL} vectors",
        "noise drawn in advance to save time",
        optimizer=drawn.PooledNoise,
        named="few_seeds",
        check="replay.noise",
        sentence="noise re-used: the noise comes back at irregular steps",
        audit=_THREE,
    ),
    Fault(
        "noise_of_low_rank",
        "a matrix's noise is the product of two thin matrices",
        "noise in the space of an adapter",
        optimizer=drawn.LowRankNoise,
        audit=_THREE,
    ),
    Fault(
        "laplace_noise",
        "the noise is Laplace noise of the right standard deviation",
        "samplers of another mechanism",
        optimizer=drawn.LaplaceNoise,
        named="noise_of_another_shape",
        check="replay.noise",
        sentence="noise of another shape",
        audit=_THREE,
    ),
    Fault(
        "smoothed_noise",
        "neighboring entries have correlated noise",
        "smoothing filters on the noise",
        optimizer=drawn.SmoothedNoise,
        named="noise_alike_in_neighbours",
        audit=_THREE,
    ),
    Fault(
        "noise_of_scattered_pairs",
        "scattered pairs of entries, across tensors, share most of their noise",
        "noise gathered by an index",
        optimizer=drawn.PairedNoise,
        named="noise_alike_at_entries",
        check="replay.noise",
        sentence="noise of entries that go together",
        audit=_THREE,
    ),
    Fault(
        "noise_by_batch",
        "the noise is proportional to the number of drawn records",
        "noise scaled with the mean",
        optimizer=drawn.NoiseByBatch,
        named="noise_depends_on_records",
        audit=_THREE,
    ),
    Fault(
        "noise_seeded_by_gradients",
        "the noise is seeded by the batch's gradients",
        "runs made reproducible on all machines",
        optimizer=drawn.SeededBySum,
        named="noise_depends_on_records",
        audit=_THREE,
    ),
)
