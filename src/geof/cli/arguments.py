"""Arguments several commands share, and how they become a config."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.errors import ConfigError, DataError

if TYPE_CHECKING:
    from geof.data.sources import DataConfig
    from geof.training.config import RunConfig

_RUN = ("method", "task", "preset", "split", "folds", "device")


class Parser(argparse.ArgumentParser):
    """A parser whose KEY=VALUE words may stand on both sides of flags.

    Attributes:
        words: The argument that collects them; ``None`` where a command has none.
        absent: Whether the command is not installed: whatever follows it is passed over.
    """

    words: str | None = None
    absent: bool = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; argparse leaves a second group of positional words over."""
        options, left = super().parse_known_args([] if self.absent else args, namespace)
        if self.words is None:
            return options, left
        # One without "=" among them gets a better message than argparse has.
        words = [word for word in left if not word.startswith("-")]
        setattr(options, self.words, [*getattr(options, self.words), *words])
        return options, [word for word in left if word not in words]


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
    source.add_argument(
        "--arrays",
        type=Path,
        metavar="DIR",
        help="folder of x.npy, edge_index.npy and y.npy, mapped and not copied",
    )
    more = parser.add_argument_group("about the data")
    more.add_argument("--edges", type=Path, metavar="FILE", help="table of edges, with --nodes")
    more.add_argument("--id", metavar="COLUMN", help="column of identifiers")
    more.add_argument("--source", metavar="COLUMN", help="first column of edges or pairs")
    more.add_argument("--target", metavar="COLUMN", help="second column of edges or pairs")
    more.add_argument("--smiles", metavar="COLUMN", help="column of SMILES (default: smiles)")
    more.add_argument(
        "--edge-columns",
        choices=("refuse", "ignore", "use"),
        help="what to do with edge weights and attributes (default: refuse those of your own "
        "files, ignore those of benchmarks and bonds of molecules)",
    )
    more.add_argument("--edge-weight", metavar="COLUMN", help="column of edge weights, at least 0")
    more.add_argument(
        "--edge-attr",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column of edge attributes, words or numbers; may be repeated",
    )
    more.add_argument(
        "--directed",
        action="store_true",
        help="keep the direction of edges: messages run from source to target",
    )
    more.add_argument("--data-root", type=Path, metavar="DIR", help="raw benchmark files")
    more.add_argument(
        "--raw-features", action="store_true", help="benchmark features without row normalisation"
    )


def add_training_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what only training asks of the data."""
    more = parser.add_argument_group("about the labels")
    more.add_argument(
        "--label",
        action="append",
        metavar="COLUMN",
        help="the column to predict; again for several targets",
    )
    more.add_argument(
        "--target-kind",
        choices=("classes", "regression", "binary"),
        help="what the labels are: classes, numbers, or yes-or-no each (default: guessed)",
    )
    more.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="COLUMN",
        help="leave a node column out; may be repeated",
    )
    more.add_argument(
        "--kind",
        dest="kinds",
        action="append",
        default=[],
        metavar="COLUMN=KIND",
        help="what a node column is, if not what it looks like: numeric, count, categorical or "
        "boolean; may be repeated",
    )
    more.add_argument(
        "--allow-singletons",
        action="store_true",
        help="admit classes with a single member",
    )
    more.add_argument(
        "--missing",
        choices=("error", "mean"),
        help="what to do with missing numbers (default: error)",
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add where to compute."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="auto (a CUDA device where there is one, else the CPU), cpu, cuda, cuda:1, mps or xpu "
        "(default: auto)",
    )


def add_plugin_argument(parser: argparse.ArgumentParser) -> None:
    """Add the file that registers methods of the user's own."""
    parser.add_argument(
        "--plugin", type=Path, metavar="FILE.py", help="a Python file that registers methods"
    )


