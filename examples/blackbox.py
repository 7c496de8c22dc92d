"""Audits of private functions, correct and faulty, from their outputs alone.

    python examples/blackbox.py [NAME ...]

Each function takes a data set and a NumPy generator, and returns a number or an array. It does not
depend on the audit. The faults are easy to overlook in a review: half the sensitivity, a variance
instead of a standard deviation, the same noise in each call, no sampling, no clipping.

The exit code is 0 if the correct functions pass and the faulty ones are refuted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from lightning_audit.blackbox.mechanism import Claim, MechanismAudit, audit_mechanism
from lightning_audit.stats.tradeoff import GaussianTradeoff, SubsampledGaussianTradeoff

RECORDS, FEATURES = 60, 5
STEPS, RATE, SIGMA, NORM = 10, 0.1, 4.0, 1.0
SAMPLE_RATE, STEP_SIGMA = 0.3, 1.0
MU_MEAN, MU_SGD = 1 / math.sqrt(2.0), math.sqrt(STEPS) / SIGMA


def cells() -> np.ndarray:
    """Return standardized features of cell nuclei in [-1, 1]; the last column is the diagnosis."""
    data = load_breast_cancer()
    features = data.data[:RECORDS, :FEATURES]
    scaled = np.clip((features - features.mean(0)) / (3 * features.std(0)), -1, 1)
    return np.column_stack([scaled, data.target[:RECORDS]])


def noisy_count(data, rng, *, scale=1.0):
    """Return the number of benign tumors; epsilon = 1 with Laplace noise of scale 1."""
    return data[:, -1].sum() + rng.laplace(0, scale)


def count_with_one_noise(data, rng):
    """Return a count whose generator is seeded again in each call: the noise is always the same."""
    return noisy_count(data, np.random.default_rng(7))


def noisy_mean(data, rng, *, sensitivity=2 / RECORDS):
    """Return the mean of the first feature, which a changed record moves by at most 2 / n."""
    return data[:, 0].mean() + sensitivity * rng.normal() / MU_MEAN


def noisy_sum_of_sample(data, rng):
    """Return the sum over a Poisson sample of gradients of norm 1."""
    chosen = rng.random(len(data)) < SAMPLE_RATE

    return data[chosen, 0].sum() + STEP_SIGMA * rng.normal()


def sum_of_everything(data, rng):
    """Return the sum without sampling; the claim still has the amplification by sampling."""
    return data[:, 0].sum() + STEP_SIGMA * rng.normal()


def dp_sgd(data, rng, *, sigma=SIGMA, clip=True):
    """Return the last weights of logistic regression by DP-SGD; mu = sqrt(steps) / sigma."""
    features, labels = data[:, :-1], data[:, -1]
    weights = np.zeros(features.shape[1])
    for _ in range(STEPS):
        errors = 1 / (1 + np.exp(-features @ weights)) - labels
        gradients = errors[:, None] * features
        if clip:
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            gradients = gradients * np.minimum(1, NORM / np.maximum(norms, 1e-12))
        noise = sigma * NORM * rng.normal(size=weights.shape)
        weights = weights - RATE * (gradients.sum(0) + noise) / RECORDS
    return weights


@dataclass(frozen=True)
class Example:
    """A function, the data sets to audit it on, its claim, and the expected outcome."""

    mechanism: Callable[[Any, np.random.Generator], Any]
    neighbours: Callable[[], tuple[np.ndarray, np.ndarray]]
    claim: Claim
    outcome: str


def one_more(record) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return the cells, and the cells with one more record."""
    return lambda: (cells(), np.vstack([cells(), record]))


def one_changed() -> tuple[np.ndarray, np.ndarray]:
    """Return the cells with the first feature of one record at its minimum and maximum."""
    low, high = cells(), cells()
    low[0, 0], high[0, 0] = -1, 1
    return low, high


def empty_or_one() -> tuple[np.ndarray, np.ndarray]:
    """Return records with zero gradients, without and with one gradient of norm 1."""
    without, with_one = np.zeros((RECORDS, 1)), np.zeros((RECORDS, 1))
    with_one[0, 0] = 1
    return without, with_one


BENIGN = np.append(np.zeros(FEATURES), 1.0)
# An outlier with the wrong label: its gradient has norm 20 before clipping.
OUTLIER = np.append(np.full(FEATURES, 40.0 / math.sqrt(FEATURES)), 0.0)
SUBSAMPLED = SubsampledGaussianTradeoff(STEP_SIGMA, SAMPLE_RATE)

EXAMPLES = {
    "Laplace": Example(noisy_count, one_more(BENIGN), (1.0, 0.0), "PASS"),
    "Laplace, half the scale": Example(
        lambda data, rng: noisy_count(data, rng, scale=0.5),
        one_more(BENIGN),
        (1.0, 0.0),
        "VIOLATION",
    ),
    "Laplace, seeded in each call": Example(
        count_with_one_noise, one_more(BENIGN), (1.0, 0.0), "VIOLATION"
    ),
    "Gaussian": Example(noisy_mean, one_changed, GaussianTradeoff(MU_MEAN), "PASS"),
    "Gaussian, half the sensitivity": Example(
        lambda data, rng: noisy_mean(data, rng, sensitivity=1 / RECORDS),
        one_changed,
        GaussianTradeoff(MU_MEAN),
        "VIOLATION",
    ),
    "subsampled Gaussian": Example(noisy_sum_of_sample, empty_or_one, SUBSAMPLED, "PASS"),
    "subsampled Gaussian, no sampling": Example(
        sum_of_everything, empty_or_one, SUBSAMPLED, "VIOLATION"
    ),
    "DP-SGD": Example(dp_sgd, one_more(OUTLIER), GaussianTradeoff(MU_SGD), "PASS"),
    "DP-SGD, no clipping": Example(
        lambda data, rng: dp_sgd(data, rng, clip=False),
        one_more(OUTLIER),
        GaussianTradeoff(MU_SGD),
        "VIOLATION",
    ),
    "DP-SGD, noise of another scale": Example(
        lambda data, rng: dp_sgd(data, rng, sigma=math.sqrt(SIGMA)),
        one_more(OUTLIER),
        GaussianTradeoff(MU_SGD),
        "VIOLATION",
    ),
}


def audited(name: str, max_samples: int = 3000) -> MechanismAudit:
    """Audit one of the examples."""
    example = EXAMPLES[name]
    d0, d1 = example.neighbours()
    return audit_mechanism(example.mechanism, d0, d1, example.claim, max_samples=max_samples)


def main(names: list[str]) -> int:
    right = True
    for name in names or EXAMPLES:
        audit = audited(name)
        right = right and audit.verdict.outcome == EXAMPLES[name].outcome
        print(f"{name}\n  {audit}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
