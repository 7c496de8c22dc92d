"""What a faulty clipping sums up, on gradients that are known."""

from __future__ import annotations

import pytest
import torch
from opacus.optimizers import DPOptimizer
from planted import private

from lightning_audit.testing import faulty

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")
RECORDS = 4


def summed(kind: type[DPOptimizer], length: float) -> list[torch.Tensor]:
    """The sum of gradients of which each tensor's part has a length, of norm 1 or more in all."""
    optimizer = private()
    optimizer.__class__ = kind
    for p in optimizer.params:
        sample = torch.full_like(p, length / p.numel() ** 0.5)
        p.grad_sample = sample.expand(RECORDS, *p.shape).clone()
    optimizer.clip_and_accumulate()
    return [p.summed_grad for p in optimizer.params]


def norms(kind: type[DPOptimizer], length: float) -> list[float]:
    return [t.norm().item() / RECORDS for t in summed(kind, length)]


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        (DPOptimizer, 1 / 6**0.5),
        (faulty.ClipAtTwice, 2 / 6**0.5),
        (faulty.NoClipping, 10.0),
        (faulty.ClipPerTensor, 1.0),
        # Three weights are counted, and the factor holds for the biases, too.
        (faulty.NormMissesBiases, 1 / 3**0.5),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_of_six_tensors_is_clipped_as_the_fault_says(
    kind: type[DPOptimizer], each: float
) -> None:
    assert norms(kind, 10.0) == pytest.approx([each] * 6, rel=1e-4)


def test_one_batch_in_eight_is_not_clipped() -> None:
    optimizer = private()
    optimizer.__class__ = faulty.ClipsNotAlways
    sizes = []
    for _ in range(2 * faulty.SPARED):
        for p in optimizer.params:
            p.grad_sample = torch.full_like(p, 10.0).expand(RECORDS, *p.shape).clone()
            p.summed_grad = None
        optimizer.clip_and_accumulate()
        total = torch.cat([p.summed_grad.flatten() for p in optimizer.params]).norm().item()
        sizes.append(total / RECORDS)
    clipped = [size for size in sizes if size == pytest.approx(1.0, rel=1e-3)]
    assert len(clipped) == 14
    assert sizes[faulty.SPARED - 1] > 100.0


def test_the_clipped_mean_is_as_long_as_the_clipping_norm_times_the_expected_batch() -> None:
    whole = torch.cat([t.flatten() for t in summed(faulty.ClipAfterAverage, 10.0)])
    assert whole.norm().item() == pytest.approx(16.0, rel=1e-4)


def test_the_realised_batch_is_what_the_sum_is_divided_by() -> None:
    optimizer = private()
    optimizer.__class__ = faulty.DividesByRealisedBatch
    for p in optimizer.params:
        p.grad_sample = torch.zeros(RECORDS, *p.shape)
    optimizer.clip_and_accumulate()
    for p in optimizer.params:
        p.grad = torch.ones_like(p)
    optimizer.scale_grad()
    assert all((p.grad == 1 / RECORDS).all() for p in optimizer.params)


def test_the_closure_runs_once_more_after_the_private_gradient() -> None:
    optimizer = private()
    optimizer.__class__ = faulty.ClosureRunsAgain
    calls = []

    def closure() -> float:
        calls.append(len(calls))
        for p in optimizer.params:
            p.grad_sample = torch.zeros(RECORDS, *p.shape)
            p.grad = torch.full_like(p, 7.0)
        return 0.0

    optimizer.step(closure)
    assert calls == [0, 1]
    assert all((p.grad == 7.0).all() for p in optimizer.params)
