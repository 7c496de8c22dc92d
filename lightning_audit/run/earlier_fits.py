"""Earlier fits on the same records, and the epsilon that Opacus was given.

A fit that begins with the last parameters of another, bit for bit, continues it. Each fit leaves
digests of its first and last parameters, and the phases that it spent, in the process and in
`FITS_NAME` of the report directory. Fits share records if they read the same data set object, or
overlapping subsets of it: to compare records would be a function of the data, and is never done.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
import weakref
from collections import deque
from collections.abc import Sequence
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
from lightning_audit.hooks.gradient_tap import memory, offsets
from lightning_audit.record.store import Kept
from lightning_audit.run.report_files import ReportFiles

#: File of a report directory with a line for each fit.
FITS_NAME = "fits.jsonl"
#: What prevents a pass after a round that was lost.
UNKNOWN = (
    "an earlier round on these records ended without its audit, and what it did is not known: "
    "account for its steps by hand; rounds of other records need a report_dir of their own"
)
#: Most fits that are kept, and most entries of a tensor that its digest reads.
_MOST, _ENTRIES = 256, 4096


@dataclass(frozen=True, eq=False)
class Records:
    """Records that a fit trains on.

    Args:
        whole: the data set, without the `Subset` around it; None if it cannot be referenced.
        numbers: of the records in it that the fit reads; None for all.
    """

    whole: weakref.ref[Any] | None
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
        return cls(whole, numbers)

    def shared_with(self, other: Records) -> bool | None:
        """Return whether some record is in both; None if that is unknown."""
        own, theirs = (each.whole and each.whole() for each in (self, other))
        if own is None or own is not theirs:
            return None
        if self.numbers is None or other.numbers is None:
            return True
        return bool(np.intersect1d(self.numbers, other.numbers).size)


def _digest(module: torch.nn.Module) -> str:
    """Return a digest of a module's parameters, in any order."""
    found = []
    for each in module.parameters():
        index = np.arange(0, each.numel(), -(-each.numel() // _ENTRIES) or 1)
        part = memory(each)[torch.from_numpy(offsets(index, each)).to(each.device)]
        entries = part.cpu().view(torch.uint8).numpy().tobytes()
        found.append(blake2b(f"{part.dtype} {tuple(each.shape)}".encode() + entries).digest())
    return blake2b(b"".join(sorted(found)), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit that ended.

    Args:
        run: name of the training; a resumed one keeps it.
        first: digest of its parameters before its first step.
        last: digest of its parameters after its last step.
        phases: that it spent.
        records: that it read; None if it was read from a directory.
        steps: number of its steps if its verdict was no VIOLATION, else 0.
    """

    run: str
    first: str
    last: str
    phases: tuple[Phase, ...]
    records: Records | None = None
    steps: int = 0


#: The fits of this process, the latest last.
_fits: deque[Fit] = deque(maxlen=_MOST)


def forget_fits() -> None:
    """Forget the fits of this process, as if it had just begun."""
    _fits.clear()


class EarlierFits(Kept):
    """Earlier fits, sorted by whether a fit continues them and shares records with them."""

    KEPT = (
        *("run", "first", "counted_before", "continued", "doubtful", "others", "count", "apart"),
        "unknown",
    )

    def __init__(self) -> None:
        #: Name of the training, and digest of its parameters before the first step.
        self.run, self.first = "", ""
        #: Whether the accountant holds the steps of earlier fits.
        self.counted_before = False
        #: Phases of the fits that this one continues, on records that it reads too.
        self.continued: list[Phase] = []
        #: Phases of the fits that this one continues, on records that are not known.
        self.doubtful: list[Phase] = []
        #: Phases of other fits on records that this one reads too.
        self.others: list[Phase] = []
        #: Number of fits in ``continued`` and ``others``, and of others in the report directory.
        self.count = self.apart = 0
        #: Whether an earlier round spent an unknown amount.
        self.unknown = False
        #: Whether `begin` was called in this process.
        self.begun = False
        self._records: Records | None = None

    def begin(
        self, module: torch.nn.Module, data: Any, files: ReportFiles | None, *, counted: bool
    ) -> None:
        """Look for earlier fits before the first step in this process.

        Args:
            module: that is trained.
            data: data set of the loader; None if it is unknown.
            files: of the report directory.
            counted: whether the accountant holds earlier steps, so that nothing is added to it.
        """
        self.begun = True
        self._records = None if data is None else Records.of(data)
        if self.run:  # a checkpoint's: what it continued is known
            return
        self.run, self.first = uuid.uuid4().hex, _digest(module)
        self.counted_before = counted
        if counted:
            return
        known = list(_fits)
        names = {fit.run for fit in known}
        written = _written(files.directory / FITS_NAME) if files is not None else []
        begins, here = self.first, {fit.run for fit in written}
        for fit in reversed([*(fit for fit in written if fit.run not in names), *known]):
            own, theirs = self._records, fit.records
            shared = own.shared_with(theirs) if own and theirs else None
            continues = fit.last == begins != fit.first
            begins = fit.first if continues else begins
            if continues and shared is not False:
                (self.continued if shared else self.doubtful).extend(fit.phases)
            elif shared:
                self.others.extend(fit.phases)
            self.count += bool(shared)
            self.apart += shared is None and not continues and fit.run in here
        if files is not None:  # a killed one is an earlier training, too
            self._write(Fit(self.run, self.first, "", ()), files)

    @staticmethod
    def observed() -> int:
        """Return the number of steps that sound fits of this process took.

        Of steps in another process it takes the state of their audit: only with it noise is seen
        that starts again.
        """
        return sum(fit.steps for fit in _fits)

    def add_lost(self, phases: Sequence[Phase] | None) -> None:
        """Count rounds whose audits were lost.

        Args:
            phases: that they spent; None if it is not known.
        """
        self.unknown |= phases is None
        self.continued += phases or []
        self.count += len(phases or [])

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
        if _on_new_data(config):
            return []
        if self.apart and not self.count:
            many = "an earlier training" if self.apart == 1 else f"{self.apart} earlier trainings"
            return [
                f"{many} had this report directory, and epsilon is that of this one alone: if "
                "they read the same records, as rounds of federated learning do, audit them with "
                "lightning_audit.Rounds"
            ]
        together = [*self.continued, *self.others, *own]
        spent = config.epsilon_of(together) if self.count else None
        if spent is None:
            return []
        one = self.count == 1
        many = "an earlier training reads" if one else f"{self.count} earlier trainings read"
        return [
            f"{many} records of the same data set: together with this one epsilon {spent:.4g} at "
            f"delta {config.delta:.3g} is spent, which no accountant counts"
        ]

    def blockers(self, own: Sequence[Phase], config: AuditConfig) -> list[str]:
        """Return why no pass is possible, if fits on unknown records would exceed the claim."""
        claimed = config.claimed_epsilon
        if self.unknown:
            return [UNKNOWN]
        if not self.doubtful or claimed is None or _on_new_data(config):
            return []
        spent = config.epsilon_of([*self.doubtful, *self.counted(config), *own])
        if spent is None or not exceeds(spent, claimed):
            return []
        return [
            "this training begins with the last parameters of an earlier one: if that one read the "
            f"same records, both spend epsilon {spent:.4g}, above the claimed {claimed:.4g}; if it "
            "read others, state PrivacyClaim(new_data=True)"
        ]

    def end(
        self,
        module: torch.nn.Module,
        phases: Sequence[Phase],
        files: ReportFiles | None,
        *,
        steps: int,
    ) -> None:
        """Keep this fit for later ones.

        Args:
            module: that was trained.
            phases: that its own steps spent.
            files: of the report directory.
            steps: number of its steps if its verdict is no VIOLATION, else 0.
        """
        if not self.first or not phases:
            return
        spent = tuple(merge(phases))
        fit = Fit(self.run, self.first, _digest(module), spent, self._records, steps)
        others = [other for other in _fits if other.run != self.run]
        _fits.clear()
        _fits.extend([*others, fit])
        if files is not None:
            self._write(fit, files)

    @staticmethod
    def _write(fit: Fit, files: ReportFiles) -> None:
        phases = [*map(astuple, fit.phases)]
        line = json.dumps({"run": fit.run, "first": fit.first, "last": fit.last, "phases": phases})
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with contextlib.suppress(OSError):  # the report says that nothing can be written
            file = os.open(files.directory / FITS_NAME, flags, 0o666)
            with open(file, "a", encoding="utf-8") as lines:
                lines.write(f"\n{line}\n")  # the last line may have been cut


def _on_new_data(config: AuditConfig) -> bool:
    return bool(config.claim and config.claim.new_data)


def _written(path: Path) -> list[Fit]:
    """Return the fits of a report directory, each run once; a damaged line is skipped."""
    found: dict[str, Fit] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # there is none, or it cannot be read
        return []
    for line in lines[-2 * _MOST :]:
        try:
            fit = json.loads(line)
            phases = tuple(Phase(*phase) for phase in fit["phases"])
            run, first, last = (str(fit[name]) for name in ("run", "first", "last"))
            found[run] = Fit(run, first, last, phases)
        except (ValueError, TypeError, KeyError):
            continue
    return list(found.values())


# --- The epsilon that Opacus was given.


class Target:
    """The epsilon that `PrivacyEngine.make_private_with_epsilon` was given in this fit."""

    def __init__(self) -> None:
        #: Epsilon, delta and the epochs they are for; None if Opacus was given none.
        self.given: tuple[float, float, int] | None = None

    def keep(self, *_: Any, **given: Any) -> None:
        """Keep what a call was given.

        Args:
            given: the keyword arguments of `PrivacyEngine.make_private_with_epsilon`.
        """
        epochs, delta = int(given["epochs"]), float(given["target_delta"])
        self.given = float(given["target_epsilon"]), delta, epochs

    def notes(self, own: Sequence[Phase], items: int = 1) -> list[str]:
        """Return what was given and what the phases of this fit spend, with the items of a record.

        Args:
            own: phases of this fit.
            items: of a record.
        """
        if self.given is None:
            return []
        target, delta, epochs = self.given
        spent = composed_epsilon(own, delta, items=items) if own else None
        if spent is None:
            return []
        many = "1 epoch" if epochs == 1 else f"{epochs} epochs"
        given = f"Opacus was given target_epsilon={target:g} at delta {delta:.3g} for {many}"
        more = f"; to hold it, state PrivacyClaim(epsilon={target:g}, delta={delta:g})"
        return [f"{given}: the steps spend {spent:.4g}{more if exceeds(spent, target) else ''}"]
