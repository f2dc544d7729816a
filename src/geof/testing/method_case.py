"""What every method must do, whatever it computes: the checks a test class inherits.

A test file derives a class, names the method and adds what is its own::

    from geof.testing import MethodTestCase

    class TestMine(MethodTestCase):
        method = "mine"
        options = {"hidden_channels": 8}
        variants = ({}, {"norm": "batch"})
        refused = (({"dropout": 1.0}, "'dropout'"),)

pytest then runs every check. The longest carry the marker ``slow``: register it in pytest's
configuration, and leave them out with ``-m "not slow"``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from geof.errors import ConfigError, StoppedError
from geof.methods.interface import HasPretext, TaskKind
from geof.methods.registry import NONE, get_method, method_options, preset_datasets, preset_names
from geof.options import arguments
from geof.testing import tiny_task
from geof.testing.method_basis import SAMPLED, SHAPE, STAGES
from geof.testing.method_structure import StructureChecks
from geof.training.config import RunConfig
from geof.training.network import Network
from geof.training.predict import Run
from geof.training.stages import PretrainingConfig, TrainingConfig
from geof.training.trainer import Result, Watch


class MethodTestCase(StructureChecks):
    """Derive, name a method, and inherit the checks.

    The attributes are those of :class:`geof.testing.method_basis.MethodCase`: tolerances, variants,
    and exceptions with their reasons.
    """

    def test_state_dict_round_trip(self, variant: Mapping[str, Any]) -> None:
        """A file of tensors holds all that was drawn, and copies go their own way."""
        task = self.tasks[0]
        inputs, network = self.inputs(task), self.network(task, **variant)
        torch.manual_seed(99)
        other = Network(self.config(task, **variant), SHAPE).double().eval()
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

    def test_refused_options(self) -> None:
        """A value out of range is a ``ConfigError`` that names it, in Python and in a config."""
        method, task = get_method(self.method), self.tasks[-1]
        given = {**asdict(SHAPE), "task": task}
        for options, message in self.refused:
            _assert_refused(method.build, given, options, message)
            if not options.keys() & given.keys():  # else it is the engine that says so
                with pytest.raises(ConfigError, match=next(iter(options))):
                    Network(RunConfig(method=self.method, task=task, options=options), SHAPE)
        for task, options, message in self.refused_readout:
            _assert_refused(method.readouts[task], given, options, message)
            with pytest.raises(ConfigError, match=next(iter(options))):
                Network(RunConfig(method=self.method, task=task, readout=options), SHAPE)

    def test_options_of_another_type_are_refused(self) -> None:
        """Every option has an annotation, which a config is checked against."""
        for name in method_options(self.method, {}):
            with pytest.raises(ConfigError, match=name):
                RunConfig(method=self.method, options={name: {"no": "value"}})

    def test_an_unknown_option_names_the_nearest(self) -> None:
        """A slip of the pen is found before any data is read."""
        for name in method_options(self.method, {}):
            with pytest.raises(ConfigError, match=f"{name}x.*Did you mean"):
                RunConfig(method=self.method, options={f"{name}x": 1})

    def test_presets_build(self, task: TaskKind) -> None:
        """Every preset makes a network, for every dataset it has options for."""
        shape = tiny_task(task).shape
        for preset in preset_names(self.method, task):
            datasets = [] if preset == NONE else preset_datasets(self.method, preset, task)
            for dataset in (None, *datasets):
                data = {} if dataset is None else {"dataset": dataset}
                about = {"method": self.method, "task": task, "preset": preset, "data": data}
                Network(RunConfig.parse(about), shape)

    # --- Training, through the engine -------------------------------------------------------------

    def test_a_seed_decides_a_run(self, trained_task: TaskKind) -> None:
        """Equal seeds give equal bits, another seed another network."""
        (first, found), (again, same), (other, _) = (
            self.trained(tiny_task(trained_task), TrainingConfig(epochs=2, seed=seed))
            for seed in (1, 1, 2)
        )
        _assert_equal_state(again, first)
        assert same.metrics == found.metrics, "a second run has another result"
        others = other.state_dict()
        assert any(not torch.equal(others[name], v) for name, v in first.state_dict().items()), (
            "the seed decides nothing"
        )

    def test_a_stopped_run_goes_on_to_the_same_bits(
        self, trained_task: TaskKind, tmp_path: Path
    ) -> None:
        """Stopped after every epoch of the pretext and the first of the task."""
        training = TrainingConfig(epochs=3, learning_rate=0.02)
        before = self.pretraining(trained_task).epochs
        whole, found = self.trained(tiny_task(trained_task), training)
        for _ in range(before + 1):
            watch = Watch(should_stop=lambda: True, save_seconds=0)
            with pytest.raises(StoppedError):
                self.trained(tiny_task(trained_task), training, out=tmp_path, watch=watch)
            torch.rand(7)  # another process's random numbers
        resumed, result = self.trained(tiny_task(trained_task), training, out=tmp_path)
        _assert_equal_state(resumed, whole)
        assert result.epochs == before + 3, f"{result.epochs} epochs were counted"
        assert result.metrics == found.metrics, "the resumed run has another result"

    def test_a_run_is_opened_again_with_the_same_answers(
        self, trained_task: TaskKind, tmp_path: Path
    ) -> None:
        """From the folder alone."""
        given = tiny_task(trained_task)
        network, result = self.trained(given, TrainingConfig(epochs=2), out=tmp_path / "run")
        again = Run.open(tmp_path / "run").network.eval()
        with torch.no_grad():
            scores = given.evaluate(network.eval(), "test")
            assert given.evaluate(again, "test") == scores, "the opened run scores otherwise"
        assert result.metrics == scores.metrics, "the result is not that of the network"
        assert result.epochs == 2 + self.pretraining(trained_task).epochs

    def test_a_pretext_stage(self, stage: str) -> None:
        """Frozen after it, the method rests; a method without a pretext refuses the stage."""
        task, freeze, sampled = STAGES[stage]
        before = PretrainingConfig(epochs=2, freeze=freeze)
        given = tiny_task(task, **({"training": SAMPLED} if sampled else {}))
        training = TrainingConfig(epochs=2)

        def run() -> tuple[Network, Result]:
            options = {**self.options, **self.pretext_options}
            return self.trained(given, training, pretraining=before, options=options)

        start = self.network(task, drawn=False)
        if not isinstance(start.encoder, HasPretext):
            with pytest.raises(ConfigError, match=r"'pretraining.epochs' to be 0"):
                run()
            return
        if freeze and not any(True for _ in start.readout.parameters()):
            with pytest.raises(ConfigError, match=r"'pretraining.freeze' to be False"):
                run()
            return
        network, result = run()
        assert result.epochs == 4, f"{result.epochs} epochs were counted"
        learns = {n for n, p in start.encoder.named_parameters() if p.requires_grad and not freeze}
        found = {n for n, p in network.encoder.named_parameters() if p.requires_grad}
        assert found == learns, f"frozen or not: {sorted(found ^ learns)}"

    @pytest.mark.slow
    def test_an_epoch_on_samples(self, task: TaskKind) -> None:
        """Nodes and links also train on sampled neighbourhoods."""
        if task == "graph":
            return
        given = tiny_task(task, training=SAMPLED)
        training = TrainingConfig(epochs=1)
        network, result = self.trained(
            given, training, pretraining=PretrainingConfig(), options=self.options
        )
        assert result.epochs == 1
        for name, value in network.state_dict().items():
            assert bool(value.isfinite().all()), f"{name} is not finite"

    @pytest.mark.slow
    def test_overfits_a_tiny_set(self, task: TaskKind) -> None:
        """The training part, scored like the test part, is learned to at least 90 percent."""
        given, scores = tiny_task(task), []
        for rate, epochs in self.learning:
            training = TrainingConfig(
                epochs=epochs, learning_rate=rate, weight_decay=0.0, evaluate_every=epochs
            )
            network, _ = self.trained(given, training, pretraining=PretrainingConfig())
            view = given.view(network.eval(), 1)
            with torch.no_grad():
                scores.append(view.score(network.encode(view.inputs)))
            if scores[-1] >= 90.0:
                return
        pytest.fail(f"{self.method} learns a tiny {task} task to {max(scores):.0f} percent only")


def _assert_refused(
    make: Callable[..., object], given: Mapping[str, Any], options: Mapping[str, Any], message: str
) -> None:
    """Require a ``ConfigError``; of the given values those count that are asked for by name."""
    wanted = arguments(make)
    asked = {name: value for name, value in given.items() if name in wanted}
    said = None
    try:
        make(**{**asked, **options})
    except ConfigError as error:
        said = str(error)
    assert said is not None, f"{dict(options)} is not refused"
    assert re.search(message, said), f"{message!r} is not in {said!r}"


def _assert_equal_state(network: Network, wanted: Network) -> None:
    state = network.state_dict()
    for name, value in wanted.state_dict().items():
        assert torch.equal(state[name], value), f"{name} differs"
