"""``geof reproduce``: every table and figure of the paper, one command each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.errors import ConfigError
from geof_paper.commands.grid import add_grid_arguments, names, run_grid, say_missing
from geof_paper.commands.row_studies import ROW_STUDIES, run_row_study

if TYPE_CHECKING:
    from geof_paper.grid.search import Search
    from geof_paper.render.study_tables import StudyRuns, StudyTable

TRAINED = (
    *("node-link", "graph", "ablation", "sensitivity", "depth", "stability"),
    *("second-order", "feedback", "visualise", "theory"),
)
COMPUTED = ("aggregate", "efficiency")
PAGE = "page"
SEARCH = "search"


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures",
        description="Train what a table or figure of the paper needs and is not there yet, and "
        "write it as CSV, JSON, Markdown, LaTeX and as a figure, the paper's numbers beside ours. "
        "Interrupted or killed, the same command goes on.",
    )
    choices = (*TRAINED, *COMPUTED, *ROW_STUDIES, SEARCH, PAGE)
    parser.add_argument("name", choices=choices, metavar="NAME", help=_listed())
    parser.add_argument(
        *("--methods", "--models"), type=names, help="rows of the table (default: all)"
    )
    parser.add_argument(
        "--preset", choices=("tuned", "paper"), default="tuned", help="GeoF's (default: tuned)"
    )
    parser.add_argument("--tasks", type=names, help=f"{SEARCH}: of node, link, graph")
    parser.add_argument(
        "--plan",
        choices=("rivals", "compared"),
        help=f"{SEARCH}: GeoF and the strong recipes, or the compared methods (default: both)",
    )
    add_grid_arguments(parser)
    parser.add_argument("--no-run", action="store_true", help="show what is recorded, run nothing")
    parser.add_argument(
        "--write-presets",
        action="store_true",
        help=f"{SEARCH}: put what complete searches found into the presets of their groups",
    )
    parser.add_argument("--no-figures", action="store_true", help="write tables only")
    parser.add_argument("--out", type=Path, default=Path("reproduced"), help="for what is written")
    parser.add_argument(
        "--from",
        dest="source",
        choices=("results", "paper"),
        default="results",
        help="aggregate: our rows or the paper's own tables (default: results)",
    )
    parser.add_argument(
        "--bench",
        type=Path,
        default=Path("benchmarks/results/methods.json"),
        help="efficiency: what 'geof bench --methods paper --json' wrote",
    )
    parser.add_argument(
        "--page", type=Path, default=Path("docs/reproduced.md"), help="page: the file to write"
    )
    parser.add_argument(
        "--remarks", type=Path, default=Path("docs/reproduced-remarks.md"), help="page: its opening"
    )
    parser.add_argument(
        "--renew",
        action="store_true",
        help="page: make its tables again by the commands on it, from what is recorded",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run what is missing, write the tables and figures, say where."""
    if options.name == PAGE:
        return _write_page(options)
    if options.name in ROW_STUDIES:
        return run_row_study(options)
    if options.name == SEARCH:
        return _search(options)
    if options.name in COMPUTED:
        _write(options, _computed(options))
        return 0
    from geof_paper.render.studies import study_tables

    runs = _study_runs(options)
    failed = 0
    if not options.no_run:
        failed = run_grid(options, runs.grid)
        runs.grid.record()
    _write(options, study_tables(runs))
    say_missing(runs.grid)
    return 1 if failed else 0


def _study_runs(options: argparse.Namespace) -> StudyRuns:
    from geof_paper.grid.declared import STUDIES, choose_benchmarks, choose_variants
    from geof_paper.grid.grid import Grid, order
    from geof_paper.grid.records import ALL_SPLITS
    from geof_paper.render.study_tables import StudyRuns

    study = STUDIES[options.name]
    variants = choose_variants(study, options.methods)
    benchmarks = choose_benchmarks(study, options.datasets)
    # Impossible options are told at once.
    rows = [study.row(variant, b, options.preset) for b in benchmarks for variant in variants]
    splits = tuple(options.splits or ALL_SPLITS[: study.splits])
    cells = order(list(dict.fromkeys(rows)), splits)
    grid = Grid(cells, options.work, options.results, study.measure)
    return StudyRuns(study, variants, benchmarks, options.preset, splits, grid, options.data_root)


