"""Checks that noise is drawn independently for each step, coordinate, tensor and optimizer.

**Checks that noise is drawn independently for each step, coordinate and tensor.** The checks do not
use correlations, which data increase in correct runs. They test whether the variance is too small
after a centre is subtracted: the reading some steps ago, the mean of earlier readings of the step,
or the same coordinate of another tensor.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_audit.checks.check import (
    MISSING,
    REGISTRY,
    Candidate,
    Case,
    Check,
    FaultRule,
    first_seen,
    group,
)
from lightning_audit.checks.noise import (
    NOISE_CANARY,
    NOISE_ENTRIES,
    NOISE_SHAPE,
    NOISE_STEP,
    NOISE_WHOLE,
)
from lightning_audit.checks.noise_faults import added_ratio
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

if TYPE_CHECKING:
    from lightning_audit.checks.monitor import AuditMonitor

# --- Checks that noise is drawn independently for each step, coordinate and tensor.

_REUSE = Check(
    "reuse.lag",
    "noise that is not drawn independently",
    title="Noise across steps",
    failed_title="Noise repeats between steps",
    meaning="The same noise is added in several steps, so subtracting one step from another "
    "removes it.",
    look_at="Look for a generator that is seeded or restored between steps.",
    topic="Fresh randomness",
    weight=74,
    group="reuse",
    needs="no reading was compared with one of an earlier step",
    each=True,
    always=True,
    doubtful=True,
)
# One statistic gives the results of these three.
REUSE_LAG = dataclasses.replace(_REUSE, reads="steps", init=lambda *about: ReuseCheck(*about))
REUSE_BROADCAST = dataclasses.replace(
    _REUSE,
    name="reuse.broadcast",
    title="Noise across coordinates",
    failed_title="Coordinates share one noise value",
    meaning="Many coordinates of a step share one draw, so their differences have no noise.",
    look_at="Check the shape that the noise is drawn with: it must be that of the gradient.",
    topic="Fresh randomness",
    # With a tenth of the significance, two steps of shared noise are enough (median of runs).
    weight=113,
    needs="no readings of one step were compared with each other",
)

REUSE_PAIR = dataclasses.replace(
    _REUSE,
    name="reuse.pair",
    title="Noise across tensors",
    failed_title="Tensors share their noise",
    meaning="Two tensors get the same draw, so their difference has no noise.",
    look_at="Check whether one seed or key serves several tensors.",
    topic="Fresh randomness",
    weight=63,
    needs="no readings of two tensors were compared with each other",
)


class ReuseCheck:
    """Statistic of `reuse.lag`, `reuse.broadcast`, `reuse.pair`, from the probe coordinates."""

    def __init__(self, header: RecordHeader, significance: float) -> None:
        # The short lags, then the same place in the previous and in the first epoch.
        self._lags = header.lags
        self._seen = 0
        self._lag_count = np.zeros(header.lags + 2)
        self._lag_squares = np.zeros(header.lags + 2)
        self._single = {"broadcast": np.zeros(2), "pair": np.zeros(2)}
        checks = (REUSE_LAG, REUSE_BROADCAST, REUSE_PAIR)
        self.evidence = {check.name: check.test(significance) for check in checks}

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
        self.evidence["reuse.lag"].update(log_e, seen.step[known][at])
        for name, so_far in self._single.items():
            columns = (getattr(seen, f"{name}_{kind}") for kind in ("count", "squares"))
            terms = np.stack([*columns], axis=1)
            known = (terms[:, 0] > 0) & np.isfinite(terms).all(axis=1)
            totals = running(so_far, terms[known])
            self._single[name], at = totals[-1], looks[known]
            log_e = noise_log_e(*totals[1:][at].T)
            self.evidence[f"reuse.{name}"].update(log_e, seen.step[known][at])

    @property
    def lags(self) -> int:
        """Number of lags at which steps are compared; see `lag`."""
        return self._lags

    @property
    def period(self) -> str:
        """How often the noise recurs, as text."""
        if self.lag > self._lags:
            return "in every epoch"
        return "at every step" if self.lag == 1 else f"every {self.lag} steps"

    @property
    def lag(self) -> int:
        """The shortest lag at which readings agree about as well as at any lag, in steps.

        A number above `lags` means the same place in another epoch.
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

    def results(self) -> tuple[CheckResult, ...]:
        """Return the results of the three checks."""
        return (
            REUSE_LAG.result(
                self.evidence["reuse.lag"],
                "no noise recurs at a later step",
                "readings of different steps differ by less than independent noise of the claimed "
                f"size makes them: as if the noise recurred {self.period}",
                "look for a generator that is re-seeded, or restored, between steps",
                {"lag": self.lag, "lags": self._lags},
            ),
            REUSE_BROADCAST.result(
                self.evidence["reuse.broadcast"],
                "coordinates of a step have independent noise",
                "the coordinates of a step differ by less than independent noise makes them",
                "look for a noise drawn with too small a shape and broadcast over the gradient",
                {"residual_ratio": self.residual_ratio("reuse.broadcast")},
            ),
            REUSE_PAIR.result(
                self.evidence["reuse.pair"],
                "tensors have independent noise",
                "tensors differ by less than independent noise makes them",
                "look for one seed or key that is used for every tensor of a step",
                {"residual_ratio": self.residual_ratio("reuse.pair")},
            ),
        )


