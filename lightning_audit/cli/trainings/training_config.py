"""The YAML file of `lightning-audit audit-training`, read by jsonargparse."""

from __future__ import annotations

import importlib
import re
import sys
from argparse import ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_audit._validate import shown
from lightning_audit.cli.output import Refused
from lightning_audit.files.bounded import read_text
from lightning_audit.files.replacing import reason_of

_MOST_BYTES = 1_000_000
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
#: Engines whose processes are on this machine and import the user's modules themselves.
_LOCAL = ("LocalProcesses", "ThisProcess")
#: What a message of jsonargparse is shortened to, in this order.
_SHORTER = (
    (r"\s+", " "),
    (r"Does not validate against any of the Union subtypes Subtypes: .*? Errors: - ", ""),
    (r" - Expected .*", ""),
    (r"(\. Got value: | Given value type: | Subclass types expect one of: ).*", ""),
    (r'Parser key "([^"]+)":', r"\1:"),
    (r"Type \S.*? expects a function or a callable class: ", ""),
    (r"Problem with given class_path '([^']+)': ", r"\1: "),
    (r"Expected an import path or a subclass spec, but got .*", "must be an import path"),
    (r"Expected a dot import path string: .*", "must be an import path, such as my_module.name"),
    (r"Does not implement protocol \w+", "must have a class_path and init_args"),
    (r"Option '([^']+)' is not accepted", r"unknown key '\1'"),
    (r"Group '([^']+)' does not accept option '([^']+)'", r"\1: unknown key '\2'"),
    (r"Expected (?:an? )?(<class ')?(typing\.)?([^']+?('[^<>]*?)?)('>)?$", r"must be \3"),
)


def arguments_of(path: str, changes: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `audit_training` that a file states, with changes.

    The folder of the file is put first on the import path, as that of a script.

    Args:
        path: of the YAML file.
        changes: options that replace values of the file, such as ``["--trainings", "2000"]``.

    Raises:
        Refused: if the file, a value or what it names cannot be used; the message is one sentence.
        SystemExit: after ``--help`` or ``--print_config``.
    """
    stated = _mapping(path)
    folder = Path(path).resolve().parent
    sys.path.insert(0, str(folder))
    for name in sorted(set(_modules(stated, path))):
        _imported(name, path)
    parser = _parser()
    try:
        parsed = parser.parse_args(["--config", path, *changes])
    except ArgumentError as error:
        raise Refused(f"{path}: {_sentence(error.message)}") from error
    try:
        if not hasattr(parsed.claim, "as_dict"):
            raise Refused(f"{path}: claim: must have keys such as noise_multiplier, or epsilon")
        given: dict[str, Any] = parser.instantiate(parsed).as_dict()
        given["dataset"] = _dataset(given["dataset"], path)
    except Refused:
        raise
    except ValueError as error:  # of an object that is made
        raise Refused(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise Refused(f"{path}: {type(error).__name__}: {error}") from error
    del given["config"]
    if type(given["engine"]).__name__ not in (*_LOCAL, "NoneType"):
        _send_by_value(folder)
    return given


def _mapping(path: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(read_text(path, _MOST_BYTES))
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {reason_of(error)}") from error
    except (yaml.YAMLError, RecursionError) as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise Refused(f"{path} is not YAML: {told}") from error
    if not isinstance(found, Mapping):
        raise Refused(f"{path} must have keys such as train, dataset and claim")
    return found


def _modules(stated: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the modules that a file names under train, dataset, score and class_path."""
    for key, value in stated.items():
        if isinstance(value, Mapping):
            yield from _modules(value, path)
        elif isinstance(value, str) and key in ("train", "dataset", "score", "class_path"):
            if not _PATH.fullmatch(value):
                raise Refused(
                    f"{path}: {key}={shown(value)} must be an import path, such as my_module.name"
                )
            yield value.rpartition(".")[0]


def _imported(name: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # of the user's module
        raise Refused(
            f"{path}: module {name} cannot be imported ({type(error).__name__}: {error})"
        ) from error


def _parser() -> Any:
    jsonargparse = _jsonargparse()
    from lightning_audit.accounting.claims import PrivacyClaim
    from lightning_audit.many.audit_trainings import audit_training
    from lightning_audit.many.engines.engine_protocol import EngineSettings
    from lightning_audit.many.game.canary_records import Canary
    from lightning_audit.many.game.user_training import Score, Train

    parser = jsonargparse.ArgumentParser(
        prog="lightning-audit audit-training config.yaml", exit_on_error=False
    )
    add = parser.add_argument
    add("--config", action="config", help="a further file; what it states replaces the first's")
    add("--train", type=Train, required=True, help="import path of a function of (data set, seed)")
    add(
        "--dataset",
        type=str | dict,
        required=True,
        help="import path of a function that returns it",
    )
    add("--claim", type=PrivacyClaim, required=True)
    add("--canary", type=Canary | None, help="class_path and init_args, such as of Crafted")
    add("--score", type=Score | None, help="import path of a function of (model, record)")
    add("--engine", type=EngineSettings | None, help="class_path and init_args")
    typed = {"train", "dataset", "claim", "canary", "score", "engine"}
    parser.add_function_arguments(audit_training, skip=typed | {"display"})
    return parser


def _jsonargparse() -> Any:
    try:
        return importlib.import_module("jsonargparse")
    except ImportError as error:
        raise Refused(
            "jsonargparse is not installed, and audit-training reads its file with it; pip install "
            "'lightning-audit[cli]'"
        ) from error


def _dataset(stated: str | Mapping[str, Any], path: str) -> Any:
    """Return the data set that a function returns, or that a class is called with init_args for.

    Raises:
        Refused: if there is no such name, or the function raises an exception.
    """
    if isinstance(stated, str):
        stated = {"class_path": stated}
    named = str(stated.get("class_path"))
    if not _PATH.fullmatch(named) or set(stated) - {"class_path", "init_args"}:
        raise Refused(
            f"{path}: dataset: must be an import path, or have a class_path and init_args"
        )
    module, _, name = named.rpartition(".")
    made = getattr(_imported(module, path), name, None)
    if made is None:
        raise Refused(f"{path}: dataset: module {module} has no attribute {name!r}")
    if not callable(made):
        return made
    parser = _jsonargparse().ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(made, type) else parser.add_function_arguments
    add(made, fail_untyped=False)
    try:
        arguments = parser.instantiate(parser.parse_object(dict(stated.get("init_args") or {})))
    except ArgumentError as error:
        raise Refused(f"{path}: dataset: {_sentence(error.message)}") from error
    try:
        return made(**arguments.as_dict())
    except (Exception, SystemExit) as error:  # of the user's function
        raise Refused(f"{path}: {named} raised {type(error).__name__}: {error}") from error


def _send_by_value(folder: Path) -> None:
    """Send the modules in the folder of the file with each training: other machines lack them."""
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        return  # the engine says that it needs it
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).resolve().parent == folder and module.__name__ != "__main__":
            cloudpickle.register_pickle_by_value(module)


def _sentence(message: str) -> str:
    """Return a message of jsonargparse as a sentence: the key, what it must be, and its value."""
    text = message.strip()
    for pattern, shorter in _SHORTER:
        text = re.sub(pattern, shorter, text)
    if " must be " in text and (values := re.findall(r"(?:Got|Given) value: (.+)", message)):
        text += f", not {shown(_value(values[0]))}"
    return text


def _value(text: str) -> Any:
    """Return the value that a short text is in YAML; the text itself if it is long, or none."""
    try:
        return yaml.safe_load(text) if len(text) < 80 else text
    except yaml.YAMLError:
        return text
