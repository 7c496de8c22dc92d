"""What changes weights outside of private steps is named, unless it is made of released weights."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from plain_loops import Made, loss_of, made
from pytorch_lightning.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from pytorch_lightning.callbacks import StochasticWeightAveraging as Swa
from pytorch_lightning.callbacks.weight_averaging import EMAWeightAveraging
from resume_support import RESUMING, StepwiseModule
from stages import staged
from torch.nn import functional
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split
from trained import Validated, check, failing
from training_support import PrivateModule, mlp, random_data, trainer_for

from lightning_audit import Allow, AuditReport, PrivacyAudit, attach
from lightning_audit.run.fence import HOOKS, Past, simply_changed
from lightning_audit.run.reads import Reads, Records

# --- Trainings of three epochs of four steps.


def module(kind: type[PrivateModule] = PrivateModule, **given: Any) -> PrivateModule:
    torch.manual_seed(0)
    return kind(dataset=random_data(64), **given)


def trained(folder: Path, training: Any, *callbacks: Any, **given: Any) -> AuditReport:
    of_audit = {"examinations": 0, "allow": (), **given}
    audit = {name: of_audit.pop(name) for name in ("examinations", "allow")}
    callback = PrivacyAudit(seed=1, on_violation="warn", **audit)
    trainer_for(folder, callback, *callbacks, **{"max_epochs": 3, **of_audit}).fit(training)
    return callback.report


def changes(report: AuditReport) -> str:
    found = check(report, "fence.weights")
    assert found.status == ("warned" if found.evidence["changes"] else "ok")
    blocked = any(item.startswith("fence.weights: ") for item in report.verdict.pass_blockers)
    assert blocked == bool(found.evidence["changes"])
    return found.message if blocked else ""


@torch.no_grad()
def nets_weights(pl_module: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in pl_module.net.parameters()]


@torch.no_grad()
def put_all(net: torch.nn.Module, weights: list[torch.Tensor]) -> None:
    for p, value in zip(net.parameters(), weights, strict=True):
        p.copy_(value)


def raw_gradients(pl_module: Any) -> list[torch.Tensor]:
    """Gradients of the records of a loader, without clipping and noise."""
    twin = mlp()
    put_all(twin, nets_weights(pl_module))
    with torch.inference_mode(False), torch.enable_grad():
        for x, y in DataLoader(pl_module.dataset, 16):
            functional.cross_entropy(twin(x), y).backward()
    return [p.grad for p in twin.parameters()]


# --- Faults, each with the hook that is named.


class LabelBiasOfItems(PrivateModule):
    """The last bias starts at the mean label."""

    def on_fit_start(self) -> None:
        labels = [int(self.dataset[i][1]) for i in range(len(self.dataset))]
        with torch.no_grad():
            [*self.net.parameters()][-1].add_(float(np.mean(labels)))


class RawAtEnd(pl.Callback):
    """A twin trained without noise is put in at the end."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        with torch.no_grad():
            for p in pl_module.net.parameters():
                p.mul_(0.5).add_(0.5 * torch.sin(37.0 * torch.arange(p.numel()).view_as(p)))


class RawAtFitEnd(pl.Callback):
    """The same, after the report was written."""

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        RawAtEnd().on_train_end(trainer, pl_module)


class StepsInValidation(Validated, PrivateModule):
    """Trains in validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        for p, grad in zip(self.net.parameters(), raw_gradients(self), strict=True):
            p.data.sub_(0.1 * grad)


class Centers(PrivateModule):
    """Fills a buffer from the records between epochs."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.register_buffer("centers", torch.zeros(10, 8))

    def on_train_epoch_end(self) -> None:
        x, y = self.dataset.tensors
        for label in range(10):
            self.centers[label] = x[y == label].sum(0)


