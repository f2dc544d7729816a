"""An encoder with the readout of its task, built by name so that a run folder can rebuild it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from geof.baselines import GIN, ClassicGAT, ClassicGCN, ClassicSAGE, PlainGCN
from geof.baselines.ace_hgnn import ACEHGNN
from geof.baselines.amp import AMP, AMPGraphReadout, AMPLinkReadout, AMPNodeReadout
from geof.baselines.argnn import ARGNN, ARGNNNodeReadout, CosineReadout
from geof.baselines.bec_gnn import BECGNN
from geof.baselines.contract import GIVEN, Encoding, Outputs
from geof.baselines.d_gcn import DGCN, ClippedFermiDirac
from geof.baselines.fermi_dirac import FermiDiracReadout
from geof.baselines.g2former import (
    G2Former,
    GuidedGraphReadout,
    GuidedLinkReadout,
    GuidedNodeReadout,
)
from geof.baselines.gnrf import GNRF
from geof.baselines.hgcn import HGCN, HyperbolicLinkReadout
from geof.baselines.ml2_gcl import ML2GCL
from geof.baselines.second_order import ARGNNWithSO, GCNWithSO, GINWithSO
from geof.baselines.sparrow import SPARROW
from geof.baselines.spdgnn import SPDGNN
from geof.baselines.wavegc import WaveGC
from geof.config import TaskKind, require_option
from geof.errors import ConfigError, nearest
from geof.model import GeoF, GraphReadout, LinkReadout, NodeReadout
from geof.model.graph_inputs import GraphInputs


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network again.

    Attributes:
        encoder: A key of :data:`ENCODERS`.
        options: The encoder's own arguments.
        task: What the readout is for.
        in_channels: Width of the features.
        signature_channels: Width of the signatures.
        num_classes: Number of classes; not read for links.
        readout: The readout's own arguments.
        num_nodes: Of the one graph of a node or link task.
        num_edges: Columns of the ``edge_index`` its messages run along.
    """

    encoder: str
    options: Mapping[str, Any]
    task: TaskKind
    in_channels: int
    signature_channels: int
    num_classes: int
    readout: Mapping[str, Any] = field(default_factory=dict)
    num_nodes: int | None = None
    num_edges: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the specification as plain JSON values."""
        return {**asdict(self), "options": dict(self.options), "readout": dict(self.readout)}


class GeoFEncoder(nn.Module):
    """GeoF behind the common contract: :class:`GraphInputs` to ``(n, out_channels)``."""

    def __init__(self, in_channels: int, signature_channels: int, **options: Any) -> None:
        super().__init__()
        if isinstance(options.get("log_scale_bounds"), list):  # as JSON and YAML write a pair
            options["log_scale_bounds"] = tuple(options["log_scale_bounds"])
        self.geof = GeoF(in_channels, signature_channels=signature_channels, **options)
        self.out_channels = self.geof.out_channels

    def forward(self, inputs: GraphInputs) -> Tensor:
        """Return the environment states."""
        states: Tensor = self.geof(inputs.x, inputs.edges, inputs.signature)
        return states


@dataclass(frozen=True)
class Encoder:
    """How to build an encoder.

    Attributes:
        build: Takes those of :data:`~geof.baselines.contract.GIVEN` it names, and options; returns
            a module that keeps the contract of :mod:`geof.baselines.contract`.
        documented: What has the options as keyword arguments with defaults, if not ``build``.
        readouts: The method's own readouts by task. They are built with ``in_channels``,
            ``num_classes`` (if they name it) and options, and are called with the
            :class:`~geof.baselines.contract.Encoding`, the inputs and the pairs.
    """

    build: Callable[..., nn.Module]
    documented: Callable[..., object] | None = None
    readouts: Mapping[TaskKind, Callable[..., nn.Module]] = field(default_factory=dict)


ENCODERS: dict[str, Encoder] = {
    "geof": Encoder(GeoFEncoder, GeoF),
    "d-gcn": Encoder(DGCN, readouts={"link": ClippedFermiDirac}),
    "gcn": Encoder(PlainGCN),
    "gcn-classic": Encoder(ClassicGCN),
    "sage-classic": Encoder(ClassicSAGE),
    "gat-classic": Encoder(ClassicGAT),
    "gin": Encoder(GIN),
    "ml2-gcl": Encoder(ML2GCL),
    "sparrow": Encoder(SPARROW),
    "gnrf": Encoder(GNRF),
    "spdgnn": Encoder(SPDGNN, readouts={"link": FermiDiracReadout}),
    "argnn": Encoder(ARGNN, readouts={"node": ARGNNNodeReadout, "link": CosineReadout}),
    "gcn-so": Encoder(GCNWithSO),
    "gin-so": Encoder(GINWithSO),
    "argnn-so": Encoder(ARGNNWithSO, readouts={"link": CosineReadout}),
    "hgcn": Encoder(HGCN, readouts={"link": HyperbolicLinkReadout}),
    "bec-gnn": Encoder(BECGNN),
    "wavegc": Encoder(WaveGC),
    "g2former": Encoder(
        G2Former,
        readouts={
            "node": GuidedNodeReadout,
            "link": GuidedLinkReadout,
            "graph": GuidedGraphReadout,
        },
    ),
    "amp": Encoder(
        AMP,
        readouts={"node": AMPNodeReadout, "link": AMPLinkReadout, "graph": AMPGraphReadout},
    ),
    "ace-hgnn": Encoder(ACEHGNN, readouts={"link": HyperbolicLinkReadout}),
}
"""Encoders by name."""

READOUTS: dict[TaskKind, Callable[..., nn.Module]] = {
    "node": NodeReadout,
    "link": LinkReadout,
    "graph": GraphReadout,
}
"""The readouts all methods share, by task."""

READOUT_KINDS = ("own", "shared")
"""Values of ``readout.kind``, which methods with a readout of their own have."""


def encoder_options(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of an encoder, given or by default.

    Raises:
        ConfigError: For an encoder or an option that does not exist, naming the nearest.
    """
    method = _encoder(encoder)
    return _with_defaults("model", method.documented or method.build, options)


