"""Epsilon* rises with epochs and falls with weight decay and DP-SGD."""

import epsilon_star_sweep as experiment
import numpy as np
import pytest
from common import cells, save
from matplotlib.figure import Figure


@pytest.mark.nightly
def test_shapes_of_the_sweep(tmp_path):
    found = experiment.run(cells(), 100, 60, range(2))
    star = {one.training.name: one.star for one in found}
    assert star["100 epochs"] > star["3 epochs"]
    assert star["decay 0.03"] < star["100 epochs"]
    assert star["512 units"] > star["linear"]
    private = [one for one in found if one.training.epsilon]
    assert len(private) == 5
    assert max(one.star for one in private) < star["100 epochs"]
    # Epsilon* takes few values on so few records, and is often equal to the quantile.
    assert all(one.star <= one.null for one in private if one.training.epsilon <= 3)
    assert experiment.front(found) <= set(star)
    save(experiment.draw(found, "accuracy"), tmp_path, "figure")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


MODELS = [
    experiment.Point(0.2, 0.30, "DP", "eps 1", spread=(0.1, 0.3)),
    experiment.Point(0.3, 0.60, "DP", "eps 3"),
    experiment.Point(0.5, 0.55, "DP", "eps 10"),
    experiment.Point(2.5, 0.86, "no DP", "10 epochs"),
    experiment.Point(7.1, 0.90, "no DP", "50 epochs"),
]


def points_of(drawn: Figure, label: str) -> np.ndarray:
    (found,) = [x for x in drawn.axes[2].get_lines() if x.get_label() == label]
    return np.asarray(found.get_xydata())


def test_the_front_is_drawn_and_beaten_models_lie_off_it():
    drawn = experiment.privacy_utility_figure(MODELS, "accuracy")
    expected = [[0.2, 0.30], [0.3, 0.60], [2.5, 0.86], [7.1, 0.90]]
    assert points_of(drawn, "Pareto front").tolist() == expected
    assert points_of(drawn, "not beaten").tolist() == expected
    main = drawn.axes[2]
    assert main.get_ylabel() == "accuracy"
    assert "not a bound" in main.get_xlabel()
    assert [text.get_text() for text in main.texts] == [model.name for model in MODELS]
