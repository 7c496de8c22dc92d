"""`lightning-audit check` and `show`: no edit makes a pass of what is none, and all formats
say what was found, what became worse, and what could not be read.
"""

import dataclasses
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mutated_files as files
import pytest
import torch
from checked_reports import violated, with_status
from gate_reports import OUTCOMES, TRAININGS, NotPoisson, train
from hypothesis import given, settings
from hypothesis import strategies as st
from made_report import made_report
from many_trainings import audited
from report_edits import Change, Place, change, edits, with_
from stages import staged
from training_support import trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli.check import FORMATS, _above_claim, another_training, failed, regressions
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError
from lightning_audit.verdict.gate import contradictions

pytestmark = pytest.mark.training
Report = dict[str, Any]
_texts: dict[str, str] = {}


@pytest.fixture
def trained(tmp_path_factory):
    """Gives the text of a training's report, trained once."""

    def text_of(name: str) -> str:
        if name not in _texts:
            _texts[name] = train(name, tmp_path_factory.mktemp("gate")).read_text()
        return _texts[name]

    return text_of


@pytest.fixture
def gate(tmp_path, cli):
    """Gives the exit code and the errors of `lightning-audit check` on a text."""

    def check(text: str, *options: str) -> tuple[int, str]:
        (tmp_path / "report.json").write_text(text, encoding="utf-8")
        said = cli("check", tmp_path / "report.json", *options)
        return said.code, said.err

    return check


@pytest.fixture
def _no_step_summary(monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def code_of(text: str) -> int:
    """The exit code without what is shown, which takes a hundred times as long."""
    try:
        report = AuditReport.from_json(text)
    except ReportError:
        return 2
    return 2 if contradictions(report) else report.verdict.exit_code


# --- Reports as they are written, and as they are edited.

#: Trainings that are read back and edited for each change; the others are in the nightly run.
EDITED = ("correct", "half noise")


def others(*, than: Iterable[str], among: Iterable[str]) -> list[str]:
    return [name for name in among if name not in than]


@pytest.mark.parametrize(
    "name", staged((*EDITED, "claimed"), nightly=others(than=(*EDITED, "claimed"), among=TRAININGS))
)
def test_what_a_training_wrote_has_the_exit_code_of_its_verdict(name, trained, gate):
    text = trained(name)
    assert gate(text) == (EXIT_CODES[OUTCOMES[name]], "")
    assert AuditReport.from_json(text).to_json() + "\n" == text
    assert {check["name"] for check in json.loads(text)["checks"]} <= set(REGISTRY)


def test_a_run_that_broke_off_keeps_the_violation_that_was_found(trained, gate):
    assert gate(with_(trained("half noise"), {"complete": False}))[0] == 1


PASSES = {
    "verdict/outcome": "PASS",
    "verdict/kind": None,
    "verdict/fault": "",
    "verdict/faults": [],
}
OK = {"status": "ok"}


def seems_to_pass(violated: Mapping[str, Any], each: Mapping[str, Any] | None = None) -> Change:
    """A verdict that passes, with other values in the violated checks, and in each check."""

    def edit(data: Report) -> None:
        change(data, PASSES)
        for check in data["checks"]:
            change(check, {**(violated if check["status"] == "violated" else {}), **(each or {})})

    return edit


def without_violated(data: Report) -> None:
    change(data, PASSES)
    data["checks"] = [check for check in data["checks"] if check["status"] != "violated"]


NOT_RUN = {"status": "not_run", "log_e_value": 0.0, "evidence/violated_at_step": None}


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"verdict/outcome": "PASS"}, "it says PASS, its checks give VIOLATION: noise"),
        ({"verdict/outcome": "INCONCLUSIVE"}, "it says INCONCLUSIVE, its checks give VIOLATION"),
        (PASSES, "its checks give VIOLATION: noise"),
        (seems_to_pass(OK), "noise is ok, its numbers give violated"),
        (seems_to_pass(OK, {"evidence": {}}), "its checks cannot be judged (KeyError"),
        (seems_to_pass(OK, {"log_e_value": None}), "noise is ok, its numbers give not_run"),
        (without_violated, "noise occurs 0 times, not 1"),
        (seems_to_pass(NOT_RUN), "it says PASS, its checks give INCONCLUSIVE: "),
        ({**PASSES, "settings/allow": [*REGISTRY]}, "noise is violated, its numbers give allowed"),
    ],
)
def test_a_violation_that_is_edited_to_pass_is_refused_and_told_where(edit, told, trained, gate):
    code, errors = gate(with_(trained("half noise"), edit))
    assert code == 2
    assert "and contradicts itself:" in errors
    assert "It was edited or damaged" in errors
    assert told in errors


