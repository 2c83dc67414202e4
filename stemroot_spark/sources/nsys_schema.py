"""The part of the nsys export schema that ingest reads, by column name, for every version since 2020.

Columns nsys added are ignored unless named here; columns that a version lacks are null. Facts about the versions:
integer widths and signs differ between versions and exporters, so a column only has to be some integer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
STRING_TABLE = "StringIds"
# Renamed by nsys 2023.3.
EXPORT_METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
SESSION_TABLE = "TARGET_INFO_SESSION_START_TIME"
GPU_TABLE = "TARGET_INFO_GPU"
# Which of the machine's GPUs the process used; since 2025.
DEVICE_TABLE = "TARGET_INFO_CUDA_DEVICE"
DIAGNOSTIC_TABLE = "DIAGNOSTIC_EVENT"
NVTX_TABLE = "NVTX_EVENTS"
RUNTIME_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPY_TABLES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
# One row per launch of a whole CUDA graph, written with --cuda-graph-trace=graph: its kernels appear nowhere.
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
# Where nsys records the environment; read by allow-list only, see identity.py.
ENVIRONMENT_TABLES = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")


@dataclass(frozen=True)
class KernelColumn:
    """A column of the kernel table: its name in nsys, its name here, its Spark SQL type, whether it must be there."""

    source: str
    name: str
    type: str
    required: bool = False


KERNEL_COLUMNS = (
    KernelColumn("globalPid", "process_key", "bigint"),
    KernelColumn("start", "start_ns", "bigint", required=True),
    KernelColumn("end", "end_ns", "bigint", required=True),
    KernelColumn("demangledName", "name_id", "bigint", required=True),
    KernelColumn("deviceId", "device_id", "int"),
    KernelColumn("contextId", "context_id", "int"),
    KernelColumn("streamId", "stream_id", "bigint"),
    KernelColumn("correlationId", "correlation_id", "bigint"),
    KernelColumn("graphNodeId", "graph_node_id", "bigint"),
    KernelColumn("gridX", "grid_x", "int"),
    KernelColumn("gridY", "grid_y", "int"),
    KernelColumn("gridZ", "grid_z", "int"),
    KernelColumn("blockX", "block_x", "int"),
    KernelColumn("blockY", "block_y", "int"),
    KernelColumn("blockZ", "block_z", "int"),
    KernelColumn("dynamicSharedMemory", "dynamic_shared_memory_bytes", "bigint"),
    KernelColumn("clusterX", "cluster_x", "int"),
    KernelColumn("clusterY", "cluster_y", "int"),
    KernelColumn("clusterZ", "cluster_z", "int"),
)
# Columns of the graph table; what a kernel has beside these is null for a graph.
GRAPH_COLUMNS = (
    *(column for column in KERNEL_COLUMNS if column.source in {"globalPid", "start", "end"}),
    KernelColumn("graphId", "graph_id", "bigint", required=True),
    *(
        column
        for column in KERNEL_COLUMNS
        if column.source in {"deviceId", "contextId", "streamId", "correlationId"}
    ),
)
CONFIG_COLUMNS = tuple(
    column.name
    for column in KERNEL_COLUMNS
    if column.name.startswith(("grid_", "block_", "dynamic_", "cluster_"))
)

_INTEGER_TYPE = re.compile(r"u?int(8|16|32|64)|decimal128\(\d+, 0\)")


def column_problem(table: str, column: str, declared: str | None) -> str | None:
    """Why a required or optional integer column cannot be read, or None; ``declared`` is its Arrow type as text.

    ``None`` stands for an absent column and ``null`` for one that holds nothing.
    """
    if declared is None:
        return f"{table} has no column {column}"
    if not _INTEGER_TYPE.fullmatch(declared):
        return f"column {column} of {table} has type {declared}, expected an integer"
    return None


def readable_columns(
    declared: dict[str, str], table: str = KERNEL_TABLE, columns: tuple[KernelColumn, ...] = KERNEL_COLUMNS
) -> tuple[dict[str, str], str | None]:
    """Columns of a table to read (name in nsys -> Arrow type), or the reason why the table cannot be used.

    Absent optional columns, and optional ones without any value, are left out.
    """
    wanted: dict[str, str] = {}
    for column in columns:
        kind = declared.get(column.source)
        if not column.required and kind in (None, "null"):
            continue
        problem = column_problem(table, column.source, kind)
        if problem is not None:
            return {}, problem
        wanted[column.source] = str(kind)
    return wanted, None
