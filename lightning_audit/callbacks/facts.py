"""What is known of a run beside its observations, and what of it a checkpoint holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_audit.checks.batches import BatchCheck
from lightning_audit.dpsgd.lints import LoaderFacts
from lightning_audit.dpsgd.opacus import AccountantLink


@dataclass
class RunFacts:
    """What is known of a run beside its observations."""

    loader: LoaderFacts | None = None
    processes: int = 1
    #: Whether each process draws from all records.
    repeated: bool = False
    plain_steps: int = 0
    plain_name: str = ""
    accountant: AccountantLink | None = None
    sample_rate: float | None = None
    epochs: list[Mapping[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    break_off: str = ""
    resumed: str = ""
    #: Whether a resumed training's noise repeats that of its beginning; None if it never stopped.
    noise_restarted: bool | None = None
    #: Parameters that no private optimizer trains, and that changed all the same.
    unaudited: tuple[str, ...] = ()
    #: Test of the batches of a sampler whose type does not tell how it draws.
    batches: BatchCheck | None = None
    #: Batches whose gradients the Trainer adds up for a step.
    batches_per_step: int = 1
    trained_batches: int = 0
    #: Divisor of the gradients, None where they are summed.
    expected_batch_size: float | None = None
    #: Epochs with split batches, and those that began with the rest of a batch.
    split_epochs: int = 0
    carried_over: int = 0
    #: Whether all processes read the same gradients so far; None if they were not compared.
    synchronised: bool | None = None

    #: What a run that goes on after a stop cannot find out again.
    _KEPT = (
        "plain_steps",
        "plain_name",
        "epochs",
        "notes",
        "resumed",
        "noise_restarted",
        "trained_batches",
        "split_epochs",
        "carried_over",
        "synchronised",
    )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the facts, as plain values."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self._KEPT}

    def note(self, sentence: str) -> None:
        """Add a remark on the run, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def end_epoch(self, row: Mapping[str, float]) -> None:
        """Keep what was logged; a run that goes on in an epoch's end meets that end again."""
        known = [old for old in self.epochs if old["epoch"] != row["epoch"]]
        self.epochs = [*known, row]

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's facts; what was noted since stays."""
        since = self.notes
        for name in self._KEPT:
            if name in state:  # checkpoints of the first release lack some
                setattr(self, name, copy.deepcopy(state[name]))
        self.notes += [note for note in since if note not in self.notes]
