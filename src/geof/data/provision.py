"""Listing, checking, preparing and fetching the datasets. Only ``fetch`` uses the network."""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

import torch

from geof.data import catalogue
from geof.data.catalogue import (
    CATALOGUE,
    DatasetFacts,
    RawFile,
    Statistics,
    find,
    resolve_data_root,
)
from geof.data.files import file_digest
from geof.data.graph_sets import PackedGraphs
from geof.data.link_splits import LinkSplit, random_link_split
from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import (
    SEEDS,
    DatasetIdentity,
    IndexSplit,
    random_node_split,
    stratified_folds,
)
from geof.errors import DataError, GeofError
from geof.io import remove_abandoned, temporary_folder, write_json

Status: TypeAlias = Literal["ok", "incomplete", "differs", "missing", "failed"]


@dataclass(frozen=True)
class ListRow:
    """A dataset of the catalogue.

    Attributes:
        dataset: Its facts.
        present: Whether all required raw files are below the data root; ``None`` without one.
    """

    dataset: DatasetFacts
    present: bool | None


@dataclass(frozen=True)
class CheckRow:
    """How the raw files of a dataset compare with the catalogue.

    Attributes:
        name: The dataset.
        status: ``"ok"``; ``"incomplete"`` (usable, with a fallback); ``"differs"`` (other
            statistics); ``"missing"`` (no such file); ``"failed"`` (wrong checksum, unreadable).
        detail: What is wrong and what to know, one sentence or more; may be empty.
        measured: The statistics, where the files could be loaded.
    """

    name: str
    status: Status
    detail: str
    measured: Statistics | None = None


@dataclass(frozen=True)
class PrepareRow:
    """A dataset brought into the cache.

    Attributes:
        name: The dataset.
        seconds: Time it took; short where it was there already.
        measured: Its statistics.
        notes: What a reader of a number measured on it must know.
        content_hash: Of features, edges and labels.
    """

    name: str
    seconds: float
    measured: Statistics
    notes: tuple[str, ...]
    content_hash: str


@dataclass(frozen=True)
class FetchRow:
    """A dataset downloaded.

    Attributes:
        name: The dataset.
        downloaded: Files written, relative to the data root; empty where all were there.
        verified: How many of the dataset's files have a known checksum, all of them compared.
    """

    name: str
    downloaded: tuple[str, ...]
    verified: int


def measure(data: NodeGraph | GraphSet) -> Statistics:
    """Return the sizes of a loaded dataset."""
    if isinstance(data, NodeGraph):
        graph = data.graph
        sizes = (1, graph.num_nodes, graph.num_edges, graph.num_features)
    else:
        graphs = data.graphs
        assert isinstance(graphs, PackedGraphs)
        sizes = (len(graphs), graphs.num_nodes, graphs.num_edges, graphs.num_features)
    return Statistics(*sizes, classes=data.num_classes)


def list_datasets(data_root: Path | str | None = None) -> list[ListRow]:
    """Return all datasets, with whether their files are there if a data root is known."""
    if not (data_root or os.environ.get("GEOF_DATA")):
        return [ListRow(facts, None) for facts in CATALOGUE.values()]
    root = resolve_data_root(data_root)
    return [ListRow(facts, not _missing(facts, root)) for facts in CATALOGUE.values()]


def check(names: Iterable[str] = (), data_root: Path | str | None = None) -> list[CheckRow]:
    """Compare raw files with the catalogue: presence, checksums, statistics.

    Args:
        names: Datasets (default: all).
        data_root: Folder of raw files (default: ``GEOF_DATA``).
    """
    root = resolve_data_root(data_root)
    return [_check(facts, root) for facts in _chosen(names)]


def prepare(
    names: Iterable[str] = (),
    data_root: Path | str | None = None,
    on_done: Callable[[PrepareRow], None] = lambda row: None,
) -> list[PrepareRow]:
    """Load datasets through the cache, so that later loads are immediate.

    Args:
        names: Datasets (default: all).
        data_root: Folder of raw files (default: ``GEOF_DATA``).
        on_done: Called after each.
    """
    rows = []
    for facts in _chosen(names):
        start = time.perf_counter()
        data = catalogue.load(facts.name, data_root=data_root)
        seconds = time.perf_counter() - start
        row = PrepareRow(facts.name, seconds, measure(data), data.notes, data.content_hash)
        rows.append(row)
        on_done(row)
    return rows


