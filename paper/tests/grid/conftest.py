"""A grid of two rows on two splits."""

from __future__ import annotations

import pytest

from geof_paper.grid.grid import Grid, order
from paper.tests.grid.grids import FROZEN, PLAIN


@pytest.fixture
def grid(tiny, small_presets, tmp_path):
    """Return a grid of small runs on small data."""
    return Grid(order([PLAIN, FROZEN], ("0", "1")), tmp_path / "work", tmp_path / "results")
