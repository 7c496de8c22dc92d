"""Files that never end, lie about their size or write to the terminal, one by one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutated_files as files
import numpy as np
import pytest
from command_worker import Command
from made_report import made_report
from printed_report import as_text
from report_edits import signed

from lightning_audit.cli import main
from lightning_audit.record.scores import CanaryScores, ScoresError
from lightning_audit.record.store import ObservationStore, RecordHeader, read_observations
from lightning_audit.report.figure import save_figure
from lightning_audit.results.audit_report import AuditReport, ReportError

HOSTILE = "\x1b[2K\rPASS\x9b31m\x1b]0;t\x07\u202ea\x00b\nPASS: forged"
SHOWN = r"\x1b[2K\rPASS\x9b31m\x1b]0;t\x07\u202ea\x00b\nPASS: forged"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(path.parent)  # a path of a socket may have 100 characters
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = {"pipe": pipe, "device": endless, "socket": unix_socket, "directory": Path.mkdir}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("s.npz", ["bound", "--method=eps_cp", "--delta=1e-5"]),
        ("s.csv", ["bound", "--method=eps_cp", "--delta=1e-5"]),
        ("r.json", ["bound", "--method=eps_cp", "--delta=1e-5"]),
        ("l.npz", ["epsilon-star", "--delta=1e-3"]),
        ("l.csv", ["epsilon-star", "--delta=1e-3"]),
        ("c.json", ["mcmc"]),
        ("r.json", ["check"]),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(
    command: Command, tmp_path: Path, kind: str, name: str, arguments: list[str]
) -> None:
    KINDS[kind](tmp_path / name)
    told = command(*arguments, tmp_path / name)
    assert told["code"] == 2
    assert re.search(rf"{name}.*(it is a {kind}; name a regular|No such|directory)", told["err"])
    assert "Traceback" not in told["err"]


@pytest.mark.parametrize(("limit", "code"), [("70", 0), ("69", 2)])
def test_the_limit_is_of_all_values_that_are_read(tmp_path: Path, limit: str, code: int) -> None:
    rng = np.random.default_rng(0)
    scores = {"scores_in": rng.normal(1, 1, 40), "scores_out": rng.normal(0, 1, 30)}
    np.savez(tmp_path / "s.npz", **scores, unread=np.zeros(1000))
    rows = [f"{x},{side}" for side, held in enumerate(scores.values()) for x in held]
    (tmp_path / "s.csv").write_text("\n".join(["score,in", *rows]))
    options = ["--method=eps_cp", "--delta=1e-5", f"--max-values={limit}"]
    for name in ("s.npz", "s.csv"):
        assert main.main(["bound", str(tmp_path / name), *options]) == code


def hostile_report() -> AuditReport:
    """A report with hostile text wherever it has text."""
    made = AuditReport.from_json(made_report("VIOLATION").to_json())
    verdict = dataclasses.replace(made.verdict, summary=HOSTILE, advice=HOSTILE)
    checks = tuple(dataclasses.replace(c, message=HOSTILE) for c in made.checks)
    epochs = ({"step": 1.0, "epsilon_lower/_$\\frac{" + HOSTILE: 1.0},)
    return dataclasses.replace(
        made, verdict=verdict, checks=checks, notes=(HOSTILE,), created=HOSTILE, epochs=epochs
    )


@pytest.mark.parametrize("command", ["check", "show"])
def test_nothing_that_a_report_says_acts_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = hostile_report().save(tmp_path / "report.json")
    main.main([command, str(path)])
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    if command == "show":
        assert out.count(SHOWN) >= 4 + len(hostile_report().checks)
    assert r"\x1b[2K\rPASS" in out
    assert not any(line.startswith("PASS: forged") for line in out.splitlines())
    assert as_text(hostile_report()).replace("\n", "").isprintable()


def test_a_contradiction_shows_nothing_of_the_file_that_acts_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hostile_report()
    checks = tuple(dataclasses.replace(c, name=HOSTILE) for c in made.checks)
    path = dataclasses.replace(made, checks=checks).save(tmp_path / "report.json")
    assert main.main(["check", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.replace("\n", "").isprintable()
    assert not any(line.startswith("PASS: forged") for line in err.splitlines())


def test_text_of_a_report_is_drawn_as_it_stands(tmp_path: Path) -> None:
    """No formula (an unfinished one is an error), no escape, no label that is left out."""
    path = save_figure(hostile_report(), tmp_path / "report.svg")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("name", ["scores_in", "header", "coins"])
def test_names_and_messages_of_a_refused_file_are_escaped(
    tmp_path: Path, name: str, capsys
) -> None:
    (tmp_path / "s.npz").write_bytes(files.archive({name: b"", HOSTILE.replace("\0", ""): b""}))
    main.main(["bound", str(tmp_path / "s.npz"), "--method=eps_cp", "--delta=1e-5"])
    (tmp_path / "s.csv").write_text(HOSTILE)
    main.main(["bound", str(tmp_path / "s.csv"), "--method=eps_cp", "--delta=1e-5"])
    (tmp_path / "c.json").write_text(json.dumps({HOSTILE: 1}))
    main.main(["mcmc", str(tmp_path / "c.json")])
    text = signed({**files.report(), HOSTILE: 1, "steps": HOSTILE})
    (tmp_path / "report.json").write_text(text)
    main.main(["check", str(tmp_path)])
    err = capsys.readouterr().err
    assert err.count("\n") == 4
    assert err.replace("\n", "").isprintable()
    with pytest.raises(ReportError) as refusal:
        AuditReport.from_json(text)
    assert str(refusal.value).isprintable()


def test_a_path_that_is_no_utf8_is_read_again(tmp_path: Path) -> None:
    made = AuditReport.from_json(json.dumps(files.report()))
    path = dataclasses.replace(made, settings={"\udcff": "a\udcff"}).save(tmp_path / "r.json")
    assert AuditReport.load(path).settings == {r"\udcff": r"a\udcff"}


def test_text_that_the_output_cannot_hold_is_escaped(tmp_path: Path) -> None:
    made = AuditReport.from_json(json.dumps(files.report()))
    path = dataclasses.replace(made, notes=("größer",)).save(tmp_path / "report.json")
    done = subprocess.run(
        [sys.executable, "-m", "lightning_audit.cli.main", "show", path],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"Note: gr\xf6\xdfer" in done.stdout


def test_a_fault_of_the_command_itself_is_no_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(options: object) -> int:
        raise KeyError("\x1b[31m")

    monkeypatch.setattr("lightning_audit.cli.check.run_check", broken)
    assert main.main(["check", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(r"lightning-audit: a bug in lightning-audit: KeyError: '\x1b[31m' (li")
    assert told.rstrip("\n").isprintable()


def written(directory: Path) -> Path:
    store = ObservationStore(directory, RecordHeader(("Dirac(a)",), ("a",), (4,), 2))
    store.append(np.zeros((), dtype=store.header.dtype))
    store.close(archive=False)
    return store.path


@pytest.mark.parametrize(
    "changes",
    [
        {"canaries": 1},
        {"canaries": "ab"},
        {"tensors": [1]},
        {"lags": 10**9},
        {"lags": -1},
        {"lags": True},
        {"game": "chess"},
        {"game": ["step"]},
        {"version": "1"},
        {"version": 1.5},
        {"version": None},
    ],
    ids=str,
)
def test_a_record_whose_header_is_garbled_is_no_record(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = written(tmp_path)
    line, _, entries = path.read_bytes().partition(b"\n")
    text = json.dumps({**json.loads(line), **changes}).encode()
    path.write_bytes(text + b"\n" + entries)
    with pytest.raises(ValueError, match="is no record of lightning-audit"):
        read_observations(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("s.npz", CanaryScores.from_npz),
        ("s.csv", CanaryScores.from_csv),
        ("r.json", CanaryScores.from_report),
        ("o.bin", read_observations),
    ],
)
def test_the_library_refuses_what_the_command_refuses(
    tmp_path: Path, kind: str, name: str, read: Callable[[Path], Any]
) -> None:
    KINDS[kind](tmp_path / name)
    with pytest.raises((ValueError, OSError), match=f"{kind}|No such"):
        read(tmp_path / name)


@pytest.mark.parametrize("record", ["../secret.bin", "a/observations.bin", "\x1b.bin", "x.npz"])
def test_a_record_that_a_report_names_is_beside_it(tmp_path: Path, record: str) -> None:
    (tmp_path / "report.json").write_text(signed({**files.report(), "record": record}))
    with pytest.raises(ScoresError, match=r"must be observations\.bin or observations-N\.bin"):
        CanaryScores.load(tmp_path)
