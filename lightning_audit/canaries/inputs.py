"""Input canaries: one more sample in the batch, which passes through all of the user's step.

The reading is taken along the canary's own gradient at the present weights. No user code needs to
change, so hand-written DP-SGD can be audited as well. The kinds:

- `Mislabeled`: a sample of the data with the least likely label. Its gradient stays above the
  clipping norm however well the model learns.
- `Blank`: an input of zeros. It needs no record of the data.
- `Adversarial`: a sample moved so that its loss rises.
- `lightning_audit.canaries.inputs.Crafted`: a sample whose gradient is orthogonal to the data's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch.nn import functional
from torch.utils import _pytree

from lightning_audit import _validate
from lightning_audit._validate import BadArgument

# --- Batches as trees of tensors: cutting one sample out of a batch, and appending one.


@dataclass(frozen=True)
class Sample:
    """One sample in the form of a batch: every tensor has one row.

    Args:
        leaves: The tensors, ``[1, ...]``.
        structure: The containers around them.
        input_at: Position of the input among the leaves.
        label_at: Position of the label; None if there is none.
    """

    leaves: tuple[torch.Tensor, ...]
    structure: Any
    input_at: int
    label_at: int | None

    @property
    def batch(self) -> Any:
        """The sample in the containers of a batch."""
        return _pytree.tree_unflatten(list(self.leaves), self.structure)

    @property
    def input(self) -> torch.Tensor:
        """The input, ``[1, ...]``."""
        return self.leaves[self.input_at]

    @property
    def label(self) -> torch.Tensor | None:
        """The label, ``[1]``."""
        return None if self.label_at is None else self.leaves[self.label_at]

    def with_input(self, value: torch.Tensor) -> Sample:
        """Return the sample with another input."""
        return self._with(self.input_at, value)

    def with_label(self, value: int) -> Sample:
        """Return the sample with another label; it must have one."""
        assert self.label_at is not None
        return self._with(self.label_at, torch.full_like(self.leaves[self.label_at], value))

    def _with(self, at: int, value: torch.Tensor) -> Sample:
        return replace(self, leaves=(*self.leaves[:at], value, *self.leaves[at + 1 :]))


def rows(batch: Any) -> int:
    """Return the number of samples of a batch: the first dimension that all its tensors have.

    Raises:
        ValueError: If the batch holds anything but tensors with the samples first, in tuples,
            lists, dicts or named tuples.
    """
    return _rows(_named_leaves(batch))


def leaves(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch; arguments and errors are those of `rows`."""
    return [tensor for _, tensor in _named_leaves(batch)]


def sample_of(batch: Any, row: int, input_name: str | None, label_name: str | None) -> Sample:
    """Cut one sample out of a batch.

    Args:
        batch: As in `rows`.
        row: Index of the sample.
        input_name: Position of the input, such as ``"0"`` or ``"image"`` or ``"views.0"``; None for
            the first floating-point tensor, or the first one.
        label_name: Position of the label; None for the last tensor with one whole number per
            sample.

    Returns:
        A copy of the sample.

    Raises:
        ValueError: If the batch holds anything else, or no tensor of that name.
    """
    leaves = _named_leaves(batch)
    _rows(leaves)
    names, tensors = zip(*leaves, strict=True)
    input_at = _found(names, "input", input_name)
    if input_at is None:
        floating = [i for i, tensor in enumerate(tensors) if tensor.is_floating_point()]
        input_at = (floating or [0])[0]
    label_at = _found(names, "label", label_name)
    if label_at is None:
        labels = [i for i, t in enumerate(tensors) if i != input_at and _is_label(t)]
        label_at = labels[-1] if labels else None
    own = tuple(tensor[row : row + 1].detach().clone() for tensor in tensors)
    return Sample(own, _pytree.tree_structure(batch), input_at, label_at)


def appended(batch: Any, sample: Sample) -> Any:
    """Return a new batch with the sample appended; ``batch`` does not change.

    The new batch is one row longer, in the same containers.

    Raises:
        ValueError: If the batch has another structure than the sample.
    """
    tensors = [tensor for _, tensor in _named_leaves(batch)]
    if _pytree.tree_structure(batch) != sample.structure:
        raise BadArgument(
            "a batch has other containers than the batch from which the canary was made; return "
            "the same kind of batch from collate_fn at every step."
        )
    longer: list[Any] = []
    for tensor, own in zip(tensors, sample.leaves, strict=True):
        if tensor.shape[1:] != own.shape[1:]:
            raise BadArgument(
                f"a batch holds samples of shape {tuple(tensor.shape[1:])}, the canary has "
                f"{tuple(own.shape[1:])}; pad all samples to one shape to use an input canary."
            )
        longer.append(torch.cat([tensor, own.to(tensor)]))
    return _pytree.tree_unflatten(longer, sample.structure)


