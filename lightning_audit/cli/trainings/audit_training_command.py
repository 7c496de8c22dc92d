"""`lightning-audit audit-training`: an audit over many trainings, as a YAML file says."""

from __future__ import annotations

import argparse
from typing import Any

from lightning_audit.cli.output import Refused, refused
from lightning_audit.cli.trainings.training_config import arguments_of
from lightning_audit.results.audit_report import EXIT_CODES

#: Exit code of a command that SIGINT ends.
_INTERRUPTED = 130


class _Changes(argparse.Action):
    """Stores what follows the file as a tuple: an empty list is an option without a value."""

    def __call__(self, parser: Any, options: Any, values: Any, option: str | None = None) -> None:
        """Store the options."""
        setattr(options, self.dest, tuple(values))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Audit a training function by many trainings with and without a canary. Exit with 0 for "
        "PASS, 1 for VIOLATION, 2 for INCONCLUSIVE or an audit that cannot run. The same command "
        "again continues its store."
    )
    parser.epilog = (
        "`lightning-audit audit-training config.yaml --help` lists all keys and options, and "
        "`--print_config` prints them with their values."
    )
    parser.add_argument("config", metavar="config.yaml", help="train, dataset, claim, ...")
    parser.add_argument(
        "changes",
        metavar="...",
        nargs=argparse.REMAINDER,
        action=_Changes,
        help="options that replace values of the file, such as `--trainings 2000`",
    )


def run(options: argparse.Namespace) -> int:
    """Run the audit, which prints its report; the exit code is that of its verdict.

    Raises:
        Refused: if the file or the store cannot be used, or the trainings give no result.
    """
    try:
        arguments = arguments_of(options.config, options.changes)
        # After the file is read: these load torch.
        from lightning_audit.many import EngineError, StoreError, TrainingError
        from lightning_audit.many.audit_trainings import audit_training

        try:
            audit = audit_training(**arguments)
        except (EngineError, StoreError, TrainingError, TypeError, ValueError) as error:
            raise Refused(error) from error
    except KeyboardInterrupt:
        refused("interrupted; the same command continues the audit")
        return _INTERRUPTED
    return EXIT_CODES[audit.verdict.outcome]
