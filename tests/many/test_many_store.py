"""What another process reads of a store while a driver writes it."""

import contextlib
import hashlib
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from places import REPOSITORY
from scipy import stats
from stages import staged

from lightning_audit.many.looks import GrowingLook, guess_coins, look_of
from lightning_audit.many.store import (
    DATABASE,
    STATUS,
    Outcome,
    Plan,
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


CLAIM = "a claim", 0.4, -math.log(1e-3)
READER = (
    "import sys, json\nfrom dataclasses import asdict\nfrom pathlib import Path\n"
    "from lightning_audit.many.store import status_of\n"
    "for line in sys.stdin:\n"
    "    print(json.dumps(asdict(status_of(Path(sys.argv[1])))), flush=True)\n"
)
#: Adds a row a transaction, with the score 1 if the canary is in, until its input ends.
WRITER = (
    "import sys, threading\nsys.path.append('../support')\n"
    f"from {Path(__file__).stem} import PLAN, call, row\n"
    "from lightning_audit.many import store as many\nmany._BETWEEN_STATUSES = 0.0\n"
    "store = many.TrainingStore(sys.argv[1], PLAN, {})\nstore.say(*call())\n"
    "threading.Thread(target=lambda: (sys.stdin.read(), stop.append(1)), daemon=True).start()\n"
    "stop = []\nnumber = 0\nprint('begun', flush=True)\n"
    "while not stop:\n"
    "    store.add([row(number)])\n    number += 1\n"
    "print(number, flush=True)\nstore.close()\n"
)


def row(number, score=None, error="", plan=PLAN):
    """A row of one score in each canary, by default that of the first coin."""
    coin = plan.training(number).coins[0]
    scores = (float(coin) if score is None else score,) * plan.canaries
    return Outcome(number, None if error else scores, None if error else 0.25, error)


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


def call():
    return CLAIM[0], GrowingLook(*CLAIM[1:])


def filled(folder, rows):
    store = TrainingStore(folder, PLAN, {})
    store.say(*call())
    store.add(rows)
    return store


def test_counts_times_and_evidence_of_a_store_that_a_driver_holds(tmp_path):
    rows = [row(n, error="ValueError: row 17 is secret" if n == 5 else "") for n in range(40)]
    store = filled(tmp_path, [])
    store.lost(5, "a killed process")
    store.add(rows[:1])
    store._told = -math.inf  # a second ago
    store.add(rows[1:])
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


@pytest.mark.parametrize("missing", [99, 21, 25, 0])
def test_evidence_is_that_of_the_looks(tmp_path, missing):
    store = filled(tmp_path, [row(n) for n in range(20) if n != missing])
    store.add([row(n) for n in range(20, 30) if n != missing])
    prefix = store.prefix()
    store.close()
    found = status_of(tmp_path).evidence
    if not missing:
        assert found is None
        return
    seen = look_of(guess_coins(prefix.scores, prefix.coins, prefix.failed), *CLAIM[1:])
    assert found.log10_e == pytest.approx(seen.log_e / math.log(10))
    assert (found.errors, found.guesses) == (seen.errors, seen.guesses)


def test_a_store_that_is_opened_again_knows_its_counts_and_last_error(tmp_path):
    store = filled(tmp_path, [row(n, error="KeyError: 3" if n == 4 else "") for n in range(10)])
    store.close()
    before = status_of(tmp_path)
    TrainingStore(tmp_path, PLAN, {}).close()
    assert status_of(tmp_path) == replace(
        before, evidence=None, seconds_between=None, seconds_left=None
    )


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"planned": "x"}', "\x00"])
def test_a_damaged_or_absent_status_is_one_sentence(tmp_path, content):
    filled(tmp_path, [row(0)]).close()
    (tmp_path / STATUS).write_text(content)
    with pytest.raises(StoreError, match=r"the status in .* cannot be read \(.+\); the same "):
        status_of(tmp_path)
    (tmp_path / STATUS).unlink()
    with pytest.raises(StoreError, match=r"has no status\.json, which releases before did not"):
        status_of(tmp_path)


