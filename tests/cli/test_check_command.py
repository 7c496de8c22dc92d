"""`lightning-audit check` computes the verdict again, and no single edit talks it round."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gate_reports import OUTCOMES, TRAININGS, train
from report_edits import TURNED, edits

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.cli import main as cli
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError
from lightning_audit.verdict.consistency import contradictions

pytestmark = pytest.mark.training
HEAVY = pytest.mark.heavy
_texts: dict[str, str] = {}

Report = dict[str, Any]
Gate = Callable[[str], tuple[int, str]]


@pytest.fixture
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Gives the text of a training's report, trained once."""

    def text_of(name: str) -> str:
        if name not in _texts:
            _texts[name] = train(name, tmp_path_factory.mktemp("gate")).read_text()
        return _texts[name]

    return text_of


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    """Gives the exit code and the errors of `lightning-audit check` on a text."""

    def check(text: str) -> tuple[int, str]:
        path = tmp_path / "report.json"
        path.write_text(text, encoding="utf-8")
        return cli.main(["check", str(path)]), capsys.readouterr().err

    return check


def code_of(text: str) -> int:
    """The exit code without what is shown, which takes a hundred times as long."""
    try:
        report = AuditReport.from_json(text)
    except ReportError:
        return 2
    return 2 if contradictions(report) else report.verdict.exit_code


def with_(text: str, change: Callable[[Report], Any]) -> str:
    data = json.loads(text)
    change(data)
    return json.dumps(data)


def check_of(data: Report, name: str) -> Report:
    return next(check for check in data["checks"] if check["name"] == name)


# ------------------------------------------------------------------ reports as they are written

QUICK = ("correct", "claimed", "two optimizers", "broken off", "half noise")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=HEAVY) for name in TRAININGS]
)
@pytest.mark.heavy_one_in(2)
@pytest.mark.one_in(3)
def test_what_a_training_wrote_has_the_exit_code_of_its_verdict(
    name: str, trained: Callable[[str], str], gate: Gate
) -> None:
    text = trained(name)
    assert gate(text) == (EXIT_CODES[OUTCOMES[name]], "")
    assert AuditReport.from_json(text).to_json() + "\n" == text
    assert {check["name"] for check in json.loads(text)["checks"]} <= set(REGISTRY)


def test_a_run_that_broke_off_keeps_the_violation_that_was_found(
    trained: Callable[[str], str], gate: Gate
) -> None:
    assert gate(with_(trained("half noise"), lambda data: data.update(complete=False)))[0] == 1


# ------------------------------------------------------------------ what the gate believed


def _seems_to_pass(data: Report) -> None:
    data["verdict"].update(outcome="PASS", kind=None, fault="", faults=[])


def _seems_healthy(data: Report) -> None:
    _seems_to_pass(data)
    for check in data["checks"]:
        if check["status"] == "violated":
            check["status"] = "ok"


def _without_evidence(data: Report) -> None:
    _seems_healthy(data)
    for check in data["checks"]:
        check["evidence"] = {}


def _without_e_values(data: Report) -> None:
    _seems_healthy(data)
    for check in data["checks"]:
        check["log_e_value"] = None


def _without_violated(data: Report) -> None:
    _seems_to_pass(data)
    data["checks"] = [check for check in data["checks"] if check["status"] != "violated"]


def _said_not_to_have_run(data: Report) -> None:
    _seems_to_pass(data)
    for check in data["checks"]:
        if check["status"] == "violated":
            check.update(status="not_run", log_e_value=0.0)
            check["evidence"].update(violated_at_step=None)


def _allowed_afterwards(data: Report) -> None:
    _seems_to_pass(data)
    data["settings"]["allow"] = list(REGISTRY)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda data: data["verdict"].update(outcome="PASS"),
            "verdict: outcome is PASS, the report gives VIOLATION: noise is violated; ",
        ),
        (lambda data: data["verdict"].update(outcome="INCONCLUSIVE"), "gives VIOLATION"),
        (_seems_to_pass, "gives VIOLATION: noise is violated"),
        (_seems_healthy, "checks: noise is ok at a log e-value of "),
        (_without_evidence, "checks: noise is ok at a log e-value of "),
        (_without_e_values, "checks: noise is ok, and its evidence lacks"),
        (_without_violated, "checks: noise occurs 0 times, not 1"),
        (_said_not_to_have_run, "verdict: outcome is PASS, and noise has not run"),
        (_allowed_afterwards, "checks: noise is violated at a log e-value of "),
        (
            lambda data: data["settings"].update(significance=1e-300),
            "violated_at_step ",
        ),
    ],
)
def test_a_violation_that_is_edited_to_pass_is_refused_and_told_where(
    change: Callable[[Report], Any], told: str, trained: Callable[[str], str], gate: Gate
) -> None:
    code, errors = gate(with_(trained("half noise"), change))
    assert code == 2
    assert "the report contradicts itself, so its verdict is not valid" in errors
    assert told in errors


