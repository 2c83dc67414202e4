"""Systematic PPS: launches drawn with probability m x / X, in the order of their hash.

The launches of a stratum lie end to end on a line of length X, each as long as its duration x, in the order of their
hash. m points at a distance of X / m, the first at a seeded place below X / m, draw the launches they fall on (Madow
1949). So m x / X is exact as long as m x <= X, and exactly m launches are drawn.

Nothing sorts a whole stratum: sums over ranges of the hash tell which ranges hold a point, and only these are sorted.
"""

from __future__ import annotations

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from stemroot_spark.local_rows import local_rows

# Ranges of the hash per stratum: 2^12.
_BLOCK_SHIFT = 52
_STRATUM = ["kernel_id", "stratum_id"]
_FRACTION_BITS = 53


def draw_systematic(inside: DataFrame, samples: pd.DataFrame, *, run_id: str, seed: int) -> DataFrame:
    """Draw the m launches of every stratum that the points fall on.

    ``inside`` are the launches of the strata with kernel_id, stratum_id, rank, launch_index, duration_ns and
    draw_hash; ``samples`` has kernel_id, stratum_id and n_drawn. Adds inclusion_probability and weight.
    """
    spark = inside.sparkSession
    sizes = local_rows(
        spark,
        [(int(k), int(s), int(m)) for k, s, m in samples[[*_STRATUM, "n_drawn"]].itertuples(index=False)],
        "kernel_id BIGINT, stratum_id INT, m BIGINT",
    )
    in_blocks = inside.withColumn("block", F.shiftright("draw_hash", _BLOCK_SHIFT))
    stratum = Window.partitionBy(*_STRATUM)
    earlier = stratum.orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    blocks = (
        in_blocks.groupBy(*_STRATUM, "block")
        .agg(F.sum("duration_ns").alias("block_ns"))
        .withColumn("before_ns", F.coalesce(F.sum("block_ns").over(earlier), F.lit(0)))
        .withColumn("total_ns", F.sum("block_ns").over(stratum))
        .join(F.broadcast(sizes), _STRATUM, how="inner")
        .withColumn("start", _start(run_id, seed))
        .where(_points(F.col("before_ns") + F.col("block_ns")) > _points(F.col("before_ns")))
    )
    in_block = Window.partitionBy(*_STRATUM, "block").orderBy("draw_hash", "rank", "launch_index")
    upto = F.sum("duration_ns").over(in_block.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    probability = F.col("m") * F.col("duration_ns") / F.col("total_ns")
    return (
        in_blocks.join(F.broadcast(blocks), [*_STRATUM, "block"], how="inner")
        .withColumn("end_ns", F.col("before_ns") + upto)
        .where(_points(F.col("end_ns")) > _points(F.col("end_ns") - F.col("duration_ns")))
        .withColumn("inclusion_probability", F.least(probability, F.lit(1.0)))
        .withColumn("weight", F.greatest(F.col("total_ns") / (F.col("m") * F.col("duration_ns")), F.lit(1.0)))
        .drop("block", "block_ns", "before_ns", "total_ns", "m", "start", "end_ns")
    )


def _start(run_id: str, seed: int) -> Column:
    """Seeded whole number from 0 to X - 1, another one for every stratum."""
    hashed = F.xxhash64(
        F.lit(seed).cast("bigint"), F.lit(run_id), F.col("kernel_id"), F.col("stratum_id").cast("int")
    )
    fraction = F.shiftrightunsigned(hashed, 64 - _FRACTION_BITS) / F.lit(float(2**_FRACTION_BITS))
    return F.least(F.floor(fraction * F.col("total_ns")), F.col("total_ns") - 1).cast("decimal(19,0)")


def _points(place_ns: Column) -> Column:
    """Points at or before a place on the line, up to a constant: floor((m place + start) / X), exactly."""
    scaled = F.col("m").cast("decimal(18,0)") * place_ns.cast("decimal(19,0)") + F.col("start")
    return F.call_function("div", scaled, F.col("total_ns").cast("decimal(19,0)"))