def fetch(
    names: Iterable[str], data_root: Path | str | None = None, *, force: bool = False
) -> list[FetchRow]:
    """Download raw files into the data root, from the addresses PyG's and OGB's classes use.

    Files are downloaded beside their place, verified, and moved there when all are sound. What is
    there already is kept unless ``force`` is set or its checksum is wrong.

    Args:
        names: Datasets; at least one.
        data_root: Folder of raw files (default: ``GEOF_DATA``); created if need be.
        force: Whether to download files that are there.

    Raises:
        DataError: If a download fails, is truncated or has the wrong checksum. The data root is
            left as it was.
    """
    chosen = [find(name) for name in names]
    place = data_root or os.environ.get("GEOF_DATA")
    try:
        if place:
            Path(place).expanduser().mkdir(parents=True, exist_ok=True)
        root = resolve_data_root(place)
        # Also where nothing is wanted: a process killed at its very end has left its folder.
        remove_abandoned(root, re.compile(rf"{re.escape(_STAGING)}.*"))
        return [_fetch(facts, root, force) for facts in chosen]
    except OSError as error:
        raise DataError(
            f"Expected to write raw files below '{place}', but {error}. Check the path, the "
            "permissions and the free space."
        ) from error


@dataclass(frozen=True)
class SplitRow:
    """One of the ten splits of one of the eighteen benchmarks."""

    dataset: str
    task: str
    number: int
    hash: str
    file: str


def write_splits(
    names: Iterable[str], out: Path, data_root: Path | str | None = None
) -> list[SplitRow]:
    """Write the ten splits of every benchmark of some datasets, with an index of their hashes.

    Args:
        names: Datasets (default: all).
        out: Folder to write to; ``splits.json`` in it lists what was written.
        data_root: Folder of raw files.
    """
    rows = []
    for facts in _chosen(names):
        data = catalogue.load(facts.name, data_root=data_root)
        identity = DatasetIdentity.of(data)
        for task, splits in _splits_of(data).items():
            for number, split in enumerate(splits):
                file = f"{facts.name}-{task}-{number}.npz"
                split.save(out / file, identity)
                rows.append(SplitRow(facts.name, task, number, split.hash, file))
    write_json(out / "splits.json", [dataclasses.asdict(row) for row in rows])
    return rows


def _splits_of(data: NodeGraph | GraphSet) -> dict[str, Sequence[IndexSplit | LinkSplit]]:
    """Return the ten splits of each task the paper does with the data."""
    if isinstance(data, GraphSet):
        labels = torch.cat([graph.y.view(-1) for graph in data.graphs])
        return {"graph": stratified_folds(labels, 0)}
    graph = data.graph
    size, labelled = graph.num_nodes, graph.y >= 0
    return {
        "node": [random_node_split(size, seed, nodes=labelled) for seed in SEEDS],
        "link": [random_link_split(graph.edge_index, size, seed) for seed in SEEDS],
    }


def exit_code(rows: Sequence[CheckRow]) -> int:
    """Return 0 if everything is as the catalogue says, and 1 otherwise."""
    return int(any(row.status != "ok" for row in rows))


def _chosen(names: Iterable[str]) -> list[DatasetFacts]:
    chosen = [find(name) for name in names]
    return chosen or list(CATALOGUE.values())


def _missing(facts: DatasetFacts, root: Path) -> list[RawFile]:
    return [f for f in facts.files if not f.optional and not (root / f.path).is_file()]


def _check(facts: DatasetFacts, root: Path) -> CheckRow:
    name = facts.name
    if missing := _missing(facts, root):
        paths = ", ".join(file.path for file in missing)
        return CheckRow(name, "missing", f"Missing: {paths}. Run 'geof data fetch {name}'.")
    try:
        data = catalogue.load(name, data_root=root, cache=False)
    except GeofError as error:
        return CheckRow(name, "failed", str(error))
    measured, notes = measure(data), " ".join(data.notes)
    differences = _differences(measured, facts.expected)
    if not differences:
        return CheckRow(name, "ok", notes, measured)
    fallback = any(note.startswith("FALLBACK") for note in data.notes)
    if fallback and [field for field, _ in differences] == ["features"]:
        return CheckRow(name, "incomplete", notes, measured)
    said = "; ".join(text for _, text in differences)
    return CheckRow(name, "differs", f"{said}. {notes}".strip(), measured)


def _differences(measured: Statistics, expected: Statistics) -> list[tuple[str, str]]:
    found, wanted = dataclasses.asdict(measured), dataclasses.asdict(expected)
    return [
        (field, f"{found[field]:,} {field} instead of {wanted[field]:,}")
        for field in wanted
        if found[field] != wanted[field]
    ]


# Fetching -------------------------------------------------------------------------------------

