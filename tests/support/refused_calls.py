"""The test that calls are refused, each with what its error says."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def refusals(*cases: tuple[Callable[[], object], str]) -> Callable[..., None]:
    """A test that each call raises a ValueError whose message the pattern finds."""

    @pytest.mark.parametrize(("call", "message"), cases)
    def each_is_refused(call: Callable[[], object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            call()

    return each_is_refused
