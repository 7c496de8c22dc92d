"""Input canaries: one more sample in the batch, which takes the user's whole way through a step.

Its own gradient at the present weights is the direction that is read. No code of the user needs to
change for it, so that hand-written DP-SGD is audited as well. What each is for:

- `Mislabeled`: a sample of the data with the least likely label. Its gradient stays above the
  clipping norm however well the model learns.
- `Blank`: an input of zeros. It needs no record of the data.
- `Adversarial`: a sample moved so that its loss rises.
- `lightning_audit.canaries.crafted.Crafted`: a sample whose gradient is orthogonal to the data's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.nn import functional

from lightning_audit import _validate
from lightning_audit._validate import BadArgument
from lightning_audit.canaries.sample_batches import Sample

Loss = Callable[[Any, Any], torch.Tensor]

#: What the bound on a step's epsilon is of.
Game = Literal["step", "subsampled"]
_COINS = "the audit's tests bet on a coin, and a canary that is always or never in has none"


class InputCanary:
    """Base of all input canaries; it is no dataclass itself, see `GradientCanary`.

    Attributes:
        amplitude: factor on the input, > 0. A large one gives a gradient far above the clipping
            norm, without which a fault of the clipping does not show.
        sampling_rate: known probability in (0, 1) of joining a step's batch, each step by a coin of
            its own. A small one disturbs the training less and needs more steps: about
            ``1 / (4 p (1 - p))`` times as many as 1/2. With one other than 1/2 the bound `fdp_t`
            is left out, as a skewed data term would mislead it.
        game: what the report's bounds on a step's epsilon are of. "step": of telling a batch with
            the canary from one without it. "subsampled": of telling whether the canary is in the
            data, from which it joins a batch with probability ``sampling_rate``. Either game is
            played with the canary's own coins: whether the *data's* records are sampled at the
            stated rate is asked by the `sampling` checks. What is proved of the run is the same.
        loss: gives the loss of a batch: ``loss(module, batch)``, a tensor without dimensions; None
            for the cross entropy of ``module(input)`` with the label.
        num_classes: the labels are ``0 .. num_classes - 1``; None to count the outputs of
            ``module(input)``.
        input: where a batch holds the input, by keys joined with dots; None for its first tensor
            of floating point numbers.
        label: where it holds the label; None for its last tensor of one whole number a sample.
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
        """Steps after which the input is made anew; None if it stays."""
        return None

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """The canary, made of a sample of the data."""
        raise NotImplementedError

    def at_step(self, module: Any, sample: Sample) -> Sample:
        """The canary for the present weights; what `made` gave, or with another label."""
        return with_least_likely_label(self, module, sample)


class MovedInput(InputCanary):
    """Base of canaries whose input is moved step by step; the sample keeps its label.

    Attributes:
        steps: of the moving, >= 1.
        step_size: of one step, > 0.
        remake_every_n_steps: training steps after which the input is made anew, >= 1.
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
        """Steps after which the input is made anew."""
        return self.remake_every_n_steps

    def at_step(self, module: Any, sample: Sample) -> Sample:
        """The sample that was made."""
        return sample


@dataclass(frozen=True)
class Mislabeled(InputCanary):
    """A sample of the data whose label is, at every step, the class that is least likely.

    The arguments are those of `InputCanary`.

    Example:
        >>> Mislabeled(amplitude=100.0).amplitude
        100.0
    """

    amplitude: float = 1.0
    sampling_rate: float = 0.5
    loss: Loss | None = None
    num_classes: int | None = None
    input: str | None = None
    label: str | None = None
    game: Game = "step"

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """The sample, with its input times the amplitude."""
        if sample.label is None:
            raise BadArgument(
                "Mislabeled needs a label, a tensor of one whole number a sample, and the batch "
                "has none; use Adversarial or Crafted."
            )
        return scaled(self, sample)


@dataclass(frozen=True)
class Blank(InputCanary):
    """An input of zeros, with the label that is least likely at every step.

    The arguments are those of `InputCanary`; the amplitude is of no effect.
    """

    amplitude: float = 1.0
    sampling_rate: float = 0.5
    loss: Loss | None = None
    num_classes: int | None = None
    input: str | None = None
    label: str | None = None
    game: Game = "step"

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """The sample with zeros for its input."""
        return sample.with_input(torch.zeros_like(sample.input))


@dataclass(frozen=True)
class Adversarial(MovedInput):
    """A sample of the data, moved by projected gradient ascent so that its loss rises.

    The other arguments are those of `InputCanary`; ``num_classes`` is not used.

    Args:
        steps: of the ascent, >= 1.
        step_size: by which every entry of the input moves in a step, > 0.
        radius: by which an entry may move in all, > 0.
        remake_every_n_steps: training steps after which the ascent starts again, >= 1.
    """

    steps: int = 10
    step_size: float = 0.1
    radius: float = 0.5
    remake_every_n_steps: int = 10
    amplitude: float = 1.0
    sampling_rate: float = 0.5
    loss: Loss | None = None
    num_classes: int | None = None
    input: str | None = None
    label: str | None = None
    game: Game = "step"

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        _validate.positive("radius", self.radius)

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """The sample, moved to a larger loss."""
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
    """The sample with its input times the canary's amplitude."""
    if canary.amplitude == 1.0:
        return sample
    return sample.with_input(floating_input(canary, sample) * canary.amplitude)


def floating_input(canary: InputCanary, sample: Sample) -> torch.Tensor:
    """The input, which must be of floating point numbers."""
    value = sample.input
    if not value.is_floating_point():
        raise BadArgument(
            f"{type(canary).__name__} with amplitude={canary.amplitude!r} changes the values of "
            f"the input, which is of {value.dtype}; use Mislabeled() or Blank(), or name a tensor "
            "of floating point numbers as input=."
        )
    return value


def loss_of(canary: InputCanary, module: Any, batch: Any, sample: Sample) -> torch.Tensor:
    """The loss of a batch of the sample's kind, which says where its input and label are.

    Raises:
        ValueError: the module has no ``forward`` or the batch no label, and ``loss`` is None; or
            ``loss`` gives no tensor without dimensions.
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
            "loss=None is the cross entropy with the label, a tensor of one whole number a sample, "
            "and the batch has none; give loss=, a function of (module, batch)."
        )
    outputs = _outputs(module, leaves[sample.input_at])
    return functional.cross_entropy(outputs, leaves[sample.label_at])


def with_least_likely_label(canary: InputCanary, module: Any, sample: Sample) -> Sample:
    """The sample with the label of the largest loss; as it is where there is no label.

    Raises:
        ValueError: the module has no ``forward``, and ``num_classes`` is None.
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
    """What the module makes of an input: one number a class, ``[n, classes]``."""
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
    """Whether a module defines ``forward``; Lightning's and torch's own raise when called."""
    forward = getattr(type(module), "forward", None)
    home = getattr(forward, "__module__", "").split(".")[0]
    inherited = home in ("pytorch_lightning", "lightning", "lightning_fabric")
    unwritten = getattr(forward, "__name__", "") == "_forward_unimplemented"
    return forward is not None and not inherited and not unwritten
