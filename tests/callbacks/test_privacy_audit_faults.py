"""Each fault of a DP-SGD, on the real DPOptimizer, fails the run under its own name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus.optimizers import DPOptimizer
from printed_report import as_text
from stages import staged
from torch.nn import functional
from trained import private
from training_matrix import (
    AdaClip,
    AdaptiveGhost,
    Ghost,
    ManualGhost,
    NotWrapped,
    PerLayer,
    Physical,
    wide,
)
from training_support import PrivateModule, random_data, status, trainer_for

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import Mislabeled
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.results.audit_report import describe
from lightning_audit.testing import faulty
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faulty import NoNoise, OwnFactors
from lightning_audit.testing.runs import train
from lightning_audit.verdict.gate import contradictions

# --- Each fault of a DP-SGD, on the real DPOptimizer, fails the run under its own name.

#: For what only the steps after the first violation show.
TRAINS_ON = {"on_violation": "warn"}


# Two epochs of four steps; one is enough for most of the coins' draws, six steps for all of thirty.
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.one_in(4)
def test_missing_clipping_in_short_epochs_is_named(accused, seed):
    module = PrivateModule(dataset=random_data(64), optimizer_class=faulty.NoClipping)
    report = accused(module, seed=seed, steps=8)
    assert report.steps < 8
    assert "clipping" in report.verdict.fault.split(",")[0]


# ------------------------------------------------------------------ no DP-SGD at all


class Lost(PrivateModule):
    """`make_private` was called, and its optimizer lost: the torch optimizer trains."""

    def __init__(self) -> None:
        super().__init__(make_poisson=False)  # with it, Opacus itself complains at the second step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return super().configure_optimizers().original_optimizer


def test_private_optimizer_that_was_lost_is_no_dp(accused):
    claim = PrivacyClaim(epsilon=8.0, delta=1e-5)
    report = accused(Lost(), steps=8, claim=claim)
    assert report.verdict.root.name == "no_dp"
    assert "SGD was stopped before its first step" in report.verdict.summary


def test_plain_optimizer_under_a_whole_claim_of_a_mechanism_is_no_noise(accused):
    claim = PrivacyClaim(noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16)
    assert accused(Lost(), claim=claim, steps=32).verdict.summary.startswith("noise")


# ------------------------------------------------------------------ sampling and accounting


def test_loader_that_is_not_poisson_passes_where_allowed(trained):
    report = trained(private(poisson=False), allow="sampling.not_poisson").report
    assert (report.verdict.outcome, report.steps) == ("PASS", 64)
    assert status(report, "sampling.not_poisson") == "allowed"


def test_more_steps_than_the_claimed_epsilon_allows_is_wrong_accounting(audited):
    report = audited(PrivateModule(), claimed_epsilon=1.5, on_violation="warn", max_epochs=3)
    assert report.verdict.kind == "accounting"
    assert status(report, "accounting") == "violated"
    assert "wrong accounting" in report.verdict.fault
    assert report.epsilon_spent > 1.5
    # The epochs before were within the claim.
    assert len(report.epochs) > 1
    violated = [epoch["violated"] for epoch in report.epochs]
    assert violated == sorted(violated)
    assert (violated[0], violated[-1]) == (0.0, 1.0)


def test_training_without_claimed_noise_cannot_keep_a_claimed_epsilon(accused):
    report = accused(PrivateModule(noise_multiplier=0.0), claimed_epsilon=8.0, steps=40)
    assert report.verdict.kind == "accounting"
    assert "the first step costs epsilon inf" in report.verdict.summary
    assert not report.history  # it stops before it
    assert "noise_multiplier, which must be above 0" in report.verdict.root.look_at


def test_training_without_claimed_noise_never_passes_and_is_told_so(audited):
    report = audited(PrivateModule(noise_multiplier=0.0), steps=40)
    assert report.verdict.outcome != "PASS"
    said = " ".join([report.verdict.summary, report.verdict.fault, *report.verdict.pass_blockers])
    assert "noise" in said, report.verdict


@pytest.mark.filterwarnings("ignore:GDP accounting is experimental")
def test_what_the_gdp_accountant_states_is_no_claim_and_prevents_a_pass(audited, accused):
    report = audited(PrivateModule(accountant="gdp"), steps=40, folder="states")
    assert report.verdict.outcome == "INCONCLUSIVE"
    (told,) = (one for one in report.verdict.pass_blockers if "gdp accountant" in one)
    assert "PrivacyEngine(accountant='prv')" in told
    assert "claimed_epsilon" in told
    assert report.epsilon_spent == pytest.approx(report.claimed_epsilon, rel=0.01)
    report = audited(PrivateModule(accountant="gdp"), steps=40, claimed_epsilon=50.0)
    assert not any("gdp" in one for one in report.verdict.pass_blockers)
    report = accused(PrivateModule(accountant="gdp"), claimed_epsilon=0.5, folder="small")
    assert report.verdict.kind == "accounting"


# ------------------------------------------------------------------ one root, and what is beside it


def test_half_noise_has_one_root_and_the_rest_follows_from_it(trained):
    report = trained(private(faulty.HalfNoise, on_digits=True), **TRAINS_ON).report
    root = report.verdict.root
    assert (root.name, root.finding) == ("noise_too_small", "noise")
    assert root.place.step < 5
    assert report.verdict.further == ()
    wrong = [check for check in report.checks if check.status == "violated"]
    followed = [check.name for check in wrong if check.follows_from == "noise"]
    assert {"noise.tensor", "reuse.broadcast"} <= set(followed) == set(root.consequences)
    assert [check.name for check in wrong if not check.follows_from] == ["noise"]
    text = as_text(report)
    assert text.count("VIOLATED") == 1
    assert sum("reuse.broadcast" in line for line in text.splitlines()) == 1
    assert f"  Explains: {', '.join(root.consequences)}\n" in text
    assert text.count("Look at: ") + text.count("Next: ") == 1
    assert contradictions(report) == []


@pytest.mark.parametrize(
    ("make", "claimed", "findings"),
    [
        (private(faulty.HalfNoise, poisson=False), None, ["noise", "sampling.not_poisson"]),
        (private(faulty.NoClipping, on_digits=True), 0.5, ["sensitivity", "accounting"]),
    ],
    ids=["half_noise_and_shuffled", "no_clipping_and_accounting"],
)
def test_two_independent_faults_are_two_findings(trained, make, claimed, findings):
    report = trained(make, claimed_epsilon=claimed, **TRAINS_ON).report
    verdict = report.verdict
    assert [fault.finding for fault in (verdict.root, *verdict.further)] == findings
    assert f"(also: {findings[1]})" in verdict.summary
    assert f"\nAlso: {findings[1]}: " in describe(verdict)
    roots = {c.name for c in report.checks if c.status == "violated" and not c.follows_from}
    assert roots == set(findings)
    assert contradictions(report) == []


# --- Code that looks at rows before it clips or adds noise meets canaries that it does not know.


def norms(optimizer: DPOptimizer) -> torch.Tensor:
    """Norms of the rows that wait to be clipped over the clipping norm, ``[rows]``."""
    flat = [rows.flatten(1) for rows in optimizer.grad_samples]
    return torch.cat(flat, 1).norm(dim=1) / optimizer.max_grad_norm


class NoiseWhereSomethingIsLarge(DPOptimizer):
    """A step without a row above 10 C has a tenth of the noise."""

    def clip_and_accumulate(self) -> None:
        self.large = bool((norms(self) > 10.0).any())
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        multiplier = self.noise_multiplier
        super().add_noise()
        if not self.large:
            for p in self.params:
                p.grad = p.summed_grad + 0.1 * (p.grad - p.summed_grad)
        assert self.noise_multiplier == multiplier


class LastRowNotClipped(OwnFactors):
    """The last row of each batch is not clipped."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        factors = super().factors(rows).clone()
        factors[-1:] = 1.0
        return factors


