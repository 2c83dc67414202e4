"""Kernel rows of traces -> launches: reading all formats, rejecting, ranks, numbering, dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import pandas as pd
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from stemroot_spark.kernels import COMMUNICATION, category, short_name
from stemroot_spark.sources import nsys_parquet, nsys_sqlite
from stemroot_spark.sources import nsys_schema as nsys

REJECT_REASONS = (
    "null_time",
    "end_before_start",
    "zero_duration",
    "impossible_duration",
    "null_name",
)


@dataclass(frozen=True)
class KernelRows:
    """Kernel rows of all sources, with what was cached to read no source more often than needed.

    ``rows``: source_index, the columns of ``nsys_schema.KERNEL_COLUMNS`` and kernel_id, null where the name is unknown.
    ``names``: source_index, name_id, kernel_name, kernel_id of the names that rows refer to.
    """

    rows: DataFrame
    names: DataFrame
    cached: tuple[DataFrame, ...]

    def release(self) -> None:
        """Drop the caches."""
        for frame in self.cached:
            frame.unpersist()


def read_kernel_rows(
    spark: SparkSession,
    parquet: Iterable[nsys_parquet.ParquetSource],
    sqlite: Mapping[int, str],
    rows_per_batch: int,
) -> KernelRows:
    """Kernel rows of folders of tables and of sqlite files (source index -> URI).

    The ids of the few names in use are joined to the rows rather than the names, so that a wide table never carries
    text. Rows of sqlite files are cached, on disk where memory is short: to parse them again would cost more.
    """
    folders = list(parquet)
    rows, strings, cached = [], [], []
    if folders:
        rows.append(nsys_parquet.kernel_rows(spark, folders))
        used = rows[0].select("source_index", "name_id").distinct()
        strings.append(
            nsys_parquet.kernel_strings(spark, folders).join(
                used, ["source_index", "name_id"], how="left_semi"
            )
        )
    if sqlite:
        parsed = nsys_sqlite.kernel_rows(spark, sqlite, rows_per_batch).persist(StorageLevel.MEMORY_AND_DISK)
        cached.append(parsed)
        rows.append(parsed)
        strings.append(nsys_sqlite.kernel_strings(spark, sqlite))
    names = (
        reduce(DataFrame.unionByName, strings)
        .dropDuplicates(["source_index", "name_id"])
        .withColumn("kernel_id", F.xxhash64("kernel_name"))
        .persist()
    )
    ids = names.select("source_index", "name_id", "kernel_id")
    joined = (
        reduce(DataFrame.unionByName, rows)
        .withColumn("process_key", F.coalesce("process_key", F.lit(0)))
        .join(F.broadcast(ids), ["source_index", "name_id"], how="left")
    )
    return KernelRows(joined, names, (names, *cached))


def with_reject_reason(rows: DataFrame, max_duration_ns: int) -> DataFrame:
    """Add duration_ns and reject_reason, which is null for a row that becomes a launch."""
    duration = F.try_subtract("end_ns", "start_ns")
    reason = (
        F.when(F.col("start_ns").isNull() | F.col("end_ns").isNull(), "null_time")
        .when(F.col("end_ns") < F.col("start_ns"), "end_before_start")
        .when(F.col("end_ns") == F.col("start_ns"), "zero_duration")
        .when(duration.isNull() | (duration > max_duration_ns), "impossible_duration")
        .when(F.col("kernel_id").isNull(), "null_name")
    )
    return rows.withColumns({"duration_ns": duration, "reject_reason": reason})


def count_processes(rows: DataFrame, rank: int | None) -> DataFrame:
    """Per source and process: rows read, kept and rejected by reason, and the rank.

    Processes take ranks in the order of (source name, process key as an unsigned number), or the given one.
    """
    by_reason = F.to_json(
        F.map_filter(
            F.create_map(
                *[
                    item
                    for reason in REJECT_REASONS
                    for item in (F.lit(reason), F.count_if(F.col("reject_reason") == reason))
                ]
            ),
            lambda _, n: n > 0,
        )
    )
    counted = rows.groupBy("source_index", "process_key").agg(
        F.count("*").alias("n_kernels_read"),
        F.count_if(F.col("reject_reason").isNull()).alias("n_kernels_kept"),
        F.count("reject_reason").alias("n_kernels_rejected"),
        by_reason.alias("rejected_by_reason"),
    )
    order = Window.orderBy("source_index", F.col("process_key") < 0, "process_key")
    number = F.row_number().over(order) - 1 if rank is None else F.lit(rank)
    return counted.withColumns(
        {"rank": number.cast("int"), "rank_source": F.lit("order" if rank is None else "option")}
    )


def launch_config_id() -> Column:
    """xxhash64 of the configuration columns, -1 standing for null: a hash would skip nulls silently."""
    types = {column.name: column.type for column in nsys.KERNEL_COLUMNS}
    return F.xxhash64(*[F.coalesce(F.col(name), F.lit(-1).cast(types[name])) for name in nsys.CONFIG_COLUMNS])


def number_launches(rows: DataFrame) -> DataFrame:
    """Add launch_index and kernel_invocation, both 0-based in the process and counted over rejected rows too.

    The correlation id rises with every call of the CUDA API, so it gives the order of launch; kernels of one graph
    launch share it and are ordered by their start.
    """
    launch_order = [
        F.col("correlation_id").asc_nulls_last(),
        F.col("start_ns").asc_nulls_last(),
        F.col("end_ns").asc_nulls_last(),
        F.col("kernel_id").asc_nulls_last(),
        F.col("device_id").asc_nulls_last(),
        F.col("stream_id").asc_nulls_last(),
        F.col("graph_node_id").asc_nulls_last(),
    ]
    process = Window.partitionBy("rank").orderBy(*launch_order)
    kernel = Window.partitionBy("rank", "kernel_id").orderBy("launch_index")
    return rows.withColumn("launch_index", (F.row_number().over(process) - 1).cast("bigint")).withColumn(
        "kernel_invocation", (F.row_number().over(kernel) - 1).cast("bigint")
    )


def kernel_dictionary(names: DataFrame) -> DataFrame:
    """Rows of ``kernels`` from distinct kernel_id and kernel_name."""
    return names.mapInPandas(
        _describe_kernels,
        "kernel_id BIGINT, kernel_name STRING, short_name STRING, category STRING, is_communication BOOLEAN",
    )


def _describe_kernels(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        categories = frame["kernel_name"].map(category)
        yield frame.assign(
            short_name=frame["kernel_name"].map(short_name),
            category=categories,
            is_communication=categories == COMMUNICATION,
        )
