"""`audit_training`: audits a training function from many trainings with and without a canary."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_audit import _validate
from lightning_audit._validate import BadArgument
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.files import reason_of, visible
from lightning_audit.many.driver import Driver, OnFailure
from lightning_audit.many.engines import refuse_inside_a_worker, settings_of
from lightning_audit.many.identity import NoIdentity, digest_of
from lightning_audit.many.looks import GrowingLook
from lightning_audit.many.records import Canary, Crafted
from lightning_audit.many.store import Plan, Prefix, TrainingStore, block_size
from lightning_audit.many.training_audit import TrainingAudit, conclude
from lightning_audit.many.verdict import Claim, before_the_first, promise_of
from lightning_audit.many.worlds import Score, Work, worlds_of
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.text import print_report
from lightning_audit.results.audit_report import AuditReport

#: Trainings of a group from which one score for all of them is reported.
_LEAST_EQUAL = 10


def audit_training(
    train: Any,
    dataset: Any,
    claim: Claim,
    *,
    canary: Canary | None = None,
    score: Score | None = None,
    trainings: int = 1000,
    stop: Literal["refuted", "end"] = "refuted",
    significance: float = 1e-3,
    engine: Any = None,
    store: str | os.PathLike[str] = "audit-many",
    seed: int | None = None,
    identity: str | None = None,
    on_failure: OnFailure = "count",
    adjacency: Adjacency | None = None,
    limit: float | None = None,
    block: int | None = None,
    display: bool | Literal["report"] = True,
) -> TrainingAudit:
    """Audit a training function from the scores of many trained models.

    Each training has a fair coin of its own, which decides whether the canary is in its data. The
    audit guesses the coins from the scores. If the claim is true, the guesses err with at least a
    known rate, for any training (Nasr et al., arXiv:2302.07956, Algorithm 1).

    The same call again continues a store: after a crash, or with a larger ``trainings``.

    Args:
        train: function of (data set, seed) that returns a trained model, or a score as a number.
            All its randomness must come from ``seed``. Or an object with
            ``many(data_sets, seeds)``, which trains all at once and returns one result each.
        dataset: the data set without the canary: a tuple of arrays or tensors (inputs, targets), a
            map-style Dataset, or a list of records; or both data sets as `Neighbors`.
        claim: a `PrivacyClaim`, a trade-off function, or (epsilon, delta). State
            ``PrivacyClaim(noise_multiplier=, sample_rate=, steps=, delta=)`` if these are known: it
            takes far fewer trainings to refute than an epsilon.
        canary: `Blank`, `Mislabeled`, `Crafted`, `ChosenRecord` or `Many`; None for `Crafted()`.
        score: function of (model, record) that returns a number; None for `LogitMargin`, or for the
            number that ``train`` returns.
        trainings: their planned number, >= 2.
        stop: "refuted" to stop as soon as the claim is refuted; "end" to run the whole plan.
        significance: probability in (0, 1) of a VIOLATION although the claim is true.
        engine: `LocalProcesses`, or any object with ``submit(function, *arguments)`` that returns a
            future; None for one process a core.
        store: folder of the trainings and of ``report.json``. Not on a network file system.
        seed: of the audit, >= 0: coins, and seeds of trainings. It is mixed with digests of the
            canary, the score and the claim. None to draw one, which the store keeps.
        identity: text that identifies ``train``, ``dataset``, ``canary`` and ``score``, if their
            content cannot be determined.
        on_failure: "count" for a failed training as a wrong guess; "raise" to end the audit, too.
        adjacency: "add_remove" if a canary is a record more, "replace_one" if it replaces one; None
            for that of the claim.
        limit: seconds that a training may take; None for ten times the median, at least 60.
        block: trainings that a worker runs before their scores are stored, >= 1: 1 if a training
            takes minutes. None for a twentieth of the plan, at most 20. A store keeps the first.
        display: whether to print progress and report; "report" prints no progress.

    Returns:
        The verdict, with bounds and counts. ``report.json`` is in the store.

    Raises:
        ValueError: if an argument is outside its range.
        StoreError: if the store belongs to other trainings, is in use, or cannot be written.
        TrainingError: if each training fails, or one does and ``on_failure`` is "raise".
        EngineError: if the engine ends before each training.
        KeyboardInterrupt: if the user interrupts; the same call continues.
    """
    refuse_inside_a_worker()
    count = _validate.positive_int("trainings", trainings, "such as 1000")
    size = block_size(count) if block is None else block
    promise = promise_of(claim, pair=adjacency or _adjacency_of(claim))
    level = _validate.open_unit("significance", significance, "such as 1e-3")
    chosen = Crafted() if canary is None else canary
    runner, pair = settings_of(engine), promise.pair
    settings = {
        "canary": _name(chosen),
        "score": _name(score),
        "on_failure": _validate.one_of("on_failure", on_failure, ("count", "raise")),
        "engine": _name(runner),
        "seed": checked_seed(seed),
        "stop": _validate.one_of("stop", stop, ("refuted", "end")),
        "adjacency": pair,
        "trainings": count,
    }
    plan = Plan(0, count, _validate.positive_int("block", size, "such as 1"))
    limit = checked_limit(limit)
    work, say = Work(train, worlds_of(dataset, chosen, pair), score), progress(bool(display))
    parts, asked = {"adjacency": pair}, (promise.words, pair)
    with contextlib.closing(store_of(store, plan, work, seed, identity, parts, asked)) as kept:
        looks = GrowingLook(promise.least_error, -math.log(level))
        kept.say(promise.words, looks)
        say(f"privacy audit: {before_the_first(promise, kept.plan.trainings, level)}")
        with contextlib.suppress(OSError):  # a killed audit has no report
            (kept.folder / REPORT_NAME).unlink()

        def refuted(prefix: Prefix) -> bool:
            seen = stop == "refuted" and len(prefix.failed)
            return bool(seen) and looks.at(*prefix).refuted

        tell = progress(display is True)
        Driver(work, runner, kept, refuted, on_failure, limit, tell).run()
        prefix = kept.prefix()
        audit = conclude(*prefix, promise, planned=kept.planned, significance=level)
        seconds = sum(row.seconds or 0.0 for row in kept.rows())
        report = audit.to_report(settings, notes=_notes(prefix), seconds=seconds)
        path = _saved(report, kept.folder / REPORT_NAME, say)
    if display:
        print_report(report, path)
    return audit


def _saved(report: AuditReport, path: Path, say: Callable[[str], None]) -> Path | None:
    """Write a report; return its path, or None if that failed."""
    try:
        report.save(path)
    except OSError as error:
        say(
            f"privacy audit: {path} could not be written ({reason_of(error)}); the same call "
            "writes it again"
        )
        return None
    return path


def progress(display: bool) -> Callable[[str], None]:
    """Return what prints lines about the progress, or nothing."""
    if not display:
        return lambda text: None
    return lambda text: print(visible(text), file=sys.stderr, flush=True)


def store_of(
    folder: str | os.PathLike[str],
    plan: Plan,
    work: Work,
    seed: int | None,
    identity: str | None,
    parts: Mapping[str, str],
    claim: tuple[str, ...] = (),
) -> TrainingStore:
    """Open the store of trainings.

    A seed that was used before gives the same trainings again. What was learnt from them, such as a
    score, must meet others: so the plan's seed is drawn, or mixed with what the audit asks.

    Args:
        folder: of the store.
        plan: whose seed and number of canaries are replaced.
        work: what each training does.
        seed: as stated; None to draw one if the store is new.
        identity: text instead of the contents of the parts of ``work``.
        parts: what else identifies the trainings.
        claim: what is claimed.

    Raises:
        BadArgument: if the content of a part cannot be determined, and ``identity`` is None.
        StoreError: see `TrainingStore`.
    """
    digests = digests_of(work, identity)
    if device := work.drawn_on:
        parts = {**parts, "device": device}
    mixed = secrets.randbits(128)
    if seed is not None:
        asked = [identity, *map(_known_digest, (work.score, work.worlds.records))]
        mixed = int(digest_of(seed, asked, claim)[:32], 16)
    stated = "drawn" if seed is None else str(seed)
    own = replace(plan, seed=mixed, canaries=work.worlds.canaries)
    return TrainingStore(folder, own, {**digests, **parts, "seed": stated})


def _known_digest(part: Any) -> str:
    with contextlib.suppress(NoIdentity):
        return digest_of(part)
    return ""


def digests_of(work: Work, identity: str | None) -> dict[str, str]:
    """Return what trainings are, for the store: digests of their parts, or of the given text.

    Raises:
        BadArgument: if the content of a part cannot be determined, and ``identity`` is None.
    """
    version = {"Python": platform.python_version()}
    if identity is not None:
        return {"identity": digest_of(str(identity)), **version}
    parts = {
        "train": work.train,
        "dataset": work.worlds.data,
        "canary": list(work.worlds.records),
        "score": work.score,
    }
    digests = {}
    for name, part in parts.items():
        try:
            digests[name] = digest_of(part)
        except NoIdentity as error:
            raise BadArgument(f"{name}: {error}") from error
    return {**digests, **version}


def _notes(prefix: Prefix) -> list[str]:
    """Return what looks wrong in the scores, as text."""
    notes = []
    scores = prefix.scores.reshape(len(prefix.failed), -1)[~prefix.failed]
    coins = prefix.coins.reshape(len(prefix.failed), -1)[~prefix.failed]
    for number in range(scores.shape[1]):
        for inside, word in ((True, "with"), (False, "without")):
            group = scores[coins[:, number] == inside, number]
            if len(group) >= _LEAST_EQUAL and np.ptp(group) == 0.0:
                notes.append(
                    f"all trainings {word} the canary have one score: check that train uses its "
                    "seed, and that it adds noise"
                )
    return list(dict.fromkeys(notes))


def _adjacency_of(claim: Claim) -> Adjacency:
    stated = claim.adjacency if isinstance(claim, PrivacyClaim) else None
    return stated or "add_remove"


def checked_limit(limit: float | None) -> float | None:
    """Return the seconds that a training may take, as they were stated."""
    if limit is not None:
        _validate.positive("limit", limit, "in seconds a training")
    return limit


def checked_seed(seed: int | None) -> int | None:
    """Return a seed as it was stated."""
    whole = isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0
    if seed is not None and not whole:
        raise BadArgument(f"seed={_validate.shown(seed)} must be a whole number >= 0, or None.")
    return seed


def _name(value: Any) -> str:
    """Return the name of a function or of an object's type; "default" for None."""
    if value is None:
        return "default"
    return str(getattr(value, "__name__", type(value).__name__))
