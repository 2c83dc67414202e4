"""Iteration and phase of launches: NVTX ranges around the launching calls, else the period of the launch sequence.

One pass over the launches of each rank does both. It reads the ranges and calls of the rank where it runs, so that
traces with ranges need no join and those without cost nothing for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from stemroot_spark.phases.patterns import NONE, Patterns
from stemroot_spark.phases.period import periods
from stemroot_spark.phases.ranges import PROCESS_MASK, matched_ranges
from stemroot_spark.phases.timeline import CallLabels, Labeller
from stemroot_spark.sources.nsys_parquet import ParquetSource
from stemroot_spark.sources.nsys_ranges import (
    ReadTable,
    parquet_tables,
    read_calls,
    read_events,
    sqlite_tables,
)
from stemroot_spark.sources.nsys_schema import NVTX_TABLE, RUNTIME_TABLE, STRING_TABLE

# Phase of launches without ranges: the n-th steady stretch, from 0.
STRETCH = "stretch {}"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankRanges:
    """Where the ranges and calls of a rank are: the URI of a sqlite file or those of tables, and its process there."""

    tables: str | Mapping[str, str]
    process_key: int

    def open(self) -> AbstractContextManager[ReadTable]:
        """Reader of the tables."""
        return sqlite_tables(self.tables) if isinstance(self.tables, str) else parquet_tables(self.tables)


def ranges_of_ranks(
    processes: pd.DataFrame, parquet: Iterable[ParquetSource], sqlite: Mapping[int, str]
) -> dict[int, RankRanges]:
    """Ranks whose sources may hold ranges and calls; ``processes`` have source_index, process_key and rank."""
    wanted = [name.lower() for name in (NVTX_TABLE, RUNTIME_TABLE, STRING_TABLE)]
    sources: dict[int, str | Mapping[str, str]] = dict(sqlite)
    for source in parquet:
        if set(wanted[:2]) <= source.files.keys():
            sources[source.source_index] = {
                name: source.files[name] for name in wanted if name in source.files
            }
    keys = zip(processes["rank"], processes["source_index"], processes["process_key"], strict=True)
    return {
        int(rank): RankRanges(sources[int(index)], int(process))
        for rank, index, process in keys
        if int(index) in sources
    }


def with_iterations(launches: DataFrame, ranges: Mapping[int, RankRanges], patterns: Patterns) -> DataFrame:
    """Fill iteration and phase of launches, by rank; null where neither ranges nor a period tell them.

    A rank any launch of which lies in a range has them from ranges alone; every other rank has the n-th period, and
    the n-th steady stretch as phase. ``launches`` have rank, launch_index, kernel_id, correlation_id, iteration and
    phase, and are distributed by rank already. What a task keeps in memory is a few numbers per launch and call of a
    rank; the rows wait in a file.
    """

    def fill(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = ranges.get(key[0].as_py())
        calls = CallLabels.none() if source is None else _labels_of_calls(source, patterns)
        with tempfile.TemporaryFile(prefix="stemroot-") as spool:
            iteration, phase, names = _labels(_spooled(batches, spool), calls, patterns)
            spool.seek(0)
            position = 0
            with pa.ipc.open_stream(spool) as stream:
                for batch in stream:
                    rows = slice(position, position + len(batch))
                    position += len(batch)
                    yield _filled(batch, iteration[rows], phase[rows], names)

    return launches.groupBy("rank").applyInArrow(fill, launches.schema)


def _labels_of_calls(source: RankRanges, patterns: Patterns) -> CallLabels:
    with source.open() as read:
        ranges = matched_ranges(read_events(read, patterns), patterns)
        ranges = ranges[ranges["process"] == source.process_key]
        if ranges.empty:
            return CallLabels.none()
        labeller = Labeller(ranges)
        parts = []
        for calls in read_calls(read):
            own = (calls.thread & PROCESS_MASK) == source.process_key
            thread, start_ns, correlation_id = (
                values[own] for values in (calls.thread, calls.start_ns, calls.correlation_id)
            )
            parts.append(CallLabels.of(correlation_id, start_ns, *labeller.label(thread, start_ns)))
    return CallLabels.union(parts)


def _spooled(batches: Iterator[pa.RecordBatch], spool: Any) -> tuple[Ints, Ints, Ints]:
    """Write the rows of a rank to a file; returns launch index, kernel and correlation id (0: none) in their order."""
    columns: list[list[Ints]] = [[], [], []]
    writer = None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(spool, batch.schema)
        writer.write_batch(batch)
        for kept, name in zip(columns, ("launch_index", "kernel_id", "correlation_id"), strict=True):
            kept.append(pc.fill_null(batch[name], 0).to_numpy())
    if writer is not None:
        writer.close()
    index, kernel, correlation = (np.concatenate(parts) for parts in columns)
    return index, kernel, correlation


def _labels(
    launches: tuple[Ints, Ints, Ints], calls: CallLabels, patterns: Patterns
) -> tuple[Ints, Ints, pa.Array]:
    """Iteration and phase of launches in the order given, and the names of phases by their numbers."""
    index, kernel, correlation = launches
    iteration, phase = calls.find(correlation)
    if np.any(iteration != NONE) or np.any(phase != NONE):
        return iteration, phase, pa.array(patterns.phase_names, type=pa.string())
    order = np.argsort(index)
    found = periods(kernel[order])
    iteration[order], phase[order] = found.iteration, found.stretch
    names = [STRETCH.format(number) for number in range(int(phase.max(initial=NONE)) + 1)]
    return iteration, phase, pa.array(names, type=pa.string())


def _filled(batch: pa.RecordBatch, iteration: Ints, phase: Ints, names: pa.Array) -> pa.RecordBatch:
    new = {
        "iteration": pa.array(iteration, mask=iteration == NONE).cast(pa.int32()),
        "phase": names.take(pa.array(phase, mask=phase == NONE)),
    }
    columns = batch.schema.names
    return pa.RecordBatch.from_arrays([new.get(name, batch[name]) for name in columns], names=columns)
