"""A step of a plain loop, run again: by the user's function, or by the loop's body from its source.

Not every body can be taken: its source must compile to the code that runs, and it must be sure
which value is the batch. What follows the step in the body is run in a fork alone, for it may write
files, and there without what fails, stalls or takes long, such as an evaluation.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import io
import itertools
import linecache
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from torch.utils.data import DataLoader

from lightning_audit.files import compiles, nearby
from lightning_audit.hooks.boundary import users_frame
from lightning_audit.loops.events import Batches, drawn_by
from lightning_audit.replay.fork import ReachesOut
from lightning_audit.replay.order import BatchSource

#: It reads the disk.
_nearby = functools.cache(nearby)

# --- The body of a loop as a function, made from its source.

#: Functions that pass the batches of their first argument on, one by one; that count; that ask.
_PASS_ON = {"tqdm", "iter", "islice", "batches", "enumerate"}
_COUNT, _ASK = {"range", "count", "repeat"}, {"next", "__next__"}
_OF_A_STEP = {"step", "zero_grad", "backward"}
#: Seconds after which a statement after the step counts as stalled; seconds, and multiple of the
#: time up to the step, that it may take again in each replay.
_STALLED, _SHORT, _LONG = 1.0, 0.05, 2.0
#: What a function made of a body would do otherwise than the body.
_UNLIKE = {ast.YieldFrom, ast.AsyncFor, ast.AsyncWith, ast.Global, ast.Nonlocal}
_COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class LoopBody:
    """One pass of a loop's body, over given batches.

    Args:
        loop: in the user's source.
        binds: the statement that gives the batch to what the pass calls it; may be empty.
        others: names that a pass binds before it gets its batch, such as a counter.
        sure: whether the batch surely is what the loader yielded, unchanged; else a step that is
            run again must first give the weights that it gave.
    """

    def __init__(self, loop: Any, binds: str, others: set[str], *, sure: bool) -> None:
        self._body, self._binds, self._others, self.sure = loop.body, binds, others, sure
        nodes = [node for part in (*loop.body, ast.parse(binds)) for node in ast.walk(part)]
        self._names = {n.id for n in nodes if isinstance(n, ast.Name)} | others
        self._head = "async def" if any(isinstance(n, ast.Await) for n in nodes) else "def"
        #: Whether others run within a pass.
        self.yields = any(isinstance(n, ast.Yield) for n in nodes)
        self._functions: dict[tuple[str, ...], Any] = {}

    @classmethod
    @compiles
    def of(cls, frame: Any, loader: Any = None, passed: Sequence[CodeType] = ()) -> LoopBody | None:
        """Return the innermost loop that a frame is in, between two passes; None if unsure.

        Args:
            frame: in which the loop runs.
            loader: of the batches.
            passed: the user's functions that the frame called to get its batch, and generators.
        """
        values, helps = _Values(frame, loader), not all(map(is_generator, passed))
        loop, call = _loop_at(frame, helps=helps)
        nodes = [node for part in getattr(loop, "body", ()) for node in ast.walk(part)]
        kinds = {*map(type, nodes)}
        if loop is None or kinds & _UNLIKE or {ast.Await, ast.Yield} <= kinds:
            return None
        others = _names_in(loop.target) if hasattr(loop, "target") else set[str]()
        source = loop.iter if call is None else (call.args or [call])[0]
        sure = not passed and values.passes_on(source)
        if call is None:
            target, binds = _bound_by(loop.target, loop.iter, values)
            mine = None if target is None else others - _names_in(target)
            return None if mine is None else cls(loop, binds, mine, sure=sure)
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        asked, binds = _asked(call), _bound_to(call, loop)
        if {_asked(n) for n in calls if _called(n) in _ASK} - {asked}:
            return None  # another iterator is asked too
        for one in [n for n in calls if _asked(n) == asked]:
            one.func, one.args, one.keywords = ast.Name("__given", ast.Load()), [], []
        return cls(loop, binds, others, sure=sure)

    def roots(self, frame: Any) -> list[object]:
        """Return the objects that the body uses and may change."""
        held = frame.f_locals  # in Python 3.13 a view, whose keys are no set
        used = [held[name] for name in sorted(self._names.intersection(held))]
        return [one for one in used if not hasattr(one, "__next__")]

    def run(
        self, frame: Any, held: dict[str, Any], batch: Any, rest: Rest, back: int = 0
    ) -> dict[str, Any]:
        """Run the body once, and return the names that it bound.

        Args:
            frame: in which the loop runs, between two passes.
            held: the names of the frame, before the pass or now.
            batch: of this pass.
            rest: runs what follows the step.
            back: number of passes of the same step that follow, for a counter in the loop.
        """
        now = {name: frame.f_locals[name] for name in self._others.intersection(frame.f_locals)}
        held = held | {n: v - back if isinstance(v, int) else v for n, v in now.items()}
        names = tuple(sorted(n for n in held if n.isidentifier()))
        if names not in self._functions:
            self._functions[names] = self._made(names, frame)
        rest.start()
        bound: dict[str, Any] = {}
        pass_ = self._functions[names](*(held[n] for n in names), batch, rest, bound.update)
        with contextlib.suppress(StopIteration):
            while pass_ is not None:  # it yields, or awaits what takes its turn elsewhere
                pass_.send(None)
        return {
            name: value
            for name, value in bound.items()
            if not name.startswith("__") and held.get(name, bound) is not value
        }

    @compiles
    def _made(self, names: tuple[str, ...], frame: Any) -> Any:
        """Return a function of these names, the batch, and what it calls.

        The calls: of a `Rest`, and of what is given the names at the end.
        """
        body, rest = _up_to_the_step(self._body)
        parts = "\n".join([self._binds, *map(ast.unparse, body)])
        for number, part in enumerate(rest):
            after = textwrap.indent(ast.unparse(part), " " * 8)
            parts += f"\nif __rest.begins({number}):\n    try:\n{after}\n"
            parts += "    except BaseException as __error:\n        __rest.fails(__error)\n"
            parts += "    finally:\n        __rest.ends()"
        listed = ", ".join((*names, "__batch", "__rest", "__bind"))
        text = f"{self._head} __body({listed}):\n    __given = lambda: __batch\n    try:\n"
        made: dict[str, Any] = {}
        source = f"{text}     for __once in (None,):\n" + textwrap.indent(parts, " " * 8)
        source += "\n    finally:\n     __bind(locals())\n"
        exec(compile(source, frame.f_code.co_filename, "exec"), frame.f_globals, made)
        return made["__body"]


class _Values:
    """The values of the names of a frame, of which some are the loader."""

    def __init__(self, frame: Any, loader: Any) -> None:
        self._frame, self._drawn = frame, drawn_by(loader)

    def of(self, node: ast.AST) -> Any:
        """Return the value of a name or an attribute; None if it is unknown, or calls something."""
        calls = any(isinstance(one, ast.Call) for one in ast.walk(node))
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not calls:
            with contextlib.suppress(Exception):  # the user's, such as a property's
                return eval(ast.unparse(node), self._frame.f_globals, {**self._frame.f_locals})
        return None

    def are_loaders(self, node: ast.AST) -> bool:
        """Return whether an expression uses the loader."""
        found = [one for one in map(self.of, ast.walk(node)) if isinstance(one, DataLoader)]
        return any(drawn_by(one) is self._drawn for one in found)

    def passes_on(self, node: ast.expr) -> bool:
        """Return whether a loop over an expression surely gets what the loader yields."""
        if isinstance(node, ast.Call) and node.args:
            return _called(node) in _PASS_ON and self.passes_on(node.args[0])
        value = self.of(node.value if isinstance(node, ast.NamedExpr) else node)
        itself = getattr(type(value), "__iter__", None) is DataLoader.__iter__
        return itself or isinstance(value, Batches)


def is_generator(code: CodeType) -> bool:
    """Return whether code yields, so that it may pass batches on to a loop around it."""
    return bool(code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))


def _is_installed(code: CodeType) -> bool:
    return "site-packages" in code.co_filename


def _called(node: ast.AST | None) -> str:
    """Return the last name of what an expression calls, or empty."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")


