"""Kineto traces written by hand, and what the reader makes of them, for its tests."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest

from stemroot_spark.sources.events import EVENT_SCHEMA
from stemroot_spark.sources.kineto import probe_kineto, read_batches
from stemroot_spark.sources.text_stream import ReadLimits, UnusableSourceError

BASE_NS = 1_751_410_836_000_000_000


KERNEL: dict[str, Any] = {
    "ph": "X",
    "cat": "kernel",
    "name": "void gemm<float, 4>(int, (anonymous namespace)::{lambda(float)#1})",
    "pid": 3,
    "tid": 7,
    "ts": 1428625731622.25,
    "dur": 18.112,
    "args": {
        "External id": 5,
        "queued": 0,
        "device": 3,
        "context": 1,
        "stream": 7,
        "correlation": 675771,
        "registers per thread": 16,
        "shared memory": 49152,
        "blocks per SM": 135.515152,
        "grid": [17888, 2, 1],
        "block": [128, 1, 1],
    },
}


SPAN = {
    "ph": "X",
    "cat": "Trace",
    "name": "PyTorch Profiler (0)",
    "pid": "Spans",
    "ts": 1428625731456.483,
    "dur": 9.5,
}


OPERATOR = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 9,
    "tid": 9,
    "ts": 5,
    "dur": 1,
    "args": {"a": []},
}


COPY = {**KERNEL, "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}


def kineto_stream(data: str | bytes) -> io.BytesIO:
    return io.BytesIO(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)


def kineto_trace(*events: Any, **header: Any) -> str:
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": list(events)})


def changed_kernel(**changes: Any) -> dict[str, Any]:
    """The kernel with other members; those of None are left out, those that args have are changed there."""
    args = dict(KERNEL["args"])
    event: dict[str, Any] = {**KERNEL, "args": args}
    for name, value in changes.items():
        target = args if name in KERNEL["args"] else event
        target[name] = value
        if value is None:
            del target[name]
    return event


def kineto_rows(data: str | bytes) -> list[dict[str, Any]]:
    table = pa.Table.from_batches(list(read_batches(kineto_stream(data), 2)), schema=EVENT_SCHEMA)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def kineto_reason(data: str | bytes, limits: ReadLimits | None = None) -> str:
    reason = probe_kineto(kineto_stream(data), limits).reason
    assert reason is not None
    with pytest.raises(UnusableSourceError, match=r".") as error:
        list(read_batches(kineto_stream(data), 2, limits=limits))
    assert str(error.value) == reason
    return reason


def kineto_times(data: str | bytes) -> list[tuple[int, int, int]]:
    """Session start, start and duration of the kernels."""
    session_ns = probe_kineto(kineto_stream(data)).session_start_ns or 0
    return [(session_ns, row["start_ns"], row["end_ns"] - row["start_ns"]) for row in kineto_rows(data)]
