r"""Sums over edges by the Triton kernels, with their backward passes.

Each is one ``torch.library`` operator, so ``torch.compile`` and ``torch.export`` see a single
node. The backward pass over sources walks the edges in the order of their sources, which the plan
of the neighbourhoods holds beside the given one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from geof.errors import DeviceError, DtypeError, ShapeError
from geof.kernels import triton_kernels as kernels
from geof.kernels.factored import EdgeMoments
from geof.kernels.neighbourhood import Neighbourhoods
from geof.kernels.operators import stand_in


class TransposedPlan(NamedTuple):
    """The edges by target and, for the backward pass, by source.

    Attributes:
        pointer: ``(n + 1,)``; node ``i``'s incoming edges are ``pointer[i]:pointer[i + 1]``.
        source: ``(E,)``, of each.
        out_pointer: ``(n + 1,)``, the same for outgoing edges.
        out_target: ``(E,)``, of each outgoing edge.
        out_edge: ``(E,)``, its place among the incoming ones.
    """

    pointer: Tensor
    source: Tensor
    out_pointer: Tensor
    out_target: Tensor
    out_edge: Tensor


def transposed_plan(edges: Neighbourhoods) -> TransposedPlan:
    """Return the plan of the neighbourhoods, made once."""

    def build() -> TransposedPlan:
        # Half the memory traffic of int64, wherever that can count the edges.
        small = max(len(edges.source), edges.num_nodes) < 2**31
        kind = torch.int32 if small else torch.int64
        ends = torch.arange(edges.num_nodes + 1, device=edges.source.device)
        by_source, order = edges.source.sort(stable=True)
        made = (
            torch.searchsorted(edges.target.contiguous(), ends),
            edges.source,
            torch.searchsorted(by_source, ends),
            edges.target[order],
            order,
        )
        return TransposedPlan(*(part.to(kind) for part in made))

    return build() if torch.compiler.is_compiling() else edges.cached(TransposedPlan, build)


class Tiling(NamedTuple):
    """How an edge kernel's programs are cut.

    Attributes:
        edges: Edges at a time.
        rows: Entries of a node's row per program.
        cols: The power of two from ``m`` on.
        groups: Programs per node.
    """

    edges: int
    rows: int
    cols: int
    groups: int


LARGEST_ROWS = 64
LARGEST_TILE = 2048  # entries at a time: 16 per thread and temporary, which hardly spills
LARGEST_EDGES = 16
WIDEST = 128  # entries of a row at a time where the weights are formed
# Said, because Triton's default for contracting a product and a sum changes between versions.
LAUNCH = {"num_warps": 4, "enable_fp_fusion": True}


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below ``number``."""
    return 1 << max(number - 1, 0).bit_length()