NOISE = "optimizers/0/power/noise"
TWICE = {"epsilon_spent", "checks/accounting/evidence/epsilon_spent"}


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"complete": False}, "its checks give INCONCLUSIVE: the training has not ended"),
        ({"pass_blockers": ["the loader"]}, "it says PASS, its checks give INCONCLUSIVE: the load"),
        ({"verdict/pass_blockers": ["steps"]}, "the text of its verdict does not follow"),
        ({"checks": []}, "noise occurs 0 times, not 1"),
        ({"optimizers": []}, "noise occurs 1 times, not 0"),
        ({"checks/coupling": ...}, "coupling occurs 0 times"),
        ({"steps": 0}, "steps is 0, and 60 elsewhere"),
        ({"epsilon_spent": 1000.0}, "epsilon_spent is 1000.0, and 1."),
        ({"claimed_epsilon": None}, "claimed_epsilon is None, and 50.0"),
        (dict.fromkeys(TWICE, 1000.0), "accounting is ok, its numbers give violated"),
        ({NOISE: ...}, "power is for "),
        ({f"{NOISE}/power": 0.5}, "50% power against"),
        ({"optimizers/0/lost_steps": 2}, "2 of 60 steps were lost"),
        ({"optimizers/0/shift_lower": 0.1}, "signal was not detected"),
        ({"settings/resolution/noise": 0.5}, "the resolution is"),
        ({"settings/allow": "noise"}, "settings.allow: Expected `array`"),
        ({"checks/noise/share": 1e-9}, "has the share 1e-09 of"),
    ],
)
def test_a_pass_that_its_own_numbers_do_not_give_is_refused_and_told_where(
    edit, told, trained, gate
):
    code, errors = gate(with_(trained("claimed"), edit))
    assert code == 2
    assert told in errors


def test_an_inconclusive_report_is_not_edited_to_pass(trained, gate):
    edit = {"verdict/outcome": "PASS", "verdict/pass_blockers": []}
    edited = with_(trained("broken off"), {**edit, "complete": True, "pass_blockers": []})
    code, errors = gate(edited)
    assert code == 2
    assert "power is for {}" in errors


#: Training, edit with a new digest, and the exit code without and with a budget of 50.
ATTACKS: dict[str, tuple[str, Change, int, int]] = {
    "as it was": ("claimed", {}, 0, 0),
    # All but the e-value, which stays above its threshold.
    "and evidence": ("half noise", seems_to_pass({**OK, "evidence/violated_at_step": ...}), 2, 2),
    "share of a violated check": ("half noise", {"checks/noise/share": 1e-9}, 2, 2),
    "share of a check that is fine": ("claimed", {"checks/noise/share": 0.9}, 2, 2),
    "e-value above the threshold": ("claimed", {"checks/noise/log_e_value": 30.0}, 2, 2),
    "evidence of a rule": ("claimed", {"checks/no_dp/evidence/plain_steps": 1}, 2, 2),
    "history alone": ("claimed", {"history/0/0": 3.0}, 0, 2),
    "epsilon in all places": ("claimed", dict.fromkeys(TWICE, 0.5), 0, 2),
    "a check twice": ("claimed", lambda r: r["checks"].append(r["checks"][0]), 2, 2),
    "allow": ("half noise", {"settings/allow": ["noise"]}, 2, 2),
    "allow of what is not found": ("claimed", {"settings/allow": ["noise"]}, 0, 0),
    # The step at which it was found stays.
    "significance": ("half noise", {"settings/significance": 1e-300}, 1, 1),
    "claim": ("above the claim", {"settings/claimed_epsilon": 9.0}, 2, 2),
    "delta": ("claimed", {"delta": 0.5}, 2, 2),
    "delta in all places": ("claimed", {"delta": 0.5, "settings/delta": 0.5}, 0, 2),
}


