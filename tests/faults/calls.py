"""A table of calls to the public interface and to every operator, and ways to spoil a tensor.

``python -m tests.faults.calls`` makes all of them in one process, for a sanitizer to watch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_geometric.utils import to_undirected

from geof import GeoF, GeoFConv, GraphReadout, LinkReadout, NodeReadout, structural_signature
from geof.data.batching import NeighbourSampler
from geof.geometry import AdmissibleBox, JitterSchedule, num_coordinates
from geof.kernels import BACKENDS, Controller, Evolution, Neighbourhoods, StepSpec, library
from geof.kernels.neighbourhood import EdgeTerms
from geof.nn import evolve_in_pieces
from tests.conftest import RandomState

CHANNELS = 8
WRONG: dict[str, Callable[[Tensor], Any]] = {
    "float16": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "float64": lambda t: t.double(),
    "complex": lambda t: t.to(torch.complex64),
    "bool": lambda t: t.bool(),
    "uint8": lambda t: t.to(torch.uint8),
    "int32": lambda t: t.int(),
    "int64": lambda t: t.long(),
    "one fewer": lambda t: t[:-1],
    "one more": lambda t: torch.cat([t, t[:1]]),
    "empty": lambda t: t[:0],
    "narrow": lambda t: t[..., :-1],
    "wide": lambda t: torch.cat([t, t[..., :1]], -1),
    "one dimension more": lambda t: t.unsqueeze(0),
    "flat": lambda t: t.reshape(-1),
    "a number": lambda t: t.reshape(-1)[0],
    "transposed": lambda t: t.mT.contiguous().mT,
    "every second": lambda t: t.repeat_interleave(2, 0)[::2],
    "expanded": lambda t: t[:1].expand_as(t),
    "huge": lambda t: t + 2**62 if not t.is_floating_point() else t * 1e38,
    "negative": lambda t: -t - 1,
    "nan": lambda t: t * float("nan"),
    "infinite": lambda t: t / 0,
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "bsr": lambda t: t.to_sparse_bsr((1, 1)),
    "quantised": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "conjugate": lambda t: torch.complex(t.float(), t.float()).conj(),
    "array": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "nothing": lambda t: None,
    "text": lambda t: "tensor",
}
WRONG_INTEGERS = (-1, 0, 7, 2**31, 2**40, -(2**63))
WRONG_NUMBERS = (float("nan"), float("inf"), -1.0, 0.0, 1e-320, 1e308)


class Call(NamedTuple):
    """Something to call, and what it takes by name: tensors, of operators also numbers."""

    run: Callable[..., Any]
    given: dict[str, Any]

    def copies(self) -> dict[str, Any]:
        """Return the arguments, tensors as leaves of their own."""
        return {
            name: value.detach().clone() if isinstance(value, Tensor) else value
            for name, value in self.given.items()
        }


def problem(n: int = 7) -> dict[str, Tensor]:
    """Return features, edges and signatures of ``n`` nodes."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, CHANNELS, generator=draw)
    edges = to_undirected(torch.randint(0, n, (2, 2 * n), generator=draw), num_nodes=n)
    return {"x": x, "edge_index": edges, "signature": torch.rand(n, 4, generator=draw)}


def calls(n: int = 7) -> dict[str, Call]:
    """Return the table for graphs of ``n`` nodes."""
    return {**_layers(n), **_edges(n), **_steps(n), **_operators()}


def trained(model: torch.nn.Module) -> Callable[..., Any]:
    """Return the forward and the backward pass; gradients of inputs too, where there are any."""

    def run(**tensors: Any) -> Any:
        floats = [t for t in tensors.values() if isinstance(t, Tensor) and t.is_floating_point()]
        leaves = [t.requires_grad_() for t in floats if t.is_leaf]
        out = model(**tensors)
        out.sum().backward()
        return {"out": out, **{str(k): t.grad for k, t in enumerate(leaves)}}

    return run


