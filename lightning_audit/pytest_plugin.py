"""The pytest plugin: fixture, marker, options, section of the summary.

**Hooks and fixture that pytest loads by the entry point ``pytest11``.** pytest imports this module
in every session in which the package is installed: it loads neither torch nor Lightning, and no
numpy.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_audit._validate import BadArgument, did_you_mean
from lightning_audit.cli.main import positive
from lightning_audit.files import visible

if TYPE_CHECKING:
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit
    from lightning_audit.cli.formats import Checked
    from lightning_audit.loops.audit import Audit

# --- The section of pytest's summary that shows the verdicts of audited tests.

SECTION = "privacy audits"
_MARKUP: Mapping[str, Mapping[str, bool]] = {
    "PASS": {"green": True},
    "VIOLATION": {"red": True},
    "INCONCLUSIVE": {"yellow": True},
}


def section_lines(
    found: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, Mapping[str, bool]]]:
    """Yield the lines, each with its markup: of each training its verdict, reasons and epsilons.

    Args:
        found: the results of `AuditedTest` by the test's node ID.
    """
    for test, results in found.items():
        for number, result in enumerate(results, start=1):
            which = f" (fit {number})" if len(results) > 1 else ""
            yield visible(f"{test}{which}  {result['outcome']}"), _MARKUP[result["outcome"]]
            for line in result["details"]:
                yield visible(f"  {line}"), {}


def tally(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the number of trainings by verdict, in a line."""
    counts = Counter(result["outcome"] for results in found.values() for result in results)
    total = counts.total()
    parts = [f"{counts[outcome]} {outcome}" for outcome in _MARKUP if counts[outcome]]
    return f"{total} audited training{'s' if total != 1 else ''}: {', '.join(parts)}"


# --- One test that audits trainings: its callback, its reports, and what they say of it.

#: The marker whose arguments are those of the callback, and its argument that is not.
MARKER, EXPECTED = "privacy_audit", "expected"
#: Characters of a folder's name; file systems allow 255 bytes.
_LONGEST = 80
_NONE_AUDITED = (
    "no training was audited in this test; pass the fixture to the Trainer: "
    "Trainer(callbacks=[privacy_audit]), or call privacy_attach(model, optimizer, loader). A "
    "fast_dev_run writes no report."
)


