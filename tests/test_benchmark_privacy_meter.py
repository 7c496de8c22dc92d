"""Our half of the comparison with privacy-meter; the other needs an environment of its own."""

from __future__ import annotations

import importlib
import logging
import sys

import numpy as np
import pytest
import torch
from places import REPOSITORY

from lightning_audit.many.records import LogitMargin

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("default")]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_audit")]
    levels, threads = [logger.level for logger in loggers], torch.get_num_threads()
    yield importlib.import_module("privacy_meter")
    # What `support.quiet` sets.
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    torch.set_num_threads(threads)
    for name in ("privacy_meter", "peers", "many_at_once", "support"):
        sys.modules.pop(name, None)


def test_without_an_environment_our_half_runs_and_the_result_says_so(
    benchmark, monkeypatch, tmp_path
):
    monkeypatch.setattr(benchmark.peers, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(benchmark.peers.sys, "executable", str(tmp_path / "no-python"))
    results = benchmark.run(models=24, targets=4, steps=20)
    assert results["unavailable"].startswith("no environment of privacy-meter==1.0.1")
    shown = {name for name in results if name.startswith("ours: ")}
    assert shown == {f"ours: {name}" for name in benchmark.OURS}
    assert set(benchmark.COUNTERPARTS.values()) <= set(benchmark.OURS)
    assert all(0.4 < results[name]["AUC"] < 0.8 for name in shown)


def test_margins_of_all_records_are_those_of_each(benchmark):
    model = benchmark.mlp()
    inputs, labels = (column[:20] for column in benchmark.flat_digits())
    each = [LogitMargin()(model, record) for record in zip(inputs, labels, strict=True)]
    assert np.allclose(benchmark.margins(model, inputs, labels), each, atol=1e-5)
