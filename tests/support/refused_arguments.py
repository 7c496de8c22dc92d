"""The test that one function refuses calls, by their positional arguments."""

from collections.abc import Callable
from functools import partial
from typing import Any

from refused_calls import refusals


def refused(
    function: Callable[..., object], *cases: tuple[Any, ...], **options: Any
) -> Callable[..., None]:
    """A test that each ``(*arguments, message)`` raises a ValueError that the pattern finds."""
    return refusals(*((partial(function, *given, **options), told) for *given, told in cases))
