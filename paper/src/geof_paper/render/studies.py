"""The paper's tables and figures from recorded results, one function per kind of study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geof_paper.render import figures
from geof_paper.render.exhibits import Exhibit, Request, cell_of
from geof_paper.render.figure_style import COLUMN, PAGE
from geof_paper.render.tables import Cell, Row, Table
from geof_paper.studies.declared import Line, Setting, values_of
from geof_paper.studies.statistics import compare_paired, mean_and_deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers: TypeAlias = NDArray[np.float64]

SCORE = "accuracy or ROC-AUC (%)"
METRICS = {"BBBP": "ROC-AUC", "ogbg-molhiv": "ROC-AUC"}


def exhibits(request: Request) -> list[Exhibit]:
    """Return what a study shows, as far as its runs are there."""
    return _MAKERS.get(request.study.name, _scores)(request)


def _exhibit(
    request: Request,
    table: Table,
    *,
    suffix: str = "",
    text: str = "",
    figure: Figure | None = None,
) -> Exhibit:
    study = request.study
    if request.preset != "tuned":
        suffix += f"-{request.preset}"
    texts = [f"{study.place} of the paper.", text, request.provenance()]
    return Exhibit(
        study.name + suffix,
        table.title,
        table,
        text=" ".join(part for part in texts if part),
        figure=figure,
        missing=request.missing(),
        command=command_of(request),
        **request.origin(),
    )


def command_of(request: Request) -> str:
    """Return the command that makes a study as it was asked for."""
    study = request.study
    words = [f"geof reproduce {study.name}"]
    if request.settings != study.settings:
        words.append("--datasets " + ",".join(dict.fromkeys(s[1] for s in request.settings)))
    if len(request.splits) != study.splits:
        words.append("--splits " + ",".join(request.splits))
    if request.preset != "tuned":
        words.append(f"--preset {request.preset}")
    return " ".join(words)


def _scores(request: Request) -> list[Exhibit]:
    """Lines by settings, nothing more: the comparisons."""
    return [_exhibit(request, _table(request, request.study.title))]


def _table(request: Request, title: str, lines: Sequence[Line] | None = None) -> Table:
    rows = tuple(
        Row(line.label, tuple(request.cell(line, setting) for setting in request.settings))
        for line in (request.lines if lines is None else lines)
    )
    return Table(title, tuple(map(column, request.settings)), rows)


def column(setting: Setting) -> str:
    """Return the heading of a setting's column."""
    task, dataset = setting
    if task == "link":
        return f"{dataset} link"
    return f"{dataset} ({METRICS[dataset]})" if dataset in METRICS else dataset


def _variants(request: Request) -> list[Exhibit]:
    """Variants of one model: the scores, and differences on the same splits with their noise."""
    figure = _bars(request)
    made = [_exhibit(request, _table(request, request.study.title), figure=figure)]
    whole = next(line for line in request.study.lines if line.label == request.study.reference)
    if any(request.scores(whole, setting) for setting in request.settings):
        made.append(_exhibit(request, _differences(request, whole), suffix="-differences"))
    return made


def _bars(request: Request) -> Figure | None:
    cells = [[request.cell(line, s) for s in request.settings] for line in request.lines]
    if all(cell.mean is None for row in cells for cell in row):
        return None
    return figures.bars(
        [column(setting) for setting in request.settings],
        [line.label for line in request.lines],
        _numbers([[cell.mean for cell in row] for row in cells]),
        _numbers([[cell.deviation for cell in row] for row in cells]),
        SCORE,
        width=COLUMN if len(request.settings) < 3 else PAGE,
    )


def _differences(request: Request, whole: Line) -> Table:
    rows = tuple(
        Row(line.label, tuple(_difference(request, line, whole, s) for s in request.settings))
        for line in request.lines
        if line != whole
    )
    return Table(
        f"{request.study.title}: difference from {whole.label}",
        tuple(map(column, request.settings)),
        rows,
        caption="Mean difference in percentage points on the same splits, and its standard error: "
        "of the corrected resampled t-test for random splits, of the paired t-test for folds. "
        "The p-values are two-sided and not corrected for their number.",
    )


def _difference(request: Request, line: Line, whole: Line, setting: Setting) -> Cell:
    ours, full = request.scores(line, setting), request.scores(whole, setting)
    if len(ours.keys() & full.keys()) < 2:
        return Cell(None, of=len(request.splits))
    ratio = {"node": 1 / 3, "link": 15 / 80}.get(setting[0])
    found = compare_paired(ours, full, "folds" if ratio is None else "random", test_to_train=ratio)
    note = "" if found.p_value is None else f"p = {found.p_value:.2g}"
    return Cell(found.mean, found.standard_error, len(found.splits), len(request.splits), note=note)


