"""Every experiment has a page, a figure, a test and a row; tables print as pages show them."""

import common
import pytest
from places import DOCS, REPOSITORY

EXPERIMENTS = sorted(
    path.stem
    for path in (REPOSITORY / "experiments").glob("*.py")
    if "def main(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_a_page_a_figure_a_test_and_a_row(name):
    page = (DOCS / "experiments" / f"{name}.md").read_text(encoding="utf-8")
    command = f"python experiments/{name}.py"
    assert command in page
    assert f"]({name}.png)" in page
    image = (DOCS / "experiments" / f"{name}.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) < 150_000
    assert (REPOSITORY / "tests" / "experiments" / f"test_{name}.py").is_file()
    assert f"(experiments/{name}.md) | `{command}` |" in (DOCS / "experiments.md").read_text()


def test_every_page_and_figure_is_of_an_experiment():
    assert {path.stem for path in (DOCS / "experiments").glob("[!.]*")} == set(EXPERIMENTS)


def test_a_table_has_a_line_a_row_and_aligned_columns(capsys):
    common.print_table(["training", "interval", "width"], [["clip", (0.5, 12.345), 3]])
    assert capsys.readouterr().out.splitlines() == [
        "training     interval  width",
        "clip      (0.5, 12.3)      3",
    ]


def test_data_are_complete():
    for (inputs, targets), shape, classes in (
        (common.digits(), (1797, 64), 10),
        (common.cells(), (569, 30), 2),
    ):
        assert inputs.shape == shape
        assert targets.unique().tolist() == list(range(classes))
