"""Several private optimizers in one training: each step of each is audited."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from bare_session import BareByHand
from hand_written_support import CLAIM
from lightning_fabric.utilities.exceptions import MisconfigurationException
from opacus import GradSampleModule
from pytorch_lightning.callbacks import ModelCheckpoint
from resume_support import RESTARTING, StopAt
from stages import staged
from torch import nn
from torch.nn import functional
from trained import weights, with_optimizer
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    mlp,
    refusal_of,
    report_in,
    status,
    trainer_for,
)
from two_nets import HIDDEN, RATE, STEPS, TwoNets

import lightning_audit
from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.canaries import Blank, Dirac
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.monitor import replay
from lightning_audit.cli.main import main
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.record.store import INJECTED, read_observations
from lightning_audit.results.audit_report import SCHEMA_VERSION, UnauditableTraining
from lightning_audit.run.facts import Notes, OptimizerFacts, RunLints, TrainingInfo
from lightning_audit.run.optimizers import (
    AuditedOptimizers,
    HandWrittenFront,
    facts_of,
    hand_written_step,
    private_optimizers,
    refuse_several,
)
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession
from lightning_audit.testing.faulty import HalfNoise


class Toggled(TwoNets):
    """Only the parameters of the optimizer whose turn it is ask for gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for name, optimizer in zip(self.net, self.optimizers(), strict=True):
            self.turn(optimizer, lambda name=name: self.loss(name, batch))

    def turn(self, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss())
        optimizer.step()
        self.untoggle_optimizer(optimizer)


