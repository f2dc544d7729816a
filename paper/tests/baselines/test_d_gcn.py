"""D-GCN computes what its equations say, at flat spaces and next to poles too."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.utils import to_undirected

from geof.data.batching import NeighbourSampler
from geof.data.link_splits import random_link_split
from geof.errors import ConfigError, DataError
from geof.methods.interface import Encoding, GraphInputs, HasPretext, InputShape
from geof.testing import MethodTestCase, assert_same, random_graph, without_csr_warnings
from geof.training import Network, RunConfig
from geof_paper.baselines.d_gcn import (
    DGCN,
    ClippedFermiDirac,
    GCNClassifier,
    contrast_loss,
    exp_at_origin,
    kernel_features,
    project,
    tangent_ratio,
    thinned_adjacency,
)
from geof_paper.baselines.motifs import (
    Wedges,
    graded_pairs,
    graded_wedges,
    motif_loss,
    pair_loss,
    wedge_probabilities,
)
from geof_paper.baselines.sparse import normalised_adjacency
from tests.graphs import random_sample

N, F_IN = 9, 5


def inputs(seed: int = 0, **sizes) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed, **sizes))


def build(task="node", num_nodes=N, **options):
    torch.manual_seed(1)
    options = {"hidden_channels": 6, "embedding_channels": 4, "num_factors": 2, **options}
    model = DGCN(F_IN, task=task, num_nodes=num_nodes, **{"dimensions": 3, **options}).double()
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:  # which start at zero and one
            parameter.data.copy_(torch.randn(parameter.shape).double())
    return model.eval()


# By hand: numbers one at a time, matrices written out.


def tan_kappa(length: float, kappa: float) -> float:
    if kappa < 0:
        return math.tanh(math.sqrt(-kappa) * length) / math.sqrt(-kappa)
    return math.tan(math.sqrt(kappa) * length) / math.sqrt(kappa)


def exp_by_hand(vector: list[float], kappa: float) -> list[float]:
    length = math.hypot(*vector)
    return [tan_kappa(length, kappa) * entry / length for entry in vector]


def kernel_by_hand(point, kappa, directions, phases) -> list[float]:
    features = []
    for direction, phase in zip(directions, phases, strict=True):
        distance = sum((a - b) ** 2 for a, b in zip(point, direction, strict=True))
        ratio = (1 + kappa * sum(a * a for a in point)) / (distance + 1e-5) + 1e-5
        s = math.log(ratio)
        features.append(math.exp((len(point) - 1) / 2 * s) * math.cos(s + phase))
    return features


def dense_adjacency(given: GraphInputs) -> torch.Tensor:
    nodes = given.x.size(0)
    A = torch.eye(nodes).double()
    A[given.edge_index[1], given.edge_index[0]] = 1
    scale = A.sum(1).rsqrt()
    return scale[:, None] * A * scale[None, :]


def gcn_by_hand(gcn, x, A):
    first, second = gcn.maps
    hidden = F.relu(A @ (x @ first.weight.t()) + gcn.biases[0])
    return A @ (hidden @ second.weight.t()) + gcn.biases[1]


def points_by_hand(model: DGCN, x: torch.Tensor) -> list[list[list[float]]]:
    spaces = model.spaces
    kappas = (spaces.point_step * spaces.scaled_curvatures).tolist()
    if spaces.num_nodes is not None:
        vectors = (spaces.point_step * spaces.scaled_points).tolist()
        pairs = zip(vectors, kappas, strict=False)
        return [[exp_by_hand(v, kappa) for v in factor] for factor, kappa in pairs]
    lifted = (x @ spaces.lift.weight.t()).view(len(x), spaces.num_factors, -1)
    points = []
    for m, kappa in enumerate(kappas):
        u = lifted[:, m]
        norm = u.norm(dim=-1, keepdim=True)
        points.append((0.9 / math.sqrt(abs(kappa)) * torch.tanh(norm) * u / norm).tolist())
    return points


def states_by_hand(model: DGCN, given: GraphInputs) -> torch.Tensor:
    A, spaces = dense_adjacency(given), model.spaces
    parts = [gcn_by_hand(model.feature_gcn, given.x, A)]
    kappas = (spaces.point_step * spaces.scaled_curvatures).tolist()
    for m, points in enumerate(points_by_hand(model, given.x)):
        maps = spaces.directions[m].tolist(), spaces.phases[m].tolist()
        z = [kernel_by_hand(point, kappas[m], *maps) for point in points]
        parts.append(gcn_by_hand(model.point_gcn, torch.tensor(z, dtype=torch.float64), A))
    if spaces.hypersphere:
        raw = spaces.point_step * spaces.scaled_points[-1]
        raised = torch.cat([raw[:, :-1], torch.log1p(raw[:, -1:].exp())], dim=-1)
        unit = raised / raised.norm(dim=-1, keepdim=True)
        q = len(spaces.frequencies)
        z = math.sqrt(2 / q) * torch.cos(unit @ spaces.frequencies.t() + spaces.phases[-1])
        parts.append(gcn_by_hand(model.point_gcn, z, A))
    joined = torch.cat(parts, dim=-1)
    return F.layer_norm(joined, joined.shape[-1:], model.norm.weight, model.norm.bias)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"curvature": 1.5},
        {"points": "features"},
        {"points": "features", "curvature": 2.0},
        {"hypersphere": True, "point_step": 1.0},
        {"num_factors": 3, "dimensions": 8, "embedding_channels": 12},
    ],
    ids=str,
)
def test_states_by_hand(options):
    for seed in range(2):
        given, model = inputs(seed), build(**options)
        assert_same({"h": model(given)}, {"h": states_by_hand(model, given)}, 1e-10)
        assert model.out_channels == model(given).size(1)


def test_a_graph_task_has_points_from_features():
    given = inputs()
    alone, batched = build("graph", None), build("node", N, points="features")
    batched.load_state_dict(alone.state_dict())
    assert torch.equal(alone(given), batched(given))


def test_free_points_are_renumbered_with_the_nodes():
    free, (x, edges, u) = build(), random_graph()
    order = torch.randperm(N)
    moved = copy.deepcopy(free)
    moved.spaces.scaled_points.data = free.spaces.scaled_points.data[:, order]
    there = moved(GraphInputs.build(x[order], order.argsort()[edges], u[order]))
    assert_same({"h": there}, {"h": free(GraphInputs.build(x, edges, u))[order]}, 1e-11)


# Curvature.


def test_the_tangent_is_smooth_across_its_series():
    for y in (-4.0, -1.001e-3, -0.999e-3, 0.999e-3, 1.001e-3, 1.5):
        root = math.sqrt(abs(y))
        wanted = (math.tan(root) if y > 0 else math.tanh(root)) / root
        assert float(tangent_ratio(torch.tensor(y, dtype=torch.float64))) == pytest.approx(
            wanted, abs=1e-13
        )
    y = torch.tensor([-1e30, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 1e30], requires_grad=True)
    tangent_ratio(y).sum().backward()
    assert y.grad.isfinite().all()
    torch.testing.assert_close(y.grad[2:5], torch.full((3,), 1 / 3))


def features_at(kappa: float, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(1, 6, 4, generator=generator).to(dtype).requires_grad_()
    w = F.normalize(torch.randn(1, 4, 4, generator=generator), dim=-1).to(dtype)
    b = torch.rand(1, 4, generator=generator).to(dtype)
    curvature = torch.tensor([kappa], dtype=dtype, requires_grad=True)
    z = kernel_features(project(exp_at_origin(v, curvature), curvature), curvature, w, b)
    gradients = torch.autograd.grad(z.sin().sum(), [v, curvature])
    return {"z": z, "v": gradients[0], "kappa": gradients[1]}


def test_a_flat_space_is_the_limit_from_both_sides():
    for kappa in (1e-3, 1e-7, 1e-12):
        assert_same(features_at(kappa), features_at(-kappa), 100 * kappa)
        assert_same(features_at(kappa), features_at(0.0), 100 * kappa)
    assert features_at(0.0)["kappa"].abs() > 1e-3  # a gradient leads away from flat


@pytest.mark.parametrize("points", ["free", "features"])
def test_a_curvature_may_change_sign(points):
    given, model = inputs(), build(points=points)
    outputs = []
    for kappa in (-1e-9, 0.0, 1e-9):
        model.spaces.scaled_curvatures.data.fill_(kappa / 0.1)
        model.zero_grad()
        outputs.append(model(given))
        outputs[-1].square().sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
    for output in outputs[1:]:
        assert_same({"h": output}, {"h": outputs[0]}, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_are_finite_at_their_poles(dtype):
    """At a direction, at the boundary of a ball, and far outside what a chart holds."""
    for kappa in (-3.0, -1.0, -0.25, 0.0, 0.25, 4.0):
        curvature = torch.tensor([kappa], dtype=dtype, requires_grad=True)
        w = F.normalize(torch.randn(1, 8, 8), dim=-1).to(dtype)
        v = torch.cat([w, w + 1e-3 * torch.randn(1, 8, 8), 1e3 * w, 1e10 * w, 0 * w], dim=1)
        v = v.to(dtype).requires_grad_()
        curved = project(exp_at_origin(v, curvature), curvature)
        assert (1 + kappa * curved.square().sum(-1) > 5e-3).all()
        for points in (curved, project(v.clamp(-1, 1), curvature)):  # the latter at w itself
            z = kernel_features(points, curvature, w, torch.zeros(1, 8, dtype=dtype))
            assert z.isfinite().all()
            gradients = torch.autograd.grad(z.sum(), [v, curvature], retain_graph=True)
            assert all(gradient.isfinite().all() for gradient in gradients)
        assert z.abs().max() > 1e8 or kappa <= -1  # within such balls w is out of reach


def test_points_of_a_model_keep_within_their_balls():
    for points in ("free", "features"):
        model = build(points=points)
        kappa = torch.tensor([-1.0, -0.3]).double()
        vectors = 1e4 * torch.randn(2, N, 3).double()
        conformal = 1 + kappa[:, None] * model.spaces._points(vectors, kappa).square().sum(-1)
        assert conformal.min() > 5e-3


def test_all_points_at_one_direction_still_train():
    """The log ratio is held at 8; in twenty dimensions that would overflow."""
    given = inputs(1)
    model = DGCN(F_IN, task="node", num_nodes=N, curvature=0.5, dimensions=20, point_step=1.0)
    spaces = model.spaces
    direction = spaces.directions[0, 0]
    lengths = torch.atan(spaces.curvatures.abs().sqrt()) / spaces.curvatures.abs().sqrt()
    spaces.scaled_curvatures.data.abs_()
    spaces.scaled_points.data.copy_((lengths * direction).expand(1, N, -1))
    given = GraphInputs.build(given.x.float(), given.edge_index, given.signature.float())
    (z,) = spaces(given.x)
    assert z.isfinite().all()
    assert z.abs().max() > 1e3
    model(given).tanh().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_the_start_is_the_published_one():
    torch.manual_seed(0)
    model = DGCN(F_IN, task="node", num_nodes=4000, num_factors=6, dimensions=8, curvature=-2.0)
    kappa = model.spaces.curvatures
    assert kappa.min() < 0  # -2 (1 + N(0, 1)): of either sign, here both
    assert kappa.max() > 0
    vectors = model.spaces.point_step * model.spaces.scaled_points
    points = project(exp_at_origin(vectors, kappa), kappa)
    share = points.norm(dim=-1) * kappa.abs().sqrt()[:, None]
    torch.testing.assert_close(share, share[:, :1].expand_as(share), rtol=1e-4, atol=1e-5)
    assert share.max() < 0.9
    assert share[:, 0].unique().numel() == 6
    assert points.mean(1).norm(dim=-1).max() < 0.1 * points.norm(dim=-1).max()
    norms = model.spaces.directions.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    assert model.spaces.phases.min() >= 0
    assert 6 < model.spaces.phases.max() <= 2 * math.pi


def test_points_and_curvatures_take_smaller_steps():
    given = inputs()
    starts = [build(point_step=factor)(given) for factor in (1.0, 0.1)]
    assert_same({"h": starts[0]}, {"h": starts[1]}, 1e-5)  # drawn in single precision
    for factor in (1.0, 0.1):
        model = build(point_step=factor)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        before = model.spaces.curvatures.detach().clone()
        points = model.spaces._vectors(given.x).detach().clone()
        model(given)[:, 0].sum().backward()
        optimiser.step()
        moved = (model.spaces.curvatures - before).abs()
        torch.testing.assert_close(moved, torch.full_like(moved, 1e-3 * factor), rtol=1e-3, atol=0)
        moved = (model.spaces._vectors(given.x) - points).abs()
        torch.testing.assert_close(moved.max(), moved.new_tensor(1e-3 * factor), rtol=1e-3, atol=0)


# One graph's points are no other's.


def test_free_points_do_not_transfer():
    model, (x, edge_index, u) = build(), random_graph()
    with pytest.raises(DataError, match=r"9 nodes.*got 7.*do not transfer.*points='features'"):
        model(inputs(nodes=7, edges=9))
    sampler = NeighbourSampler(edge_index, N, [1], batch_size=2, seed=1)
    batch = next(iter(sampler.batches(epoch=0)))
    sample = GraphInputs.build(x[batch.n_id], batch.edge_index, u[batch.n_id])
    with pytest.raises(DataError, match="sampled neighbourhoods; use points='features'"):
        model(sample)
    inductive = build(points="features")
    wanted = states_by_hand(inductive, sample)
    assert_same({"h": inductive(sample)}, {"h": wanted}, 1e-10)


@pytest.mark.parametrize("task", ["node", "link"])
def test_the_engine_says_how_many_nodes(task):
    given = inputs()
    network = Network(RunConfig(method="d-gcn", task=task), InputShape(F_IN, 3, 4, N)).double()
    pairs = torch.tensor([[0, 1], [2, 3]])
    logits = network(given, pairs)
    assert logits.shape == ((N, 4) if task == "node" else (2,))
    assert network.encoder.spaces.scaled_points.shape == (1, N, 8)
    with pytest.raises(DataError, match="do not transfer"):
        network(inputs(nodes=8, edges=9), pairs)


def test_the_training_graph_has_no_reverse_of_a_test_edge():
    """The public split leaves them in; the package's split is what this method gets."""
    _, edge_index, _ = random_graph(nodes=40, edges=120)
    split = random_link_split(edge_index, 40, seed=0)
    seen = {tuple(pair) for pair in split.message_edges.t().tolist()}
    for pairs in (split.validation, split.test):
        for u, v in pairs.t().tolist():
            assert (u, v) not in seen
            assert (v, u) not in seen


