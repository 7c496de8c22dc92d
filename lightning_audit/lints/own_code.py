"""Locates the user's code that a finding may concern."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Literal

from opacus import GradSampleModule
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree

from lightning_audit.checks.accounting import LEDGER_RECORDS, LEDGER_STEPS
from lightning_audit.checks.between import BETWEEN
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.clipping import CLIPPING_NORM, FINITE, SENSITIVITY
from lightning_audit.checks.disclosure import VOID
from lightning_audit.checks.noise import NOISE_EXCESS, NOISE_MEAN
from lightning_audit.checks.replay import (
    COUPLING,
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.checks.sampling import LEDGER_DRAWS, LOGICAL_BATCH
from lightning_audit.checks.update import GRADIENT_REPLACED, NO_DP, UNSYNCHRONISED
from lightning_audit.files import nearby
from lightning_audit.hooks.sampler_tap import unwatched
from lightning_audit.hooks.step_hooks import Installed
from lightning_audit.results.audit_report import CheckResult, Verdict
from lightning_audit.results.report_details import CodePlace, places_in

# --- Places of the user's code: file from the repository, lines, and the first lines of its source.

#: Most lines of the source of a place, and most characters of a line.
MOST_LINES, _WIDEST = 12, 160
#: Packages whose code is not the user's, and folders of installed packages.
_LIBRARIES = (
    *("torch", "opacus", "accelerate", "transformers"),
    *("pytorch_lightning", "lightning", "lightning_fabric"),
)
INSTALLED = ("site-packages", "dist-packages", "lib-dynload")
#: Methods of a private optimizer, in the order of a step.
_METHODS = ("add_noise", "clip_and_accumulate", "scale_grad", "pre_step", "step")


def of_class(kind: type) -> Iterator[CodePlace]:
    """Yield the place of a class that the user defines."""
    if not _is_library(kind.__module__):
        yield from _place(kind.__qualname__, kind)


def of_methods(owner: Any, *names: str) -> Iterator[CodePlace]:
    """Yield methods of an object that the user wrote: of its classes, or put on it or on them."""
    for name in names:
        for holder in (owner, *type(owner).__mro__):
            called = _below_hooks(getattr(holder, "__dict__", {}).get(name))
            if called is not None:
                yield from of_function(called)
                break


def of_function(called: Any) -> Iterator[CodePlace]:
    """Yield the user's function in what is called: a method, a partial, or what wraps another."""
    while called is not None:
        if isinstance(called, functools.partial):
            called = called.func
        elif isinstance(called, MethodType | staticmethod | classmethod):
            called = called.__func__
        elif isinstance(called, FunctionType) and not _is_library(
            called.__globals__.get("__name__", "builtins")
        ):
            yield from _place(called.__qualname__, called.__code__)
            return
        elif (wrapped := inspect.getattr_static(called, "__wrapped__", None)) is not None:
            called = wrapped
        else:  # an object that can be called
            yield from of_class(type(called))
            return


def _below_hooks(called: Any) -> Any:
    """Return what is called without the audit's hooks around it; None if there is nothing else."""
    while isinstance(hook := getattr(called, "hook", None), Installed):
        called = hook.earlier
    return called


def of_optimizer(optimizer: Any, *names: str) -> list[CodePlace]:
    """Return the methods that a user's optimizer defines of those named.

    Args:
        optimizer: the optimizer.
        names: of the methods that a finding is about; if the optimizer defines none of them, all
            that it defines of a step, and if it defines none of these, its class.
    """
    return (
        list(of_methods(optimizer, *names))
        or list(of_methods(optimizer, *_METHODS))
        or list(of_class(type(optimizer)))
    )


def _is_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top in (*_LIBRARIES, __name__.partition(".")[0]) or top in sys.stdlib_module_names


def _place(name: str, code: Any) -> Iterator[CodePlace]:
    """Yield the place of code in an existing file; code typed into a notebook has none."""
    try:
        file, (lines, first) = inspect.getsourcefile(code), inspect.getsourcelines(code)
    except (OSError, TypeError, ValueError, SyntaxError, IndexError):
        return
    if file and Path(file).is_file() and not {*Path(file).parts} & {*INSTALLED}:
        line = max(first, 1)
        source = textwrap.dedent("".join(lines[:MOST_LINES])).splitlines()
        yield CodePlace(
            nearby(file),
            line,
            line + len(lines) - 1,
            name.replace("<locals>.", "").replace("<lambda>", "lambda"),
            "\n".join(text[:_WIDEST] for text in source),
        )


