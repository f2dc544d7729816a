r"""The GeoF network (paper, section 3 and Algorithm 1), and its inference in pieces.

Piece by piece the whole graph's answer takes a fraction of its memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args, overload

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from geof.errors import ConfigError, DataError, NonFiniteError
from geof.kernels import EdgeTerms, Neighbourhoods
from geof.kernels.neighbourhood import (
    NeighbourIndex,
    Piece,
    TargetEdges,
    edges_by_targets,
    pieces_of,
)
from geof.nn.atlas import PrototypeAtlas
from geof.nn.inputs import (
    Remembered,
    SparseLinear,
    all_finite,
    check_batch,
    check_finite,
    check_matrix,
    full_precision,
    refuse_symbols,
)
from geof.nn.refinement import Refinement, drop_features, scale_rows
from geof.nn.settings import Evolution, Feedback, Norm, StepOutputs, StepSettings
from geof.nn.step import Recurrence
from geof.nn.trace import CoupledState, GeoFState, StepTrace
from geof.options import require_booleans, require_number, require_option, require_positive
from geof.progress import tracked


class GeoF(Recurrence):
    r"""Node features and node geometry, evolved together by message-passing feedback.

    From "Learning Propagation Geometry from Message-Passing Feedback". With
    :math:`\xi_i^0 = W_{in} x_i` and :math:`Z_i^0` from a structure-aware atlas (Eq. 3), each of
    :math:`L` steps with shared parameters computes

    .. math::
        h_i &= L_i \xi_i, \quad
        \omega_{ij} \propto \exp(-\|h_i - h_j\|_2^2 / \tau), \quad
        m_{j \to i} = L_i^{-1} L_j \phi(\xi_j), \quad
        \bar\xi_i = \sum_j \omega_{ij} m_{j \to i} \\
        \xi_i' &= (1 - r_i) \odot \xi_i + r_i \odot \bar\xi_i \\
        C_{i,b} &= \sum_j \omega_{ij} \delta_{ij,b} \delta_{ij,b}^\top + \epsilon_s I, \quad
        \delta_{ij} = m_{j \to i} - \phi(\xi_i), \quad
        \hat z_{i,b} = \log\text{-coordinates of } \operatorname{SChol}(C_{i,b}) \\
        z_{i,b}' &= \Pi_{\mathcal Z}((1 - \lambda) z_{i,b} + \lambda \hat z_{i,b}
                    + \gamma \Delta z_{i,b})

    and the output is :math:`h_i^L = L_i^L \xi_i^L`, ready for a readout.

    Args:
        in_channels: Width of the node features.
        hidden_channels: :math:`d`.
        signature_channels: :math:`q`, the width of the structural signatures; 17 for those that
            ``structural_signature`` gives. 0 does without: all nodes start from the same geometry.
        blocks: :math:`B`, dividing ``hidden_channels``.
        prototypes: :math:`K`, the size of the atlas.
        steps: :math:`L \ge 1`.
        temperature: :math:`\tau > 0`.
        target_mix: :math:`\lambda \in (0, 1]`.
        correction_strength: :math:`\gamma \ge 0`.
        correction_rank: :math:`r` of the controller's factors.
        controller_channels: Width of the controller's hidden layer.
        spectral_floor: :math:`\epsilon_s > 0`.
        offdiagonal_bound: :math:`a_{max}`.
        log_scale_bounds: :math:`(\ell_{min}, \ell_{max})`.
        jitter: :math:`\epsilon_0` of the stabilised Cholesky factor.
        jitter_growth: Its growth :math:`\beta` per retry.
        jitter_retries: Retries :math:`T_{max}`; a block that is still indefinite then gets a jitter
            relative to its own size (:func:`geof.geometry.feedback_target`).
        structure_aware: ``False`` is the paper's w/o SA: the gate and the controller see zeros in
            place of signatures. ``signature_features`` is a matter of its own.
        atlas_initialisation: ``False`` is w/o AI: every node starts from identity frames.
        frame_transport: ``False`` is w/o GT: messages are taken as they are.
        feedback: ``"full"``, ``"mean"``, ``"diagonal"`` or ``"none"`` (w/o SF).
        evolution: ``"recurrent"``, ``"one-shot"`` or ``"frozen"`` (w/o GE).
        lift_gain: Factor on the usual random start of :math:`W_{in}`, whose scale the paper leaves
            open: it decides how far apart states are against :math:`\tau` (:func:`lift_gain`).
        backend: ``"auto"`` (the fastest that can be used), ``"native"`` (compiled, CPU),
            ``"torch"`` (any device) or ``"reference"`` (the paper's per-edge form).
        recompute: Keep only the states between steps for the backward pass and compute each step
            once more there: less memory for one more forward pass of time.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`.
        signature_features: Let the signatures join the features,
            :math:`\xi^0 = W_{in} x + W_u u`, as positional encodings do.
        normalise: Normalisation of the state at the start and after every step: ``"none"``,
            ``"layer"`` (over each node's entries) or ``"batch"`` (over the nodes).
        feed_forward: Hidden width, in multiples of ``hidden_channels``, of a feed-forward map of
            its own after every step; 0 for none.
        dropout: Probability of dropping an entry of the state between steps.
        feature_dropout: Probability of dropping an entry of the input features.
        edge_channels: How many numbers ``edge_attr`` has per edge.
        edge_categories: Sizes of its categorical columns, which come before the numbers.
        outputs: ``"last"`` returns :math:`h^L`; ``"all"`` returns :math:`[h^0 \| \dots \| h^L]`,
            ``out_channels`` wide.

    The last nine are not in the paper and do nothing by default; see
    :mod:`geof.nn.refinement` and :mod:`geof.nn.edges`.

    Shapes:
        - **input:** features :math:`(n, F)` (dense, or sparse COO/CSR), edges :math:`(2, E)`
          without self-loops, signature :math:`(n, q)` unless :math:`q = 0`
        - **output:** environment states :math:`(n, d)`, or :math:`(n, (L + 1) d)` for
          ``outputs="all"``

    >>> model = GeoF(5, 16, signature_channels=3, blocks=4)
    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> model(torch.randn(3, 5), edge_index, torch.rand(3, 3)).shape
    torch.Size([3, 16])
    >>> GeoF(5, 16)(torch.randn(3, 5), edge_index).shape  # without signatures
    torch.Size([3, 16])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int = 64,
        *,
        signature_channels: int = 0,
        blocks: int = 8,
        prototypes: int = 4,
        steps: int = 2,
        temperature: float = 1.0,
        target_mix: float = 0.5,
        correction_strength: float = 0.1,
        correction_rank: int = 4,
        controller_channels: int = 8,
        spectral_floor: float = 1.0,
        offdiagonal_bound: float = 2.0,
        log_scale_bounds: tuple[float, float] = (-5.0, 5.0),
        jitter: float = 1e-6,
        jitter_growth: float = 10.0,
        jitter_retries: int = 5,
        structure_aware: bool = True,
        atlas_initialisation: bool = True,
        frame_transport: bool = True,
        feedback: Feedback = "full",
        evolution: Evolution = "recurrent",
        lift_gain: float = 1.0,
        backend: str = "auto",
        recompute: bool = False,
        scale_features: bool = False,
        signature_features: bool = False,
        normalise: Norm = "none",
        feed_forward: int = 0,
        dropout: float = 0.0,
        feature_dropout: float = 0.0,
        edge_channels: int = 0,
        edge_categories: Sequence[int] = (),
        outputs: StepOutputs = "last",
    ) -> None:
        require_positive("in_channels", in_channels)
        require_positive("steps", steps)
        require_number("lift_gain", lift_gain, above=0)
        require_number("feature_dropout", feature_dropout, least=0, below=1)
        require_booleans(
            recompute=recompute,
            scale_features=scale_features,
            signature_features=signature_features,
        )
        require_option("outputs", outputs, get_args(StepOutputs))
        super().__init__(
            hidden_channels,
            signature_channels=signature_channels,
            blocks=blocks,
            correction_rank=correction_rank,
            controller_channels=controller_channels,
            settings=StepSettings(
                temperature=temperature,
                target_mix=target_mix,
                correction_strength=correction_strength,
                spectral_floor=spectral_floor,
                offdiagonal_bound=offdiagonal_bound,
                log_scale_bounds=log_scale_bounds,
                jitter=jitter,
                jitter_growth=jitter_growth,
                jitter_retries=jitter_retries,
                structure_aware=structure_aware,
                atlas_initialisation=atlas_initialisation,
                frame_transport=frame_transport,
                feedback=feedback,
                evolution=evolution,
            ),
            backend=backend,
            edge_channels=edge_channels,
            edge_categories=edge_categories,
        )
        self.in_channels = in_channels
        self.hidden_channels = hidden_channels
        self.out_channels = hidden_channels * (steps + 1 if outputs == "all" else 1)
        self.steps = steps
        self.outputs = outputs
        self.scale_features = scale_features
        self._scaled: Remembered[Tensor] = Remembered()
        self.feature_dropout = feature_dropout
        self.recompute = recompute
        self.lift_gain = lift_gain
        self.feature_lift = SparseLinear(in_channels, hidden_channels, bias=False)
        self._reset_lift()
        if signature_features and not signature_channels:
            raise ConfigError(
                "Expected 'signature_channels' above 0 with signature_features=True (got 0). Give "
                "signatures, or leave 'signature_features' out."
            )
        self.signature_lift = (
            nn.Linear(signature_channels, hidden_channels, bias=False)
            if signature_features
            else None
        )
        self.atlas = PrototypeAtlas(
            signature_channels,
            prototypes=prototypes,
            blocks=blocks,
            block_size=self.block_size,
            box=self.box,
        )
        self.refinement = Refinement(
            hidden_channels,
            steps,
            normalise=normalise,
            feed_forward=feed_forward,
            dropout=dropout,
        )

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        super().reset_parameters()
        self.refinement.reset_parameters()
        self.feature_lift.reset_parameters()
        self._reset_lift()
        if self.signature_lift is not None:
            self.signature_lift.reset_parameters()
        self.atlas.reset_parameters()

    def _reset_lift(self) -> None:
        with torch.no_grad():
            self.feature_lift.weight.mul_(self.lift_gain)

    @overload
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbourhoods,
        signature: Tensor | None = ...,
        batch: Tensor | None = ...,
        edge_weight: Tensor | None = ...,
        edge_attr: Tensor | None = ...,
        *,
        return_attention_weights: Literal[False] | None = ...,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbourhoods,
        signature: Tensor | None = ...,
        batch: Tensor | None = ...,
        edge_weight: Tensor | None = ...,
        edge_attr: Tensor | None = ...,
        *,
        return_attention_weights: Literal[True],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbourhoods,
        signature: Tensor | None = None,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        r"""Return the environment states :math:`h^L`, ``(n, d)``, or those of all steps.

        Args:
            x: Node features.
            edge_index: Edges, sources in the first row; or prepared
                :class:`~geof.kernels.Neighbourhoods`.
            signature: Structural signatures; none where ``signature_channels`` is 0.
            batch: PyG's batch vector, checked and otherwise not needed: graphs of a batch share
                no edge, so each comes out as it would alone.
            edge_weight: ``(E,)``, a factor :math:`w_{ij} \ge 0` on the unnormalised weight of each
                edge; 0 takes it away. A gradient is taken for zero there. Every node's own weight
                is 1.
            edge_attr: ``(E, columns)``, codes of the ``edge_categories``, then ``edge_channels``
                numbers; of whole numbers where there are categories alone.
            return_attention_weights: Return also the edges, self-loops among them, and the weights
                of every step, ``(E, L)``, as PyG's layers give theirs.

        Edges with weights or attributes must differ from each other, or a
        :class:`~geof.errors.DataError` says which do not; self-loops among them are not read.
        """
        refuse_symbols(x, edge_index, signature)
        if batch is not None:
            check_batch(batch, x.size(0))
        wanted = bool(return_attention_weights)
        state = self.evolve(
            x,
            edge_index,
            signature,
            trajectory=wanted,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
        )
        if not wanted or state.trajectory is None:
            return state.output
        weights = torch.stack([step.weight for step in state.trajectory], dim=-1)
        return state.output, (state.edges.edge_index, weights)

    def evolve(
        self,
        x: Tensor,
        edge_index: Tensor | Neighbourhoods,
        signature: Tensor | None = None,
        *,
        trajectory: bool = False,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> GeoFState:
        """Return the coupled state after the last step, and every step's trace on request.

        Under ``torch.autocast`` dense maps of features compute in its precision; the state, the
        geometry and everything that makes it stay in the model's.
        """
        check_matrix("x", x, self.in_channels, self.feature_lift.weight)
        signature = self.checked_signature(signature, x.size(0))
        edges = self.neighbourhoods(edge_index, x.size(0), edge_weight, edge_attr)
        initial = self.initial_state(x, signature)
        state = initial
        traces: list[StepTrace] = []
        environments = [self.environment(*state)] if self.outputs == "all" else []
        step: Callable[..., tuple[CoupledState, StepTrace | None]] = self.step
        if self.recompute and torch.is_grad_enabled():
            # A step draws nothing, so there is no random state to restore.
            step = partial(checkpoint, step, use_reentrant=False, preserve_rng_state=False)
        correction = self.correction(signature)
        for number in range(self.steps):
            following, trace = step(state, edges, correction, number, trace=trajectory)
            state = self.refined(following, number)
            if trace is not None:
                traces.append(replace(trace, features=state.features))
            if self.outputs == "all" or number == self.steps - 1:
                environments.append(self.environment(*state))
        return GeoFState(
            features=state.features,
            coordinates=state.coordinates,
            environment=environments[-1],
            output=torch.cat(environments, dim=-1) if len(environments) > 1 else environments[-1],
            edges=edges,
            initial_features=initial.features,
            initial_coordinates=initial.coordinates,
            trajectory=tuple(traces) if trajectory else None,
        )

    def refined(self, state: CoupledState, step: int) -> CoupledState:
        """Return the state after step number ``step`` as the next step sees it."""
        return CoupledState(self.refinement.after(state.features, step), state.coordinates)

    def initial_state(self, x: Tensor, signature: Tensor) -> CoupledState:
        r"""Return :math:`(\xi^0, Z^0)`, Eq. (3)."""
        if self.scale_features:
            x = self._scaled_rows(x)
        x = drop_features(x, self.feature_dropout, training=self.training)
        features: Tensor = self.feature_lift(x).to(self.feature_lift.weight.dtype)
        # A non-finite feature always reaches its row of the narrow product, which is cheap to
        # check; the wide input is searched only to name the row.
        if not torch.compiler.is_compiling() and not all_finite(features):
            check_finite("x", x.detach().to_dense())
            raise NonFiniteError(
                "Expected finite lifted features (finite features times W_in are not). Lower the "
                "learning rate, scale the features, or take bfloat16 in place of float16."
            )
        if self.signature_lift is not None:
            features = features + self.signature_lift(signature)
        features = self.refinement.start(features)
        if self.settings.atlas_initialisation:
            with full_precision(signature):
                return CoupledState(features, self.atlas(self._structure(signature)))
        return CoupledState(features, self.identity_coordinates(x.size(0)))

    def _scaled_rows(self, x: Tensor) -> Tensor:
        """Return the scaled rows, those of the last pass if these are its features."""
        if torch.compiler.is_compiling() or x.requires_grad or x.is_inference():
            return scale_rows(x)
        return self._scaled.of(x, (id(x), x._version), lambda: scale_rows(x))

    def __repr__(self) -> str:
        return (
            f"GeoF({self.in_channels}, {self.hidden_channels}, blocks={self.blocks}, "
            f"steps={self.steps})"
        )


def lift_gain(x: Tensor, hidden_channels: int, squared_length: float = 0.02) -> float:
    r"""Return the gain at which first states :math:`W_{in} x_i` have a given mean squared length.

    The usual random start of :math:`W_{in}` has entries of variance :math:`1 / 3F`, so that
    :math:`E \|\xi^0\|^2 = \kappa^2 d \|x\|^2 / 3F` for a gain :math:`\kappa`. The energies of
    Eq. (4) are absolute: with far longer states every node listens to itself alone, with far
    shorter ones to all neighbours alike. Labels play no part. ``docs/choices.md`` has what other
    lengths than the default give.

    Args:
        x: ``(n, F)``, dense or sparse.
        hidden_channels: :math:`d`.
        squared_length: :math:`E \|\xi^0\|^2`.

    >>> round(lift_gain(torch.eye(4), 64), 4)
    0.0612
    """
    require_number("squared_length", squared_length, above=0)
    entries = x if x.layout == torch.strided else x.to_sparse_csr().values()
    mean = float(entries.double().square().sum()) / max(x.size(0), 1)
    if not 0 < mean < math.inf:
        raise DataError(
            f"Expected finite features that are not all zero (got a mean squared length of {mean})."
        )
    return math.sqrt(squared_length * 3 * x.size(1) / (hidden_channels * mean))


@torch.no_grad()
def evolve_in_pieces(
    model: GeoF,
    x: Tensor,
    edge_index: Tensor | Neighbourhoods,
    signature: Tensor | None,
    *,
    piece_size: int,
    edge_weight: Tensor | None = None,
    edge_attr: Tensor | None = None,
) -> Tensor:
    r"""Return the output that ``model.evolve`` gives, computed piece by piece.

    One step changes a node by its own state and its neighbours' alone, and of a neighbour it sees
    two vectors in environment coordinates, :math:`L_j \xi_j` and :math:`L_j \phi(\xi_j)`. Each step
    makes these once for every node, then updates the nodes in place, piece by piece. Nothing is
    approximated, and the numbering of the nodes does not matter. One coupled state of the whole
    graph and those ``2 n d`` numbers are held; frames, moments and targets exist for one piece at a
    time. The reference backend, whose steps are not made of the two vectors, works on a node in
    every piece where it is a neighbour and holds two coupled states.

    Sums run in the whole graph's order. Matrix products may still round differently for another
    number of rows, so results agree to the last bits, not always in them.

    Gradients are not recorded.

    Args:
        model: The network.
        x: Node features, ``(n, F)``.
        edge_index: Edges, sources in the first row; or prepared neighbourhoods.
        signature: Structural signatures, ``(n, q)``.
        piece_size: Most neighbours, counting each target as its own, in one piece; see
            :func:`geof.kernels.neighbourhood.pieces_of`.
        edge_weight: As :meth:`GeoF.forward` takes them.
        edge_attr: Likewise.
    """
    check_matrix("x", x, model.in_channels, model.feature_lift.weight)
    signature = model.checked_signature(signature, x.size(0))
    edges = model.neighbourhoods(edge_index, x.size(0), edge_weight, edge_attr)
    pieces = edges_by_targets(edges, piece_size)
    blocks = [piece.nodes for piece in pieces]
    state = _initial_in_blocks(model, x, signature, blocks)
    output = state.features.new_empty(x.size(0), model.out_channels)
    environments = output.split(model.hidden_channels, dim=1)
    if model.outputs == "all":
        _write_environments(model, state, blocks, environments[0])
    for number in range(model.steps):
        images = _images_in_blocks(model, state, blocks, number)
        if images is None:
            state = _step_by_closed_pieces(model, state, edges, signature, piece_size, number)
        else:
            _step_in_place(model, state, images, pieces, signature, number)
            del images  # or there would be two while the next step's are made
        if model.outputs == "all" or number == model.steps - 1:
            place = environments[number + 1 if model.outputs == "all" else 0]
            _write_environments(model, state, blocks, place)
    return output


def _initial_in_blocks(
    model: GeoF, x: Tensor, signature: Tensor, blocks: Sequence[slice]
) -> CoupledState:
    """Return the first state, contiguous, made block by block where each node's is its own."""
    if model.training or x.layout != torch.strided or not blocks:
        state = model.initial_state(x, signature)
        return CoupledState(state.features.contiguous(), state.coordinates.contiguous())
    coordinates = model.identity_coordinates(len(x))
    features = coordinates.new_empty(len(x), model.hidden_channels)
    try:
        for nodes in blocks:
            made = model.initial_state(x[nodes], signature[nodes])
            features[nodes], coordinates[nodes] = made
    except DataError:
        check_finite("x", x)  # which names the row of all, not of the block
        raise
    return CoupledState(features, coordinates)


def _write_environments(
    model: GeoF, state: CoupledState, blocks: Sequence[slice], out: Tensor
) -> None:
    """Write the environment states of all nodes, one block of them after another."""
    for nodes in blocks:
        out[nodes] = model.environment(*_rows(state, nodes))


def _rows(state: CoupledState, nodes: slice | Tensor) -> CoupledState:
    return CoupledState(state.features[nodes], state.coordinates[nodes])


def _images_in_blocks(
    model: GeoF, state: CoupledState, blocks: Sequence[slice], number: int
) -> tuple[Tensor, Tensor] | None:
    """Return what neighbours see of every node; ``None`` where the backend has no such thing."""
    whole: tuple[Tensor, Tensor] | None = None
    for nodes in blocks:
        made = model.images(_rows(state, nodes), number)
        if made is None:
            return None
        if whole is None:
            h, y = (part.new_empty(len(state.features), *part.shape[1:]) for part in made)
            whole = h, y
        whole[0][nodes], whole[1][nodes] = made
    return whole


def _step_in_place(
    model: GeoF,
    state: CoupledState,
    images: tuple[Tensor, Tensor],
    pieces: Sequence[TargetEdges],
    signature: Tensor,
    number: int,
) -> None:
    """Take one step; each piece reads the images of all nodes and its own targets' state alone."""
    for piece in tracked(f"step {number + 1} of {model.steps}", pieces, len(pieces)):
        own, nodes = _rows(state, piece.nodes), piece.nodes
        following = model.step_of_targets(images, piece, own, signature[nodes], number)
        for whole, part in zip(state, model.refined(following, number), strict=True):
            whole[nodes] = part


def _step_by_closed_pieces(
    model: GeoF,
    state: CoupledState,
    edges: Neighbourhoods,
    signature: Tensor,
    piece_size: int,
    number: int,
) -> CoupledState:
    """Return the state after one step in pieces that hold all neighbours of their targets."""
    index = NeighbourIndex.from_edge_index(edges.edge_index, len(signature))
    following = CoupledState(*(torch.empty_like(part) for part in state))
    pieces = sum(1 for _ in pieces_of(index, piece_size))
    what = f"step {number + 1} of {model.steps}"
    for piece in tracked(what, pieces_of(index, piece_size), pieces):
        local = _neighbourhoods_of(piece, edges)
        targets = _step_of_targets(model, state, signature, piece, local, number)
        for whole, part in zip(following, targets, strict=True):
            whole[piece.targets] = part
    return following


def _neighbourhoods_of(piece: Piece, edges: Neighbourhoods) -> Neighbourhoods:
    """Return a piece's neighbourhoods, with the terms its edges have in the whole graph."""
    given, count = piece.edge_index.to(edges.source.device), len(piece.nodes)
    if edges.terms is None:
        return Neighbourhoods.from_edge_index(given, count)
    local = Neighbourhoods.from_edge_index(given, count, origin=True)
    proper = edges.source != edges.target
    if edges.active is not None:
        proper &= edges.active
    chosen = proper.nonzero().flatten()[piece.places]  # the index lists them in the same order
    bias, row, table = edges.terms
    row = None if row is None else local.at_origin(row[chosen], -1)
    return local.carrying(EdgeTerms(local.at_origin(bias[chosen], 0.0), row, table))


def _step_of_targets(
    model: GeoF,
    state: CoupledState,
    signature: Tensor,
    piece: Piece,
    edges: Neighbourhoods,
    number: int,
) -> CoupledState:
    """Return a piece's targets after one step inside it: their neighbourhoods alone are whole."""
    nodes = piece.nodes.to(signature.device)
    following, _ = model.step(_rows(state, nodes), edges, signature[nodes], number)
    return model.refined(CoupledState(*(part[piece.rows] for part in following)), number)
