"""Makes docs/what-files-reveal.md from the registry: `python docs/build/disclosure_page.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_audit.checks.check import REGISTRY, Check

PAGE = Path(__file__).parents[1] / "what-files-reveal.md"

_HEAD = """# What an audit's files reveal

<!-- Made by `python docs/build/disclosure_page.py` from the checks' declarations; do not edit. -->

For the privacy lead who decides what may be published: every field of every file, and what it is
computed from.

An epsilon covers any function of the released gradients. All data that leave the process of an
audited training are therefore one of these:

- **public**: a function of released (noisy) gradients, the audit's coins and seeds, the clock, and
  settings that you state (the number of records among them);
- **verdict**: the status of a check, the kind of reason for which it did not run, or a sentence
  that follows from these and has no number;
- **coarse**: an e-value of private numbers, in whole powers of ten;
- **void**: numbers of a violated private check, with two digits, or as many as the verdict and the
  likely fault need. The guarantee is void then, and a note of the report names these checks. Do not
  publish such a report if the data are private.

A *private* check computes its numbers from un-noised data: clipped sums, noise alone, batches,
records, replays. A warning or an undecided finding voids no guarantee, so such a check shows no
number either.

Verdicts, coarse fields and the step at which a check is violated are not covered by epsilon: they
are bits of the data that the audit spends. `tests/callbacks/test_privacy_audit_outputs.py` tests
the rest: for two trainings on neighboring data sets, with the same coins and the same released
gradients at every step, all files, metrics and printed lines are equal byte for byte, except times
and coarse fields.
"""

#: Artifact, field, and what it is a function of.
_FIELDS: Sequence[tuple[str, str, str]] = (
    ("`report.json`", "`verdict`, `pass_blockers`, `notes`", "verdict; public numbers"),
    (
        "`report.json`",
        "`verdict.faults`, `epsilon_measured` if a private check is violated",
        "void",
    ),
    ("`report.json`", "`checks`", "see the tables below"),
    (
        "`report.json`",
        "`published`",
        "verdict: names of logged values that records decide; no value",
    ),
    (
        "`report.json`",
        "`tests`: growth of e-values",
        "public; coarse for private checks: whole powers of ten, and the steps that reached them",
    ),
    ("`report.json`", "`tests`: `threshold`, `log_e_threshold` of checks", "public (settings)"),
    (
        "`report.json`",
        "`examinations`",
        "verdict: number of the step, names of checks and of findings; public (the clock). No "
        "number of records or replays",
    ),
    (
        "`report.json`",
        "`claim`",
        "public. The number of records only if shuffled batches are claimed; no divisor that is "
        "computed from it if it is stated as private",
    ),
    (
        "`report.json`",
        "`bounds`, `operating_points`, `power`, `epsilon_spent`, `epsilon_refuted_by`, "
        "`epsilon_not_excluded`, `history`, `composed`, `steps`, `observations`, `optimizers`, "
        "`tensors`, `tensors_left_out`, `course`, `claimed_mu`, `planned_steps`, `assumptions`",
        "public",
    ),
    (
        "`report.json`",
        "`trainings`",
        "public: counts of trainings and of guesses at coins; a function of released models",
    ),
    ("`report.json`", "`epochs`", "as the metrics"),
    (
        "`report.json`",
        "`settings`, `settings_given`, `environment`, `claimed_epsilon`, `delta`",
        "public",
    ),
    ("`report.json`", "`ended`, `blockers`", "verdict; public numbers"),
    (
        "`report.json`",
        "`run`",
        "public: the clock, names of classes, device and strategy, commit of the user's repository",
    ),
    ("`report.json`", "`created`, `audit_cost`, `examination_cost`", "public (the clock)"),
    (
        "`report.json`",
        "`evidence.where`, paths in `advice`, `place.code` of faults",
        "public; never an absolute path. At most 12 lines of the user's source; none with "
        "`source_in_report=False`",
    ),
    ("`observations.bin`, `observations.npz`", "every field", "public; see below"),
    ("`fits.jsonl`", "digests of parameters, phases", "public: released parameters; as `composed`"),
    ("metrics of the loggers", "`audit/e_value`", "coarse if a private check's is the largest"),
    ("metrics of the loggers", "every other one", "public; verdict (`audit/violated`)"),
    ("figure", "all of it", "public, verdict"),
    ("`report.html`", "all of it", "as `report.json`, from which it is made"),
    ("console and log", "the report", "as `report.json`"),
    (
        "console and log",
        "failures of a replay",
        "verdict: the type of an exception; its text and traceback at the level `DEBUG` alone",
    ),
    (
        "`lightning-audit plan`",
        "findings, steps to a PASS, attack",
        "as `report.json`, of up to 256 steps: a function of its noisy gradients, which "
        "no accountant counts; public (settings)",
    ),
    ("`lightning-audit plan`", "seconds", "public (the clock)"),
    ("`PrivacyViolation`, `InconclusiveAudit`", "message and `report`", "as `report.json`"),
    ("checkpoint", "generator of the coins, seed", "public; it determines the future coins"),
    ("checkpoint", "sums and e-values of releases, first releases, counts of steps", "public"),
    ("checkpoint", "`segments`", "as `checks` of the report"),
    ("checkpoint", "`accountant`, `config`, `lints`, `course`, others", "public; verdict"),
    ("checkpoint", "`trained_batches`", "public: at most the number of steps"),
    (
        "checkpoint",
        "`passes`: the most steps on a batch of each pass, summed",
        "public: counts of steps",
    ),
    ("checkpoint", "norms of an input canary's gradient", "of a record; see below"),
    ("checkpoint", "`examinations`", "public; a resumed training is examined again"),
)

_RECORD = """## The record, column by column

