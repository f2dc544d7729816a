"""A line per compared method and task: where it comes from, how it was set, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from geof.errors import DataError
from geof.methods.interface import TaskKind
from geof.methods.registry import load_preset
from geof_paper.grid.cells import BENCHMARKS, Benchmark, Row
from geof_paper.grid.records import Record
from geof_paper.grid.search import TrialRow
from geof_paper.grid.search_plans import COMPARED_METHODS
from geof_paper.render.results_markdown import markdown_table
from geof_paper.studies.compared import COMPARED, Compared
from geof_paper.studies.method_facts import FACTS
from geof_paper.studies.printed import printed

BEGIN = "<!-- Written by `geof results methods`. -->\n"
END = "<!-- Until here. -->\n"

TASKS: tuple[TaskKind, ...] = ("node", "link", "graph")
HEADER = (
    *("method", "task", "preset, its source", "trials", "epochs: used; bound; published"),
    *("late", "ours / paper / own paper"),
)


def with_methods(page: str, section: str) -> str:
    """Return a page with the generated part renewed.

    Raises:
        DataError: If the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(
            f"Expected the lines '{BEGIN.strip()}' and '{END.strip()}' in the page of methods (got "
            "not both). Put them where the table is to stand."
        )
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def methods_markdown(records: Sequence[Record], trials: Sequence[TrialRow]) -> str:
    """Return what each method was compared with, and a table with a line per method and task."""
    known = {record.row: record for record in records if not record.row.changes}
    chosen = [compared for compared in COMPARED if compared.method in FACTS]
    fidelity = [f"- **{_name(c)}** (`{c.method}`): {FACTS[c.method].fidelity}." for c in chosen]
    lines = [list(HEADER)]
    lines += [_line(compared, task, known, trials) for compared in chosen for task in TASKS]
    return "\n".join(fidelity) + "\n\n" + markdown_table(lines)


def _line(
    compared: Compared, task: TaskKind, known: Mapping[Row, Record], trials: Sequence[TrialRow]
) -> list[str]:
    preset, facts = compared.preset_for(task), FACTS[compared.method]
    benchmarks = [benchmark for benchmark in BENCHMARKS if benchmark[0] == task]
    found = {b: known.get(Row(*b, compared.method, preset)) for b in benchmarks}
    rows = {benchmark: record for benchmark, record in found.items() if record is not None}
    runs = [run for record in rows.values() for run in record.runs]
    bounds = [_bound(compared.method, preset, benchmark) for benchmark in benchmarks]
    used = f"{median(run.epochs for run in runs):.0f}" if runs else "none"
    epochs = f"{used}; {_span(bounds)}; {facts.epochs.get(task, 'none')}"
    late = sum(run.is_late for run in runs)
    scores = "; ".join(
        _scores(compared, benchmark, rows.get(benchmark)) for benchmark in benchmarks
    )
    source = f"`{preset}`, {facts.sources[task]}"
    late_of = f"{late} of {len(runs)}" if runs else "not run"
    return [_name(compared), task, source, _trials(compared, task, trials), epochs, late_of, scores]


def _name(compared: Compared) -> str:
    return compared.printed or compared.title


def _trials(compared: Compared, task: TaskKind, trials: Sequence[TrialRow]) -> str:
    """Return how many trials of the declared search are recorded, leader by leader."""
    plan = COMPARED_METHODS
    leaders = [dataset for kind, dataset in plan.groups if kind == task]
    own = [(row.task, row.dataset) for row in trials if row.method == compared.method]
    return ", ".join(f"{name} {own.count((task, name))} of {plan.trials}" for name in leaders)


def _bound(method: str, preset: str, benchmark: Benchmark) -> int:
    task, dataset = benchmark
    tree = load_preset(method, preset, task, dataset)
    return int(tree["epochs"]) + int((tree.get("pretraining") or {}).get("epochs", 0))


def _span(values: Sequence[int]) -> str:
    return f"{min(values)} to {max(values)}" if min(values) < max(values) else str(values[0])


def _scores(compared: Compared, benchmark: Benchmark, record: Record | None) -> str:
    """Return our number with the splits it rests on, the paper's, and the method's own paper's."""
    ours = "not run"
    if record is not None and record.test is not None:
        remarks = [f"{len(record.runs)}"] if len(record.runs) < 10 else []
        remarks += ["stale"] if record.stale else []
        ours = f"{record.test.mean:.1f}" + (f" ({', '.join(remarks)})" if remarks else "")
    paper = printed(*benchmark, compared.printed)
    own = FACTS[compared.method].scores.get(benchmark)
    return " / ".join(
        [
            f"{benchmark[1]} {ours}",
            *([f"{paper.mean:.1f}"] if paper is not None else ["none"]),
            *([own] if own is not None else []),
        ]
    )
