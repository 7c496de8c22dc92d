import dataclasses
import math

import pytest

from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.clipping import CLIPPING_NORM
from lightning_audit.checks.disclosure import coarse, numbers_of_data, shown
from lightning_audit.checks.noise import NOISE, NOISE_EXCESS, NOISE_SHAPE, NOISE_WHOLE
from lightning_audit.checks.randomness import REUSE_FORECAST
from lightning_audit.checks.replay import COUPLING
from lightning_audit.results.audit_report import CheckResult

SIGNIFICANCE = 1e-3
LN10 = math.log(10.0)


def result(name: str, status: str, **fields: object) -> CheckResult:
    known = REGISTRY[name]
    return CheckResult(name, known.kind, status, "", **{"share": known.share, **fields})  # type: ignore[arg-type]


PRIVATE = [check for check in REGISTRY.values() if check.private]


@pytest.mark.parametrize("check", PRIVATE, ids=lambda check: check.name)
def test_every_private_check_says_what_is_fine_without_a_number(check):
    assert check.fine  # type: ignore[attr-defined]
    assert not any(character.isdigit() for character in check.fine)  # type: ignore[attr-defined]


@pytest.mark.parametrize("check", PRIVATE, ids=lambda check: check.name)
@pytest.mark.parametrize("status", ["ok", "warned", "undecided", "not_run"])
def test_a_private_check_without_violation_shows_no_number(check, status):
    public = {key: 3 for key in check.public if key != "message"}  # type: ignore[attr-defined]
    found = result(
        check.name,  # type: ignore[attr-defined]
        status,
        evidence={"ratio": 0.99731234, "violated_at_step": None, **public},
    )
    text = "gradients of 1 of 68 records come to be clipped"
    told = shown(dataclasses.replace(found, message=text), SIGNIFICANCE)
    assert told.evidence == public
    if "message" not in check.public or status in ("warned", "undecided"):  # type: ignore[attr-defined]
        assert "68" not in told.message


def test_a_check_of_releases_is_shown_as_it_is():
    found = result("noise", "ok", log_e_value=1.2345, evidence={"smallest_ratio": 0.98765})
    assert shown(found, SIGNIFICANCE) is found
    assert not NOISE.private
    for text in ("the batch is too small", "set examinations=1"):  # without a number of the data
        found = dataclasses.replace(result("coupling", "not_run"), message=text)
        assert shown(found, SIGNIFICANCE).message == text


@pytest.mark.parametrize("exponent", [0, 1, 2, 7, 23, 300])
def test_a_coarse_e_value_is_a_whole_power_of_ten_and_such_a_power_stays(exponent):
    exact, threshold = exponent * LN10, 1e9
    for log_e in (exact, exact + 0.7 * LN10):
        assert coarse(log_e, threshold) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.13, 0.5])
def test_a_coarse_e_value_stays_on_its_side_of_the_threshold(share):
    threshold = -math.log(share * SIGNIFICANCE)
    assert coarse(threshold, threshold) >= threshold
    assert coarse(threshold + 0.1, threshold) >= threshold
    assert coarse(threshold - 1e-6, threshold) < threshold
    assert coarse(math.inf, threshold) == math.inf


def test_a_violated_private_check_shows_two_digits_and_its_step():
    found = dataclasses.replace(
        result(
            NOISE_WHOLE.name,
            "violated",
            log_e_value=123.456,
            evidence={"smallest_ratio": 0.52149, "tensors": 1234, "violated_at_step": 1017},
        ),
        message="too little noise over all entries of `net.0.weight` (1 of 1234 tensors): at one "
        "step 0.52149 times the claim, first at step 1017",
    )
    told = shown(found, SIGNIFICANCE)
    assert told.evidence == {"smallest_ratio": 0.52, "tensors": 1200, "violated_at_step": 1017}
    assert told.message == (
        "too little noise over all entries of `net.0.weight` (1 of 1200 tensors): at one step 0.52 "
        "times the claim, first at step 1017"
    )
    assert told.log_e_value == pytest.approx(53 * LN10)
    # Names of tensors are no numbers.
    evidence = {"findings": 1, "size": 0.123, "allowed": 0.0, "parameters": ["128.bias", "1.5.w"]}
    found = shown(result("replay.release", "violated", evidence=evidence), 1e-3)
    assert found.evidence["parameters"] == evidence["parameters"]
    assert found.evidence["size"] == 0.12


def test_rounding_changes_neither_the_status_nor_the_fault():
    ratio = 1.104  # 1.1 is no violation
    found = result(CLIPPING_NORM.name, "violated", evidence={"checked": 8, "largest_ratio": ratio})
    assert CLIPPING_NORM.is_wrong(shown(found, SIGNIFICANCE).evidence)
    left = {"left": 0.9699, "ratio": 0.5, "violated_at_step": 3}  # 0.97 is another fault
    found = result(REUSE_FORECAST.name, "violated", log_e_value=99.0, evidence=left)
    (rule,) = REUSE_FORECAST.faults
    assert rule.applies(shown(found, SIGNIFICANCE).evidence)


def test_the_report_says_once_which_numbers_are_of_the_data():
    found = [
        result(NOISE_SHAPE.name, "violated"),
        result(NOISE_SHAPE.name, "violated"),
        result(COUPLING.name, "allowed"),
        result(NOISE_EXCESS.name, "warned"),
        result("noise", "violated"),
    ]
    (sentence,) = numbers_of_data(found)
    assert "noise.shape, coupling are computed from un-noised data" in sentence
    assert numbers_of_data(found[3:]) == []
