"""A sound DP-SGD passes, whatever the network, the loader and the way it is optimized."""

import copy
import io
import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from places import DOCS
from resume_support import RESUMING
from stages import staged
from trained import ValidatedModule, check, on_digits, private, violated, weights
from training_matrix import COMPARED, ROWS, Row, markdown
from training_support import PrivateModule, assert_no_hooks_left, report_in, status, trainer_for

from lightning_audit import AuditReport, EpsilonStar, Examination, PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import Constant, Random
from lightning_audit.record.store import ENTERED, read_observations
from lightning_audit.report.text import screen
from lightning_audit.verdict.judge import NOT_COUNTED

pytestmark = RESUMING

# --- A sound DP-SGD passes, whatever the network, the loader and the way it is optimized.

RATE = 16 / 512


class HandBuilt(PrivateModule):
    """Opacus without a PrivacyEngine: nothing counts the steps."""

    def configure_optimizers(self) -> Any:
        self.net = GradSampleModule(self.net)
        return DPOptimizer(
            self.inner(self.trainable()),
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=self.batch_size,
        )


def _passes(report: AuditReport) -> None:
    assert report.verdict.outcome == "PASS", report.verdict
    assert (report.verdict.exit_code, report.verdict.kind, report.complete) == (0, None, True)
    assert violated(report) == []


def test_sound_training_passes_and_leaves_a_report(trained):
    done = trained()
    report, spent = done.report, done.report.epsilon_spent
    _passes(report)
    assert (report.steps, report.observations) == (64, 64 * 8)
    assert report.history == ((1.0, RATE, 64),)
    assert report.settings["seed"] == 1
    assert status(report, "sampling.not_poisson") == status(report, "sampling.rate") == "ok"
    assert report.notes == ()
    header, entries = read_observations(done.directory / report.record)
    assert (len(entries), len(header.canaries)) == (64, 8)
    assert_no_hooks_left(done.module)
    # Without a claim the accountant's epsilon is claimed.
    assert report.claimed_epsilon == pytest.approx(done.module.engine.get_epsilon(1e-5), rel=0.01)
    assert (report.claimed_epsilon, report.delta) == (spent, 1e-5)
    told = check(report, "accounting").message
    assert f"epsilon {spent:.4g} at delta 1e-05 as privacy loss distr" in told
    assert f"the history of Opacus' prv accountant says {spent:.4g} (claimed)" in told
    assert 0 <= report.epsilon_lower <= spent < report.epsilon_not_excluded


class Scheduled(PrivateModule):
    """Adam with a learning rate that falls."""

    def __init__(self) -> None:
        super().__init__(inner=lambda params: torch.optim.Adam(params, lr=1e-3))

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


@pytest.mark.parametrize(
    ("make", "steps", "trainer"),
    staged(
        quick=[(Scheduled, 64, {}), (PrivateModule, 64, {"precision": "bf16-mixed"})],
        nightly=[(private(noise_multiplier=0.6, max_grad_norm=0.3), 160, {})],
    ),
)
def test_sound_training_of_another_kind_passes(audited, make, steps, trainer):
    module = make()
    report = audited(module, **{"steps": steps, **trainer})
    _passes(report)
    assert (report.steps, report.observations) == (steps, steps * 8)
    assert report.history[0][0] == module.noise_multiplier


def test_every_epoch_leaves_a_report_that_is_not_complete_and_a_validation_is_no_step(
    tmp_path, audited
):
    reports = []

    class Looking(ValidatedModule):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch:
                reports.append(report_in(tmp_path))

    report = audited(Looking(), max_epochs=3, num_sanity_val_steps=2)
    found = [(report.verdict.outcome, report.complete, report.steps) for report in reports]
    assert found == [("INCONCLUSIVE", False, 32), ("INCONCLUSIVE", False, 64)]
    _passes(report)
    assert report.steps == len(audited.entries) == 96
    assert [epoch["epoch"] for epoch in report.epochs] == [0, 1, 2]


def test_training_without_accountant_is_audited_and_the_note_says_so(audited):
    report = audited(HandBuilt())
    assert report.verdict.pass_blockers == (NOT_COUNTED.sentence,)
    assert any("no accountant" in note for note in report.notes)
    assert (report.claimed_epsilon, report.epsilon_spent) == (None, None)
    assert status(report, "accounting") == "not_run"


def test_stated_sample_rate_composes_epsilons_without_accountant(audited):
    report = audited(HandBuilt(), claimed_epsilon=8.0, claim=PrivacyClaim(sample_rate=RATE))
    _passes(report)
    full = PrivacyClaim(noise_multiplier=1.0, sample_rate=RATE, steps=64, delta=1e-5)
    assert report.epsilon_spent == pytest.approx(full.composed_epsilon(), rel=1e-6)
    assert report.claimed_epsilon == 8.0
    assert status(report, "accounting") == "ok"
    assert report.epsilon_lower is not None
    assert not any("no accountant" in note for note in report.notes)


