"""Inference in pieces gives the whole graph's answer and holds one piece at a time."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from geof import GeoF
from geof.data.batching import NeighbourSampler
from geof.errors import ConfigError, DataError, DtypeError, ShapeError
from geof.kernels import BACKENDS, Neighbourhoods
from geof.nn import Recurrence
from geof.nn.geof import evolve_in_pieces
from geof.nn.settings import VARIANTS
from tests.graphs import random_sample


def build(dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = GeoF(5, 12, **{"signature_channels": 3, "blocks": 3, "temperature": 4.0, **options})
    return model.to(dtype)


def assert_equal_to_whole(model, x, edges, signature, piece_size, tolerance=1e-12):
    whole = model.evolve(x, edges, signature).environment
    pieces = evolve_in_pieces(model, x, edges, signature, piece_size=piece_size)
    torch.testing.assert_close(pieces, whole, atol=tolerance, rtol=tolerance)
    assert not pieces.requires_grad


@pytest.mark.parametrize("piece_size", [1, 5, 16, 64, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_pieces_equal_the_whole(seed, piece_size):
    sample = random_sample(seed, nodes=40, edges=160)
    assert_equal_to_whole(build(steps=3), *sample, piece_size)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_every_variant_and_backend(variant, backend):
    sample = random_sample(1, nodes=30, edges=90)
    model = build(steps=3, backend=backend, **VARIANTS[variant])
    assert_equal_to_whole(model, *sample, piece_size=12)


def test_a_single_step_and_prepared_neighbourhoods_and_sparse_features():
    x, edges, signature = random_sample(2, nodes=30, edges=90)
    assert_equal_to_whole(build(steps=1), x, edges, signature, 12)
    prepared = Neighbourhoods.from_edge_index(edges, 30, static_shapes=True)
    assert_equal_to_whole(build(), x, prepared, signature, 12)
    assert_equal_to_whole(build(), x.to_sparse_csr(), edges, signature, 12)
    model = build()
    with model.correction_off():
        assert_equal_to_whole(model, x, edges, signature, 12)


def test_single_precision_agrees_to_its_own_accuracy():
    sample = random_sample(3, nodes=60, edges=300, dtype=torch.float32)
    assert_equal_to_whole(build(torch.float32), *sample, piece_size=20, tolerance=1e-5)


def test_odd_graphs():
    for nodes, edges in ((1, 0), (7, 0), (3, 40)):  # one node, no edges, only a few pairs
        x, edge_index, signature = random_sample(4, nodes=nodes, edges=edges)
        assert_equal_to_whole(build(), x, edge_index, signature, 2)
    empty = evolve_in_pieces(
        build(),
        torch.zeros(0, 5, dtype=torch.float64),
        torch.zeros(2, 0, dtype=torch.long),
        torch.zeros(0, 3, dtype=torch.float64),
        piece_size=3,
    )
    assert empty.shape == (0, 12)


def test_each_piece_holds_the_state_of_its_targets_alone(monkeypatch):
    seen, step = [], Recurrence.step_of_targets

    def counted(self, images, edges, state, signature, number=0):
        seen.append((number, len(state.features), len(signature), len(edges.source)))
        return step(self, images, edges, state, signature, number)

    monkeypatch.setattr(Recurrence, "step_of_targets", counted)
    x, edges, signature = random_sample(5, nodes=300, edges=900)
    evolve_in_pieces(build(steps=3), x, edges, signature, piece_size=50)
    for number in range(3):  # every node is worked on once in every step
        assert sum(nodes for step, nodes, *_ in seen if step == number) == 300
    assert all(nodes == signed and count <= 50 for _, nodes, signed, count in seen)
    assert 3 * 900 / 50 <= len(seen) <= 3 * 2 * 1200 / 50


def test_what_neighbours_see_is_made_once_per_node_and_step(monkeypatch):
    seen, images = [], Recurrence.images

    def counted(self, state, number=0):
        seen.append((number, len(state.features)))
        return images(self, state, number)

    monkeypatch.setattr(Recurrence, "images", counted)
    x, edges, signature = random_sample(5, nodes=300, edges=900)
    evolve_in_pieces(build(steps=2), x, edges, signature, piece_size=50)
    assert [sum(nodes for step, nodes in seen if step == number) for number in (0, 1)] == [300] * 2
    assert max(nodes for _, nodes in seen) <= 50


def test_first_states_are_made_block_by_block(monkeypatch):
    seen, initial = [], GeoF.initial_state

    def counted(self, x, signature):
        seen.append(len(x))
        return initial(self, x, signature)

    x, edges, signature = random_sample(5, nodes=300, edges=900)
    model = build(scale_features=True, normalise="batch").eval()
    whole = model.evolve(x, edges, signature).environment
    monkeypatch.setattr(GeoF, "initial_state", counted)
    pieces = evolve_in_pieces(model, x, edges, signature, piece_size=50)
    torch.testing.assert_close(pieces, whole, atol=1e-12, rtol=1e-12)
    assert sum(seen) == 300
    assert max(seen) <= 50
    seen.clear()  # normalisation over the nodes sees all of them in training
    evolve_in_pieces(model.train(), x, edges, signature, piece_size=50)
    assert seen == [300]


def test_a_feature_that_is_not_finite_is_named_by_its_row_in_the_graph():
    x, edges, signature = random_sample(5, nodes=300, edges=900)
    x[217, 3] = torch.nan
    with pytest.raises(DataError, match=r"1 of 300 rows.*row 217"):
        evolve_in_pieces(build().eval(), x, edges, signature, piece_size=50)


def test_the_given_tensors_are_left_alone():
    x, edges, signature = random_sample(5, nodes=30, edges=90)
    kept = x.clone(), signature.clone()
    model = build(atlas_initialisation=False)
    parameters = [part.clone() for part in model.parameters()]
    evolve_in_pieces(model, x, edges, signature, piece_size=9)
    assert torch.equal(x, kept[0])
    assert torch.equal(signature, kept[1])
    assert all(torch.equal(a, b) for a, b in zip(parameters, model.parameters(), strict=True))


def test_nodes_that_start_from_one_geometry():
    x, edges, _ = random_sample(5, nodes=30, edges=90)
    model = GeoF(5, 12, blocks=3, steps=3).double()
    whole = model(x, edges)
    pieces = evolve_in_pieces(model, x, edges, None, piece_size=9)
    torch.testing.assert_close(pieces, whole, atol=1e-12, rtol=1e-12)


def test_each_step_of_the_reference_sees_only_a_piece(monkeypatch):
    sizes = []
    step = Recurrence.step

    def counted(self, state, edges, signature, number=0, **options):
        sizes.append((number, len(state.features), len(edges.source)))
        return step(self, state, edges, signature, number, **options)

    monkeypatch.setattr(Recurrence, "step", counted)
    x, edges, signature = random_sample(5, nodes=300, edges=900)
    model = build(steps=3, backend="reference")
    evolve_in_pieces(model, x, edges, signature, piece_size=50)
    assert {step for step, *_ in sizes} == {0, 1, 2}
    assert max(nodes for _, nodes, _ in sizes) <= 50
    assert max(count for *_, count in sizes) <= 100  # edges, and a self-loop for each node
    assert 3 * 900 / 50 <= len(sizes) <= 3 * 2 * 1200 / 50


class LargestTensor(TorchDispatchMode):
    """Remembers the most entries of a floating-point tensor that any operation returned."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.entries = max(self.entries, value.numel())
        return result


