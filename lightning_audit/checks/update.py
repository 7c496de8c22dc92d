"""Checks of the update: which gradient it uses, and whether it is the released one.

**Test of whether the gradient of the update is computed from the releases alone.** A release has no
canaries, so canaries cannot show whether noise is removed after it. But most processing of releases
can be explained entry by entry.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_audit.checks.check import MEASURED, Check, Fault
from lightning_audit.layout import FloatArray
from lightning_audit.results.audit_report import CheckResult

# --- The check `gradient_replaced`: which gradient the update uses.


def gradient_replaced_result(
    replaced: int, steps: int, first_step: int | None = None
) -> CheckResult:
    """Return the result of `gradient_replaced`: one step with another gradient violates it.

    Args:
        replaced: number of steps whose gradient changed between the noise and the update.
        steps: number of observed steps.
        first_step: the first step whose gradient changed; None if it is unknown.
    """
    if not steps:
        return GRADIENT_REPLACED.not_run("no step was seen")
    evidence = {"replaced": replaced, "steps": steps, "first_step": first_step}
    return GRADIENT_REPLACED.judged(evidence)


def _another_gradient(seen: Mapping[str, Any]) -> str:
    if seen.get("replaced"):
        return (
            f"in {seen['replaced']} of {seen['steps']} steps the update used a gradient other than "
            "the one that was clipped and noised"
        )
    return (
        "the update depends on the canaries' coins although the canaries were subtracted from the "
        "noisy gradient: it uses gradients from before the noise"
    )


GRADIENT_REPLACED = Check(
    "gradient_replaced",
    title="Gradient of the update",
    failed_title="Update uses another gradient",
    meaning="The update used a gradient other than the clipped and noisy one, or more than that "
    "one.",
    look_at="whether `step` passes its closure to the inner optimizer, and what writes to `p.grad` "
    "after the noise is added",
    topic="What the update uses",
    # The update follows coins of removed canaries; raw gradients show that in a step or two.
    weight=10,
    each=True,
    always=True,
    must_run=True,
    wrong=lambda seen: seen["replaced"] > 0,
    fine="every update used the gradient that was clipped and noised",
    message=_another_gradient,
    faults=(
        Fault(
            "gradient_replaced",
            "A backward pass after the noise replaces the gradient",
            "gradient replaced: a backward pass ran after the noise was added, and the update used "
            "a gradient without clipping and noise",
            "whether step() passes its closure to the inner optimizer, which runs it again (opacus "
            "issue #313), and whether the step has a second backward pass: both losses belong in "
            "one backward pass, before the noise",
        ).rule(-9, MEASURED, applies=lambda seen: seen.get("replaced") != 0),
        Fault(
            "update_follows_raw_gradients",
            "The update uses gradients from before the noise",
            "gradient replaced: the update uses gradients from before the noise, in addition to "
            "the noisy one or instead of it",
            "what the optimizer, or a hook, does after the noise was added: with p.grad_sample, "
            "p.summed_grad, or gradients kept from before",
        ).rule(-9, MEASURED),
    ),
)


# --- The check `no_dp`: optimizers that step without clipping and noise.

_OPTIMIZERS = (
    "the training's optimizers: each one that steps must be that of PrivacyEngine.make_private "
    "(Lightning: returned from configure_optimizers), with every trainable parameter"
)
#: In addition, if there is a private optimizer as well.
_OR_ALLOW = (
    "; if one of several optimizers learns about private records only through private weights (a "
    "GAN's generator), or on public ones, exempt it: allow=[Allow('no_dp', optimizer=..., "
    "reason='...')] (from lightning_audit), optimizer= its index among the training's, its class, "
    "or the prefix of its parameters' names, and train it on a fixed number of fakes: as many "
    "fakes as records reveal the size of the batch"
)
_NO_DP = Fault(
    "no_dp",
    "An optimizer steps without clipping and noise",
    "no DP-SGD: an optimizer steps that is not the private one",
    _OPTIMIZERS,
)


def no_dp_result(
    plain_steps: int,
    private_steps: int,
    plain_name: str,
    exempt: Mapping[str, int] | None = None,
    refused: str = "",
    by_records: Sequence[str] = (),
) -> CheckResult:
    """Return the result of `no_dp`: no optimizer may step without DP-SGD unless it is exempt.

    Args:
        plain_steps: number of steps of optimizers without DP-SGD.
        private_steps: number of steps of the private optimizer.
        plain_name: type of the plain optimizer that stepped last.
        exempt: number of steps of each optimizer that the user exempts, by its description.
        refused: type of the plain optimizer whose first step the audit prevented.
        by_records: exempt optimizers that train on as many rows as the batch has records.
    """
    evidence: dict[str, Any] = {"plain_steps": plain_steps, "private_steps": private_steps}
    if refused:
        evidence["refused_steps"] = 1
    fine = "only the private optimizer took steps"
    if exempt:
        evidence["exempt_steps"] = sum(exempt.values())
        fine = "in addition to the private optimizer, exempt ones took steps: " + "; ".join(
            f"{count} of {words}" for words, count in exempt.items()
        )
    who = refused or plain_name
    if not plain_steps and not refused:
        if not private_steps:
            return NO_DP.not_run("no private optimizer took a step", evidence)
        if by_records:
            evidence["by_records"], who = len(by_records), "; ".join(by_records)
    return NO_DP.judged(evidence, fine, who=who)


def _not_private(seen: Mapping[str, Any]) -> str:
    who, steps = seen["who"], seen["plain_steps"]
    if "by_records" in seen:
        return (
            f"the number of records reaches an exempt optimizer: each step of {who} trains on as "
            "many rows as the batch has records, or a multiple of it, and no noise hides that "
            "number"
        )
    if "refused_steps" in seen:
        return f"{who} was stopped before its first step, which has no clipping and no noise"
    return f"{who} took {steps} step{'s' * (steps > 1)} without clipping and noise"


NO_DP = Check(
    "no_dp",
    title="Optimizers without DP-SGD",
    failed_title="An optimizer is not private",
    meaning="An optimizer steps without clipping and noise, or an exempt one trains on a number of "
    "rows that follows the number of records.",
    look_at="the training's optimizers: each one must come from `make_private`, or be exempt and "
    "train on a fixed number of rows",
    topic="What the update uses",
    always=True,
    optimizers=0,  # an audited training claims privacy, even if no optimizer is private
    must_run=True,
    wrong=lambda seen: (
        seen["plain_steps"] > 0
        or seen.get("refused_steps", 0) > 0
        or seen.get("by_records", 0) > 0
        or seen.get("hidden", False)  # in reports of earlier releases
    ),
    message=_not_private,
    faults=(
        Fault(
            "number_of_records_reaches_exempt_optimizer",
            "The number of records reaches an exempt optimizer",
            "the number of records reaches an optimizer without DP-SGD, by the number of rows it "
            "trains on",
            "how many fakes the generator is trained on: a fixed number, such as the expected "
            "batch size, for any size of the batch; the private discriminator's step may use as "
            "many fakes as records, if they are detached and in a pass of their own: in one pass "
            "with the records, use a fixed number, for each fake is a row that is clipped and "
            "summed with theirs",
        ).rule(-8, applies=lambda seen: seen.get("by_records", 0) > 0),
        dataclasses.replace(_NO_DP, look_at=_OPTIMIZERS + _OR_ALLOW).rule(
            -8, ("replay",), applies=lambda seen: seen.get("private_steps", 0) > 0
        ),
        _NO_DP.rule(-8, ("replay",)),
    ),
)


# --- Test of whether the gradient of the update is computed from the releases alone.

#: Number of past releases that are compared.
_LAGS = 8
#: Largest residual of an explained gradient, relative to the gradient.
_ROUNDING = 1e-3
#: Largest number, and fraction, of unexplained gradients with which a run can pass.
_FEW, _SHARE = 9, 0.1


class ReleaseProcessing:
    """Explains the gradients of updates by releases, at the probe coordinates.

    A gradient is explained if it is the release times one number, apart from entries set to zero
    (clipping to a norm, masks, top-k); a nondecreasing function of each entry (signs, clipping,
    quantization); or a linear combination of the releases of nine steps and the previous gradient
    (averages, filters, momentum).
    """

    def __init__(self) -> None:
        self._past: deque[FloatArray] = deque(maxlen=_LAGS)
        self._before: FloatArray | None = None
        self._steps = self._unexplained = 0
        #: Number of steps whose gradient a backward pass after the noise changed.
        self.behind = 0
        #: By step number, 1 if its gradient was not explained, 2 if by a backward pass.
        self._which = bytearray()

    def update(
        self, step: int, release: FloatArray, used: FloatArray | None, *, behind: bool = False
    ) -> None:
        """Update with a step.

        Args:
            step: its number, from 0.
            release: entries of the noisy gradient, ``[n]``.
            used: the same entries of the gradient at the update; None if it is the release times
                one number.
            behind: whether a backward pass after the noise changed it.
        """
        self._steps += 1
        kept = release if used is None else used
        if behind or (used is not None and not self._explains(release, used)):
            self._unexplained += 1
            self._which.extend(bytes(max(0, step + 1 - len(self._which))))
            self._which[step] = 1 + behind
            self.behind += behind
        self._past.appendleft(release)
        self._before = kept

    def _explains(self, release: FloatArray, used: FloatArray) -> bool:
        if not (np.isfinite(release).all() and np.isfinite(used).all()):
            return False
        if not used.any():
            return True
        left = used != 0.0
        ratio = used[left] / np.where(release[left] == 0.0, np.nan, release[left])
        if np.allclose(ratio, ratio[0], rtol=_ROUNDING):
            return True
        ordered = used[np.argsort(release, kind="stable")]
        if np.all(np.diff(ordered) >= 0.0):
            return True
        columns = [release, *self._past, *([] if self._before is None else [self._before])]
        table = np.stack(columns, axis=1)
        if len(used) < 2 * table.shape[1]:
            return False
        found, *_ = np.linalg.lstsq(table, used, rcond=None)
        rest = float(np.linalg.norm(used - table @ found))
        return rest <= _ROUNDING * float(np.linalg.norm(used))

    @property
    def followed(self) -> bool:
        """Whether at least nine tenths of the gradients, or all but nine, were explained.

        A backward pass after the noise is explained by a replay alone.
        """
        return not self.behind and self._unexplained <= max(_FEW, _SHARE * self._steps)

    def was_unexplained(self, step: int) -> bool:
        """Return whether a step's gradient was not explained, for the worst of the reasons."""
        return step < len(self._which) and self._which[step] > (self.behind > 0)

    def if_of_records(self, found: CheckResult, leaks: bool) -> CheckResult:
        """Return the result of `gradient_replaced`, in which backward passes after the noise count.

        They do if a replay found that the weights depend on records in addition to the release.
        """
        if found.name != GRADIENT_REPLACED.name or not (leaks and self.behind):
            return found
        return gradient_replaced_result(self.behind, self._steps, self._which.index(2))


