"""The checks of clipping, of what a step is made of, and of what leaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_audit.accounting.margin import exceeds
from lightning_audit.catalogue.check import MEASURED, Check, FaultRule
from lightning_audit.catalogue.replay_checks import unanswered

NO_DP = Check(
    "no_dp",
    "an optimizer steps without clipping and noise",
    always=True,
    optimizers=0,  # whoever audits claims privacy, also where no optimizer is private
    must_run=True,
    wrong=lambda seen: (
        seen["plain_steps"] > 0 or seen.get("refused_steps", 0) > 0 or seen.get("by_records", 0) > 0
    ),
    faults=(
        FaultRule(
            "number_of_records_reaches_exempt_optimizer",
            "the number of records reaches an optimizer without DP-SGD, by the size of what it is "
            "trained on",
            "how many fakes the generator is trained on: a fixed number passes",
            rank=-8,
            applies=lambda seen: seen.get("by_records", 0) > 0,
        ),
        FaultRule(
            "no_dp",
            "no DP-SGD: an optimizer steps that is not the private one",
            "what configure_optimizers returns: every optimizer there must come from make_private",
            rank=-8,
        ),
    ),
)

#: Low precision rounds norms, but not by as much as this.
NORM_TOLERANCE = 1.1


def norm_not_passed_on(seen: Mapping[str, Any]) -> bool:
    """Whether ghost clipping clips at more than the optimizer's norm, by more than rounding."""
    # Reports of before have neither.
    return bool(seen.get("module_norm", 0.0) > (1.0 + 1e-6) * seen.get("optimizer_norm", 0.0))


CLIPPING_NORM = Check(
    "clipping.norm",
    "ghost clipping goes by norms that samples' gradients exceed, or by a larger max_grad_norm "
    "than the optimizer's",
    each=True,
    wrong=lambda seen: seen["largest_ratio"] > NORM_TOLERANCE or norm_not_passed_on(seen),
    private=True,
    fine="the norms that clipping goes by are those of the gradients",
    # Settings: no data are in them.
    public=("module_norm", "optimizer_norm"),
    faults=(
        FaultRule(
            "clipping_norm_not_passed_on",
            "clipping norm too large: ghost clipping clips at the module's max_grad_norm, and the "
            "noise is made for the optimizer's, which is smaller",
            "what changes optimizer.max_grad_norm, as a scheduler does: it must set "
            "module.max_grad_norm to the same value",
            rank=-4,
            explains_groups=("clipping", "replay", "leakage"),
            applies=norm_not_passed_on,
        ),
        FaultRule(
            "wrong_norms",
            "clipping by wrong norms: samples are clipped by norms that their gradients exceed",
            "the norm samplers of ghost clipping: a layer, a bias or a second use may be left out",
            rank=-4,
            explains_groups=("clipping", "replay", "leakage"),
        ),
    ),
)

SENSITIVITY = Check(
    "sensitivity",
    "one record adds more than clipping allows",
    # It needs the most steps of all: what is left over helps it most.
    weight=130,
    group="clipping",
    needs="no finite gradient was read of a step with canaries",
    each=True,
    always=True,
    must_run=True,
    doubtful=True,
    size_of="signal",
)

GRADIENT_REPLACED = Check(
    "gradient_replaced",
    "the update used another gradient than the noisy one, or more than it",
    # The update follows coins whose canaries were taken out; raw gradients show in a step or two.
    weight=10,
    each=True,
    always=True,
    must_run=True,
    wrong=lambda seen: seen["replaced"] > 0,
    faults=(
        FaultRule(
            "gradient_replaced",
            "gradient replaced: a backward pass ran after the noise was added, and the update used "
            "a gradient without clipping and noise",
            "whether step() passes its closure on to the inner optimizer, which runs it again, and "
            "whether the step has a second backward pass: both losses belong into one, before the "
            "noise",
            rank=-9,
            explains_groups=MEASURED,
            applies=lambda seen: seen.get("replaced") != 0,
        ),
        FaultRule(
            "update_follows_raw_gradients",
            "gradient replaced: the update uses gradients from before the noise, beside the noisy "
            "one or in its place",
            "what the optimizer, or a hook, does after the noise was added: with p.grad_sample, "
            "p.summed_grad, or gradients kept from before",
            rank=-9,
            explains_groups=MEASURED,
        ),
    ),
)

FINITE = Check(
    "finite",
    "a record's gradient is not a number, and gets past clipping",
    each=True,
    always=True,
    wrong=lambda seen: "records" in seen,
    private=True,
    fine="the gradient of every step was finite",
    public=("lost_steps", "message"),
    faults=(
        FaultRule(
            "not_finite",
            "a record that is not finite: its gradient is not a number, no clipping bounds it, and "
            "the model shows whether the record was there",
            "the loss of that record (a logarithm or a quotient of zero, an overflow), and whether "
            "clipping leaves samples out whose norm is not finite",
            rank=-7,
        ),
    ),
)

UNSYNCHRONISED = Check(
    "unsynchronised",
    "several processes train, and each updates with a gradient of its own",
    wrong=lambda seen: seen["synchronised"] is not True,
    faults=(
        FaultRule(
            "unsynchronised",
            "no synchronised DP-SGD: each process clips, adds noise and trains on its own, and the "
            "first one's model is kept",
            "how the module is wrapped for several processes before make_private sees it",
            rank=-6,
            explains_groups=MEASURED,
        ),
    ),
)

COUPLING = Check(
    "coupling",
    "a record's gradient depends on the others in its batch",
    always=True,
    wrong=lambda seen: seen["step"] is not None,
    blocks=unanswered,
    private=True,
    fine="no record's gradient depended on the others in its batch",
    faults=(
        FaultRule(
            "records_coupled",
            "records are not independent: a record changes the gradients of others, so that "
            "clipping its own does not bound what it adds",
            "layers and losses that work over the batch: batch normalisation, statistics of the "
            "batch, contrastive losses; and layers that order the batch anew, such as packed "
            "sequences",
            rank=-1,
            explains_groups=("clipping", "replay", "leakage"),
        ),
    ),
)

LOGICAL_BATCH = Check(
    "logical_batch",
    "a rest of one logical batch is added to the next, where a record can count twice",
    wrong=lambda seen: seen["carried_over"] > 0,
    private=True,
    fine="every epoch began with a logical batch of its own",
    faults=(
        FaultRule(
            "batches_run_together",
            "logical batches run together: a record can count twice in one step",
            "how the loader that splits batches ends an epoch",
            rank=-2,
        ),
    ),
)

LOSS_REDUCTION = Check(
    "loss_reduction",
    "the loss is a sum where the optimizer takes it for a mean, or the reverse (a warning)",
    warns=True,
    wrong=lambda seen: seen["loss"] != seen["optimizer"],
)

EPSILON = Check(
    "epsilon",
    "more leaks than claimed, over the run",
    kind="epsilon",
    weight=100,
    group="leakage",
    always=True,
    doubtful=True,
    wrong=lambda seen: (
        seen["epsilon_lower"] is not None
        and exceeds(seen["epsilon_lower"], seen["claimed_epsilon"])
    ),
    faults=(
        FaultRule(
            "leaks_more_than_claimed",
            "more leaks than the claim allows, by noise and clipping together",
            "clipping and noise of each step, and the noise multiplier that the accountant is told",
            rank=5,
        ),
    ),
)
