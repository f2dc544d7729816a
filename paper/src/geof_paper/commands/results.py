"""``geof results``: run what is to be recorded, list and show it, and check what vouches for it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.errors import ConfigError
from geof_paper.commands.folders import results_folder
from geof_paper.commands.grid import add_grid_arguments, names, run_grid, say_missing

if TYPE_CHECKING:
    from geof_paper.grid.records import RecordedRun


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "results",
        help="run and show the recorded results",
        description="Run the paper's eighteen benchmarks and keep one line of JSON per run.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_run(actions)
    _add_list(actions)
    render = actions.add_parser("render", help="write the page of results")
    _add_results(render)
    render.add_argument("--remarks", type=Path, default=Path("docs/results-remarks.md"))
    render.add_argument("--out", type=Path, default=Path("docs/results.md"))
    render.set_defaults(run=render_page)
    methods = actions.add_parser(
        "methods",
        help="renew the table on the page of methods",
        description="Write a line per compared method and task into a page: the preset's source, "
        "trials of its search, epochs used and published, late runs, our numbers beside others.",
    )
    _add_results(methods)
    methods.add_argument("--page", type=Path, default=Path("docs/baselines.md"))
    methods.set_defaults(run=write_methods)
    canaries = actions.add_parser(
        "canaries",
        help="check that methods give the numbers that vouch for recorded runs",
        description="Train each method's canaries, a few epochs on embedded data, and compare "
        "with the stored numbers. Where one moved, undo the change or raise the method's revision.",
    )
    canaries.add_argument("--methods", type=names, help="several with commas (default: all)")
    canaries.add_argument(
        "--write",
        action="store_true",
        help="store the numbers of methods that are new or whose revision was raised",
    )
    canaries.set_defaults(run=check_canaries)


def _add_run(actions: argparse._SubParsersAction[Any]) -> None:
    run = actions.add_parser(
        "run",
        help="run what is missing",
        description="Train every cell (a method on a split of a benchmark) that is not finished "
        "or stale, and record it. Interrupted or killed, the same command goes on.",
        epilog="KEY=VALUE words change the preset: options are tried out, which does not read the "
        "test part.",
    )
    run.add_argument("--tasks", type=names, help="of node, link, graph (default: all)")
    run.add_argument(
        "--methods",
        type=_methods,
        help="METHOD:PRESET, several with commas (default: every compared method)",
    )
    add_grid_arguments(run)
    run.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes of the preset")
    run.words = "changes"
    run.set_defaults(run=run_cells)


def _add_list(actions: argparse._SubParsersAction[Any]) -> None:
    listed = actions.add_parser("list", help="list every recorded run")
    _add_results(listed)
    for name in ("task", "dataset", "method"):
        listed.add_argument(f"--{name}", type=names, help="several with commas (default: all)")
    listed.add_argument("--stale", action="store_true", help="only runs that are stale")
    listed.add_argument("--json", action="store_true", help="as JSON, for other programs")
    listed.set_defaults(run=list_runs)


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        default=results_folder(),
        help="results files (default: paper/results where it is, else results)",
    )


def run_cells(options: argparse.Namespace) -> int:
    """Train the missing cells, here or in several processes."""
    from geof_paper.grid.cells import choose_rows
    from geof_paper.grid.grid import Grid, order
    from geof_paper.grid.records import ALL_SPLITS

    rows = choose_rows(options.tasks, options.datasets, options.methods, tuple(options.changes))
    grid = Grid(order(rows, options.splits or ALL_SPLITS), options.work, options.results)
    failed = run_grid(options, grid)
    grid.record()
    say_missing(grid)
    return 1 if failed else 0


def list_runs(options: argparse.Namespace) -> int:
    """Print recorded runs as flat rows."""
    from geof_paper.grid.records import read_runs, stale_reasons

    runs = [run for run in read_runs(options.results) if _is_wanted(run, options)]
    pairs = list(zip(runs, stale_reasons(runs), strict=True))
    if options.stale:
        pairs = [(run, reason) for run, reason in pairs if reason is not None]
    rows = [_flat(run, reason is not None) for run, reason in pairs]
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(_aligned(rows))
    for reason, count in Counter(reason for _, reason in pairs if reason is not None).items():
        print(f"{count} stale: {reason}")
    return 0


def render_page(options: argparse.Namespace) -> int:
    """Write the page of results."""
    from geof.io import write_atomically
    from geof_paper.grid.records import read_failures, read_records
    from geof_paper.render.results_markdown import render_page as render

    remarks = options.remarks.read_text() if options.remarks.exists() else ""
    records = read_records(options.results)
    if not records:
        raise ConfigError(f"Expected results files in '{options.results}' (got none).")
    text = render(records, remarks, read_failures(options.results))
    write_atomically(options.out, text.encode())
    print(f"{len(records)} rows: {options.out}")
    return 0


def write_methods(options: argparse.Namespace) -> int:
    """Renew the generated part of the page of methods."""
    from geof.io import write_atomically
    from geof_paper.grid.records import read_records
    from geof_paper.grid.search import read_trials
    from geof_paper.render.methods_markdown import methods_markdown, with_methods

    if not options.page.is_file():
        raise ConfigError(f"Expected the page of methods at '{options.page}' (got no such file).")
    records = read_records(options.results)
    section = methods_markdown(records, read_trials(options.results / "search.jsonl"))
    write_atomically(options.page, with_methods(options.page.read_text(), section).encode())
    print(options.page)
    return 0


def check_canaries(options: argparse.Namespace) -> int:
    """Compare canaries with the stored ones, or store them."""
    from geof.methods import method_names
    from geof.training.canary import canary_file, require_canaries, store_canaries

    moved = 0
    for method in options.methods or method_names():
        try:
            if options.write:
                written = store_canaries(method)
                print(f"{method}: {'written to' if written else 'as in'} {canary_file(method)}")
            else:
                require_canaries(method)
                print(f"{method}: as stored")
        except ConfigError as error:
            print(f"{method}: {error}")
            moved += 1
    return 1 if moved else 0


def _is_wanted(run: RecordedRun, options: argparse.Namespace) -> bool:
    wanted = {"task": options.task, "dataset": options.dataset, "method": options.method}
    return all(given is None or getattr(run.row, name) in given for name, given in wanted.items())


def _flat(run: RecordedRun, stale: bool) -> dict[str, Any]:
    row = run.row
    about = {"task": row.task, "dataset": row.dataset, "method": row.method, "preset": row.preset}
    about |= {"options_changed": " ".join(row.changes)}
    numbers = ("split", "validation", "test", "best_epoch", "epochs", "seconds_per_epoch")
    about |= {name: getattr(run, name) for name in (*numbers, "revision")}
    return {**about, "stale": stale}


def _aligned(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table for people."""
    if not rows:
        return "no recorded runs"
    lines = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(text.ljust(n) for text, n in line).rstrip() for line in padded)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "stale" if value else ""
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)


def _methods(text: str) -> list[tuple[str, str]]:
    pairs = [name.partition(":") for name in names(text)]
    if not all(preset for _, _, preset in pairs):
        raise argparse.ArgumentTypeError(f"expected METHOD:PRESET (got {text!r})")
    return [(method, preset) for method, _, preset in pairs]
