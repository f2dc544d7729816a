"""AMP: the law of the depth, the filtered layers, the evidence bound, and a depth that moves."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch.nn import functional as F

from geof.errors import ConfigError, StoppedError
from geof.methods.interface import GraphInputs, InputShape
from geof.testing import (
    MethodTestCase,
    assert_same,
    draw_parameters,
    random_graph,
    side_by_side,
    tiny_task,
)
from geof.training import Network, RunConfig, Trainer, TrainingConfig, Watch
from geof_paper.baselines.amp import (
    AMP,
    AMPGraphReadout,
    AMPLinkReadout,
    AMPNodeReadout,
    DepthDistribution,
    least_depth,
    mixture_of,
)


def build(**options) -> AMP:
    few = {"hidden_channels": 6, "max_depth": 7, "depth": 2.0, "spread": -1.0}
    torch.manual_seed(0)
    return draw_parameters(AMP(5, 3, **{**few, **options}).double(), except_for=("depths",))


def inputs(seed: int = 0) -> GraphInputs:
    return GraphInputs.build(*random_graph(seed))


def two_graphs() -> GraphInputs:
    return side_by_side([random_graph(0), random_graph(1, nodes=1, edges=0)])


def read(kind, **options):
    classes = {} if kind is AMPLinkReadout else {"num_classes": 3}
    options = {"max_depth": 7, **options}
    torch.manual_seed(1)
    return draw_parameters(kind(6, **classes, **options).double())


# The law of the depth.


def law(kind: str, max_depth: int = 20, depth: float = 5.0, spread: float = 1.0):
    return DepthDistribution(
        max_depth, law=kind, depth=depth, spread=spread, quantile=0.99
    ).double()


def poisson_log(k: int, rate: float) -> float:
    return k * math.log(rate) - rate - math.log(math.factorial(k))


def test_masses_are_those_of_the_laws():
    deviation = math.log1p(math.e) + 0.5

    def folded(mean):
        """Mass of the absolute value between two numbers: on both sides of zero."""
        cdf = NormalDist(mean, deviation).cdf
        return [cdf(k + 1) - cdf(k) + cdf(-k) - cdf(-k - 1) for k in range(20)]

    wanted = {
        "folded-normal": folded(5.0),
        "poisson": [math.exp(poisson_log(k, 5.0)) for k in range(20)],
        "mixture": [(a + b) / 2 for a, b in zip(folded(1.0), folded(5.0), strict=True)],
    }
    for kind, masses in wanted.items():
        mass = law(kind).mass()
        torch.testing.assert_close(mass, torch.tensor(masses).double(), rtol=1e-6, atol=1e-9)
        depth = next(n for n in range(1, 21) if sum(masses[:n]) >= 0.99)
        q = law(kind)()
        assert len(q) == depth
        kept = [value + 1e-3 for value in masses[:depth]]
        expected = torch.tensor([value / sum(kept) for value in kept]).double()
        torch.testing.assert_close(q, expected, rtol=1e-6, atol=1e-9)
    assert len(law("folded-normal")()) == 10  # as published: mean 5 and s = 1 start at ten


@pytest.mark.parametrize("kind", ["folded-normal", "poisson", "mixture"])
@pytest.mark.parametrize("depth", [0.01, 2.0, 5.0, 40.0])
def test_probabilities_sum_to_one_and_learn(kind, depth):
    """Far beyond the layers there are, and close to none, too."""
    distribution = law(kind, depth=depth)
    q = distribution()
    assert float(q.detach().sum()) == pytest.approx(1, abs=1e-12)
    assert bool((q > 0).all())
    assert len(q) <= 20
    (q * q.log()).sum().backward()
    for name, parameter in distribution.named_parameters():
        assert bool(parameter.grad.isfinite().all()), name
    q = distribution()
    (q * torch.arange(len(q))).sum().backward()
    if depth in (2.0, 5.0):
        for name, parameter in distribution.named_parameters():
            assert float(parameter.grad.abs().max()) > 1e-6, name


def test_depth_is_the_quantile_of_the_law():
    mass = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01])
    for quantile, depth in ((0.4, 1), (0.6, 2), (0.9, 3), (0.98, 4), (0.999, 5)):
        assert least_depth(mass, quantile) == depth
    assert least_depth(mass[:2], 0.99) == 2  # as deep as there are layers


# The layers.


def dense_adjacency(given: GraphInputs, normalised: bool) -> torch.Tensor:
    A = torch.zeros(given.x.size(0), given.x.size(0)).double()
    A[given.edge_index[1], given.edge_index[0]] = 1
    if not normalised:
        return A
    A = A + torch.eye(len(A)).double()
    scale = A.sum(1).rsqrt()
    return scale[:, None] * A * scale


def states_by_hand(model: AMP, given: GraphInputs, depth: int) -> list[torch.Tensor]:
    """Return every layer's states, node by node and message by message."""
    h = given.x @ model.first.weight.t() + model.first.bias
    if model.use_signature:
        h = h + given.signature @ model.signature.weight.t()
    states = [h]
    for layer in list(model.layers)[: depth - 1]:
        A = dense_adjacency(given, layer.convolution == "gcn")
        rows = []
        for i in range(len(h)):
            total = torch.zeros(h.size(1)).double()
            for j in A[i].nonzero().view(-1).tolist():
                weight = layer.linear.weight
                message = weight @ h[j] if layer.convolution == "gcn" else h[j]
                if layer.filtered_by != "none":
                    first, _, second, _ = layer.filter
                    seen = h[j] if layer.filtered_by == "embeddings" else given.x[j]
                    inner = torch.tanh(first.weight @ seen + first.bias)
                    message = message * torch.sigmoid(second.weight @ inner + second.bias)
                total = total + A[i, j] * message
            if layer.convolution == "gin":
                total = layer.linear.weight @ ((1 + layer.epsilon) * h[i] + total)
            rows.append(torch.tanh(total + layer.linear.bias))
        h = torch.stack(rows)
        states.append(h)
    return states


