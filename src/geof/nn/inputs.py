"""What comes in: checks at the public boundary, and a layer that takes sparse features.

A check says what was expected, what came, what to do. Rows of bags of words are one to ten per cent
dense.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from geof.errors import DataError, DeviceError, DtypeError, ShapeError
from geof.kernels import Neighbourhoods
from geof.kernels.neighbourhood import built_to_keep
from geof.options import require_positive

T = TypeVar("T")


LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)
"""What features may be: dense, or sparse rows."""


def refuse_symbols(*values: object) -> None:
    """Refuse what ``to_hetero`` and other symbolic tracers put in place of tensors."""
    if any(isinstance(value, torch.fx.Proxy) for value in values):
        raise DtypeError(
            "Expected tensors (got symbols of a tracer, as torch_geometric.nn.to_hetero makes "
            "them): GeoF knows nodes and edges of one type. Give all nodes features of one width "
            "with their type among them as 0/1 columns, take data.to_homogeneous(), and pass the "
            "type of an edge as edge_attr with edge_categories=(types,)."
        )


def in_autocast(x: Tensor) -> bool:
    """Return whether torch would lower the precision of products with these features."""
    if not isinstance(x, Tensor) or not torch.amp.is_autocast_available(x.device.type):
        return False
    return torch.is_autocast_enabled(x.device.type)


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast lowers nothing: for the geometry, and for sparse products.

    Moments in half precision are not positive definite often enough.
    """
    return torch.autocast(x.device.type, enabled=False) if in_autocast(x) else nullcontext()


def check_matrix(name: str, value: Tensor, channels: int, weight: Tensor) -> None:
    """Require an ``(n, channels)`` tensor of the dtype and on the device of the model's weights."""
    if not isinstance(value, Tensor):
        raise DtypeError(
            f"Expected '{name}' to be a torch.Tensor (got {type(value).__name__}). "
            + ("Pass its .values." if hasattr(value, "values") else "Use torch.as_tensor.")
        )
    if value.dim() != 2 or value.size(1) != channels:
        raise ShapeError(
            f"Expected '{name}' to have shape (num_nodes, {channels}) (got {tuple(value.shape)})."
        )
    if value.layout not in LAYOUTS:
        raise DtypeError(
            f"Expected '{name}' to be dense, sparse COO or sparse CSR (got {value.layout}). "
            f"Use {name}.to_sparse_csr() or {name}.to_dense()."
        )
    dtype = weight.dtype
    if value.dtype != dtype and not _casts(weight):
        raise DtypeError(
            f"Expected '{name}' to have the model's dtype {dtype} (got {value.dtype}). "
            f"Use {name}.to({dtype})"
            + (f", or model.to({value.dtype})." if value.is_floating_point() else ".")
        )
    check_device(name, value.device, weight.device)


def _casts(weight: Tensor) -> bool:
    """Return whether torch chooses dtypes by itself."""
    return not torch.compiler.is_compiling() and torch.is_autocast_enabled(weight.device.type)


def check_device(name: str, device: torch.device, wanted: torch.device) -> None:
    """Require a tensor's device to be the model's."""
    if device != wanted:
        raise DeviceError(
            f"Expected '{name}' on the model's device {wanted} (got {device}). "
            f"Use {name}.to({str(wanted)!r}), or model.to({str(device)!r})."
        )


def check_same_nodes(name: str, value: Tensor, num_nodes: int) -> None:
    """Require one row per node."""
    if value.size(0) != num_nodes:
        raise ShapeError(
            f"Expected '{name}' to have one row per node, {num_nodes} as in 'x' "
            f"(got {value.size(0)})."
        )


def check_batch(batch: Tensor, num_nodes: int) -> None:
    """Require a batch vector with one entry per node."""
    if not isinstance(batch, Tensor):
        raise DtypeError(f"Expected 'batch' to be a torch.Tensor (got {type(batch).__name__}).")
    if batch.dtype != torch.long or batch.dim() != 1 or batch.size(0) != num_nodes:
        raise ShapeError(
            f"Expected 'batch' to have shape ({num_nodes},), one graph index per node, int64 "
            f"(got {tuple(batch.shape)}, {batch.dtype})."
        )


def check_graphs(batch: Tensor, num_graphs: int | None) -> None:
    """Require indices of graphs. Skipped while ``torch.compile`` traces."""
    if torch.compiler.is_compiling():
        return
    if num_graphs is not None:
        require_positive("num_graphs", num_graphs, least=0)
    if not batch.numel():
        return
    low, high = (int(value) for value in batch.aminmax())
    if low < 0 or (num_graphs is not None and high >= num_graphs):
        last = "" if num_graphs is None else f" to {num_graphs - 1}"
        raise DataError(
            f"Expected 'batch' to hold graph indices from 0{last} (got {low} to {high})."
        )


def check_pairs(pairs: Tensor) -> None:
    """Require pairs of nodes, one per column."""
    if not isinstance(pairs, Tensor) or pairs.dtype not in (torch.int64, torch.int32):
        got = pairs.dtype if isinstance(pairs, Tensor) else type(pairs).__name__
        raise DtypeError(f"Expected 'pairs' to be an int64 tensor (got {got}). Use .long().")
    if pairs.dim() != 2 or pairs.size(0) != 2:
        raise ShapeError(
            f"Expected 'pairs' to have shape (2, P) (got {tuple(pairs.shape)}). "
            "Sources stand in the first row, as in edge_index."
        )


