"""Code that looks at rows before it clips or adds noise meets canaries that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from opacus.optimizers import DPOptimizer

from lightning_audit.testing.fault import Fault
from lightning_audit.testing.runs import train

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("default")]


def norms(optimizer: DPOptimizer) -> torch.Tensor:
    """Norms of the rows that wait to be clipped over the clipping norm, ``[rows]``."""
    flat = [rows.flatten(1) for rows in optimizer.grad_samples]
    return torch.cat(flat, 1).norm(dim=1) / optimizer.max_grad_norm


class ClipsOutliersAlone(DPOptimizer):
    """Rows of up to 50 C are left as they are."""

    def clip_and_accumulate(self) -> None:
        small = norms(self) <= 50.0
        kept = [(rows * small.view(-1, *[1] * (rows.dim() - 1))) for rows in self.grad_samples]
        for p, rows in zip(self.params, kept, strict=True):
            p.grad_sample = p.grad_sample - rows
        super().clip_and_accumulate()
        for p, rows in zip(self.params, kept, strict=True):
            p.summed_grad = p.summed_grad + rows.sum(0)


class NoiseWhereSomethingIsLarge(DPOptimizer):
    """A step without a row above 10 C has a tenth of the noise."""

    def clip_and_accumulate(self) -> None:
        self.large = bool((norms(self) > 10.0).any())
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        multiplier = self.noise_multiplier
        super().add_noise()
        if not self.large:
            for p in self.params:
                p.grad = p.summed_grad + 0.1 * (p.grad - p.summed_grad)
        assert self.noise_multiplier == multiplier


@pytest.mark.parametrize(
    ("kind", "finding", "name"),
    [
        (ClipsOutliersAlone, "sensitivity", "clipping_missing_at_times"),
        (NoiseWhereSomethingIsLarge, "noise.step", "noise_missing_in_steps"),
    ],
)
def test_what_is_done_to_rows_of_other_norms_is_found_without_an_examination(
    tmp_path: Path, kind: type[DPOptimizer], finding: str, name: str
) -> None:
    fault = Fault(kind.__name__, "", "", finding, "", kind, steps=400, audit={"examinations": 0})
    report = train(fault, tmp_path)
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.root.name == name
