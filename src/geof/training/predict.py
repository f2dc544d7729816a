"""Open a run and apply it: predictions and embeddings of new data, scores on its own split."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch_geometric.nn import global_mean_pool

from geof.data.batching import PackedGraphs
from geof.data.columns import Schema, read_schema
from geof.data.link_splits import LinkSplit
from geof.data.records import EdgeSizes, GraphSet, NodeGraph, carried_by
from geof.data.sources import DataConfig
from geof.data.splits import DatasetIdentity, GraphSplit, NodeSplit
from geof.data.targets import TargetKind, labelled
from geof.devices import resolve_device
from geof.errors import ConfigError, DataError, GeofError, ShapeError
from geof.geometry import log_determinant
from geof.io import read_yaml
from geof.methods.geof import GeoFEncoder
from geof.methods.interface import GraphInputs, InputShape
from geof.nn.geof import evolve_in_pieces
from geof.progress import tracked
from geof.training.checkpoint import load_tensors, read_tensors
from geof.training.config import RunConfig
from geof.training.network import Network
from geof.training.objective import Objective
from geof.training.run_folder import CHECKPOINT, describe, read_config, upgraded
from geof.training.stages import TrainingConfig
from geof.training.tasks import (
    GraphTask,
    LinkTask,
    NodeTask,
    Scores,
    Task,
    graph_label,
    metric_of,
    node_signature,
)
from geof.training.trainer import Trainer, sums_in_fixed_order

AnyPart: TypeAlias = Literal["train", "validation", "test"]

_NOWHERE = Path("<no folder>")
"""Stands for the folder of a run that was never written."""


@dataclass(frozen=True)
class Run:
    """A run, ready to be applied.

    Attributes:
        network: With the chosen epoch's parameters, in evaluation mode.
        config: What it was trained with; files of data are named where ``config.json`` is there.
        shape: Sizes of the data it was trained on.
        class_names: The label of each class index, or the name of each target.
        objective: What the network's outputs mean.
        path: The checkpoint it was read from.
        about: All the checkpoint's header says: what ``config.json`` does, and the epoch.
        finished: ``False`` while the folder around the checkpoint has no result yet: the network
            is then that of the best epoch so far.
    """

    network: Network
    config: RunConfig
    shape: InputShape
    class_names: tuple[str, ...]
    objective: Objective
    path: Path
    about: Mapping[str, Any]
    finished: bool

    @classmethod
    def open(cls, path: Path | str, device: str | None = "cpu") -> Run:
        """Read a run folder or a checkpoint; nothing but the checkpoint itself is needed.

        Args:
            path: The folder or the file.
            device: Where to apply it, whatever it was trained on; ``None`` or ``"auto"`` is a CUDA
                device where there is one. Answers are on the CPU.

        Raises:
            DataError: If there is none (yet), it is damaged, or it does not describe a run.
            DeviceError: If the device is not there.
        """
        wanted = resolve_device(device)
        checkpoint = _checkpoint_at(Path(path))
        tensors, header = read_tensors(checkpoint)
        try:
            about = upgraded(header)
            config = RunConfig.from_dict(about["run"])
            shape = InputShape(**about["shape"])
            network = Network(config, shape)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"Expected '{checkpoint}' to be a checkpoint of 'geof train', whose header "
                f"describes a network ({type(error).__name__}: {error})."
            ) from error
        except ConfigError as error:
            raise DataError(
                f"Expected to rebuild the network of '{checkpoint}'. {error}"
            ) from error
        load_tensors(checkpoint, tensors, network)
        network.to(wanted)
        beside = checkpoint.parent
        finished = (beside / "result.json").exists() or not (beside / "config.json").exists()
        config = replace(config, data=_data_config(beside, config.data))
        return cls._of(network, config, checkpoint, about, finished)

    @classmethod
    def of(cls, trainer: Trainer) -> Run:
        """Return what a trainer has trained, without reading a file."""
        about = describe(trainer.config, trainer.task, trainer.schema)
        best = trainer.progress.best
        if best is None:
            raise ConfigError("Expected a trainer that has trained (got one before 'fit').")
        about["epoch"] = best.epoch
        path = (trainer.out or _NOWHERE) / CHECKPOINT
        return cls._of(trainer.network, trainer.config, path, about, True)

    @classmethod
    def _of(
        cls, network: Network, config: RunConfig, path: Path, about: dict[str, Any], finished: bool
    ) -> Run:
        network.eval()
        shape = network.shape
        names = tuple(map(str, about.get("class_names") or range(shape.num_classes)))
        objective = Objective.recorded(about, names)
        return cls(network, config, shape, objective.names, objective, path, about, finished)

    def predict_nodes(self, data: NodeGraph, piece_size: int | None = None) -> Predictions:
        """Return the class probabilities of every node; see :func:`predict_nodes`."""
        return predict_nodes(self, data, piece_size)

    def predict_pairs(self, data: NodeGraph, pairs: Tensor) -> Predictions:
        """Return the link probability of pairs ``(2, P)``; see :func:`predict_pairs`."""
        return predict_pairs(self, data, pairs)

    def predict_graphs(self, data: GraphSet, batch_size: int = 256) -> Predictions:
        """Return the class probabilities of every graph; see :func:`predict_graphs`."""
        return predict_graphs(self, data, batch_size)

    def embed_nodes(self, data: NodeGraph) -> Embeddings:
        """Return the states of every node; see :func:`embed_nodes`."""
        return embed_nodes(self, data)

    def embed_graphs(self, data: GraphSet, batch_size: int = 256) -> Embeddings:
        """Return a vector per graph; see :func:`embed_graphs`."""
        return embed_graphs(self, data, batch_size)

    def evaluate_part(self, data: NodeGraph | GraphSet, part: AnyPart = "test") -> Scores:
        """Score a part of the run's own split; see :func:`evaluate_part`."""
        return evaluate_part(self, data, part)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        held = next(chain(self.network.parameters(), self.network.buffers()), None)
        return torch.device("cpu") if held is None else held.device

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: the network on the CPU, to be opened on any machine."""
        network = self.network if self.device.type == "cpu" else deepcopy(self.network).cpu()
        return {**self.__dict__, "network": network}

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.path.parent

    @property
    def epoch(self) -> int:
        """The epoch validation chose."""
        return int(self.about.get("epoch", 0))

    @property
    def schema(self) -> Schema | None:
        """What features of a table or an array go through; ``None`` for others.

        Raises:
            DataError: If it was written by another version.
        """
        stored = self.about.get("schema")
        return None if stored is None else read_schema(json.dumps(stored))


def _data_config(folder: Path, default: DataConfig) -> DataConfig:
    """Return what names a run's data, from the folder around its checkpoint if that is there."""
    try:
        if (folder / "settings.yaml").is_file():  # of an earlier version
            return DataConfig.of(read_yaml(folder / "settings.yaml").get("data") or {})
        if (folder / "config.json").is_file():
            return DataConfig.of(read_config(folder)["run"]["data"])
    except (GeofError, KeyError, TypeError):
        pass  # the checkpoint alone serves other data
    return default


