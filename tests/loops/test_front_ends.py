"""The selftest's optimizer faults and healthy trainings, through Lightning and through `attach`."""

from dataclasses import replace

import pytest
from front_ends import by_lightning, by_loop, drawn_apart, of_lightning
from stages import staged

from lightning_audit import AuditReport
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import Row, _flagged_at, planned
from lightning_audit.testing.selftest_pool import finding_of, status_of

#: Faults of a private optimizer that one process trains, and correct trainings.
ROWS = {
    row.title: row
    for row in planned()
    if row.fault.processes == 1
    and (
        (row.group == "fault" and row.fault.optimizer is not None)
        or (row.healthy and row.configuration != "figures 7-9")
    )
}


def answer(row: Row, report: AuditReport, directory) -> dict[str, object]:
    """What a training's report says: verdict, step, names."""
    finding = finding_of(row, report)
    return {
        "outcome": report.verdict.outcome,
        "status": status_of(row, report)[0],
        "fault": report.verdict.fault.partition(":")[0],
        "finding": finding.name if finding else "",
        "root": report.verdict.root.finding if report.verdict.root else "",
        "step": _flagged_at(finding, directory / RECORD_NAME, report) if finding else None,
        "steps": report.steps,
        "checks": {check.name: check.status for check in report.checks},
    }


#: Both doors call one audit: for each change a few rows are enough.
EACH_CHANGE = (
    *("half_noise, Opacus", "clip_after_average, Opacus", "no_noise_on_biases, Opacus"),
    *("closure_runs_again, Opacus", "parts_are_added_again, physical batches"),
    *("healthy, by hand", "healthy, ghost clipping", "healthy, per layer"),
)


@pytest.mark.parametrize(
    "title", staged(EACH_CHANGE, nightly=[title for title in ROWS if title not in EACH_CHANGE])
)
def test_both_doors_say_the_same(tmp_path, monkeypatch, title):
    drawn_apart(monkeypatch)
    row = ROWS[title]
    said = {}
    for name, train in {"lightning": by_lightning, "loop": by_loop}.items():
        directory = tmp_path / name
        fault = replace(row.fault, audit={**row.fault.audit, "examinations": 1})
        report = train(fault, directory)
        assert name == "lightning" or not of_lightning(report)
        said[name] = answer(row, report, directory)
    assert said["loop"] == said["lightning"]


def test_a_shuffled_loader_under_a_poisson_accountant_is_known_before_the_first_step(tmp_path):
    reports = [
        train(FAULTS["fixed_size_batches"], tmp_path / train.__name__)
        for train in (by_lightning, by_loop)
    ]
    assert {r.verdict.root.finding for r in reports} == {"sampling.not_poisson"}
    assert len({r.verdict.fault for r in reports}) == 1
