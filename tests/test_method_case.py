"""A sound method passes every check of the case; for every check a wrong one fails it."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from geof.errors import ConfigError, NonFiniteError, ShapeError
from geof.methods.registry import Method, register, unregister
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import drop_features, scale_rows
from geof.options import Probability, require_number
from geof.testing import (
    MethodTestCase,
    draw_parameters,
    random_graph,
    side_by_side,
    tiny_graph,
    tiny_task,
)

CHECKS = sorted(name for name in vars(MethodTestCase) | vars(MethodTestCase.__bases__[0]))
CHECKS = [name for name in CHECKS if name.startswith("test_")]
LONG = ("test_an_epoch_on_samples", "test_overfits_a_tiny_set")


class Sound(nn.Module):
    """Means over closed neighbourhoods, twice."""

    def __init__(
        self,
        in_channels: int,
        signature_channels: int,
        *,
        hidden_channels: int = 6,
        dropout: Probability = 0.0,
        scale_features: bool = False,
    ) -> None:
        super().__init__()
        require_number("dropout", dropout, least=0, below=1)
        self.dropout, self.scale_features = dropout, scale_features
        self.lift = SparseLinear(in_channels, hidden_channels)
        self.mix = nn.Linear(hidden_channels, hidden_channels)
        self.signature = nn.Linear(signature_channels, hidden_channels, bias=False)
        self.out_channels = hidden_channels

    def features(self, inputs):
        x = scale_rows(inputs.x) if self.scale_features else inputs.x
        return drop_features(x, self.dropout, training=self.training)

    def mean(self, h, inputs):
        edges = inputs.edges
        degree = torch.bincount(edges.target, minlength=edges.num_nodes).to(h)
        return edges.sum(h.index_select(0, edges.source)) / degree[:, None]

    def forward(self, inputs):
        h = self.lift(self.features(inputs)) + self.signature(inputs.signature)
        return self.mean(self.mix(torch.tanh(self.mean(h, inputs))), inputs)


class OtherWidth(Sound):
    def forward(self, inputs):
        return super().forward(inputs)[:, 1:]


class KeepsFloat32(Sound):
    def forward(self, inputs):
        return super().forward(inputs).float()


class KnowsPositions(Sound):
    def forward(self, inputs):
        return super().forward(inputs) + torch.arange(len(inputs.x))[:, None]


class ReadsTheFirstEdge(Sound):
    def forward(self, inputs):
        h = super().forward(inputs)
        return h + h[inputs.edge_index[0, :1]].sum(0) if inputs.edge_index.size(1) else h


class SpeaksBothWays(Sound):
    def mean(self, h, inputs):
        source, target = inputs.edge_index
        both = torch.zeros_like(h).index_add(0, source, h[target])
        return super().mean(h, inputs) + both


class CentresTheBatch(Sound):
    def forward(self, inputs):
        h = super().forward(inputs)
        return h - h.mean(0)


class CentresEachGraph(Sound):
    def forward(self, inputs):
        h = super().forward(inputs)
        batch = torch.zeros(len(h), dtype=torch.long) if inputs.batch is None else inputs.batch
        total = torch.zeros(inputs.num_graphs, h.size(1)).to(h).index_add(0, batch, h)
        return h - (total / torch.bincount(batch).to(h)[:, None])[batch]


class TakesSparseOtherwise(Sound):
    def features(self, inputs):
        x = super().features(inputs)
        return x if x.layout == torch.strided else x.to_dense().abs().sqrt()


class ForgetsToScale(Sound):
    def features(self, inputs):
        return drop_features(inputs.x, self.dropout, training=self.training)


class DropsAlways(Sound):
    def features(self, inputs):
        return F.dropout(super().features(inputs), self.dropout)


class NeverDrops(Sound):
    def features(self, inputs):
        return inputs.x


class Overflows(Sound):
    def forward(self, inputs):
        return super().forward(inputs) * 1e30 * 1e30 / 1e60


class HasAnIdleParameter(Sound):
    def __init__(self, in_channels: int, signature_channels: int) -> None:
        super().__init__(in_channels, signature_channels)
        self.idle = nn.Parameter(torch.ones(2))


class DividesByNeighbours(Sound):
    def mean(self, h, inputs):
        source, target = inputs.edge_index
        degree = torch.bincount(target, minlength=len(h)).to(h)
        return torch.zeros_like(h).index_add(0, target, h[source]) / degree[:, None]


class Drifts(Sound):
    """The same network computes something else every time."""

    calls = 0

    def forward(self, inputs):
        Drifts.calls += 1
        return super().forward(inputs) * (1 + 1e-6 * Drifts.calls)


class CountsOnItself(Sound):
    """What it remembers of its training is in no buffer."""

    def __init__(self, in_channels: int, signature_channels: int) -> None:
        super().__init__(in_channels, signature_channels)
        self.steps = 0

    def forward(self, inputs):
        self.steps += self.training
        return super().forward(inputs) * (1 + 0.1 * self.steps)


class DrawsWhatItDoesNotSave(Sound):
    def __init__(self, in_channels: int, signature_channels: int) -> None:
        super().__init__(in_channels, signature_channels)
        self.drawn = torch.randn(6)

    def forward(self, inputs):
        h = super().forward(inputs)
        return h * self.drawn.to(h)


class TakesAnyDropout(Sound):
    def __init__(self, in_channels: int, signature_channels: int, *, dropout: float = 0.0) -> None:
        super().__init__(in_channels, signature_channels)


class HasNoAnnotation(Sound):
    def __init__(self, in_channels: int, signature_channels: int, *, hidden_channels=6) -> None:
        super().__init__(in_channels, signature_channels)


class WithPretext(Sound):
    def pretext_loss(self, inputs):
        return self(inputs).square().mean()


class Thaws(WithPretext):
    def forward(self, inputs):
        self.requires_grad_(True)
        return super().forward(inputs)


class SaysNothing(Sound):
    def forward(self, inputs):
        return 0 * super().forward(inputs)


WRONG = {
    "test_shapes_and_types": [OtherWidth, KeepsFloat32],
    "test_renumbering_nodes": [KnowsPositions],
    "test_order_of_edges": [ReadsTheFirstEdge],
    "test_messages_follow_edges": [SpeaksBothWays],
    "test_a_batch_is_each_graph_alone": [CentresTheBatch],
    "test_a_disjoint_union_is_its_parts": [CentresEachGraph],
    "test_sparse_features": [TakesSparseOtherwise],
    "test_scaled_features": [ForgetsToScale],
    "test_dropout_acts_in_training_alone": [DropsAlways, NeverDrops],
    "test_a_single_precision_copy_computes_the_same": [Overflows],
    "test_gradients_reach_every_parameter": [HasAnIdleParameter],
    "test_gradients_are_finite_on_odd_graphs": [DividesByNeighbours],
    "test_sampled_neighbourhoods": [DividesByNeighbours],
    "test_sums_run_in_a_fixed_order": [Drifts],
    "test_state_dict_round_trip": [DrawsWhatItDoesNotSave],
    "test_refused_options": [TakesAnyDropout],
    "test_options_of_another_type_are_refused": [HasNoAnnotation],
    "test_a_seed_decides_a_run": [Drifts],
    "test_a_stopped_run_goes_on_to_the_same_bits": [CountsOnItself],
    "test_a_run_is_opened_again_with_the_same_answers": [DrawsWhatItDoesNotSave],
    "test_a_pretext_stage": [Thaws],
    "test_an_epoch_on_samples": [DividesByNeighbours],
    "test_overfits_a_tiny_set": [SaysNothing],
}


@pytest.fixture
def check(tmp_path):
    """Run a check of the case on a method, for all its values."""

    def run(name: str, kind: type[nn.Module], **attributes) -> None:
        unregister("tried")
        register(Method("tried", kind, presets=attributes.pop("presets", None)))
        refused = (({"dropout": 1.0}, "'dropout'"),)
        attributes = {"method": "tried", "refused": refused, **attributes}
        case = type("Case", (MethodTestCase,), attributes)()
        wanted = list(inspect.signature(getattr(case, name)).parameters)
        folders = (tmp_path / str(number) for number in itertools.count())
        names = [argument for argument in wanted if argument != "tmp_path"]
        for values in itertools.product(*(case.values_of(argument) for argument in names)):
            more = {"tmp_path": next(folders)} if "tmp_path" in wanted else {}
            getattr(case, name)(**dict(zip(names, values, strict=True)), **more)

    yield run
    unregister("tried")


def mark(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.slow) if name in LONG else name


@pytest.mark.parametrize("name", [mark(name) for name in CHECKS])
def test_a_sound_method_passes(name, check):
    check(name, Sound)
    if name == "test_a_pretext_stage":
        check(name, WithPretext)


@pytest.mark.parametrize("name", [mark(name) for name in WRONG])
def test_a_wrong_method_fails(name, check):
    for kind in WRONG[name]:
        with pytest.raises((AssertionError, pytest.fail.Exception, NonFiniteError)):
            check(name, kind)


def test_every_check_is_shown_a_wrong_method():
    others = {"test_presets_build", "test_an_unknown_option_names_the_nearest"}
    assert set(CHECKS) == WRONG.keys() | others


def test_a_preset_that_does_not_parse_fails(check, tmp_path):
    (tmp_path / "presets" / "bad").mkdir(parents=True)
    (tmp_path / "presets" / "bad" / "link.yaml").write_text("all: {options: {hiden_channels: 3}}")
    with pytest.raises(ConfigError, match="Did you mean 'hidden_channels'"):
        check("test_presets_build", Sound, presets=tmp_path / "presets")


def test_an_option_that_is_taken_by_any_name_fails(check, monkeypatch):
    monkeypatch.setattr("geof.methods.registry.require_known", lambda *arguments: None)
    with pytest.raises((pytest.fail.Exception, TypeError, KeyError)):
        check("test_an_unknown_option_names_the_nearest", Sound)


def test_exceptions_take_checks_away_and_have_a_reason():
    class Case(MethodTestCase):
        method = "gcn"
        exceptions = {"test_order_of_edges": "it is said why"}

    assert Case.test_order_of_edges is None
    assert MethodTestCase.test_order_of_edges is not None
    for wrong in ({"test_order_of_edge": "no such check"}, {"test_order_of_edges": ""}):
        with pytest.raises(ConfigError, match="with a reason each"):
            type("Case", (MethodTestCase,), {"exceptions": wrong})


def test_restrictions_leave_other_tasks_out(check):
    class LinksOnly(Sound):
        def __init__(self, in_channels: int, signature_channels: int, task: str) -> None:
            super().__init__(in_channels, signature_channels)
            if task != "link":
                raise ShapeError("for links only")

    check("test_shapes_and_types", LinksOnly, tasks=("link",))
    check("test_a_batch_is_each_graph_alone", LinksOnly, tasks=("link",))
    with pytest.raises(ShapeError):
        check("test_shapes_and_types", LinksOnly)


def test_tolerances_are_those_of_the_case(check):
    class Rounds(Sound):
        def forward(self, inputs):
            return super().forward(inputs) + 1e-7 * torch.arange(len(inputs.x))[:, None]

    check("test_renumbering_nodes", Rounds, tolerance=1e-5)
    with pytest.raises(AssertionError):
        check("test_renumbering_nodes", Rounds)
    with pytest.raises(AssertionError):
        check("test_renumbering_nodes", Rounds, alike_tolerance=1e-5)
    check("test_order_of_edges", ReadsTheFirstEdge, exact_edge_order=False, tolerance=10.0)
    check("test_gradients_reach_every_parameter", HasAnIdleParameter, untrained={"*idle": "why"})


@pytest.mark.slow
def test_the_case_is_imported_only_when_asked_for():
    code = "import sys; sys.modules['pytest'] = None; import geof.testing; geof.testing.assert_same"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parameters_and_statistics_are_drawn():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    draw_parameters(module, spread=2.0, except_for=("0.weight",), statistics=False)
    assert not module.training
    assert bool((module[1].weight != 1).all() and (module[1].bias != 0).all())
    assert float(module[0].weight.abs().max()) < 0.6  # as it started
    assert torch.equal(module[1].running_var, torch.ones(3))
    draw_parameters(module)
    assert bool((module[1].running_mean != 0).all() and (module[1].running_var > 1).all())


def test_graphs_side_by_side():
    graphs = [random_graph(0, nodes=3, edges=4), random_graph(1, nodes=2, edges=3)]
    plain = side_by_side(graphs)
    assert plain.batch.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(*plain.batch[plain.edge_index])
    order = torch.tensor([4, 0, 3, 2, 1])
    mixed = side_by_side(graphs, order)
    assert mixed.batch.tolist() == [1, 0, 1, 0, 0]
    assert torch.equal(mixed.x, plain.x[order])
    edges = {tuple(pair) for pair in order[mixed.edge_index].t().tolist()}
    assert edges == {tuple(pair) for pair in plain.edge_index.t().tolist()}


def test_tiny_tasks_have_what_methods_ask_for():
    assert tiny_task("node").shape.num_nodes == 40
    assert tiny_task("link").shape.num_edges < tiny_graph().graph.edge_index.size(1)
    assert tiny_task("graph").shape.num_nodes is None
    assert len(tiny_task("graph").data.graphs) == 30
    assert {tiny_task(kind).signature.values.size(1) for kind in ("node", "link", "graph")} == {4}
