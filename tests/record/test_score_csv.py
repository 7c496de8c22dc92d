from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.record.scores import CanaryScores, ScoresError
from lightning_audit.stats.thresholds import Split


@pytest.fixture
def groups() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return 1.5 + rng.standard_normal(300), rng.standard_normal(200)


def test_csv_gives_the_scores_of_its_two_columns(tmp_path, groups) -> None:
    path = tmp_path / "scores.csv"
    rows = [(x, 1) for x in groups[0]] + [(x, 0) for x in groups[1]]
    lines = [f'"{i}, named",{member},{float(score)!r}' for i, (score, member) in enumerate(rows)]
    path.write_text("\n".join(["\ufeffname, in ,score", *lines]) + "\n\n", encoding="utf-8")
    scores = CanaryScores.load(path)
    assert (scores.in_scores == groups[0]).all()
    assert (scores.out_scores == groups[1]).all()
    assert scores.threshold == Split()


def test_csv_says_who_was_in_in_words_as_well(tmp_path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("score,in\n1.5,True\n-2,False\n3, true\n0,FALSE\n4,1\n5,0.0\n")
    scores = CanaryScores.load(path)
    assert scores.in_scores.tolist() == [1.5, 3.0, 4.0]
    assert scores.out_scores.tolist() == [-2.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score,label\n1,1\n", r"columns \['score', 'label'\]; the first line must name"),
        ("", r"columns \[\]; the first line"),
        ("score,in\n1,1\nx,0\n", "cannot read .* as .csv"),
        ("score,in\n1\n", "cannot read .* as .csv"),
        ("score,in\n1,1\n0,2\n", r"line 3 of .* holds in=2, must be 1 or 0 \(1 of 2\)"),
        ("score,in\nnan,1\n0,0\n", r"line 2 of .* holds score=nan, which is no .*\(1 of 2\)"),
        ("in,score\n# nan,nan\n\n1,2\n0,-inf\n1,nan\n", r"line 5 .* score=-inf.*\(2 of 3\)"),
        ('a,score,in\n"two\nlines",1,1\nb,inf,0\n', r"line 4 .* holds score=inf"),
        ("score,in\n1,1\n0,nan\n", r"line 3 of .* holds in=nan, must be 1 or 0"),
        ("score,in\n1,True\n0,False\n0,2\n", r"line 4 of .* holds in=2, must be 1 or 0"),
        ("score,in\n1,True\n0,No\n", "cannot read .* as .csv .*No"),
    ],
)
def test_a_csv_that_is_wrong_says_what_it_must_hold(tmp_path, text, message) -> None:
    (tmp_path / "scores.csv").write_text(text)
    with pytest.raises(ScoresError, match=message):
        CanaryScores.load(tmp_path / "scores.csv")


def test_a_csv_without_rows_holds_no_scores(tmp_path) -> None:
    (tmp_path / "scores.csv").write_text("score,in\n")
    assert len(CanaryScores.from_csv(tmp_path / "scores.csv").in_scores) == 0
