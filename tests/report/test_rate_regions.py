from __future__ import annotations

import pytest
from drawn_reports import BROKEN, HEALTHY, report

from lightning_audit.report.figure import claimed_curve, is_forbidden, rate_regions
from lightning_audit.results.audit_report import OperatingPoint
from lightning_audit.stats.binomial import clopper_pearson_upper


def test_the_claimed_curve_is_that_of_the_least_noise_and_otherwise_has_a_reason() -> None:
    curve, reason = claimed_curve(report(history=((2.0, 0.1, 5), (0.5, 0.1, 5))))
    assert curve is not None
    assert (curve.mu, reason) == (2.0, "")
    assert claimed_curve(report(history=())) == (None, "no step was audited")
    assert claimed_curve(report(history=((0.0, 0.1, 5),)))[0] is None


def test_regions_have_the_rates_and_their_limits_and_need_trials_in_both_worlds() -> None:
    unread = OperatingPoint(0.5, fn=0, tp=0, fp=1, tn=1)
    (region,) = rate_regions((HEALTHY, unread), 0.05)
    assert (region.fpr, region.fnr) == (0.305, 0.31)
    assert region.right == clopper_pearson_upper(305, 1000, 0.0125)
    assert region.left < region.fpr < region.right
    assert region.bottom < region.fnr < region.top


@pytest.mark.parametrize(("point", "forbidden"), [(HEALTHY, False), (BROKEN, True)])
def test_a_region_is_forbidden_if_no_rates_in_it_fit_the_claim(point, forbidden) -> None:
    curve, _ = claimed_curve(report())
    (region,) = rate_regions((point,), 0.05)
    assert is_forbidden(region, curve) is forbidden
    assert is_forbidden(region, None) is False
    inverted = region._replace(bottom=1 - region.top, top=1 - region.bottom, left=1 - region.right)
    assert is_forbidden(inverted._replace(right=1 - region.left), curve) is forbidden
