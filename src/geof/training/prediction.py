"""Open a finished run and apply it to new data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geof.data.records import GraphSet, NodeGraph
from geof.errors import ConfigError, DataError, ShapeError
from geof.model.graph_inputs import GraphInputs
from geof.model.inference import evolve_in_pieces
from geof.signature import SignatureSettings, kept_signature
from geof.training.checkpoint import load_checkpoint
from geof.training.graph_batches import PackedGraphs
from geof.training.networks import GeoFEncoder, Network, NetworkSpec


@dataclass(frozen=True)
class Run:
    """A finished run, ready to predict.

    Attributes:
        network: With the chosen epoch's parameters, in evaluation mode.
        spec: What it was built from.
        class_names: The label of each class index.
        signature: How its signatures are computed.
        folder: Where it was read from.
        columns: Names of the columns of identifiers and SMILES it was trained with.
    """

    network: Network
    spec: NetworkSpec
    class_names: tuple[str, ...]
    signature: SignatureSettings
    folder: Path
    columns: Mapping[str, str | None]

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Read a run folder; nothing but its own files is needed.

        Raises:
            DataError: If a file is missing, damaged or does not fit the others.
        """
        try:
            config = json.loads((folder / "config.json").read_text())
            spec = NetworkSpec(**config["network"])
            signature = _signature_settings(config["signature"])
            names = tuple(str(name) for name in config.get("class_names", ()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"Expected a run folder of 'geof train' at '{folder}' ({error}). Check the path."
            ) from error
        try:
            network = Network(spec)
        except ConfigError as error:
            raise DataError(f"Expected '{folder}' to describe a network ({error}).") from error
        load_checkpoint(folder / "checkpoint.safetensors", network)
        network.eval()
        names = names or tuple(map(str, range(spec.num_classes)))
        columns = dict(config.get("columns", {}))
        return cls(network, spec, names, signature, folder, columns)


@dataclass(frozen=True)
class Predictions:
    """Class probabilities, or link probabilities in a single column.

    Attributes:
        ids: One identifier per row; a pair of them for links.
        columns: Names of the probability columns.
        probability: ``(rows, columns)``.
    """

    ids: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    probability: Tensor

    def labels(self) -> list[str]:
        """Return the most probable class of each row; ``1`` or ``0`` for links."""
        if len(self.columns) == 1:
            return [str(int(p >= 0.5)) for p in self.probability[:, 0].tolist()]
        return [self.columns[i] for i in self.probability.argmax(-1).tolist()]


@torch.no_grad()
def predict_nodes(run: Run, data: NodeGraph, piece_size: int | None = None) -> Predictions:
    """Return the class probabilities of every node of a graph.

    Args:
        run: Trained for the node task.
        data: The graph.
        piece_size: For graphs that fill the memory: compute in pieces of so many neighbours, see
            :func:`geof.model.inference.evolve_in_pieces`. GeoF only.
    """
    _require_task(run, "node")
    inputs = _inputs(run, data)
    encoder = run.network.encoder
    if piece_size is None:
        logits = run.network(inputs)
    elif isinstance(encoder, GeoFEncoder):
        states = evolve_in_pieces(
            encoder.geof, inputs.x, inputs.edges, inputs.signature, piece_size=piece_size
        )
        logits = run.network.readout(states)
    else:
        raise ConfigError(
            f"Expected a GeoF run for 'piece_size' (got {run.spec.encoder!r}). Leave it out."
        )
    ids = data.node_ids or tuple(map(str, range(data.graph.num_nodes)))
    return Predictions(tuple((name,) for name in ids), run.class_names, logits.softmax(-1))


@torch.no_grad()
def predict_pairs(run: Run, data: NodeGraph, pairs: Tensor) -> Predictions:
    """Return the link probability of candidate pairs ``(2, P)``, given all edges of the graph."""
    _require_task(run, "link")
    logits = run.network(_inputs(run, data), pairs)
    ids = data.node_ids or tuple(map(str, range(data.graph.num_nodes)))
    named = tuple((ids[u], ids[v]) for u, v in pairs.t().tolist())
    return Predictions(named, ("link",), logits.sigmoid().unsqueeze(-1))


@torch.no_grad()
def predict_graphs(run: Run, data: GraphSet, batch_size: int = 256) -> Predictions:
    """Return the class probabilities of every graph of a set."""
    _require_task(run, "graph")
    ids = data.graph_ids or tuple(map(str, range(len(data.graphs))))
    named = tuple((name,) for name in ids)
    if not data.graphs:
        return Predictions(named, run.class_names, torch.empty(0, len(run.class_names)))
    _require_width(run, data.graphs[0].x)
    packed = PackedGraphs.pack(data.graphs)
    signature = packed.sign(run.signature).values
    logits = [
        run.network(packed.batch(chosen, signature))
        for chosen in torch.arange(len(packed)).split(batch_size)
    ]
    return Predictions(named, run.class_names, torch.cat(logits).softmax(-1))


def _signature_settings(record: Mapping[str, Any]) -> SignatureSettings:
    """Return the settings behind a signature's record; exact ones have no probes and no seed."""
    names = ("walk_length", "degree", "method", "probes", "seed")
    return SignatureSettings(**{n: record[n] for n in names if record[n] is not None})


def _inputs(run: Run, data: NodeGraph) -> GraphInputs:
    graph = data.graph
    _require_width(run, graph.x)
    signature = kept_signature(graph.edge_index, graph.num_nodes, run.signature)
    return GraphInputs.build(graph.x, graph.edge_index, signature.values)


def _require_width(run: Run, x: Tensor) -> None:
    if x.size(1) != run.spec.in_channels:
        raise ShapeError(
            f"Expected {run.spec.in_channels} features, as the run in '{run.folder}' was trained "
            f"with (got {x.size(1)}). Give data with the same columns."
        )


def _require_task(run: Run, kind: str) -> None:
    if run.spec.task != kind:
        raise DataError(
            f"Expected a run trained for the {kind} task (got '{run.folder}', trained for "
            f"{run.spec.task})."
        )


def table_of(predictions: Predictions, id_names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the predictions as columns: identifiers, label, one probability per class."""
    table: dict[str, list[Any]] = {
        name: [row[i] for row in predictions.ids] for i, name in enumerate(id_names)
    }
    table["prediction"] = predictions.labels()
    for i, name in enumerate(predictions.columns):
        table[f"probability_{name}"] = predictions.probability[:, i].tolist()
    return table
