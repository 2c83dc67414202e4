"""A first look at a source: what it is, what it holds, and why it cannot be used if so.

Runs on the executors, one call per source. Nothing but the fields of ``Probe`` leaves it, and reasons are in our own
words: error texts of libraries can quote the content of a trace.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from stemroot_spark.sources import text_traces
from stemroot_spark.sources.discover import Source
from stemroot_spark.sources.events import ReaderReport
from stemroot_spark.sources.identity import rank_in_name
from stemroot_spark.sources.probe_parquet import probe_parquet_folder
from stemroot_spark.sources.probe_sqlite import probe_sqlite
from stemroot_spark.sources.recognise import SQLITE_FORMAT, START_BYTES, recognise
from stemroot_spark.sources.report import NsysReport
from stemroot_spark.sources.storage import leaves_folder, local_copy, read_start, update_digest
from stemroot_spark.sources.text_stream import UnusableSourceError

PROBE_SCHEMA = (
    "source_index BIGINT, format STRING, content_id STRING, size_bytes BIGINT, n_rows BIGINT, n_copies BIGINT, "
    "producer_version STRING, schema_version STRING, session_start_ns BIGINT, time_offset_ns BIGINT, "
    "gpu_name STRING, gpu_clock_mhz DOUBLE, claimed_rank BIGINT, claim_source STRING, world_size BIGINT, "
    "has_lost_events BOOLEAN, is_window BOOLEAN, first_call_id BIGINT, kernel_columns STRING, string_columns STRING, "
    "graph_columns STRING, files STRING, reader_hints STRING, reason STRING"
)


@dataclass
class Probe:
    """What a source is; ``reason`` is None for a usable one.

    ``n_rows`` counts launches of kernels and graphs, ``n_copies`` copies and memsets. ``claimed_rank`` is what the
    source itself says (``claim_source``: environment, distributedInfo or name). ``first_call_id`` is the smallest
    correlation id of the CUDA calls recorded. Column lists are JSON objects name -> Arrow type, None for a table that
    is not there; ``files`` is one of table -> URI for a folder of tables; ``reader_hints`` is for readers of text.
    """

    format: str | None = None
    content_id: str | None = None
    size_bytes: int | None = None
    n_rows: int | None = None
    n_copies: int | None = None
    producer_version: str | None = None
    schema_version: str | None = None
    session_start_ns: int | None = None
    time_offset_ns: int = 0
    gpu_name: str | None = None
    gpu_clock_mhz: float | None = None
    claimed_rank: int | None = None
    claim_source: str | None = None
    world_size: int | None = None
    has_lost_events: bool = False
    is_window: bool | None = None
    first_call_id: int | None = None
    kernel_columns: str | None = None
    string_columns: str | None = None
    graph_columns: str | None = None
    files: str | None = None
    reader_hints: str | None = None
    reason: str | None = None

    def row(self, source_index: int) -> dict[str, Any]:
        """As a row of ``PROBE_SCHEMA``."""
        return {"source_index": source_index, **asdict(self)}


def probe(source: Source, wanted_format: str) -> Probe:
    """Look at one source; never raises for what is wrong with the source itself."""
    result = Probe()
    try:
        if source.boundary is not None and leaves_folder(source.uri, source.boundary):
            raise UnusableSourceError(
                "is a symbolic link out of the source folder; name its target as a --source"
            )
        result.format = "nsys-parquet" if source.is_folder else _recognised(source.uri)
        if wanted_format not in ("auto", result.format):
            raise UnusableSourceError(f"is {result.format}, but --format {wanted_format} was asked for")
        if source.is_folder:
            _take_nsys(probe_parquet_folder(source.uri, source.boundary), result)
        else:
            _probe_file(source.uri, result)
        if result.claimed_rank is None:
            result.claimed_rank, result.claim_source = rank_in_name(source.name), "name"
    except UnusableSourceError as problem:
        result.reason = str(problem)
    except OSError as error:
        result.reason = f"cannot be read: {error.strerror or type(error).__name__}"
    if result.reason is not None and result.claimed_rank is None:
        result.claimed_rank, result.claim_source = rank_in_name(source.name), "name"
    return result


def _recognised(uri: str) -> str:
    start = read_start(uri, START_BYTES)
    if not start:
        raise UnusableSourceError("the file is empty")
    if start[:4] == b"PAR1":
        raise UnusableSourceError(
            "a single Parquet table; name the folder that holds all tables of the export instead"
        )
    found = recognise(start)
    if found is None:
        raise UnusableSourceError(
            "not a trace format that is known here; export it with nsys export --type=sqlite or parquetdir"
        )
    return found


def _probe_file(uri: str, result: Probe) -> None:
    if result.format == SQLITE_FORMAT:
        with local_copy(uri) as path:
            _take_nsys(probe_sqlite(path), result)
    else:
        _take_text(text_traces.probe_text(uri, str(result.format)), result)
    digest = hashlib.blake2b(digest_size=16)
    result.size_bytes = update_digest(digest, uri)
    result.content_id = digest.hexdigest()


def _take_nsys(report: NsysReport, result: Probe) -> None:
    found = {name: value for name, value in vars(report).items() if name != "context"}
    for name, value in {**found, **vars(report.context)}.items():
        setattr(result, name, value)
    result.claim_source = "environment"


def _take_text(report: ReaderReport, result: Probe) -> None:
    if report.reason is not None:
        raise UnusableSourceError(report.reason)
    result.n_rows, result.n_copies = report.n_events, report.n_copies
    result.producer_version, result.schema_version = report.producer_version, report.schema_version
    result.session_start_ns, result.gpu_name = report.session_start_ns, report.gpu_name
    result.claimed_rank, result.world_size = report.rank, report.world_size
    result.claim_source = "distributedInfo"
    result.is_window = True if report.first_step else None
    result.reader_hints = text_traces.reader_hints(report)
