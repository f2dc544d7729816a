r"""The step as the paper writes it: one triangular solve and one outer product per edge.

This is the oracle. It is written to be read beside section 3 of the paper, costs
:math:`O(E d m)` memory, and is differentiable any number of times. Everyday work belongs to
:mod:`geof.kernels.factored`, which computes the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from geof.geometry import (
    apply_frame,
    feedback_target,
    frame_from_coordinates,
    triangular_solve,
)
from geof.kernels.interface import Statistic, StepSpec, StepStatistics
from geof.kernels.neighbourhood import Neighbourhoods


def reference_statistics(
    xi: Tensor, message: Tensor, coords: Tensor, edges: Neighbourhoods, spec: StepSpec
) -> StepStatistics:
    """Return Eqs. (4) to (10), edge by edge; shapes as in :mod:`geof.kernels.interface`."""
    i, j = edges.target, edges.source
    frame = frame_from_coordinates(coords)  # (n, B, m, m), Eq. (1)

    h = apply_frame(frame, xi)  # (n, B, m), Eq. (4): h_i = L_i xi_i
    energy = (h[i] - h[j]).square().sum((-2, -1))  # (E,), Eq. (4)
    weight = neighbourhood_weights(energy, edges, spec.temperature)

    carried = None if edges.terms is None else edges.terms.carried()  # (E, B, m), e_ij
    if spec.frame_transport:  # Eq. (5): m_{j->i} = TriSolve(L_i, L_j phi(xi_j) + e_ij)
        moved = apply_frame(frame[j], message[j])
        incoming = triangular_solve(frame[i], moved if carried is None else moved + carried)
    else:
        incoming = message[j] if carried is None else message[j] + carried
    w = weight[:, None, None]
    aggregate = edges.sum(w * incoming)  # (n, B, m), Eq. (6)
    if spec.statistic is None:
        return StepStatistics(weight, aggregate, None, None, None)

    residual = incoming - message[i]  # (E, B, m), delta_ij of section 3.3
    moment = _moment(residual, w, edges, spec.statistic)  # (n, B, m, m), Eq. (8)
    moment = moment + spec.spectral_floor * torch.eye(moment.size(-1)).to(moment)
    target, attempt = feedback_target(moment, coords, spec.schedule)
    return StepStatistics(weight, aggregate, moment, target, attempt)


def neighbourhood_weights(energy: Tensor, edges: Neighbourhoods, temperature: float) -> Tensor:
    """Normalise ``exp(-energy / temperature + bias)`` over each neighbourhood, Eq. (4).

    Without a bias no maximum is subtracted: a node's energy to itself is exactly zero, so the
    exponentials lie in [0, 1] and each sum is at least one.
    """
    exponent = -energy / temperature
    if edges.terms is not None:
        exponent = exponent + edges.terms.bias
        exponent = exponent - largest_exponents(exponent, edges)[edges.target]
    score = torch.exp(exponent)
    if edges.active is not None:
        score = score * edges.active
    return score / edges.sum(score)[edges.target]


def largest_exponents(exponent: Tensor, edges: Neighbourhoods) -> Tensor:
    """Return the largest exponent of each neighbourhood, ``(n,)``; the self-loop's is zero.

    The weights do not depend on what is subtracted, so neither do gradients.
    """
    largest = exponent.new_zeros(edges.num_nodes)
    return largest.scatter_reduce(0, edges.target, exponent.detach(), "amax")


def _moment(residual: Tensor, w: Tensor, edges: Neighbourhoods, statistic: Statistic) -> Tensor:
    """Return the weighted statistic of the residuals without its floor, ``(n, B, m, m)``."""
    if statistic == "full":  # Eq. (8)
        return edges.sum((w * residual).unsqueeze(-1) * residual.unsqueeze(-2))
    if statistic == "diagonal":  # Proposition 2 (iv)
        return torch.diag_embed(edges.sum(w * residual.square()))
    mean = edges.sum(w * residual)  # Proposition 2 (i)
    return mean.unsqueeze(-1) * mean.unsqueeze(-2)
