"""What every planning method hands to the tables: strata with samples, and what it can say about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import DataFrame

_TASKS_PER_CORE = 4


@dataclass(frozen=True)
class PlannedStrata:
    """Strata and samples of all planned kernels.

    ``strata`` has kernel_id, stratum_id, launch_config_ids (a list, or None for all), lower_ns, upper_ns, n_population,
    n_samples, mean_ns, stddev_ns, model_stddev_ns, depth (null where there is no tree) and, where some strata are not
    drawn by expansion, design. ``decisions`` are rows of ``split_decisions``, None for methods without a tree. Times in
    ns, errors relative to the total; what a method does not know is None. ``n_unmatched`` and ``n_unmatched_repeat``
    count launches without a partner, of the run and of its repetition. ``release`` drops what was cached for
    ``decisions``.
    """

    strata: pd.DataFrame
    sampled_time_ns: float
    planned_relative_error: float | None
    decisions: DataFrame | None = None
    lower_bound_ns: float | None = None
    optimality_gap: float | None = None
    calibrated_epsilon: float | None = None
    coverage: float | None = None
    coverage_draws: int | None = None
    reason: str | None = None
    n_unmatched: int | None = None
    n_unmatched_repeat: int | None = None
    release: Callable[[], object] = lambda: None


def kernels_in_tasks(histogram: DataFrame, n_kernels: int) -> DataFrame:
    """Histogram by kernel in as many tasks as there are kernels, within reason.

    A grouped UDF then needs no shuffle of its own, and a cached result does not keep hundreds of empty partitions.
    """
    cores = histogram.sparkSession.sparkContext.defaultParallelism
    return histogram.repartition(min(n_kernels, _TASKS_PER_CORE * cores), "kernel_id")
