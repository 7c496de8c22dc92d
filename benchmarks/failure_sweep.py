"""An exception at the first call of each function of the package in audited trainings.

python benchmarks/failure_sweep.py [--jobs N] [--one-in N] [--seed N] [--only WORDS ...]

Each exception is raised in a training of 16 steps, in a fork of the process that trains. No
training may end because of it, or leave other weights, other generator states or hooks. The report
must name the function, and must not be a PASS. Two kinds of functions are excepted. For those that
only display a report, or read a setting that nothing depends on, a note is enough, and for its page
and its loggers a warning in the log. Those
that try a way of doing something may be replaced by another way. The exit code is 1 if a training
is not as it must be.

Functions that only code outside of the package calls, such as torch, are listed and not tried: an
exception at their first call is raised before the audit's own code has begun. Functions of the
user's own calls, such as `PrivacyAudit(...)`, are tried only if `fit` calls them, too.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import importlib
import importlib.util
import inspect
import json
import logging
import multiprocessing
import os
import pickle
import pkgutil
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from pytorch_lightning.loggers import Logger

import lightning_audit
from lightning_audit import AuditReport, PrivacyAudit, Rounds, attach
from lightning_audit.canaries import Mislabeled
from lightning_audit.record import report_directory
from lightning_audit.replay import examiner
from lightning_audit.verdict.judge import Resolution

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "failure_sweep.json"
sys.path.append(str(ROOT / "tests" / "support"))

from hand_written_support import CLAIM, HandWritten, OneByOne  # noqa: E402
from injected_faults import (  # noqa: E402
    Audited,
    Ghost,
    Injected,
    Kept,
    Trained,
    changes,
    split,
    train,
)
from trained import Forwarding  # noqa: E402
from training_support import PrivateModule  # noqa: E402

PACKAGE = f"{Path(lightning_audit.__file__).parent}{os.sep}"
STEPS = 16
#: Folders with code that is like a user's.
_USERS = (f"{ROOT / 'tests'}{os.sep}", f"{PACKAGE}testing{os.sep}")
#: Seconds after which a training counts as ended.
PATIENCE = 120.0
#: Functions that run the user's code, by name: what it calls is not the audit's own call.
_RUN_THE_USERS = (
    *("around.<locals>.called", "_watched.<locals>.watched"),
    *("_iterates.<locals>.iterate", "Batches.__next__"),
)
#: Functions that call the code that displays a report, and those of them for which a warning in the
#: log is enough: the command writes the page again, a later report has all details, and the report
#: contains what a logger does not get.
_LOGGED = {"filled", "ReportFiles.write_page", "_spare", "Audit._put_away", "Rounds._keep"}
_DISPLAY = {"view", "RunLints.read", *_LOGGED}
#: Function that the interpreter calls in each fork, whose exceptions it prints: not tried.
_IN_EACH_FORK = "_forget_all"
#: Function that examines a step if a fork cannot, and one that tries whether rows can be laid out
#: before a backward pass; if not, they are copied.
_INSTEAD_OF_FORK, _TRIES_A_WAY = "_here", "opacus_adds"
#: Folder that a fork may write to while it replays a step.
_SHARED = "/dev/shm"
#: Functions that the interpreter calls for a comprehension, in some of its versions.
_RESUME = dis.opmap["RESUME"]
_PARTS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>")


def _audit(**options: Any) -> PrivacyAudit:
    """Return an audit that passes within 16 steps."""
    return PrivacyAudit(
        seed=0,
        on_violation="warn",
        bounds="all",
        resolution=Resolution(noise=0.5, sensitivity=3.0),
        **{"claimed_epsilon": 1000.0, "examinations": 1, **options},
    )


class _Called(PrivateModule):
    """Calls the net in `forward`, as canaries that are samples need."""

    forward = Forwarding.forward


#: Trainings, each of which tries the functions that those before it do not call.
TRAININGS: dict[str, Audited] = {
    "examined in a fork": (PrivateModule, _audit),
    "examined in the training's process": (PrivateModule, _audit),
    "ghost clipping": (Ghost, _audit),
    "split batches": (split, _audit),
    "input canary": (_Called, lambda: _audit(canaries=[Mislabeled(amplitude=100.0)])),
    "hand-written": (HandWritten, lambda: _audit(claim=CLAIM)),
    "record by record": (OneByOne, lambda: _audit(claim=CLAIM)),
    "resumed": (Kept, _audit),
}
# There is a benchmark of this name, too.
_FOUND = importlib.util.spec_from_file_location(
    "loops_of_tests", ROOT / "tests" / "support" / "plain_loops.py"
)
assert _FOUND is not None
assert _FOUND.loader is not None
plain_loops: Any = importlib.util.module_from_spec(_FOUND)
sys.modules[_FOUND.name] = plain_loops  # for its dataclasses
_FOUND.loader.exec_module(plain_loops)
#: Plain loops, by the number of rounds; those of one are audited by `attach`.
LOOPS = {"plain loop": 1, "two rounds": 2}


@dataclass(frozen=True, order=True)
class Function:
    """A function of the package that a training calls.

    Args:
        module: its module, without the name of the package.
        name: its qualified name, with the line of a lambda.
        forked: whether its first call is in a fork of the training's process.
    """

    module: str
    name: str
    forked: bool = False

    def __str__(self) -> str:
        return f"{self.module}.{self.name}{' (in the fork)' * self.forked}"

    @property
    def place(self) -> str:
        """The function as a report names it."""
        last = self.name.rpartition(".")[2]
        return f"{self.module}.{last.partition(' ')[0]}"


@cache
def function_of(code: CodeType) -> Function | None:
    """Return the function of the package that has this code; None for any other code."""
    path = code.co_filename
    if not path.startswith(PACKAGE) or code.co_name in _PARTS:
        return None
    module = path.removeprefix(PACKAGE).removesuffix(".py").replace(os.sep, ".")
    module = module.removesuffix(".__init__")
    if module.startswith("testing."):  # trainings like a user's
        return None
    line = f" of line {code.co_firstlineno}" if code.co_name == "<lambda>" else ""
    return Function(module, code.co_qualname + line)


def is_own_call(frame: FrameType) -> bool:
    """Return whether code of the audit calls a function, directly or through a library."""
    back, direct = frame.f_back, True
    if back is not None and back.f_code.co_filename.startswith(_USERS):
        return False
    while back is not None:
        caller = function_of(back.f_code)
        if caller is not None:
            through = caller.name in _RUN_THE_USERS
            return not through or (direct and frame.f_code.co_name not in ("called", "entered"))
        back, direct = back.f_back, False
    return False


def begins(frame: FrameType) -> bool:
    """Return whether a call begins a function: not one that throws a generator away."""
    code = frame.f_code
    return not code.co_flags & inspect.CO_GENERATOR or code.co_code[frame.f_lasti] == _RESUME


class FirstCalls:
    """Record of the functions that a training calls, and the exception at the first call of one.

    Args:
        target: the function that raises; None to record alone.
        branch: called with each function at its first call in the training's process; returns the
            function that raises from now on, None for none.
    """

    def __init__(
        self,
        target: Function | None = None,
        branch: Callable[[Function], Function | None] = lambda _: None,
    ) -> None:
        self.target, self._branch = target, branch
        #: Functions that code of the audit called, in order, and those that only others called.
        self.own: dict[Function, None] = {}
        self.others: dict[Function, None] = {}
        #: Whether the exception was raised in this process.
        self.raised = False
        #: Functions of the package below the exception, outermost first.
        self.below: list[str] = []
        self._seen: set[CodeType] = set()
        self._process = os.getpid()

    def __enter__(self) -> FirstCalls:
        # A fork of the process, in which steps are replayed, starts without a trace function.
        examiner.sys = SimpleNamespace(**{**vars(sys), "settrace": lambda _: None})
        self._forks = _file_for_forks()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        examiner.sys = sys
        for line in Path(self._forks).read_text().splitlines():
            function, _, below = line.partition(": ")
            self.own[Function(*function.split(" ", 1), forked=True)] = None
            if below:
                self.raised, self.below = True, below.split(", ")
        os.unlink(self._forks)

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        function = function_of(code)
        if function is None or not begins(frame):
            return
        if _IN_EACH_FORK in (code.co_name, frame.f_back.f_code.co_name):
            return
        if not is_own_call(frame):
            self.others[function] = None
            return
        self._seen.add(code)
        forked = os.getpid() != self._process
        if forked and self.target is None:
            _append(self._forks, f"{function.module} {function.name}\n")
        elif not forked:
            self.own[function] = None
            if self.target is None:
                self.target = self._branch(function)
                if self.target is not None:
                    self._process, self._forks = os.getpid(), _file_for_forks()
        if self.target == replace(function, forked=forked):
            self.raised, self.below = True, _below(frame)
            if forked:
                below = ", ".join(self.below)
                _append(self._forks, f"{function.module} {function.name}: {below}\n")
            raise Injected()


# Code of the audit that asks whose an exception is takes that of this frame for the user's.
FirstCalls._trace.__code__ = FirstCalls._trace.__code__.replace(
    co_filename="site-packages/failure_sweep.py"
)


def _file_for_forks() -> str:
    handle, path = tempfile.mkstemp(dir=_SHARED if Path(_SHARED).is_dir() else None)
    os.close(handle)
    return path


def _append(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def _below(frame: FrameType) -> list[str]:
    """Return the names of the package's functions that have called a frame, outermost first."""
    names: list[str] = []
    back = frame.f_back
    while back is not None:
        function = function_of(back.f_code)
        names += [function.name] if function is not None else []
        back = back.f_back
    return names[::-1]


