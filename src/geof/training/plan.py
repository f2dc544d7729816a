"""A run as a tree of settings says it: checked before any data is read, built when it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from geof.data.catalogue import CATALOGUE
from geof.data.graph_sets import scaffold_split
from geof.data.link_splits import random_link_split
from geof.data.records import GraphSet, NodeGraph
from geof.data.signatures import SignatureSettings
from geof.data.splits import GraphSplit, random_node_split, stratified_folds
from geof.errors import ConfigError, nearest
from geof.methods.interface import TaskKind
from geof.methods.registry import method_options, readout_options
from geof.training.settings import BatchSettings, PretrainSettings, TrainSettings
from geof.training.tasks import GraphTask, LinkTask, NodeTask, Task
from geof.training.trainer import Experiment

SECTIONS = ("model", "readout", "signature", "pretraining")
_TRAINING = tuple(f.name for f in fields(TrainSettings))
_BATCHES = tuple(f.name for f in fields(BatchSettings))


@dataclass(frozen=True)
class Plan:
    """What is to be run, apart from the data.

    Attributes:
        task: Node, link or graph.
        encoder: A key of :data:`geof.methods`.
        preset: Where the settings come from, for the record.
        split: Number of the split or fold, or ``"scaffold"``.
        folds: Into how many folds graphs are divided.
        training: How to optimise.
        batches: What a step sees.
        model: The encoder's options, complete.
        readout: The readout's options, complete.
        signature: How signatures are computed.
        pretraining: The stage before the task's.
    """

    task: TaskKind
    encoder: str = "geof"
    preset: str = "none"
    split: str = "0"
    folds: int = 10
    training: TrainSettings = field(default_factory=TrainSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)
    model: Mapping[str, Any] = field(default_factory=dict)
    readout: Mapping[str, Any] = field(default_factory=dict)
    signature: SignatureSettings = field(default_factory=SignatureSettings)
    pretraining: PretrainSettings = field(default_factory=PretrainSettings)

    @classmethod
    def from_tree(
        cls,
        tree: Mapping[str, Any],
        *,
        task: TaskKind,
        encoder: str = "geof",
        preset: str = "none",
        split: str = "0",
        folds: int = 10,
    ) -> Plan:
        """Check a tree of settings.

        Without a ``seed`` among the settings the number of the split is taken, so that splits
        differ in initialisation too.

        Raises:
            ConfigError: For an unknown key, naming the nearest, or a value out of range.
        """
        if task not in get_args(TaskKind):
            raise ConfigError(
                f"Expected a task (got {task!r}). " + nearest(str(task), get_args(TaskKind))
            )
        valid = [*_TRAINING, *_BATCHES, *SECTIONS]
        for key in tree:
            if key not in valid:
                raise ConfigError(f"Unknown setting {key!r}. " + nearest(key, valid))
        sections = {name: tree.get(name) or {} for name in SECTIONS}
        for name, section in sections.items():
            if not isinstance(section, Mapping):
                raise ConfigError(
                    f"Expected '{name}' to be a section of settings, such as {name}.KEY=VALUE "
                    f"(got {section!r})."
                )
        training = {key: tree[key] for key in _TRAINING if key in tree}
        if split.isdecimal():
            training = {"seed": int(split), **training}
        return cls(
            task=task,
            encoder=encoder,
            preset=preset,
            split=split,
            folds=folds,
            training=TrainSettings.from_options(training),
            batches=BatchSettings(**{key: tree[key] for key in _BATCHES if key in tree}),
            model=method_options(encoder, sections["model"]),
            readout=readout_options(encoder, task, sections["readout"]),
            signature=SignatureSettings.from_options(sections["signature"]),
            pretraining=PretrainSettings.from_options(sections["pretraining"]),
        )

    def tree(self) -> dict[str, Any]:
        """Return every setting, given or by default, as a tree that makes this plan again."""
        tree = {
            **asdict(self.training),
            **asdict(self.batches),
            "model": dict(self.model),
            "readout": dict(self.readout),
            "signature": asdict(self.signature),
        }
        if self.pretraining != PretrainSettings():
            tree["pretraining"] = asdict(self.pretraining)
        return tree

    def build_task(self, data: NodeGraph | GraphSet, data_root: Path | None = None) -> Task:
        """Return the task on the split this plan names.

        Args:
            data: What to learn from.
            data_root: Where the scaffold split of ogbg-molhiv is.

        Raises:
            ConfigError: If the data cannot serve the task or there is no such split.
        """
        if (self.task == "graph") != isinstance(data, GraphSet):
            own = "graph" if isinstance(data, GraphSet) else "node"
            raise ConfigError(
                f"Expected '--task' to fit the data, {own} or link for one graph and graph for a "
                f"set of graphs (got {self.task!r} for '{data.name}')."
            )
        seed = self.training.seed
        if isinstance(data, GraphSet):
            return GraphTask(
                data,
                self._graph_split(data, data_root),
                metric=metric_of(data),
                batches=self.batches,
                seed=seed,
                signature=self.signature,
            )
        graph, number = data.graph, self._number()
        if self.task == "link":
            links = random_link_split(graph.edge_index, graph.num_nodes, number)
            return LinkTask(data, links, signature=self.signature, batches=self.batches, seed=seed)
        nodes = random_node_split(graph.num_nodes, number, nodes=graph.y >= 0)
        return NodeTask(data, nodes, signature=self.signature, batches=self.batches, seed=seed)

    def experiment(self, task: Task, **more: Any) -> Experiment:
        """Return the run; ``more`` are further fields of :class:`Experiment`."""
        return Experiment(
            task,
            self.training,
            encoder=self.encoder,
            options=self.model,
            readout=self.readout,
            pretraining=self.pretraining,
            preset=self.preset,
            **more,
        )

    def _number(self) -> int:
        if not self.split.isdecimal():
            raise ConfigError(f"Expected '--split' to be a number from 0 (got {self.split!r}).")
        return int(self.split)

    def _graph_split(self, data: GraphSet, data_root: Path | None) -> GraphSplit:
        """Return a stratified fold of the labelled graphs, or OGB's scaffold split."""
        if self.split == "scaffold":
            if data.name != "ogbg-molhiv":
                raise ConfigError(
                    f"Expected ogbg-molhiv for '--split scaffold' (got '{data.name}')."
                )
            parts = scaffold_split(data_root)
            train, validation, test = parts["train"], parts["valid"], parts["test"]
            return GraphSplit.fixed(
                train, validation, test, size=len(data.graphs), name="OGB scaffold split"
            )
        labels = torch.cat([graph.y.view(-1) for graph in data.graphs])
        labelled = (labels >= 0).nonzero().flatten()
        folds = stratified_folds(labels[labelled], 0, self.folds)
        number = self._number()
        if number >= len(folds):
            raise ConfigError(f"Expected '--split' from 0 to {len(folds) - 1} (got {number}).")
        fold = folds[number]
        return GraphSplit(
            labelled[fold.train], labelled[fold.validation], labelled[fold.test], fold.name
        )


def metric_of(data: GraphSet) -> Literal["accuracy", "roc_auc"]:
    """Return the metric of a set of graphs: a benchmark's own, accuracy otherwise."""
    ranked = data.name in CATALOGUE and CATALOGUE[data.name].metrics == ("ROC-AUC",)
    return "roc_auc" if ranked else "accuracy"
