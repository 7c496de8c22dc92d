"""What the user allows is in the first line, and an epsilon that it refutes is said not to hold."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from gan_support import GENERATOR, Gan
from printed_report import as_text
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import ConcatDataset, DataLoader
from training_support import PrivateModule, digits, mlp, report_in, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.accounting.composition import epsilon_of_passes
from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli.main import main
from lightning_audit.results.audit_report import CheckResult, describe
from lightning_audit.testing.faulty import HalfNoise
from lightning_audit.verdict.gate import contradictions
from lightning_audit.verdict.judge import held

pytestmark = pytest.mark.training
NAME = "sampling.not_poisson"
#: What two epochs cost with each record in one step of each, and what an accountant says of them.
HOLDS = epsilon_of_passes(1.0, 2, 1e-5)
REFUTED = "1.877"


class Shuffled(PrivateModule):
    """Batches of digits as torch's own loader deals them out."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(mlp(64), dataset=digits(), poisson=False, **kwargs)

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)


def trained(
    directory: Path, module: pl.LightningModule, *, allow: Any, **kwargs: Any
) -> tuple[AuditReport, str]:
    """Train two epochs; the report, and all that was logged."""
    given = {"max_epochs": 2, **kwargs.pop("planned", {})}
    audit = PrivacyAudit(seed=1, allow=allow, **kwargs)
    logger = CSVLogger(directory / "logs")
    trainer_for(directory, audit, logger=logger, log_every_n_steps=1, **given).fit(module)
    (logged,) = directory.glob("logs/**/metrics.csv")
    return report_in(directory), logged.read_text()


def first_line(report: AuditReport) -> str:
    return describe(report.verdict).splitlines()[0]


def shown_without_a_word(report: AuditReport, number: str) -> list[Any]:
    """Lines of the console, and parts of the report, with a number that no word takes back."""
    parts = [*as_text(report).splitlines(), *innermost(json.loads(report.to_json()))]
    shown = [part for part in parts if re.search(rf"\b{number}", str(part))]
    return [part for part in shown if not re.search("not.known.to.hold", str(part))]


def innermost(value: Any) -> Iterator[Any]:
    """Each object of a report without the objects in it, and each text in a list."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from innermost(part)
    if isinstance(value, dict):
        yield {key: part for key, part in value.items() if not isinstance(part, dict)}
    elif isinstance(value, str):
        yield value


def test_a_shuffled_loader_is_named_with_the_epsilon_that_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, logged = trained(tmp_path, Shuffled(), allow=NAME)
    assert first_line(report).startswith(
        f"PASS except {NAME} (allowed); the epsilon that holds is {HOLDS:.4g} at delta 1e-05"
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert f"PASS except {NAME} (allowed): no other fault found in {report.steps} steps" in printed
    assert f"Allowed the epsilon that holds is {HOLDS:.4g} at delta 1e-05" in printed
    assert REFUTED not in printed
    assert report.epsilon_spent == HOLDS
    assert report.epsilon_refuted_by == (NAME,)
    assert report.claimed_epsilon is report.epsilon_lower is report.epsilon_not_excluded is None
    (accounting,) = (check for check in report.checks if check.name == "accounting")
    assert REFUTED in accounting.message
    assert f"not known to hold with {NAME} allowed" in accounting.message
    assert shown_without_a_word(report, REFUTED) == []
    assert shown_without_a_word(report, f"{HOLDS:.4g}")  # it would find one
    assert {*report.epochs[-1]}.isdisjoint({"claimed_epsilon", "epsilon_lower"})
    assert report.epochs[-1]["epsilon_spent"] == HOLDS
    header = logged.splitlines()[0]
    assert "audit/epsilon_spent" in header
    assert "audit/allowed" in header
    assert not re.search("claimed_epsilon|epsilon_lower", header)
    assert str(HOLDS)[:5] in logged
    assert REFUTED not in logged


def test_the_gate_holds_the_epsilon_that_holds_against_a_limit(tmp_path: Path) -> None:
    trained(tmp_path, Shuffled(), allow=NAME)
    path = str(tmp_path / "audit" / "report.json")
    assert main(["check", path]) == 0
    assert main(["check", path, "--max-epsilon", "3"]) == 1
    assert main(["check", path, "--max-epsilon", "7"]) == 0


def test_a_second_finding_is_named_beside_it(tmp_path: Path) -> None:
    report, _ = trained(tmp_path, Shuffled(), allow=["accounting", NAME], claimed_epsilon=1.5)
    assert first_line(report).startswith(
        f"PASS except {NAME}, accounting (allowed); the epsilon that holds is {HOLDS:.4g} at"
    )
    assert f"claimed 1.5 (not known to hold with {NAME}, accounting allowed)" in as_text(report)
    assert report.claimed_epsilon == 1.5
    assert "claimed_epsilon" not in report.epochs[-1]


def test_a_claim_above_the_epsilon_that_holds_is_shown_as_it_is(tmp_path: Path) -> None:
    report, logged = trained(tmp_path, Shuffled(), allow=NAME, claimed_epsilon=7.0)
    assert "claimed 7, spent 6.573 (holds)" in as_text(report)
    assert report.epochs[-1]["claimed_epsilon"] == 7.0
    assert "audit/claimed_epsilon" in logged


def test_of_steps_that_cost_more_than_is_claimed_the_cost_holds(tmp_path: Path) -> None:
    module = PrivateModule(mlp(64), dataset=digits())
    report, _ = trained(tmp_path, module, allow="accounting", claimed_epsilon=1.5)
    assert report.epsilon_spent is not None
    assert report.epsilon_spent > 1.5
    told = f"except accounting (allowed); the epsilon that holds is {report.epsilon_spent:.4g}"
    assert told in first_line(report)
    assert "claimed 1.5 (not known to hold with accounting allowed)" in as_text(report)


class Twice(PrivateModule):
    """The data set holds each record twice."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(mlp(64), **kwargs)
        self.dataset = ConcatDataset([digits(256)] * 2)


