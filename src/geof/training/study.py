"""The folder of a search: what was asked for, and one process at a time that works on it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock, Timeout
from pydantic import Field

from geof.errors import ConfigError, DataError, FolderLockedError
from geof.io import dump_yaml, read_json, read_yaml, write_atomically, write_json
from geof.options import Count, declared
from geof.training.config import RunConfig
from geof.training.space import Space
from geof.training.sweep import Sweep, SweepConfig

ORDER = "sweep.json"
"""Written last when a study is made: a folder without it is none."""

SPACE = "space.yaml"
CONFIGS = ("config.yaml", "settings.yaml")
"""What is not searched; the second name is that of studies begun by earlier versions."""


@dataclass(frozen=True)
class Order(SweepConfig):
    """What ``sweep.json`` holds: what was asked for, beside the space and the config."""

    workers: Annotated[Count, Field(description="Number of processes.")] = 2
    metric: Annotated[str, Field(description="What is maximised.")] = ""
    data_hash: Annotated[str, Field(description="Of the data's content.")] = ""

    @classmethod
    def read(cls, folder: Path) -> Order:
        """Return the order of a study.

        Raises:
            DataError: If there is none or it is damaged.
        """
        stored = read_json(folder / ORDER, "a study of 'geof sweep'")
        try:
            if missing := set(declared(Order)) - stored.keys():
                raise ConfigError(f"Expected '{min(missing)}' (got none).")
            return cls.of(stored)
        except ConfigError as error:
            raise DataError(
                f"Expected '{folder / ORDER}' to be what 'geof sweep' wrote ({error})"
            ) from error


@dataclass(frozen=True)
class Study:
    """A study's folder and what its files say."""

    folder: Path
    order: Order
    base: RunConfig
    searched: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Study:
        """Return the study in a folder.

        Raises:
            DataError: If there is none or it is damaged.
            ConfigError: If what it trains cannot be trained by this version.
        """
        order = Order.read(folder)
        there = [folder / name for name in CONFIGS if (folder / name).exists()]
        base = RunConfig.parse(read_yaml(there[0] if there else folder / CONFIGS[0]))
        return cls(folder, order, base, read_yaml(folder / SPACE))

    @classmethod
    def require_room(cls, folder: Path) -> None:
        """Raise ``DataError`` unless a folder is new, empty or a study."""
        if not folder.exists() or (folder / ORDER).exists():
            return
        held = [e.name for e in folder.iterdir()] if folder.is_dir() else [folder.name]
        ours = (SPACE, *CONFIGS)
        held = [name for name in held if name not in ours and not name.startswith(".")]
        if held:
            raise DataError(
                f"Expected '--out' to be a new or empty folder, or a study to go on with (got "
                f"'{folder}' with {', '.join(sorted(held)[:3])}). Name another one."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other search out; the system lets go when this process dies.

        Raises:
            FolderLockedError: If another one is at work.
            DataError: If the folder cannot be written.
        """
        lock = FileLock(self.folder / ".sweep.lock", timeout=0)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise FolderLockedError(
                f"Expected nobody else to work on '{self.folder}', but another sweep does. Wait "
                "for it or name another folder."
            ) from error
        except OSError as error:
            raise DataError(
                f"Expected to write '{self.folder}', but {error.strerror or error}. Name another "
                "folder."
            ) from error
        with lock:
            yield

    def exists(self) -> bool:
        """Return whether one is in the folder already."""
        return (self.folder / ORDER).exists()

    @property
    def space(self) -> Space:
        """What is searched."""
        return Space.from_tree(self.searched, self.base)

    def write(self) -> None:
        """Write what the study is."""
        write_atomically(self.folder / SPACE, dump_yaml(self.searched).encode())
        write_atomically(self.folder / CONFIGS[0], self.base.to_yaml().encode())
        write_json(self.folder / ORDER, asdict(self.order))

    def require_same(self, before: Study) -> None:
        """Raise ``ConfigError`` unless a study begun before is this one."""
        old = replace(before.order, trials=self.order.trials, workers=self.order.workers)
        new = asdict(self.order)
        differ = [] if self.searched == before.searched else [SPACE]
        differ += [] if self.base == before.base else [CONFIGS[0]]
        differ += [key for key, value in asdict(old).items() if new[key] != value]
        if differ:
            raise ConfigError(
                f"Expected what '{self.folder}' was begun with (other: {', '.join(differ)}). Go on "
                f"with {self.go_on}, or name another folder."
            )

    @property
    def go_on(self) -> str:
        """The command that goes on with it."""
        return f"geof sweep --resume {shlex.quote(str(self.folder))}"

    def open(self) -> Sweep:
        """Open its database; its data are not needed for that."""
        return Sweep(self.folder, self.base, self.space, self.order)
