"""Each fault of a DP-SGD, on the real DPOptimizer, fails the run under its own name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from printed_report import as_text
from torch import nn
from torch.nn import functional
from training_support import (
    ManualModule,
    PrivateModule,
    digits,
    fit,
    mlp,
    random_data,
    status,
    violation,
)

from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.results.audit_report import describe
from lightning_audit.testing import faulty
from lightning_audit.verdict.gate import contradictions

#: For what only the steps after the first violation show.
TRAINS_ON = {"on_violation": "warn"}


def _on_digits(kind: type[torch.optim.Optimizer]) -> PrivateModule:
    return PrivateModule(mlp(64), dataset=digits(), optimizer_class=kind)


@pytest.mark.parametrize(
    ("kind", "finding", "fault"),
    [
        (faulty.NoNoise, "noise", "no noise:"),
        (faulty.HalfNoise, "noise", "noise scale too small:"),
        (faulty.NoiseOverBatch, "noise", "noise divided by the batch size:"),
        (faulty.NoClipping, "sensitivity", "no clipping:"),
        (
            faulty.BroadcastNoise,
            "reuse.broadcast",
            "one noise value is shared by all coordinates",
        ),
        (
            faulty.OneKeyForAllTensors,
            "reuse.pair",
            "one noise key is used for several tensors",
        ),
        (
            faulty.ClosureRunsAgain,
            "gradient_replaced",
            "gradient replaced: a backward pass ran after the noise",
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
@pytest.mark.one_in(4)
def test_fault_of_the_mechanism_is_named(
    tmp_path: Path, kind: type[torch.optim.Optimizer], finding: str, fault: str
) -> None:
    report = fit(tmp_path, _on_digits(kind), PrivacyAudit(seed=1, **TRAINS_ON), max_steps=64)
    assert report.verdict.kind == "mechanism"
    assert status(report, finding) == "violated"
    assert fault in report.verdict.fault
    assert report.verdict.root is not None
    assert report.verdict.advice or report.verdict.root.look_at


def test_clipping_at_twice_the_norm_is_named_with_its_size(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    report = violation(tmp_path, _on_digits(faulty.ClipAtTwice), audit, max_steps=96)
    assert status(report, "sensitivity") == "violated"
    assert "clipping norm too large: gradients are clipped at" in report.verdict.fault
    shift = next(c for c in report.checks if c.name == "sensitivity").evidence["shift"]
    assert 1.5 < shift < 2.5


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("data", ["random", "digits"])
def test_clipping_after_averaging_is_named(tmp_path: Path, seed: int, data: str) -> None:
    kind = faulty.ClipAfterAverage
    module = PrivateModule(optimizer_class=kind) if data == "random" else _on_digits(kind)
    report = violation(tmp_path, module, PrivacyAudit(seed=seed), max_steps=64)
    assert status(report, "sensitivity") == "violated"
    assert "clipping after averaging" in report.verdict.fault


@pytest.mark.parametrize("data", ["random", "digits"])
def test_noise_seeded_again_at_every_step_is_named(tmp_path: Path, data: str) -> None:
    kind = faulty.ReseededNoise
    module = PrivateModule(optimizer_class=kind) if data == "random" else _on_digits(kind)
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    assert status(report, "reuse.lag") == "violated"
    assert "the same noise is added at every step" in report.verdict.fault


@pytest.mark.parametrize("mode", ["hooks", pytest.param("functorch", marks=pytest.mark.heavy)])
def test_clipping_per_tensor_is_named(tmp_path: Path, mode: str) -> None:
    module = PrivateModule(mode=mode, optimizer_class=faulty.ClipPerTensor)
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=320)
    assert status(report, "sensitivity") == "violated"
    assert "clipping per tensor" in report.verdict.fault


@pytest.mark.parametrize("data", ["random", "digits"])
def test_missing_noise_on_biases_is_named_with_the_tensors(tmp_path: Path, data: str) -> None:
    kind = faulty.NoNoiseOnBiases
    module = PrivateModule(optimizer_class=kind) if data == "random" else _on_digits(kind)
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    assert status(report, "noise.tensor") == "violated"
    assert "noise of some tensors:" in report.verdict.fault
    assert "`net.0.bias`" in report.verdict.fault
    assert "weight" not in report.verdict.fault


def test_missing_noise_is_not_called_noise_divided_by_the_batch_size(tmp_path: Path) -> None:
    # Here the data's part of the gradient is about one over the batch size.
    module = PrivateModule(optimizer_class=faulty.NoNoise)
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    assert "divided by the batch size" not in report.verdict.fault


# Two epochs of four steps; one is enough for most of the coins' draws, six steps for all of thirty.
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.one_in(4)
def test_missing_clipping_in_short_epochs_is_named(tmp_path: Path, seed: int) -> None:
    module = PrivateModule(dataset=random_data(64), optimizer_class=faulty.NoClipping)
    report = violation(tmp_path, module, PrivacyAudit(seed=seed), max_steps=8)
    assert report.steps < 8
    assert "clipping" in report.verdict.fault.split(",")[0]


def test_faults_are_found_in_manual_optimization(tmp_path: Path) -> None:
    module = ManualModule(optimizer_class=faulty.HalfNoise)
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    assert "noise scale too small" in report.verdict.fault


def test_faults_are_found_in_functorch_mode(tmp_path: Path) -> None:
    module = PrivateModule(mode="functorch", optimizer_class=faulty.HalfNoise)
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    assert "noise scale too small" in report.verdict.fault


def test_noise_below_the_stated_claim_is_found_though_opacus_is_sound(tmp_path: Path) -> None:
    claim = PrivacyClaim(noise_multiplier=2.0)
    report = violation(tmp_path, PrivateModule(), PrivacyAudit(claim=claim, seed=1), max_steps=64)
    assert report.verdict.kind == "mechanism"
    assert "noise scale too small" in report.verdict.fault


def test_allowed_finding_is_shown_and_does_not_fail(tmp_path: Path) -> None:
    module = PrivateModule(optimizer_class=faulty.ClipAtTwice)
    audit = PrivacyAudit(allow=["sensitivity"], seed=1)
    report = fit(tmp_path, module, audit, max_steps=64)
    assert status(report, "sensitivity") == "allowed"
    assert report.verdict.outcome != "VIOLATION"


# ------------------------------------------------------------------ no DP-SGD at all


class Plain(PrivateModule):
    """Returns the torch optimizer; `make_private` was called, and its optimizer lost, or not."""

    def __init__(self, *, wrap: bool) -> None:
        super().__init__(make_poisson=False)  # with it, Opacus itself complains at the second step
        self.wrap = wrap

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.wrap:
            return super().configure_optimizers().original_optimizer
        return self.inner(self.trainable())


@pytest.mark.parametrize(
    ("wrap", "arguments"),
    [
        (False, {"claimed_epsilon": 8.0}),
        (True, {"claim": PrivacyClaim(epsilon=8.0, delta=1e-5)}),
    ],
    ids=["plain", "private_one_lost"],
)
def test_plain_optimizer_under_a_claim_is_no_dp(
    tmp_path: Path, wrap: bool, arguments: dict[str, Any]
) -> None:
    report = violation(tmp_path, Plain(wrap=wrap), PrivacyAudit(**arguments), max_steps=8)
    assert report.verdict.kind == "mechanism"
    assert status(report, "no_dp") == "violated"
    assert "no DP-SGD" in report.verdict.fault
    assert "SGD was stopped before its first step" in report.verdict.summary


def test_plain_optimizer_under_a_whole_claim_of_a_mechanism_is_no_noise(tmp_path: Path) -> None:
    claim = PrivacyClaim(noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16)
    report = violation(tmp_path, Plain(wrap=False), PrivacyAudit(claim=claim, seed=1), max_steps=32)
    assert report.verdict.summary.startswith("noise")


def test_plain_optimizer_is_named_without_a_claim_too(tmp_path: Path) -> None:
    report = violation(tmp_path, Plain(wrap=False), PrivacyAudit(), max_steps=8)
    assert "SGD was stopped before its first step" in report.verdict.summary


class PlainBeside(PrivateModule):
    """A head outside of the private network, with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.head = nn.Linear(10, 10)

    def configure_optimizers(self) -> Any:
        private = super().configure_optimizers()
        return [private, torch.optim.Adam(self.head.parameters(), lr=1e-3)], []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        private, plain = self.optimizers()
        private.zero_grad()
        plain.zero_grad()
        self.manual_backward(functional.cross_entropy(self.head(self.net(x)), y))
        private.step()
        plain.step()


