"""Arguments several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.errors import ConfigError, DataError

if TYPE_CHECKING:
    from geof.data.columns import ColumnEncoder
    from geof.data.records import GraphSet, NodeGraph
    from geof.data.tables import EdgeOptions


def positive(text: str) -> int:
    """Read an integer of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1 (got {value})")
    return value


def require_new_folder(out: Path) -> Path:
    """Return ``out`` if a run may be written there: nothing, or a run that did not finish.

    Raises:
        DataError: If something else is there already.
    """
    if not out.exists():
        return out
    unfinished = (out / "config.json").is_file() and not (out / "result.json").exists()
    if not out.is_dir() or (any(out.iterdir()) and not unfinished):
        raise DataError(
            f"Expected '--out' to be a new or empty folder (got '{out}'). Name another one."
        )
    return out


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what names the data: a benchmark, or the user's own files."""
    source = parser.add_argument_group("data (one of)")
    source.add_argument("--dataset", metavar="NAME", help="a benchmark of 'geof data list'")
    source.add_argument("--nodes", type=Path, metavar="FILE", help="table of nodes, with --edges")
    source.add_argument("--molecules", type=Path, metavar="FILE", help="table of SMILES")
    source.add_argument("--npz", type=Path, metavar="FILE", help="one graph in NumPy's format")
    more = parser.add_argument_group("about the data")
    more.add_argument("--edges", type=Path, metavar="FILE", help="table of edges, with --nodes")
    more.add_argument("--id", metavar="COLUMN", help="column of identifiers")
    more.add_argument("--source", metavar="COLUMN", help="first column of edges or pairs")
    more.add_argument("--target", metavar="COLUMN", help="second column of edges or pairs")
    more.add_argument("--smiles", metavar="COLUMN", help="column of SMILES (default: smiles)")
    more.add_argument(
        "--edge-columns",
        choices=("refuse", "ignore"),
        help="what to do with edge weights and features, which the model does not use (default: "
        "refuse)",
    )
    more.add_argument("--data-root", type=Path, metavar="DIR", help="raw benchmark files")
    more.add_argument(
        "--raw-features", action="store_true", help="benchmark features without row normalisation"
    )


SOURCES = ("dataset", "nodes", "molecules", "npz")
"""The flags that each name a source; exactly one is needed."""

SOURCE_FLAGS: dict[str, type] = {
    **dict.fromkeys(("dataset", "id", "source", "target", "smiles", "label"), str),
    **dict.fromkeys(("nodes", "edges", "molecules", "npz", "data_root"), Path),
    **dict.fromkeys(("edge_columns", "missing"), str),
    "drop": list,
    "raw_features": bool,
}
"""What a settings file may say below ``data``: the flags that name the data."""


def add_training_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what only training asks of the data."""
    more = parser.add_argument_group("about the labels")
    more.add_argument("--label", metavar="COLUMN", help="the column to predict")
    more.add_argument(
        "--drop", action="append", default=[], metavar="COLUMN", help="leave a node column out"
    )
    more.add_argument(
        "--missing",
        choices=("error", "mean"),
        help="what to do with missing numbers (default: error)",
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what decides a run apart from the data."""
    plan = parser.add_argument_group("the run")
    plan.add_argument("--config", type=Path, metavar="FILE", help="settings as YAML")
    plan.add_argument("--task", choices=("node", "link", "graph"), help="default: by the data")
    plan.add_argument("--model", metavar="NAME", help="encoder (default: geof)")
    plan.add_argument(
        "--preset", metavar="NAME", help="settings that ship with geof (default: tuned; or none)"
    )
    plan.add_argument("--split", help="number of the split or fold, or 'scaffold' (default: 0)")
    plan.add_argument("--folds", type=positive, help="folds of graphs (default: 10)")
    plan.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings")


def take_words_anywhere(parser: argparse.ArgumentParser, name: str = "settings") -> None:
    """Let KEY=VALUE words stand on both sides of flags: argparse leaves the second group over.

    Args:
        parser: Whose words.
        name: The argument that collects them.
    """
    parse = parser.parse_known_args

    def parse_known_args(
        args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        options, left = parse(args, namespace)
        words = [word for word in left if "=" in word and not word.startswith("-")]
        setattr(options, name, [*getattr(options, name), *words])
        return options, [word for word in left if word not in words]

    parser.parse_known_args = parse_known_args  # type: ignore[assignment,method-assign]


def require_one_source(options: argparse.Namespace) -> str:
    """Return which source was given.

    Raises:
        ConfigError: Unless it is exactly one.
    """
    given = [name for name in SOURCES if getattr(options, name) is not None]
    if len(given) != 1:
        names = ", ".join(f"--{name}" for name in SOURCES)
        got = " and ".join(f"--{name}" for name in given) or "none"
        raise ConfigError(f"Expected exactly one of {names} (got {got}).")
    if given[0] == "nodes" and options.edges is None:
        raise ConfigError("Expected '--edges FILE' beside '--nodes'.")
    for name in _foreign(given[0]):
        if getattr(options, name, None):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"Expected no '{flag}' beside '--{given[0]}', which has no use of it."
            )
    return given[0]


def _foreign(source: str) -> set[str]:
    """Return the options that only other sources have a use of."""
    own = {
        "dataset": {"data_root", "raw_features"},
        "nodes": {"edges", "id", "source", "target", "label", "drop", "pairs"},
        "molecules": {"id", "label"},
        "npz": {"pairs", "source", "target"},
    }
    if source == "dataset":
        own["dataset"] |= {"pairs", "source", "target"}
    return set().union(*own.values()) - own[source]


def read_training_data(
    options: argparse.Namespace,
) -> tuple[NodeGraph | GraphSet, ColumnEncoder | None]:
    """Read labelled data, and the schema of its columns for tables of nodes."""
    source = require_one_source(options)
    if source == "dataset":
        return load_benchmark(options), None
    if source == "npz":
        from geof.data.formats import from_npz

        return from_npz(options.npz, edge_columns=options.edge_columns or "refuse"), None
    if source == "molecules":
        from geof.data.molecules_table import read_molecules

        _require_label(options)
        data = read_molecules(
            options.molecules,
            smiles=options.smiles or "smiles",
            label=options.label,
            id_column=options.id,
        )
        return data, None
    from geof.data.tables import read_node_table

    if options.task != "link":
        _require_label(options)
    return read_node_table(
        options.nodes,
        options.edges,
        label=options.label,
        id_column=options.id,
        drop=options.drop,
        missing=options.missing or "error",
        **edge_options(options),
    )


def load_benchmark(options: argparse.Namespace) -> NodeGraph | GraphSet:
    """Load the benchmark the options name."""
    from geof.data.catalogue import load

    return load(
        options.dataset, data_root=options.data_root, row_normalise=not options.raw_features
    )


def edge_options(options: argparse.Namespace) -> EdgeOptions:
    """Return how tables of edges and pairs are to be read."""
    return {
        "source": options.source,
        "target": options.target,
        "edge_columns": options.edge_columns or "refuse",
    }


def _require_label(options: argparse.Namespace) -> None:
    if options.label is None:
        raise ConfigError("Expected '--label COLUMN', the column to predict (got none).")
