"""Ways in which people bring Opacus into a Lightning training, other than in the module's net."""

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch
import lightning.pytorch.cli
import pytest
import pytorch_lightning as pl
import pytorch_lightning.cli
import torch
import yaml
from artefacts import differences
from neighbours import Kind, neighbours
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.lightning import DPLightningDataModule
from opacus.optimizers import DPOptimizer
from places import REPOSITORY
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from stages import staged
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from trained import Audited
from training_matrix import COMPARED, ROWS, Row
from training_support import (
    PrivateModule,
    PrivateTraining,
    assert_no_hooks_left,
    digits,
    mlp,
    random_data,
    replace_optimizer,
    report_in,
    status,
    trainer_for,
    violation,
)

import lightning_audit
from lightning_audit import (
    Allow,
    AuditReport,
    PrivacyAudit,
    PrivacyClaim,
    PrivacyViolation,
    Resolution,
)
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.canaries import BlockPair, Crafted, Dirac, Mislabeled, Random, Spread
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.disclosure import shown
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.named_bounds import BOUND_NAMES
from lightning_audit.testing.faulty import FirstRowNotClipped, HalfNoise

pytestmark = pytest.mark.filterwarnings(
    "ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"
)


NAMES = (
    "epsilon_lower",
    "epsilon_spent",
    "claimed_epsilon",
    "mu_lower",
    "e_value",
    "observations",
    "step",
    "violated",
    *(f"epsilon_lower/{name}" for name in BOUND_NAMES if name != "katz"),
    *(f"epsilon_step_lower/{name}" for name in BOUND_NAMES),
    "epsilon_lower/mu",
    "epsilon_step_lower/mu",
)


