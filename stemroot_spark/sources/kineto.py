"""PyTorch profiler (Kineto) traces: kernels of a JSON file, plain or gzip, in memory that does not grow with the file.

The grain is the process, and Kineto writes one file per process: ``process_key`` is always 0. The pid of a GPU event is
no process but the device, so it cannot tell processes apart. A file that several processes were merged into names more
than one process of the CPU; it is refused, since correlation ids of different processes collide.

Times: ``ts`` and ``dur`` are microseconds as decimals, ``ts`` counts from baseTimeNanoseconds (0 where absent). Rows
count from the session's start, the earliest time among the profiler's own span and the GPU's events:
``session_start_ns`` of the report plus ``start_ns`` of a row is the exact UTC time in ns.

``shared memory`` of a kernel is static and dynamic memory together, so the dynamic part is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from stemroot_spark.sources.chrome_trace import (
    COPY_CATEGORIES,
    KERNEL_CATEGORIES,
    ChromeTrace,
    Event,
)
from stemroot_spark.sources.events import (
    BAD_NUMBER,
    INT32_MAX,
    INT64_MAX,
    MALFORMED_ROW,
    NO_DIMENSIONS,
    NULL_NAME,
    Dimensions,
    KernelRow,
    ReaderReport,
    clean_name,
    exact_integer,
    scaled_integer,
    time_problem,
    to_batches,
)
from stemroot_spark.sources.text_stream import (
    ReadLimits,
    UnusableSourceError,
    open_source,
    text_chunks,
    text_start,
)

FORMAT = "kineto"
_MICROSECONDS = 3
_HEADER_KEYS = frozenset({"schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"})
_LOOKS_LIKE_TRACE = re.compile(
    r'\s*(?:\[\s*\{[^{}]*"ph"|\{.*?"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)")',
    re.DOTALL,
)
# Marks of duration events that come as pairs, and of events that are no intervals at all.
_BEGIN_MARK, _COMPLETE_MARK = "B", "X"
_VERSION = re.compile(r"[\w.+-]{1,40}", re.ASCII)
_STEP = re.compile(r"ProfilerStep#(\d{1,9})", re.ASCII)
_LONGEST_GPU_NAME = 200
# Far more than a process has; it keeps memory flat whatever stands in a file.
_MOST_DEVICES_KEPT = 1_000


def is_kineto(start: bytes) -> bool:
    """Whether the first bytes of a file (64 KiB are enough) are those of a profiler's trace, plain or gzip."""
    return _LOOKS_LIKE_TRACE.match(text_start(start)) is not None


def probe_kineto(source: str | Path | IO[bytes], limits: ReadLimits | None = None) -> ReaderReport:
    """Read a whole trace once, without keeping it; never raises for what is wrong with the file itself."""
    report = ReaderReport(FORMAT)
    try:
        _probe(source, limits or ReadLimits(), report)
    except UnusableSourceError as problem:
        report.reason, report.is_cut = str(problem), problem.is_cut
    except OSError as error:
        report.reason = f"cannot be read: {error.strerror or type(error).__name__}"
    return report


def read_batches(
    source: str | Path | IO[bytes],
    rows_per_batch: int,
    report: ReaderReport | None = None,
    limits: ReadLimits | None = None,
) -> Iterator[pa.RecordBatch]:
    """Kernels of a trace as batches of ``EVENT_SCHEMA``, in the order of the file.

    ``report`` is the probe's, made here if it is not given: baseTimeNanoseconds may stand behind the events. Raises
    UnusableSourceError with the reason for a file that cannot be used, possibly after some batches.
    """
    report = report or probe_kineto(source, limits)
    if report.reason is not None:
        raise UnusableSourceError(report.reason, is_cut=report.is_cut)
    yield from to_batches(_rows(source, report, limits or ReadLimits()), rows_per_batch)


