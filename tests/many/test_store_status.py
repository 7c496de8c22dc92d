"""What another process reads of a store while a driver writes it."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

from lightning_audit.many.store import DATABASE, Plan, Row, StoreError, TrainingStore, status_of

PLAN = Plan(0, 100_000, 2)
CALL = {
    "trainings": 100_000,
    "claim": "a claim",
    "least_error": 0.4,
    "significance": 1e-3,
    "begun": 0.0,
}
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


def row(number, error=""):
    training = PLAN.training(number)
    scores = None if error else (float(training.coins[0]),)
    return Row(training, scores, None if error else 0.25, error, 2 if error else 1)


@contextlib.contextmanager
def started(script, folder):
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY / "tests" / "many",
    )
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
    rows = [row(n, "ValueError: row 17 is secret" if n == 5 else "") for n in range(40)]
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
    between = status["seconds_between"]
    assert status["seconds_left"] == pytest.approx(99_960 * between)
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
    guesses = guess_coins(prefix.scores, prefix.coins, prefix.failed)
    seen = look_of(guesses, 0.4, -math.log(1e-3))
    found = status_of(tmp_path).evidence
    assert found is not None
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
    db = sqlite3.connect(tmp_path / DATABASE)
    db.execute(change)
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="cannot be read"):
        status_of(tmp_path)
