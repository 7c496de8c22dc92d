"""An optimizer with its own clipping and noise, to plant faults in; the report of a training."""

from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _mark_as_processed

from lightning_audit import AuditReport
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.runs import train
from lightning_audit.testing.trainings import Training


class Counted(DPOptimizer):
    """Counts its steps, and clips by a factor for each row."""

    number = 0

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)

    def clip_and_accumulate(self) -> None:
        rows = [g.flatten(1) for g in self.grad_samples]
        factors = self.factors(torch.cat(rows, 1).norm(dim=1))
        for p in self.params:
            total = torch.einsum("i,i...", factors, p.grad_sample)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            _mark_as_processed(p.grad_sample)

    def draw(self, p: torch.Tensor) -> torch.Tensor:
        return self.noise_multiplier * self.max_grad_norm * torch.randn_like(p)

    def add_noise(self) -> None:
        self.number += 1
        for p in self.params:
            p.grad = p.summed_grad + self.draw(p)


def report_of(
    tmp_path: Any,
    plant: type[DPOptimizer] | None = None,
    training: type[Training] = Training,
    steps: int = 20,
    **audit: Any,
) -> AuditReport:
    """The report of a training with a fault."""
    fault = Fault("planted", "a fault", "here", plant, training, steps=steps, audit=audit)
    report = train(fault, tmp_path / "report")
    assert report is not None
    return report


def told(report: AuditReport) -> str:
    """Everything that the verdict says, in one text."""
    checks = [f"{c.name}: {c.message}" for c in report.checks if c.status == "violated"]
    return "\n".join([report.verdict.outcome, *report.verdict.pass_blockers, *checks])
