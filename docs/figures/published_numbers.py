"""Numbers of the papers' figures: computed here, drawn by the scripts, tested in tests."""

from __future__ import annotations

import numpy as np
from scipy import stats

from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys_interval,
)
from lightning_audit.stats.posteriors import Posterior

DELTA = 1e-5

# Zanella-Beguelin et al. 2023, Bayesian estimation.

#: The worked example of section 3.2, at delta 0.05 and 95 %.
EXAMPLE, EXAMPLE_DELTA = ConfusionCounts(fn=35, tp=65, fp=25, tn=75), 0.05
INTERVALS = {
    "Clopper-Pearson": epsilon_clopper_pearson_interval,
    "Jeffreys": epsilon_jeffreys_interval,
    "posterior": lambda counts, delta, level: Posterior.of_epsilon(counts, delta).interval(level),
}
#: Figure 7: intervals as printed, and counts whose 95 % intervals at delta 0.01 round to them. The
#: paper has four trials in the first panel; for the others it prints neither counts nor numbers.
FIGURE_7 = {
    (0.0051, 3.1): ConfusionCounts(1, 1, 1, 1),
    (0.15, 3.5): ConfusionCounts(fn=1, tp=4, fp=4, tn=11),
    (0.59, 1.5): ConfusionCounts(fn=16, tp=48, fp=20, tn=44),
    (0.45, 0.80): ConfusionCounts(fn=105, tp=195, fp=105, tn=195),
}

#: Table 2: printed intervals of the CIFAR-10 rows by `INTERVALS`, and counts at which all of them
#: round to these at 95 %. The paper prints no counts, and says 90 %.
TABLE_2 = {
    "no DP": (
        (("1.8", "5.3"), ("1.9", "5.0"), ("2.2", "4.5")),
        ConfusionCounts(fn=415, tp=69, fp=3, tn=537),
    ),
    "epsilon 8": (
        (("0.23", "7.7"), ("0.43", "6.0"), ("1.1", "5.0")),
        ConfusionCounts(fn=489, tp=15, fp=1, tn=519),
    ),
}


def rounds_to(value, printed):
    """Return which values have the printed digits."""
    digits = len(printed.partition(".")[2])
    return np.abs(value - float(printed)) <= 0.5 * 10.0**-digits + 1e-9


def counts_that_round(row, significance, n_in, n_out, most):
    """Return whether any counts of at most ``most`` false alarms give both intervals of rates."""
    printed, _ = TABLE_2[row]
    fn, fp = np.meshgrid(np.arange(n_in + 1), np.arange(most + 1), indexing="ij")
    counts = ConfusionCounts(fn, n_in - fn, fp, n_out - fp)
    fits = np.ones(fn.shape, dtype=bool)
    for name, ends in zip(("Clopper-Pearson", "Jeffreys"), printed, strict=False):
        for end, text in zip(INTERVALS[name](counts, DELTA, significance), ends, strict=True):
            fits &= rounds_to(end, text)
    return bool(fits.any())


def intervals_of_figure_4(interval, total):
    """Return interval ends at 90 % over the number of trials, at error rates of 0.4."""
    errors, half = total // 5, total // 2
    counts = ConfusionCounts(errors, half - errors, errors, half - errors)
    return interval(counts, DELTA, 0.1)


def trials_needed(interval):
    """Return the trials until figure 4's interval is 0.30 wide, and both ends are within 0.15."""
    total = np.arange(400, 1600, 10)
    low, high = intervals_of_figure_4(interval, total)
    point = epsilon_at_rates(0.4, 0.4, DELTA)
    near = (high - point <= 0.15) & (point - low <= 0.15)
    return int(total[np.argmax(high - low <= 0.3)]), int(total[np.argmax(near)])


def widths_of_figure_5(interval, errors):
    """Return widths at 90 % over errors of 500 trials per side, FNR along the rows."""
    fn, fp = np.meshgrid(errors, errors, indexing="ij")
    low, high = interval(ConfusionCounts(fn, 500 - fn, fp, 500 - fp), DELTA, 0.1)
    return high - low


# Nasr et al. 2023, tight auditing.


def expected_counts(total, threshold):
    """Return the expected counts of N(1, 1) against N(0, 1), half of the readings each."""
    n = total / 2
    fn, fp = round(n * stats.norm.cdf(threshold - 1)), round(n * stats.norm.sf(threshold))
    return ConfusionCounts(fn, round(n) - fn, fp, round(n) - fp)


def lines_of_algorithm_4(tradeoff, alpha, number, *, as_printed=False):
    """Return the trade-off from ``number`` points of a privacy curve, at the rates ``alpha``."""
    deltas = np.linspace(DELTA, 1 - DELTA, number)[:, None]
    epsilons = tradeoff.epsilon_at(deltas)
    steep = 1 - deltas - np.exp(epsilons) * alpha
    if as_printed:
        # The exponent holds all of -epsilon (1 - delta - x), and the smallest line is taken.
        flat = np.exp(-epsilons * (1 - deltas - alpha))
        return np.maximum(np.maximum(steep, flat), 0).min(axis=0)
    flat = np.exp(-epsilons) * (1 - deltas - alpha)
    return np.maximum(np.maximum(steep, flat), 0).max(axis=0)


def error_rates_of_a_subsampled_step(rng, noise_multiplier, sample_rate, n):
    """Return FPR and FNR over the threshold, n readings per world, as in figure 5."""
    inside = (rng.random(n) < sample_rate) + noise_multiplier * rng.standard_normal(n)
    outside = noise_multiplier * rng.standard_normal(n)
    at = np.sort(np.concatenate([inside, outside]))
    fpr = 1 - np.searchsorted(np.sort(outside), at, side="right") / n
    return fpr, np.searchsorted(np.sort(inside), at, side="right") / n
