"""The count of work against a count of every single operation, and the roof."""

from __future__ import annotations

import pytest
import torch

from geof.kernels import Neighbourhoods
from geof_paper.bench import roofline
from geof_paper.bench.catalogue import WORKLOADS
from geof_paper.bench.problems import build_problem
from geof_paper.bench.roofline import Roof, Work, backward_work, forward_work, rates

B, M = 2, 3
EDGES = Neighbourhoods.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 4)
N, E = EDGES.num_nodes, EDGES.source.numel()


class Counter:
    """Counts operations while a loop computes."""

    def __init__(self) -> None:
        self.flops = 0

    def op(self, value: float, flops: int = 1) -> float:
        self.flops += flops
        return value


def forward_by_hand(h, y, count: Counter):
    """Compute the moments one operation at a time; second moments in their lower half."""
    n, blocks, m = y.shape
    edges = list(zip(EDGES.source.tolist(), EDGES.target.tolist(), strict=True))
    score, total = [], [0.0] * n
    for j, i in edges:
        energy = 0.0
        for b in range(blocks):
            for k in range(m):
                difference = count.op(float(h[i, b, k] - h[j, b, k]))
                energy = count.op(energy + difference * difference, 2)
        score.append(count.op(float(torch.exp(torch.tensor(count.op(-energy / 1.0))))))
        total[i] = count.op(total[i] + score[-1])
    first, second = torch.zeros(n, blocks, m), torch.zeros(n, blocks, m, m)
    weight = []
    for (j, i), s in zip(edges, score, strict=True):
        w = count.op(s / total[i])
        weight.append(w)
        for b in range(blocks):
            for k in range(m):
                first[i, b, k] = count.op(first[i, b, k] + w * y[j, b, k], 2)
            residual = [count.op(float(y[j, b, k] - y[i, b, k])) for k in range(m)]
            weighted = [count.op(w * r) for r in residual]
            for k in range(m):
                for other in range(k + 1):
                    value = second[i, b, k, other] + weighted[k] * residual[other]
                    second[i, b, k, other] = count.op(value, 2)
    return torch.tensor(weight), first, second


def backward_by_hand(h, y, weight, grad_weight, grad_first, grad_second, count: Counter):
    """Compute the gradients of h and y one operation at a time."""
    n, blocks, m = y.shape
    edges = list(zip(EDGES.source.tolist(), EDGES.target.tolist(), strict=True))
    curvature = grad_second + grad_second.mT
    count.flops += n * blocks * m * (m + 1) // 2
    grad_h, grad_y = torch.zeros_like(h), torch.zeros_like(y)
    scores, mean = [], [0.0] * n
    for e, (j, i) in enumerate(edges):
        w, from_first, bending = float(weight[e]), 0.0, 0.0
        for b in range(blocks):
            residual = [count.op(float(y[j, b, k] - y[i, b, k])) for k in range(m)]
            for k in range(m):
                from_first = count.op(from_first + float(grad_first[i, b, k] * y[j, b, k]), 2)
                grad_y[j, b, k] = count.op(grad_y[j, b, k] + w * grad_first[i, b, k], 2)
                bent = 0.0
                for other in range(m):
                    bent = count.op(bent + float(curvature[i, b, k, other]) * residual[other], 2)
                bending = count.op(bending + bent * residual[k], 2)
                pull = count.op(w * bent)
                grad_y[i, b, k] = count.op(grad_y[i, b, k] - pull)
                grad_y[j, b, k] = count.op(grad_y[j, b, k] + pull)
        score = count.op(float(grad_weight[e]) + from_first)
        score = count.op(score + count.op(0.5 * bending))
        scores.append(score)
        mean[i] = count.op(mean[i] + w * score, 2)
    for e, (j, i) in enumerate(edges):
        slope = count.op(count.op(scores[e] - mean[i]) * float(weight[e]))
        slope = count.op(slope * -1.0)  # over the temperature
        twice = count.op(2 * slope)
        for b in range(blocks):
            for k in range(m):
                force = count.op(count.op(float(h[i, b, k] - h[j, b, k])) * twice)
                grad_h[i, b, k] = count.op(grad_h[i, b, k] + force)
                grad_h[j, b, k] = count.op(grad_h[j, b, k] - force)
    return grad_h, grad_y


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(0)
    h, y = (torch.randn(N, B, M, generator=generator).requires_grad_() for _ in range(2))
    kernel, _ = roofline.edge_kernels()["torch"]
    return h, y, kernel(h, y, EDGES, 1.0, second=True), generator


