"""The driver stores each training once, whatever fails; what failed costs one training."""

import signal
import sys
import threading
import time
from concurrent.futures import Future

import pytest
from driven_trainings import drive, facts, quick, seeds_of

from lightning_audit._validate import BadArgument
from lightning_audit.many.driver import TrainingError
from lightning_audit.many.engines import FromExecutor
from lightning_audit.many.store import Plan, StoreError, TrainingStore

PLAN = Plan(0, 12, 3)
NUMBERS = seeds_of(PLAN)


class Wordless(Exception):
    """An exception without a text."""

    def __str__(self):
        raise RuntimeError


class Threads:
    """An executor that runs each block in a thread, some of which never end."""

    def __init__(self, hanging=()):
        self.hanging = set(hanging)

    def submit(self, function, work, block):
        future = Future()
        future.set_running_or_notify_cancel()

        def run():
            if not self.hanging & {training.number for training in block}:
                future.set_result(function(work, block))

        threading.Thread(target=run, daemon=True).start()
        return future


def test_a_run_continues_after_a_part_of_the_plan_and_stores_the_same(tmp_path):
    whole = drive(quick, tmp_path / "whole", 12)
    seen = []

    def interrupted(dataset, seed):
        seen.append(seed)
        if len(seen) == 8:
            signal.raise_signal(signal.SIGINT)
        return quick(dataset, seed)

    lines = []
    with pytest.raises(KeyboardInterrupt):
        drive(interrupted, tmp_path / "part", 12, line=lines.append)
    assert "6 of 12 trainings are stored" in lines[-1]
    assert facts(drive(quick, tmp_path / "part", 12)) == facts(whole)


def test_a_longer_plan_continues_a_shorter_one_and_a_stored_plan_runs_nothing(tmp_path):
    short, calls = drive(quick, tmp_path, 6), []

    def train(dataset, seed):
        calls.append(seed)
        return quick(dataset, seed)

    longer = drive(train, tmp_path, 12)
    assert (longer[:6], len(calls)) == (short, 6)
    assert drive(train, tmp_path, 12, on_failure="raise") == longer
    assert len(calls) == 6


@pytest.mark.parametrize(
    "error",
    [ValueError("no such thing"), SystemExit(0), KeyboardInterrupt(), GeneratorExit(), Wordless()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_training_raises_fails_it_at_once_and_alone(tmp_path, error):
    calls = []

    def train(dataset, seed):
        calls.append(NUMBERS[seed])
        if NUMBERS[seed] == 4:
            raise error
        return quick(dataset, seed)

    rows = drive(train, tmp_path, 12)
    assert [row.number for row in rows if row.scores is None] == [4]
    assert rows[4].error.startswith(type(error).__name__)
    assert sorted(calls) == list(range(12))  # a second attempt would be a second release


def test_ctrl_c_is_no_failure_even_if_the_training_hides_it(tmp_path):
    def train(dataset, seed):
        if NUMBERS[seed] == 4:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                sys.exit(1)  # as Lightning's Trainer does
        return quick(dataset, seed)

    with pytest.raises(KeyboardInterrupt):
        drive(train, tmp_path, 12)
    assert [row.number for row in drive(quick, tmp_path, 12) if row.error] == []


def fourth_fails(dataset, seed):
    if NUMBERS[seed] == 4:
        raise ValueError("no such thing")
    return quick(dataset, seed)


def test_on_failure_raise_names_the_training_and_keeps_the_others(tmp_path):
    with pytest.raises(TrainingError, match="training 4 failed: ValueError: no such thing"):
        drive(fourth_fails, tmp_path, 12, on_failure="raise")
    rows = drive(fourth_fails, tmp_path, 12, on_failure="raise")  # it is not trained again
    assert [row.number for row in rows if row.scores is None] == [4]


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, r"train returned None for training 0; return the model, or its score"),
        ([1.0, 2.0], r"train returned 2 scores for training 0 .* return one score in each"),
        ("good", r"LogitMargin takes a model and a record"),
    ],
)
def test_a_result_that_no_training_can_use_ends_the_audit_at_once(tmp_path, returned, sentence):
    calls = []
    with pytest.raises(TrainingError, match=sentence):
        drive(lambda data, seed: calls.append(seed) or returned, tmp_path, 1000)
    assert len(calls) <= 6  # two blocks