def readout_options(encoder: str, task: TaskKind, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of the readout of a method for a task, given or by default.

    Raises:
        ConfigError: For an option it does not have, naming the nearest.
    """
    if task not in _encoder(encoder).readouts:
        return _with_defaults("readout", READOUTS[task], options)
    kind = options.get("kind", "own")
    require_option("readout.kind", kind, READOUT_KINDS)
    return _with_defaults("readout", _readout(encoder, task, kind), options, kind="own")


def _encoder(name: str) -> Encoder:
    if name not in ENCODERS:
        raise ConfigError(
            f"Expected 'model' to name an encoder (got {name!r}). " + nearest(name, ENCODERS)
        )
    return ENCODERS[name]


def _readout(encoder: str, task: TaskKind, kind: str) -> Callable[..., nn.Module]:
    return ENCODERS[encoder].readouts[task] if kind == "own" else READOUTS[task]


def _with_defaults(
    section: str, documented: Callable[..., object], options: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    own = more | {
        name: parameter.default
        for name, parameter in inspect.signature(documented).parameters.items()
        if name not in GIVEN
    }
    for name in options:
        if name not in own:
            raise ConfigError(f"Unknown option '{section}.{name}'. " + nearest(name, own))
    return {**own, **options}


def _named(build: Callable[..., nn.Module], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the given values that a function asks for by name."""
    wanted = inspect.signature(build).parameters
    return {name: value for name, value in given.items() if name in wanted}


class Network(nn.Module):
    """An encoder and the readout of one task.

    Args:
        spec: What to build.

    Raises:
        ConfigError: If there is no such encoder or an option is not one of its own.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        options = encoder_options(spec.encoder, spec.options)
        readout = readout_options(spec.encoder, spec.task, spec.readout)
        self.spec = replace(spec, options=options, readout=readout)  # defaults written out
        given = {name: getattr(spec, name) for name in GIVEN}
        build = ENCODERS[spec.encoder].build
        self.encoder = build(**_named(build, given), **options)
        kind = readout.get("kind", "shared")
        self.has_own_readout = kind == "own"
        make = _readout(spec.encoder, spec.task, kind)
        given["in_channels"] = self.encoder.out_channels
        own = {name: value for name, value in readout.items() if name != "kind"}
        self.readout = make(**_named(make, given), **own)
        self.task = spec.task
        self._frozen: object | None = None

    def freeze_encoder(self) -> None:
        """From now on train the readout alone; the encoder is in evaluation mode."""
        self._frozen = object()  # whose encodings are kept with the graph: this encoder's, now
        self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Network:
        """Set the mode of all but a frozen encoder."""
        super().train(mode)
        if self._frozen is not None:
            self.encoder.eval()
        return self

    def forward(self, inputs: GraphInputs, pairs: Tensor | None = None) -> Tensor:
        """Return logits: ``(n, C)`` for nodes, ``(G, C)`` for graphs, ``(P,)`` for pairs."""
        return self.outputs(inputs, pairs).prediction

    def outputs(self, inputs: GraphInputs, pairs: Tensor | None = None) -> Outputs:
        """Return the logits and all that training grades."""
        return self.read(self.encode(inputs), inputs, pairs)

    def encode(self, inputs: GraphInputs) -> Encoding:
        """Return what the encoder makes of the inputs."""
        if self._frozen is None:
            return Encoding.of(self.encoder(inputs))
        kept = inputs.edges.kept.get("frozen encoding")
        if kept is None or kept[0] is not self._frozen:
            with torch.no_grad():
                kept = self._frozen, Encoding.of(self.encoder(inputs))
            inputs.edges.kept["frozen encoding"] = kept
        return replace(kept[1], penalty=None)

    def read(self, encoding: Encoding, inputs: GraphInputs, pairs: Tensor | None) -> Outputs:
        """Return what the readout makes of an encoding of the inputs."""
        if self.has_own_readout:
            outputs = self.readout(encoding, inputs, pairs)
            if not isinstance(outputs, Outputs):
                outputs = Outputs(outputs)
        elif self.task == "node":
            outputs = Outputs(self.readout(encoding.states))
        elif self.task == "graph":
            outputs = Outputs(self.readout(encoding.states, inputs.batch, inputs.num_graphs))
        else:
            outputs = Outputs(self.readout(encoding.states, pairs))
        if encoding.penalty is None:
            return outputs
        penalty = encoding.penalty
        return replace(
            outputs, penalty=penalty if outputs.penalty is None else outputs.penalty + penalty
        )
