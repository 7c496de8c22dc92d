"""Names the likely fault of a privatize function from its readings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_audit.blackbox.exact_clipping import ExactReading
from lightning_audit.blackbox.probes import NoiseReading, ShiftReading
from lightning_audit.results.audit_report import LikelyFault
from lightning_audit.stats.evalues.noise_scale import interval_in_words

__all__ = ["likely_fault"]

# Noise below this fraction of the claim is none; a shift above this many C means no clipping.
_NO_NOISE, _NO_CLIPPING = 0.02, 100.0
# Relative difference of shifts that may be equal: read through the noise, and read exactly.
_ALIKE, _ALIKE_EXACTLY = 0.07, 0.01
# A sum clipped to C moves by at most 2 C; the reading has an error.
_OF_A_SUM = 3.0
# Faults that affect every gradient.
_OF_ALL = ("no_clipping", "clipping_norm_too_large")
# Differences of noise below this fraction of the noise are none.
_SMALL = 0.4
# If a gradient in one tensor adds this many times what a gradient in all tensors adds, the norm
# does not include that tensor.
_LEFT_OUT = 10.0


def likely_fault(
    shifts: Mapping[str, ShiftReading],
    noises: Mapping[str, NoiseReading],
    goal: float,
    tensors: int,
    batch_size: int,
    exact: ExactReading,
) -> LikelyFault:
    """Return the fault that fits the readings best; at least one of them refutes the claim."""
    noisy = [name for name, reading in noises.items() if reading.refuted(goal)]
    # If the noise depends on the gradients, a difference is not theirs alone.
    follows = not exact.reason and noisy and "no gradient" not in noisy
    if not follows and any(reading.log_e >= goal for reading in shifts.values()):
        fault = _of_clipping(shifts, noises, goal, tensors, exact)
        some = exact.found and not exact.alike
        return _of_some(exact) if some and fault.name in _OF_ALL else fault
    return _of_noise(shifts, noises, goal, batch_size) if noisy else _of_some(exact)


def _of_some(exact: ExactReading) -> LikelyFault:
    """Return a fault of some gradients only; the trial states which."""
    return LikelyFault(
        "clipping_misses_gradients",
        exact.describe(),
        "clipping",
        "which gradients are clipped, to which norm, and how that depends on the rest of the batch",
        {name: exact.sizes[name] for name in exact.found},
    )


def _of_clipping(
    shifts: Mapping[str, ShiftReading],
    noises: Mapping[str, NoiseReading],
    goal: float,
    tensors: int,
    exact: ExactReading,
) -> LikelyFault:
    one, group = shifts["one oversized"].shift, shifts["oversized"].shift
    fired = {name for name, reading in shifts.items() if reading.log_e >= goal}
    evidence = {f"shift, {name}": reading.shift for name, reading in shifts.items()}
    members, ratio = shifts["oversized"].gradients, noises["no gradient"].ratio
    either = (shifts["oversized"].shift, shifts["of norm C"].shift)
    unsure = 0.0 if exact.reason else 4.0 * noises["no gradient"].error
    if all(s > 1.0 and (_as_the_noise(s, ratio) or abs(s - ratio) < unsure) for s in either):
        return _another_unit(ratio, evidence)
    if one > _NO_CLIPPING:
        return LikelyFault(
            "no_clipping",
            f"gradients are not clipped: one of 1000 times C adds {one:.3g} times C",
            "clipping",
            "where each per-sample gradient is scaled by min(1, C / norm)",
            evidence,
        )
    if "in one tensor" in fired and shifts["in one tensor"].shift > _LEFT_OUT * max(one, 1.0):
        return LikelyFault(
            "norm_misses_a_tensor",
            "a tensor is left out of the norm by which gradients are clipped: alone it adds "
            f"{shifts['in one tensor'].shift:.3g} times C on average over tensors",
            "clipping",
            "the norm must be of all tensors of a sample together",
            evidence,
        )
    # If the sum is clipped as a whole, a group adds no more than one gradient.
    alone = fired == {"against all others"} and shifts["against all others"].shift < _OF_A_SUM
    if alone or (members > 1 and one > 1.5 * max(group, 0.1)):
        return LikelyFault(
            "clip_after_average",
            "the sum or mean is clipped as a whole, after the gradients were added up",
            "clipping",
            "over which axis the norm is taken: there must be one norm for each sample",
            evidence,
        )
    alike = _ALIKE if exact.reason else _ALIKE_EXACTLY
    if tensors > 1 and abs(group / tensors**0.5 - 1.0) < alike and "of norm C" not in fired:
        return LikelyFault(
            "clip_per_tensor",
            f"each tensor is clipped to the norm of the whole gradient: {tensors} tensors add "
            f"{group:.3g} times C",
            "clipping",
            "the norm must be of all tensors of a sample together, or each tensor's C a part of it",
            evidence,
        )
    largest = max(shifts[name].shift for name in fired)
    return LikelyFault(
        "clipping_norm_too_large",
        f"a gradient adds {largest:.3g} times C after clipping",
        "clipping",
        "the norm that is clipped to, and what scales the gradient after clipping",
        evidence,
    )


def _of_noise(
    shifts: Mapping[str, ShiftReading],
    noises: Mapping[str, NoiseReading],
    goal: float,
    batch_size: int,
) -> LikelyFault:
    plain, loaded = noises["no gradient"], noises["an oversized gradient"]
    ratio = plain.ratio
    evidence: dict[str, Any] = {f"noise, {name}": noise.ratio for name, noise in noises.items()}
    signal = shifts["of norm C"].shift
    look = (
        "the noise that is drawn: its standard deviation must be noise_multiplier * max_grad_norm"
    )
    if ratio < _NO_NOISE and not _near(ratio, 1 / batch_size):
        return LikelyFault("no_noise", "no noise is added", "noise", look, evidence)
    if plain.log_e_repeated >= goal and plain.ratio_repeated < _SMALL * ratio:
        sentence = "the noise is repeated: two calls get the same"
        return LikelyFault(
            "noise_repeated", sentence, "reuse", "where the generator is seeded", evidence
        )
    if plain.log_e_shared >= goal and plain.ratio_shared < _SMALL * ratio:
        sentence = "the noise is shared: one number is added to many coordinates"
        return LikelyFault(
            "noise_shared", sentence, "reuse", "the shape of what is drawn", evidence
        )
    if plain.log_e >= goal:
        if _as_the_noise(signal, ratio):
            return _another_unit(ratio, evidence)
        if min(plain.tensors) < 0.5 * max(plain.tensors):
            quiet = interval_in_words(None, plain.quietest)
            sentence = f"the noise is too small in a tensor: {quiet}"
            evidence["by tensor"] = plain.tensors
            return LikelyFault("noise_too_small_in_a_tensor", sentence, "noise", look, evidence)
        if _near(ratio, 1 / batch_size):
            sentence = f"the noise is divided by the batch once more: {plain.in_words}"
            return LikelyFault("noise_divided_by_batch", sentence, "noise", look, evidence)
        sentence = f"the noise is too small: {plain.in_words}"
        return LikelyFault("noise_too_small", sentence, "noise", look, evidence)
    if loaded.log_e >= goal:
        sentence = f"the noise is too small if gradients are large: {loaded.in_words}"
        return LikelyFault("noise_follows_gradients", sentence, "noise", look, evidence)
    return LikelyFault(
        "divides_by_realised_batch",
        "the noise depends on the number of gradients: with twice as many it is "
        f"{min(noises.values(), key=lambda noise: noise.ratio).in_words}",
        "noise",
        "what the noisy sum is divided by: for Poisson batches it must be a constant",
        evidence,
    )


def _another_unit(ratio: float, evidence: Mapping[str, Any]) -> LikelyFault:
    return LikelyFault(
        "another_unit",
        f"what is released is {ratio:.3g} times what is stated, for sum and noise alike: "
        "expected_batch_size or max_grad_norm does not fit",
        "noise",
        "what the noisy sum is divided by",
        evidence,
    )


def _as_the_noise(shift: float, ratio: float) -> bool:
    """Return whether a shift deviates from the claim as the noise does, in size and direction."""
    return abs(shift - ratio) < 0.25 * abs(1.0 - ratio)


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) < 0.15 * wanted
