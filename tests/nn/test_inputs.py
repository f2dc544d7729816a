"""Bad input is refused by an error that names the argument, the expectation and the remedy."""

from __future__ import annotations

import pytest
import torch

from geof import GeoF, GeoFConv, LinkReadout, structural_signature
from geof.errors import (
    ConfigError,
    DataError,
    DeviceError,
    DtypeError,
    GeofError,
    ShapeError,
)
from geof.kernels import Neighbourhoods
from tests.graphs import random_sample

X, EDGES, U = random_sample(0, dtype=torch.float32)


@pytest.fixture(scope="module")
def model() -> GeoF:
    return GeoF(5, 8, signature_channels=3, blocks=2)


def replaced(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[4, 1] = value
    return tensor


@pytest.mark.parametrize(
    ("x", "edges", "u", "error", "message"),
    [
        (X[:, :4], EDGES, U, ShapeError, r"'x' to have shape \(num_nodes, 5\) \(got \(9, 4\)\)"),
        (X[0], EDGES, U, ShapeError, r"'x' to have shape"),
        (X.double(), EDGES, U, DtypeError, r"'x'.*torch.float32 \(got torch.float64\)"),
        (X.long(), EDGES, U, DtypeError, r"'x'.*got torch.int64"),
        (X.numpy(), EDGES, U, DtypeError, r"'x'.*torch.Tensor.*ndarray.*as_tensor"),
        (X, EDGES, structural_signature(EDGES[:, :0], 9), DtypeError, r"'signature'.*\.values"),
        (replaced(X, float("nan")), EDGES, U, DataError, r"'x' to be finite.*1 of 9.*row 4"),
        (replaced(X, float("inf")), EDGES, U, DataError, r"'x' to be finite.*row 4"),
        (X, EDGES, U[:, :2], ShapeError, r"'signature' to have shape \(num_nodes, 3\)"),
        (X, EDGES, U[:5], ShapeError, r"'signature'.*9 as in 'x' \(got 5\)"),
        (X, EDGES, U.double(), DtypeError, r"'signature'"),
        (X, EDGES, replaced(U, float("nan")), DataError, r"'signature' to be finite"),
        (X, EDGES, None, ShapeError, r"'signature' with 3 columns.*structural_signature"),
        (X, EDGES.t(), U, ShapeError, r"'edge_index' to have shape \(2, num_edges\)"),
        (X, EDGES.float(), U, DtypeError, r"'edge_index'.*int64.*got torch.float32.*long\(\)"),
        (X, EDGES.tolist(), U, DtypeError, r"'edge_index'.*got list"),
        (X, EDGES + 5, U, DataError, r"'edge_index'.*from 0 to 8.*got indices from"),
        (X, torch.tensor([[0], [9]]), U, DataError, r"from 0 to 8 \(got indices from 0 to 9\)"),
        (X, EDGES - 1, U, DataError, r"'edge_index'.*from -1"),
        (X, Neighbourhoods.from_edge_index(EDGES, 12), U, ShapeError, r"9 nodes.*got 12"),
    ],
)
def test_forward_refuses(model, x, edges, u, error, message):
    with pytest.raises(error, match=message) as caught:
        model(x, edges, u)
    assert isinstance(caught.value, GeofError)


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
@pytest.mark.parametrize("name", ["x", "edge_index", "signature", "edge_weight", "edge_attr"])
def test_one_tensor_on_another_device_is_named(backend, name):
    """It would be read where it is not, or leave memory that nobody has written."""
    model = GeoF(5, 8, signature_channels=3, blocks=2, edge_channels=1, backend=backend)
    count = EDGES.size(1)
    given = {"x": X, "edge_index": EDGES, "signature": U}
    given |= {"edge_weight": torch.ones(count), "edge_attr": torch.ones(count, 1)}
    given[name] = given[name].to("meta")
    with pytest.raises(DeviceError, match=rf"'{name}' on the model's device cpu \(got meta\)"):
        model(**given)


def test_prepared_tensors_on_another_device_are_named(model):
    edges = Neighbourhoods.from_edge_index(EDGES, 9).to("meta")
    with pytest.raises(DeviceError, match="'edge_index'"):
        model(X, edges, U)
    conv = GeoFConv(5, blocks=1)
    with pytest.raises(DeviceError, match="'coordinates'"):
        conv(X, EDGES, torch.zeros(9, 1, 15, device="meta"))


@pytest.mark.parametrize("layout", ["bsr", "bsc", "csc"])
def test_layouts_without_products_are_refused(layout):
    model = GeoF(6, 8, signature_channels=3, blocks=2)
    x = torch.rand(8, 6)
    size = ((2, 2),) if layout.startswith("b") else ()
    x = getattr(x, f"to_sparse_{layout}")(*size)
    with pytest.raises(DtypeError, match=r"'x' to be dense, sparse COO or sparse CSR.*to_dense"):
        model(x, torch.tensor([[0], [1]]), torch.rand(8, 3))


def test_sparse_features_are_checked_too(model):
    with pytest.raises(DataError, match=r"'x' to be finite.*row 4"):
        model(replaced(X, float("nan")).to_sparse(), EDGES, U)


def test_batch_is_checked(model):
    with pytest.raises(ShapeError, match=r"'batch' to have shape \(9,\).*got \(4,\)"):
        model(X, EDGES, U, torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_channels": 60}, r"'blocks' to divide.*60, blocks=8\).*hidden_channels=64 or"),
        ({"hidden_channels": 0}, r"'hidden_channels'.*>= 1 \(got 0\)"),
        ({"in_channels": 2.5}, r"'in_channels'.*got 2.5"),
        ({"blocks": 0}, r"'blocks'.*>= 1"),
        ({"steps": 0}, r"'steps'.*>= 1 \(got 0\)"),
        ({"prototypes": 0}, r"'prototypes'"),
        ({"signature_channels": -1}, r"'signature_channels'.*>= 0"),
        ({"correction_rank": 0}, r"'correction_rank'"),
        ({"controller_channels": 0}, r"'controller_channels'"),
        ({"temperature": -1.0}, r"'temperature' to be a finite number above 0 \(got -1.0\)"),
        ({"temperature": float("nan")}, r"'temperature'"),
        ({"target_mix": 0.0}, r"'target_mix' to be a finite number above 0 and at most 1"),
        ({"correction_strength": -0.1}, r"'correction_strength'"),
        ({"spectral_floor": 0.0}, r"'spectral_floor'"),
        ({"temperature": "hot"}, r"'temperature' to be a finite number.*got 'hot'"),
        ({"structure_aware": "False"}, r"'structure_aware' to be True or False \(got 'False'\)"),
        ({"log_scale_bounds": 5}, r"'log_scale_bounds' to be a list of 2, each a finite number"),
        ({"offdiagonal_bound": "x"}, r"'offdiagonal_bound'"),
        ({"offdiagonal_bound": 0.0}, r"'offdiagonal_bound'"),
        ({"log_scale_bounds": (1.0, -1.0)}, r"'log_scale_bounds'.*smaller first"),
        ({"jitter": 0.0}, r"'jitter'"),
        ({"jitter_growth": 1.0}, r"'jitter_growth'"),
        ({"jitter_retries": -1}, r"'jitter_retries'"),
        ({"feedback": "ful"}, r"'feedback' \(got 'ful'\).*Did you mean 'full'"),
        ({"evolution": "oneshot"}, r"'evolution'.*'one-shot'"),
        ({"backend": "cuda"}, r"'backend'.*'cuda'.*'auto'"),
    ],
)
def test_construction_refuses(options, message):
    with pytest.raises(ConfigError, match=message):
        GeoF(**{"in_channels": 5, "signature_channels": 3, **options})


