"""One run of the benchmark: workload by workload, times first, then memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from geof_paper.bench import devices, memory, work
from geof_paper.bench.catalogue import QUICK_BATCHES, Effort, Entry, Workload
from geof_paper.bench.devices import CPU
from geof_paper.bench.machine import describe_machine
from geof_paper.bench.methods import config_of, stage_of, task_of
from geof_paper.bench.probes import predict, small_copies
from geof_paper.bench.problems import Facts
from geof_paper.bench.processes import FreshProcessError, Say, TimeUpError, in_fresh_process
from geof_paper.bench.roofline import measure_roofline
from geof_paper.bench.rows import Row, with_ratios
from geof_paper.bench.timing import Times

ROOFLINE_ON = "Computers"
"""The workload whose graph the edge kernel is measured on."""

_NOT_REACHED = "the run ended before its turn"
_LEFT_OUT = "left out of --quick; a run without --quick has it"
_TIME_UP = "the time of --quick was up"


@dataclass
class Bench:
    """What a run measures, and what it has found.

    Attributes:
        workloads: In order.
        entries: In order.
        effort: How much to spend.
        data_root: Folder of raw files; ``None`` to generate everything.
        threads: CPU threads of every process.
        left_out: Entries that get rows that say why they were not run.
        put_off: Entries that a quick run times last, as far as its time goes.
        say: Receives lines of progress.
        device: Where is trained.
        started: When the command began, by :func:`time.monotonic`.
        roofline: What :func:`geof_paper.bench.roofline.measure_roofline` found, once it has run, or
            ``error``.
    """

    workloads: Sequence[Workload]
    entries: Sequence[Entry]
    effort: Effort
    data_root: str | None
    threads: int
    left_out: Collection[Entry]
    put_off: Collection[Entry]
    say: Say
    device: torch.device = CPU
    started: float = field(default_factory=time.monotonic)
    roofline: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.machine = describe_machine(self.threads, self.device)
        self._rows: dict[str, dict[Entry, Row]] = {}
        self._probes: dict[tuple[Any, ...], int] = {}

    def run(self) -> Iterator[None]:
        """Yield whenever times or memory of a workload have been added."""
        with tempfile.TemporaryDirectory(prefix="geof-bench-") as name:
            folder = Path(name)
            for workload in self.workloads:
                path = folder / workload.name
                running = self._prepare(workload, path)
                self._time(workload, [c for c in running if c not in self.put_off], path)
                yield
                self._weigh(folder)
                yield
                if not self.effort.quick:
                    self._measure_kernels(workload, path)
                    yield
                    path.unlink()
            yield from self._finish_what_was_put_off(folder)

    def _finish_what_was_put_off(self, folder: Path) -> Iterator[None]:
        """Time the slow ones alone, one epoch each, then weigh them, as far as the time goes."""
        for workload in self.workloads:
            for entry, row in self._rows[workload.name].items():
                if entry in self.put_off and row.reason == _NOT_REACHED:
                    self._time(workload, [entry], folder / workload.name, alone=True)
                    yield
        self._weigh(folder)
        yield

    @property
    def rows(self) -> list[Row]:
        """The rows so far, with their ratios."""
        return [row for rows in self._rows.values() for row in with_ratios(list(rows.values()))]

    def _prepare(self, workload: Workload, path: Path) -> list[Entry]:
        """Write the problem, begin its rows and return who may run."""
        batches = QUICK_BATCHES if self.effort.quick else None
        facts: Facts = self._fresh(
            workload.name, work.prepare, workload, self.data_root, batches, path
        )
        refusals = self._refusals(workload, facts, path)
        self._rows[workload.name] = {
            entry: Row(
                dataset=workload.name,
                method=entry.method,
                backend=entry.backend,
                device=str(self.device),
                status="skipped",
                reason=refusals.get(entry, _NOT_REACHED),
                facts=asdict(facts),
                machine=self.machine,
                **_origin(entry, workload),
            )
            for entry in self.entries
        }
        return [entry for entry in self.entries if entry not in refusals]

    def _time(
        self, workload: Workload, running: list[Entry], path: Path, *, alone: bool = False
    ) -> None:
        """Time entries in one process; one that is alone has one round and a time limit."""
        effort = replace(self.effort, most_rounds=1) if alone else self.effort
        seconds = self._seconds_left() if alone else None
        rows = self._rows[workload.name]
        try:
            measured: dict[Entry, Times] = self._fresh(
                workload.name,
                work.measure_times,
                path,
                tuple(running),
                effort,
                self.device,
                seconds=seconds,
            )
        except TimeUpError:
            rows.update({c: replace(rows[c], reason=_TIME_UP) for c in running})
            return
        except FreshProcessError as error:
            measured = {entry: Times(error=str(error)) for entry in running}
        rows.update({c: _with_times(rows[c], times) for c, times in measured.items()})

    def _weigh(self, folder: Path) -> None:
        """Measure the memory of everyone timed and not yet weighed, the quickest first."""
        timed = [row for rows in self._rows.values() for row in rows.values()]
        timed = [row for row in timed if row.status == "ok" and not row.memory_epochs]
        for row in sorted(timed, key=lambda row: row.seconds_per_epoch or 0):
            if row.reason is None:  # else it was tried
                weighed = self._with_memory(row, folder / row.dataset)
                self._rows[row.dataset][row.entry] = weighed

    def _measure_kernels(self, workload: Workload, path: Path) -> None:
        if workload.name != ROOFLINE_ON:
            return
        if self.device.type != "cpu":
            self.roofline = {"error": f"its roof is the CPU's, and this run was on {self.device}"}
            return
        try:
            self.roofline = self._fresh("roofline", measure_roofline, path)
        except FreshProcessError as error:  # no reason to lose the workloads still to come
            self.roofline = {"error": str(error)}

    def _fresh(self, title: str, task: Any, *arguments: Any, seconds: float | None = None) -> Any:
        def say(line: str) -> None:
            self.say(f"{title}: {line}")

        return in_fresh_process(task, *arguments, threads=self.threads, say=say, seconds=seconds)

    def _refusals(self, workload: Workload, facts: Facts, path: Path) -> dict[Entry, str]:
        """Return who is not run on this workload, and why."""
        reasons = dict.fromkeys(self.left_out, _LEFT_OUT)
        free = devices.free_bytes(self.device)
        if free is None or memory.surely_fits(facts, free):
            return reasons
        for entry in self.entries:
            if entry in reasons:
                continue
            try:
                predicted = self._predict(workload, facts, entry, path.with_name("probe.pt"))
                reason = memory.refusal(predicted, devices.free_bytes(self.device) or 0)
            except FreshProcessError as error:
                reason = f"its memory could not be predicted: {error}"
            if reason is not None:
                reasons[entry] = reason
        return reasons

    def _predict(self, workload: Workload, facts: Facts, entry: Entry, path: Path) -> int:
        """Return the peak to expect, from two small copies of the workload."""
        copies = small_copies(workload, facts)
        peaks = [self._probe(copy, entry, path) for copy in copies]
        return predict([copy.sizes for copy in copies if copy.sizes], peaks, facts)

    def _probe(self, copy: Workload, entry: Entry, path: Path) -> int:
        """Return the peak on a small copy, measured once per run."""
        key = (entry, copy.shape, copy.benchmark, copy.sparse, copy.sizes)
        if key not in self._probes:
            title = f"{copy.name}, on a small copy"
            self._fresh(title, work.prepare, copy, None, None, path)
            peak = self._fresh(title, work.measure_memory, path, entry, 1, self.device)
            self._probes[key] = peak.needed
        return self._probes[key]

    def _with_memory(self, row: Row, path: Path) -> Row:
        if not devices.counts_memory(self.device):
            told = f"nothing counts the peak of a device of the kind '{self.device.type}'"
            return replace(row, reason=f"memory not measured: {told}")
        epochs = 1 if row.rounds == 1 else self.effort.memory_epochs
        try:
            peak = self._fresh(
                row.dataset,
                work.measure_memory,
                path,
                row.entry,
                epochs,
                self.device,
                seconds=self._seconds_left(),
            )
        except TimeUpError:
            return replace(row, reason=f"memory not measured: {_TIME_UP}")
        except FreshProcessError as error:
            return replace(row, reason=f"memory not measured: {error}")
        return replace(
            row,
            peak_rss_bytes=peak.peak,
            peak_device_bytes=peak.on_device,
            peak_bytes_above_data=peak.above_data,
            memory_epochs=epochs,
        )

    def _seconds_left(self) -> float | None:
        limit = self.effort.total_seconds
        return None if limit is None else max(0.0, limit - (time.monotonic() - self.started))


def _origin(entry: Entry, workload: Workload) -> dict[str, Any]:
    """Return the row's fields that say where a registered method's options come from."""
    if not entry.is_method:
        return {}
    config = config_of(entry.method, task_of(workload.shape), workload.benchmark)
    return {"preset": config.preset, "stage": stage_of(config)}


def _with_times(row: Row, times: Times) -> Row:
    if times.error is not None:
        return replace(row, status="failed", reason=times.error)
    return replace(
        row,
        status="ok",
        reason=None,
        seconds_per_epoch=times.median,
        seconds_quartiles=times.quartiles,
        rounds=len(times.seconds),
    )
