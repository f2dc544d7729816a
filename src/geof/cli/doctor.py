"""``geof doctor``: what this installation can do here, which backend is used and why."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="say which backend is used here and why",
        description="Show versions, the native kernels' state, which backend 'auto' picks and why, "
        "and check that the backends agree on a small graph.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="check this one, such as cuda (default: cpu)",
    )
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the findings; exit code 1 if the backends disagree."""
    findings = examine(options.device)
    if options.json:
        print(json.dumps(findings, indent=2))
    else:
        _print(findings)
    return 0 if findings["backends agree"] else 1


def examine(device: str = "cpu") -> dict[str, Any]:
    """Return all findings by name.

    Args:
        device: Where the backends are checked.

    Raises:
        DeviceError: If it is not there.
    """
    import platform

    import torch
    import torch_geometric

    from geof.devices import available_devices, resolve_device
    from geof.kernels import BACKENDS, resolve_backend
    from geof.kernels.library import find_library
    from geof.machine import processor
    from geof.version import __version__

    finding = find_library()
    library = finding.library
    place = resolve_device(device)
    differences, tolerance = _differences(place)
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
        "devices": available_devices(),
        "checked on": str(place),
        "backends": list(BACKENDS),
        "auto": resolve_backend("auto", 8, place).name,
        "why": _why(library is not None, finding.reason),
        "largest difference to 'reference'": differences,
        "backends agree": all(value < tolerance for value in differences.values()),
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


def _differences(device: torch.device) -> tuple[dict[str, float], float]:
    """Return how far each backend is from the reference on the CPU, and how far it may be.

    Numbers are float64, where the device has them. A backend that cannot serve it is left out.
    """
    import torch

    from geof import GeoF
    from geof.errors import GeofError
    from geof.kernels import BACKENDS, resolve_backend

    dtype = torch.float32 if device.type == "mps" else torch.float64
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=generator, dtype=dtype)
    signature = torch.rand(30, 3, generator=generator, dtype=dtype)
    edge_index = torch.randint(30, (2, 90), generator=generator)

    def output(backend: str, place: torch.device) -> torch.Tensor:
        torch.manual_seed(0)
        model = GeoF(5, 32, signature_channels=3, backend=backend).to(dtype).to(place)
        states: torch.Tensor = model(x.to(place), edge_index.to(place), signature.to(place))
        return states.cpu()

    found = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        wanted = output("reference", torch.device("cpu"))
        for name in dict.fromkeys([*BACKENDS, resolve_backend("auto", 4, device, dtype).name]):
            try:
                resolve_backend(name, 4, device, dtype)
            except GeofError:
                continue
            found[name] = float((output(name, device) - wanted).abs().max())
    if device.type == "cpu":
        del found["reference"]  # it is what the others are compared with
    return found, 1e-10 if dtype == torch.float64 else 1e-4


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
