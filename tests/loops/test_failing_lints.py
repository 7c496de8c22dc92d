"""A lint that fails on the user's objects costs a note, never the audit."""

from typing import Any

import plain_loops
import pytest
from plain_loops import made

from lightning_audit import attach

#: What is read of the training, by the front ends' order; the sampling must be known for a PASS.
LINTS = {
    "loader_facts": "INCONCLUSIVE",
    "loader_count": "PASS",
    "splits_batches": "PASS",
    "signals_ahead": "PASS",
    "rate_of": "PASS",
    "ghost_remarks": "PASS",
    "accumulation_remarks": "PASS",
    "reduction_of": "PASS",
    "adaptive_remark": "PASS",
}


@pytest.mark.parametrize(("name", "outcome"), LINTS.items(), ids=LINTS)
def test_a_lint_that_fails_is_noted_and_the_audit_goes_on(name, outcome, tmp_path, monkeypatch):
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
    assert bool(poisson) == (outcome == "INCONCLUSIVE"), report.verdict
