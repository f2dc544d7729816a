"""Small copies: the shape, the features and the neighbours of the workload, and the line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geof_paper.bench.catalogue import WORKLOADS
from geof_paper.bench.probes import predict, small_copies
from geof_paper.bench.problems import build_problem

GRAPH, SET = (build_problem(WORKLOADS[name]).facts for name in ("tiny", "tiny-set"))


def test_a_graph_has_as_many_neighbours_and_features():
    for copy in small_copies(WORKLOADS["tiny"], GRAPH):
        assert copy.sizes.edges / copy.sizes.nodes == pytest.approx(6, rel=0.01)
        assert (copy.sizes.features, copy.sizes.classes) == (16, 3)
        assert build_problem(copy).facts.edges == copy.sizes.edges


def test_a_set_is_one_batch_of_graphs_of_the_same_kind():
    for copy in small_copies(WORKLOADS["tiny-set"], SET):
        facts = build_problem(copy).facts
        assert facts.batches_per_epoch == 1
        assert facts.nodes / facts.graphs == pytest.approx(SET.largest_nodes / 128, rel=0.05)
        assert facts.edges / facts.nodes == pytest.approx(SET.edges / SET.nodes, rel=0.05)


@pytest.mark.parametrize("edges", [0, 10**6])
def test_graphs_that_no_molecule_is_like_have_the_nearest_that_is(edges):
    for copy in small_copies(WORKLOADS["tiny-set"], replace(SET, largest_edges=edges)):
        assert build_problem(copy).facts.graphs == copy.sizes.graphs


def test_a_copy_keeps_the_benchmark_whose_preset_a_method_has():
    copies = small_copies(WORKLOADS["Computers"], GRAPH)
    assert {copy.benchmark for copy in copies} == {"Computers"}
    assert {copy.sizes.graphs for copy in copies} == {1}


def test_the_line_is_drawn_to_nodes_and_to_edges_and_the_larger_need_counts():
    copies = [copy.sizes for copy in small_copies(WORKLOADS["tiny"], GRAPH)]
    facts = replace(GRAPH, largest_nodes=10**6, largest_edges=6 * 10**6)
    by_node = [10**8 + 1_000 * sizes.nodes for sizes in copies]
    assert predict(copies, by_node, facts) == pytest.approx(1.1e9, rel=0.01)
    fewer = replace(facts, largest_nodes=10**5)
    by_edge = [10**8 + 1_000 * sizes.edges for sizes in copies]
    assert predict(copies, by_edge, fewer) == pytest.approx(6.1e9, rel=0.01)
    # A form that is cheaper from some size on: the line does not fall below what was seen.
    assert predict(copies, [10**9, 5 * 10**8], facts) == 5 * 10**8


def test_the_batches_of_a_set_are_all_held():
    copies = [copy.sizes for copy in small_copies(WORKLOADS["tiny-set"], SET)]
    assert predict(copies, [10**8, 10**8], SET) == 10**8 + SET.data_bytes