# --- Check that no earlier step's noise recurs: `reuse.recurrence`.

RECURRENCE = dataclasses.replace(
    REUSE_LAG,
    name="reuse.recurrence",
    finds="noise that recurs at irregular steps, as from few seeds, or depends on that of earlier "
    "steps otherwise than is claimed",
    title="Noise of distant steps",
    failed_title="Noise repeats at irregular steps",
    meaning="The noise of a step equals that of an earlier step, as if drawn from few seeds, or "
    "depends on it.",
    look_at="Check how seeds are chosen: all noise must come from one generator that is seeded "
    "once.",
    topic="Fresh randomness",
    # One or two steps show recurring noise, with enough evidence for a small share.
    weight=8,
    needs="no step's entries were read between its noise and its update",
    private=True,
    fine="no step's noise repeats that of an earlier step",
    reads="readings",
    init=lambda _, significance: NoiseRecurrence(significance),
)


#: Below this share of the variance that is left, the best forecast explains part of the noise.
EXPLAINED = 0.97

#: From this share of equal signs on, the noise is the same noise.
_SAME_SIGNS = 0.98
#: Log e-value at which a step's noise surely recurred, and how many of these steps are kept.
_CERTAIN, _RETURNS = 20.0, 8
#: Name of a fault that several checks report.
CORRELATED_OVER_STEPS = "noise_correlated_over_steps"


class NoiseRecurrence:
    """Statistic of `reuse.recurrence`: differences from earlier steps, and signs at fixed lags.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past, self._signs, self._bet = NoisePast(), LagSigns(), SingleStepBet()
        self._test = RECURRENCE.test(significance)
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
        before = self._test.violated
        both = [float(self._bet.log_e), self._signs.log_e]
        self._test.update(float(log_mean_exp(both)), step)
        flags = self._test.violated and not before
        if flags or (not before and age and log_e > self._pair_log_e):
            self._pair, self._pair_log_e = (earlier, step), log_e
            self._difference_ratio = self._past.difference_ratio

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why the latest step shows no noise."""
        (earlier, later), violated = self._pair, self._test.violated
        evidence: dict[str, Any] = {
            "steps": [earlier, later] if violated else [],
            "distances": self._returned if violated else [],
            "difference_ratio": self._difference_ratio if violated else None,
        }
        wrong = (
            f"readings of step {later + 1} differ from those of step {earlier + 1} by less than "
            "independent noise of the claimed size makes them: as if the noise recurred"
        )
        advice = (
            "look for a generator that is re-seeded from few seeds, or restored, and draw all "
            "noise from one generator that is seeded once"
        )
        lag, agreement = self._signs.lag, self._signs.agreement
        # Half of the stake is on the signs; if nearly all agree, it is the same noise.
        if self._signs.log_e - math.log(2.0) >= self._test.threshold and agreement < _SAME_SIGNS:
            wrong = (
                f"the noise of a step depends on that of {lag} step{'s' * (lag > 1)} before: "
                f"{agreement:.0%} of its signs agree, and 50% would agree by chance"
            )
            advice = (
                "draw the noise of each step independently; if it is correlated by design, state "
                "its coefficients as PrivacyClaim(noise_coefficients=...), and draw it with the "
                "stated coefficients"
            )
            evidence |= {"lag": lag, "agreement": agreement}
        return RECURRENCE.result(self._test, RECURRENCE.fine, wrong, advice, evidence, lack)


