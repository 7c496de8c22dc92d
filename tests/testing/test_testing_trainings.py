from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from opacus.accountants import GaussianAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import distributed
from torch.nn import functional

from lightning_audit.testing.faulty_trainings import (
    AccumulationScalesTwice,
    DividesByRealisedBatchByHand,
    EmptyBatchesSkipped,
    GdpAccountant,
    LogicalBatchesRunTogether,
    NoiseRepeatedOnResume,
    NormalisedOverTheBatch,
    NotANumber,
    ProcessesNotSynchronised,
    RecordCountsTwice,
    RecordsDrawnByEveryProcess,
    RowsOfPackedSequences,
    SummedLoss,
)
from lightning_audit.testing.trainings import (
    BATCH_SIZE,
    CLASSES,
    DeepTraining,
    Distributed,
    Ghost,
    HandWritten,
    PhysicalBatches,
    Training,
    net,
    random_data,
)

pytestmark = pytest.mark.filterwarnings("default")

# --- What two processes draw and wrap, in one process that stands for both.


@pytest.fixture
def _one_of_one(tmp_path):
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_of_one")
def test_only_a_module_that_opacus_wraps_is_synchronised():
    assert isinstance(Distributed().for_private(), DifferentiallyPrivateDistributedDataParallel)
    plain = ProcessesNotSynchronised()
    assert plain.for_private() is plain.net


@pytest.mark.usefixtures("_one_of_one")
@pytest.mark.parametrize("kind", [Distributed, RecordsDrawnByEveryProcess])
def test_records_are_dealt_out_unless_every_process_draws_from_all(kind):
    torch.manual_seed(0)
    dealt = kind.loader_arguments["distributed"]
    assert ("Distributed" in type(kind().train_dataloader().batch_sampler).__name__) == dealt


class WithSeed(Training):
    engine_arguments: ClassVar = {"noise_generator": torch.Generator().manual_seed(3)}


def test_a_class_says_how_the_engine_is_called():
    optimizer = WithSeed(noise_multiplier=2.0).configure_optimizers()
    assert optimizer.generator is WithSeed.engine_arguments["noise_generator"]
    assert optimizer.noise_multiplier == 2.0


def test_the_backward_pass_of_ghost_clipping_leaves_clipped_gradients():
    module = Ghost(max_grad_norm=1e-3)
    optimizer = module.configure_optimizers()
    assert isinstance(optimizer, DPOptimizerFastGradientClipping)
    x, y = random_data(records=4).tensors
    module.training_step((x, y), 0)["loss"].backward()
    whole = torch.cat([p.grad.flatten() for p in optimizer.params])
    assert 0 < whole.norm().item() <= 4 * 1e-3 * (1 + 1e-4)


def test_physical_batches_have_eight_records_at_most_and_one_step_a_logical_batch():
    module = PhysicalBatches()
    optimizer = module.configure_optimizers()
    module.trainer = SimpleNamespace(optimizers=[optimizer])
    torch.manual_seed(0)
    loader = iter(module.train_dataloader())
    sizes, skipped = [], []
    for _ in range(40):
        sizes.append(len(next(loader)[0]))
        skipped.append(optimizer._step_skip_queue.pop(0))
    assert max(sizes) <= 8 < sum(sizes) / (len(skipped) - sum(skipped))
    assert sum(skipped) > 10


def noise_of(optimizer) -> torch.Tensor:
    for p in optimizer.params:
        p.summed_grad = torch.zeros_like(p)
    optimizer.add_noise()
    return torch.cat([p.grad.flatten() for p in optimizer.params])


def test_a_resumed_training_draws_the_noise_of_the_first_run_again():
    first, second = (noise_of(NoiseRepeatedOnResume().configure_optimizers()) for _ in range(2))
    assert torch.equal(first, second)


def test_its_generator_is_made_on_the_device_of_the_parameters(monkeypatch):
    module, made = NoiseRepeatedOnResume(), []
    module.net.to("meta")

    class Generator:
        def __init__(self, device):
            made.append(device.type)

        def manual_seed(self, seed):
            return self

    monkeypatch.setattr(torch, "Generator", Generator)
    assert isinstance(module.configure_optimizers().generator, Generator)
    assert made == ["meta"]


def test_the_steps_are_told_to_the_accountant_of_gaussian_dp():
    held = GdpAccountant().configure_optimizers().step_hook.__closure__
    assert any(isinstance(cell.cell_contents, GaussianAccountant) for cell in held)


