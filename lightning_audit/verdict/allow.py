"""Findings that the user accepts for one optimizer or for some parameters, and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

#: Findings of single parameters.
OF_PARAMETERS = ("unaudited",)


@dataclass(frozen=True)
class Allow:
    """A finding that must not fail the run, within the stated scope and for the stated reason.

    Args:
        finding: its name, as in the report.
        optimizer: the optimizer, by its index among those of ``configure_optimizers``, its class,
            or the prefix of all its parameters' names ("G" for "G.0.weight"), which must match this
            optimizer alone; None for all. With ``no_dp``, this optimizer may step without DP-SGD
            and change the parameters that it trains. Findings of the whole run have no optimizer.
        parameters: pattern of parameter names, such as "average.*"; for ``unaudited`` only.
        reason: why the finding is no fault here; the report shows it.

    Raises:
        ValueError: if the reason is missing, or a scope is not valid.

    Example:
        >>> Allow("no_dp", optimizer="G", reason="sees only the private discriminator and noise")
        ... # doctest: +NORMALIZE_WHITESPACE
        Allow(finding='no_dp', optimizer='G', parameters=None,
              reason='sees only the private discriminator and noise')
    """

    finding: str
    optimizer: str | int | None = None
    parameters: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        _refuse_no_text("finding", self.finding, "be the name of a finding, such as 'no_dp'")
        place = self.optimizer
        if isinstance(place, int) and not isinstance(place, bool) and place >= 0:
            object.__setattr__(self, "optimizer", str(place))
        for name in ("optimizer", "parameters"):
            if (value := getattr(self, name)) is not None:
                wanted = f"be a name; leave it out to allow {self.finding!r} everywhere"
                _refuse_no_text(name, value, wanted)
        wanted = f"say why {self.finding!r} is no fault here; the report shows it"
        _refuse_no_text("reason", self.reason, wanted)
        if self.parameters is not None and self.finding not in OF_PARAMETERS:
            raise ValueError(
                f"parameters={self.parameters!r} must be left out: {self.finding!r} is no finding "
                f"of single parameters; those are {list(OF_PARAMETERS)}."
            )
        if self.parameters is not None and self.optimizer is not None:
            raise ValueError(
                f"optimizer={self.optimizer!r} must be left out if parameters= states the scope."
            )

    @property
    def _everywhere(self) -> bool:
        """Whether the exemption has no scope."""
        return self.optimizer is None and self.parameters is None

    @property
    def _scope(self) -> str:
        """The scope as text; empty if there is none."""
        if self.optimizer is not None:
            return f" of optimizer {self.optimizer!r}"
        return f" of {self.parameters}" if self.parameters is not None else ""

    def _is_of(self, place: int, kind: str, names: Sequence[str]) -> bool:
        """Whether the scope is the given optimizer.

        Args:
            place: index of the optimizer in the training, from 0.
            kind: name of its class.
            names: names of its parameters.
        """
        wanted = self.optimizer
        if wanted is None:
            return False
        prefixed = all(name == wanted or name.startswith(f"{wanted}.") for name in names)
        return wanted in (str(place), kind) or (bool(names) and prefixed)


def _refuse_no_text(name: str, value: Any, wanted: str) -> None:
    """Raise ValueError if a value is no text, or empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}={value!r} must {wanted}.")


def covers(allowed: Iterable[Allow], parameter: str) -> bool:
    """Whether ``unaudited`` is allowed for a parameter, by its name."""
    patterns = (one.parameters for one in allowed if one.finding == "unaudited")
    return any(pattern is not None and fnmatchcase(parameter, pattern) for pattern in patterns)
