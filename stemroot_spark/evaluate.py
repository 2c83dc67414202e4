"""Evaluate: the launches of a run, and of another to score against -> evaluations, one row per method and protocol.

An evaluation needs every launch at once, so that it holds the launches of one run on the driver: numbers only, as
Arrow columns, and no more than ``evaluate.max_launches``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stemroot_spark.config import Config
from stemroot_spark.errors import UnknownIdError, UsageError
from stemroot_spark.evaluation.designs import METHODS, Options, methods_named
from stemroot_spark.evaluation.features import attach
from stemroot_spark.evaluation.population import LAUNCH_COLUMNS, Matched, Population, match
from stemroot_spark.evaluation.protocols import Evaluated, Protocol
from stemroot_spark.evaluation.protocols import evaluate as evaluate_methods
from stemroot_spark.evaluation.suite import summarise
from stemroot_spark.feature_import import feature_fingerprints, import_features
from stemroot_spark.fingerprint import Fingerprint, canonical_json, sha256_of
from stemroot_spark.local_rows import local_rows
from stemroot_spark.moments import require_run
from stemroot_spark.progress import stage
from stemroot_spark.repeat_planning import require_other_content
from stemroot_spark.repetitions import settle_noise
from stemroot_spark.tables import JobWrites, Warehouse
from stemroot_spark.tables.ddl import columns

_INPUTS = ("runs", "kernels", "launch_configs", "kernel_launches", "kernel_features")
# Options of single methods, which the rows do not repeat.
_OF_METHODS = ("split_hysteresis", "density_distance", "density_share")
_AIMS = (
    "epsilon",
    "confidence",
    "factor_spread",
    "launch_noise",
    "worst_case_factor",
    "communication",
    "seed",
)
_SHOWN = (
    "method", "guarantee", "protocol", "outcome", "model_parameter", "status", "reason", "speedup", "bias",
    "mean_error", "max_error", "within_epsilon", "interval_coverage", "dropped_share",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What to evaluate: ids, names of methods and protocols (empty for the defaults), and files of features.

    ``repeat_run_id`` is a second profile of the workload, for the methods that plan from two.

    ``features`` are URIs, ``RANK=URI`` for a rank other than 0. ``suite_with`` names finished evaluations to summarise
    together with this one.
    """

    run_id: str
    evaluation_id: str
    against_run_id: str | None = None
    repeat_run_id: str | None = None
    methods: Sequence[str] = ()
    protocols: Sequence[str] = ()
    features: Sequence[str] = ()
    suite_with: Sequence[str] = ()

    def resolved_methods(self) -> list[str]:
        """Names of METHODS; all of them by default."""
        return methods_named(list(self.methods)) if self.methods else list(METHODS)

    def resolved_protocols(self) -> list[Protocol]:
        """Protocols; P0 by default, and P1 where there is another run. UsageError for one that lacks its run."""
        names = self.protocols or (("P0", "P1") if self.against_run_id else ("P0",))
        found = [Protocol.parse(name) for name in dict.fromkeys(names)]
        if self.against_run_id is None and any(protocol.needs_run for protocol in found):
            raise UsageError("protocols P1 and P2:run need another run: give --against-run-id")
        return found


