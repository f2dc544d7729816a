"""``geof results``: run the recorded results, and render them into one page."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import positive, take_words_anywhere
from geof.errors import ConfigError

if TYPE_CHECKING:
    from geof.experiments.cells import Cell, Row


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
    run.add_argument("--tasks", type=_names, help="of node, link, graph (default: all)")
    run.add_argument("--datasets", type=_names, help="default: all of the task")
    run.add_argument(
        "--methods",
        type=_methods,
        help="ENCODER:PRESET, several with commas (default: GeoF's presets and both controls)",
    )
    run.add_argument("--splits", type=_splits, default=_splits("0-9"), help="default: 0-9")
    run.add_argument("--workers", type=positive, default=1, help="processes (default: 1)")
    run.add_argument("--budget", type=_seconds, help="begin no cell after so long, such as 30m")
    run.add_argument("--work", type=Path, default=Path("runs/results"), help="for run folders")
    run.add_argument("--results", type=Path, default=Path("results"), help="for results files")
    run.add_argument("--data-root", type=Path, metavar="DIR", help="raw benchmark files")
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
    from geof.cli.interrupts import stop_requests
    from geof.experiments.cells import Cell, choose_rows
    from geof.experiments.results import record_row
    from geof.experiments.runner import Worker

    rows = choose_rows(options.tasks, options.datasets, options.methods, tuple(options.changes))
    if options.workers > 1:
        return _spawn(options, rows)
    # Split by split, so that a run cut short has every row on the same splits.
    cells = [Cell(row, split) for split in options.splits for row in rows]

    def finished(cell: Cell) -> None:
        record_row(cell.row, options.work, options.results)

    with stop_requests() as should_stop:
        worker = Worker(
            options.work,
            options.data_root,
            should_stop,
            lambda text: print(text, flush=True),
            None if options.budget is None else time.monotonic() + options.budget,
        )
        failed = worker.run(cells, finished)
        stopped = should_stop()
    _report_missing(cells, options.work)
    if stopped:
        raise KeyboardInterrupt
    return 1 if failed else 0


def _spawn(options: argparse.Namespace, rows: list[Row]) -> int:
    """Start workers on the same list; they keep out of each other's way by themselves."""
    from geof.experiments.results import record_row

    threads = max((os.cpu_count() or 1) // options.workers, 1)
    command = [sys.executable, "-m", "geof.cli", "results", "run", *_words(options)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    workers = [subprocess.Popen(command, env=environment) for _ in range(options.workers)]
    try:
        codes = [worker.wait() for worker in workers]
    except KeyboardInterrupt:  # the terminal sent it to the workers too: they save
        for worker in workers:
            worker.wait()
        raise
    for row in rows:
        record_row(row, options.work, options.results)
    return max(codes)


def _words(options: argparse.Namespace) -> list[str]:
    """Return the options of one worker as the command line has them."""
    methods = [":".join(pair) for pair in options.methods or ()]
    lists = {"tasks": options.tasks, "datasets": options.datasets, "methods": methods}
    words = [w for name, value in lists.items() if value for w in (f"--{name}", ",".join(value))]
    words += ["--splits", ",".join(options.splits), "--work", str(options.work)]
    words += ["--results", str(options.results)]
    if options.budget is not None:
        words += ["--budget", f"{options.budget:g}s"]
    if options.data_root is not None:
        words += ["--data-root", str(options.data_root)]
    return [*words, *options.changes]


def _report_missing(cells: list[Cell], work: Path) -> None:
    missing = [cell for cell in cells if not (cell.folder(work) / "result.json").exists()]
    if missing:
        names = sorted({cell.row.name for cell in missing})
        print(f"{len(missing)} of {len(cells)} cells are not finished: {', '.join(names)}")


def render_page(options: argparse.Namespace) -> int:
    """Write the page of results."""
    from geof.data.files import write_atomically
    from geof.experiments.page import render_page as render
    from geof.experiments.results import read_records

    remarks = options.remarks.read_text() if options.remarks.exists() else ""
    records = read_records(options.results)
    if not records:
        raise ConfigError(f"Expected results files in '{options.results}' (got none).")
    write_atomically(options.out, render(records, remarks).encode())
    print(f"{len(records)} rows: {options.out}")
    return 0


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _methods(text: str) -> list[tuple[str, str]]:
    pairs = [name.partition(":") for name in _names(text)]
    if not all(preset for _, _, preset in pairs):
        raise argparse.ArgumentTypeError(f"expected ENCODER:PRESET (got {text!r})")
    return [(encoder, preset) for encoder, _, preset in pairs]


def _splits(text: str) -> list[str]:
    found: list[str] = []
    for part in _names(text):
        first, dash, last = part.partition("-")
        whole = dash and first.isdecimal() and last.isdecimal()
        found += [str(n) for n in range(int(first), int(last) + 1)] if whole else [part]
    if not found or not all(s.isdecimal() and int(s) < 10 for s in found):
        raise argparse.ArgumentTypeError(
            f"expected splits from 0 to 9, such as 0,3-5 (got {text!r})"
        )
    return found


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 30m or 2h (got {text!r})")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
