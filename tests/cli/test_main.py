"""The command as a whole: exit codes, budgets, folders, and files that lie, hang or pose."""

import argparse
import dataclasses
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
from lightning_audit.cli.main import positive, positive_int, whole
from lightning_audit.record.scores import CanaryScores, ScoresError
from lightning_audit.record.store import read_observations
from lightning_audit.report.figure import save_figure
from lightning_audit.report.text import as_shown, summary
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError

COMMAND = Path(sysconfig.get_path("scripts")) / "lightning-audit"


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.run([*map(str, command)], timeout=60, **given)


@pytest.mark.parametrize("outcome", EXIT_CODES)
def test_the_exit_code_is_that_of_the_verdict(saved, outcome):
    path = saved("", outcome)
    done = run(COMMAND, "check", path)
    assert (done.returncode, done.stderr) == (EXIT_CODES[outcome], "")
    assert done.stdout == f"{summary(made_report(outcome), path)}\n"


@pytest.mark.parametrize(
    ("limit", "code", "changes"),
    [
        *(("5", 0, {}), ("3", 0, {}), ("2.9", 1, {}), ("1", 1, {}), ("inf", 0, {})),
        # The proved one exceeds it where the spent one is unknown.
        ("1", 1, {"outcome": "INCONCLUSIVE", "spent": None}),
        ("3.5", 0, {"proved": None}),
    ],
)
def test_a_budget_is_kept_when_no_epsilon_exceeds_it(cli, saved, limit, code, changes):
    assert cli("check", saved(**changes), "--max-epsilon", limit).code == code


@pytest.mark.parametrize(
    ("outcome", "spent", "expected"),
    [
        ("VIOLATION", 1.6, "VIOLATION"),
        ("VIOLATION", None, "VIOLATION"),
        ("INCONCLUSIVE", 1.6, "INCONCLUSIVE"),
        ("INCONCLUSIVE", 9.0, "VIOLATION"),
        ("PASS", None, "INCONCLUSIVE"),
        ("PASS", math.inf, "VIOLATION"),
    ],
)
def test_the_worse_of_verdict_and_budget_decides(cli, saved, outcome, spent, expected):
    path = saved("", outcome, claimed=None, spent=spent)
    assert cli("check", path, "--max-epsilon", "2").code == EXIT_CODES[expected]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        *(("", ""), ("check", ""), ("audit", "")),
        *((f"check {{}} --max-epsilon={limit}", limit) for limit in ("0", "-1", "nan", "much")),
        *((f"check {{}} --max-regression={limit}", limit) for limit in ("-1", "nan", "much")),
        *((f"selftest --jobs={n}", "must be a whole number") for n in ("0", "-1", "two", "1.5")),
    ],
)
def test_a_command_without_its_parts_or_with_no_number_for_one_is_a_usage_error(
    cli, saved, arguments, told
):
    said = cli(*arguments.format(saved()).split())
    assert (said.code, said.out) == (2, "")
    assert "usage:" in said.err
    assert told in said.err


def test_the_version_is_the_packages(cli):
    assert cli("--version") == (0, f"{__version__}\n", "")
    assert run(sys.executable, "-m", "lightning_audit", "--version").stdout == f"{__version__}\n"


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
        "report report.json",
        "bound held.npz --method fdp_t --delta 1e-5",
        "epsilon-star held.npz --delta 0.1 --permutations 9",
        "mcmc counts.json",
        "power --claimed-epsilon 4 --true-epsilon 6 --delta 1e-5",
    ],
)
@pytest.mark.one_in(6)
@pytest.mark.heavy_one_in(6)
def test_a_command_that_does_not_train_loads_neither_torch_nor_lightning_nor_opacus(
    tmp_path, saved, arguments
):
    saved()
    (tmp_path / "counts.json").write_text(json.dumps(COUNTS))
    names = ("scores_in", "scores_out", "losses_train", "losses_population")
    np.savez(tmp_path / "held.npz", **{name: np.arange(9.0) for name in names})
    done = run(sys.executable, "-c", LISTS_MODULES, *arguments.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split()[1:])
    assert "lightning_audit" in loaded
    assert loaded.isdisjoint({"torch", "pytorch_lightning", "lightning", "opacus", "matplotlib"})


