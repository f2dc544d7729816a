"""The demonstration behind ``geof demo``: embedded data, no network, a few minutes on a laptop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn.models import GCN

from geof.data import covariance_graph, digits_graph, random_node_split
from geof.data.files import write_json
from geof.kernels import Neighbourhoods
from geof.model import GeoF, NodeReadout
from geof.signature import structural_signature
from geof.training.loop import EpochReport, NodeResult, NodeTask, TrainSettings, fit_nodes

# One step with weights so nearly uniform that they tell nothing: the setting of Proposition 2.
_UNIFORM = {"steps": 1, "temperature": 1e6, "structure_aware": False}


class NodeNetwork(nn.Module):
    """A GeoF encoder with its linear readout.

    Args:
        task: Gives the sizes.
        **options: Arguments of :class:`~geof.model.GeoF`.
    """

    def __init__(self, task: NodeTask, **options: Any) -> None:
        super().__init__()
        self.encoder = GeoF(task.x.size(1), signature_channels=task.signature.size(1), **options)
        self.readout = NodeReadout(self.encoder.hidden_channels, task.num_classes)

    def forward(self, task: NodeTask) -> Tensor:
        """Return the class logits of every node."""
        logits: Tensor = self.readout(self.encoder(task.x, task.edges, task.signature))
        return logits


class GcnNetwork(nn.Module):
    """PyG's GCN of width 64 with dropout 0.5, as usually written.

    Args:
        task: Gives the sizes.
        layers: Number of convolutions.
    """

    def __init__(self, task: NodeTask, layers: int = 2) -> None:
        super().__init__()
        self.gcn = GCN(task.x.size(1), 64, layers, task.num_classes, dropout=0.5)

    def forward(self, task: NodeTask) -> Tensor:
        """Return the class logits of every node."""
        logits: Tensor = self.gcn(task.x, task.edge_index)
        return logits


@dataclass(frozen=True)
class Contestant:
    """One row of the demonstration's table."""

    dataset: str
    model: str
    network: type[NodeNetwork | GcnNetwork]
    options: dict[str, Any]
    epochs: int


CONTESTANTS = (
    Contestant("digits", "GCN", GcnNetwork, {"layers": 2}, 100),
    Contestant("digits", "GeoF", NodeNetwork, {}, 50),
    Contestant("covariance", "GCN", GcnNetwork, {"layers": 1}, 60),
    Contestant("covariance", "GeoF w/o SF", NodeNetwork, {"feedback": "none", **_UNIFORM}, 60),
    Contestant("covariance", "GeoF", NodeNetwork, _UNIFORM, 60),
)


@dataclass(frozen=True)
class Row:
    """Mean and standard deviation over the splits, in percent."""

    dataset: str
    model: str
    validation: float
    test: float
    test_deviation: float
    splits: int
    seconds_per_epoch: float
    parameters: int


def run_demo(
    out: Path,
    splits: int,
    on_start: Callable[[Contestant, int], None],
    on_epoch: Callable[[EpochReport], None],
) -> list[Row]:
    """Train every contestant on every split, write one run folder each and a summary.

    Args:
        out: Folder for the runs.
        splits: Number of random 60/20/20 splits.
        on_start: Called before each run with the contestant and the split's seed.
        on_epoch: Called after each epoch.
    """
    graphs = {"digits": digits_graph(), "covariance": covariance_graph(centres=400)}
    tasks = {name: _tasks(name, graph, splits) for name, graph in graphs.items()}
    rows = []
    for contestant in CONTESTANTS:
        results = []
        for seed, task in enumerate(tasks[contestant.dataset]):
            on_start(contestant, seed)
            _, result = fit_nodes(
                contestant.network,
                contestant.options,
                task,
                TrainSettings(epochs=contestant.epochs, seed=seed),
                model_name=contestant.model,
                preset="demo",
                out=out / f"{contestant.dataset}-{_slug(contestant.model)}-split{seed}",
                on_epoch=on_epoch,
            )
            results.append(result)
        rows.append(_summarise(contestant, results))
    write_json(out / "summary.json", [vars(row) for row in rows])
    return rows


def _tasks(name: str, graph: Data, splits: int) -> list[NodeTask]:
    signature = structural_signature(graph.edge_index, graph.num_nodes)
    edges = Neighbourhoods.from_edge_index(graph.edge_index, graph.num_nodes)
    labelled = graph.y >= 0
    return [
        NodeTask(
            dataset=name,
            x=graph.x,
            edge_index=graph.edge_index,
            edges=edges,
            signature=signature.values,
            labels=graph.y,
            split=random_node_split(graph.num_nodes, seed, nodes=labelled),
        )
        for seed in range(splits)
    ]


def _summarise(contestant: Contestant, results: list[NodeResult]) -> Row:
    tests = [result.test for result in results]
    mean = sum(tests) / len(tests)
    spread = sum((test - mean) ** 2 for test in tests) / max(len(tests) - 1, 1)
    return Row(
        dataset=contestant.dataset,
        model=contestant.model,
        validation=sum(result.validation for result in results) / len(results),
        test=mean,
        test_deviation=math.sqrt(spread),
        splits=len(results),
        seconds_per_epoch=sum(result.seconds_per_epoch for result in results) / len(results),
        parameters=results[0].parameters,
    )


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower()).replace("--", "-")
