"""Scores of canaries: read from files and reports, and asked for every bound."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_report import made_report

from lightning_audit.record.scores import CanaryScores, ScoresError, read_score_npz
from lightning_audit.stats import membership
from lightning_audit.stats.gaussian import mu_white_box_from_scores
from lightning_audit.stats.named_bounds import BOUND_NAMES, named_bound
from lightning_audit.stats.one_run import OneRunScores
from lightning_audit.stats.one_run_bounds import (
    ONE_RUN_NAMES,
    epsilon_gaussian_pair_from_scores,
    named_one_run_bound,
)
from lightning_audit.stats.thresholds import Fixed, Grid, Maximum, MultiSplit, Simultaneous, Split


@pytest.fixture
def groups():
    rng = np.random.default_rng(0)
    return 1.5 + rng.standard_normal(300), rng.standard_normal(200)


def test_csv_gives_the_scores_of_its_two_columns(tmp_path, groups):
    path = tmp_path / "scores.csv"
    rows = [(x, 1) for x in groups[0]] + [(x, 0) for x in groups[1]]
    lines = [f'"{i}, named",{member},{float(score)!r}' for i, (score, member) in enumerate(rows)]
    path.write_text("\n".join(["\ufeffname, in ,score", *lines]) + "\n\n", encoding="utf-8")
    scores = CanaryScores.load(path)
    assert (scores.in_scores == groups[0]).all()
    assert (scores.out_scores == groups[1]).all()
    assert scores.threshold == Split()


def test_csv_says_who_was_in_in_words_as_well(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("score,in\n1.5,True\n-2,False\n3, true\n0,FALSE\n4,1\n5,0.0\n")
    scores = CanaryScores.load(path)
    assert scores.in_scores.tolist() == [1.5, 3.0, 4.0]
    assert scores.out_scores.tolist() == [-2.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,score,label\n7,1,1\n", r"columns \['id', 'score', 'label'\], none named in or .*NAME"),
        ("a,b\n1,1\n", r"columns \['a', 'b'\], none named score or .*--score-column NAME"),
        ("1,2,3\n", r"has 3 columns without names; state which of 0 to 2 .*--score-column N"),
        ("score\n1\n", "has 1 of 2 columns, .* add --members FILE"),
        ("", "has 0 of 2 columns"),
        ("score,in\n1,1\nx,0\n", "cannot read .* as .csv"),
        ("score,in\n1\n", "cannot read .* as .csv"),
        ("score,in\n1,1\n0,2\n", r"line 3 of .* holds member=2, which must be 1 or 0 \(1 of 2\)"),
        ("score,in\nnan,1\n0,0\n", r"line 2 of .* holds score=nan, which is no .*\(1 of 2\)"),
        ("in,score\n# nan,nan\n\n1,2\n0,-inf\n1,nan\n", r"line 5 .* score=-inf.*\(2 of 3\)"),
        ('a,score,in\n"two\nlines",1,1\nb,inf,0\n', r"line 4 .* holds score=inf"),
        ("score,in\n1,1\n0,nan\n", r"line 3 of .* holds member=nan, which must be 1 or 0"),
        ("score,in\n1,True\n0,False\n0,2\n", r"line 4 of .* holds member=2, which must be 1 or 0"),
        ("score,in\n1,True\n0,No\n", "cannot read .* as .csv .*No"),
    ],
)
def test_a_csv_that_is_wrong_says_what_it_must_hold(tmp_path, text, message):
    (tmp_path / "scores.csv").write_text(text)
    with pytest.raises(ScoresError, match=message):
        CanaryScores.load(tmp_path / "scores.csv")


def test_a_csv_without_rows_holds_no_scores(tmp_path):
    (tmp_path / "scores.csv").write_text("score,in\n")
    assert len(CanaryScores.from_table(tmp_path / "scores.csv").in_scores) == 0


def test_files_of_other_tools_hold_the_same_scores(tmp_path, monkeypatch):
    """Each as its tool writes it; see docs/estimators/scores.md."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    was_in, values = rng.random(40) < 0.5, rng.standard_normal(40)
    np.savez("attack_result.npz", scores=values, memberships=was_in)
    np.save("signals.npy", np.stack([-values, values], axis=1))
    np.save("memberships.npy", np.stack([~was_in, was_in]))
    found = {"true_labels": was_in.astype(int).tolist(), "signal_values": values.tolist()}
    Path("leakpro.json").write_text(json.dumps({**found, "tpr": None}))
    for name, group in (("in", values[was_in]), ("out", values[~was_in])):
        np.savetxt(f"{name}.csv", group, delimiter=",")
        np.save(f"outputs_{name}.npy", group)
    np.savetxt("sums.csv", values)
    np.savetxt("mask.csv", was_in, fmt="%d")
    np.savetxt("table.txt", np.stack([was_in, values], axis=1), delimiter=",")
    rows = "".join(f"{m:d},.5,{v!r}\n" for m, v in zip(was_in, values.tolist(), strict=True))
    Path("named.csv").write_text(f"member,baseline_pred,mia_pred\n{rows}")
    pairs = "".join(f"{v!r},{m:d}\n" for m, v in zip(was_in, values.tolist(), strict=True))
    Path("pairs.csv").write_text(f"score,label\n{pairs}")
    read: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("attack_result.npz",), {}),
        (("signals.npy",), {"members": "memberships.npy", "score_column": "1"}),
        (("signals.npy",), {"members": "mask.csv", "score_column": "1"}),
        (("leakpro.json",), {}),
        (("in.csv", "out.csv"), {}),
        (("sums.csv",), {"members": "mask.csv"}),
        (("outputs_in.npy", "outputs_out.npy"), {}),
        (("table.txt",), {"score_column": "1", "member_column": "0"}),
        (("named.csv",), {"score_column": "mia_pred"}),
        (("pairs.csv",), {}),
    ]
    for files, columns in read:
        scores = CanaryScores.load(*files, **columns)
        assert scores.in_scores.tolist() == values[was_in].tolist(), files
        assert scores.out_scores.tolist() == values[~was_in].tolist(), files
        assert all(file in scores.source for file in files)