class AuditedTest:
    """A test that audits trainings.

    Args:
        item: the test.
        tmp_path: its temporary directory; None if ``--audit-report-dir`` is set.
        front: makes the audit, with the arguments of the markers.

    Raises:
        BadArgument: a marker has an argument that ``front`` does not have, or that the plugin sets.
    """

    def __init__(self, item: pytest.Item, tmp_path: Path | None, front: Callable[..., Any]) -> None:
        self._item, self._front = item, front
        kept = item.config.getoption("--audit-report-dir")
        started_in = item.config.invocation_params.dir
        own = "audit" if tmp_path else folder_name(item.nodeid)
        self.directory = Path(tmp_path or Path(started_in, kept), own)
        self._max_epsilon = item.config.getoption("--audit-max-epsilon")
        self._arguments = _arguments_of(item, front)
        self._expected = self._arguments.pop(EXPECTED, None)
        self._arguments.setdefault("on_violation", "stop" if self._expected else "raise")
        on_inconclusive = item.config.getoption("--audit-on-inconclusive")
        self._arguments.setdefault("on_inconclusive", "warn" if self._expected else on_inconclusive)
        self._arguments.setdefault("on_budget", "stop" if self._expected else "raise")
        self._earlier = {_identity(path) for path in self._reports()}
        #: Of each audited training, in their order: outcome, lines of text, path of the report.
        self.results: list[dict[str, Any]] = []

    def made(self, *training: Any, **more: Any) -> Any:
        """Return the audit, with the arguments of the markers."""
        return self._front(*training, report_dir=self.directory, **{**self._arguments, **more})

    def judge(self) -> str:
        """Read the reports of this test's trainings, and return why it fails; empty if it passes.

        Adds what was found to the test's properties, for ``--junitxml``.
        """
        found = self._checked()
        self.results = [self._result(one) for one in found]
        for number, one in enumerate(found, start=1):
            prefix = MARKER if number == 1 else f"{MARKER}.{number}"
            properties = _properties(one)
            self._item.user_properties += [(f"{prefix}.{k}", v) for k, v in properties.items()]
        if not found:
            return _NONE_AUDITED
        texts = [self._failure(one) for one in found]
        many = len(texts) > 1
        return "\n\n".join(
            f"fit {number} of {len(texts)}: {text}" if many else text
            for number, text in enumerate(texts, start=1)
            if text
        )

    def shorten(self, error: BaseException) -> None:
        """End the traceback of a verdict's error at the test, without the frames of Lightning."""
        from lightning_audit.results.audit_report import (
            ClaimUsedUp,
            InconclusiveAudit,
            PrivacyViolation,
        )

        if not isinstance(error, PrivacyViolation | ClaimUsedUp | InconclusiveAudit):
            return
        last, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(self._item.path):
                last = trace
            trace = trace.tb_next
        if last is not None:
            last.tb_next = None

    def _reports(self) -> Iterator[Path]:
        return self.directory.rglob("report.json")

    def _checked(self) -> list[Checked]:
        """Return what the gate says of each report of this test, the earliest first."""
        from lightning_audit.cli.check import checked

        new = [path for path in self._reports() if _identity(path) not in self._earlier]
        found = [
            checked(str(path), self._item.nodeid, str(path), self._max_epsilon) for path in new
        ]
        return sorted(found, key=lambda one: (one.report.created if one.report else "", one.path))

    def _failure(self, one: Checked) -> str:
        """Return why a training fails the test, with the text of its verdict."""
        from lightning_audit.results.audit_report import describe

        if one.report is not None and not self._fails(one):
            return ""
        lines = [remark.text for remark in one.remarks]
        if self._expected:
            lines.append(f"{EXPECTED}={self._expected!r}, and the audit says {one.outcome}")
        if one.report is not None:
            lines.append(describe(one.report.verdict))
        return "\n".join([*lines, f"Report: {_shown(one.path)}"])

    def _fails(self, one: Checked) -> bool:
        if self._expected:
            return bool(one.outcome != self._expected)
        if one.report and one.report.claim_ended_it and self._arguments["on_budget"] == "raise":
            return True
        if one.outcome == "INCONCLUSIVE":
            refused: bool = self._arguments["on_inconclusive"] == "raise"
            return refused or any(remark.rule == "max-epsilon" for remark in one.remarks)
        return one.outcome == "VIOLATION"

    def _result(self, one: Checked) -> dict[str, Any]:
        from lightning_audit.cli.formats import epsilons

        details = [] if one.outcome == "PASS" else [line.split("\n")[0] for line in one.reasons[:3]]
        if one.report is not None:
            details.append(f"{epsilons(one.report)} at delta {one.report.delta:g}")
        details += [] if one.outcome == "PASS" else [f"report: {_shown(one.path)}"]
        return {"outcome": one.outcome, "details": details, "report": one.path}


def folder_name(nodeid: str) -> str:
    """Return the name of a test's folder, different for each test.

    Args:
        nodeid: of the test; characters that a file system may refuse are replaced.
    """
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid).strip("-.")
    tag = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{plain[-_LONGEST:].lstrip('-.')}-{tag}"


#: Parameters of `attach` that are objects of the training.
_OF_TRAINING = {"model", "optimizer", "loader", "root", "step", "state"}


