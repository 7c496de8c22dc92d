"""Checks that noise is drawn independently for each step, coordinate, tensor and optimizer.

**Checks that noise is drawn independently for each step, coordinate and tensor.** The checks do not
use correlations, which data increase in correct runs. They test whether the variance is too small
after a centre is subtracted: the reading some steps ago, the mean of earlier readings of the step,
or the same coordinate of another tensor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_audit.checks.check import (
    MISSING,
    NOISED,
    REGISTRY,
    Candidate,
    Case,
    Check,
    Fault,
    Monitored,
    Statistic,
    first_seen,
    group,
)
from lightning_audit.checks.noise import (
    ANOTHER_SHAPE,
    NOISE_CANARY,
    NOISE_ENTRIES,
    NOISE_SHAPE,
    NOISE_STEP,
)
from lightning_audit.checks.noise_faults import added_ratio
from lightning_audit.checks.replayed_noise import (
    CORRELATED_OVER_STEPS,
    FEW_SEEDS,
    NUMBERS_TWICE,
    ONE_KEY,
    ONE_VALUE,
)
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import Observation, RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence import (
    AlikeBet,
    ForecastBet,
    LagSigns,
    LatestNoise,
    product_log_e,
)
from lightning_audit.stats.noise_tests import NoisePast, noise_log_e
from lightning_audit.stats.sequential import SingleStepBet, log_mean_exp, looks_after, running

# --- Checks that noise is drawn independently for each step, coordinate and tensor.


def _period(seen: Mapping[str, Any]) -> str:
    """Return how often the noise recurs, as text."""
    if seen["lag"] > seen["lags"]:
        return "in every epoch"
    return "at every step" if seen["lag"] == 1 else f"every {seen['lag']} steps"


class ReuseCheck(Statistic):
    """Statistic of `reuse.lag`, `reuse.broadcast`, `reuse.pair`, from the probe coordinates."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        # The short lags, then the same place in the previous and in the first epoch.
        self._lags = header.lags
        self._seen = 0
        self._lag_count = np.zeros(header.lags + 2)
        self._lag_squares = np.zeros(header.lags + 2)
        self._single = {"broadcast": np.zeros(2), "pair": np.zeros(2)}
        others = (REUSE_BROADCAST, REUSE_PAIR)
        self._others = {check.name: check.test(self.test.significance) for check in others}

    def update(self, seen: Observation) -> None:
        """Update with steps."""
        looks, self._seen = looks_after(self._seen, len(seen.step))
        count = np.hstack([seen.lag_count, seen.epoch_count])
        squares = np.hstack([seen.lag_squares, seen.epoch_squares])
        known = count.any(axis=1) & np.isfinite(squares).all(axis=1)
        counts = running(self._lag_count, count[known])
        sums = running(self._lag_squares, squares[known])
        self._lag_count, self._lag_squares = counts[-1], sums[-1]
        at = looks[known]
        log_e = log_mean_exp(noise_log_e(counts[1:][at], sums[1:][at]))
        self.test.update(log_e, seen.step[known][at])
        for name, so_far in self._single.items():
            columns = (getattr(seen, f"{name}_{kind}") for kind in ("count", "squares"))
            terms = np.stack([*columns], axis=1)
            known = (terms[:, 0] > 0) & np.isfinite(terms).all(axis=1)
            totals = running(so_far, terms[known])
            self._single[name], at = totals[-1], looks[known]
            log_e = noise_log_e(*totals[1:][at].T)
            self._others[f"reuse.{name}"].update(log_e, seen.step[known][at])

    @property
    def lag(self) -> int:
        """The shortest lag at which readings agree about as well as at any lag, in steps.

        A number above the number of short lags means the same place in another epoch.
        """
        seen = self._lag_count > 0
        if not seen.any():
            return 1
        means = np.where(seen, self._lag_squares / np.maximum(self._lag_count, 1.0), np.inf)
        # Noise that recurs every l steps also recurs every 2 l steps; independent noise of the
        # claimed size reads about 2.
        clear = max(1.2 * means.min(), min(math.sqrt(means.min()), 0.5))
        return int(np.flatnonzero(means <= clear)[0]) + 1

    def lag_ratio(self) -> float:
        """Return the smallest root mean square difference at any lag, over the claimed noise."""
        seen = self._lag_count > 0
        if not seen.any():
            return math.inf
        return math.sqrt(float(np.min(self._lag_squares[seen] / self._lag_count[seen])))

    def residual_ratio(self, name: str) -> float | None:
        """Return the residual of a check of one step over the claimed noise; None if not read."""
        count, squares = self._single[name.removeprefix("reuse.")]
        return float(np.sqrt(squares / count)) if count > 0 else None

    def evidence(self) -> dict[str, Any]:
        """Return the lag of `reuse.lag`."""
        return {"lag": self.lag, "lags": self._lags}

    def results(self, lack: str = "") -> tuple[CheckResult, ...]:
        """Return the results of the three checks."""
        others = (
            REGISTRY[name].result(test, {"residual_ratio": self.residual_ratio(name)}, lack)
            for name, test in self._others.items()
        )
        return *super().results(lack), *others