def _computed(options: argparse.Namespace) -> list[StudyTable]:
    if options.name == "efficiency":
        from geof_paper.render.efficiency import efficiency

        return efficiency(options.bench)
    from geof_paper.render.aggregate import aggregate_paper, aggregate_results

    if options.source == "paper":
        return [aggregate_paper()]
    return [aggregate_results(options.results, options.preset, options.methods)]


def _write(options: argparse.Namespace, made: list[StudyTable]) -> None:
    if not made:
        raise ConfigError("Expected a part of the study to show (got none). Name other rows.")
    for table in made:
        print(*table.write(options.out, figures=not options.no_figures), sep="\n")


def _search(options: argparse.Namespace) -> int:
    """Search presets, one leader after another."""
    from geof.cli.progress import stop_requests
    from geof.executor import Executor, InProcess
    from geof.processes import Processes, cores
    from geof_paper.grid.search import (
        is_complete,
        markdown,
        read_trials,
        record_trials,
        searches,
        write_presets,
    )

    file = options.results / "search.jsonl"
    root = None if options.data_root is None else options.data_root.resolve()
    wanted = searches(options.tasks, options.datasets, options.methods, root, options.plan)
    workers = options.workers or cores()
    _say_cost([s for s in wanted if not is_complete(s, read_trials(file))], options.results)
    with stop_requests() as should_stop:
        for search in [] if options.no_run else wanted:
            if is_complete(search, read_trials(file)):
                continue  # its preset may be what it found by now
            executor: Executor = Processes(workers) if workers > 1 else InProcess()
            search.run(options.work / SEARCH, executor, should_stop)
            record_trials(file, search.trials(options.work / SEARCH))
            print(f"{search.name}: {len(search.trials(options.work / SEARCH))} trials", flush=True)
    rows = read_trials(file)
    written = write_presets(rows) if options.write_presets else []
    print(markdown(rows), file, *written, sep="\n")
    return 0


def _say_cost(missing: Sequence[Search], results: Path) -> None:
    """Print how long searches may take that are not complete."""
    if not missing:
        return
    seconds = {search.name: search.longest_seconds(results) for search in missing}
    known = [value for value in seconds.values() if value is not None]
    unknown = [name for name, value in seconds.items() if value is None]
    print(
        f"{len(missing)} searches are not complete: at most {sum(known) / 3600:.1f} h of one core, "
        "from the recorded times of an epoch"
        + (f"; no times of {', '.join(unknown)}" if unknown else ""),
        flush=True,
    )


def _write_page(options: argparse.Namespace) -> int:
    """Write one Markdown page of what is in the folder of tables, or of what its commands make."""
    import tempfile
    from contextlib import ExitStack

    from geof.io import write_atomically
    from geof_paper.render.markdown_page import copy_figures, markdown_page

    remarks = options.remarks.read_text() if options.remarks.exists() else ""
    with ExitStack() as stack:
        folder = options.out
        if options.renew:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _remake(options, folder)
        said = copy_figures(folder, options.page)
        text = markdown_page(folder, options.page, remarks)
    write_atomically(options.page, text.encode())
    print(*said, options.page, sep="\n")
    return 0


def _remake(options: argparse.Namespace, folder: Path) -> None:
    """Make the tables of a page into a folder, from the records alone."""
    from geof.cli import main
    from geof_paper.render.markdown_page import page_commands

    more = ["--no-run", *(["--no-figures"] if options.no_figures else [])]
    more += ["--results", str(options.results), "--work", str(options.work)]
    for command in page_commands(options.page):
        if main([*command, *more, "--out", str(folder)]) != 0:
            raise ConfigError(f"Expected 'geof {' '.join(command)}' to succeed (it did not).")


def _listed() -> str:
    return (
        f"one of {', '.join((*TRAINED, *COMPUTED))}; "
        f"{'; '.join(f'{name}: {about}' for name, about in ROW_STUDIES.items())}; {SEARCH}: "
        f"presets, with equal trials; or {PAGE}: all that was written, on one page"
    )
