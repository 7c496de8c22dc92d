"""Copies numbers and rows of the page to the README: `python docs/build/readme_rows.py`.

Run it after `python docs/build/selftest_page.py`.
"""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE, README = REPOSITORY / "docs" / "selftest.md", REPOSITORY / "README.md"
BEGIN, END = "<!-- of docs/selftest.md -->\n", "<!-- to here -->\n"

#: Rows of the page that the README shows, and their columns.
SHOWN = (
    ("`half_noise`", "Opacus"),
    ("`no_noise_on_last_layer`", "Opacus"),
    ("`same_noise_at_every_step`", "Opacus"),
    ("`clip_after_average`", "figure 7"),
    ("`few_seeds`", "figure 8"),
    ("`noise_too_small`", "figure 9, epsilon 1.57"),
    ("healthy", "figures 7-9"),
)
COLUMNS = (0, 1, 2, 6, 7, 9, 10, 11)


def part() -> str:
    """Return the part for the README."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page if "|" in line]
    head = next(row for row in rows if row[:2] == ["training", "configuration"])
    table = [
        head,
        ["---"] * len(head),
        *(next(row for row in rows if tuple(row[:2]) == shown) for shown in SHOWN),
    ]
    lines = "".join(f"| {' | '.join(row[i] for i in COLUMNS)} |\n" for row in table)
    numbers = next(line for line in page if "healthy runs accused" in line)
    return f"{BEGIN}{numbers}\n\n{lines}{END}"


def shown(readme: str) -> str:
    """Return the README's part between the markers, markers included."""
    return BEGIN + readme.split(BEGIN)[1].split(END)[0] + END


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    README.write_text(text.replace(shown(text), part()), encoding="utf-8")
