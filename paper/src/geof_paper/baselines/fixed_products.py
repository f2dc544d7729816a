"""Products with a graph's own matrix, which is not trained.

The gradient of :math:`A x` is :math:`A^T` times what comes from behind. ``torch.sparse.mm``
transposes the matrix in every backward pass, which takes ten times as long as the product itself;
here the transposed matrix is made once and cached with the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from geof.methods.interface import GraphInputs
from geof_paper.baselines.sparse import csr_transpose


def graph_product(
    inputs: GraphInputs, matrix_of: Callable[[GraphInputs], Tensor], x: Tensor
) -> Tensor:
    """Return the product of a graph's matrix and ``x``, differentiable in ``x`` only.

    Args:
        inputs: The graph.
        matrix_of: One of the functions of :mod:`geof_paper.baselines.sparse` that return a CSR
            matrix of the dtype of ``inputs.x`` and cache it with the graph.
        x: ``(n, d)`` of the same dtype.
    """
    matrix = matrix_of(inputs)
    if not (x.requires_grad and torch.is_grad_enabled()):
        plain: Tensor = torch.sparse.mm(matrix, x)
        return plain
    transposed = inputs.cached(
        (csr_transpose, matrix_of, matrix.dtype), lambda: csr_transpose(matrix)
    )
    return fixed_product(matrix, transposed, x)


def fixed_product(matrix: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
    """Return the product of a fixed CSR matrix and ``x``; its transpose serves the gradient."""
    product: Tensor = _FixedProduct.apply(matrix, transposed, x)  # type: ignore[no-untyped-call]
    return product


class _FixedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        ctx.transposed = transposed
        product: Tensor = torch.sparse.mm(matrix, x.contiguous())
        return product

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, torch.sparse.mm(ctx.transposed, grads[0].contiguous())
