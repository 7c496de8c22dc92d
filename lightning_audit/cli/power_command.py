"""`lightning-audit power`: steps and canary readings needed to refute a false claim."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from lightning_audit import _validate
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY
from lightning_audit.checks.noise.noise_size import NOISE_CANARY
from lightning_audit.cli.options import whole
from lightning_audit.cli.output import Refused, as_json
from lightning_audit.report.terminal import as_text, table
from lightning_audit.stats.bounds.bound_power import POWER_METHODS, bound_power
from lightning_audit.stats.evalues.coin_bet import CoinBet
from lightning_audit.stats.evalues.power import noise_power, sensitivity_power, steps_needed
from lightning_audit.stats.tradeoff.gdp import gaussian_mu

_LIMIT = 10**7
_FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class TestPower:
    """What one test needs to reach the target power.

    Args:
        name: The check of the audit, or the bound of the literature.
        sees: The kind of violation that it detects.
        significance: Probability of its false alarm.
        observations: Number of canary readings that give the target power; None above ten million.
        steps: Number of training steps with this number of readings.
    """

    name: str
    sees: str
    significance: float
    observations: int | None
    steps: int | None
    _power: Callable[[int], float] = field(repr=False)
    _readings: int = field(repr=False)

    def power(self, observations: float) -> float:
        """Return the power at a number of readings."""
        count = int(observations // self._readings)
        return self._power(count) if count else 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Canary readings, and steps, after which the audit's tests and the bounds "
        "of the literature detect that one step is less private than claimed. For Gaussian noise, "
        "without simulation. Exits with 0, or with 2 if it cannot be computed."
    )
    for name, what in (("claimed", "claimed for one step"), ("true", "actually spent by one step")):
        parser.add_argument(
            f"--{name}-epsilon", required=True, type=float, metavar="X", help=f"epsilon {what}"
        )
    parser.add_argument("--delta", required=True, type=float, help="delta of both, in (0, 1)")
    parser.add_argument("--target", type=float, default=0.95, help="power (default: 0.95)")
    parser.add_argument(
        "--significance",
        type=float,
        default=0.05,
        help="probability that a bound is wrong (default: 0.05)",
    )
    parser.add_argument(
        "--audit-significance",
        type=float,
        default=1e-3,
        metavar="P",
        help="probability of a false alarm of the whole audit (default: 0.001)",
    )
    parser.add_argument(
        "--canaries", type=whole, default=8, metavar="K", help="canaries a step (default: 8)"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the power, as .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def run(options: argparse.Namespace) -> str:
    """Compute what each test needs."""
    try:
        plot = None if options.plot is None else _plot_path(options.plot)
        claimed, true = _mus(options.claimed_epsilon, options.true_epsilon, options.delta)
        tests = _tests(options, claimed, true)
        if plot is not None:
            _plot(options, tests, plot)
    except (ValueError, ImportError, OSError) as error:
        raise Refused(str(error)) from error
    if options.json:
        rows = [{k: v for k, v in asdict(test).items() if not k.startswith("_")} for test in tests]
        fields = {
            "claimed_epsilon": options.claimed_epsilon,
            "true_epsilon": options.true_epsilon,
            "delta": options.delta,
            "mu_claimed": claimed,
            "mu_true": true,
            "target": options.target,
            "canaries": options.canaries,
            "tests": rows,
        }
        return as_json(fields)
    return _as_text(options, claimed, true, tests)


def _mus(claimed_epsilon: float, true_epsilon: float, delta: float) -> tuple[float, float]:
    claimed = _validate.positive("claimed_epsilon", claimed_epsilon)
    true = _validate.positive("true_epsilon", true_epsilon)
    if true <= claimed:
        raise ValueError(
            f"true_epsilon={true!r} must exceed claimed_epsilon={claimed!r}; a claim that holds is "
            "refuted only by a false alarm."
        )
    small = _validate.open_unit("delta", delta, "such as 1e-5; no Gaussian mechanism has delta 0")
    return float(gaussian_mu(claimed, small)), float(gaussian_mu(true, small))


def _tests(options: argparse.Namespace, claimed: float, true: float) -> list[TestPower]:
    k = _validate.positive_int("canaries", options.canaries)
    whole = _validate.open_unit("audit_significance", options.audit_significance)
    level = _validate.open_unit("significance", options.significance)
    ratio = true / claimed
    noise = NOISE_CANARY.share * whole
    # The default canaries are of several kinds, which takes a part of the significance.
    shift = CoinBet.POOLED * SENSITIVITY.share * whole

    def of_noise(steps: int) -> float:
        return noise_power(k, steps, 1.0 / ratio, 0.0, noise)

    def of_shift(steps: int) -> float:
        return sensitivity_power(k, steps, ratio, 1.0 / claimed, shift)

    def of_bound(method: str) -> Callable[[int], float]:
        return lambda n: bound_power(method, claimed, true, n, level)

    rows = [
        ("audit: noise.canary", "noise too small", noise, of_noise, k),
        ("audit: sensitivity", "clipping too loose", shift, of_shift, k),
        *((f"bound: {name}", "either", level, of_bound(name), 2) for name in POWER_METHODS),
    ]
    return [_needed(*row, target=options.target, canaries=k) for row in rows]


def _needed(
    name: str,
    sees: str,
    significance: float,
    power: Callable[[int], float],
    readings: int,
    *,
    target: float,
    canaries: int,
) -> TestPower:
    count = steps_needed(power, target, _LIMIT // readings)
    observations = None if count >= _LIMIT // readings else count * readings
    steps = None if observations is None else -(-observations // canaries)
    return TestPower(name, sees, significance, observations, steps, power, readings)


def _as_text(
    options: argparse.Namespace, claimed: float, true: float, tests: list[TestPower]
) -> str:
    lines = [
        f"claim epsilon {options.claimed_epsilon:g}, truth {options.true_epsilon:g} at delta "
        f"{options.delta:g} (mu {claimed:.5g} and {true:.5g}) for one reading of a canary",
        f"needed for a power of {options.target:g} ({options.canaries} canaries a step):",
        "",
    ]
    columns = ["test", "detects", "false alarm", "readings", "steps"]
    rows = [
        (
            test.name,
            test.sees,
            f"{test.significance:g}",
            f"> {_LIMIT:g}" if test.observations is None else str(test.observations),
            "" if test.steps is None else str(test.steps),
        )
        for test in tests
    ]
    lines += [
        as_text(table(columns, rows, right=columns[2:])),
        "",
        "audit: anytime-valid, at a share of the whole audit's significance; the power is at the "
        "last step",
        "bound: one look, half of the readings with the canary, a threshold fixed midway; "
        "fdp_bayes is a credible bound, not a confidence bound",
        "for readings without a data term; gradients of the data raise the numbers",
    ]
    return "\n".join(lines)


def _plot_path(name: str) -> Path:
    path = Path(name)
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"plot={name!r} must end in one of {', '.join(_FORMATS)}.")
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError(
            f"plot={name!r} must be a file in a folder that exists; make {str(path.parent)!r} "
            "first, or name another file."
        )
    return path


def _plot(options: argparse.Namespace, tests: list[TestPower], path: Path) -> None:
    from lightning_audit.report.power_panel import PowerCurve, power_figure

    most = max(test.observations or _LIMIT for test in tests)
    at = np.geomspace(max(options.canaries, 2), 2 * most, 40)
    curves = [PowerCurve(t.name, at.tolist(), [t.power(n) for n in at.tolist()]) for t in tests]
    title = f"Claim epsilon {options.claimed_epsilon:g}, truth {options.true_epsilon:g}"
    power_figure(curves, options.target, f"{title}, delta {options.delta:g}").savefig(path)
