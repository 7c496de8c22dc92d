"""The check `opacus_defects`: what code of Opacus 1.6 itself does, where a training uses it.

See docs/opacus.md for each of them, and for what it costs.
"""

from __future__ import annotations

from lightning_audit.checks.check import NOISED, OF_BATCHES, Fault
from lightning_audit.checks.sampling import BookkeepingCheck
from lightning_audit.results.audit_report import CheckResult

#: Faults by their kind; those without a name are none, and prevent a pass.
_KINDS = {
    "averaged": Fault(
        "ghost_clipping_of_the_mean",
        "Ghost clipping clips no record",
        "no clipping: the criterion averages the losses of the batch, so that the gradient is the "
        "mean over all records times a number",
        "`criterion.criterion.reduction` of what make_private returns, which must be 'none'",
    ),
    "another": Fault(
        "ghost_clipping_without_its_loss",
        "Ghost clipping runs without its loss",
        "no clipping: the loss that runs backward is not that of make_private's criterion",
        "the losses on which backward is called before the step: with grad_sample_mode='ghost', "
        "loss = criterion(output, target) alone clips, of the third result of make_private, and no "
        "other loss (outputs.loss)",
    ),
    "alike": Fault(
        "processes_draw_alike",
        "The processes draw the same positions",
        "wrong sampling: the processes draw the same positions of their shares, so that a record "
        "is in a step exactly if one of another process is",
        "the seed of the loader's generator, which must differ between the processes: "
        "generator.manual_seed(seed + rank)",
    ),
    "made_up": Fault(
        "made_up_record",
        "Empty batches get a made-up record",
        "a made-up record: an empty batch is replaced by one of random numbers, so that a record "
        "that joins it moves the sum by up to twice the clipping norm",
        "the argument rand_on_empty: leave it out, and Opacus steps on empty batches with noise "
        "alone",
    ),
    "adaptive": Fault(
        "count_over_real_batch",
        "Adaptive clipping costs more than is accounted",
        "adaptive clipping costs more than is accounted: its noisy count is divided by the real "
        "number of records of the batch",
        "unclipped_frac, which a subclass of the optimizer can compute as 0.5 + (unclipped_num - "
        "0.5 * sample_size) / expected_batch_size",
    ),
    "left_out": Fault(
        "",
        sentence="a process leaves empty batches out, after which the batches of all no longer fit "
        "together",
        look_at="the size of the batches: an empty one of a process must be less likely than delta",
    ),
    "gdp": Fault(
        "",
        sentence="Opacus' gdp accountant reports less than the steps cost",
        look_at="the accountant: state PrivacyEngine(accountant='prv') or 'rdp', or "
        "claimed_epsilon",
    ),
}


def _doubts(found: CheckResult) -> str:
    if not (doubts := found.evidence.get("doubts")):
        return ""
    parts = ((_KINDS[kind], size) for kind, size in doubts)
    sentences = [f"{kind.sentence}: {size}; look at {kind.look_at}" for kind, size in parts]
    return "; ".join([*sentences, f"or state allow=['{OPACUS.name}']"])


OPACUS = BookkeepingCheck(
    "opacus_defects",
    title="Known defects of Opacus",
    failed_title="Opacus itself loses privacy",
    meaning="The training uses a part of Opacus that does not give what is accounted.",
    look_at="the part in docs/opacus.md, with what to write instead",
    wrong=lambda seen: bool(seen["of"]),
    blocks=_doubts,
    refutes=OF_BATCHES,
    fine="no part of Opacus that is known to lose privacy is used",
    message=lambda seen: f"{_KINDS[seen['of']].sentence}: {seen['size']}",
    faults=tuple(
        fault.rule(8.2, NOISED, "of", kind) for kind, fault in _KINDS.items() if fault.name
    ),
)

#: Part of the stated noise multiplier below which a cost is a finding: a PASS would notice it.
_LEFT = 0.8


def noise_multiplier_with_count(noise_multiplier: float, count_std: float) -> float:
    r"""Return the noise multiplier of a step that costs as much as one of adaptive clipping.

    With u unclipped of b records and noise z, a record moves ``(u + z) / b`` by up to ``b / (b +
    1)`` records over b. Theorem 1 accounts for half a record: of bits that are centered, over a
    constant. It leaves ``(noise_multiplier^-2 - (2 count_std)^-2)^(-1/2)`` for the gradient.

    Formula:
        ``(noise_multiplier^-2 - (2 count_std)^-2 + count_std^-2)^(-1/2)``

    Args:
        noise_multiplier: as accounted, > 0.
        count_std: standard deviation of the count's noise, in records, > 0.

    References:
        Andrew et al. 2021, arXiv:1905.03871, Theorem 1.

    Example:
        >>> round(noise_multiplier_with_count(1.0, 2.0), 3)
        0.918
    """
    return float((noise_multiplier**-2 + 0.75 * count_std**-2) ** -0.5)


def chance_of_empty(rate: float, records: int, steps: int) -> float:
    """Return (a bound of) the probability that a Poisson batch of some step has no record."""
    return float(min(1.0, steps * (1.0 - rate) ** records))


def opacus_result(
    *,
    averaged: bool = False,
    another: bool = False,
    alike: int = 0,
    empty: str = "",
    chance: float = 0.0,
    delta: float = 0.0,
    count: tuple[float, float] = (0.0, 0.0),
    gdp: bool = False,
) -> CheckResult:
    """Return the result of `opacus_defects`.

    Args:
        averaged: whether the criterion of ghost clipping averages over the batch.
        another: whether another loss than the criterion's ran backward under ghost clipping.
        alike: number of processes that draw the same positions of their shares.
        empty: what is done with empty batches, see `LoaderFacts`.
        chance: probability of an empty batch over all steps.
        delta: of the claim, which covers what is less likely.
        count: noise multiplier, and the noise of the count that the norm adapts to; zeros without.
        gdp: whether the gdp accountant alone states an epsilon.
    """
    sigma, std = count
    cost = noise_multiplier_with_count(sigma, std) if min(count) > 0.0 else sigma
    sizes = {
        "averaged": averaged and "in every step",
        "another": another and "in at least one step",
        "alike": alike and f"{alike} processes",
        empty: chance > delta and f"with probability {chance:.2g} over all steps",
        "adaptive": cost < sigma and f"noise_multiplier is worth {cost:.3g}, not {sigma:.3g}",
        "gdp": gdp and "its limit theorem is no bound, and epsilon is composed here instead",
    }
    found = {kind: size for kind, size in sizes.items() if kind in _KINDS and size}
    mild = {"left_out", "gdp"} | ({"adaptive"} if cost >= _LEFT * sigma else set())
    of = next((kind for kind in found if kind not in mild), "")
    doubts = [pair for pair in found.items() if pair[0] in mild]
    return OPACUS.judged(
        {"of": of, "doubts": doubts},
        "; ".join(f"{_KINDS[kind].sentence}: {size}" for kind, size in doubts),
        size=found.get(of),
    )


#: The check of this subject.
CHECKS = (OPACUS,)
