"""The optimal planner on Spark: passes over the histogram in grouped pandas UDFs, the search on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import PlanConfig
from stemroot_spark.local_rows import local_rows
from stemroot_spark.optimal.calibration import DRAWS_SCHEMA, simulate_kernel
from stemroot_spark.optimal.local import plan_histogram, plan_kernel_frame
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.near import kernel_alternatives
from stemroot_spark.optimal.plan import (
    ALONE_SCHEMA,
    OptimalPlan,
    PlanOptions,
    plan_from_kernels,
    plan_together,
)
from stemroot_spark.optimal.programme import FRONTIER_SCHEMA, kernel_frontier
from stemroot_spark.planned import PlannedStrata, kernels_in_tasks

_STRATA_SCHEMA = (
    "kernel_id BIGINT, launch_config_ids ARRAY<BIGINT>, lower_ns BIGINT, upper_ns BIGINT, n_population BIGINT, "
    "n_samples BIGINT, factor DOUBLE"
)


class KernelPasses:
    """Passes over rows of kernels (a histogram, or pairs), each a grouped pandas UDF.

    What comes back to the driver grows with the kernels and their strata, not with the launches.
    """

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    def solved(self, solve: Callable[[pd.DataFrame], pd.DataFrame], schema: str) -> pd.DataFrame:
        """Rows of all kernels by a function of the rows of one."""
        return _collected(self._rows.groupBy("kernel_id").applyInPandas(solve, schema))

    def simulated(
        self,
        simulate: Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame],
        strata: pd.DataFrame,
        schema: str,
    ) -> pd.DataFrame:
        """Draws summed over kernels, from rows and strata of each; whole ns, so that their order does not matter."""
        names = [column.strip().split(" ")[0] for column in schema.split(",")]
        plans = local_rows(self._rows.sparkSession, _plain_rows(strata, names), schema)
        return (
            self._rows.groupBy("kernel_id")
            .cogroup(plans.groupBy("kernel_id"))
            .applyInPandas(simulate, DRAWS_SCHEMA)
            .groupBy("draw")
            .agg(F.sum("error_ns").alias("error_ns"), F.sum("total_ns").alias("total_ns"))
            .toPandas()
            .sort_values("draw", ignore_index=True)
        )


class SparkWork:
    """Passes over all kernels of a histogram: a ``stemroot_spark.optimal.plan.Work``."""

    def __init__(self, histogram: DataFrame, model: PlanningModel) -> None:
        self._passes = KernelPasses(histogram)
        self._model = model

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> pd.DataFrame:
        """``kernel_frontier`` of every kernel."""
        ladder, model = tuple(multipliers), self._model

        def solve(frame: pd.DataFrame) -> pd.DataFrame:
            return kernel_frontier(frame, ladder, model, coarse=coarse)

        return self._passes.solved(solve, FRONTIER_SCHEMA)

    def alternatives(self, multiplier: float, excess_ns: float) -> pd.DataFrame:
        """``kernel_alternatives`` of every kernel."""
        model = self._model

        def solve(frame: pd.DataFrame) -> pd.DataFrame:
            return kernel_alternatives(frame, multiplier, excess_ns, model)

        return self._passes.solved(solve, FRONTIER_SCHEMA)

    def simulate(
        self, strata: pd.DataFrame, factors: Mapping[int, float], *, seed: int, first: int, draws: int
    ) -> pd.DataFrame:
        """Draws of ``simulate_kernel`` summed over kernels."""
        model = self._model

        def simulate(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
            factor = float(rows["factor"].iloc[0])
            return simulate_kernel(frame, rows, model, seed=seed, first=first, draws=draws, factor=factor)

        return self._passes.simulated(simulate, with_factors(strata, factors), _STRATA_SCHEMA)


def with_factors(strata: pd.DataFrame, factors: Mapping[int, float]) -> pd.DataFrame:
    """Strata with the factor of their kernel, 1 where there is none."""
    return strata.assign(factor=[factors.get(int(kernel), 1.0) for kernel in strata["kernel_id"]])


def optimal_strata(histogram: DataFrame, n_kernels: int, config: PlanConfig) -> PlannedStrata:
    """Strata and samples of all kernels of a histogram by method ``optimal``, under the guarantee asked for.

    A histogram of at most ``driver_histogram_rows`` rows is planned in this process, which gives the same plan: passes
    of a second each cost more than all of its arithmetic.
    """
    options = plan_options(config)
    doubles = histogram.withColumn("sum_sq", F.col("sum_sq").cast("double"))
    cached = kernels_in_tasks(doubles, n_kernels).persist()
    try:
        if cached.count() <= config.driver_histogram_rows:
            plan = plan_histogram(cached.toPandas(), options)
        else:
            plan = plan_on_executors(cached, options)
    finally:
        cached.unpersist()
    strata = plan.strata.sort_values(["kernel_id", "stratum_id"], ignore_index=True)
    return PlannedStrata(
        strata=strata.assign(depth=None),
        sampled_time_ns=plan.sampled_time_ns,
        planned_relative_error=plan.planned_relative_error,
        lower_bound_ns=plan.lower_bound_ns,
        optimality_gap=plan.optimality_gap,
        calibrated_epsilon=plan.calibrated_epsilon,
        coverage=plan.coverage.share,
        coverage_draws=plan.coverage.n_draws,
        reason=plan.reason,
    )


def plan_options(config: PlanConfig) -> PlanOptions:
    """Options of the numeric planner from the configuration."""
    return PlanOptions(
        guarantee=config.resolved_guarantee(),
        epsilon=config.epsilon,
        confidence=config.confidence,
        factor_spread=config.factor_spread,
        launch_noise=config.resolved_launch_noise()[0],
        rho=config.worst_case_factor,
        seed=config.seed,
    )


def plan_on_executors(histogram: DataFrame, options: PlanOptions) -> OptimalPlan:
    """The plan of a histogram (``sum_sq`` as double) of any size, by passes of grouped UDFs."""
    if options.guarantee != "per-kernel":
        return plan_together(SparkWork(histogram, options.model), options)

    def plan_alone(frame: pd.DataFrame) -> pd.DataFrame:
        return plan_kernel_frame(frame, options)

    return plan_from_kernels(KernelPasses(histogram).solved(plan_alone, ALONE_SCHEMA), options)


def _collected(rows: DataFrame) -> pd.DataFrame:
    """Rows on the driver in an order that does not depend on the partitions; arrays become lists."""
    frame = rows.toPandas()
    configs = [None if ids is None else [int(i) for i in ids] for ids in frame["launch_config_ids"]]
    frame["launch_config_ids"] = pd.Series(configs, dtype=object)
    order = [name for name in ("kernel_id", "solution", "stratum_id") if name in frame.columns]
    return frame.sort_values(order, ignore_index=True)


def _plain_rows(frame: pd.DataFrame, names: list[str]) -> list[tuple[object, ...]]:
    """Rows as Spark takes them, in plain Python types."""
    columns = [frame[name].tolist() for name in names]
    return list(zip(*columns, strict=True))
