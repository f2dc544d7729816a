"""What the commands that run grids share: flags, workers here or on a cluster, what is missing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from geof.cli.arguments import positive
from geof_paper.commands.folders import results_folder

if TYPE_CHECKING:
    from geof.executor import Executor
    from geof_paper.grid.grid import Grid


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which splits are run, by whom, for how long and where files go."""
    parser.add_argument("--datasets", type=names, help="default: all of the task")
    parser.add_argument("--splits", type=_splits, default=None, help="such as 0-9 or 0,3")
    parser.add_argument(
        "--workers", type=positive, help="processes that train (default: one per core)"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="run on a Ray cluster, or on a local Ray of --workers processes",
    )
    parser.add_argument(
        "--budget", type=_seconds, help="begin no cell that would end later, such as 30m"
    )
    parser.add_argument("--retry-failed", action="store_true", help="try failed cells again")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="for run folders")
    parser.add_argument("--results", type=Path, default=results_folder(), help="for results files")
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="raw benchmark files")


def run_grid(options: argparse.Namespace, grid: Grid) -> int:
    """Train and measure what is missing.

    Returns:
        How many cells failed.
    """
    from geof.cli.progress import stop_requests
    from geof_paper.grid.worker import train_cells

    # Workers may be elsewhere, where a relative path would be another.
    grid = replace(grid, work=grid.work.resolve())
    data_root = None if options.data_root is None else options.data_root.resolve()
    # Ray takes signals over when it starts: it comes first.
    with _executor(options, grid) as executor, stop_requests() as should_stop:
        failed = train_cells(
            grid,
            executor,
            data_root=data_root,
            budget=options.budget,
            retry=options.retry_failed,
            should_stop=should_stop,
            say=lambda text: print(text, flush=True),
        )
        stopped = should_stop()
    if stopped:
        say_missing(grid)
        raise KeyboardInterrupt
    return failed


@contextmanager
def _executor(options: argparse.Namespace, grid: Grid) -> Iterator[Executor]:
    """Yield where cells are run."""
    from geof.executor import InProcess
    from geof.processes import Processes, cores

    # Small graphs keep one core busy, not several: `geof bench --training` shows by how much.
    workers = options.workers or cores()
    if options.ray is not None:
        from geof_paper.grid.cells import Cell
        from geof_paper.grid.ray_grid import RayExecutor, revision_of

        address = None if options.ray == "local" else options.ray
        folder = partial(Cell.folder, work=grid.work)
        with RayExecutor.connected(address, workers, folder, revision_of) as executor:
            yield executor
    elif workers > 1:
        yield Processes(workers)
    else:
        yield InProcess()


def say_missing(grid: Grid) -> None:
    """Print what is not finished, with its cost."""
    missing = grid.missing()
    if not missing:
        return
    count = sum(len(entry.splits) for entry in missing)
    print(f"{count} of {len(grid.cells)} cells are not finished:")
    for entry in missing:
        print(f"  {entry}")


def names(text: str) -> list[str]:
    """Read a list with commas."""
    return [name for name in text.split(",") if name]


def _splits(text: str) -> list[str]:
    found: list[str] = []
    for part in names(text):
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
