"""``geof bench --profile``: what the parts of a training pass cost.

Twice, for each way has its blind side. By switching parts off, interleaved in one process, in CPU
time: what a part costs in all, wherever its work is done. By torch's profiler on the full pass:
where the time goes, though the profiler itself slows short operators most.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from geof.kernels.library import Library
from geof_paper.bench.catalogue import Effort, Entry, Workload
from geof_paper.bench.networks import Training
from geof_paper.bench.problems import Facts, build_problem
from geof_paper.bench.processes import Say
from geof_paper.bench.timing import round_orders

GCN, FULL = "gcn", "geof"

SWITCHED: dict[str, dict[str, Any]] = {
    FULL: {},
    "controller 64": {"controller_channels": 64},
    "controller 16": {"controller_channels": 16},
    "no controller": {"correction_strength": 0.0},
    "frozen geometry": {"evolution": "frozen"},
    "one step": {"steps": 1},
    "blocks of 4": {"blocks": 16},
    "blocks of 16": {"blocks": 4},
}
"""GeoF with one thing changed at a time; the first is the whole."""

_ROOT = "geof bench: pass"
_KERNEL = "geof kernel: "
_REST = "the rest"
_NO_WORK = (
    "empty|view|reshape|t$|transpose|permute|detach|as_strided|expand|select$|slice|split|narrow|"
    "chunk|unflatten|flatten|squeeze|unsqueeze|alias|resize|set_|to$|contiguous|item|"
    "_local_scalar|is_nonzero|lift_fresh|result_type|_unsafe_view|_reshape_alias|new_empty"
)

GROUPS: dict[str, str] = {
    "native backward": rf"{_KERNEL}\w+_backward$",
    "native forward": _KERNEL,
    "dense products": r"aten::(addmm|mm|bmm|baddbmm|addbmm|addmv|mv|dot|matmul|linear|"
    r"_?sparse\w*mm|_?sparse_addmm)_?$",
    "loss and readout": r"aten::\w*(nll_loss|log_softmax|cross_entropy|scatter|index_add|bincount)",
    "optimiser": r"Optimizer\.|aten::_(fused|foreach)_",
    _REST: rf"(?!aten::)|aten::_?({_NO_WORK})",
    "normalisation and element-wise": r"aten::",
}
"""Groups by the names of operators; the first that fits. The rest is Python, autograd, binding."""


@dataclass(frozen=True)
class PartTimes:
    """One variant of the pass.

    Attributes:
        name: Of :data:`SWITCHED`, or the GCN.
        cpu_ms: Median CPU time of all threads in a training pass.
        cpu_ms_quartiles: First and third quartile.
        forward_cpu_ms: Median of its forward half.
        passes: How many were timed.
        ratio_to_gcn: Of ``cpu_ms``.
    """

    name: str
    cpu_ms: float
    cpu_ms_quartiles: tuple[float, float]
    forward_cpu_ms: float
    passes: int
    ratio_to_gcn: float


@dataclass(frozen=True)
class Share:
    """One group of operators in the full pass.

    Attributes:
        group: Of :data:`GROUPS`.
        self_ms: The profiler's self CPU time in a pass, which is time on the clock of its thread.
        share: Of the whole pass.
    """

    group: str
    self_ms: float
    share: float


@dataclass(frozen=True)
class Profile:
    """Both tables of a workload.

    Attributes:
        workload: Its name.
        parts: What a pass costs with parts switched off.
        shares: Where the full pass spends its time.
        facts: Of the data.
    """

    workload: str
    parts: list[PartTimes]
    shares: list[Share]
    facts: Facts

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def measure_profile(
    workload: Workload, data_root: str | None, effort: Effort, *, say: Say
) -> Profile:
    """Measure both tables on one piece: the graph, or the first batch of a set."""
    say("preparing")
    problem = build_problem(workload, data_root, batches=1)
    trainings = {GCN: Training(Entry(GCN), problem)}
    trainings |= {
        name: Training(Entry("geof", "auto"), problem, **options)
        for name, options in SWITCHED.items()
    }
    steps = {name: _Step(training) for name, training in trainings.items()}
    parts = time_parts(steps, effort, say)
    say("profiling")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports every start and stop
    passes = max(effort.least_rounds, min(effort.most_rounds, 20))
    return Profile(workload.name, parts, profile_shares(steps[FULL], passes), problem.facts)


class _Step:
    """One training pass in its two halves; what is built from the edges is no part of it.

    The neighbourhoods of a batch are new in every pass, as in training, and what the kernels derive
    from them is in the pass.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self.piece = training.problem.pieces[0]

    def prepared(self) -> tuple[Any, ...]:
        return self.training.prepared(self.piece)

    def run(self, prepared: tuple[Any, ...], between: Callable[[], None] = lambda: None) -> None:
        loss = self.training.loss(self.piece, prepared)
        between()
        self.training.descend(loss)


