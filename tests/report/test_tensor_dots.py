from __future__ import annotations

import dataclasses

from made_report import made_report
from page_reports import LONG, of_outcome, tensors
from parsed_page import ParsedPage

from lightning_audit.report.page_figures import TensorSection, tensor_section
from lightning_audit.results.audit_report import AuditReport


def section(report: AuditReport) -> TensorSection:
    found = tensor_section(report)
    assert found is not None
    return found


def test_crosses_follow_the_check_and_not_the_interval() -> None:
    report = made_report(tensors=tensors(3, flagged=1))
    low = dataclasses.replace(report.tensors[1], lower=0.1, upper=0.2, ratio=0.15)
    found = section(dataclasses.replace(report, tensors=(report.tensors[0], low)))
    signs = [ParsedPage(row.dot).values("class") for row in found.rows]
    assert ["cross" in kinds for kinds in signs] == [True, False]
    assert found.says == "1 of 2 tensors has less noise than stated (✕)."
    assert found.rows[0].says == "too little noise"


def test_of_many_tensors_the_ones_with_the_least_noise_are_shown_in_the_reports_order() -> None:
    report = dataclasses.replace(
        of_outcome("PASS"), tensors=tensors(160)[::-1], tensors_left_out=12
    )
    found = section(report)
    assert [row.name for row in found.rows] == [f"net.{i}.weight" for i in reversed(range(14))]
    assert "146 more have 1.01 to 1.16 times." in found.note
    assert "leaves out 12 further tensors" in found.note


def test_a_common_start_is_in_the_header_and_long_names_are_cut_in_the_middle() -> None:
    every = tensors(3, name="encoder.layers.attention.")
    found = section(made_report(tensors=every))
    assert found.prefix == "encoder.layers.attention."
    assert [row.short for row in found.rows] == ["0.weight", "1.weight", "2.weight"]
    (row,) = section(made_report(tensors=(dataclasses.replace(every[0], name=LONG),))).rows
    assert (len(row.short), row.short[9], row.name) == (26, "…", LONG)


def test_a_ratio_outside_of_the_picture_is_an_arrow_at_its_end() -> None:
    far = dataclasses.replace(tensors(1)[0], ratio=9.0, upper=9.5)
    (row,) = section(made_report(tensors=(far,))).rows
    parsed = ParsedPage(row.dot)
    assert "evid good" in parsed.values("class")
    assert "dot good" not in parsed.values("class")
    assert row.value == "9.00"


def test_a_report_without_tensors_has_no_section() -> None:
    assert tensor_section(made_report()) is None
