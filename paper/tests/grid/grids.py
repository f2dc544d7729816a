"""A small grid, run in this process."""

from __future__ import annotations

from geof_paper.grid.cells import Row
from geof_paper.grid.grid import Grid
from geof_paper.grid.records import read_runs
from geof_paper.grid.worker import train_cells

PLAIN = Row("node", "CiteSeer", "geof", "tuned")
FROZEN = Row("node", "CiteSeer", "geof", "tuned", ("options.evolution=frozen",), "ablation")


def run(grid: Grid, **options) -> tuple[int, list[str]]:
    """Train what is missing; return how many cells failed and what was said."""
    said: list[str] = []
    return train_cells(grid, say=said.append, **options), said


def scores(grid: Grid) -> list[tuple]:
    """Return what was recorded; times differ from run to run."""
    names = ("row", "split", "test", "validation", "best_epoch", "split_hash")
    return [tuple(getattr(run, name) for name in names) for run in read_runs(grid.results)]
