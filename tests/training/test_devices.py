"""Every path of a run on a second device: nothing of the CPU is mixed in, and numbers are the same.

The device is pretended (:mod:`tests.pretended`); no GPU is needed, and none is tested.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product

import pytest
import torch

from geof import devices
from geof.data.sources import SignatureConfig
from geof.devices import available_devices, resolve_device
from geof.errors import ConfigError, DeviceError, StoppedError
from geof.estimators import GeoFNodeClassifier
from geof.training import RunConfig, Trainer, TrainingConfig, Watch
from geof.training.predict import Run, part_predictions
from tests.faults.harness import FULL
from tests.pretended import Elsewhere, MixedDevicesError
from tests.training.test_edges import some_graph_task, some_link_task, some_node_task
from tests.training.toys import FRAGILE, config_of, graph_task, link_task, node_task

# torch says it of the name alone: these tensors have memory, and are copied to.
pytestmark = pytest.mark.filterwarnings("ignore:.*to a meta parameter")

OPTIONS = {**FRAGILE, "backend": "torch"}
TRAINING = TrainingConfig(epochs=2, weight_averaging=0.6, clip=0.5, learning_rate=0.02)
SAMPLED = TrainingConfig(batch_size=12, fanouts=(2, 2))
PATHS = {
    "node": node_task,
    "node, sampled": lambda: node_task(training=SAMPLED),
    "node, edges dropped": lambda: node_task(training=TrainingConfig(edge_dropout=0.3)),
    "node, edge columns": some_node_task,
    "link": link_task,
    "link, sampled": lambda: link_task(training=replace(SAMPLED, batch_size=30)),
    "link, hidden edges": lambda: link_task(training=TrainingConfig(hidden_edges=0.3)),
    "link, edge columns": some_link_task,
    "graph": graph_task,
    "graph, edges dropped": lambda: graph_task(
        training=TrainingConfig(batch_size=9, edge_dropout=0.3)
    ),
    "graph, edge columns": some_graph_task,
}


def trained(task, device, out=None, watch=None, **options):
    training, signature = options.pop("training", TRAINING), SignatureConfig(3)
    config = config_of(task, training, options={**OPTIONS, **options}, signature=signature)
    trainer = Trainer(config, task, out=out, device=device, watch=watch)
    return trainer, trainer.fit()


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5)


# Each path once, and each way between devices; make test-faults has every path by every way.
WAYS = [("node", ("cpu", "meta")), ("graph", ("meta", "meta"))]
if FULL:
    ways = [("cpu", "meta"), ("meta", "cpu"), ("meta", "meta")]
    WAYS = [*product(["node", "graph"], ways), ("link", ways[0]), ("link", ways[2])]


def slow_but(fast, names):
    """Return parameters of which all but some are for the slow suite."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


