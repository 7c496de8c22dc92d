"""A checkpoint that was edited or damaged is refused; a long history takes no long time."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_written_support import CLAIM, HandWritten
from lightning_fabric.utilities.exceptions import MisconfigurationException
from resume_support import RESUMING, StepwiseModule
from training_support import PrivateModule, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.canaries import Mislabeled
from lightning_audit.run.optimizers import verified, with_checksum

pytestmark = RESUMING

REFUSED = r"^PrivacyAudit cannot resume from this checkpoint: .*(take another|upgrade|resume)"
KEY = "PrivacyAudit"
Place = tuple[Any, ...]


def checkpoint(directory: Path, module: Any = None, **options: Any) -> Path:
    """A real checkpoint in the middle of a training."""
    path = directory / "real.ckpt"
    trainer = trainer_for(directory, PrivacyAudit(seed=1, **options), max_steps=40)
    trainer.fit(module or StepwiseModule())
    trainer.save_checkpoint(path)
    return path


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where everything lies that a state holds, dicts and lists themselves included."""
    yield place
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*place, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from leaves(item, (*place, number))


def at(state: Any, place: Place) -> Any:
    for key in place:
        state = state[key]
    return state


def put(state: Any, place: Place, value: Any) -> Any:
    """The state with something else in a place."""
    if not place:
        return value
    held = at(state, place[:-1])
    if isinstance(held, tuple):
        changed = list(held)
        changed[place[-1]] = value
        return put(state, place[:-1], tuple(changed))
    held[place[-1]] = value
    return state


def damages(value: Any) -> list[Any]:
    """Other values than this one: of other types, shapes and ranges."""
    found: list[Any] = [None, "text", -1, math.nan, [], {}, 10**400, torch.zeros(3, 3), [[[]]]]
    if isinstance(value, torch.Tensor):
        found += [value[None], value.flatten()[:-1], -1.0 - value.double(), value.to(torch.float16)]
        found += [torch.full_like(value.double(), math.nan), value.tolist()]
    elif isinstance(value, bool):
        found += [not value, int(value) + 2]
    elif isinstance(value, int):
        found += [value + 1, -value - 1, float(value) + 0.5, str(value)]
    elif isinstance(value, float):
        found += [value + 0.5, -value - 1.0, math.inf, str(value)]
    elif isinstance(value, list | tuple):
        found += [[*value, 1], list(value)[:-1]] if value else [[1]]
    elif isinstance(value, dict):
        found += [{**value, "more": 1}, dict(list(value.items())[:-1])] if value else [{"more": 1}]
    return [other for other in found if not alike(other, value)]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize(
    "game",
    [
        pytest.param("gradient", marks=pytest.mark.heavy),
        pytest.param("input", marks=pytest.mark.heavy),
        pytest.param("by hand", marks=pytest.mark.heavy),
    ],
)
@pytest.mark.heavy_one_in(6)
def test_every_value_of_a_checkpoint_that_is_changed_is_refused(tmp_path: Path, game: str) -> None:
    canary = Mislabeled(amplitude=100.0, loss=cross_entropy, num_classes=10)
    path = {
        "gradient": lambda: checkpoint(tmp_path),
        "input": lambda: checkpoint(tmp_path, PrivateModule(), canaries=[canary]),
        "by hand": lambda: checkpoint(tmp_path, HandWritten(), claim=CLAIM),
    }[game]()
    real = torch.load(path, weights_only=True)["callbacks"][KEY]
    PrivacyAudit().load_state_dict(copy.deepcopy(real))  # it loads as it is
    places = list(leaves(real))
    assert len(places) > 300
    for number, place in enumerate(places):
        value = at(real, place)
        # All kinds of damage at some places, one of them at each.
        kinds = damages(value)
        for other in kinds if number % 50 == 0 else [kinds[number % len(kinds)]]:
            state = put(copied(real, place), place, other)
            with pytest.raises(MisconfigurationException, match=REFUSED):
                PrivacyAudit().load_state_dict(state)


