"""The Poincare ball, against an independent library and at the places where floats give up."""

from __future__ import annotations

import pytest
import torch
from geoopt.manifolds.stereographic import math as oracle

from geof_paper.baselines.poincare import (
    EDGE,
    exp,
    exp0,
    log,
    log0,
    mobius_add,
    project,
    squared_distance,
    within_reach,
)

CURVATURES = [0.05, 1.0, 7.3]


def vectors(count: int, seed: int = 0, length: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return length * torch.randn(count, 6, 4, generator=generator, dtype=torch.float64)


def with_gradients(function, *arguments):
    """Return the value and the gradients of a fixed random sum of it."""
    leaves = [argument.detach().clone().requires_grad_() for argument in arguments]
    value = function(*leaves)
    torch.manual_seed(0)
    (value * torch.randn_like(value)).sum().backward()
    return [value.detach(), *[leaf.grad for leaf in leaves]]


@pytest.mark.parametrize("c", CURVATURES)
def test_values_and_gradients_are_the_librarys(c):
    u, v = vectors(2, length=0.4)
    curvature = torch.tensor(c, dtype=torch.float64)

    cases = [
        (exp0, lambda a, k: oracle.expmap0(a, k=-k), (u,)),
        (log0, lambda a, k: oracle.logmap0(a, k=-k), (exp0(u, c),)),
        (mobius_add, lambda a, b, k: oracle.mobius_add(a, b, k=-k), (exp0(u, c), exp0(v, c))),
        (exp, lambda a, b, k: oracle.expmap(a, b, k=-k), (exp0(u, c), v)),
        (log, lambda a, b, k: oracle.logmap(a, b, k=-k), (exp0(u, c), exp0(v, c))),
        (
            squared_distance,
            lambda a, b, k: oracle.dist(a, b, k=-k).square(),
            (exp0(u, c), exp0(v, c)),
        ),
    ]
    for ours, theirs, arguments in cases:
        found = with_gradients(ours, *arguments, curvature)
        wanted = with_gradients(theirs, *arguments, curvature)
        for value, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("length", [1e-9, 1e-3, 0.03162, 0.0317, 1.0, 3.0])
def test_the_chart_at_the_origin_is_inverted(c, length):
    u = torch.nn.functional.normalize(vectors(1)[0], dim=-1) * length / c**0.5
    torch.testing.assert_close(log0(exp0(u, c), c), u, rtol=1e-11, atol=0)
    x = exp0(vectors(1, 1)[0] / c**0.5 * 0.3, c)
    torch.testing.assert_close(log(x, exp(x, u * 0.1, c), c), u * 0.1, rtol=1e-8, atol=1e-12)


def test_series_and_formula_meet():
    """Where one takes over from the other nothing jumps, in value and slope."""
    edge = 1e-3**0.5
    for function in (exp0, log0, lambda a, c: squared_distance(a, torch.zeros_like(a), c)):
        sides = []
        for length in (edge * (1 - 1e-9), edge * (1 + 1e-9)):
            a = torch.tensor([[length]], dtype=torch.float64)
            sides.append(with_gradients(function, a, torch.tensor(1.0, dtype=torch.float64)))
        for low, high in zip(*sides, strict=True):
            torch.testing.assert_close(low, high, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("c", CURVATURES)
def test_cutting_in_the_chart_is_projecting_in_the_ball(c, dtype):
    u = (vectors(1)[0] * torch.tensor([[0.1], [1], [2], [3], [5], [9]])).to(dtype) / c**0.5
    wanted = log0(project(exp0(u, c), c), c)
    torch.testing.assert_close(within_reach(u, c), wanted, rtol=2e-4, atol=1e-6)
    lengths = exp0(within_reach(100 * u, c), c).norm(dim=-1) * c**0.5
    torch.testing.assert_close(lengths, torch.full_like(lengths, 1 - EDGE[dtype]))
    small = u / u.norm(dim=-1, keepdim=True)
    assert torch.equal(within_reach(small / c**0.5, c), small / c**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("c", CURVATURES)
def test_rounding_does_not_decide_the_gradient_of_what_was_cut(c, dtype):
    """Cut, moved by nothing, and cut again: along the radius there is no gradient."""
    generator = torch.Generator().manual_seed(0)
    far = torch.nn.functional.normalize(torch.randn(500, 4, generator=generator)) * 1000
    u = within_reach(far.to(dtype), c)
    point, nothing = exp0(u, c), torch.zeros_like(u, requires_grad=True)
    again = within_reach(log0(mobius_add(point, exp0(nothing, c), c), c), c)
    radius = u / u.norm(dim=-1, keepdim=True)
    (again * radius).sum().backward()
    assert nothing.grad.abs().max() < 100 * torch.finfo(dtype).eps / EDGE[dtype]


def test_the_distance_is_the_one_of_the_definition():
    x, y = exp0(vectors(2, length=0.5), 2.0)
    apart = mobius_add(-x, y, 2.0).norm(dim=-1) * 2.0**0.5
    wanted = (2 / 2.0**0.5 * apart.atanh()).square()
    torch.testing.assert_close(squared_distance(x, y, 2.0), wanted, rtol=1e-10, atol=1e-12)


def test_no_curvature_is_flat_space():
    u, v = vectors(2)
    for c in (0.0, 1e-12):
        torch.testing.assert_close(exp0(u, c), u, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(log0(u, c), u, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(mobius_add(u, v, c), u + v, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(exp(u, v, c), u + v, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(log(u, v, c), v - u, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(
            squared_distance(u, v, c), 4 * (u - v).square().sum(-1), rtol=1e-9, atol=1e-10
        )
        assert torch.equal(within_reach(1e6 * u, 0.0), 1e6 * u)


@pytest.mark.parametrize("c", [0.0, *CURVATURES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_finite_where_it_hurts(c, dtype):
    """At the edge and beyond it, at the origin, for coincident and for opposite points."""
    radius = c**-0.5 if c else 1.0
    direction = torch.tensor([[0.6, -0.8, 0.0, 0.0]], dtype=dtype)
    lengths = torch.tensor([0.0, 1e-20, 0.5, 0.999, -0.999, 1.0, 1.2], dtype=dtype)
    points = radius * lengths[:, None] * direction
    curvature = torch.tensor(c, dtype=dtype)
    for function in (exp0, log0, project, within_reach):
        for value in with_gradients(function, points, curvature):
            assert value.isfinite().all(), function.__name__
    x, y = points.repeat_interleave(7, 0), points.repeat(7, 1)
    for function in (mobius_add, exp, log, squared_distance):
        for value in with_gradients(function, x, y, curvature):
            assert value.isfinite().all(), function.__name__


def test_coincident_points_are_at_distance_zero():
    for dtype in (torch.float32, torch.float64):
        x = exp0(within_reach(vectors(1, length=2.0)[0].to(dtype), 1.0), 1.0)
        value, slope_x, slope_y, _ = with_gradients(
            squared_distance, x, x, torch.tensor(1.0, dtype=dtype)
        )
        for zero in (value, slope_x, slope_y, mobius_add(-x, x, 1.0)):
            assert not zero.any()


def test_single_precision_is_as_good_as_it_can_be_near_the_edge():
    u, v = within_reach(vectors(2, length=3.0).float(), 1.0)
    found = squared_distance(exp0(u, 1.0), exp0(v, 1.0), 1.0).double()
    wanted = squared_distance(exp0(u.double(), 1.0), exp0(v.double(), 1.0), 1.0)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
