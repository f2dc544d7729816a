"""The model in the terms of the paper: atlas, step, controller, readouts."""

from geof.kernels.interface import evolve_coordinates
from geof.nn.atlas import PrototypeAtlas
from geof.nn.controller import CorrectionController
from geof.nn.edges import EdgeEncoder
from geof.nn.geof import GeoF, evolve_in_pieces, lift_gain
from geof.nn.onnx import export_onnx
from geof.nn.readout import GraphReadout, LinkReadout, NodeReadout
from geof.nn.step import FrameTransport, GeoFConv, Recurrence
from geof.nn.trace import (
    CoupledState,
    GeoFState,
    MomentDecomposition,
    StepTrace,
    decompose_moment,
    geometry_change,
)

__all__ = [
    "CorrectionController",
    "CoupledState",
    "EdgeEncoder",
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
    "export_onnx",
    "geometry_change",
    "lift_gain",
]
