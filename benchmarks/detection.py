"""Steps until too small a noise is flagged, on the digits net at noise multiplier 3.0023.

At that noise one step costs epsilon 1.27; noise of 0.8255 times the claim costs 1.57. The tests
are evaluated at every step, at the verdict's significance of 1e-3. `replay.noise`, the ledger and
the forecasts took shares of the significance from other checks; a simulation shows what that costs.
"""

from __future__ import annotations

import math
import tempfile

import numpy as np
import pytorch_lightning as pl
from support import Classifier, conv_net, digits, quiet, trainer

from lightning_audit import PrivacyAudit
from lightning_audit.stats.canary_bets import CoinBet
from lightning_audit.stats.noise_tests import noise_log_e

NOISE_MULTIPLIER = 3.0023
#: Noise factor -> steps within which the probe coordinates, and the canaries alone, must flag it.
LIMITS = {0.8255: (20, 150), 0.5: (5, 15)}


def steps_to_flag(noise_factor: float, steps: int, seed: int) -> tuple[int | None, int | None]:
    """Return the steps until probe coordinates, and canaries alone, flag a noise factor, or None.

    Args:
        noise_factor: true noise over stated noise.
        steps: length of the training.
        seed: for the training and the audit.
    """
    pl.seed_everything(seed, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(on_violation="warn", report_dir=folder, seed=seed, examinations=0)
        module = Classifier(
            conv_net(), digits(), noise_multiplier=NOISE_MULTIPLIER, noise_factor=noise_factor
        )
        trainer(steps, audit).fit(module)
        found = {
            check.name: check.evidence["violated_at_step"]
            for check in audit.report.checks
            if "violated_at_step" in check.evidence
        }
    witnesses = [found[name] for name in ("noise", "noise.tensor") if found[name] is not None]
    canaries = found["noise.canary"]
    return (min(witnesses) + 1 if witnesses else None, None if canaries is None else canaries + 1)


#: Check -> its share of the significance before, and now.
SHARES = {"sensitivity": (0.17, 0.13), "reuse.lag": (0.09, 0.08), "reuse.pair": (0.08, 0.07)}
_SIGNIFICANCE, _CANARIES, _RUNS, _STEPS = 1e-3, 8, 200, 400


def shifted(shift: float, rng: np.random.Generator) -> np.ndarray:
    """Return log e-values of `sensitivity` if canaries add ``shift``, ``[runs, steps]``."""
    bet, log_e = CoinBet((_RUNS, _CANARIES)), []
    for _ in range(_STEPS):
        coins = rng.integers(0, 2, (_RUNS, _CANARIES)).astype(float)
        bet.update(coins, shift * coins + rng.standard_normal(coins.shape))
        log_e.append(bet.log_e)
    return np.stack(log_e, axis=1)


def repeated(part: float, rng: np.random.Generator, entries: int = 40) -> np.ndarray:
    """Return log e-values of readings that repeat earlier noise in part, ``[runs, steps]``.

    Args:
        part: fraction of the noise's variance that comes from the earlier noise.
        rng: draws the noise.
        entries: number of readings per step.
    """
    fresh = math.sqrt(1.0 - part) * rng.standard_normal((_RUNS, _STEPS, entries))
    squares = np.cumsum((fresh**2).sum(axis=2), axis=1)
    return noise_log_e(entries * np.arange(1, _STEPS + 1), squares)


def medians(log_e: np.ndarray, shares: tuple[float, ...]) -> list[int]:
    """Return the median steps until each share's threshold is crossed; 0 if half never cross it."""
    found = []
    for share in shares:
        crossed = log_e >= -math.log(share * _SIGNIFICANCE)
        first = np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1, np.inf)
        median = float(np.median(first))
        found.append(int(median) if math.isfinite(median) else 0)
    return found


def cost_of_shares() -> dict[str, object]:
    """Return the median steps until a check crosses its threshold, by its old and new share."""
    rng, results = np.random.default_rng(0), {}
    for name, shares in SHARES.items():
        cases = [("shift 1.5", shifted(1.5, rng)), ("shift 2", shifted(2.0, rng))]
        if name != "sensitivity":
            cases = [("a tenth repeats", repeated(0.1, rng)), ("half repeats", repeated(0.5, rng))]
        for kind, log_e in cases:
            before, now = medians(log_e, shares)
            key = f"{name}, {kind}: median steps at shares {shares[0]} and {shares[1]}"
            results[key] = f"{before} and {now}"
    return results


def run(seeds: int = 20) -> dict[str, object]:
    """Count the trainings flagged within the limits, of ``seeds``, and their median steps."""
    quiet()
    results: dict[str, object] = {}
    for factor, limits in LIMITS.items():
        found = [steps_to_flag(factor, limits[1], seed) for seed in range(seeds)]
        for name, limit, steps in zip(
            ("probe coordinates", "canaries alone"), limits, zip(*found, strict=True), strict=True
        ):
            within = sum(s is not None and s <= limit for s in steps)
            seen = sorted(s if s is not None else 10**9 for s in steps)
            results[f"noise x{factor}, {name}: within {limit} steps, of {seeds}"] = within
            results[f"noise x{factor}, {name}: median steps"] = seen[len(seen) // 2]
    return results | cost_of_shares()
