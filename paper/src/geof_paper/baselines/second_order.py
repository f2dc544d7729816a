r"""GCN, GIN and ARGNN with GeoF's second-order statistic as additional features ("w/ SO").

The controls of the GeoF paper: hosts that are *given* what GeoF's feedback forms, but whose rule of
propagation stays theirs. At the input of a layer, with states :math:`\xi \in \mathbb R^{d}`,
:math:`d = B m`, and frames at the identity, since a host has none:

.. math::
    \omega_{ij} &\propto \exp(-\|\xi_i - \xi_j\|^2 / \tau) \text{ over }
    \mathcal N(i) \cup \{i\}, \qquad
    \delta_{ij} = W_\phi \xi_j - W_\phi \xi_i \\
    C_{i,b} &= \textstyle\sum_j \omega_{ij} \delta_{ij,b} \delta_{ij,b}^\top + \epsilon_s I, \qquad
    s_{i,b} = \Pi_{\mathcal Z}\big(\text{log-triangular coordinates of }
    \operatorname{SChol}(C_{i,b})\big)

Then, with :math:`\tilde s = V s` (a bottleneck of ``rank`` rows):

.. math::
    \text{GCN:}\quad & \xi' = \operatorname{Drop}(\operatorname{ReLU}(\operatorname{Norm}(
        \hat A \xi W + b + U \tilde s))) \\
    \text{GIN:}\quad & \xi' = \operatorname{Drop}(\operatorname{ReLU}(\operatorname{Norm}(
        \operatorname{MLP}(\xi_i + \textstyle\sum_{j \in \mathcal N(i)} \xi_j \,\|\, \tilde s)))) \\
    \text{ARGNN:}\quad & \xi' = \operatorname{layer}(W_h \xi + U \tilde s)

from :math:`\xi^0 = \operatorname{Drop}(\operatorname{Norm}(W_{in} x\ [+ W_u u]))` as GeoF starts
(ARGNN: its own start). The statistic is computed by GeoF's own step (:mod:`geof.kernels`), not by a
second copy. Gradients flow through it.

Reference: the GeoF paper's control experiment. Evidence: the paper has two sentences, "the same
weighted second-order residual statistics as additional features" and equal parameter counts within
0.5 %; all else here is a reconstruction: where the statistic enters, its coordinates, the
bottleneck (whose rank closes the gap of parameters, by the search in
:mod:`geof_paper.baselines.parameter_matching`), one :math:`W_\phi` for all layers as GeoF has one
for all steps, and the hosts' start and normalisation, which are GeoF's so that the mechanism is
what differs. ``statistics=False`` is a control the paper lacks: the same host without the
statistic, to be widened to the same count, which tells capacity from statistics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geof.geometry import AdmissibleBox, JitterSchedule, num_coordinates
from geof.kernels import Neighbourhoods, resolve_backend
from geof.methods.interface import Encoding, GraphInputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import norm_layer
from geof.nn.settings import Norm, StepOutputs, StepSettings, step_spec
from geof.options import (
    Count,
    NonNegative,
    Probability,
    checked,
    require_divisible,
)
from geof_paper.baselines.argnn import CosineReadout, MetricConv, PenaltyWeights, metric_penalty
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import adjacency, input_features, normalised_adjacency
from geof_paper.presets import PRESETS

StatisticEncoding: TypeAlias = Literal["logtri", "vech"]
Injection: TypeAlias = Literal["every_layer", "input_only"]


class ResidualStatistic(nn.Module):
    r"""GeoF's second-order residual statistic of node states, with identity frames.

    Args:
        channels: :math:`d`.
        settings: Temperature, floor, box and jitters as GeoF's.
        blocks: :math:`B`, dividing ``channels``.
        encoding: ``"logtri"``, the clipped log-triangular coordinates of GeoF's target, or
            ``"vech"``, the lower triangle of :math:`C` itself, normalised over its entries.
        backend: As GeoF's.

    Shapes:
        - **input:** :math:`(n, d)`
        - **output:** :math:`(n, d(m+1)/2)`
    """

    def __init__(
        self,
        channels: int,
        settings: StepSettings,
        *,
        blocks: int,
        encoding: StatisticEncoding,
        backend: str,
    ) -> None:
        super().__init__()
        self.blocks, self.block_size = blocks, require_divisible(channels, blocks)
        self.encoding: StatisticEncoding = encoding
        # The native step does not differentiate C itself, only what GeoF makes of it.
        self.backend = "torch" if encoding == "vech" and backend in ("auto", "native") else backend
        resolve_backend(self.backend, self.block_size)
        self.box = AdmissibleBox(settings.offdiagonal_bound, settings.log_scale_bounds)
        schedule = JitterSchedule(settings.jitter, settings.jitter_growth, settings.jitter_retries)
        self.spec = step_spec(settings, schedule, step=0)
        self.out_channels = blocks * num_coordinates(self.block_size)
        self.message = nn.Linear(channels, channels, bias=False)
        nn.init.eye_(self.message.weight)  # as GeoF starts W_phi
        self.norm = nn.LayerNorm(self.out_channels) if encoding == "vech" else nn.Identity()

    def forward(self, states: Tensor, edges: Neighbourhoods) -> Tensor:
        """Return :math:`s`, blocks side by side."""
        shape = (-1, self.blocks, self.block_size)
        identity = states.new_zeros(states.size(0), self.blocks, num_coordinates(self.block_size))
        backend = resolve_backend(self.backend, self.block_size, states.device)
        statistics = backend.statistics(
            states.reshape(shape), self.message(states).reshape(shape), identity, edges, self.spec
        )
        if self.encoding == "logtri":
            assert statistics.target is not None
            return self.box.project(statistics.target).flatten(1)
        assert statistics.moment is not None
        rows, columns = torch.tril_indices(self.block_size, self.block_size)
        entries: Tensor = self.norm(statistics.moment[..., rows, columns].flatten(1))
        return entries


class SecondOrderHost(nn.Module, ABC):
    r"""What the controls share; a host adds its layers.

    Args:
        in_channels: Width of the features.
        signature_channels: Width of the signatures, read when ``use_signature``.
        hidden_channels: :math:`d`, a multiple of ``blocks``.
        blocks: :math:`B`; take as many as leave GeoF's :math:`m = d / B`.
        num_layers: Depth.
        inner_channels: Width inside the networks a layer has: GIN's MLPs, ARGNN's metric networks;
            GCN has none (default: ``hidden_channels``).
        rank: Rows of the bottleneck between statistic and layer; ``None`` for no bottleneck.
        statistics: ``False`` leaves the statistic out and the host as it is.
        encoding: ``"logtri"`` or ``"vech"``, see :class:`ResidualStatistic`.
        injection: The statistic enters ``"every_layer"`` or, ``"input_only"``, the first.
        temperature: :math:`\tau` of the neighbourhood weights, GeoF's.
        spectral_floor: :math:`\epsilon_s`, GeoF's.
        offdiagonal_bound: :math:`a_{max}` of the box, GeoF's.
        log_scale_bounds: :math:`(\ell_{min}, \ell_{max})` of the box, GeoF's.
        jitter: :math:`\epsilon_0` of the stabilised Cholesky factor, GeoF's.
        jitter_growth: Its growth per retry, GeoF's.
        jitter_retries: Retries, GeoF's.
        backend: Implementation of GeoF's step: ``"auto"``, ``"native"``, ``"torch"`` or
            ``"reference"``.
        normalise: Normalisation of the first state and of every layer: ``"none"``, ``"layer"`` or
            ``"batch"``, as GeoF's.
        dropout: Of the states between layers.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
        use_signature: Whether the structural signatures join the input features, as GeoF's
            ``signature_features``.
        outputs: The ``"last"`` layer's states or, ``"all"``, the first state's and every layer's
            side by side, as GeoF's.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        signature_channels: int,
        *,
        hidden_channels: Count = 64,
        blocks: Count = 8,
        num_layers: Count = 2,
        inner_channels: Count | None = None,
        rank: Count | None = 16,
        statistics: bool = True,
        encoding: StatisticEncoding = "logtri",
        injection: Injection = "every_layer",
        temperature: float = 1.0,
        spectral_floor: float = 1.0,
        offdiagonal_bound: float = 2.0,
        log_scale_bounds: tuple[float, float] = (-5.0, 5.0),
        jitter: float = 1e-6,
        jitter_growth: float = 10.0,
        jitter_retries: int = 5,
        backend: str = "auto",
        normalise: Norm = "batch",
        dropout: Probability = 0.0,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        use_signature: bool = False,
        outputs: StepOutputs = "last",
    ) -> None:
        super().__init__()
        settings = StepSettings(
            temperature=temperature,
            spectral_floor=spectral_floor,
            offdiagonal_bound=offdiagonal_bound,
            log_scale_bounds=log_scale_bounds,
            jitter=jitter,
            jitter_growth=jitter_growth,
            jitter_retries=jitter_retries,
            frame_transport=False,  # between identity frames a message is carried as it is
        )
        AdmissibleBox(settings.offdiagonal_bound, settings.log_scale_bounds)  # checks its range
        self.dropout, self.outputs = dropout, outputs
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.hidden_channels = hidden_channels
        self.inner_channels = inner_channels or hidden_channels
        self.out_channels = hidden_channels * (num_layers + 1 if outputs == "all" else 1)
        self.lift = SparseLinear(in_channels, hidden_channels, bias=False)
        self.signature_lift = (
            nn.Linear(signature_channels, hidden_channels, bias=False) if use_signature else None
        )
        self.statistic: ResidualStatistic | None = None
        self.widths = [0] * num_layers  # of what each layer is told
        self.bottlenecks = nn.ModuleList()
        if statistics:
            self.statistic = ResidualStatistic(
                hidden_channels, settings, blocks=blocks, encoding=encoding, backend=backend
            )
            wide, informed = self.statistic.out_channels, num_layers
            if injection == "input_only":
                informed = 1
            self.widths[:informed] = [rank or wide] * informed
            self.bottlenecks.extend(
                nn.Linear(wide, rank, bias=False) if rank else nn.Identity()
                for _ in range(informed)
            )
        self._make(normalise)

    @abstractmethod
    def _make(self, normalise: Norm) -> None:
        """Register the layers; ``self.widths`` tells the width of what each is given of ``s``."""

    @abstractmethod
    def _start(self, lifted: Tensor) -> Tensor:
        """Return the first state."""

    @abstractmethod
    def _layer(
        self, number: int, states: Tensor, told: Tensor | None, inputs: GraphInputs
    ) -> tuple[Tensor, Tensor | None]:
        """Return the states after a layer, and its penalty if the host has one."""

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the last layer's states, or all states."""
        x = input_features(self, inputs)
        lifted: Tensor = self.lift(x)
        if self.signature_lift is not None:
            lifted = lifted + self.signature_lift(inputs.signature)
        states = [self._start(lifted)]
        penalties = []
        for number in range(len(self.widths)):
            told = self.told(number, states[-1], inputs.edges)
            following, penalty = self._layer(number, states[-1], told, inputs)
            states.append(following)
            if penalty is not None:
                penalties.append(penalty)
        chosen = torch.cat(states, dim=-1) if self.outputs == "all" else states[-1]
        return Encoding(chosen, torch.stack(penalties).sum() if penalties else None)

    def told(self, number: int, states: Tensor, edges: Neighbourhoods) -> Tensor | None:
        r"""Return :math:`\tilde s` for a layer, ``None`` for one that is told nothing."""
        if self.statistic is None or not self.widths[number]:
            return None
        compressed: Tensor = self.bottlenecks[number](self.statistic(states, edges))
        return compressed

    def _drop(self, states: Tensor) -> Tensor:
        return F.dropout(states, self.dropout, self.training)