def _sensitivity(request: Request) -> list[Exhibit]:
    made = []
    for letter, name in (("B", "blocks"), ("K", "prototypes")):
        chosen = [
            (v, line) for v, line in values_of(request.study, letter) if line in request.lines
        ]
        if not chosen:
            continue
        lines = [line for _, line in chosen]
        title = f"Number of {name} {letter}"
        made.append(
            _exhibit(
                request,
                _table(request, title, lines),
                suffix=f"-{name}",
                figure=_curve(request, [v for v, _ in chosen], lines, f"{name} {letter}", logx=2),
            )
        )
    return made


def _series(
    request: Request, lines: Sequence[Line], cell: Callable[[Line, Setting], Cell]
) -> dict[str, tuple[Numbers, Numbers]]:
    found = {}
    for setting in request.settings:
        cells = [cell(line, setting) for line in lines]
        if any(entry.mean is not None for entry in cells):
            found[column(setting)] = _means_and_deviations(cells)
    return found


def _means_and_deviations(cells: Sequence[Cell]) -> tuple[Numbers, Numbers]:
    return _numbers([cell.mean for cell in cells]), _numbers([cell.deviation for cell in cells])


def _numbers(values: Any) -> Numbers:
    """Return an array, NaN for ``None``."""
    return np.array(values, dtype=np.float64)


def _curve(
    request: Request,
    places: Sequence[float],
    lines: Sequence[Line],
    xlabel: str,
    *,
    logx: int = 0,
    below: tuple[str, Callable[[Line, Setting], Cell]] | None = None,
) -> Figure | None:
    series = _series(request, lines, request.cell)
    if not series:
        return None
    panel = None
    if below is not None and (second := _series(request, lines, below[1])):
        panel = figures.Panel(below[0], second)
    return figures.lines(places, series, xlabel, SCORE, logx=logx, secondary=panel)


def _depth(request: Request) -> list[Exhibit]:
    chosen = [(v, line) for v, line in values_of(request.study, "L") if line in request.lines]
    lines = [line for _, line in chosen]

    def change(line: Line, setting: Setting) -> Cell:
        last = [measure["geometry_change"][-1] for measure in request.measures(line, setting)]
        return cell_of(last, len(request.splits))

    columns = [name for s in request.settings for name in (column(s), f"{column(s)}: D_Z(L)")]
    rows = tuple(
        Row(
            line.label,
            tuple(c for s in request.settings for c in (request.cell(line, s), change(line, s))),
        )
        for line in lines
    )
    table = Table(
        request.study.title,
        tuple(columns),
        rows,
        better=("larger", "neither") * len(request.settings),
    )
    figure = _curve(
        request, [v for v, _ in chosen], lines, "steps L", below=("last change D_Z(L)", change)
    )
    return [_exhibit(request, table, figure=figure)]


def _stability(request: Request) -> list[Exhibit]:
    (line,) = request.lines
    columns: list[str] = []
    curves: dict[str, dict[str, list[Cell]]] = {"accuracy": {}, "ratio": {}}
    sigmas: list[float] = []
    for setting in request.settings:
        measures = request.measures(line, setting)
        if not measures:
            continue
        sigmas = measures[0]["sigmas"]
        columns += [f"{column(setting)}: accuracy", f"{column(setting)}: R_state"]
        for name, found in curves.items():
            found[column(setting)] = [
                _over_splits([m[name][i] for m in measures], len(request.splits))
                for i in range(len(sigmas))
            ]
    rows = tuple(
        Row(
            f"sigma = {sigma:g}",
            tuple(curves[n][s][i] for s in curves["accuracy"] for n in ("accuracy", "ratio")),
        )
        for i, sigma in enumerate(sigmas)
    )
    table = Table(request.study.title, tuple(columns), rows, decimals=3, better="neither")
    figure = None
    if sigmas:
        accuracy, ratio = (
            {name: _means_and_deviations(cells) for name, cells in curve.items()}
            for curve in curves.values()
        )
        figure = figures.lines(
            sigmas,
            accuracy,
            "relative norm of the perturbation",
            "accuracy (%)",
            secondary=figures.Panel("sensitivity R_state", ratio),
        )
    text = " ".join(_stability_text(request, line, setting) for setting in request.settings)
    return [_exhibit(request, table, text=text, figure=figure)]


def _over_splits(values: Sequence[Sequence[float]], of: int) -> Cell:
    """Return the mean over splits of the mean over directions.

    The deviation is over splits; with one split, over directions.
    """
    if len(values) == 1:
        mean, deviation, _ = mean_and_deviation(values[0])
        return Cell(mean, deviation, 1, of, note="deviation over directions")
    return cell_of([sum(v) / len(v) for v in values], of)


