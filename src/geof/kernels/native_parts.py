r"""The native step's parts as operators of their own: frames, edge moments, feedback.

:mod:`geof.kernels.native` runs whole steps; these show what happens inside one. Each has a
hand-derived backward pass, saves only its inputs and is once differentiable. Layouts are those of
``native/geof.h``: features ``(n, B, m)``, all else lanes last, ``(n, *, B)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from geof.kernels.library import Frames, Gate, fill
from geof.kernels.native_arguments import (
    EdgePlan,
    Layouts,
    StepOptions,
    between_rows,
    call,
    call_frames,
    checked,
    checked_active,
    checked_floats,
    checked_plan,
    checked_terms,
    dense_like,
    edge_plan,
    features_shape,
    feedback_arguments,
    first_order,
    is_plain,
    lane_terms,
    lanes_like,
    moment_arguments,
    operator,
    report,
    term_gradients,
)
from geof.kernels.neighbourhood import Neighbourhoods
from geof.kernels.operators import stand_in

# --- apply_frames: h = L xi, y = L phi(xi) ------------------------------------------------------


def _checked_frames(z: Tensor, x: Tensor, *message: Tensor) -> list[Any]:
    """Return coordinates, features and messages, where there are any; see :func:`checked`."""
    shapes = Layouts.of_features("x", x)
    given = ("x", x, shapes.features), ("z", z, shapes.packed)
    x, z, *rest = checked_floats(*given, *(("message", m, shapes.features) for m in message))
    return [z, x, *rest]


@torch.library.custom_op("geof::apply_frames", mutates_args=())
def apply_frames(z: Tensor, x: Tensor, message: Tensor, framed: bool) -> tuple[Tensor, Tensor]:
    r"""Return :math:`h = L \xi` and :math:`y = L \phi(\xi)` (or :math:`\phi(\xi)`) as lanes."""
    z, x, message = _checked_frames(z, x, message)
    h, y = lanes_like(x), lanes_like(x)
    call_frames("apply_frames", z, x, message, framed, h=h, y=y)
    return h, y


apply_frames.register_fake(stand_in(lambda z, x, message, framed: (lanes_like(x), lanes_like(x))))


@torch.library.custom_op("geof::apply_frames_backward", mutates_args=())
def _apply_frames_backward(
    grad_h: Tensor, grad_y: Tensor, z: Tensor, x: Tensor, message: Tensor, framed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    z, x, message = _checked_frames(z, x, message)
    shape = Layouts.of_features("x", x).lanes
    grad_h, grad_y = checked(x.dtype, ("grad_h", grad_h, shape), ("grad_y", grad_y, shape))
    grads = dense_like(z), dense_like(x), dense_like(x)
    call_frames(
        "apply_frames_backward",
        z,
        x,
        message,
        framed,
        grad_h=grad_h,
        grad_y=grad_y,
        grad_z=grads[0],
        grad_x=grads[1],
        grad_message=grads[2],
    )
    return grads


_apply_frames_backward.register_fake(
    stand_in(
        lambda grad_h, grad_y, z, x, message, framed: (dense_like(z), dense_like(x), dense_like(x))
    )
)


def _save_frames(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, x, message, ctx.framed = inputs
    ctx.save_for_backward(z, x, message)


def _frames_gradients(ctx: Any, grad_h: Tensor, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    return *_apply_frames_backward(grad_h, grad_y, *ctx.saved_tensors, ctx.framed), None


apply_frames.register_autograd(_frames_gradients, setup_context=_save_frames)


def environment(z: Tensor, x: Tensor) -> Tensor:
    r"""Return :math:`h = L \xi` as features."""
    states: Tensor = (_Environment.apply if is_plain(z, x) else _environment_operator)(z, x)
    return states


def _run_environment(z: Tensor, x: Tensor) -> Tensor:
    z, x = _checked_frames(z, x)
    h = dense_like(x)
    call("apply_frames", fill(Frames, shape=features_shape(x), z=z, x=x, h=h))
    return h


def _run_environment_backward(grad_h: Tensor, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    z, x = _checked_frames(z, x)
    (grad_h,) = checked(x.dtype, ("grad_h", grad_h, x.shape))
    grad_z, grad_x = dense_like(z), dense_like(x)
    arguments = fill(
        Frames, shape=features_shape(x), z=z, x=x, grad_h=grad_h, grad_z=grad_z, grad_x=grad_x
    )
    call("apply_frames_backward", arguments)
    return grad_z, grad_x


class _Environment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(z, x)
        return _run_environment(z, x)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor, Tensor]:
        run = first_order(_run_environment_backward, _environment_backward)
        gradients: tuple[Tensor, Tensor] = run(grad_h, *ctx.saved_tensors)
        return gradients


_environment_operator = operator("geof::environment", _run_environment)
_environment_operator.register_fake(stand_in(lambda z, x: dense_like(x)))
_environment_backward = operator("geof::environment_backward", _run_environment_backward)
_environment_backward.register_fake(stand_in(lambda grad_h, z, x: (dense_like(z), dense_like(x))))


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _environment_gradients(ctx: Any, grad_h: Tensor) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = _environment_backward(grad_h, *ctx.saved_tensors)
    return gradients


_environment_operator.register_autograd(_environment_gradients, setup_context=_save_inputs)


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
    terms = lane_terms(edges)
    return LaneMoments(
        *_edge_moments(h, y, edge_plan(edges), edges.active, terms, temperature, second)
    )


def _checked_moments(
    h: Tensor, y: Tensor, plan: Sequence[Tensor], terms: Sequence[Tensor]
) -> tuple[Tensor, Tensor, EdgePlan, list[Tensor]]:
    """Return what both directions take; see :func:`checked`."""
    shapes = Layouts.of_lanes("y", y)
    y, h = checked_floats(("y", y, shapes.lanes), ("h", h, shapes.lanes))
    rows = checked_plan(plan, len(y))
    return h, y, rows, checked_terms(terms, rows, shapes, y.dtype)


@torch.library.custom_op("geof::native_edge_moments", mutates_args=())
def _edge_moments(
    h: Tensor,
    y: Tensor,
    plan: Sequence[Tensor],
    active: Tensor | None,
    terms: Sequence[Tensor],
    temperature: float,
    second: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    h, y, plan, terms = _checked_moments(h, y, plan, terms)
    active = checked_active(active, plan)
    weight, first, outer = _empty_moments(y, plan, second)
    arguments = moment_arguments(
        h,
        y,
        weight,
        plan,
        temperature,
        terms,
        active=active,
        first=first,
        second=outer if second else None,
    )
    call("edge_moments", arguments)
    return weight, first, outer


_edge_moments.register_fake(
    stand_in(lambda h, y, plan, active, terms, temperature, second: _empty_moments(y, plan, second))
)


def _empty_moments(
    y: Tensor, plan: Sequence[Tensor], second: bool
) -> tuple[Tensor, Tensor, Tensor]:
    n, m, B = y.shape
    _, source, *_ = plan
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
    plan: Sequence[Tensor],
    terms: Sequence[Tensor],
    temperature: float,
) -> list[Tensor]:
    """Return the gradients of h and y, then of the bias and the table where there are."""
    h, y, plan, terms = _checked_moments(h, y, plan, terms)
    shapes, edges = Layouts.of_lanes("y", y), plan.source.shape
    weight, grad_weight, grad_first, grad_second = checked(
        y.dtype,
        ("weight", weight, edges),
        ("grad_weight", grad_weight, edges),
        ("grad_first", grad_first, shapes.lanes),
        ("grad_second", grad_second, shapes.packed),
    )
    grad_h, grad_y, grad_terms = dense_like(h), dense_like(y), term_gradients(terms)
    arguments = moment_arguments(
        h,
        y,
        weight,
        plan,
        temperature,
        terms,
        grad_weight=grad_weight,
        grad_first=grad_first,
        grad_second=grad_second,
        grad_h=grad_h,
        grad_y=grad_y,
        **grad_terms,
    )
    call("edge_moments_backward", arguments)
    return [grad_h, grad_y, *grad_terms.values()]


_edge_moments_backward.register_fake(
    stand_in(
        lambda grad_weight, grad_first, grad_second, h, y, weight, plan, terms, temperature: [
            dense_like(tensor) for tensor in (h, y, *terms[::2])
        ]
    )
)


def _save_moments(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    h, y, plan, _, terms, ctx.temperature, ctx.second = inputs
    # A weight's own gradient is rare and costs a pass over the edges: none where there is none.
    ctx.set_materialize_grads(False)
    ctx.terms = len(terms)
    ctx.save_for_backward(h, y, output[0], *terms, *plan)


def _moments_gradients(
    ctx: Any,
    grad_weight: Tensor | None,
    grad_first: Tensor | None,
    grad_second: Tensor | None,
) -> tuple[Any, ...]:
    h, y, weight, *rest = ctx.saved_tensors  # to be unpacked once only, for checkpointing's sake
    terms, plan = rest[: ctx.terms], rest[ctx.terms :]
    grad_h, grad_y, *grad_terms = _edge_moments_backward(
        grad_weight,
        torch.zeros_like(y) if grad_first is None else grad_first,
        grad_second if ctx.second else None,
        h,
        y,
        weight,
        plan,
        terms,
        ctx.temperature,
    )
    return grad_h, grad_y, [None for _ in plan], None, between_rows(grad_terms), None, None


_edge_moments.register_autograd(_moments_gradients, setup_context=_save_moments)


# --- feedback_target: aggregate, statistic, target, all to be looked at -------------------------


def _checked_feedback(
    z: Tensor, message: Tensor, first: Tensor, second: Tensor, options: StepOptions
) -> list[Any]:
    """Return what both directions take; ``second`` is empty where it is not read."""
    shapes = Layouts.of_features("message", message)
    return checked_floats(
        ("z", z, shapes.packed),
        ("message", message, shapes.features),
        ("first", first, shapes.lanes),
        ("second", second, shapes.packed if options.second else second.shape),
    )


@torch.library.custom_op("geof::feedback_target", mutates_args=())
def feedback_target(
    z: Tensor,
    message: Tensor,
    first: Tensor,
    second: Tensor,
    integers: Sequence[int],
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return aggregate, target (lanes), statistic and attempts, Eqs. (6), (8), (10) and (52).

    The last two arguments are a packed :class:`~geof.kernels.native_arguments.StepOptions`.
    """
    options = StepOptions.unpack(integers, numbers)
    inputs = z, message, *_ = _checked_feedback(z, message, first, second, options)
    made = aggregate, target, moment, attempt = _empty_feedback(z, message, options)
    arguments = feedback_arguments(
        inputs,
        options,
        aggregate=aggregate,
        target=target,
        moment=moment if options.statistic else None,
        attempt=attempt if options.statistic else None,
    )
    call("feedback", arguments)
    report(arguments, message)
    return made


