"""An examination finds what is no step of DP-SGD, accuses nothing else, and leaves no trace."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from correct_steps import CORRECT, Correct, Trains, mlp
from hand_written_support import BATCH, CLAIM, Gradients, HandWritten, sample_norms
from lightning_fabric.utilities.exceptions import MisconfigurationException
from plain_step import ANSWERED
from stages import staged
from trained import violated, weights
from training_matrix import ROWS, Row
from training_support import PrivateModule, digits, trainer_for
from training_support import mlp as small_mlp

import lightning_audit
from lightning_audit import Examination, PrivacyAudit, PrivacyClaim
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.faulty import OwnFactors

# --- Faulty trainings that no known fault is, by somebody who had not read the examinations.


# ------------------------------------------------------------------ faulty


class HalfNorms(OwnFactors):
    """Norms in half precision; such as are not finite are 'not to be clipped': a row of
    norm 1e5 passes whole, 1e5 C."""

    def factors(self, rows):
        norms = rows.norm(dim=1).half().float()
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        return torch.where(torch.isfinite(norms), factors, torch.ones_like(factors))


class SoftRoot(OwnFactors):
    """'Soft' clipping by 1/sqrt(1 + |g|/C): |g| = 100C gives almost 10C; no bound at all."""

    def factors(self, rows):
        return (1 + rows.norm(dim=1) / self.max_grad_norm).rsqrt()


def _private(kind):
    return lambda: Trains(mlp(), private=kind)


FAULTY = {kind.__name__: _private(kind) for kind in (HalfNorms, SoftRoot)}


# --- Correct trainings whose step draws random numbers in unusual ways.


# ------------------------------------------------------------------ Opacus, random clipping


class Dropped(OwnFactors):
    """Rows are left out at random behind the clipping, which amplifies the privacy."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        return super().factors(rows) * (torch.rand(len(rows)) < 0.8)


class RandomNorm(Trains):
    """The clipping norm of a step, and the noise with it, is drawn before its data are read."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trainer.optimizers[0].max_grad_norm = float(0.5 + torch.rand(()))
        return super().training_step(batch, batch_idx)


# ------------------------------------------------------------------ by hand


class ByHand(HandWritten):
    """DP-SGD by hand on digits."""

    claim: ClassVar[PrivacyClaim] = replace(CLAIM, sample_rate=BATCH / 512)

    def __init__(self) -> None:
        super().__init__(dataset=digits())
        self.net, self.coins = mlp(), torch.Generator().manual_seed(3)

    def write_sums(self, parts: list[Gradients]) -> None:
        for name, p in self.net.named_parameters():
            p.grad = (sum(part[name] for part in parts) + self.noise(p)) / BATCH
        self.optimizers().step()


class DropsAndNoise(ByHand):
    """One generator, made in each step, leaves rows out and draws the noise."""

    def clipped_sums(self, grads: Gradients) -> Gradients:
        self.fresh = torch.Generator().manual_seed(int(torch.randint(2**40, ())))
        kept = (torch.rand(len(sample_norms(grads)), generator=self.fresh) < 0.8).float()
        clipped = (1.0 / (sample_norms(grads) + 1e-9)).clamp(max=1.0)
        return {name: torch.einsum("i,i...", kept * clipped, g) for name, g in grads.items()}

    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return torch.randn(p.shape, generator=self.fresh)


class DrawsOfContent(ByHand):
    """Numbers behind the hand-over for rows that are not zero alone."""

    def clipped_sums(self, grads: Gradients) -> Gradients:
        torch.rand(int((sample_norms(grads) > 0).sum()))
        return super().clipped_sums(grads)


class RowsFirst(ByHand):
    """`rows` ahead of a loop that augments each record."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.ask = False
        parts = [
            self.clipped_sums({name: g[None] for name, g in own.items()})
            for own in lightning_audit.rows(module=self)
        ]
        for x, y in zip(*(part.split(1) for part in batch), strict=True):
            parts.append(
                self.clipped_sums(self.sample_gradients((x + 0.3 * torch.randn_like(x), y)))
            )
        self.write_sums(parts)


class UnseenNoise(ByHand):
    """Noise that nothing can set: torch seeds it of the system's entropy itself."""

    def noise(self, p: torch.Tensor) -> torch.Tensor:
        own = torch.Generator()
        own.seed()
        return torch.randn(p.shape, generator=own)


