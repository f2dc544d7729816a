r"""Block log-triangular coordinates (paper, section 3.1 and appendix "Numerical Operators").

A block of a node's geometry is a vector of :math:`t = m(m+1)/2` coordinates
:math:`z = [a, \ell]`: the strictly lower entries of a triangular frame row by row, then the
logarithms of its diagonal. Eq. (1) of the paper reads

.. math::
    L(z) = \operatorname{mat}_{sl}(a) + \operatorname{Diag}(e^{\ell}), \qquad
    g(z) = L(z)^\top L(z).

Everything here is a pure function over arbitrary leading dimensions; ``...`` below stands for
them (usually nodes and blocks).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from geof.errors import ShapeError


def num_coordinates(block_size: int) -> int:
    """Return ``t = m (m + 1) / 2``, the coordinates of one block of size ``m``."""
    return block_size * (block_size + 1) // 2


def block_size_of(num_coords: int) -> int:
    """Return the block size ``m`` with ``m (m + 1) / 2 == num_coords``.

    Raises:
        ShapeError: If ``num_coords`` is not a triangular number.
    """
    size = (math.isqrt(8 * max(num_coords, 0) + 1) - 1) // 2
    if num_coords < 1 or num_coordinates(size) != num_coords:
        raise ShapeError(
            "Expected the last dimension of 'coords' to be m(m+1)/2 for a block size m >= 1, "
            f"that is 1, 3, 6, 10, 15, 21, 28, 36, ... (got {num_coords})."
        )
    return size


def _strictly_lower_indices(block_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the strictly lower entries in row-major order, Eq. (49)."""
    rows, columns = torch.tril_indices(block_size, block_size, offset=-1, device=device)
    return rows, columns


def strictly_lower_vector(matrix: Tensor) -> Tensor:
    r"""Stack the strictly lower entries row by row: :math:`\operatorname{Svec}_{sl}`, Eq. (49).

    Args:
        matrix: ``(..., m, m)``.

    Returns:
        ``(..., m (m - 1) / 2)`` in the order ``A21, A31, A32, A41, ...``.

    >>> strictly_lower_vector(torch.tensor([[0., 0, 0], [1, 0, 0], [2, 3, 0]]))
    tensor([1., 2., 3.])
    """
    require_square(matrix, "matrix")
    rows, cols = _strictly_lower_indices(matrix.size(-1), matrix.device)
    return matrix[..., rows, cols]


def strictly_lower_matrix(vector: Tensor, block_size: int) -> Tensor:
    r"""Place a vector into the strictly lower triangle: :math:`\operatorname{mat}_{sl}`, Eq. (50).

    Args:
        vector: ``(..., m (m - 1) / 2)``.
        block_size: The size ``m`` of the matrix.

    Returns:
        ``(..., m, m)``, zero on and above the diagonal.
    """
    rows, cols = _strictly_lower_indices(block_size, vector.device)
    if vector.size(-1) != len(rows):
        raise ShapeError(
            f"Expected 'vector' to end in {len(rows)} entries for block size {block_size} "
            f"(got {vector.size(-1)})."
        )
    matrix = vector.new_zeros(*vector.shape[:-1], block_size, block_size)
    if len(rows):
        matrix[..., rows, cols] = vector
    return matrix


def split_coordinates(coords: Tensor) -> tuple[Tensor, Tensor]:
    r"""Split ``(..., t)`` into :math:`a` ``(..., m (m - 1) / 2)`` and :math:`\ell` ``(..., m)``."""
    size = block_size_of(coords.size(-1))
    return coords[..., :-size], coords[..., -size:]


def frame_from_coordinates(coords: Tensor) -> Tensor:
    r"""Reconstruct the triangular frame :math:`L(z)`, Eq. (1).

    Args:
        coords: ``(..., t)``.

    Returns:
        Lower triangular ``(..., m, m)`` with positive diagonal.

    >>> frame_from_coordinates(torch.tensor([5., 0., 0.]))
    tensor([[1., 0.],
            [5., 1.]])
    """
    offdiagonal, log_scale = split_coordinates(coords)
    lower = strictly_lower_matrix(offdiagonal, log_scale.size(-1))
    return lower + torch.diag_embed(log_scale.exp())


