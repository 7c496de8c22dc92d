"""Shows the batches that a loader's sampler yields, without changing them or their randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils.data import DataLoader

from lightning_audit.taps.boundary import Handles, entry


class WatchedSampler:
    """Stands for a batch sampler, whose type and attributes it shows.

    Args:
        sampler: the batch sampler.
        start: called when the first batch of a pass is drawn.
        seen: called with each batch, before it goes on to the loader.
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
    def __class__(self) -> Any:  # whoever asks for the type, Opacus among them, sees the sampler's
        return type(self._watched)

    def __iter__(self) -> Iterator[Any]:
        # Some samplers draw their order here, and what they raise is the user's.
        batches = iter(self._watched)
        vars(self)["_begins"] = True
        return map(vars(self)["_look"], batches)

    def __len__(self) -> int:
        return len(self._watched)

    def __getattr__(self, name: str) -> Any:
        if "_watched" not in vars(self):  # a copy that is being made
            raise AttributeError(name)
        return getattr(vars(self)["_watched"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._watched, name, value)


def unwatched(sampler: Any) -> Any:
    """The sampler that a `WatchedSampler` stands for; any other sampler as it is."""
    return vars(sampler)["_watched"] if type(sampler) is WatchedSampler else sampler


class SamplerTap:
    """Watches the logical batches of a loader, until it is removed.

    Where Opacus splits them into physical ones, the sampler below is watched. Samplers run in the
    main process, also ahead of the training, where workers load the records.

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
        # A loader that is set up refuses another sampler; this one draws the same batches.
        self._handles = Handles()
        self._handles.append(self)
        self._put(WatchedSampler(self._own, start, seen))

    def remove(self) -> None:
        """Give the loader its own sampler back."""
        self._put(self._own)
        self._handles.forget()

    def _put(self, sampler: Any) -> None:
        object.__setattr__(self._holder, self._name, sampler)


def can_be_watched(loader: Any) -> bool:
    """Whether the loader is torch's, draws batches by a sampler, and its data set has a length."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        return False
    try:
        return len(loader.dataset) > 0  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return False
