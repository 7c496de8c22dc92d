"""Figures of a report: what is drawn, where, and nothing on top of something else."""

import dataclasses
import math
import subprocess
import sys
from typing import Any, BinaryIO

import matplotlib as mpl
import numpy as np
import pytest
from made_report import made_report
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from lightning_audit.report import figure as plots
from lightning_audit.results.audit_report import AuditReport, OperatingPoint, Verdict
from lightning_audit.stats.binomial import clopper_pearson_lower as lower
from lightning_audit.stats.binomial import clopper_pearson_upper as upper
from lightning_audit.stats.tradeoff import GaussianTradeoff

LITERATURE = (
    *("fdp_cp", "fdp_pooled_cp", "fdp_bayes", "fdp_t"),
    *("eps_cp", "eps_jeffreys", "eps_bayes", "katz"),
)


#: Near the curve of mu = 1, and far below it.
HEALTHY = OperatingPoint(0.5, fn=310, tp=690, fp=305, tn=695)
BROKEN = OperatingPoint(0.5, fn=20, tp=980, fp=25, tn=975)
VERDICTS = (
    Verdict("PASS", None, "no check failed"),
    Verdict("VIOLATION", "mechanism", "the noise is smaller than claimed"),
    Verdict("INCONCLUSIVE", None, "too short", pass_blockers=("400 more steps",)),
)


def rows(count: int, scale: float = 1.0) -> tuple[dict[str, float], ...]:
    shares = [(i + 1) / count for i in range(count)]
    return tuple(
        {
            "epoch": float(i),
            "step": 29.0 * (i + 1),
            "epsilon_lower": scale * max(0.0, share - 0.2),
            "epsilon_spent": 0.5 + share,
            "claimed_epsilon": 8.0,
        }
        | {
            f"epsilon_lower/{name}": scale * share * (j + 1) / 8
            for j, name in enumerate(LITERATURE)
        }
        for i, share in enumerate(shares)
    )


def report(**changes: Any) -> AuditReport:
    given = {
        "epsilon_spent": 1.5,
        "steps": 145,
        "history": ((2.0, 0.01, 45), (1.0, 0.01, 100)),
        "epochs": rows(5),
        "settings": {"bound_significance": 0.05},
        "operating_points": (HEALTHY,),
    }
    return dataclasses.replace(made_report(), **{**given, **changes})


def line(drawn: Figure, panel: int, label: str) -> Any:
    found = [item for item in drawn.axes[panel].lines if item.get_label() == label]
    assert len(found) == 1, [item.get_label() for item in drawn.axes[panel].lines]
    return found[0]


