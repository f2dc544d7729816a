r"""Whole steps in compiled code for the CPU (``native/*.h``).

The mathematics is that of :mod:`geof.kernels.factored`, written out over lanes: one register holds
one coordinate of several blocks. So coordinates are stored "lanes last", ``(n, t, B)``; their
public shape ``(n, B, t)`` is a transposed view that costs nothing.

A step with its update of the geometry is one operator. It saves the frames' images, the weights,
the aggregate and the next coordinates; moments, target and correction never exist whole: they are
made a few nodes at a time, and again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.errors import ShapeError
from geof.kernels.interface import Controller, Evolution, StepSpec, StepStatistics, Transport
from geof.kernels.library import Evolve, fill
from geof.kernels.memory import empty, scratch
from geof.kernels.native_arguments import (
    EdgePlan,
    Layouts,
    StatisticCode,
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
    feedback_arguments,
    first_order,
    is_plain,
    lane_terms,
    lanes_like,
    moment_arguments,
    operator,
    report,
    step_options,
    target_plan,
    term_gradients,
    terms_as_lanes,
)
from geof.kernels.native_parts import (
    apply_frames,
    edge_moments,
    environment,
    feedback_target,
    gate,
    run_gate,
    run_gate_backward,
)
from geof.kernels.neighbourhood import Neighbourhoods, TargetEdges
from geof.kernels.operators import stand_in


def native_statistics(
    xi: Tensor, message: Tensor, coords: Tensor, edges: Neighbourhoods, spec: StepSpec
) -> StepStatistics:
    """Return Eqs. (4) to (10) part by part; shapes as in :mod:`geof.kernels.interface`."""
    z, options = _lanes(coords), step_options(spec)
    h, y = apply_frames(z, xi, message, options.framed)
    moments = edge_moments(h, y, edges, options.temperature, second=options.second)
    aggregate, target, moment, attempt = feedback_target(
        z, message, moments.first, moments.second, *options.pack()
    )
    if spec.statistic is None:
        return StepStatistics(moments.weight, aggregate, None, None, None)
    return StepStatistics(moments.weight, aggregate, moment, target.transpose(1, 2), attempt)


def native_fused_step(
    xi: Tensor,
    message: Tensor,
    coords: Tensor,
    edges: Neighbourhoods,
    spec: StepSpec,
    evolution: Evolution,
) -> tuple[Tensor, Tensor]:
    """Return the aggregate and the next coordinates; target and correction never exist whole."""
    z, plan, terms = _lanes(coords), edge_plan(edges), lane_terms(edges)
    maps = _used_maps(evolution.controller, xi.size(-1))
    options = step_options(spec, evolution).pack()
    aggregate, following, *_ = _step(z, xi, message, plan, edges.active, maps, terms, *options)
    return aggregate, following.transpose(1, 2)


def native_whole_step(
    features: Tensor,
    coords: Tensor,
    edges: Neighbourhoods,
    spec: StepSpec,
    evolution: Evolution,
    transport: Transport,
) -> tuple[Tensor, Tensor]:
    """Return the next features ``(n, d)`` and coordinates, the dense maps included."""
    z, plan, terms = _lanes(coords), edge_plan(edges), lane_terms(edges)
    maps = _used_maps(evolution.controller, features.size(1) // z.size(2))
    if is_plain(z, features, *transport, *maps, *terms):
        options = step_options(spec, evolution).pack()
        tensors = z, features, *transport, *maps, *terms
        following, z = _WholeStep.apply(plan, edges.active, options, len(terms), *tensors)  # type: ignore[no-untyped-call]
        return following, z.transpose(1, 2)
    xi = features.unflatten(1, (z.size(2), -1))
    message = F.linear(features, transport.message).view_as(xi)
    aggregate, coords = native_fused_step(xi, message, coords, edges, spec, evolution)
    aggregate = aggregate.flatten(1)
    own, other = transport.gate.split(features.size(1), dim=1)
    pre = torch.addmm(F.linear(features, own, transport.bias), aggregate, other.t())
    return native_gate(pre, features, aggregate), coords


def native_images(
    xi: Tensor, message: Tensor, coords: Tensor, spec: StepSpec
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`L \xi` and :math:`L \phi(\xi)`, ``(n, m, B)``; see ``Backend.images``."""
    images: tuple[Tensor, Tensor] = apply_frames(_lanes(coords), xi, message, spec.frame_transport)
    return images


