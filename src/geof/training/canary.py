"""Canaries: tiny trainings whose numbers tell whether recorded results are still valid.

A recorded result belongs to numerics, not to source text. Each method has a canary per preset and
task: a few epochs on embedded data, in float64 on one thread, with the preset's own options. Losses
and predictions are stored beside the method. As long as a canary gives the stored numbers, beyond
the rounding that other instruction sets cause, runs recorded with the method are those the present
code would give. When one moves, either the change is undone or the method's ``revision`` is raised,
and the runs recorded with an earlier one are stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from geof.data.link_splits import random_link_split
from geof.data.node_graphs import digits_graph
from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import random_node_split, stratified_folds
from geof.errors import ConfigError
from geof.io import read_json, write_atomically
from geof.methods.interface import TaskKind
from geof.methods.registry import NONE, get_method, load_preset, preset_names
from geof.training.checkpoint import EpochReport
from geof.training.config import RunConfig
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Task
from geof.training.trainer import Trainer, Watch

TOLERANCE = 1e-6
"""Largest relative difference that rounding may cause; other instruction sets stay below 5e-8."""

TASKS: tuple[TaskKind, ...] = ("node", "link", "graph")

_NODES = 160
_SHOWN = 24  # predictions kept


def canaries(method: str) -> list[str]:
    """Return the names of a method's canaries, ``"PRESET TASK"``."""
    presets = {task: [p for p in preset_names(method, task) if p != NONE] for task in TASKS}
    return [f"{preset} {task}" for task in TASKS for preset in presets[task] or [NONE]]


def sing(method: str, name: str) -> dict[str, Any]:
    """Train a canary and return its numbers as plain values.

    Args:
        method: A registered method.
        name: One of :func:`canaries`.
    """
    preset, task_name = name.split()
    reports: list[EpochReport] = []
    with _reproducible():
        config = _config(method, preset, task_name)
        task = _task(config)
        trainer = Trainer(config, task, watch=Watch(on_epoch=reports.append))
        result = trainer.fit()
        prediction = _prediction(trainer, task)
    return {
        "loss": [report.loss for report in reports],
        "validation_loss": [report.validation_loss for report in reports],
        "prediction": prediction.flatten()[:_SHOWN].tolist(),
        "best_epoch": result.best_epoch,
    }


def difference(stored: Mapping[str, Any], heard: Mapping[str, Any]) -> float:
    """Return the largest relative difference between two canaries' numbers.

    It is infinite where they do not even have the same form.
    """
    if stored["best_epoch"] != heard["best_epoch"]:
        return float("inf")
    largest = 0.0
    for name in ("loss", "validation_loss", "prediction"):
        if len(stored[name]) != len(heard[name]):
            return float("inf")
        for before, now in zip(stored[name], heard[name], strict=True):
            if before is None or now is None:
                largest = largest if before is now else float("inf")
            else:
                largest = max(largest, abs(before - now) / max(1.0, abs(before)))
    return largest


def canary_file(method: str) -> Path:
    """Return where a method's canaries are stored: ``canaries.json`` beside its module."""
    module = sys.modules[get_method(method).build.__module__]
    assert module.__file__ is not None  # a method is defined in a file
    return Path(module.__file__).with_name("canaries.json")


def stored_canaries(method: str) -> dict[str, Any]:
    """Return the stored numbers of a method, ``revision`` and ``canaries``; empty if none are."""
    path = canary_file(method)
    if not path.is_file():
        return {}
    return dict(_read_stored(path, path.stat().st_mtime_ns).get(method) or {})


@lru_cache(maxsize=4)
def _read_stored(path: Path, changed: int) -> dict[str, Any]:
    """Return a file of canaries, read once as long as it stays as it is."""
    content: dict[str, Any] = read_json(path, "stored canaries")
    return content


def vouched_revision(method: str, task: str) -> int | None:
    """Return the revision of a method that stored canaries vouch for on a task, if any."""
    stored = stored_canaries(method)
    known = any(name.endswith(f" {task}") for name in stored.get("canaries", {}))
    return int(stored["revision"]) if known else None


def require_canaries(method: str) -> None:
    """Check that a method gives its stored numbers.

    Raises:
        ConfigError: If a canary moved or is not stored, or the method has another revision than
            the stored ones; says which, by how much, and what to do.
    """
    stored = stored_canaries(method)
    _require_unmoved(method, stored, _all_numbers(method), set(canaries(method)))


def store_canaries(method: str) -> bool:
    """Store a method's canaries and revision; return whether anything had to be written.

    Raises:
        ConfigError: If stored numbers moved and the revision was not raised above theirs.
    """
    stored, numbers = stored_canaries(method), _all_numbers(method)
    revision = get_method(method).revision
    before = stored.get("canaries", {})
    if stored and revision <= stored["revision"]:
        _require_unmoved(method, stored, numbers, numbers.keys() & before.keys())
        numbers = {name: before.get(name, found) for name, found in numbers.items()}
        if numbers == before:
            return False
    path = canary_file(method)
    content = read_json(path, "stored canaries") if path.is_file() else {}
    content[method] = {"revision": revision, "canaries": numbers}
    write_atomically(path, canary_text(content).encode())
    return True