@pytest.mark.parametrize(
    ("error", "named"),
    [("MemoryError: 3 GB for row 8", "MemoryError"), ("what a strange text", "unknown")],
)
def test_of_the_last_error_its_type_is_read_and_no_text(tmp_path, error, named):
    store = filled(tmp_path, [row(0)])
    store.lost(1, error)
    store.close()
    assert status_of(tmp_path).last_error == named


@pytest.mark.nightly
def test_each_reading_of_a_store_that_is_written_is_of_one_time(tmp_path):
    ended = []
    with started(WRITER, tmp_path) as writer, started(READER, tmp_path) as reader:
        assert writer.stdout.readline() == "begun\n"
        for _ in range(30):
            reader.stdin.write("\n")
            reader.stdin.flush()
            status = json.loads(reader.stdout.readline())
            ended.append(status["done"])
            if status["evidence"]:
                assert status["evidence"]["guesses"] + 20 >= status["done"]
        written, _ = writer.communicate("", timeout=60)
    assert ended == sorted(ended)
    assert 0 <= ended[0] < ended[-1] <= int(written)
    assert status_of(tmp_path).done == int(written)


def test_what_is_no_store_is_one_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"holds no store: there is no trainings\.sqlite"):
        status_of(tmp_path / "absent")


# --- The store keeps each row once, and refuses in one sentence what it cannot keep.
def opened(folder, identity=IDENTITY, plan=PLAN):
    return contextlib.closing(TrainingStore(folder, plan, identity))


def rows_of(folder, plan=PLAN):
    with opened(folder, plan=plan) as store:
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
        assert (store.prefix().scores[2:].tolist(), prefix.scores.shape) == ([0.6, 0.7], (2,))
    with opened(tmp_path, plan=Plan(0, 3, 2)) as store:  # of a shorter plan
        assert (store.finished, len(store.prefix().scores)) == (4, 3)


def test_scores_of_many_canaries_are_read_as_they_were_written(tmp_path):
    plan = Plan(0, 4, 2, canaries=3)
    with opened(tmp_path, plan=plan) as store:
        store.add([row(0, 0.25, plan=plan), row(1, error="lost", plan=plan)])
        assert store.prefix().scores.shape == store.prefix().coins.shape == (2, 3)
    assert rows_of(tmp_path, plan)[0].scores == (0.25, 0.25, 0.25)
    with pytest.raises(StoreError, match="holds trainings of 3 canaries"):
        rows_of(tmp_path)


@pytest.mark.parametrize(
    ("begun", "now"), [(IDENTITY, {"identity": "a1"}), ({"identity": "a1"}, IDENTITY)]
)
def test_a_store_has_exactly_the_parts_with_which_it_was_begun(tmp_path, begun, now):
    with opened(tmp_path, begun) as store:
        store.add([row(0)])
    for other in (now, {}, {**begun, **now}):
        with pytest.raises(StoreError, match="holds trainings with another "):
            opened(tmp_path, other)
    with opened(tmp_path, begun) as store:
        assert store.finished == 1


#: Tables of layout 2.
EARLIER = """
create table audit (key text primary key, value text not null) without rowid;
create table training (number integer primary key, coins text not null, seed integer not null);
insert into audit values ('schema', '2'); insert into training values (0, '1', 7);
"""