class Joint(TwoNets):
    """One backward pass for both."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(self.loss("actor", batch) + self.loss("critic", batch))
        for optimizer in self.optimizers():
            optimizer.step()


class ThroughBoth(Toggled):
    """The first net learns through the second one, which is frozen meanwhile, hooks and all."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        actor, critic = self.optimizers()
        self.turn(actor, lambda: self.through_both(*batch))
        self.net["critic"].enable_hooks()
        self.turn(critic, lambda: self.loss("critic", batch))

    def through_both(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.net["critic"].disable_hooks()
        scores = self.net["critic"](torch.tanh(self.net["actor"](x)[:, :8]))
        return functional.cross_entropy(scores, y)


class Ghost(TwoNets):
    """Two criteria, each with the norms of its own net."""

    def configure_optimizers(self) -> Any:
        optimizers, self.criteria = [], []
        for j, (name, net) in enumerate(self.net.items()):
            self.net[name], optimizer, criterion, _ = self.engines[0].make_private(
                module=net,
                optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
                criterion=nn.CrossEntropyLoss(),
                data_loader=self.plain_loader(),
                noise_multiplier=self.noise[j],
                max_grad_norm=self.norms[j],
                grad_sample_mode="ghost",
            )
            optimizers.append(optimizer)
            self.criteria.append(criterion)
        return optimizers

    def loss(self, name: str, batch: Any) -> torch.Tensor:
        return self.criteria[list(self.net).index(name)](self.net[name](batch[0]), batch[1])


def records(directory: Path, report: AuditReport) -> list[np.ndarray]:
    return [read_observations(directory / "audit" / name)[1] for name in report.records]


def assert_healthy(entries: np.ndarray) -> None:
    """The canaries' signal is one and the noise as claimed, within sampling error."""
    assert (entries["canaries"] == INJECTED).all()
    coins, sigma = entries["coins"], entries["noise_multiplier"][:, None]
    readings = entries["readings"]
    loud = (readings - coins).std(0) > 1.1 * sigma.mean()
    coins, readings = coins[:, ~loud], readings[:, ~loud]
    assert coins.shape[1] >= 3
    assert -4.0 / np.sqrt(2.0 * coins.size) < ((readings - coins) / sigma).std() - 1.0 < 0.1
    centred = (coins - 0.5) / sigma
    shift = (centred * (readings - readings.mean(0)) / sigma).sum() / (centred**2).sum()
    assert abs(shift - 1.0) < 4.0 / np.sqrt((centred**2).sum())


CLAIMS = {"claimed_epsilon": 1000.0}


@pytest.mark.parametrize(
    ("kind", "epochs"),
    staged(
        quick=[(TwoNets, 1)],
        heavy=[(Ghost, 1), (ThroughBoth, 1), (Joint, 1)],
    ),
)
def test_every_step_of_both_is_audited_and_a_healthy_run_passes(tmp_path, audited, kind, epochs):
    torch.manual_seed(0)
    module = kind(hidden=HIDDEN)
    report = audited(module, max_epochs=epochs, **CLAIMS)
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.records == ("observations.bin", "observations-2.bin")
    first, second = records(tmp_path, report)
    assert len(first) == len(second) == report.steps / 2 == epochs * STEPS
    assert_healthy(first)
    assert_healthy(second)
    assert (first["noise_multiplier"] == 1.0).all()
    assert (second["max_grad_norm"] == 0.4).all()
    assert (first["coins"] != second["coins"]).any()
    assert not any("copied" in note for note in report.notes)
    assert_no_hooks_left(module)


@pytest.mark.parametrize("kind", staged([Joint], [ThroughBoth, Ghost]))
def test_both_models_are_what_they_would_be(tmp_path, kind):
    ends = []
    for audits in ([], [PrivacyAudit(1000.0, seed=1)]):
        torch.manual_seed(3)
        module = kind()
        trainer_for(tmp_path / str(len(audits)), *audits, max_steps=24).fit(module)
        ends.append(weights(module.net).double())
    plain, audited = ends
    assert torch.linalg.norm(audited - plain) <= 1e-6 * torch.linalg.norm(plain)


def test_half_noise_of_the_second_is_found_and_the_optimizer_is_named(audited):
    module = TwoNets(faults=(None, HalfNoise), hidden=HIDDEN)
    report = audited(module, on_violation="warn", steps=80)
    label = "optimizer 2 (`net.critic.0.weight` and others): "
    assert label in report.verdict.summary
    wrong = [c for c in report.checks if c.status == "violated"]
    assert any(c.name == "noise" for c in wrong)
    assert all(c.message.startswith(label) for c in wrong if c.name != "epsilon")
    assert "noise scale too small" in report.verdict.fault
    assert main(["check", str(audited.directory / "report.json")]) == 1


def test_what_is_handed_out_of_the_significance_is_no_more_than_the_whole(audited):
    report = audited(TwoNets(), steps=40, **CLAIMS)
    assert 0.8 < sum([c.share for c in report.checks if not REGISTRY[c.name].warns]) <= 0.9
    for name, label in zip(report.records, ("optimizer 1 ", "optimizer 2 "), strict=True):
        monitor = replay(*read_observations(audited.directory / name), 0.5e-3)
        told = {c.name: c.log_e_value for c in report.checks if c.message.startswith(label)}
        # Others look at what the record does not hold.
        of_record = {c.name: c for c in monitor.results() if c.name != "gradient_replaced"}
        again = {name: c.log_e_value for name, c in of_record.items() if name in told}
        assert {name: told[name] for name in again} == again
        assert monitor.witness_noise.test.threshold == -np.log(of_record["noise"].share * 0.5e-3)


@pytest.mark.heavy
@pytest.mark.parametrize("engines", [2, 1])
def test_epsilon_is_that_of_the_steps_of_both(audited, engines):
    report = audited(TwoNets(engines=engines), max_epochs=1)
    history = [Phase(1.0, RATE, STEPS), Phase(1.5, RATE, STEPS)]
    assert report.epsilon_spent == pytest.approx(epsilon_of_history(history, 1e-5), rel=0.01)
    assert set(report.history) == {(1.0, RATE, STEPS), (1.5, RATE, STEPS)}
    assert status(report, "accounting") == "ok"
    # The accountant composes the same steps, in Rényi's way.
    assert report.epsilon_spent < report.claimed_epsilon < 2 * report.epsilon_spent + 1.0
    assert report.epsilon_lower <= report.epsilon_spent


def test_an_accountant_of_one_optimizer_alone_is_too_little(audited):
    forgets = with_optimizer(lambda both: setattr(both[1], "step_hook", None), TwoNets)
    report = audited(forgets(), on_violation="warn", steps=40)
    assert report.epsilon_spent is None  # the rate of the second one is unknown to anyone
    assert any("no accountant counts" in note for note in report.notes)
    assert status(report, "accounting") == "not_run"


def test_an_optimizer_that_takes_no_step_is_named(audited):
    class First(TwoNets):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer, _ = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.loss("actor", batch))
            optimizer.step()

    report = audited(First(), **CLAIMS, steps=40)
    assert report.verdict.outcome == "INCONCLUSIVE"
    (missing,) = [m for m in report.verdict.pass_blockers if "no step of a private" in m]
    assert missing.startswith("optimizer 2 (`net.critic.0.weight`")


