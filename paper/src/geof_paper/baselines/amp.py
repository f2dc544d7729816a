r"""AMP: adaptive message passing, which learns how deep to be and which messages to let through.

Layers are numbered :math:`\ell = 1, \dots, \hat L`. The first does not exchange messages; each
further one filters what every node says, entry by entry:

.. math::
    h_v^1 &= W_{in} x_v + b, \qquad
    F_v^\ell = \sigma(\operatorname{MLP}_\ell(h_v^\ell)) \in (0, 1)^d
    \;\text{ or }\; \sigma(\operatorname{MLP}_\ell(x_v)), \tag{a} \\
    \text{GCN:}\quad h^{\ell+1} &= \tanh\big(\hat A\,(F^\ell \odot h^\ell W_\ell) + b_\ell\big), \\
    \text{GIN:}\quad h^{\ell+1} &= \tanh\big(W_\ell ((1 + \epsilon_\ell) h^\ell
    + A (F^\ell \odot h^\ell)) + b_\ell\big) \tag{b}

with :math:`\hat A = \hat D^{-1/2} (A + I) \hat D^{-1/2}`. The depth has a distribution. Its mass of
layer :math:`\ell` is that of the number :math:`\ell - 1` under a Poisson law of rate
:math:`\lambda`, a discretised folded normal law, or a mixture of two of the latter:

.. math::
    \pi(\ell) = \Phi_F(\ell) - \Phi_F(\ell - 1), \qquad \Phi_F(x) = \tfrac12 \Big[
    \operatorname{erf}\frac{x - \mu}{\sigma \sqrt 2}
    + \operatorname{erf}\frac{x + \mu}{\sigma \sqrt 2} \Big], \qquad
    \sigma = \operatorname{softplus}(s) + \tfrac12. \tag{c}

:math:`\hat L` is the least depth with :math:`\sum_{\ell \le \hat L} \pi(\ell) \ge 0.99`, and
:math:`q(\ell) \propto \pi(\ell) + 10^{-3}` on :math:`1, \dots, \hat L`. Only these layers are
computed. :math:`\hat L` has no gradient; :math:`\mu, s` learn through the probabilities. Every
layer has its own readout with outputs :math:`y^\ell`. Training minimises the negative evidence
bound over :math:`n` items,

.. math::
    L = \sum_\ell q(\ell) \Big[ L_{task}(y^\ell) + \frac1n \sum_{k \le \ell}
    \frac{\|\theta_k\|^2}{2 \sigma_\theta^2} - \frac1n \log p(\ell) \Big] - \frac1n H(q), \tag{d}

and what is predicted is the mixture of the layers' distributions (sigmoid for links),

.. math::
    \sum_\ell q(\ell) \operatorname{softmax}(y^\ell). \tag{e}

In (d) :math:`\theta_k` are the weights of layer :math:`k`, and those of readout :math:`\ell`.

Reference: Errica et al., "Adaptive Message Passing", ICML 2025. Evidence: (a) to (e), the readouts
of nodes and graphs and the values of the presets from the paper; the floor of :math:`\sigma`, the
addition of :math:`10^{-3}` and :math:`\tanh` on real data from a description of the published code,
whose licence keeps us from using more of it. Ours are the link task, where :math:`n` comes from,
and the width of readouts with more than two layers.

Differences from the public code: it mixes raw outputs (here ``readout.mixture="outputs"``; the
paper and the default mix distributions), puts a LeakyReLU on logits and has a readout of the raw
features; we have neither. It builds layers as they are needed and hands them to the optimiser; here
``max_depth`` layers are there from the start, and those beyond :math:`\hat L` are neither computed
nor stepped. :math:`\hat L` is a function of the parameters, so a resumed run has the same depth.
With ``readout.kind="shared"`` one readout gets the states mixed by :math:`q`, without (d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

from geof.errors import ConfigError
from geof.methods.interface import Encoding, GraphInputs, Outputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.readout import pair_features
from geof.options import (
    Count,
    Positive,
    Probability,
    checked,
)
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import adjacency, input_features, normalised_adjacency
from geof_paper.presets import PRESETS

Filter: TypeAlias = Literal["embeddings", "inputs", "none"]
DepthLaw: TypeAlias = Literal["folded-normal", "poisson", "mixture"]
Convolution: TypeAlias = Literal["gcn", "gin"]
Mixture: TypeAlias = Literal["distributions", "outputs"]


class AMP(nn.Module):
    r"""Adaptive message passing.

    Args:
        in_channels: Width of the features.
        signature_channels: Width of the signatures, read when ``use_signature``.
        hidden_channels: :math:`d`; published 8 to 64 for nodes.
        max_depth: Most layers; the learned depth is cut there.
        convolution: ``"gcn"`` or ``"gin"``.
        filter: What messages are filtered by: ``"embeddings"``, ``"inputs"`` or ``"none"``.
        depth_law: ``"folded-normal"``, ``"poisson"`` or ``"mixture"`` of two folded normals.
        depth: Where the depth starts: :math:`\mu` or :math:`\lambda`. The mixture starts at 1 and
            here.
        spread: Where :math:`s` of folded normals starts.
        quantile: What share of the law the computed layers hold.
        weight_prior: :math:`\sigma_\theta` of the normal prior of weights; ``None`` for none.
        depth_prior: Rate of a Poisson law :math:`p(\ell)`; ``None`` for an uninformative prior.
        observations: :math:`n`, the number of training items. ``None`` takes what a step sees:
            nodes, pairs or graphs, which is too few where a step sees only some of them.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
        use_signature: Whether the structural signatures join the input features, as walk
            probabilities do in the published graph tasks.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        signature_channels: int = 0,
        *,
        hidden_channels: Count = 64,
        max_depth: Count = 20,
        convolution: Convolution = "gcn",
        filter: Filter = "embeddings",
        depth_law: DepthLaw = "folded-normal",
        depth: Positive = 5.0,
        spread: float = 1.0,
        quantile: Annotated[float, Field(gt=0, lt=1)] = 0.99,
        weight_prior: Positive | None = None,
        depth_prior: Positive | None = None,
        observations: Count | None = None,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        use_signature: bool = False,
    ) -> None:
        super().__init__()
        self.weight_prior, self.depth_prior = weight_prior, depth_prior
        self.observations = observations
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.use_signature = use_signature
        self.out_channels = hidden_channels
        self.depths = DepthDistribution(
            max_depth, law=depth_law, depth=depth, spread=spread, quantile=quantile
        )
        self.first = SparseLinear(in_channels, hidden_channels)
        if use_signature:
            self.signature = nn.Linear(signature_channels, hidden_channels, bias=False)
        self.layers = nn.ModuleList(
            FilteredLayer(in_channels, hidden_channels, convolution, filter)
            for _ in range(max_depth - 1)
        )

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the mixture of all layers' states; layers and probabilities are its context."""
        q = self.depths()
        x = input_features(self, inputs)
        h = self.first(x)
        if self.use_signature:
            h = h + self.signature(inputs.signature)
        states = [h]
        for layer in self._computed(len(q)):
            states.append(layer(states[-1], x, inputs))
        mixed = q[0] * h
        for share, state in zip(q[1:], states[1:], strict=True):
            mixed = mixed + share * state
        return Encoding(mixed, context=Depths(states, q, self._prior(q), self.weight_prior))

    def _computed(self, depth: int) -> list[nn.Module]:
        """Return the layers after the first, down to a depth."""
        return list(self.layers)[: depth - 1]

    def _prior(self, q: Tensor) -> Prior:
        """Return the terms of (d) that divide by the number of items, of these parameters."""
        squares = None
        if self.weight_prior is not None:
            opening: list[nn.Module] = [self.first]
            if self.use_signature:
                opening.append(self.signature)
            squares = [squared_norm(*opening), *map(squared_norm, self._computed(len(q)))]
        return Prior(depth_loss(q, self.depth_prior), squares, self.observations)


