"""The same grid on a Ray cluster: one task per cell, brought home when it is done.

Machines need this package (the same code, which is checked) and the raw data below the same
``data_root``; they need not share a disk. Where they do, a cell whose machine died is continued
from its last saved state; otherwise it is begun again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from geof.errors import ConfigError
from geof.io import write_atomically, write_json
from geof.training.run_folder import read_result
from geof_paper.grid.cells import Cell
from geof_paper.grid.grid import Grid
from geof_paper.grid.worker import FAILURE, Worker

RETRIES = 3
"""How often a cell whose process died is begun again."""


@dataclass(frozen=True)
class Outcome:
    """What a task brings home.

    Attributes:
        said: What its worker had to say.
        files: The run folder's files by name.
        failed: Whether the cell, or a measure of it, failed.
    """

    said: tuple[str, ...]
    files: dict[str, bytes]
    failed: bool


def run_on_ray(
    grid: Grid,
    *,
    address: str | None,
    workers: int,
    data_root: Path | None,
    say: Callable[[str], None],
    budget: float | None = None,
    retry: bool = False,
) -> int:
    """Train and measure every missing cell of a grid on Ray.

    Args:
        grid: What to run.
        address: Of a cluster, such as ``auto`` or ``ray://head:10001``; ``None`` starts Ray here.
        workers: How many processes a Ray started here has.
        data_root: Where raw files are, on every machine.
        say: Told what happens.
        budget: Begin no cell that would end after so many seconds.
        retry: Whether failed cells are tried again.

    Returns:
        How many cells failed.

    Raises:
        ConfigError: If Ray is not installed or the cluster cannot be reached.
    """
    grid = replace(grid, work=grid.work.resolve(), results=grid.results.resolve())
    ray = _ray(address, workers)
    deadline = None if budget is None else time.monotonic() + budget
    begin = ray.remote(num_cpus=1, max_retries=RETRIES)(_train)
    waiting = _wanted(grid, deadline, retry)
    running: dict[Any, Cell] = {}
    failed = 0
    try:
        while True:
            room = int(ray.cluster_resources().get("CPU", 1)) - len(running)
            for cell in _few(waiting, room):
                running[begin.remote(cell, cell.code, grid, data_root, retry)] = cell
            if not running:
                return failed
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            failed += _bring_home(ray, done, running.pop(done), grid, say)
    finally:
        ray.shutdown()


def _wanted(grid: Grid, deadline: float | None, retry: bool) -> Iterator[Cell]:
    """Yield what is still to be run, judged when its turn comes."""
    judge = Worker(
        grid.work,
        deadline=deadline,
        seconds=grid.seconds,
        is_done=grid.is_done,
        retry=retry,
    )
    unmeasured = set(grid.unmeasured())
    for cell in grid.cells:
        if cell in unmeasured or (not judge.is_settled(cell) and judge.fits(cell)):
            yield cell


def _few(cells: Iterator[Cell], count: int) -> list[Cell]:
    return [cell for _, cell in zip(range(count), cells, strict=False)]


def _train(cell: Cell, code: str, grid: Grid, data_root: Path | None, retry: bool) -> Outcome:
    """Run one cell in a process of the cluster."""
    if cell.code != code:
        raise ConfigError(
            f"Expected the code of the machine that started the grid ({code}; got {cell.code} "
            "here). Install the same version everywhere."
        )
    torch.set_num_threads(1)  # what the task has asked for
    said: list[str] = []
    worker = Worker(grid.work, data_root, say=said.append, retry=retry)
    failed = worker.run([cell], grid.measure_cell)
    if cell in grid.unmeasured():
        failed += worker.measure([cell], grid.measure_cell)
    folder = cell.folder(grid.work)
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return Outcome(tuple(said), files, bool(failed))


def _bring_home(ray: Any, done: Any, cell: Cell, grid: Grid, say: Callable[[str], None]) -> int:
    """Write a task's files here unless they are; return 1 if the cell failed."""
    folder = cell.folder(grid.work)
    try:
        outcome: Outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, ConfigError):
            raise cause from error
        folder.mkdir(parents=True, exist_ok=True)
        if read_result(folder) is None:
            write_json(folder / FAILURE, {"error": f"{type(error).__name__}: {error}"})
        say(f"{cell.row.name} split {cell.split} failed: {error}")
        return 1
    _write_files(folder, outcome.files)
    for text in outcome.said:
        say(text)
    return int(outcome.failed)


def _write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Bring a run folder home; where the disk is shared, all of it is there already.

    What an earlier, unfinished attempt left here is not part of that run and goes.
    """
    finished = folder.is_dir() and read_result(folder) is not None
    if not finished and folder.is_dir():
        for path in folder.iterdir():
            if path.is_file() and path.name[0] != "." and path.name not in files:
                path.unlink()
    # The result comes last: with it the cell counts as finished.
    for name in sorted(files, key=lambda name: name == "result.json"):
        path = folder / name
        if not (finished and path.exists()):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, files[name])


def _ray(address: str | None, workers: int) -> Any:
    """Return Ray, connected."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "Expected Ray for '--ray'. Install it with: pip install 'geof[ray]'"
        ) from error
    where: dict[str, Any] = {"num_cpus": workers} if address is None else {"address": address}
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"Expected a Ray cluster at '{address}' ({error}).") from error
    return ray
