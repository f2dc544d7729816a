"""``geof predict``: labels and probabilities for new nodes, pairs, graphs and molecules."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import (
    add_source_arguments,
    edge_options,
    load_benchmark,
    positive,
    require_one_source,
)
from geof.errors import ConfigError, DataError

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph
    from geof.training.prediction import Run


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="apply a finished run to data",
        description="Write the label and the probabilities of every node, pair or graph, with "
        "your own identifiers. For unseen nodes of a known graph give tables that hold the known "
        "and the new nodes.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run folder of 'geof train'")
    add_source_arguments(parser)
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="candidate pairs of nodes")
    parser.add_argument(
        "--piece-size",
        type=positive,
        metavar="N",
        help="compute nodes in pieces of N neighbours, for graphs that fill the memory",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".csv or .parquet")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read run and data, predict, write the table."""
    from geof.training.prediction import (
        Run,
        predict_graphs,
        predict_nodes,
        predict_pairs,
        table_of,
    )

    if options.out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"Expected '--out' to end in .csv or .parquet (got '{options.out}').")
    opened = Run.open(options.folder)
    if (options.pairs is not None) != (opened.spec.task == "link"):
        raise ConfigError(
            "Expected '--pairs FILE', the pairs to score: this is a run of the link task."
            if options.pairs is None
            else "Expected no '--pairs': scoring them takes a run of the link task (got one of the "
            f"{opened.spec.task} task)."
        )
    data = _read(options, opened)
    from geof.data.records import GraphSet

    if isinstance(data, GraphSet):
        table = table_of(predict_graphs(opened, data), ["id"])
    elif options.pairs is None:
        table = table_of(predict_nodes(opened, data, options.piece_size), ["id"])
    else:
        from geof.data.tables import read_pairs

        ids = data.node_ids or tuple(map(str, range(data.graph.num_nodes)))
        pairs = read_pairs(options.pairs, ids, **edge_options(options))
        table = table_of(predict_pairs(opened, data, pairs), ["source", "target"])
    for note in data.notes:
        print(f"note: {note}")
    _write(options.out, table)
    print(f"{len(table['prediction'])} predictions: {options.out}")
    return 0


def _read(options: argparse.Namespace, opened: Run) -> NodeGraph | GraphSet:
    """Read the data through the schema the run was trained with."""
    source = require_one_source(options)
    if source == "molecules":
        from geof.data.molecules_table import read_molecules

        return read_molecules(
            options.molecules,
            smiles=options.smiles or opened.columns.get("smiles") or "smiles",
            id_column=options.id or opened.columns.get("id"),
        )
    if source == "nodes":
        from geof.data.columns import ColumnEncoder
        from geof.data.tables import encode_new_graph

        schema = opened.folder / "columns.json"
        if not schema.is_file():
            raise DataError(
                f"Expected '{schema}', which a run trained on tables has. Predict with the kind "
                "of data the run was trained on."
            )
        encoder = ColumnEncoder.from_json(schema.read_text())
        return encode_new_graph(options.nodes, options.edges, encoder, **edge_options(options))
    if source == "npz":
        from geof.data.formats import from_npz

        return from_npz(
            options.npz,
            class_names=opened.class_names,
            edge_columns=options.edge_columns or "refuse",
            allow_singletons=True,
        )
    return load_benchmark(options)


def _write(out: Path, table: dict[str, list[Any]]) -> None:
    from geof.data.files import write_atomically

    if out.suffix == ".parquet":
        write_atomically(out, _parquet(table))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    write_atomically(out, text.getvalue().encode())


def _parquet(table: dict[str, list[Any]]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            "Expected pyarrow for '.parquet' files. Install it with pip install pyarrow, or "
            "write '.csv'."
        ) from error
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), buffer)
    return buffer.getvalue()
