"""Kernel rows and strings of nsys ``.sqlite`` files, read on the executors, one task per file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.storage import local_copy

_GRAPH_ID = next(column for column in nsys.GRAPH_COLUMNS if column.name == "graph_id")
_COLUMNS = (*nsys.KERNEL_COLUMNS, _GRAPH_ID)
LAUNCH_ROWS_SCHEMA = ", ".join(
    ["source_index BIGINT", *(f"{column.name} {column.type}" for column in _COLUMNS)]
)
STRINGS_SCHEMA = "source_index BIGINT, name_id BIGINT, kernel_name STRING"
_ARROW_TYPES = {"bigint": pa.int64(), "int": pa.int32()}


def open_sqlite(path: Path) -> closing[sqlite3.Connection]:
    """Open an export for reading only; ``immutable`` keeps sqlite from looking for or making side files."""
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True))


def launch_rows(spark: SparkSession, uris: Mapping[int, str], rows_per_batch: int) -> DataFrame:
    """Launches of sqlite files (source index -> URI): ``nsys_schema.KERNEL_COLUMNS`` and graph_id.

    Rows of whole graphs have a graph_id and no name_id, rows of kernels the other way round.
    """
    sources = sorted(uris.items())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for position in _positions(batches):
            source_index, uri = sources[position]
            with local_copy(uri) as path, open_sqlite(path) as database:
                yield from _batches(
                    database, nsys.KERNEL_TABLE, nsys.KERNEL_COLUMNS, source_index, rows_per_batch
                )
                yield from _batches(
                    database, nsys.GRAPH_TABLE, nsys.GRAPH_COLUMNS, source_index, rows_per_batch
                )

    return _one_task_each(spark, sources).mapInArrow(read, LAUNCH_ROWS_SCHEMA)


def kernel_strings(spark: SparkSession, uris: Mapping[int, str]) -> DataFrame:
    """The strings that kernel rows of sqlite files refer to: source_index, name_id, kernel_name."""
    sources = sorted(uris.items())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for position in _positions(batches):
            source_index, uri = sources[position]
            with local_copy(uri) as path, open_sqlite(path) as database:
                yield _string_batch(database, source_index)

    return _one_task_each(spark, sources).mapInArrow(read, STRINGS_SCHEMA)


def _one_task_each(spark: SparkSession, sources: list[tuple[int, str]]) -> DataFrame:
    """One partition per source: ``range`` puts one of n numbers in each of n partitions, which hashing does not."""
    return spark.range(0, len(sources), 1, len(sources))


def _positions(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _batches(
    database: sqlite3.Connection,
    table: str,
    columns: tuple[nsys.KernelColumn, ...],
    source_index: int,
    rows_per_batch: int,
) -> Iterator[pa.RecordBatch]:
    """Rows of a table, nothing where it is absent; columns that it lacks are null."""
    present = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
    if not present:
        return
    sources = {column.name: column.source for column in columns if column.source in present}
    selected = ", ".join(
        f'"{sources[column.name]}"' if column.name in sources else "NULL" for column in _COLUMNS
    )
    schema = pa.schema(
        [
            ("source_index", pa.int64()),
            *((column.name, _ARROW_TYPES[column.type]) for column in _COLUMNS),
        ]
    )
    cursor = database.execute(f'SELECT {selected} FROM "{table}"')
    while rows := cursor.fetchmany(rows_per_batch):
        values = [
            _integers(column, field.type)
            for column, field in zip(zip(*rows, strict=True), list(schema)[1:], strict=True)
        ]
        yield pa.RecordBatch.from_arrays([pa.repeat(source_index, len(rows)), *values], schema=schema)


def _integers(values: tuple[int | None, ...], kind: pa.DataType) -> pa.Array:
    """Integers as a column; what does not fit is null, as 2^32 - 1 is how nsys writes "none"."""
    wide = pa.array(values, type=pa.int64())
    if kind == pa.int64():
        return wide
    fits = pc.and_(pc.greater_equal(wide, -(2**31)), pc.less(wide, 2**31))
    return pc.if_else(fits, wide, None).cast(kind)


def _string_batch(database: sqlite3.Connection, source_index: int) -> pa.RecordBatch:
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    has_kernels = database.execute(f'PRAGMA table_info("{nsys.KERNEL_TABLE}")').fetchone() is not None
    rows = (
        database.execute(
            f'SELECT id, value FROM "{nsys.STRING_TABLE}" WHERE id IN '
            f'(SELECT DISTINCT "demangledName" FROM "{nsys.KERNEL_TABLE}") AND value IS NOT NULL'
        ).fetchall()
        if has_kernels
        else []
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(source_index, len(rows)),
            pa.array([row[0] for row in rows], type=pa.int64()),
            pa.array([row[1] for row in rows], type=pa.string()),
        ],
        names=["source_index", "name_id", "kernel_name"],
    )
