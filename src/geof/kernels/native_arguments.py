"""Arguments of the native operators: scalars in two lists, edges as a plan, tensors contiguous.

An operator of ``torch.library`` takes tensors, numbers and lists of them. Here are the typed
values that become such lists, and the calls of the C interface (:mod:`geof.kernels.library`) that
they fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor

from geof.errors import DataError, DeviceError, DtypeError, ShapeError
from geof.geometry import JitterSchedule
from geof.geometry.cholesky import report_attempts
from geof.kernels.interface import Evolution, Statistic, StepSpec
from geof.kernels.library import (
    LARGEST_BLOCK,
    Feedback,
    Frames,
    Library,
    Moments,
    Shape,
    fill,
    find_library,
    shape_of,
)
from geof.kernels.memory import empty
from geof.kernels.neighbourhood import EdgeTerms, Neighbourhoods, TargetEdges
from geof.kernels.operators import stand_in

# --- Scalars ------------------------------------------------------------------------------------


class StatisticCode(IntEnum):
    """The residual statistics by their numbers in ``native/geof.h``."""

    NONE = 0
    FULL = 1
    DIAGONAL = 2
    MEAN = 3


STATISTIC_CODES: dict[Statistic | None, StatisticCode] = {
    None: StatisticCode.NONE,
    "full": StatisticCode.FULL,
    "diagonal": StatisticCode.DIAGONAL,
    "mean": StatisticCode.MEAN,
}


class StepOptions(NamedTuple):
    r"""The scalars of a step; integers first, so that they pack into two lists.

    Attributes:
        statistic: Which second moment to form.
        framed: Whether messages are carried between frames.
        retries: :math:`T_{max}` of Eq. (51).
        temperature: :math:`\tau`.
        floor: :math:`\epsilon_s`.
        jitter: :math:`\epsilon_0`.
        growth: :math:`\beta`.
        mix: :math:`\lambda`; this and the rest are read by whole steps only.
        strength: :math:`\gamma`.
        offdiagonal: :math:`a_{max}`.
        low: :math:`\ell_{min}`.
        high: :math:`\ell_{max}`.
    """

    statistic: StatisticCode
    framed: bool
    retries: int
    temperature: float
    floor: float
    jitter: float
    growth: float
    mix: float = 0.0
    strength: float = 0.0
    offdiagonal: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def second(self) -> bool:
        """Whether the statistic is made of the second moment."""
        return self.statistic in (StatisticCode.FULL, StatisticCode.DIAGONAL)

    def pack(self) -> tuple[list[int], list[float]]:
        """Return the integers and the numbers, as an operator takes them."""
        return [int(value) for value in self[:3]], [float(value) for value in self[3:]]

    @classmethod
    def unpack(cls, integers: Sequence[int], numbers: Sequence[float]) -> StepOptions:
        """Return what was packed."""
        statistic, framed, retries = integers
        return cls(StatisticCode(statistic), bool(framed), retries, *numbers)


def step_options(spec: StepSpec, evolution: Evolution | None = None) -> StepOptions:
    """Return the scalars of a step, with or without those of its update."""
    schedule = spec.schedule
    options = StepOptions(
        STATISTIC_CODES[spec.statistic],
        spec.frame_transport,
        schedule.retries,
        spec.temperature,
        spec.spectral_floor,
        schedule.initial,
        schedule.growth,
    )
    if evolution is None:
        return options
    low, high = evolution.box.log_scale_bounds
    return options._replace(
        mix=evolution.target_mix,
        strength=evolution.correction_strength,
        offdiagonal=evolution.box.offdiagonal_bound,
        low=low,
        high=high,
    )


# --- Tensors ------------------------------------------------------------------------------------


class Layouts(NamedTuple):
    """The shapes that the kernels know, of ``n`` nodes with ``B`` blocks of size ``m``.

    Attributes:
        features: ``(n, B, m)``.
        lanes: ``(n, m, B)``.
        packed: ``(n, t, B)``, a triangle or coordinates, lanes last.
    """

    features: tuple[int, int, int]
    lanes: tuple[int, int, int]
    packed: tuple[int, int, int]

    @classmethod
    def of_features(cls, name: str, tensor: Tensor) -> Layouts:
        """Return the shapes that go with features ``(n, B, m)``."""
        shape = tensor.shape
        if len(shape) != 3 or not 1 <= shape[2] <= LARGEST_BLOCK or shape[1] < 1:
            raise _shape_error(name, tensor, f"(n, B, m) with m from 1 to {LARGEST_BLOCK}")
        n, B, m = shape
        return cls((n, B, m), (n, m, B), (n, m * (m + 1) // 2, B))

    @classmethod
    def of_lanes(cls, name: str, tensor: Tensor) -> Layouts:
        """Return the shapes that go with lanes ``(n, m, B)``."""
        shape = tensor.shape
        if len(shape) != 3 or not 1 <= shape[1] <= LARGEST_BLOCK or shape[2] < 1:
            raise _shape_error(name, tensor, f"(n, m, B) with m from 1 to {LARGEST_BLOCK}")
        n, m, B = shape
        return cls((n, B, m), (n, m, B), (n, m * (m + 1) // 2, B))


Given: TypeAlias = tuple[str, Tensor | None, Sequence[int]]
"""A tensor on its way to a kernel: its name, itself, and the shape it must have."""


MAY_BE_LEFT_OUT = frozenset({"active", "grad_weight", "grad_second"})
"""Names of tensors for which a kernel takes null."""


def checked(dtype: torch.dtype, *given: Given) -> list[Any]:
    """Return tensors as the kernels, which get addresses alone, must have them: contiguous.

    Raises:
        DtypeError: If one is not of this dtype.
        DeviceError: If one is not on the CPU.
        ShapeError: If one has another shape than the one that goes with the rest.
    """
    made: list[Any] = []
    for name, tensor, shape in given:
        if tensor is None and name in MAY_BE_LEFT_OUT:
            made.append(None)
            continue
        if not isinstance(tensor, Tensor):  # torch hands on None for any tensor of an operator
            raise DtypeError(f"Expected a tensor of {dtype} for '{name}' (got {tensor!r:.40}).")
        if tensor.dtype != dtype or not tensor.is_cpu or tensor.shape != shape:
            _refuse(name, tensor, dtype, shape)
        made.append(tensor.contiguous())
    return made


def checked_floats(*given: Given) -> list[Any]:
    """Return tensors of single or double precision, all of the first one's; see :func:`checked`."""
    first = given[0][1]
    if not isinstance(first, Tensor) or first.dtype not in (torch.float32, torch.float64):
        raise DtypeError(
            "Expected float32 or float64 for the native backend (got "
            f"{getattr(first, 'dtype', first)}). "
            "Use model.float() or backend='torch'."
        )
    return checked(first.dtype, *given)


