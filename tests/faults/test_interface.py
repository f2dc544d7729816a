"""Wrong tensors handed to the public interface: an error, never a signal; kernels at any scale."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.utils import to_undirected

from geof import GeoF, GeoFConv, GraphReadout, LinkReadout, NodeReadout, structural_signature
from geof.errors import GeofError
from geof.geometry import AdmissibleBox, JitterSchedule, num_coordinates
from geof.kernels import BACKENDS, Controller, Evolution, Neighbourhoods, StepSpec
from tests.faults.harness import tries

N, E, CHANNELS = 7, 12, 8
WRONG: dict[str, Callable[[Tensor], Any]] = {
    "float16": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "float64": lambda t: t.double(),
    "complex": lambda t: t.to(torch.complex64),
    "bool": lambda t: t.bool(),
    "uint8": lambda t: t.to(torch.uint8),
    "int32": lambda t: t.int(),
    "int64": lambda t: t.long(),
    "one fewer": lambda t: t[:-1],
    "one more": lambda t: torch.cat([t, t[:1]]),
    "empty": lambda t: t[:0],
    "narrow": lambda t: t[..., :-1],
    "wide": lambda t: torch.cat([t, t[..., :1]], -1),
    "one dimension more": lambda t: t.unsqueeze(0),
    "flat": lambda t: t.reshape(-1),
    "a number": lambda t: t.reshape(-1)[0],
    "transposed": lambda t: t.mT.contiguous().mT,
    "every second": lambda t: t.repeat_interleave(2, 0)[::2],
    "expanded": lambda t: t[:1].expand_as(t),
    "huge": lambda t: t + 2**62 if not t.is_floating_point() else t * 1e38,
    "negative": lambda t: -t - 1,
    "nan": lambda t: t * float("nan"),
    "infinite": lambda t: t / 0,
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "quantised": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "conjugate": lambda t: torch.complex(t.float(), t.float()).conj(),
    "array": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "nothing": lambda t: None,
    "text": lambda t: "tensor",
}


def problem() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, CHANNELS, generator=generator)
    edges = to_undirected(torch.randint(0, N, (2, E), generator=generator), num_nodes=N)
    return {"x": x, "edge_index": edges, "signature": torch.rand(N, 4, generator=generator)}


def layer_calls() -> dict[str, tuple[Callable[..., Any], dict[str, Tensor]]]:
    """Return public calls, each with the tensors it takes."""
    given, batch = problem(), torch.arange(N) // 4
    pairs, h = torch.tensor([[0, 1, 2], [3, 4, 5]]), given["x"]
    options: dict[str, Any] = {"blocks": 2, "signature_channels": 4, "controller_channels": 4}
    torch.manual_seed(0)
    conv = GeoFConv(CHANNELS, **options)
    return {
        "GeoF": (GeoF(CHANNELS, 8, **options), given),
        "GeoFConv": (conv, _conv_inputs(conv, given)),
        "signature": (
            lambda edge_index: structural_signature(edge_index, N),
            {"edge_index": given["edge_index"]},
        ),
        "NodeReadout": (lambda h: NodeReadout(CHANNELS, 3)(h), {"h": h}),
        "LinkReadout": (
            lambda h, pairs: LinkReadout(CHANNELS)(h, pairs),
            {"h": h, "pairs": pairs},
        ),
        "GraphReadout": (
            lambda h, batch: GraphReadout(CHANNELS, 3)(h, batch),
            {"h": h, "batch": batch},
        ),
        "Neighbourhoods": (
            lambda edge_index: Neighbourhoods.from_edge_index(edge_index, N),
            {"edge_index": given["edge_index"]},
        ),
        **{f"step {name}": (_step(name), _step_tensors()) for name in sorted(BACKENDS)},
    }


def _conv_inputs(conv: GeoFConv, given: dict[str, Tensor]) -> dict[str, Tensor]:
    coordinates = torch.zeros(N, conv.blocks, num_coordinates(conv.block_size))
    return {**given, "coordinates": coordinates}


B, M, RANK, HIDDEN = 2, 3, 2, 5


def _step_tensors(dtype: torch.dtype = torch.float32, n: int = N) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    p = (2 * RANK + 1) * M
    return {
        "xi": normal(n, B, M),
        "message": normal(n, B, M),
        "coords": 0.3 * normal(n, B, num_coordinates(M)).clamp(-1, 1),
        "shared": normal(n, HIDDEN),
        "hidden": normal(HIDDEN, 2 * M),
        "output": normal(p, HIDDEN),
        "bias": normal(p),
    }


BOX = AdmissibleBox(0.4, (-0.5, 0.7))


def _step(backend: str, n: int = N, edges: Tensor | None = None, jitter: float = 1e-9):
    given = problem()["edge_index"] if edges is None else edges
    neighbours = Neighbourhoods.from_edge_index(given, n)
    spec = StepSpec(20.0, "full", True, 0.3, JitterSchedule(jitter))

    def run(xi, message, coords, **maps):
        evolution = Evolution(0.6, 0.3, BOX, Controller(**maps))
        step = BACKENDS[backend].step
        result = step(xi, message, coords, neighbours, spec, evolution, trace=False)
        return {"aggregate": result.aggregate, "coordinates": result.coordinates}

    return run


CALLS = ["GeoF", "GeoFConv", "signature", "NodeReadout", "LinkReadout", "GraphReadout"]
CALLS += ["Neighbourhoods", *(f"step {name}" for name in sorted(BACKENDS))]


@pytest.mark.parametrize("name", CALLS)
def test_wrong_tensors(name, tried):
    """Each call in a process of its own; an error of Python's is an answer, a signal is none."""
    call, tensors = layer_calls()[name]
    call(**tensors)
    signals = []
    for argument in tensors:
        for wrong, change in list(WRONG.items())[:: tries(4, 1)]:
            code = _ending(call, tensors, argument, change)
            if code < 0:
                signals.append(f"{argument} {wrong}: {signal.Signals(-code).name}")
            tried()
    assert signals == []


