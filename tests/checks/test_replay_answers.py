"""What examinations came to: counts where all is right, two digits where something is wrong."""

from __future__ import annotations

import json
import math

import pytest

from lightning_audit.checks.replay import REPLAY_CHECKS, Answer, ExaminationLog
from lightning_audit.checks.replay_findings import Finding
from lightning_audit.checks.replayed_noise import REPLAY_NOISE

FAR = Finding("without the first record", 3.14159, 1.0)


def result(log: ExaminationLog, name: str):
    return next(found for found in log.results(0.05) if found.name == name)


def test_before_anything_is_asked_no_check_ran_and_each_says_why() -> None:
    log = ExaminationLog(off="examinations=0")
    assert [found.name for found in log.results(0.05)] == [*REPLAY_CHECKS, REPLAY_NOISE.name]
    for found in log.results(0.05):
        assert found.status == "not_run"
        assert found.message == "not asked: examinations=0"
        assert not found.evidence


def test_counts_add_up_over_examinations() -> None:
    log = ExaminationLog()
    log.take(0, {"replay.sensitivity": Answer(5), "replay.clipping": Answer(7)})
    log.take(9, {"replay.sensitivity": Answer(6)})
    evidence = result(log, "replay.sensitivity").evidence
    assert evidence == {"examined": 2, "asked": 11, "findings": 0}
    assert log.asked("replay.clipping") == 7


def test_a_finding_has_the_first_step_and_two_digits() -> None:
    log = ExaminationLog()
    log.take(4, {"replay.sensitivity": Answer(5, (Finding("x", 2.0, 1.0), FAR))})
    log.take(8, {"replay.sensitivity": Answer(5, (Finding("y", 99.0, 1.0),))})
    found = result(log, "replay.sensitivity")
    assert found.status == "violated"
    assert (found.evidence["step"], found.evidence["size"]) == (4, 3.1)
    assert "without the first record: 3.1 C, at most 1 C is allowed" in found.message
    assert "3.14159" not in json.dumps(dict(found.evidence)) + found.message
    assert log.found


@pytest.mark.parametrize(("fine_before", "kind"), [(False, "none"), (True, "")])
def test_what_is_done_instead_of_clipping_is_not_known_where_earlier_steps_were_right(
    fine_before: bool, kind: str
) -> None:
    log = ExaminationLog()
    if fine_before:
        log.take(0, {"replay.clipping": Answer(8)})
    log.take(9, {"replay.clipping": Answer(8, (FAR,), kind="none")})
    assert result(log, "replay.clipping").evidence["kind"] == kind


def test_a_size_without_end_has_none() -> None:
    log = ExaminationLog()
    log.take(0, {"replay.clipping": Answer(1, (Finding("norm 1e5 C", math.inf, 1.0),))})
    found = result(log, "replay.clipping")
    assert found.evidence["size"] is None
    assert "not finite" in found.message
    json.dumps(dict(found.evidence), allow_nan=False)


def test_a_reason_stays_with_its_question() -> None:
    log = ExaminationLog()
    log.take(0, {"replay.release": Answer(reason="too small"), "replay.clipping": Answer(3)})
    assert result(log, "replay.release").message == "not asked: too small"
    assert result(log, "replay.clipping").status == "ok"


def test_a_state_holds_neither_which_steps_were_examined_nor_what_was_seen() -> None:
    log = ExaminationLog(between_epochs=2)
    log.take(3, {"replay.clipping": Answer(5, (FAR,))})
    again = ExaminationLog()
    again.load(json.loads(json.dumps(log.state())))
    assert result(again, "replay.clipping").status == "not_run"
    assert (again.steps, again.between_epochs) == ([], 2)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Answer(7), "nothing found, 7 asked"),
        (Answer(reason="too small"), "not asked: too small"),
        (Answer(7, (FAR,)), "1 of 7: without the first record: 3.1 C, at most 1 C is allowed"),
        (Answer(2, (Finding("buffers", 0.5, 0.0),)), "1 of 2: buffers"),
    ],
)
def test_a_line_says_what_came_of_a_question(answer: Answer, line: str) -> None:
    assert answer.describe() == line
