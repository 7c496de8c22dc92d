from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.stats.epsilon_star import pareto_front

models = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


def beaten(model: tuple[int, int], by: tuple[float, float]) -> bool:
    return by[0] <= model[0] and by[1] >= model[1] and tuple(by) != tuple(model)


@given(models)
def test_the_front_is_what_no_model_beats(models) -> None:
    front = {models[i] for i in pareto_front(*np.array(models).T)}
    assert front == {m for m in models if not any(beaten(m, other) for other in models)}


@given(models)
def test_the_convex_front_is_what_no_mixture_of_two_beats(models) -> None:
    found = pareto_front(*np.array(models).T, convex=True)
    points = np.array(models, dtype=float)
    for i, model in enumerate(models):
        weights = np.linspace(0, 1, 841)[:, None, None, None]
        mixtures = weights * points[:, None] + (1 - weights) * points
        better = (mixtures[..., 0] <= model[0] + 1e-9) & (mixtures[..., 1] >= model[1] + 1e-3)
        if i in found:
            assert not better.any()
        elif not any(beaten(model, other) for other in models):
            # Left out of the plain front by a mixture, or equal to a model on it.
            equal = (mixtures[..., 0] <= model[0] + 1e-9) & (mixtures[..., 1] >= model[1] - 1e-9)
            assert equal.any()


@given(models, st.booleans())
def test_the_order_and_the_units_of_the_models_do_not_matter(models, convex) -> None:
    cost, benefit = np.array(models, dtype=float).T
    front = pareto_front(cost, benefit, convex=convex)
    turned = len(models) - 1 - pareto_front(3 * cost[::-1] - 1, 2 * benefit[::-1], convex=convex)
    assert [models[i] for i in front] == [models[i] for i in turned]
    assert np.all(np.diff(cost[front]) > 0)
    assert np.all(np.diff(benefit[front]) > 0)


@pytest.mark.parametrize(
    ("cost", "benefit", "message"),
    [
        ([], [], r"cost=\[\] must be finite numbers"),
        ([1.0], [np.nan], "benefit=.*nan.* must be finite numbers"),
        ([np.inf], [1.0], "cost=.*inf.* must be finite"),
        ([1.0, 2.0], [1.0], "cost has 2 elements and benefit 1, must have equally many"),
    ],
)
def test_bad_models_are_named(cost, benefit, message) -> None:
    with pytest.raises(ValueError, match=message):
        pareto_front(cost, benefit)
