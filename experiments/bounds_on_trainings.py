"""Bounds of audits over real trainings: how often they exceed the truth, and how near they come.

python experiments/bounds_on_trainings.py [--full]

Full batches and Gaussian noise, so that the true epsilon is exact; known initial weights, a crafted
canary. Each audit has trainings of its own, and claims the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import common
import numpy as np
from common import arguments, digits, print_table, save
from digit_audits import DELTA, known_start, noise_for
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lightning_audit import PrivacyClaim
from lightning_audit.many import Crafted, DPSGDMany, TrainingAudit, conclude
from lightning_audit.many.store import MOST_IN_BLOCK, Plan
from lightning_audit.many.verdict import Promise, promise_of
from lightning_audit.many.worlds import Work, worlds_of
from lightning_audit.report.figure import BLUE, INK, ORANGE, blank_figure, plain_axes

EPSILONS = (1.0, 4.0, 8.0)
STEPS, RECORDS = 20, 30
#: Trainings of an audit whose bound is compared with the truth.
COVERED = 140
#: Share of epsilon 8 that the median bound must reach by one look at the end, and at any time.
GOALS = {500: (0.65, 0.60), 1000: (0.75, 0.68)}


def trained(epsilon: float, trainings: int, seed: int) -> tuple[Promise, NDArray[np.float64]]:
    """Return the promise of trainings that spend an epsilon, and scores and coins, ``[n, 2]``."""
    noise = noise_for(epsilon, 1.0, STEPS)
    inputs, classes = digits()
    train = DPSGDMany(
        known_start,
        noise_multiplier=noise,
        max_grad_norm=1.0,
        sample_rate=1.0,
        expected_batch_size=RECORDS,
        steps=STEPS,
        learning_rate=0.2,
    )
    claim = PrivacyClaim(noise_multiplier=noise, sample_rate=1.0, steps=STEPS, delta=DELTA)
    # As `audit_training` trains them, without a store.
    worlds = worlds_of((inputs[:RECORDS], classes[:RECORDS]), Crafted(), "add_remove")
    work, plan = Work(train, worlds), Plan(seed, trainings, MOST_IN_BLOCK)
    rows = [
        [*outcome.scores, *training.coins]
        for block in plan.blocks()
        for training, outcome in zip(block, work.run(block), strict=True)
    ]
    return promise_of(claim), np.array(rows)


def each(
    trainings: NDArray[np.float64], promise: Promise, *, size: int, audits: int
) -> list[TrainingAudit]:
    """Return audits of disjoint parts of the trainings, in the order of the plan.

    At significance .05, a VIOLATION says that the bound of some look exceeded the truth.
    """
    never = np.zeros(size, dtype=bool)
    return [
        conclude(part[:, 0], part[:, 1] == 1, never, promise, planned=size, significance=0.05)
        for part in np.split(trainings[: size * audits], audits)
    ]


def at_end(audits: list[TrainingAudit]) -> list[float]:
    """Return the bounds of one look at the planned end."""
    return [audit.epsilon_lower_at_end or 0.0 for audit in audits]


def coverage(audits: list[TrainingAudit], epsilon: float) -> list[object]:
    """Return how many bounds exceed the truth, and the median bounds."""
    ends = at_end(audits)
    return [
        f"epsilon {epsilon:g}",
        sum(end > epsilon for end in ends),
        sum(audit.verdict.outcome == "VIOLATION" for audit in audits),
        median(ends),
        median(audit.epsilon_lower for audit in audits),
    ]


def most_above(audits: int) -> int:
    """Return how many of the bounds may exceed the truth: .05 and three standard errors."""
    return math.floor(audits * 0.05 + 3 * math.sqrt(audits * 0.05 * 0.95))


@dataclass(frozen=True)
class Result:
    """What the audits show: rows of both tables, and bounds for the figure.

    Args:
        coverage: a row for each epsilon.
        reach: a row for each number of trainings.
        shares: bounds of one look over the truth, by epsilon.
        bounds: bounds by number of trainings: of one look at the end, and at any time.
    """

    coverage: list[list[object]]
    reach: list[list[object]]
    shares: dict[float, NDArray[np.float64]]
    bounds: dict[int, tuple[list[float], list[float]]]


def run(covered: int, compared: int, seed: int) -> Result:
    """Train, and audit.

    Args:
        covered: number of audits at each epsilon whose bound is compared with the truth.
        compared: number of audits at epsilon 8 whose median bound is compared with the goal.
        seed: of all trainings.
    """
    result = Result([], [], {}, {})
    for epsilon in common.each(EPSILONS):
        longest = max(GOALS) * compared if epsilon == EPSILONS[-1] else 0
        promise, trainings = trained(epsilon, max(COVERED * covered, longest), seed)
        audits = each(trainings, promise, size=COVERED, audits=covered)
        result.coverage.append(coverage(audits, epsilon))
        result.shares[epsilon] = np.sort(at_end(audits)) / epsilon
    for size, goals in GOALS.items():
        audits = each(trainings, promise, size=size, audits=compared)
        bounds = at_end(audits), [audit.epsilon_lower for audit in audits]
        shares = [median(values) / EPSILONS[-1] for values in bounds]
        result.reach.append([f"{size} trainings", *shares, *goals])
        result.bounds[size] = bounds
    return result


def draw(result: Result) -> Figure:
    """Draw all bounds of one look over the truth, and those of epsilon 8."""
    figure = blank_figure((9.0, 4.0))
    left, right = figure.subplots(1, 2)
    for (epsilon, shares), colour in zip(result.shares.items(), (INK, ORANGE, BLUE), strict=True):
        steps = np.arange(1, len(shares) + 1) / len(shares)
        left.step(shares, steps, where="post", color=colour, label=f"epsilon {epsilon:g}")
    for shift, look, colour in ((-30, "at the end", BLUE), (30, "any time", ORANGE)):
        points = [(size + shift, v) for size, b in result.bounds.items() for v in b[shift > 0]]
        right.plot(*np.transpose(points), "o", alpha=0.4, color=colour, label=look)
    left.axvline(1.0, color=INK, ls="--", lw=1)
    left.set_xlabel(f"bound over truth, {COVERED} trainings, at the end")
    left.set_ylabel("share of audits")
    right.axhline(EPSILONS[-1], color=INK, ls="--", lw=1, label="truth")
    right.set_xticks(list(GOALS))
    right.set_xlim(250, 1250)
    right.set_xlabel("trainings of an audit")
    right.set_ylabel("lower bound on epsilon at 95 %")
    for axes in (left, right):
        plain_axes(axes)
        axes.legend(fontsize=9, frameon=False)
    return figure


def main() -> None:
    options = arguments(__doc__)
    covered, compared = (1000, 100) if options.full else (100, 20)
    result = run(covered, compared, options.seed)
    print(f"{covered} audits of {COVERED} trainings of their own at each epsilon: lower bounds at")
    print(f"95 % that exceed the true epsilon (at most {most_above(covered)}), and median bounds")
    columns = ["", "above, at the end", "above, some look", "median, end", "median, any time"]
    print_table(columns, result.coverage)
    print(f"\nepsilon 8, median bound of {compared} audits as a share of the truth")
    columns = ["", "at the end", "any time", "at least, end", "at least, any time"]
    print_table(columns, result.reach)
    save(draw(result), options.out, "bounds_on_trainings")


if __name__ == "__main__":
    main()
