"""What the pages on public code and on Opacus reconstruct is found, in the words that they show."""

import runpy
from pathlib import Path

import pytest
from places import DOCS
from shown_code import blocks_in, formed, sections

from lightning_audit import AuditReport, PrivacyViolation
from lightning_audit.checks.opacus import OPACUS as OPACUS_CHECK
from lightning_audit.checks.opacus import opacus_result
from lightning_audit.report.text import warnings_of

# Examinations are whole: most of the faults are found by one.
pytestmark = [
    pytest.mark.training,
    pytest.mark.whole_report,
    pytest.mark.filterwarnings("ignore:GDP accounting is experimental"),
]

SECTIONS = sections(DOCS / "public-code.md")
OPACUS = sections(DOCS / "opacus.md")
#: The lines that every reconstruction begins with.
(SETUP,) = blocks_in(SECTIONS["The setup"], "python")
FAULTS = {
    name: text
    for name, text in {**SECTIONS, **OPACUS}.items()
    if "attach(" in "".join(blocks_in(text, "python")) and name != "The setup"
}


def trained(code: str, folder: Path, monkeypatch) -> tuple[AuditReport, list[str]]:
    """The report of a script, and what its audit says."""
    monkeypatch.chdir(folder)
    script = folder / "train.py"
    script.write_text(code, encoding="utf-8")
    try:
        report = runpy.run_path(str(script))["audit"].report
    except PrivacyViolation as error:
        return error.report, [str(error)]
    warned = [whole for _, whole in warnings_of(report)]
    said = {"Missing": report.verdict.pass_blockers, "Warning": warned, "Note": report.notes}
    lines = [f"{label} {one}" for label, every in said.items() for one in every]
    return report, [f"{report.verdict.outcome} {line}" for line in lines]


@pytest.mark.parametrize("name", FAULTS)
def test_a_reconstruction_is_found_in_the_words_of_its_page(name, tmp_path, monkeypatch):
    code, (shown,) = blocks_in(FAULTS[name], "python"), blocks_in(FAULTS[name], "text")
    report, said = trained("\n\n".join([SETUP, *code]), tmp_path, monkeypatch)
    words = " ".join(formed(shown))
    assert any(" ".join(formed(one)).startswith(words) for one in said), said
    if report.verdict.outcome == "VIOLATION":
        assert report.verdict.root.finding == shown.split()[2].rstrip(":")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Processes draw the same positions", {"alike": 2}),
        ("Processes leave empty batches out", {"empty": "left_out", "chance": 0.07}),
    ],
)
def test_what_several_processes_do_is_said_in_the_words_of_the_page(name, found):
    (shown,) = blocks_in(OPACUS[name], "text")
    result = opacus_result(delta=1e-5, **found)
    said = OPACUS_CHECK.blocks(result) or result.message
    assert " ".join(formed(said)).startswith(" ".join(formed(shown.split("opacus_defects: ")[1])))


def test_the_setup_of_the_reconstructions_is_not_accused(tmp_path, monkeypatch):
    (code,) = blocks_in(SECTIONS["Delta of batches"], "python")
    report, said = trained(SETUP + code.replace("1 / len(loader)", "1e-5"), tmp_path, monkeypatch)
    assert not [c.name for c in report.checks if c.status in ("violated", "warned")], said
