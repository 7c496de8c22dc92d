"""Reports for the page: of every outcome, with all details, hostile text, or many tensors."""

import dataclasses
import math
from typing import Any

from checked_reports import HOSTILE, violated
from made_report import STEPS, made_report

from lightning_audit.results.audit_report import AuditReport, EpsilonBound, OperatingPoint, Outcome
from lightning_audit.results.report_details import (
    Assumption,
    CheckGrowth,
    ClaimedValue,
    CodePlace,
    CourseRow,
    Ended,
    ExaminationTold,
    RunAbout,
    TensorNoise,
)

#: A name of 300 letters without a place to break, and with markup.
LONG = "layer<b>&\"'" + 290 * "x"
SOURCE = """    def add_noise(self) -> None:
        self.sigma *= 0.5
        super().add_noise()
"""
CODE = (CodePlace("src/half.py", 41, 43, "Half.add_noise", SOURCE),)
_POINTS = (
    OperatingPoint(-0.5, fn=8, tp=392, fp=300, tn=100),
    OperatingPoint(0.5, fn=120, tp=280, fp=124, tn=276),
    OperatingPoint(1.5, fn=330, tp=70, fp=20, tn=380),
)
#: Far below the curve of mu = 1.
OUTSIDE = OperatingPoint(0.5, fn=10, tp=390, fp=12, tn=388)


def epochs(count: int = 5) -> tuple[dict[str, float], ...]:
    """Metrics at the ends of epochs."""
    return tuple(
        {
            "epoch": i,
            "step": STEPS * (i + 1) / count,
            "epsilon_spent": 0.6 * (i + 1),
            "epsilon_lower": 0.3 * i,
            "e_value": 1.0,
        }
        for i in range(count)
    )


def tensors(count: int = 6, *, flagged: int = 0, name: str = "net.") -> tuple[TensorNoise, ...]:
    """Noise of tensors, the first of them flagged."""
    return tuple(
        TensorNoise(
            f"{name}{i}.weight",
            *(640, 64, 6400),
            0.5 if i < flagged else 1.0 + 0.001 * i,
            0.48 if i < flagged else 0.97,
            0.55 if i < flagged else 1.06,
            i < flagged,
        )
        for i in range(count)
    )


def growth(report: AuditReport, top: float = 0.5) -> dict[str, CheckGrowth]:
    """The course of every check with an e-value, up to a share of its threshold."""
    significance = float(report.settings["significance"])
    found = {}
    for check in report.checks:
        if check.share:
            threshold = -math.log(check.share * significance)
            end = 4.0 if check.status == "violated" else top
            steps = range(7, STEPS, 9)
            rows = tuple((step, end * threshold * (step + 1) / STEPS) for step in steps)
            found[check.name] = CheckGrowth(threshold, rows)
    return found


def detailed(report: AuditReport, **changes: Any) -> AuditReport:
    """A report with every detail that the page shows."""
    details: dict[str, Any] = {
        "epochs": epochs(),
        "operating_points": _POINTS,
        "bounds": (*report.bounds, _mu_bound()),
        "tests": growth(report),
        "tensors": tensors(flagged=2 if report.verdict.outcome == "VIOLATION" else 0),
        "course": (CourseRow(50, 0, 0.2, 0.1, 400), CourseRow(100, 1, 0.25, 0.2, 800)),
        "claimed_mu": 1.0,
        "claim": {
            "noise_multiplier": ClaimedValue([1.0, 1.5], "optimizer"),
            "sampling": ClaimedValue("poisson", "loader"),
        },
        "ended": Ended(STEPS, "planned"),
        "planned_steps": 400,
        "run": RunAbout("Digits", "2026-11-24T22:22:22+00:00", 12.5, "cpu", "32-true", 2, "DDP"),
        "assumptions": {"epsilon_spent": (Assumption("independent", "steps are independent"),)},
        "examinations": (
            ExaminationTold(0, ("replay.sensitivity", "coupling"), (), 1.5),
            ExaminationTold(40, ("replay.noise",), ("replay.noise",), 0.2),
        ),
        "environment": {"torch": "2.13.0"},
        "created": "2026-11-24T22:22:22+00:00",
        "record": "observations.bin",
        "notes": ("a note with `code`",),
        "audit_cost": {"seconds": 3.5, "share": 0.2},
    }
    return dataclasses.replace(report, **{**details, **changes})


def with_code(report: AuditReport) -> AuditReport:
    """A report of a violation whose root points to lines of code."""
    root = report.verdict.faults[0]
    root = dataclasses.replace(root, place=dataclasses.replace(root.place, code=CODE))
    verdict = dataclasses.replace(report.verdict, faults=(root,), fault="")
    return dataclasses.replace(report, verdict=verdict)


def of_outcome(outcome: Outcome) -> AuditReport:
    """A detailed report of an outcome."""
    report = with_code(violated()) if outcome == "VIOLATION" else made_report(outcome)
    return detailed(report)


def hostile(text: str = HOSTILE) -> AuditReport:
    """A report in which all text is hostile, names of tensors and code included."""
    report = detailed(violated())
    place = dataclasses.replace(
        report.verdict.faults[0].place,
        parameters=(text,) * 7,
        optimizer=text,
        code=(CodePlace(text, 1, 2, text, f"{text}\n    {text}"),),
    )
    fault = dataclasses.replace(
        report.verdict.faults[0],
        name="unknown",
        sentence=text,
        look_at=text,
        headline=text,
        place=place,
        consequences=(text, "noise.step"),
    )
    checks = tuple(
        dataclasses.replace(check, message=text, advice=text, optimizer=text)
        for check in report.checks
    )
    verdict = dataclasses.replace(
        report.verdict,
        summary=text,
        faults=(fault, dataclasses.replace(fault, name="other")),
        fault="",
        pass_blockers=(text,),
    )
    bound = dataclasses.replace(report.bounds[0], name=text, assumptions=(text,) * 30)
    return dataclasses.replace(
        report,
        verdict=verdict,
        checks=checks,
        bounds=(bound, *report.bounds),
        tensors=tuple(dataclasses.replace(t, name=text, optimizer=text) for t in report.tensors),
        created=text,
        notes=(text,),
        record=text,
        environment={text: text},
        settings={**report.settings, text: text, "canaries": [text]},
        settings_given=("canaries",),
        run=RunAbout(*(text, text), 1.0, text, text, 3, text, text),
        ended=Ended(1, text),
        claim={text: ClaimedValue(text, text)},
        epsilon_refuted_by=(text,),
        assumptions={"epsilon_spent": (Assumption(text, text),)},
        examinations=(ExaminationTold(1, (text,), (text,), 0.1),),
    )


def _mu_bound() -> EpsilonBound:
    words = ("mu", 2.1, 1e-5, 0.8, 0.05, "confidence", "fixed", "single")
    return EpsilonBound(*words, ("fair private coins", "signal and noise constant so far"))
