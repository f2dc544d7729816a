"""Processor and wall-clock time per epoch of batches of graphs, for each process of a run.

    GEOF_DATA=DIR OMP_NUM_THREADS=1 python benchmarks/processes.py 64
    GEOF_DATA=DIR torchrun --standalone --nproc-per-node 2 benchmarks/processes.py 64

The word is the global batch size.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

from geof.data.sources import read_data
from geof.training import EpochReport, RunConfig, Trainer, Watch, adapted, build_task
from geof.training.distributed import join


def main() -> None:
    ranks = join()
    words = {"epochs": 5, "batch_size": int(sys.argv[1])}
    config = RunConfig.parse({"data": {"dataset": "NCI1"}, **words})
    data, _ = read_data(config.data, config.task, config.split)
    config = adapted(config, data)
    times: list[tuple[float, float]] = []

    def note(report: EpochReport | None = None) -> None:
        times.append((time.process_time(), time.perf_counter()))

    trainer = Trainer(config, build_task(config, data), ranks=ranks, watch=Watch(on_epoch=note))
    note()
    trainer.fit()
    for (before, began), (after, ended) in pairwise(times):
        print(f"rank {ranks.rank}: {after - before:.2f} s CPU, {ended - began:.2f} s", flush=True)


if __name__ == "__main__":
    main()
