"""Bodies of loops as functions: which are taken, what is left out, what a run of them does."""

import ast
import asyncio
import linecache
import queue
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from lightning_audit.loops.body import LoopBody, LoopStep, Rest
from lightning_audit.replay.fork import ReachesOut, in_a_fork


class Asks:
    """Batches, and the body of the loop in the frame that asks for each."""

    def __init__(self, batches: list[Any], between: Callable[[], Any] | None = None) -> None:
        self.batches, self.between = batches, between
        self.bodies: list[LoopBody | None] = []
        self.frames: list[Any] = []

    def __iter__(self) -> "Asks":
        self.rest = iter(self.batches)
        return self

    def __next__(self) -> Any:
        frame = sys._getframe(1)
        self.frames.append(frame)
        self.bodies.append(LoopBody.of(frame))
        if self.between is not None and len(self.frames) == 3:
            self.between()
        return next(self.rest)


class Followed(Asks):
    """Batches whose loop a step takes."""

    def __init__(self, batches: list[Any], step: LoopStep) -> None:
        super().__init__(batches)
        self.step = step

    def __next__(self) -> Any:
        self.step.fetched(sys._getframe(1))
        return next(self.rest)


class Model:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.after: list[Any] = []

    def step(self, *given: Any) -> None:
        self.seen.append(given)


def ran(loader: Asks, model: Model, batch: Any) -> list[Any]:
    """What a run of the last body on a batch does, between two passes."""
    before = len(model.seen), len(model.after)
    held, rest = dict(loader.frames[-1].f_locals), Rest()
    loader.bodies[-1].run(loader.frames[-1], held, batch, rest)
    assert len(model.after) == before[1]  # what follows the step is left out without a fork
    return model.seen[before[0] :]


def by_for(loader: Asks, model: Model) -> None:
    for x, y in loader:
        scaled = 2 * x
        model.step(scaled, y)
        model.after.append(scaled)


def by_enumerate(loader: Asks, model: Model) -> None:
    for number, batch in enumerate(loader, start=0):
        if batch is None:
            continue
        model.step(number, batch)


def by_next(loader: Asks, model: Model) -> None:
    it = iter(loader)
    for count in range(3):
        try:
            batch = next(it)
        except StopIteration:
            it = iter(loader)
            batch = next(it)
        model.step(count, batch)
        model.after.append(batch)


def by_walrus(loader: Asks, model: Model) -> None:
    for x in (bar := loader):
        model.step(x, bar is loader)


def by_while(loader: Asks, model: Model) -> None:
    it, done = iter(loader), 0
    while done < 3:
        batch = next(it)
        model.step(batch)
        done += 1


@pytest.mark.parametrize(
    ("form", "batches", "batch", "done"),
    [
        (by_for, [(1, 2), (3, 4), (5, 6)], (7, 8), (14, 8)),
        (by_enumerate, ["a", "b", "c"], "z", (1, "z")),
        (by_next, ["a", "b", "c"], "z", (2, "z")),
        (by_walrus, ["a", "b", "c"], "z", ("z", True)),
        (by_while, ["a", "b", "c"], "z", ("z",)),
    ],
)
def test_a_body_runs_between_two_passes_on_another_batch(form, batches, batch, done):
    model = Model()
    loader = Asks(batches, between=lambda: ran(loader, model, batch))
    form(loader, model)
    assert model.seen[2] == done
    assert len(model.seen) == len(batches) + 1


def by_zip(loader: Asks, model: Model) -> None:
    for _, batch in zip(range(9), loader, strict=False):
        model.step(batch)


def by_comprehension(loader: Asks, model: Model) -> None:
    _ = [model.step(batch) for batch in loader if batch is not None]


def by_map(loader: Asks, model: Model) -> None:
    list(map(model.step, loader))


def by_walrus_in_head(loader: Asks, model: Model) -> None:
    it = iter(loader)
    while (batch := next(it, None)) is not None:
        model.step(batch)


def ahead(loader: Asks, model: Model) -> None:
    it = iter(loader)
    coming = next(it, None)
    while coming is not None:
        batch, coming = coming, next(it, None)
        model.step(batch)


def yields(loader: Asks, model: Model) -> Any:
    for batch in loader:
        model.step(batch)
        yield batch


async def waits(loader: Asks, model: Model) -> None:
    for batch in loader:
        await asyncio.sleep(0)
        model.step(batch)


@pytest.mark.parametrize(
    "form", [by_zip, by_comprehension, by_map, by_walrus_in_head, ahead, yields, waits]
)
def test_a_body_of_another_shape_runs_again_and_must_prove_itself(form):
    loader, model = Asks(["a", "b", "c"], between=lambda: ran(loader, model, "z")), Model()
    made = form(loader, model)
    asyncio.run(made) if form is waits else list(made or ())
    assert ("z",) in model.seen
    assert {body.sure for body in loader.bodies if body is not None} == {False}


def two_iterators(loader: Asks, model: Model) -> None:
    it, other = iter(loader), iter(range(9))
    for _ in range(2):
        model.step(next(it), next(other))


def several_at_once(loader: Asks, model: Model) -> None:
    for _ in range(2):
        for_later = list(loader)
        model.step(for_later)


def two_of_two_loaders(loader: Asks, model: Model) -> None:
    for batch, other in zip(loader, [*"ab"], strict=False):
        model.step(batch, other)


