"""The methods of the comparison: how they are run here and what the paper calls them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compared:
    """A row of the tables.

    Attributes:
        method: A registered method.
        preset: One of its presets.
        title: For the page of results.
        printed: The paper's name for it, ``None`` for a control the paper does not have.
    """

    method: str
    preset: str
    title: str
    printed: str | None = None


COMPARED = (
    Compared("geof", "paper", "GeoF `paper`", "GeoF"),
    Compared("geof", "tuned", "GeoF `tuned`", "GeoF"),
    Compared("gcn", "plain", "GCN, usual", "GCN"),
    Compared("gcn-classic", "tuned", "GCN, tuned recipe"),
    Compared("sage-classic", "tuned", "GraphSAGE, tuned recipe"),
    Compared("gat-classic", "tuned", "GAT, tuned recipe"),
    Compared("gin", "published", "GIN", "GIN"),
    Compared("ml2-gcl", "published", "ML2-GCL", "ML2-GCL"),
    Compared("amp", "published", "AMP", "AMPs"),
    Compared("wavegc", "published", "WaveGC", "WaveGC"),
    Compared("sparrow", "published", "SPARROW", "SPARROW"),
    Compared("g2former", "published", "G2Former", "G2Former"),
    Compared("hgcn", "published", "HGCN", "HGCN"),
    Compared("d-gcn", "published", "D-GCN", "D-GCN"),
    Compared("spdgnn", "published", "SPDGNN", "SPDGNN"),
    Compared("ace-hgnn", "published", "ACE-HGNN", "ACE-HGNN"),
    Compared("bec-gnn", "published", "BEC-GNN", "BEC-GNN"),
    Compared("gnrf", "published", "GNRF", "GNRF"),
    Compared("argnn", "published", "ARGNN", "ARGNN"),
    Compared("gcn-so", "matched", "GCN w/ SO", "GCN w/ SO"),
    Compared("gin-so", "matched", "GIN w/ SO", "GIN w/ SO"),
    Compared("argnn-so", "matched", "ARGNN w/ SO", "ARGNN w/ SO"),
)
"""GeoF in both presets, the compared methods, and the controls."""
