"""ACE-HGNN: the network, the estimate, the equilibrium, and a game that stays within its rules."""

from __future__ import annotations

import copy
import itertools
import math

import geoopt
import numpy as np
import pytest
import torch
from torch_geometric.utils import to_undirected

from geof.errors import NonFiniteError, StoppedError
from geof.methods.interface import Encoding, GraphInputs, HasEpochEnd, TrainingView
from geof.methods.registry import get_method
from geof.testing import MethodTestCase, assert_same, random_graph, tiny_task
from geof.training import RunConfig, Trainer, TrainingConfig, Watch
from geof_paper.baselines import ace_hgnn
from geof_paper.baselines.ace_hgnn import ACEHGNN, estimate_curvature, nash, parallelogram, rechart
from geof_paper.baselines.hgcn import HGCN, HyperbolicLinkReadout
from geof_paper.baselines.poincare import exp0, squared_distance
from paper.tests.baselines.reference_graph import assert_close, fill, reference_graph


def inputs(seed: int = 0, **sizes) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed, **sizes))


def build(**options) -> ACEHGNN:
    torch.manual_seed(0)
    return ACEHGNN(5, **{"hidden_channels": 6, "search_from": 1, **options}).double().eval()


def on(edges: list[tuple[int, int]], nodes: int) -> GraphInputs:
    edge_index = to_undirected(torch.tensor(edges).t())
    return GraphInputs.build(torch.zeros(nodes, 2), edge_index, torch.zeros(nodes, 1))


# The network


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_network_is_hgcn_with_two_layers_whose_output_keeps_the_curvature(size):
    given, model = inputs(), build()
    model.layers[1].weight.data.abs_().mul_(size)
    model.curvature.copy_(torch.tensor([2.5, 0.4]))
    same = HGCN(5, "link", hidden_channels=6, trainable_curvature=False).double().eval()
    same.fixed_curvature = torch.tensor([2.5, 0.4, 0.4]).double()
    same.layers.load_state_dict(model.layers.state_dict())
    encoding = model(given)
    assert_same({"h": encoding.states}, {"h": same(given).states}, 1e-6)
    assert encoding.context == pytest.approx(0.4)
    if size > 1:  # longer than a ball with the first layer's curvature would allow
        assert encoding.states.norm(dim=-1).max() > 1.5 * math.atanh(1 - 1e-5) / 2.5**0.5
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"layers"}


def test_the_network_has_the_numbers_of_the_public_code():
    """Its encoder, HGCN's with two curvatures, and decoder (MIT licence), see reference_graph."""
    given = reference_graph()
    model = ACEHGNN(5, hidden_channels=4, activation="tanh").double()
    fill(model, [f"layers.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")])
    model.curvature.copy_(torch.tensor([0.7, 1.9]).double())
    encoding = model(given)
    points = [
        [-0.06022765971274879, -0.4654139716753762, 0.0850966631631034, -0.35964773321864585],
        [-0.35331263508598393, -0.27103784787615365, -0.36362358300158903, 0.015698781057895773],
    ]
    z = exp0(encoding.states, encoding.context)
    assert_close(z[[0, 3]], points, 1e-8)
    pairs = torch.tensor([[0, 1, 2], [3, 4, 6]])
    apart = squared_distance(z[pairs[0]], z[pairs[1]], encoding.context)
    assert_close(apart, [6.271562996316796, 6.475827267229525, 0.9080760962253661], 1e-7)
    logits = HyperbolicLinkReadout(4, radius=2.0, temperature=1.0)(encoding, given, pairs)
    chances = [0.013767749694754675, 0.011252738065409237, 0.7487438320816738]
    assert_close(logits.sigmoid(), chances, 1e-8)
    logits.sigmoid().log().sum().backward()
    gradient = [
        -2.231491025818367,
        1.7457417760558325,
        4.90192494268327,
        5.7526562140766995,
        3.8978233802569813,
    ]
    assert_close(model.layers[0].weight.grad[0], gradient)


# The estimate


