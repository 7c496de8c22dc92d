"""Noise that is correlated over steps by design: `PrivacyClaim(noise_coefficients=...)`."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from gan_support import GENERATOR, REASON, Dcgan, Gan, GanWithEncoder
from hand_written_support import BATCH, CLAIM, HandWritten
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus import GradSampleModule
from pytorch_lightning.utilities import CombinedLoader
from report_edits import with_
from resume_support import RESUMING, STEPS_PER_EPOCH, StepwiseModule, checkpoint_at, saver, train
from torch.utils.data import DataLoader, RandomSampler, default_collate
from trained import Forwarding, check, cut, on_digits, violated
from training_matrix import TwoOptimizers, two_nets
from training_support import (
    PrivateModule,
    digits,
    mlp,
    random_data,
    replace_optimizer,
    report_in,
    status,
    trainer_for,
)

from lightning_audit import Allow, AuditReport, PrivacyAudit, PrivacyClaim
from lightning_audit.accounting.composition import epsilon_of_passes
from lightning_audit.canaries import Mislabeled
from lightning_audit.cli.main import main
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faulty import (
    COEFFICIENTS,
    BandedDraws,
    BandedNoise,
    ClipAfterAverage,
)
from lightning_audit.testing.faulty_trainings import BandedByHand
from lightning_audit.testing.trainings import BY_HAND_CLAIM
from lightning_audit.verdict.gate import contradictions

pytestmark = RESUMING


BANDED = PrivacyClaim(noise_coefficients=COEFFICIENTS)


def banded(optimizer_class: type = BandedNoise, **settings: Any) -> PrivateModule:
    return on_digits(optimizer_class, **settings)


def assert_nothing_is_composed(report: AuditReport) -> None:
    assert (report.epsilon_spent, report.epsilon_lower, report.bounds) == (None, None, ())
    assert report.epsilon_not_excluded is None
    for name in ("epsilon", "accounting", "sampling.not_poisson", "sampling.rate"):
        assert status(report, name) == "not_run"
        assert "noise_coefficients" in check(report, name).message
    assert any("the mechanism alone was judged" in note for note in report.notes)
    assert all("epsilon_lower" not in row for row in report.epochs)


def test_right_banded_noise_passes_and_the_gate_takes_the_report(trained, capsys):
    done = trained(banded, claim=BANDED, steps=250)
    assert done.report.verdict.outcome == "PASS"
    assert "the mechanism alone was judged" in done.report.verdict.summary
    assert_nothing_is_composed(done.report)
    assert {c.status for c in done.report.checks} <= {"ok", "not_run"}
    assert main(["check", str(done.directory / "report.json")]) == 0
    assert "the mechanism alone was judged" in capsys.readouterr().out


class TwiceTheDraws(BandedNoise):
    """Two times the draws: noise of half the multiplier that is claimed, and weights of twice."""

    coefficients = tuple(2.0 * c for c in COEFFICIENTS)


@pytest.mark.nightly
def test_the_first_coefficient_is_the_weight_of_a_steps_own_draw(audited, accused):
    claim = PrivacyClaim(noise_coefficients=TwiceTheDraws.coefficients)
    report = audited(banded(TwiceTheDraws), claim=claim, folder="right", steps=250)
    assert (report.verdict.outcome, report.history[0][0]) == ("PASS", 2.0)
    found = accused(banded(), claim=claim, folder="single", steps=20)
    assert found.verdict.root.name == "noise_too_small"


class WholeSum(BandedNoise):
    """DP-FTRL without a tree: the noise of all steps together is one draw."""

    coefficients = (1.0, -1.0)


@pytest.mark.heavy
def test_noise_that_cancels_over_all_steps_is_judged(audited):
    claim = PrivacyClaim(noise_coefficients=WholeSum.coefficients)
    report = audited(banded(WholeSum), claim=claim, steps=100)
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
def test_clipping_is_judged_beside_correlated_noise(accused):
    audit = {"claim": BANDED, "allow": ["every_step"]}
    root = accused(banded(ClippedAtTwice), steps=100, **audit).verdict.root
    assert root.finding == "sensitivity"
    assert root.evidence["shift"] == pytest.approx(3.0, abs=0.6)


def test_an_input_canary_is_read_beside_correlated_noise(audited):
    made = banded(kind=Forwarding)
    report = audited(made, claim=BANDED, canaries=[Mislabeled(amplitude=100.0)], steps=100)
    assert report.verdict.outcome != "VIOLATION"
    assert status(report, "sensitivity") == "ok"


def test_banded_noise_by_hand_passes(audited):
    claim = PrivacyClaim(**{**BY_HAND_CLAIM.to_dict(), "noise_coefficients": COEFFICIENTS})
    by_hand = type("ByHand", (BandedByHand, pl.LightningModule), {})()
    report = audited(by_hand, claim=claim, examinations=0, steps=300)
    assert report.verdict.outcome == "PASS"
    assert_nothing_is_composed(report)
    assert any("the noise was not read without the data" in note for note in report.notes)


class KeepsItsDraws(StepwiseModule):
    """Its checkpoints hold the draws that later steps take a part of."""

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
        if self.kept is not None:
            draws = vars(optimizer)["banded_draws"] = BandedDraws()
            draws._past = {place: deque(past, maxlen=2) for place, past in self.kept.items()}
        return optimizer


@pytest.mark.heavy
def test_a_training_that_goes_on_is_not_accused(tmp_path):
    kind = KeepsItsDraws

    def audit() -> PrivacyAudit:
        return PrivacyAudit(claim=BANDED, seed=1)

    train(tmp_path / "whole", audit(), module=kind)
    resumed = tmp_path / "resumed"
    saved = cut(resumed, audit(), STEPS_PER_EPOCH + 5, STEPS_PER_EPOCH, module=kind)
    train(resumed, audit(), ckpt=saved, module=kind)
    report = report_in(resumed)
    assert report.verdict.outcome != "VIOLATION"
    assert not [c.name for c in report.checks if c.status in ("violated", "warned")]
    # The same draws are recovered of the same steps.
    entries, expected = (
        read_observations(folder / "audit" / RECORD_NAME)[1]
        for folder in (resumed, tmp_path / "whole")
    )
    assert entries.tobytes() == expected.tobytes()


@pytest.mark.heavy
def test_a_run_goes_on_with_the_coefficients_of_its_beginning(tmp_path):
    first, other = (
        PrivacyAudit(claim=claim, seed=1)
        for claim in (BANDED, PrivacyClaim(noise_coefficients=(1.0, -0.5)))
    )
    saved = cut(tmp_path, first, STEPS_PER_EPOCH + 5, STEPS_PER_EPOCH, module=KeepsItsDraws)
    with pytest.raises(MisconfigurationException, match=r"noise_coefficients"):
        train(tmp_path, other, ckpt=saved, module=KeepsItsDraws)


@pytest.mark.heavy
def test_steps_that_nobody_saw_do_not_accuse_the_later_ones(tmp_path):
    plain = trainer_for(tmp_path, max_steps=10)
    plain.fit(KeepsItsDraws())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    trainer_for(tmp_path, PrivacyAudit(claim=BANDED, seed=1), max_steps=80).fit(
        KeepsItsDraws(), ckpt_path=tmp_path / "plain.ckpt", weights_only=True
    )
    report = report_in(tmp_path)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert not [c.name for c in report.checks if c.status in ("violated", "warned")]


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


def test_an_edited_report_is_caught(trained):
    report = trained(banded, claim=BANDED, steps=250).report
    assert contradictions(report) == []
    for name, edit in EDITS.items():
        assert contradictions(AuditReport.from_json(with_(report.to_json(), edit))), name


DELTA, EPOCHS, RECORDS = 1e-5, 3, 480


HOLDS = epsilon_of_passes(1.0, EPOCHS, DELTA)


class Shuffled(PrivateModule):
    """Batches as torch's own loader deals them out."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(poisson=False, make_poisson=False, **kwargs)

    def plain_loader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)