def _all_numbers(method: str) -> dict[str, dict[str, Any]]:
    return {name: sing(method, name) for name in canaries(method)}


def _require_unmoved(
    method: str, stored: Mapping[str, Any], numbers: Mapping[str, Any], names: Set[str]
) -> None:
    """Refuse numbers that are not the stored ones, or another revision than theirs."""
    before, revision = stored.get("canaries", {}), get_method(method).revision
    moved = [f"'{name}' is not stored" for name in sorted(names - before.keys())]
    for name in sorted(names & before.keys()):
        size = difference(before[name], numbers[name])
        if not size <= TOLERANCE:  # NaN is not
            moved.append(f"'{name}' by {size:.1e}")
    known = stored.get("revision", 0)
    if not moved and known == revision:
        return
    raise ConfigError(
        f"Expected the stored numbers of method '{method}' (stored for revision {known}; it has "
        f"{revision}), but canaries moved: {', '.join(moved) or 'none'}; rounding explains "
        f"{TOLERANCE:.0e}. Undo the change; or, if its numbers are meant to change, give it "
        f"revision={known + 1} where it is registered and run: geof results canaries --write. "
        "That marks its recorded runs as stale."
    )


def canary_text(content: Mapping[str, Any]) -> str:
    """Return stored canaries as JSON with a line for each, so that a change can be read."""
    methods = []
    for method, stored in sorted(content.items()):
        lines = [
            f"{json.dumps(name)}: {json.dumps(numbers, allow_nan=False)}"
            for name, numbers in sorted(stored["canaries"].items())
        ]
        listed = ",\n    ".join(lines)
        about = f'"revision": {stored["revision"]}, "canaries": {{\n    {listed}\n  }}'
        methods.append(f"  {json.dumps(method)}: {{{about}}}")
    return "{\n" + ",\n".join(methods) + "\n}\n"


def _config(method: str, preset: str, task: str) -> RunConfig:
    """Return a preset cut to three epochs."""
    given = load_preset(method, preset, task)
    short: dict[str, Any] = {"epochs": 3, "patience": None, "evaluate_every": 1, "device": "cpu"}
    if given.get("warmup"):
        short["warmup"] = 1
    if given.get("schedule") == "step":
        short["decay_every"] = 2
    if task == "graph":
        short["batch_size"] = 8
    if (given.get("pretraining") or {}).get("epochs"):
        short["pretraining"] = {"epochs": 2}
    return RunConfig.parse({"method": method, "preset": preset, "task": task}, short)


def _task(config: RunConfig) -> Task:
    if config.task == "graph":
        graphs = _graph_set()
        labels = torch.cat([graph.y for graph in graphs.graphs])
        split = stratified_folds(labels, 0, 5)[0]
        return GraphTask(graphs, split, signature=config.signature, training=config.training)
    data = _node_graph()
    if config.task == "link":
        links = random_link_split(data.graph.edge_index, _NODES, 0)
        return LinkTask(data, links, signature=config.signature, training=config.training)
    nodes = random_node_split(_NODES, 0)
    return NodeTask(data, nodes, signature=config.signature, training=config.training)


def _node_graph() -> NodeGraph:
    """Return the first digits, joined as in the whole graph, in three classes."""
    whole = digits_graph()
    inside = (whole.edge_index < _NODES).all(0)
    graph = Data(
        x=whole.x[:_NODES].double(),
        edge_index=whole.edge_index[:, inside],
        y=whole.y[:_NODES] % 3,
    )
    return NodeGraph("canary", graph, ("0", "1", "2"))


def _graph_set() -> GraphSet:
    """Return rings of digits with the edges among them, in two classes."""
    whole = digits_graph()
    graphs = []
    for number in range(40):
        size, first = 5 + number % 7, number * 12
        inside = ((whole.edge_index >= first) & (whole.edge_index < first + size)).all(0)
        ring = torch.arange(size)
        ring = torch.stack([ring, (ring + 1) % size])
        edges = torch.cat([whole.edge_index[:, inside] - first, ring, ring.flip(0)], dim=1)
        key = (edges[0] * size + edges[1]).unique()
        graphs.append(
            Data(
                x=whole.x[first : first + size, 16:32].double().contiguous(),
                edge_index=torch.stack([key // size, key % size]),
                y=torch.tensor([number % 2]),
            )
        )
    return GraphSet("canaries", graphs, ("0", "1"))


@torch.no_grad()
def _prediction(trainer: Trainer, task: Task) -> Tensor:
    network = trainer.network.eval()
    if isinstance(task, GraphTask):
        return network(task.inputs_of(task.split.test))  # type: ignore[no-any-return]
    if isinstance(task, LinkTask):
        pairs = torch.cat([task.split.test, task.split.test_negatives], dim=1)
        return network(task.inputs, pairs)  # type: ignore[no-any-return]
    assert isinstance(task, NodeTask)
    return network(task.inputs)[task.split.test]  # type: ignore[no-any-return]


@contextmanager
def _reproducible() -> Iterator[None]:
    """One thread, double precision, and torch's random state left as it was."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
