"""It learns: what Proposition 2 promises, and every task on a tiny set."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from geof import GeoF, GraphReadout, LinkReadout, NodeReadout, structural_signature
from geof.data import covariance_graph, random_node_split
from geof.training import accuracy, graph_loss, link_loss, node_loss
from tests.graphs import random_sample


def train(modules: nn.ModuleList, loss, epochs: int, rate: float = 1e-2) -> None:
    parameters = [p for p in modules.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=rate)
    for _ in range(epochs):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()


def covariance_accuracy(feedback: str) -> float:
    """Test accuracy after one step with uniform weights and coordinates that cannot rotate.

    The lift and the message map stay the identity and all frames start equal: a learned linear
    map could turn v and w onto the axes, and then the diagonal statistic would see them too.
    """
    graph = covariance_graph(centres=400, spread=0.1)
    split = random_node_split(graph.num_nodes, 0, nodes=graph.centre_mask)
    signature = torch.zeros(graph.num_nodes, 1)
    torch.manual_seed(0)
    model = GeoF(4, 4, signature_channels=1, blocks=1, steps=1, temperature=1e6, feedback=feedback)
    for weight in (model.feature_lift.weight, model.transport.message.weight):
        nn.init.eye_(weight)
        weight.requires_grad_(False)
    readout = NodeReadout(4, 2)

    def logits() -> torch.Tensor:
        return readout(model(graph.x, graph.edge_index, signature))

    parts = nn.ModuleList([model, readout])
    train(parts, lambda: node_loss(logits(), graph.y, split.train), 80, rate=5e-2)
    with torch.no_grad():
        return accuracy(logits()[split.test], graph.y[split.test])


def test_the_full_feedback_separates_equal_means():
    assert covariance_accuracy("full") > 95


@pytest.mark.parametrize("feedback", ["mean", "diagonal", "none"])
def test_weaker_feedback_stays_near_chance(feedback):
    # 80 test nodes: a coin's standard deviation is 5.6 points.
    assert covariance_accuracy(feedback) < 65


def network() -> GeoF:
    torch.manual_seed(0)
    return GeoF(5, 16, signature_channels=3, blocks=4, temperature=16.0)


def test_overfits_twenty_nodes():
    x, edge_index, u = random_sample(0, nodes=20, edges=60, dtype=torch.float32)
    labels = torch.arange(20) % 3
    model, readout = network(), NodeReadout(16, 3)
    everyone = torch.ones(20, dtype=torch.bool)
    train(
        nn.ModuleList([model, readout]),
        lambda: node_loss(readout(model(x, edge_index, u)), labels, everyone),
        100,
    )
    assert accuracy(readout(model(x, edge_index, u)), labels) == 100


def test_overfits_twenty_graphs():
    graphs = []
    for i in range(20):
        x, edge_index, u = random_sample(i, nodes=4 + i % 3, edges=8, dtype=torch.float32)
        graphs.append(Data(x=x, edge_index=edge_index, signature=u, y=i % 2))
    batch = Batch.from_data_list(graphs)
    model, readout = network(), GraphReadout(16, 2)

    def logits() -> torch.Tensor:
        h = model(batch.x, batch.edge_index, batch.signature, batch.batch)
        return readout(h, batch.batch, batch.num_graphs)

    train(nn.ModuleList([model, readout]), lambda: graph_loss(logits(), batch.y), 100)
    assert accuracy(logits(), batch.y) == 100


def test_overfits_twenty_links():
    x, _, _ = random_sample(0, nodes=14, edges=0, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    pairs = torch.combinations(torch.arange(14))
    pairs = pairs[torch.randperm(len(pairs), generator=generator)].t()
    positive, negative = pairs[:, :20], pairs[:, 20:40]
    edge_index = torch.cat([positive, positive.flip(0)], dim=1)
    u = structural_signature(edge_index, 14, walk_length=2).values
    model, readout = network(), LinkReadout(16)

    def logits() -> tuple[torch.Tensor, torch.Tensor]:
        h = model(x, edge_index, u)
        return readout(h, positive), readout(h, negative)

    train(nn.ModuleList([model, readout]), lambda: link_loss(*logits()), 140)
    yes, no = logits()
    assert float(yes.min()) > 0 > float(no.max())