def _checkpoint_at(path: Path) -> Path:
    """Return the checkpoint a path means: itself, or the one of a run folder."""
    if path.is_file():
        return path
    checkpoint = path / CHECKPOINT
    if checkpoint.is_file():
        return checkpoint
    if (path / "config.json").is_file():
        raise DataError(
            f"Expected a checkpoint in '{path}', but the run is not finished and has not saved one "
            f"yet. Go on with: geof train --resume {shlex.quote(str(path))}"
        )
    raise DataError(
        f"Expected a run folder of 'geof train' or a checkpoint at '{path}' (there is "
        f"{'no ' + CHECKPOINT if path.is_dir() else 'nothing'}). Check the path."
    )


@dataclass(frozen=True)
class Predictions:
    """Class probabilities, link probabilities in a single column, or numbers.

    Attributes:
        ids: One identifier per row; a pair of them for links.
        columns: Names of the probability columns, or of the targets.
        probability: ``(rows, columns)``; for regression the numbers themselves, in their unit.
        kind: What is predicted.
        part: The part of the run's split each row was in, ``""`` for none; ``None`` for other data.
        truth: Labels or targets where the data have any, as the data have them; -1 for none.
    """

    ids: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    probability: Tensor
    kind: TargetKind = "classes"
    part: tuple[str, ...] | None = None
    truth: Tensor | None = None

    def labels(self) -> list[str]:
        """Return the most probable class of each row; ``1`` or ``0`` for links."""
        if len(self.columns) == 1:
            return [str(int(p >= 0.5)) for p in self.probability[:, 0].tolist()]
        return [self.columns[i] for i in self.probability.argmax(-1).tolist()]