# One statistic gives the results of these three.
REUSE_LAG = Check(
    "reuse.lag",
    title="Noise across steps",
    failed_title="Noise repeats between steps",
    meaning="The same noise is added in several steps, so subtracting one step from another "
    "removes it.",
    look_at="a generator that is seeded or restored between steps",
    topic="Fresh randomness",
    weight=74,
    group="reuse",
    needs="no reading was compared with one of an earlier step",
    each=True,
    always=True,
    doubtful=True,
    fine="no noise recurs at a later step",
    message=lambda seen: (
        "readings of different steps differ by less than independent noise of the claimed size "
        f"makes them: as if the noise recurred {_period(seen)}"
    ),
    reads="steps",
    statistic=ReuseCheck,
)
REUSE_BROADCAST = dataclasses.replace(
    REUSE_LAG,
    name="reuse.broadcast",
    title="Noise across coordinates",
    failed_title="Coordinates share one noise value",
    meaning="Many coordinates of a step share one draw, so their differences have no noise.",
    look_at=ONE_VALUE.look_at,
    # With a tenth of the significance, two steps of shared noise are enough (median of runs).
    weight=113,
    needs="no readings of one step were compared with each other",
    fine="coordinates of a step have independent noise",
    message="the coordinates of a step differ by less than independent noise makes them",
    reads=None,
    statistic=None,
)

REUSE_PAIR = dataclasses.replace(
    REUSE_BROADCAST,
    name="reuse.pair",
    title="Noise across tensors",
    failed_title="Tensors share their noise",
    meaning="Two tensors get the same draw, so their difference has no noise.",
    look_at=ONE_KEY.look_at,
    weight=63,
    needs="no readings of two tensors were compared with each other",
    fine="tensors have independent noise",
    message="tensors differ by less than independent noise makes them",
)


# --- Check that no earlier step's noise recurs: `reuse.recurrence`.

#: Below this share of the variance that is left, the best forecast explains part of the noise.
EXPLAINED = 0.97

#: From this share of equal signs on, the noise is the same noise.
_SAME_SIGNS = 0.98
#: Log e-value at which a step's noise surely recurred, and how many of these steps are kept.
_CERTAIN, _RETURNS = 20.0, 8


class NoiseRecurrence(Statistic):
    """Statistic of `reuse.recurrence`: differences from earlier steps, and signs at fixed lags."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._past, self._signs, self._bet = NoisePast(), LagSigns(), SingleStepBet()
        #: Distances, in steps, at which a step's noise surely recurred; at most `_RETURNS`.
        self._returned: list[int] = []
        # The earlier and the later step that differ least until the test flags.
        self._pair, self._pair_log_e = (0, 0), -math.inf
        self._difference_ratio: float | None = None

    def update(self, seen: Observation) -> None:
        """Update with a step's readings; signs count only if the readings can be noise alone."""
        step, readings = seen.step, seen.noise_readings
        if seen.noise is not None and seen.at_cut:  # else it may contain momentum
            self._signs.update(seen.noise, step)
        log_e, age = self._past.recurrence_log_e(readings)
        earlier = self._past.nearest
        self._past.add(readings, step)
        if log_e >= _CERTAIN and self._past.sign > 0 and len(self._returned) < _RETURNS:
            self._returned.append(step - earlier)
        self._bet.update(log_e)
        before = self.test.violated
        both = [float(self._bet.log_e), self._signs.log_e]
        self.test.update(float(log_mean_exp(both)), step)
        flags = self.test.violated and not before
        if flags or (not before and age and log_e > self._pair_log_e):
            self._pair, self._pair_log_e = (earlier, step), log_e
            self._difference_ratio = self._past.difference_ratio

    def evidence(self) -> dict[str, Any]:
        """Return the steps with the same noise, or the lag at which noise depends on noise."""
        violated, agreement = self.test.violated, self._signs.agreement
        evidence: dict[str, Any] = {
            "steps": [*self._pair] if violated else [],
            "distances": self._returned if violated else [],
            "difference_ratio": self._difference_ratio if violated else None,
        }
        # Half of the stake is on the signs; if nearly all agree, it is the same noise.
        if self._signs.log_e - math.log(2.0) >= self.test.threshold and agreement < _SAME_SIGNS:
            evidence |= {"lag": self._signs.lag, "agreement": agreement}
        return evidence


