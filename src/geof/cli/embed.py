"""``geof embed``: the vectors a run gives nodes and graphs, and the geometry of its nodes."""

from __future__ import annotations

import argparse
import io
import json
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
from geof.errors import DataError

if TYPE_CHECKING:
    from geof.training.predict import Embeddings

_SUFFIXES = (".csv", ".parquet", ".npz")


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "embed",
        help="vectors of nodes or graphs",
        description="Write a vector per node (the encoder's state, for runs of the node and link "
        "tasks) or per graph (its nodes' states pooled, as the readout's MLP gets them), with your "
        "own identifiers; for the run's own data unless you name others. A link run sees all "
        "edges of the data.",
        epilog="An .npz file holds 'ids' and 'vectors' and, for GeoF, 'coordinates' (nodes, "
        "blocks, coordinates) and 'log_determinant' (nodes) of every node's frame after the last "
        "step; for graphs 'graph_of_node' says which row a node belongs to.",
    )
    add_run_arguments(parser)
    add_output_arguments(parser, _SUFFIXES)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read run and data, embed, write the file."""
    from geof.data.records import GraphSet
    from geof.training.predict import embed_graphs, embed_nodes

    require_output(options, _SUFFIXES)
    opened = open_run(options)
    data = read_data(options, opened)
    graphs = isinstance(data, GraphSet)
    found = embed_graphs(opened, data) if isinstance(data, GraphSet) else embed_nodes(opened, data)
    say_notes(options, opened, data.notes)
    if options.out.suffix == ".npz":
        _write_arrays(options.out, found)
    else:
        write_table(options.out, _table_of(found))
    rows, width = found.vectors.shape
    if options.json:
        summary = {"out": str(options.out), "rows": rows, "channels": width}
        more = {"epoch": opened.epoch, "finished": opened.finished}
        print(json.dumps({**summary, "of": "graphs" if graphs else "nodes", **more}, indent=2))
    else:
        print(f"{rows} {'graphs' if graphs else 'nodes'}, {width} channels: {options.out}")
    return 0


def _table_of(found: Embeddings) -> dict[str, list[Any]]:
    columns = {f"channel_{i}": column.tolist() for i, column in enumerate(found.vectors.t())}
    return {"id": list(found.ids), **columns}


def _write_arrays(out: Path, found: Embeddings) -> None:
    import numpy as np

    from geof.io import write_atomically

    ids = np.array(found.ids, dtype=str)
    if ids.tolist() != list(found.ids):
        raise DataError(
            "Expected identifiers without a null character at the end, which NumPy cuts off. Write "
            "'.csv' instead."
        )
    tensors = {
        "vectors": found.vectors,
        "coordinates": found.coordinates,
        "log_determinant": found.log_determinant,
        "graph_of_node": found.graph_of_node,
    }
    arrays: dict[str, Any] = {name: t.numpy() for name, t in tensors.items() if t is not None}
    buffer = io.BytesIO()
    np.savez(buffer, ids=ids, **arrays)
    write_atomically(out, buffer.getvalue())
