"""Ways to train with DP-SGD under Lightning, each a row of what the audit must be able to audit.

A row is a module and the Trainer's arguments. `test_training_matrix` runs every one of them, and
`docs/which-trainings.md` is made of their names.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from gan_support import GENERATOR, Gan
from hand_written_support import CLAIM, HandWritten, OneByOne, OwnOptimizer
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from places import DOCS
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from training_support import ManualModule, PrivateModule, mlp, random_data
from two_nets import TwoOptimizers, two_nets

from lightning_audit.canaries import Mislabeled
from lightning_audit.testing.faulty import OwnFactors, OwnNoise
from lightning_audit.testing.trainings import AdaptiveClipping, PhysicalBatches

HIDDEN = 128
#: An epoch of batches of 16 has the 120 steps that are looked at: epoch ends take time.
RECORDS = 1920
DATA = random_data(RECORDS)


@dataclass(frozen=True)
class Row:
    """A way to train, with arguments of Trainer and audit."""

    group: str  # the heading in the docs
    name: str
    module: Callable[[], pl.LightningModule]
    trainer: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    copies: bool = False  # of per-sample gradients, to add canaries
    first: int = 0  # step that canaries enter
    remark: str = ""


def wide(
    kind: type[PrivateModule] = PrivateModule, net: nn.Module | None = None, **kwargs: Any
) -> PrivateModule:
    """A training of a network so wide that the data's part of a coordinate is small."""
    return kind(mlp(hidden=HIDDEN) if net is None else net, **{"dataset": DATA, **kwargs})


# ------------------------------------------------------------------ clipping


class PerLayer(PrivateModule):
    """Every tensor has a clipping norm of its own."""

    engine_arguments: ClassVar = {"clipping": "per_layer"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_grad_norm = [0.1 * (1 + j) for j, _ in enumerate(self.trainable())]


class AdaClip(PrivateModule):
    engine_arguments: ClassVar = AdaptiveClipping.engine_arguments


class Ghost(PrivateModule):
    """Ghost clipping as its tutorial has it, in automatic optimization."""

    criterion: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, mode="ghost", **kwargs)

    def configure_optimizers(self) -> Any:
        self.net, optimizer, criterion, _ = self.make_private(criterion=nn.CrossEntropyLoss())
        self.__dict__["criterion"] = criterion
        return optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return {"loss": self.criterion(self.net(x), y)}


class NotWrappedGhost(Ghost):
    def configure_optimizers(self) -> Any:
        hooks, optimizer, criterion, _ = self.make_private(
            criterion=nn.CrossEntropyLoss(), wrap_model=False
        )
        self.__dict__["hooks"], self.__dict__["criterion"] = hooks, criterion
        return optimizer


class ManualGhost(Ghost):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx)["loss"])
        optimizer.step()


