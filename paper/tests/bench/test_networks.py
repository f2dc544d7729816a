"""The contestants: equal width and depth, the same function where they should be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from geof.kernels import BACKENDS, Neighbourhoods
from geof_paper.bench.catalogue import WORKLOADS, Contestant, contestants
from geof_paper.bench.networks import WIDTH, CsrEncoder, GeoFEncoder, Training
from geof_paper.bench.problems import build_problem

ALL = contestants(BACKENDS)


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
def test_every_contestant_trains(label, kind, problems):
    training = Training(ALL[label], problems[kind])
    before = [p.detach().clone() for p in training.encoder.parameters()]
    losses = [training.epoch() for _ in range(3)]
    assert all(0 < loss < 10 for loss in losses)
    changed = [
        not torch.equal(b, p) for b, p in zip(before, training.encoder.parameters(), strict=True)
    ]
    assert any(changed)


@pytest.mark.parametrize("label", ALL)
def test_every_encoder_is_64_wide(label, problems):
    training = Training(ALL[label], problems["graph"])
    piece = problems["graph"].pieces[0]
    states = training.encoder(piece, training.encoder.structure(piece))
    assert states.shape == (piece.x.size(0), WIDTH)


@pytest.mark.parametrize("kind", ["graph", "sparse", "set"])
def test_the_csr_adjacency_gives_the_same_gcn(kind, problems):
    usual, csr = (Training(Contestant(name), problems[kind]) for name in ("gcn", "gcn-csr"))
    for _ in range(3):
        assert csr.epoch() == pytest.approx(usual.epoch(), rel=1e-5)


def test_all_backends_train_alike(problems):
    losses = {
        backend: [training.epoch() for _ in range(3)]
        for backend in BACKENDS
        for training in [Training(Contestant("geof", backend), problems["set"])]
    }
    for values in losses.values():
        assert values == pytest.approx(losses["reference"], rel=1e-4)


@pytest.mark.parametrize("encoder", [CsrEncoder, GeoFEncoder])
def test_structures_are_kept_for_a_graph_and_made_anew_for_batches(encoder, problems, monkeypatch):
    contestant = Contestant("gcn-csr") if encoder is CsrEncoder else Contestant("geof", "torch")
    made = []
    original = encoder.structure
    monkeypatch.setattr(encoder, "structure", lambda s, piece: made.append(1) or original(s, piece))
    static = Training(contestant, problems["graph"])
    assert len(made) == 1
    static.epoch()
    assert len(made) == 1
    made.clear()
    batched = Training(contestant, problems["set"])
    assert not made
    batched.epoch()
    batched.epoch()
    assert len(made) == 2 * len(problems["set"].pieces)


def test_geof_is_given_prepared_neighbourhoods(problems):
    training = Training(Contestant("geof", "torch"), problems["graph"])
    assert isinstance(training.encoder.structure(problems["graph"].pieces[0]), Neighbourhoods)


def test_sparse_features_give_the_dense_result():
    workload = replace(WORKLOADS["tiny"], density=0.2)
    dense, sparse = (build_problem(replace(workload, sparse=s)) for s in (False, True))
    for contestant in (Contestant("gcn"), Contestant("gat"), Contestant("geof", "torch")):
        pair = [Training(contestant, problem) for problem in (dense, sparse)]
        for source, target in zip(*(t.encoder.parameters() for t in pair), strict=True):
            target.data.copy_(source.data)
        pair[1].head.load_state_dict(pair[0].head.state_dict())
        assert pair[0].epoch() == pytest.approx(pair[1].epoch(), rel=1e-5)