# --- The check `unsynchronised`: processes that update with different gradients.


def unsynchronised_result(synchronised: bool, processes: int) -> CheckResult:
    """Return the result of `unsynchronised`: all processes must update with the same gradient.

    Args:
        synchronised: whether all processes read the same gradients at every step.
        processes: number of processes.
    """
    return UNSYNCHRONISED.judged(
        {"processes": processes, "synchronised": synchronised},
        f"all {processes} processes updated with the same gradients",
    )


UNSYNCHRONISED = Check(
    "unsynchronised",
    title="Synchronization of the processes",
    failed_title="Processes train separately",
    meaning="Each process clips, adds noise and updates on its own, and only the model of the "
    "first one is kept.",
    look_at="how the module is wrapped for several processes before `make_private` gets it: "
    "DistributedDataParallel does not reach what DPOptimizer makes; call make_private with "
    "module=DifferentiallyPrivateDistributedDataParallel(net) (from opacus.distributed), which "
    "gives a DistributedDPOptimizer; load with DPDataLoader.from_data_loader(loader, "
    "distributed=True) (Lightning: or with module=self.trainer.strategy.model and "
    "wrap_model=False; and Trainer(use_distributed_sampler=False))",
    topic="What the update uses",
    wrong=lambda seen: seen["synchronised"] is not True,
    message="the {processes} processes updated with different gradients, so the privacy that the "
    "optimizer states does not hold for them together",
    faults=(
        Fault(
            "unsynchronised",
            sentence="no synchronised DP-SGD: each process clips, adds noise and trains on its "
            "own, and the first one's model is kept",
        ).rule(-6, MEASURED),
    ),
)


