"""Import results: simulated or replayed times of the drawn launches -> simulation_results, one row per drawn launch."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.errors import DataError, UsageError
from stemroot_spark.fingerprint import Fingerprint
from stemroot_spark.moments import require_run
from stemroot_spark.planning import require_plan
from stemroot_spark.progress import stage
from stemroot_spark.sources.storage import file_content_id, spark_path
from stemroot_spark.tables import JobWrites, Warehouse

SIMULATORS = ("csv", "profile")
CSV_COLUMNS = ("rank", "launch_index", "value", "unit")
UNITS = ("cycles", "ns")
_LAUNCH = ["rank", "launch_index"]


def import_results(
    warehouse: Warehouse,
    *,
    plan_id: str,
    results_id: str,
    simulator: str,
    source: str | None,
    from_run_id: str | None,
    clock_mhz: float | None,
    replace: bool = False,
) -> dict[str, Any]:
    """Import the results of a plan's sample and return the summary.

    ``csv`` reads a file with the columns rank, launch_index, value, unit; ``profile`` takes the durations of the same
    launches from another ingested run, matched by rank, kernel and invocation. ``clock_mhz`` turns cycles into ns.
    Raises UsageError for flags that do not fit together, UnknownIdError for an unknown plan or run, DataError for a
    file that cannot be used as a whole.
    """
    _check_flags(simulator, source, from_run_id, clock_mhz)
    plan = require_plan(warehouse, plan_id)
    sample = warehouse.read("sample_manifest").where(F.col("plan_id") == plan_id)
    inputs: dict[str, Any] = {
        "plan": plan["fingerprint"],
        "plan_id": plan_id,
        "simulator": simulator,
        "clock_mhz": clock_mhz,
    }
    if simulator == "profile":
        inputs["from_run"] = require_run(warehouse, str(from_run_id))["fingerprint"]
        inputs["from_run_id"] = from_run_id
    else:
        inputs["source"] = file_content_id(str(source), "--source")
    writes = JobWrites(
        warehouse,
        job="import_results",
        header="simulation_results",
        key={"results_id": results_id},
        fingerprint=Fingerprint(inputs),
    )
    if not writes.is_done(replace):
        if simulator == "profile":
            launches = warehouse.read("kernel_launches").where(F.col("run_id") == str(from_run_id))
            rows = from_profile(sample, launches)
        else:
            rows = from_csv(sample, _read_csv(warehouse, str(source)))
            _check_units(rows)
        if clock_mhz is not None:
            rows = to_nanoseconds(rows, clock_mhz)
        writes.finish(
            rows.withColumns(
                {
                    "results_id": F.lit(results_id),
                    "plan_id": F.lit(plan_id),
                    "simulator": F.lit(simulator),
                }
            )
        )
    return _summary(warehouse, results_id, plan_id)


def from_profile(sample: DataFrame, launches: DataFrame) -> DataFrame:
    """Durations of the drawn launches in another run, matched by (rank, kernel_id, kernel_invocation)."""
    match = ["rank", "kernel_id", "kernel_invocation"]
    drawn = sample.select(*match, "launch_index")
    found = launches.join(F.broadcast(drawn.select(*match)), match, how="left_semi").select(
        *match, F.col("duration_ns").cast("double").alias("value")
    )
    has_value = F.col("value").isNotNull()
    return drawn.join(found, match, how="left").select(
        *_LAUNCH,
        "value",
        F.when(has_value, "ns").alias("unit"),
        F.when(has_value, "ok").otherwise("missing").alias("status"),
        F.when(~has_value, "no launch of this rank, kernel and invocation in the other run").alias("reason"),
    )


def from_csv(sample: DataFrame, lines: DataFrame) -> DataFrame:
    """Results of drawn launches from text columns rank, launch_index, value and unit.

    A value that is not a positive finite number, an unknown unit, or several differing values for one launch make the
    launch ``rejected`` with a reason; so are lines for launches that were not drawn, and launches without a line are
    ``missing``. Lines whose rank or launch_index is not a number raise DataError: they name no launch.
    """
    typed = lines.select(
        F.expr("try_cast(trim(rank) AS INT)").alias("rank"),
        F.expr("try_cast(trim(launch_index) AS BIGINT)").alias("launch_index"),
        F.expr("try_cast(trim(value) AS DOUBLE)").alias("value"),
        F.lower(F.trim("unit")).alias("unit"),
    )
    nameless = typed.where(F.col("rank").isNull() | F.col("launch_index").isNull()).count()
    if nameless:
        raise DataError(
            f"{nameless} lines of the CSV name no launch: rank or launch_index is not a whole number; correct them"
        )
    usable = F.col("value").isNotNull() & (F.col("value") > 0) & (F.col("value") < float("inf"))
    problem = F.when(~F.coalesce(usable, F.lit(False)), "value is not a positive number").when(
        ~F.coalesce(F.col("unit").isin(*UNITS), F.lit(False)), "unit is neither cycles nor ns"
    )
    per_launch = (
        typed.withColumn("problem", problem)
        .groupBy(*_LAUNCH)
        .agg(
            F.min("value").alias("value"),
            F.min("unit").alias("unit"),
            F.min("problem").alias("problem"),
            (F.countDistinct("value", "unit") > 1).alias("is_ambiguous"),
        )
        .withColumn("is_given", F.lit(True))
    )
    drawn = sample.select(*_LAUNCH).withColumn("is_drawn", F.lit(True))
    reason = (
        F.when(F.col("is_drawn").isNull(), "this launch was not drawn")
        .when(F.col("is_given").isNull(), "no line for this launch")
        .when(F.col("problem").isNotNull(), F.col("problem"))
        .when(F.col("is_ambiguous"), "several lines with different values")
    )
    is_ok = F.col("reason").isNull()
    return (
        drawn.join(per_launch, _LAUNCH, how="full_outer")
        .withColumn("reason", reason)
        .select(
            *_LAUNCH,
            F.when(is_ok, F.col("value")).alias("value"),
            F.when(is_ok, F.col("unit")).alias("unit"),
            F.when(is_ok, "ok")
            .when(F.col("is_given").isNull(), "missing")
            .otherwise("rejected")
            .alias("status"),
            "reason",
        )
    )


def to_nanoseconds(rows: DataFrame, clock_mhz: float) -> DataFrame:
    """Turn cycles of a clock into ns; values in ns stay."""
    in_cycles = F.col("unit") == "cycles"
    return rows.withColumn(
        "value", F.when(in_cycles, F.col("value") * 1000.0 / clock_mhz).otherwise(F.col("value"))
    ).withColumn("unit", F.when(F.col("unit").isNotNull(), "ns"))


def _check_flags(
    simulator: str, source: str | None, from_run_id: str | None, clock_mhz: float | None
) -> None:
    if simulator == "profile":
        if from_run_id is None or source is not None:
            raise UsageError("--simulator profile needs --from-run-id, the run to replay, and no --source")
    elif source is None or from_run_id is not None:
        raise UsageError(f"--simulator {simulator} needs --source, the file of results, and no --from-run-id")
    if clock_mhz is not None and not 0 < clock_mhz < float("inf"):
        raise UsageError(f"--clock-mhz is {clock_mhz}, but must be above 0")


def _read_csv(warehouse: Warehouse, source: str) -> DataFrame:
    lines = warehouse.spark.read.csv(
        spark_path(source),
        header=True,
        inferSchema=False,
        escape='"',
        ignoreLeadingWhiteSpace=True,
        ignoreTrailingWhiteSpace=True,
    )
    renamed = lines.toDF(*[column.strip().lower() for column in lines.columns])
    missing = [column for column in CSV_COLUMNS if column not in renamed.columns]
    if missing:
        raise DataError(
            f"{source}: no column {', '.join(missing)}; the header must name {', '.join(CSV_COLUMNS)}, it has "
            f"{', '.join(renamed.columns) or 'nothing'}"
        )
    return renamed.select(*CSV_COLUMNS)


def _check_units(rows: DataFrame) -> None:
    units = [row[0] for row in rows.where(F.col("unit").isNotNull()).select("unit").distinct().collect()]
    if len(units) > 1:
        raise DataError(
            "the CSV mixes values in cycles and in ns; convert them to one unit, or split the file into two results"
        )


def _summary(warehouse: Warehouse, results_id: str, plan_id: str) -> dict[str, Any]:
    with stage("read simulation_results") as report:
        counts = {
            row["status"]: row["count"]
            for row in warehouse.read("simulation_results")
            .where(F.col("results_id") == results_id)
            .groupBy("status")
            .count()
            .collect()
        }
        report.rows = sum(counts.values())
    return {
        "results_id": results_id,
        "plan_id": plan_id,
        "n_ok": counts.get("ok", 0),
        "n_missing": counts.get("missing", 0),
        "n_rejected": counts.get("rejected", 0),
    }