def copies(batch: Any) -> tuple[Any, Any, int]:
    """Return two batches of the same size with copies of the first sample.

    The second batch keeps the samples whose index has an even number of ones in binary. So every
    other sample, every fourth and so on includes both kinds, as does any three in a row.

    Batch and errors are those of `rows`.

    Returns:
        A batch of copies alone; one in which about half of the samples are copies; and the number
        of copies in the second. New tensors in the same containers.
    """
    size = rows(batch)
    mixed = [row if row.bit_count() % 2 == 0 else 0 for row in range(size)]
    return taken(batch, [0] * size), taken(batch, mixed), mixed.count(0)


def taken(batch: Any, chosen: Sequence[int]) -> Any:
    """Return the chosen samples of a batch, in the given order.

    Args:
        batch: Tensors with the samples first, in tuples, lists, dicts or named tuples.
        chosen: Indices of samples; an index may repeat.

    Returns:
        New tensors in the same containers.

    Raises:
        ValueError: If the batch holds anything else.
    """
    index = torch.tensor(list(chosen), dtype=torch.long)
    tensors = [tensor[index.to(tensor.device)] for tensor in leaves(batch)]
    made = _pytree.tree_unflatten(tensors, _pytree.tree_structure(batch))
    return _pytree.tree_map(
        lambda leaf: leaf.taken(chosen) if isinstance(leaf, Column) else leaf,
        made,
        is_leaf=_is_constant,
    )


class Constant:
    """A leaf of a batch that belongs to no record, such as anchors; for pytrees it is no leaf."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Column(Constant):
    """Values other than tensors, one for each record, such as file names."""

    def __eq__(self, other: object) -> bool:
        """Return whether the other is one, too: a batch may have it in the same place."""
        return isinstance(other, Column)

    def __hash__(self) -> int:
        return hash(Column)

    def taken(self, chosen: Sequence[int]) -> Column:
        """Return the values of the chosen records; of tensors that are longer, any values."""
        return Column(type(self.value)(self.value[row % len(self.value)] for row in chosen))


for kind in (Constant, Column):
    _pytree.register_pytree_node(
        kind,
        lambda own: ([], own),
        lambda _, own: own,
        flatten_with_keys_fn=lambda own: ([], own),
    )


def _with_columns(batch: Any) -> Any:
    """Return a batch whose lists and tuples of values of all records are each a `Column`."""
    tensors = [one for one in _pytree.tree_leaves(batch) if isinstance(one, torch.Tensor)]
    sizes = {len(one) for one in tensors if one.dim()}

    def is_column(node: Any) -> bool:
        values = type(node) in (list, tuple) and len(node) and {len(node)} == sizes
        return bool(values) and all(isinstance(one, str | bytes | int | float) for one in node)

    nodes, kind = _pytree.tree_flatten(batch, is_leaf=is_column)
    made = [Column(node) if is_column(node) else node for node in nodes]
    return _pytree.tree_unflatten(made, kind) if any(map(_is_constant, made)) else batch


def with_constants(batch: Any) -> Any:
    """Return a batch with the values of its `Constant` leaves."""
    return _pytree.tree_map(
        lambda leaf: leaf.value if isinstance(leaf, Constant) else leaf, batch, is_leaf=_is_constant
    )


def constants_apart(batch: Any, earlier: Any) -> Any:
    """Return a batch whose leaves that belong to no record are `Constant`.

    Args:
        batch: As a loader yields it.
        earlier: Another batch. What is no tensor of as many rows as those that changed since, and
            is equal in both, belongs to no record.
    """
    batch = _with_columns(batch)
    leaves, kind = _pytree.tree_flatten(batch)
    before, like = _pytree.tree_flatten(_with_columns(with_constants(earlier)))
    if kind != like:
        return batch
    sizes = [len(one) if isinstance(one, torch.Tensor) and one.dim() else None for one in leaves]
    same = [_equal(one, other) for one, other in zip(leaves, before, strict=True)]
    changed = {size for size, again in zip(sizes, same, strict=True) if not again}
    if len(changed) != 1 or None in changed:
        return batch
    apart = [
        Constant(leaf) if size not in changed else leaf
        for leaf, size in zip(leaves, sizes, strict=True)
    ]
    return _pytree.tree_unflatten(apart, kind)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor) and one.layout == other.layout == torch.strided:
        alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        return alike and bool(torch.equal(one, other))
    return one is other or (isinstance(one, str | int | float) and one == other)


def _is_constant(node: Any) -> bool:
    return isinstance(node, Constant)


def _is_label(tensor: torch.Tensor) -> bool:
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return tensor.dim() == 1 and whole and tensor.dtype != torch.bool


def _found(names: Sequence[str], argument: str, name: str | None) -> int | None:
    if name is None:
        return None
    if name not in names:
        raise BadArgument(
            f"{argument}={name!r} must name a tensor of the batch, one of {list(names)}."
        )
    return names.index(name)


def _named_leaves(batch: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a batch with their keys, joined by dots."""
    leaves = []
    for path, leaf in _pytree.tree_flatten_with_path(batch)[0]:
        name = ".".join(_key(key) for key in path)
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            where = f" at {name!r}" if name else ""
            kind = "a tensor without dimensions" if isinstance(leaf, torch.Tensor) else _kind(leaf)
            raise BadArgument(
                f"the batch holds {kind}{where}; an input canary needs tensors with the samples "
                "first, in tuples, lists, dicts or named tuples: return these from collate_fn, or "
                "make the container known with torch.utils._pytree.register_pytree_node."
            )
        leaves.append((name, leaf))
    if not leaves:
        raise BadArgument(
            f"the batch, {_kind(batch)}, holds no tensor; return one from collate_fn."
        )
    return leaves


