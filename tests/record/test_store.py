"""What is kept of a run: verdicts of earlier segments, snapshots of its parts, and its record."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_audit.checks.check import REGISTRY, Check, Evidence, Statistic
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.noise import NOISE, NOISE_ENTRIES
from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.checks.replay import COUPLING
from lightning_audit.checks.segments import EarlierSegments
from lightning_audit.record.report_directory import (
    ARCHIVE_NAME,
    FIGURE_NAME,
    PAGE_NAME,
    RECORD_NAME,
    REPORT_NAME,
    set_aside,
)
from lightning_audit.record.store import (
    FLUSH_EVERY,
    INJECTED,
    Kept,
    Observation,
    ObservationStore,
    RecordHeader,
    read_observations,
    restore,
    snapshot,
)
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.sequential import PredictableCentre

SIGNIFICANCE = 1e-3
LEVEL = -math.log(NOISE_ENTRIES.share * SIGNIFICANCE)


def entries(log_e: float, significance: float = SIGNIFICANCE, **numbers: float) -> CheckResult:
    """Result of `noise.entries` with a log e-value that the test was given at step 9."""
    test = Evidence(NOISE_ENTRIES.name, significance, NOISE_ENTRIES.share)
    if log_e >= 0.0:
        test.update(log_e, 9)
    return NOISE_ENTRIES.result(test, {"quiet": 2, "entries": 9, **numbers})


def resumed(*checks: CheckResult, significance: float = SIGNIFICANCE) -> EarlierSegments:
    """The segment behind one in which the checks of the run had these results."""
    state = EarlierSegments().state([list(checks)], [significance])
    after = EarlierSegments()
    after.load(json.loads(json.dumps(state)), 40)
    return after


def test_a_violation_of_an_earlier_segment_stays_with_two_digits_of_its_evidence():
    after = resumed(entries(LEVEL + 3.0, quietest=0.123456))
    (found,) = after.joined(-1, [entries(0.0)], SIGNIFICANCE)
    assert (found.status, found.message[:18]) == ("violated", "2 of the 9 entries")
    assert found.evidence["quietest"] == 0.12
    assert found.evidence["violated_at_step"] == 9
    (again,) = after.joined(-1, [entries(-1.0)], SIGNIFICANCE)
    assert again.status == "violated"
    assert [check.name for check in after.joined(-1, [], SIGNIFICANCE)] == [NOISE_ENTRIES.name]


def test_a_checkpoint_with_results_of_a_check_that_is_not_installed_is_refused(monkeypatch):
    outside = Check("made.up", wrong=lambda seen: False, private=True)
    with monkeypatch.context() as installed:
        installed.setitem(REGISTRY, outside.name, outside)
        state = EarlierSegments().state([[outside.not_run("nothing")]], [SIGNIFICANCE])
    with pytest.raises(
        ValueError, match=r"had other checks \(made\.up\); resume with the packages"
    ):
        EarlierSegments().load(state, 40)


def test_of_what_was_not_found_a_power_of_ten_is_left_and_no_number_below_it():
    after = resumed(entries(5.0, quietest=0.5))
    (found,) = after.joined(-1, [entries(-1.0)], SIGNIFICANCE)
    assert (found.status, found.log_e_value) == ("ok", pytest.approx(2 * math.log(10.0)))
    assert "quietest" not in found.evidence
    one, other = (
        EarlierSegments().state([[entries(log_e, quietest=q)]], [SIGNIFICANCE])
        for log_e, q in ((2.5, 0.1), (4.5, 0.7))
    )
    assert one == other


def test_a_check_of_releases_is_in_no_state():
    test = Evidence(NOISE.name, SIGNIFICANCE, NOISE.share)
    result = NOISE.result(test, {})
    assert resumed(result).joined(-1, [], SIGNIFICANCE) == []


def test_another_significance_judges_earlier_segments_by_their_powers_of_ten():
    after = resumed(entries(LEVEL - 2.0))
    (found,) = after.joined(-1, [entries(0.0, 0.5)], 0.5)
    assert found.status == "violated"
    assert "before step 41" in found.message
    assert found.evidence["violated_at_step"] == 40
    (kept,) = resumed(entries(LEVEL + 1.0)).joined(-1, [entries(0.0, 1e-60)], 1e-60)
    assert kept.status == "ok"


def test_a_check_without_e_value_keeps_what_it_found():
    wrong = COUPLING.judged({"replays": 1, "change": 0.5, "step": 3})
    fine = COUPLING.judged({"replays": 1, "change": None, "step": None})
    assert wrong.status == "violated"
    for now in (fine, COUPLING.not_run("not asked")):
        (found,) = resumed(wrong).joined(-1, [now], SIGNIFICANCE)
        assert found.status == "violated"
    (found,) = resumed(fine).joined(-1, [COUPLING.not_run("not asked")], SIGNIFICANCE)
    assert found.status == "ok"


def test_what_was_undecided_is_decided_again():
    unsure = entries(LEVEL + 1.0).__class__(
        NOISE_ENTRIES.name, "mechanism", "undecided", "not certain", log_e_value=LEVEL + 1.0,
        share=NOISE_ENTRIES.share, evidence={"violated_at_step": 9},
    )  # fmt: skip
    (found,) = resumed(unsure).joined(-1, [entries(0.0)], SIGNIFICANCE)
    assert found.status == "violated"


def test_segments_are_counted_in_every_test_that_restarts_and_in_the_note():
    after = resumed()
    tests = [REGISTRY[name].test(SIGNIFICANCE) for name in (NOISE.name, NOISE_ENTRIES.name)]
    after.number(tests)
    assert [test.segment for test in tests] == [0, 2]
    assert after.note.startswith("the training was resumed once")
    assert EarlierSegments().note == ""


class Part(Kept):
    KEPT: ClassVar[tuple[str, ...]] = ("count",)

    def __init__(self) -> None:
        self.count = 0
        self.private = 1.0


class Whole(Kept):
    KEPT: ClassVar[tuple[str, ...]] = ("past", "part", "names")

    def __init__(self) -> None:
        self.past: np.ndarray | None = None
        self.part = Part()
        self.names = ["a"]


def test_declared_attributes_come_back_and_no_others():
    one, other = Whole(), Whole()
    one.past, one.part.count, one.part.private = np.arange(3.0), 7, 5.0
    one.names.append("b")
    state = one.state()
    one.past[0] = 9.0
    one.names.append("c")
    part = other.part
    other.load(state)
    assert other.past is not None
    assert other.past.tolist() == [0.0, 1.0, 2.0]
    assert (other.part.count, other.part.private, other.names) == (7, 1.0, ["a", "b"])
    assert other.part is part
    assert "5.0" not in repr(state)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.tuples(st.integers(), st.text()), inner)
    ),
)


@settings(max_examples=30)
@given(plain)
def test_plain_values_come_back_equal(value):
    data = json.loads(json.dumps(snapshot(value)))
    assert restore(data) == value
    assert type(restore(data)) is type(value)


def test_arrays_and_numpy_numbers_come_back_equal_and_are_copies():
    array = np.arange(6.0).reshape(2, 3)
    back = restore(snapshot({"a": array, "b": np.float64(0.1), "c": np.int64(3)}))
    np.testing.assert_array_equal(back["a"], array)
    assert (back["b"], back["c"]) == (0.1, 3)
    back["a"][0, 0] = 7.0
    assert array[0, 0] == 0.0


def test_objects_go_on_where_they_stopped():
    centre = PredictableCentre((2,))
    centre.update(np.array([1.0, 2.0]))
    back = restore(snapshot(centre))
    for one in (centre, back):
        one.update(np.array([3.0, -1.0]))
    np.testing.assert_array_equal(back.value, centre.value)


def test_every_part_of_an_audit_can_be_kept_and_its_header_comes_back_equal():
    header = RecordHeader(("Dirac(a)",), ("a", "b"), (3, 4), 5)
    assert restore(snapshot(header)) == header
    snapshot(AuditMonitor(header, 1e-3))
    snapshot(WitnessReducer(Witnesses({0: np.arange(3), 1: np.arange(4)})))


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ([np.random.default_rng(0)], r"numpy\.random.*Generator"),
        ({"steps": Counter(a=1)}, r"collections\.Counter"),
    ],
)
def test_foreign_objects_and_what_would_come_back_as_another_type_are_refused(part, kind):
    with pytest.raises(TypeError, match=f"{kind} cannot be part of a snapshot"):
        snapshot(part)


def test_a_class_that_no_resume_would_find_is_refused(monkeypatch):
    class Local(Statistic):
        """A statistic whose class is defined in a function."""

    local = Check("a.local", each=True, reads="steps", statistic=Local)
    monkeypatch.setitem(REGISTRY, local.name, local)
    with pytest.raises(TypeError, match=r"Local cannot be part.*at the top of its module"):
        snapshot([local.new_statistic(HEADER, SIGNIFICANCE)])


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "lightning_audit.nothing:A", "lightning_audit:b"),
        "lightning_audit.record.store:Path",  # which the module only imports
    ],
)
def test_classes_of_other_packages_or_versions_are_refused(name):
    with pytest.raises(ValueError, match="resume with the version that wrote it"):
        restore({"object": name, "state": {}})
    with pytest.raises(ValueError, match=r"keys \['x'\] are no part of a snapshot"):
        restore({"x": 1})
    with pytest.raises(ValueError, match=r"the check 'made\.up', which no installed package"):
        restore({"check": "made.up"})


HEADER = RecordHeader(
    canaries=("Dirac(weight)", "Spread(2 tensors)"),
    tensors=("weight", "bias ä"),
    witnesses=(64, 3),
    lags=4,
)


def entries_of(count: int) -> np.ndarray:
    """Entries in which every byte of every column has something to lose."""
    rng = np.random.default_rng(1)
    made = np.zeros(count, dtype=HEADER.dtype)
    for name in HEADER.dtype.names or ():
        kind, shape = HEADER.dtype[name].base.kind, made[name].shape
        made[name] = rng.standard_normal(shape) if kind == "f" else rng.integers(0, 200, shape)
    made["step"] = np.arange(count)
    made["canaries"] = INJECTED
    made["sample_rate"][::2] = np.nan
    return made


def closed(store: ObservationStore | None, entries: np.ndarray, *, archive: bool = False) -> None:
    """Append entries to a store, and close it."""
    assert store is not None
    for entry in entries:
        store.append(Observation.of(entry))
    store.close(archive=archive)


def bytes_of(path: Path) -> bytes:
    """What the entries of a record hold."""
    return read_observations(path)[1].tobytes()


def written(directory: Path, count: int, run: str = "", *, archive: bool = False) -> Path:
    """A record of so many entries."""
    closed(ObservationStore(directory, HEADER, run), entries_of(count), archive=archive)
    return directory / RECORD_NAME


@pytest.mark.parametrize("count", [0, 1, 7])
def test_what_is_read_is_what_was_appended(tmp_path, count):
    header, read = read_observations(written(tmp_path, count))
    assert header == HEADER
    assert read.dtype == HEADER.dtype
    assert read.tobytes() == entries_of(count).tobytes()


@pytest.mark.parametrize(
    "changes", [{"coin_probability": 0.1, "game": "subsampled"}, {"canaries": ()}]
)
def test_another_header_is_kept_and_its_record_is_no_others(tmp_path, changes):
    header = dataclasses.replace(HEADER, **changes)
    closed(ObservationStore(tmp_path, header), np.zeros(1, dtype=header.dtype))
    read, entries = read_observations(tmp_path / RECORD_NAME)
    assert (read, len(entries)) == (header, 1)
    assert ObservationStore.resume(tmp_path, HEADER, "", 0) is None


def test_a_half_written_last_entry_is_left_out_wherever_it_is_cut(tmp_path):
    path = written(tmp_path, 3)
    data, size = path.read_bytes(), HEADER.dtype.itemsize
    for cut in range(1, size + 1):
        path.write_bytes(data[:-cut])
        assert bytes_of(path) == entries_of(3)[:2].tobytes()


def test_a_record_can_be_read_while_the_run_goes_on(tmp_path):
    store, path = ObservationStore(tmp_path, HEADER), tmp_path / RECORD_NAME
    assert len(read_observations(path)[1]) == 0
    for entry in entries_of(5):
        store.append(Observation.of(entry))
    store.flush()
    assert bytes_of(path) == entries_of(5).tobytes()
    store.close(archive=False)


FORMAT = b'{"format": "lightning-audit observations"'


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\n", b"step,epoch\n1,2\n", b"3\n", b"null\n", b'"text"\n', b"[1, 2]\n"),
        b"\xff\xfe\x00binary\n\x00",
        b'{"format": "another", "version": 1}\n',
        b'{"version": 1}\n',
        *(FORMAT + end for end in (b"", b', "version": 1}\n', b', "version": "1"}\n')),
    ],
    ids=lambda content: repr(content[:12] + content[-12:]),
)
def test_a_foreign_file_is_an_error_that_names_the_file_to_give(tmp_path, content):
    path = tmp_path / "foreign.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.bin.* is no record .* observations\.bin"):
        read_observations(path)


def test_a_record_whose_header_is_garbled_is_no_record(tmp_path):
    path = written(tmp_path, 1)
    line, _, entries = path.read_bytes().partition(b"\n")
    names = ("canaries", "tensors", "witnesses", "lags", "game", "version")
    garbled: list[tuple[str, Any]] = [(n, value) for n in names for value in (None, 1.5, {}, "ab")]
    garbled += [("canaries", 1), ("tensors", [1]), ("game", ["step"]), ("version", "1")]
    for name, value in [*garbled, *(("lags", lags) for lags in (10**9, -1, True))]:
        header = {**json.loads(line), name: value}
        path.write_bytes(json.dumps(header).encode() + b"\n" + entries)
        with pytest.raises(ValueError, match="is no record of lightning-audit"):
            read_observations(path)


def test_a_header_cut_anywhere_is_an_error(tmp_path):
    path = written(tmp_path, 1)
    data = path.read_bytes()
    for cut in range(data.index(b"\n") + 1):
        path.write_bytes(data[:cut])
        with pytest.raises(ValueError, match="is no record"):
            read_observations(path)


def test_a_newer_version_is_an_error_that_says_to_upgrade(tmp_path):
    path = written(tmp_path, 1)
    line, _, body = path.read_bytes().partition(b"\n")
    fields = {**json.loads(line), "version": 2, "unheard_of": True}
    path.write_bytes(json.dumps(fields).encode() + b"\n" + body)
    with pytest.raises(ValueError, match=r"version 2.* reads up to 1; upgrade lightning-audit"):
        read_observations(path)


def test_an_earlier_run_is_moved_and_nothing_is_overwritten(tmp_path):
    for run in range(3):
        written(tmp_path, run + 1, archive=True)
        (tmp_path / REPORT_NAME).write_text(f"report {run}")
    lengths = {
        folder: len(read_observations(tmp_path / folder / RECORD_NAME)[1])
        for folder in ("previous-1", "previous-2", ".")
    }
    assert lengths == {"previous-1": 1, "previous-2": 2, ".": 3}
    for number in (1, 2):
        folder = tmp_path / f"previous-{number}"
        assert (folder / REPORT_NAME).read_text() == f"report {number - 1}"
        assert len(np.load(folder / ARCHIVE_NAME)["step"]) == number


def test_set_aside_moves_its_own_files_only(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert set_aside(tmp_path) is None
    assert not (tmp_path / "previous-1").exists()
    (tmp_path / ARCHIVE_NAME).write_bytes(b"npz")
    assert set_aside(tmp_path) == tmp_path / "previous-1"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "previous-1"]


def test_the_archive_holds_the_same_columns(tmp_path):
    written(tmp_path, 6, archive=True)
    with np.load(tmp_path / ARCHIVE_NAME) as archive:
        assert set(archive.files) == {"header", *(HEADER.dtype.names or ())}
        for name in HEADER.dtype.names or ():
            assert archive[name].tobytes() == entries_of(6)[name].tobytes()
            assert archive[name].dtype == HEADER.dtype[name].base
        header = json.loads(str(archive["header"]))
    assert header == json.loads(json.dumps(dataclasses.asdict(HEADER)))
    assert sorted(p.name for p in tmp_path.iterdir()) == [RECORD_NAME, ARCHIVE_NAME]


def test_closing_twice_is_harmless_and_the_archive_is_optional(tmp_path):
    folder = tmp_path / "a" / "b"  # which is made
    store = ObservationStore(folder, HEADER)
    store.close(archive=False)
    store.close()
    assert len(read_observations(folder / RECORD_NAME)[1]) == 0
    assert not (folder / ARCHIVE_NAME).exists()


KILLED = """
import os, signal, sys
import numpy as np
from lightning_audit.record.store import Observation, ObservationStore, RecordHeader