def _rows(logger: CSVLogger, prefix: str = "audit") -> list[dict[str, str]]:
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get(f"{prefix}/violated")]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """The whole report of two epochs, and the loggers that got their metrics."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("logged")
    audit = PrivacyAudit(seed=1, examinations=1, bounds="all")
    loggers = CSVLogger(folder), TensorBoardLogger(folder)
    trainer_for(folder, audit, logger=[*loggers], max_epochs=2).fit(PrivateModule())
    return audit.report, *loggers


@pytest.mark.whole_report
def test_csv_logger_gets_every_metric_of_every_epoch(logged):
    report, logger, _ = logged
    rows = _rows(logger)
    assert [int(row["epoch"]) for row in rows] == [0, 1]
    for row, epoch in zip(rows, report.epochs, strict=True):
        for name in NAMES:
            assert float(row[f"audit/{name}"]) == pytest.approx(epoch[name], rel=1e-5), name
    last = {name: float(rows[-1][f"audit/{name}"]) for name in NAMES}
    assert (last["observations"], last["violated"]) == (64 * 8, 0)
    assert last["e_value"] >= 1
    assert last["epsilon_spent"] == pytest.approx(report.epsilon_spent, rel=1e-5)
    assert 0 < last["epsilon_lower"] <= last["epsilon_spent"]
    assert last["claimed_epsilon"] == pytest.approx(report.claimed_epsilon, rel=1e-5)
    assert 0 < last["mu_lower"] <= 1
    at_end = float(rows[-1]["audit/epsilon_lower_at_end"])
    assert at_end == pytest.approx(report.epsilon_lower_at_end, rel=1e-5)
    assert at_end > 0
    assert "epsilon_lower_at_end" not in report.epochs[0]
    for bound in report.bounds[1:]:
        if bound.name == "at_end":
            continue
        told = last[f"epsilon_step_lower/{bound.name}"]
        assert told == pytest.approx(bound.epsilon_step_lower, rel=1e-5)


@pytest.mark.whole_report
def test_tensorboard_gets_every_metric(logged):
    report, _, logger = logged
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert {f"audit/{name}" for name in NAMES} <= set(events.Tags()["scalars"])
    assert events.Tags()["images"] == ["audit/report"]
    (picture,) = events.Images("audit/report")
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    assert (picture.width, picture.height, picture.step) == (1200, 500, 64)
    for name in NAMES:
        values = [event.value for event in events.Scalars(f"audit/{name}")]
        assert values == pytest.approx([epoch[name] for epoch in report.epochs], rel=1e-5)


@pytest.mark.whole_report
@pytest.mark.parametrize(("names", "prefix"), [((), "audit"), (("eps_cp", "fdp_cp"), "privacy")])
def test_only_the_bounds_that_are_asked_for_are_computed_and_logged_under_the_prefix(
    tmp_path, audited, names, prefix
):
    loggers = [CSVLogger(tmp_path, name) for name in ("first", "second")]
    given = {"bounds": list(names), "log_prefix": prefix, "logger": loggers}
    report = audited(PrivateModule(), examinations=0, max_epochs=1, **given)
    betting, at_end, mu, *others = report.bounds
    assert (betting.looks, betting.epsilon_lower) == ("anytime", report.epsilon_lower)
    assert (at_end.name, at_end.looks) == ("at_end", "single")
    assert (mu.name, mu.looks) == ("mu", "single")
    assert {bound.name for bound in others} == set(names)
    assert list(report.settings["bounds"]) == sorted(names, reverse=True)
    for logger in loggers:
        (row,) = _rows(logger, prefix)
        told = {name for name in row if name.startswith(("audit/", "privacy/"))}
        if names:
            wanted = {f"epsilon{step}_lower/{name}" for name in names for step in ("", "_step")}
        else:
            wanted = {*NAMES[:8], "epsilon_lower_at_end"}
        assert {f"{prefix}/{name}" for name in wanted} <= told
        assert (len(told) == 9) == (not names)
        assert all(name.startswith(f"{prefix}/") for name in told)


#: An epoch of eight steps without examinations: only its end is looked at.
SHORT = {"bounds": (), "examinations": 0, "limit_train_batches": 8}


def test_of_short_epochs_the_last_is_looked_at_and_of_long_ones_each(audited, monkeypatch):
    def epochs(**planned: int) -> list[float]:
        report = audited(PrivateModule(), **SHORT, **planned)
        assert report.epochs[-1]["step"] == report.steps
        return [row["epoch"] for row in report.epochs]

    assert epochs(max_epochs=4) == [0, 1, 2, 3]
    monkeypatch.setattr("lightning_audit.run.audit_run.EPOCH_SHARE", 0.0)
    assert epochs(max_epochs=4) == [3]
    assert epochs(max_epochs=9, max_steps=20) == [2]


def test_checkpoints_can_be_chosen_by_an_audit_metric_of_each_epoch(tmp_path, audited, monkeypatch):
    monkeypatch.setattr("lightning_audit.run.audit_run.EPOCH_SHARE", 0.0)
    by = {"monitor": "audit/epsilon_spent", "mode": "min", "filename": "{epoch}"}
    best = ModelCheckpoint(tmp_path / "checkpoints", **by)
    report = audited(PrivateModule(), best, enable_checkpointing=True, max_epochs=3, **SHORT)
    assert [row["epoch"] for row in report.epochs] == [0, 1, 2]
    assert Path(best.best_model_path).name == "epoch=0.ckpt"
    spent = report.epochs[0]["epsilon_spent"]
    assert float(best.best_model_score) == pytest.approx(spent, rel=1e-5)


class _End(pl.Callback):
    ended = 0

    def on_train_end(self, *_: Any) -> None:
        self.ended += 1


class _Ends(PrivateModule):
    ended = 0

    def on_train_end(self) -> None:
        self.ended += 1


def test_before_a_violation_its_epoch_is_logged_and_checkpoints_and_callbacks_have_their_end(
    tmp_path,
):
    logger, before, after = CSVLogger(tmp_path), _End(), _End()
    module, audit = _Ends(optimizer_class=HalfNoise), PrivacyAudit(seed=1)
    saves = ModelCheckpoint(tmp_path / "checkpoints", save_last=True, save_top_k=0)
    given = {"enable_checkpointing": True, "max_epochs": 5, "logger": logger}
    with pytest.raises(PrivacyViolation):
        trainer_for(tmp_path, before, audit, after, saves, **given).fit(module)
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert before.ended == after.ended == module.ended == 1
    (row,) = _rows(logger)
    assert float(row["audit/violated"]) == 1
    assert float(row["audit/e_value"]) > 1e3
    assert float(row["audit/observations"]) == report_in(tmp_path).steps * 8


#: Of one check and pair of trainings at most: an e-value crosses a power of ten now and then.
PAIRS, MOST = 20, 1


def name_of(value: object) -> str:
    return f"{value.group}: {value.name}" if isinstance(value, Row) else str(value)


@pytest.mark.parametrize(
    ("row", "kind"),
    staged(
        quick=[(ROWS[0], "replaced")],
        heavy=[(row, "removed") for row in COMPARED],
        nightly=[
            (row, kind)
            for row in ROWS
            for kind in ("replaced", "removed")
            if row is not ROWS[0] and (row not in COMPARED or kind == "replaced")
        ],
    ),
    ids=name_of,
)
@pytest.mark.heavy_one_in(6)
def test_artefacts_of_neighbours_with_the_same_releases_are_equal(tmp_path, row, kind):
    one, other = neighbours(tmp_path, row, kind)
    assert differences(one, other) == []
    assert not any(check["status"] == "violated" for check in one.report["checks"])


#: A coarse field is looked at in pairs of these trainings in turn.
TRAINED = [ROWS[0], *COMPARED[1:4]]


@pytest.mark.nightly
def test_a_coarse_field_seldom_differs_between_neighbours(tmp_path):
    differ: Counter[str] = Counter()
    for seed in range(PAIRS):
        kind: Kind = "removed" if seed // len(TRAINED) % 2 else "replaced"
        row = TRAINED[seed % len(TRAINED)]
        one, other = neighbours(tmp_path / str(seed), row, kind, seed=seed, examinations=1)
        assert differences(one, other) == []
        for a, b in zip(one.report["checks"], other.report["checks"], strict=True):
            differ[a["name"]] += a["log_e_value"] != b["log_e_value"]
    assert max(differ.values()) <= MOST, differ


def one_full_batch(audited: Audited, value: float) -> dict[str, dict]:
    """Evidence of one full-batch step with noise multiplier 20, by check."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator)
    x[3, 0] = value
    data = TensorDataset(x, torch.randint(0, 10, (64,), generator=generator))
    torch.manual_seed(2)
    noise = {"noise_multiplier": 20.0, "generator": torch.Generator().manual_seed(5)}
    module = PrivateModule(dataset=data, batch_size=64, **noise)
    report = audited(module, claimed_epsilon=1000.0, steps=1)
    return {check.name: dict(check.evidence) for check in report.checks}


