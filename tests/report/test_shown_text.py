from __future__ import annotations

import math

import pytest

from lightning_audit.report.page_parts import (
    inner,
    level,
    listed,
    marked,
    number,
    percent,
    plural,
    power_of_ten,
    power_words,
    seen,
    sentence,
)

NBSP = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (0.0, "0 %"),
        (1e-6, "<0.01 %"),
        (0.03, "3 %"),
        (0.5, "50 %"),
        (0.9997, "99.97 %"),
        (1, "100 %"),
    ],
)
def test_a_probability_in_percent(probability: float, words: str) -> None:
    assert percent(probability) == words.replace(" ", NBSP)


def test_a_power_is_never_certainty() -> None:
    assert power_words(1.0) == f">99.99{NBSP}%"
    assert power_words(0.5) == f"50{NBSP}%"


@pytest.mark.parametrize(
    ("log10", "words"),
    [(0.0, "1"), (0.2, "1.6"), (1.0, "10¹"), (2.25, "10²·²"), (750.4, "10⁷⁵⁰"), (-3.0, "10⁻³")],
)
def test_an_e_value_is_a_number_below_ten_and_a_power_above(log10: float, words: str) -> None:
    assert power_of_ten(log10 * math.log(10.0)) == words


def test_infinite_and_unknown_numbers_have_their_words() -> None:
    assert [number(x) for x in (math.inf, -math.inf, None)] == ["∞", "-∞", "unknown"]
    assert [power_of_ten(x) for x in (math.inf, -math.inf)] == ["∞", "0"]


def test_words_of_counts_lists_and_levels() -> None:
    assert (plural(1, "step"), plural(0, "step")) == ("1 step", "0 steps")
    assert (listed(()), listed("a"), listed("abc")) == ("", "a", "a, b and c")
    assert level(0.05) == f"95{NBSP}%"


def test_sentences_start_with_a_capital_and_end_once() -> None:
    assert [sentence(s) for s in ("", "a b", "A!", "is it?")] == ["", "A b.", "A!", "Is it?"]
    assert inner("Some tensors lack noise.") == "some tensors lack noise"


def test_what_is_between_backticks_is_code_and_the_rest_is_escaped() -> None:
    assert marked("set `a<b` to <1") == "set <code>a&lt;b</code> to &lt;1"
    assert marked("an odd ` one") == "an odd ` one"


def test_nothing_in_text_is_hidden() -> None:
    assert seen(f"a{NBSP}b\x1b\u202e\n") == f"a{NBSP}b\\x1b\\u202e\\n"