def time_parts(
    steps: Mapping[str, _Step], effort: Effort, say: Say, clock: Callable[[], float] | None = None
) -> list[PartTimes]:
    """Return the times of all variants, one pass each per round, after a warm-up."""
    clock = clock or time.process_time
    first = {name: _timed(step, clock)[1] for name, step in steps.items()}
    orders = round_orders([Entry(name) for name in steps], effort, sum(first.values()))
    say(f"{len(orders)} rounds of {', '.join(steps)}")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for order in orders:
        for entry in order:
            times[entry.method].append(_timed(steps[entry.method], clock))
    base = statistics.median(whole for _, whole in times[GCN])
    return [_part(name, found, base) for name, found in times.items()]


def _timed(step: _Step, clock: Callable[[], float]) -> tuple[float, float]:
    """Return the seconds of a pass's forward half and of the whole."""
    prepared = step.prepared()
    marks = [clock()]
    step.run(prepared, lambda: marks.append(clock()))
    return marks[1] - marks[0], clock() - marks[0]


def _part(name: str, times: list[tuple[float, float]], base: float) -> PartTimes:
    forward, whole = zip(*times, strict=True)
    low, middle, high = statistics.quantiles(whole, n=4, method="inclusive")
    return PartTimes(
        name=name,
        cpu_ms=1e3 * middle,
        cpu_ms_quartiles=(1e3 * low, 1e3 * high),
        forward_cpu_ms=1e3 * statistics.median(forward),
        passes=len(times),
        ratio_to_gcn=middle / base,
    )


def profile_shares(step: _Step, passes: int) -> list[Share]:
    """Return where the profiler sees the time of a pass, the largest group first."""
    step.run(step.prepared())
    with _named_kernels(), profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(passes):
            prepared = step.prepared()
            with record_function(_ROOT):
                step.run(prepared)
    spent = [spent_in(event) for event in found.events() or () if event.name == _ROOT]
    # The middle of the passes: other work on the machine stretches single ones.
    middle = {group: statistics.median(each[group] for each in spent) for group in GROUPS}
    total = sum(middle.values())
    shares = [Share(group, ms, ms / total) for group, ms in middle.items()]
    return sorted(shares, key=lambda share: -share.self_ms)


def spent_in(event: Any) -> dict[str, float]:
    """Return the milliseconds of each group in an event and all that it called."""
    spent = dict.fromkeys(GROUPS, 0.0)
    waiting = [event]
    while waiting:
        event = waiting.pop()
        spent[group_of(event.name)] += event.self_cpu_time_total / 1e3
        waiting.extend(event.cpu_children)
    return spent


def group_of(name: str) -> str:
    """Return the group of an operator or range."""
    return next(group for group, pattern in GROUPS.items() if re.match(pattern, name))


@contextmanager
def _named_kernels() -> Iterator[None]:
    """Let the profiler see the calls of the compiled kernels under their own names."""
    call, plan = Library.call, Library.plan

    def named_call(self: Library, name: str, arguments: Any) -> None:
        with record_function(_KERNEL + name):
            call(self, name, arguments)

    def named_plan(self: Library, *arguments: Any) -> None:
        with record_function(_KERNEL + "plan"):
            plan(self, *arguments)

    kernels: Any = Library
    kernels.call, kernels.plan = named_call, named_plan
    try:
        yield
    finally:
        kernels.call, kernels.plan = call, plan
