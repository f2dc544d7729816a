"""``geof bench``: time and memory of GeoF beside GCN, GAT and the compared methods, interleaved."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geof.cli.arguments import positive
from geof_paper.bench.catalogue import (
    EDGES,
    EQUAL_WIDTH,
    GEOF,
    PAPER,
    PAPER_METHODS,
    PROFILED,
    QUICK_LEAVES_OUT,
    QUICK_WORKLOADS,
    WORKLOADS,
)
from geof_paper.bench.training import BENCHMARKS

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from geof_paper.bench.profile import Profile
    from geof_paper.bench.rows import Row
    from geof_paper.bench.run import Bench


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="time and memory of GeoF beside GCN, GAT and every compared method",
        description="Train GeoF (every backend), PyG's GCN and GAT in turn, at equal width and "
        "depth on the same inputs, and report median epoch time, peak memory in a fresh process "
        "and ratios to the GCN as usually written. --methods adds compared ones, each with its "
        "own preset. See docs/benchmarks.md.",
        epilog="Real raw files are used where they are below --data-root or GEOF_DATA; otherwise "
        "graphs of the same sizes are generated, and the rows say so.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{' and '.join(QUICK_WORKLOADS)} in under a minute, without "
        f"{' and '.join(QUICK_LEAVES_OUT)}",
    )
    parser.add_argument(
        "--training",
        nargs="*",
        metavar="TASK:DATASET",
        help="whole runs of geof train instead: epochs per minute, the share of time inside the "
        "model, and runs per hour with one worker of all cores and with one per core (default: "
        f"{', '.join(BENCHMARKS)}); --methods names what to train (default: geof)",
    )
    parser.add_argument(
        "--profile",
        nargs="*",
        metavar="WORKLOAD",
        help="what the parts of a training pass cost instead: GeoF with parts switched off beside "
        "GCN, in CPU time, and the profiler's shares of the full pass (default: "
        f"{', '.join(PROFILED)})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument(
        "--summary", type=Path, metavar="FILE", help="write machine, growth exponents and roofline"
    )
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument(
        "--methods",
        "--models",
        nargs="+",
        metavar="NAME",
        help=f"of {', '.join(EQUAL_WIDTH)} and geof-BACKEND (the default is all of these but "
        f"{EDGES}, GeoF with an attribute on every edge), any other --method of geof "
        f"train with its preset, or {PAPER}: gcn, {', '.join(PAPER_METHODS)} and the fastest geof",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="where to train, as geof train has it: auto, cpu, cuda, cuda:1, mps or xpu (default: "
        "cpu; with --training that of geof train)",
    )
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="raw benchmark files")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the tables")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, write what is finished after every workload, print the tables."""
    if options.training is not None:
        return _run_training(options)
    if options.profile is not None:
        return _run_profile(options)
    started = time.monotonic()
    from geof_paper.bench.catalogue import choose_workloads
    from geof_paper.bench.processes import start_server

    workloads = choose_workloads(options.workloads, quick=options.quick)
    start_server()  # its imports and ours then take the same seconds
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    with _progress(console, quiet=options.quiet) as say:
        bench = _build(options, workloads, started, say)
        _write(options, bench)  # before an hour of work: can it be written at all?
        for _ in bench.run():
            _write(options, bench)
    rows = bench.rows
    _print_rows(console, rows)
    _print_growth(console, rows)
    _print_roofline(console, bench.roofline)
    for path in (options.json, options.summary):
        if path is not None:
            console.print(f"Written: {path.resolve()}", soft_wrap=True)
    return 1 if any(row.status == "failed" for row in rows) else 0


