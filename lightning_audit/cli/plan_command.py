"""`lightning-audit plan`: whether a training can be audited, and what that takes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_audit.cli.output import Refused, as_json
from lightning_audit.results.audit_report import EXIT_CODES

if TYPE_CHECKING:
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit

_GIVES = "it must return (trainer, model) or (trainer, model, datamodule), unfitted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Train a copy of a training for a few steps, and print whether it can be audited, by which "
        "method, which examinations would be skipped, how many steps a PASS takes, and what the "
        "audit costs. Exits with 0 if it can be audited, with 1 if it is refused or something is "
        "already wrong with it, with 2 if no result can be computed. For a LightningCLI, "
        "`fit --trainer.fast_dev_run=true` prints the same."
    )
    parser.add_argument(
        "training",
        metavar="FILE.py:FUNCTION",
        help="a function without arguments that returns (trainer, model) or (trainer, model, "
        "datamodule); a module's name may replace the file",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Print a preview of the audit.

    Raises:
        Refused: If there is no such function, or it returns no training.
    """
    training = _function(options.training)
    try:
        given = training()
    except (Exception, SystemExit) as error:
        raise Refused(f"{options.training} raised {type(error).__name__}: {error}") from error
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise Refused(f"{options.training} returned {type(given).__name__}; {_GIVES}")
    trainer, model, *rest = given
    wrong_data = rest and not hasattr(rest[0], "prepare_data")
    if not hasattr(trainer, "fit") or not hasattr(model, "configure_optimizers") or wrong_data:
        kinds = ", ".join(type(one).__name__ for one in given)
        raise Refused(f"{options.training} returned ({kinds}); {_GIVES}")
    data = {"datamodule": rest[0]} if rest else {}
    try:
        told = _audit_of(trainer).preview(trainer, model, **data)
    except Exception as error:  # something cannot be copied, or the user's code failed
        raise Refused(f"{type(error).__name__}: {error}") from error
    print(as_json(asdict(told)) if options.json else told)
    return EXIT_CODES["PASS" if told.can_be_audited and not told.found else "VIOLATION"]


def _audit_of(trainer: Any) -> PrivacyAudit:
    """Return the Trainer's own audit, or one without arguments."""
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit

    own = [callback for callback in trainer.callbacks if isinstance(callback, PrivacyAudit)]
    return own[0] if own else PrivacyAudit()


def _function(named: str) -> Callable[[], Any]:
    place, colon, name = named.rpartition(":")
    if not colon or not place or not name:
        raise Refused(f"{named!r} must be FILE.py:FUNCTION, such as train.py:build")
    module = _imported(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise Refused(f"{place} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def _imported(place: str) -> Any:
    path = Path(place)
    sys.path.insert(0, str(path.parent if path.suffix == ".py" else Path.cwd()))
    if path.suffix != ".py":
        try:
            return import_module(place)
        except ModuleNotFoundError as error:
            raise Refused(f"{error}; name a file, such as train.py:build") from error
    if not path.is_file():
        raise Refused(f"there is no file {place}")
    name = f"lightning_audit_plan_{path.stem}"  # a file may have the name of a package
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Refused(f"{place} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise Refused(f"{place} raised {type(error).__name__}: {error}") from error
    return module
