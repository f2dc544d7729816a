"""``geof bench``: GeoF beside GCN and GAT, interleaved in one run, in time and in memory.

Nothing is imported here: the command line reads :mod:`geof.bench.catalogue` for its help and must
not pay for torch.
"""