def _refuse(name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> NoReturn:
    """Say what is wrong with a tensor."""
    if not tensor.is_cpu:
        raise DeviceError(
            f"Expected '{name}' on the CPU for the native backend (got {tensor.device}). "
            "Use .cpu(), or backend='torch' with everything on one device."
        )
    if tensor.dtype != dtype:
        raise DtypeError(
            f"Expected '{name}' of {dtype}, as the native backend needs it beside the other "
            f"tensors (got {tensor.dtype}). Use .to({dtype}), and no autocast around the model."
        )
    raise _shape_error(name, tensor, str(tuple(shape)))


def _shape_error(name: str, tensor: Tensor, wanted: str) -> ShapeError:
    return ShapeError(
        f"Expected '{name}' to have shape {wanted}, which goes with the other tensors (got "
        f"{tuple(tensor.shape)})."
    )


def is_plain(*tensors: Tensor) -> bool:
    """Return whether nothing but autograd looks on: no compiler, no tensors of another kind.

    An operator of ``torch.library`` costs a tenth of a millisecond of Python each way, which small
    graphs feel; a plain autograd function, which only eager code can use, a quarter of that.
    """
    if torch.compiler.is_compiling():
        return False
    return all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)


def dense_like(x: Tensor) -> Tensor:
    """Return an uninitialised contiguous tensor of the same shape."""
    return empty(x, x.shape)


def lanes_like(x: Tensor) -> Tensor:
    """Return uninitialised lanes ``(n, m, B)`` for features ``(n, B, m)``."""
    n, B, m = x.shape
    return empty(x, (n, m, B))


# --- The neighbourhoods as compressed rows ------------------------------------------------------


