"""Epsilon* rises with epochs and falls with weight decay and DP-SGD."""

import epsilon_star_sweep as experiment
import pytest
from common import cells, save


@pytest.mark.heavy
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
