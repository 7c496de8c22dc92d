from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import command_worker
import numpy as np
import pytest
from stages import staged

from lightning_audit.checks.noise import NOISE_CANARY
from lightning_audit.cli import estimators
from lightning_audit.cli.estimators import parse_threshold
from lightning_audit.cli.main import main
from lightning_audit.record.store import DROPPED, EARLIER, INJECTED, ObservationStore, RecordHeader
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
from lightning_audit.stats.one_run import epsilon_one_run_from_scores
from lightning_audit.stats.one_run_bounds import ONE_RUN_NAMES, named_one_run_bound
from lightning_audit.stats.power import bound_power, noise_power, sensitivity_power
from lightning_audit.stats.thresholds import Fixed, Split, words_of
from lightning_audit.stats.tradeoff import gaussian_mu

Scores = tuple[Path, np.ndarray, np.ndarray]
COMMAND = Path(sysconfig.get_path("scripts")) / "lightning-audit"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What the command says, without a process of its own."""
    given = ["bound", *map(str, arguments)]
    said = command_worker.answer(given)
    return subprocess.CompletedProcess(given, said["code"], said["out"], said["err"])


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command prints, without a process of its own."""
    assert main(["bound", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def answer(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def scores(tmp_path: Path) -> Scores:
    rng = np.random.default_rng(1)
    inside, outside = 1.5 + rng.standard_normal(400), rng.standard_normal(300)
    path = tmp_path / "scores.npz"
    np.savez(path, scores_in=inside, scores_out=outside)
    return path, inside, outside


@pytest.mark.parametrize("method", BOUND_NAMES)
def test_every_method_gives_the_librarys_own_number(scores, method):
    path, inside, outside = scores
    at = () if method == "fdp_t" else ("--threshold", 0.75)
    told = answer(path, "--method", method, "--delta", 1e-5, *at)
    expected = named_bound(method, inside, outside, 1e-5, threshold=Fixed(0.75) if at else None)
    assert told["epsilon_lower"] == expected.epsilon_lower > 0
    assert (told["n_in"], told["n_out"], told["valid"]) == (400, 300, True)
    assert told["assumptions"] == list(expected.assumptions)


def test_scores_are_split_unless_a_threshold_is_given(scores):
    path, inside, outside = scores
    told = answer(path, "--method", "eps_cp", "--delta", 1e-5)
    assert told["threshold"] == "searched"
    expected = named_bound("eps_cp", inside, outside, 1e-5, threshold=Split())
    assert told["epsilon_lower"] == expected.epsilon_lower


def test_the_help_lists_every_method(capsys):
    with pytest.raises(SystemExit):
        main(["bound", "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace(";", " ").split()
    assert {*BOUND_NAMES, *ONE_RUN_NAMES} <= set(words)


@pytest.mark.parametrize("method", ONE_RUN_NAMES)
def test_every_method_of_one_run_gives_the_librarys_own_number_and_what_it_assumes(
    scores, method, capsys
):
    path, inside, outside = scores
    arguments = (path, "--method", method, "--delta", 1e-5)
    told = json.loads(printed(capsys, *arguments, "--json"))
    expected = named_one_run_bound(method, inside, outside, 1e-5)
    assert told["epsilon_lower"] == expected.epsilon_lower > 0
    assert told["assumptions"] == list(expected.assumptions)
    assert (told["guesses"], told["correct"]) == (expected.guesses, expected.correct)
    text = printed(capsys, *arguments)
    assert "assumes: every canary in by its own fair coin" in text
    assert ("NOT VALID in general: scores that are not Gaussian" in text) != expected.valid
    assert told["valid"] == expected.valid
    guessed = f"{expected.correct} of {expected.guesses} guesses right: the best of 350 and 87"
    assert (guessed in text) == (expected.guesses is not None)


def test_the_number_of_guesses_is_the_one_that_is_given(scores, capsys):
    path, inside, outside = scores
    arguments = (path, "--method", "one_run", "--delta", 1e-5, "--json", "--guesses")
    told, paid = (json.loads(printed(capsys, *arguments, n)) for n in (100, "100,300"))
    assert (told["guesses"], told["rule"]) == (100, "100 guesses, half in and half out")
    assert "chosen before the scores were seen, which cannot be checked" in told["assumptions"][-1]
    expected = epsilon_one_run_from_scores(inside, outside, 1e-5, 0.05, guesses=[100])
    assert told["epsilon_lower"] == expected.value
    assert 0 < paid["epsilon_lower"] < told["epsilon_lower"]
    told = json.loads(printed(capsys, *arguments, 100, "--sides", "in"))
    expected = epsilon_one_run_from_scores(inside, outside, 1e-5, 0.05, guesses=[100], sides="in")
    assert told["epsilon_lower"] == expected.value
    assert told["rule"] == "100 guesses, all in"


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
    scores, choice, words, capsys
):
    arguments = (scores[0], "--method", "eps_cp", "--delta", 1e-5, "--threshold", choice)
    text, told = printed(capsys, *arguments), answer(*arguments)
    assert words in text
    assert told["rule"] == words_of(parse_threshold(choice))
    assert words.split(", ", 1)[1] in told["rule"]
    assert told["valid"] == ("NOT VALID" not in text) == (choice != "max")
    rests_on_the_caller = "chosen before the scores were seen, which cannot be checked" in text
    assert rests_on_the_caller == (choice in ("0.75", "0,0.5,1"))


def test_the_text_says_what_the_number_is(scores):
    path, inside, outside = scores
    arguments = ["--method", "fdp_pooled_cp", "--delta", "1e-5", "--threshold", "0.75"]
    done = subprocess.run([COMMAND, "bound", path, *arguments], capture_output=True, text=True)
    mu = mu_pooled_clopper_pearson(ConfusionCounts.from_scores(inside, outside, 0.75), 0.05)
    assert f"(mu >= {mu:.6g})" in done.stdout
    assert "95 % confidence, 400 scores in, 300 out" in done.stdout
    assert "threshold 0.75, given by the caller" in done.stdout
    assert "assumes: epsilon from mu: the mechanism is Gaussian" in done.stdout


def record(directory: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    header = RecordHeader(("Dirac(a)", "Dirac(b)"), ("a", "b"), (4, 4), 2)
    store = ObservationStore(directory, header)
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, (300, 2))
    readings = coins + rng.standard_normal((300, 2))
    for step in range(300):
        entry = np.zeros((), dtype=header.dtype)
        entry["canaries"] = {9: DROPPED, 4: EARLIER}.get(step % 10, INJECTED)
        entry["coins"], entry["readings"] = coins[step], readings[step]
        store.append(entry)
    store.close()
    used = np.arange(300) % 10 != 9
    return directory / "observations.npz", coins[used], readings[used]


def test_an_audits_observations_are_read_at_the_fixed_threshold(tmp_path):
    path, coins, readings = record(tmp_path)
    told = answer(path, "--method", "eps_cp", "--delta", 1e-5)
    counts = ConfusionCounts.from_scores(readings[coins == 1], readings[coins == 0], 0.5)
    assert told["epsilon_lower"] == epsilon_clopper_pearson(counts, 1e-5, 0.05)
    assert (told["threshold"], told["threshold_value"]) == ("fixed", 0.5)
    assert told["n_in"] + told["n_out"] == 540


def test_rates_are_told_when_asked_for(scores):
    path, inside, outside = scores
    arguments = (path, "--method", "eps_cp", "--delta", 1e-5)
    told = answer(*arguments, "--roc")
    assert told["auroc"] == auroc(inside, outside)
    assert told["tpr_at_fpr_0.1"] == tpr_at_fpr(inside, outside, 0.1)
    assert told["tpr_lower_at_fpr_0.1"] == tpr_at_fpr_lower(inside, outside, 0.1, 0.05) > 0
    assert "auroc" not in answer(*arguments)
    text = run(*arguments, "--roc").stdout
    assert f"AUROC {told['auroc']:.6g} (observed)" in text
    assert f"TPR at FPR 0.1: {told['tpr_at_fpr_0.1']:.6g} observed, >= " in text


def test_readings_that_are_not_finite_are_counted(tmp_path):
    path = tmp_path / "o.npz"
    readings = np.array([[1.5, np.nan], [0.5, 0.25]])
    np.savez(path, canaries=np.ones(2), coins=np.array([[1, 0], [1, 0]]), readings=readings)
    arguments = (path, "--method", "eps_cp", "--delta", 1e-5)
    assert answer(*arguments)["dropped"] == 1
    assert "1 readings were not finite and were left out" in run(*arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "fdp_bayes", "--threshold", "dkw"), "take Fixed, Grid or Split"),
        (("--method", "eps_dp"), "method='eps_dp' must be one of ['eps_bayes'"),
        (("--method", "fdp_t", "--threshold", "split"), "Split(fraction=0.5, seed=0) is not for"),
        (("--method", "fdp_t", "--threshold", "0.5"), "is not for method='fdp_t'"),
        (("--method", "one_run", "--threshold", "0.5"), "is not for method='one_run'"),
        (("--method", "one_run", "--guesses", "some"), "guesses='some' must be a whole number"),
        (("--method", "one_run", "--guesses", "0"), "guesses='0' must be a whole number >= 1"),
        (("--method", "one_run", "--guesses", "701"), "guesses=701 must be at most the number of"),
        (("--method", "eps_cp", "--guesses", "10"), "guesses=(10,) is not for method='eps_cp'"),
        (("--method", "eps_cp", "--sides", "in"), "sides='in' is not for method='eps_cp'"),
        (("--method", "white_box", "--guesses", "10"), "guesses=(10,) is not for method='white_b"),
        (("--method", "eps_cp", "--threshold", "best"), "threshold='best' must be a number"),
        (("--method", "eps_cp", "--delta", "0"), r"delta=0.0 must be in (0, 1)"),
        (("--method", "eps_cp", "--significance", "2"), r"significance=2.0 must be in (0, 1)"),
    ],
)
def test_wrong_arguments_name_themselves(scores, arguments, message):
    delta = () if "--delta" in arguments else ("--delta", "1e-5")
    done = run(scores[0], *arguments, *delta)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"scores": np.ones(3)}, "it must hold the arrays scores_in and scores_out"),
        ({"scores_in": np.ones((2, 2)), "scores_out": np.ones(2)}, "scores_in has dtype float64"),
        ({"scores_in": np.array([1, np.nan]), "scores_out": np.ones(2)}, "first at index 1"),
        ({"scores_in": np.ones(2), "scores_out": np.array(["a"])}, "scores_out has dtype"),
        ({"scores_in": np.ones(2), "scores_out": np.ones(0)}, "holds no score without the canary"),
        ({"scores_in": np.ones(0), "scores_out": np.ones(2)}, "holds no score with the canary"),
    ],
)
def test_files_without_scores_say_what_they_must_hold(tmp_path, arrays, message):
    np.savez(tmp_path / "s.npz", **arrays)
    done = run(tmp_path / "s.npz", "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut short"])
