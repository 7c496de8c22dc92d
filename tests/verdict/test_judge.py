from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
from gan_support import GENERATOR, Gan
from made_report import made_report
from printed_report import as_text
from pytorch_lightning.loggers import CSVLogger
from simulated_record import SIGNIFICANCE, by_name, monitor_of, simulate, verdict_of, violated
from stages import staged
from torch.utils.data import ConcatDataset, DataLoader
from training_support import PrivateModule, digits, mlp, report_in, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.accounting.composition import epsilon_of_passes
from lightning_audit.checks.check import REGISTRY, first_seen
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.checks.replay import Answer, Coupling, ExaminationLog
from lightning_audit.checks.replayed_noise import NoiseLook
from lightning_audit.cli.main import main
from lightning_audit.record.store import INJECTED, RecordHeader
from lightning_audit.results.audit_report import AuditReport as AuditReport_of_audit_report
from lightning_audit.results.audit_report import CheckResult, LikelyFault, Place, describe
from lightning_audit.testing.faulty import HalfNoise
from lightning_audit.verdict.gate import contradictions
from lightning_audit.verdict.judge import (
    TARGET,
    OutcomeSettings,
    PowerModel,
    Resolution,
    acknowledge,
    blockers_of_optimizer,
    describe_examined,
    failed_report,
    held,
    judge,
    mark_consequences,
    seen_of,
    settled,
    worst,
)

# --- What the user allows is in the first line, and an epsilon that it refutes is said not to hold.

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


@pytest.mark.training
def test_a_shuffled_loader_is_named_with_the_epsilon_that_holds(tmp_path, capsys):
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


@pytest.mark.training
def test_the_gate_holds_the_epsilon_that_holds_against_a_limit(tmp_path):
    trained(tmp_path, Shuffled(), allow=NAME)
    path = str(tmp_path / "audit" / "report.json")
    assert main(["check", path]) == 0
    assert main(["check", path, "--max-epsilon", "3"]) == 1
    assert main(["check", path, "--max-epsilon", "7"]) == 0


@pytest.mark.training
def test_a_second_finding_is_named_beside_it(tmp_path):
    report, _ = trained(tmp_path, Shuffled(), allow=["accounting", NAME], claimed_epsilon=1.5)
    assert first_line(report).startswith(
        f"PASS except {NAME}, accounting (allowed); the epsilon that holds is {HOLDS:.4g} at"
    )
    assert f"claimed 1.5 (not known to hold with {NAME}, accounting allowed)" in as_text(report)
    assert report.claimed_epsilon == 1.5
    assert "claimed_epsilon" not in report.epochs[-1]


@pytest.mark.training
def test_a_claim_above_the_epsilon_that_holds_is_shown_as_it_is(tmp_path):
    report, logged = trained(tmp_path, Shuffled(), allow=NAME, claimed_epsilon=7.0)
    assert "claimed 7, spent 6.573 (holds)" in as_text(report)
    assert report.epochs[-1]["claimed_epsilon"] == 7.0
    assert "audit/claimed_epsilon" in logged


@pytest.mark.training
def test_of_steps_that_cost_more_than_is_claimed_the_cost_holds(tmp_path):
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


@pytest.mark.training
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
def test_where_no_epsilon_holds_none_is_shown(tmp_path, module, allow, named):
    report, logged = trained(tmp_path, module(), allow=allow)
    assert report.verdict.outcome != "VIOLATION", report.verdict
    line = first_line(report)
    assert f"{named}" in line.split("(allowed)")[0].split(" allowed;")[0]
    assert "; no epsilon is known to hold" in line
    assert report.epsilon_spent is report.claimed_epsilon is report.epsilon_not_excluded is None
    assert "epsilon_spent" not in report.epochs[-1]
    assert "epsilon_spent" not in logged
    assert main(["check", str(tmp_path / "audit" / "report.json"), "--max-epsilon", "50"]) == 2


