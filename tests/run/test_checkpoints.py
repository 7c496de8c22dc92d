"""A training that stops and goes on from a checkpoint has the audit of one that never stopped."""

import copy
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from artefacts import differences, flat, public_state, read_checkpoints
from hand_written_support import CLAIM, HandWritten
from lightning_fabric.utilities.exceptions import MisconfigurationException
from neighbours import neighbours
from pytorch_lightning.callbacks import ModelCheckpoint
from resume_support import (
    EPOCHS,
    RESUMING,
    STEPS_PER_EPOCH,
    StepwiseModule,
    numbers,
    saver,
    train,
)
from stages import staged
from trained import cut, weights
from training_matrix import COMPARED, ROWS, Physical, Row, wide
from training_support import PrivateModule, assert_no_hooks_left, report_in, status, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.canaries import Mislabeled
from lightning_audit.checks.monitor import replay
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.run.optimizers import verified, with_checksum
from lightning_audit.testing.faulty import HalfNoise

pytestmark = RESUMING

# --- A checkpoint that was edited or damaged is refused; a long history takes no long time.

REFUSED = (
    r"^the audit cannot resume from this checkpoint: .*(take another|upgrade|resume|train again)"
)
KEY = "PrivacyAudit"
Place = tuple[Any, ...]


def checkpoint(directory: Path, module: Any = None, **options: Any) -> Path:
    """A real checkpoint in the middle of a training."""
    path = directory / "real.ckpt"
    trainer = trainer_for(directory, PrivacyAudit(seed=1, **options), max_steps=40)
    trainer.fit(module or StepwiseModule())
    trainer.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Loads a real checkpoint."""
    torch.set_num_threads(1)
    path = checkpoint(tmp_path_factory.mktemp("real"), examinations=0)
    return lambda: torch.load(path, weights_only=True)


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
        found += [value[None], value.double() + 1.0, value.tolist()]
    elif isinstance(value, int | float):
        found += [value + 1, math.inf, str(value)]
    elif isinstance(value, list | tuple):
        found += [[*value, 1]]
    elif isinstance(value, dict):
        found += [{**value, "more": 1}]
    return [other for other in found if not alike(other, value)]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.heavy
@pytest.mark.parametrize("game", ["gradient", "input", "by hand"])
@pytest.mark.heavy_one_in(6)
def test_every_value_of_a_checkpoint_that_is_changed_is_refused(tmp_path, game):
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
        # All kinds of damage at some places, one of them at each.
        kinds = damages(at(real, place))
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


def refused_by_fit(directory: Path, whole: dict[str, Any], state: Any) -> None:
    """Assert that a training from a checkpoint with another state of the audit is refused."""
    whole["callbacks"][KEY], path = state, directory / "damaged.ckpt"
    torch.save(whole, path)
    trainer = trainer_for(directory, PrivacyAudit(), max_steps=60)
    with pytest.raises(MisconfigurationException, match=REFUSED):
        trainer.fit(StepwiseModule(), ckpt_path=path, weights_only=True)


def text_for_tensors(state: dict[str, Any]) -> Any:
    state["session"]["recorder"]["monitor"] = "sums"
    return state


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: {key: value for key, value in state.items() if key != "session"},
        lambda state: {**state, "version": 2},
        lambda state: [1, 2],
        text_for_tensors,
    ],
)
def test_a_damaged_checkpoint_is_refused_by_fit_before_a_step(tmp_path, real, damage):
    whole = real()
    refused_by_fit(tmp_path, whole, damage(whole["callbacks"][KEY]))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("course",), {}),
        (("session", "recorder"), {"object": "lightning_audit.nowhere:Thing", "state": {}}),
        (("session", "recorder", "monitor"), "text"),
        (("session", "recorder", "monitor"), None),
    ],
)
def test_a_state_that_fits_no_training_is_refused_in_words_too(tmp_path, real, place, value):
    # As a program would write it that seals what it changed.
    whole = real()
    state = verified(whole["callbacks"][KEY])
    refused_by_fit(tmp_path, whole, with_checksum(put(copied(state, place), place, value)))


def stretched(state: Any, steps: int) -> Any:
    """The state as if each step had been taken many times over."""
    if isinstance(state, dict):
        return {key: stretched(item, steps) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return [stretched(item, steps) for item in state]
    return steps if type(state) is int and state == 40 else state


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("accountant", "stated"), [("rdp", {}), ("prv", {"claimed_epsilon": 8.0}), ("prv", {})]
)
def test_a_history_of_a_thousand_million_steps_loads_and_reports_in_bounded_time(
    tmp_path, accountant, stated
):
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


# --- A checkpoint holds nothing of the data but verdicts and powers of ten.

#: Steps of which an attacker has all checkpoints; least absolute rank correlation by which one of
#: their numbers follows the sizes of batches. Of 24 independent pairs one in 10^7 reaches it.
SEEN, FOLLOWS = 24, 0.85


class SmallParts(Physical):
    """Parts so small that one record more or less changes their number."""

    largest = 2


SPLIT = Row("Batches", "parts of two records", lambda: wide(SmallParts, batch_size=4))
OTHERS = [row for row in COMPARED if row is not ROWS[0]]


@pytest.mark.parametrize(
    ("row", "kind"),
    staged(
        quick=[(SPLIT, "removed")],
        heavy=[(ROWS[0], "replaced")],
        nightly=[(row, kind) for row in OTHERS for kind in ("removed", "replaced")],
    ),
    ids=lambda value: value.name if isinstance(value, Row) else value,
)
def test_checkpoints_of_neighbouring_trainings_with_the_same_releases_are_equal(
    tmp_path, row, kind
):
    one, other = neighbours(tmp_path, row, kind, steps=16, examinations=0)
    assert len(one.checkpoints) == 5
    assert all(len(public_state(state)) > 100 for state in one.checkpoints)
    assert differences(one, other) == []


@pytest.mark.parametrize(
    ("row", "kind"),
    staged(
        heavy=[(ROWS[0], "removed")],
        nightly=[(row, kind) for row in [*OTHERS, SPLIT] for kind in ("removed", "replaced")],
    ),
    ids=lambda value: value.name if isinstance(value, Row) else value,
)
def test_neighbouring_trainings_that_stop_and_resume_leave_equal_artefacts(tmp_path, row, kind):
    one, other = neighbours(tmp_path, row, kind, steps=16, resumes=True, examinations=1)
    assert any("resumed once" in note for note in one.report["notes"])
    assert differences(one, other) == []


# ------------------------------------------------------------------ all checkpoints of a training


class _Sizes(pl.Callback):
    """Notes how many records each batch has."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.sizes.append(len(batch[0]))


