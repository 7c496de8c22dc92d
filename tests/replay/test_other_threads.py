"""A thread is harmless only if it runs nothing but the standard library or a known helper."""

from __future__ import annotations

import importlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue
from typing import Any

import pytest
import torch
from rich.console import Console

from lightning_audit.replay.training_state import training_thread


@contextmanager
def thread(work: Callable[..., Any], held: Any, *args: Any) -> Iterator[None]:
    """A thread that runs something."""
    runs = threading.Thread(target=work, args=args, name="other", daemon=True)
    runs.start()
    time.sleep(0.1)
    try:
        yield
    finally:
        held.set() if isinstance(held, threading.Event) else held.put(None)
        runs.join()


def waits(event: threading.Event) -> None:
    event.wait()


def draws(event: threading.Event) -> None:
    while not event.is_set():
        torch.rand(1000)


def test_alone_no_other_thread_may_train() -> None:
    assert training_thread() == ""


@pytest.mark.parametrize("work", [waits, draws])
def test_a_thread_with_code_of_its_own_may_train(work: Callable[..., Any]) -> None:
    event = threading.Event()
    with thread(work, event, event):
        assert training_thread() == "other"
    assert training_thread() == ""


@pytest.mark.parametrize("made", [threading.Event, Queue])
def test_a_thread_of_the_standard_library_is_harmless(made: Callable[[], Any]) -> None:
    held = made()
    with thread(held.wait if isinstance(held, threading.Event) else held.get, held):
        assert training_thread() == ""


def test_an_idle_worker_is_harmless_and_a_busy_one_is_not() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        time.sleep(0.1)
        assert training_thread() == ""
        done = threading.Event()
        pool.submit(draws, done)
        time.sleep(0.1)
        assert training_thread() != ""
        done.set()


def test_a_function_in_c_has_no_frame_and_may_train() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 0.5)
        time.sleep(0.1)
        assert training_thread() != ""


def test_the_threads_of_loaders_and_progress_bars_are_harmless() -> None:
    from tqdm import TMonitor, tqdm

    monitor = TMonitor(tqdm, 10)
    loader = torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True)  # type: ignore[arg-type,var-annotated]
    list(loader)
    time.sleep(0.1)
    assert threading.active_count() > 1
    assert training_thread() == ""
    monitor.exit()


@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning.pytorch"])
def test_the_thread_of_lightnings_progress_bar_is_harmless(package: str) -> None:
    progress = importlib.import_module(f"{package}.callbacks.progress.rich_progress")
    bar = progress.CustomProgress(console=Console(file=io.StringIO()))
    bar.start()
    try:
        for _ in range(50):  # it sleeps, or draws
            bar.soft_refresh()
            assert threading.active_count() > 1
            assert training_thread() == ""
            time.sleep(0.002)
    finally:
        bar.stop()