def test_files_that_are_no_archive_are_refused(tmp_path, content):
    path = tmp_path / "s.npz"
    if content is not None:
        path.write_bytes(content)
    done = run(path, "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert "cannot read" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_single_array_is_refused_as_no_archive(tmp_path):
    np.save(tmp_path / "s.npy", np.ones(3))
    done = run(tmp_path / "s.npy", "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert "it must hold the arrays scores_in and scores_out" in done.stderr
    assert "Traceback" not in done.stderr


def test_katz_takes_the_delta_that_it_bounds_epsilon_at(scores):
    path = scores[0]
    told = [answer(path, "--method", "katz", "--delta", delta) for delta in (0, 1e-5)]
    assert told[0] == told[1]
    assert told[0]["delta"] == 0


def test_a_pickle_in_the_file_is_not_loaded(tmp_path):
    np.savez(tmp_path / "s.npz", scores_in=np.array([object()]), scores_out=np.ones(1))
    done = run(tmp_path / "s.npz", "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert "scores_in holds Python objects, which are never loaded" in done.stderr


def test_a_bound_on_a_record_is_said_to_be_of_one_step(tmp_path, scores):
    path, *_ = record(tmp_path)
    for given, of in ((path, "one step"), (scores[0], "attack")):
        arguments = (given, "--method", "fdp_cp", "--delta", 1e-5, "--threshold", 0.5)
        told = answer(*arguments)
        assert told["of"] == of
        steps = told.get("steps")
        shown = run(*arguments).stdout
        assert (f"for one step: {steps} steps were read" in shown) == (given is path)


RNG = np.random.default_rng(1)
TRAIN, POPULATION = RNG.gamma(5, 1, 400), RNG.gamma(6, 1, 300)


@pytest.fixture
def npz(tmp_path: Path) -> str:
    np.savez(tmp_path / "losses.npz", losses_train=TRAIN, losses_population=POPULATION)
    return str(tmp_path / "losses.npz")


def as_csv(path: Path, rows: list[tuple[object, object]], header: str = "side,loss") -> str:
    path.write_text("\n".join([header, *(f"{side},{loss}" for side, loss in rows)]) + "\n")
    return str(path)


def answer_epsilon_star_command(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> dict[str, Any]:
    assert main(["epsilon-star", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "method"),
    staged(
        quick=[
            ((), Empirical(clip=0.001)),
            (("--clip", 0.05), Empirical(clip=0.05)),
            (("--components", 1), Parametric(clip=0.001)),
        ],
        heavy=[(("--components", 2, "--clip", 0.01), Parametric(clip=0.01, components=2))],
    ),
)
def test_it_prints_the_librarys_own_numbers(npz, capsys, options, method):
    told = answer_epsilon_star_command(
        capsys, npz, "--delta", 1e-3, "--permutations", 19, "--seed", 4, *options
    )
    star = epsilon_star(TRAIN, POPULATION, 1e-3, method)
    rng = np.random.default_rng(4)
    null = epsilon_star_null(TRAIN, POPULATION, 1e-3, method, permutations=19, rng=rng)
    assert told["value"] == star.value > 0
    assert (told["threshold"], told["inequality"]) == (star.threshold, star.inequality)
    assert told["null"]["p_value"] == null.p_value
    assert told["null"]["quantile_95"] == null.quantile_95
    assert (told["n_train"], told["n_population"]) == (400, 300)
    assert "not a bound" in told["interpretation"]


def test_a_table_gives_what_the_arrays_give(npz, tmp_path, capsys):
    rows = [("population", x) for x in POPULATION] + [("train", x) for x in TRAIN]
    table = as_csv(tmp_path / "losses.csv", rows)
    options = ("--delta", 1e-3, "--permutations", 9)
    assert answer_epsilon_star_command(capsys, table, *options) == answer_epsilon_star_command(
        capsys, npz, *options
    )


def test_the_text_says_that_it_is_no_bound_and_what_no_difference_reads(npz, capsys):
    assert main(["epsilon-star", npz, "--delta", "1e-3", "--permutations", "99"]) == 0
    text = capsys.readouterr().out
    value = epsilon_star(TRAIN, POPULATION, 1e-3, Empirical(clip=0.001)).value
    assert text.startswith(f"epsilon* {value:.6g} at delta 0.001 and clip 0.001, 400 training")
    assert "under random permutations: median" in text
    assert "not a bound on the epsilon of its training" in text


# Sides that a threshold separates: none of the losses in the denominator's rate is left.
SEPARATED = [*[("train", i / 100) for i in range(50)], *[("population", 1 + i) for i in range(80)]]
SWAPPED = [("population" if side == "train" else "train", loss) for side, loss in SEPARATED]


@pytest.mark.parametrize(
    ("rows", "clip", "decided_by", "words"),
    [
        (SEPARATED, 0.001, "one loss", "of the 80 losses of the population is up to"),
        (SWAPPED, 0.001, "one loss", "at most 1 of the 80 training losses is up to"),
        (SEPARATED, 0.1, "clip", "the clip decides the value, not the losses: another clip"),
        (SWAPPED, 0.1, "clip", "the clip decides the value, not the losses: another clip"),
    ],
)
def test_a_value_that_one_loss_or_the_clip_decides_says_so(
    tmp_path, capsys, rows, clip, decided_by, words
):
    table = as_csv(tmp_path / "l.csv", rows)
    options = (table, "--delta", "0", "--permutations", "9", "--clip")
    assert main(["epsilon-star", *options, str(clip)]) == 0
    text = capsys.readouterr().out
    assert words in text
    assert ("one loss decides" in text) != ("the clip decides" in text)
    told = answer_epsilon_star_command(capsys, *options, clip)
    assert (told["at_clip"], told["decided_by"]) == (True, decided_by)
    # What is said of another clip is so.
    halved = answer_epsilon_star_command(capsys, *options, clip / 2)["value"]
    assert (halved == told["value"]) == (decided_by == "one loss")


def test_a_value_that_the_losses_decide_says_nothing_of_a_limit(npz, capsys):
    options = (npz, "--delta", "0.01", "--permutations", "9", "--clip", "0.001")
    told = answer_epsilon_star_command(capsys, *options)
    assert (told["at_clip"], told["decided_by"]) == (False, None)
    assert main(["epsilon-star", *options]) == 0
    assert "decides" not in capsys.readouterr().out


def test_a_fit_knows_no_limit_but_the_clip(npz, capsys):
    options = (npz, "--delta", 0, "--clip", 1e-6, "--components", 1, "--permutations", 3)
    assert answer_epsilon_star_command(capsys, *options)["decided_by"] == "clip"


def test_infinity_is_written_as_json_can(npz, capsys):
    options = ("--delta", 0, "--clip", 0, "--components", 1, "--permutations", 3)
    assert answer_epsilon_star_command(capsys, npz, *options)["value"] == "inf"


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("train", 1)], "side,loss", "losses_population=[] must hold at least one loss"),
        ([("train", 1), ("test", 2)], "side,loss", "line 3 has side='test'; it must be"),
        (
            [("train", "low")],
            "side,loss",
            "line 2 has loss='low', which is not a number; it must be",
        ),
        ([("train", 1)], "split,loss", "its columns are ['split', 'loss']; it must be"),
        (
            [("train", "nan"), ("population", 1)],
            "side,loss",
            "line 2 has loss='nan', which is not a number; it",
        ),
    ],
)
def test_wrong_tables_say_what_they_must_hold(tmp_path, capsys, rows, header, message):
    table = as_csv(tmp_path / "l.csv", rows, header)
    assert main(["epsilon-star", table, "--delta", "0.1"]) == 2
    error = capsys.readouterr().err.replace("); it must be", "; it must be")
    assert message in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--delta", "1"), "delta=1.0 must be in (0, 1)"),
        (("--delta", "0.1", "--clip", "0.5"), "clip=0.5 must be in [0, 0.5)"),
    ],
)
def test_wrong_arguments_name_themselves_epsilon_star_command(npz, capsys, options, message):
    assert main(["epsilon-star", npz, *options]) == 2
    assert message in capsys.readouterr().err


