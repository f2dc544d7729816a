"""Eigenpairs are the Laplacian's, whole eigenspaces, computed once per graph."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import to_undirected

from geof.data.batching import NeighbourSampler
from geof.errors import DataError
from geof.kernels.neighbourhood import Cache
from geof.methods.interface import GraphInputs
from geof_paper.baselines import spectrum as module
from geof_paper.baselines.blocks import Blocks
from geof_paper.baselines.spectrum import Spectrum, SpectrumOptions, cached_spectra, graph_spectrum
from tests.graphs import random_sample

NODE = SpectrumOptions(loops=False, share=0.3, eigenpairs=256, rescale=False)
GRAPH = SpectrumOptions(loops=True, share=1.0, eigenpairs=256, rescale=True)


def laplacian(edge_index: torch.Tensor, nodes: int, loops: bool) -> torch.Tensor:
    """Return the dense Laplacian; a node without edges has a row of zeros."""
    A = torch.eye(nodes).double() if loops else torch.zeros(nodes, nodes).double()
    for i, j in edge_index.t().tolist():
        if i != j:
            A[i, j] = A[j, i] = 1
    degree = A.sum(1)
    L = torch.zeros(nodes, nodes).double()
    for i in range(nodes):
        for j in range(nodes):
            if A[i, j]:
                L[i, j] = -A[i, j] / (degree[i] * degree[j]) ** 0.5
        if degree[i]:
            L[i, i] += 1
    return L


def projector(spectrum: Spectrum) -> torch.Tensor:
    """Return the projection on everything that is kept, the null space included."""
    same = spectrum.component[:, None] == spectrum.component[None]
    return spectrum.vectors @ spectrum.vectors.t() + same * torch.outer(
        spectrum.null, spectrum.null
    )


def path(nodes: int) -> torch.Tensor:
    return to_undirected(torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)]))


def star(nodes: int) -> torch.Tensor:
    return to_undirected(torch.stack([torch.zeros(nodes - 1).long(), torch.arange(1, nodes)]))


def ring(nodes: int) -> torch.Tensor:
    return torch.stack([torch.arange(nodes), torch.arange(1, nodes + 1) % nodes])


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_smallest_pairs_of_the_laplacian(seed, loops):
    """Directed edges, repeats, self-loops, several components and isolated nodes."""
    _, edge_index, _ = random_sample(seed, nodes=20, edges=17)
    settings = SpectrumOptions(loops=loops, share=0.75, eigenpairs=256, rescale=False)
    found = graph_spectrum(edge_index, 20, settings)
    L = laplacian(edge_index, 20, loops)
    values, vectors = torch.linalg.eigh(L)
    assert found.components == int((values < 1e-9).sum()) > 1
    count = found.components + len(found.values)
    assert count <= 15
    torch.testing.assert_close(found.values, values[found.components : count])
    assert count == 15 or values[15] - values[count] < 1e-8  # fewer for a tie only
    wanted = vectors[:, :count] @ vectors[:, :count].t()
    torch.testing.assert_close(projector(found), wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(L @ found.vectors, found.vectors * found.values)


def test_the_null_space_is_one_vector_per_component():
    edge_index = torch.tensor([[0, 1, 3], [1, 2, 4]])  # 0-1-2, 3-4, 5
    found = graph_spectrum(edge_index, 6, NODE)
    assert found.components == 3
    wanted = torch.tensor([1 / 4, 2 / 4, 1 / 4, 1 / 2, 1 / 2, 1]).double().sqrt()
    torch.testing.assert_close(found.null, wanted)
    assert found.component[0] == found.component[1] == found.component[2] != found.component[3]
    assert found.vectors.shape == (6, 0)  # two of six are wanted, three are zero


@pytest.mark.parametrize("edge_index", [path(9), star(7), ring(8)], ids=["path", "star", "ring"])
def test_rescaled_eigenvalues_end_at_two_exactly(edge_index):
    nodes = int(edge_index.max()) + 1
    found = graph_spectrum(edge_index, nodes, GRAPH)
    values = torch.linalg.eigvalsh(laplacian(edge_index, nodes, loops=True))
    assert found.values[-1] == 2 == found.to(torch.float32).values[-1]
    torch.testing.assert_close(found.values, 2 * values[1:] / values[-1])
    torch.testing.assert_close(projector(found), torch.eye(nodes).double())


def test_a_cut_never_splits_an_eigenspace():
    """A ring has pairs of equal eigenvalues, a star one eigenvalue 1 of multiplicity n - 2."""
    kept = {
        count: len(
            graph_spectrum(
                ring(12), 12, SpectrumOptions(False, 1.0, eigenpairs=count, rescale=False)
            ).values
        )
        for count in range(1, 13)
    }
    assert kept == {1: 0, 2: 2, 3: 2, 4: 4, 5: 4, 6: 6, 7: 6, 8: 8, 9: 8, 10: 10, 11: 11, 12: 11}
    assert len(graph_spectrum(star(40), 40, NODE).values) == 0


@pytest.mark.parametrize("settings", [NODE, GRAPH], ids=["node", "graph"])
@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_without_edges_there_is_only_the_null_space(nodes, settings):
    found = graph_spectrum(torch.empty(2, 0, dtype=torch.long), nodes, settings)
    assert (len(found.values), found.components) == (0, nodes)
    assert torch.equal(found.null, torch.ones(nodes).double())


@pytest.mark.parametrize("settings", [NODE, GRAPH], ids=["node", "graph"])
def test_lanczos_finds_the_same(monkeypatch, settings):
    _, edge_index, _ = random_sample(0, nodes=150, edges=260)
    edge_index = edge_index % 140  # ten nodes alone
    settings = SpectrumOptions(settings.loops, settings.share, 20, settings.rescale)
    dense = graph_spectrum(edge_index, 150, settings)
    monkeypatch.setattr(module, "DENSE_NODES", 30)
    sparse = graph_spectrum(edge_index, 150, settings)
    assert len(sparse.values) == 20
    torch.testing.assert_close(sparse.values, dense.values, rtol=0, atol=1e-10)
    torch.testing.assert_close(projector(sparse), projector(dense), rtol=0, atol=1e-8)
    again = graph_spectrum(edge_index, 150, settings)
    assert torch.equal(again.vectors, sparse.vectors)
    unlimited = SpectrumOptions(settings.loops, 1.0, None, settings.rescale)
    whole = projector(graph_spectrum(edge_index, 150, unlimited))
    torch.testing.assert_close(whole, torch.eye(150).double())


def test_a_solver_that_fails_says_what_to_do(monkeypatch):
    import scipy.sparse.linalg as linalg

    def fail(*_, **__):
        raise linalg.ArpackNoConvergence("no", torch.zeros(2).numpy(), torch.zeros(1, 2).numpy())

    monkeypatch.setattr(module, "DENSE_NODES", 5)
    monkeypatch.setattr(linalg, "eigsh", fail)
    with pytest.raises(DataError, match=r"got 2\).*fewer 'eigenpairs'"):
        graph_spectrum(path(30), 30, NODE)


def batch_of(graphs, order=None):
    """Return inputs with the graphs side by side, nodes in a given order and edges in any."""
    sizes = [len(x) for x, _, _ in graphs]
    first = torch.tensor([0, *sizes]).cumsum(0)
    edge_index = torch.cat([e + f for (_, e, _), f in zip(graphs, first[:-1], strict=True)], 1)
    x, u = torch.cat([g[0] for g in graphs]), torch.cat([g[2] for g in graphs])
    batch = torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes))
    if order is not None:
        edge_index = torch.argsort(order)[edge_index]
        edge_index = edge_index[:, torch.argsort(edge_index[0], stable=True)]
        x, u, batch = x[order], u[order], batch[order]
    return x, edge_index, u, batch, len(graphs)


def test_spectra_are_kept_with_their_graphs(monkeypatch):
    graphs = [random_sample(seed, nodes=4 + seed, edges=9) for seed in range(3)]
    caches = [Cache(), Cache(), Cache()]
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    given = GraphInputs.build(*batch_of(graphs, order), caches=caches)
    spectra = cached_spectra(given, GRAPH)
    for found, (x, edge_index, _), g in zip(spectra, graphs, range(3), strict=True):
        # Nodes of a graph are numbered in the order of the batch.
        own = order[given.batch == g] - sum(len(y[0]) for y in graphs[:g])
        alone = graph_spectrum(torch.argsort(own)[edge_index], len(x), GRAPH)
        assert torch.equal(found.values, alone.values)
        assert torch.equal(found.vectors, alone.vectors)
    monkeypatch.setattr(module, "graph_spectrum", None)
    other = GraphInputs.build(*batch_of([graphs[2], graphs[0]]), caches=[caches[2], caches[0]])
    again = cached_spectra(other, GRAPH)
    assert again[0] is spectra[2]
    assert again[1] is spectra[0]


def test_a_large_graph_is_solved_once_per_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("GEOF_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "DENSE_NODES", 20)
    x, edge_index, u = random_sample(0, nodes=60, edges=150)
    settings = SpectrumOptions(loops=False, share=0.3, eigenpairs=8, rescale=False)
    (first,) = cached_spectra(GraphInputs.build(x, edge_index, u), settings)
    assert not any(tmp_path.iterdir())  # a graph that may be a sample leaves nothing behind
    cached_spectra(GraphInputs.build(x, edge_index, u), settings, on_disk=True)
    monkeypatch.setattr(module, "graph_spectrum", None)
    (again,) = cached_spectra(GraphInputs.build(x, edge_index, u), settings, on_disk=True)
    assert torch.equal(again.vectors, first.vectors)
    assert again.components == first.components
    with pytest.raises(TypeError):  # other edges, other eigenpairs
        cached_spectra(GraphInputs.build(x, edge_index[:, 1:], u), settings, on_disk=True)


def test_a_sample_counts_in_both_directions():
    x, edge_index, u = random_sample(1, nodes=30, edges=60)
    batch = next(NeighbourSampler(edge_index, 30, [2, 2], batch_size=5, seed=1).batches(epoch=0))
    nodes = len(batch.n_id)
    given = GraphInputs.build(x[batch.n_id], batch.edge_index, u[batch.n_id])
    (found,) = cached_spectra(given, SpectrumOptions(False, 1.0, 256, False))
    L = laplacian(batch.edge_index, nodes, loops=False)
    torch.testing.assert_close(L @ found.vectors, found.vectors * found.values)


def test_blocks_put_every_row_back():
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, 5, (70,), generator=generator)
    batch[batch == 3] = 4  # one graph has no rows, one has many
    blocks = Blocks.sort(batch, 5)
    x = torch.randn(70, 3, generator=generator)
    assert torch.equal(blocks.join(blocks.split(x)), x)
    assert torch.equal(blocks.sizes, torch.bincount(batch, minlength=5))
    for bucket, rows in zip(blocks.buckets, blocks.split(x), strict=True):
        for members, real, values in zip(bucket.rows, bucket.real, rows, strict=True):
            assert len(batch[members[real]].unique()) == 1
            assert torch.equal(blocks.local[members[real]], torch.arange(int(real.sum())))
            assert torch.equal(values[real], x[members[real]])
    (whole,) = Blocks.sort(torch.zeros(7, dtype=torch.long), 1).buckets
    assert whole.rows.shape == (1, 7)
    assert bool(whole.real.all())
