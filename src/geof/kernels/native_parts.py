r"""The native step's parts as operators of their own: frames, edge moments, feedback.

:mod:`geof.kernels.native` runs whole steps; these show what happens inside one. Each has a
hand-derived backward pass, saves only its inputs and is once differentiable. Layouts are those of
``native/geof.h``: features ``(n, B, m)``, all else lanes last, ``(n, *, B)``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from geof.errors import DtypeError
from geof.geometry import JitterSchedule
from geof.geometry.cholesky import report_attempts
from geof.kernels.library import (
    TILES,
    Feedback,
    Frames,
    Library,
    Moments,
    Shape,
    fill,
    find_library,
    shape_of,
)
from geof.kernels.neighbourhood import Neighbourhoods


def native_library() -> Library:
    """Return the opened kernels."""
    library = find_library().library
    assert library is not None, "the native backend is registered only with its library"
    return library


def call(name: str, like: Tensor, arguments: Any) -> None:
    """Run a kernel on tensors of the dtype of ``like``."""
    if like.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            f"Expected float32 or float64 for the native backend (got {like.dtype}). "
            "Use model.float() or backend='torch'."
        )
    native_library().call(name, arguments)


def dense(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Return contiguous tensors of one dtype: the kernels know no strides.

    Raises:
        DtypeError: If floating-point tensors differ in dtype.
    """
    dtypes = {
        tensor.dtype for tensor in tensors if tensor is not None and tensor.is_floating_point()
    }
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise DtypeError(
            f"Expected tensors of one dtype for the native backend (got {names}). "
            "Use .to(dtype), and no autocast around the model."
        )
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def features_shape(features: Tensor) -> Shape:
    """Return the sizes of ``(n, B, m)`` features."""
    n, B, m = features.shape
    return shape_of(features, n, m, B)


# --- The neighbourhoods as compressed rows ------------------------------------------------------


class EdgePlan(NamedTuple):
    """The edges as rows for the forward pass and as tiles for the backward pass.

    Attributes:
        pointer: ``(n + 1,)`` int64, where each target's edges begin.
        source: ``(E,)`` int32.
        target: ``(E,)`` int32.
        tile_pointer: ``(TILES + 1,)`` int64, where each tile's edges begin.
        tile_edge: ``(E,)`` int32, the edges tile by tile.
    """

    pointer: Tensor
    source: Tensor
    target: Tensor
    tile_pointer: Tensor
    tile_edge: Tensor


def edge_plan(edges: Neighbourhoods) -> EdgePlan:
    """Return the rows of these neighbourhoods, made at the first call."""

    def build() -> EdgePlan:
        return EdgePlan(*_plan(edges.source, edges.target, edges.num_nodes))

    return build() if torch.compiler.is_compiling() else edges.cached(EdgePlan, build)


