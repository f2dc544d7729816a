"""``geof data``: the benchmarks, whether their files are right, and preparing them."""

from __future__ import annotations

import argparse
from typing import Any


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    commands.add_parser("data", help="benchmarks")
