"""What a test class of a method says, and what its checks are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from geof.errors import ConfigError
from geof.methods.interface import GraphInputs, HasPretext, InputShape, TaskKind
from geof.methods.registry import get_method
from geof.testing import Sample, draw_parameters, random_graph, side_by_side
from geof.training.config import RunConfig
from geof.training.network import Network
from geof.training.stages import PretrainingConfig, TrainingConfig
from geof.training.tasks import Task
from geof.training.trainer import Result, Trainer, Watch

SHAPE = InputShape(in_channels=5, signature_channels=3, num_classes=3)
"""Of the random graphs; not tied to one of them."""

PAIRS = torch.tensor([[0, 1, 2, 3, 3], [4, 5, 6, 7, 3]])
"""What link predictors are asked about."""

ODD_GRAPHS: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "no edges": (4, []),
    "an isolated node": (4, [(0, 1), (1, 2)]),
    "a leaf": (3, [(0, 1), (1, 2)]),
    "one node": (1, []),
    "twins": (4, [(0, 1), (2, 3)]),
}
"""Number of nodes, and edges."""

STAGES: dict[str, tuple[TaskKind, bool, bool]] = {
    "node": ("node", True, False),
    "link": ("link", True, False),
    "graph": ("graph", True, False),
    "node, trained on": ("node", False, False),
    "graph, trained on": ("graph", False, False),
    "node, sampled": ("node", True, True),
    "link, sampled": ("link", False, True),
}
"""Task, whether the method is frozen after its pretext, whether neighbourhoods are sampled."""

SAMPLED = TrainingConfig(batch_size=9, fanouts=(2, 2))


class MethodCase:
    """The method and its peculiarities; see :class:`geof.testing.MethodTestCase` for the checks.

    Attributes:
        method: Name of the registered method.
        tasks: Those it is made for.
        options: Of the networks that structural checks build: small sizes, and nothing that ties
            a network to the one graph it was built for.
        variants: Further options; structural checks hold for each, those about readouts for the
            first one.
        trained_options: Of the networks that are trained, by default those of the code.
        pretext_options: Further options of the runs with a pretext stage.
        refused: Options the method refuses, and what the message must match.
        refused_readout: The same of its readouts, with the task.
        tolerance: Largest difference in float64, relative to each tensor's scale.
        alike_tolerance: The same on graphs with many equal nodes, where a method that scales small
            differences up has nothing but rounding to scale; ``None`` for ``tolerance``.
        single_precision: Largest difference of a float32 copy.
        spread: Of the parameters structural checks draw.
        undrawn: Parameters whose names contain one of these stay as they start.
        untrained: Patterns of parameters that no gradient reaches, with the reason.
        random_pretext: Whether the pretext's loss is drawn, so that it is no function of the graph.
        exact_edge_order: Whether the order of edges must not change a bit; ``False`` for sums that
            run in the order in which edges are given.
        learning: Learning rates and epochs to try until a tiny set is learned.
        exceptions: Checks that do not hold for the method, each with the reason.
    """

    method: ClassVar[str]
    tasks: ClassVar[Sequence[TaskKind]] = ("node", "link", "graph")
    options: ClassVar[Mapping[str, Any]] = {}
    variants: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    trained_options: ClassVar[Mapping[str, Any]] = {}
    pretext_options: ClassVar[Mapping[str, Any]] = {}
    refused: ClassVar[Sequence[tuple[Mapping[str, Any], str]]] = ()
    refused_readout: ClassVar[Sequence[tuple[TaskKind, Mapping[str, Any], str]]] = ()
    tolerance: ClassVar[float] = 1e-9
    alike_tolerance: ClassVar[float | None] = None
    single_precision: ClassVar[float] = 1e-3
    spread: ClassVar[float] = 0.5
    undrawn: ClassVar[Sequence[str]] = ()
    untrained: ClassVar[Mapping[str, str]] = {}
    random_pretext: ClassVar[bool] = False
    exact_edge_order: ClassVar[bool] = True
    learning: ClassVar[Sequence[tuple[float, int]]] = ((0.01, 120), (0.001, 200), (0.02, 300))
    exceptions: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for check, reason in cls.exceptions.items():
            if not reason or not any(callable(vars(base).get(check)) for base in cls.__mro__):
                raise ConfigError(
                    f"Expected 'exceptions' to name checks with a reason each (got {check!r}: "
                    f"{reason!r})."
                )
            setattr(cls, check, None)

    def values_of(self, name: str) -> list[Any] | None:
        """Return what a parameter of a check takes in turn, ``None`` for a fixture of pytest's."""
        stages = [name for name, (task, _, _) in STAGES.items() if task in self.tasks]
        has_pretext = hasattr(get_method(self.method).build, "pretext_loss")
        first, *others = self.variants
        known: dict[str, list[Any]] = {
            "task": list(self.tasks),
            "trained_task": list(self.tasks),
            "variant": list(self.variants),
            # What is built: the first variant for every task, the others for the last.
            "build": [
                *((task, first) for task in self.tasks),
                *((self.tasks[-1], variant) for variant in others),
            ],
            "stage": stages if has_pretext else stages[:1],
        }
        return known.get(name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Let pytest run a check once for each of its values."""
        for name in metafunc.fixturenames:
            values = self.values_of(name)
            if values is None:
                continue
            if name == "trained_task":  # the first one is quick enough to run always
                slow = (pytest.param(value, marks=pytest.mark.slow) for value in values[1:])
                values = [*values[:1], *slow]
            metafunc.parametrize(name, values, ids=str)

    def config(self, task: TaskKind, **options: Any) -> RunConfig:
        """Return the config of a network for structural checks."""
        return RunConfig(method=self.method, task=task, options={**self.options, **options})

    def network(self, task: TaskKind, *, drawn: bool = True, **options: Any) -> Network:
        """Return a network in double precision and evaluation mode, its parameters drawn."""
        torch.manual_seed(0)
        network = Network(self.config(task, **options), SHAPE).double().eval()
        return draw_parameters(network, self.spread, self.undrawn) if drawn else network

    def inputs(self, task: TaskKind, seed: int = 0) -> GraphInputs:
        """Return a graph, or for the task of graphs a batch of several."""
        if task != "graph":
            return GraphInputs.build(*random_graph(seed))
        return side_by_side(several_graphs(seed))

    def results(
        self, network: Network, inputs: GraphInputs, *, pretext: bool = True
    ) -> dict[str, Tensor]:
        """Return states, prediction, penalty and, unless it is left out, the pretext's loss."""
        encoding = network.encode(inputs)
        pairs = PAIRS % len(inputs.x) if network.task == "link" else None
        outputs = network.read(encoding, inputs, pairs)
        found = {"states": encoding.states, "prediction": outputs.prediction}
        if outputs.penalty is not None:
            found["penalty"] = outputs.penalty
        if pretext and isinstance(network.encoder, HasPretext):
            torch.manual_seed(0)
            found["pretext"] = network.encoder.pretext_loss(inputs)
        return found

    def loss(
        self, network: Network, inputs: GraphInputs, task_loss: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the task's loss of all graded logits, the penalties and the pretext's loss."""
        pairs = PAIRS % len(inputs.x) if network.task == "link" else None
        loss = network.outputs(inputs, pairs).loss(task_loss)
        if isinstance(network.encoder, HasPretext):
            torch.manual_seed(0)
            loss = loss + network.encoder.pretext_loss(inputs)
        return loss

    def pretraining(self, task: TaskKind) -> PretrainingConfig:
        """Return two epochs of the pretext for a method that has one."""
        network = self.network(task, drawn=False)
        if not isinstance(network.encoder, HasPretext):
            return PretrainingConfig()
        return PretrainingConfig(epochs=2, freeze=any(True for _ in network.readout.parameters()))

    def trained(
        self,
        task: Task,
        training: TrainingConfig,
        *,
        out: Path | None = None,
        watch: Watch | None = None,
        pretraining: PretrainingConfig | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Network, Result]:
        """Train through the engine."""
        config = RunConfig(
            method=self.method,
            task=task.kind,
            options=self.trained_options if options is None else options,
            training=training,
            pretraining=self.pretraining(task.kind) if pretraining is None else pretraining,
        )
        trainer = Trainer(config, task, out=out, watch=watch, device="cpu")
        return trainer.network, trainer.fit()


def several_graphs(seed: int) -> list[Sample]:
    """Return an ordinary graph, one node, nodes without edges, a larger graph, and a path."""
    sizes = ((9, 24), (1, 0), (4, 0), (14, 20), (5, 0))
    graphs = [random_graph(10 * seed + i, nodes=n, edges=e) for i, (n, e) in enumerate(sizes)]
    x, _, u = graphs[-1]
    path = torch.stack([torch.arange(4), torch.arange(1, 5)])
    return [*graphs[:-1], (x, torch.cat([path, path.flip(0)], dim=1), u)]


def with_changes(inputs: GraphInputs, **changes: Any) -> GraphInputs:
    """Return other inputs; nothing that was derived from these is kept."""
    names = ("x", "edge_index", "signature", "batch", "num_graphs")
    return GraphInputs.build(**{name: getattr(inputs, name) for name in names} | changes)


def in_dtype(inputs: GraphInputs, dtype: torch.dtype) -> GraphInputs:
    """Return the same graph in another precision."""
    return with_changes(inputs, x=inputs.x.to(dtype), signature=inputs.signature.to(dtype))


def mean_square(logits: Tensor) -> Tensor:
    """Return a loss that never saturates."""
    return logits.square().mean()


def cross_entropy(logits: Tensor) -> Tensor:
    """Return the loss against labels made up: classes in turn, every other pair an edge."""
    number = torch.arange(len(logits))
    if logits.dim() == 1:
        return F.binary_cross_entropy_with_logits(logits, (number % 2).to(logits))
    return F.cross_entropy(logits, number % logits.size(1))


def gradients(network: Network) -> dict[str, Tensor]:
    """Return the gradient of every parameter, zero where none came."""
    return {
        f"gradient of {name}": torch.zeros_like(value) if value.grad is None else value.grad
        for name, value in network.named_parameters()
    }


def sum_of_squares(values: Mapping[str, Tensor]) -> Tensor:
    """Return a scalar of all values that does not depend on the order of their rows."""
    return torch.stack([value.square().sum() for value in values.values()]).sum()
