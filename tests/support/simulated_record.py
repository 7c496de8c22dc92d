"""Records of simulated mechanisms, correct and broken, for the tests of the checks."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from lightning_audit.checks.monitor import AuditMonitor, replay
from lightning_audit.checks.probes import Witnesses, WitnessReducer
from lightning_audit.record.store import DROPPED, INJECTED, NOT_PLANNED, RecordHeader
from lightning_audit.results.audit_report import CheckResult, LikelyFault, Verdict
from lightning_audit.results.report_details import PassBlocker
from lightning_audit.verdict.diagnosis import likely_faults
from lightning_audit.verdict.judge import (
    PowerModel,
    Resolution,
    acknowledge,
    blockers_of,
    judge,
    seen_of,
)

SIGNIFICANCE = 1e-3
OVERSIZE = 1000.0
SCALE = 64.0
TENSORS = ("embed.weight", "fc.weight", "fc.bias")
PER_TENSOR = 32
LABELS = (
    "Dirac(embed.weight)",
    "Spread(3 tensors)",
    "Dirac(fc.bias)",
    "BlockPair(2 tensors)",
    "Dirac(embed.weight, moving)",
    "Dirac(embed.weight)",
    "Spread(3 tensors)",
    "Dirac(embed.weight)",
)
CLIPPED_AFTER_AVERAGE = "clipped after average"


def header(lags: int = 16, coin_probability: float = 0.5) -> RecordHeader:
    witnesses = (PER_TENSOR,) * len(TENSORS)
    return RecordHeader(LABELS, TENSORS, witnesses, lags, coin_probability=coin_probability)


def witnesses() -> Witnesses:
    """The same flat coordinates in each tensor, so that a shared noise key shows."""
    index = np.arange(PER_TENSOR, dtype=np.int64)
    return Witnesses({j: index.copy() for j in range(len(TENSORS))})


def simulate(
    steps: int,
    *,
    seed: int = 0,
    sigma: float | Sequence[float] = 1.0,
    noise: float | Sequence[float] = 1.0,
    canary_noise: float | None = None,
    data: float | Sequence[float] = 0.0,
    shift: float | Sequence[float] | str = 1.0,
    reuse: str = "",
    every: int = 1,
    dropped: Collection[int] = (),
    replaced: Collection[int] = (),
    sample_rate: float = 0.01,
    coin_probability: float = 0.5,
) -> tuple[RecordHeader, np.ndarray]:
    """The record of a mechanism.

    ``noise`` is the true noise over the claim, by tensor; ``data`` the standard deviation of the
    data term over the claimed noise, by tensor; ``shift`` what a canary adds, by canary. ``reuse``
    is "same", "lag 5", "broadcast" or "pair".
    """
    rng = np.random.default_rng(seed)
    made = header(coin_probability=coin_probability)
    k, shape = len(LABELS), (len(TENSORS), PER_TENSOR)
    reducer = WitnessReducer(witnesses(), lags=made.lags)
    multipliers = np.broadcast_to(sigma, (steps,))
    ratio, spread = (np.broadcast_to(v, (len(TENSORS),))[:, None] for v in (noise, data))
    own = float(ratio.mean()) if canary_noise is None else canary_noise
    stock: list[tuple[np.ndarray, np.ndarray]] = []
    entries = np.zeros(steps, dtype=made.dtype)
    for t, now in enumerate(multipliers.tolist()):
        unit, unit_k = rng.standard_normal(shape), rng.standard_normal(k)
        if reuse == "broadcast":
            unit, unit_k = np.broadcast_to(unit[0, 0], shape), np.full(k, unit[0, 0])
        elif reuse == "pair":
            unit = np.broadcast_to(unit[0], shape)
        elif reuse:
            lag = 1 if reuse == "same" else int(reuse.split()[1])
            stock.append((unit, unit_k) if t < lag else stock[t - lag])
            unit, unit_k = stock[t]
        term, term_k = rng.standard_normal(shape), rng.standard_normal(k)
        if coin_probability == 0.5:
            coins = rng.integers(0, 2, k).astype(float)
        else:
            coins = (rng.random(k) < coin_probability).astype(float)
        if isinstance(shift, str):
            assert shift == CLIPPED_AFTER_AVERAGE
            adds = SCALE / np.sqrt(max(coins.sum(), 1.0))
        else:
            adds = np.broadcast_to(np.asarray(shift, dtype=float), (k,))
        seen = now * (ratio * unit + spread * term)
        fields: dict[str, Any] = {
            "step": t,
            "canaries": INJECTED if t % every == 0 else NOT_PLANNED,
            "replaced": t in replaced,
            "noise_multiplier": now,
            "max_grad_norm": 1.0,
            "scale": SCALE,
            "sample_rate": sample_rate,
            **reducer.reduce(seen.ravel(), now),
        }
        if t in dropped:
            fields["canaries"] = DROPPED
        if fields["canaries"] == INJECTED:
            fields["coins"] = coins
            fields["readings"] = coins * adds + now * (own * unit_k + float(spread.mean()) * term_k)
        for name, value in fields.items():
            entries[name][t : t + 1] = value
    return made, entries


def monitor_of(record: tuple[RecordHeader, np.ndarray]) -> AuditMonitor:
    return replay(*record, SIGNIFICANCE)


def by_name(monitor: AuditMonitor) -> dict[str, CheckResult]:
    return {check.name: check for check in monitor.results()}


def violated(monitor: AuditMonitor) -> set[str]:
    return {check.name for check in monitor.results() if check.status == "violated"}


def verdict_of(
    record: tuple[RecordHeader, np.ndarray],
    *,
    allow: Collection[str] = (),
    resolution: Resolution | None = None,
    others: Sequence[CheckResult] = (),
    pass_blockers: Sequence[str] = (),
) -> Verdict:
    """The verdict of a record, as the callback comes to it."""
    monitor, asked = monitor_of(record), resolution or Resolution()
    checks = acknowledge([*monitor.results(), *others], allow)
    seen = seen_of(monitor, PowerModel(monitor).at(asked), OVERSIZE)
    of_run = [PassBlocker("run", text) for text in pass_blockers]
    return judge(checks, monitor, seen, asked, blockers_of(checks, seen, asked, of_run))


def check(name: str, **evidence: Any) -> CheckResult:
    return CheckResult(name, "mechanism", "violated", "", evidence=evidence)


def found_in(monitor: AuditMonitor, *others: CheckResult) -> list[CheckResult]:
    return [*(c for c in monitor.results() if c.status == "violated"), *others]


def faults_of(record: Any, *others: CheckResult, processes: int = 1) -> tuple[LikelyFault, ...]:
    monitor = monitor_of(record)
    return likely_faults(found_in(monitor, *others), monitor, OVERSIZE, processes)


def names(faults: tuple[LikelyFault, ...]) -> list[str]:
    return [fault.name for fault in faults]
