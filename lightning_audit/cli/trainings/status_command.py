"""`lightning-audit status`: what an audit over many trainings has done so far."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from lightning_audit.cli.output import Refused, as_json
from lightning_audit.files.printable import visible
from lightning_audit.many.driver import duration
from lightning_audit.many.store_status import StoreStatus, status_of
from lightning_audit.many.training_store import StoreError
from lightning_audit.record.report_directory import REPORT_NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Print what the store of an audit over many trainings holds, also while the audit runs: "
        "trainings, times, evidence so far. It only reads. Exit with 0, or with 2 if there is no "
        "store or it is damaged; `lightning-audit check` is the gate."
    )
    parser.add_argument("store", help="folder of the trainings, such as audit-many")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> str:
    """Return what to print.

    Raises:
        Refused: if there is no store, or it is damaged.
    """
    folder = Path(options.store)
    try:
        status = status_of(folder)
    except StoreError as error:
        raise Refused(error) from error
    reported = (folder / REPORT_NAME).is_file()
    if options.json:
        return as_json({"store": str(folder), **asdict(status), "reported": reported})
    return "\n".join(map(visible, _lines(status, folder, reported=reported)))


def _lines(status: StoreStatus, folder: Path, *, reported: bool) -> Iterator[str]:
    ended = status.done + status.failed
    of = "" if status.planned is None else f" of {status.planned:,} planned"
    yield (
        f"trainings   {ended:,}{of} have ended: {status.done:,} done, {status.failed:,} failed, "
        f"{status.started_again:,} started again"
    )
    if times := list(_times(status)):
        yield f"time        {', '.join(times)}"
    if (seen := status.evidence) is not None:
        yield f"claim       {seen.claim}"
        yield (
            f"evidence    {seen.errors:,} of {seen.guesses:,} coins guessed wrong, e-value "
            f"10^{seen.log10_e:.1f}; 10^{seen.log10_refuting:.1f} refutes the claim"
        )
    if status.last_error:
        yield f"last error  {status.last_error}"
    yield f"audit       {_next(status, folder, reported=reported)}"


def _times(status: StoreStatus) -> Iterator[str]:
    if status.training_seconds is not None:
        yield f"a training takes {status.training_seconds:.3g} s"
    if status.seconds_between is not None:
        yield f"one ends every {status.seconds_between:.3g} s"
    if status.seconds_left:
        yield f"about {duration(status.seconds_left)} left"


def _next(status: StoreStatus, folder: Path, *, reported: bool) -> str:
    if status.in_use:
        return "running; if it is interrupted, the same command or call continues it"
    if reported:
        return f"ended; `lightning-audit check {folder}` prints its verdict"
    if status.in_use is None:
        return "the same command or call continues it if it does not run"
    return "not running; the same command or call continues it"
