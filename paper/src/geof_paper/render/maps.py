"""Maps of representations: t-SNE of two methods, and of one with its correction off and on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geof.data.catalogue import load
from geof.errors import DataError
from geof.geometry import log_determinant
from geof.training.predict import Run, stored_task
from geof.training.tasks import NodeTask
from geof_paper.grid.cells import Benchmark, Cell
from geof_paper.grid.declared import Variant
from geof_paper.render.clouds import scatter_panels
from geof_paper.render.figure_style import PAGE
from geof_paper.render.study_tables import StudyRuns
from geof_paper.studies.measures import map_states

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
SHOWN = 250
"""Nodes drawn at the most, a sample of all that were projected: a figure of more is heavy."""


_Map: TypeAlias = tuple[str, NDArray[Any], list[str], NDArray[Any] | None]
"""Title, place and class of every node, and its size, if it has one."""


def map_figure(runs: StudyRuns, benchmark: Benchmark) -> Figure | None:
    """Draw each variant's map of the first split, ``None`` if no run folder is here."""
    panels: list[_Map] = []
    highlight = None
    for variant in runs.variants:
        pair = _open(runs, variant, benchmark)
        if pair is not None:
            panels.append(_flat(variant, *pair))
            highlight = _largest_class(pair[1])
    if not panels:
        return None
    return _scatter(panels, highlight=highlight)


def correction_figure(runs: StudyRuns, benchmark: Benchmark) -> Figure | None:
    r"""Draw GeoF's map with the correction off and on, ``None`` if the run folder is not here.

    One checkpoint, one projection of three dimensions, sizes :math:`\log\det L_i`.
    """
    variant = next((v for v in runs.variants if v.method == "geof"), None)
    pair = None if variant is None else _open(runs, variant, benchmark)
    if pair is None:
        return None
    run, task = pair
    chosen = task.data.graph.y >= 0
    names = _class_names(task)
    states, sizes = [], []
    for correction in (False, True):
        found, coordinates = map_states(run, task, correction=correction)
        assert coordinates is not None
        states.append(found[chosen].numpy())
        sizes.append(log_determinant(coordinates).sum(-1)[chosen].numpy())
    places = _tsne(np.concatenate(states), dimensions=3)
    halves = np.split(places, 2)
    titles = ("correction off", "correction on")
    return _scatter(
        [(t, xyz, names, size) for t, xyz, size in zip(titles, halves, sizes, strict=True)],
        shared_limits=True,
        size_label="log det L",
    )


def _scatter(panels: Sequence[_Map], **look: Any) -> Figure:
    """Draw the same sample of nodes in every panel."""
    count = len(panels[0][2])
    chosen = np.arange(count)
    if count > SHOWN:
        chosen = np.sort(np.random.default_rng(SEED).choice(count, SHOWN, replace=False))
        look["note"] = f"{SHOWN} of {count} nodes are drawn"
    return scatter_panels(
        [
            (title, xy[chosen], [names[i] for i in chosen], None if s is None else s[chosen])
            for title, xy, names, s in panels
        ],
        width=PAGE,
        **look,
    )


def _flat(variant: Variant, run: Run, task: NodeTask) -> _Map:
    states, _ = map_states(run, task)
    chosen = task.data.graph.y >= 0
    return variant.label, _tsne(states[chosen].numpy(), dimensions=2), _class_names(task), None


def _tsne(states: NDArray[Any], dimensions: int) -> NDArray[Any]:
    from sklearn.manifold import TSNE

    projected: NDArray[Any] = TSNE(dimensions, init="pca", random_state=SEED).fit_transform(states)
    return projected


def _class_names(task: NodeTask) -> list[str]:
    labels = task.data.graph.y
    return [task.data.class_names[label] for label in labels[labels >= 0].tolist()]


def _largest_class(task: NodeTask) -> str:
    labels = task.data.graph.y
    return str(task.data.class_names[int(labels[labels >= 0].bincount().argmax())])


def _open(runs: StudyRuns, variant: Variant, benchmark: Benchmark) -> tuple[Run, NodeTask] | None:
    folder = Cell(runs.row(variant, benchmark), runs.splits[0]).folder(runs.grid.work)
    if not (folder / "result.json").is_file():
        return None
    try:
        data = load(benchmark[1], data_root=runs.data_root)
    except DataError:
        return None
    run = Run.open(folder)
    task = stored_task(run, data)
    assert isinstance(task, NodeTask)
    return run, task