def test_a_flat_parallelogram_has_no_curvature():
    """With m midway between b and c; the public formula, and squared distances, do not say so."""
    torch.manual_seed(0)
    for _ in range(20):
        a, b, c = torch.randn(3, 4, dtype=torch.float64)
        m = (b + c) / 2
        am, bc, ab, ac = ((p - q).norm().item() for p, q in ((a, m), (b, c), (a, b), (a, c)))
        assert abs(parallelogram(am, bc, ab, ac)) < 1e-12
        assert abs(parallelogram(am**2, bc**2, ab**2, ac**2)) > 1e-3
        assert abs(am / 2 + bc**2 / (8 * am) - (ab**2 + ac**2) / (2 * am)) > 1e-3


def test_a_hyperbolic_parallelogram_has_negative_curvature():
    ball = geoopt.PoincareBall(c=torch.tensor(1.0, dtype=torch.float64))
    torch.manual_seed(0)
    for _ in range(20):
        a, b, c = ball.expmap0(torch.randn(3, 4, dtype=torch.float64))
        m = ball.geodesic(torch.tensor(0.5).double(), b, c)
        am, bc, ab, ac = (ball.dist(p, q).item() for p, q in ((a, m), (b, c), (a, b), (a, c)))
        assert parallelogram(am, bc, ab, ac) < -1e-6


def points(nodes: int, c: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return exp0(0.5 * torch.randn(nodes, 3, generator=generator, dtype=torch.float64), c)


def test_the_estimate_of_a_star_and_of_a_line():
    """The star is a tree, minus the length of its edges; a line of equal steps is flat."""
    star = on([(0, leaf) for leaf in range(1, 6)], 6)
    z = torch.zeros(6, 5, dtype=torch.float64)
    z[1:] = 0.3 * torch.eye(5)
    step = squared_distance(z[0], z[1], 2.0).sqrt().item()
    assert estimate_curvature(z, 2.0, star) == pytest.approx(-step, rel=1e-12)
    line = on([(i, i + 1) for i in range(7)], 8)
    z = torch.zeros(8, 2, dtype=torch.float64)
    z[::2, 0] = 0.4  # to and fro: every step has the same length
    assert estimate_curvature(z, 1.0, line) == pytest.approx(0.0, abs=1e-12)


def test_the_estimate_walks_shortest_paths(monkeypatch):
    """Each draw, against paths found by enumeration."""
    given, c = inputs(3, nodes=10, edges=12), 1.7
    z, seen = points(10, c), []
    real = ace_hgnn._Walks.draw

    def draw(walks):
        seen.append(real(walks))
        return seen[-1]

    monkeypatch.setattr(ace_hgnn._Walks, "draw", draw)
    adjacent = {i: set() for i in range(10)}
    for i, j in given.edge_index.t().tolist():
        adjacent[i].add(j)
    step = squared_distance(z[:, None], z[None], c).sqrt()

    def lengths(start, end):
        """Return the lengths in the ball of all shortest walks from start to end."""
        walks = [[start]]
        while not any(walk[-1] == end for walk in walks):
            walks = [[*walk, j] for walk in walks for j in adjacent[walk[-1]]]
        return [
            sum(step[i, j].item() for i, j in itertools.pairwise(walk))
            for walk in walks
            if walk[-1] == end
        ]

    for _ in range(3):
        seen.clear()
        torch.manual_seed(len(seen))
        found = estimate_curvature(z, c, given)
        assert len(seen) == ace_hgnn.DRAWS
        options = []
        for m, b, c_, a in seen:
            assert {b, c_} <= adjacent[m]
            assert len({m, b, c_, a}) == 4
            # Where there are several shortest paths, any will do.
            ways = itertools.product(lengths(a, m), lengths(b, c_), lengths(a, b), lengths(a, c_))
            options.append([parallelogram(*way) for way in ways])
        lowest, highest = (sum(map(f, options)) / len(options) for f in (min, max))
        assert lowest - 1e-12 <= found <= highest + 1e-12


def test_the_estimate_searches_at_most_thirty_times(monkeypatch):
    calls, real = [], ace_hgnn._Walks.search
    monkeypatch.setattr(
        ace_hgnn._Walks, "search", lambda walks, start: calls.append(start) or real(walks, start)
    )
    estimate_curvature(points(9, 1.0), 1.0, inputs())
    assert 0 < len(calls) <= 30


def test_graphs_too_small_for_an_estimate():
    triangle = on([(0, 1), (1, 2), (2, 0)], 3)
    assert math.isnan(estimate_curvature(points(3, 1.0), 1.0, triangle))
    pairs = on([(0, 1), (2, 3)], 5)
    assert math.isnan(estimate_curvature(points(5, 1.0), 1.0, pairs))
    empty = GraphInputs.build(
        torch.zeros(1, 2), torch.zeros(2, 0, dtype=torch.long), torch.zeros(1, 1)
    )
    assert math.isnan(estimate_curvature(points(1, 1.0), 1.0, empty))
    star = on([(0, leaf) for leaf in range(1, 6)], 6)
    assert math.isnan(estimate_curvature(torch.zeros(6, 2), 1.0, star))  # all states in one place


def test_edges_of_a_sample_are_walked_in_both_directions():
    edge_index = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])  # towards the seed only
    given = GraphInputs.build(torch.zeros(5, 2), edge_index, torch.zeros(5, 1))
    z = torch.zeros(5, 4, dtype=torch.float64)
    z[1:] = 0.3 * torch.eye(4)
    assert estimate_curvature(z, 1.0, given) < 0


