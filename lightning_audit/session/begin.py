"""Builds the audit of a private optimizer: its canaries, how they enter, how its steps are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lightning_audit.canaries.gradient import GradientCanary, Placement, place
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.probes import LAGS, choose_witnesses
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.hand_written import ManualStep
from lightning_audit.dpsgd.protocol import DPSGDStep
from lightning_audit.record.store import ObservationStore, RecordHeader
from lightning_audit.session.entrances import (
    GradientRows,
    HandedRows,
    InputSample,
    refuse_other_clipping,
)
from lightning_audit.session.plan import Coordinates
from lightning_audit.session.planner import Ranks, StepPlanner
from lightning_audit.session.reading import NoiseWatch
from lightning_audit.session.recorder import Recorder
from lightning_audit.session.step import AuditSession


def begin_session(
    step: DPSGDStep,
    config: AuditConfig,
    rng: np.random.Generator,
    sample_rate: Callable[[int], float | None],
    open_store: Callable[[RecordHeader], ObservationStore | None] | None,
    ranks: Ranks,
    *,
    signal: float = 1.0,
    track_batch_sizes: bool = False,
    planned_steps: int | None = None,
) -> AuditSession:
    """Start the audit of one private optimizer.

    Args:
        step: the adapter.
        config: what to audit, and how, at this optimizer's share of the significance.
        rng: the audit's own generator.
        sample_rate: see `AuditSession`.
        open_store: opens the record for a header; returns None if it cannot. None: no record.
        ranks: the processes of the training.
        signal: largest shift that a correctly clipped canary shows in the training's precision.
        track_batch_sizes: see `StepPlanner`.
        planned_steps: number of steps of the whole training; None if unknown.

    Raises:
        UnauditableTraining: an input canary under per-layer or adaptive clipping, from which it
            cannot be removed.
    """
    first, chooser = config.canaries[0], rng
    if isinstance(first, InputCanary):
        refuse_other_clipping(step, config.canaries)
        chooser = np.random.default_rng(rng.integers(2**62))
    rows = [canary for canary in config.canaries if isinstance(canary, GradientCanary)]
    # An input canary uses all coordinates of the gradient.
    placement = place(rows, step.layout, rng) if rows else Placement(step.layout)
    witnesses = choose_witnesses(step.layout, placement.support(), rng)
    coordinates = Coordinates(witnesses, placement)
    names = tuple(slot.name for slot in step.layout)
    stated = config.claim.noise_coefficients if config.claim else None
    coefficients = None if stated is None else tuple(stated)
    header = RecordHeader(
        placement.labels,
        names,
        witnesses.counts,
        LAGS,
        signal=signal,
        noise_coefficients=coefficients,
        planned_steps=planned_steps and max(1, planned_steps // (config.every_n_steps or 1)),
        planned_end=planned_steps,
    )
    if isinstance(first, InputCanary):
        header = _with_game(header, first)
    (own,) = rng.spawn(1)  # spawning leaves the coins of the seed unchanged
    store = open_store(header) if open_store else None
    recorder = Recorder(header, config.significance, witnesses, store, own)
    planner = StepPlanner(
        step, config, coordinates, rng, ranks, recorder, track_batch_sizes=track_batch_sizes
    )
    inserter = GradientRows(planner)
    if isinstance(first, InputCanary):
        inserter = InputSample(first, planner, chooser)
    elif isinstance(step, ManualStep):
        inserter = HandedRows(planner)
    noise = NoiseWatch(witnesses, alone=not ranks.several, coefficients=coefficients)
    return AuditSession(planner, inserter, step.tap(coordinates.by_tensor), noise, sample_rate)


def _with_game(header: RecordHeader, canary: InputCanary) -> RecordHeader:
    """Return the header with the input canary's label, coin probability and game."""
    rate = canary.sampling_rate
    shown = "" if rate == 0.5 else f", sampling_rate={rate:g}"
    label = f"{type(canary).__name__}(input{shown})"
    return replace(header, canaries=(label,), coin_probability=rate, game=canary.game)
