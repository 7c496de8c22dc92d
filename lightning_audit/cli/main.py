"""The command `lightning-audit`: its subcommands, their numeric options, their output."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from lightning_audit._validate import shown
from lightning_audit._version import __version__
from lightning_audit.files import visible, with_extra
from lightning_audit.results.audit_report import EXIT_CODES
from lightning_audit.results.report_json import plain

# --- Numeric options of the commands.

# Largest 64-bit integer; a larger number is a mistake.
_LARGEST = 2**63 - 1


def add_max_values(command: Command) -> None:
    """Add the option that limits how much is read from a file."""
    from lightning_audit.files import MAX_VALUES  # loads numpy, which a gate does not need

    command.option(
        "[--max-values N]",
        "read at most N numbers from the file; 10^8 take about 3 GB and half a minute "
        "(default: 10^8)",
        positive_int,
        MAX_VALUES,
    )


def positive(text: str) -> float:
    """Parse a number > 0."""
    if not (value := _number(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number > 0")
    return value


def non_negative(text: str) -> float:
    """Parse a number >= 0."""
    if not (value := _number(text)) >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number >= 0")
    return value


def _number(text: str) -> float:
    """Parse a number; NaN, which no condition is true of, if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole(text: str) -> int:
    """Parse a whole number of either sign that fits into 64 bits."""
    with contextlib.suppress(ValueError):
        if abs(value := int(text)) <= _LARGEST:
            return value
    raise argparse.ArgumentTypeError(f"{shown(text)} must be a whole number, below 2^63")


def positive_int(text: str) -> int:
    """Parse a whole number >= 1 that fits into 64 bits."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number >= 1")
    return value


# --- Output of the commands: results, refusals, and closed pipes.

#: Start of the message for an unexpected error.
OWN_FAULT = "a bug in lightning-audit"


class Refused(Exception):
    """A command cannot compute its result; the message gives the reason and what to do."""


@contextlib.contextmanager
def refusing(kind: type[Exception]) -> Iterator[None]:
    """Refuse with the sentence of an error of a kind."""
    try:
        yield
    except kind as error:
        raise Refused(str(error)) from error


def refused(message: object) -> int:
    """Print the reason on standard error, and return the exit code."""
    print(f"lightning-audit: {visible(str(message))}", file=sys.stderr)
    return EXIT_CODES["INCONCLUSIVE"]


def as_json(fields: Mapping[str, Any]) -> str:
    """Return a command's result as JSON; infinities are text, as in reports."""
    return json.dumps(plain(fields), indent=2, allow_nan=False)


def own_fault(error: Exception) -> str:
    """Return the message for an unexpected error: the error and the line that raised it."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    where = f"line {line} of {frame.f_globals.get('__name__')}"
    return f"{OWN_FAULT}: {type(error).__name__}: {error} ({where}); please report it"


class IgnoreBrokenPipe:
    """A stream that drops its output if the pipe is closed, so that `| head` keeps the exit code.

    Characters that the stream's encoding lacks are written escaped.

    Args:
        stream: The stream; everything but writing is delegated to it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, escaping characters that the encoding lacks; drop the text on a closed pipe."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            return self.write(plain)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        """Flush the buffer; drop it on a closed pipe."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        # Python flushes the stream's buffer again at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


# --- The command `lightning-audit`.

