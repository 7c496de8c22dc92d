"""What another process reads of a store while a driver writes it."""

import contextlib
import json
import math
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import REPOSITORY
from scipy import stats

from lightning_audit.many.store import (
    ARRAYS,
    DATABASE,
    Plan,
    Row,
    StoreError,
    TrainingStore,
    block_size,
    status_of,
)

PLAN = Plan(0, 100_000, 2)
IDENTITY = {"train": "a1", "dataset": "b2"}


# --- Coins are fair and each training's own; seeds are distinct; blocks are part of the plan.
def test_a_plan_depends_on_its_seed_alone():
    assert Plan(3, 10, 2).training(7) == Plan(3, 1000, 50).training(7)
    one, other = Plan(3, 64, 2), Plan(4, 64, 2)
    assert any(one.training(n).coins != other.training(n).coins for n in range(64))


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567890])
def test_coins_are_fair_and_a_coin_says_nothing_about_the_next(seed):
    plan = Plan(seed, 4000, 20, canaries=2)
    coins = np.array([plan.training(n).coins for n in range(4000)])
    assert stats.binomtest(int(coins.sum()), coins.size).pvalue > 1e-4
    for one, other in ((coins[:-1, 0], coins[1:, 0]), (coins[:, 0], coins[:, 1])):
        assert stats.binomtest(int((one == other).sum()), one.size).pvalue > 1e-4


def test_coins_do_not_follow_from_the_seeds_of_trainings():
    trainings = [Plan(0, 4000, 20).training(n) for n in range(4000)]
    for bit in range(32):
        same = sum((t.seed >> bit & 1) == t.coins[0] for t in trainings)
        assert stats.binomtest(same, 4000).pvalue > 1e-5


def test_no_two_trainings_have_one_seed_and_every_library_takes_it():
    plan = Plan(5, 10**6, 20)
    # Numbers of one high half, and of many high halves.
    numbers = [*range(70_000), *range(70_000, 2**32, 2**17)]
    seeds = {plan._seed(number) for number in numbers}
    assert len(seeds) == len(numbers)
    assert 0 <= min(seeds) < max(seeds) < 2**32


@pytest.mark.parametrize(
    ("trainings", "size"), [(2, 1), (39, 1), (100, 5), (1000, 20), (10**5, 20)]
)
def test_a_block_is_at_most_a_twentieth_of_the_plan(trainings, size):
    assert block_size(trainings) == size


def test_blocks_hold_each_training_once():
    plan = Plan(0, 11, 4)
    assert [[t.number for t in block] for block in plan.blocks()] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]


CALL = {"trainings": 100_000, "claim": "a claim", "least_error": 0.4, "significance": 1e-3}
CALL |= {"begun": 0.0}
READER = (
    "import sys, json\nfrom dataclasses import asdict\nfrom pathlib import Path\n"
    "from lightning_audit.many.store import status_of\n"
    "for line in sys.stdin:\n"
    "    print(json.dumps(asdict(status_of(Path(sys.argv[1])))), flush=True)\n"
)
#: Adds a row a transaction, with the score 1 if the canary is in, until its input ends.
WRITER = (
    "import sys, threading\nsys.path.append('../support')\n"
    f"from {Path(__file__).stem} import CALL, row\n"
    "from lightning_audit.many.store import TrainingStore\n"
    "store = TrainingStore(sys.argv[1], {}, 1)\nstore.fixed('planned', 100_000)\nstore.say(CALL)\n"
    "threading.Thread(target=lambda: (sys.stdin.read(), stop.append(1)), daemon=True).start()\n"
    "stop = []\nnumber = 0\nprint('begun', flush=True)\n"
    "while not stop:\n"
    "    store.add([row(number)])\n    number += 1\n"
    "    if number % 40 == 0: store._db.execute('pragma wal_checkpoint(restart)')\n"
    "print(number, flush=True)\nstore.close()\n"
)


