r"""ACE-HGNN: HGCN whose two curvatures are found by a game of two players.

The network is HGCN (:mod:`geof_paper.baselines.hgcn`) with two hyperbolic layers for every task, of
curvature :math:`-c = (-c_1, -c_2)`; the output keeps :math:`c_2`. No gradient trains :math:`c`.
After every epoch beyond ``search_from``, two players make a move in the state :math:`s = c` (to
three decimals):

- the network keeps its curvatures or takes over the explorer's, :math:`a_1 \in \{0, 1\}`;
- the explorer moves its own :math:`c'` in any of the two layers or in none,
  :math:`a_2 \in \{0, 1\}^2`, by

  .. math:: 1/c'_\ell \leftarrow (1 - \theta)/c'_\ell + \theta\,|\hat\kappa|.

Both act with probability :math:`\epsilon` (0.9, times 0.999 per epoch, at least 0.1) at random,
else by a Nash equilibrium :math:`\pi` of the bimatrix :math:`(Q^1(s), Q^2(s))`, and learn

.. math::
    Q^k(s, a) \leftarrow Q^k(s, a) + \alpha\Big(r^k + \gamma \sum_{a'} \pi^1_{a'_1} \pi^2_{a'_2}
    Q^k(s', a') - Q^k(s, a)\Big).

The rewards are the change, in percent, of the *training* metric: of the network with its
curvatures, and of its states before the move re-charted by the explorer,
:math:`z \mapsto \tfrac{1}{2} \sum_\ell \exp_0^{c'_\ell}(\log_0^{c_\ell}(z))`. A layer's search
stops when the network's curvature moved by at most 0.03 in 30 epochs. The estimate
:math:`\hat\kappa` is the mean over ten draws of a node m, two of its neighbours b and c, and
another node a, of

.. math::
    \xi = \frac{d_{am}}{2} + \frac{d_{bc}^2}{8 d_{am}} - \frac{d_{ab}^2 + d_{ac}^2}{4 d_{am}},

where distances are sums of hyperbolic distances of states along shortest paths of the graph.

Reference: Fu, Li, Wu, Sun, Ji, Wang, Tan, Peng, Yu, "ACE-HGNN: Adaptive Curvature Exploration
Hyperbolic Graph Neural Network", ICDM 2021.

**Evidence.** From source (MIT licence): network, whose numbers on a small graph are stored in
``test_ace_hgnn.py``, game, rewards, schedule, update of :math:`c'` and all constants for nodes and
links. Reconstructed: graph classification (pooled :math:`\log_0(z)`; one move per
epoch, rewards and estimate from the epoch's first batch, where the change is taken against the
curvatures before the move on the same batch, because batches differ by more than a move does), and
an estimate that needs no table of all shortest paths.

**Repaired defects of the public code**, each of which changes what the search does:

- the estimator divides the last term by :math:`2 d_{am}`, which is not zero in flat space; the
  formula above is;
- it feeds squared distances as distances; here they are not squared;
- it evaluates the states of the warm-up for ever; here the current ones;
- the explorer's reward comes from a second network that is never trained, at curvature one; here
  from the trained readout, at the explorer's :math:`c'_2`;
- the guard :math:`c \ge 0.1` assigns nothing; here :math:`c` is clamped to [0.1, 10];
- states that are not numbers are overwritten; here they are an error.

**Other differences.** The training metric of links is ROC-AUC (there average precision). The move
is made after the optimiser's step of an epoch, not before it. The equilibrium is the first that
support enumeration finds, not Lemke-Howson's. At most 20 breadth-first searches serve an estimate,
which is kept for five epochs; the node a is drawn from those that can be reached, not from a sample
of 100 until one can. Tables hold a fixed number of states; the oldest make room. Random choices
come from torch's generator and all that the game remembers is in buffers, so a resumed run goes on
with the same bits. When both searches have stopped and the players agree, the game is over; early
stopping does not wait for that.

**A warning.** The update moves :math:`1/c'` towards :math:`|\hat\kappa|`, as if the curvature were
:math:`-1/c`, while the ball of the public code has curvature :math:`-c`: states that look flat make
the ball more curved. It is implemented as published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from geof.errors import NonFiniteError
from geof.methods.interface import Encoding, GraphInputs, TrainingView
from geof.methods.registry import Method, register
from geof.options import Count, NonNegative, Probability, Share, checked
from geof_paper.baselines.hgcn import (
    Activation,
    HyperbolicLinkReadout,
    hyperbolic_layers,
    run_layers,
)
from geof_paper.baselines.poincare import (
    Curvature,
    exp0,
    log0,
    project,
    squared_distance,
    within_reach,
)
from geof_paper.baselines.sparse import input_features
from geof_paper.presets import PRESETS

Array = NDArray[np.float64]

CURVATURES = (0.1, 10.0)
"""Bounds of every curvature."""

DRAWS = 10
"""Nodes per estimate; each takes two breadth-first searches."""


class ACEHGNN(nn.Module):
    r"""Two hyperbolic layers and the game for their curvatures.

    The states are :math:`\log_0(z)`, the context is :math:`c_2`.

    Args:
        in_channels: Width of the features.
        hidden_channels: Width.
        dropout: Of the entries of every :math:`W`.
        scale_features: Scale every row of the input features to length :math:`\sqrt F`; rows longer
            than the ball's reach (3.1 at curvature one) are cut to it.
        feature_dropout: Of the input features.
        activation: ``"relu"``, ``"leaky_relu"`` or ``"tanh"``.
        curvature: Both layers' and both players' at the start.
        step: :math:`\theta` of the explorer's move.
        search_from: Epoch after which the game begins.
        q_rate: :math:`\alpha`.
        q_discount: :math:`\gamma`.
        exploration: :math:`\epsilon` at the start.
        exploration_decay: Factor of :math:`\epsilon` per epoch.
        exploration_floor: Least :math:`\epsilon`.
        window: Epochs a curvature must stay for its search to stop.
        tolerance: How far it may move in them.
        refresh: Epochs an estimate is kept.
        capacity: States the tables hold.
    """

    curvature: Tensor
    explorer: Tensor
    q: Tensor
    keys: Tensor
    seen: Tensor
    exploration: Tensor
    history: Tensor
    played: Tensor
    stopped: Tensor
    metrics: Tensor
    kappa: Tensor
    kappa_epoch: Tensor

    @checked
    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: Count = 16,
        dropout: Probability = 0.0,
        scale_features: bool = False,
        feature_dropout: Probability = 0.0,
        activation: Activation = "relu",
        curvature: Annotated[float, Field(ge=CURVATURES[0], le=CURVATURES[1])] = 1.0,
        step: Annotated[float, Field(gt=0, le=1)] = 0.2,
        search_from: Count = 50,
        q_rate: Annotated[float, Field(gt=0, le=1)] = 0.5,
        q_discount: Probability = 0.9,
        exploration: Share = 0.9,
        exploration_decay: Annotated[float, Field(gt=0, le=1)] = 0.999,
        exploration_floor: Share = 0.1,
        window: Count = 30,
        tolerance: NonNegative = 0.03,
        refresh: Count = 5,
        capacity: Annotated[int, Field(ge=2)] = 512,
    ) -> None:
        super().__init__()
        self.scale_features, self.feature_dropout = scale_features, feature_dropout
        self.step, self.search_from, self.refresh = step, search_from, refresh
        self.q_rate, self.q_discount = q_rate, q_discount
        self.exploration_decay, self.exploration_floor = exploration_decay, exploration_floor
        self.tolerance = tolerance
        self.layers = hyperbolic_layers(
            in_channels, hidden_channels, 2, dropout=dropout, activation=activation
        )
        self.out_channels = hidden_channels
        both, number = torch.full((2,), curvature, dtype=torch.float64), torch.float64
        for name, start in {
            "curvature": both,
            "explorer": both.clone(),
            "q": torch.zeros(capacity, 2, 2, 4, dtype=number),  # state, player, a_1, a_2
            "keys": torch.zeros(capacity, 2, dtype=torch.long),  # thousandths
            "seen": torch.tensor(0),
            "exploration": torch.tensor(exploration, dtype=number),
            "history": torch.zeros(window, 2, dtype=number),
            "played": torch.tensor(0),
            "stopped": torch.zeros(2, dtype=torch.bool),
            "metrics": torch.zeros(2, dtype=number),  # of both players, at the last move
            "kappa": torch.tensor(-1.0, dtype=number),  # its size; below zero for none
            "kappa_epoch": torch.tensor(0),
        }.items():
            self.register_buffer(name, start)

    def forward(self, inputs: GraphInputs) -> Encoding:
        """Return the states in the chart at the origin, and the curvature they have."""
        return self._encode(inputs, self.curvature)

    def _encode(self, inputs: GraphInputs, curvature: Tensor) -> Encoding:
        x = input_features(self, inputs)
        first, last = curvature.clone().unbind()  # the buffer changes before backward may be done
        return Encoding(run_layers(self.layers, x, inputs, (first, last, last)), context=last)

    @torch.no_grad()
    def end_epoch(self, view: TrainingView) -> None:
        """Let both players make a move, once the game has begun and as long as it lasts."""
        over = bool(self.stopped.all()) and torch.equal(self.curvature, self.explorer)
        if view.epoch < self.search_from or over:
            return
        training = self.training
        self.eval()
        try:
            before = self._encode(view.inputs, self.curvature)
            if not bool(before.states.isfinite().all()):
                raise NonFiniteError("Expected finite states (got some that are not).")
            if view.epoch == self.search_from:
                self.metrics.fill_(view.score(before))
            else:
                self._play(view, before)
        finally:
            self.train(training)

    def _play(self, view: TrainingView, before: Encoding) -> None:
        row = self._row()
        actions = self._actions(row)
        old, old_explorer = self.curvature.clone(), self.explorer.clone()
        after = before
        if actions[0] == 1:
            self.curvature.copy_(old_explorer)
            after = self._encode(view.inputs, self.curvature)
        self._explore(actions[1], before, view)
        if view.inputs.batch is not None:  # another batch than at the last move
            self.metrics[0] = view.score(before)
            self.metrics[1] = view.score(rechart(before, old, old_explorer))
        scores = [view.score(after), view.score(rechart(before, old, self.explorer))]
        rewards = [score - last for score, last in zip(scores, self.metrics.tolist(), strict=True)]
        self.metrics.copy_(torch.tensor(scores, dtype=self.metrics.dtype))
        self._learn(row, actions, rewards)
        self._settle()

    def _row(self) -> int:
        """Return the row of the network's curvatures in the tables, a new one if need be."""
        key = (self.curvature * 1000).round().long()
        held = min(int(self.seen), len(self.keys))
        found = (self.keys[:held] == key).all(-1).nonzero()
        if len(found):
            return int(found[0])
        row = int(self.seen) % len(self.keys)
        self.keys[row], self.q[row] = key, 0.0
        self.seen += 1
        return row

    def _actions(self, row: int) -> tuple[int, int]:
        """Return both players' actions and let the urge to explore fade."""
        strategies = nash(*self._tables(row))
        epsilon = float(self.exploration)
        first, second = (
            _pick(strategy if _uniform() > epsilon else np.ones(len(strategy)))
            for strategy in strategies
        )
        self.exploration.mul_(self.exploration_decay).clamp_min_(self.exploration_floor)
        return first, second

    def _tables(self, row: int) -> tuple[Array, Array]:
        first, second = self.q[row].cpu().numpy().astype(np.float64)
        return first, second

    def _explore(self, action: int, states: Encoding, view: TrainingView) -> None:
        """Move the explorer's curvatures in the layers that the action names."""
        wanted = torch.tensor([action // 2 == 1, action % 2 == 1], device=self.stopped.device)
        wanted &= ~self.stopped
        if not bool(wanted.any()):
            return
        if int(self.kappa_epoch) == 0 or view.epoch - int(self.kappa_epoch) >= self.refresh:
            points = exp0(states.states, states.context)
            estimate = estimate_curvature(points, states.context, view.inputs)
            self.kappa.fill_(-1.0 if math.isnan(estimate) else abs(estimate))
            self.kappa_epoch.fill_(view.epoch)
        if self.kappa < 0:  # no four nodes to look at
            return
        moved = 1.0 / ((1.0 - self.step) / self.explorer + self.step * self.kappa)
        self.explorer.copy_(torch.where(wanted, moved.clamp(*CURVATURES), self.explorer))

    def _learn(self, row: int, actions: tuple[int, int], rewards: list[float]) -> None:
        following = self._row()
        tables = self._tables(following)
        first, second = nash(*tables)
        for player, (table, reward) in enumerate(zip(tables, rewards, strict=True)):
            wanted = reward + self.q_discount * float(first @ table @ second)
            place = self.q[row, player, actions[0], actions[1]]
            place += self.q_rate * (wanted - place)

    def _settle(self) -> None:
        """Stop the search of layers whose curvature has not moved for long."""
        self.history.copy_(self.history.roll(-1, 0))
        self.history[-1] = self.curvature
        self.played += 1
        if int(self.played) > len(self.history):
            spread = self.history.amax(0) - self.history.amin(0)
            self.stopped |= spread <= self.tolerance


def rechart(encoding: Encoding, old: Tensor, new: Tensor) -> Encoding:
    r"""Return the states as the explorer sees them, at its own output curvature.

    :math:`z \mapsto \tfrac{1}{2} \sum_\ell \exp_0^{c'_\ell}(\log_0^{c_\ell}(z))`, points projected
    to the ball at hand first.
    """
    z = exp0(encoding.states, encoding.context)
    charts = [log0(project(z, c), c) for c in old]
    points = [exp0(within_reach(u, c), c) for u, c in zip(charts, new, strict=True)]
    middle, last = (points[0] + points[1]) / 2, new[1].clone()
    return Encoding(within_reach(log0(project(middle, last), last), last), context=last)


def parallelogram(d_am: float, d_bc: float, d_ab: float, d_ac: float) -> float:
    r"""Return :math:`\xi`: zero in flat space for m midway between b and c, negative in a tree."""
    return d_am / 2 + d_bc**2 / (8 * d_am) - (d_ab**2 + d_ac**2) / (4 * d_am)


def estimate_curvature(points: Tensor, c: Curvature, inputs: GraphInputs) -> float:
    """Return the mean of :func:`parallelogram` over random nodes, NaN if there are none to take.

    Args:
        points: ``(n, d)``, in the ball.
        c: Its curvature.
        inputs: The graph, whose edges are walked in both directions.
    """
    walks = _Walks.of(inputs)
    found: list[float] = []
    for _ in range(DRAWS if len(walks.centres) else 0):
        m, b, c_, a = walks.draw()
        from_a, from_b = walks.search(a), walks.search(b)
        d_am, d_ab, d_ac = (_walked(points, c, walks.path(from_a, end)) for end in (m, b, c_))
        if d_am > 0:
            found.append(
                parallelogram(d_am, _walked(points, c, walks.path(from_b, c_)), d_ab, d_ac)
            )
    return sum(found) / len(found) if found else math.nan


@dataclass(frozen=True)
class _Walks:
    """The undirected graph, ready for breadth-first searches.

    Attributes:
        graph: A SciPy CSR matrix.
        component: Of each node.
        members: All nodes, component by component.
        first: Where each component begins in ``members``.
        centres: Nodes with two neighbours in components of four nodes at least.
    """

    graph: Any
    component: NDArray[np.int32]
    members: NDArray[np.int64]
    first: NDArray[np.int64]
    centres: NDArray[np.int64]

    @classmethod
    def of(cls, inputs: GraphInputs) -> _Walks:
        """Return the walks of a graph, made once."""
        return inputs.cached(cls._make, lambda: cls._make(inputs))

    @classmethod
    def _make(cls, inputs: GraphInputs) -> _Walks:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        nodes = inputs.x.size(0)
        source, target = inputs.edge_index.cpu().numpy()
        ends = np.concatenate([source, target]), np.concatenate([target, source])
        graph = coo_array((np.ones(len(ends[0])), ends), shape=(nodes, nodes)).tocsr()
        _, component = connected_components(graph, directed=False)
        sizes = np.bincount(component)
        neighbours = np.diff(graph.indptr)
        return cls(
            graph,
            component,
            np.argsort(component, kind="stable"),
            np.concatenate([[0], np.cumsum(sizes)]),
            np.flatnonzero((neighbours >= 2) & (sizes[component] >= 4)),
        )

    def draw(self) -> tuple[int, int, int, int]:
        """Return m, two of its neighbours b and c, and another node a that can be reached."""
        m = int(self.centres[_below(len(self.centres))])
        neighbours = self.graph.indices[self.graph.indptr[m] : self.graph.indptr[m + 1]]
        place = _below(len(neighbours))
        other = (place + 1 + _below(len(neighbours) - 1)) % len(neighbours)
        b, c = int(neighbours[place]), int(neighbours[other])
        first, last = self.first[self.component[m]], self.first[self.component[m] + 1]
        while True:
            a = int(self.members[first + _below(int(last - first))])
            if a not in (m, b, c):
                return m, b, c, a

    def search(self, start: int) -> NDArray[np.int32]:
        """Return from where a breadth-first search reached each node."""
        from scipy.sparse.csgraph import breadth_first_order

        _, predecessors = breadth_first_order(self.graph, start, directed=True)
        return predecessors

    def path(self, predecessors: NDArray[np.int32], end: int) -> list[int]:
        """Return the nodes from ``end`` back to where the search started."""
        path = [end]
        while predecessors[path[-1]] >= 0:
            path.append(int(predecessors[path[-1]]))
        return path


def nash(first: Array, second: Array) -> tuple[Array, Array]:
    """Return mixed strategies in equilibrium, of the player with two actions and of the other.

    Support enumeration. It is exact here: for each player to have no reason to change, the first
    must play one action alone, or mix at a point where the other has two best answers.

    Args:
        first: ``(2, k)``, what the first player gets for each pair of actions.
        second: ``(2, k)``, what the second player gets.
    """
    actions = first.shape[1]
    if np.isfinite(first).all() and np.isfinite(second).all():
        gain = first[0] - first[1]  # what the first player has of playing 0 against each answer
        for p in _first_strategies(second):
            reply = p @ second
            best = np.flatnonzero(reply >= reply.max() - 1e-9 * (1.0 + np.abs(second).max()))
            answer = _answer(p, gain, best)
            if answer is not None:
                return p, answer
    return np.full(2, 0.5), np.full(actions, 1.0 / actions)


def _first_strategies(second: Array) -> list[Array]:
    """Return the strategies of the first player at which an equilibrium can be."""
    slope, mixed = second[1] - second[0], []
    for j in range(len(slope)):
        for k in range(j):
            if slope[j] != slope[k]:
                share = (second[0, k] - second[0, j]) / (slope[j] - slope[k])
                if 0.0 < share < 1.0:
                    mixed.append(np.array([1.0 - share, share]))
    return [np.array([1.0, 0.0]), np.array([0.0, 1.0]), *mixed]


def _answer(p: Array, gain: Array, best: NDArray[np.int64]) -> Array | None:
    """Return a mix of best answers to which ``p`` is a best answer too, if there is one."""
    answer = np.zeros(len(gain))
    if p[0] == 1.0 or p[1] == 1.0:
        content = best[gain[best] >= 0] if p[0] == 1.0 else best[gain[best] <= 0]
        if len(content):
            answer[content[0]] = 1.0
            return answer
        return None
    above, below = best[gain[best] >= 0], best[gain[best] <= 0]
    if not len(above) or not len(below):
        return None
    j, k = above[0], below[0]
    share = 0.5 if gain[j] == gain[k] else gain[j] / (gain[j] - gain[k])
    answer[j] += 1.0 - share
    answer[k] += share
    return answer


def _walked(points: Tensor, c: Curvature, path: list[int]) -> float:
    """Return the length of a path of points."""
    walk = points[path]
    return float(squared_distance(walk[:-1], walk[1:], c).sqrt().sum())


def _uniform() -> float:
    """Return a random number from torch's generator, which a saved state holds."""
    return float(torch.rand((), dtype=torch.float64))


def _below(count: int) -> int:
    return int(torch.randint(count, ()))


def _pick(weights: Array) -> int:
    """Return one of the places with the largest weight."""
    places = np.flatnonzero(weights >= weights.max() - 1e-12)
    return int(places[_below(len(places))])


register(
    Method(
        "ace-hgnn",
        ACEHGNN,
        readouts={"link": HyperbolicLinkReadout},
        presets=PRESETS / "ace-hgnn",
        revision=2,  # what was cut is cut again, whatever rounding says
    )
)
