"""The first look at an nsys ``parquetdir`` folder: every byte that ingest will read is decoded once here.

Spark would fail the whole run on one damaged page, after hours; here it costs the one source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from stemroot_spark.fingerprint import canonical_json
from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.nsys_context import CONTEXT_TABLES, report_context
from stemroot_spark.sources.report import (
    EXPORT_HINT,
    NsysReport,
    graph_columns,
    kernel_columns,
    string_columns,
)
from stemroot_spark.sources.storage import leaves_folder, locate, table_files, update_digest
from stemroot_spark.sources.text_stream import UnusableSourceError

# A launch has a start of its own, so a table of launches cannot shrink below a good part of a byte per launch.
_MOST_ROWS_PER_BYTE = 20
_MOST_EXPANSION = 10_000
_MOST_CONTEXT_ROWS = 1_000_000
_MOST_CONTEXT_BYTES = 256 << 20
_BATCH_ROWS = 65_536
_READ_TABLES = tuple(
    table.lower()
    for table in (
        nsys.KERNEL_TABLE,
        nsys.STRING_TABLE,
        nsys.GRAPH_TABLE,
        nsys.NVTX_TABLE,
        nsys.RUNTIME_TABLE,
    )
)


def probe_parquet_folder(uri: str, boundary: str | None) -> NsysReport:
    """Look at a folder of tables; raises UnusableSourceError with the reason where it cannot be used.

    ``boundary`` is the folder that symbolic links must not leave, None for no limit.
    """
    files = table_files(uri)
    if boundary is not None and any(leaves_folder(file_uri, boundary) for file_uri in files.values()):
        raise UnusableSourceError(
            "holds a symbolic link out of the source folder; name its target as a --source"
        )
    digest, size_bytes = hashlib.blake2b(digest_size=16), 0
    found: dict[str, tuple[str | None, int]] = {}
    for table, columns_of in (
        (nsys.KERNEL_TABLE, kernel_columns),
        (nsys.STRING_TABLE, string_columns),
        (nsys.GRAPH_TABLE, graph_columns),
    ):
        file_uri = files.get(table.lower())
        found[table] = (None, 0)
        if file_uri is not None:
            found[table] = _check_table(file_uri, table, columns_of)
            size_bytes += update_digest(digest, file_uri)
    for table in (nsys.NVTX_TABLE, nsys.RUNTIME_TABLE):
        # Iterations and phases come from these two.
        file_uri = files.get(table.lower())
        if file_uri is not None:
            _check_metadata(file_uri, table)
            size_bytes += update_digest(digest, file_uri)
    n_kernels, n_graphs = found[nsys.KERNEL_TABLE][1], found[nsys.GRAPH_TABLE][1]
    if nsys.KERNEL_TABLE.lower() not in files and not n_graphs:
        raise UnusableSourceError(
            f"no kernel table: {nsys.KERNEL_TABLE}.parquet is not in the folder; trace with nsys -t cuda"
        )
    if n_kernels + n_graphs == 0:
        raise UnusableSourceError(f"no kernel launches: {nsys.KERNEL_TABLE} is empty")
    if n_kernels and nsys.STRING_TABLE.lower() not in files:
        raise UnusableSourceError(
            f"{nsys.STRING_TABLE}.parquet is not in the folder; {EXPORT_HINT}, without --tables"
        )
    runtime = files.get(nsys.RUNTIME_TABLE.lower())
    return NsysReport(
        context=report_context(
            {table: _small_table(files[table.lower()]) for table in CONTEXT_TABLES if table.lower() in files}
        ),
        n_rows=n_kernels + n_graphs,
        n_copies=sum(_n_rows(files[name.lower()]) for name in nsys.COPY_TABLES if name.lower() in files),
        first_call_id=_smallest(runtime, "correlationId") if runtime else None,
        kernel_columns=found[nsys.KERNEL_TABLE][0] if n_kernels else None,
        string_columns=found[nsys.STRING_TABLE][0] if n_kernels else None,
        graph_columns=found[nsys.GRAPH_TABLE][0] if n_graphs else None,
        files=canonical_json({table: files[table] for table in _READ_TABLES if table in files}),
        content_id=digest.hexdigest(),
        size_bytes=size_bytes,
    )


def _check_table(uri: str, table: str, columns_of: Callable[[dict[str, str]], str]) -> tuple[str | None, int]:
    """Columns to read of a table and its number of rows, after reading these columns whole."""
    filesystem, path = locate(uri)
    name = path.rsplit("/", 1)[-1]
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            _check_sizes(file.metadata, _size(filesystem, path), name, table)
            n_rows = file.metadata.num_rows
            if n_rows == 0:
                return None, 0
            columns = columns_of({field.name: _type_name(field.type) for field in file.schema_arrow})
    except (pa.ArrowException, OSError):
        raise UnusableSourceError(
            f"{name} is cut or not a Parquet file; copy it again, or {EXPORT_HINT}", is_cut=True
        ) from None
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            read = sum(
                batch.num_rows
                for batch in file.iter_batches(
                    _BATCH_ROWS, columns=list(json.loads(columns)), use_threads=False
                )
            )
    except (pa.ArrowException, OSError):
        read = -1
    if read != n_rows:
        raise UnusableSourceError(
            f"{name} is damaged: not all of its rows can be read; copy it again, or {EXPORT_HINT}"
        )
    return columns, n_rows


def _check_metadata(uri: str, table: str) -> None:
    """Raise UnusableSourceError where the metadata of a table cannot be true; a broken file is another matter."""
    filesystem, path = locate(uri)
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            _check_sizes(file.metadata, _size(filesystem, path), path.rsplit("/", 1)[-1], table)
    except (pa.ArrowException, OSError):
        return


def _check_sizes(metadata: pq.FileMetaData, file_bytes: int, name: str, table: str) -> None:
    """Refuse metadata that contradict themselves or promise far more than the file can hold."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    compressed = sum(chunk.total_compressed_size for chunk in chunks)
    expanded = sum(chunk.total_uncompressed_size for chunk in chunks)
    is_absurd = (
        min(rows, default=0) < 0
        or sum(rows) != metadata.num_rows
        or any(chunk.total_compressed_size < 0 or chunk.total_uncompressed_size < 0 for chunk in chunks)
        or compressed > file_bytes
        or (table != nsys.STRING_TABLE and metadata.num_rows > _MOST_ROWS_PER_BYTE * file_bytes)
        or expanded > _MOST_EXPANSION * max(file_bytes, 1)
    )
    if is_absurd:
        raise UnusableSourceError(
            f"{name} has absurd metadata: its row groups promise more than a file of {file_bytes} bytes can hold; "
            f"{EXPORT_HINT}"
        )


