"""Small trainings on random data with a fault outside of the optimizer: one fault per class.

The training around Opacus' optimizer, or by hand, is not what is claimed or accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from opacus.data_loader import DPDataLoader
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import ConcatDataset, DataLoader, Subset

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.checks.clipping import LOSS_REDUCTION
from lightning_audit.checks.opacus import OPACUS
from lightning_audit.checks.replay import REPLAY_SENSITIVITY
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.checks.sampling import EXPECTED_BATCH_SIZE
from lightning_audit.dpsgd.hand_over import released
from lightning_audit.lints.settings import DIVIDED_TWICE, ONE_BATCH_ONLY, SKIPPED
from lightning_audit.testing.fault import fault
from lightning_audit.testing.faulty import COEFFICIENTS, BandedDraws, multiplied
from lightning_audit.testing.trainings import (
    BATCH_SIZE,
    BY_HAND_CLAIM,
    CLASSES,
    EXAMINED,
    HIDDEN,
    INPUT_CANARY,
    RECORDS,
    WIDTH,
    AdaptiveClipping,
    Distributed,
    Ghost,
    Gradients,
    HandWritten,
    Manual,
    PhysicalBatches,
    Training,
)

# --- The claim, or what the accountant records, is not what the training does.


@fault(
    "a claim kept from an earlier run", audit={"claim": PrivacyClaim(noise_multiplier=2.0)}, steps=1
)
class ClaimAboveOptimizer(Training):
    """The claim states twice the noise that make_private was given."""


@fault(
    "two conventions for neighboring data sets",
    audit={"claim": PrivacyClaim(adjacency="replace_one")},
)
class ReplacementAccountedAsRemoval(Training):
    """Epsilon is claimed for a replaced record, but computed for an added or removed record."""


@fault(
    "opacus #346",
    settings={"noise_multiplier": 0.8},
    audit={"claimed_epsilon": 0.8},
    named="wrong_accounting",
)
class NoiseForFewerSteps(Training):
    """The search for the noise multiplier ends above the target epsilon."""


@fault(
    "Opacus' make_private",
    ends="INCONCLUSIVE",
    check=EXPECTED_BATCH_SIZE.name,
    shows="epsilon_of_divisor",
)
class DivisorOfTheRecords(Training):
    """The divisor int(records * sample_rate), which also scales the noise, reveals a record."""


@fault('Opacus\' `accountant="gdp"`', ends="INCONCLUSIVE", check=OPACUS.name, shows="doubts")
class GdpAccountant(Training):
    """The accountant of Gaussian DP reports less than the steps cost."""

    engine: ClassVar = {"accountant": "gdp"}


class HookWrapped(Training):
    """Wraps the accountant's hook, as for logging; this base class is correct."""

    calls = 0

    def tell(self, own: Callable[[Any], None], stepping: Any) -> None:
        """Call the accountant's hook for a step of an optimizer."""
        own(stepping)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with another hook."""
        optimizer = super().configure_optimizers()
        own = optimizer.step_hook

        def hook(stepping: Any) -> None:
            self.calls += 1
            self.tell(own, stepping)

        optimizer.step_hook = hook
        return optimizer


@fault("wrapped hooks", named="accountant_not_told")
class EverySecondStepTold(HookWrapped):
    """The accountant is called at every second step only."""

    def tell(self, own: Callable[[Any], None], stepping: Any) -> None:
        """Call the accountant's hook, or not."""
        if self.calls % 2 == 1:
            own(stepping)


@fault("rewritten hooks", named="accountant_told_of_more_noise")
class MoreNoiseTold(HookWrapped):
    """The accountant records more noise than the optimizer states."""

    def tell(self, own: Callable[[Any], None], stepping: Any) -> None:
        """Call the accountant's hook with another noise multiplier."""
        with multiplied(stepping, "noise_multiplier", 2.0):
            own(stepping)


# --- Batches are not drawn, or not stepped on, as the accountant assumes.

#: Records that `SomeRecordsInEveryBatch` adds to each batch.
FAVOURED = (3, 5, 8)


@fault("opacus #80, PR #128; arXiv 2411.10614", named="not_poisson")
class FixedSizeBatches(Training):
    """Batches of a fixed size are accounted for as Poisson batches.

    Their neighbors differ by a replaced record.
    """

    def train_dataloader(self) -> Any:
        """Return shuffled batches."""
        return DataLoader(self.data, BATCH_SIZE, shuffle=True)


