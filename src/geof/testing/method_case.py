"""What every method must do, whatever it computes: the checks a test class inherits.

A test file derives a class, names the method and adds what is its own::

    from geof.testing import MethodTestCase

    class TestMine(MethodTestCase):
        method = "mine"
        options = {"hidden_channels": 8}
        variants = ({}, {"norm": "batch"})
        refused = (({"dropout": 1.0}, "'dropout'"),)

pytest then runs every check below. The longest carry the marker ``slow``: register it in pytest's
configuration, and leave them out with ``-m "not slow"``.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from geof.errors import ConfigError, NumericalWarning, StoppedError
from geof.methods.interface import Encoding, GraphInputs, HasPretext, InputShape, TaskKind
from geof.methods.presets import NONE, preset_datasets, preset_names
from geof.methods.registry import get_method, method_options
from geof.options import arguments
from geof.testing.assertions import assert_same
from geof.testing.graphs import (
    Sample,
    draw_parameters,
    random_graph,
    side_by_side,
    tiny_task,
    without_csr_warnings,
)
from geof.training.config import PretrainingConfig, RunConfig, TrainingConfig
from geof.training.network import Network
from geof.training.predict import Run
from geof.training.tasks import Task
from geof.training.trainer import Trainer, Watch

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


class MethodTestCase:
    """Derive, name a method, and inherit the checks.

    Attributes:
        method: Name of the registered method.
        tasks: Those it is made for.
        options: Of the networks that structural checks build: small sizes, and nothing that ties
            a network to the one graph it was built for.
        variants: Further options; structural checks hold for each.
        trained_options: Of the networks that are trained, by default those of the code.
        refused: Options the method refuses, and what the message must match.
        refused_readout: The same of its readouts, with the task.
        tolerance: Largest difference in float64, relative to each tensor's scale.
        single_precision: Largest difference of a float32 copy.
        spread: Of the parameters structural checks draw.
        undrawn: Parameters whose names contain one of these stay as they start.
        untrained: Patterns of parameters that no gradient reaches, with the reason.
        random_pretext: Whether the pretext's loss is drawn, so that it is no function of the graph.
        exact_edge_order: Whether the order of edges must not change a bit; ``False`` for sums that
            run in the order in which edges are given.
        exceptions: Checks that do not hold for the method, each with the reason.
    """

    method: ClassVar[str]
    tasks: ClassVar[Sequence[TaskKind]] = ("node", "link", "graph")
    options: ClassVar[Mapping[str, Any]] = {}
    variants: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    trained_options: ClassVar[Mapping[str, Any]] = {}
    refused: ClassVar[Sequence[tuple[Mapping[str, Any], str]]] = ()
    refused_readout: ClassVar[Sequence[tuple[TaskKind, Mapping[str, Any], str]]] = ()
    tolerance: ClassVar[float] = 1e-9
    single_precision: ClassVar[float] = 1e-3
    spread: ClassVar[float] = 0.5
    undrawn: ClassVar[Sequence[str]] = ()
    untrained: ClassVar[Mapping[str, str]] = {}
    random_pretext: ClassVar[bool] = False
    exact_edge_order: ClassVar[bool] = True
    exceptions: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for check, reason in cls.exceptions.items():
            if not callable(getattr(MethodTestCase, check, None)) or not reason:
                raise ConfigError(
                    f"Expected 'exceptions' to name checks with a reason each (got {check!r}: "
                    f"{reason!r})."
                )
            setattr(cls, check, None)

    # --- What the checks are made of; override where a method needs another build -----------------

    def values_of(self, name: str) -> list[Any] | None:
        """Return what a parameter of a check takes in turn, ``None`` for a fixture of pytest's."""
        known: dict[str, list[Any]] = {
            "task": list(self.tasks),
            "variant": list(self.variants),
            "odd": list(ODD_GRAPHS),
            "stage": [name for name, (task, _, _) in STAGES.items() if task in self.tasks],
            "refusal": [
                *(("", options, message) for options, message in self.refused),
                *self.refused_readout,
            ],
        }
        return known.get(name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Let pytest run a check once for each of its values."""
        for name in metafunc.fixturenames:
            values = self.values_of(name)
            if values is not None:
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
        """Return a graph, or for the task of graphs a batch: one node, no edges, two larger."""
        if task != "graph":
            return GraphInputs.build(*random_graph(seed))
        return side_by_side(_several_graphs(seed))

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

    def loss(self, network: Network, inputs: GraphInputs) -> Tensor:
        """Return all that training grades, against labels made up, and the pretext's loss."""
        pairs = PAIRS % len(inputs.x) if network.task == "link" else None
        outputs = network.outputs(inputs, pairs)
        loss = outputs.loss(_graded)
        if isinstance(network.encoder, HasPretext):
            torch.manual_seed(0)
            loss = loss + network.encoder.pretext_loss(inputs)
        return loss

    def pretraining(self, task: TaskKind) -> PretrainingConfig:
        """Return two epochs of the pretext for a method that has one."""
        network = Network(RunConfig(method=self.method, task=task), tiny_task(task).shape)
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
    ) -> Trainer:
        """Train through the engine and return the trainer."""
        config = RunConfig(
            method=self.method,
            task=task.kind,
            options=self.trained_options if options is None else options,
            training=training,
            pretraining=self.pretraining(task.kind) if pretraining is None else pretraining,
        )
        trainer = Trainer(config, task, out=out, watch=watch)
        trainer.result = trainer.fit()
        return trainer

    # --- Structure: what the network is as a function of a graph ----------------------------------

    def test_shapes_and_types(self, task: TaskKind, variant: Mapping[str, Any]) -> None:
        """States are ``(n, out_channels)``, predictions what the task asks for, in the dtype."""
        network, inputs = self.network(task, **variant), self.inputs(task)
        nodes, graphs = len(inputs.x), inputs.num_graphs
        wanted = {"node": (nodes, 3), "link": (PAIRS.size(1),), "graph": (graphs, 3)}[task]
        for dtype in (torch.float64, torch.float32):
            found = self.results(network.to(dtype), _in(inputs, dtype))
            states, prediction = found["states"], found["prediction"]
            assert tuple(states.shape) == (nodes, network.encoder.out_channels), (
                f"states are {tuple(states.shape)}, out_channels {network.encoder.out_channels}"
            )
            assert tuple(prediction.shape) == wanted, f"predictions are {tuple(prediction.shape)}"
            for name, value in found.items():
                assert value.dtype == dtype, f"{name} is {value.dtype} in a {dtype} network"
                assert bool(value.isfinite().all()), f"{name} is not finite"

    def test_renumbering_nodes(self, task: TaskKind, variant: Mapping[str, Any]) -> None:
        """Nodes in another order: states move along, graphs' predictions and losses stay."""
        network = self.network(task, **variant)
        for seed, kinds in ((0, 0), (1, 0), (2, 2), (3, 1)):
            inputs = self.inputs(task, seed)
            if kinds:  # many nodes are alike
                alike = torch.eye(5).to(inputs.x)[inputs.x.argmax(1) % kinds]
                inputs = _with(inputs, x=alike)
            order = torch.randperm(len(inputs.x), generator=torch.Generator().manual_seed(seed))
            with _quiet():
                plain = self.results(network, inputs, pretext=not self.random_pretext)
                moved = self._moved(network, inputs, order)
            wanted = {**plain, "states": plain["states"][order]}
            if task == "node":
                wanted["prediction"] = plain["prediction"][order]
            assert_same(moved, wanted, self.tolerance)

    def _moved(self, network: Network, inputs: GraphInputs, order: Tensor) -> dict[str, Tensor]:
        """Return the results for the nodes in another order, asked about the same pairs."""
        rank = order.argsort()
        moved = _with(
            inputs,
            x=inputs.x[order],
            edge_index=rank[inputs.edge_index],
            signature=inputs.signature[order],
            batch=None if inputs.batch is None else inputs.batch[order],
        )
        found = self.results(network, moved, pretext=not self.random_pretext)
        if network.task == "link":
            found["prediction"] = network(moved, rank[PAIRS])
        return found

    def test_order_of_edges(self, variant: Mapping[str, Any]) -> None:
        """Edges in another order change nothing."""
        task = self.tasks[0]
        network, inputs = self.network(task, **variant), self.inputs(task, 1)
        order = torch.randperm(
            inputs.edge_index.size(1), generator=torch.Generator().manual_seed(0)
        )
        plain = self.results(network, inputs, pretext=not self.random_pretext)
        shuffled = _with(inputs, edge_index=inputs.edge_index[:, order])
        found = self.results(network, shuffled, pretext=not self.random_pretext)
        assert_same(found, plain, 0.0 if self.exact_edge_order else self.tolerance)

    def test_messages_follow_edges(self, variant: Mapping[str, Any]) -> None:
        """A path 2 -> 1 -> 0, as a sample around node 0 has it: nothing reaches nodes 1 and 2."""
        task = self.tasks[0]
        x, _, u = random_graph(0, nodes=3, edges=0)
        edge_index = torch.tensor([[1, 2], [0, 1]])
        network = self.network(task, **variant)

        def states(nudged: int | None = None) -> Tensor:
            y = x.clone()
            if nudged is not None:
                y[nudged] += 1
            return network.encode(GraphInputs.build(y, edge_index, u)).states

        plain = states()
        after = states(0)
        assert torch.equal(after[1:], plain[1:]), "a message runs against its edge"
        assert not torch.equal(after[0], plain[0]), "a node does not hear itself"
        after = states(2)
        assert not torch.equal(after[1], plain[1]), "a node does not hear its neighbour"

    def test_a_batch_is_each_graph_alone(self, variant: Mapping[str, Any]) -> None:
        """Values and gradients; also where the nodes of the graphs are mixed."""
        task: TaskKind = "graph" if "graph" in self.tasks else self.tasks[0]
        graphs = _several_graphs(0)
        order = torch.randperm(
            sum(len(x) for x, _, _ in graphs), generator=torch.Generator().manual_seed(0)
        )

        def found(batches: Sequence[GraphInputs]) -> dict[str, Tensor]:
            network = self.network(task, **variant)
            parts = [self.results(network, batch, pretext=False) for batch in batches]
            joined = {
                name: torch.cat([part[name] for part in parts]) for name in ("states", "prediction")
            }
            # Sums of squares, which do not depend on the order of the nodes.
            sum(value.square().sum() for value in joined.values()).backward()
            return {**joined, **_gradients(network)}

        alone = found([GraphInputs.build(*graph) for graph in graphs])
        assert_same(found([side_by_side(graphs)]), alone, self.tolerance)
        mixed = {**alone, "states": alone["states"][order]}
        if task == "node":
            mixed["prediction"] = alone["prediction"][order]
        assert_same(found([side_by_side(graphs, order)]), mixed, self.tolerance)

    def test_a_disjoint_union_is_its_parts(self, variant: Mapping[str, Any]) -> None:
        """Without being told which node is of which graph: messages run along edges alone."""
        task = self.tasks[0]
        network, graphs = self.network(task, **variant), _several_graphs(2)
        whole = side_by_side(graphs)
        together = GraphInputs.build(whole.x, whole.edge_index, whole.signature)
        alone = [network.encode(GraphInputs.build(*graph)).states for graph in graphs]
        found = {"states": network.encode(together).states}
        assert_same(found, {"states": torch.cat(alone)}, self.tolerance)

    def test_sparse_features(self, variant: Mapping[str, Any]) -> None:
        """Sparse rows give the values and gradients of dense ones."""
        task = self.tasks[0]
        x, edge_index, u = random_graph(0)
        x = torch.where(x > 0.2, 5 * x, 0.0)
        found = []
        with without_csr_warnings():
            for features in (x.to_sparse_csr(), x):
                network = self.network(task, **variant)
                inputs = GraphInputs.build(features, edge_index, u)
                values = self.results(network, inputs)
                sum(value.square().sum() for value in values.values()).backward()
                found.append({**values, **_gradients(network)})
        assert_same(found[0], found[1], self.tolerance)

    def test_scaled_features(self) -> None:
        """``scale_features``, where there is one, is the network on rows of length root F."""
        if "scale_features" not in method_options(self.method, {}):
            return
        task = self.tasks[0]
        inputs = self.inputs(task)
        by_hand = _with(inputs, x=F.normalize(inputs.x, dim=-1) * inputs.x.size(1) ** 0.5)
        plain, scaling = (self.network(task, scale_features=scale) for scale in (False, True))
        found = self.results(scaling, inputs)
        assert_same(found, self.results(plain, by_hand), self.tolerance)
        same = torch.equal(found["states"], self.results(plain, inputs)["states"])
        assert not same, "'scale_features' changes nothing"

    def test_dropout_acts_in_training_alone(self) -> None:
        """Each option that ends in ``dropout``, with all others off."""
        names = [name for name in method_options(self.method, {}) if name.endswith("dropout")]
        task = self.tasks[0]
        inputs = self.inputs(task)
        off = dict.fromkeys(names, 0.0)
        plain = self.network(task, **off)
        wanted = plain(inputs)
        plain.train()
        assert torch.equal(plain(inputs), plain(inputs)), "without dropout training is drawn"
        for name in names:
            network = self.network(task, **{**off, name: 0.5})
            assert torch.equal(network(inputs), wanted), f"'{name}' acts in evaluation"
            network.train()
            torch.manual_seed(1)
            first, second = network(inputs), network(inputs)
            assert not torch.equal(first, second), f"'{name}' does nothing in training"
            torch.manual_seed(1)
            assert torch.equal(network(inputs), first), f"'{name}' draws from elsewhere than torch"

    def test_a_single_precision_copy_computes_the_same(self, variant: Mapping[str, Any]) -> None:
        """Nothing falls apart in float32, and no buffer keeps the old type."""
        task = self.tasks[0]
        network, inputs = self.network(task, **variant), self.inputs(task)
        single = copy.deepcopy(network).float()
        found = self.results(single, _in(inputs, torch.float32), pretext=False)
        assert_same(found, self.results(network, inputs, pretext=False), self.single_precision)

    # --- Gradients --------------------------------------------------------------------------------

    def test_gradients_reach_every_parameter(
        self, task: TaskKind, variant: Mapping[str, Any]
    ) -> None:
        """Those of the loss and of the pretext, finite, and not zero all over."""
        network = self.network(task, **variant).train()
        self.loss(network, self.inputs(task)).backward()
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad or any(fnmatch(name, p) for p in self.untrained):
                continue
            assert parameter.grad is not None, f"no gradient reaches {name}"
            assert bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite"
            assert bool(parameter.grad.any()), f"the gradient of {name} is zero"

    def test_gradients_are_finite_on_odd_graphs(self, odd: str) -> None:
        """Float32, in training mode, with coincident and with zero features."""
        nodes, edges = ODD_GRAPHS[odd]
        pairs = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
        edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
        for task in self.tasks:
            network = self.network(task, drawn=False).float().train()
            width, signature = SHAPE.in_channels, torch.rand(nodes, SHAPE.signature_channels)
            for x in (torch.ones(nodes, width), torch.zeros(nodes, width), torch.eye(nodes, width)):
                network.zero_grad()
                loss = self.loss(network, GraphInputs.build(x, edge_index, signature))
                assert bool(loss.isfinite()), f"the loss is {float(loss.detach())}"
                loss.backward()
                for name, parameter in network.named_parameters():
                    grad = parameter.grad
                    assert grad is None or bool(grad.isfinite().all()), f"of {name}"

    def test_sums_run_in_a_fixed_order(self, task: TaskKind, variant: Mapping[str, Any]) -> None:
        """The same bits again; an operator without a fixed order raises."""
        inputs, found = self.inputs(task), []
        with _deterministic():
            for _ in range(2):
                network = self.network(task, **variant).train()
                torch.manual_seed(2)
                loss = self.loss(network, inputs)
                loss.backward()
                found.append({"loss": loss, **_gradients(network)})
        assert_same(found[1], found[0], 0.0)

    # --- State and options ------------------------------------------------------------------------

    def test_state_dict_round_trip(self) -> None:
        """A file of tensors holds all that was drawn, and copies go their own way."""
        task = self.tasks[0]
        inputs, network = self.inputs(task), self.network(task)
        torch.manual_seed(99)
        other = Network(self.config(task), SHAPE).double().eval()
        wanted = network(inputs)
        assert not torch.equal(other(inputs), wanted), "the seed decides nothing"
        state = {name: value.contiguous() for name, value in network.state_dict().items()}
        other.load_state_dict(load(save(state)), strict=True)
        assert torch.equal(other(inputs), wanted), "the state does not hold all that was drawn"
        twin = copy.deepcopy(network)
        assert torch.equal(twin(inputs), wanted), "a copy computes something else"
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1.0)
        assert torch.equal(network(inputs), wanted), "a copy shares its parameters"

    def test_refused_options(self, refusal: tuple[str, Mapping[str, Any], str]) -> None:
        """A value out of range is a ``ConfigError`` that names it, in Python and in a config."""
        task, options, message = refusal
        method = get_method(self.method)
        if task:
            make = method.readouts[cast(TaskKind, task)]
            given: dict[str, Any] = {"in_channels": 6, "num_classes": 3}
        else:
            make = method.build
            given = {field.name: getattr(SHAPE, field.name) for field in fields(SHAPE)}
            given["task"] = self.tasks[-1]
        wanted = arguments(make)
        given = {name: value for name, value in given.items() if name in wanted} | dict(options)
        with pytest.raises(ConfigError, match=message):
            make(**given)
        own = {name: value for name, value in options.items() if name not in ("task", "num_nodes")}
        if own != options:
            return
        sections = {"readout": own} if task else {"options": own}
        with pytest.raises(ConfigError, match=next(iter(own))):
            Network(RunConfig(method=self.method, task=task or self.tasks[-1], **sections), SHAPE)

    def test_an_unknown_option_names_the_nearest(self) -> None:
        """A slip of the pen is found before any data is read."""
        for name in method_options(self.method, {}):
            with pytest.raises(ConfigError, match=f"{name}x.*Did you mean"):
                RunConfig(method=self.method, options={f"{name}x": 1})

    def test_presets_build(self, task: TaskKind) -> None:
        """Every preset makes a network, for every dataset it has options for."""
        for preset in preset_names(self.method):
            datasets = [] if preset == NONE else preset_datasets(self.method, preset, task)
            for dataset in (None, *datasets):
                data = {} if dataset is None else {"dataset": dataset}
                about = {"method": self.method, "task": task, "preset": preset, "data": data}
                Network(RunConfig.parse(about), tiny_task(task).shape)

    # --- Training, through the engine -------------------------------------------------------------

    def test_a_seed_decides_a_run(self, task: TaskKind) -> None:
        """Equal seeds give equal bits, another seed another network."""
        runs = [
            self.trained(tiny_task(task), TrainingConfig(epochs=2, seed=seed)) for seed in (1, 1, 2)
        ]
        first, again, other = (run.network.state_dict() for run in runs)
        for name, value in first.items():
            assert torch.equal(again[name], value), f"{name} differs from one run to the next"
        assert any(not torch.equal(other[name], value) for name, value in first.items())
        assert runs[0].result == runs[1].result

    def test_a_stopped_run_goes_on_to_the_same_bits(self, task: TaskKind, tmp_path: Path) -> None:
        """Stopped after every epoch of the pretext and the first of the task."""
        training, before = TrainingConfig(epochs=3, learning_rate=0.02), self.pretraining(task)
        whole = self.trained(tiny_task(task), training)
        for _ in range(before.epochs + 1):
            watch = Watch(should_stop=lambda: True, save_seconds=0)
            with pytest.raises(StoppedError):
                self.trained(tiny_task(task), training, out=tmp_path, watch=watch)
            torch.rand(7)  # another process's random numbers
        resumed = self.trained(tiny_task(task), training, out=tmp_path)
        for name, value in whole.network.state_dict().items():
            assert torch.equal(resumed.network.state_dict()[name], value), f"{name} differs"
        assert resumed.result.epochs == before.epochs + 3
        assert resumed.result.test == whole.result.test

    def test_a_run_is_opened_again_with_the_same_answers(
        self, task: TaskKind, tmp_path: Path
    ) -> None:
        """From the folder alone."""
        given = tiny_task(task)
        trainer = self.trained(given, TrainingConfig(epochs=2), out=tmp_path / "run")
        again = Run.open(tmp_path / "run").network.eval()
        with torch.no_grad():
            scores = given.evaluate(trainer.network.eval(), "test")
            assert given.evaluate(again, "test") == scores, "the opened run scores otherwise"
        assert trainer.result.metrics == scores.metrics
        assert trainer.result.epochs == 2 + self.pretraining(task).epochs

    def test_a_pretext_stage(self, stage: str) -> None:
        """Frozen after it, the method rests; a method without a pretext refuses the stage."""
        task, freeze, sampled = STAGES[stage]
        before = PretrainingConfig(epochs=2, freeze=freeze)
        given = tiny_task(task, **({"training": SAMPLED} if sampled else {}))
        training = TrainingConfig(epochs=2)

        def run() -> Trainer:
            return self.trained(given, training, pretraining=before, options=self.options)

        network = self.network(task, drawn=False)
        if not isinstance(network.encoder, HasPretext):
            with pytest.raises(ConfigError, match=r"'pretraining.epochs' to be 0"):
                run()
            return
        if freeze and not any(True for _ in network.readout.parameters()):
            with pytest.raises(ConfigError, match=r"'pretraining.freeze' to be False"):
                run()
            return
        trainer = run()
        assert trainer.result.epochs == 4
        for name, parameter in trainer.network.encoder.named_parameters():
            fixed = not dict(network.encoder.named_parameters())[name].requires_grad
            assert parameter.requires_grad != (freeze or fixed), name

    def test_sampled_neighbourhoods(self, task: TaskKind) -> None:
        """An epoch on samples, whose edges lead towards the seeds only."""
        if task == "graph":
            return
        given = tiny_task(task, training=SAMPLED)
        training = TrainingConfig(epochs=1)
        trainer = self.trained(given, training, pretraining=PretrainingConfig(), options=self.options)
        assert trainer.result.epochs == 1
        for name, value in trainer.network.state_dict().items():
            assert bool(value.isfinite().all()), f"{name} is not finite"

    @pytest.mark.slow
    def test_overfits_a_tiny_set(self, task: TaskKind) -> None:
        """The training part, scored like the test part, is learned to at least 90 percent."""
        given, scores = tiny_task(task), []
        for rate, epochs in ((0.01, 120), (0.001, 200), (0.02, 300)):  # some want other steps
            training = TrainingConfig(
                epochs=epochs, learning_rate=rate, weight_decay=0.0, evaluate_every=epochs
            )
            trainer = self.trained(given, training, pretraining=PretrainingConfig())
            network = trainer.network.eval()
            view = given.view(network, 1)
            with torch.no_grad():
                scores.append(view.score(network.encode(view.inputs)))
            if scores[-1] >= 90.0:
                return
        pytest.fail(f"{self.method} learns a tiny {task} task to {max(scores):.0f} percent only")