def _size(filesystem: fs.FileSystem, path: str) -> int:
    return int(filesystem.get_file_info(path).size or 0)


def _type_name(kind: pa.DataType) -> str:
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _small_table(uri: str) -> list[dict[str, Any]]:
    """Rows of a table of a few rows, and none where it is broken or no such table: nothing depends on it."""
    filesystem, path = locate(uri)
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            expanded = sum(group.total_byte_size for group in groups)
            if file.metadata.num_rows > _MOST_CONTEXT_ROWS or expanded > _MOST_CONTEXT_BYTES:
                return []
            rows: list[dict[str, Any]] = file.read(use_threads=False).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return []
    return rows


def _n_rows(uri: str) -> int:
    filesystem, path = locate(uri)
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            return max(int(file.metadata.num_rows), 0)
    except (pa.ArrowException, OSError):
        return 0


def _smallest(uri: str, column: str) -> int | None:
    """Smallest value of an integer column, from the statistics of its row groups or else from its values."""
    filesystem, path = locate(uri)
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            position = file.schema_arrow.get_field_index(column)
            if position < 0 or not pa.types.is_integer(file.schema_arrow.field(position).type):
                return None
            smallest = [
                pc.min(batch.column(0)).as_py()
                for batch in file.iter_batches(_BATCH_ROWS, columns=[column], use_threads=False)
            ]
    except (pa.ArrowException, OSError):
        return None
    return min((value for value in smallest if value is not None), default=None)
