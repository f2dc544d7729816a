r"""Wedges of a graph, sampled, and what embeddings say of them.

A wedge :math:`(u, v, w)` has two edges :math:`u - v - w` with :math:`u \ne w`. It is *closed* (a
triangle) if :math:`u - w` is an edge too, otherwise *open*. With the Fermi-Dirac probability
:math:`p_{ab} = \sigma((r - \|z_a - z_b\|^2) / t)` of an edge, a triple of nodes is

.. math::
    P(\text{no wedge}) = 1 - p_{uv} p_{vw}, \qquad
    P(\text{open}) = p_{uv} p_{vw} (1 - p_{uw}), \qquad
    P(\text{closed}) = p_{uv} p_{vw} p_{uw},

and the loss is the mean of :math:`-\log(P(\text{what it is}) + \epsilon)` over real wedges and as
many corrupted ones, whose first two nodes are replaced by two without an edge: no wedges.

Reference: Sun et al., "Motif-aware Riemannian Graph Neural Network with Generative-Contrastive
Learning", AAAI 2024. Evidence: probabilities, labels and constants from source, values compared
with numbers that the public code gives. Difference: the public code lists all wedges in a Python
loop over :math:`\sum_i d_i^2`; here they are drawn uniformly, and closure is looked up among sorted
keys, so cost and memory are linear in the number of edges. Corrupted wedges are drawn anew in every
pass, too; those whose new nodes have an edge, which the public code never draws, are left out.

:func:`pair_loss` grades edges and as many pairs without one in the same way, for the stage of the
public code that predicts links.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.kernels import Neighbourhoods
from geof.methods.interface import GraphInputs

RADIUS, TEMPERATURE = 2.0, 1.0
"""The published :math:`r` and :math:`t`."""
EPSILON = 1e-5
"""What keeps the logarithm finite, as published."""
NO_WEDGE, OPEN, CLOSED = range(3)


@dataclass(frozen=True)
class Wedges:
    """All wedges of a graph, none of them written out.

    Centres are targets and ends are sources, so that in a sampled neighbourhood, whose edges have
    one direction, a node's wedges are among what it hears.

    Attributes:
        source: ``(E,)`` without self-loops, in the order of ``keys``.
        keys: ``(E,)``, ``target * n + source``, ascending.
        degree: ``(n,)``.
        num_nodes: ``n``.
    """

    source: Tensor
    keys: Tensor
    degree: Tensor
    num_nodes: int

    @classmethod
    def of(cls, inputs: GraphInputs) -> Wedges:
        """Return the wedges of a graph, prepared once."""
        return inputs.cached(cls._make, lambda: cls._make(inputs.edges))

    @classmethod
    def _make(cls, edges: Neighbourhoods) -> Wedges:
        proper = edges.source != edges.target
        source, target = edges.source[proper], edges.target[proper]
        degree = torch.bincount(target, minlength=edges.num_nodes)
        keys = target * edges.num_nodes + source  # sorted, as the edges are
        return cls(source, keys, degree, edges.num_nodes)

    @property
    def count(self) -> int:
        r""":math:`\sum_i d_i (d_i - 1)`, both orders of the ends counted."""
        return int((self.degree * (self.degree - 1)).sum())

    def sample(self, most: int) -> Tensor:
        """Return ``(3, min(E, most))`` wedges, every one as likely as any other.

        They are numbered: those of the first centre, then those of the second. A random number is
        a centre, its first end and its second end.
        """
        total = self.count
        size = min(len(self.source), most) if total else 0
        number = torch.randint(max(total, 1), (size,), device=self.source.device)
        after = (self.degree * (self.degree - 1)).cumsum(0)
        centre = torch.searchsorted(after, number, right=True)
        others = self.degree[centre] - 1
        rank = number - (after[centre] - (others + 1) * others)
        first, second = rank // others, rank % others
        second = second + (second >= first).long()  # any but the first
        start = (self.degree.cumsum(0) - self.degree)[centre]
        return torch.stack([self.source[start + first], centre, self.source[start + second]])

    def edges(self, most: int) -> Tensor:
        """Return ``(2, min(E, most))`` edges, drawn where there are more."""
        keys = self.keys
        if len(keys) > most:
            keys = keys[torch.randint(len(keys), (most,), device=keys.device)]
        return torch.stack([keys % self.num_nodes, keys // self.num_nodes])

    def strangers(self, count: int) -> tuple[Tensor, Tensor]:
        """Return ``(2, count)`` drawn nodes, and which of the pairs have no edge."""
        pairs = torch.randint(self.num_nodes, (2, count), device=self.source.device)
        linked = self._has(*pairs) | self._has(*pairs.flip(0)) if len(self.keys) else False
        return pairs, ~(linked | (pairs[0] == pairs[1]))

    def are_closed(self, wedges: Tensor) -> Tensor:
        """Return which wedges have an edge between their ends, in either direction."""
        u, w = wedges[0], wedges[2]
        return self._has(u, w) | self._has(w, u)

    def _has(self, source: Tensor, target: Tensor) -> Tensor:
        wanted = target * self.num_nodes + source
        place = torch.searchsorted(self.keys, wanted).clamp_max(max(len(self.keys) - 1, 0))
        return self.keys[place] == wanted


def motif_loss(embedding: Tensor, wedges: Wedges, *, most: int) -> Tensor:
    """Return the loss of sampled wedges and about as many corrupted ones; zero without wedges."""
    real = wedges.sample(most)
    if real.size(1) == 0:
        return embedding.new_zeros(())
    replaced, apart = wedges.strangers(real.size(1))
    corrupted = torch.cat([replaced, real[2:]])[:, apart]
    closed = wedges.are_closed(real)
    return graded_wedges(embedding, real, closed, corrupted)


def graded_wedges(embedding: Tensor, real: Tensor, closed: Tensor, corrupted: Tensor) -> Tensor:
    """Return the mean loss of ``(3, T)`` triples: wedges, open or closed, and corrupted ones."""
    labels = torch.where(closed, CLOSED, OPEN)
    labels = torch.cat([labels, labels.new_full((corrupted.size(1),), NO_WEDGE)])
    probabilities = wedge_probabilities(embedding, torch.cat([real, corrupted], dim=1))
    return F.nll_loss((probabilities + EPSILON).log(), labels)


def pair_loss(embedding: Tensor, wedges: Wedges, *, most: int, largest: float) -> Tensor:
    """Return the loss of edges and of drawn pairs without one; zero where either is missing.

    Args:
        embedding: ``(n, d)``.
        wedges: Of the graph whose edges are predicted.
        most: Edges to draw where there are more.
        largest: Logits are graded as if within plus and minus this.
    """
    edges = wedges.edges(most)
    pairs, apart = wedges.strangers(edges.size(1))
    if not apart.any():
        return embedding.new_zeros(())
    return graded_pairs(embedding, edges, pairs[:, apart], largest)


def graded_pairs(embedding: Tensor, edges: Tensor, pairs: Tensor, largest: float) -> Tensor:
    """Return the mean loss of ``(2, P)`` edges plus that of ``(2, Q)`` pairs without one."""
    present, absent = (
        _edge_logit(*(embedding.index_select(0, end) for end in ends)).clamp(-largest, largest)
        for ends in (edges, pairs)
    )
    return F.softplus(-present).mean() + F.softplus(absent).mean()


def wedge_probabilities(embedding: Tensor, triples: Tensor) -> Tensor:
    """Return ``(T, 3)``: no wedge, open, closed."""
    u, v, w = (embedding.index_select(0, nodes) for nodes in triples)
    two, third = _edge(u, v) * _edge(v, w), _edge(u, w)
    return torch.stack([1 - two, two * (1 - third), two * third], dim=-1)


def _edge(a: Tensor, b: Tensor) -> Tensor:
    return torch.sigmoid(_edge_logit(a, b))


def _edge_logit(a: Tensor, b: Tensor) -> Tensor:
    return (RADIUS - (a - b).square().sum(-1)) / TEMPERATURE
