"""GeoF and GeoFConv are used as any PyG model is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import to_hetero

from geof import GeoF, GeoFConv, GraphReadout, LinkReadout, NodeReadout
from geof.errors import ConfigError, DtypeError, NonFiniteError
from geof.kernels import BACKENDS

N = 12


def ring() -> Tensor:
    """Return a ring with some chords, in both directions."""
    ends = torch.arange(N)
    source = torch.cat([ends, ends[:4]])
    target = torch.cat([(ends + 1) % N, ends[:4] + 6])
    return torch.stack([torch.cat([source, target]), torch.cat([target, source])])


EDGES = ring()
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))


class Nodes(nn.Module):
    def __init__(self, backend: str = "auto") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = GeoF(5, 16, blocks=4, backend=backend)
        self.readout = NodeReadout(16, 3)

    def forward(self, x, edge_index):
        return self.readout(self.encoder(x, edge_index))


class Links(Nodes):
    def __init__(self, backend: str = "auto") -> None:
        super().__init__(backend)
        self.readout = LinkReadout(16)

    def forward(self, x, edge_index, pairs):
        return self.readout(self.encoder(x, edge_index), pairs)


class Graphs(Nodes):
    def __init__(self, backend: str = "auto") -> None:
        super().__init__(backend)
        self.readout = GraphReadout(16, 3)

    def forward(self, x, edge_index, batch):
        return self.readout(self.encoder(x, edge_index, batch=batch), batch, 1)


class TestDefaults:
    @pytest.mark.filterwarnings("error")
    def test_a_model_needs_two_numbers(self):
        model = GeoF(5, 32)
        model.reset_parameters()
        assert model(X, EDGES).shape == (N, 32)
        assert repr(model) == "GeoF(5, 32, blocks=8, steps=2)"

    def test_signatures_where_there_are_none(self):
        with pytest.raises(ConfigError, match="signature_channels"):
            GeoF(5, 32, signature_features=True)
        with pytest.raises(ValueError, match="build with signature_channels=0"):
            GeoF(5, 32, signature_channels=3)(X, EDGES)

    def test_a_layer_may_change_the_width(self):
        conv = GeoFConv(5, 16, blocks=4)
        state, coordinates = conv(X, EDGES)
        assert (state.shape, coordinates.shape) == ((N, 16), (N, 4, 10))
        state.sum().backward()
        assert conv.lift.weight.grad.abs().sum() > 0
        before = conv.lift.weight.clone()
        conv.reset_parameters()
        assert not torch.equal(before, conv.lift.weight)

    def test_the_lift_is_a_linear_map_before_the_step(self):
        conv, inner = GeoFConv(5, 16, blocks=4), GeoFConv(16, blocks=4)
        inner.load_state_dict({n: p for n, p in conv.state_dict().items() if "lift" not in n})
        assert torch.equal(conv(X, EDGES)[0], inner(X @ conv.lift.weight.t(), EDGES)[0])


class TestAttentionWeights:
    @pytest.mark.parametrize("backend", ["auto", *BACKENDS])
    def test_they_sum_to_one_over_each_target(self, backend):
        model = GeoF(5, 16, blocks=4, steps=3, backend=backend)
        out, (edges, weights) = model(X, EDGES, return_attention_weights=True)
        assert torch.allclose(out, model(X, EDGES), atol=1e-5)
        assert weights.shape == (EDGES.size(1) + N, 3)
        total = torch.zeros(N, 3).index_add(0, edges[1], weights)
        assert torch.allclose(total, torch.ones(N, 3))

    def test_of_a_layer(self):
        *_, (edges, weights) = GeoFConv(5, 16, blocks=4)(X, EDGES, return_attention_weights=True)
        assert (edges.shape, weights.shape) == ((2, EDGES.size(1) + N), (EDGES.size(1) + N, 1))


class TestExplainer:
    @pytest.mark.parametrize("backend", ["auto", *BACKENDS])
    def test_node_and_edge_masks(self, backend):
        model = Nodes(backend).eval()
        before = model(X, EDGES)
        explainer = Explainer(
            model,
            GNNExplainer(epochs=2),
            explanation_type="model",
            node_mask_type="attributes",
            edge_mask_type="object",
            model_config={
                "mode": "multiclass_classification",
                "task_level": "node",
                "return_type": "raw",
            },
        )
        found = explainer(X, EDGES, index=3)
        reached = found.edge_mask > 0
        assert found.node_mask.shape == X.shape
        assert reached[EDGES[1] == 3].all()  # each edge into the node that is explained
        assert not reached.all()  # two steps do not reach all round
        assert torch.equal(model(X, EDGES), before)
        assert not any("mask" in name for name in model.state_dict())

    def test_a_mask_is_a_factor_on_weights(self):
        model = GeoF(5, 16, blocks=4)
        weight = torch.rand(EDGES.size(1))
        model.edge_mask.explain, model.edge_mask._edge_mask = True, weight
        model.edge_mask._apply_sigmoid = False
        masked = model(X, EDGES)
        model.edge_mask.explain = None
        assert torch.equal(masked, model(X, EDGES, edge_weight=weight))


BATCH = torch.zeros(N, dtype=torch.long)
PAIRS = torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "third"), [(Nodes, ()), (Links, (PAIRS,)), (Graphs, (BATCH,))])
def test_models_export_for_any_size(model, third):
    nodes, edges, pairs = (torch.export.Dim(name, min=3) for name in ("nodes", "edges", "pairs"))
    last = {Links: ({1: pairs},), Graphs: ({0: nodes},)}.get(model, ())
    eager = model("torch").eval()
    with torch.no_grad():
        exported = torch.export.export(
            eager, (X, EDGES, *third), dynamic_shapes=({0: nodes}, {1: edges}, *last)
        ).module()
        smaller = (X[:9], EDGES[:, (EDGES < 9).all(0)])
        rest = tuple(part[:9] if model is Graphs else part for part in third)
        for given in ((X, EDGES, *third), (*smaller, *rest)):
            assert torch.allclose(exported(*given), eager(*given), atol=1e-5)


class TestPrecision:
    @pytest.mark.parametrize("backend", ["auto", "torch"])
    def test_bfloat16_trains(self, backend):
        model = GeoF(5, 16, blocks=4, backend=backend).bfloat16()
        out = model(X.bfloat16(), EDGES)
        out.sum().backward()
        assert out.dtype == torch.bfloat16
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

    def test_what_the_message_advises_works(self):
        with pytest.raises(DtypeError, match="backend='auto' or 'torch'"):
            GeoF(5, 16, blocks=4, backend="reference").bfloat16()(X.bfloat16(), EDGES)

    def test_an_overflow_in_float16_says_what_to_take(self):
        with pytest.raises(NonFiniteError, match="bfloat16"):
            GeoF(5, 16, blocks=4, lift_gain=1e4).half()(X.half() * 1000, EDGES)


@pytest.mark.parametrize("module", [GeoF(5, 16, blocks=4), GeoFConv(16, blocks=4)])
def test_to_hetero_is_refused_with_what_to_do(module):
    with pytest.raises(DtypeError, match=r"to_homogeneous\(\)"):
        to_hetero(module, (["a", "b"], [("a", "r", "b"), ("b", "s", "a")]))
