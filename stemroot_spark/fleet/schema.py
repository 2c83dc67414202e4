"""Tables and columns of an nsys export by schema version: data, and one function that reads it.

A column carries the version in which it was first seen; a table also the version that dropped it. Positions
matter (greenContextId came in fifth), so columns stand in the order of the newest version.
"""

from dataclasses import dataclass

import pyarrow as pa

from stemroot_spark.fleet.changes import FleetError

Version = tuple[int, int, int]
FIRST: Version = (0, 0, 0)
LAST: Version = (99, 0, 0)

_I32, _I64, _U32, _U64 = pa.int32(), pa.int64(), pa.uint32(), pa.uint64()
_F64, _TEXT = pa.float64(), pa.large_string()


@dataclass(frozen=True)
class Rung:
    """One version of the export schema, and the product that writes it."""

    name: str
    version: Version
    product_version: str


RUNGS = {
    rung.name: rung
    for rung in (
        Rung("oldest", FIRST, "2021.2.4.12"),
        Rung("2.9.1", (2, 9, 1), "2022.2.1.31"),
        Rung("3.1.7", (3, 1, 7), "2023.2.3.1004"),
        Rung("3.13.2", (3, 13, 2), "2024.5.1.113"),
        Rung("3.23.3", (3, 23, 3), "2025.5.1.121"),
        Rung("3.25.0", (3, 25, 0), "2026.2.1.210"),
    )
}
NEWEST = "3.25.0"


@dataclass(frozen=True)
class Column:
    """A column and the version it came with."""

    name: str
    type: pa.DataType
    since: Version = FIRST


@dataclass(frozen=True)
class Table:
    """A table and the versions [since, until) that export it."""

    columns: tuple[Column, ...]
    since: Version = FIRST
    until: Version = LAST


def _columns(dtype: pa.DataType, names: str, since: Version = FIRST) -> tuple[Column, ...]:
    return tuple(Column(name, dtype, since) for name in names.split())


_GREEN = (3, 13, 2)
_NAME_VALUE = _columns(_TEXT, "name value")


def _event(green_since: Version = _GREEN) -> tuple[Column, ...]:
    """The columns with which every event on the GPU begins."""
    return (
        *_columns(_I64, "start end"),
        *_columns(_U32, "deviceId contextId"),
        *_columns(_U32, "greenContextId", green_since),
        *_columns(_U32, "streamId correlationId"),
        *_columns(_U64, "globalPid"),
    )


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"

