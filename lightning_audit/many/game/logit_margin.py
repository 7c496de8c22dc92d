"""The default score of a trained model: the logit of the canary's class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_audit._validate import shown


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
            model: function of a batch of inputs, ``[1, ...]``, that returns logits, ``[1, c]``; or
                ``[1]`` and ``[1, 1]`` for the logit of class 1 of two.
            record: (inputs, class).

        Raises:
            ScoreError: if the model cannot be called, or its outputs or the record have another
                form.
        """
        if not callable(model) or not isinstance(record, tuple | list) or len(record) != 2:
            raise ScoreError(
                f"LogitMargin takes a model and a record (inputs, class), not {shown(model)} and "
                f"{shown(record)}; give score=, a function of (model, record), or return the score "
                "from train."
            )
        logits, target = _logits(model, record[0]), int(record[1])
        if logits.size == 1 and target in (0, 1):
            margin = float(logits[0])
            return margin if target else -margin
        if not 0 <= target < logits.size:
            raise ScoreError(
                f"the model returns {logits.size} logits, and the canary has class {target}; give "
                "score= for another kind of model."
            )
        others = np.delete(logits, target)
        top = float(others.max())
        if math.isinf(top):
            return float(logits[target] - top)
        return float(logits[target] - top - np.log(np.exp(others - top).sum()))


def _logits(model: Any, inputs: Any) -> np.ndarray[Any, Any]:
    """Return the model's logits of one record as doubles, ``[c]``."""
    import torch

    batch = torch.as_tensor(inputs)[None]
    if isinstance(model, torch.nn.Module):
        model.eval()
        first = next(model.parameters(), None)
        batch = batch if first is None else batch.to(first.device)
    with torch.no_grad():
        outputs = model(batch)
    if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != (1,) or outputs.dim() > 2:
        form = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ScoreError(
            f"the model returns {form} and not logits, [1, classes]; give score=, a function of "
            "(model, record)."
        )
    return outputs.detach().double().cpu().numpy().ravel()
