from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import to_undirected

from geof.errors import ConfigError, DataError, DtypeError, ShapeError
from geof.signature import AddStructuralSignature, structural_signature

COLUMN_BYTES = 32  # what one column of one node takes of the memory budget, per thread


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """Random simple undirected edges; some nodes stay isolated when there are few edges."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, max(num_nodes, 1), (2, num_edges), generator=generator)
    return to_undirected(pairs[:, pairs[0] != pairs[1]], num_nodes=num_nodes)


def cycle(num_nodes: int) -> Tensor:
    nodes = torch.arange(num_nodes)
    return to_undirected(torch.stack([nodes, nodes.roll(-1)]))


def complete(num_nodes: int) -> Tensor:
    return (1 - torch.eye(num_nodes)).nonzero().T.contiguous()


def star(num_leaves: int) -> Tensor:
    leaves = torch.arange(1, num_leaves + 1)
    return to_undirected(torch.stack([torch.zeros_like(leaves), leaves]))


def dense_returns(edge_index: Tensor, num_nodes: int, walk_length: int) -> Tensor:
    """The definition: diagonals of the powers of D^-1 A in float64."""
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency[edge_index[0], edge_index[1]] = 1
    step = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    powers = [torch.linalg.matrix_power(step, k).diagonal() for k in range(1, walk_length + 1)]
    return torch.stack(powers, dim=1)


def returns(edge_index: Tensor, num_nodes: int, **options: object) -> Tensor:
    options = {"dtype": torch.float64, **options}
    return structural_signature(edge_index, num_nodes, **options).values[:, 1:]


graphs = st.integers(1, 14).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30),
    )
)


def as_edges(pairs: list[tuple[int, int]]) -> Tensor:
    return to_undirected(torch.tensor(pairs, dtype=torch.long).view(-1, 2).T)


class TestExact:
    @given(graphs, st.integers(1, 9))
    @settings(derandomize=True, max_examples=60, deadline=None)
    def test_equals_dense_matrix_powers(self, graph, walk_length):
        num_nodes, pairs = graph
        edge_index = as_edges([(i, j) for i, j in pairs if i != j])
        ours = returns(edge_index, num_nodes, walk_length=walk_length)
        expected = dense_returns(edge_index, num_nodes, walk_length)
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("num_nodes", [80, 2100])  # PyG changes its algorithm at 2,000
    def test_equals_pyg_on_simple_graphs(self, num_nodes):
        edge_index = random_graph(num_nodes, 2 * num_nodes)
        data = AddRandomWalkPE(walk_length=6)(Data(edge_index=edge_index, num_nodes=num_nodes))
        ours = structural_signature(edge_index, num_nodes, walk_length=6).values
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours[:, 1:], data.random_walk_pe, rtol=0, atol=1e-6)

    def test_cycle_counts_balanced_walks(self):
        # Shorter than the cycle, a closed walk of 2h steps goes right exactly h times.
        expected = torch.tensor([0, 1 / 2, 0, 3 / 8, 0, 5 / 16], dtype=torch.float64)
        torch.testing.assert_close(
            returns(cycle(9), 9, walk_length=6), expected.expand(9, 6), rtol=1e-14, atol=0
        )

    @pytest.mark.parametrize("num_nodes", [2, 3, 40])
    def test_complete_graph_has_two_eigenvalues(self, num_nodes):
        m, k = num_nodes - 1, torch.arange(1, 13, dtype=torch.float64)
        expected = (1 + m * (-1 / m) ** k) / num_nodes
        ours = returns(complete(num_nodes), num_nodes, walk_length=12)
        torch.testing.assert_close(ours, expected.expand(num_nodes, 12), rtol=1e-12, atol=1e-15)

    def test_star_returns_to_hub_surely_and_to_a_leaf_evenly(self):
        ours = returns(star(50), 51, walk_length=7)
        assert not ours[:, 0::2].any()
        torch.testing.assert_close(ours[0, 1::2], torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(ours[1:, 1::2], torch.full((50, 3), 0.02, dtype=torch.float64))

    @pytest.mark.parametrize("columns", [1, 3, 7, 32])
    def test_block_size_changes_only_rounding(self, columns):
        edge_index = random_graph(70, 90)
        budget = columns * 70 * COLUMN_BYTES * torch.get_num_threads()
        ours = returns(edge_index, 70, walk_length=9, memory_bytes=budget)
        torch.testing.assert_close(ours, dense_returns(edge_index, 70, 9), rtol=1e-12, atol=1e-15)

    def test_same_bits_for_any_number_of_threads_and_their_number_stays(self):
        edge_index = random_graph(300, 900)
        before, results = torch.get_num_threads(), []
        try:
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                results.append(returns(edge_index, 300))
                assert torch.get_num_threads() == number
                with ThreadPoolExecutor(1) as other:  # new threads take the global setting
                    assert other.submit(torch.get_num_threads).result() == number
        finally:
            torch.set_num_threads(before)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])

    def test_node_permutation_permutes_the_rows(self):
        edge_index = random_graph(60, 100)
        order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
        permuted = structural_signature(order[edge_index], 60, dtype=torch.float64).values
        original = structural_signature(edge_index, 60, dtype=torch.float64).values
        torch.testing.assert_close(permuted[order], original, rtol=1e-12, atol=1e-15)

    def test_self_loops_duplicates_and_edge_order_are_ignored(self):
        edge_index = random_graph(30, 50)
        loops = torch.arange(30).expand(2, -1)
        messy = torch.cat([edge_index.flip(1), loops, edge_index[:, :7], loops], dim=1)
        expected = structural_signature(edge_index, 30).values
        assert torch.equal(structural_signature(messy, 30).values, expected)


class TestBatch:
    @pytest.mark.parametrize("degree", ["max", "log"])
    def test_batch_equals_each_graph_alone(self, degree):
        sizes = [5, 1, 70, 12, 3, 40, 1]
        parts = [Data(edge_index=random_graph(n, n, seed=n), num_nodes=n) for n in sizes]
        batch = Batch.from_data_list(parts)
        options = {"walk_length": 10, "degree": degree, "dtype": torch.float64}
        ours = structural_signature(
            batch.edge_index, batch.num_nodes, batch=batch.batch, **options
        ).values
        alone = [structural_signature(d.edge_index, d.num_nodes, **options).values for d in parts]
        torch.testing.assert_close(ours, torch.cat(alone), rtol=1e-13, atol=1e-16)

    def test_interleaved_graphs_normalise_degrees_apart(self):
        edge_index = to_undirected(torch.tensor([[0, 0, 1], [2, 4, 3]]))
        batch = torch.tensor([7, 2, 7, 2, 7])
        ours = structural_signature(edge_index, 5, walk_length=0, batch=batch).values
        assert ours.squeeze(1).tolist() == [1, 1, 0.5, 1, 0.5]

    def test_edge_between_graphs_is_refused(self):
        with pytest.raises(DataError, match=r"inside one graph of 'batch'.*data\.Batch"):
            structural_signature(cycle(4), 4, batch=torch.tensor([0, 0, 1, 1]))


class TestDegree:
    def test_max_divides_by_the_largest(self):
        ours = structural_signature(star(4), 6, walk_length=0).values
        assert ours.squeeze(1).tolist() == [1, 0.25, 0.25, 0.25, 0.25, 0]

    def test_log_divides_logarithms(self):
        ours = structural_signature(star(7), 9, walk_length=0, degree="log").values
        torch.testing.assert_close(ours.squeeze(1), torch.tensor([1.0, *[1 / 3] * 7, 0.0]))


class TestSmallInputs:
    @pytest.mark.parametrize("method", ["exact", "estimate"])
    @pytest.mark.parametrize("num_nodes", [0, 1, 4])
    def test_no_edges_give_zeros(self, num_nodes, method):
        empty = torch.empty(2, 0, dtype=torch.long)
        signature = structural_signature(empty, num_nodes, walk_length=5, method=method)
        assert torch.equal(signature.values, torch.zeros(num_nodes, 6))

    @pytest.mark.parametrize("walk_length", [0, 1, 2, 3, 4])
    def test_short_walks_are_prefixes_of_long_ones(self, walk_length):
        edge_index = random_graph(20, 30)
        long = structural_signature(edge_index, 20, walk_length=8).values
        short = structural_signature(edge_index, 20, walk_length=walk_length).values
        assert torch.equal(short, long[:, : walk_length + 1])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_dtype_and_layout_of_the_result(self, dtype):
        values = structural_signature(cycle(5), 5, dtype=dtype).values
        assert values.dtype == dtype
        assert values.is_contiguous()
        assert values.device == torch.device("cpu")
        assert values.shape == (5, 17)

    @pytest.mark.parametrize("method", ["exact", "estimate"])
    def test_raises_no_warning(self, method):
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)  # torch would warn of sparse tensors once per process only
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                structural_signature(cycle(50), 50, method=method)
        finally:
            torch.set_warn_always(always)


class TestEstimate:
    edge_index = random_graph(60, 150, seed=3)

    def standard_deviation(self, walk_length: int) -> Tensor:
        """Of one probe, from the normal distribution's fourth moments."""
        exact = dense_returns(self.edge_index, 60, walk_length + 1)
        columns = [torch.zeros(60), torch.zeros(60)]  # one and two steps are exact
        for k in range(3, walk_length + 1):
            around = exact[:, k - 1] ** 2 if k % 2 == 0 else exact[:, k - 2] * exact[:, k]
            columns.append((around + exact[:, k - 1] ** 2).sqrt())
        return torch.stack(columns, dim=1)

    def test_is_unbiased(self):
        ours = returns(self.edge_index, 60, walk_length=8, method="estimate", probes=20_000)
        error = (ours - dense_returns(self.edge_index, 60, 8)).abs()
        allowed = 4 * self.standard_deviation(8) / 20_000**0.5 + 1e-12
        assert (error <= allowed).all()

    def test_two_steps_are_exact(self):
        ours = returns(self.edge_index, 60, walk_length=2, method="estimate", probes=2)
        torch.testing.assert_close(ours, dense_returns(self.edge_index, 60, 2))

    def test_relative_error_of_even_steps_is_the_documented_one(self):
        exact = dense_returns(cycle(30), 30, 6)
        signature = structural_signature(
            cycle(30), 30, walk_length=6, method="estimate", probes=4000
        )
        relative = torch.tensor(signature.standard_error)[[4, 6]] / exact[0, [3, 5]]
        torch.testing.assert_close(
            relative, torch.full_like(relative, (2 / 4000) ** 0.5), rtol=0.1, atol=0
        )

    def test_standard_error_covers_the_error(self):
        exact = dense_returns(self.edge_index, 60, 8)
        ratios = []
        for seed in range(40):
            options = {"method": "estimate", "probes": 200, "seed": seed, "dtype": torch.float64}
            signature = structural_signature(self.edge_index, 60, walk_length=8, **options)
            claimed = torch.tensor(signature.standard_error, dtype=torch.float64)[1:]
            actual = (signature.values[:, 1:] - exact).square().mean(0).sqrt()
            assert not claimed[:2].any()
            ratios.append(actual[2:] / claimed[2:])
        ratio = torch.stack(ratios)
        assert (ratio.square().mean(0).sqrt() - 1).abs().max() < 0.2
        assert (ratio < 2).double().mean() > 0.95

    def test_same_seed_gives_the_same_bits(self):
        first, again, other = (
            returns(self.edge_index, 60, method="estimate", seed=seed) for seed in (5, 5, 6)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_block_size_changes_only_rounding(self):
        first, second = (
            returns(self.edge_index, 60, method="estimate", probes=45, memory_bytes=budget)
            for budget in (2**29, 7 * 60 * COLUMN_BYTES)
        )
        torch.testing.assert_close(first, second, rtol=1e-11, atol=1e-15)

    def test_replaces_refused_exact_work(self):
        # A triangle and a 4-cycle, 7 products: 7 (6 * 3 + 8 * 4) = 350 multiply-adds.
        edge_index = torch.cat([cycle(3), cycle(4) + 3], dim=1)
        with pytest.raises(DataError, match=r"3\.5e\+02.*method='estimate'.*max_work=None"):
            structural_signature(edge_index, 7, max_work=349)
        structural_signature(edge_index, 7, max_work=350)
        structural_signature(edge_index, 7, max_work=None)
        structural_signature(edge_index, 7, max_work=349, method="estimate")


class TestRecord:
    def test_exact_needs_no_probes(self):
        record = structural_signature(cycle(4), 4, walk_length=3, seed=9).describe()
        assert json.loads(json.dumps(record)) == {
            "walk_length": 3,
            "degree": "max",
            "method": "exact",
            "probes": None,
            "seed": None,
            "standard_error": None,
            "dtype": "float32",
        }

    def test_estimate_names_probes_seed_and_error(self):
        signature = structural_signature(
            cycle(4), 4, walk_length=3, method="estimate", probes=8, seed=9
        )
        record = signature.describe()
        json.dumps(record)
        assert (record["probes"], record["seed"]) == (8, 9)
        assert record["standard_error"] == signature.standard_error
        assert len(signature.standard_error) == 4

    def test_is_frozen(self):
        with pytest.raises(AttributeError):
            structural_signature(cycle(4), 4).walk_length = 3


class TestErrors:
    @pytest.mark.parametrize(
        ("edge_index", "error", "message"),
        [
            ([[0, 1], [1, 0]], DtypeError, r"'edge_index'.*int64.*got list"),
            (cycle(4).int(), DtypeError, r"'edge_index'.*int64.*got torch\.int32.*\.long\(\)"),
            (cycle(4).T, ShapeError, r"'edge_index'.*\(2, num_edges\).*got \(8, 2\)"),
            (cycle(4)[0], ShapeError, r"'edge_index'.*got \(8,\)"),
            (cycle(5), DataError, r"'edge_index'.*from 0 to 3.*got indices from 0 to 4.*Check"),
            (cycle(4) - 1, DataError, r"'edge_index'.*got indices from -1 to 2"),
            (
                torch.tensor([[0, 1, 1], [1, 0, 2]]),
                DataError,
                r"got 1 -> 2 without 2 -> 1.*to_undirected",
            ),
        ],
    )
    def test_edge_index(self, edge_index, error, message):
        with pytest.raises(error, match=message):
            structural_signature(edge_index, 4)

    @pytest.mark.parametrize(
        ("batch", "error", "message"),
        [
            (torch.zeros(3, dtype=torch.long), ShapeError, r"'batch'.*\(4,\).*got \(3,\)"),
            (torch.zeros(4), DtypeError, r"'batch'.*int64.*got torch\.float32"),
        ],
    )
    def test_batch(self, batch, error, message):
        with pytest.raises(error, match=message):
            structural_signature(cycle(4), 4, batch=batch)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"walk_length": -1}, r"'walk_length'.*at least 0.*got -1"),
            ({"walk_length": 2.5}, r"'walk_length'.*integer.*got 2\.5"),
            ({"degree": "maxx"}, r"'degree'.*got 'maxx'.*'log', 'max'.*Did you mean 'max'"),
            ({"method": "exakt"}, r"'method'.*got 'exakt'.*Did you mean 'exact'"),
            ({"probes": 1}, r"'probes'.*at least 2.*got 1"),
            ({"seed": -1}, r"'seed'.*at least 0.*got -1"),
            ({"memory_bytes": 0}, r"'memory_bytes'.*at least 1.*got 0"),
            ({"dtype": torch.int64}, r"'dtype'.*floating.*got torch\.int64"),
        ],
    )
    def test_options(self, options, message):
        with pytest.raises(ConfigError, match=message):
            structural_signature(cycle(4), 4, **options)
        with pytest.raises(ConfigError, match=message):
            AddStructuralSignature(**options)

    def test_num_nodes(self):
        with pytest.raises(ConfigError, match=r"'num_nodes'.*at least 0.*got -1"):
            structural_signature(cycle(4), -1)


