"""The details of real reports: of a training that passes, and of faults with the user's code."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from places import REPOSITORY
from trained import failing, private
from training_support import PrivateModule

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.checks.check import REGISTRY, Evidence, headlines
from lightning_audit.cli.main import main
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.lints.own_code import MOST_LINES
from lightning_audit.results.audit_report import CheckResult, OperatingPoint
from lightning_audit.results.report_details import CourseRow, Ended, TensorNoise
from lightning_audit.run.details import (
    MOST_POINTS,
    MOST_UNFLAGGED,
    capped,
    claim_of,
    claimed_mu,
    growth_of,
    with_limits,
    with_threshold,
)
from lightning_audit.run.facts import MOST_ROWS, RunCourse

# --- Growth of e-values: thinned, coarse where it is of the data, and only of what was observed.

LN10 = math.log(10.0)


def grown(name: str, *log_e: float, share: float = 0.1) -> Evidence:
    test = Evidence(name, 1e-3, share)
    for step, value in enumerate(log_e):
        test.update(value, step)
    return test


def result(name: str, share: float = 0.1, status: str = "ok", optimizer: str = "") -> CheckResult:
    check = CheckResult(name, "mechanism", status, "", log_e_value=1.0, share=share)  # type: ignore[arg-type]
    return with_threshold(CheckResult(**{**vars(check), "optimizer": optimizer}), 1e-3)


def growth(name: str, *tests: Evidence) -> Any:
    """What is told of the tests of a check."""
    return growth_of([result(name)], [("", test) for test in tests])[name].growth


def test_growth_of_the_data_is_rounded_and_says_when_a_power_was_reached():
    public = grown("noise", 0.5, 2.0, 20.0)
    assert growth("noise", public) == tuple(public.growth)
    one, other = (grown("noise.shape", *values) for values in ((1.0, 5.0, 8.0), (1.3, 5.4, 8.9)))
    assert growth("noise.shape", one) == growth("noise.shape", other)
    test = grown("noise.shape", 0.5 * LN10, 1.2 * LN10, 1.9 * LN10, 3.4 * LN10, 7.0 * LN10)
    kept = dict(test.growth)
    powers = [(step, round(log_e / LN10)) for step, log_e in growth("noise.shape", test)]
    assert powers == [(step, math.floor(kept[step] / LN10)) for step, _ in powers]
    assert [power for _, power in powers] == [1, 3, 7]


def test_at_most_a_dozen_points_are_kept_with_the_alarm_among_them():
    test = grown("noise", *(1.5**k for k in range(40)))
    told = growth("noise", test)
    assert len(told) <= MOST_POINTS
    assert (told[0], told[-1]) == (test.growth[0], test.growth[-1])
    assert test.violated_at in [step for step, _ in told]


def test_of_several_optimizers_the_one_closest_to_its_alarm_is_shown():
    checks = [result("noise", optimizer="a"), result("noise", optimizer="b")]
    tests = [("a", grown("noise", 2.0)), ("b", grown("noise", 7.0))]
    assert growth_of(checks, tests)["noise"].optimizer == "b"
    assert growth_of(checks, [*reversed(tests)])["noise"].optimizer == "b"


# --- Circumstances of a training: how it ended, and a course that stays short.


def session(steps: int) -> Any:
    seen = SimpleNamespace(observations=8 * steps)
    return SimpleNamespace(monitor=SimpleNamespace(steps=steps, log_e_value=0.5, sensitivity=seen))


def course(epochs: int, about: RunCourse | None = None) -> RunCourse:
    about = about or RunCourse()
    for epoch in range(epochs):
        metrics = {"mu_lower": epoch / 10.0}
        about.end_epoch(epoch, [session(epoch + 1)], None, metrics)  # type: ignore[arg-type]
    return about


@pytest.mark.parametrize("epochs", [MOST_ROWS, MOST_ROWS + 1, 1000, 1601])
def test_rows_of_many_epochs_are_thinned_evenly(epochs):
    rows = course(epochs).rows
    assert MOST_ROWS // 2 <= len(rows) <= MOST_ROWS
    gaps = {b.epoch - a.epoch for a, b in itertools.pairwise(rows)}
    assert len(gaps) == 1
    assert rows[0].epoch == 0
    assert epochs - rows[-1].epoch <= max(gaps)


def test_rows_go_on_after_a_checkpoint_and_a_resumed_epoch_replaces_its_own():
    about, state = RunCourse(), course(450).state([])
    about.load(state)
    assert about.rows == course(450).rows
    last = about.rows[-1].epoch
    about.end_epoch(last, [session(7)], None, {})  # type: ignore[arg-type]
    assert about.rows[-1] == CourseRow(7, last, None, 0.5, 56)
    assert [row.epoch for row in about.rows] == [row.epoch for row in course(450).rows]
    del state["about"]  # of an earlier version
    about.load(state)
    assert about.rows == []


# --- The claim with its sources; the number of records only where it is public.


def read(claim: PrivacyClaim | None = None, norms: tuple[float, ...] = (1.0,)) -> dict[str, Any]:
    """The claim of optimizers with the clipping norms, over a loader of 500 records."""
    config: Any = SimpleNamespace(
        claim=claim,
        shuffled=claim is not None and claim.sampling == "shuffled",
        private_size=claim is not None and bool(claim.private_dataset_size),
        adjacency=(claim and claim.adjacency) or "add_remove",
    )
    own = SimpleNamespace(sample_rate=0.1, expected_batch_size=50)
    run: Any = SimpleNamespace(
        config=config,
        optimizers=SimpleNamespace(facts=[own for _ in norms]),
        accountants=(),
        lints=SimpleNamespace(records=500),
    )
    run.sessions = [
        SimpleNamespace(
            monitor=SimpleNamespace(history=()),
            planner=SimpleNamespace(known_claim=lambda norm=norm: StepClaim(1.5, norm, 50.0)),
        )
        for norm in norms
    ]
    told = claim_of(run)
    return {name: (part.value, part.source) for name, part in told.items()}


def test_what_the_user_states_is_the_users():
    told = read(PrivacyClaim(noise_multiplier=1.2, adjacency="replace_one"))
    assert told["noise_multiplier"] == (1.2, "user")
    assert told["adjacency"] == ("replace_one", "user")
    assert told["max_grad_norm"] == (1.0, "optimizer")
    assert told["sampling"] == ("poisson", "default")
    assert told["accountant"] == (None, "optimizer")


def test_optimizers_that_differ_are_listed():
    assert read(norms=(1.0, 1.0))["max_grad_norm"] == (1.0, "optimizer")
    assert read(norms=(1.0, 2.0))["max_grad_norm"] == ([1.0, 2.0], "optimizer")


@pytest.mark.parametrize(
    ("claim", "records", "divisor"),
    [
        (None, None, 50),
        (PrivacyClaim(private_dataset_size=True), None, None),
        (PrivacyClaim(sampling="shuffled"), 500, 50),
        (PrivacyClaim(sampling="shuffled", private_dataset_size=True), None, None),
        (PrivacyClaim(adjacency="replace_one"), None, 50),
    ],
)
def test_the_number_of_records_is_shown_where_it_is_public_alone(claim, records, divisor):
    told = read(claim)
    assert told["records"] == (records, "loader")
    assert told["expected_batch_size"] == (divisor, "optimizer")


def test_the_claimed_mu_is_of_the_least_noise():
    assert claimed_mu([(2.0, 0.1, 5), (0.5, None, 5)]) == 2.0
    assert claimed_mu([(2.0, 0.1, 5), (0.0, None, 5)]) is None
    assert claimed_mu([]) is None


# --- The details of real reports: of a training that passes, and of faults with the user's code.

HERE = str(Path(__file__).relative_to(REPOSITORY))
EXAMINED = {"examinations": 1, "max_epochs": 3}


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


@pytest.fixture
def correct(trained):
    return trained(claimed_epsilon=8.0, **EXAMINED).report


@pytest.fixture
def faulty(trained):
    return trained(private(HalfOfTheNoise), **EXAMINED).report


@pytest.fixture
def both(correct, faulty):
    return correct, faulty


def test_growth_is_of_the_checks_that_have_an_e_value(both):
    for report in both:
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
    private = [
        (log_e / LN10, growth.threshold / LN10)
        for report in both
        for name, growth in report.tests.items()
        if REGISTRY[name].private
        for _, log_e in growth.growth
    ]
    assert private, "half the noise is seen in private numbers too"
    for power, level in private:  # in whole powers of ten
        assert power in (pytest.approx(level), pytest.approx(round(power), abs=1e-6))
    correct, faulty = both
    assert {"noise", "sensitivity", "reuse.lag", "noise.shape"} <= {*correct.tests}
    assert faulty.tests["noise"].growth or faulty.tests["noise.step"].growth


def test_every_tensor_has_its_noise(both):
    sizes = {name: p.numel() for name, p in PrivateModule().named_parameters()}
    for report in both:
        assert {row.name: row.size for row in report.tensors} == sizes
        assert report.tensors_left_out == 0
        for row in report.tensors:
            assert row.reads == report.steps * row.entries
            # A single reading of a few coordinates gives no upper limit.
            assert row.upper is not None or row.reads < 20
            assert (row.lower or 0.0) <= row.ratio <= (row.upper or math.inf)
    correct, faulty = both
    assert not any(row.flagged for row in correct.tensors)
    flagged = next(c for c in faulty.checks if c.name == "noise.tensor").evidence.get("flagged", [])
    assert {row.name for row in faulty.tensors if row.flagged} == {*flagged}
    assert all(row.ratio < 0.8 for row in faulty.tensors if row.entries > 20)


def test_the_course_has_a_row_for_each_epoch(correct):
    told = [(row.epoch, row.step, row.observations) for row in correct.course]
    assert told == [(0, 32, 256), (1, 64, 512), (2, 96, 768)]
    mus = [row.mu_lower for row in correct.course]
    assert mus == [row["mu_lower"] for row in correct.epochs]
    assert all(0.0 < mu < correct.claimed_mu == 1.0 for mu in mus[1:])
    assert all(row.log_e < math.log(1e3) for row in correct.course)


def assert_within_its_limits(told: OperatingPoint) -> None:
    assert told.fpr[0] <= told.fp / (told.fp + told.tn) <= told.fpr[1]
    assert told.fnr[0] <= told.fn / (told.fn + told.tp) <= told.fnr[1]


def test_operating_points_fit_the_claim_where_nothing_is_wrong(correct):
    assert len(correct.operating_points) == 5
    for point in correct.operating_points:
        assert_within_its_limits(point)
        assert not point.outside


def test_the_claim_says_where_each_part_is_from(correct):
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


def test_the_circumstances_and_what_the_epsilons_rest_on_are_told(correct, faulty):
    assert correct.ended == Ended(96, "planned")
    assert faulty.ended == Ended(faulty.steps, "violation")
    assert faulty.steps < correct.planned_steps == faulty.planned_steps == 96
    run = correct.run
    assert (run.name, run.device, run.precision) == ("PrivateModule", "cpu", "32-true")
    assert (run.processes, run.strategy) == (1, "SingleDeviceStrategy")
    assert run.started <= correct.created
    assert run.seconds > correct.audit_cost["seconds"] > 0.0
    assert run.commit is None or len(run.commit) in (40, 64)
    assert {"claimed_epsilon", "seed"} <= {*correct.settings_given}
    assert "delta" not in correct.settings_given
    names = {name: [one.name for one in told] for name, told in correct.assumptions.items()}
    assert {"noise", "clipping", "batches", "neighbors"} <= {*names["epsilon_spent"]}
    assert {"constant", "power", "batches"} <= {*names["epsilon_not_excluded"]}
    assert faulty.epsilon_not_excluded is None
    assert "epsilon_not_excluded" not in faulty.assumptions


def test_examinations_have_questions_and_findings_and_no_counts(correct, faulty):
    (told,) = correct.examinations
    assert told.step == 0
    assert {"replay.noise", "replay.clipping", "coupling"} <= {*told.questions} <= {*REGISTRY}
    assert told.findings == ()
    assert told.seconds > 0.0
    assert [one.findings for one in faulty.examinations] in ([], [("replay.noise",)])
    keys = {key for one in json.loads(correct.to_json())["examinations"] for key in one}
    assert keys == {"step", "questions", "findings", "seconds"}


def test_a_fault_has_its_headline_and_the_code_to_look_at(faulty):
    root = faulty.verdict.faults[0]
    assert root.headline.startswith(f"{headlines()[root.name]}, 0.")
    (place,) = root.place.code
    first = line_of("def add_noise")
    assert (place.file, place.name) == (HERE, "HalfOfTheNoise.add_noise")
    assert (place.line, place.end_line) == (first, line_of('self.told = "unshown"'))
    shown = place.source.splitlines()
    assert len(shown) == MOST_LINES < place.end_line - place.line + 1
    assert shown[0] == "def add_noise(self) -> None:"
    assert shown[4] == "        self.noise_multiplier = 0.5 * stated"
    assert "unshown" not in faulty.to_json()


def test_source_is_left_out_where_the_user_says_so(trained):
    done = trained(private(HalfOfTheNoise), source_in_report=False, max_epochs=1)
    (place,) = done.report.verdict.faults[0].place.code
    assert (place.file, place.line, place.source) == (HERE, line_of("def add_noise"), "")
    assert "0.5 * stated" not in (done.directory / "report.json").read_text()
    assert done.report.settings["source_in_report"] is False
    assert "source_in_report" in done.report.settings_given


def test_an_inconclusive_run_says_in_numbers_what_is_missing(trained):
    report = trained(steps=4).report
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
        ("claimed_mu", "operating_points"),
        ("claim_of", "claim"),
        ("headlines", "faults"),
    ],
)
@pytest.mark.one_in(6)
def test_a_detail_that_fails_is_left_out_and_the_violation_is_kept(
    accused, monkeypatch, broken, lost
):
    error = ZeroDivisionError("3 of 17 records")
    monkeypatch.setattr(f"lightning_audit.run.details.{broken}", failing(error))
    report = accused(PrivateModule(optimizer_class=HalfOfTheNoise), max_epochs=1)
    assert report.verdict.root is not None
    note = f"the report lacks its {lost}, which failed (ZeroDivisionError in run.details."
    assert any(text.startswith(note) for text in report.notes)
    assert "17 records" not in report.to_json()
    assert main(["check", str(accused.directory / "report.json")]) == 1


# --- Limits of error rates, and whether they contradict the claim.


@pytest.mark.parametrize(
    ("point", "outside"),
    [
        (OperatingPoint(0.5, fn=160, tp=340, fp=150, tn=350), False),  # as mu 1 allows
        (OperatingPoint(0.5, fn=5, tp=495, fp=5, tn=495), True),  # mu over 4
        (OperatingPoint(0.5, fn=495, tp=5, fp=495, tn=5), True),  # the same, inverted
        (OperatingPoint(0.5, fn=0, tp=2, fp=0, tn=2), False),  # too few
    ],
)
def test_rates_that_no_claimed_mechanism_has_are_outside(point, outside):
    (found,) = with_limits([point], 1.0, 0.05)
    assert found.outside == outside
    assert_within_its_limits(found)


def test_without_trials_or_a_claim_nothing_is_outside():
    (empty,) = with_limits([OperatingPoint(0.5, 0, 0, 3, 4)], 1.0, 0.05)
    assert (empty.fnr, empty.outside) == (None, False)
    (unclaimed,) = with_limits([OperatingPoint(0.5, 5, 495, 5, 495)], None, 0.05)
    assert not unclaimed.outside
    assert unclaimed.fpr is not None


# --- Rows of tensors: flagged ones first, then those with the least noise.


def row(number: int, ratio: float | None, *, flagged: bool = False) -> TensorNoise:
    return TensorNoise(f"w{number}", 9, 9, 9, ratio, None, None, flagged)


def test_every_flagged_tensor_is_kept_and_the_rest_is_counted():
    flagged = [row(n, 0.5, flagged=True) for n in range(70)]
    others = [row(100 + n, 2.0 - n / 100) for n in range(80)]
    kept, left_out = capped([*others, row(999, None), *flagged])
    assert [*kept[:70]] == flagged
    ratios = [one.ratio for one in kept[70:]]
    assert len(ratios) == MOST_UNFLAGGED
    assert ratios == sorted(ratios) == sorted(one.ratio for one in others)[:MOST_UNFLAGGED]
    assert left_out == 31
    assert capped([row(0, None), row(1, 1.0)]) == ((row(1, 1.0), row(0, None)), 0)
