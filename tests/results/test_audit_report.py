"""A report is read as it was written, or refused in a sentence; its verdict is told in words."""

import dataclasses
import json
import math
import os
import pickle
from typing import Any

import mutated_files as files
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_report import made_report
from report_edits import Change, edits, with_

from lightning_audit.results import audit_report
from lightning_audit.results.audit_report import (
    EXIT_CODES,
    SCHEMA_VERSION,
    AuditReport,
    CheckResult,
    EpsilonBound,
    LikelyFault,
    Place,
    ReportError,
    Verdict,
    describe,
)

FAULTS = (
    LikelyFault(
        "noise_divided_by_batch",
        "the noise is divided by the batch size",
        "noise.scale",
        "where the noise is added",
        {"sd_ratio": 0.01625, "of": {"a": 0.5, "b": math.inf}, "canaries": ["Dirac(a)"]},
        Place(("a.bias", "b.bias"), 12, 1, "optimizer 2"),
    ),
    LikelyFault("no_noise", "no noise", "noise.scale"),
)
SUMMARY = "the noise is smaller than claimed"
VIOLATION = Verdict("VIOLATION", "mechanism", SUMMARY, advice="look at add_noise", faults=FAULTS)
BOUND = EpsilonBound(
    *("mu", 1.5, 1e-5, 0.25, 0.05, "confidence", "fixed", "anytime"), ("flat clipping",)
)
CHECK = CheckResult(
    *("noise.scale", "mechanism", "violated", 'a "quoted" message, ä and \\ in it', "look"),
    *(12.5, 0.3, {"ratio": 0.5, "tensors": ["a", "b"]}),
)
#: Epsilons that a report may lack, or have without an end.
EPSILONS = ("claimed_epsilon", "epsilon_spent", "epsilon_not_excluded")


def report(**changes: Any) -> AuditReport:
    fields: dict[str, Any] = {
        "verdict": VIOLATION,
        "checks": (CHECK, CheckResult("sampling", "accounting", "not_run", message="no loader")),
        "bounds": (BOUND,),
        "claimed_epsilon": 8.0,
        "epsilon_spent": 3.0,
        "epsilon_not_excluded": 4.0,
        "delta": 1e-5,
        "steps": 100,
        "observations": 800,
        "history": ((1.0, 0.01, 60), (1.5, None, 40)),
        "power": {"noise": {"power": 0.9, "steps": 50.0}},
        "epochs": ({"audit/steps": 50.0}, {"audit/steps": 100.0}),
        "settings": {"seed": 7, "allow": []},
        "environment": {"torch": "2.13"},
        "notes": ("a note",),
        "record": "observations.bin",
    }
    return AuditReport(**{**fields, **changes})


def edited(change: Change) -> str:
    return with_(report().to_json(), change)


def of_bound(**changes: Any) -> dict[str, Any]:
    return {"bounds": (dataclasses.replace(BOUND, **changes),)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            **dict.fromkeys((*EPSILONS, "record")),
            **of_bound(epsilon_lower=None),
            "checks": (),
            "complete": False,
            "verdict": Verdict("PASS", None, "fine", pass_blockers=("more steps", "a claim")),
        },
        {
            **dict.fromkeys(EPSILONS, math.inf),
            **of_bound(epsilon_lower=math.inf),
            "checks": (dataclasses.replace(CHECK, log_e_value=-math.inf),),
        },
        of_bound(mu_lower=math.inf),
        {"epochs": ({"audit/epsilon_spent": math.inf},)},
        {"power": {"noise": {"steps": math.inf}}},
    ],
    ids=["usual", "absent", "infinite", "mu_lower", "epochs", "power"],
)
def test_what_is_read_is_what_was_written(changes):
    text = report(**changes).to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert AuditReport.from_json(text) == report(**changes)


def test_a_notebook_shows_verdict_epsilons_and_findings_and_runs_nothing():
    verdict = dataclasses.replace(made_report("VIOLATION").verdict, summary="<script>")
    shown = dataclasses.replace(made_report("VIOLATION"), verdict=verdict)._repr_html_()
    assert "<th>VIOLATION</th><td>&lt;script&gt;</td>" in shown
    assert f"<th>claimed_epsilon</th><td>{made_report().claimed_epsilon:g}</td>" in shown
    assert "<th>noise</th>" in shown


def test_numpy_scalars_are_written_as_plain_numbers_and_nan_as_null():
    numbers = {"steps": np.int64(3), "epsilon_spent": np.float64(2.5), "claimed_mu": math.nan}
    read = AuditReport.from_json(report(**numbers, settings={"a": np.bool_(True)}).to_json())
    assert (read.steps, read.epsilon_spent, read.claimed_mu) == (3, 2.5, None)
    assert read.settings == {"a": True}


# --- What is no report.


