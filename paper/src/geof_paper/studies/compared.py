"""The methods of the comparison: how they are run here and what the paper calls them."""

from __future__ import annotations

from dataclasses import dataclass

from geof.methods.interface import TaskKind

ADAPTED = "adapted"
"""The preset of a method for a task that its authors published no options for."""


def preset_for(task: TaskKind, preset: str, adapted: tuple[TaskKind, ...]) -> str:
    """Return the preset of a row for a task, one of its own or :data:`ADAPTED`."""
    return ADAPTED if task in adapted else preset


@dataclass(frozen=True)
class Compared:
    """A row of the tables.

    Attributes:
        method: A registered method.
        preset: One of its presets. ``published`` has options that its authors published for the
            task, if for other data, cut to what our machine can do.
        title: For the page of results.
        printed: The paper's name for it, ``None`` for a control the paper does not have.
        adapted: The tasks for which the authors published nothing: the preset is ``adapted``.
    """

    method: str
    preset: str
    title: str
    printed: str | None = None
    adapted: tuple[TaskKind, ...] = ()

    def preset_for(self, task: TaskKind) -> str:
        """Return the preset for a task."""
        return preset_for(task, self.preset, self.adapted)

    def title_for(self, task: TaskKind) -> str:
        """Return the title in a table of one task, which says where options are adapted."""
        return f"{self.title} `{ADAPTED}`" if self.preset_for(task) == ADAPTED else self.title


COMPARED = (
    Compared("geof", "paper", "GeoF `paper`", "GeoF"),
    Compared("geof", "tuned", "GeoF `tuned`", "GeoF"),
    Compared("gcn", "plain", "GCN, usual", "GCN"),
    Compared("gcn-classic", "tuned", "GCN, tuned recipe"),
    Compared("sage-classic", "tuned", "GraphSAGE, tuned recipe"),
    Compared("gat-classic", "tuned", "GAT, tuned recipe"),
    Compared("gin", "published", "GIN", "GIN", adapted=("node", "link")),
    Compared("ml2-gcl", "published", "ML2-GCL", "ML2-GCL", adapted=("graph",)),
    Compared("amp", "published", "AMP", "AMPs", adapted=("link",)),
    Compared("wavegc", "published", "WaveGC", "WaveGC", adapted=("link",)),
    Compared("sparrow", ADAPTED, "SPARROW", "SPARROW"),  # no options of its authors are known
    Compared("g2former", "published", "G2Former", "G2Former", adapted=("link", "graph")),
    Compared("hgcn", "published", "HGCN", "HGCN", adapted=("graph",)),
    Compared("d-gcn", "published", "D-GCN", "D-GCN", adapted=("graph",)),
    Compared("spdgnn", ADAPTED, "SPDGNN", "SPDGNN"),  # no options of its authors are known
    Compared("ace-hgnn", "published", "ACE-HGNN", "ACE-HGNN", adapted=("graph",)),
    Compared("bec-gnn", "published", "BEC-GNN", "BEC-GNN", adapted=("link",)),
    Compared("gnrf", "published", "GNRF", "GNRF", adapted=("link", "graph")),
    Compared("argnn", "published", "ARGNN", "ARGNN", adapted=("graph",)),
    Compared("gcn-so", "matched", "GCN w/ SO", "GCN w/ SO"),
    Compared("gin-so", "matched", "GIN w/ SO", "GIN w/ SO"),
    Compared("argnn-so", "matched", "ARGNN w/ SO", "ARGNN w/ SO"),
)
"""GeoF in both presets, the compared methods, and the controls."""