def native_targets(
    images: tuple[Tensor, Tensor],
    edges: TargetEdges,
    xi: Tensor,
    message: Tensor,
    coords: Tensor,
    spec: StepSpec,
    evolution: Evolution | None,
) -> tuple[Tensor, Tensor]:
    """Return aggregate and next coordinates of consecutive targets; see ``Backend.targets``."""
    options = step_options(spec, evolution)
    maps = [] if evolution is None else _used_maps(evolution.controller, xi.size(-1))
    plan = target_plan(edges, len(images[0]))
    z, x, message, plan, maps, terms = _checked_step(
        _lanes(coords), xi, message, plan, maps, terms_as_lanes(edges.terms)
    )
    shape = (len(images[0]), *Layouts.of_features("x", x).lanes[1:])
    h, y = checked(x.dtype, ("h", images[0], shape), ("y", images[1], shape))
    weight, active = empty(x, plan.source.shape), checked_active(edges.active, plan)
    first = lanes_like(x) if evolution is None else None
    moments = moment_arguments(
        h,
        y,
        weight,
        plan,
        options.temperature,
        terms,
        active=active,
        first=first,
        sources=len(h),
        first_target=edges.nodes.start,
    )
    if first is not None:  # a step that leaves the geometry as it is forms no second moment
        call("edge_moments", moments)
        aggregate, *_ = feedback_target(z, message, first, first.new_empty(0), *options.pack())
        return aggregate, coords
    aggregate, following = dense_like(x), dense_like(z)
    arguments = _evolve_arguments(
        feedback_arguments((z, message), options, aggregate=aggregate),
        moments,
        x,
        maps,
        options,
        next=following,
    )
    call("evolve", arguments)
    report(arguments.feedback, x)
    return aggregate, following.transpose(1, 2)


def native_environment(xi: Tensor, coords: Tensor) -> Tensor:
    r"""Return :math:`h = L \xi`, Eq. (4), ``(n, B, m)``."""
    states: Tensor = environment(_lanes(coords), xi)
    return states


def native_gate(pre: Tensor, xi: Tensor, aggregate: Tensor) -> Tensor:
    """Return the gated state, Eq. (7), in one pass."""
    following: Tensor = gate(pre, xi, aggregate)
    return following


def _lanes(values: Tensor) -> Tensor:
    """Return ``(n, B, k)`` as ``(n, k, B)``; free for what an operator here returned."""
    return values.transpose(1, 2).contiguous()


def _used_maps(controller: Controller | None, m: int) -> list[Tensor]:
    r"""Return the controller's maps without what never reaches :math:`\Delta z`; empty for none.

    The first row of U and the last of V meet no strictly lower entry of :math:`U V^\top`.
    """
    if controller is None:
        return []
    rank = controller.rank(m)
    ends = 2 * m * rank
    used = [
        torch.cat([part[rank : ends - rank], part[ends:]])
        for part in (controller.output, controller.bias)
    ]
    return [controller.shared, controller.hidden, *used]


# --- One step: frames, edge moments, feedback, controller, update -------------------------------


MOST_HIDDEN = 2**24
"""Rows of the controller's maps that the kernels count without overflow."""


def _checked_step(
    z: Tensor,
    x: Tensor,
    message: Tensor,
    plan: Sequence[Tensor],
    maps: Sequence[Tensor],
    terms: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, EdgePlan, list[Tensor], list[Tensor]]:
    """Return what both directions take; see :func:`checked`."""
    shapes = Layouts.of_features("x", x)
    x, z, message = checked_floats(
        ("x", x, shapes.features), ("z", z, shapes.packed), ("message", message, shapes.features)
    )
    rows = checked_plan(plan, len(x))
    made = _checked_maps(maps, x) if maps else []
    return z, x, message, rows, made, checked_terms(terms, rows, shapes, x.dtype)


