"""Grids of tests train in this process, where stand-ins for data and presets are."""

import pytest


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """Let a grid find one core, so that it starts no processes unless told to."""
    monkeypatch.setattr("geof.processes.cores", lambda: 1)