def _run_training(options: argparse.Namespace) -> int:
    """Measure whole runs and print them."""
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from geof.io import write_json
    from geof_paper.bench.processes import start_server
    from geof_paper.bench.training import measure_training

    _refuse_beside(options, "training", "quick", "workloads", "summary", "profile")
    start_server()
    console = Console(highlight=False, markup=False)
    table = Table()
    table.add_column("benchmark", no_wrap=True)
    for name in ("method", "workers x threads"):
        table.add_column(name)
    for name in ("epochs/min", "inside", "runs/hour"):
        table.add_column(name, justify="right")
    rows = []
    with _progress(console, quiet=options.quiet) as say:
        for method in options.methods or ["geof"]:
            for row in measure_training(
                options.training,
                method,
                data_root=str(options.data_root) if options.data_root else None,
                cores=options.threads or os.cpu_count() or 1,
                say=say,
                device=options.device,
            ):
                rows.append(row)
                if options.json is not None:
                    write_json(options.json, [asdict(row) for row in rows])
                table.add_row(
                    row.benchmark,
                    f"{row.method} ({row.preset})",
                    f"{row.workers} x {row.threads}",
                    f"{row.epochs_per_minute:.1f}",
                    f"{row.inside:.1%}",
                    f"{row.runs_per_hour:.1f}",
                )
    table.title = f"Whole runs{_on(rows[0].device)}"
    console.print(table)
    return 0


def _refuse_beside(options: argparse.Namespace, chosen: str, *others: str) -> None:
    """Raise for an option that means nothing beside the chosen one."""
    from geof.errors import ConfigError

    for name in others:
        if getattr(options, name) not in (None, False):
            raise ConfigError(f"Expected '--{chosen}' or '--{name}' (got both).")


def _run_profile(options: argparse.Namespace) -> int:
    """Measure what the parts of a pass cost, and print both tables of each workload."""
    from rich.console import Console

    from geof.io import write_json
    from geof_paper.bench.catalogue import choose_workloads
    from geof_paper.bench.machine import describe_machine
    from geof_paper.bench.processes import start_server

    _refuse_beside(options, "profile", "quick", "workloads", "summary", "methods")
    _require_cpu(options)
    workloads = choose_workloads(options.profile or PROFILED, quick=False)
    start_server()
    console = Console(highlight=False, markup=False)
    threads = options.threads or 1  # of several, CPU time has the waiting in it
    machine = describe_machine(threads)
    rows: list[dict[str, Any]] = []
    with _progress(console, quiet=options.quiet) as say:
        for workload in workloads:
            found = _profile(options, workload, threads, say)
            rows.append({**found.as_json(), "machine": machine})
            if options.json is not None:
                write_json(options.json, rows)
            _print_profile(console, found)
    _warn_of_load(console, machine)
    return 0


def _require_cpu(options: argparse.Namespace) -> None:
    """Raise for a profile elsewhere than on the CPU."""
    from geof.errors import ConfigError

    device = _device(options)
    if device.type != "cpu":
        raise ConfigError(
            f"Expected '--profile' on the CPU, whose time it counts (got '--device {device}'). "
            "Leave --profile out to time epochs there."
        )


def _device(options: argparse.Namespace) -> torch.device:
    """Return where to train; what is not here is refused before anything is measured."""
    from geof.devices import resolve_device

    return resolve_device(options.device or "cpu")


def _profile(
    options: argparse.Namespace, workload: Any, threads: int, say: Callable[[str], None]
) -> Profile:
    from geof.data.catalogue import resolve_data_root
    from geof_paper.bench.catalogue import PROFILE
    from geof_paper.bench.processes import in_fresh_process
    from geof_paper.bench.profile import measure_profile

    root = options.data_root or os.environ.get("GEOF_DATA")
    found: Profile = in_fresh_process(
        measure_profile,
        workload,
        str(resolve_data_root(root)) if root else None,
        PROFILE,
        threads=threads,
        say=lambda line: say(f"{workload.name}: {line}"),
    )
    return found