def test_claimed_epsilon_without_sample_rate_is_inconclusive(audited):
    verdict = audited(HandBuilt(), claimed_epsilon=8.0, steps=8).verdict
    assert (verdict.outcome, verdict.exit_code) == ("INCONCLUSIVE", 2)
    assert any("the sample rate is unknown" in lack for lack in verdict.pass_blockers)
    assert any("PrivacyClaim(sample_rate=" in lack for lack in verdict.pass_blockers)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"lr": 0.05, "weight_decay": 1e-2, "foreach": True}),
        (torch.optim.SGD, {"lr": 0.05, "maximize": True, "weight_decay": 1e-2}),
        (torch.optim.AdamW, {"lr": 1e-3, "amsgrad": True}),
        (torch.optim.Adam, {"lr": 1e-3, "fused": True}),
        (torch.optim.RMSprop, {"lr": 1e-3, "centered": True, "momentum": 0.9}),
        (torch.optim.Adagrad, {"lr": 1e-2, "weight_decay": 1e-2}),
        (torch.optim.NAdam, {"lr": 1e-3}),
    ],
    ids=["nesterov", "decay", "maximize", "adamw", "fused", "rmsprop", "adagrad", "nadam"],
)
@pytest.mark.one_in(8)
@pytest.mark.heavy_one_in(7)
def test_no_optimizer_of_torch_counts_as_replacing_the_gradient(audited, kind, settings):
    report = audited(PrivateModule(inner=lambda params: kind(params, **settings)), steps=32)
    assert status(report, "gradient_replaced") == "ok"
    _passes(report)


def test_rdp_accountant_passes_and_claims_more_than_is_spent(audited):
    report = audited(PrivateModule(accountant="rdp"))
    _passes(report)
    assert report.epsilon_spent < report.claimed_epsilon


def test_gradients_that_are_not_finite_never_pass(audited):
    class Diverging(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss * torch.nan if self.global_step == 40 else loss

    report = audited(Diverging())
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("24 of 64 steps were lost" in lack for lack in report.verdict.pass_blockers)


# --- The audited training gives the model that it would have given, and the audit repeats itself.

_INNER: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
}


