"""Loops of many shapes: their steps are run again if they repeat, and else the line says why."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.data_loader import DPDataLoader
from plain_loops import EPOCHS, Made, loss_of, made
from rich.progress import track
from stages import staged

from lightning_audit import AuditReport, PrivacyViolation, attach

Form = Callable[[Made], None]


def one(training: Made, batch: Any) -> None:
    training.optimizer.zero_grad()
    loss_of(training, batch).backward()
    training.optimizer.step()


def audited(folder: Path, form: Form, **given: Any) -> tuple[AuditReport, list[torch.Tensor]]:
    training = made()
    arguments = {"claimed_epsilon": 50.0, "seed": 1, **given}
    torch.manual_seed(2)
    try:
        with attach(*training.training, report_dir=folder, **arguments) as audit:
            form(training)
    except PrivacyViolation as error:
        return error.report, weights(training)
    return audit.report, weights(training)


def weights(training: Made) -> list[torch.Tensor]:
    return [p.detach() for p in training.model.parameters()]


def beside_public_batches(training: Made) -> None:
    for _ in range(EPOCHS):
        for batch, shift in zip(training.loader, itertools.count(), strict=False):
            training.optimizer.param_groups[0]["lr"] = 0.05 / (1 + shift)
            one(training, batch)


def passed_on(training: Made) -> Iterator[Any]:
    for _ in range(EPOCHS):
        yield from training.loader


def by_generator(training: Made) -> None:
    for x, y in passed_on(training):
        one(training, (2.0 * x, y))


def by_call(training: Made) -> None:
    class Fit:
        def train_dataloader(self) -> Any:
            return training.loader

        def run(self) -> None:
            for batch in self.train_dataloader():
                one(training, batch)

    for _ in range(EPOCHS):
        Fit().run()


def by_own_iter(training: Made) -> None:
    class Own(DPDataLoader):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()

    training.loader.__class__ = Own
    for _ in range(EPOCHS):
        for batch in training.loader:
            one(training, batch)


class Endless:
    """Batches without end, as of many GANs."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.it, self.epoch = loader, iter(loader), 0

    def next(self) -> Any:
        try:
            return next(self.it)
        except StopIteration:
            self.epoch, self.it = self.epoch + 1, iter(self.loader)
            return next(self.it)


def by_an_object_with_next(training: Made) -> None:
    stream = Endless(training.loader)
    while stream.epoch < EPOCHS - 1:
        batch = stream.next()
        one(training, batch)


class StepBudget:
    """Holds a generator over the loader, as diffusion code does."""

    def __init__(self, training: Made) -> None:
        self.training, self.steps = training, EPOCHS * len(training.loader)
        self.batches = (b for _ in itertools.count() for b in training.loader)

    def train(self) -> None:
        while self.steps:
            x, y = next(self.batches)
            one(self.training, (x + 0.1 * torch.randn_like(x), y))
            self.steps -= 1


def by_an_object_with_a_generator(training: Made) -> None:
    StepBudget(training).train()


def one_ahead(training: Made) -> None:
    for _ in range(EPOCHS):
        it = iter(training.loader)
        coming = next(it, None)
        while coming is not None:
            batch, coming = coming, next(it, None)
            one(training, batch)


def with_progress(training: Made) -> None:
    for _ in range(EPOCHS):
        for batch in track(training.loader, disable=True):
            one(training, batch)


@pytest.mark.parametrize(
    "form",
    staged(
        [by_generator, by_an_object_with_next, one_ahead],
        nightly=[
            *(beside_public_batches, by_call, by_own_iter),
            *(by_an_object_with_a_generator, with_progress),
        ],
    ),
)
def test_a_loop_of_any_shape_passes_and_its_weights_are_those_without_the_audit(tmp_path, form):
    report, audited_weights = audited(tmp_path, form)
    assert report.verdict.outcome == "PASS", report.verdict.pass_blockers
    alone = made()
    torch.manual_seed(2)
    form(alone)
    for one, other in zip(audited_weights, weights(alone), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)


# --- Loops whose body, run again, would be another step than the one that was taken.


def one_behind(training: Made) -> None:
    before = None
    for _ in range(EPOCHS):
        for batch in training.loader:
            if before is not None:
                one(training, before)
            before = batch


def moved_on(training: Made) -> None:
    for _ in range(EPOCHS):
        it = iter(training.loader)
        x, y = next(it)
        for _ in range(len(training.loader) - 1):
            coming_x, coming_y = next(it)
            one(training, (x, y))
            x, y = coming_x, coming_y


@pytest.mark.parametrize("form", staged([one_behind], nightly=[moved_on]))
def test_a_step_on_an_earlier_batch_is_not_accused(tmp_path, form):
    report, _ = audited(tmp_path, form)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "cannot be run again (with the same batch" in "; ".join(report.verdict.pass_blockers)


def centered(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


def first_centered(batch: Any) -> Any:
    return centered(batch[0]), batch[1]


def by_a_generator_that_centers(training: Made) -> None:
    def batches() -> Iterator[Any]:
        for x, y in training.loader:
            yield centered(x), y

    for _ in range(EPOCHS):
        for batch in batches():
            one(training, batch)


def by_a_map_that_centers(training: Made) -> None:
    for _ in range(EPOCHS):
        batches = map(first_centered, training.loader)
        for batch in batches:
            one(training, batch)


def moved(training: Made, batch: Any) -> None:
    x, y = batch
    with torch.no_grad():
        wrong = training.model(x).softmax(1)[:, 0] - (y == 0).float()
        [*training.model.parameters()][-1][0] -= 0.05 * wrong.mean()


def by_a_generator_that_changes_weights(training: Made) -> None:
    def batches() -> Iterator[Any]:
        for batch in training.loader:
            yield batch
            moved(training, batch)

    for _ in range(EPOCHS):
        for batch in batches():
            one(training, batch)


def by_the_loop_around_a_generator(training: Made) -> None:
    def trained() -> Iterator[Any]:
        for batch in training.loader:
            one(training, batch)
            yield batch

    for _ in range(EPOCHS):
        for batch in trained():
            moved(training, batch)


@pytest.mark.parametrize(
    "form",
    staged(
        [by_a_map_that_centers, by_the_loop_around_a_generator],
        nightly=[by_a_generator_that_centers, by_a_generator_that_changes_weights],
    ),
)
def test_a_fault_out_of_sight_of_the_body_does_not_pass(tmp_path, form):
    report, _ = audited(tmp_path, form)
    assert report.verdict.outcome != "PASS"
