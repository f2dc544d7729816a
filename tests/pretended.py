"""A second device that is not there: tensors that compute on the CPU and say they are elsewhere.

Whoever mixes such a tensor with one on the CPU, or asks it for NumPy's view, is told so, as a GPU
would tell. Unlike fake tensors these have numbers, so that whole trainings run, and their results
can be compared. The device is called ``meta``, which torch lets tensors have on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from geof import devices

ELSEWHERE = torch.device("meta")
aten = torch.ops.aten
_MOVING = (aten._to_copy.default, aten.copy_.default)


class MixedDevicesError(RuntimeError):
    """Tensors of two devices met in one operation."""


class Elsewhere(Tensor):
    """A tensor of the CPU that says it is on another device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        sparse = inner.layout != torch.strided
        more = {"dispatch_layout": True} if sparse else {"strides": inner.stride()}
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, layout=inner.layout, device=ELSEWHERE, **more
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.inner!r})"


class _Pretending(TorchDispatchMode):
    """Takes factories too, which have no tensor to tell by."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Let tensors be made on the second device and moved there."""
    with _Pretending():
        yield ELSEWHERE


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a second device that is there for the time being."""
    monkeypatch.setattr(devices, "_NAME", re.compile("auto|cpu|meta"))
    monkeypatch.setattr(devices, "available_devices", lambda: ["cpu", "meta"])
    with pretended_device() as device:
        yield str(device)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    here = [t for t in tensors if not isinstance(t, Elsewhere) and t.dim() > 0]
    if there and here and func not in _MOVING:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in here)
        raise MixedDevicesError(f"{func} mixes tensors of the CPU, {shapes}, with others")
    if func.namespace == "geof":
        # Its body, not the operator: what it does inside must not mix devices either.
        with _Pretending():
            return OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
    wanted = kwargs.get("device")
    leaves = bool(there) if wanted is None else torch.device(wanted) == ELSEWHERE
    if func is aten.copy_.default:
        leaves = isinstance(args[0], Elsewhere)
    if wanted is not None and torch.device(wanted) == ELSEWHERE:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(tensor.inner): tensor for tensor in there}
    args, kwargs = tree_map(_inner, (args, kwargs))
    outputs = func(*args, **kwargs)
    if func is aten._to_copy.default and not leaves:
        return outputs
    return tree_map(lambda value: _wrapped(value, known) if leaves else value, outputs)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value


def _wrapped(value: Any, known: dict[int, Elsewhere]) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, Elsewhere):
        return value
    # What an operation changed in place stays the tensor it was.
    return known[id(value)] if id(value) in known else Elsewhere(value)
