"""Locates the user's code that a finding may concern: names, files and lines only."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree

from lightning_audit.checks.accounting.ledger import LEDGER_RECORDS, LEDGER_STEPS
from lightning_audit.checks.base.disclosure import VOID
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.checks.clipping.finite_gradients import FINITE
from lightning_audit.checks.clipping.ghost_norms import CLIPPING_NORM
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY
from lightning_audit.checks.noise.noise_excess import NOISE_EXCESS
from lightning_audit.checks.noise.noise_mean import NOISE_MEAN
from lightning_audit.checks.replay.record_coupling import COUPLING
from lightning_audit.checks.replay.replay_checks import (
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.checks.sampling.drawn_batches import LEDGER_DRAWS
from lightning_audit.checks.sampling.logical_batch import LOGICAL_BATCH
from lightning_audit.checks.update.gradient_replaced import GRADIENT_REPLACED
from lightning_audit.checks.update.no_dp import NO_DP
from lightning_audit.checks.update.unsynchronised import UNSYNCHRONISED
from lightning_audit.files.printable import nearby
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.taps.sampler_tap import unwatched

#: Packages whose code is not the user's, and folders of installed packages.
_LIBRARIES = ("torch", "opacus", "pytorch_lightning", "lightning", "lightning_fabric")
_INSTALLED = ("site-packages", "dist-packages", "lib-dynload")
Role = Literal["optimizer", "hooks", "norm", "training_step", "by_hand", "settings", "loader"]
#: Methods that Lightning calls between the backward pass and the update.
_HOOKS = (
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
)
_RELEASE: tuple[Role, ...] = ("optimizer", "hooks", "by_hand")
_STEP: tuple[Role, ...] = ("optimizer", "hooks", "training_step")
_BATCHES: tuple[Role, ...] = ("loader",)
#: Statuses for which a report shows only a check's advice; faults show places separately.
_BY_ADVICE = ("undecided", "warned")


@functools.cache
def _roles() -> Mapping[str, tuple[Role, ...]]:
    """Return the code to look at for each finding; for one without an entry, the settings.

    The registry is not read on import: a package that adds a check may import this one.
    """
    return {
        **{
            name: _RELEASE
            for name, check in REGISTRY.items()
            if check.group in ("noise", "channel", "reuse")
        },
        **dict.fromkeys((SENSITIVITY.name, REPLAY_SENSITIVITY.name, REPLAY_CLIPPING.name), _STEP),
        **dict.fromkeys(
            (check.name for check in (CLIPPING_NORM, NOISE_MEAN, NOISE_EXCESS)), _RELEASE
        ),
        GRADIENT_REPLACED.name: _STEP,
        REPLAY_RELEASE.name: ("norm", *_STEP),
        COUPLING.name: ("norm", "training_step"),
        **dict.fromkeys((FINITE.name, "loss_reduction"), ("training_step",)),
        LEDGER_STEPS.name: ("training_step", "loader"),
        **{
            name: _BATCHES
            for name in REGISTRY
            if name.startswith("sampling.") or name in (LEDGER_DRAWS.name, LEDGER_RECORDS.name)
        },
        LOGICAL_BATCH.name: _BATCHES,
        UNSYNCHRONISED.name: (),
        NO_DP.name: ("settings", "training_step"),
    }


class OwnCode:
    """The user's own code in a training, located on demand.

    Args:
        trainer: the Trainer, during `fit`.
        module: the user's module.
    """

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer, self._module = trainer, module

    def places(self, finding: str) -> str:
        """Return places to look at for a finding: "Lit.training_step at src/model.py:41".

        Args:
            finding: name of a check.

        Returns:
            Names, files and lines; empty if none of the code is the user's own.
        """
        found: dict[str, None] = {}
        for role in _roles().get(finding, ("settings",)):
            found.update(dict.fromkeys(_FIND[role](self._trainer, self._module)))
        return ", ".join(found)

    def located(self, checks: Iterable[CheckResult]) -> list[CheckResult]:
        """Return the checks with the places of their findings, as evidence or in the advice."""
        return [self._located(check) for check in checks]

    def _located(self, check: CheckResult) -> CheckResult:
        if check.status not in (*VOID, *_BY_ADVICE) or not (places := self.places(check.name)):
            return check
        if check.status in _BY_ADVICE:
            return dataclasses.replace(check, advice=f"{check.advice}; see {places}")
        return dataclasses.replace(check, evidence={**check.evidence, "where": places})


def _of_class(kind: type) -> Iterator[str]:
    if not _is_library(kind.__module__):
        yield from _place(kind.__qualname__, kind)


def _of_methods(owner: Any, *names: str) -> Iterator[str]:
    """Yield methods of an object that the user's own classes define."""
    for name in names:
        kind = next((kind for kind in type(owner).__mro__ if name in vars(kind)), None)
        if kind is not None and not _is_library(kind.__module__):
            yield from _place(f"{kind.__qualname__}.{name}", vars(kind)[name])