# The equilibrium


def no_reason_to_change(first, second, p, q):
    assert p.min() >= 0
    assert q.min() >= 0
    assert p.sum() == pytest.approx(1)
    assert q.sum() == pytest.approx(1)
    assert (first @ q).max() <= p @ first @ q + 1e-8
    assert (p @ second).max() <= p @ second @ q + 1e-8


def test_strategies_are_in_equilibrium():
    rng = np.random.default_rng(0)
    mixed = 0
    for number in range(400):
        tables = rng.normal(size=(2, 2, 4))
        if number % 2:  # full of ties
            tables = rng.integers(-1, 2, size=(2, 2, 4)).astype(float)
        p, q = nash(*tables)
        no_reason_to_change(*tables, p, q)
        mixed += p.max() < 1
    assert mixed > 10


def test_a_game_without_a_pure_equilibrium():
    first = np.array([[1.0, -1.0, -9.0, -9.0], [-1.0, 1.0, -9.0, -9.0]])
    second = np.array([[-1.0, 1.0, -9.0, -9.0], [1.0, -1.0, -9.0, -9.0]])
    p, q = nash(first, second)
    np.testing.assert_allclose(p, [0.5, 0.5])
    np.testing.assert_allclose(q, [0.5, 0.5, 0, 0])


def test_no_equilibrium_is_uniform():
    p, q = nash(np.full((2, 4), np.nan), np.zeros((2, 4)))
    np.testing.assert_allclose(p, 1 / 2)
    np.testing.assert_allclose(q, 1 / 4)


# The game


def test_rechart_by_hand():
    old, new = torch.tensor([0.5, 1.5]).double(), torch.tensor([0.9, 0.7]).double()
    states = 0.3 * torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()

    def ball(c):
        return geoopt.PoincareBall(c=c.clone())

    z = ball(old[1]).expmap0(states)
    points = [ball(b).expmap0(ball(a).logmap0(z)) for a, b in zip(old, new, strict=True)]
    wanted = ball(new[1]).logmap0((points[0] + points[1]) / 2)
    found = rechart(Encoding(states, context=old[1]), old, new)
    torch.testing.assert_close(found.states, wanted, rtol=1e-9, atol=1e-10)
    assert found.context == new[1]


def test_rechart_survives_balls_of_other_sizes():
    states = 50 * torch.randn(4, 3)
    for old, new in itertools.product(itertools.product((0.1, 10.0), repeat=2), repeat=2):
        old, new = torch.tensor(old), torch.tensor(new)
        assert rechart(Encoding(states, context=old[1]), old, new).states.isfinite().all()


def view(epoch: int, given: GraphInputs, score=lambda encoding: 50.0) -> TrainingView:
    return TrainingView(epoch, given, score)


