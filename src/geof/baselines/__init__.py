"""The methods GeoF is compared with: encoders from :class:`GraphInputs` to node states."""

from geof.baselines.classic import ClassicGCN
from geof.baselines.gcn import PlainGCN

__all__ = ["ClassicGCN", "PlainGCN"]