class _States(pl.Callback):
    """The state of every generator at the end of the training, before anything is shown."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.torch = torch.get_rng_state()
        self.numpy = np.random.get_state()[1]  # the global one is what is asked
        self.python = random.getstate()


def _train(
    directory: Path, *callbacks: pl.Callback, steps: int = 20, **kwargs: Any
) -> tuple[torch.Tensor, _States]:
    pl.seed_everything(3, verbose=False)
    module, states = on_digits(**kwargs), _States()
    trainer_for(directory, *callbacks, states, max_steps=steps).fit(module)
    return weights(module).double(), states


def assert_same_model(plain: torch.Tensor, audited: torch.Tensor, tolerance: float = 1e-6) -> None:
    assert torch.linalg.norm(audited - plain) <= tolerance * torch.linalg.norm(plain)


@pytest.mark.parametrize(
    ("inner", "canaries", "steps", "seeded"),
    staged(
        [("sgd", None, 32, False), ("sgd", [Constant(), Random(moving=True)], 32, True)],
        nightly=[(inner, None, 200, False) for inner in ("sgd", "adam", "momentum")],
    ),
)
def test_audited_model_is_the_unaudited_one_and_every_generator_is_where_it_would_be(
    tmp_path, inner, canaries, steps, seeded
):
    ends = []
    for audits in ([], [PrivacyAudit(canaries=canaries)]):
        own = torch.Generator().manual_seed(11)
        given = {"inner": _INNER[inner], "steps": steps, "generator": own if seeded else None}
        ends.append((*_train(tmp_path / str(len(audits)), *audits, **given), own))
    (plain, before, _), (audited, after, _) = ends
    assert_same_model(plain, audited)
    assert torch.equal(before.torch, after.torch)
    assert np.array_equal(before.numpy, after.numpy)
    assert before.python == after.python
    assert torch.equal(*(own.get_state() for *_, own in ends))


def test_making_the_callback_draws_nothing_from_global_generators():
    before = torch.get_rng_state(), random.getstate()
    PrivacyAudit()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_the_first_summary_of_a_process_draws_no_random_number(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    before = random.getstate()
    screen()
    assert "rich.style" in sys.modules
    assert before == random.getstate()


def test_a_seed_that_was_drawn_is_reported_and_repeats_the_run_and_another_gives_other_coins(
    tmp_path,
):
    first, coins = PrivacyAudit(), []
    _train(tmp_path / "first", first)
    drawn = first.report.settings["seed"]
    for name, seed in (("second", drawn), ("other", drawn + 1)):
        _train(tmp_path / name, PrivacyAudit(seed=seed))
        _, entries = read_observations(tmp_path / name / "audit" / "observations.bin")
        coins.append(entries["coins"])
    assert _record(tmp_path / "first") == _record(tmp_path / "second")
    assert PrivacyAudit().seed != first.seed
    assert coins[0].shape == coins[1].shape == (20, 8)
    assert not np.array_equal(*coins)
    assert 0.3 < coins[0].mean() < 0.7


def _record(directory: Path) -> bytes:
    """The entries of a record; the line before them names the run."""
    header, entries = read_observations(directory / "audit" / "observations.bin")
    return repr(header).encode() + entries.tobytes()


# --- Every way to train is audited: the canary's signal is one, the noise is as claimed.

STEPS = 120
PAGE = DOCS / "which-trainings.md"


def name_of(row: Row) -> str:
    return f"{row.group}: {row.name}"


@pytest.mark.parametrize(
    "row", staged(quick=COMPARED, heavy=[row for row in ROWS if row not in COMPARED]), ids=name_of
)
@pytest.mark.one_in(3)
@pytest.mark.heavy_one_in(12)
def test_signal_is_one_and_noise_is_as_claimed(audited, row):
    module = row.module()
    report = audited(
        module, claimed_epsilon=1000.0, **row.audit, **{"max_steps": STEPS, **row.trainer}
    )
    entries = audited.entries
    assert len(entries) >= STEPS
    entries = entries[row.first :]
    assert np.isin(entries["canaries"], ENTERED).all()
    assert not any(check.status in ("violated", "warned") for check in report.checks)
    assert any("copied" in note for note in report.notes) == row.copies
    assert_no_hooks_left(module)

    coins, sigma = entries["coins"], entries["noise_multiplier"][:, None]
    readings = entries["readings"]
    loud = (readings - coins).std(0) > 1.1 * np.sqrt((sigma**2).mean())
    if "canaries" in row.audit:  # an input's gradient is no stranger to the data's
        noise = next(check for check in report.checks if check.name == "noise")
        assert 0.95 < noise.evidence["smallest_ratio"] < 1.1
        sigma = np.full_like(sigma, (readings - coins).std())
    else:
        coins, readings = coins[:, ~loud], readings[:, ~loud]
        assert coins.shape[1] >= 3, "the data hide the noise of too many canaries"
        excess = ((readings - coins) / sigma).std() - 1.0
        # Data add up to a tenth where a canary is quiet; noise can only be too small by chance.
        assert -4.0 / np.sqrt(2.0 * coins.size) < excess < 0.1
    centred = coins - 0.5
    weights = centred / sigma**2
    shift = (weights * (readings - readings.mean(0))).sum() / (weights * centred).sum()
    assert abs(shift - 1.0) < 4.0 / np.sqrt((centred**2 / sigma**2).sum()) + 2.0**-7


@pytest.mark.parametrize(
    "row", staged(quick=COMPARED, nightly=[row for row in ROWS if row not in COMPARED]), ids=name_of
)
@pytest.mark.one_in(3)
@pytest.mark.heavy_one_in(6)
def test_model_is_what_it_would_be(tmp_path, row):
    ends, norms = [], []
    for audits in ([], [PrivacyAudit(1000.0, seed=1, **row.audit)]):
        torch.manual_seed(3)
        module = row.module()
        folder = tmp_path / str(len(audits))
        trainer_for(folder, *audits, **{**row.trainer, "max_steps": 24}).fit(module)
        ends.append(weights(module.net).double())
        norms.append(_clipping_norm(module))
    assert_same_model(*ends, tolerance=2.0**-8 if "bf16" in str(row.trainer) else 1e-6)
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def _clipping_norm(module: pl.LightningModule) -> float:
    """The clipping norm after the last step; 0 where the optimizer states none."""
    return float(getattr(module.trainer.optimizers[0], "max_grad_norm", 0.0))


def test_docs_page_is_made_of_the_matrix():
    assert PAGE.read_text() == markdown(), "run `python tests/support/training_matrix.py`"


# --- Copies and pickles, taken at any moment, hold the audit and nothing of the training.


#: What no copy may hold.
_OF_A_TRAINING = (
    pl.Trainer,
    lightning.pytorch.Trainer,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.utils.data.DataLoader,
)


class _Looking(pickle.Pickler):
    """Pickles, and refuses what is of a training."""

    def persistent_id(self, held: Any) -> None:
        assert not isinstance(held, _OF_A_TRAINING), f"a copy holds {type(held).__name__}"


def pickled(callback: Any) -> Any:
    stream = io.BytesIO()
    _Looking(stream).dump(callback)
    return pickle.loads(stream.getvalue())


WAYS = (copy.copy, copy.deepcopy, pickled)


class Copies(pl.Callback):
    """Copies other callbacks at each hook of Lightning's."""

    def __init__(self, *others: Any) -> None:
        self.others = others
        self.hooks: set[str] = set()
        self.taken: list[Any] = []

    def take(self, hook: str) -> None:
        if hook not in self.hooks:  # once each: the first step is under way then
            self.hooks.add(hook)
            self.taken += [way(other) for other in self.others for way in WAYS]


