"""WaveGC computes what its equations say, without ever forming a wavelet matrix."""

from __future__ import annotations

import math

import pytest
import torch
from numpy.polynomial.chebyshev import chebval
from torch.nn import functional as F
from torch_geometric.utils import to_undirected

from geof.methods.interface import GraphInputs
from geof.testing import MethodTestCase, assert_same, draw_parameters
from geof.training import RunConfig
from geof_paper.baselines.spectrum import Spectrum, SpectrumOptions, graph_spectrum
from geof_paper.baselines.wavegc import Filters, SpectralBasis, WaveGC, tight_frame
from tests.graphs import random_sample

ALL = SpectrumOptions(loops=False, share=1.0, eigenpairs=256, rescale=False)


def graph(seed: int = 0, nodes: int = 14, edges: int = 18):
    """Return a graph of several components, some of them single nodes."""
    x, edge_index, u = random_sample(seed, nodes=nodes, edges=edges)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index = edge_index[:, (edge_index < nodes - 2).all(dim=0)]
    return x, to_undirected(edge_index, num_nodes=nodes), u


def inputs(seed: int = 0, **sizes) -> GraphInputs:
    return GraphInputs.build(*graph(seed, **sizes))


def build(**options) -> WaveGC:
    torch.manual_seed(0)
    model = WaveGC(5, **{"hidden_channels": 8, **options}).double()
    return draw_parameters(model, spread=0.6)


def draw(tokens: int, order: int, scales: int, largest: float = 2.0):
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.rand(tokens, order, generator=generator).double() for _ in range(2))
    s = largest * torch.rand(tokens, scales, generator=generator).double()
    return a / a.sum(1, keepdim=True), b / b.sum(1, keepdim=True), s


# The equations by hand, scalar by scalar and with dense matrices.


def filters_by_hand(value: float, a, b, s) -> list[float]:
    """Return (h, g_1, ..., g_J) at one eigenvalue."""

    def chebyshev(m: int, y: float) -> float:
        return float(chebval(y, [0] * m + [1]))

    a, b, s = a.tolist(), b.tolist(), s.tolist()
    h = sum(a[r] * (1 - chebyshev(2 * r + 1, value - 1)) / 2 for r in range(len(a)))
    g = [
        0.0
        if scale * value > 2
        else sum(b[r] * (1 - chebyshev(2 * r, scale * value - 1)) / 2 for r in range(len(b)))
        for scale in s
    ]
    norm = math.sqrt(h * h + sum(v * v for v in g))
    return [v / max(norm, 1e-8) for v in [h, *g]]