# A canary stands in the first row in one step of twenty, and the coin of each tells at most log 2.
@pytest.mark.heavy_one_in(4)
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "name", "steps"),
    [
        (faulty.OnlyOutliersClipped, "clipping_missing_at_times", 400),
        (NoiseWhereSomethingIsLarge, "noise_missing_in_steps", 400),
        (faulty.FirstRowNotClipped, "clipping_missing_at_times", 1200),
        (LastRowNotClipped, "clipping_missing_at_times", 100),
    ],
)
def test_what_is_done_to_some_rows_is_found_by_canaries_without_an_examination(
    tmp_path, kind, name, steps
):
    plan = {"steps": steps, "audit": {"examinations": 0}}
    report = train(Fault(kind.__name__, "", "", kind, **plan), tmp_path)
    assert (report.verdict.outcome, report.verdict.root.name) == ("VIOLATION", name)


# --- What Opacus keeps of a step when it is done holds no canary, for code that looks at it then.

STEPS = 12


class Keeps(pl.Callback):
    """The clipped sums when a step is done, as a plot of their norms would read them."""

    def __init__(self) -> None:
        self.sums: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        optimizer = private_optimizer(trainer.optimizers[0])
        if not optimizer._is_last_step_skipped:
            self.sums.append(torch.cat([p.summed_grad.flatten() for p in optimizer.params]))


def compared(folder: Path, make: Callable[[], pl.LightningModule], audit: PrivacyAudit) -> int:
    """Assert that the sums of a training are the same with an audit; the number of its steps."""
    sums = []
    for callbacks in ([], [audit]):
        torch.manual_seed(1)
        keeps = Keeps()
        trainer_for(folder / str(len(callbacks)), *callbacks, keeps, max_steps=STEPS).fit(make())
        sums.append(torch.stack(keeps.sums))
    plain, audited = sums
    assert plain.shape == audited.shape
    torch.testing.assert_close(audited, plain, rtol=1e-4, atol=2e-5)
    return len(plain)


def test_an_input_canary_is_not_left_in_the_clipped_sums(tmp_path):
    def loss(module: PrivateModule, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(module.net(batch[0]), batch[1])

    canary = Mislabeled(amplitude=100.0, loss=loss, num_classes=10)
    compared(tmp_path, PrivateModule, PrivacyAudit(seed=1, canaries=[canary]))


@pytest.mark.parametrize(
    "make",
    staged(
        [PrivateModule, lambda: wide(PerLayer, batch_size=2), lambda: wide(Ghost)],
        [
            lambda: wide(mode="functorch"),
            lambda: wide(NotWrapped),
            lambda: wide(AdaClip),
            lambda: wide(ManualGhost),
            lambda: wide(AdaptiveGhost, batch_size=64),
            lambda: wide(Physical, batch_size=16),
            lambda: wide(optimizer_class=NoNoise),
        ],
    ),
)
@pytest.mark.one_in(3)
def test_the_clipped_sums_of_a_step_that_is_done_are_those_of_a_training_without_the_audit(
    tmp_path, make
):
    # A fault is only warned of: what is compared is the whole training.
    assert compared(tmp_path, make, PrivacyAudit(seed=1, on_violation="warn")) >= STEPS // 4
