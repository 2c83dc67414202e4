"""stemroot-spark: which kernel launches of a GPU fleet to simulate, and what the whole workload's time then is."""

__version__ = "0.1.0"
