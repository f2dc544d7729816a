"""Options: types, ranges and meaning written once, as annotated fields and arguments.

An option is one value of a run. Groups of them are frozen dataclasses that derive from
:class:`Options`; the options of a method are the keyword arguments of its class. Either way the
annotation is the whole specification, ``Annotated[int, Field(ge=1, description="...")]``: pydantic
checks a value against it, strictly, and the messages here say what was expected, what came and
what to do.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache, wraps
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, Field, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from geof.errors import ConfigError, nearest

Count = Annotated[int, Field(ge=1)]
"""A positive integer."""

Probability = Annotated[float, Field(ge=0, lt=1)]
"""A probability of dropping something."""

Positive = Annotated[float, Field(gt=0)]
"""A number above zero."""

NonNegative = Annotated[float, Field(ge=0)]
"""A weight, a strength: zero or more."""

Share = Annotated[float, Field(ge=0, le=1)]
"""A part of a whole."""

P = ParamSpec("P")

_NO_DEFAULT = inspect.Parameter.empty


@dataclass(frozen=True)
class Option:
    """One option, as its annotation describes it.

    Attributes:
        name: Its name.
        hint: Its annotation.
        default: Its default; ``inspect.Parameter.empty`` where it has none.
    """

    name: str
    hint: Any
    default: Any = _NO_DEFAULT

    @property
    def wanted(self) -> str:
        """What it may be, in words: ``an integer >= 1``."""
        return _wanted(self.hint)

    @property
    def help(self) -> str:
        """Its meaning; empty where the annotation has none."""
        return next((f.description for f in _metadata(self.hint) if f.description), "")

    def check(self, value: Any, place: str = "") -> Any:
        """Return the value, a list made a tuple where one is wanted.

        Args:
            value: What was given.
            place: Section of a config file it stands in, with the dot, for the message.

        Raises:
            ConfigError: If it is of another type or out of range.
        """
        adapter = _adapter(self.hint)
        if adapter is None:
            return value
        try:
            return adapter.validate_python(_as_wanted(self.hint, value))
        except ValidationError:
            pass
        name = f"{place}{self.name}"
        if (choices := _choices(self.hint)) and not isinstance(value, list | tuple):
            require_option(name, None if value is None else str(value), choices)
        wanted = f"Expected '{name}' to be {self.wanted} (got {value!r})."
        raise ConfigError(f"{wanted} {self.help}".rstrip())


class Options:
    """Base of groups of options: frozen dataclasses whose annotations are checked."""

    def __post_init__(self) -> None:
        for option in declared(type(self)).values():
            value = getattr(self, option.name)
            object.__setattr__(self, option.name, option.check(value, self._place()))

    @classmethod
    def _place(cls) -> str:
        """Return the section of a config file the group stands in, with the dot."""
        return ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build from a mapping.

        Raises:
            ConfigError: For a name it does not have, naming the nearest, or a value out of range.
        """
        require_known(values, declared(cls), cls._place())
        return cls(**values)


_DECLARED: dict[Any, dict[str, Option]] = {}


def declared(kind: type[Any]) -> dict[str, Option]:
    """Return the options of a dataclass, by name."""
    if kind not in _DECLARED:
        hints = get_type_hints(kind, include_extras=True)
        _DECLARED[kind] = {f.name: Option(f.name, hints[f.name]) for f in fields(kind)}
    return _DECLARED[kind]