def _taking(hook: str) -> Callable[..., None]:
    return lambda self, *_, **__: self.take(hook)


for _hook in dir(pl.Callback):
    if _hook.startswith("on_") or _hook in ("setup", "teardown"):
        setattr(Copies, _hook, _taking(_hook))


class Copied(PrivateModule):
    """Copies in the training step and in the optimizer's, where Lightning has no hook."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.copies.take("training_step")
        return super().training_step(batch, batch_idx)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.copies.take("optimizer_step")
        super().optimizer_step(*args, **kwargs)


def copied_training(
    directory: Path, kind: type, audit: PrivacyAudit, copies: Any
) -> tuple[AuditReport, dict[str, torch.Tensor]]:
    torch.manual_seed(7)
    module = kind()
    module.copies = copies
    callbacks = [copies, audit] if copies is not None else [audit]
    trainer_for(directory, *callbacks, max_epochs=2, limit_train_batches=4).fit(module)
    return report_in(directory), module.state_dict()


def test_copies_at_every_hook_leave_the_training_as_it_was_and_hold_nothing_of_it(tmp_path):
    alone, audit = (PrivacyAudit(claimed_epsilon=50.0, seed=1) for _ in range(2))
    report, before = copied_training(tmp_path / "alone", PrivateModule, alone, None)
    copies = Copies(audit)
    got, after = copied_training(tmp_path / "copied", Copied, audit, copies)
    assert {"on_before_optimizer_step", "training_step", "teardown"} <= copies.hooks
    assert after.keys() == before.keys()
    assert [name for name in after if not torch.equal(before[name], after[name])] == []
    assert (got.steps, got.verdict) == (report.steps, report.verdict)
    assert [check.status for check in got.checks] == [check.status for check in report.checks]
    assert audit.report.epochs == got.epochs


def test_a_copy_from_the_middle_of_a_training_audits_another_one_meanwhile(tmp_path):
    class Nested(pl.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            if args[-1] == 5:
                twin = copy.deepcopy(audit)
                trainer_for(tmp_path, twin, max_steps=8).fit(PrivateModule())
                self.report = twin.report

    audit, nested = PrivacyAudit(claimed_epsilon=50.0, seed=1), Nested()
    trainer_for(tmp_path, audit, nested, max_steps=16).fit(PrivateModule())
    assert nested.report.steps == 8
    assert report_in(tmp_path).steps == audit.report.steps == 16
    assert AuditReport.load(tmp_path / "audit" / "run-2" / "report.json").steps == 8


def test_a_callback_that_was_given_a_checkpoint_can_be_copied_with_its_claim(tmp_path):
    claim = PrivacyClaim(noise_multiplier=1.0, max_grad_norm=1.0)
    given = {"claim": claim, "allow": ["noise.mean"], "on_violation": "stop", "seed": 3}
    audit, loaded = PrivacyAudit(50.0, **given), PrivacyAudit(50.0, **given)
    trainer_for(tmp_path, audit, max_steps=4).fit(PrivateModule())
    state = audit.state_dict()
    loaded.load_state_dict(state)
    for way in WAYS:
        twin = way(loaded)
        assert twin.state_dict().keys() == state.keys()
        assert twin.state_dict()["checksum"] == state["checksum"]
        assert (twin.config.settings(), twin.claim) == (loaded.config.settings(), claim)
        assert (twin.on_violation, twin.allow) == ("stop", ("noise.mean",))


def losses(module: Any, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module.net(batch[0]), batch[1], reduction="none")


def test_the_other_callbacks_are_copied_without_the_training(tmp_path):
    star, examination = EpsilonStar(1e-5, losses=losses, permutations=3), Examination(after=2)
    callbacks = (Copies(star, examination), star, examination)
    trainer_for(tmp_path, *callbacks, max_epochs=1, limit_train_batches=4).fit(ValidatedModule())
    assert examination.passed, examination
    for way in WAYS:
        assert way(examination).answers.keys() == examination.answers.keys()
        assert [found.epoch for found in way(star).history] == [0]