class _NormalisedHost(SecondOrderHost):
    """Norm and dropout at the start, norm, ReLU and dropout after every layer."""

    norms: nn.ModuleList

    def _make(self, normalise: Norm) -> None:
        self.norms = nn.ModuleList(
            norm_layer(normalise, self.hidden_channels) for _ in range(len(self.widths) + 1)
        )

    def _start(self, lifted: Tensor) -> Tensor:
        return self._drop(self.norms[0](lifted))

    def _finished(self, number: int, z: Tensor) -> tuple[Tensor, None]:
        return self._drop(F.relu(self.norms[number + 1](z))), None


class GCNWithSO(_NormalisedHost):
    """GCN whose layers add a linear map of the statistic; options as the shared host's."""

    def _make(self, normalise: Norm) -> None:
        super()._make(normalise)
        width = self.hidden_channels
        self.maps = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in self.widths)
        self.biases = nn.ParameterList(torch.zeros(width) for _ in self.widths)
        self.statistic_maps = nn.ModuleList(
            nn.Linear(told, width, bias=False) for told in self.widths if told
        )

    def _layer(
        self, number: int, states: Tensor, told: Tensor | None, inputs: GraphInputs
    ) -> tuple[Tensor, Tensor | None]:
        z = graph_product(inputs, normalised_adjacency, self.maps[number](states))
        z = z + self.biases[number]
        if told is not None:
            z = z + self.statistic_maps[number](told)
        return self._finished(number, z)


