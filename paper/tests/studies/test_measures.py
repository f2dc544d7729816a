"""What is measured on a trained network, against direct computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from geof.errors import ConfigError
from geof.nn import CoupledState, GeoF
from geof.training.predict import Run, stored_task
from geof.training.trials import Runner
from geof_paper.grid.cells import Cell, Row
from geof_paper.studies import measures
from geof_paper.studies.measures import MEASURES
from paper.tests.stand_ins import small_graph, small_set
from tests.graphs import random_sample


@pytest.fixture
def trained(tiny, small_presets, tmp_path):
    """Return a run and its data: ``trained("CiteSeer")``."""

    def train(dataset: str, method: str = "geof"):
        task = "graph" if dataset == "PROTEINS" else "node"
        cell = Cell(Row(task, dataset, method, "tuned" if method == "geof" else "plain"), "0")
        Runner().train(cell.config, cell.folder(tmp_path))
        data = (small_set if task == "graph" else small_graph)(dataset)
        return Run.open(cell.folder(tmp_path)), data

    return train


def test_depth_is_the_trajectorys_change(trained):
    run, data = trained("CiteSeer")
    found = MEASURES["depth"](run, data)["geometry_change"]
    inputs = stored_task(run, data).inputs
    model = run.network.encoder.geof.double()
    state = model.evolve(
        inputs.x.double(), inputs.edges, inputs.signature.double(), trajectory=True
    )
    wanted = [float(step.geometry_change) for step in state.trajectory]
    assert found == pytest.approx(wanted, rel=1e-9)
    previous = state.trajectory[-2].coordinates
    by_hand = (state.coordinates - previous).norm(dim=-1).mean()
    assert found[-1] == pytest.approx(float(by_hand), rel=1e-9)


def test_depth_of_a_set_is_over_all_nodes_of_the_test_part(trained):
    run, data = trained("PROTEINS")
    found = MEASURES["depth"](run, data)["geometry_change"]
    task = stored_task(run, data)
    inputs = task.inputs_of(task.split.test)
    model = run.network.encoder.geof.double()
    state = model.evolve(
        inputs.x.double(), inputs.edges, inputs.signature.double(), trajectory=True
    )
    assert found == pytest.approx([float(s.geometry_change) for s in state.trajectory], rel=1e-9)


def test_stability(trained):
    run, data = trained("CiteSeer")
    clean = run.network.eval()
    with torch.no_grad():
        task = stored_task(run, data)
        logits = clean(task.inputs)[task.split.test]
        score = 100 * float((logits.argmax(-1) == data.graph.y[task.split.test]).double().mean())
    found = MEASURES["stability"](run, data)
    assert found["clean"] == pytest.approx(score)
    assert len(found["ratio"]) == len(found["accuracy"]) == len(found["sigmas"]) == 8
    assert all(len(values) == measures.DIRECTIONS for values in found["ratio"])
    small = np.array(found["ratio"][:2])
    assert np.ptp(small, axis=0).max() < 0.01 * small.mean()  # proportional when small
    again = MEASURES["stability"](Run.open(run.folder), data)
    assert again == found


def test_the_ratio_is_the_papers(trained):
    run, data = trained("CiteSeer")
    opened = measures._open_nodes(run, data, "stability")
    model, inputs = opened.model, opened.inputs
    with torch.no_grad():
        start = model.initial_state(inputs.x, inputs.signature)
        moved = CoupledState(start.features + 0.1, start.coordinates)
        after, other = (model.step(s, inputs.edges, inputs.signature)[0] for s in (start, moved))
        ratio = measures._one_step_ratio(model, inputs, start, after, moved)
    blocks = sum(
        (after.coordinates[:, b] - other.coordinates[:, b]).norm() for b in range(model.blocks)
    )
    wanted = ((after.features - other.features).norm() + blocks) / (
        0.1 * start.features.numel() ** 0.5
    )
    assert ratio == pytest.approx(float(wanted), rel=1e-9)


def test_the_output_from_a_state_is_the_models(trained):
    run, data = trained("CiteSeer")
    opened = measures._open_nodes(run, data, "stability")
    model, inputs = opened.model, opened.inputs
    with torch.no_grad():
        start = model.initial_state(inputs.x, inputs.signature)
        found = measures._output_from(model, inputs, start)
        torch.testing.assert_close(found, model(inputs.x, inputs.edges, inputs.signature))


def test_bounds_hold(trained):
    found = MEASURES["theory"](*trained("CiteSeer"))
    frames, step = found["frames"], found["step"]
    for name in ("norm", "inverse_norm", "lipschitz"):
        assert 0 < frames[name] <= frames[f"{name}_bound"]
    assert 0 < step["ratio"] <= step["ratio_bound"]
    point = found["fixed_point"]
    assert 0 <= point["clipped_share"] <= 1
    assert 0 <= point["settled_share"] <= 1


def contraction(size: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return 0.7 * matrix / torch.linalg.eigvals(matrix).abs().max()


def test_the_spectral_radius_is_the_dense_jacobians():
    matrix = contraction()
    found = measures._spectral_radius(lambda z: torch.sin(matrix @ z), torch.zeros(12).double())
    assert found == pytest.approx(0.7, rel=1e-3)


def test_a_contraction_is_found_with_its_rate():
    matrix = contraction()
    start = torch.ones(12, dtype=torch.float64)
    place, changes = measures._iterate(lambda z: matrix @ z + 1, start, damping=1.0)
    wanted = torch.linalg.solve(
        torch.eye(12, dtype=torch.float64) - matrix, torch.ones(12).double()
    )
    torch.testing.assert_close(place, wanted, rtol=1e-6, atol=1e-6)
    tail = changes[len(changes) // 2 :]
    assert (tail[-1] / tail[0]) ** (1 / (len(tail) - 1)) == pytest.approx(0.7, abs=0.05)


def test_damping_finds_a_fixed_point_that_repels():
    def phi(z: torch.Tensor) -> torch.Tensor:
        return -3 * z + 4

    start = torch.full((3,), 1.1, dtype=torch.float64)
    place, changes = measures._iterate(phi, start, damping=0.2)
    torch.testing.assert_close(place, torch.ones(3, dtype=torch.float64))
    assert changes[-1] <= measures.TOLERANCE * changes[0]


def test_the_jacobian_of_a_real_step_on_a_small_graph():
    x, edge_index, u = random_sample(0)
    torch.manual_seed(0)
    model = GeoF(x.size(1), 4, signature_channels=u.size(1), blocks=2, backend="torch").double()
    x, u = x.double(), u.double()
    with torch.no_grad():
        state = model.initial_state(x, u)
        edges = model.evolve(x, edge_index, u).edges

    def phi(coordinates: torch.Tensor) -> torch.Tensor:
        return model.step(CoupledState(state.features, coordinates), edges, u)[0].coordinates

    start = state.coordinates.detach()
    dense = torch.autograd.functional.jacobian(phi, start).reshape(start.numel(), start.numel())
    wanted = float(torch.linalg.eigvals(dense).abs().max())
    with torch.no_grad():
        assert measures._spectral_radius(phi, start) == pytest.approx(wanted, rel=1e-3)


def test_maps(trained):
    run, data = trained("CiteSeer")
    found = MEASURES["visualise"](run, data)
    assert {"states", "off", "accuracy", "accuracy_off", "log_determinant"} <= found.keys()
    assert 0 <= found["states"]["purity"] <= 1
    assert -1 <= found["states"]["silhouette"] <= 1
    assert run.network.encoder.geof.settings.correction_strength > 0  # as it was
    other = MEASURES["visualise"](*trained("CiteSeer", "gcn"))
    assert other.keys() == {"states"}


def test_grouping_of_known_points():
    points = torch.tensor([[0.0, 0.1 * i] for i in range(12)] + [[9.0, 0.1 * i] for i in range(12)])
    labels = torch.tensor([0] * 12 + [1] * 12)
    found = measures._grouping(points, labels)
    assert found["purity"] == 1.0
    assert found["silhouette"] > 0.9
    assert measures._grouping(points, labels.flip(0).roll(6))["purity"] == pytest.approx(
        0.5, abs=0.1
    )


def test_what_a_measure_cannot_do_is_said(trained):
    with pytest.raises(ConfigError, match="node classification for 'stability'"):
        MEASURES["stability"](*trained("PROTEINS"))
    with pytest.raises(ConfigError, match="Expected a GeoF run"):
        MEASURES["depth"](*trained("CiteSeer", "gcn"))