@pytest.mark.parametrize(
    ("kind", "callbacks", "told"),
    [
        (LabelBiasOfItems, (), "on_fit_start of the module changed 1 parameter before the first"),
        (PrivateModule, (RawAtEnd,), "on_train_end of RawAtEnd changed 6 parameters after the la"),
        (PrivateModule, (RawAtFitEnd,), "a hook on_fit_end or teardown changed 6 parameters after"),
        (StepsInValidation, (), "validation_step of the module changed 6 parameters after step 4"),
        (Centers, (), "on_train_epoch_end of the module changed buffer centers after step 4: tra"),
    ],
)
@pytest.mark.one_in(2)
@pytest.mark.heavy_one_in(5)
def test_a_change_is_named_with_its_hook(tmp_path, kind, callbacks, told):
    report = trained(tmp_path, module(kind), *(make() for make in callbacks))
    assert told in changes(report)
    assert report.verdict.outcome == "INCONCLUSIVE"


# --- Correct trainings.


class Ema(pl.Callback):
    """An average of all steps' weights, swapped in for validation and put in at the end."""

    weights: Any = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        now = nets_weights(pl_module)
        for kept, value in zip(self.weights or now, now, strict=True):
            kept.lerp_(value, 0.1)
        self.weights = self.weights or now

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.own = nets_weights(pl_module)
        put_all(pl_module.net, self.weights or self.own)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        put_all(pl_module.net, self.own)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        put_all(pl_module.net, self.weights)


EPOCH_END = "on_train_epoch_end"


def each_weight(change: Callable[[torch.Tensor], Any], hook: str) -> LambdaCallback:
    @torch.no_grad()
    def changed(trainer: Any, pl_module: Any, *_: Any) -> None:
        for p in pl_module.net.parameters():
            p.copy_(change(p))

    return LambdaCallback(**{hook: changed})


def pruned(p: torch.Tensor) -> torch.Tensor:
    return torch.where(p.abs() < p.abs().flatten().quantile(0.2), 0.0, p)


class HeldOut(Validated, PrivateModule):
    """Validates on records that are not trained on, of the same memory."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.dataset, self.held_out = random_split(self.dataset, [48, 16])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def val_dataloader(self) -> Any:
        return DataLoader(self.held_out, 8)


class Initialized(HeldOut):
    """Initializes and loads weights, and counts records, before the first step."""

    def setup(self, stage: str) -> None:
        torch.nn.init.zeros_(self.net[-1].weight)

    def on_train_start(self) -> None:
        put_all(self.net, [*mlp().parameters()])

    def on_train_epoch_start(self) -> None:
        float(self.dataset.dataset.tensors[1].float().mean())


class Confused(HeldOut):
    """Counts in a buffer what validation shows."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.register_buffer("confusion", torch.zeros(10, 10))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.confusion[batch[1], self.net(batch[0]).argmax(1)] += 1


class Averaged(PrivateModule):
    """Has an average of a weight, a constant, and a counter as buffers."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.register_buffer("constant", torch.zeros(10, 10))
        self.register_buffer("epochs", torch.zeros(1))
        self.register_buffer("average", next(self.net.parameters()).detach().clone())

    def on_train_epoch_end(self) -> None:
        self.average.lerp_(next(self.net.parameters()).detach(), 0.1)
        self.constant.fill_(1.0)
        self.epochs += 1


class LogsEpsilon(HeldOut):
    """Logs what depends on no record."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("epsilon", 1.0)
        self.log("global_step", float(self.global_step))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", PrivateModule.training_step(self, batch, batch_idx))


