"""A grid killed anywhere, and records with a bit wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from geof.errors import GeofError
from geof_paper.grid import records
from geof_paper.grid.grid import Grid, order
from geof_paper.grid.records import read_failures, read_records, read_runs
from geof_paper.grid.worker import train_cells
from paper.tests.grid.grids import PLAIN, run
from tests.faults.harness import tries
from tests.faults.test_bit_flips import flipped
from tests.faults.test_crashes import survives
from tests.faults.test_disk import fills_up


@pytest.fixture
def make(tiny, small_presets):
    """Return what makes a grid in a folder, as 'geof results run' trains and records it."""

    def made(folder: Path) -> Callable[[], Any]:
        grid = Grid(order([PLAIN], ("0",)), folder / "work", folder / "results")

        def results_run() -> int:
            failed = train_cells(grid)
            grid.record()
            return failed

        return results_run

    return made


def test_a_grid(make, tmp_path, tried):
    survives(make, tmp_path, tried)


def test_a_grid_on_a_disk_that_is_full_from_some_moment_on(make, tmp_path, tried):
    fills_up(make, tmp_path, tried)


def test_records(grid, tried):
    """They are text under version control: a line that cannot be a run is named."""
    run(replace(grid, cells=grid.cells[:2]))
    path, refused = grid.results / "node.jsonl", 0
    for _ in flipped(path, tries(60, 3000)):
        records._parsed.cache_clear()  # written more often than the clock of files ticks
        try:
            assert isinstance(read_runs(grid.results), list)
            read_failures(grid.results)
            read_records(grid.results)
        except GeofError:
            refused += 1
        tried()
    assert refused > 0
