"""Test of independence of the noise of successive steps: forecasts from the previous ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from lightning_audit.checks.replay.drawn_noise import NOTHING, Seen
from lightning_audit.layout import FloatArray
from lightning_audit.stats.dependence.symmetric_noise import product_log_e
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Number of earlier steps in a forecast by least squares.
_ORDER = 3
#: Log e-value of a forecast that is evidence enough alone.
_CLEAR = 7.0


def successive_seen(noise: Sequence[FloatArray]) -> Seen:
    """Return an e-value of several steps' noise for "each is symmetric given its past".

    Each step is multiplied with forecasts from its past: every earlier step, their sum, and a fit
    of earlier steps to one another. E-values of forecasts are averaged, those of steps multiplied.

    Args:
        noise: of each step, in order, without a part that all have in common, ``[n]``.
    """
    log_e, largest = 0.0, NOTHING
    for number in range(1, len(noise)):
        told = [
            Seen(
                float(product_log_e(noise[number] * forecast)), _told(name, noise[number], forecast)
            )
            for name, forecast in forecasts(noise[:number])
        ]
        # A finding by one earlier step, or by their sum, takes precedence over one by a fit.
        plain = max(told[: number + 1], key=lambda seen: seen.log_e)
        now_largest = plain if plain.log_e > _CLEAR else max(told, key=lambda seen: seen.log_e)
        largest = max(largest, now_largest, key=lambda seen: seen.log_e)
        log_e += float(log_mean_exp([seen.log_e for seen in told]))
    return Seen(log_e, largest.what)


def forecasts(past: Sequence[FloatArray]) -> Iterator[tuple[str, FloatArray]]:
    """Yield forecasts of a step's noise from earlier noise alone.

    Args:
        past: noise of earlier steps, one or more, the latest last, ``[n]`` each.

    Yields:
        The forecast's description, and the forecast, ``[n]``.
    """
    for lag in range(1, len(past) + 1):
        yield f"that of {lag} step{'s' * (lag > 1)} before", past[-lag]
    if len(past) > 1:
        yield "the sum of all before", np.sum(past, axis=0)
    order = min(_ORDER, len(past) - 1)
    if order > 1:
        # Fitted to past steps on both sides, then applied to the latest steps.
        before = np.stack([past[-1 - lag] for lag in range(1, order + 1)], axis=1)
        weights = np.linalg.lstsq(before, past[-1], rcond=None)[0]
        latest = np.stack([past[-lag] for lag in range(1, order + 1)], axis=1)
        yield "what earlier steps foretell", latest @ weights


def _told(name: str, noise: FloatArray, forecast: FloatArray) -> str:
    size = math.sqrt(float(noise @ noise) * float(forecast @ forecast))
    part = float(noise @ forecast) / size if size > 0.0 else 0.0
    return f"the noise of a step goes {'with' if part > 0 else 'against'} {name} ({part:.2g})"
