"""Earlier fits on the same records, and the epsilon that Opacus was given.

A fit that begins with the last parameters of another, bit for bit, continues it. Each fit leaves
digests of its first and last parameters, and the phases that it spent, in the process and in
`FITS_NAME` of the report directory. Which records a fit reads is compared within the process only:
a digest of records is a function of the data, and is written nowhere.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from lightning_audit.accounting.composition import exceeds
from lightning_audit.accounting.history import Phase, merge
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.config import AuditConfig
from lightning_audit.record.store import Kept
from lightning_audit.run.report_files import ReportFiles

#: File of a report directory with a line for each fit.
FITS_NAME = "fits.jsonl"
#: Most fits that are kept, and most entries of a tensor that its digest reads.
_MOST, _ENTRIES = 256, 4096


@dataclass(frozen=True)
class Records:
    """Records that a fit trains on.

    Args:
        whole: the data set, without the `Subset` around it; None if it cannot be referenced.
        digest: of its tensors and arrays; empty if it holds none.
        numbers: of the records in it that the fit reads; None for all.
    """

    whole: weakref.ref[Any] | None
    digest: str
    numbers: NDArray[np.int64] | None

    @classmethod
    def of(cls, data: Any) -> Records:
        """Return the records of a loader's data set."""
        numbers = None
        while isinstance(data, Subset):
            own = np.asarray(data.indices, dtype=np.int64)
            numbers, data = own if numbers is None else own[numbers], data.dataset
        try:
            whole = weakref.ref(data)
        except TypeError:  # a list, say
            whole = None
        held = [*vars(data).values()] if hasattr(data, "__dict__") else [data]
        held += [each for one in held if isinstance(one, list | tuple) for each in one[:_MOST]]
        return cls(whole, _digest(held), numbers)

    def shared_with(self, other: Records) -> bool | None:
        """Return whether some record is in both; None if that is unknown."""
        same = self.whole is not None and self.whole() is not None and self.whole == other.whole
        if not same and not (self.digest and self.digest == other.digest):
            return None
        if self.numbers is None or other.numbers is None:
            return True
        return bool(np.intersect1d(self.numbers, other.numbers).size)


def _digest(held: Iterable[Any]) -> str:
    """Return a digest of the tensors and numeric arrays in ``held``, in any order."""
    found = []
    for each in held:
        if isinstance(each, np.ndarray) and each.dtype.kind in "biuf":
            each = torch.as_tensor(np.ascontiguousarray(each.reshape(-1)[:: _stride(each.size)]))
        elif isinstance(each, torch.Tensor):
            each = each.detach().reshape(-1)[:: _stride(each.numel())].cpu().contiguous()
        else:
            continue
        told = f"{each.dtype} {each.numel()}".encode()
        found.append(blake2b(told + each.view(torch.uint8).numpy().tobytes()).digest())
    return blake2b(b"".join(sorted(found)), digest_size=16).hexdigest() if found else ""