def test_forward_flops_are_those_of_a_loop_that_computes_the_same(drawn):
    h, y, moments, _ = drawn
    count = Counter()
    weight, first, second = forward_by_hand(h.detach(), y.detach(), count)
    torch.testing.assert_close(weight, moments.weight.detach())
    torch.testing.assert_close(first, moments.first.detach())
    torch.testing.assert_close(second, moments.second.detach().tril())
    assert forward_work(N, E, B, M).flops == count.flops


def test_backward_flops_are_those_of_a_loop_that_computes_the_same(drawn):
    h, y, moments, generator = drawn
    cotangents = [torch.randn(value.shape, generator=generator) for value in moments]
    expected = torch.autograd.grad(tuple(moments), (h, y), cotangents)
    count = Counter()
    found = backward_by_hand(h.detach(), y.detach(), moments.weight.detach(), *cotangents, count)
    torch.testing.assert_close(found, expected)
    assert backward_work(N, E, B, M).flops == count.flops


def test_compulsory_bytes_are_those_of_the_tensors(drawn):
    h, y, moments, _ = drawn
    lower = [moments.second[..., k, other] for k in range(M) for other in range(k + 1)]
    moment = sum(part.numel() * 4 for part in lower)
    indices = EDGES.source.nbytes + 8 * (N + 1)
    inputs = h.nbytes + y.nbytes
    outputs = moments.weight.nbytes + moments.first.nbytes + moment
    assert forward_work(N, E, B, M).compulsory == inputs + indices + outputs
    given = 2 * moments.weight.nbytes + moments.first.nbytes + moment  # gradients and weights
    assert backward_work(N, E, B, M).compulsory == inputs + indices + given + inputs


def test_gathering_adds_the_neighbours_rows():
    row = B * M * 4
    for count, rows in ((forward_work, 2), (backward_work, 6)):
        work = count(N, E, B, M)
        assert work.gathered - work.compulsory == rows * E * row


def test_the_roof_is_bandwidth_below_the_ridge_and_peak_above():
    roof = Roof(bandwidth=10.0, flops=100.0)
    assert roof.over(Work(flops=10, compulsory=2, gathered=0)) == 50.0
    assert roof.over(Work(flops=100, compulsory=2, gathered=0)) == 100.0


def test_rates_are_fractions_of_the_machine():
    found = rates(Work(flops=10, compulsory=2, gathered=4), 0.5, Roof(10.0, 100.0))
    assert found["gflops_per_second"] == pytest.approx(20e-9)
    assert found["intensity_flops_per_byte"] == 5.0
    assert found["fraction_of_peak_flops"] == pytest.approx(0.2)
    assert found["fraction_of_bandwidth"] == pytest.approx(0.4)
    assert found["fraction_of_roof"] == pytest.approx(0.4)


def test_the_roofline_covers_every_kernel_in_both_directions(tmp_path, monkeypatch):
    monkeypatch.setattr(roofline, "measure_roof", lambda: Roof(1e10, 1e11))
    path = tmp_path / "problem.pt"
    build_problem(WORKLOADS["tiny"]).save(path)
    found = roofline.measure_roofline(path, 1, say=lambda line: None)
    assert found["edges_with_self_loops"] == 1_200 + 200
    passes = [(p["backend"], p["pass"]) for p in found["passes"]]
    kernels = roofline.edge_kernels()
    assert passes == [(k, p) for k in kernels for p in ("forward", "backward")]
    assert all(p["seconds"] > 0 for p in found["passes"])


def test_the_machine_is_measured_with_rates_above_zero():
    roof = roofline.measure_roof(repeats=1, size=64, array_bytes=2**20)
    assert roof.bandwidth > 1e6
    assert roof.flops > 1e6


def test_a_missing_native_kernel_is_left_out(monkeypatch):
    real = roofline.importlib.import_module

    def missing(name):
        if name == "geof.kernels.native":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(roofline.importlib, "import_module", missing)
    assert list(roofline.edge_kernels()) == ["torch"]