@pytest.mark.training
def test_an_exemption_is_named_with_what_the_epsilon_rests_on(tmp_path):
    module, planned = Gan(dataset=digits()), {"max_steps": 240, "max_epochs": -1}
    report, _ = trained(tmp_path, module, allow=[GENERATOR], planned=planned)
    told = f"that holds is {report.epsilon_spent:.4g} at delta 1e-05, if allowing no_dp of"
    assert first_line(report).startswith(
        f"PASS except no_dp of optimizer 'G' (allowed); the epsilon {told}"
    )
    assert report.epsilon_refuted_by == ()


@pytest.mark.training
def test_beside_a_violation_no_epsilon_holds(tmp_path):
    report, _ = trained(
        tmp_path, Shuffled(optimizer_class=HalfNoise), allow=NAME, on_violation="warn"
    )
    assert first_line(report).startswith(
        f"VIOLATION (mechanism), with {NAME} allowed; no epsilon is known to hold: noise: "
    )


@pytest.mark.training
def test_nothing_is_named_where_nothing_is_found(tmp_path):
    module = PrivateModule(mlp(64), dataset=digits())
    report, logged = trained(tmp_path, module, allow=[NAME, "sampling.rate", "unaudited"])
    assert first_line(report).startswith("PASS: ")
    assert (report.verdict.allowed, report.epsilon_refuted_by) == ((), ())
    assert "audit/allowed" not in logged


@pytest.mark.training
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
def test_the_gate_takes_no_report_that_hides_it(tmp_path, edit):
    report, _ = trained(tmp_path, Shuffled(), allow=NAME)
    if "verdict" in edit:
        edit = {"verdict": dataclasses.replace(report.verdict, **edit["verdict"])}
    assert contradictions(dataclasses.replace(report, **edit))


def check(name: str, status: str = "allowed", **evidence: Any) -> CheckResult:
    return CheckResult(name, REGISTRY[name].kind, status, "found", evidence=evidence)


@pytest.mark.training
@pytest.mark.parametrize("name", [name for name, known in REGISTRY.items() if not known.warns])
def test_every_finding_that_is_allowed_refutes_the_accountants_epsilon(name):
    now = held([check(name)], 2.0, 2.0, None)
    assert now.refuted_by == (name,)
    assert now.claimed is None
    assert not now.claim_holds
    spent = 2.0 if name in ("accounting", "ledger.accountant") else None
    assert now.spent == spent


@pytest.mark.training
def test_two_findings_leave_what_both_leave():
    passes = check(NAME, epsilon_that_holds=6.5)
    assert held([passes], 2.0, 2.0, None).spent == 6.5
    assert held([passes, check("ledger.accountant")], 2.0, 2.0, None).spent == 6.5
    assert held([passes, check("ledger.records")], 2.0, 2.0, None).spent is None
    assert held([passes, check("noise", "violated")], 2.0, 2.0, None).spent is None
    assert held([check("noise", "violated")], 2.0, 2.0, None).spent == 2.0


# --- The first line of a pass names what was examined, and what was not with its reason.


def line(log: ExaminationLog, coupling: Coupling) -> str:
    return describe_examined([*log.results(0.05), coupling.result(log.off)])


def test_what_was_asked_is_named_without_the_counts_that_batch_sizes_decide():
    log, coupling = ExaminationLog(), Coupling()
    for step in (0, 5):
        answers = {
            "replay.sensitivity": Answer(9),
            "replay.clipping": Answer(32),
            "replay.release": Answer(2),
            "replay.noise": Answer(12, noise=NoiseLook({}, draws=12, entries=30)),
        }
        log.take(step, answers)
        coupling.take(step, Answer(1))
    assert line(log, coupling) == (
        "examined by replay: records, crafted gradients, the state after a step, draws of the "
        "noise, coupling of records"
    )


def test_what_was_not_asked_has_its_reason_and_equal_reasons_stand_once():
    log, coupling = ExaminationLog(), Coupling()
    none = Answer(reason="no per-sample gradients are formed")
    log.take(0, {"replay.sensitivity": Answer(9), "replay.clipping": none, "replay.noise": none})
    log.take(0, {"replay.release": Answer(reason="optimizer state does not fit")})
    coupling.take(0, none)
    log.between_epochs = 1
    assert line(log, coupling) == (
        "by canaries and noise; examined by replay: records; not examined: clipping, noise, "
        "coupling (no per-sample gradients are formed); release (optimizer state does not fit)"
    )


