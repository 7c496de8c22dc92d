"""The optimizers of a run: refusals, which are private, the audit of each, and its state."""

from __future__ import annotations

import contextlib
import hashlib
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch.utils import _pytree

from lightning_audit._validate import BadArgument
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.accounting import StatedTwice
from lightning_audit.checks.check import Evidence
from lightning_audit.checks.update import NO_DP
from lightning_audit.config import AuditConfig, describe_changes, refuse_mechanism
from lightning_audit.dpsgd.adapters import draws_poisson, opacus_step
from lightning_audit.dpsgd.hand_over import register, unregister
from lightning_audit.dpsgd.hand_written import ManualStep, stated_claim
from lightning_audit.dpsgd.opacus import (
    AccountantLink,
    accountant_link,
    hook_is_unread,
    innermost,
    private_optimizer,
)
from lightning_audit.dpsgd.protocol import DPSGDStep, UnsupportedOptimizer
from lightning_audit.hooks.boundary import Handles, entry, undoing
from lightning_audit.hooks.gradient_tap import summed_by_opacus
from lightning_audit.hooks.step_hooks import PlainSteps
from lightning_audit.lints.settings import fingerprints
from lightning_audit.record.report_directory import record_name
from lightning_audit.record.store import ObservationStore, RecordHeader
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.run.facts import Notes, OptimizerFacts, RunLints, TrainingInfo
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.session.begin import begin_session
from lightning_audit.session.entrances import HandedRows
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession
from lightning_audit.verdict.allow import Allow, covers

# --- The audit's state in Lightning's checkpoints: plain values and tensors only.

#: Version of the state's layout.
VERSION = 10
_OTHERWISE = "take another checkpoint of this training, or train again from the start."


