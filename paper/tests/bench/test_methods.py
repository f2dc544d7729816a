"""Registered methods: their presets, their stages, the same pieces, what they may keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from geof.kernels import Neighbourhoods
from geof.methods.registry import method_names
from geof_paper.bench.catalogue import EQUAL_WIDTH, PAPER_METHODS, WORKLOADS, Entry
from geof_paper.bench.methods import MethodTraining, config_of, stage_of
from geof_paper.bench.problems import build_problem

METHODS = [name for name in method_names() if name not in EQUAL_WIDTH]
FROZEN = {"ml2-gcl", "sparrow"}


@pytest.fixture(scope="module")
def problems():
    sparse = replace(WORKLOADS["tiny"], density=0.2, sparse=True)
    return {
        "graph": build_problem(WORKLOADS["tiny"]),
        "sparse": build_problem(sparse),
        "set": build_problem(WORKLOADS["tiny-set"], batches=1),
    }


def train(name, problem, epochs=1) -> MethodTraining:
    training = MethodTraining(Entry(name), problem)
    for _ in range(epochs):
        assert abs(training.epoch()) < 100
    return training


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in METHODS for kind in ("graph", "set")]
    + [(name, "sparse") for name in PAPER_METHODS],
)
def test_every_method_trains_its_encoder(name, kind, problems):
    training = MethodTraining(Entry(name), problems[kind])
    before = [p.detach().clone() for p in training.network.encoder.parameters()]
    assert abs(training.epoch()) < 100
    after = training.network.encoder.parameters()
    assert any(not torch.equal(b, a) for b, a in zip(before, after, strict=True))
    assert training.network.training  # with dropout: that is what an epoch costs
    frozen = name in FROZEN or (name, kind) == ("d-gcn", "graph")  # its two stages are for nodes
    assert training.stage == ("pretext" if frozen else "supervised")


def test_the_preset_is_the_default_one_for_task_and_benchmark():
    assert config_of("amp", "node", "Computers").options["observations"] == 8251
    assert config_of("amp", "node", None).options["observations"] != 8251
    assert config_of("gcn-classic", "node", None).preset == "tuned"
    training = train("amp", replace_benchmark(build_problem(WORKLOADS["tiny"]), "Computers"))
    assert training.network.config.options["observations"] == 8251
    assert training.network.config.options["hidden_channels"] == 64
    (group,) = training.optimiser.param_groups
    assert group["lr"] == training.config.training.learning_rate


def replace_benchmark(problem, benchmark):
    return replace(problem, facts=replace(problem.facts, benchmark=benchmark))


def test_a_frozen_encoder_is_timed_in_its_pretext_and_a_trained_one_with_its_labels():
    config = config_of("sparrow", "node", None)
    assert stage_of(config) == "pretext"
    for change in ({"freeze": False}, {"epochs": 0}):
        changed = replace(config, pretraining=replace(config.pretraining, **change))
        assert stage_of(changed) == "supervised"


def test_a_pretext_epoch_leaves_the_readout_alone_and_sees_no_label(problems, monkeypatch):
    monkeypatch.setattr(F, "cross_entropy", lambda *a, **k: pytest.fail("a label was read"))
    training = MethodTraining(Entry("sparrow"), problems["graph"])
    before = [p.detach().clone() for p in training.network.readout.parameters()]
    training.epoch()
    after = training.network.readout.parameters()
    assert all(torch.equal(b, a) for b, a in zip(before, after, strict=True))
    (group,) = training.optimiser.param_groups
    assert group["lr"] == training.config.pretraining.learning_rate


def test_all_graded_logits_and_the_methods_own_loss_count(problems):
    """AMP grades the readout of every depth and adds a penalty."""
    training = MethodTraining(Entry("amp"), problems["graph"])
    training.network.eval()
    piece = problems["graph"].pieces[0]
    inputs = training._inputs(0)
    whole = training._loss(inputs, piece)
    alone = F.cross_entropy(training.network(inputs), piece.y)
    assert whole.item() != pytest.approx(alone.item(), rel=1e-3)


def test_neighbourhoods_are_kept_for_a_graph_and_made_anew_for_batches(problems, monkeypatch):
    made = []
    original = Neighbourhoods.from_edge_index

    def counted(*arguments, **options):
        made.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(Neighbourhoods, "from_edge_index", counted)
    train("hgcn", problems["graph"], epochs=2)
    assert len(made) == 1
    made.clear()
    train("hgcn", build_problem(WORKLOADS["tiny-set"]), epochs=2)
    assert len(made) == 2 * 2


def test_what_a_method_caches_with_a_graph_lives_as_long_as_the_data(problems):
    training = train("ml2-gcl", problems["set"])
    (caches,) = training._caches
    assert len(caches) == problems["set"].pieces[0].num_graphs
    first = [cache.items() for cache in caches]
    assert all(first)  # the weights of each graph
    training.epoch()
    for before, after in zip(first, (dict(cache.items()) for cache in caches), strict=True):
        assert all(after[key] is value for key, value in before)


@pytest.mark.parametrize("kind", ["graph", "set"])
def test_what_a_method_does_after_an_epoch_belongs_to_it(kind, problems):
    training = MethodTraining(Entry("ace-hgnn"), problems[kind])
    views = []
    end = training.network.encoder.end_epoch

    def looked(view):
        encoding = training.network.encode(view.inputs)
        views.append((view.epoch, view.score(encoding)))
        end(view)

    training.network.encoder.end_epoch = looked
    training.epoch()
    training.epoch()
    assert [epoch for epoch, _ in views] == [1, 2]
    assert all(0 <= score <= 100 for _, score in views)
    assert training.network.training
