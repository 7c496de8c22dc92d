"""Makes docs/faults.md from the registry: `python docs/build/faults_page.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_audit.checks.check import REGISTRY, headlines
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS

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

`tests/testing/test_faults.py` trains each fault for the given number of steps, and checks the name
of the first of `Verdict.faults`.

## Found

| fault | what is wrong | met in | plant | steps | likely fault | in words |
|---|---|---|---|---|---|---|
"""
_WARNED = """
## Warnings

These lose no privacy, so no gate fails: the check warns. The outcome is that of `module()`'s audit.

| fault | what is wrong | met in | plant | steps | warning | its message | outcome |
|---|---|---|---|---|---|---|---|
"""
_REMARKED = """
## Notes

These lose no privacy either, and no check warns: the report has a note, or a check's result shows
it.

| fault | what is wrong | met in | plant | steps | check | it says, or its evidence has | outcome |
|---|---|---|---|---|---|---|---|
"""


def markdown() -> str:
    """Return the page."""
    known, words = FAULTS.values(), headlines()
    found = [
        (*_first(f), f"`{f.likely}`", f"{words[f.likely]}{f' ({f.reason})' if f.reason else ''}")
        for f in known
        if not f.warn_only
    ]
    warned, remarked = (
        [
            (*_first(f), f"`{f.check}`" if f.check else "a note", _shown(f), f.ends)
            for f in known
            if f.warn_only and f.remarked == only_remarked
        ]
        for only_remarked in (False, True)
    )
    return _HEAD + _rows(found) + _WARNED + _rows(warned) + _REMARKED + _rows(remarked)


def _first(fault: Fault) -> tuple[str, ...]:
    planted = "yes" if fault.optimizer else ""
    return (
        f'<a id="{fault.name}"></a>`{fault.name}`',
        fault.wrong,
        fault.met_in,
        planted,
        str(fault.steps),
    )


def _shown(fault: Fault) -> str:
    key = f"`{fault.shows}`" if fault.shows else ""
    return fault.sentence or key or REGISTRY[fault.check].heading(failed=True)


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
