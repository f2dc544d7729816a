"""``geof bench --training``: whole runs of ``geof train``, alone with all threads or side by side.

A run is read, built and trained as the command does it, for a few epochs. What a grid wants to know
is how many runs an hour brings: one after another with every thread, or one per core with one
thread each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from geof.errors import ConfigError, nearest
from geof_paper.bench.processes import Say, in_fresh_process

BENCHMARKS = ("node:CiteSeer", "node:PubMed", "link:CiteSeer", "graph:NCI1")
"""What is trained unless benchmarks are named."""

EPOCHS = 6
"""Epochs of a measured run; the first one, which meets empty caches, is not counted."""


class Pace(NamedTuple):
    """One run in a process of its own.

    Attributes:
        seconds_per_epoch: Mean without the first epoch, looks at validation included.
        setup_seconds: From the reading of the data to the first epoch.
        inside: Share of an epoch spent in the network's passes and the optimiser.
        epochs: Of the whole run, as the preset has it.
    """

    seconds_per_epoch: float
    setup_seconds: float
    inside: float
    epochs: int


@dataclass(frozen=True)
class TrainingRow:
    """Equal runs side by side.

    Attributes:
        benchmark: ``TASK:DATASET``.
        method: What was trained.
        preset: With which options.
        workers: Runs side by side.
        threads: Of each.
        epochs_per_minute: Of all workers together.
        runs_per_hour: Likewise, of the preset's length.
        inside: Mean share of an epoch inside the network and the optimiser.
        device: Where.
    """

    benchmark: str
    method: str
    preset: str
    workers: int
    threads: int
    epochs_per_minute: float
    runs_per_hour: float
    inside: float
    device: str = "cpu"


def measure_training(
    benchmarks: Sequence[str] | None,
    method: str,
    *,
    data_root: str | None,
    cores: int,
    say: Say,
    device: str | None = None,
) -> Iterator[TrainingRow]:
    """Yield, for each benchmark, one run with all cores, then one run per core.

    Args:
        benchmarks: Each as ``TASK:DATASET``.
        method: What to train.
        data_root: Folder of raw files.
        cores: CPU threads of all runs together.
        say: Receives lines of progress.
        device: Where (default: where ``geof train`` would).

    Raises:
        ConfigError: For a benchmark that is not ``TASK:DATASET``, or an unknown method.
        DeviceError: If the device is not here.
    """
    from geof.devices import resolve_device

    place = str(resolve_device(device))
    configs = {name: _config(name, method, data_root, device) for name in benchmarks or BENCHMARKS}
    for name, config in configs.items():
        for workers, threads in dict.fromkeys(((1, cores), (cores, 1))):
            say(f"{name}: {workers} x {threads} threads")
            with ThreadPoolExecutor(workers) as pool:
                paces = list(pool.map(lambda _: _fresh(config, threads, say), range(workers)))  # noqa: B023
            row = _row(name, config, workers, threads, paces)
            yield replace(row, device=place)


def _config(name: str, method: str, data_root: str | None, device: str | None) -> Any:
    from geof.data.catalogue import CATALOGUE
    from geof.training import RunConfig

    task, colon, dataset = name.partition(":")
    if not colon:
        raise ConfigError(
            f"Expected benchmarks as TASK:DATASET, such as {BENCHMARKS[0]} (got {name!r})."
        )
    if dataset not in CATALOGUE:
        raise ConfigError(f"Unknown dataset {dataset!r}. " + nearest(dataset, CATALOGUE))
    data = {"dataset": dataset, "data_root": data_root}
    return RunConfig.parse({"task": task, "method": method, "data": data, "device": device})


def _fresh(config: Any, threads: int, say: Say) -> Pace:
    pace: Pace = in_fresh_process(run_pace, config, threads=threads, say=say)
    return pace


def _row(name: str, config: Any, workers: int, threads: int, paces: Sequence[Pace]) -> TrainingRow:
    whole = [pace.setup_seconds + pace.epochs * pace.seconds_per_epoch for pace in paces]
    return TrainingRow(
        benchmark=name,
        method=config.method,
        preset=config.preset,
        workers=workers,
        threads=threads,
        epochs_per_minute=sum(60 / pace.seconds_per_epoch for pace in paces),
        runs_per_hour=sum(3600 / seconds for seconds in whole),
        inside=sum(pace.inside for pace in paces) / len(paces),
    )


def run_pace(config: Any, *, say: Say) -> Pace:
    """Train a few epochs of a run as ``geof train`` does, and time them."""
    from geof.data.sources import read_data
    from geof.devices import resolve_device
    from geof.training import Trainer, Watch, build_task
    from geof_paper.bench.devices import clock_on

    clock = clock_on(resolve_device(config.training.device))
    started = clock()
    before = config.pretraining.epochs
    short = replace(
        config,
        training=replace(config.training, epochs=EPOCHS),
        pretraining=replace(config.pretraining, epochs=min(before, EPOCHS)),
        read_test=False,
    )
    data, _ = read_data(short.data, short.task)
    ends: list[tuple[float, float]] = []
    with _inside_clock(clock) as inside:
        trainer = Trainer(short, build_task(short, data))
        ready = clock()
        trainer.watch = Watch(on_epoch=lambda _: ends.append((clock(), inside())))
        trainer.fit()
    (first, spent), (last, total) = ends[0], ends[-1]
    return Pace(
        seconds_per_epoch=(last - first) / (len(ends) - 1),
        setup_seconds=ready - started,
        inside=(total - spent) / (last - first),
        epochs=before + config.training.epochs,
    )


@contextmanager
def _inside_clock(clock: Callable[[], float]) -> Iterator[Callable[[], float]]:
    """Yield what tells the seconds so far, by a clock, in the network's passes and optimisers."""
    import torch

    from geof.training.network import Network

    spent, depth = 0.0, 0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent, depth
            depth += 1
            began = clock()
            try:
                return function(*arguments, **options)
            finally:
                depth -= 1
                spent += 0.0 if depth else clock() - began

        return call

    places: list[tuple[type, str]] = [(Network, "forward"), (Network, "outputs")]
    places += [(torch.Tensor, "backward"), (torch.optim.Adam, "step"), (torch.optim.AdamW, "step")]
    originals = [(place, name, getattr(place, name)) for place, name in places]
    for place, name, function in originals:
        setattr(place, name, timed(function))
    try:
        yield lambda: spent
    finally:
        for place, name, function in originals:
            setattr(place, name, function)