class AdaptiveGhost(ManualGhost):
    """Adaptive ghost clipping, which automatic optimization would switch off."""

    engine_arguments: ClassVar = {
        "target_unclipped_quantile": 0.5,
        "min_clipbound": 0.1,
        "max_clipbound": 10.0,
        "clipbound_learning_rate": 0.2,
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine = PrivacyEngineAdaptiveClipping()

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.criterion.criterion.reduction = "none"  # which Opacus' adaptive loss does not ask for
        return optimizer


# ------------------------------------------------------------------ per-sample gradients


class ExpandedWeights(PrivateModule):
    """torch's own per-sample gradients, which want them cleared before the forward pass."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.trainer.optimizers[0].zero_grad()


class Physical(PrivateModule):
    """Opacus' batch memory manager: physical batches of at most eight records."""

    def train_dataloader(self) -> Any:
        logical = super().train_dataloader()
        sampler = PhysicalBatches.splitter(
            sampler=logical.batch_sampler,
            max_batch_size=8,
            optimizer=self.trainer.optimizers[0],
        )
        return DataLoader(logical.dataset, batch_sampler=sampler, collate_fn=logical.collate_fn)


class SecureNoise(PrivateModule):
    """The path of secure mode through the noise; its generator is another package's."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.secure_mode = True
        return optimizer


class NotWrapped(PrivateModule):
    def configure_optimizers(self) -> Any:
        hooks, optimizer, _ = self.make_private(wrap_model=False)
        self.__dict__["hooks"] = hooks
        return optimizer


# ------------------------------------------------------------------ optimization


class RawOptimizer(ManualModule):
    """Manual optimization around Lightning: no hook of it is called."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        functional.cross_entropy(self.net(batch[0]), batch[1]).backward()
        optimizer.step()


class Scheduled(PrivateModule):
    """A schedule of Opacus, stepped at every epoch's end."""

    schedule: Any = None

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.__dict__["scheduled"] = type(self).schedule(optimizer, gamma=0.99)
        return optimizer

    def on_train_epoch_end(self) -> None:
        self.scheduled.step()


class NoiseSchedule(Scheduled):
    schedule = ExponentialNoise


class ClipSchedule(Scheduled):
    schedule = ExponentialGradClip


def two_groups(params: Any) -> torch.optim.Optimizer:
    every = list(params)
    return torch.optim.SGD([{"params": every[:2], "lr": 0.1}, {"params": every[2:]}], lr=0.05)


class OwnStep(DPOptimizer):
    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        return self.original_optimizer.step() if self.pre_step() else None


class OwnPreStep(DPOptimizer):
    def pre_step(self, closure: Any = None) -> Any:
        return super().pre_step(closure)


class OwnScale(DPOptimizer):
    def scale_grad(self) -> None:
        for p in self.params:
            p.grad = p.grad / (self.expected_batch_size * self.accumulated_iterations)


def loss_of_net(module: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module.net(batch[0]), batch[1])


# ------------------------------------------------------------------ networks


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.third = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.third.weight = self.second.weight
        self.last = nn.Linear(HIDDEN, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.third(torch.relu(self.second(x)))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(2, 48, batch_first=True)
        self.last = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(x.view(-1, 4, 2))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 64)
        self.norm = nn.LayerNorm(64)
        self.attention = DPMultiheadAttention(64, 2, batch_first=True)
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(x.unsqueeze(-1)))
        return self.last(self.attention(x, x, x)[0].mean(1))


def frozen() -> nn.Module:
    net = mlp(hidden=HIDDEN)
    net[0].weight.requires_grad_(False)
    return net


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