#: The module of each command.
_MODULES: Mapping[str, str] = {
    **dict.fromkeys(("check", "show"), "check"),
    **dict.fromkeys(("report", "card"), "pages"),
    **dict.fromkeys(("bound", "epsilon-star", "mcmc", "power"), "estimators"),
    **dict.fromkeys(("plan", "selftest", "audit-training", "status"), "trainings"),
}
#: What each command does. The module of its name has `add_arguments` and `run`. `run` returns the
#: text to print, or an exit code, and raises `Refused` if a file or an argument is wrong.
_COMMANDS: Mapping[str, str] = {
    "plan": "whether a training can be audited, and what that takes, by a few steps",
    "check": "show reports; exit code 0 for PASS, 1 for VIOLATION, 2 for INCONCLUSIVE",
    "report": "write reports as HTML pages, with an index for a folder",
    "card": "the privacy card of a training: what standards ask, from its report and its owner",
    "show": "every check and all numbers of a report",
    "bound": "a lower bound on epsilon from an attack's scores, by name",
    "epsilon-star": "Epsilon* of one model from its losses (not a bound)",
    "mcmc": "posterior of epsilon and attack strength from the counts of several attacks",
    "power": "steps and canary readings needed to refute a false claim",
    "audit-training": "audit a training function by many trainings, as a YAML file says",
    "status": "what an audit over many trainings has done so far, and how long it still takes",
    "selftest": "train every known fault of DP-SGD, and check that the audit names it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command line; None for that of the process.

    Returns:
        Exit code: 0 for a pass, 1 for a violation or a failed selftest, 2 for an inconclusive or
        unreadable report, for scores that cannot be read, or for a selftest that cannot run; 3 if
        the process of ``audit-training`` ended without a result.
    """
    watched = os.environ.pop(_WATCHED, None)
    given = sys.argv[1:]
    own = (
        arguments is None and bool(given) and sys.orig_argv[-len(given) :] == given
    )  # else a program calls this
    if own and watched is None and given[0] == "audit-training":
        return _in_own_process()
    try:
        code = _main(arguments, watched)
    except SystemExit as end:  # argparse has printed help, or a usage
        if watched is None:
            raise
        code = end.code if isinstance(end.code, int) else EXIT_CODES["INCONCLUSIVE"]
    if watched is not None:
        Path(watched.partition(":")[2]).write_text(str(code), encoding="ascii")
    return code


def _main(arguments: Sequence[str] | None, watched: str | None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    options.watcher = None if watched is None else int(watched.partition(":")[0])
    for name, value in vars(options).items():
        if value in ([], [[]]):  # what argparse makes of `--option=--`
            parser.error(f"--{name.replace('_', '-')} needs a value")
    output: Any = IgnoreBrokenPipe(sys.stdout)
    with contextlib.redirect_stdout(output):
        try:
            answer: int | str = options.run(options)
            code = answer if isinstance(answer, int) else EXIT_CODES["PASS"]
            if isinstance(answer, str):
                print(answer)
        except Refused as error:
            code = refused(error)
        except MemoryError:
            code = refused("not enough memory for this input; pass a smaller one")
        except ImportError as error:  # of a package that adds a check: the message names it
            code = refused(str(error))
        except Exception as error:  # a traceback would exit with 1, the code of a violation
            code = refused(own_fault(error))
        output.flush()
    return code


# --- `audit-training` in a process of its own: what is trained there may end it with any code.

#: Variable with the process that watches this one, and the file for this one's exit code.
_WATCHED = "LIGHTNING_AUDIT_WATCHED_BY"
#: Exit code if that process ended without its last line.
_NO_RESULT = 3


def _in_own_process() -> int:
    """Run this process's command line again in another process; return the code that it says.

    A training, or a library that runs it, may end its process with 0 or 1, which are the codes of
    verdicts. Only a code that was written after the report counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "code"
        process = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, _WATCHED: f"{os.getpid()}:{said}"},
            start_new_session=True,  # Ctrl-C of a terminal reaches it once, from here
        )
        for name in {"SIGINT", "SIGTERM", "SIGHUP"} & set(dir(signal)):
            signal.signal(getattr(signal, name), lambda number, _: process.send_signal(number))
        ended = process.wait()
        if said.exists() and (code := said.read_text(encoding="ascii")):
            return int(code)
    how = f"with code {ended}" if ended >= 0 else f"by signal {-ended}"
    refused(
        f"the process of the audit ended {how} before it had a result: a training, or a library "
        "that it uses, has ended it; the same command continues the audit"
    )
    return _NO_RESULT


class Command(argparse.ArgumentParser):
    """Parser of a command; it declares its arguments on first use, so a gate loads no scipy."""

    command = ""

    def declare(self) -> None:
        """Declare the arguments."""
        name = self.command.replace("-", "_")
        module = import_module(f"lightning_audit.cli.{_MODULES[self.command]}")
        getattr(module, f"add_{name}_arguments")(self)
        self.set_defaults(run=getattr(module, f"run_{name}"))

    def option(
        self,
        usage: str,
        text: str,
        kind: Callable[[str], Any] | Collection[str] = str,
        default: Any = None,
    ) -> None:
        """Declare an option whose help says its default.

        Args:
            usage: as the command's usage has it, such as ``"[--members FILE]"``; in brackets if it
                may be left out. Two names of values take two values.
            text: the help; if it says no default, that is appended.
            kind: function of the text that is given; the texts that are allowed; or `bool` for a
                flag.
            default: None if there is none.
        """
        name, *values = usage.strip("[]").split()
        if kind is bool:
            self.add_argument(name, action="store_true", help=text)
            return
        more: dict[str, Any] = {"type": kind} if callable(kind) else {"choices": kind}
        if values:
            more |= {"metavar": values[0]} if len(values) == 1 else {"metavar": tuple(values)}
            more |= {"nargs": len(values)} if len(values) > 1 else {}
        if default is not None and "default" not in text:
            text += f" (default: {format(default, 'g') if isinstance(default, float) else default})"
        required = not usage.startswith("[")
        self.add_argument(name, default=default, required=required, help=text, **more)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Declare the arguments, and parse."""
        self.declare()
        return super().parse_known_args(args, namespace)


class _Completion(argparse.Action):
    """Prints what completes the command line in a shell, and ends."""

    def __call__(self, parser: Any, options: Any, shell: Any, option: str | None = None) -> None:
        """Print it."""
        try:
            shtab = import_module("shtab")
        except ImportError:
            parser.exit(refused(f"shtab is not installed; {with_extra('completion')}"))
        (commands,) = (
            one for one in parser._actions if one.dest == argparse.SUPPRESS and one.choices
        )
        for command in commands.choices.values():
            command.declare()
        print(shtab.complete(parser, shell))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-audit",
        description="Audits of DP-SGD. First: `plan train.py:build` says whether a training can be "
        "audited; train with the PrivacyAudit callback, or attach in a plain loop; `check audit` "
        "is the gate in CI, `report audit` writes the page to read.",
    )
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        action=_Completion,
        help="print what completes this command in a shell",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Command)
    for name, does in _COMMANDS.items():
        commands.add_parser(name, help=does).command = name
    return parser


if __name__ == "__main__":
    # The commands raise the imported module's `Refused`, which is not this one's.
    sys.exit(import_module("lightning_audit.cli.main").main())
