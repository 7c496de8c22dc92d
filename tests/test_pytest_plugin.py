"""The pytest plugin on real tests, of real trainings and of reports made without one."""

import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest
from places import DOCS, EXAMPLES, REPOSITORY, SUPPORT
from shown_code import blocks, text_of

from lightning_audit.pytest_plugin import folder_name, section_lines, tally

pytestmark = pytest.mark.training

# --- A session of pytest within a test, with the plugin, whether it is installed or not.

PLUGIN = "lightning_audit.pytest_plugin"
_INSTALLED = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
#: Arguments by which pytest loads the plugin; of a checkout that is not installed, by its module.
WITH_PLUGIN = () if _INSTALLED else ("-p", PLUGIN)
#: What the tests of an inner session import: trainings, and reports without one.
HEADER = """
import pytest
from made_report import made_report
from training_support import PrivateModule, digits, mlp, trainer_for
from lightning_audit import PrivacyAudit, PrivacyViolation
from lightning_audit.testing.faulty import HalfNoise

def half():
    return PrivateModule(mlp(64), dataset=digits(), optimizer_class=HalfNoise)

def fit(audit, module, steps, path):
    trainer_for(path / "trainer", audit, max_steps=steps).fit(module)

def write(audit, outcome="PASS", name="", **changes):
    folder = audit.report_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    made_report(outcome, **changes).save(folder / "report.json")
"""


# --- The section of the summary has a line for each training, its reasons, and a tally.

PASS = {"outcome": "PASS", "details": ["epsilon 1"], "report": "a"}
FAIL = {"outcome": "VIOLATION", "details": ["\x1b[2Kforged", "report: b"], "report": "b"}


def test_each_training_has_its_lines_and_only_several_are_numbered():
    green, red = {"green": True}, {"red": True}
    assert list(section_lines({"t::one": [PASS], "t::two": [PASS, FAIL]})) == [
        ("t::one  PASS", green),
        ("  epsilon 1", {}),
        ("t::two (fit 1)  PASS", green),
        ("  epsilon 1", {}),
        ("t::two (fit 2)  VIOLATION", red),
        ("  \\x1b[2Kforged", {}),
        ("  report: b", {}),
    ]


def test_the_tally_counts_trainings_by_verdict():
    assert tally({"a": [PASS]}) == "1 audited training: 1 PASS"
    assert tally({"a": [PASS], "b": [PASS, FAIL]}) == "3 audited trainings: 2 PASS, 1 VIOLATION"


# --- Folders of tests are named after them.


@pytest.mark.parametrize(
    "nodeid",
    ["tests/test_a.py::TestB::test_c[1-a/b]", "x" * 4000, "..", "-", "é\ud800/../..", "con::[\\]"],
)
def test_the_folder_of_a_test_is_one_folder_that_any_file_system_takes(nodeid):
    name = folder_name(nodeid)
    assert len(name) <= 100
    assert name.isascii()
    assert not set(name) & set('/\\:*?"<>| []')
    assert name[0] not in ".~"


def test_folders_of_different_tests_differ_and_show_the_tests_name():
    names = [folder_name(f"test_a.py::test[{case}]") for case in ("a/b", "a:b", "a-b")]
    assert len(set(names)) == 3
    assert all(name.startswith("test_a.py-test-a-b-") for name in names)


# --- The pytest plugin on real tests, of real trainings and of reports made without one.

PAGE = DOCS / "pytest.md"


@pytest.fixture
def session(pytester):
    """Runs tests of this source in a session of their own."""
    # A session unloads what it loads, and torch cannot be loaded twice.
    importlib.import_module("training_support")

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_inner=HEADER + source)
        return pytester.runpytest_inprocess(*WITH_PLUGIN, "-Wignore", "--tb=short", *options)

    return run


def properties_in(junit: Path) -> dict[str, dict[str, str]]:
    """The properties of each test in a JUnit file, by its name."""
    return {
        case.get("name", ""): {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        for case in ElementTree.parse(junit).iter("testcase")
    }


def test_a_training_with_half_the_noise_fails_its_test_at_the_users_line(session):
    result = session("""
def test_half(privacy_audit, tmp_path):
    fit(privacy_audit, half(), 40, tmp_path)
    raise AssertionError("it trained on")
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*in test_half",
            "*fit(privacy_audit, half(), 40, tmp_path)",
            "E*PrivacyViolation: VIOLATION (mechanism): noise*: too little noise*",
            "E*Likely fault: noise scale too small*",
            "*= privacy audits =*",
            "test_inner.py::test_half  VIOLATION",
            "  Too little noise is added, 0.* times the stated (noise*)",
            "  report: *report.json",
            "1 audited training: 1 VIOLATION",
        ]
    )
    assert "trainer.py" not in result.stdout.str().partition("privacy audits")[0]


def test_every_fit_of_a_test_is_judged_also_by_a_copy_of_the_callback(session):
    result = session("""
import copy

@pytest.mark.privacy_audit(on_violation="warn", seed=1)
def test_two(privacy_audit, tmp_path):
    fit(privacy_audit, half(), 2, tmp_path)
    fit(copy.deepcopy(privacy_audit), PrivateModule(), 2, tmp_path)
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "fit 1 of 2: VIOLATION (mechanism): *",
            "test_inner.py::test_two (fit 1)  VIOLATION",
            "  report: *previous-1*report.json",
            "test_inner.py::test_two (fit 2)  INCONCLUSIVE",
            "2 audited trainings: 1 VIOLATION, 1 INCONCLUSIVE",
        ]
    )
    assert "hidden" not in result.stdout.str()