@pytest.fixture
def unread():
    """A pipe whose reader has enough."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        yield closed


def test_a_reader_that_has_enough_leaves_the_exit_code_alone(saved, unread):
    done = run(COMMAND, "check", saved("", "VIOLATION"), stdout=unread)
    assert (done.returncode, done.stderr) == (1, "")


# --- Folders of trainings.


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (("PASS", "PASS"), "PASS"),
        (("PASS", "INCONCLUSIVE"), "INCONCLUSIVE"),
        (("INCONCLUSIVE", "PASS", "VIOLATION"), "VIOLATION"),
    ],
)
def test_the_worst_of_a_folders_trainings_counts_and_each_is_shown(
    tmp_path, cli, saved, outcomes, expected
):
    folders = ["", *(f"run-{number}" for number in range(2, len(outcomes) + 1))]
    paths = [saved(*one) for one in zip(folders, outcomes, strict=True)]
    said = cli("check", tmp_path)
    assert said.code == EXIT_CODES[expected]
    *rows, blank, last = said.lines
    assert [row[2:].split()[1] for row in rows] == list(outcomes)  # a line each
    assert blank == ""
    worst = paths[outcomes.index(expected)]
    assert last == f"{expected} is the worst verdict of {len(paths)} trainings: {worst}"
    assert cli("check", paths[0]).code == EXIT_CODES[outcomes[0]]  # by its name it stands alone


def test_what_was_set_aside_counts_no_more(tmp_path, cli, saved):
    saved()
    for folder in ("previous-1", "run-2/previous-1"):
        saved(folder, "VIOLATION")
    assert cli("check", tmp_path).code == 0
    assert cli("check", tmp_path / "previous-1").code == 1


@pytest.mark.parametrize("left", ["observations.bin", "observations-2.bin", "report.json"])
def test_a_training_without_a_report_that_can_be_read_is_inconclusive(tmp_path, cli, saved, left):
    saved()
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / left).write_bytes(b"")
    said = cli("check", tmp_path)
    assert said.code == 2
    assert "INCONCLUSIVE is the worst verdict of 2 trainings" in said.out
    lack = "holds the record of a training and no report.json"
    assert f"{str(tmp_path / 'run-2')!r} {lack}" in said.err or left == "report.json"


def test_a_folder_that_cannot_be_searched_is_inconclusive(tmp_path, cli, saved, monkeypatch):
    saved()
    closed = tmp_path / "closed"
    closed.mkdir()
    scandir = os.listdir

    def refuse(path: Any) -> Any:  # root may read everything, so that no mode can be set
        if os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    said = cli("check", tmp_path)
    assert said.code == 2
    assert "cannot list the trainings in" in said.err


# --- Files that never end, lie about their size or write to the terminal, one by one.

HOSTILE = "\x1b[2K\rPASS\x9b31m\x1b]0;t\x07\u202ea\x00b\nPASS: forged"
SHOWN = r"\x1b[2K\rPASS\x9b31m\x1b]0;t\x07\u202ea\x00b\nPASS: forged"


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(path.parent)  # a path of a socket may have 100 characters
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


KINDS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": unix_socket,
    "directory": Path.mkdir,
}
BOUND = ("bound", "--method=eps_cp", "--delta=1e-5")
STAR = ("epsilon-star", "--delta=1e-3")
#: For each file that the command reads its arguments, and what reads it in the library.
READERS = {
    "s.npz": (BOUND, CanaryScores.from_npz),
    "s.csv": (BOUND, CanaryScores.from_table),
    "r.json": (BOUND, CanaryScores.from_report),
    "l.npz": (STAR, None),
    "l.csv": (STAR, None),
    "c.json": (("mcmc",), None),
    "report.json": (("check",), None),
    "o.bin": (None, read_observations),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_at_once(command, tmp_path, kind):
    for name, (arguments, read) in READERS.items():
        path = tmp_path / name
        KINDS[kind](path)
        if arguments:
            told = command(*arguments, path)
            assert told["code"] == 2
            why = f"it is a {kind}; name a regular|No such|directory"
            assert re.search(rf"{name}.*({why})", told["err"])
            assert "Traceback" not in told["err"]
        if read:
            with pytest.raises((ValueError, OSError), match=f"{kind}|No such"):
                read(path)


@pytest.mark.parametrize(("limit", "code"), [("70", 0), ("69", 2)])
def test_the_limit_is_of_all_values_that_are_read(tmp_path, cli, limit, code):
    rng = np.random.default_rng(0)
    scores = {"scores_in": rng.normal(1, 1, 40), "scores_out": rng.normal(0, 1, 30)}
    np.savez(tmp_path / "s.npz", **scores, unread=np.zeros(1000))
    rows = [f"{x},{side}" for side, held in enumerate(scores.values()) for x in held]
    (tmp_path / "s.csv").write_text("\n".join(["score,in", *rows]))
    for name in ("s.npz", "s.csv"):
        assert cli(*BOUND, tmp_path / name, f"--max-values={limit}").code == code


def hostile_report() -> AuditReport:
    """A report with hostile text wherever it has text."""
    made = AuditReport.from_json(made_report("VIOLATION").to_json())
    verdict = dataclasses.replace(made.verdict, summary=HOSTILE, advice=HOSTILE)
    checks = tuple(dataclasses.replace(c, message=HOSTILE) for c in made.checks)
    epochs = ({"step": 1.0, "epsilon_lower/_$\\frac{" + HOSTILE: 1.0},)
    texts = {"notes": (HOSTILE,), "created": HOSTILE, "epochs": epochs}
    return dataclasses.replace(made, verdict=verdict, checks=checks, **texts)


@pytest.mark.parametrize("command", ["check", "show"])
def test_nothing_that_a_report_says_acts_on_the_terminal(tmp_path, cli, command):
    said = cli(command, hostile_report().save(tmp_path / "report.json"))
    assert said.out.replace("\n", "").isprintable()
    own = [check for check in as_shown(hostile_report()) if check.message == HOSTILE]
    assert command == "check" or said.out.count(SHOWN) >= 4 + len(own) > 20
    assert r"\x1b[2K\rPASS" in said.out
    assert not any(line.startswith("PASS: forged") for line in said.lines)
    assert as_text(hostile_report()).replace("\n", "").isprintable()


def test_a_contradiction_shows_nothing_of_the_file_that_acts_on_the_terminal(tmp_path, cli):
    made = hostile_report()
    checks = tuple(dataclasses.replace(c, name=HOSTILE) for c in made.checks)
    said = cli("check", dataclasses.replace(made, checks=checks).save(tmp_path / "report.json"))
    assert said.code == 2
    assert said.err.replace("\n", "").isprintable()
    assert not any(line.startswith("PASS: forged") for line in said.err.splitlines())


def test_text_of_a_report_is_drawn_as_it_stands(tmp_path):
    """No formula (an unfinished one is an error), no escape, no label that is left out."""
    assert save_figure(hostile_report(), tmp_path / "report.svg").stat().st_size > 1000


@pytest.mark.parametrize("name", ["scores_in", "header", "coins"])
def test_names_and_messages_of_a_refused_file_are_escaped(tmp_path, cli, name):
    text = signed({**files.report(), HOSTILE: 1, "steps": HOSTILE})
    archive = files.archive({name: b"", HOSTILE.replace("\0", ""): b""})
    for arguments, file, data in (
        (BOUND, "s.npz", archive),
        (BOUND, "s.csv", HOSTILE.encode()),
        (("mcmc",), "c.json", json.dumps({HOSTILE: 1}).encode()),
        (("check",), "report.json", text.encode()),
    ):
        (tmp_path / file).write_bytes(data)
        said = cli(*arguments, tmp_path / file)
        assert said.err.count("\n") == 1
        assert said.err.replace("\n", "").isprintable()
    with pytest.raises(ReportError) as refusal:
        AuditReport.from_json(text)
    assert str(refusal.value).isprintable()


def test_a_path_that_is_no_utf8_is_read_again(tmp_path):
    made = AuditReport.from_json(json.dumps(files.report()))
    path = dataclasses.replace(made, settings={"\udcff": "a\udcff"}).save(tmp_path / "r.json")
    assert AuditReport.load(path).settings == {r"\udcff": r"a\udcff"}


def test_text_that_the_output_cannot_hold_is_escaped(saved):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    show = ("-m", "lightning_audit.cli.main", "show", saved(notes=("größer",)))
    done = run(sys.executable, *show, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"Note: gr\xf6\xdfer" in done.stdout


def test_a_fault_of_the_command_itself_is_no_violation(tmp_path, cli, monkeypatch):
    def broken(options: object) -> int:
        raise KeyError("\x1b[31m")

    monkeypatch.setattr("lightning_audit.cli.check.run_check", broken)
    said = cli("check", tmp_path)
    assert said.code == 2
    told = r"lightning-audit: a bug in lightning-audit: KeyError: '\x1b[31m' (li"
    assert said.err.startswith(told)
    assert said.err.rstrip("\n").isprintable()


@pytest.mark.parametrize("record", ["../secret.bin", "a/observations.bin", "\x1b.bin", "x.npz"])
def test_a_record_that_a_report_names_is_beside_it(tmp_path, record):
    (tmp_path / "report.json").write_text(signed({**files.report(), "record": record}))
    with pytest.raises(ScoresError, match=r"must be observations\.bin or observations-N\.bin"):
        CanaryScores.load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (positive, "0", "'0' must be a number > 0"),
        (whole, str(2**63), "must be a whole number, below 2^63"),
        (whole, "9" * 5000, "must be a whole number, below 2^63"),
        (positive_int, "0", "'0' must be a whole number >= 1"),
    ],
)
def test_what_is_no_such_number_is_refused_with_what_is_allowed(kind, text, told):
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        kind(text)
    assert told in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_what_nobody_reads_is_dropped_and_writing_goes_on(unread):
    stream = main.IgnoreBrokenPipe(unread)
    assert stream.write("x" * 100_000) == 100_000
    stream.flush()
    stream.write("more")
    stream.flush()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_options(cli, shell, monkeypatch):
    said = cli("--print-completion", shell)
    assert said.code == 0
    assert all(name in said.out for name in ("audit-training", "max-epsilon", "score-column"))
    monkeypatch.setitem(sys.modules, "shtab", None)
    without = cli("--print-completion", shell)
    assert without.code == 2
    assert "shtab is not installed; run pip install '.[completion]'" in without.err