def test_conv_names_the_nearest_setting():
    with pytest.raises(ConfigError, match=r"'temprature'.*Did you mean 'temperature'"):
        GeoFConv(8, blocks=2, temprature=2.0)


def test_conv_checks_coordinates():
    with pytest.raises(ShapeError, match=r"'coordinates'.*\(9, 2, 10\).*got \(9, 2, 6\)"):
        GeoFConv(8, blocks=2)(torch.zeros(9, 8), EDGES, coordinates=torch.zeros(9, 2, 6))


@pytest.mark.parametrize(
    "options", [{"feedback": "mean"}, {"evolution": "frozen"}, {"frame_transport": False}]
)
def test_lipschitz_speaks_of_the_full_model_only(options):
    with pytest.raises(ConfigError, match="Expected the full model"):
        GeoFConv(8, blocks=2, **options).lipschitz(1.0, 1.0)


@pytest.mark.parametrize("m", [16, 32, 64, 72, 128])
def test_vacuous_lipschitz_constants_are_large_not_errors(m):
    assert GeoFConv(m, blocks=1).lipschitz(1.0, 1.0).step > 1e30


def test_pairs_are_checked():
    with pytest.raises(ShapeError, match=r"'pairs' to have shape \(2, P\)"):
        LinkReadout(4)(torch.zeros(3, 4), torch.zeros(5, 2, dtype=torch.long))
