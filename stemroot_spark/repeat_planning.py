"""Plans from two profiles on Spark: pairs of launches -> strata with a design each."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import PlanConfig
from stemroot_spark.errors import UsageError
from stemroot_spark.estimators import EXPANSION, PPS
from stemroot_spark.launch_noise import MeasuredNoise
from stemroot_spark.optimal.paired_kernel import PAIRS, paired_options, plan_pairs
from stemroot_spark.optimal.plan import OptimalPlan, PlanOptions
from stemroot_spark.optimal_planning import plan_on_executors, plan_options
from stemroot_spark.pairing import paired_histogram
from stemroot_spark.planned import PlannedStrata, kernels_in_tasks
from stemroot_spark.tables import Warehouse


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


def require_other_content(warehouse: Warehouse, run_id: str, other_run_id: str, flag: str) -> None:
    """UsageError where a trace is in both runs: it repeats nothing, and every ratio of its durations is 1."""
    runs = F.col("run_id").isin(run_id, other_run_id) & (F.col("status") == "ingested")
    found = (
        warehouse.read("trace_files")
        .where(runs)
        .groupBy("content_id")
        .agg(F.count_distinct("run_id").alias("runs"), F.min("source_uri").alias("source_uri"))
        .where("runs = 2")
        .first()
    )
    if found is not None:
        raise UsageError(
            f"{flag} {other_run_id}: its trace {found['source_uri']} is in run {run_id} too, byte for byte; "
            "give a run that was profiled again"
        )


def repeat_strata(
    pairs: DataFrame, n_kernels: int, config: PlanConfig, noise: MeasuredNoise
) -> PlannedStrata:
    """Strata, designs and samples of all kernels from pairs of launches (``stemroot_spark.pairing``).

    Times of the result are those of the first profile; the bound rests on the second one. noise: as
    ``stemroot_spark.launch_noise.noise_of_two_profiles`` has it.
    """
    options = paired_options(plan_options(config), noise.between_profiles, noise.added)
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
            plan = plan_on_executors(kernels, PAIRS, options)
    finally:
        cached.unpersist()
    return _planned(plan, options, int(unmatched), int(repeat_only))


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