# ------------------------------------------------------------------ one training


class Pictures(Logger):
    """A logger that takes pictures, and keeps nothing."""

    name, version = "pictures", 0

    @property
    def experiment(self) -> Pictures:
        """The object that takes pictures."""
        return self

    def add_image(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def log_metrics(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


class _Log(logging.Handler):
    """Warnings and errors of the audit."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.lines.append(record.getMessage())


@dataclass
class Outcome:
    """What became of a training in which a function raised.

    Args:
        verdict: outcome of the report; empty without one.
        named: whether the report names the function.
        logged: whether a warning or an error in the log names it, or the exception.
        below: functions of the package below the exception, outermost first.
        instead: whether the training used another way to do the same.
        wrong: what is not as it must be.
    """

    verdict: str = ""
    named: bool = False
    logged: bool = False
    below: list[str] = field(default_factory=list)
    instead: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What the function is for: the "audit", or what no verdict depends on.

        This is to "display" a report or read a setting, and to try a way instead of which there is
        "another".
        """
        if self.instead and not self.named:
            return "another"
        return "display" if _DISPLAY.intersection(self.below) else "audit"

    @property
    def ended(self) -> bool:
        """Whether the training ended because of the exception."""
        return any(sentence.startswith("the training ended") for sentence in self.wrong)

    def judge(self) -> None:
        """Add what is wrong with the report and the log."""
        if self.verdict not in ("PASS", "INCONCLUSIVE"):
            self.wrong.append(f"the verdict is {self.verdict or 'missing'}")
        if self.verdict == "PASS" and self.kind == "audit":
            self.wrong.append("PASS")
        logged = self.logged and _LOGGED.intersection(self.below)
        if not self.named and not logged and not self.instead:
            self.wrong.append("the report does not name the failure")


def trained(name: str, calls: FirstCalls | None, folder: Path) -> Trained:
    """Train 16 steps; under the audit if ``calls`` are given."""
    if name in LOOPS:
        return looped(LOOPS[name], calls, folder)
    if name == "examined in the training's process":
        examiner.may_fork = lambda _: False
    steps = STEPS + 32 * (name == "resumed")  # it resumes after an epoch of 32 steps
    more = {"max_steps": steps, "logger": Pictures(), "enable_checkpointing": True}
    return train(folder, name, calls, TRAININGS, **more)


def looped(rounds: int, calls: FirstCalls | None, folder: Path) -> Trained:
    """Train a plain loop of 16 steps, in equal rounds; under the audit if ``calls`` are given."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    training, steps = plain_loops.made(), 0
    given: dict[str, Any] = {"claimed_epsilon": 1000.0, "seed": 0, "on_violation": "warn"}
    several = Rounds(folder / "audit", **given)
    with contextlib.nullcontext() if calls is None else calls:
        for _ in range(rounds):
            audit: Any = contextlib.nullcontext()
            if calls is not None and rounds > 1:
                audit = several.round(*training.training)
            elif calls is not None:
                audit = attach(*training.training, report_dir=folder / "audit", **given)
            with audit:
                for batch, _ in zip(training.loader, range(STEPS // rounds), strict=False):
                    training.optimizer.zero_grad()
                    plain_loops.loss_of(training, batch).backward()
                    training.optimizer.step()
                    steps += 1
    flat = torch.cat([p.detach().flatten().double() for p in training.model.parameters()])
    path = folder / "audit" / "report.json"
    report = AuditReport.load(path) if path.exists() else None
    states = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    module: Any = SimpleNamespace(
        optimizers=lambda: training.optimizer, parameters=training.model.parameters
    )
    return Trained(flat, states, module, None, report, steps)


def outcome_of(name: str, calls: FirstCalls, plain: Trained, folder: Path) -> Outcome:
    """Train with an exception at the first call of a function.

    Args:
        name: of the training.
        calls: with the function.
        plain: the unaudited training.
        folder: for the training's files.
    """
    log = _Log()
    logging.getLogger("lightning_audit").addHandler(log)
    try:
        audited = trained(name, calls, folder)
    except BaseException as error:
        why = f"the training ended: {type(error).__name__}: {error}"
        return Outcome(below=calls.below, wrong=[why])
    finally:
        logging.getLogger("lightning_audit").removeHandler(log)
    if calls.target is None or not calls.raised:
        return Outcome(wrong=["the function was not called"])
    report, place = audited.report, calls.target.place
    said = () if report is None else (*report.pass_blockers, *report.notes)
    found = Outcome(
        verdict="" if report is None else report.verdict.outcome,
        named=any(place in item for item in said),
        logged=any(place in line or Injected.__name__ in line for line in log.lines),
        below=calls.below,
        instead=_TRIES_A_WAY in calls.below
        or (calls.target.forked and any(one.name == _INSTEAD_OF_FORK for one in calls.own)),
        wrong=changes(plain, audited),
    )
    if audited.steps != plain.steps:
        found.wrong.append(f"{audited.steps} steps of {plain.steps}")
    found.judge()
    return found


def tried(name: str, target: Function, plain: Trained) -> Outcome:
    """Train with an exception at the first call of ``target``, and look at the end."""
    with tempfile.TemporaryDirectory() as folder:
        return outcome_of(name, FirstCalls(target), plain, Path(folder))


def unaudited(name: str) -> Trained:
    """Train without an audit."""
    with tempfile.TemporaryDirectory() as folder:
        return replace(trained(name, None, Path(folder)), module=None)


# ------------------------------------------------------------------ branches of one training


class Files:
    """The files of a folder, which a fork of this process changes and `put_back` restores.

    A fork shares files with this process: their contents, and the positions of open ones. Links to
    all files keep them, also those that the fork removes.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._kept = folder, tempfile.mkdtemp(dir=folder.parent)
        self._files: dict[str, tuple[str, bytes]] = {}
        self._folders = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_dir()]
        for number, path in enumerate(p for p in folder.rglob("*") if p.is_file()):
            link = os.path.join(self._kept, str(number))
            os.link(path, link)
            self._files[str(path.relative_to(folder))] = (link, path.read_bytes())
        self._places = dict(self._open_files())

    def _open_files(self) -> Iterator[tuple[int, int]]:
        """Yield the descriptors of this process's open files below the folder, with positions."""
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith(str(self._folder)):
                    yield number, os.lseek(number, 0, os.SEEK_CUR)

    def put_back(self) -> None:
        """Restore the files and positions."""
        for path in self._folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in self._folders:
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        for name, (link, content) in self._files.items():
            if Path(link).read_bytes() != content:
                Path(link).write_bytes(content)
            os.rename(link, self._folder / name)
        for number, place in self._places.items():
            os.lseek(number, place, os.SEEK_SET)
        shutil.rmtree(self._kept)


class Branches:
    """Forks of one training, each of which raises at the first call of a function and trains on.

    Args:
        wanted: functions to try.
        folder: of the training's files.
    """

    def __init__(self, wanted: Collection[Function], folder: Path) -> None:
        self._wanted, self._folder = wanted, folder
        #: Outcome of each function.
        self.outcomes: dict[Function, Outcome] = {}
        #: Where a fork sends its outcome; None in the training itself.
        self.sender: Connection | None = None

    def branch(self, function: Function) -> Function | None:
        """Fork at the first call of a function; return the function that raises in the fork."""
        targets = [function] if function in self._wanted else []
        if function.name == "in_a_fork":  # here begins the fork that replays a step
            targets += [one for one in self._wanted if one.forked]
        for target in targets:
            if self._fork(target):
                return target
        return None

    def _fork(self, target: Function) -> bool:
        files, held, state = Files(self._folder), set(report_directory._held), random.getstate()
        receiver, sender = multiprocessing.Pipe(duplex=False)
        report_directory._held.clear()  # the fork keeps the directory, as the training would
        child = os.fork()
        report_directory._held.update(held)
        if child == 0:
            random.setstate(state)  # Python seeds it in every fork
            self.sender = sender
            return True
        sender.close()
        self.outcomes[target] = _received(receiver, child)
        files.put_back()
        return False


def _received(receiver: Connection, child: int) -> Any:
    """Return what a fork sends, as an outcome if it sends nothing in time, and end the fork."""
    result: Any = Outcome(wrong=[f"the training ended: not within {PATIENCE:.0f} s"])
    if receiver.poll(PATIENCE):
        try:
            result = pickle.loads(receiver.recv_bytes())
        except EOFError:
            result = Outcome(wrong=["the training ended: its process ended"])
    receiver.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return result


def branched(name: str, wanted: Collection[Function], plain: Trained) -> dict[Function, Outcome]:
    """Return the outcome of each of the functions, from forks of one training."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "training"
        files.mkdir()
        branches = Branches(frozenset(wanted), files)
        try:
            outcome = outcome_of(name, FirstCalls(branch=branches.branch), plain, files)
        except BaseException as error:
            if branches.sender is None:
                raise
            outcome = Outcome(wrong=[f"the outcome cannot be read: {error!r}"])
        if branches.sender is not None:
            branches.sender.send_bytes(pickle.dumps(outcome))
            os._exit(0)
        return branches.outcomes


# ------------------------------------------------------------------ many trainings


def in_forks(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of functions, all of which run at once in forks of this process."""
    context = multiprocessing.get_context("fork")
    running = []
    for work in works:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_result, args=(work, sender))
        process.start()
        sender.close()
        running.append((process, receiver))
    results = []
    for process, receiver in running:
        result = pickle.loads(receiver.recv_bytes())
        process.join()
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results