def predict_nodes(run: Run, data: NodeGraph, piece_size: int | None = None) -> Predictions:
    """Return the class probabilities of every node of a graph.

    Args:
        run: Trained for the node task.
        data: The graph.
        piece_size: For graphs that fill the memory: compute in pieces of so many neighbours, see
            :func:`geof.nn.geof.evolve_in_pieces`. GeoF only.
    """
    _require_task(run, "node")
    inputs = _inputs(run, data)
    with _inference(run):
        logits = _node_logits(run, inputs, piece_size).to(inputs.signature.dtype).cpu()
    return _predictions(run, data, node_ids(data), data.graph.y, logits)


def predict_pairs(run: Run, data: NodeGraph, pairs: Tensor) -> Predictions:
    """Return the link probability of candidate pairs ``(2, P)``, given all edges of the graph.

    A pair's truth is 1 where the graph has the edge and 0 where the run's split says it has none;
    of any other pair it is not known.
    """
    _require_task(run, "link")
    inputs, ids = _inputs(run, data), node_ids(data)
    with _inference(run):
        logits = run.network(inputs, pairs.to(run.device)).cpu()
    named = tuple((ids[u], ids[v]) for u, v in pairs.t().tolist())
    part, truth = _known_of_pairs(run, data, pairs)
    values = logits.sigmoid().unsqueeze(-1)
    return Predictions(named, ("link",), values, part=part, truth=truth)


def _known_of_pairs(
    run: Run, data: NodeGraph, pairs: Tensor
) -> tuple[tuple[str, ...] | None, Tensor]:
    """Return the part of each pair in the run's split, and whether it is an edge (-1: unknown)."""
    wanted, edges = _codes(pairs, data), _codes(data.graph.edge_index, data)
    truth = torch.where(torch.isin(wanted, edges), 1, -1)
    split = _own_split(run, data, LinkSplit)
    if split is None:
        return None, truth
    parts = [""] * len(wanted)
    for part in ("train", "validation", "test"):
        for name in (part, f"{part}_negatives"):
            if (held := getattr(split, name, None)) is None:
                continue
            found = torch.isin(wanted, _codes(held, data))
            truth[found & (truth < 0)] = 0
            for row in found.nonzero().flatten().tolist():
                parts[row] = part
    return tuple(parts), truth


def _codes(pairs: Tensor, data: NodeGraph) -> Tensor:
    """Return one number for each pair of nodes, the same for both directions."""
    low, high = pairs.cpu().sort(dim=0).values
    codes: Tensor = low * data.graph.x.size(0) + high
    return codes


def predict_graphs(run: Run, data: GraphSet, batch_size: int = 256) -> Predictions:
    """Return the class probabilities of every graph of a set."""
    _require_task(run, "graph")
    if not data.graphs:
        return Predictions((), run.class_names, torch.empty(0, len(run.class_names)))
    with _inference(run):
        logits = [run.network(inputs).cpu() for inputs in _batches(run, data, batch_size)]
    y = torch.cat([graph_label(graph.y) for graph in data.graphs])
    return _predictions(run, data, graph_ids(data), y, torch.cat(logits))


def _predictions(
    run: Run, data: NodeGraph | GraphSet, ids: Sequence[str], y: Tensor, outputs: Tensor
) -> Predictions:
    """Return the predictions of all rows, with part and truth where they are known."""
    same = (data.class_names or data.targets.names) == run.class_names
    return Predictions(
        tuple((name,) for name in ids),
        run.class_names,
        run.objective.values(outputs),
        run.objective.kind,
        _parts_of(run, data),
        y if same and bool(labelled(y).any()) else None,
    )


def _parts_of(run: Run, data: NodeGraph | GraphSet) -> tuple[str, ...] | None:
    """Return the part every row of the run's own data was in, ``None`` for other data."""
    split = _own_split(run, data, GraphSplit if isinstance(data, GraphSet) else NodeSplit)
    if split is None:
        return None
    parts = [""] * DatasetIdentity.of(data).size
    for part in ("train", "validation", "test"):
        for row in getattr(split, part).tolist():
            parts[row] = part
    return tuple(parts)