def _recurred(seen: Mapping[str, Any]) -> str:
    if (lag := seen.get("lag")) is not None:
        return (
            f"the noise of a step depends on that of {lag} step{'s' * (lag > 1)} before: "
            f"{seen['agreement']:.0%} of its signs agree, and 50% would agree by chance"
        )
    earlier, later = seen["steps"]
    return (
        f"readings of step {later + 1} differ from those of step {earlier + 1} by less than "
        "independent noise of the claimed size makes them: as if the noise recurred"
    )


RECURRENCE = dataclasses.replace(
    REUSE_LAG,
    name="reuse.recurrence",
    title="Noise of distant steps",
    failed_title="Noise repeats at irregular steps",
    meaning="The noise of a step equals that of an earlier step, as if drawn from few seeds, or "
    "depends on it.",
    look_at="how seeds are chosen: all noise must come from one generator that is seeded once, and "
    "not from few seeds or a state that is restored; and, if the noise is correlated by design, "
    "`PrivacyClaim(noise_coefficients=...)`",
    # One or two steps show recurring noise, with enough evidence for a small share.
    weight=8,
    needs="no step's entries were read between its noise and its update",
    private=True,
    fine="no step's noise repeats that of an earlier step",
    message=_recurred,
    reads="readings",
    statistic=NoiseRecurrence,
)


# --- Check that earlier noise does not predict the noise of a step: `reuse.forecast`.

#: The test looks at each step before number `_EACH`, and at every `_LATER`-th step after them.
_EACH, _LATER = 20, 4


class NoiseForecast(Statistic):
    """Statistic of `reuse.forecast`: forecasts of a step's noise from earlier steps."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._past = LatestNoise()
        self._bet = ForecastBet()

    def update(self, seen: Observation) -> None:
        """Update with a step's readings."""
        readings, step = seen.noise_readings, seen.step
        self._bet.update(self._past.before(step, len(readings)), readings)
        self._past.add(readings, step)
        if self._bet.compared and (step < _EACH or step % _LATER == 0):
            self.test.update(self._bet.log_e, step)

    def evidence(self) -> dict[str, Any]:
        """Return the best forecast, and what it leaves of the noise."""
        lag, coefficient = self._bet.best
        return {
            "lag": lag,
            "coefficient": coefficient,
            "left": self._bet.left,
            "ratio": self._bet.ratio,
        }


def _foretold(seen: Mapping[str, Any]) -> str:
    lag = seen["lag"]
    by = f"the noise of {lag} steps before" if lag > 1 else "the noise of the step before"
    by = by if lag else "the sum of all noise so far"
    return (
        "forecasts from earlier steps leave less than the claimed noise: the best forecast is "
        f"{seen['coefficient']:.2g} times {by}, and leaves {seen['left']:.0%} of the variance"
    )


REUSE_FORECAST = dataclasses.replace(
    RECURRENCE,
    name="reuse.forecast",
    weight=5,
    title="Noise given earlier noise",
    failed_title="Noise depends on earlier noise",
    meaning="Part of a step's noise can be computed from the noise of earlier steps, and then be "
    "subtracted.",
    look_at=CORRELATED_OVER_STEPS.look_at,
    needs="no step's noise was read after that of an earlier step",
    fine="the noise of earlier steps does not predict that of a step",
    message=_foretold,
    faults=(
        CORRELATED_OVER_STEPS.rule(0.5, NOISED[1:], applies=lambda seen: seen["left"] < EXPLAINED),
    ),
    statistic=NoiseForecast,
)


# --- Check that a resumed training does not repeat the noise of its first steps: `reuse.resume`.

