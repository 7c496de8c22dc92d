from __future__ import annotations

import pickle

import pytest
from stub_trainings import row, train

from lightning_audit.testing.selftest_pool import Broken, _answer


def test_an_answer_is_what_the_function_gives_for_the_row() -> None:
    assert _answer(pickle.dumps((train, row("first")))).fault == "first"


def test_an_error_is_an_answer_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    answer = _answer(pickle.dumps((train, row("raise"))))
    assert isinstance(answer, Broken)
    assert answer.error == "RuntimeError: the loss is"
    assert answer.seconds >= 0
    assert "selftest: RuntimeError: the loss is\nno number" in capsys.readouterr().err


def test_a_task_that_cannot_be_read_is_an_answer_too() -> None:
    assert "UnpicklingError" in _answer(b"garbled").error