def _send_result(work: Callable[[], Any], sender: Connection) -> None:
    """Send what a function returns, or the exception that it raises, and print nothing."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        result = work()
    except BaseException as error:
        result = RuntimeError(f"{type(error).__name__}: {error}")
    sender.send_bytes(pickle.dumps(result))
    os._exit(0)


def _calls_of(name: str) -> tuple[list[Function], list[Function], str]:
    """Return the functions that a training calls, those that only others call, and its verdict."""
    calls = FirstCalls()
    with tempfile.TemporaryDirectory() as folder:
        report = trained(name, calls, Path(folder)).report
    outside = [function for function in calls.others if function not in calls.own]
    return list(calls.own), outside, "" if report is None else report.verdict.outcome


@dataclass
class Swept:
    """The functions of one training.

    Args:
        training: its name.
        verdict: its outcome without an exception.
        calls: number of functions that it calls.
        outside: functions that only code outside of the package calls.
        tried: outcome of each function that was tried, none of an earlier training.
    """

    training: str
    verdict: str
    calls: int
    outside: list[Function]
    tried: dict[Function, Outcome] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[Function, list[str]]:
        """What is wrong, by function."""
        return {function: one.wrong for function, one in self.tried.items() if one.wrong}


def sweep(
    names: Sequence[str] = (*TRAININGS, *LOOPS),
    *,
    jobs: int = 1,
    one_in: int = 1,
    seed: int = 0,
    only: Sequence[str] = (),
) -> Iterator[Swept]:
    """Try the functions of each training that no earlier one called.

    What seems wrong in a fork of a training is tried again in a training of its own, whose outcome
    holds.

    Args:
        names: of the trainings.
        jobs: number of trainings at a time.
        one_in: one function in this number is drawn.
        seed: of the draw.
        only: words, one of which the full name of a function contains; all functions if empty.
    """
    prepare()
    known: set[Function] = set()
    for name in names:
        ((own, outside, verdict),) = in_forks([partial(_calls_of, name)])
        (plain,) = in_forks([partial(unaudited, name)])
        new = [function for function in own if function not in known]
        known.update(own)
        drawn = set(random.Random(seed).sample(sorted(new), -(-len(new) // one_in)))
        chosen = [function for function in new if function in drawn and _has(function, only)]
        parts = [chosen[start::jobs] for start in range(jobs)]
        found: dict[Function, Outcome] = {}
        for part in in_forks([partial(branched, name, part, plain) for part in parts if part]):
            found |= part
        swept = Swept(name, verdict, len(own), outside)
        for function in chosen:
            outcome = found.get(function) or Outcome(wrong=["the function was not called"])
            if outcome.wrong:
                (outcome,) = in_forks([partial(tried, name, function, plain)])
            swept.tried[function] = outcome
        yield swept


def _has(function: Function, words: Sequence[str]) -> bool:
    return not words or any(word in str(function) for word in words)


def prepare() -> None:
    """Load every module that a training may load, so that each fork starts with all of them."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a fork of a process that uses a GPU cannot train
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.CRITICAL)
    for module in pkgutil.walk_packages(lightning_audit.__path__, "lightning_audit."):
        if not module.name.endswith(("__main__", ".clusters", ".transformers")):
            importlib.import_module(module.name)
    importlib.import_module("matplotlib.backends.backend_agg")


