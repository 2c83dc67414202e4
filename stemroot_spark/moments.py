"""Moments: kernel_launches -> duration_histograms, rank_moments and kernel_moments.

All sums are integers or exact decimals, so nothing depends on the order in which Spark merges partitions; floating
point comes last.
"""

from __future__ import annotations

import math
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from stemroot_spark.errors import UnknownIdError
from stemroot_spark.fingerprint import Fingerprint
from stemroot_spark.progress import stage
from stemroot_spark.ranks import of_first_ranks
from stemroot_spark.tables import JobWrites, Warehouse

BUCKETS_PER_OCTAVE = 1024
# Squares up to (2^31)^2 are summed as two 64-bit halves, which is exact and much faster than decimals.
_SMALL = 2**31
_LOW_BITS = 28
_SIGNIFICANT_DIGITS = 9
_FIRST_WINDOW = 32
# Above this correlation of successive launches, or this far of the first window's mean from the whole, windows mislead.
_CORRELATED, _FAR = 0.3, 0.05


def moments(
    warehouse: Warehouse, *, run_id: str, autocorrelation_ranks: int = 1, replace: bool = False
) -> dict[str, Any]:
    """Compute the moments of an ingested run and return the summary.

    The first ``autocorrelation_ranks`` ranks of the run give the autocorrelation of kernels; 0 leaves it null.
    Raises UnknownIdError where the run is not complete in the warehouse.
    """
    run = require_run(warehouse, run_id)
    inputs = {"run": run["fingerprint"], "buckets_per_octave": BUCKETS_PER_OCTAVE}
    if autocorrelation_ranks:
        inputs["autocorrelation_ranks"] = autocorrelation_ranks
    fingerprint = Fingerprint(inputs)
    writes = JobWrites(
        warehouse, job="moments", header="kernel_moments", key={"run_id": run_id}, fingerprint=fingerprint
    )
    if not writes.is_done(replace):
        launches = warehouse.read("kernel_launches").where(F.col("run_id") == run_id)
        writes.replace("duration_histograms", _of_run(run_id, duration_histogram(launches)))
        writes.replace("rank_moments", _of_run(run_id, rank_moments(launches)))
        histogram = warehouse.read("duration_histograms").where(F.col("run_id") == run_id)
        shapes = launches.groupBy("kernel_id").agg(
            F.skewness("duration_ns").alias("skewness"),
            F.kurtosis("duration_ns").alias("kurtosis"),
            F.max("iteration").alias("last_iteration"),
            F.avg(F.when(F.col("kernel_invocation") < _FIRST_WINDOW, F.col("duration_ns"))).alias("first_ns"),
        )
        if autocorrelation_ranks:
            of_run = warehouse.read("rank_moments").where(F.col("run_id") == run_id)
            sequences = of_first_ranks(launches, autocorrelation_ranks, of_run)
            shapes = shapes.join(autocorrelation(sequences), "kernel_id", how="left")
        else:
            shapes = shapes.withColumn("autocorrelation", F.lit(None).cast("double"))
        writes.finish(_of_run(run_id, kernel_moments(histogram).transform(_with_shape, shapes)))
    # Where successive launches are alike, or the first ones unlike the rest, a window of launches tells little.
    is_biased = (F.col("autocorrelation") > _CORRELATED) | (F.abs(F.col("first_window_ratio") - 1) > _FAR)
    with stage("read kernel_moments") as report:
        summary = (
            warehouse.read("kernel_moments")
            .where(F.col("run_id") == run_id)
            .agg(
                F.count("*").alias("n_kernels"),
                F.sum("n").alias("n_launches"),
                F.sum("total_ns").alias("total_time_ns"),
                F.count_if(is_biased).alias("n_kernels_windows_biased"),
                F.round(F.sum(F.when(is_biased, F.col("time_share")).otherwise(0.0)), 4).alias(
                    "time_share_windows_biased"
                ),
            )
            .first()
        )
        found = {} if summary is None else summary.asDict()
        report.rows = int(found.get("n_kernels", 0))
    return {"run_id": run_id, **found}


