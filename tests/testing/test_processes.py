from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from faulty_trainings import Dies, row
from places import SUPPORT

from lightning_audit.testing.runs import train_together


@pytest.mark.heavy
def test_processes_that_break_off_are_an_error_with_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=":")

    fault = replace(row(Dies).fault, processes=2)
    with pytest.raises(RuntimeError, match=r"the processes ended with exit codes \[.*11"):
        train_together(fault, tmp_path / "audit")