def test_weights_that_change_between_epochs_are_named():
    log = ExaminationLog(between_epochs=1)
    log.take(0, {"replay.release": Answer(2)})
    assert line(log, Coupling()).endswith("; what changes the weights between epochs")


def test_where_nothing_was_examined_it_says_so():
    log = ExaminationLog(off="examinations=0")
    assert line(log, Coupling()) == (
        "by canaries and noise; not examined: sensitivity, clipping, release, noise, coupling "
        "(examinations=0)"
    )
    assert describe_examined([]) == ""


# --- A report of a training whose audit failed never passes, and the gate reads it.

WHY = "MemoryError in run.evaluation.build_report"


def failed(before: AuditReport_of_audit_report | None) -> AuditReport_of_audit_report:
    settings = AuditReport_of_audit_report.from_json(made_report().to_json()).settings
    report = failed_report(before, OutcomeSettings.of(settings), settings, WHY)
    report = AuditReport_of_audit_report.from_json(report.to_json())
    assert contradictions(report) == []
    return report


@pytest.mark.parametrize("outcome", ["PASS", "INCONCLUSIVE"])
def test_what_had_passed_or_not_is_inconclusive(outcome):
    report = failed(made_report(outcome))
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.summary == f"the audit failed: {WHY}"
    assert report.verdict.pass_blockers[0] == report.verdict.summary
    assert failed(report) == report


def test_a_violation_that_was_found_before_stays():
    report = failed(made_report("VIOLATION"))
    assert report.verdict == made_report("VIOLATION").verdict
    assert f"the audit failed: {WHY}" in report.notes


def test_without_an_earlier_report_it_says_what_failed_and_no_more():
    report = failed(None)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.steps == 0
    assert not report.complete


@pytest.mark.parametrize("seed", range(3))
def test_healthy_run_passes_and_says_what_it_would_have_seen(seed):
    verdict = verdict_of(simulate(60, seed=seed, data=0.1))
    assert (verdict.outcome, verdict.kind, verdict.pass_blockers) == ("PASS", None, ())
    assert verdict.summary == (
        "no check failed; 95% power against 0.8x noise or 2x clipping, at the "
        "observed gradient variance"
    )


def test_too_few_steps_are_inconclusive_and_told_how_many_more_are_needed():
    verdict = verdict_of(simulate(12))
    assert verdict.outcome == "INCONCLUSIVE"
    told = [re.search(r"about (\d+) more steps", item) for item in verdict.pass_blockers]
    more = max(int(found[1]) for found in told if found)
    assert 1 <= more <= 40
    # A few steps on top: the power is taken from the variance that each run shows.
    assert verdict_of(simulate(12 + more + 5)).outcome == "PASS"


@pytest.mark.parametrize(("noise", "data"), [(1.0, 2.0), (0.5, 5.0), (1.0, 50.0)])
@pytest.mark.parametrize("steps", [50, 300])
def test_data_that_dominate_are_inconclusive_and_never_a_pass(noise, data, steps):
    verdict = verdict_of(simulate(steps, noise=noise, data=data))
    assert verdict.outcome == "INCONCLUSIVE"
    assert any(
        "the gradient variance of the data hides it" in item for item in verdict.pass_blockers
    )


def test_noise_and_clipping_that_err_together_are_a_violation_that_loses_no_privacy():
    verdict = verdict_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    assert verdict.outcome == "VIOLATION"
    assert "this loses no privacy by itself" in verdict.summary
    assert verdict.fault.startswith("noise scale too small")
    assert "loses no privacy" not in verdict_of(simulate(400, sigma=0.5, noise=0.8)).summary


