"""A generator of LLM training fleets in the layout of nsys exports, whose truth is known.

`python -m stemroot_spark.fleet --help` writes one to disk; `launches` gives the same launches in memory.
"""

from stemroot_spark.fleet.changes import Change, FactorChange, FleetError, NewKernelChange, parse_change
from stemroot_spark.fleet.kernel import Kernel, LaunchConfig
from stemroot_spark.fleet.sequence import PHASES
from stemroot_spark.fleet.spec import FleetSpec
from stemroot_spark.fleet.tables import PLANTED_SECRETS
from stemroot_spark.fleet.workload import Launches, Workload, iterations_for, kernel_table, launches
from stemroot_spark.fleet.writer import WriterOptions, write_fleet

__all__ = [
    "PHASES",
    "PLANTED_SECRETS",
    "Change",
    "FactorChange",
    "FleetError",
    "FleetSpec",
    "Kernel",
    "LaunchConfig",
    "Launches",
    "NewKernelChange",
    "Workload",
    "WriterOptions",
    "iterations_for",
    "kernel_table",
    "launches",
    "parse_change",
    "write_fleet",
]
