"""Link-prediction splits that cannot leak, and the check that every link run makes first.

80/5/15 of the undirected edges, ten seeds. Where this differs from PyG's ``RandomLinkSplit``:

* Training negatives are drawn, anew each epoch, among the pairs that are not *training* edges.
  PyG draws them against all edges, so that whatever is never drawn is a held-out edge
  (pyg-team/pytorch_geometric#6946).
* Pairs are unordered throughout: both directions of a held-out edge leave the message graph, which
  PyG does only when told ``is_undirected=True``; and no pair is a negative of validation in one
  direction and of test in the other (#10706).
* A share of zero, with which held-out edges have been found in PyG's training graph (#10590), is
  refused.
* Negatives are exactly as many as asked for, or there is an error; never fewer in silence.
* Positives and negatives are both given as ``(lower, higher)``, sorted: neither the direction nor
  the order of a pair tells its label.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geof.data.splits import (
    DatasetIdentity,
    digest_of,
    read_split_file,
    require_same_hash,
    require_shares,
    write_split_file,
)
from geof.draws import Integers, raw_permutation, raw_stream, run_starts, sorted_unique
from geof.errors import DataError, DtypeError, ShapeError
from geof.options import require_positive

# One random stream each.
_EDGES, _HELD_OUT_NEGATIVES, _TRAINING_NEGATIVES, _GIVEN_NEGATIVES = range(4)


class LeakError(DataError):
    """What a model is fitted to or sees tells the answer to what it is evaluated on."""


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """Pairs to train on, to choose the epoch by and to test, and the edges a model may see.

    Pairs are ``(2, k)``, the lower index first, in ascending order, whatever was given.

    Attributes:
        num_nodes: ``n``.
        seed: Seed of every draw, those of :meth:`training_negatives` included.
        train: Training edges.
        validation: Held-out edges that choose the epoch.
        validation_negatives: As many pairs without an edge.
        test: Held-out edges read once, at that epoch.
        test_negatives: As many pairs without an edge.
        name: How the split was made.
    """

    num_nodes: int
    seed: int
    train: Tensor
    validation: Tensor
    validation_negatives: Tensor
    test: Tensor
    test_negatives: Tensor
    name: str

    _PARTS: ClassVar[tuple[str, ...]] = (
        "train",
        "validation",
        "validation_negatives",
        "test",
        "test_negatives",
    )

    def __post_init__(self) -> None:
        require_positive("num_nodes", self.num_nodes)
        require_positive("seed", self.seed, least=0)
        for name in self._PARTS:
            codes = pair_codes(name, getattr(self, name), self.num_nodes)
            if len(codes) == 0 or len(codes) != getattr(self, name).size(1):
                raise DataError(
                    f"Expected '{name}' to hold at least one pair, each of two nodes and once in "
                    f"one direction (got {getattr(self, name).size(1)} pairs, {len(codes)} "
                    "after removing repeats and self-pairs)."
                )
            object.__setattr__(self, name, _pairs(codes, self.num_nodes))

    @cached_property
    def message_edges(self) -> Tensor:
        """``(2, 2 E_train)``: the only edges for messages, signatures and degrees."""
        both = torch.cat([self.train, self.train.flip(0)], dim=1)
        order = (both[0] * self.num_nodes + both[1]).argsort()
        return both[:, order].contiguous()

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of size, seed and the five lists of pairs."""
        scalars = np.array([self.num_nodes, self.seed], np.int64)
        return digest_of([scalars, *(getattr(self, name).numpy() for name in self._PARTS)])

    def training_negatives(self, epoch: int) -> Tensor:
        """Return as many pairs as training edges, uniformly among those that are not one.

        They depend on seed, epoch and training edges alone: a resumed run draws the same, and
        nothing about the held-out edges can be learned from them. So now and then a held-out edge
        is among them, as it would be if it were truly unknown.
        """
        require_positive("epoch", epoch, least=0)
        codes = _draw_free_pairs(
            raw_stream(self.seed, _TRAINING_NEGATIVES, epoch),
            self.num_nodes,
            pair_codes("train", self.train, self.num_nodes),
            self.train.size(1),
        )
        return _pairs(np.sort(codes), self.num_nodes)

    def save(self, path: Path | str, identity: DatasetIdentity) -> None:
        """Write the split to ``path`` (``.npz`` without pickles), atomically."""
        self._require_fit(identity)
        facts: dict[str, str | int] = {"kind": "link", "name": self.name, "seed": self.seed}
        facts["hash"] = self.hash
        parts = {name: getattr(self, name) for name in self._PARTS}
        write_split_file(path, facts, parts, identity)

    @classmethod
    def load(cls, path: Path | str, identity: DatasetIdentity) -> LinkSplit:
        """Read a split that :meth:`save` wrote for the same dataset.

        Raises:
            DataError: If the file is missing, damaged, of another format, or made for other data.
        """
        facts, parts = read_split_file(path, "link", identity, cls._PARTS)
        split = cls(
            num_nodes=identity.size,
            seed=facts.get("seed", -1),
            name=str(facts.get("name")),
            **parts,
        )
        require_same_hash(path, split.hash, facts)
        return split

    def _require_fit(self, identity: DatasetIdentity) -> None:
        if identity.size != self.num_nodes:
            raise DataError(
                f"Expected a split of {identity.name!r} with its {identity.size} nodes (got one "
                f"of {self.num_nodes})."
            )


