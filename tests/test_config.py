"""A training that goes on with other arguments is judged by them from its start, or refused."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_written_support import CLAIM, HandWritten
from lightning_fabric.utilities.exceptions import MisconfigurationException
from resume_support import RESTARTING, RESUMING, StepwiseModule, StopAt, checkpoint_at, saver, train
from stages import staged
from torch.nn import functional
from training_support import report_in, status, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyClaim, PrivacyViolation, Resolution
from lightning_audit.accounting.history import Phase
from lightning_audit.config import AuditConfig, describe_changes
from lightning_audit.testing.faulty import ClipAtTwice, HalfNoise, ScaledNoise
from lightning_audit.verdict.judge import OutcomeSettings

pytestmark = [RESUMING, pytest.mark.training]


def config(**arguments: Any) -> AuditConfig:
    return PrivacyAudit(seed=3, **arguments).config


def test_settings_in_a_report_give_again_what_the_outcome_rests_on():
    asked = config(
        claimed_epsilon=3.0, delta=1e-6, resolution=Resolution(0.5, 4.0), allow=["noise"]
    )
    written = json.loads(json.dumps(asked.settings()))
    read = OutcomeSettings.of(written)
    assert dataclasses.asdict(read).items() <= dataclasses.asdict(asked).items()
    assert written["seed"] == 3


def test_adjacency_and_private_size_are_the_claims_and_usual_without_one():
    assert (config().adjacency, config().private_size) == ("add_remove", False)
    assert config(claim=PrivacyClaim(adjacency="replace_one")).adjacency == "replace_one"
    assert config(claim=PrivacyClaim(private_dataset_size=True)).private_size


def test_the_items_of_a_record_are_a_setting_whose_change_at_a_resume_is_noted():
    one, two = config(), config(claim=PrivacyClaim(items_per_record=2))
    assert (one.items, two.items) == (1, 2)
    assert two.settings()["claim"]["items_per_record"] == 2
    (note,) = describe_changes(one.settings(), two.settings(), 7)
    assert note.startswith("items_per_record=1 until step 7, 2 from then on")
    earlier = config(claim=PrivacyClaim(delta=1e-5)).settings()
    del earlier["claim"]["items_per_record"]  # of a release without it
    assert describe_changes(earlier, one.settings(), 7) == []
    phases = [Phase(1.0, 0.05, 30)]
    assert two.epsilon_of(phases) > one.epsilon_of(phases) == config().epsilon_of(phases)


def test_every_field_is_an_argument_and_a_setting_of_the_report_under_its_own_name():
    names = {field.name for field in dataclasses.fields(AuditConfig)}
    # A drawn seed is no argument; see `test_privacy_audit_seed.py`. `given` lists arguments.
    assert names - {"drawn_seed", "given"} == set(config(on_violation="stop").settings())
    arguments = set(inspect.signature(PrivacyAudit).parameters)
    assert arguments - names == {"num_canaries", "report_dir", "log_prefix", "verbose"}
    # A scope and a reason are said in ``allow``.
    assert names - arguments == {"exemptions", "drawn_seed", "given"}


def test_a_changed_copy_is_checked_anew():
    assert dataclasses.replace(config(), significance=1e-4).significance == 1e-4
    with pytest.raises(ValueError, match="significance=2 must be in"):
        dataclasses.replace(config(), significance=2)


# --- A training that goes on with other arguments is judged by them from its start, or refused.


class NineTenths(ScaledNoise):
    """A tenth too little noise, which takes some dozens of steps to be sure of."""

    factor = 0.9


def interrupted(directory: Path, audit: PrivacyAudit, kept: int, **options: Any) -> dict[str, Any]:
    """Train until the power is cut; what resumes the training at the checkpoint of a step."""
    saved = directory / "saved"
    with pytest.raises(RuntimeError, match="power cut"):
        train(directory, audit, saver(saved, epoch_end=False), StopAt(kept + 1), **options)
    return {"ckpt": checkpoint_at(saved, kept)}


def resumed(
    directory: Path, first: dict[str, Any], then: dict[str, Any], kept: int = 40, **options: Any
) -> AuditReport:
    """The report of a training that was saved with some arguments and went on with others."""
    before, after = (PrivacyAudit(seed=3, on_violation="warn", **each) for each in (first, then))
    train(directory, after, **interrupted(directory, before, kept, **options), **options)
    return report_in(directory)


def test_what_is_said_is_of_the_settings_that_differ():
    claim = PrivacyClaim(noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16)
    other = dataclasses.replace(claim, max_grad_norm=2.0)
    before = PrivacyAudit(claim=claim, seed=1).config.settings()
    after = PrivacyAudit(claim=other, seed=2).config.settings()
    (said,) = describe_changes(before, after, 7)
    assert said.startswith("claim.max_grad_norm=1 until step 7, 2 from then on")
    assert describe_changes(before, before, 7) == []
    same = (config(claimed_epsilon=given).settings() for given in (8.0, 8))
    assert describe_changes(*same, 7) == []


def findings(report: AuditReport) -> dict[str, tuple[str, float | None]]:
    """What each check says and by which evidence, but for those that begin anew."""
    return {
        c.name: (c.status, c.log_e_value)
        for c in report.checks
        if c.name not in {"reuse.resume", *RESTARTING}
    }


def notes_of(report: AuditReport) -> str:
    return "\n".join(report.notes)


# --- Significance.


@pytest.mark.parametrize(
    ("first", "then"), staged(quick=[(0.5, 1e-60)], nightly=[(1e-60, 0.5), (0.5, 1e-3)])
)
def test_a_run_under_another_significance_ends_as_one_that_had_it_from_the_start(
    tmp_path, first, then
):
    options = {"optimizer_class": NineTenths}
    whole = tmp_path / "whole"
    train(whole, PrivacyAudit(seed=3, on_violation="warn", significance=then), **options)
    report = resumed(
        tmp_path / "resumed", {"significance": first}, {"significance": then}, **options
    )
    expected = report_in(whole)
    assert findings(report) == findings(expected)
    assert report.verdict.outcome == expected.verdict.outcome
    assert report.settings["significance"] == then
    assert f"significance={first:g} until step 40, {then:g} from then on" in notes_of(report)


def test_an_alarm_of_a_looser_significance_does_not_stand_under_a_stricter_one(tmp_path):
    allow = {"allow": ["every_step"]}
    loose, strict = {"significance": 0.5, **allow}, {"significance": 1e-120, **allow}
    report = resumed(tmp_path, loose, strict, optimizer_class=ClipAtTwice)
    assert report.verdict.outcome != "VIOLATION"
    assert "no longer violated: sensitivity" in notes_of(report)


def test_evidence_of_before_the_stop_alarms_under_a_looser_significance(tmp_path):
    strict = PrivacyAudit(seed=3, significance=1e-250, on_violation="warn")
    resume = interrupted(tmp_path, strict, 20, optimizer_class=HalfNoise)
    # The steps that follow are sound: what alarms is the past alone.
    with pytest.raises(PrivacyViolation, match="noise"):
        train(tmp_path, PrivacyAudit(significance=1e-3), **resume)
    report = report_in(tmp_path)
    (noise,) = (check for check in report.checks if check.name == "noise")
    # By the step that is said the evidence was there; never later than the checkpoint.
    assert 0 <= noise.evidence["violated_at_step"] < 20
    assert "the step at which a test flagged is an upper bound" in notes_of(report)


def test_a_pass_under_another_significance_says_so(tmp_path):
    report = resumed(tmp_path, {"significance": 1e-200}, {"significance": 0.05})
    assert report.verdict.outcome == "PASS"
    assert "significance=1e-200 until step 40, 0.05 from then on" in notes_of(report)
    assert "is valid only if it was chosen without looking at those steps" in notes_of(report)


def test_canaries_enter_again_when_the_alarm_that_stopped_them_no_longer_stands(tmp_path):
    loose, strict = {"significance": 0.5}, {"significance": 1e-290}
    report = resumed(tmp_path, loose, strict, kept=10, optimizer_class=ClipAtTwice)
    assert report.observations > 40 * 8
    assert "canaries enter again" in notes_of(report)


# --- What sums can answer.

CLAIMED = {"claimed_epsilon": 50.0}


@pytest.mark.parametrize(
    ("first", "then", "said", "outcome"),
    staged(
        quick=[(CLAIMED, {"claimed_epsilon": 0.01}, "claimed_epsilon=50", "VIOLATION")],
        nightly=[
            (
                *({}, {"resolution": Resolution(noise=0.97)}),
                *("resolution.noise=0.8 until step 40, 0.97 from then on", "INCONCLUSIVE"),
            ),
            ({"claimed_epsilon": 0.01}, CLAIMED, "claimed_epsilon=0.01", "PASS"),
            ({"delta": 1e-5}, {"delta": 1e-7}, "delta=1e-05 until step 40, 1e-07", "PASS"),
            (
                *(CLAIMED, {**CLAIMED, "claim": PrivacyClaim(adjacency="replace_one")}),
                *("adjacency=add_remove until step 40, replace_one from then on", "PASS"),
            ),
            ({}, {"allow": ["sampling.rate"]}, "allow=[] until step 40, ['sampling.rate']", "PASS"),
        ],
    ),
)
def test_what_sums_can_answer_is_answered_for_the_whole_run_and_said(
    tmp_path, first, then, said, outcome
):
    whole = tmp_path / "whole"
    train(whole, PrivacyAudit(seed=3, on_violation="warn", **then))
    report = resumed(tmp_path / "resumed", first, then)
    assert report.verdict.outcome == report_in(whole).verdict.outcome == outcome
    assert report.epsilon_spent == pytest.approx(report_in(whole).epsilon_spent)
    assert said in notes_of(report)


def test_smaller_canaries_of_before_the_stop_count_as_small(tmp_path):
    # Canaries of norm 1 are blind to clipping faults, so that 40 of the steps saw none.
    report = resumed(tmp_path, {"oversize": 1.0}, {"oversize": 1000.0})
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert "oversize=1 until step 40, 1000 from then on" in notes_of(report)


def test_a_coupling_that_was_found_stays_found_where_it_is_no_longer_looked_for(tmp_path):
    class Coupled(StepwiseModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            return functional.cross_entropy(self.net(x - x.mean(0)), y)

    report = resumed(tmp_path, {"examinations": 1}, {"examinations": 0}, module=Coupled)
    assert status(report, "coupling") == "violated"


# --- What sums cannot answer.


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """The checkpoint of a training that its user wrote."""
    folder = tmp_path_factory.mktemp("last")
    trainer = trainer_for(folder, PrivacyAudit(claim=CLAIM, examinations=0), max_steps=8)
    trainer.fit(HandWritten())
    trainer.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt"


@pytest.mark.parametrize(
    ("then", "named"),
    [
        ({"noise_multiplier": 0.5}, r"claim.noise_multiplier=0.5 .* checkpoint's is 1"),
        ({"max_grad_norm": 2.0}, r"claim.max_grad_norm=2.0 .* checkpoint's is 1"),
        ({"expected_batch_size": 32}, r"claim.expected_batch_size=32.* checkpoint's is 16"),
        ({"sample_rate": 0.5}, r"claim.sample_rate=0.5 .* checkpoint's is 0.00390625"),
    ],
)
def test_another_mechanism_than_the_steps_were_read_against_is_refused(tmp_path, last, then, named):
    claim = PrivacyClaim(**{**stated(CLAIM), **then})
    with pytest.raises(
        MisconfigurationException,
        match=rf"cannot resume from this checkpoint: {named}.*resume with the checkpoint's",
    ):
        trainer_for(tmp_path, PrivacyAudit(claim=claim), max_steps=16).fit(
            HandWritten(), ckpt_path=last, weights_only=True
        )


def stated(claim: PrivacyClaim) -> dict[str, Any]:
    return {name: value for name, value in claim.to_dict().items() if value is not None}


@pytest.mark.nightly
def test_a_claim_that_is_first_stated_on_resume_must_be_what_the_past_steps_had(tmp_path):
    right = PrivacyClaim(noise_multiplier=1.0, sample_rate=16 / 512)
    report = resumed(tmp_path / "right", {}, {"claim": right})
    assert report.verdict.outcome == "PASS"
    assert "noise_multiplier=None until step 40, 1 from then on" in notes_of(report)
    for wrong in (PrivacyClaim(noise_multiplier=1.5), PrivacyClaim(max_grad_norm=1.0)):
        with pytest.raises(MisconfigurationException, match="cannot resume from this checkpoint"):
            resumed(tmp_path / "wrong", {}, {"claim": wrong})
