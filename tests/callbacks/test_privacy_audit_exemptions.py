"""A finding is allowed of one optimizer or some parameters, for a reason, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from gan_support import GENERATOR, REASON, Dcgan, DcganOfFixedSize, Gan, GanWithEncoder
from hand_written_support import CLAIM, HandWritten
from lightning_fabric.utilities.exceptions import MisconfigurationException
from training_matrix import TwoOptimizers, two_nets
from training_support import (
    PrivateModule,
    digits,
    fit,
    replace_optimizer,
    status,
    trainer_for,
    violation,
)

from lightning_audit import Allow, PrivacyAudit, PrivacyClaim
from lightning_audit.testing.faulty import ClipAfterAverage

#: Lightning counts the steps of all optimizers.
STEPS = {"max_steps": 240}


def audit(**kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(seed=1, **kwargs)


@pytest.mark.parametrize(
    "allowed",
    [GENERATOR, Allow("no_dp", optimizer=1, reason=REASON), Allow("no_dp", "Adam", None, REASON)],
)
def test_a_generator_beside_a_private_discriminator_passes_with_its_exemption(
    tmp_path: Path, allowed: Allow
) -> None:
    report = fit(tmp_path, Gan(), audit(allow=[allowed]), **STEPS)
    assert report.verdict.outcome == "PASS", report.verdict
    (told,) = (check.message for check in report.checks if check.name == "no_dp")
    assert f"120 of Adam, optimizer {allowed.optimizer!r} ({REASON})" in told.replace(
        " of opt", " opt"
    )
    assert f"the user allows no_dp of optimizer {allowed.optimizer!r}: {REASON}" in report.notes
    (kept,) = report.settings["exemptions"]
    assert kept["reason"] == REASON


def test_without_the_exemption_it_is_a_violation(tmp_path: Path) -> None:
    report = violation(tmp_path, Gan(), audit(), **STEPS)
    assert status(report, "no_dp") == "violated"


def test_opacus_dcgan_shows_its_generator_the_number_of_records(tmp_path: Path) -> None:
    module = Dcgan(dataset=digits())
    report = violation(tmp_path, module, audit(allow=[GENERATOR], examinations=0), **STEPS)
    fault = report.verdict.faults[0]
    assert fault.name == "number_of_records_reaches_exempt_optimizer"
    places = " ".join(map(str, fault.place.code))
    assert "Dcgan.training_step at tests/support/gan_support.py:" in places
    assert "the number of records reaches an exempt optimizer" in report.verdict.summary
    assert "train the generator on a fixed number of fakes" in report.verdict.advice
    assert [check.name for check in report.checks if check.status == "violated"] == ["no_dp"]


def test_dcgan_with_a_fixed_number_of_fakes_passes(tmp_path: Path) -> None:
    module = DcganOfFixedSize(dataset=digits())
    report = fit(tmp_path, module, audit(allow=[GENERATOR], examinations=0), **STEPS)
    assert report.verdict.outcome == "PASS", report.verdict


def test_without_the_exemption_dcgan_is_told_what_an_exemption_takes(tmp_path: Path) -> None:
    report = violation(tmp_path, Dcgan(dataset=digits()), audit(examinations=0), **STEPS)
    assert report.verdict.faults[0].name == "no_dp"
    assert "Train it on a fixed number of fakes" in report.verdict.advice


def test_a_third_optimizer_that_trains_on_the_records_is_a_violation(tmp_path: Path) -> None:
    report = violation(tmp_path, GanWithEncoder(), audit(allow=[GENERATOR]), max_steps=360)
    assert status(report, "no_dp") == "violated"
    assert report.verdict.summary.startswith("no_dp: SGD was stopped before its first step")


def test_an_exemption_of_no_optimizer_of_the_training_is_refused(tmp_path: Path) -> None:
    allowed = Allow("no_dp", optimizer="generator", reason=REASON)
    with pytest.raises(MisconfigurationException) as raised:
        trainer_for(tmp_path, audit(allow=[allowed])).fit(Gan())
    told = str(raised.value)
    assert "optimizer='generator' is none of the training's" in told
    assert "1 is Adam of `G.0.weight`, `G.0.bias`" in told


class OneFaulty(TwoOptimizers):
    """Of two private optimizers the second does not clip single records."""

    def configure_optimizers(self) -> Any:
        right, wrong = super().configure_optimizers()
        return [right, replace_optimizer(wrong, ClipAfterAverage)]


@pytest.mark.parametrize(
    ("optimizer", "status"), [("net.critic", "allowed"), ("net.actor", "violated")]
)
def test_a_finding_is_allowed_of_one_private_optimizer_alone(
    tmp_path: Path, optimizer: str, status: str
) -> None:
    allowed = Allow("sensitivity", optimizer=optimizer, reason="a trial")
    given = audit(allow=[allowed], on_violation="warn")
    report = fit(tmp_path, OneFaulty(two_nets()), given, **STEPS)
    found = {c.optimizer: c.status for c in report.checks if c.name == "sensitivity"}
    assert sorted(found.values()) == sorted(["ok", status]), found


class Averaged(PrivateModule):
    """Keeps an average of its weights, which no optimizer trains."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.average = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.zeros(3))})
        self.average.requires_grad_(False)

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            self.average["weight"] += 0.1


