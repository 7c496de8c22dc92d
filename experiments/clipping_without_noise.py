"""Trainings that clip and add no noise: the larger the clipping norm, the more they leak.

python experiments/clipping_without_noise.py [--full]

Nasr et al., "Tight auditing of differentially private machine learning", arXiv:2302.07956,
Figure 11: blank and mislabeled canaries over the clipping norm. Here also a crafted canary, and
known instead of random initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from common import arguments, digits, each, print_table, save
from digit_audits import DELTA, audits, known_start, random_start
from matplotlib.figure import Figure

from lightning_audit.many import Blank, Crafted, DPSGDMany, Mislabeled, TrainingAudit
from lightning_audit.report.figure import BLUE, INK, ORANGE, TEAL, blank_figure, plain_axes
from lightning_audit.stats._arguments import ConfusionCounts
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_epsilon, gaussian_mu

NORMS = (0.1, 1.0, 10.0)
CANARIES = {"blank": Blank(label=1), "mislabeled": Mislabeled(), "crafted": Crafted()}
STARTS = {"random": random_start, "known": known_start}
CLAIMS = {
    "(1, 1e-5)": (1.0, DELTA),
    "(4, 1e-5)": (4.0, DELTA),
    **{f"Gaussian {e}": GaussianTradeoff(float(gaussian_mu(e, DELTA))) for e in (1, 4, 8)},
}
#: Trainings within which a claim must be refuted: full batches, known start, crafted, C >= 1.
GOALS = {"(1, 1e-5)": 50, "(4, 1e-5)": 500, "Gaussian 4": 100, "Gaussian 8": 100}


@dataclass(frozen=True)
class Leak:
    """Audits of all claims that read the same trainings, in the order of `CLAIMS`."""

    audits: list[TrainingAudit]

    @property
    def estimate(self) -> float:
        """The epsilon that the paper plots."""
        return fdp_zb(self.audits[0].counts)

    @property
    def refuted(self) -> list[object]:
        """Number of trainings at which each claim was refuted at significance 1e-3."""
        return [audit.seen.refuted_after or f">{audit.trainings}" for audit in self.audits]

    @property
    def row(self) -> list[object]:
        """Wrong guesses, estimate, and the bounds of a Gaussian and of any mechanism."""
        any_mechanism, gaussian = self.audits[0], self.audits[-1]
        return [
            f"{gaussian.errors}/{gaussian.guesses}",
            self.estimate,
            gaussian.epsilon_lower_at_end or 0.0,
            any_mechanism.epsilon_lower_at_end or 0.0,
        ]


def fdp_zb(counts: ConfusionCounts) -> float:
    """Return the epsilon of the lower end of the paper's f-DP (ZB) at 95 %: an estimate."""
    mu = Posterior.of_mu(counts, region="one_sided").quantile(0.05)
    return float(gaussian_epsilon(mu, DELTA))


def without_errors(trainings: int) -> float:
    """Return the estimate of guesses without an error."""
    half = trainings // 2
    return fdp_zb(ConfusionCounts(fn=0, tp=half, fp=0, tn=half))


def leak(
    canary: str, start: str, norm: float, *, rate: float, records: int, trainings: int, seed: int
) -> Leak:
    """Train 100 steps that clip and add no noise, at a sample rate, and audit the claims."""
    inputs, classes = digits()
    train = DPSGDMany(
        STARTS[start],
        noise_multiplier=0.0,
        max_grad_norm=norm,
        sample_rate=rate,
        expected_batch_size=rate * records,
        steps=100,
        learning_rate=0.5,
    )
    data = inputs[:records], classes[:records]
    return Leak(audits(train, data, CANARIES[canary], list(CLAIMS.values()), trainings, seed))


def run(records: int, trainings: int, seed: int) -> dict[tuple[str, str, float], Leak]:
    """Return the leak by start, canary and clipping norm, with Poisson batches of q = .1."""
    return {
        (start, canary, norm): leak(
            canary, start, norm, rate=0.1, records=records, trainings=trainings, seed=seed
        )
        for start, canary, norm in each(product(STARTS, CANARIES, NORMS))
    }


def draw(found: dict[tuple[str, str, float], Leak], trainings: int) -> Figure:
    """Draw the paper's Figure 11, and the same with known initial weights."""
    figure = blank_figure((9.0, 4.0))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, start in zip(panels, STARTS, strict=True):
        plain_axes(axes)
        for canary, colour in zip(CANARIES, (BLUE, ORANGE, TEAL), strict=False):
            estimates = [found[start, canary, norm].estimate for norm in NORMS]
            axes.plot(NORMS, estimates, "o-", color=colour, label=canary)
        axes.axhline(without_errors(trainings), color=INK, ls="--", lw=1, label="no wrong guess")
        axes.set_xscale("log")
        axes.set_title(f"{start} initial weights", fontsize=10)
        axes.set_xlabel("clipping norm C (no noise)")
    panels[0].set_ylabel("lower f-DP (ZB) bound, delta 1e-5")
    panels[0].legend(fontsize=9, frameon=False)
    return figure


def main() -> None:
    options = arguments(__doc__)
    records, trainings = (200, 2000) if options.full else (200, 300)
    found = run(records, trainings, options.seed)
    print(f"{records} records, Poisson batches of q = .1, 100 steps, {trainings} trainings")
    print(
        f"lower ends at 95 %; without a wrong guess, f-DP (ZB) is {without_errors(trainings):.3g}"
    )
    names = [f"{canary}, {start}, C {norm:g}" for start, canary, norm in found]
    columns = ["", "wrong guesses", "f-DP (ZB)", "Gaussian, CP", "any mechanism, CP"]
    print_table(columns, [[n, *one.row] for n, one in zip(names, found.values(), strict=True)])
    print("\ntrainings until a claim is refuted at 1e-3")
    print_table(
        ["", *CLAIMS], [[n, *one.refuted] for n, one in zip(names, found.values(), strict=True)]
    )
    print("\nthe same with full batches, crafted canary, known start")
    rows: list[list[object]] = [["at most", *(GOALS.get(claim, "") for claim in CLAIMS)]]
    for norm in NORMS[1:]:
        one = leak(
            "crafted", "known", norm, rate=1.0, records=records, trainings=500, seed=options.seed
        )
        rows.append([f"C {norm:g}", *one.refuted])
    print_table(["", *CLAIMS], rows)
    save(draw(found, trainings), options.out, "clipping_without_noise")


if __name__ == "__main__":
    main()
