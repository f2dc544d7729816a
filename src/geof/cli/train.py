"""``geof train``: fit a network on a benchmark or on your own data."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import add_source_arguments, positive

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph
    from geof.data.splits import GraphSplit
    from geof.signature import SignatureSettings
    from geof.training.tasks import Task


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train on a benchmark or on your own data",
        description="Train, choose the epoch on validation, read the test metric once, and write "
        "a run folder.",
        epilog="Settings are KEY=VALUE words, for instance epochs=300 learning_rate=0.005 "
        "model.steps=3 signature.walk_length=8.",
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
    parser.add_argument(
        "--model", choices=("geof", "gcn"), default="geof", help="encoder (default: geof)"
    )
    parser.add_argument(
        "--split", default="0", help="number of the split or fold, or 'scaffold' (default: 0)"
    )
    parser.add_argument("--folds", type=positive, default=10, help="folds of graphs (default: 10)")
    parser.add_argument("--batch-size", type=positive, default=64, help="graphs per step")
    parser.add_argument("--out", type=Path, metavar="RUN", help="default: runs/NAME-TIME")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the data, train, print the result."""
    from dataclasses import fields

    from rich.console import Console

    from geof.cli.arguments import parse_overrides, read_training_data, require_new_folder
    from geof.cli.progress import training_meter
    from geof.signature import SignatureSettings
    from geof.training import TrainSettings, fit

    names = [field.name for field in fields(TrainSettings)]
    training, model, signature = parse_overrides(options.settings, names)
    settings = TrainSettings(**training)
    signing = SignatureSettings.from_options(signature)
    if options.out is not None:
        require_new_folder(options.out)
    data, encoder = read_training_data(options)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    out = options.out or Path("runs") / f"{data.name}-{stamp}"
    console = Console()
    notes = [*data.notes, *_unused(data)]
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
    task = build_task(data, options, signing)
    console.print(_describe(data, task), soft_wrap=True, markup=False, highlight=False)
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
                "columns": {"id": options.id, "smiles": options.smiles},
            },
            files={} if encoder is None else {"columns.json": encoder.to_json().encode()},
            on_epoch=meter.epoch,
        )
    console.print(
        f"{result.metric}: test {result.test:.2f} %, validation {result.validation:.2f} % at "
        f"epoch {result.best_epoch} of {result.epochs}",
        highlight=False,
    )
    console.print(f"Run folder: {out.resolve()}", soft_wrap=True, markup=False, highlight=False)
    return 0


def _describe(data: NodeGraph | GraphSet, task: Task) -> str:
    """Say what is about to be learned from what."""
    from geof.data.records import GraphSet

    y = [int(g.y) for g in data.graphs] if isinstance(data, GraphSet) else data.graph.y.tolist()
    counts = ", ".join(f"{name} {y.count(i)}" for i, name in enumerate(data.class_names))
    sizes = "/".join(
        str(part.size(-1)) for part in (task.split.train, task.split.validation, task.split.test)
    )
    return f"{task.in_channels} features; classes: {counts or 'none'}; split {sizes}"


def _unused(data: NodeGraph | GraphSet) -> list[str]:
    """Say what the data have and no encoder reads."""
    from geof.data.records import GraphSet

    if isinstance(data, GraphSet) and data.graphs and data.graphs[0].edge_attr is not None:
        return ["Edge features (bonds) are there and not used: the paper's model has none."]
    return []


def build_task(
    data: NodeGraph | GraphSet, options: argparse.Namespace, signature: SignatureSettings
) -> Task:
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
        return _graph_task(data, options, signature, ranked=ranked)
    build = _link_task if kind == "link" else _node_task
    return build(data, _number(options.split), signature)


def _number(split: str) -> int:
    from geof.errors import ConfigError

    if not split.isdecimal():
        raise ConfigError(f"Expected '--split' to be a number from 0 (got {split!r}).")
    return int(split)


def _node_task(data: NodeGraph, seed: int, signature: SignatureSettings) -> Task:
    from geof.data.splits import random_node_split
    from geof.training import NodeTask

    graph = data.graph
    split = random_node_split(graph.num_nodes, seed, nodes=graph.y >= 0)
    return NodeTask(data, split, signature=signature)


def _link_task(data: NodeGraph, seed: int, signature: SignatureSettings) -> Task:
    from geof.data.link_splits import random_link_split
    from geof.training import LinkTask

    graph = data.graph
    split = random_link_split(graph.edge_index, graph.num_nodes, seed)
    return LinkTask(data, split, signature=signature)


def _graph_task(
    data: GraphSet, options: argparse.Namespace, signature: SignatureSettings, *, ranked: bool
) -> Task:
    from geof.training import GraphTask

    return GraphTask(
        data,
        _graph_split(data, options),
        metric="roc_auc" if ranked else "accuracy",
        batch_size=options.batch_size,
        seed=_number(options.split) if options.split.isdecimal() else 0,
        signature=signature,
    )


def _graph_split(data: GraphSet, options: argparse.Namespace) -> GraphSplit:
    """Return a stratified fold of the labelled graphs, or OGB's scaffold split."""
    import torch

    from geof.data.graph_sets import scaffold_split
    from geof.data.splits import GraphSplit, stratified_folds
    from geof.errors import ConfigError

    if options.split == "scaffold":
        if data.name != "ogbg-molhiv":
            raise ConfigError(f"Expected ogbg-molhiv for '--split scaffold' (got '{data.name}').")
        parts = scaffold_split(options.data_root)
        train, validation, test = parts["train"], parts["valid"], parts["test"]
        return GraphSplit.fixed(
            train, validation, test, size=len(data.graphs), name="OGB scaffold split"
        )
    labels = torch.cat([graph.y.view(-1) for graph in data.graphs])
    labelled = (labels >= 0).nonzero().flatten()
    folds = stratified_folds(labels[labelled], 0, options.folds)
    number = _number(options.split)
    if number >= len(folds):
        raise ConfigError(f"Expected '--split' from 0 to {len(folds) - 1} (got {number}).")
    fold = folds[number]
    return GraphSplit(
        labelled[fold.train], labelled[fold.validation], labelled[fold.test], fold.name
    )