def test_a_score_that_is_no_number_fails_its_training_alone(tmp_path):
    rows = drive(
        lambda data, seed: float("nan") if NUMBERS[seed] == 2 else quick(data, seed), tmp_path, 12
    )
    assert [row.error for row in rows if row.scores is None] == ["NoScore: the score is nan"]


def test_a_training_without_a_usable_result_is_not_trained_again(tmp_path):
    def train(dataset, seed):
        return None if NUMBERS[seed] == 7 else quick(dataset, seed)

    with pytest.raises(TrainingError, match="train returned None for training 7"):
        drive(train, tmp_path, 12)
    assert [row.number for row in drive(quick, tmp_path, 12) if row.scores is None] == [7]


def test_trainings_that_all_fail_end_the_audit_and_leave_the_store_empty(tmp_path):
    def train(dataset, seed):
        raise FileNotFoundError("data.csv")

    match = r"all of the first 12 trainings failed; training 0: FileNotFoundError: data.csv"
    with pytest.raises(TrainingError, match=match):
        drive(train, tmp_path, 1000)
    with pytest.raises(TrainingError, match="all of the first 4 trainings failed"):
        drive(train, tmp_path, 4)
    assert drive(quick, tmp_path, 4)[0].error == ""


def test_a_look_sees_the_prefix_of_the_plan_and_stops_the_run(tmp_path):
    lengths = []

    def look(prefix):
        lengths.append(len(prefix.scores))
        return len(prefix.scores) >= 6

    rows = drive(quick, tmp_path, 300, look=look)
    assert lengths[-1] >= 6
    assert lengths == sorted(lengths)
    assert len(rows) <= 12


def test_a_block_that_cannot_be_ended_is_given_up_after_its_limit(tmp_path):
    start = time.monotonic()
    rows = drive(quick, tmp_path, 12, FromExecutor(Threads(hanging=[4]), workers=3), limit=0.2)
    assert time.monotonic() - start < 20
    failed = [row for row in rows if row.scores is None]
    assert [row.number for row in failed] == [4]
    assert failed[0].error == "TimeLimit: did not end within 0 s"


class AtOnce:
    """Trainings that are run at once, by a function of the data sets and seeds of a block."""

    def __init__(self, results):
        self.results, self.sizes = results, []

    def many(self, data_sets, seeds):
        self.sizes.append(len(seeds))
        return self.results(data_sets, seeds)


def test_trainings_at_once_get_whole_blocks_and_one_result_each(tmp_path):
    train = AtOnce(lambda *block: [quick(*pair) for pair in zip(*block, strict=True)])
    assert facts(drive(train, tmp_path / "many", 11)) == facts(drive(quick, tmp_path / "one", 11))
    assert train.sizes == [3, 3, 3, 2]


def test_trainings_at_once_that_give_too_few_results_end_the_audit(tmp_path):
    with pytest.raises(TrainingError, match=r"train.many returned 1 results for 3 trainings"):
        drive(AtOnce(lambda *block: [1.0]), tmp_path, 12)


def test_a_bad_argument_of_trainings_at_once_ends_the_audit_with_its_text(tmp_path):
    def refused(*block):
        raise BadArgument("steps=0 must be at least 1")

    train = AtOnce(refused)
    with pytest.raises(TrainingError, match=r"^steps=0 must be at least 1$"):
        drive(train, tmp_path, 48, block=12)  # a block of more trainings than ALL_FAILED
    assert len(train.sizes) <= 2  # of four: those that were open


def test_a_full_disk_ends_the_run_in_one_sentence_and_loses_no_row(tmp_path, monkeypatch):
    add = TrainingStore.add

    def full_after_six(store, rows):
        if store.finished >= 6:
            pages = store._db.execute("pragma page_count").fetchone()[0]
            store._db.execute(f"pragma max_page_count={pages}")
        add(store, [row.__class__(**{**row.__dict__, "error": "x" * 500}) for row in rows])

    monkeypatch.setattr(TrainingStore, "add", full_after_six)
    with pytest.raises(StoreError, match=r"disk is full.*free disk space.*\d trainings that are"):
        drive(quick, tmp_path, 300)
    monkeypatch.undo()
    rows = drive(quick, tmp_path, 12)
    assert [row.number for row in rows[:12]] == list(range(12))