def evaluate(
    warehouse: Warehouse, request: Request, *, config: Config, replace: bool = False
) -> dict[str, Any]:
    """Evaluate sampling methods on a run and return the summary.

    With another run, launches without a partner of their rank, kernel and invocation are left out under every
    protocol. UnknownIdError without a run, UsageError for flags that do not fit and for runs that are too large,
    SourceError and DataError for features that cannot be used.
    """
    methods, protocols = request.resolved_methods(), request.resolved_protocols()
    run = require_run(warehouse, request.run_id)
    other = require_run(warehouse, request.against_run_id) if request.against_run_id else None
    repeat = require_run(warehouse, request.repeat_run_id) if request.repeat_run_id else None
    if request.repeat_run_id in (request.run_id, request.against_run_id) and repeat is not None:
        raise UsageError(
            f"--repeat-run-id {request.repeat_run_id} is the run itself or the one to score against; give a third run"
        )
    for first, other_id, flag in (
        (request.run_id, request.repeat_run_id, "--repeat-run-id"),
        (request.run_id, request.against_run_id, "--against-run-id"),
        (request.repeat_run_id, request.against_run_id, "--against-run-id"),
    ):
        if first is not None and other_id is not None:
            require_other_content(warehouse, first, other_id, flag)
    population: Population | None = None
    if request.features:
        population = collect(warehouse, request.run_id, config)
        import_features(warehouse, run, population, request.features, replace=replace)
    for table in _INPUTS:
        warehouse.read(table)
    aims = {name: getattr(config.plan, name) for name in _AIMS}
    inputs = {
        "run_id": request.run_id,
        "run": run["fingerprint"],
        "against_run_id": request.against_run_id,
        "against_run": other["fingerprint"] if other else None,
        "repeat_run_id": request.repeat_run_id,
        "repeat_run": repeat["fingerprint"] if repeat else None,
        "methods": methods,
        "protocols": [protocol.name for protocol in protocols],
        "draws": config.evaluate.draws,
        "features": feature_fingerprints(warehouse, request.run_id),
        **aims,
        **{name: getattr(config.plan, name) for name in _OF_METHODS},
    }
    metadata = {
        "input_versions": warehouse.input_versions(*_INPUTS),
        "config_sha256": sha256_of({"evaluate": inputs}),
        "seed": config.plan.seed,
    }
    writes = JobWrites(
        warehouse,
        job="evaluate",
        header="evaluations",
        key={"evaluation_id": request.evaluation_id},
        fingerprint=Fingerprint(inputs),
        metadata=metadata,
    )
    if not writes.is_done(replace):
        population = population or collect(warehouse, request.run_id, config)
        matched = None
        if request.repeat_run_id:
            population = population.with_repeat(collect(warehouse, request.repeat_run_id, config))
        if request.against_run_id:
            matched = match(population, collect(warehouse, request.against_run_id, config))
            population = matched.population
        population = attach(population, _features(warehouse, request.run_id))
        noise = settle_noise(config.plan, _launches(warehouse, request.run_id, config), None, True)
        with stage("evaluate methods") as report:
            results = evaluate_methods(
                population,
                methods,
                protocols,
                Options(
                    epsilon=config.plan.epsilon,
                    confidence=config.plan.confidence,
                    factor_spread=config.plan.factor_spread,
                    launch_noise=noise.value,
                    rho=config.plan.worst_case_factor,
                    seed=config.plan.seed,
                    measures_noise=noise.source != "option",
                    split_hysteresis=config.plan.split_hysteresis,
                    density_distance=config.plan.density_distance,
                    density_share=config.plan.density_share,
                ),
                draws=config.evaluate.draws,
                y_ns=None if matched is None else matched.y_ns,
            )
            report.rows = len(results)
        shared = {
            "evaluation_id": request.evaluation_id,
            "run_id": request.run_id,
            "against_run_id": request.against_run_id,
            "repeat_run_id": request.repeat_run_id,
            **aims,
            "launch_noise": noise.value,
            "launch_noise_source": noise.source,
            **_population_figures(population, matched),
            "input_versions": canonical_json(metadata["input_versions"]),
            "config_sha256": metadata["config_sha256"],
        }
        writes.finish(_rows(warehouse, results, shared).withColumn("evaluated_at", F.current_timestamp()))
    return _summary(warehouse, request)


