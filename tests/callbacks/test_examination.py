"""An examination finds what is no step of DP-SGD, accuses nothing else, and leaves no trace."""

from __future__ import annotations

import random
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from correct_steps import CORRECT, Correct
from hand_written_support import CLAIM, HandWritten
from lightning_fabric.utilities.exceptions import MisconfigurationException
from random_steps import CORRECT as RANDOM_CORRECT
from stages import staged
from training_matrix import ROWS, Row
from training_support import PrivateModule, digits, mlp, trainer_for
from unseen_steps import CORRECT as UNSEEN_CORRECT
from unseen_steps import FAULTY

from lightning_audit import AuditReport, Examination, PrivacyAudit
from lightning_audit.replay.examiner import QUESTIONS
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import OF_THE_STEP
from lightning_audit.testing.trainings import OwnFactors

# --- An examination finds what is no step of DP-SGD, accuses nothing else, and leaves no trace.

QUICK = {"`grad_sample_mode='hooks'`", "ghost, automatic optimization", "adaptive (AdaClip)"}
#: What is not asked of a row, by a part of its name; of the others everything is.
NOT_ASKED = {
    "adaptive ghost": set(QUESTIONS),
    "ghost": {"replay.clipping", "replay.noise", "coupling"},
    "bf16-true": {"replay.sensitivity", "replay.clipping"},
    "accumulate_grad_batches": {"replay.clipping", "replay.noise", "coupling"},
    "a loop over samples": {"replay.clipping", "replay.noise", "coupling"},
    "hand-written DP-SGD": {"replay.clipping", "replay.noise", "coupling"},
    "several private": set(QUESTIONS),
}


def examined(
    folder: Path, module: pl.LightningModule, examination: Examination, **trainer: Any
) -> Examination:
    torch.manual_seed(0)
    arguments = {"max_steps": 8, **trainer}
    trainer_for(folder, examination, **arguments).fit(module)
    return examination


def found(examination: Examination) -> set[str]:
    return {name for name, answer in examination.answers.items() if answer.findings}


@pytest.mark.parametrize(
    "fault",
    staged(OF_THE_STEP[1:6:2], [*OF_THE_STEP[::2], *OF_THE_STEP[7:]]),
    ids=attrgetter("name"),
)
@pytest.mark.heavy_one_in(4)
def test_a_step_that_is_none_of_dp_sgd_is_found(tmp_path: Path, fault: Fault) -> None:
    claim = fault.audit.get("claim")
    examination = examined(tmp_path, fault.module(), Examination(claim=claim))
    assert fault.check in found(examination), examination
    assert not examination.passed
    assert f"{fault.check}: " in str(examination)


@pytest.mark.parametrize("after", [1, 4])
def test_correct_clipping_of_ones_own_passes(tmp_path: Path, after: int) -> None:
    module = PrivateModule(mlp(64), dataset=digits(), optimizer_class=OwnFactors)
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
@pytest.mark.heavy_one_in(4)
def test_no_correct_training_is_accused_or_changed(tmp_path: Path, row: Row, seed: int) -> None:
    weights = []
    examination = Examination(claim=row.audit.get("claim"), after=2, seed=seed)
    for callbacks in ([], [examination]):
        torch.manual_seed(seed)
        module = row.module()
        arguments = {**row.trainer, "max_steps": 12}
        trainer_for(tmp_path / str(len(callbacks)), *callbacks, **arguments).fit(module)
        weights.append(torch.cat([p.detach().flatten() for p in module.net.parameters()]))
    assert torch.equal(*weights)
    if "empty batches" in row.name:  # of one record now and then
        assert not examination.answers or not found(examination)
        return
    assert found(examination) == set(), examination
    kept = {name for name, answer in examination.answers.items() if not answer.asked}
    part = next((part for part in NOT_ASKED if part in row.name), "")
    assert kept == NOT_ASKED.get(part, set()), examination


def test_dropout_and_noise_in_the_forward_pass_are_no_fault(tmp_path: Path) -> None:
    class Augmented(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return super().training_step((x + 0.1 * torch.randn_like(x), y), batch_idx)

    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Dropout(), torch.nn.Linear(32, 10))
    examination = examined(tmp_path, Augmented(net, dataset=digits()), Examination())
    assert examination.passed, examination


def test_a_hand_written_step_that_shows_no_release_is_not_asked(tmp_path: Path) -> None:
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


def test_a_step_that_fails_when_it_runs_again_ends_no_training(tmp_path: Path) -> None:
    class Once(PrivateModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if (Path(tmp_path) / "ran").exists():
                raise RuntimeError("only once")
            (Path(tmp_path) / "ran").touch()
            return super().training_step(batch, batch_idx)

    examination = examined(tmp_path, Once(mlp(64), dataset=digits()), Examination(), max_steps=1)
    assert all("RuntimeError" in answer.reason for answer in examination.answers.values())


def test_it_refuses_company_and_a_training_without_a_claim(tmp_path: Path) -> None:
    module = PrivateModule(mlp(64), dataset=digits())
    with pytest.raises(MisconfigurationException, match="use only one of them"):
        trainer_for(tmp_path, Examination(), PrivacyAudit(), max_steps=1).fit(module)
    with pytest.raises(MisconfigurationException, match=r"Examination\(claim=PrivacyClaim"):
        examined(tmp_path, HandWritten(), Examination())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"after": 0}, "after=0 must be"), ({"claim": 1.0}, "claim=1.0 must be a PrivacyClaim")],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Examination(**arguments)


