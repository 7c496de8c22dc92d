"""Makes docs/faults.md from the registry: `python docs/build/faults_page.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_audit.testing.faults import FAULTS, Fault

PAGE = Path(__file__).parents[1] / "faults.md"

_HEAD = """# Faults to test a gate with

<!-- Made by `python docs/build/faults_page.py` from the registry; do not edit. -->

`lightning_audit.testing.faults.FAULTS` has faults of DP-SGD that were found in real code, or close
variants. Each can be trained unchanged: `FAULTS[name].module()` is a small module on random data,
to be audited by `PrivacyAudit(**FAULTS[name].audit)`. Faults marked *plant* can be put into your
own training: `plant(optimizer, name)` in `configure_optimizers` makes the optimizer of
`make_private` faulty and does not change the accountant's records. Faults of two processes, and one
that shows only when a training is resumed, are trained by
`lightning_audit.testing.runs.train(FAULTS[name], directory)`, which also trains all others. `steps`
are Lightning's, which count the parts of a batch that a batch memory manager splits.

`tests/testing/test_faults.py` trains each fault for the given number of steps, and checks the
finding and the first of `Verdict.faults`: its name, and how its sentence begins.

## Found

| fault | what is wrong | met in | plant | steps | finding | likely fault | it begins |
|---|---|---|---|---|---|---|---|
"""
_WARNED = """
## Warnings

These lose no privacy, so no gate fails: the check warns. The outcome is that of `module()`'s audit.

| fault | what is wrong | met in | plant | steps | warning | its message begins | outcome |
|---|---|---|---|---|---|---|---|
"""
_REMARKED = """
## Notes

These lose no privacy either, and no check warns: the report has a note, or a check has a message.

| fault | what is wrong | met in | plant | steps | check | it begins | outcome |
|---|---|---|---|---|---|---|---|
"""


def markdown() -> str:
    """Return the page."""
    known = FAULTS.values()
    found = [
        (*_first(fault), *_how(fault), f"`{fault.likely}`", _sentence(fault))
        for fault in known
        if not fault.warn_only
    ]
    warned, remarked = (
        [
            (*_first(f), *_how(f), f.sentence, f.ends)
            for f in known
            if f.warn_only and f.remarked == only_remarked
        ]
        for only_remarked in (False, True)
    )
    return _HEAD + _rows(found) + _WARNED + _rows(warned) + _REMARKED + _rows(remarked)


def _how(fault: Fault) -> tuple[str, ...]:
    return str(fault.steps), f"`{fault.check}`" if fault.check else "a note"


def _first(fault: Fault) -> tuple[str, ...]:
    return f"`{fault.name}`", fault.wrong, fault.met_in, "yes" if fault.optimizer else ""


def _sentence(fault: Fault) -> str:
    return f"{fault.sentence} ({fault.reason})" if fault.reason else fault.sentence


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
