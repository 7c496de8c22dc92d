"""What is recorded and checked does not depend on how steps are grouped, nor on a stop between."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_audit.checks.probes import LAGS, Witnesses
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import (
    DROPPED,
    INJECTED,
    NOT_PLANNED,
    ObservationStore,
    RecordHeader,
    read_observations,
    snapshot,
)
from lightning_audit.run.optimizers import to_arrays, to_tensors
from lightning_audit.session.recorder import Recorder
from lightning_audit.session.step import ObservedStep

K = 3
WITNESSES = Witnesses({0: np.arange(12), 1: np.arange(5)})
HEADER = RecordHeader(("a", "b", "c"), ("weight", "bias"), WITNESSES.counts, LAGS)


def seen(
    count: int, *, sigma: float = 1.0, shift: float = 1.0, seed: int = 0
) -> list[ObservedStep]:
    """Steps of every kind: without canaries, dropped, lost, without noise, of two epochs."""
    rng = np.random.default_rng(seed)
    steps = []
    for t in range(count):
        coins = rng.integers(0, 2, K).astype(float)
        status = DROPPED if t % 41 == 40 else INJECTED if t % 3 else NOT_PLANNED
        witnesses = rng.standard_normal(17) * sigma
        if t % 67 == 66:
            witnesses[3] = np.nan
        readings = coins * shift + sigma * rng.standard_normal(K)
        steps.append(
            ObservedStep(
                claim=StepClaim(0.0 if t % 53 == 52 else sigma, 0.5, 16.0),
                status=status,
                coins=coins if status == INJECTED else np.zeros(K),
                readings=readings if status == INJECTED else np.zeros(K),
                witnesses=witnesses,
                epoch=t // 60,
                replaced=False,
                sample_rate=None if t % 2 else 0.1,
            )
        )
    return steps


def recorder(directory: Path | None = None, significance: float = 1e-3) -> Recorder:
    store = ObservationStore(directory, HEADER, "run") if directory else None
    return Recorder(HEADER, significance, WITNESSES, store)


def entries_of(made: Recorder, directory: Path) -> bytes:
    made.flush()
    assert made.store is not None
    made.store.close(archive=False)
    return read_observations(directory / RECORD_NAME)[1].tobytes()


def numbers(made: Recorder) -> str:
    """Every number of the checks, sums included."""
    return repr(snapshot(made.monitor))


@pytest.mark.parametrize(("block", "prompt"), [(10, 100), (7, 0), (1000, 5), (1, 0)])
def test_entries_and_checks_do_not_depend_on_the_grouping(
    tmp_path: Path, block: int, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = seen(150)
    at_once = recorder(tmp_path / "at once")
    for step in steps:
        at_once.take(step)
        at_once.digest()
    monkeypatch.setattr(Recorder, "BLOCK", block)
    monkeypatch.setattr(Recorder, "PROMPT", prompt)
    grouped = recorder(tmp_path / "grouped")
    for t, step in enumerate(steps):
        grouped.take(step)
        assert grouped.steps == t + 1
        if t in (11, 12, 77):
            assert grouped.monitor.steps == t + 1  # asking for the checks feeds what waits
    grouped.digest()
    assert numbers(grouped) == numbers(at_once)
    assert entries_of(grouped, tmp_path / "grouped") == entries_of(at_once, tmp_path / "at once")
    assert read_observations(tmp_path / "grouped" / RECORD_NAME)[1]["step"].tolist() == list(
        range(150)
    )


def test_steps_wait_after_the_first_until_their_block_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recorder, "BLOCK", 10)
    monkeypatch.setattr(Recorder, "PROMPT", 4)
    made = recorder()
    fed = []
    for step in seen(25):
        made.take(step)
        fed.append(made._monitor.steps)
    assert fed == [1, 2, 3, 4, 4, 4, 4, 4, 4, *[10] * 10, *[20] * 6]


def striking(kind: str) -> ObservedStep:
    usual = seen(2)[1]
    changes: dict[str, Any] = {
        "too large": {"readings": usual.coins + np.array([0.0, 11.1, 0.0])},
        "too small": {"readings": usual.coins - np.array([0.0, 0.0, 11.1])},
        "lost": {"readings": np.full(K, np.nan)},
        "replaced": {"replaced": True},
        "large": {"readings": usual.coins + np.array([0.0, 10.9, 0.0])},
    }
    return ObservedStep(**{**vars(usual), **changes[kind]})


@pytest.mark.parametrize("kind", ["too large", "too small", "lost", "replaced", "large"])
def test_what_no_correct_step_gives_is_fed_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "PROMPT", 0)
    made = recorder()
    for step in seen(13):
        made.take(step)
    assert made._monitor.steps == 10
    made.take(striking(kind))
    assert made._monitor.steps == (10 if kind == "large" else 14)


def test_broken_clipping_is_known_after_the_step_that_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recorder, "PROMPT", 0)
    made, prompt = recorder(), recorder()
    flags = []
    for step in seen(40, shift=500.0):
        for each in (made, prompt):
            each.take(step)
        prompt.digest()
        assert made.clipping_is_broken == prompt.monitor.clipping_is_broken
        flags.append(made.clipping_is_broken)
    assert flags.index(True) < 30


def test_asking_for_the_checks_does_not_change_whether_canaries_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recorder, "PROMPT", 0)
    monkeypatch.setattr(Recorder, "BLOCK", 50)
    flags = []
    for ask in (False, True):
        made, now = recorder(), []
        for step in seen(60, shift=6.0):  # flagged soon, by readings that are no ten sigma off
            made.take(step)
            if ask:
                assert made.monitor.steps == made.steps
            now.append(made.clipping_is_broken)
        assert made.monitor.clipping_is_broken
        flags.append(now)
    assert flags[0] == flags[1]
    assert flags[0].index(True) == 49


def json_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "dtype": str(value.dtype), "shape": value.shape}
        raise TypeError(type(value))

    def arrays(value: dict[str, Any]) -> Any:
        if set(value) == {"array", "dtype", "shape"}:
            return np.array(value["array"], dtype=value["dtype"]).reshape(value["shape"])
        return value

    loaded: dict[str, Any] = json.loads(json.dumps(state, default=plain), object_hook=arrays)
    return loaded


def torch_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(to_tensors(state), file)
    file.seek(0)
    loaded: dict[str, Any] = to_arrays(torch.load(file, weights_only=True))
    return loaded


@pytest.mark.parametrize("round_trip", [json_round_trip, torch_round_trip])
@pytest.mark.parametrize("stop", [0, 1, 33, 104, 127])
@pytest.mark.one_in(3)
def test_a_run_that_goes_on_from_its_state_is_the_run_without_a_stop(
    tmp_path: Path, round_trip: Any, stop: int
) -> None:
    steps = seen(150)
    whole = recorder(tmp_path / "whole")
    first = recorder(tmp_path / "parts")
    for step in steps:
        whole.take(step)
    for step in steps[:stop]:
        first.take(step)
    state = round_trip(first.state())
    first.take(striking("too large"))  # a step after the checkpoint, undone by the stop
    first.flush()
    first.store.close(archive=False)
    store = ObservationStore.resume(tmp_path / "parts", HEADER, "run", stop)
    assert store is not None
    second = Recorder(HEADER, 1e-3, WITNESSES, store)
    second.load(state)
    assert second.steps == stop
    for step in steps[stop:]:
        second.take(step)
    assert numbers(second) == numbers(whole)
    assert second.clipping_is_broken == whole.clipping_is_broken
    assert entries_of(second, tmp_path / "parts") == entries_of(whole, tmp_path / "whole")


def test_a_state_is_a_copy_that_later_steps_leave_alone() -> None:
    made = recorder()
    steps = seen(30)
    for step in steps[:20]:
        made.take(step)
    state = made.state()
    before = repr(state)
    for step in steps[20:]:
        made.take(step)
    assert repr(state) == before
    again = recorder()
    again.load(state)
    for step in steps[20:]:
        again.take(step)
    assert repr(state) == before
    assert numbers(again) == numbers(made)


def test_a_run_that_goes_on_has_the_significance_that_is_asked_for_now() -> None:
    made = recorder(significance=1e-3)
    for step in seen(10):
        made.take(step)
    again = recorder(significance=0.05)
    again.load(made.state())
    assert again.monitor.significance == 0.05


def test_a_state_of_another_version_is_an_error() -> None:
    made = recorder()
    state = made.state()
    state["reducer"]["object"] = "lightning_audit.checks.probes:Gone"
    with pytest.raises(ValueError, match="resume with the version that wrote it"):
        recorder().load(state)