header = RecordHeader(("one", "two"), ("weight",), (64,), 32)
store = ObservationStore(sys.argv[1], header)
flush = store.flush
def told():
    flush()
    print("flushed", flush_at, flush=True)
store.flush = told
for flush_at in range(1, 2501):
    entry = np.zeros((), dtype=header.dtype)
    entry["step"], entry["readings"] = flush_at, [flush_at, -flush_at]
    store.append(Observation.of(entry))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_every_entry_up_to_the_last_flush(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split() == ["flushed", "1000", "flushed", "2000"]
    assert FLUSH_EVERY == 1000
    header, read = read_observations(tmp_path / RECORD_NAME)
    assert header.canaries == ("one", "two")
    assert 2000 <= len(read) <= 2500
    assert read["step"].tolist() == list(range(1, len(read) + 1))
    np.testing.assert_array_equal(read["readings"][:, 1], -read["step"])
    assert not (tmp_path / ARCHIVE_NAME).exists()


# --- Going on after a stop.

ALL = entries_of(9)


def stopped(directory: Path, count: int, run: str = "mine") -> Path:
    """A record of the first entries of `ALL`."""
    closed(ObservationStore(directory, HEADER, run), ALL[:count])
    return directory / RECORD_NAME


@pytest.mark.parametrize("kept", [0, 3, 7])
def test_a_run_goes_on_after_the_entries_that_are_known(tmp_path, kept):
    path = stopped(tmp_path, 7)
    store = ObservationStore.resume(tmp_path, HEADER, "mine", kept)
    assert store is not None
    assert store.entries == kept
    store.flush()
    assert bytes_of(path) == ALL[:kept].tobytes()
    closed(store, ALL[kept:], archive=True)
    assert store.entries == 9
    header, read = read_observations(path)
    assert header == HEADER
    assert read.tobytes() == ALL.tobytes()
    assert len(np.load(tmp_path / ARCHIVE_NAME)["step"]) == 9
    assert sorted(p.name for p in tmp_path.iterdir()) == [RECORD_NAME, ARCHIVE_NAME]


def test_a_half_written_last_entry_is_written_over(tmp_path):
    path = stopped(tmp_path, 3)
    os.truncate(path, path.stat().st_size - 5)
    assert ObservationStore.resume(tmp_path, HEADER, "mine", 3) is None
    closed(ObservationStore.resume(tmp_path, HEADER, "mine", 2), ALL[2:3])
    assert bytes_of(path) == ALL[:3].tobytes()


@pytest.mark.parametrize(
    ("header", "run", "kept"),
    [
        (HEADER, "another", 2),
        (HEADER, "", 2),
        (HEADER, "mine", 4),
        (dataclasses.replace(HEADER, canaries=("Dirac(weight)", "Dirac(weight)")), "mine", 2),
        (dataclasses.replace(HEADER, witnesses=(64, 2)), "mine", 2),
        (dataclasses.replace(HEADER, signal=1.5), "mine", 0),
    ],
    ids=["another run", "no run", "shorter", "canaries", "witnesses", "signal"],
)
def test_the_record_of_something_else_is_not_gone_on_with_and_not_touched(
    tmp_path, header, run, kept
):
    before = stopped(tmp_path, 3).read_bytes()
    assert ObservationStore.resume(tmp_path, header, run, kept) is None
    assert (tmp_path / RECORD_NAME).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [RECORD_NAME]


def test_without_a_record_there_is_none_to_go_on_with(tmp_path):
    assert ObservationStore.resume(tmp_path, HEADER, "mine", 0) is None
    assert ObservationStore.resume(tmp_path / "absent", HEADER, "mine", 0) is None
    (tmp_path / RECORD_NAME).write_bytes(b"foreign\n")
    assert ObservationStore.resume(tmp_path, HEADER, "mine", 0) is None
    assert (tmp_path / RECORD_NAME).read_bytes() == b"foreign\n"


def test_the_record_stays_where_its_run_may_go_on(tmp_path):
    stopped(tmp_path, 3)
    files = (REPORT_NAME, ARCHIVE_NAME, FIGURE_NAME, PAGE_NAME)
    for name in files:
        (tmp_path / name).write_text("old")
    assert set_aside(tmp_path, but_the_record=True) == tmp_path / "previous-1"
    moved = sorted(p.name for p in (tmp_path / "previous-1").iterdir())
    assert moved == sorted(files)
    assert set_aside(tmp_path, but_the_record=True) is None
    closed(ObservationStore.resume(tmp_path, HEADER, "mine", 3), ALL[3:])


def test_the_record_of_a_run_that_did_not_go_on_joins_its_report(tmp_path):
    before = stopped(tmp_path, 3).read_bytes()
    (tmp_path / REPORT_NAME).write_text("old")
    set_aside(tmp_path, but_the_record=True)
    ObservationStore(tmp_path, HEADER, "new").close(archive=False)
    folder = tmp_path / "previous-1"
    assert (folder / RECORD_NAME).read_bytes() == before
    assert (folder / REPORT_NAME).read_text() == "old"
    assert not (tmp_path / "previous-2").exists()


def test_a_record_never_joins_a_folder_that_holds_one(tmp_path):
    for run in ("first", "second"):
        stopped(tmp_path, 3, run)
    assert set_aside(tmp_path) == tmp_path / "previous-2"
    runs = [
        json.loads((tmp_path / f"previous-{n}" / RECORD_NAME).read_bytes().split(b"\n")[0])["run"]
        for n in (1, 2)
    ]
    assert runs == ["first", "second"]
