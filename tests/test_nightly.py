"""The page of the last whole run says what ran, and what failed."""

import importlib.util
import sys
from typing import Any

import pytest
from places import REPOSITORY
from stages import most_failures


@pytest.fixture
def nightly(monkeypatch):
    path = REPOSITORY / "benchmarks" / "nightly.py"
    spec = importlib.util.spec_from_file_location("nightly", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "nightly", module)
    spec.loader.exec_module(module)
    return module


def test_the_page_names_the_commit_and_every_part_and_what_failed(nightly):
    fine = nightly.Part("tests", True, "12 passed in 3.00s", 3.0)
    wrong = nightly.Part("benchmark `healthy`", False, "1 of 200 healthy trainings accused", 240.0)
    page = nightly.markdown([fine, fine], "abc", "2026-11-22")
    assert "Of 2026-11-22, commit abc: **all passed**." in page
    page = nightly.markdown([fine, wrong], "abc", "2026-11-22")
    assert "**1 part failed**" in page
    assert "| tests | passed | 12 passed in 3.00s | 0.1 | abc |" in page
    assert "| **failed** | 1 of 200 healthy trainings accused | 4.0 | abc |" in page
    assert "A small run" not in page


def test_a_part_that_runs_again_leaves_the_others_what_they_were(nightly, monkeypatch, tmp_path):
    runs = {"commit": "1111111aaa", "passed": False}

    def part(name: str) -> Any:
        return nightly.Part(name, runs["passed"], f"of {runs['commit']}", 60.0)

    monkeypatch.setattr(nightly, "LAST", tmp_path / "results" / "nightly.json")
    monkeypatch.setattr(nightly, "commit", lambda: runs["commit"])
    monkeypatch.setattr(nightly, "tests", lambda _: part("tests"))
    monkeypatch.setattr(nightly, "lowest", lambda _: part("lowest"))
    monkeypatch.setattr(nightly, "selftest", lambda _: part("selftest"))
    monkeypatch.setattr(nightly, "failures", lambda _: part("failures"))
    monkeypatch.setattr(nightly, "mutants", lambda _: part("mutants"))
    monkeypatch.setattr(nightly, "benchmark", lambda name, _: part(name))
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["nightly.py", "--page", str(page)])
    assert nightly.main() == 1
    runs |= {"commit": "2222222bbb", "passed": True}
    again = ["--only", "tests", "healthy"]
    monkeypatch.setattr(sys, "argv", ["nightly.py", "--page", str(page), *again])
    assert nightly.main() == 1  # the others failed, and still have
    rows = page.read_text()
    assert "| tests | passed | of 2222222bbb | 1.0 | 2222222 |" in rows
    assert "| healthy | passed | of 2222222bbb | 1.0 | 2222222 |" in rows
    assert "| selftest | **failed** | of 1111111aaa | 1.0 | 1111111 |" in rows
    assert rows.count("**failed**") == len(nightly.PARTS) - 2


def test_every_benchmark_of_the_whole_run_is_there_and_has_a_small_size(nightly):
    source = (REPOSITORY / "benchmarks" / "run.py").read_text(encoding="utf-8")
    for name in nightly.BENCHMARKS:
        assert (REPOSITORY / "benchmarks" / f"{name}.py").is_file()
        assert f'"{name}": {{' in source


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_fewer_runs_are_allowed_no_more_than_what_is_as_rare_as_in_the_whole(rate):
    assert most_failures(20_000, 0.05, 20_000) == 1092  # 1,000 and three times 30.8
    few = most_failures(1000, rate, 20_000)
    assert 3.0 <= (few - 1000 * rate) / (1000 * rate * (1 - rate)) ** 0.5 < 3.4


def test_a_benchmark_that_ends_without_results_does_not_show_those_of_before(
    nightly, monkeypatch, tmp_path
):
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    kept = results / "healthy.json"
    monkeypatch.setattr(nightly, "ROOT", tmp_path)

    def writes(_: Any) -> tuple[int, str, float]:
        kept.write_text('{"alarms": 0, "trainings": 300}')
        return 0, "", 1.0

    monkeypatch.setattr(nightly, "_run", writes)
    assert nightly.benchmark("healthy", small=False).passed
    # Lightning ends a training that is asked to end without an error.
    monkeypatch.setattr(nightly, "_run", lambda _: (0, "ended early", 1.0))
    ended = nightly.benchmark("healthy", small=False)
    assert (ended.passed, ended.said) == (False, "ended early")


def test_mutants_of_a_small_run_leave_the_page(nightly, monkeypatch):
    commands = []

    def run(command: Any) -> tuple[int, str, float]:
        commands.append(command)
        return 0, "a.py:1: 1\n7 of 12 mutants killed\n", 60.0

    monkeypatch.setattr(nightly, "_run", run)
    for small in (True, False):
        part = nightly.mutants(small)
        assert (part.passed, part.said) == (True, "7 of 12 mutants killed")
    assert [any("--page" in word for word in command) for command in commands] == [True, False]
