"""The space a search draws from: choices and ranges of settings, checked before anything runs."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from geof.errors import ConfigError, nearest
from geof.training import Plan
from geof.yaml_files import merge

_RANGE_KEYS = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Choices:
    """A setting that takes one of several values, each plain JSON."""

    values: tuple[Any, ...]

    def distribution(self, optuna: Any) -> Any:
        """Return Optuna's form. The choices are JSON text, as a list is no choice to Optuna."""
        return optuna.distributions.CategoricalDistribution([as_json(v) for v in self.values])


@dataclass(frozen=True)
class Range:
    """A setting between two numbers, whole ones if ``whole``."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    @property
    def values(self) -> tuple[Any, ...]:
        """The ends."""
        return self.low, self.high

    def distribution(self, optuna: Any) -> Any:
        """Return Optuna's form."""
        kinds = optuna.distributions
        with warnings.catch_warnings():  # of a step that does not end at 'high'
            warnings.simplefilter("ignore")
            if self.whole:
                return kinds.IntDistribution(self.low, self.high, self.log, self.step or 1)
            return kinds.FloatDistribution(self.low, self.high, self.log, self.step)


@dataclass(frozen=True)
class Space:
    """What is searched: dotted settings, each with its choices or its range."""

    dimensions: Mapping[str, Choices | Range]

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], base: Plan) -> Space:
        """Read a space and try every value it names, each beside the first of the others.

        Args:
            tree: Settings, dotted or in sections, with lists of values or
                ``{low:, high:, log:, step:}``.
            base: The settings a point is laid over.

        Raises:
            ConfigError: For an unknown setting, naming the nearest, or a value it cannot have.
        """
        # Not the given values: who fixes 'weight_decay: 0' still has a real setting.
        known = dict(_flat(Plan.from_tree({}, task=base.task, encoder=base.encoder).tree()))
        dimensions: dict[str, Choices | Range] = {}
        for key, value in _flat(tree):
            if key in dimensions:
                raise ConfigError(f"Expected '{key}' once in the space (got it twice).")
            if key not in known:
                raise ConfigError(f"Unknown setting {key!r} in the space. " + nearest(key, known))
            dimensions[key] = _dimension(key, value, known[key])
        if not dimensions:
            raise ConfigError("Expected settings to search in the space (got none).")
        space = cls(dimensions)
        for values in space._samples():
            laid_over(base, values, base.split, own_seed=True)
        return space

    def points(self) -> Iterator[dict[str, str]]:
        """Yield every point of a grid as Optuna's parameters, the last setting fastest."""
        texts = ([as_json(value) for value in d.values] for d in self.dimensions.values())
        for point in product(*texts):
            yield dict(zip(self.dimensions, point, strict=True))

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings for Optuna's parameters."""
        return {
            key: json.loads(parameters[key]) if isinstance(d, Choices) else parameters[key]
            for key, d in self.dimensions.items()
        }

    def _samples(self) -> Iterator[dict[str, Any]]:
        first = {key: dimension.values[0] for key, dimension in self.dimensions.items()}
        for key, dimension in self.dimensions.items():
            yield from ({**first, key: value} for value in dimension.values)


def laid_over(base: Plan, values: Mapping[str, Any], split: str, *, own_seed: bool) -> Plan:
    """Return a plan with values put over it, on a split; its seed too unless it is its own."""
    tree = base.tree()
    if not own_seed:
        del tree["seed"]  # then a plan takes the number of its split
    return Plan.from_tree(
        merge(tree, _nested(values)),
        task=base.task,
        encoder=base.encoder,
        preset=base.preset,
        split=split,
        folds=base.folds,
    )


def _dimension(key: str, value: Any, default: Any) -> Choices | Range:
    if isinstance(value, list) and value:
        return _choices(key, value)
    if isinstance(value, Mapping):
        return _range(key, value, default)
    raise ConfigError(
        f"Expected a list of values or {{low: ..., high: ...}} for '{key}' (got {value!r}). A "
        f"setting that is not searched goes on the command line: {key}=VALUE."
    )


def _choices(key: str, values: Sequence[Any]) -> Choices:
    try:
        texts = [as_json(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Expected plain finite values for '{key}' ({error}).") from error
    if len(set(texts)) != len(texts) or any(isinstance(value, Mapping) for value in values):
        raise ConfigError(f"Expected different values for '{key}', no sections (got {values}).")
    return Choices(tuple(values))


def _range(key: str, given: Mapping[str, Any], default: Any) -> Range:
    for name in given:
        if name not in _RANGE_KEYS:
            raise ConfigError(f"Unknown '{name}' for '{key}'. " + nearest(str(name), _RANGE_KEYS))
    low, high, step = (_number(key, name, given) for name in ("low", "high", "step"))
    log = given.get("log", False)
    if low is None or high is None or low > high or type(log) is not bool:
        raise ConfigError(f"Expected low <= high and log: true or false for '{key}' (got {given}).")
    if log and (low <= 0 or step is not None):
        raise ConfigError(f"Expected 0 < low and no step beside 'log: true' for '{key}'.")
    if step is not None and step <= 0:
        raise ConfigError(f"Expected 'step' of '{key}' to be above 0 (got {step}).")
    whole = all(isinstance(n, int) for n in (low, high, step) if n is not None)
    if isinstance(default, int) and not whole:
        raise ConfigError(f"Expected whole numbers for '{key}' (got {dict(given)}).")
    # '{low: 0, high: 1}' of a setting such as dropout means every number in between.
    return Range(low, high, log, step, whole and not isinstance(default, float))


def _number(key: str, name: str, given: Mapping[str, Any]) -> float | None:
    number = given.get(name)
    if number is not None and (type(number) not in (int, float) or not math.isfinite(number)):
        raise ConfigError(f"Expected '{name}' of '{key}' to be a number (got {number!r}).")
    return number


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        branch = tree
        for name in sections:
            branch = branch.setdefault(name, {})
        branch[last] = value
    return tree


def as_json(value: Any, *, sort_keys: bool = False) -> str:
    """Return plain values as JSON text."""
    return json.dumps(value, sort_keys=sort_keys, allow_nan=False)