def _rows(leaves: Sequence[tuple[str, torch.Tensor]]) -> int:
    sizes = {name: len(tensor) for name, tensor in leaves}
    if len(set(sizes.values())) != 1:
        raise BadArgument(
            f"the batch's tensors have first dimensions {sizes}, which must be one number, that of "
            "the samples; move everything else out of the batch to use an input canary."
        )
    return next(iter(sizes.values()))


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"


def _key(key: Any) -> str:
    match key:
        case _pytree.SequenceKey(idx=name) | _pytree.GetAttrKey(name=name):
            return str(name)
        case _pytree.MappingKey(key=name):
            return str(name)
    return str(key)


# --- Input canaries: one more sample in the batch, which passes through all of the user's step.

Loss = Callable[[Any, Any], torch.Tensor]

#: The hypotheses that a bound on a step's epsilon distinguishes.
Game = Literal["step", "subsampled"]
_COINS = "the audit's tests bet on a coin, and a canary that is always or never in has no coin"


class InputCanary:
    """Base class of all input canaries; it is not a dataclass itself, see `GradientCanary`.

    Attributes:
        amplitude: Factor on the input, > 0. A large one gives a gradient far above the clipping
            norm, without which a fault of the clipping is not visible.
        sampling_rate: Known probability in (0, 1) of joining a step's batch, by an independent
            coin each step. A small one disturbs the training less and needs more steps: about
            ``1 / (4 p (1 - p))`` times as many as 1/2. With a rate other than 1/2 the bound
            `fdp_t` is left out, because a skewed data term would bias it.
        game: What the report's bounds on a step's epsilon distinguish. "step": a batch with the
            canary from one without it. "subsampled": whether the canary is in the data, from which
            it joins a batch with probability ``sampling_rate``. Either game uses the canary's own
            coins; the `sampling` checks test whether the *data's* records are sampled at the
            stated rate. What is proved about the run is the same.
        loss: Loss of a batch: ``loss(module, batch)`` returns a scalar tensor; None for the cross
            entropy of ``module(input)`` with the label.
        num_classes: Number of labels ``0 .. num_classes - 1``; None to count the outputs of
            ``module(input)``.
        input: Position of the input in a batch, by keys joined with dots; None for its first
            floating-point tensor.
        label: Position of the label; None for its last tensor with one whole number per sample.
    """

    amplitude: float
    sampling_rate: float
    loss: Loss | None
    num_classes: int | None
    input: str | None
    label: str | None
    game: Game

    def __post_init__(self) -> None:
        """Check the common arguments."""
        _validate.positive("amplitude", self.amplitude, "1.0 leaves the input as it is")
        _validate.open_unit("sampling_rate", self.sampling_rate, _COINS)
        _validate.one_of("game", self.game, get_args(Game))
        if self.loss is not None and not callable(self.loss):
            raise BadArgument(f"loss={self.loss!r} must be a function of (module, batch), or None.")
        if self.num_classes is not None:
            _validate.positive_int("num_classes", self.num_classes, "the labels start at 0")

    @property
    def remade_every(self) -> int | None:
        """Number of steps after which the input is made again; None if it never is."""
        return None

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """Return the canary, made from a sample of the data."""
        raise NotImplementedError

    def at_step(self, module: Any, sample: Sample) -> Sample:
        """Return the canary for the present weights: the result of `made`, perhaps relabeled."""
        return with_least_likely_label(self, module, sample)


