"""What all estimators share: parameters, the config they make, training, and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import exceptions
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import Tensor

from geof.data.records import EdgeColumns, GraphSet, NodeGraph
from geof.data.splits import FittingSplit, holdout_split
from geof.data.targets import CLASSES, TargetFacts, TargetKind, array_targets
from geof.devices import random_numbers_kept, resolve_device
from geof.errors import ConfigError, DataError, GeofError, ShapeError
from geof.io import merge
from geof.methods.interface import TaskKind
from geof.methods.registry import AUTO, default_preset
from geof.options import declared, require_known
from geof.training.callbacks import Callback, EpochLines
from geof.training.chosen import adapted
from geof.training.config import SECTIONS, RunConfig
from geof.training.predict import Run
from geof.training.stages import TrainingConfig
from geof.training.tasks import Task
from geof.training.trainer import Trainer

_SHARED = ("graph", "callbacks")
"""Parameters that clones share instead of copying: they can be large, or hold a connection."""


class NotFittedError(GeofError, exceptions.NotFittedError):  # type: ignore[misc]  # no types
    """An estimator was asked for what it learns in ``fit``."""


class GeoFEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Base of the estimators: parameters are stored untouched, what is learned ends in ``_``.

    Args:
        method: What is trained, a registered method such as ``"geof"`` or ``"gcn"``.
        preset: Options that come with it (default: ``"auto"``, chosen by the data).
        epochs: Most passes over the training part (default: the preset's).
        patience: Epochs without a better one after which training ends, likewise.
        learning_rate: Likewise.
        metric: What chooses the epoch, such as ``"roc_auc"`` (default: by the task).
        settings: Any other option by the name the command line gives it, such as
            ``{"options.steps": 3, "signature.method": "estimate"}``. ``set_params`` and the grids
            of a search take these names directly.
        validation_fraction: The share of what is given to ``fit`` that chooses the epoch.
        random_state: Seed of the parameters and of that share.
        device: Where to train and predict, such as ``"cuda:1"`` (default: a CUDA device where there
            is one, else the CPU).
        directed: Whether edges keep their direction.
        edge_columns: What to do with weights and attributes of edges: ``"refuse"``, ``"ignore"`` or
            ``"use"``.
        callbacks: :class:`~geof.training.callbacks.Callback` objects that follow the training.
        verbose: Print a line every so many epochs; 0 prints nothing.
    """

    _task: ClassVar[TaskKind]

    def __init__(
        self,
        *,
        method: str = "geof",
        preset: str | None = None,
        epochs: int | None = None,
        patience: int | None = None,
        learning_rate: float | None = None,
        metric: str | None = None,
        settings: Mapping[str, Any] | None = None,
        validation_fraction: float = 0.2,
        random_state: Any = 0,
        device: str | None = None,
        directed: bool = False,
        edge_columns: EdgeColumns = "refuse",
        callbacks: Sequence[Callback] | None = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.preset = preset
        self.epochs = epochs
        self.patience = patience
        self.learning_rate = learning_rate
        self.metric = metric
        self.settings = settings
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.directed = directed
        self.edge_columns = edge_columns
        self.callbacks = callbacks
        self.verbose = verbose

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or options by the name the command line gives them.

        Raises:
            ConfigError: For a name that is neither, with the nearest one.
        """
        own = {name: value for name, value in params.items() if name in self.get_params(deep=False)}
        options = {name: value for name, value in params.items() if name not in own}
        for name in options:
            if name.partition(".")[0] not in SECTIONS or "." not in name:
                require_known([name], [*self.get_params(deep=False), *declared(TrainingConfig)])
        super().set_params(**own)
        if options:
            self.settings = {**(self.settings or {}), **options}
        return self

    def __sklearn_clone__(self) -> Self:
        params = self.get_params(deep=False)
        return type(self)(
            **{n: value if n in _SHARED else deepcopy(value) for n, value in params.items()}
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.no_validation = True  # nodes and graphs are no matrix of features
        return tags

    # Training ---------------------------------------------------------------------------------

    def _config(self) -> RunConfig:
        """Return the config that the parameters make."""
        named = ("epochs", "patience", "learning_rate", "metric", "device")
        given = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        layers = [_layer(name, value) for name, value in (self.settings or {}).items()]
        preset = self.preset or default_preset(self.method, own_data=True)
        about = {"method": self.method, "task": self._task, "preset": preset, "seed": self._seed()}
        return replace(RunConfig.parse(*layers, given, about), read_test=False)

    def _seed(self) -> int:
        """Return the seed of a fit; another one each time for ``random_state=None``."""
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    @property
    def _standardises(self) -> bool:
        """Whether columns of numbers are standardised, as those of tables are."""
        return (self.preset or default_preset(self.method, own_data=True)) == AUTO

    def _train(self, config: RunConfig, task: Task) -> None:
        """Train and keep what came of it; the caller's random numbers stay as they were."""
        callbacks = [*(self.callbacks or ())]
        if self.verbose:
            callbacks.append(EpochLines(self.verbose))
        with random_numbers_kept(resolve_device(config.training.device)):
            trainer = Trainer(config, task, callbacks=callbacks)
            self.result_ = trainer.fit()
        self.run_ = Run.of(trainer)
        self.config_ = trainer.config
        self.history_ = [asdict(report) for report in trainer.progress.reports]
        self.n_iter_ = self.result_.epochs

    def _adapted(self, config: RunConfig, data: NodeGraph | GraphSet) -> RunConfig:
        self.notes_ = tuple(data.notes)
        return adapted(config, data)

    def _require_fitted(self) -> None:
        if not hasattr(self, "run_"):
            name = type(self).__name__
            raise NotFittedError(f"Expected a fitted {name} (got one before 'fit'). Call fit.")


@dataclass(frozen=True)
class Targets:
    """What was given to learn, as the engine has it.

    Attributes:
        y: Class indices ``(n,)``, or targets ``(n, T)``.
        names: Of the classes or targets.
        facts: What they are.
        classes: What the classes were given as; ``None`` for numbers.
        flat: Whether predictions have one column less: ``y`` had one dimension.
    """

    y: Tensor
    names: tuple[str, ...]
    facts: TargetFacts
    classes: NDArray[Any] | None = None
    flat: bool = True

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of classes, as a graph has them."""
        return self.names if self.facts.kind == "classes" else ()

    @classmethod
    def classified(cls, y: Any, count: int) -> Targets:
        """Return classes, or the yes-or-no targets of a matrix of zeros and ones.

        Raises:
            DataError: If a label is missing, or there is a single class.
        """
        values = label_rows(y, count)
        if values.ndim == 2:
            facts = TargetFacts("binary", tuple(f"target_{i}" for i in range(values.shape[1])))
            known = array_targets(values, count, facts)
            return cls(known, facts.names, facts, np.array([0, 1]), flat=False)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(
                f"Expected a class for every row (got {values[~np.isfinite(values)][0]}). Leave "
                "rows without a label out."
            )
        if values.dtype.kind == "f" and (values != np.floor(values)).any():
            raise DataError(
                "Expected classes (got numbers that are not whole: Unknown label type). Predict "
                "numbers with a regressor."
            )
        classes, inverse = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise DataError(
                f"Expected at least two classes (got one class, {classes.tolist()}). Give rows of "
                "another one as well."
            )
        names = tuple(map(str, classes.tolist()))
        return cls(torch.from_numpy(inverse.reshape(-1)), names, CLASSES, classes)

    @classmethod
    def numeric(cls, y: Any, count: int) -> Targets:
        """Return numbers; NaN where one of several is missing."""
        values = label_rows(y, count)
        width = values.shape[1] if values.ndim == 2 else 1
        several = tuple(f"target_{i}" for i in range(width))
        facts = TargetFacts("regression", several if values.ndim == 2 else ("target",))
        known = array_targets(values, count, facts)
        if bool(known.isnan().all(1).any()):
            raise DataError("Expected a number for every row (got NaN). Leave such rows out.")
        return cls(known, facts.names, facts, None, values.ndim == 1)

    def split(self, validation: float, seed: int) -> FittingSplit:
        """Hold a share of the rows out, of every class alike."""
        strata = self.y if self.facts.kind == "classes" else None
        return holdout_split(len(self.y), seed, validation, stratify=strata)

    def with_rows(self, y: Any, count: int) -> Targets:
        """Return further rows of the same classes or targets."""
        values = label_rows(y, count)
        kind: TargetKind = self.facts.kind
        if kind != "classes" or self.classes is None:
            return replace(self, y=array_targets(values, count, self.facts))
        place = np.searchsorted(self.classes, values).clip(max=len(self.classes) - 1)
        if (strange := values[self.classes[place] != values]).size:
            raise DataError(
                f"Expected the classes of training, {self.classes.tolist()} (got {strange[0]!r})."
            )
        return replace(self, y=torch.from_numpy(place.astype(np.int64)))

    def said(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return predictions as ``y`` was given, from probabilities or numbers."""
        if self.facts.kind == "binary":
            return (values >= 0.5).astype(np.int64)
        if self.classes is not None:
            chosen: NDArray[Any] = self.classes[values.argmax(1)]
            return chosen
        return values[:, 0] if self.flat else values


def label_rows(y: Any, count: int) -> NDArray[Any]:
    """Return labels as an array with a row per sample; a single column is flattened."""
    values = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2) or len(values) != count:
        raise ShapeError(
            f"Expected 'y' with a row for each of {count} samples (got shape {values.shape})."
        )
    return values.astype(str) if values.dtype.kind == "O" and _are_words(values) else values


def _are_words(values: NDArray[Any]) -> bool:
    return values.ndim == 1 and all(isinstance(value, str) for value in values.tolist())


def _layer(name: str, value: Any) -> dict[str, Any]:
    """Return one option as a layer of a config."""
    *sections, last = name.split(".")
    layer: dict[str, Any] = {last: value}
    for section in reversed(sections):
        layer = {section: layer}
    return merge(layer)


def require_share(validation: Any) -> None:
    """Raise ``ConfigError`` unless held-out data come as a pair."""
    if not isinstance(validation, tuple) or len(validation) != 2:
        raise ConfigError(
            f"Expected 'validation' to be a pair (X, y) (got {type(validation).__name__})."
        )