def with_checksum(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with its checksum, which `verified` compares."""
    return {**state, "checksum": _checksum(state)}


def verified(state: Any) -> dict[str, Any]:
    """Return the state without its checksum, after comparing it.

    The sums of a run depend on each other in ways that checks of single values cannot detect: the
    verdict from a state with one edited value would describe no training at all.

    Args:
        state: of the audit, from a checkpoint.

    Raises:
        UnauditableTraining: it is not what an audit of this version saved.
    """
    if not isinstance(state, dict):
        raise unusable_checkpoint(
            f"the audit's state in it is a {type(state).__name__}; {_OTHERWISE}"
        )
    version = state.get("version")
    if type(version) is int and version > VERSION:
        raise unusable_checkpoint(
            f"the audit's state in it has version {version}, this lightning-audit reads up to "
            f"{VERSION}; upgrade lightning-audit to resume from it."
        )
    if type(version) is int and version < VERSION:
        raise unusable_checkpoint(
            f"the audit's state in it has version {version}, this lightning-audit reads version "
            f"{VERSION}; finish the training with the lightning-audit that saved it, or train "
            "again from the start."
        )
    inner = {name: value for name, value in state.items() if name != "checksum"}
    try:
        whole = state.get("checksum") == _checksum(inner)
    except Exception:  # not a state that an audit saved
        whole = False
    if not whole:
        raise unusable_checkpoint(
            "the audit's state in it is not as it was saved (its checksum differs): it was "
            f"edited or damaged; {_OTHERWISE}"
        )
    return inner


def unusable_checkpoint(why: str) -> UnauditableTraining:
    """Return the error for a checkpoint that cannot be used; ``why`` says what to do."""
    return UnauditableTraining(f"the audit cannot resume from this checkpoint: {why}")


@contextlib.contextmanager
def refusing_what_does_not_fit() -> Iterator[None]:
    """Refuse a checkpoint whose state does not fit this training.

    Other errors (out of memory, files, a library's internal errors) are failures of the audit.
    """
    try:
        yield
    except ValueError as error:
        raise unusable_checkpoint(str(error)) from error
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        why = f"the audit's state in it does not fit this training ({what}); {_OTHERWISE}"
        raise unusable_checkpoint(why) from error


def _checksum(state: dict[str, Any]) -> str:
    checksum = hashlib.blake2b(digest_size=16)
    _feed(checksum, state)
    return checksum.hexdigest()


def _feed(checksum: Any, value: Any) -> None:
    """Add a value with its type and size, so that values that look alike differ."""
    match value:
        case torch.Tensor():
            array = np.ascontiguousarray(value.detach().cpu().numpy())
            checksum.update(f"tensor {array.dtype.str} {value.shape}:".encode())
            checksum.update(array.data if array.size else b"")
        case dict():
            checksum.update(f"dict {len(value)}:".encode())
            for key in sorted(value):
                _feed(checksum, key)
                _feed(checksum, value[key])
        case list() | tuple():
            checksum.update(f"list {len(value)}:".encode())
            for item in value:
                _feed(checksum, item)
        case float():  # NaN included
            checksum.update(b"float " + struct.pack("<d", value))
        case None | bool() | int():
            checksum.update(f"{value!r};".encode())
        case str():
            checksum.update(f"str {len(value)}:{value}".encode("utf-8", "surrogatepass"))
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be part of a checkpoint.")


def to_tensors(value: Any) -> Any:
    """Convert arrays to tensors, so that the checkpoint loads under ``weights_only=True``."""

    def tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape).clone()

    return _pytree.tree_map_only(np.ndarray, tensor, value)


def to_arrays(value: Any) -> Any:
    """Undo `to_tensors`."""
    return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu().numpy(), value)


# --- Refuse optimizers that cannot be audited, before the first step, and say what to change.


def private_optimizers(optimizers: Sequence[Any]) -> list[DPOptimizer]:
    """Return the private ones of the Trainer's optimizers.

    Raises:
        UnauditableTraining: two of them train the same parameter, or one wraps another.
    """
    private = [o for o in map(private_optimizer, optimizers) if o is not None]
    for outer in private:
        if (inner := private_optimizer(outer.original_optimizer)) is not None:
            raise UnauditableTraining(
                f"{type(outer).__name__} wraps {type(inner).__name__}: each clips and adds noise, "
                "and the second clips what the first has clipped. Call make_private once, with a "
                "plain torch optimizer, and train with its result."
            )
    owners: dict[int, int] = {}
    for number, optimizer in enumerate(private, 1):
        for param in optimizer.params:
            owner = owners.setdefault(id(param), number)
            if owner != number:
                raise UnauditableTraining(
                    f"the private optimizers {owner} and {number} both train a parameter of shape "
                    f"{tuple(param.shape)}: each would clip the other's canaries. Give every "
                    "parameter to one optimizer to audit."
                )
    return private


@dataclass(frozen=True)
class ScopedOptimizer:
    """An optimizer of the Trainer, and the findings that the user allows for it alone.

    Args:
        optimizer: as the Trainer has it.
        private: the private optimizer that it is or wraps; None if there is none.
        names: of its parameters.
        allowed: the user's exemptions for this optimizer.
    """

    optimizer: Any
    private: DPOptimizer | None
    names: tuple[str, ...]
    allowed: tuple[Allow, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the findings that are allowed."""
        return tuple(one.finding for one in self.allowed)

    @property
    def exempt(self) -> str:
        """The text that names its steps without DP-SGD as exempt, or empty."""
        kind = type(innermost(self.optimizer)).__name__
        found = (one for one in self.allowed if one.finding == NO_DP.name)
        return next((f"{kind},{one._scope[3:]} ({one.reason})" for one in found), "")

    def watched(self, module: torch.nn.Module) -> tuple[Any, str, torch.nn.Module | None]:
        """Return the arguments of `PlainSteps.watch`, given the user's module."""
        levels = zip(*(name.split(".")[:-1] for name in self.names), strict=False)
        common = [level[0] for level in takewhile(lambda level: len({*level}) == 1, levels)]
        holder = module.get_submodule(".".join(common)) if common else None
        return innermost(self.optimizer), self.exempt, holder


def scoped_optimizers(
    optimizers: Sequence[Any], names: Mapping[int, str], allowed: Sequence[Allow]
) -> list[ScopedOptimizer]:
    """Return the Trainer's optimizers, each with the findings allowed for it alone.

    Args:
        optimizers: the Trainer's.
        names: of the module's parameters, by their identity.
        allowed: by the user.

    Raises:
        UnauditableTraining: an exemption fits no optimizer or several, allows `no_dp` for a private
            optimizer, or names parameters that do not exist.
    """
    scoped = []
    for place, optimizer in enumerate(optimizers):
        inner = innermost(optimizer)
        params = [p for group in inner.param_groups for p in group["params"]]
        own = tuple(names.get(id(p), "") for p in params)  # without a name it has no prefix
        kind = type(inner).__name__
        of_it = tuple(one for one in allowed if one._is_of(place, kind, own))
        scoped.append(ScopedOptimizer(optimizer, private_optimizer(optimizer), own, of_it))
    for one in allowed:
        _refuse_misfit(one, scoped)
        pattern = one.parameters
        if pattern is not None and not any(fnmatchcase(name, pattern) for name in names.values()):
            raise UnauditableTraining(
                f"allow: parameters={pattern!r} matches none of the module's parameters: "
                f"{_shown(list(names.values()))}."
            )
    return scoped


def _refuse_misfit(one: Allow, scoped: Sequence[ScopedOptimizer]) -> None:
    """Raise if an exemption for one optimizer fits none of them, or several."""
    if one.optimizer is None or not scoped:
        return
    fits = [found for found in scoped if one in found.allowed]
    if len(fits) != 1:
        listed = "; ".join(
            f"{place} is {type(innermost(found.optimizer)).__name__} of {_shown(found.names)}"
            for place, found in enumerate(scoped)
        )
        which = f"is {len(fits)} of the training's" if fits else "is none of the training's"
        raise UnauditableTraining(
            f"allow: optimizer={one.optimizer!r} {which}: {listed}. Name its place, its class, or "
            "the prefix of all its parameters, so that it fits one optimizer alone."
        )
    if one.finding == NO_DP.name and fits[0].private is not None:
        raise UnauditableTraining(
            f"allow: optimizer={one.optimizer!r} is private, so {one.finding!r} does not apply to "
            "it; name the optimizer that steps without DP-SGD."
        )


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" if name else "one outside the module" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown or "no parameter"


def refuse_several(count: int, canaries: Sequence[object], processes: int) -> None:
    """Raise if ``count`` private optimizers cannot be audited together with these canaries.

    Raises:
        UnauditableTraining: several optimizers with an input canary or several processes.
    """
    if count < 2:
        return
    if any(isinstance(canary, InputCanary) for canary in canaries):
        raise UnauditableTraining(
            f"canaries={list(canaries)!r} would be in the gradients of all {count} private "
            "optimizers at once; use gradient canaries, such as Dirac()."
        )
    if processes > 1:
        raise UnauditableTraining(
            f"{count} private optimizers are audited in one process only, the training has "
            f"{processes}; train in one, or give all parameters to one "
            "optimizer, as parameter groups."
        )


def hand_written_step(
    claim: PrivacyClaim, optimizers: Sequence[Any], module: torch.nn.Module, processes: int = 1
) -> ManualStep:
    """Return the step of a training that claims DP-SGD without a private optimizer.

    Args:
        claim: the user's, with a noise multiplier.
        optimizers: of the training.
        module: the user's.
        processes: that train together.

    Raises:
        UnauditableTraining: the claim lacks a part, there is more than one optimizer or process,
            or the updates cannot be observed.
    """
    if processes > 1:
        raise UnauditableTraining(
            f"hand-written DP-SGD is audited in one process only, the training has {processes}; "
            "train in one to audit."
        )
    if len(optimizers) != 1:
        raise UnauditableTraining(
            f"claim.noise_multiplier={claim.noise_multiplier!r} states DP-SGD, no optimizer is "
            f"Opacus' DPOptimizer, and the module has {len(optimizers)} optimizers: it is unknown "
            "which one takes the noisy gradient. Give all parameters to one optimizer, as "
            "parameter groups."
        )
    try:
        stated = stated_claim(claim)
        names = {id(p): name for name, p in module.named_parameters()}
        return ManualStep(optimizers[0], names, stated)
    except (ValueError, UnsupportedOptimizer) as error:
        raise UnauditableTraining(str(error)) from error


# --- Implementation of `lightning_audit.per_sample`, `rows` and `released` in an audited training.

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])

