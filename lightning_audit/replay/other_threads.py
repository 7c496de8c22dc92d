"""Which other threads of the process may train while a step is replayed.

A replay seeds the global generators, and a fork keeps the locks that other threads hold. Both are
harmless only if each other thread runs nothing but the standard library or a package whose threads
show, log or serve: any other code may train.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

#: Packages whose threads neither train nor draw random numbers.
_HELPERS = frozenset(
    (
        *("IPython", "debugpy", "ipykernel", "pydevd", "_pydev_bundle", "_pydevd_bundle"),
        *("rich", "tornado", "tqdm", "traitlets", "zmq", "execnet", "fsspec", "grpc", "ray"),
        *("aim", "clearml", "codecarbon", "comet_ml", "mlflow", "neptune", "prometheus_client"),
        *("sentry_sdk", "swanlab", "tensorboard", "tensorboardX", "wandb"),
    )
)
#: The same of torch, by their full names.
_HELPER_MODULES = ("torch.utils.data._utils.", "torch._inductor.")


def training_thread() -> str:
    """The name of another thread that may train; empty if there is none."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.ident is None:
            continue
        if not _is_helper(frames.get(thread.ident)):
            return thread.name
    return ""


def _is_helper(frame: FrameType | None) -> bool:
    """Whether a thread runs harmless code only, by its innermost frame."""
    # Below these calls a function written in C has no frame of its own, such as `torch.normal`.
    if frame is None or frame.f_code.co_name == "run":
        return False
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        package = name.partition(".")[0]
        known = package in sys.stdlib_module_names or package in _HELPERS
        if not known and not name.startswith(_HELPER_MODULES):
            return False
        frame = frame.f_back
    return True