# Dropout.


def test_thinned_edges_are_normalised_after_the_draw():
    given = inputs(nodes=30, edges=150)
    torch.manual_seed(0)
    nothing = thinned_adjacency(given, 0.0)
    assert_same({"A": nothing.to_dense()}, {"A": normalised_adjacency(given).to_dense()}, 1e-12)
    kept = []
    for _ in range(20):
        A = thinned_adjacency(given, 0.4).to_dense()
        links = A != 0
        assert links.diagonal().all()
        assert not (links & (dense_adjacency(given) == 0)).any()
        scale = links.double().sum(1).rsqrt()
        assert_same({"A": A}, {"A": scale[:, None] * links * scale[None, :]}, 1e-12)
        kept.append((int(links.sum()) - 30) / given.edge_index.size(1))
    assert sum(kept) / 20 == pytest.approx(0.6, abs=0.03)


def test_sparse_features_beside_free_points():
    x, edge_index, u = random_graph()
    x = torch.where(x > 0.2, x, 0.0)
    model, results = build(points="free"), []
    with without_csr_warnings():
        for features in (x, x.to_sparse_csr()):
            model.zero_grad()
            output = model(GraphInputs.build(features, edge_index, u))
            output.tanh().sum().backward()
            results.append({"h": output} | {n: p.grad.clone() for n, p in model.named_parameters()})
    assert_same(results[1], results[0], 1e-12)