def check_finite(name: str, value: Tensor) -> None:
    """Require finite entries, naming the first bad row. Skipped while ``torch.compile`` traces."""
    if torch.compiler.is_compiling() or all_finite(value):
        return
    bad = (~value.isfinite()).any(-1).nonzero().flatten()
    raise DataError(
        f"Expected '{name}' to be finite, but {len(bad)} of {len(value)} rows hold a NaN or an "
        f"infinity (first: row {int(bad[0])}). Clean or impute these rows."
    )


def all_finite(value: Tensor) -> bool:
    """Return whether no entry is NaN or infinite, in one pass over a sound tensor."""
    # A bad entry always reaches the sum; only a sum that overflowed needs a second look.
    return bool(value.detach().sum().isfinite()) or bool(value.isfinite().all())


def as_neighbourhoods(
    edge_index: Tensor | Neighbourhoods, num_nodes: int, *, origin: bool = False
) -> Neighbourhoods:
    """Return the closed neighbourhoods of an ``edge_index`` or check prepared ones."""
    if isinstance(edge_index, Neighbourhoods):
        if edge_index.num_nodes != num_nodes:
            raise ShapeError(
                f"Expected neighbourhoods over {num_nodes} nodes, as in 'x' "
                f"(got {edge_index.num_nodes})."
            )
        return edge_index
    return Neighbourhoods.from_edge_index(edge_index, num_nodes, origin=origin)


class Remembered(Generic[T]):
    """A value derived from a tensor, kept until another comes; neither copied nor saved."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._held: tuple[Tensor, T] | None = None

    def of(self, tensor: Tensor, key: Hashable, build: Callable[[], T]) -> T:
        """Return what ``build`` made for ``key``; ``tensor`` is what the key tells of.

        It is held, so that another one cannot take its place in memory meanwhile. What was built
        while evaluating serves training afterwards.
        """
        if self._held is None or self._key != key:
            self._key, self._held = key, (tensor, built_to_keep(build))
        return self._held[1]

    def __reduce__(self) -> tuple[type[Remembered[T]], tuple[()]]:
        return Remembered, ()


class Columns(NamedTuple):
    """The columns of a CSR matrix: the rows of its transpose.

    Attributes:
        pointer: ``(F + 1,)``, where each column's entries begin.
        row: ``(nnz,)``, the rows they are in.
        order: ``(nnz,)``, where the matrix has them.
    """

    pointer: Tensor
    row: Tensor
    order: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Columns:
        """Return the columns of a CSR matrix."""
        index = x.col_indices()
        order = index.argsort(stable=True)
        counts = x.crow_indices().diff()
        rows = torch.repeat_interleave(torch.arange(len(counts), device=index.device), counts)
        pointer = index.new_zeros(x.size(1) + 1)
        pointer[1:] = index.bincount(minlength=x.size(1)).cumsum(0)
        return cls(pointer, rows[order], order)

    def transposed(self, x: Tensor) -> Tensor:
        """Return the transpose of the matrix these are the columns of."""
        return torch.sparse_csr_tensor(
            self.pointer,
            self.row,
            x.values()[self.order],
            (x.size(1), x.size(0)),
            check_invariants=False,
        )


class _SparseProduct(torch.autograd.Function):
    """:math:`x W^T` whose backward knows the columns of ``x``: torch would sort them every time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, columns: Columns) -> Tensor:
        ctx.x, ctx.columns = x, columns
        product: Tensor = torch.sparse.mm(x, weight.t())
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        return None, torch.sparse.mm(ctx.columns.transposed(ctx.x), grad).t(), None


class SparseLinear(nn.Linear):
    """A linear layer that also takes sparse rows, without making them dense."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self._columns: Remembered[Columns] = Remembered()

    def forward(self, x: Tensor) -> Tensor:
        """Return :math:`x W^T + b`."""
        if x.layout == torch.strided:
            return super().forward(x)
        product = self._product(x)
        return product if self.bias is None else product + self.bias

    def _product(self, x: Tensor) -> Tensor:
        if in_autocast(self.weight):  # which torch has no sparse products for
            with full_precision(self.weight):
                return self._product(x.to(self.weight.dtype))
        needs = torch.is_grad_enabled() and self.weight.requires_grad and not x.requires_grad
        if x.layout != torch.sparse_csr or not needs or torch.compiler.is_compiling():
            plain: Tensor = torch.sparse.mm(x, self.weight.t())
            return plain
        # Dropout changes the entries, not where they are.
        index, pointer = x.col_indices(), x.crow_indices()
        key = (index.data_ptr(), index._version, pointer.data_ptr(), pointer._version, x.shape)
        columns = self._columns.of(index, key, lambda: Columns.of(x))
        product: Tensor = _SparseProduct.apply(x, self.weight, columns)  # type: ignore[no-untyped-call]
        return product


@contextmanager
def without_csr_warnings() -> Iterator[None]:
    """Keep torch from saying, once per process, that its support of CSR matrices is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")
        yield
