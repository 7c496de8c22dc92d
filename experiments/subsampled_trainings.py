"""What audits of final models prove of trainings that spend epsilon 8, over the sample rate.

python experiments/subsampled_trainings.py [--full]

Nasr et al., "Tight auditing of differentially private machine learning", arXiv:2302.07956,
Figure 12: blank and mislabeled canaries on several data sets, one of which is random. Here also a
crafted canary, and sample rates from full batches to .1.
"""

from __future__ import annotations

from itertools import product

import torch
from common import arguments, digits, each, print_table, save
from digit_audits import DELTA, audits, known_start, noise_for
from matplotlib.figure import Figure
from torch import Tensor

from lightning_audit import PrivacyClaim
from lightning_audit.many import Blank, Crafted, DPSGDMany, Mislabeled, TrainingAudit
from lightning_audit.report.figure import BLUE, INK, ORANGE, TEAL, blank_figure, plain_axes

EPSILON, STEPS = 8.0, 50
RATES = (1.0, 0.5, 0.25, 0.1)
CANARIES = {"blank": Blank(label=1), "mislabeled": Mislabeled(), "crafted": Crafted()}
#: Sample rate at which the records are also random.
RANDOM_AT = 0.25
#: Audits by data set, canary and sample rate.
Found = dict[tuple[str, str, float], TrainingAudit]


def records_of(name: str, number: int) -> tuple[Tensor, Tensor]:
    """Return digits, or records of their shape with random pixels and classes."""
    if name == "random":
        generator = torch.Generator().manual_seed(0)
        pixels = torch.rand(number, 64, generator=generator)
        return pixels, torch.randint(10, (number,), generator=generator)
    inputs, classes = digits()
    return inputs[:number], classes[:number]


def audited(
    data: tuple[Tensor, Tensor], canary: str, rate: float, trainings: int, seed: int
) -> TrainingAudit:
    """Return the audit of trainings that spend epsilon 8 and claim what they do."""
    noise = noise_for(EPSILON, rate, STEPS)
    train = DPSGDMany(
        known_start,
        noise_multiplier=noise,
        max_grad_norm=1.0,
        sample_rate=rate,
        expected_batch_size=rate * len(data[0]),
        steps=STEPS,
        learning_rate=0.5,
    )
    claim = PrivacyClaim(noise_multiplier=noise, sample_rate=rate, steps=STEPS, delta=DELTA)
    return audits(train, data, CANARIES[canary], [claim], trainings, seed)[0]


def run(records: int, trainings: int, seed: int) -> Found:
    """Return the audits of digits at each sample rate, and of random records at one."""
    cases = [
        *product(["digits"], CANARIES, RATES),
        *product(["random"], CANARIES, [RANDOM_AT]),
    ]
    return {
        (name, canary, rate): audited(records_of(name, records), canary, rate, trainings, seed)
        for name, canary, rate in each(cases)
    }


def bound(audit: TrainingAudit) -> float:
    """Return the lower bound on epsilon by one look at the planned end."""
    return audit.epsilon_lower_at_end or 0.0


def bound_of_any_mechanism(audit: TrainingAudit) -> float:
    """Return the same bound without any assumption on the mechanism."""
    return min(b.epsilon_lower or 0.0 for b in audit.bounds if b.looks == "single")


def draw(found: Found) -> Figure:
    """Draw the bounds over the sample rate; open markers are of random records."""
    figure = blank_figure((6.5, 4.0))
    axes = figure.subplots()
    plain_axes(axes)
    for canary, colour, marker in zip(CANARIES, (BLUE, ORANGE, TEAL), "osD", strict=True):
        bounds = [bound(found["digits", canary, rate]) for rate in RATES]
        axes.plot(RATES, bounds, f"{marker}-", color=colour, label=canary)
        at_random = bound(found["random", canary, RANDOM_AT])
        axes.plot(RANDOM_AT, at_random, marker, mfc="white", color=colour)
    axes.axhline(EPSILON, color=INK, ls="--", lw=1, label="spent")
    axes.set_xscale("log")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
    axes.minorticks_off()
    axes.set_xlabel("sample rate (open: random records)")
    axes.set_ylabel("lower bound on epsilon at 95 %")
    axes.legend(fontsize=9, frameon=False)
    return figure


def main() -> None:
    options = arguments(__doc__)
    records, trainings = (50, 2000) if options.full else (50, 400)
    found = run(records, trainings, options.seed)
    print(f"{records} records, {STEPS} steps, known start, {trainings} trainings: lower bounds on")
    print(f"epsilon at 95 % by one look at the planned end, where {EPSILON:g} is spent")
    columns = ["", "wrong guesses", "Gaussian, Poisson", "any mechanism"]
    print_table(
        columns,
        [
            [
                f"{name}, {canary}, q {rate:g}",
                f"{audit.errors}/{audit.guesses}",
                bound(audit),
                bound_of_any_mechanism(audit),
            ]
            for (name, canary, rate), audit in found.items()
        ],
    )
    save(draw(found), options.out, "subsampled_trainings")


if __name__ == "__main__":
    main()