def coefficients_by_hand(generator, values: torch.Tensor, number: int = 0):
    """Return a, b, s of one decoder from all eigenvalues, every one a token of its own."""
    d = generator.token.out_features
    omega = torch.tensor([10000.0 ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)
    angle = 100 * values[:, None] * omega
    x = generator.token(torch.cat([values[:, None], angle.sin(), angle.cos()], dim=1))
    z = F.layer_norm(x, (d,), generator.attention_norm.weight, generator.attention_norm.bias)
    q, k, v = (part.chunk(generator.heads, dim=1) for part in generator.qkv(z).chunk(3, dim=1))
    heads = [
        (q_h @ k_h.t() / q_h.size(1) ** 0.5).softmax(dim=1) @ v_h
        for q_h, k_h, v_h in zip(q, k, v, strict=True)
    ]
    x = x + generator.mix(torch.cat(heads, dim=1))
    norm = generator.feed_forward_norm
    x = x + generator.feed_forward(F.layer_norm(x, (d,), norm.weight, norm.bias))
    decided = generator.decide(x).mean(dim=0).view(generator.decoders, -1)[number]
    order = generator.order
    return (
        decided[:order].softmax(0),
        decided[order : 2 * order].softmax(0),
        generator.max_scale * decided[2 * order :].sigmoid(),
    )


def kept_pairs(edge_index, nodes: int, *, loops: bool, count: int | None = None):
    """Return the smallest eigenpairs of the dense Laplacian, rescaled with self-loops."""
    A = torch.eye(nodes).double() if loops else torch.zeros(nodes, nodes).double()
    A[edge_index[0], edge_index[1]] = 1
    degree = A.sum(1)
    scale = torch.where(degree > 0, degree.clamp_min(1).rsqrt(), 0.0)
    values, vectors = torch.linalg.eigh(
        torch.diag((degree > 0).double()) - scale[:, None] * A * scale
    )
    values = values.clamp_min(0)
    values[values < 1e-12] = 0
    if loops and values[-1] > 0:
        values = 2 * values / values[-1]
    count = nodes if count is None else count
    return values[:count], vectors[:, :count]


def layer_by_hand(layer, x, gcn, waves):
    act, parts = F.gelu, len(waves)
    maps = zip(layer.waves.weight.chunk(parts), layer.waves.bias.chunk(parts), strict=True)
    z = [psi @ act(psi @ (x @ w.t()) + bias) for psi, (w, bias) in zip(waves, maps, strict=True)]
    y = x + act(layer.fuse(torch.cat(z, dim=1)))
    if layer.local is not None:
        y = y + x + gcn @ (x @ layer.local.weight.t()) + layer.local_bias
    return y + layer.narrow(act(layer.widen(y)))


def model_by_hand(model, x, edge_index, *, loops: bool, count: int | None = None):
    nodes = len(x)
    A = torch.eye(nodes).double()
    A[edge_index[0], edge_index[1]] = 1
    gcn = A.sum(1).rsqrt()[:, None] * A * A.sum(1).rsqrt()
    values, vectors = kept_pairs(edge_index, nodes, loops=loops, count=count)
    x = model.input(x)
    for number, layer in enumerate(model.layers):
        decoder = min(number, model.filters.decoders - 1)
        a, b, s = coefficients_by_hand(model.filters, values, decoder)
        rows = [filters_by_hand(v, a, b, s) for v in values.tolist()]
        table = torch.tensor(rows, dtype=torch.float64)
        waves = [vectors @ torch.diag(table[:, t]) @ vectors.t() for t in range(table.size(1))]
        if model.unit_rows:
            waves = [F.normalize(psi, dim=1, eps=1e-4) for psi in waves]
        x = layer_by_hand(layer, x, gcn, waves)
    return x


# Filters.


def test_filters_by_hand():
    values = torch.linspace(0.0, 1.99, 23).double()[:, None]
    a, b, s = draw(23, 4, 3)
    frame = tight_frame(values, a, b, s)
    for row, value, *coefficients in zip(frame, values, a, b, s, strict=True):
        wanted = filters_by_hand(float(value), *coefficients)
        torch.testing.assert_close(
            row, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("largest", [0.5, 2.0, 10.0])
def test_the_frame_is_tight_and_admissible(largest):
    model = build(max_scale=largest, order=4)
    basis = SpectralBasis.of(inputs(nodes=30, edges=60), ALL)
    (frame,) = model.filters(basis)
    ((a, b, s),) = model.filters.coefficients(basis)
    assert_same({"a": a.sum(1), "b": b.sum(1)}, {"a": torch.ones(1), "b": torch.ones(1)}, 1e-12)
    assert ((s > 0) & (s < largest)).all()
    assert torch.equal(frame[0], torch.tensor([1.0, 0, 0, 0]).double())  # h(0) = 1, g_j(0) = 0
    below = basis.values.squeeze(1) < 2 - 1e-9
    squares = frame.square().sum(dim=1)
    torch.testing.assert_close(squares[below], torch.ones_like(squares[below]))
    assert (frame >= 0).all()


def test_where_no_filter_is_left_the_frame_is_zero_and_gradients_are_finite():
    values = torch.tensor([[0.0], [2.0], [2.0], [1.0]]).double()
    a, b, s = (t.requires_grad_() for t in draw(4, 3, 2))
    s = s * 0 + torch.tensor([[3.0, 3.0], [1.5, 2.0], [0.7, 2.0], [2.0, 3.0]]).double()
    frame = tight_frame(values, a, b, s)
    norms = frame.square().sum(dim=1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 0.0, 1.0, 1.0]).double())
    frame.sum().backward()
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


