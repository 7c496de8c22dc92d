from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import os
import re
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import mutated_files as files
import numpy as np
import pytest
from made_report import made_report
from printed_report import as_text
from report_edits import signed

from lightning_audit import __version__
from lightning_audit.cli import main
from lightning_audit.cli.main import (
    OWN_FAULT,
    IgnoreBrokenPipe,
    add_max_values,
    as_json,
    own_fault,
    positive,
    positive_int,
    refused,
    whole,
)
from lightning_audit.files import MAX_VALUES
from lightning_audit.record.scores import CanaryScores, ScoresError
from lightning_audit.record.store import ObservationStore, RecordHeader, read_observations
from lightning_audit.report.figure import save_figure
from lightning_audit.report.text import summary
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, Outcome, ReportError

COMMAND = Path(sysconfig.get_path("scripts")) / "lightning-audit"


def saved(directory: Path, outcome: Outcome = "PASS", **changes: Any) -> Path:
    return made_report(outcome, **changes).save(directory / "report.json")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("outcome", ["PASS", "VIOLATION", "INCONCLUSIVE"])
def test_the_exit_code_is_that_of_the_verdict(tmp_path, outcome):
    path = saved(tmp_path, outcome)
    done = run("check", path)
    assert done.returncode == {"PASS": 0, "VIOLATION": 1, "INCONCLUSIVE": 2}[outcome]
    assert done.stdout == f"\n{summary(made_report(outcome), path)}\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("report.json", "lightning-audit: the report is not complete JSON"),
        ("nowhere/report.json", "nowhere/report.json"),
    ],
)
def test_a_truncated_or_absent_report_is_inconclusive_and_says_why_on_stderr(tmp_path, name, told):
    path = saved(tmp_path)
    path.write_text(path.read_text()[:200])
    done = run("check", tmp_path / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def check(path: Path, *arguments: str) -> int:
    return main.main(["check", str(path), *arguments])


def test_a_directory_stands_for_the_report_in_it(tmp_path, capsys):
    report = saved(tmp_path, "VIOLATION")
    assert check(tmp_path) == 1
    assert f"lightning-audit show {report}" in capsys.readouterr().out


def test_a_directory_without_a_report_is_inconclusive_and_says_what_to_name(tmp_path, capsys):
    assert check(tmp_path) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"report={str(tmp_path)!r} is a directory without a report.json; name the" in told.err


@pytest.mark.parametrize(
    ("limit", "code", "changes"),
    [
        *(("5", 0, {}), ("3", 0, {}), ("2.9", 1, {}), ("1", 1, {}), ("inf", 0, {})),
        ("1", 1, {"spent": None}),  # the proved one exceeds it where the spent one is unknown
        ("3.5", 0, {"proved": None}),
    ],
)
def test_a_budget_is_kept_when_no_epsilon_exceeds_it(tmp_path, limit, code, changes):
    assert check(saved(tmp_path, **changes), "--max-epsilon", limit) == code


@pytest.mark.parametrize(
    ("limit", "which"), [("2", "epsilon spent 3"), ("1", "epsilon proved 1.5, spent 3")]
)
def test_an_exceeded_budget_names_the_epsilon_that_exceeds_it(tmp_path, limit, which, capsys):
    check(saved(tmp_path), "--max-epsilon", limit)
    assert f"VIOLATION of --max-epsilon {limit}: {which}" in capsys.readouterr().out


def test_the_budget_is_part_of_the_installed_command(tmp_path):
    assert run("check", saved(tmp_path), "--max-epsilon=2").returncode == 1


@pytest.mark.parametrize("proved", [1.5, None])
def test_an_unknown_spent_epsilon_is_inconclusive(tmp_path, proved, capsys):
    path = saved(tmp_path, spent=None, proved=proved)
    assert check(path, "--max-epsilon", "100") == 2
    assert "INCONCLUSIVE: the report holds no epsilon" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outcome", "spent", "expected"),
    [
        ("VIOLATION", 1.6, "VIOLATION"),
        ("VIOLATION", None, "VIOLATION"),
        ("INCONCLUSIVE", 1.6, "INCONCLUSIVE"),
        ("INCONCLUSIVE", 9.0, "VIOLATION"),
        ("PASS", None, "INCONCLUSIVE"),
        ("PASS", float("inf"), "VIOLATION"),
    ],
)
def test_the_worse_of_verdict_and_budget_decides(tmp_path, outcome, spent, expected):
    path = saved(tmp_path, outcome, claimed=None, spent=spent)
    assert check(path, "--max-epsilon", "2") == EXIT_CODES[expected]


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "much"])
def test_a_budget_that_is_no_positive_number_is_a_usage_error(tmp_path, limit, capsys):
    path = saved(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        check(path, f"--max-epsilon={limit}")
    assert exit_.value.code == 2
    streams = capsys.readouterr()
    assert "usage:" in streams.err
    assert limit in streams.err
    assert streams.out == ""


@pytest.mark.parametrize("arguments", [[], ["check"], ["audit"]])
def test_a_command_without_its_parts_is_a_usage_error(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main.main(arguments)
    assert exit_.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as exit_:
        main.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


LISTS_MODULES = """
import sys
from lightning_audit.cli import main as cli
code = cli.main(sys.argv[1:])
print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}))
sys.exit(code)
"""
COUNTS = {"false_negatives": [2], "n_in": 9, "false_positives": [1], "n_out": 9, "delta": 0.01}


@pytest.mark.parametrize(
    "arguments",
    [
        "check report.json --max-epsilon 5",
        "card report.json",
        "bound held.npz --method fdp_t --delta 1e-5",
        "epsilon-star held.npz --delta 0.1 --permutations 9",
        "mcmc counts.json",
        "power --claimed-epsilon 4 --true-epsilon 6 --delta 1e-5",
    ],
)
@pytest.mark.one_in(3)
def test_a_command_that_does_not_train_loads_neither_torch_nor_lightning_nor_opacus(
    tmp_path, arguments
):
    saved(tmp_path)
    (tmp_path / "counts.json").write_text(json.dumps(COUNTS))
    names = ("scores_in", "scores_out", "losses_train", "losses_population")
    np.savez(tmp_path / "held.npz", **{name: np.arange(9.0) for name in names})
    done = subprocess.run(
        [sys.executable, "-c", LISTS_MODULES, *arguments.split()],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split()[1:])
    assert "lightning_audit" in loaded
    assert loaded.isdisjoint({"torch", "pytorch_lightning", "lightning", "opacus"})


@pytest.mark.parametrize("outcome", ["PASS", "VIOLATION"])
def test_a_reader_that_has_enough_leaves_the_exit_code_alone(tmp_path, outcome):
    report = saved(tmp_path, outcome)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [COMMAND, "check", report], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (EXIT_CODES[outcome], "")


# ------------------------------------------------------------------ folders of trainings


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (("PASS", "PASS"), "PASS"),
        (("PASS", "INCONCLUSIVE"), "INCONCLUSIVE"),
        (("PASS", "VIOLATION"), "VIOLATION"),
        (("VIOLATION", "INCONCLUSIVE"), "VIOLATION"),
        (("INCONCLUSIVE", "PASS", "VIOLATION"), "VIOLATION"),
    ],
)
def test_the_worst_of_a_folders_trainings_counts_and_each_is_shown(
    tmp_path, outcomes, expected, capsys
):
    paths = []
    for number, outcome in enumerate(outcomes, 1):
        folder = tmp_path / f"run-{number}" if number > 1 else tmp_path
        folder.mkdir(exist_ok=True)
        paths.append(saved(folder, outcome))
    assert check(tmp_path) == EXIT_CODES[expected]
    shown = capsys.readouterr().out
    *rows, blank, last = shown.splitlines()
    assert [row[2:].split()[1] for row in rows] == list(outcomes)  # a line each
    assert blank == ""
    worst = paths[outcomes.index(expected)]
    assert last == f"{expected} is the worst verdict of {len(paths)} trainings: {worst}"
    assert check(paths[0]) == EXIT_CODES[outcomes[0]]  # by its own name it stands alone