@pytest.mark.parametrize(("name", "edit", "code", "with_budget"), ATTACKS.values(), ids=ATTACKS)
def test_the_judge_finds_what_a_new_digest_hides(name, edit, code, with_budget, trained, gate):
    text = with_(trained(name), edit)
    assert gate(text)[0] == code
    assert gate(text, "--max-epsilon", "50")[0] == with_budget
    unsigned = json.loads(trained(name))
    change(unsigned, edit)
    if unsigned != json.loads(trained(name)):
        code, errors = gate(json.dumps(unsigned))
        assert code == 2
        assert "SHA-256 is not that of its content" in errors


# --- Every single edit.

#: Where any other value ends a pass; "." stands for all below. Beside it stand words, dates,
#: versions, figures that are only shown, and of what was not found its size.
RESTS_ON = (
    *("verdict.", "checks.*.name", "complete", "pass_blockers", "schema_version"),
    *("delta", "steps", "epsilon_spent", "claimed_epsilon", "epsilon_refuted_by"),
    *("optimizers.*.steps", "optimizers.*.power.*.size", "history.*.2"),
    *("settings.delta", "settings.claimed_epsilon"),
)


def is_rested_on(path: Place) -> bool:
    place = ".".join("*" if isinstance(key, int) else key for key in path)
    place = re.sub(r"power\.\w+\.", "power.*.", place)
    place = place.replace("history.*.*", f"history.*.{path[-1]}")
    return any(place.startswith(p) if p.endswith(".") else place == p for p in RESTS_ON)


def judge(report: Report, passes: bool, edit: tuple[str, Place, Callable[[], str]]) -> None:
    """An edit makes no pass of what is none, and a pass outlives none of what it rests on."""
    what, path, make = edit
    code = code_of(make())
    assert code != 0 or passes, (what, path)
    assert code in (0, 2) or not passes, (what, path)
    # A key that is not there has its default, which may be the same.
    if passes and is_rested_on(path) and what != "deleted":
        assert code == 2, (what, path)
    if code == 0 and path[0] == "checks" and len(path) == 2 and what == "deleted":
        check = report["checks"][path[1]]["name"]
        assert not REGISTRY[check].always, check


@pytest.mark.parametrize("name", staged(EDITED, nightly=others(than=EDITED, among=OUTCOMES)))
def test_no_single_edit_makes_a_pass_of_what_is_none_nor_outlives_what_a_pass_rests_on(
    name, trained
):
    report = json.loads(trained(name))

    @settings(max_examples=200)
    @given(st.sampled_from(list(edits(report))))
    def one(edit):
        judge(report, OUTCOMES[name] == "PASS", edit)

    one()


@pytest.mark.parametrize("name", staged(nightly=["correct", "half noise"]))
def test_of_all_single_edits_none_does(name, trained):
    report = json.loads(trained(name))
    for edit in edits(report):
        judge(report, OUTCOMES[name] == "PASS", edit)


@pytest.mark.parametrize("name", staged(quick=["half noise"], nightly=["correct"]))
def test_the_command_shows_what_an_edit_leaves_and_ends_with_its_code(name, trained, gate):
    tried = list(edits(json.loads(trained(name))))
    for _, path, make in random.Random(1).sample(tried, 60):
        text = make()
        code, errors = gate(text)
        assert code == code_of(text), path
        assert bool(errors) == (code == 2), path


def test_noise_in_the_file_never_makes_a_pass_of_a_violation(trained):
    text, anywhere = trained("half noise"), st.integers(0, len(trained("half noise")) - 1)

    @settings(max_examples=400)
    @given(anywhere, st.sampled_from([0, 1, 1, 5, 300]), st.sampled_from('0129-e."{}[],:xn '))
    def one(at, cut, written):
        assert code_of(text[:at] + written + text[at + cut :]) != 0

    one()