def test_without_poisson_sampling_the_divisor_is_the_loaders_batch():
    assert AccumulationScalesTwice().configure_optimizers().expected_batch_size == 16


def test_some_poisson_batches_of_two_are_empty():
    torch.manual_seed(0)
    sizes = [len(x) for x, _ in EmptyBatchesSkipped().train_dataloader()]
    assert 0 in sizes
    assert sum(sizes) / len(sizes) == pytest.approx(2.0, rel=0.2)


def test_an_epoch_of_split_batches_is_estimated_and_not_counted():
    assert len(LogicalBatchesRunTogether().data) == 256
    assert (
        len(LogicalBatchesRunTogether.splitter(sampler=[[0]] * 3, max_batch_size=8, optimizer=None))
        > 0
    )


def test_scores_of_packed_sequences_are_those_of_their_own_record():
    net, x = RowsOfPackedSequences().net, random_data(records=6).tensors[0]
    assert torch.allclose(net(x)[2], net(x[2:3])[0], atol=1e-5)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    x, y = random_data(1, records=8).tensors
    return x, y


def test_data_are_the_same_for_a_seed_whatever_was_drawn_before():
    first = random_data()
    torch.rand(3)
    assert all(map(torch.equal, first.tensors, random_data().tensors))
    assert not torch.equal(first.tensors[0], random_data(1).tensors[0])


def test_a_net_has_two_tensors_a_layer():
    assert [len(list(net(depth).parameters())) for depth in (1, 3, 8)] == [2, 6, 16]
    assert len(list(DeepTraining().net.parameters())) == 16


def test_the_hand_written_sum_is_that_of_gradients_clipped_one_by_one(batch):
    module = HandWritten(max_grad_norm=0.5)
    sums = module.clipped_sums(*batch)
    expected = {name: torch.zeros_like(p) for name, p in module.net.named_parameters()}
    for x, y in zip(*batch, strict=True):
        module.net.zero_grad()
        functional.cross_entropy(module.net(x[None]), y[None]).backward()
        grads = {name: p.grad for name, p in module.net.named_parameters()}
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        for name, g in grads.items():
            expected[name] += g * min(1.0, 0.5 / norm.item())
    assert all(torch.allclose(sums[name], expected[name], atol=1e-6) for name in expected)


def test_four_views_add_up_to_four_clipped_gradients_of_a_record(batch):
    def longest(kind: type[HandWritten]) -> float:
        one = kind(max_grad_norm=1e-3).clipped_sums(batch[0][:1], batch[1][:1])
        return torch.cat([g.flatten() for g in one.values()]).norm().item()

    assert longest(HandWritten) == pytest.approx(1e-3, rel=1e-3)
    assert longest(RecordCountsTwice) == pytest.approx(4e-3, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "adds_up"),
    [(HandWritten, True), (RecordCountsTwice, True), (NormalisedOverTheBatch, False)],
)
def test_only_where_records_meet_is_the_sum_not_that_of_its_halves(batch, kind, adds_up):
    module = kind()
    whole, *halves = (
        torch.cat([g.flatten() for g in module.clipped_sums(*part).values()])
        for part in (batch, [t[:4] for t in batch], [t[4:] for t in batch])
    )
    assert torch.allclose(whole, sum(halves), atol=1e-5) == adds_up


def test_divisors_and_losses_are_those_of_the_names(batch):
    assert HandWritten().divisor(3) == BATCH_SIZE
    assert [DividesByRealisedBatchByHand().divisor(n) for n in (0, 3)] == [1, 3]
    mean, total = Training(), SummedLoss()
    total.net = mean.net
    assert total.training_step(batch, 0).item() == pytest.approx(
        8 * mean.training_step(batch, 0).item(), rel=1e-5
    )


def test_one_record_in_eight_is_not_a_number():
    assert NotANumber().data.tensors[0].isnan().any(1).float().mean().item() == 1 / 8


def test_the_planted_optimizer_is_the_one_to_train_with():
    planted: list[DPOptimizer] = []

    def plant(optimizer: DPOptimizer) -> DPOptimizer:
        planted.append(optimizer)
        return optimizer

    module = Training(plant, noise_multiplier=1.5, max_grad_norm=0.7)
    assert module.configure_optimizers() is planted[0]
    assert (planted[0].noise_multiplier, planted[0].max_grad_norm) == (1.5, 0.7)
    assert module.forward(torch.zeros(2, 16)).shape == (2, CLASSES)