@pytest.mark.parametrize(("pattern", "passes"), [("average.*", True), ("net.*", False)])
def test_parameters_are_exempt_by_their_names(tmp_path: Path, pattern: str, passes: bool) -> None:
    allowed = Allow("unaudited", parameters=pattern, reason="an average of released weights")
    report = fit(tmp_path, Averaged(), audit(allow=allowed), max_steps=120)
    assert (report.verdict.outcome == "PASS") == passes, report.verdict


def refused(directory: Path, module: pl.LightningModule, allowed: Allow) -> str:
    with pytest.raises(MisconfigurationException) as raised:
        trainer_for(directory, audit(allow=allowed), **STEPS).fit(module)
    return str(raised.value)


@pytest.mark.parametrize("pattern", ["average", "nosuch.*"])
def test_a_pattern_of_no_parameter_is_refused(tmp_path: Path, pattern: str) -> None:
    told = refused(tmp_path, Averaged(), Allow("unaudited", parameters=pattern, reason="?"))
    assert f"parameters={pattern!r} matches none of the module's" in told


class TwiceTrained(Gan):
    """A second optimizer of the generator, which may train on anything."""

    def configure_optimizers(self) -> Any:
        return [*super().configure_optimizers(), torch.optim.SGD(self.G.parameters(), lr=0.1)]


class EncoderByAdam(GanWithEncoder):
    """The third optimizer is of the generator's class."""

    def configure_optimizers(self) -> Any:
        *others, _ = super().configure_optimizers()
        return [*others, torch.optim.Adam(self.encoder.parameters())]


@pytest.mark.parametrize("fits", ["G", "Adam"])
def test_an_exemption_that_fits_two_optimizers_is_refused(tmp_path: Path, fits: str) -> None:
    module = TwiceTrained() if fits == "G" else EncoderByAdam()
    told = refused(tmp_path, module, Allow("no_dp", optimizer=fits, reason=REASON))
    assert f"optimizer={fits!r} is 2 of the training's" in told


def test_parameters_that_the_module_does_not_name_have_no_prefix(tmp_path: Path) -> None:
    class Hidden(Gan):
        def configure_optimizers(self) -> Any:
            private, _ = super().configure_optimizers()
            self.__dict__["hidden"] = [torch.nn.Linear(8, 8)]
            params = [*self.G.parameters(), *self.hidden[0].parameters()]
            return [private, torch.optim.Adam(params, lr=1e-3)]

    assert "is none of the training's" in refused(tmp_path, Hidden(), GENERATOR)


def test_the_private_optimizer_needs_no_exemption_from_dp(tmp_path: Path) -> None:
    told = refused(tmp_path, Gan(), Allow("no_dp", optimizer=0, reason=REASON))
    assert "optimizer='0' is private" in told


def test_a_finding_of_dp_sgd_by_hand_is_allowed_of_its_optimizer(tmp_path: Path) -> None:
    class Quiet(HandWritten):
        def noise(self, p: torch.Tensor) -> torch.Tensor:
            return 0.3 * super().noise(p)

    given = [Allow(name, optimizer="SGD", reason="a trial") for name in ("noise", "noise.tensor")]
    found = PrivacyAudit(claim=CLAIM, allow=given, on_violation="warn", seed=1)
    report = fit(tmp_path, Quiet(), found, max_steps=60)
    statuses = {c.name: c.status for c in report.checks if c.name in ("noise", "noise.tensor")}
    assert statuses == {"noise": "allowed", "noise.tensor": "allowed"}


def test_the_divisor_is_allowed_of_its_optimizer(tmp_path: Path) -> None:
    stated = PrivacyClaim(private_dataset_size=True, delta=1e-5)
    name = "expected_batch_size"
    given = audit(claim=stated, allow=Allow(name, optimizer="net", reason="a trial"))
    report = fit(tmp_path, PrivateModule(), given, max_steps=20)
    assert status(report, name) == "allowed"