@fault(
    "samplers seeded for reproducibility",
    steps=96,
    reason="found in the second or third epoch",
    named="batches_come_again",
)
class SameBatchesInEveryEpoch(Training):
    """The batches of an epoch repeat in the next.

    The sampler is seeded at each epoch's start; the first epoch may have begun before.
    """

    records = RECORDS // 4

    def on_train_epoch_start(self) -> None:
        """Make epochs reproducible, and thereby equal."""
        self.order.manual_seed(1)

    def train_dataloader(self) -> Any:
        """Return Poisson batches from their own generator."""
        self.order = torch.Generator()
        return DPDataLoader.from_data_loader(self.plain_loader(), generator=self.order)


class FavouringSampler(UniformWithReplacementSampler):
    """Poisson batches to which some records are always added."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield Poisson batches with the favored records."""
        for batch in super().__iter__():
            yield sorted({*batch, *FAVOURED})


@fault("rebalanced samplers", named="records_drawn_too_often")
class SomeRecordsInEveryBatch(Training):
    """A sampler adds some records to every batch."""

    def train_dataloader(self) -> Any:
        """Return a loader with the favoring sampler."""
        loader = super().train_dataloader()
        loader.batch_sampler.__class__ = FavouringSampler
        return loader


@fault("data sets concatenated with a part of themselves", named="records_stand_several_times")
class RecordsStandTwice(Training):
    """The data set holds records twice."""

    def prepare(self) -> None:
        """Concatenate half of the records with themselves."""
        self.data = ConcatDataset([Subset(self.data, range(RECORDS // 2)) for _ in range(2)])


@fault("inner loops over a batch", named="several_steps_on_one_batch")
class TwoStepsOnOneBatch(Manual):
    """Two steps are taken on each batch."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Train on the batch twice."""
        for _ in range(2):
            super().training_step(batch, batch_idx)


@fault("replay buffers", named="several_steps_on_one_batch")
class KeptBatches(Training):
    """A batch is kept, and trained on again instead of the drawn one."""

    kept: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Keep every fourth batch, and train on it again three batches later."""
        if batch_idx % 4 == 0:
            self.kept = batch
        return super().training_step(self.kept if batch_idx % 4 == 3 else batch, batch_idx)


@fault(
    "agents that give a dummy loader and sample a replay buffer",
    audit={"examinations": 1},
    ends="INCONCLUSIVE",
    check=REPLAY_SENSITIVITY.name,
    sentence=str(Reason.NO_RECORD),
)
class OwnPool(Training):
    """A step trains on records that it draws itself, and the loader's batches are not used."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Train on records of a pool."""
        x, y = self.data.tensors
        rows = torch.randint(RECORDS // 8, (BATCH_SIZE,))
        return super().training_step((x[rows], y[rows]), batch_idx)


@fault("Opacus' `BatchSplittingSampler` under Lightning", steps=100, named="batches_run_together")
class LogicalBatchesRunTogether(PhysicalBatches):
    """An epoch ends within a logical batch, whose rest is added to the first one of the next.

    Lightning ends each epoch at the length that Opacus' splitting sampler estimates.
    """

    records, splitter = 256, BatchSplittingSampler


@fault("opacus #530, #612", ends="INCONCLUSIVE", sentence=SKIPPED)
class EmptyBatchesSkipped(Manual):
    """Empty Poisson batches are skipped, and get no noise."""

    batch_size = 2

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Step only on a batch with records."""
        if len(batch[0]):
            super().training_step(batch, batch_idx)


@fault("`rand_on_empty` of Opacus 1.6")
class MadeUpRecord(Training):
    """An empty batch is replaced by a record of random numbers."""

    batch_size = 2
    loader_arguments: ClassVar = {"rand_on_empty": True}


@fault(
    "`accumulate_grad_batches` with Opacus",
    ends="INCONCLUSIVE",
    sentence=DIVIDED_TWICE.format(n=2),
    trainer={"accumulate_grad_batches": 2},
)
class AccumulationScalesTwice(Training):
    """Gradients are divided by the number of accumulated batches twice.

    Lightning divides the loss, and Opacus the gradient. With ``poisson_sampling=False``, Opacus
    lets a Trainer accumulate batches.
    """

    engine_arguments: ClassVar = {"poisson_sampling": False}


@fault(
    '`accumulate_grad_batches` with `grad_sample_mode="ghost"`',
    ends="INCONCLUSIVE",
    sentence=ONE_BATCH_ONLY.format(n=2),
    trainer={"accumulate_grad_batches": 2},
)
class AccumulatedGhostClipping(Ghost):
    """Ghost clipping drops all but the last of the batches that Lightning accumulates."""


# --- Gradients that are clipped are not those of single records, or not finite.


@fault("wrong `loss_reduction`", ends="INCONCLUSIVE", check=LOSS_REDUCTION.name)
class SummedLoss(Training):
    """The loss is a sum although Opacus expects a mean, so that every gradient is clipped."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the summed cross-entropy of a batch."""
        x, y = batch
        return functional.cross_entropy(self.forward(x), y, reduction="sum")


@fault("overflow in a record's loss", audit=INPUT_CANARY, named="not_finite")
class NotANumber(Training):
    """A record with a NaN gradient makes the model NaN, which reveals the record."""

    def prepare(self) -> None:
        """Make a feature of one record in eight NaN."""
        self.data.tensors[0][::8, 0] = torch.nan


@fault("`ignore_index` with Opacus 1.6", audit=EXAMINED, named="records_coupled")
class RecordsIgnored(Training):
    """The loss is a mean over the records that are not ignored: ignoring one changes others."""

    def prepare(self) -> None:
        """Give one record in four a label that the loss ignores."""
        self.data.tensors[1][3::4] = -100


@fault(
    "augmentation that repeats records in the batch", audit=EXAMINED, named="record_counts_twice"
)
class ViewsClippedApart(Training):
    """Two augmented views of a record are clipped as two records."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean cross-entropy of both views."""
        x, y = batch
        return super().training_step((torch.cat([x, 0.9 * x]), torch.cat([y, y])), batch_idx)


@fault(
    "opacus #413",
    settings={"noise_multiplier": 0.25},
    audit={**INPUT_CANARY, "claim": replace(BY_HAND_CLAIM, noise_multiplier=0.25)},
    steps=100,
)
class RecordCountsTwice(HandWritten):
    """Views of a record through tied weights are clipped as separate samples."""

    def clipped_sums(self, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        """Clip each of four views, although a record is their sum."""
        views = torch.cat([factor * x for factor in (1.0, 1.01, 1.02, 1.03)])
        return self.clipped(self.sample_gradients(self.net, views, y.repeat(4)))


@fault(
    "batch normalization",
    audit={**INPUT_CANARY, **EXAMINED, "claim": BY_HAND_CLAIM},
    named="records_coupled",
)
class NormalisedOverTheBatch(HandWritten):
    """Features are normalized over the batch, so that gradients depend on other records."""

    def clipped_sums(self, x: torch.Tensor, y: torch.Tensor) -> Gradients:
        """Center by the batch's mean, then clip."""
        return super().clipped_sums(x - x.mean(0), y)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(2, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequences = x.view(len(x), -1, 2)
        lengths = 1 + (100.0 * x.abs().sum(1)).long() % sequences.shape[1]
        packed = pack_padded_sequence(
            sequences, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        scores: torch.Tensor = self.head(hidden[-1])
        return scores


@fault("Opacus 1.6", audit=EXAMINED, named="records_coupled")
class RowsOfPackedSequences(Training):
    """`pack_padded_sequence` sorts sequences, so that a per-sample gradient mixes several records.

    The per-sample gradients of `DPLSTM` remain sorted.
    """

    def prepare(self) -> None:
        """Take a recurrent net."""
        self.net = _Recurrent()


def padded(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut features to lengths of their own, and pad them to the longest one."""
    texts = [x[: 1 + int(100.0 * x.abs().sum()) % WIDTH] for x, _ in items]
    return pad_sequence(texts, batch_first=True), torch.stack([y for _, y in items])


class _Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention: Any = None
        self.words, self.head = nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = self.words(x.unsqueeze(-1)).relu()
        pooled = words.mean(1)
        if self.attention is not None:
            words, _ = self.attention(words, words, words, key_padding_mask=x == 0.0)
            pooled = (words * (x != 0.0).unsqueeze(-1)).sum(1)
        scores: torch.Tensor = self.head(pooled)
        return scores


@fault("text examples of Opacus 1.6", audit=EXAMINED, named="records_coupled")
class PaddedToTheLongest(Training):
    """Unmasked padding to the longest text of a batch: its length changes others' gradients."""

    def prepare(self) -> None:
        """Take a net that pools the words of a text."""
        self.net = _Pooled()

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches of padded texts."""
        return DataLoader(self.data, BATCH_SIZE, collate_fn=padded)


@fault("Opacus' `DPMultiheadAttention(batch_first=True)`", audit={"examinations": 1})
class AttentionMixesPlaces(PaddedToTheLongest):
    """Masked padding to the longest text of a batch reaches the real tokens of the others."""

    def prepare(self) -> None:
        """Add attention to the net."""
        super().prepare()
        self.net.attention = DPMultiheadAttention(HIDDEN, 4, batch_first=True)


# --- The model learns from more than the noisy sum of clipped gradients.


@fault("opacus #615", named="no_dp")
class PlainOptimizerBeside(Manual):
    """An optimizer in addition to the private one trains a part of the network."""

    def prepare(self) -> None:
        """Add a head."""
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores of the head."""
        return self.head(self.net(x))

    def configure_optimizers(self) -> Any:
        """Return the private optimizer, and one that Opacus does not wrap."""
        return [super().configure_optimizers(), torch.optim.Adam(self.head.parameters(), lr=1e-3)]


@fault("loops with several optimizers; Opacus' `dcgan.py`", named="no_dp")
class OptimizerNotHandedOver(PlainOptimizerBeside):
    """An optimizer that the audit is not given trains a part of the network."""

    def configure_optimizers(self) -> Any:
        """Return the private optimizer alone."""
        private, self.__dict__["own"] = super().configure_optimizers()
        return private

    def optimizers(self) -> Any:
        """Return both."""
        return [super().optimizers(), self.__dict__["own"]]


@fault(
    "regularizers and auxiliary losses with their own backward pass",
    audit={"examinations": 1},
    named="gradient_replaced",
    trainer={"max_epochs": 1, "limit_train_batches": 20},  # it counts no inner steps
)
class BackwardAfterNoise(Manual):
    """A second loss runs backward after noise was added, and the update uses its gradient."""

    engine_arguments: ClassVar = {"poisson_sampling": False}  # or Opacus refuses a second backward

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Clip and add noise, run backward again, then update."""
        private = self.optimizers().optimizer
        private.zero_grad()
        for again in (False, True):
            self.manual_backward(Training.training_step(self, batch, batch_idx))
            if not again and not private.pre_step():
                return
        private.original_optimizer.step()


@fault(
    "training scripts that slow down where the loss is large",
    audit=EXAMINED,
    named="more_than_the_release",
)
class RateByLastLoss(Training):
    """The learning rate of a step is computed from the raw loss of the last one."""

    last = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Set the rate, and keep the loss."""
        for group in self.optimizers().param_groups:
            group["lr"] = 0.05 / (1.0 + self.last)
        loss = super().training_step(batch, batch_idx)
        self.last = float(loss.detach())
        return loss


@fault(
    "the buffers of BatchNorm",
    audit={**EXAMINED, "claim": BY_HAND_CLAIM},
    named="more_than_the_release",
)
class StatisticsKept(HandWritten):
    """Batch normalization keeps statistics of the records, which are saved in checkpoints."""

    def prepare(self) -> None:
        """Add a layer that keeps statistics."""
        self.statistics = nn.BatchNorm1d(WIDTH, affine=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Update the statistics with the batch, and train."""
        x, _ = batch
        if len(x) > 1:
            self.statistics(x)
        return super().training_step(batch, batch_idx)


@fault("hooks after the step", audit=EXAMINED, named="more_than_the_release")
class ChangedAfterStep(Training):
    """The batch's inputs change weights after its step."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Change the weights."""
        x, _ = batch
        if len(x):
            with torch.no_grad():
                next(self.net.parameters()).add_(x.mean(), alpha=1e-3)


@fault("training scripts", audit=EXAMINED, named="more_than_the_release")
class NormOfTheFirstBatch(Training):
    """The clipping norm is calibrated on the first batch, without noise."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Calibrate the norm once."""
        if not hasattr(self, "calibrated"):
            self.calibrated = float(batch[0].norm(dim=1).median()) / 4.0
            self.optimizers().optimizer.max_grad_norm = self.calibrated
        return super().training_step(batch, batch_idx)


@fault("`outputs.loss` of Hugging Face")
class GhostClippingWithoutItsLoss(Ghost):
    """Ghost mode, and the loss that runs backward is not that of the criterion of make_private."""

    training_step = Training.training_step


@fault("Opacus' `GradClipScheduler` with ghost clipping", named="clipping_norm_not_passed_on")
class NormNotPassedOn(Ghost):
    """Ghost clipping: a schedule changes `max_grad_norm` of the optimizer but not of the module.

    Gradients are clipped at that of the module.
    """

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Halve the optimizer's norm at step 4, and return the loss, whose backward pass clips."""
        if batch_idx == 4:
            self.trainer.optimizers[0].max_grad_norm /= 2.0
        return super().training_step(batch, batch_idx)


# --- The noise is not what is claimed or accounted for.


@fault("AdaClip in Opacus 1.6")
class CountOverRealBatch(AdaptiveClipping):
    """Adaptive clipping divides its noisy count by the real number of records of a batch."""

    engine_arguments: ClassVar = {**AdaptiveClipping.engine_arguments, "unclipped_num_std": 0.6}


@fault(
    "`noise_generator` of make_private without its state in the checkpoint",
    named="noise_restarted",
    resumes=True,
)
class NoiseRepeatedOnResume(Training):
    """A seeded noise generator starts over when the training is resumed."""

    def prepare(self) -> None:
        """Make the training private before it is set up."""
        self.net, self._optimizer, _ = self.make_private()  # a checkpoint has its parameters' names

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with a generator on the device of its weights."""
        device = next(self.net.parameters()).device
        self._optimizer.generator = torch.Generator(device).manual_seed(5)
        return self._optimizer


@fault("`sum / len(batch)`", audit={"claim": BY_HAND_CLAIM}, named="divides_by_realised_batch")
class DividesByRealisedBatchByHand(HandWritten):
    """Hand-written DP-SGD averages over the actual number of records in a Poisson batch."""

    def divisor(self, records: int) -> float:
        """Return the number of drawn records."""
        return max(records, 1)


class BandedByHand(HandWritten):
    """Hand-written banded noise, passed to `lightning_audit.released`: correct if it is claimed."""

    factor: float = 1.0

    def prepare(self) -> None:
        """Start with no earlier draws."""
        self.draws = BandedDraws(factor=self.factor)

    def noise(self, place: int, total: torch.Tensor) -> torch.Tensor:
        """Return banded noise."""
        return self.draws.noise(place, total)

    def noisy(self, sums: Gradients, records: int) -> Gradients:
        """Return the noisy averages, after the audit has seen them."""
        return released(super().noisy(sums, records), module=self.net)


@fault(
    "a noise multiplier computed for another sensitivity of the encoder",
    audit={"claim": replace(BY_HAND_CLAIM, noise_coefficients=COEFFICIENTS)},
    named="noise_too_small",
)
class HalfBandedNoiseByHand(BandedByHand):
    """Banded noise is declared, and half of it is added by hand."""

    factor = 0.5


# --- Several processes do not train together as one.


@fault("opacus #191, #196", named="unsynchronised", processes=2)
class ProcessesNotSynchronised(Distributed):
    """Each process clips, adds noise and updates on its own.

    Lightning's DDP alone does not synchronize the gradients of Opacus.
    """

    def for_private(self) -> nn.Module:
        """Return the net, which only Lightning wraps."""
        return self.net


@fault(
    "`distributed=False` of `DPDataLoader.from_data_loader`",
    named="sampled_by_every_process",
    processes=2,
)
class RecordsDrawnByEveryProcess(Distributed):
    """Every process draws from all records, so that a record may enter a step several times."""

    loader_arguments: ClassVar = {"distributed": False}


@fault("Opacus 1.6: a loader's generator with one seed", processes=2)
class ProcessesDrawAlike(Distributed):
    """The processes draw the same positions of their shares of the records."""

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches with a generator."""
        seeded = torch.Generator().manual_seed(0)
        return DataLoader(self.data, self.batch_size, generator=seeded)
