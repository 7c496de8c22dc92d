"""Methods of a strategy are stood in for while a training is audited, and put back."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from lightning_audit.callbacks.trainer import show_batches
from lightning_audit.results.audit_report import UnauditableTraining


class Strategy:
    """Doubles its batch; None for none."""

    def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
        return None if batch is None else 2 * batch


# ------------------------------------------------------------------ batches


def trainer_of(strategy: Strategy) -> Any:
    precision = SimpleNamespace(train_step_context=contextlib.nullcontext)
    return SimpleNamespace(strategy=strategy, precision_plugin=precision)


def run_of(**calls: Any) -> Any:
    """As much of a run as sees batches; it changes none of them unless told so."""
    nothing = {
        "admit": lambda batch, module: batch,
        "skipped": lambda: None,
    }
    return SimpleNamespace(**(nothing | calls))


def module_of(*, automatic: bool = True) -> Any:
    module: Any = nn.Linear(1, 1)
    module.automatic_optimization = automatic
    return module


def test_a_batch_is_trained_on_as_the_audit_gives_it() -> None:
    strategy = Strategy()
    run = run_of(admit=lambda batch, module: batch + 1)
    hook = show_batches(trainer_of(strategy), module_of(), run)
    assert strategy.training_step(3, 0) == 8
    hook.remove()
    assert strategy.training_step(3, 0) == 6
    assert "training_step" not in vars(strategy)


@pytest.mark.parametrize("automatic", [True, False])
def test_no_output_is_a_step_left_out_in_automatic_optimization_alone(automatic: bool) -> None:
    strategy, skipped = Strategy(), []
    run = run_of(skipped=lambda: skipped.append(1))
    show_batches(trainer_of(strategy), module_of(automatic=automatic), run)
    assert strategy.training_step(None, 0) is None
    assert len(skipped) == automatic


def test_a_refusal_is_lightnings_own_exception() -> None:
    def refuse(*args: Any) -> Any:
        raise UnauditableTraining("batches of this kind cannot be audited")

    strategy = Strategy()
    show_batches(trainer_of(strategy), module_of(), run_of(admit=refuse))
    with pytest.raises(MisconfigurationException, match="cannot be audited"):
        strategy.training_step(1, 0)