#: Number of first steps that are compared, of the training and of each resumed segment.
COMPARED = 3


class NoiseRestart(Statistic):
    r"""Statistic of `reuse.resume`: compares the first steps of a segment and of the training.

    A checkpoint holds what the first steps released. It holds no state of the noise generator, from
    which all noise could be computed. A generator that restarts gives step t of a segment the noise
    of step t of the training. The e-value of a step is the mean of two e-values, and those of
    `COMPARED` steps are multiplied:

    * the earlier release is a centre that the past determines, and the difference from it is at
      least as large as the noise, for any data (`noise_log_e`);
    * if the present noise is known without the data, its products with the earlier release are
      symmetric about zero (`product_log_e`), for any size of the earlier data.
    """

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        #: What the first steps of the training released, by step number, ``[n]`` each.
        self.first: dict[int, FloatArray] = {}
        self._resumed_at: int | None = None
        self._log_e = 0.0

    def resume(self, first: dict[int, FloatArray], step: int) -> None:
        """Compare the next steps with the first steps of the training.

        Args:
            first: `first` of the segment before.
            step: number of the next step.
        """
        self.first, self._resumed_at = first, step

    def update(self, seen: Observation) -> None:
        """Update with a step."""
        released, noise, step = seen.scaled_release, seen.noise, seen.step
        if step < COMPARED:
            self.first[step] = released.copy()
        if self._resumed_at is None or step - self._resumed_at >= COMPARED:
            return
        then = self.first.get(step - self._resumed_at)
        if then is None or len(then) != len(released):
            return
        gap = seen.noise_readings - then
        products = 0.0 if noise is None else float(product_log_e(noise * then))
        together = [float(noise_log_e(len(gap), gap @ gap)), products]
        self._log_e += float(log_mean_exp(np.array(together)))
        self.test.update(self._log_e, step)

    @property
    def resumed(self) -> bool:
        """Whether the training was resumed, so that there is a result."""
        return self._resumed_at is not None


NOISE_RESTARTED = Check(
    "reuse.resume",
    title="Noise after a resume",
    failed_title="Noise restarts on resume",
    meaning="When the training was resumed, the noise generator started again and repeated the "
    "noise of the first steps.",
    look_at="what seeds the noise before a resume: leave seed_everything out there, give it a "
    "different seed than at the start, draw the noise with PrivacyEngine(secure_mode=True), which "
    "no seed determines, or save the state: checkpoint['rng'] = torch.get_rng_state() in "
    "on_save_checkpoint, torch.set_rng_state(checkpoint['rng']) in on_load_checkpoint (of a "
    "noise_generator: its get_state and set_state)",
    topic="Fresh randomness",
    weight=2,
    needs="the first steps of the training, or those after the resume, were not read",
    each=True,
    private=True,
    fine="the noise did not restart when the training was resumed",
    message="the first noise after the resume repeats that of the first steps of the training: the "
    "noise generator restarted in the same state",
    faults=(
        Fault(
            "noise_restarted",
            sentence="noise re-used: a seeded generator restarted when the training was resumed",
        ).rule(-5, explains=(REUSE_LAG.name, RECURRENCE.name)),
    ),
)


# --- Rules that name the likely fault if noise is re-used within a step or over steps.

REPEATED_IN_STEP = Fault(
    "noise_repeated_in_step",
    "Noise repeats within a step",
    "noise re-used within a step",
    "whether each tensor draws its own noise, in its own shape: no seed or key may serve several "
    "tensors, and no value may be broadcast",
    "{repeated:.0%} of the values that are read occur at another entry, too",
)
AT_EVERY_STEP = Fault(
    "same_noise_at_every_step",
    "The same noise is added at every step",
    "noise re-used: the same noise is added at every step",
    "whether a generator is seeded in each step",
)
IN_EVERY_EPOCH = Fault(
    "same_noise_in_every_epoch",
    "The same noise is added in every epoch",
    "noise re-used: the same noise is added in every epoch",
    "whether an epoch's start seeds the generator",
)
IN_A_CYCLE = Fault(
    "noise_in_a_cycle",
    "The noise repeats in a cycle",
    "noise re-used",
    "what seeds or restores a generator after that number of steps",
    "the same noise is added every {lag} steps",
)
#: A residual below this multiple of the plain one is evidence for re-used noise, not small noise.
_REUSE_GAIN = 0.7
#: The same for noise whose size is known without the data.
_FRESH = 0.9
#: Largest ratio of readings to the claim at which they contain no data; coefficient of earlier
#: noise in such readings from which on it is the same noise.
_ALONE, _WHOLE = 1.05, 0.85
#: Number of recurrences at one distance from which on the noise recurs in a cycle.
_IN_A_ROW = 3


