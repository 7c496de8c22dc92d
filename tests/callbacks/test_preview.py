"""What an audit would be is told by a few steps."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import CLAIM, HandWritten
from pytorch_lightning.loggers import CSVLogger
from torch.nn import functional
from trained import Forwarding
from training_matrix import TwoOptimizers, two_nets
from training_support import ManualModule, PrivateModule, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.callbacks.preview import preview
from lightning_audit.canaries import Mislabeled
from lightning_audit.run.preview import Preview
from lightning_audit.testing.faulty import HalfNoise


def previewed(
    directory: Path, module: pl.LightningModule, *, planned: Any = None, **audit: Any
) -> Preview:
    """What an audit of three epochs, or of what is planned, would be."""
    made = PrivacyAudit(**({"seed": 1, "examinations": "auto"} | audit))
    return preview(trainer_for(directory, made, **(planned or {"max_epochs": 3})), module)


def test_a_training_that_can_be_audited_is_told_of_its_way_its_length_and_its_cost(tmp_path):
    found = previewed(tmp_path, PrivateModule())
    assert found.can_be_audited
    assert found.optimizers == (
        "DPOptimizer, 6 tensors, 8 canary gradients per step in addition to the records'",
    )
    fewest, most = found.steps_needed
    assert 5 < fewest <= most < found.steps_planned == 96
    assert found.found == found.missing == ()
    assert None not in (found.step_seconds, found.examination_seconds)
    assert found.audit_seconds > 0.0
    text = str(found)
    assert f"{most} steps, 96 are planned (the first {most} have enough power" in text
    assert "too few" not in text
    assert "the first examination by replay" in text


class Plain(PrivateModule):
    """Without a private optimizer."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "audit", "planned", "words"),
    [
        (
            lambda: TwoOptimizers(two_nets()),
            *({"canaries": [Mislabeled()]}, {"max_epochs": 3}, "use gradient canaries"),
        ),
        (Plain, {}, {"max_epochs": 3}, "make_private"),
        (PrivateModule, {}, {"max_epochs": 3, "precision": "16-true"}, ""),
    ],
    ids=["by the audit", "no private optimizer", "by Lightning or the audit at once"],
)
def test_what_is_refused_says_what_to_change(tmp_path, make, audit, planned, words):
    found = previewed(tmp_path, make(), planned=planned, **audit)
    assert not found.can_be_audited
    assert str(found).startswith("cannot be audited: ")
    assert words in found.refused


def test_what_is_wrong_before_the_first_step_is_told(tmp_path):
    (found,) = previewed(tmp_path, PrivateModule(poisson=False)).found
    assert "the training's loader is not Poisson" in found
    # Of what is planned, and not of the few steps of the preview, which are named as such.
    assert "so that the 3 planned epochs cost epsilon " in found
    assert " (2 seen so far: 6.573 and " in found


def test_times_have_two_digits_and_no_power_of_ten():
    told = str(Preview(step_seconds=0.1423, audit_seconds=1.26, examination_seconds=140.4))
    assert told.startswith("cost: 1,300 ms on a 140 ms step at first")
    assert told.endswith("; the first examination by replay 140 s")


def test_the_root_comes_first_with_what_to_do_and_what_follows_from_it(tmp_path):
    found = previewed(tmp_path, PrivateModule(optimizer_class=HalfNoise, poisson=False))
    assert found.can_be_audited
    assert [one.partition(":")[0] for one in found.found] == ["noise", "sampling.not_poisson"]
    first, following, *_ = str(found).splitlines()
    assert (first, following) == (f"wrong: {found.found[0]}", f"  next: {found.next}")
    assert "noise.tensor" in found.follows


def test_too_few_steps_are_told_as_such_of_data_that_are_given_as_to_fit(tmp_path):
    module, audit = PrivateModule(), PrivacyAudit(seed=1)
    loader = module.train_dataloader()
    found = preview(trainer_for(tmp_path, audit, max_steps=10), module, loader)
    assert "steps, 10 are planned: too few" in str(found)