def test_allowed_finding_is_shown_and_does_not_fail():
    record = simulate(60, replaced=[3])
    assert verdict_of(record).outcome == "VIOLATION"
    assert verdict_of(record, allow=["gradient_replaced"]).outcome == "PASS"
    shown = acknowledge(monitor_of(record).results(), ["gradient_replaced"])
    assert (shown[0].name, shown[0].status) == ("gradient_replaced", "allowed")


def test_allowing_one_finding_does_not_allow_another():
    record = simulate(60, noise=0.5, replaced=[3])
    verdict = verdict_of(record, allow=["gradient_replaced"])
    assert verdict.outcome == "VIOLATION"
    assert verdict.fault.startswith("noise scale too small")


def test_allowance_for_a_check_that_is_fine_changes_nothing():
    checks = monitor_of(simulate(30)).results()
    assert acknowledge(checks, ["noise"]) == checks


def test_violated_checks_come_first_and_those_not_run_last():
    statuses = ("ok", "not_run", "allowed", "violated", "ok")
    checks = [CheckResult(str(i), "mechanism", s, "") for i, s in enumerate(statuses)]  # type: ignore[arg-type]
    ordered = [check.status for check in acknowledge(checks, ())]
    assert ordered == ["violated", "allowed", "ok", "ok", "not_run"]


def test_mechanism_is_told_before_accounting():
    spent = CheckResult("accounting", "accounting", "violated", "it costs more")
    verdict = verdict_of(simulate(60, noise=0.5), others=[spent])
    assert verdict.kind == "mechanism"
    assert "accounting" in verdict.summary


def test_accounting_alone_is_a_violation_of_its_kind():
    spent = CheckResult("accounting", "accounting", "violated", "it costs more", "stop earlier")
    verdict = verdict_of(simulate(60), others=[spent])
    assert (verdict.outcome, verdict.kind, verdict.advice) == (
        "VIOLATION",
        "accounting",
        "stop earlier",
    )


def test_violation_stands_whatever_is_missing():
    assert verdict_of(simulate(3, noise=0.01), pass_blockers=["all"]).outcome == "VIOLATION"


def test_nothing_observed_is_inconclusive():
    verdict = judge([], None, None, Resolution())
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.pass_blockers == ("no step of a private optimizer was observed",)


def test_summary_of_a_violation_leads_with_what_was_measured():
    record = simulate(60, noise=0.5)
    verdict = verdict_of(record)
    assert verdict.summary.startswith("noise: too little noise: in some tensor it is at most 0.")
    assert by_name(monitor_of(record))["noise"].message in verdict.summary


def test_what_small_noise_makes_small_follows_from_it_and_is_no_further_finding():
    record = simulate(60, noise=0.5)
    wrong = violated(monitor_of(record))
    assert {"noise", "noise.tensor", "reuse.broadcast"} <= wrong
    verdict = verdict_of(record)
    assert verdict.root is not None
    assert verdict.root.finding == "noise"
    assert set(verdict.root.consequences) == wrong - {"noise"}
    assert verdict.further == ()
    assert "also" not in verdict.summary
    assert verdict_of(simulate(60, reuse="broadcast")).summary.startswith("reuse.")


def test_the_root_has_the_step_at_which_its_finding_was_first_seen():
    record = simulate(60, noise=0.5)
    root = verdict_of(record).root
    assert root is not None
    evidence = by_name(monitor_of(record))["noise"].evidence
    assert root.place.step == evidence["violated_at_step"] is not None


def test_what_the_root_does_not_explain_is_a_further_finding():
    others = [
        CheckResult("accounting", "accounting", "violated", "it costs more"),
        CheckResult("sampling.not_poisson", "accounting", "violated", "shuffled"),
    ]
    verdict = verdict_of(simulate(60, noise=0.5), others=others)
    found = [fault.finding for fault in verdict.further]
    assert found == ["sampling.not_poisson", "accounting"]
    assert "(also: sampling.not_poisson, accounting)" in verdict.summary


def test_the_verdict_is_of_the_kind_of_its_root():
    # No rule knows the first check, and rules that know theirs come before that.
    unknown = CheckResult("new.check", "mechanism", "violated", "it is odd")
    spent = CheckResult("accounting", "accounting", "violated", "it costs more")
    verdict = verdict_of(simulate(60), others=[spent, unknown])
    assert [fault.finding for fault in verdict.faults] == ["new.check", "accounting"]
    assert verdict.kind == "mechanism"


