"""Which backend serves what, and what happens where one cannot."""

from __future__ import annotations

import pytest
import torch

from geof import GeoF, GeoFConv
from geof.errors import ConfigError, DtypeError, GeofError
from geof.kernels import BACKENDS, Request, resolve_backend
from geof.kernels.library import LARGEST_BLOCK, find_library
from tests.graphs import random_sample

needs_native = pytest.mark.skipif(
    "native" not in BACKENDS, reason=f"native kernels: {find_library().reason}"
)
CPU, META = torch.device("cpu"), torch.device("meta")
HALVES = torch.bfloat16, torch.float16


def build(backend, dtype, **options) -> GeoF:
    torch.manual_seed(0)
    model = GeoF(5, 16, signature_channels=3, blocks=4, temperature=8.0, backend=backend, **options)
    return model.to(dtype)


@pytest.mark.parametrize("name", sorted(BACKENDS))
@pytest.mark.parametrize("statistic", ["full", "mean", "diagonal", None], ids=str)
def test_every_backend_serves_the_usual(name, statistic):
    for dtype in (None, torch.float32, torch.float64):
        for device in (None, CPU):
            for block_size in (1, 8, LARGEST_BLOCK):
                support = BACKENDS[name].supports(Request(block_size, device, dtype, statistic))
                assert support.error is None
                assert support.reason == ""
                chosen = resolve_backend(name, block_size, device, dtype, statistic)
                assert chosen is BACKENDS[name]


@needs_native
@pytest.mark.parametrize(
    ("request_", "error", "reason"),
    [
        (Request(LARGEST_BLOCK + 1), ConfigError, r"at most 32 \(got 33\)"),
        (Request(8, META), ConfigError, r"the CPU \(got tensors on meta\)"),
        (Request(8, CPU, torch.bfloat16), DtypeError, r"float32 or float64 \(got torch.bfloat16\)"),
        (Request(8, None, torch.float16), DtypeError, r"float32 or float64 \(got torch.float16\)"),
    ],
)
def test_native_says_why_it_cannot_and_auto_takes_torch(request_, error, reason):
    support = BACKENDS["native"].supports(request_)
    assert support.error is error
    with pytest.raises(error, match=f"native kernels are made for.*{reason}.*'auto' or 'torch'"):
        resolve_backend("native", *request_)
    assert support.reason in str(refusal("native", request_))
    assert resolve_backend("auto", *request_) is BACKENDS["torch"]
    assert resolve_backend("torch", *request_) is BACKENDS["torch"]


def refusal(name, request_) -> GeofError:
    try:
        resolve_backend(name, *request_)
    except GeofError as error:
        return error
    raise AssertionError(f"{name} serves {request_}")


def test_numbers_that_no_backend_serves_are_an_error():
    for dtype in (torch.int64, torch.complex64):
        for name in ("auto", *BACKENDS):
            assert isinstance(refusal(name, Request(4, CPU, dtype)), DtypeError)
    assert isinstance(refusal("reference", Request(4, CPU, torch.bfloat16)), DtypeError)


@needs_native
def test_auto_is_the_native_backend_wherever_that_serves():
    for dtype in (None, torch.float32, torch.float64):
        assert resolve_backend("auto", 8, CPU, dtype).name == "native"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("options", [{}, {"evolution": "frozen"}, {"feedback": "mean"}], ids=str)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_half_precision_works_and_is_computed_in_single_precision(backend, dtype, options):
    """As accurate as half the digits allow, gradients and traces included."""
    x, edge_index, u = random_sample(0, nodes=20, edges=60)
    model = build(backend, dtype, **options)
    h = model(x.to(dtype), edge_index, u.to(dtype))
    assert h.dtype == dtype
    h.float().square().mean().backward()
    # The same rounded inputs and parameters in double precision.
    exact = build("torch", dtype, **options).double()
    wanted = exact(x.to(dtype).double(), edge_index, u.to(dtype).double())
    wanted.square().mean().backward()
    unit = torch.finfo(dtype).eps
    assert (h.double() - wanted).abs().max() <= 4 * unit * wanted.abs().max()
    for (name, got), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        if other.grad is None:
            assert got.grad is None, name
            continue
        assert got.grad.isfinite().all(), name
        error = (got.grad.double() - other.grad).abs().max()
        assert error <= 6 * unit * other.grad.abs().max(), name
    state = model.evolve(x.to(dtype), edge_index, u.to(dtype), trajectory=True)
    assert state.coordinates.dtype == state.features.dtype == dtype
    assert torch.equal(state.output, h)


@pytest.mark.parametrize("name", sorted(BACKENDS.keys() - {"torch"}))
def test_a_named_backend_refuses_half_precision(name):
    x, edge_index, u = (v.bfloat16() if v.is_floating_point() else v for v in random_sample(0))
    with pytest.raises(DtypeError, match=r"float32 or float64 \(got torch.bfloat16\)"):
        build(name, torch.bfloat16)(x, edge_index, u)


@needs_native
def test_large_blocks_under_auto_train():
    conv = GeoFConv(2 * (LARGEST_BLOCK + 1), blocks=2)
    x, edge_index, _ = random_sample(0, channels=conv.channels, dtype=torch.float32)
    features, coordinates = conv(x, edge_index)
    (features.square().mean() + coordinates.square().mean()).backward()
    assert conv.controller.hidden.weight.grad.isfinite().all()


@needs_native
def test_a_statistic_the_kernels_do_not_know_goes_to_torch():
    """So that a new one needs no compiled code to be tried."""
    assert resolve_backend("auto", 4, statistic="isotropic").name == "torch"
    assert resolve_backend("auto", 4, statistic="diagonal").name == "native"
    with pytest.raises(ConfigError, match="not made for the statistic 'isotropic'"):
        resolve_backend("native", 4, statistic="isotropic")
