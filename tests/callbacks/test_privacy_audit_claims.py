"""Noise that is correlated over steps by design: `PrivacyClaim(noise_coefficients=...)`."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from gan_support import GENERATOR, REASON, Dcgan, DcganOfFixedSize, Gan, GanWithEncoder
from hand_written_support import BATCH, CLAIM, HandWritten
from lightning_fabric.utilities.exceptions import (
    MisconfigurationException as MisconfigurationException_of_exceptions,
)
from opacus import GradSampleModule
from pytorch_lightning.utilities import CombinedLoader
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
from torch.utils.data import DataLoader, RandomSampler, default_collate
from trained import Audited
from training_matrix import TwoOptimizers, two_nets
from training_support import (
    PrivateModule,
    digits,
    fit,
    mlp,
    random_data,
    replace_optimizer,
    report_in,
    status,
    trainer_for,
    violation,
)

from lightning_audit import Allow, AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_passes
from lightning_audit.callbacks._namespaces import MisconfigurationException
from lightning_audit.canaries import Mislabeled
from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faults import BY_HAND_CLAIM, FAULTS
from lightning_audit.testing.faulty import (
    COEFFICIENTS,
    BandedDraws,
    BandedNoise,
    ClipAfterAverage,
    HalfBandedNoise,
    HalfNoise,
)
from lightning_audit.testing.runs import train as run_fault
from lightning_audit.testing.trainings import BandedByHand
from lightning_audit.verdict.gate import contradictions

pytestmark = RESUMING

# --- Noise that is correlated over steps by design: `PrivacyClaim(noise_coefficients=...)`.

CLAIM_OF_PRIVACY_AUDIT_CORRELATED_NOISE = PrivacyClaim(noise_coefficients=COEFFICIENTS)


def module(kind: type = BandedNoise, **settings: Any) -> PrivateModule:
    return PrivateModule(mlp(64), dataset=digits(), optimizer_class=kind, **settings)


def audit(
    claim: PrivacyClaim | None = CLAIM_OF_PRIVACY_AUDIT_CORRELATED_NOISE, **arguments: Any
) -> PrivacyAudit:
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
    assert (report.verdict.outcome, report.history[0][0]) == ("PASS", 2.0)
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
    training = replace(
        of_two, optimizer=kind, audit={"claim": CLAIM_OF_PRIVACY_AUDIT_CORRELATED_NOISE}, steps=60
    )
    report = run_fault(training, tmp_path / "audit")
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


# --- Trainings on shuffled batches that claim what they cost, and ones that do not.

DELTA, EPOCHS = 1e-5, 3
HOLDS = epsilon_of_passes(1.0, EPOCHS, DELTA)


class Shuffled(PrivateModule):
    """Batches as torch's own loader deals them out."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(poisson=False, make_poisson=False, **kwargs)

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)


def audit_of(epsilon: float | None = 1.01 * HOLDS, **claimed: object) -> PrivacyAudit:
    claim = PrivacyClaim(epsilon=epsilon, delta=DELTA, sampling="shuffled", **claimed)
    return PrivacyAudit(claim=claim, seed=1)


def by_name(report: object) -> dict[str, object]:
    return {check.name: check for check in report.checks}


def module_privacy_audit_shuffled(**kwargs: object) -> Shuffled:
    return Shuffled(dataset=random_data(1600), **kwargs)


def test_the_epsilon_that_holds_is_reported_and_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = fit(tmp_path, module_privacy_audit_shuffled(), audit_of(), max_epochs=EPOCHS)
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.epsilon_spent == HOLDS
    checks = by_name(report)
    assert (checks["sampling.not_poisson"].status, checks["accounting"].status) == ("ok", "ok")
    assert "with each record in one step an epoch" in checks["accounting"].message
    assert checks["epsilon"].status == "not_run"
    assert report.epsilon_lower is None
    assert main(["check", str(tmp_path / "audit" / "report.json")]) == 0
    assert capsys.readouterr().err == ""


def test_a_claim_that_they_exceed_is_wrong_accounting(tmp_path: Path) -> None:
    report = violation(
        tmp_path, module_privacy_audit_shuffled(), audit_of(0.98 * HOLDS), max_epochs=EPOCHS
    )
    assert report.verdict.faults[0].name == "wrong_accounting"
    assert main(["check", str(tmp_path / "audit" / "report.json")]) == 1