def require_run(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    """Header of a complete run as a dictionary, or UnknownIdError naming the runs there are."""
    row = warehouse.read("runs").where(F.col("run_id") == run_id).first()
    if row is None:
        known = [r[0] for r in warehouse.read("runs").select("run_id").orderBy("run_id").limit(10).collect()]
        raise UnknownIdError(
            f"--run-id {run_id} is not in table runs; ingest it first. Known: {', '.join(known) or 'none'}"
        )
    return row.asDict()


def bucket(duration_ns: Column) -> Column:
    """Number of the 1/1024-octave bucket of a duration: floor(ln(d) * 1024 / ln 2)."""
    return F.floor(F.ln(duration_ns) * F.lit(BUCKETS_PER_OCTAVE / math.log(2))).cast("int")


def reference(bucket_number: Column) -> Column:
    """Lower edge of a bucket, rounded down to ns and at least 1."""
    edge = F.exp(bucket_number * F.lit(math.log(2) / BUCKETS_PER_OCTAVE))
    return F.greatest(F.floor(edge), F.lit(1)).cast("bigint")


def exact_sum_of_squares(value: Column) -> Column:
    """Aggregate: exact sum of squares of an integer column as DECIMAL(38,0)."""
    square = F.when(F.abs(value) < _SMALL, value * value)
    high = F.sum(F.shiftright(square, _LOW_BITS)).cast("decimal(38,0)")
    low = F.sum(square.bitwiseAND(F.lit(2**_LOW_BITS - 1))).cast("decimal(38,0)")
    wide = value.cast("decimal(19,0)")
    large = F.sum(F.when(F.abs(value) >= _SMALL, wide * wide))
    zero = F.lit(0).cast("decimal(38,0)")
    total = F.coalesce(high, zero) * F.lit(2**_LOW_BITS) + F.coalesce(low, zero)
    return (total + F.coalesce(large, zero)).cast("decimal(38,0)")


def duration_histogram(launches: DataFrame) -> DataFrame:
    """Histogram per kernel, launch configuration and bucket, with exact integer sums."""
    return (
        launches.withColumn("bucket", bucket(F.col("duration_ns")))
        .withColumn("reference_ns", reference(F.col("bucket")))
        .groupBy("kernel_id", "launch_config_id", "bucket", "reference_ns")
        .agg(
            F.count("*").alias("n"),
            F.sum("duration_ns").alias("sum_ns"),
            exact_sum_of_squares(F.col("duration_ns") - F.col("reference_ns")).alias("sum_sq"),
            F.min("duration_ns").alias("min_ns"),
            F.max("duration_ns").alias("max_ns"),
        )
    )


def rank_moments(launches: DataFrame) -> DataFrame:
    """Exact moments per rank and kernel."""
    return launches.groupBy("rank", "kernel_id").agg(
        F.count("*").alias("n"),
        F.sum("duration_ns").alias("sum_ns"),
        exact_sum_of_squares(F.col("duration_ns")).alias("sum_sq"),
        F.min("duration_ns").alias("min_ns"),
        F.max("duration_ns").alias("max_ns"),
    )


def kernel_moments(histogram: DataFrame) -> DataFrame:
    """Moments per kernel from the histogram.

    The sum of squares is moved from the edge of each bucket to the integer part c of the kernel's mean before it is
    added up, still in exact decimals: sum (d - c)^2 = sum_sq + 2 (r - c)(sum - n r) + n (r - c)^2, r the edge. So the
    variance loses nothing to cancellation.
    """
    totals = histogram.groupBy("kernel_id").agg(
        F.sum("n").alias("kernel_n"), F.sum("sum_ns").alias("total_ns")
    )
    centred = totals.select("kernel_id", F.expr("total_ns div kernel_n").alias("centre_ns"))
    shift = (F.col("reference_ns") - F.col("centre_ns")).cast("decimal(19,0)")
    above = (F.col("sum_ns") - F.col("n") * F.col("reference_ns")).cast("decimal(19,0)")
    n = F.col("n").cast("decimal(12,0)")
    square = F.col("sum_sq") + (2 * shift * above).cast("decimal(38,0)") + n * (shift * shift)
    offset = F.col("total_ns") - F.col("n") * F.col("centre_ns")
    variance = (F.col("square") - offset.cast("double") * offset / F.col("n")) / F.col("n")
    return (
        histogram.join(F.broadcast(centred), "kernel_id", how="inner")
        .groupBy("kernel_id", "centre_ns")
        .agg(
            F.sum("n").alias("n"),
            F.sum("sum_ns").alias("total_ns"),
            F.sum(square.cast("decimal(38,0)")).cast("double").alias("square"),
            F.min("min_ns").alias("min_ns"),
            F.max("max_ns").alias("max_ns"),
        )
        .crossJoin(F.broadcast(histogram.agg(F.sum("sum_ns").alias("all_ns"))))
        .withColumn("mean_ns", F.col("total_ns") / F.col("n"))
        .withColumn(
            "stddev_ns",
            F.when(F.col("min_ns") == F.col("max_ns"), F.lit(0.0)).otherwise(F.sqrt(variance)),
        )
        .withColumn("cov", F.col("stddev_ns") / F.col("mean_ns"))
        .withColumn("time_share", F.col("total_ns") / F.col("all_ns"))
        .drop("centre_ns", "square", "all_ns")
    )


def autocorrelation(launches: DataFrame) -> DataFrame:
    """Correlation of the durations of successive launches of each kernel on a rank, null where either is constant."""
    in_order = Window.partitionBy("rank", "kernel_id").orderBy("kernel_invocation")
    pairs = launches.select(
        "kernel_id",
        F.col("duration_ns").cast("double").alias("duration"),
        F.lag("duration_ns").over(in_order).cast("double").alias("previous"),
    ).where(F.col("previous").isNotNull())
    # Not corr, which fails on equal durations where Spark's ANSI mode refuses to divide by zero.
    spread = F.stddev_pop("duration") * F.stddev_pop("previous")
    correlation = F.try_divide(F.covar_pop("duration", "previous"), spread)
    return pairs.groupBy("kernel_id").agg(correlation.alias("autocorrelation"))


def _with_shape(kernels: DataFrame, shapes: DataFrame) -> DataFrame:
    """Join skewness and excess kurtosis; equal durations have neither.

    Spark merges them in floating point in whatever order partitions end, so only digits that all orders share stay.
    """
    spread = F.col("min_ns") < F.col("max_ns")
    return (
        kernels.join(shapes, "kernel_id", how="left")
        .withColumn("skewness", F.when(spread, _rounded(F.col("skewness"))))
        .withColumn("excess_kurtosis", F.when(spread, _rounded(F.col("kurtosis"))))
        .withColumn("first_window_ratio", _rounded(F.col("first_ns") / F.col("mean_ns")))
        .withColumn("autocorrelation", F.when(spread, _rounded(F.col("autocorrelation"))))
        .drop("kurtosis", "first_ns")
    )


def _rounded(value: Column) -> Column:
    text = F.format_string(f"%.{_SIGNIFICANT_DIGITS - 1}e", value)
    return F.when(value.isNotNull(), text.cast("double"))


def _of_run(run_id: str, rows: DataFrame) -> DataFrame:
    return rows.withColumn("run_id", F.lit(run_id))