def _asked(call: ast.Call) -> str:
    """Return what a call asks for a batch; ``next(it)`` and ``next(it, None)`` ask the same."""
    return ast.dump(call.args[0] if _called(call) == "next" and call.args else call)


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _place(node: Any) -> tuple[int, int, int, int]:
    """Return the first and last line and column of a node, as code has them."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _holds(node: Any, other: Any) -> bool:
    """Return whether another node lies in a node."""
    return any(one is other for one in ast.walk(node))


def _loop_at(frame: Any, *, helps: bool) -> tuple[Any, ast.Call | None]:
    """Return the innermost loop that a frame is in, and the call in it that asks for its batch.

    The loop is None if there is none, or no source; the call if the head of the loop asks. A
    comprehension is a loop too, and so is a call of ``map``.

    Args:
        frame: that asks for a batch.
        helps: whether it called a function of the user's, which returns one batch.
    """
    code = frame.f_code
    place = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    tree = _source_of(code)
    nodes = [n for n in ast.walk(tree) if getattr(n, "lineno", 0) >= code.co_firstlineno]
    at, codes, found = frame.f_lasti, code.co_code, list[Any]([(None, None)])
    while not codes[at]:  # a cache, which follows the instruction
        at -= 2
    if "CALL" not in dis.opname[codes[at]]:  # Python 3.11 has two of a call
        heads = [n for n in nodes if isinstance(n, (ast.For, ast.AsyncFor, *_COMPREHENSION))]
        loops = [(node, _as_loop(node)) for node in heads]
        found += [(loop, None) for node, loop in loops if place in map(_place, (node, loop.iter))]
        return found[-1]  # type: ignore[no-any-return]
    call = next((n for n in nodes if isinstance(n, ast.Call) and _place(n) == place), None)
    one = helps or _called(call) in _ASK  # batch, or perhaps several
    for node in nodes if call is not None else ():
        if _called(node) == "map" and _holds(call, node):
            found.append((_as_loop(node), None))
        elif isinstance(node, ast.For) and _holds(node.iter, call):
            found += [(node, None)] * (not one)
        elif isinstance(node, ast.For | ast.While) and _holds(node, call):
            found += [(node, call)] * one
    return found[-1]  # type: ignore[no-any-return]


def _as_loop(node: Any) -> Any:
    """Return a comprehension, or a call of ``map``, as the loop that it is; others as they are."""
    if isinstance(node, _COMPREHENSION):
        *_, last = node.generators
        each = [getattr(node, n) for n in ("key", "value", "elt") if hasattr(node, n)]
        body: ast.stmt = ast.Expr(ast.Tuple(each, ast.Load()))
        for test in last.ifs:
            body = ast.If(test, [body], [])
        return ast.For(last.target, last.iter, [body], [])
    if _called(node) == "map":
        return ast.For(ast.Name("__mapped", ast.Store()), node, [ast.Pass()], [])
    return node


def _bound_by(target: ast.expr, node: ast.expr, values: _Values) -> tuple[ast.expr | None, str]:
    """Return the part of a loop's target that gets the batch, and the statement that gives it."""
    args, name = getattr(node, "args", []), _called(node)
    if isinstance(node, ast.NamedExpr):
        return _bound_by(target, node.value, values)
    if args and name in ("enumerate", "zip"):
        used = [n for n, one in enumerate(args) if values.are_loaders(one)]
        used = used or [n for n, one in enumerate(args) if _called(one) not in _COUNT]
        at = 1 if name == "enumerate" else used[0]
        if not isinstance(target, ast.Tuple) or (name == "zip" and len(used) != 1):
            return None, ""
        return _bound_by(target.elts[at], args[0 if name == "enumerate" else at], values)
    if args and name in _PASS_ON:
        return _bound_by(target, args[0], values)
    given = f"({ast.unparse(args[0])})(__batch)" if name == "map" and len(args) == 2 else "__batch"
    return target, f"{ast.unparse(target)} = {given}"