def test_what_is_no_report_ends_with_a_message_and_no_traceback(trained, gate):
    report = json.loads(trained("correct"))

    @settings(max_examples=25)
    @given(files.objects(report, lambda at: bool({"evidence", "settings"} & set(at))))
    def one(mutant):
        text = mutant.data.decode("utf-8", "replace")
        code, errors = gate(text)
        assert "Traceback" not in errors
        assert code == 2 or not mutant.wrong
        assert bool(errors) == (code == 2)

    one()


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda text: text.rstrip()[:-1] + ', "verdict": {"outcome": "PASS"}}', "SHA-256"),
        (lambda text: text.replace('"delta": ', '"delta": NaN, "d": ', 1), "not complete JSON"),
        (lambda text: text.replace('"delta": ', '"delta": 1e999, "d": ', 1), "out of range"),
        (lambda text: text.replace('"no_dp"', "[" * 10**5 + "]" * 10**5, 1), "nested too deep"),
        (lambda text: "\ufeff" + text, "not complete JSON"),
        (lambda text: text + text, "not complete JSON"),
        ({"schema_version": 5}, "reads 6 only"),
        ({"schema_version": 10**9}, "upgrade"),
        ({"schema_version": True}, "no schema_vers"),
        ({"bounds": ...}, "invalid: Object missing required field `bounds`"),
        ({"checks/2/share": "0.1"}, "checks[2].share: Expected `float`, got `str`"),
        ({"checks/2/name": [1]}, "checks[2].name: Expected `str`, got `array`"),
        ({"steps": True}, "steps: Expected `int`, got `bool`"),
    ],
)
def test_what_is_no_report_is_told_in_words(edit, told, trained, gate):
    text = trained("correct")
    code, errors = gate(edit(text) if callable(edit) else with_(text, edit))
    assert code == 2
    assert told in errors


# --- `lightning-audit check --baseline` compares with an earlier report, or says why it cannot.


@pytest.mark.parametrize(
    ("changes", "options", "code"),
    [
        ({}, (), 0),
        ({"spent": 3.2}, (), 1),
        ({"spent": 3.2}, ("--max-regression", "0.3"), 0),
        ({"outcome": "INCONCLUSIVE", "spent": None}, (), 2),
        ({"outcome": "INCONCLUSIVE", "spent": None, "proved": 2.0}, (), 1),
    ],
)
def test_a_pass_fails_if_it_became_worse_than_its_baseline(cli, saved, changes, options, code):
    old, new = saved("old"), saved("new", claimed=None, **changes)
    said = cli("check", new, "--baseline", old, *options)
    assert said.code == code
    if code:
        outcome = "VIOLATION" if code == 1 else "INCONCLUSIVE"
        start = f"{outcome} against --baseline {old}: "
        assert any(line.startswith(start) for line in said.lines)
    else:
        assert said.lines[-1] == f"nothing became worse since --baseline {old}"


def test_the_gates_verdict_comes_before_the_one_of_the_audit(cli, saved):
    said = cli("check", saved("new"), "--max-epsilon=0.5")
    assert said.code == 1
    first, second = said.lines[:2]
    assert first.startswith("VIOLATION of --max-epsilon 0.5: epsilon ")
    assert second == "VIOLATION is the gate's verdict; that of the audit alone:"
    within = cli("check", saved("new"), "--max-epsilon=50").lines
    assert within[0].startswith("PASS: ")
    assert within[-1] == "the epsilons proved and spent are within --max-epsilon 50"


def test_a_violation_comes_before_an_epsilon_that_is_within_the_limit(cli, saved):
    said = cli("check", saved("new", "VIOLATION"), "--max-epsilon=50")
    assert said.code == 1
    assert said.out.startswith("VIOLATION: ")
    assert said.lines[-1] == (
        "the epsilons proved and spent, as stated, are within --max-epsilon 50"
    )
    unknown = saved("unknown", "VIOLATION", spent=None, proved=None)
    assert cli("check", unknown, "--max-epsilon=8").out.startswith("VIOLATION: ")


