"""What an audit's files reveal: nothing that tells neighbours of equal releases apart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from artefacts import differences
from neighbours import Kind, neighbours
from places import REPOSITORY
from stages import staged
from torch.utils.data import TensorDataset
from training_matrix import COMPARED, ROWS, Row
from training_support import PrivateModule, digits, fit, mlp, violation

import lightning_audit
from lightning_audit import PrivacyAudit
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.disclosure import shown
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.testing.trainings import FirstRowNotClipped

#: Of one check and pair of trainings at most: an e-value crosses a power of ten now and then.
PAIRS, MOST = 20, 1


def name_of(value: object) -> str:
    return f"{value.group}: {value.name}" if isinstance(value, Row) else str(value)


@pytest.mark.parametrize(
    ("row", "kind"),
    staged(
        quick=[(ROWS[0], "replaced")],
        heavy=[(row, "removed") for row in COMPARED],
        nightly=[
            (row, kind)
            for row in ROWS
            for kind in ("replaced", "removed")
            if row is not ROWS[0] and (row not in COMPARED or kind == "replaced")
        ],
    ),
    ids=name_of,
)
@pytest.mark.heavy_one_in(4)
def test_artefacts_of_neighbours_with_the_same_releases_are_equal(
    tmp_path: Path, row: Row, kind: Kind
) -> None:
    one, other = neighbours(tmp_path, row, kind)
    assert differences(one, other) == []
    assert not any(check["status"] == "violated" for check in one.report["checks"])


#: A coarse field is looked at in pairs of these trainings in turn.
TRAINED = [ROWS[0], *COMPARED[1:4]]


@pytest.mark.nightly
def test_a_coarse_field_seldom_differs_between_neighbours(tmp_path: Path) -> None:
    differ: Counter[str] = Counter()
    for seed in range(PAIRS):
        kind: Kind = "removed" if seed // len(TRAINED) % 2 else "replaced"
        row = TRAINED[seed % len(TRAINED)]
        one, other = neighbours(tmp_path / str(seed), row, kind, seed=seed, examinations=1)
        assert differences(one, other) == []
        for a, b in zip(one.report["checks"], other.report["checks"], strict=True):
            differ[a["name"]] += a["log_e_value"] != b["log_e_value"]
    assert max(differ.values()) <= MOST, differ


# ------------------------------------------------------------------ what a review read off reports


def one_full_batch(directory: Path, value: float, noise_seed: int) -> dict[str, dict]:
    """Evidence of one full-batch step with noise multiplier 20, by check."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator)
    x[3, 0] = value
    data = TensorDataset(x, torch.randint(0, 10, (64,), generator=generator))
    torch.manual_seed(2)
    module = PrivateModule(
        dataset=data,
        batch_size=64,
        noise_multiplier=20.0,
        generator=torch.Generator().manual_seed(noise_seed),
    )
    report = fit(directory, module, PrivacyAudit(1000.0, seed=1), max_steps=1)
    return {check.name: dict(check.evidence) for check in report.checks}


def test_one_value_of_a_record_is_not_read_off_the_norm_of_the_clipped_sum(tmp_path: Path) -> None:
    for noise_seed in (5, 6):
        told = [
            one_full_batch(tmp_path / f"{noise_seed}{value}", value, noise_seed)
            for value in (0.0, 4.0)
        ]
        for name in ("noise.excess", "noise.mean", "noise.shape", "noise.entries", "noise.whole"):
            assert told[0][name] == told[1][name] == {}
        for name in ("reuse.forecast", "reuse.entries", "reuse.recurrence", "coupling"):
            assert told[0][name] == told[1][name] == {}
        private = {check.name: check.public for check in REGISTRY.values() if check.private}
        for name in private.keys() & told[0].keys():
            assert {*told[0][name]} <= {*private[name]}


@pytest.fixture(scope="module")
def computed_and_shown(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, dict[str, object]], str]:
    """What the checks of a correct training compute, by name, and the text of its report."""
    computed: dict[str, dict[str, object]] = {}

    def watched(check: CheckResult, significance: float) -> CheckResult:
        computed[check.name] = dict(check.evidence)
        return shown(check, significance)

    directory = tmp_path_factory.mktemp("shown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_audit.run.evaluation.shown", watched)
        fit(directory, PrivateModule(), PrivacyAudit(seed=1, examinations=1), max_steps=20)
    return computed, (directory / "audit" / "report.json").read_text()


@pytest.mark.parametrize(
    ("check", "number"),
    [
        ("noise.excess", "sum_norm_over_terms"),
        ("noise.excess", "ratio"),
        ("noise.mean", "positive"),
        ("noise.mean", "negative"),
        ("reuse.recurrence", "difference_ratio"),
        ("coupling", "change"),
    ],
)
def test_a_number_of_the_data_that_is_computed_is_not_in_the_report(
    computed_and_shown: tuple[dict[str, dict[str, object]], str], check: str, number: str
) -> None:
    computed, text = computed_and_shown
    assert number in computed[check]
    (found,) = (c for c in json.loads(text)["checks"] if c["name"] == check)
    assert found["status"] == "ok"
    assert number not in found["evidence"]
    assert number == "ratio" or f'"{number}"' not in text


class OwnClipping(FirstRowNotClipped):
    """Of the user."""


def test_places_in_a_report_are_not_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (Path.cwd(), tmp_path):
        monkeypatch.chdir(folder)
        directory = tmp_path / f"from_{folder.name}"
        module = PrivateModule(mlp(64), dataset=digits(), optimizer_class=OwnClipping)
        audit = PrivacyAudit(seed=1, examinations=1)
        report = violation(directory, module, audit, max_steps=20)
        text = (directory / "audit" / "report.json").read_text()
        assert str(Path(lightning_audit.__file__).parents[1]) not in text
        assert str(Path(torch.__file__).parents[1]) not in text
        places = [place for c in report.checks if (place := c.evidence.get("where"))]
        assert places
        files = [p.partition(" at ")[2].rpartition(":")[0] for w in places for p in w.split(", ")]
        assert {str(Path(__file__).relative_to(REPOSITORY))} <= {*files}
        assert all(file.endswith(".py") and not Path(file).is_absolute() for file in files)
        assert any("computed from un-noised data" in note for note in report.notes)
