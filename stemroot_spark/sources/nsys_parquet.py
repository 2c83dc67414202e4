"""Kernel rows and strings of nsys ``parquetdir`` folders, read by Spark itself.

Sources whose columns have the same types are read by one scan; a join on the hash of the file's path tells the rows
apart, which is cheaper than a column per file or a regular expression per row.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from urllib.parse import unquote, urlparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stemroot_spark.errors import SourceError
from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.probe import table_file
from stemroot_spark.sources.storage import locate, spark_path

_TWO_TO_63 = Decimal(2**63)


@dataclass(frozen=True)
class ParquetSource:
    """A usable folder of tables, with the columns and types its probe found (canonical JSON)."""

    source_index: int
    uri: str
    kernel_columns: str
    string_columns: str


def kernel_rows(spark: SparkSession, sources: Iterable[ParquetSource]) -> DataFrame:
    """Kernel rows of all sources, columns as in ``nsys_schema.KERNEL_COLUMNS`` beside ``source_index``."""
    frames = []
    for columns, group in _grouped(sources, lambda source: source.kernel_columns).items():
        types: dict[str, str] = json.loads(columns)
        raw = _scan(spark, group, nsys.KERNEL_TABLE)
        selected = [
            _integer(column.source, types.get(column.source), column.type).alias(column.name)
            for column in nsys.KERNEL_COLUMNS
        ]
        frames.append(raw.select("source_index", *selected))
    return reduce(DataFrame.unionByName, frames)


def kernel_strings(spark: SparkSession, sources: Iterable[ParquetSource]) -> DataFrame:
    """All strings of all sources: source_index, name_id, kernel_name."""
    frames = []
    for columns, group in _grouped(sources, lambda source: source.string_columns).items():
        types: dict[str, str] = json.loads(columns)
        frames.append(
            _scan(spark, group, nsys.STRING_TABLE).select(
                "source_index",
                _integer("id", types["id"], "bigint").alias("name_id"),
                F.col("value").cast("string").alias("kernel_name"),
            )
        )
    return reduce(DataFrame.unionByName, frames).where(F.col("kernel_name").isNotNull())


def _grouped(sources: Iterable[ParquetSource], key) -> Mapping[str, list[ParquetSource]]:  # type: ignore[no-untyped-def]
    groups: dict[str, list[ParquetSource]] = defaultdict(list)
    for source in sorted(sources, key=lambda source: source.source_index):
        groups[key(source)].append(source)
    return groups


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


def _scan(spark: SparkSession, group: list[ParquetSource], table: str) -> DataFrame:
    by_path = {}
    for source in group:
        file_uri = table_file(source.uri, table)
        if file_uri is None:
            raise SourceError(f"{source.uri}: {table}.parquet vanished while the job ran; rerun the job")
        by_path[locate(file_uri)[1]] = (source.source_index, file_uri)
    targets = [spark_path(uri) for _, uri in by_path.values()]
    raw = spark.read.parquet(*targets)
    keys = []
    for file in raw.inputFiles():
        path = _plain_path(file)
        match = by_path.get(path) or by_path.get(path.lstrip("/"))
        if match is None:
            raise SourceError(f"{file}: read by Spark, but not one of the sources; rename the file or folder")
        # The metadata column writes local paths with one slash after the scheme, inputFiles with three.
        keys.append((match[0], file.replace("file:///", "file:/", 1)))
    lookup = spark.createDataFrame(keys, "source_index BIGINT, file STRING").select(
        "source_index", F.xxhash64("file").alias("file_key")
    )
    return (
        raw.withColumn("file_key", F.xxhash64("_metadata.file_path"))
        .join(F.broadcast(lookup), "file_key", how="inner")
        .drop("file_key")
    )


def _plain_path(file_uri: str) -> str:
    """Path of a file URI as pyarrow names it: for object stores the bucket is its first part."""
    parsed = urlparse(file_uri)
    return unquote(f"{parsed.netloc}{parsed.path}" if parsed.scheme not in ("", "file") else parsed.path)
