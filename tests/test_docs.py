"""What the pages of docs/estimators and of recipes show runs, and their figures can be made."""

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import DOCS
from shown_code import README, blocks, text_of
from stages import staged

from lightning_audit.checks.check import REGISTRY
from lightning_audit.cli.main import _parser

MORE = (
    "attacks challenge-points gan lightning many-trainings many-trainings-statistics own-checks "
    "plain-loops plan reading-a-violation"
)
PAGES = [
    *sorted((DOCS / "estimators").glob("*.md")),
    *(DOCS / f"{name}.md" for name in MORE.split()),
]
#: Every page of the site.
ALL = sorted(DOCS.rglob("*.md"))
#: Pages of numbers, whose tables the site scrolls.
NUMBERS = {
    *("benchmarks", "gpus", "many-trainings-statistics", "mutants", "nightly"),
    *("bayesian", "black-box", "epsilon-star", "mcmc-dp-est", "one-run", "scores"),
    *("tight-auditing", "bounds_on_trainings", "clipping_without_noise", "epsilon_star_sweep"),
    "subsampled_trainings",
}
#: Pages of developers, and those that lead on by themselves.
WITHOUT_NEXT = {
    *("english", "mutants", "nightly"),
    *("changelog", "checks", "index", "opacus", "public-code", "threat-model"),
}
#: Where an engineer does what an engineer does most.
TASKS = [
    *("plain-loops.md", "lightning.md", "gate.md", "reading-a-violation.md", "plan.md"),
    *("many-trainings.md", "estimators/scores.md", "resume.md", "own-checks.md"),
]
#: Scripts that draw a figure; one without a `main` is shared by them.
FIGURES = [
    path for path in sorted((DOCS / "figures").glob("*.py")) if "def main()" in path.read_text()
]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS.parent).as_posix()


# Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
pytestmark = pytest.mark.filterwarnings("default")


#: Pages whose code takes seconds.
SLOW = (
    *("mcmc-dp-est", "black-box", "gan", "many-trainings", "plain-loops", "plan"),
    "reading-a-violation",
)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.nightly] if page.stem in SLOW else [])
        for page in PAGES
    ],
    ids=lambda page: page.stem,
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = blocks(page, "python")
    assert code
    names: dict[str, object] = {"__name__": "page"}
    for block in code:
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", [README, *ALL], ids=name_of)
def test_the_commands_of_a_page_exist(page):
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    for line in lines:
        if line.startswith("lightning-audit "):
            _parser().parse_args(re.split("[#|]", line)[0].split()[1:])


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_code_is_read_on_a_narrow_screen(page):
    code = re.findall(r"^ *```(.*?)\n(.*?)^ *```$", text_of(page), re.MULTILINE | re.DOTALL)
    assert all(language for language, _ in code)
    # Outputs are as wide as a program prints them.
    assert [
        line
        for language, text in code
        for line in text.splitlines()
        if len(line) > (100 if language == "text" else 70)
    ] == []


def prose_of(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def test_a_table_of_words_has_three_columns_at_most_and_begins_a_paragraph():
    wide = {}
    for page in ALL:
        tables = re.findall(r"^(.*)\n\|.*\|\n\|([-:| ]+)\|$", prose_of(page), re.MULTILINE)
        assert not [before for before, _ in tables if before], page.name
        wide[page.stem] = any(rule.count("|") > 2 for _, rule in tables)
    assert {name for name, is_wide in wide.items() if is_wide} == NUMBERS


def links_of(page: Path) -> list[tuple[Path, str]]:
    """Files that a page links to, and the places in them."""
    links = re.findall(r"\]\(([^)\s:]+)\)", prose_of(page))
    parts = [link.partition("#") for link in links]
    return [((page.parent / name).resolve() if name else page, at) for name, _, at in parts]


def anchors_of(page: Path) -> set[str]:
    """As Python-Markdown makes them of headings, and those that the page states."""
    heads = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    plain = [re.sub(r"<[^>]*>|\]\(.*?\)|[^\w\s-]", "", head).strip().lower() for head in heads]
    stated = re.findall(r'<a id="([^"]+)">', text_of(page))
    return {re.sub(r"[-\s]+", "-", head) for head in plain} | set(stated)


@pytest.mark.parametrize("page", [README, *ALL], ids=name_of)
def test_every_link_leads_to_a_file_and_a_place_in_it(page):
    for path, at in links_of(page):
        assert path.exists(), path
        assert not at or at in anchors_of(path), f"{path.name}#{at}"


@pytest.mark.parametrize(
    "page",
    [page for page in ALL if page.stem not in WITHOUT_NEXT and page.parent.name != "api"],
    ids=name_of,
)
def test_a_page_says_for_whom_it_is_and_what_to_read_next(page):
    _, *paragraphs = re.sub(r"<!--.*?-->\n\n", "", text_of(page)).rstrip("\n").split("\n\n")
    assert paragraphs[0].startswith("For "), paragraphs[0]
    assert 1 <= paragraphs[-1].count("](") <= 4
    assert paragraphs[-1].startswith("Next: ")


@pytest.mark.parametrize("page", TASKS)
def test_a_task_of_an_engineer_is_three_clicks_from_the_first_page(page):
    target = DOCS / page
    assert re.search(r"^```(python|console)$", text_of(target), re.MULTILINE)
    seen = {DOCS / "index.md"}
    for _ in range(3):
        seen |= {path for one in seen for path, _ in links_of(one) if path in ALL}
    assert target in seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_images_of_a_page_are_there_and_small(page):
    images = re.findall(r"!\[.*?\]\((.*?)\)", text_of(page))
    assert images or page.parent == DOCS
    for name in images:
        content = (page.parent / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < 150_000
        assert any(Path(name).stem.startswith(script.stem) for script in FIGURES)


@pytest.mark.heavy_one_in(6)
@pytest.mark.parametrize("size", staged(heavy=["--quick"], nightly=["--whole"]))
@pytest.mark.parametrize("script", FIGURES, ids=lambda script: script.stem)
def test_a_figure_can_be_made(script, size, tmp_path):
    quick = [size] if size == "--quick" else []
    done = subprocess.run(
        [sys.executable, script, *quick, "--out", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {path.name for path in (DOCS / "images").glob(f"{script.stem}*.png")}


@pytest.mark.nightly
def test_the_training_of_several_processes_passes(tmp_path):
    (code,) = blocks(DOCS / "ddp.md", "python")
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "train.py"],
        cwd=tmp_path,
        # Lightning would seed all processes alike where `seed_everything` was called before.
        env={name: value for name, value in os.environ.items() if name != "PL_GLOBAL_SEED"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "PASS"


def test_the_checks_of_the_threat_model_are_there():
    table = text_of(DOCS / "threat-model.md").split("| checks |")[1].split("\n\n")[0]
    for row in table.splitlines()[2:]:
        for pattern in re.findall("`(.*?)`", row.split("|")[1]):
            assert fnmatch.filter(REGISTRY, pattern), pattern