@pytest.mark.parametrize(
    ("others", "columns", "message"),
    [
        ((), {}, "has 1 of 2 columns"),
        ((), {"members": "short.csv"}, "3 scores and 2 memberships; there must be as many"),
        ((), {"members": "wrong.npy"}, r"wrong.npy' holds member=2, which must be 1 or 0 \(1 of 3"),
        ((), {"members": "text.npy"}, "cannot read 'text.npy' as .npy .* vector or a table of"),
        ((), {"members": "cut.npy"}, "cannot read 'cut.npy' as .npy .* it is cut short"),
        (("short.csv",), {"members": "short.csv"}, "leave out members and member_column"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path, monkeypatch, others, columns, message
):
    monkeypatch.chdir(tmp_path)
    np.save("scores.npy", np.arange(3.0))
    np.savetxt("short.csv", [0, 1], fmt="%d")
    np.save("wrong.npy", [0, 1, 2])
    np.save("text.npy", ["0", "1", "0"])
    Path("cut.npy").write_bytes(Path("scores.npy").read_bytes()[:-1])
    with pytest.raises(ScoresError, match=message):
        CanaryScores.load("scores.npy", *others, **columns)
    with pytest.raises(ScoresError, match="is for tables"):
        CanaryScores.load("scores.npz", members="short.csv")


OBSERVATIONS: dict[str, Any] = {
    "header": json.dumps({"coin_probability": 0.25}),
    # Planned and entered, dropped, entered in an earlier part, not planned.
    "canaries": np.array([1, 2, 3, 0], dtype="u1"),
    "coins": np.array([[1, 0], [1, 0], [0, 1], [1, 1]], dtype="u1"),
    "readings": np.array([[1.5, 0.25], [9.0, 9.0], [np.nan, 2.0], [8.0, 8.0]]),
}


def read(directory: Path, **arrays: Any) -> CanaryScores:
    np.savez(directory / "o.npz", **arrays)
    return read_score_npz(directory / "o.npz", 1000)


def test_readings_are_those_of_steps_whose_canaries_went_in(tmp_path):
    found = read(tmp_path, **OBSERVATIONS)
    assert (found.in_scores.tolist(), found.out_scores.tolist()) == ([1.5, 2.0], [0.25])
    assert (found.coin_probability, found.dropped, found.steps) == (0.25, 1, 2)


def test_an_archive_without_a_header_has_coins_of_an_unknown_probability(tmp_path):
    arrays = {name: value for name, value in OBSERVATIONS.items() if name != "header"}
    assert read(tmp_path, **arrays).coin_probability is None


def test_scores_come_before_observations_and_have_no_steps(tmp_path):
    found = read(tmp_path, scores_in=np.ones(2), scores_out=np.zeros(3), **OBSERVATIONS)
    assert (len(found.in_scores), len(found.out_scores), found.steps) == (2, 3, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"header": "[1]"}, r"header=\[1\] must be a JSON object"),
        ({"header": "{}"}, r"coin_probability=None must be in \(0, 1\)"),
        ({"header": '{"coin_probability": 2}'}, r"coin_probability=2 must be in \(0, 1\)"),
        ({"canaries": np.array([1, 2, 4, 0])}, r"canaries holds 4, must hold \(0, 1, 2, 3\) only"),
        ({"coins": OBSERVATIONS["coins"] + 1}, r"coins holds 2, must hold \(0, 1\) only"),
        ({"coins": OBSERVATIONS["coins"][:, :1]}, r"coins \(4, 1\) and readings \(4, 2\)"),
    ],
)
def test_observations_that_contradict_themselves_are_refused(tmp_path, changes, message):
    with pytest.raises(ScoresError, match=message):
        read(tmp_path, **{**OBSERVATIONS, **changes})


