"""The details of real reports: of a training that passes, and of faults with the user's code."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from opacus.optimizers import DPOptimizer
from places import REPOSITORY
from training_support import PrivateModule, fit, violation

from lightning_audit import PrivacyAudit
from lightning_audit.checks.check import REGISTRY, headlines
from lightning_audit.cli.main import main
from lightning_audit.lints.own_code import MOST_LINES
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import Ended

HERE = str(Path(__file__).relative_to(REPOSITORY))


class HalfOfTheNoise(DPOptimizer):
    """Of the user; its `add_noise` is longer than a report shows."""

    def add_noise(self) -> None:
        """Halve the noise."""
        stated = self.noise_multiplier
        try:
            self.noise_multiplier = 0.5 * stated
            super().add_noise()
        finally:
            self.noise_multiplier = stated
        # Lines that no report shows:
        for param in self.params:
            assert param.grad is not None
            assert torch.isfinite(param.grad).all()
        self.seen = True
        self.told = "unshown"


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


@pytest.fixture(scope="module")
def correct(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    torch.manual_seed(0)
    audit = PrivacyAudit(8.0, seed=1, examinations=1)
    return fit(tmp_path_factory.mktemp("correct"), PrivateModule(), audit, max_epochs=3)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    torch.manual_seed(0)
    module = PrivateModule(optimizer_class=HalfOfTheNoise)
    audit = PrivacyAudit(seed=1, examinations=1)
    return violation(tmp_path_factory.mktemp("faulty"), module, audit, max_epochs=3)


def test_growth_is_of_the_checks_that_have_an_e_value(
    correct: AuditReport, faulty: AuditReport
) -> None:
    for report in (correct, faulty):
        by_name = {check.name: check for check in report.checks}
        assert report.tests
        for name, growth in report.tests.items():
            check = by_name[name]
            assert check.log_e_value is not None
            assert growth.threshold == check.log_e_threshold == -math.log(check.share * 1e-3)
            reached = [log_e for _, log_e in growth.growth]
            assert reached == sorted(reached)
            assert len(reached) <= 12
            if check.status == "violated" and "violated_at_step" in check.evidence:
                first = next(step for step, log_e in growth.growth if log_e >= growth.threshold)
                assert first == check.evidence["violated_at_step"]
        for check in report.checks:
            assert (check.log_e_threshold is None) == (check.log_e_value is None)
    assert {"noise", "sensitivity", "reuse.lag", "noise.shape"} <= {*correct.tests}
    assert faulty.tests["noise"].growth or faulty.tests["noise.step"].growth


def test_growth_of_private_numbers_is_in_whole_powers_of_ten(
    correct: AuditReport, faulty: AuditReport
) -> None:
    told = [
        (log_e / math.log(10.0), growth.threshold / math.log(10.0))
        for report in (correct, faulty)
        for name, growth in report.tests.items()
        if REGISTRY[name].private
        for _, log_e in growth.growth
    ]
    assert all(
        power == pytest.approx(level) or power == pytest.approx(round(power), abs=1e-6)
        for power, level in told
    )
    assert told, "half the noise is seen in private numbers too"


def test_every_tensor_has_its_noise(correct: AuditReport, faulty: AuditReport) -> None:
    sizes = {name: p.numel() for name, p in PrivateModule().named_parameters()}
    for report in (correct, faulty):
        assert {row.name: row.size for row in report.tensors} == sizes
        assert report.tensors_left_out == 0
        for row in report.tensors:
            assert row.reads == report.steps * row.entries
            assert row.ratio is not None
            # A single reading of a few coordinates gives no upper limit.
            assert row.upper is not None or row.reads < 20
            assert (row.lower or 0.0) <= row.ratio <= (row.upper or math.inf)
    assert not any(row.flagged for row in correct.tensors)
    flagged = next(c for c in faulty.checks if c.name == "noise.tensor").evidence.get("flagged", [])
    assert {row.name for row in faulty.tensors if row.flagged} == {*flagged}
    assert all(row.ratio < 0.8 for row in faulty.tensors if row.entries > 20)


def test_the_course_has_a_row_for_each_epoch(correct: AuditReport) -> None:
    assert [row.epoch for row in correct.course] == [0, 1, 2]
    assert [row.step for row in correct.course] == [32, 64, 96]
    assert [row.observations for row in correct.course] == [256, 512, 768]
    mus = [row.mu_lower for row in correct.course]
    assert mus == [row["mu_lower"] for row in correct.epochs]
    assert all(0.0 < mu < correct.claimed_mu == 1.0 for mu in mus[1:])
    assert all(row.log_e < math.log(1e3) for row in correct.course)


def test_operating_points_fit_the_claim_where_nothing_is_wrong(correct: AuditReport) -> None:
    assert len(correct.operating_points) == 5
    for point in correct.operating_points:
        assert point.fpr is not None
        assert point.fnr is not None
        assert point.fpr[0] <= point.fp / (point.fp + point.tn) <= point.fpr[1]
        assert point.fnr[0] <= point.fn / (point.fn + point.tp) <= point.fnr[1]
        assert not point.outside


def test_the_claim_says_where_each_part_is_from(correct: AuditReport) -> None:
    told = {name: (part.value, part.source) for name, part in correct.claim.items()}
    assert told == {
        "noise_multiplier": (1.0, "optimizer"),
        "max_grad_norm": (1.0, "optimizer"),
        "expected_batch_size": (16, "optimizer"),
        "sample_rate": (0.03125, "accountant"),
        "records": (None, "loader"),
        "sampling": ("poisson", "accountant"),
        "adjacency": ("add_remove", "default"),
        "accountant": ("prv", "optimizer"),
    }


def test_the_end_and_the_plan_are_told(correct: AuditReport, faulty: AuditReport) -> None:
    assert correct.ended == Ended(96, "planned")
    assert correct.planned_steps == faulty.planned_steps == 96
    assert faulty.ended == Ended(faulty.steps, "violation")
    assert faulty.steps < 96


def test_the_circumstances_are_told(correct: AuditReport) -> None:
    run = correct.run
    assert run is not None
    assert (run.name, run.device, run.precision) == ("PrivateModule", "cpu", "32-true")
    assert (run.processes, run.strategy) == (1, "SingleDeviceStrategy")
    assert run.started <= correct.created
    assert run.seconds > correct.audit_cost["seconds"] > 0.0
    assert run.commit is None or len(run.commit) in (40, 64)
    assert {"claimed_epsilon", "seed"} <= {*correct.settings_given}
    assert "delta" not in correct.settings_given


def test_what_the_epsilons_rest_on_is_told(correct: AuditReport, faulty: AuditReport) -> None:
    names = {name: [one.name for one in told] for name, told in correct.assumptions.items()}
    assert {"noise", "clipping", "batches", "neighbors"} <= {*names["epsilon_spent"]}
    assert {"constant", "power", "batches"} <= {*names["epsilon_not_excluded"]}
    assert faulty.epsilon_not_excluded is None
    assert "epsilon_not_excluded" not in faulty.assumptions


def test_examinations_have_questions_and_findings_and_no_counts(
    correct: AuditReport, faulty: AuditReport
) -> None:
    (told,) = correct.examinations
    assert told.step == 0
    assert {"replay.noise", "replay.clipping", "coupling"} <= {*told.questions} <= {*REGISTRY}
    assert told.findings == ()
    assert told.seconds > 0.0
    assert [one.findings for one in faulty.examinations] in ([], [("replay.noise",)])
    keys = {key for one in json.loads(correct.to_json())["examinations"] for key in one}
    assert keys == {"step", "questions", "findings", "seconds"}


def test_a_fault_has_its_headline_and_the_code_to_look_at(faulty: AuditReport) -> None:
    root = faulty.verdict.faults[0]
    assert root.headline == headlines()[root.name]
    (place,) = root.place.code
    first = line_of("def add_noise")
    assert (place.file, place.name) == (HERE, "HalfOfTheNoise.add_noise")
    assert (place.line, place.end_line) == (first, line_of('self.told = "unshown"'))
    shown = place.source.splitlines()
    assert len(shown) == MOST_LINES < place.end_line - place.line + 1
    assert shown[0] == "def add_noise(self) -> None:"
    assert shown[4] == "        self.noise_multiplier = 0.5 * stated"
    assert "unshown" not in faulty.to_json()


def test_source_is_left_out_where_the_user_says_so(tmp_path: Path) -> None:
    module = PrivateModule(optimizer_class=HalfOfTheNoise)
    audit = PrivacyAudit(seed=1, source_in_report=False)
    report = violation(tmp_path, module, audit, max_epochs=1)
    (place,) = report.verdict.faults[0].place.code
    assert (place.file, place.line, place.source) == (HERE, line_of("def add_noise"), "")
    assert "0.5 * stated" not in (tmp_path / "audit" / "report.json").read_text()
    assert report.settings["source_in_report"] is False
    assert "source_in_report" in report.settings_given


def test_an_inconclusive_run_says_in_numbers_what_is_missing(tmp_path: Path) -> None:
    report = fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=4)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert [one.sentence for one in report.blockers] == [*report.verdict.pass_blockers]
    power = {one.part: one for one in report.blockers if one.kind == "power"}
    assert power
    for part, one in power.items():
        assert one.power == report.power[part]["power"] < one.power_needed == 0.95
        assert one.steps_more is None or one.steps_more == report.power[part]["steps_needed"] - 4


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ("with_threshold", "thresholds"),
        ("growth_of", "growth"),
        ("rows_of", "tensors"),
        ("claimed_mu", "limits"),
        ("claim_of", "claim"),
        ("told", "blockers"),
        ("headlines", "faults"),
    ],
)
@pytest.mark.one_in(2)
def test_a_detail_that_fails_is_left_out_and_the_violation_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, lost: str
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("3 of 17 records")

    monkeypatch.setattr(f"lightning_audit.run.report_files.{broken}", breaks)
    torch.manual_seed(0)
    module = PrivateModule(optimizer_class=HalfOfTheNoise)
    report = violation(tmp_path, module, PrivacyAudit(seed=1, examinations=0), max_epochs=1)
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.root is not None
    note = f"the report lacks its {lost}, which failed (ZeroDivisionError in run.report_files."
    assert any(text.startswith(note) for text in report.notes)
    assert "17 records" not in report.to_json()
    (path,) = tmp_path.rglob("report.json")
    assert main(["check", str(path)]) == 1
