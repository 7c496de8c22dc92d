"""Where the batch of each step came from: the followed loader, another loader, or no loader."""

import queue
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plain_loops
import pytest
import torch
from plain_loops import Made, made
from stages import staged
from torch.utils.data import DataLoader

from lightning_audit import AuditReport, PrivacyViolation, attach
from lightning_audit.canaries.inputs import Mislabeled
from lightning_audit.results.audit_report import ClaimUsedUp, UnauditableTraining
from lightning_audit.run.audit_run import AuditRun
from lightning_audit.testing.faulty import HalfNoise

Loop = Callable[[Any, Made], None]
#: Without replays, which find many of these as well.
GIVEN = {"claimed_epsilon": 50.0, "seed": 1, "examinations": 0}


def trained(directory: Path, loop: Loop, training: Made | None = None) -> AuditReport:
    training = training or made()
    try:
        with attach(*training.training, report_dir=directory, **GIVEN) as audit:
            loop(audit, training)
    except PrivacyViolation as error:
        return error.report
    return audit.report


def step(training: Made, batch: Any) -> None:
    training.optimizer.zero_grad()
    plain_loops.loss_of(training, batch).backward()
    training.optimizer.step()


def own(training: Made) -> tuple[torch.Tensor, torch.Tensor]:
    return training.loader.dataset.tensors


def whole_loop(audit: Any, training: Made) -> None:
    for _ in range(2):
        for batch in training.loader:
            step(training, batch)


# --- Loops that train on other batches.


def shuffled(audit: Any, training: Made) -> None:
    for batch in DataLoader(training.loader.dataset, 16, shuffle=True):
        step(training, batch)


def by_hand(audit: Any, training: Made) -> None:
    x, y = own(training)
    for rows in torch.randperm(len(x)).split(16):
        step(training, (x[rows], y[rows]))


def through_step(audit: Any, training: Made) -> None:
    x, y = own(training)
    for rows in torch.randperm(len(x)).split(16):
        audit.step(lambda batch: step(training, batch), (x[rows], y[rows]))


def hard_records_after_each_pass(audit: Any, training: Made) -> None:
    whole_loop(audit, training)
    x, y = own(training)
    step(training, (x[:16], y[:16]))


def a_few_hard_records_beside_each_batch(audit: Any, training: Made) -> None:
    x, y = own(training)
    for _ in range(2):
        for batch in training.loader:
            step(training, batch)
            step(training, (x[:4], y[:4]))


def pool_after_an_evaluation(audit: Any, training: Made) -> None:
    x, y = own(training)
    training.model.eval()
    for batch in training.loader:
        training.model(batch[0])
    training.model.train()
    for rows in torch.randperm(len(x)).split(16):
        step(training, (x[rows], y[rows]))


def own_batches_shown(audit: Any, training: Made) -> None:
    x, y = own(training)
    for rows in audit.batches(torch.randperm(len(x)).split(16)):
        step(training, (x[rows], y[rows]))


def loader_over_part(audit: Any, training: Made) -> None:
    whole_loop(audit, training)
    part = torch.utils.data.Subset(training.loader.dataset, range(64))
    for batch in DataLoader(part, 16):
        step(training, batch)


@pytest.mark.parametrize("loop", [shuffled, loader_over_part])
def test_another_loader_that_is_iterated_is_judged_by_its_type(tmp_path, loop):
    report = trained(tmp_path, loop)
    assert report.verdict.root.finding == "sampling.not_poisson"
    assert "Sampler" in report.verdict.root.evidence["loader"]


@pytest.mark.parametrize(
    "loop",
    staged(
        [by_hand, through_step, own_batches_shown],
        nightly=[hard_records_after_each_pass, pool_after_an_evaluation],
    ),
)
def test_a_step_on_a_batch_of_no_followed_loader_keeps_a_pass_away(tmp_path, loop):
    report = trained(tmp_path, loop)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "audit.follow(loader=...)" in "; ".join(report.verdict.pass_blockers)


def test_further_steps_beside_each_batch_are_no_pass(tmp_path):
    assert trained(tmp_path, a_few_hard_records_beside_each_batch).verdict.outcome != "PASS"


# --- Correct loops.


