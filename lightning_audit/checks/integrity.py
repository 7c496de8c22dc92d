"""Is the gradient that the update uses the one that DP-SGD made?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_audit.catalogue.noise_checks import NOISE_EXCESS
from lightning_audit.catalogue.reuse_checks import NOISE_SHARED
from lightning_audit.catalogue.step_checks import (
    CLIPPING_NORM,
    FINITE,
    GRADIENT_REPLACED,
    LOGICAL_BATCH,
    LOSS_REDUCTION,
    NO_DP,
    UNSYNCHRONISED,
    norm_not_passed_on,
)
from lightning_audit.results.audit_report import CheckResult

#: What else is to be done about an optimizer beside a private one.
_OR_ALLOW = (
    "; if one of several optimizers learns nothing of private records but through private weights "
    "(the generator of a GAN whose discriminator is private), say so: PrivacyAudit(allow=["
    "Allow('no_dp', optimizer=..., reason='...')]) (from lightning_audit), optimizer= its place "
    "in configure_optimizers, its class, or the prefix of its parameters' names. Train it on a "
    "fixed number of fakes: as many as the batch has records tell it how many these are"
)
_BY_RECORDS = (
    "the number of records reaches an exempt optimizer: each step of {who} trains on as many rows "
    "as the batch has records, or a multiple, and no noise hides that number"
)
_FIXED = (
    "train the generator on a fixed number of fakes, such as the expected batch size, whatever the "
    "batch's own; the fakes of the private discriminator's own step may be as many as the records, "
    "if they are detached"
)


def gradient_replaced_result(
    replaced: int, steps: int, first_step: int | None = None
) -> CheckResult:
    """Result of `gradient_replaced`: one such step is enough.

    Args:
        replaced: steps whose gradient changed between the end of DP-SGD and the update.
        steps: steps seen.
        first_step: the first of the former, None if it is not known.
    """
    if not steps:
        return GRADIENT_REPLACED.not_run("no step was seen")
    return GRADIENT_REPLACED.judged(
        {"replaced": replaced, "steps": steps, "first_step": first_step},
        "every update used the gradient that DP-SGD made",
        f"in {replaced} of {steps} steps the update used another gradient than the one that was "
        "clipped and noised",
        "run every backward pass before the noise is added: do not pass the closure on to the "
        "inner optimizer (opacus issue #313), and add up a step's losses for one backward pass",
    )


def no_dp_result(
    plain_steps: int,
    private_steps: int,
    plain_name: str,
    exempt: Mapping[str, int] | None = None,
    refused: str = "",
    by_records: Sequence[str] = (),
) -> CheckResult:
    """Result of `no_dp`: whoever audits a training claims privacy, and an optimizer steps without.

    Args:
        plain_steps: steps of optimizers without DP-SGD.
        private_steps: steps of the private optimizer.
        plain_name: type of the plain optimizer that stepped last.
        exempt: steps of optimizers that the user exempts, by the words in which they are named.
        refused: type of the plain optimizer whose first step the audit did not let happen.
        by_records: those of the exempt ones that train on as many rows as the batch has records.
    """
    evidence: dict[str, Any] = {"plain_steps": plain_steps, "private_steps": private_steps}
    if refused:
        evidence["refused_steps"] = 1
    fine = "only the private optimizer took steps"
    if exempt:
        evidence["exempt_steps"] = sum(exempt.values())
        fine = "besides the private optimizer, steps are exempt: " + "; ".join(
            f"{count} of {words}" for words, count in exempt.items()
        )
    if not plain_steps and not private_steps and not refused:
        message = "no private optimizer took a step"
        return NO_DP.not_run(message, evidence)
    if by_records and not plain_steps and not refused:
        evidence["by_records"] = len(by_records)
        return NO_DP.judged(evidence, fine, _BY_RECORDS.format(who="; ".join(by_records)), _FIXED)
    return NO_DP.judged(
        evidence,
        fine,
        f"{refused} was stopped before its first step, which has no clipping and no noise"
        if refused
        else f"{plain_name} took {plain_steps} step{'s' * (plain_steps > 1)} without clipping and "
        "noise",
        "return the optimizer that PrivacyEngine.make_private gives from configure_optimizers, "
        "and give it every trainable parameter" + (_OR_ALLOW * bool(private_steps)),
    )


def clipping_norm_result(
    checked: int, largest_ratio: float, clipped_at: tuple[float, float] = (0.0, 0.0)
) -> CheckResult:
    """Result of `clipping.norm`: gradients that are never formed are clipped by their true norms.

    Args:
        checked: samples whose gradients were formed to see their norms.
        largest_ratio: largest norm over the one that clipping went by.
        clipped_at: clipping norm of the module and of the optimizer, of the step in which the
            first is largest over the second; zeros where none was seen.
    """
    module_norm, optimizer_norm = clipped_at
    evidence = {"module_norm": module_norm, "optimizer_norm": optimizer_norm}
    if norm_not_passed_on(evidence):
        return CLIPPING_NORM.judged(
            {"checked": checked, "largest_ratio": largest_ratio, **evidence},
            CLIPPING_NORM.fine,
            f"ghost clipping clips at module.max_grad_norm={module_norm:.4g}, and the noise is "
            f"made for optimizer.max_grad_norm={optimizer_norm:.4g}",
            "where optimizer.max_grad_norm is changed, set module.max_grad_norm to the same value, "
            "where module is the one that make_private returns",
        )
    if not checked:
        message = "no sample's norm was looked at"
        return CLIPPING_NORM.not_run(message)
    return CLIPPING_NORM.judged(
        {"checked": checked, "largest_ratio": largest_ratio, **evidence},
        CLIPPING_NORM.fine,
        f"a sample's gradient is {largest_ratio:.3g} times as long as the norm that clips it",
        "look for a layer whose norm is left out or computed otherwise (a bias, a layer that is "
        "used twice), or train with grad_sample_mode='hooks'",
    )


def noise_shared_result(shared: bool) -> CheckResult:
    """Result of `reuse.optimizers`: two optimizers must not add the same noise.

    Args:
        shared: whether the noise generators of two of them were in one state when they began.
    """
    return NOISE_SHARED.judged(
        {"shared": shared},
        NOISE_SHARED.fine,
        "two private optimizers began with their noise generators in the same state, so both add "
        "the same noise to their gradients",
        "do not seed the noise, or give all optimizers one generator",
    )


def logical_batch_result(carried: int, epochs: int) -> CheckResult:
    """Result of `logical_batch`: what a batch memory manager splits must stay one batch.

    Args:
        carried: epochs that began with the rest of a logical batch of the epoch before.
        epochs: epochs seen since the batches are split.
    """
    return LOGICAL_BATCH.judged(
        {"carried_over": carried, "epochs": epochs},
        LOGICAL_BATCH.fine,
        f"{carried} of {epochs} epochs began with the rest of a logical batch of the epoch before, "
        "which is added to the next one: a record that is in both counts twice, with one noise",
        "Lightning ends an epoch at the length that Opacus' BatchSplittingSampler estimates, amid "
        "a logical batch. Give it no length, so that every batch is taken: `class "
        "Whole(BatchSplittingSampler): def __len__(self): raise TypeError`, and return "
        "DataLoader(dataset, batch_sampler=Whole(sampler=..., max_batch_size=..., optimizer=...), "
        "collate_fn=loader.collate_fn) from train_dataloader",
    )


def unsynchronised_result(synchronised: bool, processes: int) -> CheckResult:
    """Result of `unsynchronised`: the update must use one gradient, the sum over all processes.

    Args:
        synchronised: whether all processes read the same gradients at every step.
        processes: number of processes.
    """
    return UNSYNCHRONISED.judged(
        {"processes": processes, "synchronised": synchronised},
        f"all {processes} processes updated with the same gradients",
        f"the {processes} processes updated with different gradients, so what the optimizer states "
        "holds for none of them together",
        "DistributedDataParallel does not reach what DPOptimizer makes: call make_private with "
        "module=DifferentiallyPrivateDistributedDataParallel(net) (from opacus.distributed), or "
        "with module=self.trainer.strategy.model and wrap_model=False, both of which give a "
        "DistributedDPOptimizer; load with DPDataLoader.from_data_loader(loader, distributed=True) "
        "and Trainer(use_distributed_sampler=False)",
    )


def equal_noise_result(processes: int) -> CheckResult:
    """Result of `noise.excess` where processes draw the same noise, so that their sum is loud.

    Args:
        processes: number of processes.
    """
    return NOISE_EXCESS.judged(
        {"processes": processes},
        "",
        "too much noise: several of the processes draw the same noise, whose sum is larger than "
        "that of independent draws; that loses no privacy, but accuracy",
        "let one process add the noise, or seed the generator of each with its rank",
    )


def finite_result(lost: int, first: tuple[int, int, int] | None) -> CheckResult:
    """Result of `finite`: no record may decide alone whether the released gradient is a number.

    Args:
        lost: steps whose gradient was not finite.
        first: the first of them that some records made so and others did not: its number, how many
            records did, and how many there were; None if there is none.
    """
    evidence: dict[str, int] = {"lost_steps": lost}
    if lost and first is None:
        message = (
            f"the gradient of {lost} steps was not finite, and it cannot be told whether single "
            "records made it so"
        )
        return FINITE.not_run(message, evidence)
    step, records, rows = first or (0, 0, 0)
    if lost:
        evidence |= {"step": step, "records": records, "rows": rows}
    return FINITE.judged(
        evidence,
        FINITE.fine,
        f"at step {step} the gradients of {records} of {rows} records looked at were not finite, "
        "and got past clipping: the released gradient tells that such a record is in the batch",
        "drop or clamp such records before training, or set per-sample gradients that are not "
        "finite to zero before they are clipped; no noise hides NaN",
    )


def loss_reduction_result(found: str | None, supposed: str | None) -> tuple[CheckResult, ...]:
    """Result of `loss_reduction`: a loss that is scaled by the batch size costs accuracy.

    Args:
        found: how the loss adds up its batch, "mean" or "sum"; None if that cannot be told.
        supposed: what the optimizer takes it for; None if it does not say.

    Returns:
        One result, or none where nothing can be told.
    """
    if found is None or supposed is None:
        return ()
    effect = (
        "per-sample gradients are a batch's size too large, and all are clipped"
        if found == "sum"
        else "per-sample gradients are a batch's size too small, and drown in the noise"
    )
    result = LOSS_REDUCTION.judged(
        {"loss": found, "optimizer": supposed},
        f"the loss is a {found} over its batch, as the optimizer takes it to be",
        f"the loss is a {found} over its batch where the optimizer takes it for a {supposed}: "
        f"{effect}; that loses no privacy, but accuracy",
        f"return the {supposed} of the losses from training_step, or give make_private "
        f"loss_reduction={found!r}",
    )
    return (result,)
