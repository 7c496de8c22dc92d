from __future__ import annotations

import pytest

from lightning_audit.hooks.step_hooks import MethodHook


class Counts:
    def __init__(self) -> None:
        self.said: list[str] = []

    def add(self, amount: int, *, twice: bool = False) -> int:
        self.said.append("own")
        return amount * (2 if twice else 1)


class More(Counts):
    def add(self, amount: int, *, twice: bool = False) -> int:
        return super().add(amount, twice=twice) + 1


@pytest.mark.parametrize(("kind", "expected"), [(Counts, 6), (More, 7)])
def test_both_ends_of_a_method_are_told_and_its_result_stays(kind: type, expected: int) -> None:
    counts = kind()
    said = counts.said
    hook = MethodHook(counts, "add", lambda: said.append("a"), lambda: said.append("b"))
    assert counts.add(3, twice=True) == expected
    assert said == ["a", "own", "b"]
    hook.remove()
    counts.add(1)
    assert said == ["a", "own", "b", "own"]
    assert "add" not in vars(counts)


def test_the_end_is_not_told_of_a_method_that_fails() -> None:
    said: list[str] = []
    hook = MethodHook(Counts(), "add", after=lambda: said.append("b"))
    with pytest.raises(TypeError):
        hook._owner.add()
    assert not said


def test_a_hook_under_another_one_falls_silent_and_leaves_it_there() -> None:
    counts = Counts()
    low = MethodHook(counts, "add", lambda: counts.said.append("low"))
    high = MethodHook(counts, "add", lambda: counts.said.append("high"))
    low.remove()
    counts.add(1)
    assert counts.said == ["high", "own"]
    high.remove()
    counts.said.clear()
    counts.add(1)
    assert counts.said == ["own"]
