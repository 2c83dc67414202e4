"""What the probes of nsys exports hand over, and what both formats check alike."""

from __future__ import annotations

from dataclasses import dataclass

from stemroot_spark.fingerprint import canonical_json
from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.nsys_context import ReportContext
from stemroot_spark.sources.text_stream import UnusableSourceError

EXPORT_HINT = "export the report again with nsys export"
_TEXT_TYPES = ("string", "large_string", "binary", "large_binary")


@dataclass(frozen=True)
class NsysReport:
    """A usable nsys export, fields as in ``Probe``; files, digest and size are None for an export in one file."""

    context: ReportContext
    n_rows: int
    n_copies: int
    first_call_id: int | None
    kernel_columns: str | None
    string_columns: str | None
    graph_columns: str | None
    files: str | None = None
    content_id: str | None = None
    size_bytes: int | None = None


def kernel_columns(declared: dict[str, str]) -> str:
    """Columns of the kernel table to read as canonical JSON; raises UnusableSourceError naming a column."""
    return _columns(declared, nsys.KERNEL_TABLE, nsys.KERNEL_COLUMNS)


def graph_columns(declared: dict[str, str]) -> str:
    """Columns of the table of graph launches to read as canonical JSON."""
    return _columns(declared, nsys.GRAPH_TABLE, nsys.GRAPH_COLUMNS)


def _columns(declared: dict[str, str], table: str, wanted: tuple[nsys.KernelColumn, ...]) -> str:
    columns, problem = nsys.readable_columns(declared, table, wanted)
    if problem is not None:
        raise UnusableSourceError(f"{problem}; {EXPORT_HINT}")
    return canonical_json(columns)


def string_columns(declared: dict[str, str]) -> str:
    """Columns of StringIds to read as canonical JSON."""
    problem = nsys.column_problem(nsys.STRING_TABLE, "id", declared.get("id"))
    if problem is None and declared.get("value") not in _TEXT_TYPES:
        problem = f"column value of {nsys.STRING_TABLE} has type {declared.get('value')}, expected text"
    if problem is not None:
        raise UnusableSourceError(f"{problem}; {EXPORT_HINT}")
    return canonical_json({name: declared[name] for name in ("id", "value")})