def test_arrays_of_other_names_are_refused(tmp_path, capsys):
    np.savez(tmp_path / "s.npz", train=np.ones(3))
    assert main(["epsilon-star", str(tmp_path / "s.npz"), "--delta", "0.1"]) == 2
    assert "holds ['train']; it must be an .npz with" in capsys.readouterr().err


def test_the_installed_command_has_it(npz):
    command = [str(COMMAND), "epsilon-star", npz, "--delta", "1e-3", "--permutations", "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("epsilon* ")


COUNTS = {
    "false_negatives": [25, 15, 6],
    "n_in": 100,
    "false_positives": [4, 6, 20],
    "n_out": [100, 100, 100],
    "delta": 0.01,
}


def written(directory: Path, **changes: Any) -> str:
    content = {k: v for k, v in {**COUNTS, **changes}.items() if v is not None}
    (directory / "counts.json").write_text(json.dumps(content))
    return str(directory / "counts.json")


def answer_mcmc_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["mcmc", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_prints_the_librarys_own_posterior(tmp_path, capsys):
    told = answer_mcmc_command(capsys, written(tmp_path), "--significance", 0.2)
    posterior = attack_strength_posterior(attack_counts([25, 15, 6], 100, [4, 6, 20], 100), 0.01)
    assert told["epsilon_mean"] == posterior.epsilon.mean
    assert told["epsilon_interval"] == list(posterior.epsilon.interval(0.2))
    assert told["strength_interval"] == list(posterior.strength.interval(0.2))
    assert (told["delta"], told["attacks"], told["cluster"], told["tau"]) == (0.01, 3, None, None)
    assert "not a bound" in told["interpretation"]


def test_the_options_outweigh_the_file(tmp_path, capsys):
    path = written(tmp_path, cluster=100)
    told = answer_mcmc_command(
        capsys, path, "--delta", 0.02, "--cluster", 50, "--epsilon-variance", 4,
        "--strength-shapes", 2, 3,
    )  # fmt: skip
    found = correlated_attack_posterior(
        attack_counts([25, 15, 6], 100, [4, 6, 20], 100),
        0.02,
        50,
        epsilon_variance=4.0,
        strength_shapes=(2.0, 3.0),
    )
    assert told["epsilon_mean"] == pytest.approx(found.joint.epsilon.mean)
    assert (told["tau"], told["rho"]) == (list(found.tau), list(found.rho))
    assert (told["delta"], told["cluster"]) == (0.02, 50)


def test_groups_are_pooled_before(tmp_path, capsys):
    told = answer_mcmc_command(capsys, written(tmp_path, groups=["a", "b", "a"]))
    pooled = attack_counts([31, 15], [200, 100], [24, 6], [200, 100])
    found = correlated_attack_posterior(pooled, 0.01, 100)
    assert told["epsilon_interval"] == pytest.approx(list(found.joint.epsilon.interval(0.1)))
    assert (told["attacks"], told["cluster"]) == (2, 100)


def test_the_text_says_what_the_numbers_are(tmp_path, capsys):
    assert main(["mcmc", written(tmp_path, cluster=100)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("epsilon ")
    assert "90 % credible interval (" in text
    assert "3 attacks, decisions correlated in clusters of 100" in text
    assert "\ntau " in text
    assert "not a bound" in text


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"delta": None}, (), "has no delta; add it, or pass --delta"),
        ({"n_in": None}, (), "it must be a JSON object with the lists false_negatives"),
        ({"notes": "x"}, (), "holds ['notes'], which are unknown"),
        ({"n_in": 20}, (), "false_negatives=25 must be at most n_in=20"),
        ({"false_positives": [0.1, 0.2, 0.3]}, (), "must hold whole numbers >= 0"),
        (
            {"false_negatives": [1, 2]},
            (),
            "false_negatives has shape (2,) and false_positives (3,)",
        ),
        (
            {"false_positives": [10]},
            (),
            "holds lists of lengths {'false_negatives': 3, 'false_positives': 1, 'n_out': 3}, one",
        ),
        ({"groups": [1, 2]}, (), "groups has shape (2,), must be (3,)"),
        ({}, ("--delta", "1"), "delta=1.0 must be in (0, 1)"),
        ({}, ("--cluster", "101"), "cluster=101 must be between 2 and"),
        ({}, ("--significance", "0"), "significance=0.0 must be in (0, 1)"),
    ],
)
def test_what_is_wrong_names_itself(tmp_path, capsys, changes, options, message):
    assert main(["mcmc", written(tmp_path, **changes), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "[1, 2]", "{"])