def test_without_a_limit_the_claim_is_one_if_an_allowed_finding_exceeds_it(tmp_path, cli):
    torch.manual_seed(0)
    allowed = {"allow": ["sampling.not_poisson"], "claimed_epsilon": 3.0}
    audit = PrivacyAudit(seed=1, on_violation="warn", **allowed)
    trainer_for(tmp_path, audit, max_steps=60).fit(NotPoisson())
    assert audit.report.verdict.outcome == "PASS"
    assert audit.report.epsilon_spent > 3.0
    path = tmp_path / "audit" / "report.json"
    said = cli("check", path)
    assert said.code == 1
    assert said.lines[0].startswith(
        "VIOLATION of the claimed epsilon 3: with sampling.not_poisson allowed, epsilon "
    )
    assert cli("check", path, "--max-epsilon=50").code == 0
    assert "❌ VIOLATION" in cli("check", path, "--format=markdown").out


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"spent": 13.7}, True),
        ({"spent": 8.05}, False),  # within the error of composition
        ({"spent": 3.0}, False),
        ({"spent": 13.7, "epsilon_refuted_by": ("accounting",)}, False),  # allowed as such
        ({"spent": 13.7, "epsilon_refuted_by": ()}, False),  # a violation of its own
        ({"spent": None, "proved": None}, False),
        ({"spent": 13.7, "claimed": None}, False),
    ],
)
def test_the_claim_is_a_limit_only_where_another_finding_refutes_it(changes, fails):
    report = made_report(**{"epsilon_refuted_by": ("sampling.not_poisson",), **changes})
    assert bool(_above_claim(report)) == fails


def test_a_record_is_no_report(cli, tmp_path):
    said = cli("check", str(tmp_path / "observations.npz"))
    assert said.code == 2
    assert "name the report.json next to it. `lightning-audit bound` reads" in said.err


def test_a_newly_failed_check_is_named(cli, saved):
    old = saved("old")
    said = cli("check", saved("new", "VIOLATION"), f"--baseline={old}", "--format=json")
    told = f"VIOLATION against --baseline {old}: newly failed: noise"
    (report,) = said.json["reports"]
    assert said.code == 1
    assert report["gate"] == [{"rule": "baseline", "outcome": "VIOLATION", "message": told}]


def _replaced(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new, 1))


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:500])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


_NEWER = _replaced('"schema_version": 6', '"schema_version": 7')
UNREADABLE = {
    "not complete JSON": _cut,
    "upgrade lightning-audit": _NEWER,
    "SHA-256": _replaced('"steps": 100', '"steps": 101'),
    "contradicts itself": lambda path: made_report(delta=1e-6).save(path),
    "No such file": Path.unlink,
    "a directory": _folder,
}


@pytest.mark.usefixtures("_no_step_summary")
@pytest.mark.parametrize(
    ("name", "told"),
    [*((name, "a directory") for name in FORMATS), *(("text", told) for told in UNREADABLE)],
)
def test_a_baseline_that_cannot_be_read_never_passes(cli, saved, name, told):
    old, new = saved("old"), saved("new")
    UNREADABLE[told](old)
    said = cli("check", new, "--baseline", old, "--format", name)
    assert said.code == 2
    assert told in said.out
    assert "INCONCLUSIVE" in said.out
    assert "Traceback" not in said.out


@pytest.fixture
def another(saved):
    """Paths of two reports with another delta."""
    changes = {"delta": 1e-6, "settings": {**made_report().settings, "delta": 1e-6}}
    return saved("old", "INCONCLUSIVE", claimed=None, spent=None, **changes), saved(
        "new", claimed=None
    )


def test_the_report_of_another_training_is_no_baseline(cli, another):
    old, new = another
    said = cli("check", new, "--baseline", old)
    assert said.code == 2
    told = f"INCONCLUSIVE: --baseline {old} is the report of another training"
    assert said.lines[0] == f"{told}: its delta: 1e-06, here 1e-05"