class EdgePlan(NamedTuple):
    """The edges as rows of targets, and by source for the backward pass.

    Attributes:
        pointer: ``(n + 1,)`` int64, where each target's edges begin.
        source: ``(E,)`` int32.
        target: ``(E,)`` int32.
        by_source: ``(E,)`` int32, the edges sorted by source within each span of targets.
    """

    pointer: Tensor
    source: Tensor
    target: Tensor
    by_source: Tensor


def edge_plan(edges: Neighbourhoods) -> EdgePlan:
    """Return the rows of these neighbourhoods, made at the first call."""

    def build() -> EdgePlan:
        return EdgePlan(*_plan(edges.source, edges.target, edges.num_nodes))

    return build() if torch.compiler.is_compiling() else edges.cached(EdgePlan, build)


def target_plan(edges: TargetEdges, num_nodes: int) -> EdgePlan:
    """Return the rows of consecutive targets, for the forward pass alone."""
    _check_narrow(num_nodes, len(edges.source))
    source = edges.source.to(torch.int32)
    return EdgePlan(edges.pointer, source, source, source)  # the last two are for the backward pass


def checked_plan(plan: Sequence[Tensor], num_nodes: int) -> EdgePlan:
    """Return a plan whose arrays have the lengths they must have; see :func:`checked`.

    Where its indices point the kernels look at by themselves.
    """
    if len(plan) != len(EdgePlan._fields):
        raise ShapeError(
            f"Expected a plan of {len(EdgePlan._fields)} tensors, as torch.ops.geof.edge_plan "
            f"makes it (got {len(plan)})."
        )
    pointer, source, target, by_source = plan
    edges = (source.numel(),)
    return EdgePlan(
        *checked(torch.int64, ("pointer", pointer, (num_nodes + 1,))),
        *checked(
            torch.int32,
            ("source", source, edges),
            ("target", target, edges),
            ("by_source", by_source, edges),
        ),
    )


def checked_active(active: Tensor | None, plan: EdgePlan) -> Tensor | None:
    """Return which edges count, one boolean each."""
    mask: Tensor | None = checked(torch.bool, ("active", active, plan.source.shape))[0]
    return mask


def checked_terms(
    terms: Sequence[Tensor], plan: EdgePlan, shapes: Layouts, dtype: torch.dtype
) -> list[Tensor]:
    """Return what edges carry, as :func:`lane_terms` gives it; see :func:`checked`."""
    if len(terms) not in (0, 1, 3):
        raise ShapeError(
            f"Expected terms of edges to be a bias, or a bias, rows and a table (got {len(terms)} "
            "tensors)."
        )
    edges = plan.source.shape
    made = checked(dtype, *(("bias", bias, edges) for bias in terms[:1]))
    if len(terms) == 3:
        row, table = terms[1:]
        made += checked(torch.int32, ("row", row, edges))
        made += checked(dtype, ("table", table, (*table.shape[:1], *shapes.lanes[1:])))
    return made


@torch.library.custom_op("geof::edge_plan", mutates_args=())
def _plan(source: Tensor, target: Tensor, num_nodes: int) -> list[Tensor]:
    count = source.numel()
    _check_narrow(num_nodes, count)
    ends = ("source", source, (count,)), ("target", target, (count,))
    source, target = checked(torch.int64, *ends)
    made = _empty_plan(source, num_nodes)
    native_library().plan(source, target, num_nodes, (*made,))
    return made


_plan.register_fake(stand_in(lambda source, target, num_nodes: _empty_plan(source, num_nodes)))


def _check_narrow(num_nodes: int, count: int) -> None:
    """Require numbers of nodes and edges that fit in 32 bits."""
    if not 0 <= num_nodes < 2**31 or count >= 2**31:
        raise DataError(
            f"Expected fewer than 2^31 nodes and edges for the native backend (got {num_nodes} "
            f"and {count}). Use backend='torch' or sampled neighbourhoods."
        )


def _empty_plan(source: Tensor, num_nodes: int) -> list[Tensor]:
    narrow = [torch.empty_like(source, dtype=torch.int32) for _ in range(3)]
    return [source.new_empty(num_nodes + 1), *narrow]