def test_a_store_of_an_earlier_layout_is_refused_in_a_sentence(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.executescript(EARLIER)
    refused = r"another layout than this release reads, 4; finish the audit with the release that"
    with pytest.raises(StoreError, match=refused):
        opened(tmp_path)


def test_a_store_without_trainings_takes_another_function_and_then_keeps_its_plan(tmp_path):
    other = {**IDENTITY, "train": "c3"}
    with opened(tmp_path):
        pass
    with opened(tmp_path, other, Plan(3, 10, 7)) as store:
        store.add([row(0, plan=store.plan)])
    with opened(tmp_path, other, Plan(4, 30, 9)) as store:
        assert (store.plan, store.planned) == (Plan(3, 30, 7), 10)


def test_a_second_driver_is_refused_in_a_sentence(tmp_path):
    script = (
        "import sys; from lightning_audit.many.store import *\n"
        "try: TrainingStore(sys.argv[1], Plan(0, 9, 2), {})\n"
        "except StoreError as error: print(error)"
    )
    with opened(tmp_path) as store:
        store.add([row(0)])
        with pytest.raises(StoreError, match="is in use by another audit"):
            opened(tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
        )
    assert re.fullmatch(
        r".* is in use by another audit; wait for its end, or give store= another folder\.\n",
        done.stdout,
    )


def test_a_folder_that_cannot_be_made_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be written \(Not a directory\)"):
        opened(tmp_path / "file" / "store")


def test_losses_are_kept_and_errors_cannot_act_on_a_terminal(tmp_path):
    with opened(tmp_path) as store:
        for number in (4, 5, 4):
            store.lost(number, "ProcessExpired: \x1b[2K")
        store.add([row(0, error="x" * 9999)])
        told = {text for (text,) in store._db.execute("select error from loss")}
        assert told == {"ProcessExpired: \\x1b[2K"}
    with opened(tmp_path) as store:
        assert store.losses == {4: 2, 5: 1}
        assert len(store.rows()[0].error) == 500


def test_the_database_is_synchronous_and_nothing_derived_is_in_it(tmp_path):
    with opened(tmp_path) as store:
        assert store._db.execute("pragma synchronous").fetchone() == (2,)  # FULL
        assert store._db.execute("pragma journal_mode").fetchone() == ("wal",)
        store.add([row(0)])
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
    assert {"fact", "training", "loss"} == {t for t in tables if not t.startswith("sqlite")}


def test_scores_keep_every_digit(tmp_path):
    values = np.random.default_rng(0).normal(size=10) * 1e-300
    with opened(tmp_path) as store:
        store.add([row(n, float(value)) for n, value in enumerate(values)])
    assert [r.scores[0] for r in rows_of(tmp_path)] == values.tolist()


# --- Whatever happens to the file of a store, it is refused in one sentence or read as it was.
SENTENCE = re.compile(
    r"the store .* cannot be read \(.+\); restore trainings.sqlite from a copy, or give .*|"
    r".* has another layout than this release reads, 4; .*"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a store with failures and a lost training, and what is read of it."""
    folder = tmp_path_factory.mktemp("whole")
    with opened(folder) as store:
        store.lost(2, "lost")
        store.add([row(n, n / 7, error="ValueError: x" if n % 9 == 5 else "") for n in range(60)])
    return (folder / DATABASE).read_bytes(), read(folder)


def read(folder):
    """Everything that is read of a store; None instead if it is refused in a sentence."""
    try:
        with opened(folder) as store:
            return store.rows(), store.plan, store.planned, dict(store.losses)
    except StoreError as error:
        return None if SENTENCE.fullmatch(str(error)) else error


def is_refused(folder, content, whole):
    """Whether a damaged store is refused; what is read must be what was written."""
    for path in folder.glob(f"{DATABASE}*"):
        path.unlink()
    (folder / DATABASE).write_bytes(content)
    found = read(folder)
    assert found is None or found == whole
    return found is None


@pytest.mark.parametrize("flips", staged(quick=[40], nightly=[4000]))
def test_no_flipped_bit_is_silent(tmp_path, whole, flips):
    content, facts = whole
    assert not is_refused(tmp_path, content, facts)
    rng = np.random.default_rng(0)
    refused = 0
    for bit in rng.integers(8 * len(content), size=flips):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        refused += is_refused(tmp_path, bytes(damaged), facts)
    assert 0.1 * flips < refused < flips  # the others are in unused parts of pages


@pytest.mark.parametrize("keep", [0, 1, 15, 100, 1000, 4096, 5000, 8192, -4096, -1])
def test_a_store_that_was_cut_or_overwritten_is_refused(tmp_path, whole, keep):
    content, facts = whole
    part = content[:keep]
    assert is_refused(tmp_path, part, facts)
    for filler in (b"\xff", b"\0", b"not a database"):
        filled_up = (part + filler * len(content))[: len(content)]
        is_refused(tmp_path, filled_up, facts)
        assert keep == -1 or read(tmp_path) is None


VALUES = ("'x'", "x'00'", "-1", "1e999", "zeroblob(8)", "ended + 1", "cast(digest as text)")
COLUMNS = ("scores", "seconds", "error", "ended", "digest")
FACTS = ("plan", "identity", "count")
OF_7 = "where number = 7"
EDITS = [
    *(f"update training set {column} = {value} {OF_7}" for column in COLUMNS for value in VALUES),
    *(f"delete from fact where key = '{key}'" for key in FACTS),
    *(
        f"update fact set value = {value} where key = '{key}'"
        for key in FACTS
        for value in ("'[]'", "'{'", "7", "'[0, 0]'")
    ),
    "update fact set value = replace(value, '\"seed\": 0', '\"seed\": 1') where key = 'plan'",
    "update fact set value = replace(value, 'a1', 'b1') where key = 'identity'",
    f"update training set scores = (select scores from training where number = 8) {OF_7}",
    f"update training set number = 1000 {OF_7}",
    f"update training set number = -1 {OF_7}",
    f"delete from training {OF_7}",
    "delete from training",
    "delete from loss",
    "insert into loss select place + 1, number, error, ended, digest from loss",
    "insert into training select 60, scores, seconds, error, ended, digest from training limit 1",
    "drop table loss",
    "drop table fact",
    "drop table training",
    "create table more (number integer)",
    "create view more as select 1",
    "create trigger more after insert on training begin delete from loss; end",
    "create index more on training (seconds)",
    "alter table training add column more",
    "alter table training rename column ended to over",
    "pragma user_version = 3",
]


@pytest.mark.parametrize("edit", EDITS)
def test_a_store_that_was_edited_is_refused(tmp_path, whole, edit):
    (tmp_path / DATABASE).write_bytes(whole[0])
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        db.execute(edit)
    assert read(tmp_path) is None


def test_coins_that_fit_the_scores_cannot_be_edited_in(tmp_path, whole):
    """Coins are not stored: they follow from a seed, to which the digest of each row belongs."""
    (tmp_path / DATABASE).write_bytes(whole[0])
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        (text,) = db.execute("select value from fact where key = 'plan'").fetchone()
        plan = json.dumps({**json.loads(text), "seed": 4})  # under which others fit
        db.execute(
            "update fact set value = ?, digest = ? where key = 'plan'",
            (plan, digest_of_fact("plan", plan)),
        )
    assert read(tmp_path) is None


def digest_of_fact(key, text):
    return hashlib.blake2b(repr((key, text)).encode(), digest_size=16).digest()


@pytest.mark.skipif(sys.platform == "win32", reason="kinds of files")
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_refused(tmp_path, make):
    make(tmp_path / DATABASE)
    assert read(tmp_path) is None


def test_rows_of_another_store_are_refused(tmp_path, whole):
    with opened(tmp_path, plan=Plan(1, 60, 2)) as store:
        store.add([row(n) for n in range(60)])
    (tmp_path / "whole").write_bytes(whole[0])
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        db.execute("attach ? as other", (str(tmp_path / "whole"),))
        db.execute("delete from training")
        db.execute("insert into training select * from other.training")
    assert read(tmp_path) is None
