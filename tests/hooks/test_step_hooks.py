"""Whoever installs hooks is told where a step is, and of nothing once they are off."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lightning_audit.hooks.boundary import StepRefused
from lightning_audit.hooks.step_hooks import ClosureHooks, MethodHook, PlainSteps, StepHooks


class Counts:
    def __init__(self) -> None:
        self.said: list[str] = []

    def add(self, amount: int, *, twice: bool = False) -> int:
        self.said.append("own")
        return amount * (2 if twice else 1)


class More(Counts):
    def add(self, amount: int, *, twice: bool = False) -> int:
        return super().add(amount, twice=twice) + 1


@pytest.mark.parametrize(("kind", "expected"), [(Counts, 6), (More, 7)])
def test_both_ends_of_a_method_are_told_and_its_result_stays(kind, expected):
    counts = kind()
    said = counts.said
    hook = MethodHook(counts, "add", lambda: said.append("a"), lambda: said.append("b"))
    assert counts.add(3, twice=True) == expected
    assert said == ["a", "own", "b"]
    hook.remove()
    counts.add(1)
    assert said == ["a", "own", "b", "own"]
    assert "add" not in vars(counts)


def test_the_end_is_not_told_of_a_method_that_fails():
    said: list[str] = []
    hook = MethodHook(Counts(), "add", after=lambda: said.append("b"))
    with pytest.raises(TypeError):
        hook._owner.add()
    assert not said


def test_a_hook_under_another_one_falls_silent_and_leaves_it_there():
    counts = Counts()
    low = MethodHook(counts, "add", lambda: counts.said.append("low"))
    high = MethodHook(counts, "add", lambda: counts.said.append("high"))
    low.remove()
    counts.add(1)
    assert counts.said == ["high", "own"]
    high.remove()
    counts.said.clear()
    counts.add(1)
    assert counts.said == ["own"]


# --- Steps without DP-SGD are counted, those of exempt optimizers apart.


def optimizer(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    return kind([param], lr=0.1)


def test_steps_are_counted_until_others_are_watched():
    counts, one, other = PlainSteps(), optimizer(torch.optim.SGD), optimizer(torch.optim.Adam)
    counts.watch([(one, "", None), (other, "Adam (why)", None)])
    for each in (one, other, other):
        each.step()
    assert (counts.count, counts.kind, counts.exempt) == (1, "SGD", {"Adam (why)": 2})
    counts.watch([(other, "", None)])
    one.step()
    other.step()
    assert (counts.count, counts.kind) == (2, "Adam")
    counts.detach()
    other.step()
    assert counts.count == 2


def test_the_first_step_that_is_not_exempt_is_refused():
    counts, one, exempt = PlainSteps(), optimizer(torch.optim.SGD), optimizer(torch.optim.Adam)

    def refuse(kind: str) -> None:
        raise StepRefused(kind)

    counts.refuse = refuse
    counts.watch([(one, "", None), (exempt, "Adam (why)", None)])
    exempt.step()
    (param,) = one.param_groups[0]["params"]
    before = param.detach().clone()
    with pytest.raises(StepRefused, match="SGD"):
        one.step()
    assert torch.equal(param, before)
    assert (counts.count, counts.exempt) == (0, {"Adam (why)": 1})


class Gan:
    """A generator, and the steps of its optimizer."""

    def __init__(self) -> None:
        self.net, self.counts = torch.nn.Linear(2, 2), PlainSteps()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.counts.watch([(self.optimizer, "G (why)", self.net)])

    def step(self, records: int, fakes: int, *, detached: int = 0) -> None:
        self.counts.records = records
        if detached:
            self.net(torch.ones(detached, 2)).detach().sum()
        self.optimizer.zero_grad()
        self.net(torch.ones(fakes, 2)).sum().backward()
        self.optimizer.step()


SIZES = (14, 15, 16, 17, 14, 19, 16, 12)


@pytest.mark.parametrize("each", [1, 2])
def test_an_exempt_optimizer_that_goes_by_the_number_of_records_is_told(each):
    gan = Gan()
    for records in SIZES[:-1]:
        gan.step(records, each * records)
    assert gan.counts.follow_records == ()  # that may be chance
    gan.step(SIZES[-1], each * SIZES[-1])
    assert gan.counts.follow_records == ("G (why)",)
    gan.step(16, 16 * each + 1)
    assert gan.counts.follow_records == ()


def test_a_fixed_number_of_rows_follows_no_records_whatever_is_detached():
    gan = Gan()
    for records in SIZES:
        gan.step(records, 16, detached=records)
    for records in (16,) * 20:  # batches of one size tell nothing
        gan.step(records, 16)
    constant = Gan()
    for records in (16,) * 20:
        constant.step(records, 16)
    assert gan.counts.follow_records == constant.counts.follow_records == ()


def test_no_checkpoint_holds_how_many_records_there_were():
    gan = Gan()
    for records in SIZES:
        gan.step(records, records)
    again = PlainSteps()
    again.load(gan.counts.state())
    assert again.state() == gan.counts.state()
    assert again.state() == {"count": 0, "kind": "", "exempt": {"G (why)": len(SIZES)}}


class Own(torch.optim.SGD):
    """Runs its closure, then its parent's step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        if closure is not None:
            closure()
        return super().step()


def told_of(
    kind: type[StepHooks], optimizer_class: type[torch.optim.Optimizer], *, closure: bool
) -> list[str]:
    """What is told of two steps, the second without hooks, and when a closure runs."""
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    optimizer, told, depth = optimizer_class([param], lr=0.1), [], [0]

    def enters() -> int:
        depth[0] += 1
        return depth[0]

    def leaves() -> None:
        told.append(f"leaves {depth[0]}")
        depth[0] -= 1

    hooks = kind(optimizer, enters, lambda level: told.append(f"arrives {level}"), leaves)

    def run() -> float:
        told.append("closure")
        return 0.0

    given = (run,) if closure else ()
    optimizer.step(*given)
    hooks.remove()
    told.append("off")
    optimizer.step(*given)
    return told


@pytest.mark.parametrize("kind", [StepHooks, ClosureHooks])
def test_a_step_and_its_parents_step_are_told_by_their_depth(kind):
    assert told_of(kind, torch.optim.SGD, closure=False) == ["arrives 1", "leaves 1", "off"]
    nested = ["arrives 1", "arrives 2", "leaves 2", "leaves 1", "off"]
    assert told_of(kind, Own, closure=False) == nested


def test_gradients_arrive_when_the_closure_that_makes_them_is_done():
    told = told_of(ClosureHooks, torch.optim.SGD, closure=True)
    assert told == ["closure", "arrives 1", "leaves 1", "off", "closure"]
    told = told_of(StepHooks, torch.optim.SGD, closure=True)
    assert told == ["arrives 1", "closure", "leaves 1", "off", "closure"]
