"""The check `unsynchronised`: processes that update with different gradients."""

from __future__ import annotations

from lightning_audit.checks.base.check import MEASURED, Check, FaultRule
from lightning_audit.results.audit_report import CheckResult


def unsynchronised_result(synchronised: bool, processes: int) -> CheckResult:
    """Return the result of `unsynchronised`: all processes must update with the same gradient.

    Args:
        synchronised: whether all processes read the same gradients at every step.
        processes: number of processes.
    """
    return UNSYNCHRONISED.judged(
        {"processes": processes, "synchronised": synchronised},
        f"all {processes} processes updated with the same gradients",
        f"the {processes} processes updated with different gradients, so the privacy that the "
        "optimizer states does not hold for them together",
        "DistributedDataParallel does not reach what DPOptimizer makes: call make_private with "
        "module=DifferentiallyPrivateDistributedDataParallel(net) (from opacus.distributed), or "
        "with module=self.trainer.strategy.model and wrap_model=False, both of which give a "
        "DistributedDPOptimizer; load with DPDataLoader.from_data_loader(loader, distributed=True) "
        "and Trainer(use_distributed_sampler=False)",
    )


UNSYNCHRONISED = Check(
    "unsynchronised",
    "several processes train, and each updates with its own gradient",
    title="Synchronization of the processes",
    failed_title="Processes train separately",
    meaning="Each process clips, adds noise and updates on its own, and only the model of the "
    "first one is kept.",
    look_at="Check how the module is wrapped for several processes before `make_private` gets it.",
    topic="What the update uses",
    wrong=lambda seen: seen["synchronised"] is not True,
    faults=(
        FaultRule(
            "unsynchronised",
            "no synchronised DP-SGD: each process clips, adds noise and trains on its own, and the "
            "first one's model is kept",
            "how the module is wrapped for several processes before make_private sees it",
            headline="Each process trains alone",
            rank=-6,
            explains_groups=MEASURED,
        ),
    ),
)

CHECKS = (UNSYNCHRONISED,)
