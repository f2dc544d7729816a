"""The entries of equal width and depth: the same function where they should be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from geof.kernels import BACKENDS, Neighbourhoods
from geof_paper.bench import networks
from geof_paper.bench.catalogue import GEOF, WORKLOADS, Entry, entries
from geof_paper.bench.networks import WIDTH, Training
from geof_paper.bench.problems import build_problem

ALL = entries(BACKENDS)


@pytest.fixture(scope="module")
def problems():
    dense = build_problem(WORKLOADS["tiny"])
    sparse = replace(WORKLOADS["tiny"], density=0.2, sparse=True)
    return {
        "graph": dense,
        "sparse": build_problem(sparse),
        "set": build_problem(WORKLOADS["tiny-set"]),
    }


@pytest.mark.parametrize("label", ALL)
@pytest.mark.parametrize("kind", ["graph", "sparse", "set"])
def test_every_entry_trains(label, kind, problems):
    training = Training(ALL[label], problems[kind])
    before = [p.detach().clone() for p in training.network.module.parameters()]
    losses = [training.epoch() for _ in range(3)]
    assert all(0 < loss < 10 for loss in losses)
    changed = [
        not torch.equal(b, p)
        for b, p in zip(before, training.network.module.parameters(), strict=True)
    ]
    assert any(changed)


@pytest.mark.parametrize("label", ALL)
def test_every_network_is_64_wide(label, problems):
    training = Training(ALL[label], problems["graph"])
    piece = training.problem.pieces[0]
    states = training.network.module(*training.network.prepare(piece))
    assert states.shape == (piece.x.size(0), WIDTH)


@pytest.mark.parametrize("kind", ["graph", "sparse", "set"])
def test_the_csr_adjacency_gives_the_same_gcn(kind, problems):
    usual, csr = (Training(Entry(name), problems[kind]) for name in ("gcn", "gcn-csr"))
    for _ in range(3):
        assert csr.epoch() == pytest.approx(usual.epoch(), rel=1e-5)


def test_all_backends_train_alike(problems):
    losses = {
        backend: [training.epoch() for _ in range(3)]
        for backend in BACKENDS
        for training in [Training(Entry("geof", backend), problems["set"])]
    }
    for values in losses.values():
        assert values == pytest.approx(losses["reference"], rel=1e-4)


def test_edges_that_carry_something_are_read(problems):
    plain, edges = (Training(Entry(name, "torch"), problems["graph"]) for name in GEOF)
    assert plain.problem.pieces[0].edge_attr is None
    losses = [(plain.epoch(), edges.epoch()) for _ in range(3)]
    # Tables of attributes start at zero: the first pass is that of the model without.
    assert losses[0][0] == pytest.approx(losses[0][1], rel=1e-5)
    assert losses[-1][0] != losses[-1][1]


@pytest.mark.parametrize(
    ("prepare", "entry"), [("as_csr", Entry("gcn-csr")), ("as_inputs", Entry("geof", "torch"))]
)
def test_a_graph_is_prepared_once_and_batches_anew(prepare, entry, problems, monkeypatch):
    made = []
    original = getattr(networks, prepare)
    monkeypatch.setattr(networks, prepare, lambda piece: made.append(1) or original(piece))
    static = Training(entry, problems["graph"])
    assert len(made) == 1
    static.epoch()
    assert len(made) == 1
    made.clear()
    batched = Training(entry, problems["set"])
    assert not made
    batched.epoch()
    batched.epoch()
    assert len(made) == 2 * len(problems["set"].pieces)


def test_geof_is_given_prepared_neighbourhoods(problems):
    training = Training(Entry("geof", "torch"), problems["graph"])
    (inputs,) = training.network.prepare(problems["graph"].pieces[0])
    assert isinstance(inputs.edges, Neighbourhoods)


def test_sparse_features_give_the_dense_result():
    workload = replace(WORKLOADS["tiny"], density=0.2)
    dense, sparse = (build_problem(replace(workload, sparse=s)) for s in (False, True))
    for entry in (Entry("gcn"), Entry("gat"), Entry("geof", "torch")):
        pair = [Training(entry, problem) for problem in (dense, sparse)]
        for source, target in zip(*(t.network.module.parameters() for t in pair), strict=True):
            target.data.copy_(source.data)
        pair[1].head.load_state_dict(pair[0].head.state_dict())
        assert pair[0].epoch() == pytest.approx(pair[1].epoch(), rel=1e-5)
