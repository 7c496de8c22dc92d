"""Input and output of the rules that name a fault: the case, and candidates."""

from __future__ import annotations

from named_faults import check

from lightning_audit.checks.check import Case
from lightning_audit.results.audit_report import Place


def case_of(**evidence: object) -> Case:
    return Case({"noise": check("noise", **evidence)}, None, 1000.0)


def test_the_first_finding_is_that_of_the_question_and_not_of_the_record() -> None:
    case = Case({name: check(name) for name in ("noise", "sensitivity")}, None, 1000.0)
    assert case.first_of(("sensitivity", "noise")) == "sensitivity"
    assert case.first_of(("epsilon",)) is None


def test_a_candidate_is_where_its_finding_was_seen_and_has_its_numbers() -> None:
    case = case_of(ratio=0.5, violated_at_step=7, flagged=["a", "b"], process=1)
    fault = case.candidate("noise_scale", "noise", "too small", "add_noise").fault
    assert fault.place == Place(("a", "b"), 7, 1)
    assert fault.evidence == {"ratio": 0.5}


def test_a_rule_may_say_better_where_and_by_which_numbers() -> None:
    case = case_of(ratio=0.5, flagged=["a"])
    candidate = case.candidate(
        "noise_scale", "noise", "", "", {"lag": 3}, ("c",), explains=("reuse.lag",)
    )
    assert (candidate.fault.place.parameters, candidate.fault.evidence) == (("c",), {"lag": 3})
    assert candidate.explains == ("reuse.lag",)


def test_a_single_parameter_may_be_a_name_alone() -> None:
    fault = case_of(parameters="net.0.bias", step=0).candidate("f", "noise", "", "").fault
    assert fault.place == Place(("net.0.bias",), 0, None)
