"""What is done to a release is no fault, and what is done with anything else is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import after_noise_support as support
import pytest
import pytorch_lightning as pl
import torch
from after_noise_support import (
    PROCESSES,
    BlockCyclic,
    ByHand,
    ByHandInClosure,
    InPreStep,
    InScaling,
    InStep,
    Kalman,
    MaskedBeforeClipping,
    Processing,
    by_hand_that,
    optimizer_that,
)
from hand_written_support import CLAIM, HandWritten
from opacus.optimizers import DPOptimizer
from stages import staged
from trained import Forwarding, weights
from training_support import ManualModule, PrivateModule, digits, fit, mlp, status, trainer_for

import lightning_audit
from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.canaries import Dirac, Mislabeled


def with_opacus(
    kind: type[DPOptimizer], *, closure: bool = True, **kwargs: Any
) -> pl.LightningModule:
    module = PrivateModule if closure else ManualModule
    return module(mlp(64), dataset=digits(), optimizer_class=kind, **kwargs)


def _kind(base: type, **body: Any) -> type:
    return type(base.__name__, (base,), body)


def processed(name: str, where: str, share: float = 1.0) -> pl.LightningModule:
    """A training of Opacus that processes its release at one of several places."""
    closure = where != "manual"
    if name == "kalman":
        return with_opacus(_kind(Kalman, share=share), closure=closure)
    place = {"pre_step": InPreStep, "scale": InScaling}.get(where, InStep)
    return with_opacus(optimizer_that(place, name, share), closure=closure)


def run(
    directory: Path, module: pl.LightningModule, seed: int = 1, steps: int = 60, **kwargs: Any
) -> AuditReport:
    torch.manual_seed(seed)
    by_hand = isinstance(module, HandWritten)
    audit = PrivacyAudit(seed=seed, claim=CLAIM if by_hand else None, on_violation="warn", **kwargs)
    return fit(directory, module, audit, max_steps=steps)


def assert_replaced(report: AuditReport) -> None:
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.summary.startswith("gradient_replaced: "), report.verdict.summary


def assert_not_accused(report: AuditReport, name: str) -> None:
    """Centring takes entries that are not read, so that it cannot be followed."""
    expected = "INCONCLUSIVE" if name == "centralised" else "PASS"
    assert report.verdict.outcome == expected, report.verdict


def assert_too_little_noise(report: AuditReport) -> None:
    assert report.verdict.outcome == "VIOLATION"
    assert report.verdict.summary.startswith(("noise: ", "noise.tensor: ")), report.verdict.summary
    assert report.verdict.fault.startswith("noise scale too small")


#: Each process once, at each place; with and without a closure.
SOME = [
    ("low_pass", "pre_step"),
    ("low_pass", "scale"),
    ("top_k", "scale"),
    ("centralised", "pre_step"),
    ("kalman", "step"),
    ("kalman", "manual"),
    ("sign", "manual"),
]


def seeded(quick: list[Any], heavy: list[Any]) -> list[Any]:
    """Cases with a seed: all of them with five others at night."""
    more = [(*case, seed) for case in (*quick, *heavy) for seed in (2, 3, 4, 5, 6)]
    return staged([(*case, 1) for case in quick], [(*case, 1) for case in heavy], more)


@pytest.mark.parametrize(("name", "where", "seed"), seeded(SOME[::3], SOME[1::3] + SOME[2::3]))
@pytest.mark.heavy_one_in(12)
@pytest.mark.one_in(2)
def test_a_processed_release_is_not_accused_and_half_the_noise_before_is_named(
    tmp_path, name, where, seed
):
    assert_not_accused(run(tmp_path / "correct", processed(name, where), seed), name)
    assert_too_little_noise(run(tmp_path / "half", processed(name, where, share=0.5), seed))


BY_HAND = [*((name, kind) for name in PROCESSES for kind in (ByHand, ByHandInClosure))]


@pytest.mark.parametrize(
    ("name", "kind", "seed"),
    seeded([], BY_HAND[::3]) + staged(heavy=[(*case, 1) for case in BY_HAND[1::3] + BY_HAND[2::3]]),
)
@pytest.mark.heavy_one_in(10)
def test_a_hand_written_release_is_not_accused_and_half_the_noise_of_it_is_named(
    tmp_path, name, kind, seed
):
    assert_not_accused(run(tmp_path / "shown", by_hand_that(name, kind=kind)(), seed), name)
    hidden = run(tmp_path / "hidden", by_hand_that(name, kind=kind)(says=False), seed, steps=100)
    assert hidden.verdict.outcome != "VIOLATION", hidden.verdict
    if any(check.status == "undecided" for check in hidden.checks):
        assert any("lightning_audit.released" in item for item in hidden.verdict.pass_blockers)
    assert_too_little_noise(run(tmp_path / "half", by_hand_that(name, 0.5, kind)(), seed))


@pytest.mark.parametrize("seed", [2, 4])
def test_the_largest_entries_of_a_hidden_release_are_accused_at_no_step(tmp_path, seed):
    module = by_hand_that("top_k", kind=ByHandInClosure)(says=False)
    audit = PrivacyAudit(seed=seed, claim=CLAIM, on_violation="raise")
    report = fit(tmp_path, module, audit, max_steps=40)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert any("lightning_audit.released" in item for item in report.verdict.pass_blockers)


def test_half_the_noise_of_plain_hand_written_dp_sgd_is_named_without_more_calls(tmp_path):
    plain = _kind(ByHand, process=staticmethod(support.nothing), share=0.5)
    assert_too_little_noise(run(tmp_path, plain(says=False)))


#: Ways to release something else than the whole gradient, by what they are called.
SHAPES: dict[str, type[Processing]] = {"masked": MaskedBeforeClipping, "blocks": BlockCyclic}


@pytest.mark.parametrize(("name", "seed"), seeded([("masked",)], [("blocks",)]))
def test_another_shape_of_release_is_not_accused(tmp_path, name, seed):
    report = run(tmp_path, with_opacus(SHAPES[name]), seed, steps=60 if seed == 1 else 150)
    assert report.verdict.outcome != "VIOLATION", report.verdict


@pytest.mark.parametrize("name", staged(["masked"], nightly=["blocks"]))
def test_half_the_noise_in_another_shape_is_found(tmp_path, name):
    report = run(tmp_path, with_opacus(_kind(SHAPES[name], share=0.5)), steps=100)
    assert report.verdict.outcome == "VIOLATION", report.verdict
    assert status(report, "noise") == "violated"


def test_noise_that_is_left_out_where_the_data_have_no_gradient_is_found(tmp_path):
    class WhereGradientsAre(DPOptimizer):
        """Adds no noise to entries whose clipped sum is zero, and so tells which they are."""

        def add_noise(self) -> None:
            super().add_noise()
            for p in self.params:
                p.grad.mul_((p.summed_grad != 0).view_as(p))

    report = run(tmp_path, with_opacus(WhereGradientsAre))
    assert report.verdict.outcome == "VIOLATION", report.verdict


class TakesNoiseBack(DPOptimizer):
    """Uses a mixture of the noisy gradient and the clipped sum."""

    def scale_grad(self) -> None:
        for p in self.params:
            p.grad = 0.5 * p.grad + 0.5 * p.summed_grad.view_as(p)
        super().scale_grad()


class RawInTheUpdate(torch.optim.SGD):
    """Goes on from the noisy gradient, and moves the weights along the clipped sum as well."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.summed_grad.view_as(p), alpha=0.01)
        return loss