def play(model: ACEHGNN, epochs, given=None, score=lambda encoding: 50.0):
    given = given or inputs()
    for epoch in epochs:
        model.end_epoch(view(epoch, given, score))


def test_nothing_moves_before_the_game_begins():
    model = build(search_from=5)
    assert isinstance(model, HasEpochEnd)
    before = copy.deepcopy(model.state_dict())
    play(model, range(1, 5))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    play(model, [5])
    assert model.metrics.tolist() == [50.0, 50.0]
    assert model.seen == 0
    play(model, [6])
    assert model.seen == 1
    assert model.played == 1


@pytest.mark.parametrize(("kappa", "bound"), [(0.0, 10.0), (-80.0, 0.1)])
def test_curvatures_stay_in_bounds(monkeypatch, kappa, bound):
    monkeypatch.setattr(ace_hgnn, "estimate_curvature", lambda *_: kappa)
    model = build(exploration=1.0, exploration_decay=1.0, window=500)
    torch.manual_seed(1)
    for epoch in range(1, 70):
        play(model, [epoch])
        for curvature in (model.curvature, model.explorer):
            assert curvature.min() >= 0.1
            assert curvature.max() <= 10.0
    assert model.explorer.tolist() == [bound, bound]
    assert model.curvature.tolist() == [bound, bound]


def fixed_actions(monkeypatch, first: int, second: int) -> None:
    monkeypatch.setattr(ACEHGNN, "_actions", lambda model, row: (first, second))


@pytest.mark.parametrize("action", range(4))
def test_the_explorer_moves_the_layers_it_names(monkeypatch, action):
    monkeypatch.setattr(ace_hgnn, "estimate_curvature", lambda *_: -3.0)
    fixed_actions(monkeypatch, 0, action)
    model = build(step=0.25)
    play(model, [1, 2])
    moved = 1 / (0.75 / 1.0 + 0.25 * 3.0)
    wanted = [moved if action & 2 else 1.0, moved if action & 1 else 1.0]
    assert model.explorer.tolist() == pytest.approx(wanted)
    assert model.curvature.tolist() == [1.0, 1.0]
    model.stopped.copy_(torch.tensor([True, False]))
    play(model, [3])
    assert model.explorer[0] == pytest.approx(wanted[0])


def test_the_network_takes_over_what_the_explorer_had_before_its_move(monkeypatch):
    monkeypatch.setattr(ace_hgnn, "estimate_curvature", lambda *_: -3.0)
    fixed_actions(monkeypatch, 1, 3)
    model = build()
    play(model, [1, 2])
    assert model.curvature.tolist() == [1.0, 1.0]
    explorer = model.explorer.tolist()
    play(model, [3])
    assert model.curvature.tolist() == explorer
    assert model.explorer.tolist() != explorer
    assert model(inputs()).context == explorer[1]


def test_both_players_are_scored_by_the_one_trained_readout(monkeypatch):
    """Rewards are changes of the training metric of what each player makes of the states."""
    monkeypatch.setattr(ace_hgnn, "estimate_curvature", lambda *_: -3.0)
    fixed_actions(monkeypatch, 0, 3)
    model, given, scored = build(), inputs(), []

    def score(encoding):
        scored.append(encoding)
        return [10.0, 17.0, 30.0][len(scored) - 1]

    play(model, [1, 2], given, score)
    own, explored = scored[1:]
    assert torch.equal(own.states, model(given).states)
    assert own.context == 1.0
    wanted = rechart(own, torch.ones(2).double(), model.explorer)
    assert torch.equal(explored.states, wanted.states)
    assert explored.context == model.explorer[1]
    # alpha (r + gamma 0 - 0)
    assert model.q[0, 0, 0, 3] == pytest.approx(0.5 * 7)
    assert model.q[0, 1, 0, 3] == pytest.approx(0.5 * 20)
    assert model.q.count_nonzero() == 2
    assert model.metrics.tolist() == [17.0, 30.0]


