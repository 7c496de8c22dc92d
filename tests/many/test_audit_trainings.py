"""`audit_training` from call to report: verdicts, resumption, refusals, and the gate."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from driven_trainings import digits, sgd
from places import REPOSITORY

import lightning_audit
from lightning_audit import AuditReport, PrivacyClaim, audit_training
from lightning_audit._validate import BadArgument
from lightning_audit.cli.main import main
from lightning_audit.many import (
    Blank,
    Many,
    Neighbors,
    StoreError,
    ThisProcess,
    TrainingError,
    opacus_training,
)

DATA = digits(30)
HERE = {"engine": ThisProcess(), "display": False}
STEPS = 10


def shows(dataset, seed):
    """Stand for a training that shows the canary clearly: the number of records, with noise."""
    return float(np.random.default_rng(seed).normal(len(dataset[0]), 0.1))


def hides(dataset, seed):
    return float(np.random.default_rng(seed).normal())


def known_start():
    model = torch.nn.Linear(64, 10)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def real(noise_multiplier):
    return opacus_training(
        known_start,
        sgd,
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        sample_rate=1.0,
        expected_batch_size=30,
        steps=STEPS,
    )


def claim_of(noise_multiplier):
    return PrivacyClaim(noise_multiplier=noise_multiplier, sample_rate=1.0, steps=STEPS, delta=1e-5)


@pytest.mark.training
def test_real_trainings_with_too_little_noise_are_a_violation_that_the_gate_fails(tmp_path, capsys):
    audit = audit_training(
        real(0.5), DATA, claim_of(4.0), trainings=200, store=tmp_path, engine=ThisProcess()
    )
    assert audit.verdict.outcome == "VIOLATION"
    assert audit.trainings < 100
    told = capsys.readouterr()
    assert "VIOLATION" in told.out
    assert "200 trainings are planned" in told.err
    assert "min left" in told.err or " s left" in told.err or audit.trainings < 100
    report = AuditReport.load(tmp_path / "report.json")
    assert (report.verdict, report.settings["canary"]) == (audit.verdict, "Crafted")
    assert main(["check", str(tmp_path)]) == 1


@pytest.mark.training
@pytest.mark.heavy
def test_real_trainings_with_the_noise_that_they_claim_pass(tmp_path):
    audit = audit_training(real(2.0), DATA, claim_of(2.0), trainings=300, store=tmp_path, **HERE)
    assert audit.verdict.outcome == "PASS", str(audit)
    assert main(["check", str(tmp_path)]) == 0


def test_the_same_call_continues_and_a_longer_plan_adds_to_it(tmp_path):
    calls = []

    def train(dataset, seed):
        calls.append(seed)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return hides(dataset, seed)

    given = {"store": tmp_path, "identity": "hides", **HERE}
    with pytest.raises(KeyboardInterrupt):
        audit_training(train, DATA, (1.0, 1e-5), trainings=30, **given)
    first = audit_training(hides, DATA, (1.0, 1e-5), trainings=30, **given)
    assert first.trainings == 30
    whole = audit_training(hides, DATA, (1.0, 1e-5), trainings=30, store=tmp_path / "new", **HERE)
    assert (first.errors, first.guesses) == (whole.errors, whole.guesses)
    assert first.epsilon_lower_at_end is not None
    longer = audit_training(hides, DATA, (1.0, 1e-5), trainings=60, **given)
    assert longer.trainings == 60
    assert longer.epsilon_lower_at_end is None  # a second look at an end is not one look
    again = audit_training(hides, DATA, (1.0, 1e-5), trainings=30, **given)
    assert (again.trainings, again.errors) == (30, first.errors)


def test_a_block_is_stored_at_its_end_and_a_store_keeps_its_size(tmp_path):
    class Counts:
        def __init__(self):
            self.blocks = []

        def many(self, data_sets, seeds):
            self.blocks.append(len(seeds))
            return [hides(*pair) for pair in zip(data_sets, seeds, strict=True)]

    given = {"store": tmp_path, "identity": "hides", **HERE}
    train = Counts()
    audit_training(train, DATA, (1.0, 1e-5), trainings=6, block=3, **given)
    audit_training(train, DATA, (1.0, 1e-5), trainings=10, block=1, **given)
    assert train.blocks == [3, 3, 3, 1]


def test_another_claim_reads_the_same_trainings_again(tmp_path):
    given = {"trainings": 60, "store": tmp_path, "stop": "end", **HERE}
    small = audit_training(shows, DATA, (1.0, 1e-5), **given)
    large = audit_training(shows, DATA, (8.0, 1e-5), **given)
    assert (small.verdict.outcome, large.verdict.outcome) == ("VIOLATION", "INCONCLUSIVE")
    assert small.errors == large.errors == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"train": hides}, "another train"),
        ({"dataset": digits(31)}, "another dataset, another canary"),
        ({"canary": Blank(3)}, "another canary"),
        ({"score": lambda model, record: 1.0}, "another score"),
        ({"seed": 1}, "another seed"),
        ({"adjacency": "replace_one"}, "another adjacency"),
    ],
)
def test_a_store_of_other_trainings_is_refused_by_name(tmp_path, change, named):
    given = {"train": shows, "dataset": DATA, "claim": (1.0, 1e-5), "trainings": 4, **HERE}
    audit_training(**given, store=tmp_path)
    with pytest.raises(StoreError, match=f"holds trainings with {named}; give store= a new folder"):
        audit_training(**{**given, **change}, store=tmp_path)


def test_failed_trainings_count_as_wrong_guesses_or_end_the_audit(tmp_path):
    def fails(dataset, seed):
        if len(dataset[0]) == 31 and seed % 2:
            raise MemoryError("too large")
        return shows(dataset, seed)

    given = {"trainings": 60, "stop": "end", **HERE}
    audit = audit_training(fails, DATA, (1.0, 1e-5), store=tmp_path / "count", **given)
    assert audit.failures > 5
    assert audit.errors >= audit.failures - 3  # before the first guess none is wrong
    with pytest.raises(TrainingError, match=r"training \d+ failed: MemoryError: too large"):
        audit_training(
            fails, DATA, (1.0, 1e-5), store=tmp_path / "raise", on_failure="raise", **given
        )


def test_many_canaries_of_each_training_are_audited(tmp_path):
    canary = Many([Blank(label) for label in range(8)])

    def train(dataset, seed):
        inside = np.bincount(dataset[1][30:], minlength=8)[:8]
        return np.random.default_rng(seed).normal(inside, 0.1)

    audit = audit_training(
        train, DATA, (1.0, 1e-5), canary=canary, trainings=60, store=tmp_path, **HERE
    )
    assert (audit.seen.canaries, audit.verdict.outcome) == (8, "VIOLATION")
    assert main(["check", str(tmp_path)]) == 1


def test_a_pair_of_data_sets_of_the_user(tmp_path):
    pair = Neighbors(0.0, 1.0)
    audit = audit_training(
        lambda data, seed: float(np.random.default_rng(seed).normal(5 * data)),
        pair,
        (1.0, 1e-5),
        trainings=80,
        store=tmp_path,
        **HERE,
    )
    assert audit.verdict.outcome == "VIOLATION"


def test_a_training_that_ignores_its_seed_is_noted(tmp_path):
    audit_training(
        lambda data, seed: float(len(data[0])),
        DATA,
        (1.0, 1e-5),
        trainings=40,
        store=tmp_path,
        **HERE,
    )
    notes = AuditReport.load(tmp_path / "report.json").notes
    with_it, without = (note for note in notes if "have one score" in note)
    assert with_it.startswith("all trainings with the canary have one score: check that train uses")
    assert without.startswith("all trainings without the canary have one score")


def test_an_audit_that_runs_has_no_report_of_fewer_trainings(tmp_path):
    given = {"store": tmp_path, "identity": "x", **HERE}
    audit_training(hides, DATA, (1.0, 1e-5), trainings=10, **given)
    assert main(["check", str(tmp_path)]) == 2
    seen = []

    def train(dataset, seed):
        seen.append((tmp_path / "report.json").exists())
        return hides(dataset, seed)

    audit_training(train, DATA, (1.0, 1e-5), trainings=20, **given)
    assert seen == [False] * 10


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"trainings": 0}, "trainings=0 must be a whole number >= 1"),
        ({"significance": 2}, r"significance=2 must be in \(0, 1\)"),
        ({"stop": "soon"}, r"stop='soon' must be one of \['end', 'refuted'\]"),
        ({"on_failure": "skip"}, r"on_failure='skip' must be one of \['count', 'raise'\]"),
        ({"seed": -1}, "seed=-1 must be a whole number >= 0"),
        ({"block": 0}, "block=0 must be a whole number >= 1"),
        ({"limit": 0}, "limit=0 must be a finite number > 0"),
        ({"engine": "fast"}, "engine='fast' must be LocalProcesses"),
        ({"adjacency": "swap"}, "swap"),
        ({"dataset": 3}, "dataset=3 must be a tuple of arrays"),
        ({"train": open}, None),
        ({"score": iter(())}, r"score: .* pass identity='...'"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_training(tmp_path, wrong, match):
    given = {"train": shows, "dataset": DATA, "claim": (1.0, 1e-5), "trainings": 4, **HERE}
    if match is None:
        with pytest.raises(TrainingError, match="all of the first 4 trainings failed"):
            audit_training(**{**given, **wrong}, store=tmp_path)
        return
    with pytest.raises(ValueError, match=match):
        audit_training(**{**given, **wrong}, store=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_content_without_identity_is_audited_under_a_given_one(tmp_path):
    hidden = iter(range(1000))

    def train(dataset, seed):
        return shows(dataset, seed) + 0 * next(hidden)

    given = {"trainings": 4, "store": tmp_path, **HERE}
    with pytest.raises(BadArgument, match=r"train: builtins.range_iterator"):
        audit_training(train, DATA, (1.0, 1e-5), **given)
    audit_training(train, DATA, (1.0, 1e-5), identity="first", **given)
    with pytest.raises(StoreError, match="another identity"):
        audit_training(train, DATA, (1.0, 1e-5), identity="second", **given)


def test_names_are_given_without_loading_torch_before():
    script = (
        "import sys, lightning_audit as a, lightning_audit.many as m\n"
        "assert 'torch' not in sys.modules\n"
        "a.audit_training, [getattr(m, name) for name in m.__all__]\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "audit_training" in lightning_audit.__all__
    with pytest.raises(AttributeError, match=r"'lightning_audit.many' has no attribute 'Loud'"):
        _ = lightning_audit.many.Loud


@pytest.mark.heavy
@pytest.mark.parametrize(("noise", "code"), [("0.5", 1), ("5.0", 0)])
def test_the_example_of_the_page_ends_with_its_verdict(tmp_path, noise, code):
    done = subprocess.run(
        [
            sys.executable,
            REPOSITORY / "examples" / "many_trainings.py",
            *("--noise", noise, "--trainings", "60", "--store", tmp_path / "store"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    assert "60 trainings are planned" in done.stderr
    assert main(["check", str(tmp_path / "store")]) == (1 if code else 2)


@pytest.mark.heavy
def test_the_example_for_a_cluster_runs_on_this_machine_and_continues(tmp_path):
    for trainings in ("6", "8"):
        done = subprocess.run(
            [
                sys.executable,
                REPOSITORY / "examples" / "past_one_machine.py",
                *("--engine", "local", "--workers", "1", "--width", "8"),
                *("--trainings", trainings, "--store", tmp_path / "store"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert f"{trainings} of {trainings} trainings have ended" in done.stderr
    assert main(["check", str(tmp_path / "store")]) == 2
