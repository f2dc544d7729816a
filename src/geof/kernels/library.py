"""Finding and loading the compiled kernels, and their C interface (``native/geof.h``).

The package's build makes one library for every instruction set. The generic one is asked what the
processor can do, then the best one is opened. Nothing here fails when there is none: the caller
is told why.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from geof.errors import ConfigError, DataError, nearest
from geof.kernels.memory import kept_bytes

ABI = 5
LARGEST_BLOCK = 32
LEVELS = ("generic", "avx2", "avx512")
CHOICE = "GEOF_KERNELS"
"""Environment variable: an instruction set to use instead of the best one, or ``off``."""


class Shape(Structure):
    """Sizes common to all kernels."""

    _fields_ = (
        ("dtype", c_int32),
        ("threads", c_int32),
        ("n", c_int64),
        ("m", c_int32),
        ("B", c_int32),
    )


def _pointers(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, c_void_p) for name in names)


class Frames(Structure):
    """Arguments of ``apply_frames`` and its backward."""

    _fields_ = (
        ("shape", Shape),
        ("framed", c_int32),
        ("lanes_out", c_int32),
        ("add", c_int32),
        *_pointers("z", "x", "message", "h", "y", "grad_h", "grad_y"),
        *_pointers("grad_z", "grad_x", "grad_message"),
    )


class Moments(Structure):
    """Arguments of ``edge_moments`` and its backward."""

    _fields_ = (
        ("shape", Shape),
        ("E", c_int64),
        ("temperature", c_double),
        *_pointers("h", "y", "pointer", "source", "active", "weight", "first", "second"),
        *_pointers("grad_weight", "grad_first", "grad_second"),
        *_pointers("target", "by_source", "grad_h", "grad_y"),
        *_pointers("bias", "row", "table"),
        ("rows", c_int64),
        *_pointers("grad_bias", "grad_table"),
        ("sources", c_int64),
        ("first_target", c_int64),
    )


class Feedback(Structure):
    """Arguments of ``feedback`` and its backward."""

    _fields_ = (
        ("shape", Shape),
        ("statistic", c_int32),
        ("framed", c_int32),
        ("floor", c_double),
        ("jitter", c_double),
        ("growth", c_double),
        ("retries", c_int32),
        ("add_to_z", c_int32),
        *_pointers("z", "message", "first", "second", "aggregate", "target"),
        *_pointers("moment", "attempt"),
        ("status", c_int64 * 5),
        *_pointers("grad_aggregate", "grad_target"),
        *_pointers("grad_z", "grad_message", "grad_first", "grad_second"),
    )


class Evolve(Structure):
    """Arguments of ``evolve`` and its backward."""

    _fields_ = (
        ("feedback", Feedback),
        ("edges", Moments),
        ("H", c_int64),
        ("rank", c_int64),
        ("mix", c_double),
        ("strength", c_double),
        ("offdiagonal", c_double),
        ("low", c_double),
        ("high", c_double),
        *_pointers("x", "shared", "hidden", "output", "bias", "next", "grad_next"),
        *_pointers("grad_x", "grad_shared", "grad_hidden", "grad_output", "grad_bias"),
    )


class Gate(Structure):
    """Arguments of ``gate`` and its backward."""

    _fields_ = (
        ("dtype", c_int32),
        ("threads", c_int32),
        ("count", c_int64),
        *_pointers("pre", "x", "aggregate", "out", "grad_out"),
        *_pointers("grad_pre", "grad_x", "grad_aggregate"),
    )


class Sample(Structure):
    """Arguments of ``sample``."""

    _fields_ = (
        *((name, c_int64) for name in ("n", "E", "seeds", "hops")),
        *_pointers("pointer", "source", "seed", "fanout"),
        ("state", c_uint64 * 4),
        ("nodes", c_int64),
        ("edges", c_int64),
    )


_FUNCTIONS: dict[str, type[Structure]] = {
    "apply_frames": Frames,
    "edge_moments": Moments,
    "feedback": Feedback,
    "evolve": Evolve,
    "gate": Gate,
}


class Library:
    """The opened kernels.

    Args:
        handle: The shared library.
        path: Where it was found.
        level: Its instruction set.
    """

    def __init__(self, handle: ctypes.CDLL, path: Path, level: str) -> None:
        self.path = path
        self.level = level
        self.openmp = bool(handle.geof_openmp())
        handle.geof_compiler.restype = ctypes.c_char_p
        self.compiler = handle.geof_compiler().decode()
        self._functions = {}
        for name, structure in _FUNCTIONS.items():
            for suffix in ("", "_backward"):
                function = getattr(handle, f"geof_{name}{suffix}")
                function.argtypes = [POINTER(structure)]
                self._functions[name + suffix] = function
        self._plan = handle.geof_plan
        self._plan.argtypes = [c_int64, c_int64, *[c_void_p] * 6]
        self._sample, self._take = handle.geof_sample, handle.geof_sample_take
        self._sample.argtypes, self._take.argtypes = [POINTER(Sample)], [c_void_p] * 4

    def call(self, name: str, arguments: Structure) -> None:
        """Run a kernel.

        Args:
            name: A function of the interface, without its prefix.
            arguments: Its structure, see :func:`fill`.

        Raises:
            MemoryError: If the kernel could not allocate its scratch.
            DataError: If an index of the edges points outside its array.
        """
        code = self._functions[name](ctypes.byref(arguments))
        if code:
            _refuse(name, code, "edges whose indices stay inside their arrays, as edge_plan has")

    def plan(self, source: Tensor, target: Tensor, num_nodes: int, out: tuple[Tensor, ...]) -> None:
        """Fill the rows of incoming and outgoing edges; errors as in :meth:`call`."""
        addresses = [tensor.data_ptr() for tensor in (source, target, *out)]
        code = self._plan(num_nodes, len(source), *addresses)
        if code:
            _refuse(
                "plan", code, f"neighbourhoods sorted by target, with indices below {num_nodes}"
            )

    def sample(self, arguments: Sample, *, places: bool) -> list[Tensor]:
        """Return sampled nodes, both ends of the edges, and for ``places`` where these stand.

        Errors as in :meth:`call`. Nothing may come between drawing and taking in one thread.
        """
        code = self._sample(ctypes.byref(arguments))
        if code:
            _refuse("sample", code, "seeds and neighbours below the number of nodes")
        nodes = torch.empty(arguments.nodes, dtype=torch.long)
        ends = torch.empty(2, arguments.edges, dtype=torch.long)
        place = torch.empty(arguments.edges if places else 0, dtype=torch.long)
        addresses = [part.data_ptr() for part in (nodes, ends[0], ends[1])]
        self._take(*addresses, place.data_ptr() if places else None)
        return [nodes, ends, *([place] if places else [])]


def _refuse(name: str, code: int, wanted: str) -> NoReturn:
    """Raise what a kernel's code stands for."""
    if code == 1:
        raise MemoryError(f"The native kernel '{name}' could not allocate its scratch memory.")
    raise DataError(f"Expected {wanted}. Use Neighbourhoods.from_edge_index.")


