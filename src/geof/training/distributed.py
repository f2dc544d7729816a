"""Several processes that train one run together, connected by PyTorch's own engine.

``torchrun --nproc-per-node 2 -m geof train ...`` starts the processes, its *ranks*. Every rank has
the data and draws the same global batch; it works on its own part of it. What comes out is what one
process with that batch gets, up to rounding and dropout:

- a rank's loss counts by its share of the batch, and DistributedDataParallel adds the gradients;
- batch normalisation takes its statistics over the rows of all ranks;
- of a sampled neighbourhood a rank works on what its own seeds depend on. A node that several ranks
  need is counted once in those statistics.

Rank 0 alone writes. Whatever fails on one rank is told to the others through PyTorch's store.
"""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from geof.data.batching import NeighbourBatch
from geof.devices import AUTO
from geof.draws import raw_stream
from geof.errors import ConfigError, GeofError, RankError
from geof.methods.interface import HasEpochEnd
from geof.training.checkpoint import CURRENT
from geof.training.ranks import ALONE, Differences, Ranks, Share
from geof.training.synced import Loss, SyncedNorm, replica_of, synchronised, upstream
from geof.training.tasks import GraphTask, Scores, Task

if TYPE_CHECKING:
    from geof.training.network import Network
    from geof.training.trainer import Trainer

T = TypeVar("T")

MEETING_SECONDS = 50.0
"""How long ranks wait for each other at the start."""

SILENCE_SECONDS = 2.5
"""How long those that are left wait for a word of one that may be lost."""

_DROPOUT = 3  # the random stream of dropped entries; samplers and dropped edges have 0 to 2
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def join() -> Ranks:
    """Meet the other processes that a launcher started; alone if it started none.

    Raises:
        ConfigError: If what the environment says of them is incomplete or not a number.
        RankError: If the port is taken, or not all of them come.
    """
    if not any(os.environ.get(name) for name in ("RANK", "WORLD_SIZE")):
        return ALONE
    missing = [name for name in _NAMES if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"Expected {', '.join(_NAMES)} in the environment of each of several processes (no "
            f"{', '.join(missing)}). Start them with torchrun, which sets all, or unset RANK and "
            "WORLD_SIZE to train in one."
        )
    rank, count, port = (_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < count:
        raise ConfigError(
            f"Expected RANK from 0 to WORLD_SIZE - 1, which is {count - 1} (got {rank})."
        )
    return ALONE if count == 1 else _meet(rank, count, f"{os.environ['MASTER_ADDR']}:{port}")


def _number(name: str) -> int:
    value = os.environ[name]
    if not value.isdecimal():
        raise ConfigError(f"Expected {name} in the environment to be a number (got {value!r}).")
    return int(value)


def _meet(rank: int, count: int, place: str) -> TorchRanks:
    """Connect to all others."""
    met: list[Store] = []
    errors: list[Exception] = []

    def connect() -> None:
        limit = timedelta(seconds=MEETING_SECONDS)
        try:
            store, _, _ = next(iter(rendezvous("env://", rank, count, timeout=limit)))
            nccl = torch.cuda.is_available() and dist.is_nccl_available()
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",
                store=PrefixStore("torch", store),
                rank=rank,
                world_size=count,
            )
            met.append(store)
        except Exception as error:
            errors.append(error)

    # Something else that listens at the port may keep the client waiting beyond its own limit.
    meeting = threading.Thread(target=connect, daemon=True)
    meeting.start()
    meeting.join(MEETING_SECONDS + 5.0)
    if met:
        return TorchRanks(met[0], rank, count)
    why = _first_line(errors[0]) if errors else f"nothing came back in {MEETING_SECONDS:g} s"
    if "EADDRINUSE" in why:
        raise RankError(
            f"Expected {place} (MASTER_ADDR, MASTER_PORT) to be free for the processes to meet at, "
            "but another program listens there. Give another port: torchrun --master-port PORT, or "
            "torchrun --standalone on one machine."
        )
    raise RankError(
        f"Expected {count} processes to meet at {place} (MASTER_ADDR, MASTER_PORT) within "
        f"{MEETING_SECONDS:g} s, but rank {rank} did not get there: {why}. Start all of them with "
        "the same address, a port that nothing else uses, and the same WORLD_SIZE."
    )