def _stride(entries: int) -> int:
    return max(1, entries // _ENTRIES)


@dataclass(frozen=True)
class Fit:
    """A fit that ended.

    Args:
        first: digest of its parameters before its first step.
        last: digest of its parameters after its last step.
        phases: that it spent.
        records: that it read; None if it was read from a directory.
    """

    first: str
    last: str
    phases: tuple[Phase, ...]
    records: Records | None = None


#: The fits of this process, the latest last.
_fits: deque[Fit] = deque(maxlen=_MOST)


def forget_fits() -> None:
    """Forget the fits of this process, as if it had just begun."""
    _fits.clear()


class EarlierFits(Kept):
    """Earlier fits that concern a fit, by what is known of their records."""

    KEPT = ("first", "continued", "doubtful", "others", "count")

    def __init__(self) -> None:
        #: Digest of the parameters before the first step; empty before it.
        self.first = ""
        #: Phases of the fits that this one continues, on records that it reads too.
        self.continued: list[Phase] = []
        #: Phases of the fits that this one continues, on records that are not known.
        self.doubtful: list[Phase] = []
        #: Phases of other fits on records that this one reads too.
        self.others: list[Phase] = []
        #: Number of fits in ``continued`` and ``others``.
        self.count = 0
        self._records: Records | None = None

    def begin(
        self, module: torch.nn.Module, data: Any, files: ReportFiles | None, *, counted: bool
    ) -> None:
        """Look for earlier fits before the first step.

        Args:
            module: that is trained.
            data: data set of the loader; None if it is unknown.
            files: of the report directory.
            counted: whether the accountant holds earlier steps: those fits are in its history.
        """
        self.first = _digest(module.parameters())
        self._records = None if data is None else Records.of(data)
        known = list(_fits)
        pairs = {(fit.first, fit.last) for fit in known}
        written = _written(files.directory / FITS_NAME) if files is not None else []
        known = [*(fit for fit in written if (fit.first, fit.last) not in pairs), *known]
        begins = self.first
        for fit in reversed(known):
            shared = self._shared(fit)
            continues = fit.last == begins != fit.first
            if continues:
                begins = fit.first
            if continues and counted:
                if fit in _fits:
                    _fits.remove(fit)  # the present fit's history includes it
            elif shared is False:
                continue
            elif continues:
                (self.continued if shared else self.doubtful).extend(fit.phases)
                self.count += bool(shared)
            elif shared:
                self.others.extend(fit.phases)
                self.count += 1

    def _shared(self, fit: Fit) -> bool | None:
        if self._records is None or fit.records is None:
            return None
        return self._records.shared_with(fit.records)

    def counted(self, config: AuditConfig) -> list[Phase]:
        """Return the earlier phases that the claimed epsilon covers too.

        Only what somebody states covers several fits; an accountant's epsilon is of one.
        """
        stated = config.claimed_epsilon is not None
        return self.continued if stated and not _on_new_data(config) else []

    def notes(self, own: Sequence[Phase], config: AuditConfig) -> list[str]:
        """Return what this fit and the earlier ones on its records spend together.

        Args:
            own: phases of this fit.
            config: of the audit.
        """
        together = [*self.continued, *self.others, *own]
        if not self.count or _on_new_data(config):
            return []
        spent = composed_epsilon(together, config.delta, config.adjacency)
        if spent is None:
            return []
        many = "an earlier fit" if self.count == 1 else f"{self.count} earlier fits"
        return [
            f"this process ran {many} on records of the same data set: together they spend "
            f"epsilon {spent:.4g} at delta {config.delta:.3g}, which no accountant counts"
        ]

    def blockers(self, own: Sequence[Phase], config: AuditConfig) -> list[str]:
        """Return why no pass is possible, if fits on unknown records would exceed the claim."""
        claimed = config.claimed_epsilon
        if not self.doubtful or claimed is None or _on_new_data(config):
            return []
        together = [*self.doubtful, *self.counted(config), *own]
        spent = composed_epsilon(together, config.delta, config.adjacency)
        if spent is None or not exceeds(spent, claimed):
            return []
        return [
            "this fit begins with the last parameters of an earlier one: if that one read the same "
            f"records, both spend epsilon {spent:.4g}, above the claimed {claimed:.4g}; if it read "
            "others, state PrivacyClaim(new_data=True)"
        ]

    def end(
        self, module: torch.nn.Module, phases: Sequence[Phase], files: ReportFiles | None
    ) -> None:
        """Keep this fit for later ones.

        Args:
            module: that was trained.
            phases: that its own steps spent.
            files: of the report directory.
        """
        if not self.first or not phases:
            return
        fit = Fit(self.first, _digest(module.parameters()), tuple(merge(phases)), self._records)
        _fits.append(fit)
        if files is not None:
            told = {"first": fit.first, "last": fit.last, "phases": [*map(astuple, fit.phases)]}
            with (
                contextlib.suppress(OSError),  # the report says that nothing can be written
                (files.directory / FITS_NAME).open("a", encoding="utf-8") as file,
            ):
                file.write(json.dumps(told) + "\n")


def _on_new_data(config: AuditConfig) -> bool:
    return bool(config.claim and config.claim.new_data)


def _written(path: Path) -> list[Fit]:
    """Return the fits of a report directory; a damaged line is skipped."""
    found = []
    lines = path.read_text(encoding="utf-8").splitlines()[-_MOST:] if path.is_file() else []
    for line in lines:
        try:
            told = json.loads(line)
            phases = tuple(Phase(*phase) for phase in told["phases"])
            found.append(Fit(str(told["first"]), str(told["last"]), phases))
        except (ValueError, TypeError, KeyError):
            continue
    return found


# --- The epsilon that Opacus was given.


class Target:
    """The epsilon that `PrivacyEngine.make_private_with_epsilon` was given in this fit."""

    def __init__(self) -> None:
        #: Epsilon, delta and the epochs they are for; None if Opacus was given none.
        self.given: tuple[float, float, int] | None = None

    def told(self, *_: Any, **given: Any) -> None:
        """Keep what a call was given."""
        epochs, delta = int(given["epochs"]), float(given["target_delta"])
        self.given = float(given["target_epsilon"]), delta, epochs

    def notes(self, own: Sequence[Phase]) -> list[str]:
        """Return what was given and what the phases of this fit spend."""
        if self.given is None:
            return []
        target, delta, epochs = self.given
        spent = composed_epsilon(own, delta) if own else None
        if spent is None:
            return []
        many = "1 epoch" if epochs == 1 else f"{epochs} epochs"
        told = f"Opacus was given target_epsilon={target:g} at delta {delta:.3g} for {many}"
        more = f"; to hold it, state PrivacyClaim(epsilon={target:g}, delta={delta:g})"
        return [f"{told}: the steps spend {spent:.4g}{more if exceeds(spent, target) else ''}"]
