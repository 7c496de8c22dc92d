"""A lint that fails on the user's objects costs a note, never the audit."""

from typing import Any

import plain_loops
import pytest
from plain_loops import made

from lightning_audit import attach

#: What is read of the training, and whether its sampling is unknown then, which prevents a PASS.
LINTS = {
    "loader_facts": True,
    "loader_count": False,
    "splits_batches": False,
    "signals_ahead": False,
    "rate_of": False,
    "ghost_remarks": False,
    "accumulation_remarks": False,
    "reduction_of": False,
    "adaptive_remark": False,
}


@pytest.mark.parametrize(("name", "unknown"), LINTS.items(), ids=LINTS)
def test_a_lint_that_fails_is_noted_and_the_audit_goes_on(name, unknown, tmp_path, monkeypatch):
    def fails(*_: Any) -> Any:
        raise AttributeError("'float' object has no attribute 'numel'")

    monkeypatch.setattr(f"lightning_audit.run.facts.{name}", fails)
    training = made()
    with attach(*training.training, 50.0, report_dir=tmp_path, seed=1, examinations=0) as audit:
        plain_loops.mnist_form(training)
    report = audit.report
    assert report.steps == plain_loops.STEPS
    assert [n for n in report.notes if "AttributeError" in n and "could not be read" in n]
    assert "audit failed" not in report.verdict.summary
    poisson = [b for b in report.verdict.pass_blockers if "sampling" in b]
    assert bool(poisson) == unknown, report.verdict
