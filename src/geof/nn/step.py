r"""The recurrent step (paper, Algorithm 1, the loop over :math:`l`) and a layer made of one.

Triangular frame transport (section 3.2), Eqs. (4) to (6), has no parameters and lives in
:mod:`geof.kernels`. Here are the shared message transformation and the feature gate,

.. math::
    \phi(\xi) = W_\phi \xi, \qquad
    r_i = \sigma(W_r [\xi_i \| \bar\xi_i] + b_r), \qquad
    \xi_i' = (1 - r_i) \odot \xi_i + r_i \odot \bar\xi_i
    \qquad \text{(Eq. 7)}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geof.errors import ConfigError, ShapeError
from geof.geometry import (
    AdmissibleBox,
    JitterSchedule,
    StepLipschitz,
    num_coordinates,
    step_lipschitz,
    step_norms,
)
from geof.kernels import Backend, Evolution, Neighbourhoods, Statistic, resolve_backend
from geof.kernels.interface import Controller, Transport, gate
from geof.kernels.neighbourhood import TargetEdges
from geof.nn.controller import CorrectionController
from geof.nn.edges import EdgeEncoder, edge_terms
from geof.nn.explain import EdgeMask
from geof.nn.inputs import (
    SparseLinear,
    as_neighbourhoods,
    check_device,
    check_finite,
    check_matrix,
    check_same_nodes,
    full_precision,
    in_autocast,
    refuse_symbols,
)
from geof.nn.settings import StepSettings, step_spec, updates_geometry
from geof.nn.trace import CoupledState, StepTrace, step_trace
from geof.options import require_divisible, require_positive


class FrameTransport(nn.Module):
    r"""Transforms messages before the transport and gates the aggregate after it.

    Args:
        channels: :math:`d`.

    Shapes:
        - **message:** :math:`(n, d)` to :math:`(n, d)`
        - **forward:** state :math:`(n, d)`, aggregate :math:`(n, d)` to new state :math:`(n, d)`
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.message = nn.Linear(channels, channels, bias=False)
        self.gate = nn.Linear(2 * channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start the message map at the identity, so that the first step is pure transport."""
        nn.init.eye_(self.message.weight)
        self.gate.reset_parameters()

    def maps(self) -> Transport:
        """Return both maps."""
        return Transport(self.message.weight, self.gate.weight, self.gate.bias)

    def forward(self, xi: Tensor, aggregate: Tensor, gate: Callable[..., Tensor] = gate) -> Tensor:
        """Return the gated state, Eq. (7); ``gate`` is a backend's."""
        # W_r [xi || agg] without the concatenation.
        own, other = self.gate.weight.split(xi.size(-1), dim=1)
        pre = torch.addmm(F.linear(xi, own, self.gate.bias), aggregate, other.t())
        with full_precision(xi):
            return gate(pre.to(xi.dtype), xi, aggregate)


class Recurrence(nn.Module):
    """Parameters and arithmetic of one step, shared by :class:`GeoFConv` and ``GeoF``."""

    def __init__(
        self,
        channels: int,
        *,
        signature_channels: int,
        blocks: int,
        correction_rank: int,
        controller_channels: int,
        settings: StepSettings,
        backend: str,
        edge_channels: int = 0,
        edge_categories: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.channels = channels
        self.block_size = require_divisible(channels, blocks)
        require_positive("signature_channels", signature_channels, least=0)
        self.signature_channels = signature_channels
        self.blocks = blocks
        self.settings = settings
        self.backend = backend
        self.box = AdmissibleBox(settings.offdiagonal_bound, settings.log_scale_bounds)
        self.schedule = JitterSchedule(
            settings.jitter, settings.jitter_growth, settings.jitter_retries
        )
        resolve_backend(backend, self.block_size)
        self.transport = FrameTransport(channels)
        self.controller = CorrectionController(
            self.block_size,
            signature_channels=signature_channels,
            hidden_channels=controller_channels,
            rank=correction_rank,
        )
        self.edge_mask = EdgeMask()
        self.edge_encoder: EdgeEncoder | None = None
        if edge_channels or edge_categories:
            self.edge_encoder = EdgeEncoder(
                blocks, self.block_size, channels=edge_channels, categories=edge_categories
            )

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.transport.reset_parameters()
        self.controller.reset_parameters()
        if self.edge_encoder is not None:
            self.edge_encoder.reset_parameters()

    def neighbourhoods(
        self,
        edge_index: Tensor | Neighbourhoods,
        num_nodes: int,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Neighbourhoods:
        """Return the closed neighbourhoods, with the terms that weights and attributes make.

        Those of prepared neighbourhoods are kept where neither is given.
        """
        edge_weight = self.edge_mask.on(edge_weight)
        carrying = edge_weight is not None or edge_attr is not None
        weight = self.transport.message.weight
        ends = edge_index.source if isinstance(edge_index, Neighbourhoods) else edge_index
        given = {"edge_index": ends, "edge_weight": edge_weight, "edge_attr": edge_attr}
        for name, tensor in given.items():
            if isinstance(tensor, Tensor):
                check_device(name, tensor.device, weight.device)
        edges = as_neighbourhoods(edge_index, num_nodes, origin=carrying)
        with full_precision(weight):
            terms = edge_terms(edges, self.edge_encoder, edge_weight, edge_attr, weight.dtype)
        return edges if terms is edges.terms else edges.carrying(terms)

    def identity_coordinates(self, num_nodes: int) -> Tensor:
        """Return the coordinates of identity frames, ``(n, B, t)`` zeros."""
        weight = self.transport.message.weight
        return weight.new_zeros(num_nodes, self.blocks, num_coordinates(self.block_size))

    def environment(self, features: Tensor, coordinates: Tensor) -> Tensor:
        r"""Return :math:`h_i = L_i \xi_i`, Eq. (4), ``(n, d)``."""
        backend = self._backend_for(features)
        with full_precision(features):
            return backend.environment(self._split(features), coordinates).flatten(1)

    @overload
    def step(
        self,
        state: CoupledState,
        edges: Neighbourhoods,
        signature: Tensor | Controller | None,
        number: int = ...,
        *,
        trace: Literal[True],
    ) -> tuple[CoupledState, StepTrace]: ...

    @overload
    def step(
        self,
        state: CoupledState,
        edges: Neighbourhoods,
        signature: Tensor | Controller | None,
        number: int = ...,
        *,
        trace: bool = ...,
    ) -> tuple[CoupledState, StepTrace | None]: ...

    def step(
        self,
        state: CoupledState,
        edges: Neighbourhoods,
        signature: Tensor | Controller | None,
        number: int = 0,
        *,
        trace: bool = False,
    ) -> tuple[CoupledState, StepTrace | None]:
        r"""Return :math:`S^{l+1} = F(S^l)`, Eqs. (4) to (12), and the step's trace.

        Args:
            state: :math:`S^l`.
            edges: The closed neighbourhoods.
            signature: ``(n, q)``, the structural signatures, or what :meth:`correction` makes of
                them, which steps share.
            number: :math:`l`, from 0; the variants that stop updating the geometry go by it.
            trace: Whether to return what happened on the way too, else ``None``. A backend that
                fuses the step takes it part by part then, to the same numbers up to rounding.
        """
        if self.edge_encoder is not None and edges.terms is None:
            raise ConfigError(
                "Expected neighbourhoods that carry attributes, as the model was built for. Make "
                "them with neighbourhoods(edge_index, num_nodes, edge_weight, edge_attr)."
            )
        spec = step_spec(self.settings, self.schedule, number)
        evolution = self._evolution(signature, number)
        backend = self._backend_for(state.features, spec.statistic)
        lowered = in_autocast(state.features)  # dense maps, which a whole step would not
        if backend.whole is not None and evolution is not None and not trace and not lowered:
            maps = self.transport.maps()
            return CoupledState(*backend.whole(*state, edges, spec, evolution, maps)), None
        xi = self._split(state.features)  # (n, B, m)
        message = self._message(state.features)  # (n, B, m)
        given = xi, message, state.coordinates, edges, spec, evolution
        with full_precision(state.features):
            result = backend.step(*given, trace=trace)
        aggregate = result.aggregate.flatten(1)
        features = self.transport(state.features, aggregate, backend.gate)  # Eq. (7)
        following = CoupledState(features, result.coordinates)
        if not trace:
            return following, None
        return following, step_trace(state, following, message, result, self.schedule)

    def images(self, state: CoupledState, number: int = 0) -> tuple[Tensor, Tensor] | None:
        """Return what neighbours see of these nodes in step ``number``, in the backend's layout.

        ``None`` for a backend whose step is not made of it.
        """
        spec = step_spec(self.settings, self.schedule, number)
        backend = self._backend_for(state.features, spec.statistic)
        if backend.images is None:
            return None
        message = self._message(state.features)
        with full_precision(state.features):
            return backend.images(self._split(state.features), message, state.coordinates, spec)

    def step_of_targets(
        self,
        images: tuple[Tensor, Tensor],
        edges: TargetEdges,
        state: CoupledState,
        signature: Tensor,
        number: int = 0,
    ) -> CoupledState:
        """Return consecutive nodes after step ``number``; gradients are not recorded.

        Args:
            images: What :meth:`images` gives, of all nodes.
            edges: The edges into these nodes.
            state: Of these nodes alone.
            signature: Likewise, ``(targets, q)``.
            number: As in :meth:`step`.
        """
        spec = step_spec(self.settings, self.schedule, number)
        backend = self._backend_for(state.features, spec.statistic)
        assert backend.targets is not None, "a backend with images has both"
        xi, evolution = self._split(state.features), self._evolution(signature, number)
        message = self._message(state.features)
        given = xi, message, state.coordinates, spec, evolution
        with full_precision(state.features):
            aggregate, coordinates = backend.targets(images, edges, *given)
        features = self.transport(state.features, aggregate.flatten(1), backend.gate)
        return CoupledState(features, coordinates)

    def correction(self, signature: Tensor) -> Controller | None:
        """Return the controller's maps with the signatures taken in; ``None`` if it is off."""
        if self.settings.correction_strength == 0:
            return None
        with full_precision(signature):
            return self.controller.maps(self._structure(signature))

    def _evolution(self, signature: Tensor | Controller | None, number: int) -> Evolution | None:
        """Return what updates the geometry after step ``number``; ``None`` if nothing does."""
        settings = self.settings
        if not updates_geometry(settings, number):
            return None
        controller = self.correction(signature) if isinstance(signature, Tensor) else signature
        return Evolution(settings.target_mix, settings.correction_strength, self.box, controller)

    @contextmanager
    def correction_off(self) -> Iterator[None]:
        r"""Switch the learned correction off (:math:`\gamma = 0`) inside a ``with`` block.

        It needs no retraining and leaves the parameters alone; the paper compares a trained
        checkpoint with and without it.
        """
        settings = self.settings
        self.settings = replace(settings, correction_strength=0.0)
        try:
            yield
        finally:
            self.settings = settings

    def lipschitz(self, feature_bound: float, signature_bound: float) -> StepLipschitz:
        r"""Return Proposition 3 (ii)'s constants for the present parameters.

        Args:
            feature_bound: :math:`\Xi`, a bound on every :math:`\|\xi_i\|_2`.
            signature_bound: :math:`\bar U`, a bound on every :math:`\|u_i\|_2`.

        Raises:
            ConfigError: For a variant that the proposition does not cover.
        """
        settings = self.settings
        variant = (settings.frame_transport, settings.feedback, settings.evolution)
        if variant != (True, "full", "recurrent"):
            raise ConfigError(
                "Expected the full model: Proposition 3 (ii) bounds the step with "
                "frame_transport=True, feedback='full' and evolution='recurrent' (got {}, {!r}, "
                "{!r}).".format(*variant)
            )
        hidden, output = self.controller.hidden, self.controller.output
        norms = step_norms(
            self.transport.message.weight,
            self.transport.gate.weight,
            (hidden.weight, hidden.bias),
            (output.weight, output.bias),
            signature_bound=signature_bound,
        )
        return step_lipschitz(
            self.block_size,
            self.blocks,
            self.box,
            norms,
            feature_bound=feature_bound,
            temperature=settings.temperature,
            spectral_floor=settings.spectral_floor,
            jitter=settings.jitter,
            target_mix=settings.target_mix,
            correction_strength=settings.correction_strength,
        )

    def _backend_for(self, tensor: Tensor, statistic: Statistic | None = None) -> Backend:
        return resolve_backend(
            self.backend, self.block_size, tensor.device, tensor.dtype, statistic
        )

    def _message(self, features: Tensor) -> Tensor:
        r"""Return :math:`\phi(\xi)` in blocks, in the state's precision."""
        return self._split(self.transport.message(features).to(features.dtype))

    def _split(self, features: Tensor) -> Tensor:
        return features.reshape(-1, self.blocks, self.block_size)

    def checked_signature(self, signature: Tensor | None, num_nodes: int) -> Tensor:
        """Return the signature, checked; empty where none is needed."""
        weight = self.transport.message.weight
        if signature is None:
            if self.signature_channels:
                raise ShapeError(
                    f"Expected 'signature' with {self.signature_channels} columns (got None). "
                    "Compute it with geof.structural_signature, or build with "
                    "signature_channels=0."
                )
            return weight.new_zeros(num_nodes, 0)
        check_matrix("signature", signature, self.signature_channels, weight)
        check_same_nodes("signature", signature, num_nodes)
        check_finite("signature", signature)
        return signature.to(weight.dtype)  # as it was, unless autocast lowered it

    def _structure(self, signature: Tensor) -> Tensor:
        """Return what the gate and the controller see of the signature: zero for w/o SA."""
        return signature if self.settings.structure_aware else torch.zeros_like(signature)


class GeoFConv(Recurrence):
    r"""One recurrent step of GeoF as a layer for your own network.

    It takes node states and their geometry and returns both after one step of
    geometry-weighted, frame-aligned message passing (Eqs. 4 to 12). Chain several layers by
    passing the coordinates on; without them the layer starts from identity frames.

    Args:
        in_channels: Width of the input.
        out_channels: :math:`d`, the width of the state that comes out (default: as the input). With
            both given, even if equal, a linear map without bias comes before the step.
        signature_channels: :math:`q`, the width of the structural signatures the controller
            sees (default: 0, none).
        blocks: :math:`B`, dividing ``out_channels``.
        correction_rank: :math:`r` of the controller's factors.
        controller_channels: Width of the controller's hidden layer.
        backend: ``"auto"``, ``"native"``, ``"torch"`` or ``"reference"``.
        edge_channels: How many numbers ``edge_attr`` has per edge.
        edge_categories: Sizes of its categorical columns, which come before the numbers.
        **settings: Any field of :class:`geof.nn.settings.StepSettings`.

    Shapes:
        - **input:** features :math:`(n, F)`, edges :math:`(2, E)`, coordinates
          :math:`(n, B, m(m+1)/2)`, signature :math:`(n, q)`
        - **output:** state :math:`(n, d)`, coordinates :math:`(n, B, m(m+1)/2)`

    >>> conv = GeoFConv(16, blocks=4)
    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> x, coordinates = conv(torch.randn(3, 16), edge_index)
    >>> x.shape, coordinates.shape
    (torch.Size([3, 16]), torch.Size([3, 4, 10]))
    >>> x, coordinates = conv(x, edge_index, coordinates)  # a second step, or a second layer
    >>> h = conv.environment(x, coordinates)  # the states in shared coordinates, for a readout
    >>> GeoFConv(7, 32)
    GeoFConv(7, 32, blocks=8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        *,
        signature_channels: int = 0,
        blocks: int = 8,
        correction_rank: int = 4,
        controller_channels: int = 8,
        backend: str = "auto",
        edge_channels: int = 0,
        edge_categories: Sequence[int] = (),
        **settings: Any,
    ) -> None:
        require_positive("in_channels", in_channels)
        super().__init__(
            in_channels if out_channels is None else out_channels,
            signature_channels=signature_channels,
            blocks=blocks,
            correction_rank=correction_rank,
            controller_channels=controller_channels,
            settings=StepSettings.of(settings),
            backend=backend,
            edge_channels=edge_channels,
            edge_categories=edge_categories,
        )
        self.in_channels, self.out_channels = in_channels, self.channels
        self.lift = (
            None if out_channels is None else SparseLinear(in_channels, out_channels, bias=False)
        )

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        super().reset_parameters()
        if self.lift is not None:
            self.lift.reset_parameters()

    @overload
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbourhoods,
        coordinates: Tensor | None = ...,
        signature: Tensor | None = ...,
        edge_weight: Tensor | None = ...,
        edge_attr: Tensor | None = ...,
        *,
        return_attention_weights: Literal[False] | None = ...,
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbourhoods,
        coordinates: Tensor | None = ...,
        signature: Tensor | None = ...,
        edge_weight: Tensor | None = ...,
        edge_attr: Tensor | None = ...,
        *,
        return_attention_weights: Literal[True],
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]: ...

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbourhoods,
        coordinates: Tensor | None = None,
        signature: Tensor | None = None,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        return_attention_weights: bool | None = None,
    ) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return the state and the coordinates after one step.

        Coordinates are taken as they are; those a step returns lie inside the admissible box.
        Weights and attributes of edges are those of :meth:`geof.nn.GeoF.forward`. With
        ``return_attention_weights=True`` the edges, self-loops among them, and the weight of each,
        ``(E, 1)``, come third, as PyG's layers give them.
        """
        refuse_symbols(x, edge_index)
        carried, weights = (edge_weight, edge_attr), bool(return_attention_weights)
        check_matrix("x", x, self.in_channels, self.transport.message.weight)
        if self.lift is not None:
            x = self.lift(x)
        x = x.to(self.transport.message.weight.dtype)  # as it was, unless autocast lowers it
        check_finite("x", x)
        signature = self.checked_signature(signature, x.size(0))
        edges = self.neighbourhoods(edge_index, x.size(0), *carried)
        identity = self.identity_coordinates(x.size(0))
        if coordinates is None:
            coordinates = identity
        elif coordinates.shape != identity.shape or coordinates.dtype != identity.dtype:
            raise ShapeError(
                "Expected 'coordinates' to have shape (num_nodes, blocks, m(m+1)/2) = "
                f"{tuple(identity.shape)} and dtype {identity.dtype} (got "
                f"{tuple(coordinates.shape)}, {coordinates.dtype})."
            )
        check_device("coordinates", coordinates.device, identity.device)
        state, trace = self.step(CoupledState(x, coordinates), edges, signature, trace=weights)
        if trace is None:
            return state.features, state.coordinates
        return state.features, state.coordinates, (edges.edge_index, trace.weight.unsqueeze(-1))

    def __repr__(self) -> str:
        sizes = f"{self.in_channels}, {self.channels}" if self.lift is not None else self.channels
        return f"GeoFConv({sizes}, blocks={self.blocks})"