def test_one_token_stands_for_all_zeros():
    """Attention and mean with multiplicities are those over every eigenvalue by itself."""
    given = inputs()
    basis = SpectralBasis.of(given, ALL)
    assert basis.components >= 3
    generator = build(order=3).filters
    values, _ = kept_pairs(given.edge_index, 14, loops=False)
    wanted = coefficients_by_hand(generator, values)
    (found,) = generator.coefficients(basis)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.squeeze(0), other, rtol=1e-10, atol=1e-10)


# The convolution.


def test_low_rank_application_is_the_dense_wavelet_matrix():
    given = inputs(nodes=24, edges=40)
    settings = SpectrumOptions(loops=False, share=0.6, eigenpairs=256, rescale=False)
    basis = SpectralBasis.of(given, settings)
    (frame,) = build().filters(basis)
    x = torch.randn(24, 8, generator=torch.Generator().manual_seed(1)).double()
    spectrum = graph_spectrum(given.edge_index, 24, settings)
    assert 0 < len(spectrum.values) < 24 - spectrum.components
    same = spectrum.component[:, None] == spectrum.component[None]
    null = same * torch.outer(spectrum.null, spectrum.null)
    for t in range(4):
        psi = spectrum.vectors @ torch.diag(frame[1:, t]) @ spectrum.vectors.t()
        psi = psi + frame[0, t] * null
        part = slice(2 * t, 2 * t + 2)
        for unit_rows in (False, True):
            found = Filters(basis, frame, unit_rows=unit_rows).apply(x)[:, part]
            wanted = F.normalize(psi, dim=1, eps=1e-4) if unit_rows else psi
            torch.testing.assert_close(found, wanted @ x[:, part])


def test_signs_and_rotations_of_eigenspaces_do_not_matter():
    """A ring's eigenvalues come in pairs, each with a plane of eigenvectors."""
    ring = torch.stack([torch.arange(12), torch.arange(1, 13) % 12])
    spectrum = graph_spectrum(ring, 12, ALL)
    generator = torch.Generator().manual_seed(0)
    vectors = spectrum.vectors.clone()
    for first in range(0, 10, 2):
        torch.testing.assert_close(spectrum.values[first], spectrum.values[first + 1])
        turn, _ = torch.linalg.qr(torch.randn(2, 2, generator=generator).double())
        vectors[:, first : first + 2] = vectors[:, first : first + 2] @ turn
    vectors[:, -1] *= -1
    other = Spectrum(
        spectrum.values, vectors, spectrum.null, spectrum.component, spectrum.components
    )
    layer, generator_of_filters = build().layers[0], build().filters
    x = torch.randn(12, 8, generator=generator).double()
    waves = []
    for one in (spectrum, other):
        basis = SpectralBasis.join([one])
        (frame,) = generator_of_filters(basis)
        waves.append(layer.wave(x, Filters(basis, frame, unit_rows=True)))
    assert not torch.allclose(vectors, spectrum.vectors)
    torch.testing.assert_close(*waves, rtol=1e-10, atol=1e-10)


# The whole model.


@pytest.mark.parametrize(
    "options",
    [
        {"share": 1.0},
        {"share": 1.0, "unit_rows": False},
        {"share": 0.5, "num_layers": 1, "local": "none", "order": 2, "num_scales": 1},
        {"task": "graph", "max_scale": 10.0, "shared_filters": False, "heads": 4},
    ],
    ids=str,
)
def test_wavegc_by_hand(options):
    given, model = inputs(seed=2), build(**options)
    basis = SpectralBasis.of(given, model.spectrum)
    count = basis.components + basis.vectors.size(1)
    assert ("share" not in options) or count <= round(14 * options["share"])
    loops = options.get("task") == "graph"
    wanted = model_by_hand(model, given.x, given.edge_index, loops=loops, count=count)
    torch.testing.assert_close(model(given), wanted, rtol=1e-9, atol=1e-9)
    assert model.out_channels == 8


