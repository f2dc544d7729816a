"""``geof report``: a run, or many results, as one HTML page that needs nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.applied import open_run, read_data
from geof.cli.arguments import add_plugin_argument, add_source_arguments, names_source
from geof.errors import ConfigError, DataError, GeofError
from geof.plugins import INSTALL_PAPER, PAGES, entry_points

if TYPE_CHECKING:
    from geof.data.records import GraphSet, NodeGraph
    from geof.training import Task
    from geof.training.predict import Run


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="a run or many results as one HTML page",
        description="Write one self-contained page: a run's curves, scores, a map of its states "
        "and the geometry of its nodes; or a folder of results beside the paper's numbers. It "
        "loads nothing from anywhere and can be opened, sent and printed as it is.",
        epilog="A run is applied to its own data; name them only if they are no longer where they "
        "were. Without them the page has settings and curves, and says what is missing.",
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="RUN-OR-RESULTS",
        help="a run folder of 'geof train', or a folder of results files or of studies",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: report.html in the folder"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")
    parser.add_argument("--json", action="store_true", help="print JSON and no more")
    for flag, meaning in (
        ("--node", "nodes whose geometry is shown in any case"),
        ("--graph", "graphs likewise, for a run on a set of graphs"),
    ):
        parser.add_argument(
            flag, nargs="+", action="extend", default=[], metavar="ID", help=meaning
        )
    parser.add_argument(
        "--map",
        choices=("auto", "tsne", "pca"),
        default="auto",
        help="how the map of states is made (default: t-SNE up to 3,000 points, then PCA)",
    )
    add_plugin_argument(parser)
    add_source_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Collect, render, write."""
    out = _output(options)
    page, script = _page(options)
    from geof.io import write_atomically
    from geof.report.html import render

    content = render(page, script).encode()
    write_atomically(out, content)
    missing = page.get("missing") or []
    if options.json:
        summary = {"out": str(out), "kind": page["kind"], "bytes": len(content)}
        print(json.dumps({**summary, "missing": missing}, indent=2))
        return 0
    for sentence in missing:
        print(f"missing: {sentence}")
    print(f"{page['title']} ({len(content) / 1e6:.1f} MB): {out}")
    return 0


def _output(options: argparse.Namespace) -> Path:
    """Return the file to write.

    Raises:
        ConfigError: If it does not end as a page does.
        DataError: If there is no folder to report on, or the file is there already.
    """
    if not options.path.is_dir():
        raise DataError(
            f"Expected a run folder or a folder of results (got '{options.path}', which is "
            f"{'a file' if options.path.exists() else 'not there'}). Check the path."
        )
    out: Path = options.out or options.path / "report.html"
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(f"Expected '--out' to end in .html (got '{out}').")
    if out.exists() and not options.force:
        raise DataError(
            f"Expected a new file to write (got '{out}', which is there). Name another one with "
            "--out, or replace it with --force."
        )
    return out


def _page(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the page's content and the script it brings beside that of a run's page."""
    if (options.path / "config.json").is_file():
        return _run_page(options), ""
    for flag in ("node", "graph"):
        if getattr(options, flag):
            raise ConfigError(
                f"Expected a run folder for '--{flag}' (got '{options.path}', which holds no "
                "config.json)."
            )
    for entry in entry_points(PAGES).values():
        made: tuple[dict[str, Any], str] = entry.load()(options.path)
        return made
    raise DataError(
        f"Expected a run folder, with config.json (got '{options.path}'). Pages of recorded "
        f"results are part of geof-paper; install it with: {INSTALL_PAPER}"
    )


def _run_page(options: argparse.Namespace) -> dict[str, Any]:
    from geof.report.run_page import run_page
    from geof.report.run_views import Wanted
    from geof.training.predict import stored_task

    wanted = Wanted(tuple(options.node), tuple(options.graph), options.map)
    named = names_source(options)  # who names data wants to hear what is wrong with them
    missing: list[str] = []
    opened: Run | None = None
    task: Task | None = None
    try:
        opened = open_run(options)
    except DataError as error:
        missing.append(f"Scores, map and geometry, because the checkpoint cannot be used: {error}")
    if opened is not None:
        try:
            task = stored_task(opened, _own_data(options, opened))
        except GeofError as error:
            if named:
                raise
            missing.append(f"Scores, map and geometry, because the data cannot be used: {error}")
    if task is None and (wanted.nodes or wanted.graphs):
        raise DataError(f"Expected the run's data for '--node' and '--graph'. {missing[-1]}")
    return run_page(options.path, opened, task, missing=missing, wanted=wanted)


def _own_data(options: argparse.Namespace, opened: Run) -> NodeGraph | GraphSet:
    """Read the data the flags name, the run's own otherwise; ``geof demo`` has embedded ones."""
    from geof.cli.demo import demo_data

    if not names_source(options) and opened.config.preset == "demo":
        embedded, name = demo_data(), str(opened.about.get("dataset"))
        if name in embedded:
            return embedded[name]
    return read_data(options, opened, labelled=True)
