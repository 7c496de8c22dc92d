"""Values that are allowed come back plain; others are refused with what is allowed."""

import inspect
import math
import re
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from lightning_audit import PrivacyAudit, _validate, attach


def test_a_large_value_is_shown_by_its_ends_and_a_small_one_wholly():
    assert _validate.shown(0.25) == "0.25"
    assert _validate.shown("fdp_cp") == "'fdp_cp'"
    assert _validate.shown([1, 2]) == "[1, 2]"
    assert _validate.shown(list(range(1000))) == "[0, 1, 2, 3, 4, 5, ...]"
    text = _validate.shown(np.arange(900))
    assert text.startswith("array([ 0, 1, 2,")
    assert text.endswith("899])")
    assert len(text) <= 120


NOT_NUMBERS = [None, "1", True, math.nan, np.nan, [1.0], 1j]


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (_validate.positive, 1e-300, 1e-300),
        (_validate.positive, np.float32(0.5), 0.5),
        (_validate.positive, Fraction(1, 4), 0.25),
        (_validate.non_negative, 0, 0.0),
        (_validate.open_unit, np.float64(1e-9), 1e-9),
        (_validate.rate, 1, 1.0),
        (_validate.positive_int, np.int64(7), 7),
    ],
)
def test_allowed_numbers_come_back_plain(check, value, expected):
    result = check("x", value)
    assert result == expected
    assert type(result) is type(expected)


_OUTSIDE = [-math.inf, math.inf, *NOT_NUMBERS]


@pytest.mark.parametrize(
    ("check", "values", "allowed"),
    [
        (_validate.positive, [0, -1.0], "a finite number > 0"),
        (_validate.non_negative, [-1e-300], "a finite number >= 0"),
        (_validate.open_unit, [0, 1, -0.5, 1.5], "in (0, 1)"),
        (_validate.rate, [0, -0.5, 1.0000001], "in (0, 1]"),
        (_validate.positive_int, [0, -1, 1.0], "a whole number >= 1"),
    ],
)
def test_everything_else_is_refused_by_name_value_what_is_allowed_and_advice(
    check, values, allowed
):
    for value in [*values, *_OUTSIDE]:
        with pytest.raises(ValueError, match=f"^x={re.escape(repr(value))} must be "):
            check("x", value)
    with pytest.raises(ValueError, match=f"^{re.escape(f'lr=-2 must be {allowed}; do this')}$"):
        check("lr", -2, "do this")
    with pytest.raises(ValueError, match=f"^{re.escape(f'lr=-2 must be {allowed}.')}$"):
        check("lr", -2)


def test_infinity_is_allowed_on_request():
    assert _validate.positive("x", math.inf, finite=False) == math.inf
    with pytest.raises(ValueError, match=r"x=0 must be a number > 0\."):
        _validate.positive("x", 0, finite=False)


def test_strings_are_taken_from_a_list():
    assert _validate.one_of("mode", "b", ("a", "b")) == "b"
    with pytest.raises(ValueError, match=r"mode='c' must be one of \['a', 'b'\]; see the guide"):
        _validate.one_of("mode", "c", ("b", "a"), "see the guide")


@pytest.mark.parametrize("check", [_validate.positive, _validate.non_negative, _validate.rate])
def test_a_whole_number_that_no_float_holds_is_no_number(check):
    with pytest.raises(ValueError, match=r"x=10{10,}.*must be"):
        check("x", 10**400)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("epsilon", "; write claimed_epsilon=8.0."),
        ("target_epsilon", "; write claimed_epsilon=8.0."),
        ("max_epsilon", "; write claimed_epsilon=8.0."),
        ("target_delta", "; write delta=8.0."),
        ("noise_multiplier", "; the audit reads it from the optimizer where that has it; if not,"),
        ("noise_multiplier", "as in a hand-written loop, state claim=PrivacyClaim(noise_multipl"),
        ("max_grad_norm", "state claim=PrivacyClaim(max_grad_norm=8.0)."),
        ("sample_rate", "state claim=PrivacyClaim(sample_rate=8.0)."),
        ("batch_size", "state claim=PrivacyClaim(expected_batch_size=8.0)."),
        ("on_violations", "; did you mean 'on_violation'?"),
        ("xyz", "; allowed: allow, bound_significance, bounds"),
    ],
)
@pytest.mark.parametrize("front", [PrivacyAudit, partial(attach, None, None)])
def test_an_argument_that_does_not_exist_is_refused_with_what_to_write(front, name, said):
    with pytest.raises(TypeError, match=f"^there is no argument '{name}'") as raised:
        front(**{name: 8.0})
    assert said in str(raised.value)
    assert "self" not in str(raised.value)


def test_a_plain_loop_takes_what_lightning_has_of_its_own():
    with pytest.raises(TypeError, match=r"no argument 'logger'; write log=1\."):
        attach(None, None, logger=1)
    with pytest.raises(TypeError, match="no argument 'epoch'; did you mean 'epochs'"):
        attach(None, None, epoch=1)
    with pytest.raises(TypeError, match="no argument 'epochs'; allowed: allow"):
        PrivacyAudit(epochs=1)
    assert "claimed_epsilon" in inspect.signature(PrivacyAudit).parameters