def _rated_lower(data: Report) -> None:
    data["epsilon_spent"] = check_of(data, "accounting")["evidence"]["epsilon_spent"] = 1000.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda data: data.update(complete=False),
            "outcome is PASS, the report gives INCONCLUSIVE: the training has not ended",
        ),
        (
            lambda data: data["verdict"].update(pass_blockers=["more steps"]),
            "outcome is PASS, and missing: more steps",
        ),
        (
            lambda data: data.update(pass_blockers=["the loader"]),
            "outcome is PASS, the report gives INCONCLUSIVE: the loader",
        ),
        (lambda data: data.update(checks=[]), "checks: noise occurs 0 times, not 1"),
        (lambda data: data.update(steps=0), "steps is 0, the sum over optimizers 60"),
        (
            lambda data: data.update(epsilon_spent=1000.0),
            "checks: accounting has epsilon_spent 1.",
        ),
        (_rated_lower, "checks: accounting is ok, its evidence says violated"),
        (lambda data: data.update(epsilon_spent=None), "epsilon_spent is None, and history gives"),
        (lambda data: data.update(claimed_epsilon=None), "claimed_epsilon is None, settings."),
        (lambda data: data.update(optimizers=[]), "gives INCONCLUSIVE: no step of a private"),
        (lambda data: data["optimizers"][0]["power"].pop("noise"), "optimizers: power is of "),
        (
            lambda data: data["optimizers"][0]["power"]["noise"].update(power=0.5),
            "50% power against",
        ),
        (lambda data: data["optimizers"][0].update(lost_steps=2), "60 steps cannot be 60 with 8"),
        (lambda data: data["optimizers"][0].update(shift_lower=0.1), "signal was not detected"),
        (lambda data: data["settings"]["resolution"].update(noise=0.5), "the resolution asks for"),
        (lambda data: data["settings"].pop("allow"), "settings.allow is absent"),
        (lambda data: data["settings"].update(allow="noise"), "settings.allow='noise' must be a"),
        (lambda data: data["settings"].update(significance=2), "significance=2 must be in (0, 1)"),
        (lambda data: data["checks"].remove(check_of(data, "coupling")), "coupling occurs 0 times"),
        (lambda data: data["bounds"].pop(0), "bounds: betting is absent"),
        (lambda data: data["checks"].pop(0), " occurs 0 times, not 1"),
        (lambda data: data["checks"].append(data["checks"][0]), " occurs 2 times, not 1"),
        (lambda data: data["checks"][0].update(name="unheard"), "there is no check 'unheard'"),
        (lambda data: check_of(data, "noise").update(share=1e-9), "has the share 1e-09 of"),
        (lambda data: data["epochs"].append({"e_value": 1e9}), "an e-value of 1e+09 was logged"),
    ],
)
def test_a_pass_that_its_own_numbers_do_not_give_is_refused_and_told_where(
    change: Callable[[Report], Any], told: str, trained: Callable[[str], str], gate: Gate
) -> None:
    code, errors = gate(with_(trained("claimed"), change))
    assert code == 2
    assert told in errors


def test_an_inconclusive_report_is_not_edited_to_pass(
    trained: Callable[[str], str], gate: Gate
) -> None:
    def change(data: Report) -> None:
        data["verdict"].update(outcome="PASS", pass_blockers=[])
        data.update(complete=True, pass_blockers=[])

    code, errors = gate(with_(trained("broken off"), change))
    assert code == 2
    assert "optimizers: power is of {}" in errors