# --- The checks of the fence around the steps; see `run.fence`.


def _not_allowed(check: CheckResult) -> str:
    """Return why a finding prevents a pass, and how to allow it."""
    if check.status != "warned":
        return ""
    server = "if a server sent them between rounds, audit these by lightning_audit.Rounds; "
    return (
        f"{check.message}; {server * bool(check.evidence.get('unnamed'))}if that uses no training "
        f"record without noise, allow=[Allow({check.name!r}, reason='...')]"
    )


FENCE_WEIGHTS = Check(
    "fence.weights",
    title="Changes outside of the steps",
    failed_title="Weights change outside of steps",
    meaning="A hook or the loop changed weights, buffers or optimizer state outside of the private "
    "steps, by what is not known to be made of released weights.",
    look_at="the hook that the message names, which must let no record reach weights outside of "
    "its step: averages, clamping, scaling and pruning by size pass, and `allow` accepts an "
    "innocent one, such as one that draws a layer again",
    topic="What the update uses",
    always=True,
    warns=True,
    wrong=lambda seen: seen["changes"] > 0,
    blocks=_not_allowed,
    fine="outside of private steps, weights changed only by what is made of released weights",
    message="{what}",
)

FENCE_MONITORS = dataclasses.replace(
    FENCE_WEIGHTS,
    name="fence.monitors",
    title="Metrics that decide",
    failed_title="A raw metric decides",
    meaning="A scheduler, early stopping or the best checkpoint follows a metric that is computed "
    "from training records without noise.",
    look_at="what the monitored metric is computed from: records that are not trained on may "
    "decide, as may the step number",
    wrong=lambda seen: seen["monitors"] > 0,
    fine="no scheduler, early stopping or checkpoint is known to follow a metric without noise",
)


#: The checks of this subject, in the order of the report.
CHECKS = (GRADIENT_REPLACED, NO_DP, UNSYNCHRONISED, FENCE_WEIGHTS, FENCE_MONITORS)
