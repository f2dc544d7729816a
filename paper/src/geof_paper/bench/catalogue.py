"""What is run: the workloads by name, and how much effort a full and a quick run spend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from geof.errors import ConfigError, nearest

Growth: TypeAlias = Literal["edges", "nodes"]
Shape: TypeAlias = Literal["graph", "set"]
Stage: TypeAlias = Literal["supervised", "pretext"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a generated workload; every undirected edge counts twice, as in the catalogue."""

    graphs: int
    nodes: int
    edges: int
    features: int
    classes: int


@dataclass(frozen=True)
class Workload:
    """One graph in full batch, or a set of graphs in mini-batches.

    Attributes:
        name: What ``--workloads`` and the rows call it.
        shape: One graph, or a set.
        benchmark: Name in :data:`geof.data.catalogue.CATALOGUE`; its raw files are used where
            they are there. ``None`` for a workload that is always generated.
        sizes: Of an always generated workload; a benchmark's stand-in has the catalogue's.
        variation: Standard deviation over mean of the generated degrees (one graph), or of the
            numbers of nodes (a set).
        density: Share of non-zero features of the stand-in; ``None`` for dense ones.
        sparse: Whether all are given ``x`` as a sparse CSR matrix.
        batches: Mini-batches of an epoch; ``None`` for all.
        growth: The series whose exponent it is a point of.
        default: Whether a full run has it.
    """

    name: str
    shape: Shape
    benchmark: str | None = None
    sizes: Sizes | None = None
    variation: float = 2.0
    density: float | None = None
    sparse: bool = False
    batches: int | None = None
    growth: Growth | None = None
    default: bool = True


BATCH_SIZE = 128
"""Graphs per mini-batch."""


def _grown(name: str, growth: Growth, nodes: int, undirected: int) -> Workload:
    sizes = Sizes(1, nodes, 2 * undirected, features=64, classes=10)
    return Workload(name, "graph", sizes=sizes, growth=growth)


# Densities as measured on the real files; variations such that the generated degrees vary as the
# real ones do (PubMed 1.65, CS 1.02, Computers 1.97). The maxima then come near the real ones, too
# (171, 136 and 2,992).
_WORKLOADS = (
    Workload("PubMed", "graph", "PubMed", variation=1.65, density=0.1),
    Workload("PubMed-sparse", "graph", "PubMed", variation=1.65, density=0.1, sparse=True),
    Workload("CS", "graph", "CS", variation=1.02, density=0.00875),
    Workload("CS-sparse", "graph", "CS", variation=1.02, density=0.00875, sparse=True),
    Workload("Computers", "graph", "Computers", variation=2.4, density=0.35),
    Workload("NCI1", "set", "NCI1", variation=0.45),
    Workload("Mutagenicity", "set", "Mutagenicity", variation=0.66),
    Workload("ogbg-molhiv", "set", "ogbg-molhiv", variation=0.48, batches=32),
    _grown("edges-1e5", "edges", 10_000, 100_000),
    _grown("edges-1e6", "edges", 100_000, 1_000_000),
    _grown("edges-1e7", "edges", 1_000_000, 10_000_000),
    _grown("nodes-5e3", "nodes", 5_000, 100_000),
    _grown("nodes-1e4", "nodes", 10_000, 100_000),
    _grown("nodes-2e4", "nodes", 20_000, 100_000),
    _grown("nodes-4e4", "nodes", 40_000, 100_000),
    # For trying the command and for tests: a second each.
    Workload("tiny", "graph", sizes=Sizes(1, 200, 1_200, 16, 3), default=False),
    Workload("tiny-set", "set", sizes=Sizes(160, 1_120, 2_200, 8, 2), variation=0.5, default=False),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _WORKLOADS}
"""By name, in the order of a full run."""

EDGES = "geof-edges"
"""GeoF that reads an attribute of every edge; the ``geof`` beside it has none to read."""

EQUAL_WIDTH = ("gcn", "gcn-csr", "gat", "geof", EDGES)
"""The entries of equal width and depth; ``geof`` is every backend, ``geof-BACKEND`` one of them.

:data:`EDGES` likewise, and is run when named only.
``--methods`` also takes the registered methods that are not called so: see :mod:`.methods`.
"""

GEOF = ("geof", EDGES)
"""Those of them that have a row per backend."""

PAPER = "paper"
"""What ``--methods`` calls those of the paper's tables of time and memory."""

PAPER_METHODS = ("amp", "g2former", "spdgnn", "argnn")
"""Those of the paper's six that are neither GCN nor GeoF, in its order."""


