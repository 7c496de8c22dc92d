"""The epsilon of a training history: composition of its steps, subsampled or in passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import scipy

from lightning_audit import _validate
from lightning_audit.accounting.history import Phase, bucket_up, mean_noise, merge
from lightning_audit.stats.tradeoff import gaussian_epsilon

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# --- Comparison of an epsilon with a claimed one, up to the error of composition.

#: Relative error of a composition: its grid is halved until epsilon moves by less than this.
COMPOSITION_ERROR = 0.005

#: Resolution of a composition's grid for an epsilon of practically zero.
RESOLUTION = 1e-6


def exceeds(epsilon: float, claimed_epsilon: float) -> bool:
    """Return whether ``epsilon`` is above the claim by more than the error of composition.

    The margin is twice that error, 1 % of the claim, and at least a millionth, which is what a
    composition resolves.

    Args:
        epsilon: Epsilon to compare, >= 0.
        claimed_epsilon: Claimed epsilon, >= 0.

    Returns:
        True if epsilon exceeds the claim.

    Example:
        >>> exceeds(1.009, 1.0), exceeds(1.011, 1.0), exceeds(0.0102, 0.01)
        (False, True, True)
    """
    return epsilon > claimed_epsilon + max(2.0 * COMPOSITION_ERROR * claimed_epsilon, RESOLUTION)


# --- The epsilon of a training history: composition of Poisson-subsampled Gaussian steps.

#: Neighboring data sets: add or remove one record, or replace one.
Adjacency = Literal["add_remove", "replace_one"]

_COARSEST_START, _FINEST_START = 100.0, 8e-3
# Grids that are finer are reached by halving alone.
_LEAST_START = 1e-5
# Number of grid cells that the unsampled Gaussian bound on epsilon spans on the first grid.
_START_CELLS = 300_000
# With more phases than these, the grid is chosen for one phase of about the same cost: searching
# with all phases for every length of a noise schedule takes seconds.
_FEW = 3
# Noise multipliers within this ratio share a grid. At the end of every epoch the bounds of a run
# need another multiplier each, and finding their grids would take most of the time.
_LIKE = 1.1
# Mass that a composition may move to an infinite loss: as large as a small delta permits.
_TAIL_MASS = 1e-15
# Below this delta, rounding of the Fourier transform (1e-16 in mass) changes epsilon.
_SMALLEST_PLD_DELTA = 1e-12
# Above this number of steps, grids that resolve the loss of a step take minutes and gigabytes.
_LONGEST = 10**7
# Above this, epsilon is too large to matter, and resolving it costs gigabytes.
_LARGEST_EXPECTED_LOSS = 1e8


def epsilon_of_history(
    history: Sequence[Phase],
    delta: float,
    *,
    adjacency: Adjacency = "add_remove",
    grid: float | None = None,
    lower: bool = False,
    resolution: float = RESOLUTION,
    items: int = 1,
) -> float:
    r"""Return the epsilon that a history of subsampled Gaussian steps spends at ``delta``.

    An upper bound on the epsilon of the composed mechanism between neighboring data sets, if the
    steps draw independent Poisson batches and independent Gaussian noise. It is tight up to the
    discretization of the privacy loss, whose error is on the pessimistic side.

    .. math:: \varepsilon = \inf\Big\{\varepsilon \ge 0 :
        \mathbb{E}_{L_1 + \dots + L_T}\big[(1 - e^{\varepsilon - L})_+\big] \le \delta\Big\}

    where L_t is the privacy loss of step t, put on a grid by the connect-the-dots algorithm and
    summed by FFT. No value exceeds the epsilon of the same steps without subsampling, which is
    Gaussian with mu^2 = sum of steps / noise_multiplier^2. If a record is replaced, both data sets
    hold one: each of its gradients, opposite ones, joins the batch with the sample rate, and mu
    doubles.

    If a record makes up to k = ``items`` items of the data set, neighbors differ by all of them.
    Bin(k, q) of them join a batch, and each step is dominated by the mixture of Gaussians with
    these sensitivities: proved for items that are added or removed, with any gradients, and tight
    if their gradients are equal (Ganesh 2024). Without subsampling mu is k times that of an item.
    If a record is replaced, its items are removed and k others are added. By group privacy, which
    is not tight here, these two changes cost eps1 + eps2 at delta1 + exp(eps1) delta2 (Dwork and
    Roth 2014, Theorem 2.2, with deltas), where delta1 is half of ``delta``.

    Four cases need no grid:

    - all sample rates are 1: the unsampled epsilon is exact;
    - the expected loss is above 1e8: the unsampled epsilon is returned;
    - delta < 1e-12, which is below the accuracy of the FFT: the Rényi accountant, or the unsampled
      epsilon if a record is replaced or has several items;
    - more than ten million steps, which would take minutes and gigabytes: as for such a delta, an
      upper bound that is not tight.

    With ``grid=None`` the grid is halved until epsilon moves by less than 0.5 % of itself and the
    grid is below 0.5 % of epsilon. The search runs at step counts rounded down to powers of four
    and noise multipliers rounded up by at most a tenth, where epsilon is smaller. So the grid is
    cached during a training, and the result does not depend on earlier calls. The grid may change
    at a power of four, where a longer history may get up to 0.5 % less.

    Args:
        history: Phases in any order; equal mechanisms are merged. An empty history spends nothing.
        delta: Delta in (0, 1).
        adjacency: "add_remove" to add or remove a record, or "replace_one" to replace a record.
        grid: Width of the discretization of the privacy loss, in nats; None chooses it.
        lower: Whether to return a lower bound: subtract the increase of epsilon on a grid of twice
            the width, because the error of a grid at least halves with its width.
        resolution: Smallest difference in epsilon that matters; the grid is not refined below it.
        items: Number of items of the data set that one record makes, >= 1.

    Returns:
        Epsilon >= 0; infinity exactly if a phase has no noise.

    Raises:
        ValueError: If ``delta`` is not in (0, 1), ``grid`` is not positive, ``adjacency`` is
            unknown, ``items`` is no whole number >= 1, or a sample rate is unknown.

    Example:
        >>> round(epsilon_of_history([Phase(1.0, 0.01, 1000)], delta=1e-5), 2)
        1.83
        >>> round(epsilon_of_history([Phase(2.0, 1.0, 60), Phase(2.0, 1.0, 40)], delta=1e-5), 4)
        33.1037
        >>> steps = [Phase(1.0, 0.01, 1000)]
        >>> round(epsilon_of_history(steps, delta=1e-5, adjacency="replace_one"), 2)
        2.85
        >>> round(epsilon_of_history(steps, delta=1e-5, items=2), 2)
        3.99

    References:
        Koskela, Jälkö and Honkela, "Computing tight differential privacy guarantees using FFT",
        AISTATS 2020, arXiv:1906.03049. Doroshenko et al., "Connect the dots: tighter discrete
        approximations of privacy loss distributions", PoPETs 2022(4), arXiv:2207.04380. Mironov,
        Talwar and Zhang, "Rényi differential privacy of the sampled Gaussian mechanism", 2019,
        arXiv:1908.10530. Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022,
        arXiv:1905.02383, Corollary 3.3. Ganesh, "Tight group-level DP guarantees for DP-SGD with
        sampling via mixture of Gaussians mechanisms", 2024, arXiv:2401.10294. Dwork and Roth, "The
        algorithmic foundations of differential privacy", 2014, doi:10.1561/0400000042.
    """
    _validate.open_unit("delta", delta, "such as 1e-5, well below one over the number of records")
    if grid is not None:
        _validate.positive("grid", grid, "or None to choose it automatically")
    _validate.one_of("adjacency", adjacency, get_args(Adjacency))
    _validate.positive_int("items", items, "1 if each record is one item")
    phases = merge(history)
    if not phases:
        return 0.0
    if any(phase.noise_multiplier == 0 for phase in phases):
        return math.inf
    unsampled = _unsampled_epsilon(phases, delta, adjacency, items)
    if all(phase.sample_rate == 1 for phase in phases):
        return unsampled
    if _expected_loss(phases) * items**2 > _LARGEST_EXPECTED_LOSS:
        return unsampled
    if delta < _SMALLEST_PLD_DELTA or sum(phase.steps for phase in phases) > _LONGEST:
        if adjacency == "replace_one" or items > 1:
            return unsampled
        return min(_renyi_epsilon(phases, delta), unsampled)
    if grid is None:
        few = phases if len(phases) <= _FEW else [_uniform(phases)]
        rounded = tuple(_round_down(phase) for phase in few)
        grid = _sufficient_grid(rounded, delta, adjacency, resolution, items)
    epsilon = _epsilon_on_grid(tuple(phases), delta, grid, adjacency, items)
    if lower:
        coarse = _epsilon_on_grid(tuple(phases), delta, 2.0 * grid, adjacency, items)
        return max(2.0 * epsilon - coarse, 0.0)
    return epsilon


def _uniform(phases: Sequence[Phase]) -> Phase:
    """Return one phase of about the same cost, which is enough to choose a grid and rarely new."""
    steps = sum(phase.steps for phase in phases)
    rate = sum(phase.steps * phase.known_rate for phase in phases) / steps
    return Phase(mean_noise(phases), min(bucket_up(rate, _LIKE), 1.0), steps)


def _round_down(phase: Phase) -> Phase:
    """Return a cheaper phase that many like it share: a grid for it is fine enough."""
    power = (phase.steps.bit_length() - 1) // 2
    return Phase(bucket_up(phase.noise_multiplier, _LIKE), phase.sample_rate, 4**power)


def _unsampled_epsilon(
    phases: Sequence[Phase], delta: float, adjacency: Adjacency, items: int = 1
) -> float:
    return float(gaussian_epsilon(items * unsampled_mu(phases, adjacency), delta))


def unsampled_mu(history: Sequence[Phase], adjacency: Adjacency = "add_remove") -> float:
    """Return mu of Gaussian DP of the same steps on full batches; noise must be above 0."""
    mu = math.sqrt(sum(phase.steps / phase.noise_multiplier**2 for phase in history))
    return 2.0 * mu if adjacency == "replace_one" else mu


def _expected_loss(phases: Sequence[Phase]) -> float:
    return sum(phase.steps * phase.known_rate / (2 * phase.noise_multiplier**2) for phase in phases)


@lru_cache(maxsize=256)
def _sufficient_grid(
    phases: tuple[Phase, ...], delta: float, adjacency: Adjacency, resolution: float, items: int
) -> float:
    """Return the width at which epsilon has converged, by halving; see `epsilon_of_history`."""
    grid = _unsampled_epsilon(phases, delta, adjacency, items) / _START_CELLS
    grid = min(max(grid, _FINEST_START), _COARSEST_START)
    # The central limit is right to a factor of about two: start where halving may end.
    mu = _spread(phases) * items * (2.0 if adjacency == "replace_one" else 1.0)
    wide = 4.0 * COMPOSITION_ERROR * float(gaussian_epsilon(mu, delta))
    if wide > _LEAST_START:  # below, delta may be above the cost at epsilon 0
        grid /= 2.0 ** math.ceil(max(math.log2(grid / wide), 0.0))
    coarse = _epsilon_on_grid(phases, delta, grid, adjacency, items)
    while coarse > 0.0:  # a 0 that is rounded up is final
        grid /= 2
        fine = _epsilon_on_grid(phases, delta, grid, adjacency, items)
        # For an epsilon of practically zero the halving would never end.
        tolerance = max(COMPOSITION_ERROR * fine, resolution)
        # On a grid that is wide against epsilon, both may round up to the same point.
        if coarse - fine <= tolerance and grid <= tolerance:
            return grid
        coarse = fine
    return grid


# The end of a training repeats the calls of its last epoch's end.
@lru_cache(maxsize=1024)
def _epsilon_on_grid(
    phases: tuple[Phase, ...], delta: float, grid: float, adjacency: Adjacency, items: int
) -> float:
    tail_mass = min(_TAIL_MASS, 1e-5 * delta)
    unsampled = _unsampled_epsilon(phases, delta, adjacency, items)
    twice = adjacency == "replace_one" and items > 1
    composed = composed_loss(phases, grid, "add_remove" if twice else adjacency, tail_mass, items)
    # The truncated mass counts as an infinite loss; the finite unsampled bound then applies.
    with np.errstate(over="ignore"):  # a quotient of masses that is compared with a loss
        epsilon = float(composed.get_epsilon_for_delta(0.5 * delta if twice else delta))
        if twice:  # the items of one record are removed, and then those of the other are added
            epsilon += float(composed.get_epsilon_for_delta(0.5 * delta * math.exp(-epsilon)))
    return min(epsilon, unsampled)


def composed_loss(
    phases: Sequence[Phase], grid: float, adjacency: Adjacency, tail_mass: float, items: int = 1
) -> PrivacyLossDistribution:
    """Return the distribution of the privacy loss of a history, rounded to the pessimistic side.

    Args:
        phases: Phases with noise and known sample rates; at least one.
        grid: Width of the discretization of the loss, in nats.
        adjacency: See `epsilon_of_history`.
        tail_mass: Mass that each composition may move to an infinite loss.
        items: See `epsilon_of_history`; 1 if a record is replaced.
    """
    return reduce(
        lambda left, right: left.compose(right, tail_mass_truncation=tail_mass),
        (
            _single_step(
                phase.noise_multiplier, phase.known_rate, grid, adjacency, items
            ).self_compose(phase.steps, tail_mass_truncation=tail_mass)
            for phase in phases
        ),
    )


#: Relative error of a true positive rate at which the grid is no longer halved.
_TPR_ERROR = 0.002


def attack_tpr(history: Sequence[Phase], fpr: float, adjacency: Adjacency = "add_remove") -> float:
    r"""Return the largest true positive rate of any attack at a false positive rate.

    By the dual of the privacy profile, :math:`\min_\epsilon e^\epsilon fpr + \delta(\epsilon)`, of
    losses that are rounded up.

    Args:
        history: Phases with noise and known sample rates; at least one.
        fpr: False positive rate, in (0, 1).
        adjacency: See `epsilon_of_history`.

    Raises:
        ValueError: If ``fpr`` is not in (0, 1).

    Example:
        >>> round(attack_tpr([Phase(1.0, 1.0, 1)], 0.01), 3)  # the normal's: Phi(1 - 2.326)
        0.092

    References:
        Dong, Roth and Su, JRSS B 84, 2022, proposition 2.13; Kulynych et al. 2024 (riskcal).
    """
    rate = _validate.open_unit("fpr", fpr)
    grid = min(max(_unsampled_epsilon(history, 1e-5, adjacency) / 20_000, 1e-4), 0.01)
    epsilons = np.linspace(-10.0, -math.log(rate), 4001)
    coarse, fine = math.inf, 2.0
    while coarse - fine > _TPR_ERROR * fine:
        composed = composed_loss(history, grid, adjacency, _TAIL_MASS)
        deltas = np.asarray(composed.get_delta_for_epsilon(epsilons))
        coarse, fine = fine, float(min(1.0, np.min(np.exp(epsilons) * rate + deltas)))
        grid /= 2
    return fine


def noise_for_attack(
    tpr: float, fpr: float, sample_rate: float, steps: int, adjacency: Adjacency = "add_remove"
) -> float:
    """Return the least noise multiplier at which no attack exceeds a true positive rate.

    Args:
        tpr: The largest true positive rate, in (0, 1).
        fpr: The false positive rate at which it is wanted, in (0, 1), below ``tpr``.
        sample_rate: Of each step, in (0, 1].
        steps: Number of steps.
        adjacency: See `epsilon_of_history`.

    Returns:
        The noise multiplier, 0.2 % too large at most, and never below 0.2.

    Raises:
        ValueError: If an argument is outside its range, or more than 1,000 would be needed.
    """
    wanted = _validate.open_unit("tpr", tpr)
    if wanted <= fpr:
        raise ValueError(f"tpr={tpr!r} must exceed fpr={fpr!r}, the rate of an attack by chance.")

    def exceeds_it(sigma: float) -> bool:
        return attack_tpr([Phase(sigma, sample_rate, steps)], fpr, adjacency) > wanted

    low = high = 0.2
    while exceeds_it(high):
        low, high = high, 2 * high
        if high > 1e3:
            raise ValueError(f"tpr={tpr!r} is so close to fpr={fpr!r} that no noise gives it.")
    while high > 1.002 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if exceeds_it(middle) else (low, middle)
    return high


@lru_cache(maxsize=64)
def _single_step(
    sigma: float, sample_rate: float, grid: float, adjacency: Adjacency, items: int
) -> PrivacyLossDistribution:
    # Imported here because it takes a second, and most users of this module never need it.
    if adjacency == "add_remove":
        from lightning_audit.accounting.step_losses import step_losses

        return step_losses(sigma, sample_rate, grid, items)
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        value_discretization_interval=grid,
        sampling_prob=sample_rate,
        neighboring_relation=privacy_loss_distribution.NeighborRel.REPLACE_ONE,
    )


def _renyi_epsilon(phases: Sequence[Phase], delta: float) -> float:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for phase in phases:
        step = dp_accounting.PoissonSampledDpEvent(
            phase.known_rate, dp_accounting.GaussianDpEvent(phase.noise_multiplier)
        )
        accountant.compose(step, phase.steps)
    return float(accountant.get_epsilon(delta))


# --- Total variation of a training's outputs on neighboring data sets: how well one record shows.

# The grid is halved until the total variation moves by less than this part of itself.
_PRECISION = 1e-3
# Cells of the first grid in one standard deviation of the loss, and halvings after it.
_CELLS_PER_DEVIATION, _MOST_HALVINGS = 250.0, 8
_WIDEST, _NARROWEST = 1.0, 1e-5
# Mass that a composition may move to an infinite loss; it adds to the total variation.
_VARIATION_TAIL_MASS = 1e-13
# Above this, the total variation is practically 1.
_LARGEST_LOSS = 1e6


def total_variation(history: Sequence[Phase], *, adjacency: Adjacency = "add_remove") -> float:
    r"""Return the largest total variation between the outputs on two neighboring data sets.

    An upper bound on it, for steps with independent Poisson batches and Gaussian noise, tight to
    about 0.1 % of itself. It is delta at epsilon 0, so no test of the outputs has a mean error
    rate below (1 - TV) / 2.

    .. math:: \mathrm{TV} = \mathbb{E}_L\big[(1 - e^{-L})_+\big], \qquad
        \tfrac12 (\mathrm{FNR} + \mathrm{FPR}) \ge \tfrac12 (1 - \mathrm{TV})

    where L is the composed privacy loss, see `epsilon_of_history`. For full batches it is exact,
    ``2 Phi(mu / 2) - 1``, and no value exceeds that of the same steps without subsampling. That
    value is returned for more than ten million steps, and where the expected loss is above 1e6.

    Args:
        history: Phases in any order; an empty history shows nothing.
        adjacency: "add_remove" to add or remove a record, or "replace_one" to replace a record.

    Returns:
        Total variation in [0, 1]; 1 if a phase has no noise.

    Raises:
        ValueError: If ``adjacency`` is unknown or a sample rate is unknown.

    Example:
        >>> round(total_variation([Phase(10.0, 1.0, 100)]), 6)  # mu = 1
        0.382925
        >>> round(total_variation([Phase(1.0, 0.01, 1000)]), 3)
        0.161

    References:
        Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
        distributions", PoPETs 2022(4), arXiv:2207.04380. Dong, Roth and Su, "Gaussian differential
        privacy", JRSS B 84, 2022, arXiv:1905.02383, Proposition 2.12.
    """
    _validate.one_of("adjacency", adjacency, get_args(Adjacency))
    phases = merge(history)
    if not phases:
        return 0.0
    if any(phase.noise_multiplier == 0 for phase in phases):
        return 1.0
    # 2 Phi(mu / 2) - 1
    unsampled = float(scipy.special.erf(unsampled_mu(phases, adjacency) / math.sqrt(8.0)))
    if all(phase.known_rate == 1 for phase in phases):
        return unsampled
    if sum(phase.steps for phase in phases) > _LONGEST or _expected_loss(phases) > _LARGEST_LOSS:
        return unsampled
    return min(_on_fine_grid(tuple(phases), adjacency), unsampled)


@lru_cache(maxsize=256)
def _on_fine_grid(phases: tuple[Phase, ...], adjacency: Adjacency) -> float:
    grid = min(max(_spread(phases) / _CELLS_PER_DEVIATION, _NARROWEST), _WIDEST)
    coarse = math.inf
    for _ in range(1 + _MOST_HALVINGS):
        loss = composed_loss(phases, grid, adjacency, _VARIATION_TAIL_MASS)
        fine = min(float(loss.get_delta_for_epsilon(0.0)), 1.0)
        if coarse - fine <= _PRECISION * fine:
            return fine
        grid, coarse = grid / 2.0, fine
    return coarse


def _spread(phases: Sequence[Phase]) -> float:
    """Return about the standard deviation of the composed loss, if it is small."""
    parts = (
        phase.steps * phase.known_rate**2 * math.expm1(min(phase.noise_multiplier**-2, 50.0))
        for phase in phases
    )
    return math.sqrt(sum(parts))


# --- Epsilon of passes over shuffled or fixed batches, and the number of passes of a training.


def epsilon_of_passes(
    noise_multiplier: float, passes: int, delta: float, adjacency: Adjacency = "add_remove"
) -> float:
    r"""Return the epsilon of passes in which each record is in one batch, shuffled or fixed.

    In each pass, one step depends on the record. The batch of the record is treated as known, so
    there is no amplification by sampling:

    .. math:: \mu = \sqrt{E} / \sigma

    if a record is zeroed out, which leaves every other record in its batch, and twice that if it
    is replaced. Exact if the adversary knows the batches, otherwise an upper bound.

    Args:
        noise_multiplier: The smallest of all steps, >= 0.
        passes: Passes over the data, E >= 1.
        delta: Delta in (0, 1).
        adjacency: "add_remove" to zero out a record, or "replace_one".

    Returns:
        Epsilon; infinity without noise.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(epsilon_of_passes(1.0, 4, 1e-5), 2)
        10.0

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Corollary 3.3.
    """
    sigma = _validate.non_negative("noise_multiplier", noise_multiplier)
    passes = _validate.positive_int("passes", passes)
    if sigma == 0.0:
        return math.inf
    mu = math.sqrt(passes) / sigma
    return float(gaussian_epsilon(2.0 * mu if adjacency == "replace_one" else mu, delta))


def passes_of(history: Iterable[Phase]) -> int:
    """Return the number of passes of a history at 1 / rate steps a pass, rounded up."""
    exact = sum(phase.steps * phase.known_rate for phase in history)
    return math.ceil(exact - 1e-6)


class PassCounter:
    """Counts the steps that a record may have entered, if each pass has it in one batch.

    For each pass and each private optimizer, the batch with the most steps counts: ten steps on a
    single one of 100 batches are ten passes for the records of that batch. Steps between two
    batches count with the earlier batch, and steps on a sum of batches with the last. The numbers
    of the optimizers are added, because their summed batches may overlap: an upper bound.

    A pass that is restarted after a stop counts twice, because its batches are dealt again.
    """

    def __init__(self) -> None:
        self._ended = 0
        self._most: list[int] = []
        self._before: list[int] = []

    def start_pass(self, steps: Sequence[int]) -> None:
        """Begin a pass.

        Args:
            steps: Steps that each private optimizer has taken so far, ``[optimizers]``.
        """
        self._ended, self._most = self.passes(steps), []
        self._before = list(steps)

    def start_batch(self, steps: Sequence[int]) -> None:
        """Begin a batch; ``steps`` as in `start_pass`."""
        self._most, self._before = self._with_batch(steps), list(steps)

    def passes(self, steps: Sequence[int]) -> int:
        """Return the passes so far, summed over optimizers; ``steps`` as in `start_pass`."""
        return self._ended + sum(self._with_batch(steps))

    def _with_batch(self, steps: Sequence[int]) -> list[int]:
        """Return the most steps of each optimizer on one batch of this pass so far."""
        known = zip_longest(self._most, self._before, steps, fillvalue=0)
        return [max(most, now - before) for most, before, now in known]

    def state(self, steps: Sequence[int]) -> dict[str, Any]:
        """Return what a checkpoint holds: numbers of passes and steps."""
        return {"passes": self.passes(steps), "steps": list(steps)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state."""
        self._ended, self._most = int(state["passes"]), []
        self._before = [int(each) for each in state["steps"]]


def passes_taken(taken: Sequence[Phase], recorded: Sequence[Phase], passes: int) -> Phase:
    """Return the phase whose epsilon a training on shuffled batches spends.

    Args:
        taken: the steps, at any rate; not empty.
        recorded: phases of the accountants, which are more if the model was trained before.
        passes: number of passes of the steps; see `PassCounter`.

    Returns:
        Passes with the least noise; `epsilon_of_history` composes them as `epsilon_of_passes`.
    """
    least = min(phase.noise_multiplier for phase in (*taken, *recorded))
    return Phase(least, 1.0, max(1, passes, passes_of(recorded)))