@pytest.mark.parametrize(
    ("version", "told"),
    [
        *((v, f"schema_version={v}, .* run the training again") for v in (0, 1, 5, -3)),
        *((v, "no audit report: it has no schema_version") for v in (True, 6.0, "6", [4], None)),
        (SCHEMA_VERSION + 1, rf"schema_version={SCHEMA_VERSION + 1}.* upgrade lightning-audit"),
    ],
)
def test_another_layout_says_what_to_do(version, told):
    assert SCHEMA_VERSION == 6
    with pytest.raises(ReportError, match=told):
        AuditReport.from_json(edited({"schema_version": version, "verdict": "moved"}))


def test_a_report_cut_anywhere_is_a_report_error():
    text = report().to_json()
    for cut in range(len(text)):
        with pytest.raises(ReportError, match="not complete JSON"):
            AuditReport.from_json(text[:cut])


@pytest.mark.parametrize(
    "text", ["[]", "[1, 2]", "3", "1.5", "null", "true", '"text"', "{}", '{"schema_version": null}']
)
def test_json_that_is_no_report_says_which_file_to_name(text):
    with pytest.raises(ReportError, match=r"no audit report.*Name the report\.json"):
        AuditReport.from_json(text)


#: Those that a report has had from the start.
REQUIRED = [
    f.name
    for f in dataclasses.fields(AuditReport)
    if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
]
FAULT = "verdict/faults/0"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        *(({name: ...}, f"{name}.*[Rr]un the training") for name in REQUIRED),
        ({"verdict/outcome": "FINE"}, "verdict.outcome: Invalid enum value 'FINE'"),
        ({"verdict/summary": ...}, "verdict: Object missing required field `summary`"),
        ({"verdict": ["PASS"]}, "verdict: Expected `object`, got `array`"),
        ({"verdict/fault": "another"}, "fault='another' must be 'the noise is divided"),
        ({FAULT: "no noise"}, r"verdict.faults\[0\]: Expected `object`, got `str`"),
        ({f"{FAULT}/place/step": "first"}, r"place.step: Expected `int \| null`, got `str`"),
        ({f"{FAULT}/place/parameters": [1]}, r"place.parameters\[0\]: Expected `str`, got `int`"),
        ({"checks/0/log_e_value": "much"}, r"checks\[0\].log_e_value: Expected `float"),
        ({f"{FAULT}/evidence": [1]}, r"faults\[0\].evidence: Expected `object`, got `array`"),
        ({"bounds/0/delta": ...}, r"bounds\[0\]: Object missing required field `delta`"),
        ({"delta": None}, "delta: Expected `float`, got `null`"),
        ({"history": [[1.0, 0.1]]}, r"history\[0\]: Expected `array` of length 3, got 2"),
        ({"checks/0/status": "unheard of"}, "Invalid enum value 'unheard of'"),
        ({"epsilon_spent": "nan"}, "epsilon_spent"),
    ],
)
def test_a_missing_or_garbled_field_is_a_report_error_that_names_it(change, told):
    with pytest.raises(ReportError, match=rf"is missing or invalid.*{told}"):
        AuditReport.from_json(edited(change))


WRONG = files.objects(json.loads(report().to_json()), lambda at: {"evidence", "settings"} & {*at})


def read_unless_refused(text: str) -> AuditReport | None:
    """The report, or None where it is refused in a sentence."""
    try:
        return AuditReport.from_json(text)
    except ReportError as error:
        told = str(error)
    assert told.isprintable()
    return None


@settings(max_examples=150)
@given(WRONG)
@example(files.Mutant(b"9" * 5000, True))
@example(files.Mutant(b"[" * 50_000, True))
def test_what_is_wrong_in_a_file_is_refused_in_a_sentence(mutant):
    read = read_unless_refused(mutant.data.decode("utf-8", "replace"))
    assert read is None or not mutant.wrong


@settings(max_examples=150)
@given(st.sampled_from(list(edits(json.loads(report().to_json())))))
def test_a_report_after_any_edit_is_read_as_it_is_or_refused(edit):
    _, _, make = edit
    read = read_unless_refused(make())
    assert read is None or AuditReport.from_json(read.to_json()) == read


# --- Files.


def test_the_old_report_stays_readable_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = report(steps=1).save(tmp_path / "report.json")
    seen, replace = [], os.replace

    def watched(source: Any, target: Any) -> None:
        seen.append((AuditReport.load(path).steps, AuditReport.load(source).steps))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    report(steps=2).save(path)
    assert seen == [(1, 2)]
    assert AuditReport.load(path).steps == 2


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = report(steps=1).save(tmp_path / "report.json")
    with pytest.raises(TypeError, match=r"object cannot be written to a report"):
        report(settings={"module": object()}).save(path)
    assert AuditReport.load(path).steps == 1


@pytest.mark.parametrize("kind", ["absent", "directory", "not text"])
def test_a_file_that_cannot_be_read_is_a_report_error_that_names_it(tmp_path, kind):
    path = tmp_path / "report.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "not text":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReportError, match=r"cannot read '.*report\.json'"):
        AuditReport.load(path)


