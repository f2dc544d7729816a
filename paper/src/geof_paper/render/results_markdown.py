"""The page of results: recorded rows beside the paper's numbers and beside the controls."""

from __future__ import annotations

from collections.abc import Sequence

from geof_paper.grid.cells import SETTINGS
from geof_paper.grid.records import Record
from geof_paper.studies.compared import COMPARED
from geof_paper.studies.printed import Printed, printed

HEADINGS = {
    "node": "Node classification (accuracy)",
    "link": "Link prediction (ROC-AUC)",
    "graph": "Graph classification (accuracy; ROC-AUC for BBBP and ogbg-molhiv)",
}


def render_page(records: Sequence[Record], remarks: str = "") -> str:
    """Return the page as Markdown.

    Args:
        records: What was recorded.
        remarks: Text to put before the tables.
    """
    parts = [
        "# Results\n",
        "<!-- Written by `geof results render`; edit docs/results-remarks.md instead. -->\n",
    ]
    if remarks:
        parts.append(remarks.strip() + "\n")
    plain = {_key(record): record for record in records if not record.row["changes"]}
    for task, heading in HEADINGS.items():
        datasets = [dataset for kind, dataset in SETTINGS if kind == task]
        parts.append(f"## {heading}\n\n{_table(task, datasets, plain)}")
    ablations = [record for record in records if record.row["changes"]]
    if ablations:
        parts.append(f"## What each addition is worth\n\n{_ablations(ablations, plain)}")
    parts.append(f"## Every row\n\n{_details(records)}")
    failures = [record for record in records if record.failures]
    if failures:
        parts.append(f"## Runs that did not finish\n\n{_failures(failures)}")
    return "\n".join(parts)


def _key(record: Record) -> tuple[str, str, str, str]:
    row = record.row
    return row["task"], row["dataset"], row["encoder"], row["preset"]


def _table(
    task: str, datasets: Sequence[str], plain: dict[tuple[str, str, str, str], Record]
) -> str:
    header = ["", *datasets]
    lines = [_line(header), _line(["---"] * len(header))]
    for method in COMPARED:
        records = [plain.get((task, name, method.encoder, method.preset)) for name in datasets]
        numbers = [printed(task, name, method.printed) for name in datasets]
        if any(records):
            cells = [_cell(*pair) for pair in zip(records, numbers, strict=True)]
            lines.append(_line([method.title, *cells]))
    return "\n".join(lines) + "\n"


def _cell(record: Record | None, paper: Printed | None) -> str:
    beside = "" if paper is None else f"<br>paper {paper.mean:.1f} ± {paper.deviation:.1f}"
    if record is None:
        return "not run" + beside
    summary = record.summary
    count = summary["splits"]
    text = f"{summary['test_mean']:.2f}"
    if count > 1:
        text += f" ± {summary['test_deviation']:.2f}"
    if count < 10:
        text += f" ({count} of 10)"
    return text + beside


def _ablations(records: Sequence[Record], plain: dict[tuple[str, str, str, str], Record]) -> str:
    header = ["setting", "changed", "splits", "validation", "difference"]
    lines = [_line(header), _line(["---"] * len(header))]
    for record in records:
        whole = plain.get(_key(record))
        difference = "" if whole is None else f"{_paired(record, whole):+.2f}"
        lines.append(
            _line(
                [
                    f"{record.row['task']} {record.row['dataset']}",
                    f"`{' '.join(record.row['changes'])}`",
                    str(record.summary["splits"]),
                    f"{record.summary['validation_mean']:.2f}",
                    difference,
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _paired(record: Record, whole: Record) -> float:
    """Return the mean difference in validation over the splits both have."""
    before = {entry["split"]: entry["validation"] for entry in whole.splits}
    shared = [e for e in record.splits if e["split"] in before]
    if not shared:
        return float("nan")
    total: float = sum(e["validation"] - before[e["split"]] for e in shared)
    return total / len(shared)


def _details(records: Sequence[Record]) -> str:
    header = ["row", "splits", "validation", "test", "epochs", "s/epoch", "memory", "parameters"]
    header += ["split hashes", "command"]
    lines = [_line(header), _line(["---"] * len(header))]
    for record in records:
        summary, splits = record.summary, record.splits
        count = len(splits)
        test = "not read" if "test_mean" not in summary else f"{summary['test_mean']:.2f}"
        lines.append(
            _line(
                [
                    f"{record.row['task']} {record.row['dataset']} {record.row['encoder']} "
                    f"{record.row['preset']} {' '.join(record.row['changes'])}".strip(),
                    str(count),
                    f"{summary['validation_mean']:.2f}",
                    test,
                    f"{sum(e['epochs'] for e in splits) / count:.0f}",
                    f"{sum(e['seconds_per_epoch'] for e in splits) / count:.2f}",
                    f"{max(e['peak_rss_bytes'] for e in splits) / 1e9:.1f} GB",
                    f"{record.parameters:,}",
                    _hashes(record),
                    f"`{record.command}`",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _hashes(record: Record) -> str:
    hashes = [entry["split_hash"][:8] for entry in record.splits]
    return hashes[0] if len(hashes) == 1 else f"{hashes[0]} … {hashes[-1]}"


def _failures(records: Sequence[Record]) -> str:
    lines = [
        f"- {record.row['task']} {record.row['dataset']} {record.row['encoder']} "
        f"{record.row['preset']}, split {failure['split']}: epoch {failure['epoch']}, "
        f"{failure['error']}"
        for record in records
        for failure in record.failures
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
