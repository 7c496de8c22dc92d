"""What examinations came to: counts where all is right, two digits where something is wrong."""

import json
import math
import pickle
from dataclasses import replace

import pytest
from declared import fault_of

from lightning_audit.checks.check import entailed, group
from lightning_audit.checks.replay import (
    COUPLING,
    REPLAY_CHECKS,
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
    Answer,
    Coupling,
    ExaminationLog,
    tolerance_of,
)
from lightning_audit.checks.replay_findings import _ELSE as FIX
from lightning_audit.checks.replay_findings import Finding, Reason, not_asked, unanswered
from lightning_audit.checks.replayed_noise import REPLAY_NOISE

# --- A record's gradient that changes beside others is a violation, and what is right is not told.


def changed(size: float) -> Answer:
    return Answer(1, (Finding("a record among others", size, 0.01),))


def test_a_change_is_a_violation_at_the_step_where_it_was_first_seen():
    assert tolerance_of(low_precision=True) > tolerance_of(low_precision=False)
    seen = Coupling()
    seen.take(0, Answer(1))
    assert seen.result().status == "ok"
    assert seen.result().evidence == {"replays": 1, "change": None, "step": None}
    seen = Coupling()
    for step, answer in ((0, Answer(1)), (8, changed(0.3)), (16, changed(0.5))):
        seen.take(step, answer)
    result = seen.result()
    assert (result.status, seen.step, seen.replays) == ("violated", 8, 3)
    assert result.evidence["change"] == 0.3
    assert "in step 9 a record's gradient changed by 0.3 of its norm" in result.message


@pytest.mark.parametrize(
    ("reason", "off", "message"),
    [
        ("", "", "no step was examined"),
        ("", "examinations=0", "examinations=0"),
        ("the batch cannot be copied", "", "the batch cannot be copied"),
    ],
)
def test_nothing_compared_is_not_run_and_says_why(reason, off, message):
    result = Coupling(reason=reason).result(off)
    assert (result.status, result.message) == ("not_run", message)


FAR = Finding("without the first record", 3.14159, 1.0)


def result(log: ExaminationLog, name: str):
    return next(found for found in log.results(0.05) if found.name == name)


def test_counts_add_up_over_examinations():
    log = ExaminationLog(off="examinations=0")
    assert [found.name for found in log.results(0.05)] == [*REPLAY_CHECKS, REPLAY_NOISE.name]
    for found in log.results(0.05):
        assert (found.status, found.message, found.evidence) == ("not_run", "examinations=0", {})
    log = ExaminationLog()
    log.take(0, {"replay.clipping": Answer(reason=Reason.OTHER_ROWS)})
    assert "a microbatch that shares a clip" in unanswered(result(log, "replay.clipping"))
    log = ExaminationLog()
    log.take(0, {"replay.release": Answer(reason="too small"), "replay.clipping": Answer(3)})
    assert result(log, "replay.release").message == "too small"
    assert result(log, "replay.clipping").status == "ok"
    log = ExaminationLog()
    log.take(0, {"replay.sensitivity": Answer(5), "replay.clipping": Answer(7)})
    log.take(9, {"replay.sensitivity": Answer(6)})
    assert result(log, "replay.sensitivity").evidence == {"examined": 2, "asked": 11, "findings": 0}
    assert log.asked("replay.clipping") == 7


def test_a_finding_has_the_first_step_and_two_digits():
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
def test_no_kind_is_told_where_earlier_steps_were_right(fine_before, kind):
    log = ExaminationLog()
    if fine_before:
        log.take(0, {"replay.clipping": Answer(8)})
    log.take(9, {"replay.clipping": Answer(8, (FAR,), kind="none")})
    assert result(log, "replay.clipping").evidence["kind"] == kind


def test_a_size_without_end_has_none():
    log = ExaminationLog()
    crafted = Finding("norm 1e5 C", math.inf, 1.0, whole=1e5)
    log.take(0, {"replay.clipping": Answer(1, (crafted,))})
    found = result(log, "replay.clipping")
    assert found.evidence["size"] is None
    said = "with a crafted gradient (norm 1e5 C) the gradient of the step is not finite"
    assert said in found.message
    json.dumps(dict(found.evidence), allow_nan=False)


@pytest.mark.parametrize("leaks", [True, False])
def test_what_leaks_into_weights_is_of_the_largest_finding(leaks):
    log, found = ExaminationLog(), Finding("the state, without a record", 0.5, 0.0)
    assert not log.leaks_into_weights
    largest = Finding("the state, without a record", 0.7, 0.0, in_weights=leaks)
    log.take(0, {"replay.release": Answer(2, (found, largest))})
    assert log.leaks_into_weights == leaks


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Answer(7), "nothing found, 7 asked"),
        (Answer(reason="too small"), "not asked: too small"),
        (Answer(7, (FAR,)), "1 of 7: without the first record: 3.1 C, at most 1 C is allowed"),
        (Answer(2, (Finding("buffers", 0.5, 0.0),)), "1 of 2: buffers"),
    ],
)
def test_a_line_says_what_came_of_a_question(answer, line):
    assert answer.describe() == line


ALL = (REPLAY_SENSITIVITY, REPLAY_CLIPPING, REPLAY_RELEASE)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (REPLAY_SENSITIVITY, "one_record_moves_too_much"),
        (REPLAY_CLIPPING, "some_gradients_not_clipped"),
        (REPLAY_RELEASE, "more_than_the_release"),
    ],
)
def test_one_finding_is_a_fault_and_none_is_fine(check, fault):
    assert fault_of(check, {"findings": 1, "asked": 200}) == fault
    assert fault_of(check, {"findings": 0, "asked": 200}) is None


def test_they_are_a_group_of_certainties_that_cost_no_significance():
    assert set(group("replay")) == {check.name for check in ALL}
    assert all(check.always and not check.share and not check.doubtful for check in ALL)
    for rule in COUPLING.faults:  # it explains what their replays show
        assert set(group("replay")) <= set(entailed(rule))


#: Reasons that a pass may have: they last although a training is correct, or are a choice.
LASTING = (
    *(Reason.OFF, Reason.RANKS, Reason.SEVERAL, Reason.TOO_SMALL, Reason.NO_ROOM),
    *(Reason.NO_ROWS, Reason.IN_PARTS, Reason.ACCUMULATED, Reason.ADAPTS, Reason.TOO_COARSE),
)


@pytest.mark.parametrize("check", [*ALL, REPLAY_NOISE, COUPLING], ids=lambda check: check.name)
def test_every_reason_prevents_a_pass_but_those_that_last(check):
    assert {reason for reason in Reason if not check.blocks(not_asked(check, reason))} == {*LASTING}
    # The sentence alone, as of one training or of an edited report, is no reason that lasts.
    for text in ("RuntimeError", "a thread of this process computes", str(Reason.NO_ROOM)):
        assert check.blocks(not_asked(check, text)) == f"{text}; {FIX}"
    assert "10 more steps" in check.blocks(not_asked(check, Reason.NONE_LEFT))
    assert not check.blocks(replace(not_asked(check, Reason.NONE_LEFT), status="ok"))


def test_a_reason_is_its_text_and_keeps_its_name_in_a_report():
    found = not_asked(COUPLING, Reason.NO_ROWS)
    assert (found.message, found.reason) == (Reason.NO_ROWS.value, "NO_ROWS")
    assert type(found.message) is str
    assert pickle.loads(pickle.dumps(Reason.NO_ROWS)) is Reason.NO_ROWS
