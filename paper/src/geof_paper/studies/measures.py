r"""What is computed on a trained network besides its scores, one function per study.

A measure takes a finished run and its data and returns plain JSON values. Everything runs in
float64: the quantities are differences of nearly equal states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError
from geof.geometry import frame_bounds, frame_from_coordinates, log_determinant
from geof.methods.geof import GeoFEncoder
from geof.methods.interface import GraphInputs
from geof.nn import CoupledState, GeoF
from geof.nn.trace import geometry_change
from geof.training.metrics import accuracy
from geof.training.predict import Run, stored_task
from geof.training.tasks import GraphTask, NodeTask

SIGMAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Relative norms of the perturbation, from the paper's smallest to its largest."""

DIRECTIONS = 5
"""Random directions per relative norm."""


class Opened(NamedTuple):
    """A GeoF run on its own graph, in float64."""

    run: Run
    model: GeoF
    task: NodeTask
    inputs: GraphInputs


def measure_depth(run: Run, data: NodeGraph | GraphSet) -> dict[str, Any]:
    r"""Return :math:`D_Z` of every step, over all nodes (of the test part's graphs, for a set).

    :math:`D_Z(L)`, the paper's figure, is the last one.
    """
    model = _geof(run).double()
    totals = torch.zeros(model.steps, dtype=torch.float64)
    nodes = 0
    with torch.no_grad():
        for inputs in _evaluated(run, data):
            state = model.initial_state(inputs.x, inputs.signature)
            nodes += inputs.signature.size(0)
            for step in range(model.steps):
                following, _ = model.step(state, inputs.edges, inputs.signature, step)
                change = geometry_change(following.coordinates, state.coordinates)
                totals[step] += change * inputs.signature.size(0)
                state = model.refined(following, step)
    return {"geometry_change": (totals / nodes).tolist()}


def measure_stability(run: Run, data: NodeGraph | GraphSet) -> dict[str, Any]:
    r"""Perturb the initial features along random directions (section 4.4, perturbation stability).

    :math:`\xi^0_\sigma = \xi^0 + \sigma \|\xi^0\|_F G / \|G\|_F` with a Gaussian :math:`G`; graph,
    initial geometry and parameters stay.

    Returns:
        ``sigmas``; ``accuracy``, of the test part in percent, and ``ratio``,
        :math:`R^{(1)}_{state}(\sigma)`, each with a list of values (one per direction) per sigma;
        ``clean``, the accuracy without perturbation.
    """
    opened = _open_nodes(run, data, "stability")
    model, inputs = opened.model, opened.inputs
    generator = torch.Generator().manual_seed(0)
    scores: list[list[float]] = []
    ratios: list[list[float]] = []
    with torch.no_grad():
        start = model.initial_state(inputs.x, inputs.signature)
        after, _ = model.step(start, inputs.edges, inputs.signature)
        clean = _test_accuracy(opened, start)
        shape = start.features.shape
        drawn = [torch.randn(shape, generator=generator).double() for _ in range(DIRECTIONS)]
        for sigma in SIGMAS:
            moved = [_moved(start, sigma, direction) for direction in drawn]
            scores.append([_test_accuracy(opened, state) for state in moved])
            ratios.append([_one_step_ratio(model, inputs, start, after, s) for s in moved])
    return {"sigmas": list(SIGMAS), "accuracy": scores, "ratio": ratios, "clean": clean}


def _moved(state: CoupledState, sigma: float, direction: Tensor) -> CoupledState:
    scale = sigma * state.features.norm() / direction.norm()
    return CoupledState(state.features + scale * direction, state.coordinates)


def _one_step_ratio(
    model: GeoF, inputs: GraphInputs, start: CoupledState, after: CoupledState, moved: CoupledState
) -> float:
    r"""Return :math:`d(S^1_\sigma, S^1) / d(S^0_\sigma, S^0)`."""
    following, _ = model.step(moved, inputs.edges, inputs.signature)
    return _distance(following, after) / _distance(moved, start)


def _distance(one: CoupledState, other: CoupledState) -> float:
    r"""Return :math:`\|\Xi - \Xi'\|_F + \sum_b \|Z_b - Z'_b\|_F`."""
    blocks = (one.coordinates - other.coordinates).transpose(0, 1).flatten(1)
    return float((one.features - other.features).norm() + blocks.norm(dim=1).sum())


def _test_accuracy(opened: Opened, start: CoupledState) -> float:
    """Return the accuracy on the test part when the model starts from a state."""
    states = _output_from(opened.model, opened.inputs, start)
    logits = opened.run.network.readout(states)
    nodes = opened.task.split.test
    return accuracy(logits[nodes], opened.task.data.graph.y[nodes])


