"""`PrivacyClaim`: the privacy that a training claims, if its optimizer does not state it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from lightning_audit import _validate
from lightning_audit.accounting.composition import (
    Adjacency,
    epsilon_of_history,
    epsilon_of_passes,
    passes_of,
)
from lightning_audit.accounting.history import Phase
from lightning_audit.stats.dependence import is_recoverable

__all__ = ["PrivacyClaim"]

#: How batches are drawn: Poisson sampling, or shuffling, where a record enters one step an epoch.
Sampling = Literal["poisson", "shuffled"]


@dataclass(frozen=True)
class PrivacyClaim:
    """The privacy that a training claims, if it cannot be read from the optimizer.

    With a DP optimizer, the noise multiplier, sample rate and clipping norm are read from the
    optimizer. State them here for hand-written DP-SGD, or to promise an (epsilon, delta) of your
    own. A claim proves nothing, and its fields are not checked against each other: ``epsilon`` is
    what is promised, `composed_epsilon` is what the mechanism spends.

    Args:
        epsilon: Claimed epsilon of the whole training, > 0; needs ``delta``.
        delta: Delta in (0, 1) at which epsilon is claimed and reported.
        noise_multiplier: Noise standard deviation over ``max_grad_norm`` in each step, > 0.
        sample_rate: Probability in (0, 1] with which each record joins a step's batch.
        steps: Number of optimizer steps, >= 1.
        max_grad_norm: Clipping norm of a record's gradient, > 0, in the unit of the gradient.
        expected_batch_size: Number of records by which the summed gradient is divided, > 0: a
            constant that is not computed from the number of records.
        adjacency: Neighboring data sets of the promise: "add_remove" to add or remove a record,
            or "replace_one" to replace a record, which costs about twice as much. None means
            "add_remove", which Opacus' accountants assume.
        private_dataset_size: Whether the number of records is private. If it is, a divisor that is
            computed from it costs privacy (`expected_batch_size` of the audit). A divisor that
            equals ``int(records * sample_rate)`` counts as computed from it, unless
            ``expected_batch_size`` states it. The sample rate and the number of steps are treated
            as public constants. None or False if the number is public, as accountants assume.
        noise_coefficients: ``c`` of noise that is correlated over steps by design, as in matrix
            factorization or DP-FTRL: at least two numbers, the first one > 0. The noise of step t
            (from 0) in the sum of clipped gradients is ``noise_multiplier * max_grad_norm *
            sum_k c[k] * z[t - k]``, where z are independent standard normal draws, one tensor for
            each step. Draws before step 0 are zero, and so are coefficients after the last given.
            If the multiplier or the norm changes, the values of step t apply to its whole sum.
            Only the noise draws are audited then, and no epsilon is computed. None for independent
            noise.
        sampling: "shuffled" if the loader deals the records into batches, so that each record
            enters at most one step an epoch. E epochs then cost what E full-batch steps cost,
            regardless of an accountant that assumes Poisson batches. If an epoch takes several
            steps on a batch, the largest number of steps on one batch counts. "add_remove" then
            zeroes out the gradients of a record. None or "poisson" for Poisson batches.
        items_per_record: Largest number of items of the data set that read one record: 2 if item i
            is made of rows i and i + 1, ceil(w / s) for sliding windows of w rows at a stride of
            s, 3 if a record is in the data set three times. Neighboring data sets then differ by
            all items of a record: epsilon is composed for a group of that many (see
            `lightning_audit.accounting.composition.epsilon_of_history`); with shuffled batches
            they count as in one batch. 1 if each item is a record of its own.
        new_data: True if this training shares no record with the earlier one whose parameters it
            continues, so that its own steps alone must keep ``epsilon``. None or False to compose
            the steps of both.

    Raises:
        ValueError: If nothing is given, if an argument is outside its range, if ``epsilon`` is
            given without ``delta``, if ``private_dataset_size`` is true with "replace_one", if
            shuffled batches are claimed with correlated noise, or if the draws cannot be recovered
            from noise with these coefficients.

    Example:
        >>> claim = PrivacyClaim(delta=1e-5, noise_multiplier=1.0, sample_rate=0.01, steps=1000)
        >>> claim.mu, round(claim.composed_epsilon(), 2)
        (1.0, 1.83)
        >>> PrivacyClaim(epsilon=8.0)
        Traceback (most recent call last):
            ...
        ValueError: delta=None must be in (0, 1); epsilon=8.0 is claimed at a delta, such as 1e-5
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    sample_rate: float | None = None
    steps: int | None = None
    max_grad_norm: float | None = None
    expected_batch_size: float | None = None
    adjacency: Adjacency | None = None
    private_dataset_size: bool | None = None
    noise_coefficients: Sequence[float] | None = None
    sampling: Sampling | None = None
    new_data: bool | None = None
    items_per_record: int = 1

    def __post_init__(self) -> None:
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in stated.items() if value is not None}
        if [*given] == ["items_per_record"] and self.items_per_record == 1:
            names = ", ".join(field.name for field in fields(self))
            raise ValueError(f"PrivacyClaim() claims nothing; give at least one of {names}.")
        for name, value in given.items():
            # Plain numbers, so that a claim made of NumPy numbers can be written as JSON.
            check, advice = _CHECKS[name]
            object.__setattr__(self, name, check(name, value, advice))
        if self.epsilon is not None and self.delta is None:
            advice = f"epsilon={self.epsilon!r} is claimed at a delta, such as 1e-5"
            _validate.open_unit("delta", self.delta, advice)
        if self.private_dataset_size and self.adjacency == "replace_one":
            raise ValueError(
                "private_dataset_size=True contradicts adjacency='replace_one': if a record is "
                "replaced, all data sets have the same size; leave one of them out."
            )
        if self.sampling == "shuffled" and self.noise_coefficients is not None:
            raise ValueError(
                "sampling='shuffled' contradicts noise_coefficients: no epsilon is computed for "
                "correlated noise, however the batches are drawn; leave sampling out."
            )

    @property
    def mu(self) -> float:
        """Gaussian DP parameter of one step on its batch, ``1 / noise_multiplier``.

        Raises:
            ValueError: If ``noise_multiplier`` is not part of the claim, or the noise is
                correlated over steps.
        """
        self._refuse_correlated("mu")
        return 1.0 / self._known("mu", "noise_multiplier")[0]

    def history(self) -> list[Phase]:
        """Return the claimed training as one phase.

        Raises:
            ValueError: If ``noise_multiplier``, ``sample_rate`` or ``steps`` is not claimed, or if
                the noise is correlated over steps.
        """
        self._refuse_correlated("history")
        sigma, rate, steps = self._known("history", "noise_multiplier", "sample_rate", "steps")
        return [Phase(sigma, rate, int(steps))]

    def composed_epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon that the claimed mechanism spends.

        The epsilon of `epsilon_of_history`; with shuffled batches that of `epsilon_of_passes`,
        for the number of passes that the steps make.

        Args:
            delta: Delta in (0, 1); None uses the claim's delta.

        Returns:
            Epsilon >= 0.

        Raises:
            ValueError: If no delta is known, or the claim lacks a parameter of the mechanism.
        """
        if delta is None:
            delta = self._known("composed_epsilon", "delta")[0]
        history, adjacency = self.history(), self.adjacency or "add_remove"
        items = self.items_per_record
        if self.sampling == "shuffled":
            sigma = history[0].noise_multiplier
            return epsilon_of_passes(sigma / items, passes_of(history), delta, adjacency)
        return epsilon_of_history(history, delta, adjacency=adjacency, items=items)

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain values by name: ``PrivacyClaim(**values)`` restores it."""
        values = asdict(self)
        if self.noise_coefficients is not None:
            values["noise_coefficients"] = list(self.noise_coefficients)
        return values

    def _refuse_correlated(self, purpose: str) -> None:
        if self.noise_coefficients is not None:
            raise ValueError(
                f"noise_coefficients={_validate.shown(list(self.noise_coefficients))} must be None "
                f"for {purpose}, which needs independent noise in each step; compute the privacy "
                "of correlated noise with the method that gave the coefficients."
            )

    def _known(self, purpose: str, *names: str) -> list[float]:
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            listed = " and ".join(f"{name}=None" for name in missing)
            example = ", ".join(f"{name}=..." for name in missing)
            raise ValueError(
                f"{listed} must be a number for {purpose}; state PrivacyClaim({example})."
            )
        return [getattr(self, name) for name in names]