def _ending(call: Any, tensors: dict[str, Tensor], argument: str, change: Any) -> int:
    """Return the exit code of a fork that makes the call with one argument changed."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.alarm(60)
            found = call(**{**tensors, argument: change(tensors[argument])})
            _read(found)
        except GeofError:
            code = 1
        except BaseException:
            code = 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _read(found: Any) -> None:
    """Touch every number of an answer."""
    values = found.values() if isinstance(found, dict) else [found]
    for value in values:
        if isinstance(value, Tensor):
            value.double().sum().item()


SCALES = [10.0**e for e in range(-20, 7)]


def test_native_at_every_scale(tried):
    """In double precision beside the reference, on admissible states and inputs of any size."""
    if "native" not in BACKENDS:
        pytest.skip("needs the compiled kernels")
    per_scale = tries(200, 4000)
    for scale in SCALES:
        generator = torch.Generator().manual_seed(int(abs(torch.tensor(scale).log10()) * 7))
        edges = torch.randint(0, per_scale, (2, 3 * per_scale), generator=generator)
        tensors = _step_tensors(torch.float64, per_scale)
        for key in ("xi", "message"):
            tensors[key] = scale * tensors[key]
        wanted = _step("reference", per_scale, edges)(**tensors)
        found = _step("native", per_scale, edges)(**tensors)
        for key, value in wanted.items():
            size = value.abs().max().clamp(min=1e-300)
            assert float((found[key] - value).abs().max() / size) < 1e-7, (scale, key)
        assert bool(found["coordinates"].isfinite().all())
        tried(per_scale)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_what_is_not_finite_is_never_hidden(value, tried):
    """A bad number in any parameter: where the reference shows or tells it, so does every other."""
    for name in _step_tensors():
        outcomes = {}
        for backend in sorted(BACKENDS):
            tensors = _step_tensors(torch.float64)
            tensors[name].view(-1)[0] = value
            try:
                found = _step(backend)(**tensors)
                outcomes[backend] = {key: t.isfinite() for key, t in found.items()}
            except GeofError:
                outcomes[backend] = None
            tried()
        wanted = outcomes.pop("reference")
        for backend, found in outcomes.items():
            if found is not None:
                assert wanted is not None, (name, backend)
                assert not any((found[k] & ~wanted[k]).any() for k in found), (name, backend)