@pytest.mark.parametrize("filter", ["embeddings", "inputs", "none"])
@pytest.mark.parametrize("convolution", ["gcn", "gin"])
def test_layers_by_hand(convolution, filter):
    for given in (inputs(), two_graphs()):
        model = build(convolution=convolution, filter=filter, use_signature=filter == "none")
        encoding = model(given)
        depths = encoding.context
        states = states_by_hand(model, given, len(depths.q))
        assert 1 < len(states) < 7
        for layer, (ours, wanted) in enumerate(zip(depths.states, states, strict=True)):
            assert_same({f"h{layer}": ours}, {f"h{layer}": wanted}, 1e-12)
        mixed = sum(share * h for share, h in zip(depths.q, states, strict=True))
        assert_same({"h": encoding.states}, {"h": mixed}, 1e-12)


def test_only_layers_in_use_are_computed_and_learn():
    model, given = build(), inputs()
    depth = len(model.depths())
    readout = read(AMPNodeReadout)
    outputs = readout(model(given), given)
    outputs.loss(lambda logits: logits.square().mean()).backward()
    for number, (layer, mlp) in enumerate(zip(model.layers, readout.mlps[1:], strict=True), 2):
        for parameter in (*layer.parameters(), *mlp.parameters()):
            assert (parameter.grad is not None) == (number <= depth)
    assert float(model.depths.mean.grad.abs()) > 1e-6
    assert float(model.depths.spread.grad.abs()) > 1e-6
    model.depths.mean.data.fill_(0.1)
    model.depths.spread.data.fill_(-9.0)
    assert len(model(given).context.states) == 2


# The readouts and the bound.


def mlp_by_hand(mlp, value):
    linears = [layer for layer in mlp if isinstance(layer, torch.nn.Linear)]
    for number, linear in enumerate(linears):
        value = value @ linear.weight.t() + linear.bias
        if number + 1 < len(linears):
            value = torch.where(value > 0, value, 0.01 * value)
    return value


def cross_entropy(logits, labels):
    return -sum(
        float(torch.log_softmax(row, 0)[label])
        for row, label in zip(logits.detach(), labels, strict=True)
    ) / len(labels)


def squares(*modules) -> float:
    return sum(float((p.detach() ** 2).sum()) for m in modules for p in m.parameters())