def fill(structure: type[Structure], **fields: Any) -> Any:
    """Return a filled structure; tensors are given by address, what is not named is null or zero.

    The caller keeps the tensors alive until the kernel has run.
    """
    return structure(
        **{
            name: value.data_ptr() if isinstance(value, Tensor) else value
            for name, value in fields.items()
        }
    )


def shape_of(like: Tensor, n: int, m: int, B: int) -> Shape:
    """Return the sizes, the dtype of ``like`` and torch's number of threads."""
    return Shape(int(like.dtype == torch.float64), torch.get_num_threads(), n, m, B)


@dataclass(frozen=True)
class Finding:
    """Whether the kernels can be used, and why or why not.

    Attributes:
        library: The opened kernels, or ``None``.
        reason: One sentence for people.
    """

    library: Library | None
    reason: str


@cache
def find_library() -> Finding:
    """Open the best kernels there are, once per process.

    Raises:
        ConfigError: If ``GEOF_KERNELS`` names no instruction set, or ``GEOF_KEPT_MEMORY`` no size.
    """
    kept_bytes()  # the kernels read it, too, and cannot complain
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "off", *LEVELS):
        raise ConfigError(
            f"Expected {CHOICE} to be 'off' or an instruction set (got {choice!r}). "
            + nearest(choice, ["off", *LEVELS])
        )
    if choice == "off":
        return Finding(None, f"switched off by {CHOICE}=off")
    folder = _library_folder()
    if folder is None:
        return Finding(
            None,
            "not built: the package was installed without a C++ compiler or on a platform the "
            "kernels do not support",
        )
    try:
        generic = _open(folder / f"geof_kernels_{LEVELS[0]}.so")
        best = int(generic.geof_processor())
        wanted = LEVELS.index(choice) if choice else best
        if wanted > best:
            return Finding(None, f"this processor has no {choice}, which {CHOICE} asks for")
        present = [k for k in range(wanted + 1) if _file(folder, k).exists()]
        level = wanted if choice else max(present)
        library = Library(_open(_file(folder, level)), _file(folder, level), LEVELS[level])
    except (OSError, AttributeError) as error:
        return Finding(None, f"could not be opened ({error})")
    return Finding(library, f"compiled for {library.level}")


def _file(folder: Path, level: int) -> Path:
    return folder / f"geof_kernels_{LEVELS[level]}.so"


def _library_folder() -> Path | None:
    """Return where the libraries are: beside this file or where an editable install put them."""
    beside = [Path(__file__).parent / "lib"]
    try:
        installed = metadata.distribution("geof").locate_file("geof/kernels/lib")
        beside.append(Path(str(installed)))
    except metadata.PackageNotFoundError:
        pass
    return next((folder for folder in beside if _file(folder, 0).exists()), None)


def _open(path: Path) -> ctypes.CDLL:
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        if "GOMP" not in str(error) and "omp_" not in str(error):
            raise
        # This torch brings no OpenMP runtime within reach; the system's will do.
        ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
        handle = ctypes.CDLL(str(path))
    if handle.geof_abi() != ABI:
        raise OSError(f"{path} has interface {handle.geof_abi()}, expected {ABI}; reinstall geof")
    return handle
