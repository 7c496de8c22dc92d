"""What the pages of docs/estimators and of recipes show runs, and their figures can be made."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import DOCS
from shown_code import README, blocks, text_of
from stages import staged

from lightning_audit.cli.main import _parser

MORE = (
    "attacks challenge-points gan lightning many-trainings many-trainings-statistics own-checks "
    "plain-loops plan"
)
PAGES = [
    *sorted((DOCS / "estimators").glob("*.md")),
    *(DOCS / f"{name}.md" for name in MORE.split()),
]
#: Every page of the site.
ALL = sorted(DOCS.rglob("*.md"))
#: Scripts that draw a figure; one without a `main` is shared by them.
FIGURES = [
    path for path in sorted((DOCS / "figures").glob("*.py")) if "def main()" in path.read_text()
]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS.parent).as_posix()


# Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
pytestmark = pytest.mark.filterwarnings("default")


#: Pages whose code takes seconds.
SLOW = ("mcmc-dp-est", "black-box", "gan", "many-trainings", "plain-loops", "plan")


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
