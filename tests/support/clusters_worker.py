"""Drives trainings on a real local Ray or Dask, and prints what came of them as JSON.

``python clusters_worker.py CLUSTER CASE FOLDER``, in the environment of Ray and Dask.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from driven_trainings import drive, facts, quick, seeds_of, softmax_regression, tell_stored

from lightning_audit.many import DaskEngine, EngineError, RayEngine
from lightning_audit.many.store import Plan

NUMBERS = seeds_of(Plan(0, 12, 3))
#: Kills of the driver, and of a worker; trainings of the run that they disturb.
KILLS, TRAININGS = 10, 1200


def faulty(dataset: Any, seed: int) -> float:
    """End the process at training 4, and never end at training 7."""
    if NUMBERS[seed] == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if NUMBERS[seed] == 7:
        time.sleep(1000)
    return quick(dataset, seed)


@contextlib.contextmanager
def ray_cluster() -> Iterator[tuple[str, Any]]:
    """Start Ray with two workers; yield its address, and what finds its workers."""
    import psutil
    import ray

    settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": 40}
    ray.init(address="local", num_cpus=2, **settings)

    def workers() -> list[int]:
        found = psutil.Process().children(recursive=True)
        return [one.pid for one in found if "_run" in " ".join(one.cmdline())]

    yield ray.get_runtime_context().gcs_address, workers
    assert ray.is_initialized()  # no audit has ended it
    ray.shutdown()


@contextlib.contextmanager
def dask_cluster() -> Iterator[tuple[str, Any]]:
    """Start Dask with two workers; yield its address, and what finds its workers."""
    import dask
    from distributed import Client, LocalCluster

    # Without this, LocalCluster closes a worker that needs more than 15 s to start again.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "300s"})
    settings = {"dashboard_address": None, "silence_logs": 50}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **settings) as cluster,
        Client(cluster) as client,
    ):
        yield cluster.scheduler_address, lambda: list(client.run(os.getpid).values())


CLUSTERS = {"ray": ray_cluster, "dask": dask_cluster}
ENGINES = {"ray": RayEngine, "dask": DaskEngine}


def smoke(kind: str, folder: Path) -> dict[str, Any]:
    """Undisturbed trainings, a task that kills its worker and one that hangs."""
    with CLUSTERS[kind]() as (address, _):
        engine = ENGINES[kind](address, imports=("torch",))
        whole = facts(drive(quick, folder / "here", 12))
        equal = facts(drive(quick, folder / "there", 12, engine)) == whole
        rows = drive(faulty, folder / "faulty", 12, engine, limit=10.0, block=1)
    kept = [number for number in range(12) if number not in (4, 7)]
    return {
        "equal": equal,
        "others": all(facts(rows)[number] == whole[number] for number in kept),
        "errors": {str(row.number): row.error for row in rows if row.scores is None},
    }


def unreachable(kind: str, folder: Path) -> dict[str, Any]:
    """What an audit says of an address at which nothing is."""
    address = {"ray": "127.0.0.1:9", "dask": "tcp://127.0.0.1:9"}[kind]
    try:
        drive(quick, folder, 12, ENGINES[kind](address))
    except EngineError as error:
        return {"error": str(error)}
    return {}


def gone(kind: str, folder: Path) -> dict[str, Any]:
    """What an audit says of a Dask scheduler that ends in the middle, and what it has kept."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    )
    client, error = Client(cluster), ""

    def look(prefix: Any) -> bool:
        if len(prefix.failed) >= 3:
            cluster.close()
        return False

    try:
        drive(quick, folder / "there", 1200, DaskEngine(client), look=look)
    except EngineError as found:
        error = str(found)
    whole = facts(drive(quick, folder / "here", 12))
    return {"error": error, "equal": facts(drive(quick, folder / "there", 12))[:12] == whole}


def chaos(kind: str, folder: Path) -> dict[str, Any]:
    """Kill driver and workers at random times, continue, and compare with an undisturbed run."""
    times, turns, killed = (
        random.Random(7),
        ["driver", "worker"] * KILLS,
        {"driver": 0, "worker": 0},
    )
    with CLUSTERS[kind]() as (address, workers):
        while turns:
            kill = turns[0]
            driver = drivers(kind, folder, address)
            stored = driver.stdout.readline()
            time.sleep(times.uniform(0.05, 1.0))
            victims = workers()[-1:] if kill == "worker" else [driver.pid]
            for victim in victims if stored and driver.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed[turns.pop(0)] += 1
            time.sleep(0.5)
            ended = driver.poll()
            driver.kill()
            driver.communicate()
            if ended == 0:
                break
        last = drivers(kind, folder, address)
        _, error = last.communicate()
    rows = facts(drive(softmax_regression(), folder / "store", TRAININGS))
    whole = facts(drive(softmax_regression(), folder / "whole", TRAININGS))
    different = sum(one != other for one, other in zip(rows, whole, strict=True))
    last_error = error[-500:] if last.returncode else ""
    return {"killed": killed, "last_error": last_error, "rows": len(rows), "different": different}


def node(kind: str, folder: Path) -> dict[str, Any]:
    """How the command ends if the local node of Ray, which the audit has started, is killed."""
    import psutil

    (folder / "own_training.py").write_text(
        "import time\ndef data(): return [(0.0, 0)] * 4\n"
        "def train(data, seed):\n    time.sleep(0.2)\n    return float(seed % 7)\n"
    )
    (folder / "audit.yaml").write_text(
        "train: own_training.train\ndataset: own_training.data\ntrainings: 2000\nblock: 1\n"
        "claim: {epsilon: 1.0, delta: 1.0e-5}\n"
        "canary: {class_path: lightning_audit.many.ChosenRecord, init_args: {record: [9.0, 1]}}\n"
        f"engine: lightning_audit.many.{ENGINES[kind].__name__}\nstore: {folder / 'store'}\n"
    )
    command = [sys.executable, "-m", "lightning_audit.cli.main", "audit-training", "audit.yaml"]
    pipe = subprocess.PIPE
    audit = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)
    nodes: list[psutil.Process] = []
    while audit.poll() is None and not (nodes and "of 2,000" in audit.stderr.readline()):
        below = psutil.Process(audit.pid).children(recursive=True)
        nodes = [one for one in below if one.name() == "gcs_server"]
    for one in nodes:
        one.kill()
    _, error = audit.communicate(timeout=300)
    return {"code": audit.returncode, "error": error, "nodes": len(nodes)}


def drivers(kind: str, folder: Path, address: str) -> subprocess.Popen[str]:
    """Start a driver, which prints a line when it has stored something."""
    command = [sys.executable, __file__, kind, "driver", str(folder), address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def driver(kind: str, folder: Path) -> dict[str, Any]:
    """Run, or continue, the trainings that `chaos` disturbs."""
    tell_stored()
    engine = ENGINES[kind](sys.argv[4], imports=("torch",))
    drive(softmax_regression(), folder / "store", TRAININGS, engine)
    return {}


CASES = {
    "smoke": smoke,
    "unreachable": unreachable,
    "gone": gone,
    "chaos": chaos,
    "node": node,
    "driver": driver,
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[2]](sys.argv[1], Path(sys.argv[3]))))