@torch.library.custom_op("geof::edge_plan", mutates_args=())
def _plan(
    source: Tensor, target: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if max(num_nodes, len(source)) >= 2**31:
        raise OverflowError(
            f"Expected fewer than 2^31 nodes and edges for the native backend (got {num_nodes} "
            f"and {len(source)}). Use backend='torch' or sampled neighbourhoods."
        )
    made = _empty_plan(source, num_nodes)
    code = native_library().plan(source.contiguous(), target.contiguous(), num_nodes, made)
    if code:
        raise ValueError("Expected neighbourhoods sorted by target, with indices below n.")
    return made


@_plan.register_fake
def _(
    source: Tensor, target: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_plan(source, num_nodes)


def _empty_plan(source: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    narrow = [torch.empty_like(source, dtype=torch.int32) for _ in range(3)]
    rows, tiles = source.new_empty(num_nodes + 1), source.new_empty(TILES + 1)
    return rows, narrow[0], narrow[1], tiles, narrow[2]


# --- apply_frames: h = L xi, y = L phi(xi) ------------------------------------------------------


@torch.library.custom_op("geof::apply_frames", mutates_args=())
def apply_frames(z: Tensor, x: Tensor, message: Tensor, framed: bool) -> tuple[Tensor, Tensor]:
    r"""Return :math:`h = L \xi` and :math:`y = L \phi(\xi)` (or :math:`\phi(\xi)`) as lanes."""
    z, x, message = dense(z, x, message)
    h, y = lanes_like(x), lanes_like(x)
    arguments = fill(
        Frames,
        shape=features_shape(x),
        framed=framed,
        lanes_out=True,
        z=z,
        x=x,
        message=message,
        h=h,
        y=y,
    )
    call("apply_frames", z, arguments)
    return h, y


@apply_frames.register_fake
def _(z: Tensor, x: Tensor, message: Tensor, framed: bool) -> tuple[Tensor, Tensor]:
    return lanes_like(x), lanes_like(x)


@torch.library.custom_op("geof::apply_frames_backward", mutates_args=())
def _apply_frames_backward(
    grad_h: Tensor, grad_y: Tensor, z: Tensor, x: Tensor, message: Tensor, framed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_h, grad_y, z, x, message = dense(grad_h, grad_y, z, x, message)
    grads = dense_like(z), dense_like(x), dense_like(x)
    arguments = fill(
        Frames,
        shape=features_shape(x),
        framed=framed,
        lanes_out=True,
        z=z,
        x=x,
        message=message,
        grad_h=grad_h,
        grad_y=grad_y,
        grad_z=grads[0],
        grad_x=grads[1],
        grad_message=grads[2],
    )
    call("apply_frames_backward", z, arguments)
    return grads


@_apply_frames_backward.register_fake
def _(
    grad_h: Tensor, grad_y: Tensor, z: Tensor, x: Tensor, message: Tensor, framed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return dense_like(z), dense_like(x), dense_like(x)


def _save_frames(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, x, message, ctx.framed = inputs
    ctx.save_for_backward(z, x, message)


def _frames_gradients(ctx: Any, grad_h: Tensor, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    return *_apply_frames_backward(grad_h, grad_y, *ctx.saved_tensors, ctx.framed), None


apply_frames.register_autograd(_frames_gradients, setup_context=_save_frames)


@torch.library.custom_op("geof::environment", mutates_args=())
def environment(z: Tensor, x: Tensor) -> Tensor:
    r"""Return :math:`h = L \xi` as features."""
    z, x = dense(z, x)
    h = torch.empty_like(x)
    call("apply_frames", z, fill(Frames, shape=features_shape(x), z=z, x=x, h=h))
    return h


@environment.register_fake
def _(z: Tensor, x: Tensor) -> Tensor:
    return dense_like(x)


@torch.library.custom_op("geof::environment_backward", mutates_args=())
def _environment_backward(grad_h: Tensor, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    grad_h, z, x = dense(grad_h, z, x)
    grad_z, grad_x = dense_like(z), dense_like(x)
    arguments = fill(
        Frames, shape=features_shape(x), z=z, x=x, grad_h=grad_h, grad_z=grad_z, grad_x=grad_x
    )
    call("apply_frames_backward", z, arguments)
    return grad_z, grad_x


@_environment_backward.register_fake
def _(grad_h: Tensor, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return dense_like(z), dense_like(x)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _environment_gradients(ctx: Any, grad_h: Tensor) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = _environment_backward(grad_h, *ctx.saved_tensors)
    return gradients


environment.register_autograd(_environment_gradients, setup_context=_save_inputs)


def lanes_like(x: Tensor) -> Tensor:
    """Return uninitialised lanes ``(n, m, B)`` for features ``(n, B, m)``."""
    n, B, m = x.shape
    return x.new_empty(n, m, B)


def dense_like(x: Tensor) -> Tensor:
    """Return an uninitialised contiguous tensor of the same shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# --- edge_moments -------------------------------------------------------------------------------


class LaneMoments(NamedTuple):
    r"""Sums over neighbourhoods in environment coordinates, lanes last.

    Attributes:
        weight: ``(E,)``, :math:`\omega_{ij}`.
        first: ``(n, m, B)``, :math:`\sum_j \omega_{ij} y_j`.
        second: ``(n, t, B)``, the lower triangle of :math:`S_i` row by row; empty unless asked for.
    """

    weight: Tensor
    first: Tensor
    second: Tensor


def edge_moments(
    h: Tensor, y: Tensor, edges: Neighbourhoods, temperature: float, *, second: bool
) -> LaneMoments:
    """Weight the neighbours by environment distance and sum first and second moments.

    Args:
        h: ``(n, m, B)``, the environment states that set the weights, Eq. (4).
        y: ``(n, m, B)``, the messages in environment coordinates.
        edges: The closed neighbourhoods.
        temperature: The weights' temperature.
        second: Whether to form the second moment as well.
    """
    plan = edge_plan(edges)
    return LaneMoments(*_edge_moments(h, y, *plan, edges.active, temperature, second))


@torch.library.custom_op("geof::native_edge_moments", mutates_args=())
def _edge_moments(
    h: Tensor,
    y: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    active: Tensor | None,
    temperature: float,
    second: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    weight, first, outer = _empty_moments(y, source, second)
    h, y, active = dense(h, y, active)
    arguments = fill(
        Moments,
        shape=shape_of(y, *y.shape),
        E=len(source),
        temperature=temperature,
        h=h,
        y=y,
        pointer=pointer,
        source=source,
        active=active,
        weight=weight,
        first=first,
        second=outer if second else None,
    )
    call("edge_moments", y, arguments)
    return weight, first, outer


@_edge_moments.register_fake
def _(
    h: Tensor,
    y: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    active: Tensor | None,
    temperature: float,
    second: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_moments(y, source, second)


def _empty_moments(y: Tensor, source: Tensor, second: bool) -> tuple[Tensor, Tensor, Tensor]:
    n, m, B = y.shape
    outer = y.new_empty(n, m * (m + 1) // 2, B) if second else y.new_empty(0)
    return y.new_empty(source.shape), y.new_empty(n, m, B), outer


@torch.library.custom_op("geof::native_edge_moments_backward", mutates_args=())
def _edge_moments_backward(
    grad_weight: Tensor | None,
    grad_first: Tensor,
    grad_second: Tensor | None,
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    h, y, grad_weight, grad_first, grad_second = dense(h, y, grad_weight, grad_first, grad_second)
    grad_h, grad_y, force = dense_like(h), dense_like(y), torch.empty_like(weight)
    arguments = fill(
        Moments,
        shape=shape_of(y, *y.shape),
        E=len(source),
        temperature=temperature,
        h=h,
        y=y,
        weight=weight,
        pointer=pointer,
        source=source,
        target=target,
        tile_pointer=tile_pointer,
        tile_edge=tile_edge,
        grad_weight=grad_weight,
        grad_first=grad_first,
        grad_second=grad_second,
        force=force,
        grad_h=grad_h,
        grad_y=grad_y,
    )
    call("edge_moments_backward", y, arguments)
    return grad_h, grad_y


@_edge_moments_backward.register_fake
def _(
    grad_weight: Tensor | None,
    grad_first: Tensor,
    grad_second: Tensor | None,
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    return dense_like(h), dense_like(y)


def _save_moments(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    h, y, *plan, _, ctx.temperature, ctx.second = inputs
    # A weight's own gradient is rare and costs a pass over the edges: none where there is none.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(h, y, output[0], *plan)


def _moments_gradients(
    ctx: Any,
    grad_weight: Tensor | None,
    grad_first: Tensor | None,
    grad_second: Tensor | None,
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # to be unpacked once only, for checkpointing's sake
    grad_h, grad_y = _edge_moments_backward(
        grad_weight,
        torch.zeros_like(saved[1]) if grad_first is None else grad_first,
        grad_second if ctx.second else None,
        *saved,
        ctx.temperature,
    )
    return grad_h, grad_y, *[None] * 8


_edge_moments.register_autograd(_moments_gradients, setup_context=_save_moments)


# --- feedback_target: aggregate, statistic, target, all to be looked at -------------------------


@torch.library.custom_op("geof::feedback_target", mutates_args=())
def feedback_target(
    z: Tensor,
    message: Tensor,
    first: Tensor,
    second: Tensor,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return aggregate, target (lanes), statistic and attempts, Eqs. (6), (8), (10) and (52)."""
    tensors = dense(z, message, first, second)
    made = aggregate, target, moment, attempt = _empty_feedback(z, message, statistic)
    arguments = feedback_arguments(
        tensors,
        (statistic, framed, floor, jitter, growth, retries),
        aggregate=aggregate,
        target=target,
        moment=moment if statistic else None,
        attempt=attempt if statistic else None,
    )
    call("feedback", z, arguments)
    report(arguments, message)
    return made


@feedback_target.register_fake
def _(
    z: Tensor,
    message: Tensor,
    first: Tensor,
    second: Tensor,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_feedback(z, message, statistic)


def _empty_feedback(
    z: Tensor, message: Tensor, statistic: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, B, m = message.shape
    if not statistic:
        nothing = [z.new_empty(0), z.new_empty(0), z.new_empty(0, dtype=torch.long)]
        return message.new_empty(message.shape), *nothing  # type: ignore[return-value]
    return (
        message.new_empty(message.shape),
        dense_like(z),
        z.new_empty(n, B, m, m),
        z.new_empty(n, B, dtype=torch.long),
    )


FeedbackOptions = tuple[int, bool, float, float, float, int]


def feedback_arguments(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], options: FeedbackOptions, **fields: Any
) -> Any:
    """Return the kernel's structure for ``(z, message, first, second)``."""
    z, message, first, second = tensors
    statistic, framed, floor, jitter, growth, retries = options
    return fill(
        Feedback,
        shape=features_shape(message),
        statistic=statistic,
        framed=framed,
        floor=floor,
        jitter=jitter,
        growth=growth,
        retries=retries,
        z=z,
        message=message,
        first=first,
        second=second,
        **fields,
    )


def report(done: Any, features: Tensor) -> None:
    """Speak up about blocks that were not positive definite at the first attempt."""
    non_finite, indefinite, retried, most = done.status
    if non_finite or indefinite or retried:
        report_attempts(
            features.size(0) * features.size(1),
            JitterSchedule(done.jitter, done.growth, done.retries),
            non_finite=non_finite,
            indefinite=indefinite,
            retried=retried,
            most_retries=most,
        )


@torch.library.custom_op("geof::feedback_target_backward", mutates_args=())
def _feedback_target_backward(
    grad_aggregate: Tensor,
    grad_target: Tensor,
    z: Tensor,
    message: Tensor,
    first: Tensor,
    second: Tensor,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = dense(z, message, first, second)
    grads = _feedback_gradients_like(z, message, first, second, statistic)
    grad_aggregate, grad_target = dense(grad_aggregate, grad_target)
    arguments = feedback_arguments(
        tensors,
        (statistic, framed, floor, jitter, growth, retries),
        grad_aggregate=grad_aggregate,
        grad_target=grad_target,
        grad_z=grads[0],
        grad_message=grads[1],
        grad_first=grads[2],
        grad_second=grads[3],
    )
    call("feedback_backward", z, arguments)
    return grads


@_feedback_target_backward.register_fake
def _(
    grad_aggregate: Tensor,
    grad_target: Tensor,
    z: Tensor,
    message: Tensor,
    first: Tensor,
    second: Tensor,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _feedback_gradients_like(z, message, first, second, statistic)


def _feedback_gradients_like(
    z: Tensor, message: Tensor, first: Tensor, second: Tensor, statistic: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Only the mean statistic looks at the messages, only the others at the second moment.
    grad_second = dense_like(second) if statistic in (1, 2) else _zeros_like(second)
    return dense_like(z), _zeros_like(message), dense_like(first), grad_second


def _zeros_like(x: Tensor) -> Tensor:
    return torch.zeros_like(x, memory_format=torch.contiguous_format)


def _save_feedback(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[4:]
    ctx.save_for_backward(*inputs[:4])
    # For inspection; an attempt to differentiate it fails instead of giving a silent zero.
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)


def _feedback_gradients(
    ctx: Any, grad_aggregate: Tensor | None, grad_target: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    z, message, *_ = saved
    grads = _feedback_target_backward(
        torch.zeros_like(message) if grad_aggregate is None else grad_aggregate,
        torch.zeros_like(z) if grad_target is None else grad_target,
        *saved,
        *ctx.options,
    )
    return *grads, *[None] * 6


feedback_target.register_autograd(_feedback_gradients, setup_context=_save_feedback)
