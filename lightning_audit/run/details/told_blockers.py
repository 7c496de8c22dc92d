"""What keeps an audit from a pass, as numbers and sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import OptimizerSeen
from lightning_audit.results.report_details import PassBlocker
from lightning_audit.verdict.pass_blockers import (
    MOST_STEPS,
    TARGET,
    Resolution,
    blockers_of_optimizer,
    lacking_power,
)


def told(
    sentences: Sequence[str],
    seen: Sequence[OptimizerSeen],
    resolution: Resolution,
    of_run: Collection[str] = (),
) -> tuple[PassBlocker, ...]:
    """Return the blockers of a verdict, in its order.

    Args:
        sentences: the verdict's, those of one of several optimizers after its label.
        seen: what was read of each private optimizer.
        resolution: violations that the run must be able to detect.
        of_run: sentences that no check and no count gives.
    """
    known: dict[str, PassBlocker] = {}
    for own in seen:
        prefix = f"{own.label}: " if own.label else ""
        for blocker in _of_optimizer(own, resolution):
            known.setdefault(prefix + blocker.sentence, blocker)
            known.setdefault(blocker.sentence, blocker)
    return tuple(
        dataclasses.replace(known[text], sentence=text) if text in known else _of_run(text, of_run)
        for text in sentences
    )


def _of_run(text: str, of_run: Collection[str]) -> PassBlocker:
    """Return a blocker of the run, or of a check that its sentence names first."""
    name = text.partition(":")[0]
    if text not in of_run and name in REGISTRY:
        return PassBlocker("check", text, name)
    return PassBlocker("run", text)


def _of_optimizer(seen: OptimizerSeen, resolution: Resolution) -> Iterator[PassBlocker]:
    """Yield the blockers of one optimizer; those of the power, which has numbers, come first."""
    for part, text in lacking_power(seen, resolution):
        power = seen.power[part]
        more = power.steps_needed - seen.steps
        within = more if 0 < more < MOST_STEPS else None
        yield PassBlocker("power", text, part, power.power, TARGET, within)
    for text in blockers_of_optimizer(seen, resolution):
        yield PassBlocker("optimizer", text)
