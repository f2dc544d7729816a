"""Data and splits."""

from geof.data.catalogue import load
from geof.data.node_graphs import covariance_graph, digits_graph
from geof.data.records import GraphSet, NodeGraph
from geof.data.splits import NodeSplit, random_node_split

__all__ = [
    "GraphSet",
    "NodeGraph",
    "NodeSplit",
    "covariance_graph",
    "digits_graph",
    "load",
    "random_node_split",
]