def test_a_planted_fault_passes_a_test_that_expects_it_and_nothing_else_does(session):
    result = session("""
pytestmark = pytest.mark.privacy_audit(expected="VIOLATION")

def test_planted(privacy_audit, tmp_path):
    fit(privacy_audit, half(), 40, tmp_path)

def test_correct(privacy_audit):
    write(privacy_audit)
""")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["expected='VIOLATION', and the audit says PASS"])


def test_a_test_that_audits_nothing_fails(session):
    result = session("""
def test_nothing(privacy_audit):
    pass

def test_tried(privacy_audit, tmp_path):
    trainer_for(tmp_path, privacy_audit, fast_dev_run=True).fit(PrivateModule())
""")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*no training was audited in this test*"] * 2)


@pytest.mark.parametrize(
    ("written", "options", "marker", "failed"),
    [
        ("'VIOLATION'", (), "", 1),
        ("'INCONCLUSIVE'", (), "", 0),
        ("'INCONCLUSIVE'", (), "on_inconclusive='raise'", 1),
        ("'INCONCLUSIVE'", ("--audit-on-inconclusive=raise",), "on_inconclusive='warn'", 0),
        ("'INCONCLUSIVE'", (), "expected='PASS'", 1),
        ("'PASS'", ("--audit-max-epsilon=2.5",), "", 1),
        ("'INCONCLUSIVE'", ("--audit-max-epsilon=2.5",), "", 1),
        ("'INCONCLUSIVE', spent=None, proved=None", ("--audit-max-epsilon=3",), "", 1),
    ],
)
def test_the_verdict_and_the_options_decide(session, written, options, marker, failed):
    source = f"""
@pytest.mark.privacy_audit({marker})
def test_it(privacy_audit):
    write(privacy_audit, {written})
"""
    result = session(source, *options)
    result.assert_outcomes(failed=failed, passed=1 - failed)
    if "spent" in written:
        result.stdout.fnmatch_lines(["INCONCLUSIVE: the report holds no epsilon to compare*"])


def test_an_edited_report_and_a_failure_of_the_users_own_fail_and_the_verdict_is_shown(session):
    result = session("""
def test_edited(privacy_audit):
    write(privacy_audit, "VIOLATION")
    path = privacy_audit.report_dir / "report.json"
    path.write_text(path.read_text().replace("VIOLATION", "PASS"))

def test_own(privacy_audit):
    write(privacy_audit, "VIOLATION")
    assert 1 == 2
""")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E*assert 1 == 2", "test_inner.py::test_own  VIOLATION"])
    wrong = session("", "--audit-max-epsilon=-1")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*'-1' must be a number > 0*"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("claimed_epslion=8.0", "*claimed_epslion*did you mean 'claimed_epsilon'?"),
        ("report_dir='here'", "*set pytest's --audit-report-dir."),
        ("expected='FAIL'", "*must be one of PASS, VIOLATION, INCONCLUSIVE."),
        ("claimed_epsilon=-1", "claimed_epsilon=-1 must be*"),
    ],
)
def test_a_wrong_argument_of_the_marker_is_named(session, marker, message):
    result = session(f"""
@pytest.mark.privacy_audit({marker})
def test_it(privacy_audit):
    write(privacy_audit)
""")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_the_closest_marker_wins_and_the_others_add_their_arguments(session):
    session("""
@pytest.mark.privacy_audit(claimed_epsilon=8.0, seed=3)
class TestOf:
    @pytest.mark.privacy_audit(claimed_epsilon=2.0)
    def test_it(self, privacy_audit):
        assert type(privacy_audit) is PrivacyAudit
        assert (privacy_audit.claimed_epsilon, privacy_audit.seed) == (2.0, 3)
        write(privacy_audit)
""").assert_outcomes(passed=1)


def test_each_test_keeps_its_reports_and_those_of_an_earlier_session_do_not_count(
    session, pytester
):
    source = """
@pytest.mark.parametrize("path", ["a/b", "a:b"])
def test_it(privacy_audit, path):
    write(privacy_audit, {outcome!r}, {name!r})
"""
    options = ("--audit-report-dir=kept", "--strict-markers")
    session(source.format(outcome="VIOLATION", name="previous-1"), *options).assert_outcomes(
        failed=2
    )
    again = session(source.format(outcome="PASS", name=""), *options)
    again.assert_outcomes(passed=2)
    again.stdout.fnmatch_lines(["2 audited trainings: 2 PASS"])
    assert len(list((pytester.path / "kept").glob("*/report.json"))) == 2