@pytest.mark.parametrize("shared", [True, False])
def test_two_generators_of_one_seed_are_a_violation_and_one_generator_is_not(audited, shared):
    first, second = (torch.Generator().manual_seed(5) for _ in range(2))
    module = TwoNets(generators=(first, first if shared else second))
    report = audited(module, on_violation="warn", steps=30, **CLAIMS)
    assert status(report, "reuse.optimizers") == ("ok" if shared else "violated")
    assert (report.verdict.outcome == "VIOLATION") == (not shared)


class Stepwise(TwoNets):
    """Every step is a function of the weights and of the step's number."""

    def __init__(self, **kwargs: Any) -> None:
        torch.manual_seed(0)
        super().__init__(**kwargs)
        for name in self.net:  # wrapped before Lightning loads a checkpoint
            self.net[name] = GradSampleModule(self.net[name])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(2**40 + 1000 + self.global_step)  # no small seed

    def loss(self, name: str, batch: Any) -> torch.Tensor:
        x, y = self.dataset.tensors
        chosen = torch.rand(len(x)) < self.batch_size / len(x)
        return super().loss(name, (x[chosen], y[chosen]))


@pytest.mark.heavy
@pytest.mark.whole_report
@pytest.mark.filterwarnings(
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:Using ModelCheckpoint with manual optimization",
    "ignore:You're resuming from a checkpoint that ended before",
)
def test_a_resumed_run_reports_what_the_uninterrupted_one_reports(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = fit(whole, Stepwise(), PrivacyAudit(1000.0, seed=3), max_steps=80)
    saver = ModelCheckpoint(tmp_path / "saved", save_top_k=-1, every_n_train_steps=20)
    callbacks = (PrivacyAudit(1000.0, seed=3), saver, StopAt(50))
    trainer = trainer_for(broken, *callbacks, max_steps=80, enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.fit(Stepwise())
    (checkpoint,) = (tmp_path / "saved").glob("*step=40.ckpt")
    module = Stepwise()
    audit = PrivacyAudit(1000.0, seed=4)  # another seed: the checkpoint's is taken
    trainer_for(broken, audit, max_steps=80).fit(module, ckpt_path=checkpoint, weights_only=True)
    report = report_in(broken)
    for one, other in zip(records(broken, report), records(whole, report), strict=True):
        assert one.tobytes() == other.tobytes()
    assert (report.history, report.bounds) == (expected.history, expected.bounds)
    left_out = RESTARTING | {"reuse.resume"}
    told, whole_told = (
        {(c.name, c.message): c.log_e_value for c in found.checks if c.name not in left_out}
        for found in (report, expected)
    )
    assert told == whole_told
    assert sum(n for *_, n in module.engines[0].accountant.history) == 80


def test_a_checkpoint_of_another_number_of_optimizers_is_refused(tmp_path):
    saved, audit = PrivacyAudit(1000.0), PrivacyAudit(1000.0)
    trainer_for(tmp_path, saved, max_steps=10).fit(TwoNets())

    class GoesOn(pl.Callback):
        def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            audit.load_state_dict(saved.state_dict())

    with pytest.raises(MisconfigurationException, match="2 private optimizers, the training has 1"):
        trainer_for(tmp_path / "one", GoesOn(), audit, max_steps=4).fit(PrivateModule())


def test_input_canaries_of_several_optimizers_are_refused_when_the_training_starts(tmp_path):
    with pytest.raises(MisconfigurationException, match="all 2 private optimizers at once"):
        trainer_for(tmp_path, PrivacyAudit(canaries=[Blank()]), max_steps=2).fit(TwoNets())


def test_a_later_run_moves_all_records_of_an_earlier_one(audited):
    for kind in (TwoNets, TwoNets, PrivateModule):
        report = audited(kind(), steps=4, **CLAIMS)
        assert report.other_records == (("observations-2.bin",) if kind is TwoNets else ())
        assert report.schema_version == SCHEMA_VERSION
    for folder in (audited.directory / "previous-1", audited.directory / "previous-2"):
        for name in ("observations.bin", "observations-2.bin", "observations-2.npz"):
            assert (folder / name).exists(), (folder, name)
        assert AuditReport.load(folder / "report.json").steps == 4
    assert not (audited.directory / "observations-2.bin").exists()
    assert report.records == ("observations.bin",)


@pytest.fixture
def bare():
    made = BareByHand()
    front = HandWrittenFront(made.session, lambda: None)
    front.open_to(made.net)
    yield made
    front.remove()


def test_rows_are_the_canaries_one_by_one_and_are_given_once_a_step(bare):
    seen, shapes = [], {name: p.shape for name, p in bare.net.named_parameters()}
    for _ in range(6):
        bare.session.start_batch()
        singles = lightning_audit.rows(module=bare.net)
        assert lightning_audit.rows(module=bare.net) == []
        samples = bare.sample_gradients()
        assert lightning_audit.per_sample(samples, module=bare.net) is samples
        assert all({name: g.shape for name, g in one.items()} == shapes for one in singles)
        joined = {n: torch.stack([g[n] for g in singles]) for n in samples} if singles else samples
        bare.update(bare.clipped_mean(joined))
        bare.session.end_batch()
        seen.append(len(singles))
    coins = bare.column("coins")
    assert seen == coins.sum(1).tolist()
    np.testing.assert_allclose(bare.column("readings"), coins, atol=1e-5)


def test_between_batches_and_when_closed_nobody_is_given_anything():
    bare = BareByHand()
    front, samples = HandWrittenFront(bare.session, lambda: None), bare.sample_gradients()
    front.open_to(bare.net)
    gradient = bare.clipped_mean(samples)
    assert lightning_audit.per_sample(samples, module=bare.net) is samples  # before the first
    bare.session.start_batch()
    bare.session.end_batch()
    assert lightning_audit.rows(module=bare.net) == []
    assert lightning_audit.released(gradient, module=bare.net) is gradient
    assert not bare.session.tap.is_shown
    bare.session.start_batch()
    front.remove()
    assert lightning_audit.per_sample(samples, module=bare.net) is samples
    bare.update(gradient)
    assert bare.column("coins").sum() == 0


def test_a_gradient_that_is_released_twice_in_a_step_stands_in_the_way_of_a_pass(bare):
    bare.session.start_batch()
    gradient = bare.clipped_mean(bare.sample_gradients())
    for _ in range(2):
        lightning_audit.released(gradient, module=bare.net)
    (sentence,) = bare.session.planner.pass_blockers
    assert sentence.startswith("lightning_audit.released was called more than once in a step")


def test_what_is_no_dictionary_of_gradients_is_refused_with_what_it_should_be(bare):
    bare.session.start_batch()
    stacked = list(bare.sample_gradients().values())
    with pytest.raises(ValueError, match=r"grads=list must be a dict .*vmap\(grad"):
        lightning_audit.per_sample(stacked, module=bare.net)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="grads=list must be a dict"):
        lightning_audit.released(stacked, module=bare.net)  # type: ignore[type-var]


def names_in(module: torch.nn.Module) -> dict[int, str]:
    return {id(p): name for name, p in module.named_parameters()}


def private_step() -> DPSGDStep:
    module = PrivateModule()
    return opacus_step(module.configure_optimizers(), names_in(module), module.modules())


def session_of(
    step: DPSGDStep, place: tuple[int, int] = (1, 1), precision: str = "32-true", **arguments: Any
) -> AuditSession:
    config = PrivacyAudit(seed=1, **arguments).config
    info = TrainingInfo(None, precision=precision, planned_steps=40)
    notes, ranks = Notes(), Ranks()
    lints = RunLints(notes, config.significance, ranks)
    optimizers = AuditedOptimizers(config, None, info, ranks, notes, lints)
    return optimizers.new_session(step, OptimizerFacts(), *place)


def test_low_precision_allows_a_canary_its_rounding():
    step = private_step()
    for precision, signal in (("32-true", 1.0), ("bf16-mixed", 1.0 + 2.0**-7)):
        session = session_of(step, precision=precision)
        assert session.monitor.header.signal == signal
        session.detach()


def test_the_divisor_is_known_of_a_mean_only():
    optimizer = PrivateModule().configure_optimizers()
    facts = facts_of(optimizer)
    assert (facts.expected_batch_size, facts.loss_reduction) == (16, "mean")
    assert facts.accountant is not None
    optimizer.loss_reduction = "sum"
    assert facts_of(optimizer).expected_batch_size is None
    optimizer.loss_reduction, optimizer.world_size = "mean", 4
    assert facts_of(optimizer).expected_batch_size == 64


def optimizer_like(old: Any, inner: torch.optim.Optimizer) -> Any:
    """Another private optimizer with the numbers and the accountant of one."""
    new = type(old)(
        inner,
        noise_multiplier=old.noise_multiplier,
        max_grad_norm=old.max_grad_norm,
        expected_batch_size=old.expected_batch_size,
    )
    new.attach_step_hook(old.step_hook)
    return new


def test_optimizer_made_anew_each_epoch_is_followed(audited):
    class Renewing(PrivateModule):
        def on_train_epoch_start(self) -> None:
            inner = torch.optim.SGD(self.trainable(), lr=0.05)
            self.trainer.optimizers = [optimizer_like(self.trainer.optimizers[0], inner)]

    report = audited(Renewing(), max_epochs=2)
    assert report.verdict.outcome == "PASS"
    assert (report.steps, report.observations) == (64, 64 * 8)


def test_two_private_optimizers_of_one_parameter_are_refused():
    module = PrivateModule()
    first = module.configure_optimizers()
    second = optimizer_like(first, torch.optim.SGD(module.trainable(), lr=0.1))
    with pytest.raises(UnauditableTraining, match=r"1 and 2 both train a parameter of shape \(32"):
        private_optimizers([first, second])
    assert private_optimizers([torch.optim.SGD(mlp().parameters(), lr=0.1), first]) == [first]


def test_several_private_optimizers_are_refused_with_input_canaries_and_on_two_processes():
    refuse_several(2, [Dirac()], processes=1)
    refuse_several(1, [Blank()], processes=2)
    with pytest.raises(UnauditableTraining, match="all 2 private optimizers at once"):
        refuse_several(2, [Blank()], processes=1)
    with pytest.raises(UnauditableTraining, match="the training has 3; train in one"):
        refuse_several(2, [Dirac()], processes=3)


@pytest.mark.parametrize(
    ("optimizers", "processes", "words"),
    [(1, 2, "in one process only, the training has 2"), (2, 1, "the module has 2 optimizers")],
)
def test_hand_written_steps_of_several_optimizers_or_processes_are_refused(
    optimizers, processes, words
):
    module = mlp()
    made = [torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(optimizers)]
    with pytest.raises(UnauditableTraining, match=words):
        hand_written_step(CLAIM, made, module, processes)


def test_an_expected_batch_of_zero_is_refused_with_its_reason(tmp_path):
    zero = with_optimizer(lambda optimizer: setattr(optimizer, "expected_batch_size", 0))
    with pytest.raises(Exception, match="expected_batch_size=0 must be > 0"):
        trainer_for(tmp_path, PrivacyAudit(), max_steps=2).fit(zero())


def test_a_private_optimizer_that_wraps_a_private_one_is_refused_before_the_first_step(tmp_path):
    class Twice(PrivateModule):
        def configure_optimizers(self) -> Any:
            inner = super().configure_optimizers()
            return optimizer_like(inner, inner)

    said = refusal_of(tmp_path, Twice(), PrivacyAudit(seed=1))
    assert "DPOptimizer wraps DPOptimizer: each clips and adds noise" in said
    assert "Call make_private once" in said
