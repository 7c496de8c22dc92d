"""Rows that train nothing: each says what becomes of its process."""

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

from lightning_audit.testing.selftest_pool import Result


def row(act: str) -> Any:
    fault = SimpleNamespace(name="stub", steps=20)
    return SimpleNamespace(group="fault", fault=fault, configuration="Opacus", act=act)


def train(row: Any) -> Result:
    """The function that a process is given."""
    if row.act == "die":
        print("out of memory", file=sys.stderr)
        os._exit(3)
    if row.act == "hang":
        time.sleep(60)
    if row.act == "raise":
        raise RuntimeError("the loss is\nno number")
    return Result("fault", row.act, "Opacus", "found", 20, sentence=str(os.getpid()))
