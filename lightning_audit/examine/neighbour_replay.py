"""Replays a batch with other records in it: a record's gradient must stay what it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lightning_audit.canaries.sample_batches import copies, rows
from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.examine.rehearsal import Rehearsal
from lightning_audit.examine.row_changes import largest_change
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run_checks.record_coupling import Coupling, tolerance_of

if TYPE_CHECKING:
    from lightning_audit.session.audit_session import AuditSession

_NO_GRADIENTS = (
    "training_step gave no per-sample gradients of its batch: they must be there when it ends or "
    "steps, or be handed over to lightning_audit.per_sample"
)
_NOT_REPEATABLE = (
    "training_step gives other gradients when it is called again on the same batch, so that "
    "nothing can be compared"
)
_NO_NUMBERS = "the gradients of the batch are zero or not finite"
_DRAWS = "training_step draws as many random numbers as its data tell, so they are not comparable"


class NeighbourReplay:
    """Replays the first batch of the training and of every epoch, for ``coupling`` to judge."""

    def __init__(
        self,
        trainer: Any,
        module: torch.nn.Module,
        coupling: Coupling,
        sessions: Callable[[], list[AuditSession]],
    ) -> None:
        self._trainer = trainer
        self._module = module
        self._coupling = coupling
        self._sessions = sessions
        self._due = True
        if trainer.world_size > 1:
            raise UnauditableTraining(
                "replay_neighbours=True replays the batches of one process, the Trainer has "
                f"{trainer.world_size}; train with devices=1, or leave it out."
            )
        refuse_replay(sessions())

    def start_epoch(self) -> None:
        """The next batch is the first of an epoch."""
        self._due = True

    def look(self, batch: Any, train: Callable[[Any], Any]) -> None:
        """Replay a batch, if it is one's turn.

        Args:
            batch: as the user's ``training_step`` would see it; it is left as it is.
            train: calls ``training_step`` with another batch.
        """
        sessions, seen = self._sessions(), self._coupling
        if not self._due or not sessions or seen.violated:
            return
        refuse_replay(sessions)
        try:
            found = self._replay(batch, train, sessions[0])
        except Exception as error:  # the training must not end by what is tried beside it
            found = f"{type(error).__name__}: {error}"
        if found is None:  # too small a batch; the next one may do
            return
        self._due = False
        if isinstance(found, str):
            seen.reason = found
        else:
            seen.take(found, self._tolerance(sessions[0]), sessions[0].recorder.steps)

    def _replay(
        self, batch: Any, train: Callable[[Any], Any], session: AuditSession
    ) -> float | str | None:
        """The largest change of a gradient, or why there is none to tell; None to try again."""
        records = rows(batch)
        if records < 2:
            return None
        alone, mixed, count = copies(batch)
        wrappers = self._module.optimizers()  # type: ignore[operator]  # of the LightningModule
        wrappers = wrappers if isinstance(wrappers, list) else [wrappers]
        passes = Rehearsal(self._module, self._trainer.optimizers, wrappers, session.step.params)
        first, second = (passes.run(partial(train, each), records) for each in (alone, mixed))
        if first.rows is None or second.rows is None:
            return _NO_GRADIENTS
        made = len(first.rows)
        if made % records or first.rows.shape != second.rows.shape:
            return f"training_step made {made} gradients of {records} records"
        change = largest_change(first.rows, second.rows, count * made // records)
        if change is None:
            return _NO_NUMBERS
        tolerance = self._tolerance(session)
        if change <= tolerance:
            return change
        if first.drawn != second.drawn:
            return _DRAWS
        again = passes.run(partial(train, mixed), records)
        if again.rows is None or again.rows.shape != second.rows.shape:
            return _NOT_REPEATABLE
        unsteady = largest_change(second.rows, again.rows, made)
        return change if unsteady is not None and unsteady <= tolerance / 10 else _NOT_REPEATABLE

    def _tolerance(self, session: AuditSession) -> float:
        dtypes = {p.dtype for p in session.step.params}
        low = "16" in str(self._trainer.precision) or dtypes & {torch.bfloat16, torch.float16}
        return tolerance_of(low_precision=bool(low))


def refuse_replay(sessions: list[AuditSession]) -> None:
    """Raise if the gradients of the records of these trainings cannot be compared.

    Raises:
        UnauditableTraining: several private optimizers, or ghost clipping.
    """
    if len(sessions) > 1:
        raise UnauditableTraining(
            f"replay_neighbours=True compares the gradients of one private optimizer, the training "
            f"has {len(sessions)}; give it one, with parameter groups, or leave it out."
        )
    if sessions and isinstance(sessions[0].step, GhostStep):
        raise UnauditableTraining(
            "replay_neighbours=True compares per-sample gradients, which ghost clipping never "
            "forms; train a few steps with grad_sample_mode='hooks', or leave it out."
        )