def _layers(n: int) -> dict[str, Call]:
    given, batch = problem(n), torch.arange(n) // 4
    pairs, x = torch.tensor([[0, 1, 2], [3, 4, 5]]), given["x"]
    options: dict[str, Any] = {"blocks": 2, "signature_channels": 4, "controller_channels": 4}
    torch.manual_seed(0)
    conv, model = GeoFConv(CHANNELS, **options), GeoF(CHANNELS, 8, **options)
    carrying = GeoF(CHANNELS, 8, edge_channels=2, **options)
    single = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    edges = {"edge_weight": torch.rand(n - 1), "edge_attr": torch.randn(n - 1, 2)}
    coordinates = torch.zeros(n, conv.blocks, num_coordinates(conv.block_size))
    return {
        "GeoF": Call(model, given),
        "GeoF, trained": Call(trained(model), given),
        "GeoF, edges that carry": Call(
            trained(carrying), {**given, "edge_index": single, "batch": batch, **edges}
        ),
        "GeoF in pieces": Call(
            lambda x, edge_index, signature: evolve_in_pieces(
                model, x, edge_index, signature, piece_size=3
            ),
            given,
        ),
        "GeoFConv": Call(conv, {**given, "coordinates": coordinates}),
        "signature": Call(
            lambda edge_index: structural_signature(edge_index, n),
            {"edge_index": given["edge_index"]},
        ),
        "NodeReadout": Call(lambda h: NodeReadout(CHANNELS, 3)(h), {"h": x}),
        "LinkReadout": Call(
            lambda h, pairs: LinkReadout(CHANNELS)(h, pairs), {"h": x, "pairs": pairs}
        ),
        "GraphReadout": Call(
            lambda h, batch: GraphReadout(CHANNELS, 3)(h, batch), {"h": x, "batch": batch}
        ),
    }


def _edges(n: int) -> dict[str, Call]:
    """What takes edges: neighbourhoods, sorted here or by hand, and samples of them."""
    edges = problem(n)["edge_index"]
    sorted_edges = Neighbourhoods.from_edge_index(edges, n)
    count = len(sorted_edges.source)
    tensors = step_tensors(n)

    def by_hand(**made: Tensor) -> Any:
        ends = [made.pop(name) for name in ("source", "target", "active")]
        carried = EdgeTerms(*made.values())
        neighbours = Neighbourhoods(*ends[:2], n, ends[2], terms=carried)
        return {name: step(name, neighbours)(**tensors) for name in sorted(BACKENDS)}

    def sampled(edge_index: Tensor, nodes: Tensor) -> Any:
        sampler = NeighbourSampler(edge_index, n, [2, -1], batch_size=3, nodes=nodes, edge_ids=True)
        return [part for batch in sampler.batches(0) for part in (batch.n_id, batch.edge_index)]

    return {
        "Neighbourhoods": Call(
            lambda edge_index: Neighbourhoods.from_edge_index(edge_index, n), {"edge_index": edges}
        ),
        "Neighbourhoods by hand": Call(
            by_hand,
            {
                "source": sorted_edges.source,
                "target": sorted_edges.target,
                "active": torch.ones(count, dtype=torch.bool),
                "bias": torch.zeros(count),
                "row": torch.zeros(count, dtype=torch.int32) - 1,
                "table": torch.zeros(2, BLOCKS, SIZE),
            },
        ),
        "NeighbourSampler": Call(sampled, {"edge_index": edges, "nodes": torch.arange(n)}),
    }


BLOCKS, SIZE, RANK, HIDDEN = 2, 3, 2, 5
BOX = AdmissibleBox(0.4, (-0.5, 0.7))


def step_tensors(
    n: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
    blocks: int = BLOCKS,
    m: int = SIZE,
) -> dict[str, Tensor]:
    """Return a random admissible state and the maps of a controller."""
    draw = RandomState(seed)
    p = (2 * RANK + 1) * m
    made = {
        "xi": draw.normal(n, blocks, m),
        "message": draw.normal(n, blocks, m),
        "coords": draw.coordinates(BOX, m, n, blocks),
        "shared": draw.normal(n, HIDDEN),
        "hidden": draw.normal(HIDDEN, 2 * m),
        "output": draw.normal(p, HIDDEN),
        "bias": draw.normal(p),
    }
    return {name: tensor.to(dtype) for name, tensor in made.items()}