def test_files_that_are_no_object_are_refused(tmp_path, capsys, content):
    path = tmp_path / "counts.json"
    if content is not None:
        path.write_text(content)
    assert main(["mcmc", str(path)]) == 2
    assert "it must be a JSON object" in capsys.readouterr().err


CLAIM = ("--claimed-epsilon", "4", "--true-epsilon", "6", "--delta", "1e-5")
CLAIMED, TRUE = gaussian_mu(4.0, 1e-5), gaussian_mu(6.0, 1e-5)


def answer_power_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["power", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_number_of_steps_is_the_first_with_the_power(capsys):
    told = answer_power_command(capsys, *CLAIM, "--canaries", "4", "--target", "0.9")
    tests = {test["name"]: test for test in told["tests"]}
    noise, shift = tests["audit: noise.canary"], tests["audit: sensitivity"]
    assert noise["significance"] == NOISE_CANARY.share * 1e-3
    for test, power in (
        (noise, lambda n: noise_power(4, n, CLAIMED / TRUE, 0.0, noise["significance"])),
        (
            shift,
            lambda n: sensitivity_power(4, n, TRUE / CLAIMED, 1 / CLAIMED, shift["significance"]),
        ),
    ):
        assert test["observations"] == 4 * test["steps"]
        assert power(test["steps"]) >= 0.9 > power(test["steps"] - 1)
    for method in ("fdp_pooled_cp", "fdp_cp", "fdp_bayes"):
        n = tests[f"bound: {method}"]["observations"] // 2
        assert bound_power(method, CLAIMED, TRUE, n) >= 0.9
        assert bound_power(method, CLAIMED, TRUE, n - 1) < 0.9
    assert (told["mu_claimed"], told["mu_true"]) == (CLAIMED, TRUE)


@pytest.mark.heavy
def test_too_small_a_noise_shows_soonest_in_the_noise(capsys):
    told = answer_power_command(
        capsys, "--claimed-epsilon", "1.27", "--true-epsilon", "1.57", "--delta", "1e-5"
    )
    needed = {test["name"]: test["observations"] for test in told["tests"]}
    bounds = [n for name, n in needed.items() if name.startswith("bound")]
    assert 15 * needed["audit: noise.canary"] < min(bounds)


def test_what_cannot_be_told_is_said(capsys, monkeypatch):
    monkeypatch.setattr(estimators, "_LIMIT", 500)
    command = ("--claimed-epsilon", "1", "--true-epsilon", "1.1", "--delta", "1e-5")
    told = answer_power_command(capsys, *command, "--significance", "0.001")
    assert [(t["observations"], t["steps"]) for t in told["tests"]] == [(None, None)] * 5
    assert main(["power", *command]) == 0
    assert capsys.readouterr().out.count("> 500") == 5


def test_the_text_and_the_plot_are_written(tmp_path, capsys):
    path = tmp_path / "power.png"
    assert main(["power", *CLAIM, "--plot", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("claim epsilon 4, truth 6 at delta 1e-05 (mu 0.92493")
    assert all(name in text for name in ("audit: noise.canary", "bound: fdp_bayes", "a data term"))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--true-epsilon", "4"), "true_epsilon=4.0 must exceed claimed_epsilon=4.0"),
        (("--claimed-epsilon", "0"), "claimed_epsilon=0.0 must be a finite number > 0"),
        (("--delta", "0"), "delta=0.0 must be in (0, 1)"),
        (("--target", "1"), "target=1.0 must be in (0, 1)"),
        (("--canaries", "0"), "canaries=0 must be a whole number >= 1"),
        (("--significance", "0.3"), "significance=0.3 must be in (0, 1/4]"),
        (("--audit-significance", "0"), "significance=0.0 must be in (0, 1)"),
        (("--plot", "power.txt"), "plot='power.txt' must end in one of .png, .svg, .pdf"),
        (("--plot", "no/such/folder.png"), "plot='no/such/folder.png' must be a file in a folder"),
    ],
)
def test_wrong_arguments_name_themselves_power_command(capsys, arguments, message):
    assert main(["power", *CLAIM, *arguments]) == 2
    assert message in capsys.readouterr().err