def collect(warehouse: Warehouse, run_id: str, config: Config) -> Population:
    """Launches of a run on the driver, communication left out as the plan would; UsageError for too many."""
    launches = _launches(warehouse, run_id, config)
    with stage(f"collect launches of {run_id}") as report:
        report.rows = launches.count()
        limit = config.evaluate.max_launches
        if report.rows > limit:
            raise UsageError(
                f"run {run_id} has {report.rows} launches, and an evaluation holds at most {limit} on the driver: "
                "evaluate a shorter run, or raise evaluate.max_launches and the memory of the driver"
            )
        if report.rows == 0:
            raise UsageError(f"run {run_id} has no launches to evaluate; try --communication include")
        shapes = warehouse.read("launch_configs").select(
            "launch_config_id",
            _product("grid_x", "grid_y", "grid_z").alias("blocks"),
            _product("block_x", "block_y", "block_z").alias("threads_per_block"),
        )
        frame = (
            launches.select(*LAUNCH_COLUMNS)
            .join(F.broadcast(shapes), "launch_config_id", how="left")
            .toPandas()
        )
    return Population.of_frame(frame)


def _launches(warehouse: Warehouse, run_id: str, config: Config) -> DataFrame:
    launches = warehouse.read("kernel_launches").where(F.col("run_id") == run_id)
    if config.plan.communication != "exclude":
        return launches
    waiting = warehouse.read("kernels").where("is_communication").select("kernel_id")
    return launches.join(F.broadcast(waiting), "kernel_id", how="left_anti")


def _product(*names: str) -> Any:
    product = F.col(names[0]).cast("bigint")
    for name in names[1:]:
        product = product * F.col(name)
    return product


def _features(warehouse: Warehouse, run_id: str) -> pd.DataFrame:
    rows = warehouse.read("kernel_features").where(F.col("run_id") == run_id)
    return rows.select("rank", "launch_index", "feature", "value").toPandas()


def _population_figures(population: Population, matched: Matched | None) -> dict[str, Any]:
    return {
        "n_launches": population.size,
        "n_kernels": int(population.kernels[0].size),
        "floor_speedup": population.floor_speedup,
        "n_unmatched": None if matched is None else matched.n_unmatched,
        "unmatched_time_share": None if matched is None else matched.unmatched_share,
        "other_unmatched_time_share": None if matched is None else matched.other_unmatched_share,
    }


def _rows(warehouse: Warehouse, results: Sequence[Evaluated], shared: dict[str, Any]) -> DataFrame:
    rows = [{**shared, **result.as_row()} for result in results]
    declared = [column for column in columns("evaluations") if column.name in rows[0]]
    schema = ", ".join(f"{column.name} {column.type}" for column in declared)
    return local_rows(warehouse.spark, rows, schema)


def _summary(warehouse: Warehouse, request: Request) -> dict[str, Any]:
    rows = _evaluation(warehouse, request.evaluation_id)
    first = rows.iloc[0]
    summary = {
        "evaluation_id": request.evaluation_id,
        "run_id": request.run_id,
        "against_run_id": request.against_run_id,
        "n_launches": int(first["n_launches"]),
        "n_kernels": int(first["n_kernels"]),
        "floor_speedup": float(first["floor_speedup"]),
        "results": _plain(rows[list(_SHOWN)]),
    }
    if request.suite_with:
        suite = [rows, *(_evaluation(warehouse, other) for other in dict.fromkeys(request.suite_with))]
        summary["suite"] = _plain(summarise(pd.concat(suite, ignore_index=True)))
    return summary


def _evaluation(warehouse: Warehouse, evaluation_id: str) -> pd.DataFrame:
    """Rows of an evaluation in a fixed order: a few dozen at most."""
    rows = warehouse.read("evaluations").where(F.col("evaluation_id") == evaluation_id).drop("evaluated_at")
    frame = rows.orderBy("protocol", "outcome", "model_parameter", "method", "guarantee").toPandas()
    if frame.empty:
        raise UnknownIdError(f"--suite-with {evaluation_id} is not in table evaluations; evaluate it first")
    return frame


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON takes them."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]
