"""Plan: duration_histograms -> strata, split_decisions, sample_manifest, and the header plans."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import DENSITY_METHOD, Config
from stemroot_spark.density_planning import density_strata
from stemroot_spark.drawing import draw
from stemroot_spark.errors import DataError, UnknownIdError, UsageError
from stemroot_spark.estimators import EXPANSION
from stemroot_spark.fingerprint import Fingerprint, canonical_json, sha256_of
from stemroot_spark.launch_noise import MeasuredNoise
from stemroot_spark.local_rows import local_rows
from stemroot_spark.moments import duration_histogram, require_run
from stemroot_spark.optimal_planning import optimal_strata
from stemroot_spark.pairing import matched_launches
from stemroot_spark.parts import FIRST_LAUNCHES, parts_of, with_certain_beginnings
from stemroot_spark.planned import PlannedStrata
from stemroot_spark.progress import stage
from stemroot_spark.repeat_planning import repeat_strata, require_other_content, require_two_profiles
from stemroot_spark.repetitions import settle_noise, with_noise
from stemroot_spark.root_planning import root_strata
from stemroot_spark.tables import JobWrites, Warehouse

_CHOICES = {"optimal": optimal_strata, DENSITY_METHOD: density_strata}
_INPUTS = ("runs", "kernels", "kernel_moments", "duration_histograms", "kernel_launches")


@dataclass(frozen=True)
class _Request:
    """What was asked for: ids, options, and what goes with every commit."""

    run_id: str
    plan_id: str
    repeat_run_id: str | None
    config: Config
    metadata: dict[str, Any]


def plan(
    warehouse: Warehouse,
    *,
    run_id: str,
    plan_id: str,
    config: Config,
    repeat_run_id: str | None = None,
    replace: bool = False,
) -> dict[str, Any]:
    """Plan the sample of a run whose moments are complete, draw it, and return the summary.

    ``repeat_run_id`` is a second profile of the same workload. Raises UnknownIdError without a run or the moments,
    UsageError where nothing is left to plan or the options do not allow for two profiles.
    """
    require_run(warehouse, run_id)
    inputs: dict[str, Any] = {"run_id": run_id}
    if repeat_run_id is not None:
        require_two_profiles(config.plan, run_id, repeat_run_id)
        inputs["repeat_run_id"] = repeat_run_id
        inputs["repeat_run"] = require_run(warehouse, repeat_run_id)["fingerprint"]
        require_other_content(warehouse, run_id, repeat_run_id, "--repeat-run-id")
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
    fingerprint = Fingerprint({**inputs, "moments": moments["fingerprint"].iloc[0], **options})
    writes = JobWrites(
        warehouse,
        job="plan",
        header="plans",
        key={"plan_id": plan_id},
        fingerprint=fingerprint,
        metadata=metadata,
    )
    if not writes.is_done(replace):
        request = _Request(run_id, plan_id, repeat_run_id, config, metadata)
        _write_plan(warehouse, writes, moments, request)
    return _summary(warehouse, plan_id)


def _kernel_moments(warehouse: Warehouse, run_id: str) -> pd.DataFrame:
    """One row per kernel of the run with is_communication: a few thousand at most, whatever the launches."""
    kernels = warehouse.read("kernels").select("kernel_id", "is_communication")
    rows = (
        warehouse.read("kernel_moments")
        .where(F.col("run_id") == run_id)
        .select("kernel_id", "n", "total_ns", "last_iteration", "fingerprint")
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
    request: _Request,
) -> None:
    run_id, options = request.run_id, request.config.plan
    excluded = moments["is_communication"] & (options.communication == "exclude")
    planned = moments[~excluded]
    if planned.empty:
        raise UsageError(
            f"run {run_id} has communication kernels only; plan them with --communication include"
        )
    excluded_ids = set(moments["kernel_id"][excluded])
    launches = warehouse.read("kernel_launches")
    population = _without(launches.where(F.col("run_id") == run_id), excluded_ids)
    pairs = None
    if request.repeat_run_id is not None:
        repeat = launches.where(F.col("run_id") == request.repeat_run_id)
        pairs = matched_launches(population, _without(repeat, excluded_ids))
    noise = settle_noise(options, population, pairs, bool(planned["last_iteration"].notna().any()))
    parts = None if options.strata_by == "none" else parts_of(population, options)
    settled = with_noise(options, noise.value)
    with stage("choose strata") as report:
        if pairs is not None:
            chosen = repeat_strata(pairs, len(planned), settled, noise)
        else:
            histogram = _without(
                warehouse.read("duration_histograms").where(F.col("run_id") == run_id), excluded_ids
            )
            if parts is not None:
                histogram = duration_histogram(parts.launches)
            choose = _CHOICES.get(options.method, root_strata)
            chosen = choose(histogram, len(planned), settled)
            if parts is not None and options.strata_by == FIRST_LAUNCHES:
                chosen = with_certain_beginnings(chosen, parts, options.confidence)
        report.rows = len(chosen.strata)
    strata = chosen.strata if parts is None else parts.named(chosen.strata)
    with_id = {"plan_id": F.lit(request.plan_id)}
    try:
        if int(strata["n_population"].sum()) != int(planned["n"].sum()):
            raise DataError(
                f"duration_histograms holds {strata['n_population'].sum()} launches of run {run_id}, kernel_moments "
                f"{planned['n'].sum()}; run the moments job with --replace"
            )
        if chosen.decisions is None:
            writes.clear("split_decisions")
        else:
            writes.replace("split_decisions", chosen.decisions.withColumns(with_id))
    finally:
        chosen.release()
    writes.replace("strata", _strata_frame(warehouse, strata).withColumns(with_id))
    with stage("draw launches"):
        drawn_from = population if parts is None else parts.launches
        sample = draw(drawn_from, chosen.strata, run_id=run_id, seed=options.seed, config=request.config.draw)
        if parts is not None:
            sample = parts.named_sample(sample, strata)
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
    header = _header(chosen, planned, moments[excluded], request, noise)
    writes.finish(local_rows(warehouse.spark, *header).withColumn("planned_at", F.current_timestamp()))


def _without(rows: DataFrame, kernel_ids: set[int]) -> DataFrame:
    return rows.where(~F.col("kernel_id").isin(sorted(int(k) for k in kernel_ids))) if kernel_ids else rows


def _strata_frame(warehouse: Warehouse, strata: pd.DataFrame) -> DataFrame:
    schema = (
        "kernel_id BIGINT, stratum_id INT, launch_config_ids ARRAY<BIGINT>, lower_ns BIGINT, upper_ns BIGINT, "
        "n_population BIGINT, n_samples BIGINT, mean_ns DOUBLE, stddev_ns DOUBLE, model_stddev_ns DOUBLE, depth INT, "
        "design STRING, part STRING, part_name STRING"
    )
    names = [column.strip().split(" ")[0] for column in schema.split(",")]
    # The published method may ask for more launches than there are; the draw has no more to give.
    capped = strata.assign(n_samples=strata[["n_samples", "n_population"]].min(axis=1))
    absent = {"design": EXPANSION, "part": None, "part_name": None}
    capped = capped.assign(**{name: v for name, v in absent.items() if name not in capped.columns})
    rows = zip(*[capped[name].tolist() for name in names], strict=True)
    return local_rows(warehouse.spark, rows, schema)


def _header(
    chosen: PlannedStrata,
    planned: pd.DataFrame,
    excluded: pd.DataFrame,
    request: _Request,
    noise: MeasuredNoise,
) -> tuple[list[tuple[Any, ...]], str]:
    options, strata, metadata = request.config.plan, chosen.strata, request.metadata
    dropped = strata[strata["n_samples"] == 0]
    total_time_ns = int(planned["total_ns"].sum())
    sampled_time_ns = chosen.sampled_time_ns
    values: dict[str, tuple[str, Any]] = {
        "plan_id": ("STRING", request.plan_id),
        "run_id": ("STRING", request.run_id),
        "repeat_run_id": ("STRING", request.repeat_run_id),
        "method": ("STRING", options.method),
        "guarantee": ("STRING", options.resolved_guarantee()),
        "epsilon": ("DOUBLE", options.epsilon),
        "confidence": ("DOUBLE", options.confidence),
        "factor_spread": ("DOUBLE", options.factor_spread),
        "launch_noise": ("DOUBLE", noise.value),
        "launch_noise_source": ("STRING", noise.source),
        "communication": ("STRING", options.communication),
        "strata_by": ("STRING", options.strata_by),
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
        "n_unmatched": ("BIGINT", chosen.n_unmatched),
        "n_unmatched_repeat": ("BIGINT", chosen.n_unmatched_repeat),
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
        "launch_noise_source",
        "repeat_run_id",
        "n_unmatched",
        "n_unmatched_repeat",
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
