"""The trainings: faults, faults in other configurations, published violations, no fault."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from lightning_audit.selftest import configurations, published
from lightning_audit.testing import distributed_trainings, opacus_trainings, trainings
from lightning_audit.testing.faults import BY_HAND_CLAIM, FAULTS, INPUT_CANARY, Fault

Group = Literal["fault", "configuration", "published", "healthy"]

#: Steps of healthy trainings, and of faults in other configurations.
STEPS = 100
#: Number of parts of a batch, each of which Lightning counts as a step.
_PARTS = {trainings.SplitBatches: 4, opacus_trainings.PhysicalBatches: 3}

_ELSEWHERE = {
    "split batches": trainings.SplitBatches,
    "physical batches": opacus_trainings.PhysicalBatches,
    "functorch": configurations.Functorch,
    "per layer": configurations.PerLayer,
    "adaptive clipping": configurations.AdaptiveClipping,
    "ghost clipping": opacus_trainings.Ghost,
}
#: Configurations whose clipping differs from the one that clipping faults replace.
_CLIP_OTHERWISE = ("per layer", "adaptive clipping", "ghost clipping")
_NOISE_ELSEWHERE = ("half_noise", "no_noise_on_last_layer", "same_noise_at_every_step")
_CLIPPING_ELSEWHERE = ("no_clipping", "clip_at_twice")
#: Faults of `--quick`: one of the clipping and one of the noise.
_QUICK = ("no_clipping", "half_noise")


@dataclass(frozen=True)
class Row:
    """A training of the selftest.

    Args:
        group: why it is trained.
        fault: what is trained, and for how many steps; if healthy, without a faulty optimizer and
            without an expected finding.
        configuration: the kind of training, as text.
    """

    group: Group
    fault: Fault
    configuration: str

    @property
    def healthy(self) -> bool:
        """Whether the training is correct, so that nothing may be found."""
        return self.group == "healthy"

    @property
    def seed(self) -> int:
        """The seed of the training: 0 for faults as in the registry, else made from the title."""
        return 0 if self.group == "fault" else zlib.crc32(self.title.encode()) % 10_000

    @property
    def title(self) -> str:
        """Fault and configuration, as text."""
        return f"{'healthy' if self.healthy else self.fault.name}, {self.configuration}"


def planned(faults: Collection[str] = (), *, quick: bool = False) -> tuple[Row, ...]:
    """Return the trainings to run.

    Args:
        faults: names of faults; empty for all of them and the healthy trainings.
        quick: only two faults and one healthy training, or the named faults in their own trainings.

    Raises:
        ValueError: a name is not that of a fault.
    """
    unknown = [name for name in faults if name not in FAULTS]
    if unknown:
        raise ValueError(f"--fault {unknown[0]} must be one of {', '.join(sorted(FAULTS))}.")
    wanted = [FAULTS[name] for name in dict.fromkeys(faults or (_QUICK if quick else FAULTS))]
    rows = [Row("fault", fault, _own_training(fault)) for fault in wanted]
    if not quick:
        rows += [row for fault in wanted for row in (*_elsewhere(fault), *_published(fault))]
    if not faults:
        rows += _healthy()[:1] if quick else _healthy()
    return tuple(rows)


def _own_training(fault: Fault) -> str:
    # The first match: the trainings of faults derive from one of these.
    names = {
        trainings.HandWritten: "by hand",
        distributed_trainings.Distributed: "two processes",
        trainings.SplitBatches: "split batches",
        trainings.DeepTraining: "deep net",
        opacus_trainings.GhostInParts: "ghost clipping of physical batches",
        opacus_trainings.PhysicalBatches: "physical batches",
        opacus_trainings.Ghost: "ghost clipping",
    }
    fits = (name for kind, name in names.items() if issubclass(fault.training, kind))
    return next(fits, "Opacus")


def _elsewhere(fault: Fault) -> list[Row]:
    clipping = fault.name in _CLIPPING_ELSEWHERE
    if not clipping and fault.name not in _NOISE_ELSEWHERE:
        return []
    return [
        Row("configuration", replace(fault, training=training, steps=_steps(training)), name)
        for name, training in _ELSEWHERE.items()
        if not (clipping and name in _CLIP_OTHERWISE)
    ]


def _published(fault: Fault) -> list[Row]:
    found = published.violations(fault.name)
    return [Row("published", violation, figure) for figure, violation in found.items()]


def _healthy() -> list[Row]:
    quiet = {"noise_multiplier": 0.5}
    by_hand = {"claim": BY_HAND_CLAIM}
    return [
        _sound("Opacus", trainings.Training),
        _sound("noise multiplier 0.5", trainings.Training, settings=quiet),
        _sound("deep net", trainings.DeepTraining),
        *(_sound(name, training) for name, training in _ELSEWHERE.items()),
        _sound("by hand", trainings.HandWritten, by_hand),
        _sound("input canary", trainings.Training, INPUT_CANARY),
        _sound("by hand, input canary", trainings.HandWritten, {**by_hand, **INPUT_CANARY}),
        _sound("figures 7-9", published.PublishedSettings, steps=published.STEPS),
    ]


def _sound(
    configuration: str,
    training: type[trainings.Training],
    audit: Mapping[str, Any] | None = None,
    settings: Mapping[str, float] | None = None,
    steps: int | None = None,
) -> Row:
    fault = Fault(
        "healthy",
        "nothing",
        "",
        "",
        training=training,
        audit=audit or {},
        settings=settings or {},
        steps=steps or _steps(training),
        ends="PASS",
    )
    return Row("healthy", fault, configuration)


def _steps(training: type[trainings.Training]) -> int:
    return STEPS * _PARTS.get(training, 1)