def reuse_candidates(case: Case, monitor: Monitored) -> list[Candidate]:
    """Return the faults that add the same noise several times, the likeliest first.

    Noise that is shared within a step comes first, then noise that recurs after a fixed number of
    steps, then noise that recurs at irregular steps.
    """
    shared = [name for name in (REUSE_BROADCAST.name, REUSE_PAIR.name) if name in case.violated]
    clear = [name for name in shared if reuse_is_seen(case, monitor, name)]
    correlated = _correlated(case) or _dependent(case)
    found = (correlated,) if correlated else (_repeated(case, monitor), _recurring(case, monitor))
    others = [c for c in found if c is not None]
    # If nothing else explains slightly small differences, they are re-used noise as well.
    alone = not (clear or others or case.first_of(case.sizes))
    return [*(_shared(case, monitor, name) for name in (shared if alone else clear)), *others]


def reuse_is_seen(case: Case, monitor: Monitored, name: str) -> bool:
    """Whether readings agree more closely than noise that is too small explains."""
    if name not in case.violated:
        return False
    if rules := REGISTRY[name].faults:
        return any(rule.applies(case.violated[name].evidence) for rule in rules)
    quiet = monitor.witness_noise.smallest_ratio
    if name != REUSE_LAG.name:
        ratio = monitor.reuse.residual_ratio(name)
        return ratio is not None and ratio < _REUSE_GAIN * quiet
    # Independent noise differs from earlier noise by sqrt(2) times its size, for any size. If the
    # noise is constant, the centre learns it and the plain residual is small as well; but then
    # `reuse.lag` is violated first.
    if _difference_ratio(monitor) >= _FRESH * added_ratio(case):
        return False  # independent noise of the added size explains it
    noise_at = monitor.witness_noise.test.violated_at
    lag_at = monitor.reuse.test.violated_at
    first = noise_at is None or (lag_at is not None and lag_at < noise_at)
    return first or _comes_back_regularly(monitor)


def _shared(case: Case, monitor: Monitored, finding: str) -> Candidate:
    fault = {REUSE_BROADCAST.name: ONE_VALUE, REUSE_PAIR.name: ONE_KEY}[finding]
    evidence = {"residual_ratio": monitor.reuse.residual_ratio(finding)}
    # One draw per step may be small for many steps; with one key, pairs of coordinates cancel.
    entailed = case.sizes if finding == REUSE_BROADCAST.name else (NOISE_CANARY.name,)
    explains = (*group("reuse"), *entailed, *case.beyond)
    return case.candidate(fault, finding, evidence=evidence, explains=explains)


def _repeated(case: Case, monitor: Monitored) -> Candidate | None:
    finding, reuse = REUSE_LAG.name, monitor.reuse
    if not reuse_is_seen(case, monitor, finding) or _in_part(case):
        return None
    if RECURRENCE.name in case.violated and not _comes_back_regularly(monitor):
        return None
    in_epochs = reuse.lag > monitor.header.lags
    fault = IN_A_CYCLE if reuse.lag > 1 else AT_EVERY_STEP
    if in_epochs:
        fault = IN_EVERY_EPOCH
    # The centre of a coordinate learns the mean of a cycle's noise; this is the ratio that is left.
    left = math.sqrt(1.0 - 1.0 / reuse.lag)
    quiet = monitor.witness_noise.smallest_ratio
    entailed = case.sizes if not in_epochs and quiet >= 0.9 * left else ()
    evidence = {} if in_epochs else {"lag": reuse.lag}
    evidence["difference_ratio"] = _difference_ratio(monitor)
    explains = (*group("reuse"), *entailed, *case.beyond)
    return case.candidate(fault, finding, evidence=evidence, explains=explains)


