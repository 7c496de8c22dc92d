"""

A word is what stands between spaces: "Poisson-sampled" is one.
"""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from made_report import made_report
from noise_steps import HEADER
from places import REPOSITORY
from simulated_record import SIGNIFICANCE, monitor_of, simulate, violated
from simulated_record import check as named

from lightning_audit.checks.check import (
    DECLARED,
    GUESSED_COINS,
    QUESTIONS,
    REGISTRY,
    Case,
    Check,
    Fault,
    Statistic,
    Topic,
    _from_outside,
    entailed,
    evidence_in,
    group,
    headlines,
    in_order,
    log_weight,
    refuse_others,
    shares,
)
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import NOISE, NOISE_ENTRIES
from lightning_audit.config import findings
from lightning_audit.record.store import Observation, RecordHeader
from lightning_audit.results.audit_report import EXIT_CODES, CheckResult, Place
from lightning_audit.testing.faults import FAULTS
from lightning_audit.verdict.diagnosis import likely_faults

#: By which a check that is not listed gets .1 of the significance: w / (1000 + w) of nine tenths.
WEIGHT = 125.0

BY_E_VALUE = Check(
    "made.up",
    weight=WEIGHT,
    needs="no look was taken",
    fine="fine",
    message="wrong: {seen} by {much}",
    look_at="the noise",
)
BY_RULE = dataclasses.replace(
    BY_E_VALUE,
    weight=0.0,
    kind="accounting",
    wrong=lambda seen: seen["seen"],
    message=lambda seen: f"wrong: {seen['seen']} by {seen['much']}",
)
WRONG = ("wrong: 1 by 3", "the noise")


def result(check: Check, *log_e_values: float, lack: str = "") -> tuple[str, str, str]:
    """Status, message and advice after some looks."""
    test = check.test(1e-2)
    for step, log_e in enumerate(log_e_values):
        test.update(log_e, step)
    found = check.result(test, {"seen": 1}, lack, much=3)
    assert (found.name, found.share) == ("made.up", pytest.approx(0.1))
    assert found.log_e_value == max([0.0, *log_e_values])
    assert found.evidence == {"seen": 1, "violated_at_step": test.violated_at}
    return found.status, found.message, found.advice


def test_an_e_process_is_violated_at_its_share_of_the_significance():
    # The threshold is log(1 / (0.1 * 0.01)), 6.91.
    assert result(BY_E_VALUE, 3.0, 6.9) == ("ok", "fine", "")
    assert result(BY_E_VALUE, 7.0, -5.0) == ("violated", *WRONG)
    warns = dataclasses.replace(BY_E_VALUE, warns=True)
    assert result(warns, 6.9) == ("ok", "fine", "")
    assert result(warns, 7.0) == ("warned", *WRONG)


def test_what_was_not_looked_at_says_what_it_needs_or_what_is_known_to_lack():
    assert result(BY_E_VALUE) == ("not_run", "no look was taken", "")
    assert result(BY_E_VALUE, lack="it was dark") == ("not_run", "it was dark", "")
    assert result(BY_E_VALUE, 0.0, lack="it was dark") == ("ok", "fine", "")
    found = BY_RULE.not_run("there was nothing", {"m": 1})
    assert (found.status, found.message) == ("not_run", "there was nothing")
    assert found.evidence == {"m": 1}
    assert BY_RULE.not_run("there was nothing").evidence == {}


def test_a_rule_judges_evidence_and_says_what_to_look_at_if_something_is_wrong():
    for n, expected in ((0, ("ok", "fine", "")), (1, ("violated", *WRONG))):
        found = BY_RULE.judged({"seen": n}, much=3)
        assert (found.status, found.message, found.advice) == expected
        assert (found.kind, found.evidence) == ("accounting", {"seen": n})
    assert BY_RULE.judged({"seen": 0}, "all is fine").message == "all is fine"
    plain = Check("made.up", title="A made-up check", wrong=lambda _: True)
    assert plain.judged({}).message == "A made-up check"