def of_frame(frame: Any) -> Iterator[CodePlace]:
    """Yield the line that a frame is at; nothing for None, or code that is in no file."""
    code = None if frame is None else frame.f_code
    if code is not None and Path(code.co_filename).is_file():
        name = code.co_qualname.replace("<locals>.", "").replace("<module>", "the script")
        source = linecache.getline(code.co_filename, frame.f_lineno).strip()[:_WIDEST]
        yield CodePlace(nearby(code.co_filename), frame.f_lineno, frame.f_lineno, name, source)


# --- Locates the user's code that a finding may concern.

#: Roles of code that a private optimizer has, and all roles.
_Part = Literal["adds_noise", "clips", "steps"]
Role = Literal[_Part, "hooks", "samplers", "norm", "training_step", "by_hand", "settings", "loader"]
#: Methods that Lightning calls between the backward pass and the update.
_HOOKS = (
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
)
#: Hooks of torch's that may change gradients or weights: of an optimizer, a layer, a parameter.
_TORCH = (
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_backward_pre_hooks"),
    *("_backward_hooks", "_post_accumulate_grad_hooks"),
)
#: Methods of a private optimizer that each role is about.
_PARTS: Mapping[_Part, tuple[str, ...]] = {
    "adds_noise": ("add_noise",),
    "clips": ("clip_and_accumulate", "scale_grad"),
    "steps": ("pre_step", "step"),
}
_RELEASE: tuple[Role, ...] = ("adds_noise", "hooks", "by_hand")
_CLIPPING: tuple[Role, ...] = ("clips", "hooks", "samplers", "training_step")
_STEP: tuple[Role, ...] = ("steps", "hooks", "training_step")
#: Statuses for which a report shows only a check's advice; faults show places separately.
_BY_ADVICE = ("undecided", "warned")


@functools.cache
def _roles() -> Mapping[str, tuple[Role, ...]]:
    """Return the code to look at for each finding; for one without an entry, the settings.

    The registry is not read on import: a package that adds a check may import this one.
    """
    of_noise = [n for n, check in REGISTRY.items() if check.group in ("noise", "channel", "reuse")]
    of_sampling = [name for name in REGISTRY if name.startswith("sampling.")]
    known: list[tuple[tuple[Role, ...], list[str]]] = [
        (_RELEASE, [*of_noise, CLIPPING_NORM.name, NOISE_MEAN.name, NOISE_EXCESS.name]),
        (_CLIPPING, [SENSITIVITY.name, REPLAY_SENSITIVITY.name, REPLAY_CLIPPING.name]),
        (_STEP, [GRADIENT_REPLACED.name]),
        (("norm", *_STEP), [REPLAY_RELEASE.name]),
        (("norm", "training_step"), [COUPLING.name]),
        (("clips", "adds_noise", "hooks", "samplers", "training_step"), [BETWEEN.name]),
        (("training_step",), [FINITE.name, "loss_reduction"]),
        (("training_step", "loader"), [LEDGER_STEPS.name]),
        (("loader",), [*of_sampling, LEDGER_DRAWS.name, LEDGER_RECORDS.name, LOGICAL_BATCH.name]),
        ((), [UNSYNCHRONISED.name]),
        (("settings", "training_step"), [NO_DP.name]),
    ]
    return {name: roles for roles, names in known for name in names}


