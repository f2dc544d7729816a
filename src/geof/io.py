"""Files: written to a temporary name and renamed, JSON and YAML read with their faults named.

YAML holds options. Training options stand at the top, the others in sections: ``options.steps=3``
on a command line is ``options: {steps: 3}`` in a file, the same names and values. PyYAML is
imported when a file is read or written, not before.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from geof.errors import ConfigError, DataError

if TYPE_CHECKING:
    import yaml

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

Tree: TypeAlias = dict[str, Any]


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` so that ``path`` holds either the old bytes or all of the new ones.

    Who may read the file is what the umask says, as for any other. What a process that was killed
    while it wrote the same file has left is removed.

    Raises:
        DataError: If the folder cannot be written to; nothing is left behind.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent, re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}"))
        temporary, handle = _created_beside(path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if fcntl is not None:  # renamed while held: nobody takes it for abandoned
                    os.replace(temporary, path)
            if fcntl is None:  # Windows renames no open file
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says when a file cannot be written into a :class:`DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Expected to write '{path}', but {error.strerror or error}. Check the path, the "
            "permissions and the free space."
        ) from error


def _created_beside(path: Path) -> tuple[Path, int]:
    """Create a temporary file beside ``path``, held until its handle is closed."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if hold(handle, temporary):
            return temporary, handle
        os.close(handle)


def hold(handle: int, path: Path) -> bool:
    """Hold a file or folder of this process's, so that nobody takes it for abandoned.

    The system lets go when the handle is closed or the process dies.

    Returns:
        Whether it is still there: somebody may have removed it before it was held.
    """
    if fcntl is None:
        return True
    with suppress(OSError):  # a file system without locks: nothing there is ever abandoned
        fcntl.flock(handle, fcntl.LOCK_EX)
    return os.path.lexists(path)


def remove_abandoned(folder: Path, name: re.Pattern[str]) -> None:
    """Remove what killed processes have left: files and folders of that name nobody holds."""
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]:
            with suppress(OSError), _held_by_nobody(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def temporary_folder(folder: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder in ``folder``, held, and removed at the end.

    One whose process was killed is removed when the next is made.
    """
    remove_abandoned(folder, re.compile(rf"{re.escape(prefix)}.*"))
    while True:
        path = Path(tempfile.mkdtemp(dir=folder, prefix=prefix))
        try:
            handle = None if fcntl is None else os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for abandoned: nobody held it yet
            continue
        if handle is None or hold(handle, path):
            break
        os.close(handle)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if handle is not None:
            os.close(handle)


@contextmanager
def _held_by_nobody(path: Path) -> Iterator[None]:
    """Hold what another process made; raise ``OSError`` if that one lives."""
    if fcntl is None:
        yield  # Windows removes no open file
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically."""
    text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")


def read_json(path: Path, expected: str, kind: type = dict) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        expected: What it should be, for the message: ``"a results file"``.
        kind: Type of the whole content: ``dict`` or ``list``.

    Raises:
        DataError: If the file is missing, unreadable, not JSON, nested too deeply to be read, or
            its content of another type.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, kind):
            raise TypeError(f"got a {type(content).__name__} instead of a {kind.__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"Expected {expected} at '{path}' ({reason}). Check the path, or make the file again."
        ) from error
    return content


# YAML 1.1 reads yes, no, on and off as booleans, 1e-3 as text, 1:30 as a number and 2024-01-31 as a
# date. SafeLoader's own tables are copied, not changed: other users of PyYAML keep theirs.
_NOT_READ = (RecursionError, ValueError)
"""Beside its own errors: nested too deeply, and a number of thousands of digits."""

_OURS = (":bool", ":float", ":int", ":timestamp")


@cache
def _loader() -> type[yaml.SafeLoader]:
    """Return a loader of YAML as people mean it.

    ``1e-3`` is a number, ``no`` and a date are words, and no key comes twice.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(_OURS)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for kind, pattern, first in (
        ("bool", r"^(?:true|True|false|False)$", "tTfF"),
        ("null", r"^None$", "N"),
        (
            "float",
            r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$",
            "-+.0123456789",
        ),
        ("int", r"^[-+]?(?:0|[1-9]\d*)$", "-+0123456789"),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), list(first))
    Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_repeats)
    return Loader


def _mapping_without_repeats(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Tree:
    import yaml

    tree: Tree = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(
                problem=f"expected a name for a key, got {key!r}", problem_mark=key_node.start_mark
            )
        if key in tree:
            raise yaml.MarkedYAMLError(
                problem=f"the key {key!r} comes twice", problem_mark=key_node.start_mark
            )
        tree[key] = loader.construct_object(value_node, deep=True)
    return tree


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """Return a dumper that quotes what :func:`_loader` would misread; lists go on one line."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    theirs = yaml.SafeDumper.yaml_implicit_resolvers
    Dumper.yaml_implicit_resolvers = {
        first: [*theirs.get(first, [])]
        + [pair for pair in resolvers if pair not in theirs.get(first, [])]
        for first, resolvers in _loader().yaml_implicit_resolvers.items()
    }
    Dumper.add_representer(
        list,
        lambda dumper, data: dumper.represent_sequence(
            "tag:yaml.org,2002:seq", data, flow_style=True
        ),
    )
    return Dumper


def read_yaml(path: Path) -> Tree:
    """Read a YAML file of options.

    Raises:
        DataError: If the file cannot be read.
        ConfigError: If it is not YAML or not a mapping; says where.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Expected a config file at '{path}' ({error}).") from error
    try:
        tree = yaml.load(text, _loader())  # a SafeLoader
    except (*_NOT_READ, yaml.YAMLError) as error:
        raise ConfigError(f"Expected '{path}' to be YAML ({_one_line(error)}).") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"Expected '{path}' to hold options as 'key: value' lines (got {type(tree).__name__})."
        )
    return tree


def parse_words(words: Sequence[str]) -> Tree:
    """Return ``KEY=VALUE`` words as a tree; values are read as YAML.

    Raises:
        ConfigError: For a word without ``=`` or a value that is not YAML.

    >>> parse_words(["epochs=3", "model.steps=4", "clip=1e-1", "patience=null"])
    {'epochs': 3, 'model': {'steps': 4}, 'clip': 0.1, 'patience': None}
    """
    import yaml

    tree: Tree = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"Expected options as KEY=VALUE (got {word!r}).")
        try:
            value = yaml.load(text, _loader())  # a SafeLoader
        except (*_NOT_READ, yaml.YAMLError) as error:
            raise ConfigError(
                f"Expected a value for '{key}' (got {text!r}: {_one_line(error)})."
            ) from error
        branch: Tree = value
        for name in reversed(key.split(".")):
            branch = {name: branch}
        tree = merge(tree, branch)
    return tree


def merge(*trees: Mapping[str, Any]) -> Tree:
    """Return the trees laid over one another, later ones on top."""
    merged: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            below = merged.get(key)
            if isinstance(below, dict) and isinstance(value, Mapping):
                value = merge(below, value)
            merged[key] = value
    return merged


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return a tree as YAML that :func:`read_yaml` reads back."""
    import yaml

    return yaml.dump(_plain(tree), Dumper=_dumper(), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _one_line(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())
