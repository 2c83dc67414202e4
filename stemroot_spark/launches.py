"""Kernel rows of traces -> launches: reading all formats, rejecting, ranks, numbering, dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import pandas as pd
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from stemroot_spark.kernels import COMMUNICATION, category, short_name
from stemroot_spark.sources import events, identity, nsys_parquet, nsys_sqlite, text_traces
from stemroot_spark.sources import nsys_schema as nsys

REJECT_REASONS = (*events.REJECT_REASONS, "impossible_duration")
RANKS_SCHEMA = "source_index BIGINT, process_key BIGINT, rank INT, rank_source STRING, is_contested BOOLEAN"


@dataclass(frozen=True)
class Readable:
    """Usable sources by the way they are read; maps are source index -> URI or source."""

    parquet: list[nsys_parquet.ParquetSource]
    sqlite: dict[int, str]
    text: dict[int, text_traces.TextSource]


@dataclass(frozen=True)
class KernelRows:
    """Kernel rows of all sources, with what was cached to read no source more often than needed.

    ``rows``: source_index, the columns of ``nsys_schema.KERNEL_COLUMNS`` without name_id, kernel_id (null where the
    name is unknown) and read_problem (why the reader rejects the row). ``names``: kernel_id and kernel_name of the
    kernels that rows refer to.
    """

    rows: DataFrame
    names: DataFrame
    cached: tuple[DataFrame, ...]

    def release(self) -> None:
        """Drop the caches."""
        for frame in self.cached:
            frame.unpersist()


def read_kernel_rows(spark: SparkSession, sources: Readable, rows_per_batch: int) -> KernelRows:
    """Kernel rows of sources of all formats.

    Rows that a Python reader parsed are cached, on disk where memory is short: to parse them again would cost more.
    """
    parts = []
    if sources.parquet or sources.sqlite:
        parts.append(_rows_with_string_ids(spark, sources, rows_per_batch))
    if sources.text:
        parts.append(_rows_of_text(spark, sources.text, rows_per_batch))
    names = reduce(DataFrame.unionByName, [part.names for part in parts]).distinct()
    rows = reduce(DataFrame.unionByName, [part.rows for part in parts])
    return KernelRows(
        rows.withColumn("process_key", F.coalesce("process_key", F.lit(0))),
        names,
        tuple(frame for part in parts for frame in part.cached),
    )


def _rows_with_string_ids(spark: SparkSession, sources: Readable, rows_per_batch: int) -> KernelRows:
    """Rows of nsys exports. The ids of the few names in use are joined to them, so that they never carry text."""
    rows, strings, cached = [], [], []
    if sources.parquet:
        rows.append(nsys_parquet.kernel_rows(spark, sources.parquet))
        used = rows[0].select("source_index", "name_id").distinct()
        strings.append(
            nsys_parquet.kernel_strings(spark, sources.parquet).join(
                used, ["source_index", "name_id"], how="left_semi"
            )
        )
    if sources.sqlite:
        parsed = nsys_sqlite.kernel_rows(spark, sources.sqlite, rows_per_batch)
        cached.append(parsed.persist(StorageLevel.MEMORY_AND_DISK))
        rows.append(parsed)
        strings.append(nsys_sqlite.kernel_strings(spark, sources.sqlite))
    names = (
        reduce(DataFrame.unionByName, strings)
        .dropDuplicates(["source_index", "name_id"])
        .withColumn("kernel_id", F.xxhash64("kernel_name"))
        .persist()
    )
    ids = names.select("source_index", "name_id", "kernel_id")
    joined = (
        reduce(DataFrame.unionByName, rows)
        .join(F.broadcast(ids), ["source_index", "name_id"], how="left")
        .withColumn("read_problem", F.lit(None).cast("string"))
        .drop("name_id")
    )
    return KernelRows(joined, names.select("kernel_id", "kernel_name"), (names, *cached))


def _rows_of_text(
    spark: SparkSession, sources: dict[int, text_traces.TextSource], rows_per_batch: int
) -> KernelRows:
    parsed = text_traces.event_rows(spark, sources, rows_per_batch).persist(StorageLevel.MEMORY_AND_DISK)
    identified = parsed.withColumn(
        "kernel_id", F.when(F.col("kernel_name").isNotNull(), F.xxhash64("kernel_name"))
    )
    names = identified.where(F.col("kernel_id").isNotNull()).select("kernel_id", "kernel_name").distinct()
    rows = identified.withColumnRenamed("reject_reason", "read_problem").drop("kernel_name")
    return KernelRows(rows, names, (parsed,))


def with_reject_reason(rows: DataFrame, max_duration_ns: int) -> DataFrame:
    """Add duration_ns and reject_reason, which is null for a row that becomes a launch."""
    duration = F.try_subtract("end_ns", "start_ns")
    reason = F.coalesce(
        F.col("read_problem"),
        F.when(F.col("start_ns").isNull() | F.col("end_ns").isNull(), "null_time")
        .when(F.col("end_ns") < F.col("start_ns"), "end_before_start")
        .when(F.col("end_ns") == F.col("start_ns"), "zero_duration")
        .when(duration.isNull() | (duration > max_duration_ns), "impossible_duration")
        .when(F.col("kernel_id").isNull(), "null_name"),
    )
    return rows.withColumns({"duration_ns": duration, "reject_reason": reason})


def count_processes(rows: DataFrame) -> DataFrame:
    """Per source and process: rows read, kept and rejected, and a JSON object of the reasons."""
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
    return rows.groupBy("source_index", "process_key").agg(
        F.count("*").alias("n_kernels_read"),
        F.count_if(F.col("reject_reason").isNull()).alias("n_kernels_kept"),
        F.count("reject_reason").alias("n_kernels_rejected"),
        by_reason.alias("rejected_by_reason"),
    )


def with_ranks(processes: DataFrame, claims: DataFrame, rank: int | None) -> DataFrame:
    """Add rank, rank_source and is_contested to processes; ``claims`` has the rank that each source claims.

    ``rank`` is the operator's word for the one process there is.
    """
    if rank is not None:
        return processes.withColumns(
            {"rank": F.lit(rank), "rank_source": F.lit("option"), "is_contested": F.lit(False)}
        )
    claimed = processes.join(claims, "source_index", how="left").select(*identity.PROCESS_COLUMNS)
    # One group: a row per process, and the rank of each depends on all others.
    ranks = claimed.groupBy().applyInPandas(identity.assign_ranks, RANKS_SCHEMA)
    return processes.join(F.broadcast(ranks), ["source_index", "process_key"], how="inner")


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
