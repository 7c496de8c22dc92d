"""Configuration of an audit: the claim, the settings, and their changes at a resume."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ParamSpec, TypeVar

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.canaries.gradient import GradientCanary, default_mix
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.update import NO_DP
from lightning_audit.stats.named_bounds import BOUND_NAMES
from lightning_audit.verdict.allow import Allow
from lightning_audit.verdict.judge import OutcomeSettings, Resolution

# --- Configuration of an audit: the arguments of its front ends, including the claim.

#: The delta of all epsilons, if neither the argument nor the claim states one.
DEFAULT_DELTA = 1e-5

#: Actions after a verdict.
ON_VIOLATION = ("raise", "stop", "warn")
ON_INCONCLUSIVE = ("raise", "warn")
ON_BUDGET = ("raise", "stop")
#: Fields that are no settings.
_UNSHOWN = ("drawn_seed", "given")


def findings() -> tuple[str, ...]:
    """Return the names of all findings."""
    return (*REGISTRY, "unaudited")


@dataclass(frozen=True, kw_only=True)
class AuditConfig(OutcomeSettings):
    """Validated arguments of `PrivacyAudit` or `attach`, by their names; documented there.

    A run, its sessions, its report and its checkpoints share this object. Lists become tuples, and
    an epsilon stated by ``claim`` becomes ``claimed_epsilon``. ``drawn_seed`` is the seed that a
    run draws if ``seed`` is None, and ``given`` the names of the arguments that are not at their
    defaults.

    Raises:
        ValueError: an argument has the wrong type, is outside its range, or contradicts the claim.
    """

    claim: PrivacyClaim | None
    canaries: Sequence[GradientCanary | InputCanary]
    oversize: float
    every_n_steps: int | None
    bounds: Sequence[str]
    on_violation: str
    on_inconclusive: str
    on_budget: str
    seed: int | None
    examinations: int | str
    drawn_seed: int | None = None
    source_in_report: bool = True
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _refuse_another_class("claim", self.claim, PrivacyClaim)
        _refuse_another_class("resolution", self.resolution, Resolution)
        checked: dict[str, Any] = {
            "claimed_epsilon": _claimed_epsilon(self.claimed_epsilon, self.claim),
            "canaries": _canaries(self.canaries),
            "oversize": _oversize(self.oversize),
            "every_n_steps": _count_or_none("every_n_steps", self.every_n_steps),
            "bounds": _bounds(self.bounds),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        super().__post_init__()
        if self.claim is not None:
            _refuse_contradiction("delta", self.delta, "claim.delta", self.claim.delta)
        _refuse_unknown_findings([*self.allow, *(one.finding for one in self.exemptions)])
        _refuse_findings_of_the_run(self.exemptions)
        counted = self.examinations == "auto" or _is_count(self.examinations)
        of_examinations = "examinations", self.examinations, "'auto' or a whole number >= 0"
        _validate.fitting(*of_examinations, fits=counted)
        _validate.one_of("on_violation", self.on_violation, ON_VIOLATION)
        _validate.one_of("on_inconclusive", self.on_inconclusive, ON_INCONCLUSIVE)
        _validate.one_of("on_budget", self.on_budget, ON_BUDGET)
        if self.seed is not None and not _is_count(self.seed):
            raise ValueError(
                f"seed={self.seed!r} must be a whole number >= 0; leave it out to draw one."
            )
        shows = isinstance(self.source_in_report, bool)
        _validate.fitting("source_in_report", self.source_in_report, "True or False", fits=shows)

    @classmethod
    def of_arguments(cls, front: Callable[..., Any], values: Mapping[str, Any]) -> AuditConfig:
        """Return the configuration by the arguments of a front end.

        Args:
            front: the function that takes the arguments.
            values: the arguments by name, among others.

        Raises:
            ValueError: an argument has the wrong type or is outside its range.
        """
        place, prefix = values.get("report_dir"), values.get("log_prefix", "")
        is_path = isinstance(place, str | os.PathLike | None)
        _validate.fitting("report_dir", place, "the path of a directory", fits=is_path)
        _validate.fitting("log_prefix", prefix, "text", fits=isinstance(prefix, str))
        resolution = values["resolution"]
        own = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        made: dict[str, Any] = {
            **own,
            "delta": _delta(values["delta"], values["claim"]),
            "canaries": canaries_of(values["canaries"], values["num_canaries"]),
            "resolution": Resolution() if resolution is None else resolution,
            "given": _given(front, values),
            **_allowed(values["allow"]),
        }
        return cls(**made)

    @property
    def adjacency(self) -> Adjacency:
        """Relation of neighboring data sets for which epsilon is claimed."""
        stated = self.claim.adjacency if self.claim else None
        return stated or "add_remove"

    @property
    def items(self) -> int:
        """Number of items of a record for which epsilon is claimed."""
        return self.claim.items_per_record if self.claim else 1

    def epsilon_of(self, history: Sequence[Phase]) -> float | None:
        """Return the epsilon of these steps at the claim's neighbors; None if a rate is unknown."""
        return composed_epsilon(history, self.delta, self.adjacency, items=self.items)

    @property
    def mechanism_alone(self) -> bool:
        """Whether the claim states noise correlated over steps, so that no epsilon is known."""
        return bool(self.claim and self.claim.noise_coefficients)

    @property
    def shuffled(self) -> bool:
        """Whether each record is claimed to enter one step per epoch."""
        return bool(self.claim and self.claim.sampling == "shuffled")

    @property
    def private_size(self) -> bool:
        """Whether the number of records is stated as private."""
        return bool(self.claim and self.claim.private_dataset_size)

    @property
    def coin_seed(self) -> int:
        """Seed of the coins of a run that has begun."""
        seed = self.drawn_seed if self.seed is None else self.seed
        assert seed is not None  # a run begins by drawing one
        return seed

    def settings(self, *, ended: bool = False) -> dict[str, Any]:
        """Return plain values by name, as stored in a report and a checkpoint.

        Args:
            ended: whether the training has ended; before that, a drawn seed is not included.
        """
        names = (field.name for field in fields(self) if field.name not in _UNSHOWN)
        return {
            **{name: getattr(self, name) for name in names},
            "seed": self.drawn_seed if ended and self.seed is None else self.seed,
            "bounds": list(self.bounds),
            "allow": list(self.allow),
            "exemptions": [asdict(one) for one in self.exemptions],
            "resolution": asdict(self.resolution),
            "claim": self.claim.to_dict() if self.claim else None,
            "canaries": [repr(canary) for canary in self.canaries],
        }