def test_plain_optimizer_beside_the_private_one_is_no_dp(tmp_path: Path) -> None:
    report = fit(tmp_path, PlainBeside(), PrivacyAudit(seed=1, **TRAINS_ON), max_steps=64)
    assert status(report, "no_dp") == "violated"
    assert "Adam took 32 steps" in report.verdict.summary
    assert report.steps == 32
    assert status(report, "noise") == "ok"


# ------------------------------------------------------------------ sampling and accounting


def test_loader_that_is_not_poisson_says_what_to_write(tmp_path: Path) -> None:
    report = violation(tmp_path, PrivateModule(poisson=False), PrivacyAudit(seed=1), max_steps=64)
    assert report.verdict.kind == "accounting"
    assert status(report, "sampling.not_poisson") == "violated"
    assert "wrong sampling" in report.verdict.fault
    assert "DPDataLoader.from_data_loader(loader)" in report.verdict.advice
    assert "SequentialSampler" in report.verdict.summary


def test_loader_that_is_not_poisson_passes_where_allowed(tmp_path: Path) -> None:
    audit = PrivacyAudit(allow="sampling.not_poisson", seed=1)
    report = fit(tmp_path, PrivateModule(poisson=False), audit, max_steps=64)
    assert report.verdict.outcome == "PASS"
    assert status(report, "sampling.not_poisson") == "allowed"


