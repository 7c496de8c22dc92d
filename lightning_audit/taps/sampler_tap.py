"""Observes the batches of a loader's sampler, without changing them or their randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils.data import DataLoader

from lightning_audit.taps.boundary import Handles, entry


class WatchedSampler:
    """Proxy of a batch sampler with the same type and attributes.

    Args:
        sampler: the batch sampler.
        start: called when the first batch of a pass is drawn.
        seen: called with each batch, before the loader gets it.
    """

    def __init__(
        self, sampler: Any, start: Callable[[], None], seen: Callable[[Any], None]
    ) -> None:
        own = vars(self)

        def look(batch: Any) -> Any:
            if own["_begins"]:
                own["_begins"] = False
                start()
            seen(batch)
            return batch

        own.update(_watched=sampler, _begins=False, _look=entry(look, lambda batch: batch))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance`, as in Opacus, sees the sampler's type
        return type(self._watched)

    def __iter__(self) -> Iterator[Any]:
        # Some samplers draw their order here; their exceptions are the user's.
        batches = iter(self._watched)
        vars(self)["_begins"] = True
        return map(vars(self)["_look"], batches)

    def __len__(self) -> int:
        return len(self._watched)

    def __getattr__(self, name: str) -> Any:
        if "_watched" not in vars(self):  # during copying
            raise AttributeError(name)
        return getattr(vars(self)["_watched"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._watched, name, value)


def unwatched(sampler: Any) -> Any:
    """Return the sampler of a `WatchedSampler`, or any other sampler unchanged."""
    return vars(sampler)["_watched"] if type(sampler) is WatchedSampler else sampler


class SamplerTap:
    """Observes the logical batches of a loader, until it is removed.

    If Opacus splits them into physical batches, the inner sampler is observed. Samplers run in the
    main process, ahead of the training if workers load the records.

    Args:
        loader: a torch loader with a batch sampler.
        start: called when the first batch of a pass is drawn.
        seen: called with each batch.
    """

    def __init__(
        self, loader: DataLoader[Any], start: Callable[[], None], seen: Callable[[Any], None]
    ) -> None:
        self._holder: Any = loader
        self._name = "batch_sampler"
        if isinstance(loader.batch_sampler, BatchSplittingSampler):
            self._holder, self._name = loader.batch_sampler, "sampler"
        self._own = unwatched(getattr(self._holder, self._name))
        # An initialized DataLoader rejects a new sampler; this one draws the same batches.
        self._handles = Handles()
        self._handles.append(self)
        self._put(WatchedSampler(self._own, start, seen))

    def remove(self) -> None:
        """Restore the loader's own sampler."""
        self._put(self._own)
        self._handles.forget()

    def _put(self, sampler: Any) -> None:
        object.__setattr__(self._holder, self._name, sampler)


def can_be_watched(loader: Any) -> bool:
    """Return whether this is a torch loader with a batch sampler and a data set of known size."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        return False
    try:
        return len(loader.dataset) > 0  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return False
