"""Steps until too small a noise is flagged, on the digits net at noise multiplier 3.0023.

At that noise one step costs epsilon 1.27; noise of 0.8255 times the claim costs 1.57. The tests
look at every step, at the verdict's significance of 1e-3.
"""

from __future__ import annotations

import tempfile

import pytorch_lightning as pl
from support import Classifier, conv_net, digits, quiet, trainer

from lightning_audit import PrivacyAudit

NOISE_MULTIPLIER = 3.0023
#: Noise factor -> steps within which the witnesses, and the canaries alone, must flag it.
LIMITS = {0.8255: (20, 150), 0.5: (5, 15)}


def steps_to_flag(noise_factor: float, steps: int, seed: int) -> tuple[int | None, int | None]:
    """Steps until the witnesses, and the canaries alone, flag a noise factor; None if they do not.

    Args:
        noise_factor: true noise over stated noise.
        steps: length of the training.
        seed: of the training and of the audit.
    """
    pl.seed_everything(seed, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        audit = PrivacyAudit(on_violation="warn", report_dir=folder, seed=seed, examinations=0)
        module = Classifier(
            conv_net(), digits(), noise_multiplier=NOISE_MULTIPLIER, noise_factor=noise_factor
        )
        trainer(steps, audit).fit(module)
        found = {
            check.name: check.evidence["violated_at_step"]
            for check in audit.report.checks
            if "violated_at_step" in check.evidence
        }
    witnesses = [found[name] for name in ("noise", "noise.tensor") if found[name] is not None]
    canaries = found["noise.canary"]
    return (min(witnesses) + 1 if witnesses else None, None if canaries is None else canaries + 1)


def run(seeds: int = 20) -> dict[str, object]:
    """How many of ``seeds`` trainings are flagged within the limits, and the steps they took."""
    quiet()
    results: dict[str, object] = {}
    for factor, limits in LIMITS.items():
        found = [steps_to_flag(factor, limits[1], seed) for seed in range(seeds)]
        for name, limit, steps in zip(
            ("witnesses", "canaries alone"), limits, zip(*found, strict=True), strict=True
        ):
            within = sum(s is not None and s <= limit for s in steps)
            seen = sorted(s if s is not None else 10**9 for s in steps)
            results[f"noise x{factor}, {name}: within {limit} steps, of {seeds}"] = within
            results[f"noise x{factor}, {name}: median steps"] = seen[len(seen) // 2]
    return results