def test_where_to_look_is_said_once():
    noise = verdict_of(simulate(60, noise=0.5))
    assert noise.root is not None
    assert noise.root.look_at
    assert noise.advice == ""
    # What was seen for certain says what to do.
    assert verdict_of(simulate(60, replaced=[3])).advice.startswith(
        "run every backward pass before"
    )


@pytest.mark.parametrize("noise", [0.0, 1.0, -1.0, math.nan])
def test_resolution_names_a_noise_outside_the_unit_interval(noise):
    with pytest.raises(ValueError, match=r"^noise="):
        Resolution(noise=noise)


@pytest.mark.parametrize("sensitivity", [1.0, 0.5, math.nan])
def test_resolution_names_a_sensitivity_of_at_most_one(sensitivity):
    with pytest.raises(ValueError, match=r"^sensitivity="):
        Resolution(sensitivity=sensitivity)


def test_dead_canary_is_inconclusive_with_its_reason():
    verdict = verdict_of(simulate(200, shift=0.0))
    assert verdict.outcome == "INCONCLUSIVE"
    assert any("the canaries' signal was not detected" in item for item in verdict.pass_blockers)


def test_clipping_to_less_than_half_is_inconclusive_too():
    assert verdict_of(simulate(200, shift=0.3)).outcome == "INCONCLUSIVE"


def test_the_signal_is_held_to_the_share_that_is_known_to_be_released():
    monitor = monitor_of(simulate(400, shift=0.3))
    seen = seen_of(monitor, {}, 1000.0)
    judged = [
        blockers_of_optimizer(dataclasses.replace(seen, released=share), Resolution())
        for share in (1.0, 0.3)
    ]
    found = [[b for b in each if "the canaries' signal was not detected" in b] for each in judged]
    assert [len(each) for each in found] == [1, 0]


def test_what_else_is_missing_stands_in_the_way_of_a_pass():
    verdict = verdict_of(simulate(60), pass_blockers=["the training has not ended"])
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.pass_blockers == ("the training has not ended",)


def test_steps_without_noise_are_inconclusive_and_counted():
    made, entries = simulate(60)
    entries["noise_multiplier"][50:] = 0.0
    verdict = verdict_of((made, entries))
    assert verdict.outcome == "INCONCLUSIVE"
    assert any(
        m.startswith("10 of 60 steps have noise_multiplier 0") for m in verdict.pass_blockers
    )


DEFAULT = Resolution()


def test_power_rises_with_the_steps_and_reaches_its_target_where_it_says():
    model = PowerModel(monitor_of(simulate(10)))
    reached = model.at(DEFAULT)["sensitivity"]
    assert reached.power < TARGET
    powers = [model.sensitivity(2.0, steps) for steps in (10, 20, 40, 80)]
    assert powers == sorted(powers)
    assert model.sensitivity(2.0, reached.steps_needed) >= TARGET
    assert model.sensitivity(2.0, reached.steps_needed - 1) < TARGET


def test_healthy_run_can_see_the_default_resolution_and_says_what_it_cannot_exclude():
    model = PowerModel(monitor_of(simulate(200)))
    assert min(power.power for power in model.at(DEFAULT).values()) >= TARGET
    ratio, shift = model.not_excluded()
    assert 0.8 < ratio < 1
    assert 1 < shift < 2
    assert model.noise(ratio) >= TARGET
    assert model.sensitivity(shift) >= TARGET


def test_too_few_steps_exclude_nothing():
    assert PowerModel(monitor_of(simulate(1))).not_excluded()[0] < 0.6
    made, entries = simulate(2)
    entries["canaries"] = 0
    assert PowerModel(monitor_of((made, entries))).not_excluded()[1] == math.inf


def test_data_that_dominate_leave_no_power_over_the_noise():
    model = PowerModel(monitor_of(simulate(100, data=5.0)))
    assert model.noise(0.8) < 1e-6
    assert model.at(DEFAULT)["noise"].steps_needed >= 10**6
    assert model.not_excluded()[0] < 0.2


