"""Every number of the geometry view against its definition, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from geof import GeoF
from geof.geometry import frame_from_coordinates
from geof.report.drawing import (
    NEIGHBOURS,
    BlockGeometry,
    feature_loadings,
    neighbours_of,
    node_views,
    numbers_per_node,
    trajectory_of,
)
from geof.report.html import plain, short

NODES = [0, 3, 19]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return GeoF(7, 12, signature_channels=3, blocks=3, steps=3).double()


@pytest.fixture(scope="module")
def state(model):
    torch.manual_seed(1)
    star = torch.stack([torch.zeros(19, dtype=torch.long), torch.arange(1, 20)])
    ring = torch.stack([torch.arange(1, 19), torch.arange(2, 20)])
    edges = torch.cat([star, ring], dim=1)
    x, signature = 3 * torch.randn(20, 7).double(), torch.rand(20, 3).double()
    both = torch.cat([edges, edges.flip(0)], dim=1)
    return model.evolve(x, both, signature, trajectory=True)


@pytest.fixture(scope="module")
def geometry(state):
    return BlockGeometry.of(trajectory_of(state, torch.tensor(NODES)))


def frames(state) -> np.ndarray:
    """The frames of the nodes at every step, (steps + 1, nodes, B, m, m)."""
    steps = [state.initial_coordinates, *(trace.coordinates for trace in state.trajectory)]
    return np.stack([frame_from_coordinates(z[NODES]).detach().numpy() for z in steps])


def test_the_plane_is_what_the_last_frame_stretches_most(state, geometry):
    for i, blocks in enumerate(frames(state)[-1]):
        for b, frame in enumerate(blocks):
            _, lengths, rows = np.linalg.svd(frame)
            ours = geometry.plane[i, b].numpy()
            for k in range(2):
                assert abs(ours[:, k] @ rows[k]) == pytest.approx(1, abs=1e-9)
            assert geometry.stretch[-1, i, b].numpy() == pytest.approx(lengths[:2], rel=1e-10)


def test_the_shadow_is_the_projected_unit_ball_of_the_metric(state, geometry):
    draw = np.random.default_rng(0)
    for step, nodes in enumerate(frames(state)):
        for i, blocks in enumerate(nodes):
            for b, frame in enumerate(blocks):
                metric, plane = frame.T @ frame, geometry.plane[i, b].numpy()
                shadow = geometry.shadow[step, i, b].numpy()
                assert shadow == pytest.approx(plane.T @ np.linalg.inv(metric) @ plane, rel=1e-9)
                ball = np.linalg.solve(frame, draw.normal(size=(4, 500)))
                ball /= np.sqrt(np.einsum("in,ij,jn->n", ball, metric, ball))
                cast = plane.T @ ball
                inside = np.einsum("in,ij,jn->n", cast, np.linalg.inv(shadow), cast)
                assert inside.max() <= 1 + 1e-9
                assert inside.max() > 0.95  # and it is no larger than it must be


def test_stretch_and_log_determinant(state, geometry):
    for step, nodes in enumerate(frames(state)):
        for i, blocks in enumerate(nodes):
            for b, frame in enumerate(blocks):
                moved = frame @ geometry.plane[i, b].numpy()
                wanted = np.linalg.norm(moved, axis=0)
                assert geometry.stretch[step, i, b].numpy() == pytest.approx(wanted, rel=1e-12)
                wanted = np.linalg.slogdet(frame)[1]
                assert float(geometry.log_determinant[step, i, b]) == pytest.approx(wanted)


def test_the_change_of_all_nodes_averages_to_that_of_the_graph(state):
    everybody = BlockGeometry.of(trajectory_of(state, torch.arange(20)))
    steps = [state.initial_coordinates, *(trace.coordinates for trace in state.trajectory)]
    for step, trace in enumerate(state.trajectory):
        moved = (steps[step + 1] - steps[step]).detach().numpy()
        wanted = np.linalg.norm(moved, axis=-1).mean(-1)
        assert everybody.change[step].numpy() == pytest.approx(wanted, rel=1e-12)
        whole = float(trace.geometry_change.detach())
        assert float(everybody.change[step].mean()) == pytest.approx(whole)


def test_feature_loadings(model, geometry):
    index, loading = feature_loadings(model.feature_lift.weight, geometry.plane)
    weight = model.feature_lift.weight.detach().numpy().reshape(3, 4, 7)
    for i in range(len(NODES)):
        for b in range(3):
            for k in range(2):
                pushes = weight[b].T @ geometry.plane[i, b, :, k].numpy()
                order = np.argsort(-np.abs(pushes))[:3]
                assert index[i, b, k].tolist() == order.tolist()
                assert loading[i, b, k].numpy() == pytest.approx(pushes[order], rel=1e-12)


def test_neighbours_and_weights(state):
    for node in NODES:
        others, weight = neighbours_of(state, node)
        mask = state.edges.target == node
        assert sorted(others.tolist()) == sorted(state.edges.source[mask].tolist())
        for step, trace in enumerate(state.trajectory):
            given = dict(
                zip(state.edges.source[mask].tolist(), trace.weight[mask].tolist(), strict=True)
            )
            assert weight[:, step].tolist() == [given[other] for other in others.tolist()]
        assert weight.sum(0).tolist() == pytest.approx([1.0] * 3)
        means = weight.mean(-1)
        assert bool((means[:-1] >= means[1:]).all())


def test_the_view_holds_these_numbers_with_four_digits(model, state, geometry):
    hub, *_ = views = node_views(state, NODES, model.feature_lift.weight)
    assert [view["node"] for view in views] == NODES
    assert hub["degree"] == 19
    assert len(hub["neighbours"]) == NEIGHBOURS
    assert hub["rest"]["count"] == 20 - NEIGHBOURS
    for step in range(3):
        total = sum(row[step] for row in hub["weights"]) + hub["rest"]["weights"][step]
        assert total == pytest.approx(1, abs=2e-3)
    for i, view in enumerate(views):
        shadow = geometry.shadow[:, i]
        packed = torch.stack([shadow[..., 0, 0], shadow[..., 0, 1], shadow[..., 1, 1]], -1)
        np.testing.assert_allclose(view["shadow"], packed, rtol=5.1e-4)
        np.testing.assert_allclose(view["logdet"], geometry.log_determinant[:, i], rtol=5.1e-4)
        np.testing.assert_allclose(view["stretch"], geometry.stretch[:, i], rtol=5.1e-4)
        np.testing.assert_allclose(view["change"], geometry.change[:, i], rtol=5.1e-4)


def test_blocks_of_one_coordinate_are_intervals():
    coords = torch.tensor([[[[0.5], [-1.0]]], [[[1.0], [2.0]]]]).double()  # two steps, one node
    geometry = BlockGeometry.of(coords)
    assert geometry.plane.shape == (1, 2, 1, 1)
    np.testing.assert_allclose(geometry.shadow[..., 0, 0], torch.exp(-2 * coords[..., 0]))
    np.testing.assert_allclose(geometry.stretch[..., 0], torch.exp(coords[..., 0]))


def test_numbers_per_node_is_about_what_a_view_holds(model, state):
    def count(value) -> int:
        if isinstance(value, dict):
            return sum(map(count, value.values()))
        return sum(map(count, value)) if isinstance(value, list) else 1

    (view,) = node_views(state, [0], model.feature_lift.weight)
    assert count(view) == pytest.approx(numbers_per_node(3, 3), rel=0.1)


def test_short_and_plain_numbers():
    assert short(torch.tensor([1.23456, float("inf")])) == [1.235, None]
    assert short(np.float64(0.000123456)) == 0.0001235
    assert short([3, "text", None]) == [3, "text", None]
    assert plain({"a": (1.0, float("nan")), 2: "x"}) == {"a": [1.0, None], "2": "x"}