def edge_tiling(d: int, m: int, *, second: bool) -> Tiling:
    """Return the tiling for rows of ``d`` numbers in blocks of ``m``."""
    rows, cols = min(power_of_two(d), LARGEST_ROWS), power_of_two(m)
    edges = LARGEST_TILE // (rows * (cols if second else 1))
    return Tiling(max(1, min(edges, LARGEST_EDGES)), rows, cols, -(-d // rows))


@lru_cache(maxsize=64)
def on_device(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return scalars for a kernel; copied once, since a copy waits for the device."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)


def launching_at(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context that launches on the tensor's device."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else nullcontext()


def checked(
    like: Tensor, *given: tuple[str, Tensor, Sequence[int]], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Return tensors as the kernels, which get addresses alone, must have them: contiguous.

    Args:
        like: On whose device they must be, and whose dtype, float32 or float64, they must have.
        *given: Names, tensors and the shapes that go with the rest.
        dtype: Another dtype than that.

    Raises:
        DtypeError: If one is of another dtype, or is no tensor.
        DeviceError: If one is elsewhere.
        ShapeError: If one has another shape.
    """
    wanted = dtype or like.dtype
    if dtype is None and like.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            f"Expected float32 or float64 for the triton backend (got {like.dtype}). Use "
            "model.float() or backend='torch'."
        )
    for name, tensor, shape in given:
        if not isinstance(tensor, Tensor) or tensor.dtype != wanted:
            got = getattr(tensor, "dtype", tensor)
            raise DtypeError(f"Expected '{name}' to be a tensor of {wanted} (got {got!s:.40}).")
        if tensor.device != like.device:
            raise DeviceError(
                f"Expected '{name}' on {like.device}, where the others are (got {tensor.device}). "
                "Use .to(device) for all of them."
            )
        if tensor.shape != torch.Size(shape):
            raise ShapeError(
                f"Expected '{name}' of shape {tuple(shape)} (got {tuple(tensor.shape)})."
            )
    return [tensor.contiguous() for _, tensor, _ in given]


def _checked_plan(plan: Sequence[Tensor], h: Tensor) -> TransposedPlan:
    """Return a plan whose arrays have the lengths they must have; its indices are believed."""
    if len(plan) != len(TransposedPlan._fields) or plan[0].dtype not in (torch.int32, torch.int64):
        raise ShapeError(
            f"Expected a plan of {len(TransposedPlan._fields)} tensors of int32 or int64, as "
            f"transposed_plan makes it (got {len(plan)})."
        )
    ends, edges = (len(h) + 1,), (plan[1].numel(),)
    shapes = ends, edges, ends, edges, edges
    named = zip(TransposedPlan._fields, plan, shapes, strict=True)
    return TransposedPlan(*checked(h, *named, dtype=plan[0].dtype))


def _checked_states(h: Tensor, y: Tensor) -> list[Tensor]:
    if y.dim() != 3:
        raise ShapeError(f"Expected 'y' of shape (n, B, m) (got {tuple(y.shape)}).")
    return checked(y, ("h", h, y.shape), ("y", y, y.shape))


def edge_moments(
    h: Tensor, y: Tensor, edges: Neighbourhoods, temperature: float, *, second: bool
) -> EdgeMoments:
    """Do what :func:`geof.kernels.factored.edge_moments` does, for edges that carry nothing."""
    plan = list(transposed_plan(edges))
    return EdgeMoments(*_edge_moments(h, y, plan, edges.active, temperature, second))


@torch.library.custom_op("geof::triton_edge_moments", mutates_args=())
def _edge_moments(
    h: Tensor,
    y: Tensor,
    plan: Sequence[Tensor],
    active: Tensor | None,
    temperature: float,
    second: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    h, y = _checked_states(h, y)
    pointer, source, *_ = _checked_plan(plan, h)
    if active is not None:
        (active,) = checked(h, ("active", active, source.shape), dtype=torch.bool)
    n, blocks, m = y.shape
    d = blocks * m
    weight, first, outer = _empty_moments(h, y, source, second)
    if not n:
        return weight, first, outer
    tiles = edge_tiling(d, m, second=second)
    score, normaliser = torch.empty_like(weight), h.new_empty(n)
    tau = on_device((temperature,), h.dtype, h.device)
    with launching_at(h):
        kernels.edge_scores[(n,)](
            h,
            pointer,
            source,
            score if active is None else active.view(torch.uint8),
            tau,
            score,
            normaliser,
            d,
            EDGES=LARGEST_EDGES,
            WIDTH=min(power_of_two(d), WIDEST),
            MASKED=active is not None,
            **LAUNCH,
        )
        kernels.weighted_moments[(n, tiles.groups)](
            y,
            pointer,
            source,
            score,
            normaliser,
            weight,
            first,
            outer,
            d,
            m,
            EDGES=tiles.edges,
            ROWS=tiles.rows,
            COLS=tiles.cols,
            SECOND=second,
            **LAUNCH,
        )
    return weight, first, outer


def _empty_moments(
    h: Tensor, y: Tensor, source: Tensor, second: bool
) -> tuple[Tensor, Tensor, Tensor]:
    outer = y.new_empty(*y.shape, y.size(-1)) if second else y.new_empty(0)
    return h.new_empty(source.shape), y.new_empty(y.shape), outer


@_edge_moments.register_fake
@stand_in
def _(
    h: Tensor,
    y: Tensor,
    plan: Sequence[Tensor],
    active: Tensor | None,
    temperature: float,
    second: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_moments(h, y, plan[1], second)


@torch.library.custom_op("geof::triton_edge_moments_backward", mutates_args=())
def _edge_moments_backward(
    grad_weight: Tensor,
    grad_first: Tensor,
    grad_second: Tensor,
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    plan: Sequence[Tensor],
    temperature: float,
    second: bool,
) -> tuple[Tensor, Tensor]:
    h, y = _checked_states(h, y)
    pointer, source, out_pointer, out_target, out_edge = _checked_plan(plan, h)
    n, blocks, m = y.shape
    grad_weight, weight, grad_first, grad_second = checked(
        h,
        ("grad_weight", grad_weight, source.shape),
        ("weight", weight, source.shape),
        ("grad_first", grad_first, y.shape),
        ("grad_second", grad_second, (*y.shape, m) if second else grad_second.shape),
    )
    d, num_edges = blocks * m, len(source)
    grad_h, grad_y = torch.empty_like(h), torch.empty_like(y)
    if not n:
        return grad_h, grad_y
    curvature = (grad_second + grad_second.mT).contiguous() if second else grad_first
    tiles = edge_tiling(d, m, second=second)
    share, grad_exponent = h.new_empty(tiles.groups, num_edges), torch.empty_like(weight)
    tile = {"EDGES": tiles.edges, "ROWS": tiles.rows, "COLS": tiles.cols, "SECOND": second}
    with launching_at(h):
        kernels.pull_on_weights[(n, tiles.groups)](
            y,
            pointer,
            source,
            weight,
            grad_first,
            curvature,
            share,
            grad_y,
            d,
            m,
            num_edges,
            **tile,
            **LAUNCH,
        )
        kernels.pull_on_exponents[(n,)](
            pointer,
            weight,
            grad_weight,
            share,
            grad_exponent,
            num_edges,
            tiles.groups,
            EDGES=2 * LARGEST_EDGES,
            **LAUNCH,
        )
        kernels.pull_on_states[(n, tiles.groups)](
            h,
            y,
            pointer,
            source,
            out_pointer,
            out_target,
            out_edge,
            weight,
            grad_exponent,
            grad_first,
            curvature,
            on_device((temperature,), h.dtype, h.device),
            grad_h,
            grad_y,
            d,
            m,
            **tile,
            **LAUNCH,
        )
    return grad_h, grad_y


@_edge_moments_backward.register_fake
@stand_in
def _(
    grad_weight: Tensor,
    grad_first: Tensor,
    grad_second: Tensor,
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    plan: Sequence[Tensor],
    temperature: float,
    second: bool,
) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), y.new_empty(y.shape)


def _save_moments(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    h, y, plan, _, ctx.temperature, ctx.second = inputs
    ctx.save_for_backward(h, y, output[0], *plan)


def _moments_gradient(
    ctx: Any, grad_weight: Tensor, grad_first: Tensor, grad_second: Tensor
) -> tuple[Any, ...]:
    h, y, weight, *plan = ctx.saved_tensors
    grads = _edge_moments_backward(
        grad_weight,
        grad_first,
        grad_second,
        h,
        y,
        weight,
        plan,
        ctx.temperature,
        ctx.second,
    )
    return *grads, [None for _ in plan], None, None, None


_edge_moments.register_autograd(_moments_gradient, setup_context=_save_moments)
