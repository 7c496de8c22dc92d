from __future__ import annotations

import pytest

from lightning_audit.report.figure import PowerCurve, power_figure


def test_curves_are_drawn_with_the_target() -> None:
    curve = PowerCurve("audit", [1.0, 10.0], [0.1, 0.9])
    (axes,) = power_figure([curve], 0.95, "noise").axes
    drawn, target = axes.get_lines()
    assert drawn.get_xydata().tolist() == [[1.0, 0.1], [10.0, 0.9]]
    assert list(target.get_ydata()) == [0.95, 0.95]
    with pytest.raises(ValueError, match="curves are 6, must be at most 5"):
        power_figure([curve] * 6, 0.95, "noise")