@dataclass(frozen=True)
class Effort:
    """How much a run spends.

    Attributes:
        quick: Whether it is the quick one.
        seconds: Time for the timed rounds of one workload. Where ``least_rounds`` do not fit,
            GeoF's slower backends are left with one.
        least_rounds: Rounds of everything else, whatever they cost.
        most_rounds: Rounds at most; with one, the first epoch is it.
        memory_epochs: Epochs behind a peak of memory (one for what has one round).
        total_seconds: When to leave out what is not needed for the times of the fast entries;
            ``None`` for never.
    """

    quick: bool
    seconds: float
    least_rounds: int
    most_rounds: int
    memory_epochs: int
    total_seconds: float | None


FULL = Effort(
    quick=False,
    seconds=60,
    least_rounds=3,
    most_rounds=31,
    memory_epochs=2,
    total_seconds=None,
)
QUICK = Effort(
    quick=True,
    seconds=2,
    least_rounds=3,
    most_rounds=9,
    memory_epochs=1,
    total_seconds=43,
)

PROFILE = Effort(
    quick=False,
    seconds=20,
    least_rounds=5,
    most_rounds=60,
    memory_epochs=0,
    total_seconds=None,
)
PROFILED = ("NCI1", "PubMed")
"""What a profile looks at unless workloads are named."""

QUICK_WORKLOADS = ("Computers", "NCI1")
QUICK_BATCHES = 2
QUICK_LEAVES_OUT = ("gat", "geof-reference")
"""Entries of a quick run that are run only when named, so that it stays quick."""


def choose_workloads(names: Sequence[str] | None, *, quick: bool) -> list[Workload]:
    """Return the named workloads, in any case of letters, or the default ones.

    Raises:
        ConfigError: For an unknown name, with the nearest known one.
    """
    if names is None:
        if quick:
            return [WORKLOADS[name] for name in QUICK_WORKLOADS]
        return [workload for workload in WORKLOADS.values() if workload.default]
    by_lower = {name.lower(): workload for name, workload in WORKLOADS.items()}
    chosen = {}
    for name in names:
        if name.lower() not in by_lower:
            raise ConfigError(f"Unknown workload {name!r}. " + nearest(name, WORKLOADS))
        chosen[name.lower()] = by_lower[name.lower()]
    return list(chosen.values())


@dataclass(frozen=True)
class Entry:
    """What is measured: a method, and for GeoF the implementation of its step.

    Attributes:
        method: One of :data:`EQUAL_WIDTH`, or a registered method.
        backend: Of GeoF's step.
    """

    method: str
    backend: str | None = None

    @property
    def label(self) -> str:
        """What ``--methods`` calls it."""
        return self.method if self.backend is None else f"{self.method}-{self.backend}"

    @property
    def is_method(self) -> bool:
        """Whether it is a registered method with its preset, not one of those of equal width."""
        return self.method not in EQUAL_WIDTH


def entries(backends: Iterable[str]) -> dict[str, Entry]:
    """Return every entry by its label; the paper-literal form, by far the slowest, last."""
    last = sorted(backends, key=lambda name: name == "reference")
    simple = [Entry(name) for name in EQUAL_WIDTH if name not in GEOF]
    every = [*simple, *(Entry(name, backend) for backend in last for name in GEOF)]
    return {entry.label: entry for entry in every}


def choose_entries(
    names: Sequence[str] | None,
    backends: Iterable[str],
    methods: Iterable[str] = (),
    best: str = "torch",
) -> list[Entry]:
    """Return the named entries, or all of equal width.

    Args:
        names: What ``--methods`` was given: ``geof`` stands for all backends, :data:`PAPER` for the
            paper's six. ``None`` for all of equal width.
        backends: GeoF's.
        methods: Registered ones; those called like an entry of equal width are not meant.
        best: The backend of GeoF among the paper's six.

    Returns:
        Those of equal width, with the methods, in the order of their names, before GeoF.

    Raises:
        ConfigError: For an unknown name, with the nearest known one.
    """
    every = entries(backends)
    if names is None:
        return [entry for entry in every.values() if entry.method != EDGES]
    wanted = _without_shorthand(names, best)
    own = {name: Entry(name) for name in methods if name not in EQUAL_WIDTH}
    for name in wanted:
        if name not in GEOF and name not in every and name not in own:
            valid = [*GEOF, PAPER, *every, *own]
            raise ConfigError(f"Unknown method {name!r}. " + nearest(name, valid))
    equal = [c for label, c in every.items() if label in wanted or c.method in wanted]
    return [
        *(c for c in equal if c.backend is None),
        *(own[name] for name in wanted if name in own),
        *(c for c in equal if c.backend is not None),
    ]


def _without_shorthand(names: Sequence[str], best: str) -> list[str]:
    """Return the names, each once, with the paper's six written out."""
    six = ("gcn", *PAPER_METHODS, f"geof-{best}")
    return list(dict.fromkeys(n for name in names for n in (six if name == PAPER else (name,))))
