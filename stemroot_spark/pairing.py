"""Pairs of launches: two runs of one workload, matched launch by launch, as sums per bucket of the first run.

One native aggregate over the join; single pairs never leave Spark. All sums are integers or exact decimals, so that
nothing depends on the order in which partitions are merged.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stemroot_spark.moments import bucket, exact_sum_of_squares, reference

MATCH = ["rank", "kernel_id", "kernel_invocation"]
# (x2 - x)^2 / x is summed in units of 1/1024 ns.
_PARTS_PER_NS = 1024


def matched_launches(launches: DataFrame, repeat: DataFrame) -> DataFrame:
    """Launches of both runs by (rank, kernel_id, kernel_invocation): duration_ns and repeat_ns, null where absent.

    Launches with a duration carry their launch_config_id.
    """
    partners = repeat.select(*MATCH, F.col("duration_ns").alias("repeat_ns"))
    return launches.select(*MATCH, "launch_config_id", "duration_ns").join(partners, MATCH, how="full_outer")


def paired_histogram(pairs: DataFrame) -> DataFrame:
    """Histogram of the first run per kernel, configuration and bucket, with sums over the partners.

    Columns kernel_id, launch_config_id, those of the histogram, those of ``stemroot_spark.optimal.pairs``, and
    n_repeat_only; per kernel at most one row has n = 0, which counts the launches that only the second run has.
    """
    x, x2, edge = (F.col(name) for name in ("duration_ns", "repeat_ns", "reference_ns"))
    is_pair = x.isNotNull() & x2.isNotNull()
    relative = (x2 - x).cast("double") * (x2 - x).cast("double") / x.cast("double")
    return (
        pairs.withColumn("bucket", bucket(x))
        .withColumn("reference_ns", reference(F.col("bucket")))
        .groupBy("kernel_id", "launch_config_id", "bucket", "reference_ns")
        .agg(
            F.count("duration_ns").alias("n"),
            F.sum("duration_ns").alias("sum_ns"),
            exact_sum_of_squares(x - edge).cast("double").alias("sum_sq"),
            F.min("duration_ns").alias("min_ns"),
            F.max("duration_ns").alias("max_ns"),
            F.count_if(is_pair).alias("n_matched"),
            F.sum(F.when(is_pair, x).otherwise(0)).alias("matched_sum_ns"),
            F.sum(F.when(is_pair, x2).otherwise(0)).alias("repeat_sum_ns"),
            exact_sum_of_squares(x2 - edge).cast("double").alias("repeat_sum_sq"),
            _total(_wide(x - edge) * _wide(x2 - edge)).alias("cross_sum_sq"),
            (_total(F.round(relative * _PARTS_PER_NS)) / _PARTS_PER_NS).alias("difference_ns"),
            F.count_if(x.isNull()).alias("n_repeat_only"),
        )
    )


def _wide(value: Column) -> Column:
    return value.cast("decimal(19,0)")


def _total(value: Column) -> Column:
    """Exact sum of whole numbers of any size, as a double; 0 where there are none."""
    return F.coalesce(F.sum(value.cast("decimal(38,0)")), F.lit(0)).cast("double")
