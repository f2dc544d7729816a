"""The registered methods with their presets, trained by the same step on the same pieces.

Everything is the method's own, as ``geof train`` would build it: network and readout by the default
preset for the task and the benchmark, dropout, losses of its own, what it does after an epoch. The
bench's own are what a step sees (so that all see the same), Adam at a constant learning rate (the
preset's), and signatures that are drawn.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from geof.kernels.neighbourhood import Cache
from geof.methods.interface import (
    Encoding,
    GraphInputs,
    HasEpochEnd,
    HasPretext,
    InputShape,
    TaskKind,
    TrainingView,
)
from geof.training.config import RunConfig
from geof.training.metrics import accuracy
from geof.training.network import Network
from geof.training.trainer import FUSED
from geof_paper.bench.catalogue import Entry, Shape, Stage
from geof_paper.bench.problems import SIGNATURE_CHANNELS, Piece, Problem


def config_of(method: str, task: TaskKind, benchmark: str | None) -> RunConfig:
    """Return the config of a method's default preset.

    Args:
        method: A registered method.
        task: Node or graph.
        benchmark: Whose options; ``None`` for those that all share.
    """
    return RunConfig.parse({"method": method, "task": task, "data": {"dataset": benchmark}})


def stage_of(config: RunConfig) -> Stage:
    """Return what is timed: where the encoder is trained, which is where the time goes."""
    frozen = config.pretraining.epochs > 0 and config.pretraining.freeze
    return "pretext" if frozen else "supervised"


class MethodTraining:
    """A registered method on a problem, ready for epochs.

    As in ``geof train``, the inputs of a graph in full batch are built once, those of mini-batches
    in every epoch; what a method keeps with a graph lives as long as the data, so that the first
    epoch pays for it.

    Args:
        entry: Who.
        problem: On what, and where: the network is put on its device.
    """

    def __init__(self, entry: Entry, problem: Problem) -> None:
        torch.manual_seed(0)
        self.problem = problem
        self.config = config_of(entry.method, task_of(problem.shape), problem.facts.benchmark)
        self.stage = stage_of(self.config)
        self.network = Network(self.config, _shape(problem)).to(problem.device)
        self.optimiser = self._optimiser()
        self.epochs = 0
        self._caches = [[Cache() for _ in range(p.num_graphs)] for p in problem.pieces]
        self._whole = self._inputs(0) if problem.is_static else None

    def _optimiser(self) -> torch.optim.Optimizer:
        fused = self.problem.device.type in FUSED
        if self.stage == "pretext":
            rate = self.config.pretraining.learning_rate
            return torch.optim.Adam(self.network.encoder.parameters(), lr=rate, fused=fused)
        rate = self.config.training.learning_rate
        return torch.optim.Adam(self.network.parameters(), lr=rate, fused=fused)

    def _inputs(self, number: int) -> GraphInputs:
        piece = self.problem.pieces[number]
        return GraphInputs.build(
            piece.x,
            piece.edge_index,
            piece.signature,
            piece.batch,
            piece.num_graphs,
            caches=self._caches[number],
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


def _shape(problem: Problem) -> InputShape:
    whole = problem.pieces[0] if problem.is_static else None
    return InputShape(
        in_channels=problem.facts.features,
        signature_channels=SIGNATURE_CHANNELS,
        num_classes=problem.facts.classes,
        num_nodes=None if whole is None else whole.x.size(0),
        num_edges=None if whole is None else whole.edge_index.size(1),
    )
