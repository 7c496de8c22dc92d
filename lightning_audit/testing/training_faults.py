"""Faults of the training around the optimizer; see `faults`."""

from __future__ import annotations

from dataclasses import replace

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries import Mislabeled
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY
from lightning_audit.checks.noise.noise_excess import NOISE_EXCESS
from lightning_audit.checks.noise.stated_divisor import BATCH_NORMALISED
from lightning_audit.testing import distributed_trainings as distributed
from lightning_audit.testing import ledger_trainings as ledger
from lightning_audit.testing import opacus_trainings, run_trainings, trainings
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faulty import faulty_noise as noise

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
        training=distributed.NotSynchronised,
        named="unsynchronised",
        processes=2,
    ),
    Fault(
        "records_drawn_by_every_process",
        "every process draws from all records, so that a record may enter a step several times",
        "`distributed=False` of `DPDataLoader.from_data_loader`",
        training=distributed.DrawnByAll,
        named="sampled_by_every_process",
        processes=2,
    ),
    Fault(
        "noise_averaged_over_processes",
        "each of W processes draws noise, and their mean is added, which has 1/W of the variance",
        "optax #148",
        "noise",
        "noise averaged over processes",
        noise.AveragedNoise,
        distributed.Distributed,
        processes=2,
    ),
    Fault(
        "equal_noise_in_all_processes",
        "each process adds its share of the noise, drawn from the same seed in all of them",
        "a seed without the rank",
        NOISE_EXCESS.name,
        "too much noise: several of the processes draw the same noise",
        noise.EqualNoise,
        distributed.Distributed,
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
        "backward_after_noise",
        "a second loss runs backward after noise was added, and the update uses its gradient",
        "regularizers and auxiliary losses with their own backward pass",
        training=run_trainings.BackwardAfterNoise,
        named="gradient_replaced",
        # Lightning counts no step of an inner optimizer.
        trainer={"max_epochs": 1, "limit_train_batches": 20},
    ),
    Fault(
        "norm_not_passed_on",
        "ghost clipping: a schedule changes `optimizer.max_grad_norm` but not the module's, at "
        "which gradients are clipped",
        "Opacus' `GradClipScheduler` with ghost clipping",
        training=opacus_trainings.NormNotPassedOn,
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
        training=run_trainings.GdpAccountant,
        named="wrong_accounting",
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
        training=run_trainings.MergedBatches,
        steps=100,
        named="batches_run_together",
    ),
    Fault(
        "noise_repeated_on_resume",
        "a seeded noise generator starts over when the training is resumed",
        "`noise_generator` of make_private without its state in the checkpoint",
        training=run_trainings.SeededNoise,
        resumes=True,
        named="noise_restarted",
    ),
    Fault(
        "rows_of_packed_sequences",
        "`pack_padded_sequence` sorts sequences, and the per-sample gradients of `DPLSTM` remain "
        "sorted: a row mixes several records",
        "Opacus 1.6",
        training=run_trainings.PackedSequences,
        audit={"examinations": 3},
        named="records_coupled",
    ),
    Fault(
        "accumulated_ghost_clipping",
        "ghost clipping drops all but the last of the batches that Lightning accumulates",
        '`accumulate_grad_batches` with `grad_sample_mode="ghost"`',
        "",
        "accumulate_grad_batches=2 trains on one batch in 2 only",
        training=opacus_trainings.Ghost,
        ends="INCONCLUSIVE",
        warn_only=True,
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
        training=run_trainings.Accumulated,
        ends="INCONCLUSIVE",
        warn_only=True,
        remarked=True,
        trainer={"accumulate_grad_batches": 2},
    ),
    Fault(
        "empty_batches_skipped",
        "empty Poisson batches are skipped, and get no noise",
        "opacus #530, #612",
        "",
        "empty batches were skipped",
        training=run_trainings.SkipsEmptyBatches,
        ends="INCONCLUSIVE",
        warn_only=True,
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
        warn_only=True,
        remarked=True,
    ),
    Fault(
        "same_batches_in_every_epoch",
        "the batches of an epoch repeat in the next",
        "samplers seeded for reproducibility",
        training=ledger.SameBatchesInEveryEpoch,
        named="batches_come_again",
        steps=96,
        reason="found in the second or third epoch",
    ),
    Fault(
        "some_records_in_every_batch",
        "a sampler adds some records to every batch",
        "rebalanced samplers",
        training=ledger.FavouredRecords,
        named="records_drawn_too_often",
    ),
    Fault(
        "records_stand_twice",
        "the data set holds records twice",
        "data sets concatenated with a part of themselves",
        training=ledger.RecordsTwice,
        named="records_stand_several_times",
    ),
    Fault(
        "two_steps_on_one_batch",
        "two steps are taken on each batch",
        "inner loops over a batch",
        training=ledger.TwoStepsOnABatch,
        named="several_steps_on_one_batch",
    ),
    Fault(
        "kept_batches",
        "a batch is kept, and trained on again instead of the drawn one",
        "replay buffers",
        training=ledger.KeptBatches,
        named="several_steps_on_one_batch",
    ),
    Fault(
        "every_second_step_told",
        "the accountant is called at every second step only",
        "wrapped hooks",
        training=ledger.EverySecondStepTold,
        named="accountant_not_told",
    ),
    Fault(
        "more_noise_told",
        "the accountant records more noise than the optimizer states",
        "rewritten hooks",
        training=ledger.MoreNoiseTold,
        named="accountant_told_of_more_noise",
    ),
)
