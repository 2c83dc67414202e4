"""Drawing the sample: of each stratum, the launches whose hash is among its smallest.

The hash is xxhash64(seed BIGINT, run_id STRING, rank INT, launch_index BIGINT), compared as a signed number, ties by
rank and launch_index. It depends on nothing but its arguments, so any partitioning draws the same launches.
"""

from __future__ import annotations

import math

import pandas as pd
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from stemroot_spark.config import DrawConfig
from stemroot_spark.estimators import PPS
from stemroot_spark.local_rows import local_rows
from stemroot_spark.systematic import draw_systematic

_STRATA_SCHEMA = (
    "stratum_kernel_id BIGINT, stratum_id INT, launch_config_ids ARRAY<BIGINT>, lower_ns BIGINT, upper_ns BIGINT, "
    "n_population BIGINT, n_drawn BIGINT, threshold BIGINT"
)
_LARGEST = 2**63 - 1


def hash_threshold(n_population: int, n_drawn: int, config: DrawConfig) -> int:
    """Largest hash worth looking at: lets n_drawn plus a margin of the stratum through on average.

    The hash is uniform on the signed 64-bit numbers, so the number below the threshold is binomial and the margin of
    ``margin_sigma`` standard deviations is almost never too small; where it is, ``draw`` looks at the whole stratum.
    """
    expected = n_drawn + config.margin_sigma * math.sqrt(n_drawn) + config.margin_constant
    if expected >= n_population:
        return _LARGEST
    return -(2**63) + int(expected / n_population * 2**64)


def draw(
    launches: DataFrame, strata: pd.DataFrame, *, run_id: str, seed: int, config: DrawConfig
) -> DataFrame:
    """Draw ``min(n_samples, n_population)`` launches of every stratum without replacement.

    ``launches`` are those of one run; ``strata`` has kernel_id, stratum_id, launch_config_ids, lower_ns, upper_ns,
    n_population, n_samples and, unless all are expansion strata, design. Returns the launches with stratum_id,
    inclusion_probability and weight.
    """
    drawn = strata.assign(n_drawn=strata[["n_samples", "n_population"]].min(axis=1))
    drawn = drawn[drawn["n_drawn"] > 0]
    is_pps = drawn["design"] == PPS if "design" in drawn.columns else pd.Series(False, index=drawn.index)
    hashed = launches.withColumn(
        "draw_hash",
        F.xxhash64(
            F.lit(seed).cast("bigint"),
            F.lit(run_id),
            F.col("rank").cast("int"),
            F.col("launch_index").cast("bigint"),
        ),
    )
    sample = _draw_alike(hashed, drawn[~is_pps], config)
    if is_pps.any():
        weighted = drawn[is_pps].assign(threshold=_LARGEST)
        inside = _below_threshold(hashed, weighted).drop("n_population", "n_drawn")
        proportional = draw_systematic(inside, weighted, run_id=run_id, seed=seed).drop("draw_hash")
        sample = sample.unionByName(proportional).localCheckpoint()
    return sample


def _draw_alike(hashed: DataFrame, drawn: pd.DataFrame, config: DrawConfig) -> DataFrame:
    """The launches with the smallest hashes of every stratum."""
    sizes = zip(drawn["n_population"], drawn["n_drawn"], strict=True)
    limited = drawn.assign(threshold=[hash_threshold(int(n), int(m), config) for n, m in sizes])
    candidates = _below_threshold(hashed, limited).persist()
    try:
        found = {
            (row["kernel_id"], row["stratum_id"]): row["count"]
            for row in candidates.groupBy("kernel_id", "stratum_id").count().collect()
        }
        keys = zip(drawn["kernel_id"], drawn["stratum_id"], drawn["n_drawn"], strict=True)
        is_short = pd.Series([found.get((k, s), 0) < m for k, s, m in keys], index=drawn.index, dtype=bool)
        sample = _smallest(candidates)
        if is_short.any():
            whole = drawn[is_short].assign(threshold=_LARGEST)
            replaced = hashed.sparkSession.createDataFrame(
                whole[["kernel_id", "stratum_id"]].astype({"kernel_id": "int64", "stratum_id": "int32"})
            )
            kept = sample.join(F.broadcast(replaced), ["kernel_id", "stratum_id"], how="left_anti")
            sample = kept.unionByName(_smallest(_below_threshold(hashed, whole)))
        return sample.localCheckpoint()
    finally:
        candidates.unpersist()


def _below_threshold(hashed: DataFrame, strata: pd.DataFrame) -> DataFrame:
    """Launches with their stratum; the threshold of the kernel first, so that few rows meet all its strata."""
    spark = hashed.sparkSession
    largest = strata.groupby("kernel_id", as_index=False)["threshold"].max()
    kernels = local_rows(
        spark,
        [(int(k), int(t)) for k, t in zip(largest["kernel_id"], largest["threshold"], strict=True)],
        "kernel_id BIGINT, kernel_threshold BIGINT",
    )
    intervals = _stratum_rows(spark, strata)
    inside = (
        (F.col("kernel_id") == F.col("stratum_kernel_id"))
        & F.col("duration_ns").between(F.col("lower_ns"), F.col("upper_ns"))
        & (F.col("draw_hash") <= F.col("threshold"))
        & (
            F.col("launch_config_ids").isNull()
            | F.expr("array_contains(launch_config_ids, launch_config_id)")
        )
    )
    return (
        hashed.join(F.broadcast(kernels), "kernel_id", how="inner")
        .where(F.col("draw_hash") <= F.col("kernel_threshold"))
        .join(F.broadcast(intervals), inside, how="inner")
        .select(
            "run_id",
            "rank",
            "launch_index",
            "kernel_invocation",
            "kernel_id",
            "stratum_id",
            "duration_ns",
            "draw_hash",
            "n_population",
            "n_drawn",
        )
    )


def _stratum_rows(spark: SparkSession, strata: pd.DataFrame) -> DataFrame:
    names = [
        "kernel_id",
        "stratum_id",
        "launch_config_ids",
        "lower_ns",
        "upper_ns",
        "n_population",
        "n_drawn",
    ]
    rows = [
        (int(k), int(s), configs, int(lower), int(upper), int(n), int(m), int(limit))
        for k, s, configs, lower, upper, n, m, limit in strata[[*names, "threshold"]].itertuples(index=False)
    ]
    return local_rows(spark, rows, _STRATA_SCHEMA)


def _smallest(candidates: DataFrame) -> DataFrame:
    order = Window.partitionBy("kernel_id", "stratum_id").orderBy("draw_hash", "rank", "launch_index")
    n, m = F.col("n_population"), F.col("n_drawn")
    return (
        candidates.withColumn("position", F.row_number().over(order))
        .where(F.col("position") <= m)
        .withColumn("inclusion_probability", m / n)
        .withColumn("weight", n / m)
        .drop("draw_hash", "position", "n_population", "n_drawn")
    )