def finite_numbers(state: dict[str, Any]) -> dict[str, float]:
    """Every finite number of a checkpoint by its place, those of lists one by one."""
    found: dict[str, float] = {}
    for place, value in flat(state).items():
        for at, one in np.ndenumerate(np.asarray(value, dtype=object)):
            if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one):
                found[f"{place}{list(at)}"] = float(one)
    return found


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's; 0 where one of them is constant."""
    a, b = (np.argsort(np.argsort(x, kind="stable")) for x in (one, other))
    if len(set(one)) < 3 or len(set(other)) < 3:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def following(held: list[dict[str, float]], counted: list[float]) -> set[str]:
    """Places of checkpoints of successive steps whose numbers follow the sizes of batches."""
    found = set()
    for place in set(held[0]).intersection(*held[1:]):
        now = [one[place] for one in held]
        totals = [value * number for number, value in enumerate(now, 1)]
        # A sum over steps changes by its last term, and so does a mean times their number.
        changes = [[b - a for a, b in zip([0.0, *x], x, strict=False)] for x in (now, totals)]
        if max(abs(rank_correlation(x, counted)) for x in (now, *changes)) >= FOLLOWS:
            found.add(place)
    return found


@pytest.mark.heavy
def test_no_number_of_successive_checkpoints_follows_the_sizes_of_batches(tmp_path):
    sizes, folder = _Sizes(), tmp_path / "checkpoints"
    each = {"auto_insert_metric_name": False, "save_top_k": -1, "every_n_train_steps": 1}
    saves = ModelCheckpoint(folder, "{step:04d}", **each)
    callbacks = (sizes, PrivacyAudit(seed=1, examinations=0), saves)
    trainer = trainer_for(tmp_path, *callbacks, enable_checkpointing=True, max_steps=SEEN)
    trainer.fit(PrivateModule())
    held = [finite_numbers(state) for state in read_checkpoints(folder)]
    counted = [float(size) for size in sizes.sizes]
    assert len(held) == len(counted) == SEEN
    assert following(held, counted) == set()
    # What would be found: a sum and a mean of logarithms.
    logs = np.cumsum(np.log(np.array(counted) + 1.0))
    planted = [{"sum": t, "mean": t / n} for n, t in enumerate(logs.tolist(), 1)]
    assert following(planted, counted) == {"sum", "mean"}


# --- A training that stops and goes on from a checkpoint has the audit of one that never stopped.


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Folder and module of a training that never stopped, with its whole report."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder, PrivacyAudit(seed=3, examinations=0, bounds="all"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The checkpoint of step 40 of a training that broke off."""
    torch.set_num_threads(1)
    audit = PrivacyAudit(seed=3, examinations=0, bounds=[])
    return cut(tmp_path_factory.mktemp("stopped"), audit, 45, 40)


