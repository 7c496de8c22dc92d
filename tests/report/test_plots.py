from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib as mpl
import numpy as np
import pytest
from drawn_reports import BROKEN, VERDICTS, report, rows
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from lightning_audit.report import figure as plots
from lightning_audit.report.figure import figure, save_figure
from lightning_audit.results.audit_report import AuditReport, Verdict


def pixels(drawn: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: verdict.outcome)
@pytest.mark.parametrize("complete", [True, False])
def test_the_title_is_the_verdict(verdict: Verdict, complete: bool) -> None:
    title = figure(report(verdict=verdict, complete=complete)).get_suptitle()
    assert title.startswith(verdict.outcome)
    assert ("(mechanism)" in title) == (verdict.outcome == "VIOLATION")
    assert ("training not finished" in title) == (not complete)


CASES = {
    "usual": {},
    "broken": {"operating_points": (BROKEN,), "epochs": rows(40, scale=900.0)},
    "one epoch": {"epochs": rows(1)},
    "hundreds of epochs": {"epochs": rows(400)},
    "nothing": {"operating_points": (), "epochs": (), "history": (), "claimed_epsilon": None},
    "endless": {
        "claimed_epsilon": math.inf,
        "epsilon_spent": math.inf,
        "history": ((0.0, None, 1),),
    },
    "tiny noise": {"history": ((1e-3, 0.01, 3),)},
}


def texts(drawn: Figure) -> list[Text]:
    """Everything written that is shown."""
    found = list(drawn.texts)
    for axes in drawn.axes:
        found += [axes.title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            found += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
        legend = axes.get_legend()
        found += legend.get_texts() if legend else []
    return [text for text in found if text.get_text()]


@pytest.mark.parametrize("case", CASES)
def test_nothing_written_is_cut_off_or_runs_into_something_else(case: str) -> None:
    drawn = figure(report(**CASES[case]))
    assert pixels(drawn).shape == (500, 1200, 4)
    written = {text: text.get_window_extent() for text in texts(drawn)}
    assert len(written) > 8
    for text, box in written.items():
        assert np.all(box.get_points() >= 0), text
        assert np.all(box.get_points() <= (1200, 500)), text
        met = [other for other in written if other is not text and box.overlaps(written[other])]
        assert met == [], text


def test_a_report_that_was_saved_and_read_is_drawn_alike() -> None:
    first = report(epsilon_spent=math.inf, verdict=VERDICTS[1])
    again = AuditReport.from_json(first.to_json())
    np.testing.assert_array_equal(pixels(figure(first)), pixels(figure(again)))


def test_the_users_style_is_left_alone_and_does_not_make_the_picture_unreadable() -> None:
    usual = pixels(figure(report()))
    with mpl.rc_context():
        mpl.rcParams.update({"axes.facecolor": "black", "figure.facecolor": "black"})
        mpl.rcParams.update({"text.color": "white", "axes.labelcolor": "white"})
        mpl.rcParams.update({"xtick.color": "white", "ytick.color": "white"})
        mpl.rcParams.update({"axes.titlecolor": "white", "axes.edgecolor": "white"})
        before = dict(mpl.rcParams)
        np.testing.assert_array_equal(pixels(figure(report())), usual)
        assert dict(mpl.rcParams) == before


@pytest.mark.heavy
def test_pyplot_is_never_loaded_and_matplotlib_only_for_drawing(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report().to_json(), encoding="utf-8")
    script = (
        "import sys\n"
        "from lightning_audit.results.audit_report import AuditReport\n"
        "from lightning_audit.report.figure import figure, save_figure\n"
        "from lightning_audit.report.loggers import send_figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        "report = AuditReport.load('report.json')\n"
        "for name in ('a.png', 'a.svg', 'a.pdf'): save_figure(report, name)\n"
        "class Experiment:\n"
        "    def add_image(self, *a, **k): print('sent')\n"
        "    def add_figure(self, *a, **k): raise AssertionError\n"
        "class Logger: experiment = Experiment()\n"
        "send_figure([Logger()], figure(report), 'audit/report', 1)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "sent\n"), done.stderr


# Files


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: verdict.outcome)
def test_a_png_of_the_whole_picture_is_written(verdict: Verdict, tmp_path: Path) -> None:
    path = save_figure(report(verdict=verdict), tmp_path / "report.png")
    assert path == tmp_path / "report.png"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    picture = imread(path)
    assert picture.shape[:2] == (500, 1200)
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 100
    for panel in (picture[:, :500], picture[:, 500:]):
        assert 0.01 < np.mean(panel[..., :3].min(axis=2) < 0.9) < 0.9


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("PDF", b"%PDF-")])
def test_the_suffix_says_the_format(suffix: str, start: bytes, tmp_path: Path) -> None:
    path = save_figure(report(), str(tmp_path / f"report.{suffix}"))
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["report", "report.jpg"])
def test_another_suffix_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in one of \.png, \.svg, \.pdf"):
        save_figure(report(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_rendering_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_figure(report(), tmp_path / "report.png")
    old = path.read_bytes()

    def half(self: Figure, target: BinaryIO, **options: Any) -> None:
        target.write(b"\x89PNG half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(KeyboardInterrupt):
        save_figure(dataclasses.replace(report(), verdict=VERDICTS[1]), path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_picture_replaces_the_old_one(tmp_path: Path) -> None:
    path = save_figure(report(), tmp_path / "report.png")
    old = imread(path)
    save_figure(report(verdict=VERDICTS[1]), path)
    assert not np.array_equal(imread(path), old)
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (lambda: plots.figure(report()), lambda: save_figure(report(), tmp_path / "a.png")):
        with pytest.raises(ImportError, match=r'pip install "lightning-audit\[report\]"'):
            draw()