def test_summary_and_junit_have_the_numbers_of_each_fit(session, pytester):
    result = session(
        """
def test_two(privacy_audit):
    write(privacy_audit, "VIOLATION", "previous-1", created="1")
    write(privacy_audit, created="2")

def test_one(privacy_audit):
    write(privacy_audit)
""",
        "--junitxml=out.xml",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "test_inner.py::test_two (fit 1)  VIOLATION",
            "test_inner.py::test_one  PASS",
            "  epsilon proved >= 1.5, spent 3, claimed 8 at delta 1e-05",
            "3 audited trainings: 2 PASS, 1 VIOLATION",
        ]
    )
    properties = properties_in(pytester.path / "out.xml")
    one = {"verdict": "PASS", "epsilon_proved": "1.5", "epsilon_spent": "3", "report": ""}
    one |= {"claimed_epsilon": "8", "delta": "1e-05", "steps": "100"}
    found = properties["test_one"] | {"privacy_audit.report": ""}
    assert found == {f"privacy_audit.{name}": value for name, value in one.items()}
    two = properties["test_two"]
    assert two["privacy_audit.verdict"] == "VIOLATION"
    assert two["privacy_audit.finding"] == "noise"
    assert two["privacy_audit.2.verdict"] == "PASS"


def test_a_session_without_an_audit_loads_no_numpy_and_shows_no_section(pytester):
    pytester.makepyfile("""
import sys

def test_it():
    loaded = {"torch", "pytorch_lightning", "lightning", "opacus", "numpy", "scipy"}
    assert loaded & set(sys.modules) == set()
    assert "lightning_audit.pytest_plugin" in sys.modules
""")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *WITH_PLUGIN],
        cwd=pytester.path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "privacy audits" not in done.stdout


@pytest.mark.nightly
def test_workers_of_xdist_send_the_verdicts_of_their_trainings(pytester, monkeypatch):
    # The session and its workers are processes that find what this one has on its path.
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{SUPPORT}")
    pytester.makepyfile(
        test_inner=HEADER
        + """
pytestmark = pytest.mark.privacy_audit(examinations=0)

def test_correct(privacy_audit, tmp_path):
    fit(privacy_audit, PrivateModule(), 60, tmp_path)

def test_half(privacy_audit, tmp_path):
    fit(privacy_audit, half(), 60, tmp_path)
"""
    )
    result = pytester.runpytest_subprocess(*WITH_PLUGIN, "-Wignore", "-n2", "--junitxml=out.xml")
    result.assert_outcomes(passed=1, failed=1)
    found = properties_in(pytester.path / "out.xml")
    assert {name: of["privacy_audit.verdict"] for name, of in found.items()} == {
        "test_correct": "PASS",
        "test_half": "VIOLATION",
    }
    result.stdout.fnmatch_lines(["2 audited trainings: 1 PASS, 1 VIOLATION"])


def test_the_entry_point_is_the_plugin():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"lightning_audit": PLUGIN}


@pytest.mark.nightly
def test_the_page_of_docs_shows_a_test_that_passes_and_one_that_notices_a_fault(
    session, pytester, monkeypatch
):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    code = "from digits import Digits as Model, HalfNoise\n" + "\n".join(blocks(PAGE, "python"))
    pytester.makepyfile(code)
    pytester.runpytest_inprocess(*WITH_PLUGIN, "-Wignore").assert_outcomes(passed=2)


def test_the_page_of_docs_has_every_option():
    table = re.findall(r"^\| `(--audit-[a-z-]+)", text_of(PAGE), re.MULTILINE)
    source = (REPOSITORY / "lightning_audit/pytest_plugin.py").read_text(encoding="utf-8")
    assert table == re.findall(r'"(--audit-[a-z-]+)",\n', source)


def test_a_plain_loop_is_audited_by_the_fixture_privacy_attach(session):
    result = session("""
import plain_loops

pytestmark = pytest.mark.privacy_audit(claimed_epsilon=50.0, seed=1, examinations=0)

def test_correct(privacy_attach):
    training = plain_loops.made()
    with privacy_attach(*training.training) as audit:
        plain_loops.mnist_form(training)
    assert audit.config.claimed_epsilon == 50.0

def test_half(privacy_attach):
    training = plain_loops.made(HalfNoise)
    with privacy_attach(*training.training):
        plain_loops.mnist_form(training)

@pytest.mark.privacy_audit(model=3)
def test_wrong(privacy_attach):
    pass
""")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines_random(
        ["*privacy_audit(model=...) is unknown*", "*test_half  VIOLATION"]
    )
