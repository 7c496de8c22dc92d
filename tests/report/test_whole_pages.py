"""Pages and texts of reports, compared whole with the files in tests/data/pages.

A pass is kept whole, other reports as what differs from it.

`PYTHONPATH=tests/support python tests/report/test_whole_pages.py` writes the files again.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from checked_reports import with_status
from made_report import made_report
from many_trainings import audited
from page_reports import CODE, OUTSIDE, detailed, epochs, of_outcome, tensors
from parsed_page import ParsedPage, check_page
from places import DATA
from printed_report import as_text

import lightning_audit
from lightning_audit.report import page as pages
from lightning_audit.report import text as texts
from lightning_audit.results.audit_report import (
    AT_END,
    AuditReport,
    CheckResult,
    EpsilonBound,
    LikelyFault,
)
from lightning_audit.results.report_details import (
    ClaimedValue,
    CodePlace,
    Ended,
    ExaminationTold,
    MeasuredEpsilon,
    PassBlocker,
    RunAbout,
)

PAGES = DATA / "pages"
CLAIM = {
    "expected_batch_size": ClaimedValue(61, "optimizer"),
    "sample_rate": ClaimedValue(1 / 29, "accountant"),
}


def with_settings(report: AuditReport, **settings: Any) -> AuditReport:
    return dataclasses.replace(report, settings={**report.settings, **settings})


def with_verdict(report: AuditReport, **changes: Any) -> AuditReport:
    return dataclasses.replace(report, verdict=dataclasses.replace(report.verdict, **changes))


def with_checks(report: AuditReport, **changes: dict[str, Any]) -> AuditReport:
    """With other fields of checks by name, a dot in which is ``__``."""
    of = {name.replace("__", "."): fields for name, fields in changes.items()}
    checks = tuple(dataclasses.replace(c, **of.get(c.name, {})) for c in report.checks)
    return dataclasses.replace(report, checks=checks)


def several_faults() -> AuditReport:
    """With an alternative and a further finding, and an epsilon as measured."""
    report = of_outcome("VIOLATION")
    long = dataclasses.replace(CODE[0], source="\n".join(f"line {i}" for i in range(50)))
    root = report.verdict.faults[0]
    code = (*root.place.code, long, CodePlace("a.py", 1, 1, "f"))
    root = dataclasses.replace(root, place=dataclasses.replace(root.place, code=code))
    other = dataclasses.replace(root, name="unheard_of", sentence="Another reason")
    apart = LikelyFault("apart", "Batches are shuffled", "sampling.not_poisson", "the loader")
    report = with_verdict(report, faults=(root, other, apart), fault="")
    return dataclasses.replace(
        report,
        epsilon_measured=MeasuredEpsilon(13.7, 17.9, 15.68, 145, True, "the noise is half"),
        history=((1.0, 0.01, 100),),
        operating_points=(OUTSIDE, *report.operating_points),
        ended=Ended(100, "violation"),
        published=("loss", "grad_norm"),
        examination_cost={"first": 0.51, "first_step_times": 52.7, "later": 0.066},
    )


def seen_directly() -> AuditReport:
    """A violation of the accounting, stopped at its alarm."""
    stopped = ({"epoch": 0, "step": 8, "e_value": 1e5},)
    report = made_report("VIOLATION", steps=8, epochs=stopped, complete=False)
    fault = LikelyFault("plain", "an optimizer is not private", "no_dp")
    report = with_verdict(report, kind="accounting", faults=(fault,), fault="")
    report = with_checks(report, no_dp={"status": "violated", "log_e_value": None, "share": 0.0})
    measured = MeasuredEpsilon(13.7, None, None, 145, True, "the noise is half")
    report = dataclasses.replace(report, epsilon_measured=measured)
    return with_settings(report, on_violation="raise", claimed_epsilon=1.0)


def more_leaks() -> AuditReport:
    """A violation of the claim by what is proved, without noise in a step."""
    report = with_verdict(made_report("VIOLATION", proved=None), kind="epsilon")
    measured = MeasuredEpsilon(math.inf, None, None, 145, True, "there is no noise")
    return dataclasses.replace(
        with_settings(report, claim={"noise_coefficients": [1.0, -0.5]}),
        history=((0.0, 0.01, 100),),
        optimizers=report.optimizers * 2,
        epsilon_measured=measured,
        run=RunAbout("Lit", commit="0123456789abcdef", data="TensorDataset"),
        claim=CLAIM,
    )


def of_every_status() -> AuditReport:
    """Checks of each status, one of them of another release, and many examinations."""
    foreign = CheckResult("their.own", "mechanism", "violated", "seen", log_e_value=1.0, share=0.1)
    skipped = {"status": "not_run", "message": "the noise is too small to read"}
    follows = {"status": "violated", "follows_from": "noise"}
    report = with_checks(
        with_status("reuse.lag", "undecided"),
        noise__step={"status": "warned"},
        sampling__rate={"status": "allowed"},
        noise__shape=follows,
        noise__mean=skipped,
        noise__excess={**skipped, "optimizer": "actor"},
    )
    return dataclasses.replace(
        report,
        checks=(*report.checks, foreign),
        examinations=tuple(ExaminationTold(i, ("coupling",), (), 0.1) for i in range(50)),
        tensors=tensors(160)[::-1],
        tensors_left_out=12,
        delta=0.05,
        claim=CLAIM,
        epochs=epochs(),
    )


def shuffled() -> AuditReport:
    """Of claims that are not the usual ones, and with bounds of several kinds."""
    report = made_report("INCONCLUSIVE", claimed=1.0, epsilon_not_excluded=1000.0, complete=False)
    searched = dataclasses.replace(
        report.bounds[0], name="fdp_cp", looks="single", threshold="searched"
    )
    at_end = EpsilonBound(
        *(AT_END, 2.5, 1e-5, 0.3, 0.05, "confidence", "fixed", "single", ("a constant ratio",))
    )
    mu = EpsilonBound("mu", 2.0, 1e-5, 0.284, 0.05, "confidence", "fixed", "single", ())
    claim = {"adjacency": "replace_one", "sampling": "shuffled", "items_per_record": 3}
    report = dataclasses.replace(report, bounds=(*report.bounds, searched, at_end, mu))
    items = tuple(f"item {number} {'word ' * 20}" for number in range(7))
    report = with_verdict(report, pass_blockers=items)
    power = PassBlocker("power", items[0], "noise", 0.3, 0.95, 40)
    report = dataclasses.replace(report, blockers=(power,))
    return with_settings(detailed(report), claim=claim, claimed_epsilon=1.0)


def allowed() -> AuditReport:
    """A pass with an allowed finding, which refutes the claim; nothing is proved."""
    report = made_report(spent=9.0, proved=0.0, epsilon_refuted_by=("accounting",))
    report = with_verdict(report, allowed=("accounting",), holds="the epsilon that holds is 9")
    found = {"evidence": {"loader": "DataLoader, batches of 30"}, "status": "allowed"}
    return with_checks(report, sampling__not_poisson=found)


def many(mu: float, n: int) -> AuditReport:
    report = audited(mu=mu, n=n).to_report({"trainings": n, "seed": 1}, seconds=2.5)
    return dataclasses.replace(report, created="2026-11-24T22:22:22+00:00", environment={})


UNKNOWN = {"claimed": None, "spent": None, "proved": None, "epsilon_not_excluded": None}
REPORTS: dict[str, Callable[[], AuditReport]] = {
    "pass": lambda: of_outcome("PASS"),
    "violation": lambda: of_outcome("VIOLATION"),
    "inconclusive": lambda: of_outcome("INCONCLUSIVE"),
    "bare": made_report,
    "several faults": several_faults,
    "seen directly": seen_directly,
    "more leaks": more_leaks,
    "of every status": of_every_status,
    "shuffled": shuffled,
    "allowed": allowed,
    "unknown": lambda: made_report(checks=(), bounds=(), power={}, notes=("a", "b"), **UNKNOWN),
    "infinite": lambda: made_report(spent=math.inf, epsilon_not_excluded=math.inf),
    "many, pass": lambda: many(1.0, 400),
    "many, violation": lambda: many(2.5, 200),
    "many, inconclusive": lambda: many(0.3, 60),
}


#: Those that are kept whole, and which are kept as what differs from them.
BASES = {
    "pass": ("violation", "inconclusive", "several faults", "shuffled"),
    "bare": ("seen directly", "more leaks", "of every status", "allowed", "unknown", "infinite"),
    "many, pass": ("many, violation", "many, inconclusive"),
}


def words(parsed: ParsedPage) -> str:
    """What is read, a line for each part of the page."""
    return "\n".join(" ".join(part.split()) for part in parsed.words if part.strip())


def whole(report: AuditReport) -> Iterator[str]:
    """All texts of a report: in a line, in a few, in full, and its page."""
    yield f"{texts.status_line(report)}\n{texts.progress(report)}"
    yield texts.summary(report, "runs/lit/report.json")
    yield as_text(report, "runs/lit/report.json")
    page = pages.report_page(report, "lit")
    assert len(page.encode()) < 100_000
    again = AuditReport.from_json(report.to_json())
    assert pages.report_page(again, "lit") == page
    yield words(check_page(page))


@cache
def told(name: str) -> str:
    report = REPORTS[name]()
    made = f"\n\n{'-' * 80}\n\n".join(part.strip("\n") for part in whole(report)) + "\n"
    made = made.replace(pages.digest_of(report), "SHA-256")
    return made.replace(lightning_audit.__version__, "VERSION")


def kept(name: str) -> str:
    """What is told of a report: whole, or as the difference to that of a pass."""
    if name in BASES:
        return told(name)
    base = next(base for base, others in BASES.items() if name in others)
    both = (told(each).splitlines(keepends=True) for each in (base, name))
    return "".join(difflib.unified_diff(*both, base, name, n=0))


def index() -> str:
    rows = [
        pages.Source("fine", Path(), of_outcome("PASS"), page="fine/report.html"),
        pages.Source("cut", Path(), None, "the report is not complete JSON"),
        pages.Source("half", Path(), of_outcome("VIOLATION"), page="half/report.html"),
        pages.Source("many", Path(), many(0.3, 60)),
    ]
    parsed = check_page(pages.index_page(rows))
    links = [href for href in parsed.values("href") if href != "#main"]
    return "\n".join([words(parsed), *links, ""]).replace(lightning_audit.__version__, "VERSION")


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_told_word_for_word(name):
    assert kept(name) == (PAGES / f"{name}.txt").read_text(encoding="utf-8")


def test_an_index_is_told_word_for_word():
    assert index() == (PAGES / "index.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name in REPORTS:
        (PAGES / f"{name}.txt").write_text(kept(name), encoding="utf-8")
    (PAGES / "index.txt").write_text(index(), encoding="utf-8")