def test_the_budget_is_held_against_every_training(tmp_path):
    saved(tmp_path, spent=1.9, proved=1.0)
    (tmp_path / "run-2").mkdir()
    saved(tmp_path / "run-2", spent=3.0)
    assert check(tmp_path, "--max-epsilon", "4") == 0
    assert check(tmp_path, "--max-epsilon", "2") == 1


def test_what_was_set_aside_counts_no_more(tmp_path):
    saved(tmp_path)
    for folder in (tmp_path / "previous-1", tmp_path / "run-2" / "previous-1"):
        folder.mkdir(parents=True)
        saved(folder, "VIOLATION")
    assert check(tmp_path) == 0
    assert check(tmp_path / "previous-1") == 1


@pytest.mark.parametrize("left", ["observations.bin", "observations-2.bin", "report.json"])
def test_a_training_without_a_report_that_can_be_read_is_inconclusive(tmp_path, left, capsys):
    saved(tmp_path)
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / left).write_bytes(b"")
    assert check(tmp_path) == 2
    told = capsys.readouterr()
    assert "INCONCLUSIVE is the worst verdict of 2 trainings" in told.out
    lack = "holds the record of a training and no report.json"
    assert f"{str(tmp_path / 'run-2')!r} {lack}" in told.err or left == "report.json"