def _arguments_of(item: pytest.Item, front: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a test's markers; the marker closest to the test wins."""
    found: dict[str, Any] = {}
    for marker in item.iter_markers(MARKER):
        if marker.args:
            raise BadArgument(
                f"{MARKER}{marker.args!r}: the marker takes arguments by name, such as "
                f"{MARKER}(claimed_epsilon=8.0)."
            )
        found = {**marker.kwargs, **found}
    allowed = {*inspect.signature(front).parameters, EXPECTED} - {"report_dir", *_OF_TRAINING}
    if "report_dir" in found:
        raise BadArgument(
            f"{MARKER}(report_dir={found['report_dir']!r}): each test has its own directory; set "
            "pytest's --audit-report-dir."
        )
    for name in found:
        if name not in allowed:
            raise BadArgument(f"{MARKER}({name}=...) is unknown; {did_you_mean(name, allowed)}")
    if found.get(EXPECTED, "PASS") not in _MARKUP:
        raise BadArgument(
            f"{MARKER}({EXPECTED}={found[EXPECTED]!r}) must be one of {', '.join(_MARKUP)}."
        )
    return found


def _properties(one: Checked) -> dict[str, str]:
    """Return what the JUnit file states of a training."""
    known: dict[str, Any] = {"verdict": one.outcome, "report": _shown(one.path)}
    if report := one.report:
        known |= {
            "epsilon_proved": report.epsilon_lower,
            "epsilon_spent": report.epsilon_spent,
            "claimed_epsilon": report.claimed_epsilon,
            "delta": report.delta,
            "steps": report.steps,
        }
        if root := report.verdict.root:
            known["finding"] = root.finding
    return {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in known.items()
        if value is not None
    }


def _identity(path: Path) -> tuple[int, int]:
    """Return what a report keeps if a later training moves it aside."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _shown(path: str) -> str:
    """Return a path from the working directory if it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


# --- Hooks and fixture that pytest loads by the entry point ``pytest11``.

_AUDITED = pytest.StashKey[AuditedTest]()
#: Attribute of a test's report: results of its audits, which pytest-xdist sends to the controller.
_RESULTS = "privacy_audits"
_MARKER_HELP = (
    f"{MARKER}(expected=None, **arguments): arguments of the audit that the fixtures "
    "`privacy_audit` and `privacy_attach` make, such as claimed_epsilon=8.0; expected='VIOLATION' "
    "fails the test unless each training in it ends with this verdict"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("lightning-audit", "privacy audits of trainings (lightning-audit)")
    group.addoption(
        "--audit-report-dir",
        metavar="DIR",
        help="keep the reports of audited tests in DIR, a folder for each test (default: `audit` "
        "in the test's tmp_path)",
    )
    group.addoption(
        "--audit-max-epsilon",
        type=positive,
        metavar="X",
        help="fail audited tests also if the proved or the spent epsilon exceeds X",
    )
    group.addoption(
        "--audit-on-inconclusive",
        choices=("warn", "raise"),
        default="warn",
        help="`raise` fails audited tests if the verdict is INCONCLUSIVE (default: warn)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER_HELP)


@pytest.fixture
def privacy_audit(request: pytest.FixtureRequest) -> PrivacyAudit:
    """Return the `PrivacyAudit` callback of this test, for the Trainers of one fit or several.

    The marker ``privacy_audit`` has its arguments. The test fails if the verdict on a training is
    VIOLATION, or if no training was audited.
    """
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit

    return _or_fail(_audited(request, PrivacyAudit).made)  # type: ignore[no-any-return]


@pytest.fixture
def privacy_attach(request: pytest.FixtureRequest) -> Callable[..., Audit]:
    """Return `lightning_audit.attach` with this test's arguments, for plain PyTorch loops.

    Call it with model, optimizer and loader. The marker ``privacy_audit`` has its other arguments,
    and the test fails as with the fixture ``privacy_audit``.
    """
    from lightning_audit.loops.attaching import attach

    return _audited(request, attach).made


def _audited(request: pytest.FixtureRequest, front: Callable[..., Any]) -> AuditedTest:
    folder = request.config.getoption("--audit-report-dir")
    tmp_path = None if folder else request.getfixturevalue("tmp_path")
    test: AuditedTest = _or_fail(lambda: AuditedTest(request.node, tmp_path, front))
    request.node.stash[_AUDITED] = test
    return test


def _or_fail(make: Callable[[], Any]) -> Any:
    """Return what is made, or fail the test with the sentence about a marker's argument."""
    wrong = ""
    try:
        return make()
    except ValueError as error:
        wrong = str(error)
    pytest.fail(wrong, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that passed otherwise, with the verdict on its trainings."""
    test = item.stash.get(_AUDITED, None)
    try:
        result = yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        if test is not None:
            test.judge()
            test.shorten(error)
        raise
    if test is not None and (text := test.judge()):
        pytest.fail(text, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Add the results of the audits to the report of the test."""
    report = yield
    test = item.stash.get(_AUDITED, None)
    if test is not None and call.when == "call":
        setattr(report, _RESULTS, test.results)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the verdicts of all audited tests."""
    found: dict[str, list[dict[str, Any]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if results := getattr(report, _RESULTS, None):
                found[report.nodeid] = results  # of a test that ran again, the last
    if not found:
        return
    terminalreporter.section(SECTION)
    for line, markup in section_lines(found):
        terminalreporter.write_line(line, **markup)
    terminalreporter.write_line(tally(found))
