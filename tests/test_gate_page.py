"""docs/gate.md has every option, and the outputs that it shows are those of the command."""

import dataclasses
import re
import shlex

import pytest
from made_report import made_report
from places import DOCS, REPOSITORY

from lightning_audit.cli import main
from lightning_audit.cli.check import FORMATS
from lightning_audit.cli.formats import SEVERITIES
from lightning_audit.results.audit_report import LikelyFault, Place
from lightning_audit.results.report_details import places_in

PAGE = (DOCS / "gate.md").read_text(encoding="utf-8")
BLOCKS = [
    (command.replace("\\\n", ""), shown)
    for command, shown in re.findall(
        r"```console\n([^`]*)\n```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL
    )
]


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """The trainings that the page shows."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)
    half = made_report("VIOLATION")
    fault = LikelyFault(
        "noise_too_small",
        "half the noise",
        "noise",
        "compare the standard deviation of the noise with noise_multiplier * max_grad_norm",
        place=Place(step=7, code=places_in("Half.add_noise at src/half.py:41")),
        seen="the noise is 0.49 to 0.51 times the stated",
    )
    verdict = dataclasses.replace(half.verdict, faults=(fault,), fault="")
    short = made_report("INCONCLUSIVE")
    told = ("0% power against 2x clipping, 95% needed",)
    seen = dataclasses.replace(short.optimizers[0], pass_blockers=told)
    reports = {
        "correct": made_report(),
        "half-noise": dataclasses.replace(half, verdict=verdict),
        "too-short": dataclasses.replace(
            short,
            verdict=dataclasses.replace(short.verdict, pass_blockers=told),
            optimizers=(seen,),
        ),
    }
    for name, report in reports.items():
        folder = tmp_path / "runs" / name / "audit"
        folder.mkdir(parents=True)
        report.save(folder / "report.json")


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_an_output_of_the_page_is_that_of_the_command(command, shown, capsys):
    command, _, first = command.partition(" | head -n ")
    main.main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    if "--format github" in command:  # the page breaks an annotation
        assert printed.out.split() == shown.split()
        return
    if "--format markdown" in command:  # its table; the findings follow
        first = str(lines.index("", 3))
    if first:
        lines = lines[: int(first)]
    assert "\n".join(line.rstrip() for line in lines) == shown.rstrip("\n")


def test_the_page_shows_outputs_and_has_every_option_format_and_severity(capsys):
    assert len(BLOCKS) >= 5
    with pytest.raises(SystemExit):
        main.main(["check", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert len(options) == 4
    assert {option for option in options if f"| `{option}" not in PAGE} == set()
    assert {name for name in FORMATS if f"`{name}`" not in PAGE} == set()
    assert all(f"| {name} | {meaning} |" in PAGE for name, meaning in SEVERITIES.items())


def test_the_files_that_the_page_links_to_exist():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert len(links) >= 3
    assert all((DOCS / link).resolve().exists() for link in links)
    assert "docs/gate.md" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
