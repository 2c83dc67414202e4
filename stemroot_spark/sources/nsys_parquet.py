"""Kernel rows and strings of nsys ``parquetdir`` folders, read by Spark itself.

Sources whose columns have the same types are read by one scan; a join on the hash of the file's path tells the rows
apart, which is cheaper than a column per file or a regular expression per row.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import unquote, urlparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stemroot_spark.errors import SourceError
from stemroot_spark.local_rows import local_rows
from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.storage import locate, spark_path

_TWO_TO_63 = Decimal(2**63)
_SPARK_TYPES = {
    "int8": "TINYINT",
    "uint8": "SMALLINT",
    "int16": "SMALLINT",
    "uint16": "INT",
    "int32": "INT",
    "uint32": "BIGINT",
    "int64": "BIGINT",
    "uint64": "DECIMAL(20,0)",
    "string": "STRING",
    "large_string": "STRING",
    "binary": "BINARY",
    "large_binary": "BINARY",
}


@dataclass(frozen=True)
class ParquetSource:
    """A usable folder of tables: its files (``table_files``), and the columns and types its probe found.

    Columns are canonical JSON, None for a table that is absent or empty.
    """

    source_index: int
    files: Mapping[str, str]
    kernel_columns: str | None
    string_columns: str | None
    graph_columns: str | None


def kernel_rows(spark: SparkSession, sources: Iterable[ParquetSource]) -> list[DataFrame]:
    """Kernel rows by group of sources, columns as in ``nsys_schema.KERNEL_COLUMNS`` beside ``source_index``."""
    groups = _grouped(sources, lambda source: source.kernel_columns)
    return [_rows(spark, group, types, nsys.KERNEL_TABLE, nsys.KERNEL_COLUMNS) for types, group in groups]


def graph_rows(spark: SparkSession, sources: Iterable[ParquetSource]) -> list[DataFrame]:
    """Launches of whole graphs, columns as in ``nsys_schema.GRAPH_COLUMNS`` beside ``source_index``."""
    groups = _grouped(sources, lambda source: source.graph_columns)
    return [_rows(spark, group, types, nsys.GRAPH_TABLE, nsys.GRAPH_COLUMNS) for types, group in groups]


def kernel_strings(spark: SparkSession, sources: Iterable[ParquetSource]) -> list[DataFrame]:
    """All strings by group of sources: source_index, name_id, kernel_name."""
    return [
        _scan(spark, group, nsys.STRING_TABLE, types)
        .select(
            "source_index",
            _integer("id", types["id"], "bigint").alias("name_id"),
            F.col("value").cast("string").alias("kernel_name"),
        )
        .where(F.col("kernel_name").isNotNull())
        for types, group in _grouped(sources, lambda source: source.string_columns)
    ]


def _rows(
    spark: SparkSession,
    group: list[ParquetSource],
    types: dict[str, str],
    table: str,
    columns: Iterable[nsys.KernelColumn],
) -> DataFrame:
    selected = [_integer(c.source, types.get(c.source), c.type).alias(c.name) for c in columns]
    return _scan(spark, group, table, types).select("source_index", *selected)


def _grouped(
    sources: Iterable[ParquetSource], columns_of: Callable[[ParquetSource], str | None]
) -> list[tuple[dict[str, str], list[ParquetSource]]]:
    """Sources by the columns of a table, those without the table left out."""
    groups: dict[str, list[ParquetSource]] = defaultdict(list)
    for source in sorted(sources, key=lambda source: source.source_index):
        columns = columns_of(source)
        if columns is not None:
            groups[columns].append(source)
    return [(json.loads(columns), group) for columns, group in groups.items()]


def _integer(name: str, declared: str | None, wanted: str) -> Column:
    """A column as ``wanted``; unsigned 64-bit values keep their bits as two's complement."""
    if declared is None:
        return F.lit(None).cast(wanted)
    column = F.col(f"`{name}`")
    if declared == "uint64" or declared.startswith("decimal"):
        column = F.when(column >= F.lit(_TWO_TO_63), column - F.lit(2 * _TWO_TO_63)).otherwise(column)
    if wanted == "int":
        # 2^32 - 1 is how nsys writes "none" in some unsigned columns; it does not fit and carries no value.
        column = F.expr(f"try_cast(`{name}` AS INT)")
    return column.cast(wanted)


def _scan(spark: SparkSession, group: list[ParquetSource], table: str, types: dict[str, str]) -> DataFrame:
    by_path = {}
    for source in group:
        file_uri = source.files.get(table.lower())
        if file_uri is None:
            raise SourceError(f"{table}.parquet of a source vanished while the job ran; rerun the job")
        by_path[locate(file_uri)[1]] = (source.source_index, file_uri)
    targets = [spark_path(uri) for _, uri in by_path.values()]
    # With the types given, Spark starts no job to read the footers again.
    schema = ", ".join(f"`{name}` {_spark_type(kind)}" for name, kind in types.items())
    raw = spark.read.schema(schema).parquet(*targets)
    keys = []
    for file in raw.inputFiles():
        path = _plain_path(file)
        match = by_path.get(path) or by_path.get(path.lstrip("/"))
        if match is None:
            raise SourceError(f"{file}: read by Spark, but not one of the sources; rename the file or folder")
        # The metadata column writes local paths with one slash after the scheme, inputFiles with three.
        keys.append({"source_index": match[0], "file": file.replace("file:///", "file:/", 1)})
    lookup = local_rows(spark, keys, "source_index BIGINT, file STRING").select(
        "source_index", F.xxhash64("file").alias("file_key")
    )
    return (
        raw.withColumn("file_key", F.xxhash64("_metadata.file_path"))
        .join(F.broadcast(lookup), "file_key", how="inner")
        .drop("file_key")
    )


def _spark_type(arrow_type: str) -> str:
    """The type in which Spark reads a Parquet column of an Arrow type."""
    if arrow_type.startswith("decimal128"):
        return arrow_type.replace("decimal128", "DECIMAL")
    return _SPARK_TYPES[arrow_type]


def _plain_path(file_uri: str) -> str:
    """Path of a file URI as pyarrow names it: for object stores the bucket is its first part."""
    parsed = urlparse(file_uri)
    return unquote(f"{parsed.netloc}{parsed.path}" if parsed.scheme not in ("", "file") else parsed.path)