def test_layers_of_graphs_have_decoders_of_their_own_on_one_transformer():
    """As in the public configuration for graphs, whose weights are not shared."""
    shared, apart = build(num_layers=3), build(num_layers=3, shared_filters=False)
    before, after = (dict(m.filters.named_parameters()) for m in (shared, apart))
    assert before.keys() == after.keys()
    wider = {name for name in before if before[name].shape != after[name].shape}
    assert wider == {"decide.weight", "decide.bias"}
    assert len(after["decide.bias"]) == 3 * len(before["decide.bias"])
    frames = apart.filters(SpectralBasis.of(inputs(), ALL))
    assert len(frames) == 3
    assert not torch.allclose(frames[0], frames[1])
    about = {"method": "wavegc", "preset": "published"}
    presets = {task: RunConfig.parse({**about, "task": task}) for task in ("node", "graph")}
    assert [c.options["shared_filters"] for c in presets.values()] == [True, False]
    assert presets["graph"].training.weight_decay == 0
    for dataset in ("CS", "Photo", "Computers"):  # what the public node code overwrites it by
        config = RunConfig.parse({**about, "task": "node", "data": {"dataset": dataset}})
        assert config.options["max_scale"] == 1


def test_the_variant_follows_the_task():
    node = SpectrumOptions(loops=False, share=0.3, eigenpairs=256, rescale=False)
    whole = SpectrumOptions(loops=True, share=1.0, eigenpairs=256, rescale=True)
    assert build(task="node").spectrum == build(task="link").spectrum == node
    assert build(task="graph").spectrum == build(variant="graph").spectrum == whole
    assert build(task="graph", variant="node").spectrum == node


def test_only_the_tasks_one_graph_goes_to_the_cache():
    given = inputs()
    edges = given.edge_index.size(1)
    assert build(num_nodes=14, num_edges=edges)._is_whole(given)
    assert not build(num_nodes=14, num_edges=edges + 2)._is_whole(given)
    assert not build(task="graph")._is_whole(given)


class TestWaveGC(MethodTestCase):
    method = "wavegc"
    options = {"hidden_channels": 8}
    # Few epochs do as a rule; if not, as many as for every method.
    learning = ((0.01, 25), *MethodTestCase.learning)
    variants = (
        {},
        {"norm": "batch", "variant": "node"},
        {"norm": "layer", "variant": "graph", "max_scale": 10.0},
    )
    exceptions = {
        "test_messages_follow_edges": "eigenpairs are those of the undirected graph",
        "test_a_disjoint_union_is_its_parts": "filters are made of all eigenvalues of a graph",
    }
    refused = (
        ({"hidden_channels": 10}, r"multiple of num_scales \+ 1 .*hidden_channels=8"),
        ({"hidden_channels": 8, "heads": 3}, "multiple of heads"),
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"num_layers": 0}, "'num_layers'"),
        ({"local": "gnc"}, "'local'.*Did you mean 'gcn'"),
        ({"activation": "tanh"}, "'activation'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"wave_dropout": -0.1}, "'wave_dropout'"),
        ({"filter_dropout": 1}, "'filter_dropout'"),
        ({"feature_dropout": 2}, "'feature_dropout'"),
        ({"order": 1}, "'order'"),
        ({"num_scales": 0}, "'num_scales'"),
        ({"max_scale": 0.0}, "'max_scale'"),
        ({"heads": 0}, "'heads'"),
        ({"norm": "bach"}, "'norm'.*Did you mean 'batch'"),
        ({"variant": "link"}, "'variant'"),
        ({"share": 0.0}, "'share'"),
        ({"share": 1.1}, "'share'"),
        ({"eigenpairs": 0}, "'eigenpairs'"),
    )