def test_other_arrays_are_named(tmp_path):
    with pytest.raises(ScoresError, match=r"holds \['losses'\]; it must hold the arrays scores_in"):
        read(tmp_path, losses=np.ones(3))


CHOICES = [Fixed(0.5), Grid([0.0, 0.5, 1.0]), MultiSplit(), Simultaneous(), Maximum()]


@pytest.mark.parametrize(
    ("method", "choice"),
    [
        *((method, Split()) for method in BOUND_NAMES),
        *((method, choice) for choice in CHOICES for method in ("fdp_cp", "fdp_t")),
        ("eps_bayes", Simultaneous()),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_bound_is_there_under_every_rule(groups, method, choice):
    scores = CanaryScores(*groups)
    no_bands = isinstance(choice, Simultaneous) and method not in ("fdp_cp", "eps_cp")
    if method == "fdp_t" or no_bands:
        with pytest.raises(ValueError, match=rf"threshold={type(choice).__name__}.* is not for"):
            scores.bound(method, 1e-5, 0.05, choice)
        return
    expected = named_bound(method, *groups, 1e-5, 0.05, choice)
    assert scores.bound(method, 1e-5, 0.05, choice) == expected
    assert expected.valid == choice.valid


def test_what_is_asked_of_scores_is_asked_of_the_statistics(groups):
    scores = CanaryScores(*groups)
    assert scores.bound("eps_cp", 1e-5) == named_bound("eps_cp", *groups, 1e-5, 0.05, Split())
    for found, expected in (
        (scores.one_run(), OneRunScores(*groups)),
        (scores.one_run(guesses=[50]), OneRunScores(*groups, [50])),
        (scores.one_run(sides="in"), OneRunScores(*groups, sides="in")),
    ):
        assert found.epsilon(1e-5) == expected.epsilon(1e-5)
        assert found.numbers == expected.numbers
    assert scores.one_run(sides="in").mu() != scores.one_run().mu()
    assert scores.mu_white_box() == mu_white_box_from_scores(*groups, 0.05) > 0
    pair = epsilon_gaussian_pair_from_scores(*groups, 1e-5, 0.1)
    assert scores.epsilon_gaussian_pair(1e-5, 0.1) == pair
    assert scores.auroc() == membership.auroc(*groups)
    assert scores.tpr_at_fpr(0.1) == membership.tpr_at_fpr(*groups, 0.1)
    assert scores.tpr_at_fpr(0.1, 0.05) == membership.tpr_at_fpr_lower(*groups, 0.1, 0.05)
    assert (scores.roc().tpr == membership.roc_curve(*groups).tpr).all()
    (curve,) = scores.privacy_curve([[1e-5, 1e-2]])
    assert curve[0] == membership.tradeoff_upper(*groups, 0.05).epsilon_at(1e-5) > curve[1] > 0


def test_scores_with_a_threshold_of_their_own_have_the_bound_without_one(groups):
    scores = CanaryScores(*groups, threshold=Fixed(0.5))
    assert scores.bound("fdp_t", 1e-5) == named_bound("fdp_t", *groups, 1e-5)


@pytest.mark.parametrize("method", ONE_RUN_NAMES)
def test_every_bound_of_one_run_is_there_by_name(groups, method):
    scores = CanaryScores(*groups, threshold=Fixed(0.5))
    assert scores.bound(method, 1e-5) == named_one_run_bound(method, *groups, 1e-5)
    with pytest.raises(ScoresError, match=rf"threshold=Split\(.* not for method='{method}'"):
        scores.bound(method, 1e-5, threshold=Split())
    unfair = CanaryScores(*groups, coin_probability=0.1)
    with pytest.raises(ScoresError, match=r"coin_probability=0\.1 must be 0\.5"):
        unfair.bound(method, 1e-5)


def test_readings_that_were_dropped_are_canaries_that_nobody_guessed(groups):
    scores, guesses = CanaryScores(*groups, dropped=10**6), {"guesses": [50]}
    for method, number, of_bound in (
        ("one_run", partial(scores.one_run(**guesses).epsilon, 1e-5), "epsilon_lower"),
        ("one_run_fdp", partial(scores.one_run(**guesses).epsilon_fdp, 1e-5), "epsilon_lower"),
        ("one_run_mu", scores.one_run(**guesses).mu, "mu_lower"),
    ):
        found = scores.bound(method, 1e-5, **guesses)
        assert found == named_one_run_bound(method, *groups, 1e-5, **guesses, unscored=10**6)
        assert number().value == getattr(found, of_bound)
    for method, ask in (
        ("white_box", lambda: scores.bound("white_box", 1e-5)),
        ("white_box", scores.mu_white_box),
        ("gaussian_pair", lambda: scores.epsilon_gaussian_pair(1e-5)),
    ):
        with pytest.raises(ScoresError, match=rf"dropped=1000000 must be 0 for {method}"):
            ask()


def test_readings_of_several_releases_have_no_bound_of_a_noisy_sum():
    assert CanaryScores(4.0 + np.arange(20.0) % 3, np.arange(20.0) % 3, steps=1).mu_white_box() > 0
    scores = CanaryScores([1.0, 2.0], [0.0, 1.0], steps=2)
    for method, ask in (
        ("white_box, whose readings", scores.mu_white_box),
        ("white_box, whose readings", lambda: scores.bound("white_box", 1e-5)),
        ("gaussian_pair, whose", lambda: scores.epsilon_gaussian_pair(1e-5)),
        ("gaussian_pair, whose", lambda: scores.bound("gaussian_pair", 1e-5)),
    ):
        with pytest.raises(ScoresError, match=f"steps=2 must be 1 for {method}"):
            ask()


def test_guesses_are_for_methods_that_guess(groups):
    scores = CanaryScores(*groups)
    for asked in ({"guesses": [50, 20]}, {"guesses": [50, 20], "sides": "in"}):
        found = scores.bound("one_run", 1e-5, **asked)
        assert found == named_one_run_bound("one_run", *groups, 1e-5, **asked)
    for method in (*BOUND_NAMES, "white_box", "gaussian_pair"):
        for asked, told in (
            ({"guesses": [50]}, r"guesses=\[50\]"),
            ({"sides": "in"}, "sides='in'"),
        ):
            with pytest.raises(ValueError, match=f"{told} is not for method='{method}'"):
                scores.bound(method, 1e-5, **asked)


def test_scores_cannot_be_changed_nor_change_with_their_source(groups):
    inside = groups[0].copy()
    scores = CanaryScores(inside, groups[1])
    inside[:] = 0.0
    assert (scores.in_scores == groups[0]).all()
    with pytest.raises(ValueError, match="read-only"):
        scores.in_scores[0] = 1.0
    with pytest.raises(AttributeError):
        scores.in_scores = inside  # type: ignore[misc]


@pytest.mark.parametrize("inside", [[[1.0]], ["a"]])
def test_what_is_no_score_is_refused(inside):
    with pytest.raises(ScoresError, match=r"scores_in has dtype .* vector of finite numbers"):
        CanaryScores(inside, [0.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_placed_and_counted(bad):
    message = rf"scores_in holds {bad}, which is no score.* \(2 of 5, the first at index 1\)"
    with pytest.raises(ScoresError, match=message):
        CanaryScores([0.0, bad, 1.0, np.nan, 2.0], [0.0])
    with pytest.raises(ScoresError, match=r"scores_out holds nan.* \(1 of 1, the first at index 0"):
        CanaryScores([0.0], [np.nan])


def test_empty_groups_prove_nothing_and_have_no_curve():
    scores = CanaryScores([], [1.0])
    assert scores.bound("fdp_cp", 1e-5).epsilon_lower == 0.0
    assert scores.bound("fdp_pooled_cp", 1e-5, threshold=Fixed(0.0)).epsilon_lower == 0.0
    with pytest.raises(ValueError, match="scores_in is empty"):
        scores.auroc()


def test_files_that_are_absent_are_named(tmp_path):
    for name in ("a.csv", "a.json", "a.npz"):
        with pytest.raises(ScoresError, match=f"cannot read .*{name}"):
            CanaryScores.load(tmp_path / name)


def observations(path: Path, probability: float = 0.5) -> Path:
    header = json.dumps({"coin_probability": probability})
    np.savez(path, **{**OBSERVATIONS, "header": header})
    return path


def test_coins_that_are_not_fair_are_refused_for_one_run(tmp_path):
    scores = CanaryScores.load(observations(tmp_path / "o.npz"))
    assert (scores.threshold, scores.dropped) == (Fixed(0.5, given=False), 1)
    assert scores.one_run(guesses=[2]).mu().correct == 2
    assert scores.one_run().canaries == 4
    scores = CanaryScores.from_npz(observations(tmp_path / "o.npz", 0.1))
    with pytest.raises(ScoresError, match=r"coin_probability=0\.1 must be 0\.5"):
        scores.one_run()


@pytest.mark.parametrize("record", ["observations.bin", None])
def test_a_report_leads_to_the_observations_beside_it(tmp_path, record):
    observations(tmp_path / "observations.npz")
    made_report(record=record).save(tmp_path / "report.json")
    if record is None:
        with pytest.raises(ScoresError, match="names 0 records"):
            CanaryScores.load(tmp_path / "report.json")
    else:
        for source in (tmp_path / "report.json", tmp_path):
            assert CanaryScores.load(source).in_scores.tolist() == [1.5, 2.0]


def test_the_record_of_a_training_is_not_read_for_its_archive(tmp_path):
    with pytest.raises(ScoresError, match=r"observations\.bin' is a record to which a training"):
        CanaryScores.load(tmp_path / "observations.bin")


def test_who_was_in_is_no_file_of_scores(tmp_path):
    scores, members = tmp_path / "s.npy", tmp_path / "m.npy"
    np.save(scores, np.linspace(-1.0, 2.0, 40))
    np.save(members, np.tile([0, 1], 20))
    with pytest.raises(ScoresError, match=r"holds only 0 and 1: who was in.*--members"):
        CanaryScores.load(scores, members)
    assert len(CanaryScores.load(scores, members=members).in_scores) == 20
