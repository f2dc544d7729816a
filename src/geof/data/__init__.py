"""Data and splits."""

from geof.data.embedded import covariance_graph, digits_graph
from geof.data.splits import NodeSplit, random_node_split

__all__ = ["NodeSplit", "covariance_graph", "digits_graph", "random_node_split"]