@pytest.mark.parametrize("there", [True, False], ids=["file", "nothing"])
@pytest.mark.parametrize("name", [".report.json.partial", "report.json"])
def test_a_report_is_written_through_no_link(tmp_path, name, there):
    folder, target = tmp_path / "folder", tmp_path / "target"
    folder.mkdir()
    if there:
        target.write_text("mine")
    (folder / name).symlink_to(target)
    report().save(folder / "report.json")
    assert target.exists() == there
    assert not there or target.read_text() == "mine"
    assert AuditReport.load(folder / "report.json") == report()
    assert not (folder / "report.json").is_symlink()


# --- What a report says.


def test_epsilon_lower_is_the_largest_of_the_known_bounds():
    bounds = tuple(dataclasses.replace(BOUND, epsilon_lower=v) for v in (0.5, None, 2.5, 1.0))
    assert report(bounds=bounds).epsilon_lower == 2.5
    assert report(bounds=bounds[1:2]).epsilon_lower is None
    assert report(bounds=()).epsilon_lower is None


@pytest.mark.parametrize("error", [audit_report.PrivacyViolation, audit_report.InconclusiveAudit])
def test_the_exceptions_carry_the_report_and_its_verdict_in_words(error):
    raised = error(report())
    text, more = str(raised).rsplit("\n", 1)
    assert (raised.report, text) == (report(), describe(VIOLATION))
    assert more == f"More: {audit_report.section_of('noise.scale')}"


def test_a_refusal_keeps_what_to_change_between_processes():
    again = pickle.loads(pickle.dumps(audit_report.UnauditableTraining("accumulate nothing")))
    assert str(again) == "accumulate nothing"
    assert not isinstance(again, ValueError | TypeError | RuntimeError)  # of wrong arguments


def test_long_places_and_tables_are_cut_to_five():
    names = tuple(f"w{i}" for i in range(7))
    fault = LikelyFault("a", "b", "c", "", {"r": dict.fromkeys(names, 0.5)}, Place(names))
    told = describe(Verdict("VIOLATION", None, "s", faults=(fault,)))
    assert "  Where: `w0`, `w1`, `w2`, `w3`, `w4` and 2 more\n" in told
    assert told.endswith("  Evidence: r (w0 0.5, w1 0.5, w2 0.5, w3 0.5, w4 0.5 and 2 more)")


def test_the_exit_codes_are_those_of_the_documented_gate():
    assert dict(EXIT_CODES) == {"PASS": 0, "VIOLATION": 1, "INCONCLUSIVE": 2}
    for outcome, code in EXIT_CODES.items():
        assert Verdict(outcome, None, "").exit_code == code


def test_a_verdict_is_described_in_all_its_parts():
    assert describe(VIOLATION).splitlines() == [
        "VIOLATION (mechanism): the noise is smaller than claimed",
        "Likely fault: the noise is divided by the batch size",
        "  Where: optimizer 2, `a.bias`, `b.bias`, process 1, first seen in step 13",
        "  Evidence: sd_ratio 0.0163, of (a 0.5, b inf), canaries Dirac(a)",
        "Or: no noise",
        "Next: look at add_noise",
    ]
    unadvised = describe(dataclasses.replace(VIOLATION, advice="")).splitlines()
    assert unadvised[-2:] == ["  Look at: where the noise is added", "Or: no noise"]
    old = describe(Verdict("VIOLATION", "mechanism", "too small", fault="no noise"))
    assert old == "VIOLATION (mechanism): too small\nLikely fault: no noise"
    lacking = Verdict("INCONCLUSIVE", None, "too short", pass_blockers=("steps", "a claim"))
    assert describe(lacking) == "INCONCLUSIVE: too short\nMissing: steps\nMissing: a claim"


def test_what_follows_from_the_root_is_one_line_and_a_further_finding_another():
    root = dataclasses.replace(FAULTS[1], consequences=("noise.shape", "reuse.lag"))
    further = LikelyFault(
        *("not_poisson", "wrong sampling", "sampling.not_poisson", "the loader", {}, Place(step=3))
    )
    again = dataclasses.replace(further, name="other", sentence="another loader")
    verdict = Verdict("VIOLATION", "mechanism", "s", faults=(root, further, again, FAULTS[0]))
    assert (verdict.root, verdict.further) == (root, (further,))
    assert describe(verdict).splitlines() == [
        "VIOLATION (mechanism): s",
        "Likely fault: no noise",
        "  Explains: noise.shape, reuse.lag",
        "Or: the noise is divided by the batch size "
        "(optimizer 2, `a.bias`, `b.bias`, process 1, first seen in step 13)",
        "Also: sampling.not_poisson: wrong sampling (first seen in step 4); look at: the loader",
    ]