class TestTransform:
    def test_stores_the_signature_and_leaves_the_input_alone(self):
        data = Data(edge_index=star(6), num_nodes=8)
        out = AddStructuralSignature(walk_length=5, degree="log")(data)
        expected = structural_signature(star(6), 8, walk_length=5, degree="log").values
        assert torch.equal(out.signature, expected)
        assert "signature" not in data

    def test_reads_the_batch_vector(self):
        parts = [Data(edge_index=star(n), num_nodes=n + 1) for n in (2, 9, 4)]
        transform = AddStructuralSignature(walk_length=4)
        together = transform(Batch.from_data_list(parts)).signature
        one_by_one = Batch.from_data_list([transform(part) for part in parts]).signature
        torch.testing.assert_close(together, one_by_one)

    def test_passes_every_option_on(self):
        options = {"method": "estimate", "probes": 4, "seed": 2, "dtype": torch.float64}
        out = AddStructuralSignature(**options)(Data(edge_index=cycle(9), num_nodes=9))
        assert torch.equal(out.signature, structural_signature(cycle(9), 9, **options).values)
        with pytest.raises(DataError, match="max_work"):
            AddStructuralSignature(max_work=1.0)(Data(edge_index=cycle(9), num_nodes=9))

    @pytest.mark.parametrize("data", [Data(num_nodes=3), HeteroData()])
    def test_needs_an_edge_index(self, data):
        with pytest.raises(DataError, match=r"'edge_index'.*to_homogeneous"):
            AddStructuralSignature()(data)

    def test_repr(self):
        assert repr(AddStructuralSignature()) == (
            "AddStructuralSignature(walk_length=16, degree='max', method='exact')"
        )
        assert repr(AddStructuralSignature(method="estimate", probes=64)) == (
            "AddStructuralSignature(walk_length=16, degree='max', method='estimate', "
            "probes=64, seed=0)"
        )
