r"""Models as ONNX: the operators of the step that ONNX lacks, written out in those it has.

ONNX has no Cholesky factor, no triangular solve and no stable sort. Blocks are small and their size
:math:`m` is fixed, so factor and solve are written out column by column over all blocks at once; a
retry with a larger jitter cannot depend on values there, so all jitters of the schedule are tried
at once and each block takes the first that serves, which is what the operator does too. ``TopK``
keeps the order of equal entries by its definition.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from geof.errors import ConfigError, DataError
from geof.geometry.cholesky import RELATIVE_JITTERS
from geof.nn.step import Recurrence

OPSET = 18
"""The version of ONNX's operators that is written."""


def written_out_factor(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of ``(..., m, m)``, column by column; NaN where there is none.

    Only the lower triangle is read.
    """
    size = matrix.size(-1)
    factor = matrix[..., :0]  # (..., m, columns so far)
    for j in range(size):
        rest = matrix[..., j:, j : j + 1]  # (..., m - j, 1)
        if j:
            rest = rest - factor[..., j:, :] @ factor[..., j : j + 1, :].mT
        # The root of a negative number is NaN, and zero makes NaN of what follows.
        column = torch.nn.functional.pad(rest / rest[..., :1, :].sqrt(), (0, 0, j, 0))
        factor = torch.cat([factor, column], dim=-1) if j else column
    return factor


def written_out_solve(
    matrix: Tensor, right: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Return ``torch.linalg.solve_triangular`` by substitution, row by row."""
    if not left:
        turned = written_out_solve(
            matrix.mT, right.mT, upper=not upper, unitriangular=unitriangular
        )
        return turned.mT
    size = matrix.size(-1)
    known: Tensor | None = None  # (..., rows so far, k), in their order
    for i in reversed(range(size)) if upper else range(size):
        row = right[..., i : i + 1, :]
        if known is not None:
            before = slice(i + 1, size) if upper else slice(0, i)
            row = row - matrix[..., i : i + 1, before] @ known
        if not unitriangular:
            row = row / matrix[..., i : i + 1, i : i + 1]
        pieces = [row] if known is None else [row, known] if upper else [known, row]
        known = torch.cat(pieces, dim=-2)
    return right if known is None else known


def written_out_stabilised(
    matrix: Tensor, jitter: float, growth: float, retries: int, rescue: bool
) -> tuple[Tensor, Tensor]:
    """Return what ``geof::stabilised_cholesky`` does, without a branch on values.

    It cannot raise: blocks that hold a NaN, or for which nothing serves, come out as NaN, or, with
    ``rescue``, as the identity with the attempt that says so.
    """
    eye = torch.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)
    lower = matrix.tril().abs()
    size = (lower.sum(-1) + lower.tril(-1).sum(-2)).amax(-1)  # the largest row sum, (...)
    fixed = [torch.full_like(size, jitter * growth**t) for t in range(retries + 1)]
    relative = RELATIVE_JITTERS if rescue else ()
    added = torch.stack([*fixed, *(fixed[-1] + part * size for part in relative)])  # (T, ...)
    # Beyond the schedule a pivot far below the jitter is rounding alone.
    least = torch.stack([*(torch.zeros_like(one) for one in fixed), *(0.5 * added[len(fixed) :])])
    factors = written_out_factor(matrix.unsqueeze(0) + added[..., None, None] * eye)
    pivots = factors.diagonal(dim1=-2, dim2=-1)
    # A comparison with NaN is false; an infinite pivot is no factor either.
    enough = (pivots > 0) & (pivots.square() >= least.unsqueeze(-1)) & (pivots < torch.inf)
    serves = enough.all(-1)  # (T, ...)
    # Backwards, so that the first that serves is what remains.
    count = len(fixed) + len(relative)
    found = eye.expand_as(matrix) if rescue else factors[-1]
    attempt = torch.full_like(size, count, dtype=torch.long)
    for number in reversed(range(count)):
        found = torch.where(serves[number][..., None, None], factors[number], found)
        attempt = torch.where(serves[number], number, attempt)
    return found, attempt


def _sorted_by_topk(
    values: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    found = values.topk(values.size(dim), dim=dim, largest=descending, sorted=True)
    return found.values, found.indices


def _remainder_by_size(values: Tensor, divisor: Any) -> Tensor:
    """Divide by a size that is not known yet as by a tensor; torch's exporter wants a number."""
    if isinstance(divisor, int | float):
        return NotImplemented  # type: ignore[no-any-return]  # "not here", in tables like these
    return values.remainder(torch.scalar_tensor(divisor, dtype=values.dtype))


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return what ONNX lacks, by operator, written out: for ``run_decompositions``."""
    return {
        torch.ops.geof.stabilised_cholesky.default: written_out_stabilised,
        torch.ops.aten.linalg_solve_triangular.default: written_out_solve,
        torch.ops.aten.sort.stable: _sorted_by_topk,
        torch.ops.aten.remainder.Scalar: _remainder_by_size,
    }


def export_onnx(
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **options: Any,
) -> Any:
    """Write a model that contains :class:`GeoF` or :class:`GeoFConv` as ONNX.

    What is written computes in the paper's per-edge form, so it takes memory for every edge times
    block size, and gives the model's numbers up to rounding. It does not raise: where the model
    would refuse its input, numbers are NaN or meaningless.

    Args:
        model: Any module; it stays as it is. Exported as for evaluation.
        args: Example inputs, dense tensors.
        path: Where to write it (default: nowhere; the program that is returned can).
        kwargs: Example inputs by name.
        dynamic_shapes: As for ``torch.export.export``: which sizes may change.
        **options: Of ``torch.onnx.export``, such as ``input_names``.

    Returns:
        The ``torch.onnx.ONNXProgram``.

    Raises:
        ConfigError: If ``onnxscript`` is not installed.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "Expected onnxscript, with which torch writes ONNX. Install it with: pip install "
            "'geof[onnx]'"
        ) from error
    readable = copy.deepcopy(model).eval()
    for module in readable.modules():
        if isinstance(module, Recurrence):
            module.backend = "reference"
    with torch.no_grad():
        program = torch.export.export(
            readable, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes
        )
    lacking = decompositions()
    program = program.run_decompositions({**torch.export.default_decompositions(), **lacking})
    left = {str(n.target) for n in program.graph.nodes if str(n.target).startswith("geof.")}
    if left:
        raise DataError(
            f"Expected a model of operators that ONNX has (got {', '.join(sorted(left))}). Export "
            "the part that has none of them."
        )
    # The optimiser goes through all nodes many times, and runtimes have their own.
    options = {"optimize": False, "verbose": False, **options}
    written = torch.onnx.export(program, dynamo=True, opset_version=OPSET, **options)
    assert written is not None, "a program is what dynamo=True returns"
    if path is not None:
        written.save(path)
    return written