def _print_profile(console: Console, found: Profile) -> None:
    from rich.table import Table

    facts = found.facts
    size = f"{facts.source}, {facts.largest_nodes:,} nodes, {facts.largest_edges:,} edges"
    parts = Table(title=f"{found.workload} ({size}): CPU ms of a training pass")
    parts.add_column("with")
    for name in ("pass", "forward", "to geof", "x GCN"):
        parts.add_column(name, justify="right")
    whole = next(part.cpu_ms for part in found.parts if part.name == "geof")
    for part in found.parts:
        change = "" if part.name == "geof" else f"{part.cpu_ms - whole:+.2f}"
        numbers = f"{part.cpu_ms:.2f}", f"{part.forward_cpu_ms:.2f}", change
        parts.add_row(part.name, *numbers, _number(part.ratio_to_gcn))
    console.print(parts)
    shares = Table(title=f"{found.workload}: where the profiler sees GeoF's pass")
    shares.add_column("group")
    for name in ("ms", "share"):
        shares.add_column(name, justify="right")
    for share in found.shares:
        shares.add_row(share.group, f"{share.self_ms:.2f}", f"{share.share:.1%}")
    console.print(shares)


def _build(
    options: argparse.Namespace,
    workloads: Sequence[Any],
    started: float,
    say: Callable[[str], None],
) -> Bench:
    import torch

    from geof.data.catalogue import resolve_data_root
    from geof.kernels import resolve_backend
    from geof.methods.registry import method_names
    from geof_paper.bench.catalogue import FULL, QUICK, choose_entries
    from geof_paper.bench.networks import BLOCK_SIZE
    from geof_paper.bench.run import Bench

    device = _device(options)
    named = options.methods or ()
    backends = _backends(device, named)
    best = resolve_backend("auto", BLOCK_SIZE, device).name
    slow = [name for name in backends if name != best]
    chosen = choose_entries(options.methods, backends, method_names(), best)
    omitted = QUICK_LEAVES_OUT if options.quick else ()
    data_root = options.data_root or os.environ.get("GEOF_DATA")
    return Bench(
        workloads=workloads,
        entries=chosen,
        effort=QUICK if options.quick else FULL,
        data_root=str(resolve_data_root(data_root)) if data_root else None,
        threads=options.threads or torch.get_num_threads(),
        left_out=[c for c in chosen if c.label in omitted and c.label not in named],
        put_off=[c for c in chosen if c.backend in slow] if options.quick else [],
        say=say,
        device=device,
        started=started,
    )


def _backends(device: torch.device, named: Sequence[str]) -> list[str]:
    """Return GeoF's backends that serve a device.

    Raises:
        ConfigError: If one of the named methods has another; says why it does not serve.
    """
    from geof.kernels import BACKENDS, backends_on, resolve_backend
    from geof_paper.bench.networks import BLOCK_SIZE

    there = list(BACKENDS if device.type == "cpu" else backends_on(device, BLOCK_SIZE))
    for name in named:
        method, _, backend = name.rpartition("-")
        if method in GEOF and backend in ("native", "triton") and backend not in there:
            resolve_backend(backend, BLOCK_SIZE, device)
    return there


def _write(options: argparse.Namespace, bench: Bench) -> None:
    """Write what there is; called again and again, so that an interruption loses little."""
    from geof.io import write_json
    from geof_paper.bench.rows import growth

    rows = bench.rows
    if options.json is not None:
        write_json(options.json, [row.as_json() for row in rows])
    if options.summary is not None:
        summary = {"machine": bench.machine, "growth": growth(rows), "roofline": bench.roofline}
        write_json(options.summary, summary)


