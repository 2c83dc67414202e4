"""Text traces in Spark: nsys stats CSV and Kineto JSON, read on the executors, one task per file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stemroot_spark.fingerprint import canonical_json
from stemroot_spark.sources import kineto, nsys_csv
from stemroot_spark.sources.events import EVENT_SCHEMA, ReaderReport

_SPARK_TYPES = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING"}
EVENT_ROWS_SCHEMA = ", ".join(
    ["source_index BIGINT", *(f"{field.name} {_SPARK_TYPES[field.type]}" for field in EVENT_SCHEMA)]
)
# What a reader needs of the probe's report to read the same rows.
_HINTS = ("session_start_ns", "section", "report_kind", "time_base_ns")


@dataclass(frozen=True)
class TextSource:
    """A usable text trace, with what its probe found (``reader_hints``)."""

    uri: str
    format: str
    hints: str


def probe_text(uri: str, trace_format: str) -> ReaderReport:
    """Report on a text trace, from one pass over it."""
    return kineto.probe_kineto(uri) if trace_format == kineto.FORMAT else nsys_csv.probe_nsys_csv(uri)


def reader_hints(report: ReaderReport) -> str:
    """What the reader needs of a report, as canonical JSON."""
    return canonical_json({name: getattr(report, name) for name in _HINTS})


def event_rows(spark: SparkSession, sources: Mapping[int, TextSource], rows_per_batch: int) -> DataFrame:
    """Kernel rows of text traces (source index -> source): source_index and the columns of ``EVENT_SCHEMA``."""
    ordered = sorted(sources.items())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                source_index, source = ordered[position]
                for rows in _batches(source, rows_per_batch):
                    index = pa.repeat(source_index, rows.num_rows)
                    names = ["source_index", *rows.schema.names]
                    yield pa.RecordBatch.from_arrays([index, *rows.columns], names=names)

    return spark.range(0, len(ordered), 1, len(ordered)).mapInArrow(read, EVENT_ROWS_SCHEMA)


def _batches(source: TextSource, rows_per_batch: int) -> Iterator[pa.RecordBatch]:
    report = ReaderReport(source.format, **json.loads(source.hints))
    reader = kineto if source.format == kineto.FORMAT else nsys_csv
    yield from reader.read_batches(source.uri, rows_per_batch, report)
