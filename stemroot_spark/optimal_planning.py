"""The optimal planner on Spark: passes over the histogram in grouped pandas UDFs, the search on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import PlanConfig
from stemroot_spark.local_rows import local_rows
from stemroot_spark.optimal.calibration import DRAWS_SCHEMA
from stemroot_spark.optimal.histogram_kernel import HISTOGRAMS, plan_histogram
from stemroot_spark.optimal.local import KernelKind, LocalWork
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.plan import (
    OptimalPlan,
    PlanOptions,
    plan_from_kernels,
    plan_kernel_alone,
    plan_together,
)
from stemroot_spark.optimal.programme import column_names
from stemroot_spark.planned import PlannedStrata, kernels_in_tasks


class SparkWork:
    """Passes over kernels of any number and size, each a grouped pandas UDF: a ``stemroot_spark.optimal.plan.Work``.

    rows: those of the kind (a histogram, or pairs). What comes back to the driver grows with the kernels and their
    strata, not with the launches.
    """

    def __init__(self, rows: DataFrame, kind: KernelKind, model: PlanningModel) -> None:
        self._rows = rows
        self._kind = kind
        self._model = model

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> pd.DataFrame:
        """Optimal strata of every kernel for each multiplier."""
        ladder = tuple(multipliers)
        return self._solved(lambda kernel: kernel.frontier(ladder, coarse), self._kind.solution_schema)

    def alternatives(self, multiplier: float, excess_ns: float) -> pd.DataFrame:
        """Strata of every kernel near its optimum at the multiplier."""
        return self._solved(
            lambda kernel: kernel.alternatives(multiplier, excess_ns), self._kind.solution_schema
        )

    def planned_alone(self, options: PlanOptions) -> pd.DataFrame:
        """``plan_kernel_alone`` of every kernel."""
        return self._solved(lambda kernel: plan_kernel_alone(kernel, options), self._kind.alone_schema)

    def simulate(
        self, strata: pd.DataFrame, factors: Mapping[int, float], *, seed: int, first: int, draws: int
    ) -> pd.DataFrame:
        """Draws summed over kernels, in whole ns so that their order does not matter."""
        kind, model = self._kind, self._model
        schema = f"{kind.solution_schema}, factor DOUBLE"
        kernel_factors = [factors.get(int(kernel), 1.0) for kernel in strata["kernel_id"]]
        rows = _plain_rows(strata.assign(factor=kernel_factors), column_names(schema))
        plans = local_rows(self._rows.sparkSession, rows, schema)

        def simulate(frame: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
            scale = {int(own["kernel_id"].iloc[0]): float(own["factor"].iloc[0])}
            work = LocalWork.of_rows(frame, kind, model)
            return work.simulate(own, scale, seed=seed, first=first, draws=draws)

        return (
            self._rows.groupBy("kernel_id")
            .cogroup(plans.groupBy("kernel_id"))
            .applyInPandas(simulate, DRAWS_SCHEMA)
            .groupBy("draw")
            .agg(F.sum("error_ns").alias("error_ns"), F.sum("total_ns").alias("total_ns"))
            .toPandas()
            .sort_values("draw", ignore_index=True)
        )

    def _solved(self, solve: Callable[[LocalWork], pd.DataFrame], schema: str) -> pd.DataFrame:
        kind, model = self._kind, self._model

        def solved(frame: pd.DataFrame) -> pd.DataFrame:
            return solve(LocalWork.of_rows(frame, kind, model))

        return _collected(self._rows.groupBy("kernel_id").applyInPandas(solved, schema))


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
            plan = plan_on_executors(cached, HISTOGRAMS, options)
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


def plan_on_executors(rows: DataFrame, kind: KernelKind, options: PlanOptions) -> OptimalPlan:
    """The plan of kernels of any number and size by passes of grouped UDFs; ``sum_sq`` of a histogram as double."""
    work = SparkWork(rows, kind, options.model)
    if options.guarantee == "per-kernel":
        return plan_from_kernels(work.planned_alone(options), options)
    return plan_together(work, options)


def _collected(rows: DataFrame) -> pd.DataFrame:
    """Rows on the driver in an order that does not depend on the partitions; arrays become lists."""
    frame = rows.toPandas()
    configs = [None if ids is None else [int(i) for i in ids] for ids in frame["launch_config_ids"]]
    frame["launch_config_ids"] = pd.Series(configs, dtype=object)
    order = [name for name in ("kernel_id", "solution", "stratum_id") if name in frame.columns]
    return frame.sort_values(order, ignore_index=True)


def _plain_rows(frame: pd.DataFrame, names: Sequence[str]) -> list[tuple[object, ...]]:
    """Rows as Spark takes them, in plain Python types."""
    columns = [frame[name].tolist() for name in names]
    return list(zip(*columns, strict=True))
