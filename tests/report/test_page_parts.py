import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup
from parsed_page import ParsedPage

from lightning_audit.report import page_parts as parts

NBSP = "\N{NO-BREAK SPACE}"
LN10 = math.log(10.0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (parts.percent, {0.0: "0 %", 1e-6: "<0.01 %", 0.03: "3 %", 0.9997: "99.97 %", 1: "100 %"}),
        (parts.power_words, {1.0: ">99.99 %", 0.5: "50 %"}),
        (parts.level, {0.05: "95 %"}),
        (parts.number, {math.inf: "∞", -math.inf: "-∞", None: "unknown"}),
        (parts.power_of_ten, {0.0: "1", 0.2 * LN10: "1.6", LN10: "10¹", 2.25 * LN10: "10²·²"}),
        (parts.power_of_ten, {750.4 * LN10: "10⁷⁵⁰", -3 * LN10: "10⁻³", math.inf: "∞"}),
        (lambda count: parts.plural(count, "step"), {1: "1 step", 0: "0 steps"}),
        (parts.listed, {(): "", "a": "a", "abc": "a, b and c"}),
        (parts.sentence, {"": "", "a b": "A b.", "A!": "A!", "is it?": "Is it?"}),
        (parts.inner, {"Some tensors lack noise.": "some tensors lack noise"}),
        (parts.marked, {"`a<b` to <1": "<code>a&lt;b</code> to &lt;1", "odd ` one": "odd ` one"}),
        (parts.seen, {f"a{NBSP}b\x1b\u202e\n": f"a{NBSP}b\\x1b\\u202e\\n"}),
        (lambda x: parts.element("a", x=x), dict.fromkeys((0.0, -0.001), '<a x="0"></a>')),
        (parts.Scale(0.0, 2.0, 100.0, 0.0), {0.0: 100.0, 1.0: 50.0, 2.0: 0.0}),
    ],
)
def test_numbers_and_words_in_a_few_letters(words, expected):
    told = {given: words(given) for given in expected}
    assert told == {
        given: made.replace(" %", f"{NBSP}%") if isinstance(made, str) else made
        for given, made in expected.items()
    }


@settings(max_examples=40)
@given(st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_are_even_start_at_zero_and_stay_below_the_end(high, about):
    ticks = parts.nice(high, about)
    assert ticks[0] == 0.0
    assert 2 <= len(ticks) <= about + 1
    assert ticks[-1] <= high * (1 + 1e-6)
    assert high - ticks[-1] < ticks[1] * (1 + 1e-6)
    digits = ticks[1] / 10.0 ** math.floor(math.log10(ticks[1]) + 1e-9)
    assert min(abs(digits - known) for known in (1, 2, 2.5, 5, 10)) < 1e-6


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
