"""A first look at a source: what it is, what it holds, and why it cannot be used if so.

Runs on the executors, one call per source. Nothing but the fields of ``Probe`` leaves it, and reasons are in our own
words: error texts of libraries can quote the content of a trace.
"""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from stemroot_spark.fingerprint import canonical_json
from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources import text_traces
from stemroot_spark.sources.discover import Source
from stemroot_spark.sources.events import ReaderReport
from stemroot_spark.sources.identity import (
    RANK_KEYS,
    WORLD_SIZE_KEYS,
    environment_numbers,
    first_of,
    rank_in_name,
)
from stemroot_spark.sources.nsys_sqlite import open_sqlite
from stemroot_spark.sources.recognise import SQLITE_FORMAT, START_BYTES, recognise
from stemroot_spark.sources.storage import local_copy, locate, read_start, update_digest

PROBE_SCHEMA = (
    "source_index BIGINT, format STRING, content_id STRING, size_bytes BIGINT, n_rows BIGINT, "
    "producer_version STRING, schema_version STRING, session_start_ns BIGINT, gpu_name STRING, "
    "claimed_rank BIGINT, claim_source STRING, world_size BIGINT, kernel_columns STRING, string_columns STRING, "
    "reader_hints STRING, reason STRING"
)
_EXPORT_HINT = "export the report again with nsys export"


@dataclass
class Probe:
    """What a source is; ``reason`` is None for a usable one.

    ``claimed_rank`` is what the source itself says (``claim_source``: environment, distributedInfo or name). Column
    lists are JSON objects name -> Arrow type; ``reader_hints`` is for readers of text.
    """

    format: str | None = None
    content_id: str | None = None
    size_bytes: int | None = None
    n_rows: int | None = None
    producer_version: str | None = None
    schema_version: str | None = None
    session_start_ns: int | None = None
    gpu_name: str | None = None
    claimed_rank: int | None = None
    claim_source: str | None = None
    world_size: int | None = None
    kernel_columns: str | None = None
    string_columns: str | None = None
    reader_hints: str | None = None
    reason: str | None = None

    def row(self, source_index: int) -> dict[str, Any]:
        """As a row of ``PROBE_SCHEMA``."""
        return {"source_index": source_index, **asdict(self)}


class _Unusable(Exception):
    """The source cannot be used; the text is the reason."""


def probe(source: Source, wanted_format: str) -> Probe:
    """Look at one source; never raises for what is wrong with the source itself."""
    result = Probe()
    try:
        result.format = "nsys-parquet" if source.is_folder else _recognised(source.uri)
        if wanted_format not in ("auto", result.format):
            raise _Unusable(f"is {result.format}, but --format {wanted_format} was asked for")
        if source.is_folder:
            _probe_parquet_folder(source.uri, result)
        else:
            _probe_file(source.uri, result)
        if result.claimed_rank is None:
            result.claimed_rank, result.claim_source = rank_in_name(source.name), "name"
    except _Unusable as problem:
        result.reason = str(problem)
    except OSError as error:
        result.reason = f"cannot be read: {error.strerror or type(error).__name__}"
    return result


def table_file(uri: str, table: str) -> str | None:
    """URI of the Parquet file of a table in a folder of tables, None where the export left it out."""
    filesystem, path = locate(uri)
    for entry in filesystem.get_file_info(fs.FileSelector(path)):
        if entry.type == fs.FileType.File and entry.base_name.lower() == f"{table.lower()}.parquet":
            return f"{uri.rstrip('/')}/{entry.base_name}"
    return None


def _recognised(uri: str) -> str:
    start = read_start(uri, START_BYTES)
    if not start:
        raise _Unusable("the file is empty")
    if start[:4] == b"PAR1":
        raise _Unusable("a single Parquet table; name the folder that holds all tables of the export instead")
    found = recognise(start)
    if found is None:
        raise _Unusable(
            "not a trace format that is known here; export it with nsys export --type=sqlite or parquetdir"
        )
    return found


def _probe_file(uri: str, result: Probe) -> None:
    if result.format == SQLITE_FORMAT:
        with local_copy(uri) as path:
            _probe_sqlite(path, result)
    else:
        _take_report(text_traces.probe_text(uri, str(result.format)), result)
    digest = hashlib.blake2b(digest_size=16)
    result.size_bytes = update_digest(digest, uri)
    result.content_id = digest.hexdigest()


def _take_report(report: ReaderReport, result: Probe) -> None:
    if report.reason is not None:
        raise _Unusable(report.reason)
    result.n_rows = report.n_events
    result.producer_version, result.schema_version = report.producer_version, report.schema_version
    result.session_start_ns, result.gpu_name = report.session_start_ns, report.gpu_name
    result.claimed_rank, result.world_size = report.rank, report.world_size
    result.claim_source = "distributedInfo"
    result.reader_hints = text_traces.reader_hints(report)


def _probe_parquet_folder(uri: str, result: Probe) -> None:
    kernel_uri = table_file(uri, nsys.KERNEL_TABLE)
    if kernel_uri is None:
        raise _Unusable(
            f"no kernel table: {nsys.KERNEL_TABLE}.parquet is not in the folder; trace with nsys -t cuda"
        )
    strings_uri = table_file(uri, nsys.STRING_TABLE)
    if strings_uri is None:
        raise _Unusable(f"{nsys.STRING_TABLE}.parquet is not in the folder; {_EXPORT_HINT}, without --tables")
    kernel_schema, result.n_rows = _parquet_schema(kernel_uri)
    if result.n_rows == 0:
        raise _Unusable(f"no kernel launches: {nsys.KERNEL_TABLE} is empty")
    _take_columns(result, kernel_schema, _parquet_schema(strings_uri)[0])
    digest = hashlib.blake2b(digest_size=16)
    result.size_bytes = update_digest(digest, kernel_uri) + update_digest(digest, strings_uri)
    result.content_id = digest.hexdigest()
    _take_context(result, {table: _small_table(uri, table) for table in _context_tables()})