def _in_part(case: Case) -> bool:
    """Whether earlier noise predicts a part of the noise, in readings without data."""
    if REUSE_FORECAST.name not in case.violated:
        return False
    if RECURRENCE.name in case.violated and _recurred_ratio(case) < MISSING:
        return False  # the whole noise of a step recurred
    seen = case.seen(REUSE_FORECAST)
    (rule,) = REUSE_FORECAST.faults
    return rule.applies(seen) and seen["ratio"] < _ALONE and abs(seen["coefficient"]) < _WHOLE


def _dependent(case: Case) -> Candidate | None:
    """Return the fault if noise of the right size is predicted in part: what is left is small."""
    if not _in_part(case) or case.seen(REUSE_FORECAST)["ratio"] < 1.0 / _ALONE:
        return None
    return case.candidate(CORRELATED_OVER_STEPS, REUSE_FORECAST.name, explains=case.of_noise)


def _comes_back_regularly(monitor: Monitored) -> bool:
    """Whether steps at one lag agree over the whole run; with few seeds only a few pairs do."""
    quiet = float(monitor.witness_noise.smallest_ratio)
    return _difference_ratio(monitor) < _REUSE_GAIN * quiet


def _difference_ratio(monitor: Monitored) -> float:
    """Return the least difference at any lag over that of independent noise as claimed."""
    return float(monitor.reuse.lag_ratio() / math.sqrt(2.0))


def _recurred_ratio(case: Case) -> float:
    """Return the least difference from an earlier step, over that of independent noise."""
    return float(case.seen(RECURRENCE).get("difference_ratio") or 0.0)


def _correlated(case: Case) -> Candidate | None:
    """Return the fault if noise depends on earlier noise without repeating it."""
    seen = case.seen(RECURRENCE)
    # Entries without noise also depend on their past. If noise depends on earlier noise, the past
    # predicts a part of it, and the rest is small: so compare which check was violated first.
    found = first_seen(seen)
    sizes = (case.violated[name] for name in case.sizes if name in case.violated)
    small = [first_seen(check.evidence) for check in sizes]
    again = float(seen.get("difference_ratio") or 1.0) < MISSING  # the noise itself recurs
    if again or "agreement" not in seen or any(at is None or at <= found for at in small):
        return None
    evidence = {"lag": seen["lag"], "agreement": seen["agreement"]}
    return case.candidate(
        CORRELATED_OVER_STEPS, RECURRENCE.name, evidence=evidence, explains=case.of_noise
    )


def _recurring(case: Case, monitor: Monitored) -> Candidate | None:
    finding = RECURRENCE.name
    if finding not in case.violated or not _recurs(case, monitor) or _in_part(case):
        return None
    distances = case.seen(RECURRENCE).get("distances", [])
    explains = (*group("reuse"), *case.beyond)
    if len(distances) >= _IN_A_ROW and len(set(distances)) == 1:
        lag = {"lag": distances[0]}
        return case.candidate(IN_A_CYCLE, finding, evidence=lag, explains=explains)
    once = (
        "noise re-used: the noise of an earlier step comes back, as from few seeds or a generator "
        "that starts again"
    )
    return case.candidate(FEW_SEEDS, finding, once * (len(distances) == 1), explains=explains)


def _recurs(case: Case, monitor: Monitored) -> bool:
    """Whether steps agree more closely than noise that is too small or missing explains."""
    size = case.first_of(case.sizes)
    if size is None:
        return True
    since = monitor.witness_noise.onset.ratios() and NOISE_STEP.name in case.violated
    if size == NOISE_STEP.name or since:
        # Steps without noise agree; `noise.step` flags one before two of them can be compared.
        quiet_at = case.seen(NOISE_STEP).get("violated_at_step")
        alike_at = case.seen(RECURRENCE).get("violated_at_step")
        return quiet_at is not None and alike_at is not None and alike_at < quiet_at
    # If noise becomes small during a run, it is small in the steps compared, and less small in the
    # mean of all steps.
    return monitor.witness_noise.smallest_ratio >= MISSING and _recurred_ratio(case) < MISSING


# --- Check that entries of a step do not share their noise: `reuse.entries`.


class SharedEntries(Statistic):
    """Statistic of `reuse.entries`: entries of a step that have the noise of other entries."""

    def begin(self, header: RecordHeader) -> None:
        """Set the empty statistic."""
        self._past = AlikeBet()
        self._found: dict[str, Any] = {"left": 1.0, "distance": 0, "mirror": 0}

    def update(self, seen: Observation) -> None:
        """Update with the noise of a step's block, which has the same entries at every step."""
        bet = self._past
        if seen.block is None:
            return
        bet.update(seen.block)
        before = self.test.log_e
        self.test.update(bet.log_e, seen.step)
        if self.test.log_e > before:
            self._found = {"left": bet.left, "distance": bet.distance, "mirror": bet.mirror}

    def evidence(self) -> dict[str, Any]:
        """Return which entries share noise, and what is left of it."""
        return self._found


