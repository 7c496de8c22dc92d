"""A step of a plain loop, run again: by the user's function, or by the loop's body from its source.

Not every body can be taken: its source must compile to the code that runs, and it must be sure
which value is the batch. What follows the step in the body is run in a fork alone, for it may write
files, and there without what fails, stalls or takes long, such as an evaluation.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import linecache
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from lightning_audit.files import nearby
from lightning_audit.replay.before_step import BatchSource
from lightning_audit.replay.examiner import CANNOT_REPLAY, NO_STEP, NOT_REPEATED

# --- The body of a loop as a function, made from its source.

#: Functions that pass the batches of their first argument on, one by one.
_PASS_ON = {"tqdm", "trange", "track", "progress_bar", "iter", "islice", "auto", "batches"}
_OF_A_STEP = {"step", "zero_grad", "backward"}
#: Seconds after which a statement after the step counts as stalled; seconds, and multiple of the
#: time up to the step, that it may take again in each replay.
_STALLED, _SHORT, _LONG = 1.0, 0.05, 2.0
#: What a function made of a body would do otherwise than the body.
_UNLIKE = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.Global, ast.Nonlocal)


#: Python 3.11 counts the depth of trees over all threads that compile: SystemError.
_COMPILES = threading.Lock()


class LoopBody:
    """One pass of a loop's body, over given batches.

    Args:
        loop: in the user's source.
        kind: how a pass gets its batch: the loop's target is "batch" or "enumerate", or the body
            calls "next".
    """

    def __init__(self, loop: ast.For | ast.While, kind: str) -> None:
        self._loop, self._kind = loop, kind
        target = getattr(loop, "target", None)
        if kind == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[0]
        # The name that counts the passes, or empty.
        self._counter = target.id if kind != "batch" and isinstance(target, ast.Name) else ""
        self._names = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name)}
        self._functions: dict[tuple[str, ...], Any] = {}

    @classmethod
    def of(cls, frame: Any) -> LoopBody | None:
        """Return the innermost loop that a frame is in, between two passes; None if unsure."""
        loop, inside = _loop_around(frame.f_code, frame.f_lineno)
        if loop is None or any(
            isinstance(node, _UNLIKE) for part in loop.body for node in ast.walk(part)
        ):
            return None
        kind = _calls_next(loop) if inside else _kind_of(loop.iter)  # type: ignore[union-attr]
        return cls(loop, kind) if kind else None

    def roots(self, frame: Any) -> list[object]:
        """Return the objects that the body uses and may change."""
        held = [frame.f_locals[n] for n in sorted(self._names & frame.f_locals.keys())]
        return [one for one in held if not hasattr(one, "__next__")]

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
        count = frame.f_locals.get(self._counter)
        number = count - back if isinstance(count, int) else 0
        names = tuple(sorted(n for n in held if n.isidentifier()))
        if names not in self._functions:
            self._functions[names] = self._made(names, frame)
        rest.start()
        bound: dict[str, Any] = {}
        self._functions[names](*(held[n] for n in names), batch, number, rest, bound.update)
        return {
            name: value
            for name, value in bound.items()
            if not name.startswith("__") and name != "next" and held.get(name, bound) is not value
        }

    def _made(self, names: tuple[str, ...], frame: Any) -> Any:
        """Return a function of these names, the batch, the number of the pass, and what it calls.

        The calls: of a `Rest`, and of what is given the names at the end.
        """
        target, value, head = "_", "(None,)", ""
        if self._kind == "next":
            head = "    next = lambda *_: __batch\n"
            if self._counter:
                target, value = self._counter, "(__number,)"
        else:
            target = ast.unparse(self._loop.target)  # type: ignore[union-attr]
            value = "(__batch,)" if self._kind == "batch" else "((__number, __batch),)"
        body, rest = _up_to_the_step(self._loop.body)
        parts = "\n".join(map(ast.unparse, body))
        for number, part in enumerate(rest):
            after = textwrap.indent(ast.unparse(part), " " * 8)
            parts += f"\nif __rest.begins({number}):\n    try:\n{after}\n"
            parts += "    except BaseException as __error:\n        __rest.fails(__error)\n"
            parts += "    finally:\n        __rest.ends()"
        listed = ", ".join((*names, "__batch", "__number", "__rest", "__bind"))
        text = f"def __body({listed}):\n{head}    try:\n     for {target} in {value}:\n"
        made: dict[str, Any] = {}
        source = text + textwrap.indent(parts, " " * 8) + "\n    finally:\n     __bind(locals())\n"
        exec(compile(source, frame.f_code.co_filename, "exec"), frame.f_globals, made)
        return made["__body"]


def _loop_around(code: CodeType, line: int) -> tuple[ast.For | ast.While | None, bool]:
    """Return the innermost loop around a line of running code, and whether its body has the line.

    None without the source.
    """
    try:
        lines, first = linecache.getlines(code.co_filename), 1
        if code.co_name != "<module>":  # of which only a first block would be found
            lines, first = inspect.getsourcelines(code)
        with _COMPILES:
            tree = ast.parse(textwrap.dedent("".join(lines)))
            if not _is_source_of(code):
                return None, False
    except (OSError, TypeError, SyntaxError, ValueError, SystemError):
        return None, False
    at = line - first + 1
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While) and node.lineno <= at <= (node.end_lineno or 0)
    ]
    loop = max(loops, key=lambda node: node.lineno, default=None)
    return loop, not isinstance(loop, ast.For) or at > (loop.iter.end_lineno or 0)


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
    same = (compiled.co_qualname, compiled.co_code) == (code.co_qualname, code.co_code)
    if same and compiled.co_firstlineno == code.co_firstlineno:
        return True
    return any(_contains(part, code) for part in compiled.co_consts if isinstance(part, CodeType))


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


def _kind_of(node: ast.expr) -> str:
    """Return how what a loop iterates passes a batch on: "batch", "enumerate", or empty."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return "batch"
    if isinstance(node, ast.NamedExpr):
        return _kind_of(node.value)
    if isinstance(node, ast.Call) and node.args:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name == "enumerate":
            return "enumerate" if _kind_of(node.args[0]) == "batch" else ""
        if name in _PASS_ON or name.endswith("tqdm"):
            return _kind_of(node.args[0])
    return ""


