"""What a training claims about its privacy, where the optimizer does not say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from lightning_audit import _validate
from lightning_audit.accounting.composition import Adjacency, epsilon_of_history
from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.shuffled_passes import epsilon_of_passes, passes_of
from lightning_audit.stats.dependence.correlated_noise import is_recoverable

__all__ = ["PrivacyClaim"]

#: How batches are drawn: by chance, or so that each record enters one step an epoch.
Sampling = Literal["poisson", "shuffled"]


@dataclass(frozen=True)
class PrivacyClaim:
    """The privacy that the training claims, where it cannot be read off the optimizer.

    With a DP optimizer the mechanism (noise multiplier, sample rate, clipping norm) is read off the
    optimizer; a hand-written DP-SGD states it here, and so does anyone who promises an
    (epsilon, delta) of their own. A claim proves nothing, and its parts are not compared with each
    other here: ``epsilon`` is what is promised, `composed_epsilon` what the mechanism spends.

    Args:
        epsilon: Claimed epsilon of the whole training, > 0; needs ``delta``.
        delta: Delta in (0, 1) at which epsilon is claimed and reported.
        noise_multiplier: Noise standard deviation over ``max_grad_norm`` in each step, > 0.
        sample_rate: Probability in (0, 1] with which each record joins a step's batch.
        steps: Number of optimizer steps, >= 1.
        max_grad_norm: Clipping norm of a record's gradient, > 0, in the unit of the gradient.
        expected_batch_size: Number of records by which the summed gradient is divided, > 0: a
            constant, that is, which is not computed of the number of records.
        adjacency: Between which data sets epsilon is promised: "add_remove" for a record more or
            less, or "replace_one" for another record in the place of one, which costs about twice
            as much. None for the first one, which Opacus' accountants suppose.
        private_dataset_size: Whether the number of records is private, so that a divisor that is
            computed of it has to be paid for (`expected_batch_size` of the audit). A divisor that
            equals ``int(records * sample_rate)`` counts as computed of it, unless
            ``expected_batch_size`` states it. The sample rate and the number of steps are taken for
            public constants. None or False where the number is public, as accountants suppose.
        noise_coefficients: of noise that is correlated over steps by design, as by matrix
            factorisation or DP-FTRL: ``c``, at least two numbers, the first one > 0. The noise of
            step t (from 0) in the sum of clipped gradients is ``noise_multiplier * max_grad_norm *
            sum_k c[k] * z[t - k]``, where z are independent standard normal draws, one tensor for
            each step; those before step 0 are zero, and later coefficients than the last given are
            zero. Where the multiplier or the norm changes, those of step t hold for its whole sum.
            The mechanism alone is judged then, draw by draw, and no epsilon is computed. None for
            independent noise.
        sampling: "shuffled" where the loader deals the records out into batches, so that each
            enters one step an epoch at most: E epochs then cost what E steps on all records do,
            whatever an accountant says that supposes Poisson batches. Of an epoch with several
            steps on a batch, the most on one batch count. "add_remove" is then a record
            whose gradients are zeroed out. None or "poisson" for those.

    Raises:
        ValueError: If nothing is given, if an argument is outside its range, if ``epsilon`` is
            given without ``delta``, if ``private_dataset_size`` is true where records are
            replaced, if shuffled batches are claimed with correlated noise, or if the draws cannot
            be recovered from noise of these coefficients.

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

    def __post_init__(self) -> None:
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in stated.items() if value is not None}
        if not given:
            names = ", ".join(field.name for field in fields(self))
            raise ValueError(f"PrivacyClaim() claims nothing; give at least one of {names}.")
        for name, value in given.items():
            # Plain numbers, so that a claim made of NumPy's goes into JSON.
            object.__setattr__(self, name, _CHECKS[name](name, value, _ADVICE[name]))
        if self.epsilon is not None and self.delta is None:
            advice = f"epsilon={self.epsilon!r} is claimed at a delta, such as 1e-5"
            _validate.open_unit("delta", self.delta, advice)
        if self.private_dataset_size and self.adjacency == "replace_one":
            raise ValueError(
                "private_dataset_size=True contradicts adjacency='replace_one': where a record is "
                "replaced, all data sets have as many records; leave one of them out."
            )
        if self.sampling == "shuffled" and self.noise_coefficients is not None:
            raise ValueError(
                "sampling='shuffled' contradicts noise_coefficients: of correlated noise no "
                "epsilon is computed, however the batches are drawn; leave sampling out."
            )

    @property
    def mu(self) -> float:
        """Parameter of Gaussian DP of one step on its batch: one over the noise multiplier.

        Raises:
            ValueError: If ``noise_multiplier`` is not part of the claim, or its noise is correlated
                over steps.
        """
        self._refuse_correlated("mu")
        return 1.0 / self._known("mu", "noise_multiplier")[0]

    def history(self) -> list[Phase]:
        """Return the claimed training as the one phase that it consists of.

        Raises:
            ValueError: If ``noise_multiplier``, ``sample_rate`` or ``steps`` is not claimed, or if
                the noise is correlated over steps.
        """
        self._refuse_correlated("history")
        sigma, rate, steps = self._known("history", "noise_multiplier", "sample_rate", "steps")
        return [Phase(sigma, rate, int(steps))]

    def composed_epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon that the claimed mechanism spends.

        It is that of `epsilon_of_history`, or of as many passes as the steps make where batches are
        shuffled.

        Args:
            delta: Delta in (0, 1); None takes that of the claim.

        Raises:
            ValueError: If no delta is known, or the claim lacks a part of the mechanism.
        """
        if delta is None:
            delta = self._known("composed_epsilon", "delta")[0]
        history, adjacency = self.history(), self.adjacency or "add_remove"
        if self.sampling == "shuffled":
            sigma = history[0].noise_multiplier
            return epsilon_of_passes(sigma, passes_of(history), delta, adjacency)
        return epsilon_of_history(history, delta, adjacency=adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain values by name, from which ``PrivacyClaim(**...)`` is made."""
        values = asdict(self)
        if self.noise_coefficients is not None:
            values["noise_coefficients"] = list(self.noise_coefficients)
        return values

    def _refuse_correlated(self, purpose: str) -> None:
        if self.noise_coefficients is not None:
            raise ValueError(
                f"noise_coefficients={_validate.shown(list(self.noise_coefficients))} must be None "
                f"for {purpose}, which is of steps with independent noise; compute the privacy of "
                "correlated noise by the method that the coefficients come from."
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
            f"{name}={shown} must hold a number other than 0 after the first; leave it out where "
            "the noise of each step is independent of all others"
        )
    if found[0] <= 0:
        raise ValueError(f"{name}[0]={found[0]!r} must be > 0: a step's own draw; {advice}")
    if not is_recoverable(found):
        raise ValueError(
            f"{name}={shown} must be coefficients whose draws can be recovered step by step; with "
            "these what is unknown of a draw grows from step to step. Give those of the noise, a "
            "row of the inverse of the encoder (C^-1), the present draw first"
        )
    return found


_CHECKS: dict[str, Callable[[str, Any, str], Any]] = {
    "epsilon": _validate.positive,
    "delta": _validate.open_unit,
    "noise_multiplier": _validate.positive,
    "sample_rate": _validate.rate,
    "steps": _validate.positive_int,
    "max_grad_norm": _validate.positive,
    "expected_batch_size": _validate.positive,
    "adjacency": _adjacency,
    "private_dataset_size": _flag,
    "noise_coefficients": _coefficients,
    "sampling": _sampling,
}
_ADVICE = {
    "epsilon": "leave it out to take the accountant's own epsilon",
    "delta": "such as 1e-5, well below one over the number of records",
    "noise_multiplier": "training without noise has no privacy to claim",
    "sample_rate": "expected batch size over number of records",
    "steps": "count optimizer steps, not epochs",
    "max_grad_norm": "it is the clipping norm of a record's gradient",
    "expected_batch_size": "sample rate times number of records",
    "adjacency": "or leave it out for add_remove",
    "private_dataset_size": "True if nobody may learn how many records there are",
    "noise_coefficients": "such as (1.0, -0.5, -0.25), the weight of the present draw first",
    "sampling": "or leave it out for poisson, which accountants suppose",
}
