"""The stages of the main job one after the other: ingest, moments, plan."""

from __future__ import annotations

from typing import Any

from stemroot_spark.config import Config
from stemroot_spark.errors import TooManyBadSourcesError
from stemroot_spark.ingest import ingest
from stemroot_spark.moments import moments
from stemroot_spark.planning import plan
from stemroot_spark.tables import Warehouse


def pipeline(
    warehouse: Warehouse,
    *,
    sources: list[str],
    run_id: str,
    plan_id: str,
    workload: str | None,
    rank: int | None,
    config: Config,
    replace: bool = False,
) -> dict[str, Any]:
    """Ingest, moments and plan of one run; returns their summaries.

    Too many bad sources end the job with an error, but only after the good ones were planned for. Other errors are
    those of the stages.
    """
    too_many: TooManyBadSourcesError | None = None
    ingested: dict[str, Any] = {}
    try:
        ingested = ingest(
            warehouse,
            sources=sources,
            run_id=run_id,
            workload=workload,
            rank=rank,
            config=config.ingest,
            replace=replace,
        )
    except TooManyBadSourcesError as error:
        too_many = error
    summary = {
        "ingest": ingested,
        "moments": moments(
            warehouse,
            run_id=run_id,
            autocorrelation_ranks=config.moments.autocorrelation_ranks,
            replace=replace,
        ),
        "plan": plan(warehouse, run_id=run_id, plan_id=plan_id, config=config, replace=replace),
    }
    if too_many is not None:
        raise too_many
    return summary