def _adjacency(name: str, value: Any, advice: str) -> str:
    return _validate.one_of(name, value, get_args(Adjacency), advice)


def _sampling(name: str, value: Any, advice: str) -> str:
    return _validate.one_of(name, value, get_args(Sampling), advice)


def _flag(name: str, value: Any, advice: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={_validate.shown(value)} must be True or False; {advice}")
    return value


def _coefficients(name: str, value: Any, advice: str) -> tuple[float, ...]:
    shown = _validate.shown(value)
    if isinstance(value, str | dict | set) or not isinstance(value, Iterable):
        raise ValueError(f"{name}={shown} must be a list of numbers; {advice}")
    found = tuple(_validate.finite(f"{name}[{k}]", item, advice) for k, item in enumerate(value))
    if len(found) < 2 or not any(found[1:]):
        raise ValueError(
            f"{name}={shown} must hold a number other than 0 after the first; leave it out if "
            "the noise of each step is independent of all others"
        )
    if found[0] <= 0:
        raise ValueError(f"{name}[0]={found[0]!r} must be > 0: a step's own draw; {advice}")
    if not is_recoverable(found):
        raise ValueError(
            f"{name}={shown} must be coefficients from which the draws can be recovered step by "
            "step; with these the error of a recovered draw grows from step to step. Give those "
            "of the noise, a row of the inverse of the encoder (C^-1), the present draw first"
        )
    return found


#: How each field is checked, and the advice of an error.
_CHECKS: dict[str, tuple[Callable[[str, Any, str], Any], str]] = {
    "epsilon": (_validate.positive, "leave it out to take the accountant's own epsilon"),
    "delta": (_validate.open_unit, "such as 1e-5, well below one over the number of records"),
    "noise_multiplier": (_validate.positive, "training without noise has no privacy to claim"),
    "sample_rate": (_validate.rate, "expected batch size over number of records"),
    "steps": (_validate.positive_int, "count optimizer steps, not epochs"),
    "max_grad_norm": (_validate.positive, "it is the clipping norm of a record's gradient"),
    "expected_batch_size": (_validate.positive, "sample rate times number of records"),
    "adjacency": (_adjacency, "or leave it out for add_remove"),
    "private_dataset_size": (_flag, "True if the number of records must stay secret"),
    "noise_coefficients": (
        _coefficients,
        "such as (1.0, -0.5, -0.25), the weight of the present draw first",
    ),
    "sampling": (_sampling, "or leave it out for poisson, which accountants assume"),
    "new_data": (_flag, "True if no record was in the training that this one continues"),
    "items_per_record": (
        _validate.positive_int,
        "1 if each item of the data set is a record of its own",
    ),
}
