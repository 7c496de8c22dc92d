"""Makes the README's topics, selftest result and costs: `python docs/build/readme_rows.py`.

The topics come from the registry of checks, the others from docs/selftest.md and
docs/benchmarks.md. Run it after `python docs/build/selftest_page.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from lightning_audit.checks.check import QUESTIONS, REGISTRY

REPOSITORY = Path(__file__).parents[2]
DOCS, README = REPOSITORY / "docs", REPOSITORY / "README.md"
_END = "<!-- to here -->\n"
#: Checks that the README names for each topic.
EXAMPLES = 3
_COSTS = "| training | without an audit | audited | ratio |"


def topics() -> str:
    """Return the table of topics, with the titles of failures of their first checks."""
    rows = [
        (topic, question, [c.heading(failed=True) for c in REGISTRY.values() if c.topic == topic])
        for topic, question in QUESTIONS.items()
    ]
    body = "".join(f"| {t} | {q} | {'; '.join(f[:EXAMPLES])} |\n" for t, q, f in rows)
    return f"| topic | question | findings, for example |\n|---|---|---|\n{body}"


def selftest() -> str:
    """Return the line of docs/selftest.md with the numbers of faults and healthy runs."""
    page = (DOCS / "selftest.md").read_text(encoding="utf-8").splitlines()
    return next(line for line in page if "healthy runs accused" in line) + "\n"


def costs() -> str:
    """Return the table of whole runs: CPU seconds with and without an audit, and their ratio."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    body = "".join(_cost(row) for row in page.split(_COSTS)[1].split("\n\n")[0].splitlines()[2:])
    return f"| training | CPU time without and with an audit | ratio |\n|---|---|---|\n{body}"


def _cost(row: str) -> str:
    name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
    name = re.sub(r" \(needs.*?\)", "", name)
    return f"| {name} | {cells[0]}, {cells[1]} | {cells[2]} |\n"


PARTS: dict[str, Callable[[], str]] = {"topics": topics, "selftest": selftest, "costs": costs}


def _begin(name: str) -> str:
    return f"<!-- made by docs/build/readme_rows.py: {name} -->\n"


def shown(readme: str, name: str) -> str:
    """Return a part of the README, without its markers."""
    return readme.split(_begin(name))[1].split(_END)[0]


def made(readme: str) -> str:
    """Return the README with its parts made again."""
    for name, part in PARTS.items():
        before, after = readme.split(_begin(name))
        readme = before + _begin(name) + part() + _END + after.split(_END, 1)[1]
    return readme


if __name__ == "__main__":
    README.write_text(made(README.read_text(encoding="utf-8")), encoding="utf-8")
