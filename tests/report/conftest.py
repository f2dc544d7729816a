"""Each run is trained once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.runs import RUNS


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Return what gives the finished run of a task: ``runs("node")``; not to be changed."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = RUNS[kind](tmp_path_factory.mktemp(kind))
        return made[kind]

    return get