def labels(drawn: Figure, panel: int) -> list[str]:
    return drawn.axes[panel].get_legend_handles_labels()[1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a_b", "a_b"), ("_hidden", " _hidden"), (r"$\frac{", r"\$\frac{"), ("a\x1bb", r"a\x1bb")],
)
def test_text_of_a_report_is_no_formula_no_escape_and_not_left_out(text, shown):
    assert plots.plain(text) == shown
    drawn = plots.blank_figure((2.0, 2.0))
    axes = drawn.subplots()
    axes.plot([0, 1], label=plots.plain(text))
    assert axes.get_legend_handles_labels()[1] == [shown]
    axes.legend()
    drawn.canvas.draw()  # an unfinished formula would raise


def test_zero_and_every_power_of_ten_have_a_place_of_their_own():
    axes = plots.blank_figure((4.0, 4.0)).subplots()
    plots.plain_axes(axes)
    plots.log_from_zero(axes, "x", 2e-5, 30.0)
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["0", "1e-5", "1e-4", "0.001", "0.01", "0.1", "1", "10"]
    places = axes.transData.transform([(x, 0.0) for x in axes.get_xticks()])[:, 0]
    assert np.all(np.diff(places) > 0)
    assert axes.get_yscale() == "linear"


def test_each_series_is_the_logged_one_over_steps_and_the_claim_a_line_at_its_epsilon():
    drawn = plots.figure(report(claimed_epsilon=3.25))
    steps = [29.0 * (i + 1) for i in range(5)]
    named = {"epsilon_lower": "proved, anytime", "epsilon_spent": "spent"}
    named |= {f"epsilon_lower/{name}": plots._METHOD_STYLES[name][0] for name in LITERATURE}
    for key, label in named.items():
        x, y = line(drawn, 1, label).get_data()
        assert list(x) == steps
        assert list(y) == [row[key] for row in rows(5)]
    assert drawn.axes[1].get_xlabel() == "step"
    assert drawn.axes[1].get_ylabel() == "epsilon at delta 1e-05"
    assert list(line(drawn, 1, "claimed").get_ydata()) == [3.25, 3.25]
    newer = plots.figure(report(epochs=({"step": 5.0, "epsilon_lower/newer": 0.3},)))
    assert list(line(newer, 1, "newer").get_ydata()) == [0.3]


def test_the_anytime_bound_is_the_strongest_line_and_no_two_look_the_same():
    drawn = plots.figure(report())
    widths = {item.get_label(): item.get_linewidth() for item in drawn.axes[1].lines}
    strongest = widths.pop("proved, anytime")
    assert strongest > 1.5 * max(widths.values())
    # Told apart without colour, by marker and dashes.
    looks = {(item.get_marker(), item.get_linestyle()) for item in drawn.axes[1].lines}
    assert len(looks) == len(drawn.axes[1].lines) == 11


def test_rows_that_lack_a_number_leave_a_gap_and_no_zero():
    some = (
        {"epoch": 0.0, "step": 10.0, "epsilon_spent": 0.5},
        {"epoch": 1.0, "step": 20.0, "epsilon_lower": 0.1, "epsilon_spent": math.inf},
        {"epoch": 2.0, "step": 30.0, "epsilon_lower": None, "epsilon_spent": 0.9},
    )
    drawn = plots.figure(report(epochs=some))
    np.testing.assert_array_equal(line(drawn, 1, "spent").get_data(), [[10, 30], [0.5, 0.9]])
    np.testing.assert_array_equal(line(drawn, 1, "proved, anytime").get_data(), [[20], [0.1]])


def test_reports_without_steps_are_drawn_over_epochs():
    old = tuple({k: v for k, v in row.items() if k != "step"} for row in rows(3))
    drawn = plots.figure(report(epochs=old))
    assert list(line(drawn, 1, "spent").get_xdata()) == [0, 1, 2]
    assert drawn.axes[1].get_xlabel() == "epoch"
    bare = tuple({"epsilon_spent": 1.0} for _ in range(2))
    assert list(line(plots.figure(report(epochs=bare)), 1, "spent").get_xdata()) == [0, 1]


def test_bounds_far_below_the_claim_are_told_apart_and_zero_is_still_shown():
    axes = plots.figure(report(epochs=rows(5, scale=1e-3))).axes[1]
    assert axes.get_yscale() == "asinh"
    assert axes.get_ylim()[0] == 0.0
    assert plots.figure(report(epochs=rows(5, scale=4.0))).axes[1].get_yscale() == "linear"
    zeros = tuple({"step": float(i), "epsilon_lower": 0.0} for i in range(3))
    flat = plots.figure(report(epochs=zeros, claimed_epsilon=None)).axes[1]
    assert (flat.get_yscale(), flat.get_ylim()[0]) == ("linear", 0.0)


def test_epsilons_that_cannot_be_drawn_are_named():
    endless = plots.figure(report(claimed_epsilon=math.inf, epsilon_spent=math.inf, epochs=()))
    title = endless.axes[1].get_title().replace("\n", " ")
    for words in ("no epoch was logged", "claimed epsilon is infinite", "spent is infinite"):
        assert words in title
    nothing = plots.figure(report(claimed_epsilon=None))
    assert "no epsilon was claimed" in nothing.axes[1].get_title()
    assert "claimed" not in labels(nothing, 1)


def pixels(drawn: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: verdict.outcome)
def test_the_title_is_the_verdict(verdict):
    violation = verdict.outcome == "VIOLATION"
    title = plots.figure(report(verdict=verdict, complete=not violation)).get_suptitle()
    assert title.startswith(verdict.outcome)
    assert ("(mechanism)" in title) == ("training not finished" in title) == violation


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
def test_nothing_written_is_cut_off_or_runs_into_something_else(case):
    drawn = plots.figure(report(**CASES[case]))
    assert pixels(drawn).shape == (500, 1200, 4)
    written = {text: text.get_window_extent() for text in texts(drawn)}
    assert len(written) > 8
    for text, box in written.items():
        assert np.all(box.get_points() >= 0), text
        assert np.all(box.get_points() <= (1200, 500)), text
        met = [other for other in written if other is not text and box.overlaps(written[other])]
        assert met == [], text


def test_the_users_style_is_left_alone_and_does_not_make_the_picture_unreadable():
    usual = pixels(plots.figure(report()))
    with mpl.rc_context():
        mpl.rcParams.update(dict.fromkeys(("axes.facecolor", "figure.facecolor"), "black"))
        texts = ("text.", "axes.label", "axes.title", "axes.edge", "xtick.", "ytick.")
        mpl.rcParams.update({f"{name}color": "white" for name in texts})
        before = dict(mpl.rcParams)
        np.testing.assert_array_equal(pixels(plots.figure(report())), usual)
        assert dict(mpl.rcParams) == before


@pytest.mark.heavy
def test_pyplot_is_never_loaded_and_matplotlib_only_for_drawing(tmp_path):
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


def test_a_png_of_the_whole_picture_is_written(tmp_path):
    path = plots.save_figure(report(verdict=VERDICTS[1]), tmp_path / "report.png")
    assert path == tmp_path / "report.png"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    picture = imread(path)
    assert picture.shape[:2] == (500, 1200)
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 100
    for panel in (picture[:, :500], picture[:, 500:]):
        assert 0.01 < np.mean(panel[..., :3].min(axis=2) < 0.9) < 0.9


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("PDF", b"%PDF-")])
def test_the_suffix_says_the_format(suffix, start, tmp_path):
    path = plots.save_figure(report(), str(tmp_path / f"report.{suffix}"))
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["report", "report.jpg"])
def test_another_suffix_is_refused_before_anything_is_written(name, tmp_path):
    with pytest.raises(ValueError, match=r"must end in one of \.png, \.svg, \.pdf"):
        plots.save_figure(report(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_new_picture_replaces_the_old_one_and_an_error_while_rendering_does_not(
    tmp_path, monkeypatch
):
    path = plots.save_figure(report(), tmp_path / "report.png")
    first = imread(path)
    plots.save_figure(report(verdict=VERDICTS[1]), path)
    assert not np.array_equal(imread(path), first)
    old = path.read_bytes()

    def half(self: Figure, target: BinaryIO, **options: Any) -> None:
        target.write(b"\x89PNG half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(KeyboardInterrupt):
        plots.save_figure(report(), path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (
        lambda: plots.figure(report()),
        lambda: plots.save_figure(report(), tmp_path / "a.png"),
    ):
        with pytest.raises(ImportError, match=r"pip install '\.\[report\]'"):
            draw()


@pytest.mark.parametrize(("point", "forbidden"), [(HEALTHY, False), (BROKEN, True)])
def test_a_region_is_forbidden_if_no_rates_in_it_fit_the_claim(point, forbidden):
    curve, _ = plots.claimed_curve(report())
    of_point = report(operating_points=(point,))
    (region,) = plots.rate_regions(of_point, curve)
    assert region.outside is forbidden
    assert plots.rate_regions(of_point, None)[0].outside is False
    _, _, _, left, right, bottom, top, _ = region
    inverted = 1 - right, 1 - left, 1 - top, 1 - bottom
    assert curve is not None
    assert plots.is_forbidden(*inverted, curve) is forbidden


REGION = "95 % region"


def boxes(drawn: Figure) -> list[Rectangle]:
    return [patch for patch in drawn.axes[0].patches if isinstance(patch, Rectangle)]


def test_the_claimed_curve_is_the_gaussian_tradeoff_of_the_least_noise():
    x, y = line(plots.figure(report()), 0, "claimed: 1-GDP").get_data()
    np.testing.assert_array_equal(y, GaussianTradeoff(1.0)(x))
    assert (x[0], x[-1]) == (0.0, 1.0)
    assert np.max(np.diff(x)) < 0.05
    assert np.all(np.diff(x) >= 0)


@pytest.mark.parametrize("significance", [0.05, 0.001])
def test_a_region_is_four_clopper_pearson_limits_at_a_quarter_each(significance):
    drawn = plots.figure(report(settings={"bound_significance": significance}))
    (box,) = boxes(drawn)
    share = significance / 4
    left, right = (limit(305, 1000, share) for limit in (lower, upper))
    bottom, top = (limit(310, 1000, share) for limit in (lower, upper))
    (low, high) = box.get_bbox().get_points()
    assert tuple(low) == (left, bottom)
    assert tuple(high) == pytest.approx((right, top))
    label = {0.05: "measured, 95 % region", 0.001: "measured, 99.9 % region"}[significance]
    np.testing.assert_array_equal(line(drawn, 0, label).get_data(), [[0.305], [0.31]])


def test_only_a_region_that_lies_wholly_in_the_forbidden_area_has_the_violation_colour():
    # Its point is below the curve, its region reaches over it.
    near = OperatingPoint(0.5, fn=29, tp=71, fp=29, tn=71)
    assert GaussianTradeoff(1.0)(0.29) > 0.29
    drawn = plots.figure(report(operating_points=(HEALTHY, near, BROKEN)))
    colours = [box.get_edgecolor() for box in boxes(drawn)]
    assert colours == [to_rgba(plots.BLUE), to_rgba(plots.BLUE), to_rgba(plots.VIOLATION)]
    bad, good = (line(drawn, 0, f"measured, {says}") for says in ("outside the claim", REGION))
    np.testing.assert_array_equal(bad.get_data(), [[0.025], [0.02]])
    np.testing.assert_array_equal(good.get_data(), [[0.305, 0.29], [0.31, 0.29]])
    assert same_color(bad.get_color(), plots.VIOLATION)
    assert bad.get_marker() != good.get_marker()  # where there is no colour


def test_what_is_shaded_is_below_the_curve_or_above_that_of_the_inverted_guesses():
    (below, above), curve = plots.figure(report()).axes[0].collections, GaussianTradeoff(1.0)
    for alpha in (0.01, 0.3, 0.9):
        for end, inside in ((-0.004, True), (0.004, False)):
            beta = curve(alpha) + end
            assert below.get_paths()[0].contains_point((alpha, beta)) == inside
            assert above.get_paths()[0].contains_point((1 - alpha, 1 - beta)) == inside


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ((), "no step was audited"),
        (((1.0, 0.01, 9), (0.0, 0.01, 1)), "a step has noise_multiplier 0"),
    ],
)
def test_where_no_curve_can_be_drawn_the_panel_says_so_and_accuses_nobody(history, words):
    drawn = plots.figure(report(history=history, operating_points=(BROKEN,)))
    assert words in drawn.axes[0].get_title()
    assert labels(drawn, 0) == ["guessing", "measured, 95 % region"]
    assert len(drawn.axes[0].collections) == 0


def test_rates_are_drawn_on_a_logarithm_down_to_zero_only_where_they_huddle_in_the_corner():
    perfect = OperatingPoint(0.5, fn=0, tp=1000, fp=0, tn=1000)
    drawn = [plots.figure(report(operating_points=(point,))) for point in (HEALTHY, perfect)]
    usual, narrow = (each.axes[0] for each in drawn)
    assert (usual.get_xscale(), usual.get_yscale()) == ("linear", "linear")
    assert (narrow.get_xscale(), narrow.get_yscale()) == ("asinh", "asinh")
    assert " ".join(t.get_text() for t in narrow.get_xticklabels()) == "0 0.001 0.01 0.1 1"
    assert narrow.get_xlim() == narrow.get_ylim() == (0.0, 1.0)
    assert plots.figure(report(history=((0.25, 0.01, 9),))).axes[0].get_xscale() == "asinh"
