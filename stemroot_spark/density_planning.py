"""Strata by density-based clustering, one kernel at a time, sampled like ``stem-root``: for comparison with ROOT."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.allocation import plan_figures
from stemroot_spark.config import PlanConfig
from stemroot_spark.density import density_leaves, require_scikit_learn
from stemroot_spark.histogram import cells_from_histogram
from stemroot_spark.planned import PlannedStrata, kernels_in_tasks
from stemroot_spark.root_planning import allocate_strata

LEAF_SCHEMA = (
    "kernel_id BIGINT, lower_ns BIGINT, upper_ns BIGINT, n_population BIGINT, mean_ns DOUBLE, "
    "stddev_ns DOUBLE"
)


def density_strata(histogram: DataFrame, n_kernels: int, config: PlanConfig) -> PlannedStrata:
    """Strata of all kernels of a histogram by method ``density``; UsageError without scikit-learn."""
    require_scikit_learn()

    def cluster(frame: pd.DataFrame) -> pd.DataFrame:
        return density_frame(frame, config)

    doubles = histogram.withColumn("sum_sq", F.col("sum_sq").cast("double"))
    kernels = kernels_in_tasks(doubles, n_kernels)
    leaves = kernels.groupBy("kernel_id").applyInPandas(cluster, LEAF_SCHEMA).toPandas()
    # Everything simulated keeps any bound: where the allocation may start.
    strata = allocate_strata(leaves.assign(n_samples=leaves["n_population"], depth=None), config)
    figures = plan_figures(
        strata["n_population"], strata["stddev_ns"], strata["mean_ns"], strata["n_samples"], config.confidence
    )
    return PlannedStrata(
        strata=strata,
        sampled_time_ns=figures.sampled_time_ns,
        planned_relative_error=figures.planned_relative_error,
    )


def density_frame(frame: pd.DataFrame, config: PlanConfig) -> pd.DataFrame:
    """Strata of one kernel from its histogram rows, as rows of ``LEAF_SCHEMA``: the body of a grouped pandas UDF."""
    leaves = density_leaves(
        cells_from_histogram(frame), distance=config.density_distance, share=config.density_share
    )
    return leaves.assign(kernel_id=int(frame["kernel_id"].iloc[0]))[["kernel_id", *leaves.columns]]