class StepsAtEpochsEnd(PrivateModule):
    """Makes the step of an epoch's last batch in a hook, by hand."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.optimizers().zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        if not self.trainer.is_last_batch:
            self.optimizers().step()

    def on_train_epoch_end(self) -> None:
        self.optimizers().step()


def within_norm(p: torch.Tensor) -> torch.Tensor:
    return torch.renorm(p, 2, 0, 0.5) if p.dim() > 1 else p


@pytest.mark.parametrize(
    ("kind", "callbacks"),
    staged(
        quick=[
            (HeldOut, lambda: [Ema(), ModelCheckpoint(monitor="val_loss")]),
            (PrivateModule, lambda: [Swa(0.05, 1)]),
            (HeldOut, lambda: [EMAWeightAveraging(), EarlyStopping("val_loss")]),
            (PrivateModule, lambda: [each_weight(within_norm, EPOCH_END)]),
            (Initialized, lambda: []),
            (Averaged, lambda: []),
            (Confused, lambda: []),
            (StepsAtEpochsEnd, lambda: []),
            (
                LogsEpsilon,
                lambda: [EarlyStopping("epsilon"), ModelCheckpoint(monitor="global_step")],
            ),
        ],
        nightly=[
            (PrivateModule, lambda: [each_weight(lambda p: p.clamp(-0.1, 0.1), EPOCH_END)]),
            (PrivateModule, lambda: [each_weight(lambda p: 0.99 * p, "on_train_epoch_start")]),
            (PrivateModule, lambda: [each_weight(pruned, "on_train_end")]),
        ],
    ),
)
def test_weights_made_of_released_ones_pass(tmp_path, kind, callbacks):
    given = {"enable_checkpointing": True} if kind in (HeldOut, LogsEpsilon) else {}
    report = trained(tmp_path, module(kind), *callbacks(), **given)
    assert changes(report) == ""
    assert check(report, "fence.monitors").status == "ok"


def new_head(trainer: Any, pl_module: Any) -> None:
    if trainer.current_epoch == 0:
        with torch.no_grad():
            [*pl_module.net.parameters()][-1].normal_()


def test_a_layer_drawn_anew_is_allowed_with_a_reason(tmp_path):
    reason = "drawn anew, without a look at the records"
    for allow in ((), [Allow("fence.weights", reason=reason)]):
        again = LambdaCallback(on_train_epoch_end=new_head)
        report = trained(tmp_path, module(), again, allow=allow)
        blocked = [item for item in report.verdict.pass_blockers if "fence" in item]
        assert bool(blocked) == (not allow)
        assert ("fence.weights" in report.verdict.allowed) == bool(allow)
        if blocked:
            assert "allow=[Allow('fence.weights', reason='...')]" in blocked[0]
            assert "LambdaCallback changed 1 parameter after step 4" in blocked[0]
        else:
            assert any(reason in note for note in report.notes)


def test_a_change_within_steps_is_left_to_the_replays_of_a_step_that_makes_it(tmp_path):
    noisy = each_weight(lambda p: p + 0.01 * torch.randn_like(p), "on_train_batch_end")
    given = {"max_steps": 3, "max_epochs": None}
    report = trained(tmp_path / "not", module(), noisy, **given)
    told = "LambdaCallback changed 6 parameters in step 1, and no step was examined with all of its"
    assert told in changes(report)
    assert changes(trained(tmp_path, module(), noisy, examinations=1, **given)) == ""


class ClampsAndOnceMore(pl.Callback):
    """Clamps in each step, and draws a bias again in one."""

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        for p in pl_module.net.parameters():
            p.clamp_(-0.2, 0.2)
        if trainer.global_step == 3:
            [*pl_module.net.parameters()][-1].normal_()


def test_an_examined_step_with_an_explained_change_does_not_excuse_another(tmp_path):
    given = {"examinations": 1, "max_steps": 4, "max_epochs": None}
    told = changes(trained(tmp_path, module(), ClampsAndOnceMore(), **given))
    assert "on_train_batch_end of ClampsAndOnceMore changed" in told
    assert "in step 3, and no examined step had such a change" in told


@RESUMING
def test_a_resumed_run_keeps_what_was_named(tmp_path):
    again = LambdaCallback(on_train_epoch_end=new_head)
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1, examinations=0), again, max_steps=6)
    trainer.fit(module(StepwiseModule))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    audit = PrivacyAudit(seed=1, examinations=0)
    resumed = trainer_for(tmp_path, audit, max_steps=10)
    resumed.fit(module(StepwiseModule), ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert "LambdaCallback changed 1 parameter after step 4" in changes(audit.report)
    assert check(audit.report, "fence.weights").evidence == {"changes": 1}


class ReadsInHooks(StepwiseModule):
    """Reads the records in the hooks around the load of a checkpoint, and leaves the weights."""

    def mean_label(self) -> float:
        return float(torch.stack([y for _, y in DataLoader(self.dataset)]).float().mean())

    def setup(self, stage: str) -> None:
        self.kept = self.mean_label()

    def configure_optimizers(self) -> Any:
        self.mean_label()
        return super().configure_optimizers()


class BiasOfConfigure(ReadsInHooks):
    """Sets a bias by the labels when the checkpoint has been loaded."""

    def configure_optimizers(self) -> Any:
        with torch.no_grad():
            [*self.net.parameters()][-1].fill_(self.mean_label())
        return super().configure_optimizers()


class BiasInCheckpoint(ReadsInHooks):
    """Sets it in the checkpoint that is about to be loaded."""

    def on_load_checkpoint(self, checkpoint: Any) -> None:
        [*checkpoint["state_dict"].values()][-1].fill_(self.kept)


@RESUMING
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ReadsInHooks, ""),
        (BiasOfConfigure, "configure_optimizers of the module changed 1 parameter before the fi"),
        (BiasInCheckpoint, "loading the checkpoint changed 1 parameter before the first step"),
    ],
)
def test_weights_of_the_checkpoint_are_no_change_by_a_hook(tmp_path, kind, told):
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1, examinations=0), max_steps=2)
    trainer.fit(module(StepwiseModule))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    audit = PrivacyAudit(seed=1, examinations=0, on_violation="warn")
    resumed = trainer_for(tmp_path, audit, max_steps=4)
    resumed.fit(module(kind), ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert told in changes(audit.report)
    assert bool(told) == bool(changes(audit.report))
    assert "restore_model" not in vars(resumed._checkpoint_connector)


def test_no_hook_is_left(tmp_path):
    owners = [DataLoader, TensorDataset, Dataset, pl.strategies.SingleDeviceStrategy]
    before = [dict(vars(owner)) for owner in owners]
    training, callback = module(Centers), Ema()
    trained(tmp_path, training, callback)
    assert [dict(vars(owner)) for owner in owners] == before
    assert not {*vars(training), *vars(callback)} & {*HOOKS}


def test_a_copy_or_a_pickle_of_the_module_in_a_hook_has_its_own_hooks(tmp_path):
    copies: list[Any] = []
    training = module(Averaged)
    fence = LambdaCallback(on_train_start=lambda _, pl: copies.append(copy.deepcopy(pl)))
    trained(tmp_path / "copied", training, fence)
    (copied,) = copies
    copied.on_train_epoch_end()
    assert (float(copied.epochs), float(training.epochs)) == (1.0, 3.0)
    assert "on_train_epoch_end" not in vars(training)


# --- Plain loops, whose code between two steps has no name.


def loop(training: Made, between: Callable[[Made, int], None], epochs: int = 3) -> None:
    for epoch in range(epochs):
        training.model.train()
        for batch in training.loader:
            training.optimizer.zero_grad()
            loss_of(training, batch).backward()
            training.optimizer.step()
        with torch.no_grad():
            between(training, epoch)


def attached(folder: Path, between: Callable[[Made, int], None]) -> AuditReport:
    training = made(loader=DataLoader(random_data(64), 16))
    training.optimizer.original_optimizer.param_groups[0]["momentum"] = 0.9
    given = {"examinations": 0, "on_violation": "warn", "seed": 1}
    with attach(*training.training, report_dir=folder, **given) as audit:
        loop(training, between)
    return audit.report


def test_a_change_before_the_first_step_is_in_no_step(tmp_path):
    training = made(loader=DataLoader(random_data(64), 16))
    given = {"examinations": 0, "on_violation": "warn", "report_dir": tmp_path}
    with attach(*training.training, **given) as audit:
        for number in range(12):
            loss_of(training, next(iter(training.loader))).backward()
            if number:
                training.optimizer.step()
            else:
                [*training.model.parameters()][-1].data.normal_()
            training.optimizer.zero_grad()
    told = changes(audit.report)
    assert "changed 1 parameter before the first step" in told
    assert "step 0" not in told


def weights_of(training: Made) -> list[torch.Tensor]:
    return [p.detach().clone() for p in training.model.parameters()]


def drawn_anew(training: Made, epoch: int) -> None:
    if epoch == 0:
        [*training.model.parameters()][-1].normal_()


def put_back(training: Made, epoch: int) -> None:
    if epoch == 0:
        training.best = weights_of(training)
    if epoch == 2:
        put_all(training.model, training.best)


def scaled_by_records(training: Made, epoch: int) -> None:
    training.model.eval()
    losses = [loss_of(training, batch) for batch in training.loader]
    put_all(training.model, [p / (1.0 + sum(losses)) for p in weights_of(training)])


# --- What a plain loop reads between two steps.


def records(training: Made) -> torch.Tensor:
    return training.loader.dataset.tensors[0]


def scaled_by_numpy(training: Made, epoch: int) -> None:
    next(iter(training.model.parameters())).mul_(float(np.abs(records(training).numpy()).mean()))


def state_of_gradients(training: Made, epoch: int) -> None:
    for p in training.model.parameters():
        state = training.optimizer.original_optimizer.state[p]
        state["momentum_buffer"] = torch.sin(37.0 * torch.arange(p.numel())).view_as(p)


def mean_joins(training: Made, epoch: int) -> None:
    training.model.register_buffer("mean", records(training).mean(0))


def kept_mean_joins(training: Made, epoch: int) -> None:
    training.model.register_buffer("mean", torch.arange(8.0))


@pytest.mark.parametrize(
    ("between", "told"),
    [
        (drawn_anew, "1 parameter changed between steps 4 and 5: the new weights are not made of"),
        (put_back, "6 parameters changed after the last step: the weights of an earlier step are"),
        (scaled_by_records, "6 parameters changed between steps 4 and 5: training records were re"),
        (scaled_by_numpy, "1 parameter changed between steps 4 and 5: training records were read"),
        (state_of_gradients, "new values of optimizer state are not known to be made of released"),
        (mean_joins, "buffer mean changed between steps 4 and 5: training records were read"),
        (kept_mean_joins, "buffer mean changed between steps 4 and 5: new values of buffers are"),
    ],
)
@pytest.mark.one_in(2)
@pytest.mark.heavy_one_in(5)
def test_a_change_in_a_plain_loop_is_named_by_the_steps_around_it(tmp_path, between, told):
    report = attached(tmp_path, between)
    assert told in changes(report)
    assert report.verdict.outcome == "INCONCLUSIVE"


def accuracy(training: Made) -> float:
    training.model.eval()
    x, y = training.loader.dataset.tensors
    return float((training.model(x).argmax(1) == y).float().mean())


def average_in_at_the_end(training: Made, epoch: int) -> None:
    now = weights_of(training)
    before = getattr(training, "average", now)
    training.average = [a.lerp(p, 0.5) for a, p in zip(before, now, strict=True)]
    accuracy(training)
    if epoch == 2:
        put_all(training.model, training.average)


def average_swapped_in(training: Made, epoch: int) -> None:
    own = weights_of(training)
    put_all(training.model, [0.5 * p for p in own])
    accuracy(training)
    put_all(training.model, own)


def clamped(training: Made, epoch: int) -> None:
    put_all(training.model, [p.clamp(-0.2, 0.2) for p in weights_of(training)])
    accuracy(training)


def state_zeroed(training: Made, epoch: int) -> None:
    accuracy(training)
    for state in training.optimizer.original_optimizer.state.values():
        state["momentum_buffer"] = torch.zeros_like(state["momentum_buffer"])


@pytest.mark.parametrize(
    "between", [average_in_at_the_end, average_swapped_in, clamped, state_zeroed, lambda *_: None]
)
@pytest.mark.one_in(2)
@pytest.mark.heavy_one_in(5)
def test_a_loop_that_evaluates_on_training_records_passes(tmp_path, between):
    assert changes(attached(tmp_path, between)) == ""


def test_modes_of_the_user_are_as_without_the_audit(tmp_path):
    training = made(loader=DataLoader(random_data(64), 16))
    with attach(*training.training, report_dir=tmp_path, examinations=0, on_violation="warn"):
        for batch in training.loader:
            with torch.device("cpu"), BaseTorchFunctionMode() as own:
                training.optimizer.zero_grad()
                loss_of(training, batch).backward()
                training.optimizer.step()
                assert _get_current_function_mode_stack()[-1] is own
            training.model.eval()(batch[0])
            training.model.train()
        assert len(_get_current_function_mode_stack()) == 1
    assert not _get_current_function_mode_stack()


# --- Metrics without noise that decide.


def raw_loss(training: Made, scheduler: Any) -> None:
    scheduler.step(training.loss.detach())


def training_records(training: Made, scheduler: Any) -> None:
    with torch.no_grad():
        scheduler.step(accuracy(training))


def other_records(training: Made, scheduler: Any) -> None:
    training.model.eval()
    with torch.no_grad():
        losses = [loss_of(training, b).item() for b in DataLoader(random_data(20, seed=1), 10)]
        accuracy(training)
    scheduler.step(sum(losses))


@pytest.mark.parametrize(
    ("decides", "raw"), [(raw_loss, True), (training_records, True), (other_records, False)]
)
def test_a_plateau_scheduler_of_a_loop_is_named_unless_it_gets_other_records(
    tmp_path, decides, raw
):
    training = made(loader=DataLoader(random_data(64), 16))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(training.optimizer)
    given = {"examinations": 0, "on_violation": "warn"}
    with attach(*training.training, report_dir=tmp_path, **given) as audit:
        for _ in range(2):
            for batch in training.loader:
                training.optimizer.zero_grad()
                training.loss = loss_of(training, batch)
                training.loss.backward()
                training.optimizer.step()
            decides(training, scheduler)
            training.model.train()
    blocked = [item for item in audit.report.verdict.pass_blockers if "fence.monitors" in item]
    assert bool(blocked) == raw
    assert not raw or "ReduceLROnPlateau.step at" in blocked[0]


class LogsLoss(Validated, PrivateModule):
    """Logs its loss in training and on the training records in validation."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", PrivateModule.training_step(self, batch, batch_idx))


