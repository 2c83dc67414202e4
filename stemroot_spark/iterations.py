"""Iteration and phase of launches: NVTX ranges around the launching calls, else the period of the launch sequence."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stemroot_spark.phases.patterns import NONE, Patterns
from stemroot_spark.phases.period import Periods, periods
from stemroot_spark.phases.ranges import PROCESS_MASK, matched_ranges
from stemroot_spark.phases.timeline import Labeller
from stemroot_spark.sources.nsys_parquet import ParquetSource
from stemroot_spark.sources.nsys_ranges import (
    NVTX_TABLE,
    RUNTIME_TABLE,
    ReadTable,
    parquet_tables,
    read_calls,
    read_events,
    sqlite_tables,
)

CALLS_SCHEMA = (
    "source_index BIGINT, process_key BIGINT, correlation_id BIGINT, call_start_ns BIGINT, iteration INT, "
    "phase STRING"
)
_ARROW_CALLS = pa.schema(
    [
        ("source_index", pa.int64()),
        ("process_key", pa.int64()),
        ("correlation_id", pa.int64()),
        ("call_start_ns", pa.int64()),
        ("iteration", pa.int32()),
        ("phase", pa.string()),
    ]
)
_CALL = ["source_index", "process_key", "correlation_id"]
# Name of a phase without ranges: the n-th steady stretch, from 0.
STRETCH = "stretch {}"


def with_ranges(
    launches: DataFrame, parquet: Iterable[ParquetSource], sqlite: Mapping[int, str], patterns: Patterns
) -> DataFrame:
    """Add iteration and phase from the NVTX ranges around the calls that launched, null where there are none.

    ``launches`` have source_index, process_key and correlation_id; launches of one graph share the id.
    """
    files: list[tuple[int, str | Mapping[str, str]]] = [
        (source.source_index, source.files)
        for source in parquet
        if {NVTX_TABLE.lower(), RUNTIME_TABLE.lower()} <= source.files.keys()
    ]
    files += sqlite.items()
    if not files:
        absent = {"iteration": F.lit(None).cast("int"), "phase": F.lit(None).cast("string")}
        return launches.withColumns(absent)
    calls = labelled_calls(launches.sparkSession, files, patterns)
    return launches.join(calls, _CALL, how="left")


def labelled_calls(
    spark: SparkSession, sources: list[tuple[int, str | Mapping[str, str]]], patterns: Patterns
) -> DataFrame:
    """Calls inside ranges: source_index, process_key, correlation_id (these are unique), iteration, phase.

    A source is its index with the URI of a sqlite file or the files of a folder of tables. Each is one task, which
    keeps the matched ranges and a batch of calls in memory.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                source_index, tables = sources[position]
                with _opened(tables) as reader:
                    yield from _label(source_index, reader, patterns)

    rows = spark.range(0, len(sources), 1, len(sources)).mapInArrow(read, CALLS_SCHEMA)
    # The id of a call is its own in every report seen; a join must not multiply launches where it is not.
    first = F.min(F.struct("call_start_ns", "iteration", "phase")).alias("first")
    return rows.groupBy(*_CALL).agg(first).select(*_CALL, "first.iteration", "first.phase")


def _opened(tables: str | Mapping[str, str]) -> AbstractContextManager[ReadTable]:
    return sqlite_tables(tables) if isinstance(tables, str) else parquet_tables(tables)


def _label(source_index: int, read: ReadTable, patterns: Patterns) -> Iterator[pa.RecordBatch]:
    ranges = matched_ranges(read_events(read, patterns), patterns)
    if ranges.empty:
        return
    labeller = Labeller(ranges)
    names = pa.array(patterns.phase_names, type=pa.string())
    for calls in read_calls(read):
        iteration, phase = labeller.label(calls.thread, calls.start_ns)
        found = (iteration != NONE) | (phase != NONE)
        iteration, phase = iteration[found], phase[found]
        columns = [
            pa.repeat(source_index, len(iteration)),
            pa.array(calls.thread[found] & PROCESS_MASK),
            pa.array(calls.correlation_id[found]),
            pa.array(calls.start_ns[found]),
            pa.array(iteration, mask=iteration == NONE).cast(pa.int32()),
            names.take(pa.array(phase, mask=phase == NONE)),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW_CALLS)


def with_periods(launches: DataFrame) -> DataFrame:
    """Fill iteration and phase of ranks where ranges gave none: the n-th period, and the n-th steady stretch.

    ``launches`` have rank, launch_index, kernel_id, iteration and phase, and are distributed by rank already. What a
    task keeps of a rank in memory is two numbers per launch; its rows wait in a file.
    """
    columns = launches.columns

    def fill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryFile(prefix="stemroot-") as spool:
            kept = _spooled(batches, spool)
            spool.seek(0)
            with pa.ipc.open_stream(spool) as stream:
                if kept is None:
                    yield from stream
                    return
                position = 0
                for batch in stream:
                    rows = slice(position, position + len(batch))
                    position += len(batch)
                    yield _filled(batch, kept.iteration[rows], kept.stretch[rows], columns)

    return launches.groupBy("rank").applyInArrow(fill, launches.schema)


def _spooled(batches: Iterator[pa.RecordBatch], spool: Any) -> Periods | None:
    """Write the rows of a rank to a file; returns their periods in the order written, None where ranges label any."""
    orders: list[npt.NDArray[np.int64]] = []
    kernels: list[npt.NDArray[np.int64]] = []
    is_labelled = False
    writer = None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(spool, batch.schema)
        writer.write_batch(batch)
        is_labelled = is_labelled or any(
            batch[name].null_count < len(batch) for name in ("iteration", "phase")
        )
        orders.append(batch["launch_index"].to_numpy())
        kernels.append(batch["kernel_id"].to_numpy())
    if writer is not None:
        writer.close()
    if is_labelled:
        return None
    order = np.argsort(np.concatenate(orders))
    found = periods(np.concatenate(kernels)[order])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return Periods(found.iteration[back], found.stretch[back])


def _filled(
    batch: pa.RecordBatch,
    iteration: npt.NDArray[np.int64],
    stretch: npt.NDArray[np.int64],
    columns: list[str],
) -> pa.RecordBatch:
    names = pa.array([STRETCH.format(i) for i in range(int(stretch.max(initial=NONE)) + 1)], type=pa.string())
    new = {
        "iteration": pa.array(iteration, mask=iteration == NONE).cast(pa.int32()),
        "phase": names.take(pa.array(stretch, mask=stretch == NONE)),
    }
    arrays = [new[name] if name in new else batch[name] for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=columns)