def _is_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top in (*_LIBRARIES, __name__.partition(".")[0]) or top in sys.stdlib_module_names


def _place(name: str, code: Any) -> Iterator[str]:
    """Yield the place of code in an existing file; code typed into a notebook has none."""
    try:
        code = inspect.unwrap(code)
        file, line = inspect.getsourcefile(code), inspect.getsourcelines(code)[1]
    except (OSError, TypeError, ValueError, SyntaxError, IndexError):
        return
    if file and Path(file).is_file() and not {*Path(file).parts} & {*_INSTALLED}:
        yield f"{name.replace('<locals>.', '')} at {nearby(file)}:{max(line, 1)}"


def _optimizers(trainer: Any, module: Any) -> Iterator[str]:
    for optimizer in trainer.optimizers:
        while optimizer is not None:
            yield from _of_class(type(optimizer))
            optimizer = getattr(optimizer, "original_optimizer", None)


def _hooks(trainer: Any, module: Any) -> Iterator[str]:
    for owner in (module, *trainer.callbacks):
        yield from _of_methods(owner, *_HOOKS)


def _norms(trainer: Any, module: Any) -> Iterator[str]:
    """Yield the user's classes that contain layers with batch statistics."""
    names = [name for name, layer in module.named_modules() if isinstance(layer, _NormBase)]
    for name in names[:3]:
        owner = name
        while owner:
            owner = owner.rpartition(".")[0]
            if found := list(_of_class(type(module.get_submodule(owner)))):
                yield f"layer `{name}` of {found[0]}"
                break


def _training_step(trainer: Any, module: Any) -> Iterator[str]:
    return _of_methods(module, "training_step")


def _by_hand(trainer: Any, module: Any) -> Iterator[str]:
    if not getattr(module, "automatic_optimization", True):
        yield from _training_step(trainer, module)


def _settings(trainer: Any, module: Any) -> Iterator[str]:
    return _of_methods(module, "configure_optimizers")


def _loaders(trainer: Any, module: Any) -> Iterator[str]:
    """Yield the user's samplers and data sets, and the code that creates the loader."""
    for loader in _pytree.tree_leaves(trainer.train_dataloader):
        sampler = unwatched(getattr(loader, "batch_sampler", None))
        inner = getattr(sampler, "sampler", None)
        for part in (loader, sampler, inner, getattr(loader, "dataset", None)):
            yield from _of_class(type(part))
    for owner in filter(None, (getattr(trainer, "datamodule", None), module)):
        yield from _of_methods(owner, "train_dataloader")


_FIND: Mapping[Role, Callable[[Any, Any], Iterator[str]]] = {
    "optimizer": _optimizers,
    "hooks": _hooks,
    "norm": _norms,
    "training_step": _training_step,
    "by_hand": _by_hand,
    "settings": _settings,
    "loader": _loaders,
}