def _rows(source: str | Path | IO[bytes], report: ReaderReport, limits: ReadLimits) -> Iterator[KernelRow]:
    origin_ns = (report.session_start_ns or 0) - report.time_base_ns
    with open_source(source) as stream:
        for event in ChromeTrace(text_chunks(stream, limits), _HEADER_KEYS, limits).events():
            if is_kernel(event):
                yield kernel_row(event, origin_ns)


def _probe(source: str | Path | IO[bytes], limits: ReadLimits, report: ReaderReport) -> None:
    first_ns: int | None = None
    devices: set[int] = set()
    cpu_processes: set[str] = set()
    with open_source(source) as stream:
        trace = ChromeTrace(text_chunks(stream, limits), _HEADER_KEYS, limits)
        for event in trace.events():
            if is_kernel(event):
                row = kernel_row(event, 0)
                report.n_events += 1
                if row.reject_reason is not None:
                    report.n_rejected[row.reject_reason] += 1
                elif row.device_id is not None and len(devices) < _MOST_DEVICES_KEPT:
                    devices.add(row.device_id)
                start_ns = row.start_ns if row.reject_reason is None else None
            else:
                report.n_copies += event is not None and _category(event) in COPY_CATEGORIES
                start_ns = _interval_start(event)
            if start_ns is not None and (first_ns is None or start_ns < first_ns):
                first_ns = start_ns
            if event is not None:
                _look_aside(event, report, cpu_processes)
    _take_header(report, trace.header, devices)
    if first_ns is not None:
        report.session_start_ns = report.time_base_ns + first_ns
        if report.session_start_ns > INT64_MAX:
            report.session_start_ns = None
            raise UnusableSourceError("the times of the trace are beyond 64 bits of ns; profile again")
    if len(cpu_processes) > 1:
        raise UnusableSourceError(
            "several processes were merged into this trace, and their launches cannot be told apart; "
            "give the file that the profiler wrote for each process"
        )
    if report.n_events == 0:
        raise UnusableSourceError(
            "no kernel launches: the trace has no event of category kernel; profile with ProfilerActivity.CUDA"
        )


def _look_aside(event: Event, report: ReaderReport, cpu_processes: set[str]) -> None:
    """Take from an event what it tells about the trace as a whole."""
    if len(cpu_processes) < 2:
        cpu_processes |= _cpu_process(event)
    step = _profiler_step(event)
    if step is not None:
        report.first_step = step if report.first_step is None else min(report.first_step, step)


def is_kernel(event: Event | None) -> bool:
    """Whether an event stands for a launch: None does, a kernel that could not be decoded."""
    if event is None:
        return True
    mark = event.get("ph", _COMPLETE_MARK)
    return _category(event) in KERNEL_CATEGORIES and mark in (_COMPLETE_MARK, _BEGIN_MARK)


def kernel_row(event: Event | None, origin_ns: int) -> KernelRow:
    """The row of a kernel event; ``origin_ns`` is where ``start_ns`` counts from, relative to baseTimeNanoseconds."""
    if event is None or event.get("ph") != _COMPLETE_MARK:
        return KernelRow(0, reject_reason=MALFORMED_ROW)
    args = event.get("args") or {}
    name = event.get("name")
    if not isinstance(args, dict) or not isinstance(name, str | None):
        return KernelRow(0, reject_reason=MALFORMED_ROW)
    kernel_name = clean_name(name or "")
    try:
        start_ns, duration_ns = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
        device_id = _identity(args.get("device"), event.get("pid"), INT32_MAX)
        fields = (
            device_id,
            _integer(args.get("context"), INT32_MAX),
            _identity(args.get("stream"), event.get("tid")),
            _integer(args.get("correlation")),
            # 0 is what CUPTI says outside of graphs.
            _integer(args.get("graph node id")) or None,
            *_dimensions(args.get("grid")),
            *_dimensions(args.get("block")),
            None,
            *_dimensions(args.get("cluster")),
        )
    except ValueError:
        return KernelRow(0, kernel_name=kernel_name, reject_reason=BAD_NUMBER)
    problem = time_problem(start_ns, duration_ns) or (NULL_NAME if kernel_name is None else None)
    if start_ns is not None and start_ns < 0:
        problem = BAD_NUMBER
    if start_ns is None or duration_ns is None or problem == BAD_NUMBER:
        return KernelRow(0, None, None, kernel_name, *fields, problem)
    start_ns -= origin_ns
    return KernelRow(0, start_ns, start_ns + duration_ns, kernel_name, *fields, problem)


