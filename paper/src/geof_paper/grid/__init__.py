"""Grids of runs: what is done, what is missing, who runs it and where it is recorded."""
