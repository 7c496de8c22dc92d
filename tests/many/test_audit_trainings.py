"""`audit_training` from call to report: verdicts, resumption, refusals, and the gate."""

import contextlib
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from driven_trainings import digits, sgd
from places import REPOSITORY
from scipy import optimize
from scipy.special import ndtr
from stages import staged

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
    looks,
    opacus_training,
)
from lightning_audit.stats.tradeoff import GaussianTradeoff

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
    settings = {"max_grad_norm": 1.0, "sample_rate": 1.0, "expected_batch_size": 30, "steps": STEPS}
    return opacus_training(known_start, sgd, noise_multiplier=noise_multiplier, **settings)


def audited(train, trainings, store, claim=(1.0, 1e-5), data=DATA, **settings):
    settings = {"seed": 0, **HERE, **settings}
    return audit_training(train, data, claim, trainings=trainings, store=store, **settings)


def printed(script, *arguments, code=0):
    """What an example writes on stderr until it ends with this code."""
    command = [sys.executable, REPOSITORY / "examples" / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stderr


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
    audit = audited(real(2.0), 300, tmp_path, claim_of(2.0))
    assert audit.verdict.outcome == "PASS", str(audit)
    assert main(["check", str(tmp_path)]) == 0


def test_the_same_call_continues_and_a_longer_plan_adds_to_it(tmp_path):
    calls = []

    def train(dataset, seed):
        calls.append(seed)
        if len(calls) == 15:
            signal.raise_signal(signal.SIGINT)
        return hides(dataset, seed)

    with pytest.raises(KeyboardInterrupt):
        audited(train, 30, tmp_path, identity="hides")
    first = audited(hides, 30, tmp_path, identity="hides")
    assert first.trainings == 30
    whole = audited(hides, 30, tmp_path / "new", identity="hides")
    assert (first.errors, first.guesses) == (whole.errors, whole.guesses)
    assert first.epsilon_lower_at_end is not None
    longer = audited(hides, 60, tmp_path, identity="hides")
    # A second look at an end is not one look.
    assert (longer.trainings, longer.epsilon_lower_at_end) == (60, None)
    again = audited(hides, 30, tmp_path, identity="hides")
    assert (again.trainings, again.errors) == (30, first.errors)


def test_each_training_is_guessed_once_by_all_looks_and_once_for_the_report(tmp_path, monkeypatch):
    add, guessed = looks._Table.add, []
    monkeypatch.setattr(
        looks._Table, "add", lambda *given, **more: guessed.append(add(*given, **more))
    )
    audited(hides, 60, tmp_path, block=1)
    assert len(guessed) == 2 * 60


def test_another_claim_reads_the_same_trainings_again(tmp_path):
    small, large = (
        audited(shows, 60, tmp_path, (epsilon, 1e-5), stop="end") for epsilon in (1.0, 8.0)
    )
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

    audit = audited(fails, 60, tmp_path / "count", stop="end")
    assert audit.failures > 5
    assert audit.errors >= audit.failures - 3  # before the first guess none is wrong
    with pytest.raises(TrainingError, match=r"training \d+ failed: MemoryError: too large"):
        audited(fails, 60, tmp_path / "raise", stop="end", on_failure="raise")


def test_many_canaries_of_each_training_are_audited(tmp_path):
    def train(dataset, seed):
        inside = np.bincount(dataset[1][30:], minlength=8)[:8]
        return np.random.default_rng(seed).normal(inside, 0.1)

    audit = audited(train, 60, tmp_path, canary=Many([Blank(label) for label in range(8)]))
    assert (audit.seen.canaries, audit.verdict.outcome) == (8, "VIOLATION")
    assert main(["check", str(tmp_path)]) == 1


def test_a_training_that_ignores_its_seed_is_noted(tmp_path):
    audited(lambda data, seed: float(len(data[0])), 40, tmp_path)
    notes = AuditReport.load(tmp_path / "report.json").notes
    with_it, without = (note for note in notes if "have one score" in note)
    assert with_it.startswith("all trainings with the canary have one score: check that train uses")
    assert without.startswith("all trainings without the canary have one score")


def test_an_audit_that_runs_has_no_report_of_fewer_trainings(tmp_path):
    audited(hides, 10, tmp_path, identity="x")
    assert main(["check", str(tmp_path)]) == 2
    seen = []

    def train(dataset, seed):
        seen.append((tmp_path / "report.json").exists())
        return hides(dataset, seed)

    audited(train, 20, tmp_path, identity="x")
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
        ({"score": iter(())}, r"score: .* pass identity='...'"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_training(tmp_path, wrong, match):
    given = {"train": shows, "dataset": DATA, "claim": (1.0, 1e-5), "trainings": 4, **HERE}
    with pytest.raises(ValueError, match=match):
        audit_training(**{**given, **wrong}, store=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_content_without_identity_is_audited_under_a_given_one(tmp_path):
    hidden = iter(range(1000))

    def train(dataset, seed):
        return shows(dataset, seed) + 0 * next(hidden)

    with pytest.raises(BadArgument, match=r"train: builtins.range_iterator"):
        audited(train, 4, tmp_path)
    audited(train, 4, tmp_path, identity="first")
    with pytest.raises(StoreError, match="another identity"):
        audited(train, 4, tmp_path, identity="second")
    with pytest.raises(TrainingError, match="all of the first 4 trainings failed"):
        audited(open, 4, tmp_path / "open")


@pytest.mark.heavy
@pytest.mark.parametrize(("noise", "code"), [("0.5", 1), ("5.0", 0)])
def test_the_example_of_the_page_ends_with_its_verdict(tmp_path, noise, code):
    arguments = ("--noise", noise, "--trainings", "60", "--store", tmp_path / "store")
    assert "60 trainings are planned" in printed("many_trainings.py", *arguments, code=code)
    assert main(["check", str(tmp_path / "store")]) == (1 if code else 2)


@pytest.mark.heavy
def test_the_example_for_a_cluster_runs_on_this_machine_and_continues(tmp_path):
    local = ("--engine", "local", "--workers", "1", "--width", "8", "--store", tmp_path / "store")
    for trainings in ("6", "8"):
        told = printed("past_one_machine.py", *local, "--trainings", trainings)
        assert f"{trainings} of {trainings} trainings have ended" in told
    assert main(["check", str(tmp_path / "store")]) == 2


# --- True claims survive scores learnt from an earlier audit, and failures that select outputs.
MU = 1.0
PAIR = Neighbors(0.0, 1.0, record="the canary")


class Outputs:
    """A released model: eight private numbers, the first of which is exactly 1-GDP."""

    def __init__(self, data, seed):
        self.values = np.random.default_rng(seed).standard_normal(8)
        self.values[0] += MU * data


class Learnt:
    """A score that guesses the coin of the nearest model of an earlier audit."""

    def __init__(self, models, coins):
        self.models, self.coins = models, coins

    def __call__(self, model, record):
        return float(self.coins[np.argmin(((self.models - model.values) ** 2).sum(1))])


def first_value(model, record):
    return float(model.values[0])


def reused(folder, seed, **second):
    """The second of two audits of a training, with a score that was learnt in the first."""
    models, coins = [], []

    def train(data, seed):
        model = Outputs(data, seed)
        models.append(model.values)
        coins.append(data)
        return model

    given = {"claim": GaussianTradeoff(MU), "data": PAIR, "stop": "end", "identity": "x"}
    audited(train, 60, folder / "first", seed=seed, score=first_value, **given)
    score = Learnt(np.array(models), np.array(coins))
    changes = {"seed": seed, "score": score, **second}
    return audited(train, 60, folder / "second", **{**given, **changes})


@pytest.mark.parametrize("runs", staged(quick=[2], nightly=[100]))
@pytest.mark.parametrize("seed", [None, 0])
def test_a_score_that_was_learnt_in_one_audit_meets_other_trainings_in_the_next(
    tmp_path, runs, seed
):
    for run in range(runs):
        stated = None if seed is None else seed + run
        audit = reused(tmp_path / str(run), stated)
        assert audit.verdict.outcome == "INCONCLUSIVE"
        assert audit.errors > 8  # a coin at random: 30 of 60


def test_a_stated_seed_gives_other_trainings_to_another_score_canary_or_claim(tmp_path):
    given = {"train": hides, "dataset": DATA, "claim": (1.0, 1e-5), "trainings": 2, **HERE}
    given |= {"seed": 5, "canary": Blank(1), "identity": "x"}
    changes = [{}, {}, {"score": first_value}, {"canary": Blank(2)}, {"claim": (2.0, 1e-5)}]
    changes += [{"seed": 6}, {"identity": "y"}, {"seed": None}, {"seed": None}]
    plans = []
    for number, change in enumerate(changes):
        seen = []
        train = lambda data, seed, seen=seen: seen.append(seed) or hides(data, seed)  # noqa: E731
        changed = {**given, "train": train, **change}
        if "score" in change:
            changed["train"] = lambda data, seed, seen=seen: seen.append(seed) or Outputs(0.0, seed)
        audit_training(**changed, store=tmp_path / str(number))
        plans.append(tuple(seen))
    assert plans[0] == plans[1]
    assert len(set(plans)) == len(plans) - 1


def half_width(mu):
    """Where an output near the middle is best drawn again, if it were."""

    def error(c):
        right, kept = ndtr(-mu / 2 - c), ndtr(c - mu / 2) - ndtr(-c - mu / 2)
        return right * (1 + kept) + kept * kept

    return optimize.minimize_scalar(error, bounds=(0, 2), method="bounded").x


@pytest.mark.parametrize("mark", [FloatingPointError("not finite"), float("nan"), None, [1.0, 2.0]])
@pytest.mark.parametrize("runs", staged(quick=[1], nightly=[25]))
def test_an_output_is_never_drawn_again_whatever_the_training_does_with_it(tmp_path, runs, mark):
    """Noise that is not from the seed, and a failure that depends on the output: mu 3 is true."""
    width, own = half_width(3.0), random.SystemRandom()
    trainings = 1000 if runs > 1 else 150
    for run in range(runs):
        calls = []

        def train(data, seed, calls=calls):
            output = 3.0 * (data - 0.5) + own.gauss(0.0, 1.0)
            calls.append(seed)
            if abs(output) > width:
                return output
            if isinstance(mark, Exception):
                raise mark
            return mark

        audit = None
        while audit is None:  # what no training can use ends the call; the next one continues
            with contextlib.suppress(TrainingError):
                audit = audited(
                    train,
                    trainings,
                    tmp_path / str(run),
                    GaussianTradeoff(3.0),
                    Neighbors(0.0, 1.0),
                    **{"stop": "end", "significance": 0.05, "identity": "x", "seed": None},
                )
        assert len(calls) == len(set(calls))
        assert audit.verdict.outcome != "VIOLATION"
        assert audit.epsilon_lower_at_end < audit.claimed_epsilon
        assert audit.failures > 5
