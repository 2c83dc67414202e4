"""Headers of nsys stats CSV: which report they begin, where its columns stand, and in which units.

A cell of a header is a name and, in most versions, a unit in parentheses. Columns are found by name, so that one nsys
adds does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GPU_TRACE = "cuda_gpu_trace"
KERNEL_EXECUTION = "cuda_kern_exec_trace"
SUMMARY = "summary of kernels"
OTHER = "other"
KERNEL_LEVEL = (GPU_TRACE, KERNEL_EXECUTION)

_CELL = re.compile(r"\s*(.*?)\s*(?:\(([^()]*)\))?\s*", re.DOTALL)
# Powers of ten from the unit to ns; U+FFFD stands for a micro sign in an encoding that is not UTF-8.
_TIME_UNITS = {"ns": 0, "nsec": 0, "ms": 6, "msec": 6, "s": 9, "sec": 9} | dict.fromkeys(
    ("us", "usec", "\u00b5s", "\u03bcs", "\ufffds", "\ufffd\ufffds"), 3
)
_BYTE_UNITS = frozenset({"b", "byte", "bytes"})

# Names that no other report has together.
_NAMES = {
    GPU_TRACE: frozenset({"start", "duration", "grdx", "grdy", "grdz", "blkx", "blky", "blkz", "name"}),
    KERNEL_EXECUTION: frozenset({"kernel start", "kernel dur", "pid", "kernel name"}),
}
_TIME_COLUMNS = {GPU_TRACE: ("start", "duration"), KERNEL_EXECUTION: ("kernel start", "kernel dur")}
_SUMMARY_NAMES = tuple(
    map(
        frozenset,
        (("total time", "instances", "name"), ("total time", "kernel name"), ("count", "kernel name")),
    )
)
_COMMON_NAMES = frozenset(
    {
        *(
            "start",
            "end",
            "duration",
            "dur",
            "time",
            "total time",
            "instances",
            "num calls",
            "count",
            "total",
        ),
        *(
            "avg",
            "average",
            "med",
            "min",
            "minimum",
            "max",
            "maximum",
            "stddev",
            "name",
            "range",
            "operation",
        ),
        *(
            "style",
            "pid",
            "tid",
            "category",
            "result",
            "corrid",
            "kernel name",
            "thread name",
            "api function",
        ),
    }
)
_COMMON_IN_A_HEADER = 3


@dataclass(frozen=True)
class Layout:
    """What a header says.

    Attributes:
        kind: GPU_TRACE, KERNEL_EXECUTION, SUMMARY or OTHER; only the first two have the rest.
        width: cells of a row.
        columns: position by name, in lower case and without unit.
        start_power, duration_power: powers of ten from the unit to ns.
        has_bytes: dynamic shared memory is told in bytes.
        generation: the year of the first nsys known to write such a header.
        problem: why rows below the header cannot be read.
    """

    kind: str
    width: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    start_power: int = 0
    duration_power: int = 0
    has_bytes: bool = False
    generation: str | None = None
    problem: str | None = None

    def cell(self, cells: Sequence[str], name: str) -> str:
        """A cell of a row by the name of its column, empty where the report has no such column."""
        position = self.columns.get(name)
        return "" if position is None else cells[position]


def layout_of(cells: Sequence[str]) -> Layout | None:
    """The layout a header begins, None for a line that is no header."""
    matches = [_CELL.fullmatch(cell) for cell in cells]
    pairs = [(match[1].lower(), (match[2] or "").strip().lower()) for match in matches if match is not None]
    names = [name for name, _ in pairs]
    for kind in KERNEL_LEVEL:
        if _NAMES[kind].issubset(names):
            return _kernel_layout(kind, names, dict(reversed(pairs)))
    if any(wanted.issubset(names) for wanted in _SUMMARY_NAMES):
        return Layout(SUMMARY)
    if sum(name in _COMMON_NAMES for name in names) >= _COMMON_IN_A_HEADER:
        return Layout(OTHER)
    return None


def _kernel_layout(kind: str, names: list[str], units: dict[str, str]) -> Layout:
    start, duration = _TIME_COLUMNS[kind]
    powers = [_TIME_UNITS.get(units[column]) for column in (start, duration)]
    problem = None
    if powers[0] is None or powers[1] is None:
        problem = f"the header of {kind} names no unit of time known here; export with --timeunit nsec"
    if len(set(names) & _NAMES[kind]) != sum(name in _NAMES[kind] for name in names):
        problem = f"the header of {kind} names a column twice; export again"
    generation = None
    if kind == GPU_TRACE:
        generation = "2024" if "greenctx" in names else "2021" if "thru" in names else "2022"
    return Layout(
        kind,
        len(names),
        {name: position for position, name in reversed(list(enumerate(names)))},
        powers[0] or 0,
        powers[1] or 0,
        units.get("dymsmem") in _BYTE_UNITS,
        generation,
        problem,
    )