@dataclass(frozen=True)
class _Common(InputCanary):
    """The arguments of every input canary."""

    amplitude: float = 1.0
    sampling_rate: float = 0.5
    loss: Loss | None = None
    num_classes: int | None = None
    input: str | None = None
    label: str | None = None
    game: Game = "step"


class MovedInput(InputCanary):
    """Base class of canaries whose input is moved iteratively; the sample keeps its label.

    Attributes:
        steps: Number of iterations, >= 1.
        step_size: Size of one iteration, > 0.
        remake_every_n_steps: Training steps after which the input is made again, >= 1.
    """

    steps: int
    step_size: float
    remake_every_n_steps: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        _validate.positive_int("steps", self.steps, "without a step the sample is not moved")
        _validate.positive("step_size", self.step_size)
        _validate.positive_int("remake_every_n_steps", self.remake_every_n_steps)

    @property
    def remade_every(self) -> int:
        """Number of steps after which the input is made again."""
        return self.remake_every_n_steps

    def at_step(self, module: Any, sample: Sample) -> Sample:
        """Return the result of `made` unchanged."""
        return sample


@dataclass(frozen=True)
class Mislabeled(_Common):
    """A sample of the data whose label is the least likely class at every step.

    The arguments are those of `InputCanary`.

    Example:
        >>> Mislabeled(amplitude=100.0).amplitude
        100.0
    """

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """Return the sample, with its input times the amplitude."""
        if sample.label is None:
            raise BadArgument(
                "Mislabeled needs a label, a tensor with one whole number per sample, and the "
                "batch has none; use Adversarial or Crafted."
            )
        return scaled(self, sample)


@dataclass(frozen=True)
class Blank(_Common):
    """An input of zeros, with the least likely label at every step.

    The arguments are those of `InputCanary`; the amplitude has no effect.
    """

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """Return the sample with an input of zeros."""
        return sample.with_input(torch.zeros_like(sample.input))


@dataclass(frozen=True)
class _Ascent(MovedInput):
    """The arguments that `Adversarial` has before the common ones."""

    steps: int = 10
    step_size: float = 0.1
    radius: float = 0.5
    remake_every_n_steps: int = 10


@dataclass(frozen=True)
class Adversarial(_Common, _Ascent):
    """A sample of the data, moved by projected gradient ascent so that its loss rises.

    The other arguments are those of `InputCanary`; ``num_classes`` is not used.

    Args:
        steps: Number of ascent steps, >= 1.
        step_size: Change of every entry of the input in a step, > 0.
        radius: Largest total change of an entry, > 0.
        remake_every_n_steps: Training steps after which the ascent starts again, >= 1.
    """

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        _validate.positive("radius", self.radius)

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """Return the sample, moved to a larger loss."""
        sample = scaled(self, sample)
        start = floating_input(self, sample)
        moved = start
        for _ in range(self.steps):
            free = moved.detach().requires_grad_()
            (slope,) = torch.autograd.grad(
                loss_of(self, module, sample.with_input(free).batch, sample), free
            )
            moved = free.detach() + self.step_size * slope.sign()
            moved = start + (moved - start).clamp(-self.radius, self.radius)
        return sample.with_input(moved)


def scaled(canary: InputCanary, sample: Sample) -> Sample:
    """Return the sample with its input times the canary's amplitude."""
    if canary.amplitude == 1.0:
        return sample
    return sample.with_input(floating_input(canary, sample) * canary.amplitude)


def floating_input(canary: InputCanary, sample: Sample) -> torch.Tensor:
    """Return the input, which must be of floating point numbers."""
    value = sample.input
    if not value.is_floating_point():
        raise BadArgument(
            f"{type(canary).__name__} with amplitude={canary.amplitude!r} changes the values of "
            f"the input, which is of {value.dtype}; use Mislabeled() or Blank(), or name a tensor "
            "of floating point numbers as input=."
        )
    return value


