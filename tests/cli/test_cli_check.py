"""`lightning-audit check` computes the verdict again, and no single edit talks it round."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checked_reports import violated, with_status
from gate_reports import OUTCOMES, TRAININGS, train
from made_report import made_report
from many_trainings import audited
from report_edits import edits, with_

from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli import main
from lightning_audit.cli.check import FORMATS, another_training, failed, regressions
from lightning_audit.report.text import print_summary
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, Outcome, ReportError
from lightning_audit.verdict.gate import contradictions

# --- `lightning-audit check` computes the verdict again, and no single edit talks it round.

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


@pytest.mark.training
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=HEAVY) for name in TRAININGS]
)
@pytest.mark.heavy_one_in(4)
@pytest.mark.one_in(3)
def test_what_a_training_wrote_has_the_exit_code_of_its_verdict(name, trained, gate):
    text = trained(name)
    assert gate(text) == (EXIT_CODES[OUTCOMES[name]], "")
    assert AuditReport.from_json(text).to_json() + "\n" == text
    assert {check["name"] for check in json.loads(text)["checks"]} <= set(REGISTRY)


@pytest.mark.training
def test_a_run_that_broke_off_keeps_the_violation_that_was_found(trained, gate):
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


@pytest.mark.training
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
def test_a_violation_that_is_edited_to_pass_is_refused_and_told_where(change, told, trained, gate):
    code, errors = gate(with_(trained("half noise"), change))
    assert code == 2
    assert "and contradicts itself:" in errors
    assert "It was edited or damaged" in errors
    assert told in errors


def _rated_lower(data: Report) -> None:
    data["epsilon_spent"] = check_of(data, "accounting")["evidence"]["epsilon_spent"] = 1000.0


@pytest.mark.training
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
        (lambda data: data.update(epsilon_spent=1000.0), "epsilon_spent is 1000.0, and 1."),
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
    change, told, trained, gate
):
    code, errors = gate(with_(trained("claimed"), change))
    assert code == 2
    assert told in errors


@pytest.mark.training
def test_an_inconclusive_report_is_not_edited_to_pass(trained, gate):
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


@pytest.mark.training
@pytest.mark.parametrize(("name", "change", "code", "with_budget"), ATTACKS.values(), ids=ATTACKS)
def test_the_judge_finds_what_a_new_digest_hides(name, change, code, with_budget, trained, gate):
    text = with_(trained(name), change)
    assert gate(text)[0] == code
    assert gate(text, "--max-epsilon", "50")[0] == with_budget


@pytest.mark.training
def test_without_a_new_digest_any_edit_ends_with_2(trained, gate):
    for name, change, *_ in ATTACKS.values():
        data = json.loads(trained(name))
        change(data)
        if data != json.loads(trained(name)):
            code, errors = gate(json.dumps(data))
            assert (code, "SHA-256 is not that of its content" in errors) == (2, True), change


# ------------------------------------------------------------------ no JSON, or no report's


@pytest.mark.training
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
def test_what_is_no_report_ends_with_a_message_and_no_traceback(change, told, trained, gate):
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


@pytest.mark.training
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
def test_no_single_edit_makes_a_pass_of_what_is_none(name, every, trained):
    tried = 0
    for code, what, path in codes_of(trained(name), every):
        assert code != 0, (what, path)
        tried += 1
    assert tried > 100


@pytest.mark.training
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
def test_a_pass_outlives_no_edit_of_what_it_rests_on(name, every, trained):
    checks = json.loads(trained(name))["checks"]
    for code, what, path in codes_of(trained(name), every):
        assert code in (0, 2), (what, path)
        # A key that is not there has its default, which may be the same.
        if is_rested_on(path) and what not in ("deleted", "renamed"):
            assert code == 2, (what, path)
        if code == 0 and path[0] == "checks" and len(path) == 2 and what == "deleted":
            check = checks[path[1]]["name"]
            assert not REGISTRY[check].always, check


@pytest.mark.training
@pytest.mark.parametrize("name", ["correct", "half noise"])
def test_the_command_shows_what_an_edit_leaves_and_ends_with_its_code(name, trained, gate):
    tried = list(edits(json.loads(trained(name))))
    for _, path, make in random.Random(1).sample(tried, 60):
        text = make()
        code, errors = gate(text)
        assert code == code_of(text), path
        assert bool(errors) == (code == 2), path


@pytest.mark.training
def test_noise_in_the_file_never_makes_a_pass_of_a_violation(trained):
    text, rng = trained("half noise"), random.Random(0)
    for _ in range(400):
        at = rng.randrange(len(text))
        cut = rng.choice((0, 1, 1, 5, 300))
        assert code_of(text[:at] + rng.choice('0129-e."{}[],:xn ') + text[at + cut :]) != 0


# --- `lightning-audit check --baseline` compares with an earlier report, or says why it cannot.

Streams = pytest.CaptureFixture[str]


def saved(directory: Path, outcome: Outcome = "PASS", **changes: Any) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    return str(made_report(outcome, **changes).save(directory / "report.json"))


def check(*arguments: str) -> int:
    return main.main(["check", *arguments])


@pytest.mark.parametrize(
    ("changes", "options", "code"),
    [
        ({}, (), 0),
        ({"spent": 2.0}, (), 0),
        ({"spent": 3.2}, (), 1),
        ({"spent": 3.2}, ("--max-regression", "0.3"), 0),
        ({"spent": 3.2}, ("--max-regression=0.1",), 1),
        ({"proved": 1.6}, (), 1),
        ({"spent": None}, (), 2),
        ({"spent": None, "proved": 2.0}, (), 1),
    ],
)
def test_a_pass_fails_if_it_became_worse_than_its_baseline(
    tmp_path, changes, options, code, capsys
):
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new", claimed=None, **changes)
    assert check(new, "--baseline", old, *options) == code
    lines = capsys.readouterr().out.splitlines()
    if code:
        outcome = "VIOLATION" if code == 1 else "INCONCLUSIVE"
        assert any(line.startswith(f"{outcome} against --baseline {old}: ") for line in lines[:2])
    else:
        assert lines[-1] == f"nothing became worse since --baseline {old}"


def test_a_newly_failed_check_is_named(tmp_path, capsys):
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new", "VIOLATION")
    assert check(new, f"--baseline={old}", "--format=json") == 1
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    told = f"VIOLATION against --baseline {old}: newly failed: noise"
    assert report["gate"] == [{"rule": "baseline", "outcome": "VIOLATION", "message": told}]


def _cut(path: Path) -> str:
    path.write_text(path.read_text()[:500])
    return "not complete JSON"


def _newer(path: Path) -> str:
    path.write_text(path.read_text().replace('"schema_version": 6', '"schema_version": 7'))
    return "upgrade lightning-audit"


def _edited(path: Path) -> str:
    path.write_text(path.read_text().replace('"steps": 100', '"steps": 101', 1))
    return "SHA-256"


def _of_another(path: Path) -> str:
    made_report(delta=1e-6).save(path)
    return "contradicts itself"


def _absent(path: Path) -> str:
    path.unlink()
    return "No such file"


def _folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "a directory"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("change", [_cut, _newer, _edited, _of_another, _absent, _folder])
def test_a_baseline_that_cannot_be_read_never_passes(tmp_path, name, change, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new")
    told = change(Path(old))
    assert check(new, "--baseline", old, "--format", name) == 2
    out = capsys.readouterr().out
    assert told in out
    assert "INCONCLUSIVE" in out
    assert "Traceback" not in out


def test_the_report_of_another_training_is_no_baseline(tmp_path, capsys):
    made = made_report()
    settings = {**made.settings, "delta": 1e-6}
    old = saved(tmp_path / "old", claimed=None, spent=None, delta=1e-6, settings=settings)
    new = saved(tmp_path / "new", claimed=None)
    assert check(new, "--baseline", old) == 2
    first = capsys.readouterr().out.splitlines()[0]
    reason = "its delta: 1e-06, here 1e-05"
    assert first == (f"INCONCLUSIVE: --baseline {old} is the report of another training: {reason}")


def test_a_violation_stays_one_if_its_baseline_is_unreadable(tmp_path):
    assert check(saved(tmp_path, "VIOLATION"), "--baseline", str(tmp_path / "absent")) == 1


def test_options_that_do_not_go_together_are_refused(tmp_path, capsys):
    one, other = saved(tmp_path / "one"), saved(tmp_path / "other")
    assert check(one, other, "--baseline", one) == 2
    assert "--baseline is the report of one training, and 2 are given" in capsys.readouterr().err
    assert check(one, "--max-regression", "1") == 2
    assert "add --baseline report.json" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["-1", "nan", "much"])
def test_a_limit_that_is_no_number_is_a_usage_error(tmp_path, limit):
    path = saved(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        check(path, "--baseline", path, f"--max-regression={limit}")
    assert exit_.value.code == 2


# --- `lightning-audit check` of several reports, in every format.

OUTCOMES_OF_CHECK_COMMAND_FORMATS: tuple[Outcome, ...] = ("PASS", "VIOLATION", "INCONCLUSIVE")


def check_check_command_formats(*arguments: object) -> int:
    return main.main(["check", *map(str, arguments)])


@pytest.mark.parametrize("outcome", OUTCOMES_OF_CHECK_COMMAND_FORMATS)
def test_one_report_gets_its_summary(tmp_path, outcome, capsys):
    path = saved(tmp_path, outcome)
    assert check_check_command_formats(path) == EXIT_CODES[outcome]
    shown = capsys.readouterr()
    print_summary(AuditReport.load(path), path)
    assert shown == (capsys.readouterr().out, "")


def test_reports_and_folders_are_shown_together_and_each_once(tmp_path, capsys):
    first = saved(tmp_path / "runs" / "a" / "audit")
    saved(tmp_path / "runs" / "b" / "audit", "INCONCLUSIVE")
    other = saved(tmp_path / "other", "VIOLATION")
    assert check_check_command_formats(tmp_path / "runs", other, first) == 1
    rows = capsys.readouterr().out.splitlines()[:-2]
    assert [row.split()[1 if row[0] == " " else 2] for row in rows] == [
        "PASS",
        "INCONCLUSIVE",
        "VIOLATION",
    ]
    assert check_check_command_formats(tmp_path / "runs") == 2


def test_a_folder_without_a_report_among_others_is_inconclusive(tmp_path, capsys):
    path = saved(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    assert check_check_command_formats(path, tmp_path / "empty", tmp_path / "absent.json") == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3 + 2
    assert "is a directory without a report.json" in told.err
    assert "absent.json" in told.err


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("outcome", OUTCOMES_OF_CHECK_COMMAND_FORMATS)
def test_the_exit_code_is_the_same_in_every_format(tmp_path, name, outcome, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    path = saved(tmp_path / "a", outcome)
    other = saved(tmp_path / "b")
    assert check_check_command_formats(path, "--format", name) == EXIT_CODES[outcome]
    capsys.readouterr()
    shown = []
    for _ in range(2):
        assert check_check_command_formats(path, other, f"--format={name}") == EXIT_CODES[outcome]
        shown.append(capsys.readouterr())
    assert shown[0] == shown[1]
    assert shown[0].out
    assert shown[0].err == ""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("several", [False, True])
def test_what_cannot_be_read_never_passes_in_any_format(
    tmp_path, name, several, capsys, monkeypatch
):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    cut, newer = Path(saved(tmp_path / "cut")), Path(saved(tmp_path / "newer"))
    cut.write_text(cut.read_text()[:500])
    newer.write_text(newer.read_text().replace('"schema_version": 6', '"schema_version": 7'))
    others = [saved(tmp_path / "fine")] * several
    for path, told in ((cut, "not complete JSON"), (newer, "upgrade lightning-audit")):
        assert check_check_command_formats(path, *others, "--format", name) == 2
        shown = capsys.readouterr()
        assert told in shown.err
        assert told in shown.out or (name == "text" and not several)


@pytest.mark.parametrize("limit", ["2", "1"])
def test_the_first_line_says_why_a_budget_is_exceeded(tmp_path, limit, capsys):
    path = saved(tmp_path)
    assert check_check_command_formats(path, "--max-epsilon", limit) == 1
    first = capsys.readouterr().out.splitlines()[0]
    above = "epsilon spent 3" if limit == "2" else "epsilon proved 1.5, spent 3"
    assert first == f"VIOLATION of --max-epsilon {limit}: {above}"
    assert check_check_command_formats(path, "--max-epsilon", limit, "--format=json") == 1
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["reasons"] == [first]
    assert (report["verdict"], report["outcome"]) == ("PASS", "VIOLATION")


def test_a_step_summary_that_cannot_be_written_ends_with_2(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert check_check_command_formats(saved(tmp_path / "a"), "--format=github") == 2
    assert "cannot write the step summary" in capsys.readouterr().err


def test_a_hundred_reports_are_a_line_each_and_the_worst_verdict_is_the_exit_code(tmp_path, capsys):
    for number, outcome in zip(
        range(100), itertools.cycle(OUTCOMES_OF_CHECK_COMMAND_FORMATS), strict=False
    ):
        saved(tmp_path / f"{number}" / "audit", outcome)
    assert check_check_command_formats(tmp_path) == 1
    assert len(capsys.readouterr().out.splitlines()) == 102


def diff(*arguments: str) -> int:
    return main.main(["diff", *arguments])


def test_equal_reports_do_not_differ(tmp_path, capsys):
    old = saved(tmp_path)
    assert diff(old, old) == 0
    assert capsys.readouterr().out == "the reports do not differ\n"


def test_what_became_worse_is_first_and_each_difference_has_a_row(tmp_path, capsys):
    old = saved(tmp_path / "old", environment={"torch": "2.12"})
    new = saved(tmp_path / "new", "VIOLATION", spent=4.0, environment={"torch": "2.13"})
    assert diff(old, new) == 1
    worse, newly, *rows = capsys.readouterr().out.splitlines()
    assert worse == "VIOLATION: epsilon_spent rose from 3 to 4"
    assert newly == "VIOLATION: newly failed: noise"
    found = {row.split("  ")[1].strip(): row.split("  ->  ")[1] for row in rows}
    assert found == {
        "verdict": "VIOLATION (mechanism)",
        "epsilon_spent": "4",
        "epsilon_not_excluded": "-",
        "noise": "violated",
        "environment.torch": "2.13",
    }
    assert diff(new, old) == 0


def test_a_rise_within_the_limit_is_shown_and_accepted(tmp_path, capsys):
    old, new = saved(tmp_path / "old"), saved(tmp_path / "new", spent=3.4)
    assert diff(old, new, "--max-regression", "0.5") == 0
    assert capsys.readouterr().out == "  epsilon_spent  3  ->  3.4\n"


def test_an_epsilon_that_is_no_longer_known_is_inconclusive(tmp_path):
    old = saved(tmp_path / "old", claimed=None)
    assert diff(old, saved(tmp_path / "new", claimed=None, spent=None)) == 2
    assert diff(old, saved(tmp_path / "worse", claimed=None, spent=None, proved=2.0)) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_report_that_cannot_be_read_is_named(tmp_path, which, capsys):
    paths = [saved(tmp_path / "old"), saved(tmp_path / "new")]
    Path(paths[which]).write_text("{")
    assert diff(*paths) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{paths[which]}: the report is not complete JSON" in shown.err


def test_a_report_that_contradicts_itself_is_refused_with_the_contradictions(tmp_path, capsys):
    path = saved(tmp_path, delta=1e-6)
    assert diff(path, path) == 2
    shown = capsys.readouterr().err
    assert "contradicts itself" in shown
    assert "delta is 1e-06" in shown


def test_reports_of_different_trainings_are_refused(tmp_path, capsys):
    made = made_report()
    settings = {**made.settings, "delta": 1e-6}
    old = saved(tmp_path / "old", claimed=None, spent=None, delta=1e-6, settings=settings)
    assert diff(old, saved(tmp_path / "new", claimed=None)) == 2
    assert "different trainings: its delta: 1e-06, here 1e-05" in capsys.readouterr().err


INFINITE = float("inf")


@pytest.mark.parametrize(
    ("old", "new", "most", "expected"),
    [
        ({}, {}, 0.0, []),
        ({"spent": 4.0}, {}, 0.0, []),
        ({}, {"spent": 3.4}, 0.5, []),
        ({}, {"spent": 3.6}, 0.5, [("VIOLATION", "epsilon_spent rose from 3 to 3.6, by more")]),
        ({}, {"spent": 3.1}, 0.0, [("VIOLATION", "epsilon_spent rose from 3 to 3.1")]),
        ({}, {"proved": 2.0}, 0.0, [("VIOLATION", "epsilon_lower rose from 1.5 to 2")]),
        ({}, {"spent": INFINITE}, 9.0, [("VIOLATION", "epsilon_spent rose from 3 to inf")]),
        ({"spent": INFINITE}, {"spent": INFINITE}, 0.0, []),
        ({}, {"spent": None}, 9.0, [("INCONCLUSIVE", "epsilon_spent was 3 and is unknown now")]),
        ({"spent": None}, {}, 0.0, []),
        (
            {},
            {"spent": None, "proved": 2.0},
            0.0,
            [
                ("INCONCLUSIVE", "epsilon_spent was 3"),
                ("VIOLATION", "epsilon_lower rose from 1.5 to 2"),
            ],
        ),
    ],
)
def test_a_rise_of_an_epsilon_above_the_limit_is_found(old, new, most, expected):
    found = regressions(made_report(**old), made_report(**new), most)
    assert [outcome for outcome, _ in found] == [outcome for outcome, _ in expected]
    for (_, text), (_, start) in zip(found, expected, strict=True):
        assert text.startswith(start)


def test_a_newly_failed_check_is_found_and_an_old_failure_is_not():
    texts = [text for _, text in regressions(made_report(), violated(), 0.0)]
    assert texts == ["newly failed: noise, and 1 that follows from it"]
    once = dataclasses.replace(violated(), checks=made_report("VIOLATION").checks)
    assert [text for _, text in regressions(once, violated(), 0.0)] == ["newly failed: noise.step"]
    assert regressions(violated(), violated(), 0.0) == []
    assert regressions(violated(), made_report(), 0.0) == []


@pytest.mark.parametrize(
    ("status", "fails"), [("allowed", True), ("undecided", True), ("warned", False), ("ok", False)]
)
def test_a_failure_that_is_allowed_is_a_failure_and_a_warning_is_none(status, fails):
    assert (("sensitivity", "") in failed(with_status("sensitivity", status))) == fails


def labeled(label: str) -> AuditReport:
    report = made_report()
    seen = dataclasses.replace(report.optimizers[0], label=label)
    return dataclasses.replace(report, optimizers=(seen,))


def of_tensors(*names: str) -> AuditReport:
    return with_status("noise", "ok", evidence={"ratio": dict.fromkeys(names, 1.0)})


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (made_report(), made_report(delta=1e-6), "its delta: 1e-05, here 1e-06"),
        (labeled("one"), labeled("two"), "its private optimizers: 1 (one), here 1 (two)"),
        (of_tensors("a", "b"), of_tensors("a", "c"), "its tensors: 2 (b), here 2 (c)"),
        (of_tensors("a"), of_tensors("a", "c", "d"), "its tensors: 1, here 3 (c, ...)"),
        (
            made_report(),
            made_report(settings={"claim": {"adjacency": "replace_one"}}),
            "its adjacency: add_remove, here replace_one",
        ),
    ],
)
def test_reports_of_different_trainings_are_not_compared(old, new, told):
    assert another_training(old, new) == told
    assert another_training(new, old)
    assert another_training(old, old) == another_training(new, new) == ""


def test_another_noise_seed_or_number_of_steps_is_the_same_training():
    other = made_report(spent=5.0, steps=7, settings={"seed": 3, "claim": {"noise_multiplier": 2}})
    assert another_training(of_tensors("a"), other) == ""


def test_a_report_of_many_trainings_is_no_baseline_of_one():
    many, one = audited(n=50).to_report(), made_report()
    told = another_training(
        one, dataclasses.replace(many, delta=one.delta, optimizers=one.optimizers)
    )
    assert told == "its data sets of many trainings: one training, here add_remove"
    assert another_training(many, audited(n=60).to_report()) == ""


# --- `lightning-audit show` prints all of a report, and is no gate.


def saved_show_command(directory: Path, outcome: str = "PASS") -> str:
    directory.mkdir(parents=True)
    return str(made_report(outcome).save(directory / "report.json"))  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", ["PASS", "VIOLATION", "INCONCLUSIVE"])
def test_every_check_of_a_report_is_shown_and_the_exit_code_is_no_verdict(
    tmp_path, outcome, capsys
):
    path = saved_show_command(tmp_path / "a", outcome)
    assert main.main(["show", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0] for line in lines if line.strip()}
    assert {check.name for check in made_report(outcome).checks if not check.follows_from} <= rows
    assert lines[1].startswith(outcome)
    assert lines[-1] == f"Report: {path}"


def test_a_folder_shows_each_of_its_trainings(tmp_path, capsys):
    paths = [saved_show_command(tmp_path / name) for name in ("a", "b")]
    assert main.main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("Report: ") for line in shown if "Report: " in line] == paths


def test_what_cannot_be_read_is_named_after_the_others_with_exit_code_2(tmp_path, capsys):
    path = saved_show_command(tmp_path / "a")
    cut = tmp_path / "cut.json"
    cut.write_text(Path(path).read_text()[:-200])
    (tmp_path / "empty").mkdir()
    assert main.main(["show", str(cut), str(tmp_path / "empty"), path]) == 2
    shown = capsys.readouterr()
    assert f"Report: {path}" in shown.out
    assert len([line for line in shown.err.splitlines() if "lightning-audit: " in line]) == 2
    assert "without a report.json" in shown.err
