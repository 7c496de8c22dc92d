"""`bound`, `epsilon-star`, `mcmc` and `power`: the library's own numbers, and what they mean."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stages import staged

from lightning_audit.checks.noise import NOISE_CANARY
from lightning_audit.cli import estimators
from lightning_audit.record.store import (
    DROPPED,
    EARLIER,
    INJECTED,
    Observation,
    ObservationStore,
    RecordHeader,
)
from lightning_audit.stats.attack_strength import attack_counts, attack_strength_posterior
from lightning_audit.stats.correlated_attacks import correlated_attack_posterior
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.epsilon_star import (
    Empirical,
    Parametric,
    epsilon_star,
    epsilon_star_null,
)
from lightning_audit.stats.membership import auroc, tpr_at_fpr, tpr_at_fpr_lower
from lightning_audit.stats.named_bounds import BOUND_NAMES, named_bound
from lightning_audit.stats.one_run import OneRunScores
from lightning_audit.stats.one_run_bounds import ONE_RUN_NAMES, named_one_run_bound
from lightning_audit.stats.power import bound_power, noise_power, sensitivity_power
from lightning_audit.stats.thresholds import Fixed, Split, words_of
from lightning_audit.stats.tradeoff import gaussian_mu


@pytest.fixture
def printed(cli):
    """Gives what a command prints where it succeeds."""

    def text(*arguments: object) -> str:
        said = cli(*arguments)
        assert (said.code, said.err) == (0, "")
        return said.out

    return text


@pytest.fixture
def answer(printed):
    """Gives the JSON that a command answers."""
    return lambda *arguments: json.loads(printed(*arguments, "--json"))


@pytest.fixture
def refused(cli):
    """Gives the message of a command that prints nothing else."""

    def message(*arguments: object) -> str:
        said = cli(*arguments)
        assert (said.code, said.out) == (2, "")
        assert "Traceback" not in said.err
        return said.err

    return message


# --- Bounds.

_RNG = np.random.default_rng(1)
INSIDE, OUTSIDE = 1.5 + _RNG.standard_normal(400), _RNG.standard_normal(300)
CP = ("--method", "eps_cp", "--delta", 1e-5)


@pytest.fixture
def scores(tmp_path):
    np.savez(tmp_path / "scores.npz", scores_in=INSIDE, scores_out=OUTSIDE)
    return tmp_path / "scores.npz"


@pytest.mark.parametrize("method", BOUND_NAMES)
def test_every_method_gives_the_librarys_own_number(scores, answer, method):
    at = () if method == "fdp_t" else ("--threshold", 0.75)
    told = answer("bound", scores, "--method", method, "--delta", 1e-5, *at)
    expected = named_bound(method, INSIDE, OUTSIDE, 1e-5, threshold=Fixed(0.75) if at else None)
    assert told["epsilon_lower"] == expected.epsilon_lower > 0
    assert (told["n_in"], told["n_out"], told["valid"]) == (400, 300, True)
    assert told["assumptions"] == list(expected.assumptions)


def test_scores_are_split_unless_a_threshold_is_given(scores, answer):
    told = answer("bound", scores, *CP)
    expected = named_bound("eps_cp", INSIDE, OUTSIDE, 1e-5, threshold=Split())
    assert (told["threshold"], told["epsilon_lower"]) == ("searched", expected.epsilon_lower)


@pytest.mark.parametrize("method", ONE_RUN_NAMES)
def test_every_method_of_one_run_gives_the_librarys_own_number_and_what_it_assumes(
    scores, printed, answer, method
):
    arguments = ("bound", scores, "--method", method, "--delta", 1e-5)
    told, text = answer(*arguments), printed(*arguments)
    expected = named_one_run_bound(method, INSIDE, OUTSIDE, 1e-5)
    assert told["epsilon_lower"] == expected.epsilon_lower > 0
    assert told["assumptions"] == list(expected.assumptions)
    assert (told["guesses"], told["correct"]) == (expected.guesses, expected.correct)
    assert "assumes: every canary in by its own fair coin" in text
    assert ("NOT VALID in general: scores that are not Gaussian" in text) != expected.valid
    assert told["valid"] == expected.valid
    guessed = f"{expected.correct} of {expected.guesses} guesses right: the best of 350 and 87"
    assert (guessed in text) == (expected.guesses is not None)


def test_the_number_of_guesses_is_the_one_that_is_given(scores, answer):
    arguments = ("bound", scores, "--method", "one_run", "--delta", 1e-5, "--guesses")
    told, paid = (answer(*arguments, n) for n in (100, "100,300"))
    assert (told["guesses"], told["rule"]) == (100, "100 guesses, half in and half out")
    assert "chosen before the scores were seen, which cannot be checked" in told["assumptions"][-1]
    expected = OneRunScores(INSIDE, OUTSIDE, [100]).epsilon(1e-5)
    assert 0 < paid["epsilon_lower"] < told["epsilon_lower"] == expected.value
    told = answer(*arguments, 100, "--sides", "in")
    expected = OneRunScores(INSIDE, OUTSIDE, [100], sides="in").epsilon(1e-5)
    assert (told["epsilon_lower"], told["rule"]) == (expected.value, "100 guesses, all in")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("0.75", "threshold 0.75, given by the caller"),
        ("split", ", chosen on a random 50 % of the scores; the bound is from the rest"),
        ("multi_split", ", chosen on a random 50 % of the scores, 10 times; the bound is one that"),
        ("berk_jones", ", the best of all, valid for all at once (Berk-Jones band)"),
        ("dkw", ", the best of all, valid for all at once (Dvoretzky-Kiefer-Wolfowitz band)"),
        ("0,0.5,1", ", the best of 3 given by the caller, each at its share of the significance"),
        ("max", ", the best of all on the same scores, NOT valid"),
    ],
)
def test_the_way_to_choose_the_threshold_is_told_and_only_the_maximum_is_not_valid(
    scores, printed, answer, choice, words
):
    arguments = ("bound", scores, *CP, "--threshold", choice)
    text, told = printed(*arguments), answer(*arguments)
    assert words in text
    assert told["rule"] == words_of(estimators.parse_threshold(choice))
    assert words.split(", ", 1)[1] in told["rule"]
    assert told["valid"] == ("NOT VALID" not in text) == (choice != "max")
    rests_on_the_caller = "chosen before the scores were seen, which cannot be checked" in text
    assert rests_on_the_caller == (choice in ("0.75", "0,0.5,1"))


def test_the_text_says_what_the_number_is(scores, printed):
    options = ("--method", "fdp_pooled_cp", "--delta", "1e-5", "--threshold", "0.75")
    text = printed("bound", scores, *options)
    mu = mu_pooled_clopper_pearson(ConfusionCounts.from_scores(INSIDE, OUTSIDE, 0.75), 0.05)
    assert f"(mu >= {mu:.6g})" in text
    assert "95 % confidence, 400 scores in, 300 out" in text
    assert "threshold 0.75, given by the caller" in text
    assert "assumes: epsilon from mu: the mechanism is Gaussian" in text


@pytest.fixture
def record(tmp_path):
    """An archive of observations, and the coins and readings of steps that went as planned."""
    header = RecordHeader(("Dirac(a)", "Dirac(b)"), ("a", "b"), (4, 4), 2)
    store = ObservationStore(tmp_path, header)
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, (300, 2))
    readings = coins + rng.standard_normal((300, 2))
    for step in range(300):
        entry = np.zeros((), dtype=header.dtype)
        entry["canaries"] = {9: DROPPED, 4: EARLIER}.get(step % 10, INJECTED)
        entry["coins"], entry["readings"] = coins[step], readings[step]
        store.append(Observation.of(entry))
    store.close()
    used = np.arange(300) % 10 != 9
    return tmp_path / "observations.npz", coins[used], readings[used]


def test_an_audits_observations_are_read_at_the_fixed_threshold(record, answer):
    path, coins, readings = record
    told = answer("bound", path, *CP)
    counts = ConfusionCounts.from_scores(readings[coins == 1], readings[coins == 0], 0.5)
    assert told["epsilon_lower"] == epsilon_clopper_pearson(counts, 1e-5, 0.05)
    assert (told["threshold"], told["threshold_value"]) == ("fixed", 0.5)
    assert told["n_in"] + told["n_out"] == 540


def test_rates_are_told_when_asked_for(scores, printed, answer):
    told, text = (ask("bound", scores, *CP, "--roc") for ask in (answer, printed))
    assert told["auroc"] == auroc(INSIDE, OUTSIDE)
    assert told["tpr_at_fpr_0.1"] == tpr_at_fpr(INSIDE, OUTSIDE, 0.1)
    assert told["tpr_lower_at_fpr_0.1"] == tpr_at_fpr_lower(INSIDE, OUTSIDE, 0.1, 0.05) > 0
    assert "auroc" not in answer("bound", scores, *CP)
    assert f"AUROC {told['auroc']:.6g} (observed)" in text
    assert f"TPR at FPR 0.1: {told['tpr_at_fpr_0.1']:.6g} observed, >= " in text


def test_readings_that_are_not_finite_are_counted(tmp_path, printed, answer):
    path = tmp_path / "o.npz"
    readings = np.array([[1.5, np.nan], [0.5, 0.25]])
    np.savez(path, canaries=np.ones(2), coins=np.array([[1, 0], [1, 0]]), readings=readings)
    assert answer("bound", path, *CP)["dropped"] == 1
    assert "1 readings were not finite and were left out" in printed("bound", path, *CP)


def test_katz_takes_the_delta_that_it_bounds_epsilon_at(scores, answer):
    one, other = (answer("bound", scores, "--method", "katz", "--delta", d) for d in (0, 1e-5))
    assert one == other
    assert one["delta"] == 0


def test_a_bound_on_a_record_is_said_to_be_of_one_step(record, scores, printed, answer):
    for path, of in ((record[0], "one step"), (scores, "attack")):
        arguments = ("bound", path, "--method", "fdp_cp", "--delta", 1e-5, "--threshold", 0.5)
        told = answer(*arguments)
        assert told["of"] == of
        shown = f"for one step: {told.get('steps')} steps were read" in printed(*arguments)
        assert shown == (of == "one step")


# --- Epsilon*.

_RNG = np.random.default_rng(1)
TRAIN, POPULATION = _RNG.gamma(5, 1, 400), _RNG.gamma(6, 1, 300)


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "losses.npz", losses_train=TRAIN, losses_population=POPULATION)
    return tmp_path / "losses.npz"


def as_csv(path: Path, rows: list[tuple[object, object]], header: str = "side,loss") -> Path:
    path.write_text("\n".join([header, *(f"{side},{loss}" for side, loss in rows)]) + "\n")
    return path


@pytest.mark.parametrize(
    ("options", "method"),
    staged(
        quick=[
            ((), Empirical(clip=0.001)),
            (("--clip", 0.05), Empirical(clip=0.05)),
            (("--components", 1), Parametric(clip=0.001)),
        ],
        nightly=[(("--components", 2, "--clip", 0.01), Parametric(clip=0.01, components=2))],
    ),
)
def test_it_prints_the_librarys_own_numbers(npz, answer, options, method):
    given = ("--delta", 1e-3, "--permutations", 19, "--seed", 4)
    told = answer("epsilon-star", npz, *given, *options)
    star = epsilon_star(TRAIN, POPULATION, 1e-3, method)
    rng = np.random.default_rng(4)
    null = epsilon_star_null(TRAIN, POPULATION, 1e-3, method, permutations=19, rng=rng)
    assert told["value"] == star.value > 0
    assert (told["threshold"], told["inequality"]) == (star.threshold, star.inequality)
    assert told["null"]["p_value"] == null.p_value
    assert told["null"]["quantile_95"] == null.quantile_95
    assert (told["n_train"], told["n_population"]) == (400, 300)
    assert "not a bound" in told["interpretation"]


def test_a_table_gives_what_the_arrays_give(npz, tmp_path, answer):
    rows = [("population", x) for x in POPULATION] + [("train", x) for x in TRAIN]
    table, options = as_csv(tmp_path / "losses.csv", rows), ("--delta", 1e-3, "--permutations", 9)
    assert answer("epsilon-star", table, *options) == answer("epsilon-star", npz, *options)


def test_the_text_says_that_it_is_no_bound_and_what_no_difference_reads(npz, printed):
    text = printed("epsilon-star", npz, "--delta", "1e-3", "--permutations", "99")
    value = epsilon_star(TRAIN, POPULATION, 1e-3, Empirical(clip=0.001)).value
    assert text.startswith(f"epsilon* {value:.6g} at delta 0.001 and clip 0.001, 400 training")
    assert "under random permutations: median" in text
    assert "not a bound on the epsilon of its training" in text


# Sides that a threshold separates: none of the losses in the denominator's rate is left.
SEPARATED = [*[("train", i / 100) for i in range(50)], *[("population", 1 + i) for i in range(80)]]
SWAPPED = [("population" if side == "train" else "train", loss) for side, loss in SEPARATED]
BY_CLIP = "the clip decides the value, not the losses: another clip"


@pytest.mark.parametrize(
    ("rows", "clip", "decided_by", "words"),
    [
        (SEPARATED, 0.001, "one loss", "of the 80 losses of the population is up to"),
        (SWAPPED, 0.001, "one loss", "at most 1 of the 80 training losses is up to"),
        (SEPARATED, 0.1, "clip", BY_CLIP),
        (SWAPPED, 0.1, "clip", BY_CLIP),
    ],
)
def test_a_value_that_one_loss_or_the_clip_decides_says_so(
    tmp_path, printed, answer, rows, clip, decided_by, words
):
    table = as_csv(tmp_path / "l.csv", rows)
    options = ("epsilon-star", table, "--delta", 0, "--permutations", 9, "--clip")
    text, told = printed(*options, clip), answer(*options, clip)
    assert words in text
    assert ("one loss decides" in text) != ("the clip decides" in text)
    assert (told["at_clip"], told["decided_by"]) == (True, decided_by)
    # What is said of another clip is so.
    halved = answer(*options, clip / 2)["value"]
    assert (halved == told["value"]) == (decided_by == "one loss")


def test_a_value_that_the_losses_decide_says_nothing_of_a_limit(npz, printed, answer):
    options = ("epsilon-star", npz, "--delta", 0.01, "--permutations", 9, "--clip", 0.001)
    told = answer(*options)
    assert (told["at_clip"], told["decided_by"]) == (False, None)
    assert "decides" not in printed(*options)


@pytest.mark.parametrize(
    ("clip", "key", "value"), [(1e-6, "decided_by", "clip"), (0, "value", "inf")]
)
def test_a_fit_knows_no_limit_but_the_clip_and_infinity_is_written_as_json_can(
    npz, answer, clip, key, value
):
    options = ("--delta", 0, "--clip", clip, "--components", 1, "--permutations", 3)
    assert answer("epsilon-star", npz, *options)[key] == value


# --- Posteriors of attack counts.

ATTACKS = {"false_negatives": [25, 15, 6], "n_in": 100, "false_positives": [4, 6, 20]}
COUNTS = {**ATTACKS, "n_out": [100, 100, 100], "delta": 0.01}


@pytest.fixture
def counts(tmp_path):
    """Writes counts with these changes; None leaves one out."""

    def written(**changes: Any) -> Path:
        content = {k: v for k, v in {**COUNTS, **changes}.items() if v is not None}
        (tmp_path / "counts.json").write_text(json.dumps(content))
        return tmp_path / "counts.json"

    return written


def test_it_prints_the_librarys_own_posterior(counts, answer):
    told = answer("mcmc", counts(), "--significance", 0.2)
    posterior = attack_strength_posterior(attack_counts([25, 15, 6], 100, [4, 6, 20], 100), 0.01)
    assert told["epsilon_mean"] == posterior.epsilon.mean
    assert told["epsilon_interval"] == list(posterior.epsilon.interval(0.2))
    assert told["strength_interval"] == list(posterior.strength.interval(0.2))
    assert (told["delta"], told["attacks"], told["cluster"], told["tau"]) == (0.01, 3, None, None)
    assert "not a bound" in told["interpretation"]


def test_the_options_outweigh_the_file(counts, answer):
    options = ("--delta=0.02", "--cluster=50", "--epsilon-variance=4", "--strength-shapes", 2, 3)
    told = answer("mcmc", counts(cluster=100), *options)
    found = correlated_attack_posterior(
        attack_counts([25, 15, 6], 100, [4, 6, 20], 100),
        *(0.02, 50),
        epsilon_variance=4.0,
        strength_shapes=(2.0, 3.0),
    )
    assert told["epsilon_mean"] == pytest.approx(found.joint.epsilon.mean)
    assert (told["tau"], told["rho"]) == (list(found.tau), list(found.rho))
    assert (told["delta"], told["cluster"]) == (0.02, 50)


def test_groups_are_pooled_before(counts, answer):
    told = answer("mcmc", counts(groups=["a", "b", "a"]))
    pooled = attack_counts([31, 15], [200, 100], [24, 6], [200, 100])
    found = correlated_attack_posterior(pooled, 0.01, 100)
    assert told["epsilon_interval"] == pytest.approx(list(found.joint.epsilon.interval(0.1)))
    assert (told["attacks"], told["cluster"]) == (2, 100)


def test_the_text_says_what_the_numbers_are(counts, printed):
    text = printed("mcmc", counts(cluster=100))
    assert text.startswith("epsilon ")
    assert "90 % credible interval (" in text
    assert "3 attacks, decisions correlated in clusters of 100" in text
    assert "\ntau " in text
    assert "not a bound" in text


# --- Power.

CLAIM = ("--claimed-epsilon", "4", "--true-epsilon", "6", "--delta", "1e-5")
CLAIMED, TRUE = gaussian_mu(4.0, 1e-5), gaussian_mu(6.0, 1e-5)


def test_each_number_of_steps_is_the_first_with_the_power(answer):
    told = answer("power", *CLAIM, "--canaries", "4", "--target", "0.9")
    tests = {test["name"]: test for test in told["tests"]}
    noise, shift = tests["audit: noise.canary"], tests["audit: sensitivity"]
    level, level_of_shift = noise["significance"], shift["significance"]
    assert level == NOISE_CANARY.share * 1e-3
    for test, power in (
        (noise, lambda n: noise_power(4, n, CLAIMED / TRUE, 0.0, level)),
        (shift, lambda n: sensitivity_power(4, n, TRUE / CLAIMED, 1 / CLAIMED, level_of_shift)),
    ):
        assert test["observations"] == 4 * test["steps"]
        assert power(test["steps"]) >= 0.9 > power(test["steps"] - 1)
    for method in ("fdp_pooled_cp", "fdp_cp", "fdp_bayes"):
        n = tests[f"bound: {method}"]["observations"] // 2
        assert bound_power(method, CLAIMED, TRUE, n) >= 0.9
        assert bound_power(method, CLAIMED, TRUE, n - 1) < 0.9
    assert (told["mu_claimed"], told["mu_true"]) == (CLAIMED, TRUE)


@pytest.mark.nightly
def test_too_small_a_noise_shows_soonest_in_the_noise(answer):
    claim = ("--claimed-epsilon", "1.27", "--true-epsilon", "1.57", "--delta", "1e-5")
    needed = {test["name"]: test["observations"] for test in answer("power", *claim)["tests"]}
    bounds = [n for name, n in needed.items() if name.startswith("bound")]
    assert 15 * needed["audit: noise.canary"] < min(bounds)


def test_what_cannot_be_told_is_said(printed, answer, monkeypatch):
    monkeypatch.setattr(estimators, "_LIMIT", 500)
    command = ("power", "--claimed-epsilon", "1", "--true-epsilon", "1.1", "--delta", "1e-5")
    told = answer(*command, "--significance", "0.001")
    assert [(t["observations"], t["steps"]) for t in told["tests"]] == [(None, None)] * 5
    assert printed(*command).count("> 500") == 5


def test_the_text_names_the_tests_and_what_they_assume(printed):
    text = printed("power", *CLAIM)
    assert text.startswith("claim epsilon 4, truth 6 at delta 1e-05 (mu 0.92493")
    assert all(name in text for name in ("audit: noise.canary", "bound: fdp_bayes", "a data term"))


# --- What cannot be used is named by itself; the library's own tests have the other values.


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("fdp_bayes", "--threshold=dkw", "take Fixed, Grid or Split"),
        ("one_run", "--threshold=0.5", "is not for method='one_run'"),
        ("one_run", "--guesses=some", "guesses='some' must be a whole number"),
        ("one_run", "--guesses=0", "guesses='0' must be a whole number >= 1"),
        ("eps_cp", "--guesses=10", "guesses=(10,) is not for method='eps_cp'"),
        ("eps_cp", "--sides=in", "sides='in' is not for method='eps_cp'"),
        ("eps_cp", "--threshold=best", "threshold='best' must be a number"),
        ("eps_cp", "--significance=2", "significance=2.0 must be in (0, 1)"),
    ],
)
def test_wrong_arguments_of_a_bound_name_themselves(scores, refused, method, option, message):
    assert message in refused("bound", scores, "--method", method, "--delta=1e-5", option)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("power --canaries=0", "canaries=0 must be a whole number >= 1"),
        ("power --true-epsilon=4", "true_epsilon=4.0 must exceed claimed_epsilon=4.0"),
        ("epsilon-star losses.npz --clip=0.5", "clip=0.5 must be in [0, 0.5)"),
        ("epsilon-star scores.npz", "holds ['scores']; it must be an .npz with"),
        ("bound scores.npz --method=eps_cp", "it must hold the arrays scores_in and scores_out"),
        ("bound scores.npy --method=eps_cp", "add --members FILE"),
        ("bound cut.npz --method=eps_cp", "cannot read"),
        ("bound none.npz --method=eps_cp", "cannot read"),
        ("mcmc none.json", "it must be a JSON object"),
        ("mcmc list.json", "it must be a JSON object"),
        ("epsilon-star one.csv", "losses_population=[] must hold at least one loss"),
        ("epsilon-star test.csv", "line 3 has side='test'"),
        ("epsilon-star low.csv", "line 2 has loss='low', which is not a number"),
        ("epsilon-star split.csv", "its columns are ['split', 'loss']"),
    ],
)
def test_wrong_files_and_arguments_name_themselves(
    npz, tmp_path, monkeypatch, refused, command, message
):
    monkeypatch.chdir(tmp_path)
    np.savez("scores.npz", scores=np.ones(3))
    np.save("scores.npy", np.ones(3))
    Path("cut.npz").write_bytes(b"PK\x03\x04 cut short")
    Path("list.json").write_text("[1, 2]")
    for name, lines in {
        "one.csv": "side,loss train,1",
        "test.csv": "side,loss train,1 test,2",
        "low.csv": "side,loss train,low",
        "split.csv": "split,loss train,1",
    }.items():
        Path(name).write_text("\n".join(lines.split()) + "\n")
    name, *arguments = command.split()
    given = {"power": CLAIM, "mcmc": ()}.get(name, ("--delta=0.1",))
    assert message in refused(name, *given, *arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": None}, "has no delta; add it, or pass --delta"),
        ({"n_in": None}, "it must be a JSON object with the lists false_negatives"),
        ({"notes": "x"}, "holds ['notes'], which are unknown"),
        ({"false_positives": [0.1, 0.2, 0.3]}, "must hold whole numbers >= 0"),
        ({"false_positives": [10]}, "{'false_negatives': 3, 'false_positives': 1, 'n_out': 3}"),
        ({"groups": [1, 2]}, "groups has shape (2,), must be (3,)"),
    ],
)
def test_counts_that_are_wrong_name_themselves(counts, refused, changes, message):
    assert message in refused("mcmc", counts(**changes))
