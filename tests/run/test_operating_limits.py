"""Limits of error rates, and whether they contradict the claim."""

from __future__ import annotations

import pytest

from lightning_audit.results.audit_report import OperatingPoint
from lightning_audit.run.report_files import with_limits


@pytest.mark.parametrize(
    ("point", "outside"),
    [
        (OperatingPoint(0.5, fn=160, tp=340, fp=150, tn=350), False),  # as mu 1 allows
        (OperatingPoint(0.5, fn=5, tp=495, fp=5, tn=495), True),  # mu over 4
        (OperatingPoint(0.5, fn=495, tp=5, fp=495, tn=5), True),  # the same, inverted
        (OperatingPoint(0.5, fn=0, tp=2, fp=0, tn=2), False),  # too few
    ],
)
def test_rates_that_no_claimed_mechanism_has_are_outside(
    point: OperatingPoint, outside: bool
) -> None:
    (found,) = with_limits([point], 1.0, 0.05)
    assert found.outside == outside
    assert found.fpr is not None
    assert found.fnr is not None
    assert found.fpr[0] <= point.fp / (point.fp + point.tn) <= found.fpr[1]
    assert found.fnr[0] <= point.fn / (point.fn + point.tp) <= found.fnr[1]


def test_without_trials_or_a_claim_nothing_is_outside() -> None:
    (empty,) = with_limits([OperatingPoint(0.5, 0, 0, 3, 4)], 1.0, 0.05)
    assert (empty.fnr, empty.outside) == (None, False)
    (unclaimed,) = with_limits([OperatingPoint(0.5, 5, 495, 5, 495)], None, 0.05)
    assert not unclaimed.outside
    assert unclaimed.fpr is not None
