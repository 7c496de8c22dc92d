"""Known faults of DP-SGD, to test whether a gate catches them.

`FAULTS` has them by name; `plant` puts one into your training, which then overstates its privacy:

Example:
    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(3))
    >>> settings = dict(noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=64)
    >>> private = DPOptimizer(torch.optim.SGD([weights], lr=0.1), **settings)
    >>> type(plant(private, "half_noise")).__name__
    'HalfNoise'
    >>> FAULTS["half_noise"].check
    'noise'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from opacus.optimizers import DPOptimizer
from torch.utils import _pytree

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries import Mislabeled
from lightning_audit.checks.clipping import SENSITIVITY
from lightning_audit.checks.noise import (
    BATCH_NORMALISED,
    NOISE,
    NOISE_EXCESS,
    NOISE_MEAN,
    NOISE_SHAPE,
    NOISE_STEP,
    NOISE_TENSOR,
    NOISE_WHOLE,
)
from lightning_audit.checks.opacus import OPACUS
from lightning_audit.checks.randomness import RECURRENCE, REUSE_BROADCAST, REUSE_LAG, REUSE_PAIR
from lightning_audit.checks.replay import REPLAY_CLIPPING, REPLAY_SENSITIVITY
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.testing import faulty, trainings
from lightning_audit.testing.fault import Fault as Fault

# --- Faults of the optimizer, which can be planted; see `faults`.

OF_THE_OPTIMIZER = (
    Fault(
        "closure_runs_again",
        "the closure is passed to the inner optimizer: it computes the raw gradient again",
        "opacus #313, PR #330",
        optimizer=faulty.ClosureRunsAgain,
        named="gradient_replaced",
    ),
    Fault(
        "clip_after_average",
        "the batch's mean gradient is clipped instead of each sample's",
        "much hand-written DP-SGD; tensorflow/privacy #135, #81",
        SENSITIVITY.name,
        "clipping after averaging",
        faulty.ClipAfterAverage,
    ),
    Fault(
        "clip_at_twice",
        "gradients are clipped at another norm than `max_grad_norm`",
        "opacus PR #664",
        SENSITIVITY.name,
        "clipping norm too large",
        faulty.ClipAtTwice,
        steps=60,
        named="clipping_norm_too_large",
    ),
    Fault(
        "no_clipping",
        "gradients are not clipped",
        "opacus PR #664",
        SENSITIVITY.name,
        "no clipping",
        faulty.NoClipping,
    ),
    Fault(
        "clips_not_always",
        f"the gradients of one batch in {faulty.SPARED} are not clipped",
        "special cases for the last batch of an epoch",
        SENSITIVITY.name,
        "clipping is missing at times",
        faulty.ClipsNotAlways,
        steps=60,
        named="clipping_missing_at_times",
        reason="a single large reading may come from the data",
    ),
    Fault(
        "clipping_ends",
        f"gradients are not clipped from step {faulty.SOUND_BATCHES + 1} on",
        "a flag that ends with the warm-up",
        SENSITIVITY.name,
        f"clipping is missing from step {faulty.SOUND_BATCHES + 1} on",
        faulty.ClippingEnds,
        steps=60,
        named="clipping_missing_from_a_step_on",
    ),
    Fault(
        "noise_ends",
        f"no noise is added from step {faulty.SOUND_STEPS + 1} on",
        "a noise schedule that the claim does not state",
        NOISE_STEP.name,
        f"noise too small from step {faulty.SOUND_STEPS + 1} on",
        faulty.NoiseEnds,
        steps=30,
        named="noise_too_small_from_a_step_on",
    ),
    Fault(
        "clip_per_tensor",
        "each tensor is clipped to the norm of the whole gradient",
        "jax_privacy #385",
        SENSITIVITY.name,
        "clipping per tensor",
        faulty.ClipPerTensor,
        steps=100,
    ),
    Fault(
        "norm_misses_biases",
        "the norm by which gradients are clipped misses the biases",
        "opacus #751",
        SENSITIVITY.name,
        "clipping misses some tensors",
        faulty.NormMissesBiases,
        steps=60,
        named="clipping_misses_tensors",
    ),
    Fault(
        "no_noise",
        "no noise is added",
        "a variant of opacus #313",
        NOISE.name,
        "no noise",
        faulty.NoNoise,
    ),
    Fault(
        "half_noise",
        "half the noise is added",
        "greenelab/SPRINT_gan #5",
        NOISE.name,
        "noise scale too small",
        faulty.HalfNoise,
        named="noise_too_small",
    ),
    Fault(
        "noise_over_batch",
        "noise of the mean's size is added to the sum",
        "Tramer et al., arXiv 2202.12219; tensorflow/privacy #153",
        NOISE.name,
        "noise divided by the batch size",
        faulty.NoiseOverBatch,
        named="noise_divided_by_batch",
    ),
    Fault(
        "noise_of_squared_norm",
        "the noise is sigma C^2, for a clipping norm C below 1",
        "greenelab/SPRINT_gan #5",
        NOISE.name,
        "noise scale too small",
        faulty.NoiseOfSquaredNorm,
        settings={"max_grad_norm": 0.5},
    ),
    Fault(
        "noise_of_squared_multiplier",
        "the variance is used as the standard deviation, for a noise multiplier below 1",
        "greenelab/SPRINT_gan #5",
        NOISE.name,
        "noise scale too small",
        faulty.NoiseOfSquaredMultiplier,
        settings={"noise_multiplier": 0.5},
    ),
    Fault(
        "no_noise_on_biases",
        "biases have no noise",
        "NVFlare #343",
        NOISE_TENSOR.name,
        "noise of some tensors",
        faulty.NoNoiseOnBiases,
        named="noise_missing_in_tensors",
    ),
    Fault(
        "no_noise_on_last_layer",
        "the last layer has no noise",
        "NVFlare #343",
        NOISE_TENSOR.name,
        "noise of some tensors",
        faulty.NoNoiseOnLastLayer,
        named="noise_missing_in_tensors",
    ),
    Fault(
        "same_noise_at_every_step",
        "the generator is seeded again at every step",
        "Nasr et al. 2023, violation 2, at its extreme",
        REUSE_LAG.name,
        "noise re-used: the same noise is added at every step",
        faulty.ReseededNoise,
    ),
    Fault(
        "noise_in_a_cycle",
        f"the noise repeats every {faulty.CYCLE} steps",
        "Nasr et al. 2023, violation 2, a variant",
        REUSE_LAG.name,
        f"noise re-used: the same noise is added every {faulty.CYCLE} steps",
        faulty.CyclingNoise,
    ),
    Fault(
        "few_seeds",
        f"the seed of a step's noise is one of {faulty.FEW}",
        "Nasr et al. 2023, violation 2; jax PR #3646",
        RECURRENCE.name,
        "noise re-used: the noise comes back at irregular steps",
        faulty.FewSeeds,
        steps=60,
        reason="found once two steps have drawn the same seed",
    ),
    Fault(
        "less_noise_on_largest",
        "the largest tensor has nine tenths of the noise",
        "a scale set per layer",
        NOISE_WHOLE.name,
        optimizer=faulty.LessNoiseOnLargest,
        named="noise_too_small_over_a_tensor",
        otherwise=(NOISE_TENSOR.name, "noise of some tensors"),
    ),
    Fault(
        "one_key_for_all_tensors",
        "all tensors of a step get the same noise",
        "jax PR #3646",
        REUSE_PAIR.name,
        "noise re-used: one noise key",
        faulty.OneKeyForAllTensors,
    ),
    Fault(
        "one_value_for_all_coordinates",
        "one draw is added to all coordinates",
        "a forgotten shape argument",
        REUSE_BROADCAST.name,
        "noise re-used: one noise value",
        faulty.BroadcastNoise,
    ),
    Fault(
        "uniform_noise",
        "the noise is uniform, with the right standard deviation",
        "jax_privacy, sharp edges",
        NOISE_SHAPE.name,
        "noise of another shape",
        faulty.UniformNoise,
        named="noise_of_another_shape",
    ),
    Fault(
        "lattice_noise",
        "the noise is rounded to integer multiples of its standard deviation",
        "jax_privacy, sharp edges",
        NOISE_SHAPE.name,
        "noise of another shape",
        faulty.LatticeNoise,
        named="noise_of_another_shape",
    ),
    Fault(
        "noise_with_a_mean",
        "the mean of the noise is not zero",
        "hand-written samplers",
        NOISE_MEAN.name,
        "the mean of the noise is not zero",
        faulty.ShiftedNoise,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "noise_times_batch",
        "noise of the sum's size is added to the mean",
        "tensorflow/privacy #153",
        NOISE_EXCESS.name,
        "too much noise: it is larger than claimed",
        faulty.NoiseTimesBatch,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "noise_per_micro_batch",
        "each part of a split batch gets the noise of a step",
        "opacus #143",
        NOISE_EXCESS.name,
        "too much noise: clipped sums are longer",
        faulty.NoisePerMicroBatch,
        trainings.SplitBatches,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "divides_by_realised_batch",
        "the sum is divided by the actual number of records in a Poisson batch",
        "opacus #420, #571, #819",
        BATCH_NORMALISED.name,
        optimizer=faulty.DividesByRealisedBatch,
    ),
    Fault(
        "parts_share_memory",
        "ghost clipping: the sum over physical batches shares its memory with `p.grad`, so that "
        "earlier ones are lost and the last one counts twice",
        "opacus PR #707",
        SENSITIVITY.name,
        "parts of a split batch count differently",
        faulty.AliasedSum,
        trainings.GhostInParts,
        steps=200,
        named="parts_count_differently",
    ),
    Fault(
        "parts_are_added_again",
        "the sum over physical batches is added again after each of them, so that earlier ones "
        "count several times",
        "a variant of opacus PR #707",
        SENSITIVITY.name,
        "parts of a split batch count differently",
        faulty.SumOfSums,
        trainings.PhysicalBatches,
        steps=100,
        named="parts_count_differently",
    ),
)


# --- Faults that repeated draws of the noise at every entry detect; see `faults`.

_THREE: Mapping[str, Any] = {"examinations": 3}

OF_THE_DRAW = (
    Fault(
        "tiled_noise",
        f"{faulty.TILE} numbers are drawn for a tensor's noise, and repeated",
        "reused noise buffers",
        optimizer=faulty.TiledNoise,
        named="noise_numbers_twice",
        audit=_THREE,
    ),
    Fault(
        "mirrored_noise",
        "half of each tensor's noise is the other half negated, in reverse order",
        "antithetic draws within a tensor",
        optimizer=faulty.MirroredNoise,
        named="noise_numbers_twice",
        audit=_THREE,
    ),
    Fault(
        "one_entry_in_a_hundred_without_noise",
        "one entry in a hundred has no noise",
        "off-by-one slices and masks",
        optimizer=faulty.OneInAHundredWithout,
        named="noise_missing_at_entries",
        audit=_THREE,
    ),
    Fault(
        "noise_in_half_precision",
        "the noise is drawn in bfloat16, for sums in single precision",
        "noise drawn in the dtype of the activations",
        optimizer=faulty.HalfPrecisionNoise,
        named="noise_of_another_shape",
        check=REPLAY_NOISE.name,
        sentence="noise of another shape",
        audit=_THREE,
    ),
    Fault(
        "noise_of_a_pool",
        f"a step's noise is one of {faulty.POOL} vectors",
        "noise drawn in advance to save time",
        optimizer=faulty.PooledNoise,
        named="few_seeds",
        check=REPLAY_NOISE.name,
        sentence="noise re-used: the noise comes back at irregular steps",
        audit=_THREE,
    ),
    Fault(
        "noise_of_low_rank",
        "a matrix's noise is the product of two thin matrices",
        "noise in the space of an adapter",
        optimizer=faulty.LowRankNoise,
        audit=_THREE,
    ),
    Fault(
        "laplace_noise",
        "the noise is Laplace noise of the right standard deviation",
        "samplers of another mechanism",
        optimizer=faulty.LaplaceNoise,
        named="noise_of_another_shape",
        check=REPLAY_NOISE.name,
        sentence="noise of another shape",
        audit=_THREE,
    ),
    Fault(
        "smoothed_noise",
        "neighboring entries have correlated noise",
        "smoothing filters on the noise",
        optimizer=faulty.SmoothedNoise,
        named="noise_alike_in_neighbours",
        audit=_THREE,
    ),
    Fault(
        "noise_of_scattered_pairs",
        "scattered pairs of entries, across tensors, share most of their noise",
        "noise gathered by an index",
        optimizer=faulty.PairedNoise,
        named="noise_alike_at_entries",
        check=REPLAY_NOISE.name,
        sentence="noise of entries that go together",
        audit=_THREE,
    ),
    Fault(
        "noise_by_batch",
        "the noise is proportional to the number of drawn records",
        "noise scaled with the mean",
        optimizer=faulty.NoiseByBatch,
        named="noise_depends_on_records",
        audit=_THREE,
    ),
    Fault(
        "noise_seeded_by_gradients",
        "the noise is seeded by the batch's gradients",
        "runs made reproducible on all machines",
        optimizer=faulty.SeededBySum,
        named="noise_depends_on_records",
        audit=_THREE,
    ),
)


# --- Faults of the training around the optimizer; see `faults`.

#: The claim of hand-written trainings, and the canary for faults that gradient canaries miss.
BY_HAND_CLAIM = PrivacyClaim(
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    expected_batch_size=trainings.BATCH_SIZE,
    sample_rate=trainings.BATCH_SIZE / trainings.RECORDS,
)
INPUT_CANARY = {"canaries": [Mislabeled(amplitude=100.0)]}

OF_THE_TRAINING = (
    Fault(
        "processes_not_synchronised",
        "each process clips, adds noise and updates on its own",
        "opacus #191, #196",
        training=trainings.NotSynchronised,
        named="unsynchronised",
        processes=2,
    ),
    Fault(
        "records_drawn_by_every_process",
        "every process draws from all records, so that a record may enter a step several times",
        "`distributed=False` of `DPDataLoader.from_data_loader`",
        training=trainings.DrawnByAll,
        named="sampled_by_every_process",
        processes=2,
    ),
    Fault(
        "processes_draw_alike",
        "the processes draw the same positions of their shares of the records",
        "Opacus 1.6: a loader's generator with one seed",
        training=trainings.DrawnAlike,
        processes=2,
    ),
    Fault(
        "noise_averaged_over_processes",
        "each of W processes draws noise, and their mean is added, which has 1/W of the variance",
        "optax #148",
        "noise",
        "noise averaged over processes",
        faulty.AveragedNoise,
        trainings.Distributed,
        processes=2,
    ),
    Fault(
        "equal_noise_in_all_processes",
        "each process adds its share of the noise, drawn from the same seed in all of them",
        "a seed without the rank",
        NOISE_EXCESS.name,
        "too much noise: several of the processes draw the same noise",
        faulty.EqualNoise,
        trainings.Distributed,
        ends="INCONCLUSIVE",
        warn_only=True,
        processes=2,
    ),
    Fault(
        "plain_optimizer_beside",
        "an optimizer in addition to the private one trains a part of the network",
        "opacus #615",
        training=trainings.PlainBeside,
        named="no_dp",
    ),
    Fault(
        "optimizer_not_handed_over",
        "an optimizer that the audit is not given trains a part of the network",
        "loops with several optimizers; Opacus' `dcgan.py`",
        training=trainings.OptimizerOfItsOwn,
        named="no_dp",
    ),
    Fault(
        "backward_after_noise",
        "a second loss runs backward after noise was added, and the update uses its gradient",
        "regularizers and auxiliary losses with their own backward pass",
        training=trainings.BackwardAfterNoise,
        audit={"examinations": 1},
        named="gradient_replaced",
        trainer={"max_epochs": 1, "limit_train_batches": 20},  # it counts no inner steps
    ),
    Fault(
        "ghost_clipping_without_its_loss",
        "ghost mode, and the loss that runs backward is not that of the criterion of make_private",
        "`outputs.loss` of Hugging Face",
        training=trainings.GhostOfAnotherLoss,
    ),
    Fault(
        "norm_not_passed_on",
        "ghost clipping: a schedule changes `optimizer.max_grad_norm` but not the module's, at "
        "which gradients are clipped",
        "Opacus' `GradClipScheduler` with ghost clipping",
        training=trainings.NormNotPassedOn,
        named="clipping_norm_not_passed_on",
    ),
    Fault(
        "record_counts_twice",
        "views of a record through tied weights are clipped as separate samples",
        "opacus #413",
        SENSITIVITY.name,
        "a record counts more than once",
        training=trainings.FourViews,
        settings={"noise_multiplier": 0.25},
        audit={**INPUT_CANARY, "claim": replace(BY_HAND_CLAIM, noise_multiplier=0.25)},
        steps=100,
    ),
    Fault(
        "normalised_over_the_batch",
        "features are normalized over the batch, so that gradients depend on other records",
        "batch normalization",
        training=trainings.NormalisedOverBatch,
        audit={**INPUT_CANARY, "claim": BY_HAND_CLAIM, "examinations": 3},
        named="records_coupled",
    ),
    Fault(
        "not_a_number",
        "a record with a NaN gradient makes the model NaN, which reveals the record",
        "overflow in a record's loss",
        training=trainings.NotANumber,
        audit=INPUT_CANARY,
        named="not_finite",
    ),
    Fault(
        "summed_loss",
        "the loss is a sum although Opacus expects a mean, so that every gradient is clipped",
        "wrong `loss_reduction`",
        "loss_reduction",
        "the loss is a sum over its batch where the optimizer takes it for a mean",
        training=trainings.SummedLoss,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "fixed_size_batches",
        "batches of a fixed size, whose neighbors differ by a replaced record, are accounted for "
        "as Poisson batches",
        "opacus #80, PR #128; arXiv 2411.10614",
        training=trainings.FixedSizeBatches,
        named="not_poisson",
    ),
    Fault(
        "claim_above_optimizer",
        "the claim states twice the noise that make_private was given",
        "a claim kept from an earlier run",
        audit={"claim": PrivacyClaim(noise_multiplier=2.0)},
        steps=1,
    ),
    Fault(
        "replacement_accounted_as_removal",
        "epsilon is claimed for a replaced record, but computed for an added or removed record",
        "two conventions for neighboring data sets",
        audit={"claim": PrivacyClaim(adjacency="replace_one")},
    ),
    Fault(
        "divides_by_realised_batch_by_hand",
        "hand-written DP-SGD averages over the actual number of records in a Poisson batch",
        "`sum / len(batch)`",
        BATCH_NORMALISED.name,
        training=trainings.MeanOverBatch,
        audit={"claim": BY_HAND_CLAIM},
        named="divides_by_realised_batch",
    ),
    Fault(
        "gdp_accountant",
        "the accountant of Gaussian DP reports less than the steps cost",
        'Opacus\' `accountant="gdp"`',
        OPACUS.name,
        "Opacus' gdp accountant reports less than the steps cost",
        training=trainings.GdpAccountant,
        ends="INCONCLUSIVE",
        remarked=True,
    ),
    Fault(
        "noise_for_fewer_steps",
        "the search for the noise multiplier ends above the target epsilon",
        "opacus #346",
        settings={"noise_multiplier": 0.8},
        audit={"claimed_epsilon": 0.8},
        named="wrong_accounting",
    ),
    Fault(
        "logical_batches_run_together",
        "an epoch ends within a logical batch, whose rest is added to the first one of the next",
        "Opacus' `BatchSplittingSampler` under Lightning",
        training=trainings.MergedBatches,
        steps=100,
        named="batches_run_together",
    ),
    Fault(
        "noise_repeated_on_resume",
        "a seeded noise generator starts over when the training is resumed",
        "`noise_generator` of make_private without its state in the checkpoint",
        training=trainings.SeededNoise,
        resumes=True,
        named="noise_restarted",
    ),
    Fault(
        "rows_of_packed_sequences",
        "`pack_padded_sequence` sorts sequences, and the per-sample gradients of `DPLSTM` remain "
        "sorted: a row mixes several records",
        "Opacus 1.6",
        training=trainings.PackedSequences,
        audit={"examinations": 3},
        named="records_coupled",
    ),
    Fault(
        "padded_to_the_longest",
        "unmasked padding to the longest text of a batch: its length changes others' gradients",
        "text examples of Opacus 1.6",
        training=trainings.PaddedTexts,
        audit={"examinations": 3},
        named="records_coupled",
    ),
    Fault(
        "attention_mixes_places",
        "masked padding to the longest text of a batch reaches the real tokens of the others",
        "Opacus' `DPMultiheadAttention(batch_first=True)`",
        training=trainings.PaddedAttention,
        audit={"examinations": 1},
    ),
    Fault(
        "records_ignored",
        "the loss is a mean over the records that are not ignored: ignoring one changes others",
        "`ignore_index` with Opacus 1.6",
        training=trainings.RecordsIgnored,
        audit={"examinations": 3},
        named="records_coupled",
    ),
    Fault(
        "norm_of_the_first_batch",
        "the clipping norm is calibrated on the first batch, without noise",
        "training scripts",
        training=trainings.NormOfTheFirstBatch,
        audit={"examinations": 3},
        named="more_than_the_release",
    ),
    Fault(
        "made_up_record",
        "an empty batch is replaced by a record of random numbers",
        "`rand_on_empty` of Opacus 1.6",
        training=trainings.MadeUpRecords,
    ),
    Fault(
        "count_over_real_batch",
        "adaptive clipping divides its noisy count by the real number of records of a batch",
        "AdaClip in Opacus 1.6",
        training=trainings.LittleCountNoise,
    ),
    Fault(
        "accumulated_ghost_clipping",
        "ghost clipping drops all but the last of the batches that Lightning accumulates",
        '`accumulate_grad_batches` with `grad_sample_mode="ghost"`',
        "",
        "accumulate_grad_batches=2 trains on one batch in 2 only",
        training=trainings.Ghost,
        ends="INCONCLUSIVE",
        remarked=True,
        trainer={"accumulate_grad_batches": 2},
    ),
    Fault(
        "accumulation_scales_twice",
        "Lightning divides the loss by the number of accumulated batches, and Opacus divides the "
        "gradient again",
        "`accumulate_grad_batches` with Opacus",
        "",
        "accumulate_grad_batches=2 divides gradients twice",
        training=trainings.Accumulated,
        ends="INCONCLUSIVE",
        remarked=True,
        trainer={"accumulate_grad_batches": 2},
    ),
    Fault(
        "empty_batches_skipped",
        "empty Poisson batches are skipped, and get no noise",
        "opacus #530, #612",
        "",
        "empty batches were skipped",
        training=trainings.SkipsEmptyBatches,
        ends="INCONCLUSIVE",
        remarked=True,
    ),
    Fault(
        "divisor_of_the_records",
        "the divisor int(records * sample_rate), to which the noise is calibrated, reveals a "
        "record",
        "Opacus' make_private",
        "expected_batch_size",
        "gradients are divided by int(records * sample_rate) = 16, and with one record more or "
        "less",
        ends="INCONCLUSIVE",
        remarked=True,
    ),
    Fault(
        "same_batches_in_every_epoch",
        "the batches of an epoch repeat in the next",
        "samplers seeded for reproducibility",
        training=trainings.SameBatchesInEveryEpoch,
        named="batches_come_again",
        steps=96,
        reason="found in the second or third epoch",
    ),
    Fault(
        "some_records_in_every_batch",
        "a sampler adds some records to every batch",
        "rebalanced samplers",
        training=trainings.FavouredRecords,
        named="records_drawn_too_often",
    ),
    Fault(
        "records_stand_twice",
        "the data set holds records twice",
        "data sets concatenated with a part of themselves",
        training=trainings.RecordsTwice,
        named="records_stand_several_times",
    ),
    Fault(
        "two_steps_on_one_batch",
        "two steps are taken on each batch",
        "inner loops over a batch",
        training=trainings.TwoStepsOnABatch,
        named="several_steps_on_one_batch",
    ),
    Fault(
        "kept_batches",
        "a batch is kept, and trained on again instead of the drawn one",
        "replay buffers",
        training=trainings.KeptBatches,
        named="several_steps_on_one_batch",
    ),
    Fault(
        "own_pool",
        "a step trains on records that it draws itself, and the loader's batches are not used",
        "agents that give a dummy loader and sample a replay buffer",
        REPLAY_SENSITIVITY.name,
        "not asked: no record of the batch changes the release",
        training=trainings.OwnPool,
        audit={"examinations": 1},
        ends="INCONCLUSIVE",
        remarked=True,
    ),
    Fault(
        "every_second_step_told",
        "the accountant is called at every second step only",
        "wrapped hooks",
        training=trainings.EverySecondStepTold,
        named="accountant_not_told",
    ),
    Fault(
        "more_noise_told",
        "the accountant records more noise than the optimizer states",
        "rewritten hooks",
        training=trainings.MoreNoiseTold,
        named="accountant_told_of_more_noise",
    ),
)


# --- Faults that replays find, and faults of noise correlated over steps; see `faults`.

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
        optimizer=trainings.ClipByMedianNorm,
        named="clipping_norm_of_the_batch",
        audit=_THREE,
    ),
    Fault(
        "first_row_not_clipped",
        "the first record of each batch is not clipped",
        "loops that start at the second row",
        optimizer=trainings.FirstRowNotClipped,
        named=_BY_RECORD,
        audit=_THREE,
    ),
    Fault(
        "clip_by_three_norm",
        "gradients are clipped by their 3-norm",
        "`norm(p=...)` with another order",
        optimizer=trainings.ClipByThreeNorm,
        named=_BY_RECORD,
        audit=_THREE,
    ),
    Fault(
        "only_outliers_clipped",
        "only gradients above ten times the clipping norm are clipped",
        "clipping as used against exploding gradients",
        optimizer=trainings.OnlyOutliersClipped,
        named=_BY_RECORD,
        audit=_THREE,
    ),
    Fault(
        "two_clipped_together",
        "two records are clipped by the norm of their sum",
        "micro-batches of two",
        optimizer=trainings.TwoClippedTogether,
        named=_BY_GRADIENT,
        audit=_THREE,
    ),
    Fault(
        "momentum_of_raw_gradients",
        "an average of raw gradients updates the weights in addition to the private ones",
        "momentum computed before clipping",
        optimizer=trainings.MomentumOfRawGradients,
        steps=8,
        named=_KEPT,
        audit=_THREE,
    ),
    Fault(
        "learning_rate_by_raw_norm",
        "the learning rate of a step is computed from the norm of its raw gradients",
        "learning rates that adapt to the gradient",
        optimizer=trainings.LearningRateByRawNorm,
        named=_KEPT,
        audit=_THREE,
    ),
    Fault(
        "rate_by_last_loss",
        "the learning rate of a step is computed from the raw loss of the last one",
        "training scripts that slow down where the loss is large",
        training=trainings.RateByLastLoss,
        named=_KEPT,
        audit=_THREE,
    ),
    Fault(
        "statistics_kept",
        "batch normalization keeps statistics of the records, which are saved in checkpoints",
        "the buffers of BatchNorm",
        training=trainings.KeepsStatistics,
        named=_KEPT,
        audit={**_THREE, "claim": BY_HAND_CLAIM},
    ),
    Fault(
        "changed_after_step",
        "the batch's inputs change weights after its step",
        "hooks after the step",
        training=trainings.ChangedAfterStep,
        named=_KEPT,
        audit=_THREE,
    ),
    Fault(
        "views_clipped_apart",
        "two augmented views of a record are clipped as two records",
        "augmentation that repeats records in the batch",
        training=trainings.ViewsClippedApart,
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
        faulty.HalfBandedNoise,
        named="noise_too_small",
        audit={"claim": PrivacyClaim(noise_coefficients=faulty.COEFFICIENTS)},
    ),
    Fault(
        "half_banded_noise_by_hand",
        "banded noise is declared, and half of it is added by hand",
        "a noise multiplier computed for another sensitivity of the encoder",
        NOISE.name,
        _TOO_SMALL,
        training=trainings.HalfBandedByHand,
        named="noise_too_small",
        audit={"claim": replace(BY_HAND_CLAIM, noise_coefficients=faulty.COEFFICIENTS)},
    ),
    Fault(
        "banded_noise_undeclared",
        "the noise of a step subtracts a part of that of the previous two steps, and is accounted "
        "for as independent",
        "matrix factorization with an accountant of DP-SGD",
        RECURRENCE.name,
        _SENTENCE,
        faulty.BandedNoise,
        named=_CORRELATED,
    ),
    Fault(
        "banded_noise_of_other_weights",
        "banded noise is declared with other weights than those it is added with",
        "coefficients for another number of bands",
        RECURRENCE.name,
        _SENTENCE,
        faulty.BandedNoise,
        named=_CORRELATED,
        audit={"claim": PrivacyClaim(noise_coefficients=(1.0, -0.5))},
    ),
    Fault(
        "noise_follows_noise",
        "the noise of a step contains two fifths of the previous step's, at the stated size",
        "smoothed noise, or an average of draws",
        RECURRENCE.name,
        _SENTENCE,
        faulty.AutoregressiveNoise,
        named=_CORRELATED,
    ),
    Fault(
        "noise_opposes_noise",
        "the noise of a step subtracts three fifths of the previous step's",
        "correlated noise without the accounting that it needs",
        RECURRENCE.name,
        _SENTENCE,
        faulty.OppositeNoise,
        named=_CORRELATED,
    ),
    Fault(
        "noise_taken_back",
        "every second step subtracts the noise of the previous step",
        "antithetic sampling of the noise",
        RECURRENCE.name,
        _SENTENCE,
        faulty.FlippedNoise,
        named=_CORRELATED,
    ),
    Fault(
        "noise_cancels",
        "the sum of the noise over the steps remains small",
        "DP-FTRL's noise under DP-SGD's accounting",
        RECURRENCE.name,
        _SENTENCE,
        faulty.CancellingNoise,
        named=_CORRELATED,
    ),
)


# --- Known faults of DP-SGD, to test whether a gate catches them.


def plant(optimizer: Any, name: str) -> Any:
    """Put a fault into your own training.

    Args:
        optimizer: as `make_private` returned it, or what `configure_optimizers` returns: a dict,
            list or tuple with such optimizers.
        name: of a fault in `FAULTS` with an ``optimizer``.

    Returns:
        The argument, whose private optimizers have the fault.

    Raises:
        ValueError: there is no such fault, or it is harmless in this training.
        TypeError: see `Fault.apply`.
    """
    if name not in FAULTS:
        known = sorted(fault.name for fault in FAULTS.values() if fault.optimizer)
        raise ValueError(f"name={name!r} must be one of {known}.")
    held = _pytree.tree_leaves(optimizer)
    for one in [each for each in held if isinstance(each, DPOptimizer)] or [optimizer]:
        FAULTS[name].apply(one)
    return optimizer


_ALL = (*OF_THE_OPTIMIZER, *OF_THE_TRAINING, *OF_THE_STEP, *OF_CORRELATED_NOISE, *OF_THE_DRAW)

#: The faults by name.
FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in _ALL})
