from types import SimpleNamespace

import pytest
import torch
from opacus.accountants import GaussianAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import distributed
from torch.nn import functional

from lightning_audit.testing.faulty_trainings import (
    AccumulationScalesTwice,
    GdpAccountant,
    ProcessesNotSynchronised,
    RecordsDrawnByEveryProcess,
)
from lightning_audit.testing.trainings import (
    CLASSES,
    Distributed,
    Ghost,
    HandWritten,
    PhysicalBatches,
    Training,
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


def test_the_steps_are_told_to_gaussian_dp_and_the_divisor_is_the_loaders_batch():
    held = GdpAccountant().configure_optimizers().step_hook.__closure__
    assert any(isinstance(cell.cell_contents, GaussianAccountant) for cell in held)
    assert AccumulationScalesTwice().configure_optimizers().expected_batch_size == 16


@pytest.fixture
def batch():
    torch.manual_seed(0)
    x, y = random_data(1, records=8).tensors
    return x, y


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


def test_the_planted_optimizer_is_the_one_to_train_with():
    planted: list[DPOptimizer] = []

    def plant(optimizer: DPOptimizer) -> DPOptimizer:
        planted.append(optimizer)
        return optimizer

    module = Training(plant, noise_multiplier=1.5, max_grad_norm=0.7)
    assert module.configure_optimizers() is planted[0]
    assert (planted[0].noise_multiplier, planted[0].max_grad_norm) == (1.5, 0.7)
    assert module.forward(torch.zeros(2, 16)).shape == (2, CLASSES)