def _bound_to(call: ast.Call, loop: ast.AST) -> str:
    """Return the statement that gives the batch to the name of a call's result; may be empty.

    It comes first in a pass, which may train on what an earlier pass has fetched.
    """
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            target = node.target if isinstance(node, ast.NamedExpr) else node.targets[0]
            pairs: Any = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
            for name, value in pairs:
                if value is call:
                    return f"{ast.unparse(name)} = __batch"
    return ""


def _source_of(code: CodeType) -> ast.AST:
    """Return the file that holds what runs; empty if there is none, or if it was edited since."""
    with contextlib.suppress(SyntaxError, ValueError):
        if _is_source_of(code):
            return ast.parse("".join(linecache.getlines(code.co_filename)))
    return ast.Module([], [])


def _is_source_of(code: CodeType) -> bool:
    """Return whether the file still holds what runs: it may have been edited since.

    A notebook compiles each statement of a cell by itself.
    """
    name = code.co_filename
    tree = ast.parse("".join(linecache.getlines(name)))
    parts: list[Any] = [tree]
    if code.co_name == "<module>":
        parts += [ast.Module([part], []) for part in tree.body]
    return any(_contains(compile(part, name, "exec", dont_inherit=True), code) for part in parts)


def _contains(compiled: CodeType, code: CodeType) -> bool:
    """Return whether code is among what was compiled, with the same constants and names."""
    inner = (part for part in compiled.co_consts if isinstance(part, CodeType))
    return compiled == code or any(_contains(part, code) for part in inner)


