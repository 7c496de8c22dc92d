"""Noise that is correlated over steps by design: `PrivacyClaim(noise_coefficients=...)`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from report_edits import with_
from resume_support import (
    RESUMING,
    STEPS_PER_EPOCH,
    StepwiseModule,
    StopAt,
    checkpoint_at,
    saver,
    train,
)
from stages import staged
from training_support import (
    PrivateModule,
    digits,
    fit,
    mlp,
    report_in,
    status,
    trainer_for,
    violation,
)

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.callbacks._namespaces import MisconfigurationException
from lightning_audit.canaries import Mislabeled
from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faults import BY_HAND_CLAIM, FAULTS
from lightning_audit.testing.faulty import COEFFICIENTS, BandedDraws, BandedNoise, HalfBandedNoise
from lightning_audit.testing.runs import train as run_fault
from lightning_audit.testing.trainings import BandedByHand
from lightning_audit.verdict.gate import contradictions

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    RESUMING,
]
CLAIM = PrivacyClaim(noise_coefficients=COEFFICIENTS)


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


def module(kind: type = BandedNoise, **settings: Any) -> PrivateModule:
    return PrivateModule(mlp(64), dataset=digits(), optimizer_class=kind, **settings)


def audit(claim: PrivacyClaim | None = CLAIM, **arguments: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"claim": claim, "seed": 1, "examinations": 0, **arguments})


def assert_nothing_is_composed(report: AuditReport) -> None:
    assert (report.epsilon_spent, report.epsilon_lower, report.bounds) == (None, None, ())
    assert report.epsilon_not_excluded is None
    for name in ("epsilon", "accounting", "sampling.not_poisson", "sampling.rate"):
        (check,) = (check for check in report.checks if check.name == name)
        assert check.status == "not_run"
        assert "noise_coefficients" in check.message
    assert any("the mechanism alone was judged" in note for note in report.notes)
    assert all("epsilon_lower" not in row for row in report.epochs)


def test_right_banded_noise_passes_and_the_gate_takes_the_report(tmp_path: Path, capsys) -> None:
    report = fit(tmp_path, module(), audit(), max_steps=250)
    assert report.verdict.outcome == "PASS"
    assert "the mechanism alone was judged" in report.verdict.summary
    assert_nothing_is_composed(report)
    assert not [c.name for c in report.checks if c.status in ("violated", "warned", "undecided")]
    assert report.claimed_epsilon is None
    assert main(["check", str(tmp_path / "audit" / "report.json")]) == 0
    assert "the mechanism alone was judged" in capsys.readouterr().out


@pytest.mark.heavy
def test_a_claimed_epsilon_is_not_judged_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    claim = PrivacyClaim(noise_coefficients=COEFFICIENTS, epsilon=0.001, delta=1e-5)
    report = fit(tmp_path, module(), audit(claim, delta=1e-5), max_steps=250)
    assert (report.verdict.outcome, report.claimed_epsilon) == ("PASS", 0.001)
    assert_nothing_is_composed(report)


def test_half_of_the_banded_noise_is_too_small(tmp_path: Path) -> None:
    report = fit(tmp_path, module(HalfBandedNoise), audit(on_violation="warn"), max_steps=20)
    assert report.verdict.root.name == "noise_too_small"
    assert report.verdict.root.evidence["noise_ratio_upper"] == pytest.approx(0.52, abs=0.05)
    assert_nothing_is_composed(report)


@pytest.mark.parametrize(
    "claim", [None, PrivacyClaim(noise_coefficients=(1.0, -0.5))], ids=["none", "other"]
)
def test_noise_that_is_correlated_otherwise_than_claimed_is_named(
    tmp_path: Path, claim: PrivacyClaim | None
) -> None:
    report = violation(tmp_path, module(), audit(claim), max_steps=20)
    assert report.verdict.root.name == "noise_correlated_over_steps"


class TwiceTheDraws(BandedNoise):
    """Two times the draws: noise of half the multiplier that is claimed, and weights of twice."""

    coefficients = tuple(2.0 * c for c in COEFFICIENTS)


@pytest.mark.heavy
def test_the_first_coefficient_is_the_weight_of_a_steps_own_draw(tmp_path: Path) -> None:
    claim = PrivacyClaim(noise_coefficients=TwiceTheDraws.coefficients)
    report = fit(tmp_path / "right", module(TwiceTheDraws), audit(claim), max_steps=250)
    assert report.verdict.outcome == "PASS"
    assert report.history[0][0] == 2.0
    found = violation(tmp_path / "single", module(), audit(claim), max_steps=20)
    assert found.verdict.root.name == "noise_too_small"


class WholeSum(BandedNoise):
    """DP-FTRL without a tree: the noise of all steps together is one draw."""

    coefficients = (1.0, -1.0)


@pytest.mark.heavy
def test_noise_that_cancels_over_all_steps_is_judged(tmp_path: Path) -> None:
    claim = PrivacyClaim(noise_coefficients=WholeSum.coefficients)
    report = fit(tmp_path, module(WholeSum), audit(claim, on_inconclusive="warn"), max_steps=100)
    assert report.verdict.outcome != "VIOLATION"
    assert status(report, "noise") == status(report, "reuse.recurrence") == "ok"


class ClippedAtTwice(BandedNoise):
    """Clips to twice the norm that is stated; the noise is right."""

    def clip_and_accumulate(self) -> None:
        stated = self.max_grad_norm
        self.max_grad_norm = 3.0 * stated
        super().clip_and_accumulate()
        self.max_grad_norm = stated


@pytest.mark.heavy
def test_clipping_is_judged_beside_correlated_noise(tmp_path: Path) -> None:
    report = violation(tmp_path, module(ClippedAtTwice), audit(), max_steps=100)
    assert report.verdict.root.finding == "sensitivity"
    assert report.verdict.root.evidence["shift"] == pytest.approx(3.0, abs=0.6)


def test_an_input_canary_is_read_beside_correlated_noise(tmp_path: Path) -> None:
    class Forward(PrivateModule):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    made = Forward(mlp(64), dataset=digits(), optimizer_class=BandedNoise)
    canaries = [Mislabeled(amplitude=100.0)]
    report = fit(tmp_path, made, audit(canaries=canaries, on_inconclusive="warn"), max_steps=100)
    assert report.verdict.outcome != "VIOLATION"
    assert status(report, "sensitivity") == "ok"


def test_banded_noise_by_hand_passes(tmp_path: Path) -> None:
    claim = PrivacyClaim(**{**BY_HAND_CLAIM.to_dict(), "noise_coefficients": COEFFICIENTS})
    by_hand = type("ByHand", (BandedByHand, pl.LightningModule), {})()
    report = fit(tmp_path, by_hand, audit(claim), max_steps=300)
    assert report.verdict.outcome == "PASS"
    assert_nothing_is_composed(report)
    assert any("the noise was not read without the data" in note for note in report.notes)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "outcome"), [(BandedNoise, "PASS"), (HalfBandedNoise, "VIOLATION")]
)
def test_two_processes_are_audited_together(tmp_path: Path, kind: type, outcome: str) -> None:
    of_two = FAULTS["noise_averaged_over_processes"]
    training = replace(of_two, optimizer=kind, audit={"claim": CLAIM}, steps=60)
    report = run_fault(training, tmp_path / "audit")
    assert report is not None
    assert report.verdict.outcome == outcome
    assert_nothing_is_composed(report)


# ------------------------------------------------------------------ replays


@pytest.mark.heavy
def test_replays_leave_the_draws_of_the_training_as_they_are(tmp_path: Path) -> None:
    trained = []
    for examinations in (0, 3):
        torch.manual_seed(0)
        made = module(generator=torch.Generator().manual_seed(3))
        report = fit(
            tmp_path / str(examinations),
            made,
            audit(examinations=examinations, on_inconclusive="warn"),
            max_steps=30,
        )
        assert report.verdict.outcome != "VIOLATION"
        if examinations:
            assert status(report, "replay.sensitivity") == "ok"
            assert status(report, "replay.release") == "ok"
        trained.append(torch.cat([p.detach().flatten() for p in made.parameters()]))
    assert torch.equal(*trained)


# ------------------------------------------------------------------ going on


class KeepsItsDraws(StepwiseModule):
    """Its checkpoints hold the draws that later steps take a part of."""

    keeps = True

    def __init__(self, **kwargs: Any) -> None:
        torch.manual_seed(0)
        super().__init__(net=mlp(64), dataset=digits(), optimizer_class=BandedNoise, **kwargs)
        self.kept: Any = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        draws = vars(self.trainer.optimizers[0])["banded_draws"]._past
        checkpoint["draws"] = {place: list(past) for place, past in draws.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.kept = checkpoint["draws"]

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        if self.keeps and self.kept is not None:
            draws = vars(optimizer)["banded_draws"] = BandedDraws()
            draws._past = {place: deque(past, maxlen=2) for place, past in self.kept.items()}
        return optimizer


class BeginsAnew(KeepsItsDraws):
    """Begins with a first draw when it goes on."""

    keeps = False


@pytest.mark.parametrize("kind", staged(quick=[KeepsItsDraws], heavy=[BeginsAnew]))
def test_a_training_that_goes_on_is_not_accused(tmp_path: Path, kind: type) -> None:
    arguments = {"on_inconclusive": "warn"}
    train(tmp_path / "whole", audit(**arguments), module=kind)
    with pytest.raises(RuntimeError, match="power cut"):
        train(
            tmp_path / "resumed",
            audit(**arguments),
            saver(tmp_path / "saved", epoch_end=True),
            StopAt(STEPS_PER_EPOCH + 5),
            module=kind,
        )
    saved = checkpoint_at(tmp_path / "saved", STEPS_PER_EPOCH)
    train(tmp_path / "resumed", audit(**arguments), ckpt=saved, module=kind)
    resumed = report_in(tmp_path / "resumed")
    assert resumed.verdict.outcome != "VIOLATION"
    assert not [c.name for c in resumed.checks if c.status in ("violated", "warned")]
    if kind.keeps:  # the same draws are recovered of the same steps
        entries, expected = (
            read_observations(tmp_path / name / "audit" / RECORD_NAME)[1]
            for name in ("resumed", "whole")
        )
        assert entries.tobytes() == expected.tobytes()


@pytest.mark.heavy
def test_a_run_goes_on_with_the_coefficients_of_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="power cut"):
        train(
            tmp_path,
            audit(),
            saver(tmp_path / "saved", epoch_end=True),
            StopAt(STEPS_PER_EPOCH + 5),
            module=KeepsItsDraws,
        )
    other = audit(PrivacyClaim(noise_coefficients=(1.0, -0.5)))
    with pytest.raises(MisconfigurationException, match=r"noise_coefficients"):
        train(
            tmp_path,
            other,
            ckpt=checkpoint_at(tmp_path / "saved", STEPS_PER_EPOCH),
            module=KeepsItsDraws,
        )


@pytest.mark.heavy
def test_steps_that_nobody_saw_do_not_accuse_the_later_ones(tmp_path: Path) -> None:
    first = KeepsItsDraws()
    plain = trainer_for(tmp_path, max_steps=10)
    plain.fit(first)
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    made = audit(on_inconclusive="warn")
    trainer_for(tmp_path, made, max_steps=80).fit(
        KeepsItsDraws(), ckpt_path=tmp_path / "plain.ckpt", weights_only=True
    )
    report = report_in(tmp_path)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert not [c.name for c in report.checks if c.status in ("violated", "warned")]


# ------------------------------------------------------------------ the gate


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.manual_seed(0)
    report = fit(tmp_path_factory.mktemp("passed"), module(), audit(), max_steps=250)
    return json.loads(report.to_json())


def _claims_independent_noise(report: dict[str, Any]) -> None:
    report["settings"]["claim"]["noise_coefficients"] = None


def _says_nothing(report: dict[str, Any]) -> None:
    verdict = report["verdict"]
    verdict["summary"] = verdict["summary"].partition("; the mechanism alone")[0]


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "independent noise is claimed": _claims_independent_noise,
    "the verdict does not say what was judged": _says_nothing,
    "an epsilon is spent": lambda r: r.update(epsilon_spent=1.0),
    "an epsilon is claimed": lambda r: r.update(claimed_epsilon=1.0),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_report_is_caught(passed: dict[str, Any], edit: Callable[..., Any]) -> None:
    assert contradictions(AuditReport.from_json(json.dumps(passed))) == []
    assert contradictions(AuditReport.from_json(with_(json.dumps(passed), edit)))
