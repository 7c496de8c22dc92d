"""Epsilon as measured: composed from the noise and the clipping that were found."""

import dataclasses
import math
from typing import Any

import pytest
from made_report import made_report

from lightning_audit._version import DOCUMENTATION
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.results.audit_report import (
    SAME_FACTOR,
    AuditReport,
    CheckResult,
    InconclusiveAudit,
    LikelyFault,
    Place,
    PrivacyViolation,
    measured_words,
)
from lightning_audit.run.measured import measured_epsilon

#: Evidence of all entries: the ratio of what was added to the sums.
WHOLE = {"added_ratio": 0.46}


def found(
    *faults: LikelyFault,
    evidence: dict[str, Any] | None = None,
    whole: dict[str, Any] | None = None,
    **changes,
) -> AuditReport:
    """A violated report of 100 steps at sigma 10 and rate 1, of 400 planned, with these faults."""
    made = made_report("VIOLATION", history=((10.0, 1.0, 100),), planned_steps=400)
    checks = tuple(
        dataclasses.replace(check, status="violated", evidence={**check.evidence, **evidence})
        if evidence is not None and check.name == faults[0].finding
        else check
        for check in made.checks
    )
    checks += (
        CheckResult("noise.whole", "mechanism", "violated", "", evidence=WHOLE | (whole or {})),
    )
    verdict = dataclasses.replace(made.verdict, faults=faults, fault="")
    return dataclasses.replace(made, verdict=verdict, checks=checks, **changes)


def fault(
    evidence: dict[str, Any], finding: str = "noise", name: str = "a", **place
) -> LikelyFault:
    return LikelyFault(name, "sentence", finding, "", evidence, Place(**place))


def gaussian(mu: float, delta: float = 1e-5) -> float:
    """Epsilon of Gaussian DP, from its trade-off alone (a naive twin, by bisection)."""

    def reached(epsilon: float) -> float:
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2.0))

        return phi(-epsilon / mu + mu / 2) - math.exp(epsilon) * phi(-epsilon / mu - mu / 2)

    low, high = 0.0, 1000.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if reached(middle) > delta else (low, middle)
    return low


HALF = {"noise_ratio_upper": 0.9, "noise_ratio": [0.4, 0.5]}


def test_the_interval_of_the_noise_is_composed_over_the_planned_steps():
    # Full batches: 400 steps at sigma 10 are Gaussian DP of mu 2, at half the noise of mu 4.
    one = measured_epsilon(found(fault(HALF)), "add_remove")
    assert one is not None
    assert one.lower == pytest.approx(gaussian(4.0), rel=2e-3)
    assert one.upper == pytest.approx(gaussian(5.0), rel=2e-3)
    assert one.about == pytest.approx(gaussian(2.0 / 0.46), rel=2e-3)  # not of their middle
    assert (one.steps, one.planned, one.of) == (400, True, "")
    assert one.measured == "the noise is 0.4 to 0.5 times the stated"


def test_an_upper_limit_alone_gives_a_lower_one_and_a_tensor_has_its_own_words():
    report = found(fault({"noise_ratio_upper": {"a": 0.4, "b": 0.5}}, parameters=("a", "b")))
    one = measured_epsilon(report, "add_remove")
    assert one is not None
    assert (one.upper, one.about) == (None, None)
    assert one.lower == pytest.approx(gaussian(4.0), rel=2e-3)
    assert one.of == "records whose gradient lies in `a`, `b`"
    words = measured_words(dataclasses.replace(report, epsilon_measured=one))
    start = (
        f"epsilon at least {one.lower:.3g} over the 400 planned steps at noise multiplier 10 for "
    )
    assert words.startswith(start)
    assert words.endswith("if all steps are alike and everything else is as stated")


def test_tensors_that_differ_have_the_epsilon_of_the_least_noise_beside_that_of_all():
    whole = {"noise_ratio": [0.35, 1.1], "least_noise": {"a": 0.4}}
    report = found(fault({"noise_ratio_upper": 0.9}), whole=whole)
    one = measured_epsilon(report, "add_remove")
    assert one is not None
    assert one.lower == pytest.approx(gaussian(2.0), rel=2e-3)  # as stated, in the others
    assert one.upper == pytest.approx(gaussian(2.0 / 0.35), rel=2e-3)
    assert one.about == pytest.approx(gaussian(2.0 / 0.46), rel=2e-3)
    assert (one.least_noise, one.most) == ("a", pytest.approx(gaussian(2.0 / 0.4), rel=2e-3))
    words = measured_words(dataclasses.replace(report, epsilon_measured=one))
    assert f"about {one.most:.2g} for records whose gradient lies in `a`" in words
    assert words.endswith(
        "if all steps and small tensors are alike and everything else is as stated"
    )


