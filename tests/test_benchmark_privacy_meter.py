"""Our half of the comparison with privacy-meter; the other needs an environment of its own."""

import numpy as np
import pytest
from benchmark_modules import benchmarks

from lightning_audit.many.records import LogitMargin

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("default")]


@pytest.fixture
def meter():
    with benchmarks() as load:
        yield load("privacy_meter")


def test_without_an_environment_our_half_runs_and_the_result_says_so(meter, monkeypatch, tmp_path):
    monkeypatch.setattr(meter.peers, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(meter.peers.sys, "executable", str(tmp_path / "no-python"))
    results = meter.run(models=24, targets=4, steps=20)
    assert results["unavailable"].startswith("no environment of privacy-meter==1.0.1")
    shown = {name for name in results if name.startswith("ours: ")}
    assert shown == {f"ours: {name}" for name in meter.OURS}
    assert set(meter.COUNTERPARTS.values()) <= set(meter.OURS)
    assert all(0.4 < results[name]["AUC"] < 0.8 for name in shown)


def test_margins_of_all_records_are_those_of_each(meter):
    model = meter.mlp()
    inputs, labels = (column[:20] for column in meter.flat_digits())
    each = [LogitMargin()(model, record) for record in zip(inputs, labels, strict=True)]
    assert np.allclose(meter.margins(model, inputs, labels), each, atol=1e-5)
