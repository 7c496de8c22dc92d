"""The command `lightning-audit`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from lightning_audit import __version__
from lightning_audit.cli.output import IgnoreBrokenPipe, Refused, own_fault, refused
from lightning_audit.results.audit_report import EXIT_CODES

#: Folders in `cli` of the commands whose modules are in one.
_FOLDERS: Mapping[str, str] = {"audit-training": "trainings.", "status": "trainings."}
#: What each command does. The module of its name has `add_arguments` and `run`. `run` returns the
#: text to print, or an exit code, and raises `Refused` if a file or an argument is wrong.
_COMMANDS: Mapping[str, str] = {
    "check": "show reports; exit code 0 for PASS, 1 for VIOLATION, 2 for INCONCLUSIVE",
    "report": "write reports as HTML pages, with an index for a folder",
    "card": "the privacy card of a training: what standards ask, from its report and its owner",
    "show": "every check and all numbers of a report",
    "diff": "what changed between two reports of one training",
    "bound": "a lower bound on epsilon from an attack's scores, by name",
    "epsilon-star": "Epsilon* of one model from its losses (not a bound)",
    "mcmc": "posterior of epsilon and attack strength from the counts of several attacks",
    "power": "steps and canary readings needed to refute a false claim",
    "plan": "whether a training can be audited, and what that takes, without training",
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
        unreadable report, for scores that cannot be read, or for a selftest that cannot run.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value in ([], [[]]):  # what argparse makes of `--option=--`
            parser.error(f"--{name.replace('_', '-')} needs a value")
    output: Any = IgnoreBrokenPipe(sys.stdout)
    with contextlib.redirect_stdout(output):
        try:
            code = _run(options)
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


def _run(options: argparse.Namespace) -> int:
    """Run a command; return its exit code, or print its text and return that of PASS."""
    answer: int | str = options.run(options)
    if isinstance(answer, int):
        return answer
    print(answer)
    return EXIT_CODES["PASS"]


class _Command(argparse.ArgumentParser):
    """Parser of a command; it declares its arguments on first use, so a gate loads no scipy."""

    command = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Declare the arguments, and parse."""
        folder, name = _FOLDERS.get(self.command, ""), self.command.replace("-", "_")
        module = import_module(f"lightning_audit.cli.{folder}{name}_command")
        module.add_arguments(self)
        self.set_defaults(run=module.run)
        return super().parse_known_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-audit",
        description="Audits of DP-SGD: reports, bounds, power.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Command)
    for name, does in _COMMANDS.items():
        commands.add_parser(name, help=does).command = name
    return parser


if __name__ == "__main__":
    sys.exit(main())
