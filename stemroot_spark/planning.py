"""Plan: duration_histograms -> strata, split_decisions, sample_manifest, and the header plans."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import DENSITY_METHOD, Config
from stemroot_spark.density_planning import density_strata
from stemroot_spark.drawing import draw
from stemroot_spark.errors import DataError, UnknownIdError, UsageError
from stemroot_spark.fingerprint import Fingerprint, canonical_json, sha256_of
from stemroot_spark.moments import require_run
from stemroot_spark.optimal_planning import optimal_strata
from stemroot_spark.planned import PlannedStrata
from stemroot_spark.progress import stage
from stemroot_spark.root_planning import root_strata
from stemroot_spark.tables import JobWrites, Warehouse

_CHOICES = {"optimal": optimal_strata, DENSITY_METHOD: density_strata}
_INPUTS = ("runs", "kernels", "kernel_moments", "duration_histograms", "kernel_launches")


def plan(
    warehouse: Warehouse, *, run_id: str, plan_id: str, config: Config, replace: bool = False
) -> dict[str, Any]:
    """Plan the sample of a run whose moments are complete, draw it, and return the summary.

    Raises UnknownIdError without the run or its moments, UsageError where nothing is left to plan.
    """
    require_run(warehouse, run_id)
    moments = _kernel_moments(warehouse, run_id)
    for table in _INPUTS:
        warehouse.read(table)
    options = asdict(config.plan)
    # Where a plan is computed does not change it.
    del options["driver_histogram_rows"]
    config_sha256 = sha256_of({"plan": options})
    metadata = {
        "input_versions": warehouse.input_versions(*_INPUTS),
        "config_sha256": config_sha256,
        "seed": config.plan.seed,
    }
    fingerprint = Fingerprint({"run_id": run_id, "moments": moments["fingerprint"].iloc[0], **options})
    writes = JobWrites(
        warehouse,
        job="plan",
        header="plans",
        key={"plan_id": plan_id},
        fingerprint=fingerprint,
        metadata=metadata,
    )
    if not writes.is_done(replace):
        _write_plan(warehouse, writes, moments, run_id, plan_id, config, metadata)
    return _summary(warehouse, plan_id)


def _kernel_moments(warehouse: Warehouse, run_id: str) -> pd.DataFrame:
    """One row per kernel of the run with is_communication: a few thousand at most, whatever the launches."""
    kernels = warehouse.read("kernels").select("kernel_id", "is_communication")
    rows = (
        warehouse.read("kernel_moments")
        .where(F.col("run_id") == run_id)
        .select("kernel_id", "n", "total_ns", "fingerprint")
        .join(kernels, "kernel_id", how="left")
        .toPandas()
    )
    if rows.empty:
        raise UnknownIdError(
            f"the moments of run {run_id} are not in table kernel_moments; run the moments job first"
        )
    return rows


def _write_plan(
    warehouse: Warehouse,
    writes: JobWrites,
    moments: pd.DataFrame,
    run_id: str,
    plan_id: str,
    config: Config,
    metadata: dict[str, Any],
) -> None:
    options = config.plan
    excluded = moments["is_communication"] & (options.communication == "exclude")
    planned = moments[~excluded]
    if planned.empty:
        raise UsageError(
            f"run {run_id} has communication kernels only; plan them with --communication include"
        )
    histogram = _planned_histogram(warehouse, run_id, excluded_ids=set(moments["kernel_id"][excluded]))
    choose = _CHOICES.get(options.method, root_strata)
    with stage("choose strata") as report:
        chosen = choose(histogram, len(planned), options)
        report.rows = len(chosen.strata)
    strata = chosen.strata
    with_id = {"plan_id": F.lit(plan_id)}
    try:
        if int(strata["n_population"].sum()) != int(planned["n"].sum()):
            raise DataError(
                f"duration_histograms holds {strata['n_population'].sum()} launches of run {run_id}, kernel_moments "
                f"{planned['n'].sum()}; run the moments job with --replace"
            )
        decisions = chosen.decisions
        if decisions is None:
            decisions = warehouse.read("split_decisions").limit(0).drop("plan_id")
        writes.replace("split_decisions", decisions.withColumns(with_id))
    finally:
        chosen.release()
    writes.replace("strata", _strata_frame(warehouse, strata).withColumns(with_id))
    launches = warehouse.read("kernel_launches").where(F.col("run_id") == run_id)
    with stage("draw launches"):
        sample = draw(launches, strata, run_id=run_id, seed=options.seed, config=config.draw)
    names = warehouse.read("kernels").select("kernel_id", "kernel_name")
    manifest = sample.join(names, "kernel_id", how="inner").withColumns(
        {**with_id, "warmup_launches": F.lit(options.warmup_launches)}
    )
    commit = writes.replace("sample_manifest", manifest)
    expected = int(strata[["n_samples", "n_population"]].min(axis=1).sum())
    if commit.rows != expected:
        raise DataError(
            f"drew {commit.rows} launches for {expected} planned ones: kernel_launches and duration_histograms of run "
            f"{run_id} differ; run the moments job with --replace"
        )
    header = _header(chosen, planned, moments[excluded], run_id, plan_id, config, metadata)
    writes.finish(warehouse.spark.createDataFrame(*header).withColumn("planned_at", F.current_timestamp()))


def _planned_histogram(warehouse: Warehouse, run_id: str, excluded_ids: set[int]) -> DataFrame:
    histogram = warehouse.read("duration_histograms").where(F.col("run_id") == run_id)
    if excluded_ids:
        histogram = histogram.where(~F.col("kernel_id").isin(sorted(int(k) for k in excluded_ids)))
    return histogram


def _strata_frame(warehouse: Warehouse, strata: pd.DataFrame) -> DataFrame:
    schema = (
        "kernel_id BIGINT, stratum_id INT, launch_config_ids ARRAY<BIGINT>, lower_ns BIGINT, upper_ns BIGINT, "
        "n_population BIGINT, n_samples BIGINT, mean_ns DOUBLE, stddev_ns DOUBLE, model_stddev_ns DOUBLE, depth INT"
    )
    names = [column.strip().split(" ")[0] for column in schema.split(",")]
    # The published method may ask for more launches than there are; the draw has no more to give.
    capped = strata.assign(n_samples=strata[["n_samples", "n_population"]].min(axis=1))
    rows = zip(*[capped[name].tolist() for name in names], strict=True)
    return warehouse.spark.createDataFrame(list(rows), schema)


def _header(
    chosen: PlannedStrata,
    planned: pd.DataFrame,
    excluded: pd.DataFrame,
    run_id: str,
    plan_id: str,
    config: Config,
    metadata: dict[str, Any],
) -> tuple[list[tuple[Any, ...]], str]:
    options, strata = config.plan, chosen.strata
    dropped = strata[strata["n_samples"] == 0]
    launch_noise, launch_noise_source = options.resolved_launch_noise()
    total_time_ns = int(planned["total_ns"].sum())
    sampled_time_ns = chosen.sampled_time_ns
    values: dict[str, tuple[str, Any]] = {
        "plan_id": ("STRING", plan_id),
        "run_id": ("STRING", run_id),
        "method": ("STRING", options.method),
        "guarantee": ("STRING", options.resolved_guarantee()),
        "epsilon": ("DOUBLE", options.epsilon),
        "confidence": ("DOUBLE", options.confidence),
        "factor_spread": ("DOUBLE", options.factor_spread),
        "launch_noise": ("DOUBLE", launch_noise),
        "launch_noise_source": ("STRING", launch_noise_source),
        "communication": ("STRING", options.communication),
        "seed": ("BIGINT", options.seed),
        "planned_relative_error": ("DOUBLE", chosen.planned_relative_error),
        "sampled_time_ns": ("DOUBLE", sampled_time_ns),
        "total_time_ns": ("BIGINT", total_time_ns),
        "excluded_time_ns": ("BIGINT", int(excluded["total_ns"].sum())),
        "dropped_time_ns": ("BIGINT", round(float((dropped["n_population"] * dropped["mean_ns"]).sum()))),
        "speedup": ("DOUBLE", total_time_ns / sampled_time_ns if sampled_time_ns else None),
        "lower_bound_ns": ("DOUBLE", chosen.lower_bound_ns),
        "optimality_gap": ("DOUBLE", chosen.optimality_gap),
        "calibrated_epsilon": ("DOUBLE", chosen.calibrated_epsilon),
        "coverage": ("DOUBLE", chosen.coverage),
        "coverage_draws": ("BIGINT", chosen.coverage_draws),
        "reason": ("STRING", chosen.reason),
        "n_launches": ("BIGINT", int(planned["n"].sum())),
        "n_kernels": ("BIGINT", len(planned)),
        "n_samples": ("BIGINT", int(strata[["n_samples", "n_population"]].min(axis=1).sum())),
        "n_strata": ("BIGINT", len(strata)),
        "input_versions": ("STRING", canonical_json(metadata["input_versions"])),
        "config_sha256": ("STRING", metadata["config_sha256"]),
    }
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in values.items())
    return [tuple(value for _, value in values.values())], schema


def _summary(warehouse: Warehouse, plan_id: str) -> dict[str, Any]:
    row = require_plan(warehouse, plan_id)
    names = (
        "plan_id",
        "run_id",
        "method",
        "guarantee",
        "epsilon",
        "confidence",
        "communication",
        "n_launches",
        "n_kernels",
        "n_strata",
        "n_samples",
        "speedup",
        "planned_relative_error",
        "optimality_gap",
        "coverage",
        "reason",
        "total_time_ns",
        "sampled_time_ns",
        "excluded_time_ns",
        "dropped_time_ns",
        "launch_noise",
    )
    dropped_share = row["dropped_time_ns"] / row["total_time_ns"]
    return {**{name: row[name] for name in names}, "dropped_time_share": dropped_share}


def require_plan(warehouse: Warehouse, plan_id: str) -> dict[str, Any]:
    """Header of a complete plan as a dictionary, or UnknownIdError naming the plans there are."""
    row = warehouse.read("plans").where(F.col("plan_id") == plan_id).first()
    if row is None:
        known = [
            r[0] for r in warehouse.read("plans").select("plan_id").orderBy("plan_id").limit(10).collect()
        ]
        raise UnknownIdError(
            f"--plan-id {plan_id} is not in table plans; plan it first. Known: {', '.join(known) or 'none'}"
        )
    return row.asDict()
