"""Which trace format a file has, by its first bytes; names tell nothing for sure."""

from __future__ import annotations

from stemroot_spark.sources import kineto, nsys_csv

START_BYTES = 64 << 10
SQLITE_FORMAT = "nsys-sqlite"
_SQLITE_MAGIC = b"SQLite format 3\0"


def recognise(start: bytes) -> str | None:
    """Format of a file by its first ``START_BYTES``: nsys-sqlite, nsys-csv or kineto, None for anything else."""
    if start.startswith(_SQLITE_MAGIC):
        return SQLITE_FORMAT
    if kineto.is_kineto(start):
        return kineto.FORMAT
    return nsys_csv.FORMAT if nsys_csv.is_nsys_csv(start) else None