# Losses without labels.


def test_contrast_by_hand():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 5, 3, generator=generator).double()
    total = 0.0
    for i in range(5):
        cosine = [
            [float(a[r] @ b[c] / (a[r].norm() * b[c].norm() + 1e-5)) for c in range(5)]
            for r in range(5)
        ]
        e = [[math.exp(c / 0.2) for c in row] for row in cosine]
        total -= math.log(e[i][i] / (sum(e[i][j] for j in range(5) if j != i) + 1e-5))
        total -= math.log(e[i][i] / (sum(e[j][i] for j in range(5) if j != i) + 1e-5))
    assert float(contrast_loss(a, b, temperature=0.2)) == pytest.approx(total / 10, abs=1e-12)
    assert contrast_loss(a, a, temperature=0.2) < contrast_loss(a, a.flip(0), temperature=0.2)
    zero = torch.zeros(4, 3, requires_grad=True)
    contrast_loss(zero, zero, temperature=0.2).backward()
    assert zero.grad.isfinite().all()
    assert contrast_loss(zero[:1], zero[:1], temperature=0.2) == 0


def wedges_by_hand(edge_index) -> dict[tuple[int, int, int], bool]:
    """Every (u, v, w) with edges from u and w to v, and whether u and w are linked."""
    edges = {tuple(pair) for pair in edge_index.t().tolist()}
    nodes = range(int(edge_index.max()) + 1)
    return {
        (u, v, w): (u, w) in edges or (w, u) in edges
        for u, v, w in permutations(nodes, 3)
        if (u, v) in edges and (w, v) in edges
    }


