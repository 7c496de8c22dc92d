"""`lightning-audit check --baseline` compares with an earlier report, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_report import made_report

from lightning_audit.cli import main
from lightning_audit.cli.check import FORMATS
from lightning_audit.results.audit_report import Outcome

Streams = pytest.CaptureFixture[str]


def saved(directory: Path, outcome: Outcome = "PASS", **changes: Any) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    return str(made_report(outcome, **changes).save(directory / "report.json"))


def check(*arguments: str) -> int:
    return main.main(["check", *arguments])


@pytest.mark.parametrize(
    ("changes", "options", "code"),
    [
        ({}, (), 0),
        ({"spent": 2.0}, (), 0),
        ({"spent": 3.2}, (), 1),
        ({"spent": 3.2}, ("--max-regression", "0.3"), 0),
        ({"spent": 3.2}, ("--max-regression=0.1",), 1),
        ({"proved": 1.6}, (), 1),
        ({"spent": None}, (), 2),
        ({"spent": None, "proved": 2.0}, (), 1),
    ],
)
def test_a_pass_fails_if_it_became_worse_than_its_baseline(
    tmp_path: Path, changes: dict[str, Any], options: tuple[str, ...], code: int, capsys: Streams
) -> None:
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new", claimed=None, **changes)
    assert check(new, "--baseline", old, *options) == code
    lines = capsys.readouterr().out.splitlines()
    if code:
        outcome = "VIOLATION" if code == 1 else "INCONCLUSIVE"
        assert any(line.startswith(f"{outcome} against --baseline {old}: ") for line in lines[:2])
    else:
        assert lines[-1] == f"nothing became worse since --baseline {old}"


def test_a_newly_failed_check_is_named(tmp_path: Path, capsys: Streams) -> None:
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new", "VIOLATION")
    assert check(new, f"--baseline={old}", "--format=json") == 1
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    told = f"VIOLATION against --baseline {old}: newly failed: noise"
    assert report["gate"] == [{"rule": "baseline", "outcome": "VIOLATION", "message": told}]


def _cut(path: Path) -> str:
    path.write_text(path.read_text()[:500])
    return "not complete JSON"


def _newer(path: Path) -> str:
    path.write_text(path.read_text().replace('"schema_version": 6', '"schema_version": 7'))
    return "upgrade lightning-audit"


def _edited(path: Path) -> str:
    path.write_text(path.read_text().replace('"steps": 100', '"steps": 101', 1))
    return "SHA-256"


def _of_another(path: Path) -> str:
    made_report(delta=1e-6).save(path)
    return "contradicts itself"


def _absent(path: Path) -> str:
    path.unlink()
    return "No such file"


def _folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "a directory"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("change", [_cut, _newer, _edited, _of_another, _absent, _folder])
def test_a_baseline_that_cannot_be_read_never_passes(
    tmp_path: Path, name: str, change: Any, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new")
    told = change(Path(old))
    assert check(new, "--baseline", old, "--format", name) == 2
    out = capsys.readouterr().out
    assert told in out
    assert "INCONCLUSIVE" in out
    assert "Traceback" not in out


def test_the_report_of_another_training_is_no_baseline(tmp_path: Path, capsys: Streams) -> None:
    made = made_report()
    settings = {**made.settings, "delta": 1e-6}
    old = saved(tmp_path / "old", claimed=None, spent=None, delta=1e-6, settings=settings)
    new = saved(tmp_path / "new", claimed=None)
    assert check(new, "--baseline", old) == 2
    first = capsys.readouterr().out.splitlines()[0]
    reason = "its delta: 1e-06, here 1e-05"
    assert first == (f"INCONCLUSIVE: --baseline {old} is the report of another training: {reason}")


def test_a_violation_stays_one_if_its_baseline_is_unreadable(tmp_path: Path) -> None:
    assert check(saved(tmp_path, "VIOLATION"), "--baseline", str(tmp_path / "absent")) == 1


def test_options_that_do_not_go_together_are_refused(tmp_path: Path, capsys: Streams) -> None:
    one, other = saved(tmp_path / "one"), saved(tmp_path / "other")
    assert check(one, other, "--baseline", one) == 2
    assert "--baseline is the report of one training, and 2 are given" in capsys.readouterr().err
    assert check(one, "--max-regression", "1") == 2
    assert "add --baseline report.json" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["-1", "nan", "much"])
def test_a_limit_that_is_no_number_is_a_usage_error(tmp_path: Path, limit: str) -> None:
    path = saved(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        check(path, "--baseline", path, f"--max-regression={limit}")
    assert exit_.value.code == 2
