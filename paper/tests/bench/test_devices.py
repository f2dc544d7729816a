"""The bench on another device: moved once, waited for, weighed where it can be.

The device is pretended (:mod:`tests.pretended`); no GPU is needed, and none is tested.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from geof import devices as geof_devices
from geof_paper.bench import devices, memory, work
from geof_paper.bench import run as bench_run
from geof_paper.bench.catalogue import EDGES, WORKLOADS, Entry
from geof_paper.bench.devices import CPU, clock_on, counts_memory, free_bytes
from geof_paper.bench.methods import MethodTraining
from geof_paper.bench.networks import Training
from geof_paper.bench.problems import Piece, build_problem
from geof_paper.bench.run import Bench
from geof_paper.bench.work import Peak
from paper.tests.bench.test_run import GCN, SHORT, TORCH
from paper.tests.bench.test_run import bench as plain_bench
from tests.pretended import Elsewhere

# torch says it of the name alone: these tensors have memory, and are copied to.
pytestmark = pytest.mark.filterwarnings("ignore:.*to a meta parameter")

KINDS = ("tiny", "tiny-set")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "entry",
    [
        *(GCN, Entry("gcn-csr"), Entry("gat"), TORCH),
        pytest.param(Entry(EDGES, "torch"), marks=pytest.mark.slow),
    ],
    ids=lambda entry: entry.label,
)
def test_an_entry_trains_there_with_the_cpus_losses(kind, entry, elsewhere):
    problem = build_problem(WORKLOADS[kind])
    here, there = Training(entry, problem), Training(entry, problem.to(torch.device(elsewhere)))
    modules = (there.network.module, there.head)
    assert all(isinstance(p, Elsewhere) for module in modules for p in module.parameters())
    wanted = [here.epoch() for _ in range(2)]
    assert [there.epoch() for _ in range(2)] == pytest.approx(wanted, rel=1e-4)


def test_a_registered_method_trains_there_with_the_cpus_losses(elsewhere):
    problem = build_problem(WORKLOADS["tiny-set"])
    here, there = (
        MethodTraining(Entry("gcn-so"), p) for p in (problem, problem.to(torch.device(elsewhere)))
    )
    for training in (here, there):
        training.network.eval()
        training.network.train = lambda mode=True: None  # dropout draws other numbers elsewhere
    assert isinstance(next(there.network.parameters()), Elsewhere)
    assert there.epoch() == pytest.approx(here.epoch(), rel=1e-4)


def test_sparse_features_are_moved_too(elsewhere):
    sparse = replace(WORKLOADS["tiny"], density=0.2, sparse=True)
    problem = build_problem(sparse).to(torch.device(elsewhere))
    (piece,) = problem.pieces
    assert piece.x.layout == torch.sparse_csr
    assert isinstance(piece.x, Elsewhere)
    assert problem.device.type == "meta"


def test_on_the_cpu_nothing_is_moved():
    problem = build_problem(WORKLOADS["tiny"])
    assert problem.to(CPU).pieces[0].x is problem.pieces[0].x
    assert Training(GCN, problem).optimiser.defaults["fused"]


class TestTheClock:
    def test_it_waits_for_the_device(self, monkeypatch):
        waited = []
        monkeypatch.setattr(devices, "synchronise", waited.append)
        device = torch.device("cuda:1")
        clock = clock_on(device)
        assert not waited
        assert clock() <= clock()
        assert waited == [device, device]

    def test_that_of_the_cpu_does_not(self, monkeypatch):
        monkeypatch.setattr(devices, "synchronise", lambda device: pytest.fail("waited"))
        clock_on(CPU)()

    @pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
    def test_waiting_is_torchs_own(self, kind, monkeypatch):
        asked = []
        fake = SimpleNamespace(synchronize=lambda *given: asked.append((kind, *given)))
        monkeypatch.setattr(torch, kind, fake)
        device = torch.device(kind, 1)
        geof_devices.synchronise(device)
        assert asked == [("mps",) if kind == "mps" else (kind, device)]
        geof_devices.synchronise(CPU)
        assert len(asked) == 1

    def test_every_epoch_begins_and_ends_with_waiting(self, elsewhere, monkeypatch, tmp_path):
        """What a device still has to do when an epoch's calls return belongs to the epoch."""
        events = []
        monkeypatch.setattr(devices, "synchronise", lambda device: events.append(device.type))
        real = Training.epoch
        monkeypatch.setattr(Training, "epoch", lambda self: events.append("epoch") or real(self))
        path = tmp_path / "problem"
        build_problem(WORKLOADS["tiny"]).save(path)
        times = work.measure_times(path, (GCN,), SHORT, torch.device("meta"), say=lambda line: None)
        assert len(times[GCN].seconds) == 3
        assert events[0] == "epoch", "the toy"
        epochs = [number for number, event in enumerate(events) if event == "epoch"][1:]
        assert len(epochs) == 4
        assert all(events[n - 1] == events[n + 1] == "meta" for n in epochs)


def bench(device, **changes) -> Bench:
    both = [WORKLOADS[kind] for kind in KINDS]
    return plain_bench(**{"workloads": both, "device": torch.device(device), **changes})