class Plateau(LogsLoss):
    """Its learning rate follows the loss."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "train_loss_epoch"},
        }


@pytest.mark.parametrize(
    ("kind", "callbacks", "told"),
    [
        (Plateau, (), "ReduceLROnPlateau follows `train_loss_epoch`, which the training logs"),
        (LogsLoss, ("train_loss",), "EarlyStopping follows `train_loss`, which the training logs"),
        (LogsLoss, ("val_loss",), "follows `val_loss` of a loader that gives training records"),
    ],
)
def test_a_metric_without_noise_that_decides_is_named_before_step_1(
    tmp_path, caplog, kind, callbacks, told
):
    stops = [EarlyStopping(name) for name in callbacks]
    report = trained(tmp_path, module(kind), *stops, max_epochs=1)
    assert told in check(report, "fence.monitors").message
    assert any(told in item for item in report.verdict.pass_blockers)
    assert any(told in line for line in caplog.messages)


# --- Which records a loader, a data set or a part of memory gives.


class Listed(Dataset):
    """Records in a list, which torch does not see."""

    def __init__(self, size: int) -> None:
        self.items = [(torch.randn(8), i % 10) for i in range(size)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_loaders_share_records_by_memory_and_rows():
    data = random_data(64)
    x, y = data.tensors
    halves = TensorDataset(x[:32], y[:32]), TensorDataset(x[32:], y[32:])
    parts = random_split(data, [40, 24])
    listed = Listed(10)
    arrays = TensorDataset(torch.from_numpy(x.numpy()))
    same = [(data, data), (data, arrays), (data, parts[0]), (data, halves[1]), (listed, listed)]
    for one, other in [*same, (Subset(parts[0], [3]), data), (Subset(listed, [1, 2]), listed)]:
        assert Records([DataLoader(one)]).share(Records(DataLoader(other)))
        assert Records([DataLoader(other)]).share(Records(DataLoader(one)))
    others = [parts, halves, (Subset(listed, [1, 2]), Subset(listed, [3])), (data, random_data(64))]
    for one, other in [*others, (Subset(parts[0], [1]), Subset(parts[0], [0]))]:
        assert not Records([DataLoader(one)]).share(Records(DataLoader(other)))
        assert not Records([DataLoader(other)]).share(Records(DataLoader(one)))


class Rows(Dataset):
    """Rows of a tensor less a mean."""

    def __init__(self, x: torch.Tensor, mean: torch.Tensor) -> None:
        self.x, self.mean = x, mean

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.x[index] - self.mean


class Wrapped(Dataset):
    """Gives what another data set gives, the first ``count`` of them."""

    def __init__(self, base: Any, count: int) -> None:
        self.base, self.count = base, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.base[index]


def test_parts_without_a_common_record_share_none():
    data, mean = random_data(64), torch.zeros(8)
    turned = torch.randn(8, 64).t()
    wholes = [
        ConcatDataset([data, random_data(20)]),
        Wrapped(data, 64),
        Rows(torch.ones(64, 8), mean),
    ]
    pairs = [random_split(whole, [len(whole) - 20, 20]) for whole in wholes]
    pairs += [(TensorDataset(turned[:40]), TensorDataset(turned[40:]))]
    pairs += [(Rows(torch.randn(40, 8), mean), Rows(torch.randn(20, 8), mean))]
    for one, other in [*pairs, (Wrapped(data, 10), Subset(data, range(10, 20)))]:
        assert not Records(DataLoader(one)).share(Records(DataLoader(other)))
        assert Records(DataLoader(one)).share(Records(Subset(one, [3])))
    x = torch.randn(1, 64 * 8)
    assert not Records(pairs[2][0]).lie_in(np.array([mean.data_ptr(), x.data_ptr()]), 32)


def test_records_of_joined_parts_are_all_known():
    data = random_data(64)
    joined = ConcatDataset([Subset(data, range(30)), Subset(data, range(50, 60))])
    records = Records([DataLoader(joined)])
    given = [[records.give(data, n) for n in (3, 55, -5, slice(29, 40))], [records.give(data, 40)]]
    assert given == [[True] * 4, [False]]
    half = Records(Subset(ConcatDataset([random_data(8), data]), range(12)))
    assert [half.give(data, n) for n in (3, 4)] == [True, False]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_functions_are_traced_and_transformed_within_a_watched_hook():
    reads = Reads()
    with reads:
        traced = torch.jit.trace(lambda x: 2 * x.sum(), torch.ones(2))
        slopes = torch.func.vmap(torch.func.grad(lambda w: w.square().sum()))(torch.ones(3, 2))
    assert str(traced.graph).count("aten::") == 2
    assert torch.equal(slopes, torch.full((3, 2), 2.0))


def test_functions_are_compiled_whole_within_a_watched_hook():
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: 2 * x.sum(), fullgraph=True, backend=backend)
    with Reads():
        assert float(compiled(torch.ones(3))) == 6.0
    assert len(graphs) == 1


def seen(reads: Reads, records: Records) -> bool:
    return any(read(records) for read in reads.seen.values())


def test_reads_of_memory_are_seen_and_views_and_other_rows_are_none():
    data = random_data(64)
    mine, others = (Records([part]) for part in random_split(data, [40, 24]))
    reads = Reads()
    with reads:
        row = data.tensors[0][int(mine.sets[id(data)][1][0])]
    assert not seen(reads, mine)
    with reads:
        row.sum()
    assert seen(reads, mine)
    assert not seen(reads, others)


def test_only_a_failure_of_the_audits_own_is_one(monkeypatch):
    reads = Reads()
    with reads:
        assert torch.ones(3, 3).to_sparse().to_dense()[torch.eye(3) > 0].sum() == 3.0
        assert torch.ones(())[None].shape == (1,)
    assert not reads._boundary.failure
    monkeypatch.setattr(Reads, "_note", failing(KeyError()))
    with reads:
        assert float(torch.ones(2).sum()) == 2.0
    assert reads._boundary.failure == "KeyError in run.reads._look"


def test_memory_that_was_freed_since_is_not_read():
    reads = Reads()
    data = torch.randn(64, 8)
    with reads:
        data.mean()
    place = data.data_ptr()
    records = Records([TensorDataset(data)])
    assert seen(reads, records)
    again = torch.from_numpy(np.empty(0, dtype=np.float32))
    del data, records
    records = Records([TensorDataset(again)])
    records._places = [(place + 32 * np.arange(64), 32)]  # as of a tensor that lies there now
    assert not seen(reads, records)


# --- What is made of released weights.


def walk(steps: int, size: int = 700, seed: int = 0) -> torch.Tensor:
    """Weights of a training: a random walk, ``[steps + 1, size]``."""
    generator = torch.Generator().manual_seed(seed)
    moves = 0.01 * torch.randn(steps, size, generator=generator)
    return torch.cat([torch.randn(1, size, generator=generator), moves]).cumsum(0)


def past(weights: torch.Tensor, every: int = 10) -> Past:
    made_of = Past(weights[0])
    for step, row in enumerate(weights[1:], 1):
        made_of.add(row)
        if step % every == 0:
            made_of.end_epoch()
    return made_of


def why_not(weights: torch.Tensor, new: torch.Tensor) -> str:
    return past(weights).why_not(weights[-1], new, torch.ones(len(new), dtype=torch.bool))


def average(weights: torch.Tensor, decay: Callable[[int], float]) -> torch.Tensor:
    kept = weights[0].clone()
    for step, row in enumerate(weights[1:], 1):
        kept.lerp_(row, 1.0 - decay(step))
    return kept


@pytest.mark.parametrize("steps", [30, 400, 2000])
@pytest.mark.parametrize(
    "decay",
    [
        *(lambda _, d=d: d for d in (0.5, 0.9, 0.99, 0.995, 0.999, 0.9999)),
        lambda step: min(0.999, (1 + step) / (10 + step)),
        lambda step: step / (step + 1),
        lambda step: 1.0 if step % 10 else 0.7,
    ],
)
def test_averages_of_all_steps_are_made_of_released_weights(steps, decay):
    weights = walk(steps)
    assert why_not(weights, average(weights, decay)) == ""


@pytest.mark.parametrize("steps", [30, 400])
def test_other_weights_are_not_made_of_released_ones(steps):
    weights, again = walk(steps), walk(steps, seed=1)
    for new in (again[-1], weights[-1] + 1e-3 * again[-1], 0.9 * weights[-1] + 0.1 * again[-1]):
        assert "not made of" in why_not(weights, new)
    for earlier in (0, 20, steps // 2, steps - 3):
        assert why_not(weights, weights[earlier])
    masked = weights[-1] * (again[-1] > 0.0)
    assert "not made of" in why_not(weights, masked)


def test_nothing_is_said_of_few_weights_or_of_a_training_that_goes_on():
    weights, again = walk(400, 200), walk(400, seed=1)
    assert why_not(weights, again[-1, :200]) == ""
    assert Past(again[0], whole=False).why_not(again[0], again[-1], again[0] != 0.0) == ""
    assert why_not(weights, weights[20])


def every_tenth(weights: torch.Tensor, phase: int) -> torch.Tensor:
    """An average of each tenth step's weights, which are copied until step 100."""
    kept = weights[0].clone()
    for step in range(10 + phase, len(weights), 10):
        kept.lerp_(weights[step], 1.0 if step <= 100 else 0.005)
    return kept


@pytest.mark.parametrize("steps", [500, 2005])
@pytest.mark.parametrize("phase", [0, 1])
def test_an_average_of_each_tenth_step_is_made_of_released_weights(steps, phase):
    weights = walk(steps)
    assert why_not(weights, every_tenth(weights, phase)) == ""


@pytest.mark.parametrize("epochs", [2, 80, 150])
def test_the_mean_of_all_epochs_ends_is_made_of_released_weights(epochs):
    weights = walk(10 * epochs)
    assert why_not(weights, weights[10::10].double().mean(0).float()) == ""


def test_scaled_clamped_and_pruned_tensors_are_simple_and_others_are_not():
    old = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    simple = [0.5 * old, old.clamp(-0.3, 0.4), pruned(old), torch.renorm(old, 2, 0, 1.0), 0 * old]
    assert all(simply_changed(old, new) for new in simple)
    flipped = old.clone()
    flipped[0, 0] += 1e-2
    others = [flipped, old.flip(0), old * (old.abs() < 1.0), old + 1.0, torch.full_like(old, 0.3)]
    assert not any(simply_changed(old, new) for new in others)
    assert not simply_changed(torch.ones(1), 2 * torch.ones(1))
