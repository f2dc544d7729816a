"""GeoF: graph neural networks whose nodes carry a learned, evolving geometry.

The public names load on first use, so ``import geof`` and the command line's ``--help`` do not
pay for importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from geof.version import __version__

if TYPE_CHECKING:
    from geof.estimators import (
        GeoFGraphClassifier,
        GeoFGraphRegressor,
        GeoFLinkPredictor,
        GeoFNodeClassifier,
        GeoFNodeRegressor,
    )
    from geof.nn.geof import GeoF
    from geof.nn.readout import GraphReadout, LinkReadout, NodeReadout
    from geof.nn.step import GeoFConv
    from geof.nn.trace import GeoFState
    from geof.signature import AddStructuralSignature, structural_signature

_HOME = {
    "AddStructuralSignature": "geof.signature",
    "GeoF": "geof.nn.geof",
    "GeoFConv": "geof.nn.step",
    "GeoFGraphClassifier": "geof.estimators",
    "GeoFGraphRegressor": "geof.estimators",
    "GeoFLinkPredictor": "geof.estimators",
    "GeoFNodeClassifier": "geof.estimators",
    "GeoFNodeRegressor": "geof.estimators",
    "GeoFState": "geof.nn.trace",
    "GraphReadout": "geof.nn.readout",
    "LinkReadout": "geof.nn.readout",
    "NodeReadout": "geof.nn.readout",
    "structural_signature": "geof.signature",
}

__all__ = [
    "AddStructuralSignature",
    "GeoF",
    "GeoFConv",
    "GeoFGraphClassifier",
    "GeoFGraphRegressor",
    "GeoFLinkPredictor",
    "GeoFNodeClassifier",
    "GeoFNodeRegressor",
    "GeoFState",
    "GraphReadout",
    "LinkReadout",
    "NodeReadout",
    "__version__",
    "structural_signature",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'geof' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
