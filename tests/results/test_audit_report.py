""""""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from many_trainings import audited
from report_edits import with_

from lightning_audit.results import audit_report
from lightning_audit.results.audit_report import (
    EXIT_CODES,
    SCHEMA_VERSION,
    AuditReport,
    CheckResult,
    EpsilonBound,
    InconclusiveAudit,
    LikelyFault,
    Place,
    PrivacyViolation,
    ReportError,
    Verdict,
    describe,
)

# ---

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


VIOLATION = Verdict(
    outcome="VIOLATION",
    kind="mechanism",
    summary="the noise is smaller than claimed",
    advice="look at add_noise",
    pass_blockers=(),
    faults=FAULTS,
)


# ---


def report(**changes: Any) -> AuditReport:
    fields: dict[str, Any] = {
        "verdict": VIOLATION,
        "checks": (
            CheckResult(
                name="noise.scale",
                kind="mechanism",
                status="violated",
                message='a "quoted" message, ä and \\ in it',
                advice="look",
                log_e_value=12.5,
                share=0.3,
                evidence={"ratio": 0.5, "tensors": ["a", "b"]},
            ),
            CheckResult(name="sampling", kind="accounting", status="not_run", message="no loader"),
        ),
        "bounds": (
            EpsilonBound(
                name="mu",
                epsilon_lower=1.5,
                delta=1e-5,
                mu_lower=0.25,
                significance=0.05,
                interpretation="confidence",
                threshold="fixed",
                looks="anytime",
                assumptions=("flat clipping",),
            ),
        ),
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


def edited(change: Callable[[dict[str, Any]], Any]) -> str:
    return with_(report().to_json(), change)


def test_what_is_read_is_what_was_written():
    assert AuditReport.from_json(report().to_json()) == report()


@pytest.mark.parametrize("version", [0, 1, SCHEMA_VERSION - 1, -3])
def test_an_older_layout_says_to_train_again(version):
    text = edited(lambda data: data.update(schema_version=version))
    with pytest.raises(ReportError, match=rf"schema_version={version}, .* run the training again"):
        AuditReport.from_json(text)


@pytest.mark.parametrize("version", [True, float(SCHEMA_VERSION), str(SCHEMA_VERSION), [4], None])
def test_a_layout_that_is_no_whole_number_is_no_report(version):
    with pytest.raises(ReportError, match="no audit report: it has no schema_version"):
        AuditReport.from_json(edited(lambda data: data.update(schema_version=version)))


def test_absent_numbers_come_back_as_none():
    bound = dataclasses.replace(report().bounds[0], epsilon_lower=None)
    empty = report(
        bounds=(bound,),
        claimed_epsilon=None,
        epsilon_spent=None,
        epsilon_not_excluded=None,
        record=None,
        checks=(),
        complete=False,
        verdict=Verdict("PASS", None, "fine", pass_blockers=("more steps", "a claim")),
    )
    assert AuditReport.from_json(empty.to_json()) == empty


def test_infinite_numbers_come_back_as_infinite():
    bound = dataclasses.replace(report().bounds[0], epsilon_lower=math.inf)
    check = dataclasses.replace(report().checks[0], log_e_value=-math.inf)
    endless = report(
        bounds=(bound,),
        checks=(check,),
        claimed_epsilon=math.inf,
        epsilon_spent=math.inf,
        epsilon_not_excluded=math.inf,
    )
    text = endless.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert AuditReport.from_json(text) == endless


@pytest.mark.parametrize(
    "changes",
    [
        {"bounds": (dataclasses.replace(report().bounds[0], mu_lower=math.inf),)},
        {"epochs": ({"audit/epsilon_spent": math.inf},)},
        {"power": {"noise": {"steps": math.inf}}},
    ],
    ids=["mu_lower", "epochs", "power"],
)
def test_infinite_numbers_come_back_as_numbers_everywhere(changes):
    assert AuditReport.from_json(report(**changes).to_json()) == report(**changes)


def test_numpy_scalars_are_written_as_plain_numbers():
    written = report(
        steps=np.int64(3), epsilon_spent=np.float64(2.5), settings={"a": np.bool_(True)}
    )
    read = AuditReport.from_json(written.to_json())
    assert (read.steps, read.epsilon_spent, read.settings) == (3, 2.5, {"a": True})


def test_nan_is_written_as_null_and_no_invalid_json():
    assert AuditReport.from_json(report(epsilon_spent=math.nan).to_json()).epsilon_spent is None


def test_a_value_that_json_cannot_hold_is_an_error_that_names_it():
    with pytest.raises(TypeError, match=r"object cannot be written to a report"):
        report(settings={"module": object()}).to_json()


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


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 50_000], ids=["huge number", "deep nesting"])
def test_json_that_python_refuses_to_decode_is_a_report_error(text):
    with pytest.raises(ReportError):
        AuditReport.from_json(text)