class TestEveryPath:
    @pytest.mark.parametrize("path", slow_but(["node", "link"], PATHS))
    def test_training_gives_the_cpus_numbers(self, path, elsewhere, tmp_path):
        here, on_cpu = trained(PATHS[path](), "cpu")
        there, result = trained(PATHS[path](), elsewhere, tmp_path / "run")
        assert all(isinstance(p, Elsewhere) for p in there.network.parameters())
        for one, other in zip(here.progress.reports, there.progress.reports, strict=True):
            same(torch.tensor(other.loss), torch.tensor(one.loss))
            same(torch.tensor(other.validation_loss), torch.tensor(one.validation_loss))
        assert result.best_epoch == on_cpu.best_epoch
        # The checkpoint knows of no device.
        opened = Run.open(tmp_path / "run")
        assert opened.device.type == "cpu"
        assert opened.config.training.device is None
        for name, value in here.network.state_dict().items():
            same(opened.network.state_dict()[name], value)

    @pytest.mark.parametrize(
        "path", slow_but(["node"], ["node", "link", "graph", "node, edge columns"])
    )
    def test_applying_a_run_gives_the_cpus_numbers(self, path, elsewhere, tmp_path):
        task = PATHS[path]()
        trained(task, "cpu", tmp_path)
        data, found = task.data, []
        for device in ("cpu", elsewhere):
            run = Run.open(tmp_path, device)
            assert run.device == torch.device(device)
            part = part_predictions(run, data)[0], run.evaluate_part(data, "train").loss
            if path.startswith("graph"):
                applied = run.predict_graphs(data, 7).probability, run.embed_graphs(data, 7).vectors
            elif path == "link":
                pairs = torch.tensor([[0, 1, 2], [3, 4, 5]])
                applied = run.predict_pairs(data, pairs).probability, run.embed_nodes(data).vectors
            else:
                whole, pieces = run.predict_nodes(data), run.predict_nodes(data, piece_size=20)
                applied = whole.probability, pieces.probability, run.embed_nodes(data).coordinates
            found.append((*part[:1], torch.tensor(part[1]), *applied))
        assert not any(isinstance(value, Elsewhere) for value in found[1])
        for one, other in zip(*found, strict=True):
            same(other, one)

    @pytest.mark.parametrize(
        ("path", "way"),
        [
            ("link", ("meta", "cpu")),
            *(pytest.param(*both, marks=[pytest.mark.slow, pytest.mark.faults]) for both in WAYS),
        ],
    )
    def test_a_run_goes_on_on_another_device(self, path, way, elsewhere, tmp_path):
        training = replace(TRAINING, epochs=4)
        whole, _ = trained(PATHS[path](), "cpu", training=training, dropout=0.0)
        notes = []
        stop = Watch(should_stop=lambda: True, save_seconds=0.0)
        options = {"training": training, "dropout": 0.0}
        with pytest.raises(StoppedError):
            trained(PATHS[path](), way[0], tmp_path, stop, **options)
        watch = Watch(on_note=notes.append)
        resumed, _ = trained(PATHS[path](), way[1], tmp_path, watch, **options)
        assert ("goes on on" in " ".join(notes)) == (way[0] != way[1])
        assert resumed.progress.epoch == 4
        for one, other in zip(whole.progress.reports, resumed.progress.reports, strict=True):
            same(torch.tensor(other.loss), torch.tensor(one.loss))

    @pytest.mark.slow
    def test_an_estimator_answers_on_the_cpu(self, elsewhere):
        graph = node_task().data.graph
        model = GeoFNodeClassifier(
            epochs=2, device=elsewhere, settings={"options.backend": "torch"}
        )
        model.fit(graph)
        wanted = GeoFNodeClassifier(epochs=2, settings=model.settings).fit(graph)
        assert model.run_.device.type == "meta"
        same(torch.tensor(model.predict_proba()), torch.tensor(wanted.predict_proba()))
        again = pickle.loads(pickle.dumps(model.run_))
        assert again.device.type == "cpu"


def test_the_second_device_notices_what_is_mixed(elsewhere):
    moved = torch.ones(3, device=elsewhere)
    assert isinstance(moved, Elsewhere)
    assert float((moved + 1).sum()) == 6
    with pytest.raises(MixedDevicesError):
        moved + torch.ones(3)
    with pytest.raises(MixedDevicesError):
        moved[torch.tensor([0])]
    with pytest.raises((RuntimeError, TypeError)):
        moved.numpy()
    assert moved.cpu().numpy().tolist() == [1, 1, 1]


class TestTheOption:
    def test_a_device_that_is_not_there_is_refused_with_what_is(self):
        missing = f"cuda:{torch.cuda.device_count()}"
        with pytest.raises(DeviceError, match=rf"'{missing}' to be here \(there is 'cpu'"):
            resolve_device(missing)
        task = node_task()
        with pytest.raises(DeviceError, match="there is 'cpu'"):
            Trainer(config_of(task, TrainingConfig(device=missing)), task)

    @pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:1", "", "CUDA", "meta"])
    def test_what_names_no_device_is_refused(self, name):
        with pytest.raises(ConfigError, match="Expected 'device' to be auto, cpu, cuda"):
            TrainingConfig(device=name)

    def test_auto_is_the_default_and_a_gpu_where_there_is_one(self, monkeypatch):
        assert TrainingConfig(device="auto") == TrainingConfig()
        assert TrainingConfig(device="auto").device is None
        assert resolve_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
        monkeypatch.setattr(devices, "available_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
        assert resolve_device("auto") == torch.device("cuda:0")
        assert resolve_device("cuda:1") == torch.device("cuda:1")
        assert available_devices()[0] == "cpu"

    def test_it_decides_nothing(self):
        plain = RunConfig()
        placed = plain.on("cuda:1")
        assert placed == plain
        assert placed.decisive() == plain.decisive() == plain.to_dict()
        assert placed.to_dict()["training"]["device"] == "cuda:1"
        assert "device" not in plain.to_dict()["training"]
        assert RunConfig.from_dict(placed.to_dict()).training.device == "cuda:1"
        assert RunConfig.parse({"device": "cuda:1"}).training.device == "cuda:1"
        assert placed.without_paths().training.device is None

    def test_a_folder_takes_a_run_from_another_device(self, tmp_path):
        task = node_task()
        training = replace(TRAINING, device="cpu")
        Trainer(config_of(task, TRAINING), task, out=tmp_path).fit()
        notes = []
        again = Trainer(
            config_of(task, training), task, out=tmp_path, watch=Watch(on_note=notes.append)
        )
        again.fit()
        assert notes == ["The run is finished already; this is its result."]