def _own_split(
    run: Run, data: NodeGraph | GraphSet, kind: type[NodeSplit | GraphSplit | LinkSplit]
) -> NodeSplit | GraphSplit | LinkSplit | None:
    """Return the split of the run's own data, ``None`` for other data."""
    file = run.folder / "split.npz"
    own = run.about.get("content_hash") in (data.content_hash, None) and data.content_hash
    if not own or not file.is_file():
        return None
    return kind.load(file, replace(DatasetIdentity.of(data), name=str(run.about.get("dataset"))))


@dataclass(frozen=True)
class Embeddings:
    """Vectors for nodes or graphs, and the geometry behind them where the encoder has one.

    Attributes:
        ids: One identifier per row.
        vectors: ``(rows, d)``.
        coordinates: ``(n, B, m (m + 1) / 2)``, the coordinates :math:`Z_i` of every node's frame
            after the last step; ``None`` unless the encoder is GeoF.
        graph_of_node: ``(n,)``, the row of each node's graph; ``None`` for rows that are nodes.
    """

    ids: tuple[str, ...]
    vectors: Tensor
    coordinates: Tensor | None = None
    graph_of_node: Tensor | None = None

    @property
    def log_determinant(self) -> Tensor | None:
        r""":math:`\log\det L_i` of every node, ``(n,)``, summed over its blocks."""
        return None if self.coordinates is None else log_determinant(self.coordinates).sum(-1)


def embed_nodes(run: Run, data: NodeGraph) -> Embeddings:
    """Return the states the encoder gives every node of a graph, from all its edges.

    Args:
        run: Trained for the node or the link task.
        data: The graph.
    """
    if run.config.task == "graph":
        _require_task(run, "node or link")
    inputs = _inputs(run, data)
    with _inference(run):
        states, coordinates = _encode(run, inputs)
        states, coordinates = states.cpu(), None if coordinates is None else coordinates.cpu()
    return Embeddings(node_ids(data), states, coordinates)


def embed_graphs(run: Run, data: GraphSet, batch_size: int = 256) -> Embeddings:
    """Return a vector per graph: its nodes' states pooled (and normalised, where the run does).

    It is what the MLP of :class:`~geof.nn.GraphReadout` gets; for a method whose own readout
    does not pool states, their mean.
    """
    _require_task(run, "graph")
    vectors, coordinates = [], []
    with _inference(run):
        for inputs in _batches(run, data, batch_size):
            states, own = _encode(run, inputs)
            pool = getattr(run.network.readout, "pooled", global_mean_pool)
            pooled = pool(states, inputs.batch, inputs.num_graphs)
            vectors.append(pooled.to(states.dtype).cpu())
            coordinates.append(None if own is None else own.cpu())
    sizes = torch.tensor([graph.num_nodes for graph in data.graphs])
    return Embeddings(
        graph_ids(data),
        torch.cat(vectors),
        None
        if coordinates[0] is None
        else torch.cat([own for own in coordinates if own is not None]),
        torch.repeat_interleave(torch.arange(len(sizes)), sizes),
    )


def evaluate_part(run: Run, data: NodeGraph | GraphSet, part: AnyPart = "test") -> Scores:
    """Score a run on a part of the split it was trained with, read from its folder.

    On the run's own data the test part gives the metrics of ``result.json``. The training part is
    scored like the test part, without dropout; the negatives of training links are those of epoch
    0, which training does not use.

    Args:
        run: From a folder with its split.
        data: What it was trained on.
        part: Which part.

    Raises:
        DataError: If the data are not those the split was made for.
    """
    task = stored_task(run, data)
    if part == "train":
        _put_training_in_place_of_test(task)
    with _inference(run):
        return task.evaluate(run.network, "validation" if part == "validation" else "test")