def test_one_value_of_a_record_is_not_read_off_the_norm_of_the_clipped_sum(audited):
    private = {check.name: check.public for check in REGISTRY.values() if check.private}
    noise = ("excess", "mean", "shape", "entries", "whole")
    reuse = ("forecast", "entries", "recurrence")
    hidden = [f"noise.{name}" for name in noise] + [f"reuse.{name}" for name in reuse]
    one, other = (one_full_batch(audited, value) for value in (0.0, 4.0))
    for name in (*hidden, "coupling"):
        assert one[name] == other[name] == {}
    for name in private.keys() & one.keys():
        assert {*one[name]} <= {*private[name]}


#: By check, a number of the data that is computed and not in the report.
OF_DATA = (
    *(("noise.excess", name) for name in ("sum_norm_over_terms", "ratio")),
    *(("noise.mean", name) for name in ("positive", "negative")),
    *(("reuse.recurrence", "difference_ratio"), ("coupling", "change")),
)


def test_a_number_of_the_data_that_is_computed_is_not_in_the_report(audited, monkeypatch):
    computed: dict[str, dict[str, object]] = {}

    def watched(check: CheckResult, significance: float) -> CheckResult:
        computed[check.name] = dict(check.evidence)
        return shown(check, significance)

    monkeypatch.setattr("lightning_audit.run.evaluation.shown", watched)
    audited(PrivateModule(), examinations=1, steps=20)
    text = (audited.directory / "report.json").read_text()
    checks = {check["name"]: check for check in json.loads(text)["checks"]}
    for check, number in OF_DATA:
        assert number in computed[check]
        assert checks[check]["status"] == "ok"
        assert number not in checks[check]["evidence"]
        assert number == "ratio" or f'"{number}"' not in text


class OwnClipping(FirstRowNotClipped):
    """Of the user."""


def test_places_in_a_report_are_not_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = PrivateModule(mlp(64), dataset=digits(), optimizer_class=OwnClipping)
    report = violation(tmp_path, module, PrivacyAudit(seed=1, examinations=1), max_steps=20)
    text = (tmp_path / "audit" / "report.json").read_text()
    assert str(Path(lightning_audit.__file__).parents[1]) not in text
    assert str(Path(torch.__file__).parents[1]) not in text
    places = [place for c in report.checks if (place := c.evidence.get("where"))]
    assert places
    files = [p.partition(" at ")[2].rpartition(":")[0] for w in places for p in w.split(", ")]
    assert {str(Path(__file__).relative_to(REPOSITORY))} <= {*files}
    assert all(file.endswith(".py") and not Path(file).is_absolute() for file in files)
    assert any("computed from un-noised data" in note for note in report.notes)


