"""What a kernel gives, all of it: values and gradients, to be compared between backends."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from geof.testing import assert_no_less_accurate


@lru_cache(maxsize=32)
def cotangent(seed: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return fixed random numbers; backends, dtypes and repeats ask for the same in a row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def outcome(run, inputs, *, dtype=torch.float64, only=None) -> dict[str, Tensor]:
    """Return values and the gradients of all inputs against fixed random cotangents.

    ``run`` takes the inputs by name and returns values by name; what it has none of is ``None``.
    ``only`` names the one value that the gradients are of.
    """
    given = {k: v.detach().to(dtype).requires_grad_() for k, v in inputs.items()}
    values = {k: v for k, v in run(**given).items() if v is not None}
    loss = torch.zeros((), dtype=dtype)
    for seed, (name, value) in enumerate(values.items()):
        if value.requires_grad and only in (None, name):
            loss = loss + (value * cotangent(seed, value.shape, dtype)).sum()
    gradients = torch.autograd.grad(
        loss, list(given.values()), allow_unused=True, materialize_grads=True
    )
    named = {f"gradient of {k}": v for k, v in zip(given, gradients, strict=True)}
    return {**{k: v.detach() for k, v in values.items()}, **named}


def assert_accurate(candidate, working, exact):
    """Require at most twice the reference's own float32 error, for gradients three times."""
    for gradients, factor in ((False, 2.0), (True, 3.0)):
        chosen = [
            [{k: v for k, v in s.items() if k.startswith("grad") == gradients} for s in kind]
            for kind in (candidate, working, exact)
        ]
        assert_no_less_accurate(*chosen, factor=factor)
