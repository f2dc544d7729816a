"""BEC-GNN: the curvature operators, the loss that trains the curvature, and who stops when."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.utils import to_undirected

from geof.errors import ConfigError, DataError
from geof.methods.interface import GraphInputs
from geof.testing import (
    MethodTestCase,
    assert_same,
    draw_parameters,
    random_graph,
    side_by_side,
)
from geof_paper.baselines.bec_gnn import (
    BECGNN,
    Curvature,
    curvature_operators,
    curvature_order,
    still_open,
)
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import adjacency
from tests.graphs import random_sample


def inputs(seed: int = 0, **sizes) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed, **sizes))


def two_graphs() -> GraphInputs:
    """Nine and six nodes side by side, and one node alone."""
    sizes = ({}, {"nodes": 6}, {"nodes": 1, "edges": 0})
    return side_by_side([random_graph(seed, **size) for seed, size in enumerate(sizes)])


def curved_down() -> GraphInputs:
    """Few edges, so that the bound is violated somewhere."""
    return inputs(4, nodes=12, edges=11)


def build(given: GraphInputs | None = None, **options) -> BECGNN:
    torch.manual_seed(0)
    columns = None if given is None else given.edge_index.size(1)
    task = options.pop("task", "node")
    usual = {"hidden_channels": 6, "num_layers": 3, "test_functions": 3}
    model = BECGNN(5, task, columns, **{**usual, **options}).double()
    draw_parameters(model, spread=1.0)
    for buffer in model.curvature.functions.buffers():  # far from constant
        buffer.copy_(torch.randn(buffer.shape).double())
    return model.eval()


def test_layers_of_gcn_are_normalised_if_asked_and_those_of_gin_have_their_own():
    given = inputs()
    plain, normed = build(given), build(given, norm="layer")
    assert plain.state_dict().keys() < normed.state_dict().keys()
    for norm in normed.norms:
        torch.nn.init.ones_(norm.weight)
        torch.nn.init.zeros_(norm.bias)
    states = normed(given).states
    assert states.mean(-1).abs().max() < 1e-9
    with pytest.raises(ConfigError, match="'norm' to be 'none' around GIN"):
        build(given, norm="batch", backbone="gin")


# The operators.


def dense_operators(w: torch.Tensor):
    """Return G and G2 of a dense symmetric weight matrix, both from the Laplacian alone."""
    laplacian = w - torch.diag(w.sum(1))

    def product_rule(f, h):
        return 0.5 * (laplacian @ (f * h) - f * (laplacian @ h) - h * (laplacian @ f))

    def iterated(f):
        return 0.5 * laplacian @ product_rule(f, f) - product_rule(f, laplacian @ f)

    return product_rule, iterated


def test_sparse_operators_are_the_dense_definition():
    _, edge_index, _ = random_graph(3)
    dense = torch.zeros(9, 9).double()
    dense[edge_index[0], edge_index[1]] = 0.1 + torch.rand(edge_index.size(1)).double()
    dense = dense + dense.t()
    w = dense[edge_index[1], edge_index[0]]
    f = torch.randn(9, 4).double()
    product_rule, iterated = dense_operators(dense)
    gamma, gamma2 = curvature_operators(f, w, edge_index)
    assert_same({"G": gamma, "G2": gamma2}, {"G": product_rule(f, f), "G2": iterated(f)}, 1e-12)


def exact_curvature(edge_index: torch.Tensor, nodes: int, node: int) -> float:
    """Return the largest k with G2 >= k G at a node, unit weights, from the operators as forms."""
    w = torch.ones(edge_index.size(1)).double()
    basis = torch.eye(nodes).double()

    first, second = torch.empty(2, nodes, nodes).double()
    for i in range(nodes):  # polarisation: all pairs of basis functions
        plus = curvature_operators(basis[:, [i]] + basis, w, edge_index)
        minus = curvature_operators(basis[:, [i]] - basis, w, edge_index)
        for form, high, low in zip((first, second), plus, minus, strict=True):
            form[i] = (high[node] - low[node]) / 4
    # Nodes two steps away enter G2 only: minimise over them, then compare with G on neighbours.
    near = edge_index[0][edge_index[1] == node]
    far = torch.tensor(
        [i for i in range(nodes) if i != node and i not in near and second[i, i] > 1e-9],
        dtype=torch.long,
    )
    reduced = second[near][:, near]
    if len(far):
        cross = second[near][:, far]
        reduced = reduced - cross @ torch.linalg.solve(second[far][:, far], cross.t())
    values, vectors = torch.linalg.eigh(first[near][:, near])
    root = vectors / values.sqrt()
    return float(torch.linalg.eigvalsh(root.t() @ reduced @ root).min())


def test_complete_graphs_are_curved_up_and_trees_down():
    """Known values: 1 + n/2 for K_n, 2 - d inside the d-regular tree."""
    for nodes in (3, 4, 6):
        complete = (1 - torch.eye(nodes)).nonzero().t()
        assert exact_curvature(complete, nodes, 0) == pytest.approx(1 + nodes / 2, abs=1e-9)
    for degree in (3, 4):
        edges, count = [], 1 + degree
        for child in range(1, 1 + degree):
            edges.append((0, child))
            for _ in range(degree - 1):
                edges.append((child, count))
                count += 1
        tree = to_undirected(torch.tensor(edges).t())
        assert exact_curvature(tree, count, 0) == pytest.approx(2 - degree, abs=1e-9)


# The loss and what it trains.


def curvature_by_hand(model: BECGNN, given: GraphInputs, w: torch.Tensor):
    """Return curvature, slack and loss node by node; ``w`` is a dense matrix."""
    c = model.curvature
    hidden = F.relu(given.x @ c.value[0].weight.t() + c.value[0].bias)
    value = torch.sigmoid(hidden @ c.value[2].weight.t() + c.value[2].bias)[:, 0]
    product_rule, iterated = dense_operators(w)
    count, channels = c.functions.second.shape
    loss, slack = torch.zeros(()).double(), torch.zeros_like(value)
    for k in range(count):
        part = slice(k * channels, (k + 1) * channels)
        inner = F.relu(given.x @ c.functions.first[:, part] + c.functions.first_bias[part])
        f = torch.sigmoid(inner @ c.functions.second[k] + c.functions.second_bias[k])
        for i in range(len(value)):
            gap = value[i] * product_rule(f, f)[i] - iterated(f)[i]
            loss = loss + F.relu(gap) - value[i]
            slack[i] -= gap.detach()
    return value, slack, loss / len(value)


def dense_weights(model: BECGNN, given: GraphInputs) -> torch.Tensor:
    """Return w as a matrix, edge by edge."""
    weights, nodes = model.curvature.weights, given.x.size(0)
    w = torch.zeros(nodes, nodes).double()
    pairs = sorted({(min(p), max(p)) for p in given.edge_index.t().tolist()})
    for number, (i, j) in enumerate(pairs):
        if hasattr(weights, "theta"):
            score = weights.theta[number]
        else:
            both = weights.inner.weight @ (given.x[i] + given.x[j]) + weights.bias
            score = weights.outer.weight[0] @ F.relu(both) + weights.outer.bias[0]
        w[i, j] = w[j, i] = torch.sigmoid(score)
    return w


@pytest.mark.parametrize("edge_weights", ["features", "free"])
def test_the_loss_is_that_of_the_definition(edge_weights):
    given = curved_down()
    model = build(given, edge_weights=edge_weights)
    found = model.curvature(given.x, given)
    value, slack, loss = curvature_by_hand(model, given, dense_weights(model, given))
    assert found.value.shape == (12,)
    assert (
        float((loss + 3 * value.mean()).detach()) > 1e-4
    )  # the bound is violated: its term is tested too
    assert_same(
        {"k": found.value, "slack": found.slack, "loss": found.loss},
        {"k": value, "slack": slack, "loss": loss},
        1e-11,
    )
    assert torch.equal(model(given).penalty, found.loss)
    half = build(given, edge_weights=edge_weights, curvature_weight=0.5)
    torch.testing.assert_close(half(given).penalty, 0.5 * loss)


@pytest.mark.parametrize("edge_weights", ["features", "free"])
def test_no_task_gradient_reaches_the_curvature(edge_weights):
    given = curved_down()
    model = build(given, edge_weights=edge_weights)
    encoding = model(given)
    encoding.states.square().sum().backward(retain_graph=True)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("curvature."), name
    model.zero_grad()
    encoding.penalty.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == name.startswith("curvature."), name
    assert model.curvature.value[0].weight.grad.abs().max() > 0
    weights = model.curvature.weights
    learned = weights.theta if edge_weights == "free" else weights.inner.weight
    assert learned.grad.abs().max() > 0


def test_test_functions_are_frozen_and_saved():
    model = build()
    names = [name for name, _ in model.named_parameters()]
    assert not any("functions" in name for name in names)
    assert sum("functions" in name for name in model.state_dict()) == 4


def test_the_bound_holds_on_a_complete_graph_and_fails_on_a_star():
    complete = (1 - torch.eye(4)).nonzero().t()
    gamma, gamma2 = curvature_operators(
        torch.randn(4, 3).double(), torch.ones(12).double(), complete
    )
    assert bool((gamma2 > gamma).all())
    star = to_undirected(torch.tensor([[0, 0, 0, 0], [1, 2, 3, 4]]))
    f = torch.tensor([[0.0], [1.0], [-1.0], [1.0], [-1.0]]).double()
    gamma, gamma2 = curvature_operators(f, torch.ones(8).double(), star)
    assert float(gamma2[0]) < 0 < float(gamma[0])


# Who stops when.


def test_the_highest_of_each_graph_stop_first():
    value = torch.tensor([0.1, 0.9, 0.5, 0.3, 0.7, 0.95, 0.2, 0.6])
    batch = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    found = Curvature(value, torch.zeros(8), torch.zeros(()))
    place, size = curvature_order(found, batch)
    assert place.tolist() == [4, 0, 2, 3, 1, 0, 1, 0]
    assert size.tolist() == [5, 5, 5, 5, 5, 2, 2, 1]
    for percent, stopped in (
        (0, []),
        (20, [1]),  # one of five; 0.4 of two and 0.2 of one are none
        (40, [1, 4]),
        (50, [1, 4, 5]),
        (100, list(range(8))),
        (160, list(range(8))),
    ):
        assert (~still_open(place, size, percent)).nonzero().view(-1).tolist() == stopped, percent


def test_among_equal_curvatures_the_slack_decides_and_equal_nodes_share_their_place():
    value = torch.tensor([0.5, 0.5 + 1e-9, 0.5, 0.2, 0.5])
    slack = torch.tensor([1.0, 0.0, 3.0, 9.0, 1.0 + 1e-9])
    place, size = curvature_order(Curvature(value.double(), slack.double(), slack), None)
    assert place.tolist() == [1.5, 3, 0, 4, 1.5]
    stopped = [int((~still_open(place, size, percent)).sum()) for percent in (20, 40, 60, 80)]
    assert stopped == [1, 3, 3, 4]  # both of a pair when there is room for more than half of it
    place, _ = curvature_order(Curvature(value, slack, slack), torch.tensor([0, 0, 1, 1, 1]))
    assert place.tolist() == [0, 1, 0, 2, 1]


# The networks.


def states_by_hand(model: BECGNN, given: GraphInputs, convolve) -> list[torch.Tensor]:
    """Return every layer's states, edges dropped one by one."""
    nodes = given.x.size(0)
    batch = torch.zeros(nodes, dtype=torch.long) if given.batch is None else given.batch
    value = model.curvature(given.x, given).value.detach()
    h, states = given.x, []
    for t, layer in enumerate(model.layers):
        stopped = set()
        for g in range(given.num_graphs):
            members = (batch == g).nonzero().view(-1).tolist()
            members.sort(key=lambda i: -float(value[i]))
            stopped |= set(members[: math.floor(model.stop_percent * t * len(members) / 100)])
        A = torch.zeros(nodes, nodes).double()
        for j, i in given.edge_index.t().tolist():
            if i not in stopped and j not in stopped:
                A[i, j] = 1
        h = convolve(layer, A, h)
        if model.ends_linearly and t + 1 < len(model.layers):
            h = F.relu(h)
        states.append(h)
    return states