def coordinates_from_frame(frame: Tensor) -> Tensor:
    r"""Read the coordinates off a frame: inverse of :func:`frame_from_coordinates`, Eq. (54).

    Args:
        frame: ``(..., m, m)``; entries above the diagonal are not read.

    Returns:
        ``(..., t)``.
    """
    lower = strictly_lower_vector(frame)
    return torch.cat([lower, frame.diagonal(dim1=-2, dim2=-1).log()], dim=-1)


def metric_from_coordinates(coords: Tensor) -> Tensor:
    r"""Return the local metric :math:`g = L^\top L`, Eq. (1), ``(..., m, m)``."""
    frame = frame_from_coordinates(coords)
    return frame.mT @ frame


def coordinates_from_metric(metric: Tensor) -> Tensor:
    r"""Return the coordinates whose metric is ``metric``.

    :math:`g = L^\top L` with lower triangular :math:`L` is a Cholesky factorisation read from
    the last row upwards, so both axes are flipped before and after the library call.

    Args:
        metric: Symmetric positive definite ``(..., m, m)``.

    Returns:
        ``(..., t)``.
    """
    require_square(metric, "metric")
    flipped = torch.linalg.cholesky(metric.flip(-2, -1))
    return coordinates_from_frame(flipped.mT.flip(-2, -1))


def log_determinant(coords: Tensor) -> Tensor:
    r"""Return :math:`\log\det L = \sum_t \ell_t` of each block (Lemma 1), shape ``(...)``.

    Sum over the blocks for the node's :math:`\log\det L_i`; twice it is the metric's.
    """
    return split_coordinates(coords)[1].sum(-1)


class Ellipsoids(NamedTuple):
    r"""How a frame deforms the local unit ball, from :math:`L = U \operatorname{Diag}(s) V^\top`.

    Attributes:
        lengths: ``(..., m)``, the stretch factors :math:`s`, largest first.
        environment_axes: ``(..., m, m)``, column ``k`` is the environment direction of the
            ``k``-th semi-axis of :math:`\{L x : \|x\| \le 1\}` (Eq. 57 for the target frame).
        local_axes: ``(..., m, m)``, column ``k`` is the local direction that is stretched by
            ``lengths[..., k]``: an eigenvector of the metric :math:`g`.
    """

    lengths: Tensor
    environment_axes: Tensor
    local_axes: Tensor


def ellipsoids(coords: Tensor) -> Ellipsoids:
    """Return the ellipsoid of every block, for inspection."""
    left, lengths, right = torch.linalg.svd(frame_from_coordinates(coords))
    return Ellipsoids(lengths, left, right.mT)


def apply_frame(frame: Tensor, vector: Tensor) -> Tensor:
    r"""Return :math:`L v` per block: ``(..., m, m)`` and ``(..., m)`` to ``(..., m)``."""
    return (frame @ vector.unsqueeze(-1)).squeeze(-1)


def triangular_solve(frame: Tensor, vector: Tensor) -> Tensor:
    r"""Return :math:`L^{-1} v` per block by forward substitution (TriSolve of Eq. 5)."""
    solution: Tensor = torch.linalg.solve_triangular(frame, vector.unsqueeze(-1), upper=False)
    return solution.squeeze(-1)


def require_square(matrix: Tensor, name: str) -> None:
    """Raise ``ShapeError`` unless ``matrix`` has shape ``(..., m, m)``."""
    if matrix.dim() < 2 or matrix.size(-1) != matrix.size(-2):
        raise ShapeError(
            f"Expected '{name}' to have shape (..., m, m) (got {tuple(matrix.shape)})."
        )
