"""Steps on a batch of before are told from steps on batches that the loader gives, also again."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from lightning_audit.hooks.sampler_tap import BatchUse, content_of


class Plain:
    """A net, its optimizer, and a training loop around them."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.use, self.number = BatchUse(), 0

    def give(self, batch: Any) -> None:
        self.number += 1
        self.use.start_batch(batch, self.number)

    def take(self, *inputs: torch.Tensor) -> None:
        for x in inputs:
            self.net(x).sum().backward()
        self.optimizer.step()

    def counts(self) -> tuple[int, int, int | None]:
        return self.use.recognised, self.use.stale, self.use.first


@pytest.fixture
def plain() -> Iterator[Plain]:
    torch.manual_seed(0)
    made = Plain()
    made.use.attach([made.net], [made.optimizer])
    yield made
    made.use.detach()


def test_each_step_on_the_batch_that_was_given_is_recognised(plain: Plain) -> None:
    for _ in range(5):
        x = torch.randn(20, 5)
        plain.give([x, torch.zeros(20)])
        plain.take(x)
    assert plain.counts() == (5, 0, None)


def test_a_batch_of_before_is_stale_until_it_is_given_again(plain: Plain) -> None:
    x, other = torch.randn(2, 20, 5)
    plain.give(x)
    plain.take(x)
    plain.give(other)
    plain.take(x)
    assert plain.counts() == (2, 1, 2)
    plain.give(x)
    plain.take(x)
    assert plain.counts() == (3, 1, 2)


def test_a_batch_that_comes_again_in_its_order_is_counted(plain: Plain) -> None:
    x, other = torch.randn(2, 20, 5)
    for batch in (x, other, x, x.flip(0)[-20:], torch.cat([x, other]), other):
        plain.give(batch)
    assert plain.use.regiven == 2


def test_batches_of_few_kinds_of_rows_do_not_come_again(plain: Plain) -> None:
    # Nine kinds: two batches have the same ones, and another order.
    kinds = torch.eye(9)
    for _ in range(200):
        plain.give(kinds[torch.randint(9, (40,))])
    assert plain.use.regiven == 0


def test_a_part_of_a_step_may_be_of_before(plain: Plain) -> None:
    x, other = torch.randn(2, 20, 5)
    plain.give(x)
    plain.take(x)
    plain.give(other)
    plain.take(other, x)
    assert plain.counts() == (2, 1, 2)


def test_parts_that_are_added_up_are_one_step(plain: Plain) -> None:
    parts = torch.randn(3, 20, 5)
    for part in parts:
        plain.give(part)
        plain.net(part).sum().backward()
    plain.optimizer.step()
    assert plain.counts() == (1, 0, None)


def test_rows_that_are_joined_leave_a_batch_what_it_is(plain: Plain) -> None:
    x = torch.randn(20, 5)
    plain.give(x)
    plain.take(torch.cat([x, torch.randn(1, 5)]))
    assert plain.counts() == (1, 0, None)


def test_what_makes_no_gradient_is_no_use(plain: Plain) -> None:
    x, other = torch.randn(2, 20, 5)
    plain.give(x)
    plain.take(x)
    plain.give(other)
    with torch.no_grad():
        plain.net(x)
    plain.net(x)  # looked at, and left out of the loss
    plain.take(other)
    assert plain.counts() == (2, 0, None)


def test_what_was_changed_on_its_way_says_nothing(plain: Plain) -> None:
    x = torch.randn(20, 5)
    for _ in range(3):
        plain.give(x)
        plain.take(x + 0.1 * torch.randn(20, 5))
    assert plain.counts() == (0, 0, None)


def test_replays_do_not_count(plain: Plain) -> None:
    plain.use.attach([plain.net], [plain.optimizer], lambda: False)
    x = torch.randn(20, 5)
    plain.give(x)
    plain.take(x)
    assert plain.counts() == (0, 0, None)


def test_nothing_of_it_is_in_a_copy_of_the_module_or_in_its_file(plain: Plain) -> None:
    plain.give(x := torch.randn(20, 5))
    plain.take(x)
    assert not plain.net._forward_hooks
    copy.deepcopy(plain.net)
    torch.save(plain.net, io.BytesIO())


@pytest.mark.parametrize(
    "leaf",
    [
        torch.arange(20),
        torch.randn(7, 5),
        torch.zeros(20, 5),
        torch.arange(5.0).repeat(20, 1),
        torch.zeros(20, 0),
        torch.randn(20, 5).to_sparse(),
        torch.randn(20, 5, dtype=torch.complex64),
        torch.nested.nested_tensor([torch.randn(2, 5)] * 20, layout=torch.jagged),
        torch.zeros(20, 5, device="meta"),
        "text",
        None,
    ],
)
def test_what_tells_no_batch_from_another_has_no_digest(leaf: Any) -> None:
    assert content_of(leaf) is None


def test_the_digest_is_that_of_the_values_whatever_their_layout() -> None:
    x = torch.randn(20, 6)
    assert content_of(x) == content_of(x.t().contiguous().t()) == content_of(x.double())
    assert content_of(x) != content_of(x + 1e-6)
    assert content_of(x[:16]) == content_of(x)