# --- No correct training is accused by an examination, and none is changed by it.

QUICK_CASES = {"AdamW", "augmentation"}


def trained(folder: Path, case: Correct, seed: int, *callbacks: Examination) -> torch.Tensor:
    torch.manual_seed(seed)
    np.random.seed(seed)  # the global one
    random.seed(seed)
    module = case.module()
    arguments = {"max_steps": 8, **case.trainer}
    trainer_for(folder, *callbacks, *case.callbacks(), **arguments).fit(module)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.filterwarnings("ignore:Swapping scheduler")
@pytest.mark.parametrize(
    ("case", "seed"),
    staged(
        [(case, 0) for case in CORRECT if case.name in QUICK_CASES],
        [(case, 0) for case in CORRECT if case.name not in QUICK_CASES],
        [(case, seed) for case in CORRECT for seed in (1, 2)],
    ),
    ids=lambda value: value.name if isinstance(value, Correct) else str(value),
)
@pytest.mark.heavy_one_in(4)
def test_a_correct_training_is_not_accused_and_not_changed(
    tmp_path: Path, case: Correct, seed: int
) -> None:
    examination = Examination(after=1 + 2 * seed, seed=seed)
    plain = trained(tmp_path / "plain", case, seed)
    examined = trained(tmp_path / "examined", case, seed, examination)
    assert not [name for name, a in examination.answers.items() if a.findings], str(examination)
    reasons = {name: a.reason for name, a in examination.answers.items() if not a.asked}
    assert set(reasons) == set(case.not_asked), str(examination)
    for name, part in case.not_asked.items():
        assert part in reasons[name]
    assert torch.equal(plain, examined)


# --- Random numbers and inputs with a domain accuse no correct training.

QUICK_RANDOM = (
    "augmentation by NumPy",
    "by hand, in chunks",
    "logarithms, roots and arc sines",
)
ALL = {"replay.sensitivity", "replay.release", "coupling", "replay.clipping", "replay.noise"}
#: What cannot be asked; everything else must be.
_IN_PARTS = {"coupling", "replay.clipping", "replay.noise"}
NOT_ASKED_OF_EXAMINATION_OF_RANDOM_STEPS = {
    "by hand, noise that cannot be set": ALL,
    "a clipping norm that is drawn": ALL,
    "by hand, rows() first": _IN_PARTS,
    "by hand, draws for rows that are not zero": {"replay.clipping"},
}


def examined_examination_of_random_steps(folder: Path, name: str, seed: int) -> Examination:
    torch.manual_seed(seed)
    np.random.seed(seed)  # the global one
    random.seed(seed)
    module = RANDOM_CORRECT[name]()
    examination = Examination(getattr(module, "claim", None), after=1 + seed, seed=seed)
    trainer_for(folder, examination, max_steps=2 + seed).fit(module)
    return examination


@pytest.mark.parametrize(
    ("name", "seed"),
    staged(
        [(name, 0) for name in QUICK_RANDOM],
        [(name, 0) for name in RANDOM_CORRECT if name not in QUICK_RANDOM],
        [(name, seed) for name in RANDOM_CORRECT for seed in (1, 2)],
    ),
)
@pytest.mark.heavy_one_in(4)
def test_a_correct_training_is_asked_and_not_accused(tmp_path: Path, name: str, seed: int) -> None:
    examination = examined_examination_of_random_steps(tmp_path, name, seed)
    assert not [each for each, a in examination.answers.items() if a.findings], str(examination)
    not_asked = {each for each, answer in examination.answers.items() if not answer.asked}
    assert not_asked == NOT_ASKED_OF_EXAMINATION_OF_RANDOM_STEPS.get(name, set()), str(examination)


# --- Faults and odd trainings by somebody who had not read how they are looked for.


def trained_examination_of_unseen_steps(
    folder: Path, make: Any, seed: int, examinations: int
) -> tuple[AuditReport, Any]:
    pl.seed_everything(seed, verbose=False)
    module = make()
    audit = PrivacyAudit(examinations=examinations, on_violation="warn", seed=0)
    trainer_for(folder, audit, max_steps=20, val_check_interval=5).fit(module)
    assert audit.report is not None
    return audit.report, torch.cat([p.detach().flatten() for p in module.parameters()])


def violated(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if check.status == "violated"}


@pytest.mark.parametrize("seed", staged(heavy=[0], nightly=[1, 2]))
@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.heavy_one_in(4)
def test_a_fault_is_found(tmp_path: Path, name: str, seed: int) -> None:
    report, _ = trained_examination_of_unseen_steps(tmp_path, FAULTY[name], seed, 3)
    found = {"replay.sensitivity", "replay.clipping", "replay.release", "coupling"}
    assert violated(report) & found


@pytest.mark.parametrize("seed", staged(heavy=[0], nightly=[1, 2]))
@pytest.mark.parametrize("name", UNSEEN_CORRECT)
@pytest.mark.heavy_one_in(4)
def test_a_correct_training_is_not_accused_and_not_changed_examination_of_unseen_steps(
    tmp_path: Path, name: str, seed: int
) -> None:
    report, weights = trained_examination_of_unseen_steps(
        tmp_path / "examined", UNSEEN_CORRECT[name], seed, 3
    )
    assert not violated(report)
    assert torch.equal(
        weights,
        trained_examination_of_unseen_steps(tmp_path / "plain", UNSEEN_CORRECT[name], seed, 0)[1],
    )
