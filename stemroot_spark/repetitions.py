"""Repetitions of launches on Spark: the launch noise from a second profile, or from iterations of the same run.

Native aggregates over pairs; what comes back is one row per kernel. Logarithms are rounded, so that exact percentiles
take a bounded table per kernel and depend neither on partitions nor on the JVM.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from stemroot_spark.config import DEFAULT_LAUNCH_NOISE, PlanConfig
from stemroot_spark.launch_noise import (
    ITERATION_TAIL,
    LEAST_REPETITIONS,
    PAIR_TAIL,
    MeasuredNoise,
    noise_of_iterations,
    noise_of_second_profile,
    noise_of_two_profiles,
)
from stemroot_spark.progress import stage
from stemroot_spark.ranks import REPRESENTATIVE_RANKS, of_first_ranks

_DIGITS = 4
_PLACE = ["rank", "kernel_id", "launch_config_id"]


def settle_noise(
    options: PlanConfig, launches: DataFrame, pairs: DataFrame | None, has_iterations: bool
) -> MeasuredNoise:
    """The launch noise to plan with: as given, else measured from pairs or from iterations, else the default.

    With pairs the spread between both profiles is measured even where a noise is given, which comes on top of it.
    """
    value, source = options.resolved_launch_noise()
    if pairs is not None:
        with stage("measure launch noise"):
            between = noise_between_profiles(pairs)
        return noise_of_two_profiles(between, value if source == "option" else None, DEFAULT_LAUNCH_NOISE)
    if source == "option" or not has_iterations:
        return MeasuredNoise(value, source)
    with stage("measure launch noise"):
        measured = noise_between_iterations(of_first_ranks(launches, REPRESENTATIVE_RANKS))
    return MeasuredNoise(value, source) if measured is None else MeasuredNoise(measured, "iterations")


def with_noise(options: PlanConfig, launch_noise: float) -> PlanConfig:
    """The options with a launch noise that was settled on."""
    return replace(options, launch_noise=launch_noise)


def noise_between_profiles(pairs: DataFrame) -> float | None:
    """Launch noise from ``stemroot_spark.pairing.matched_launches``; None where too few launches have a partner.

    A shift of a kernel between both runs, as by another clock, is no noise: it moves both quantiles alike.
    """
    ratio = F.round(F.ln(F.col("repeat_ns") / F.col("duration_ns")), _DIGITS)
    ranges = _ranges(pairs.select("kernel_id", "duration_ns", ratio.alias("value")), PAIR_TAIL)
    return noise_of_second_profile(ranges.toPandas())


def noise_between_iterations(launches: DataFrame) -> float | None:
    """Launch noise from neighbouring iterations of one run, matched by position; None where too few repeat.

    The p-th launch of a kernel and configuration is matched with the p-th of the iteration before, where both
    iterations have equally many of them. What shifts a whole iteration (its inputs, the clock) is no noise and drops
    out of the difference between two neighbouring positions; kernels launched once per iteration have no such
    difference and only count where there are no others.
    """
    differences = iteration_differences(launches)
    value = F.struct(F.lit(4).alias("launches_per_value"), F.col("difference").alias("value"))
    single = F.struct(F.lit(2).alias("launches_per_value"), F.col("ratio").alias("value"))
    stacked = differences.select("kernel_id", "duration_ns", F.explode(F.array(value, single)).alias("row"))
    ranges: pd.DataFrame = _ranges(
        stacked.select("kernel_id", "duration_ns", "row.*"), ITERATION_TAIL, "launches_per_value"
    ).toPandas()
    for launches_per_value in (4, 2):
        rows = ranges[ranges["launches_per_value"] == launches_per_value]
        if (rows["n"] >= LEAST_REPETITIONS).any():
            return noise_of_iterations(rows, launches_per_value)
    return None


def iteration_differences(launches: DataFrame) -> DataFrame:
    """Per launch the log ratio to the same position of the iteration before, and its difference to the next position.

    Columns kernel_id, duration_ns, ratio and difference; null where there is no such launch.
    """
    known = launches.where(F.col("iteration").isNotNull())
    together = Window.partitionBy(*_PLACE, "iteration")
    in_order = together.orderBy("kernel_invocation")
    same_position = Window.partitionBy(*_PLACE, "position").orderBy("iteration")

    def before(name: str) -> Column:
        return F.lag(name).over(same_position)

    repeats = (before("iteration") == F.col("iteration") - 1) & (before("size") == F.col("size"))
    ratio = F.when(repeats, F.ln(F.col("duration_ns") / before("duration_ns")))
    next_ratio = F.lead("ratio").over(together.orderBy("position"))
    return (
        known.withColumn("position", F.row_number().over(in_order))
        .withColumn("size", F.count("*").over(together))
        .withColumn("ratio", F.round(ratio, _DIGITS))
        .select(
            "kernel_id",
            "duration_ns",
            "ratio",
            F.round(F.col("ratio") - next_ratio, _DIGITS).alias("difference"),
        )
    )


def _ranges(values: DataFrame, tail: float, *keys: str) -> DataFrame:
    return (
        values.where(F.col("value").isNotNull())
        .groupBy("kernel_id", *keys)
        .agg(
            F.count("*").alias("n"),
            F.percentile("value", tail).alias("low"),
            F.percentile("value", 1.0 - tail).alias("high"),
            F.sum("duration_ns").alias("time_ns"),
        )
        .orderBy("kernel_id")
    )