class TorchRanks(Ranks):
    """Processes that PyTorch connects; made by :func:`join`."""

    def __init__(self, store: Store, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"geof/{attempt}", store)
        # Layers and gradients may ask for sums at the same time: they do not share a line.
        self._line = dist.new_group()
        self._tellings = 0
        self._has_left = False
        self._replica: DistributedDataParallel | None = None
        self._norms: list[SyncedNorm] = []

    def device(self, name: str | None) -> str | None:
        """Return which device of those that a name may mean is this one's: a GPU for each."""
        name = name or AUTO
        if name in (AUTO, "cuda") and torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", self.rank))
            name = f"cuda:{local % torch.cuda.device_count()}"
            torch.cuda.set_device(name)
        if name.partition(":")[0] not in (AUTO, "cpu", "cuda"):
            raise ConfigError(
                f"Expected a device that torch connects processes on, cpu or cuda (got {name!r})."
            )
        return name

    def record(self) -> dict[str, Any]:
        """Return how many there are."""
        return {"processes": self.count}

    # Errors -----------------------------------------------------------------------------------

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Tell the others of an error inside, and in words when another is lost."""
        with _asked_to_end():
            try:
                yield
            except (Exception, KeyboardInterrupt) as error:
                lost = self._lost(error) if _is_about_ranks(error) else None
                self._leave(None if lost or isinstance(error, RankError) else error)
                if lost is None:
                    raise
                raise lost from error

    def _leave(self, error: BaseException | None) -> None:
        """Say why, and keep the store, where it is here, until the others know."""
        if self._has_left:
            return
        self._has_left = True
        with suppress(RuntimeError):
            if error is not None:
                why = f"failed: {error}" if str(error) else f"was ended by {type(error).__name__}"
                self._store.compare_set("failed", "", f"rank {self.rank} {why}")
            self._store.set(f"left/{self.rank}", "")
            if self.rank or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                return
            self._replica = None
            dist.destroy_process_group()  # whoever waits for a sum with this one learns of it
            every = [f"left/{rank}" for rank in range(self.count)]
            deadline = time.monotonic() + 2 * SILENCE_SECONDS
            while time.monotonic() < deadline and not self._store.check(every):
                time.sleep(0.05)

    def _reported(self) -> RankError | None:
        """Return the error that a rank reported."""
        if not self._store.check(["failed"]):
            return None
        told = self._store.get("failed").decode().rstrip(".")
        return RankError(
            f"Expected all {self.count} processes of the run to go on, but {told}. What was saved "
            "last is there: the same command goes on from it."
        )

    def _lost(self, error: BaseException) -> RankError:
        """Return the error for a line that broke: find out whose end it was."""
        try:
            told, missing = self._roll_call()
        except RuntimeError:
            told, missing = None, [0]  # it kept the store that nobody can ask now
        if told is not None:
            return told
        who = f"rank {', '.join(map(str, missing))}" if missing else "one of them"
        return RankError(
            f"Expected all {self.count} processes of the run to go on, but {who} ended without a "
            f"word: it was killed, or its machine or network is down ({_first_line(error)}). Run "
            "the same command again: it goes on from the state that was saved last."
        )

    def _roll_call(self) -> tuple[RankError | None, list[int]]:
        """Return what a rank reported, and those that do not answer."""
        self._store.set(f"alive/{self.rank}", "")
        deadline = time.monotonic() + SILENCE_SECONDS
        while True:
            told = self._reported()
            missing = [r for r in range(self.count) if not self._store.check([f"alive/{r}"])]
            if told is not None or not missing or time.monotonic() > deadline:
                return told, missing
            time.sleep(0.05)

    # What the ranks know of each other --------------------------------------------------------

    def _await(self, key: str) -> str:
        """Return a value of the store, however long it takes, unless a rank fails meanwhile."""
        pause = 0.002
        while not self._store.check([key]):
            told = self._reported()
            if told is not None:
                raise told
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
        return self._store.get(key).decode()

    def told(self, make: Callable[[], T]) -> T:
        """Return what rank 0 made, plain JSON values; the others wait as long as it takes."""
        self._tellings += 1
        key = f"told/{self._tellings}"
        if self.writes:
            made = make()
            self._store.set(key, json.dumps(made))
            return made
        value: T = json.loads(self._await(key))
        return value

    def agree(self, about: Callable[[], dict[str, Any]], differences: Differences) -> None:
        """Check that all ranks were asked for the same. See :meth:`Ranks.agree`."""
        self._tellings += 1
        keys = [f"told/{self._tellings}/{rank}" for rank in range(self.count)]
        self._store.set(keys[self.rank], json.dumps(about()))
        first, *others = (json.loads(self._await(key)) for key in keys)
        for rank, other in enumerate(others, start=1):
            found = differences(first, other)
            if found:
                listed = "; ".join(f"{name}: {a} at rank 0, {b} there" for name, (a, b) in found)
                raise ConfigError(
                    "Expected all processes of a run to have the same options and data, but rank "
                    f"{rank} differs ({listed}). Start every one with the same command and the "
                    "same files."
                )

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return of each flag whether one rank has it."""
        return tuple(number > 0 for number in self.summed(*map(int, flags)))

    def summed(self, *counts: int) -> tuple[int, ...]:
        """Return each count over all ranks."""
        sums = torch.tensor(counts, dtype=torch.int64)
        dist.all_reduce(sums)
        return tuple(sums.tolist())

    def copy_state(self, state: Path | None, load: Callable[[Path], None]) -> None:
        """Put the state that rank 0 goes on from into the others. See :meth:`Ranks.copy_state`."""
        content = b"" if state is None else state.read_bytes()
        (size,) = self.summed(len(content))
        if not size:
            return
        values = torch.frombuffer(bytearray(content or size), dtype=torch.uint8)
        dist.broadcast(values, 0)
        if not self.writes:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / CURRENT).write_bytes(values.numpy().tobytes())
                load(Path(folder))

    def copy_weights(self, network: Network) -> None:
        """Put the weights that rank 0 has into the others."""
        for value in network.state_dict().values():
            dist.broadcast(value, 0)

    def close(self) -> None:
        """Part when all are done: rank 0 may keep the store that another still reads."""
        dist.barrier()

    # Training ---------------------------------------------------------------------------------

    def adopt(self, trainer: Trainer) -> None:
        """Make a trainer's network one of several that stay equal. See :meth:`Ranks.adopt`."""
        config, task, network = trainer.config, trainer.task, trainer.network
        if not task.divides:
            raise ConfigError(
                f"Expected batches that {self.count} processes can divide among them (got the "
                f"whole graph of the {task.kind} task at every step). Give batch_size=1024 "
                "fanouts=[10,10], or train in one process, without torchrun."
            )
        if config.pretraining.epochs or isinstance(network.encoder, HasEpochEnd):
            stage = "pre-training" if config.pretraining.epochs else "work between epochs"
            raise ConfigError(
                f"Expected a method that is trained by the task's loss alone in {self.count} "
                f"processes (got '{config.method}' with {stage} of its own). Train it in one "
                "process, without torchrun."
            )
        self._norms = synchronised(network, self._line)
        network.ranks = self

    def begin(self, seed: int, epoch: int, number: int) -> None:
        """Know that a step begins: what is dropped in it depends on it and the rank alone."""
        bits = raw_stream(seed, _DROPOUT, epoch, number, self.rank).random_raw()
        torch.manual_seed(int(bits) >> 1)

    def share(self, total: int) -> Share:
        """Return this one's share of a batch with so many examples."""
        start, stop = (total * rank // self.count for rank in (self.rank, self.rank + 1))
        return Share(start, stop, total) if start < stop else Share(0, 1, total, counts=False)

    def around(
        self, batch: NeighbourBatch, seeds: Tensor, share: Share
    ) -> tuple[NeighbourBatch, Share]:
        """Return what some seeds of a sampled batch depend on, the seeds first."""
        kept = upstream(batch, seeds)
        place = torch.full((batch.num_nodes,), -1)
        place[kept] = torch.arange(len(kept))
        source, target = (place[row] for row in batch.edge_index)
        inside = target >= 0  # the source of such an edge is there, too
        own = NeighbourBatch(
            batch.n_id[kept],
            torch.stack([source[inside], target[inside]]),
            len(seeds),
            None if batch.e_id is None else batch.e_id[inside],
        )
        return own, replace(share, names=kept, weights=self._node_weights(kept, share, batch))

    def _node_weights(self, kept: Tensor, share: Share, batch: NeighbourBatch) -> Tensor | None:
        """Return one over the number of ranks that have a node, where layers ask for it."""
        if not self._norms:
            return None
        holders = torch.zeros(batch.num_nodes)
        holders[kept] = float(share.counts)
        dist.all_reduce(holders)
        return share.counts / holders[kept].clamp(min=1.0)

    def loss(
        self, network: Network, loss: Loss, share: Share, mass: Callable[[], float], *inputs: Any
    ) -> Tensor:
        """Return the loss to step on, a rank's part of the batch's. See :meth:`Ranks.loss`."""
        for norm in self._norms:
            norm.weights = share.weights if share.counts else torch.zeros(())
        if self._replica is None or self._replica.module.network is not network:
            self._replica = replica_of(network)
        own = mass() if share.counts else 0.0
        every = torch.tensor(own, dtype=torch.float64)
        dist.all_reduce(every)
        # Gradients are averaged over the ranks; their sum is wanted.
        factor = self.count * own / float(every) if own else 0.0
        graded: Tensor = self._replica(loss, factor, *inputs)
        return graded

    def total(self, loss: Tensor) -> float:
        """Return the loss of the whole batch."""
        value = loss.detach().cpu().double() / self.count
        dist.all_reduce(value)
        return float(value)

    def each(self, make: Callable[[Tensor], Tensor], pieces: Sequence[Tensor]) -> Tensor:
        """Return what becomes of pieces, one below the other, every rank having made some."""
        own = {i: make(pieces[i]) for i in range(self.rank, len(pieces), self.count)}
        like = next(iter(own.values())) if own else make(pieces[0])
        # Rows that are another's are zero here: a sum puts them into their place, exactly.
        rows = [
            own[i] if i in own else like.new_zeros(len(piece), *like.shape[1:])
            for i, piece in enumerate(pieces)
        ]
        gathered = torch.cat(rows)
        dist.all_reduce(gathered)
        return gathered

    def scores(self, task: Task, evaluate: Callable[[], Scores]) -> Scores:
        """Return how a network does: the same on every rank.

        Batches of graphs are divided; one graph is seen by rank 0 alone, whose memory it may fill.
        """
        seen = evaluate() if isinstance(task, GraphTask) else None
        return Scores(**self.told(lambda: asdict(seen or evaluate())))


class _AskedToEndError(RuntimeError):
    """A launcher ends the processes that are left when one has failed."""


@contextmanager
def _asked_to_end() -> Iterator[None]:
    """Raise where a launcher's SIGTERM arrives, so that there is time for a last word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _AskedToEndError("the launcher ends the run")

    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_SIGNS = ("gloo", "nccl", "connection", "peer", "store", "socket", "timed out", "broken pipe")


def _is_about_ranks(error: BaseException) -> bool:
    """Return whether an error comes from a line to other processes, whatever its type."""
    if isinstance(error, GeofError):
        return False
    if isinstance(error, dist.DistError | _AskedToEndError):
        return True
    return isinstance(error, RuntimeError) and any(s in str(error).lower() for s in _SIGNS)


def _first_line(error: BaseException) -> str:
    """Return what torch says, without the place in its sources and its advice."""
    line = str(error).strip().partition("\n")[0].partition(" This is typically")[0]
    return re.sub(r"^\[/[^]]*\] ", "", line).rstrip(".")
