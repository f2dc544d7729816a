"""Inputs drawn from grammars: an error of ours or the right answer, within five seconds each."""

from __future__ import annotations

import csv
import io
import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from geof.data.formats import from_npz
from geof.data.molecules import read_molecules
from geof.data.own_splits import own_split
from geof.data.records import NodeGraph
from geof.data.splits import NodeSplit
from geof.data.tables import read_node_table
from geof.errors import GeofError
from geof.io import dump_yaml, read_yaml
from geof.training import RunConfig
from geof.training.run_folder import read_config, read_result
from tests.faults.harness import tries
from tests.training.toys import node_graph

SECONDS = 5.0
"""Of computing, not of waiting for a busy machine."""

CELLS = (
    *(
        "1",
        "0",
        "-1",
        "3.5",
        "1e308",
        "1e309",
        "-0",
        "0x10",
        "1_000",
        " 2 ",
        "\u0661",
        "nan",
        "inf",
    ),
    *("", " ", "a", "b", "ü", "\u202e", "\x00", "a\nb", 'a"b', "a,b", "True", "None", "NaN"),
    *("9" * 400, "x" * 3000, "=1+1", "\ufeff", "\ud7ff", "a;b", "\t", "1,5", "2024-01-31"),
)


@contextmanager
def in_time() -> Iterator[None]:
    """Fail after five seconds of computing."""

    def late(number: int, frame: Any) -> None:
        raise AssertionError(f"computed for more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def answered(read: Callable[[], Any], shown: object) -> Any:
    """Return what is read; ``None`` if it is refused in words."""
    try:
        with in_time():
            return read()
    except GeofError as error:
        if not str(error):
            raise AssertionError(f"no sentence, of {str(shown)[:2000]!r}") from error
        return None
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{what}, of {str(shown)[:2000]!r}") from error


def table(draw: random.Random, header: list[str], rows: int) -> list[list[str]]:
    cells = [[draw.choice(CELLS) for _ in header] for _ in range(rows)]
    if draw.random() < 0.7:  # mostly with identifiers that are ones
        for i, row in enumerate(cells):
            row[0] = f"n{i}"
    return [header, *cells]


def as_csv(draw: random.Random, cells: list[list[str]]) -> bytes:
    text = io.StringIO(newline="")
    ending, quoting = draw.choice(["\n", "\r\n", "\r"]), draw.choice([0, 1])
    csv.writer(text, lineterminator=ending, quoting=quoting, escapechar="\\").writerows(cells)
    content = text.getvalue().encode(draw.choice(["utf-8"] * 6 + ["utf-16", "utf-8-sig"]))
    if draw.random() < 0.3:
        content = mutated(draw, content)
    return content


def mutated(draw: random.Random, content: bytes) -> bytes:
    """Cut, repeat, swap or change bytes."""
    mutable = bytearray(content)
    for _ in range(draw.randrange(1, 5)):
        if not mutable:
            break
        a, b = sorted(draw.randrange(len(mutable) + 1) for _ in range(2))
        kind = draw.randrange(4)
        if kind == 0:
            del mutable[a:b]
        elif kind == 1:
            mutable[a:a] = mutable[a : min(b, a + 50)]
        elif kind == 2 and a < len(mutable):
            mutable[a] = draw.randrange(256)
        else:
            mutable[a:a] = draw.choice([b'"', b",", b"\x00", b"\xff\xfe", b"\n", b"[", b"{", b": "])
    return bytes(mutable)


def test_tables(tmp_path, tried):
    draw, accepted = random.Random(0), 0
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    for _ in range(tries(150, 3000)):
        header = draw.choice([["id", "size", "kind"], ["id", "kind"], ["a", "a", "kind"], ["kind"]])
        count = draw.randrange(0, 9)
        cells = table(draw, header, count)
        for row in cells[1:]:
            row[-1] = draw.choice([*"aabb", "", draw.choice(CELLS)])
        ends = [f"n{i}" for i in range(max(count, 1))]
        pairs = [[draw.choice(ends), draw.choice(ends)] for _ in range(draw.randrange(0, 12))]
        if draw.random() < 0.2:
            pairs.append([draw.choice(CELLS), draw.choice(CELLS)])
        first, second = as_csv(draw, cells), as_csv(draw, [["source", "target"], *pairs])
        nodes.write_bytes(first)
        edges.write_bytes(second)
        missing = draw.choice(["error", "mean"])
        found = answered(
            lambda: read_node_table(nodes, edges, label="kind", missing=missing)[0],  # noqa: B023
            (first, second),
        )
        if found is not None:
            accepted += 1
            graph = found.graph
            assert bool(torch.isfinite(graph.x).all())
            assert graph.x.size(0) == graph.num_nodes == len(found.node_ids)
            assert graph.edge_index.numel() == 0 or int(graph.edge_index.max()) < graph.num_nodes
        tried()
    assert accepted > 0


def test_molecules(tmp_path, tried):
    pytest.importorskip("rdkit")
    draw, path = random.Random(1), tmp_path / "m.csv"
    atoms = ["C", "N", "O", "c1ccccc1", "(", ")", "[", "]", "=", "#", "1", "%99", ".", "[Na+]", "@"]
    for _ in range(tries(60, 1000)):
        smiles = ["".join(draw.choices(atoms, k=draw.randrange(0, 9))) for _ in range(4)]
        rows = [[s, str(i % 2)] for i, s in enumerate([*smiles, "CCO", "CCN"])]
        content = as_csv(draw, [["smiles", "active"], *rows])
        path.write_bytes(content)
        answered(lambda: read_molecules(path, label="active"), content)
        tried()


def tree(draw: random.Random, depth: int = 0) -> Any:
    """Return plain values, nested."""
    names = ["epochs", "options", "training", "data", "split", "method", "signature", "readout"]
    names += ["steps", "blocks", "learning_rate", "run", "shape", "metrics", "ü", "", "task"]
    kind = draw.randrange(9 if depth < 4 else 6)
    if kind > 5:
        size = draw.randrange(4)
        if kind == 6:
            return [tree(draw, depth + 1) for _ in range(size)]
        return {draw.choice(names): tree(draw, depth + 1) for _ in range(size)}
    numbers = [0, 1, -1, 2**63, 10**40, 0.5, -1e308, 1e-320, True, None]
    return draw.choice(numbers) if kind < 3 else draw.choice([*CELLS, "geof", "node", "auto"])


def test_configs(tmp_path, tried):
    draw, path = random.Random(2), tmp_path / "c.yaml"
    options = ["epochs", "learning_rate", "batch_size", "fanouts", "clip", "seed", "patience"]
    for _ in range(tries(200, 4000)):
        content = {draw.choice([*options, "options", "data", "method"]): tree(draw) for _ in "ab"}
        if draw.random() < 0.3:
            content["options"] = {
                draw.choice(["steps", "blocks", "dropout", "temperature"]): tree(draw, 4)
            }
        text = dump_yaml(content).encode(errors="surrogatepass")
        text = mutated(draw, text) if draw.random() < 0.4 else text
        path.write_bytes(text)
        found = answered(lambda: RunConfig.parse(read_yaml(path)), text)
        if found is not None:
            again = RunConfig.from_dict(json.loads(json.dumps(found.to_dict())))
            assert again.to_dict() == found.to_dict()
        tried()


def test_records_of_runs(tmp_path, tried):
    draw = random.Random(3)
    whole = {"run": {"training": {}, "task": "node"}, "format": 2, "shape": {}}
    for name, read in (("config.json", read_config), ("result.json", read_result)):
        for _ in range(tries(100, 2000)):
            content = {**whole, **{k: tree(draw) for k in draw.sample(sorted(whole), 2)}}
            if name == "result.json":
                entries = ["validation", "metrics", "best_epoch", "test", "model", "task"]
                content = {key: tree(draw) for key in draw.sample(entries, 3)}
            text = json.dumps(content if draw.random() < 0.8 else tree(draw)).encode()
            text = mutated(draw, text) if draw.random() < 0.4 else text
            (tmp_path / name).write_bytes(text)
            answered(lambda: read(tmp_path), text)  # noqa: B023
            tried()


def test_splits(tmp_path, tried):
    draw, path, data = random.Random(4), tmp_path / "split.json", node_graph()
    rows = torch.ones(40, dtype=torch.bool)
    for _ in range(tries(100, 1500)):
        whole = {"train": list(range(20)), "validation": list(range(20, 30)), "test": [30, 31]}
        content: Any = {key: draw.choice([value, tree(draw)]) for key, value in whole.items()}
        text = json.dumps(content if draw.random() < 0.9 else tree(draw)).encode()
        text = mutated(draw, text) if draw.random() < 0.3 else text
        path.write_bytes(text)
        found = answered(lambda: own_split(str(path), data, rows, NodeSplit, (0.6, 0.2)), text)
        if found is not None:
            together = torch.cat([found.train, found.validation, found.test])
            assert together.unique().numel() == together.numel() <= 40
        tried()


DTYPES = ("f4", "f8", "f2", "i8", "i4", "u1", "u8", "?", "U3", "S3", "c16", "M8[s]", "O")


def array(draw: random.Random, wanted: np.ndarray) -> np.ndarray:
    """Return an array as it should be or with another dtype, shape or value."""
    kind = draw.randrange(8)
    if kind < 4:
        return wanted
    if kind == 4:
        dtype = draw.choice(("U1", "S3", "O") if wanted.dtype.kind == "U" else DTYPES)
        plain = wanted.astype("i8") if dtype == "M8[s]" else wanted
        with np.errstate(all="ignore"):
            return plain.astype(dtype)
    if kind == 5:
        shape = [draw.randrange(4) for _ in range(draw.randrange(4))]
        return np.zeros(shape, wanted.dtype)
    changed = wanted.copy()
    if changed.size and changed.dtype.kind != "U":
        whole, real = [-1, -2, 99, 127], [np.nan, np.inf, -np.inf, 1e38]
        values = whole if changed.dtype.kind in "iu" else real
        changed.flat[draw.randrange(changed.size)] = draw.choice(values)
    return changed


def test_archives(tmp_path, tried):
    draw, path, accepted = random.Random(5), tmp_path / "g.npz", 0
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6, 3)).astype("float32")
    whole = {"x": x, "edge_index": generator.integers(0, 6, (2, 9)), "y": np.arange(6) % 2}
    more = {"edge_weight": np.ones(9), "edge_attr": np.ones((9, 2)), "node_ids": np.arange(6)}
    more |= {"adj_data": np.ones(3), "adj_indices": np.arange(3), "adj_indptr": np.arange(7) // 2}
    more |= {"adj_shape": np.array([6, 6]), "class_names": np.array(["a", "b"]), "other": x}
    more |= {"node_names": np.arange(6), "edge_categories": np.array([2, 2])}
    more |= {"target_kind": np.array("numbers"), "target_names": np.array(["a"])}
    for _ in range(tries(150, 3000)):
        chosen = {**whole, **{k: more[k] for k in draw.sample(sorted(more), draw.randrange(3))}}
        if draw.random() < 0.1:
            chosen.pop(draw.choice(sorted(chosen)))
        if draw.random() < 0.15:
            chosen.pop("edge_index", None)
            chosen |= {key: more[key] for key in more if key.startswith("adj")}
        content = {key: array(draw, value) for key, value in chosen.items()}
        buffer = io.BytesIO()
        np.savez(buffer, **content)
        raw = buffer.getvalue()
        path.write_bytes(mutated(draw, raw) if draw.random() < 0.3 else raw)
        carried = draw.choice(["refuse", "drop", "use"])
        found: NodeGraph | None = answered(
            lambda: from_npz(path, edge_columns=carried),  # noqa: B023
            {key: (value.dtype, value.shape) for key, value in content.items()},
        )
        if found is not None:
            accepted += 1
            edges = found.graph.edge_index
            assert edges.numel() == 0 or 0 <= int(edges.min()) <= int(edges.max()) < 6
        tried()
    assert accepted > 0


def test_files_of_noise(tmp_path, tried):
    """Every reader, given what is no file of its kind at all."""
    draw = random.Random(6)
    readers: dict[str, Callable[[Path], Any]] = {
        "n.csv": lambda path: read_node_table(path, path, label="kind"),
        "n.parquet": lambda path: read_node_table(path, path, label="kind"),
        "n.npz": from_npz,
        "n.yaml": read_yaml,
        "config.json": lambda path: read_config(path.parent),
    }
    for name, read in readers.items():
        for _ in range(tries(20, 400)):
            content = draw.randbytes(draw.choice([0, 1, 7, 64, 2000]))
            (tmp_path / name).write_bytes(content)
            answered(lambda: read(tmp_path / name), content)  # noqa: B023
            tried()