class Leaks(HandWritten):
    """Uses more than the release that it shows."""

    def write_gradient(self, grads: dict[str, torch.Tensor]) -> None:
        sums = self.clipped_sums(grads)
        params = dict(self.net.named_parameters())
        noisy = {n: (sums[n] + self.noise(p)) / support.BATCH for n, p in params.items()}
        lightning_audit.released(noisy, module=self)
        for n, p in params.items():
            p.grad = noisy[n] + sums[n] / support.BATCH


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda: with_opacus(TakesNoiseBack), 40),
        (lambda: with_opacus(DPOptimizer, inner=lambda p: RawInTheUpdate(p, lr=0.05)), 40),
        (Leaks, 60),
    ],
)
def test_an_update_that_follows_more_than_the_release_is_gradient_replaced(tmp_path, make, steps):
    assert_replaced(run(tmp_path, make(), steps=steps))


class TakesItsOwnNoiseOff(Processing):
    """Keeps the noise, and takes a part of it off again behind the place where it was read."""

    def add_noise(self) -> None:
        super().add_noise()
        self.own = [p.grad - p.summed_grad.view_as(p) for p in self.params]

    def scale_grad(self) -> None:
        for p, noise in zip(self.params, self.own, strict=True):
            p.grad -= 0.7 * noise
        super().scale_grad()


def test_noise_that_is_taken_off_again_does_not_pass(tmp_path):
    report = run(tmp_path, with_opacus(TakesItsOwnNoiseOff), steps=80)
    assert report.verdict.outcome != "PASS", report.verdict
    assert any("could not be followed" in item for item in report.verdict.pass_blockers)


class InNoise(Processing):
    """Does more in its own add_noise than to add noise."""

    def add_noise(self) -> None:
        super().add_noise()
        self.apply()


@pytest.mark.parametrize("name", staged(heavy=["sign"], nightly=["low_pass", "top_k"]))
def test_what_is_done_within_add_noise_is_neither_accused_nor_passed_at_half_the_noise(
    tmp_path, name
):
    correct, half = (
        run(tmp_path / str(share), with_opacus(optimizer_that(InNoise, name, share)), steps=100)
        for share in (1.0, 0.5)
    )
    assert correct.verdict.outcome != "VIOLATION", correct.verdict
    assert half.verdict.outcome != "PASS", half.verdict


