"""Modules of benchmarks/ for a test, without a trace afterwards."""

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from places import REPOSITORY

_FOLDER = str(REPOSITORY / "benchmarks")


@contextlib.contextmanager
def benchmarks() -> Iterator[Callable[[str], ModuleType]]:
    """Give what imports a benchmark.

    Afterwards their modules are forgotten, and what `support.quiet` sets, which would hide warnings
    from later tests of the same process, is as it was.
    """
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_audit")]
    levels, threads = [logger.level for logger in loggers], torch.get_num_threads()
    path = list(sys.path)
    sys.path.insert(0, _FOLDER)
    try:
        yield importlib.import_module
    finally:
        sys.path[:] = path
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        torch.set_num_threads(threads)
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(_FOLDER):
                del sys.modules[name]
