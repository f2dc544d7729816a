"""The paper's tables and figures from recorded runs, one function per kind of study."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geof_paper.grid.cells import Benchmark
from geof_paper.grid.declared import BLOCKS, PROTOTYPES, Variant
from geof_paper.render import figures, maps
from geof_paper.render.figure_style import COLUMN, PAGE
from geof_paper.render.study_tables import Draw, StudyRuns, StudyTable, cell_of
from geof_paper.render.tables import Cell, Row, Table
from geof_paper.studies.statistics import compare_paired, mean_and_deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers: TypeAlias = NDArray[np.float64]
CellOf: TypeAlias = Callable[[Variant, Benchmark], Cell]

SCORE = "accuracy or ROC-AUC (%)"
METRICS = {"BBBP": "ROC-AUC", "ogbg-molhiv": "ROC-AUC"}


def study_tables(runs: StudyRuns) -> list[StudyTable]:
    """Return what a study shows, as far as its runs are there."""
    return _MAKERS.get(runs.study.name, _scores)(runs)


def _study_table(
    runs: StudyRuns,
    table: Table,
    *,
    suffix: str = "",
    text: str = "",
    draw: Draw | None = None,
) -> StudyTable:
    study = runs.study
    if runs.preset != "tuned":
        suffix += f"-{runs.preset}"
    texts = [f"{study.place} of the paper.", text, runs.staleness()]
    return StudyTable(
        study.name + suffix,
        table.title,
        table,
        text=" ".join(part for part in texts if part),
        draw=draw,
        missing=runs.missing(),
        command=command_of(runs),
        **runs.origin(),
    )


def command_of(runs: StudyRuns) -> str:
    """Return the command that makes a study as it was asked for."""
    study = runs.study
    words = ["geof", "reproduce", study.name]
    if runs.variants != study.variants:
        names = [f"{v.method}:{v.preset}" if v.preset else v.label for v in runs.variants]
        words += ["--methods", ",".join(names)]
    if runs.benchmarks != study.benchmarks:
        words += ["--datasets", ",".join(dict.fromkeys(dataset for _, dataset in runs.benchmarks))]
    if len(runs.splits) != study.splits:
        words += ["--splits", ",".join(runs.splits)]
    if runs.preset != "tuned":
        words += ["--preset", runs.preset]
    return shlex.join(words)


def _scores(runs: StudyRuns) -> list[StudyTable]:
    """Variants by benchmarks, nothing more: the comparisons."""
    return [_study_table(runs, _table(runs, runs.study.title, runs.variants))]


def _table(runs: StudyRuns, title: str, variants: Sequence[Variant]) -> Table:
    rows = tuple(
        Row(variant.label, tuple(runs.cell(variant, benchmark) for benchmark in runs.benchmarks))
        for variant in variants
    )
    return Table(title, tuple(map(column, runs.benchmarks)), rows)


def column(benchmark: Benchmark) -> str:
    """Return the heading of a benchmark's column."""
    task, dataset = benchmark
    if task == "link":
        return f"{dataset} link"
    return f"{dataset} ({METRICS[dataset]})" if dataset in METRICS else dataset


def _with_differences(runs: StudyRuns) -> list[StudyTable]:
    """Variants of one method: the scores, and differences on the same splits with their noise."""
    table = _table(runs, runs.study.title, runs.variants)
    made = [_study_table(runs, table, draw=_bars(runs, table))]
    whole = next(v for v in runs.study.variants if v.label == runs.study.reference)
    if any(runs.scores(whole, benchmark) for benchmark in runs.benchmarks):
        made.append(_study_table(runs, _differences(runs, whole), suffix="-differences"))
    return made


def _bars(runs: StudyRuns, table: Table) -> Draw | None:
    cells = [row.cells for row in table.rows]
    if all(cell.mean is None for row in cells for cell in row):
        return None
    return partial(
        figures.bars,
        table.columns,
        [row.label for row in table.rows],
        _numbers([[cell.mean for cell in row] for row in cells]),
        _numbers([[cell.deviation for cell in row] for row in cells]),
        SCORE,
        width=COLUMN if len(runs.benchmarks) < 3 else PAGE,
    )


def _differences(runs: StudyRuns, whole: Variant) -> Table:
    rows = tuple(
        Row(variant.label, tuple(_difference(runs, variant, whole, b) for b in runs.benchmarks))
        for variant in runs.variants
        if variant != whole
    )
    return Table(
        f"{runs.study.title}: difference from {whole.label}",
        tuple(map(column, runs.benchmarks)),
        rows,
        caption="Mean difference in percentage points on the same splits, and its standard error: "
        "of the corrected resampled t-test for random splits, of the paired t-test for folds. "
        "The p-values are two-sided and not corrected for their number.",
    )