def _calls_next(loop: ast.For | ast.While) -> str:
    """Return "next" if the body asks one iterator for its batch, before it uses it; else empty."""
    asked: set[str] = set()
    used: set[str] = set()
    for part in loop.body:
        nodes = list(ast.walk(part))
        calls = [
            ast.unparse(node.args[0])
            for node in nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "next"
            and node.args
        ]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        used |= {n.id for n in names if isinstance(n.ctx, ast.Load)}
        if calls:
            asked |= {*calls}
            if (used - asked) & {n.id for n in names if isinstance(n.ctx, ast.Store)}:
                return ""  # what it uses was fetched in an earlier pass
    return "next" if len(asked) == 1 else ""


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
_NOT_TAKEN = (CANNOT_REPLAY, NO_STEP, NOT_REPEATED)


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
        self._bodies: dict[tuple[CodeType, int], LoopBody | None] = {}
        self._body: LoopBody | None = None
        # The frame in which the batch was fetched, by its identity, and where.
        self._fetched_in: tuple[int, CodeType] | None = None
        self._where = ""
        self._frame: Any = None
        # Runs what follows a step; names that the passes of the present replay bound, which are
        # restored with the training.
        self._rest, self._bound = Rest(), dict[str, Any]()
        # The names of the frame before the step; None unless it will be run again.
        self._held: dict[str, Any] | None = None

    def begin(self) -> bool:
        """Keep the names of the frame in which the step begins; return whether it is known."""
        self._rest.whole = True
        self._held = None if self._frame is None else dict(self._frame.f_locals)
        return self._held is not None or self.function is not None

    def fetched(self, frame: Any) -> None:
        """Take the body of the loop that fetched a batch."""
        self._body = self._fetched_in = self._held = None
        if self.function is not None or frame is None:
            return
        code, line = frame.f_code, frame.f_lineno
        if (code, line) not in self._bodies:
            self._bodies[code, line] = LoopBody.of(frame)
        self._body, self._fetched_in = self._bodies[code, line], (id(frame), code)
        self._where = f"{nearby(code.co_filename)}:{line}"

    @contextlib.contextmanager
    def between(self, frame: Any) -> Iterator[None]:
        """Let steps be run again, in the frame that asks for the next batch."""
        same = frame is not None and self._fetched_in == (id(frame), frame.f_code)
        self._frame = frame if same else None
        try:
            yield
        finally:
            self._frame = None

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
        return (
            held
            if self._body is None or self._frame is None
            else [
                *held,
                self._bound,
                *self._body.roots(self._frame),
            ]
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
                elif self._body is not None and self._frame is not None:
                    frame = self._frame
                    held = {**(self._held or frame.f_locals), **self._bound}
                    if self._rest.forked and frame.f_code.co_name == "<module>":
                        frame.f_globals.update(held)  # functions that the body calls read them
                    back = len(batches) - place
                    self._bound |= self._body.run(frame, held, batch, self._rest, back)
                else:
                    raise NotImplementedError("the loop has ended")
