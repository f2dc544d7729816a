"""GeoF as a method among others; its mathematics is tested in tests/nn."""

from __future__ import annotations

import os

import pytest
import torch

from geof.data.catalogue import load
from geof.data.records import GraphSet
from geof.methods.registry import load_preset, preset_datasets
from geof.nn import lift_gain
from geof.testing import MethodTestCase


class TestGeoF(MethodTestCase):
    method = "geof"
    options = {"hidden_channels": 6, "blocks": 2, "controller_channels": 4, "prototypes": 2}
    variants = (
        {},
        {"backend": "torch", "steps": 3},
        {"normalise": "batch", "feed_forward": 1, "signature_features": True, "outputs": "all"},
    )
    refused = (
        ({"hidden_channels": 0}, "'hidden_channels'"),
        ({"hidden_channels": 6, "blocks": 4}, "'blocks' to divide"),
        ({"steps": 0}, "'steps'"),
        ({"temperature": 0.0}, "'temperature'"),
        ({"feedback": "ful"}, "'feedback'.*Did you mean 'full'"),
        ({"dropout": 1.0}, "'dropout'"),
        ({"feature_dropout": -0.1}, "'feature_dropout'"),
        ({"backend": "nativ"}, "'backend'"),
    )


@pytest.mark.slow
@pytest.mark.skipif("GEOF_DATA" not in os.environ, reason="GEOF_DATA names no raw files")
@pytest.mark.parametrize("task", ["node", "link", "graph"])
def test_the_papers_first_states_have_one_length_on_all_benchmarks(task):
    """The scale of W_in is open: one rule from the features settles it."""
    for dataset in preset_datasets("geof", "paper", task):
        data = load(dataset, data_root=os.environ["GEOF_DATA"])
        graphs = data.graphs if isinstance(data, GraphSet) else [data.graph]
        x = graphs[0].x if len(graphs) == 1 else torch.cat([graph.x for graph in graphs])
        options = load_preset("geof", "paper", task, dataset)["options"]
        wanted = lift_gain(x, options["hidden_channels"])
        assert options["lift_gain"] == pytest.approx(wanted, rel=0.005), dataset
