"""Makes docs/faults.md from the registry: `python docs/build/faults_page.py`."""

from __future__ import annotations

from pathlib import Path

from lightning_audit.checks.check import REGISTRY, headlines
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS

PAGE = Path(__file__).parents[1] / "faults.md"

_HEAD = """# Faults to test a gate with

<!-- Made by `python docs/build/faults_page.py` from the registry; do not edit. -->

For the engineer who tests a gate, or looks for a fault like theirs: each was found in real code, or
is a close variant. Plant one in your own training with one line:

```python
from lightning_audit.testing.faults import plant

plant(optimizer, "half_noise")  # the optimizer of make_private
```

`plant` makes that optimizer faulty and does not change the accountant's records; under Lightning,
call it in `configure_optimizers`. It takes the faults marked "plant". All others are trained by
`lightning_audit.testing.runs.train(FAULTS[name], directory)`, which also trains these.
`FAULTS[name].module()` is a small module on random data, to be audited by
`PrivacyAudit(**FAULTS[name].audit)`. Steps are Lightning's, which count the parts of a batch that a
batch memory manager splits.

`tests/testing/test_faults.py` trains each fault for the given number of steps, and checks the name
of the first of `Verdict.faults`. [The step at which each was found](selftest.md).

## Found
"""
_WARNED = """
## Warnings

These lose no privacy, so no gate fails: the check warns. The outcome is that of `module()`'s audit.
"""
_REMARKED = """
## Notes

These lose no privacy either, and no check warns: the report has a note, or a check's result shows
it.
"""
_NEXT = """
Next: [see your build fail](test-your-gate.md), or [every check](checks.md).
"""


def markdown() -> str:
    """Return the page."""
    known, words = FAULTS.values(), headlines()
    found = [
        _section(f, f"Named `{f.likely}`: {words[f.likely]}{f' ({f.reason})' if f.reason else ''}.")
        for f in known
        if not f.warn_only
    ]
    warned, remarked = (
        [
            _section(f, f"{_where(f)}: {_shown(f)}. The audit ends {f.ends}.")
            for f in known
            if f.warn_only and f.remarked == only_remarked
        ]
        for only_remarked in (False, True)
    )
    return "".join([_HEAD, *found, _WARNED, *warned, _REMARKED, *remarked, _NEXT])


def _section(fault: Fault, named: str) -> str:
    head = f"{fault.wrong[0].upper()}{fault.wrong[1:]}"
    facts = f"`{fault.name}`, {'plant, ' if fault.optimizer else ''}{fault.steps} steps"
    anchor = f'<a id="{fault.name}"></a>'
    return f"\n{anchor}\n\n### {head}\n\n{facts}. Met in: {fault.met_in}.\n\n{named}\n"


def _where(fault: Fault) -> str:
    return f"Check `{fault.check}`" if fault.check else "A note"


def _shown(fault: Fault) -> str:
    evidence = f"its evidence has `{fault.shows}`" if fault.shows else ""
    return fault.sentence or evidence or REGISTRY[fault.check].heading(failed=True)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