def test_one_quiet_tensor_gives_power_although_the_others_are_loud():
    model = PowerModel(monitor_of(simulate(200, data=[5.0, 5.0, 0.0])))
    assert model.noise(0.8) >= TARGET


def test_canaries_at_every_fourth_step_need_four_times_the_steps():
    each = PowerModel(monitor_of(simulate(400))).at(DEFAULT)["sensitivity"].steps_needed
    fourth = PowerModel(monitor_of(simulate(400, every=4))).at(DEFAULT)["sensitivity"].steps_needed
    assert fourth == pytest.approx(4 * each, rel=0.25)


@pytest.mark.parametrize("noise", [0.8, 0.7])
@pytest.mark.parametrize("steps", [4, 8])
def test_power_over_the_noise_is_kept_by_the_checks(noise, steps):
    promised = PowerModel(monitor_of(simulate(steps))).noise(noise)
    runs = 60
    seen = np.mean(
        [bool(violated(monitor_of(simulate(steps, seed=s, noise=noise)))) for s in range(runs)]
    )
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)


@pytest.mark.parametrize("steps", staged(quick=[20], heavy=[60]))
def test_power_over_the_shift_is_kept_by_the_checks(steps):
    promised = PowerModel(monitor_of(simulate(steps, sigma=2.0))).sensitivity(2.0)
    runs = 40
    runs_seen = [
        violated(monitor_of(simulate(steps, seed=s, sigma=2.0, shift=2.0))) for s in range(runs)
    ]
    seen = np.mean(["sensitivity" in found for found in runs_seen])
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)