def _stability_text(request: Request, line: Line, setting: Setting) -> str:
    measures = request.measures(line, setting)
    if not measures:
        return ""
    spread = max(
        mean_and_deviation(values).deviation or 0.0 for m in measures for values in m["ratio"]
    )
    means = {
        name: [
            sum(sum(m[name][i]) / len(m[name][i]) for m in measures) / len(measures)
            for i in (0, -1)
        ]
        for name in ("ratio", "accuracy")
    }
    (first, last), (before, after) = means["ratio"], means["accuracy"]
    return (
        f"{column(setting)}: from the smallest to the largest sigma R_state changes by "
        f"{100 * (last / first - 1):+.1f} % (paper, on PubMed: -7.6 %) and accuracy by "
        f"{after - before:+.2f} points (paper: -1.1); the largest deviation of R_state over "
        f"{len(measures[0]['ratio'][0])} random directions is {spread:.2g}."
    )


def _theory(request: Request) -> list[Exhibit]:
    made = []
    (line,) = request.lines
    for setting in request.settings:
        measures = request.measures(line, setting)
        if measures:
            made.append(_theory_of(request, setting, measures))
    empty = Table(request.study.title, ("bound", "observed"), ())
    return made or [_exhibit(request, empty)]


BOUNDS = {
    "largest |L|": ("frames", "norm"),
    "largest |L^-1|": ("frames", "inverse_norm"),
    "Lipschitz constant of z -> L": ("frames", "lipschitz"),
    "one-step ratio d(F(S), F(S')) / d(S, S')": ("step", "ratio"),
}


def _theory_of(request: Request, setting: Setting, measures: list[dict[str, Any]]) -> Exhibit:
    of = len(request.splits)
    bounds, observed, rows = [], [], []
    for label, (part, name) in BOUNDS.items():
        limit = _bound([m[part][f"{name}_bound"] for m in measures], of)
        seen = cell_of([m[part][name] for m in measures], of)
        rows.append(Row(label, (limit, seen)))
        bounds.append(limit.mean)
        observed.append(seen.mean)
    table = Table(
        f"{request.study.title}: {column(setting)}",
        ("bound", "observed"),
        tuple(rows),
        decimals=3,
        better="neither",
    )
    return _exhibit(
        request,
        table,
        suffix=f"-{setting[1]}",
        text=_fixed_point_text([m["fixed_point"] for m in measures]),
        figure=figures.comparison(list(BOUNDS), _numbers(bounds), _numbers(observed), "value"),
    )


def _bound(values: Sequence[float | None], of: int) -> Cell:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Cell(None, of=of, note="beyond floating point")
    return cell_of(known, of)


def _fixed_point_text(points: Sequence[Mapping[str, Any]]) -> str:
    """Say whether the geometry map with fixed features converges (Proposition 3 (iii))."""
    converged = [p for p in points if p["converged"]]
    found = [p for p in points if p["spectral_radius"] is not None]
    settled = sum(p["settled_share"] for p in points) / len(points)
    text = (
        f"With the features before the last step held fixed, the geometry's iteration converges "
        f"on {len(converged)} of {len(points)} splits; on average {100 * settled:.0f} % of nodes "
        f"come to rest. A fixed point was found on {len(found)}."
    )
    pairs = [(p["spectral_radius"], p["observed_rate"]) for p in found if p["converged"]]
    if pairs:
        radius, rate = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
        text += (
            f" Where both are there, the spectral radius of the Jacobian is {radius:.4f} and the "
            f"observed rate {rate:.4f} on average."
        )
    return text


def _visualise(request: Request) -> list[Exhibit]:
    from geof_paper.render.maps import correction_figure, map_figure

    made = []
    for setting in request.settings:
        rows = []
        for line in request.lines:
            for measure in request.measures(line, setting)[:1]:
                rows += _map_rows(line, measure, request.scores(line, setting))
        columns = ("silhouette", "purity of ten neighbours", "test accuracy (%)")
        title = f"{request.study.title}: {column(setting)}"
        table = Table(title, columns, tuple(rows), decimals=3)
        for suffix, draw in (("", map_figure), ("-correction", correction_figure)):
            figure = draw(request, setting)
            text = "" if figure is not None else "The figure needs run folders, not here."
            made.append(
                _exhibit(request, table, suffix=f"-{setting[1]}{suffix}", text=text, figure=figure)
            )
    return made


def _map_rows(line: Line, measure: Mapping[str, Any], scores: Mapping[str, float]) -> list[Row]:
    def row(label: str, states: Mapping[str, float], score: float | None) -> Row:
        cells = (Cell(states["silhouette"]), Cell(states["purity"]), Cell(score))
        return Row(label, cells)

    first = next(iter(scores.values()), None)
    rows = [row(line.label, measure["states"], measure.get("accuracy", first))]
    if "off" in measure:
        label = f"{line.label}, correction off"
        rows.append(row(label, measure["off"], measure["accuracy_off"]))
    return rows


_MAKERS: dict[str, Callable[[Request], list[Exhibit]]] = {
    "ablation": _variants,
    "feedback": _variants,
    "second-order": _variants,
    "sensitivity": _sensitivity,
    "depth": _depth,
    "stability": _stability,
    "theory": _theory,
    "visualise": _visualise,
}