class FilteredLayer(nn.Module):
    """A layer (b) with its filter (a).

    Args:
        in_channels: Width of the features.
        channels: Width of the states.
        convolution: ``"gcn"`` or ``"gin"``.
        filter: ``"embeddings"``, ``"inputs"`` or ``"none"``.
    """

    def __init__(
        self, in_channels: int, channels: int, convolution: Convolution, filter: Filter
    ) -> None:
        super().__init__()
        self.convolution, self.filtered_by = convolution, filter
        self.linear = nn.Linear(channels, channels)
        if convolution == "gin":
            self.epsilon = nn.Parameter(torch.zeros(()))
        if filter != "none":
            first = SparseLinear(in_channels if filter == "inputs" else channels, channels)
            self.filter = nn.Sequential(
                first, nn.Tanh(), nn.Linear(channels, channels), nn.Sigmoid()
            )

    def forward(self, h: Tensor, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Return the states of the next layer."""
        if self.convolution == "gcn":
            said = self._filtered(F.linear(h, self.linear.weight), h, x)
            heard = graph_product(inputs, normalised_adjacency, said) + self.linear.bias
        else:
            said = self._filtered(h, h, x)
            heard = self.linear((1 + self.epsilon) * h + graph_product(inputs, adjacency, said))
        return heard.tanh()

    def _filtered(self, message: Tensor, h: Tensor, x: Tensor) -> Tensor:
        if self.filtered_by == "none":
            return message
        share: Tensor = self.filter(x if self.filtered_by == "inputs" else h)
        return share * message


# The distribution of the depth.

FLOOR = 0.5
"""Least deviation of a folded normal law: it cannot collapse onto one layer."""

LEAST_SHARE = 1e-3
"""Added to every layer's mass, so that no logarithm of it is infinite."""


class DepthDistribution(nn.Module):
    r"""Learned probabilities :math:`q(\ell)` of the layers, (c).

    Args:
        max_depth: Most layers.
        law: ``"folded-normal"``, ``"poisson"`` or ``"mixture"``.
        depth: Where :math:`\mu` or :math:`\lambda` starts.
        spread: Where :math:`s` starts.
        quantile: What share of the law the layers hold.
    """

    def __init__(
        self, max_depth: int, *, law: DepthLaw, depth: float, spread: float, quantile: float
    ) -> None:
        super().__init__()
        self.max_depth, self.law, self.quantile = max_depth, law, quantile
        if law == "poisson":
            self.rate = nn.Parameter(torch.tensor(_inverse_softplus(depth)))
            return
        starts = [1.0, depth] if law == "mixture" else [depth]
        self.mean = nn.Parameter(torch.tensor(starts))
        self.spread = nn.Parameter(torch.full((len(starts),), float(spread)))
        if law == "mixture":
            self.share = nn.Parameter(torch.zeros(len(starts)))

    def forward(self) -> Tensor:
        """Return the probabilities of the layers in use, ``(depth,)``; they sum to one."""
        mass = self.mass()
        depth = least_depth(mass, self.quantile)
        kept = mass[:depth] + LEAST_SHARE
        return kept / kept.sum()

    def mass(self) -> Tensor:
        r"""Return :math:`\pi(\ell)` for every layer there is, ``(max_depth,)``."""
        if self.law == "poisson":
            places = torch.arange(self.max_depth).to(self.rate)
            return poisson_log_mass(places, F.softplus(self.rate)).exp()
        places = torch.arange(self.max_depth + 1).to(self.mean)
        deviation = (F.softplus(self.spread) + FLOOR).unsqueeze(-1)
        mass = folded_normal_cdf(places, self.mean.unsqueeze(-1), deviation).diff(dim=-1)
        return mass[0] if self.law == "folded-normal" else self.share.softmax(0) @ mass


def least_depth(mass: Tensor, quantile: float) -> int:
    """Return the least number of layers that hold a share of the law, or all there are."""
    reached = int((mass.detach().cumsum(0) < quantile).sum()) + 1
    return min(reached, len(mass))


def folded_normal_cdf(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    r"""Return :math:`\Phi_F(x)`, (c)."""
    scale = deviation * math.sqrt(2)
    return 0.5 * (((x - mean) / scale).erf() + ((x + mean) / scale).erf())


def poisson_log_mass(k: Tensor, rate: Tensor) -> Tensor:
    """Return the logarithm of the probability of ``k``."""
    return k * rate.log() - rate - torch.lgamma(k + 1)


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))


