"""examples/tour.ipynb runs with a real kernel, and its committed outputs are as it gives them."""

import html
import json
import re

import pytest
import tour

#: Escape sequences of the terminal.
_COLOR = re.compile(r"\x1b\[[\d;]*m")
#: Bytes of the file at most.
_MOST = 300_000


def _texts(notebook) -> list[str]:
    """Return what each cell of code printed or showed, without colors."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [[o.get("text") or o.data.get("text/html", "") for o in c.outputs] for c in cells]
    return [_COLOR.sub("", "".join(texts)) for texts in shown]


@pytest.mark.filterwarnings("default")
def test_the_tour_shows_a_pass_its_page_a_violation_and_the_gate(tmp_path):
    _, audited, table, page, faulty, one, both = _texts(tour.executed(tmp_path))
    assert "PASS: no fault found" in audited
    assert "<th>PASS</th>" in table
    (source,) = re.findall(r'<iframe srcdoc="(.*?)" width', page, flags=re.DOTALL)
    assert html.unescape(source) == (tmp_path / "tour" / "correct" / "report.html").read_text()
    assert "VIOLATION (mechanism): noise.tensor" in faulty
    assert "Likely fault: noise scale too small" in faulty
    assert "PASS: no fault found" in one
    assert one.endswith("exit code 0\n")
    assert "VIOLATION is the worst verdict of 2 trainings" in both
    assert both.endswith("exit code 1\n")


def test_the_committed_outputs_are_small_and_say_the_same():
    assert tour.TOUR.stat().st_size < _MOST
    notebook = tour.nbformat.read(tour.TOUR, as_version=4)
    tour.nbformat.validate(notebook)
    _, audited, table, page, faulty, one, both = _texts(notebook)
    assert page == ""
    assert "PASS: no fault found" in audited
    assert "<th>PASS</th>" in table
    assert "VIOLATION (mechanism): noise.tensor" in faulty
    assert (one[-2:], both[-2:]) == ("0\n", "1\n")
    assert "/tmp" not in json.dumps(notebook)