def add_config_arguments(parser: Parser) -> None:
    """Add what decides a run apart from the data."""
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--config", type=Path, metavar="FILE", help="options as YAML, or a run's config.json"
    )
    run.add_argument("--task", choices=("node", "link", "graph"), help="default: by the data")
    run.add_argument(
        "--method", "--model", metavar="NAME", dest="method", help="what to train (default: geof)"
    )
    run.add_argument(
        "--preset",
        metavar="NAME",
        help="options that come with the method (default: auto for your own data, tuned for a "
        "benchmark; or none)",
    )
    split = run.add_mutually_exclusive_group()
    split.add_argument(
        "--split",
        help="number of the split or fold, 'scaffold', 'group:COLUMN', 'time:COLUMN', or a file of "
        "identifiers (.json, .csv) or of another run (.npz) (default: 0)",
    )
    split.add_argument(
        "--split-column",
        dest="split",
        type="column:{}".format,
        metavar="COLUMN",
        help="column with the words train, validation and test",
    )
    run.add_argument("--folds", type=positive, help="folds of graphs (default: 10)")
    add_device_argument(parser)
    add_plugin_argument(parser)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="options")
    parser.words = "settings"


def load_plugins(options: argparse.Namespace) -> None:
    """Import the plugin a command names."""
    if options.plugin is not None:
        from geof.methods.registry import load_plugin

        load_plugin(options.plugin)


def config_of(options: argparse.Namespace) -> RunConfig:
    """Return the config of a command line: words over flags over a file over a preset.

    Raises:
        GeofError: Whatever is wrong with it, before any data is read.
    """
    from geof.io import parse_words
    from geof.training.config import RunConfig

    load_plugins(options)
    _refuse_bare_words(options)
    below = {} if options.config is None else read_config_file(options.config)
    flags = {name: getattr(options, name) for name in _RUN if getattr(options, name) is not None}
    data = given_data(options)
    if names_source(options):
        below.pop("data", None)  # what the file says about another source is left aside
    if data:
        flags["data"] = data
    return RunConfig.parse(below, flags, parse_words(options.settings))


def read_config_file(path: Path) -> dict[str, Any]:
    """Return a config file: YAML, or the ``config.json`` of a run.

    Raises:
        DataError: If it cannot be read.
        ConfigError: If it is not a mapping.
    """
    from geof.io import read_yaml
    from geof.training.config import RunConfig, renamed
    from geof.training.run_folder import read_config

    if path.name == "config.json":
        before = path.parent / "settings.yaml"  # of an earlier version, which names the data
        if before.is_file():
            return renamed(read_yaml(before))
        return RunConfig.from_dict(read_config(path.parent)["run"]).tree()
    return renamed(read_yaml(path))


def given_data(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags about the data that were given, as a config has them."""
    from geof.data.sources import DataConfig
    from geof.options import declared

    values = {name: getattr(options, name, None) for name in declared(DataConfig)}
    if values["label"] and len(values["label"]) == 1:
        (values["label"],) = values["label"]
    return {name: value for name, value in values.items() if value}


def _refuse_bare_words(options: argparse.Namespace) -> None:
    """Raise for a word that is no option, naming the flag it stands after if that takes one."""
    words = list(getattr(options, "words", ()))
    for word in options.settings:
        if "=" in word or word not in words:
            continue
        before = words[: words.index(word)]
        flag = next((w for w in reversed(before) if w.startswith("-")), "")
        if flag in _REPEATED:
            first = before[len(before) - before[::-1].index(flag)]
            raise ConfigError(
                f"Expected one column after '{flag}' (got {first!r} and {word!r}). Repeat it: "
                f"{flag} {first} {flag} {word}"
            )


_REPEATED = ("--drop", "--label", "--edge-attr", "--kind")
"""Flags that take one word each and may be repeated."""


def names_source(options: argparse.Namespace) -> bool:
    """Return whether a flag names the data."""
    from geof.data.sources import SOURCES

    return any(getattr(options, name, None) is not None for name in SOURCES)


def data_config(options: argparse.Namespace, default: DataConfig) -> DataConfig:
    """Return what names the data: the flags if one names a source, otherwise a run's own.

    Raises:
        ConfigError: If neither does.
    """
    from dataclasses import replace

    from geof.data.sources import SOURCES, DataConfig

    given = given_data(options)
    if names_source(options):
        return DataConfig.of(given)
    if default.kind is None:
        flags = ", ".join(f"--{name}" for name in SOURCES)
        raise ConfigError(
            f"Expected one of {flags} (got none, and the run does not say where its own data are)."
        )
    return replace(default, **{name: value for name, value in given.items() if value})
