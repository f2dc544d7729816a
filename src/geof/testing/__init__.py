"""Checks for this package's tests and for yours: assertions about graph layers, and a test case.

:class:`MethodTestCase` holds what every method must do; derive from it, name your method, and
pytest runs the checks. It is imported when asked for, since it needs pytest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from geof.data.link_splits import random_link_split
from geof.data.records import GraphSet, NodeGraph
from geof.data.sources import SignatureConfig
from geof.data.splits import GraphSplit, random_node_split
from geof.methods.interface import GraphInputs, TaskKind
from geof.nn.inputs import without_csr_warnings
from geof.training.stages import TrainingConfig
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Task

if TYPE_CHECKING:
    from geof.testing.method_case import MethodTestCase

__all__ = [
    "MethodTestCase",
    "Sample",
    "assert_batch_equals_alone",
    "assert_compiles",
    "assert_edge_order_irrelevant",
    "assert_no_less_accurate",
    "assert_permutation_equivariant",
    "assert_positive_definite",
    "assert_same",
    "draw_parameters",
    "random_graph",
    "side_by_side",
    "tiny_graph",
    "tiny_set",
    "tiny_task",
    "values_and_gradients",
    "without_csr_warnings",
]

NodeModel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of features ``(n, F)``, edges ``(2, E)`` and signatures ``(n, q)`` to ``(n, d)``."""