@cache
def arguments(function: Callable[..., object]) -> dict[str, Option]:
    """Return the arguments of a class or function as options, by name."""
    owner = function.__init__ if inspect.isclass(function) else function
    hints = get_type_hints(owner, include_extras=True)
    return {
        name: Option(name, hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def checked(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate a constructor: options it is given are checked against their annotations.

    The options are its keyword-only arguments. So a class refuses in Python what a config refuses,
    and types and ranges stand in one place.

    >>> class Layer:
    ...     @checked
    ...     def __init__(self, *, width: Count = 8) -> None:
    ...         self.width = width
    >>> Layer(width=0)
    Traceback (most recent call last):
    geof.errors.ConfigError: Expected 'width' to be an integer >= 1 (got 0).
    """

    @wraps(init)
    def checked_init(*given: P.args, **options: P.kwargs) -> None:
        own = arguments(init)
        for name in options.keys() & own.keys():
            options[name] = own[name].check(options[name])
        init(*given, **options)

    return checked_init


def require_known(names: Collection[str], valid: Collection[str], place: str = "") -> None:
    """Raise ``ConfigError`` for a name that is not valid, naming the nearest."""
    for name in names:
        if name not in valid:
            raise ConfigError(f"Unknown option '{place}{name}'. " + nearest(str(name), valid))


@cache
def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    try:
        return TypeAdapter(hint, config=config)
    except PydanticSchemaGenerationError:  # a type only its own code can judge
        return None


def _metadata(hint: Any) -> list[FieldInfo]:
    return [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, FieldInfo)]


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _as_wanted(hint: Any, value: Any) -> Any:
    """Return a list as a tuple and text as a path where one is wanted: YAML has neither."""
    if not isinstance(value, list | str):
        return value
    bare = _bare(hint)
    kinds = [_bare(kind) for kind in (get_args(bare) if _is_union(bare) else (bare,))]
    if isinstance(value, list) and any(get_origin(kind) is tuple for kind in kinds):
        return tuple(value)
    return Path(value) if isinstance(value, str) and Path in kinds else value


def _choices(hint: Any) -> tuple[str, ...]:
    bare = _bare(hint)
    if get_origin(bare) is Literal:
        return tuple(map(str, get_args(bare)))
    if _is_union(bare):
        return tuple(choice for part in get_args(bare) for choice in _choices(part))
    return ()


def _wanted(hint: Any) -> str:
    bare = _bare(hint)
    if _is_union(bare):
        parts = [part for part in get_args(bare) if part is not type(None)]
        words = [
            _wanted(Annotated[part, *hint.__metadata__] if bare is not hint else part)
            for part in parts
        ]
        return " or ".join([*words, *(["nothing"] if len(parts) < len(get_args(bare)) else [])])
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(map(repr, get_args(bare)))
    if get_origin(bare) is tuple:
        inner = get_args(bare)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return f"a list, each {_wanted(inner[0])}"
        return f"a list of {len(inner)}, each {_wanted(inner[0])}"
    named = {bool: "True or False", str: "text", int: "an integer", float: "a finite number"}
    named[Path] = "the name of a file"
    text = named.get(bare, f"a {getattr(bare, '__name__', bare)}")
    return text + _limits(hint, bare)


def _limits(hint: Any, bare: Any) -> str:
    found: list[str] = []
    for limit in (m for info in _metadata(hint) for m in info.metadata):
        match limit:
            case Ge(least):
                found.append(f">= {least}" if bare is int else f"of at least {least:g}")
            case Gt(above):
                found.append(f"above {above:g}")
            case Le(most):
                found.append(f"at most {most:g}")
            case Lt(below):
                found.append(f"below {below:g}")
    return "" if not found else " " + " and ".join(found)


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ``ConfigError`` unless ``value`` is a finite number in the range given."""
    limits = Field(gt=above, ge=least, le=most, lt=below)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    low = -math.inf if above is None else above
    high = math.inf if below is None else below
    if (
        not number
        or not math.isfinite(value)  # type: ignore[arg-type]
        or not low < value < high  # type: ignore[operator]
        or (least is not None and value < least)  # type: ignore[operator]
        or (most is not None and value > most)  # type: ignore[operator]
    ):
        wanted = _wanted(Annotated[float, limits])
        raise ConfigError(f"Expected '{name}' to be {wanted} (got {value!r}).")


def require_booleans(**values: object) -> None:
    """Raise ``ConfigError`` unless every value is ``True`` or ``False``: ``"off"`` is neither."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ConfigError(f"Expected '{name}' to be {_wanted(bool)} (got {value!r}).")


def require_option(name: str, value: object, options: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` unless ``value`` is one of ``options``, naming the nearest."""
    if value not in options:
        hint = nearest(str(value), options)
        raise ConfigError(f"Expected a known '{name}' (got {value!r}). {hint}")


def require_divisible(channels: int, blocks: int) -> int:
    """Return the block size ``channels / blocks``.

    Raises:
        ConfigError: If either is not a positive integer or ``blocks`` does not divide
            ``channels``.
    """
    require_positive("hidden_channels", channels)
    require_positive("blocks", blocks)
    if channels % blocks:
        divisors = [b for b in range(1, channels + 1) if channels % b == 0]
        above = blocks * (channels // blocks + 1)
        raise ConfigError(
            "Expected 'blocks' to divide 'hidden_channels' "
            f"(got hidden_channels={channels}, blocks={blocks}). "
            f"Use hidden_channels={above} or blocks in {{{', '.join(map(str, divisors))}}}."
        )
    return channels // blocks


def require_positive(name: str, value: int, *, least: int = 1) -> None:
    """Raise ``ConfigError`` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"Expected '{name}' to be an integer >= {least} (got {value!r}).")
