"""What readers of text traces share: the schema of kernel rows, the report on a file, exact numbers.

A reader is two functions. ``probe_*`` reads a whole file once and returns a ``ReaderReport``; ``read_batches`` returns
its kernels as record batches of ``EVENT_SCHEMA``, rejected ones with their reason, in the order of the file: that is
the order of launch where there is no correlation id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

EVENT_SCHEMA = pa.schema(
    [
        ("process_key", pa.int64()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("kernel_name", pa.string()),
        ("device_id", pa.int32()),
        ("context_id", pa.int32()),
        ("stream_id", pa.int64()),
        ("correlation_id", pa.int64()),
        ("graph_node_id", pa.int64()),
        ("grid_x", pa.int32()),
        ("grid_y", pa.int32()),
        ("grid_z", pa.int32()),
        ("block_x", pa.int32()),
        ("block_y", pa.int32()),
        ("block_z", pa.int32()),
        ("dynamic_shared_memory_bytes", pa.int64()),
        ("cluster_x", pa.int32()),
        ("cluster_y", pa.int32()),
        ("cluster_z", pa.int32()),
        ("reject_reason", pa.string()),
    ]
)

NULL_TIME = "null_time"
NULL_NAME = "null_name"
BAD_NUMBER = "bad_number"
END_BEFORE_START = "end_before_start"
ZERO_DURATION = "zero_duration"
MALFORMED_ROW = "malformed_row"
REJECT_REASONS = (NULL_TIME, NULL_NAME, BAD_NUMBER, END_BEFORE_START, ZERO_DURATION, MALFORMED_ROW)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Dimensions = tuple[int | None, int | None, int | None]
NO_DIMENSIONS: Dimensions = (None, None, None)


class KernelRow(NamedTuple):
    """One kernel in the order of ``EVENT_SCHEMA``; times in ns since the session's start, null where unknown."""

    process_key: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    kernel_name: str | None = None
    device_id: int | None = None
    context_id: int | None = None
    stream_id: int | None = None
    correlation_id: int | None = None
    graph_node_id: int | None = None
    grid_x: int | None = None
    grid_y: int | None = None
    grid_z: int | None = None
    block_x: int | None = None
    block_y: int | None = None
    block_z: int | None = None
    dynamic_shared_memory_bytes: int | None = None
    cluster_x: int | None = None
    cluster_y: int | None = None
    cluster_z: int | None = None
    reject_reason: str | None = None


@dataclass
class ReaderReport:
    """What one pass over a file found; ``reason`` is None for a usable file.

    Attributes:
        format: ``nsys-csv`` or ``kineto``.
        producer_version, schema_version: as far as the file tells.
        rank, world_size: Kineto's distributedInfo, None where the file does not tell.
        gpu_name: of the devices that ran kernels, None unless they agree.
        session_start_ns: UTC epoch ns that ``start_ns`` of the rows counts from, None where the file does not tell.
        n_events: kernel rows, good and rejected; copies and memsets are counted in ``n_copies`` instead.
        n_rejected: rejected kernel rows by reason.
        is_cut: the end of the file is missing; always with a reason.
        reason: why the file cannot be used, in our own words.
        note: what was chosen or left out in a usable file.
        report_kind, section: the nsys report that is read, and which of the reports in the file it is.
        time_base_ns: Kineto's baseTimeNanoseconds.
        first_step: smallest number of Kineto's profiler steps; above 0 the trace begins after its process did.
    """

    format: str
    producer_version: str | None = None
    schema_version: str | None = None
    rank: int | None = None
    world_size: int | None = None
    gpu_name: str | None = None
    session_start_ns: int | None = None
    n_events: int = 0
    n_rejected: Counter[str] = field(default_factory=Counter)
    n_copies: int = 0
    is_cut: bool = False
    reason: str | None = None
    note: str | None = None
    report_kind: str | None = None
    section: int | None = None
    time_base_ns: int = 0
    first_step: int | None = None

    @property
    def n_kept(self) -> int:
        """Kernel rows without a reject reason."""
        return self.n_events - self.n_rejected.total()


def to_batches(rows: Iterable[KernelRow], rows_per_batch: int) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of at most ``rows_per_batch`` rows; raises ValueError if that is below 1."""
    if rows_per_batch < 1:
        raise ValueError(f"rows_per_batch is {rows_per_batch}, it must be at least 1")
    remaining = iter(rows)
    while batch := list(islice(remaining, rows_per_batch)):
        columns = zip(*batch, strict=True)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(values, type=column.type)
                for values, column in zip(columns, EVENT_SCHEMA, strict=True)
            ],
            schema=EVENT_SCHEMA,
        )


_NUMBER = re.compile(r"([+-]?)(\d{1,40})(?:\.(\d{0,40}))?(?:[eE]([+-]?\d{1,3}))?", re.ASCII)
_WHOLE_NUMBER = re.compile(r"([+-]?\d{1,20})(?:\.0*)?", re.ASCII)


def scaled_integer(text: str, power: int) -> int:
    """The number in a text times 10 ** power, rounded half to even, without passing through a float.

    Raises ValueError for anything but one finite decimal number (thousands separators, decimal commas, NaN, hex), and
    for values beyond 64 bits.
    """
    whole, _, fraction = text.partition(".")
    digits = whole + fraction
    # Nearly all numbers are short and plain.
    if len(fraction) <= power and len(whole) + power <= 18 and digits.isdecimal() and digits.isascii():
        return int(digits.ljust(len(whole) + power, "0"))
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a number")
    sign, whole, fraction, exponent = match.groups()
    fraction = fraction or ""
    value = int(whole + fraction)
    shift = power - len(fraction) + int(exponent or 0)
    if shift >= 0:
        # Zero times any power is 0; any other value is beyond the limit at 10 ** 40.
        value *= 10 ** min(shift, 40)
    else:
        divisor: int = 10**-shift
        value, remainder = divmod(value, divisor)
        if 2 * remainder > divisor or (2 * remainder == divisor and value % 2):
            value += 1
    if value > INT64_MAX:
        raise ValueError("out of range")
    return -value if sign == "-" else value


def exact_integer(text: str, limit: int = INT64_MAX) -> int:
    """The whole number in a text; ``7.0`` counts. Raises ValueError for others and beyond the limit."""
    if len(text) <= 9 and text.isdecimal() and text.isascii():
        return int(text)
    match = _WHOLE_NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a whole number")
    value = int(match[1])
    if abs(value) > limit:
        raise ValueError("out of range")
    return value


def time_problem(start_ns: int | None, duration_ns: int | None) -> str | None:
    """Why the times of a kernel cannot be used, None for good ones."""
    if start_ns is None or duration_ns is None:
        return NULL_TIME
    if duration_ns < 0:
        return END_BEFORE_START
    if duration_ns == 0:
        return ZERO_DURATION
    if not -INT64_MAX <= start_ns <= INT64_MAX - duration_ns:
        return BAD_NUMBER
    return None


def clean_name(name: str) -> str | None:
    """A kernel name that UTF-8 can hold, None for a blank one; names are otherwise data, left as they are."""
    if not name or name.isspace():
        return None
    return name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")
