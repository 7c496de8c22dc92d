"""What two processes draw and wrap, in one process that stands for both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed

from lightning_audit.testing.trainings import Distributed, DrawnByAll, NotSynchronised

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def _one_of_one(tmp_path: Path):
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def test_only_a_module_that_opacus_wraps_is_synchronised() -> None:
    assert isinstance(Distributed().for_private(), DifferentiallyPrivateDistributedDataParallel)
    plain = NotSynchronised()
    assert plain.for_private() is plain.net


@pytest.mark.parametrize("kind", [Distributed, DrawnByAll])
def test_records_are_dealt_out_unless_every_process_draws_from_all(kind: type) -> None:
    torch.manual_seed(0)
    sampler = kind().train_dataloader().batch_sampler
    assert ("Distributed" in type(sampler).__name__) == kind.dealt