def copied_ahead(audit: Any, training: Made) -> None:
    """As a prefetcher to another device does."""

    def copies() -> Iterator[Any]:
        held = [[x.clone() for x in next(it)] for _ in range(2)]
        for batch in it:
            held.append([x.clone() for x in batch])
            yield held.pop(0)
        yield from held

    for _ in range(2):
        it = iter(training.loader)
        for batch in copies():
            step(training, batch)


def fetched_by_threads(loader: Any, size: int, threads: int = 1) -> Iterator[Any]:
    """Batches that other threads put into a queue; what they raise is raised here, at the end."""
    waiting: Any = queue.Queue(size)
    it, lock, raised = iter(loader), threading.Lock(), list[BaseException]()

    def fetch() -> None:
        try:
            while True:
                with lock:
                    batch = next(it, None)
                if batch is None:
                    break
                waiting.put(batch)
        except BaseException as error:
            raised.append(error)
        waiting.put(None)

    for _ in range(threads):
        threading.Thread(target=fetch, daemon=True).start()
    ended = 0
    while ended < threads:
        batch = waiting.get(timeout=30)
        ended += batch is None
        if batch is not None:
            yield batch
    assert raised == []


def by_threads(size: int, threads: int = 1, stop: int = 1000) -> Loop:
    """Each pass ends with its batch ``stop``."""

    def loop(audit: Any, training: Made) -> None:
        for _ in range(2 if stop == 1000 else 4):
            for number, batch in enumerate(fetched_by_threads(training.loader, size, threads)):
                if number == stop:
                    break
                step(training, batch)

    return loop


def augmented(audit: Any, training: Made) -> None:
    for _ in range(2):
        for x, y in training.loader:
            step(training, (x + 0.01 * torch.randn_like(x), y))


def beside_public_batches(audit: Any, training: Made) -> None:
    public = DataLoader(torch.randn(900, 8), 16)
    for _ in range(2):
        for batch, more in zip(training.loader, public, strict=False):
            training.optimizer.zero_grad()
            with torch.no_grad():
                training.model(more)
            plain_loops.loss_of(training, batch).backward()
            training.optimizer.step()


def accuracy_within_the_pass(audit: Any, training: Made) -> None:
    for _ in range(2):
        for number, batch in enumerate(training.loader):
            if number % 10 == 0:
                with torch.no_grad():
                    for x, _ in training.loader:
                        training.model(x)
            step(training, batch)


def left_in_evaluation(audit: Any, training: Made) -> None:
    for _ in range(2):
        for batch in training.loader:
            training.model.train()
            step(training, batch)
            training.model.eval()


def of_the_same_sampler(audit: Any, training: Made) -> None:
    again = DataLoader(training.loader.dataset, batch_sampler=training.loader.batch_sampler)
    for _ in range(2):
        for batch in again:
            step(training, batch)


def one_in_two(audit: Any, training: Made) -> None:
    for _ in range(4):
        for number, batch in enumerate(training.loader):
            if number % 2 == 0:
                step(training, batch)


EACH_CHANGE = copied_ahead, by_threads(2), augmented, accuracy_within_the_pass
NIGHTLY = (
    *(by_threads(100), by_threads(4, threads=2), by_threads(2, stop=20), beside_public_batches),
    *(left_in_evaluation, of_the_same_sampler, one_in_two),
)


@pytest.mark.parametrize("loop", staged(EACH_CHANGE, nightly=NIGHTLY))
def test_a_loop_that_trains_on_its_loader_passes(tmp_path, loop):
    verdict = trained(tmp_path, loop).verdict
    assert verdict.outcome == "PASS", verdict.pass_blockers


def attached_by_thread(folder: Path, training: Made, size: int, **given: Any) -> AuditReport:
    with attach(*training.training, report_dir=folder, **{**GIVEN, **given}) as audit:
        by_threads(size)(audit, training)
    return audit.report


@pytest.mark.parametrize("size", staged([2], nightly=[100]))
def test_with_a_step_function_batches_of_a_thread_and_of_workers_are_examined(tmp_path, size):
    training = made(loader=plain_loops.plain_loader(num_workers=2))
    given = {"examinations": "auto", "step": lambda batch: step(training, batch)}
    verdict = attached_by_thread(tmp_path, training, size, **given).verdict
    assert verdict.outcome == "PASS", verdict.pass_blockers