def audit_of(epsilon: float | None = 1.01 * HOLDS, **claimed: object) -> PrivacyAudit:
    return PrivacyAudit(claim=dealt_out(epsilon, **claimed), seed=1)


def dealt_out(epsilon: float | None = 1.01 * HOLDS, **claimed: object) -> PrivacyClaim:
    return PrivacyClaim(epsilon=epsilon, delta=DELTA, sampling="shuffled", **claimed)


def shuffled(kind: type[PrivateModule] = Shuffled, **kwargs: object) -> PrivateModule:
    return kind(dataset=random_data(RECORDS), **kwargs)


def test_the_epsilon_that_holds_is_reported_and_passes(audited, capsys):
    report = audited(shuffled(), claim=dealt_out(), max_epochs=EPOCHS)
    assert report.verdict.outcome == "PASS", report.verdict
    assert (report.epsilon_spent, report.epsilon_lower) == (HOLDS, None)
    names = ("sampling.not_poisson", "accounting", "epsilon")
    assert [status(report, name) for name in names] == ["ok", "ok", "not_run"]
    assert "with each record in one step an epoch" in check(report, "accounting").message
    assert main(["check", str(audited.directory / "report.json")]) == 0
    assert capsys.readouterr().err == ""


def test_a_claim_that_they_exceed_is_wrong_accounting(accused):
    report = accused(shuffled(), claim=dealt_out(0.98 * HOLDS), max_epochs=EPOCHS)
    assert report.verdict.faults[0].name == "wrong_accounting"
    assert main(["check", str(accused.directory / "report.json")]) == 1


