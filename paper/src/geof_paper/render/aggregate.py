"""Averages, ranks and tests over all benchmarks, from our runs or from the paper's own tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from pathlib import Path
from typing import NamedTuple

from geof_paper.grid.cells import BENCHMARKS, Benchmark, Row
from geof_paper.grid.records import recorded
from geof_paper.render.rank_figure import critical_difference
from geof_paper.render.study_tables import StudyTable
from geof_paper.render.tables import Better, Cell, Table
from geof_paper.render.tables import Row as TableRow
from geof_paper.studies.compared import COMPARED, Compared
from geof_paper.studies.printed import paper_tables, printed
from geof_paper.studies.statistics import Aggregate, aggregate, nemenyi_difference

REFERENCE = "GeoF"
COLUMNS = ("NC avg.", "LP avg.", "GC avg.", "overall avg.", "avg. rank", "avg. gain", "p (Holm)")
BETTER: tuple[Better, ...] = (
    *("larger", "larger", "larger", "larger"),
    *("smaller", "neither", "neither"),
)
_PRINTED = ("node", "link", "graph", "overall", "rank", "gain", "p_holm")


def aggregate_paper() -> StudyTable:
    """Aggregate the paper's own Tables 1 and 2; its printed aggregates stand beside."""
    methods = list(paper_tables()["aggregate"])
    scores = [[_mean(benchmark, method) for method in methods] for benchmark in BENCHMARKS]
    return _study_table("aggregate-paper", "The paper's own tables", methods, scores, "paper")


def aggregate_results(results: Path, preset: str, methods: Sequence[str] | None) -> StudyTable:
    """Aggregate recorded runs over the benchmarks all methods have.

    The strong recipes are rows of their own. Where methods are named, all of them stay; otherwise
    those stay that make the largest complete table, and the text names the others.

    Args:
        results: Where results files are.
        preset: Which of GeoF's presets stands for it.
        methods: What to compare it with; ``None`` for all of the comparison.
    """
    chosen = [
        m
        for m in COMPARED
        if not m.method.endswith("-so")
        and (m.method != "geof" or m.preset == preset)
        and (methods is None or m.method in methods or m.method == "geof")
    ]
    records = {(b, m): _record(results, b, m) for b in BENCHMARKS for m in chosen}
    known = {key: record for key, record in records.items() if record is not None}
    kept = chosen if methods is not None else largest_complete(chosen, known)
    scores = [
        [known[b, m].mean if (b, m) in known else float("nan") for m in kept] for b in BENCHMARKS
    ]
    stale = sum(record.stale for (_, m), record in known.items() if m in kept)
    remarks = [f"{stale} of {len(known)} scores are of stale runs."] if stale else []
    absent = [_name(m) for m in chosen if m not in kept]
    if absent:
        remarks.append(f"Methods left out for want of rows: {', '.join(absent)}.")
    names = [_name(method) for method in kept]
    title = "Our recorded rows"
    return _study_table("aggregate", title, names, scores, "results", " ".join(remarks))


class Recorded(NamedTuple):
    """A recorded score, and whether it is of stale runs."""

    mean: float
    stale: bool


def largest_complete(
    methods: Sequence[Compared], known: Collection[tuple[Benchmark, Compared]]
) -> list[Compared]:
    """Return the methods, GeoF among them, that make the largest table without a gap.

    Those with most benchmarks come first; of their beginnings the one is taken whose number of
    methods times benchmarks that all of them have is largest, of equals the longest.
    """
    counts = {m: sum((benchmark, m) in known for benchmark in BENCHMARKS) for m in methods}
    order = sorted(methods, key=lambda m: (m.method != "geof", -counts[m]))
    best = max(
        range(2, len(order) + 1),
        key=lambda n: (n * sum(all((b, m) in known for m in order[:n]) for b in BENCHMARKS), n),
    )
    return [method for method in methods if method in order[:best]]


def _name(compared: Compared) -> str:
    return compared.printed or compared.title


def _mean(benchmark: Benchmark, method: str) -> float:
    found = printed(*benchmark, method)
    assert found is not None  # the paper's tables are complete
    return found.mean


def _record(results: Path, benchmark: Benchmark, compared: Compared) -> Recorded | None:
    preset = compared.preset_for(benchmark[0])
    record = recorded(Row(*benchmark, compared.method, preset), results)
    if record is None or record.test is None:
        return None
    return Recorded(record.test.mean, bool(record.stale))


def _study_table(
    name: str,
    title: str,
    methods: Sequence[str],
    scores: list[list[float]],
    source: str,
    remarks: str = "",
) -> StudyTable:
    groups = [task for task, _ in BENCHMARKS]
    benchmarks = [f"{dataset}/{task}" for task, dataset in BENCHMARKS]
    found = aggregate(scores, methods, groups, REFERENCE, benchmarks=benchmarks)
    table = _table(title, found, as_printed=source == "paper")
    text = _text(found) + (f" {_agreement(table)}" if source == "paper" else "")
    text += f" {remarks}" if remarks else ""
    return StudyTable(
        name,
        f"Aggregate comparison: {title.lower()}",
        table,
        text=text,
        draw=partial(
            critical_difference,
            list(methods),
            [row.rank for row in found.rows],
            REFERENCE,
            [row.p_holm for row in found.rows],
            difference=nemenyi_difference(len(methods), len(found.used)),
        ),
        command=f"geof reproduce aggregate --from {source}",
    )


def _table(title: str, found: Aggregate, *, as_printed: bool) -> Table:
    known = paper_tables()["aggregate"]
    rows = []
    for row in found.rows:
        ours = [row.averages.get("node"), row.averages.get("link"), row.averages.get("graph")]
        ours += [row.overall, row.rank, row.gain, row.p_holm]
        if as_printed:
            ours = [*map(_one_decimal, ours[:-1]), _three_digits(ours[-1])]
        paper = known.get(row.method, {})
        cells = [
            Cell(value, paper=paper.get(name)) if value is not None else Cell(None, note="none")
            for value, name in zip(ours, _PRINTED, strict=True)
        ]
        rows.append(TableRow(row.method, tuple(cells)))
    return Table(title, COLUMNS, tuple(rows), decimals=1 if as_printed else 2, better=BETTER)


def _one_decimal(value: float | None) -> float | None:
    """Round as people do, a half up, what is exact to far more digits than a float's last."""
    if value is None:
        return None
    exact = Decimal(repr(round(value, 9)))
    return float(exact.quantize(Decimal("0.1"), rounding=ROUND_HALF_UP))


def _three_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _agreement(table: Table) -> str:
    """Say how many of the printed numbers come out to the printed digits."""
    cells = [c for row in table.rows for c in row.cells if c.mean is not None]
    same = sum(cell.mean == cell.paper for cell in cells)
    return f"{same} of {len(cells)} numbers agree with the printed ones in every printed digit."


def _text(found: Aggregate) -> str:
    test = found.friedman
    known = paper_tables()
    apart = nemenyi_difference(len(found.rows), len(found.used))
    return (
        f"Friedman's test: chi-square {test.statistic:.1f} with {test.degrees} degrees of freedom, "
        f"p = {test.p_value:.2g} (with the correction for ties {test.corrected_statistic:.1f}; the "
        f"paper prints {known['friedman_chi2']} with {known['friedman_dof']}). p-values of rank "
        f"differences to {found.reference} are adjusted by Holm's rule. Ranks of any two methods "
        f"must be {apart:.2f} apart to differ at 5 % by Nemenyi's test. {found.note}"
    )