@dataclass(frozen=True, eq=False)
class FittingLinks(LinkSplit):
    """Links whose test part is elsewhere: ``test`` and its negatives are empty.

    Attributes:
        given_negatives: Pairs known not to be links, which training sees before drawn ones.
    """

    given_negatives: Tensor = field(default_factory=lambda: _no_pairs())

    _PARTS: ClassVar[tuple[str, ...]] = ("train", "validation", "validation_negatives")

    def training_negatives(self, epoch: int) -> Tensor:
        """Return as many pairs as training edges: those given, in turn, then drawn ones."""
        drawn, given = super().training_negatives(epoch), self.given_negatives
        bits = raw_stream(self.seed, _GIVEN_NEGATIVES, epoch)
        count = min(given.size(1), drawn.size(1))
        chosen = torch.from_numpy(raw_permutation(bits, given.size(1))[:count])
        rest = torch.from_numpy(raw_permutation(bits, drawn.size(1))[count:])
        return torch.cat([given[:, chosen], drawn[:, rest]], dim=1)


def fitting_links(
    edge_index: Tensor,
    num_nodes: int,
    seed: int,
    *,
    validation: float = 0.2,
    candidates: Tensor | None = None,
    negatives: Tensor | None = None,
) -> FittingLinks:
    """Hold a share of links out for validation, at random; there is no test part.

    Args:
        edge_index: All links, one direction is enough.
        num_nodes: ``n``.
        seed: Which draw.
        validation: The share.
        candidates: Those of the links that may be held out (default: all).
        negatives: Pairs known not to be links; the same share of them validates. What they lack in
            number is drawn.

    Raises:
        DataError: If a part would be empty, or a negative is a link.
    """
    edges = pair_codes("edge_index", edge_index, num_nodes)
    pool = edges if candidates is None else pair_codes("candidates", candidates, num_nodes)
    known = pair_codes("negatives", _no_pairs() if negatives is None else negatives, num_nodes)
    _refuse_common("'negatives'", known, "the links", edges, num_nodes)
    count = max(round(validation * len(pool)), 1) if 0 < validation < 1 else 0
    if not 0 < count < len(edges):
        raise DataError(
            "Expected a share between 0 and 1 for validation and at least two links (got "
            f"{validation} of {len(pool)} links). Give more links, or another share."
        )
    held = pool[raw_permutation(raw_stream(seed, _EDGES), len(pool))[:count]]
    train = np.setdiff1d(edges, held, assume_unique=True)
    _require_free_pairs(num_nodes, occupied=len(train), wanted=len(train))
    order = known[raw_permutation(raw_stream(seed, _GIVEN_NEGATIVES), len(known))]
    share = min(max(round(validation * len(known)), 1), count) if len(known) else 0
    taken = np.sort(np.concatenate([edges, known]))
    bits = raw_stream(seed, _HELD_OUT_NEGATIVES)
    drawn = _draw_free_pairs(bits, num_nodes, taken, count - share)
    return FittingLinks(
        num_nodes=num_nodes,
        seed=seed,
        train=_pairs(train, num_nodes),
        validation=_pairs(held, num_nodes),
        validation_negatives=_pairs(np.concatenate([order[:share], drawn]), num_nodes),
        test=_no_pairs(),
        test_negatives=_no_pairs(),
        name=f"links {1 - validation:g}/{validation:g} seed {seed}",
        given_negatives=_pairs(order[share:], num_nodes),
    )