def test_a_replaced_record_costs_more(tmp_path: Path) -> None:
    holds = epsilon_of_passes(1.0, EPOCHS, DELTA, "replace_one")
    audit = audit_of(1.01 * holds, adjacency="replace_one")
    report = fit(tmp_path, module_privacy_audit_shuffled(), audit, max_epochs=EPOCHS)
    assert (report.verdict.outcome, report.epsilon_spent) == ("PASS", holds)


def test_what_an_accountant_says_is_no_claim(audited: Audited) -> None:
    report = audited(
        module_privacy_audit_shuffled(),
        claim=PrivacyClaim(sampling="shuffled", delta=DELTA),
        max_epochs=EPOCHS,
    )
    assert (report.claimed_epsilon, report.epsilon_spent) == (None, HOLDS)
    assert "no epsilon is claimed" in by_name(report)["accounting"].message


def test_a_poisson_loader_is_not_what_is_claimed(tmp_path: Path) -> None:
    poisson = PrivateModule(dataset=random_data(1600))
    report = fit(tmp_path, poisson, audit_of(20.0), max_epochs=EPOCHS)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("leave sampling out" in lack for lack in report.verdict.pass_blockers)


def test_faults_of_the_noise_are_found_as_ever(tmp_path: Path) -> None:
    report = violation(
        tmp_path,
        module_privacy_audit_shuffled(optimizer_class=HalfNoise),
        audit_of(),
        max_epochs=EPOCHS,
    )
    assert report.verdict.faults[0].name == "noise_too_small"


class Resumed(Shuffled):
    """Wrapped before a checkpoint is loaded, so that the names of its weights are the same."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.net = GradSampleModule(self.net)


def test_a_training_that_goes_on_counts_all_its_epochs(tmp_path: Path) -> None:
    saved, checkpoints = tmp_path / "saved", {"enable_checkpointing": True}
    first = saver(saved, epoch_end=True)
    resumed = Resumed(dataset=random_data(1600))
    trainer_for(tmp_path, audit_of(), first, max_epochs=2, **checkpoints).fit(resumed)
    trainer = trainer_for(
        tmp_path,
        audit := audit_of(),
        saver(saved, epoch_end=True),
        max_epochs=EPOCHS,
        **checkpoints,
    )
    trainer.fit(
        Resumed(dataset=random_data(1600)), ckpt_path=checkpoint_at(saved, 200), weights_only=True
    )
    assert audit.report.epsilon_spent == HOLDS


class ThreeSteps(Shuffled):
    """Takes three steps on each batch."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for _ in range(3):
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()


class ThreePasses(Shuffled):
    """Goes through the data three times an epoch."""

    def plain_loader(self) -> DataLoader:
        sampler = RandomSampler(self.dataset, num_samples=3 * len(self.dataset))
        return DataLoader(self.dataset, batch_size=self.batch_size, sampler=sampler)


class TwoLoaders(Shuffled):
    """The shorter loader begins again while the longer one lasts."""

    def train_dataloader(self) -> CombinedLoader:
        short = DataLoader(random_data(160), batch_size=self.batch_size, shuffle=True)
        return CombinedLoader([self.plain_loader(), short], "max_size_cycle")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch[batch_idx % 2], batch_idx)


class InOrder(Shuffled):
    """The same batches in every epoch."""

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size)


def test_the_same_batches_in_every_epoch_are_dealt_out_as_well(tmp_path: Path) -> None:
    report = fit(tmp_path, InOrder(dataset=random_data(1600)), audit_of(), max_epochs=EPOCHS)
    assert report.verdict.outcome == "PASS", report.verdict


@pytest.mark.parametrize(
    ("kind", "holds"),
    [(Shuffled, True), (ThreeSteps, False), (ThreePasses, False), (TwoLoaders, False)],
)
def test_the_epsilon_of_one_step_an_epoch_is_told_only_where_it_holds(
    audited: Audited, kind: type[Shuffled], holds: bool
) -> None:
    report = audited(kind(dataset=random_data(320)), on_violation="warn", delta=DELTA, max_epochs=1)
    assert ("What holds" in by_name(report)["sampling.not_poisson"].message) == holds


