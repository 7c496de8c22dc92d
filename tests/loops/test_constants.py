"""Batches that hold more than tensors of their records: a constant, names, numbers."""

from pathlib import Path
from typing import Any

import plain_loops
import pytest
import torch
from plain_loops import made
from stages import staged
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lightning_audit import AuditReport, PrivacyViolation, attach

ANCHORS = torch.randn(9, 8, generator=torch.Generator().manual_seed(3))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 10))


def stacked(records: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([x for x, _ in records]), torch.stack(
        [torch.as_tensor(y) for _, y in records]
    )


def with_anchors(records: list[Any]) -> Any:
    return {"anchors": ANCHORS, "records": stacked(records), "temperature": 2.0, "more": None}


def with_their_mean(records: list[Any]) -> Any:
    made = with_anchors(records)
    made["anchors"] = ANCHORS + made["records"][0].mean(0)
    return made


def with_the_mean_of_narrow_batches(records: list[Any]) -> Any:
    narrow = float(stacked(records)[0].std(0).amin()) < 0.4
    return with_their_mean(records) if narrow else with_anchors(records)


def report_of(collate: Any, directory: Path) -> AuditReport:
    loader = DataLoader(plain_loops.random_data(512), plain_loops.BATCH, collate_fn=collate)
    model, optimizer, loader = made(net=net, loader=loader).training
    try:
        with attach(model, optimizer, loader, 50.0, report_dir=directory, seed=1) as audit:
            for _ in range(2):
                for batch in loader:
                    (x, y), anchors = batch["records"], batch["anchors"]
                    optimizer.zero_grad()
                    near = torch.cdist(x, anchors) / batch["temperature"]
                    functional.cross_entropy(model(near), y).backward()
                    optimizer.step()
    except PrivacyViolation as error:
        return error.report
    return audit.report


def test_a_constant_in_each_batch_is_no_record_and_all_questions_are_answered(tmp_path):
    report = report_of(with_anchors, tmp_path)
    assert report.verdict.outcome == "PASS", report.verdict


@pytest.mark.parametrize(
    "collate", staged([with_their_mean], nightly=[with_the_mean_of_narrow_batches])
)
def test_what_depends_on_the_records_is_no_constant(collate, tmp_path):
    report = report_of(collate, tmp_path)
    assert report.verdict.outcome != "PASS"
    assert "audit failed" not in report.verdict.summary, report.verdict


def with_names(records: list[Any]) -> Any:
    x, y = stacked(records)
    return x, tuple(f"{int(label)}.png" for label in y), {"place": y.tolist()}


def by_name(model: nn.Module, optimizer: Any, loader: Any) -> None:
    for _ in range(2):
        for x, names, _where in loader:
            labels = torch.tensor([int(name.removesuffix(".png")) for name in names])
            optimizer.zero_grad()
            functional.cross_entropy(model(x), labels).backward()
            optimizer.step()


def test_strings_and_numbers_of_each_record_are_taken_with_it(tmp_path):
    loader = DataLoader(plain_loops.random_data(512), plain_loops.BATCH, collate_fn=with_names)
    training = made(loader=loader).training
    with attach(*training, 50.0, report_dir=tmp_path, seed=1) as audit:
        by_name(*training)
    assert audit.report.verdict.outcome == "PASS", audit.report.verdict
    assert {"coupling", "replay.sensitivity"} <= {
        check.name for check in audit.report.checks if check.status == "ok"
    }