_STAGING = ".fetch-"


def _fetch(facts: DatasetFacts, root: Path, force: bool) -> FetchRow:
    wanted = [
        file
        for file in facts.files
        if force
        or not (root / file.path).is_file()
        or file.sha256 not in (None, file_digest(root / file.path))
    ]
    if wanted:
        with temporary_folder(root, _STAGING) as staging:
            for url in facts.urls:
                _download(url, facts, wanted, staging)
            for file in wanted:
                _verify(facts, file, staging / Path(file.path).name)
            for file in wanted:
                (root / file.path).parent.mkdir(parents=True, exist_ok=True)
                with (staging / Path(file.path).name).open("rb+") as content:
                    os.fsync(content.fileno())
                os.replace(staging / Path(file.path).name, root / file.path)
    verified = sum((file.sha256 or file.download) is not None for file in facts.files)
    return FetchRow(facts.name, tuple(file.path for file in wanted), verified)


def _download(url: str, facts: DatasetFacts, wanted: list[RawFile], staging: Path) -> None:
    names = {Path(file.path).name for file in wanted}
    archive = url.endswith(".zip")
    if not archive and url.rpartition("/")[2] not in names:
        return
    path = staging / url.rpartition("/")[2]
    try:
        # Not PyG's download_url, which does not look at certificates.
        with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as source:
            _require_encrypted(source.geturl(), facts)
            with path.open("wb") as sink:
                _copy(source, sink, f"the download of '{url}'")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        raise DataError(
            f"Expected to download '{url}' for {facts.name}, but {error}. Check the "
            "connection, or put the files below --data-root by hand."
        ) from error
    if archive:
        _extract(path, url, names)


_PATIENCE_SECONDS = 60.0
"""For an address that does not answer."""

LARGEST_BYTES = 2**29
"""Of a file, downloaded or unpacked; the largest that is known has a third of it."""


def _copy(source: IO[bytes], sink: IO[bytes], what: str) -> None:
    """Copy a file, up to a size: an archive of a few bytes can hold many times the disk."""
    left = LARGEST_BYTES
    while chunk := source.read(min(left + 1, 2**20)):
        if len(chunk) > left:
            raise DataError(
                f"Expected {what} to have at most {LARGEST_BYTES:,} bytes, and it has more. "
                "Nothing was kept: this is not the dataset."
            )
        left -= len(chunk)
        sink.write(chunk)


def _require_encrypted(url: str, facts: DatasetFacts) -> None:
    """Refuse a plain connection that an address was redirected to."""
    if url.startswith("http:"):
        raise DataError(
            f"Expected an https address for {facts.name} (got a redirection to '{url}'). Put the "
            "files below --data-root by hand."
        )


def _extract(archive: Path, url: str, names: set[str]) -> None:
    """Take the wanted files out of the archive, whatever folders it keeps them in."""
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.infolist():
                name = Path(member.filename).name
                if name in names and not member.is_dir():
                    with content.open(member) as source, (archive.parent / name).open("wb") as sink:
                        _copy(source, sink, f"'{member.filename}' in the archive '{url}'")
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(
            f"Expected a whole archive from '{url}', but {error}: the download was cut short. "
            "Run the command again."
        ) from error
    archive.unlink()


def _verify(facts: DatasetFacts, file: RawFile, path: Path) -> None:
    def refuse(what: str) -> DataError:
        return DataError(
            f"Expected {what} from the download of '{file.path}' of {facts.name}: it was cut "
            "short or upstream has changed. Nothing was kept; run the command again."
        )

    if not path.is_file() or path.stat().st_size == 0:
        raise refuse("a file (got none)")
    if file.sha256 is not None and (digest := file_digest(path)) != file.sha256:
        raise refuse(f"the SHA-256 {file.sha256} (got {digest})")
    if file.rows is not None and (rows := len(path.read_bytes().splitlines()) - 1) != file.rows:
        raise refuse(f"{file.rows} rows (got {rows})")
    if path.suffix == ".npz" and not _whole_archive(path):
        raise refuse("a whole archive (got a broken one)")
    if file.download is not None and (found := _identity(path, file.download)) != file.download:
        raise refuse(f"{file.download} (got {found})")


def _identity(path: Path, like: str) -> str:
    """Return what a file is by the same kind of checksum."""
    if like.startswith("sha256:"):
        return f"sha256:{file_digest(path)}"
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    digest.update(path.read_bytes())
    return f"git:{digest.hexdigest()}"


def _whole_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as content:
            return content.testzip() is None
    except (zipfile.BadZipFile, EOFError):
        return False
