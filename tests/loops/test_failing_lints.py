"""A lint that fails on the user's objects costs a note, never the audit."""

from collections.abc import Callable
from typing import Any

import plain_loops
import pytest
from plain_loops import made

from lightning_audit import attach

#: What is read of the training; without the first its sampling is unknown, which prevents a PASS.
LINTS = (
    *("loader_facts", "loader_count", "splits_batches", "signals_ahead", "rate_of"),
    *("ghost_remarks", "accumulation_remarks", "reduction_of", "adaptive_remark"),
)


@pytest.mark.parametrize(("names", "unknown"), [(LINTS[:1], True), (LINTS[1:], False)])
def test_lints_that_fail_are_noted_and_the_audit_goes_on(names, unknown, tmp_path, monkeypatch):
    failed = set()

    def failing(name: str) -> Callable[..., Any]:
        def fails(*_: Any) -> Any:
            failed.add(name)
            raise AttributeError("'float' object has no attribute 'numel'")

        return fails

    for name in names:
        monkeypatch.setattr(f"lightning_audit.run.facts.{name}", failing(name))
    training = made()
    with attach(*training.training, 50.0, report_dir=tmp_path, seed=1, examinations=0) as audit:
        plain_loops.mnist_form(training)
    report = audit.report
    assert failed == {*names}
    assert report.steps == plain_loops.STEPS
    assert [n for n in report.notes if "AttributeError" in n and "could not be read" in n]
    assert "audit failed" not in report.verdict.summary
    poisson = [b for b in report.verdict.pass_blockers if "sampling" in b]
    assert bool(poisson) == unknown, report.verdict
