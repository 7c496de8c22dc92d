from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import command_worker
import numpy as np
import pytest

from lightning_audit.cli.estimators import parse_threshold
from lightning_audit.cli.main import main
from lightning_audit.record.store import DROPPED, EARLIER, INJECTED, ObservationStore, RecordHeader
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.membership import auroc, tpr_at_fpr, tpr_at_fpr_lower
from lightning_audit.stats.named_bounds import BOUND_NAMES, named_bound
from lightning_audit.stats.one_run import epsilon_one_run_from_scores
from lightning_audit.stats.one_run_bounds import ONE_RUN_NAMES, named_one_run_bound
from lightning_audit.stats.thresholds import Fixed, Split, words_of

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
def test_every_method_gives_the_librarys_own_number(scores: Scores, method: str) -> None:
    path, inside, outside = scores
    at = () if method == "fdp_t" else ("--threshold", 0.75)
    told = answer(path, "--method", method, "--delta", 1e-5, *at)
    expected = named_bound(method, inside, outside, 1e-5, threshold=Fixed(0.75) if at else None)
    assert told["epsilon_lower"] == expected.epsilon_lower > 0
    assert (told["n_in"], told["n_out"], told["valid"]) == (400, 300, True)
    assert told["assumptions"] == list(expected.assumptions)


def test_scores_are_split_unless_a_threshold_is_given(
    scores: Scores,
) -> None:
    path, inside, outside = scores
    told = answer(path, "--method", "eps_cp", "--delta", 1e-5)
    assert told["threshold"] == "searched"
    expected = named_bound("eps_cp", inside, outside, 1e-5, threshold=Split())
    assert told["epsilon_lower"] == expected.epsilon_lower


def test_the_help_lists_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bound", "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace(";", " ").split()
    assert {*BOUND_NAMES, *ONE_RUN_NAMES} <= set(words)


@pytest.mark.parametrize("method", ONE_RUN_NAMES)
def test_every_method_of_one_run_gives_the_librarys_own_number_and_what_it_assumes(
    scores: Scores, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_the_number_of_guesses_is_the_one_that_is_given(
    scores: Scores, capsys: pytest.CaptureFixture[str]
) -> None:
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
    scores: Scores,
    choice: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (scores[0], "--method", "eps_cp", "--delta", 1e-5, "--threshold", choice)
    text, told = printed(capsys, *arguments), answer(*arguments)
    assert words in text
    assert told["rule"] == words_of(parse_threshold(choice))
    assert words.split(", ", 1)[1] in told["rule"]
    assert told["valid"] == ("NOT VALID" not in text) == (choice != "max")
    rests_on_the_caller = "chosen before the scores were seen, which cannot be checked" in text
    assert rests_on_the_caller == (choice in ("0.75", "0,0.5,1"))


def test_the_text_says_what_the_number_is(scores: Scores) -> None:
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


def test_an_audits_observations_are_read_at_the_fixed_threshold(tmp_path: Path) -> None:
    path, coins, readings = record(tmp_path)
    told = answer(path, "--method", "eps_cp", "--delta", 1e-5)
    counts = ConfusionCounts.from_scores(readings[coins == 1], readings[coins == 0], 0.5)
    assert told["epsilon_lower"] == epsilon_clopper_pearson(counts, 1e-5, 0.05)
    assert (told["threshold"], told["threshold_value"]) == ("fixed", 0.5)
    assert told["n_in"] + told["n_out"] == 540


def test_rates_are_told_when_asked_for(scores: Scores) -> None:
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


def test_readings_that_are_not_finite_are_counted(tmp_path: Path) -> None:
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
def test_wrong_arguments_name_themselves(
    scores: Scores, arguments: tuple[str, ...], message: str
) -> None:
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
def test_files_without_scores_say_what_they_must_hold(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "s.npz", **arrays)
    done = run(tmp_path / "s.npz", "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut short"])
def test_files_that_are_no_archive_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "s.npz"
    if content is not None:
        path.write_bytes(content)
    done = run(path, "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert "cannot read" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_single_array_is_refused_as_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.ones(3))
    done = run(tmp_path / "s.npy", "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert "it must hold the arrays scores_in and scores_out" in done.stderr
    assert "Traceback" not in done.stderr


def test_katz_takes_the_delta_that_it_bounds_epsilon_at(
    scores: Scores,
) -> None:
    path = scores[0]
    told = [answer(path, "--method", "katz", "--delta", delta) for delta in (0, 1e-5)]
    assert told[0] == told[1]
    assert told[0]["delta"] == 0


def test_a_pickle_in_the_file_is_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", scores_in=np.array([object()]), scores_out=np.ones(1))
    done = run(tmp_path / "s.npz", "--method", "eps_cp", "--delta", 1e-5)
    assert done.returncode == 2
    assert "scores_in holds Python objects, which are never loaded" in done.stderr


def test_a_bound_on_a_record_is_said_to_be_of_one_step(tmp_path: Path, scores: Scores) -> None:
    path, *_ = record(tmp_path)
    for given, of in ((path, "one step"), (scores[0], "attack")):
        arguments = (given, "--method", "fdp_cp", "--delta", 1e-5, "--threshold", 0.5)
        told = answer(*arguments)
        assert told["of"] == of
        steps = told.get("steps")
        shown = run(*arguments).stdout
        assert (f"for one step: {steps} steps were read" in shown) == (given is path)