def test_what_to_look_at_is_that_of_the_fault_which_the_evidence_shows():
    odd, even = Fault("odd", "", "it is odd", "odd numbers"), Fault("even", "", "it is even")
    faults = odd.rule(1, (), "of", "odd", "both"), even.rule(2)
    check = dataclasses.replace(BY_RULE, wrong=lambda _: True, message="wrong", faults=faults)
    for of, look_at in (("odd", odd.look_at), ("both", odd.look_at), ("even", check.look_at)):
        assert check.judged({"of": of}).advice == look_at
        case = Case({"noise": named("noise")}, None, 1000.0)
        fault = odd if look_at == odd.look_at else even
        looked = case.candidate(fault, "noise").fault.look_at
        assert looked == (fault.look_at or NOISE.look_at)


def test_evidence_without_its_number_and_a_check_without_a_rule_are_errors():
    with pytest.raises(KeyError, match="n"):
        BY_RULE.is_wrong({})
    with pytest.raises(KeyError, match=r"made\.up has an e-value"):
        BY_E_VALUE.is_wrong({"n": 1})


@pytest.mark.parametrize(
    ("check", "occurs"),
    [
        (Check("a", always=True), [(0, 0), (1, 1), (1, 1)]),
        (Check("a"), [(0, 0), (0, 1), (0, 1)]),
        (Check("a", each=True), [(0, 0), (0, 1), (0, 2)]),
        (Check("a", each=True, always=True), [(0, 0), (1, 1), (2, 2)]),
        (Check("a", always=True, optimizers=0), [(1, 1), (1, 1), (1, 1)]),
        (Check("a", always=True, optimizers=2), [(0, 0), (0, 0), (1, 1)]),
    ],
)
def test_a_check_occurs_by_its_optimizers(check, occurs):
    assert [check.occurs(optimizers) for optimizers in range(3)] == occurs


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"reads": "noise"}, "both `reads` and `statistic`"),
        ({"statistic": Statistic}, "both `reads` and `statistic`"),
        ({"reads": "steps", "statistic": Statistic, "each": False}, "each optimizer"),
        # Its findings before a resume would be lost, and reports would show un-noised numbers.
        ({"reads": "noise", "statistic": Statistic}, "must be declared `private`"),
        ({"reads": "readings", "statistic": Statistic}, "must be declared `private`"),
        # A checkpoint would hold it.
        ({"reads": "steps", "statistic": Statistic, "private": True}, "must not be declared"),
    ],
)
def test_a_statistic_that_cannot_run_or_leaks_fails(declared, why):
    with pytest.raises(ValueError, match=rf"'made\.up'.*{why}"):
        Check("made.up", **{"each": True, **declared})


# --- What checks and faults say to people: every one has its words, and they keep to one form.

CHECKS = [pytest.param(check, id=check.name) for check in REGISTRY.values()]
#: An end of a sentence before the last one.
END = re.compile(r"[.!?]\s")
#: Words with which a sentence begins, and a noun phrase does not.
VERBS = re.compile(r"(check|look|compare|set|state|make|write|train|leave|give|seed|draw|see) ")


def is_a_sentence(text: str) -> bool:
    """Whether a text is one sentence, which ends with its only period."""
    return text[:1].isupper() and text.endswith(".") and not END.search(text)


def is_a_phrase(text: str) -> bool:
    """Whether a text continues "look at", and ends without a period."""
    small = not text[:2].istitle() and not text.endswith(".") and not END.search(text)
    return bool(text) and small and not VERBS.match(text)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_has_all_words(check):
    for title in (check.title, check.failed_title):
        assert 3 <= len(title.split()) <= 5, title
        assert title[0].isupper()
        assert not title.endswith(".")
    assert is_a_sentence(check.meaning)
    assert len(check.meaning.split()) >= 5
    for look_at in (check.look_at, *(rule.fault.look_at for rule in check.faults)):
        assert look_at == "" or is_a_phrase(look_at), look_at
    assert len(check.look_at.split()) >= 5
    assert check.topic in QUESTIONS


