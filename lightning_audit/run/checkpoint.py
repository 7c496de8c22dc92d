"""The audit's state in Lightning's checkpoints: plain values and tensors only."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lightning_audit.dpsgd.accountant_link import AccountantLink
from lightning_audit.results.refusal import UnauditableTraining

#: Version of the state's layout.
VERSION = 3
_OTHERWISE = "take another checkpoint of this training, or train again from the start."


def with_checksum(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with its checksum, which `verified` compares."""
    return {**state, "checksum": _checksum(state)}


def verified(state: Any) -> dict[str, Any]:
    """Return the state without its checksum, after comparing it.

    The sums of a run depend on each other in ways that checks of single values cannot detect: the
    verdict from a state with one edited value would describe no training at all.

    Args:
        state: of the audit, from a checkpoint.

    Raises:
        UnauditableTraining: it is not what an audit of this version saved.
    """
    if not isinstance(state, dict):
        raise unusable_checkpoint(
            f"the audit's state in it is a {type(state).__name__}; {_OTHERWISE}"
        )
    version = state.get("version")
    if type(version) is int and version > VERSION:
        raise unusable_checkpoint(
            f"the audit's state in it has version {version}, this lightning-audit reads up to "
            f"{VERSION}; upgrade lightning-audit to resume from it."
        )
    if type(version) is int and version < VERSION:
        raise unusable_checkpoint(
            f"the audit's state in it has version {version}, this lightning-audit reads version "
            f"{VERSION}; finish the training with the lightning-audit that saved it, or train "
            "again from the start."
        )
    inner = {name: value for name, value in state.items() if name != "checksum"}
    try:
        whole = state.get("checksum") == _checksum(inner)
    except Exception:  # not a state that an audit saved
        whole = False
    if not whole:
        raise unusable_checkpoint(
            "the audit's state in it is not as it was saved (its checksum differs): it was "
            f"edited or damaged; {_OTHERWISE}"
        )
    return inner


def unusable_checkpoint(why: str) -> UnauditableTraining:
    """Return the error for a checkpoint that cannot be used; ``why`` says what to do."""
    return UnauditableTraining(f"PrivacyAudit cannot resume from this checkpoint: {why}")


@contextlib.contextmanager
def refusing_what_does_not_fit() -> Iterator[None]:
    """Refuse a checkpoint whose state does not fit this training.

    Other errors (out of memory, files, a library's internal errors) are failures of the audit.
    """
    try:
        yield
    except ValueError as error:
        raise unusable_checkpoint(str(error)) from error
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        why = f"the audit's state in it does not fit this training ({what}); {_OTHERWISE}"
        raise unusable_checkpoint(why) from error


def _checksum(state: dict[str, Any]) -> str:
    checksum = hashlib.blake2b(digest_size=16)
    _feed(checksum, state)
    return checksum.hexdigest()


def _feed(checksum: Any, value: Any) -> None:
    """Add a value with its type and size, so that values that look alike differ."""
    match value:
        case torch.Tensor():
            array = np.ascontiguousarray(value.detach().cpu().numpy())
            checksum.update(f"tensor {array.dtype.str} {value.shape}:".encode())
            checksum.update(array.data if array.size else b"")
        case dict():
            checksum.update(f"dict {len(value)}:".encode())
            for key in sorted(value):
                _feed(checksum, key)
                _feed(checksum, value[key])
        case list() | tuple():
            checksum.update(f"list {len(value)}:".encode())
            for item in value:
                _feed(checksum, item)
        case float():  # NaN included
            checksum.update(b"float " + struct.pack("<d", value))
        case None | bool() | int():
            checksum.update(f"{value!r};".encode())
        case str():
            checksum.update(f"str {len(value)}:{value}".encode("utf-8", "surrogatepass"))
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be part of a checkpoint.")


def to_tensors(value: Any) -> Any:
    """Convert arrays to tensors, so that the checkpoint loads under ``weights_only=True``."""
    match value:
        case np.ndarray():
            return torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape).clone()
        case dict():
            return {key: to_tensors(item) for key, item in value.items()}
        case list() | tuple():
            return [to_tensors(item) for item in value]
    return value


def to_arrays(value: Any) -> Any:
    """Undo `to_tensors`."""
    match value:
        case torch.Tensor():
            return value.cpu().numpy()
        case dict():
            return {key: to_arrays(item) for key, item in value.items()}
        case list():
            return [to_arrays(item) for item in value]
    return value


def accountant_history(link: AccountantLink | None) -> list[list[float]]:
    """Return the accountant's phases of (noise_multiplier, sample_rate, steps)."""
    return [list(phase) for phase in link.accountant.history] if link else []


def restore_accountant(link: AccountantLink | None, history: list[list[float]]) -> None:
    """Give a new accountant the history of the run that is resumed.

    Lightning's checkpoints do not hold the history. An accountant that has one was restored by the
    user, and does not change.
    """
    if link is not None and history and not link.accountant.history:
        link.accountant.history = [(sigma, rate, int(n)) for sigma, rate, n in history]