TABLES: dict[str, Table] = {
    KERNEL: Table(
        (
            *_event(),
            *_columns(_U32, "demangledName shortName"),
            *_columns(_U32, "mangledName", (2, 9, 1)),
            *_columns(_I32, "launchType cacheConfig"),
            *_columns(_U32, "registersPerThread"),
            *_columns(_I32, "gridX gridY gridZ blockX blockY blockZ"),
            *_columns(_I32, "staticSharedMemory dynamicSharedMemory localMemoryPerThread"),
            *_columns(_I64, "localMemoryTotal gridId"),
            *_columns(_I32, "sharedMemoryExecuted"),
            *_columns(_U64, "graphNodeId"),
            *_columns(_I32, "sharedMemoryLimitConfig"),
            *_columns(_I32, "qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone", (3, 23, 3)),
            *_columns(_U32, "graphId", (3, 23, 3)),
            *_columns(_I32, "clusterX clusterY clusterZ clusterSchedulingPolicy", (3, 23, 3)),
            *_columns(_I32, "maxPotentialClusterSize maxActiveClusters", (3, 23, 3)),
            *_columns(_I32, "sharedMemoryRequestedPercentage", (3, 24, 14)),
            *_columns(_TEXT, "tensorSizeMinusOneElements", (3, 25, 0)),
        )
    ),
    RUNTIME: Table(
        (
            *_columns(_I64, "start end"),
            *_columns(_I32, "eventClass"),
            *_columns(_U64, "globalTid"),
            *_columns(_U32, "correlationId nameId"),
            *_columns(_I32, "returnValue callchainId"),
        )
    ),
    NVTX: Table(
        (
            *_columns(_I64, "start end"),
            *_columns(_U32, "eventType"),
            *_columns(_U64, "rangeId category"),
            *_columns(_U32, "color"),
            *_columns(_TEXT, "text"),
            *_columns(_U64, "globalTid endGlobalTid"),
            *_columns(_U32, "textId"),
            *_columns(_U64, "domainId uint64Value"),
            *_columns(_I64, "int64Value"),
            *_columns(_F64, "doubleValue"),
            *_columns(_U32, "uint32Value"),
            *_columns(_I32, "int32Value"),
            *_columns(_F64, "floatValue"),
            *_columns(_U32, "jsonTextId"),
            *_columns(_TEXT, "jsonText"),
            # The first version with it is not known: absent at 3.4.0, present at 3.25.0.
            *_columns(_TEXT, "binaryData", (3, 25, 0)),
        )
    ),
    STRINGS: Table((*_columns(_U32, "id"), *_columns(_TEXT, "value"))),
    "EXPORT_META_DATA": Table(_NAME_VALUE, since=(2, 9, 1), until=(3, 4, 0)),
    "META_DATA_EXPORT": Table(_NAME_VALUE, since=(3, 4, 0)),
    "META_DATA_CAPTURE": Table(_NAME_VALUE, since=(3, 4, 0)),
    "PROCESSES": Table(
        (*_columns(_U64, "globalPid"), *_columns(_I32, "pid"), *_columns(_TEXT, "name")), since=(2, 9, 1)
    ),
    "ANALYSIS_DETAILS": Table(
        (*_columns(_U64, "globalVid"), *_columns(_I64, "duration startTime stopTime")), since=(2, 9, 1)
    ),
    "TARGET_INFO_SYSTEM_ENV": Table(
        (
            *_columns(_U64, "globalVid"),
            *_columns(_TEXT, "devStateName name"),
            *_columns(_I32, "nameEnum"),
            *_columns(_TEXT, "value"),
        ),
        since=(2, 9, 1),
    ),
    "TARGET_INFO_SESSION_START_TIME": Table(
        (
            *_columns(_I64, "utcEpochNs"),
            *_columns(_TEXT, "utcTime localTime"),
            *_columns(_I64, "systemClockNs", (3, 24, 14)),
        ),
        since=(2, 9, 1),
    ),
    "TARGET_INFO_CUDA_DEVICE": Table(
        (
            *_columns(_I32, "gpuId cudaId pid"),
            *_columns(_TEXT, "uuid", (3, 24, 14)),
            *_columns(_I32, "numMultiprocessors", (3, 24, 14)),
        ),
        since=(3, 17, 2),
    ),
    "TARGET_INFO_GPU": Table(
        (
            *_columns(_I64, "vmId"),
            *_columns(_U32, "id"),
            *_columns(_TEXT, "name busLocation"),
            *_columns(_I32, "isDiscrete l2CacheSize"),
            *_columns(_I64, "totalMemory memoryBandwidth clockRate"),
            *_columns(_I32, "smCount pwGpuId"),
            *_columns(_TEXT, "uuid"),
            *_columns(_I32, "luid"),
            *_columns(_TEXT, "chipName"),
            *_columns(_I32, "cuDevice"),
            *_columns(_TEXT, "ctxswDevPath ctrlDevPath"),
            *_columns(_I32, "revision nodeMask constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock"),
            *_columns(
                _I32, "maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines"
            ),
            *_columns(_I32, "maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY"),
            *_columns(_I32, "maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor"),
            *_columns(_I32, "smMajor smMinor"),
        )
    ),
    # The generator has no rows for these: they exist in a non-lazy export only, empty.
    "CUPTI_ACTIVITY_KIND_MEMCPY": Table(
        (
            *_event(),
            *_columns(_I64, "bytes"),
            *_columns(_I32, "copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId"),
            *_columns(_I32, "dstDeviceId dstContextId migrationCause"),
            *_columns(_U64, "graphNodeId"),
            *_columns(_I64, "virtualAddress", (2, 9, 1)),
            *_columns(_I32, "copyCount", (3, 17, 2)),
        )
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": Table(
        (
            *_event(green_since=(3, 20, 2)),
            *_columns(_I32, "value"),
            *_columns(_I64, "bytes"),
            *_columns(_U64, "graphNodeId"),
            *_columns(_I32, "memKind"),
        )
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": Table(
        (
            *_event(),
            *_columns(_I32, "deprecatedSyncType", (3, 17, 2)),
            *_columns(_I32, "syncType"),
            *_columns(_I64, "eventId"),
            *_columns(_I32, "eventSyncId", (3, 17, 2)),
        )
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": Table(
        (*_event(), *_columns(_U32, "graphId graphExecId")), since=(2, 9, 1)
    ),
    "DIAGNOSTIC_EVENT": Table(
        (
            *_columns(_I64, "timestamp"),
            *_columns(_I32, "timestampType source severity"),
            *_columns(_TEXT, "text"),
            *_columns(_U64, "globalPid"),
        ),
        since=(3, 13, 2),
    ),
}


def rung(name: str) -> Rung:
    """Look a schema version up; FleetError names those there are."""
    if name not in RUNGS:
        raise FleetError(f"schema version {name!r} is not one of {', '.join(RUNGS)}")
    return RUNGS[name]


def arrow_schema(table: str, version: Version) -> pa.Schema | None:
    """Columns of a table at a schema version, in the export's order; None where the table did not exist."""
    entry = TABLES[table]
    if not entry.since <= version < entry.until:
        return None
    return pa.schema(
        [pa.field(column.name, column.type) for column in entry.columns if column.since <= version]
    )