# --- Check that earlier noise does not predict the noise of a step: `reuse.forecast`.

REUSE_FORECAST = dataclasses.replace(
    RECURRENCE,
    name="reuse.forecast",
    weight=5,
    finds="noise that depends on that of earlier steps: in part, with opposite sign, or so that "
    "it cancels",
    title="Noise given earlier noise",
    failed_title="Noise depends on earlier noise",
    meaning="Part of a step's noise can be computed from the noise of earlier steps, and then be "
    "subtracted.",
    look_at="Check what is kept of the noise between steps (momentum, sums, buffers); if the "
    "correlation is intended, state `PrivacyClaim(noise_coefficients=...)`.",
    topic="Fresh randomness",
    needs="no step's noise was read after that of an earlier step",
    fine="the noise of earlier steps does not predict that of a step",
    faults=(
        FaultRule(
            CORRELATED_OVER_STEPS,
            "noise correlated over steps: the noise of a step depends on that of earlier steps, "
            "otherwise than is claimed",
            "what keeps noise from step to step and adds it again: a momentum, a running sum, a "
            "buffer or a generator that is restored; and, if the noise is correlated by design, "
            "whether PrivacyClaim(noise_coefficients=...) states the weights of the draws",
            headline="The noise depends on that of earlier steps",
            rank=0.5,
            explains_groups=("reuse", "channel", "leakage"),
            applies=lambda seen: seen["left"] < EXPLAINED,
        ),
    ),
    reads="readings",
    init=lambda _, significance: NoiseForecast(significance),
)


#: The test looks at each step before number `_EACH`, and at every `_LATER`-th step after them.
_EACH, _LATER = 20, 4


