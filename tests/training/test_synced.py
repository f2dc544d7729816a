"""Normalisation over several processes, and what of a sample one of them works on."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from geof.data.batching import NeighbourSampler
from geof.errors import ConfigError, DataError
from geof.nn.refinement import NodeNorm
from geof.training.distributed import TorchRanks
from geof.training.ranks import ALONE, Share
from geof.training.synced import SyncedNorm, synchronised, upstream


@pytest.fixture
def ranks():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield TorchRanks(store, 0, 1)
    dist.destroy_process_group()


def rows(count: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = 3 + 2 * torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return drawn.requires_grad_()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_rows_that_several_have_count_once(ranks, momentum):
    norm = NodeNorm(4, momentum=momentum).double()
    norm.weight.data.uniform_(0.5, 1.5)
    plain, network = copy.deepcopy(norm), nn.Sequential(nn.Identity(), norm)
    (synced,) = synchronised(network, ranks._line)
    assert network[1] is synced
    assert list(network.state_dict()) == [f"1.{name}" for name in plain.state_dict()]
    one, twice = rows(), rows()
    again = torch.tensor([0, 1, 2, 3, 4, 5, 6, 2, 4])
    synced.weights = 1.0 / torch.bincount(again)[again]
    factor = torch.linspace(-1, 2, 28, dtype=torch.float64).view(7, 4)
    for _ in range(2):
        wanted, found = plain(one), synced(twice[again])
        torch.testing.assert_close(found, wanted[again])
    (wanted * factor).sum().backward()
    (found * (factor[again] * synced.weights[:, None])).sum().backward()
    torch.testing.assert_close(twice.grad, one.grad)
    for parameter, other in zip(synced.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)
    for name, value in plain.named_buffers():
        torch.testing.assert_close(dict(synced.named_buffers())[name], value)
    network.eval()
    torch.testing.assert_close(network(one), plain.eval()(one))


def test_one_row_takes_running_averages_or_is_refused(ranks):
    node, plain = SyncedNorm(NodeNorm(4), ranks._line), SyncedNorm(nn.BatchNorm1d(4), ranks._line)
    alone = rows(1).float()
    torch.testing.assert_close(node(alone), NodeNorm(4)(alone))
    with pytest.raises(DataError, match="more than one row"):
        plain(alone)


def test_rows_that_are_no_nodes_are_refused(ranks):
    norm = SyncedNorm(NodeNorm(4), ranks._line)
    norm.weights = torch.ones(6)
    with pytest.raises(ConfigError, match="7 rows of 6 nodes"):
        norm(rows().float())


def test_what_seeds_depend_on_is_kept_and_no_more():
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 60, (2, 90), generator=generator)
    sampler = NeighbourSampler(edges, 60, [2, 2], batch_size=9, edge_ids=True)
    batch = next(sampler.batches(0))
    seeds = torch.arange(3, 6)
    wanted = set(seeds.tolist())
    while True:
        more = {int(s) for s, t in batch.edge_index.t() if int(t) in wanted} | wanted
        if more == wanted:
            break
        wanted = more
    kept = upstream(batch, seeds)
    assert kept[:3].tolist() == seeds.tolist()
    assert len(kept) == len(wanted) < batch.num_nodes
    assert set(kept.tolist()) == wanted


def test_a_part_of_a_sample_has_its_own_edges(ranks):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 60, (2, 90), generator=generator)
    sampler = NeighbourSampler(edges, 60, [2, 2], batch_size=9, edge_ids=True)
    batch = next(sampler.batches(0))
    own, share = ranks.around(batch, torch.arange(3, 6), Share(3, 6, 9))
    assert own.batch_size == 3
    assert torch.equal(edges[:, own.e_id], own.n_id[own.edge_index])
    assert torch.equal(batch.n_id[share.names], own.n_id)
    inside = torch.isin(batch.edge_index[1], share.names)
    assert torch.equal(batch.e_id[inside], own.e_id)
    assert ALONE.around(batch, torch.arange(3, 6), share) == (batch, share)


@pytest.mark.parametrize(("total", "count"), [(9, 2), (7, 3), (2, 3), (1, 2), (64, 64)])
def test_every_example_is_the_share_of_one(ranks, total, count):
    seen, examples = [], torch.arange(total)
    for rank in range(count):
        ranks.rank, ranks.count = rank, count
        share = ranks.share(total)
        assert len(share.of(examples)) > 0
        seen += share.of(examples).tolist() if share.counts else []
    assert seen == examples.tolist()
