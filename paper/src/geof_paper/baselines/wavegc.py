r"""WaveGC: graph wavelets whose shapes and scales are learned from the spectrum.

With eigenpairs :math:`(\lambda_k, u_k)` of the normalised Laplacian, :math:`U = [u_1 \ldots u_K]`:

**Filters.** Tokens of eigenvalues go through one transformer block, whose mean decides the
coefficients :math:`a, b \in \Delta^\rho` and the scales :math:`s \in (0, s_{max})^J`:

.. math::
    e_k &= \operatorname{Lin}[\lambda_k \| \sin(100 \lambda_k \omega) \| \cos(100 \lambda_k
    \omega)], \quad \omega_i = 10000^{-2i/d}, \qquad E = \operatorname{Transformer}(e), \\
    a &= \operatorname{softmax}\Big(\tfrac1K \sum_k \operatorname{Lin}_a(E_k)\Big), \quad
    b = \operatorname{softmax}\Big(\tfrac1K \sum_k \operatorname{Lin}_b(E_k)\Big), \quad
    s = s_{max}\, \operatorname{sigmoid}\Big(\tfrac1K \sum_k \operatorname{Lin}_s(E_k)\Big), \\
    h(\lambda) &= \sum_{r=1}^\rho a_r \tfrac12 (1 - T_{2r-1}(\lambda - 1)), \qquad
    g_j(\lambda) = \sum_{r=1}^\rho b_r \tfrac12 (1 - T_{2r-2}(s_j \lambda - 1)),
    \quad g_j = 0 \text{ where } s_j \lambda > 2,

with Chebyshev polynomials :math:`T`; then :math:`(h, g_1, \ldots, g_J)` is divided by its norm at
every :math:`\lambda` (a tight frame), so :math:`h(0) = 1` and :math:`g_j(0) = 0`.

**Convolution and layer.** With :math:`\Psi_t = U \operatorname{diag}(g_t) U^\top`, :math:`g_0 = h`,
every row of it scaled to length one:

.. math::
    z_t &= \Psi_t \operatorname{Drop}(\sigma(\Psi_t x W_t + b_t)), \qquad
    \operatorname{Wave}(x) = \operatorname{Drop}(\sigma([z_0 \| \cdots \| z_J] W_f)), \\
    y &= \operatorname{Norm}(x + \operatorname{Drop}(\operatorname{GCN}(x)))
    + \operatorname{Norm}(x + \operatorname{Drop}(\operatorname{Wave}(x))), \\
    x' &= \operatorname{Norm}(y + \operatorname{Drop}(W_2 \operatorname{Drop}(\sigma(W_1 y)))).

Two variants: for nodes and links the Laplacian has no self-loops, the smallest 30 % of the
eigenpairs are kept, and one transformer with one decoder makes the filters of all layers; for
graphs the Laplacian has self-loops, all pairs are kept, eigenvalues are rescaled so that each
graph's largest is 2, and the one transformer has a decoder per layer (``shared_filters=False``).

Reference: Liu et al., "A General Graph Spectral Wavelet Convolution via Chebyshev Order
Decomposition", ICML 2025; public code ``liun-online/WaveGC``, read and compared line by line (it
has no licence, so no numbers of it are kept). Evidence:

- *from source*: filters and their transformer, shared and per layer, convolution, layer, the two
  variants, all values;
- *reconstructed*: the link task (eigenpairs of the training graph).

Known differences:

- :math:`\Psi_t` is never formed; :math:`U (g_t \odot (U^\top x))` is the same with :math:`O(nK)`
  memory, and so are the lengths of its rows, :math:`\|\Psi_{t,i}\|^2 = \sum_k g_t(\lambda_k)^2
  U_{ik}^2`. The public node code forms it, scales its rows as here, and drops entries below 0.1;
  for ogbn-arxiv it does neither (``unit_rows=False``).
- Rows shorter than 1e-4 are divided by that (there by 1e-12 at least): scaled to length one, the
  row of a node whose component no wavelet reaches would be rounding errors.
- At most ``eigenpairs`` pairs with a positive eigenvalue are kept, 256 by default, in place of 30 %
  of the nodes (2,295 for Photo); this bounds the attention between tokens too, to :math:`256^2`
  numbers. Equal tokens of the eigenvalue 0 are one token that counts as often as there are
  components, which is the same function. See :mod:`geof_paper.baselines.spectrum` for the null
  space, ties at the cut and the cost.
- Token sums are divided by the number of tokens. The published sum is divided by the number of
  nodes, the same where all pairs are kept; with 256 of 7,650 it would make all coefficients equal.
- :math:`s_{max}` is a true setting here. The public node code overwrites it by 1, so the values in
  its configuration files (0.5, 1, 10) never had an effect; the presets for nodes have 1.
- For graphs, the public configurations have a gated convolution with features of edges and
  encodings of positions beside the wavelets; here it is a GCN.
- :math:`h(2) = 0`, so where :math:`\lambda = 2` and all :math:`s_j > 1` no filter is left: the
  frame is tight wherever any filter is positive, and such components are dropped. The norm is
  bounded below before the division, or its gradient would be NaN there.
- The first of the :math:`\rho` wavelet terms, :math:`T_0`, is zero as published; it only takes
  weight off the others.
- Edges of a sampled neighbourhood count in both directions. Every sample, and every epoch with
  hidden edges, is a new graph with eigenpairs of its own: affordable for small graphs only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from geof.errors import ConfigError
from geof.methods.interface import GraphInputs, TaskKind
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import norm_layer
from geof.nn.settings import Norm
from geof.options import Count, Positive, Probability, checked
from geof_paper.baselines.blocks import Blocks
from geof_paper.baselines.fixed_products import fixed_product, graph_product
from geof_paper.baselines.sparse import (
    csr_matrix,
    csr_transpose,
    input_features,
    normalised_adjacency,
)
from geof_paper.baselines.spectrum import Spectrum, SpectrumOptions, cached_spectra
from geof_paper.presets import PRESETS

Local: TypeAlias = Literal["gcn", "none"]
Activation: TypeAlias = Literal["gelu", "relu"]
Variant: TypeAlias = Literal["node", "graph"]

NODE_SHARE = 0.3
"""Share of the eigenpairs the node variant keeps; the graph variant keeps all."""

_FREQUENCY = 100.0  # of the tokens, published
_SMALLEST = 1e-16  # squared norm below which filters count as zero
_SHORTEST_ROW = 1e-4  # of a wavelet matrix; a shorter one is divided by this, or it would be noise


class WaveGC(nn.Module):
    r"""Wavelet convolutions beside graph convolutions, in layers with a feed-forward map.

    Args:
        in_channels: Width of the features.
        task: Decides the variant unless one is named.
        num_nodes: Of the one graph, to tell it from a sample of it.
        num_edges: Likewise.
        hidden_channels: Width, a multiple of ``num_scales + 1`` and of ``heads``.
        num_layers: Depth.
        local: What runs beside the wavelets, ``"gcn"`` or ``"none"``.
        activation: ``"gelu"`` or ``"relu"``.
        dropout: Of what layers add to their input.
        wave_dropout: Inside the wavelet convolution.
        filter_dropout: Inside the transformer over eigenvalues.
        order: :math:`\rho`, Chebyshev terms of each filter.
        num_scales: :math:`J`.
        max_scale: :math:`s_{max}`.
        heads: Of the attention between eigenvalues.
        shared_filters: Whether all layers use the same filters or each has a decoder of its own, on
            the one transformer.
        unit_rows: Whether rows of the wavelet matrices are scaled to length one.
        norm: ``"none"``, ``"layer"`` or ``"batch"``.
        variant: ``"node"`` or ``"graph"``, see the module; ``None`` for the task's.
        share: Share of the eigenpairs to keep, the smallest; ``None`` for the variant's.
        eigenpairs: Most pairs with a positive eigenvalue; ``None`` for no limit and a dense
            eigen-solver, quadratic in the nodes.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        task: TaskKind = "node",
        num_nodes: int | None = None,
        num_edges: int | None = None,
        hidden_channels: Count = 64,
        num_layers: Count = 2,
        local: Local = "gcn",
        activation: Activation = "gelu",
        dropout: Probability = 0.2,
        wave_dropout: Probability = 0.5,
        filter_dropout: Probability = 0.1,
        order: Annotated[int, Field(ge=2)] = 3,  # the first wavelet term is zero
        num_scales: Count = 3,
        max_scale: Positive = 1.0,
        heads: Count = 2,
        shared_filters: bool = True,
        unit_rows: bool = True,
        norm: Norm = "none",
        variant: Variant | None = None,
        share: Annotated[float, Field(gt=0, le=1)] | None = None,
        eigenpairs: Count | None = 256,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
    ) -> None:
        super().__init__()
        self.spectrum = _spectrum_options(task, variant, share, eigenpairs)
        self.whole = (num_nodes, num_edges)
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.out_channels = hidden_channels
        self.input = SparseLinear(in_channels, hidden_channels)
        self.unit_rows = unit_rows
        self.filters = FilterGenerator(
            hidden_channels,
            order=order,
            num_scales=num_scales,
            max_scale=max_scale,
            heads=heads,
            dropout=filter_dropout,
            decoders=1 if shared_filters else num_layers,
        )
        self.layers = nn.ModuleList(
            WaveLayer(
                hidden_channels,
                num_scales=num_scales,
                local=local,
                activation=activation,
                dropout=dropout,
                wave_dropout=wave_dropout,
                norm=norm,
            )
            for _ in range(num_layers)
        )

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the last layer's states."""
        basis = SpectralBasis.of(inputs, self.spectrum, on_disk=self._is_whole(inputs))
        x: Tensor = self.input(input_features(self, inputs))
        filters = [Filters(basis, frame, unit_rows=self.unit_rows) for frame in self.filters(basis)]
        for number, layer in enumerate(self.layers):
            x = layer(x, inputs, filters[min(number, len(filters) - 1)])
        return x

    def _is_whole(self, inputs: GraphInputs) -> bool:
        """Return whether this is the task's one graph and not a part drawn from it."""
        return self.whole == (inputs.x.size(0), inputs.edge_index.size(1))


