from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from opacus.optimizers import DPOptimizerFastGradientClipping

from lightning_audit.testing.trainings import Configured, Ghost, PhysicalBatches, random_data

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


class WithSeed(Configured):
    engine_arguments: ClassVar = {"noise_generator": torch.Generator().manual_seed(3)}


def test_a_class_says_how_the_engine_is_called() -> None:
    optimizer = WithSeed(noise_multiplier=2.0).configure_optimizers()
    assert optimizer.generator is WithSeed.engine_arguments["noise_generator"]
    assert optimizer.noise_multiplier == 2.0


def test_the_backward_pass_of_ghost_clipping_leaves_clipped_gradients() -> None:
    module = Ghost(max_grad_norm=1e-3)
    optimizer = module.configure_optimizers()
    assert isinstance(optimizer, DPOptimizerFastGradientClipping)
    x, y = random_data(records=4).tensors
    module.training_step((x, y), 0)["loss"].backward()
    whole = torch.cat([p.grad.flatten() for p in optimizer.params])
    assert 0 < whole.norm().item() <= 4 * 1e-3 * (1 + 1e-4)


def test_physical_batches_have_eight_records_at_most_and_one_step_a_logical_batch() -> None:
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