def half_loud(noise: float, seed: int, steps: int = 60, loudness: float = 30.0) -> AuditMonitor:
    """Twenty tensors with two witnesses each; data dominate in ten of them, and on canaries."""
    rng, tensors, each, k = np.random.default_rng(seed), 20, 2, 8
    made = RecordHeader(("Dirac",) * k, tuple(map(str, range(tensors))), (each,) * tensors, 4)
    reducer = WitnessReducer(Witnesses({j: np.arange(each) for j in range(tensors)}), lags=4)
    data = np.repeat(loudness * (np.arange(tensors) < tensors // 2), each)
    monitor = AuditMonitor(made, SIGNIFICANCE)
    for t in range(steps):
        entry = np.zeros((), dtype=made.dtype)
        coins = rng.integers(0, 2, k).astype(float)
        released = noise * rng.standard_normal(len(data)) + data * rng.standard_normal(len(data))
        fields = {
            "step": t,
            "canaries": INJECTED,
            "noise_multiplier": 1.0,
            "scale": 64.0,
            "coins": coins,
            "readings": coins + loudness * rng.standard_normal(k),
            **reducer.reduce(released, 1.0),
        }
        for name, value in fields.items():
            entry[name] = value
        monitor.update(entry)
    return monitor


@pytest.mark.heavy
def test_power_over_the_noise_is_kept_where_half_of_the_tensors_are_loud():
    promised = np.mean([PowerModel(half_loud(1.0, seed)).noise(0.8) for seed in range(3)])
    runs = 40
    seen = np.mean([bool(violated(half_loud(0.8, seed))) for seed in range(100, 100 + runs)])
    assert promised > 0.9
    assert seen >= promised - 3 * math.sqrt(0.25 / runs)


def test_coarser_resolution_passes_where_the_default_does_not():
    record = simulate(14)
    assert verdict_of(record).outcome == "INCONCLUSIVE"
    assert verdict_of(record, resolution=Resolution(0.5, 50.0)).outcome == "PASS"


OPTIMIZERS = ("optimizer 1 (a)", "optimizer 2 (b)")


def check_root(name: str, optimizer: str = "", **evidence: Any) -> CheckResult:
    return CheckResult(
        name, "mechanism", "violated", "seen", evidence=evidence, optimizer=optimizer
    )


def fault(finding: str, *consequences: str, optimizer: str = "") -> LikelyFault:
    place = Place(optimizer=optimizer)
    return LikelyFault(finding, "wrong", finding, place=place, consequences=consequences)


# ------------------------------------------------------------------ what follows from what


def test_a_violated_check_that_follows_from_a_finding_says_from_which():
    record = simulate(60, noise=0.5)
    checks = monitor_of(record).results()
    marked = mark_consequences(checks, verdict_of(record).faults)
    followed = {check.name: check.follows_from for check in marked if check.follows_from}
    assert followed == dict.fromkeys(violated(monitor_of(record)) - {"noise"}, "noise")
    unmarked = [dataclasses.replace(check, follows_from="") for check in marked]
    assert unmarked == list(checks)


@pytest.mark.parametrize("reuse", ["", "broadcast"])
def test_a_finding_and_a_check_that_is_fine_follow_from_nothing(reuse):
    record = simulate(60, reuse=reuse) if reuse else simulate(60)
    faults = verdict_of(record).faults
    marked = mark_consequences(monitor_of(record).results(), faults)
    findings = {fault.finding for fault in faults}
    assert all(not c.follows_from for c in marked if c.status == "ok" or c.name in findings)


def test_a_consequence_is_left_to_the_first_fault_that_explains_it():
    given = [fault("noise", "epsilon", "reuse.lag"), fault("sensitivity", "epsilon")]
    assert [f.consequences for f in settled(given)] == [("epsilon", "reuse.lag"), ()]


def test_a_finding_is_no_consequence():
    given = [fault("noise", "reuse.lag"), fault("reuse.lag", "noise.tensor")]
    assert [f.consequences for f in settled(given)] == [(), ("noise.tensor",)]


def test_the_fault_of_one_optimizer_explains_no_check_of_another_one():
    first, second = OPTIMIZERS
    checks = [
        check_root("noise", first),
        check_root("reuse.lag", first),
        check_root("reuse.lag", second),
    ]
    marked = mark_consequences(checks, [fault("noise", "reuse.lag", optimizer=first)])
    assert [c.follows_from for c in marked] == ["", "noise", ""]


def test_the_fault_of_another_optimizer_is_a_further_finding():
    records = [simulate(60, noise=0.5), simulate(60, reuse="broadcast")]
    spent = CheckResult("accounting", "accounting", "violated", "it costs more")
    verdicts = [verdict_of(record, others=[spent]) for record in records]
    verdict = worst(verdicts, OPTIMIZERS, [], broken=OPTIMIZERS)
    found = [(f.finding, f.place.optimizer) for f in (verdict.root, *verdict.further) if f]
    # What is of the run stands once, and is no optimizer's.
    assert found == [
        ("noise", OPTIMIZERS[0]),
        ("accounting", ""),
        ("reuse.broadcast", OPTIMIZERS[1]),
    ]
    assert verdict.summary.endswith("; also: optimizer 2 (b)")


@pytest.mark.parametrize(
    "record",
    [
        {"noise": 0.5},
        {"noise": 0.01},
        {"noise": [0.5, 1.0, 1.0]},
        {"reuse": "broadcast"},
        {"reuse": "pair"},
        {"reuse": "same"},
        {"reuse": "cycle 3"},
        {"shift": 5.0},
        {"noise": 0.5, "shift": 5.0},
        {"replaced": [3], "noise": 0.5},
    ],
    ids=str,
)
def test_every_violated_check_is_a_finding_or_follows_from_one(record):
    made = simulate(60, **record)
    wrong = violated(monitor_of(made))
    faults = verdict_of(made, others=[]).faults
    named = [f.finding for f in faults] + [name for f in faults for name in f.consequences]
    assert set(named) == wrong


@pytest.mark.parametrize(
    ("evidence", "step"),
    [
        ({}, None),
        ({"violated_at_step": None}, None),
        ({"violated_at_step": 7}, 7),
        ({"first_step": 3, "violated_at_step": 7}, 3),
    ],
)
def test_the_step_is_the_one_that_the_evidence_has(evidence, step):
    assert first_seen(evidence) == step