def test_what_follows_counts(monkeypatch):
    fixed_actions(monkeypatch, 0, 0)
    model = build()
    play(model, [1])
    model.keys[0], model.seen = torch.tensor([1000, 1000]), torch.tensor(1)
    model.q[0, 0, 1], model.q[0, 1, :, 2] = 4.0, 6.0  # (1, 2) is best for both, whatever happens
    play(model, [2], score=lambda encoding: 53.0)
    assert model.q[0, 0, 0, 0] == pytest.approx(0.5 * (3.0 + 0.9 * 4.0))
    assert model.q[0, 1, 0, 0] == pytest.approx(0.5 * (3.0 + 0.9 * 6.0))


def test_batches_of_graphs_are_compared_with_themselves(monkeypatch):
    monkeypatch.setattr(ace_hgnn, "estimate_curvature", lambda *_: -3.0)
    fixed_actions(monkeypatch, 0, 3)
    x, edge_index, u = random_graph()
    given = GraphInputs.build(x, edge_index, u, torch.zeros(9, dtype=torch.long), 1)
    model, scores = build(), iter([10.0, 60.0, 61.0, 62.0, 65.0])
    play(model, [1, 2], given, lambda encoding: next(scores))
    assert model.q[0, 0, 0, 3] == pytest.approx(0.5 * 2)
    assert model.q[0, 1, 0, 3] == pytest.approx(0.5 * 4)


def test_searches_stop_and_the_game_ends(monkeypatch):
    monkeypatch.setattr(ace_hgnn, "estimate_curvature", lambda *_: -3.0)
    fixed_actions(monkeypatch, 1, 1)  # only the second layer ever moves
    model = build(window=4, step=0.05)
    for epoch in range(1, 7):
        play(model, [epoch])
        assert model.stopped.tolist() == [epoch == 6, False]
    play(model, range(7, 200))
    assert model.stopped.all()
    assert torch.equal(model.curvature, model.explorer)
    before = copy.deepcopy(model.state_dict())
    play(model, range(200, 205))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_estimate_is_kept(monkeypatch):
    epochs = []
    monkeypatch.setattr(ace_hgnn, "estimate_curvature", lambda *_: epochs.append(1) or -1.0)
    fixed_actions(monkeypatch, 0, 3)
    play(build(refresh=5, window=100), range(1, 13))  # moves after epochs 2 to 12
    assert len(epochs) == 3


def test_the_estimate_sees_the_current_states(monkeypatch):
    seen = []
    monkeypatch.setattr(
        ace_hgnn, "estimate_curvature", lambda z, c, given: seen.append((z, c)) or -1.0
    )
    fixed_actions(monkeypatch, 0, 3)
    model, given = build(refresh=1), inputs()
    for epoch in (1, 2, 3):
        for parameter in model.parameters():
            parameter.data.mul_(1.1)
        play(model, [epoch], given)
    encoding = model(given)
    assert torch.equal(seen[-1][0], exp0(encoding.states, encoding.context))
    assert not torch.equal(seen[-1][0], seen[0][0])


def test_where_nothing_can_be_estimated_nothing_moves():
    x, _, u = random_graph(0, edges=0)
    given = GraphInputs.build(x, torch.zeros(2, 0, dtype=torch.long), u)
    model = build(exploration=1.0, exploration_decay=1.0)
    play(model, range(1, 20), given)
    assert model.explorer.tolist() == [1.0, 1.0]


def test_tables_have_room_for_the_latest_states():
    model = build(capacity=3)
    rows = []
    for c in (1.0, 2.0, 3.0, 2.0, 4.0, 2.0, 1.0):
        model.curvature.fill_(c)
        rows.append(model._row())
        model.q[rows[-1]] += c
    assert rows == [0, 1, 2, 1, 0, 1, 1]  # 4 takes the place of 1, then 1 that of 2
    assert model.q[:, 0, 0, 0].tolist() == [4.0, 1.0, 3.0]
    model.curvature.fill_(4.0004)
    assert model._row() == 0  # three decimals


def test_exploration_fades():
    model = build(exploration=0.5, exploration_decay=0.9, exploration_floor=0.3)
    play(model, range(1, 5))
    assert model.exploration.item() == pytest.approx(0.5 * 0.9**3)
    play(model, range(5, 20))
    assert model.exploration.item() == 0.3


