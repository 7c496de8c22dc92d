"""The sampling checks: whether the loader draws its batches as the accountant assumes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from lightning_audit.accounting.shuffled_passes import epsilon_of_passes
from lightning_audit.checks.base.check import OF_BATCHES, Check, FaultRule
from lightning_audit.checks.sampling.batch_sampling import (
    LEAVE_OUT,
    NOT_POISSON,
    SAMPLING_RATE,
    BatchCheck,
)
from lightning_audit.results.audit_report import CheckResult

REPEATED = Check(
    "sampling.repeated",
    "every process draws from all records, so that one may enter a step several times",
    title="Records shared among processes",
    failed_title="Every process draws all records",
    meaning="Each process draws from all records, so one record can enter a step several times.",
    look_at="Check that the loader deals the records out to the processes: "
    "`DPDataLoader.from_data_loader(loader, distributed=True)`.",
    topic="Sampling and bookkeeping",
    kind="accounting",
    wrong=lambda seen: seen["processes"] > 1,
    refutes=OF_BATCHES,
    faults=(
        FaultRule(
            "sampled_by_every_process",
            "wrong sampling: every process draws from all records, so a record may enter a step "
            "several times",
            "whether the loader deals the records out to the processes",
            headline="Every process draws from all records",
            rank=8,
        ),
    ),
)

CHECKS = (REPEATED,)


LoaderKind = Literal["poisson", "not_poisson", "unknown"]

_WRITE_INSTEAD = (
    "Lightning trains on the loader that the module or data module returns, not on the one that "
    "PrivacyEngine.make_private returns: write `def train_dataloader(self): return "
    "DPDataLoader.from_data_loader(loader)` (from opacus.data_loader), or wrap the data module in "
    "opacus.lightning.DPLightningDataModule"
)
#: Advice for a loader without a batch sampler, which Poisson sampling and Opacus need.
_ITERABLE = (
    "an IterableDataset gives no record by its index, so that nothing can draw Poisson batches "
    "from it: give the records a length, as DataLoader(list(dataset), batch_size=...) does if they "
    "fit into memory, and return DPDataLoader.from_data_loader(loader) (from opacus.data_loader) "
    "from train_dataloader; give make_private the same loader"
)
_INFINITE = "_InfiniteConstantSampler"
_BY_CHOICE = (
    "make_private was called with poisson_sampling=False, and the accountant still assumes Poisson "
    "sampling: leave poisson_sampling at True and return DPDataLoader.from_data_loader(loader) "
    "from train_dataloader, or claim the epsilon that holds: "
    "PrivacyClaim(sampling='shuffled', epsilon=..., delta=...)"
)


def what_holds(noise_multiplier: float, passes: int, delta: float) -> str:
    """Describe the epsilon that holds if each record enters one step per pass.

    Args:
        noise_multiplier: smallest noise multiplier of the steps, > 0.
        passes: number of passes over the data, >= 1.
        delta: the delta.
    """
    zeroed = epsilon_of_passes(noise_multiplier, passes, delta)
    replaced = epsilon_of_passes(noise_multiplier, passes, delta, "replace_one")
    many = "one epoch costs" if passes == 1 else f"{passes} epochs cost"
    return (
        f". What holds: each record enters one step per epoch, so that {many} epsilon {zeroed:.4g} "
        f"at delta {delta:.3g} if a record is zeroed out, {replaced:.4g} if it is replaced"
    )


def sampling_results(
    kind: LoaderKind,
    description: str,
    loader_rate: float | None,
    accounted_rate: float | None,
    batch_sizes: Sequence[int],
    batches: BatchCheck | None = None,
    *,
    by_choice: bool = False,
    holds: str = "",
    epsilon_that_holds: float | None = None,
    raised_in: int | None = None,
) -> tuple[CheckResult, ...]:
    """Compare the loader with the Poisson sampling that the accountant assumes.

    Args:
        kind: what the loader's type shows.
        description: the loader's batch sampler, in words.
        loader_rate: the sampler's rate, None if it has none.
        accounted_rate: the accountant's rate, None if nothing is accounted.
        batch_sizes: sizes of the batches so far, without the last of each epoch; held in memory
            only, because no noise covers them.
        batches: the test of the batches, if the loader's type does not show how it draws.
        by_choice: whether make_private was called with ``poisson_sampling=False``.
        holds: which epsilon holds with this loader, in words; empty if that is unknown.
        epsilon_that_holds: the same as a number, for the adjacency of the claim.
        raised_in: epoch, from 0, since which the sampler has its rate; None if it always had it.

    Returns:
        Results of `sampling.not_poisson` and, for a Poisson loader, `sampling.rate`.
    """
    if accounted_rate is None or accounted_rate >= 1.0:
        return (NOT_POISSON.not_run("no subsampling is accounted for"),)
    if kind == "unknown" and batches is not None:
        return tuple(
            dataclasses.replace(result, advice=result.advice or _WRITE_INSTEAD)
            if result.status == "violated"
            else result
            for result in batches.results(description, accounted_rate)
        )
    if kind == "unknown" and _too_equal(batch_sizes, accounted_rate):
        kind, description = "not_poisson", f"{description}, with batches all of one size"
    if kind == "not_poisson":
        message = (
            f"the accountant assumes Poisson sampling at rate {accounted_rate:.4g}, but the "
            f"trainer's loader is not Poisson: {description}"
        )
        evidence: dict[str, Any] = {"loader": description, "poisson": False}
        if epsilon_that_holds is not None:
            evidence["epsilon_that_holds"] = epsilon_that_holds
        by_code = _BY_CHOICE if by_choice else _WRITE_INSTEAD
        advice = _ITERABLE if _INFINITE in description else by_code  # of an IterableDataset
        return (NOT_POISSON.judged(evidence, "", f"{message}{holds}", advice),)
    if kind == "unknown":
        message = f"it is unknown whether {description} draws Poisson batches"
        return (NOT_POISSON.not_run(message, {"accounted_rate": accounted_rate}),)
    poisson = NOT_POISSON.judged({"poisson": True}, f"the loader is Poisson: {description}", "", "")
    if loader_rate is None:
        return (poisson,)
    return (poisson, _rates(loader_rate, accounted_rate, raised_in))


def shuffled_result(kind: LoaderKind, description: str, *, once: bool) -> CheckResult:
    """Return the result of `sampling.not_poisson` if the claim states shuffled batches.

    Args:
        kind: what the loader's type shows.
        description: the loader's batch sampler, in words.
        once: whether each record enters at most one batch per epoch.
    """
    if once:
        message = f"each record enters at most one step per epoch, as claimed: {description}"
        evidence = {"poisson": False, "sampling": "shuffled"}
        return NOT_POISSON.judged(evidence, message, "", "")
    message = (
        f"sampling='shuffled' is claimed, and the loader is Poisson ({description}): {LEAVE_OUT}"
        if kind == "poisson"
        else "sampling='shuffled' is claimed, and it is unknown whether each record enters at most "
        f"one step per epoch, once: {description}"
    )
    return NOT_POISSON.not_run(message, {"sampling": "shuffled"})


def _rates(loader_rate: float, accounted_rate: float, raised_in: int | None) -> CheckResult:
    """Return the result of `sampling.rate`."""
    evidence: dict[str, Any] = {"loader_rate": loader_rate, "accounted_rate": accounted_rate}
    since = ""
    if raised_in is not None:
        since = f" from epoch {raised_in} on (the first is 0)"
        evidence["raised_in"] = raised_in
    message = (
        f"the loader's sample rate is {loader_rate:.4g}{since}, the accountant's "
        f"{accounted_rate:.4g}"
    )
    advice = "give the loader and the accountant the same rate: 1 / len(loader)"
    return SAMPLING_RATE.judged(evidence, message, message, advice)


def repeated_result(processes: int, accounted_rate: float | None) -> CheckResult:
    """Return the result of `sampling.repeated`, for processes that each draw from all records.

    Args:
        processes: number of processes.
        accounted_rate: the accountant's rate, None if nothing is accounted.
    """
    if accounted_rate is None or accounted_rate >= 1.0:
        return REPEATED.not_run("no subsampling is accounted for")
    return REPEATED.judged(
        {"processes": processes, "accounted_rate": accounted_rate},
        "",
        f"each of {processes} processes draws from all records at rate {accounted_rate:.4g}, so a "
        "record may be clipped and added several times in a step, and is accounted once",
        "write DPDataLoader.from_data_loader(loader, distributed=True), which deals the records "
        "out to the processes",
    )


def _too_equal(sizes: Sequence[int], rate: float) -> bool:
    """Return whether Poisson batches are all of one size with probability below 1e-9."""
    if not sizes or len(set(sizes)) > 1:
        return False
    variance = sizes[0] * (1.0 - rate)
    if variance < 1.0:
        return False
    most_likely = 1.0 / math.sqrt(2.0 * math.pi * variance)
    return (len(sizes) - 1) * math.log(most_likely) < math.log(1e-9)
