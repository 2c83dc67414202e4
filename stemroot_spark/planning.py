"""Plan: duration_histograms -> strata, split_decisions, sample_manifest, and the header plans."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.allocation import PlanFigures, allocate, plan_figures, variance_bound
from stemroot_spark.config import Config, PlanConfig
from stemroot_spark.drawing import draw
from stemroot_spark.errors import DataError, UnknownIdError, UsageError
from stemroot_spark.fingerprint import Fingerprint, canonical_json, sha256_of
from stemroot_spark.histogram import cells_from_histogram
from stemroot_spark.moments import require_run
from stemroot_spark.progress import stage
from stemroot_spark.root import split_kernel
from stemroot_spark.tables import JobWrites, Warehouse

PAPER_METHOD = "stem-root-paper"
SPLIT_SCHEMA = (
    "kernel_id BIGINT, is_leaf BOOLEAN, node STRING, n_population BIGINT, lower_ns BIGINT, upper_ns BIGINT, "
    "mean_ns DOUBLE, stddev_ns DOUBLE, n_samples BIGINT, depth INT, cut_ns BIGINT, cost_before DOUBLE, "
    "cost_after DOUBLE, accepted BOOLEAN"
)
_SPLIT_COLUMNS = [column.strip().split(" ")[0] for column in SPLIT_SCHEMA.split(",")]
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
    config_sha256 = sha256_of({"plan": asdict(config.plan)})
    metadata = {
        "input_versions": warehouse.input_versions(*_INPUTS),
        "config_sha256": config_sha256,
        "seed": config.plan.seed,
    }
    fingerprint = Fingerprint(
        {"run_id": run_id, "moments": moments["fingerprint"].iloc[0], **asdict(config.plan)}
    )
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


def split_histogram(histogram: DataFrame, config: PlanConfig) -> DataFrame:
    """ROOT of every kernel of a histogram: rows of ``SPLIT_SCHEMA``, leaves and decisions told by ``is_leaf``."""
    epsilon, confidence, paper = config.epsilon, config.confidence, config.method == PAPER_METHOD

    def split(frame: pd.DataFrame) -> pd.DataFrame:
        result = split_kernel(
            cells_from_histogram(frame), epsilon=epsilon, confidence=confidence, paper=paper
        )
        leaves = result.leaves_frame().assign(is_leaf=True)
        decisions = result.decisions_frame().assign(is_leaf=False)
        rows = [row for part in (leaves, decisions) for row in part.to_dict("records")]
        return (
            pd.DataFrame(rows, columns=_SPLIT_COLUMNS)
            .assign(kernel_id=frame["kernel_id"].iloc[0])
            .astype(dict.fromkeys(("lower_ns", "upper_ns", "n_samples", "depth", "cut_ns"), "Int64"))
        )

    as_double = histogram.withColumn("sum_sq", F.col("sum_sq").cast("double"))
    return as_double.groupBy("kernel_id").applyInPandas(split, SPLIT_SCHEMA)


def allocate_strata(leaves: pd.DataFrame, config: PlanConfig) -> pd.DataFrame:
    """Number the strata of every kernel by rising duration and settle their sample sizes.

    ``stem-root``: the cheapest whole numbers for all leaves of a kernel together, within its bound. The published
    method keeps the sizes its recursion gave.
    """
    ordered = leaves.sort_values(["kernel_id", "lower_ns"], kind="stable").reset_index(drop=True)
    ordered["stratum_id"] = ordered.groupby("kernel_id").cumcount().astype("int32")
    ordered["launch_config_ids"] = None
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
    # As many tasks as there are kernels to split, within reason: a cached result keeps its partitions.
    n_tasks = min(len(planned), 4 * warehouse.spark.sparkContext.defaultParallelism)
    with stage("split kernels") as report:
        rows = split_histogram(histogram.repartition(n_tasks, "kernel_id"), options).persist()
        leaves = rows.where("is_leaf").toPandas()
        report.rows = len(leaves)
    try:
        strata = allocate_strata(leaves, options)
        if int(strata["n_population"].sum()) != int(planned["n"].sum()):
            raise DataError(
                f"duration_histograms holds {strata['n_population'].sum()} launches of run {run_id}, kernel_moments "
                f"{planned['n'].sum()}; run the moments job with --replace"
            )
        with_id = {"plan_id": F.lit(plan_id)}
        writes.replace("split_decisions", rows.where("NOT is_leaf").withColumns(with_id))
    finally:
        rows.unpersist()
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
    header = _header(strata, planned, moments[excluded], run_id, plan_id, config, metadata)
    writes.finish(warehouse.spark.createDataFrame(*header).withColumn("planned_at", F.current_timestamp()))


def _planned_histogram(warehouse: Warehouse, run_id: str, excluded_ids: set[int]) -> DataFrame:
    histogram = warehouse.read("duration_histograms").where(F.col("run_id") == run_id)
    if excluded_ids:
        histogram = histogram.where(~F.col("kernel_id").isin(sorted(int(k) for k in excluded_ids)))
    return histogram


def _strata_frame(warehouse: Warehouse, strata: pd.DataFrame) -> DataFrame:
    names = ["kernel_id", "stratum_id", "lower_ns", "upper_ns", "n_population", "n_samples", "depth"]
    rows = strata[names].astype("int64").assign(mean_ns=strata["mean_ns"], stddev_ns=strata["stddev_ns"])
    # The published method may ask for more launches than there are; the draw has no more to give.
    rows["n_samples"] = rows[["n_samples", "n_population"]].min(axis=1)
    return warehouse.spark.createDataFrame(rows).withColumn(
        "launch_config_ids", F.lit(None).cast("array<bigint>")
    )


def _header(
    strata: pd.DataFrame,
    planned: pd.DataFrame,
    excluded: pd.DataFrame,
    run_id: str,
    plan_id: str,
    config: Config,
    metadata: dict[str, Any],
) -> tuple[list[tuple[Any, ...]], str]:
    options = config.plan
    figures: PlanFigures = plan_figures(
        strata["n_population"],
        strata["stddev_ns"],
        strata["mean_ns"],
        strata["n_samples"],
        options.confidence,
    )
    dropped = strata[strata["n_samples"] == 0]
    launch_noise, launch_noise_source = options.resolved_launch_noise()
    total_time_ns = int(planned["total_ns"].sum())
    error = figures.planned_relative_error
    values: dict[str, tuple[str, Any]] = {
        "plan_id": ("STRING", plan_id),
        "run_id": ("STRING", run_id),
        "method": ("STRING", options.method),
        "guarantee": ("STRING", options.guarantee),
        "epsilon": ("DOUBLE", options.epsilon),
        "confidence": ("DOUBLE", options.confidence),
        "factor_spread": ("DOUBLE", options.factor_spread),
        "launch_noise": ("DOUBLE", launch_noise),
        "launch_noise_source": ("STRING", launch_noise_source),
        "communication": ("STRING", options.communication),
        "seed": ("BIGINT", options.seed),
        "planned_relative_error": ("DOUBLE", error if np.isfinite(error) else None),
        "sampled_time_ns": ("DOUBLE", figures.sampled_time_ns),
        "total_time_ns": ("BIGINT", total_time_ns),
        "excluded_time_ns": ("BIGINT", int(excluded["total_ns"].sum())),
        "dropped_time_ns": ("BIGINT", round(float((dropped["n_population"] * dropped["mean_ns"]).sum()))),
        "speedup": ("DOUBLE", total_time_ns / figures.sampled_time_ns if figures.sampled_time_ns else None),
        "lower_bound_ns": ("DOUBLE", None),
        "optimality_gap": ("DOUBLE", None),
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
