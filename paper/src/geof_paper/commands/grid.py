"""What the commands that run grids share: flags, workers here or on a cluster, what is missing."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from geof.cli.arguments import positive
from geof_paper.commands.folders import results_folder

if TYPE_CHECKING:
    from geof_paper.grid.grid import Grid

_WORKER = "GEOF_GRID_WORKER"
"""Set for the processes ``--workers`` starts: they train and leave the rest to their parent."""


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which splits are run, by whom, for how long and where files go."""
    parser.add_argument("--datasets", type=names, help="default: all of the task")
    parser.add_argument("--splits", type=_splits, default=None, help="such as 0-9 or 0,3")
    parser.add_argument("--workers", type=positive, default=1, help="processes (default: 1)")
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
        How many cells failed, in this process or its workers.
    """
    if options.ray is not None:
        return _run_on_ray(options, grid)
    if options.workers > 1 and not is_worker():
        return _spawn(options, grid)
    return _run_here(options, grid)


def is_worker() -> bool:
    """Return whether this process was started by :func:`run_grid` to train only."""
    return _WORKER in os.environ


def say_missing(grid: Grid) -> None:
    """Print what is not finished, with its cost."""
    missing = grid.missing()
    if not missing:
        return
    count = sum(len(entry.splits) for entry in missing)
    print(f"{count} of {len(grid.cells)} cells are not finished:")
    for entry in missing:
        print(f"  {entry}")


def _run_here(options: argparse.Namespace, grid: Grid) -> int:
    from geof.cli.interrupts import stop_requests
    from geof_paper.grid.worker import Worker

    with stop_requests() as should_stop:
        worker = Worker(
            grid.work,
            data_root=options.data_root,
            should_stop=should_stop,
            say=lambda text: print(text, flush=True),
            deadline=None if options.budget is None else time.monotonic() + options.budget,
            seconds=grid.seconds,
            is_done=grid.is_done,
            retry=options.retry_failed,
        )
        failed = worker.run(grid.cells, grid.finish)
        if not is_worker():
            failed += worker.measure(grid.unmeasured(), grid.finish)
        stopped = should_stop()
    if stopped:
        say_missing(grid)
        raise KeyboardInterrupt
    return failed


def _spawn(options: argparse.Namespace, grid: Grid) -> int:
    """Start the same command several times over; its processes keep out of each other's way."""
    threads = max((os.cpu_count() or 1) // options.workers, 1)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, _WORKER: "1"}
    command = [sys.executable, "-m", "geof.cli", *options.words]
    workers = [subprocess.Popen(command, env=environment) for _ in range(options.workers)]
    try:
        codes = [worker.wait() for worker in workers]
    except KeyboardInterrupt:  # the terminal sent it to the workers too: they save
        for worker in workers:
            worker.wait()
        raise
    if any(code not in (0, 1) for code in codes):
        print(f"geof: workers ended with exit codes {codes}", file=sys.stderr)
    # Cells that a killed worker had begun, and measures of cells trained earlier.
    rest = {"budget": None if options.budget is None else 0.0, "retry_failed": False}
    left = _run_here(argparse.Namespace(**{**vars(options), **rest}), grid)
    return left + sum(code != 0 for code in codes)


def _run_on_ray(options: argparse.Namespace, grid: Grid) -> int:
    from geof_paper.grid.ray_grid import run_on_ray

    return run_on_ray(
        grid,
        address=None if options.ray == "local" else options.ray,
        workers=options.workers,
        data_root=options.data_root,
        say=lambda text: print(text, flush=True),
        budget=options.budget,
        retry=options.retry_failed,
    )


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
