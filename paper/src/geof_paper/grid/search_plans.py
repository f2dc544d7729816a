"""The declared searches: who is searched, where, with how many trials, and who takes over.

Two searches of one machinery. ``rivals`` is the larger one, for what claims the first places: GeoF
``tuned`` and the three strong recipes. ``compared`` is the small one, for the paper's fourteen
compared methods and its second-order controls. Within a search every method has the same trials,
the same splits and, task by task, the same budget of a trial. The spaces are beside each other:
:data:`geof_paper.searches.SEARCHES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from geof.errors import ConfigError, nearest
from geof.methods.interface import TaskKind
from geof_paper.grid.cells import Benchmark
from geof_paper.studies.compared import COMPARED


class Budget(NamedTuple):
    """How long a recorded run may take."""

    epochs: int
    patience: int


@dataclass(frozen=True)
class Plan:
    """A declared search.

    Attributes:
        name: What recorded trials and the command call it.
        about: For people.
        methods: Which methods.
        trials: Of each method on each leader; the first is the preset it began with.
        splits: A trial is judged by its mean validation metric on these.
        one_preset: The preset that is searched; ``None`` for each method's own of the comparison.
        groups: Who leads, and who takes over what is found there.
        budgets: Epochs at most, and patience, of the runs that are recorded afterwards: of a
            dataset, or else of the task.
        only_changes: Whether presets take over only what the best trial has changed, and a budget
            only where theirs does not end by patience. A dataset that follows then keeps what its
            authors published for it, unless the search has found something else than the leader's
            own preset.
    """

    name: str
    about: str
    methods: tuple[str, ...]
    trials: int
    splits: tuple[str, ...]
    one_preset: str | None
    groups: Mapping[Benchmark, tuple[str, ...]]
    budgets: Mapping[str, Budget]
    only_changes: bool

    def preset(self, method: str, task: TaskKind) -> str:
        """Return the preset that is searched."""
        if self.one_preset is not None:
            return self.one_preset
        return next(c.preset_for(task) for c in COMPARED if c.method == method)

    def budget(self, benchmark: Benchmark) -> Budget:
        """Return the budget of recorded runs."""
        task, dataset = benchmark
        return self.budgets.get(dataset) or self.budgets[task]


RIVALS = Plan(
    name="rivals",
    about="GeoF tuned and the strong recipes",
    methods=("geof", "gcn-classic", "sage-classic", "gat-classic"),
    trials=8,
    splits=("0", "1"),
    one_preset="tuned",
    groups={
        ("node", "CiteSeer"): (),
        ("node", "Photo"): ("Computers",),
        ("node", "PubMed"): (),
        ("node", "CS"): ("Physics",),
        ("link", "CiteSeer"): (),
        ("link", "Photo"): ("Computers",),
        ("link", "PubMed"): (),
        ("link", "CS"): ("Physics",),
        ("graph", "PROTEINS"): (),
        ("graph", "BBBP"): (),
        ("graph", "NCI1"): ("Mutagenicity", "FRANKENSTEIN"),
        ("graph", "ogbg-molhiv"): (),
    },
    budgets={
        "node": Budget(500, 60),
        "link": Budget(500, 60),
        "graph": Budget(100, 20),
        "ogbg-molhiv": Budget(30, 8),
    },
    only_changes=False,
)

# The paper's GCN is PyG's plain one here: the strong recipe has a search of its own. It is searched
# with the others, so that no row of the comparison is without.
COMPARED_METHODS = Plan(
    name="compared",
    about="the fourteen compared methods and the second-order controls",
    methods=(
        *("gcn", "gin", "ml2-gcl", "amp", "wavegc", "sparrow", "g2former"),
        *("hgcn", "d-gcn", "spdgnn", "ace-hgnn", "bec-gnn", "gnrf", "argnn"),
        *("gcn-so", "gin-so", "argnn-so"),
    ),
    trials=4,
    splits=("0",),
    one_preset=None,
    groups={
        # Words and citations follow CiteSeer; the other shop's graph follows Photo.
        ("node", "CiteSeer"): ("PubMed", "CS", "Physics"),
        ("node", "Photo"): ("Computers",),
        ("link", "CiteSeer"): ("PubMed", "CS", "Physics"),
        ("link", "Photo"): ("Computers",),
        ("graph", "PROTEINS"): ("NCI1", "Mutagenicity", "FRANKENSTEIN"),
        ("graph", "BBBP"): ("ogbg-molhiv",),  # molecules with features, judged by ROC-AUC, too
    },
    budgets={
        # For presets kept as they were recorded before; the others have their own of about that.
        "node": Budget(300, 40),
        "link": Budget(200, 30),
        "graph": Budget(60, 15),
        "ogbg-molhiv": Budget(12, 4),
    },
    only_changes=True,
)

PLANS = {plan.name: plan for plan in (RIVALS, COMPARED_METHODS)}
"""The declared searches, by name."""


def plan_of(method: str) -> Plan:
    """Return the search that a method belongs to; none belongs to two.

    Raises:
        ConfigError: If it belongs to none.
    """
    for plan in PLANS.values():
        if method in plan.methods:
            return plan
    known = [name for plan in PLANS.values() for name in plan.methods]
    raise ConfigError(
        f"Expected a method of a declared search (got {method!r}). " + nearest(method, known)
    )