@pytest.mark.whole_report
@pytest.mark.parametrize(
    ("kept", "stopped_at"),
    staged(quick=[(32, 45)], heavy=[(40, 47)], nightly=[(64, 64), (20, 20), (70, 95)]),
)
def test_a_resumed_run_reports_what_the_uninterrupted_one_reports(
    tmp_path, uninterrupted, kept, stopped_at
):
    whole, one = uninterrupted
    broken = tmp_path / "broken"
    ckpt = cut(broken, PrivacyAudit(seed=3, examinations=0), stopped_at, kept)
    # Another seed: the checkpoint's is taken.
    other = train(
        broken,
        PrivacyAudit(seed=4, examinations=0),
        saver(tmp_path / "x", epoch_end=True),
        ckpt=ckpt,
    )
    assert numbers(report_in(broken)) == numbers(report_in(whole))
    assert torch.equal(weights(one), weights(other))
    for name in ("observations.bin", "report.json", "observations.npz"):
        assert (broken / "audit" / name).exists()
    header, entries = read_observations(broken / "audit" / RECORD_NAME)
    _, expected = read_observations(whole / "audit" / RECORD_NAME)
    assert entries.tobytes() == expected.tobytes()
    assert entries["step"].tolist() == list(range(STEPS_PER_EPOCH * EPOCHS))
    assert sum(steps for *_, steps in other.engine.accountant.history) == len(entries)
    # The record gives the numbers again.
    results = replay(header, entries, 1e-3).results()
    again = {c.name: c.log_e_value for c in results if c.log_e_value is not None}
    report = report_in(broken)
    told = {c.name: c.log_e_value for c in report.checks if c.name in again}
    assert told == pytest.approx(again, rel=1e-12)
    assert [row["epoch"] for row in report.epochs] == [0, 1, 2]
    assert_no_hooks_left(other)


def test_a_violation_is_found_across_the_stop(tmp_path):
    half = {"optimizer_class": HalfNoise}
    ckpt = cut(tmp_path, PrivacyAudit(on_violation="warn"), 12, 10, **half)
    with pytest.raises(PrivacyViolation, match="noise"):
        train(tmp_path, PrivacyAudit(), ckpt=ckpt, **half)
    assert report_in(tmp_path).verdict.kind == "mechanism"


def test_a_history_that_the_user_restored_is_left_alone(tmp_path):
    class Restores(StepwiseModule):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["accountant"] = [list(p) for p in self.engine.accountant.history]

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.engine.accountant.history = [tuple(p) for p in checkpoint["accountant"]]

    ckpt = cut(tmp_path, PrivacyAudit(), 32, 32, module=Restores)
    module = train(tmp_path, PrivacyAudit(), ckpt=ckpt, module=Restores)
    assert sum(steps for *_, steps in module.engine.accountant.history) == 96


def test_a_checkpoint_saved_after_the_training_goes_on_too(tmp_path):
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=1)
    trainer.fit(StepwiseModule())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    train(tmp_path, PrivacyAudit(), ckpt=tmp_path / "last.ckpt")
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (96, "PASS")
    # The report of the first part is out of a gate's way, its record is in the new one.
    assert AuditReport.load(tmp_path / "audit" / "previous-1" / "report.json").steps == 32
    assert not (tmp_path / "audit" / "previous-1" / RECORD_NAME).exists()


def test_without_the_record_the_checks_go_on_and_the_report_says_so(tmp_path, stopped):
    train(tmp_path, PrivacyAudit(), ckpt=stopped)
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (96, "PASS")
    assert any("the record of the first 40 steps is not in" in note for note in report.notes)
    _, entries = read_observations(tmp_path / "audit" / RECORD_NAME)
    assert entries["step"].tolist() == list(range(40, 96))


def test_a_checkpoint_without_the_audit_is_inconclusive(tmp_path):
    trainer = trainer_for(tmp_path, max_epochs=1)
    trainer.fit(StepwiseModule())
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    train(tmp_path, PrivacyAudit(), ckpt=tmp_path / "plain.ckpt")
    verdict = report_in(tmp_path).verdict
    assert verdict.outcome == "INCONCLUSIVE"
    assert "from a checkpoint without this audit's state" in verdict.pass_blockers[0]


def test_other_canaries_than_the_checkpoints_are_refused(tmp_path, stopped):
    with pytest.raises(MisconfigurationException, match="resume with the same canaries"):
        train(tmp_path, PrivacyAudit(num_canaries=3), ckpt=stopped)


def test_a_newer_checkpoint_says_to_upgrade():
    with pytest.raises(MisconfigurationException, match=r"version 99.* upgrade lightning-audit"):
        PrivacyAudit().load_state_dict({"version": 99})


class SeededAndSaved(StepwiseModule):
    """Noise of a seeded generator, whose state is in the checkpoint."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(generator=torch.Generator().manual_seed(5), **kwargs)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["noise"] = self.generator.get_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.generator.set_state(checkpoint["noise"])


def test_restored_noise_is_no_violation(tmp_path):
    """Noise that starts again is the known fault ``noise_repeated_on_resume``."""
    ckpt = cut(tmp_path, PrivacyAudit(), 45, 40, module=SeededAndSaved)
    train(tmp_path, PrivacyAudit(), ckpt=ckpt, module=SeededAndSaved)
    report = report_in(tmp_path)
    assert (status(report, "reuse.resume"), report.verdict.outcome) == ("ok", "PASS")