def test_a_newer_layout_says_to_upgrade():
    text = edited(lambda data: data.update(schema_version=SCHEMA_VERSION + 1, verdict="moved"))
    with pytest.raises(
        ReportError, match=rf"schema_version={SCHEMA_VERSION + 1}.* upgrade lightning-audit"
    ):
        AuditReport.from_json(text)


REQUIRED = [
    f.name
    for f in dataclasses.fields(AuditReport)
    if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_a_report_error_that_names_it(name):
    with pytest.raises(ReportError, match=rf"is missing or invalid.*{name}.*[Rr]un the training"):
        AuditReport.from_json(edited(lambda data: data.pop(name)))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["verdict"].update(outcome="FINE"),
        lambda data: data["verdict"].update(outcome=None),
        lambda data: data["verdict"].pop("summary"),
        lambda data: data.update(verdict=["PASS"]),
        lambda data: data.update(verdict=None),
        lambda data: data["verdict"].update(faults=3),
        lambda data: data["verdict"].update(faults=None),
        lambda data: data["verdict"].update(faults=["no noise"]),
        lambda data: data["verdict"].update(fault="another"),
        lambda data: data["verdict"]["faults"][0].pop("sentence"),
        lambda data: data["verdict"]["faults"][0].update(name=3),
        lambda data: data["verdict"]["faults"][0].update(look_at=None),
        lambda data: data["verdict"]["faults"][0].update(evidence=[1]),
        lambda data: data["verdict"]["faults"][0]["place"].update(step="first"),
        lambda data: data["verdict"]["faults"][0]["place"].update(process=1.5),
        lambda data: data["verdict"]["faults"][0]["place"].update(parameters=[1]),
        lambda data: data["verdict"]["faults"][0]["place"].update(parameters="a.bias"),
        lambda data: data.update(checks=3),
        lambda data: data["checks"][0].update(log_e_value="much"),
        lambda data: data["bounds"][0].pop("delta"),
        lambda data: data.update(bounds=[None]),
        lambda data: data.update(epsilon_spent="lots"),
        lambda data: data.update(epsilon_spent=[1]),
        lambda data: data.update(history=[[1.0, 0.1]]),
        lambda data: data.update(history=[["a", 0.1, 3]]),
    ],
)
def test_a_garbled_field_is_a_report_error(change):
    with pytest.raises(ReportError, match="is missing or invalid"):
        AuditReport.from_json(edited(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["checks"][0].update(status="unheard of"),
        lambda data: data.update(delta=None),
        lambda data: data.update(epsilon_spent="nan"),
    ],
    ids=["check status", "delta", "nan epsilon"],
)
def test_a_value_that_no_reader_can_use_is_a_report_error(change):
    with pytest.raises(ReportError):
        AuditReport.from_json(edited(change))


def test_a_saved_report_is_loaded_again(tmp_path):
    path = tmp_path / "report.json"
    assert report().save(path) == path
    assert AuditReport.load(path) == report()
    assert AuditReport.load(str(path)) == report()
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_the_part_that_a_crash_left_does_not_disturb(tmp_path):
    path = tmp_path / "report.json"
    (tmp_path / ".report.json.partial").write_text("x" * 100_000)
    report().save(path)
    assert AuditReport.load(path) == report()


def test_the_old_report_stays_readable_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    report(steps=1).save(path)
    seen = []
    replace = os.replace

    def watched(source: Any, target: Any) -> None:
        seen.append((AuditReport.load(path).steps, AuditReport.load(source).steps))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    report(steps=2).save(path)
    assert seen == [(1, 2)]
    assert AuditReport.load(path).steps == 2


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "report.json"
    report(steps=1).save(path)
    with pytest.raises(TypeError):
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


def test_epsilon_lower_is_the_largest_of_the_known_bounds():
    one = report().bounds[0]
    values = (0.5, None, 2.5, 1.0)
    bounds = tuple(dataclasses.replace(one, epsilon_lower=v) for v in values)
    assert report(bounds=bounds).epsilon_lower == 2.5
    assert report(bounds=bounds[1:2]).epsilon_lower is None
    assert report(bounds=()).epsilon_lower is None


