"""Strata and samples by ROOT and STEM, one kernel at a time: duration_histograms -> strata, split_decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.allocation import allocate, plan_figures, variance_bound
from stemroot_spark.config import PAPER_METHOD, PlanConfig
from stemroot_spark.histogram import cells_from_histogram
from stemroot_spark.planned import PlannedStrata, kernels_in_tasks
from stemroot_spark.root import split_kernel
from stemroot_spark.stability import cut_stability

SPLIT_SCHEMA = (
    "kernel_id BIGINT, is_leaf BOOLEAN, node STRING, n_population BIGINT, lower_ns BIGINT, upper_ns BIGINT, "
    "mean_ns DOUBLE, stddev_ns DOUBLE, n_samples BIGINT, depth INT, cut_ns BIGINT, cost_before DOUBLE, "
    "cost_after DOUBLE, accepted BOOLEAN, stability DOUBLE"
)
_SPLIT_COLUMNS = [column.strip().split(" ")[0] for column in SPLIT_SCHEMA.split(",")]


def root_strata(histogram: DataFrame, n_kernels: int, config: PlanConfig) -> PlannedStrata:
    """Strata of all kernels of a histogram by ``stem-root`` or ``stem-root-paper``, with every decision of ROOT."""
    rows = split_histogram(kernels_in_tasks(histogram, n_kernels), config).persist()
    strata = allocate_strata(rows.where("is_leaf").toPandas(), config)
    figures = plan_figures(
        strata["n_population"], strata["stddev_ns"], strata["mean_ns"], strata["n_samples"], config.confidence
    )
    error = figures.planned_relative_error
    return PlannedStrata(
        strata=strata,
        decisions=rows.where("NOT is_leaf"),
        sampled_time_ns=figures.sampled_time_ns,
        planned_relative_error=error if np.isfinite(error) else None,
        release=_unpersist(rows),
    )


def _unpersist(rows: DataFrame) -> Callable[[], object]:
    return lambda: rows.unpersist()


def split_histogram(histogram: DataFrame, config: PlanConfig) -> DataFrame:
    """ROOT of every kernel of a histogram: rows of ``SPLIT_SCHEMA``, leaves and decisions told by ``is_leaf``."""

    def split(frame: pd.DataFrame) -> pd.DataFrame:
        return split_frame(frame, config)

    as_double = histogram.withColumn("sum_sq", F.col("sum_sq").cast("double"))
    return as_double.groupBy("kernel_id").applyInPandas(split, SPLIT_SCHEMA)


def split_frame(frame: pd.DataFrame, config: PlanConfig) -> pd.DataFrame:
    """ROOT of one kernel from its histogram rows, as rows of ``SPLIT_SCHEMA``: the body of a grouped pandas UDF."""
    kernel_id = int(frame["kernel_id"].iloc[0])
    options: dict[str, Any] = {
        "epsilon": config.epsilon,
        "confidence": config.confidence,
        "paper": config.method == PAPER_METHOD,
        "hysteresis": config.split_hysteresis,
    }
    cells = cells_from_histogram(frame)
    result = split_kernel(cells, **options)
    stability = cut_stability(
        cells,
        result,
        **options,
        replicates=config.stability_replicates,
        seed=config.seed,
        kernel_id=kernel_id,
    )
    leaves = result.leaves_frame().assign(is_leaf=True)
    decisions = result.decisions_frame().assign(is_leaf=False, stability=stability)
    rows = [row for part in (leaves, decisions) for row in part.to_dict("records")]
    return (
        pd.DataFrame(rows, columns=_SPLIT_COLUMNS)
        .assign(kernel_id=kernel_id)
        .astype(dict.fromkeys(("lower_ns", "upper_ns", "n_samples", "depth", "cut_ns"), "Int64"))
        .astype({"stability": "Float64"})
    )


def allocate_strata(leaves: pd.DataFrame, config: PlanConfig) -> pd.DataFrame:
    """Number the strata of every kernel by rising duration and settle their sample sizes.

    ``stem-root``: the cheapest whole numbers for all leaves of a kernel together, within its bound. The published
    method keeps the sizes its recursion gave.
    """
    ordered = leaves.sort_values(["kernel_id", "lower_ns"], kind="stable").reset_index(drop=True)
    ordered["stratum_id"] = ordered.groupby("kernel_id").cumcount().astype("int32")
    ordered = ordered.assign(launch_config_ids=None, model_stddev_ns=ordered["stddev_ns"])
    if config.method == PAPER_METHOD:
        return ordered
    samples = np.empty(len(ordered), dtype=np.int64)
    for positions in ordered.groupby("kernel_id").indices.values():
        part = ordered.iloc[positions]
        total_ns = float((part["n_population"] * part["mean_ns"]).sum())
        samples[positions] = allocate(
            part["n_population"],
            part["stddev_ns"],
            part["mean_ns"],
            variance_bound(total_ns, config.epsilon, config.confidence),
            start=part["n_samples"],
        )
    return ordered.assign(n_samples=samples)
