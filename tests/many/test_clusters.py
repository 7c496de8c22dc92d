"""A real local Ray and Dask of two worker processes, in an environment of their own."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from driven_trainings import work_of
from environments import printed_by
from refused_calls import refusals

from lightning_audit._validate import BadArgument
from lightning_audit.many import DaskEngine, RayEngine


# --- Runs cases of clusters_worker.py in the environment of Ray and Dask.
def on_cluster(kind: str, case: str, folder: Path) -> Any:
    """Return what a case of a cluster ("ray", "dask") prints."""
    # By default, Ray gives up after 30 s, which are too few on a busy machine.
    patience = {"RAY_raylet_start_wait_time_s": "300"}
    return printed_by("clusters", "clusters_worker.py", folder, kind, case, str(folder), **patience)


CLUSTERS = {"dask": DaskEngine, "ray": RayEngine}
each_cluster = pytest.mark.parametrize("kind", CLUSTERS)


@each_cluster
def test_without_the_package_the_error_names_the_extra(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, {"dask": "distributed"}.get(kind, kind), None)
    with pytest.raises(BadArgument, match=re.escape(f"pip install '.[{kind}]'")):
        CLUSTERS[kind]("auto").start(work_of())


@pytest.mark.heavy
@pytest.mark.heavy_one_in(2)
@each_cluster
def test_rows_are_those_of_this_process_and_a_kill_and_a_hang_cost_one_each(kind, tmp_path):
    found = on_cluster(kind, "smoke", tmp_path)
    assert found["equal"]
    assert found["others"]
    assert set(found["errors"]) == {"4", "7"}
    assert f"its worker ended; see {kind.title()}'s logs for why" in found["errors"]["4"]
    assert found["errors"]["7"] == "TimeLimit: did not end within 10 s"


@pytest.mark.nightly
@each_cluster
def test_a_cluster_that_does_not_answer_is_one_sentence(kind, tmp_path):
    error = on_cluster(kind, "unreachable", tmp_path)["error"]
    sentence = r"the {} .* does not answer \(\w+\);.* which continues after what is"
    assert re.match(sentence.format(kind.title()), error)
    assert "\n" not in error


@pytest.mark.nightly
@each_cluster
def test_rows_after_ten_kills_each_are_those_of_an_undisturbed_run(kind, tmp_path):
    found = on_cluster(kind, "chaos", tmp_path)
    assert found["killed"] == {"driver": 10, "worker": 10}
    assert (found["last_error"], found["different"]) == ("", 0)


@pytest.mark.nightly
def test_the_loss_of_rays_local_node_is_no_verdict(tmp_path):
    found = on_cluster("ray", "node", tmp_path)
    assert (found["nodes"], found["code"]) == (1, 3)  # Ray ends the process with 1
    assert "ended with code 1 before it had a result" in found["error"]


@pytest.mark.nightly
def test_a_scheduler_that_ends_in_the_middle_is_one_sentence_and_loses_no_row(tmp_path):
    found = on_cluster("dask", "gone", tmp_path)
    assert "which continues after what is stored" in found["error"]
    assert found["equal"]


test_arguments_are_checked_before_the_cluster_is_reached = refusals(
    (lambda: DaskEngine("auto", workers=0).start(work_of()), "workers=0 must be a whole number"),
    (lambda: RayEngine("auto", workers=0).start(work_of()), "workers=0 must be a whole number >="),
    (lambda: RayEngine("ray://head:10001").start(work_of()), "start the script on a node of the"),
    *(
        (lambda given=given: RayEngine("auto", **given).start(work_of()), message)
        for given, message in (
            ({"num_cpus": 0}, "num_cpus=0 and num_gpus=0 ask for nothing"),
            ({"num_cpus": -1}, "num_cpus=-1 must be a finite number >= 0"),
            ({"num_gpus": float("nan")}, "num_gpus=nan must be a finite number >= 0"),
        )
    ),
)
