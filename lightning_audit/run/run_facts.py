"""What is known of a run beside its observations, and what of it a checkpoint holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.dpsgd.accountant_link import AccountantLink
from lightning_audit.lints.loader_facts import LoaderFacts
from lightning_audit.run.checkpoint import to_arrays, to_tensors
from lightning_audit.run_checks.batch_sampling import BatchCheck
from lightning_audit.run_checks.record_coupling import Coupling


@dataclass
class OptimizerFacts:
    """What is known of one private optimizer beside its observations.

    Args:
        label: its number and first parameters; empty where there is no other.
        accountant: the accountant that its steps feed, None if there is none.
        sample_rate: of its last step, None if unknown.
        expected_batch_size: divisor of its gradients, that of all processes together; None where
            they are summed.
        loss_reduction: what it takes the loss for, "mean" or "sum"; None if it does not say.
    """

    label: str = ""
    accountant: AccountantLink | None = None
    sample_rate: float | None = None
    expected_batch_size: float | None = None
    loss_reduction: str | None = None

    def current_rate(self, claim: PrivacyClaim | None, accumulated: int) -> float | None:
        """Sample rate of the present step: stated, or told to the accountant."""
        if claim is not None and claim.sample_rate is not None:
            self.sample_rate = claim.sample_rate
            return claim.sample_rate
        if self.accountant is None:
            return None
        self.sample_rate = self.accountant.sample_rate
        return min(self.accountant.sample_rate * accumulated, 1.0)

    def named(self, sentence: str) -> str:
        """A sentence about this optimizer, which it names where there are others."""
        return f"{self.label}: {sentence}" if self.label else sentence


@dataclass
class RunFacts:
    """What is known of a run beside its observations."""

    #: Of the private optimizers, in the order of their sessions.
    optimizers: list[OptimizerFacts] = field(default_factory=list)

    loader: LoaderFacts | None = None
    #: Number of training loaders.
    loaders: int = 1
    processes: int = 1
    #: Whether each process draws from all records.
    repeated: bool = False
    plain_steps: int = 0
    plain_name: str = ""
    epochs: list[Mapping[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    break_off: str = ""
    #: What could not be written of report and records, in sentences.
    unwritten: list[str] = field(default_factory=list)
    resumed: str = ""
    #: Parameters that no private optimizer trains, and that changed all the same.
    unaudited: tuple[str, ...] = ()
    #: Test of the batches of a sampler whose type does not tell how it draws.
    batches: BatchCheck | None = None
    #: Batches whose gradients the Trainer adds up for a step.
    batches_per_step: int = 1
    trained_batches: int = 0
    #: Epochs with split batches, and those that began with the rest of a batch.
    split_epochs: int = 0
    carried_over: int = 0
    #: Whether all processes read the same gradients so far; None if they were not compared.
    synchronised: bool | None = None
    #: Whether the first loss was a mean over its batch or a sum; None if that cannot be told.
    loss_reduction: str | None = None
    #: Whether two processes drew the same noise.
    noise_equal: bool = False
    #: What replays of batches showed, if they are asked for.
    coupling: Coupling = field(default_factory=Coupling)

    #: What a run that goes on after a stop cannot find out again.
    _KEPT = (
        "plain_steps",
        "plain_name",
        "epochs",
        "notes",
        "resumed",
        "trained_batches",
        "split_epochs",
        "carried_over",
        "synchronised",
        "noise_equal",
        "loss_reduction",
    )

    @property
    def accountants(self) -> tuple[AccountantLink, ...]:
        """The links to different accountants."""
        links = (o.accountant for o in self.optimizers if o.accountant is not None)
        return tuple({id(link.accountant): link for link in links}.values())

    @property
    def sample_rate(self) -> float | None:
        """The rate to compare the loader with; None while none is known.

        One loader serves all optimizers, and must not draw more often than any of them states.
        Which of several loaders serves which optimizer cannot be told: there the largest rate
        counts.
        """
        rates = [o.sample_rate for o in self.optimizers if o.sample_rate is not None]
        if not rates:
            return None
        return min(rates) if self.loaders == 1 else max(rates)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the facts, and of the test of the batches, if there is one."""
        kept = {name: copy.deepcopy(getattr(self, name)) for name in self._KEPT}
        facts = {**kept, "coupling": self.coupling.state()}
        if self.batches is None:
            return {"facts": facts, "batches": {}}
        self.batches.settle(self.sample_rate)
        return {"facts": facts, "batches": to_tensors(self.batches.state())}

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
        since, facts = self.notes, state["facts"]
        for name in self._KEPT:
            setattr(self, name, copy.deepcopy(facts[name]))
        self.coupling.load(facts["coupling"])
        self.notes += [note for note in since if note not in self.notes]
        if self.batches is not None and state["batches"]:
            self.batches.load(to_arrays(state["batches"]))