def test_a_folder_that_cannot_be_searched_is_inconclusive(tmp_path, monkeypatch, capsys):
    saved(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir()
    scandir = os.listdir

    def refuse(path: Any) -> Any:  # root may read everything, so that no mode can be set
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert check(tmp_path) == 2
    assert "cannot list the trainings in" in capsys.readouterr().err


# --- Files that never end, lie about their size or write to the terminal, one by one.

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
def test_what_is_no_regular_file_is_refused_at_once(command, tmp_path, kind, name, arguments):
    KINDS[kind](tmp_path / name)
    told = command(*arguments, tmp_path / name)
    assert told["code"] == 2
    assert re.search(rf"{name}.*(it is a {kind}; name a regular|No such|directory)", told["err"])
    assert "Traceback" not in told["err"]


@pytest.mark.parametrize(("limit", "code"), [("70", 0), ("69", 2)])
def test_the_limit_is_of_all_values_that_are_read(tmp_path, limit, code):
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
def test_nothing_that_a_report_says_acts_on_the_terminal(tmp_path, capsys, command):
    path = hostile_report().save(tmp_path / "report.json")
    main.main([command, str(path)])
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    if command == "show":
        assert out.count(SHOWN) >= 4 + len(hostile_report().checks)
    assert r"\x1b[2K\rPASS" in out
    assert not any(line.startswith("PASS: forged") for line in out.splitlines())
    assert as_text(hostile_report()).replace("\n", "").isprintable()


def test_a_contradiction_shows_nothing_of_the_file_that_acts_on_the_terminal(tmp_path, capsys):
    made = hostile_report()
    checks = tuple(dataclasses.replace(c, name=HOSTILE) for c in made.checks)
    path = dataclasses.replace(made, checks=checks).save(tmp_path / "report.json")
    assert main.main(["check", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.replace("\n", "").isprintable()
    assert not any(line.startswith("PASS: forged") for line in err.splitlines())


def test_text_of_a_report_is_drawn_as_it_stands(tmp_path):
    """No formula (an unfinished one is an error), no escape, no label that is left out."""
    path = save_figure(hostile_report(), tmp_path / "report.svg")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("name", ["scores_in", "header", "coins"])
def test_names_and_messages_of_a_refused_file_are_escaped(tmp_path, name, capsys):
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


def test_a_path_that_is_no_utf8_is_read_again(tmp_path):
    made = AuditReport.from_json(json.dumps(files.report()))
    path = dataclasses.replace(made, settings={"\udcff": "a\udcff"}).save(tmp_path / "r.json")
    assert AuditReport.load(path).settings == {r"\udcff": r"a\udcff"}


def test_text_that_the_output_cannot_hold_is_escaped(tmp_path):
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


def test_a_fault_of_the_command_itself_is_no_violation(tmp_path, monkeypatch, capsys):
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
def test_a_record_whose_header_is_garbled_is_no_record(tmp_path, changes):
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
def test_the_library_refuses_what_the_command_refuses(tmp_path, kind, name, read):
    KINDS[kind](tmp_path / name)
    with pytest.raises((ValueError, OSError), match=f"{kind}|No such"):
        read(tmp_path / name)


@pytest.mark.parametrize("record", ["../secret.bin", "a/observations.bin", "\x1b.bin", "x.npz"])
def test_a_record_that_a_report_names_is_beside_it(tmp_path, record):
    (tmp_path / "report.json").write_text(signed({**files.report(), "record": record}))
    with pytest.raises(ScoresError, match=r"must be observations\.bin or observations-N\.bin"):
        CanaryScores.load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (positive, "1e-300", 1e-300),
        (positive, "inf", float("inf")),
        (whole, "-3", -3),
        (whole, str(2**63 - 1), 2**63 - 1),
        (positive_int, "1", 1),
    ],
)
def test_numbers_at_the_ends_are_read(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (positive, "0", "'0' must be a number > 0"),
        (positive, "nan", "'nan' must be a number > 0"),
        (positive, "much", "'much' must be a number > 0"),
        (whole, str(2**63), "must be a whole number, below 2^63"),
        (whole, "1.5", "'1.5' must be a whole number, below 2^63"),
        (whole, "9" * 5000, "must be a whole number, below 2^63"),
        (positive_int, "0", "'0' must be a whole number >= 1"),
    ],
)
def test_what_is_no_such_number_is_refused_with_what_is_allowed(kind, text, told):
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        kind(text)
    assert told in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_the_limit_of_what_is_read_is_the_readers_own_unless_another_is_given():
    parser = argparse.ArgumentParser()
    add_max_values(parser)
    assert parser.parse_args([]).max_values == MAX_VALUES
    assert parser.parse_args(["--max-values=5"]).max_values == 5