def test_every_topic_has_a_question_and_checks():
    assert tuple(QUESTIONS) == get_args(Topic)
    assert {check.topic for check in REGISTRY.values()} == set(QUESTIONS)
    assert all(question.endswith("?") for question in QUESTIONS.values())


def test_the_heading_of_a_check_without_titles_is_its_name():
    check = Check("made.up")
    assert check.heading() == check.heading(failed=True) == "made.up"
    check = Check("made.up", title="A made-up check")
    assert check.heading() == check.heading(failed=True) == "A made-up check"
    check = REGISTRY["noise"]
    assert (check.heading(), check.heading(failed=True)) == (check.title, check.failed_title)


def test_a_fault_has_one_headline_and_one_sentence():
    known, sentences = headlines(), {}
    for one in REGISTRY.values():
        for fault in (rule.fault for rule in one.faults):
            assert known[fault.name] == (fault.headline or one.failed_title)
            assert sentences.setdefault(fault.name, fault.sentence) == fault.sentence


@pytest.mark.parametrize("name", ["noise_missing_in_tensors", "noise_repeated_in_step"])
def test_a_fault_of_several_checks_has_a_headline_and_no_check_that_names_it_alone(name):
    assert name in headlines()
    assert not any(rule.fault.name == name for one in REGISTRY.values() for rule in one.faults)


def test_headlines_are_short_and_unique():
    expected = {fault.likely for fault in FAULTS.values() if not fault.warn_only}
    known = headlines()
    assert expected
    assert expected <= set(known)
    titles = [t for check in REGISTRY.values() for t in (check.title, check.failed_title)]
    for texts in (known.values(), titles, [check.meaning for check in REGISTRY.values()]):
        assert len(set(texts)) == len(texts)
    for name, headline in known.items():
        assert headline[0].isupper(), name
        assert 3 <= len(headline.split()) <= 11, name
        assert not headline.endswith("."), name
        assert not re.search(r"\d", headline), name


# --- Input and output of the rules that name a fault: the case, and candidates.


SCALE = Fault("noise_scale", "", "too small", "add_noise")


def case_of(**evidence: object) -> Case:
    return Case({"noise": named("noise", **evidence)}, None, 1000.0)


def test_the_first_finding_is_that_of_the_question_and_not_of_the_record():
    case = Case({name: named(name) for name in ("noise", "sensitivity")}, None, 1000.0)
    assert case.first_of(("sensitivity", "noise")) == "sensitivity"
    assert case.first_of(("epsilon",)) is None


def test_a_candidate_is_where_its_finding_was_seen_and_has_its_numbers():
    case = case_of(ratio=0.5, violated_at_step=7, flagged=["a", "b"], process=1)
    fault = case.candidate(SCALE, "noise").fault
    assert (fault.place, fault.evidence) == (Place(("a", "b"), 7, 1), {"ratio": 0.5})
    fault = case_of(parameters="net.0.bias", step=0).candidate(SCALE, "noise").fault
    assert fault.place == Place(("net.0.bias",), 0, None)


def test_a_step_is_at_most_the_last_one_even_if_a_loader_draws_ahead():
    monitor = monitor_of(simulate(7))
    case = Case({"noise": named("noise", violated_at_step=7)}, monitor, 1000.0)
    assert case.candidate(SCALE, "noise").fault.place.step == 6


def test_a_rule_may_say_better_where_and_by_which_numbers():
    case = case_of(ratio=0.5, flagged=["a"])
    candidate = case.candidate(
        SCALE, "noise", "smaller", {"lag": 3}, ("c",), explains=("reuse.lag",)
    )
    assert (candidate.fault.name, candidate.fault.sentence) == ("noise_scale", "smaller")
    assert (candidate.fault.place.parameters, candidate.fault.evidence) == (("c",), {"lag": 3})
    assert candidate.explains == ("reuse.lag",)


