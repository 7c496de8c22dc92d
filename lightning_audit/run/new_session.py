"""Which kind of session audits a step, and with what settings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.dpsgd.manual import ManualStep
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.record.store import ObservationStore, RecordHeader
from lightning_audit.run.terms import Terms
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.hand_written_input_session import HandWrittenInputSession
from lightning_audit.session.hand_written_session import HandWrittenSession
from lightning_audit.session.input_session import InputSession
from lightning_audit.session.ranks import Ranks
from lightning_audit.session.settings import SessionSettings

#: Largest shift that a correctly clipped canary shows where low precision rounds it.
_SIGNALS = {"bf16": 1.0 + 2.0**-7}


def new_session(
    step: DPSGDStep,
    place: tuple[int, int],
    terms: Terms,
    precision: str,
    sample_rate: Callable[[int], float | None],
    open_store: Callable[[RecordHeader], ObservationStore | None] | None,
    ranks: Ranks,
) -> AuditSession:
    """Begin to audit one private optimizer.

    Args:
        step: the adapter.
        place: its number among the private optimizers, from 1, and how many there are; each tests
            at an equal share of the significance.
        terms: what is claimed and asked for.
        precision: the Trainer's precision.
        sample_rate: see `AuditSession`.
        open_store: see `AuditSession`.
        ranks: the processes that train together.
    """
    number, count = place
    settings = SessionSettings(
        canaries=terms.canaries,
        oversize=terms.oversize,
        every_n_steps=terms.every_n_steps,
        significance=terms.significance / count,
        claim=terms.claim,
        signal=_SIGNALS.get(precision.split("-")[0], 1.0),
    )
    by_hand = isinstance(step, ManualStep)
    if isinstance(terms.canaries[0], InputCanary):
        kind: type[AuditSession] = HandWrittenInputSession if by_hand else InputSession
    else:
        kind = HandWrittenSession if by_hand else AuditSession
    return kind(step, settings, _coins(terms.seed, number), sample_rate, open_store, ranks)


def _coins(seed: int, number: int) -> np.random.Generator:
    """A generator for each optimizer's coins, all of the audit's one seed and independent."""
    if number == 1:
        return np.random.default_rng(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
