"""Wrong tensors handed to the public interface: an error, never a signal; kernels at any scale."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch

from geof.errors import GeofError
from geof.kernels import BACKENDS, Neighbourhoods
from tests.faults.calls import calls, problem, read, step, step_tensors, wrong_calls
from tests.faults.harness import tries

N = 7
TABLE = calls(N)


@pytest.mark.parametrize("name", TABLE)
def test_wrong_tensors(name, tried):
    """In forked processes; an error of Python's is an answer, a signal is none."""
    call = TABLE[name]
    read(call.run(**call.copies()))
    attacks = list(wrong_calls(call, tries(8, 1)))
    assert signals(attacks) == []
    tried(len(attacks))


def signals(attacks: Sequence[tuple[str, Callable[[], Any]]]) -> list[str]:
    """Make the calls one after the other in a fork, in another after each that ends one.

    A fork for every call would cost a hundred times the call. Where one is is written to memory
    that both processes see, so that the one that ended it is known.
    """
    found, begun = [], mmap.mmap(-1, 8)
    first = 0
    while first < len(attacks):
        child = os.fork()
        if child == 0:
            _live(attacks, first, begun)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break
        last = int.from_bytes(begun[:], "little")
        found.append(f"{attacks[last][0]}: {signal.Signals(-code).name if code < 0 else code}")
        first = last + 1
    return found


def _live(attacks: Sequence[tuple[str, Callable[[], Any]]], first: int, begun: mmap.mmap) -> None:
    """Be the child: make the calls from number ``first`` on, each within a minute."""
    code = 3
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for number in range(first, len(attacks)):
            begun[:] = number.to_bytes(8, "little")
            signal.alarm(60)
            with suppress(Exception):
                attacks[number][1]()
        code = 0
    finally:
        os._exit(code)


def test_a_call_that_ends_its_process_is_named():
    """Otherwise the test above would say nothing."""

    def abort() -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def refuse() -> None:
        raise ValueError

    attacks = [("a", refuse), ("b", abort), ("c", refuse), ("d", abort), ("e", lambda: os._exit(7))]
    assert signals(attacks) == ["b: SIGSEGV", "d: SIGSEGV", "e: 7"]
    assert signals(attacks[:1]) == []


SCALES = [10.0**e for e in range(-20, 7)]
SIZES = [(2, 3), (8, 4), (8, 8), (3, 5), (1, 16), (4, 1)]
"""Blocks and their sizes: with code of their own, and without."""
STATISTICS = ["full", "mean", "diagonal", "full"]


def test_native_at_every_scale(tried):
    """In double precision beside the reference, on admissible states and inputs of any size."""
    if "native" not in BACKENDS:
        pytest.skip("needs the compiled kernels")
    per_graph, seed = tries(50, 670), 0
    for scale in SCALES:
        for blocks, m in SIZES:
            seed += 1
            draw = torch.Generator().manual_seed(seed)
            edges = torch.randint(0, per_graph, (2, 3 * per_graph), generator=draw)
            neighbours = Neighbourhoods.from_edge_index(edges, per_graph)
            tensors = step_tensors(per_graph, torch.float64, seed, blocks, m)
            for key in ("xi", "message"):
                tensors[key] = scale * tensors[key]
            how = {"statistic": STATISTICS[seed % 4], "framed": seed % 3 > 0}
            wanted, found = (
                _with_gradients(step(backend, neighbours, **how), tensors, seed)
                for backend in ("reference", "native")
            )
            for key, value in wanted.items():
                size = value.abs().max().clamp(min=1e-300)
                off = float((found[key] - value).abs().max() / size)
                assert off < 1e-7, (scale, blocks, m, how, key, off)
            assert bool(found["coordinates"].isfinite().all())
            tried(per_graph)


def _with_gradients(
    run: Callable[..., dict[str, torch.Tensor]], tensors: dict[str, torch.Tensor], seed: int
) -> dict[str, torch.Tensor]:
    """Return the values, and the gradients by a fixed pull on every output."""
    leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    found = run(**leaves)
    draw = torch.Generator().manual_seed(seed)
    pulls = [torch.randn(t.shape, generator=draw, dtype=t.dtype) for t in found.values()]
    grads = torch.autograd.grad(
        list(found.values()), list(leaves.values()), pulls, materialize_grads=True
    )
    return {
        **{name: value.detach() for name, value in found.items()},
        **{f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)},
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, -1e300])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_what_is_not_finite_is_never_hidden(value, place, tried):
    """A bad number in any parameter: where the reference shows or tells it, so does every other."""
    neighbours = Neighbourhoods.from_edge_index(problem(N)["edge_index"], N)
    for name in step_tensors(N):
        outcomes = {}
        for backend in sorted(BACKENDS):
            tensors = step_tensors(N, torch.float64)
            flat = tensors[name].view(-1)
            flat[{"first": 0, "middle": len(flat) // 2, "last": -1}[place]] = value
            try:
                found = step(backend, neighbours)(**tensors)
                outcomes[backend] = {key: t.isfinite() for key, t in found.items()}
            except GeofError:
                outcomes[backend] = None
            tried()
        wanted = outcomes.pop("reference")
        if name == "coords" and abs(value) == 1e300:
            continue  # far outside the box rounding decides what overflows (docs/reliability.md)
        for backend, found in outcomes.items():
            if found is not None:
                assert wanted is not None, (name, backend)
                assert not any((found[k] & ~wanted[k]).any() for k in found), (name, backend)
