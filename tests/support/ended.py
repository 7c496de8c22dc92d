"""What ends a run of the tests: SIGTERM, also within a `fit` and in the workers of pytest-xdist."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_on_sigterm(worker: bool) -> None:
    """End this process on SIGTERM; a worker ends with the process that started it.

    Lightning bypasses SIGTERM but calls a handler that was there before, and workers would go on
    with their tests for half a minute.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    if worker and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