def test_shared_e_value_reaches_the_threshold_exactly_when_a_check_flags():
    made, entries = simulate(60, noise=0.9)
    monitor, seen = AuditMonitor(made, SIGNIFICANCE), set()
    for entry in entries:
        monitor.update(Observation.of(entry))
        flagged = bool(violated(monitor))
        seen.add(flagged)
        assert (monitor.log_e_value >= -math.log(SIGNIFICANCE) - 1e-9) == flagged
    assert seen == {True, False}


def test_evidence_flags_at_one_over_its_share_and_keeps_the_first_step():
    evidence = NOISE.test(0.01)
    assert evidence.threshold == pytest.approx(-math.log(0.01 * NOISE.share))
    evidence.update(evidence.threshold - 1e-9, 1)
    assert not evidence.violated
    evidence.update(evidence.threshold, 2)
    evidence.update(-5.0, 3)
    evidence.update(99.0, 4)
    assert (evidence.violated_at, evidence.log_e) == (2, 99.0)


def test_segment_k_flags_at_one_over_k_times_k_plus_one_of_the_share():
    for k in (1, 2, 40):
        evidence = NOISE_ENTRIES.test(0.01)
        evidence.segment = k
        assert evidence.threshold == pytest.approx(
            math.log(k * (k + 1) / (0.01 * NOISE_ENTRIES.share))
        )
        evidence.update(evidence.threshold - 1e-9, 1)
        assert not evidence.violated
        evidence.update(evidence.threshold + 1e-9, 2)
        assert (evidence.violated, evidence.violated_at) == (True, 2)
    assert sum(math.exp(log_weight(k)) for k in range(1, 1000)) == pytest.approx(1.0 - 1.0 / 1000)
    # Only tests of private numbers restart.
    assert (NOISE.test(0.01).segment, NOISE_ENTRIES.test(0.01).segment) == (0, 1)


def test_a_checkpoint_with_other_checks_or_shares_is_refused():
    now = {"a": 0.1, "b": 0.2, "without": 0.0}
    refuse_others(now, dict(reversed(now.items())))
    for then in ({"a": 0.1, "without": 0.0}, {"a": 0.1, "b": 0.2}, {**now, "b": 0.3}):
        with pytest.raises(ValueError, match=r"had other checks.*(b|without).*resume with the pac"):
            refuse_others(now, then)


class Outside(Statistic):
    """A statistic of a package that adds a check; its parts refer to each other."""

    def begin(self, header: RecordHeader) -> None:
        self.whole = [self]


def test_tests_in_statistics_of_other_packages_are_found(monkeypatch):
    median = Check("a.median", each=True, reads="steps", statistic=Outside, weight=10)
    made = median.new_statistic(HEADER, 1e-3)
    assert list(evidence_in({"a.median": made})) == []  # of no package that adds a check
    monkeypatch.setitem(REGISTRY, median.name, median)
    assert list(evidence_in({"a.median": made})) == [made.test]


def test_a_record_lists_all_its_statistics(monkeypatch):
    before = AuditMonitor(HEADER, SIGNIFICANCE).shares
    assert before["noise.tensor"] == pytest.approx(shares()["noise.tensor"])
    plain = Check("a.count", each=True, reads="steps", statistic=Outside)
    monkeypatch.setitem(REGISTRY, plain.name, plain)
    assert AuditMonitor(HEADER, SIGNIFICANCE).shares == {**before, "a.count": 0.0}


MADE_UP = Check(
    "made.up",
    weight=3,
    group="noise",
    failed_title="It fails",
    wrong=lambda seen: seen["much"] > 1,
    faults=(Fault("made_up", "", "made up: nothing", "nowhere").rule(-20),),
)


def test_shares_of_the_significance_leave_a_tenth():
    for handed_out in (shares(), shares(warns=True)):
        assert math.fsum(handed_out.values()) == pytest.approx(0.9)
        assert min(handed_out.values()) > 0


def test_what_a_fault_entails_is_registered():
    rules = [(check.name, rule) for check in REGISTRY.values() for rule in check.faults]
    assert rules
    for name, rule in rules:
        assert set(entailed(rule)) <= set(REGISTRY), name