def test_wedges_are_drawn_evenly_and_known_when_closed():
    torch.manual_seed(0)
    directed = random_sample(4, nodes=6, edges=14)[1]
    for edge_index in (
        random_graph(2, nodes=7, edges=9)[1],
        directed[:, directed[0] != directed[1]],
    ):
        nodes = int(edge_index.max()) + 1
        x, u = torch.randn(nodes, 2), torch.zeros(nodes, 1)
        wedges = Wedges.of(GraphInputs.build(x, edge_index, u))
        wanted = wedges_by_hand(edge_index)
        assert wedges.count == len(wanted)
        edges = len(wedges.source)
        assert wedges.sample(10**6).shape == (3, edges)
        assert wedges.sample(2).shape == (3, 2)
        drawn = torch.cat([wedges.sample(10**6) for _ in range(100 * len(wanted) // edges + 1)], 1)
        closed = wedges.are_closed(drawn).tolist()
        counts = dict.fromkeys(wanted, 0)
        for triple, is_closed in zip(map(tuple, drawn.t().tolist()), closed, strict=True):
            assert wanted[triple] == is_closed
            counts[triple] += 1
        # Poisson with mean of about 100 each.
        assert all(45 < count < 175 for count in counts.values())


def test_wedge_probabilities_by_hand():
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()

    def p(a, b):
        return 1 / (math.exp(float((z[a] - z[b]).square().sum()) - 2) + 1)

    triples = torch.tensor([[0, 1, 2], [3, 1, 0], [2, 2, 1]]).t()
    got = wedge_probabilities(z, triples).tolist()
    for (u, v, w), row in zip(triples.t().tolist(), got, strict=True):
        open_wedge = p(u, v) * p(v, w) * (1 - p(u, w))
        triangle = p(u, v) * p(v, w) * p(u, w)
        assert row == pytest.approx([1 - open_wedge - triangle, open_wedge, triangle], abs=1e-12)


def test_a_wedge_is_closed_by_an_edge_of_either_direction():
    edge_index = torch.tensor([[0, 2, 0, 3], [1, 1, 2, 1]])
    wedges = Wedges.of(GraphInputs.build(torch.zeros(4, 1), edge_index, torch.zeros(4, 1)))
    triples = torch.tensor([[0, 1, 2], [2, 1, 0], [0, 1, 3], [3, 1, 2]]).t()
    assert wedges.are_closed(triples).tolist() == [True, True, False, False]


def test_the_motif_loss_by_hand():
    """Real wedges are open or closed, and count as those with two nodes replaced by strangers."""
    given = inputs(2)
    z, wedges, labels = (
        torch.randn(N, 3).double(),
        Wedges.of(given),
        wedges_by_hand(given.edge_index),
    )
    torch.manual_seed(3)
    loss = motif_loss(z, wedges, most=12)
    torch.manual_seed(3)
    real = wedges.sample(12).t().tolist()
    replaced = torch.randint(N, (2, 12)).t().tolist()
    edges = {tuple(pair) for pair in given.edge_index.t().tolist()}
    corrupted = [
        [a, b, w]
        for (a, b), (_, _, w) in zip(replaced, real, strict=True)
        if a != b and (a, b) not in edges
    ]
    assert 0 < len(corrupted) < 12
    kinds = [2 if labels[tuple(triple)] else 1 for triple in real] + [0] * len(corrupted)
    assert set(kinds) == {0, 1, 2}
    rows = wedge_probabilities(z, torch.tensor(real + corrupted).t()).tolist()
    terms = [-math.log(row[kind] + 1e-5) for row, kind in zip(rows, kinds, strict=True)]
    wanted = sum(terms) / len(terms)
    assert float(loss) == pytest.approx(wanted, abs=1e-12)


def test_the_motif_loss_knows_an_embedding_that_tells_the_graph():
    """Two triangles far apart and a star, against the same points dealt out wrongly."""
    triangles = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    star = torch.tensor([[0, 0, 0], [1, 2, 3]])
    torch.manual_seed(0)
    for edges, nodes, good in (
        (triangles, 6, torch.tensor([0.0, 0, 0, 9, 9, 9])[:, None]),
        (star, 4, 1.2 * torch.tensor([[0.0, 0], [1, 0], [-0.5, 0.87], [-0.5, -0.87]])),
    ):
        given = GraphInputs.build(
            torch.zeros(nodes, 1), to_undirected(edges), torch.zeros(nodes, 1)
        )
        wedges = Wedges.of(given)
        bad = good.roll(1, 0)

        def mean(z, wedges=wedges):
            return sum(float(motif_loss(z.double(), wedges, most=50)) for _ in range(200)) / 200

        assert mean(good) < mean(bad) - 0.2
    huge = (1e12 * torch.randn(4, 8)).requires_grad_()
    motif_loss(huge, wedges, most=50).backward()
    assert huge.grad.isfinite().all()


def test_the_pretext_is_the_sum_and_trains_what_it_reads():
    given, model = inputs(), build(hypersphere=True, curvature=-0.5)
    assert isinstance(model, HasPretext)
    torch.manual_seed(5)
    loss = model.pretext_loss(given)
    torch.manual_seed(5)
    first, kernel, rest = model._embed(given)
    contrast = sum(contrast_loss(first, h, temperature=0.2) for h in rest) / 3
    motif = motif_loss(torch.cat(kernel, dim=-1), Wedges.of(given), most=50_000)
    assert loss.item() == pytest.approx((contrast + motif).item(), abs=1e-12)
    loss.backward()
    unused = {name for name, p in model.named_parameters() if p.grad is None}
    assert unused == {"norm.weight", "norm.bias"}
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        losses.append(model.pretext_loss(given))
        losses[-1].backward()
        optimiser.step()
    assert sum(losses[-5:]) < sum(losses[:5]) - 1


def test_the_penalty_is_for_training_and_has_its_weight():
    given = inputs()
    model = build(auxiliary_weight=0.25)
    assert torch.equal(model(given), build()(given))  # evaluation: bare states
    model.train()
    torch.manual_seed(2)
    encoding = model(given)
    assert isinstance(encoding, Encoding)
    torch.manual_seed(2)
    assert encoding.penalty.item() == pytest.approx(0.25 * model.pretext_loss(given).item())
    assert not isinstance(build().train()(given), Encoding)


def test_few_anchors_are_drawn_of_many_nodes():
    given, model = inputs(), build(anchors=3)
    seen = {round(model.pretext_loss(given).item(), 6) for _ in range(5)}
    assert len(seen) == 5
    torch.manual_seed(4)
    chosen = torch.randperm(N)[:3]
    first, kernel, rest = model._embed(given)
    wanted = sum(contrast_loss(first[chosen], h[chosen], temperature=0.2) for h in rest) / 2
    wanted = wanted + motif_loss(torch.cat(kernel, dim=-1), Wedges.of(given), most=50_000)
    torch.manual_seed(4)
    assert model.pretext_loss(given).item() == pytest.approx(wanted.item(), abs=1e-12)


# Two stages for nodes.


def test_pairs_are_graded_by_their_distance():
    given = inputs(2)
    z, wedges = torch.randn(N, 3).double(), Wedges.of(given)
    edges = {tuple(pair) for pair in given.edge_index.t().tolist()}
    assert {tuple(pair) for pair in wedges.edges(10**6).t().tolist()} == edges
    assert {tuple(pair) for pair in wedges.edges(3).t().tolist()} <= edges
    pairs, apart = wedges.strangers(200)
    for (a, b), is_apart in zip(pairs.t().tolist(), apart.tolist(), strict=True):
        assert is_apart == (a != b and (a, b) not in edges)
    torch.manual_seed(3)
    loss = pair_loss(z, wedges, most=10**6, largest=1.0)
    torch.manual_seed(3)
    pairs, apart = wedges.strangers(len(edges))
    terms = [[], []]
    for present, ends in ((1, wedges.edges(10**6)), (0, pairs[:, apart])):
        for a, b in ends.t().tolist():
            logit = max(-1.0, min(1.0, 2 - float((z[a] - z[b]).square().sum())))
            p = 1 / (1 + math.exp(-logit))
            terms[present].append(-math.log(p if present else 1 - p))
    wanted = sum(sum(found) / len(found) for found in terms)
    assert float(loss) == pytest.approx(wanted, abs=1e-12)
    alone = Wedges.of(GraphInputs.build(given.x, given.edge_index[:, :0], given.signature))
    assert pair_loss(z, alone, most=9, largest=1.0) == 0


def test_links_follow_the_losses_in_the_pretext():
    given, model = inputs(), build(links_after=2).train()

    def reads_states() -> bool:
        model.zero_grad()
        model.pretext_loss(given).backward()
        return model.norm.weight.grad is not None

    assert [reads_states() for _ in range(4)] == [False, False, True, True]
    again = build(links_after=2).train()
    again.load_state_dict(model.state_dict())  # as when a run goes on
    assert int(again.pretext_passes) == 4
    model.eval()
    model.pretext_loss(given)
    assert int(model.pretext_passes) == 4  # a look is no pass
    torch.manual_seed(1)
    assert build(links_after=0).pretext_loss(given) < build().pretext_loss(given)


def test_the_classifier_by_hand():
    given, states = inputs(), torch.randn(N, 7).double()
    torch.manual_seed(0)
    readout = GCNClassifier(7, F_IN, 3, hidden_channels=6).double().eval()
    bound = math.sqrt(6 / (7 + F_IN + 6))
    for layer in (readout.feature_map, readout.state_map):  # one map of both, at its start
        assert 0.8 * bound < layer.weight.abs().max() <= bound
    for parameter in readout.parameters():
        parameter.data.normal_()
    A = dense_adjacency(given)
    joined = torch.cat([given.x, states], dim=1)
    weight = torch.cat([readout.feature_map.weight, readout.state_map.weight], dim=1)
    hidden = F.relu(A @ joined @ weight.t() + readout.state_map.bias)
    wanted = A @ hidden @ readout.last.maps[0].weight.t() + readout.last.biases[0]
    logits = readout(Encoding(states), given, None)
    assert_same({"logits": logits}, {"logits": wanted}, 1e-12)


def test_the_classifier_and_the_states_scale_features_each_for_itself():
    given, states = inputs(), torch.randn(N, 7).double()
    scaled = replace(given, x=F.normalize(given.x, dim=-1) * F_IN**0.5)
    torch.manual_seed(0)
    plain = GCNClassifier(7, F_IN, 3).double()
    scaling = GCNClassifier(7, F_IN, 3, scale_features=True).double()
    scaling.load_state_dict(plain.state_dict())
    pairs = [(scaling(Encoding(states), given, None), plain(Encoding(states), scaled, None))]
    pairs += [(build(scale_features=True)(given), build()(scaled))]
    for found, wanted in pairs:
        assert_same({"found": found}, {"found": wanted}, 1e-10)


def test_nodes_are_classified_on_frozen_states():
    about = {"method": "d-gcn", "preset": "published", "task": "node"}
    config = RunConfig.parse(about)
    assert (config.pretraining.freeze, config.options["links_after"]) == (True, 20)
    assert config.pretraining.epochs == 40
    network = Network(config, InputShape(F_IN, 3, 4, N)).double()
    assert isinstance(network.readout, GCNClassifier)
    network.freeze_encoder()
    network.train()
    network.outputs(inputs()).prediction.sum().backward()
    assert all(p.grad is None for p in network.encoder.parameters())
    assert all(p.grad is not None for p in network.readout.parameters())
    plain = RunConfig.parse({**about, "preset": "end-to-end"})
    assert plain.pretraining.epochs == plain.options["auxiliary_weight"] == 0
    assert plain.readout["kind"] == "shared"


# Numbers of the public code (RiemannGraph/MotifRGC, MIT licence), computed once with it in float64
# for the graph, the weights and the triples below.


def wave(*shape: int, shift: float, scale: float = 1.0) -> torch.Tensor:
    """Return numbers anyone can make again."""
    size = math.prod(shape)
    return scale * torch.sin(1.7 * torch.arange(size).double() + shift).reshape(shape)


def golden_model() -> tuple[DGCN, GraphInputs]:
    options = {"dimensions": 3, "num_factors": 2, "hidden_channels": 5, "embedding_channels": 2}
    model = DGCN(4, task="node", num_nodes=6, point_step=1.0, **options).double().eval()
    spaces, kappas = model.spaces, (-0.7, 0.4)
    for i, kappa in enumerate(kappas):
        points = wave(6, 3, shift=0.3 + i, scale=0.4)
        root, norm = math.sqrt(abs(kappa)), points.norm(dim=-1, keepdim=True)
        length = (torch.atanh(root * norm) if kappa < 0 else torch.atan(root * norm)) / root
        spaces.scaled_curvatures.data[i] = kappa
        spaces.scaled_points.data[i] = length * points / norm
        spaces.directions[i] = F.normalize(wave(3, 3, shift=2.0 + i), dim=-1)
        spaces.phases[i] = 3.0 + wave(3, shift=4.0 + i, scale=3.0)
    for j, gcn in enumerate((model.feature_gcn, model.point_gcn)):
        for k, (layer, bias) in enumerate(zip(gcn.maps, gcn.biases, strict=True)):
            layer.weight.data = wave(*layer.weight.shape, shift=10.0 + 2 * j + k)
            bias.data = wave(len(bias), shift=20.0 + 2 * j + k, scale=0.3)
    model.norm.weight.data = 1 + wave(6, shift=30.0, scale=0.5)
    model.norm.bias.data = wave(6, shift=31.0, scale=0.5)
    edges = to_undirected(torch.tensor([[0, 0, 1, 1, 2, 3], [1, 2, 2, 3, 4, 4]]))
    return model, GraphInputs.build(wave(6, 4, shift=0.0), edges, torch.zeros(6, 1).double())


def test_numbers_of_the_public_code():
    model, given = golden_model()
    first, kernel, others = model._embed(given)
    states = model(given)
    found = {"first": kernel[0][0], "last": kernel[1][5], "states": states[[0, 3, 5]]}
    rows = [
        [-0.585489657886, 2.12709201764, -0.574571221421, -1.308750356298],
        [0.06335069906, 0.759316975872, -0.213441049504, -0.727179995808],
        [-0.493514855447, 0.507106335584, -2.6058532005, -0.128665160089],
    ]
    ends = [[0.851224792778, -0.144693616483], [-1.038571397489, 2.560758496409]]
    ends += [[0.835323765557, 1.306462458711]]
    wanted = {
        "first": torch.tensor(
            [0.702962507356, -0.89511823033, 1.305697126491], dtype=torch.float64
        ),
        "last": torch.tensor([1.005096485438, 5.083742487422, 2.057219771965], dtype=torch.float64),
        "states": torch.tensor(
            [a + b for a, b in zip(rows, ends, strict=True)], dtype=torch.float64
        ),
    }
    assert_same(found, wanted, 1e-9)
    contrasts = [contrast_loss(first, other, temperature=0.2).item() for other in others]
    assert contrasts == pytest.approx([2.667343002783526, 9.026338856794426], abs=1e-9)
    real = torch.tensor([[0, 1, 2], [1, 0, 2], [0, 1, 3], [1, 3, 4], [2, 4, 3]]).t()
    corrupted = torch.tensor([[0, 3, 2], [4, 1, 2], [5, 1, 3], [0, 5, 4], [2, 3, 3]]).t()
    closed = Wedges.of(given).are_closed(real)
    motif = graded_wedges(torch.cat(kernel, dim=-1), real, closed, corrupted)
    assert motif.item() == pytest.approx(5.41070292998859, abs=1e-9)
    pairs = torch.tensor([[0, 0, 1, 5, 2, 3], [3, 4, 4, 0, 5, 5]])
    links = graded_pairs(states, given.edge_index, pairs, math.log(99))
    assert links.item() == pytest.approx(1.813151782964432, abs=1e-9)


# The decoder.


def test_the_decoder_clips_what_is_graded_and_ranks_what_is_not():
    states = torch.tensor([[0.0, 0.0], [1.0, 1.0], [3.0, 0.0], [0.1, 0.0]], requires_grad=True)
    readout, given = ClippedFermiDirac(2), inputs()
    pairs = torch.tensor([[0, 0, 0], [1, 2, 3]])
    outputs = readout(Encoding(states), given, pairs)
    torch.testing.assert_close(outputs.prediction, torch.tensor([0.0, -7.0, 1.99]))
    ((weight, graded),) = outputs.graded
    assert weight == 1
    torch.testing.assert_close(graded.sigmoid(), torch.tensor([0.5, 0.01, 0.8797432]))
    graded[1].backward()
    assert not states.grad.any()
    ((_, free),) = ClippedFermiDirac(2, clip=0.0)(Encoding(states), given, pairs).graded
    assert torch.equal(free, outputs.prediction)
    with pytest.raises(ConfigError, match="'clip'"):
        ClippedFermiDirac(2, clip=0.5)


class TestDGCN(MethodTestCase):
    method = "d-gcn"
    options = {
        "hidden_channels": 6,
        "embedding_channels": 4,
        "num_factors": 2,
        "dimensions": 3,
        "points": "features",
    }
    variants = (
        {},
        {"curvature": 2.0, "hypersphere": True},
        {"auxiliary_weight": 1.0, "edge_dropout": 0.3, "curvature": -0.5},
    )
    exceptions = {
        "test_scaled_features": "the classifier of nodes has the option, too; compared for each"
    }
    undrawn = ("spaces",)  # drawn at the start: curvatures, and points inside their balls
    random_pretext = True
    refused = (
        ({"points": "fre"}, "'points'.*Did you mean 'free'"),
        ({"points": "free", "task": "node", "num_nodes": None}, "points='features'"),
        ({"points": "free", "task": "graph"}, "points='features'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"embedding_channels": 0}, "'embedding_channels'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"num_factors": 0}, "'num_factors'"),
        ({"dimensions": 0}, "'dimensions'"),
        ({"curvature": float("nan")}, "'curvature'"),
        ({"point_step": 0}, "'point_step'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"edge_dropout": 1.0}, "'edge_dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"auxiliary_weight": -1}, "'auxiliary_weight'"),
        ({"temperature": 0}, "'temperature'"),
        ({"anchors": 1}, "'anchors'"),
        ({"wedges": 0}, "'wedges'"),
        ({"links_after": -1}, "'links_after'"),
    )
    refused_readout = (
        ("node", {"hidden_channels": 0}, "'hidden_channels'"),
        ("node", {"dropout": 1.0}, "'dropout'"),
        ("node", {"edge_dropout": 1.0}, "'edge_dropout'"),
        ("node", {"feature_dropout": -0.1}, "'feature_dropout'"),
    )
