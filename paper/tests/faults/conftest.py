"""The campaign's counters, and the small grid."""

from paper.tests.grid.conftest import grid
from tests.faults.conftest import pytest_collection_modifyitems, tried

__all__ = ["grid", "pytest_collection_modifyitems", "tried"]
