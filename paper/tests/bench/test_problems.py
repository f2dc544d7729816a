"""Workloads made concrete: real or generated, said which, cut into fixed batches."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from geof.data.catalogue import CATALOGUE
from geof_paper.bench.catalogue import BATCH_SIZE, QUICK_WORKLOADS, WORKLOADS, Sizes
from geof_paper.bench.problems import SIGNATURE_CHANNELS, Problem, build_problem


@pytest.mark.parametrize("name", ["tiny", "tiny-set"])
def test_a_problem_survives_its_file(name, tmp_path):
    problem = build_problem(WORKLOADS[name])
    problem.save(tmp_path / "problem.pt")
    restored = Problem.load(tmp_path / "problem.pt")
    assert restored.facts == problem.facts
    assert restored.is_static is (name == "tiny")
    for ours, theirs in zip(problem.pieces, restored.pieces, strict=True):
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.edge_index, theirs.edge_index)
        assert ours.num_graphs == theirs.num_graphs


def test_a_set_is_cut_into_batches_that_hold_every_graph_once():
    problem = build_problem(WORKLOADS["tiny-set"])
    facts = problem.facts
    assert [piece.num_graphs for piece in problem.pieces] == [BATCH_SIZE, 160 - BATCH_SIZE]
    assert sum(piece.x.size(0) for piece in problem.pieces) == facts.nodes == 1_120
    assert sum(piece.edge_index.size(1) for piece in problem.pieces) == facts.edges == 2_200
    assert facts.graphs_per_epoch == facts.graphs == 160
    for piece in problem.pieces:
        assert piece.y.shape == (piece.num_graphs,)
        assert torch.equal(*piece.batch[piece.edge_index])  # no edge leaves its graph
    assert facts.largest_nodes == problem.pieces[0].x.size(0)


def test_a_part_of_the_batches_is_said_and_is_the_same_part():
    whole = build_problem(WORKLOADS["tiny-set"])
    part = build_problem(WORKLOADS["tiny-set"], batches=1)
    assert part.facts.benchmark is None
    assert (part.facts.batches_per_epoch, part.facts.graphs_per_epoch) == (1, BATCH_SIZE)
    assert part.facts.graphs == 160
    assert torch.equal(part.pieces[0].x, whole.pieces[0].x)


def test_inputs_are_dense_unless_the_workload_says_sparse():
    small = replace(WORKLOADS["CS"], benchmark=None, sizes=Sizes(1, 60, 200, 50, 3), density=0.1)
    dense, sparse = build_problem(small), build_problem(replace(small, sparse=True))
    assert (dense.facts.inputs, sparse.facts.inputs) == ("dense", "sparse")
    assert sparse.pieces[0].x.layout == torch.sparse_csr
    assert torch.equal(sparse.pieces[0].x.to_dense(), dense.pieces[0].x)
    assert sparse.facts.data_bytes < dense.facts.data_bytes


def test_a_stand_in_has_the_real_sizes(tmp_path):
    """An empty data root has none of the raw files."""
    for name in ("PubMed", "NCI1"):
        facts = build_problem(WORKLOADS[name], str(tmp_path)).facts
        real = CATALOGUE[name].expected
        assert facts.source == "generated"
        assert facts.benchmark == name
        for size in ("graphs", "nodes", "edges", "features", "classes"):
            assert getattr(facts, size) == getattr(real, size)


def test_real_files_are_used_where_they_are():
    if not os.environ.get("GEOF_DATA"):
        pytest.skip("needs raw benchmark files below GEOF_DATA")
    problem = build_problem(WORKLOADS["PubMed"], os.environ["GEOF_DATA"])
    assert problem.facts.source == "real"
    assert problem.facts.edges == CATALOGUE["PubMed"].expected.edges
    assert problem.pieces[0].signature.shape == (19_717, SIGNATURE_CHANNELS)


def test_the_catalogue_has_what_was_promised():
    default = [name for name, workload in WORKLOADS.items() if workload.default]
    promised = {"PubMed", "CS", "Computers", "NCI1", "Mutagenicity", "ogbg-molhiv"}
    assert promised <= set(default)
    grown = {n: w.sizes.edges // 2 for n, w in WORKLOADS.items() if w.growth == "edges"}
    assert grown == {"edges-1e5": 10**5, "edges-1e6": 10**6, "edges-1e7": 10**7}
    assert "Computers" in QUICK_WORKLOADS
    fixed = {w.sizes.edges for w in WORKLOADS.values() if w.growth == "nodes"}
    assert len(fixed) == 1
