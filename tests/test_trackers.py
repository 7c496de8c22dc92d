"""Trackers that are real, each read back from its files, in an environment of their own."""

from typing import Any

import pytest
from environments import printed_by

pytestmark = pytest.mark.heavy

_EPSILONS = ("audit/epsilon_lower", "audit/epsilon_spent", "audit/observations", "audit/violated")
_FILES = [f"audit/report/report.{end}" for end in ("html", "json", "png")]


@pytest.fixture
def case(tmp_path):
    """Runs a case of trackers_worker.py."""

    def run(name: str) -> Any:
        quiet = {"WANDB_SILENT": "true", "GIT_PYTHON_REFRESH": "quiet"}
        return printed_by("trackers", "trackers_worker.py", tmp_path, name, str(tmp_path), **quiet)

    return run


def test_each_tracker_has_the_metrics_the_figure_and_the_report_once(case):
    found = case("all")
    ((row,),) = found["epochs"]
    assert found["figures"] == 1
    mlflow, wandb, board = found["mlflow"], found["wandb"], found["board"]
    assert mlflow["artifacts"] == [
        "audit/report/report.html",
        "audit/report/report.json",
        "audit/report/report.png",
    ]
    assert mlflow["outcomes"] == ["PASS"]
    files = ["report.html", "report.json", "report.png"]
    assert wandb["artifacts"] == [[f"audit-report-{wandb['id']}", "privacy-audit", files]]
    assert len(wandb["images"]) == 1
    assert board["images"] == {"audit/report": [32]}
    (logged,) = [each for each in wandb["rows"] if "audit/violated" in each]
    for name in _EPSILONS:
        value = pytest.approx(row[name.removeprefix("audit/")], rel=1e-5)
        assert mlflow["metrics"][name] == [[31, value]]
        assert logged[name] == value
        assert len(board["scalars"][name]) == 1
    assert len(found["rows"]) == 2  # a header, and an epoch
    assert set(_EPSILONS) < set(found["rows"][0].split(","))


@pytest.mark.nightly
def test_without_them_a_training_imports_no_tracker_and_draws_nothing(case):
    assert case("unused") == []


@pytest.mark.nightly
def test_two_fits_of_one_run_keep_both_reports(case):
    found = case("two fits")
    assert found["figures"] == 2
    mlflow, wandb = found["mlflow"], found["wandb"]
    folders = ["audit/report", "audit/report-2"]
    assert mlflow["artifacts"] == [
        f"{a}/report.{end}" for a in folders for end in ("html", "json", "png")
    ]
    name = f"audit-report-{wandb['id']}"  # of two versions
    assert [artifact[0] for artifact in wandb["artifacts"]] == [name, name]
    assert len(wandb["images"]) == 2
    assert found["board"]["images"] == {"audit/report": [32, 32]}
    assert len(mlflow["metrics"]["audit/epsilon_spent"]) == 2


@pytest.mark.nightly
def test_two_optimizers_have_one_report_and_one_value_of_each_metric(case):
    found = case("two optimizers")
    ((row,),) = found["epochs"]
    assert found["figures"] == 1
    assert found["mlflow"]["artifacts"] == [
        "audit/report/report.html",
        "audit/report/report.json",
        "audit/report/report.png",
    ]
    assert found["board"]["images"] == {"audit/report": [200]}
    for name in _EPSILONS:
        ((_, value),) = found["mlflow"]["metrics"][name]
        assert value == pytest.approx(row[name.removeprefix("audit/")], rel=1e-5)
    assert row["step"] == 200