def test_a_poisson_loader_is_not_what_is_claimed(audited):
    report = audited(shuffled(PrivateModule), claim=dealt_out(20.0), max_epochs=EPOCHS)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("leave sampling out" in lack for lack in report.verdict.pass_blockers)


class Resumed(Shuffled):
    """Wrapped before a checkpoint is loaded, so that the names of its weights are the same."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.net = GradSampleModule(self.net)


@pytest.mark.parametrize(
    ("epoch_end", "first", "steps", "epsilon", "passes"),
    [
        (True, {"max_epochs": 2}, 60, 1.01 * HOLDS, EPOCHS),
        (False, {"max_steps": 50}, 50, 40.0, EPOCHS + 1),  # an epoch is shuffled anew
    ],
    ids=["at the end of an epoch", "amid an epoch"],
)
def test_a_training_that_goes_on_counts_all_its_epochs_and_a_resumed_one_twice(
    tmp_path, epoch_end, first, steps, epsilon, passes
):
    def trainer(audit: PrivacyAudit, **planned: int) -> pl.Trainer:
        saves = saver(tmp_path / "saved", epoch_end=epoch_end)
        return trainer_for(tmp_path, audit, saves, enable_checkpointing=True, **planned)

    trainer(audit_of(epsilon), **first).fit(shuffled(Resumed))
    ckpt = checkpoint_at(tmp_path / "saved", steps)
    audit = audit_of(epsilon)
    trainer(audit, max_epochs=EPOCHS).fit(shuffled(Resumed), ckpt_path=ckpt, weights_only=True)
    assert audit.report.epsilon_spent == epsilon_of_passes(1.0, passes, DELTA)


class ByHand(Shuffled):
    """Takes ``takes`` steps on each batch, in manual optimization."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def takes(self, batch_idx: int) -> int:
        return 3

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for _ in range(self.takes(batch_idx)):
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
        short = DataLoader(random_data(80), batch_size=self.batch_size, shuffle=True)
        return CombinedLoader([self.plain_loader(), short], "max_size_cycle")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch[batch_idx % 2], batch_idx)


@pytest.mark.parametrize(
    ("kind", "holds"),
    [(Shuffled, True), (ByHand, False), (ThreePasses, False), (TwoLoaders, False)],
)
def test_the_epsilon_of_one_step_an_epoch_is_told_only_where_it_holds(audited, kind, holds):
    report = audited(kind(dataset=random_data(160)), on_violation="warn", delta=DELTA, max_epochs=1)
    assert ("What holds" in check(report, "sampling.not_poisson").message) == holds