#: Correct trainings by name.
RANDOM_CORRECT: dict[str, Callable[[], Trains]] = {
    "rows dropped behind the clipping": lambda: Trains(mlp(), private=Dropped),
    "a clipping norm that is drawn": lambda: RandomNorm(mlp()),
    "by hand, rows dropped and noise by a fresh generator": DropsAndNoise,
    "by hand, draws for rows that are not zero": DrawsOfContent,
    "by hand, rows() first": RowsFirst,
    "by hand, noise that cannot be set": UnseenNoise,
}


# --- An examination finds what is no step of DP-SGD, accuses nothing else, and leaves no trace.

QUICK = {"`grad_sample_mode='hooks'`", "ghost, automatic optimization", "adaptive (AdaClip)"}
#: What is not asked of a row, by a part of its name; of the others everything is.
NOT_ASKED = {
    "adaptive ghost": set(ANSWERED),
    "ghost": {"replay.clipping", "replay.noise", "coupling"},
    "bf16-true": {"replay.sensitivity", "replay.clipping"},
    "accumulate_grad_batches": {"replay.clipping", "replay.noise", "coupling"},
    "a loop over samples": {"replay.clipping", "replay.noise", "coupling"},
    "hand-written DP-SGD": {"replay.clipping", "replay.noise", "coupling"},
    "several private": set(ANSWERED),
}


def examined(
    folder: Path, module: pl.LightningModule, examination: Examination, **trainer: Any
) -> Examination:
    torch.manual_seed(0)
    trainer_for(folder, examination, **{"max_steps": 8, **trainer}).fit(module)
    return examination


def found(examination: Examination) -> set[str]:
    return {name for name, answer in examination.answers.items() if answer.findings}


def not_asked(examination: Examination) -> dict[str, str]:
    """Reasons of the questions that were not asked."""
    return {name: a.reason for name, a in examination.answers.items() if not a.asked}


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # the global one
    random.seed(seed)


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("first_row_not_clipped", "replay.sensitivity"),
        ("two_clipped_together", "replay.clipping"),
        ("momentum_of_raw_gradients", "replay.release"),
    ],
)
def test_a_step_that_is_none_of_dp_sgd_is_found(tmp_path, name, finding):
    fault = FAULTS[name]
    examination = examined(tmp_path, fault.module(), Examination(claim=fault.audit.get("claim")))
    assert finding in found(examination), examination
    assert not examination.passed
    assert f"{finding}: " in str(examination)


@pytest.mark.parametrize("after", staged([4], nightly=[1]))
def test_correct_clipping_of_ones_own_passes(tmp_path, after):
    module = PrivateModule(small_mlp(64), dataset=digits(), optimizer_class=OwnFactors)
    examination = examined(tmp_path, module, Examination(after=after))
    assert examination.passed, examination
    assert all(answer.asked for answer in examination.answers.values())


@pytest.mark.parametrize(
    ("row", "seed"),
    staged(
        [(row, 0) for row in ROWS if row.name in QUICK],
        [(row, 0) for row in ROWS if row.name not in QUICK],
        [(row, seed) for row in ROWS for seed in (1, 2)],
    ),
    ids=lambda value: f"{value.group}: {value.name}" if isinstance(value, Row) else str(value),
)
@pytest.mark.heavy_one_in(8)
def test_no_correct_training_is_accused_or_changed(tmp_path, row, seed):
    ends = []
    examination = Examination(claim=row.audit.get("claim"), after=2, seed=seed)
    for callbacks in ([], [examination]):
        torch.manual_seed(seed)
        module = row.module()
        arguments = {**row.trainer, "max_steps": 12}
        trainer_for(tmp_path / str(len(callbacks)), *callbacks, **arguments).fit(module)
        ends.append(weights(module.net))
    assert torch.equal(*ends)
    if "empty batches" in row.name:  # of one record now and then
        assert not examination.answers or not found(examination)
        return
    assert found(examination) == set(), examination
    part = next((part for part in NOT_ASKED if part in row.name), "")
    assert not_asked(examination).keys() == NOT_ASKED.get(part, set()), examination


def test_a_hand_written_step_that_shows_no_release_is_not_asked(tmp_path):
    class Opaque(torch.optim.Optimizer):
        """Adds its noise within a step that is none of torch's."""

        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.01})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            loss = closure() if closure is not None else None
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.sub_(p.grad + torch.randn_like(p), alpha=group["lr"])
            return loss

    class ByHand(HandWritten):
        def configure_optimizers(self) -> Any:
            return Opaque(self.parameters())

    examination = examined(tmp_path, ByHand(), Examination(claim=CLAIM))
    assert found(examination) == set()
    assert all("lightning_audit.released" in a.reason for a in examination.answers.values())
    assert not examination.passed


