"""The verdict: what is violated, allowed, missing or not known to hold, and in which words."""

import contextlib
import dataclasses
import io
import json
import math
import re
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
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
from lightning_audit.record.store import INJECTED, Observation, RecordHeader
from lightning_audit.results.audit_report import CheckResult, LikelyFault, Place, describe
from lightning_audit.session.planner import StepPlanner
from lightning_audit.testing.faulty import HalfNoise
from lightning_audit.verdict import judge as judging
from lightning_audit.verdict.gate import contradictions

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


@dataclasses.dataclass(frozen=True)
class Trained:
    """A training of two epochs: its report, and all that was logged and printed."""

    report: AuditReport
    logged: str
    printed: str
    path: str

    @property
    def line(self) -> str:
        """The first line of its verdict."""
        return describe(self.report.verdict).splitlines()[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a module of digits, or one that is given."""

    def train(module: Any = None, *, planned: Any = None, **audit: Any) -> Trained:
        folder, printed = tmp_path_factory.mktemp("trained"), io.StringIO()
        given = {"logger": CSVLogger(folder / "logs"), "log_every_n_steps": 1}
        given |= planned or {"max_epochs": 2}
        module = module or PrivateModule(mlp(64), dataset=digits())
        with contextlib.redirect_stdout(printed):
            audit = {"seed": 1, "examinations": 0, "bounds": (), **audit}
            trainer_for(folder, PrivacyAudit(**audit), **given).fit(module)
        (logged,) = folder.glob("logs/**/metrics.csv")
        path = str(folder / "audit" / "report.json")
        return Trained(report_in(folder), logged.read_text(), printed.getvalue(), path)

    return train


@pytest.fixture(scope="module")
def shuffled(trained):
    """A training whose shuffled loader is allowed."""
    torch.manual_seed(0)
    return trained(Shuffled(), allow=NAME)


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


def test_a_shuffled_loader_is_named_with_the_epsilon_that_holds(shuffled):
    report, told = shuffled.report, f"the epsilon that holds is {HOLDS:.4g} at delta 1e-05"
    assert shuffled.line.startswith(f"PASS except {NAME} (allowed); {told}")
    printed = " ".join(shuffled.printed.split())
    assert f"PASS except {NAME} (allowed): no other fault found in {report.steps} steps" in printed
    assert f"Allowed {told}" in printed
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
    header = shuffled.logged.splitlines()[0]
    assert "audit/epsilon_spent" in header
    assert "audit/allowed" in header
    assert not re.search("claimed_epsilon|epsilon_lower", header)
    assert str(HOLDS)[:5] in shuffled.logged
    assert REFUTED not in shuffled.logged


def test_the_gate_holds_the_epsilon_that_holds_against_a_limit(shuffled):
    for limit, code in ((), 0), (("--max-epsilon", "3"), 1), (("--max-epsilon", "7"), 0):
        assert main(["check", shuffled.path, *limit]) == code


def test_a_second_finding_is_named_beside_it(trained):
    found = trained(Shuffled(), allow=["accounting", NAME], claimed_epsilon=1.5)
    told = f"PASS except {NAME}, accounting (allowed); the epsilon that holds is {HOLDS:.4g} at"
    assert found.line.startswith(told)
    shown = as_text(found.report)
    assert f"claimed 1.5 (not known to hold with {NAME}, accounting allowed)" in shown
    assert found.report.claimed_epsilon == 1.5
    assert "claimed_epsilon" not in found.report.epochs[-1]


def test_a_claim_above_the_epsilon_that_holds_is_shown_as_it_is(trained):
    found = trained(Shuffled(), allow=NAME, claimed_epsilon=7.0)
    assert "claimed 7, spent 6.573 (PLD, holds)" in as_text(found.report)
    assert found.report.epochs[-1]["claimed_epsilon"] == 7.0
    assert "audit/claimed_epsilon" in found.logged


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


class Halved(PrivateModule):
    """Adds half the noise."""

    def __init__(self) -> None:
        super().__init__(mlp(64), dataset=digits(), optimizer_class=HalfNoise)


#: What half the noise violates.
OF_NOISE = ("noise", "reuse", "replay.noise", "epsilon")
NOISE = [name for name in REGISTRY if name.startswith(OF_NOISE)]


@pytest.mark.parametrize(
    ("module", "allow", "named"),
    staged(
        [(lambda: MoreOften(mlp(64), dataset=digits()), ["sampling.rate"], "sampling.rate")],
        [(Halved, NOISE, "noise"), (Twice, ["ledger.records"], "ledger.records")],
        [(lambda: Shuffled(optimizer_class=HalfNoise), [*NOISE, NAME], "noise")],
    ),
)
@pytest.mark.heavy_one_in(1)
def test_where_no_epsilon_holds_none_is_shown(trained, module, allow, named):
    found = trained(module(), allow=allow)
    report = found.report
    assert report.verdict.outcome != "VIOLATION", report.verdict
    assert named in found.line.split("(allowed)")[0].split(" allowed;")[0]
    assert "; no epsilon is known to hold" in found.line
    assert report.epsilon_spent is report.claimed_epsilon is report.epsilon_not_excluded is None
    assert "epsilon_spent" not in report.epochs[-1]
    assert "epsilon_spent" not in found.logged
    assert main(["check", found.path, "--max-epsilon", "50"]) == 2


def test_an_exemption_is_named_with_what_the_epsilon_rests_on(trained):
    planned = {"max_steps": 160, "max_epochs": -1}
    found = trained(Gan(dataset=digits()), allow=[GENERATOR], planned=planned)
    spent = found.report.epsilon_spent
    told = f"that holds is {spent:.4g} at delta 1e-05, if allowing no_dp of"
    start = f"PASS except no_dp of optimizer 'G' (allowed); the epsilon {told}"
    assert found.line.startswith(start)
    assert found.report.epsilon_refuted_by == ()


def test_beside_a_violation_no_epsilon_holds(trained):
    found = trained(Shuffled(optimizer_class=HalfNoise), allow=NAME, on_violation="warn")
    told = f"VIOLATION (mechanism), with {NAME} allowed; no epsilon is known to hold: noise: "
    assert found.line.startswith(told)


def test_nothing_is_named_where_nothing_is_found(trained):
    found = trained(allow=[NAME, "sampling.rate", "unaudited"])
    assert found.line.startswith("PASS: ")
    assert (found.report.verdict.allowed, found.report.epsilon_refuted_by) == ((), ())
    assert "audit/allowed" not in found.logged


@pytest.mark.parametrize(
    ("edit", "of_verdict"),
    [
        ({"epsilon_spent": 1.877}, {}),
        ({"claimed_epsilon": 2.0}, {}),
        ({"epsilon_refuted_by": ()}, {}),
        ({}, {"allowed": ()}),
        ({}, {"holds": "the epsilon that holds is 1.877 at delta 1e-05"}),
    ],
)
def test_the_gate_takes_no_report_that_hides_it(shuffled, edit, of_verdict):
    verdict = dataclasses.replace(shuffled.report.verdict, **of_verdict)
    assert contradictions(dataclasses.replace(shuffled.report, verdict=verdict, **edit))


def check(name: str, status: str = "allowed", **evidence: Any) -> CheckResult:
    return CheckResult(name, REGISTRY[name].kind, status, "found", evidence=evidence)


@pytest.mark.parametrize("name", [name for name, known in REGISTRY.items() if not known.warns])
def test_every_finding_that_is_allowed_refutes_the_accountants_epsilon(name):
    now = judging.held([check(name)], 2.0, 2.0, None)
    assert (now.refuted_by, now.claimed, now.claim_holds) == ((name,), None, False)
    assert now.spent == (2.0 if name in ("accounting", "ledger.accountant") else None)
    assert now.lower_holds == ("lower" not in REGISTRY[name].refutes)


def test_two_findings_leave_what_both_leave():
    passes, wrong = check(NAME, epsilon_that_holds=6.5), check("noise", "violated")
    for checks, spent in (
        ([passes], 6.5),
        ([passes, check("ledger.accountant")], 6.5),
        ([passes, check("ledger.records")], None),
        ([passes, wrong], None),
        ([wrong], 2.0),
    ):
        assert judging.held(checks, 2.0, 2.0, None).spent == spent


# --- The first line of a pass names what was examined, and what was not with its reason.


def line(log: ExaminationLog, coupling: Coupling) -> str:
    return judging.describe_examined([*log.results(0.05), coupling.result(log.off)])


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
    assert line(log, coupling) == (
        "by canaries and noise; examined by replay: records; not examined: clipping, noise, "
        "coupling (no per-sample gradients are formed); release (optimizer state does not fit)"
    )
    told = "by canaries and noise; not examined: sensitivity, clipping, release, noise, coupling "
    assert line(ExaminationLog(off="examinations=0"), Coupling()) == f"{told}(examinations=0)"
    assert judging.describe_examined([]) == ""


# --- A report of a training whose audit failed never passes, and the gate reads it.

WHY = "MemoryError in run.evaluation.build_report"


def failed(before: AuditReport | None) -> AuditReport:
    settings = AuditReport.from_json(made_report().to_json()).settings
    report = judging.failed_report(before, judging.OutcomeSettings.of(settings), settings, WHY)
    report = AuditReport.from_json(report.to_json())
    assert contradictions(report) == []
    return report


@pytest.mark.parametrize("outcome", ["PASS", "INCONCLUSIVE"])
def test_what_had_passed_or_not_is_inconclusive(outcome):
    report = failed(made_report(outcome))
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.summary == f"the audit failed: {WHY}"
    assert report.verdict.pass_blockers[0] == report.verdict.summary
    assert failed(report) == report


def test_a_violation_that_was_found_before_stays_and_without_a_report_nothing_more_is_said():
    report = failed(made_report("VIOLATION"))
    assert report.verdict == made_report("VIOLATION").verdict
    assert f"the audit failed: {WHY}" in report.notes
    report = failed(None)
    assert (report.verdict.outcome, report.steps, report.complete) == ("INCONCLUSIVE", 0, False)


SPENT = CheckResult("accounting", "accounting", "violated", "it costs more", "stop earlier")


@pytest.mark.parametrize("seed", range(3))
def test_healthy_run_passes_and_says_what_it_would_have_seen(seed):
    verdict = verdict_of(simulate(60, seed=seed, data=0.1))
    assert (verdict.outcome, verdict.kind, verdict.pass_blockers) == ("PASS", None, ())
    told = "no check failed; 95% power against 0.8x noise or 2x clipping"
    assert verdict.summary == f"{told}, at the observed gradient variance"


def test_too_few_steps_are_inconclusive_and_told_how_many_more_are_needed():
    verdict = verdict_of(simulate(12))
    assert verdict.outcome == "INCONCLUSIVE"
    told = [re.search(r"about (\d+) more steps", item) for item in verdict.pass_blockers]
    more = max(int(found[1]) for found in told if found)
    assert 1 <= more <= 40
    # A few steps on top: the power is taken from the variance that each run shows.
    assert verdict_of(simulate(12 + more + 5)).outcome == "PASS"


def without_noise_at_the_end() -> tuple[RecordHeader, np.ndarray]:
    made, entries = simulate(60)
    entries["noise_multiplier"][50:] = 0.0
    return made, entries


@pytest.mark.parametrize(
    ("record", "told"),
    [
        *(
            (partial(simulate, steps, **hidden), f"the gradient varies {times}x as much as")
            for hidden, times in (
                ({"data": 2.0}, "2.2"),
                ({"noise": 0.5, "data": 5.0}, "[45]"),
                ({"data": 50.0}, "(49|50|48)"),
                ({"noise": 1.3}, "1.3"),
            )
            for steps in (50, 300)
        ),
        (partial(simulate, 100, sigma=50.0), "Resolution\\(sensitivity=...\\)"),
        (partial(simulate, 200, shift=0.0), "the canaries' signal was not detected"),
        (partial(simulate, 200, shift=0.3), ""),  # clipped to less than half
        (without_noise_at_the_end, "10 of 60 steps have noise_multiplier 0"),
    ],
)
def test_a_run_that_could_not_have_shown_a_fault_is_inconclusive_and_never_a_pass(record, told):
    verdict = verdict_of(record())
    assert verdict.outcome == "INCONCLUSIVE"
    assert any(re.search(told, item) for item in verdict.pass_blockers)


def test_steps_without_a_gradient_are_not_said_to_be_lost_to_nan():
    planner = SimpleNamespace(pass_blockers=[], missing="no gradient for bias in step 3")
    for dropped, blockers in (([], []), (range(50, 60), [planner.missing])):
        monitor = monitor_of(simulate(60, dropped=dropped))
        said = StepPlanner.blockers(planner, monitor)
        seen = judging.seen_of(monitor, {}, 1000.0, said, lost_explained=True)
        found = judging.blockers_of_optimizer(seen, judging.Resolution())
        assert [one.sentence for one in found] == blockers
        if dropped:  # an edited report that has the explanation no more
            edited = dataclasses.replace(seen, pass_blockers=())
            (lost,) = judging.blockers_of_optimizer(edited, judging.Resolution())
            assert "10 of 60 steps were lost" in lost.sentence


def test_noise_and_clipping_that_err_together_are_a_violation_that_loses_no_privacy():
    verdict = verdict_of(simulate(400, sigma=0.5, noise=0.8, shift=0.8))
    assert verdict.outcome == "VIOLATION"
    assert "this loses no privacy by itself" in verdict.summary
    assert verdict.fault.startswith("noise scale too small")
    assert "loses no privacy" not in verdict_of(simulate(400, sigma=0.5, noise=0.8)).summary


def test_allowed_finding_is_shown_and_does_not_fail_and_allows_no_other():
    record, allow = simulate(60, replaced=[3]), ["gradient_replaced"]
    assert verdict_of(record).outcome == "VIOLATION"
    assert verdict_of(record, allow=allow).outcome == "PASS"
    shown = judging.acknowledge(monitor_of(record).results(), allow)
    assert (shown[0].name, shown[0].status) == ("gradient_replaced", "allowed")
    verdict = verdict_of(simulate(60, noise=0.5, replaced=[3]), allow=allow)
    assert verdict.outcome == "VIOLATION"
    assert verdict.fault.startswith("noise scale too small")
    checks = monitor_of(simulate(30)).results()
    assert judging.acknowledge(checks, ["noise"]) == checks


def test_violated_checks_come_first_and_those_not_run_last():
    statuses = ("ok", "not_run", "allowed", "violated", "ok")
    checks = [CheckResult(str(i), "mechanism", s, "") for i, s in enumerate(statuses)]  # type: ignore[arg-type]
    ordered = [check.status for check in judging.acknowledge(checks, ())]
    assert ordered == ["violated", "allowed", "ok", "ok", "not_run"]


def test_mechanism_is_told_before_accounting_which_alone_is_a_violation_of_its_kind():
    verdict = verdict_of(simulate(60, noise=0.5), others=[SPENT])
    assert verdict.kind == "mechanism"
    assert "accounting" in verdict.summary
    verdict = verdict_of(simulate(60), others=[SPENT])
    assert (verdict.outcome, verdict.kind) == ("VIOLATION", "accounting")
    assert verdict.advice == ""
    assert "stop earlier" in verdict.root.look_at


def test_what_is_missing_stands_in_the_way_of_a_pass_and_of_no_violation():
    verdict = verdict_of(simulate(60), pass_blockers=["the training has not ended"])
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.pass_blockers == ("the training has not ended",)
    assert verdict_of(simulate(3, noise=0.01), pass_blockers=["all"]).outcome == "VIOLATION"
    lacks = judging.blockers_of([], None, judging.Resolution())
    verdict = judging.judge([], None, None, judging.Resolution(), lacks)
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.pass_blockers == (judging.NO_OPTIMIZER,)


def test_what_small_noise_makes_small_follows_from_it_and_is_no_further_finding():
    record = simulate(60, noise=0.5)
    monitor, verdict = monitor_of(record), verdict_of(record)
    wrong, noise = violated(monitor), by_name(monitor)["noise"]
    assert {"noise", "noise.tensor", "reuse.broadcast"} <= wrong
    assert verdict.root is not None
    assert verdict.root.finding == "noise"
    assert set(verdict.root.consequences) == wrong - {"noise"}
    steps = [by_name(monitor)[name].evidence.get("violated_at_step") for name in wrong]
    assert verdict.root.place.step == min(step for step in steps if step is not None)
    assert noise.evidence["violated_at_step"] is not None
    assert (verdict.further, verdict.advice) == ((), "")
    assert verdict.root.look_at
    assert "also" not in verdict.summary
    assert verdict.summary.startswith("noise: too little noise: in some tensor it is at most 0.")
    assert noise.message in verdict.summary
    assert verdict_of(simulate(60, reuse="broadcast")).summary.startswith("reuse.")


def test_what_the_root_does_not_explain_is_a_further_finding():
    others = [SPENT, CheckResult("sampling.not_poisson", "accounting", "violated", "shuffled")]
    verdict = verdict_of(simulate(60, noise=0.5), others=others)
    names = ["sampling.not_poisson", "accounting"]
    assert [fault.finding for fault in verdict.further] == names
    assert f"(also: {', '.join(names)})" in verdict.summary


def test_the_verdict_is_of_the_kind_of_its_root():
    # No rule knows the first check, and rules that know theirs come before that.
    unknown = CheckResult("new.check", "mechanism", "violated", "it is odd")
    verdict = verdict_of(simulate(60), others=[SPENT, unknown])
    assert [fault.finding for fault in verdict.faults] == ["new.check", "accounting"]
    assert verdict.kind == "mechanism"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("noise", value) for value in (0.0, 1.0, -1.0, math.nan)),
        *(("sensitivity", value) for value in (1.0, 0.5, math.nan)),
    ],
)
def test_resolution_names_a_noise_or_sensitivity_on_the_wrong_side_of_one(name, value):
    with pytest.raises(ValueError, match=f"^{name}="):
        judging.Resolution(**{name: value})


def test_the_signal_is_held_to_the_share_that_is_known_to_be_released():
    seen = judging.seen_of(monitor_of(simulate(400, shift=0.3)), {}, 1000.0)
    for share, found in ((1.0, 1), (0.3, 0)):
        told = judging.blockers_of_optimizer(
            dataclasses.replace(seen, released=share), judging.Resolution()
        )
        assert sum("the canaries' signal was not detected" in one.sentence for one in told) == found


DEFAULT = judging.Resolution()


def test_power_rises_with_the_steps_and_reaches_its_target_where_it_says():
    model = judging.PowerModel(monitor_of(simulate(10)))
    reached = model.at(DEFAULT)["sensitivity"]
    assert reached.power < judging.TARGET
    powers = [model.sensitivity(2.0, steps) for steps in (10, 20, 40, 80)]
    assert powers == sorted(powers)
    assert model.sensitivity(2.0, reached.steps_needed) >= judging.TARGET
    assert model.sensitivity(2.0, reached.steps_needed - 1) < judging.TARGET


def test_healthy_run_can_see_the_default_resolution_and_says_what_it_cannot_exclude():
    model = judging.PowerModel(monitor_of(simulate(200)))
    assert min(power.power for power in model.at(DEFAULT).values()) >= judging.TARGET
    ratio, shift = model.not_excluded()
    assert 0.8 < ratio < 1 < shift < 2
    assert model.noise(ratio) >= judging.TARGET
    assert model.sensitivity(shift) >= judging.TARGET
    # Too few steps exclude nothing.
    assert judging.PowerModel(monitor_of(simulate(1))).not_excluded()[0] < 0.6
    made, entries = simulate(2)
    entries["canaries"] = 0
    assert judging.PowerModel(monitor_of((made, entries))).not_excluded()[1] == math.inf


def test_data_that_dominate_leave_no_power_over_the_noise_unless_one_tensor_is_quiet():
    model = judging.PowerModel(monitor_of(simulate(100, data=5.0)))
    assert model.noise(0.8) < 1e-6
    assert model.at(DEFAULT)["noise"].steps_needed >= 10**6
    assert model.not_excluded()[0] < 0.2
    quiet = judging.PowerModel(monitor_of(simulate(200, data=[5.0, 5.0, 0.0])))
    assert quiet.noise(0.8) >= judging.TARGET


def test_canaries_at_every_fourth_step_need_four_times_the_steps():
    each = judging.PowerModel(monitor_of(simulate(400))).at(DEFAULT)["sensitivity"].steps_needed
    fourth = judging.PowerModel(monitor_of(simulate(400, every=4))).at(DEFAULT)["sensitivity"]
    assert fourth.steps_needed == pytest.approx(4 * each, rel=0.25)


def held_to(promised: float, runs: list[set[str]]) -> None:
    """Something was violated in at least the promised share of the runs."""
    seen = np.mean([bool(found) for found in runs])
    assert seen >= promised - 3 * math.sqrt(0.25 / len(runs))


@pytest.mark.parametrize(("steps", "noise"), staged([(4, 0.8)], nightly=[(8, 0.8), (8, 0.7)]))
def test_power_over_the_noise_is_kept_by_the_checks(steps, noise):
    promised = judging.PowerModel(monitor_of(simulate(steps))).noise(noise)
    runs = [violated(monitor_of(simulate(steps, seed=s, noise=noise))) for s in range(60)]
    held_to(promised, runs)


@pytest.mark.parametrize("steps", staged(quick=[20], nightly=[60]))
def test_power_over_the_shift_is_kept_by_the_checks(steps):
    promised = judging.PowerModel(monitor_of(simulate(steps, sigma=2.0))).sensitivity(2.0)
    runs = [monitor_of(simulate(steps, seed=s, sigma=2.0, shift=2.0)) for s in range(40)]
    held_to(promised, [violated(run) & {"sensitivity"} for run in runs])


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
        entry["step"], entry["canaries"], entry["coins"] = t, INJECTED, coins
        entry["noise_multiplier"], entry["scale"] = 1.0, 64.0
        entry["readings"] = coins + loudness * rng.standard_normal(k)
        for name, value in reducer.reduce(released, 1.0).items():
            entry[name] = value[0]
        monitor.update(Observation.of(entry))
    return monitor


@pytest.mark.nightly
def test_power_over_the_noise_is_kept_where_half_of_the_tensors_are_loud():
    promised = np.mean([judging.PowerModel(half_loud(1.0, seed)).noise(0.8) for seed in range(3)])
    assert promised > 0.9
    held_to(promised, [violated(half_loud(0.8, seed)) for seed in range(100, 140)])


def test_coarser_resolution_passes_where_the_default_does_not():
    record = simulate(14)
    assert verdict_of(record).outcome == "INCONCLUSIVE"
    assert verdict_of(record, resolution=judging.Resolution(0.5, 50.0)).outcome == "PASS"


OPTIMIZERS = ("optimizer 1 (a)", "optimizer 2 (b)")


def fault(finding: str, *consequences: str, optimizer: str = "") -> LikelyFault:
    place = Place(optimizer=optimizer)
    return LikelyFault(finding, "wrong", finding, place=place, consequences=consequences)


# --- What follows from what.


def test_a_violated_check_that_follows_from_a_finding_says_from_which():
    record = simulate(60, noise=0.5)
    checks = monitor_of(record).results()
    marked = judging.mark_consequences(checks, verdict_of(record).faults)
    followed = {check.name: check.follows_from for check in marked if check.follows_from}
    assert followed == dict.fromkeys(violated(monitor_of(record)) - {"noise"}, "noise")
    unmarked = [dataclasses.replace(check, follows_from="") for check in marked]
    assert unmarked == list(checks)


def test_a_consequence_is_left_to_the_first_fault_that_explains_it_and_a_finding_is_none():
    given = [fault("noise", "epsilon", "reuse.lag"), fault("sensitivity", "epsilon")]
    assert [f.consequences for f in judging.settled(given)] == [("epsilon", "reuse.lag"), ()]
    given = [fault("noise", "reuse.lag"), fault("reuse.lag", "noise.tensor")]
    assert [f.consequences for f in judging.settled(given)] == [(), ("noise.tensor",)]


def test_the_fault_of_one_optimizer_explains_no_check_of_another_one():
    first, second = OPTIMIZERS
    checks = [
        CheckResult(name, "mechanism", "violated", "seen", optimizer=optimizer)
        for name, optimizer in (("noise", first), ("reuse.lag", first), ("reuse.lag", second))
    ]
    marked = judging.mark_consequences(checks, [fault("noise", "reuse.lag", optimizer=first)])
    assert [c.follows_from for c in marked] == ["", "noise", ""]


def test_the_fault_of_another_optimizer_is_a_further_finding():
    records = [simulate(60, noise=0.5), simulate(60, reuse="broadcast")]
    verdicts = [verdict_of(record, others=[SPENT]) for record in records]
    verdict = judging.worst(verdicts, OPTIMIZERS, [], broken=OPTIMIZERS)
    found = [(f.finding, f.place.optimizer) for f in (verdict.root, *verdict.further) if f]
    # What is of the run stands once, and is no optimizer's.
    first, second = OPTIMIZERS
    assert found == [("noise", first), ("accounting", ""), ("reuse.broadcast", second)]
    assert verdict.summary.endswith("; also: optimizer 2 (b)")


@pytest.mark.parametrize(
    "record",
    [
        *({"noise": noise} for noise in (0.5, 0.01, [0.5, 1.0, 1.0])),
        *({"reuse": reuse} for reuse in ("broadcast", "pair", "same", "cycle 3")),
        *({"shift": 5.0}, {"noise": 0.5, "shift": 5.0}, {"replaced": [3], "noise": 0.5}),
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
