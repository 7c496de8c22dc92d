"""Hand-written DP-SGD with a plain torch optimizer: the user states the claim.

The canaries enter when the user's code requests them (`hand_over`). The layout is that of the
parameters that the optimizer trains, by their names in the LightningModule.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from lightning_audit._validate import BadArgument
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.dpsgd.opacus import not_finite
from lightning_audit.dpsgd.protocol import (
    Backward,
    DPSGDStep,
    Seed,
    StepClaim,
    UnsupportedOptimizer,
    refuse_repeated_closures,
)
from lightning_audit.hooks.gradient_tap import CanaryRows, GradientTap, as_rows
from lightning_audit.hooks.update_tap import UpdateTap
from lightning_audit.layout import Direction, IndexArray, Layout, TensorSlot

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])

_NEEDED = ("noise_multiplier", "max_grad_norm", "expected_batch_size")


def stated_claim(claim: PrivacyClaim) -> StepClaim:
    """Return what a claim states about every step.

    Raises:
        ValueError: `noise_multiplier`, `max_grad_norm` or `expected_batch_size` is missing.
    """
    missing = [name for name in _NEEDED if getattr(claim, name) is None]
    if missing:
        listed = " and ".join(f"claim.{name}=None" for name in missing)
        example = ", ".join(f"{name}=..." for name in missing)
        raise BadArgument(
            f"{listed} must be stated for a hand-written DP-SGD, which no optimizer states: write "
            f"PrivacyClaim({example}) with all of {', '.join(_NEEDED)}."
        )
    return StepClaim(
        noise_multiplier=float(claim.noise_multiplier or 0.0),
        max_grad_norm=float(claim.max_grad_norm or 0.0),
        scale=float(claim.expected_batch_size or 0.0),
    )


def updating_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the innermost optimizer of wrappers over the same parameters.

    Raises:
        UnsupportedOptimizer: the optimizer that updates the parameters is ambiguous, or cannot be
            audited.
    """
    seen: list[Any] = [optimizer]
    while inner := _held(seen[-1], seen):
        if len(inner) > 1:
            raise UnsupportedOptimizer(
                f"{type(seen[-1]).__name__} holds {len(inner)} optimizers over its parameters, so "
                "it is not known which gradient is the step's; keep one, with parameter groups."
            )
        seen += inner
    last = seen[-1]
    if not isinstance(last, torch.optim.Optimizer):
        raise UnsupportedOptimizer(
            f"{type(last).__name__} is no torch.optim.Optimizer and holds none, so that its steps "
            "cannot be observed; derive it from one of torch's optimizers."
        )
    refuse_repeated_closures(last)
    return last