def _interval_start(event: Event | None) -> int | None:
    """Start of a complete event that has a length, in ns since the base; events at 0 are without time, not early."""
    if event is None or event.get("ph") != _COMPLETE_MARK:
        return None
    try:
        start_ns, duration_ns = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
    except ValueError:
        return None
    is_interval = start_ns is not None and duration_ns is not None and start_ns > 0 and duration_ns > 0
    return start_ns if is_interval else None


def _category(event: Event) -> str | None:
    category = event.get("cat")
    return category if isinstance(category, str) else None


def _nanoseconds(value: Any) -> int | None:
    if value is None:
        return None
    return scaled_integer(_text(value), _MICROSECONDS)


def _integer(value: Any, limit: int = INT64_MAX) -> int | None:
    return None if value is None else exact_integer(_text(value), limit)


def _identity(value: Any, fallback: Any, limit: int = INT64_MAX) -> int | None:
    """An id in the args; without one, the event's pid or tid says the same, unless it is a label."""
    if value is not None:
        return _integer(value, limit)
    try:
        return _integer(fallback, limit)
    except ValueError:
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a number")
    return value


def _dimensions(value: Any) -> Dimensions:
    if value is None:
        return NO_DIMENSIONS
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("not three numbers")
    x, y, z = (_integer(size, INT32_MAX) for size in value)
    return x, y, z


def _cpu_process(event: Event) -> set[str]:
    """The pid of a process that the metadata of a trace labels as one of the CPU."""
    args = event.get("args")
    if event.get("name") != "process_labels" or not isinstance(args, dict) or args.get("labels") != "CPU":
        return set()
    return {str(event.get("pid"))}


def _profiler_step(event: Event) -> int | None:
    """Number of a training step, as torch.profiler counts them from where it was started."""
    name = event.get("name")
    match = _STEP.fullmatch(name) if isinstance(name, str) else None
    return int(match[1]) if match else None


def _take_header(report: ReaderReport, header: dict[str, Any], devices: set[int]) -> None:
    try:
        report.time_base_ns = _integer(header.get("baseTimeNanoseconds")) or 0
    except ValueError:
        raise UnusableSourceError("baseTimeNanoseconds is not a whole number of ns; profile again") from None
    version = header.get("schemaVersion")
    report.schema_version = version if isinstance(version, str) and _VERSION.fullmatch(version) else None
    distributed = header.get("distributedInfo")
    if isinstance(distributed, dict):
        report.rank = _optional_count(distributed.get("rank"))
        report.world_size = _optional_count(distributed.get("world_size"))
    report.gpu_name = _gpu_name(header.get("deviceProperties"), devices)


def _optional_count(value: Any) -> int | None:
    try:
        count = _integer(value, INT32_MAX)
    except ValueError:
        return None
    return count if count is not None and count >= 0 else None


def _gpu_name(properties: Any, devices: set[int]) -> str | None:
    if not isinstance(properties, list):
        return None
    entries = [entry for entry in properties if isinstance(entry, dict)]
    used = [entry for entry in entries if _optional_count(entry.get("id")) in devices] or entries
    names = {entry.get("name") for entry in used if isinstance(entry.get("name"), str)} - {""}
    name = names.pop() if len(names) == 1 else None
    return name[:_LONGEST_GPU_NAME] if isinstance(name, str) else None
