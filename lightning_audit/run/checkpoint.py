"""What an audit puts into Lightning's checkpoints: plain values and tensors only."""

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
_OTHERWISE = "take another checkpoint of this training, or train anew."


def with_checksum(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a checksum of it, by which `verified` knows that it is whole."""
    return {**state, "checksum": _checksum(state)}


def verified(state: Any) -> dict[str, Any]:
    """The state that `with_checksum` was given.

    The sums of a run depend on each other in ways that no look at single values shows: one that was
    changed would give a verdict about no training at all.

    Args:
        state: what a checkpoint holds of the audit.

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
            f"{VERSION}; upgrade lightning-audit to go on from it."
        )
    if type(version) is int and version < VERSION:
        raise unusable_checkpoint(
            f"the audit's state in it has version {version}, this lightning-audit reads version "
            f"{VERSION}; finish the training with the lightning-audit that saved it, or train it "
            "again."
        )
    inner = {name: value for name, value in state.items() if name != "checksum"}
    try:
        whole = state.get("checksum") == _checksum(inner)
    except Exception:  # whatever is in it, an audit did not save it
        whole = False
    if not whole:
        raise unusable_checkpoint(
            "the audit's state in it is not as it was saved (its checksum differs), so that it was "
            f"edited or damaged; {_OTHERWISE}"
        )
    return inner


def unusable_checkpoint(why: str) -> UnauditableTraining:
    """The refusal of a checkpoint, which says why and what to do."""
    return UnauditableTraining(f"PrivacyAudit cannot go on from this checkpoint: {why}")


@contextlib.contextmanager
def refusing_what_does_not_fit() -> Iterator[None]:
    """Refuse a checkpoint whose state does not fit this training.

    Memory that is short, a file or a library's own trouble are failures of the audit instead.
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
    """Add a value, with what tells it from values that look alike."""
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
    """Arrays as tensors, so that a checkpoint loads under ``weights_only=True``."""
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
    """Phases of (noise_multiplier, sample_rate, steps) that the accountant holds."""
    return [list(phase) for phase in link.accountant.history] if link else []


def restore_accountant(link: AccountantLink | None, history: list[list[float]]) -> None:
    """Give a fresh accountant the history that a resumed run had spent.

    Lightning's checkpoints do not hold it. An accountant that has a history was restored by the
    user, and is left alone.
    """
    if link is not None and history and not link.accountant.history:
        link.accountant.history = [(sigma, rate, int(n)) for sigma, rate, n in history]
