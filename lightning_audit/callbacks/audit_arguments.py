"""The arguments of `PrivacyAudit` as attributes, and their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_audit import _validate
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.canaries.gradient import GradientCanary, default_mix
from lightning_audit.canaries.inputs import InputCanary
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.verdict.exemptions import Allow
from lightning_audit.verdict.pass_blockers import Resolution

DEFAULT_DELTA = 1e-5


class AuditArguments:
    """The arguments of a `PrivacyAudit` as attributes; all of them are in `config`."""

    config: AuditConfig
    report_dir: str | Path | None

    def directory(self, trainer: Any) -> Path:
        """Return the directory of the report and observations of a Trainer's training."""
        return Path(self.report_dir or Path(trainer.default_root_dir) / "audit")

    @property
    def claimed_epsilon(self) -> float | None:
        """The claimed epsilon, from the argument or the claim; None for the accountant's own."""
        return self.config.claimed_epsilon

    @property
    def delta(self) -> float:
        """The delta of all epsilons."""
        return self.config.delta

    @property
    def claim(self) -> PrivacyClaim | None:
        """The user's statements that replace or supplement what is read from the optimizer."""
        return self.config.claim

    @property
    def canaries(self) -> Sequence[GradientCanary | InputCanary]:
        """The canaries of an audited step."""
        return self.config.canaries

    @property
    def resolution(self) -> Resolution:
        """The deviations that the audit must be able to detect before it may pass."""
        return self.config.resolution

    @property
    def allow(self) -> tuple[str, ...]:
        """Names of findings that do not fail the run."""
        return self.config.allow

    @property
    def on_violation(self) -> str:
        """The response to a violation: "raise", "stop" or "warn"."""
        return self.config.on_violation

    @property
    def report(self) -> AuditReport | None:
        """The report of the latest training."""
        raise NotImplementedError

    @property
    def seed(self) -> int | None:
        """The seed of the audit's coins; a drawn one is None until the training has ended."""
        report = self.report
        return self.config.seed if report is None else report.settings["seed"]


def delta_of(delta: float | None, claim: PrivacyClaim | None) -> float:
    """Return the delta of all epsilons: the argument, the claim's, or the default."""
    if delta is not None:
        return delta
    # The configuration refuses a claim of any other class.
    stated = claim.delta if isinstance(claim, PrivacyClaim) else None
    return DEFAULT_DELTA if stated is None else stated


def given(init: Callable[..., None], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arguments that are not at their defaults.

    Args:
        init: the function that takes the arguments.
        values: the arguments by name, among others.
    """
    parameters = inspect.signature(init).parameters.values()
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


def allowed(allow: Sequence[str | Allow] | str | Allow) -> dict[str, Any]:
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
    everywhere = (one.finding for one in exemptions if one.everywhere)
    names = (one for one in listed if not isinstance(one, Allow))
    return {"allow": (*names, *everywhere), "exemptions": exemptions}
