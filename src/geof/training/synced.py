"""What a network needs to be one of several that stay equal, each with a part of a batch.

Batch normalisation over the rows of all processes (PyTorch's ``SyncBatchNorm`` runs on GPUs alone,
and counts every row once), gradients that are added up, and the part of a sample that seeds need.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from geof.data.batching import NeighbourBatch
from geof.errors import ConfigError, DataError
from geof.nn.refinement import NodeNorm

if TYPE_CHECKING:
    from geof.training.network import Network

Loss: TypeAlias = Callable[[Tensor], Tensor]


class SyncedNorm(nn.BatchNorm1d):
    r"""Batch normalisation with the mean and the variance of the rows of all processes.

    .. math::
        \mu = \frac{1}{W} \sum_r \sum_{i \in r} w_i x_i, \qquad
        \sigma^2 = \frac{1}{W} \sum_r \sum_{i \in r} w_i (x_i - \mu)^2, \qquad
        W = \sum_r \sum_{i \in r} w_i

    Args:
        norm: What it takes the place of, with the same parameters and buffers.
        group: The line its sums run along.

    Attributes:
        weights: ``(n,)``, what rows count; a number for all of them, ``None`` for 1.
    """

    def __init__(self, norm: _BatchNorm, group: dist.ProcessGroup) -> None:
        options = (norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        super().__init__(norm.num_features, *options)
        self._parameters, self._buffers = norm._parameters, norm._buffers
        self.training = norm.training
        self.takes_one = isinstance(norm, NodeNorm)
        self.weights: Tensor | None = None
        self._line = _Line(group)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the normalised rows."""
        if not self.training:
            return super().forward(rows)
        wide = rows if rows.dtype == torch.float64 else rows.float()
        weights = self._weights(wide)
        sums = self._summed(torch.cat([(wide * weights).sum(0), weights.sum().view(1)]))
        count = round(float(sums[-1].detach()))  # of distinct rows: a whole number
        if count <= 1:
            return self._alone(rows)
        mean = sums[:-1] / count
        centred = wide - mean
        variance = self._summed((centred.square() * weights).sum(0)) / count
        self._remember(mean.detach(), variance.detach() * (count / (count - 1)))
        normed = centred * (variance + self.eps).rsqrt()
        if self.affine:
            normed = normed * self.weight + self.bias
        return normed.to(rows.dtype)

    def _summed(self, values: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(values, self._line)  # type: ignore[no-untyped-call]
        return total

    def _weights(self, rows: Tensor) -> Tensor:
        """Return a column: what each row counts."""
        if self.weights is None:
            return rows.new_ones(len(rows), 1)
        if self.weights.dim() and len(self.weights) != len(rows):
            raise ConfigError(
                "Expected batch normalisation over nodes in several processes (got "
                f"{len(rows)} rows of {len(self.weights)} nodes). Take another normalisation, or "
                "train in one process, without torchrun."
            )
        return self.weights.to(rows).reshape(-1, 1).expand(len(rows), 1)

    def _alone(self, rows: Tensor) -> Tensor:
        if not self.takes_one:
            raise DataError(
                "Expected more than one row to normalise a batch (got one). Use a larger "
                "'batch_size'."
            )
        alone: Tensor = F.batch_norm(
            rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )
        return alone

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Renew the running averages."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1.0 / float(self.num_batches_tracked)
        for average, value in ((self.running_mean, mean), (self.running_var, variance)):
            average.lerp_(value.to(average.dtype), share)


def synchronised(network: nn.Module, group: dist.ProcessGroup) -> list[SyncedNorm]:
    """Put a :class:`SyncedNorm` in the place of every batch normalisation, and return them all."""
    found = []
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                found.append(SyncedNorm(child, group))
                setattr(parent, name, found[-1])
    return found


class _Line:
    """A group of processes, which a copy of a network shares."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __deepcopy__(self, memo: object) -> _Line:
        return self


class _Sum(torch.autograd.Function):
    """The sum over all processes: each one's loss depends on the values of all."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, line: _Line) -> Tensor:
        """Return the sum."""
        ctx.line = line
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=line.group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of what all processes want of the values."""
        (gradient,) = gradients
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.line.group)
        return total, None


def replica_of(network: Network) -> DistributedDataParallel:
    """Return what adds up the gradients; a parameter that no rank's loss reaches keeps none."""
    with warnings.catch_warnings():
        # The name that follows it is not in every version that will do.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        return DistributedDataParallel(
            _Graded(network), broadcast_buffers=False, find_unused_parameters=True
        )


class _Graded(nn.Module):
    """A network with its loss, so that what has no part in the loss is known to have none."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, loss: Loss, factor: float, *inputs: Any) -> Tensor:
        """Return the loss times a factor."""
        outputs = self.network.outputs(*inputs)
        if outputs.penalty is not None:
            raise ConfigError(
                "Expected a method that is trained by the task's loss alone in several processes "
                f"(got '{self.network.config.method}', which has a loss of its own, over all it "
                "sees at once). Train it in one process, without torchrun."
            )
        if factor == 0.0:  # a mean over nothing is no number
            return outputs.prediction.sum() * 0.0
        return outputs.loss(loss) * factor


def upstream(batch: NeighbourBatch, seeds: Tensor) -> Tensor:
    """Return all nodes from which messages reach some seeds, in however many steps; those first."""
    source, target = batch.edge_index
    reached = torch.zeros(batch.num_nodes, dtype=torch.bool)
    reached[seeds] = True
    before = 0
    while before != (before := int(reached.sum())):
        reached[source[reached[target]]] = True
    reached[seeds] = False
    return torch.cat([seeds, reached.nonzero().flatten()])