def _context_tables() -> tuple[str, ...]:
    return (*nsys.EXPORT_METADATA_TABLES, *nsys.ENVIRONMENT_TABLES, nsys.SESSION_TABLE, nsys.GPU_TABLE)


def _parquet_schema(uri: str) -> tuple[dict[str, str], int]:
    filesystem, path = locate(uri)
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            schema = file.schema_arrow
            return {field.name: _type_name(field.type) for field in schema}, file.metadata.num_rows
    except (pa.ArrowException, OSError):
        raise _Unusable(
            f"{path.rsplit('/', 1)[-1]} is cut or not a Parquet file; copy it again, or {_EXPORT_HINT}"
        ) from None


def _type_name(kind: pa.DataType) -> str:
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _small_table(uri: str, table: str) -> list[dict[str, Any]]:
    """Rows of a table of a few rows, and none where it is absent or broken: nothing depends on it."""
    file_uri = table_file(uri, table)
    if file_uri is None:
        return []
    filesystem, path = locate(file_uri)
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, filesystem=filesystem).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return []
    return rows


def _take_columns(result: Probe, kernel: dict[str, str], strings: dict[str, str]) -> None:
    columns, problem = nsys.readable_columns(kernel)
    problem = problem or nsys.column_problem(nsys.STRING_TABLE, "id", strings.get("id"))
    if problem is None and strings.get("value") not in ("string", "large_string", "binary", "large_binary"):
        problem = f"column value of {nsys.STRING_TABLE} has type {strings.get('value')}, expected text"
    if problem is not None:
        raise _Unusable(f"{problem}; {_EXPORT_HINT}")
    result.kernel_columns = canonical_json(columns)
    result.string_columns = canonical_json({name: strings[name] for name in ("id", "value")})


def _take_context(result: Probe, tables: dict[str, list[dict[str, Any]]]) -> None:
    for name in nsys.EXPORT_METADATA_TABLES:
        metadata = {row.get("name"): row.get("value") for row in tables.get(name, [])}
        result.producer_version = result.producer_version or _text(metadata.get("EXPORT_PRODUCT_VERSION"))
        result.schema_version = result.schema_version or _text(metadata.get("EXPORT_SCHEMA_VERSION"))
    starts = [row.get("utcEpochNs") for row in tables.get(nsys.SESSION_TABLE, [])]
    result.session_start_ns = next(
        (int(start) for start in starts if isinstance(start, int) and abs(start) < 2**63), None
    )
    names = {_text(row.get("name")) for row in tables.get(nsys.GPU_TABLE, [])} - {None, ""}
    result.gpu_name = names.pop() if len(names) == 1 else None
    numbers = environment_numbers(tables)
    result.claimed_rank, result.claim_source = first_of(RANK_KEYS, numbers), "environment"
    result.world_size = first_of(WORLD_SIZE_KEYS, numbers)


def _text(value: Any) -> str | None:
    """A value of a table that holds text, None for anything else it may hold."""
    return value if isinstance(value, str) else None


def _probe_sqlite(path: Path, result: Probe) -> None:
    _check_not_cut(path)
    try:
        with open_sqlite(path) as database:
            database.text_factory = bytes
            tables = {
                name.decode("utf-8", "replace")
                for (name,) in database.execute(
                    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                )
            }
            if nsys.KERNEL_TABLE not in tables:
                raise _Unusable(
                    f"no kernel table: {nsys.KERNEL_TABLE} is not in the file; trace with nsys -t cuda"
                )
            if nsys.STRING_TABLE not in tables:
                raise _Unusable(f"{nsys.STRING_TABLE} is not in the file; {_EXPORT_HINT}, without --tables")
            kernel, result.n_rows = _stored_types(
                database, nsys.KERNEL_TABLE, [column.source for column in nsys.KERNEL_COLUMNS]
            )
            if result.n_rows == 0:
                raise _Unusable(f"no kernel launches: {nsys.KERNEL_TABLE} is empty")
            _take_columns(result, kernel, _stored_types(database, nsys.STRING_TABLE, ["id", "value"])[0])
            _take_context(
                result, {name: _sqlite_rows(database, name) for name in _context_tables() if name in tables}
            )
    except sqlite3.Error:
        raise _Unusable(f"the sqlite file is damaged; copy it again, or {_EXPORT_HINT}") from None


def _check_not_cut(path: Path) -> None:
    """Compare the size with the number of pages in the header (bytes 16-17 and 28-31 of the file format)."""
    with path.open("rb") as stream:
        header = stream.read(100)
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    if path.stat().st_size < page_bytes * int.from_bytes(header[28:32], "big"):
        raise _Unusable("the sqlite file is cut: it is shorter than its header says; copy it again")


def _stored_types(database: sqlite3.Connection, table: str, columns: list[str]) -> tuple[dict[str, str], int]:
    """Arrow types of what the columns of a table hold, and its number of rows.

    In sqlite types belong to values, so the table is read once.
    """
    present = {row[1].decode() for row in database.execute(f'PRAGMA table_info("{table}")')}
    wanted = [column for column in columns if column in present]
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


def _sqlite_rows(database: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    cursor = database.execute(f'SELECT * FROM "{table}"')
    names = [column[0] for column in cursor.description]
    return [
        {
            name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            for name, value in zip(names, row, strict=True)
        }
        for row in cursor
    ]