class NoiseForecast:
    """Statistic of `reuse.forecast`: forecasts of a step's noise from earlier steps.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past = LatestNoise()
        self._bet = ForecastBet()
        self._test = REUSE_FORECAST.test(significance)

    def update(self, seen: Observation) -> None:
        """Update with a step's readings."""
        readings, step = seen.noise_readings, seen.step
        self._bet.update(self._past.before(step, len(readings)), readings)
        self._past.add(readings, step)
        if self._bet.compared and (step < _EACH or step % _LATER == 0):
            self._test.update(self._bet.log_e, step)

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why no noise was read."""
        lag, coefficient = self._bet.best
        by = f"the noise of {lag} steps before" if lag > 1 else "the noise of the step before"
        by = by if lag else "the sum of all noise so far"
        return REUSE_FORECAST.result(
            self._test,
            REUSE_FORECAST.fine,
            "forecasts from earlier steps leave less than the claimed noise: the best forecast is "
            f"{coefficient:.2g} times {by}, and leaves {self._bet.left:.0%} of the variance",
            "draw all noise from one generator that is seeded once, and add each draw to one step "
            "only, without any part of earlier draws",
            {
                "lag": lag,
                "coefficient": coefficient,
                "left": self._bet.left,
                "ratio": self._bet.ratio,
            },
            lack,
        )


# --- Check that a resumed training does not repeat the noise of its first steps: `reuse.resume`.

NOISE_RESTARTED = Check(
    "reuse.resume",
    "a seeded noise generator that restarts when the training is resumed",
    title="Noise after a resume",
    failed_title="Noise restarts on resume",
    meaning="When the training was resumed, the noise generator started again and repeated the "
    "noise of the first steps.",
    look_at="Check what seeds the noise generator before a resume, and whether its state is saved "
    "and restored.",
    topic="Fresh randomness",
    weight=2,
    needs="the first steps of the training, or those after the resume, were not read",
    each=True,
    private=True,
    fine="the noise did not restart when the training was resumed",
    faults=(
        FaultRule(
            "noise_restarted",
            "noise re-used: a seeded generator restarted when the training was resumed",
            "what seeds the noise before a resume: leave seed_everything out there, give it "
            "a different seed than at the start, draw the noise with "
            "PrivacyEngine(secure_mode=True), which no seed determines, or save the state: "
            "checkpoint['rng'] = torch.get_rng_state() in on_save_checkpoint, "
            "torch.set_rng_state(checkpoint['rng']) in on_load_checkpoint (of a noise_generator: "
            "its get_state and set_state)",
            headline="The noise starts again when the training is resumed",
            rank=-5,
            explains=(REUSE_LAG.name, RECURRENCE.name),
        ),
    ),
)


#: Number of first steps that are compared, of the training and of each resumed segment.
COMPARED = 3


class NoiseRestart:
    r"""Statistic of `reuse.resume`: compares the first steps of a segment and of the training.

    A checkpoint holds what the first steps released. It holds no state of the noise generator, from
    which all noise could be computed. A generator that restarts gives step t of a segment the noise
    of step t of the training. The e-value of a step is the mean of two e-values, and those of
    `COMPARED` steps are multiplied:

    * the earlier release is a centre that the past determines, and the difference from it is at
      least as large as the noise, for any data (`noise_log_e`);
    * if the present noise is known without the data, its products with the earlier release are
      symmetric about zero (`product_log_e`), for any size of the earlier data.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._test = NOISE_RESTARTED.test(significance)
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
        self._test.update(self._log_e, step)

    @property
    def resumed(self) -> bool:
        """Whether the training was resumed, so that there is a result."""
        return self._resumed_at is not None

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why the latest step shows no noise."""
        return NOISE_RESTARTED.result(
            self._test,
            NOISE_RESTARTED.fine,
            "the first noise after the resume repeats that of the first steps of the training: the "
            "noise generator restarted in the same state",
            "do not seed the noise, or save the generator's state in the checkpoint and restore it",
            {},
            lack,
        )


# --- Rules that name the likely fault if noise is re-used within a step or over steps.

#: Headlines of the faults that no check names alone.
HEADLINES = {
    "noise_repeated_in_step": "Noise repeats within a step",
    "same_noise_at_every_step": "The same noise is added at every step",
    "same_noise_in_every_epoch": "The same noise is added in every epoch",
    "noise_in_a_cycle": "The noise repeats in a cycle",
}
#: A residual below this multiple of the plain one is evidence for re-used noise, not small noise.
_REUSE_GAIN = 0.7
#: The same for noise whose size is known without the data.
_FRESH = 0.9
#: Largest ratio of readings to the claim at which they contain no data; coefficient of earlier
#: noise in such readings from which on it is the same noise.
_ALONE, _WHOLE = 1.05, 0.85
_SEEDED_AFTER = "what seeds or restores a generator after that number of steps"
#: Number of recurrences at one distance from which on the noise recurs in a cycle.
_IN_A_ROW = 3


def reuse_candidates(case: Case) -> list[Candidate]:
    """Return the faults that add the same noise several times, the likeliest first.

    Noise that is shared within a step comes first, then noise that recurs after a fixed number of
    steps, then noise that recurs at irregular steps.
    """
    monitor = case.monitor
    if monitor is None:
        return []
    shared = [name for name in (REUSE_BROADCAST.name, REUSE_PAIR.name) if name in case.violated]
    clear = [name for name in shared if reuse_is_seen(case, monitor, name)]
    correlated = _correlated(case) or _dependent(case)
    found = (correlated,) if correlated else (_repeated(case, monitor), _recurring(case, monitor))
    others = [c for c in found if c is not None]
    # If nothing else explains slightly small differences, they are re-used noise as well.
    alone = not (clear or others or case.first_of(case.sizes))
    return [*(_shared(case, monitor, name) for name in (shared if alone else clear)), *others]


def reuse_is_seen(case: Case, monitor: AuditMonitor, name: str) -> bool:
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
    whole = case.violated.get(NOISE_WHOLE.name)
    added = math.inf if whole is None else whole.evidence.get("added_ratio", math.inf)
    if monitor.reuse.lag_ratio() / math.sqrt(2.0) >= _FRESH * added:
        return False  # independent noise of the added size explains it
    noise_at = monitor.witness_noise.pooled.violated_at
    lag_at = monitor.reuse.evidence[name].violated_at
    first = noise_at is None or (lag_at is not None and lag_at < noise_at)
    return first or _comes_back_regularly(monitor)


def _shared(case: Case, monitor: AuditMonitor, finding: str) -> Candidate:
    name, sentence, look_at = {
        REUSE_BROADCAST.name: (
            "one_value_for_all_coordinates",
            "one noise value is shared by all coordinates of a step",
            "the shape that the noise is drawn with: it must be that of the gradient",
        ),
        REUSE_PAIR.name: (
            "one_key_for_all_tensors",
            "one noise key is used for several tensors",
            "whether one seed or key serves all tensors of a step, or two processes' shards",
        ),
    }[finding]
    evidence = {"residual_ratio": monitor.reuse.residual_ratio(finding)}
    sentence = f"noise re-used: {sentence}"
    # One draw per step may be small for many steps; with one key, pairs of coordinates cancel.
    entailed = case.sizes if finding == REUSE_BROADCAST.name else (NOISE_CANARY.name,)
    explains = (*group("reuse"), *entailed, *case.beyond)
    return case.candidate(name, finding, sentence, look_at, evidence, explains=explains)


def _repeated(case: Case, monitor: AuditMonitor) -> Candidate | None:
    finding, reuse = REUSE_LAG.name, monitor.reuse
    if not reuse_is_seen(case, monitor, finding) or _in_part(case):
        return None
    if RECURRENCE.name in case.violated and not _comes_back_regularly(monitor):
        return None
    in_epochs = reuse.lag > reuse.lags
    if in_epochs:
        name, look_at = "same_noise_in_every_epoch", "whether an epoch's start seeds the generator"
    elif reuse.lag == 1:
        name, look_at = "same_noise_at_every_step", "whether a generator is seeded in each step"
    else:
        name, look_at = "noise_in_a_cycle", _SEEDED_AFTER
    # The centre of a coordinate learns the mean of a cycle's noise; this is the ratio that is left.
    left = math.sqrt(1.0 - 1.0 / reuse.lag)
    quiet = monitor.witness_noise.smallest_ratio
    entailed = case.sizes if not in_epochs and quiet >= 0.9 * left else ()
    evidence = {"difference_ratio": reuse.lag_ratio() / math.sqrt(2.0)}
    return case.candidate(
        name,
        finding,
        f"noise re-used: the same noise is added {reuse.period}",
        look_at,
        evidence if in_epochs else {"lag": reuse.lag, **evidence},
        explains=(*group("reuse"), *entailed, *case.beyond),
    )


def _in_part(case: Case) -> bool:
    """Whether earlier noise predicts a part of the noise, in readings without data."""
    if REUSE_FORECAST.name not in case.violated:
        return False
    if RECURRENCE.name in case.violated:
        alike = case.violated[RECURRENCE.name].evidence.get("difference_ratio")
        if float(alike or 0.0) < MISSING:  # the whole noise of a step recurred
            return False
    seen = case.violated[REUSE_FORECAST.name].evidence
    (rule,) = REUSE_FORECAST.faults
    return rule.applies(seen) and seen["ratio"] < _ALONE and abs(seen["coefficient"]) < _WHOLE


def _dependent(case: Case) -> Candidate | None:
    """Return the fault if noise of the right size is predicted in part: what is left is small."""
    finding = REUSE_FORECAST.name
    if not _in_part(case) or case.violated[finding].evidence["ratio"] < 1.0 / _ALONE:
        return None
    (rule,) = REUSE_FORECAST.faults
    explains = case.of_noise
    return case.candidate(rule.name, finding, rule.sentence, rule.look_at, explains=explains)


def _comes_back_regularly(monitor: AuditMonitor) -> bool:
    """Whether steps at one lag agree over the whole run; with few seeds only a few pairs do."""
    quiet = monitor.witness_noise.smallest_ratio
    return monitor.reuse.lag_ratio() / math.sqrt(2.0) < _REUSE_GAIN * quiet


def _correlated(case: Case) -> Candidate | None:
    """Return the fault if noise depends on earlier noise without repeating it."""
    finding = RECURRENCE.name
    seen = case.violated[finding].evidence if finding in case.violated else {}
    # Entries without noise also depend on their past. If noise depends on earlier noise, the past
    # predicts a part of it, and the rest is small: so compare which check was violated first.
    found = first_seen(seen)
    small = [
        first_seen(case.violated[name].evidence) for name in case.sizes if name in case.violated
    ]
    again = float(seen.get("difference_ratio") or 1.0) < MISSING  # the noise itself recurs
    if again or "agreement" not in seen or any(at is None or at <= found for at in small):
        return None
    return case.candidate(
        CORRELATED_OVER_STEPS,
        finding,
        REUSE_FORECAST.faults[0].sentence,
        "how the noise of a step is computed from draws of earlier steps, and whether "
        "PrivacyClaim(noise_coefficients=...) states the weights of these draws",
        {"lag": seen["lag"], "agreement": seen["agreement"]},
        explains=case.of_noise,
    )


def _recurring(case: Case, monitor: AuditMonitor) -> Candidate | None:
    finding = RECURRENCE.name
    if finding not in case.violated or not _recurs(case, monitor, finding):
        return None
    if _in_part(case):
        return None
    distances = case.violated[finding].evidence.get("distances", [])
    explains = (*group("reuse"), *case.beyond)
    if len(distances) >= _IN_A_ROW and len(set(distances)) == 1:
        return case.candidate(
            "noise_in_a_cycle",
            finding,
            f"noise re-used: the same noise is added again after {distances[0]} steps",
            _SEEDED_AFTER,
            {"lag": distances[0]},
            explains=explains,
        )
    return case.candidate(
        "few_seeds",
        finding,
        "noise re-used: the noise comes back at irregular steps, as from few seeds"
        if len(distances) != 1
        else "noise re-used: the noise of an earlier step comes back, as from few seeds or a "
        "generator that starts again",
        "how the noise is seeded: whether seeds are drawn from a small range, or from the clock",
        explains=explains,
    )


def _recurs(case: Case, monitor: AuditMonitor, finding: str) -> bool:
    """Whether steps agree more closely than noise that is too small or missing explains."""
    if not case.first_of(case.sizes):
        return True
    since = monitor.witness_noise.onset.ratios() and NOISE_STEP.name in case.violated
    if case.first_of(case.sizes) == NOISE_STEP.name or since:
        # Steps without noise agree; `noise.step` flags one before two of them can be compared.
        quiet_at = case.violated[NOISE_STEP.name].evidence.get("violated_at_step")
        alike_at = case.violated[finding].evidence.get("violated_at_step")
        return quiet_at is not None and alike_at is not None and alike_at < quiet_at
    quiet = monitor.witness_noise.smallest_ratio
    difference = float(case.violated[finding].evidence.get("difference_ratio") or 0.0)
    # If noise becomes small during a run, it is small in the steps compared, and less small in the
    # mean of all steps.
    return quiet >= MISSING and difference < MISSING


# --- Check that entries of a step do not share their noise: `reuse.entries`.


class SharedEntries:
    """Statistic of `reuse.entries`: finds entries of a step that have the noise of other entries.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past = AlikeBet()
        self._test = REUSE_ENTRIES.test(significance)
        self._found: dict[str, Any] = {"left": 1.0, "distance": 0, "mirror": 0}

    def update(self, seen: Observation) -> None:
        """Update with the noise of a step's block, which has the same entries at every step."""
        bet = self._past
        if seen.block is None:
            return
        bet.update(seen.block)
        before = self._test.log_e
        self._test.update(bet.log_e, seen.step)
        if self._test.log_e > before:
            self._found = {"left": bet.left, "distance": bet.distance, "mirror": bet.mirror}

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why no noise was read."""
        return REUSE_ENTRIES.result(
            self._test,
            REUSE_ENTRIES.fine,
            "entries of a step differ by less than independent noise makes them: as if draws "
            f"were tiled, mirrored or repeated (at distance {self._found['distance']}, or about "
            f"half of {self._found['mirror']})",
            "look for a noise drawn with too small a shape and repeated, tiled, flipped or "
            "expanded to that of the gradient",
            self._found,
            lack,
        )


REUSE_ENTRIES = dataclasses.replace(
    RECURRENCE,
    name="reuse.entries",
    weight=5,
    finds="entries of a step that share their noise: tiled, mirrored, repeated along an axis",
    title="Repeats within one step",
    failed_title="Noise is tiled or mirrored",
    meaning="Entries of a step share noise that is tiled, mirrored or repeated, so combinations of "
    "them have no noise.",
    look_at="Check the shape that the noise is drawn with, and whether it is repeated, mirrored or "
    "rolled to that of the gradient.",
    topic="Fresh randomness",
    needs="no step's whole tensors were read together with their clipped sums",
    fine="no entries of a step share their noise",
    faults=(
        FaultRule(
            "noise_numbers_twice",
            "noise re-used: several entries of one step's noise have the same numbers",
            "the shape that the noise is drawn with, and whether it is repeated, mirrored or "
            "rolled to that of the gradient",
            headline="Several entries of a step get the same noise",
            rank=0.6,
            explains_groups=("reuse", "channel", "leakage"),
            applies=lambda seen: seen["left"] < EXPLAINED,
        ),
    ),
    reads="noise",
    init=lambda _, significance: SharedEntries(significance),
)


# --- Rules that name the fault if `noise.shape` is violated: repeated values, or another shape.

#: Least share of repeated values in a step; ratio to the claim below which there is no noise.
_REPEATED, _NOTHING = 0.25, 1e-3


def repeated_in_step(case: Case) -> list[Candidate]:
    """Return the fault if many entries of a step share values, until a check of `reuse` sees it."""
    shape = case.violated.get(NOISE_SHAPE.name)
    share = 0.0 if shape is None else shape.evidence.get("repeated", 0.0)
    if (
        case.monitor is None
        or share < _REPEATED
        or case.first_of(group("reuse"))
        or added_ratio(case) < _NOTHING
        or _of_few_entries(case)
    ):
        return []
    found = case.candidate(
        "noise_repeated_in_step",
        case.first_of(case.sizes) or NOISE_SHAPE.name,
        f"noise re-used within a step: {share:.0%} of the values that are read occur at another "
        "entry, too",
        "whether each tensor draws its own noise, in its own shape: no seed or key may serve "
        "several tensors, and no value may be broadcast",
        {"repeated": share},
        explains=(*case.sizes, *case.beyond),
    )
    return [found]


def noise_of_another_shape(case: Case) -> list[Candidate]:
    """Return the fault if the noise has the right size and another distribution."""
    seen = case.violated.get(NOISE_SHAPE.name)
    if case.monitor is None or seen is None or repeated_in_step(case) or _of_few_entries(case):
        return []
    found = case.candidate(
        "noise_of_another_shape",
        NOISE_SHAPE.name,
        "noise of another shape: its standard deviation is right and its distribution is not the "
        "normal one that the accountant assumes",
        "which distribution the noise is drawn from, and whether it is rounded, clipped or cast to "
        "a type of low precision afterwards",
    )
    return [found]


def _of_few_entries(case: Case) -> bool:
    """Whether ties come from entries without noise, or from entries that share their noise."""
    checks = [NOISE_ENTRIES, REUSE_ENTRIES]
    return any(
        rule.applies(case.violated[check.name].evidence)
        for check in checks
        if check.name in case.violated
        for rule in check.faults
    )


# --- Check that private optimizers do not draw the same noise: `reuse.optimizers`.


def noise_shared_result(shared: bool) -> CheckResult:
    """Return the result of `reuse.optimizers`: two optimizers must not add the same noise.

    Args:
        shared: whether the noise generators of two of them started in the same state.
    """
    return NOISE_SHARED.judged(
        {"shared": shared},
        NOISE_SHARED.fine,
        "the noise generators of two private optimizers started in the same state, so both add "
        "the same noise to their gradients",
        "do not seed the noise, or give all optimizers one generator",
    )


NOISE_SHARED = Check(
    "reuse.optimizers",
    "the noise generators of two private optimizers started in the same state",
    title="Noise of several optimizers",
    failed_title="Optimizers share their noise",
    meaning="The noise generators of two private optimizers started in the same state, so both add "
    "the same noise.",
    look_at="Check where the noise generators of the optimizers are seeded.",
    topic="Fresh randomness",
    always=True,
    optimizers=2,
    wrong=lambda seen: seen["shared"] is not False,
    private=True,
    fine="the noise generator of every optimizer started in its own state",
    public=("shared",),
    faults=(
        FaultRule(
            "noise_shared_by_optimizers",
            "noise re-used: the generators of two optimizers started in the same state",
            "where the generators of the optimizers are seeded",
            headline="Two optimizers draw the same noise",
            rank=-3,
        ),
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
