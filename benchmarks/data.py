"""Time and peak memory of preparing the datasets, cold and then from the cache.

    python benchmarks/data.py --data-root DIR [--json FILE] [NAME...]

Every load runs in a fresh process, with a cache of its own in a temporary folder. Seconds are those
of ``geof.data.catalogue.load`` alone; importing torch and PyG, the same for every case, is given
once below the table, and is in the peak memory of every case. A load leaves tensors mapped from the
cache; 'cut' is the time to make every graph of a set once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COLD_TARGET, WARM_TARGET = 15 * 60, 20


def known_names() -> list[str]:
    """Return the datasets of the catalogue, asked for in another process: it imports torch."""
    code = "from geof.data.catalogue import CATALOGUE; print(*CATALOGUE, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()


def measure(name: str, data_root: Path, cut: bool) -> dict[str, Any]:
    """Load one dataset in this process."""
    start = time.perf_counter()
    from geof.data import graph_sets, node_graphs  # noqa: F401
    from geof.data.catalogue import load
    from geof.machine import peak_resident_bytes

    imported = time.perf_counter()
    data = load(name, data_root=data_root)
    loaded = time.perf_counter()
    peak = peak_resident_bytes()
    if cut and hasattr(data, "graphs"):
        for _ in data.graphs:
            pass
    return {
        "import_seconds": imported - start,
        "seconds": loaded - imported,
        "peak_rss_bytes": peak,
        "cut_seconds": time.perf_counter() - loaded if cut else 0.0,
        "notes": list(data.notes),
    }


def measure_apart(name: str, data_root: Path, cache: str, cut: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", name, "--data-root", str(data_root)]
    done = subprocess.run(
        command + ["--cut"] * cut,
        env={**os.environ, "GEOF_CACHE": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Time and memory of preparing the datasets.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--data-root", type=Path, default=os.environ.get("GEOF_DATA"))
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--cut", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.data_root:
        parser.error("pass --data-root or set GEOF_DATA")
    if options.measure:
        print(json.dumps(measure(options.measure, options.data_root, options.cut)))
        return 0
    rows = []
    print(f"{'data':13s} {'cold s':>8s} {'MiB':>6s} {'warm s':>8s} {'MiB':>6s} {'cut s':>6s}")
    with tempfile.TemporaryDirectory() as cache:
        for name in options.names or known_names():
            cold = measure_apart(name, options.data_root, cache, cut=False)
            warm = measure_apart(name, options.data_root, cache, cut=True)
            rows.append({"name": name, "cold": cold, "warm": warm})
            print(
                f"{name:13s} {cold['seconds']:8.2f} {cold['peak_rss_bytes'] >> 20:6d} "
                f"{warm['seconds']:8.3f} {warm['peak_rss_bytes'] >> 20:6d} "
                f"{warm['cut_seconds']:6.2f}",
                flush=True,
            )
        size = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
    cold_total, warm_total = (sum(row[k]["seconds"] for row in rows) for k in ("cold", "warm"))
    imports = sorted(row["warm"]["import_seconds"] for row in rows)[len(rows) // 2]
    print(f"{'total':13s} {cold_total:8.2f} {'':6s} {warm_total:8.3f}")
    print(f"targets: cold < {COLD_TARGET} s, warm < {WARM_TARGET} s")
    print(f"importing torch and PyG: {imports:.1f} s (median); cache: {size >> 20} MiB")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(cold_total > COLD_TARGET or warm_total > WARM_TARGET)


if __name__ == "__main__":
    sys.exit(main())
