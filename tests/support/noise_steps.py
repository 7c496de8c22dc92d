"""Steps as the checks of the noise are given them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.check import Statistic
from lightning_audit.record.store import Observation, RecordHeader
from lightning_audit.results.audit_report import CheckResult

#: Of a record with one canary and two tensors.
HEADER = RecordHeader(("Dirac(a)",), ("a", "b"), (3, 4), 5)


def noise_seen(
    released: NDArray[Any],
    sums: NDArray[Any] | None,
    noise_multiplier: float = 1.0,
    divisors: tuple[float, ...] = (),
    terms: int | None = None,
    **more: Any,
) -> Observation:
    """A step of which the noise was read."""
    return Observation(
        released=released,
        sums=sums,
        noise_multiplier=noise_multiplier,
        divisors=divisors,
        terms=terms,
        **more,
    )


def noise_step(noise: NDArray[Any], number: int, *, alone: bool = True) -> Observation:
    """A step with noise multiplier 1 whose clipped sum is zero."""
    own = noise if alone else None
    return noise_seen(noise, np.zeros_like(noise), step=number, noise=own)


def whole_step(whole: dict[str, Any], number: int, *, alone: bool = True) -> Observation:
    """A step of which whole tensors were read: entries, squares, noise_squares, block."""
    none = np.zeros(1)
    return noise_seen(none, none, step=number, noise=none if alone else None, **whole)


def block_step(block: NDArray[Any], number: int) -> Observation:
    """A step of which a block of entries was read."""
    return whole_step({"block": block}, number)


def result_of(statistic: Statistic, lack: str = "") -> CheckResult:
    """Result of a statistic of one check."""
    (found,) = statistic.results(lack)
    return found