def loss_of(canary: InputCanary, module: Any, batch: Any, sample: Sample) -> torch.Tensor:
    """Return the loss of a batch; ``sample`` gives the positions of its input and label.

    Raises:
        ValueError: If ``loss`` is None and the module has no ``forward`` or the batch no label; or
            if ``loss`` does not return a scalar tensor.
    """
    if canary.loss is not None:
        loss = canary.loss(module, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shown = tuple(loss.shape) if isinstance(loss, torch.Tensor) else loss
            raise BadArgument(
                f"loss={canary.loss!r} gave {shown!r}; it must give one number, as a tensor."
            )
        return loss.reshape(())
    leaves = torch.utils._pytree.tree_leaves(batch)
    if sample.label_at is None:
        raise BadArgument(
            "loss=None is the cross entropy with the label, a tensor with one whole number per "
            "sample, and the batch has none; give loss=, a function of (module, batch)."
        )
    outputs = _outputs(module, leaves[sample.input_at])
    return functional.cross_entropy(outputs, leaves[sample.label_at])


def with_least_likely_label(canary: InputCanary, module: Any, sample: Sample) -> Sample:
    """Return the sample with the label of the largest loss; unchanged if it has no label.

    Raises:
        ValueError: If the module has no ``forward``, and ``num_classes`` is None.
    """
    if sample.label is None:
        return sample
    with torch.no_grad():
        if canary.num_classes is None:
            return sample.with_label(int(_outputs(module, sample.input)[0].argmin()))
        tried = [sample.with_label(label) for label in range(canary.num_classes)]
        losses = [float(loss_of(canary, module, one.batch, one)) for one in tried]
        return tried[losses.index(max(losses))]


def _outputs(module: Any, value: torch.Tensor) -> torch.Tensor:
    """Return the module's output for an input: one number a class, ``[n, classes]``."""
    if not has_forward(module):
        raise BadArgument(
            f"{type(module).__name__} has no forward, which loss=None and num_classes=None call; "
            "give the canary loss=, a function of (module, batch), and num_classes=."
        )
    outputs = module(value)
    if not isinstance(outputs, torch.Tensor) or outputs.dim() != 2:
        shown = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs)
        raise BadArgument(
            f"module(input) gives {shown!r} and not one number a class, [batch, classes]; give the "
            "canary loss=, a function of (module, batch), and num_classes=."
        )
    return outputs


def has_forward(module: Any) -> bool:
    """Return whether a module defines ``forward``; those of Lightning and torch only raise."""
    forward = getattr(type(module), "forward", None)
    home = getattr(forward, "__module__", "").split(".")[0]
    inherited = home in ("pytorch_lightning", "lightning", "lightning_fabric")
    unwritten = getattr(forward, "__name__", "") == "_forward_unimplemented"
    return forward is not None and not inherited and not unwritten


# --- `Crafted`: an input whose gradient is orthogonal to that of the data.


@dataclass(frozen=True)
class _Descent(MovedInput):
    """The arguments that `Crafted` has before the common ones."""

    steps: int = 50
    step_size: float = 0.1
    remake_every_n_steps: int = 50


@dataclass(frozen=True)
class Crafted(_Common, _Descent):
    """A sample of the data, optimized so that its gradient is orthogonal to that of the batch.

    Adam on the input minimizes the squared cosine between both gradients. This reduces the
    contribution of the data to a reading. The label is the least likely one when the input is
    made, because a sample that the model has learned has too small a gradient. The other arguments
    are those of `InputCanary`.

    Args:
        steps: Number of optimization steps, >= 1. Each differentiates the canary's loss twice.
        step_size: Step size of Adam, > 0.
        remake_every_n_steps: Training steps after which the input is made again, >= 1.

    References:
        Nasr et al. 2023 (Tight Auditing of Differentially Private Machine Learning), Algorithm 3,
        arXiv:2302.07956.
    """

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """Return the sample, moved until its gradient is orthogonal to that of the batch."""
        sample = with_least_likely_label(self, module, scaled(self, sample))
        free = floating_input(self, sample).detach().clone().requires_grad_()
        if not rows(batch):
            return sample
        data = _gradient(loss_of(self, module, batch, sample), params, graph=False)
        descent = torch.optim.Adam([free], lr=self.step_size)
        for _ in range(self.steps):
            own = _gradient(
                loss_of(self, module, sample.with_input(free).batch, sample), params, graph=True
            )
            (free.grad,) = torch.autograd.grad(cosine(own, data) ** 2, free)
            descent.step()
        return sample.with_input(free.detach())


def cosine(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the cosine between two gradients over all tensors; 0 if one of them is zero."""
    product = torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum()
    squares = [torch.stack([(a * a).sum() for a in one]).sum() for one in (first, second)]
    # The derivative of the square root is infinite at zero.
    return product / (squares[0] * squares[1] + torch.finfo(product.dtype).tiny).sqrt()


def _gradient(
    loss: torch.Tensor, params: Sequence[torch.Tensor], *, graph: bool
) -> list[torch.Tensor]:
    found = torch.autograd.grad(loss, list(params), create_graph=graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]