def _up_to_the_step(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return what comes up to the step, and what follows it; all if no step is in sight."""
    called = [
        (place, node.func.attr)
        for place, part in enumerate(body)
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _OF_A_STEP
    ]
    if not any(name == "step" for _, name in called):
        return body, []
    end = max(place for place, _ in called) + 1
    return body[:end], body[end:]


class Rest:
    """Runs the statements of a body that follow its step, in a fork alone.

    What stalls there is left out, as a logger's queue whose thread the fork lacks, and so is what
    fails, as where it opens a file, and from the next pass on what takes long.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        # Numbers of the statements that are left out, and the present one.
        self._out, self._now = set[int](), 0
        self._since = self._body = 0.0
        #: Whether all statements have run.
        self.whole = True

    @property
    def forked(self) -> bool:
        """Whether this process is a fork."""
        return os.getpid() != self._process

    def start(self) -> None:
        """Start a pass."""
        self._since, self._body = time.perf_counter(), 0.0

    def begins(self, number: int) -> bool:
        """Return whether to run a statement, which is stopped if it stalls."""
        self.whole &= self.forked and number not in self._out
        if not self.forked or number in self._out:
            return False
        now = time.perf_counter()
        self._body = self._body or now - self._since
        self._now, self._since = number, now
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, max(_STALLED, _LONG * self._body))
        return True

    def fails(self, error: BaseException) -> None:
        """Note that the present statement failed or stalled."""
        if not isinstance(error, Exception | _Stalled):
            raise error
        self.whole = False

    def ends(self) -> None:
        """End a statement."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if time.perf_counter() - self._since > max(_SHORT, _LONG * self._body):
            self._out.add(self._now)


class _Stalled(BaseException):
    """A statement takes too long."""


def _stop(*_: object) -> None:
    raise _Stalled


# --- The user's step for replays.

#: Largest number of functions between a loop and what asks for its batch.
_FUNCTIONS = 3


class LoopStep:
    """The step of a plain loop, run again between two batches.

    Args:
        module: the root of all trained parameters.
        optimizers: of the training; a list that is kept up to date.
        precision: of the training.
        aside: objects whose state is neither saved nor restored.
        function: of a batch, which is one step; None to take the loop's body from its source.
    """

    def __init__(
        self,
        module: Any,
        optimizers: Sequence[Any],
        precision: str,
        aside: Sequence[object],
        function: Callable[[Any], Any] | None,
    ) -> None:
        self.module, self.optimizers, self.precision = module, optimizers, precision
        self.aside, self.function = aside, function
        #: Whether the step is being run again.
        self.runs = False
        #: Of the batches; None if there is none, or no torch loader.
        self.loader: Any = None
        #: Names of what the step logs.
        self.logged: dict[str, set[Any]] = {}
        self._bodies: dict[tuple[CodeType, int], LoopBody | None] = {}
        self._body: LoopBody | None = None
        # The frame in which the loop runs, by its identity; the functions that it called to get
        # its batch, and those of them that train; whether the step on it has not begun.
        self._runs_in: tuple[Any, ...] = ()
        self._passed, self._train = list[CodeType](), set[CodeType]()
        self._waits = self._late = False
        self._where = ""
        # Runs what follows a step; names that the passes of the present replay bound, which are
        # restored with the training.
        self._rest, self._bound = Rest(), dict[str, Any]()
        # The names of the frame before the step; None unless it will be run again.
        self._held: dict[str, Any] | None = None

    def begin(self) -> bool:
        """Keep the names of the frame in which the step begins; return whether it is known."""
        self._rest.whole, frame = True, self._frame
        self._held = None if frame is None else dict(frame.f_locals)
        return self._held is not None or self.function is not None

    def fetched(self, frame: Any) -> None:
        """Take the body of the loop that fetched a batch: in its frame, or one that called that."""
        self._body = self._held = None
        self._runs_in, self._passed, self._where, self._waits = (), [], "", True
        while self.function is None and frame is not None and len(self._passed) <= _FUNCTIONS:
            code, key = frame.f_code, (frame.f_code, frame.f_lasti)
            if _is_installed(code) and not all(map(_is_installed, self._passed)):
                return  # no loop of the user's, such as a test runner's
            if not is_generator(code) or code in self._train:
                if key not in self._bodies:
                    self._bodies[key] = LoopBody.of(frame, self.loader, self._passed)
                self._body = self._bodies[key]
                if self._body is not None or not self._where:
                    self._where = f"{_nearby(code.co_filename)}:{frame.f_lineno}"
                if self._body is not None:
                    self._runs_in = id(frame), *key
                    return
            self._passed.append(code)
            frame = None if frame.f_back is None else users_frame(frame.f_back)

    def trains(self, *, late: bool) -> None:
        """Look where the first forward pass on a batch runs.

        Args:
            late: whether another batch was fetched before.
        """
        self._late, frame, runs = late, sys._getframe(1), self._runs_in
        while self._waits and frame is not None and runs[:2] != (id(frame), frame.f_code):
            if frame.f_code in self._passed:  # it trains itself, and not the loop around it
                self._train.add(frame.f_code)
                if runs:
                    self._bodies[runs[1:]] = self._body = None
            frame = frame.f_back  # type: ignore[assignment]
        self._waits = False

    @property
    def _frame(self) -> Any:
        """The frame in which the loop runs; None if it has ended."""
        frame: Any = sys._getframe(1)
        while frame is not None and (id(frame), frame.f_code) != self._runs_in[:2]:
            frame = frame.f_back
        return frame

    @property
    def sure(self) -> bool:
        """Whether what is run again surely is the step."""
        surely = self._body is None or (self._body.sure and not self._late)
        return self.function is not None or surely

    def obstacle(self) -> str:
        """Return why no step of this loop can be run again, or empty."""
        return self._cannot("") if self.function is None and self._body is None else ""

    def doubt(self, reason: str, repeated: bool) -> str:
        """Return why a step gave no answers; one from the source counts as not taken."""
        return reason if repeated or self.function is not None else self._cannot(f" ({reason})")

    def _cannot(self, why: str) -> str:
        loop = f"the body of the loop at {self._where}" if self._where else "the step"
        return f"{loop} cannot be run again{why}; pass step="

    def roots(self) -> list[object]:
        """Return the objects that a step may change."""
        held: list[object] = [self.module, *self.optimizers]
        if self.function is not None:
            return [*held, self.function]
        if self._body is not None and (frame := self._frame) is not None:
            held += [self._bound, *self._body.roots(frame)]
        return held

    @property
    def whole(self) -> bool:
        """Whether all that runs in a pass has run again, up to the first failure."""
        beside = self._passed or (self._body is not None and self._body.yields)
        return self._rest.whole and not beside

    def given(self, batch: Any) -> Any:
        """Return what the user's function was called with, which may be a batch made of another."""
        code, frame = getattr(self.function, "__code__", None), sys._getframe(1)
        place = int(inspect.ismethod(self.function))
        while code is not None and frame is not None:
            if frame.f_code is code and code.co_argcount > place:
                return frame.f_locals.get(code.co_varnames[place], batch)
            frame = frame.f_back  # type: ignore[assignment]
        return batch

    def source(self) -> BatchSource:
        """Return the way from records to a batch: the loader alone."""
        return BatchSource(self.loader)

    def take(self, batches: Sequence[Any]) -> None:
        """Train on the physical batches of one logical step."""
        self.runs = True
        try:
            self._take(batches)
        finally:
            self.runs = False

    def _take(self, batches: Sequence[Any]) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for place, batch in enumerate(batches, start=1):
                if self.function is not None:
                    self.function(batch)
                elif self._body is not None and (frame := self._frame) is not None:
                    back = len(batches) - place
                    held = {**(self._held or frame.f_locals), **self._bound}
                    if self._rest.forked and frame.f_code.co_name == "<module>":
                        frame.f_globals.update(held)  # functions that the body calls read them
                    self._bound |= self._body.run(frame, held, batch, self._rest, back)
                else:
                    raise ReachesOut("the loop has ended")