def _spectrum_options(
    task: TaskKind, variant: Variant | None, share: float | None, eigenpairs: int | None
) -> SpectrumOptions:
    if variant is None:
        variant = "graph" if task == "graph" else "node"
    graph = variant == "graph"
    if share is None:
        share = 1.0 if graph else NODE_SHARE
    return SpectrumOptions(loops=graph, share=share, eigenpairs=eigenpairs, rescale=graph)


@dataclass(frozen=True, eq=False)
class SpectralBasis:
    """The eigenpairs of a batch; eigenvectors of all graphs are one block-diagonal matrix.

    Tokens are the eigenvalue 0 of every graph, then the positive eigenvalues, graph after graph.

    Attributes:
        vectors: ``(n, K)``, of all positive eigenvalues; in CSR form for several graphs.
        transposed: ``(K, n)``, likewise.
        squares: ``(n, K)``, the squared entries of ``vectors``.
        squares_transposed: ``(K, n)``, likewise.
        null: ``(n, 1)``, entries of the null space's eigenvectors.
        component: ``(n,)``, which of them each node belongs to.
        components: How many.
        values: ``(G + K, 1)``, the eigenvalue of each token.
        share: ``(G + K, 1)``, its multiplicity, divided by the sum over its graph.
        graph: ``(G + K,)``, its graph.
        num_graphs: ``G``.
        tokens: Tokens by graph, padded to common sizes.
        bias: ``(g, 1, 1, t)`` for each of these buckets, the logarithm of multiplicities.
    """

    vectors: Tensor
    transposed: Tensor
    squares: Tensor
    squares_transposed: Tensor
    null: Tensor
    component: Tensor
    components: int
    values: Tensor
    share: Tensor
    graph: Tensor
    num_graphs: int
    tokens: Blocks
    bias: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, inputs: GraphInputs, options: SpectrumOptions, *, on_disk: bool = False
    ) -> SpectralBasis:
        """Return the basis of a batch, cached with it."""

        def build() -> SpectralBasis:
            spectra = cached_spectra(inputs, options, on_disk=on_disk)
            # From graph after graph, as the eigenpairs come, to the order of the batch.
            order = None if inputs.batch is None else torch.argsort(inputs.batch, stable=True)
            return cls.join(spectra, order)

        return inputs.cached((cls, options, inputs.x.dtype), build)

    @classmethod
    def join(cls, spectra: list[Spectrum], order: Tensor | None = None) -> SpectralBasis:
        """Put spectra side by side; ``order`` says which node each of their rows belongs to."""
        components = torch.tensor([spectrum.components for spectrum in spectra])
        counts = torch.tensor([len(spectrum.values) for spectrum in spectra])
        sizes = torch.tensor([len(spectrum.null) for spectrum in spectra])
        graphs = torch.arange(len(spectra))
        positive = torch.cat([spectrum.values for spectrum in spectra])
        values = torch.cat([positive.new_zeros(len(spectra)), positive])
        graph = torch.cat([graphs, torch.repeat_interleave(graphs, counts)])
        multiplicity = torch.cat([components.to(values), torch.ones_like(positive)])
        null = torch.cat([spectrum.null for spectrum in spectra])
        component = torch.cat([spectrum.component for spectrum in spectra])
        component = component + torch.repeat_interleave(components.cumsum(0) - components, sizes)
        if order is not None:
            back = torch.argsort(order)
            null, component = null[back], component[back]
        tokens = Blocks.sort(graph, len(spectra))
        total = (components + counts).to(values)
        vectors, transposed = _block_diagonal(spectra, sizes, counts, order)
        return cls(
            vectors,
            transposed,
            _squared(vectors),
            _squared(transposed),
            null.unsqueeze(1),
            component,
            int(components.sum()),
            values.unsqueeze(1),
            (multiplicity / total[graph]).unsqueeze(1),
            graph,
            len(spectra),
            tokens,
            tuple(
                torch.where(bucket.real, multiplicity[bucket.rows], 0).log()[:, None, None]
                for bucket in tokens.buckets
            ),
        )

    def apply(self, x: Tensor, frame: Tensor) -> Tensor:
        r"""Return :math:`[\Psi_0 x_0 \| \cdots \| \Psi_J x_J]`, the channels of ``x`` in J+1 parts.

        Args:
            x: ``(n, d)``.
            frame: ``(G + K, J + 1)``, the filters at every eigenvalue.
        """
        gains = frame[self.num_graphs :].unsqueeze(-1)  # (K, J + 1, 1)
        width = x.size(1) // gains.size(1)
        coefficients = _product(self.transposed, self.vectors, x).unflatten(1, (-1, width))
        filtered = _product(self.vectors, self.transposed, (gains * coefficients).flatten(1))
        # At the eigenvalue 0 the scaling filter is 1 and the wavelets are 0, whatever is learned.
        return filtered + F.pad(self._null_part(x[:, :width]), (0, x.size(1) - width))

    def row_lengths(self, frame: Tensor) -> Tensor:
        r"""Return ``(n, J + 1)``, the lengths of the rows of every :math:`\Psi_t`, never zero."""
        gains = frame[self.num_graphs :].square()
        squares = _product(self.squares, self.squares_transposed, gains)
        squares = squares + F.pad(self.null.square(), (0, gains.size(1) - 1))
        return squares.clamp_min(_SHORTEST_ROW**2).sqrt()

    def _null_part(self, x: Tensor) -> Tensor:
        """Return the projection on the null space."""
        total = x.new_zeros(self.components, x.size(1))
        total = total.index_add(0, self.component, self.null * x)
        return self.null * total.index_select(0, self.component)

    def token_mean(self, tokens: Tensor) -> Tensor:
        """Return each graph's mean of tokens ``(G + K, d)``, by multiplicity."""
        total = tokens.new_zeros(self.num_graphs, tokens.size(1))
        return total.index_add(0, self.graph, self.share * tokens)