# What the evidence bound adds to the task's loss.


@dataclass(frozen=True)
class Prior:
    r"""Terms of (d) that are divided by :math:`n`.

    Attributes:
        depth: :math:`-\sum_\ell q(\ell) \log p(\ell) - H(q)`.
        squares: :math:`\|\theta_k\|^2` of each layer, or ``None`` without a prior of weights.
        observations: :math:`n` if it was told.
    """

    depth: Tensor
    squares: list[Tensor] | None
    observations: int | None


@dataclass(frozen=True)
class Depths:
    r"""What the readouts get.

    Attributes:
        states: :math:`h^1, h^2, ...`, as many as are in use.
        q: Their probabilities.
        prior: The method's own terms.
        weight_prior: :math:`\sigma_\theta`, the prior of the readouts' weights too.
    """

    states: list[Tensor]
    q: Tensor
    prior: Prior
    weight_prior: float | None

    def penalty(self, readouts: list[nn.Module], items: int) -> Tensor:
        """Return all terms of (d) beside the task's loss.

        Args:
            readouts: Those of the layers in use.
            items: How many items the step sees.
        """
        total = self.prior.depth
        if self.prior.squares is not None and self.weight_prior is not None:
            own = torch.stack(list(map(squared_norm, readouts)))
            shared = torch.stack(self.prior.squares).cumsum(0)  # a layer needs those below it
            total = total + (self.q * (own + shared)).sum() / (2 * self.weight_prior**2)
        return total / (self.prior.observations or max(items, 1))


