"""``geof doctor``: what this installation can do here, which backend is used and why."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="say which backend is used here and why",
        description="Show versions, the native kernels' state, which backend 'auto' picks and why, "
        "and check that the backends agree on a small graph.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the findings; exit code 1 if the backends disagree."""
    findings = examine()
    if options.json:
        print(json.dumps(findings, indent=2))
    else:
        _print(findings)
    return 0 if findings["backends agree"] else 1


def examine() -> dict[str, Any]:
    """Return all findings by name."""
    import platform

    import torch
    import torch_geometric

    from geof.kernels import BACKENDS, resolve_backend
    from geof.kernels.library import find_library
    from geof.machine import processor
    from geof.version import __version__

    finding = find_library()
    library = finding.library
    differences = _differences()
    return {
        "geof": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "native kernels": finding.reason,
        "native library": None if library is None else str(library.path),
        "native compiler": None if library is None else library.compiler,
        "native threads": None if library is None else _threading(library.openmp),
        "backends": list(BACKENDS),
        "auto": resolve_backend("auto", 8).name,
        "why": _why(library is not None, finding.reason),
        "largest difference to 'reference'": differences,
        "backends agree": all(value < 1e-10 for value in differences.values()),
        "extras": {name: _present(module) for name, module in _EXTRAS.items()},
        "data root": _data_root(),
    }


_EXTRAS = {"molecules": "rdkit", "tables": "pyarrow"}


def _present(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _data_root() -> str | None:
    import os

    return os.environ.get("GEOF_DATA")


def _threading(openmp: bool) -> str:
    return "OpenMP, torch's own threads" if openmp else "one (built without OpenMP)"


def _why(native: bool, reason: str) -> str:
    if native:
        return (
            f"the native kernels are {reason}; they serve the CPU, float32 and float64, blocks "
            "up to 32; anything else goes to 'torch'"
        )
    return f"the native kernels are {reason}; 'torch' computes the same numbers, more slowly"


def _differences() -> dict[str, float]:
    """Return how far each backend's output is from the reference's, in float64."""
    import torch

    from geof import GeoF
    from geof.kernels import BACKENDS

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    signature = torch.rand(30, 3, generator=generator, dtype=torch.float64)
    edge_index = torch.randint(30, (2, 90), generator=generator)
    outputs = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for name in BACKENDS:
            torch.manual_seed(0)
            model = GeoF(5, 32, signature_channels=3, backend=name).double()
            outputs[name] = model(x, edge_index, signature)
    wanted = outputs.pop("reference")
    return {name: float((got - wanted).abs().max()) for name, got in outputs.items()}


def _print(findings: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in findings.items():
        table.add_row(name, _readable(value))
    Console().print(table)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_readable(part)}" for key, part in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
