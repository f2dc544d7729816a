r"""Whole steps in compiled code for the CPU (``native/*.h``).

The mathematics is that of :mod:`geof.kernels.factored`, written out over lanes: one register holds
one coordinate of several blocks. So coordinates are kept "lanes last", ``(n, t, B)``; their public
shape ``(n, B, t)`` is a transposed view that costs nothing.

A step with its update of the geometry is one operator. It keeps the weights, the two moments, the
aggregate and the next coordinates; frames' images, target and correction are computed again in
the backward pass, where they live in scratch memory that is used over and over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from geof.kernels.interface import Controller, Evolution, StepSpec, StepStatistics
from geof.kernels.library import Evolve, Frames, Moments, fill, shape_of
from geof.kernels.native_parts import (
    FeedbackOptions,
    apply_frames,
    call,
    dense,
    dense_like,
    edge_moments,
    edge_plan,
    environment,
    features_shape,
    feedback_arguments,
    feedback_target,
    report,
)
from geof.kernels.neighbourhood import Neighbourhoods

_STATISTICS = {None: 0, "full": 1, "diagonal": 2, "mean": 3}


def native_step(
    xi: Tensor, message: Tensor, coords: Tensor, edges: Neighbourhoods, spec: StepSpec
) -> StepStatistics:
    """Compute one step with everything there is to see; shapes as in the interface."""
    z = _lanes(coords)
    h, y = apply_frames(z, xi, message, spec.frame_transport)
    moments = edge_moments(h, y, edges, spec.temperature, second=_second(spec))
    aggregate, target, moment, attempt = feedback_target(
        z, message, moments.first, moments.second, *_feedback_options(spec)
    )
    if spec.statistic is None:
        return StepStatistics(moments.weight, aggregate, None, None, None)
    return StepStatistics(moments.weight, aggregate, moment, target.transpose(1, 2), attempt)


def native_evolve(
    xi: Tensor,
    message: Tensor,
    coords: Tensor,
    edges: Neighbourhoods,
    spec: StepSpec,
    evolution: Evolution,
) -> tuple[Tensor, Tensor]:
    """Compute the aggregate and the next coordinates; target and correction never exist whole."""
    controller = evolution.controller
    aggregate, following, *_ = _advance(
        _lanes(coords),
        xi,
        message,
        *edge_plan(edges),
        edges.active,
        None if controller is None else controller.shared,
        None if controller is None else controller.hidden,
        *_used_outputs(controller, xi.size(-1)),
        *_feedback_options(spec),
        spec.temperature,
        [
            evolution.target_mix,
            evolution.correction_strength,
            evolution.offdiagonal_bound,
            *evolution.log_scale_bounds,
        ],
    )
    return aggregate, following.transpose(1, 2)


def native_environment(xi: Tensor, coords: Tensor) -> Tensor:
    r"""Return :math:`h = L \xi`, Eq. (4), ``(n, B, m)``."""
    states: Tensor = environment(_lanes(coords), xi)
    return states


def _lanes(values: Tensor) -> Tensor:
    """Return ``(n, B, k)`` as ``(n, k, B)``; free for what an operator here returned."""
    return values.transpose(1, 2).contiguous()


def _second(spec: StepSpec) -> bool:
    return spec.statistic in ("full", "diagonal")


def _feedback_options(spec: StepSpec) -> FeedbackOptions:
    schedule = spec.schedule
    return (
        _STATISTICS[spec.statistic],
        spec.frame_transport,
        spec.spectral_floor,
        schedule.initial,
        schedule.growth,
        schedule.retries,
    )


def _used_outputs(controller: Controller | None, m: int) -> tuple[Tensor | None, Tensor | None]:
    r"""Return the controller's output layer without what never reaches :math:`\Delta z`.

    The first row of U and the last of V meet no strictly lower entry of :math:`U V^\top`.
    """
    if controller is None:
        return None, None
    rank = (len(controller.bias) // m - 1) // 2
    ends = 2 * m * rank
    return tuple(  # type: ignore[return-value]
        torch.cat([part[rank : ends - rank], part[ends:]])
        for part in (controller.output, controller.bias)
    )


# --- Scratch memory ----------------------------------------------------------------------------

_SCRATCH_BYTES = 2**28
"""Temporaries are kept for the next step up to this size: fresh pages cost more than arithmetic."""

_free: list[Tensor] = []
_free_lock = Lock()


@contextmanager
def _scratch(like: Tensor, *shapes: Sequence[int]) -> Iterator[list[Tensor]]:
    """Lend uninitialised tensors of ``like``'s dtype; they return to the pool afterwards.

    A borrowed buffer is taken off the list, so threads never share one.
    """
    sizes = [torch.Size(shape).numel() * like.element_size() for shape in shapes]
    buffers = [_borrow(size) for size in sizes]
    try:
        yield [
            buffer[:size].view(like.dtype).view(*shape)
            for buffer, size, shape in zip(buffers, sizes, shapes, strict=True)
        ]
    finally:
        with _free_lock:
            for buffer in sorted(buffers, key=Tensor.numel):
                if sum(map(Tensor.numel, _free)) + buffer.numel() <= _SCRATCH_BYTES:
                    _free.append(buffer)


def _borrow(size: int) -> Tensor:
    with _free_lock:
        for position, buffer in enumerate(_free):
            if size <= buffer.numel() <= 2 * size + 2**16:
                return _free.pop(position)
        if _free and sum(map(Tensor.numel, _free)) + size > _SCRATCH_BYTES:
            _free.clear()  # made for other graphs
    return torch.empty(size, dtype=torch.uint8)


# --- One step: frames, edge moments, feedback, controller, update -------------------------------


@torch.library.custom_op("geof::native_advance", mutates_args=())
def _advance(
    z: Tensor,
    x: Tensor,
    message: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    active: Tensor | None,
    shared: Tensor | None,
    hidden: Tensor | None,
    output: Tensor | None,
    bias: Tensor | None,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
    temperature: float,
    update: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return aggregate, next coordinates, weights, first and second moments."""
    inputs = _Inputs(*dense(z, x, message, shared, hidden, output, bias))
    made = aggregate, following, weight, first, second = _outputs_like(z, x, source, statistic)
    with _scratch(x, first.shape, first.shape) as (h, y):
        inputs.frames("apply_frames", framed, h=h, y=y)
        moments = inputs.moments(
            h, y, weight, temperature, pointer=pointer, source=source, first=first, active=active
        )
        moments.second = second.data_ptr() if second.numel() else None
        call("edge_moments", z, moments)
    arguments = inputs.evolve(
        (statistic, framed, floor, jitter, growth, retries),
        update,
        {"first": first, "second": second, "aggregate": aggregate},
        next=following,
    )
    call("evolve", z, arguments)
    report(arguments.feedback, x)
    return made


