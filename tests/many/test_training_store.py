"""The store keeps each row once, and refuses in one sentence what it cannot keep."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from lightning_audit.many.store import ARRAYS, DATABASE, Plan, Row, StoreError, TrainingStore

IDENTITY = {"train": "a1", "dataset": "b2"}
PLAN = Plan(0, 10, 2)


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


def row(number, score=1.5, error="", plan=PLAN):
    scores = None if error else (score,) * plan.canaries
    return Row(plan.training(number), scores, 0.25, error, 2 if error else 1)


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
        assert prefix.failed.tolist() == [False, True]
        assert prefix.scores[0] == 0.5
        assert math.isnan(prefix.scores[1])
        assert prefix.coins.tolist() == [bool(PLAN.training(n).coins[0]) for n in range(2)]
        store.add([row(2, 0.6)])
        assert store.prefix().scores[2:].tolist() == [0.6, 0.7]
        assert len(store.prefix(3).scores) == 3


def test_scores_of_many_canaries_are_in_files_that_are_there_before_their_row(tmp_path):
    plan = Plan(0, 4, 2, canaries=3)
    with opened(tmp_path, canaries=3) as store:
        store.add([row(0, 0.25, plan=plan), row(1, error="lost", plan=plan)])
        assert store.prefix().scores.shape == store.prefix().coins.shape == (2, 3)
    assert rows_of(tmp_path, 3)[0].scores == (0.25, 0.25, 0.25)
    (tmp_path / ARRAYS / "0000000.npz").unlink()
    with pytest.raises(StoreError, match=r"0000000.npz cannot be read .* restore the file"):
        rows_of(tmp_path, 3)


def test_another_function_or_data_set_is_refused_by_name(tmp_path):
    with opened(tmp_path) as store:
        store.add([row(0)])
    with (
        pytest.raises(StoreError, match="holds trainings with another dataset; give store= a new"),
        opened(tmp_path, {**IDENTITY, "dataset": "c3"}),
    ):
        pass
    with (
        pytest.raises(StoreError, match="another train, another dataset"),
        opened(tmp_path, {"train": "0", "dataset": "0"}),
    ):
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
    with sqlite3.connect(tmp_path / DATABASE) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
    database.close()
    assert {"audit", "training", "attempt"} == {t for t in tables if not t.startswith("sqlite")}


def test_scores_keep_every_digit(tmp_path):
    values = np.random.default_rng(0).normal(size=10) * 1e-300
    with opened(tmp_path) as store:
        store.add([row(n, float(value)) for n, value in enumerate(values)])
    assert [r.scores[0] for r in rows_of(tmp_path)] == values.tolist()