def _no_pairs() -> Tensor:
    return torch.empty(2, 0, dtype=torch.long)


def random_link_split(
    edge_index: Tensor,
    num_nodes: int,
    seed: int,
    *,
    train: float = 0.8,
    validation: float = 0.05,
) -> LinkSplit:
    """Split undirected edges at random, 80/5/15 unless told otherwise (paper, section 4.1).

    Args:
        edge_index: ``(2, E)``. One direction of an edge is enough; repeats and the order do not
            matter, self-loops are left out.
        num_nodes: ``n``.
        seed: Which split.
        train: Share of training edges.
        validation: Share of validation edges; the rest is test.

    Raises:
        ConfigError: If a part would get no share.
        DataError: If a part would be empty, or the graph is so dense that there are fewer pairs
            without an edge than negatives are wanted.
    """
    require_shares(train, validation)
    require_positive("num_nodes", num_nodes)
    require_positive("seed", seed, least=0)
    edges = pair_codes("edge_index", edge_index, num_nodes)
    first = round(train * len(edges))
    second = first + round(validation * len(edges))
    if not 0 < first < second < len(edges):
        raise DataError(
            f"Expected enough edges for three parts of {train:g}/{validation:g}/"
            f"{1 - train - validation:g} (got {len(edges)} undirected edges). Give more edges or "
            "a larger share to the part that is empty."
        )
    order = raw_permutation(raw_stream(seed, _EDGES), len(edges))
    parts = [edges[order[:first]], edges[order[first:second]], edges[order[second:]]]
    _require_free_pairs(num_nodes, occupied=first, wanted=first)  # else the first epoch fails
    negatives = _draw_free_pairs(
        raw_stream(seed, _HELD_OUT_NEGATIVES), num_nodes, edges, len(edges) - first
    )
    return LinkSplit(
        num_nodes=num_nodes,
        seed=seed,
        train=_pairs(parts[0], num_nodes),
        validation=_pairs(parts[1], num_nodes),
        validation_negatives=_pairs(negatives[: second - first], num_nodes),
        test=_pairs(parts[2], num_nodes),
        test_negatives=_pairs(negatives[second - first :], num_nodes),
        name=f"links {train:g}/{validation:g}/{1 - train - validation:g} seed {seed}",
    )


