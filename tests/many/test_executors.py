"""Executors of the user, and this process."""

from __future__ import annotations

import concurrent.futures

import pytest
from driven_trainings import drive, facts, quick, work_of

from lightning_audit._validate import BadArgument
from lightning_audit.many.engines import FromExecutor, LocalProcesses, ThisProcess, settings_of


def test_no_engine_means_local_processes_and_other_values_are_refused():
    assert settings_of(None) == LocalProcesses()
    assert settings_of(ThisProcess()) == ThisProcess()
    with pytest.raises(BadArgument, match=r"engine='fast' must be LocalProcesses\(workers\)"):
        settings_of("fast")
    with pytest.raises(ValueError, match="workers=0 must be a whole number >= 1"):
        LocalProcesses(0).start(work_of())


def test_threads_are_refused_because_they_share_a_generator():
    with (
        concurrent.futures.ThreadPoolExecutor(2) as executor,
        pytest.raises(BadArgument, match="share one random generator"),
    ):
        settings_of(executor).start(work_of())


@pytest.mark.heavy
def test_any_executor_of_processes_gives_what_this_process_gives(tmp_path):
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        rows = drive(quick, tmp_path / "executor", 6, FromExecutor(executor))
    assert facts(rows) == facts(drive(quick, tmp_path / "here", 6))
