"""`lightning-audit plan` of a plain loop: what a few of its steps show of its audit."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from typing import Any

from lightning_audit.hooks.boundary import OWN_TIME
from lightning_audit.loops.attaching import attach
from lightning_audit.results.audit_report import UnauditableTraining
from lightning_audit.run.preview import (
    LAST_STEP,
    MOST_BATCHES,
    STEPS,
    Preview,
    StepsToPass,
    preview_of,
    silence,
)


def plan(
    model: Any,
    optimizer: Any,
    loader: Any,
    step: Callable[[Any], Any],
    *,
    steps: int = STEPS,
    on_batch: Callable[[], None] = lambda: None,
    **arguments: Any,
) -> Preview:
    """Train a few steps under audit, and predict the audit of the training.

    Nothing is written or shown. The model is trained by these steps: pass one made for this call.

    Args:
        model: see `attach`.
        optimizer: see `attach`.
        loader: see `attach`.
        step: function of a batch that is one whole training step.
        steps: number of steps to take at least; more are taken until they show how many a PASS
            takes, at most 256.
        on_batch: called after each batch.
        arguments: others of `attach`, such as ``claimed_epsilon`` and ``epochs``.
    """
    given = {**arguments, "on_inconclusive": "warn", "on_budget": "stop", "step": step}
    stops = given.pop("on_violation", "raise") != "warn"
    times: list[tuple[float, float]] = []
    counted, most = StepsToPass(steps), MOST_BATCHES * LAST_STEP
    with tempfile.TemporaryDirectory() as folder, silence():
        given |= {"on_violation": "warn", "report_dir": folder}
        try:
            with attach(model, optimizer, loader, **given) as audit:
                began, own = time.perf_counter(), OWN_TIME.seconds
                endless = itertools.chain.from_iterable(itertools.repeat(loader, most))
                for batch in itertools.islice(endless, most):
                    step(batch)
                    now, mine = time.perf_counter(), OWN_TIME.seconds
                    times.append((now - began, mine - own))
                    on_batch()
                    if counted.shown(audit._planned()[2]):
                        break
                    began, own = time.perf_counter(), OWN_TIME.seconds
                _, planned, sessions, warned = audit._planned()
        except UnauditableTraining as error:
            return Preview(str(error))
    seen = (sessions, planned, times, warned, counted)
    return preview_of(audit.report, *seen, stops=stops)