def test_a_violation_stays_one_if_its_baseline_is_unreadable(tmp_path, cli, saved):
    assert cli("check", saved("", "VIOLATION"), "--baseline", tmp_path / "absent").code == 1


def test_options_that_do_not_go_together_are_refused(cli, saved):
    one, other = saved("one"), saved("other")
    for options, told in (
        ((other, "--baseline", one), "--baseline is the report of one training, and 2 are given"),
        (("--max-regression", "1"), "add --baseline report.json"),
    ):
        said = cli("check", one, *options)
        assert said.code == 2
        assert told in said.err


# --- `lightning-audit check` of several reports, in every format.


def test_reports_and_folders_are_shown_together_and_each_once(tmp_path, cli, saved):
    first, runs = saved("runs/a/audit"), tmp_path / "runs"
    saved("runs/b/audit", "INCONCLUSIVE")
    said = cli("check", runs, saved("other", "VIOLATION"), first)
    assert said.code == 1
    shown = [row.split()[1 if row[0] == " " else 2] for row in said.lines[:-2]]
    assert shown == ["PASS", "INCONCLUSIVE", "VIOLATION"]
    assert cli("check", runs).code == 2


def test_a_folder_without_a_report_among_others_is_inconclusive(tmp_path, cli, saved):
    (tmp_path / "empty").mkdir()
    said = cli("check", saved("a"), tmp_path / "empty", tmp_path / "absent.json")
    assert said.code == 2
    assert len(said.lines) == 3 + 2
    assert "is a directory without a report.json" in said.err
    assert "absent.json" in said.err


@pytest.mark.usefixtures("_no_step_summary")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("outcome", EXIT_CODES)
def test_the_exit_code_is_the_same_in_every_format(cli, saved, name, outcome):
    path, other = saved("a", outcome), saved("b")
    assert cli("check", path, "--format", name).code == EXIT_CODES[outcome]
    one, again = (cli("check", path, other, f"--format={name}") for _ in range(2))
    assert one == again
    assert (one.code, one.err) == (EXIT_CODES[outcome], "")
    assert one.out


@pytest.mark.usefixtures("_no_step_summary")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("several", [False, True])
def test_what_cannot_be_read_never_passes_in_any_format(cli, saved, name, several):
    for told in ("not complete JSON", "upgrade lightning-audit"):
        path, others = saved("unreadable"), [saved("fine")] * several
        UNREADABLE[told](path)
        said = cli("check", path, *others, "--format", name)
        assert said.code == 2
        assert told in said.err
        assert told in said.out or (name == "text" and not several)


@pytest.mark.parametrize(
    ("limit", "above"), [("2", "epsilon spent 3"), ("1", "epsilon proved 1.5, spent 3")]
)
def test_the_first_line_says_why_a_budget_is_exceeded(cli, saved, limit, above):
    arguments = ("check", saved(), "--max-epsilon", limit)
    said, (report,) = cli(*arguments), cli(*arguments, "--format=json").json["reports"]
    told = f"VIOLATION of --max-epsilon {limit}: {above}"
    assert (said.code, said.lines[0], report["reasons"]) == (1, told, [told])
    assert (report["verdict"], report["outcome"]) == ("PASS", "VIOLATION")


@pytest.mark.parametrize("days", [0, 1, 40, -3])
def test_a_report_from_an_earlier_day_says_its_age(tmp_path, cli, days):
    then = datetime.now(UTC) - timedelta(days=days, hours=1)
    for created in (then.isoformat(), then.replace(tzinfo=None).isoformat(), "yesterday"):
        path = dataclasses.replace(made_report(), created=created).save(tmp_path / "report.json")
        said = re.findall(r"this report was written (.*) ago", cli("check", path).out)
        words = f"{days} day{'s' * (days > 1)}"
        assert said == ([words] if days > 0 and created == then.isoformat() else [])


