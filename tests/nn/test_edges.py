"""Weights and attributes of edges through GeoF and GeoFConv."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from geof import GeoF, GeoFConv
from geof.errors import ConfigError, DataError, DtypeError, ShapeError
from geof.kernels import BACKENDS, Neighbourhoods
from geof.nn import EdgeEncoder, evolve_in_pieces
from geof.testing import assert_same

every_backend = pytest.mark.parametrize("backend", sorted(BACKENDS))
FAST = sorted(BACKENDS.keys() - {"reference"})
SIZES = (3, 4)
DRAW = torch.Generator().manual_seed(0)
N = 12
PAIRS = torch.combinations(torch.arange(N))[torch.randperm(N * (N - 1) // 2, generator=DRAW)[:30]].T
EDGES = torch.cat([PAIRS, PAIRS.flip(0)], 1)[:, torch.randperm(60, generator=DRAW)]
X, U = (torch.randn(N, k, generator=DRAW, dtype=torch.float64) for k in (5, 3))
WEIGHT = torch.rand(60, generator=DRAW, dtype=torch.float64)
CODES = torch.stack([torch.randint(0, size, (60,), generator=DRAW) for size in SIZES], 1)
NUMBERS = torch.randn(60, 2, generator=DRAW, dtype=torch.float64)
BOTH = torch.cat([CODES, NUMBERS], 1)
CARRIED = {
    "weight": ({}, {"edge_weight": WEIGHT}),
    "categories": ({"edge_categories": SIZES}, {"edge_attr": CODES}),
    "numbers": ({"edge_channels": 2}, {"edge_attr": NUMBERS}),
    "all": (
        {"edge_categories": SIZES, "edge_channels": 2},
        {"edge_weight": WEIGHT, "edge_attr": BOTH},
    ),
}
"""What edges may carry: options of the model and its inputs."""


def build(backend: str = "auto", *, seed: int = 0, moved: bool = True, **options) -> GeoF:
    torch.manual_seed(seed)
    model = GeoF(5, 8, signature_channels=3, blocks=2, backend=backend, temperature=5.0, **options)
    for parameter in model.parameters() if moved else ():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model.double()


def with_gradients(model: GeoF, **edge_inputs: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    x = X.clone().requires_grad_()
    given = {k: v.clone().requires_grad_(k == "edge_weight") for k, v in edge_inputs.items()}
    output = model(x, EDGES, U, **given)
    (output * output.detach().cos()).sum().backward()
    found = {"output": output.detach(), "x": x.grad}
    if "edge_weight" in given:
        found["edge_weight"] = given["edge_weight"].grad
    return found | {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("feedback", ["full", "mean", "diagonal", "none"])
@pytest.mark.parametrize("kind", ["weight", "categories", "all"])
def test_backends_agree(backend, feedback, kind):
    options, given = CARRIED[kind]
    ours, reference = (
        with_gradients(build(name, feedback=feedback, **options), **given)
        for name in (backend, "reference")
    )
    assert_same(ours, reference, tolerance=1e-10)


@every_backend
def test_a_weight_of_zero_takes_the_edge_away(backend):
    model = build(backend)
    weight = torch.where(torch.arange(60) < 20, 0.0, 1.0).double()
    with torch.no_grad():
        without = model(X, EDGES[:, 20:], U)
        torch.testing.assert_close(model(X, EDGES, U, edge_weight=weight), without)
    _, trace = model.evolve(X, EDGES, U, edge_weight=weight, trajectory=True).trajectory
    assert (trace.weight == 0).sum() == 20


@every_backend
def test_weights_of_one_and_fresh_attributes_change_no_bit(backend):
    plain = build(backend, moved=False)
    carrying = build(backend, moved=False, edge_categories=SIZES, edge_channels=2)
    weight = torch.ones(60, dtype=torch.float64)
    bare = with_gradients(plain)
    weighted = with_gradients(plain, edge_weight=weight)
    attributed = with_gradients(carrying, edge_weight=weight, edge_attr=BOTH)
    for name, value in bare.items():
        assert torch.equal(weighted[name], value), name
        torch.testing.assert_close(attributed[name], value, rtol=1e-13, atol=1e-13)
    assert torch.equal(attributed["output"], bare["output"])
    # Zero is where the attributes start, not where they stay.
    assert all(grad.abs().sum() > 0 for name, grad in attributed.items() if "edge_" in name)


def test_the_other_parameters_are_drawn_as_without_edges():
    plain, carrying = build(moved=False), build(moved=False, edge_categories=SIZES)
    own = dict(carrying.named_parameters())
    for name, value in plain.named_parameters():
        assert torch.equal(own.pop(name), value)
    assert all(name.startswith("edge_encoder.") for name in own)
    assert plain.edge_encoder is None


@every_backend
def test_a_node_alone_has_no_residual(backend):
    """Whatever its edges carry, a node with no other neighbour hears itself unchanged."""
    model = build(backend, edge_categories=SIZES)
    loops = torch.arange(N).expand(2, N)
    state = model.evolve(X, loops, U, edge_attr=CODES[:N], trajectory=True)
    for trace in state.trajectory:
        assert trace.mean_residual.abs().max() < 1e-14
        eye = torch.eye(4, dtype=torch.float64).expand_as(trace.moment)
        torch.testing.assert_close(trace.moment, eye, rtol=1e-14, atol=1e-14)


def test_the_order_of_edges_does_not_matter():
    model = build(edge_categories=SIZES, edge_channels=2)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        one = model(X, EDGES, U, edge_weight=WEIGHT, edge_attr=BOTH)
        other = model(X, EDGES[:, order], U, edge_weight=WEIGHT[order], edge_attr=BOTH[order])
    assert torch.equal(one, other)


@pytest.mark.parametrize("given", [CODES, BOTH], ids=["categories", "both"])
def test_prepared_neighbourhoods_remember_the_rows(given):
    model = build(edge_categories=SIZES, edge_channels=given.size(1) - 2)
    edges = Neighbourhoods.from_edge_index(EDGES, N, origin=True)
    with torch.inference_mode():
        first = model(X, edges, U, edge_attr=given)
    trained = model(X, edges, U, edge_attr=given)
    trained.sum().backward()
    assert torch.equal(first, trained)
    assert torch.equal(trained, model(X, EDGES, U, edge_attr=given))
    rows = model.edge_encoder.rows(edges, given)
    assert rows is model.edge_encoder.rows(edges, given)
    assert rows is not model.edge_encoder.rows(edges, given.clone())
    # A state's own edges carry their terms on.
    state = model.evolve(X, edges, U, edge_attr=given)
    assert torch.equal(model(X, state.edges, U), trained)


def test_many_combinations_have_rows_of_their_own_only_where_they_occur():
    encoder = EdgeEncoder(2, 4, categories=(50, 60))
    edges = Neighbourhoods.from_edge_index(EDGES, N, origin=True)
    codes = CODES * 11
    rows = encoder.rows(edges, codes)
    assert len(rows.codes) == len(codes.unique(dim=0)) <= 12
    proper = rows.row >= 0
    assert proper.sum() == 60
    assert torch.equal(rows.codes[rows.row[proper].long()], codes[edges.origin[proper]])


@every_backend
def test_numbers_have_gradients_too(backend):
    """Also where several edges have the same ones."""
    numbers = NUMBERS.round(decimals=0)
    assert len(numbers.unique(dim=0)) < 60

    def gradient(name: str) -> Tensor:
        given = numbers.clone().requires_grad_()
        output = build(name, edge_channels=2)(X, EDGES, U, edge_attr=given)
        return torch.autograd.grad((output * output.detach().cos()).sum(), given)[0]

    assert (gradient("reference").abs().sum(1) > 0).all()
    torch.testing.assert_close(gradient(backend), gradient("reference"), rtol=1e-9, atol=1e-9)


def test_recomputed_steps_have_the_same_gradients():
    options = {"edge_categories": SIZES, "edge_channels": 2}
    given = {"edge_weight": WEIGHT, "edge_attr": BOTH}
    assert_same(
        with_gradients(build(recompute=True, **options), **given),
        with_gradients(build(**options), **given),
        tolerance=1e-13,
    )


@pytest.mark.parametrize("piece_size", [1, 17, 1000])
@pytest.mark.parametrize("static", [False, True])
def test_pieces_carry_their_edges_terms(piece_size, static):
    model = build(edge_categories=SIZES, edge_channels=2, outputs="all").eval()
    edges = Neighbourhoods.from_edge_index(EDGES, N, origin=True, static_shapes=static)
    given = {"edge_weight": WEIGHT, "edge_attr": BOTH}
    with torch.no_grad():
        whole = model(X, EDGES, U, **given)
    for form in (EDGES, edges):
        pieces = evolve_in_pieces(model, X, form, U, piece_size=piece_size, **given)
        torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("kind", CARRIED)
def test_compiled_in_one_graph(backend, kind):
    options, given = CARRIED[kind]
    model = build(backend, **options)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    ours = compiled(X, EDGES, U, None, *(given.get(k) for k in ("edge_weight", "edge_attr")))
    plain = model(X, EDGES, U, **given)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    one, two = (
        torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
        for out in (ours, plain)
    )
    for a, b in zip(one, two, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_layer_takes_them_too():
    torch.manual_seed(0)
    conv = GeoFConv(8, blocks=2, edge_categories=SIZES).double()
    for table in conv.edge_encoder.tables:
        torch.nn.init.normal_(table)
    x = torch.randn(N, 8, dtype=torch.float64)
    plain, _ = GeoFConv(8, blocks=2).double()(x, EDGES)
    state, coordinates = conv(x, EDGES, edge_weight=WEIGHT, edge_attr=CODES)
    assert state.shape == plain.shape
    again, _ = conv(state, EDGES, coordinates, edge_weight=WEIGHT, edge_attr=CODES)
    other, _ = conv(state, EDGES, coordinates, edge_weight=WEIGHT, edge_attr=CODES.flip(0))
    assert not torch.allclose(again, other)
    conv.reset_parameters()
    assert all((table == 0).all() for table in conv.edge_encoder.tables)


def changed(tensor: Tensor, place, value) -> Tensor:
    copy = tensor.clone()
    copy[place] = value
    return copy


@pytest.mark.parametrize(
    ("options", "given", "error", "message"),
    [
        ({}, {"edge_weight": WEIGHT[:-1]}, ShapeError, r"\(60,\).*got \(59,\)"),
        ({}, {"edge_weight": WEIGHT[:, None]}, ShapeError, r"got \(60, 1\).*view\(-1\)"),
        ({}, {"edge_weight": WEIGHT.float()}, DtypeError, r"float64 \(got torch.float32\)"),
        ({}, {"edge_weight": [1.0] * 60}, DtypeError, r"torch.Tensor \(got list\)"),
        ({}, {"edge_weight": changed(WEIGHT, 7, -0.5)}, DataError, r"-0.5 at edge 7.*Clean"),
        ({}, {"edge_weight": changed(WEIGHT, 7, torch.nan)}, DataError, r"nan at edge 7"),
        ({}, {"edge_weight": changed(WEIGHT, 7, torch.inf)}, DataError, r"inf at edge 7"),
        ({}, {"edge_attr": CODES}, ConfigError, r"built with edge_channels.*got some"),
        ({"edge_categories": SIZES}, {}, ConfigError, r"Expected 'edge_attr'.*got none"),
        (
            {"edge_categories": SIZES},
            {"edge_attr": CODES[:, :1]},
            ShapeError,
            r"\(60, 2\).*2 categories and 0 numbers \(got \(60, 1\)\)",
        ),
        (
            {"edge_categories": SIZES},
            {"edge_attr": changed(CODES, (9, 1), 4)},
            DataError,
            r"column 1.*0 to 3 \(got 4 at edge 9\)",
        ),
        (
            {"edge_categories": SIZES},
            {"edge_attr": changed(CODES.double(), (9, 0), 0.5)},
            DataError,
            r"column 0.*got 0.5 at edge 9",
        ),
        ({"edge_categories": SIZES}, {"edge_attr": CODES > 1}, DtypeError, r"got torch.bool"),
        (
            {"edge_channels": 2},
            {"edge_attr": changed(NUMBERS, (4, 1), torch.nan)},
            DataError,
            r"1 of 60 rows.*row 4",
        ),
    ],
)
def test_bad_input_is_refused(options, given, error, message):
    with pytest.raises(error, match=message):
        build(**options)(X, EDGES, U, **given)


def test_repeated_edges_are_refused_where_they_carry_something():
    twice = torch.cat([EDGES, EDGES[:, 5:6]], 1)
    weight = torch.cat([WEIGHT, WEIGHT[:1]])
    source, target = EDGES[:, 5].tolist()
    with pytest.raises(DataError, match=rf"{source} -> {target}.*column 60.*coalesce"):
        build()(X, twice, U, edge_weight=weight)
    build()(X, twice, U)  # as ever


def test_neighbourhoods_without_an_order_are_refused():
    edges = Neighbourhoods.from_edge_index(EDGES, N)
    with pytest.raises(ConfigError, match="origin=True"):
        build()(X, edges, U, edge_weight=WEIGHT)


def test_sizes_are_checked():
    for options in ({"edge_channels": -1}, {"edge_categories": (3, 0)}):
        with pytest.raises(ConfigError):
            build(**options)


def test_no_edges_at_all():
    model = build(edge_categories=SIZES, edge_channels=2)
    none = torch.empty(2, 0, dtype=torch.long)
    with torch.no_grad():
        got = model(X, none, U, edge_weight=WEIGHT[:0], edge_attr=BOTH[:0])
        assert torch.equal(got, build()(X, none, U)) or got.isfinite().all()