STEPS_PER_EPOCH = 32


SAMPLE_RATE = 1 / STEPS_PER_EPOCH


def assert_sound(report: AuditReport, steps: int, *, sigma: float = 1.0) -> None:
    """Every step was observed, the training passes, and its epsilon is that of its steps."""
    assert report.verdict.outcome == "PASS", report.verdict
    assert (report.steps, report.observations) == (steps, steps * 8)
    expected = epsilon_of_history([Phase(sigma, SAMPLE_RATE, steps)], report.delta)
    assert report.epsilon_spent == pytest.approx(expected, rel=0.01)


class PlainData(pl.LightningDataModule):
    """Data that know nothing of privacy."""

    def train_dataloader(self) -> DataLoader:
        return DataLoader(random_data(), batch_size=16)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(random_data(64, seed=1), batch_size=16)


class SelfPrivate(pl.LightningModule):
    """As in Opacus' own Lightning example: the whole module is made private, on the data module's
    loader, and the trainer goes on with the module that it was given.
    """

    def __init__(self, optimizer_class: type[DPOptimizer] = DPOptimizer) -> None:
        super().__init__()
        self.net, self.engine, self.optimizer_class = mlp(), PrivacyEngine(), optimizer_class

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> DPOptimizer:
        self.trainer.fit_loop.setup_data()
        loader = self.trainer.train_dataloader
        assert isinstance(loader, DPDataLoader)
        plain = torch.optim.SGD(self.parameters(), lr=0.05)
        private, optimizer = made_private(self.engine, self, plain, loader)
        self.private = {"model": private}  # in a dict, so that it is no submodule of its own
        return replace_optimizer(optimizer, self.optimizer_class)


def made_private(
    engine: PrivacyEngine, net: nn.Module, optimizer: Any, loader: DataLoader, **more: Any
) -> tuple[Any, DPOptimizer]:
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, **more}
    return engine.make_private(module=net, optimizer=optimizer, data_loader=loader, **given)[:2]


@pytest.mark.parametrize("kind", [DPOptimizer, HalfNoise])
def test_opacus_data_module_with_the_module_itself_private_is_judged_by_its_noise(tmp_path, kind):
    audit, module = PrivacyAudit(seed=1, on_violation="stop"), SelfPrivate(kind)
    data = DPLightningDataModule(PlainData())
    trainer_for(tmp_path, audit, max_steps=64).fit(module, datamodule=data)
    if kind is HalfNoise:
        assert audit.report.verdict.fault.startswith("noise scale too small")
        return
    assert_sound(audit.report, 64)
    assert status(audit.report, "sampling.not_poisson") == "ok"
    assert_no_hooks_left(module)


