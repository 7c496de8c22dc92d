"""Which session audits a private optimizer, with what coins, and what is read off it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hand_written_support import CLAIM
from training_support import PrivateModule, mlp

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Blank
from lightning_audit.dpsgd.adapters import opacus_step
from lightning_audit.dpsgd.manual import ManualStep, stated_claim
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.run.optimizer_audit import facts_of, label_of, new_session
from lightning_audit.run.terms import Terms
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.hand_written_input_session import HandWrittenInputSession
from lightning_audit.session.hand_written_session import HandWrittenSession
from lightning_audit.session.input_session import InputSession
from lightning_audit.session.ranks import Ranks


def private_step() -> DPSGDStep:
    module = PrivateModule()
    optimizer = module.configure_optimizers()
    names = {id(p): name for name, p in module.named_parameters()}
    return opacus_step(optimizer, names, module.modules())


def manual_step() -> DPSGDStep:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    names = {id(p): name for name, p in net.named_parameters()}
    return ManualStep(optimizer, names, stated_claim(CLAIM))


def session_of(
    step: DPSGDStep, place: tuple[int, int] = (1, 1), precision: str = "32-true", **arguments: Any
) -> AuditSession:
    audit = PrivacyAudit(seed=1, **arguments)
    terms = Terms(**{field.name: getattr(audit, field.name) for field in dataclasses.fields(Terms)})
    return new_session(step, place, terms, precision, lambda _: None, None, Ranks())


@pytest.mark.parametrize(
    ("make", "arguments", "kind"),
    [
        (private_step, {}, AuditSession),
        (private_step, {"canaries": [Blank()]}, InputSession),
        (manual_step, {"claim": CLAIM}, HandWrittenSession),
        (manual_step, {"claim": CLAIM, "canaries": [Blank()]}, HandWrittenInputSession),
    ],
)
def test_a_step_and_its_canaries_choose_the_session(
    make: Any, arguments: dict[str, Any], kind: type[AuditSession]
) -> None:
    session = session_of(make(), **arguments)
    assert type(session) is kind
    session.detach()


def test_optimizers_of_one_seed_have_independent_coins_and_the_first_those_of_the_seed() -> None:
    step = private_step()
    draws = []
    for place in ((1, 1), (1, 2), (2, 2)):
        session = session_of(step, place)
        draws.append(session._rng.random(8).tolist())
        session.detach()
    alone, first, second = draws
    assert alone == first
    assert not np.isin(second, first).any()


def test_low_precision_allows_a_canary_its_rounding() -> None:
    step = private_step()
    for precision, signal in (("32-true", 1.0), ("bf16-mixed", 1.0 + 2.0**-7)):
        session = session_of(step, precision=precision)
        assert session.monitor.header.signal == signal
        session.detach()


def test_the_divisor_is_known_of_a_mean_only() -> None:
    optimizer = PrivateModule().configure_optimizers()
    facts = facts_of(optimizer)
    assert (facts.expected_batch_size, facts.loss_reduction) == (16, "mean")
    assert facts.accountant is not None
    optimizer.loss_reduction = "sum"
    assert facts_of(optimizer).expected_batch_size is None
    optimizer.loss_reduction, optimizer.world_size = "mean", 4
    assert facts_of(optimizer).expected_batch_size == 64


def test_a_label_names_the_number_and_the_first_parameter() -> None:
    assert label_of(private_step(), 2) == "optimizer 2 (`net.0.weight`, ...)"