def test_more_batches_added_up_than_a_pass_has_end_no_training(audited):
    class AllAtOnce(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(Shuffled.training_step(self, batch, batch_idx))
            if batch_idx == 5:
                self.optimizers().step()

    module = AllAtOnce(dataset=random_data(96), batch_size=24)
    given = {"on_violation": "warn", "delta": DELTA, "max_epochs": 2, "limit_train_batches": 6}
    assert audited(module, **given).complete


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
def test_records_that_enter_more_than_one_row_or_step_do_not_pass(audited, kind):
    every = {"reload_dataloaders_every_n_epochs": int(kind is Reloaded)}
    report = audited(shuffled(kind), claim=dealt_out(40.0), max_epochs=EPOCHS, **every)
    assert report.verdict.outcome == "INCONCLUSIVE", report.verdict


def test_several_steps_a_batch_by_hand_are_several_passes(audited):
    class Thrice(HandWritten):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(self.dataset, batch_size=BATCH, shuffle=True)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for _ in range(3):
                super().training_step(batch, batch_idx)

    given = {"sampling": "shuffled", "epsilon": 99.0, "delta": DELTA, "sample_rate": BATCH / 512}
    stated = replace(CLAIM, **given)
    module = Thrice(dataset=random_data(512))
    report = audited(module, claim=stated, on_violation="warn", max_epochs=2)
    assert report.epsilon_spent == epsilon_of_passes(stated.noise_multiplier, 6, DELTA)


def test_ten_steps_on_one_of_many_batches_are_ten_passes_for_its_records(audited):
    class TenOnOne(ByHand):
        def takes(self, batch_idx: int) -> int:
            return 10 if batch_idx == 7 else 1

    report = audited(shuffled(TenOnOne), claim=dealt_out(), on_violation="warn", max_epochs=1)
    assert report.epsilon_spent == epsilon_of_passes(1.0, 10, DELTA)
    assert status(report, "accounting") == "violated"


#: Lightning counts the steps of all optimizers.
STEPS = {"max_steps": 240}


def test_a_generator_beside_a_private_discriminator_passes_with_its_exemption(audited):
    report = audited(Gan(), allow=[GENERATOR], **STEPS)
    assert report.verdict.outcome == "PASS", report.verdict
    told = check(report, "no_dp").message.replace(" of opt", " opt")
    assert f"120 of Adam, optimizer {GENERATOR.optimizer!r} ({REASON})" in told
    assert f"the user allows no_dp of optimizer {GENERATOR.optimizer!r}: {REASON}" in report.notes
    (kept,) = report.settings["exemptions"]
    assert kept["reason"] == REASON


def test_opacus_dcgan_shows_its_generator_the_number_of_records(accused):
    report = accused(Dcgan(dataset=digits()), allow=[GENERATOR], **STEPS)
    fault = report.verdict.faults[0]
    assert fault.name == "number_of_records_reaches_exempt_optimizer"
    places = " ".join(map(str, fault.place.code))
    assert "Dcgan.training_step at tests/support/gan_support.py:" in places
    assert "the number of records reaches an exempt optimizer" in report.verdict.summary
    assert "how many fakes the generator is trained on: a fixed number" in fault.look_at
    assert violated(report) == ["no_dp"]


def test_without_the_exemption_dcgan_is_told_what_an_exemption_takes(accused):
    verdict = accused(Dcgan(dataset=digits()), **STEPS).verdict
    assert verdict.faults[0].name == "no_dp"
    assert "train it on a fixed number of fakes" in verdict.faults[0].look_at


def test_a_third_optimizer_that_trains_on_the_records_is_a_violation(accused):
    report = accused(GanWithEncoder(), allow=[GENERATOR], steps=360)
    assert status(report, "no_dp") == "violated"
    assert report.verdict.summary.startswith("no_dp: SGD was stopped before its first step")


class OneFaulty(TwoOptimizers):
    """Of two private optimizers the second does not clip single records."""

    def configure_optimizers(self) -> Any:
        right, wrong = super().configure_optimizers()
        return [right, replace_optimizer(wrong, ClipAfterAverage)]


def test_a_finding_is_allowed_of_one_private_optimizer_alone(audited):
    allowed = Allow("sensitivity", optimizer="net.critic", reason="a trial")
    report = audited(OneFaulty(two_nets()), allow=[allowed], on_violation="warn", **STEPS)
    found = {c.optimizer: c.status for c in report.checks if c.name == "sensitivity"}
    assert sorted(found.values()) == ["allowed", "ok"], found


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
def test_parameters_are_exempt_by_their_names(audited, pattern, passes):
    allowed = Allow("unaudited", parameters=pattern, reason="an average of released weights")
    report = audited(Averaged(), allow=allowed, steps=96)
    assert (report.verdict.outcome == "PASS") == passes, report.verdict


class TwiceTrained(Gan):
    """A second optimizer of the generator, which may train on anything."""

    def configure_optimizers(self) -> Any:
        return [*super().configure_optimizers(), torch.optim.SGD(self.G.parameters(), lr=0.1)]


class Hidden(Gan):
    """The module does not name all parameters of the generator's optimizer."""

    def configure_optimizers(self) -> Any:
        private, _ = super().configure_optimizers()
        self.__dict__["hidden"] = [torch.nn.Linear(8, 8)]
        params = [*self.G.parameters(), *self.hidden[0].parameters()]
        return [private, torch.optim.Adam(params, lr=1e-3)]


@pytest.mark.parametrize(
    ("kind", "scope", "told"),
    [
        (Gan, {"optimizer": "generator"}, "optimizer='generator' is none of the training's"),
        (Gan, {"optimizer": "generator"}, "1 is Adam of `G.0.weight`, `G.0.bias`"),
        (Gan, {"optimizer": 0}, "optimizer='0' is private"),
        (Hidden, {"optimizer": "G"}, "is none of the training's"),
        (TwiceTrained, {"optimizer": "G"}, "optimizer='G' is 2 of the training's"),
        (Averaged, {"parameters": "average"}, "='average' matches none of the module's"),
    ],
)
def test_an_exemption_of_none_or_of_several_is_refused(tmp_path, kind, scope, told):
    allowed = Allow("unaudited" if "parameters" in scope else "no_dp", reason=REASON, **scope)
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1, allow=allowed), **STEPS)
    with pytest.raises(MisconfigurationException) as raised:
        trainer.fit(kind())
    assert told in str(raised.value)


def test_the_divisor_is_allowed_of_its_optimizer(audited):
    stated = PrivacyClaim(private_dataset_size=True, delta=1e-5)
    allowed = Allow("expected_batch_size", optimizer="net", reason="a trial")
    report = audited(PrivateModule(), claim=stated, allow=allowed, steps=20)
    assert status(report, "expected_batch_size") == "allowed"
