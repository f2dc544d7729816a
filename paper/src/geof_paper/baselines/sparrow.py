r"""SPARROW: a contrastive method with one network, one projection and nothing else.

.. math::
    H = \operatorname{GNN}(X, A), \qquad Z = \operatorname{MLP}(H), \qquad
    \theta(a, b) = e^{\cos(a, b) / \tau}

A node's state and its projection are the positive pair, all other states and projections are
negatives:

.. math::
    \ell(h_i) = -\log \frac{\theta(h_i, z_i)}{\sum_j \theta(h_i, z_j)
    + \sum_{j \ne i} \theta(h_i, h_j)}, \qquad
    L = \frac{1}{2n} \sum_i \ell(h_i) + \ell(z_i),

:math:`\ell(z_i)` with the roles exchanged. With :math:`C = [H; Z]` both denominators are sums over
all rows of :math:`C` but the own one, which :mod:`geof_paper.baselines.contrast` takes in blocks.

Reference: Lin, Lyu, Cai, Wang, Wang, Yang, "Simplified Graph Contrastive Learning Model Without
Augmentation", TKDE 37(10), 2025.

Evidence, part by part; no code or full text of SPARROW was found, so nothing here can be said to
differ from it, and ``negatives`` and ``stop_gradient`` are the ablations the doubt calls for:

- From the abstract: one encoder, one projection head, the positive pair, the negatives, and no
  augmentation.
- From the public code of GRACE (Zhu et al., 2020, Apache licence), whose two views are replaced by
  :math:`H` and :math:`Z`: the form of the loss, the encoder (:math:`F \to 2d \to d`), the
  projection (:math:`d \to d \to d` with ELU) and all defaults. Numbers of that code on a small
  graph are stored in ``test_sparrow.py``.
- **Reconstructed**: that these belong together, and everything about graphs.

The probe is the engine's linear softmax readout, trained with Adam and weight decay on frozen
states, epoch chosen on validation, where the literature takes one-vs-rest logistic regression of
L2-normalised :math:`H`; ours gets :math:`H` at length :math:`\sqrt d` with standardised columns
(``scale_states``), the same directions on a scale on which it trains in few epochs. ``anchors``
draws that many nodes per step and takes the loss among them alone, as if they were all. Graphs: the
pairs are :math:`(g, \operatorname{MLP}(g))` of sum-pooled states of all layers within a batch,
which should have 128 graphs or more, and the MLP of the shared readout is the probe.

A weakness of the reconstruction: where features have much in common (their mean is larger than what
tells them apart), training first makes all states alike, where the loss is :math:`\log(2n - 1)`,
and may stay there for hundreds of steps.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool

from geof.methods.interface import GraphInputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn.settings import StepOutputs
from geof.options import Count, Probability, checked
from geof_paper.baselines.contrast import (
    LEAST_TEMPERATURE,
    exp_row_sums,
    exp_self_sums,
    sample_rows,
    unit_rows,
)
from geof_paper.baselines.trunk import Activation, ContrastiveMethod, Convolution
from geof_paper.presets import PRESETS

Negatives: TypeAlias = Literal["all", "across"]
StopGradient: TypeAlias = Literal["none", "states", "projections"]


class SPARROW(ContrastiveMethod):
    r"""A network that learns to tell nodes, or graphs, apart before it sees labels.

    Args:
        in_channels: Width of the features.
        task: Nodes are contrasted for nodes and links, graphs for graphs.
        hidden_channels: :math:`d`, width of the last layer.
        num_layers: Depth. GCN layers before the last are :math:`2d` wide, GIN layers :math:`d`.
        conv: ``"gcn"``, or ``"gin"``, made for graph classification.
        activation: Of GCN layers, ``"relu"`` or ``"prelu"``.
        dropout: Between layers.
        temperature: :math:`\tau`, at least 0.05.
        negatives: ``"all"``, or ``"across"`` for :math:`\theta(h, z)` alone, without pairs of two
            states or of two projections.
        stop_gradient: Which side of the pairs is taken as given: ``"none"``, ``"states"`` or
            ``"projections"``; the latter leaves the projection as it was drawn.
        anchors: Nodes (graphs) drawn per step of the pretext; ``None`` for all.
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
        hidden_channels: Count = 256,
        num_layers: Count = 2,
        conv: Convolution = "gcn",
        activation: Activation = "prelu",
        dropout: Probability = 0.0,
        temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] = 0.9,
        negatives: Negatives = "all",
        stop_gradient: StopGradient = "none",
        anchors: Count | None = None,
        scale_states: bool | None = None,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        outputs: StepOutputs | None = None,
    ) -> None:
        before = hidden_channels * (2 if conv == "gcn" else 1)
        super().__init__(
            [in_channels, *[before] * (num_layers - 1), hidden_channels],
            task,
            conv=conv,
            activation=activation,
            dropout=dropout,
            outputs=outputs,
            scale_states=scale_states,
            scale_features=scale_features,
            feature_dropout=feature_dropout,
        )
        self.task, self.anchors, self.temperature = task, anchors, temperature
        self.negatives, self.stop_gradient = negatives, stop_gradient
        width = self.out_channels
        self.project = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, width))

    def pretext_loss(self, inputs: GraphInputs) -> Tensor:
        """Return the loss of states and their projections."""
        h = self.encode(inputs)
        self.probe_scale.follow(h)
        if self.task == "graph":
            h = global_add_pool(h, inputs.batch, inputs.num_graphs)
        chosen = sample_rows(h.size(0), self.anchors)
        h = h if chosen is None else h.index_select(0, chosen)
        z = self.project(h)
        return pair_loss(
            h.detach() if self.stop_gradient == "states" else h,
            z.detach() if self.stop_gradient == "projections" else z,
            self.temperature,
            negatives=self.negatives,
        )


def pair_loss(h: Tensor, z: Tensor, temperature: float, *, negatives: Negatives = "all") -> Tensor:
    r"""Return :math:`L`.

    Args:
        h: ``(n, d)``, states.
        z: ``(n, d)``, their projections.
        temperature: :math:`\tau`.
        negatives: Whether ``"all"`` others are negatives or only those ``"across"``.
    """
    h, z = unit_rows(h), unit_rows(z)
    agreement = (h * z).sum(-1).mean() / temperature
    if negatives == "all":
        sums = exp_self_sums(torch.cat([h, z]), temperature, with_self=False)
    else:
        sums = torch.cat([exp_row_sums(h, z, temperature), exp_row_sums(z, h, temperature)])
    return sums.log().mean() - agreement


register(Method("sparrow", SPARROW, presets=PRESETS / "sparrow", revision=2))
