"""``geof predict``: labels and probabilities for nodes, pairs, graphs and molecules."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.applied import (
    add_output_arguments,
    add_run_arguments,
    open_run,
    read_data,
    require_output,
    say_notes,
    write_table,
)
from geof.cli.arguments import positive
from geof.errors import ConfigError

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph
    from geof.data.tables import EdgeOptions
    from geof.training.predict import Run

_SUFFIXES = (".csv", ".parquet")


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="labels and probabilities for new data",
        description="Write the label and the probabilities of every node, pair or graph, with "
        "your own identifiers; for the run's own data unless you name others. For unseen nodes of "
        "a known graph give tables that hold the known and the new nodes.",
    )
    add_run_arguments(parser)
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="candidate pairs of nodes")
    parser.add_argument(
        "--piece-size",
        type=positive,
        metavar="N",
        help="compute nodes in pieces of N neighbours, for graphs that fill the memory",
    )
    add_output_arguments(parser, _SUFFIXES)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read run and data, predict, write the table."""
    require_output(options, _SUFFIXES)
    opened = open_run(options)
    _require_pairs_for_links(options, opened)
    # What a run's own settings say about its table of edges is not about this table of pairs.
    pair_options: EdgeOptions = {
        "source": options.source,
        "target": options.target,
        "edge_columns": options.edge_columns or "refuse",
    }
    data = read_data(options, opened)
    table = _predict(options, opened, data, pair_options)
    say_notes(options, opened, data.notes)
    write_table(options.out, table)
    if options.json:
        print(json.dumps(_summary(options, opened, table), indent=2))
    else:
        print(f"{len(table['prediction'])} predictions: {options.out}")
    return 0


def _require_pairs_for_links(options: argparse.Namespace, opened: Run) -> None:
    if (options.pairs is not None) != (opened.config.task == "link"):
        raise ConfigError(
            "Expected '--pairs FILE', the pairs to score: this is a run of the link task."
            if options.pairs is None
            else "Expected no '--pairs': scoring them takes a run of the link task (got one of the "
            f"{opened.config.task} task)."
        )


def _predict(
    options: argparse.Namespace,
    opened: Run,
    data: NodeGraph | GraphSet,
    pair_options: EdgeOptions,
) -> dict[str, list[Any]]:
    from geof.data.records import GraphSet
    from geof.training.predict import (
        node_ids,
        predict_graphs,
        predict_nodes,
        predict_pairs,
        table_of,
    )

    if isinstance(data, GraphSet):
        return table_of(predict_graphs(opened, data), ["id"])
    if options.pairs is None:
        return table_of(predict_nodes(opened, data, options.piece_size), ["id"])
    from geof.data.tables import read_pairs

    pairs = read_pairs(options.pairs, node_ids(data), **pair_options)
    return table_of(predict_pairs(opened, data, pairs), ["source", "target"])


def _summary(
    options: argparse.Namespace, opened: Run, table: dict[str, list[Any]]
) -> dict[str, Any]:
    return {
        "out": str(options.out),
        "rows": len(table["prediction"]),
        "predictions": dict(sorted(Counter(table["prediction"]).items())),
        "epoch": opened.epoch,
        "finished": opened.finished,
    }
