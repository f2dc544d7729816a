r"""ML2-GCL: neighbours that explain a node's features are its positive pairs.

Weights :math:`W_{ij}` say how a node's features are put together from its neighbours' (locally
linear embedding, closed form, see :mod:`geof_paper.baselines.lle`); they are computed once. A GCN
gives :math:`z_i`, and with

.. math::
    S_{ij} = e^{\cos(z_i, z_j) / \tau}, \qquad M_i = \{j : W_{ij} = 0\}

the pretext loss is

.. math::
    p_i = \sum_j W_{ij} S_{ij} + 10^{-8}, \qquad
    q_i = \frac{1}{|M_i|} \sum_{j \in M_i} S_{ij} + 10^{-8}, \qquad
    L = -\frac{1}{n} \sum_i \log \frac{p_i}{p_i + q_i}.

:math:`j = i` and neighbours whose weight was clipped to zero are among the negatives :math:`M_i`,
as published. No labels, no augmentation, no projection.

Reference: Liang et al., "ML2-GCL: Manifold Learning Inspired Lightweight Graph Contrastive
Learning", ICML 2025.

Evidence, part by part (the public code has no licence, so it was read and compared line by line; no
numbers of it are stored. Its convolution is PyG's ``GCNConv``, with which a test compares ours):

- From source: weights :math:`W`, loss, network and its one PReLU, features (one where positive),
  options of the pretext.
- From the paper: nothing beyond that; its equations and code are all we saw.
- Reconstructed: links and graphs. The paper has no graph classification.

Differences from the published code:

- No :math:`n \times n` matrix: :math:`\sum_{j \in M_i} = \sum_j - \sum_{W_{ij} > 0}`, the first
  in blocks of rows (:mod:`geof_paper.baselines.contrast`), the second over edges: the same value.
- Nodes without neighbours have no positive pair and are left out of the mean; published, they add
  a constant near 18 each.
- Weights below :math:`10^{-8}` are zero: they are the rounding of zero, and whether a weight is
  zero decides which pairs are negative.
- ``anchors`` draws that many nodes whose terms are summed in a step, and independently as many
  candidates for their negatives; :math:`q_i` is then the mean over the candidates in :math:`M_i`.
- The last pretext epoch counts. The published early stopping never updates its best loss, and its
  states are those before the last step.
- The probe is the engine's linear softmax readout, trained with Adam and weight decay on frozen
  states, epoch chosen on validation; published is one-vs-rest logistic regression (liblinear) with
  its strength chosen on validation. The loss sees directions alone, so the states of nodes are
  handed on at length :math:`\sqrt d` with standardised columns (``scale_states``), on which that
  probe trains in few epochs.
- Links: the weights are those of the training graph, and the shared decoder is the probe. Graphs:
  weights within each graph, negatives from all nodes of the batch, and the shared readout pools all
  layers' states; its MLP is the probe.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from geof.kernels import Neighbourhoods
from geof.methods.interface import GraphInputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn.refinement import drop_features, scale_rows
from geof.nn.settings import StepOutputs
from geof.options import Count, Probability, checked
from geof_paper.baselines.contrast import (
    LEAST_TEMPERATURE,
    exp_row_sums,
    exp_self_sums,
    sample_rows,
    unit_rows,
)
from geof_paper.baselines.edge_products import edge_dots
from geof_paper.baselines.lle import lle_weights
from geof_paper.baselines.trunk import ContrastiveMethod, Convolution
from geof_paper.presets import PRESETS

TINY = 1e-8


class ML2GCL(ContrastiveMethod):
    r"""A network that learns from locally linear neighbours before it sees labels.

    Args:
        in_channels: Width of the features.
        task: Decides about ``outputs`` and ``scale_states``.
        hidden_channels: Width.
        num_layers: Depth.
        conv: ``"gcn"`` as published, or ``"gin"``, made for graph classification.
        dropout: Between layers.
        temperature: :math:`\tau`, at least 0.05.
        ridge: :math:`\epsilon` of the weights; at least 0.01 where features are one-hot, whose
            Gram matrices are singular.
        binarise: Whether features are one where they are positive and zero elsewhere, for the
            weights and for the network, as published for words; ``False`` suits features whose
            values matter.
        anchors: Nodes drawn per step of the pretext, and as many candidates for negatives; ``None``
            for all, as published.
        scale_states: Whether states are handed on at length :math:`\sqrt d` with standardised
            columns; ``None`` does so for nodes and links, not for graphs, whose sizes and degrees
            the pooled sum tells.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
        outputs: ``"last"`` layer's states or those of ``"all"`` layers side by side; ``None`` for
            all where the task is about graphs, the last otherwise.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        task: TaskKind = "node",
        *,
        hidden_channels: Count = 500,
        num_layers: Count = 2,
        conv: Convolution = "gcn",
        dropout: Probability = 0.5,
        temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] = 0.7,
        ridge: Annotated[float, Field(ge=1e-06)] = 0.01,
        binarise: bool = True,
        anchors: Count | None = None,
        scale_states: bool | None = None,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        outputs: StepOutputs | None = None,
    ) -> None:
        super().__init__(
            [in_channels, *[hidden_channels] * num_layers],
            task,
            conv=conv,
            activation="prelu",
            dropout=dropout,
            outputs=outputs,
            scale_states=scale_states,
            scale_features=scale_features,
            feature_dropout=feature_dropout,
        )
        self.temperature, self.ridge, self.binarise = temperature, ridge, binarise
        self.anchors = anchors

    def pretext_loss(self, inputs: GraphInputs) -> Tensor:
        """Return the loss of the weighted pairs."""
        weight = lle_weights(inputs, ridge=self.ridge, binarise=self.binarise)
        z = self.encode(inputs)
        self.probe_scale.follow(z)
        return neighbour_loss(z, inputs.edges, weight, self.temperature, anchors=self.anchors)

    def features(self, inputs: GraphInputs) -> Tensor:
        """Return the features, made binary once per graph."""
        if not self.binarise:
            return super().features(inputs)

        def build() -> Tensor:
            x = _binary(inputs.x)
            return scale_rows(x) if self.scale_features else x

        x = inputs.cached((ML2GCL, self.scale_features), build)
        return drop_features(x, self.feature_dropout, training=self.training)


