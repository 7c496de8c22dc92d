"""Pages that are made of the selftest are those that their builders make."""

from __future__ import annotations

from selftest_page import PAGE, Compared, markdown, needed_by

from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import planned
from lightning_audit.testing.selftest_pool import Result

NEEDED = {"fdp_cp": {"fixed": 10, "maximum": 5}, "katz": {"fixed": None, "maximum": 7}}
FOUND = Compared(
    "fault",
    "half_noise",
    "Opacus",
    "found",
    20,
    outcome="VIOLATION",
    finding="noise",
    named=True,
    flagged_at=3,
    needed=NEEDED,
)
HEALTHY = Compared("healthy", "healthy", "Opacus", "not accused", 100, needed=NEEDED)
CRASHED = Result("fault", "no_noise", "Opacus", "crashed", 20, error="ValueError: a pity")


def test_the_page_shows_every_result_and_what_is_wrong_in_each_fault() -> None:
    page = markdown([FOUND, CRASHED, HEALTHY], 1.0, 2)
    row = "| `half_noise` | Opacus | found | `noise` | yes | VIOLATION | 3 of 20 | 10 / 5 | - |"
    assert row in page
    assert "| healthy | Opacus | not accused |" in page
    assert f"| `half_noise` | {FAULTS['half_noise'].wrong} |" in page
    assert "the audit accuses 0." in page
    assert "`fdp_cp` 1 / 1, `fdp_pooled_cp` 0 / 0" in page


def test_a_bound_that_is_never_above_the_claim_is_a_dash() -> None:
    assert [needed_by(FOUND, name) for name in ("katz", "eps_cp")] == ["- / 7", "-"]
    assert needed_by(CRASHED, "katz") == "-"


def test_the_docs_page_has_every_row_that_is_trained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for row in planned():
        name = "healthy" if row.healthy else f"`{row.fault.name}`"
        assert f"\n| {name} | {row.configuration} |" in page, (
            "run `python docs/build/selftest_page.py`"
        )
