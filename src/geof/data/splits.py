"""Seeded splits of nodes and of graphs, and the files they are saved in.

The hash of a split traces a result to what it was measured on. A file holds index lists with a
header that says which data they belong to; there is no pickle in it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.data.records import GraphSet, NodeGraph
from geof.draws import Integers, raw_permutation, raw_stream
from geof.errors import ConfigError, DataError, DtypeError, ShapeError
from geof.io import write_atomically
from geof.options import require_positive

_FORMAT = 1

SEEDS = tuple(range(10))
"""The seeds of the ten splits a reported mean is taken over (paper, section 4.1)."""


@dataclass(frozen=True, eq=False)
class IndexSplit:
    """Indices of training, validation and test items, each kept ascending.

    Overlapping, repeated, negative or missing indices are refused, so a split that exists does
    not leak.

    Attributes:
        train: What the parameters are fitted to.
        validation: What chooses the epoch.
        test: What is read once, at that epoch.
        name: How the split was made.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    name: str

    kind: ClassVar[str] = "item"

    def __post_init__(self) -> None:
        for part, indices in self._parts().items():
            object.__setattr__(self, part, _ascending(part, indices))
        everything, count = torch.cat(list(self._parts().values())).unique(return_counts=True)
        if bool((count > 1).any()):
            raise DataError(
                f"Expected every {self.kind} at most once, in one part, but {self.kind} "
                f"{int(everything[count > 1][0])} comes again. Keep it in one place."
            )

    @classmethod
    def fixed(
        cls,
        train: Sequence[int] | Tensor,
        validation: Sequence[int] | Tensor,
        test: Sequence[int] | Tensor,
        *,
        size: int,
        name: str,
    ) -> Self:
        """Return a split given by its indices, in any order, such as OGB's scaffold split.

        Args:
            train: Training indices.
            validation: Validation indices.
            test: Test indices.
            size: Number of items, above every index.
            name: Where the split comes from.
        """
        given = {"train": train, "validation": validation, "test": test}
        split = cls(**{part: torch.as_tensor(given[part]) for part in given}, name=name)
        split._require_fit(size)
        return split

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the three index lists."""
        return digest_of(part.numpy() for part in self._parts().values())

    def save(self, path: Path | str, identity: DatasetIdentity) -> None:
        """Write the split to ``path`` (``.npz`` without pickles), atomically."""
        self._require_fit(identity.size)
        facts = {"kind": self.kind, "name": self.name, "hash": self.hash}
        write_split_file(path, facts, self._parts(), identity)

    @classmethod
    def load(cls, path: Path | str, identity: DatasetIdentity) -> Self:
        """Read a split that :meth:`save` wrote for the same dataset.

        Raises:
            DataError: If the file is missing, damaged, of another format, or made for other data.
        """
        facts, parts = read_split_file(path, cls.kind, identity, cls._PARTS)
        split = cls(**parts, name=str(facts.get("name")))
        split._require_fit(identity.size)
        require_same_hash(path, split.hash, facts)
        return split

    _PARTS: ClassVar[tuple[str, ...]] = ("train", "validation", "test")

    def _parts(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self._PARTS}

    def _require_fit(self, size: int) -> None:
        highest = max(int(part[-1]) for part in self._parts().values())
        if highest >= size:
            raise DataError(
                f"Expected a split of {size} {self.kind}s (got index {highest}). "
                "It was made for other data."
            )


class NodeSplit(IndexSplit):
    """Training, validation and test nodes of one graph; see :class:`IndexSplit`."""

    kind: ClassVar[str] = "node"


class GraphSplit(IndexSplit):
    """Training, validation and test graphs of a set; see :class:`IndexSplit`."""

    kind: ClassVar[str] = "graph"


class FittingSplit(IndexSplit):
    """Training and validation items of data whose test part is elsewhere; ``test`` is empty."""

    _PARTS: ClassVar[tuple[str, ...]] = ("train", "validation")

    @classmethod
    def of(cls, train: Tensor, validation: Tensor, name: str = "given") -> Self:
        """Return the split of two lists of indices."""
        return cls(train, validation, torch.empty(0, dtype=torch.long), name)


def holdout_split(
    size: int, seed: int, validation: float = 0.2, *, stratify: Tensor | None = None
) -> FittingSplit:
    """Hold a share of all items out for validation, at random; there is no test part.

    Args:
        size: How many items.
        seed: Which draw.
        validation: The share.
        stratify: Classes ``(size,)`` that get the same share, to the nearest item.

    Raises:
        ConfigError: If the share is no share, or a part would be empty.
    """
    require_positive("seed", seed, least=0)
    held = max(round(validation * size), 1) if 0 < validation < 1 else 0
    if not 0 < held < size:
        raise ConfigError(
            "Expected a share between 0 and 1 for validation that leaves something to train on "
            f"(got {validation} of {size}). Give more, or another share."
        )
    if stratify is None:
        draw = raw_permutation(raw_stream(seed), size)
    else:
        draw = _stratified_order(_classes(stratify, size), seed)
    order = torch.from_numpy(draw)
    name = f"{1 - validation:g}/{validation:g} seed {seed}"
    return FittingSplit.of(order[: size - held], order[size - held :], name)


def random_node_split(
    num_nodes: int,
    seed: int,
    *,
    nodes: Tensor | None = None,
    train: float = 0.6,
    validation: float = 0.2,
    stratify: Tensor | None = None,
) -> NodeSplit:
    """Split nodes at random, 60/20/20 unless told otherwise (paper, section 4.1).

    Args:
        num_nodes: ``n``.
        seed: Which split.
        nodes: The nodes to split, indices or boolean mask (default: all).
        train: Share of training nodes.
        validation: Share of validation nodes; the rest is test.
        stratify: Labels ``(n,)`` whose classes get the same shares in every part, to the nearest
            node. Not the paper's protocol, which draws without looking at the labels; of use
            when a class is so small that a random part may miss it.
    """
    require_shares(train, validation)
    require_positive("seed", seed, least=0)
    pool = _pool(num_nodes, nodes)
    if stratify is None:
        draw = raw_permutation(raw_stream(seed), len(pool))
    else:
        draw = _stratified_order(_classes(stratify, num_nodes)[pool.numpy()], seed)
    order = pool[torch.from_numpy(draw)]
    first = round(train * len(pool))
    second = first + round(validation * len(pool))
    if not 0 < first < second < len(pool):
        raise ConfigError(
            f"Expected enough nodes for three parts (got {len(pool)}). Give at least 5."
        )
    rule = "random" if stratify is None else "stratified"
    return NodeSplit(
        train=order[:first],
        validation=order[first:second],
        test=order[second:],
        name=f"{rule} {train:g}/{validation:g}/{1 - train - validation:g} seed {seed}",
    )


def stratified_folds(labels: Tensor, seed: int, folds: int = 10) -> tuple[GraphSplit, ...]:
    """Return the splits of cross-validation: fold i tests, fold i + 1 validates, the rest trains.

    Each class is shuffled and dealt to the folds one graph at a time, each class beginning where
    the one before ended. So folds differ by at most one graph in size, and in each class.

    Args:
        labels: The class of every graph, ``(G,)``.
        seed: Which dealing.
        folds: Number of folds, at least 3.

    Raises:
        DataError: If a class has fewer graphs than there are folds: some fold would not have it.
    """
    require_positive("folds", folds, least=3)
    require_positive("seed", seed, least=0)
    fold = torch.from_numpy(_deal(_classes(labels, len(labels)), seed, folds))
    return tuple(
        GraphSplit(
            train=((fold != test) & (fold != (test + 1) % folds)).nonzero().flatten(),
            validation=(fold == (test + 1) % folds).nonzero().flatten(),
            test=(fold == test).nonzero().flatten(),
            name=f"stratified fold {test} of {folds} seed {seed}",
        )
        for test in range(folds)
    )


def require_shares(train: float, validation: float) -> None:
    """Raise ``ConfigError`` unless all three parts get a positive share."""
    if not (train > 0 and validation > 0 and train + validation < 1):
        raise ConfigError(
            "Expected 'train' and 'validation' to be positive shares that leave a rest for test "
            f"(got train={train}, validation={validation})."
        )


def _ascending(part: str, indices: Tensor) -> Tensor:
    if not isinstance(indices, Tensor) or indices.dim() != 1 or len(indices) == 0:
        got = tuple(indices.shape) if isinstance(indices, Tensor) else type(indices).__name__
        raise ShapeError(f"Expected '{part}' to be a tensor of at least one index (got {got}).")
    if indices.dtype != torch.long:
        raise DtypeError(f"Expected '{part}' to hold int64 indices (got {indices.dtype}).")
    ascending = indices.detach().cpu().sort().values
    if int(ascending[0]) < 0:
        raise DataError(f"Expected indices from 0 in '{part}' (got {int(ascending[0])}).")
    return ascending


def _pool(num_nodes: int, nodes: Tensor | None) -> Tensor:
    """Return the nodes to split, ascending and once each, however they were given."""
    every = torch.arange(num_nodes)
    if nodes is None:
        return every
    try:
        pool: Tensor = every[nodes].unique()
    except IndexError as error:
        raise DataError(
            f"Expected 'nodes' to be indices below {num_nodes} or a mask of that length ({error})."
        ) from error
    return pool


def _classes(labels: Tensor, size: int) -> Integers:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise DtypeError(f"Expected labels as a tensor of integers (got {got}).")
    if labels.shape != (size,):
        raise ShapeError(f"Expected labels of shape ({size},) (got {tuple(labels.shape)}).")
    classes: Integers = labels.detach().cpu().numpy().astype(np.int64)
    return classes


def _stratified_order(classes: Integers, seed: int) -> Integers:
    """Order the items so that every stretch holds each class in its overall proportion.

    The r-th of a class's k members, in random order, is put at (r + 1/2) / k of the way; members
    of different classes at the same place follow in random order.
    """
    if len(classes) and classes.min() < 0:
        raise DataError(
            f"Expected labels from 0 among the nodes to split (got {classes.min()}). Leave "
            "unlabelled nodes out with nodes=labels >= 0."
        )
    shuffled = raw_permutation(raw_stream(seed), len(classes))
    place = np.empty(len(classes))
    for label in np.unique(classes):
        members = classes[shuffled] == label
        count = int(members.sum())
        place[members] = (2 * np.arange(count) + 1) / (2 * count)
    return shuffled[np.argsort(place, kind="stable")]


def _deal(classes: Integers, seed: int, folds: int) -> Integers:
    """Return the fold of every item."""
    labels, counts = np.unique(classes, return_counts=True)
    if len(labels) == 0 or labels[0] < 0 or counts.min() < folds:
        rarest = f"class {labels[counts.argmin()]} with {counts.min()}" if len(labels) else "none"
        raise DataError(
            f"Expected labels from 0 and at least {folds} graphs of every class, one per fold "
            f"(got {rarest}; lowest label {labels[0] if len(labels) else 'none'}). Use fewer "
            "folds, or merge or leave out the rare classes."
        )
    bits = raw_stream(seed)
    dealt = np.concatenate(
        [
            np.flatnonzero(classes == label)[raw_permutation(bits, count)]
            for label, count in zip(labels, counts, strict=True)
        ]
    )
    fold = np.empty(len(classes), np.int64)
    fold[dealt] = np.arange(len(dealt)) % folds
    return fold


# Files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DatasetIdentity:
    """What a stored split belongs to; checked when it is read again.

    Attributes:
        name: The dataset's name.
        content_hash: The dataset's own hash.
        size: Number of nodes of a graph, or of graphs of a set.
    """

    name: str
    content_hash: str
    size: int

    @classmethod
    def of(cls, data: NodeGraph | GraphSet) -> DatasetIdentity:
        """Return the identity of a loaded dataset."""
        size = len(data.graphs) if isinstance(data, GraphSet) else data.graph.num_nodes
        return cls(data.name, data.content_hash, int(size))


def digest_of(parts: Iterable[NDArray[Any]]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of little-endian int64 lists."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.astype("<i8").tobytes())
        digest.update(b"|")
    return digest.hexdigest()[:16]


def write_split_file(
    path: Path | str,
    facts: Mapping[str, str | int],
    parts: Mapping[str, Tensor],
    identity: DatasetIdentity,
) -> None:
    """Write index tensors with a header that says what they are and what they belong to."""
    header = {
        **facts,
        "format": _FORMAT,
        "dataset": identity.name,
        "content_hash": identity.content_hash,
        "size": identity.size,
    }
    arrays = {name: part.numpy().astype("<i8") for name, part in parts.items()}
    text = json.dumps(header, sort_keys=True).encode()
    buffer = io.BytesIO()
    np.savez(buffer, header=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    write_atomically(Path(path), buffer.getvalue())


def read_split_file(
    path: Path | str, kind: str, identity: DatasetIdentity, names: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of a split file that fits ``kind`` and ``identity``.

    Raises:
        DataError: If it is missing, damaged, of another format, or made for other data.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = dict(json.loads(archive["header"].tobytes()))
            arrays = {name: archive[name] for name in names}
    except FileNotFoundError as error:
        raise DataError(f"Expected a split file at '{path}', but there is none.") from error
    except Exception as error:  # zip, npy and JSON each have several ways of being damaged
        raise _damaged(path, error) from error
    wanted = {
        "format": _FORMAT,
        "kind": kind,
        "dataset": identity.name,
        "content_hash": identity.content_hash,
        "size": identity.size,
    }
    for fact, value in wanted.items():
        if header.get(fact) != value:
            raise DataError(
                f"Expected the split file '{path}' to have {fact} {value!r} (got "
                f"{header.get(fact)!r}). It was made for other data or by another version: draw "
                "the split again."
            )
    if any(array.dtype != np.dtype("<i8") for array in arrays.values()):
        raise _damaged(path, "indices that are not int64")
    return header, {name: torch.from_numpy(a.astype(np.int64)) for name, a in arrays.items()}


def require_same_hash(path: Path | str, found: str, facts: Mapping[str, Any]) -> None:
    """Raise ``DataError`` unless the indices read are those that were hashed."""
    if facts.get("hash") != found:
        raise _damaged(path, f"hash {found} instead of {facts.get('hash')}")


def _damaged(path: Path | str, reason: object) -> DataError:
    return DataError(
        f"Expected '{path}' to be a whole split file (got: {reason}). Delete it and draw the "
        "split again."
    )
