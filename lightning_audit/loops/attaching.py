"""`attach`: begins the audit of a plain PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch

from lightning_audit._validate import end_at_user
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries.gradient import GradientCanary
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.config import AuditConfig, named_as_here
from lightning_audit.loops.audit import Audit
from lightning_audit.loops.training import Unattached, check_arguments, config_anyhow
from lightning_audit.results.audit_report import OF_VERDICTS, UnauditableTraining
from lightning_audit.verdict.allow import Allow
from lightning_audit.verdict.judge import Resolution

_DELIBERATE = (ValueError, TypeError, UnauditableTraining, *OF_VERDICTS)


@named_as_here
def attach(
    model: torch.nn.Module,
    optimizer: Any,
    loader: Any = None,
    claimed_epsilon: float | None = None,
    *,
    delta: float | None = None,
    claim: PrivacyClaim | None = None,
    canaries: Sequence[GradientCanary | InputCanary] | None = None,
    num_canaries: int = 8,
    oversize: float = 1000.0,
    every_n_steps: int | None = None,
    significance: float = 1e-3,
    bound_significance: float = 0.05,
    resolution: Resolution | None = None,
    allow: Sequence[str | Allow] = (),
    on_violation: Literal["raise", "stop", "warn"] = "raise",
    on_inconclusive: Literal["raise", "warn"] = "warn",
    on_budget: Literal["raise", "stop"] = "raise",
    report_dir: str | Path = "audit",
    log: Any = None,
    log_prefix: str = "audit",
    seed: int | None = None,
    examinations: Literal["auto"] | int = "auto",
    bounds: Sequence[str] | Literal["all"] = (),
    source_in_report: bool = True,
    verbose: bool = False,
    root: torch.nn.Module | None = None,
    step: Callable[[Any], Any] | None = None,
    epochs: int | None = None,
    precision: str | None = None,
    state: Mapping[str, Any] | None = None,
) -> Audit:
    """Audit the DP-SGD of a plain training loop, from this call until `Audit.close`.

    The loop does not change:

        with lightning_audit.attach(model, optimizer, loader, claimed_epsilon=8.0):
            train(model, optimizer, loader)

    Without ``with``, call `Audit.close` after the loop. `PrivacyViolation` is raised from the
    ``optimizer.step()`` that shows it, or from the loader's next batch if the step was examined by
    replay; what is known before the first step is raised here. The exception ends the audit.

    Args:
        model: that the loop calls, as `make_private` returned it; with ``wrap_model=False`` your
            own.
        optimizer: of `make_private`, or a list; for hand-written DP-SGD, which needs ``claim``, one
            of torch's.
        loader: of `make_private`; iterate it as before, also by Opacus' `BatchMemoryManager`. None
            if there is no torch loader: then batches are counted by steps, and a PASS is not
            possible, because sampling is unknown.
        claimed_epsilon: the epsilon that the whole training must not exceed, > 0; None for the
            accountant's own.
        delta: the delta of all epsilons, in (0, 1); None for the claim's, or 1e-5.
        claim: what cannot be read from the optimizer, or is to be tested instead of its settings.
            For hand-written DP-SGD ``noise_multiplier``, ``max_grad_norm`` and
            ``expected_batch_size`` must be stated; they hold for every step.
        canaries: of an audited step, or one input canary alone; None for the default mix.
        num_canaries: size of the default mix, >= 1; not used if ``canaries`` are given.
        oversize: norm of the canaries over the clipping norm, >= 1. A canary of norm 1 detects no
            clipping faults. Not used for an input canary, whose amplitude decides its norm.
        every_n_steps: canaries enter each n-th step; None for every step, or for fewer after the
            first 500 if canaries require a copy of the per-sample gradients.
        significance: probability of a false alarm over the whole run, in (0, 1).
        bound_significance: probability that a logged lower bound is wrong, in (0, 1).
        resolution: what the audit must be able to detect before it may pass; None for noise of 0.8
            times the claim and a clipping norm twice too large.
        allow: findings that do not fail the run, by name or as `Allow`; they are still shown.
        on_violation: "raise" `PrivacyViolation` in the loop; "warn" and "stop" set
            `Audit.should_stop`, for the loop to look at.
        on_budget: "raise" `ClaimUsedUp` before the step that would exceed the claim, or "stop":
            only set `Audit.should_stop`.
        on_inconclusive: "warn", or "raise" `InconclusiveAudit` when the audit is closed.
        report_dir: directory of report and observations.
        log: called with the metrics at the end of an epoch, such as ``wandb.log``, or one of
            Lightning's loggers, which gets the report and its figure too; or a list of these.
        log_prefix: first part of the names of the metrics.
        seed: of the coins; None to draw one, which the report shows after the training has ended.
        examinations: steps that are examined by replay, which tests the definition of DP-SGD and
            does not change the training: "auto" for the first step (at most 92 replays) and later
            ones (at most 3 % of the time since), 0 for none, or a number of steps of each
            training, without a time limit. On a GPU, files that a step writes are written again.
        bounds: the literature's bounds to log as well, such as ["fdp_cp"], or "all".
        source_in_report: whether the report shows the first 12 lines at most of the code to look
            at; file and lines are shown in any case.
        verbose: whether to print every check at the end, instead of a summary of 15 lines.
        root: module with all trained parameters; None for ``model``.
        step: function of a batch that is one whole training step, for replays; None to take the
            body of the loop from its source. See `Audit.step`.
        epochs: planned passes over the loader, so that a claim that they exceed is known before the
            first step; None if unknown.
        precision: "32-true", "64-true", "bf16-true" or "bf16-mixed"; None to read it from the
            parameters and from ``torch.autocast`` around the first forward pass.
        state: of an earlier part of this training, from `Audit.state_dict`; after one in bf16 by
            autocast state the ``precision`` too.

    Returns:
        The audit, also a context manager.

    Raises:
        ValueError: an argument is outside its range.
        UnauditableTraining: model or optimizer cannot be audited; the message says what to change.
        PrivacyViolation: the claim is known to be false before the first step.
    """
    given = dict(locals())
    try:
        check_arguments(given)
        audit = Audit(AuditConfig.of_arguments(attach, given), given)
        audit._start()
    except _DELIBERATE as error:
        end_at_user(error)
        raise
    except Exception as error:  # the audit's own; within `_start` it is caught there
        audit = cast("Audit", Unattached(config_anyhow(attach, given), Path(report_dir), error))
    return audit
