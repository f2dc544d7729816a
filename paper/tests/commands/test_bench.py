"""``geof bench`` as a user meets it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver

import pytest
import torch

from geof import cli
from geof.devices import resolve_device
from geof_paper.bench import catalogue
from geof_paper.commands import bench

REQUIRED = {"dataset", "model", "backend", "seconds_per_epoch", "peak_rss_bytes", "ratio_to_gcn"}
COMMAND = [sys.executable, "-m", "geof.cli", "bench"]


@pytest.fixture
def short(monkeypatch):
    from dataclasses import replace

    for name in ("FULL", "QUICK"):
        effort = replace(getattr(catalogue, name), seconds=0.1, most_rounds=3, total_seconds=None)
        monkeypatch.setattr(catalogue, name, effort)


def in_this_process(task, *arguments, threads, say, seconds=None):
    """Stand in for :func:`in_fresh_process`: no server to wait for that imports everything."""
    return task(*arguments, say=say)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr("geof_paper.bench.run.in_fresh_process", in_this_process)
    monkeypatch.setattr("geof_paper.bench.processes.start_server", lambda: None)


@pytest.fixture(params=["here", pytest.param("fresh processes", marks=pytest.mark.slow)])
def processes(request):
    """Measure in this process, and with more time as a user does."""
    if request.param == "here":
        request.getfixturevalue("here")
    else:
        forkserver._forkserver._stop()  # one that other tests started may not have the imports


def test_help_names_the_workloads_and_does_not_import_torch():
    code = (
        "import sys, geof.cli\n"
        "try: geof.cli.main(['bench', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Computers" in shown.stdout
    assert shown.stdout.strip().endswith("False")


def test_rows_summary_and_table_of_tiny_workloads(short, processes, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rows_file, summary_file = tmp_path / "deep" / "rows.json", tmp_path / "summary.json"
    arguments = ["--workloads", "tiny", "tiny-set", "--models", "gcn", "gcn-csr", "geof-torch"]
    files = ["--json", str(rows_file), "--summary", str(summary_file)]
    assert cli.main(["bench", *arguments, *files, "--threads", "1"]) == 0
    rows = json.loads(rows_file.read_text())
    assert [(row["dataset"], row["model"], row["backend"]) for row in rows] == [
        (dataset, model, backend)
        for dataset in ("tiny", "tiny-set")
        for model, backend in (("gcn", None), ("gcn-csr", None), ("geof", "torch"))
    ]
    for row in rows:
        assert row.keys() == rows[0].keys() >= REQUIRED
        assert row["status"] == "ok"
        assert row["source"] == "generated"
        assert row["inputs"] == "dense"
        assert row["machine"]["threads"] == 1
        assert row["peak_rss_bytes"] > row["peak_bytes_above_data"] >= 0
        base = next(r for r in rows if (r["dataset"], r["model"]) == (row["dataset"], "gcn"))
        expected = row["seconds_per_epoch"] / base["seconds_per_epoch"]
        assert row["ratio_to_gcn"] == pytest.approx(expected)
    summary = json.loads(summary_file.read_text())
    assert summary["roofline"] is None
    assert summary["growth"] == []
    assert summary["machine"]["torch"] == rows[0]["machine"]["torch"] != "unknown"
    text = capsys.readouterr().out
    assert "tiny-set: memory of geof-torch" in text  # plain progress
    for word in ("s/epoch", "geof", "torch", str(rows_file)):
        assert word in text


def test_a_quick_run_says_what_it_leaves_out(short, here, tmp_path, capsys):
    path = tmp_path / "rows.json"
    arguments = ["--quick", "--workloads", "tiny", "--json", str(path), "--quiet", "--threads", "1"]
    assert cli.main(["bench", *arguments]) == 0
    status = {(r["model"], r["backend"]): r["status"] for r in json.loads(path.read_text())}
    assert status["gat", None] == status["geof", "reference"] == "skipped"
    assert status["gcn", None] == status["geof", "torch"] == "ok"
    text = capsys.readouterr().out
    assert "geof-reference: left out of --quick" in text
    assert "preparing" not in text  # quiet


def test_what_was_named_is_not_left_out_of_a_quick_run(short, here, tmp_path):
    path = tmp_path / "rows.json"
    arguments = ["--quick", "--workloads", "tiny", "--models", "gat", "--json", str(path)]
    assert cli.main(["bench", *arguments, "--quiet", "--threads", "1"]) == 0
    (row,) = json.loads(path.read_text())
    assert row["status"] == "ok"
    assert row["ratio_to_gcn"] is None  # there is no GCN to compare with


def test_methods_are_rows_with_their_preset(short, here, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "rows.json"
    arguments = ["--workloads", "tiny", "--models", "gcn", "hgcn", "sparrow", "--json", str(path)]
    assert cli.main(["bench", *arguments, "--quiet", "--threads", "1"]) == 0
    rows = {row["model"]: row for row in json.loads(path.read_text())}
    assert list(rows) == ["gcn", "hgcn", "sparrow"]
    assert [row["preset"] for row in rows.values()] == [None, "published", "adapted"]
    assert rows["hgcn"]["ratio_to_gcn"] > 0 < rows["hgcn"]["peak_rss_bytes"]
    assert (rows["hgcn"]["stage"], rows["sparrow"]["stage"]) == ("supervised", "pretext")
    text = capsys.readouterr().out
    assert "published" in text
    assert "tiny, sparrow: an epoch of its pretext" in text
    assert "hgcn: an epoch of its pretext" not in text


def test_the_papers_six_are_chosen_with_the_fastest_geof(here, monkeypatch):
    labels = chosen(monkeypatch, "--models", "paper")
    assert labels[:-1] == ["gcn", "amp", "g2former", "spdgnn", "argnn"]
    assert labels[-1] in ("geof-native", "geof-torch")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*to a meta parameter")
def test_another_device_is_trained_on_and_told(
    short, here, elsewhere, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")
    path, summary = tmp_path / "rows.json", tmp_path / "summary.json"
    arguments = ["--workloads", "tiny", "tiny-set", "--methods", "gcn", "geof-torch", "--quiet"]
    files = ["--json", str(path), "--summary", str(summary)]
    assert cli.main(["bench", "--device", elsewhere, *arguments, *files, "--threads", "1"]) == 0
    rows = json.loads(path.read_text())
    assert len(rows) == 4
    for row in rows:
        assert (row["status"], row["device"], row["machine"]["device"]) == ("ok", "meta", "meta")
        assert row["seconds_per_epoch"] > 0
        assert row["peak_bytes_above_data"] is None
    assert json.loads(summary.read_text())["machine"]["device"] == "meta"
    text = capsys.readouterr().out
    assert "One training epoch on meta" in text
    assert "tiny, gcn: memory not measured: nothing counts the peak of a device" in text


def chosen(monkeypatch, *arguments):
    """Return the labels of what a command line would run."""
    from geof_paper.bench import run

    seen = []
    monkeypatch.setattr(run.Bench, "run", lambda self: seen.extend(self.entries) or [])
    monkeypatch.setattr(bench, "_print_rows", lambda console, rows: None)
    assert cli.main(["bench", "--workloads", "tiny", "--quiet", *arguments]) == 0
    return [entry.label for entry in seen]


def test_only_backends_that_serve_the_device_are_run(here, elsewhere, monkeypatch):
    labels = ["gcn", "gcn-csr", "gat", "geof-torch", "geof-reference"]
    assert chosen(monkeypatch, "--device", elsewhere) == labels
    assert chosen(monkeypatch, "--device", elsewhere, "--methods", "paper")[-1] == "geof-torch"
    assert chosen(monkeypatch, "--device", "cpu") == chosen(monkeypatch)


def test_a_gpu_has_its_own_backend(here, monkeypatch):
    """As far as one can see without one: what is chosen there, the backend that is fastest."""
    from geof import kernels

    monkeypatch.setattr("geof.devices.available_devices", lambda: ["cpu", "cuda:0"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Abacus")
    served = dict.fromkeys(("reference", "torch", "triton"))
    monkeypatch.setattr(kernels, "backends_on", lambda device, block_size: served)
    triton = type("Backend", (), {"name": "triton"})
    monkeypatch.setattr(kernels, "resolve_backend", lambda *given: triton)
    labels = ["gcn", "gcn-csr", "gat", "geof-torch", "geof-triton", "geof-reference"]
    assert chosen(monkeypatch, "--device", "cuda:0") == labels
    assert chosen(monkeypatch, "--device", "cuda:0", "--methods", "paper")[-1] == "geof-triton"


@pytest.mark.parametrize("mode", [[], ["--quick"], ["--profile"], ["--training"]])
def test_a_device_that_is_not_there_is_refused_before_anything_is_measured(
    mode, here, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("geof.devices.available_devices", lambda: ["cpu"])
    for module in ("run", "training", "processes"):
        place = f"geof_paper.bench.{module}.in_fresh_process"
        monkeypatch.setattr(place, lambda *a, **k: pytest.fail("worked"))
    path = tmp_path / "rows.json"
    assert cli.main(["bench", *mode, "--device", "cuda", "--json", str(path)]) == 1
    assert "Expected device 'cuda' to be here (there is 'cpu')" in capsys.readouterr().err
    assert cli.main(["bench", *mode, "--device", "gpu", "--json", str(path)]) == 1
    assert "Expected 'device' to be auto, cpu, cuda, mps or xpu" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "geof-native"], "to be usable here, but the native kernels are"),
        (["--methods", "gcn", "geof-edges-triton"], "Expected 'backend' to be usable here"),
        (["--methods", "geof-toch"], "Did you mean 'geof-torch'?"),
        (["--profile", "tiny"], "Expected '--profile' on the CPU, whose time it counts"),
    ],
)
def test_what_another_device_cannot_do_is_refused(
    arguments, message, here, elsewhere, capsys, monkeypatch
):
    for module in ("run", "processes"):
        place = f"geof_paper.bench.{module}.in_fresh_process"
        monkeypatch.setattr(place, lambda *a, **k: pytest.fail("worked"))
    assert cli.main(["bench", "--device", elsewhere, *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "tinny"], "Did you mean 'tiny'?"),
        (["--workloads", "tiny", "--models", "gcn-crs"], "Did you mean 'gcn-csr'?"),
        (["--workloads", "tiny", "--models", "spd-gnn"], "Did you mean 'spdgnn'?"),
        (["--workloads", "tiny", "--data-root", "/nowhere"], "Expected the data root"),
        (["--workloads", "tiny", "--json", "/proc/rows.json"], "Expected to write"),
    ],
)
def test_refusals(arguments, message, here, capsys, monkeypatch):
    monkeypatch.setattr(
        "geof_paper.bench.run.in_fresh_process", lambda *a, **k: pytest.fail("worked")
    )
    assert cli.main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_failed_entry_is_an_exit_code(short, here, tmp_path, monkeypatch, capsys):
    from geof_paper.bench import run
    from geof_paper.bench.timing import Times

    def broken(task, *arguments, threads, say, seconds=None):
        if task.__name__ == "measure_times":
            return {c: Times(error="ValueError: broken") for c in arguments[1]}
        return task(*arguments, say=say)

    monkeypatch.setattr(run, "in_fresh_process", broken)
    path = tmp_path / "rows.json"
    assert cli.main(["bench", "--workloads", "tiny", "--models", "gcn", "--json", str(path)]) == 1
    (row,) = json.loads(path.read_text())
    assert (row["status"], row["reason"]) == ("failed", "ValueError: broken")
    assert "ValueError: broken" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interruption_keeps_what_is_finished(tmp_path):
    path = tmp_path / "rows.json"
    arguments = ["--workloads", "tiny", "edges-1e6", "--models", "gcn", "--json", str(path)]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job ignores the signal, and so would all it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in process.stdout:
        if line.startswith("edges-1e6"):  # 'tiny' is finished
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert [row["dataset"] for row in json.loads(path.read_text())] == ["tiny"]


def test_progress_is_live_on_a_terminal_plain_elsewhere_and_none_when_quiet():
    from rich.console import Console

    for terminal, quiet, shown in ((True, False, True), (False, False, True), (True, True, False)):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=60)
        with bench._progress(console, quiet=quiet) as say:
            say("Computers: preparing")
            time.sleep(0.3)  # a live line is drawn some ten times a second
        assert ("Computers: preparing" in text.getvalue()) is shown
        assert ("\x1b[" in text.getvalue()) is (terminal and not quiet)


def test_whole_runs_are_measured_alone_and_side_by_side(tmp_path, capsys, monkeypatch):
    from geof.methods.registry import load_preset
    from geof_paper.bench import training

    seen = []

    def here(work, config, *, threads, say, seconds=None):
        seen.append(threads)
        return training.Pace(0.5, 10.0, 0.9, config.training.epochs)

    monkeypatch.setattr(training, "in_fresh_process", here)
    path = tmp_path / "rows.json"
    arguments = ["--training", "node:CiteSeer", "--threads", "2", "--json", str(path), "--quiet"]
    assert cli.main(["bench", *arguments]) == 0
    alone, beside = json.loads(path.read_text())
    assert seen == [2, 1, 1]
    assert (alone["workers"], alone["threads"], beside["workers"]) == (1, 2, 2)
    assert (alone["epochs_per_minute"], beside["epochs_per_minute"]) == (120, 240)
    epochs = load_preset("geof", "tuned", "node", "CiteSeer")["epochs"]
    assert beside["runs_per_hour"] == pytest.approx(2 * 3600 / (10 + epochs * 0.5))
    assert alone["device"] == str(resolve_device())
    assert "node:CiteSeer" in capsys.readouterr().out


def test_whole_runs_are_trained_on_the_named_device(elsewhere, tmp_path, capsys, monkeypatch):
    from geof_paper.bench import training

    seen = []

    def here(work, config, *, threads, say, seconds=None):
        seen.append(config.training.device)
        return training.Pace(0.5, 10.0, 0.9, config.training.epochs)

    monkeypatch.setattr(training, "in_fresh_process", here)
    monkeypatch.setattr("geof_paper.bench.processes.start_server", lambda: None)
    path = tmp_path / "rows.json"
    arguments = ["--training", "node:CiteSeer", "--threads", "1", "--json", str(path), "--quiet"]
    assert cli.main(["bench", *arguments, "--device", elsewhere]) == 0
    assert seen == ["meta"]
    assert [row["device"] for row in json.loads(path.read_text())] == ["meta"]
    assert "Whole runs on meta" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*to a meta parameter")
def test_the_pace_on_a_device_is_taken_when_it_has_done_its_work(elsewhere, monkeypatch):
    from geof.data import NodeGraph, digits_graph
    from geof.training import RunConfig
    from geof_paper.bench import devices, training

    digits = NodeGraph("CiteSeer", digits_graph(), tuple("0123456789"))
    monkeypatch.setattr("geof.data.sources.read_data", lambda *given: (digits, None))
    monkeypatch.setattr(training, "EPOCHS", 2)
    waited = []
    monkeypatch.setattr(devices, "synchronise", lambda device: waited.append(device.type))
    plain = {"task": "node", "method": "gcn", "data": {"dataset": "CiteSeer"}}
    pace = training.run_pace(RunConfig.parse({**plain, "device": elsewhere}), say=print)
    assert 0 < pace.inside < 1
    assert set(waited) == {"meta"}
    assert len(waited) > 8, "begin, end of each epoch and what is inside"


def test_a_pace_is_that_of_training(monkeypatch):
    """Few epochs, the test part unread, nothing left behind in the classes that are timed."""
    import torch

    from geof.data import NodeGraph, digits_graph
    from geof.training import RunConfig, Trainer
    from geof.training.network import Network
    from geof_paper.bench import training

    digits = NodeGraph("CiteSeer", digits_graph(), tuple("0123456789"))
    monkeypatch.setattr("geof.data.sources.read_data", lambda *given: (digits, None))
    monkeypatch.setattr(training, "EPOCHS", 3)
    parts = []
    evaluate = Trainer._evaluate

    def look(self, part, **options):
        parts.append(part)
        return evaluate(self, part, **options)

    monkeypatch.setattr(Trainer, "_evaluate", look)
    before = Network.forward, torch.Tensor.backward, torch.optim.Adam.step
    config = RunConfig.parse({"task": "node", "method": "gcn", "data": {"dataset": "CiteSeer"}})
    pace = training.run_pace(config, say=print)
    assert parts == ["validation"] * 3
    assert pace.epochs == config.training.epochs
    assert 0 < pace.inside < 1
    assert pace.seconds_per_epoch > 0 < pace.setup_seconds
    assert (Network.forward, torch.Tensor.backward, torch.optim.Adam.step) == before


def test_a_profile_prints_and_writes_both_tables(here, tmp_path, capsys, monkeypatch):
    from dataclasses import replace

    short = replace(catalogue.PROFILE, seconds=0.0, least_rounds=2, most_rounds=2)
    monkeypatch.setattr(catalogue, "PROFILE", short)
    monkeypatch.setattr("geof_paper.bench.processes.in_fresh_process", in_this_process)
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "profile.json"
    assert cli.main(["bench", "--profile", "tiny", "--json", str(path), "--quiet"]) == 0
    (row,) = json.loads(path.read_text())
    assert row["workload"] == "tiny"
    assert row["facts"]["source"] == "generated"
    assert row["machine"]["threads"] == 1
    assert [part["name"] for part in row["parts"]][:3] == ["gcn", "geof", "controller 64"]
    assert sum(share["share"] for share in row["shares"]) == pytest.approx(1)
    text = capsys.readouterr().out
    for word in ("frozen geometry", "dense products", "x GCN", "tiny (generated"):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "--training"], "Expected '--training' or '--profile'"),
        (["--profile", "--methods", "gcn"], "Expected '--profile' or '--methods'"),
        (["--profile", "PubMedd"], "Did you mean 'PubMed'?"),
        (["--training", "CiteSeer"], "Expected benchmarks as TASK:DATASET"),
        (["--training", "node:CiteSer"], "Did you mean 'CiteSeer'?"),
        (["--training", "--quick"], "Expected '--training' or '--quick'"),
    ],
)
def test_refusals_of_whole_runs(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("geof_paper.bench.processes.start_server", lambda: None)
    monkeypatch.setattr(
        "geof_paper.bench.training.in_fresh_process", lambda *a, **k: pytest.fail("worked")
    )
    assert cli.main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err