@_advance.register_fake
def _(
    z: Tensor,
    x: Tensor,
    message: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    active: Tensor | None,
    shared: Tensor | None,
    hidden: Tensor | None,
    output: Tensor | None,
    bias: Tensor | None,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
    temperature: float,
    update: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs_like(z, x, source, statistic)


def _outputs_like(
    z: Tensor, x: Tensor, source: Tensor, statistic: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n, B, m = x.shape
    second = dense_like(z) if statistic in (1, 2) else z.new_empty(0)
    return dense_like(x), dense_like(z), x.new_empty(source.shape), x.new_empty(n, m, B), second


@torch.library.custom_op("geof::native_advance_backward", mutates_args=())
def _advance_backward(
    grad_aggregate: Tensor,
    grad_following: Tensor,
    z: Tensor,
    x: Tensor,
    message: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    shared: Tensor | None,
    hidden: Tensor | None,
    output: Tensor | None,
    bias: Tensor | None,
    aggregate: Tensor,
    following: Tensor,
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
    temperature: float,
    update: Sequence[float],
) -> list[Tensor]:
    """Return the gradients of z, x and message, then of the controller's four if there."""
    inputs = _Inputs(*dense(z, x, message, shared, hidden, output, bias))
    grad_aggregate, grad_following = dense(grad_aggregate, grad_following)
    grads = inputs.gradients()
    names = ("grad_shared", "grad_hidden", "grad_output", "grad_bias")
    row, has_second = first.shape, second.numel() > 0
    with _scratch(x, row, row, row, row, row, second.shape, weight.shape) as buffers:
        h, y, grad_h, grad_y, grad_first, grad_second, force = buffers
        arguments = inputs.evolve(
            (statistic, framed, floor, jitter, growth, retries),
            update,
            {
                "first": first,
                "second": second,
                "aggregate": aggregate,
                "grad_aggregate": grad_aggregate,
                "add_to_z": True,
                "grad_z": grads[0],
                "grad_message": grads[2],
                "grad_first": grad_first,
                "grad_second": grad_second,
            },
            next=following,
            grad_next=grad_following,
            grad_x=grads[1],
            **dict(zip(names, grads[3:], strict=False)),
        )
        call("evolve_backward", z, arguments)
        inputs.frames("apply_frames", framed, h=h, y=y)
        moments = inputs.moments(
            h,
            y,
            weight,
            temperature,
            pointer=pointer,
            source=source,
            target=target,
            tile_pointer=tile_pointer,
            tile_edge=tile_edge,
            grad_first=grad_first,
            grad_second=grad_second if has_second else None,
            force=force,
            grad_h=grad_h,
            grad_y=grad_y,
        )
        call("edge_moments_backward", z, moments)
        inputs.frames(
            "apply_frames_backward",
            framed,
            # What the evolution has already put there is added to; see the header.
            add=1 | (2 if hidden is not None else 0) | (4 if statistic == 3 else 0),
            grad_h=grad_h,
            grad_y=grad_y,
            grad_z=grads[0],
            grad_x=grads[1],
            grad_message=grads[2],
        )
    return grads


@_advance_backward.register_fake
def _(
    grad_aggregate: Tensor,
    grad_following: Tensor,
    z: Tensor,
    x: Tensor,
    message: Tensor,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    tile_pointer: Tensor,
    tile_edge: Tensor,
    shared: Tensor | None,
    hidden: Tensor | None,
    output: Tensor | None,
    bias: Tensor | None,
    aggregate: Tensor,
    following: Tensor,
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    statistic: int,
    framed: bool,
    floor: float,
    jitter: float,
    growth: float,
    retries: int,
    temperature: float,
    update: Sequence[float],
) -> list[Tensor]:
    return _Inputs(z, x, message, shared, hidden, output, bias).gradients()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[13:]
    ctx.corrected = inputs[9] is not None
    ctx.save_for_backward(*inputs[:8], *inputs[9:13], *output)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)  # or zeros as large as the moments would be made for them


def _gradients(
    ctx: Any, grad_aggregate: Tensor | None, grad_following: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    grads = _advance_backward(
        torch.zeros_like(saved[1]) if grad_aggregate is None else grad_aggregate,
        torch.zeros_like(saved[0]) if grad_following is None else grad_following,
        *saved,
        *ctx.options,
    )
    controller = grads[3:] if ctx.corrected else [None] * 4
    return *grads[:3], *[None] * 6, *controller, *[None] * 8


_advance.register_autograd(_gradients, setup_context=_save)


class _Inputs(NamedTuple):
    """What a step starts from, contiguous: coordinates as lanes, the rest as in the interface."""

    z: Tensor
    x: Tensor
    message: Tensor
    shared: Tensor | None
    hidden: Tensor | None
    output: Tensor | None
    bias: Tensor | None

    def gradients(self) -> list[Tensor]:
        """Return uninitialised gradients of everything that is there."""
        return [dense_like(tensor) for tensor in self if tensor is not None]

    def frames(self, name: str, framed: bool, **fields: Any) -> None:
        """Run ``apply_frames`` or its backward."""
        arguments = fill(
            Frames,
            shape=features_shape(self.x),
            framed=framed,
            lanes_out=True,
            z=self.z,
            x=self.x,
            message=self.message,
            **fields,
        )
        call(name, self.z, arguments)

    def moments(
        self, h: Tensor, y: Tensor, weight: Tensor, temperature: float, **fields: Any
    ) -> Any:
        """Return the arguments of ``edge_moments`` or its backward."""
        return fill(
            Moments,
            shape=shape_of(y, *y.shape),
            E=len(weight),
            temperature=temperature,
            h=h,
            y=y,
            weight=weight,
            **fields,
        )

    def evolve(
        self,
        feedback: FeedbackOptions,
        update: Sequence[float],
        feedback_fields: dict[str, Any],
        **fields: Any,
    ) -> Any:
        """Return the arguments of ``evolve`` or its backward."""
        mix, strength, offdiagonal, low, high = update
        m = self.x.size(-1)
        rank = 0
        if self.bias is not None and m > 1:
            rank = (len(self.bias) - m) // (2 * (m - 1))
        first, second = feedback_fields.pop("first"), feedback_fields.pop("second")
        return fill(
            Evolve,
            feedback=feedback_arguments(
                (self.z, self.message, first, second), feedback, **feedback_fields
            ),
            H=0 if self.hidden is None else self.hidden.size(0),
            rank=rank,
            mix=mix,
            strength=strength,
            offdiagonal=offdiagonal,
            low=low,
            high=high,
            x=self.x,
            shared=self.shared,
            hidden=self.hidden,
            output=self.output,
            bias=self.bias,
            **fields,
        )
