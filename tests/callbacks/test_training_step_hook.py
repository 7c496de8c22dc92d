from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from lightning_audit.callbacks.training_step_hook import TrainingStepHook
from lightning_audit.results.refusal import UnauditableTraining
from lightning_audit.run.audit_run import BatchAccess


class Strategy:
    """Doubles its batch; None for none."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch is None else 2 * batch


def trainer_of(strategy: Strategy) -> Any:
    precision = SimpleNamespace(train_step_context=contextlib.nullcontext)
    return SimpleNamespace(strategy=strategy, precision_plugin=precision)


def module_of(*, automatic: bool = True) -> Any:
    module: Any = nn.Linear(1, 1)
    module.automatic_optimization = automatic
    return module


def test_a_batch_is_looked_at_first_and_trained_on_as_the_audit_gives_it() -> None:
    strategy, seen = Strategy(), []
    access = BatchAccess(
        admit=lambda batch, module: batch + 1,
        skipped=lambda: None,
        look=lambda batch, train: seen.append((batch, train(10))),
    )
    hook = TrainingStepHook(trainer_of(strategy), module_of(), access)
    assert strategy.training_step(3, 0) == 8
    assert seen == [(3, 20)]
    hook.remove()
    assert strategy.training_step(3, 0) == 6
    assert "training_step" not in vars(strategy)


def test_a_wrapper_that_was_there_before_is_put_back() -> None:
    strategy: Any = Strategy()
    strategy.training_step = own = lambda batch, batch_idx: -batch
    access = BatchAccess(admit=lambda batch, module: batch, skipped=lambda: None)
    hook = TrainingStepHook(trainer_of(strategy), module_of(), access)
    assert strategy.training_step(3, 0) == -3
    hook.remove()
    assert strategy.training_step is own


@pytest.mark.parametrize("automatic", [True, False])
def test_no_output_is_a_step_left_out_in_automatic_optimization_alone(automatic: bool) -> None:
    strategy, skipped = Strategy(), []
    access = BatchAccess(lambda batch, module: batch, lambda: skipped.append(1))
    TrainingStepHook(trainer_of(strategy), module_of(automatic=automatic), access)
    assert strategy.training_step(None, 0) is None
    assert len(skipped) == automatic


@pytest.mark.parametrize("where", ["admit", "look"])
def test_a_refusal_is_lightnings_own_exception(where: str) -> None:
    def refuse(*args: Any) -> Any:
        raise UnauditableTraining("batches of this kind cannot be audited")

    strategy = Strategy()
    calls: dict[str, Any] = {"admit": lambda batch, module: batch, "skipped": lambda: None}
    TrainingStepHook(trainer_of(strategy), module_of(), BatchAccess(**(calls | {where: refuse})))
    with pytest.raises(MisconfigurationException, match="cannot be audited"):
        strategy.training_step(1, 0)
