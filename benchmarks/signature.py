"""Time and peak memory of the structural signature.

    python benchmarks/signature.py [--json FILE] [--data-root DIR] [--with-pyg]

Two generated inputs always run: a graph of the size and degree skew of Amazon Photo, and a batch
of molecule-like graphs of the size of NCI1. With ``--data-root``, the original
``Photo/raw/amazon_electronics_photo.npz`` and ``Physics/raw/ms_academic_phy.npz`` below it run
as well. ``--with-pyg`` adds PyG's own transform on the generated graph (minutes, and gigabytes).

Every case runs in a fresh process. Idle cores matter: set ``OMP_NUM_THREADS`` to those you have.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# numpy, scipy and torch are imported by the measuring process only.
if TYPE_CHECKING:
    from torch import Tensor

PHOTO_LIKE, MOLECULES, PYG = "photo-like", "molecules", "photo-like (PyG)"
ARCHIVES = {
    "Photo": "Photo/raw/amazon_electronics_photo.npz",
    "Physics": "Physics/raw/ms_academic_phy.npz",
}


def photo_like_graph(num_nodes: int = 7_650, num_edges: int = 119_081) -> tuple[Tensor, int]:
    """Sample edges with probability proportional to both ends' weights (Chung-Lu)."""
    import numpy as np

    rng = np.random.default_rng(0)
    weight = (np.arange(num_nodes) + 1.0) ** -0.55
    weight /= weight.sum()
    edges = np.empty(0, dtype=np.int64)
    while len(edges) < num_edges:
        ends = np.sort(rng.choice(num_nodes, size=(num_edges, 2), p=weight), axis=1)
        ends = ends[ends[:, 0] < ends[:, 1]]
        edges = np.unique(np.concatenate([edges, ends @ [num_nodes, 1]]))
    edges = rng.permutation(edges)[:num_edges]
    label = rng.permutation(num_nodes)  # the order of the nodes must not give away their degree
    return _both_directions(label[edges // num_nodes], label[edges % num_nodes]), num_nodes


def molecule_batch(num_graphs: int = 4_110) -> tuple[Tensor, int]:
    """Chains of about 30 atoms with a branch or a ring here and there."""
    import numpy as np

    rng = np.random.default_rng(0)
    sources, targets, first = [], [], 0
    for size in np.clip(rng.normal(30, 13, num_graphs), 3, 111).astype(int):
        child = np.arange(1, size)
        parent = np.maximum(child - rng.choice([1, 2, 3], p=[0.8, 0.1, 0.1], size=size - 1), 0)
        ring = np.arange(0, size - 5, 10)
        sources.append(first + np.concatenate([parent, ring]))
        targets.append(first + np.concatenate([child, ring + 5]))
        first += size
    return _both_directions(np.concatenate(sources), np.concatenate(targets)), int(first)


def archived_graph(path: Path) -> tuple[Tensor, int]:
    """Read the adjacency of an original ``.npz`` archive and add the missing directions."""
    import numpy as np
    from scipy.sparse import csr_array

    with np.load(path, allow_pickle=False) as archive:
        parts = tuple(archive[f"adj_{part}"] for part in ("data", "indices", "indptr"))
        adjacency = csr_array(parts, shape=archive["adj_shape"])
    return _both_directions(*adjacency.nonzero()), int(adjacency.shape[0])


def _both_directions(source: Any, target: Any) -> Tensor:
    import torch
    from torch_geometric.utils import to_undirected

    ends = torch.stack([torch.as_tensor(end).long() for end in (source, target)])
    both: Tensor = to_undirected(ends)
    return both


def measure(case: str, walk_length: int, data_root: Path | None) -> dict[str, Any]:
    """Run one case in this process."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.transforms import AddRandomWalkPE

    from geof.machine import peak_resident_bytes
    from geof.signature import AddStructuralSignature

    after_imports = peak_resident_bytes() / 1e6
    if case == MOLECULES:
        edge_index, num_nodes = molecule_batch()
    elif case in ARCHIVES and data_root is not None:
        edge_index, num_nodes = archived_graph(data_root / ARCHIVES[case])
    else:
        edge_index, num_nodes = photo_like_graph()
    ours = AddStructuralSignature(walk_length=walk_length)
    transform = AddRandomWalkPE(walk_length) if case == PYG else ours

    data = Data(edge_index=edge_index, num_nodes=num_nodes)
    start = time.perf_counter()
    transform(data)
    seconds = time.perf_counter() - start
    return {
        "case": case,
        "nodes": num_nodes,
        "edges": edge_index.size(1),
        "walk_length": walk_length,
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 2),
        "peak_mb": round(peak_resident_bytes() / 1e6),
        "peak_above_imports_mb": round(peak_resident_bytes() / 1e6 - after_imports),
    }


def _measure_apart(case: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", case]
    command += ["--walk-length", str(arguments.walk_length)]
    if arguments.data_root is not None:
        command += ["--data-root", str(arguments.data_root)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="where the archives are")
    parser.add_argument("--with-pyg", action="store_true", help="time AddRandomWalkPE as well")
    parser.add_argument("--walk-length", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        json.dump(measure(arguments.case, arguments.walk_length, arguments.data_root), sys.stdout)
        return

    cases = [PHOTO_LIKE, MOLECULES]
    if arguments.data_root is not None:
        cases += [name for name, path in ARCHIVES.items() if (arguments.data_root / path).exists()]
    cases += [PYG] * arguments.with_pyg
    results = []
    print(f"{'case':<18}{'nodes':>9}{'edges':>9}{'K':>4}{'s':>9}{'peak MB':>10}{'- imports':>11}")
    for case in cases:
        row = _measure_apart(case, arguments)
        results.append(row)
        print(
            f"{row['case']:<18}{row['nodes']:>9}{row['edges']:>9}{row['walk_length']:>4}"
            f"{row['seconds']:>9.2f}{row['peak_mb']:>10}{row['peak_above_imports_mb']:>11}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