def _checked_maps(maps: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """Return the controller's maps as :func:`_used_maps` makes them; see :func:`checked`."""
    n, _, m = x.shape
    width, height = maps[1].shape[0] if maps[1:] and maps[1].dim() else 0, maps[-1].numel()
    rank = (height - m) / (2 * (m - 1)) if m > 1 else 0.0
    if len(maps) != 4 or not 1 <= width <= MOST_HIDDEN or not m <= height <= MOST_HIDDEN:
        raise ShapeError(
            "Expected the controller's maps to be shared, hidden, output and bias with at least "
            f"one hidden channel (got shapes {[tuple(part.shape) for part in maps]})."
        )
    if rank % 1 or (m == 1 and height != 1):
        raise ShapeError(
            f"Expected 'bias' of the controller to have 2 (m - 1) rank + m entries for blocks of "
            f"size {m} (got {height})."
        )
    shapes = (n, width), (width, 2 * m), (height, width), (height,)
    names = "shared", "hidden", "output", "bias"
    return checked(x.dtype, *zip(names, maps, shapes, strict=True))


def _checked_outputs(made: Sequence[Tensor], z: Tensor, x: Tensor, plan: EdgePlan) -> list[Tensor]:
    """Return what :func:`_run_step` returned; see :func:`checked`."""
    lanes = Layouts.of_features("x", x).lanes
    names = "aggregate", "following", "weight", "h", "y"
    if len(made) != len(names):
        raise ShapeError(f"Expected the {len(names)} outputs of the step (got {len(made)}).")
    shapes = x.shape, z.shape, plan.source.shape, lanes, lanes
    return checked(x.dtype, *zip(names, made, shapes, strict=True))


def _run_step(
    z: Tensor,
    x: Tensor,
    message: Tensor,
    plan: Sequence[Tensor],
    active: Tensor | None,
    maps: Sequence[Tensor],
    terms: Sequence[Tensor],
    integers: Sequence[int],
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return aggregate, next coordinates, weights, and the images of features and messages."""
    options = StepOptions.unpack(integers, numbers)
    z, x, message, plan, maps, terms = _checked_step(z, x, message, plan, maps, terms)
    active = checked_active(active, plan)
    made = aggregate, following, weight, h, y = _outputs_like(z, x, plan)
    call_frames("apply_frames", z, x, message, options.framed, h=h, y=y)
    arguments = _evolve_arguments(
        feedback_arguments((z, message), options, aggregate=aggregate),
        moment_arguments(h, y, weight, plan, options.temperature, terms, active=active),
        x,
        maps,
        options,
        next=following,
    )
    call("evolve", arguments)
    report(arguments.feedback, x)
    return made


_step = operator("geof::native_step", _run_step)
_step.register_fake(
    stand_in(
        lambda z, x, message, plan, active, maps, terms, integers, numbers: _outputs_like(
            z, x, plan
        )
    )
)


def _outputs_like(
    z: Tensor, x: Tensor, plan: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    _, source, *_ = plan
    weight = empty(x, source.shape)
    return dense_like(x), dense_like(z), weight, lanes_like(x), lanes_like(x)


def _run_step_backward(
    grad_aggregate: Tensor,
    grad_following: Tensor,
    z: Tensor,
    x: Tensor,
    message: Tensor,
    plan: Sequence[Tensor],
    maps: Sequence[Tensor],
    made: Sequence[Tensor],
    terms: Sequence[Tensor],
    integers: Sequence[int],
    numbers: Sequence[float],
) -> list[Tensor]:
    """Return the gradients of z, x and message, of the controller's maps, of bias and table."""
    options = StepOptions.unpack(integers, numbers)
    z, x, message, plan, maps, terms = _checked_step(z, x, message, plan, maps, terms)
    made = _checked_outputs(made, z, x, plan)
    aggregate, following, weight, h, y = made
    grad_terms = term_gradients(terms)
    grad_aggregate, grad_following = checked(
        x.dtype,
        ("grad_aggregate", grad_aggregate, x.shape),
        ("grad_following", grad_following, z.shape),
    )
    grads = grad_z, grad_x, grad_message, *grad_maps = [
        dense_like(tensor) for tensor in (z, x, message, *maps)
    ]
    with scratch(x, h.shape, y.shape) as (grad_h, grad_y):
        feedback = feedback_arguments(
            (z, message),
            options,
            aggregate=aggregate,
            grad_aggregate=grad_aggregate,
            add_to_z=True,
            grad_z=grad_z,
            grad_message=grad_message,
        )
        edges = moment_arguments(
            h,
            y,
            weight,
            plan,
            options.temperature,
            terms,
            grad_h=grad_h,
            grad_y=grad_y,
            **grad_terms,
        )
        names = "grad_shared", "grad_hidden", "grad_output", "grad_bias"
        arguments = _evolve_arguments(
            feedback,
            edges,
            x,
            maps,
            options,
            next=following,
            grad_next=grad_following,
            grad_x=grad_x,
            **dict(zip(names, grad_maps, strict=False)),
        )
        call("evolve_backward", arguments)
        call_frames(
            "apply_frames_backward",
            z,
            x,
            message,
            options.framed,
            # What the evolution has already put there is added to; see the header.
            add=1 | (2 if maps else 0) | (4 if options.statistic == StatisticCode.MEAN else 0),
            grad_h=grad_h,
            grad_y=grad_y,
            grad_z=grad_z,
            grad_x=grad_x,
            grad_message=grad_message,
        )
    return [*grads, *grad_terms.values()]


_step_backward = operator("geof::native_step_backward", _run_step_backward)
_step_backward.register_fake(
    stand_in(
        lambda grad_aggregate, grad_following, z, x, message, plan, maps, made, terms, *options: [
            dense_like(tensor) for tensor in (z, x, message, *maps, *terms[::2])
        ]
    )
)


def _evolve_arguments(
    feedback: Any,
    edges: Any,
    x: Tensor,
    maps: Sequence[Tensor],
    options: StepOptions,
    **fields: Any,
) -> Any:
    """Return the structure of ``evolve`` or its backward."""
    names = "shared", "hidden", "output", "bias"
    controller = dict(zip(names, maps, strict=False))
    m, rank = x.size(-1), 0
    if maps and m > 1:
        rank = (len(controller["bias"]) - m) // (2 * (m - 1))
    return fill(
        Evolve,
        feedback=feedback,
        edges=edges,
        H=len(controller["hidden"]) if maps else 0,
        rank=rank,
        mix=options.mix,
        strength=options.strength,
        offdiagonal=options.offdiagonal,
        low=options.low,
        high=options.high,
        x=x,
        **controller,
        **fields,
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, x, message, plan, _, maps, terms, *ctx.options = inputs
    ctx.sizes = [3, len(plan), len(maps), len(output), len(terms)]
    ctx.save_for_backward(z, x, message, *plan, *maps, *output, *terms)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)  # or zeros as large as the moments would be made for them


def _gradients(
    ctx: Any, grad_aggregate: Tensor | None, grad_following: Tensor | None, *_: None
) -> tuple[Any, ...]:
    saved = iter(ctx.saved_tensors)
    (z, x, message), plan, maps, made, terms = ([next(saved) for _ in range(k)] for k in ctx.sizes)
    given = _materialised(grad_aggregate, grad_following, z, x)
    grads = _step_backward(*given, z, x, message, plan, maps, made, terms, *ctx.options)
    of_maps, of_terms = grads[3 : 3 + len(maps)], between_rows(grads[3 + len(maps) :])
    return *grads[:3], [None for _ in plan], None, of_maps, of_terms, None, None


def _materialised(
    grad_aggregate: Tensor | None, grad_following: Tensor | None, z: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        torch.zeros_like(x) if grad_aggregate is None else grad_aggregate,
        torch.zeros_like(z) if grad_following is None else grad_following,
    )


_step.register_autograd(_gradients, setup_context=_save)


class _WholeStep(torch.autograd.Function):
    """Eager code's step with its dense maps: one node of the graph, gradients summed in place."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Sequence[Tensor],
        active: Tensor | None,
        options: tuple[list[int], list[float]],
        num_terms: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        z, x, w_message, w_gate, b_gate, *rest = tensors
        maps, terms = rest[: len(rest) - num_terms], rest[len(rest) - num_terms :]
        x = x.contiguous()
        blocks = len(x), z.size(2), x.size(1) // z.size(2)
        message = (x @ w_message.t()).view(blocks)
        made = _run_step(z, x.view(blocks), message, plan, active, maps, terms, *options)
        aggregate = made[0].view_as(x)
        own, other = w_gate.split(x.size(1), dim=1)
        pre = torch.addmm(b_gate, x, own.t()).addmm_(aggregate, other.t())  # Eq. (7)
        ctx.plan, ctx.options, ctx.sizes = plan, options, (len(maps), len(maps) + num_terms)
        ctx.save_for_backward(z, x, w_message, w_gate, message, pre, *maps, *terms, *made)
        ctx.set_materialize_grads(False)
        return run_gate(pre, x, aggregate), made[1]

    @staticmethod
    def backward(
        ctx: Any, grad_features: Tensor | None, grad_following: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        z, x, w_message, w_gate, message, pre, *saved = ctx.saved_tensors
        count, last = ctx.sizes
        maps, terms, made = saved[:count], saved[count:last], saved[last:]
        blocks, aggregate = message.shape, made[0].view_as(x)
        grad_features, grad_following = _materialised(grad_features, grad_following, z, x)
        grad_pre, direct, grad_aggregate = run_gate_backward(grad_features, pre, x, aggregate)
        own, other = w_gate.split(x.size(1), dim=1)
        grad_aggregate.addmm_(grad_pre, other)
        run = first_order(_run_step_backward, _step_backward)
        grad_z, grad_x, grad_message, *grads = run(
            grad_aggregate.view(blocks),
            grad_following,
            z,
            x.view(blocks),
            message,
            list(ctx.plan),
            maps,
            list(made),
            terms,
            *ctx.options,
        )
        grad_message = grad_message.view_as(x)
        grad_x = (
            direct.add_(grad_x.view_as(x)).addmm_(grad_pre, own).addmm_(grad_message, w_message)
        )
        grad_gate = torch.cat([grad_pre.t() @ x, grad_pre.t() @ aggregate], dim=1)
        dense = grad_message.t() @ x, grad_gate, grad_pre.sum(0)
        of_edges = between_rows(grads[count:])
        return None, None, None, None, grad_z, grad_x, *dense, *grads[:count], *of_edges
