"""A Flower client over three rounds, in an environment of its own."""

import pytest
from environments import printed_by


@pytest.mark.nightly
def test_rounds_of_flower_clients_are_audited_together(tmp_path):
    found = printed_by("flower", "flower_worker.py", tmp_path, str(tmp_path))
    assert found["code"] == 0
    assert [(outcome, steps) for outcome, steps, _ in found["reports"]] == [("PASS", 87)] * 2
    assert all(2.0 < spent < 8.0 for *_, spent in found["reports"])