def _output_from(model: GeoF, inputs: GraphInputs, start: CoupledState) -> Tensor:
    """Return what ``evolve`` returns as output, from a given initial state."""
    environments = [model.environment(*state) for state in _trajectory(model, inputs, start)]
    return torch.cat(environments, dim=-1) if model.outputs == "all" else environments[-1]


def _trajectory(model: GeoF, inputs: GraphInputs, start: CoupledState) -> list[CoupledState]:
    """Return all states from an initial one on."""
    states = [start]
    for step in range(model.steps):
        following, _ = model.step(states[-1], inputs.edges, inputs.signature, step)
        states.append(model.refined(following, step))
    return states


def measure_theory(run: Run, data: NodeGraph | GraphSet) -> dict[str, Any]:
    """Put the constants of Lemma 1 and Proposition 3 beside what the trained network does.

    Returns:
        ``frames``, ``step`` and ``fixed_point``, each with bounds and observations; ``None`` for a
        bound beyond floating point.
    """
    opened = _open_nodes(run, data, "theory")
    with torch.no_grad():
        start = opened.model.initial_state(opened.inputs.x, opened.inputs.signature)
        states = _trajectory(opened.model, opened.inputs, start)
        return {
            "frames": _frames(opened.model, states),
            "step": _step(opened, states),
            "fixed_point": _fixed_point(opened, states[-2]),
        }


def _frames(model: GeoF, states: list[CoupledState]) -> dict[str, float | None]:
    """Compare Lemma 1's bounds, Eqs. (17) and (18), with the frames of all nodes and steps."""
    bounds = frame_bounds(model.block_size, model.box)
    stretch = shrink = rate = 0.0
    for before, state in zip(states, states[1:] + states[:1], strict=True):
        values = torch.linalg.svdvals(frame_from_coordinates(state.coordinates))
        stretch = max(stretch, float(values.max()))
        shrink = max(shrink, 1 / float(values.min()))
        rate = max(rate, _frame_rate(before.coordinates, state.coordinates))
    return {
        "norm": stretch,
        "norm_bound": bounds.sigma_plus,
        "inverse_norm": shrink,
        "inverse_norm_bound": 1 / bounds.sigma_minus if bounds.sigma_minus > 0 else None,
        "lipschitz": rate,
        "lipschitz_bound": bounds.kappa_L,
    }


def _frame_rate(one: Tensor, other: Tensor) -> float:
    r"""Return the largest :math:`\|L(z) - L(z')\|_F / \|z - z'\|_2` over nodes and blocks."""
    frames = (frame_from_coordinates(one) - frame_from_coordinates(other)).flatten(-2).norm(dim=-1)
    apart = (one - other).norm(dim=-1)
    return float((frames[apart > 1e-9] / apart[apart > 1e-9]).max()) if apart.max() > 1e-9 else 0.0


def _step(opened: Opened, states: list[CoupledState]) -> dict[str, float | None]:
    r"""Compare :math:`K` of Proposition 3 (ii) with ratios in :math:`d_\infty` that were observed.

    Perturbed are all states of the trajectory, along random directions and node by node.
    """
    model, inputs = opened.model, opened.inputs
    feature_bound = max(float(state.features.norm(dim=1).max()) for state in states)
    signature_bound = float(inputs.signature.norm(dim=1).max())
    constants = model.lipschitz(1.01 * feature_bound, signature_bound)
    generator = torch.Generator().manual_seed(0)
    observed = 0.0
    for state in states[:-1]:
        after, _ = model.step(state, inputs.edges, inputs.signature)
        for number in range(2 * DIRECTIONS):
            moved = _moved_together(model, state, generator, alone=number % 2 == 1)
            following, _ = model.step(moved, inputs.edges, inputs.signature)
            observed = max(observed, _largest(following, after) / _largest(moved, state))
    return {
        "ratio": observed,
        "ratio_bound": constants.step if math.isfinite(constants.step) else None,
        "feature_bound": 1.01 * feature_bound,
        "signature_bound": signature_bound,
    }