@pytest.fixture
def in_this_process(monkeypatch):
    """Run the work here: the device is pretended in this process alone."""
    called = []

    def here(task, *arguments, threads, say, seconds=None):
        called.append(task.__name__)
        return task(*arguments, say=say)

    monkeypatch.setattr(bench_run, "in_fresh_process", here)
    return called


def finish(run: Bench):
    for _ in run.run():
        pass
    return run.rows


class Counters:
    """What torch tells of the memory of a device: 100 bytes held, 350 at the peak."""

    def __init__(self, free: int = 10**12) -> None:
        self.free, self.asked = free, []

    def mem_get_info(self, device):
        return self.free, 2 * self.free

    def empty_cache(self):
        self.asked.append("empty_cache")

    def reset_peak_memory_stats(self, device):
        self.asked.append("reset")

    def memory_allocated(self, device):
        self.asked.append("held")
        return 100

    def max_memory_allocated(self, device):
        self.asked.append("peak")
        return 350


class TestAWholeRun:
    @pytest.mark.slow
    def test_rows_say_where_and_why_memory_is_missing(self, elsewhere, in_this_process):
        run = bench(elsewhere)
        rows = finish(run)
        assert in_this_process == ["prepare", "measure_times"] * 2
        assert [(row.dataset, row.entry) for row in rows] == [
            (kind, entry) for kind in KINDS for entry in (GCN, TORCH)
        ]
        for row in rows:
            assert (row.status, row.device, row.machine["device"]) == ("ok", "meta", "meta")
            assert row.rounds == 3
            assert row.ratio_to_gcn > 0 < row.seconds_per_epoch
            assert row.peak_rss_bytes is row.peak_device_bytes is row.peak_bytes_above_data is None
            assert row.memory_epochs == 0
            assert row.reason.startswith("memory not measured: nothing counts the peak")

    def test_data_are_moved_once_before_the_clock_starts(
        self, elsewhere, in_this_process, monkeypatch
    ):
        moves, clocks = [], []
        real = Piece.to
        monkeypatch.setattr(
            Piece, "to", lambda piece, device: moves.append(len(clocks)) or real(piece, device)
        )
        monkeypatch.setattr(devices, "synchronise", clocks.append)
        finish(bench(elsewhere, workloads=[WORKLOADS["tiny-set"]], entries=[GCN]))
        batches = len(build_problem(WORKLOADS["tiny-set"]).pieces)
        assert moves == [0] * (batches + 1), "the batches, and one of the toy"
        assert clocks

    def test_the_peak_is_torchs_above_data_and_network(
        self, elsewhere, in_this_process, monkeypatch
    ):
        counters = Counters()
        monkeypatch.setattr(devices, "_counters", lambda device: counters)
        (row,) = finish(bench(elsewhere, workloads=[WORKLOADS["tiny"]], entries=[GCN]))
        assert counters.asked == ["empty_cache", "reset", "held", "peak"]
        assert (row.peak_device_bytes, row.peak_bytes_above_data) == (350, 250)
        assert row.peak_rss_bytes > 2**25, "the process's own"
        assert row.memory_ratio_to_gcn == 1.0
        assert (row.reason, row.memory_epochs) == (None, 2)

    def test_what_would_not_fit_there_is_skipped(self, elsewhere, in_this_process, monkeypatch):
        """100 kB are free: the data fit, and GeoF would need 1 MB by its small copies."""
        monkeypatch.setattr(devices, "_counters", lambda device: Counters(100_000))

        def weigh(path, entry, epochs, device, *, say):
            return Peak(1, 1, 10**6 if entry == TORCH else 1)

        monkeypatch.setattr(work, "measure_memory", weigh)
        monkeypatch.setattr(memory, "available_bytes", lambda: pytest.fail("asked the machine"))
        gcn, geof = finish(bench(elsewhere, workloads=[WORKLOADS["tiny"]]))
        assert (gcn.status, geof.status) == ("ok", "skipped")
        assert "are available" in geof.reason

    def test_the_roofline_is_the_cpus(self, elsewhere, in_this_process, monkeypatch):
        monkeypatch.setattr(bench_run, "measure_roofline", lambda *a, **k: pytest.fail("measured"))
        stand_in = replace(WORKLOADS["tiny"], name="Computers")
        run = bench(elsewhere, workloads=[stand_in], entries=[GCN])
        finish(run)
        assert run.roofline == {"error": "its roof is the CPU's, and this run was on meta"}


def test_who_counts_memory():
    assert counts_memory(CPU)
    assert counts_memory(torch.device("cuda:0"))
    assert counts_memory(torch.device("xpu:0"))
    assert not counts_memory(torch.device("mps:0"))
    assert free_bytes(torch.device("mps:0")) is None
    assert free_bytes(CPU) == pytest.approx(memory.available_bytes(), rel=0.2)


def test_a_gpu_is_called_by_its_name(monkeypatch):
    from geof_paper.bench.machine import describe_machine

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Abacus {device.index}")
    found = describe_machine(1, torch.device("cuda:3"))
    assert (found["device"], found["device_model"]) == ("cuda:3", "Abacus 3")
    plain = describe_machine(1)
    assert (plain["device"], plain["device_model"]) == ("cpu", None)
