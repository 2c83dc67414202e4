"""Iterations and phases of kernel launches, from NVTX ranges or from the period of the launch sequence.

Numbers only: no module here imports pyspark. The glue is ``stemroot_spark/iterations.py``.
"""
