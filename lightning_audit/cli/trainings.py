"""`plan`, `selftest`, `audit-training` and `status`: the commands that train, and their state."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import yaml

from lightning_audit._validate import shown
from lightning_audit.cli.main import Command, Refused, as_json, positive_int, refused, refusing
from lightning_audit.files import read_text, reason_of, visible, with_extra
from lightning_audit.many.store import StoreError, StoreStatus, duration, status_of
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.progress import progress
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError

# --- Where `plan` and `selftest` train.

#: Accelerators by Lightning's names.
_ACCELERATORS = ("auto", "cpu", "cuda", "mps")


def _accelerator(named: str) -> str:
    """Return an accelerator that is available; for "auto" the one that torch has here.

    Raises:
        Refused: If torch does not have it here.
    """
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = found.type if found is not None and found.type in _ACCELERATORS else "cpu"
    if named not in ("auto", "cpu", here):
        raise Refused(
            f"--accelerator {named} is not available: torch has {here} here; pass --accelerator "
            f"{here}, or auto"
        )
    return here if named == "auto" else named


# --- `lightning-audit plan`: whether a training can be audited, and what that takes.

_GIVES = (
    "it must return (trainer, model) or (trainer, model, datamodule), unfitted, or (model, "
    "optimizer, loader, step) of a plain loop, and a dict of arguments of attach if needed"
)


def add_plan_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Run a few steps of a training, or of a plain loop, and print whether it can be "
        "audited, by which method, which examinations would be skipped, how many steps a PASS "
        "takes, and what the audit costs. Exits with 0 if it can be audited, with 1 if it is "
        "refused, something is already wrong with it, or its planned steps cost more than is "
        "claimed, with 2 if an argument is wrong or no result can be computed. For "
        "a LightningCLI, `fit --trainer.fast_dev_run=true` prints the same."
    )
    parser.add_argument(
        "training",
        metavar="FILE.py:FUNCTION",
        help="a function without arguments that returns (trainer, model) or (trainer, model, "
        "datamodule), or for a plain loop (model, optimizer, loader, step), with a function that "
        "takes one step on a batch, and a dict of arguments of attach, such as the planned epochs; "
        "a module's name may replace the file",
    )
    parser.option(
        "[--accelerator]",
        "of a Trainer that states none (default: as the training says)",
        _ACCELERATORS,
    )
    parser.option(
        "[--attack-tpr TPR]",
        "also print the noise multiplier with which no attack exceeds this true positive rate "
        "at the false positive rate --fpr, after all planned steps",
        float,
    )
    parser.option("[--fpr]", "see there", float, 0.01)
    _add_no_progress(parser)
    parser.option("[--json]", "print the result as JSON", bool)


def _add_no_progress(parser: Command) -> None:
    parser.add_argument(
        "--no-progress",
        dest="progress",
        action="store_false",
        help="show no bar (there is none in CI, or if this is not a terminal)",
    )


def run_plan(options: argparse.Namespace) -> int:
    """Print a preview of the audit.

    Raises:
        Refused: If there is no such function, it returns no training, or it trains elsewhere.
    """
    from lightning_audit.many.engines import environment
    from lightning_audit.run.preview import LAST_STEP

    wanted = options.accelerator and _accelerator(options.accelerator)
    training = _function(options.training)
    try:
        with environment({"PL_TRAINER_ACCELERATOR": wanted} if wanted else {}):  # Lightning's own
            given = training()
    except (Exception, SystemExit) as error:
        raise Refused(f"{options.training} raised {type(error).__name__}: {error}") from error
    if not isinstance(given, tuple):
        raise Refused(f"{options.training} returned {type(given).__name__}; {_GIVES}")
    predict = _of_trainer(given) if len(given) in (2, 3) else _of_loop(given)
    if predict is None:
        kinds = ", ".join(type(one).__name__ for one in given)
        raise Refused(f"{options.training} returned ({kinds}); {_GIVES}")
    by_trainer = hasattr(given[0], "fit")
    if wanted and (own := _device_of(given)) != wanted:
        there = "state no accelerator in its Trainer" if by_trainer else "put its model there"
        raise Refused(
            f"{options.training} trains on {own}, and --accelerator says {wanted}; {there}"
        )
    try:
        with progress("batches", LAST_STEP, shown=options.progress) as advance:
            told = predict(on_batch=advance)
    except Exception as error:  # the user's code failed
        raise Refused(f"{type(error).__name__}: {error}") from error
    asked: dict[str, Any] = {}
    lacks = None
    if options.attack_tpr is not None:
        try:
            epochs = "the Trainer max_epochs" if by_trainer else "attach epochs"
            asked["noise_for_attack"] = _noise_for(told, options, epochs)
        except Refused as error:
            asked["noise_for_attack"], lacks = None, error
    print(as_json(asdict(told) | asked) if options.json else told)
    if lacks is not None:
        raise lacks
    if asked and not options.json:
        print(
            f"noise_multiplier {asked['noise_for_attack']:.3g} or more lets no attack exceed TPR "
            f"{options.attack_tpr:g} at FPR {options.fpr:g} after the planned steps"
        )
    return EXIT_CODES["VIOLATION" if told.refused or told.found or told.over_claim else "PASS"]


def _noise_for(told: Any, options: argparse.Namespace, epochs: str) -> float:
    """Return the noise multiplier for a wanted attack.

    Args:
        told: the preview.
        options: of the command.
        epochs: what states how long the training is.

    Raises:
        Refused: If a rate is wrong, or the training's sample rate or number of steps is unknown.
    """
    from lightning_audit.accounting.composition import noise_for_attack

    rate, steps = told.sample_rate, told.steps_planned
    if not rate or not steps:
        raise Refused(
            "--attack-tpr needs one private optimizer with a known sample rate, and a planned "
            f"number of steps: give {epochs}"
        )
    with refusing(ValueError):
        return noise_for_attack(options.attack_tpr, options.fpr, rate, steps)


def _of_trainer(given: tuple[Any, ...]) -> Callable[..., Any] | None:
    trainer, model, *rest = given
    wrong_data = rest and not hasattr(rest[0], "prepare_data")
    if not hasattr(trainer, "fit") or not hasattr(model, "configure_optimizers") or wrong_data:
        return None
    data = {"datamodule": rest[0]} if rest else {}
    from lightning_audit.callbacks.preview import preview

    return partial(preview, trainer, model, **data)


def _of_loop(given: tuple[Any, ...]) -> Callable[..., Any] | None:
    if len(given) not in (4, 5) or not hasattr(given[0], "parameters") or not callable(given[3]):
        return None
    from lightning_audit.loops.plan import plan

    model, optimizer, loader, step, *rest = given
    arguments = rest[0] if rest else {}
    if not isinstance(arguments, dict):
        return None
    return partial(plan, model, optimizer, loader, step, **arguments)


def _device_of(given: tuple[Any, ...]) -> str:
    """Return the kind of device that a training or a loop is on."""
    if hasattr(given[0], "fit"):
        return str(given[0].strategy.root_device.type)
    return str(next(given[0].parameters()).device.type)


def _function(named: str) -> Callable[[], Any]:
    place, colon, name = named.rpartition(":")
    if not colon or not place or not name:
        raise Refused(f"{named!r} must be FILE.py:FUNCTION, such as train.py:build")
    module = _module_at(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise Refused(f"{place} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def _module_at(place: str) -> Any:
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


# --- `lightning-audit selftest`: trains every known fault and checks that the audit names it.

#: Default number of concurrent trainings; each takes half a gigabyte.
_JOBS = 8
#: Exit code after Ctrl-C, as in shells.
_INTERRUPTED = 130


def add_selftest_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Train known faults of DP-SGD and correct trainings under audit, each in its own "
        "process. Exits with 0 if every fault was found and named "
        "and no correct training was accused, with 1 if not, with 2 if it cannot run."
    )
    parser.option("[--quick]", "two faults and one correct training only", bool)
    parser.add_argument(
        "--fault",
        action="append",
        metavar="NAME",
        help="this fault only; may be repeated (docs/faults.md lists them)",
    )
    parser.option(
        "[--jobs N]",
        f"trainings at a time (default: the number of processors, {_JOBS} at most)",
        positive_int,
        min(os.cpu_count() or 1, _JOBS),
    )
    parser.option(
        "[--accelerator]",
        "where to train (default: cpu); faults of several processes train on the CPU",
        _ACCELERATORS,
        "cpu",
    )
    _add_no_progress(parser)
    parser.option("[--json]", "print the results as JSON", bool)


def run_selftest(options: argparse.Namespace) -> int:
    """Run the selftest and print its results.

    Returns:
        0 if every fault was found and named, and no correct training was accused; 1 if not; 130
        after Ctrl-C.

    Raises:
        Refused: If an argument is wrong, a package is missing, or no process can be started.
    """
    try:  # loads torch and Lightning
        from lightning_audit.testing import selftest, selftest_pool
    except ImportError as error:
        raise Refused(f"selftest cannot run: {error}") from error
    with refusing(ValueError):
        place = _accelerator(options.accelerator)
        wanted = selftest.planned(options.fault or (), quick=options.quick, accelerator=place)
    started = time.perf_counter()
    try:
        with progress("trainings", len(wanted), shown=options.progress) as advance:
            results = selftest_pool.run_all(
                wanted, options.jobs, selftest.run_row, lambda _: advance()
            )
    except OSError as error:
        raise Refused(f"no process can be started: {error}") from error
    except KeyboardInterrupt:
        print("lightning-audit: interrupted; every training was stopped", file=sys.stderr)
        return _INTERRUPTED
    seconds = time.perf_counter() - started
    code = EXIT_CODES["VIOLATION" if any(result.failed for result in results) else "PASS"]
    if options.json:
        print(selftest.as_json(results, seconds, code))
    else:
        selftest.show(results, seconds)
    return code


# --- The YAML file of `lightning-audit audit-training`, read by jsonargparse.

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
    from lightning_audit.many.engines import EngineSettings
    from lightning_audit.many.records import Canary
    from lightning_audit.many.worlds import Score, Train

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
            "jsonargparse is not installed, and audit-training reads its file with it; "
            f"{with_extra('cli')}"
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


# --- `lightning-audit audit-training`: an audit over many trainings, as a YAML file says.


class _Changes(argparse.Action):
    """Stores what follows the file as a tuple: an empty list is an option without a value."""

    def __call__(self, parser: Any, options: Any, values: Any, option: str | None = None) -> None:
        """Store the options."""
        setattr(options, self.dest, tuple(values))


def add_audit_training_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Audit a training function by many trainings with and without a canary. Exit with 0 for "
        "PASS, 1 for VIOLATION, 2 for INCONCLUSIVE or an audit that cannot run, 3 if a training or "
        "its library ended the process. The same command again continues its store."
    )
    parser.epilog = (
        "`lightning-audit audit-training config.yaml --help` lists all keys and options, and "
        "`--print_config` prints them with their values."
    )
    _add_no_progress(parser)
    parser.add_argument("config", metavar="config.yaml", help="train, dataset, claim, ...")
    parser.add_argument(
        "changes",
        metavar="...",
        nargs=argparse.REMAINDER,
        action=_Changes,
        help="options that replace values of the file, such as `--trainings 2000`",
    )


def run_audit_training(options: argparse.Namespace) -> int:
    """Run the audit, which prints its report; the exit code is that of its verdict.

    Raises:
        Refused: if the file or the store cannot be used, or the trainings give no result.
    """
    try:
        changes = [one for one in options.changes if one != "--no-progress"]
        arguments = arguments_of(options.config, changes)
        # After the file is read: these load torch.
        from lightning_audit.many import EngineError, StoreError, TrainingError
        from lightning_audit.many.audit_trainings import audit_training
        from lightning_audit.many.engines import end_with

        if options.watcher is not None:
            end_with(options.watcher)
        try:
            shown = options.progress and changes == options.changes
            audit = audit_training(**arguments, display=shown or "report")
            written = audit.passed and AuditReport.load(Path(arguments["store"]) / REPORT_NAME)
            if written and written.verdict != audit.verdict:
                raise ReportError(f"{REPORT_NAME} has another verdict than the audit, PASS")
        except (EngineError, StoreError, TrainingError, TypeError, ValueError) as error:
            raise Refused(error) from error
        except (OSError, ReportError) as error:
            raise Refused(f"the audit passed, and its report cannot be read: {error}") from error
        except SystemExit as error:  # of a data set, or of what reads it
            raise Refused(f"the audit was ended by SystemExit({error})") from error
    except KeyboardInterrupt:
        refused("interrupted; the same command continues the audit")
        return _INTERRUPTED
    return EXIT_CODES[audit.verdict.outcome]


# --- `lightning-audit status`: what an audit over many trainings has done so far.


def add_status_arguments(parser: Command) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Print what the store of an audit over many trainings holds, also while the audit runs: "
        "trainings, times, evidence so far. It only reads. Exit with 0, or with 2 if there is no "
        "store or it is damaged; `lightning-audit check` is the gate."
    )
    parser.add_argument("store", help="folder of the trainings, such as audit-many")
    parser.option("[--json]", "print the result as JSON", bool)


def run_status(options: argparse.Namespace) -> str:
    """Return what to print.

    Raises:
        Refused: if there is no store, or it is damaged.
    """
    folder = Path(options.store)
    with refusing(StoreError):
        status = status_of(folder)
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