def lane_terms(edges: Neighbourhoods) -> list[Tensor]:
    """Return what edges carry, as far as there is any: bias, row and table ``(rows, m, B)``."""
    return terms_as_lanes(edges.terms)


def terms_as_lanes(terms: EdgeTerms | None) -> list[Tensor]:
    """Return what is there of bias, row and table ``(rows, m, B)``."""
    if terms is None:
        return []
    bias, row, table = terms
    if row is None or table is None:
        return [bias]
    return [bias, row, table.transpose(1, 2).contiguous()]


def term_gradients(terms: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return room for the gradients of a bias and a table, by their names in the structure."""
    names = ("grad_bias", "grad_table")
    return {name: dense_like(term) for name, term in zip(names, terms[::2], strict=False)}


def between_rows(gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients of the terms with a place for ``row``, which has none."""
    return [*gradients[:1], None, *gradients[1:]] if len(gradients) > 1 else list(gradients)


def operator(name: str, function: Callable[..., Any]) -> Any:
    """Register a function that changes none of its arguments with ``torch.library``."""
    return torch.library.custom_op(name, function, mutates_args=())


def first_order(function: Callable[..., Any], registered: Any) -> Callable[..., Any]:
    """Return which of two backward passes to run: the function, or its operator.

    The operator is for gradients that are to be differentiated again (``create_graph=True``): it
    has no formula and says so, where a plain function would leave its share out in silence.
    """
    chosen: Callable[..., Any] = registered if torch.is_grad_enabled() else function
    return chosen


# --- Calls --------------------------------------------------------------------------------------


def native_library() -> Library:
    """Return the opened kernels."""
    library = find_library().library
    assert library is not None, "the native backend is registered only with its library"
    return library


def call(name: str, arguments: Any) -> None:
    """Run a kernel."""
    native_library().call(name, arguments)


def features_shape(features: Tensor) -> Shape:
    """Return the sizes of ``(n, B, m)`` features."""
    n, B, m = features.shape
    return shape_of(features, n, m, B)


def call_frames(
    name: str, z: Tensor, x: Tensor, message: Tensor, framed: bool, **fields: Any
) -> None:
    """Run ``apply_frames`` or its backward on lanes, features and features."""
    arguments = fill(
        Frames,
        shape=features_shape(x),
        framed=framed,
        lanes_out=True,
        z=z,
        x=x,
        message=message,
        **fields,
    )
    call(name, arguments)


def moment_arguments(
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    plan: EdgePlan,
    temperature: float,
    terms: Sequence[Tensor] = (),
    **fields: Any,
) -> Any:
    """Return the structure of ``edge_moments``, its backward, and that part of ``evolve``."""
    names = "bias", "row", "table"
    _, m, B = y.shape
    return fill(
        Moments,
        shape=shape_of(y, len(plan.pointer) - 1, m, B),
        E=len(weight),
        temperature=temperature,
        h=h,
        y=y,
        weight=weight,
        rows=len(terms[2]) if len(terms) > 2 else 0,
        **plan._asdict(),
        **dict(zip(names, terms, strict=False)),
        **fields,
    )


def feedback_arguments(inputs: Sequence[Tensor], options: StepOptions, **fields: Any) -> Any:
    """Return the structure of ``feedback``, its backward, and that part of ``evolve``.

    Args:
        inputs: ``z``, ``message`` and, outside ``evolve``, ``first`` and ``second``, contiguous;
            the caller keeps them.
        options: The scalars.
        **fields: Further fields by name.
    """
    names = "z", "message", "first", "second"
    return fill(
        Feedback,
        shape=features_shape(inputs[1]),
        statistic=options.statistic,
        framed=options.framed,
        floor=options.floor,
        jitter=options.jitter,
        growth=options.growth,
        retries=options.retries,
        **dict(zip(names, inputs, strict=False)),
        **fields,
    )


def report(done: Any, features: Tensor) -> None:
    """Raise, count or warn about blocks that were not positive definite at the first attempt."""
    non_finite, kept, retried, most, rescued = done.status
    if non_finite or retried:
        report_attempts(
            features.size(0) * features.size(1),
            JitterSchedule(done.jitter, done.growth, done.retries),
            non_finite=non_finite,
            retried=retried,
            most_retries=most,
            rescued=rescued,
            kept=kept,
        )
