"""A step of a plain loop, run again: by the user's function, or by the loop's body from its source.

Not every body can be taken: its source must compile to the code that runs, and it must be sure
which value is the batch. What follows the step in the body is run in a fork alone, for it may write
files, and there without what fails, stalls or takes long, such as an evaluation.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dis
import inspect
import io
import itertools
import linecache
import os
import signal
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from torch.utils.data import DataLoader

from lightning_audit.files import nearby
from lightning_audit.loops.events import Batches, drawn_by, users_frame
from lightning_audit.replay.before_step import BatchSource
from lightning_audit.replay.examiner import CANNOT_REPLAY, NO_STEP, NOT_REPEATED, OTHER_STEP

# --- The body of a loop as a function, made from its source.

#: Functions that pass the batches of their first argument on, one by one; that count.
_PASS_ON = {"tqdm", "trange", "progress_bar", "iter", "islice", "auto", "batches", "enumerate"}
_COUNT, _ASK = {"range", "count", "repeat"}, {"next", "__next__"}
_OF_A_STEP = {"step", "zero_grad", "backward"}
#: Seconds after which a statement after the step counts as stalled; seconds, and multiple of the
#: time up to the step, that it may take again in each replay.
_STALLED, _SHORT, _LONG = 1.0, 0.05, 2.0
#: What a function made of a body would do otherwise than the body.
_UNLIKE = (ast.YieldFrom, ast.AsyncFor, ast.AsyncWith, ast.Global, ast.Nonlocal)
_COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


#: Python 3.11 counts the depth of trees over all threads that compile: SystemError.
_COMPILES = threading.Lock()


class LoopBody:
    """One pass of a loop's body, over given batches.

    Args:
        loop: in the user's source.
        binds: the statement that gives the batch to what the pass calls it; may be empty.
        others: names that a pass binds before it gets its batch, such as a counter.
        sure: whether the batch surely is what the loader yielded, unchanged; else a step that is
            run again must first give the weights that it gave.
    """

    def __init__(
        self, loop: ast.For | ast.While, binds: str, others: set[str], *, sure: bool
    ) -> None:
        self._body, self._binds = [_Here().visit(part) for part in loop.body], binds
        self.others, self.sure = others, sure
        parts = [*self._body, ast.parse(binds)]
        nodes = [node for part in parts for node in ast.walk(part)]
        self._names = {n.id for n in nodes if isinstance(n, ast.Name)} | others
        self._functions: dict[tuple[str, ...], Any] = {}

    @classmethod
    def of(cls, frame: Any, loader: Any = None, passed: Sequence[CodeType] = ()) -> LoopBody | None:
        """Return the innermost loop that a frame is in, between two passes; None if unsure.

        Args:
            frame: in which the loop runs.
            loader: of the batches.
            passed: the user's functions that the frame called to get its batch, and generators.

        Raises:
            LookupError: the frame is in no loop, or its source is unknown.
        """
        helps = any(not is_generator(code) for code in passed)
        loop, call = _loop_at(frame, helps=helps)
        if any(isinstance(node, _UNLIKE) for part in loop.body for node in ast.walk(part)):
            return None
        values = _Values(frame, loader)
        if call is not None:
            return _that_asks(loop, call, values, helps=helps, passed=bool(passed))
        assert isinstance(loop, ast.For | ast.AsyncFor)
        target, binds = _bound_by(loop.target, loop.iter, values)
        if target is None:
            return None
        others = _names_in(loop.target) - _names_in(target)
        sure = not passed and values.passes_on(loop.iter)
        return cls(loop, binds, others, sure=sure)

    def roots(self, frame: Any) -> list[object]:
        """Return the objects that the body uses and may change."""
        held = frame.f_locals  # in Python 3.13 a view, whose keys are no set
        used = [held[name] for name in sorted(self._names.intersection(held))]
        return [one for one in used if not hasattr(one, "__next__")]

    def run(self, frame: Any, held: dict[str, Any], batch: Any, rest: Rest) -> dict[str, Any]:
        """Run the body once, and return the names that it bound.

        Args:
            frame: in which the loop runs, between two passes.
            held: the names of the frame, before the pass or now.
            batch: of this pass.
            rest: runs what follows the step.
        """
        names = tuple(sorted(n for n in held if n.isidentifier()))
        if names not in self._functions:
            self._functions[names] = self._made(names, frame)
        rest.start()
        bound: dict[str, Any] = {}
        self._functions[names](*(held[n] for n in names), batch, rest, bound.update, _waited)
        return {
            name: value
            for name, value in bound.items()
            if not name.startswith("__") and held.get(name, bound) is not value
        }

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
        listed = ", ".join((*names, "__batch", "__rest", "__bind", "__waited"))
        text = f"def __body({listed}):\n    try:\n     for __once in (None,):\n"
        made: dict[str, Any] = {}
        source = text + textwrap.indent(parts, " " * 8) + "\n    finally:\n     __bind(locals())\n"
        exec(compile(source, frame.f_code.co_filename, "exec"), frame.f_globals, made)
        return made["__body"]


class _Here(ast.NodeTransformer):
    """Keeps what a pass yields, and waits for what it awaits: no one else takes its turn."""

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        return self.visit(node.value or ast.Constant(None))

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return ast.Call(ast.Name("__waited", ast.Load()), [self.visit(node.value)], [])


def _waited(awaited: Any) -> Any:
    """Return what an awaitable gives, which is not put off."""
    waits = awaited.__await__()
    while True:
        try:
            next(waits)
        except StopIteration as ended:
            return ended.value


class _Values:
    """What the names of a frame stand for, of which some are the loader."""

    def __init__(self, frame: Any, loader: Any) -> None:
        self._frame, self._loader = frame, loader

    def of(self, node: ast.AST) -> Any:
        """Return the value of a name or an attribute; None if it is unknown."""
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return None
        code = compile(ast.Expression(node), "<name>", "eval")
        with contextlib.suppress(Exception):  # the user's, such as a property's
            return eval(code, self._frame.f_globals, dict(self._frame.f_locals))
        return None

    def are_loaders(self, node: ast.AST) -> bool:
        """Return whether an expression uses the loader."""
        found = map(self.of, ast.walk(node))
        return any(
            one is not None and (one is self._loader or drawn_by(one) is drawn_by(self._loader))
            for one in found
            if isinstance(one, DataLoader)
        )

    def passes_on(self, node: ast.expr) -> bool:
        """Return whether a loop over an expression surely gets what the loader yields."""
        if isinstance(node, ast.Call) and node.args:
            name = _called(node)
            return (name in _PASS_ON or name.endswith("tqdm")) and self.passes_on(node.args[0])
        if isinstance(node, ast.NamedExpr):
            return self.passes_on(node.value)
        value = self.of(node)
        return isinstance(value, Batches) or (
            getattr(type(value), "__iter__", None) is DataLoader.__iter__
        )


def is_generator(code: CodeType) -> bool:
    """Return whether code yields, so that it may pass batches on to a loop around it."""
    return bool(code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))


def _is_installed(code: CodeType) -> bool:
    return "site-packages" in code.co_filename


def _called(node: ast.AST) -> str:
    """Return the last name of what an expression calls, or empty."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _place(node: Any) -> tuple[int, int, int, int]:
    """Return the first and last line and column of a node, as code has them."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _holds(node: Any, other: Any) -> bool:
    """Return whether another node lies in a node."""
    (first, last, begin, end), (line, until, left, right) = _place(node), _place(other)
    return (first, begin) <= (line, left) and (until, right) <= (last, end)


def _loop_at(frame: Any, *, helps: bool) -> tuple[ast.For | ast.While, ast.Call | None]:
    """Return the innermost loop that a frame is in, and the call in it that gets its batch.

    The call is None if the head of the loop gets the batch. A comprehension is a loop too, and so
    is a call of ``map``.

    Raises:
        LookupError: there is none, or no source.
    """
    code, found, heads = frame.f_code, list[Any](), (ast.For, ast.AsyncFor, *_COMPREHENSION)
    place = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    nodes = [n for n in ast.walk(_source_of(code)) if getattr(n, "lineno", 0) >= _first(code)]
    at, codes = frame.f_lasti, code.co_code
    while not codes[at]:  # a cache behind the instruction
        at -= 2
    if "CALL" not in dis.opname[codes[at]]:  # Python 3.11 has two of a call
        loops = [(node, _as_loop(node)) for node in nodes if isinstance(node, heads)]
        found = [(at, None) for node, at in loops if place in (_place(node), _place(at.iter))]
    else:
        call = next((n for n in nodes if isinstance(n, ast.Call) and _place(n) == place), None)
        for node in nodes if call is not None else ():
            in_head = isinstance(node, ast.For) and _holds(node.iter, call)
            asks = isinstance(node, ast.For | ast.While) and _holds(node, call)
            if asks and not (in_head and (helps or _called(call) in _ASK)):
                found.append((node, None if in_head else call))
            if _called(node) == "map" and _holds(call, node):
                found.append((_as_loop(node), None))
    if not found:
        raise LookupError
    return found[-1]  # the walk comes to inner ones later


def _first(code: CodeType) -> int:
    return 0 if code.co_name == "<module>" else code.co_firstlineno


def _as_loop(node: Any) -> Any:
    """Return a comprehension, or a call of ``map``, as the loop that it is; others as they are."""
    if isinstance(node, _COMPREHENSION):
        *_, last = node.generators
        each = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        body: ast.stmt = ast.Expr(ast.Tuple(each, ast.Load()))
        for test in last.ifs:
            body = ast.If(test, [body], [])
        return ast.For(last.target, last.iter, [body], [])
    if _called(node) == "map" and len(node.args) == 2:
        return ast.For(ast.Name("__mapped", ast.Store()), node, [ast.Pass()], [])
    return node


def _bound_by(
    target: ast.expr, node: ast.expr, values: _Values
) -> tuple[ast.expr | None, str]:
    """Return the part of a loop's target that gets the batch, and the statement that gives it."""
    args, name = getattr(node, "args", []), _called(node)
    if isinstance(node, ast.NamedExpr) or (args and (name in _PASS_ON - {"enumerate"})):
        return _bound_by(target, args[0] if args else node.value, values)  # type: ignore[attr-defined]
    if args and name in ("enumerate", "zip"):
        places = [n for n, one in enumerate(args) if values.are_loaders(one)]
        if not places:
            places = [n for n, one in enumerate(args) if _called(one) not in _COUNT]
        at = 0 if name == "enumerate" else places[0]
        if not isinstance(target, ast.Tuple) or (name == "zip" and len(places) != 1):
            return None, ""
        return _bound_by(target.elts[1 if name == "enumerate" else at], args[at], values)
    given = f"({ast.unparse(args[0])})(__batch)" if name == "map" and len(args) == 2 else "__batch"
    return target, f"{ast.unparse(target)} = {given}"