# ------------------------------------------------------------------ no JSON, or no report's


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace('"verdict"', '"verdict": 1, "verdict"', 1), "stands twice"),
        (
            lambda text: text.rstrip()[:-1] + ', "verdict": {"outcome": "PASS"}}',
            "the key 'verdict' stands twice",
        ),
        (lambda text: text.replace('"share": 0.1', '"share": 0.1, "share": 0.1', 1), "'share'"),
        (lambda text: text.replace('"delta": ', '"delta": NaN, "d": ', 1), "NaN is no JSON"),
        (lambda text: text.replace('"delta": ', '"delta": -Infinity, "d": ', 1), "-Infinity"),
        (
            lambda text: text.replace('"delta": ', '"delta": 1e999, "d": ', 1),
            "no number that a float holds",
        ),
        (
            lambda text: text.replace('"steps": ', '"steps": 1' + "0" * 400, 1),
            "a number of 403 digits",
        ),
        (
            lambda text: text.replace('"steps": ', '"steps": 1' + "0" * 5000, 1),
            "a number of 5003 digits",
        ),
        (lambda text: text.replace('"no_dp"', r'"no_dp\ud800"', 1), "half a surrogate pair"),
        (lambda text: text.replace('"no_dp"', r'{"\udfff": 1}', 1), "half a surrogate pair"),
        (lambda text: text.replace('"no_dp"', "[" * 60 + "]" * 60, 1), "nested deeper than 50"),
        (lambda text: text.replace('"no_dp"', "[" * 900 + "]" * 900, 1), "nested deeper than 50"),
        (lambda text: text.replace('"no_dp"', "[" * 10**5 + "]" * 10**5, 1), "nested deeper"),
        (lambda text: text.replace('"no_dp"', '{"a":' * 10**5 + "1" + "}" * 10**5, 1), "nested"),
        (lambda text: "\ufeff" + text, "not complete JSON"),
        (lambda text: text + text, "not complete JSON"),
        (lambda text: "", "not complete JSON"),
        (lambda text: with_(text, lambda data: data.update(schema_version=3)), "reads 5 only"),
        (lambda text: with_(text, lambda data: data.update(schema_version=10**9)), "upgrade"),
        (lambda text: with_(text, lambda data: data.update(schema_version=True)), "no schema_vers"),
        (
            lambda text: with_(text, lambda data: data.pop("pass_blockers")),
            "invalid: pass_blockers is absent",
        ),
        (
            lambda text: with_(text, lambda data: data["checks"][2].update(share="0.1")),
            "checks[2].share='0.1' must be a number",
        ),
        (
            lambda text: with_(text, lambda data: data["checks"][2].update(name=[1])),
            "checks[2].name=[1] must be text",
        ),
        (
            lambda text: with_(text, lambda data: data.update(steps=True)),
            "steps=True must be a whole number",
        ),
    ],
)
def test_what_is_no_report_ends_with_a_message_and_no_traceback(
    change: Callable[[str], str], told: str, trained: Callable[[str], str], gate: Gate
) -> None:
    changed = change(trained("correct"))
    assert changed != trained("correct")
    code, errors = gate(changed)
    assert code == 2
    assert told in errors
    assert "Traceback" not in errors


# ------------------------------------------------------------------ every single edit

#: Where one edit may leave a pass a pass: what the verdict does not rest on. "." stands for all
#: below. Words, dates, versions, figures that are only shown, and of what was not found its size.
HARMLESS = (
    *("verdict.summary", "verdict.advice", "notes.", "created", "record", "environment."),
    *("checks.*.message", "checks.*.advice", "checks.*.kind", "checks.*.evidence."),
    # Below its threshold an e-value may have any size, and one of 0 may be of no data.
    *("checks.*.log_e_value", "checks.*.status", "checks.*.share"),
    # The order, and checks that not every run has, of the loader's rate, the divisor, the loss.
    *("checks", "checks.*"),
    *("bounds", "bounds.*", "epsilon_not_excluded", "epochs.", "operating_points."),
    # Noise and rates are composed by the run alone.
    *("history", "history.*.*"),
    *(
        "optimizers.*.label",
        "optimizers.*.oversize",
        "optimizers.*.released",
        "settings.",
        "other_records.",
    ),
    *("audit_cost", "audit_cost.", "examination_cost", "examination_cost."),
    # Told where the power is too small; of several optimizers the report shows the least alone.
    *("optimizers.*.power.noise.steps_needed", "optimizers.*.power.sensitivity.steps_needed"),
)


