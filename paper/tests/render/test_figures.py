"""Figures: the same bytes for the same data, every label as given, readable in a column."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra figures of geof-paper is not installed")

from geof.errors import ConfigError, DataError, ShapeError
from geof_paper.render import clouds, figure_style, figures
from geof_paper.render.clouds import scatter_panels
from geof_paper.render.figure_style import COLUMN, save
from geof_paper.render.figures import Panel, bars, comparison, lines
from geof_paper.render.rank_figure import critical_difference

HOSTILE = "_$a_b$ <i>&\"'\x00\ud800 %\\frac"
SHOWN = "_$a_b$ <i>&\"'\ufffd\ufffd %\\frac"
NAN = float("nan")
CLASSES = np.repeat(["a", "b", "c"], 20)


def points(dimensions: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, dimensions))


def bar_figure(name="GeoF"):
    return bars(
        ["CiteSeer", name], [name, "w/o GE"], [[78, 95], [76, None]], [[1, 1], [1, NAN]], name
    )


def line_figure(name="GeoF"):
    series = {name: ([70, None, 72, 71], [1, 1, None, 1]), "GCN": ([60, 61, 62, 63], None)}
    below = Panel(f"2 {name}", {name: ([1, 0.1, 1e-3, 1e-5], None)}, logy=True)
    return lines([2, 4, 8, 16], series, name, f"1 {name}", logx=True, secondary=below)


def scatter_figure(name="GeoF"):
    labels = np.where(CLASSES == "a", name, CLASSES) if "\x00" not in name else CLASSES
    panels = [(name, points(), labels, np.arange(60)), ("GCN", points() * 2, CLASSES, None)]
    return scatter_panels(panels, size_label=name, highlight="b", note=name, axis_name=name)


def solid_figure(name="GeoF"):
    return scatter_panels([(name, points(3), CLASSES, None)], axis_name=name)


def bound_figure(name="GeoF"):
    return comparison([name, "x"], [1e3, np.inf], [0, 2.0], name, bound_name=name, title=name)


def rank_figure(name="GeoF"):
    p_values = [None, 0.2, 0.001]
    return critical_difference([name, "b", "c"], [1.1, 2.0, 2.9], name, p_values, title=name)


EVERY = [bar_figure, line_figure, scatter_figure, solid_figure, bound_figure, rank_figure]
every_figure = pytest.mark.parametrize("draw", EVERY, ids=lambda draw: draw.__name__)


def svg_texts(figure, folder) -> list[str]:
    """Every text of the written SVG, which must be well-formed."""
    path, _ = save(figure, folder)
    root = ElementTree.fromstring(path.read_bytes())
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")]


@every_figure
def test_the_same_data_give_the_same_bytes(draw, tmp_path):
    one = [path.read_bytes() for path in save(draw(), tmp_path / "1")]
    figure = draw()
    two = [path.read_bytes() for path in save(figure, tmp_path / "2")]
    again = [path.read_bytes() for path in save(figure, tmp_path / "2", "again")]
    assert one == two == again
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["figure.png", "figure.svg"]


def test_settings_of_the_user_change_nothing_and_stay(tmp_path):
    import matplotlib

    expected = save(bar_figure(), tmp_path / "1")[0].read_bytes()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "x"}):
        assert save(bar_figure(), tmp_path / "2")[0].read_bytes() == expected
        assert matplotlib.rcParams["font.size"] == 30


@every_figure
def test_hostile_labels_are_shown_as_they_are(draw, tmp_path):
    texts = svg_texts(draw(HOSTILE), tmp_path)
    assert any(SHOWN in text for text in texts)


@every_figure
def test_figures_are_readable_in_a_column(draw, tmp_path):
    figure = draw()
    assert figure.get_figwidth() == COLUMN
    whole = figure.bbox
    for shown in texts_in_view(figure):
        box = shown.get_window_extent()
        assert box.x0 >= -1, shown
        assert box.y0 >= -1, shown
        assert box.x1 <= whole.width + 1, shown
        assert box.y1 <= whole.height + 1, shown
    for legend in figure.legends:
        for axes in figure.axes:
            assert not legend.get_window_extent().overlaps(axes.get_tightbbox())
    text = save(figure, tmp_path)[0].read_text()
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text)]
    assert min(sizes) >= 7


def texts_in_view(figure):
    """Every text but the labels of ticks beyond the limits, which are not drawn."""
    from matplotlib.axis import Tick
    from matplotlib.text import Text

    ticks = figure.findobj(Tick)
    labels = {id(text) for tick in ticks for text in (tick.label1, tick.label2)}
    shown = [t for t in figure.findobj(Text) if t.get_text() and id(t) not in labels]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    assert any("GeoF" in text.get_text() for text in shown)
    return [text for text in shown if text.get_text()]


def test_long_labels_lose_their_middle(tmp_path):
    texts = svg_texts(bar_figure("x" * 30 + "y" * 30), tmp_path)
    assert "x" * 20 + "…" + "y" * 19 in texts


def test_pyplot_is_left_alone():
    loaded = "matplotlib.pyplot" in sys.modules
    bar_figure()
    assert ("matplotlib.pyplot" in sys.modules) == loaded


@every_figure
def test_without_matplotlib_the_command_is_named(draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install './paper\[figures\]'"):
        draw()


@pytest.mark.parametrize("module", [clouds, figure_style, figures])
def test_importing_the_module_does_not_import_matplotlib(module):
    with open(module.__file__) as file:
        tops = [line for line in file if re.match(r"(import|from) matplotlib", line)]
    assert tops == []


def test_missing_bars_leave_a_gap():
    axes = bar_figure().axes[0]
    heights = [len(container) for container in axes.containers if hasattr(container, "patches")]
    assert heights == [2, 1]
    places = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert places == pytest.approx([-0.205, 0.795, 0.205])  # the second group keeps its room


def test_bars_say_where_they_start(tmp_path):
    texts = svg_texts(bar_figure(), tmp_path)
    start = next(text for text in texts if text.startswith("bars start at"))
    low = bar_figure().axes[0].get_ylim()[0]
    assert start == f"bars start at {low:g}, not at 0"
    assert 0 < low < 75
    whole = bars("ab", "s", [[78, 95]], None, "%", from_zero=True)
    assert whole.axes[0].get_ylim()[0] == 0
    assert not [t for t in svg_texts(whole, tmp_path) if "bars start" in t]


def test_negative_bars_hang_from_zero():
    drawn = bars("ab", "s", [[2, -3]], None, "change").axes[0].patches
    assert [(bar.get_y(), bar.get_height()) for bar in drawn] == [(0, 2), (0, -3)]


def test_bars_are_as_high_as_their_values():
    tops = [bar.get_y() + bar.get_height() for bar in bar_figure().axes[0].patches]
    assert tops == pytest.approx([78, 95, 76])


def test_crowded_names_are_turned():
    few = bars(["a", "b"], ["s"], [[1, 2]], None, "y")
    many = bars([f"a long name {i}" for i in range(6)], ["s"], [range(6)], None, "y")
    turned = [f.axes[0].get_xticklabels()[0].get_rotation() for f in (few, many)]
    assert turned == [0, 35]


def test_lines_have_ticks_at_their_points(tmp_path):
    figure = lines([1, 2, 4, 8], {"s": ([1, 2, 3, 4], None)}, "blocks", "%", logx=2)
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "4", "8"]
    assert not figure.legends  # of a single line the axis says enough


def test_panels_share_x_and_looks():
    top, bottom = line_figure().axes
    assert top.get_shared_x_axes().joined(top, bottom)
    assert len(line_figure().axes) == 2  # no twin axis
    assert top.lines[0].get_color() == bottom.lines[0].get_color()
    assert top.lines[0].get_color() != top.lines[1].get_color()
    assert top.lines[0].get_marker() != top.lines[1].get_marker()
    assert bottom.get_yscale() == "log"
    assert top.get_position().y0 > bottom.get_position().y1


def test_missing_points_break_the_line_and_lone_ones_have_whiskers():
    spread = [1, 1, 1, 1, 1]
    axes = lines(range(5), {"s": ([1, 2, None, 3, None], spread)}, "x", "y").axes[0]
    assert np.isnan(axes.lines[0].get_ydata()).tolist() == [False, False, True, False, True]
    whiskers = [c for c in axes.containers if hasattr(c, "has_yerr")]
    assert len(whiskers) == 1
    assert whiskers[0].lines[2][0].get_segments()[0].tolist() == [[3, 2], [3, 4]]


def test_more_classes_than_colours_still_differ():
    labels = np.arange(60) % 30
    handles = scatter_panels([("t", points(), labels, None)]).legends[0].legend_handles
    assert len({(h.get_markerfacecolor(), h.get_marker()) for h in handles}) == 30


def test_classes_are_listed_once_in_order():
    labels = np.tile([10, 9, 2], 20)
    panels = [("1", points(), labels, None), ("2", points(), np.full(60, 3), None)]
    legend = scatter_panels(panels).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["2", "3", "9", "10"]


def test_limits_are_shared_when_asked():
    panels = [("1", points(), CLASSES, None), ("2", points() * 9, CLASSES, None)]
    one, two = scatter_panels(panels, shared_limits=True).axes
    assert (one.get_xlim(), one.get_ylim()) == (two.get_xlim(), two.get_ylim())
    apart = scatter_panels(panels).axes
    assert apart[0].get_xlim() != apart[1].get_xlim()


def test_the_ellipse_is_two_deviations_around_the_class():
    generator = np.random.default_rng(1)
    turn = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    cloud = generator.normal(size=(20000, 2)) * [3, 1] @ turn.T + [5, -2]
    labels = np.repeat(["in", "out"], 10000)
    (ellipse,) = scatter_panels([("t", cloud, labels, None)], highlight="in").axes[0].patches
    assert ellipse.center == pytest.approx((5, -2), abs=0.1)
    assert (ellipse.width, ellipse.height) == pytest.approx((12, 4), rel=0.05)
    assert np.deg2rad(ellipse.angle) % np.pi == pytest.approx(0.5, abs=0.05)
    assert ellipse.get_linestyle() == "--"


def test_sizes_grow_with_values_on_one_scale():
    values = np.arange(60.0)
    panels = [("1", points(), ["a"] * 60, values), ("2", points(), ["a"] * 60, values / 2)]
    figure = scatter_panels(panels, size_label="log det L")
    first, second = (np.sort(axes.collections[0].get_sizes()) for axes in figure.axes)
    assert first[-1] == pytest.approx(45)
    assert second[-1] == pytest.approx(3 + 42 / 2)
    assert figure.legends[1].get_title().get_text() == "log det L"


def test_every_point_is_drawn_however_many(tmp_path):
    cloud = np.random.default_rng(0).normal(size=(5500, 2))
    figure = scatter_panels([("t", cloud, [0] * 5500, None)])
    assert len(figure.axes[0].collections[0].get_offsets()) == 5500
    path, _ = save(figure, tmp_path)
    assert b"<image" in path.read_bytes()  # a picture within the SVG


def test_bounds_that_are_zero_or_infinite_stand_at_the_ends(tmp_path):
    figure = bound_figure()
    axes = figure.axes[0]
    low, high = axes.get_xlim()
    bound, observed = (line.get_xdata().tolist() for line in axes.lines)
    assert bound == [1e3, high]
    assert observed == [low, 2]
    assert {"∞", "0"} <= set(svg_texts(figure, tmp_path))


def test_powers_of_ten_without_mathematics(tmp_path):
    texts = svg_texts(comparison(["a"], [1e12], [1e-6], "norm"), tmp_path)
    assert "10⁻⁷" in texts
    assert not [text for text in texts if "$" in text]
    assert {"0.1", "10"} <= set(svg_texts(comparison(["a"], [50], [0.2], "norm"), tmp_path))


def test_ranks_are_sorted_and_what_is_alike_is_connected():
    methods, ranks = ["c", "GeoF", "b"], [2.9, 1.1, 2.0]
    axes = critical_difference(methods, ranks, "GeoF", [0.001, None, 0.05]).axes[0]
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels] == ["GeoF", "b", "c"]
    assert [label.get_fontweight() for label in labels] == ["bold", "normal", "normal"]
    connection = axes.lines[0]
    assert connection.get_xdata().tolist() == [1.1, 2.0]  # a p of exactly the level is not below
    measured = critical_difference(methods, ranks, "GeoF", [0.001, None, 0.05], difference=2.5)
    ruler = measured.axes[0].lines[-1]
    assert ruler.get_xdata().tolist() == [1, 3.5]
    assert measured.axes[0].get_xlim()[1] > 3.5
    assert "critical difference 2.5" in [text.get_text() for text in measured.axes[0].texts]
    alone = critical_difference(methods, ranks, "GeoF", [0.001, None, 0.04]).axes[0]
    assert all(len(line.get_xdata()) == 1 for line in alone.lines)


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: bars("ab", "s", [[1]], None, "y"), ShapeError, r"'means' of shape \(1, 2\)"),
        (lambda: bars("ab", "s", [[1, "x"]], None, "y"), ShapeError, "'means' to be numbers"),
        (lambda: bars("ab", "s", [[None, NAN]], None, "y"), DataError, "nothing to draw"),
        (lambda: bars("a", "s", [[np.inf]], None, "y"), DataError, "'means' to be finite"),
        (lambda: lines([1, 2], {"s": ([1], None)}, "x", "y"), ShapeError, "mean of s"),
        (lambda: lines([1, 2], {}, "x", "y"), ConfigError, "one series"),
        (lambda: lines([2, 1], {"s": ([1, 2], None)}, "x", "y"), DataError, "ascend"),
        (lambda: lines([0, 1], {"s": ([1, 2], None)}, "x", "y", logx=2), DataError, "positive"),
        (lambda: lines([1, 2], {"s": ([1, 2], None)}, "x", "y", logx=-2), ConfigError, "base"),
        (lambda: scatter_panels([]), ConfigError, "panels"),
        (lambda: scatter_panels([("t", points(), "ab", None)]), ShapeError, "panel 't'"),
        (lambda: scatter_panels([("t", points() * NAN, CLASSES, None)]), DataError, "finite"),
        (
            lambda: scatter_panels([("t", points(), CLASSES, None)], highlight="z"),
            ConfigError,
            "Classes: a, b, c",
        ),
        (
            lambda: scatter_panels([("t", points(3), CLASSES, None)], highlight="a"),
            ConfigError,
            "two dimensions",
        ),
        (lambda: comparison(["a"], [-1], [1], "x"), DataError, "zero or more"),
        (lambda: comparison(["a"], [0], [0], "x"), DataError, "between zero and infinity"),
        (lambda: critical_difference("ab", [1, 2], "c", [None, 1]), ConfigError, "'c' among"),
        (lambda: critical_difference("ab", [1, 2], "a", [1, None]), DataError, "p-value of each"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, error, message):
    with pytest.raises(error, match=message):
        draw()
