"""Trainings of the tests of `lightning_audit.many`, and a driver that a test may kill.

Run as a script: driven_trainings.py FOLDER NUMBER_OF_TRAININGS; it prints each stored number.
"""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from lightning_audit.many.driver import Driver
from lightning_audit.many.engines import EngineSettings, LocalProcesses, ThisProcess
from lightning_audit.many.records import Blank
from lightning_audit.many.store import Outcome, Plan, TrainingStore
from lightning_audit.many.worlds import Work, opacus_training, worlds_of

#: Trainings of a block in the tests.
BLOCK = 3


def digits(records: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs ``[n, 64]`` and classes ``[n]``."""
    data = load_digits()
    inputs = torch.tensor(data.data[:records] / 16, dtype=torch.float32)
    return inputs, torch.tensor(data.target[:records])


def linear() -> torch.nn.Module:
    return torch.nn.Linear(64, 10)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def softmax_regression(steps: int = 5, noise_multiplier: float = 1.0) -> Callable[..., Any]:
    """Real Opacus on digits."""
    return opacus_training(
        linear,
        sgd,
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        sample_rate=0.2,
        expected_batch_size=20,
        steps=steps,
    )


def quick(dataset: Any, seed: int) -> float:
    """Stand for a training where only what surrounds it is tested: noise plus the last label."""
    noise = torch.randn(1, generator=torch.Generator().manual_seed(seed))
    return float(noise + len(dataset[1]) + dataset[1][-1])


def killed_once(flag: Path, number: int, seeds: dict[int, int]) -> Callable[[Any, int], float]:
    """Return a training that ends its process by SIGKILL the first time it is this one."""

    def train(dataset: Any, seed: int) -> float:
        if seeds.get(seed) == number and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return quick(dataset, seed)

    return train


def work_of(train: Any = quick, score: Any = None) -> Work:
    """Return the work of five records."""
    return Work(train, worlds_of(digits(5), Blank(1), "add_remove"), score)


def seeds_of(plan: Plan) -> dict[int, int]:
    """Numbers of the plan by seed."""
    return {plan.training(n).seed: n for n in range(plan.trainings)}


def drive(
    train: Any, folder: Path, trainings: int, engine: EngineSettings | None = None, **options: Any
) -> list[Outcome]:
    """Run a plan on digits, and return its rows."""
    worlds = worlds_of(digits(), Blank(label=1), "add_remove")
    plan = Plan(0, trainings, options.pop("block", BLOCK))
    store = TrainingStore(folder, plan, {"train": "this one"})
    options = {"line": lambda text: None, **options}
    try:
        Driver(Work(train, worlds), engine or ThisProcess(), store, **options).run()
        return store.rows()
    finally:
        store.close()


def facts(rows: list[Outcome]) -> list[tuple[Any, ...]]:
    """What must not depend on how often a run was interrupted."""
    return [(row.number, row.scores, row.error) for row in rows]


def tell_stored() -> None:
    """Print the numbers of what is stored from now on, on a line."""
    add = TrainingStore.add

    def telling(store: TrainingStore, rows: list[Outcome]) -> None:
        add(store, rows)
        print(*(row.number for row in rows), flush=True)

    TrainingStore.add = telling  # type: ignore[method-assign,assignment]


def main(folder: str, trainings: str) -> None:
    """Run as a driver that a test may kill: two workers, each stored number on a line."""
    warnings.filterwarnings("ignore")
    tell_stored()
    drive(softmax_regression(), Path(folder), int(trainings), LocalProcesses(2))


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition is true, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "did not become true"
        time.sleep(0.02)
    return value


if __name__ == "__main__":
    main(*sys.argv[1:])