#: Fields whose keys are names that a library, a metric or a setting happens to have.
NAMED_FREELY = ("environment", "epochs", "settings", "audit_cost", "examination_cost")


def is_harmless(path: tuple[str | int, ...]) -> bool:
    place = ".".join("*" if isinstance(key, int) else key for key in path)
    return any(
        f"{place}.".startswith(known) if known.endswith(".") else place == known
        for known in HARMLESS
    ) or place.startswith("bounds.*.")


def codes_of(text: str, every: int = 1) -> Iterator[tuple[int, str, tuple[str | int, ...]]]:
    """The exit code of every so many-th single edit, the edit and its place."""
    for number, (what, path, make) in enumerate(edits(json.loads(text))):
        if number % every == 0:
            yield code_of(make()), what, path


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("half noise", 40),
        ("broken off", 40),
        *(
            pytest.param(name, 5, marks=HEAVY)
            for name, outcome in OUTCOMES.items()
            if outcome != "PASS"
        ),
        pytest.param("half noise", 1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.heavy_one_in(3)
def test_no_single_edit_makes_a_pass_of_what_is_none(
    name: str, every: int, trained: Callable[[str], str]
) -> None:
    tried = 0
    for code, what, path in codes_of(trained(name), every):
        assert code != 0, (what, path)
        tried += 1
    assert tried > 100


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("correct", 40),
        *(
            pytest.param(name, 5 if name == "correct" else 10, marks=HEAVY)
            for name, outcome in OUTCOMES.items()
            if outcome == "PASS"
        ),
        pytest.param("correct", 1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.heavy_one_in(3)
def test_a_pass_outlives_only_edits_of_what_it_does_not_rest_on(
    name: str, every: int, trained: Callable[[str], str]
) -> None:
    checks = json.loads(trained(name))["checks"]
    for code, what, path in codes_of(trained(name), every):
        # The order of the optimizers says nothing.
        harmless = is_harmless(path) or (what == TURNED and path == ("optimizers",))
        assert code in ((0, 2) if harmless else (2,)), (what, path)
        if code == 0 and path[0] == "checks" and len(path) == 2 and what == "deleted":
            check = checks[path[1]]["name"]
            assert not REGISTRY[check].always, check
        if what in ("deleted", "renamed") and isinstance(path[-1], str) and len(path) <= 3:
            # A key that every report has, and no name that a library or a metric happens to have.
            assert code == 2 or path[0] in NAMED_FREELY, (what, path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda fault: fault.update(consequences=fault["consequences"][1:]), "follows from noise"),
        (lambda fault: fault.update(finding="noise.tensor"), "summary does not begin with"),
        (lambda fault: fault["place"].update(step=80), "was first seen at step 80, noise at"),
        (
            lambda fault: fault["evidence"].update(noise_ratio_upper=0.99),
            "has noise_ratio_upper 0.99, noise 0.5",
        ),
        (lambda fault: fault["consequences"].append("accounting"), "cannot follow from noise"),
    ],
    ids=["consequence", "finding", "step", "evidence", "unrelated"],
)
def test_a_violation_whose_root_was_edited_is_refused(
    change: Callable[[Report], Any], sentence: str, trained: Callable[[str], str], gate: Gate
) -> None:
    code, errors = gate(with_(trained("half noise"), lambda r: change(r["verdict"]["faults"][0])))
    assert code == 2
    assert sentence in errors


@pytest.mark.parametrize("name", ["correct", "half noise"])
def test_the_command_shows_what_an_edit_leaves_and_ends_with_its_code(
    name: str, trained: Callable[[str], str], gate: Gate
) -> None:
    tried = list(edits(json.loads(trained(name))))
    for _, path, make in random.Random(1).sample(tried, 60):
        text = make()
        code, errors = gate(text)
        assert code == code_of(text), path
        assert bool(errors) == (code == 2), path


def test_noise_in_the_file_never_makes_a_pass_of_a_violation(trained: Callable[[str], str]) -> None:
    text, rng = trained("half noise"), random.Random(0)
    for _ in range(400):
        at = rng.randrange(len(text))
        cut = rng.choice((0, 1, 1, 5, 300))
        assert code_of(text[:at] + rng.choice('0129-e."{}[],:xn ') + text[at + cut :]) != 0
