"""Faults that replays find, and faults of noise correlated over steps; see `faults`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.checks.noise.noise_size import NOISE
from lightning_audit.checks.randomness.noise_recurrence import RECURRENCE
from lightning_audit.checks.replay.replay_checks import REPLAY_CLIPPING
from lightning_audit.testing import faulty_steps as faulty
from lightning_audit.testing import trainings
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faulty import faulty_correlation as correlation
from lightning_audit.testing.training_faults import BY_HAND_CLAIM

_THREE: Mapping[str, Any] = {"examinations": 3}
_BY_RECORD, _BY_GRADIENT = "one_record_moves_too_much", "some_gradients_not_clipped"
_KEPT = "more_than_the_release"
_CORRELATED = "noise_correlated_over_steps"
_SENTENCE = "noise correlated over steps: the noise of a step depends on that of earlier steps"
_TOO_SMALL = "noise scale too small: the noise is at most 0."

OF_THE_STEP = (
    Fault(
        "clip_by_median_norm",
        "gradients are clipped at the median norm of their batch",
        "adaptive clipping without private counts",
        REPLAY_CLIPPING.name,
        optimizer=faulty.ClipByMedianNorm,
        named="clipping_norm_of_the_batch",
        audit=_THREE,
    ),
    Fault(
        "first_row_not_clipped",
        "the first record of each batch is not clipped",
        "loops that start at the second row",
        optimizer=faulty.FirstRowNotClipped,
        named=_BY_RECORD,
        audit=_THREE,
    ),
    Fault(
        "clip_by_three_norm",
        "gradients are clipped by their 3-norm",
        "`norm(p=...)` with another order",
        optimizer=faulty.ClipByThreeNorm,
        named=_BY_RECORD,
        audit=_THREE,
    ),
    Fault(
        "only_outliers_clipped",
        "only gradients above ten times the clipping norm are clipped",
        "clipping as used against exploding gradients",
        optimizer=faulty.OnlyOutliersClipped,
        named=_BY_RECORD,
        audit=_THREE,
    ),
    Fault(
        "two_clipped_together",
        "two records are clipped by the norm of their sum",
        "micro-batches of two",
        optimizer=faulty.TwoClippedTogether,
        named=_BY_GRADIENT,
        audit=_THREE,
    ),
    Fault(
        "momentum_of_raw_gradients",
        "an average of raw gradients updates the weights in addition to the private ones",
        "momentum computed before clipping",
        optimizer=faulty.MomentumOfRawGradients,
        steps=8,
        named=_KEPT,
        audit=_THREE,
    ),
    Fault(
        "learning_rate_by_raw_norm",
        "the learning rate of a step is computed from the norm of its raw gradients",
        "learning rates that adapt to the gradient",
        optimizer=faulty.LearningRateByRawNorm,
        named=_KEPT,
        audit=_THREE,
    ),
    Fault(
        "statistics_kept",
        "batch normalization keeps statistics of the records, which are saved in checkpoints",
        "the buffers of BatchNorm",
        training=faulty.KeepsStatistics,
        named=_KEPT,
        audit={**_THREE, "claim": BY_HAND_CLAIM},
    ),
    Fault(
        "changed_after_step",
        "the batch's inputs change weights after its step",
        "hooks after the step",
        training=faulty.ChangedAfterStep,
        named=_KEPT,
        audit=_THREE,
    ),
    Fault(
        "views_clipped_apart",
        "two augmented views of a record are clipped as two records",
        "augmentation that repeats records in the batch",
        training=faulty.ViewsClippedApart,
        named="record_counts_twice",
        audit=_THREE,
    ),
)

#: Faults of noise that is correlated over steps.
OF_CORRELATED_NOISE = (
    Fault(
        "half_banded_noise",
        "banded noise is declared, and half of it is added",
        "a noise multiplier computed for another sensitivity of the encoder",
        NOISE.name,
        _TOO_SMALL,
        correlation.HalfBandedNoise,
        named="noise_too_small",
        audit={"claim": PrivacyClaim(noise_coefficients=correlation.COEFFICIENTS)},
    ),
    Fault(
        "half_banded_noise_by_hand",
        "banded noise is declared, and half of it is added by hand",
        "a noise multiplier computed for another sensitivity of the encoder",
        NOISE.name,
        _TOO_SMALL,
        training=trainings.HalfBandedByHand,
        named="noise_too_small",
        audit={"claim": replace(BY_HAND_CLAIM, noise_coefficients=correlation.COEFFICIENTS)},
    ),
    Fault(
        "banded_noise_undeclared",
        "the noise of a step subtracts a part of that of the previous two steps, and is accounted "
        "for as independent",
        "matrix factorization with an accountant of DP-SGD",
        RECURRENCE.name,
        _SENTENCE,
        correlation.BandedNoise,
        named=_CORRELATED,
    ),
    Fault(
        "banded_noise_of_other_weights",
        "banded noise is declared with other weights than those it is added with",
        "coefficients for another number of bands",
        RECURRENCE.name,
        _SENTENCE,
        correlation.BandedNoise,
        named=_CORRELATED,
        audit={"claim": PrivacyClaim(noise_coefficients=(1.0, -0.5))},
    ),
    Fault(
        "noise_follows_noise",
        "the noise of a step contains two fifths of the previous step's, at the stated size",
        "smoothed noise, or an average of draws",
        RECURRENCE.name,
        _SENTENCE,
        correlation.AutoregressiveNoise,
        named=_CORRELATED,
    ),
    Fault(
        "noise_opposes_noise",
        "the noise of a step subtracts three fifths of the previous step's",
        "correlated noise without the accounting that it needs",
        RECURRENCE.name,
        _SENTENCE,
        correlation.OppositeNoise,
        named=_CORRELATED,
    ),
    Fault(
        "noise_taken_back",
        "every second step subtracts the noise of the previous step",
        "antithetic sampling of the noise",
        RECURRENCE.name,
        _SENTENCE,
        correlation.FlippedNoise,
        named=_CORRELATED,
    ),
    Fault(
        "noise_cancels",
        "the sum of the noise over the steps remains small",
        "DP-FTRL's noise under DP-SGD's accounting",
        RECURRENCE.name,
        _SENTENCE,
        correlation.CancellingNoise,
        named=_CORRELATED,
    ),
)
