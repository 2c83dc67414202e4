"""nsys stats CSV: the kernels of ``cuda_gpu_trace`` and ``cuda_kern_exec_trace``, of every version since 2021.

A file may hold what ``nsys stats`` prints: lines before the header, and several reports one after the other. One report
is read, cuda_gpu_trace if there is one: it alone has streams and correlation ids. The same report a second time is left
out if it tells the same times, else the file is refused, since it holds more than one run.

Units stand in the header and follow ``--timeunit``; numbers become ns without passing through a float. Shared memory in
MB with three decimals cannot be turned back into bytes and is null. cuda_gpu_trace does not tell the process
(``process_key`` 0), cuda_kern_exec_trace does (PID). Neither tells when the session started.

A file cut at the end of a line looks whole: the format has no count of its rows.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pyarrow as pa

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
from stemroot_spark.sources.nsys_csv_layout import (
    GPU_TRACE,
    KERNEL_LEVEL,
    OTHER,
    SUMMARY,
    Layout,
    layout_of,
)
from stemroot_spark.sources.text_stream import (
    ReadLimits,
    UnusableSourceError,
    open_source,
    text_chunks,
    text_start,
)

FORMAT = "nsys-csv"
_EXPORT_HINT = "write nsys stats --report cuda_gpu_trace --format csv"
# What nsys prints between reports, on the same stream as the rows.
_ANNOUNCEMENT = "Processing ["
_NOISE = re.compile(
    r"(Processing \[|Generat|NOTICE|WARNING|ERROR|SKIPPED|Export|Using |Import|Collecting|\*\* |Try )"
)
_DEVICE = re.compile(r"(.*?)\s*\((\d{1,9})\)\s*", re.ASCII | re.DOTALL)
# The beginning of a row inside a cell: a quotation mark is missing, and the cell has swallowed the next lines.
_SWALLOWED_ROW = re.compile(r"\n\s*-?[\d.]+,")
_COPY_MARK = "[CUDA mem"
_LONGEST_GPU_NAME = 200
# Far more than real files have; they keep memory flat whatever stands in a file.
_MOST_NAMES_KEPT = 10_000
_MOST_REPORTS = 1_000


@dataclass(frozen=True)
class _Record:
    """A line below a kernel-level header, or the lines a quoted cell goes over.

    ``has_end`` is False for the last line of a file if it has no end of line, ``is_cut`` is True if the file ends
    within a quotation.
    """

    section: int
    layout: Layout
    cells: list[str]
    n_lines: int
    has_end: bool
    is_cut: bool

    @property
    def has_width(self) -> bool:
        """Whether there are as many cells as in the header."""
        return len(self.cells) == self.layout.width


@dataclass
class _Section:
    """What the probe knows of one kernel-level report in the file."""

    layout: Layout
    n_events: int = 0
    n_rejected: Counter[str] = field(default_factory=Counter)
    n_copies: int = 0
    is_cut: bool = False
    devices: set[str] = field(default_factory=set)
    kernel_names: set[str | None] = field(default_factory=set)
    times: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))


def is_nsys_csv(start: bytes) -> bool:
    """Whether a header of nsys stats CSV stands in the first bytes of a file; 64 KiB are enough."""
    lines = text_start(start).split("\n")
    try:
        return any(layout_of(cells) is not None for cells in csv.reader(lines))
    except csv.Error:
        return False


def probe_nsys_csv(source: str | Path | IO[bytes], limits: ReadLimits | None = None) -> ReaderReport:
    """Read a whole file once, without keeping it; never raises for what is wrong with the file itself."""
    report = ReaderReport(FORMAT)
    try:
        _probe(source, limits or ReadLimits(), report)
    except UnusableSourceError as problem:
        report.reason, report.is_cut = str(problem), report.is_cut or problem.is_cut
    except OSError as error:
        report.reason = f"cannot be read: {error.strerror or type(error).__name__}"
    return report


def read_batches(
    source: str | Path | IO[bytes],
    rows_per_batch: int,
    report: ReaderReport | None = None,
    limits: ReadLimits | None = None,
) -> Iterator[pa.RecordBatch]:
    """Kernels of the report that the probe chose, as batches of ``EVENT_SCHEMA`` in the order of the file.

    ``report`` is the probe's, made here if it is not given. Raises UnusableSourceError with the reason for a file that
    cannot be used, possibly after some batches. A cut file can be read all the same by taking the reason out of the
    report: its last line is then a malformed row.
    """
    report = report or probe_nsys_csv(source, limits)
    if report.reason is not None:
        raise UnusableSourceError(report.reason, is_cut=report.is_cut)
    yield from to_batches(_chosen_rows(source, report, limits or ReadLimits()), rows_per_batch)


def _chosen_rows(
    source: str | Path | IO[bytes], report: ReaderReport, limits: ReadLimits
) -> Iterator[KernelRow]:
    with open_source(source) as stream:
        for record in _records(text_chunks(stream, limits), limits, []):
            if record.section == report.section:
                yield from _rows(record, report.is_cut and not record.has_end)


def _probe(source: str | Path | IO[bytes], limits: ReadLimits, report: ReaderReport) -> None:
    layouts: list[Layout] = []
    sections: dict[int, _Section] = {}
    with open_source(source) as stream:
        for record in _records(text_chunks(stream, limits), limits, layouts):
            if record.section not in sections:
                sections[record.section] = _Section(record.layout)
            _count(record, sections[record.section])
    number = _choose(layouts, sections)
    section = sections[number]
    report.section, report.report_kind = number, section.layout.kind
    report.schema_version = section.layout.generation
    report.n_events, report.n_rejected, report.n_copies = (
        section.n_events,
        section.n_rejected,
        section.n_copies,
    )
    names = section.devices - {""}
    report.gpu_name = names.pop()[:_LONGEST_GPU_NAME] if len(names) == 1 else None
    left_out = sorted({other.layout.kind for n, other in sections.items() if n != number})
    if left_out:
        report.note = f"{section.layout.kind} is read; left out as the same launches: {', '.join(left_out)}"
    if section.is_cut:
        raise UnusableSourceError(
            "the file is cut inside its last line; copy it again or export again", is_cut=True
        )
    if section.n_events == 0:
        raise UnusableSourceError(f"no kernel launches: {section.layout.kind} has no row of a kernel")


def _choose(layouts: list[Layout], sections: dict[int, _Section]) -> int:
    """The number of the report to read; raises UnusableSourceError if there is none, or more than one run."""
    kinds = [layout.kind for layout in layouts]
    wanted = next((kind for kind in KERNEL_LEVEL if kind in kinds), None)
    if wanted is None and SUMMARY in kinds:
        raise UnusableSourceError(
            f"a summary per kernel, as of gpukernsum or cuda_gpu_kern_sum: no single launches; {_EXPORT_HINT}"
        )
    if wanted is None:
        what = "CSV, but no report of single kernels" if kinds else "no header of nsys stats CSV"
        raise UnusableSourceError(f"{what}; {_EXPORT_HINT}")
    numbers = [number for number, kind in enumerate(kinds) if kind == wanted]
    problem = next((layouts[n].problem for n in numbers if layouts[n].problem is not None), None)
    if problem is not None:
        raise UnusableSourceError(problem)
    with_rows = [number for number in numbers if number in sections]
    if len({sections[number].times.digest() for number in with_rows}) > 1:
        raise UnusableSourceError(f"{wanted} of several runs in one file; give a file for each run")
    if not with_rows:
        raise UnusableSourceError(f"no kernel launches: {wanted} has no rows")
    return with_rows[0]


def _count(record: _Record, section: _Section) -> None:
    section.is_cut = not record.has_end and _is_cut(record, section.kernel_names)
    if not section.is_cut and _is_copy(record):
        section.n_copies += 1
        return
    for row in _rows(record, section.is_cut):
        section.n_events += 1
        if len(section.kernel_names) < _MOST_NAMES_KEPT:
            section.kernel_names.add(row.kernel_name)
        if row.reject_reason is not None:
            section.n_rejected[row.reject_reason] += 1
        section.times.update(b"%d,%d;" % (row.start_ns or 0, row.end_ns or 0))
    if record.layout.kind == GPU_TRACE and record.has_width and len(section.devices) < 3:
        match = _DEVICE.fullmatch(record.layout.cell(record.cells, "device"))
        section.devices.add("" if match is None else match[1])


def _records(chunks: Iterator[str], limits: ReadLimits, layouts: list[Layout]) -> Iterator[_Record]:
    """The records below kernel-level headers; the layout of every header found is appended to ``layouts``."""
    lines = _Lines(chunks, limits)
    reader = csv.reader(lines)
    is_announced = False
    while True:
        first_line = reader.line_num
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            raise UnusableSourceError("not CSV: a quotation mark or an end of line is missing") from None
        if not cells or (len(cells) == 1 and not cells[0].strip()):
            continue
        # An announcement can get between the rows of the report before it: it goes to another stream.
        is_numeric = cells[0][:1] in "0123456789-."
        layout = None if is_numeric else layout_of(cells)
        if layout is None and _NOISE.match(cells[0]):
            is_announced = is_announced or cells[0].startswith(_ANNOUNCEMENT)
        elif layout is not None or (is_announced and not is_numeric):
            if len(layouts) == _MOST_REPORTS:
                raise UnusableSourceError(
                    f"more than {_MOST_REPORTS} reports in one file; give a file for each run"
                )
            layouts.append(layout or Layout(OTHER))
            is_announced = False
        elif layouts and layouts[-1].kind in KERNEL_LEVEL:
            n_lines = reader.line_num - first_line
            # The reader asks for more than the last line only within a quotation.
            has_end = lines.has_end and not lines.is_exhausted
            yield _Record(len(layouts) - 1, layouts[-1], cells, n_lines, has_end, lines.is_exhausted)


class _Lines:
    """Lines with their ends; whether the last one returned had an end, and whether another was asked for."""

    def __init__(self, chunks: Iterator[str], limits: ReadLimits) -> None:
        self.has_end = True
        self.is_exhausted = False
        self._chunks = chunks
        self._limit = limits.record_characters

    def __iter__(self) -> Iterator[str]:
        rest = ""
        for chunk in self._chunks:
            # Not splitlines: a kernel's name may hold other separators that Unicode counts as ends of lines.
            first, *others = chunk.split("\n")
            rest += first
            if len(rest) > self._limit:
                raise UnusableSourceError(f"not CSV: a line has more than {self._limit} characters")
            for other in others:
                yield rest + "\n"
                rest = other
        if rest:
            self.has_end = False
            yield rest
        self.is_exhausted = True


def _is_cut(record: _Record, known_names: set[str | None]) -> bool:
    """Whether the last line of a file, which has no end of line, lacks more than that."""
    if record.is_cut or not record.has_width:
        return True
    name = record.cells[-1]
    # Most names end with their parameters; another one may be the beginning of a longer one.
    opened, closed = sum(map(name.count, "([{")), sum(map(name.count, ")]}"))
    return name not in known_names and (opened != closed or not name.endswith((")", "]")))


def _rows(record: _Record, is_cut: bool) -> Iterator[KernelRow]:
    """The rows of a record: none for a copy, one for a kernel, one malformed row per line that is no row."""
    process_key = 0 if record.layout.kind == GPU_TRACE else None
    has_swallowed = record.n_lines > 1 and any(map(_SWALLOWED_ROW.search, record.cells))
    if is_cut or has_swallowed or not record.has_width:
        for _ in range(record.n_lines):
            yield KernelRow(process_key, reject_reason=MALFORMED_ROW)
    elif not _is_copy(record):
        yield _kernel_row(record, process_key)


def _is_copy(record: _Record) -> bool:
    """Copies and memsets stand among the kernels of cuda_gpu_trace, without a grid."""
    layout, cells = record.layout, record.cells
    if layout.kind != GPU_TRACE or not record.has_width or record.n_lines > 1:
        return False
    if layout.cell(cells, "grdx").strip():
        return False
    return bool(layout.cell(cells, "bytes").strip()) or _COPY_MARK in layout.cell(cells, "name")


def _kernel_row(record: _Record, process_key: int | None) -> KernelRow:
    layout, cells = record.layout, record.cells
    is_gpu_trace = layout.kind == GPU_TRACE
    name = clean_name(layout.cell(cells, "name" if is_gpu_trace else "kernel name"))
    try:
        start_ns = _time(layout.cell(cells, "start" if is_gpu_trace else "kernel start"), layout.start_power)
        duration_ns = _time(
            layout.cell(cells, "duration" if is_gpu_trace else "kernel dur"), layout.duration_power
        )
        row = _gpu_trace_fields(layout, cells) if is_gpu_trace else _execution_fields(layout, cells)
    except ValueError:
        return KernelRow(process_key, kernel_name=name, reject_reason=BAD_NUMBER)
    problem = time_problem(start_ns, duration_ns) or (NULL_NAME if name is None else None)
    row = row._replace(kernel_name=name, reject_reason=problem)
    if start_ns is None or duration_ns is None or problem == BAD_NUMBER:
        return row
    return row._replace(start_ns=start_ns, end_ns=start_ns + duration_ns)


def _gpu_trace_fields(layout: Layout, cells: list[str]) -> KernelRow:
    """What a row of cuda_gpu_trace tells beside times and name."""
    device = _DEVICE.fullmatch(layout.cell(cells, "device"))
    grid_x, grid_y, grid_z, block_x, block_y, block_z = (
        exact_integer(layout.cell(cells, name), INT32_MAX)
        for name in ("grdx", "grdy", "grdz", "blkx", "blky", "blkz")
    )
    return KernelRow(
        process_key=0,
        device_id=None if device is None else int(device[2]),
        context_id=_integer(layout.cell(cells, "ctx"), INT32_MAX),
        stream_id=_integer(layout.cell(cells, "strm")),
        correlation_id=_integer(layout.cell(cells, "corrid")),
        grid_x=grid_x,
        grid_y=grid_y,
        grid_z=grid_z,
        block_x=block_x,
        block_y=block_y,
        block_z=block_z,
        dynamic_shared_memory_bytes=_integer(layout.cell(cells, "dymsmem")) if layout.has_bytes else None,
    )


def _execution_fields(layout: Layout, cells: list[str]) -> KernelRow:
    """What a row of cuda_kern_exec_trace tells beside times and name."""
    grid_x, grid_y, grid_z = _dimensions(layout.cell(cells, "gridxyz"))
    block_x, block_y, block_z = _dimensions(layout.cell(cells, "blockxyz"))
    return KernelRow(
        process_key=exact_integer(layout.cell(cells, "pid")),
        device_id=_integer(layout.cell(cells, "devid"), INT32_MAX),
        grid_x=grid_x,
        grid_y=grid_y,
        grid_z=grid_z,
        block_x=block_x,
        block_y=block_y,
        block_z=block_z,
    )


def _dimensions(text: str) -> Dimensions:
    """Three numbers with blanks between and before them."""
    if not text.strip():
        return NO_DIMENSIONS
    x, y, z = (exact_integer(size, INT32_MAX) for size in text.split())
    return x, y, z


def _integer(text: str, limit: int = INT64_MAX) -> int | None:
    return exact_integer(text, limit) if text.strip() else None


def _time(text: str, power: int) -> int | None:
    return scaled_integer(text, power) if text.strip() else None
