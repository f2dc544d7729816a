r"""SPDGNN: a positive definite matrix per node, in the log-Cholesky geometry.

For :math:`P = L L^\top` with Cholesky factor :math:`L`, strictly lower part :math:`\lfloor L
\rfloor` and diagonal :math:`\mathbb D(L)`, the coordinates

.. math::
    \varphi(P) = \lfloor L \rfloor + \log \mathbb D(L)

are an isometry to a flat space: distances are Euclidean, and the Frechet mean with weights
:math:`w_j` has coordinates :math:`\sum_j w_j \varphi(P_j)`. The network is

.. math::
    \text{lift:} \quad & \varphi(P_i) = \operatorname{mat}(\operatorname{Drop}(W x_i + b)),
    \quad \text{diagonal clamped to } [-5, 5] \\
    \text{transform:} \quad & P_i' = Q P_i Q^\top + \delta I, \quad Q \in \mathbb R^{q \times p},
    \ Q Q^\top = I \\
    \text{aggregate:} \quad & \varphi(P_i'') = \sum_j [D^{-1}(A + I)]_{ij} \, \varphi(P_j') \\
    \text{activate:} \quad & L_i \leftarrow \lfloor L_i'' \rfloor
    + \max(\mathbb D(L_i''), \epsilon)

with the last three once per layer; the states are :math:`\operatorname{vec} \varphi(P_i)`.
Multinomial logistic regression in a flat geometry is a linear layer on the coordinates, and the
Frechet mean of a graph is the mean of its nodes' coordinates, so the shared readouts for nodes and
graphs are the method's own. Pairs are scored by the Fermi-Dirac decoder on the squared distance.

References: Wang and Chang, "Enhancing graph neural networks on SPD manifolds via Cholesky
decomposition", Pattern Recognition 2025; the geometry is Lin's, "Riemannian geometry of symmetric
positive definite matrices via Cholesky decomposition", SIAM J. Matrix Analysis 2019.

**Evidence.** No official code was found. From paper: the log-Cholesky facts, and the list of
operators (linear lift, bilinear transform with an orthonormal matrix, closed-form mean,
rectified diagonal, logistic regression in the same geometry), which a submission of the same name
to ICLR 2024 has. Reconstructed: every formula's details, the clamp, :math:`\epsilon`, all
hyperparameters, links and graphs; ``norm`` is our addition. Numbers are those of a
re-implementation from a description.

**The new factor.** With :math:`B = Q L` there are two routes to the factor of
:math:`P' = B B^\top + \delta I`: its Cholesky factorisation, or :math:`[B, \sqrt\delta I]^\top =
U R` and :math:`L' = R^\top` with columns signed so that the diagonal is positive. The second does
not square the condition number, which the lift lets grow beyond :math:`e^{10}`. The gradient of
either contains the inverse of :math:`L'`; :math:`\delta = 10^{-5}` keeps that below 320 in norm.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal

from geof.errors import ConfigError
from geof.geometry.cholesky import JitterSchedule, stabilised_cholesky
from geof.geometry.log_triangular import (
    coordinates_from_frame,
    frame_from_coordinates,
    num_coordinates,
    split_coordinates,
)
from geof.methods.interface import GraphInputs
from geof.methods.registry import Method, register
from geof.nn.inputs import SparseLinear
from geof.nn.refinement import norm_layer
from geof.nn.settings import Norm
from geof.options import (
    Count,
    Positive,
    Probability,
    checked,
)
from geof_paper.baselines.fermi_dirac import FermiDiracReadout
from geof_paper.baselines.fixed_products import graph_product
from geof_paper.baselines.sparse import input_features, mean_adjacency
from geof_paper.presets import PRESETS

Factorisation: TypeAlias = Literal["qr", "cholesky"]

LOG_DIAGONAL_BOUND = 5.0
"""Of the lift: the exponential of an unbounded logit overflows."""

JITTER = JitterSchedule(initial=1e-5)
r"""The transform's :math:`\delta`; the Cholesky route takes more where a block needs it."""