class MoreOften(PrivateModule):
    """The loader draws twice as often as the accountant is told."""

    def train_dataloader(self) -> Any:
        self.batch_size *= 2
        return super().train_dataloader()


#: What half the noise violates.
NOISE = [
    name for name in REGISTRY if name.startswith(("noise", "reuse", "replay.noise", "epsilon"))
]


@pytest.mark.parametrize(
    ("module", "allow", "named"),
    [
        (
            lambda: PrivateModule(mlp(64), dataset=digits(), optimizer_class=HalfNoise),
            NOISE,
            "noise",
        ),
        (lambda: Shuffled(optimizer_class=HalfNoise), [*NOISE, NAME], "noise"),
        (lambda: MoreOften(mlp(64), dataset=digits()), ["sampling.rate"], "sampling.rate"),
        (Twice, ["ledger.records"], "ledger.records"),
    ],
)
def test_where_no_epsilon_holds_none_is_shown(
    tmp_path: Path, module: Any, allow: list[str], named: str
) -> None:
    report, logged = trained(tmp_path, module(), allow=allow)
    assert report.verdict.outcome != "VIOLATION", report.verdict
    line = first_line(report)
    assert f"{named}" in line.split("(allowed)")[0].split(" allowed;")[0]
    assert "; no epsilon is known to hold" in line
    assert report.epsilon_spent is report.claimed_epsilon is report.epsilon_not_excluded is None
    assert "epsilon_spent" not in report.epochs[-1]
    assert "epsilon_spent" not in logged
    assert main(["check", str(tmp_path / "audit" / "report.json"), "--max-epsilon", "50"]) == 2


def test_an_exemption_is_named_with_what_the_epsilon_rests_on(tmp_path: Path) -> None:
    module, planned = Gan(dataset=digits()), {"max_steps": 240, "max_epochs": -1}
    report, _ = trained(tmp_path, module, allow=[GENERATOR], planned=planned)
    told = f"that holds is {report.epsilon_spent:.4g} at delta 1e-05, if allowing no_dp of"
    assert first_line(report).startswith(
        f"PASS except no_dp of optimizer 'G' (allowed); the epsilon {told}"
    )
    assert report.epsilon_refuted_by == ()


def test_beside_a_violation_no_epsilon_holds(tmp_path: Path) -> None:
    report, _ = trained(
        tmp_path, Shuffled(optimizer_class=HalfNoise), allow=NAME, on_violation="warn"
    )
    assert first_line(report).startswith(
        f"VIOLATION (mechanism), with {NAME} allowed; no epsilon is known to hold: noise: "
    )


def test_nothing_is_named_where_nothing_is_found(tmp_path: Path) -> None:
    module = PrivateModule(mlp(64), dataset=digits())
    report, logged = trained(tmp_path, module, allow=[NAME, "sampling.rate", "unaudited"])
    assert first_line(report).startswith("PASS: ")
    assert (report.verdict.allowed, report.epsilon_refuted_by) == ((), ())
    assert "audit/allowed" not in logged


@pytest.mark.parametrize(
    "edit",
    [
        {"epsilon_spent": 1.877},
        {"claimed_epsilon": 2.0},
        {"epsilon_refuted_by": ()},
        {"verdict": {"allowed": ()}},
        {"verdict": {"holds": "the epsilon that holds is 1.877 at delta 1e-05"}},
    ],
)
def test_the_gate_takes_no_report_that_hides_it(tmp_path: Path, edit: dict[str, Any]) -> None:
    report, _ = trained(tmp_path, Shuffled(), allow=NAME)
    if "verdict" in edit:
        edit = {"verdict": dataclasses.replace(report.verdict, **edit["verdict"])}
    assert contradictions(dataclasses.replace(report, **edit))


def check(name: str, status: str = "allowed", **evidence: Any) -> CheckResult:
    return CheckResult(name, REGISTRY[name].kind, status, "found", evidence=evidence)


@pytest.mark.parametrize("name", [name for name, known in REGISTRY.items() if not known.warns])
def test_every_finding_that_is_allowed_refutes_the_accountants_epsilon(name: str) -> None:
    now = held([check(name)], 2.0, 2.0, None)
    assert now.refuted_by == (name,)
    assert now.claimed is None
    assert not now.claim_holds
    spent = 2.0 if name in ("accounting", "ledger.accountant") else None
    assert now.spent == spent


def test_two_findings_leave_what_both_leave() -> None:
    passes = check(NAME, epsilon_that_holds=6.5)
    assert held([passes], 2.0, 2.0, None).spent == 6.5
    assert held([passes, check("ledger.accountant")], 2.0, 2.0, None).spent == 6.5
    assert held([passes, check("ledger.records")], 2.0, 2.0, None).spent is None
    assert held([passes, check("noise", "violated")], 2.0, 2.0, None).spent is None
    assert held([check("noise", "violated")], 2.0, 2.0, None).spent == 2.0