def _several_graphs(seed: int) -> list[Sample]:
    """Return an ordinary graph, one node, nodes without edges, and a larger graph."""
    sizes = ({}, {"nodes": 1, "edges": 0}, {"nodes": 4, "edges": 0}, {"nodes": 14, "edges": 20})
    return [random_graph(10 * seed + i, **size) for i, size in enumerate(sizes)]


def _with(inputs: GraphInputs, **changes: Any) -> GraphInputs:
    """Return other inputs; nothing that was derived from these is kept."""
    names = ("x", "edge_index", "signature", "batch", "num_graphs")
    return GraphInputs.build(**{name: getattr(inputs, name) for name in names} | changes)


def _in(inputs: GraphInputs, dtype: torch.dtype) -> GraphInputs:
    return _with(inputs, x=inputs.x.to(dtype), signature=inputs.signature.to(dtype))


def _graded(logits: Tensor) -> Tensor:
    """Return a loss against labels made up: classes in turn, every other pair an edge."""
    number = torch.arange(len(logits))
    if logits.dim() == 1:
        return F.binary_cross_entropy_with_logits(logits, (number % 2).to(logits))
    return F.cross_entropy(logits, number % logits.size(1))


def _gradients(network: Network) -> dict[str, Tensor]:
    return {
        f"gradient of {name}": torch.zeros_like(value) if value.grad is None else value.grad
        for name, value in network.named_parameters()
    }


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
