from __future__ import annotations

import pickle

from lightning_audit.results import audit_report


def test_a_refusal_keeps_what_to_change_between_processes() -> None:
    again = pickle.loads(pickle.dumps(audit_report.UnauditableTraining("accumulate nothing")))
    assert str(again) == "accumulate nothing"


def test_who_handles_wrong_arguments_does_not_swallow_a_refusal() -> None:
    assert not issubclass(audit_report.UnauditableTraining, ValueError | TypeError | RuntimeError)
