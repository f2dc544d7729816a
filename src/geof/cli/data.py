"""``geof data``: list, check, prepare and fetch the benchmarks."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from geof.data.catalogue import Statistics


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its own commands to the parser."""
    data = commands.add_parser(
        "data",
        help="list, check, prepare or fetch the benchmarks",
        description="The paper's twelve benchmarks. Raw files are read below --data-root or "
        "GEOF_DATA; prepared copies go to GEOF_CACHE or the platform's folder for caches.",
    )
    parts = data.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    for name, run, names, text in (
        ("list", _run_list, None, "show the catalogue"),
        ("check", _run_check, "*", "compare raw files with the catalogue (exit code 1: not equal)"),
        ("prepare", _run_prepare, "*", "load into the cache"),
        ("splits", _run_splits, "*", "write the ten splits of every setting, with their hashes"),
        ("fetch", _run_fetch, "+", "download raw files"),
    ):
        command = parts.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if names:
            default = " (default: all)" if names == "*" else ""
            command.add_argument("names", nargs=names, metavar="NAME", help=f"dataset{default}")
        command.add_argument("--data-root", type=Path, help="folder of raw files")
        command.set_defaults(run=run)
        if name == "list":
            command.add_argument(
                "--markdown", action="store_true", help="print the page of the documentation"
            )
        if name == "splits":
            command.add_argument("--out", type=Path, required=True, help="folder to write to")
        if name == "fetch":
            command.add_argument(
                "--force", action="store_true", help="replace files that are there"
            )


def _run_list(options: argparse.Namespace) -> int:
    from geof.data.provision import list_datasets

    if options.markdown:
        print(catalogue_page(), end="")
        return 0
    there = {True: "yes", False: "no", None: ""}
    rows = list_datasets(options.data_root)
    cells = [
        (b.name, *_sizes(b.expected), there[row.present]) for row in rows for b in (row.dataset,)
    ]
    _print_table(("name", *_SIZES, "files"), cells)
    _print_remarks((row.dataset.name, row.dataset.difference) for row in rows)
    return 0


def catalogue_page() -> str:
    """Return the documentation's page of the catalogue, in Markdown."""
    from geof.data.catalogue import CATALOGUE

    lines = [
        "# The benchmarks",
        "",
        "Written by `geof data list --markdown`; sizes are after loading, every undirected edge",
        "counted twice. `geof data check` compares the files you have with this page.",
        "",
        "| Dataset | Graphs | Nodes | Edges | Features | Classes | Metric | Licence |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for benchmark in CATALOGUE.values():
        sizes = " | ".join(_sizes(benchmark.expected))
        metrics = ", ".join(benchmark.metrics)
        lines.append(f"| {benchmark.name} | {sizes} | {metrics} | {benchmark.licence} |")
    for benchmark in CATALOGUE.values():
        lines += ["", f"## {benchmark.name}", "", f"- Source: {benchmark.source}"]
        lines += [f"- Features: {benchmark.features}", f"- Checksums: {benchmark.checksums}"]
        if benchmark.difference:
            lines.append(f"- Against the paper's table: {benchmark.difference}")
    return "\n".join(lines) + "\n"


def _run_check(options: argparse.Namespace) -> int:
    from geof.data.provision import check, exit_code

    rows = check(options.names, options.data_root)
    cells = [
        (row.name, *(_sizes(row.measured) if row.measured else ("",) * len(_SIZES)), row.status)
        for row in rows
    ]
    _print_table(("name", *_SIZES, "status"), cells)
    _print_remarks((row.name, row.detail) for row in rows)
    return exit_code(rows)


def _run_prepare(options: argparse.Namespace) -> int:
    from geof.data.provision import prepare

    rows = prepare(options.names, options.data_root)
    cells = [(row.name, *_sizes(row.measured), f"{row.seconds:.2f}") for row in rows]
    _print_table(("name", *_SIZES, "seconds"), cells)
    _print_remarks((row.name, " ".join(row.notes)) for row in rows)
    return 0


def _run_splits(options: argparse.Namespace) -> int:
    from geof.data.provision import write_splits

    rows = write_splits(options.names, options.out, options.data_root)
    print(f"{len(rows)} splits and splits.json: {options.out}")
    return 0


def _run_fetch(options: argparse.Namespace) -> int:
    from geof.data.provision import fetch

    rows = fetch(options.names, options.data_root, force=options.force)
    cells = [(row.name, str(len(row.downloaded)), str(row.verified)) for row in rows]
    _print_table(("name", "files written", "with checksum"), cells)
    return 0


_SIZES = ("graphs", "nodes", "edges", "features", "classes")
_NUMBERS = {*_SIZES, "seconds", "files written", "with checksum"}


def _sizes(statistics: Statistics) -> tuple[str, ...]:
    return tuple(f"{size:,}" for size in dataclasses.astuple(statistics))


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        table.add_column(
            name, justify=justify, no_wrap=name == "name" or name in _NUMBERS, overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)


def _print_remarks(remarks: Iterable[tuple[str, str]]) -> None:
    """Print one line per dataset that has something to say."""
    for name, text in remarks:
        if text:
            print(f"{name}: {text}")
