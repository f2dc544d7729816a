"""``geof reproduce``: every table and figure of the paper, one command each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.errors import ConfigError
from geof_paper.commands.grid import add_grid_arguments, is_worker, names, run_grid, say_missing

if TYPE_CHECKING:
    from geof_paper.render.exhibits import Exhibit, Request

TRAINED = (
    *("node-link", "graph", "ablation", "sensitivity", "depth", "stability"),
    *("second-order", "feedback", "visualise", "theory"),
)
COMPUTED = ("aggregate", "efficiency")
PAGE = "page"


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "reproduce",
        help="the paper's tables and figures",
        description="Train what a table or figure of the paper needs and is not there yet, and "
        "write it as CSV, JSON, Markdown, LaTeX and as a figure, the paper's numbers beside ours. "
        "Interrupted or killed, the same command goes on.",
    )
    parser.add_argument("name", choices=(*TRAINED, *COMPUTED, PAGE), metavar="NAME", help=_listed())
    parser.add_argument("--models", type=names, help="lines of the table (default: all)")
    parser.add_argument(
        "--preset", choices=("tuned", "paper"), default="tuned", help="GeoF's (default: tuned)"
    )
    add_grid_arguments(parser)
    parser.add_argument("--no-run", action="store_true", help="show what is recorded, run nothing")
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
        help="efficiency: what 'geof bench --models paper --json' wrote",
    )
    parser.add_argument(
        "--page", type=Path, default=Path("docs/reproduced.md"), help="page: the file to write"
    )
    parser.add_argument(
        "--remarks", type=Path, default=Path("docs/reproduced-remarks.md"), help="page: its opening"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run what is missing, write the exhibits, say where."""
    if options.name == PAGE:
        return _write_page(options)
    if options.name in COMPUTED:
        _write(options, _computed(options))
        return 0
    request = _request(options)
    failed = 0 if options.no_run else run_grid(options, request.grid)
    if is_worker():
        return 1 if failed else 0
    from geof_paper.render.studies import exhibits

    if not options.no_run:
        request.grid.record()
    _write(options, exhibits(request))
    say_missing(request.grid)
    return 1 if failed else 0


def _request(options: argparse.Namespace) -> Request:
    from geof_paper.grid.grid import Grid, order
    from geof_paper.grid.records import ALL_SPLITS
    from geof_paper.render.exhibits import Request
    from geof_paper.studies.declared import STUDIES, choose_lines, choose_settings

    study = STUDIES[options.name]
    lines = choose_lines(study, options.models)
    settings = choose_settings(study, options.datasets)
    rows = [study.row(line, setting, options.preset) for setting in settings for line in lines]
    splits = tuple(options.splits or ALL_SPLITS[: study.splits])
    for row in rows:
        row.plan("0")  # impossible settings are told at once
    cells = order(list(dict.fromkeys(rows)), splits)
    grid = Grid(cells, options.work, options.results, study.measure)
    return Request(study, lines, settings, options.preset, splits, grid, options.data_root)


def _computed(options: argparse.Namespace) -> list[Exhibit]:
    if options.name == "efficiency":
        from geof_paper.render.efficiency import efficiency

        return efficiency(options.bench)
    from geof_paper.render.aggregate import aggregate_paper, aggregate_results

    if options.source == "paper":
        return [aggregate_paper()]
    return [aggregate_results(options.results, options.preset, options.models)]


def _write(options: argparse.Namespace, made: list[Exhibit]) -> None:
    if not made:
        raise ConfigError("Expected a part of the study to show (got none). Name other lines.")
    for exhibit in made:
        folder = exhibit.write(options.out)
        print(f"{exhibit.title}: {folder}")
        print(exhibit.table.markdown())
        if exhibit.text:
            print(exhibit.text)


def _write_page(options: argparse.Namespace) -> int:
    """Write one Markdown page of what is in the folder of exhibits."""
    from geof.io import write_atomically
    from geof_paper.render.markdown_page import markdown_page

    remarks = options.remarks.read_text() if options.remarks.exists() else ""
    text = markdown_page(options.out, options.page, remarks)
    write_atomically(options.page, text.encode())
    print(options.page)
    return 0


def _listed() -> str:
    return (
        f"one of {', '.join((*TRAINED, *COMPUTED))}; or {PAGE}: all that was written, on one page"
    )
