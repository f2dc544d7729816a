"""The seam between a run and the processes that train it together.

An ordinary run has one, :data:`ALONE`, for which every method here is as good as nothing. Those
that ``torchrun`` starts, its *ranks*, are in :mod:`geof.training.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from geof.data.batching import NeighbourBatch

if TYPE_CHECKING:
    from geof.training.network import Network
    from geof.training.tasks import Scores, Task
    from geof.training.trainer import Trainer

T = TypeVar("T")
Differences: TypeAlias = Callable[[Any, Any], list[tuple[str, tuple[Any, Any]]]]


@dataclass(frozen=True, eq=False)
class Share:
    """A rank's share of a global batch.

    Attributes:
        start: Its first example.
        stop: The one after its last.
        total: Examples of the whole batch.
        counts: Whether it counts. Where there are fewer examples than ranks, those left over take
            part with an example of another, so that all ranks walk through the same layers.
        names: ``(n,)``, the numbers its nodes have in the whole batch; ``None`` for the same.
        weights: ``(n,)``, how much its nodes count in statistics over nodes; ``None`` for 1.
    """

    start: int
    stop: int
    total: int
    counts: bool = True
    names: Tensor | None = None
    weights: Tensor | None = None

    def of(self, examples: Tensor) -> Tensor:
        """Return its own of all examples, which stand in the last dimension."""
        return examples[..., self.start : self.stop]


class Ranks:
    """The processes of a run. This class is the one process of an ordinary run, and does nothing.

    Attributes:
        rank: The number of this one, from 0.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def writes(self) -> bool:
        """Whether this one writes the run folder and speaks."""
        return self.rank == 0

    def __deepcopy__(self, memo: object) -> Ranks:
        return self  # a copy of a network is trained by the same processes

    def device(self, name: str | None) -> str | None:
        """Return which device of those that a name may mean is this one's."""
        return name

    def record(self) -> dict[str, Any]:
        """Return what a run folder remembers."""
        return {}

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Tell the others of an error inside, and in words when another is lost."""
        yield

    def close(self) -> None:
        """Part when all are done."""

    def adopt(self, trainer: Trainer) -> None:
        """Make a trainer's network one of several that stay equal.

        Raises:
            ConfigError: If what is to be trained cannot be divided.
        """

    def agree(self, about: Callable[[], dict[str, Any]], differences: Differences) -> None:
        """Check that all ranks were asked for the same.

        Args:
            about: Returns what this one was asked for.
            differences: Returns in what two of them differ.

        Raises:
            ConfigError: On every rank, naming what differs.
        """

    def begin(self, seed: int, epoch: int, number: int) -> None:
        """Know that a step begins: what is dropped in it depends on it and the rank alone."""

    def share(self, total: int) -> Share:
        """Return this one's share of a batch with so many examples."""
        return Share(0, total, total)

    def around(
        self, batch: NeighbourBatch, seeds: Tensor, share: Share
    ) -> tuple[NeighbourBatch, Share]:
        """Return what some seeds of a sampled batch depend on, the seeds first."""
        return batch, share

    def loss(
        self,
        network: Network,
        loss: Callable[[Tensor], Tensor],
        share: Share,
        mass: Callable[[], float],
        *inputs: Any,
    ) -> Tensor:
        """Return the loss to step on.

        Args:
            network: What is trained.
            loss: Of its outputs, a mean over the share's examples.
            share: As :meth:`share` gave it.
            mass: Returns what that mean is divided by.
            inputs: Of the network.
        """
        return network.outputs(*inputs).loss(loss)

    def total(self, loss: Tensor) -> float:
        """Return the loss of the whole batch."""
        return float(loss.detach())

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return of each flag whether one rank has it."""
        return flags

    def summed(self, *counts: int) -> tuple[int, ...]:
        """Return each count over all ranks."""
        return counts

    def told(self, make: Callable[[], T]) -> T:
        """Return what rank 0 made, plain JSON values; the others wait as long as it takes."""
        return make()

    def each(self, make: Callable[[Tensor], Tensor], pieces: Sequence[Tensor]) -> Tensor:
        """Return what becomes of pieces, one below the other, every rank having made some."""
        return torch.cat([make(piece) for piece in pieces])

    def scores(self, task: Task, evaluate: Callable[[], Scores]) -> Scores:
        """Return how a network does: the same on every rank."""
        return evaluate()

    def copy_weights(self, network: Network) -> None:
        """Put the weights that rank 0 has into the others."""

    def copy_state(self, state: Path | None, load: Callable[[Path], None]) -> None:
        """Put the state that rank 0 goes on from into the others, which may not see its folder.

        Args:
            state: Rank 0's file; ``None`` for a run that begins, and on other ranks.
            load: Reads the state that a folder holds.
        """


ALONE = Ranks()
"""One process."""


def ranks_of(network: object) -> Ranks:
    """Return the processes that train a network."""
    return getattr(network, "ranks", ALONE)