def test_an_input_canary_is_read_where_the_release_is_shown(tmp_path):
    module = by_hand_that("low_pass")
    module.forward = lambda self, x: self.net(x)
    report = run(tmp_path, module(), canaries=[Mislabeled(amplitude=100.0)])
    assert not [c.name for c in report.checks if c.status in ("violated", "undecided")]


def models(
    folder: Path, make: Callable[[], pl.LightningModule], audit: PrivacyAudit
) -> list[torch.Tensor]:
    """The parameters that a training ends with without an audit, and with one."""
    ends = []
    for audits in ([], [audit]):
        pl.seed_everything(3, verbose=False)
        module = make()
        trainer_for(folder, *audits, max_steps=20).fit(module)
        ends.append(weights(module))
    return ends


def test_a_release_is_given_back_without_the_canary_and_untouched_without_an_audit(tmp_path):
    class Notes(ByHand):
        process = staticmethod(support.nothing)

        def write_gradient(self, grads: dict[str, torch.Tensor]) -> None:
            torch.manual_seed(5)
            super().write_gradient(grads)

    audit = PrivacyAudit(seed=1, claim=CLAIM, on_violation="warn")
    torch.testing.assert_close(*models(tmp_path, Notes, audit), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda grads: list(grads.values()), "must be a dict"),
        (lambda grads: {**grads, "net.0.bias": 1.0}, "must be a tensor"),
        (lambda grads: {n: g[None] for n, g in grads.items()}, "has shape (1, 32, 8)"),
        (lambda grads: dict(list(grads.items())[1:]), "lacks parameters"),
    ],
    ids=["list", "number", "stacked", "part"],
)
def test_a_wrong_release_is_refused_with_what_to_give(tmp_path, change, words):
    class Wrong(HandWritten):
        def write_gradient(self, grads: dict[str, torch.Tensor]) -> None:
            noisy = {f"net.{n}": g.sum(0) for n, g in grads.items()}
            lightning_audit.released(change(noisy), module=self)

    trainer = trainer_for(tmp_path, PrivacyAudit(claim=CLAIM), max_steps=2)
    with pytest.raises(ValueError, match=r"grads") as raised:
        trainer.fit(Wrong())
    assert words in str(raised.value)


def test_a_release_that_is_shown_twice_or_not_at_every_step_passes_nothing(tmp_path):
    class Twice(ByHand):
        process = staticmethod(support.nothing)
        calls = 0

        def write_gradient(self, grads: dict[str, torch.Tensor]) -> None:
            self.calls += 1
            self.says = self.calls % 3 != 0
            super().write_gradient(grads)
            if self.calls % 3 == 1:
                held = {n: p.grad for n, p in self.net.named_parameters()}
                lightning_audit.released(held, module=self)

    verdict = run(tmp_path, Twice()).verdict
    assert verdict.outcome == "INCONCLUSIVE"
    for said in ("more than once in a step", "in some steps lightning_audit.released"):
        assert any(said in item for item in verdict.pass_blockers)


def test_the_model_is_the_unaudited_one_where_a_closure_runs_twice(tmp_path):
    def make() -> pl.LightningModule:
        return with_opacus(_kind(Kalman, share=1.0), generator=torch.Generator().manual_seed(1))

    torch.testing.assert_close(*models(tmp_path, make, PrivacyAudit(seed=1)), rtol=1e-3, atol=1e-5)


class LouderInTheEnd(Forwarding):
    """Raises the noise multiplier before some step."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.global_step == 5:
            self.trainer.optimizers[0].noise_multiplier = 3.0


class QuieterInTheEnd(Forwarding):
    """Lowers it: what the audit read before is no longer stated."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.trainer.optimizers[0].noise_multiplier = 1.0 if self.global_step < 3 else 0.5


@pytest.mark.parametrize(
    ("kind", "canary", "after"),
    [(LouderInTheEnd, Mislabeled(num_classes=10), 3.0), (QuieterInTheEnd, Dirac(), 0.5)],
)
def test_noise_that_is_changed_before_a_step_is_that_of_the_step(audited, kind, canary, after):
    report = audited(kind(), canaries=[canary], seed=None, steps=12, on_violation="warn")
    assert report.verdict.outcome != "VIOLATION", report.verdict
    assert {sigma for sigma, *_ in report.history} == {1.0, after}
    assert status(report, "accounting") == "ok"
    assert status(report, "noise.excess") == "ok"


class OnTopOfTorchs(torch.optim.SGD):
    """Calls its parent, whose step fires the step hooks once more."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class ScalesInPlace(torch.optim.SGD):
    """Changes p.grad inside its step, so that nobody can see what the update used."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)
        return super().step(closure)


@pytest.mark.parametrize(
    "kind", [OnTopOfTorchs, ScalesInPlace], ids=["on top of torch's", "scales what was released"]
)
def test_an_update_of_what_was_released_is_no_replaced_gradient_and_read_once_a_step(audited, kind):
    module = PrivateModule(inner=lambda params: kind(params, lr=0.05))
    report = audited(module, on_violation="warn")
    assert report.verdict.outcome == "PASS", report.verdict
    assert report.steps == 64
