from __future__ import annotations

from made_report import made_report

from lightning_audit.cli.formats import epsilons, number, proved


def test_known_epsilons_are_shown_in_three_digits() -> None:
    shown = epsilons(made_report(spent=3.14159))
    assert shown == "epsilon proved >= 1.5, spent 3.14, claimed 8"
    assert epsilons(made_report(claimed=None, spent=None, proved=None)) == "epsilon unknown"


def test_a_bound_of_zero_is_a_dash_and_not_perfect_privacy() -> None:
    assert proved(made_report(proved=0.0)) == proved(made_report(proved=None)) == "-"
    assert proved(made_report(proved=1.5)) == number(1.5) == "1.5"