def row(number, score=None, error="", plan=PLAN):
    """A row of one score in each canary, by default that of the first coin."""
    training = plan.training(number)
    scores = (float(training.coins[0]) if score is None else score,) * plan.canaries
    return Row(training, None if error else scores, None if error else 0.25, error, 1 + bool(error))


@contextlib.contextmanager
def started(script, folder):
    command, pipe = [sys.executable, "-c", script, str(folder)], subprocess.PIPE
    cwd = REPOSITORY / "tests" / "many"
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=cwd)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def filled(folder, rows, call=CALL):
    store = TrainingStore(folder, {}, 1)
    store.fixed("planned", 500)
    if call:
        store.say(call)
    store.add(rows)
    return store


def test_counts_times_and_evidence_of_a_store_that_a_driver_holds(tmp_path):
    rows = [row(n, error="ValueError: row 17 is secret" if n == 5 else "") for n in range(40)]
    store = filled(tmp_path, rows)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with started(READER, tmp_path) as reader:
        told, _ = reader.communicate("\n", timeout=60)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    store.close()
    status = json.loads(told)
    assert (status["planned"], status["done"], status["failed"]) == (100_000, 39, 1)
    assert status["started_again"] == 1
    assert status["in_use"] is (None if sys.platform == "win32" else True)
    assert status["training_seconds"] == 0.25
    assert status["seconds_left"] == pytest.approx(99_960 * status["seconds_between"])
    assert status["last_error"] == "ValueError"
    assert "secret" not in told
    seen = status["evidence"]
    assert seen["claim"] == "a claim"
    assert 1 <= seen["errors"] <= 2  # the failed training, and perhaps the first guess
    assert seen["guesses"] >= 30
    assert seen["log10_refuting"] == pytest.approx(3.0)
    assert seen["log10_e"] > 3.0
    assert status_of(tmp_path).in_use is (None if sys.platform == "win32" else False)


def test_evidence_is_that_of_the_looks(tmp_path):
    from lightning_audit.many.looks import guess_coins, look_of

    store = filled(tmp_path, [row(n) for n in range(30)])
    prefix = store.prefix()
    store.close()
    seen = look_of(guess_coins(prefix.scores, prefix.coins, prefix.failed), 0.4, -math.log(1e-3))
    found = status_of(tmp_path).evidence
    assert found.log10_e == pytest.approx(seen.log_e / math.log(10))
    assert (found.errors, found.guesses) == (seen.errors, seen.guesses)


def test_a_store_of_an_earlier_release_has_counts_and_no_evidence(tmp_path):
    filled(tmp_path, [row(0)], call=None).close()
    status = status_of(tmp_path)
    assert (status.planned, status.done, status.evidence) == (500, 1, None)
    assert status.seconds_left is None


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("MemoryError: 3 GB for row 8", "MemoryError"),
        ("KeyError", "KeyError"),
        ("did not end within 60 s", "time limit"),
        ("the score is nan", "score that is not finite"),
        ("what a strange text", "unknown"),
    ],
)
def test_of_the_last_error_its_type_is_read_and_no_text(tmp_path, error, named):
    store = filled(tmp_path, [row(0)])
    store.lost([1], error)
    store.close()
    assert status_of(tmp_path).last_error == named


@pytest.mark.heavy
def test_each_reading_of_a_store_that_is_written_is_of_one_time(tmp_path):
    """The log restarts every 40 rows: a torn copy has holes in the plan, or is malformed."""
    ended = []
    with started(WRITER, tmp_path) as writer, started(READER, tmp_path) as reader:
        assert writer.stdout.readline() == "begun\n"
        for _ in range(30):
            reader.stdin.write("\n")
            reader.stdin.flush()
            status = json.loads(reader.stdout.readline())
            ended.append(status["done"])
            if status["evidence"]:  # of all rows: the prefix has no hole
                assert status["evidence"]["guesses"] + 20 >= status["done"]
        written, _ = writer.communicate("", timeout=60)
    assert ended == sorted(ended)
    assert 0 <= ended[0] < ended[-1] <= int(written)
    assert status_of(tmp_path).done == int(written)