def _block_diagonal(
    spectra: list[Spectrum], sizes: Tensor, counts: Tensor, order: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors of all graphs and their transpose."""
    if order is None:
        vectors = spectra[0].vectors
        return vectors, vectors.t()
    nodes, pairs = int(sizes.sum()), int(counts.sum())
    # Row i of graph g has its entries in the columns of g, and the other way round.
    by_node = torch.cat([spectrum.vectors.reshape(-1) for spectrum in spectra])
    by_pair = torch.cat([spectrum.vectors.t().reshape(-1) for spectrum in spectra])
    first_node, first_pair = sizes.cumsum(0) - sizes, counts.cumsum(0) - counts
    rows = _ranges(torch.repeat_interleave(first_pair, sizes), counts.repeat_interleave(sizes))
    columns = _ranges(torch.repeat_interleave(first_node, counts), sizes.repeat_interleave(counts))
    members = order[columns[1]].int()
    transposed = csr_matrix(columns[0].int(), members, by_pair, (pairs, nodes))
    if bool((order.diff() == 1).all()):
        return csr_matrix(rows[0].int(), rows[1].int(), by_node, (nodes, pairs)), transposed
    return csr_transpose(transposed), transposed


def _ranges(first: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each range begins among all, ``(r + 1,)``, and the members of all ranges."""
    pointer = torch.cat([length.new_zeros(1), length.cumsum(0)])
    shift = torch.repeat_interleave(first - pointer[:-1], length)
    return pointer, torch.arange(int(pointer[-1])) + shift


def _product(matrix: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
    """Return the product of a fixed matrix, dense or sparse, and ``x``."""
    return matrix @ x if matrix.layout == torch.strided else fixed_product(matrix, transposed, x)


def _squared(matrix: Tensor) -> Tensor:
    """Return the squares of the entries, in the same layout."""
    if matrix.layout == torch.strided:
        return matrix.square()
    size = (matrix.size(0), matrix.size(1))
    return csr_matrix(matrix.crow_indices(), matrix.col_indices(), matrix.values().square(), size)


class Filters:
    r"""The wavelet matrices :math:`\Psi_0, \ldots, \Psi_J` of a batch, which are never formed.

    Args:
        basis: The eigenpairs.
        frame: ``(G + K, J + 1)``, the filters at every eigenvalue.
        unit_rows: Whether rows are scaled to length one.
    """

    def __init__(self, basis: SpectralBasis, frame: Tensor, *, unit_rows: bool) -> None:
        self.basis, self.frame = basis, frame
        self.lengths = basis.row_lengths(frame).unsqueeze(-1) if unit_rows else None

    def apply(self, x: Tensor) -> Tensor:
        r"""Return :math:`[\Psi_0 x_0 \| \cdots \| \Psi_J x_J]` of channels in J+1 parts."""
        z = self.basis.apply(x, self.frame)
        if self.lengths is None:
            return z
        parts: Tensor = z.unflatten(1, (self.lengths.size(1), -1)) / self.lengths
        return parts.flatten(1)


class FilterGenerator(nn.Module):
    """From a graph's eigenvalues to its filters.

    Args:
        channels: Width of the tokens, a multiple of ``heads``.
        order: Chebyshev terms of each filter.
        num_scales: Number of wavelets.
        max_scale: Largest scale.
        heads: Of the attention.
        dropout: Of attention weights, and of the outputs of attention and feed-forward map.
        decoders: How many frames are read off the one transformer.
    """

    def __init__(
        self,
        channels: int,
        *,
        order: int,
        num_scales: int,
        max_scale: float,
        heads: int,
        dropout: float,
        decoders: int = 1,
    ) -> None:
        super().__init__()
        _require_multiple(channels, "heads", heads)
        self.decoders = decoders
        self.order, self.max_scale, self.heads, self.dropout = order, max_scale, heads, dropout
        # Not a buffer, which would keep single precision's error when the model is made double.
        self.frequencies = [
            _FREQUENCY * 10000.0 ** (-2 * i / channels) for i in range(math.ceil(channels / 2))
        ]
        self.token = nn.Linear(1 + 2 * len(self.frequencies), channels)
        self.attention_norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.mix = nn.Linear(channels, channels)
        self.feed_forward_norm = nn.LayerNorm(channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, channels), nn.GELU(), nn.Linear(channels, channels)
        )
        self.decide = nn.Linear(channels, decoders * (2 * order + num_scales))

    def forward(self, basis: SpectralBasis) -> list[Tensor]:
        """Return ``(G + K, J + 1)`` per decoder, the frame at every eigenvalue."""
        return [
            tight_frame(basis.values, *(c.index_select(0, basis.graph) for c in coefficients))
            for coefficients in self.coefficients(basis)
        ]

    def coefficients(self, basis: SpectralBasis) -> list[tuple[Tensor, Tensor, Tensor]]:
        r"""Return :math:`a, b` ``(G, rho)`` and :math:`s` ``(G, J)`` per decoder."""
        decided = self.decide(basis.token_mean(self._transformed(basis)))
        return [self._split(part) for part in decided.chunk(self.decoders, dim=1)]

    def _split(self, decided: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, scales = decided.split([self.order, self.order, decided.size(1) - 2 * self.order], 1)
        return a.softmax(dim=1), b.softmax(dim=1), self.max_scale * scales.sigmoid()

    def _transformed(self, basis: SpectralBasis) -> Tensor:
        """Return the tokens ``(G + K, d)`` after the transformer block."""
        angle = basis.values * basis.values.new_tensor(self.frequencies)
        x = self.token(torch.cat([basis.values, angle.sin(), angle.cos()], dim=1))
        added = self._attended(self.attention_norm(x), basis)
        x = x + F.dropout(added, self.dropout, self.training)
        added = self.feed_forward(self.feed_forward_norm(x))
        transformed: Tensor = x + F.dropout(added, self.dropout, self.training)
        return transformed

    def _attended(self, x: Tensor, basis: SpectralBasis) -> Tensor:
        """Return attention inside graphs; a token that stands for several has their weight."""
        pieces = []
        for rows, bias in zip(basis.tokens.split(self.qkv(x)), basis.bias, strict=True):
            q, k, v = rows.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5 + bias  # (g, heads, t, t)
            weights = F.dropout(scores.softmax(dim=-1), self.dropout, self.training)
            pieces.append((weights @ v).transpose(1, 2).flatten(2))
        mixed: Tensor = self.mix(basis.tokens.join(pieces))
        return mixed


def tight_frame(values: Tensor, a: Tensor, b: Tensor, scales: Tensor) -> Tensor:
    r"""Return :math:`(h, g_1, \ldots, g_J)` at eigenvalues, of norm 1 where any is positive.

    Args:
        values: ``(t, 1)``, in [0, 2].
        a: ``(t, rho)``, coefficients of the scaling filter.
        b: ``(t, rho)``, coefficients of the wavelets.
        scales: ``(t, J)``.

    Shapes:
        - **output:** ``(t, J + 1)``
    """
    # T(1) = 1, so a wavelet is 0 from s lambda = 2 on.
    y = torch.cat([values, (scales * values).clamp(max=2.0)], dim=1) - 1
    even, odd = torch.ones_like(y), y  # T_0, T_1
    filters = torch.zeros_like(y)
    for r in range(a.size(1)):
        terms = torch.cat([odd[:, :1], even[:, 1:]], dim=1)
        weights = torch.cat([a[:, r, None], b[:, r, None].expand_as(scales)], dim=1)
        filters = filters + weights * (0.5 - 0.5 * terms)
        even = 2 * y * odd - even
        odd = 2 * y * even - odd
    # The root of 0 has no gradient.
    return filters / filters.square().sum(dim=1, keepdim=True).clamp_min(_SMALLEST).sqrt()


class WaveLayer(nn.Module):
    """A wavelet convolution beside a graph convolution, then a feed-forward map."""

    def __init__(
        self,
        channels: int,
        *,
        num_scales: int,
        local: Local,
        activation: Activation,
        dropout: float,
        wave_dropout: float,
        norm: Norm,
    ) -> None:
        super().__init__()
        _require_multiple(channels, "num_scales + 1", num_scales + 1)
        self.dropout, self.wave_dropout = dropout, wave_dropout
        self.activation = F.gelu if activation == "gelu" else F.relu
        self.waves = nn.Linear(channels, channels)  # W_0, ..., W_J and b_0, ..., b_J side by side
        self.fuse = nn.Linear(channels, channels)
        self.wave_norm, self.out_norm = norm_layer(norm, channels), norm_layer(norm, channels)
        self.local: nn.Linear | None = None
        if local == "gcn":
            self.local = nn.Linear(channels, channels, bias=False)
            self.local_bias = nn.Parameter(torch.zeros(channels))
            self.local_norm = norm_layer(norm, channels)
        self.widen = nn.Linear(channels, 2 * channels)
        self.narrow = nn.Linear(2 * channels, channels)

    def forward(self, x: Tensor, inputs: GraphInputs, filters: Filters) -> Tensor:
        """Return the new states."""
        y = self.wave_norm(x + self._drop(self.wave(x, filters)))
        if self.local is not None:
            heard = graph_product(inputs, normalised_adjacency, self.local(x)) + self.local_bias
            y = y + self.local_norm(x + self._drop(heard))
        added = self.narrow(self._drop(self.activation(self.widen(y))))
        new: Tensor = self.out_norm(y + self._drop(added))
        return new

    def wave(self, x: Tensor, filters: Filters) -> Tensor:
        """Return the wavelet convolution."""
        z = filters.apply(F.linear(x, self.waves.weight)) + self.waves.bias
        z = filters.apply(self._drop_wave(self.activation(z)))
        return self._drop_wave(self.activation(self.fuse(z)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _drop_wave(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.wave_dropout, self.training)


def _require_multiple(channels: int, name: str, parts: int) -> None:
    if channels % parts:
        raise ConfigError(
            f"Expected 'hidden_channels' to be a multiple of {name} (got {channels} and {parts}). "
            f"Use hidden_channels={parts * max(round(channels / parts), 1)}."
        )


register(Method("wavegc", WaveGC, presets=PRESETS / "wavegc", revision=2))
