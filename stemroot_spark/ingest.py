"""Ingest: trace sources -> trace_files, kernels, launch_configs, kernel_launches, and the header runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stemroot_spark.config import IngestConfig
from stemroot_spark.errors import SourceError, TooManyBadSourcesError, UsageError
from stemroot_spark.fingerprint import Fingerprint, digest_of_strings
from stemroot_spark.launches import (
    Readable,
    count_processes,
    kernel_dictionary,
    launch_config_id,
    number_launches,
    read_kernel_rows,
    with_ranks,
    with_reject_reason,
)
from stemroot_spark.progress import log, stage
from stemroot_spark.sources import nsys_parquet, text_traces
from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.discover import Source, discover
from stemroot_spark.sources.probe import PROBE_SCHEMA, Probe, probe
from stemroot_spark.tables import JobWrites, Warehouse

_PROBE_TASKS = 256
_SHOWN = 10
_NULLABLE_INTEGERS = ("size_bytes", "n_rows", "session_start_ns", "claimed_rank", "world_size")


@dataclass(frozen=True)
class Probed:
    """A source and what its probe found."""

    index: int
    source: Source
    probe: Probe


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
        report.rows = len(probed)
    good = [entry for entry in probed if entry.probe.reason is None]
    for entry in [entry for entry in probed if entry.probe.reason is not None][:_SHOWN]:
        log(f"quarantined {entry.source.name}: {entry.probe.reason}")
    fingerprint = Fingerprint(
        {
            "workload": workload,
            "rank": rank,
            "max_duration_ns": config.max_duration_ns,
            "sources": digest_of_strings(
                f"{entry.source.name}\0{entry.probe.content_id}\0{entry.probe.reason}" for entry in probed
            ),
        }
    )
    writes = JobWrites(
        warehouse, job="ingest", header="runs", key={"run_id": run_id}, fingerprint=fingerprint
    )
    if replace and not good and writes.is_complete():
        raise SourceError(
            f"none of the {len(probed)} sources can be ingested, so run {run_id} stays as it is: {_reasons(probed)}"
        )
    if not writes.is_done(replace):
        _write_run(warehouse, writes, probed, good, run_id, workload, rank, config)
    summary = _summary(warehouse, run_id)
    n_bad = len(probed) - len(good)
    if n_bad > config.max_bad_fraction * len(probed):
        raise TooManyBadSourcesError(
            f"{n_bad} of {len(probed)} sources are quarantined, more than --max-bad-fraction "
            f"{config.max_bad_fraction:g} allows; the good ones are ingested. Reasons stand in table trace_files: "
            f"{_reasons(probed)}"
        )
    return summary


def probe_sources(spark: SparkSession, sources: list[Source], wanted_format: str) -> list[Probed]:
    """Probe every source on the executors; one result per source, in the order given."""
    n_sources = len(sources)

    def look(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            rows = [probe(sources[index], wanted_format).row(index) for index in frame["id"]]
            yield pd.DataFrame(rows).astype(dict.fromkeys(_NULLABLE_INTEGERS, "Int64"))

    rows = (
        spark.range(0, n_sources, 1, min(n_sources, _PROBE_TASKS)).mapInPandas(look, PROBE_SCHEMA).collect()
    )
    found = {
        row["source_index"]: Probe(**{k: v for k, v in row.asDict().items() if k != "source_index"})
        for row in rows
    }
    return [Probed(index, source, found[index]) for index, source in enumerate(sources)]


def _write_run(
    warehouse: Warehouse,
    writes: JobWrites,
    probed: list[Probed],
    good: list[Probed],
    run_id: str,
    workload: str | None,
    rank: int | None,
    config: IngestConfig,
) -> None:
    spark = warehouse.spark
    ledger = _ledger_base(spark, probed, run_id)
    if not good:
        writes.replace("trace_files", _quarantined(ledger))
        raise SourceError(
            f"none of the {len(probed)} sources can be ingested; reasons stand in table trace_files: {_reasons(probed)}"
        )
    source = read_kernel_rows(spark, _readable(good), config.rows_per_batch)
    rows = source.rows.transform(with_reject_reason, config.max_duration_ns)
    processes = count_processes(rows).transform(with_ranks, _claims(spark, good), rank).persist()
    try:
        _check_all_read(processes, good)
        if rank is not None and processes.count() > 1:
            raise UsageError(
                f"--rank {rank} names one process, but the sources hold {processes.count()}; leave it out, or ingest "
                "one report with one process"
            )
        writes.replace("trace_files", _ingested(ledger, processes).unionByName(_quarantined(ledger)))
        writes.insert_new("kernels", kernel_dictionary(source.names), "kernel_id")
        configs = source.rows.select(launch_config_id().alias("launch_config_id"), *nsys.CONFIG_COLUMNS)
        writes.insert_new("launch_configs", configs.distinct(), "launch_config_id")
        n_contested = processes.where("is_contested").count()
        n_launches = writes.replace("kernel_launches", _launches(rows, processes, run_id)).rows
    finally:
        processes.unpersist()
        source.release()
    if n_launches == 0:
        raise SourceError(
            "no kernel launch is left after rejecting bad rows; see rejected_by_reason in trace_files"
        )
    header = _run_header(
        warehouse,
        probed,
        run_id,
        workload,
        has_given_rank=rank is not None,
        n_contested=n_contested,
        n_launches=n_launches,
    )
    writes.finish(header)


def _launches(rows: DataFrame, processes: DataFrame, run_id: str) -> DataFrame:
    ranks = processes.select("source_index", "process_key", "rank")
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
    )


def _readable(good: list[Probed]) -> Readable:
    found = Readable([], {}, {})
    for entry in good:
        result, uri = entry.probe, entry.source.uri
        if result.format == "nsys-parquet":
            columns = (str(result.kernel_columns), str(result.string_columns))
            found.parquet.append(nsys_parquet.ParquetSource(entry.index, uri, *columns))
        elif result.format == "nsys-sqlite":
            found.sqlite[entry.index] = uri
        else:
            hints = str(result.reader_hints)
            found.text[entry.index] = text_traces.TextSource(uri, str(result.format), hints)
    return found


def _claims(spark: SparkSession, good: list[Probed]) -> DataFrame:
    rows = [(e.index, e.probe.claimed_rank, e.probe.claim_source, e.source.name) for e in good]
    return spark.createDataFrame(
        rows, "source_index BIGINT, claimed_rank BIGINT, claim_source STRING, source_name STRING"
    )


def _check_all_read(processes: DataFrame, good: list[Probed]) -> None:
    """Every row that a probe counted must have been read: half a trace must not pass for a whole one."""
    read = {
        row["source_index"]: row["n"]
        for row in processes.groupBy("source_index").agg(F.sum("n_kernels_read").alias("n")).collect()
    }
    for entry in good:
        if read.get(entry.index, 0) != entry.probe.n_rows:
            raise SourceError(
                f"{entry.source.name}: {entry.probe.n_rows} kernel rows in it, {read.get(entry.index, 0)} read; "
                "did it change while the job ran? Rerun the job"
            )


def _ledger_base(spark: SparkSession, probed: list[Probed], run_id: str) -> DataFrame:
    rows = [
        (
            e.index,
            run_id,
            e.source.name,
            e.probe.format,
            e.probe.content_id,
            e.probe.size_bytes,
            e.probe.producer_version,
            e.probe.schema_version,
            e.probe.session_start_ns,
            "ingested" if e.probe.reason is None else "quarantined",
            e.probe.reason,
        )
        for e in probed
    ]
    return spark.createDataFrame(
        rows,
        "source_index BIGINT, run_id STRING, source_uri STRING, format STRING, content_id STRING, size_bytes BIGINT, "
        "producer_version STRING, schema_version STRING, session_start_ns BIGINT, status STRING, reason STRING",
    )


def _ingested(ledger: DataFrame, processes: DataFrame) -> DataFrame:
    unsigned = F.when(
        F.col("process_key") < 0, F.col("process_key").cast("decimal(20,0)") + F.lit(Decimal(2**64))
    ).otherwise(F.col("process_key").cast("decimal(20,0)"))
    return (
        ledger.join(processes, "source_index", how="inner")
        .withColumn("process_key", unsigned.cast("decimal(20,0)").cast("string"))
        .drop("source_index", "is_contested")
    )


def _quarantined(ledger: DataFrame) -> DataFrame:
    absent = {
        "process_key": "string",
        "rank": "int",
        "rank_source": "string",
        "n_kernels_read": "bigint",
        "n_kernels_kept": "bigint",
        "n_kernels_rejected": "bigint",
        "rejected_by_reason": "string",
    }
    return (
        ledger.where(F.col("status") == "quarantined")
        .withColumns({name: F.lit(None).cast(kind) for name, kind in absent.items()})
        .drop("source_index")
    )


def _run_header(
    warehouse: Warehouse,
    probed: list[Probed],
    run_id: str,
    workload: str | None,
    *,
    has_given_rank: bool,
    n_contested: int,
    n_launches: int,
) -> DataFrame:
    n_bad = sum(entry.probe.reason is not None for entry in probed)
    gpu_names = {entry.probe.gpu_name for entry in probed if entry.probe.gpu_name}
    told_world = max((entry.probe.world_size or 0 for entry in probed), default=0)
    present = F.array_sort(F.collect_set(F.when(F.col("n_kernels_kept") > 0, F.col("rank"))))
    # A rank given by the operator says nothing about the others.
    world_size = F.greatest(F.lit(told_world), F.lit(0) if has_given_rank else F.max("rank") + 1)
    missing = F.array_except(F.expr("sequence(0, world_size - 1)"), F.col("present"))
    is_known = F.col("world_size") > 0
    problems = F.array(
        F.when(F.lit(n_bad > 0), F.lit(f"{n_bad} of {len(probed)} sources quarantined")),
        F.when(F.lit(n_contested > 0), F.lit(f"{n_contested} processes claim a rank that another has")),
        F.when(F.size("ranks_missing") > 0, F.format_string("%d ranks missing", F.size("ranks_missing"))),
    )
    reason = F.concat_ws("; ", problems)
    return (
        warehouse.read("trace_files")
        .where((F.col("run_id") == run_id) & (F.col("status") == "ingested"))
        .agg(
            world_size.cast("int").alias("world_size"),
            present.alias("present"),
            F.timestamp_micros(F.expr("min(session_start_ns) div 1000")).alias("started_at_utc"),
        )
        .withColumn("ranks_missing", F.when(is_known, missing))
        .select(
            F.lit(run_id).alias("run_id"),
            F.lit(workload).cast("string").alias("workload"),
            F.lit(gpu_names.pop() if len(gpu_names) == 1 else None).cast("string").alias("gpu_name"),
            F.when(is_known, F.col("world_size")).alias("world_size"),
            F.size("present").alias("ranks_present"),
            "ranks_missing",
            (reason == "").alias("is_complete"),
            F.lit(None).cast("boolean").alias("is_windowed"),
            F.nullif(reason, F.lit("")).alias("incomplete_reason"),
            F.lit(len(probed)).cast("bigint").alias("n_sources"),
            F.lit(n_bad).cast("bigint").alias("n_sources_quarantined"),
            F.lit(n_launches).cast("bigint").alias("n_launches"),
            "started_at_utc",
            F.current_timestamp().alias("ingested_at"),
        )
        .crossJoin(_kernel_counts(warehouse, run_id))
    )


def _kernel_counts(warehouse: Warehouse, run_id: str) -> DataFrame:
    return (
        warehouse.read("kernel_launches")
        .where(F.col("run_id") == run_id)
        .select("kernel_id")
        .distinct()
        .join(F.broadcast(warehouse.read("kernels")), "kernel_id", how="inner")
        .agg(F.count("*").alias("n_kernels"), F.count_if("is_communication").alias("n_communication_kernels"))
    )


def _summary(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    run = warehouse.read("runs").where(F.col("run_id") == run_id).first()
    if run is None:
        raise SourceError(f"run_id {run_id} was taken away while this job ran; rerun it")
    return {
        "run_id": run_id,
        "n_launches": run["n_launches"],
        "n_ranks": run["ranks_present"],
        "n_kernels": run["n_kernels"],
        "n_communication_kernels": run["n_communication_kernels"],
        "n_sources": run["n_sources"],
        "n_sources_quarantined": run["n_sources_quarantined"],
    }


def _reasons(probed: list[Probed]) -> str:
    bad = [f"{entry.source.name}: {entry.probe.reason}" for entry in probed if entry.probe.reason]
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return "; ".join(bad[:_SHOWN]) + more