def test_no_two_checks_name_faults_of_one_rank():
    ranks = [check.faults[0].rank for check in REGISTRY.values() if check.faults]
    assert len(set(ranks)) == len(ranks)


def test_a_check_that_is_added_is_known_everywhere(monkeypatch):
    before = shares()
    monkeypatch.setitem(REGISTRY, MADE_UP.name, MADE_UP)
    found = MADE_UP.judged({"much": 2})
    assert "made.up" in findings()
    weights = math.fsum(check.weight for check in REGISTRY.values() if not check.warns)
    assert shares()["made.up"] == pytest.approx(0.9 * 3 / weights)
    assert before["noise"] * 0.99 < shares()["noise"] < before["noise"]
    assert group("noise")[-1] == "made.up"
    assert headlines()["made_up"] == "It fails"
    assert "made.up" in entailed(REGISTRY["gradient_replaced"].faults[0])
    other = CheckResult("noise", "mechanism", "ok", "fine")
    assert in_order([found, other]) == [other, found]
    (fault,) = likely_faults([found], None, 1.0)
    assert (fault.name, fault.finding) == ("made_up", "made.up")


def test_an_e_value_that_is_not_a_number_is_no_evidence():
    test = BY_E_VALUE.test(SIGNIFICANCE)
    test.update([math.nan, 0.5], [0, 1])
    assert BY_E_VALUE.result(test, {}).status == "ok"
    test.update(math.nan, 2)
    result = BY_E_VALUE.result(test, {})
    assert (result.status, result.message) == ("not_run", "its e-value is not a number")
    test.update([test.threshold + 1.0, math.nan], [3, 4])
    assert BY_E_VALUE.result(test, {"seen": 1, "much": 3}).status == "violated"


# --- Checks that a package adds by entry points: in report, `allow`, gate, docs and checkpoint.

#: The module of docs/own-checks.md, and a second check, whose statistic checkpoints hold.
PAGE = (REPOSITORY / "docs" / "own-checks.md").read_text(encoding="utf-8")
MODULE = PAGE.split("```python\n")[1].split("```")[0]
COUNTED = """

class Counted(Statistic):
    def begin(self, header):
        self.steps = 0

    def update(self, seen):
        self.steps += len(seen.step)

    def evidence(self):
        return {"steps": self.steps}


COUNTED = Check(
    "steps.counted",
    each=True,
    always=True,
    wrong=lambda seen: seen["steps"] < 1,
    fine="some steps have noise",
    reads="steps",
    statistic=Counted,
)
CHECKS = (MEDIAN, COUNTED)
"""

