"""Check that a resumed training does not repeat the noise of its first steps: `reuse.resume`."""

from __future__ import annotations

import numpy as np

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.checks.randomness.noise_recurrence import RECURRENCE
from lightning_audit.checks.randomness.noise_reuse import REUSE_LAG
from lightning_audit.layout import FloatArray
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.symmetric_noise import product_log_e
from lightning_audit.stats.evalues.noise_scale import noise_log_e
from lightning_audit.stats.evalues.sequential import log_mean_exp

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

CHECKS = (NOISE_RESTARTED,)

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

    def update(self, at: NoiseStep) -> None:
        """Update with a step."""
        released, noise, step = at.released, at.noise, at.number
        if step < COMPARED:
            self.first[step] = released.copy()
        if self._resumed_at is None or step - self._resumed_at >= COMPARED:
            return
        then = self.first.get(step - self._resumed_at)
        if then is None or len(then) != len(released):
            return
        gap = at.readings - then
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
