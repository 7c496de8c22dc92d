"""`lightning-audit check` computes the verdict again, and no single edit talks it round."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gate_reports import OUTCOMES, TRAININGS, train
from report_edits import edits, with_

from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli import main
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError
from lightning_audit.verdict.gate import contradictions

pytestmark = pytest.mark.training
HEAVY = pytest.mark.heavy
_texts: dict[str, str] = {}

Report = dict[str, Any]
Gate = Callable[..., tuple[int, str]]


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

    def check(text: str, *options: str) -> tuple[int, str]:
        path = tmp_path / "report.json"
        path.write_text(text, encoding="utf-8")
        return main.main(["check", str(path), *options]), capsys.readouterr().err

    return check


def code_of(text: str) -> int:
    """The exit code without what is shown, which takes a hundred times as long."""
    try:
        report = AuditReport.from_json(text)
    except ReportError:
        return 2
    return 2 if contradictions(report) else report.verdict.exit_code


def check_of(data: Report, name: str) -> Report:
    return next(check for check in data["checks"] if check["name"] == name)


# ------------------------------------------------------------------ reports as they are written

QUICK = ("correct", "claimed", "two optimizers", "broken off", "half noise")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=HEAVY) for name in TRAININGS]
)
@pytest.mark.heavy_one_in(4)
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
            "it says PASS, its checks give VIOLATION: noise",
        ),
        (
            lambda data: data["verdict"].update(outcome="INCONCLUSIVE"),
            "it says INCONCLUSIVE, its checks give VIOLATION",
        ),
        (_seems_to_pass, "its checks give VIOLATION: noise"),
        (_seems_healthy, "noise is ok, its numbers give violated"),
        (_without_evidence, "its checks cannot be judged (KeyError"),
        (_without_e_values, "noise is ok, its numbers give not_run"),
        (_without_violated, "noise occurs 0 times, not 1"),
        (_said_not_to_have_run, "it says PASS, its checks give INCONCLUSIVE: "),
        (_allowed_afterwards, "noise is violated, its numbers give allowed"),
    ],
)
def test_a_violation_that_is_edited_to_pass_is_refused_and_told_where(
    change: Callable[[Report], Any], told: str, trained: Callable[[str], str], gate: Gate
) -> None:
    code, errors = gate(with_(trained("half noise"), change))
    assert code == 2
    assert "and contradicts itself:" in errors
    assert "It was edited or damaged" in errors
    assert told in errors


def _rated_lower(data: Report) -> None:
    data["epsilon_spent"] = check_of(data, "accounting")["evidence"]["epsilon_spent"] = 1000.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda data: data.update(complete=False),
            "it says PASS, its checks give INCONCLUSIVE: the training has not ended",
        ),
        (
            lambda data: data["verdict"].update(pass_blockers=["more steps"]),
            "the text of its verdict does not follow",
        ),
        (
            lambda data: data.update(pass_blockers=["the loader"]),
            "it says PASS, its checks give INCONCLUSIVE: the loader",
        ),
        (lambda data: data.update(checks=[]), "noise occurs 0 times, not 1"),
        (lambda data: data.update(steps=0), "steps is 0, and 60 elsewhere"),
        (
            lambda data: data.update(epsilon_spent=1000.0),
            "epsilon_spent is 1000.0, and 1.",
        ),
        (_rated_lower, "accounting is ok, its numbers give violated"),
        (lambda data: data.update(epsilon_spent=None), "epsilon_spent is None, and 1."),
        (lambda data: data.update(claimed_epsilon=None), "claimed_epsilon is None, and 50.0"),
        (lambda data: data.update(optimizers=[]), "noise occurs 1 times, not 0"),
        (lambda data: data["optimizers"][0]["power"].pop("noise"), "power is for "),
        (
            lambda data: data["optimizers"][0]["power"]["noise"].update(power=0.5),
            "50% power against",
        ),
        (lambda data: data["optimizers"][0].update(lost_steps=2), "2 of 60 steps were lost"),
        (lambda data: data["optimizers"][0].update(shift_lower=0.1), "signal was not detected"),
        (lambda data: data["settings"]["resolution"].update(noise=0.5), "the resolution is"),
        (lambda data: data["settings"].pop("allow"), "required field `allow`"),
        (lambda data: data["settings"].update(allow="noise"), "settings.allow: Expected `array`"),
        (
            lambda data: data["settings"].update(significance=2),
            "significance=2.0 must be in (0, 1)",
        ),
        (lambda data: data["checks"].remove(check_of(data, "coupling")), "coupling occurs 0 times"),
        (lambda data: data["checks"].pop(0), " occurs 0 times, not 1"),
        (lambda data: data["checks"].append(data["checks"][0]), " occurs 2 times, not 1"),
        (lambda data: data["checks"][0].update(name="unheard"), "there is no check 'unheard'"),
        (lambda data: check_of(data, "noise").update(share=1e-9), "has the share 1e-09 of"),
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
    assert "power is for {}" in errors


# ------------------------------------------------------------------ edits with a new digest


def _half_the_noise_is_fine(data: Report) -> None:
    """All but the e-value, which stays above its threshold."""
    _seems_healthy(data)
    for check in data["checks"]:
        check["evidence"].pop("violated_at_step", None)


def _less_noise_in_the_history(data: Report) -> None:
    data["history"][0][0] *= 3.0


def _another_epsilon(data: Report) -> None:
    evidence = check_of(data, "accounting")["evidence"]
    data["epsilon_spent"] = evidence["epsilon_spent"] = 0.5


ATTACKS: dict[str, tuple[str, Callable[[Report], Any], int, int]] = {
    "as it was": ("claimed", lambda r: None, 0, 0),
    "verdict": ("half noise", lambda r: r["verdict"].update(outcome="PASS"), 2, 2),
    "verdict and status": ("half noise", _seems_healthy, 2, 2),
    "and evidence": ("half noise", _half_the_noise_is_fine, 2, 2),
    "share of a violated check": (
        *("half noise", lambda r: check_of(r, "noise").update(share=1e-9), 2, 2),
    ),
    "share of a check that is fine": (
        *("claimed", lambda r: check_of(r, "noise").update(share=0.9), 2, 2),
    ),
    "e-value above the threshold": (
        *("claimed", lambda r: check_of(r, "noise").update(log_e_value=30.0), 2, 2),
    ),
    "evidence of a rule": (
        *("claimed", lambda r: check_of(r, "no_dp")["evidence"].update(plain_steps=1), 2, 2),
    ),
    "history alone": ("claimed", _less_noise_in_the_history, 0, 2),
    "epsilon in one place": ("claimed", lambda r: r.update(epsilon_spent=0.5), 2, 2),
    "epsilon in all places": ("claimed", _another_epsilon, 0, 2),
    "a check removed": ("claimed", lambda r: r["checks"].remove(check_of(r, "noise")), 2, 2),
    "a violated check removed": ("half noise", _without_violated, 2, 2),
    "a check twice": ("claimed", lambda r: r["checks"].append(check_of(r, "noise")), 2, 2),
    "allow": ("half noise", lambda r: r["settings"].update(allow=["noise"]), 2, 2),
    "allow of what is not found": (
        *("claimed", lambda r: r["settings"].update(allow=["noise"]), 0, 0),
    ),
    # The step at which it was found stays.
    "significance": ("half noise", lambda r: r["settings"].update(significance=1e-300), 1, 1),
    "claim": ("above the claim", lambda r: r["settings"].update(claimed_epsilon=9.0), 2, 2),
    "delta": ("claimed", lambda r: r.update(delta=0.5), 2, 2),
    "delta in all places": (
        *("claimed", lambda r: (r.update(delta=0.5), r["settings"].update(delta=0.5)), 0, 2),
    ),
}


@pytest.mark.parametrize(("name", "change", "code", "with_budget"), ATTACKS.values(), ids=ATTACKS)
def test_the_judge_finds_what_a_new_digest_hides(
    name: str,
    change: Callable[[Report], Any],
    code: int,
    with_budget: int,
    trained: Callable[[str], str],
    gate: Gate,
) -> None:
    text = with_(trained(name), change)
    assert gate(text)[0] == code
    assert gate(text, "--max-epsilon", "50")[0] == with_budget


def test_without_a_new_digest_any_edit_ends_with_2(
    trained: Callable[[str], str], gate: Gate
) -> None:
    for name, change, *_ in ATTACKS.values():
        data = json.loads(trained(name))
        change(data)
        if data != json.loads(trained(name)):
            code, errors = gate(json.dumps(data))
            assert (code, "SHA-256 is not that of its content" in errors) == (2, True), change


# ------------------------------------------------------------------ no JSON, or no report's


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.rstrip()[:-1] + ', "verdict": {"outcome": "PASS"}}', "SHA-256"),
        (lambda text: text.replace('"delta": ', '"delta": NaN, "d": ', 1), "not complete JSON"),
        (lambda text: text.replace('"delta": ', '"delta": -Infinity, "d": ', 1), "not complete J"),
        (lambda text: text.replace('"delta": ', '"delta": 1e999, "d": ', 1), "out of range"),
        (lambda text: text.replace('"steps": ', '"steps": 1' + "0" * 200, 1), "SHA-256"),
        (lambda text: text.replace('"steps": ', '"steps": 1' + "0" * 5000, 1), "out of range"),
        (lambda text: text.replace('"no_dp"', r'"no_dp\ud800"', 1), "not complete JSON"),
        (lambda text: text.replace('"no_dp"', "[" * 60 + "]" * 60, 1), "SHA-256"),
        (lambda text: text.replace('"no_dp"', "[" * 10**5 + "]" * 10**5, 1), "nested too deep"),
        (lambda text: text.replace('"no_dp"', '{"a":' * 10**5 + "1" + "}" * 10**5, 1), "nested"),
        (lambda text: "\ufeff" + text, "not complete JSON"),
        (lambda text: text + text, "not complete JSON"),
        (lambda text: "", "not complete JSON"),
        (lambda text: with_(text, lambda data: data.update(schema_version=5)), "reads 6 only"),
        (lambda text: with_(text, lambda data: data.update(schema_version=10**9)), "upgrade"),
        (lambda text: with_(text, lambda data: data.update(schema_version=True)), "no schema_vers"),
        (
            lambda text: with_(text, lambda data: data.pop("bounds")),
            "invalid: Object missing required field `bounds`",
        ),
        (
            lambda text: with_(text, lambda data: data["checks"][2].update(share="0.1")),
            "checks[2].share: Expected `float`, got `str`",
        ),
        (
            lambda text: with_(text, lambda data: data["checks"][2].update(name=[1])),
            "checks[2].name: Expected `str`, got `array`",
        ),
        (
            lambda text: with_(text, lambda data: data.update(steps=True)),
            "steps: Expected `int`, got `bool`",
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

#: Where any other value ends a pass; "." stands for all below. Beside it stand words, dates,
#: versions, figures that are only shown, and of what was not found its size.
RESTS_ON = (
    *("verdict.", "checks.*.name", "complete", "pass_blockers", "schema_version"),
    *("delta", "steps", "epsilon_spent", "claimed_epsilon", "epsilon_refuted_by"),
    *("optimizers.*.steps", "optimizers.*.power.*.size", "history.*.2"),
    *("settings.delta", "settings.claimed_epsilon"),
)


def is_rested_on(path: tuple[str | int, ...]) -> bool:
    place = ".".join("*" if isinstance(key, int) else key for key in path)
    place = re.sub(r"power\.\w+\.", "power.*.", place)
    place = place.replace("history.*.*", f"history.*.{path[-1]}")
    return any(
        place.startswith(known) if known.endswith(".") else place == known for known in RESTS_ON
    )


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
@pytest.mark.heavy_one_in(6)
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
@pytest.mark.heavy_one_in(6)
def test_a_pass_outlives_no_edit_of_what_it_rests_on(
    name: str, every: int, trained: Callable[[str], str]
) -> None:
    checks = json.loads(trained(name))["checks"]
    for code, what, path in codes_of(trained(name), every):
        assert code in (0, 2), (what, path)
        # A key that is not there has its default, which may be the same.
        if is_rested_on(path) and what not in ("deleted", "renamed"):
            assert code == 2, (what, path)
        if code == 0 and path[0] == "checks" and len(path) == 2 and what == "deleted":
            check = checks[path[1]]["name"]
            assert not REGISTRY[check].always, check


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