def gcn(layer, A, h):
    A = A + torch.eye(len(A)).double()
    scale = A.sum(1).rsqrt()
    return (scale[:, None] * A * scale) @ h @ layer.linear.weight.t() + layer.bias


def gin(layer, A, h):
    """Linear, ReLU, normalisation, twice, as published."""
    h = ((1 + layer.epsilon) * h + A @ h) @ layer.first.weight.t() + layer.bias
    _, norm, linear, _, last = layer.rest
    return past_norm(F.relu(linear(past_norm(F.relu(h), norm))), last)


def past_norm(z, norm):
    scaled = (z - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return scaled * norm.weight + norm.bias


@pytest.mark.parametrize("given", [inputs(), two_graphs()], ids=["one", "batch"])
@pytest.mark.parametrize(("backbone", "convolve"), [("gcn", gcn), ("gin", gin)])
@pytest.mark.parametrize("percent", [0, 15, 40])
def test_layers_by_hand(given, backbone, convolve, percent):
    model = build(given, backbone=backbone, stop_percent=percent)
    states = states_by_hand(model, given, convolve)
    assert_same({"h": model(given).states}, {"h": states[-1]}, 1e-11)
    every = build(given, backbone=backbone, stop_percent=percent, outputs="all")
    assert every.out_channels == 18
    assert_same({"h": every(given).states}, {"h": torch.cat(states, dim=-1)}, 1e-11)


def test_a_stopped_node_hears_itself_only():
    given = inputs()
    model = build(given, num_layers=2, stop_percent=100)
    wanted = F.relu(gcn(model.layers[0], dense_adjacency(given), given.x))
    wanted = wanted @ model.layers[1].linear.weight.t() + model.layers[1].bias
    assert_same({"h": model(given).states}, {"h": wanted}, 1e-12)


def dense_adjacency(given: GraphInputs) -> torch.Tensor:
    A = torch.zeros(given.x.size(0), given.x.size(0)).double()
    A[given.edge_index[1], given.edge_index[0]] = 1
    return A


def test_the_backbone_is_that_of_the_task():
    assert type(build(task="graph").layers[0]).__name__ == "GINLayer"
    for task in ("node", "link"):
        assert type(build(task=task).layers[0]).__name__ == "GCNLayer"


@pytest.mark.parametrize(("backbone", "count"), [("gcn", 1), ("gin", 3)])
def test_networks_of_the_curvature_are_sized_as_published(backbone, count):
    """As wide as the backbone; one test function around GCN, three around GIN."""
    model = BECGNN(5, "node", 16, hidden_channels=12, backbone=backbone, edge_weights="free")
    assert model.curvature.value[0].out_features == 12
    assert model.curvature.functions.second.shape == (count, 12)
    assert float(model.curvature.weights.theta.std().detach()) > 0  # begin normally distributed
    narrow = BECGNN(5, hidden_channels=12, curvature_channels=4, weight_channels=3)
    assert narrow.curvature.value[0].out_features == 4
    assert narrow.curvature.weights.inner.out_features == 3


def test_a_layer_of_gin_begins_as_published():
    layer = BECGNN(5, "graph", hidden_channels=6).layers[0]
    assert float(layer.epsilon.detach()) == pytest.approx(0.1)


def test_directed_samples_pass_messages_to_their_targets():
    x, _, u = random_graph(0, nodes=3)
    given = GraphInputs.build(x, torch.tensor([[1, 2], [0, 1]]), u)
    model = build(stop_percent=0)
    states = states_by_hand(model, given, gcn)
    assert_same({"h": model(given).states}, {"h": states[-1]}, 1e-12)
    states = build(stop_percent=0, backbone="gcn")(given).states
    states[0].sum().backward()


def test_curvature_sees_all_features():
    given = inputs()
    for options in ({"dropout": 0.5}, {"dropout": 0.0, "feature_dropout": 0.5}):
        model = build(**options).train()
        first, second = model(given), model(given)
        assert not torch.equal(first.states, second.states)
        assert torch.equal(first.penalty, second.penalty)


# Free weights belong to one graph.


def test_free_weights_serve_one_graph_only():
    given = inputs()
    model = build(given, edge_weights="free")
    assert len(model.curvature.weights.theta) == given.edge_index.size(1) // 2
    model(given)
    shuffled = given.edge_index[:, torch.randperm(given.edge_index.size(1))]
    again = GraphInputs.build(given.x, shuffled, given.signature)
    torch.testing.assert_close(model(again).states, model(given).states)
    loaded = build(given, edge_weights="free")
    loaded.load_state_dict(model.state_dict())
    other = (given.edge_index + 1) % 9
    for edge_index in (other, given.edge_index[:, :-2], given.edge_index[:, :0]):
        for network in (model, loaded):
            with pytest.raises(DataError, match="edge_weights='features'"):
                network(GraphInputs.build(given.x, edge_index, given.signature))
    one_way = given.edge_index[:, given.edge_index[0] < given.edge_index[1]]
    doubled = GraphInputs.build(given.x, one_way.repeat(1, 2), given.signature)
    with pytest.raises(DataError, match="both directions"):
        build(doubled, edge_weights="free")(doubled)
    with pytest.raises(ConfigError, match="'features'"):
        BECGNN(5, "graph", None, edge_weights="free")


def test_graph_products_and_their_gradients():
    """Directed edges: the transposed matrix is another one, and it is made once."""
    x, _, u = random_sample(0)
    given = GraphInputs.build(x, torch.tensor([[1, 2, 3, 4], [0, 1, 1, 8]]), u)
    A = dense_adjacency(given)
    z = torch.randn(9, 2).double().requires_grad_()
    product = graph_product(given, adjacency, z)
    cotangent = torch.randn(9, 2).double()
    product.backward(cotangent)
    assert_same({"y": product, "g": z.grad}, {"y": A @ z, "g": A.t() @ cotangent}, 1e-12)
    cached = {name: id(value) for name, value in given.edges.cache.items()}
    graph_product(given, adjacency, z).sum().backward()
    assert cached == {name: id(value) for name, value in given.edges.cache.items()}
    assert not graph_product(given, adjacency, z.detach()).requires_grad


class TestBECGNN(MethodTestCase):
    method = "bec-gnn"
    options = {"hidden_channels": 6, "num_layers": 3, "edge_weights": "features"}
    variants = (
        {},
        {"backbone": "gcn", "stop_percent": 30},
        {"backbone": "gin", "stop_percent": 30, "outputs": "all"},
    )
    spread = 1.0
    untrained = {
        "encoder.curvature.weights.*": "edge weights are trained only where the bound is violated, "
        "see test_no_task_gradient_reaches_the_curvature",
    }
    exceptions = {
        "test_messages_follow_edges": "a share of all nodes stops, so a node's features may stop "
        "another one; test_directed_samples_pass_messages_to_their_targets has the case without",
        "test_a_disjoint_union_is_its_parts": "a share of each graph's nodes stops, so it must be "
        "told which nodes are a graph",
    }
    refused = (
        ({"backbone": "gim"}, "'backbone'.*Did you mean 'gin'"),
        ({"edge_weights": "fre"}, "'edge_weights'.*Did you mean 'free'"),
        ({"outputs": "al"}, "'outputs'.*Did you mean 'all'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"stop_percent": 101}, "'stop_percent'"),
        ({"curvature_channels": 0}, "'curvature_channels'"),
        ({"weight_channels": 0}, "'weight_channels'"),
        ({"test_functions": 0}, "'test_functions'"),
        ({"curvature_weight": -1.0}, "'curvature_weight'"),
    )
