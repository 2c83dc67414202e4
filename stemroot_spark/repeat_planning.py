"""Plans from two profiles on Spark: pairs of launches -> strata with a design each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import PlanConfig
from stemroot_spark.errors import UsageError
from stemroot_spark.estimators import EXPANSION, PPS
from stemroot_spark.optimal.designs import PAIRED_SCHEMA
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.pair_work import (
    PAIRED_MAX_CELLS,
    kernel_pair_frontier,
    near_multipliers,
    plan_pairs,
    plan_pairs_of_kernel,
    simulate_pairs,
)
from stemroot_spark.optimal.pairs import paired_buckets
from stemroot_spark.optimal.plan import (
    ALONE_FIGURES,
    OptimalPlan,
    PlanOptions,
    plan_from_kernels,
    plan_together,
)
from stemroot_spark.optimal_planning import KernelPasses, plan_options, with_factors
from stemroot_spark.pairing import paired_histogram
from stemroot_spark.planned import PlannedStrata, kernels_in_tasks

_STRATA_SCHEMA = (
    "kernel_id BIGINT, launch_config_ids ARRAY<BIGINT>, lower_ns BIGINT, upper_ns BIGINT, n_population BIGINT, "
    "n_samples BIGINT, is_pps BOOLEAN, factor DOUBLE"
)


def require_two_profiles(config: PlanConfig, run_id: str, repeat_run_id: str) -> None:
    """UsageError unless the runs and options allow for planning from two profiles."""
    if run_id == repeat_run_id:
        raise UsageError(f"--repeat-run-id is {run_id} itself; give another profile of the same workload")
    if config.strata_by != "none":
        raise UsageError(
            f"--repeat-run-id does not go with plan.strata_by {config.strata_by}; leave out one of both"
        )
    if config.method != "optimal":
        raise UsageError(f"--repeat-run-id needs --method optimal; it is {config.method}")


def repeat_strata(pairs: DataFrame, n_kernels: int, config: PlanConfig) -> PlannedStrata:
    """Strata, designs and samples of all kernels from pairs of launches (``stemroot_spark.pairing``).

    Times of the result are those of the first profile; the bound rests on the second one.
    """
    options = replace(plan_options(config), max_cells=PAIRED_MAX_CELLS)
    cached = kernels_in_tasks(paired_histogram(pairs), n_kernels).persist()
    try:
        sizes = cached.agg(
            F.count("*").alias("rows"),
            F.sum(F.col("n") - F.col("n_matched")).alias("unmatched"),
            F.sum("n_repeat_only").alias("repeat_only"),
        ).first()
        rows, unmatched, repeat_only = sizes if sizes is not None else (0, 0, 0)
        kernels = cached.where("n > 0").drop("n_repeat_only")
        if rows <= config.driver_histogram_rows:
            plan = plan_pairs(kernels.toPandas(), options)
        else:
            plan = plan_pairs_on_executors(kernels, options)
    finally:
        cached.unpersist()
    return _planned(plan, options, int(unmatched), int(repeat_only))


def plan_pairs_on_executors(pairs: DataFrame, options: PlanOptions) -> OptimalPlan:
    """The plan of rows of pairs of any number, by passes of grouped UDFs."""
    if options.guarantee != "per-kernel":
        return plan_together(SparkPairedWork(pairs, options.model), options)

    def plan_alone(frame: pd.DataFrame) -> pd.DataFrame:
        return plan_pairs_of_kernel(frame, options)

    schema = f"{PAIRED_SCHEMA}, {ALONE_FIGURES}"
    return plan_from_kernels(KernelPasses(pairs).solved(plan_alone, schema), options)


def _planned(plan: OptimalPlan, options: PlanOptions, unmatched: int, repeat_only: int) -> PlannedStrata:
    strata = plan.strata.sort_values(["kernel_id", "stratum_id"], ignore_index=True)
    profile_ns = float((strata["n_samples"] * strata["profile_cost_ns"]).sum())
    return PlannedStrata(
        strata=strata.assign(
            depth=None,
            design=strata["is_pps"].map({True: PPS, False: EXPANSION}),
            mean_ns=strata["profile_mean_ns"],
            stddev_ns=strata["profile_stddev_ns"],
        ),
        sampled_time_ns=profile_ns,
        planned_relative_error=plan.planned_relative_error,
        # The bound speaks of the second profile's time; in that of the first it keeps the gap.
        lower_bound_ns=plan.lower_bound_ns * profile_ns / plan.sampled_time_ns,
        optimality_gap=plan.optimality_gap,
        calibrated_epsilon=plan.calibrated_epsilon,
        coverage=plan.coverage.share,
        coverage_draws=plan.coverage.n_draws,
        reason=plan.reason,
        n_unmatched=unmatched,
        n_unmatched_repeat=repeat_only,
    )


class SparkPairedWork:
    """Passes over all kernels of two profiles: a ``stemroot_spark.optimal.plan.Work``."""

    def __init__(self, pairs: DataFrame, model: PlanningModel) -> None:
        self._passes = KernelPasses(pairs)
        self._model = model

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> pd.DataFrame:
        """``kernel_pair_frontier`` of every kernel."""
        ladder, model = tuple(multipliers), self._model

        def solve(frame: pd.DataFrame) -> pd.DataFrame:
            return kernel_pair_frontier(frame, ladder, model, coarse=coarse)

        return self._passes.solved(solve, PAIRED_SCHEMA)

    def alternatives(self, multiplier: float, excess_ns: float) -> pd.DataFrame:
        """Solutions at multipliers near the given one; excess_ns is not asked for."""
        return self.frontier(near_multipliers(multiplier), False)

    def simulate(
        self, strata: pd.DataFrame, factors: Mapping[int, float], *, seed: int, first: int, draws: int
    ) -> pd.DataFrame:
        """Draws of ``simulate_pairs`` summed over kernels."""
        model = self._model

        def simulate(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
            kernel_id, (buckets, _) = int(frame["kernel_id"].iloc[0]), paired_buckets(frame, model)
            factor = float(rows["factor"].iloc[0])
            return simulate_pairs(
                kernel_id, buckets, rows, model, seed=seed, first=first, draws=draws, factor=factor
            )

        return self._passes.simulated(simulate, with_factors(strata, factors), _STRATA_SCHEMA)
