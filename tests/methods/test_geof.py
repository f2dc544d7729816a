"""GeoF as a method among others; its mathematics is tested in tests/nn."""

from __future__ import annotations

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
