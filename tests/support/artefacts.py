"""What leaves the process of an audited training, and where two of them differ."""

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_audit.checks.check import REGISTRY

#: Fields of a report that the clock decides.
_BY_THE_CLOCK = ("created", "audit_cost", "examination_cost", "sha256")
#: The same of rows of a report.
_OF_ROWS_BY_THE_CLOCK = {"run": ("started", "seconds"), "examinations": ("seconds", "step")}
#: Of a checkpoint: a digest of all of it.
_DIGEST_OF_STATE = re.compile(r"/checksum(/|$)")
#: What the clock decides of the printed report.
_TIMES = re.compile(r"^the audit took .*$|\(written [^)]*\)", re.MULTILINE)
_E_VALUE = "audit/e_value"
#: E-values of private checks as the console prints them.
_PRIVATE = "|".join(re.escape(c.name) for c in REGISTRY.values() if c.private)
_E_VALUES = re.compile(rf"^(?:{_PRIVATE}) .*?e = \S+|(?<=Evidence     )e = [^,]*,")
#: The same in a checkpoint.
_E_VALUES_OF_STATE = re.compile(r"/segments/found/\d+/\d+/log_e_value$|/course/epochs/\d+/e_value$")


@dataclass
class Artefacts:
    """What leaves the process of an audited training."""

    report: dict[str, Any]
    record: dict[str, bytes]
    metrics: dict[str, Any]
    console: str
    exception: str
    checkpoints: list[dict[str, Any]]


def read_metrics(directory: Path) -> dict[str, Any]:
    """What the loggers hold, by logger, without the clock and Lightning's count of batches."""
    tables = []
    for path in sorted(directory.glob("csv/*/metrics.csv")):
        rows = csv.DictReader(io.StringIO(path.read_text()))
        tables.append([{k: v for k, v in row.items() if k != "step"} for row in rows])
    boards = []
    for events in sorted(directory.glob("board/*/events*")):
        board = EventAccumulator(str(events)).Reload()
        tags = board.Tags()["scalars"]
        boards.append({tag: [event.value for event in board.Scalars(tag)] for tag in tags})
    return {"csv": tables, "board": boards}


def read_checkpoints(directory: Path) -> list[dict[str, Any]]:
    """States of the audit in a folder's checkpoints, by their names."""
    held = [
        torch.load(path, weights_only=True)["callbacks"] for path in sorted(directory.glob("*"))
    ]
    return [state for one in held for key, state in one.items() if key.startswith("PrivacyAudit")]


def read_audit(directory: Path) -> dict[str, Any]:
    """The report as it was read, and the bytes of the records."""
    return {
        "report": json.loads((directory / "report.json").read_text()),
        "record": {p.name: p.read_bytes() for p in sorted(directory.iterdir()) if "obs" in p.name},
    }


def flat(state: Any, place: str = "") -> dict[str, Any]:
    """Every value of nested data by its place."""
    if isinstance(state, torch.Tensor):
        return {place: state.tolist()}
    if isinstance(state, dict):
        return {p: v for key, one in state.items() for p, v in flat(one, f"{place}/{key}").items()}
    if isinstance(state, list | tuple):
        return {p: v for n, one in enumerate(state) for p, v in flat(one, f"{place}/{n}").items()}
    return {place: state}


def public_state(state: dict[str, Any], *, coarse: bool = False) -> dict[str, Any]:
    """Values of an audit's state by their places, without the digest, or with coarse e-values."""
    return {
        place: repr(value)
        for place, value in flat(state).items()
        if not _DIGEST_OF_STATE.search(place) and (coarse or not _E_VALUES_OF_STATE.search(place))
    }


# ------------------------------------------------------------------ comparing


def differences(one: Artefacts, other: Artefacts, coarse: bool = False) -> list[str]:
    """Where two trainings' artefacts differ beside what the clock decides, and coarse fields."""
    found: list[str] = []
    _compare(_public(one, coarse), _public(other, coarse), "", found)
    return found


def _public(artefacts: Artefacts, coarse: bool) -> dict[str, Any]:
    held = {
        "report.json": _timeless(artefacts.report),
        "record": artefacts.record,
        "metrics": artefacts.metrics,
        "console": _TIMES.sub("", artefacts.console).splitlines(),
        "exception": artefacts.exception,
        "checkpoints": [public_state(state, coarse=coarse) for state in artefacts.checkpoints],
    }
    return held if coarse else _without_coarse(held)


def _timeless(report: dict[str, Any]) -> dict[str, Any]:
    """A report without what the clock decides."""
    kept = {k: v for k, v in report.items() if k not in _BY_THE_CLOCK}
    for name, clock in _OF_ROWS_BY_THE_CLOCK.items():
        rows = kept[name] if isinstance(kept[name], list) else [kept[name]]
        kept[name] = [{k: v for k, v in row.items() if k not in clock} for row in rows]
    return kept


def _without_coarse(held: dict[str, Any]) -> dict[str, Any]:
    """What is left where e-values of private numbers are left out."""
    report = held["report.json"]
    checks = [
        {**check, "log_e_value": None} if REGISTRY[check["name"]].private else check
        for check in report["checks"]
    ]
    epochs = [{**row, "e_value": None} for row in report["epochs"]]
    tests = {
        name: {**test, "growth": None} if REGISTRY[name].private else test
        for name, test in report["tests"].items()
    }
    boards = [{**board, _E_VALUE: None} for board in held["metrics"]["board"]]
    return {
        **held,
        "report.json": {**report, "checks": checks, "epochs": epochs, "tests": tests},
        "metrics": {
            "csv": [[{**row, _E_VALUE: None} for row in rows] for rows in held["metrics"]["csv"]],
            "board": boards,
        },
        "console": [_E_VALUES.sub("", line) for line in held["console"]],
    }


def _compare(one: Any, other: Any, place: str, found: list[str]) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            _compare(one.get(key), other.get(key), f"{place}/{key}", found)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            name = a.get("name", number) if isinstance(a, dict) else number
            _compare(a, b, f"{place}/{name}", found)
    elif one != other:
        if isinstance(one, bytes) and isinstance(other, bytes):
            one, other = f"{len(one)} bytes", f"{len(other)} other bytes"
        found.append(f"{place}: {one!r} / {other!r}")
