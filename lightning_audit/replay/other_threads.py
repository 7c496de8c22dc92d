"""Detect other threads of the process that may train while a step is replayed.

A replay seeds the global generators, and a fork keeps the locks that other threads hold. Both are
harmless only if every other thread runs the standard library, or a package whose threads display,
log or serve. Any other code may train.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

#: The standard library, and packages whose threads neither train nor draw random numbers.
_HARMLESS = sys.stdlib_module_names | frozenset(
    (
        *(
            "lightning_audit",
            "IPython",
            "debugpy",
            "ipykernel",
            "pydevd",
            "_pydev_bundle",
            "_pydevd_bundle",
        ),
        *("rich", "tornado", "tqdm", "traitlets", "zmq", "execnet", "fsspec", "grpc", "ray"),
        *("aim", "clearml", "codecarbon", "comet_ml", "mlflow", "neptune", "prometheus_client"),
        *("sentry_sdk", "swanlab", "tensorboard", "tensorboardX", "wandb"),
    )
)
#: Modules of torch whose threads are harmless, regardless of the code that they call.
_THREADS_OF_TORCH = ("torch.utils.data._utils.", "torch._inductor.")
#: Modules of Lightning whose threads refresh a progress bar, also in a bare ``run``.
_PROGRESS_BARS = ("pytorch_lightning.callbacks.progress.", "lightning.pytorch.callbacks.progress.")


def training_thread() -> str:
    """Return the name of another thread that may train; empty if there is none."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.ident is None:
            continue
        if not _is_helper(frames.get(thread.ident)):
            return thread.name
    return ""


def _is_helper(frame: FrameType | None) -> bool:
    """Return whether a thread runs only harmless code, given its innermost frame."""
    if frame is None:
        return False
    # A function written in C, such as `torch.normal`, has no frame: a bare ``run`` may call it.
    bare = frame.f_code.co_name == "run"
    modules: list[str] = []
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    if bare:
        return any(name.startswith(_PROGRESS_BARS) for name in modules)
    packages = {name.partition(".")[0] for name in modules}
    known = (*_THREADS_OF_TORCH, *_PROGRESS_BARS)
    return packages <= _HARMLESS or any(name.startswith(known) for name in modules)
