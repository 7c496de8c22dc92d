"""README is short, and says what happens."""

import logging
import re
import subprocess
import sysconfig
import tomllib
import traceback
from pathlib import Path

import english
import pytest
from english import PLACES
from places import DOCS, REPOSITORY
from shown_code import README, blocks, example, formed, run, text_of
from stages import staged

import lightning_audit
from lightning_audit import AuditReport, PrivacyViolation
from lightning_audit._version import DOCUMENTATION

# Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
pytestmark = pytest.mark.filterwarnings("default")
TEXT = text_of(README)


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    torch.manual_seed(0)


@pytest.fixture
def digits():
    yield from example("digits")


def test_readme_has_at_most_one_hundred_eighty_lines():
    assert len(TEXT.splitlines()) <= 180


def test_readme_is_read_by_the_linter_of_english_which_finds_nothing(capsys):
    assert "README.md" in PLACES
    assert english.main([str(README)]) == 0, capsys.readouterr().out


def test_readme_has_these_blocks_and_each_is_run_or_compared_below():
    languages = re.findall(r"^```(\w+)\n", TEXT, flags=re.MULTILINE)
    assert languages == ["python", "python", "text", "console", "console", "console"]


def test_the_ten_lines_audit_a_training_and_the_gate_passes_it(digits, tmp_path, monkeypatch):
    _, code = blocks(README, "python")
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) <= 10
    monkeypatch.chdir(tmp_path)
    model = digits.Digits()
    run(code, {"model": model, "data": model.train_dataloader()})
    *_, command = blocks(README, "console")
    script, *arguments = command.split()
    assert script == "lightning-audit"
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / script, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout


def test_half_the_noise_ends_the_ten_lines_as_shown(digits, tmp_path, monkeypatch):
    _, code = blocks(README, "python")
    assert code.count("PrivacyAudit(claimed") == 1
    code = code.replace("PrivacyAudit(claimed", "PrivacyAudit(seed=1, claimed")
    monkeypatch.chdir(tmp_path)
    model = digits.Digits(digits.HalfNoise)
    with pytest.raises(PrivacyViolation) as failed:
        run(code, {"model": model, "data": model.train_dataloader()})
    raised = formed("".join(traceback.format_exception_only(failed.value)))
    for page in (README, DOCS / "reading-a-violation.md"):
        assert formed(blocks(page, "text")[0]) == raised
    assert failed.value.report.steps == 1


@pytest.fixture
def plain_loop():
    logger = logging.getLogger("lightning_audit")
    level = logger.level  # the example sets it
    yield from example("plain_loop")
    logger.setLevel(level)


def test_two_lines_audit_a_plain_loop(plain_loop, tmp_path, monkeypatch):
    code, _ = blocks(README, "python")
    assert len([line for line in code.splitlines() if "lightning_audit" in line]) == 2
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(plain_loop, "EPOCHS", 6)
    with monkeypatch.context() as patch:
        patch.setattr(plain_loop, "train", lambda *loop: seen.extend(loop))
        plain_loop.main(["--report-dir", "other"])
    names = dict(zip(("model", "optimizer", "loader"), seen, strict=True))
    code = code.replace("claimed_epsilon", "seed=1, claimed_epsilon")
    run(code, {**names, "train": plain_loop.train})
    assert AuditReport.load(tmp_path / "audit" / "report.json").verdict.outcome == "PASS"


@pytest.mark.parametrize(
    ("arguments", "code"), staged(quick=[(["--half-noise"], 1)], nightly=[([], 0)])
)
def test_the_example_of_a_plain_loop_ends_as_it_says(plain_loop, tmp_path, capsys, arguments, code):
    assert plain_loop.main([*arguments, "--report-dir", str(tmp_path)]) == code
    assert ("stopped after 1 steps" in capsys.readouterr().out) == bool(code)


def test_what_is_installed_is_there():
    clone, install = blocks(README, "console")[0].splitlines()
    assert install == 'pip install -c constraints.txt ".[all]"'
    assert (REPOSITORY / "constraints.txt").is_file()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "all" in project["optional-dependencies"]
    examples = project["optional-dependencies"]["examples"]
    assert [name.partition(">")[0] for name in examples] == ["lightning-audit[all]", "scikit-learn"]
    assert "`[examples]` is `[all]` with scikit-learn" in TEXT
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in TEXT
    assert clone == f"git clone {project['urls']['Repository']} && cd lightning-audit"
    assert project["urls"]["Documentation"] == DOCUMENTATION
    version = lightning_audit.__version__
    assert f"version: {version}\n" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    (day,) = re.findall(rf"^## {re.escape(version)} - (.+)$", changes, flags=re.MULTILINE)
    assert f"date-released: {day}\n" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")


def test_nothing_is_installed_by_a_name_that_is_not_ours():
    """Who takes the name at a registry would run code at the reader's."""
    pages = (p for p in REPOSITORY.rglob("*") if p.suffix in {".md", ".yml", ".yaml", ".py"})
    by_name = re.compile(r"pip install\s+[\"']?lightning.audit")
    named = [p for p in pages if ".environments" not in p.parts and ".venv" not in p.parts]
    named.remove(Path(__file__))
    assert not [p for p in named if by_name.search(p.read_text(encoding="utf-8"))]


def test_the_two_commands_are_targets_of_the_makefile():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    _, shown, _ = blocks(README, "console")
    commands = [line.split("#")[0].strip() for line in shown.splitlines()]
    assert commands == ["make demo", "make test"]
    for command in commands:
        assert re.search(rf"^{command.split()[1]}:", makefile, flags=re.MULTILINE)
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")


def test_every_page_of_the_docs_for_readers_is_reached_from_the_readme():
    reached, new = set(), {README}
    while new:
        reached |= new
        links = {
            (page.parent / link.partition("#")[0]).resolve()
            for page in new
            for link in re.findall(r"\]\(([^)\s:]+)\)", text_of(page))
        }
        new = {path for path in links if path.suffix == ".md" and path.is_file()} - reached
    of_developers = {DOCS / name for name in ("english.md", "mutants.md", "nightly.md")}
    assert set(DOCS.rglob("*.md")) - of_developers <= reached


def test_the_pictures_are_there():
    pictures = [
        page.parent / name
        for page in (README, DOCS / "reports.md")
        for name in re.findall(r"!\[.*?\]\((.*?)\)", text_of(page))
    ]
    assert len(pictures) == 3
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
