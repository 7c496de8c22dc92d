"""Names and numbers of a report in a few characters."""

from __future__ import annotations

import math

from many_trainings import audited

from lightning_audit.report.text import counts_line, power_of_ten, short_name, title_of


def test_powers_of_ten_have_a_digit_after_the_point_up_to_ten() -> None:
    shown = [power_of_ten(power * math.log(10.0)) for power in (0.04, 3.96, 4.6, 9.97, 10.4, 11411)]
    assert shown == ["10^0", "10^4", "10^4.6", "10^10", "10^10", "10^11411"]


def test_long_names_keep_their_ends() -> None:
    name = "model.encoder.layers.11.attention.output.dense.weight"
    assert short_name(name) == "model.encoder...dense.weight"
    assert len(short_name(name)) == 28
    assert short_name("net.0.weight") == "net.0.weight"


def test_a_check_of_another_release_is_shown_by_its_name() -> None:
    assert title_of("noise.of_tomorrow") == "noise.of_tomorrow"


def test_the_counts_of_many_trainings_are_a_line() -> None:
    seen = audited(mu=0.3, n=60).seen
    assert counts_line(seen) == (
        f"trainings: 60 of 60 planned; coins: {seen.errors} of {seen.guesses} guessed wrong; error "
        f"rate: at most {seen.error_upper:.3g} where 0.309 or more is claimed"
    )
