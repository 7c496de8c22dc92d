"""One thread, one seed, and the warnings that Lightning, Opacus and torch raise of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent

#: Said of small trainings by the libraries, whatever the audit does.
EXPECTED_WARNINGS = (
    r"The '\w+' does not have many workers",
    r"The number of training batches \(\d+\) is smaller than the logging interval",
    r"Secure RNG turned off",
    r"Full backward hook is firing when gradients are computed with respect to module outputs",
    r"Optimal order is the largest alpha",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect those warnings in this directory's tests only."""
    for item in items:
        if _HERE in item.path.parents:
            for message in EXPECTED_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message}"))


@pytest.fixture(autouse=True)
def _whole_where_it_is_looked_at(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("whole_report") is None:
        request.getfixturevalue("short_report")


@pytest.fixture(autouse=True)
def _one_thread_one_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