class _Gives(ast.NodeTransformer):
    """Puts the batch in the place of each call that gets it."""

    def __init__(self, call: ast.Call) -> None:
        self._asked, self._next = _asked(call), _called(call) == "next"
        #: Whether another iterator is asked too.
        self.others = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _asked(node) == self._asked:
            return ast.Name("__batch", ast.Load())
        self.others |= _called(node) in _ASK
        return self.generic_visit(node)


def _asked(call: ast.Call) -> str:
    """Return what a call asks for a batch; ``next(it)`` and ``next(it, None)`` ask the same."""
    return ast.dump(call.args[0] if _called(call) == "next" and call.args else call)


def _that_asks(
    loop: ast.For | ast.While, call: ast.Call, values: _Values, *, helps: bool, passed: bool
) -> LoopBody | None:
    """Return a loop whose body calls what gets its batch; None if unsure."""
    if not helps and _called(call) not in _ASK:
        return None  # perhaps several batches
    binds, early = "", False
    for node in ast.walk(loop):
        pairs: list[tuple[Any, Any]] = []
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = [*zip(node.targets[0].elts, node.value.elts, strict=False)]
        if isinstance(node, ast.NamedExpr):
            pairs = [(node.target, node.value)]
        for target, value in pairs:
            if value is call:
                heads = isinstance(loop, ast.While) and _holds(loop.test, call)
                early = not heads and _is_used_before(loop, call, _names_in(target))
                binds = f"{ast.unparse(target)} = __batch" * (heads or early)
    sure = not (passed or early) and bool(call.args) and values.passes_on(call.args[0])
    gives, copied = _Gives(call), copy.deepcopy(loop)
    body = [gives.visit(part) for part in copied.body]
    loop = ast.While(ast.Constant(value=True), body, [])
    others = _names_in(copied.target) if isinstance(copied, ast.For) else set[str]()
    return None if gives.others else LoopBody(loop, binds, others, sure=sure)