def test_steps_without_noise_are_told_as_such(tmp_path):
    module = PrivateModule(noise_multiplier=0.0)
    assert "noise_multiplier 0 is no noise" in previewed(tmp_path, module).steps_reason


class SettlesLate(PrivateModule):
    """Large first gradients, of weights that are six times as large as usual."""

    def __init__(self) -> None:
        super().__init__()
        for param in self.parameters():
            param.data.mul_(6.0)


def test_large_first_gradients_are_followed_until_the_number_of_steps_is_known(tmp_path):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    few = previewed(tmp_path, SettlesLate(), planned={"max_steps": 16})
    torch.random.set_rng_state(state)
    found = previewed(tmp_path, SettlesLate(), planned={"max_epochs": 20})
    assert few.steps_needed is None or max(few.steps_needed) < 2 * min(few.steps_needed)
    assert found.steps_needed is not None
    assert 16 < max(found.steps_needed) < 256
    audit = PrivacyAudit(seed=1, report_dir=tmp_path, on_violation="warn")
    torch.random.set_rng_state(state)
    trainer_for(tmp_path, audit, max_steps=2 * max(found.steps_needed)).fit(SettlesLate())
    assert audit.report.verdict.outcome == "PASS"


def test_an_input_canary_is_told_to_need_more_steps(tmp_path):
    found = previewed(
        tmp_path, Forwarding(), canaries=[Mislabeled(amplitude=100.0)], examinations=0
    )
    assert found.optimizers[0].endswith("a canary sample in the batch")
    assert any("10 or more times as many steps" in lack for lack in found.missing)


def test_dp_sgd_by_hand_is_told_as_such(tmp_path):
    assert previewed(tmp_path, HandWritten(), claim=CLAIM).optimizers == (
        "SGD by hand, 6 tensors, 8 canary gradients per step, added by per_sample()",
    )


def test_the_users_own_error_is_his(tmp_path):
    class Broken(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise KeyError("label")

    with pytest.raises(KeyError, match="label"):
        previewed(tmp_path, Broken())


def test_a_trial_run_prints_it(tmp_path, capsys):
    audit = PrivacyAudit(seed=1, examinations="auto")
    trainer_for(tmp_path, audit, fast_dev_run=True).fit(PrivateModule())
    out = capsys.readouterr().out
    assert "can be audited: DPOptimizer, 6 tensors" in out
    assert (
        "how many steps a PASS takes cannot be estimated from 1 step; `lightning-audit plan`" in out
    )


def test_a_trainer_that_has_fitted_is_refused(tmp_path):
    audit, module = PrivacyAudit(seed=1), PrivateModule()
    trainer = trainer_for(tmp_path, audit, max_steps=4)
    trainer.fit(module)
    with pytest.raises(ValueError, match="has fitted a model"):
        preview(trainer, module)


def test_callbacks_and_modules_that_log_find_a_logger(tmp_path):
    class Logs(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.logger.log_metrics({"batch": batch_idx})
            return super().training_step(batch, batch_idx)

    audit, logger = PrivacyAudit(seed=1), CSVLogger(tmp_path / "logs")
    monitor = pl.callbacks.LearningRateMonitor()
    trainer = trainer_for(tmp_path, audit, monitor, logger=logger, max_epochs=1)
    assert preview(trainer, Logs()).can_be_audited
    assert not (tmp_path / "logs").exists()


def test_it_ends_where_lightning_counts_no_step(tmp_path):
    class Raw(ManualModule):
        batches = 0

        def training_step(self, batch: Any, batch_idx: int) -> None:
            Raw.batches += 1
            optimizer = self.optimizers(use_pl_optimizer=False)
            optimizer.zero_grad()
            self.manual_backward(functional.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    assert previewed(tmp_path, Raw(), planned={"max_epochs": 20}).can_be_audited
    assert Raw.batches < 200  # examinations among them
