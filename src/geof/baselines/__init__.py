"""The methods GeoF is compared with, one file each, all behind :mod:`geof.baselines.contract`."""

from geof.baselines.classic import ClassicGAT, ClassicGCN, ClassicSAGE
from geof.baselines.gcn import PlainGCN
from geof.baselines.gin import GIN

__all__ = ["GIN", "ClassicGAT", "ClassicGCN", "ClassicSAGE", "PlainGCN"]
