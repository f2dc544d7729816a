"""Maps of representations: t-SNE of two methods, and of one with its correction off and on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from geof.data.catalogue import load
from geof.errors import DataError
from geof.geometry import log_determinant
from geof.training.predict import Run, stored_task
from geof.training.tasks import NodeTask
from geof_paper.grid.cells import Cell
from geof_paper.render.clouds import ScatterPanel, scatter_panels
from geof_paper.render.exhibits import Request
from geof_paper.render.figure_style import PAGE
from geof_paper.studies.declared import Line, Setting
from geof_paper.studies.measures import map_states

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0


def map_figure(request: Request, setting: Setting) -> Figure | None:
    """Draw each line's map of the first split, ``None`` if no run folder is here."""
    panels: list[ScatterPanel] = []
    highlight = None
    for line in request.lines:
        pair = _open(request, line, setting)
        if pair is not None:
            panels.append(_flat(line, *pair))
            highlight = _largest_class(pair[1])
    if not panels:
        return None
    return scatter_panels(panels, width=PAGE, highlight=highlight)


def correction_figure(request: Request, setting: Setting) -> Figure | None:
    r"""Draw GeoF's map with the correction off and on, ``None`` if the run folder is not here.

    One checkpoint, one projection of three dimensions, sizes :math:`\log\det L_i`.
    """
    line = next((line for line in request.lines if line.encoder == "geof"), None)
    pair = None if line is None else _open(request, line, setting)
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
    return scatter_panels(
        [(t, xyz, names, size) for t, xyz, size in zip(titles, halves, sizes, strict=True)],
        shared_limits=True,
        size_label="log det L",
        width=PAGE,
    )


def _flat(line: Line, run: Run, task: NodeTask) -> ScatterPanel:
    states, _ = map_states(run, task)
    chosen = task.data.graph.y >= 0
    return line.label, _tsne(states[chosen].numpy(), dimensions=2), _class_names(task), None


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


def _open(request: Request, line: Line, setting: Setting) -> tuple[Run, NodeTask] | None:
    row = request.study.row(line, setting, request.preset)
    folder = Cell(row, request.splits[0]).folder(request.grid.work)
    if not (folder / "result.json").is_file():
        return None
    try:
        data = load(setting[1], data_root=request.data_root)
    except DataError:
        return None
    run = Run.open(folder)
    task = stored_task(run, data)
    assert isinstance(task, NodeTask)
    return run, task
