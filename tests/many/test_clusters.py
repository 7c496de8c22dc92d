"""A real local Ray of two worker processes, in an environment of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from driven_trainings import work_of
from environments import printed_by

from lightning_audit._validate import BadArgument
from lightning_audit.many import DaskEngine, RayEngine


# --- Runs cases of clusters_worker.py in the environment of Ray and Dask.
def on_cluster(kind: str, case: str, folder: Path) -> Any:
    """Return what a case of a cluster ("ray", "dask") prints."""
    # By default, Ray gives up after 30 s, which are too few on a busy machine.
    patience = {"RAY_raylet_start_wait_time_s": "300"}
    return printed_by("clusters", "clusters_worker.py", folder, kind, case, str(folder), **patience)


# --- A real local Ray of two worker processes, in an environment of its own.
# --- A real local Dask of two worker processes, in an environment of its own.
def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(BadArgument, match=re.escape("pip install 'lightning-audit[dask]'")):
        DaskEngine("auto").start(work_of())


def test_a_number_of_workers_is_checked_before_the_cluster_is_reached() -> None:
    with pytest.raises(ValueError, match="workers=0 must be a whole number >= 1"):
        DaskEngine("auto", workers=0).start(work_of())


@pytest.mark.heavy
def test_rows_are_those_of_this_process_and_a_kill_and_a_hang_cost_one_each(tmp_path: Path) -> None:
    found = on_cluster("dask", "smoke", tmp_path)
    assert found["equal"]
    assert found["others"]
    assert set(found["errors"]) == {"4", "7"}
    assert "its worker ended; see Dask's logs for why" in found["errors"]["4"]
    assert found["errors"]["7"] == "did not end within 10 s"


@pytest.mark.nightly
def test_a_cluster_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    error = on_cluster("dask", "unreachable", tmp_path)["error"]
    assert re.match(r"the Dask .* does not answer \(\w+\);.* which continues after what is", error)
    assert "\n" not in error


@pytest.mark.nightly
def test_rows_after_ten_kills_each_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    found = on_cluster("dask", "chaos", tmp_path)
    assert found["killed"] == {"driver": 10, "worker": 10}
    assert (found["last_error"], found["different"]) == ("", 0)


@pytest.mark.nightly
def test_a_scheduler_that_ends_in_the_middle_is_one_sentence_and_loses_no_row(tmp_path) -> None:
    found = on_cluster("dask", "gone", tmp_path)
    assert "which continues after what is stored" in found["error"]
    assert found["equal"]


# --- A real local Ray of two worker processes, in an environment of its own.
def test_without_the_package_the_error_names_the_extra_ray_engine(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadArgument, match=re.escape("pip install 'lightning-audit[ray]'")):
        RayEngine("auto").start(work_of())


def test_a_number_of_workers_is_checked_before_the_cluster_is_reached_ray_engine() -> None:
    with pytest.raises(ValueError, match="workers=0 must be a whole number >= 1"):
        RayEngine("auto", workers=0).start(work_of())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_cpus": 0}, "num_cpus=0 and num_gpus=0 ask for nothing"),
        ({"num_cpus": -1}, "num_cpus=-1 must be a finite number >= 0"),
        ({"num_gpus": float("nan")}, "num_gpus=nan must be a finite number >= 0"),
    ],
)
def test_resources_are_checked_before_the_cluster_is_reached(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        RayEngine("auto", **given).start(work_of())


def test_an_address_of_ray_client_is_refused() -> None:
    with pytest.raises(BadArgument, match="start the script on a node of the cluster"):
        RayEngine("ray://head:10001").start(work_of())


@pytest.mark.heavy
def test_rows_are_those_of_this_process_and_a_kill_and_a_hang_cost_one_each_ray_engine(
    tmp_path: Path,
) -> None:
    found = on_cluster("ray", "smoke", tmp_path)
    assert found["equal"]
    assert found["others"]
    assert set(found["errors"]) == {"4", "7"}
    assert "its worker ended; see Ray's logs for why" in found["errors"]["4"]
    assert found["errors"]["7"] == "did not end within 10 s"


@pytest.mark.nightly
def test_a_cluster_that_does_not_answer_is_one_sentence_ray_engine(tmp_path: Path) -> None:
    error = on_cluster("ray", "unreachable", tmp_path)["error"]
    assert re.match(r"the Ray .* does not answer \(\w+\);.* which continues after what is", error)
    assert "\n" not in error


@pytest.mark.nightly
def test_rows_after_ten_kills_each_are_those_of_an_undisturbed_run_ray_engine(tmp_path) -> None:
    found = on_cluster("ray", "chaos", tmp_path)
    assert found["killed"] == {"driver": 10, "worker": 10}
    assert (found["last_error"], found["different"]) == ("", 0)