def check_no_leak(
    split: LinkSplit,
    message_edge_index: Tensor,
    signature_edge_index: Tensor,
    all_edges: Tensor,
) -> None:
    """Refuse to start a link-prediction run that could read its answers.

    Args:
        split: The split of the run.
        message_edge_index: The edges the model will send messages along, self-loops allowed.
        signature_edge_index: The edges signatures and degrees were computed from.
        all_edges: Every true edge of the graph, one direction or both.

    Raises:
        LeakError: If a held-out edge is, in either direction, among the message or signature edges;
            if a held-out pair is a training pair; if a negative is a true edge; if two evaluation
            sets share a pair; if message or signature edges are not training edges, or message
            edges lack a direction. Names the first such pair.
        DataError: If the split was not made from ``all_edges``.
    """
    n = split.num_nodes
    codes = {name: pair_codes(name, getattr(split, name), n) for name in split._PARTS}
    train = codes.pop("train")  # what remains is held out
    true = pair_codes("all_edges", all_edges, n)
    seen = {"message": message_edge_index, "signature": signature_edge_index}
    present = {role: pair_codes(f"{role}_edge_index", edges, n) for role, edges in seen.items()}
    held_out_edges = [name for name in ("validation", "test") if name in codes]
    for role, held_out in product(seen, held_out_edges):
        _refuse_held_out(role, seen[role], present[role], held_out, codes[held_out], n)
    for name, held_out_codes in codes.items():
        _refuse_common(f"'{name}'", held_out_codes, "the training edges", train, n)
    for name in [name for name in codes if name not in held_out_edges]:
        _refuse_common(f"'{name}'", codes[name], "the true edges", true, n)
    for one, other in combinations(codes, 2):
        _refuse_common(f"'{one}'", codes[one], f"'{other}'", codes[other], n)
    for role in seen:
        _require_training_edges(role, present[role], train, n)
    _require_both_directions(message_edge_index, n)
    positives = np.concatenate([train, *(codes[name] for name in held_out_edges)])
    _require_same_graph(positives, true, n)


def pair_codes(name: str, pairs: Tensor, num_nodes: int) -> Integers:
    """Return ``lower * n + higher`` of every unordered pair of two nodes, ascending, once each."""
    source, target = _endpoints(name, pairs, num_nodes)
    code = np.minimum(source, target) * num_nodes + np.maximum(source, target)
    return sorted_unique(code[source != target])


def _endpoints(name: str, pairs: Tensor, num_nodes: int) -> tuple[Integers, Integers]:
    if not isinstance(pairs, Tensor) or pairs.dtype != torch.long:
        got = pairs.dtype if isinstance(pairs, Tensor) else type(pairs).__name__
        raise DtypeError(f"Expected '{name}' to be an int64 tensor (got {got}).")
    if pairs.dim() != 2 or pairs.size(0) != 2:
        raise ShapeError(f"Expected '{name}' to have shape (2, k) (got {tuple(pairs.shape)}).")
    if num_nodes**2 > np.iinfo(np.int64).max:
        raise DataError(f"Expected fewer than 3e9 nodes (got {num_nodes}).")
    source, target = pairs.detach().cpu().numpy()
    if pairs.numel() and not 0 <= int(pairs.min()) <= int(pairs.max()) < num_nodes:
        raise DataError(
            f"Expected '{name}' to hold node indices from 0 to {num_nodes - 1} (got indices from "
            f"{int(pairs.min())} to {int(pairs.max())})."
        )
    return source, target


def _pairs(codes: Integers, num_nodes: int) -> Tensor:
    return torch.from_numpy(np.stack(np.divmod(codes, num_nodes)))