def test_a_step_summary_that_cannot_be_written_ends_with_2(tmp_path, cli, saved, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    said = cli("check", saved("a"), "--format=github")
    assert said.code == 2
    assert "cannot write the step summary" in said.err


# --- What became worse.


UNKNOWN = ("INCONCLUSIVE", "epsilon_spent was 3 and is unknown now")
PROVED = ("VIOLATION", "epsilon_lower rose from 1.5 to 2")
INFINITE = float("inf")


@pytest.mark.parametrize(
    ("old", "new", "most", "expected"),
    [
        ({}, {}, 0.0, []),
        ({"spent": 4.0}, {}, 0.0, []),
        ({}, {"spent": 3.4}, 0.5, []),
        ({}, {"spent": 3.6}, 0.5, [("VIOLATION", "epsilon_spent rose from 3 to 3.6, by more")]),
        ({}, {"spent": 3.1}, 0.0, [("VIOLATION", "epsilon_spent rose from 3 to 3.1")]),
        ({}, {"proved": 2.0}, 0.0, [PROVED]),
        ({}, {"spent": INFINITE}, 9.0, [("VIOLATION", "epsilon_spent rose from 3 to inf")]),
        ({"spent": INFINITE}, {"spent": INFINITE}, 0.0, []),
        ({}, {"spent": None}, 9.0, [UNKNOWN]),
        ({"spent": None}, {}, 0.0, []),
        ({}, {"spent": None, "proved": 2.0}, 0.0, [UNKNOWN, PROVED]),
    ],
)
def test_a_rise_of_an_epsilon_above_the_limit_is_found(old, new, most, expected):
    found = regressions(made_report(**old), made_report(**new), most)
    assert [outcome for outcome, _ in found] == [outcome for outcome, _ in expected]
    for (_, text), (_, start) in zip(found, expected, strict=True):
        assert text.startswith(start)


def test_a_newly_failed_check_is_found_and_an_old_failure_is_not():
    once = dataclasses.replace(violated(), checks=made_report("VIOLATION").checks)
    for old, new, told in (
        (made_report(), violated(), ["newly failed: noise, and 1 that follows from it"]),
        (once, violated(), ["newly failed: noise.step"]),
        (violated(), violated(), []),
        (violated(), made_report(), []),
    ):
        assert [text for _, text in regressions(old, new, 0.0)] == told


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


REPLACED = {"claim": {"adjacency": "replace_one"}}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (made_report(), made_report(delta=1e-6), "its delta: 1e-05, here 1e-06"),
        (labeled("one"), labeled("two"), "its private optimizers: 1 (one), here 1 (two)"),
        (of_tensors("a", "b"), of_tensors("a", "c"), "its tensors: 2 (b), here 2 (c)"),
        (of_tensors("a"), of_tensors("a", "c", "d"), "its tensors: 1, here 3 (c, ...)"),
        (
            *(made_report(), made_report(settings=REPLACED)),
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
    alike = dataclasses.replace(many, delta=one.delta, optimizers=one.optimizers)
    told = "its data sets of many trainings: one training, here add_remove"
    assert another_training(one, alike) == told
    assert another_training(many, audited(n=60).to_report()) == ""


# --- `lightning-audit show` prints all of a report, and is no gate.


@pytest.mark.parametrize("outcome", EXIT_CODES)
def test_every_check_of_a_report_is_shown_and_the_exit_code_is_no_verdict(cli, saved, outcome):
    path = saved("a", outcome)
    said = cli("show", path)
    assert said.code == 0
    rows = {line.split()[0] for line in said.lines if line.strip()}
    assert {check.name for check in made_report(outcome).checks if not check.follows_from} <= rows
    assert said.lines[1].startswith(outcome)
    assert said.lines[-1] == f"Report: {path}"


def test_what_cannot_be_read_is_named_after_the_others_with_exit_code_2(tmp_path, cli, saved):
    path, cut = saved("a"), saved("cut")
    _cut(cut)
    (tmp_path / "empty").mkdir()
    said = cli("show", cut, tmp_path / "empty", path)
    assert said.code == 2
    assert f"Report: {path}" in said.out
    assert len([line for line in said.err.splitlines() if "lightning-audit: " in line]) == 2
    assert "without a report.json" in said.err
