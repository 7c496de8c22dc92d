"""Steps without DP-SGD are counted, those of exempt optimizers apart."""

from __future__ import annotations

import pytest
import torch

from lightning_audit.hooks.boundary import StepRefused
from lightning_audit.hooks.step_hooks import PlainSteps


def optimizer(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    return kind([param], lr=0.1)


def test_steps_are_counted_until_others_are_watched() -> None:
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


def test_the_first_step_that_is_not_exempt_is_refused() -> None:
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


def test_a_checkpoint_holds_the_counts() -> None:
    counts, one = PlainSteps(), optimizer(torch.optim.SGD)
    counts.watch([(one, "", None)])
    one.step()
    again = PlainSteps()
    again.load(counts.state())
    assert again.state() == {"count": 1, "kind": "SGD", "exempt": {}}


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
def test_an_exempt_optimizer_that_goes_by_the_number_of_records_is_told(each: int) -> None:
    gan = Gan()
    for records in SIZES[:-1]:
        gan.step(records, each * records)
    assert gan.counts.follow_records == ()  # that may be chance
    gan.step(SIZES[-1], each * SIZES[-1])
    assert gan.counts.follow_records == ("G (why)",)
    gan.step(16, 16 * each + 1)
    assert gan.counts.follow_records == ()


def test_a_fixed_number_of_rows_follows_no_records_whatever_is_detached() -> None:
    gan = Gan()
    for records in SIZES:
        gan.step(records, 16, detached=records)
    for records in (16,) * 20:  # batches of one size tell nothing
        gan.step(records, 16)
    constant = Gan()
    for records in (16,) * 20:
        constant.step(records, 16)
    assert gan.counts.follow_records == constant.counts.follow_records == ()


def test_no_checkpoint_holds_how_many_records_there_were() -> None:
    gan = Gan()
    for records in SIZES:
        gan.step(records, records)
    assert gan.counts.state() == {"count": 0, "kind": "", "exempt": {"G (why)": len(SIZES)}}