def step(
    backend: str,
    neighbours: Neighbourhoods,
    statistic: Any = "full",
    framed: bool = True,
    jitter: float = 1e-9,
) -> Callable[..., dict[str, Tensor]]:
    """Return a step of a backend, by the names of :func:`step_tensors`."""
    spec = StepSpec(20.0, statistic, framed, 0.3, JitterSchedule(jitter))

    def run(xi: Tensor, message: Tensor, coords: Tensor, **maps: Tensor) -> dict[str, Tensor]:
        evolution = Evolution(0.6, 0.3, BOX, Controller(**maps))
        whole = BACKENDS[backend].step
        result = whole(xi, message, coords, neighbours, spec, evolution, trace=False)
        return {"aggregate": result.aggregate, "coordinates": result.coordinates}

    return run


def _steps(n: int) -> dict[str, Call]:
    neighbours = Neighbourhoods.from_edge_index(problem(n)["edge_index"], n)

    def summed(backend: str) -> Callable[..., Any]:
        class Summed(torch.nn.Module):
            def forward(self, **tensors: Tensor) -> Tensor:
                return sum(t.sum() for t in step(backend, neighbours)(**tensors).values())

        return trained(Summed())

    return {
        **{f"step {name}": Call(step(name, neighbours), step_tensors(n)) for name in BACKENDS},
        **{f"step {name}, trained": Call(summed(name), step_tensors(n)) for name in BACKENDS},
    }


def _operators() -> dict[str, Call]:
    """Every operator of ``torch.ops.geof`` that the kernels have, by position of its arguments."""
    if "native" not in BACKENDS:
        return {}
    from tests.kernels.test_native_parts import operator_cases, operators

    found = {}
    known, cases = operators(), operator_cases(RandomState(0))
    for name, given in cases.items():
        for number, arguments in enumerate(given):
            found[f"{name} {number}"] = _operator(known[name], arguments)
    return found


def _operator(operator: Any, arguments: tuple[Any, ...]) -> Call:
    leaves, structure = tree_flatten(arguments)
    places = {f"argument {k}": k for k, leaf in enumerate(leaves) if leaf is not None}

    def run(**given: Any) -> Any:
        changed = list(leaves)
        for name, value in given.items():
            changed[places[name]] = value
        return operator(*tree_unflatten(changed, structure))

    return Call(run, {name: leaves[k] for name, k in places.items()})


def wrong_calls(call: Call, every: int = 1) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls with one argument spoilt, each with a name."""
    for argument, value in call.given.items():
        for wrong, change in list(_wrong(value).items())[::every]:

            def attack(argument: str = argument, change: Any = change) -> None:
                copies = call.copies()
                read(call.run(**{**copies, argument: change(copies[argument])}))

            yield f"{argument} {wrong}", attack


def _wrong(value: Any) -> dict[str, Callable[[Any], Any]]:
    """Return what may be put for an argument."""
    if isinstance(value, Tensor):
        return WRONG
    numbers = WRONG_NUMBERS if isinstance(value, float) else WRONG_INTEGERS
    return {str(number): lambda _, number=number: number for number in numbers}


def read(found: Any) -> None:
    """Touch every number of an answer."""
    for value in tree_flatten(found)[0]:
        if isinstance(value, Tensor):
            value.double().sum().item()


def main(nodes: str, threads: str, every: str, folder: str) -> int:
    """Make all calls here, right and wrong, with the kernels in a folder; say how many.

    The name of a call stands in the errors before what a sanitizer says of it.
    """
    found = library.find_library().library
    assert found is not None, library.find_library().reason
    assert found.path.is_relative_to(folder), found.path
    # For the kernels alone: the thread sanitizer does not know how torch's own threads wait.
    torch.set_num_threads(1)
    torch.get_num_threads = lambda: int(threads)
    made = refused = 0
    for name, call in calls(int(nodes)).items():
        read(call.run(**call.copies()))
        for wrong, attack in wrong_calls(call, int(every)):
            print(name, wrong, file=sys.stderr, flush=True)
            try:
                attack()
            except Exception:
                refused += 1
            made += 1
    print(f"{made} calls, {refused} refused")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