def _contains(ascending: Integers, codes: Integers) -> NDArray[np.bool_]:
    """Return which of ``codes`` are in the ascending list."""
    if len(ascending) == 0:
        return np.zeros(len(codes), np.bool_)
    place = np.searchsorted(ascending, codes).clip(max=len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[place] == codes
    return found


def _require_free_pairs(num_nodes: int, occupied: int, wanted: int) -> None:
    free = num_nodes * (num_nodes - 1) // 2 - occupied
    if free < wanted:
        raise DataError(
            f"Expected at least {wanted} pairs without an edge to draw negatives from (got {free} "
            f"with {num_nodes} nodes). The graph is too dense for as many negatives as positives."
        )


def _draw_free_pairs(
    bits: np.random.PCG64, num_nodes: int, occupied: Integers, count: int
) -> Integers:
    """Draw ``count`` distinct unordered pairs uniformly outside the ascending ``occupied``."""
    _require_free_pairs(num_nodes, len(occupied), count)
    # Where more than a quarter of all pairs would be refused, listing the free ones costs no more
    # memory than the edges do; elsewhere rejection accepts at least three of eight draws.
    if num_nodes * (num_nodes - 1) // 2 <= 4 * (len(occupied) + count):
        lower, higher = np.triu_indices(num_nodes, k=1)
        code = lower.astype(np.int64) * num_nodes + higher
        free = code[~_contains(occupied, code)]
        return free[raw_permutation(bits, len(free))[:count]]
    return _draw_by_rejection(bits, num_nodes, occupied, count)


def _draw_by_rejection(
    bits: np.random.PCG64, num_nodes: int, occupied: Integers, count: int
) -> Integers:
    """Take the stream's leading bits as pairs and keep the first ``count`` that are new and free.

    Nothing is rounded or taken modulo, so every free pair is equally likely; and how many draws
    are made at once does not change the outcome.
    """
    shift = np.uint64(64 - (num_nodes**2 - 1).bit_length())
    chosen = np.empty(0, np.int64)
    while len(chosen) < count:
        code = (bits.random_raw(2 * (count - len(chosen)) + 64) >> shift).astype(np.int64)
        one, other = np.divmod(code, num_nodes)
        proper = (one < num_nodes) & (one != other)
        code = (np.minimum(one, other) * num_nodes + np.maximum(one, other))[proper]
        chosen = _new_and_free(np.concatenate([chosen, code]), occupied)
    return chosen[:count]


def _new_and_free(codes: Integers, occupied: Integers) -> Integers:
    """Return the first occurrence of every code that is not occupied, in the order given."""
    order = np.argsort(codes)
    start = run_starts(codes[order])
    if len(start) == 0:
        return codes
    first: Integers = np.minimum.reduceat(order, start)
    kept: Integers = np.sort(first[~_contains(occupied, codes[order[start]])])
    return codes[kept]


def _refuse_held_out(
    role: str, edge_index: Tensor, present: Integers, held_out: str, codes: Integers, n: int
) -> None:
    leaking = codes[_contains(present, codes)]
    if len(leaking) == 0:
        return
    ends = set(divmod(int(leaking[0]), n))
    start, end = next(edge for edge in edge_index.t().tolist() if set(edge) == ends)
    raise LeakError(
        f"Expected no {held_out} edge among the {role} edges, but {start} -> {end} is there "
        f"({len(leaking)} such pairs). Use split.message_edges for messages, signatures and "
        "degrees."
    )


def _refuse_common(
    name: str, codes: Integers, other: str, other_codes: Integers, num_nodes: int
) -> None:
    common = codes[_contains(other_codes, codes)]
    if len(common):
        pair = divmod(int(common[0]), num_nodes)
        raise LeakError(
            f"Expected {name} to share no pair with {other}, but {pair} is in both "
            f"({len(common)} in all). Draw the split again with random_link_split."
        )


def _require_training_edges(role: str, present: Integers, train: Integers, n: int) -> None:
    foreign = present[~_contains(train, present)]
    if len(foreign):
        pair = divmod(int(foreign[0]), n)
        raise LeakError(
            f"Expected only training edges among the {role} edges, but {pair} is not one "
            f"({len(foreign)} such pairs). Use split.message_edges."
        )


def _require_both_directions(message_edge_index: Tensor, num_nodes: int) -> None:
    source, target = _endpoints("message_edge_index", message_edge_index, num_nodes)
    forward = sorted_unique(source * num_nodes + target)
    backward = sorted_unique(target * num_nodes + source)
    missing = backward[~_contains(forward, backward)]
    if len(missing):
        start, end = divmod(int(missing[0]), num_nodes)
        raise LeakError(
            f"Expected both directions of every message edge, but {start} -> {end} is missing "
            f"({len(missing)} in all). Use split.message_edges."
        )


def _require_same_graph(positives: Integers, true: Integers, num_nodes: int) -> None:
    given = np.sort(positives)
    strange = np.concatenate([given[~_contains(true, given)], true[~_contains(given, true)]])
    if len(strange):
        pair = divmod(int(strange[0]), num_nodes)
        raise DataError(
            f"Expected a split of exactly these true edges, but {pair} is in one and "
            f"not in the other ({len(strange)} in all). The split belongs to another graph."
        )
