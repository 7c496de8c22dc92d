"""The test that calls are refused, each with what its error says."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest


def refusals(*cases: tuple[Callable[[], object], str]) -> Callable[..., None]:
    """A test that each call raises a ValueError whose message the pattern finds."""

    @pytest.mark.parametrize(("call", "message"), cases)
    def each_is_refused(call: Callable[[], object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            call()

    return each_is_refused


def refused_changes(
    function: Callable[..., object], good: Mapping[str, Any], *cases: tuple[Mapping[str, Any], str]
) -> Callable[..., None]:
    """The same for one function, by what each call changes of good arguments."""
    return refusals(*((partial(function, **{**good, **change}), told) for change, told in cases))


def refused(
    function: Callable[..., object], *cases: tuple[Any, ...], **options: Any
) -> Callable[..., None]:
    """A test that each ``(*arguments, message)`` raises a ValueError that the pattern finds."""
    return refusals(*((partial(function, *given, **options), told) for *given, told in cases))