def test_from_a_step_on_only_the_steps_since_then_leak_more_and_the_plan_may_be_unknown():
    since = fault({"noise_ratio_upper_since": 0.5}, step=100)
    assert not measured_epsilon(found(fault(HALF), planned_steps=None), "add_remove").planned
    one = measured_epsilon(found(since), "add_remove")
    assert one is not None
    mu = math.sqrt(100 / 10**2 + 300 / 5**2)
    assert one.lower == pytest.approx(gaussian(mu), rel=2e-3)


def test_sensitivity_multiplies_the_noise():
    clipping = fault({}, "replay.clipping")
    evidence = {"size": 3.0, "allowed": 1.5, "findings": 1}
    one = measured_epsilon(found(clipping, fault(HALF), evidence=evidence), "add_remove")
    assert one is not None
    assert one.lower == pytest.approx(gaussian(8.0), rel=2e-3)
    assert one.upper is None  # another record may add more
    assert one.measured == (
        "the noise is 0.4 to 0.5 times the stated and one record adds 2 times what clipping allows"
    )
    alone = measured_epsilon(found(clipping, evidence=evidence), "add_remove")
    assert alone is not None
    assert alone.lower == pytest.approx(gaussian(4.0), rel=2e-3)


@pytest.mark.parametrize(
    ("evidence", "finding"),
    [({"noise_ratio_upper": 0.0}, "noise"), ({"noise_ratio": [0.0, 0.001]}, "noise")],
)
def test_without_noise_epsilon_is_above_what_is_of_use(evidence, finding):
    report = found(fault(evidence, finding, "no_noise"))
    one = measured_epsilon(report, "add_remove")
    assert one is not None
    assert math.isinf(one.lower)
    report = dataclasses.replace(report, epsilon_measured=one)
    assert measured_words(report).startswith("epsilon above 100 over the 400 planned steps")
    assert AuditReport.from_json(report.to_json()).epsilon_measured == one
    *_, measured, more = str(PrivacyViolation(report)).splitlines()
    assert measured == f"Measured: {measured_words(report)}"
    assert more == f"More: {DOCUMENTATION}/checks/#{finding}"
    assert "More:" not in str(InconclusiveAudit(made_report()))


@pytest.mark.parametrize(
    "report",
    [
        made_report(),
        found(fault({}, "reuse.lag")),
        found(fault({"noise_ratio_upper": 1.02})),
        found(fault(HALF), history=((10.0, None, 100),)),
        found(fault(HALF), optimizers=made_report().optimizers * 2),
        dataclasses.replace(
            found(fault(HALF)),
            verdict=dataclasses.replace(
                found(fault(HALF)).verdict, summary=f"noise: seen; {SAME_FACTOR}"
            ),
        ),
    ],
    ids=["pass", "another fault", "no lack", "no rate", "two optimizers", "same factor"],
)
def test_nothing_is_estimated_where_no_fault_has_a_size(report):
    assert measured_epsilon(report, "add_remove") is None
    assert measured_words(report) == ""


def test_shuffled_batches_count_the_passes_so_far_and_earlier_fits_are_as_stated():
    shuffled = {**made_report().settings, "claim": {"sampling": "shuffled"}}
    one = measured_epsilon(
        found(fault(HALF), composed=((5.0, 1.0, 3),), settings=shuffled), "add_remove"
    )
    assert one is not None
    assert (one.steps, one.planned) == (3, False)
    assert one.lower == pytest.approx(epsilon_of_history([Phase(2.5, 1.0, 3)], 1e-5), rel=1e-6)
    earlier = measured_epsilon(found(fault(HALF)), "add_remove", [Phase(10.0, 1.0, 500)])
    assert earlier is not None
    assert earlier.lower == pytest.approx(gaussian(math.sqrt(4.0**2 + 5.0)), rel=2e-3)
    assert earlier.steps == 900


def test_a_tensor_whose_name_has_an_escape_sequence_does_not_reach_the_terminal():
    report = found(fault({"noise_ratio_upper": {"\x1b[2J": 0.4}}, parameters=("\x1b[2J",)))
    one = measured_epsilon(report, "add_remove")
    text = str(PrivacyViolation(dataclasses.replace(report, epsilon_measured=one)))
    assert "Measured:" in text
    assert "\x1b" not in text
