"""Ingest: trace sources -> trace_files, kernels, launch_configs, kernel_launches, and the header runs."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stemroot_spark.config import IngestConfig
from stemroot_spark.errors import SourceError, TooManyBadSourcesError
from stemroot_spark.fingerprint import Fingerprint, digest_of_strings, sha256_of
from stemroot_spark.iterations import ranges_of_ranks, with_iterations
from stemroot_spark.launches import (
    LaunchRows,
    Readable,
    count_processes,
    from_session_start,
    kernel_dictionary,
    launch_config_id,
    number_launches,
    read_launch_rows,
    with_reject_reason,
)
from stemroot_spark.ledger import check_all_read, ledger_rows, run_row, with_ranks
from stemroot_spark.local_rows import local_rows
from stemroot_spark.probing import Probed, ProbedSources, probe_sources
from stemroot_spark.progress import log, stage
from stemroot_spark.sources import nsys_parquet, text_traces
from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.discover import discover
from stemroot_spark.tables import JobWrites, Warehouse, ddl

_SHOWN = 10
_SUMMARY = {
    "run_id": "run_id",
    "n_launches": "n_launches",
    "n_ranks": "ranks_present",
    "n_kernels": "n_kernels",
    "n_communication_kernels": "n_communication_kernels",
    "n_sources": "n_sources",
    "n_sources_quarantined": "n_sources_quarantined",
    "is_complete": "is_complete",
    "opaque_time_share": "opaque_time_share",
}


def ingest(
    warehouse: Warehouse,
    *,
    sources: list[str],
    run_id: str,
    workload: str | None,
    rank: int | None,
    config: IngestConfig,
    replace: bool = False,
) -> dict[str, Any]:
    """Ingest the sources as one run and return the summary.

    Bad sources are quarantined in ``trace_files`` beside the good ones. Raises UsageError for a source that is not
    there, SourceError where no source is good, TooManyBadSourcesError (after writing the good ones) where more than
    ``config.max_bad_fraction`` are bad.
    """
    spark = warehouse.spark
    with stage("probe sources") as report:
        probed = probe_sources(spark, discover(sources), config.format)
        report.rows = len(probed.entries)
    _log_exceptions(probed)
    fingerprint = Fingerprint(
        {
            "workload": workload,
            "rank": rank,
            "max_duration_ns": config.max_duration_ns,
            "patterns": sha256_of(astuple(config.patterns())),
            "sources": digest_of_strings(
                f"{entry.source.name}\0{entry.probe.content_id}\0{entry.probe.reason}"
                for entry in probed.entries
            ),
        }
    )
    writes = JobWrites(
        warehouse, job="ingest", header="runs", key={"run_id": run_id}, fingerprint=fingerprint
    )
    if replace and not probed.good and writes.is_complete():
        raise SourceError(
            f"none of the {len(probed.entries)} sources can be ingested, so run {run_id} stays as it is: "
            f"{probed.reasons()}"
        )
    if writes.is_done(replace):
        row = _stored_run(warehouse, run_id)
    else:
        row = _write_run(warehouse, writes, probed, run_id, workload, rank, config)
    if row["remark"]:
        log(f"warning: {row['remark']}")
    if probed.exceeds(config.max_bad_fraction):
        raise TooManyBadSourcesError(
            f"{len(probed.bad)} of {len(probed.entries)} sources are quarantined, more than --max-bad-fraction "
            f"{config.max_bad_fraction:g} allows; the good ones are ingested. Reasons stand in table trace_files: "
            f"{probed.reasons()}"
        )
    return {name: row[column] for name, column in _SUMMARY.items()}


def _log_exceptions(probed: ProbedSources) -> None:
    for entry in probed.bad[:_SHOWN]:
        log(f"quarantined {entry.source.name}: {entry.probe.reason}")
    copies = [entry for entry in probed.entries if entry.status == "duplicate"]
    for entry in copies[:_SHOWN]:
        log(f"passed over {entry.source.name}: same content as {entry.duplicate_of}")


def _write_run(
    warehouse: Warehouse,
    writes: JobWrites,
    probed: ProbedSources,
    run_id: str,
    workload: str | None,
    rank: int | None,
    config: IngestConfig,
) -> dict[str, Any]:
    """Write all tables of the run; returns the row of its header."""
    spark = warehouse.spark
    if not probed.good:
        nothing = pd.DataFrame({"source_index": pd.Series(dtype="int64")})
        writes.replace("trace_files", _table_rows(spark, "trace_files", ledger_rows(run_id, probed, nothing)))
        raise SourceError(
            f"none of the {len(probed.entries)} sources can be ingested; reasons stand in table trace_files: "
            f"{probed.reasons()}"
        )
    readable = _readable(probed.good)
    source = read_launch_rows(spark, readable, config.rows_per_batch)
    try:
        rows = _usable_rows(source, probed, config)
        with stage("count rows") as report:
            processes = with_ranks(count_processes(rows).toPandas(), probed, rank)
            report.rows = int(processes["n_kernels_read"].sum())
        check_all_read(processes, probed.good)
        ledger = ledger_rows(run_id, probed, processes)
        writes.replace("trace_files", _table_rows(spark, "trace_files", ledger))
        writes.insert_new("kernels", kernel_dictionary(spark, source.names), "kernel_id")
        configs = source.rows.select(launch_config_id().alias("launch_config_id"), *nsys.CONFIG_COLUMNS)
        writes.insert_new("launch_configs", configs.distinct(), "launch_config_id")
        ranges = ranges_of_ranks(processes, readable.parquet, readable.sqlite)
        numbered = _launches(spark, rows, processes, run_id)
        launches = writes.replace(
            "kernel_launches", numbered.transform(with_iterations, ranges, config.patterns())
        )
    finally:
        source.release()
    if launches.rows == 0:
        raise SourceError(
            "no kernel launch is left after rejecting bad rows; see rejected_by_reason in trace_files"
        )
    row = run_row(run_id, workload, probed, processes, ledger, has_given_rank=rank is not None)
    row |= _kernel_counts(warehouse, run_id)
    header = _table_rows(spark, "runs", [row]).withColumn("ingested_at", F.current_timestamp())
    writes.finish(header)
    return row


def _usable_rows(source: LaunchRows, probed: ProbedSources, config: IngestConfig) -> DataFrame:
    offsets_ns = {entry.index: entry.probe.time_offset_ns for entry in probed.good}
    return source.rows.transform(from_session_start, offsets_ns).transform(
        with_reject_reason, config.max_duration_ns
    )


def _launches(spark: SparkSession, rows: DataFrame, processes: pd.DataFrame, run_id: str) -> DataFrame:
    columns = ["source_index", "process_key", "rank"]
    ranks = local_rows(
        spark, processes[columns].to_dict("records"), "source_index BIGINT, process_key BIGINT, rank INT"
    )
    return (
        rows.join(F.broadcast(ranks), ["source_index", "process_key"], how="inner")
        .transform(number_launches)
        .where(F.col("reject_reason").isNull())
        .withColumns(
            {
                "run_id": F.lit(run_id),
                "launch_config_id": launch_config_id(),
                "iteration": F.lit(None).cast("int"),
                "phase": F.lit(None).cast("string"),
            }
        )
        .select(*[column.name for column in ddl.columns("kernel_launches")])
    )


def _readable(good: list[Probed]) -> Readable:
    found = Readable([], {}, {}, has_graphs=any(entry.probe.graph_columns for entry in good))
    for entry in good:
        result, uri = entry.probe, entry.source.uri
        if result.format == "nsys-parquet":
            columns = (result.kernel_columns, result.string_columns, result.graph_columns)
            found.parquet.append(
                nsys_parquet.ParquetSource(entry.index, json.loads(str(result.files)), *columns)
            )
        elif result.format == "nsys-sqlite":
            found.sqlite[entry.index] = uri
        else:
            hints = str(result.reader_hints)
            found.text[entry.index] = text_traces.TextSource(uri, str(result.format), hints)
    return found


def _table_rows(spark: SparkSession, table: str, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows with all declared columns of a table, null where a row lacks one."""
    declared = ", ".join(f"{column.name} {column.type}" for column in ddl.columns(table))
    return local_rows(spark, rows, declared)


def _kernel_counts(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    row = (
        warehouse.read("kernel_launches")
        .where(F.col("run_id") == run_id)
        .select("kernel_id")
        .distinct()
        .join(F.broadcast(warehouse.read("kernels")), "kernel_id", how="inner")
        .agg(F.count("*").alias("n_kernels"), F.count_if("is_communication").alias("n_communication_kernels"))
        .first()
    )
    return row.asDict() if row is not None else {}


def _stored_run(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    run = warehouse.read("runs").where(F.col("run_id") == run_id).first()
    if run is None:
        raise SourceError(f"run_id {run_id} was taken away while this job ran; rerun it")
    return run.asDict()