feedback_target.register_fake(
    stand_in(
        lambda z, message, first, second, integers, numbers: _empty_feedback(
            z, message, StepOptions.unpack(integers, numbers)
        )
    )
)


def _empty_feedback(
    z: Tensor, message: Tensor, options: StepOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, B, m = message.shape
    aggregate = message.new_empty(message.shape)
    if not options.statistic:
        return aggregate, z.new_empty(0), z.new_empty(0), z.new_empty(0, dtype=torch.long)
    attempt = z.new_empty(n, B, dtype=torch.long)
    return aggregate, dense_like(z), z.new_empty(n, B, m, m), attempt


@torch.library.custom_op("geof::feedback_target_backward", mutates_args=())
def _feedback_target_backward(
    grad_aggregate: Tensor,
    grad_target: Tensor,
    z: Tensor,
    message: Tensor,
    first: Tensor,
    second: Tensor,
    integers: Sequence[int],
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = StepOptions.unpack(integers, numbers)
    inputs = z, message, first, second = _checked_feedback(z, message, first, second, options)
    grads = _feedback_gradients_like(z, message, first, second, options)
    grad_aggregate, grad_target = checked(
        z.dtype,
        ("grad_aggregate", grad_aggregate, message.shape),
        ("grad_target", grad_target, z.shape),
    )
    arguments = feedback_arguments(
        inputs,
        options,
        grad_aggregate=grad_aggregate,
        grad_target=grad_target,
        grad_z=grads[0],
        grad_message=grads[1],
        grad_first=grads[2],
        grad_second=grads[3],
    )
    call("feedback_backward", arguments)
    return grads


_feedback_target_backward.register_fake(
    stand_in(
        lambda grad_aggregate, grad_target, z, message, first, second, integers, numbers: (
            _feedback_gradients_like(
                z, message, first, second, StepOptions.unpack(integers, numbers)
            )
        )
    )
)


def _feedback_gradients_like(
    z: Tensor, message: Tensor, first: Tensor, second: Tensor, options: StepOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Only the mean statistic looks at the messages, only the others at the second moment.
    grad_second = dense_like(second) if options.second else _zeros_like(second)
    return dense_like(z), _zeros_like(message), dense_like(first), grad_second


def _zeros_like(x: Tensor) -> Tensor:
    return torch.zeros_like(x, memory_format=torch.contiguous_format)


def _save_feedback(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, integers, numbers = inputs
    ctx.options = integers, numbers
    ctx.save_for_backward(*tensors)
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
    return *grads, None, None


feedback_target.register_autograd(_feedback_gradients, setup_context=_save_feedback)


# --- gate: the next state, Eq. (7) --------------------------------------------------------------


def gate(pre: Tensor, x: Tensor, aggregate: Tensor) -> Tensor:
    r"""Return :math:`\xi + \sigma(pre) \odot (\bar\xi - \xi)`, entry by entry."""
    gated = _Gate.apply if is_plain(pre, x, aggregate) else _gate_operator
    following: Tensor = gated(pre, x, aggregate)
    return following


def _checked_gate(pre: Tensor, x: Tensor, aggregate: Tensor) -> list[Any]:
    shape = x.shape
    return checked_floats(("pre", pre, shape), ("x", x, shape), ("aggregate", aggregate, shape))


def run_gate(pre: Tensor, x: Tensor, aggregate: Tensor) -> Tensor:
    """Return the gated state, nothing recorded."""
    pre, x, aggregate = _checked_gate(pre, x, aggregate)
    out = dense_like(x)
    _call_gate("gate", pre, x, aggregate, out=out)
    return out


def run_gate_backward(
    grad_out: Tensor, pre: Tensor, x: Tensor, aggregate: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the pre-activation, the state and the aggregate."""
    pre, x, aggregate = _checked_gate(pre, x, aggregate)
    (grad_out,) = checked(x.dtype, ("grad_out", grad_out, x.shape))
    grads = dense_like(pre), dense_like(x), dense_like(aggregate)
    names = "grad_pre", "grad_x", "grad_aggregate"
    made = dict(zip(names, grads, strict=True))
    _call_gate("gate_backward", pre, x, aggregate, grad_out=grad_out, **made)
    return grads


def _call_gate(name: str, pre: Tensor, x: Tensor, aggregate: Tensor, **fields: Tensor) -> None:
    arguments = fill(
        Gate,
        dtype=int(x.dtype == torch.float64),
        threads=torch.get_num_threads(),
        count=x.numel(),
        pre=pre,
        x=x,
        aggregate=aggregate,
        **fields,
    )
    call(name, arguments)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pre: Tensor, x: Tensor, aggregate: Tensor) -> Tensor:
        ctx.save_for_backward(pre, x, aggregate)
        return run_gate(pre, x, aggregate)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        run = first_order(run_gate_backward, _gate_backward)
        gradients: tuple[Tensor, Tensor, Tensor] = run(grad_out, *ctx.saved_tensors)
        return gradients


_gate_operator = operator("geof::gate", run_gate)
_gate_operator.register_fake(stand_in(lambda pre, x, aggregate: dense_like(x)))
_gate_backward = operator("geof::gate_backward", run_gate_backward)
_gate_backward.register_fake(
    stand_in(
        lambda grad_out, pre, x, aggregate: (dense_like(pre), dense_like(x), dense_like(aggregate))
    )
)


def _gate_gradients(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = _gate_backward(grad_out, *ctx.saved_tensors)
    return gradients


_gate_operator.register_autograd(_gate_gradients, setup_context=_save_inputs)
