"""A process that trains rows one after the other: `python -m lightning_audit.selftest.worker`.

Each line of the input is a pickled row in base64, each line of the output a result in JSON. The
process ends with its input, also amid a training: whoever started it is gone then.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import queue
import sys
import threading
import time
from typing import Any


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a training prints goes to the log
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        line = tasks.get()
        answers.write(json.dumps(_answer(line)) + "\n")
        answers.flush()


def _listen(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


def _answer(line: str) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        import torch

        from lightning_audit.selftest.training import as_fields, run_row

        torch.set_num_threads(1)
        return as_fields(run_row(pickle.loads(base64.b64decode(line))))
    except (Exception, SystemExit) as error:  # a row that says so, not a lost table
        print(f"selftest: {type(error).__name__}: {error}", file=sys.stderr)
        return {
            "error": f"{type(error).__name__}: {error}".splitlines()[0],
            "seconds": time.perf_counter() - started,
        }


if __name__ == "__main__":
    main()