@pytest.mark.parametrize("form", [two_iterators, several_at_once, two_of_two_loaders])
def test_a_body_that_is_not_sure_is_not_taken(form):
    loader = Asks(["a", "b"])
    form(loader, Model())
    assert loader.frames
    assert {body is None for body in loader.bodies} == {True}


def test_the_function_that_asks_for_the_loop_is_passed_over():
    def fetched(it: Any) -> Any:
        return next(it)

    def by_helper(loader: Asks, model: Model) -> None:
        it = iter(loader)
        for _ in range(2):
            batch = fetched(it)
            model.step(batch)

    step = LoopStep(None, [], "32-true", [], None)
    by_helper(Followed(["a", "b"], step), Model())
    assert step.obstacle() == ""
    assert not step.sure
    assert not step.whole  # what runs in the function is not run again


class View:
    """The names of a frame as Python 3.13 shows them, whose keys are no set."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    def keys(self) -> list[str]:
        return [*self._held]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __getitem__(self, name: str) -> Any:
        return self._held[name]


def test_the_roots_are_read_from_a_view_of_the_names():
    loader, model = Asks(["a", "b"]), Model()
    by_for(Asks([(1, 2)], lambda: None), model)
    by_walrus(loader, model)
    frame = types.SimpleNamespace(f_locals=View({"model": model, "it": iter("a")}))
    assert loader.bodies[0].roots(frame) == [model]


def _loop(file: Path, source: str) -> CodeType:
    file.write_text(source)
    linecache.checkcache(str(file))
    return compile(source, str(file), "exec")


@pytest.mark.parametrize(
    ("old", "new"), [("(batch)", "(batch, batch)"), ("0.5", "0.9"), (".step", ".skip")]
)
def test_a_file_that_was_edited_is_not_the_source(tmp_path, old, new):
    file = tmp_path / "loop.py"
    source = "for batch in loader:\n    scale = 0.5\n    model.step(batch)\n"
    code, loader = _loop(file, source), Asks(["a"])
    exec(code, {"loader": loader, "model": Model()})
    assert loader.bodies[0] is not None
    file.write_text(source.replace(old, new))
    linecache.checkcache(str(file))
    loader = Asks(["a"])
    exec(code, {"loader": loader, "model": Model()})
    assert loader.bodies[0] is None


def test_a_cell_of_a_notebook_whose_statements_are_compiled_apart_is_the_source():
    source = "model.after.clear()\nfor batch in loader:\n    model.step(batch)\n"
    name = "<cell 1>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    loader, model = Asks(["a"]), Model()
    for part in ast.parse(source).body:
        exec(compile(ast.Module([part], []), name, "exec"), {"loader": loader, "model": model})
    assert loader.bodies[0] is not None
    assert model.seen == [("a",)]


def test_source_typed_into_an_interpreter_has_none():
    loader = Asks(["a"])
    exec("for batch in loader:\n    pass\n", {"loader": loader})
    assert loader.bodies == [None, None]


def test_the_step_says_why_it_cannot_be_run_again():
    step = LoopStep(None, [], "32-true", [], None)
    assert step.obstacle() == "the step cannot be run again; pass step="
    two_iterators(Followed(["a", "b"], step), Model())
    assert step.obstacle().startswith("the body of the loop at ")
    assert "test_body.py:" in step.obstacle()
    assert step.obstacle().endswith(" cannot be run again; pass step=")
    with pytest.raises(ReachesOut, match="the loop has ended"):
        step.take(["z"])
    sure = LoopStep(None, [], "32-true", [], lambda batch: None)
    assert sure.obstacle() == ""
    assert sure.doubt(why := "the batch makes no step", False) == why
    assert step.doubt(why, True) == why
    assert (
        step.doubt(why, False)
        == f"{step.obstacle().removesuffix('; pass step=')} ({why}); pass step="
    )


def test_a_pass_returns_the_names_that_it_binds():
    def smooths(loader: Asks, model: Model) -> None:
        mean = 0
        for batch in loader:
            mean = (mean + batch) / 2
            model.step(mean)

    def bound(batch: int) -> dict[str, Any]:
        held = dict(loader.frames[-1].f_locals)
        return loader.bodies[-1].run(loader.frames[-1], held, batch, Rest())

    loader, model = Asks([2, 4, 6], between=lambda: found.append(bound(7))), Model()
    found: list[dict[str, Any]] = []
    smooths(loader, model)
    assert found == [{"mean": 4.75, "batch": 7}]


def ran_in_a_fork(rest: Rest, statement: Callable[[], Any]) -> bool:
    """Whether a statement behind the step was run to its end, as a made body runs it."""
    rest.start()
    if not rest.begins(0):
        return False
    try:
        statement()
    except BaseException as error:
        rest.fails(error)
        return False
    finally:
        rest.ends()
    return True


@pytest.mark.parametrize(
    ("statement", "runs", "whole"),
    [
        (lambda: None, [True, True], True),
        (lambda: [][0], [False, False], False),
        (lambda: time.sleep(0.1), [True, False], False),
        (lambda: queue.Queue().get(), [False, False], False),
    ],
)
def test_what_fails_stalls_or_takes_long_behind_the_step_is_left_out(statement, runs, whole):
    def work(_: Any) -> tuple[list[bool], bool]:
        return [ran_in_a_fork(rest, statement) for _ in range(2)], rest.whole

    rest = Rest()
    assert in_a_fork(work, 10.0) == (runs, whole)


def test_without_a_fork_nothing_behind_the_step_runs():
    rest = Rest()
    assert not ran_in_a_fork(rest, lambda: None)
    assert not rest.whole
