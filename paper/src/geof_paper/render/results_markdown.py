"""The page of results: recorded rows beside the paper's numbers and beside the controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from geof.methods.interface import TaskKind
from geof_paper.grid.cells import BENCHMARKS, Benchmark, Row
from geof_paper.grid.records import ALL_SPLITS, FailedRun, Record
from geof_paper.studies.compared import COMPARED
from geof_paper.studies.printed import Printed, printed
from geof_paper.studies.statistics import MeanAndDeviation

HEADINGS: dict[TaskKind, str] = {
    "node": "Node classification (accuracy)",
    "link": "Link prediction (ROC-AUC)",
    "graph": "Graph classification (accuracy; ROC-AUC for BBBP and ogbg-molhiv)",
}


def render_page(
    records: Sequence[Record], remarks: str = "", failures: Sequence[FailedRun] = ()
) -> str:
    """Return the page as Markdown.

    Args:
        records: What was recorded.
        remarks: Text to put before the tables.
        failures: Runs that did not come to their end.
    """
    parts = [
        "# Results\n",
        "<!-- Written by `geof results render`; edit docs/results-remarks.md instead. -->\n",
    ]
    if remarks:
        parts.append(remarks.strip() + "\n")
    plain = {record.row: record for record in records if not record.row.changes}
    for task, heading in HEADINGS.items():
        benchmarks = [benchmark for benchmark in BENCHMARKS if benchmark[0] == task]
        parts.append(f"## {heading}\n\n{_table(task, benchmarks, plain)}")
    tried = [record for record in records if record.row.changes]
    if tried:
        parts.append(f"## What each addition is worth\n\n{_additions(tried, plain)}")
    parts.append(f"## Every row\n\n{_details(records)}")
    if any(record.stale for record in records):
        parts.append(f"## Stale runs\n\n{_stale(records)}")
    if failures:
        parts.append(f"## Runs that did not finish\n\n{_failures(failures)}")
    return "\n".join(parts)


def _table(task: TaskKind, benchmarks: Sequence[Benchmark], plain: Mapping[Row, Record]) -> str:
    lines = [["", *(dataset for _, dataset in benchmarks)]]
    for compared in COMPARED:
        preset = compared.preset_for(task)
        records = [plain.get(Row(*b, compared.method, preset)) for b in benchmarks]
        if any(records):
            numbers = [printed(*b, compared.printed) for b in benchmarks]
            cells = [_cell(*pair) for pair in zip(records, numbers, strict=True)]
            lines.append([compared.title_for(task), *cells])
    return markdown_table(lines)


def _cell(record: Record | None, paper: Printed | None) -> str:
    beside = "" if paper is None else f"<br>paper {paper.mean:.1f} ± {paper.deviation:.1f}"
    if record is None or record.test is None:
        return "not run" + beside
    return _score(record.test) + _remark(record) + beside


def _score(found: MeanAndDeviation) -> str:
    spread = "" if found.deviation is None else f" ± {found.deviation:.2f}"
    return f"{found.mean:.2f}{spread}"


def _remark(record: Record) -> str:
    """Say on how few splits a number rests, and how many of them are late or stale."""
    count, stale = len(record.runs), len(record.stale)
    late = sum(run.is_late for run in record.runs)
    parts = [f"{count} of {len(ALL_SPLITS)}"] if count < len(ALL_SPLITS) else []
    parts += [f"{late} late"] if late else []
    parts += [f"{stale} stale"] if stale else []
    return f" ({', '.join(parts)})" if parts else ""


def _additions(records: Sequence[Record], plain: Mapping[Row, Record]) -> str:
    lines = [["benchmark", "changed", "splits", "validation", "difference"]]
    for record in records:
        row = record.row
        whole = plain.get(replace(row, changes=()))
        lines.append(
            [
                f"{row.task} {row.dataset}",
                f"`{' '.join(row.changes)}`",
                str(len(record.runs)),
                f"{record.validation.mean:.2f}",
                "" if whole is None else f"{_paired(record, whole):+.2f}",
            ]
        )
    return markdown_table(lines)


def _paired(record: Record, whole: Record) -> float:
    """Return the mean difference in validation over the splits both have."""
    before = {run.split: run.validation for run in whole.runs}
    shared = [run.validation - before[run.split] for run in record.runs if run.split in before]
    return sum(shared) / len(shared) if shared else float("nan")


def _details(records: Sequence[Record]) -> str:
    head = ["row", "splits", "validation", "test", "best epoch", "epochs", "s/epoch", "memory"]
    lines = [[*head, "parameters", "split hashes", "command"]]
    for record in records:
        runs, test = record.runs, record.test
        count = len(runs)
        lines.append(
            [
                _name(record.row),
                str(count),
                f"{record.validation.mean:.2f}",
                "not read" if test is None else f"{test.mean:.2f}",
                f"{sum(run.best_epoch for run in runs) / count:.0f}",
                f"{sum(run.epochs for run in runs) / count:.0f}",
                f"{sum(run.seconds_per_epoch for run in runs) / count:.2f}",
                f"{max(run.peak_rss_bytes for run in runs) / 1e9:.1f} GB",
                f"{record.first.parameters:,}",
                _hashes(record),
                f"`{record.command}`",
            ]
        )
    return markdown_table(lines)


def _name(row: Row) -> str:
    return " ".join([row.task, row.dataset, row.method, row.preset, *row.changes])


def _hashes(record: Record) -> str:
    hashes = [run.split_hash[:8] for run in record.runs]
    return hashes[0] if len(hashes) == 1 else f"{hashes[0]} … {hashes[-1]}"


def _stale(records: Sequence[Record]) -> str:
    lines = [
        f"- {_name(record.row)}, split {split}: {why}"
        for record in records
        for split, why in record.stale.items()
    ]
    return "\n".join(lines) + "\n"


def _failures(failures: Sequence[FailedRun]) -> str:
    lines = []
    for run in failures:
        epoch = f"epoch {run.failure['epoch']}, " if "epoch" in run.failure else ""
        lines.append(f"- {_name(run.row)}, split {run.split}: {epoch}{run.failure['error']}")
    return "\n".join(lines) + "\n"


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table; the first one is its head."""
    head, *rest = lines
    ruled = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in ruled)