REUSE_ENTRIES = dataclasses.replace(
    RECURRENCE,
    name="reuse.entries",
    weight=5,
    title="Repeats within one step",
    failed_title="Noise is tiled or mirrored",
    meaning="Entries of a step share noise that is tiled, mirrored or repeated, so combinations of "
    "them have no noise.",
    look_at=NUMBERS_TWICE.look_at,
    needs="no step's whole tensors were read together with their clipped sums",
    fine="no entries of a step share their noise",
    message="entries of a step differ by less than independent noise makes them: as if draws were "
    "tiled, mirrored or repeated (at distance {distance}, or about half of {mirror})",
    faults=(NUMBERS_TWICE.rule(0.6, NOISED[1:], applies=lambda seen: seen["left"] < EXPLAINED),),
    reads="noise",
    statistic=SharedEntries,
)


# --- Rules that name the fault if `noise.shape` is violated: repeated values, or another shape.

#: Least share of repeated values in a step; ratio to the claim below which there is no noise.
_REPEATED, _NOTHING = 0.25, 1e-3


def repeated_in_step(case: Case, _: Monitored) -> list[Candidate]:
    """Return the fault if many entries of a step share values, until a check of `reuse` sees it."""
    share = case.seen(NOISE_SHAPE).get("repeated", 0.0)
    if (
        share < _REPEATED
        or case.first_of(group("reuse"))
        or added_ratio(case) < _NOTHING
        or _of_few_entries(case)
    ):
        return []
    found = case.candidate(
        REPEATED_IN_STEP,
        case.first_of(case.sizes) or NOISE_SHAPE.name,
        evidence={"repeated": share},
        explains=(*case.sizes, *case.beyond),
    )
    return [found]


def noise_of_another_shape(case: Case, monitor: Monitored) -> list[Candidate]:
    """Return the fault if the noise has the right size and another distribution."""
    seen = NOISE_SHAPE.name in case.violated
    if not seen or repeated_in_step(case, monitor) or _of_few_entries(case):
        return []
    return [case.candidate(ANOTHER_SHAPE, NOISE_SHAPE.name)]


def _of_few_entries(case: Case) -> bool:
    """Whether ties come from entries without noise, or from entries that share their noise."""
    return any(
        rule.applies(case.seen(check))
        for check in (NOISE_ENTRIES, REUSE_ENTRIES)
        if check.name in case.violated
        for rule in check.faults
    )


# --- Check that private optimizers do not draw the same noise: `reuse.optimizers`.


def noise_shared_result(shared: bool) -> CheckResult:
    """Return the result of `reuse.optimizers`: two optimizers must not add the same noise.

    Args:
        shared: whether the noise generators of two of them started in the same state.
    """
    return NOISE_SHARED.judged({"shared": shared})


NOISE_SHARED = Check(
    "reuse.optimizers",
    title="Noise of several optimizers",
    failed_title="Optimizers share their noise",
    meaning="The noise generators of two private optimizers started in the same state, so both add "
    "the same noise.",
    look_at="where the noise generators of the optimizers are seeded: leave the noise unseeded, or "
    "give all optimizers one generator",
    topic="Fresh randomness",
    always=True,
    optimizers=2,
    wrong=lambda seen: seen["shared"] is not False,
    private=True,
    fine="the noise generator of every optimizer started in its own state",
    message="the noise generators of two private optimizers started in the same state, so both add "
    "the same noise to their gradients",
    public=("shared",),
    faults=(
        Fault(
            "noise_shared_by_optimizers",
            sentence="noise re-used: the generators of two optimizers started in the same state",
        ).rule(-3),
    ),
)


#: The checks of this subject, in the order of the report.
CHECKS = (
    REUSE_FORECAST,
    RECURRENCE,
    NOISE_RESTARTED,
    REUSE_LAG,
    REUSE_BROADCAST,
    REUSE_PAIR,
    REUSE_ENTRIES,
    NOISE_SHARED,
)