class PlainModule(PrivateModule):
    """A training without privacy, on a Poisson loader."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.inner(self.trainable())


class MakePrivate(pl.Callback):
    """A user's callback that makes a training private, when one hook is called.

    Args:
        hook: the callback's hook.
        once: at the first call only, rather than at each.
        one_engine: one engine and so one accountant, rather than a new one each time.
        optimizer_class: replaces Opacus' optimizer.
    """

    def __init__(
        self,
        hook: str,
        *,
        once: bool = True,
        one_engine: bool = True,
        optimizer_class: type[DPOptimizer] = DPOptimizer,
    ) -> None:
        self.engine, self.made = PrivacyEngine(), 0
        self.once, self.one_engine = once, one_engine
        self.optimizer_class = optimizer_class
        setattr(self, hook, self._make)

    def _make(self, trainer: pl.Trainer, pl_module: PlainModule, *_: Any) -> None:
        if self.made and self.once:
            return
        if not self.one_engine:
            self.engine = PrivacyEngine()
        self.made += 1
        plain = getattr(trainer.optimizers[0], "original_optimizer", trainer.optimizers[0])
        loader = pl_module.plain_loader()
        pl_module.net, optimizer = made_private(self.engine, pl_module.net, plain, loader)
        trainer.strategy.optimizers = [replace_optimizer(optimizer, self.optimizer_class)]


HOOKS = ["on_train_start", "on_train_epoch_start", "on_train_batch_start"]


either_order = pytest.mark.parametrize("first", staged([True], nightly=[False]))


def by_callback(
    folder: Path, user: MakePrivate, first: bool, **planned: Any
) -> tuple[PlainModule, AuditReport]:
    """Train with an audit before or behind the callback that makes the training private."""
    module, audit = PlainModule(), PrivacyAudit(seed=1, on_violation="stop")
    callbacks = [audit, user] if first else [user, audit]
    trainer_for(folder, *callbacks, **(planned or {"max_steps": 64})).fit(module)
    return module, audit.report


@pytest.mark.parametrize("hook", HOOKS)
@either_order
@pytest.mark.one_in(4)
@pytest.mark.heavy_one_in(4)
def test_private_by_a_callback_passes_wherever_the_audit_stands(tmp_path, hook, first):
    module, report = by_callback(tmp_path, MakePrivate(hook), first)
    assert_sound(report, 64)
    assert status(report, "no_dp") == "ok"
    assert_no_hooks_left(module)


def test_stated_mechanism_is_audited_although_a_callback_makes_it_private_late(audited):
    claim = PrivacyClaim(noise_multiplier=1.0, sample_rate=SAMPLE_RATE)
    assert_sound(audited(PlainModule(), MakePrivate("on_train_epoch_start"), claim=claim), 64)


@either_order
def test_engine_that_makes_private_anew_each_epoch_is_accounted_once(tmp_path, first):
    user = MakePrivate("on_train_epoch_start", once=False)
    _, report = by_callback(tmp_path, user, first, max_epochs=2)
    assert user.made == 2
    assert_sound(report, 2 * STEPS_PER_EPOCH)
    assert sum(n for *_, n in user.engine.accountant.history) == 2 * STEPS_PER_EPOCH


def test_accountant_that_starts_anew_each_epoch_is_found_to_forget(accused):
    user = MakePrivate("on_train_epoch_start", once=False, one_engine=False)
    report = accused(PlainModule(), user, max_epochs=4)
    assert report.verdict.kind == "accounting"
    assert status(report, "noise") == "ok"


class MadeByCommand:
    """A training that a command line can make."""

    def __init__(self, faulty: bool = False) -> None:
        super().__init__(optimizer_class=HalfNoise if faulty else None)


class StandaloneModule(MadeByCommand, PrivateModule):
    """Of `pytorch_lightning`."""


class UnifiedModule(MadeByCommand, PrivateTraining, lightning.pytorch.LightningModule):
    """Of `lightning.pytorch`."""


PACKAGES = {
    "pytorch_lightning": (pl, StandaloneModule),
    "lightning.pytorch": (lightning.pytorch, UnifiedModule),
}


@pytest.fixture(params=PACKAGES)
def package(request, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return PACKAGES[request.param][0]


def module_of(package: ModuleType) -> type:
    return PACKAGES[package.__name__][1]


QUIET = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


def with_audit(**arguments: Any) -> dict[str, Any]:
    """A configuration with an audit as it would be read from YAML."""
    audit = {"class_path": "lightning_audit.PrivacyAudit", "init_args": arguments}
    trainer = {"accelerator": "cpu", "callbacks": [audit], **QUIET}
    return {"seed_everything": False, "trainer": trainer}


def parse(package: ModuleType, args: Any) -> PrivacyAudit:
    """The audit of the Trainer that a LightningCLI makes."""
    cli = package.cli.LightningCLI(module_of(package), run=False, args=args)
    (audit,) = [c for c in cli.trainer.callbacks if isinstance(c, PrivacyAudit)]
    return audit


CLAIM = {"noise_multiplier": 1.0, "sample_rate": 0.1, "private_dataset_size": True}


ARGUMENTS: dict[str, Any] = {
    "claimed_epsilon": 8.0,
    "delta": 1e-6,
    "claim": {"class_path": "lightning_audit.PrivacyClaim", "init_args": CLAIM},
    "canaries": [
        {"class_path": "lightning_audit.canaries.Dirac", "init_args": {"tensor": "last_bias"}},
        {"class_path": "lightning_audit.canaries.gradient.Random", "init_args": {"moving": True}},
        {"class_path": "BlockPair"},
        "Spread",
    ],
    "resolution": {"class_path": "lightning_audit.Resolution", "init_args": {"noise": 0.7}},
    "allow": ["noise.canary", "sampling.not_poisson"],
    "on_violation": "stop",
    "report_dir": "reports",
    "seed": 7,
}


def assert_as_configured(audit: PrivacyAudit) -> None:
    assert (audit.claimed_epsilon, audit.delta, audit.seed) == (8.0, 1e-6, 7)
    assert audit.claim == PrivacyClaim(**CLAIM)
    assert audit.canaries == (Dirac(tensor="last_bias"), Random(moving=True), BlockPair(), Spread())
    assert audit.resolution == Resolution(noise=0.7)
    assert audit.allow == ("noise.canary", "sampling.not_poisson")
    assert (audit.on_violation, str(audit.report_dir)) == ("stop", "reports")


def test_printed_configuration_makes_the_same_audit(package, tmp_path, capsys):
    given, printed = tmp_path / "given.yaml", tmp_path / "printed.yaml"
    given.write_text(yaml.safe_dump(with_audit(**ARGUMENTS)))
    with pytest.raises(SystemExit) as ended:
        parse(package, ["--config", str(given), "--print_config"])
    assert ended.value.code == 0
    printed.write_text(capsys.readouterr().out)
    assert "on_inconclusive: warn" in printed.read_text()  # defaults are spelled out
    assert_as_configured(parse(package, ["--config", str(printed)]))


def test_dataclasses_need_no_class_path(package):
    plain = {"claim": CLAIM, "resolution": {"noise": 0.7}}
    assert_as_configured(parse(package, with_audit(**ARGUMENTS | plain)))


def test_an_exemption_is_made_with_its_reason_and_an_input_canary_with_its_loss_by_name(package):
    allow = ["accounting", {"finding": "no_dp", "optimizer": "G", "reason": "sees no record"}]
    arguments = {"amplitude": 100.0, "loss": "torch.nn.functional.cross_entropy", "num_classes": 10}
    canaries = [{"class_path": "lightning_audit.canaries.Mislabeled", "init_args": arguments}]
    audit = parse(package, with_audit(allow=allow, canaries=canaries))
    assert audit.config.allow == ("accounting",)
    assert audit.config.exemptions == (Allow("no_dp", optimizer="G", reason="sees no record"),)
    loss = torch.nn.functional.cross_entropy
    assert audit.canaries == (Mislabeled(amplitude=100.0, loss=loss, num_classes=10),)
    assert parse(package, with_audit(canaries=["Crafted"])).canaries == (Crafted(),)


def test_audit_that_a_cli_always_adds_is_set_on_the_command_line(package):
    class Audited(package.cli.LightningCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_lightning_class_args(PrivacyAudit, "audit")

    args = ["--audit.claimed_epsilon=8", "--audit.canaries+=Dirac", "--audit.seed=7"]
    quiet = ["--trainer.logger=false", "--trainer.accelerator=cpu", "--seed_everything=false"]
    cli = Audited(module_of(package), run=False, args=args + quiet)
    (audit,) = [c for c in cli.trainer.callbacks if isinstance(c, PrivacyAudit)]
    assert (audit.claimed_epsilon, audit.canaries, audit.seed) == (8.0, (Dirac(),), 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"claimed_epsilon": -1.0}, "claimed_epsilon=-1.0 must be a finite number > 0; leave it"),
        ({"resolution": {"noise": 1.5}}, "noise=1.5 must be in (0, 1)"),
        ({"canaries": ["GradientCanary"]}, "must hold objects of lightning_audit.canaries, such"),
        (
            {"canaries": [{"class_path": "Constant", "init_args": {"moving": True}}]},
            "moving=True must be False for Constant",
        ),
    ],
)
def test_wrong_value_gives_the_librarys_own_error(package, arguments, message):
    with pytest.raises(ValueError, match=r"must|allow") as raised:
        parse(package, with_audit(**arguments))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"on_violation": "explode"}, ["on_violation", "explode"]),
        ({"canary": 3}, ["lightning_audit.PrivacyAudit", "canary"]),
        ({"canaries": [{"class_path": "Unheard"}]}, ["canaries", "Unheard"]),
    ],
)
def test_wrong_name_is_refused_by_the_command_line(package, capsys, arguments, named):
    with pytest.raises(SystemExit) as ended:
        parse(package, with_audit(**arguments))
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert all(name in message for name in named), message


def test_violation_leaves_the_command_line_as_an_error(package, tmp_path):
    config = with_audit(seed=1)
    config["trainer"] |= {"max_steps": 32, "default_root_dir": str(tmp_path)}
    config["model"] = {"faulty": True}
    with pytest.raises(PrivacyViolation, match="noise scale too small"):
        package.cli.LightningCLI(module_of(package), args={"subcommand": "fit", "fit": config})
    assert report_in(tmp_path).verdict.outcome == "VIOLATION"
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert saved["trainer"]["callbacks"][0]["init_args"]["seed"] == 1
