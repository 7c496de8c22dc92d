"""The command in this process, and reports for it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from made_report import made_report

from lightning_audit.cli.main import main


class Said(NamedTuple):
    """What a command ended with, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys):
    """Runs the command with these arguments, without a process of its own."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def saved(tmp_path):
    """Saves a report that is made with these arguments, in a folder of the test's own."""

    def save(folder: str = "", outcome: Any = "PASS", **changes: Any) -> Path:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        return made_report(outcome, **changes).save(tmp_path / folder / "report.json")

    return save