@contextmanager
def _progress(console: Console, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show what is being done: on one live line of a terminal, else on plain lines."""
    if quiet:
        yield lambda line: None
    elif console.is_terminal:
        with console.status("importing") as status:
            yield status.update
    else:
        yield lambda line: console.print(line, soft_wrap=True)


def _print_rows(console: Console, rows: Sequence[Row]) -> None:
    from rich.table import Table

    device, model = rows[0].device, rows[0].machine.get("device_model")
    table = Table(title=f"One training epoch{_on(device, model)}")
    for name in ("dataset", "method", "backend or preset"):
        table.add_column(name)
    for name in ("s/epoch", "x GCN", "memory", "x GCN"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.dataset,
            row.method,
            row.backend or row.preset or "",
            row.status if row.seconds_per_epoch is None else f"{row.seconds_per_epoch:.4f}",
            _number(row.ratio_to_gcn),
            _megabytes(row.peak_bytes_above_data),
            _number(row.memory_ratio_to_gcn),
        )
    console.print(table)
    console.print(
        "Median over interleaved rounds; memory is the peak "
        f"{'' if device == 'cpu' else 'on the device '}above data and network in a fresh "
        "process; ratios are to 'gcn', PyG's GCN as usually written."
    )
    _warn_of_load(console, rows[0].machine)
    for line in dict.fromkeys(line for row in rows for line in _remarks(row)):
        console.print(line, soft_wrap=True)


def _warn_of_load(console: Console, machine: Mapping[str, Any]) -> None:
    """Say so where other work ran on the machine: threads that wait for each other suffer most."""
    load = machine["load_average_before"]
    if load is not None and load > machine["cores"] / 2:
        console.print(
            f"Warning: the machine was busy before the run (load {load:.1f} on "
            f"{machine['cores']} cores). Do not rely on these numbers."
        )


def _remarks(row: Row) -> Iterator[str]:
    """Yield what a reader of the row's numbers must know."""
    facts = row.facts
    yield f"{row.dataset}: {facts['source']}, {facts['inputs']} features" + (
        ""
        if facts["graphs_per_epoch"] == facts["graphs"]
        else f"; an epoch is a fixed {facts['graphs_per_epoch']:,} of {facts['graphs']:,} graphs"
    )
    if row.reason is not None:
        yield f"{row.dataset}, {row.entry.label}: {row.reason}"
    elif row.rounds == 1:
        yield f"{row.dataset}, {row.entry.label}: one round"
    if row.stage == "pretext" and row.status == "ok":
        yield (
            f"{row.dataset}, {row.method}: an epoch of its pretext, which trains the encoder; the "
            "preset freezes it afterwards"
        )


def _print_growth(console: Console, rows: Sequence[Row]) -> None:
    from rich.table import Table

    from geof_paper.bench.catalogue import Entry
    from geof_paper.bench.rows import growth

    found = growth(rows)
    if not found:
        return
    table = Table(title="Growth: exponent of the epoch's time")
    for name in ("in", "method", "sizes"):
        table.add_column(name)
    table.add_column("exponent", justify="right")
    for fit in found:
        label = Entry(fit["model"], fit["backend"]).label
        sizes = ", ".join(f"{size:.0e}" for size in fit["sizes"])
        table.add_row(fit["series"], label, sizes, f"{fit['exponent']:.3f}")
    console.print(table)


def _print_roofline(console: Console, roofline: dict[str, Any] | None) -> None:
    from rich.table import Table

    if roofline is None:
        return
    if "error" in roofline:
        console.print(f"Roofline not measured: {roofline['error']}", soft_wrap=True)
        return
    table = Table(title="Edge kernel on Computers against the machine")
    for name in ("backend", "pass"):
        table.add_column(name)
    for name in ("seconds", "flop/byte", "GFLOP/s", "GB/s", "of the roof"):
        table.add_column(name, justify="right")
    for measured in roofline["passes"]:
        table.add_row(
            measured["backend"],
            measured["pass"],
            f"{measured['seconds']:.4f}",
            f"{measured['intensity_flops_per_byte']:.1f}",
            f"{measured['gflops_per_second']:.2f}",
            f"{measured['gigabytes_per_second']:.2f}",
            f"{measured['fraction_of_roof']:.1%}",
        )
    console.print(table)
    console.print(
        f"Machine: {roofline['bandwidth_bytes_per_second'] / 1e9:.1f} GB/s (triad), "
        f"{roofline['peak_flops_per_second'] / 1e9:.1f} GFLOP/s (float32 matrix product)."
    )


def _on(device: str, model: str | None = None) -> str:
    """Return what a title says of the device; of the CPU nothing."""
    if device == "cpu":
        return ""
    return f" on {device}" + (f" ({model})" if model else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:,.1f} MB"
