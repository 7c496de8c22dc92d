"""The circumstances of a training: where and how it ran, its epochs' ends, and how it ended."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import torch

from lightning_audit.accounting.step_history import StepHistory
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.files.repository import commit_of
from lightning_audit.results.report_details import CourseRow, Ended, ExaminationTold, RunAbout
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.stats.evalues.leakage_bet import ProvedPart

#: Most rows of the course.
MOST_ROWS = 200
#: Largest part of the time since the last bound on mu that the next one may take.
_SHARE = 0.01


@dataclass
class Circumstances:
    """The circumstances of a training.

    Args:
        about: what is known when it begins.
        planned_steps: of the whole training; None if unknown.
        ended_by: why it ended, see `Ended`; empty while it runs.
        rows: of the course.
        examinations: of steps by replay.
    """

    about: RunAbout | None = None
    planned_steps: int | None = None
    ended_by: str = ""
    rows: list[CourseRow] = field(default_factory=list)
    examinations: list[ExaminationTold] = field(default_factory=list)
    #: Number of epochs from one row to the next.
    _every: int = 1
    _began: float = field(default_factory=time.perf_counter)
    # When the last bound on mu was computed, and the seconds that it took.
    _bounded_at: float = 0.0
    _took: float = 0.0

    @classmethod
    def of(cls, trainer: Any) -> Circumstances:
        """Return the circumstances of a training that begins."""
        module = getattr(trainer, "lightning_module", None)
        return cls(
            RunAbout(
                name=type(module).__name__ if module is not None else "",
                started=datetime.now().astimezone().isoformat(timespec="seconds"),
                device=_device(trainer),
                precision=str(trainer.precision),
                processes=int(getattr(trainer, "world_size", 1)),
                strategy=type(getattr(trainer, "strategy", None)).__name__,
                commit=_commit(module),
            )
        )

    @property
    def now(self) -> RunAbout | None:
        """The circumstances, with the seconds so far."""
        seconds = time.perf_counter() - self._began
        return None if self.about is None else replace(self.about, seconds=seconds)

    def ended(self, steps: int, break_off: str) -> Ended | None:
        """Return how the training ended; None while it runs.

        Args:
            steps: that were taken.
            break_off: why it broke off, or empty.
        """
        reason = "broke off" if break_off else self.ended_by
        return Ended(steps, reason) if reason else None

    def end_epoch(
        self,
        epoch: int,
        sessions: Sequence[AuditSession],
        config: AuditConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Add a row for the end of an epoch; a resumed epoch replaces its row.

        Args:
            epoch: its number, from 0.
            sessions: of the private optimizers.
            config: of the audit.
            metrics: of this epoch's end; None to compute the bound on mu here, if that is cheap.
        """
        if epoch % self._every or not sessions:
            return
        monitors = [session.monitor for session in sessions]
        row = CourseRow(
            step=sum(monitor.steps for monitor in monitors),
            epoch=epoch,
            mu_lower=self._mu(sessions, config) if metrics is None else metrics.get("mu_lower"),
            log_e=max(monitor.log_e_value for monitor in monitors),
            observations=sum(monitor.sensitivity.observations for monitor in monitors),
        )
        self.rows = [*(old for old in self.rows if old.epoch < epoch), row]
        if len(self.rows) > MOST_ROWS:
            self._every *= 2
            self.rows = [old for old in self.rows if old.epoch % self._every == 0]

    def _mu(self, sessions: Sequence[AuditSession], config: AuditConfig) -> float | None:
        """Return the largest bound on mu if that is cheap, else None."""
        begun = time.perf_counter()
        dear = self._took > _SHARE * (begun - self._bounded_at)
        if dear or config.mechanism_alone:
            return None
        level = config.bound_significance / len(sessions)
        monitors = [session.monitor for session in sessions]
        mus = [proved_mu(m.leakage.front(level), m.claims) for m in monitors if m.canary_steps]
        self._bounded_at = time.perf_counter()
        self._took = self._bounded_at - begun
        return max(mus, default=None)

    def state(self) -> dict[str, Any]:
        """Return the rows for a checkpoint; examined steps depend on the data."""
        return {"every": self._every, "rows": [asdict(row) for row in self.rows]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's rows; checkpoints of earlier versions have none."""
        self._every = int(state.get("every", 1))
        self.rows = [CourseRow(**row) for row in state.get("rows", ())]


def proved_mu(front: Sequence[ProvedPart], claims: StepHistory) -> float:
    """Return the lower bound on the leakiest step's mu.

    Args:
        front: what is proved for the steps up to each look.
        claims: of the steps.
    """
    # Each ratio with the noise multiplier at the step up to which it was proved.
    at_looks = ((part.ratio, claims.noise_at(part.steps)) for part in front)
    return max((ratio / sigma for ratio, sigma in at_looks if sigma > 0), default=0.0)


def _device(trainer: Any) -> str:
    device = getattr(getattr(trainer, "strategy", None), "root_device", None)
    if not isinstance(device, torch.device):
        return ""
    if device.type != "cuda":
        return device.type
    return f"cuda ({torch.cuda.get_device_name(device)})"


def _commit(module: Any) -> str | None:
    """Return the commit of the repository with the file of the module's class."""
    try:
        file = inspect.getsourcefile(type(module))
    except (OSError, TypeError):  # typed into a notebook
        return None
    return commit_of(file) if file else None