def _moved_together(
    model: GeoF, state: CoupledState, generator: torch.Generator, *, alone: bool
) -> CoupledState:
    """Return a state moved by a thousandth of its size inside the box; one node of it, if so."""
    parts = []
    nodes = state.features.size(0)
    chosen = int(torch.randint(nodes, (1,), generator=generator))
    for part in state:
        direction = torch.randn(part.shape, generator=generator).double()
        if alone:
            direction[torch.arange(nodes) != chosen] = 0
        rows = part.flatten(1).norm(dim=1).mean()
        parts.append(part + 1e-3 * rows * direction / math.sqrt(part[0].numel()))
    return CoupledState(parts[0], model.box.project(parts[1]))


def _largest(one: CoupledState, other: CoupledState) -> float:
    r"""Return :math:`d_\infty(S, S') = \max_i (\|\xi_i - \xi'_i\|_2 + \|Z_i - Z'_i\|_F)`."""
    features = (one.features - other.features).norm(dim=1)
    coordinates = (one.coordinates - other.coordinates).flatten(1).norm(dim=1)
    return float((features + coordinates).max())


def _fixed_point(opened: Opened, state: CoupledState) -> dict[str, Any]:
    r"""Iterate :math:`\Phi_\xi` with the features before the last step (Proposition 3 (iii)).

    The iteration itself converges only to an attracting fixed point. So a fixed point is looked
    for by damped iteration too, which finds some that repel, and the Jacobian is taken there.

    Returns:
        Whether the iteration converged, its first and last change and the rate between, and the
        share of nodes that have come to rest (with some it may run in a cycle); whether a fixed
        point was found and how exactly, the share of its coordinates that are clipped (the
        proposition asks for none), and the spectral radius of the Jacobian there, ``None`` if no
        fixed point was found.
    """
    model, inputs = opened.model, opened.inputs

    def phi(coordinates: Tensor) -> Tensor:
        moved = CoupledState(state.features, coordinates)
        return model.step(moved, inputs.edges, inputs.signature)[0].coordinates

    last, changes = _iterate(phi, state.coordinates, damping=1.0)
    moves = (phi(last) - last).flatten(1).norm(dim=1)
    tail = changes[len(changes) // 2 :]
    rate = (tail[-1] / tail[0]) ** (1 / (len(tail) - 1)) if len(tail) > 1 else 0.0
    fixed, residuals = _iterate(phi, last, damping=0.2)
    found = residuals[-1] <= 1e-6 * changes[0]
    return {
        "converged": changes[-1] <= TOLERANCE * changes[0],
        "iterations": len(changes),
        "first_change": changes[0],
        "last_change": changes[-1],
        "settled_share": float((moves < 1e-6).double().mean()),
        "observed_rate": rate,
        "found": found,
        "residual": residuals[-1],
        "clipped_share": 1 - float(_strictly_inside(model, fixed).double().mean()),
        "spectral_radius": _spectral_radius(phi, fixed) if found else None,
    }


TOLERANCE = 1e-10
"""Relative change below which an iteration has converged."""


def _iterate(
    phi: Callable[[Tensor], Tensor], start: Tensor, *, damping: float, steps: int = 400
) -> tuple[Tensor, list[float]]:
    """Return where the iteration ends, and the norms of ``phi(Z) - Z`` on the way."""
    place, changes = start, list[float]()
    while len(changes) < steps and (not changes or changes[-1] > TOLERANCE * changes[0] > 0):
        change = phi(place) - place
        changes.append(float(change.norm()))
        place = place + damping * change
    return place, changes


def _strictly_inside(model: GeoF, coordinates: Tensor) -> Tensor:
    margin = 1e-9
    shifted = [model.box.project(coordinates + sign * margin) for sign in (1, -1)]
    return (shifted[0] != shifted[1]) & (shifted[0] - shifted[1] > 1.5 * margin)


def _spectral_radius(phi: Callable[[Tensor], Tensor], fixed: Tensor) -> float | None:
    """Return the largest modulus of an eigenvalue of the Jacobian, by Arnoldi's method.

    ``None`` if that does not converge.

    Products with the Jacobian are central differences; in float64 they are good to nine digits.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

    size, shape = fixed.numel(), fixed.shape
    length = 1e-5 * math.sqrt(size)

    def product(vector: np.ndarray) -> np.ndarray:
        norm = float(np.linalg.norm(vector)) or 1.0
        step = torch.from_numpy(vector.real / norm * length).view(shape)
        ahead, behind = phi(fixed + step), phi(fixed - step)
        found: np.ndarray = ((ahead - behind) / (2 * length) * norm).flatten().numpy()
        return found

    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    how: dict[str, Any] = {"ncv": 20, "maxiter": 30, "tol": 1e-4, "return_eigenvectors": False}
    try:
        values = np.abs(eigs(operator, k=1, v0=start, **how))
    except ArpackNoConvergence as error:
        values = np.abs(error.eigenvalues)
    return float(values.max()) if len(values) else None


def measure_map(run: Run, data: NodeGraph | GraphSet) -> dict[str, Any]:
    r"""Say how well classes are grouped in the states of all labelled nodes.

    Returns:
        ``states``: silhouette and purity (share of the ten nearest neighbours with a node's class)
        of the method's states; for GeoF also ``off``: the same with the correction off
        (:math:`\gamma = 0`) in the same checkpoint, both accuracies on the test part, and mean and
        deviation of :math:`\log\det L_i`.
    """
    task = _node_task(run, data, "visualise")
    labelled = task.data.graph.y >= 0
    states, coordinates = map_states(run, task)
    found: dict[str, Any] = {"states": _grouping(states[labelled], task.data.graph.y[labelled])}
    if coordinates is None:
        return found
    off, _ = map_states(run, task, correction=False)
    sizes = log_determinant(coordinates).sum(-1)
    found["off"] = _grouping(off[labelled], task.data.graph.y[labelled])
    nodes = task.split.test
    for name, value in (("accuracy", states), ("accuracy_off", off)):
        logits = run.network.readout(value)
        found[name] = accuracy(logits[nodes].detach(), task.data.graph.y[nodes])
    found["log_determinant"] = {"mean": float(sizes.mean()), "deviation": float(sizes.std())}
    return found


def map_states(
    run: Run, task: NodeTask, *, correction: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return every node's state, and GeoF's coordinates, with the correction on or off."""
    encoder, inputs = run.network.encoder, task.inputs
    with torch.no_grad():
        if not isinstance(encoder, GeoFEncoder):
            return run.network.encode(inputs).states, None
        model = encoder.geof
        with nullcontext() if correction else model.correction_off():
            state = model.evolve(inputs.x, encoder.edges_of(inputs), inputs.signature)
        return state.output, state.coordinates


def _grouping(states: Tensor, labels: Tensor) -> dict[str, float]:
    from sklearn.metrics import silhouette_score
    from sklearn.neighbors import NearestNeighbors

    points, classes = states.numpy(), labels.numpy()
    near = NearestNeighbors(n_neighbors=11).fit(points).kneighbors(return_distance=False)
    same = classes[near[:, :10]] == classes[:, None]
    return {"silhouette": float(silhouette_score(points, classes)), "purity": float(same.mean())}


Measure = Callable[[Run, NodeGraph | GraphSet], dict[str, Any]]

MEASURES: dict[str, Measure] = {
    "depth": measure_depth,
    "stability": measure_stability,
    "theory": measure_theory,
    "visualise": measure_map,
}
"""Measures by name."""


def _geof(run: Run) -> GeoF:
    encoder = run.network.encoder
    if not isinstance(encoder, GeoFEncoder):
        raise ConfigError(f"Expected a GeoF run (got {run.config.method!r} in '{run.folder}').")
    return encoder.geof


def _node_task(run: Run, data: NodeGraph | GraphSet, name: str) -> NodeTask:
    task = stored_task(run, data)
    if not isinstance(task, NodeTask):
        raise ConfigError(
            f"Expected a run of node classification for '{name}' (got the {run.config.task} run in "
            f"'{run.folder}'). Name datasets of one graph."
        )
    return task


def _open_nodes(run: Run, data: NodeGraph | GraphSet, name: str) -> Opened:
    task = _node_task(run, data, name)
    model = _geof(run)
    run.network.double()
    return Opened(run, model, task, _doubled(model, task.inputs))


def _evaluated(run: Run, data: NodeGraph | GraphSet) -> Iterator[GraphInputs]:
    """Yield what the test part is computed from: the graph, or the part's graphs in batches."""
    task = stored_task(run, data)
    model = _geof(run)
    if not isinstance(task, GraphTask):
        yield _doubled(model, task.inputs)  # type: ignore[attr-defined]
        return
    for chosen in task.split.test.split(task.batch_size):
        yield _doubled(model, task.inputs_of(chosen))


def _doubled(model: GeoF, inputs: GraphInputs) -> GraphInputs:
    """Return the inputs in float64, what edges carry in its place for single steps."""
    x, weight = inputs.x.double(), inputs.edge_weight
    weight = None if weight is None else weight.double()
    edges = model.neighbourhoods(inputs.edges, x.size(0), weight, inputs.edge_attr)
    signature = inputs.signature.double()
    return replace(inputs, x=x, signature=signature, edge_weight=weight, edges=edges)