def test_what_is_no_store_or_damaged_is_one_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"holds no store: there is no trainings\.sqlite"):
        status_of(tmp_path / "absent")
    filled(tmp_path, [row(n) for n in range(30)]).close()
    whole = (tmp_path / DATABASE).read_bytes()
    for damaged in (b"not a database" * 100, b"", whole[:4096] + b"\xff" * (len(whole) - 4096)):
        (tmp_path / DATABASE).write_bytes(damaged)
        with pytest.raises(StoreError, match=r"cannot be read \(.+\); restore trainings.sqlite"):
            status_of(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        "update training set score = 'much'",
        "update training set seconds = 'long'",
        "update training set coins = 'x'",
        "update audit set value = '[]' where key = 'latest call'",
        "update audit set value = '{' where key = 'latest call'",
        "drop table attempt",
    ],
)
def test_a_value_of_another_type_is_damage(tmp_path, change):
    filled(tmp_path, [row(n) for n in range(30)]).close()
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        db.execute(change)
    with pytest.raises(StoreError, match="cannot be read"):
        status_of(tmp_path)


# --- The store keeps each row once, and refuses in one sentence what it cannot keep.
@contextlib.contextmanager
def opened(folder, identity=IDENTITY, canaries=1):
    store = TrainingStore(folder, identity, canaries)
    try:
        yield store
    finally:
        store.close()


def rows_of(folder, canaries=1):
    with opened(folder, {}, canaries) as store:
        return store.rows()


def test_rows_are_read_as_they_were_written(tmp_path):
    rows = [row(0, 0.1), row(3, -2.0), row(1, error="ValueError: x")]
    with opened(tmp_path) as store:
        store.add(rows)
        assert store.rows() == [rows[0], rows[2], rows[1]]
    assert rows_of(tmp_path) == [rows[0], rows[2], rows[1]]


def test_a_row_is_written_once(tmp_path):
    with opened(tmp_path) as store:
        store.add([row(0, 1.0)])
        store.add([row(0, 2.0), row(1, 3.0)])
        assert [r.scores for r in store.rows()] == [(1.0,), (3.0,)]
    assert [r.scores for r in rows_of(tmp_path)] == [(1.0,), (3.0,)]


def test_the_prefix_ends_before_the_first_training_that_has_not_ended(tmp_path):
    with opened(tmp_path) as store:
        store.add([row(0, 0.5), row(1, error="lost"), row(3, 0.7)])
        prefix = store.prefix()
        assert (prefix.failed.tolist(), prefix.scores[0]) == ([False, True], 0.5)
        assert math.isnan(prefix.scores[1])
        assert prefix.coins.tolist() == [bool(PLAN.training(n).coins[0]) for n in range(2)]
        store.add([row(2, 0.6)])
        assert (store.prefix().scores[2:].tolist(), len(store.prefix(3).scores)) == ([0.6, 0.7], 3)


def test_scores_of_many_canaries_are_in_files_that_are_there_before_their_row(tmp_path):
    plan = Plan(0, 4, 2, canaries=3)
    with opened(tmp_path, canaries=3) as store:
        store.add([row(0, 0.25, plan=plan), row(1, error="lost", plan=plan)])
        assert store.prefix().scores.shape == store.prefix().coins.shape == (2, 3)
    assert rows_of(tmp_path, 3)[0].scores == (0.25, 0.25, 0.25)
    (tmp_path / ARRAYS / "0000000.npz").unlink()
    with pytest.raises(StoreError, match=r"0000000.npz cannot be read .* restore the file"):
        rows_of(tmp_path, 3)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"dataset": "c3"}, "holds trainings with another dataset; give store= a new"),
        ({"train": "0", "dataset": "0"}, "another train, another dataset"),
    ],
)
def test_another_function_or_data_set_is_refused_by_name(tmp_path, other, named):
    with opened(tmp_path) as store:
        store.add([row(0)])
    with pytest.raises(StoreError, match=named), opened(tmp_path, {**IDENTITY, **other}):
        pass
    with opened(tmp_path) as store:
        assert store.finished == 1


