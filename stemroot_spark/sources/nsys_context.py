"""What an nsys export tells about its report beside the launches: versions, times, GPU, rank, losses, windows.

Only named fields of named tables are looked at, and only numbers, versions and GPU models leave: these tables also
hold the environment, command lines and users of a real machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.identity import RANK_KEYS, WORLD_SIZE_KEYS, environment_numbers, first_of

CONTEXT_TABLES = (
    *nsys.EXPORT_METADATA_TABLES,
    *nsys.ENVIRONMENT_TABLES,
    nsys.SESSION_TABLE,
    nsys.GPU_TABLE,
    nsys.DEVICE_TABLE,
    nsys.DIAGNOSTIC_TABLE,
)
_LOST_EVENTS = "Not all CUDA events might have been collected"
_TIME_LIMIT = 2**62

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ReportContext:
    """Context of one report.

    ``session_start_ns`` is UTC; ``time_offset_ns`` has to be taken from every event time to make it count from the
    session's start, which differs from 0 where the export normalised or shifted times. ``is_window`` is True where the
    capture says itself that it covers a part of its processes, else None.
    """

    producer_version: str | None
    schema_version: str | None
    session_start_ns: int | None
    time_offset_ns: int
    gpu_name: str | None
    gpu_clock_mhz: float | None
    claimed_rank: int | None
    world_size: int | None
    has_lost_events: bool
    is_window: bool | None


def report_context(tables: Mapping[str, Rows]) -> ReportContext:
    """Context from the rows of ``CONTEXT_TABLES`` that are there; nothing odd in them is an error."""
    metadata = [
        {str(row.get("name")): row.get("value") for row in tables.get(name, [])}
        for name in nsys.EXPORT_METADATA_TABLES
    ]
    session_start_ns = next(
        (
            start
            for row in tables.get(nsys.SESSION_TABLE, [])
            if (start := _whole(row.get("utcEpochNs"))) is not None
        ),
        None,
    )
    offset_ns = _whole(_parameter(metadata, "TIME_SHIFT")) or 0
    if _text(_parameter(metadata, "TIME_NORMALIZE")) == "true":
        offset_ns += session_start_ns or 0
    numbers = environment_numbers(dict(tables))
    gpu_name, gpu_clock_mhz = _gpu(tables)
    return ReportContext(
        producer_version=_first(metadata, "EXPORT_PRODUCT_VERSION"),
        schema_version=_first(metadata, "EXPORT_SCHEMA_VERSION"),
        session_start_ns=session_start_ns,
        time_offset_ns=offset_ns,
        gpu_name=gpu_name,
        gpu_clock_mhz=gpu_clock_mhz,
        claimed_rank=first_of(RANK_KEYS, numbers),
        world_size=first_of(WORLD_SIZE_KEYS, numbers),
        has_lost_events=any(
            _LOST_EVENTS in (_text(row.get("text")) or "") for row in tables.get(nsys.DIAGNOSTIC_TABLE, [])
        ),
        is_window=_is_window(metadata, tables),
    )


def _first(metadata: list[dict[str, Any]], name: str) -> str | None:
    return next((text for entries in metadata if (text := _text(entries.get(name)))), None)


def _parameter(metadata: list[dict[str, Any]], name: str) -> Any:
    """An export parameter; its prefix changed when the metadata table was renamed."""
    for entries in metadata:
        for prefix in ("EXPORT_PARAM_", "EXPORT_"):
            if entries.get(prefix + name) not in (None, ""):
                return entries[prefix + name]
    return None


def _is_window(metadata: list[dict[str, Any]], tables: Mapping[str, Rows]) -> bool | None:
    """True where export or capture were told to keep a span of time only."""
    if _parameter(metadata, "TIMES_TO_EXPORT") is not None:
        return True
    capture = {
        str(row.get("name")): _text(row.get("value")) or "" for row in tables.get("META_DATA_CAPTURE", [])
    }
    starts_late = capture.get("START_TRIGGER", "Immediate") != "Immediate" or (
        (_whole(capture.get("START_DELAY_MS")) or 0) > 0
    )
    return True if starts_late else None


def _gpu(tables: Mapping[str, Rows]) -> tuple[str | None, float | None]:
    """Model and clock in MHz of the GPUs the processes used, None where they differ or are unknown."""
    used = {row.get("gpuId") for row in tables.get(nsys.DEVICE_TABLE, [])}
    rows = tables.get(nsys.GPU_TABLE, [])
    rows = [row for row in rows if row.get("id") in used] or rows
    names = {_text(row.get("name")) for row in rows} - {None, ""}
    clocks = {_whole(row.get("clockRate")) for row in rows} - {None, 0}
    clock = clocks.pop() if len(clocks) == 1 else None
    return (
        names.pop() if len(names) == 1 else None,
        clock / 1e6 if clock is not None and clock > 0 else None,
    )


def _text(value: Any) -> str | None:
    """A value of a table that holds text, None for anything else it may hold."""
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    """A whole number, also written as text; None for others and beyond what times can be."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            return None
        value = int(value)
    return value if isinstance(value, int) and abs(value) < _TIME_LIMIT else None
