"""From findings to the likely faults, in words an engineer can act on.

A fault is named by a rule that rests on numbers which the checks show as their evidence. The rules
stand in the order of their rank: what was seen for certain, then the clipping, re-used noise, the
scale and shape of the noise, what leaks, the sampling and the accounting. A fault that entails
another finding takes it away from the rules below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_audit.accounting.margin import exceeds
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.checks.registry import LEAKAGE, MEASURED, NOISE, REUSE
from lightning_audit.results.audit_report import CheckResult, LikelyFault
from lightning_audit.verdict.candidates import Candidate, Case
from lightning_audit.verdict.clipping_faults import clipping_candidates
from lightning_audit.verdict.noise_faults import noise_candidates, reuse_candidates, reuse_is_seen


@dataclass(frozen=True)
class _Rule:
    """A finding that tells its fault by itself.

    Args:
        finding: name of the check.
        name: the fault's identifier.
        sentence: what is wrong.
        look_at: what to look at in the code.
        explains: findings that the fault entails.
    """

    finding: str
    name: str
    sentence: str
    look_at: str
    explains: tuple[str, ...] = ()


#: What was seen for certain, the most far-reaching first.
_CERTAIN = (
    _Rule(
        "gradient_replaced",
        "gradient_replaced",
        "gradient replaced: the closure ran again inside the optimizer's step, and the update used "
        "the raw gradient, without clipping and noise",
        "whether step() passes its closure on to the inner optimizer, or something writes p.grad "
        "after the noise was added",
        MEASURED,
    ),
    _Rule(
        "no_dp",
        "no_dp",
        "no DP-SGD: an optimizer steps that is not the private one",
        "what configure_optimizers returns: every optimizer there must come from make_private",
    ),
    _Rule(
        "finite",
        "not_finite",
        "a record that is not finite: its gradient is not a number, no clipping bounds it, and the "
        "model shows whether the record was there",
        "the loss of that record (a logarithm or a quotient of zero, an overflow), and whether "
        "clipping leaves samples out whose norm is not finite",
    ),
    _Rule(
        "unsynchronised",
        "unsynchronised",
        "no synchronised DP-SGD: each process clips, adds noise and trains on its own, and the "
        "first one's model is kept",
        "how the module is wrapped for several processes before make_private sees it",
        MEASURED,
    ),
    _Rule(
        "reuse.resume",
        "noise_restarted",
        "noise re-used: a seeded generator started again when the training was resumed",
        "where the noise generator is seeded, and whether its state is in the checkpoint",
        ("reuse.lag", "reuse.recurrence"),
    ),
    _Rule(
        "clipping.norm",
        "wrong_norms",
        "clipping by wrong norms: samples are clipped by norms that their gradients exceed",
        "the norm samplers of ghost clipping: a layer, a bias or a second use may be left out",
        ("sensitivity", *LEAKAGE),
    ),
    _Rule(
        "reuse.optimizers",
        "noise_shared_by_optimizers",
        "noise re-used: the generators of two optimizers started in the same state",
        "where the generators of the optimizers are seeded",
    ),
    _Rule(
        "logical_batch",
        "batches_run_together",
        "logical batches run together: a record can count twice in one step",
        "how the loader that splits batches ends an epoch",
    ),
    _Rule(
        "coupling",
        "records_coupled",
        "records are not independent: a record changes the gradients of others, so that clipping "
        "its own does not bound what it adds",
        "layers and losses that work over the batch: batch normalisation, statistics of the batch, "
        "contrastive losses; and layers that order the batch anew, such as packed sequences",
        ("sensitivity", *LEAKAGE),
    ),
)
_DIVISOR = _Rule(
    "batch_normalised",
    "divides_by_realised_batch",
    "divided by the realised batch size: the noise of a step depends on how many records it drew, "
    "and large batches have too little",
    "what the sum of gradients and noise is divided by: it must be the expected batch size, a "
    "constant",
    ("sensitivity", "noise.shape", *REUSE, *LEAKAGE),
)
_LEAKAGE = _Rule(
    "epsilon",
    "leaks_more_than_claimed",
    "more leaks than the claim allows, by noise and clipping together",
    "clipping and noise of each step, and the noise multiplier that the accountant is told",
)
_OF_THE_RUN = (
    _Rule(
        "sampling.not_poisson",
        "not_poisson",
        "wrong sampling: the loader is not Poisson although the accountant supposes it",
        "which loader train_dataloader returns: Lightning does not take the one of make_private",
        ("sampling.rate",),
    ),
    _Rule(
        "sampling.repeated",
        "sampled_by_every_process",
        "wrong sampling: every process draws from all records, so a record may enter a step "
        "several times",
        "whether the loader deals the records out to the processes",
    ),
    _Rule(
        "sampling.rate",
        "sampled_too_often",
        "wrong sampling: the loader draws more often than the accountant is told",
        "the batch sizes of the loader that is trained on and of the one that make_private was "
        "given",
    ),
    _Rule(
        "expected_batch_size",
        "divisor_tells_the_number_of_records",
        "divided by a number that is computed of the records: the size of the noise tells how many "
        "there are, which is stated as private",
        "what the sum of gradients and noise is divided by: make_private computes it of the data "
        "set, and it can be set to a constant afterwards",
    ),
)
_ACCOUNTING = _Rule(
    "accounting",
    "wrong_accounting",
    "wrong accounting: the steps that ran cost more than is claimed",
    "the number of steps, the sample rate and the noise multiplier that the claim was made for",
)
_REPLACEMENT = _Rule(
    "accounting",
    "replacement_accounted_as_removal",
    "wrong accounting: epsilon is promised where a record is replaced, and the claim covers only a "
    "record more or less",
    "which data sets are neighbours for the accountant: Opacus' suppose a record more or less, and "
    "another record in the place of one moves the sum of the gradients twice as far",
)
#: Noise below this part of the claim is not made by dividing by a batch that is large by chance.
_LARGE_BATCH = 0.5


def likely_faults(
    violated: Sequence[CheckResult],
    monitor: AuditMonitor | None,
    oversize: float,
    processes: int = 1,
) -> tuple[LikelyFault, ...]:
    """Name the faults that may be behind the violated checks.

    Args:
        violated: the checks that count as violated, at least one.
        monitor: all checks by e-process after the last step; None if no step was observed.
        oversize: norm of the canaries over the clipping norm.
        processes: number of processes that train together.

    Returns:
        The faults, the likeliest first, at least one.
    """
    case = Case({check.name: check for check in violated}, monitor, oversize, processes)
    candidates = [
        *_by_finding(case, _CERTAIN),
        *_divisor_candidates(case),
        *clipping_candidates(case),
        *reuse_candidates(case),
        *noise_candidates(case),
        *_by_finding(case, (_LEAKAGE,)),
        *_by_finding(case, _OF_THE_RUN),
        *_by_finding(case, [_REPLACEMENT if _is_accounted_as_removal(case) else _ACCOUNTING]),
    ]
    kept: list[LikelyFault] = []
    explained: set[str] = set()
    for candidate in candidates:
        finding = candidate.fault.finding
        if finding not in explained:
            kept.append(candidate.fault)
            explained.update(name for name in candidate.explains if name != finding)
    explained.update(fault.finding for fault in kept)
    kept += [_unexplained(case, name) for name in case.violated if name not in explained]
    return tuple(kept)


def loses_no_privacy(violated: Sequence[CheckResult], monitor: AuditMonitor) -> bool:
    """Whether noise and clipping err together, so that the leakage stays within the claim.

    Args:
        violated: the checks that count as violated.
        monitor: all checks after the last step.
    """
    case = Case({check.name: check for check in violated}, monitor, 1.0)
    reuse = [name for name in case.violated if name.startswith("reuse.")]
    # Too small a noise makes the differences small by which re-use is found.
    if not set(case.violated) <= {*NOISE, *REUSE, "sensitivity"}:
        return False
    if any(name == "reuse.recurrence" or reuse_is_seen(case, monitor, name) for name in reuse):
        return False
    if monitor.signal_over_noise(monitor.significance).ratio_lower > 1.0:
        return False
    # The shift may be as large as its estimate plus its error, the noise as small as in any tensor.
    return monitor.sensitivity.shift_upper < 1.05 * monitor.witness_noise.smallest_ratio


def _by_finding(case: Case, rules: Iterable[_Rule]) -> list[Candidate]:
    return [
        case.candidate(rule.name, rule.finding, rule.sentence, rule.look_at, explains=rule.explains)
        for rule in rules
        if rule.finding in case.violated
    ]


def _is_accounted_as_removal(case: Case) -> bool:
    """Whether the claim would hold if no record were replaced, but one added or removed."""
    if "accounting" not in case.violated:
        return False
    numbers = case.violated["accounting"].evidence
    by_removal = numbers.get("epsilon_by_removal")
    return by_removal is not None and not exceeds(by_removal, numbers["claimed_epsilon"])


def _divisor_candidates(case: Case) -> list[Candidate]:
    """Division by the realised batch, where noise that is re-used does not look like it."""
    if _DIVISOR.finding not in case.violated:
        return []
    monitor = case.monitor
    shared = ("reuse.broadcast", "reuse.lag")
    if monitor is not None and any(reuse_is_seen(case, monitor, name) for name in shared):
        return []
    quiet = 1.0 if monitor is None else monitor.witness_noise.smallest_ratio
    entailed = NOISE if quiet > _LARGE_BATCH else ()
    rule = dataclasses.replace(_DIVISOR, explains=(*_DIVISOR.explains, *entailed))
    return _by_finding(case, [rule])


def _unexplained(case: Case, finding: str) -> LikelyFault:
    """A violated check that no rule knows, in its own words."""
    check = case.violated[finding]
    return case.candidate(
        finding.replace(".", "_"), finding, check.message or finding, check.advice
    ).fault
