"""Pages of docs are those that their builders make of the registry and of results."""

import dataclasses
import inspect
import math
import re
from pathlib import Path

import build_site
import checks_page
import command_page
import disclosure_page
import faults_page
import numpy as np
import pytest
import readme_rows
import shares_table
import yaml
from literature import CHOICES, METHODS, SIGNIFICANCE, holds_from, looks, steps_needed
from places import DOCS, REPOSITORY
from readme_rows import PARTS, README, costs, shown, topics
from selftest_page import PAGE as SELFTEST_PAGE
from selftest_page import Compared
from selftest_page import markdown as markdown_of_selftest_page

from lightning_audit.checks.check import DECLARED, QUESTIONS, REGISTRY, Check, shares
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED, RecordHeader
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.stats.named_bounds import named_bound
from lightning_audit.stats.tradeoff import gaussian_epsilon
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import planned
from lightning_audit.testing.selftest_pool import Result


@pytest.mark.parametrize(
    ("page", "make", "part"),
    [
        (checks_page.PAGE, checks_page.markdown, str),
        (command_page.PAGE, command_page.markdown, str),
        (disclosure_page.PAGE, disclosure_page.markdown, str),
        (faults_page.PAGE, faults_page.markdown, str),
        (shares_table.PAGE, shares_table.table, shares_table.shown),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_a_page_is_made_of_the_registry(page, make, part):
    told = f"run `python docs/build/{Path(inspect.getfile(make)).name}`"
    assert part(page.read_text(encoding="utf-8")) == make(), told


def test_each_check_has_a_section_below_its_topic_with_its_name_as_the_anchor():
    _, *topics, conditions = checks_page.markdown().split("\n## ")
    assert conditions.startswith("Conditions\n")
    assert [topic.split(":")[0] for topic in topics] == list(QUESTIONS)
    for check in DECLARED.values():
        head = f'\n<a id="{check.name}"></a>\n\n### {check.title}\n'
        (topic,) = (topic for topic in topics if head in topic)
        section = topic.split(head)[1].split("\n### ")[0]
        assert topic.split(":")[0] == check.topic
        assert f"| [`{check.name}`](#{check.name}) | {check.title} |\n" in topic
        for text in (check.failed_title, check.meaning, check.look_at, "**For example:** "):
            assert text in section, (check.name, text)


def test_a_section_names_the_fault_whose_finding_its_check_is():
    page = checks_page.markdown()
    for fault, check in {"half_noise": "noise", "summed_loss": "loss_reduction"}.items():
        section = page.split(f'<a id="{check}"></a>')[1].split("\n### ")[1]
        assert f"[`{fault}`](faults.md#{fault}): {FAULTS[fault].wrong}" in section
    linked = set(re.findall(r"faults\.md#(\w+)", page))
    assert linked == set(re.findall(r'<a id="(\w+)">', faults_page.markdown())) & linked


def test_a_check_of_another_package_has_a_section_of_its_own(monkeypatch):
    monkeypatch.setitem(REGISTRY, "made.up", Check("made.up", meaning="It is odd."))
    *_, others, _ = checks_page.markdown().split("\n## ")
    assert others.startswith("Other packages\n")
    assert "| [`made.up`](#made.up) | made.up |\n" in others
    assert others.endswith("Finding `made.up`.\n\n**If it fails:** made.up. It is odd.\n")


def test_every_field_of_a_report_has_a_row():
    names = {field.name for field in dataclasses.fields(AuditReport)}
    named = {"record", "other_records", "complete", "schema_version"}  # names and constants
    assert [
        name for name in sorted(names - named) if f"`{name}`" not in disclosure_page.markdown()
    ] == []


HEADER = RecordHeader(("Dirac", "Spread"), ("weight",), (4,), 2)
DELTA = 1e-5


def record(steps: int, shift: float, noise: float = 1.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    entries = np.zeros(steps, dtype=HEADER.dtype)
    entries["canaries"] = INJECTED
    entries["noise_multiplier"] = 1.0
    entries["coins"] = rng.integers(0, 2, (steps, 2))
    entries["readings"] = shift * entries["coins"] + noise * rng.standard_normal((steps, 2))
    return entries


# ------------------------------------------------------------------ the search


def test_the_search_is_that_of_looking_at_everything_from_every_look_on():
    rng = np.random.default_rng(0)
    for steps in range(1, 120):
        holds = dict.fromkeys(range(1, steps + 1), False)
        holds |= {n: bool(rng.random() < 0.8) for n in holds}
        seen = list(looks(steps))
        brute = [n for n in seen if all(holds[later] for later in seen if later >= n)]
        assert holds_from(steps, holds.__getitem__) == (brute[0] if brute else None)


def test_the_last_step_is_looked_at_and_no_look_is_repeated():
    for steps in range(1, 400):
        seen = list(looks(steps))
        assert seen[-1] == steps
        assert seen == sorted(set(seen))


# ------------------------------------------------------------------ the bounds


def brute(entries: np.ndarray, method: str, choice: str) -> int | None:
    """Every look, with scores gathered one by one."""
    above = {}
    for n in looks(len(entries)):
        inside, outside = [], []
        for entry in entries[:n]:
            if entry["canaries"] != INJECTED:
                continue
            for coin, reading in zip(entry["coins"], entry["readings"], strict=True):
                if np.isfinite(reading):
                    (inside if coin else outside).append(reading)
        above[n] = False
        if inside and outside:
            bound = named_bound(method, inside, outside, DELTA, SIGNIFICANCE, CHOICES[choice])
            sigma = min(entry["noise_multiplier"] for entry in entries[:n])
            above[n] = bound.epsilon_lower > gaussian_epsilon(1.0 / sigma, DELTA)
    return next((n for n in above if all(above[later] for later in above if later >= n)), None)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.one_in(4)
def test_steps_are_those_of_a_loop_over_all_observations(method, choice):
    entries = record(60, shift=3.0, noise=0.5)
    entries["canaries"][::7] = NOT_PLANNED
    entries["canaries"][1::7] = DROPPED
    entries["readings"][5, 0] = np.nan
    entries["noise_multiplier"][30:] = 0.7
    assert steps_needed(HEADER, entries, DELTA)[method][choice] == brute(entries, method, choice)


def test_a_large_shift_is_seen_by_every_bound_on_mu_and_by_none_of_a_correct_mechanism():
    broken = steps_needed(HEADER, record(100, shift=10.0), DELTA)
    sound = steps_needed(HEADER, record(100, shift=1.0), DELTA)
    for method in ("fdp_cp", "fdp_pooled_cp", "fdp_bayes"):
        first = broken[method]["fixed"]
        assert first is not None
        assert first < 40
        assert sound[method]["fixed"] is None


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_readme_is_what_registry_and_docs_say(name):
    text = README.read_text(encoding="utf-8")
    assert shown(text, name) == PARTS[name](), "run `python docs/build/readme_rows.py`"


def test_the_topics_are_six_with_their_questions_and_titles_of_their_own_checks():
    _, _, *rows = topics().splitlines()
    assert len(rows) == len(QUESTIONS) == 6
    for row, (topic, question) in zip(rows, QUESTIONS.items(), strict=True):
        assert row.startswith(f"| {topic} | {question} | ")
        titles = row.split(" | ")[2].removesuffix(" |").split("; ")
        assert len(titles) >= 2
        assert set(titles) <= {c.failed_title for c in REGISTRY.values() if c.topic == topic}


def test_the_costs_are_the_first_columns_of_the_measured_table(tmp_path, monkeypatch):
    head = "| training | without an audit | audited | ratio | without examinations |"
    row = "| a net, 9 steps (needs `x`) | 10.0 s | 15.0 s | 1.52 | 1.10 |"
    (tmp_path / "benchmarks.md").write_text(f"{head}\n|---|---|---|---|---|\n{row}\n\nMore.\n")
    monkeypatch.setattr(readme_rows, "DOCS", tmp_path)
    assert costs().splitlines()[2:] == ["| a net, 9 steps | 10.0 s, 15.0 s | 1.52 |"]


# --- Pages that are made of the selftest are those that their builders make.

NEEDED = {"fdp_cp": {"fixed": 10, "maximum": 5}, "katz": {"fixed": None, "maximum": 7}}
FOUND = Compared(
    *("fault", "half_noise", "Opacus", "found", 20),
    **{"outcome": "VIOLATION", "finding": "noise", "named": True, "flagged_at": 3},
    needed=NEEDED,
)
HEALTHY = Compared("healthy", "healthy", "Opacus", "not accused", 100, needed=NEEDED)
CRASHED = Result("fault", "no_noise", "Opacus", "crashed", 20, error="ValueError: a pity")


def test_the_page_shows_every_result_and_what_is_wrong_in_each_fault():
    page = markdown_of_selftest_page([FOUND, CRASHED, HEALTHY], 1.0, 2)
    assert "| `half_noise` | Opacus | found: `noise`, step 3 of 20 |" in page
    assert "| healthy | Opacus | not accused, 100 steps |" in page
    row = "| `half_noise` | Opacus | `fdp_cp` 10 / 5, `katz` - / 7 |"
    assert row in page
    assert "`fdp_cp` 1 / 1, `fdp_pooled_cp` 0 / 0" in page
    assert "The bounds of the literature" not in markdown_of_selftest_page([CRASHED], 1.0, 2)


def test_the_docs_page_has_every_row_that_is_trained():
    page = SELFTEST_PAGE.read_text(encoding="utf-8")
    for row in planned():
        name = "healthy" if row.healthy else f"`{row.fault.name}`"
        assert f"\n| {name} | {row.configuration} |" in page, (
            "run `python docs/build/selftest_page.py`"
        )


def test_the_table_has_every_share_once():
    rows = [line.strip("| \n").split(" | ") for line in shares_table.table().splitlines()[2:]]
    named = [name for _, names in rows for name in names.split(", ")]
    assert sorted(named) == sorted(f"`{name}`" for name in (*shares(), *shares(warns=True)))
    told = math.fsum(float(share) * (names.count(",") + 1) for share, names in rows[:-1])
    assert told == pytest.approx(math.fsum(shares().values()), rel=1e-3)


# --- The site.


def test_each_page_is_in_the_sites_navigation():
    def pages(entries):
        for entry in entries:
            value = entry if isinstance(entry, str) else next(iter(entry.values()))
            yield from [value] if isinstance(value, str) else pages(value)

    config = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(pages(config["nav"])) == sorted(there | {"changelog.md", build_site.repository()})


def test_links_of_pages_lead_to_pages_and_others_to_the_repository():
    text = "[a](plan.md#now) [b](../examples/digits.py) [c](#here) [d](https://e.org/x)"
    assert build_site.with_links(text, "docs/gate.md") == text.replace(
        "../examples", f"{build_site.repository()}/blob/main/examples"
    )
    assert build_site.with_links("[a](docs/api/cli.md)", "CHANGELOG.md") == "[a](api/cli.md)"
    assert build_site.with_links("[a](../plan.md)", "docs/api/cli.md") == "[a](../plan.md)"