Its columns describe steps whose noise was added, and the audit's own coins:
"""
#: Columns of the record, and what each is a function of.
_COLUMNS: Sequence[tuple[str, str]] = (
    ("`step`, `epoch`", "counts of steps and epochs"),
    (
        "`canaries`",
        "`every_n_steps` and the coins; whether canaries could enter. In a batch that a memory "
        "manager may split, `EARLIER` is what was drawn, regardless of the batch's parts",
    ),
    ("`replaced`", "the gradient that was read and the one that the update used"),
    (
        "`noise_multiplier`, `max_grad_norm`, `scale`, `sample_rate`",
        "what is claimed; adaptive clipping norms follow released counts",
    ),
    ("`coins`", "the audit's seed"),
    (
        "`readings`",
        "the released gradient without the canaries, and the coins; fresh noise from the audit's "
        "own generator if the release is exactly zero",
    ),
    (
        "`tensor_squares`, `lag_*`, `epoch_*`, `broadcast_*`, `pair_*`",
        "the released gradient at the probe coordinates, filled in the same way",
    ),
)

_DECIDED = """## What necessarily depends on the data

- An input canary is made from a record of the first batch (`Crafted`: from that batch). Its
  readings, the bounds that follow from them, `power`, and the norms in a checkpoint are functions
  of that record too. Gradient canaries, the default, use no record.
- No input canary enters an empty batch, so the record shows which batches were empty. Gradient
  canaries enter empty batches too.
- A step is examined once its batch has three records: the number of an examined step shows that
  the batches since it was due had fewer.
- A training that skips the step on an empty batch reveals that itself; a note says so.
- Lightning counts physical batches of a memory manager, in its part of a checkpoint and as the
  `step` of a logger. Their number depends on the sizes of batches, with or without an audit.
"""


def _table(head: str, rows: Sequence[Sequence[str]]) -> str:
    lines = [head, "|".join(["", *["---"] * head.count(" | "), "---", ""])]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _shown(check: Check) -> str:
    """Return what is public of a private check, in addition to its verdict."""
    names = [f"`{name}`" for name in check.public if name != "message"]
    words = ["the message"] if "message" in check.public else []
    return ", ".join([*names, *words])


def markdown() -> str:
    """Return the page."""
    private = [check for check in REGISTRY.values() if check.private]
    public = [f"`{check.name}`" for check in REGISTRY.values() if not check.private]
    rows = [(f"`{c.name}`", "`log_e_value`: coarse" if c.share else "", _shown(c)) for c in private]
    return "\n".join(
        [
            _HEAD,
            "## Fields\n",
            _table("| artifact | field | what it is |", _FIELDS),
            _RECORD,
            _table("| column of the record | function of |", _COLUMNS),
            _DECIDED,
            "## Private checks\n",
            "If it is not violated, such a check shows its status, a fixed sentence, and:\n",
            _table("| check | e-value | public parts of its evidence |", rows),
            "## Checks of released gradients and settings\n",
            f"All of their numbers are public: {', '.join(public)}.\n",
            "## Not covered\n",
            "`Examination`, `assert_privatizes` and `audit_mechanism` are for unit tests and show "
            "what they measure in full: run them on data that are not private. `EpsilonStar` and "
            "`lightning-audit epsilon-star` measure losses of records by design.\n",
            "Next: [the privacy card](privacy-card.md), or [the words of a report](glossary.md).\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
