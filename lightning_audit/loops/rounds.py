"""`Rounds`: one audit over all rounds of federated learning on one client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lightning_audit.loops.audit import Audit, attach
from lightning_audit.run.optimizers import verified, with_checksum


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
            model: see `attach`.
            optimizer: see `attach`.
            loader: see `attach`.
            more: arguments of `attach` for this round.
        """
        state = torch.load(self._file, weights_only=True) if self._file.exists() else None
        audit = attach(
            model,
            optimizer,
            loader,
            report_dir=self._directory,
            state=state,
            **{**self._arguments, **more},
        )
        try:
            with audit:
                yield audit
        finally:  # the steps of a round that raised count, too
            self._keep(audit.state_dict())

    def _keep(self, state: dict[str, Any]) -> None:
        """Keep the state of the audit, without the accountants' unless they are to continue."""
        if not state:
            return
        if not self._continues:
            inner = verified(state)
            others = [{**one, "accountant": []} for one in inner["others"]]
            state = with_checksum({**inner, "accountant": [], "others": others})
        part = self._file.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._file)
