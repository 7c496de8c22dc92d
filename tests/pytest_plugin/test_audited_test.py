"""Folders of tests are named after them."""

from __future__ import annotations

import pytest

from lightning_audit.pytest_plugin import folder_name


@pytest.mark.parametrize(
    "nodeid",
    ["tests/test_a.py::TestB::test_c[1-a/b]", "x" * 4000, "..", "-", "é\ud800/../..", "con::[\\]"],
)
def test_the_folder_of_a_test_is_one_folder_that_any_file_system_takes(nodeid: str) -> None:
    name = folder_name(nodeid)
    assert len(name) <= 100
    assert name.isascii()
    assert not set(name) & set('/\\:*?"<>| []')
    assert name[0] not in ".~"


def test_folders_of_different_tests_differ_and_show_the_tests_name() -> None:
    names = [folder_name(f"test_a.py::test[{case}]") for case in ("a/b", "a:b", "a-b")]
    assert len(set(names)) == 3
    assert all(name.startswith("test_a.py-test-a-b-") for name in names)
