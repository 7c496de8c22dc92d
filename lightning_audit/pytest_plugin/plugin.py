"""Hooks and fixture that pytest loads by the entry point ``pytest11``.

pytest imports this module in every session in which the package is installed: it loads neither
torch nor Lightning, and no numpy.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from lightning_audit.cli.options import positive
from lightning_audit.pytest_plugin.audit_section import SECTION, section_lines, tally
from lightning_audit.pytest_plugin.audited_test import MARKER, AuditedTest

if TYPE_CHECKING:
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit

_AUDITED = pytest.StashKey[AuditedTest]()
#: Attribute of a test's report: results of its audits, which pytest-xdist sends to the controller.
_RESULTS = "privacy_audits"
_MARKER_HELP = (
    f"{MARKER}(expected=None, **arguments): arguments of the PrivacyAudit that the fixture "
    "`privacy_audit` makes, such as claimed_epsilon=8.0; expected='VIOLATION' fails the test "
    "unless each training in it ends with this verdict"
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
    folder = request.config.getoption("--audit-report-dir")
    tmp_path = None if folder else request.getfixturevalue("tmp_path")
    wrong = ""
    try:
        test = AuditedTest(request.node, tmp_path)
        callback = test.callback()
    except ValueError as error:  # of the marker's arguments
        wrong = str(error)
    if wrong:
        pytest.fail(wrong, pytrace=False)
    request.node.stash[_AUDITED] = test
    return callback


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
