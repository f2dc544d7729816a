"""``geof evaluate``, ``predict`` and ``embed``: the commands that apply a run."""

from __future__ import annotations

import argparse
import csv
import io
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import (
    add_device_argument,
    add_plugin_argument,
    add_source_arguments,
    data_config,
    load_plugins,
    positive,
)
from geof.errors import ConfigError, DataError

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph
    from geof.data.sources import DataConfig
    from geof.data.tables import EdgeOptions
    from geof.training import Scores
    from geof.training.predict import Embeddings, Run


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the three commands to the parser."""
    _add_evaluate(commands)
    _add_predict(commands)
    _add_embed(commands)


def _add_evaluate(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="metrics of a run on a part of its own split",
        description="Score the validation, test or training part of the split a run was trained "
        "with. Name the data only if they are no longer where they were; other data are refused.",
    )
    add_run_arguments(parser)
    parser.add_argument(
        "--part",
        choices=("validation", "test", "train"),
        default="test",
        help="which part (default: test)",
    )
    parser.set_defaults(run=evaluate)


def evaluate(options: argparse.Namespace) -> int:
    """Read run and data, score the part, print the metrics."""
    from geof.training.predict import evaluate_part

    opened = open_run(options)
    with _shown():
        data = read_data(options, opened, labelled=True)
        scores = evaluate_part(opened, data, options.part)
    say_notes(options, opened, data.notes)
    if options.json:
        answer = {"part": options.part, "metrics": scores.metrics, "loss": scores.loss}
        print(json.dumps(answer, indent=2))
    else:
        _print_scores(f"{data.name}, {options.part} part, epoch {opened.epoch}", scores)
    return 0


def _print_scores(title: str, scores: Scores) -> None:
    from rich.console import Console
    from rich.table import Table

    from geof.training.metrics import metric_named

    table = Table(title=title)
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in scores.metrics.items():
        table.add_row(name, metric_named(name).shown(value))
    table.add_row("loss", f"{scores.loss:.4f}")
    Console(markup=False).print(table)


_TABLES = (".csv", ".parquet")


def _add_predict(commands: argparse._SubParsersAction[Any]) -> None:
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
    add_output_arguments(parser, _TABLES)
    parser.set_defaults(run=predict)


def predict(options: argparse.Namespace) -> int:
    """Read run and data, predict, write the table."""
    require_output(options, _TABLES)
    opened = open_run(options)
    _require_pairs_for_links(options, opened)
    # What a run's own settings say about its table of edges is not about this table of pairs.
    pair_options: EdgeOptions = {
        "source": options.source,
        "target": options.target,
        "edge_columns": options.edge_columns or "refuse",
    }
    with _shown():
        data = read_data(options, opened, labelled=True)
        table = _predictions(options, opened, data, pair_options)
    say_notes(options, opened, data.notes)
    write_table(options.out, table, for_spreadsheets=options.for_spreadsheets)
    if options.json:
        print(json.dumps(_summary(options, opened, table), indent=2))
    else:
        print(f"{len(next(iter(table.values())))} predictions: {options.out}")
    return 0


def _require_pairs_for_links(options: argparse.Namespace, opened: Run) -> None:
    if (options.pairs is not None) != (opened.config.task == "link"):
        raise ConfigError(
            "Expected '--pairs FILE', the pairs to score: this is a run of the link task."
            if options.pairs is None
            else "Expected no '--pairs': scoring them takes a run of the link task (got one of the "
            f"{opened.config.task} task)."
        )


def _predictions(
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
    said = {name: values for name, values in table.items() if name.startswith("prediction")}
    if opened.objective.kind == "regression":
        counts: dict[str, Any] = {
            name: {"mean": sum(values) / max(len(values), 1)} for name, values in said.items()
        }
    elif list(said) == ["prediction"]:
        counts = dict(sorted(Counter(said["prediction"]).items()))
    else:
        counts = {name: dict(sorted(Counter(values).items())) for name, values in said.items()}
    return {
        "out": str(options.out),
        "rows": len(next(iter(table.values()))),
        "predictions": counts,
        "epoch": opened.epoch,
        "finished": opened.finished,
    }


_VECTORS = (".csv", ".parquet", ".npz")


def _add_embed(commands: argparse._SubParsersAction[Any]) -> None:
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
    add_output_arguments(parser, _VECTORS)
    parser.set_defaults(run=embed)


def embed(options: argparse.Namespace) -> int:
    """Read run and data, embed, write the file."""
    from geof.data.records import GraphSet
    from geof.training.predict import embed_graphs, embed_nodes

    require_output(options, _VECTORS)
    opened = open_run(options)
    with _shown():
        data = read_data(options, opened)
        graphs = isinstance(data, GraphSet)
        embed_all: Any = embed_graphs if graphs else embed_nodes
        found: Embeddings = embed_all(opened, data)
    say_notes(options, opened, data.notes)
    if options.out.suffix == ".npz":
        _write_arrays(options.out, found)
    else:
        table = _vector_table(found)
        write_table(options.out, table, for_spreadsheets=options.for_spreadsheets)
    rows, width = found.vectors.shape
    if options.json:
        summary = {"out": str(options.out), "rows": rows, "channels": width}
        more = {"epoch": opened.epoch, "finished": opened.finished}
        print(json.dumps({**summary, "of": "graphs" if graphs else "nodes", **more}, indent=2))
    else:
        print(f"{rows} {'graphs' if graphs else 'nodes'}, {width} channels: {options.out}")
    return 0


def _vector_table(found: Embeddings) -> dict[str, list[Any]]:
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


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, what names other data than its own, and the form of the answer."""
    parser.add_argument(
        "path", type=Path, metavar="RUN", help="a run folder of 'geof train', or a checkpoint"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and no more")
    add_device_argument(parser)
    add_plugin_argument(parser)
    add_source_arguments(parser)


def open_run(options: argparse.Namespace) -> Run:
    """Open the run a command names, its method's plugin imported."""
    from geof.training.predict import Run

    load_plugins(options)
    return Run.open(options.path, getattr(options, "device", "cpu"))


def add_output_arguments(parser: argparse.ArgumentParser, suffixes: Sequence[str]) -> None:
    """Add the file to write."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=f"ends in {_or(suffixes)}"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")
    parser.add_argument(
        "--for-spreadsheets",
        action="store_true",
        help="csv: put an apostrophe before text that a spreadsheet would take for a formula, "
        "which begins with =, +, -, @ or a tab (default: text as it is)",
    )


def require_output(options: argparse.Namespace, suffixes: Sequence[str]) -> None:
    """Refuse a file that cannot or must not be written, before anything is computed.

    Raises:
        ConfigError: For an ending no format has.
        DataError: If it is there already, or pyarrow is not.
    """
    out: Path = options.out
    if out.suffix not in suffixes:
        raise ConfigError(f"Expected '--out' to end in {_or(suffixes)} (got '{out}').")
    if out.exists() and not options.force:
        raise DataError(
            f"Expected '--out' to name a new file (got '{out}', which is there). Name another one, "
            "or replace it with --force."
        )
    if out.suffix == ".parquet":
        _require_pyarrow()


def read_data(
    options: argparse.Namespace, run: Run, *, labelled: bool = False
) -> NodeGraph | GraphSet:
    """Read the data the flags name, otherwise the run's own, as the run was trained to see them.

    Args:
        options: The flags.
        run: Whose schema and classes apply.
        labelled: Whether molecules are read with the labels they have; graphs always are.
    """
    from geof.data.sources import read_benchmark, with_edges

    config = data_config(options, run.config.data)
    kind = config.require_source()
    if kind == "molecules":
        return with_edges(_read_molecules(config, run, labelled), run.config.data)
    if kind == "nodes":
        return _read_tables(config, run)
    if kind in ("npz", "arrays"):
        from geof.data.columns import ArrayEncoder
        from geof.data.formats import from_arrays, from_npz
        from geof.data.sources import encoded

        path = config.npz or config.arrays
        assert path is not None
        graph = (from_npz if kind == "npz" else from_arrays)(
            path,
            class_names=run.about.get("class_names") or (),
            target_kind=run.objective.kind if run.config.task == "node" else None,
            directed=run.config.data.directed,
            edge_columns=config.edge_columns or run.config.data.edge_columns or "refuse",
            allow_singletons=True,
        )
        schema = run.schema
        return encoded(graph, schema) if isinstance(schema, ArrayEncoder) else graph
    return read_benchmark(replace(config, edge_columns=run.config.data.edge_columns))


def _read_molecules(config: DataConfig, run: Run, labelled: bool) -> GraphSet:
    from geof.data.files import read_table
    from geof.data.molecules import read_molecules

    trained, kind = run.config.data, run.objective.kind
    assert config.molecules is not None
    labels = trained.labels if labelled else ()
    if labels and not set(labels) <= set(read_table(config.molecules).columns):
        labels = ()  # new molecules
    return read_molecules(
        config.molecules,
        smiles=config.smiles or trained.smiles or "smiles",
        id_column=config.id or trained.id,
        label=labels,
        class_names=run.class_names if labels and kind == "classes" else (),
        target_kind=kind,
        allow_singletons=True,
    )


def _read_tables(config: DataConfig, run: Run) -> NodeGraph:
    from geof.data.columns import ColumnEncoder
    from geof.data.tables import encode_new_graph

    schema, trained = run.schema, run.config.data
    if not isinstance(schema, ColumnEncoder):
        raise DataError(
            f"Expected a run trained on tables for '--nodes' (got '{run.path}'). Give the kind of "
            "data the run was trained on."
        )
    schema = replace(schema, id_column=config.id or schema.id_column)
    assert config.nodes is not None
    assert config.edges is not None
    return encode_new_graph(
        config.nodes,
        config.edges,
        schema,
        source=config.source or trained.source,
        target=config.target or trained.target,
        edge_columns=config.edge_columns or trained.edge_columns or "refuse",
        directed=trained.directed,
    )


def say_notes(options: argparse.Namespace, run: Run, notes: Iterable[str]) -> None:
    """Print what a reader of the answer must know; beside JSON to the error stream."""
    stream = sys.stderr if options.json else sys.stdout
    if not run.finished:
        again = f"geof train --resume {shlex.quote(str(run.folder))}"
        print(
            f"note: The run is not finished; this is epoch {run.epoch}, its best so far. Go on "
            f"with: {again}",
            file=stream,
        )
    for note in notes:
        print(f"note: {note}", file=stream)


def write_table(out: Path, table: dict[str, list[Any]], *, for_spreadsheets: bool = False) -> None:
    """Write columns as CSV or Parquet, as the name says.

    Args:
        out: The file.
        table: Columns by name.
        for_spreadsheets: Whether no text of a CSV file may be run as a formula where it is opened.
    """
    from geof.io import write_atomically

    if out.suffix == ".parquet":
        write_atomically(out, _parquet(table))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    cell = _no_formula if for_spreadsheets else _as_it_is
    writer.writerow(map(cell, table))
    writer.writerows(map(cell, row) for row in zip(*table.values(), strict=True))
    write_atomically(out, text.getvalue().encode())


def _as_it_is(value: Any) -> Any:
    return value


def _no_formula(value: Any) -> Any:
    """Return text that a spreadsheet shows and does not run; numbers as they are."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def _parquet(table: dict[str, list[Any]]) -> bytes:
    _require_pyarrow()
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), buffer)
    return buffer.getvalue()


def _require_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise DataError(
            "Expected pyarrow for '.parquet' files. Install it with pip install pyarrow, or "
            "write '.csv'."
        ) from error


def _shown() -> AbstractContextManager[None]:
    """Show on the error stream how far long work is."""
    from rich.console import Console

    from geof.cli.progress import working

    return working(Console(stderr=True))


def _or(suffixes: Sequence[str]) -> str:
    return ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}"