def test_more_batches_added_up_than_a_pass_has_end_no_training(audited: Audited) -> None:
    class AllAtOnce(Shuffled):
        def __init__(self, **kwargs: object) -> None:
            super().__init__(**kwargs)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(super().training_step(batch, batch_idx))
            if batch_idx == 5:
                self.optimizers().step()

    module = AllAtOnce(dataset=random_data(96), batch_size=24)
    report = audited(module, on_violation="warn", delta=DELTA, max_epochs=2, limit_train_batches=6)
    assert report is not None


def test_a_resumed_epoch_is_shuffled_anew_and_counts_twice(tmp_path: Path) -> None:
    saved, checkpoints = tmp_path / "saved", {"enable_checkpointing": True}
    first = saver(saved, epoch_end=False)
    module = Resumed(dataset=random_data(1600))
    trainer_for(tmp_path, audit_of(40.0), first, max_steps=150, **checkpoints).fit(module)
    others = saver(saved, epoch_end=False)
    trainer = trainer_for(tmp_path, audit := audit_of(40.0), others, max_epochs=3, **checkpoints)
    again = Resumed(dataset=random_data(1600))
    trainer.fit(again, ckpt_path=checkpoint_at(saved, 150), weights_only=True)
    assert audit.report.epsilon_spent == epsilon_of_passes(1.0, EPOCHS + 1, DELTA)


class TwoViews(Shuffled):
    """Each record enters its batch twice."""

    def plain_loader(self) -> DataLoader:
        def twice(records: list[Any]) -> Any:
            return default_collate([*records, *records])

        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True, collate_fn=twice)


class Reloaded(Shuffled):
    """From the second epoch on records are drawn with replacement."""

    def train_dataloader(self) -> DataLoader:
        if not self.current_epoch:
            return self.plain_loader()
        sampler = RandomSampler(self.dataset, replacement=True)
        return DataLoader(self.dataset, batch_size=self.batch_size, sampler=sampler)


@pytest.mark.parametrize("kind", [TwoViews, Reloaded])
def test_records_that_enter_more_than_one_row_or_step_do_not_pass(
    tmp_path: Path, kind: type[Shuffled]
) -> None:
    every = {"reload_dataloaders_every_n_epochs": int(kind is Reloaded)}
    audit = audit_of(40.0)
    report = fit(tmp_path, kind(dataset=random_data(1600)), audit, max_epochs=EPOCHS, **every)
    assert report.verdict.outcome == "INCONCLUSIVE", report.verdict


def test_several_steps_a_batch_by_hand_are_several_passes(audited: Audited) -> None:
    class Thrice(HandWritten):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(self.dataset, batch_size=BATCH, shuffle=True)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for _ in range(3):
                super().training_step(batch, batch_idx)

    stated = dataclasses.replace(CLAIM, sampling="shuffled", epsilon=99.0, delta=DELTA)
    report = audited(Thrice(), claim=stated, on_violation="warn", max_epochs=2)
    assert report.epsilon_spent == epsilon_of_passes(stated.noise_multiplier, 6, DELTA)


def test_ten_steps_on_one_of_many_batches_are_ten_passes_for_its_records(audited: Audited) -> None:
    class TenOnOne(ThreeSteps):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            for _ in range(10 if batch_idx == 7 else 1):
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(Shuffled.training_step(self, batch, batch_idx))
                optimizer.step()

    report = audited(
        TenOnOne(dataset=random_data(1600)),
        claim=PrivacyClaim(epsilon=1.01 * HOLDS, delta=DELTA, sampling="shuffled"),
        on_violation="warn",
        max_epochs=1,
    )
    assert report.epsilon_spent == epsilon_of_passes(1.0, 10, DELTA)
    assert by_name(report)["accounting"].status == "violated"


# --- A finding is allowed of one optimizer or some parameters, for a reason, and nowhere else.

#: Lightning counts the steps of all optimizers.
STEPS = {"max_steps": 240}