def test_a_store_of_an_earlier_layout_is_refused_in_a_sentence(tmp_path):
    with opened(tmp_path) as store:
        store.add([row(0)])
        store._db.execute("update audit set value = '1' where key = 'schema'")
    refused = r"has layout '1', this release reads 2; finish the audit with the release that"
    with pytest.raises(StoreError, match=refused), opened(tmp_path):
        pass


def test_a_store_without_trainings_takes_another_function(tmp_path):
    with opened(tmp_path) as store:
        assert store.fixed("block", 5) == 5
    with opened(tmp_path, {**IDENTITY, "train": "c3"}) as store:
        assert store.fixed("block", 7) == 7
        store.add([row(0)])
    with opened(tmp_path, {**IDENTITY, "train": "c3"}) as store:
        assert store.fixed("block", 9) == 7


def test_a_second_driver_is_refused_in_a_sentence(tmp_path):
    script = (
        "import sys; from lightning_audit.many.store import *\n"
        "try: TrainingStore(sys.argv[1], {}, 1)\n"
        "except StoreError as error: print(error)"
    )
    with opened(tmp_path) as store:
        store.add([row(0)])
        with pytest.raises(StoreError, match="is in use by another audit"):
            TrainingStore(tmp_path, IDENTITY, 1)
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
        )
    assert re.fullmatch(
        r".* is in use by another audit; wait for its end, or give store= another folder\.\n",
        done.stdout,
    )


def test_a_file_that_is_no_store_is_refused_in_a_sentence(tmp_path):
    (tmp_path / DATABASE).write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match=r"cannot be written .*file is not a database"):
        TrainingStore(tmp_path, IDENTITY, 1)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be written \(Not a directory\)"):
        TrainingStore(tmp_path / "file" / "store", IDENTITY, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_an_array_that_does_not_fit_on_the_disk_leaves_no_row(tmp_path):
    import resource
    import signal

    plan = Plan(0, 4, 2, canaries=30_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with opened(tmp_path, canaries=30_000) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(StoreError, match=r"cannot be written \(File too large\).*again"):
                store.add([row(0, plan=plan)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert store.rows() == []
    assert [path.name for path in (tmp_path / ARRAYS).iterdir()] == []
    assert rows_of(tmp_path, 30_000) == []


def test_attempts_that_were_lost_are_kept_and_errors_cannot_act_on_a_terminal(tmp_path):
    with opened(tmp_path) as store:
        store.lost([4, 5], "ProcessExpired: \x1b[2K")
        store.add([row(0, error="x" * 9999)])
        assert store.attempts() == [(n, "ProcessExpired: \\x1b[2K") for n in (4, 5)]
    assert len(rows_of(tmp_path)[0].error) == 500


def test_the_database_is_synchronous_and_nothing_derived_is_in_it(tmp_path):
    with opened(tmp_path) as store:
        assert store._db.execute("pragma synchronous").fetchone() == (2,)  # FULL
        assert store._db.execute("pragma journal_mode").fetchone() == ("wal",)
        store.add([row(0)])
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
    assert {"audit", "training", "attempt"} == {t for t in tables if not t.startswith("sqlite")}


def test_scores_keep_every_digit(tmp_path):
    values = np.random.default_rng(0).normal(size=10) * 1e-300
    with opened(tmp_path) as store:
        store.add([row(n, float(value)) for n, value in enumerate(values)])
    assert [r.scores[0] for r in rows_of(tmp_path)] == values.tolist()
