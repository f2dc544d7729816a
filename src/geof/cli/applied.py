"""What the commands that apply a run share: its data, its notes, and files to write."""

from __future__ import annotations

import argparse
import csv
import io
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import add_plugin_argument, add_source_arguments, data_config, load_plugins
from geof.errors import ConfigError, DataError

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph
    from geof.data.sources import DataConfig
    from geof.training.predict import Run


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, what names other data than its own, and the form of the answer."""
    parser.add_argument(
        "path", type=Path, metavar="RUN", help="a run folder of 'geof train', or a checkpoint"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and no more")
    add_plugin_argument(parser)
    add_source_arguments(parser)


def open_run(options: argparse.Namespace) -> Run:
    """Open the run a command names, its method's plugin imported."""
    from geof.training.predict import Run

    load_plugins(options)
    return Run.open(options.path)


def add_output_arguments(parser: argparse.ArgumentParser, suffixes: Sequence[str]) -> None:
    """Add the file to write."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=f"ends in {_or(suffixes)}"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")


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
        labelled: Whether molecules are read with their labels; graphs always are, if they have any.
    """
    from geof.data.sources import read_benchmark

    config = data_config(options, run.config.data)
    kind = config.require_source()
    if kind == "molecules":
        from geof.data.molecules import read_molecules

        trained = run.config.data
        assert config.molecules is not None
        return read_molecules(
            config.molecules,
            smiles=config.smiles or trained.smiles or "smiles",
            id_column=config.id or trained.id,
            label=trained.label if labelled else None,
            class_names=run.class_names if labelled else (),
        )
    if kind == "nodes":
        return _read_tables(config, run)
    if kind == "npz":
        from geof.data.formats import from_npz

        assert config.npz is not None
        return from_npz(
            config.npz,
            class_names=run.about.get("class_names") or (),
            edge_columns=config.edge_columns or "refuse",
            allow_singletons=True,
        )
    return read_benchmark(config)


def _read_tables(config: DataConfig, run: Run) -> NodeGraph:
    from geof.data.tables import encode_new_graph

    schema = run.schema
    if schema is None:
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
        source=config.source,
        target=config.target,
        edge_columns=config.edge_columns or "refuse",
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


def write_table(out: Path, table: dict[str, list[Any]]) -> None:
    """Write columns as CSV or Parquet, as the name says."""
    from geof.io import write_atomically

    if out.suffix == ".parquet":
        write_atomically(out, _parquet(table))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    write_atomically(out, text.getvalue().encode())


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


def _or(suffixes: Sequence[str]) -> str:
    return ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}"
