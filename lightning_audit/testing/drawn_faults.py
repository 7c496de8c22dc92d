"""The registry's faults that show where the noise is drawn again at every entry; see `faults`."""

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
        "buffers of noise that are used again",
        optimizer=drawn.TiledNoise,
        named="noise_numbers_twice",
        audit=_THREE,
    ),
    Fault(
        "mirrored_noise",
        "half of each tensor's noise takes the other half back, in reverse",
        "antithetic draws within a tensor",
        optimizer=drawn.MirroredNoise,
        named="noise_numbers_twice",
        audit=_THREE,
    ),
    Fault(
        "one_entry_in_a_hundred_without_noise",
        "one entry in a hundred has no noise",
        "slices and masks that are wrong at their ends",
        optimizer=drawn.OneInAHundredWithout,
        named="noise_missing_at_entries",
        audit=_THREE,
    ),
    Fault(
        "noise_in_half_precision",
        "the noise is drawn in bfloat16, the sums have single precision",
        "noise that is drawn in the type of the activations",
        optimizer=drawn.HalfPrecisionNoise,
        named="noise_of_another_shape",
        check="replay.noise",
        sentence="noise of another shape",
        audit=_THREE,
    ),
    Fault(
        "noise_of_a_pool",
        f"a step's noise is one of {drawn.POOL} vectors",
        "noise that is drawn beforehand to save time",
        optimizer=drawn.PooledNoise,
        named="few_seeds",
        check="replay.noise",
        sentence="noise re-used: the noise comes back at irregular steps",
        audit=_THREE,
    ),
    Fault(
        "noise_of_low_rank",
        "a matrix's noise is the product of two thin ones",
        "noise in the space of an adapter",
        optimizer=drawn.LowRankNoise,
        audit=_THREE,
    ),
    Fault(
        "laplace_noise",
        "the noise is Laplace's, of the right standard deviation",
        "samplers of another mechanism",
        optimizer=drawn.LaplaceNoise,
        named="noise_of_another_shape",
        check="replay.noise",
        sentence="noise of another shape",
        audit=_THREE,
    ),
    Fault(
        "smoothed_noise",
        "neighbouring entries have noise that goes together",
        "filters on the noise",
        optimizer=drawn.SmoothedNoise,
        named="noise_alike_in_neighbours",
        audit=_THREE,
    ),
    Fault(
        "noise_of_scattered_pairs",
        "entries in scattered pairs, across tensors, share most of their noise",
        "noise that is gathered by an index",
        optimizer=drawn.PairedNoise,
        named="noise_alike_at_entries",
        check="replay.noise",
        sentence="noise of entries that go together",
        audit=_THREE,
    ),
    Fault(
        "noise_by_batch",
        "the noise is in proportion to the number of records drawn",
        "noise that is scaled with the mean",
        optimizer=drawn.NoiseByBatch,
        named="noise_depends_on_records",
        audit=_THREE,
    ),
    Fault(
        "noise_seeded_by_gradients",
        "the noise is seeded by the batch's gradients",
        "runs that are to be the same on all machines",
        optimizer=drawn.SeededBySum,
        named="noise_depends_on_records",
        audit=_THREE,
    ),
)