@pytest.mark.parametrize("error", [PrivacyViolation, InconclusiveAudit])
def test_the_exceptions_carry_the_report_and_its_verdict_in_words(error):
    raised = error(report())
    assert raised.report == report()
    assert str(raised) == describe(VIOLATION)


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


def test_a_refusal_keeps_what_to_change_between_processes():
    again = pickle.loads(pickle.dumps(audit_report.UnauditableTraining("accumulate nothing")))
    assert str(again) == "accumulate nothing"


def test_who_handles_wrong_arguments_does_not_swallow_a_refusal():
    assert not issubclass(audit_report.UnauditableTraining, ValueError | TypeError | RuntimeError)


def test_counts_are_read_back_as_they_were_written():
    report = audited(n=50).to_report()
    seen = AuditReport.from_json(report.to_json()).trainings
    assert seen == report.trainings
    assert seen is not None
    assert json.loads(report.to_json())["trainings"] == dataclasses.asdict(seen)


def test_a_report_of_one_training_has_none():
    report = dataclasses.replace(audited(n=50).to_report(), trainings=None)
    assert AuditReport.from_json(report.to_json()).trainings is None


def test_the_first_fault_gives_the_verdict_its_sentence():
    assert VIOLATION.fault == FAULTS[0].sentence
    assert dataclasses.replace(VIOLATION, summary="longer").faults == FAULTS
    with pytest.raises(ValueError, match="fault='another' must be 'the noise is divided"):
        Verdict("VIOLATION", "mechanism", "", fault="another", faults=FAULTS)


def test_another_place_is_told_of_a_second_fault_and_the_same_one_is_not():
    second = dataclasses.replace(FAULTS[1], place=Place(("c.weight",), 3))
    told = describe(dataclasses.replace(VIOLATION, faults=(FAULTS[0], second)))
    assert "Also possible: no noise (`c.weight`, first seen in step 4)" in told
    same = dataclasses.replace(second, place=FAULTS[0].place)
    told = describe(dataclasses.replace(VIOLATION, faults=(FAULTS[0], same)))
    assert "Also possible: no noise\n" in told


def test_long_places_and_tables_are_cut_to_five():
    names = tuple(f"w{i}" for i in range(7))
    fault = LikelyFault("a", "b", "c", "", {"r": dict.fromkeys(names, 0.5)}, Place(names))
    told = describe(Verdict("VIOLATION", None, "s", faults=(fault,)))
    assert "  Where: `w0`, `w1`, `w2`, `w3`, `w4` and 2 more\n" in told
    assert told.endswith("  Evidence: r (w0 0.5, w1 0.5, w2 0.5, w3 0.5, w4 0.5, ...)")


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
        "Also possible: no noise",
        "Next: look at add_noise",
    ]
    unadvised = describe(dataclasses.replace(VIOLATION, advice="")).splitlines()
    assert unadvised[-2:] == ["  Look at: where the noise is added", "Also possible: no noise"]
    old = Verdict("VIOLATION", "mechanism", "too small", fault="no noise")
    assert describe(old).splitlines() == [
        "VIOLATION (mechanism): too small",
        "Likely fault: no noise",
    ]
    lacking = Verdict("INCONCLUSIVE", None, "too short", pass_blockers=("steps", "a claim"))
    assert describe(lacking).splitlines() == [
        "INCONCLUSIVE: too short",
        "Missing: steps",
        "Missing: a claim",
    ]


def test_what_follows_from_the_root_is_one_line_and_a_further_finding_another():
    root = dataclasses.replace(FAULTS[1], consequences=("noise.shape", "reuse.lag"))
    further = LikelyFault(
        "not_poisson", "wrong sampling", "sampling.not_poisson", "the loader", {}, Place(step=3)
    )
    again = dataclasses.replace(further, name="other", sentence="another loader")
    verdict = Verdict("VIOLATION", "mechanism", "s", faults=(root, further, again, FAULTS[0]))
    assert (verdict.root, verdict.further) == (root, (further,))
    assert describe(verdict).splitlines() == [
        "VIOLATION (mechanism): s",
        "Likely fault: no noise",
        "  Follows from it: noise.shape, reuse.lag",
        "Also possible: the noise is divided by the batch size "
        "(optimizer 2, `a.bias`, `b.bias`, process 1, first seen in step 13)",
        "Also: sampling.not_poisson: wrong sampling (first seen in step 4); look at: the loader",
    ]


def test_a_pass_has_no_root():
    verdict = Verdict("PASS", None, "s")
    assert (verdict.root, verdict.further) == (None, ())