@pytest.mark.parametrize("weight_prior", [None, 10.0])
@pytest.mark.parametrize("depth_prior", [None, 3.0])
def test_the_loss_is_the_evidence_bound(weight_prior, depth_prior):
    """Every term with plain numbers, layer by layer."""
    model = build(weight_prior=weight_prior, depth_prior=depth_prior, observations=40)
    readout, given, labels = read(AMPNodeReadout), inputs(), torch.arange(9) % 3
    encoding = model(given)
    outputs = readout(encoding, given)
    q = [float(share) for share in encoding.context.q.detach()]
    wanted, below, items = 0.0, squares(model.first), 40
    for number, share in enumerate(q):
        if number:
            below += squares(model.layers[number - 1])
        logits = mlp_by_hand(readout.mlps[number], encoding.context.states[number])
        term = cross_entropy(logits, labels)
        if weight_prior is not None:
            own = squares(readout.mlps[number])
            term += (below + own) / (2 * weight_prior**2) / items
        if depth_prior is not None:
            term -= poisson_log(number, depth_prior) / items
        wanted += share * (term + math.log(share) / items)
    loss = outputs.loss(lambda logits: F.cross_entropy(logits, labels))
    assert float(loss.detach()) == pytest.approx(wanted, abs=1e-10)


def test_items_are_counted_where_nobody_says_how_many():
    for kind, given, items in (
        (AMPNodeReadout, inputs(), 9),
        (AMPGraphReadout, two_graphs(), 2),
        (AMPLinkReadout, inputs(), 4),
    ):
        encoding = build()(given)
        q = encoding.context.q
        pairs = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
        outputs = read(kind)(encoding, given, pairs)
        torch.testing.assert_close(outputs.penalty, (q * q.log()).sum() / items)


def test_predictions_are_mixtures_of_distributions():
    q = torch.tensor([0.2, 0.5, 0.3]).double()
    classes = list(torch.randn(3, 4, 5).double())
    mixed = mixture_of(q, classes)
    probability = sum(s * y.softmax(-1) for s, y in zip(q, classes, strict=True))
    torch.testing.assert_close(mixed.softmax(-1), probability)
    pairs = list(torch.randn(3, 4).double())
    probability = sum(s * y.sigmoid() for s, y in zip(q, pairs, strict=True))
    torch.testing.assert_close(mixture_of(q, pairs).sigmoid(), probability)
    raw = sum(s * y for s, y in zip(q, classes, strict=True))
    torch.testing.assert_close(mixture_of(q, classes, "outputs"), raw)
    certain = mixture_of(q, [torch.full((1,), 500.0).double()] * 3)
    assert bool(certain.isfinite().all())


@pytest.mark.parametrize("mixture", ["distributions", "outputs"])
def test_readouts_by_hand(mixture):
    given = two_graphs()
    encoding = build()(given)
    states, q = encoding.context.states, encoding.context.q
    pairs = torch.tensor([[0, 3, 9], [4, 0, 2]])

    def pooled(h):
        parts = (h[:9], h[9:])
        return torch.stack([torch.cat([p.sum(0), p.amax(0), p.mean(0)]) for p in parts])

    def paired(h):
        u, v = h[pairs[0]], h[pairs[1]]
        return torch.cat([u * v, (u - v).abs()], dim=-1)

    for kind, features, options in (
        (AMPNodeReadout, lambda h: h, {}),
        (AMPGraphReadout, pooled, {}),
        (AMPGraphReadout, pooled, {"num_layers": 1, "hidden_channels": 4}),
        (AMPLinkReadout, paired, {}),
    ):
        readout = read(kind, mixture=mixture, **options)
        outputs = readout(encoding, given, pairs)
        logits = [
            mlp_by_hand(mlp, features(h)) for mlp, h in zip(readout.mlps, states, strict=False)
        ]
        if kind is AMPLinkReadout:
            logits = [value[:, 0] for value in logits]
            flipped = readout(encoding, given, pairs.flip(0))
            assert torch.equal(flipped.prediction, outputs.prediction)
        for (share, ours), wanted, weight in zip(outputs.graded, logits, q, strict=True):
            assert torch.equal(share, weight)
            assert_same({"y": ours}, {"y": wanted}, 1e-12)
        wanted = mixture_of(q, logits, mixture)
        assert_same({"y": outputs.prediction}, {"y": wanted}, 1e-12)
        assert outputs.prediction.requires_grad


def test_a_readout_that_is_too_shallow_says_so():
    given = inputs()
    with pytest.raises(ConfigError, match=r"'readout.max_depth'.*'options.max_depth'"):
        read(AMPNodeReadout, max_depth=2)(build()(given), given)


# As an encoder among others.


