"""One Hypothesis profile for all tests, and trainings that report only what is looked at."""

import inspect
import math
import os
import signal
import sys
import zlib
from collections import Counter
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import costs
import pytest
from command_worker import Command
from ended import end_on_sigterm
from expected_warnings import EXPECTED_WARNINGS
from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("lightning_audit", derandomize=True, deadline=None)
settings.load_profile("lightning_audit")

_TESTS = Path(__file__).parent
#: Rooms whose tests train.
_TRAINING = ("callbacks", "loops", "run", "session", "replay")


def _trains(item: pytest.Item) -> bool:
    by_room = item.path.relative_to(_TESTS).parts[0] in _TRAINING
    return by_room or item.get_closest_marker("training") is not None


def _thin(items: list[pytest.Item], marker: str, later: str) -> None:
    """Leave one in so many cases where it is, and give the others to a later stage."""
    cases: Counter[str] = Counter()
    for item in items:
        given = item.get_closest_marker(marker)
        if given is None or item.get_closest_marker(later) or item.get_closest_marker("nightly"):
            continue
        test = item.nodeid.partition("[")[0]
        if cases[test] % given.args[0]:
            item.add_marker(later)
        cases[test] += 1


def _draw_statistics(items: list[pytest.Item]) -> None:
    """Leave four in five tests of stats/ to the nightly run where stats/ is unchanged."""
    if "LIGHTNING_AUDIT_COSTS" in os.environ or costs.statistics_changed(_TESTS.parent):
        return
    seed = costs.seed_of_statistics(_TESTS.parent)
    for item in items:
        if item.nodeid.startswith("tests/stats/") and zlib.crc32(item.nodeid.encode(), seed) % 5:
            item.add_marker("nightly")


def _without_browser(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests in a browser to the stage that asks for them."""
    if "browser" in config.option.markexpr:
        return
    left = [item for item in items if item.get_closest_marker("browser")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(autouse=True)
def _no_earlier_fits():
    """Trainings of other tests read the same records: a test begins without them."""
    if (earlier := sys.modules.get("lightning_audit.run.earlier_fits")) is not None:
        earlier.forget_fits()


def pytest_configure(config: pytest.Config) -> None:
    """Measure tests; `make costs` gives the file for it, and then no cost fails a test."""
    end_on_sigterm(hasattr(config, "workerinput"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    out = os.environ.get("LIGHTNING_AUDIT_COSTS")
    config.pluginmanager.register(costs.Meter(None if out else costs.read(), out))


def _to_its_stage(item: pytest.Item, known: dict[str, float]) -> None:
    """Mark a test by what it costs; what a source marks as nightly stays nightly."""
    nightly = item.get_closest_marker("nightly") is not None
    stage = "nightly" if nightly else costs.stage(item.nodeid, known.get(item.nodeid, 0.0))
    item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "heavy"]
    for name in {"quick": (), "heavy": ("heavy",), "nightly": ("heavy", "nightly")}[stage]:
        item.add_marker(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its stage, the quick ones first; expect the warnings of those that train.

    Of the cases of a test that is marked ``one_in(n)`` all but one in n are marked as heavy. Of
    cases that are marked as heavy one in n is run for each change, by ``heavy_one_in(n)`` and else
    one in three; the others are nightly. Of the tests of stats/ one in five is left where stats/ is
    unchanged. What is left is quick or heavy by tests/costs.json.
    """
    _without_browser(config, items)
    _thin(items, "one_in", "heavy")
    for item in items:
        if item.get_closest_marker("heavy") and not item.get_closest_marker("heavy_one_in"):
            item.add_marker(pytest.mark.heavy_one_in(3))
    _thin([item for item in items if item.get_closest_marker("heavy")], "heavy_one_in", "nightly")
    _draw_statistics(items)
    known = costs.read()
    for item in items:
        _to_its_stage(item, known)
        if _trains(item):
            for message in EXPECTED_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message}"))
    items.sort(key=lambda item: item.get_closest_marker("heavy") is not None)


@pytest.fixture(scope="session", autouse=True)
def _bounds_at_each_epoch():
    """Epochs of tests are too short for bounds at the end of each by time."""
    if find_spec("torch") is None:  # `make test-python TORCH=`
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_audit.run.audit_run.EPOCH_SHARE", math.inf)
        yield


@pytest.fixture(scope="session")
def _divergences_once():
    """Opacus computes the same Rényi divergences in every training, a third of a short one."""
    from opacus.accountants.analysis import rdp

    rdp._compute_log_a = lru_cache(maxsize=None)(rdp._compute_log_a)


@pytest.fixture
def all_numbers(monkeypatch):
    """Reports show every number of private checks, and the gate takes them."""
    monkeypatch.setattr("lightning_audit.run.evaluation.shown", lambda check, significance: check)


@pytest.fixture
def short_report(monkeypatch):
    """Audits with ``examinations=0`` by default, without a page, and as without matplotlib.

    These are the larger part of a short training.
    """
    monkeypatch.setattr("lightning_audit.run.outcome.find_spec", lambda name: None)
    page = "lightning_audit.run.report_files.ReportFiles.write_page"
    monkeypatch.setattr(page, lambda files, report: None)
    _change_defaults(monkeypatch, examinations=0)


@pytest.fixture
def one_examination(monkeypatch):
    """Audits with ``examinations=1`` and ``bounds="all"`` by default."""
    _change_defaults(monkeypatch, examinations=1, bounds="all")


def _change_defaults(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change defaults of arguments of `PrivacyAudit`."""
    from lightning_audit import PrivacyAudit

    init = inspect.unwrap(PrivacyAudit.__init__)
    known = inspect.signature(init).parameters.values()
    names = [one.name for one in known if one.default is not one.empty]
    defaults = dict(zip(names, init.__defaults__, strict=True))
    assert changes.keys() <= defaults.keys()
    monkeypatch.setattr(init, "__defaults__", tuple({**defaults, **changes}.values()))


@pytest.fixture(autouse=True)
def _training(request):
    """One thread, one seed, and a whole report only where it is looked at."""
    if not _trains(request.node):
        return
    import torch

    request.getfixturevalue("_divergences_once")
    # Later examinations come by the clock, so that no two reports would be the same.
    whole = request.node.get_closest_marker("whole_report") is not None
    request.getfixturevalue("one_examination" if whole else "short_report")
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def command():
    """The command in a process of its own, whose memory is measured."""
    made = Command()
    yield made
    made.stop()