def part_predictions(
    run: Run, data: NodeGraph | GraphSet, part: AnyPart = "test", *, task: Task | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`evaluate_part` scores: the probabilities of a part beside its labels.

    Args:
        run: From a folder with its split.
        data: What it was trained on.
        part: Which part.
        task: From :func:`stored_task`, where it is at hand already.

    Returns:
        Probabilities ``(R, C)`` or numbers ``(R, T)``, labels ``(R,)`` or targets ``(R, T)``, and
        which nodes or graphs the rows are ``(R,)``; for links the probabilities ``(P,)`` of a link,
        whether there is one, and the pairs ``(2, P)``. Messages of a link run pass along training
        edges alone.

    Raises:
        DataError: If the data are not those the split was made for.
    """
    task = stored_task(run, data) if task is None else task
    split: Any = task.split
    rows = {"train": split.train, "validation": split.validation, "test": split.test}[part]
    with _inference(run):
        if isinstance(task, LinkTask):
            drawn = part == "train"
            negatives = (
                split.training_negatives(0) if drawn else getattr(split, f"{part}_negatives")
            )
            pairs = torch.cat([rows, negatives], dim=1)
            labels = (torch.arange(pairs.size(1)) < rows.size(1)).long()
            logits = run.network(task.inputs, pairs.to(run.device)).cpu()
            return logits.sigmoid(), labels, pairs
        if isinstance(task, NodeTask):
            outputs = run.network(task.inputs).cpu()[rows]
            return run.objective.values(outputs), task.data.graph.y[rows], rows
        assert isinstance(task, GraphTask)
        pieces = rows.split(task.batch_size)  # as evaluation does, to the same bits
        logits = torch.cat([run.network(task.inputs_of(piece)).cpu() for piece in pieces])
        return run.objective.values(logits), task.labels[rows], rows


def stored_task(run: Run, data: NodeGraph | GraphSet) -> Task:
    """Return the task a run was trained on, with the split of its folder, on the run's device.

    Raises:
        DataError: If the data are not those the split was made for.
    """
    task = _stored_task(run, data)
    task.to(run.device)
    return task


def _stored_task(run: Run, data: NodeGraph | GraphSet) -> Task:
    _require_same_content(run, data)
    require_edges(run.shape, data, f"the run in '{run.folder}'")
    # The content decides: a file may have been renamed.
    identity = replace(DatasetIdentity.of(data), name=str(run.about.get("dataset")))
    path, signature = run.folder / "split.npz", run.config.signature
    if isinstance(data, GraphSet):
        _require_task(run, "graph")
        _require_width(run, data.graphs[0].x)
        return GraphTask(
            data,
            GraphSplit.load(path, identity),
            metric=metric_of(data),
            training=run.config.training,
            signature=signature,
        )
    _require_width(run, data.graph.x)
    if run.config.task == "link":
        links, training = LinkSplit.load(path, identity), _judged_as(run)
        return LinkTask(data, links, signature=signature, training=training)
    _require_task(run, "node")
    nodes, training = NodeSplit.load(path, identity), _judged_as(run)
    return NodeTask(data, nodes, signature=signature, training=training)


def _judged_as(run: Run) -> TrainingConfig:
    """Return what decides about a run's scores and nothing else: no sampling, no hidden edges."""
    training = run.config.training
    return TrainingConfig(metric=training.metric, class_weights=training.class_weights)


def _put_training_in_place_of_test(task: Task) -> None:
    """Change what a task takes for its test part; what it passes messages along stays."""
    split = task.split
    if isinstance(split, LinkSplit):
        negatives = split.training_negatives(0)
        task.split = replace(split, test=split.train, test_negatives=negatives)
    else:
        task.split = replace(split, train=split.test, test=split.train)


@contextmanager
def _inference(run: Run) -> Iterator[None]:
    """Compute as the run did when it read its test part: to the same bits."""
    fixed = sums_in_fixed_order(run.config.training.deterministic, run.device)
    with torch.no_grad(), fixed, run.network.autocast():
        yield


def _node_logits(run: Run, inputs: GraphInputs, piece_size: int | None) -> Tensor:
    """Return the logits of all nodes, computed in pieces if so wanted."""
    encoder = run.network.encoder
    if piece_size is None:
        logits: Tensor = run.network(inputs)
    elif isinstance(encoder, GeoFEncoder):
        states = evolve_in_pieces(
            encoder.geof,
            inputs.x,
            encoder.edges_of(inputs),
            inputs.signature,
            piece_size=piece_size,
        )
        logits = run.network.readout(states)
    else:
        raise ConfigError(
            f"Expected a GeoF run for 'piece_size' (got {run.config.method!r}). Leave it out."
        )
    return logits


def _encode(run: Run, inputs: GraphInputs) -> tuple[Tensor, Tensor | None]:
    """Return the encoder's states, and the coordinates of GeoF's frames."""
    encoder = run.network.encoder
    if not isinstance(encoder, GeoFEncoder):
        return run.network.encode(inputs).states, None
    state = encoder.geof.evolve(inputs.x, encoder.edges_of(inputs), inputs.signature)
    return state.output, state.coordinates


def _batches(run: Run, data: GraphSet, batch_size: int) -> Iterator[GraphInputs]:
    _require_width(run, data.graphs[0].x)
    require_edges(run.shape, data, f"the run in '{run.folder}'")
    packed = PackedGraphs.pack(data.graphs, edges=data.edge_sizes is not None)
    signature = packed.sign(run.config.signature, directed=data.directed).values.to(run.device)
    packed = packed.to(run.device)
    pieces = torch.arange(len(packed)).split(batch_size)
    for chosen in tracked("graphs", pieces, len(pieces)):
        yield packed.batch(chosen, signature)


def node_ids(data: NodeGraph) -> tuple[str, ...]:
    """Return the identifiers of a graph's nodes, their numbers where it has none."""
    return data.node_ids or tuple(map(str, range(data.graph.num_nodes)))


def graph_ids(data: GraphSet) -> tuple[str, ...]:
    """Return the identifiers of a set's graphs, their numbers where it has none."""
    return data.graph_ids or tuple(map(str, range(len(data.graphs))))


def _inputs(run: Run, data: NodeGraph) -> GraphInputs:
    graph = data.graph
    _require_width(run, graph.x)
    require_edges(run.shape, data, f"the run in '{run.folder}'")
    signature = node_signature(data, run.config.signature)
    inputs = GraphInputs.build(graph.x, graph.edge_index, signature.values, **carried_by(data))
    return inputs.to(run.device)


def _require_same_content(run: Run, data: NodeGraph | GraphSet) -> None:
    trained = run.about.get("content_hash")
    if trained is not None and trained != data.content_hash:
        raise DataError(
            f"Expected the data that '{run.folder}' was trained on, for which its split was made "
            f"(content {trained[:12]}; got '{data.name}' with {data.content_hash[:12]}). Give the "
            "same data, or apply the run to others with 'geof predict'."
        )


def _require_width(run: Run, x: Tensor) -> None:
    if x.size(1) != run.shape.in_channels:
        raise ShapeError(
            f"Expected {run.shape.in_channels} features, as the run in '{run.folder}' was trained "
            f"with (got {x.size(1)}). Give data with the same columns."
        )


def require_edges(shape: InputShape, data: NodeGraph | GraphSet, what: str) -> None:
    """Require edges that carry as many categories and numbers as in training."""
    sizes = data.edge_sizes or EdgeSizes()
    wanted, got = (
        f"{len(categories)} categories and {channels} numbers"
        for categories, channels in ((shape.edge_categories, shape.edge_channels), sizes)
    )
    if wanted != got:
        raise DataError(
            f"Expected edges that carry {wanted}, as {what} was trained with (got {got} in "
            f"'{data.name}'). Give edges with the same columns, with edge_columns='use' "
            "(--edge-columns use) where they are not named."
        )


def _require_task(run: Run, kind: str) -> None:
    if run.config.task != kind:
        raise DataError(
            f"Expected a run trained for the {kind} task (got '{run.folder}', trained for "
            f"{run.config.task})."
        )


def table_of(predictions: Predictions, id_names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the predictions as columns: identifiers, part, truth, label, probabilities.

    Several targets have a column of truth and prediction each; what is not known is empty.
    """
    table: dict[str, list[Any]] = {
        name: [row[i] for row in predictions.ids] for i, name in enumerate(id_names)
    }
    if predictions.part is not None:
        table["part"] = list(predictions.part)
    values, truth = predictions.probability, predictions.truth
    if predictions.kind == "classes":
        if truth is not None:
            names = predictions.columns if len(predictions.columns) > 1 else ("0", "1")
            table["truth"] = [names[i] if i >= 0 else "" for i in truth.tolist()]
        table["prediction"] = predictions.labels()
    else:
        several = len(predictions.columns) > 1
        binary = predictions.kind == "binary"
        for i, name in enumerate(predictions.columns):
            own = f"_{name}" if several else ""
            if truth is not None:
                table["truth" + own] = [_cell(value, binary) for value in truth[:, i].tolist()]
            said = (values[:, i] >= 0.5).double() if binary else values[:, i]
            table["prediction" + own] = [_cell(value, binary) for value in said.tolist()]
    if predictions.kind != "regression":
        for i, name in enumerate(predictions.columns):
            table[f"probability_{name}"] = values[:, i].tolist()
    return table


def _cell(value: float, whole: bool) -> float | int | None:
    """Return a number for a table, ``None`` where it is missing."""
    if value != value:
        return None
    return int(value) if whole else value