#: One process for all that is trained; a package with a check may import this one first.
TRAININGS = """
import noise_median
import sys

import pytorch_lightning as pl
from checks_page import markdown
from resume_support import StepwiseModule

from lightning_audit.cli.main import main
from lightning_audit.testing.faulty import NoiseWithAMean

folder = sys.argv[1]


def train(name, allow=(), fault=None, resume=None):
    directory = f"{folder}/{name}"
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[
            noise_median.PrivacyAudit(
                seed=1, report_dir=directory, examinations=0, allow=allow, on_violation="warn"
            ),
            pl.callbacks.ModelCheckpoint(directory, save_last=True, every_n_train_steps=8),
        ],
        enable_progress_bar=False,
        logger=False,
        max_epochs=-1,
        max_steps=16 if resume else 8,
    )
    weights_only = True if resume else None
    trainer.fit(StepwiseModule(optimizer_class=fault), ckpt_path=resume, weights_only=weights_only)


train("plain")
train("resumed", resume=f"{folder}/plain/last.ckpt")
train("shifted", ["noise.median"], NoiseWithAMean)
print(markdown())
print("exit code", main(["check", f"{folder}/plain/report.json"]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """An installed package with the checks, and the trainings."""
    site = tmp_path_factory.mktemp("site")
    callback = "from lightning_audit import PrivacyAudit\n"
    (site / "noise_median.py").write_text(callback + MODULE + COUNTED)
    project = tomllib.loads(PAGE.split("```toml\n")[1].split("```")[0])
    assert project["project"]["entry-points"] == {
        "lightning_audit.checks": {"median": "noise_median:CHECKS"}
    }
    installed(site, "noise-median", "median = noise_median:CHECKS")
    (site / "trainings.py").write_text(TRAININGS)
    return site


def installed(site: Path, name: str, entry_point: str) -> None:
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lightning_audit.checks]\n{entry_point}\n")


def run(paths: tuple[Path, ...], *arguments: str) -> tuple[int, str]:
    """Exit code and output of Python where these paths are installed."""
    ours = (REPOSITORY, REPOSITORY / "tests" / "support", REPOSITORY / "docs" / "build")
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, *ours)))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def gate(paths: tuple[Path, ...], directory: Path) -> tuple[int, str]:
    return run(paths, "-m", "lightning_audit.cli.main", "check", str(directory / "report.json"))


@pytest.fixture(scope="module")
def trained(site):
    """What was printed where the trainings were made."""
    code, output = run((site,), str(site / "trainings.py"), str(site))
    assert code == 0, output
    return output


def checks_of(directory: Path) -> dict[str, dict[str, Any]]:
    report = json.loads((directory / "report.json").read_text())
    return {check["name"]: check for check in report["checks"]}


def test_a_check_from_outside_is_in_report_docs_gate_and_state(site, trained):
    found = checks_of(site / "plain")
    assert (found["noise.median"]["status"], found["steps.counted"]["status"]) == ("ok", "ok")
    assert found["steps.counted"]["message"] == "some steps have noise"
    assert found["steps.counted"]["evidence"] == {"steps": 8}
    assert found["noise.median"]["share"] > 0
    assert "| [`noise.median`](#noise.median) | Median of the noise |" in trained
    # A training of a few steps is inconclusive; the gate reads and judges it.
    assert "\nINCONCLUSIVE: no check failed" in trained
    assert f"exit code {EXIT_CODES['INCONCLUSIVE']}" in trained
    # The gate of an environment without the package does not know what it should judge.
    code, output = gate((), site / "plain")
    assert code == 2
    assert "noise.median" in output
    assert checks_of(site / "resumed")["steps.counted"]["evidence"] == {"steps": 16}
    assert checks_of(site / "shifted")["noise.median"]["status"] == "allowed"


@pytest.mark.nightly
def test_a_check_that_cannot_be_loaded_is_named_before_a_training(tmp_path):
    installed(tmp_path, "broken", "broken = absent:CHECKS")
    script = "from lightning_audit import PrivacyAudit as A; print('here'); A()"
    _, output = run((tmp_path,), "-c", script)
    assert output.startswith("here")
    assert "ImportError: the check 'absent:CHECKS' cannot be loaded" in output
    assert "the entry point 'broken' of lightning_audit.checks" in output
    (tmp_path / "report.json").write_text(made_report().to_json())
    code, output = gate((tmp_path,), tmp_path)
    assert code == EXIT_CODES["INCONCLUSIVE"]
    assert output.startswith("lightning-audit: the check 'absent:CHECKS' cannot be loaded")


def test_a_check_that_can_find_nothing_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "blind", SimpleNamespace(CHECK=Check("a.blind")))
    points = [EntryPoint("blind", "blind:CHECK", "lightning_audit.checks")]
    monkeypatch.setattr("lightning_audit.checks.check.entry_points", lambda group: points)
    with pytest.raises(
        ValueError, match=r"'a\.blind' of 'blind:CHECK' can find nothing: .*`weight`"
    ):
        [*_from_outside()]


def test_checks_of_any_report_are_found_by_name():
    assert DECLARED[GUESSED_COINS.name] is GUESSED_COINS
    assert DECLARED["noise"] is REGISTRY["noise"]
    assert GUESSED_COINS.name not in REGISTRY
    with pytest.raises(KeyError):
        DECLARED["unheard.of"]
