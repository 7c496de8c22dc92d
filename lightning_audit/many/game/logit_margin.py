"""The default score of a trained model: the logit of the canary's class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit._validate import shown

Floats = NDArray[np.float64]

#: Records of which a module computes logits at once.
_BATCH = 1024


class ScoreError(TypeError):
    """A model that a score cannot be computed from; the message says what to give instead."""


@dataclass(frozen=True)
class LogitMargin:
    """Score of a classifier on a record: ``log p / (1 - p)`` of the record's class.

    It does not saturate as the loss does, because ``log (1 - p)`` is the logsumexp of the other
    classes (Carlini et al., arXiv:2112.03570, section V).
    """

    def __call__(self, model: Any, record: Any) -> float:
        """Return the score in natural logarithms.

        Args:
            model: function of a batch of inputs, ``[b, ...]``, that returns logits, ``[b, c]``; or
                ``[b]`` and ``[b, 1]`` for the logit of class 1 of two.
            record: (inputs, class).

        Raises:
            ScoreError: if the model cannot be called, or its outputs or the record have another
                form.
        """
        return float(self.many(model, [record])[0])

    def many(self, model: Any, records: Sequence[Any]) -> Floats:
        """Return the scores of records, ``[n]``.

        Args:
            model: as in `__call__`. A torch module gets batches of records of one shape.
            records: (inputs, class) each.

        Raises:
            ScoreError: see `__call__`.
        """
        for record in records:
            if not callable(model) or not isinstance(record, tuple | list) or len(record) != 2:
                raise ScoreError(
                    f"LogitMargin takes a model and a record (inputs, class), not {shown(model)} "
                    f"and {shown(record)}; give score=, a function of (model, record), or return "
                    "the score from train."
                )
        parts = [_logits(model, inputs) for inputs in _batches(model, records)]
        targets = np.array([int(target) for _, target in records])
        return _margins(np.concatenate(parts), targets)


def _margins(logits: Floats, targets: NDArray[np.int_]) -> Floats:
    """Return the log odds of the targets ``[n]`` from logits ``[n, c]``."""
    rows, classes = np.arange(len(targets)), logits.shape[1]
    if classes == 1 and np.isin(targets, (0, 1)).all():
        return logits[:, 0] * (2 * targets - 1)
    outside = (targets < 0) | (targets >= classes)
    if outside.any():
        raise ScoreError(
            f"the model returns {classes} logits, and the canary has class "
            f"{targets[outside][0]}; give score= for another kind of model."
        )
    others = logits.copy()
    others[rows, targets] = -np.inf
    top = others.max(axis=1)
    known = np.where(np.isinf(top), 0.0, top)
    with np.errstate(divide="ignore"):  # without any other class the margin is infinite
        rest = np.log(np.exp(others - known[:, None]).sum(axis=1)) + known
    margins: Floats = logits[rows, targets] - np.where(np.isinf(top), top, rest)
    return margins


def _batches(model: Any, records: Sequence[Any]) -> Iterator[Any]:
    """Yield batches of inputs: of records of one shape for a torch module, else of one record."""
    import torch

    inputs = [torch.as_tensor(record[0]) for record in records]
    alike = len({(each.shape, each.dtype) for each in inputs}) == 1
    size = _BATCH if alike and isinstance(model, torch.nn.Module) else 1
    for first in range(0, len(inputs), size):
        yield torch.stack(inputs[first : first + size])


def _logits(model: Any, batch: Any) -> Floats:
    """Return the model's logits of a batch of b records as doubles, ``[b, c]``."""
    import torch

    if isinstance(model, torch.nn.Module):
        model.eval()
        first = next(model.parameters(), None)
        batch = batch if first is None else batch.to(first.device)
    with torch.no_grad():
        outputs = model(batch)
    size = len(batch)
    if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != (size,) or outputs.dim() > 2:
        form = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ScoreError(
            f"the model returns {form} and not logits, [{size}, classes]; give score=, a function "
            "of (model, record)."
        )
    logits: Floats = outputs.detach().double().cpu().numpy().reshape(size, -1)
    return logits