def test_a_step_that_fails_when_it_runs_again_ends_no_training(tmp_path):
    class Once(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if (Path(tmp_path) / "ran").exists():
                raise RuntimeError("only once")
            (Path(tmp_path) / "ran").touch()
            return super().training_step(batch, batch_idx)

    examination = examined(
        tmp_path, Once(small_mlp(64), dataset=digits()), Examination(), max_steps=1
    )
    assert all("RuntimeError" in answer.reason for answer in examination.answers.values())


def test_it_refuses_company_and_a_training_without_a_claim(tmp_path):
    module = PrivateModule(small_mlp(64), dataset=digits())
    with pytest.raises(MisconfigurationException, match="use only one of them"):
        trainer_for(tmp_path, Examination(), PrivacyAudit(), max_steps=1).fit(module)
    with pytest.raises(MisconfigurationException, match=r"Examination\(claim=PrivacyClaim"):
        examined(tmp_path, HandWritten(), Examination())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"after": 0}, "after=0 must be"), ({"claim": 1.0}, "claim=1.0 must be a PrivacyClaim")],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Examination(**arguments)


# --- No correct training is accused by an examination, and none is changed by it.


def trained(folder: Path, case: Correct, seed: int, *callbacks: Examination) -> torch.Tensor:
    seeded(seed)
    module, arguments = case.module(), {"max_steps": 8, **case.trainer}
    trainer_for(folder, *callbacks, *case.callbacks(), **arguments).fit(module)
    return weights(module)


@pytest.mark.filterwarnings("ignore:Swapping scheduler")
@pytest.mark.parametrize(
    ("case", "seed"),
    staged(
        heavy=[(case, 0) for case in CORRECT],
        nightly=[(case, seed) for case in CORRECT for seed in (1, 2)],
    ),
    ids=lambda value: value.name if isinstance(value, Correct) else str(value),
)
@pytest.mark.heavy_one_in(8)
def test_a_correct_training_is_not_accused_and_not_changed(tmp_path, case, seed):
    examination = Examination(after=1 + 2 * seed, seed=seed)
    plain = trained(tmp_path / "plain", case, seed)
    assert torch.equal(plain, trained(tmp_path / "examined", case, seed, examination))
    assert found(examination) == set(), str(examination)
    reasons = not_asked(examination)
    assert set(reasons) == set(case.not_asked), str(examination)
    for name, part in case.not_asked.items():
        assert part in reasons[name]


# --- Random numbers accuse no correct training.

ALL = {"replay.sensitivity", "replay.release", "coupling", "replay.clipping", "replay.noise"}
IN_PARTS = {"coupling", "replay.clipping", "replay.noise"}
#: What cannot be asked; everything else must be.
NOT_ASKED_OF_RANDOM = {
    "by hand, noise that cannot be set": ALL,
    "a clipping norm that is drawn": ALL,
    "by hand, rows() first": IN_PARTS,
    "by hand, draws for rows that are not zero": {"replay.clipping"},
}


@pytest.mark.parametrize(
    ("name", "seed"),
    staged(
        heavy=[(name, 0) for name in RANDOM_CORRECT],
        nightly=[(name, seed) for name in RANDOM_CORRECT for seed in (1, 2)],
    ),
)
@pytest.mark.heavy_one_in(4)
def test_a_correct_training_is_asked_and_not_accused(tmp_path, name, seed):
    seeded(seed)
    module = RANDOM_CORRECT[name]()
    examination = Examination(getattr(module, "claim", None), after=1 + seed, seed=seed)
    trainer_for(tmp_path, examination, max_steps=2 + seed).fit(module)
    assert found(examination) == set(), str(examination)
    assert not_asked(examination).keys() == NOT_ASKED_OF_RANDOM.get(name, set()), str(examination)


# --- Faults by somebody who had not read how they are looked for.


@pytest.mark.parametrize("seed", staged(heavy=[0], nightly=[1, 2]))
@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.heavy_one_in(4)
def test_a_fault_is_found(tmp_path, name, seed):
    pl.seed_everything(seed, verbose=False)
    audit = PrivacyAudit(examinations=3, on_violation="warn", seed=0)
    trainer_for(tmp_path, audit, max_steps=20).fit(FAULTY[name]())
    of_step = {"replay.sensitivity", "replay.clipping", "replay.release", "coupling"}
    assert of_step.intersection(violated(audit.report))