_RELEASED_TWICE = (
    "lightning_audit.released was called more than once in a step, and only the first call was "
    "read; call it once, with the gradient that all noise was added to"
)


class HandWrittenFront:
    """Interface that gives a hand-written training its canaries and reads its releases.

    An input canary is part of the batch: then `per_sample` and `rows` add nothing, because two
    kinds of canaries would overlap.

    Args:
        session: audits the steps of a plain optimizer.
        begins: called first of all: the batch may not have begun.
    """

    def __init__(self, session: AuditSession, begins: Callable[[], None] = lambda: None) -> None:
        self._session, self._begins = session, begins
        self._handles = Handles()
        self._handles.append(self)
        self.per_sample = entry(self._per_sample, lambda grads, *_: grads)
        self.rows = entry(self._rows, lambda *_: [])
        self.released = entry(self._released, self._rescue)

    def open_to(self, root: torch.nn.Module) -> None:
        """Register this training's module with `lightning_audit.per_sample` and `rows`."""
        register(root, self)

    def remove(self) -> None:
        """Unregister."""
        unregister(self)
        self._handles.forget()

    @property
    def _step(self) -> ManualStep:
        step = self._session.step
        assert isinstance(step, ManualStep)
        return step

    @property
    def _hands_over(self) -> bool:
        """Whether canaries are rows that the code requests, and a batch is being trained on."""
        return isinstance(self._session.inserter, HandedRows) and self._session.trains

    def _per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """See `lightning_audit.per_sample`."""
        self._begins()
        step = self._step
        if not self._hands_over:
            return grads
        if not isinstance(grads, dict):
            raise BadArgument(
                f"grads={type(grads).__name__} must be a dict of parameter names to tensors "
                "(B, *shape), as torch.func.vmap(grad(...)) gives it."
            )
        places = step.places(list(grads), module, root)
        step.check_shapes(grads, places)
        step.hold(grads)
        if not self._session.ask():
            return grads
        grown = step.append(grads, places)
        self._session.handed()  # last: from here on the canaries count as being in the sums
        return grown

    def _rows(
        self, module: torch.nn.Module, root: torch.nn.Module
    ) -> list[dict[str, torch.Tensor]]:
        """See `lightning_audit.rows`."""
        self._begins()
        step = self._step
        if not self._hands_over:
            return []
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        places = step.places(names, module, root)
        if not self._session.ask():
            return []
        canaries = step.singles(places)
        self._session.handed()
        return canaries

    def _released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """See `lightning_audit.released`."""
        session = self._session
        if not session.trains or not session.planner.layout_holds():
            return
        tensors = self._step.released(grads, module, root)
        if session.tap.inside_step and session.tap.is_shown:
            session.planner.block_pass(_RELEASED_TWICE)
        else:
            session.released(tensors)

    def _rescue(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """Remove canaries from the released sums after the audit failed."""
        if self._session.in_transit:
            self._session.released(self._step.released(grads, module, root))


# --- The audit of one private optimizer of a run: its session and its facts.

#: Largest shift of a correctly clipped canary if low precision rounds it.
_SIGNALS = {"bf16": 1.0 + 2.0**-7}


class OptimizerAudit:
    """The audit of one private optimizer.

    Args:
        session: audits the optimizer's steps.
        facts: of the optimizer.
    """

    def __init__(self, session: AuditSession, facts: OptimizerFacts) -> None:
        self.session = session
        self.facts = facts
        self._front: HandWrittenFront | None = None
        self._hook = getattr(self.optimizer, "step_hook", None)

    @property
    def optimizer(self) -> Any:
        """The current optimizer."""
        return self.session.step.optimizer

    def follow(self, step: DPSGDStep) -> bool:
        """Continue with a step over the same parameters; see `AuditSession.follow`."""
        same = self.session.follow(step)
        self._hook = getattr(self.optimizer, "step_hook", None)
        return same

    def follow_hook(self) -> None:
        """Read the accountant of a step hook that was attached since, if one was."""
        hook = getattr(self.optimizer, "step_hook", None)
        if hook is self._hook:
            return
        self._hook = hook
        self.facts.accountant, self.facts.hook = _accountant_of(self.optimizer)

    def open_to(self, root: torch.nn.Module, begins: Callable[[], None]) -> None:
        """Register the module of a hand-written training, whose code can then get canaries."""
        self._front = self._front or HandWrittenFront(self.session, begins)
        self._front.open_to(root)

    def state(self) -> dict[str, Any]:
        """Return the checkpoint state of this optimizer's audit."""
        link = self.facts.accountant
        return {
            "session": to_tensors(self.session.state()),
            "accountant": [list(phase) for phase in link.accountant.history] if link else [],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state; see `AuditSession.load`.

        Lightning's checkpoints do not hold the history of the accountant. One that has a history
        was restored by the user, and does not change.
        """
        self.session.load(to_arrays(state["session"]))
        link, history = self.facts.accountant, state["accountant"]
        if link is not None and history and not link.accountant.history:
            link.accountant.history = [(sigma, rate, int(n)) for sigma, rate, n in history]

    def detach(self) -> None:
        """Remove all hooks."""
        self.session.detach()
        if self._front is not None:
            self._front.remove()


def _accountant_of(optimizer: DPOptimizer) -> tuple[AccountantLink | None, str]:
    """Return the accountant that the step hook calls, and whether the hook can be read."""
    link = accountant_link(optimizer)
    return link, "read" if link else "unread" if hook_is_unread(optimizer) else "none"


def facts_of(optimizer: DPOptimizer) -> OptimizerFacts:
    """Read the facts of a private optimizer, apart from its steps."""
    expected = None
    if optimizer.loss_reduction == "mean":
        # Each of several processes divides by its own batch size; then their mean is taken.
        expected = optimizer.expected_batch_size * getattr(optimizer, "world_size", 1)
    accountant, hook = _accountant_of(optimizer)
    return OptimizerFacts(
        accountant=accountant,
        hook=hook,
        expected_batch_size=expected,
        loss_reduction=optimizer.loss_reduction,
    )


def _by_another_engine(optimizer: Any) -> bool:
    """Return whether an engine such as fastDP's or private-transformers' is attached."""
    return any(name in vars(innermost(optimizer)) for name in ("privacy_engine", "original_step"))


def _stated_twice(
    claim: PrivacyClaim | None, step: DPSGDStep, facts: OptimizerFacts
) -> list[StatedTwice]:
    """Return the numbers that both the claim and the optimizer, or its accountant, state."""
    if claim is None or claim.noise_coefficients:
        return []
    own, size = step.claim(1), facts.expected_batch_size
    rate = facts.accountant.stated_rate if facts.accountant else None
    # Opacus rounds the rate to 1 / len(loader), and the batch size to int(N rate).
    rounded = rate or 0.0
    pairs = (
        ("noise_multiplier", claim.noise_multiplier, own.noise_multiplier, True, 1e-6),
        ("max_grad_norm", claim.max_grad_norm, own.max_grad_norm, False, 1e-6),
        ("expected_batch_size", claim.expected_batch_size, size, False, rounded + 1 / (size or 1)),
        ("sample_rate", claim.sample_rate, rate, False, rounded),
    )
    return [
        StatedTwice(name, claimed, stated, above, rounding)
        for name, claimed, stated, above, rounding in pairs
        if claimed is not None and stated is not None
    ]


def label_of(step: DPSGDStep, number: int) -> str:
    """Return the label of one of several private optimizers: its number and first parameter."""
    more = " and others" if len(step.layout) > 1 else ""
    return f"optimizer {number} (`{step.layout[0].name}`{more})"


def draw_seed() -> int:
    """Return a seed from the operating system."""
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]  # an int if drawn


def _coins(seed: int, number: int) -> np.random.Generator:
    """Return the generator of an optimizer's coins: independent ones from the audit's seed."""
    if number == 1:
        return np.random.default_rng(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))


# --- The optimizers of a run: which are private, the audit of each, and its state after a resume.

_NO_OPTIMIZER = (
    "no optimizer trains a parameter, so that no step can be seen: write the noisy gradient to "
    "p.grad and step one of torch's optimizers (Lightning: return it from configure_optimizers)"
)
_NO_ACCOUNTANT = (
    "no accountant counts the optimizer's steps, so no epsilon is composed; each step is audited "
    "all the same"
)
_ANOTHER_ENGINE = (
    "another engine than Opacus' is attached to the optimizer, and the audit reads none of its "
    "steps: state its mechanism, claim=PrivacyClaim(noise_multiplier=..., max_grad_norm=..., "
    "expected_batch_size=..., sample_rate=...), canaries=[Mislabeled(amplitude=100.0)]"
)
#: Facts that are read again when another optimizer takes over the same parameters.
_FOLLOWED = ("accountant", "hook", "expected_batch_size", "loss_reduction", "allow", "poisson")
_ADAPTIVE_UNACCOUNTED = (
    "the epsilon of adaptive clipping cannot be computed without an accountant: the count "
    "that the clipping norm adapts to is released too. Use PrivacyEngine.make_private."
)


class AuditedOptimizers:
    """The Trainer's optimizers, with one session for each private one.

    Args:
        config: of the audit.
        files: the report directory; None to keep no records.
        info: of the training; another one from its beginning on.
        ranks: the processes that train together.
        notes: remarks on the run.
        lints: say whether batch sizes must be recorded.
    """

    def __init__(
        self,
        config: AuditConfig,
        files: ReportFiles | None,
        info: TrainingInfo,
        ranks: Ranks,
        notes: Notes,
        lints: RunLints,
    ) -> None:
        self.config = config
        #: Audits of the private optimizers, in the order of the Trainer's first list.
        self.audits: list[OptimizerAudit] = []
        #: The session of each audit; empty before the first.
        self.sessions: list[AuditSession] = []
        #: State of the checkpoint that this training resumes from, until it is loaded.
        self.kept: dict[str, Any] = {}
        self.attached: list[Any] = []
        #: All records that were opened, including those of sessions that failed to begin.
        self.stores: list[ObservationStore] = []
        self._files = files
        self.info = info
        self._ranks = ranks
        #: Remarks on the run.
        self.notes, self._lints = notes, lints
        #: Whether steps belong to the training (False during a replay).
        self.looks = True
        #: Steps of optimizers that are not private.
        self.plain = PlainSteps()
        #: Called before a hand-written step gets its canaries.
        self.begins: Callable[[], None] = lambda: None
        #: Whether the batch's gradients depend on parameters, by identity, or that is known.
        self.depends: Callable[[Mapping[int, Any], bool], bool] = lambda _, known: known
        self._names: dict[int, str] = {}  # of the module's parameters, by identity
        self._name = uuid.uuid4().hex
        self._untrained: dict[str, tuple[float, float]] = {}
        # Names of the parameters that exempt optimizers train.
        self._exempt: set[str] = set()

    def keep(self, state: dict[str, Any]) -> None:
        """Hold a checkpoint's state, or an empty one, until the optimizers exist."""
        self.kept = state

    @property
    def facts(self) -> list[OptimizerFacts]:
        """The facts of each private optimizer."""
        return [audit.facts for audit in self.audits]

    @property
    def noise_multipliers(self) -> list[Any]:
        """The noise multiplier that each private optimizer states now; None if it states none."""
        return [getattr(one.step.optimizer, "noise_multiplier", None) for one in self.sessions]

    @property
    def steps(self) -> int:
        """Steps of the private optimizers so far."""
        return sum(session.recorder.steps for session in self.sessions)

    @property
    def tests(self) -> list[Evidence]:
        """All tests of the private optimizers' steps."""
        return [test for session in self.sessions for test in session.recorder.tests]

    def state(self, **run: Any) -> dict[str, Any]:
        """Return the audit's state for a checkpoint: tensors and plain values.

        Args:
            run: state of the rest of the run.
        """
        if not self.audits:
            return with_checksum(self.kept) if self.kept else {}
        first, *others = (audit.state() for audit in self.audits)
        return with_checksum(
            {
                "version": VERSION,
                "run": self._name,
                "config": self.config.settings(),
                "seed": {"seed": self.config.seed, "drawn_seed": self.config.drawn_seed},
                **first,
                "others": others,
                "untrained": {name: list(sums) for name, sums in self._untrained.items()},
                "plain": self.plain.state(),
                **run,
            }
        )

    # ------------------------------------------------------------------ following

    def follow(self, optimizers: Sequence[Any], module: torch.nn.Module) -> None:
        """Attach to the current optimizers, unless they are attached already.

        Raises:
            UnauditableTraining: an optimizer cannot be audited.
        """
        if [*map(id, optimizers)] == [*map(id, self.attached)]:
            for audit in self.audits:
                audit.follow_hook()
            return
        self._lints.exchanged += bool(self.attached)
        self.attached[:] = optimizers
        self._names = names = {id(p): name for name, p in module.named_parameters()}
        scoped = scoped_optimizers(optimizers, names, self.config.exemptions)
        private = private_optimizers(optimizers)
        plain = [one for one in scoped if one.private is None]
        if not private and self.config.claim is None and any(map(_by_another_engine, optimizers)):
            self.notes.add(_ANOTHER_ENGINE)
            plain = []
        watched = (one.watched(module) for one in plain)
        self.plain.watch(watched, self.attached, self._is_hidden)
        for one in self.config.exemptions:
            self.notes.add(f"the user allows {one.finding}{one._scope}: {one.reason}")
        self._exempt |= {name for one in plain if one.exempt for name in one.names}
        if not private:
            if any(isinstance(session.step, ManualStep) for session in self.sessions):
                self.follow_hand_written(module)
            return
        try:
            steps = [opacus_step(optimizer, names, module.modules()) for optimizer in private]
        except UnsupportedOptimizer as error:
            raise UnauditableTraining(str(error)) from error
        found, claim = [facts_of(optimizer) for optimizer in private], self.config.claim
        own = [one.findings for one in scoped if one.private is not None]
        for facts, findings, step in zip(found, own, steps, strict=True):
            facts.allow = frozenset(findings)
            facts.poisson = draws_poisson(module)
            facts.stated_twice = _stated_twice(claim, step, facts)
        rate_known = claim is not None and claim.sample_rate is not None
        if not rate_known and any(facts.accountant is None for facts in found):
            self.notes.add(_NO_ACCOUNTANT)
        if any(s.adapts_its_norm and not f.accountant for s, f in zip(steps, found, strict=True)):
            raise UnauditableTraining(_ADAPTIVE_UNACCOUNTED)
        for audit in self._audits_of(steps, found, module):
            audit.session.watch()

    def begin_amid(self) -> None:
        """Record that steps were taken before the first observed one."""
        for session in self.sessions:
            if not session.recorder.steps:
                session.noise.begin_amid()

    def follow_hand_written(self, module: Any) -> None:
        """Attach to a plain optimizer, if the claim states DP-SGD and none is private.

        Raises:
            UnauditableTraining: the optimizers, or what is claimed, cannot be audited.
        """
        claim = self.config.claim
        if claim is None or claim.noise_multiplier is None:
            return
        groups = [group for one in self.attached for group in one.param_groups]
        if not any(group["params"] for group in groups):
            self.notes.add(_NO_OPTIMIZER)
            return
        step = hand_written_step(claim, self.attached, module, self.info.processes)
        self.plain.watch((), self.attached, self._is_hidden)
        if claim.sample_rate is None:
            self.notes.add(_NO_ACCOUNTANT)
        allowed = frozenset(one.finding for one in self.config.exemptions if one.optimizer)
        (audit,) = self._audits_of([step], [OptimizerFacts(allow=allowed)], module)
        audit.open_to(module, self.begins)

    @property
    def without_dp(self) -> tuple[int, str]:
        """Number of steps without DP-SGD, and the class of an optimizer that took one."""
        plain = self.plain
        bare = [s for s in self.sessions if s.releases.bare and not isinstance(s.step, ManualStep)]
        # Before the first private step, unknown optimizers may train anything on public records.
        steps = sum(s.releases.bare for s in bare) + (plain.unknown if self.steps else 0)
        kinds = [plain.kind, *(type(session.step.inner).__name__ for session in bare)]
        return plain.count + steps, next(filter(None, kinds), "")

    def _is_hidden(self, optimizer: Any) -> bool:
        """Return whether an unknown one trains the module, or what its gradients depend on."""
        private = {id(p): session for session in self.sessions for p in session.step.params}
        allowed, exempt = "unaudited" in self.config.allow, self.config.exemptions
        free = {number for number, name in self._names.items() if allowed or covers(exempt, name)}
        groups = optimizer.param_groups if self.looks else ()
        params = {id(p): p for group in groups for p in group["params"] if p.grad is not None}
        known = any(private[n].tap.is_unreleased() for n in params.keys() & private.keys())
        others = {n: p for n, p in params.items() if n not in private and n not in free}
        summed = summed_by_opacus(others.values())
        others = {} if any(one is not None for one in summed) else others  # of another training
        return self.depends(others, known or not self._names.keys().isdisjoint(others))

    def _audits_of(
        self, steps: Sequence[DPSGDStep], found: Sequence[OptimizerFacts], module: torch.nn.Module
    ) -> list[OptimizerAudit]:
        """Return the audits of the steps: new ones, or those that continue."""
        if self.audits:
            return [self._followed(step, facts) for step, facts in zip(steps, found, strict=True)]
        refuse_several(len(steps), self.config.canaries, self._ranks.count)
        self._untrained = fingerprints(module, [p for step in steps for p in step.params])
        self._take_up(steps, found)
        return self.audits

    def _followed(self, step: DPSGDStep, facts: OptimizerFacts) -> OptimizerAudit:
        """Return the audit that continues with a step over the same parameters."""
        for audit in self.audits:
            if type(step) is type(audit.session.step) and audit.follow(step):
                for name in _FOLLOWED:
                    setattr(audit.facts, name, getattr(facts, name))
                return audit
        raise UnauditableTraining(
            "the audit cannot follow an optimizer over other parameters or of another kind "
            "during a training; keep the parameters and change their learning rates instead."
        )

    def _take_up(self, steps: Sequence[DPSGDStep], found: Sequence[OptimizerFacts]) -> None:
        """Begin the audits, from a checkpoint's state if there is one."""
        kept = self.kept
        states = [kept, *kept["others"]] if kept else []
        if kept:
            self._name = kept["run"]
            self.config = replace(self.config, **kept["seed"])
            if len(states) != len(steps):
                raise unusable_checkpoint(
                    f"it was saved with {len(states)} private optimizers, the training has "
                    f"{len(steps)}; resume with the same optimizers."
                )
        for number, (step, facts) in enumerate(zip(steps, found, strict=True), 1):
            facts.label = label_of(step, number) if len(steps) > 1 else ""
            entries = states[number - 1]["session"]["entries"] if states else None
            session = self.new_session(step, facts, number, len(steps), entries)
            self.sessions.append(session)
            self.audits.append(OptimizerAudit(session, facts))
        if not kept:
            return
        try:
            with refusing_what_does_not_fit():
                self._load(kept, states)
        except UnauditableTraining:
            self.close_records()
            raise

    def new_session(
        self,
        step: DPSGDStep,
        facts: OptimizerFacts,
        number: int,
        count: int,
        entries: int | None = None,
    ) -> AuditSession:
        """Begin the audit of one private optimizer.

        Args:
            step: its adapter.
            facts: of the optimizer.
            number: of it among the private optimizers, from 1.
            count: of these; each tests at an equal share of the significance.
            entries: of its record in the checkpoint; None for a new record.
        """
        config, files = self.config, self._files
        return begin_session(
            step,
            replace(config, significance=config.significance / count),
            _coins(config.coin_seed, number),
            partial(facts.current_rate, config.claim),
            None if files is None else partial(self._open_store, files, number, entries),
            self._ranks,
            signal=_SIGNALS.get(self.info.precision.split("-")[0], 1.0),
            track_batch_sizes=self._lints.needs_sizes,
            planned_steps=self.info.planned_steps,
        )

    def _load(self, kept: dict[str, Any], states: Sequence[dict[str, Any]]) -> None:
        """Load the optimizers' state from a checkpoint; the current configuration applies."""
        for audit, state in zip(self.audits, states, strict=True):
            audit.load(state)
        self._untrained = {name: (a, b) for name, (a, b) in kept["untrained"].items()}
        steps = max(session.recorder.steps for session in self.sessions)
        history = [phase for session in self.sessions for phase in session.monitor.history]
        before, now = kept["config"], self.config.settings()
        refuse_mechanism(before, now, history, steps)
        for sentence in describe_changes(before, now, steps):
            self.notes.add(sentence)
        self.plain.load(kept["plain"])

    def close_records(self) -> None:
        """Close the records without archiving them: the run cannot continue."""
        for store in self.stores:
            store.close(archive=False)

    def _open_store(
        self, files: ReportFiles, number: int, entries: int | None, header: RecordHeader
    ) -> ObservationStore | None:
        def opened(path: Path) -> ObservationStore:
            directory, name, store = path.parent, self._name, None
            if entries is not None:
                store = ObservationStore.resume(directory, header, name, entries, number)
            if store is None and entries is not None:
                self.notes.add(
                    f"the record of the first {entries} steps is not in {directory}; the checks "
                    "continue from the checkpoint's sums, and the record starts here"
                )
            store = store or ObservationStore(directory, header, name, number)
            self.stores.append(store)
            return store

        return files.write(record_name(number), opened, beside=number > 1)

    # ------------------------------------------------------------------ rates, pauses, lookups

    def read_rates(self) -> None:
        """Read the stated sample rates before the first step; each step reads them again."""
        for own in self.facts:
            own.current_rate(self.config.claim, 1)

    def paused(self) -> undoing:
        """Ignore the steps within this context: they are not the training's."""
        before = self.plain.state()
        self.looks, self.plain.records = False, None
        for session in self.sessions:
            session.pause(paused=True)

        def look_again() -> None:
            for session in self.sessions:
                session.pause(paused=False)
            self.looks = True
            self.plain.load(before)

        return undoing(look_again)

    def audit_of(self, optimizer: Any) -> OptimizerAudit | None:
        """Return the audit of an optimizer or of its wrapper; None if there is none."""
        private = private_optimizer(optimizer)
        return next((audit for audit in self.audits if audit.optimizer is private), None)

    def unaudited(self, module: torch.nn.Module) -> tuple[str, ...]:
        """Return the parameters that changed although no private optimizer trains them."""
        steps = [session.step for session in self.sessions]
        now = fingerprints(module, [p for s in steps for p in (*s.params, *s.trained())])
        kept = self._untrained = {**now, **self._untrained}  # a layer may come later
        moved = {name for name, sums in kept.items() if now.get(name, sums) != sums} - self._exempt
        return tuple(n for n in kept if n in moved and not covers(self.config.exemptions, n))

    def detach(self) -> None:
        """Remove all hooks."""
        self.plain.detach()
        for audit in self.audits:
            audit.detach()
