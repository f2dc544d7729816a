"""Where the commands look when nobody says."""

from __future__ import annotations

from pathlib import Path


def results_folder() -> Path:
    """Return where recorded runs are: the repository's own from its root, else ``results``."""
    own = Path("paper", "results")
    return own if own.is_dir() else Path("results")
