"""Spaces of the declared search, ``METHOD/TASK.yaml``, written down before it was run."""

from pathlib import Path

SEARCHES = Path(__file__).parent
