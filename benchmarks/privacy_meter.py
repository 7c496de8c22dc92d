"""Membership attacks next to those of privacy-meter 1.0.1, on the same scores of digits.

Shadow models on random halves, in complementary pairs, are trained without noise. Each attack gets
the same losses. Its area is the mean over target models. privacy-meter runs in an environment of
its own, as in peers.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch
from many_at_once import flat_digits, mlp
from support import quiet

from lightning_audit import attacks
from lightning_audit.many.vectorised import DPSGDMany

#: Our attack for each of privacy-meter's.
COUNTERPARTS = {
    "population": "score threshold",
    "shadow": "score threshold",
    "reference, linear quantile": "score difference",
    "reference, Gaussian of the loss": "LiRA offline",
    "reference, Gaussian of the logit": "LiRA offline",
    "reference, smaller of linear and logit": "LiRA offline",
}
OURS: dict[str, Callable[..., np.ndarray]] = {
    "score threshold": attacks.score_threshold,
    "score difference": attacks.score_difference,
    "out quantile": attacks.out_quantile,
    "LiRA offline": lambda *known: attacks.lira(*known, online=False),
    "LiRA offline, own variance": lambda *known: attacks.lira(*known, online=False, variance="own"),
    "LiRA online": attacks.lira,
    "LiRA online, own variance": lambda *known: attacks.lira(*known, variance="own"),
    "RMIA online": attacks.rmia,
    "RMIA offline, a .3": lambda *known: attacks.rmia(*known, offline_a=0.3),
    "normal ratio": attacks.normal_ratio,
}


def shadow_scores(models: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and membership of models on random halves in complementary pairs."""
    inputs, labels = flat_digits()
    records = len(labels)
    train = DPSGDMany(
        mlp,
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        sample_rate=0.1,
        expected_batch_size=0.05 * records,
        steps=steps,
        learning_rate=2.0,
    )
    rng = np.random.default_rng(0)
    membership = np.zeros((models, records), dtype=bool)
    for pair in range(0, models, 2):
        membership[pair, rng.permutation(records)[: records // 2]] = True
        membership[pair + 1] = ~membership[pair]
    halves = [(inputs[half], labels[half]) for half in map(np.flatnonzero, membership)]
    trained = train.many(halves, list(range(models)))
    return np.stack([margins(model, inputs, labels) for model in trained]), membership


def margins(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Return the scores of all records, as `LogitMargin` computes that of one."""
    with torch.no_grad():
        logits = model(inputs).double()
    own = logits.gather(1, labels[:, None])[:, 0]
    rest = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return (own - rest).numpy()


def areas(attacked: np.ndarray, inside: np.ndarray) -> float:
    """Return the mean area over the targets."""
    pairs = zip(attacked, inside, strict=True)
    return float(np.mean([attacks.attack_performance(a[None], m[None]).auc for a, m in pairs]))


def run(models: int = 64, targets: int = 16, steps: int = 200) -> dict[str, Any]:
    """Return areas, and our time as a share of privacy-meter's, for each pair of attacks."""
    quiet()
    scores, membership = shadow_scores(models, steps)
    known = scores[targets:], membership[targets:], scores[:targets]
    inside = membership[:targets]
    ours: dict[str, tuple[float, float]] = {}
    results: dict[str, Any] = {"models": f"{models - targets} shadow models, {targets} targets"}
    for name, attack in OURS.items():
        attacked, ms = peers.timed(lambda attack=attack: attack(*known), 3)
        pooled = attacks.attack_performance(attacked, inside)
        ours[name] = areas(attacked, inside), ms / 1e3
        results[f"ours: {name}"] = {
            "AUC": round(ours[name][0], 4),
            "TPR at 1 %": round(pooled.tpr[0.01], 4),
        }
    try:
        theirs = _theirs(scores, membership, targets)
    except peers.UnavailableError as error:
        results["unavailable"] = str(error)
        return results
    for name, found in theirs.items():
        counterpart = COUNTERPARTS[name]
        # privacy-meter takes one target at a time, and its areas are of 100 or 1,001 thresholds.
        seconds = len(inside) * float(np.median(found["seconds"]))
        best = max(float(np.mean(found[kind])) for kind in ("default", "fine"))
        results[f"privacy-meter: {name}"] = {
            "AUC, default rates": round(float(np.mean(found["default"])), 4),
            "AUC, 1,001 rates": round(float(np.mean(found["fine"])), 4),
            "ours": counterpart,
            "our AUC": round(ours[counterpart][0], 4),
            "times faster": round(seconds / ours[counterpart][1], 1),
        }
        results[f"holds: AUC of {name} not lower"] = bool(ours[counterpart][0] >= best - 5e-4)
    return results


def _theirs(scores: np.ndarray, membership: np.ndarray, targets: int) -> dict[str, Any]:
    losses = -attacks.log_probability(scores)
    # In complementary pairs each record is out of half of the models.
    shadow, inside = losses[targets:], membership[targets:]
    out = np.stack([shadow[~inside[:, r], r] for r in range(shadow.shape[1])])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "losses.npz"
        np.savez(
            file,
            targets=losses[:targets],
            inside=membership[:targets],
            out=out,
            shadow=shadow[0],
            shadow_inside=inside[0],
        )
        found: dict[str, Any] = peers.peer_results("privacy-meter", file)["results"]
    return found
