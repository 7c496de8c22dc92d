from __future__ import annotations

import dataclasses

from made_report import STEPS, made_report
from page_reports import epochs, of_outcome
from parsed_page import ParsedPage

from lightning_audit.report.page_figures import Timeline, timeline
from lightning_audit.results.audit_report import AuditReport


def drawn(report: AuditReport) -> Timeline:
    found = timeline(report)
    assert found is not None
    return found


def texts(report: AuditReport) -> str:
    return ParsedPage(drawn(report).wide).text


def test_a_correct_run_has_its_epsilons_at_the_ends_of_lines_and_no_alarm() -> None:
    report = of_outcome("PASS")
    words = texts(report)
    for label in ("claimed 8", "spent 3", "proved at least 1.2", "no alarm"):
        assert label in words
    assert "The alarm level was not reached." in words
    assert {"spent", "proved", "alarm", "evid"} <= set(
        ParsedPage(drawn(report).wide).values("class")
    )


def test_a_violation_has_the_first_alarm_by_steps_from_one_and_leaves_the_picture() -> None:
    words = texts(of_outcome("VIOLATION"))
    # Four times the threshold at the last step: the alarm is at a quarter of the run.
    assert "first alarm after 26 steps" in words
    assert "training stopped" not in words
    assert "The alarm level was reached after 26 steps." in words
    assert "higher than shown" in words


def test_a_training_that_stops_at_its_alarm_says_so() -> None:
    report = made_report("VIOLATION")
    report = dataclasses.replace(
        report,
        steps=8,
        epochs=({"epoch": 0, "step": 8, "e_value": 1e5},),
        settings={**report.settings, "on_violation": "raise"},
    )
    words = texts(report)
    assert "first alarm after 8 steps, training stopped" in words
    found = drawn(report)
    assert "holds the evidence at alarms and at the ends of epochs only" in found.says
    assert "Epsilon was computed 1 time only" in found.says


def test_epsilon_has_a_curve_from_three_ends_of_epochs_on() -> None:
    for count, curve in ((2, False), (3, True)):
        report = dataclasses.replace(of_outcome("PASS"), epochs=epochs(count))
        assert ("spent" in ParsedPage(drawn(report).wide).values("class")) == curve


def test_the_narrow_picture_has_its_labels_inside_and_ids_of_its_own() -> None:
    found = drawn(of_outcome("PASS"))
    wide, narrow = ParsedPage(found.wide), ParsedPage(found.narrow)
    assert not set(wide.ids) & set(narrow.ids)
    right = 356.0 - 12.0
    xs = [float(x) for tag, name, x in narrow.attributes if (tag, name) == ("text", "x")]
    assert max(xs) <= right
    assert "claimed 8" in narrow.text


def test_a_report_without_epochs_and_evidence_has_no_figure() -> None:
    assert timeline(made_report()) is None
    assert timeline(made_report(steps=0, epochs=epochs())) is None


def test_infinite_epsilons_are_left_out_of_the_curve() -> None:
    rows = tuple({**row, "epsilon_spent": float("inf")} for row in epochs())
    report = dataclasses.replace(of_outcome("PASS"), epochs=rows, claimed_epsilon=float("inf"))
    assert "spent" not in ParsedPage(drawn(report).wide).values("class")
    assert STEPS == 100