@dataclasses.dataclass(frozen=True)
class OwnCode:
    """The user's own code in a training, located on demand.

    Args:
        module: the user's module.
        optimizers: of the training; a list that is kept up to date.
        owners: objects with hooks of the user's, in addition to the module.
        loaders: that it trains on: a loader, or a list or dict of them.
        source: whose ``train_dataloader`` makes them; None for the module.
        loop: places in a plain loop: of the step, of `attach`, and of findings, by name.
        met: where records meet before a step, as text; empty if they do not.
    """

    module: Any
    optimizers: Sequence[Any] = ()
    owners: Sequence[Any] = ()
    loaders: Any = None
    source: Any = None
    loop: Mapping[str, CodePlace] = dataclasses.field(default_factory=dict)
    met: str = ""

    def code(self, finding: str) -> tuple[CodePlace, ...]:
        """Return the places to look at for a finding; empty if none is the user's own.

        Args:
            finding: name of a check.
        """
        met = places_in(self.met) if finding == COUPLING.name else ()
        found = dict.fromkeys([self.loop[finding]] if finding in self.loop else met)
        if found:
            return tuple(found)
        for role in _roles().get(finding, ("settings",)):
            found.update(dict.fromkeys(_FIND[role](self)))
        return tuple(found) or tuple(self.loop[n] for n in ("step", "attach") if n in self.loop)[:1]

    def places(self, finding: str) -> str:
        """Return these places as text: "Lit.training_step at src/model.py:41"."""
        return ", ".join(dict.fromkeys(map(str, self.code(finding))))

    def in_verdict(self, verdict: Verdict, *, source: bool) -> Verdict:
        """Return the verdict with the places of its faults.

        Args:
            verdict: of the run.
            source: whether to include the first lines of their source.
        """
        faults = tuple(
            dataclasses.replace(fault, place=dataclasses.replace(fault.place, code=code))
            for fault in verdict.faults
            for code in [self._shown(fault.finding, source=source)]
        )
        return dataclasses.replace(verdict, faults=faults)

    def _shown(self, finding: str, *, source: bool) -> tuple[CodePlace, ...]:
        code = self.code(finding)
        return code if source else tuple(dataclasses.replace(one, source="") for one in code)

    def located(self, checks: Iterable[CheckResult]) -> list[CheckResult]:
        """Return the checks with the places of their findings, as evidence or in the advice."""
        return [self._located(check) for check in checks]

    def _located(self, check: CheckResult) -> CheckResult:
        if check.status not in (*VOID, *_BY_ADVICE) or not (places := self.places(check.name)):
            return check
        if check.status in _BY_ADVICE:
            return dataclasses.replace(check, advice=f"{check.advice}; see {places}")
        return dataclasses.replace(check, evidence={**check.evidence, "where": places})


def _optimizers(role: _Part, own: OwnCode) -> Iterator[CodePlace]:
    for optimizer in own.optimizers:
        while optimizer is not None:
            yield from of_optimizer(optimizer, *_PARTS[role])
            optimizer = getattr(optimizer, "original_optimizer", None)


def _hooks(own: OwnCode) -> Iterator[CodePlace]:
    for owner in (own.module, *own.owners):
        yield from of_methods(owner, *_HOOKS)
    inner = (getattr(optimizer, "original_optimizer", None) for optimizer in own.optimizers)
    for owner in (*own.optimizers, *inner, *own.module.modules(), *own.module.parameters()):
        for name in _TORCH:
            for hook in (getattr(owner, name, None) or {}).values():
                yield from of_function(hook)


def _samplers(own: OwnCode) -> Iterator[CodePlace]:
    """Yield the user's functions that compute the gradients of each record."""
    for layer in own.module.modules():
        yield from of_function(GradSampleModule.GRAD_SAMPLERS.get(type(layer)))


def _norms(own: OwnCode) -> Iterator[CodePlace]:
    """Yield the user's classes that contain layers with batch statistics."""
    layers = own.module.named_modules()
    names = [name for name, layer in layers if isinstance(layer, _NormBase)]
    for name in names[:3]:
        owner = name
        while owner:
            owner = owner.rpartition(".")[0]
            if found := list(of_class(type(own.module.get_submodule(owner)))):
                of_layer = f"layer `{name}` of {found[0].name}"
                yield dataclasses.replace(found[0], name=of_layer)
                break


def _training_step(own: OwnCode) -> Iterator[CodePlace]:
    yield from of_methods(own.module, "training_step")
    yield from (own.loop[name] for name in ("step",) if name in own.loop)


def _by_hand(own: OwnCode) -> Iterator[CodePlace]:
    if not getattr(own.module, "automatic_optimization", True):
        yield from _training_step(own)


def _settings(own: OwnCode) -> Iterator[CodePlace]:
    yield from of_methods(own.module, "configure_optimizers")
    yield from (own.loop[name] for name in ("attach",) if name in own.loop)


def _loaders(own: OwnCode) -> Iterator[CodePlace]:
    """Yield the user's samplers and data sets, and the code that creates the loader."""
    for loader in _pytree.tree_leaves(own.loaders):
        sampler = unwatched(getattr(loader, "batch_sampler", None))
        inner = getattr(sampler, "sampler", None)
        for part in (loader, sampler, inner, getattr(loader, "dataset", None)):
            yield from of_class(type(part))
    yield from of_methods(own.module if own.source is None else own.source, "train_dataloader")


_FIND: Mapping[Role, Callable[[OwnCode], Iterator[CodePlace]]] = {
    **{role: functools.partial(_optimizers, role) for role in _PARTS},
    "hooks": _hooks,
    "samplers": _samplers,
    "norm": _norms,
    "training_step": _training_step,
    "by_hand": _by_hand,
    "settings": _settings,
    "loader": _loaders,
}