def audit_privacy_audit_exemptions(**kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(seed=1, **kwargs)


@pytest.mark.parametrize(
    "allowed",
    [GENERATOR, Allow("no_dp", optimizer=1, reason=REASON), Allow("no_dp", "Adam", None, REASON)],
)
def test_a_generator_beside_a_private_discriminator_passes_with_its_exemption(
    tmp_path: Path, allowed: Allow
) -> None:
    report = fit(tmp_path, Gan(), audit_privacy_audit_exemptions(allow=[allowed]), **STEPS)
    assert report.verdict.outcome == "PASS", report.verdict
    (told,) = (check.message for check in report.checks if check.name == "no_dp")
    assert f"120 of Adam, optimizer {allowed.optimizer!r} ({REASON})" in told.replace(
        " of opt", " opt"
    )
    assert f"the user allows no_dp of optimizer {allowed.optimizer!r}: {REASON}" in report.notes
    (kept,) = report.settings["exemptions"]
    assert kept["reason"] == REASON


def test_without_the_exemption_it_is_a_violation(tmp_path: Path) -> None:
    report = violation(tmp_path, Gan(), audit_privacy_audit_exemptions(), **STEPS)
    assert status(report, "no_dp") == "violated"


def test_opacus_dcgan_shows_its_generator_the_number_of_records(tmp_path: Path) -> None:
    module = Dcgan(dataset=digits())
    report = violation(
        tmp_path, module, audit_privacy_audit_exemptions(allow=[GENERATOR], examinations=0), **STEPS
    )
    fault = report.verdict.faults[0]
    assert fault.name == "number_of_records_reaches_exempt_optimizer"
    places = " ".join(map(str, fault.place.code))
    assert "Dcgan.training_step at tests/support/gan_support.py:" in places
    assert "the number of records reaches an exempt optimizer" in report.verdict.summary
    assert "train the generator on a fixed number of fakes" in report.verdict.advice
    assert [check.name for check in report.checks if check.status == "violated"] == ["no_dp"]


def test_dcgan_with_a_fixed_number_of_fakes_passes(tmp_path: Path) -> None:
    module = DcganOfFixedSize(dataset=digits())
    report = fit(
        tmp_path, module, audit_privacy_audit_exemptions(allow=[GENERATOR], examinations=0), **STEPS
    )
    assert report.verdict.outcome == "PASS", report.verdict


def test_without_the_exemption_dcgan_is_told_what_an_exemption_takes(tmp_path: Path) -> None:
    report = violation(
        tmp_path, Dcgan(dataset=digits()), audit_privacy_audit_exemptions(examinations=0), **STEPS
    )
    assert report.verdict.faults[0].name == "no_dp"
    assert "Train it on a fixed number of fakes" in report.verdict.advice


def test_a_third_optimizer_that_trains_on_the_records_is_a_violation(tmp_path: Path) -> None:
    report = violation(
        tmp_path, GanWithEncoder(), audit_privacy_audit_exemptions(allow=[GENERATOR]), max_steps=360
    )
    assert status(report, "no_dp") == "violated"
    assert report.verdict.summary.startswith("no_dp: SGD was stopped before its first step")


def test_an_exemption_of_no_optimizer_of_the_training_is_refused(tmp_path: Path) -> None:
    allowed = Allow("no_dp", optimizer="generator", reason=REASON)
    with pytest.raises(MisconfigurationException_of_exceptions) as raised:
        trainer_for(tmp_path, audit_privacy_audit_exemptions(allow=[allowed])).fit(Gan())
    told = str(raised.value)
    assert "optimizer='generator' is none of the training's" in told
    assert "1 is Adam of `G.0.weight`, `G.0.bias`" in told


class OneFaulty(TwoOptimizers):
    """Of two private optimizers the second does not clip single records."""

    def configure_optimizers(self) -> Any:
        right, wrong = super().configure_optimizers()
        return [right, replace_optimizer(wrong, ClipAfterAverage)]


@pytest.mark.parametrize(
    ("optimizer", "status"), [("net.critic", "allowed"), ("net.actor", "violated")]
)
def test_a_finding_is_allowed_of_one_private_optimizer_alone(
    tmp_path: Path, optimizer: str, status: str
) -> None:
    allowed = Allow("sensitivity", optimizer=optimizer, reason="a trial")
    given = audit_privacy_audit_exemptions(allow=[allowed], on_violation="warn")
    report = fit(tmp_path, OneFaulty(two_nets()), given, **STEPS)
    found = {c.optimizer: c.status for c in report.checks if c.name == "sensitivity"}
    assert sorted(found.values()) == sorted(["ok", status]), found


class Averaged(PrivateModule):
    """Keeps an average of its weights, which no optimizer trains."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.average = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.zeros(3))})
        self.average.requires_grad_(False)

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            self.average["weight"] += 0.1


@pytest.mark.parametrize(("pattern", "passes"), [("average.*", True), ("net.*", False)])
def test_parameters_are_exempt_by_their_names(tmp_path: Path, pattern: str, passes: bool) -> None:
    allowed = Allow("unaudited", parameters=pattern, reason="an average of released weights")
    report = fit(tmp_path, Averaged(), audit_privacy_audit_exemptions(allow=allowed), max_steps=120)
    assert (report.verdict.outcome == "PASS") == passes, report.verdict


def refused(directory: Path, module: pl.LightningModule, allowed: Allow) -> str:
    with pytest.raises(MisconfigurationException_of_exceptions) as raised:
        trainer_for(directory, audit_privacy_audit_exemptions(allow=allowed), **STEPS).fit(module)
    return str(raised.value)


@pytest.mark.parametrize("pattern", ["average", "nosuch.*"])
def test_a_pattern_of_no_parameter_is_refused(tmp_path: Path, pattern: str) -> None:
    told = refused(tmp_path, Averaged(), Allow("unaudited", parameters=pattern, reason="?"))
    assert f"parameters={pattern!r} matches none of the module's" in told


class TwiceTrained(Gan):
    """A second optimizer of the generator, which may train on anything."""

    def configure_optimizers(self) -> Any:
        return [*super().configure_optimizers(), torch.optim.SGD(self.G.parameters(), lr=0.1)]


class EncoderByAdam(GanWithEncoder):
    """The third optimizer is of the generator's class."""

    def configure_optimizers(self) -> Any:
        *others, _ = super().configure_optimizers()
        return [*others, torch.optim.Adam(self.encoder.parameters())]


@pytest.mark.parametrize("fits", ["G", "Adam"])
def test_an_exemption_that_fits_two_optimizers_is_refused(tmp_path: Path, fits: str) -> None:
    module = TwiceTrained() if fits == "G" else EncoderByAdam()
    told = refused(tmp_path, module, Allow("no_dp", optimizer=fits, reason=REASON))
    assert f"optimizer={fits!r} is 2 of the training's" in told


def test_parameters_that_the_module_does_not_name_have_no_prefix(tmp_path: Path) -> None:
    class Hidden(Gan):
        def configure_optimizers(self) -> Any:
            private, _ = super().configure_optimizers()
            self.__dict__["hidden"] = [torch.nn.Linear(8, 8)]
            params = [*self.G.parameters(), *self.hidden[0].parameters()]
            return [private, torch.optim.Adam(params, lr=1e-3)]

    assert "is none of the training's" in refused(tmp_path, Hidden(), GENERATOR)


def test_the_private_optimizer_needs_no_exemption_from_dp(tmp_path: Path) -> None:
    told = refused(tmp_path, Gan(), Allow("no_dp", optimizer=0, reason=REASON))
    assert "optimizer='0' is private" in told


def test_a_finding_of_dp_sgd_by_hand_is_allowed_of_its_optimizer(audited: Audited) -> None:
    class Quiet(HandWritten):
        def noise(self, p: torch.Tensor) -> torch.Tensor:
            return 0.3 * super().noise(p)

    given = [Allow(name, optimizer="SGD", reason="a trial") for name in ("noise", "noise.tensor")]
    report = audited(Quiet(), claim=CLAIM, allow=given, on_violation="warn", steps=60)
    statuses = {c.name: c.status for c in report.checks if c.name in ("noise", "noise.tensor")}
    assert statuses == {"noise": "allowed", "noise.tensor": "allowed"}


def test_the_divisor_is_allowed_of_its_optimizer(tmp_path: Path) -> None:
    stated = PrivacyClaim(private_dataset_size=True, delta=1e-5)
    name = "expected_batch_size"
    given = audit_privacy_audit_exemptions(
        claim=stated, allow=Allow(name, optimizer="net", reason="a trial")
    )
    assert status(fit(tmp_path, PrivateModule(), given, max_steps=20), name) == "allowed"
