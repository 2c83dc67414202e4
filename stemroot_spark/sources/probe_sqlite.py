"""The first look at an nsys ``.sqlite`` export."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.nsys_context import CONTEXT_TABLES, report_context
from stemroot_spark.sources.nsys_sqlite import open_sqlite
from stemroot_spark.sources.report import (
    EXPORT_HINT,
    NsysReport,
    graph_columns,
    kernel_columns,
    string_columns,
)
from stemroot_spark.sources.text_stream import UnusableSourceError


def probe_sqlite(path: Path) -> NsysReport:
    """Look at a local file; raises UnusableSourceError with the reason where it cannot be used."""
    _check_not_cut(path)
    try:
        with open_sqlite(path) as database:
            database.text_factory = bytes
            return _probe(database)
    except sqlite3.Error:
        raise UnusableSourceError(
            f"the sqlite file is damaged; copy it again, or {EXPORT_HINT}", is_cut=True
        ) from None


def _probe(database: sqlite3.Connection) -> NsysReport:
    tables = {
        name.decode("utf-8", "replace")
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    }
    graphs, n_graphs = _stored_types(database, tables, nsys.GRAPH_TABLE, nsys.GRAPH_COLUMNS)
    kernels, n_kernels = _stored_types(database, tables, nsys.KERNEL_TABLE, nsys.KERNEL_COLUMNS)
    if nsys.KERNEL_TABLE not in tables and not n_graphs:
        raise UnusableSourceError(
            f"no kernel table: {nsys.KERNEL_TABLE} is not in the file; trace with nsys -t cuda"
        )
    if n_kernels + n_graphs == 0:
        raise UnusableSourceError(f"no kernel launches: {nsys.KERNEL_TABLE} is empty")
    strings = None
    if n_kernels:
        if nsys.STRING_TABLE not in tables:
            raise UnusableSourceError(
                f"{nsys.STRING_TABLE} is not in the file; {EXPORT_HINT}, without --tables"
            )
        names = tuple(nsys.KernelColumn(name, name, "") for name in ("id", "value"))
        strings = string_columns(_stored_types(database, tables, nsys.STRING_TABLE, names)[0])
    return NsysReport(
        context=report_context({name: _rows(database, name) for name in CONTEXT_TABLES if name in tables}),
        n_rows=n_kernels + n_graphs,
        n_copies=sum(_count(database, name) for name in nsys.COPY_TABLES if name in tables),
        first_call_id=_first_call(database) if nsys.RUNTIME_TABLE in tables else None,
        kernel_columns=kernel_columns(kernels) if n_kernels else None,
        string_columns=strings,
        graph_columns=graph_columns(graphs) if n_graphs else None,
    )


def _check_not_cut(path: Path) -> None:
    """Compare the size with the number of pages in the header (bytes 16-17 and 28-31 of the file format)."""
    with path.open("rb") as stream:
        header = stream.read(100)
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    if path.stat().st_size < page_bytes * int.from_bytes(header[28:32], "big"):
        raise UnusableSourceError(
            "the sqlite file is cut: it is shorter than its header says; copy it again", is_cut=True
        )


def _stored_types(
    database: sqlite3.Connection, tables: set[str], table: str, columns: tuple[nsys.KernelColumn, ...]
) -> tuple[dict[str, str], int]:
    """Arrow types of what the columns of a table hold, and its number of rows; nothing for an absent table.

    In sqlite types belong to values, so the table is read once.
    """
    if table not in tables:
        return {}, 0
    present = {row[1].decode() for row in database.execute(f'PRAGMA table_info("{table}")')}
    wanted = [column.source for column in columns if column.source in present]
    counts = ", ".join(
        f'total(typeof("{c}") = \'integer\'), total(typeof("{c}") = \'text\'), total(typeof("{c}") NOT IN '
        "('integer', 'text', 'null'))"
        for c in wanted
    )
    row = database.execute(f'SELECT count(*), {counts or 0} FROM "{table}"').fetchone()
    types: dict[str, str] = {}
    for position, column in enumerate(wanted):
        integers, texts, others = row[1 + 3 * position : 4 + 3 * position]
        if others or (integers and texts):
            types[column] = "of mixed values"
        else:
            types[column] = "int64" if integers else "string" if texts else "null"
    return types, int(row[0])


def _count(database: sqlite3.Connection, table: str) -> int:
    return int(database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])


def _first_call(database: sqlite3.Connection) -> int | None:
    columns = {row[1] for row in database.execute(f'PRAGMA table_info("{nsys.RUNTIME_TABLE}")')}
    if b"correlationId" not in columns:
        return None
    (first,) = database.execute(f'SELECT min("correlationId") FROM "{nsys.RUNTIME_TABLE}"').fetchone()
    return first if isinstance(first, int) else None


def _rows(database: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    cursor = database.execute(f'SELECT * FROM "{table}"')
    names = [column[0] for column in cursor.description]
    return [
        {
            name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            for name, value in zip(names, row, strict=True)
        }
        for row in cursor
    ]
