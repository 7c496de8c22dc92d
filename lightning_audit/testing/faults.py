"""Known faults of DP-SGD, to see whether a gate catches them.

`FAULTS` holds them by name; `plant` puts one into a training of one's own, whose configuration then
claims a privacy that it does not give:

Example:
    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(3))
    >>> private = DPOptimizer(
    ...     torch.optim.SGD([weights], lr=0.1),
    ...     noise_multiplier=1.0,
    ...     max_grad_norm=1.0,
    ...     expected_batch_size=64,
    ... )
    >>> type(plant(private, "half_noise")).__name__
    'HalfNoise'
    >>> FAULTS["half_noise"].check
    'noise'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from opacus.optimizers import DPOptimizer

from lightning_audit.canaries import Mislabeled
from lightning_audit.claims import PrivacyClaim
from lightning_audit.testing import distributed_trainings as distributed
from lightning_audit.testing import faulty_clipping as clipping
from lightning_audit.testing import faulty_noise as noise
from lightning_audit.testing import faulty_parts as parts
from lightning_audit.testing import opacus_trainings, trainings
from lightning_audit.testing.fault import Fault as Fault


def plant(optimizer: DPOptimizer, name: str) -> DPOptimizer:
    """Put a fault into a training of one's own.

    Args:
        optimizer: as `make_private` returned it.
        name: of a fault in `FAULTS` that has an ``optimizer``.

    Returns:
        The optimizer to train with.

    Raises:
        ValueError: there is no such fault, or it does no harm in this training.
        TypeError: see `Fault.apply`.
    """
    if name not in FAULTS:
        known = sorted(fault.name for fault in FAULTS.values() if fault.optimizer)
        raise ValueError(f"name={name!r} must be one of {known}.")
    return FAULTS[name].apply(optimizer)


#: What trainings by hand claim, and the canary for faults that none of gradient shows.
BY_HAND_CLAIM = PrivacyClaim(
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    expected_batch_size=trainings.BATCH_SIZE,
    sample_rate=trainings.BATCH_SIZE / trainings.RECORDS,
)
INPUT_CANARY = {"canaries": [Mislabeled(amplitude=100.0)]}

_ALL = (
    Fault(
        "closure_runs_again",
        "the closure is passed on to the inner optimizer, which computes the gradient again "
        "without clipping and noise",
        "opacus #313, PR #330",
        "gradient_replaced",
        "gradient replaced",
        clipping.ClosureRunsAgain,
        named="gradient_replaced",
    ),
    Fault(
        "clip_after_average",
        "the batch's mean gradient is clipped instead of each sample's",
        "much hand-written DP-SGD; tensorflow/privacy #135, #81",
        "sensitivity",
        "clipping after averaging",
        clipping.ClipAfterAverage,
    ),
    Fault(
        "clip_at_twice",
        "gradients are clipped at another norm than `max_grad_norm`",
        "opacus PR #664",
        "sensitivity",
        "clipping norm too large",
        clipping.ClipAtTwice,
        steps=60,
        named="clipping_norm_too_large",
    ),
    Fault(
        "no_clipping",
        "gradients are not clipped",
        "opacus PR #664",
        "sensitivity",
        "no clipping",
        clipping.NoClipping,
    ),
    Fault(
        "clip_per_tensor",
        "each tensor is clipped to the norm of the whole gradient",
        "jax_privacy #385",
        "sensitivity",
        "clipping per tensor",
        clipping.ClipPerTensor,
        steps=100,
    ),
    Fault(
        "norm_misses_biases",
        "the norm by which gradients are clipped misses the biases",
        "opacus #751",
        "sensitivity",
        "clipping misses some tensors",
        clipping.NormMissesBiases,
        steps=60,
        named="clipping_misses_tensors",
    ),
    Fault(
        "no_noise",
        "no noise is added",
        "a variant of opacus #313",
        "noise",
        "no noise",
        noise.NoNoise,
    ),
    Fault(
        "half_noise",
        "half the noise is added",
        "greenelab/SPRINT_gan #5",
        "noise",
        "noise scale too small",
        noise.HalfNoise,
        named="noise_too_small",
    ),
    Fault(
        "noise_over_batch",
        "noise of the mean's size is added to the sum",
        "Tramer et al., arXiv 2202.12219; tensorflow/privacy #153",
        "noise",
        "noise divided by the batch size",
        noise.NoiseOverBatch,
        named="noise_divided_by_batch",
    ),
    Fault(
        "noise_of_squared_norm",
        "the noise is sigma C^2, for a clipping norm C below 1",
        "greenelab/SPRINT_gan #5",
        "noise",
        "noise scale too small",
        noise.NoiseOfSquaredNorm,
        settings={"max_grad_norm": 0.5},
    ),
    Fault(
        "noise_of_squared_multiplier",
        "the variance is taken for the standard deviation, for a noise multiplier below 1",
        "greenelab/SPRINT_gan #5",
        "noise",
        "noise scale too small",
        noise.NoiseOfSquaredMultiplier,
        settings={"noise_multiplier": 0.5},
    ),
    Fault(
        "no_noise_on_biases",
        "biases have no noise",
        "NVFlare #343",
        "noise.tensor",
        "noise of some tensors",
        noise.NoNoiseOnBiases,
        named="noise_missing_in_tensors",
    ),
    Fault(
        "no_noise_on_last_layer",
        "the last layer has no noise",
        "NVFlare #343",
        "noise.tensor",
        "noise of some tensors",
        noise.NoNoiseOnLastLayer,
        named="noise_missing_in_tensors",
    ),
    Fault(
        "same_noise_at_every_step",
        "the generator is seeded again at every step",
        "Nasr et al. 2023, violation 2, at its extreme",
        "reuse.lag",
        "noise re-used: the same noise is added at every step",
        noise.ReseededNoise,
    ),
    Fault(
        "noise_in_a_cycle",
        f"the noise comes back every {noise.CYCLE} steps",
        "Nasr et al. 2023, violation 2, a variant",
        "reuse.lag",
        f"noise re-used: the same noise is added every {noise.CYCLE} steps",
        noise.CyclingNoise,
    ),
    Fault(
        "few_seeds",
        f"the seed of a step's noise is one of {noise.FEW}",
        "Nasr et al. 2023, violation 2; jax PR #3646",
        "reuse.recurrence",
        "noise re-used: the noise comes back at irregular steps",
        noise.FewSeeds,
        steps=60,
        reason="found when two of the steps so far have drawn the same seed",
    ),
    Fault(
        "one_key_for_all_tensors",
        "all tensors of a step are given the same noise",
        "jax PR #3646",
        "reuse.pair",
        "noise re-used: one noise key",
        noise.OneKeyForAllTensors,
    ),
    Fault(
        "one_value_for_all_coordinates",
        "one draw is added to all coordinates",
        "a shape that is forgotten",
        "reuse.broadcast",
        "noise re-used: one noise value",
        noise.BroadcastNoise,
    ),
    Fault(
        "uniform_noise",
        "the noise is uniform, of the right standard deviation",
        "jax_privacy, sharp edges",
        "noise.shape",
        "noise of another shape",
        noise.UniformNoise,
        named="noise_of_another_shape",
    ),
    Fault(
        "lattice_noise",
        "the noise is rounded to whole multiples of its standard deviation",
        "jax_privacy, sharp edges",
        "noise.shape",
        "noise of another shape",
        noise.LatticeNoise,
        named="noise_of_another_shape",
    ),
    Fault(
        "noise_with_a_mean",
        "the mean of the noise is not zero",
        "hand-written samplers",
        "noise.mean",
        "the mean of the noise is not zero",
        noise.ShiftedNoise,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "noise_times_batch",
        "noise of the sum's size is added to the mean",
        "tensorflow/privacy #153",
        "noise.excess",
        "too much noise: it is 15",
        noise.NoiseTimesBatch,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "noise_per_micro_batch",
        "each part of a split batch is given the noise of a step",
        "opacus #143",
        "noise.excess",
        "too much noise: clipped sums are up to",
        noise.NoisePerMicroBatch,
        trainings.SplitBatches,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "divides_by_realised_batch",
        "the sum is divided by the number of records that a Poisson batch happens to have",
        "opacus #420, #571, #819",
        "batch_normalised",
        "divided by the realised batch size",
        clipping.DividesByRealisedBatch,
    ),
    Fault(
        "parts_share_memory",
        "ghost clipping: the sum over physical batches shares its memory with `p.grad`, so that "
        "earlier ones are lost and the last one counts twice",
        "opacus PR #707",
        "sensitivity",
        "parts of a split batch count differently",
        parts.AliasedSum,
        opacus_trainings.GhostInParts,
        steps=200,
        named="parts_count_differently",
    ),
    Fault(
        "parts_are_added_again",
        "the sum over physical batches is added up again with each of them, so that earlier ones "
        "count several times",
        "a variant of opacus PR #707",
        "sensitivity",
        "parts of a split batch count differently",
        parts.SumOfSums,
        opacus_trainings.PhysicalBatches,
        steps=100,
        named="parts_count_differently",
    ),
    Fault(
        "processes_not_synchronised",
        "each process clips, adds noise and updates by itself",
        "opacus #191, #196",
        "unsynchronised",
        "no synchronised DP-SGD",
        training=distributed.NotSynchronised,
        named="unsynchronised",
        processes=2,
    ),
    Fault(
        "records_drawn_by_every_process",
        "every process draws from all records, so that one may enter a step several times",
        "`distributed=False` of `DPDataLoader.from_data_loader`",
        "sampling.repeated",
        "wrong sampling: every process draws from all records",
        training=distributed.DrawnByAll,
        named="sampled_by_every_process",
        processes=2,
    ),
    Fault(
        "noise_averaged_over_processes",
        "each of W processes draws noise, and their mean is added, which has the W-th part of the "
        "variance",
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
        "a seed that leaves the rank out",
        "noise.excess",
        "too much noise: several of the 2 processes draw the same noise",
        noise.EqualNoise,
        distributed.Distributed,
        ends="INCONCLUSIVE",
        warn_only=True,
        processes=2,
    ),
    Fault(
        "plain_optimizer_beside",
        "an optimizer beside the private one trains a part of the network",
        "opacus #615",
        "no_dp",
        "no DP-SGD",
        training=trainings.PlainBeside,
        named="no_dp",
    ),
    Fault(
        "record_counts_twice",
        "views of a record through tied weights are clipped as samples of their own",
        "opacus #413",
        "sensitivity",
        "a record counts more than once",
        training=trainings.FourViews,
        settings={"noise_multiplier": 0.25},
        audit={**INPUT_CANARY, "claim": replace(BY_HAND_CLAIM, noise_multiplier=0.25)},
        steps=100,
    ),
    Fault(
        "normalised_over_the_batch",
        "features are normalised over the batch, so that gradients depend on other records",
        "batch normalisation",
        "coupling",
        "records are not independent",
        training=trainings.NormalisedOverBatch,
        audit={**INPUT_CANARY, "claim": BY_HAND_CLAIM, "replay_neighbours": True},
        named="records_coupled",
    ),
    Fault(
        "not_a_number",
        "a record whose gradient is not a number makes the model tell of it",
        "overflow in a record's loss",
        "finite",
        "a record that is not finite",
        training=trainings.NotANumber,
        audit=INPUT_CANARY,
        named="not_finite",
    ),
    Fault(
        "summed_loss",
        "the loss is a sum where Opacus expects a mean, so that every gradient is clipped",
        "`loss_reduction` that does not fit",
        "loss_reduction",
        "the loss is a sum over its batch where the optimizer takes it for a mean",
        training=trainings.SummedLoss,
        ends="INCONCLUSIVE",
        warn_only=True,
    ),
    Fault(
        "fixed_size_batches",
        "batches of one size, where neighbours differ by a replaced record, are accounted as "
        "Poisson batches",
        "opacus #80, PR #128; arXiv 2411.10614",
        "sampling.not_poisson",
        "wrong sampling",
        training=trainings.FixedSizeBatches,
        named="not_poisson",
    ),
)

#: The faults by name.
FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in _ALL})
