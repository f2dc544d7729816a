"""``geof train``: fit a network on a benchmark or on your own data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import add_source_arguments, positive

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph
    from geof.training.tasks import Task


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train on a benchmark or on your own data",
        description="Train, choose the epoch on validation, read the test metric once, and write "
        "a run folder.",
        epilog="Settings are KEY=VALUE words, for instance epochs=300 learning_rate=0.005 "
        "model.steps=3.",
    )
    add_source_arguments(parser)
    parser.add_argument("--label", metavar="COLUMN", help="the column to predict")
    parser.add_argument(
        "--drop", action="append", default=[], metavar="COLUMN", help="leave a node column out"
    )
    parser.add_argument(
        "--missing",
        choices=("error", "mean"),
        default="error",
        help="what to do with missing numbers (default: error)",
    )
    parser.add_argument("--task", choices=("node", "link", "graph"), help="default: by the data")
    parser.add_argument("--model", default="geof", help="encoder: geof or gcn (default: geof)")
    parser.add_argument("--split", type=int, default=0, help="which split or fold (default: 0)")
    parser.add_argument("--batch-size", type=positive, default=64, help="graphs per step")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="new run folder")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the data, train, print the result."""
    from dataclasses import fields

    from rich.console import Console

    from geof.cli.arguments import parse_overrides, read_training_data, require_new_folder
    from geof.cli.progress import training_meter
    from geof.data.files import write_atomically
    from geof.training import TrainSettings, fit

    out = require_new_folder(options.out)
    names = [field.name for field in fields(TrainSettings)]
    training, model = parse_overrides(options.settings, names)
    settings = TrainSettings(**training)
    data, encoder = read_training_data(options)
    console = Console()
    notes = [*data.notes, *_unused(data)]
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
    task = build_task(data, options)
    with training_meter(console, settings.epochs, quiet=options.quiet) as meter:
        meter.start(f"{task.dataset}: {options.model}, {task.kind} task, {task.split_name}")
        _, result = fit(
            task,
            settings,
            encoder=options.model,
            options=model,
            out=out,
            record={
                "data": {"content_hash": data.content_hash, "notes": notes},
                "class_names": list(data.class_names),
            },
            on_epoch=meter.epoch,
        )
    if encoder is not None:
        write_atomically(out / "columns.json", encoder.to_json().encode())
    console.print(
        f"{result.metric}: test {result.test:.2f} %, validation {result.validation:.2f} % at "
        f"epoch {result.best_epoch} of {result.epochs}",
        highlight=False,
    )
    console.print(f"Run folder: {out.resolve()}", soft_wrap=True, markup=False, highlight=False)
    return 0


def _unused(data: NodeGraph | GraphSet) -> list[str]:
    """Say what the data have and no encoder reads."""
    from geof.data.records import GraphSet

    if isinstance(data, GraphSet) and data.graphs and data.graphs[0].edge_attr is not None:
        return ["Edge features (bonds) are there and not used: the paper's model has none."]
    return []


def build_task(data: NodeGraph | GraphSet, options: argparse.Namespace) -> Task:
    """Return the task the data and the options ask for.

    Raises:
        ConfigError: If the data cannot serve the task.
    """
    from geof.data.catalogue import find
    from geof.data.records import GraphSet
    from geof.errors import ConfigError

    default = "graph" if isinstance(data, GraphSet) else "node"
    kind = options.task or default
    if (kind == "graph") != isinstance(data, GraphSet):
        raise ConfigError(
            f"Expected '--task' to fit the data, {default} or link for one graph and graph for a "
            f"set of graphs (got {kind!r} for '{data.name}')."
        )
    if isinstance(data, GraphSet):
        ranked = options.dataset is not None and find(options.dataset).metrics == ("ROC-AUC",)
        return _graph_task(data, options, ranked=ranked)
    return _link_task(data, options.split) if kind == "link" else _node_task(data, options.split)


def _node_task(data: NodeGraph, seed: int) -> Task:
    from geof.data.splits import random_node_split
    from geof.training import NodeTask

    graph = data.graph
    return NodeTask(data, random_node_split(graph.num_nodes, seed, nodes=graph.y >= 0))


def _link_task(data: NodeGraph, seed: int) -> Task:
    from geof.data.link_splits import random_link_split
    from geof.training import LinkTask

    graph = data.graph
    return LinkTask(data, random_link_split(graph.edge_index, graph.num_nodes, seed))


def _graph_task(data: GraphSet, options: argparse.Namespace, *, ranked: bool) -> Task:
    import torch

    from geof.data.splits import stratified_folds
    from geof.errors import ConfigError
    from geof.training import GraphTask

    folds = stratified_folds(torch.cat([graph.y.view(-1) for graph in data.graphs]), 0)
    if not 0 <= options.split < len(folds):
        raise ConfigError(f"Expected '--split' from 0 to {len(folds) - 1} (got {options.split}).")
    return GraphTask(
        data,
        folds[options.split],
        metric="roc_auc" if ranked else "accuracy",
        batch_size=options.batch_size,
    )