GRADIENTS, CLIPPING, NOISE, PRECISION, BATCHES, OPTIMIZATION, NETWORKS, BY_HAND, INPUTS = (
    functools.partial(Row, group)
    for group in (
        "Per-sample gradients",
        "Clipping",
        "Noise",
        "Precision",
        "Batches",
        "Optimization",
        "Networks",
        "Hand-written DP-SGD",
        "Input canaries, without a change to the training",
    )
)
ROWS: tuple[Row, ...] = (
    GRADIENTS("`grad_sample_mode='hooks'`", wide),
    GRADIENTS("`grad_sample_mode='functorch'`", lambda: wide(mode="functorch")),
    GRADIENTS(
        "`grad_sample_mode='ew'` (expanded weights)",
        lambda: wide(ExpandedWeights, mode="ew"),
        copies=True,
    ),
    GRADIENTS("`wrap_model=False`", lambda: wide(NotWrapped)),
    CLIPPING("flat", lambda: wide(max_grad_norm=0.3, noise_multiplier=0.6)),
    CLIPPING(
        "per layer",
        lambda: wide(PerLayer, batch_size=2),
        remark="every canary fills each tensor's own clipping norm",
    ),
    CLIPPING(
        "adaptive (AdaClip)",
        lambda: wide(AdaClip),
        audit={"allow": ["opacus_defects"]},
        remark="canaries take no part in the adaptation",
    ),
    CLIPPING("ghost, automatic optimization", lambda: wide(Ghost)),
    CLIPPING("ghost, manual optimization", lambda: wide(ManualGhost)),
    CLIPPING("ghost, `wrap_model=False`", lambda: wide(NotWrappedGhost)),
    CLIPPING(
        "adaptive ghost, manual optimization",
        lambda: wide(AdaptiveGhost, batch_size=64),
        audit={"allow": ["opacus_defects"]},
        remark="automatic optimization switches the adaptation off",
    ),
    NOISE("secure mode's noise", lambda: wide(SecureNoise)),
    NOISE("a noise schedule", lambda: wide(NoiseSchedule, batch_size=64)),
    NOISE("a clipping norm schedule", lambda: wide(ClipSchedule, batch_size=64)),
    PRECISION("`precision='64-true'`", wide, {"precision": "64-true"}),
    PRECISION("`precision='bf16-mixed'`", wide, {"precision": "bf16-mixed"}),
    PRECISION("`precision='bf16-true'`", wide, {"precision": "bf16-true"}),
    BATCHES(
        "batch memory manager, with a sampler that states no length",
        lambda: wide(Physical, batch_size=24),
        {"max_steps": 480},  # Lightning counts physical batches
        remark="one coin a logical batch",
    ),
    BATCHES(
        "`accumulate_grad_batches`, without Poisson sampling",
        lambda: wide(poisson=False, make_poisson=False, batch_size=8),
        {"accumulate_grad_batches": 2},
        {"allow": "sampling.not_poisson"},
        copies=True,
    ),
    BATCHES("empty batches", lambda: wide(batch_size=1, dataset=random_data(200))),
    OPTIMIZATION("manual optimization", lambda: wide(ManualModule)),
    OPTIMIZATION(
        "manual optimization with the raw optimizer and `loss.backward()`",
        lambda: wide(RawOptimizer),
        {"max_steps": -1, "max_epochs": 1},  # Lightning does not count such steps
        copies=True,
    ),
    OPTIMIZATION(
        "several private optimizers, manual optimization",
        lambda: wide(TwoOptimizers, two_nets()),
        {"max_steps": 240},  # Lightning counts the steps of both
        remark="a record for each; epsilon is that of the steps of all",
    ),
    OPTIMIZATION(
        "a GAN: a private discriminator, an ordinary generator",
        lambda: Gan(dataset=DATA),
        {"max_steps": 240},  # Lightning counts the steps of both
        {"allow": [GENERATOR]},
        remark='`Allow("no_dp", optimizer="G", reason=...)`; [how](gan.md)',
    ),
    OPTIMIZATION("several parameter groups", lambda: wide(inner=two_groups)),
    OPTIMIZATION("`gradient_clip_val`", wide, {"gradient_clip_val": 1e-3}),
    OPTIMIZATION("Adam", lambda: wide(inner=lambda params: torch.optim.AdamW(params, lr=1e-3))),
    *(
        OPTIMIZATION(f"an own `{method}`", lambda kind=kind: wide(optimizer_class=kind))
        for method, kind in {
            "step": OwnStep,
            "pre_step": OwnPreStep,
            "clip_and_accumulate": OwnFactors,
            "add_noise": OwnNoise,
            "scale_grad": OwnScale,
        }.items()
    ),
    NETWORKS(
        "convolutions and group norm",
        lambda: wide(net=convolutions(), dataset=random_data(RECORDS, width=64)),
    ),
    NETWORKS("`DPLSTM`", lambda: wide(net=Recurrent()), copies=True),
    NETWORKS("`DPMultiheadAttention` and layer norm", lambda: wide(net=Attention())),
    *(
        BY_HAND(name, kind, audit={"claim": CLAIM}, first=first, remark=remark)
        for name, kind, first, remark in (
            (
                "`vmap` per-sample gradients, manual optimization",
                HandWritten,
                0,
                "`lightning_audit.per_sample`",
            ),
            ("a loop over samples", OneByOne, 0, "`lightning_audit.rows`"),
            (
                "an own optimizer that ends in `super().step()`",
                OwnOptimizer,
                1,
                "`lightning_audit.per_sample`",
            ),
        )
    ),
    *(
        INPUTS(
            name,
            module,
            audit={
                "canaries": [Mislabeled(amplitude=100.0, loss=loss_of_net, num_classes=10)],
                **more,
            },
            remark="the batch has one sample more in half the steps",
        )
        for name, module, more in (
            ("`grad_sample_mode='hooks'`", wide, {}),
            ("`grad_sample_mode='functorch'`", lambda: wide(mode="functorch"), {}),
            ("ghost clipping", lambda: wide(Ghost), {}),
            ("hand-written DP-SGD", lambda: HandWritten(ask=False), {"claim": CLAIM}),
        )
    ),
    NETWORKS("frozen parameters", lambda: wide(net=frozen())),
    NETWORKS("tied parameters", lambda: wide(net=Tied())),
)

