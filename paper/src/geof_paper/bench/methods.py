"""The registered methods with their presets, trained by the same step on the same pieces.

Everything is the method's own, as ``geof train`` would build it: encoder and readout by the default
preset for the task and the benchmark, dropout, losses of its own, what it does after an epoch. The
bench's own are what a step sees (so that all see the same), Adam at a constant learning rate (the
preset's), and signatures that are drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.methods.interface import (
    Encoding,
    GraphInputs,
    HasEpochEnd,
    HasPretext,
    TaskKind,
    TrainingView,
)
from geof.methods.presets import default_preset, load_preset
from geof.training.metrics import accuracy
from geof.training.network import Network, NetworkSpec
from geof.training.plan import Plan
from geof_paper.bench.catalogue import Contestant, Shape, Stage
from geof_paper.bench.problems import SIGNATURE_CHANNELS, Facts, Piece, Problem


def plan_of(method: str, task: TaskKind, benchmark: str | None) -> Plan:
    """Return the settings of a method's default preset.

    Args:
        method: A registered method.
        task: Node or graph.
        benchmark: Whose settings; ``None`` for those that all share.
    """
    preset = default_preset(method)
    tree = load_preset(method, preset, task, benchmark)
    return Plan.from_tree(tree, task=task, encoder=method, preset=preset)


def stage_of(plan: Plan) -> Stage:
    """Return what is timed: where the encoder is trained, which is where the time goes."""
    frozen = plan.pretraining.epochs > 0 and plan.pretraining.freeze
    return "pretext" if frozen else "supervised"


class MethodTraining:
    """A registered method on a problem, ready for epochs.

    As in ``geof train``, the inputs of a graph in full batch are built once, those of mini-batches
    in every epoch; what a method keeps with a graph lives as long as the data, so that the first
    epoch pays for it.

    Args:
        contestant: Who.
        problem: On what.
    """

    def __init__(self, contestant: Contestant, problem: Problem) -> None:
        torch.manual_seed(0)
        self.problem = problem
        self.plan = plan_of(contestant.model, task_of(problem.shape), problem.facts.benchmark)
        self.stage = stage_of(self.plan)
        self.network = Network(_spec(self.plan, problem))
        self.optimiser = self._optimiser()
        self.epochs = 0
        self._kept: list[tuple[dict[str, Any], ...]] = [
            tuple({} for _ in range(piece.num_graphs)) for piece in problem.pieces
        ]
        self._whole = self._inputs(0) if problem.is_static else None

    def _optimiser(self) -> torch.optim.Optimizer:
        if self.stage == "pretext":
            rate = self.plan.pretraining.learning_rate
            return torch.optim.Adam(self.network.encoder.parameters(), lr=rate)
        return torch.optim.Adam(self.network.parameters(), lr=self.plan.training.learning_rate)

    def _inputs(self, number: int) -> GraphInputs:
        piece = self.problem.pieces[number]
        return GraphInputs.build(
            piece.x,
            piece.edge_index,
            piece.signature,
            piece.batch,
            piece.num_graphs,
            kept=self._kept[number],
        )

    def epoch(self) -> float:
        """Take one optimiser step per piece and return the last loss."""
        self.epochs += 1
        self.network.train()
        loss = torch.zeros(())
        for number, piece in enumerate(self.problem.pieces):
            inputs = self._whole or self._inputs(number)
            self.optimiser.zero_grad()
            loss = self._loss(inputs, piece)
            loss.backward()
            self.optimiser.step()
        encoder = self.network.encoder
        if self.stage == "supervised" and isinstance(encoder, HasEpochEnd):
            encoder.end_epoch(self._view())
        return loss.item()

    def _loss(self, inputs: GraphInputs, piece: Piece) -> Tensor:
        encoder = self.network.encoder
        if self.stage == "pretext":
            assert isinstance(encoder, HasPretext)
            return encoder.pretext_loss(inputs)
        return self.network.outputs(inputs).loss(partial(F.cross_entropy, target=piece.y))

    def _view(self) -> TrainingView:
        """Return what a method may look at after an epoch: the graph, or the first batch."""
        inputs, labels = self._whole or self._inputs(0), self.problem.pieces[0].y

        @torch.no_grad()
        def score(encoding: Encoding) -> float:
            self.network.eval()
            try:
                return accuracy(self.network.read(encoding, inputs, None).prediction, labels)
            finally:
                self.network.train()

        return TrainingView(self.epochs, inputs, score)


def task_of(shape: Shape) -> TaskKind:
    """Return the task of a workload: nodes of one graph, or graphs of a set."""
    return "node" if shape == "graph" else "graph"


def _spec(plan: Plan, problem: Problem) -> NetworkSpec:
    facts: Facts = problem.facts
    whole = problem.pieces[0] if problem.is_static else None
    return NetworkSpec(
        encoder=plan.encoder,
        options=plan.model,
        task=plan.task,
        in_channels=facts.features,
        signature_channels=SIGNATURE_CHANNELS,
        num_classes=facts.classes,
        readout=plan.readout,
        num_nodes=None if whole is None else whole.x.size(0),
        num_edges=None if whole is None else whole.edge_index.size(1),
    )