def values_and_gradients(
    model: nn.Module, x: Tensor, edge_index: Tensor, signature: Tensor, seed: int = 0
) -> dict[str, Tensor]:
    """Run a model forward and backward against a fixed random cotangent.

    Returns:
        The output and the gradient of both inputs and of every parameter, by name. Parameters
        the model does not use have a zero gradient.
    """
    x, signature = (value.detach().clone().requires_grad_() for value in (x, signature))
    output = model(x, edge_index, signature)
    cotangent = torch.randn(
        output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    named = {"x": x, "signature": signature, **dict(model.named_parameters())}
    gradients = torch.autograd.grad(
        (output * cotangent.to(output)).sum(),
        list(named.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    result = {f"gradient of {name}": grad for name, grad in zip(named, gradients, strict=True)}
    return {"output": output.detach(), **result}


def assert_same(
    candidate: Mapping[str, Tensor], reference: Mapping[str, Tensor], tolerance: float
) -> None:
    """Require equal names and entries that agree to ``tolerance`` relative to each tensor's scale.

    The scale is the larger of one and the reference's largest magnitude.
    """
    assert candidate.keys() == reference.keys(), (
        f"names differ: {sorted(candidate.keys() ^ reference.keys())}"
    )
    for name, wanted in reference.items():
        got, wanted = candidate[name].detach(), wanted.detach()
        assert got.shape == wanted.shape, f"{name}: {tuple(got.shape)} vs {tuple(wanted.shape)}"
        if wanted.numel() == 0:
            continue
        scale = max(1.0, float(wanted.abs().max()))
        error = float((got.double() - wanted.double()).abs().max()) / scale
        assert error <= tolerance, f"{name}: off by {error:.3g}, allowed {tolerance:.3g}"


def assert_no_less_accurate(
    candidate: Sequence[Mapping[str, Tensor]],
    working: Sequence[Mapping[str, Tensor]],
    exact: Sequence[Mapping[str, Tensor]],
    factor: float = 2.0,
) -> None:
    """Require the candidate's error to be at most ``factor`` times the reference's own.

    Errors are root mean squares against the high-precision reference, pooled over all samples, so
    no tolerance is picked by hand. Give enough samples: the error of a small tensor in one
    sample is mostly chance.

    Args:
        candidate: The implementation under test, in working precision, one entry per sample.
        working: The reference in working precision.
        exact: The reference in high precision.
        factor: How much worse the candidate may be.
    """
    for name in exact[0]:
        ours = _pooled_error([sample[name] for sample in candidate], [s[name] for s in exact])
        own = _pooled_error([sample[name] for sample in working], [s[name] for s in exact])
        assert ours <= factor * own or ours == 0, (
            f"{name}: error {ours:.3g} is more than {factor} times the reference's own {own:.3g}"
        )


def _pooled_error(values: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    error = size = 0.0
    for value, wanted in zip(values, exact, strict=True):
        error += float((value.double() - wanted).square().sum())
        size += float(wanted.square().sum())
    return math.sqrt(error / size if size > 0 else error)


def assert_permutation_equivariant(
    model: NodeModel,
    x: Tensor,
    edge_index: Tensor,
    signature: Tensor,
    *,
    tolerance: float = 1e-10,
    seed: int = 0,
) -> None:
    """Require that renumbering the nodes renumbers the output and changes nothing else."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    plain = model(x, edge_index, signature)
    permuted = model(x[order], rank[edge_index], signature[order])
    assert_same({"output": permuted}, {"output": plain[order]}, tolerance)


def assert_edge_order_irrelevant(
    model: NodeModel, x: Tensor, edge_index: Tensor, signature: Tensor, *, seed: int = 0
) -> None:
    """Require the same bits when the edges are given in another order."""
    order = torch.randperm(edge_index.size(1), generator=torch.Generator().manual_seed(seed))
    plain = model(x, edge_index, signature)
    assert torch.equal(model(x, edge_index[:, order], signature), plain), "edge order matters"


def assert_batch_equals_alone(
    model: NodeModel,
    graphs: Sequence[tuple[Tensor, Tensor, Tensor]],
    *,
    tolerance: float = 1e-10,
) -> None:
    """Require that a disjoint union of graphs gives each graph's own output."""
    offsets = [0]
    for x, _, _ in graphs:
        offsets.append(offsets[-1] + len(x))
    together = model(
        torch.cat([x for x, _, _ in graphs]),
        torch.cat([e + o for (_, e, _), o in zip(graphs, offsets, strict=False)], dim=1),
        torch.cat([u for _, _, u in graphs]),
    )
    alone = torch.cat([model(*graph) for graph in graphs])
    assert_same({"output": together}, {"output": alone}, tolerance)


def assert_positive_definite(metric: Tensor) -> None:
    """Require symmetric matrices ``(..., m, m)`` with positive eigenvalues."""
    assert torch.equal(metric, metric.mT), "not symmetric"
    lowest = (
        torch.linalg.eigvalsh(metric.detach().double()).min() if metric.numel() else torch.ones(())
    )
    assert float(lowest) > 0, f"smallest eigenvalue {float(lowest):.3g}"


def _original_names(results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo the prefix that ``torch.compile`` puts before a module's parameters."""
    return {name.replace("_orig_mod.", ""): value for name, value in results.items()}


def assert_compiles(model: nn.Module, inputs: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Require one graph without breaks that serves every size, backward included.

    The first entry of ``inputs`` is compiled for; the others must not compile again.
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(
        copy.deepcopy(model), backend=counter, fullgraph=True, dynamic=True
    )
    counts = []
    for sample in inputs:
        ours, reference = (values_and_gradients(run, *sample) for run in (compiled, model))
        assert_same(_original_names(ours), reference, 1e-5)
        counts.append(counter.frame_count)
    # The first call may compile more than once while dynamo settles which scalars are constant.
    assert counts[-1] == counts[0], f"compiled again for another size: {counts}"


Sample: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Features ``(n, F)``, edges ``(2, E)`` and signatures ``(n, q)``."""

M = TypeVar("M", bound=nn.Module)


def random_graph(
    seed: int = 0,
    *,
    nodes: int = 9,
    edges: int = 24,
    channels: int = 5,
    signature: int = 3,
    dtype: torch.dtype = torch.float64,
    simple: bool = True,
) -> Sample:
    """Return an undirected graph without self-loops; equal seeds give equal graphs.

    Args:
        seed: Of all draws.
        nodes: How many.
        edges: Pairs to draw; repeats and loops fall away.
        channels: Width of the features.
        signature: Width of the signatures.
        dtype: Of both.
        simple: ``False`` leaves the pairs as they are drawn: directed, with repeats and loops.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    edge_index = torch.randint(0, nodes, (2, edges), generator=generator)
    u = torch.rand(nodes, signature, generator=generator, dtype=torch.float64)
    if simple:
        edge_index = to_undirected(edge_index[:, edge_index[0] != edge_index[1]], num_nodes=nodes)
    return x.to(dtype), edge_index, u.to(dtype)


def side_by_side(graphs: Sequence[Sample], order: Tensor | None = None) -> GraphInputs:
    """Return a batch of graphs.

    Args:
        graphs: Its graphs.
        order: A permutation of all their nodes, in which the batch has them.
    """
    sizes = torch.tensor([len(x) for x, _, _ in graphs])
    first = sizes.cumsum(0) - sizes
    x, u = (torch.cat(values) for values in zip(*((x, u) for x, _, u in graphs), strict=True))
    edge_index = torch.cat([e + f for (_, e, _), f in zip(graphs, first, strict=True)], dim=1)
    batch = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
    if order is not None:
        x, u, batch, edge_index = x[order], u[order], batch[order], order.argsort()[edge_index]
    return GraphInputs.build(x, edge_index, u, batch, len(graphs))


def draw_parameters(
    module: M, spread: float = 0.5, except_for: Sequence[str] = (), *, statistics: bool = True
) -> M:
    """Draw every parameter anew and return the module, in evaluation mode.

    Biases start at zero, scales at one and gates open, where many a mistake cannot be seen. Means
    and variances of batch normalisations are drawn, too, all from torch's generator: seed it.

    Args:
        module: Whose.
        spread: Standard deviation.
        except_for: Parameters whose names contain one of these stay as they are.
        statistics: Whether means and variances are drawn.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not any(part in name for part in except_for):
                parameter.copy_(spread * torch.randn(parameter.shape))
        for part in module.modules():
            if statistics and isinstance(part, nn.BatchNorm1d) and part.running_mean is not None:
                assert part.running_var is not None
                part.running_mean.copy_(spread * torch.randn(part.running_mean.shape))
                part.running_var.copy_(1 + torch.randn(part.running_var.shape).square())
    return module.eval()


def tiny_graph(labels: Tensor | None = None) -> NodeGraph:
    """Return a graph of forty nodes, by default labelled with the sign of their first feature."""
    x, edge_index, _ = random_graph(0, nodes=40, edges=70, dtype=torch.float32)
    y = (x[:, 0] > 0).long() if labels is None else labels
    return NodeGraph("tiny", Data(x=x, edge_index=edge_index, y=y), ("no", "yes"))


def tiny_set(count: int = 30) -> GraphSet:
    """Return graphs of four to six nodes whose features tell their class."""
    graphs = []
    for i in range(count):
        x, edge_index, _ = random_graph(i, nodes=4 + i % 3, edges=6, dtype=torch.float32)
        graphs.append(Data(x=x + i % 2, edge_index=edge_index, y=torch.tensor([i % 2])))
    return GraphSet("tiny", graphs, ("no", "yes"))


def tiny_task(kind: TaskKind, **more: Any) -> Task:
    """Return a task that trains in seconds: 40 nodes, the links between them, or 30 graphs.

    Args:
        kind: Node, link or graph.
        **more: Arguments of the task, such as ``training``.
    """
    more = {"signature": SignatureConfig(3), **more}
    if kind == "graph":
        part = torch.arange(30)
        split = GraphSplit(part[:18], part[18:24], part[24:], "fixed")
        return GraphTask(tiny_set(), split, **{"training": TrainingConfig(batch_size=7), **more})
    data = tiny_graph()
    if kind == "link":
        return LinkTask(data, random_link_split(data.graph.edge_index, 40, 0), **more)
    return NodeTask(data, random_node_split(40, 0), **more)


def __getattr__(name: str) -> Any:
    if name == "MethodTestCase":
        from geof.testing.method_case import MethodTestCase

        return MethodTestCase
    raise AttributeError(f"module 'geof.testing' has no attribute {name!r}")
