from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch_geometric.utils import to_undirected

from geof.data import sources
from geof.data.sources import SignatureConfig, cached_signature
from geof.errors import ConfigError
from geof.signature import structural_signature
from tests.graphs import random_sample


@pytest.fixture
def edges(monkeypatch, tmp_path):
    monkeypatch.setenv("GEOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "WORTH_CACHING", 0)
    edge_index = random_sample(0, nodes=30, edges=60)[1]
    return to_undirected(edge_index[:, edge_index[0] != edge_index[1]], num_nodes=30)


def test_the_second_time_comes_from_the_cache(edges, monkeypatch):
    first = cached_signature(edges, 30, SignatureConfig(5))
    monkeypatch.setattr(sources, "structural_signature", None)  # must not be called again
    second = cached_signature(edges, 30, SignatureConfig(5))
    assert torch.equal(first.values, structural_signature(edges, 30, walk_length=5).values)
    assert torch.equal(first.values, second.values)
    assert second.describe() == first.describe()


def test_anything_that_matters_makes_another_entry(edges):
    plain = cached_signature(edges, 30, SignatureConfig(5))
    fewer = edges[:, (edges != 3).all(0)]
    batch = (torch.arange(30) == 29).long()
    alone = edges[:, (edges != 29).all(0)]
    cached_signature(alone, 30, SignatureConfig(5))
    for got, wanted in (
        (
            cached_signature(fewer, 30, SignatureConfig(5)),
            structural_signature(fewer, 30, walk_length=5),
        ),
        (
            cached_signature(edges, 31, SignatureConfig(5)),
            structural_signature(edges, 31, walk_length=5),
        ),
        (
            cached_signature(edges, 30, SignatureConfig(4)),
            structural_signature(edges, 30, walk_length=4),
        ),
        (
            cached_signature(edges, 30, SignatureConfig(5, "log")),
            structural_signature(edges, 30, walk_length=5, degree="log"),
        ),
        (
            cached_signature(alone, 30, SignatureConfig(5), batch=batch),
            structural_signature(alone, 30, walk_length=5, batch=batch),
        ),
    ):
        assert torch.equal(got.values, wanted.values)
    assert plain.method == "exact"


def test_estimates_are_recorded_and_not_cached(edges, tmp_path):
    config = SignatureConfig(4, method="estimate", probes=8, seed=3)
    estimate = cached_signature(edges, 30, config)
    assert estimate.describe()["probes"] == 8
    assert not (tmp_path / "cache").exists()


def test_unknown_options_name_the_nearest():
    with pytest.raises(ConfigError, match=r"'signature.walk_lenght'.*'walk_length'"):
        SignatureConfig.of({"walk_lenght": 3})


def test_nothing_is_written_for_small_graphs(edges, monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "WORTH_CACHING", 1e8)
    cached_signature(edges, 30)
    assert not (tmp_path / "cache").exists()


PHYSICS = """
from geof.data import load
from geof.machine import peak_resident_bytes
from geof.signature import structural_signature
graph = load("Physics", cache=False).graph
values = structural_signature(graph.edge_index, graph.num_nodes, walk_length=4).values
print(values.shape[0], peak_resident_bytes())
"""


@pytest.mark.slow
@pytest.mark.skipif("GEOF_DATA" not in os.environ, reason="GEOF_DATA names no raw files")
def test_physics_fits_four_gigabytes():
    """Memory does not depend on the length of the walk, so a short one tells it as well."""
    done = subprocess.run(
        [sys.executable, "-c", PHYSICS], capture_output=True, text=True, check=True
    )
    nodes, peak = map(int, done.stdout.split())
    assert nodes == 34_493
    assert peak < 4e9
