"""`lightning-audit status`: lines, JSON and exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lightning_audit import audit_training
from lightning_audit.cli.main import main
from lightning_audit.many import ThisProcess

DATA = (np.eye(4, dtype=np.float32), np.arange(4))


def shows(dataset, seed):
    if seed % 5 == 0:
        raise MemoryError("record 17 is too large")
    return float(np.random.default_rng(seed).normal(len(dataset[0]), 0.1))


def audited(folder, **given):
    audit_training(
        shows,
        DATA,
        (1.0, 1e-5),
        store=folder,
        engine=ThisProcess(),
        display=False,
        **{"trainings": 40, "stop": "end", **given},
    )


def test_the_lines_of_an_audit_that_ended(tmp_path, capsys):
    audited(tmp_path)
    assert main(["status", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("trainings   40 of 40 planned have ended: ")
    assert " started again" in told[0]
    assert told[1].startswith("time        a training takes ")
    assert "left" not in told[1]
    assert told[2] == "claim       (1, 1e-05)-DP"
    assert told[3].startswith("evidence    ")
    assert told[3].endswith("; 10^3.0 refutes the claim")
    assert told[4] == "last error  MemoryError"
    assert told[5] == f"audit       ended; `lightning-audit check {tmp_path}` prints its verdict"
    assert len(told) == 6


def test_an_audit_without_a_report_is_continued(tmp_path, capsys):
    audited(tmp_path)
    (tmp_path / "report.json").unlink()
    assert main(["status", str(tmp_path)]) == 0
    assert "not running; the same command or call continues it" in capsys.readouterr().out


def test_json_has_the_same_numbers(tmp_path, capsys):
    audited(tmp_path)
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["planned"] == found["done"] + found["failed"] == 40
    assert found["started_again"] == found["failed"] > 0
    assert found["reported"] is True
    assert found["evidence"]["log10_refuting"] == pytest.approx(3.0)
    assert found["last_error"] == "MemoryError"


def test_a_folder_without_a_store_and_a_damaged_file_are_refused_in_a_sentence(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"lightning-audit: {tmp_path} holds no store: there is no trainings.sqlite in it.\n"
    )
    (tmp_path / "trainings.sqlite").write_bytes(b"x" * 5000)
    assert main(["status", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "cannot be read (file is not a database); restore trainings.sqlite" in told
    assert told.count("\n") == 1
