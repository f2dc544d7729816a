from __future__ import annotations

import pytest
import torch

from geof import GraphReadout, LinkReadout, NodeReadout
from geof.errors import ConfigError, DataError, DeviceError, DtypeError, ShapeError


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


def test_graph_readout_can_tell_the_size(random_state):
    h, readout = random_state(0).normal(5, 4), GraphReadout(4, 3, pool="sum").double()
    batch = torch.tensor([0, 0, 0, 1, 1])
    pooled = torch.stack([h[:3].sum(0), h[3:].sum(0)])
    torch.testing.assert_close(readout(h, batch, 2), readout.mlp(pooled))


def test_graph_readout_normalises_over_the_batch(random_state):
    h, readout = random_state(0).normal(9, 4), GraphReadout(4, 3, batch_norm=True).double()
    batch = torch.arange(9) // 3
    pooled = h.view(3, 3, 4).mean(1)
    scale = (pooled.var(0, unbiased=False) + readout.norm.eps).sqrt()
    wanted = readout.mlp((pooled - pooled.mean(0)) / scale)
    torch.testing.assert_close(readout(h, batch, 3), wanted)
    readout.norm.running_mean.fill_(5)
    readout.reset_parameters()
    assert float(readout.norm.running_mean.abs().max()) == 0


def test_link_readout_scales_the_states_it_is_asked_to(random_state):
    h, readout = random_state(0).normal(6, 4), LinkReadout(4, normalise=True).double()
    pairs = torch.tensor([[0, 1], [3, 2]])
    plain = LinkReadout(4).double()
    plain.load_state_dict(readout.state_dict())
    scaled = 2 * h / h.norm(dim=1, keepdim=True)
    torch.testing.assert_close(readout(h, pairs), plain(scaled, pairs))
    torch.testing.assert_close(readout(7 * h, pairs), readout(h, pairs))


@pytest.mark.parametrize("kind", [NodeReadout, GraphReadout, LinkReadout])
def test_dropout_acts_in_training_only(kind, random_state):
    torch.manual_seed(0)  # with few units alive, two draws can be alike
    h = random_state(0).normal(40, 8)
    sizes = (8,) if kind is LinkReadout else (8, 3)
    more = (torch.tensor([[0, 1], [2, 3]]),) if kind is LinkReadout else ()
    plain, dropping = kind(*sizes).double(), kind(*sizes, dropout=0.5).double()
    for mine, given in zip(dropping.parameters(), plain.parameters(), strict=True):
        mine.data.copy_(given.data)
    assert torch.equal(dropping.eval()(h, *more), plain(h, *more))
    dropping.train()
    assert not torch.equal(dropping(h, *more), dropping(h, *more))


def test_bad_arguments(random_state):
    with pytest.raises(ConfigError, match="'pool'"):
        GraphReadout(4, 3, pool="max")
    for kind, sizes in ((NodeReadout, (4, 3)), (GraphReadout, (4, 3)), (LinkReadout, (4,))):
        with pytest.raises(ConfigError, match="'dropout'"):
            kind(*sizes, dropout=1.0)
    h, readout = random_state(0).normal(6, 4), LinkReadout(4).double()
    with pytest.raises(ShapeError, match="'pairs' to have shape"):
        readout(h, torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(DataError, match="from 0 to 5"):
        readout(h, torch.tensor([[0], [6]]))


H = torch.linspace(-1, 1, 72).view(9, 8)
NODES = torch.zeros(9, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: NodeReadout(4, 3)(H), ShapeError, r"'h' to have shape \(num_nodes, 4\)"),
        (lambda: NodeReadout(8, 3)(H.double()), DtypeError, "'h'.*float32"),
        (lambda: NodeReadout(8, 3)(H.tolist()), DtypeError, "'h'.*got list"),
        (lambda: NodeReadout(8, 3)(H.to("meta")), DeviceError, "'h' on the model's device"),
        (lambda: GraphReadout(4, 3)(H), ShapeError, "'h'"),
        (lambda: GraphReadout(8, 3)(H, NODES[:4]), ShapeError, r"'batch' to have shape \(9,\)"),
        (lambda: GraphReadout(8, 3)(H, NODES.float()), ShapeError, "'batch'.*int64"),
        (lambda: GraphReadout(8, 3)(H, NODES[:, None]), ShapeError, "'batch'"),
        (lambda: GraphReadout(8, 3)(H, NODES.tolist()), DtypeError, "'batch'.*got list"),
        (lambda: GraphReadout(8, 3)(H, NODES - 1), DataError, "from 0 .got -1 to -1"),
        (lambda: GraphReadout(8, 3)(H, NODES + 5, 2), DataError, "from 0 to 1 .got 5 to 5"),
        (lambda: GraphReadout(8, 3)(H, NODES, -1), ConfigError, "'num_graphs'"),
        (lambda: LinkReadout(4)(H, NODES.view(1, 9)), ShapeError, "'h'"),
        (lambda: LinkReadout(8)(H, torch.zeros(2, 3)), DtypeError, "'pairs'.*float32"),
        (lambda: LinkReadout(8)(H, torch.zeros(2, 3).bool()), DtypeError, "'pairs'.*bool"),
        (lambda: LinkReadout(8)(H, [[0], [1]]), DtypeError, "'pairs'.*got list"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_readouts_run_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert NodeReadout(8, 3)(H.bfloat16()).dtype == torch.bfloat16
        assert GraphReadout(8, 3)(H, NODES).dtype == torch.bfloat16