def _is_used_before(loop: ast.For | ast.While, call: ast.Call, names: set[str]) -> bool:
    """Return whether a pass uses what an earlier one has fetched."""
    nodes = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name)]
    return any(
        isinstance(n.ctx, ast.Load) and n.id in names and _place(n)[0] <= call.lineno for n in nodes
    )


def _source_of(code: CodeType) -> ast.AST:
    """Return the file that holds what runs, unless it was edited since.

    A notebook compiles each statement of a cell by itself.

    Raises:
        LookupError: it was, or there is none.
    """
    name = code.co_filename
    try:
        with _COMPILES:
            tree = ast.parse("".join(linecache.getlines(name)))
            parts: list[Any] = [tree]
            if code.co_name == "<module>":
                parts += [ast.Module([part], []) for part in tree.body]
            made = (compile(part, name, "exec", dont_inherit=True) for part in parts)
            if any(_contains(one, code) for one in made):
                return tree
    except (SyntaxError, ValueError, SystemError):
        pass
    raise LookupError


def _contains(compiled: CodeType, code: CodeType) -> bool:
    """Return whether code is among what was compiled, with the same constants and names."""
    return compiled == code or any(
        _contains(part, code) for part in compiled.co_consts if isinstance(part, CodeType)
    )


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

#: Beginnings of the reasons for which a body from the source counts as not taken.
_NOT_TAKEN = (CANNOT_REPLAY, NO_STEP, NOT_REPEATED, OTHER_STEP)
#: Largest number of functions between a loop and the one that asks for its batch; of batches of
#: which it is known what else their pass bound.
_FUNCTIONS, _PASSES = 3, 64


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
        #: Of the batches; None if there is none, or no torch loader.
        self.loader: Any = None
        #: Names of what the step logs.
        self.logged: dict[str, set[Any]] = {}
        # None for a loop that is not taken, "" where there is none.
        self._bodies: dict[tuple[CodeType, int], LoopBody | None | str] = {}
        self._body: LoopBody | None = None
        # The frame in which the loop runs, by its identity; the functions that it called to get
        # its batch, and those of them that train; whether the step on it has not begun.
        self._runs_in: tuple[int, CodeType, int] | None = None
        self._passed, self._train = list[CodeType](), set[CodeType]()
        self._waits = self._late = False
        self._where = ""
        # What each of the last passes bound before its batch.
        self._others = deque[dict[str, Any]](maxlen=_PASSES)
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
        """Take the body of the loop that fetched a batch: its frame, or one that called that."""
        self._body = self._runs_in = self._held = None
        self._passed, self._where = [], ""
        while self.function is None and frame is not None and len(self._passed) <= _FUNCTIONS:
            code = frame.f_code
            if _is_installed(code) and not all(map(_is_installed, self._passed)):
                return  # no loop of the user's, such as a test runner's
            if not is_generator(code) or code in self._train:
                self._where = self._where or f"{nearby(code.co_filename)}:{frame.f_lineno}"
                body = self._body_in(frame)
                if body != "":
                    self._body, self._waits = body, True  # type: ignore[assignment]
                    self._runs_in = id(frame), code, frame.f_lasti
                    self._where = f"{nearby(code.co_filename)}:{frame.f_lineno}"
                    return
            self._passed.append(code)
            frame = None if frame.f_back is None else users_frame(frame.f_back)

    def _body_in(self, frame: Any) -> LoopBody | None | str:
        key = frame.f_code, frame.f_lasti
        if key not in self._bodies:
            try:
                self._bodies[key] = LoopBody.of(frame, self.loader, self._passed)
            except LookupError:
                self._bodies[key] = ""
        return self._bodies[key]

    def trains(self, *, late: bool) -> None:
        """Look where the first forward pass on a batch runs, and what its loop has bound.

        Args:
            late: whether another batch was fetched before.
        """
        self._late, frame = late, sys._getframe(1)
        while self._waits and frame is not None:
            if (runs := self._runs_in) is not None and runs[:2] == (id(frame), frame.f_code):
                break
            if frame.f_code in self._passed:  # the loop around it is not the one that trains
                self._train.add(frame.f_code)
                self._bodies[self._runs_in[1:]] = self._body = None  # type: ignore[index]
                break
            frame = frame.f_back
        if self._waits and self._body is not None and frame is not None:
            held = frame.f_locals
            self._others.append({n: held[n] for n in self._body.others.intersection(held)})
        self._waits = False

    @property
    def _frame(self) -> Any:
        """The frame in which the loop runs; None if it has ended."""
        frame: Any = sys._getframe(1)
        while frame is not None and (id(frame), frame.f_code) != (self._runs_in or ())[:2]:
            frame = frame.f_back
        return frame

    @property
    def sure(self) -> bool:
        """Whether what is run again surely is the step."""
        surely = self._body is None or (self._body.sure and not self._late)
        return self.function is not None or surely

    def proved(self) -> None:
        """Note that the step, run again, gave the weights that it gave."""
        if self._body is not None:
            self._body.sure = True

    def obstacle(self) -> str:
        """Return why no step of this loop can be run again, or empty."""
        return self._cannot("") if self.function is None and self._body is None else ""

    def doubt(self, reason: str) -> str:
        """Return why a step gave no answers; one from the source counts as not taken."""
        taken = self.function is not None or not reason.startswith(_NOT_TAKEN)
        return reason if taken else self._cannot(f" ({reason})")

    def _cannot(self, why: str) -> str:
        loop = f"the body of the loop at {self._where}" if self._where else "the step"
        return f"{loop} cannot be run again{why}; pass step="

    def roots(self) -> list[object]:
        """Return the objects that a step may change."""
        held: list[object] = [self.module, *self.optimizers]
        if self.function is not None:
            return [*held, self.function]
        frame = self._frame
        return (
            held
            if self._body is None or frame is None
            else [*held, self._bound, *self._body.roots(frame)]
        )

    @property
    def whole(self) -> bool:
        """Whether all statements of the steps that ran again have run, up to the first failure."""
        return self._rest.whole

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
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for place, batch in enumerate(batches, start=1):
                if self.function is not None:
                    self.function(batch)
                elif self._body is not None and (frame := self._frame) is not None:
                    back = len(batches) - place + 1
                    others = self._others[-back] if back <= len(self._others) else {}
                    held = {**(self._held or frame.f_locals), **self._bound, **others}
                    if self._rest.forked and frame.f_code.co_name == "<module>":
                        frame.f_globals.update(held)  # functions that the body calls read them
                    self._bound |= self._body.run(frame, held, batch, self._rest)
                else:
                    raise NotImplementedError("the loop has ended")