@pytest.mark.parametrize("size", staged([2], nightly=[100]))
def test_half_the_noise_is_raised_where_the_step_is_taken_and_not_fetched(tmp_path, size):
    with pytest.raises(PrivacyViolation) as raised:
        attached_by_thread(tmp_path, made(HalfNoise), size)
    assert "step" in {entry.name for entry in raised.traceback}


def test_a_claim_that_is_used_up_is_raised_before_a_step_on_a_batch_of_a_thread(tmp_path):
    with pytest.raises(ClaimUsedUp) as raised:
        attached_by_thread(tmp_path, made(), 2, claimed_epsilon=1.5)
    assert "step" in {entry.name for entry in raised.traceback}
    assert raised.value.report.epsilon_spent <= 1.5


def test_an_input_canary_that_a_thread_would_join_is_refused_at_the_step(tmp_path):
    with pytest.raises(UnauditableTraining, match="fetch one at a time") as raised:
        attached_by_thread(tmp_path, made(), 2, canaries=[Mislabeled()])
    assert "step" in {entry.name for entry in raised.traceback}


# --- Batches that are left out before their forward pass.


def chosen_by_their_loss(audit: Any, training: Made) -> None:
    for _ in range(3):
        for batch in training.loader:
            with torch.no_grad():
                loss = plain_loops.loss_of(training, batch)
            if float(1e3 * loss) % 2 < 1:
                step(training, batch)


def small_batches_alone(audit: Any, training: Made) -> None:
    for _ in range(3):
        for x, y in training.loader:
            if len(x) > 18:
                continue
            step(training, (x + 0.0, y))


def positive(fetched: Callable[[Any], Any]) -> Loop:
    def loop(audit: Any, training: Made) -> None:
        for _ in range(3):
            for batch in fetched(training.loader):
                if float(batch[0].mean()) > 0.0:
                    step(training, batch)

    return loop


@pytest.mark.parametrize(
    "loop",
    staged(
        [chosen_by_their_loss, positive(list)],
        nightly=[small_batches_alone, positive(lambda loader: fetched_by_threads(loader, 8))],
    ),
)
def test_batches_that_are_left_out_are_counted_and_keep_a_pass_away(tmp_path, loop):
    report = trained(tmp_path, loop)
    blocker = next(why for why in report.verdict.pass_blockers if "made no step" in why)
    left, of = map(int, re.findall(r"(\d+) of (\d+) batches", blocker)[0])
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert of == left + report.steps
    assert 60 < of <= 96


def test_an_empty_batch_that_is_left_out_is_a_note(tmp_path):
    training = made(loader=DataLoader(plain_loops.random_data(30), 2))

    def unless_empty(audit: Any, training: Made) -> None:
        for _ in range(8):
            for x, y in training.loader:
                if len(x):
                    step(training, (x, y))

    report = trained(tmp_path, unless_empty, training)
    assert "empty batches were skipped" in "; ".join(report.notes)
    assert "made no step" not in "; ".join(report.verdict.pass_blockers)


@pytest.mark.parametrize("by_keyword", staged([False], nightly=[True]))
def test_a_step_is_examined_on_the_batch_that_it_is_given(tmp_path, by_keyword):
    training = made()
    x, y = own(training)
    training.loader.dataset.tensors = ((100 * x).short(), y)

    def train(named: dict[str, Any]) -> None:
        step(training, (named["x"], named["y"]))

    def cast() -> Iterator[Any]:
        for x, y in training.loader:
            yield {"x": x.float() / 100, "y": y}

    given = {**GIVEN, "examinations": "auto", "step": train if by_keyword else None}
    with attach(*training.training, report_dir=tmp_path, **given) as audit:
        for _ in range(2):
            for batch in cast():
                train(batch) if by_keyword else audit.step(train, batch)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict.pass_blockers


def test_a_batch_that_is_fetched_before_the_model_trains_again_is_known(tmp_path, monkeypatch):
    """A loop evaluates after each epoch, and calls `train` in its body, as Hugging Face's does."""
    training, begun = made(), []
    begins = AuditRun.start_batch

    def start_batch(run, epoch, batch):
        begun.append(batch)
        begins(run, epoch, batch)

    monkeypatch.setattr(AuditRun, "start_batch", start_batch)
    with attach(*training.training, 50.0, report_dir=tmp_path, examinations=0):
        for _ in range(2):
            for batch in training.loader:
                training.model.train()
                step(training, batch)
            training.model.eval()
    assert begun
    assert all(batch is not None for batch in begun)
