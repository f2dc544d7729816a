"""What is added around the recurrence: nothing by default, and what it says when asked for."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

from geof import GeoF
from geof.errors import ConfigError, DataError
from geof.nn.geof import evolve_in_pieces, lift_gain
from geof.nn.refinement import NodeNorm, drop_features, scale_rows
from geof.testing import assert_permutation_equivariant, assert_same, values_and_gradients
from tests.graphs import random_sample

EVERYTHING = {
    "scale_features": True,
    "signature_features": True,
    "normalise": "batch",
    "feed_forward": 2,
    "dropout": 0.4,
    "feature_dropout": 0.3,
    "outputs": "all",
}


def build(**options) -> GeoF:
    torch.manual_seed(0)
    sizes = {"signature_channels": 3, "blocks": 3, "steps": 3, "temperature": 4.0}
    return GeoF(5, 12, **{**sizes, **options}).double()


def refined(**options) -> GeoF:
    """Return a network with all refinements, none of which is near the identity."""
    model = build(**{**EVERYTHING, **options})
    for module in model.refinement.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.LayerNorm):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_()
    return model


@pytest.mark.parametrize("training", [True, False])
def test_by_default_there_is_nothing(training):
    plain = build().train(training)
    said = build(
        scale_features=False,
        signature_features=False,
        normalise="none",
        feed_forward=0,
        dropout=0.0,
        feature_dropout=0.0,
        outputs="last",
        lift_gain=1.0,
    ).train(training)
    assert not list(plain.refinement.state_dict())
    assert plain.state_dict().keys() == said.state_dict().keys()
    sample = random_sample(0)
    before = torch.get_rng_state()
    assert torch.equal(plain(*sample), said(*sample))
    assert torch.equal(torch.get_rng_state(), before)  # not a single draw
    # The recurrence alone: lift, steps, environment.
    x, _, u = sample
    state = plain.initial_state(x, u)
    assert torch.equal(state.features, F.linear(x, plain.feature_lift.weight))
    for step in range(3):
        state, _ = plain.step(state, plain.evolve(*sample).edges, u, step)
    assert torch.equal(plain.environment(*state), plain(*sample))


def test_the_first_state_is_as_written():
    x, _, u = random_sample(0)
    model = refined().eval()
    lifted = F.linear(F.normalize(x, dim=-1) * 5**0.5, model.feature_lift.weight)
    lifted = lifted + F.linear(u, model.signature_lift.weight)
    wanted = model.refinement.norms[0](lifted)
    torch.testing.assert_close(model.initial_state(x, u).features, wanted)


@pytest.mark.parametrize("normalise", ["none", "layer", "batch"])
def test_the_state_after_a_step_is_as_written(normalise, random_state):
    model = refined(normalise=normalise).eval()
    features = random_state(0).normal(9, 12)
    first, _, _, second = model.refinement.feed_forward[1]
    wanted = features + second(F.relu(first(features)))
    if normalise != "none":
        norm = model.refinement.norms[2]
        wanted = norm(wanted)
    torch.testing.assert_close(model.refinement.after(features, 1), wanted)


def test_normalised_states_have_the_scale_they_say(random_state):
    features = 1e3 * random_state(0).normal(50, 12) + 7
    for normalise, dim in (("layer", 1), ("batch", 0)):
        refinement = build(normalise=normalise).refinement.train()
        for state in (refinement.start(features), refinement.after(features, 2)):
            torch.testing.assert_close(state.mean(dim), torch.zeros(state.mean(dim).shape).double())
            torch.testing.assert_close(state.square().sum(1).mean().item(), 12.0, rtol=1e-3, atol=0)


def test_dropout_acts_at_the_start_and_after_every_step_and_only_in_training():
    sample = random_sample(0)
    model = build(dropout=0.5).train()
    state = model.evolve(*sample, trajectory=True)
    for features in (state.initial_features, *(trace.features for trace in state.trajectory)):
        assert 0.2 < (features == 0).double().mean() < 0.8
    assert not torch.equal(model(*sample), model(*sample))
    model.eval()
    assert torch.equal(model(*sample), build()(*sample))


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "refined"])
def test_all_outputs_are_the_environments_of_the_steps(options):
    sample = random_sample(0)
    model = (refined() if options else build(outputs="all")).eval()
    state = model.evolve(*sample, trajectory=True)
    steps = [(state.initial_features, state.initial_coordinates)]
    steps += [(trace.features, trace.coordinates) for trace in state.trajectory]
    wanted = torch.cat([model.environment(*step) for step in steps], dim=-1)
    assert model.out_channels == wanted.size(1) == 48
    torch.testing.assert_close(model(*sample), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.output, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(state.environment, state.output[:, -12:])


def test_the_last_output_of_the_same_network_is_the_end_of_all():
    sample = random_sample(0)
    every, last = refined().eval(), refined(outputs="last").eval()
    last.load_state_dict(every.state_dict())
    assert last.out_channels == 12
    assert torch.equal(last(*sample), every(*sample)[:, -12:])


@pytest.mark.parametrize(
    "options",
    [{}, {"normalise": "layer"}, {"outputs": "last"}, {"backend": "torch"}, {"steps": 1}],
    ids=str,
)
def test_pieces_equal_the_whole_with_refinements(options):
    sample = random_sample(1, nodes=40, edges=160)
    model = refined(**options).eval()
    for piece_size in (7, 60, 1000):
        pieces = evolve_in_pieces(model, *sample, piece_size=piece_size)
        torch.testing.assert_close(pieces, model(*sample), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("training", [True, False])
def test_recomputing_gives_the_same_gradients_with_dropout(training):
    sample = random_sample(0, nodes=12, edges=40)
    results = []
    for recompute in (False, True):
        model = refined(recompute=recompute).train(training)
        torch.manual_seed(7)
        results.append(values_and_gradients(model, *sample))
        results[-1] |= {n: b.clone() for n, b in model.named_buffers()}
    assert_same(results[1], results[0], tolerance=0)


def test_symmetric_under_renumbering():
    model = refined().eval()
    for seed in range(3):
        assert_permutation_equivariant(model, *random_sample(seed), seed=seed)


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its CSR support is in beta
        return {"dense": x, "csr": x.to_sparse_csr(), "coo": x.to_sparse()}


def sparse_matrix(rows: int = 300, columns: int = 40) -> torch.Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).double()
    x[x < 0.5] = 0
    x[3] = 0
    return x


@pytest.mark.parametrize("layout", ["dense", "csr", "coo"])
def test_features_are_dropped_and_the_rest_made_up_for_it(layout):
    x = sparse_matrix()
    given = layouts(x)[layout]
    torch.manual_seed(0)
    dropped = drop_features(given, 0.25, training=True)
    assert dropped.layout == given.layout
    dense = dropped.to_dense()
    stored = x != 0
    kept = dense != 0
    assert not bool((kept & ~stored).any())
    torch.testing.assert_close(dense[kept], x[kept] / 0.75)
    assert float(kept.sum() / stored.sum()) == pytest.approx(0.75, abs=0.03)
    many = torch.stack(
        [drop_features(given, 0.25, training=True).to_dense() for _ in range(400)]
    ).mean(0)
    assert float((many - x).abs().max()) < 0.2 * float(x.max())
    assert float((many - x)[stored].mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("layout", ["dense", "csr", "coo"])
def test_nothing_is_dropped_unless_training_asks_for_it(layout):
    given = layouts(sparse_matrix())[layout]
    assert drop_features(given, 0.5, training=False) is given
    assert drop_features(given, 0.0, training=True) is given


@pytest.mark.parametrize("layout", ["dense", "csr", "coo"])
def test_scaled_rows_have_the_length_of_a_row_of_ones(layout):
    x = sparse_matrix()
    x[5] *= 1e-3  # as row-normalised words are
    x[6] *= 1e6
    scaled = scale_rows(layouts(x)[layout]).to_dense()
    lengths = scaled.norm(dim=1)
    there = (x != 0).any(1)
    torch.testing.assert_close(lengths[there], torch.full_like(lengths[there], 40**0.5))
    assert not bool(there.all())
    assert torch.equal(scaled[~there], torch.zeros_like(x[~there]))
    torch.testing.assert_close(scaled, scale_rows(x), rtol=1e-12, atol=1e-12)
    assert float(F.cosine_similarity(scaled, x)[there].min()) > 1 - 1e-12


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_sparse_features_through_the_whole_network(layout):
    x, edges, u = random_sample(0)
    x = torch.where(x > 0.2, x, 0.0)
    model = refined().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = model(layouts(x)[layout], edges, u)
    torch.testing.assert_close(got, model(x, edges, u), rtol=1e-12, atol=1e-12)


def test_a_single_node_is_normalised_by_the_past():
    norm = NodeNorm(4).double()
    norm(5 + 3 * torch.randn(100, 4).double())
    past = {name: value.clone() for name, value in norm.named_buffers()}
    one = torch.randn(1, 4).double()
    alone = norm.train()(one)
    for name, value in past.items():
        assert torch.equal(getattr(norm, name), value), name
    assert torch.equal(alone, norm.eval()(one))
    assert bool((alone != 0).all())
    # Several nodes are normalised together, as torch does.
    many = torch.randn(7, 4).double()
    plain = torch.nn.BatchNorm1d(4).double()
    plain.load_state_dict(norm.state_dict())
    assert torch.equal(norm.train()(many), plain.train()(many))
    assert torch.equal(norm.running_mean, plain.running_mean)
    # A graph of one node passes through a network in training.
    x, _, u = random_sample(0, nodes=1, edges=0)
    model = refined().train()
    assert model(x, torch.empty(2, 0, dtype=torch.long), u).isfinite().all()


def test_the_gain_multiplies_the_lift_whenever_it_is_drawn():
    plain, loud = build(), build(lift_gain=10.0)
    torch.testing.assert_close(loud.feature_lift.weight, 10 * plain.feature_lift.weight)
    for model in (plain, loud):
        torch.manual_seed(3)
        model.reset_parameters()
    torch.testing.assert_close(loud.feature_lift.weight, 10 * plain.feature_lift.weight)


def test_reset_draws_everything_anew():
    model = refined()
    before = {name: p.clone() for name, p in model.named_parameters()}
    torch.manual_seed(5)
    model.reset_parameters()
    assert float(model.refinement.norms[0].running_mean.abs().max()) == 0
    assert torch.equal(model.refinement.norms[1].weight, torch.ones(12).double())
    for name in ("refinement.feed_forward.2.3.weight", "signature_lift.weight"):
        assert not torch.equal(model.get_parameter(name), before[name]), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalise": "layr"}, "'normalise'.*Did you mean 'layer'"),
        ({"outputs": "every"}, "'outputs'"),
        ({"feed_forward": -1}, "'feed_forward'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": 1.0}, "'feature_dropout'"),
        ({"lift_gain": 0.0}, "'lift_gain'"),
    ],
)
def test_ranges(options, message):
    with pytest.raises(ConfigError, match=message):
        build(**options)


class TestLiftGain:
    @pytest.mark.parametrize("layout", ["dense", "sparse"])
    @pytest.mark.parametrize(("features", "scale"), [(3, 1.0), (700, 0.01)])
    def test_first_states_have_the_length_asked_for(self, layout, features, scale):
        torch.manual_seed(0)
        x = scale * torch.rand(200, features)
        given = x if layout == "dense" else x.to_sparse_csr()
        gain = lift_gain(given, 512, squared_length=0.3)
        model = GeoF(features, 512, blocks=64, lift_gain=gain, atlas_initialisation=False)
        with torch.no_grad():
            states = model.initial_state(given, torch.zeros(200, 0)).features
        assert float(states.square().sum(1).mean()) == pytest.approx(0.3, rel=0.15)

    @pytest.mark.parametrize("x", [torch.zeros(3, 2), torch.full((3, 2), torch.inf)])
    def test_features_that_have_no_length_are_refused(self, x):
        with pytest.raises(DataError, match="mean squared length"):
            lift_gain(x, 8)

    def test_a_length_that_is_none_is_refused(self):
        with pytest.raises(ConfigError, match="'squared_length'"):
            lift_gain(torch.eye(3), 8, squared_length=0.0)