def test_dropout_inside_the_readout():
    given, readout = inputs(), read(AMPNodeReadout, dropout=0.5).train()
    encoding = build()(given)
    first, second = (readout(encoding, given).prediction for _ in range(2))
    assert not torch.equal(first, second)


def test_the_shared_readout_gets_the_mixed_states():
    given = inputs()
    options = {"hidden_channels": 6, "max_depth": 7}
    config = RunConfig(method="amp", options=options, readout={"kind": "shared"})
    network = Network(config, InputShape(5, 3, 3)).double().eval()
    states = network.encode(given).states
    assert torch.equal(network(given), network.readout(states))


# Training.

OPTIONS = {"hidden_channels": 8, "max_depth": 16, "filter": "none"}
READOUT = {"max_depth": 16}
# Validation is looked at once, so that the network at the end is that of the last epoch.
TRAINING = TrainingConfig(epochs=16, learning_rate=0.1, weight_decay=0.0, evaluate_every=16)


def depth_of(network: Network) -> int:
    return len(network.encoder.depths())


def train(kind, out=None, stop: int | None = None, training=TRAINING, **more):
    """Train to the end, or until an epoch, where the state is saved."""
    seen: list[int] = []
    watch = Watch(
        on_epoch=lambda report: seen.append(report.epoch),
        should_stop=lambda: seen[-1] == stop,
    )
    config = RunConfig(
        method="amp", task=kind, options={**OPTIONS, **more}, readout=READOUT, training=training
    )
    trainer = Trainer(config, tiny_task(kind), out=out, watch=watch)
    return trainer.network, trainer.fit()


@pytest.mark.parametrize("depth_law", ["folded-normal", "poisson"])
def test_the_depth_moves_and_a_resumed_run_has_the_same(depth_law, tmp_path):
    before = len(AMP(3, 3, **OPTIONS, depth_law=depth_law).depths())
    whole, _ = train("node", depth_law=depth_law)
    assert depth_of(whole) != before
    with pytest.raises(StoppedError):
        train("node", tmp_path, stop=7, depth_law=depth_law)
    again, result = train("node", tmp_path, depth_law=depth_law)
    assert result.best_epoch == 16
    assert depth_of(again) == depth_of(whole)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["link", "graph"])
def test_other_tasks_train(kind):
    network, result = train(kind, training=TrainingConfig(epochs=2))
    assert math.isfinite(result.validation)
    assert float(network.encoder.depths.mean.grad.abs().max()) > 0


READOUT_RANGES = (
    ({"mixture": "output"}, "'mixture'.*Did you mean 'outputs'"),
    ({"hidden_channels": 0}, "'hidden_channels'"),
    ({"max_depth": 0}, "'max_depth'"),
    ({"num_layers": 0}, "'num_layers'"),
    ({"dropout": 1.0}, "'dropout'"),
)


class TestAMP(MethodTestCase):
    method = "amp"
    options = {"hidden_channels": 6}
    # Few epochs do as a rule; if not, as many as for every method.
    learning = ((0.01, 25), *MethodTestCase.learning)
    variants = (
        {},
        {"convolution": "gin", "filter": "inputs", "depth": 8.0},
        {"filter": "none", "use_signature": True, "depth_law": "poisson"},
    )
    undrawn = ("depths",)
    untrained = {
        "encoder.layers.*": "layers beyond the depth in use are not computed, see "
        "test_only_layers_in_use_are_computed_and_learn",
        "readout.mlps.*": "nor are their readouts",
    }
    refused = (
        ({"convolution": "gim"}, "'convolution'.*Did you mean 'gin'"),
        ({"filter": "input"}, "'filter'.*Did you mean 'inputs'"),
        ({"depth_law": "poison"}, "'depth_law'.*Did you mean 'poisson'"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"max_depth": 0}, "'max_depth'"),
        ({"depth": 0.0}, "'depth'"),
        ({"spread": math.inf}, "'spread'"),
        ({"quantile": 1.0}, "'quantile'"),
        ({"weight_prior": 0.0}, "'weight_prior'"),
        ({"depth_prior": -1.0}, "'depth_prior'"),
        ({"observations": 0}, "'observations'"),
        ({"feature_dropout": 1.0}, "'feature_dropout'"),
    )
    refused_readout = tuple(
        (task, options, message)
        for task in ("node", "link", "graph")
        for options, message in READOUT_RANGES
    )
