"""Methods of a strategy are stood in for while a training is audited, and put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lightning_audit.callbacks.strategy_hooks import StrategyHook, watch_loaders


class Strategy:
    def training_step(self, batch: int) -> int:
        return batch


def doubled(inner: Any) -> Any:
    return lambda batch: 2 * inner(batch)


def test_a_hook_is_called_instead_and_leaves_nothing_behind() -> None:
    strategy = Strategy()
    hook = StrategyHook(strategy, "training_step", doubled)
    assert strategy.training_step(3) == 6
    hook.remove()
    assert strategy.training_step(3) == 3
    assert vars(strategy) == {}


def test_what_stood_there_before_is_put_back() -> None:
    strategy = Strategy()
    strategy.training_step = own = lambda batch: batch + 1
    hook = StrategyHook(strategy, "training_step", doubled)
    assert strategy.training_step(3) == 8
    hook.remove()
    assert strategy.training_step is own


def test_a_hook_under_one_of_somebody_elses_does_nothing_more_when_it_is_removed() -> None:
    strategy = Strategy()
    hook = StrategyHook(strategy, "training_step", doubled)
    inner = strategy.training_step
    strategy.training_step = theirs = lambda batch: inner(batch) + 1
    hook.remove()
    assert strategy.training_step is theirs
    assert strategy.training_step(3) == 4


def test_loaders_of_a_validation_are_handed_over_unseen() -> None:
    strategy = SimpleNamespace(process_dataloader=lambda loader: [loader])
    trainer, seen = SimpleNamespace(strategy=strategy, training=True), []
    hook = watch_loaders(trainer, seen.append)
    assert strategy.process_dataloader("train") == ["train"]
    trainer.training = False
    assert strategy.process_dataloader("validation") == ["validation"]
    hook.remove()
    trainer.training = True
    strategy.process_dataloader("of another fit")
    assert seen == [["train"]]