class SPDGNN(nn.Module):
    r"""Frechet means of positive definite matrices along edges.

    Args:
        in_channels: Width of the features.
        matrix_size: :math:`p`, of the matrices; the states have :math:`p (p + 1) / 2` entries.
        out_size: :math:`q \le p`, of the matrices after the last layer (default: ``matrix_size``).
        num_layers: How often to transform, aggregate and activate.
        norm: Normalisation of the lift's output: ``"none"``, ``"layer"`` or ``"batch"``. Features
            of a large size or with a large common part drive the lift into its clamp, from where
            no gradient leads back; normalisation over the nodes keeps it out.
        dropout: Of the lift's output.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        feature_dropout: Of the input features.
        floor: :math:`\epsilon > 0`, least diagonal entry of a factor after a layer. It is the
            strength of the nonlinearity: 1 is a ReLU on the logarithms, 1e-4 next to nothing.
        rectify_lower: Whether a ReLU acts on the strictly lower part too, an ablation.
        factorisation: ``"qr"`` or ``"cholesky"``, two routes to the same factor.
    """

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        matrix_size: Count = 8,
        out_size: Count | None = None,
        num_layers: Count = 2,
        norm: Norm = "none",
        dropout: Probability = 0.5,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        floor: Positive = 0.5,
        rectify_lower: bool = False,
        factorisation: Factorisation = "qr",
    ) -> None:
        super().__init__()
        out_size = matrix_size if out_size is None else out_size
        if out_size > matrix_size:
            raise ConfigError(
                f"Expected 'out_size' of at most 'matrix_size' (got {out_size} and {matrix_size}). "
                "Rows of a longer matrix cannot be orthonormal."
            )
        self.dropout, self.feature_dropout = dropout, feature_dropout
        self.scale_features, self.rectify_lower = scale_features, rectify_lower
        self.least_log, self.factorisation = math.log(floor), factorisation
        self.out_channels = num_coordinates(out_size)
        self.lift = SparseLinear(in_channels, num_coordinates(matrix_size))
        self.norm = norm_layer(norm, num_coordinates(matrix_size))
        sizes = [matrix_size] * (num_layers - 1) + [out_size]
        self.transforms = nn.ModuleList(_orthonormal(size, matrix_size) for size in sizes)

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the log-Cholesky coordinates of each node's matrix, diagonal last."""
        coords = self._lifted(inputs)
        for transform in self.transforms:
            weight: Tensor = transform.weight  # type: ignore[assignment]
            coords = transformed(coords, weight, self.factorisation)
            coords = self._activated(graph_product(inputs, mean_adjacency, coords))
        return coords

    def _lifted(self, inputs: GraphInputs) -> Tensor:
        x = input_features(self, inputs)
        lifted = F.dropout(self.norm(self.lift(x)), self.dropout, self.training)
        lower, log_diagonal = split_coordinates(lifted)
        bounded = log_diagonal.clamp(-LOG_DIAGONAL_BOUND, LOG_DIAGONAL_BOUND)
        return torch.cat([lower, bounded], dim=-1)

    def _activated(self, coords: Tensor) -> Tensor:
        """Rectify the diagonal: max(exp(l), floor) is exp(max(l, log floor))."""
        lower, log_diagonal = split_coordinates(coords)
        if self.rectify_lower:
            lower = F.relu(lower)
        return torch.cat([lower, log_diagonal.clamp_min(self.least_log)], dim=-1)


def _orthonormal(rows: int, columns: int) -> nn.Module:
    """Return a module whose ``weight`` has orthonormal rows, whatever an optimiser does."""
    # Householder products, the default for fewer rows, are not safe from weight decay: they keep
    # signs on the diagonal of the parameter, which it pulls to zero.
    linear = nn.Linear(columns, rows, bias=False)
    module: nn.Module = orthogonal(linear, orthogonal_map="matrix_exp")
    for start in module.buffers():  # the transpose of a tensor; checkpoints want contiguous ones
        start.data = start.contiguous()
    return module


def transformed(coords: Tensor, weight: Tensor, factorisation: Factorisation = "qr") -> Tensor:
    r"""Return the coordinates of :math:`Q P Q^\top + \delta I`, ``(n, t)``.

    Args:
        coords: ``(n, t)``, of :math:`P`.
        weight: :math:`Q`, ``(q, p)``.
        factorisation: The route to the factor.
    """
    product = weight @ frame_from_coordinates(coords)
    factor = _by_qr(product) if factorisation == "qr" else _by_cholesky(product)
    return coordinates_from_frame(factor)


def _by_qr(product: Tensor) -> Tensor:
    r"""Return :math:`R^\top` of :math:`[B, \sqrt\delta I]^\top = U R`, its diagonal positive."""
    jitter = JITTER.initial**0.5 * torch.eye(product.size(-2)).to(product)
    stacked = torch.cat([product, jitter.expand(len(product), -1, -1)], dim=-1)
    upper = torch.linalg.qr(stacked.mT).R
    diagonal = upper.diagonal(dim1=-2, dim2=-1)
    sign = torch.where(diagonal < 0, -1.0, 1.0).to(upper)
    lower: Tensor = (sign.unsqueeze(-1) * upper).mT
    return lower


def _by_cholesky(product: Tensor) -> Tensor:
    return stabilised_cholesky(product @ product.mT, JITTER).factor


register(Method("spdgnn", SPDGNN, readouts={"link": FermiDiracReadout}, presets=PRESETS / "spdgnn"))
