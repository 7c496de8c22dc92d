from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.report.figure import blank_figure, log_from_zero, plain, plain_axes


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a_b", "a_b"), ("_hidden", " _hidden"), (r"$\frac{", r"\$\frac{"), ("a\x1bb", r"a\x1bb")],
)
def test_text_of_a_report_is_no_formula_no_escape_and_not_left_out(text: str, shown: str) -> None:
    assert plain(text) == shown
    drawn = blank_figure((2.0, 2.0))
    axes = drawn.subplots()
    axes.plot([0, 1], label=plain(text))
    assert axes.get_legend_handles_labels()[1] == [shown]
    axes.legend()
    drawn.canvas.draw()  # an unfinished formula would raise


def test_zero_and_every_power_of_ten_have_a_place_of_their_own() -> None:
    axes = blank_figure((4.0, 4.0)).subplots()
    plain_axes(axes)
    log_from_zero(axes, "x", 2e-5, 30.0)
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["0", "1e-5", "1e-4", "0.001", "0.01", "0.1", "1", "10"]
    places = axes.transData.transform([(x, 0.0) for x in axes.get_xticks()])[:, 0]
    assert np.all(np.diff(places) > 0)
    assert axes.get_yscale() == "linear"
