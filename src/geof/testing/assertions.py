"""Assertions about graph layers, for this package's tests and for yours.

Each comes with a test that shows it a wrong implementation and sees it fail.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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
