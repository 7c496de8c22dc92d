"""Pages that real trainings write: of each outcome, and of claims of every kind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from opacus.optimizers import DPOptimizer
from parsed_page import ParsedPage, check_page
from training_support import PrivateModule, report_in, trainer_for
from two_nets import STEPS, TwoNets

from lightning_audit import PrivacyAudit, PrivacyClaim, PrivacyViolation
from lightning_audit.report.page import report_page
from lightning_audit.run.report_files import ReportFiles

pytestmark = pytest.mark.heavy

DELTA = 1e-5
#: As it is before `short_report` leaves it out.
_WRITE_PAGE = ReportFiles.write_page


@pytest.fixture(autouse=True)
def _pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the examinations of a whole report."""
    monkeypatch.setattr(ReportFiles, "write_page", _WRITE_PAGE)


class OwnHalf(DPOptimizer):
    """Half the noise, by code of the user's."""

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad = 0.5 * (p.grad + p.summed_grad.view_as(p))


def page_of(folder: Path, module: Any = None, *, steps: int = 64, **audit: Any) -> ParsedPage:
    """The parsed page of a training, which `lightning-audit report` would write again."""
    trainer = trainer_for(folder, PrivacyAudit(seed=1, **audit), max_steps=steps)
    with contextlib.suppress(PrivacyViolation):
        trainer.fit(module or PrivateModule())
    page = (folder / "audit" / "report.html").read_text(encoding="utf-8")
    assert page == report_page(report_in(folder), folder.name)
    assert len(page.encode()) < 100_000
    return check_page(page)


def test_a_correct_training(tmp_path: Path) -> None:
    text = page_of(tmp_path, claimed_epsilon=50.0).text
    assert f"PASS: {tmp_path.name} \N{EN DASH} privacy audit" in text
    assert "this training did what its claim of ε = 50 rests on." in text
    assert "PrivacyAudit( claimed_epsilon=50.0," in text


def test_half_the_noise_by_default_stops_and_leads_with_its_cause(tmp_path: Path) -> None:
    parsed = page_of(tmp_path, PrivateModule(optimizer_class=OwnHalf), claimed_epsilon=50.0)
    assert "This training is less private than it says: too little noise" in parsed.text
    assert "OwnHalf" in parsed.text
    assert "Some tensors lack noise" in parsed.text


def test_a_training_that_is_too_short_says_what_is_missing(tmp_path: Path) -> None:
    parsed = page_of(tmp_path, steps=2)
    assert "No verdict: no fault was found, but 2 steps did not show enough" in parsed.text
    assert "What a pass still needs" in parsed.text
    assert "square" not in " ".join(parsed.values("class"))  # no figure of 16 readings


def test_two_optimizers_have_a_line_each(tmp_path: Path) -> None:
    text = page_of(tmp_path, TwoNets(), steps=STEPS).text
    assert "Private optimizers2" in text
    for net in ("actor", "critic"):
        assert text.count(net) > 10


@pytest.mark.parametrize(
    ("claim", "module", "words"),
    [
        (
            PrivacyClaim(epsilon=50.0, delta=DELTA, adjacency="replace_one"),
            {},
            "whether one record is replaced by another",
        ),
        (
            PrivacyClaim(epsilon=500.0, delta=DELTA, sampling="shuffled"),
            {"poisson": False},
            "shuffled batches, each record in one step per epoch",
        ),
    ],
    ids=["replace one", "shuffled"],
)
def test_claims_of_other_kinds(
    tmp_path: Path, claim: PrivacyClaim, module: dict[str, Any], words: str
) -> None:
    text = page_of(tmp_path, PrivateModule(**module), claim=claim).text
    assert words in text
    assert "PrivacyClaim(epsilon=" in text


def test_a_violation_that_is_allowed_is_named_in_the_verdict(tmp_path: Path) -> None:
    text = page_of(tmp_path, PrivateModule(poisson=False), allow=["sampling.not_poisson"]).text
    assert "No further fault was found" in text
    assert "Allowed: sampling.not_poisson" in text
    assert "fails, allowed" in text
