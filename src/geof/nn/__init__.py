"""The model, one section of the paper per file."""

from geof.kernels.interface import evolve_coordinates
from geof.nn.atlas import PrototypeAtlas
from geof.nn.controller import CorrectionController
from geof.nn.feedback import MomentDecomposition, decompose_moment
from geof.nn.geof import GeoF
from geof.nn.inference import evolve_in_pieces
from geof.nn.readout import GraphReadout, LinkReadout, NodeReadout
from geof.nn.step import GeoFConv, Recurrence
from geof.nn.trace import CoupledState, GeoFState, StepTrace, geometry_change
from geof.nn.transport import FrameTransport

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
