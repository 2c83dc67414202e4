"""Kernel rows of traces -> launches: reading all formats, rejecting, ranks, numbering, dictionaries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from stemroot_spark.kernels import COMMUNICATION, category, short_name
from stemroot_spark.local_rows import local_rows
from stemroot_spark.sources import events, nsys_parquet, nsys_sqlite, text_traces
from stemroot_spark.sources import nsys_schema as nsys

REJECT_REASONS = (*events.REJECT_REASONS, "impossible_duration")
GRAPH_CATEGORY = "cuda_graph"
GRAPH_KERNEL_PREFIX = "[CUDA graph "
_GRAPH_KERNEL = re.compile(re.escape(GRAPH_KERNEL_PREFIX) + r"-?\d+\]")
_NAMES = "kernel_id BIGINT, kernel_name STRING"
_NAMES_SCHEMA = f"source_index BIGINT, name_id BIGINT, {_NAMES}"


@dataclass(frozen=True)
class Readable:
    """Usable sources by the way they are read; maps are source index -> URI or source."""

    parquet: list[nsys_parquet.ParquetSource]
    sqlite: dict[int, str]
    text: dict[int, text_traces.TextSource]
    has_graphs: bool


@dataclass(frozen=True)
class LaunchRows:
    """Launches of all sources, with what was cached to read no source more often than needed.

    ``rows``: source_index, the columns of ``nsys_schema.KERNEL_COLUMNS`` without name_id, graph_id (of a launch of a
    whole graph, else null), kernel_id (null where the name is unknown) and read_problem (why the reader rejects the
    row). ``names``: kernel_id and kernel_name of the kernels that rows refer to.
    """

    rows: DataFrame
    names: DataFrame
    cached: tuple[DataFrame, ...]

    def release(self) -> None:
        """Drop the caches."""
        for frame in self.cached:
            frame.unpersist()


def read_launch_rows(spark: SparkSession, sources: Readable, rows_per_batch: int) -> LaunchRows:
    """Launches of sources of all formats.

    Rows that a Python reader parsed are cached, on disk where memory is short: to parse them again would cost more.
    """
    parts = []
    if sources.parquet or sources.sqlite:
        parts.append(_rows_with_string_ids(spark, sources, rows_per_batch))
    if sources.text:
        parts.append(_rows_of_text(spark, sources.text, rows_per_batch))
    names = _union([part.names for part in parts]).distinct()
    rows = _union([part.rows for part in parts])
    return LaunchRows(
        rows.withColumn("process_key", F.coalesce("process_key", F.lit(0))),
        names,
        tuple(frame for part in parts for frame in part.cached),
    )


def _union(frames: list[DataFrame]) -> DataFrame:
    """All rows; a column that some frames lack is null there."""
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _rows_with_string_ids(spark: SparkSession, sources: Readable, rows_per_batch: int) -> LaunchRows:
    """Rows of nsys exports. The ids of the few names in use are joined to them, so that they never carry text."""
    kernels = nsys_parquet.kernel_rows(spark, sources.parquet)
    graphs = nsys_parquet.graph_rows(spark, sources.parquet)
    strings, cached = [], []
    if kernels:
        used = _union(kernels).select("source_index", "name_id").distinct()
        strings.append(
            _union(nsys_parquet.kernel_strings(spark, sources.parquet)).join(
                used, ["source_index", "name_id"], how="left_semi"
            )
        )
    if sources.sqlite:
        parsed = nsys_sqlite.launch_rows(spark, sources.sqlite, rows_per_batch)
        cached.append(parsed.persist(StorageLevel.MEMORY_AND_DISK))
        strings.append(nsys_sqlite.kernel_strings(spark, sources.sqlite))
    rows = _union([*kernels, *graphs, *cached])
    if "graph_id" not in rows.columns:
        rows = rows.withColumn("graph_id", F.lit(None).cast("bigint"))
    if not strings:
        names = local_rows(spark, [], _NAMES_SCHEMA)
    else:
        names = (
            _union(strings)
            .dropDuplicates(["source_index", "name_id"])
            .withColumn("kernel_id", F.xxhash64("kernel_name"))
            .persist()
        )
        cached.append(names)
    if "name_id" not in rows.columns:
        rows = rows.withColumn("name_id", F.lit(None).cast("bigint"))
    ids = names.select("source_index", "name_id", "kernel_id")
    joined = (
        rows.join(F.broadcast(ids), ["source_index", "name_id"], how="left")
        # The hash of a null is a number too: only a graph may be named here.
        .withColumn(
            "kernel_id",
            F.coalesce("kernel_id", F.when(F.col("graph_id").isNotNull(), F.xxhash64(_graph_name()))),
        )
        .withColumn("read_problem", F.lit(None).cast("string"))
        .drop("name_id")
    )
    found = names.select("kernel_id", "kernel_name")
    if sources.has_graphs:
        named = rows.where("graph_id IS NOT NULL").select(_graph_name().alias("kernel_name")).distinct()
        found = found.unionByName(named.select(F.xxhash64("kernel_name").alias("kernel_id"), "kernel_name"))
    return LaunchRows(joined, found, tuple(cached))


def _graph_name() -> Column:
    """Name of the pseudo-kernel that stands for all launches of a graph traced as a whole; null for kernels."""
    return F.concat(F.lit(GRAPH_KERNEL_PREFIX), F.col("graph_id").cast("string"), F.lit("]"))


def _rows_of_text(
    spark: SparkSession, sources: dict[int, text_traces.TextSource], rows_per_batch: int
) -> LaunchRows:
    parsed = text_traces.event_rows(spark, sources, rows_per_batch).persist(StorageLevel.MEMORY_AND_DISK)
    identified = parsed.withColumn(
        "kernel_id", F.when(F.col("kernel_name").isNotNull(), F.xxhash64("kernel_name"))
    ).withColumn("graph_id", F.lit(None).cast("bigint"))
    names = identified.where(F.col("kernel_id").isNotNull()).select("kernel_id", "kernel_name").distinct()
    rows = identified.withColumnRenamed("reject_reason", "read_problem").drop("kernel_name")
    return LaunchRows(rows, names, (parsed,))


def from_session_start(rows: DataFrame, offsets_ns: dict[int, int]) -> DataFrame:
    """Take from the times of each source what its export added to them (source index -> ns)."""
    moved = {index: offset for index, offset in offsets_ns.items() if offset}
    if not moved:
        return rows
    pairs = local_rows(
        rows.sparkSession,
        [{"source_index": index, "offset_ns": offset} for index, offset in sorted(moved.items())],
        "source_index BIGINT, offset_ns BIGINT",
    )
    offset = F.coalesce("offset_ns", F.lit(0).cast("bigint"))
    return (
        rows.join(F.broadcast(pairs), "source_index", how="left")
        .withColumns({name: F.try_subtract(name, offset) for name in ("start_ns", "end_ns")})
        .drop("offset_ns")
    )


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
    """Per source and process: rows read, kept and rejected with a JSON object of the reasons, and times in ns.

    ``first_launch_id`` is the smallest correlation id, ``opaque_ns`` the time of launches of whole graphs.
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
    kept_ns = F.when(F.col("reject_reason").isNull(), F.col("duration_ns"))
    return rows.groupBy("source_index", "process_key").agg(
        F.count("*").alias("n_kernels_read"),
        F.count_if(F.col("reject_reason").isNull()).alias("n_kernels_kept"),
        F.count("reject_reason").alias("n_kernels_rejected"),
        by_reason.alias("rejected_by_reason"),
        F.count("graph_id").alias("n_graph_launches"),
        F.min("correlation_id").alias("first_launch_id"),
        F.coalesce(F.sum(kept_ns), F.lit(0)).alias("kept_ns"),
        F.coalesce(F.sum(F.when(F.col("graph_id").isNotNull(), kept_ns)), F.lit(0)).alias("opaque_ns"),
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


def kernel_dictionary(spark: SparkSession, names: DataFrame) -> DataFrame:
    """Rows of ``kernels`` from kernel_id and kernel_name.

    Made on the driver: a fleet launches a few thousand kernels, and tasks in Python cost more than all of them.
    """
    rows = []
    for kernel_id, kernel_name in sorted({(row[0], row[1]) for row in names.collect()}):
        is_graph = _GRAPH_KERNEL.fullmatch(kernel_name) is not None
        kind = GRAPH_CATEGORY if is_graph else category(kernel_name)
        rows.append(
            {
                "kernel_id": kernel_id,
                "kernel_name": kernel_name,
                "short_name": kernel_name.strip("[]") if is_graph else short_name(kernel_name),
                "category": kind,
                "is_communication": kind == COMMUNICATION,
            }
        )
    return local_rows(spark, rows, f"{_NAMES}, short_name STRING, category STRING, is_communication BOOLEAN")