def test_loader_with_a_higher_rate_than_the_accountants_is_wrong_sampling(tmp_path: Path) -> None:
    class Doubled(PrivateModule):
        def train_dataloader(self) -> Any:
            self.batch_size, size = 2 * self.batch_size, self.batch_size
            loader = super().train_dataloader()
            self.batch_size = size
            return loader

    report = violation(tmp_path, Doubled(), PrivacyAudit(seed=1), max_steps=32)
    assert report.verdict.kind == "accounting"
    assert status(report, "sampling.rate") == "violated"
    assert "draws more often" in report.verdict.fault


def test_more_steps_than_the_claimed_epsilon_allows_is_wrong_accounting(tmp_path: Path) -> None:
    audit = PrivacyAudit(claimed_epsilon=1.7, seed=1, on_violation="warn")
    report = fit(tmp_path, PrivateModule(), audit, max_epochs=6)
    assert report.verdict.kind == "accounting"
    assert status(report, "accounting") == "violated"
    assert "wrong accounting" in report.verdict.fault
    assert report.epsilon_spent > 1.7
    # The epochs before were within the claim.
    assert len(report.epochs) > 1
    violated = [epoch["violated"] for epoch in report.epochs]
    assert violated == sorted(violated)
    assert (violated[0], violated[-1]) == (0.0, 1.0)


def test_training_without_claimed_noise_cannot_keep_a_claimed_epsilon(tmp_path: Path) -> None:
    module = PrivateModule(noise_multiplier=0.0)
    report = violation(tmp_path, module, PrivacyAudit(claimed_epsilon=8.0, seed=1), max_steps=40)
    assert report.verdict.kind == "accounting"
    assert "the first step costs epsilon inf" in report.verdict.summary
    assert not report.history  # it stops before it
    assert "noise_multiplier above 0" in report.verdict.advice


def test_training_without_claimed_noise_never_passes_and_is_told_so(tmp_path: Path) -> None:
    report = fit(tmp_path, PrivateModule(noise_multiplier=0.0), PrivacyAudit(seed=1), max_steps=40)
    assert report.verdict.outcome != "PASS"
    said = " ".join([report.verdict.summary, report.verdict.fault, *report.verdict.pass_blockers])
    assert "noise" in said, report.verdict


@pytest.mark.filterwarnings("ignore:GDP accounting is experimental")
def test_gdp_accountant_that_reports_too_little_is_wrong_accounting(tmp_path: Path) -> None:
    module = PrivateModule(accountant="gdp")
    report = violation(tmp_path, module, PrivacyAudit(seed=1), max_steps=64)
    assert report.verdict.kind == "accounting"
    assert "gdp accountant says" in report.verdict.summary
    assert report.epsilon_spent > report.claimed_epsilon


# ------------------------------------------------------------------ one root, and what is beside it


class HalfNoiseShuffled(PrivateModule):
    """Too little noise, and the trainer's own loader in place of the Poisson one."""

    def __init__(self) -> None:
        super().__init__(mlp(64), dataset=digits(), poisson=False, optimizer_class=faulty.HalfNoise)


def test_half_noise_has_one_root_and_the_rest_follows_from_it(tmp_path: Path) -> None:
    module = _on_digits(faulty.HalfNoise)
    report = fit(tmp_path, module, PrivacyAudit(seed=1, **TRAINS_ON), max_steps=64)
    root = report.verdict.root
    assert root is not None
    assert (root.name, root.finding) == ("noise_too_small", "noise")
    assert root.place.step is not None
    assert root.place.step < 5
    assert report.verdict.further == ()
    wrong = [check for check in report.checks if check.status == "violated"]
    followed = [check.name for check in wrong if check.follows_from == "noise"]
    assert {"noise.tensor", "reuse.broadcast"} <= set(followed) == set(root.consequences)
    assert [check.name for check in wrong if not check.follows_from] == ["noise"]
    text = as_text(report)
    assert text.count("VIOLATED") == 1
    assert sum("reuse.broadcast" in line for line in text.splitlines()) == 1
    assert f"  Follows from it: {', '.join(root.consequences)}\n" in text
    assert text.count("Look at: ") + text.count("Next: ") == 1
    assert contradictions(report) == []


@pytest.mark.parametrize(
    ("module", "audit", "findings"),
    [
        (HalfNoiseShuffled, {}, ["noise", "sampling.not_poisson"]),
        (
            lambda: _on_digits(faulty.NoClipping),
            {"claimed_epsilon": 0.5},
            ["sensitivity", "accounting"],
        ),
    ],
    ids=["half_noise_and_shuffled", "no_clipping_and_accounting"],
)
def test_two_independent_faults_are_two_findings(
    tmp_path: Path,
    module: Callable[[], PrivateModule],
    audit: dict[str, Any],
    findings: list[str],
) -> None:
    told = PrivacyAudit(seed=1, **audit, **TRAINS_ON)
    report = fit(tmp_path, module(), told, max_steps=64)
    verdict = report.verdict
    assert verdict.root is not None
    assert [fault.finding for fault in (verdict.root, *verdict.further)] == findings
    assert f"(also: {findings[1]})" in verdict.summary
    assert f"\nAlso: {findings[1]}: " in describe(verdict)
    assert {c.name for c in report.checks if c.status == "violated" and not c.follows_from} == set(
        findings
    )
    assert contradictions(report) == []