def _held(optimizer: Any, seen: Sequence[Any]) -> list[Any]:
    """Return optimizers among an object's attributes, over the same parameters."""
    own = {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
    return [
        value
        for value in getattr(optimizer, "__dict__", {}).values()
        if hasattr(value, "param_groups")
        and hasattr(value, "step")
        and not any(value is known for known in seen)
        and (not own or any(id(p) in own for group in value.param_groups for p in group["params"]))
    ]


class ManualStep(DPSGDStep):
    """Adapter for a plain optimizer whose gradients the user's own code clips and noises.

    Args:
        optimizer: the Trainer's optimizer.
        names: parameter -> name in the LightningModule, by identity; unknown ones are numbered.
        claim: the claim about every step.

    Raises:
        UnsupportedOptimizer: the optimizer's updates cannot be observed.
    """

    sums_lack = (
        "the clipped sums that the noise was added to are not known; in hand-written code show "
        "that of each parameter before the noise: parameter.summed_grad = total"
    )

    def __init__(self, optimizer: Any, names: Mapping[int, str], claim: StepClaim) -> None:
        self.optimizer = optimizer
        self.norms = None
        self.inner = updating_optimizer(optimizer)
        self.params: Sequence[torch.nn.Parameter] = self.trained()
        self.layout: Layout = [
            TensorSlot(names.get(id(p), f"parameter_{j}"), tuple(p.shape))
            for j, p in enumerate(self.params)
        ]
        self._claim = claim
        self._waiting: tuple[Sequence[Direction], float] = ((), 0.0)
        #: Gradients handed over since the last update; which rows of earlier ones are not finite.
        self._held: list[torch.Tensor] = []
        self._lost: list[torch.Tensor | None] = []
        #: Number of samples whose gradients were handed over since the last update.
        self.samples = 0
        self._places: dict[tuple[int, tuple[str, ...]], dict[str, int | None]] = {}

    def trained(self) -> Sequence[torch.nn.Parameter]:
        """Return the optimizer's parameters that require a gradient."""
        groups = self.inner.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def tap(self, coordinates: dict[int, IndexArray], *, cut_known: bool = False) -> GradientTap:
        """Return the reader of the gradients that the update uses."""
        return UpdateTap(self.inner, self.params, coordinates, cut_known=cut_known)

    def claim(self, accumulated: int | None = None) -> StepClaim:
        """Return the user's claim, the same for every step and any number of batches."""
        return self._claim

    def obstacle(self, coming: Backward) -> str:
        """Return why rows cannot be prepared: the user's code computes the gradients."""
        return "the training computes per-sample gradients itself"

    def copy_in(
        self, rows: Sequence[Direction], norm: float, seed: Seed = None, part: int = -1
    ) -> None:
        """Keep the rows until `append` or `singles` hands them over."""
        self._waiting = (rows, norm)

    def take_out(self) -> bool:
        """Discard rows not yet handed over; the others are in the user's sums."""
        self._waiting = ((), 0.0)
        return False

    def holds_canaries(self) -> bool:
        """Return True: rows that the user's code has taken stay in its gradients."""
        return True

    # ------------------------------------------------------------------ handing over

    def places(
        self, names: Sequence[str], module: torch.nn.Module, root: torch.nn.Module
    ) -> dict[str, int | None]:
        """Map each name to the index of its tensor in the layout; None if it is not trained.

        Args:
            names: names of parameters, either all in ``module`` or all in one other submodule of
                ``root``.
            module: the module that the user passed.
            root: the LightningModule.

        Raises:
            ValueError: a name is unknown or ambiguous, or a trained parameter has none.
        """
        key = (id(module), tuple(names))
        if key not in self._places:
            found = resolve(names, module, root, self.params, [s.name for s in self.layout])
            self._places = {key: found}
        return self._places[key]

    def check_shapes(self, grads: dict[str, torch.Tensor], places: dict[str, int | None]) -> None:
        """Raise ValueError unless all gradients are stacked over the same samples."""
        batch: int | None = None
        for name, tensor in grads.items():
            place = places[name]
            if not isinstance(tensor, torch.Tensor):
                raise BadArgument(
                    f"grads[{name!r}]={tensor!r} must be a tensor (B, *shape) with one gradient "
                    "per sample."
                )
            shape = tuple(tensor.shape)
            batch = shape[0] if batch is None and shape else batch
            wanted = None if place is None else self.layout[place].shape
            if not shape or shape[0] != batch or (wanted is not None and shape[1:] != wanted):
                inner = "".join(f", {n}" for n in (shape[1:] if wanted is None else wanted))
                raise BadArgument(
                    f"grads[{name!r}] has shape {shape}, expected (B{inner}) with the same B for "
                    f"all names, here {batch}: stack one gradient per sample along the first axis."
                )

    def released(
        self, grads: Any, module: torch.nn.Module, root: torch.nn.Module
    ) -> list[torch.Tensor | None]:
        """Return the noisy gradients passed to `lightning_audit.released`, one per parameter.

        Raises:
            ValueError: names or shapes are not those of the parameters.
        """
        if not isinstance(grads, dict):
            raise BadArgument(
                f"grads={type(grads).__name__} must be a dict of parameter names to tensors of the "
                "parameters' shapes: the noisy gradients."
            )
        places = self.places(list(grads), module, root)
        tensors: list[torch.Tensor | None] = [None] * len(self.params)
        for name, tensor in grads.items():
            place = places[name]
            if not isinstance(tensor, torch.Tensor):
                raise BadArgument(
                    f"grads[{name!r}]={tensor!r} must be a tensor: the parameter's noisy gradient."
                )
            if place is not None and tuple(tensor.shape) != self.layout[place].shape:
                raise BadArgument(
                    f"grads[{name!r}] has shape {tuple(tensor.shape)}, expected "
                    f"{self.layout[place].shape}: the noisy gradient, summed over the samples and "
                    "divided by the expected batch size."
                )
            if place is not None:
                tensors[place] = tensor
        return tensors

    def hold(self, grads: dict[str, torch.Tensor]) -> None:
        """Keep gradients until the update: they are searched if it is not finite."""
        self.settle()
        self._held = [tensor.detach() for tensor in grads.values()]
        self.samples += len(self._held[0]) if self._held else 0

    def settle(self) -> None:
        """Replace pending gradients by which of their rows are not finite."""
        held, self._held = self._held, []
        if held:
            self._lost.append(not_finite(held))

    def release(self) -> None:
        """Drop all gradients after the update."""
        self._held, self._lost, self.samples = [], [], 0

    def batch_size(self) -> int | None:
        """Return the number of samples whose gradients were handed over; None if none were."""
        return self.samples or None

    def lost_rows(self) -> torch.Tensor | None:
        """Return which of the gradients handed over for this update are not finite."""
        self.settle()
        known = [rows for rows in self._lost if rows is not None]
        return torch.cat(known) if known and len(known) == len(self._lost) else None

    def append(self, grads: Gradients, places: dict[str, int | None]) -> Gradients:
        """Return new tensors with the pending rows appended to the samples' gradients."""
        directions, norm = self._take()
        if not directions:
            return grads
        grown = copy.copy(grads)
        buffers: list[torch.Tensor] = [torch.empty(0)] * len(self.params)
        for name, tensor in grads.items():
            rows = tensor.new_zeros((len(directions), *tensor.shape[1:]))
            grown[name] = torch.cat([tensor, rows])
            place = places[name]
            if place is not None:
                buffers[place] = grown[name]
        as_rows(directions).write_all(buffers, norm)
        return grown

    def singles(self, places: dict[str, int | None]) -> list[dict[str, torch.Tensor]]:
        """Return the pending rows, one dictionary each."""
        directions, norm = self._take()
        made = []
        for direction in directions:
            buffers = [
                torch.zeros((1, *p.shape), dtype=p.dtype, device=p.device) for p in self.params
            ]
            CanaryRows([direction]).write_all(buffers, norm)
            made.append({n: buffers[j][0] for n, j in places.items() if j is not None})
        return made

    def _take(self) -> tuple[Sequence[Direction], float]:
        taken, self._waiting = self._waiting, ((), 0.0)
        return taken


def resolve(
    names: Sequence[str],
    module: torch.nn.Module,
    root: torch.nn.Module,
    params: Sequence[torch.nn.Parameter],
    full_names: Sequence[str],
) -> dict[str, int | None]:
    """Map each name to the index of its trained parameter; see `ManualStep.places`."""
    place = {id(p): j for j, p in enumerate(params)}
    found: list[dict[str, int | None]] = []
    lacking: list[list[str]] = []
    for base in (module, *root.modules()):
        known = dict(base.named_parameters(remove_duplicate=False))
        if not all(name in known for name in names):
            continue
        mapping = {name: place.get(id(known[name])) for name in names}
        hit = [j for j in mapping.values() if j is not None]
        if len(set(hit)) < len(hit):
            twice = [n for n, j in mapping.items() if j is not None and hit.count(j) > 1]
            raise BadArgument(
                f"grads names one parameter more than once: {_shown(twice)}; a tied parameter has "
                "one gradient per sample, under one name."
            )
        missing = [name for j, name in enumerate(full_names) if j not in hit]
        if missing:
            lacking.append(missing)
        elif base is module:
            return mapping
        elif mapping not in found:
            found.append(mapping)
    if len(found) > 1:
        raise BadArgument(
            f"grads' names {_shown(names)} fit several submodules of {type(root).__name__}; pass "
            "module= the one that they belong to, or use names in the whole model."
        )
    if found:
        return found[0]
    if lacking:
        raise BadArgument(
            f"grads lacks parameters that the optimizer trains: {_shown(min(lacking, key=len))}; "
            "pass the gradients of all of them at once, or freeze what is not trained."
        )
    everywhere = {n for m in root.modules() for n, _ in m.named_parameters(remove_duplicate=False)}
    unknown = [name for name in names if name not in everywhere] or list(names)
    raise BadArgument(
        f"grads' names {_shown(unknown)} belong to no submodule of {type(root).__name__}; "
        f"expected the names of module.named_parameters(), such as {_shown(full_names)}."
    )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(f"`{name}`" for name in names[:4]) + more
