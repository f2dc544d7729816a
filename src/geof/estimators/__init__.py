"""GeoF as scikit-learn knows estimators: fit, predict, score, clone, cross-validation, pipelines.

They are built on :class:`~geof.training.config.RunConfig` and
:class:`~geof.training.trainer.Trainer`, with the preset that chooses by the data.
"""

from geof.estimators.base import NotFittedError
from geof.estimators.graphs import GeoFGraphClassifier, GeoFGraphRegressor
from geof.estimators.links import GeoFLinkPredictor
from geof.estimators.nodes import GeoFNodeClassifier, GeoFNodeRegressor

__all__ = [
    "GeoFGraphClassifier",
    "GeoFGraphRegressor",
    "GeoFLinkPredictor",
    "GeoFNodeClassifier",
    "GeoFNodeRegressor",
    "NotFittedError",
]