#: Rows that stand for the others where the audited model is compared with the unaudited one.
COMPARED = [
    row
    for row in ROWS
    if (row.group, row.name)
    in {
        ("Per-sample gradients", "`grad_sample_mode='hooks'`"),
        ("Clipping", "per layer"),
        ("Clipping", "ghost, automatic optimization"),
        ("Precision", "`precision='bf16-true'`"),
        ("Batches", "batch memory manager, with a sampler that states no length"),
        ("Hand-written DP-SGD", "a loop over samples"),
    }
]
assert len(COMPARED) == 6


# ------------------------------------------------------------------ the docs page

#: Trainings of two processes by the folder that `tests/session/test_planner.py` reads of them.
PROCESSES: dict[str, str] = {
    "audited": "`DistributedDPOptimizer`",
    "per_layer": "`SimpleDistributedPerLayerOptimizer`",
    "ghost": "`DistributedDPOptimizerFastGradientClipping`",
}

REFUSED: tuple[tuple[str, str], ...] = (
    (
        "fp16 with a gradient scaler (on a CPU Lightning makes `bf16-mixed` of `16-mixed`, which "
        "is audited)",
        "`32-true` or `bf16-mixed`: the scaler multiplies per-sample "
        "gradients before they are clipped",
    ),
    ("`LBFGS`", "an optimizer that takes one gradient a step"),
    (
        "several private optimizers that share a parameter, in several processes, or with an "
        "input canary",
        "one optimizer with parameter groups, one process, or gradient canaries",
    ),
    ("several audits in one Trainer", "one audit"),
    ("one audit in two Trainers that fit at the same time", "an audit for each Trainer"),
    ("strategies that shard parameters (FSDP, DeepSpeed)", "`strategy='ddp'`"),
    ("hand-written DP-SGD or input canaries in several processes", "`devices=1`"),
    ("input canaries under per-layer or adaptive clipping", "gradient canaries"),
)

_HEAD = """# Which trainings can be audited

<!-- Made by `python tests/support/training_matrix.py` from the test matrix; do not edit. -->

For the engineer who asks if this audit works with a training like theirs, and what to write if not.

Each row is a training that `tests/callbacks/test_privacy_audit_healthy.py` runs for 120 steps or
more: the canaries' signal is one and the noise is as claimed, within sampling error, and the
trained model equals the one without the audit (`make test` compares six rows and one training of
two processes, `make nightly` the others). *No copy* means that canaries join the per-sample
gradients without copying these, and can be in every step at little cost. If rows are copied,
canaries join the first 500 steps and every tenth step later, unless `every_n_steps` is set.
"""


def markdown() -> str:
    """The docs page."""
    parts = [_HEAD]
    for group in dict.fromkeys(row.group for row in ROWS):
        rows = [row for row in ROWS if row.group == group]
        opacus = not any(row.audit.keys() & {"claim", "canaries"} for row in rows)
        parts.append(f"\n## {group}\n\n")
        parts.append("| training | no copy | remark |\n" if opacus else "| training | remark |\n")
        parts.append("|---|---|---|\n" if opacus else "|---|---|\n")
        for row in rows:
            cells = [row.name, *(["" if row.copies else "yes"] if opacus else []), row.remark]
            parts.append(f"| {' | '.join(cells)} |\n")
    parts.append("\n## Two processes (`strategy='ddp'`)\n\n[How](ddp.md).\n\n| training |\n|---|\n")
    parts += [f"| {name} |\n" for name in PROCESSES.values()]
    parts.append("\n## Refused, before the first step\n\n| training | instead |\n|---|---|\n")
    parts += [f"| {name} | {instead} |\n" for name, instead in REFUSED]
    parts.append("\nNext: [a plain loop](plain-loops.md), or [Lightning](lightning.md).\n")
    return "".join(parts)


if __name__ == "__main__":
    page = DOCS / "which-trainings.md"
    page.write_text(markdown())
