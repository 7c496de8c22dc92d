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
#: What both doors must find at the same step, by the issue that asked for the second one.
NAMED = ("half_noise", "clip_after_average", "no_noise_on_biases", "closure_runs_again")
#: Eight rows are enough for a change, as both doors call one `AuditRun`; all run at night.
CHANGE = (
    *(f"{name}, Opacus" for name in NAMED),
    *("parts_share_memory, ghost clipping of physical batches", "healthy, Opacus"),
    *("healthy, by hand", "healthy, ghost clipping"),
)


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


def test_the_matrix_has_the_faults_that_must_agree():
    assert {*CHANGE} <= ROWS.keys()
    assert sum(row.healthy for row in ROWS.values()) >= 12


@pytest.mark.parametrize(
    "title", staged(heavy=CHANGE, nightly=[title for title in ROWS if title not in CHANGE])
)
@pytest.mark.heavy_one_in(1)
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
