"""Reconstruct: simulation_results and the plan's strata -> estimates, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.errors import DataError, UnknownIdError
from stemroot_spark.estimators import Combined, Estimate, combine, summarise_kernel
from stemroot_spark.fingerprint import Fingerprint
from stemroot_spark.local_rows import local_rows
from stemroot_spark.parts import PHASE, RANK_GROUP
from stemroot_spark.planning import require_plan
from stemroot_spark.progress import log, stage
from stemroot_spark.tables import JobWrites, Warehouse

SUMMARY_SCHEMA = (
    "kernel_id BIGINT, part_name STRING, method STRING, estimate DOUBLE, answered_estimate DOUBLE, factor DOUBLE, "
    "noise_squared DOUBLE, degrees_of_freedom BIGINT, n_population BIGINT, n_drawn BIGINT, n_answered BIGINT, "
    "profile_total_ns BIGINT, profile_variance DOUBLE, noise_weight DOUBLE, is_whole BOOLEAN, "
    "n_strata_unanswered BIGINT, unanswered_time_share DOUBLE, n_strata_unsampled BIGINT, "
    "unsampled_time_share DOUBLE, status STRING, reason STRING"
)
_ROW_SCHEMA = (
    "level STRING, key STRING, estimate DOUBLE, unit STRING, standard_error DOUBLE, ci_low DOUBLE, ci_high DOUBLE, "
    "degrees_of_freedom DOUBLE, prior_share DOUBLE, n_samples BIGINT, n_population BIGINT, profile_total_ns BIGINT, "
    "measured_noise DOUBLE, method STRING, status STRING, reason STRING"
)
_ROW_COLUMNS = [column.strip().split(" ")[0] for column in _ROW_SCHEMA.split(",")]
_INTEGERS = ("n_samples", "n_population", "profile_total_ns")
# Levels that parts of kernels add up to, by what the strata of the plan follow.
_PART_LEVELS = {PHASE: "phase", RANK_GROUP: "rank"}


def reconstruct(
    warehouse: Warehouse, *, plan_id: str, results_id: str, replace: bool = False
) -> dict[str, Any]:
    """Estimate the time of the workload, of each kernel and of parts with strata of their own; return the summary.

    Raises UnknownIdError without the plan or the results, DataError where the results belong to another plan.
    """
    plan = require_plan(warehouse, plan_id)
    header = _results_header(warehouse, results_id, plan_id)
    writes = JobWrites(
        warehouse,
        job="reconstruct",
        header="estimates",
        key={"plan_id": plan_id, "results_id": results_id},
        fingerprint=Fingerprint({"plan": plan["fingerprint"], "results": header["fingerprint"]}),
    )
    if not writes.is_done(replace):
        draws, strata = _draws_and_strata(warehouse, plan_id, results_id)
        unit = header["unit"]
        with stage("summarise kernels") as report:
            summaries = summarise_draws(draws, strata).toPandas()
            report.rows = len(summaries)
        combined = _combined(summaries, plan)
        rows = _estimate_rows(combined, unit)
        if plan["strata_by"] in _PART_LEVELS:
            with stage("summarise parts") as report:
                parts = summarise_draws(draws, strata, by_part=True).toPandas()
                report.rows = len(parts)
            rows += _part_rows(parts, plan, unit, combined.total.measured_noise)
        rows += _excluded_rows(warehouse, plan, unit)
        frame = local_rows(warehouse.spark, rows, _ROW_SCHEMA).withColumns(
            {
                "plan_id": F.lit(plan_id),
                "results_id": F.lit(results_id),
                "confidence": F.lit(plan["confidence"]),
                "estimated_at": F.current_timestamp(),
            }
        )
        writes.finish(frame)
    return _summary(warehouse, plan, results_id)


def summarise_draws(draws: DataFrame, strata: DataFrame, *, by_part: bool = False) -> DataFrame:
    """One row of ``SUMMARY_SCHEMA`` per kernel, or part of one, from its draws (with values) and its strata."""
    keys = ("kernel_id", "part_name") if by_part else ("kernel_id",)

    def summarise(draw_rows: pd.DataFrame, stratum_rows: pd.DataFrame) -> pd.DataFrame:
        # A kernel to which the plan gave no sample has strata and no draws.
        first = stratum_rows.iloc[0]
        row = {
            "kernel_id": first["kernel_id"],
            "part_name": first["part_name"] if by_part else None,
            "method": _joined(stratum_rows["design"]),
            **summarise_kernel(draw_rows, stratum_rows)._asdict(),
        }
        return pd.DataFrame([row])

    drawn = draws.groupBy("kernel_id", *(["part"] if by_part else []))
    return drawn.cogroup(strata.groupBy(*keys)).applyInPandas(summarise, SUMMARY_SCHEMA)


def _joined(methods: pd.Series[Any]) -> str:
    return " and ".join(sorted(set(methods)))


def _results_header(warehouse: Warehouse, results_id: str, plan_id: str) -> dict[str, Any]:
    row = (
        warehouse.read("simulation_results")
        .where(F.col("results_id") == results_id)
        .groupBy("plan_id", "fingerprint")
        .agg(F.max("unit").alias("unit"), F.count_if(F.col("status") == "ok").alias("n_ok"))
        .first()
    )
    if row is None:
        raise UnknownIdError(
            f"--results-id {results_id} is not in table simulation_results; import the results first"
        )
    if row["plan_id"] != plan_id:
        raise DataError(
            f"results {results_id} were imported for plan {row['plan_id']}, not for plan {plan_id}"
        )
    if row["n_ok"] == 0:
        raise DataError(
            f"results {results_id} hold no usable value; the reasons stand in column reason of table simulation_results"
        )
    return row.asDict()


def _draws_and_strata(warehouse: Warehouse, plan_id: str, results_id: str) -> tuple[DataFrame, DataFrame]:
    """Drawn launches with the values of the results (null without one), and the strata of the plan."""
    of_plan = F.col("plan_id") == plan_id
    strata = (
        warehouse.read("strata")
        .where(of_plan)
        .select(
            "kernel_id",
            "part_name",
            "stratum_id",
            "n_population",
            "n_samples",
            "mean_ns",
            "stddev_ns",
            "design",
        )
    )
    # Under another name: Spark finds a key that two frames grouped together got from one table ambiguous.
    parts = strata.select("kernel_id", "stratum_id", F.col("part_name").alias("part"))
    values = (
        warehouse.read("simulation_results")
        .where((F.col("results_id") == results_id) & (F.col("status") == "ok"))
        .select("rank", "launch_index", "value")
    )
    draws = (
        warehouse.read("sample_manifest")
        .where(of_plan)
        .join(values, ["rank", "launch_index"], how="left")
        .join(F.broadcast(parts), ["kernel_id", "stratum_id"], how="inner")
        .select("kernel_id", "part", "stratum_id", "duration_ns", "value")
    )
    return draws, strata


def _combined(summaries: pd.DataFrame, plan: dict[str, Any], pooled_noise: float = np.nan) -> Combined:
    ordered = summaries.sort_values("kernel_id", ignore_index=True)
    return combine(ordered, plan["launch_noise"], plan["confidence"], pooled_noise=pooled_noise)


def _estimate_rows(combined: Combined, unit: str) -> list[tuple[Any, ...]]:
    kernels = [
        _row({"level": "kernel", "key": str(int(row["kernel_id"])), "unit": unit, **_named(row)})
        for row in combined.kernels.to_dict("records")
    ]
    return [_sum_row("total", "total", combined, unit), *kernels]


def _part_rows(
    parts: pd.DataFrame, plan: dict[str, Any], unit: str, pooled_noise: float
) -> list[tuple[Any, ...]]:
    """Rows of phases or groups of ranks; where a kernel has one draw in each, the noise over all of them counts."""
    level = _PART_LEVELS[plan["strata_by"]]
    return [
        _sum_row(level, str(key), _combined(mine, plan, pooled_noise), unit)
        for key, mine in parts.groupby("part_name", sort=True)
    ]


def _sum_row(level: str, key: str, combined: Combined, unit: str) -> tuple[Any, ...]:
    """Row of a sum over kernels."""
    methods = combined.kernels["method"].str.split(" and ").explode()
    values = {"level": level, "key": key, "unit": unit, "method": _joined(methods)}
    return _row({**values, **combined.total._asdict()})


def _named(row: dict[Hashable, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}


def _row(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(_plain(name, values[name]) for name in _ROW_COLUMNS)


def _plain(name: str, value: Any) -> Any:
    """A value as Spark takes it: NaN stands for null, and counts are whole."""
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return None
    if name in _INTEGERS:
        return int(value)
    return float(value) if isinstance(value, np.floating) else value


def _excluded_rows(warehouse: Warehouse, plan: dict[str, Any], unit: str) -> list[tuple[Any, ...]]:
    """Communication kernels left out of the plan: their profiled time, apart from the total."""
    if plan["communication"] != "exclude":
        return []
    kernels = (
        warehouse.read("kernel_moments")
        .where(F.col("run_id") == plan["run_id"])
        .join(warehouse.read("kernels").where("is_communication"), "kernel_id", how="left_semi")
        .select("kernel_id", "n", "total_ns")
        .orderBy("kernel_id")
        .collect()
    )
    reason = "communication excluded from the plan: not in the total; "
    reason += "the profiled time" if unit == "ns" else f"profiled in ns, unknown in {unit}"
    empty = dict.fromkeys(_ROW_COLUMNS)
    return [
        _row(
            {
                **empty,
                "level": "kernel",
                "key": str(kernel["kernel_id"]),
                "estimate": float(kernel["total_ns"]) if unit == "ns" else None,
                "unit": unit,
                "n_samples": 0,
                "n_population": kernel["n"],
                "profile_total_ns": kernel["total_ns"],
                "method": "profile",
                "status": "no_variance",
                "reason": reason,
            }
        )
        for kernel in kernels
    ]


def _advised_noise(plan: dict[str, Any], measured: float) -> str:
    """The option to plan again with; with two profiles it is what comes on top of the spread between them."""
    if plan["repeat_run_id"] is None:
        return f"--launch-noise {measured:.3f}"
    if plan["launch_noise_source"] == "option":
        return "a larger --launch-noise"
    return f"--launch-noise {math.sqrt(measured**2 - plan['launch_noise'] ** 2):.3f}"


def _summary(warehouse: Warehouse, plan: dict[str, Any], results_id: str) -> dict[str, Any]:
    estimates = warehouse.read("estimates").where(
        (F.col("plan_id") == plan["plan_id"]) & (F.col("results_id") == results_id)
    )
    total = estimates.where(F.col("level") == "total").first()
    if total is None:
        raise DataError(f"estimates of plan {plan['plan_id']} were taken away while this job ran; rerun it")
    fields: dict[str, Any] = {name: total[name] for name in Estimate._fields}
    measured = total["measured_noise"]
    if measured is not None and measured > plan["launch_noise"]:
        log(
            f"warning: results differ from the profile by {measured:.3f} per launch, the plan assumed "
            f"{plan['launch_noise']:.3f}: the interval may cover less than it says; plan again with "
            f"{_advised_noise(plan, measured)}"
        )
    return {
        "plan_id": plan["plan_id"],
        "results_id": results_id,
        "unit": total["unit"],
        "launch_noise": plan["launch_noise"],
        **fields,
    }