def _delta(delta: float | None, claim: PrivacyClaim | None) -> float:
    """Return the delta of all epsilons: the argument, the claim's, or the default."""
    if delta is not None:
        return delta
    # The configuration refuses a claim of any other class.
    stated = claim.delta if isinstance(claim, PrivacyClaim) else None
    return DEFAULT_DELTA if stated is None else stated


def _given(front: Callable[..., Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arguments that are not at their defaults.

    Args:
        front: the function that takes the arguments.
        values: the arguments by name, among others.
    """
    parameters = inspect.signature(front).parameters.values()
    return tuple(
        one.name
        for one in parameters
        if one.default is not one.empty and values[one.name] != one.default
    )


def canaries_of(
    canaries: Sequence[GradientCanary | InputCanary] | None, num_canaries: int
) -> Sequence[GradientCanary | InputCanary]:
    """Return the given canaries, or the default mix."""
    count = _validate.positive_int("num_canaries", num_canaries, "an audit needs a canary")
    return default_mix(count) if canaries is None else canaries


def _allowed(allow: Sequence[str | Allow] | str | Allow) -> dict[str, Any]:
    """Return the arguments ``allow`` (names) and ``exemptions`` (`Allow` objects) of the config.

    Args:
        allow: a name or an `Allow`, or a list of these.

    Raises:
        ValueError: ``allow`` is of another type.
    """
    if not isinstance(allow, str | Allow | list | tuple | set | frozenset):
        raise ValueError(
            f"allow={allow!r} must be a list of names of findings and of Allow(...); write "
            "allow=[] for none."
        )
    listed = (allow,) if isinstance(allow, str | Allow) else tuple(allow)
    exemptions = tuple(one for one in listed if isinstance(one, Allow))
    everywhere = (one.finding for one in exemptions if one._everywhere)
    names = (one for one in listed if not isinstance(one, Allow))
    return {"allow": (*names, *everywhere), "exemptions": exemptions}


def _refuse_another_class(name: str, value: Any, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise ValueError(
            f"{name}={value!r} must be a {kind.__name__}; write {name}={kind.__name__}(...)."
        )


def _refuse_contradiction(name: str, value: float, of_claim: str, stated: float | None) -> None:
    if stated is not None and stated != value:
        raise ValueError(f"{name}={value!r} contradicts {of_claim}={stated!r}; give one of them.")


def _claimed_epsilon(claimed_epsilon: float | None, claim: PrivacyClaim | None) -> float | None:
    """Return the claimed epsilon of the argument or the claim; None if neither states one."""
    stated = claim.epsilon if claim is not None else None
    if claimed_epsilon is None:
        return stated
    advice = "leave it out to audit the accountant's own epsilon"
    value = _validate.positive("claimed_epsilon", claimed_epsilon, advice)
    _refuse_contradiction("claimed_epsilon", claimed_epsilon, "claim.epsilon", stated)
    return value


def _canaries(
    canaries: Sequence[GradientCanary | InputCanary],
) -> tuple[GradientCanary | InputCanary, ...]:
    kinds = (GradientCanary, InputCanary)
    if isinstance(canaries, kinds) or not isinstance(canaries, Sequence):
        raise ValueError(f"canaries={canaries!r} must be a list; write [Dirac()] for one canary.")
    if not canaries:
        raise ValueError("canaries=[] must hold a canary; leave it out for the default mix.")
    for canary in canaries:
        if not isinstance(canary, kinds) or type(canary) in kinds:
            raise ValueError(
                f"canaries holds {canary!r}; it must hold objects of lightning_audit.canaries, "
                "such as Dirac()."
            )
    if len(canaries) > 1 and any(isinstance(canary, InputCanary) for canary in canaries):
        raise ValueError(
            f"canaries={list(canaries)!r} must hold one input canary alone: the gradient of an "
            "input overlaps with any other canary's direction, which would flag correct runs; "
            "train once with each."
        )
    return tuple(canaries)


def _oversize(oversize: float) -> float:
    """Return the canaries' norm over the clipping norm, if it is valid."""
    advice = "a canary below the clipping norm adds less than one record may"
    value = _validate.positive("oversize", oversize, advice)
    if value < 1:
        raise ValueError(f"oversize={oversize!r} must be >= 1; {advice}.")
    return value


def _count_or_none(name: str, value: int | None) -> int | None:
    return None if value is None else _validate.positive_int(name, value)


def _bounds(bounds: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the literature's bounds, in their usual order."""
    if bounds == "all":
        return BOUND_NAMES
    if isinstance(bounds, str) or not isinstance(bounds, Sequence):
        raise ValueError(
            f"bounds={bounds!r} must be 'all' or a list; write ['fdp_cp'] for one bound."
        )
    for name in bounds:
        if name not in BOUND_NAMES:
            raise ValueError(f"bounds holds {name!r}; it must hold names of {list(BOUND_NAMES)}.")
    return tuple(name for name in BOUND_NAMES if name in bounds)


def _refuse_unknown_findings(allow: Sequence[str]) -> None:
    known = findings()  # raises here, and not in `fit`, if a package's check cannot be loaded
    for name in allow:
        if name not in known:
            meant = _validate.did_you_mean(str(name), known)
            raise ValueError(f"allow holds {name!r}, which is no name of a finding; {meant}")


def _refuse_findings_of_the_run(exemptions: Sequence[Allow]) -> None:
    for one in exemptions:
        known = REGISTRY.get(one.finding)
        of_each = one.finding == NO_DP.name or (known is not None and known.each)
        if one.optimizer is not None and not of_each:
            instead = (
                "name the parameters, parameters='average.*', or allow 'no_dp' of the optimizer"
                if known is None
                else "leave optimizer out"
            )
            raise ValueError(
                f"allow: {one.finding!r} is not a finding about single optimizers, so that "
                f"optimizer={one.optimizer!r} has no meaning; {instead}."
            )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- Arguments that a front end does not have.

P = ParamSpec("P")
R = TypeVar("R")

#: Settings by the names that Opacus or a guess gives them, with the names here.
_RENAMED = {
    **dict.fromkeys(("epsilon", "target_epsilon", "max_epsilon"), "claimed_epsilon"),
    "target_delta": "delta",
    "batch_size": "expected_batch_size",
    "data_loader": "loader",
    "logger": "log",
}


def named_as_here(function: Callable[P, R], of: Callable[..., Any] | None = None) -> Callable[P, R]:
    """Return the function; an argument that it lacks is refused with what to write instead.

    Args:
        function: is called.
        of: has the arguments that ``function`` passes on; None if it takes no others.
    """
    taken = inspect.signature(function).parameters | inspect.signature(of or function).parameters
    known = {name for name, one in taken.items() if name != "self" and one.kind != one.VAR_KEYWORD}

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for other in kwargs.keys() - known:
            meant = _instead_of(other, kwargs[other], known)
            raise TypeError(f"there is no argument {other!r}; {meant}")
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if type(error).__module__.startswith("lightning_audit"):  # else it is a bug
                _validate.end_at_user(error)
            raise

    return called


def _instead_of(name: str, value: Any, known: Collection[str]) -> str:
    """Return what to write instead of an argument that does not exist."""
    meant = _RENAMED.get(name, name)
    if meant in known:
        return f"write {meant}={_validate.shown(value)}."
    if meant in inspect.signature(PrivacyClaim).parameters:
        return (
            "the audit reads it from the optimizer where that has it; if not, as in a hand-written "
            f"loop, state claim=PrivacyClaim({meant}={_validate.shown(value)})."
        )
    return _validate.did_you_mean(name, [*known])


# --- Changes of the configuration at a resume: notes for the report, or a refusal.

#: Settings that may change without a note, or that are compared elsewhere.
_NOT_COMPARED = {
    "claim",
    "resolution",
    "canaries",
    "on_violation",
    "on_inconclusive",
    "on_budget",
    "seed",
    "source_in_report",
}
#: Parts of the claim in whose units the steps were read.
_MECHANISM = (
    "noise_multiplier",
    "max_grad_norm",
    "expected_batch_size",
    "sample_rate",
    "noise_coefficients",
)

_CHOSEN_LATER = (
    "; every test uses the new one from the first step on, which is valid only if it was chosen "
    "without looking at those steps; the step at which a test flagged is an upper bound"
)
_ANSWERED = "; the whole run is judged by the new one"
#: Consequence of a change of each setting, if it is not `_ANSWERED`.
_CONSEQUENCES = {
    "significance": _CHOSEN_LATER,
    "oversize": "; the run counts as one with the smaller canaries",
    # Each step keeps the value with which it was taken.
    "every_n_steps": "",
    "examinations": "",
}


def describe_changes(kept: Mapping[str, Any], now: Mapping[str, Any], steps: int) -> list[str]:
    """Return notes for the report on a configuration that differs from the checkpoint's.

    Args:
        kept: `AuditConfig.settings` of the checkpoint.
        now: `AuditConfig.settings` from now on.
        steps: number of steps before the resume.
    """
    return [
        f"{name}={_shown(before)} until step {steps}, {_shown(after)} from then on"
        f"{_CONSEQUENCES.get(name, _ANSWERED)}"
        for name, before, after in _changes(kept, now)
    ]


def refuse_mechanism(
    kept: Mapping[str, Any], now: Mapping[str, Any], history: Sequence[Phase], steps: int
) -> None:
    """Raise if the claimed mechanism differs from the one in whose units the steps were read.

    Readings were scaled by the claim, and the tests' bets were made with it, when the steps were
    taken. The stored sums do not determine the values under another claim.

    Args:
        kept: `AuditConfig.settings` of the checkpoint.
        now: `AuditConfig.settings` from now on.
        history: phases of the steps so far, of all private optimizers.
        steps: number of steps so far.

    Raises:
        ValueError: another noise multiplier, clipping norm, batch size, sampling rate or noise
            coefficients are claimed, and the steps so far were not recorded with the new value.
    """
    seen = {
        "claim.noise_multiplier": {phase.noise_multiplier for phase in history},
        "claim.sample_rate": {phase.sample_rate for phase in history},
    }
    for name, before, after in _changes(kept, now):
        of_claim = steps > 0 and name.startswith("claim.")
        if of_claim and (after is None or seen.get(name) != {after}):
            raise ValueError(
                f"{name}={after!r} is not what its {steps} steps were read against: the "
                f"checkpoint's is {before!r}, and their stored sums cannot be judged by another; "
                "resume with the checkpoint's, or audit the following steps as a separate "
                "training, without the checkpoint."
            )


def _changes(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return name, value before and value now of each setting that differs."""
    before, after = _compared(kept), _compared(now)
    return [(name, before[name], after[name]) for name in after if before[name] != after[name]]


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are compared, those of claim and resolution one by one."""
    claim = settings["claim"] or {}
    return {
        **{name: value for name, value in settings.items() if name not in _NOT_COMPARED},
        "allow": sorted(settings["allow"]),
        "bounds": list(settings["bounds"]),
        "adjacency": claim.get("adjacency") or "add_remove",
        "private_dataset_size": bool(claim.get("private_dataset_size")),
        "items_per_record": claim.get("items_per_record") or 1,
        **{f"claim.{name}": claim.get(name) for name in _MECHANISM},
        **{f"resolution.{name}": value for name, value in settings["resolution"].items()},
    }


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