def test_a_game_can_be_gone_on_with():
    """The buffers and torch's generator are all there is: a break changes no bit."""

    def score(encoding):
        return 100.0 * float(encoding.states.square().mean().tanh())

    given = inputs(nodes=12, edges=30)
    torch.manual_seed(3)
    whole = build(window=6)
    play(whole, range(1, 31), given, score)
    torch.manual_seed(3)
    first = build(window=6)
    play(first, range(1, 13), given, score)
    state, generator = copy.deepcopy(first.state_dict()), torch.get_rng_state()
    torch.manual_seed(99)
    second = build(window=6)
    second.load_state_dict(state)
    torch.set_rng_state(generator)
    play(second, range(13, 31), inputs(nodes=12, edges=30), score)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert not torch.equal(whole.explorer, torch.ones(2).double())
    fresh = build(window=6).state_dict()
    for name, value in whole.state_dict().items():
        assert (value.shape, value.dtype) == (fresh[name].shape, fresh[name].dtype)


@pytest.mark.parametrize("kind", ["node", "graph"])
def test_a_run_stopped_in_the_midst_of_the_game_can_be_gone_on_with(kind, tmp_path):
    """On batches of graphs, and on samples of one."""
    options = {"search_from": 2, "refresh": 2, "window": 3, "capacity": 3, "dropout": 0.2}
    fanouts = (2, 2) if kind == "node" else None
    training = TrainingConfig(epochs=9, batch_size=9, fanouts=fanouts)
    config = RunConfig(method="ace-hgnn", task=kind, options=options, training=training)

    def fit(**more) -> None:
        Trainer(config, tiny_task(kind, training=training), **more).fit()

    whole, parts = [], []
    fit(watch=Watch(on_epoch=whole.append))
    stopping = Watch(on_epoch=parts.append, should_stop=lambda: len(parts) == 5, save_seconds=0)
    with pytest.raises(StoppedError):
        fit(out=tmp_path, watch=stopping)
    assert len(parts) == 5
    fit(out=tmp_path, watch=Watch(on_epoch=parts.append))
    assert parts == whole


def test_mode_and_gradients_are_left_alone():
    model, given = build(exploration=1.0, dropout=0.5).train(), inputs()
    encoding = model(given)
    play(model, range(1, 8), given)
    assert model.training
    encoding.states.sum().backward()  # the game has changed buffers since
    assert model.layers[0].weight.grad.isfinite().all()


def test_states_that_are_not_numbers_are_an_error():
    model = build()
    model.layers[0].weight.data.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="finite states"):
        play(model, [1, 2])
    assert not model.training


def test_links_have_hgcns_readout():
    assert get_method("ace-hgnn").readouts == {"link": HyperbolicLinkReadout}


class TestACEHGNN(MethodTestCase):
    method = "ace-hgnn"
    options = {"hidden_channels": 6}
    variants = ({}, {"activation": "tanh", "curvature": 2.5})
    spread = 0.3
    exceptions = {
        "test_a_single_precision_copy_computes_the_same": "as for HGCN, the ball ends elsewhere in "
        "float32",
    }
    refused = (
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": 1.0}, "'feature_dropout'"),
        ({"activation": "rely"}, "'activation'"),
        ({"curvature": 0.05}, "'curvature'"),
        ({"curvature": 11}, "'curvature'"),
        ({"step": 0.0}, "'step'"),
        ({"search_from": 0}, "'search_from'"),
        ({"q_rate": 0.0}, "'q_rate'"),
        ({"q_discount": 1.0}, "'q_discount'"),
        ({"exploration": 1.5}, "'exploration'"),
        ({"exploration_decay": 0.0}, "'exploration_decay'"),
        ({"exploration_floor": -1.0}, "'exploration_floor'"),
        ({"window": 0}, "'window'"),
        ({"tolerance": -0.1}, "'tolerance'"),
        ({"refresh": 0}, "'refresh'"),
        ({"capacity": 1}, "'capacity'"),
    )
