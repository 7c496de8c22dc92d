from __future__ import annotations

import ast
import inspect

import pytest
from made_report import made_report
from many_trainings import audited

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.callbacks.privacy_audit import canaries_of
from lightning_audit.canaries.gradient import Dirac
from lightning_audit.many.audit_trainings import audit_training
from lightning_audit.many.training_audit import conclude
from lightning_audit.report.page import DEFAULTS, all_settings, call, cost, environment
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.verdict.allow import Allow
from lightning_audit.verdict.judge import Resolution

NAMES = {
    "PrivacyAudit": PrivacyAudit,
    "PrivacyClaim": PrivacyClaim,
    "Resolution": Resolution,
    "Allow": Allow,
    "Dirac": Dirac,
}


def report_of(audit: PrivacyAudit, *given: str) -> AuditReport:
    settings = audit.config.settings(ended=True)
    return AuditReport.from_json(made_report(settings=settings, settings_given=given).to_json())


def test_the_defaults_are_those_of_the_audit() -> None:
    signature = inspect.signature(PrivacyAudit.__init__).parameters
    plain = PrivacyAudit(seed=1).config.settings()
    for name, value in DEFAULTS.items():
        stated = signature[name].default if name in signature else None
        settled = plain[name]
        assert value == (list(stated) if isinstance(stated, tuple) else settled), name
    assert set(plain) == {*DEFAULTS, "canaries", "delta", "seed"}


AUDITS = [
    ((), PrivacyAudit(seed=3)),
    (("claimed_epsilon",), PrivacyAudit(claimed_epsilon=8.0, delta=1e-6, seed=3)),
    (
        ("claim", "resolution", "on_violation", "significance"),
        PrivacyAudit(
            claim=PrivacyClaim(epsilon=4.0, delta=1e-5, adjacency="replace_one"),
            resolution=Resolution(noise=0.9),
            on_violation="warn",
            significance=1e-4,
            seed=3,
        ),
    ),
    (
        ("allow",),
        PrivacyAudit(
            allow=["ledger.draws", Allow("no_dp", optimizer="G", reason='the "public" part')],
            seed=3,
        ),
    ),
    (("canaries", "bounds"), PrivacyAudit(canaries=[Dirac()], bounds=["fdp_cp"], seed=3)),
]


@pytest.mark.parametrize(("given", "audit"), AUDITS)
def test_the_call_makes_the_same_audit(given: tuple[str, ...], audit: PrivacyAudit) -> None:
    again = eval(compile(ast.parse(call(report_of(audit, *given)), mode="eval"), "", "eval"), NAMES)
    assert again.config.settings(ended=True) == audit.config.settings(ended=True)


def test_a_report_that_does_not_say_what_was_given_leaves_out_the_defaults() -> None:
    audit = PrivacyAudit(claimed_epsilon=8.0, bounds="all", seed=3)
    text = call(report_of(audit))
    assert "claimed_epsilon=8.0" in text
    assert "bounds=[" in text
    assert "resolution" not in text
    assert "canaries" not in text
    assert len(canaries_of(None, 8)) == 8


def test_settings_environment_and_cost_as_text() -> None:
    report = made_report(
        settings={"bounds": ["fdp_cp"], "on_violation": "raise"},
        environment={"torch": "2.13"},
        audit_cost={"seconds": 1.23, "share": 0.25},
    )
    assert all_settings(report) == [("bounds", '["fdp_cp"]'), ("on_violation", "raise")]
    assert environment(report) == [("torch", "2.13")]
    assert cost(report) == "The audit took 1.2 s, 25\xa0% of the rest of the training."
    assert cost(made_report()) == ""


def test_the_call_over_many_trainings_has_the_settings_that_were_given() -> None:
    given = {"canary": "Crafted", "score": "default", "stop": "end", "seed": 3, "trainings": 60}
    audit = audited(n=60, significance=0.01)
    for settings, function, planned in (
        (given, audit_training, "trainings"),
        ({}, conclude, "planned"),
    ):
        made = ast.parse(call(audit.to_report(settings)), mode="eval").body
        assert isinstance(made, ast.Call)
        assert ast.unparse(made.func) == function.__name__
        stated = {keyword.arg: ast.unparse(keyword.value) for keyword in made.keywords}
        assert stated.pop(planned) == "60"
        assert stated.pop("significance") == "0.01"
        assert set(stated) == {name for name in settings if name not in ("score", "trainings")}
        positional = list(inspect.signature(function).parameters)
        assert [ast.unparse(one) for one in made.args] == positional[: len(made.args)]
        assert {planned, "significance", *stated} <= set(positional)
