"""The model, one section of the paper per file."""

from geof.model.atlas import PrototypeAtlas
from geof.model.evolution import CorrectionController, evolve_coordinates
from geof.model.feedback import MomentDecomposition, decompose_moment
from geof.model.geof import GeoF
from geof.model.inference import evolve_in_pieces
from geof.model.readout import GraphReadout, LinkReadout, NodeReadout
from geof.model.recurrence import CoupledState, GeoFConv, Recurrence
from geof.model.trace import GeoFState, StepTrace, geometry_change
from geof.model.transport import FrameTransport

__all__ = [
    "CorrectionController",
    "CoupledState",
    "FrameTransport",
    "GeoF",
    "GeoFConv",
    "GeoFState",
    "GraphReadout",
    "LinkReadout",
    "MomentDecomposition",
    "NodeReadout",
    "PrototypeAtlas",
    "Recurrence",
    "StepTrace",
    "decompose_moment",
    "evolve_coordinates",
    "evolve_in_pieces",
    "geometry_change",
]
