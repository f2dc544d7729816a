"""The numbers the paper prints, to stand beside ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Printed:
    """Mean and standard deviation, in percent."""

    mean: float
    deviation: float


@cache
def paper_tables() -> dict[str, Any]:
    """Return the paper's tables as they ship with the package."""
    text = (resources.files("geof_paper.studies") / "paper_tables.json").read_text()
    tables: dict[str, Any] = json.loads(text)
    return tables


def printed(task: str, dataset: str, method: str | None = "GeoF") -> Printed | None:
    """Return what the paper prints for a method, ``None`` where it prints nothing.

    The second-order controls stand in a table of their own, for nodes and graphs.
    """
    tables = paper_tables()
    rows = tables["graph"] if task == "graph" else tables["node_link"]
    name = dataset if task == "graph" else f"{dataset}/{task}"
    cell = rows.get(method, {}).get(name)
    if cell is None and task != "link":
        cell = tables["second_order"].get(method, {}).get(dataset)
    return None if cell is None else Printed(cell["mean"], cell["std"])
