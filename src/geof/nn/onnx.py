r"""Models as ONNX: the operators of the step that ONNX lacks, written out in those it has.

ONNX has no Cholesky factor, no triangular solve and no stable sort. Blocks are small and their size
:math:`m` is fixed, so factor and solve are written out column by column over all blocks at once; a
retry with a larger jitter cannot depend on values there, so every jitter of the schedule is tried
and each block takes the first that serves, which is what the operator does too. ``TopK`` keeps the
order of equal entries by its definition.
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
    columns: list[Tensor] = []
    for j in range(size):
        rest = matrix[..., j:, j]  # (..., m - j)
        for earlier in columns:
            rest = rest - earlier[..., j:] * earlier[..., j : j + 1]
        # The root of a negative number is NaN, and zero makes NaN of what follows.
        column = rest / rest[..., :1].sqrt()
        columns.append(torch.nn.functional.pad(column, (j, 0)))
    return torch.stack(columns, dim=-1)


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
    rows: dict[int, Tensor] = {}
    for i in reversed(range(size)) if upper else range(size):
        rest = right[..., i, :]
        for j, known in rows.items():
            rest = rest - matrix[..., i, j : j + 1] * known
        rows[i] = rest if unitriangular else rest / matrix[..., i, i : i + 1]
    return torch.stack([rows[i] for i in range(size)], dim=-2)


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
    largest = jitter * growth**retries
    tried: list[tuple[Tensor, Tensor]] = []
    for t in range(retries + 1):
        factor = written_out_factor(matrix + jitter * growth**t * eye)
        tried.append((factor, _sound(factor, torch.zeros_like(size))))
    for relative in RELATIVE_JITTERS if rescue else ():
        added = largest + relative * size
        factor = written_out_factor(matrix + added[..., None, None] * eye)
        tried.append((factor, _sound(factor, 0.5 * added)))
    # Backwards, so that the first that serves is what remains.
    found = eye.expand_as(matrix) if rescue else tried[-1][0]
    attempt = torch.full_like(size, len(tried), dtype=torch.long)
    for number in reversed(range(len(tried))):
        factor, serves = tried[number]
        found = torch.where(serves[..., None, None], factor, found)
        attempt = torch.where(serves, number, attempt)
    return found, attempt


def _sound(factor: Tensor, least: Tensor) -> Tensor:
    """Return which factors are finite with squared pivots of at least so much, ``(...)``."""
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    # A comparison with NaN is false; an infinite pivot is no factor either.
    enough = (pivots > 0) & (pivots.square() >= least.unsqueeze(-1)) & (pivots < torch.inf)
    return enough.all(-1)


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
    written = torch.onnx.export(
        program, dynamo=True, opset_version=OPSET, verbose=False, **options
    )
    if path is not None:
        written.save(path)
    return written
