"""``geof bench``: GeoF beside GCN, GAT and the compared methods, interleaved, in time and memory.

Nothing is imported here: the command line reads :mod:`geof_paper.bench.catalogue` for its help and
must not pay for torch.
"""