def depth_loss(q: Tensor, rate: float | None) -> Tensor:
    r"""Return :math:`-\sum_\ell q(\ell) \log p(\ell) - H(q)`; an uninformative prior adds 0."""
    loss = (q * q.log()).sum()
    if rate is None:
        return loss
    places = torch.arange(len(q)).to(q)
    return loss - (q * poisson_log_mass(places, torch.as_tensor(rate).to(q))).sum()


def squared_norm(*modules: nn.Module) -> Tensor:
    """Return the sum of squares of all parameters."""
    parts = [p.square().sum() for module in modules for p in module.parameters()]
    return torch.stack(parts).sum()


# The readouts: one MLP per layer.


class DepthReadout(nn.Module):
    """One MLP per layer, and the mixture of what they say.

    Args:
        in_channels: Width of the states.
        num_classes: Width of an MLP's output; not read for pairs, which have one logit.
        hidden_channels: Of the MLPs (default: half of ``in_channels``, the published).
        max_depth: How many MLPs; at least ``options.max_depth``.
        num_layers: Linear maps of an MLP.
        dropout: Before every linear map but the first.
        mixture: ``"distributions"`` as in the paper or ``"outputs"`` as in its code.
    """

    PER_STATE: ClassVar[int] = 1
    """Width of an MLP's input, in widths of the states."""

    ONE_LOGIT: ClassVar[bool] = False

    @checked
    def __init__(
        self,
        in_channels: int,
        num_classes: int = 1,
        *,
        hidden_channels: Count | None = None,
        max_depth: Count = 20,
        num_layers: Count = 2,
        dropout: Probability = 0.0,
        mixture: Mixture = "distributions",
    ) -> None:
        super().__init__()
        self.mixture = mixture
        hidden = max(in_channels // 2, 1) if hidden_channels is None else hidden_channels
        last = 1 if self.ONE_LOGIT else num_classes
        widths = [self.PER_STATE * in_channels, *[hidden] * (num_layers - 1), last]
        self.mlps = nn.ModuleList(_mlp(widths, dropout) for _ in range(max_depth))

    def readouts(self, depths: Depths) -> list[nn.Module]:
        """Return the MLPs of the layers in use.

        Raises:
            ConfigError: If there are fewer than layers.
        """
        if len(depths.states) > len(self.mlps):
            raise ConfigError(
                f"Expected 'readout.max_depth' of at least the depth {len(depths.states)} (got "
                f"{len(self.mlps)}). Give it the value of 'options.max_depth'."
            )
        return list(self.mlps)[: len(depths.states)]

    def mixed(self, depths: Depths, features: list[Tensor], items: int, *, pairs: bool) -> Outputs:
        """Return the mixture (e) and the terms of (d).

        Args:
            depths: Those in use.
            features: Inputs of the MLPs.
            items: How many items the step sees.
            pairs: Whether the outputs are logits of one yes or no.
        """
        readouts = self.readouts(depths)
        logits = [mlp(value) for mlp, value in zip(readouts, features, strict=True)]
        if pairs:
            logits = [value.squeeze(-1) for value in logits]
        return Outputs(
            prediction=mixture_of(depths.q, logits, self.mixture),
            graded=list(zip(depths.q, logits, strict=True)),
            penalty=depths.penalty(readouts, items),
        )


def _mlp(widths: list[int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for before, after in pairwise(widths[1:]):
        layers += [nn.LeakyReLU(), nn.Dropout(dropout), nn.Linear(before, after)]
    return nn.Sequential(*layers)


def mixture_of(q: Tensor, logits: list[Tensor], mixture: Mixture = "distributions") -> Tensor:
    """Return the logits of the mixture (e), or the mixture of the logits.

    Args:
        q: ``(L,)``, probabilities of the layers.
        logits: ``(rows, C)`` each, or ``(rows,)`` for a yes or no.
        mixture: ``"distributions"`` or ``"outputs"``.
    """
    stacked = torch.stack(logits)
    weight = q.view(-1, *[1] * (stacked.dim() - 1))
    if mixture == "outputs":
        return (weight * stacked).sum(0)
    if stacked.dim() == 2:
        yes = (weight.log() + F.logsigmoid(stacked)).logsumexp(0)
        return yes - (weight.log() + F.logsigmoid(-stacked)).logsumexp(0)
    return (weight.log() + stacked.log_softmax(-1)).logsumexp(0)


class AMPNodeReadout(DepthReadout):
    """Class logits per node, from one MLP per layer; options as :class:`DepthReadout`."""

    def forward(
        self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None = None
    ) -> Outputs:
        """Return the nodes' outputs."""
        depths: Depths = encoding.context
        return self.mixed(depths, depths.states, inputs.x.size(0), pairs=False)


class AMPGraphReadout(DepthReadout):
    """Class logits per graph: sum, maximum and mean of each layer's states, then its MLP.

    Options as :class:`DepthReadout`, with the three maps and the dropout published for graphs.
    """

    PER_STATE = 3

    @checked
    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        hidden_channels: Count | None = None,
        max_depth: Count = 20,
        num_layers: Count = 3,
        dropout: Probability = 0.1,
        mixture: Mixture = "distributions",
    ) -> None:
        super().__init__(
            in_channels,
            num_classes,
            hidden_channels=hidden_channels,
            max_depth=max_depth,
            num_layers=num_layers,
            dropout=dropout,
            mixture=mixture,
        )

    def forward(
        self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None = None
    ) -> Outputs:
        """Return the graphs' outputs."""
        depths: Depths = encoding.context
        pooled = [self.pooled(h, inputs.batch, inputs.num_graphs) for h in depths.states]
        return self.mixed(depths, pooled, inputs.num_graphs, pairs=False)

    def pooled(
        self, h: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> Tensor:
        """Return sum, maximum and mean of each graph's states side by side."""
        pools = (global_add_pool, global_max_pool, global_mean_pool)
        return torch.cat([pool(h, batch, num_graphs) for pool in pools], dim=-1)


class AMPLinkReadout(DepthReadout):
    r"""One logit per pair, from :math:`[h_u \odot h_v \| |h_u - h_v|]` and an MLP per layer.

    Options as :class:`DepthReadout`.
    """

    PER_STATE = 2
    ONE_LOGIT = True

    def forward(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor) -> Outputs:
        """Return the pairs' outputs."""
        depths: Depths = encoding.context
        features = [pair_features(h, pairs) for h in depths.states]
        return self.mixed(depths, features, pairs.size(1), pairs=True)


register(
    Method(
        "amp",
        AMP,
        readouts={"node": AMPNodeReadout, "link": AMPLinkReadout, "graph": AMPGraphReadout},
        presets=PRESETS / "amp",
    )
)
