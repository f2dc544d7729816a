"""``geof results``: run the recorded results, and render them into one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from geof.cli.arguments import take_words_anywhere
from geof.errors import ConfigError
from geof_paper.commands.grid import add_grid_arguments, is_worker, names, run_grid, say_missing


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "results",
        help="run and show the recorded results",
        description="Run the paper's eighteen settings and keep one small JSON file per row.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = actions.add_parser(
        "run",
        help="run what is missing",
        description="Train every cell (a method on a split of a setting) that is not finished, and "
        "rewrite the results files. Interrupted or killed, the same command goes on.",
        epilog="KEY=VALUE words change the preset: an ablation, which does not read the test part.",
    )
    run.add_argument("--tasks", type=names, help="of node, link, graph (default: all)")
    run.add_argument(
        "--methods",
        type=_methods,
        help="ENCODER:PRESET, several with commas (default: every compared method)",
    )
    add_grid_arguments(run)
    run.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes of the preset")
    take_words_anywhere(run, "changes")
    run.set_defaults(run=run_cells)
    render = actions.add_parser("render", help="write the page of results")
    render.add_argument("--results", type=Path, default=Path("results"), help="results files")
    render.add_argument("--remarks", type=Path, default=Path("docs/results-remarks.md"))
    render.add_argument("--out", type=Path, default=Path("docs/results.md"))
    render.set_defaults(run=render_page)


def run_cells(options: argparse.Namespace) -> int:
    """Train the missing cells, here or in several processes."""
    from geof_paper.grid.cells import choose_rows
    from geof_paper.grid.grid import Grid, order
    from geof_paper.grid.records import ALL_SPLITS

    rows = choose_rows(options.tasks, options.datasets, options.methods, tuple(options.changes))
    grid = Grid(order(rows, options.splits or ALL_SPLITS), options.work, options.results)
    failed = run_grid(options, grid)
    if not is_worker():
        grid.record()
        say_missing(grid)
    return 1 if failed else 0


def render_page(options: argparse.Namespace) -> int:
    """Write the page of results."""
    from geof.io import write_atomically
    from geof_paper.grid.records import read_records
    from geof_paper.render.results_markdown import render_page as render

    remarks = options.remarks.read_text() if options.remarks.exists() else ""
    records = read_records(options.results)
    if not records:
        raise ConfigError(f"Expected results files in '{options.results}' (got none).")
    write_atomically(options.out, render(records, remarks).encode())
    print(f"{len(records)} rows: {options.out}")
    return 0


def _methods(text: str) -> list[tuple[str, str]]:
    pairs = [name.partition(":") for name in names(text)]
    if not all(preset for _, _, preset in pairs):
        raise argparse.ArgumentTypeError(f"expected ENCODER:PRESET (got {text!r})")
    return [(encoder, preset) for encoder, _, preset in pairs]