class GINWithSO(_NormalisedHost):
    r"""GIN (:math:`\epsilon = 0`) whose MLPs are given the statistic beside the sum.

    Options as the shared host's.
    """

    def _make(self, normalise: Norm) -> None:
        super()._make(normalise)
        width, inner = self.hidden_channels, self.inner_channels
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width + told, inner),
                norm_layer(normalise, inner),
                nn.ReLU(),
                nn.Linear(inner, width),
            )
            for told in self.widths
        )

    def _layer(
        self, number: int, states: Tensor, told: Tensor | None, inputs: GraphInputs
    ) -> tuple[Tensor, Tensor | None]:
        total = states + graph_product(inputs, adjacency, states)
        if told is not None:
            total = torch.cat([total, told], dim=-1)
        return self._finished(number, self.mlps[number](total))


class ARGNNWithSO(SecondOrderHost):
    r"""ARGNN whose layers run on :math:`W_h h + U \tilde s` instead of :math:`h`.

    Its start and normalisation are its own, ``LayerNorm``, so it has no option ``normalise``.

    Args:
        in_channels: Width of the features.
        signature_channels: Width of the signatures, read when ``use_signature``.
        metric_sees_statistics: Whether the metric networks see what the layer runs on, or
            :math:`h` alone.
        metric_penalty: As ARGNN's.
        smoothness_penalty: As ARGNN's.
        ricci_penalty: As ARGNN's.
        hidden_channels: This and all that follow as :class:`SecondOrderHost`.
        blocks: :math:`B`.
        num_layers: Depth.
        inner_channels: Width inside the metric networks (default: ``hidden_channels``).
        rank: Rows of the bottleneck.
        statistics: Whether there is a statistic.
        encoding: ``"logtri"`` or ``"vech"``.
        injection: ``"every_layer"`` or ``"input_only"``.
        temperature: :math:`\tau`.
        spectral_floor: :math:`\epsilon_s`.
        offdiagonal_bound: :math:`a_{max}`.
        log_scale_bounds: :math:`(\ell_{min}, \ell_{max})`.
        jitter: :math:`\epsilon_0`.
        jitter_growth: Growth per retry.
        jitter_retries: Retries.
        backend: Implementation of GeoF's step.
        dropout: Of the states between layers.
        scale_features: Scale every row of the input features.
        feature_dropout: Of the input features.
        use_signature: Whether the signatures join the features.
        outputs: ``"last"`` or ``"all"``.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        signature_channels: int,
        *,
        metric_sees_statistics: bool = True,
        metric_penalty: NonNegative = 0.01,
        smoothness_penalty: NonNegative = 0.001,
        ricci_penalty: NonNegative = 0.0,
        hidden_channels: Count = 64,
        blocks: Count = 8,
        num_layers: Count = 2,
        inner_channels: Count | None = None,
        rank: Count | None = 16,
        statistics: bool = True,
        encoding: StatisticEncoding = "logtri",
        injection: Injection = "every_layer",
        temperature: float = 1.0,
        spectral_floor: float = 1.0,
        offdiagonal_bound: float = 2.0,
        log_scale_bounds: tuple[float, float] = (-5.0, 5.0),
        jitter: float = 1e-6,
        jitter_growth: float = 10.0,
        jitter_retries: int = 5,
        backend: str = "auto",
        dropout: Probability = 0.0,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        use_signature: bool = False,
        outputs: StepOutputs = "last",
    ) -> None:
        super().__init__(
            in_channels,
            signature_channels,
            hidden_channels=hidden_channels,
            blocks=blocks,
            num_layers=num_layers,
            inner_channels=inner_channels,
            rank=rank,
            statistics=statistics,
            encoding=encoding,
            injection=injection,
            temperature=temperature,
            spectral_floor=spectral_floor,
            offdiagonal_bound=offdiagonal_bound,
            log_scale_bounds=log_scale_bounds,
            jitter=jitter,
            jitter_growth=jitter_growth,
            jitter_retries=jitter_retries,
            backend=backend,
            normalise="layer",
            dropout=dropout,
            scale_features=scale_features,
            feature_dropout=feature_dropout,
            use_signature=use_signature,
            outputs=outputs,
        )
        self.metric_sees_statistics = metric_sees_statistics
        self.weights = PenaltyWeights(metric_penalty, smoothness_penalty, ricci_penalty)

    def _make(self, normalise: Norm) -> None:
        width = self.hidden_channels
        self.norm = norm_layer(normalise, width)
        self.convs = nn.ModuleList(
            MetricConv(width, width, self.inner_channels) for _ in self.widths
        )
        self.joint_maps = nn.ModuleList(
            nn.Linear(width + told, width, bias=False) for told in self.widths if told
        )

    def _start(self, lifted: Tensor) -> Tensor:
        return self._drop(F.relu(self.norm(lifted)))

    def _layer(
        self, number: int, states: Tensor, told: Tensor | None, inputs: GraphInputs
    ) -> tuple[Tensor, Tensor | None]:
        joint = states
        if told is not None:
            joint = self.joint_maps[number](torch.cat([states, told], dim=-1))
        seen = joint if self.metric_sees_statistics else states
        following, g = self.convs[number](joint, inputs.edges, seen)
        return self._drop(F.relu(following)), metric_penalty(g, inputs.edges, self.weights)


register(Method("gcn-so", GCNWithSO, presets=PRESETS / "gcn-so"))
register(Method("gin-so", GINWithSO, presets=PRESETS / "gin-so"))
register(
    Method(
        "argnn-so",
        ARGNNWithSO,
        readouts={"link": CosineReadout},
        presets=PRESETS / "argnn-so",
        revision=2,  # that of its host, whose layers begin and are penalised differently
    )
)