def table(sweeps: Sequence[Swept]) -> str:
    """Return what became of the trainings, in a table, and what was wrong, by function."""
    rows = [("training", "functions", "tried", "no pass", "display", "other way", "ended", "wrong")]
    for swept in sweeps:
        fine = Counter(one.kind for one in swept.tried.values() if not one.wrong)
        ended = sum(one.ended for one in swept.tried.values())
        cells = (fine["audit"], fine["display"], fine["another"], ended, len(swept.wrong) - ended)
        rows.append((swept.training, *map(str, (swept.calls, len(swept.tried), *cells))))
    lines = [f"{row[0]:<36}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows]
    for swept in sweeps:
        outside = ", ".join(map(str, swept.outside))
        lines.append(f"{swept.training}: {swept.verdict}; called from outside only: {outside}")
        for function, wrong in swept.wrong.items():
            lines.append(f"  {function}: {'; '.join(wrong)}")
    return "\n".join(lines)


def summary(sweeps: Sequence[Swept]) -> str:
    """Return the counts in one line."""
    outcomes = [one for swept in sweeps for one in swept.tried.values()]
    ended = sum(one.ended for one in outcomes)
    wrong = sum(bool(one.wrong) for one in outcomes)
    return (
        f"{len(outcomes)} functions tried, {ended} trainings ended, {wrong - ended} otherwise wrong"
    )


def _rows(swept: Swept) -> dict[str, Any]:
    tried = [asdict(function) | asdict(one) for function, one in swept.tried.items()]
    outside = [asdict(function) for function in swept.outside]
    return {**vars(swept), "outside": outside, "tried": tried}


def main() -> int:
    """Sweep, print the table, write the results; return 1 if a training is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--one-in", type=int, default=1, help="draw one function in this number")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", nargs="+", default=(), help="words in the functions' names")
    every = (*TRAININGS, *LOOPS)
    parser.add_argument("--training", nargs="+", choices=every, default=every)
    options = parser.parse_args()
    sweeps: list[Swept] = []
    chosen = {"jobs": options.jobs, "one_in": options.one_in, "seed": options.seed}
    for swept in sweep(options.training, only=options.only, **chosen):
        sweeps.append(swept)
        print(table([swept]), flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps([_rows(swept) for swept in sweeps], indent=1) + "\n")
    print(table(sweeps), summary(sweeps), sep="\n")
    return int(any(swept.wrong for swept in sweeps))


if __name__ == "__main__":
    sys.exit(main())
