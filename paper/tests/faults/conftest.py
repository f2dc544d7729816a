"""The campaign's counters, and the small grid."""

from paper.tests.grid.conftest import grid
from tests.faults.conftest import pytest_collection_modifyitems, pytest_terminal_summary, tried

__all__ = ["grid", "pytest_collection_modifyitems", "pytest_terminal_summary", "tried"]
