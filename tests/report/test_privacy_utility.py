from __future__ import annotations

import builtins

import numpy as np
import pytest

from lightning_audit.report.figure import Model, privacy_utility_figure

MODELS = [
    Model(0.2, 0.30, "DP", "eps 1", spread=(0.1, 0.3)),
    Model(0.3, 0.60, "DP", "eps 3"),
    Model(0.5, 0.55, "DP", "eps 10"),
    Model(2.5, 0.86, "no DP", "10 epochs"),
    Model(7.1, 0.90, "no DP", "50 epochs"),
]


def line(figure, label: str) -> np.ndarray:
    (found,) = [x for x in figure.axes[2].get_lines() if x.get_label() == label]
    return np.asarray(found.get_xydata())


def test_the_front_is_drawn_and_beaten_models_lie_off_it() -> None:
    figure = privacy_utility_figure(MODELS, "accuracy")
    expected = [[0.2, 0.30], [0.3, 0.60], [2.5, 0.86], [7.1, 0.90]]
    assert line(figure, "Pareto front").tolist() == expected
    assert line(figure, "not beaten").tolist() == expected
    main = figure.axes[2]
    assert main.get_ylabel() == "accuracy"
    assert "not a bound" in main.get_xlabel()
    assert [text.get_text() for text in main.texts] == [model.name for model in MODELS]


def test_each_group_has_its_densities_along_both_axes() -> None:
    figure = privacy_utility_figure(MODELS)
    top, _, main, right = figure.axes
    # Three models give a curve, two are drawn one by one.
    assert len(top.get_lines()) == len(right.get_lines()) == 3
    assert top.get_xlim() == main.get_xlim()
    assert right.get_ylim() == main.get_ylim()


def test_one_model_is_drawn(tmp_path) -> None:
    privacy_utility_figure([Model(1.0, 0.5)]).savefig(tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], "must be finite numbers"),
        ([Model(float("nan"), 0.5)], "cost=.* must be finite numbers"),
        ([Model(1.0, 0.5, str(i)) for i in range(6)], "models have 6 groups, must have at most 5"),
    ],
)
def test_what_cannot_be_drawn_is_named(models, message) -> None:
    with pytest.raises(ValueError, match=message):
        privacy_utility_figure(models)


def test_without_matplotlib_the_extra_is_named(monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"lightning-audit\[report\]"):
        privacy_utility_figure(MODELS)