def _difference(runs: StudyRuns, variant: Variant, whole: Variant, benchmark: Benchmark) -> Cell:
    ours, full = runs.scores(variant, benchmark), runs.scores(whole, benchmark)
    if len(ours.keys() & full.keys()) < 2:
        return Cell(None, of=len(runs.splits))
    ratio = {"node": 1 / 3, "link": 15 / 80}.get(benchmark[0])
    found = compare_paired(ours, full, "folds" if ratio is None else "random", test_to_train=ratio)
    note = "" if found.p_value is None else f"p = {found.p_value:.2g}"
    return Cell(found.mean, found.standard_error, len(found.splits), len(runs.splits), note=note)


def _sensitivity(runs: StudyRuns) -> list[StudyTable]:
    made = []
    for letter, name, variants in (("B", "blocks", BLOCKS), ("K", "prototypes", PROTOTYPES)):
        chosen = [variant for variant in variants if variant in runs.variants]
        if chosen:
            table = _table(runs, f"Number of {name} {letter}", chosen)
            draw = _curve(runs, chosen, f"{name} {letter}", logx=2)
            made.append(_study_table(runs, table, suffix=f"-{name}", draw=draw))
    return made


def _curve(
    runs: StudyRuns,
    variants: Sequence[Variant],
    xlabel: str,
    *,
    logx: int = 0,
    below: tuple[str, CellOf] | None = None,
) -> Draw | None:
    """Draw the scores over the value that the variants vary, and something else below."""
    series = _series(runs, variants, runs.cell)
    if not series:
        return None
    panel = None
    if below is not None and (second := _series(runs, variants, below[1])):
        panel = figures.Panel(below[0], second)
    places = _numbers([variant.value for variant in variants])
    return partial(figures.lines, places, series, xlabel, SCORE, logx=logx, secondary=panel)


def _series(
    runs: StudyRuns, variants: Sequence[Variant], cell: CellOf
) -> dict[str, tuple[Numbers, Numbers]]:
    found = {}
    for benchmark in runs.benchmarks:
        cells = [cell(variant, benchmark) for variant in variants]
        if any(entry.mean is not None for entry in cells):
            found[column(benchmark)] = _means_and_deviations(cells)
    return found


def _means_and_deviations(cells: Sequence[Cell]) -> tuple[Numbers, Numbers]:
    return _numbers([cell.mean for cell in cells]), _numbers([cell.deviation for cell in cells])


def _numbers(values: Any) -> Numbers:
    """Return an array, NaN for ``None``."""
    return np.array(values, dtype=np.float64)


def _depth(runs: StudyRuns) -> list[StudyTable]:
    def change(variant: Variant, benchmark: Benchmark) -> Cell:
        last = [measure["geometry_change"][-1] for measure in runs.measures(variant, benchmark)]
        return cell_of(last, len(runs.splits))

    columns = [name for b in runs.benchmarks for name in (column(b), f"{column(b)}: D_Z(L)")]
    rows = tuple(
        Row(
            variant.label,
            tuple(c for b in runs.benchmarks for c in (runs.cell(variant, b), change(variant, b))),
        )
        for variant in runs.variants
    )
    table = Table(
        runs.study.title,
        tuple(columns),
        rows,
        better=("larger", "neither") * len(runs.benchmarks),
    )
    draw = _curve(runs, runs.variants, "steps L", below=("last change D_Z(L)", change))
    return [_study_table(runs, table, draw=draw)]


def _stability(runs: StudyRuns) -> list[StudyTable]:
    (variant,) = runs.variants
    measured = {column(b): runs.measures(variant, b) for b in runs.benchmarks}
    measured = {name: measures for name, measures in measured.items() if measures}
    sigmas = next(iter(measured.values()))[0]["sigmas"] if measured else []
    accuracy, ratio = (
        {name: _over_sigmas(found, what, len(runs.splits)) for name, found in measured.items()}
        for what in ("accuracy", "ratio")
    )
    rows = tuple(
        Row(
            f"sigma = {sigma:g}",
            tuple(curve[name][i] for name in measured for curve in (accuracy, ratio)),
        )
        for i, sigma in enumerate(sigmas)
    )
    columns = [f"{name}: {what}" for name in measured for what in ("accuracy", "R_state")]
    table = Table(runs.study.title, tuple(columns), rows, decimals=3, better="neither")
    draw = None
    if measured:
        draw = partial(
            figures.lines,
            sigmas,
            {name: _means_and_deviations(cells) for name, cells in accuracy.items()},
            "relative norm of the perturbation",
            "accuracy (%)",
            secondary=figures.Panel(
                "sensitivity R_state",
                {name: _means_and_deviations(cells) for name, cells in ratio.items()},
            ),
        )
    text = " ".join(_stability_text(name, measures) for name, measures in measured.items())
    return [_study_table(runs, table, text=text, draw=draw)]


