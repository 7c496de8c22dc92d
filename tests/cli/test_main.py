from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_report import made_report

from lightning_audit import __version__
from lightning_audit.cli import main
from lightning_audit.report.text import summary
from lightning_audit.results.audit_report import EXIT_CODES, Outcome

COMMAND = Path(sysconfig.get_path("scripts")) / "lightning-audit"


def saved(directory: Path, outcome: Outcome = "PASS", **changes: Any) -> Path:
    return made_report(outcome, **changes).save(directory / "report.json")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("outcome", ["PASS", "VIOLATION", "INCONCLUSIVE"])
def test_the_exit_code_is_that_of_the_verdict(tmp_path: Path, outcome: Outcome) -> None:
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
def test_a_truncated_or_absent_report_is_inconclusive_and_says_why_on_stderr(
    tmp_path: Path, name: str, told: str
) -> None:
    path = saved(tmp_path)
    path.write_text(path.read_text()[:200])
    done = run("check", tmp_path / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def check(path: Path, *arguments: str) -> int:
    return main.main(["check", str(path), *arguments])


def test_a_directory_stands_for_the_report_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = saved(tmp_path, "VIOLATION")
    assert check(tmp_path) == 1
    assert f"lightning-audit show {report}" in capsys.readouterr().out


def test_a_directory_without_a_report_is_inconclusive_and_says_what_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_a_budget_is_kept_when_no_epsilon_exceeds_it(
    tmp_path: Path, limit: str, code: int, changes: dict[str, Any]
) -> None:
    assert check(saved(tmp_path, **changes), "--max-epsilon", limit) == code


@pytest.mark.parametrize(
    ("limit", "which"), [("2", "epsilon spent 3"), ("1", "epsilon proved 1.5, spent 3")]
)
def test_an_exceeded_budget_names_the_epsilon_that_exceeds_it(
    tmp_path: Path, limit: str, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(saved(tmp_path), "--max-epsilon", limit)
    assert f"VIOLATION of --max-epsilon {limit}: {which}" in capsys.readouterr().out


def test_the_budget_is_part_of_the_installed_command(tmp_path: Path) -> None:
    assert run("check", saved(tmp_path), "--max-epsilon=2").returncode == 1


@pytest.mark.parametrize("proved", [1.5, None])
def test_an_unknown_spent_epsilon_is_inconclusive(
    tmp_path: Path, proved: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_the_worse_of_verdict_and_budget_decides(
    tmp_path: Path, outcome: Outcome, spent: float | None, expected: Outcome
) -> None:
    path = saved(tmp_path, outcome, claimed=None, spent=spent)
    assert check(path, "--max-epsilon", "2") == EXIT_CODES[expected]


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "much"])
def test_a_budget_that_is_no_positive_number_is_a_usage_error(
    tmp_path: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        check(path, f"--max-epsilon={limit}")
    assert exit_.value.code == 2
    streams = capsys.readouterr()
    assert "usage:" in streams.err
    assert limit in streams.err
    assert streams.out == ""


@pytest.mark.parametrize("arguments", [[], ["check"], ["audit"]])
def test_a_command_without_its_parts_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main.main(arguments)
    assert exit_.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
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
    tmp_path: Path, arguments: str
) -> None:
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
def test_a_reader_that_has_enough_leaves_the_exit_code_alone(
    tmp_path: Path, outcome: Outcome
) -> None:
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
    tmp_path: Path,
    outcomes: tuple[Outcome, ...],
    expected: Outcome,
    capsys: pytest.CaptureFixture[str],
) -> None:
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


def test_the_budget_is_held_against_every_training(tmp_path: Path) -> None:
    saved(tmp_path, spent=1.9, proved=1.0)
    (tmp_path / "run-2").mkdir()
    saved(tmp_path / "run-2", spent=3.0)
    assert check(tmp_path, "--max-epsilon", "4") == 0
    assert check(tmp_path, "--max-epsilon", "2") == 1


def test_what_was_set_aside_counts_no_more(tmp_path: Path) -> None:
    saved(tmp_path)
    for folder in (tmp_path / "previous-1", tmp_path / "run-2" / "previous-1"):
        folder.mkdir(parents=True)
        saved(folder, "VIOLATION")
    assert check(tmp_path) == 0
    assert check(tmp_path / "previous-1") == 1


@pytest.mark.parametrize("left", ["observations.bin", "observations-2.bin", "report.json"])
def test_a_training_without_a_report_that_can_be_read_is_inconclusive(
    tmp_path: Path, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path)
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / left).write_bytes(b"")
    assert check(tmp_path) == 2
    told = capsys.readouterr()
    assert "INCONCLUSIVE is the worst verdict of 2 trainings" in told.out
    lack = "holds the record of a training and no report.json"
    assert f"{str(tmp_path / 'run-2')!r} {lack}" in told.err or left == "report.json"


def test_a_folder_that_cannot_be_searched_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
