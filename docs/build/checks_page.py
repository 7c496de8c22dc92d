"""Makes docs/checks.md from the registries: `python docs/build/checks_page.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lightning_audit.checks.check import GUESSED_COINS, QUESTIONS, REGISTRY, Check
from lightning_audit.testing.fault import Fault
from lightning_audit.testing.faults import FAULTS

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "checks.md"
#: Known faults that the section on a check names at most.
MOST = 2

_HEAD = """# Checks

<!-- Made by `python docs/build/checks_page.py` from the registries; do not edit. -->

An audit runs up to {count} checks on {topics} topics. Reports and `allow` have their names, as the
tables here. The section on a check says what fails it and how to fix that.
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
#: What fails the checks that the selftest's faults do not reach first.
_EXAMPLES = {
    "fence.weights": "a callback that adds the mean of the batch's inputs to a layer",
    "fence.monitors": "`ReduceLROnPlateau` that gets the loss of the training records",
    "noise.canary": "a mask that removes the noise from a few coordinates of each tensor",
    "reuse.optimizers": "two private optimizers whose generators get one seed",
    "epsilon": "no clipping: the canaries are then read in every step",
    "ledger.schedule": "`continue` in the loop if the loss of a batch is large",
    GUESSED_COINS.name: "noise that the training code leaves out: models show who had the canary",
}


def markdown() -> str:
    """Return the page."""
    known = known_faults()
    checks = [*REGISTRY.values(), GUESSED_COINS]
    sections = [
        _topic(topic, question, [c for c in checks if c.topic == topic], known)
        for topic, question in QUESTIONS.items()
    ]
    head = _HEAD.format(count=len(REGISTRY), topics=len(QUESTIONS))
    if others := [check for check in checks if check.topic is None]:
        sections.append(_topic("Other packages", "", others, known))
    return head + "".join(sections) + _CONDITIONS


def known_faults() -> Mapping[str, list[Fault]]:
    """Return the faults that each check finds: first those whose first finding it is."""
    page = (DOCS / "selftest.md").read_text(encoding="utf-8")
    first = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| (?:found|warned): `([\w.]+)`", page)
    pairs = [*first, *((fault.name, fault.check) for fault in FAULTS.values() if fault.warn_only)]
    rules = [(rule.fault.name, c.name) for c in REGISTRY.values() for rule in c.faults]
    pairs += [(f.name, c) for f in FAULTS.values() for likely, c in rules if likely == f.likely]
    found: dict[str, list[Fault]] = {}
    for name, check in dict.fromkeys(pair for pair in pairs if pair[0] in FAULTS):
        found.setdefault(check, []).append(FAULTS[name])
    return found


def _topic(
    topic: str, question: str, checks: Iterable[Check], known: Mapping[str, list[Fault]]
) -> str:
    rows = "".join(f"| [`{check.name}`](#{check.name}) | {check.heading()} |\n" for check in checks)
    head = f"\n## {topic}{': ' * bool(question)}{question[:1].lower()}{question[1:]}\n"
    table = f"\n| check | what it looks at |\n|---|---|\n{rows}"
    return head + table + "".join(_section(check, known.get(check.name, [])) for check in checks)


def _section(check: Check, faults: list[Fault]) -> str:
    """What a check sees, a fault that it finds, what that means and how to fix it."""
    fails = "warns" if check.warns else "fails"
    parts = {
        f"If it {fails}": f"{check.heading(failed=True)}. {check.meaning}",
        "For example": _named(check, faults),
        "To fix it": check.look_at and f"look at {check.look_at}.",
    }
    lines = [f"**{title}:** {text}\n" for title, text in parts.items() if text]
    named = f"{'Warning' if check.warns else 'Finding'} `{check.name}`.\n"
    # Inside of the heading, the anchor would empty the heading's line in the list of contents.
    heading = f'\n<a id="{check.name}"></a>\n\n### {check.heading()}\n'
    return "\n".join([heading, named, *lines])


def _named(check: Check, faults: list[Fault]) -> str:
    shown = [f"[`{fault.name}`](faults.md#{fault.name}): {fault.wrong}" for fault in faults[:MOST]]
    text = "; ".join(shown) or _EXAMPLES.get(check.name, "")
    return f"{text}." if text else ""


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
