from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.checks.check import REGISTRY, Check
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.record.store import RecordHeader, restore, snapshot
from lightning_audit.stats.sequential import PredictableCentre

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.tuples(st.integers(), st.text()), inner)
    ),
)


@given(plain)
def test_plain_values_come_back_equal(value: object) -> None:
    data = json.loads(json.dumps(snapshot(value)))
    assert restore(data) == value
    assert type(restore(data)) is type(value)


def test_arrays_and_numpy_numbers_come_back_equal_and_are_copies() -> None:
    array = np.arange(6.0).reshape(2, 3)
    back = restore(snapshot({"a": array, "b": np.float64(0.1), "c": np.int64(3)}))
    np.testing.assert_array_equal(back["a"], array)
    assert (back["b"], back["c"]) == (0.1, 3)
    back["a"][0, 0] = 7.0
    assert array[0, 0] == 0.0


def test_objects_go_on_where_they_stopped() -> None:
    centre = PredictableCentre((2,))
    centre.update(np.array([1.0, 2.0]))
    back = restore(snapshot(centre))
    for one in (centre, back):
        one.update(np.array([3.0, -1.0]))
    np.testing.assert_array_equal(back.value, centre.value)


def test_frozen_dataclasses_come_back_equal() -> None:
    header = RecordHeader(("Dirac(a)",), ("a", "b"), (3, 4), 5)
    assert restore(snapshot(header)) == header


def test_every_part_of_an_audit_can_be_kept() -> None:
    header = RecordHeader(("Dirac(a)",), ("a", "b"), (3, 4), 5)
    snapshot(AuditMonitor(header, 1e-3))
    snapshot(WitnessReducer(Witnesses({0: np.arange(3), 1: np.arange(4)})))


def test_foreign_objects_are_refused() -> None:
    with pytest.raises(TypeError, match=r"numpy\.random.*Generator cannot be part of a snapshot"):
        snapshot([np.random.default_rng(0)])


def test_what_would_come_back_as_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"collections\.Counter cannot be part of a snapshot"):
        snapshot({"steps": Counter(a=1)})


def test_a_class_that_no_resume_would_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        """A statistic whose class is defined in a function."""

    local = Check("a.local", "nothing", each=True, reads="steps", init=lambda *_: Local())
    monkeypatch.setitem(REGISTRY, local.name, local)
    with pytest.raises(TypeError, match=r"Local cannot be part.*at the top of its module"):
        snapshot([Local()])


@pytest.mark.parametrize("name", ["os:system", "lightning_audit.nothing:A", "lightning_audit:b"])
def test_classes_of_other_packages_or_versions_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="resume with the version that wrote it"):
        restore({"object": name, "state": {}})


def test_a_class_that_a_module_only_imports_is_refused() -> None:
    place = "lightning_audit.record.store:Path"
    with pytest.raises(ValueError, match="resume with the version that wrote it"):
        restore({"object": place, "state": {}})


def test_data_that_are_no_snapshot_are_refused() -> None:
    with pytest.raises(ValueError, match=r"keys \['x'\] are no part of a snapshot"):
        restore({"x": 1})
