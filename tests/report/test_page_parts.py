import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from parsed_page import ParsedPage

from lightning_audit.report import page_parts as parts

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
def test_a_probability_in_percent(probability, words):
    assert parts.percent(probability) == words.replace(" ", NBSP)


def test_a_power_is_never_certainty():
    assert parts.power_words(1.0) == f">99.99{NBSP}%"
    assert parts.power_words(0.5) == f"50{NBSP}%"


@pytest.mark.parametrize(
    ("log10", "words"),
    [(0.0, "1"), (0.2, "1.6"), (1.0, "10¹"), (2.25, "10²·²"), (750.4, "10⁷⁵⁰"), (-3.0, "10⁻³")],
)
def test_an_e_value_is_a_number_below_ten_and_a_power_above(log10, words):
    assert parts.power_of_ten(log10 * math.log(10.0)) == words


def test_infinite_and_unknown_numbers_have_their_words():
    assert [parts.number(x) for x in (math.inf, -math.inf, None)] == ["∞", "-∞", "unknown"]
    assert [parts.power_of_ten(x) for x in (math.inf, -math.inf)] == ["∞", "0"]


def test_words_of_counts_lists_and_levels():
    assert (parts.plural(1, "step"), parts.plural(0, "step")) == ("1 step", "0 steps")
    assert (parts.listed(()), parts.listed("a"), parts.listed("abc")) == ("", "a", "a, b and c")
    assert parts.level(0.05) == f"95{NBSP}%"


def test_sentences_start_with_a_capital_and_end_once():
    assert [parts.sentence(s) for s in ("", "a b", "A!", "is it?")] == ["", "A b.", "A!", "Is it?"]
    assert parts.inner("Some tensors lack noise.") == "some tensors lack noise"


def test_what_is_between_backticks_is_code_and_the_rest_is_escaped():
    assert parts.marked("set `a<b` to <1") == "set <code>a&lt;b</code> to &lt;1"
    assert parts.marked("an odd ` one") == "an odd ` one"


def test_nothing_in_text_is_hidden():
    assert parts.seen(f"a{NBSP}b\x1b\u202e\n") == f"a{NBSP}b\\x1b\\u202e\\n"


@given(st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_are_even_start_at_zero_and_stay_below_the_end(high, about):
    ticks = parts.nice(high, about)
    assert ticks[0] == 0.0
    assert 2 <= len(ticks) <= about + 1
    assert ticks[-1] <= high * (1 + 1e-6)
    assert high - ticks[-1] < ticks[1] * (1 + 1e-6)
    digits = ticks[1] / 10.0 ** math.floor(math.log10(ticks[1]) + 1e-9)
    assert min(abs(digits - known) for known in (1, 2, 2.5, 5, 10)) < 1e-6


def test_a_scale_maps_its_ends():
    scale = parts.Scale(0.0, 2.0, 100.0, 0.0)
    assert [scale(x) for x in (0.0, 1.0, 2.0)] == [100.0, 50.0, 0.0]


def test_text_and_attributes_of_an_element_are_escaped_and_markup_is_not():
    made = parts.element(
        "text", "<b>\x1b", Markup("<tspan></tspan>"), class_='"a', data_x=None, x=1.50
    )
    assert made == '<text class="&#34;a" x="1.5">&lt;b&gt;\\x1b<tspan></tspan></text>'


def test_a_figure_has_a_title_and_a_description_that_its_label_names():
    body = [
        parts.path([(0, 1), (2, 3.456)], "claim"),
        parts.text((1, 2), "w", "lab"),
        parts.cross(4, 4),
    ]
    made = parts.figure((10.0, 20.0), body, "f", "A <title>", "what", "wide")
    parsed = ParsedPage(made)
    assert (parsed.wrong, parsed.open) == ([], [])
    assert parsed.ids == ["f-title", "f-text"]
    assert parsed.values("aria-labelledby") == ["f-title f-text"]
    assert parsed.values("viewbox") == ["0 0 10 20"]
    assert parsed.values("d") == ["M0 1L2 3.46", "M-1.0 -1.0l10 10m0 -10l-10 10"]


def test_tick_labels_are_in_percent_of_the_width():
    assert ParsedPage(parts.tick_row([0.0, 2.0, 4.0], 8.0)).values("x") == [
        "0.00%",
        "25.00%",
        "50.00%",
    ]


@pytest.mark.parametrize("value", [0.0, -0.0, -0.001])
def test_zero_has_one_form(value):
    assert parts.element("a", x=value) == '<a x="0"></a>'