def neighbour_loss(
    z: Tensor,
    edges: Neighbourhoods,
    weight: Tensor,
    temperature: float,
    *,
    anchors: int | None = None,
) -> Tensor:
    r"""Return :math:`L`, the mean over nodes with neighbours; zero if there is none.

    Args:
        z: ``(n, d)``.
        edges: Where weights may be positive.
        weight: ``(E,)``, :math:`W`, in the order of ``edges``.
        temperature: :math:`\tau`.
        anchors: Nodes to draw, and candidates for their negatives; ``None`` for all.
    """
    unit, weight = unit_rows(z), weight.to(z.dtype)
    similarity = (edge_dots(edges, unit, unit) / temperature).exp()
    positive = edges.sum(weight * similarity) + TINY
    rows = edges.target[weight > 0].unique()
    if len(rows) == 0:
        return z.sum() * 0.0
    chosen = sample_rows(len(rows), anchors)
    rows = rows if chosen is None else rows[chosen]
    negative = _mean_negative(unit, edges, weight > 0, similarity, temperature, rows, anchors)
    p, q = positive.index_select(0, rows), negative + TINY
    return ((p + q).log() - p.log()).mean()


def _mean_negative(
    unit: Tensor,
    edges: Neighbourhoods,
    is_positive: Tensor,
    similarity: Tensor,
    temperature: float,
    rows: Tensor,
    anchors: int | None,
) -> Tensor:
    r"""Return the mean of :math:`S_{ij}` over :math:`j \in M_i` for the rows :math:`i`.

    It is the sum over all candidates less that over the positive ones among them.
    """
    nodes = unit.size(0)
    candidates = sample_rows(nodes, anchors)
    if candidates is None:
        total = exp_self_sums(unit, temperature, with_self=True).index_select(0, rows)
    else:
        total = exp_row_sums(
            unit.index_select(0, rows), unit.index_select(0, candidates), temperature
        )
        drawn = torch.zeros(nodes, dtype=torch.bool, device=unit.device)
        drawn[candidates] = True
        is_positive = is_positive & drawn[edges.source]
    apart = is_positive.to(unit.dtype)
    count = (nodes if candidates is None else len(candidates)) - edges.sum(apart)[rows]
    total = total - edges.sum(apart * similarity).index_select(0, rows)
    return total.clamp_min(0.0) / count.clamp_min(1.0)


def _binary(x: Tensor) -> Tensor:
    """Return one where ``x`` is positive, zero elsewhere, in the same layout."""
    if x.layout == torch.strided:
        return (x > 0).to(x.dtype)
    return torch.sparse_csr_tensor(
        x.crow_indices(),
        x.col_indices(),
        (x.values() > 0).to(x.dtype),
        x.shape,
        check_invariants=False,
    )


register(Method("ml2-gcl", ML2GCL, presets=PRESETS / "ml2-gcl", revision=2))
