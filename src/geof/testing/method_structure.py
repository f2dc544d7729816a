"""Checks of what a network is as a function of a graph: symmetries, batches, gradients."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.data.batching import NeighbourSampler
from geof.methods.interface import GraphInputs, TaskKind
from geof.methods.registry import method_options
from geof.nn.inputs import without_csr_warnings
from geof.testing import assert_same, random_graph, side_by_side
from geof.testing.method_basis import (
    ODD_GRAPHS,
    PAIRS,
    SHAPE,
    MethodCase,
    cross_entropy,
    gradients,
    in_dtype,
    mean_square,
    several_graphs,
    sum_of_squares,
    with_changes,
)
from geof.training.network import Network

Build: TypeAlias = tuple[TaskKind, Mapping[str, Any]]
"""Which network: task and options."""


class StructureChecks(MethodCase):
    """Inherited by :class:`geof.testing.MethodTestCase`."""

    def test_shapes_and_types(self, build: Build) -> None:
        """States are ``(n, out_channels)``, predictions what the task asks for, in the dtype."""
        task, variant = build
        network, inputs = self.network(task, **variant), self.inputs(task)
        nodes, graphs = len(inputs.x), inputs.num_graphs
        wanted = {"node": (nodes, 3), "link": (PAIRS.size(1),), "graph": (graphs, 3)}[task]
        for dtype in (torch.float64, torch.float32):
            given = in_dtype(inputs, dtype)
            states = network.to(dtype).encode(given).states
            width = int(network.encoder.out_channels)  # type: ignore[arg-type]
            assert tuple(states.shape) == (nodes, width), (
                f"states are {tuple(states.shape)}, out_channels {width}"
            )
            assert states.dtype == dtype, f"states are {states.dtype} in a {dtype} network"
            found = self.results(network, given)
            shape = tuple(found["prediction"].shape)
            assert shape == wanted, f"predictions are {shape} in place of {wanted}"
            for name, value in found.items():
                assert value.dtype == dtype, f"{name} is {value.dtype} in a {dtype} network"
                assert bool(value.isfinite().all()), f"{name} is not finite"

    def test_renumbering_nodes(self, task: TaskKind, variant: Mapping[str, Any]) -> None:
        """Nodes in another order: states move along, graphs' predictions and losses stay."""
        network = self.network(task, **variant)
        graphs = ((0, 0), (1, 2), (2, 1), (3, 0))  # seed, and how many kinds of nodes
        for seed, kinds in graphs if task == self.tasks[0] else graphs[:2]:
            inputs = self.inputs(task, seed)
            if kinds:  # many nodes are alike
                rows = torch.eye(5).to(inputs.x)[inputs.x.argmax(1) % kinds]
                inputs = with_changes(inputs, x=rows)
            order = torch.randperm(len(inputs.x), generator=torch.Generator().manual_seed(seed))
            with _quiet():
                plain = self.results(network, inputs, pretext=not self.random_pretext)
                moved = self._moved(network, inputs, order)
            wanted = {**plain, "states": plain["states"][order]}
            if task == "node":
                wanted["prediction"] = plain["prediction"][order]
            alike = self.alike_tolerance if kinds else None
            assert_same(moved, wanted, self.tolerance if alike is None else alike)

    def _moved(self, network: Network, inputs: GraphInputs, order: Tensor) -> dict[str, Tensor]:
        """Return the results for the nodes in another order, asked about the same pairs."""
        rank = order.argsort()
        moved = with_changes(
            inputs,
            x=inputs.x[order],
            edge_index=rank[inputs.edge_index],
            signature=inputs.signature[order],
            batch=None if inputs.batch is None else inputs.batch[order],
        )
        found = self.results(network, moved, pretext=not self.random_pretext)
        if network.task == "link":
            found["prediction"] = network(moved, rank[PAIRS])
        return found

    def test_order_of_edges(self, variant: Mapping[str, Any]) -> None:
        """Edges in another order change nothing."""
        task = self.tasks[0]
        network, inputs = self.network(task, **variant), self.inputs(task, 1)
        order = torch.randperm(
            inputs.edge_index.size(1), generator=torch.Generator().manual_seed(0)
        )
        plain = self.results(network, inputs, pretext=not self.random_pretext)
        shuffled = with_changes(inputs, edge_index=inputs.edge_index[:, order])
        found = self.results(network, shuffled, pretext=not self.random_pretext)
        assert_same(found, plain, 0.0 if self.exact_edge_order else self.tolerance)

    def test_messages_follow_edges(self, variant: Mapping[str, Any]) -> None:
        """A path 2 -> 1 -> 0, as a sample around node 0 has it: nothing reaches nodes 1 and 2."""
        task = self.tasks[0]
        x, _, u = random_graph(0, nodes=3, edges=0)
        edge_index = torch.tensor([[1, 2], [0, 1]])
        network = self.network(task, **variant)

        def states(nudged: int | None = None) -> Tensor:
            y = x.clone()
            if nudged is not None:
                y[nudged] += 1
            return network.encode(GraphInputs.build(y, edge_index, u)).states

        plain = states()
        after = states(0)
        assert torch.equal(after[1:], plain[1:]), "a message runs against its edge"
        assert not torch.equal(after[0], plain[0]), "a node does not hear itself"
        after = states(2)
        assert not torch.equal(after[1], plain[1]), "a node does not hear its neighbour"

    def test_a_batch_is_each_graph_alone(self, variant: Mapping[str, Any]) -> None:
        """Values and gradients; also where the nodes of the graphs are mixed."""
        task: TaskKind = "graph" if "graph" in self.tasks else self.tasks[0]
        graphs = several_graphs(0)
        order = torch.randperm(
            sum(len(x) for x, _, _ in graphs), generator=torch.Generator().manual_seed(0)
        )

        def found(batches: Sequence[GraphInputs]) -> dict[str, Tensor]:
            network = self.network(task, **variant)
            parts = [self.results(network, batch, pretext=False) for batch in batches]
            names = ("states",) if task == "link" else ("states", "prediction")
            joined = {name: torch.cat([part[name] for part in parts]) for name in names}
            sum_of_squares(joined).backward()
            return {**joined, **gradients(network)}

        alone = found([GraphInputs.build(*graph) for graph in graphs])
        assert_same(found([side_by_side(graphs)]), alone, self.tolerance)
        mixed = {**alone, "states": alone["states"][order]}
        if task == "node":
            mixed["prediction"] = alone["prediction"][order]
        assert_same(found([side_by_side(graphs, order)]), mixed, self.tolerance)

    def test_a_disjoint_union_is_its_parts(self, variant: Mapping[str, Any]) -> None:
        """Without being told which node is of which graph: messages run along edges alone."""
        task = self.tasks[0]
        network, graphs = self.network(task, **variant), several_graphs(2)
        whole = side_by_side(graphs)
        together = GraphInputs.build(whole.x, whole.edge_index, whole.signature)
        alone = [network.encode(GraphInputs.build(*graph)).states for graph in graphs]
        found = {"states": network.encode(together).states}
        assert_same(found, {"states": torch.cat(alone)}, self.tolerance)

    def test_sparse_features(self, variant: Mapping[str, Any]) -> None:
        """Sparse rows give the values and gradients of dense ones."""
        task = self.tasks[0]
        x, edge_index, u = random_graph(0)
        x = torch.where(x > 0.2, 5 * x, 0.0)
        found = []
        with without_csr_warnings():
            for features in (x.to_sparse_csr(), x):
                network = self.network(task, **variant)
                inputs = GraphInputs.build(features, edge_index, u)
                values = self.results(network, inputs)
                sum_of_squares(values).backward()
                found.append({**values, **gradients(network)})
        assert_same(found[0], found[1], self.tolerance)

    def test_scaled_features(self) -> None:
        """``scale_features``, where there is one, is the network on rows of length root F."""
        if "scale_features" not in method_options(self.method, {}):
            return
        task = self.tasks[0]
        inputs = self.inputs(task)
        by_hand = with_changes(inputs, x=F.normalize(inputs.x, dim=-1) * inputs.x.size(1) ** 0.5)
        plain, scaling = (self.network(task, scale_features=scale) for scale in (False, True))
        found = self.results(scaling, inputs, pretext=False)
        assert_same(found, self.results(plain, by_hand, pretext=False), self.tolerance)
        same = torch.equal(found["states"], plain.encode(inputs).states)
        assert not same, "'scale_features' changes nothing"

    def test_dropout_acts_in_training_alone(self, variant: Mapping[str, Any]) -> None:
        """Each option that ends in ``dropout``, with all others off."""
        names = [name for name in method_options(self.method, {}) if name.endswith("dropout")]
        task = self.tasks[0]
        inputs = self.inputs(task)
        off = {**variant, **dict.fromkeys(names, 0.0)}
        plain = self.network(task, **off)
        wanted = plain(inputs)
        plain.train()
        assert torch.equal(plain(inputs), plain(inputs)), "without dropout training is drawn"
        for name in names:
            network = self.network(task, **{**off, name: 0.5})
            assert torch.equal(network(inputs), wanted), f"'{name}' acts in evaluation"
            network.train()
            torch.manual_seed(1)
            first, second = network(inputs), network(inputs)
            assert not torch.equal(first, second), f"'{name}' does nothing in training"
            torch.manual_seed(1)
            assert torch.equal(network(inputs), first), f"'{name}' draws from elsewhere than torch"

    def test_a_single_precision_copy_computes_the_same(self, variant: Mapping[str, Any]) -> None:
        """Nothing falls apart in float32, and no buffer keeps the old type."""
        task = self.tasks[0]
        network, inputs = self.network(task, **variant), self.inputs(task)
        inputs = with_changes(inputs, x=0.3 * inputs.x)
        single = copy.deepcopy(network).float()
        found = self.results(single, in_dtype(inputs, torch.float32), pretext=False)
        assert_same(found, self.results(network, inputs, pretext=False), self.single_precision)

    # --- Gradients --------------------------------------------------------------------------------

    def test_gradients_reach_every_parameter(self, build: Build) -> None:
        """Those of the loss and of the pretext, finite, and not zero all over."""
        task, variant = build
        network = self.network(task, **variant).train()
        self.loss(network, self.inputs(task), mean_square).backward()
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad or any(fnmatch(name, p) for p in self.untrained):
                continue
            assert parameter.grad is not None, f"no gradient reaches {name}"
            assert bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite"
            assert bool(parameter.grad.any()), f"the gradient of {name} is zero"

    def test_gradients_are_finite_on_odd_graphs(self, build: Build) -> None:
        """Float32, in training mode, with coincident and with zero features, in a fixed order."""
        task, variant = build
        network = self.network(task, drawn=False, **variant).float().train()
        every = build == (self.tasks[0], self.variants[0])
        for number, (name, (nodes, edges)) in enumerate(ODD_GRAPHS.items()):
            pairs = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
            edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
            signature = torch.rand(nodes, SHAPE.signature_channels)
            features = [
                make(nodes, SHAPE.in_channels) for make in (torch.ones, torch.zeros, torch.eye)
            ]
            for x in features if every else [features[number % 3]]:
                self._assert_finite(network, GraphInputs.build(x, edge_index, signature), name)

    def test_sampled_neighbourhoods(self, variant: Mapping[str, Any]) -> None:
        """Edges of a sample lead towards its seeds only."""
        x, edge_index, u = random_graph(0, nodes=30, edges=60)
        network = self.network(self.tasks[0], **variant).train()
        sampler = NeighbourSampler(edge_index, 30, [2, 2], batch_size=6, seed=1)
        for batch in sampler.batches(epoch=0):
            inputs = GraphInputs.build(x[batch.n_id], batch.edge_index, u[batch.n_id])
            self._assert_finite(network, inputs, "a sample")

    def _assert_finite(self, network: Network, inputs: GraphInputs, where: str) -> None:
        network.zero_grad()
        with _deterministic():
            loss = self.loss(network, inputs, cross_entropy)
            assert bool(loss.isfinite()), f"the loss is {float(loss.detach())} on {where}"
            loss.backward()
        for name, value in gradients(network).items():
            assert bool(value.isfinite().all()), f"the {name} is not finite on {where}"

    def test_sums_run_in_a_fixed_order(self, build: Build) -> None:
        """The same bits again; an operator without a fixed order raises."""
        task, variant = build
        inputs, found = self.inputs(task), []
        with _deterministic():
            for _ in range(2):
                network = self.network(task, **variant).train()
                torch.manual_seed(2)
                loss = self.loss(network, inputs, cross_entropy)
                loss.backward()
                found.append({"loss": loss, **gradients(network)})
        assert_same(found[1], found[0], 0.0)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
