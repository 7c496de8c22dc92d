"""Makes docs/checks.md from the registry: `python docs/build/checks_page.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_audit.checks.check import QUESTIONS, REGISTRY, Check

PAGE = Path(__file__).parents[1] / "checks.md"

_HEAD = """# Checks

<!-- Made by `python docs/build/checks_page.py` from the registry; do not edit. -->

An audit runs up to {count} checks on {topics} topics. The first column has the name of a check, as
in reports and in `allow`; the last three columns apply if the check fails.
[Packages add their own](own-checks.md).
"""
_CONDITIONS = """
## Conditions

- `replay.*` and `coupling` come from [examinations](how-it-works.md#examinations-by-replay), which
  run steps again.
- `noise.excess`, `noise.mean` and `loss_reduction` warn: no privacy is lost, and no gate fails.
- `noise.whole` reads the optimizers of Opacus in one process.
- `batch_normalised` does so, too, and reads steps by hand if gradients pass through
  `lightning_audit.per_sample` and the data leave enough of the noise to see, sometimes as
  `noise.step`; the report says if the divisor could not be tested.
- `expected_batch_size` is violated only if the number of records is stated as private.
- `ledger.schedule` is never violated; `replay.release` tests whether records decide.
- `unaudited` is a note and no check: parameters change that the private optimizer does not train.
"""
_COLUMNS = """
| check | title | title if it fails | what that means | look at |
|---|---|---|---|---|
"""


def markdown() -> str:
    """Return the page."""
    sections = [
        _section(topic, question, (c for c in REGISTRY.values() if c.topic == topic))
        for topic, question in QUESTIONS.items()
    ]
    head = _HEAD.format(count=len(REGISTRY), topics=len(QUESTIONS))
    others = [check for check in REGISTRY.values() if check.topic is None]
    if others:
        sections.append(_section("Other packages", "", others))
    return head + "".join(sections) + _CONDITIONS


def _section(topic: str, question: str, checks: Iterable[Check]) -> str:
    rows = "".join(f"| {' | '.join(_cells(check))} |\n" for check in checks)
    return f"\n## {topic}\n" + f"\n{question}\n" * bool(question) + _COLUMNS + rows


def _cells(check: Check) -> tuple[str, ...]:
    return (
        f"`{check.name}`",
        check.heading(),
        check.heading(failed=True),
        check.meaning,
        check.look_at,
    )


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
