from __future__ import annotations

import torch

from geof import GraphReadout, LinkReadout, NodeReadout


def test_node_readout_is_linear(random_state):
    """Eq. (13)."""
    h, readout = random_state(0).normal(5, 4), NodeReadout(4, 3).double()
    torch.testing.assert_close(readout(h), h @ readout.weight.T + readout.bias)


def test_graph_readout_pools_the_mean(random_state):
    """Eq. (14), an empty graph in the middle included."""
    h, readout = random_state(0).normal(5, 4), GraphReadout(4, 3, 7).double()
    batch = torch.tensor([0, 0, 0, 2, 2])
    pooled = torch.stack([h[:3].mean(0), torch.zeros(4).double(), h[3:].mean(0)])
    torch.testing.assert_close(readout(h, batch, 3), readout.mlp(pooled))
    torch.testing.assert_close(readout(h), readout.mlp(h.mean(0, keepdim=True)))


def test_link_readout_is_symmetric(random_state):
    """Eq. (15)."""
    h, readout = random_state(0).normal(6, 4), LinkReadout(4).double()
    pairs = torch.tensor([[0, 1, 5], [3, 2, 5]])
    logits = readout(h, pairs)
    assert torch.equal(logits, readout(h, pairs.flip(0)))
    u, v = h[1], h[2]
    single = readout.mlp(torch.cat([u * v, (u - v).abs()]))
    torch.testing.assert_close(logits[1:2], single)
