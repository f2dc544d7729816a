"""A whole run on tiny workloads: who runs, who is skipped and why, what is written."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing import forkserver

import pytest

from geof.errors import ConfigError
from geof_paper.bench import memory, work
from geof_paper.bench import run as bench_run
from geof_paper.bench.catalogue import (
    FULL,
    QUICK,
    QUICK_LEAVES_OUT,
    WORKLOADS,
    Entry,
    choose_entries,
    choose_workloads,
)
from geof_paper.bench.processes import FreshProcessError, start_server
from geof_paper.bench.run import Bench
from geof_paper.bench.work import Peak

GCN, TORCH, REFERENCE = (
    Entry("gcn"),
    Entry("geof", "torch"),
    Entry("geof", "reference"),
)
SHORT = replace(FULL, seconds=0.1, most_rounds=3)


def bench(**changes) -> Bench:
    given = {
        "workloads": [WORKLOADS["tiny"]],
        "entries": [GCN, TORCH],
        "effort": SHORT,
        "data_root": None,
        "threads": 1,
        "left_out": [],
        "put_off": [],
        "say": lambda line: None,
    }
    return Bench(**{**given, **changes})


@pytest.fixture
def in_this_process(monkeypatch):
    """Run the work here: no imports to wait for, and patches reach it."""
    calls = []

    def here(task, *arguments, threads, say, seconds=None):
        calls.append((task.__name__, *(a for a in arguments if isinstance(a, Entry))))
        return task(*arguments, say=say)

    monkeypatch.setattr(bench_run, "in_fresh_process", here)
    return calls


def finish(run: Bench):
    for _ in run.run():
        pass
    return {(row.dataset, row.entry.label): row for row in run.rows}


@pytest.fixture
def fresh_processes():
    """A server that has the imports, which one that other tests started may not have."""
    forkserver._forkserver._stop()
    start_server()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_processes")
def test_fresh_processes_time_and_weigh():
    said = []
    rows = finish(bench(workloads=[WORKLOADS["tiny-set"]], entries=[GCN], say=said.append))
    row = rows["tiny-set", "gcn"]
    assert row.status == "ok"
    assert row.rounds >= 3
    assert 0 < row.seconds_per_epoch < 60
    assert row.ratio_to_gcn == 1.0
    assert row.peak_rss_bytes > 2**25 > 0 < row.peak_bytes_above_data
    assert row.memory_epochs == 2
    assert said[0] == "tiny-set: preparing"


def test_times_of_a_workload_come_before_its_memory(in_this_process):
    finish(bench(workloads=[WORKLOADS["tiny"], WORKLOADS["tiny-set"]], entries=[GCN]))
    one = ["prepare", "measure_times", "measure_memory"]
    assert [call[0] for call in in_this_process] == one + one


def test_a_quick_run_comes_back_to_what_it_put_off_when_the_rest_is_done(in_this_process):
    both = [WORKLOADS["tiny"], WORKLOADS["tiny-set"]]
    effort = replace(QUICK, seconds=0.1, total_seconds=1e9)
    run = bench(workloads=both, entries=[TORCH, GCN], effort=effort, put_off=[TORCH])
    rows = finish(run)
    first = [("prepare",), ("measure_times",), ("measure_memory", GCN)] * 2
    last = [("measure_times",), ("measure_times",)] + [("measure_memory", TORCH)] * 2
    assert in_this_process == first + last
    assert list(rows) == [(w.name, c.label) for w in both for c in (TORCH, GCN)]
    assert all((row.rounds == 1) is (row.entry == TORCH) for row in rows.values())
    assert all(row.status == "ok" and row.memory_epochs == 1 for row in rows.values())


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_processes")
def test_a_quick_run_out_of_time_leaves_the_rest_out_and_says_so():
    effort = replace(QUICK, seconds=0.1, total_seconds=0.0)
    rows = finish(bench(effort=effort, put_off=[TORCH]))
    fast, slow = rows["tiny", "gcn"], rows["tiny", "geof-torch"]
    assert (fast.status, slow.status) == ("ok", "skipped")
    assert fast.seconds_per_epoch is not None
    assert fast.peak_rss_bytes is None
    assert fast.reason == "memory not measured: the time of --quick was up"
    assert slow.reason == "the time of --quick was up"


def test_a_run_that_is_broken_off_has_rows_that_say_so(in_this_process):
    run = bench(effort=replace(QUICK, seconds=0.1), put_off=[TORCH])
    next(run.run())
    status = {row.entry: (row.status, row.reason) for row in run.rows}
    assert status[GCN] == ("ok", None)
    assert status[TORCH] == ("skipped", "the run ended before its turn")


def test_what_is_left_out_has_a_row_that_says_so(in_this_process):
    rows = finish(bench(entries=[GCN, REFERENCE], left_out=[REFERENCE]))
    row = rows["tiny", "geof-reference"]
    assert (row.status, row.seconds_per_epoch, row.rounds) == ("skipped", None, 0)
    assert "without --quick" in row.reason
    assert row.as_json().keys() == rows["tiny", "gcn"].as_json().keys()


def test_what_would_not_fit_is_predicted_skipped_and_explained(in_this_process, monkeypatch):
    """GCN needs 1 kB per edge here and the reference 1 MB, of 1 GB."""
    peaks = {"gcn": 1_000, "geof-reference": 1_000_000}

    def weigh(path, entry, epochs, device, *, say):
        edges = work.Problem.load(path).facts.edges
        return Peak(peaks[entry.label] * edges, 1)

    monkeypatch.setattr(work, "measure_memory", weigh)
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    monkeypatch.setattr(memory, "surely_fits", lambda facts, available: False)
    rows = finish(bench(entries=[GCN, REFERENCE]))
    assert rows["tiny", "gcn"].status == "ok"
    row = rows["tiny", "geof-reference"]
    assert row.status == "skipped"
    assert "about 1.2 GB, 1.0 GB are available" in row.reason


def test_nothing_is_predicted_where_everything_fits(in_this_process):
    finish(bench(entries=[GCN]))
    assert [call[0] for call in in_this_process].count("prepare") == 1


def test_probes_are_measured_once_per_shape(in_this_process, monkeypatch):
    monkeypatch.setattr(memory, "surely_fits", lambda facts, available: False)
    tiny = WORKLOADS["tiny"]
    finish(bench(workloads=[tiny, replace(tiny, name="nodes-5e3")], entries=[GCN]))
    weighed = [call for call in in_this_process if call[0] == "measure_memory"]
    assert len(weighed) == 2 + 1 + 1  # two probes, two workloads


def test_an_entry_that_breaks_fails_alone(in_this_process, monkeypatch):
    real = work.Training

    def breaks(entry, problem):
        if entry == TORCH:
            raise RuntimeError("no kernel")
        return real(entry, problem)

    monkeypatch.setattr(work, "Training", breaks)
    rows = finish(bench())
    assert rows["tiny", "gcn"].status == "ok"
    assert rows["tiny", "geof-torch"].status == "failed"
    assert rows["tiny", "geof-torch"].reason == "RuntimeError: no kernel"


def test_a_dead_process_is_the_result_of_its_entries(in_this_process, monkeypatch):
    def dies(*arguments, say):
        raise FreshProcessError("The process ended without an answer (signal 9).")

    monkeypatch.setattr(work, "measure_times", dies)
    rows = finish(bench())
    assert {row.status for row in rows.values()} == {"failed"}


def test_the_roofline_belongs_to_a_full_run_on_computers(in_this_process, monkeypatch):
    def roofline(path, *, say):
        assert path.exists()
        return {"passes": []}

    monkeypatch.setattr(bench_run, "measure_roofline", roofline)
    stand_in = replace(WORKLOADS["tiny"], name="Computers")
    for effort, expected in ((SHORT, {"passes": []}), (replace(QUICK, seconds=0.1), None)):
        run = bench(workloads=[stand_in], entries=[GCN], effort=effort)
        finish(run)
        assert run.roofline == expected


def test_a_roofline_that_fails_does_not_end_the_run(in_this_process, monkeypatch):
    def fails(path, *, say):
        raise FreshProcessError("TypeError: another interface")

    monkeypatch.setattr(bench_run, "measure_roofline", fails)
    run = bench(
        workloads=[replace(WORKLOADS["tiny"], name="Computers"), WORKLOADS["tiny"]],
        entries=[GCN],
    )
    assert len(finish(run)) == 2
    assert run.roofline == {"error": "TypeError: another interface"}


def test_names_choose_workloads_and_methods():
    assert [w.name for w in choose_workloads(["computers", "NCI1"], quick=False)] == [
        "Computers",
        "NCI1",
    ]
    assert "tiny" not in [w.name for w in choose_workloads(None, quick=False)]
    labels = [c.label for c in choose_entries(["geof", "gcn"], ["reference", "torch", "new"])]
    assert labels == ["gcn", "geof-torch", "geof-new", "geof-reference"]
    assert [c.label for c in choose_entries(["geof-new"], ["torch", "new"])] == ["geof-new"]
    edges = choose_entries(["geof-edges", "geof-new"], ["torch", "new"])
    assert [c.label for c in edges] == ["geof-edges-torch", "geof-new", "geof-edges-new"]
    every = choose_entries(None, ["reference"])
    assert not any(c.method == "geof-edges" for c in every), "run when named only"
    assert set(QUICK_LEAVES_OUT) < {c.label for c in every}


def test_methods_are_run_when_named_and_never_by_default():
    backends, methods = ["reference", "torch"], ["geof", "gcn", "hgcn", "amp"]
    default = choose_entries(None, backends, methods)
    assert not any(c.is_method for c in default)
    labels = [c.label for c in choose_entries(["amp", "geof", "hgcn", "gcn"], backends, methods)]
    assert labels == ["gcn", "amp", "hgcn", "geof-torch", "geof-reference"]
    (gcn,) = choose_entries(["gcn", "gcn"], backends, methods)
    assert not gcn.is_method  # the one of equal width, not the preset's


def test_the_papers_six_have_a_name():
    methods = ["argnn", "spdgnn", "hgcn", "g2former", "amp"]
    chosen = choose_entries(["paper"], ["reference", "native"], methods, "native")
    labels = [c.label for c in chosen]
    assert labels == ["gcn", "amp", "g2former", "spdgnn", "argnn", "geof-native"]
    more = choose_entries(["hgcn", "paper", "gat", "amp"], ["native"], methods, "native")
    assert {c.label for c in more} == {*labels, "hgcn", "gat"}
    assert len(more) == 8


def test_a_row_says_preset_and_stage(in_this_process):
    both = [WORKLOADS["tiny"], WORKLOADS["tiny-set"]]
    chosen = [GCN, Entry("hgcn"), Entry("sparrow")]
    rows = finish(bench(workloads=both, entries=chosen))
    for workload, preset in zip(both, ("published", "adapted"), strict=True):
        found = [rows[workload.name, c.label] for c in chosen]
        assert [row.preset for row in found] == [None, preset, "adapted"]
        assert [row.stage for row in found] == ["supervised", "supervised", "pretext"]
        assert all(row.status == "ok" and row.ratio_to_gcn > 0 for row in found)
        assert all(row.memory_epochs == 2 for row in found)


@pytest.mark.parametrize(("name", "preset"), [("tiny", "published"), ("tiny-set", "adapted")])
def test_the_memory_of_a_method_is_predicted_on_the_shape_it_has(
    name, preset, in_this_process, monkeypatch
):
    shapes = []

    def weigh(path, entry, epochs, device, *, say):
        problem = work.Problem.load(path)
        shapes.append(problem.shape)
        return Peak(1_000_000 * problem.facts.edges, 1)

    monkeypatch.setattr(work, "measure_memory", weigh)
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    monkeypatch.setattr(memory, "surely_fits", lambda facts, available: False)
    row = finish(bench(workloads=[WORKLOADS[name]], entries=[Entry("hgcn")]))[name, "hgcn"]
    assert row.status == "skipped"
    assert "1.0 GB are available" in row.reason
    assert (row.preset, row.stage) == (preset, "supervised")
    assert shapes == [WORKLOADS[name].shape] * 2


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'Computers'"):
        choose_workloads(["Computer"], quick=False)
    with pytest.raises(ConfigError, match="Did you mean 'geof-torch'"):
        choose_entries(["geof-toch"], ["torch"])
    with pytest.raises(ConfigError, match="Did you mean 'spdgnn'"):
        choose_entries(["spd-gnn"], ["torch"], ["spdgnn"])