def _over_sigmas(measures: Sequence[Mapping[str, Any]], what: str, of: int) -> list[Cell]:
    """Return a cell for each size of the perturbation."""
    return [_over_splits(values, of) for values in zip(*(m[what] for m in measures), strict=True)]


def _over_splits(values: Sequence[Sequence[float]], of: int) -> Cell:
    """Return the mean over splits of the mean over directions.

    The deviation is over splits; with one split, over directions.
    """
    if len(values) == 1:
        mean, deviation, _ = mean_and_deviation(values[0])
        return Cell(mean, deviation, 1, of, note="deviation over directions")
    return cell_of([sum(v) / len(v) for v in values], of)


def _stability_text(name: str, measures: Sequence[Mapping[str, Any]]) -> str:
    spread = max(
        mean_and_deviation(values).deviation or 0.0 for m in measures for values in m["ratio"]
    )
    (first, last), (before, after) = (
        [sum(sum(m[what][i]) / len(m[what][i]) for m in measures) / len(measures) for i in (0, -1)]
        for what in ("ratio", "accuracy")
    )
    return (
        f"{name}: from the smallest to the largest sigma R_state changes by "
        f"{100 * (last / first - 1):+.1f} % (paper, on PubMed: -7.6 %) and accuracy by "
        f"{after - before:+.2f} points (paper: -1.1); the largest deviation of R_state over "
        f"{len(measures[0]['ratio'][0])} random directions is {spread:.2g}."
    )


def _theory(runs: StudyRuns) -> list[StudyTable]:
    (variant,) = runs.variants
    measured = {benchmark: runs.measures(variant, benchmark) for benchmark in runs.benchmarks}
    made = [_theory_of(runs, b, measures) for b, measures in measured.items() if measures]
    empty = Table(runs.study.title, ("bound", "observed"), ())
    return made or [_study_table(runs, empty)]


BOUNDS = {
    "largest |L|": ("frames", "norm"),
    "largest |L^-1|": ("frames", "inverse_norm"),
    "Lipschitz constant of z -> L": ("frames", "lipschitz"),
    "one-step ratio d(F(S), F(S')) / d(S, S')": ("step", "ratio"),
}


def _theory_of(
    runs: StudyRuns, benchmark: Benchmark, measures: Sequence[Mapping[str, Any]]
) -> StudyTable:
    of = len(runs.splits)
    rows = []
    for label, (part, name) in BOUNDS.items():
        limit = _bound([m[part][f"{name}_bound"] for m in measures], of)
        rows.append(Row(label, (limit, cell_of([m[part][name] for m in measures], of))))
    bounds, observed = (_numbers([row.cells[i].mean for row in rows]) for i in (0, 1))
    return _study_table(
        runs,
        Table(
            f"{runs.study.title}: {column(benchmark)}",
            ("bound", "observed"),
            tuple(rows),
            decimals=3,
            better="neither",
        ),
        suffix=f"-{benchmark[1]}",
        text=_fixed_point_text([m["fixed_point"] for m in measures]),
        draw=partial(figures.comparison, list(BOUNDS), bounds, observed, "value"),
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


def _visualise(runs: StudyRuns) -> list[StudyTable]:
    made = []
    for benchmark in runs.benchmarks:
        rows = []
        for variant in runs.variants:
            for measure in runs.measures(variant, benchmark)[:1]:
                rows += _map_rows(variant, measure, runs.scores(variant, benchmark))
        columns = ("silhouette", "purity of ten neighbours", "test accuracy (%)")
        title = f"{runs.study.title}: {column(benchmark)}"
        table = Table(title, columns, tuple(rows), decimals=3)
        draws: dict[str, Callable[[StudyRuns, Benchmark], Figure | None]] = {
            f"-{benchmark[1]}": maps.map_figure,
            f"-{benchmark[1]}-correction": maps.correction_figure,
        }
        made += [
            _study_table(runs, table, suffix=suffix, draw=partial(draw, runs, benchmark))
            for suffix, draw in draws.items()
        ]
    return made


def _map_rows(
    variant: Variant, measure: Mapping[str, Any], scores: Mapping[str, float]
) -> list[Row]:
    def row(label: str, states: Mapping[str, float], score: float | None) -> Row:
        cells = (Cell(states["silhouette"]), Cell(states["purity"]), Cell(score))
        return Row(label, cells)

    first = next(iter(scores.values()), None)
    rows = [row(variant.label, measure["states"], measure.get("accuracy", first))]
    if "off" in measure:
        label = f"{variant.label}, correction off"
        rows.append(row(label, measure["off"], measure["accuracy_off"]))
    return rows


_MAKERS: dict[str, Callable[[StudyRuns], list[StudyTable]]] = {
    "ablation": _with_differences,
    "feedback": _with_differences,
    "second-order": _with_differences,
    "sensitivity": _sensitivity,
    "depth": _depth,
    "stability": _stability,
    "theory": _theory,
    "visualise": _visualise,
}