def test_frames_and_moments_never_exist_for_the_whole_graph():
    nodes, blocks, m = 400, 2, 6
    x, edges, signature = random_sample(6, nodes=nodes, edges=1200)
    # The native kernels form no frames at all; the torch backend does.
    model = GeoF(5, 12, signature_channels=3, blocks=blocks, backend="torch").double()
    coordinates = nodes * blocks * m * (m + 1) // 2  # the widest part of a state
    frames = nodes * blocks * m * m
    with LargestTensor() as whole, torch.no_grad():
        model.evolve(x, edges, signature)
    with LargestTensor() as pieces:
        evolve_in_pieces(model, x, edges, signature, piece_size=60)
    assert whole.entries >= frames
    assert pieces.entries == coordinates


def test_sampling_every_neighbour_gives_the_seeds_the_whole_graphs_values():
    x, edges, signature = random_sample(7, nodes=80, edges=160)
    model = build(steps=2)
    whole = model(x, edges, signature)
    sampler = NeighbourSampler(edges, 80, [-1, -1], batch_size=9, seed=1)
    for batch in sampler.batches(epoch=0):
        assert batch.num_nodes < 80
        h = model(x[batch.n_id], batch.edge_index, signature[batch.n_id])
        seeds = slice(batch.batch_size)
        torch.testing.assert_close(h[seeds], whole[batch.n_id[seeds]], atol=1e-12, rtol=1e-12)


def test_bad_arguments():
    x, edges, signature = random_sample(0)
    model = build()
    with pytest.raises(ConfigError, match="'piece_size'"):
        evolve_in_pieces(model, x, edges, signature, piece_size=0)
    with pytest.raises(DtypeError, match="'x'"):
        evolve_in_pieces(model, x.float(), edges, signature, piece_size=9)
    with pytest.raises(ShapeError, match="'signature'"):
        evolve_in_pieces(model, x, edges, signature[1:], piece_size=9)
    with pytest.raises(DataError, match="'edge_index'"):
        evolve_in_pieces(model, x, edges + 9, signature, piece_size=9)
