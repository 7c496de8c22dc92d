"""Code that leaves some rows of a batch unclipped meets canaries there, without an examination."""

from __future__ import annotations

from pathlib import Path

import pytest
from opacus.optimizers import DPOptimizer

from lightning_audit.testing.fault import Fault
from lightning_audit.testing.runs import train

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("default")]


class SparesFirst(DPOptimizer):
    """The first row of each batch is not clipped."""

    spared = slice(0, 1)

    def clip_and_accumulate(self) -> None:
        whole = []
        for p in self.params:
            rows = self._get_flat_grad_sample(p).clone()
            whole.append(rows[self.spared].sum(0))
            rows[self.spared] = 0.0
            p.grad_sample = rows
        super().clip_and_accumulate()
        for p, rest in zip(self.params, whole, strict=True):
            p.summed_grad = p.summed_grad + rest


class SparesLast(SparesFirst):
    """The last row of each batch is not clipped."""

    spared = slice(-1, None)


# A canary stands in the first row in one step of twenty, and the coin of each tells at most log 2.
@pytest.mark.parametrize(("kind", "steps"), [(SparesLast, 100), (SparesFirst, 1200)])
def test_a_row_that_is_not_clipped_is_found_by_the_canaries_that_stand_in_it(
    tmp_path: Path, kind: type[DPOptimizer], steps: int
) -> None:
    fault = Fault(
        kind.__name__, "", "", "sensitivity", "", kind, steps=steps, audit={"examinations": 0}
    )
    report = train(fault, tmp_path)
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.root.name == "clipping_missing_at_times"
