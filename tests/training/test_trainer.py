"""One loop for three tasks: what it writes, what chooses the epoch, what it must not see."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from geof.data.link_splits import LeakError, random_link_split
from geof.data.records import GraphSet
from geof.data.sources import SignatureConfig
from geof.data.splits import GraphSplit, NodeSplit, random_node_split
from geof.errors import ConfigError, DataError
from geof.geometry import cholesky
from geof.methods.interface import GraphInputs, InputShape, Outputs
from geof.training import (
    GraphTask,
    LinkTask,
    Network,
    NodeTask,
    RunConfig,
    Scores,
    Task,
    Trainer,
    TrainingConfig,
    Watch,
    load_checkpoint,
)
from tests.training.toys import (
    FRAGILE,
    SAMPLED_TASKS,
    TASKS,
    config_of,
    fit,
    graph_set,
    graph_task,
    link_task,
    network_of,
    node_graph,
    node_task,
)

GCN = {"hidden_channels": 8, "num_layers": 1, "dropout": 0.0}
GEOF = {"hidden_channels": 8, "blocks": 2, "controller_channels": 64}


def run(task: Task, out=None, epochs=8, method="gcn", seed=0, **settings):
    options = GCN if method == "gcn" else GEOF
    training = TrainingConfig(epochs=epochs, seed=seed, **settings)
    return fit(task, training, method=method, options=options, preset="test", out=out)


def test_blocks_beyond_the_jitter_schedule_are_counted_and_said(tmp_path, monkeypatch):
    """Residuals of 1e5 in float32: the floor of 1 is far below the rounding of their squares."""
    for flag in ("_already_warned", "_already_warned_of_rescue"):
        monkeypatch.setattr(cholesky, flag, True)
    options = {"hidden_channels": 8, "blocks": 1, "steps": 1, "lift_gain": 1e5, "temperature": 1e15}
    notes = []
    watch = Watch(on_note=notes.append)
    fit(node_task(), TrainingConfig(epochs=3), options=options, out=tmp_path, watch=watch)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["rescued_blocks"] > 0 for line in lines)
    rescued = sum(line["rescued_blocks"] for line in lines)
    (note,) = notes
    assert note.startswith("In 3 of 3 epochs")
    assert f"{rescued} needed a jitter relative to their own size" in note


@pytest.mark.parametrize("method", ["gcn", "geof"])
@pytest.mark.parametrize("kind", TASKS)
def test_run_folder_holds_what_it_says(kind, method, tmp_path):
    task, out = TASKS[kind](), tmp_path / "run"
    _, result = run(task, out, method=method)
    assert {path.name for path in out.iterdir()} == {
        ".lock",
        "config.json",
        "metrics.jsonl",
        "split.npz",
        "checkpoint.safetensors",
        "result.json",
        "machine.json",
    }
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 9))
    chosen = max(lines, key=lambda line: (line["validation"], -line["validation_loss"]))
    stored = json.loads((out / "result.json").read_text())
    assert (stored["best_epoch"], stored["validation"]) == (chosen["epoch"], chosen["validation"])
    assert stored["split_hash"] == task.split_hash
    assert stored["test"] == stored["metrics"][task.metric] == result.test

    # The folder alone rebuilds the network, and the network gives the recorded number.
    about = json.loads((out / "config.json").read_text())
    again = Network(RunConfig.from_dict(about["run"]), InputShape(**about["shape"]))
    load_checkpoint(out / "checkpoint.safetensors", again)
    again.eval()
    assert task.evaluate(again, "test").metrics == result.metrics


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_learns(kind):
    task = TASKS[kind]()
    network, _ = run(task, epochs=60, method="geof", weight_decay=0.0)
    early = sum(loss.item() for loss in task.losses(network_of(task, options=GEOF), 1))
    late = sum(loss.item() for loss in task.losses(network, 1))
    assert late < 0.8 * early


def test_the_chosen_epoch_is_what_is_kept(tmp_path):
    """Validation labels that contradict training make an early epoch the best."""
    data, split = node_graph(), random_node_split(40, 0)
    labels = data.graph.y.clone()
    labels[split.validation] = 1 - labels[split.validation]
    task = node_task(labels)
    network, result = run(task, tmp_path / "run", epochs=60)
    assert result.best_epoch < 60
    network.eval()
    assert task.evaluate(network, "validation").metrics["accuracy"] == result.validation


def test_metric_then_loss_then_the_earliest_epoch_decide():
    def chosen(*scores: tuple[float, float]) -> int:
        task, left = node_task(), iter((*scores, (0.0, 0.0)))  # the last one is the test part's

        def evaluate(network, part, *, brief=False):
            metric, loss = next(left)
            return Scores({"accuracy": metric}, loss)

        task.evaluate = evaluate
        return run(task, epochs=len(scores))[1].best_epoch

    assert chosen((50.0, 0.7), (60.0, 0.9), (60.0, 0.8), (60.0, 0.8), (55.0, 0.1)) == 3
    assert chosen((50.0, 0.5), (50.0, 0.5)) == 1


def test_test_labels_have_no_influence():
    """Scrambled test labels change the test number and nothing else."""
    labels = node_graph().graph.y.clone()
    scrambled = labels.clone()
    test = random_node_split(40, 0).test
    scrambled[test] = 1 - scrambled[test]
    (one, first), (two, second) = run(node_task(labels)), run(node_task(scrambled))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert first.validation == second.validation
    assert second.test == pytest.approx(100 - first.test)


def trained(task: Task, settings: TrainingConfig, **more):
    """Train the network whose every part draws random numbers; return weights and reports."""
    reports = []
    watch = Watch(on_epoch=reports.append)
    network, result = fit(task, settings, options=FRAGILE, watch=watch, **more)
    state = network.state_dict()
    return torch.cat([state[name].flatten().double() for name in state]), reports, result


@pytest.mark.parametrize("kind", TASKS | SAMPLED_TASKS)
def test_same_seed_same_bits(kind):
    task = (TASKS | SAMPLED_TASKS)[kind]()
    (one, same, _), (two, also, _), (other, *_) = (
        trained(task, TrainingConfig(epochs=3, seed=seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert same == also
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    "kind", ["link", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("node", "graph"))]
)
def test_same_bits_with_two_threads(kind):
    """Large enough for torch and the kernels to divide the work."""
    task = large_task(kind)
    torch.set_num_threads(2)
    try:
        one, two = (trained(task, TrainingConfig(epochs=1)) for _ in range(2))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one[0], two[0])
    assert one[1] == two[1]


def large_task(kind: str) -> Task:
    signature = SignatureConfig(2)
    if kind == "graph":
        part = torch.arange(1200)
        split = GraphSplit(part[:1000], part[1000:1100], part[1100:], "fixed")
        batches = TrainingConfig(batch_size=500)
        return GraphTask(graph_set(1200), split, training=batches, signature=signature)
    data = node_graph(nodes=4000, edges=9000)
    if kind == "node":
        return NodeTask(data, random_node_split(4000, 0), signature=signature)
    split = random_link_split(data.graph.edge_index, 4000, 0)
    return LinkTask(data, split, signature=signature)


@pytest.mark.parametrize("wanted", [True, False])
def test_fixed_order_of_sums_is_asked_for_and_given_back(wanted):
    task, seen = node_task(), []

    def losses(network, epoch):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return NodeTask.losses(task, network, epoch)

    task.losses = losses
    filling = torch.utils.deterministic.fill_uninitialized_memory
    run(task, epochs=2, deterministic=wanted)
    assert seen == [wanted, wanted]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == filling


def test_patience_stops_early():
    labels = torch.arange(40) % 2  # nothing to learn
    _, result = run(node_task(labels), epochs=200, patience=5)
    assert result.epochs == result.best_epoch + 5 < 200
    # Unseen epochs count too: the run ends at the first look, or after it, that is too late.
    _, result = run(node_task(labels), epochs=200, patience=5, evaluate_every=4)
    assert result.epochs == result.best_epoch + 5 < 200
    assert result.best_epoch % 4 == 0


def test_validation_is_looked_at_when_asked_and_at_the_end():
    task, looks = node_task(), []

    def evaluate(network, part, *, brief=False):
        looks.append(part)
        return NodeTask.evaluate(task, network, part)

    task.evaluate = evaluate
    _, reports, result = trained(task, TrainingConfig(epochs=7, evaluate_every=3))
    seen = [report.epoch for report in reports if report.validation is not None]
    assert seen == [3, 6, 7]
    assert [r.epoch for r in reports if r.validation_loss is not None] == seen
    assert looks == ["validation"] * 3 + ["test"]
    assert result.best_epoch in seen


def test_the_test_part_is_not_read_unless_asked(tmp_path):
    task, looks = node_task(), []

    def evaluate(network, part, *, brief=False):
        looks.append(part)
        return NodeTask.evaluate(task, network, part)

    task.evaluate = evaluate
    _, _, result = trained(task, TrainingConfig(epochs=2), read_test=False, out=tmp_path)
    assert set(looks) == {"validation"}
    assert (result.test, result.metrics) == (None, {})
    assert json.loads((tmp_path / "result.json").read_text())["test"] is None


def test_reports_give_the_rate_of_the_schedule():
    settings = TrainingConfig(epochs=5, schedule="cosine", warmup=2, learning_rate=0.1)
    _, reports, _ = trained(node_task(), settings)
    assert [r.learning_rate for r in reports] == [settings.learning_rate_at(e) for e in range(1, 6)]


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_the_first_epoch_is_one_step_of_the_optimiser(kind):
    settings = TrainingConfig(
        epochs=1, optimiser=kind.lower(), learning_rate=0.03, weight_decay=0.5, warmup=3
    )
    task = node_task()
    network, _ = fit(task, settings, options=GEOF)
    by_hand = network_of(task, settings, options=GEOF)
    by_hand.train()
    optimiser = getattr(torch.optim, kind)(by_hand.parameters(), lr=0.01, weight_decay=0.5)
    next(task.losses(by_hand, 1)).backward()
    optimiser.step()
    for (name, got), wanted in zip(network.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, msg=name)


def test_clipping_bounds_what_the_optimiser_sees(monkeypatch):
    seen: list[float] = []
    step = torch.optim.Adam.step

    def spy(self, *arguments):
        gradients = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
        seen.append(float(torch.cat(gradients).norm()))
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    _, free, _ = trained(node_task(), TrainingConfig(epochs=3))
    assert [r.gradient_norm for r in free] == pytest.approx(seen)
    assert min(seen) > 0.01
    seen.clear()
    _, clipped, _ = trained(node_task(), TrainingConfig(epochs=3, clip=0.01))
    assert seen == pytest.approx([0.01] * 3, rel=1e-3)
    assert min(r.gradient_norm for r in clipped) > 0.01  # as it was before
    seen.clear()
    trained(node_task(), TrainingConfig(epochs=1, clip=1e6))  # above it nothing changes
    assert seen == pytest.approx([free[0].gradient_norm])


def test_what_is_known_of_the_data_is_written(tmp_path):
    data = replace(node_graph(), notes=("ü",), content_hash="abc")
    task = NodeTask(data, random_node_split(40, 0))
    fit(task, TrainingConfig(epochs=1), options=GEOF, out=tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    assert (about["notes"], about["content_hash"]) == (["ü"], "abc")
    assert about["class_names"] == ["no", "yes"]
    assert about["run"]["training"]["epochs"] == 1


def test_graphs_come_in_another_order_each_epoch():
    task = graph_task()
    orders = [[int(y) for _, ys in _seen(task, epoch) for y in ys] for epoch in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def _seen(task: GraphTask, epoch: int):
    return [
        (inputs, inputs.x[:, 0].mul(1e4).long().tolist()) for inputs in task.training_inputs(epoch)
    ]


def test_link_runs_check_for_leaks_first():
    data = node_graph()
    split = random_link_split(data.graph.edge_index, 40, 0)
    assert link_task().leak_checked
    object.__setattr__(split, "train", torch.cat([split.train, split.test[:, :1]], dim=1))
    with pytest.raises(LeakError):
        LinkTask(data, split)


def test_link_structure_comes_from_training_edges_only():
    task = link_task()
    seen = {tuple(pair) for pair in task.inputs.edge_index.t().tolist()}
    for pairs in (task.split.validation, task.split.test):
        for u, v in pairs.t().tolist():
            assert (u, v) not in seen
            assert (v, u) not in seen


def test_unlabelled_nodes_cannot_be_split():
    labels = node_graph().graph.y.clone()
    labels[3] = -1
    with pytest.raises(DataError, match="labelled node"):
        node_task(labels)
    part = torch.arange(60)
    with pytest.raises(DataError, match="labelled node"):
        NodeTask(node_graph(), NodeSplit(part[:30], part[30:45], part[45:], "too large"))


def test_unknown_method_and_option():
    with pytest.raises(ConfigError, match=r"'geoff'.*Did you mean 'geof'"):
        fit(node_task(), TrainingConfig(epochs=1), method="geoff")
    with pytest.raises(ConfigError, match=r"'options.temprature'.*Did you mean 'temperature'"):
        fit(node_task(), TrainingConfig(epochs=1), options={"temprature": 3})
    with pytest.raises(ConfigError, match=r"'options.num_layer'.*Did you mean 'num_layers'"):
        fit(node_task(), TrainingConfig(epochs=1), method="gcn", options={"num_layer": 3})
    with pytest.raises(ConfigError, match=r"'readout.drop'.*Did you mean 'dropout'"):
        fit(node_task(), TrainingConfig(epochs=1), readout={"drop": 0.1})


def test_roc_auc_needs_two_classes():
    task = graph_task()
    three = GraphSet("three", task.data.graphs, ("a", "b", "c"))
    with pytest.raises(DataError, match="two classes"):
        GraphTask(three, task.split, metric="roc_auc")


@pytest.mark.parametrize("make", [node_task, link_task, graph_task])
def test_dropped_edges_go_in_both_directions_and_come_back(make):
    whole, task = (make(training=TrainingConfig(edge_dropout=p)) for p in (None, 0.4))
    kept = []
    for epoch in range(1, 9):
        for full, seen in zip(
            whole.training_inputs(epoch), task.training_inputs(epoch), strict=True
        ):
            edges, before = (set(map(tuple, i.edge_index.T.tolist())) for i in (seen, full))
            assert edges < before
            assert {(j, i) for i, j in edges} & before <= edges
            assert torch.equal(seen.x, full.x)
            assert torch.equal(seen.signature, full.signature)
            kept.append((frozenset(edges), len(edges) / full.edge_index.size(1)))
    assert len({edges for edges, _ in kept}) == len(kept)  # others every time
    assert 0.5 < sum(share for _, share in kept) / len(kept) < 0.7
    again = make(training=TrainingConfig(edge_dropout=0.4)).training_inputs(1)
    assert torch.equal(next(again).edge_index, next(task.training_inputs(1)).edge_index)


def test_dropped_edges_take_what_they_carry_along():
    pair = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    x, weight = torch.eye(4), torch.arange(6.0)
    inputs = GraphInputs.build(x, pair, x, edge_weight=weight, edge_attr=weight[:, None])
    kept = torch.tensor([True, True, False, False, True, True])
    left = inputs.with_edges(kept)
    assert left.edge_weight.tolist() == [0.0, 1.0, 4.0, 5.0]
    assert left.edge_attr.flatten().tolist() == [0.0, 1.0, 4.0, 5.0]
    assert left.edge_index.tolist() == pair[:, kept].tolist()


def test_evaluation_sees_all_edges():
    tasks = [node_task(), node_task(training=TrainingConfig(edge_dropout=0.4))]
    network = network_of(tasks[0]).eval()
    whole, thinned = (task.evaluate(network, "validation") for task in tasks)
    assert whole == thinned


def test_the_average_of_weights_is_judged_and_kept():
    share, task, steps = 0.75, node_task(), []
    settings = TrainingConfig(epochs=5, weight_averaging=share)

    def remember(report):
        steps.append([p.detach().clone() for p in trainer.network.parameters()])
        seen = task.evaluate(trainer.judged.eval(), "validation")
        told = (report.validation, report.validation_loss)
        assert (seen.metrics[task.metric], seen.loss) == told

    trainer = Trainer(config_of(task, settings), task, watch=Watch(on_epoch=remember))
    result = trainer.fit()
    wanted = steps[0]
    for later in steps[1 : result.best_epoch]:
        wanted = [share * old + (1 - share) * new for old, new in zip(wanted, later, strict=True)]
    for found, average in zip(trainer.network.parameters(), wanted, strict=True):
        torch.testing.assert_close(found, average)
    assert trainer.judged is trainer.network


def test_hidden_edges_are_predicted_and_not_seen():
    task = link_task(training=TrainingConfig(hidden_edges=0.25))
    given = []

    class Spy(torch.nn.Module):
        def outputs(self, inputs, pairs):
            given.append((inputs, pairs))
            return Outputs(torch.zeros(pairs.size(1), requires_grad=True))

    for epoch in (1, 2, 1):
        list(task.losses(Spy(), epoch))
    total = task.split.train.size(1)
    for inputs, pairs in given:
        count = round(0.25 * total)
        assert pairs.size(1) == 2 * count
        asked = {tuple(sorted(pair)) for pair in pairs[:, :count].t().tolist()}
        seen = {tuple(sorted(pair)) for pair in inputs.edge_index.t().tolist()}
        trained = {tuple(sorted(pair)) for pair in task.split.train.t().tolist()}
        assert len(asked) == count
        assert asked.isdisjoint(seen)
        assert asked | seen == trained
        assert inputs.edge_index.size(1) == 2 * len(seen)  # both directions
    assert not torch.equal(given[0][1], given[1][1])  # drawn anew
    assert torch.equal(given[0][1], given[2][1])  # by the number of the epoch alone
    assert task.record()["hidden_edges"] == 0.25


def test_hidden_edges_are_a_share():
    for bad in (0, 1, 1.5, "all"):
        with pytest.raises(ConfigError, match="hidden_edges"):
            TrainingConfig(hidden_edges=bad)
    with pytest.raises(ConfigError, match="got both"):
        TrainingConfig(batch_size=4, fanouts=(2,), hidden_edges=0.5)