def copied(state: Any, place: Place) -> Any:
    """A copy of what lies on the way to a place."""
    if not place:
        return state
    kind, key = type(state), place[0]
    twin = list(state) if kind is tuple else copy.copy(state)
    twin[key] = copied(state[key], place[1:])
    return tuple(twin) if kind is tuple else twin


def cross_entropy(module: PrivateModule, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module.net(batch[0]), batch[1])


def lacking(*names: str) -> Callable[[dict[str, Any]], Any]:
    def damaged(state: dict[str, Any]) -> Any:
        for name in names:
            del state[name]
        return state

    return damaged


def text_for_tensors(state: dict[str, Any]) -> Any:
    state["session"]["recorder"]["monitor"] = "sums"
    return state


@pytest.mark.parametrize(
    "damage",
    [
        lacking("session"),
        lacking("course"),
        lacking("checksum"),
        lacking("version"),
        lambda state: {**state, "version": "1"},
        lambda state: {**state, "version": 2},
        lambda state: [1, 2],
        lambda state: "state",
        lambda state: {**state, "batches": {0: 1, "a": 2}},
        lambda state: {**state, "seed": -1},
        text_for_tensors,
    ],
)
@pytest.mark.heavy_one_in(4)
@pytest.mark.one_in(4)
def test_a_damaged_checkpoint_is_refused_by_fit_before_a_step(tmp_path: Path, damage: Any) -> None:
    path = checkpoint(tmp_path)
    whole = torch.load(path, weights_only=True)
    whole["callbacks"][KEY] = damage(whole["callbacks"][KEY])
    torch.save(whole, path)
    trainer = trainer_for(tmp_path, PrivacyAudit(), max_steps=60)
    with pytest.raises(MisconfigurationException, match=REFUSED):
        trainer.fit(StepwiseModule(), ckpt_path=path, weights_only=True)


def test_a_state_that_fits_no_training_is_refused_in_words_too(tmp_path: Path) -> None:
    # As a program would write it that seals what it changed.
    path = checkpoint(tmp_path)
    real = torch.load(path, weights_only=True)
    state = verified(real["callbacks"][KEY])
    for place in (("course",), ("session", "recorder"), ("session", "recorder", "monitor")):
        for value in ({}, None, "text", {"object": "lightning_audit.nowhere:Thing", "state": {}}):
            real["callbacks"][KEY] = with_checksum(put(copied(state, place), place, value))
            torch.save(real, path)
            trainer = trainer_for(tmp_path, PrivacyAudit(), max_steps=60)
            with pytest.raises(MisconfigurationException, match=REFUSED):
                trainer.fit(StepwiseModule(), ckpt_path=path, weights_only=True)


def stretched(state: Any, steps: int) -> Any:
    """The state as if each step had been taken many times over."""
    if isinstance(state, dict):
        return {key: stretched(item, steps) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return [stretched(item, steps) for item in state]
    return steps if type(state) is int and state == 40 else state


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("accountant", "stated"),
    [("rdp", {}), ("prv", {"claimed_epsilon": 8.0}), ("prv", {})],
)
def test_a_history_of_a_thousand_million_steps_loads_and_reports_in_bounded_time(
    tmp_path: Path, accountant: str, stated: dict[str, Any]
) -> None:
    steps = 10**9
    path = checkpoint(tmp_path, StepwiseModule(accountant=accountant))
    whole = torch.load(path, weights_only=True)
    state = stretched(verified(whole["callbacks"][KEY]), steps)
    assert state["accountant"][0][-1] == steps
    whole["callbacks"][KEY] = with_checksum(state)
    torch.save(whole, path)
    begun = time.process_time()
    audit = PrivacyAudit(on_violation="warn", **stated)
    trainer_for(tmp_path, audit, max_steps=48).fit(
        StepwiseModule(accountant=accountant), ckpt_path=path, weights_only=True
    )
    assert time.process_time() - begun < 60
    # Not by the gate: the counts of a state that was stretched by hand do not agree.
    report = AuditReport.load(tmp_path / "audit" / "report.json")
    assert report.steps == steps + 8
    assert report.epsilon_spent > 1e5
