"""Studies of ``geof reproduce`` that train on data made on the spot and keep a row per training."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from geof.errors import ConfigError
from geof.options import require_option

if TYPE_CHECKING:
    from geof_paper.studies.trained_rows import Row

ROW_STUDIES = {
    "unseen": "graphs nobody tuned for",
    "homophily": "graphs whose edges agree with the classes less and less",
    "geometry": "graphs whose classes show in means, in covariances, or in both",
    "auto-choices": "single options of the preset auto, on validation",
}
"""By name, what they are."""

say = partial(print, flush=True)


def run_row_study(options: argparse.Namespace) -> int:
    """Train what is missing, write rows and table."""
    studies = {
        "unseen": _unseen,
        "homophily": _homophily,
        "geometry": _geometry,
        "auto-choices": _auto_choices,
    }
    studies[options.name](options)
    return 0


def _unseen(options: argparse.Namespace) -> None:
    from geof_paper.studies.trained_rows import read_rows
    from geof_paper.studies.unseen import SPLITS, TITLES, run_study, table
    from geof_paper.studies.unseen_graphs import UNSEEN

    known = {graph.name: graph for graph in UNSEEN}
    graphs = [known[name] for name in _chosen("--datasets", options.datasets, known)]
    methods = _chosen("--methods", options.methods, TITLES)
    file = _file(options)
    if options.no_run:
        rows = read_rows(file)
    else:
        rows = run_study(file, graphs, methods, options.splits or SPLITS, say=say)
    _require_rows(file, rows)
    _write(file, f"Test:\n\n{table(rows)}\nValidation:\n\n{table(rows, 'validation')}")


def _homophily(options: argparse.Namespace) -> None:
    from geof_paper.studies.homophily import (
        DRAWS,
        GRAPHS,
        OWN,
        REPORTED,
        TITLES,
        differences,
        run_study,
        table,
    )
    from geof_paper.studies.trained_rows import read_rows

    graphs = _chosen("--datasets", options.datasets, GRAPHS, REPORTED)
    methods = _chosen("--methods", options.methods, TITLES)
    file = _file(options)
    if options.no_run:
        rows = read_rows(file)
    else:
        draws = [int(split) for split in options.splits or DRAWS]
        rows = run_study(file, graphs, methods, draws, say=say)
    _require_rows(file, rows)
    if not options.no_figures:
        from geof_paper.render.figure_style import save
        from geof_paper.render.homophily import homophily_figure

        print(*save(homophily_figure(rows), file.parent), sep="\n")
    parts = [f"Test:\n\n{table(rows)}", f"Validation:\n\n{table(rows, 'validation')}"]
    parts += [f"{TITLES[own]}, draw by draw:\n\n{differences(rows, own)}" for own in OWN]
    _write(file, "\n".join(parts))


def _geometry(options: argparse.Namespace) -> None:
    from geof_paper.studies.geometry import DRAWS, GRAPHS, TITLES, gains, run_study, table
    from geof_paper.studies.geometry_graphs import LEVELS, graph_name
    from geof_paper.studies.trained_rows import read_rows

    levels = _chosen("--datasets", options.datasets, map(graph_name, LEVELS))
    graphs = [name for name, (level, _) in GRAPHS.items() if graph_name(level) in levels]
    methods = _chosen("--methods", options.methods, TITLES)
    file = _file(options)
    if options.no_run:
        rows = read_rows(file)
    else:
        draws = [int(split) for split in options.splits or DRAWS]
        rows = run_study(file, graphs, methods, draws, say=say)
    _require_rows(file, rows)
    if not options.no_figures:
        from geof_paper.render.figure_style import save
        from geof_paper.render.geometry import geometry_figure

        print(*save(geometry_figure(rows), file.parent), sep="\n")
    parts = [f"Test:\n\n{table(rows)}", f"Validation:\n\n{table(rows, 'validation')}"]
    _write(file, "\n".join([*parts, f"GeoF, draw by draw:\n\n{gains(rows)}"]))


def _auto_choices(options: argparse.Namespace) -> None:
    from geof_paper.studies.auto_choices import DATA, DRAWS, VARIANTS, run_study, table
    from geof_paper.studies.homophily_graphs import CHOOSING
    from geof_paper.studies.trained_rows import read_rows

    names = _chosen("--datasets", options.datasets, DATA)
    variants = _chosen("--methods", options.methods, VARIANTS)
    file = _file(options)
    if options.no_run:
        rows = read_rows(file)
    else:
        draws = [CHOOSING + int(split) for split in options.splits or ()] or DRAWS
        rows = run_study(file, options.data_root, names, variants, draws, say=say)
    _require_rows(file, rows)
    _write(file, f"Validation:\n\n{table(rows)}")


def _chosen(
    flag: str, given: Sequence[str] | None, known: Iterable[str], default: Sequence[str] = ()
) -> list[str]:
    """Return the names that were given, or the default ones, or all."""
    known = tuple(known)
    for name in given or ():
        require_option(flag, name, known)
    return list(given or default or known)


def _file(options: argparse.Namespace) -> Path:
    folder: Path = options.out / options.name
    return folder / "rows.jsonl"


def _require_rows(file: Path, rows: Sequence[Row]) -> None:
    if not rows:
        raise ConfigError(f"Expected rows in '{file}' (got none). Leave '--no-run' out.")


def _write(file: Path, text: str) -> None:
    """Write the table beside the rows and say where both are."""
    from geof.io import write_atomically

    write_atomically(file.parent / "table.md", text.encode())
    print(text, file, file.parent / "table.md", sep="\n")
