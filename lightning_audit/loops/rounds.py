"""`Rounds`: one audit over all rounds of federated learning on one client."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightning_audit.accounting.history import Phase
from lightning_audit.dpsgd.opacus import chain
from lightning_audit.files import open_regular, reason_of, replacing
from lightning_audit.lints.settings import rate_of
from lightning_audit.loops.attaching import attach
from lightning_audit.loops.audit import Audit
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.results.audit_report import AuditReport, ReportError
from lightning_audit.run.optimizers import verified, with_checksum

_log = logging.getLogger(__name__)


class _OpenRounds:
    """Counts the steps of a round in a file as they are taken, so that those of a killed one count.

    Args:
        path: of the file, which exists while a round is open and after rounds that were lost.
    """

    _ROUND = struct.Struct("<3d")  # least noise multiplier, sample rate and number of steps

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._handles = path, 0, list[Any]()
        #: Of the rounds that were lost; numbers that are not known are NaN.
        self.lost = list[tuple[float, ...]]()

    def look(self) -> None:
        """Read what earlier rounds left."""
        held = b""
        with contextlib.suppress(OSError, ValueError), open_regular(self._path) as file:
            held = file.read()
        self._at = len(held) // self._ROUND.size * self._ROUND.size
        self.lost = [one for one in self._ROUND.iter_unpack(held[: self._at]) if one[2]]

    def phases(self) -> list[Phase] | None:
        """Return what the lost rounds spent; None if it is not known."""
        try:
            return [Phase(sigma, rate, int(steps)) for sigma, rate, steps in self.lost]
        except ValueError:  # NaN, or a file that was damaged
            return None

    def count(self, audit: Audit, optimizers: Any, claim: Any, loader: Any) -> None:
        """Begin to count the steps of a round, but for the replays of its audit."""
        given = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
        private = [one for one in given if hasattr(one, "noise_multiplier")] or given
        rate = getattr(claim, "sample_rate", None) or rate_of(loader) or math.nan
        stated = getattr(claim, "noise_multiplier", None) or math.nan
        process, least, steps = os.getpid(), math.inf, 0

        def count(one: Any, *_: Any) -> None:
            nonlocal least, steps
            if os.getpid() == process and not audit._replays:
                steps += 1
                with contextlib.suppress(Exception):  # such as a full disk
                    least = min(float(getattr(one, "noise_multiplier", stated)), least)
                    self._write(least, rate, steps)

        for one in private:
            hooked = [*chain(one)][-1].register_step_post_hook(partial(count, one))
            self._handles.append(hooked)

    def _write(self, *numbers: float) -> None:
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(self._path, flags, 0o666), "wb", buffering=0) as file:
            file.seek(self._at)
            file.write(self._ROUND.pack(*numbers))

    def end(self, *, kept: bool) -> None:
        """End the round; what the state of its audit holds need not be counted again."""
        for handle in self._handles:
            handle.remove()
        with contextlib.suppress(OSError):
            if kept:
                self._path.unlink(missing_ok=True)
            else:
                self._write(math.nan, math.nan, 1.0)


class Rounds:
    """The audit of all rounds on a client's records.

    A client makes a new model, optimizer and engine in each round, often in a new process, and its
    server changes the parameters in between. The state of the audit is kept in ``report_dir``, so
    that the claim, and a violation of any round, hold for all rounds together:

        rounds = lightning_audit.Rounds("audit", claimed_epsilon=8.0)

        def fit(parameters):
            ...
            with rounds.round(model, optimizer, loader):
                train(model, optimizer, loader)

    An accountant that starts again in each round is a finding, ``ledger.accountant``: its epsilon
    is that of one round. Load its state before `make_private`, or let it be continued.

    Args:
        report_dir: of this client alone, the same in every round.
        continue_accountant: whether to write the steps of earlier rounds into an accountant that
            starts again.
        arguments: of `attach`; ``claimed_epsilon`` is that of all rounds together.
    """

    def __init__(
        self, report_dir: str | Path, *, continue_accountant: bool = False, **arguments: Any
    ) -> None:
        self._directory, self._arguments = Path(report_dir), arguments
        self._continues = continue_accountant
        self._file = self._directory / "rounds.pt"

    @contextlib.contextmanager
    def round(
        self, model: torch.nn.Module, optimizer: Any, loader: Any, **more: Any
    ) -> Iterator[Audit]:
        """Audit one round, which continues the earlier ones.

        Args:
            model: of this round, as `make_private` returned it.
            optimizer: of this round, from `make_private`; torch's own for hand-written DP-SGD.
            loader: of this round, from `make_private`.
            more: arguments of `attach` for this round.

        Yields:
            The audit of the round.
        """
        state = torch.load(self._file, weights_only=True) if self._file.exists() else None
        given = {**self._arguments, **more}
        counted: Any = None
        lost: list[Phase] | None = None
        with contextlib.suppress(Exception):  # then it is not known what they did
            counted = _OpenRounds(self._directory / "rounds.open")
            counted.look()
            lost = counted.phases()
            shuffled = getattr(given.get("claim"), "sampling", "") == "shuffled"
            if counted.lost and (shuffled or self._is_violated()):
                lost = None  # a violation of a lost round is lost with its state
        audit = attach(model, optimizer, loader, report_dir=self._directory, state=state, **given)
        audit._add_lost(lost)
        with contextlib.suppress(Exception):
            counted.count(audit, optimizer, given.get("claim"), loader)
        try:
            yield audit
        except BaseException as error:
            audit.close(error)
            raise
        else:
            audit.close()
        finally:  # the steps of a round that raised count, too
            kept = False
            try:
                kept = self._keep(audit.state_dict()) and not audit._failure
            except Exception as error:  # such as a full disk
                _log.error("privacy audit: this round could not be kept (%s)", reason_of(error))
            with contextlib.suppress(Exception):
                counted.end(kept=kept)

    def _is_violated(self) -> bool:
        with contextlib.suppress(ReportError):
            return AuditReport.load(self._directory / REPORT_NAME).verdict.outcome == "VIOLATION"
        return False

    def _keep(self, state: dict[str, Any]) -> bool:
        """Keep the state of the audit, without the accountants' unless they are to continue."""
        if not state:
            return False
        if not self._continues:
            inner = verified(state)
            others = [{**one, "accountant": []} for one in inner["others"]]
            state = with_checksum({**inner, "accountant": [], "others": others})
        with replacing(self._file) as file:
            torch.save(state, file)
        return True