def test_a_letter_that_the_output_lacks_is_written_escaped():
    written = io.BytesIO()
    stream = IgnoreBrokenPipe(io.TextIOWrapper(written, encoding="ascii"))
    stream.write("größer")
    stream.flush()
    assert written.getvalue() == rb"gr\xf6\xdfer"


def test_what_nobody_reads_is_dropped_and_writing_goes_on():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        stream = IgnoreBrokenPipe(closed)
        assert stream.write("x" * 100_000) == 100_000
        stream.flush()
        stream.write("more")
        stream.flush()


def test_a_refusal_is_one_line_on_standard_error(capsys):
    assert refused("one\ntwo\x1b") == 2
    assert capsys.readouterr() == ("", "lightning-audit: one\\ntwo\\x1b\n")


def test_an_error_of_this_package_is_told_with_its_place():
    try:
        json.loads("{")
    except ValueError as error:
        told = own_fault(error)
    assert told.startswith(f"{OWN_FAULT}: JSONDecodeError: Expecting property name")
    assert " of json.decoder)" in told


def test_infinite_numbers_are_text_in_json_at_any_depth():
    fields = {"epsilon": math.inf, "null": {"median": -math.inf}, "interval": (0.5, math.inf)}
    assert json.loads(as_json(fields)) == {
        "epsilon": "inf",
        "null": {"median": "-inf"},
        "interval": [0.5, "inf"],
    }
