"""NVTX events and CUDA API calls of one nsys export, read a batch at a time inside a task.

Only the columns named here are read: ``binaryData`` is marked as text and holds raw bytes, which breaks readers of
whole rows. Texts that mean nothing are dropped batch by batch, so that ranges of layers and operators cost no memory.
A damaged table ends the reading early: iterations and phases are worth having, not worth failing for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stemroot_spark.phases.patterns import Patterns
from stemroot_spark.phases.ranges import ABSENT, DOMAIN_CREATE, OPEN_END_NS, PUSH_POP, START_END, NvtxEvents
from stemroot_spark.sources.nsys_schema import NVTX_TABLE, RUNTIME_TABLE, STRING_TABLE
from stemroot_spark.sources.nsys_sqlite import open_sqlite
from stemroot_spark.sources.storage import local_copy, locate

_NVTX_COLUMNS = ("eventType", "start", "end", "text", "globalTid", "endGlobalTid", "textId", "domainId")
_TEXTS = frozenset({"text", "value"})
_BATCH_ROWS = 65_536
_UNREADABLE = (pa.ArrowException, OSError, sqlite3.Error)

Ints = npt.NDArray[np.int64]
Columns = dict[str, pa.Array]
"""Column -> values: int64, or binary for texts; a column that the table lacks is all null."""
ReadTable = Callable[[str, tuple[str, ...]], Iterator[Columns]]


@dataclass(frozen=True)
class Calls:
    """API calls: serialised id of the thread that called, when it did in ns, correlation id."""

    thread: Ints
    start_ns: Ints
    correlation_id: Ints


def parquet_tables(files: Mapping[str, str]) -> AbstractContextManager[ReadTable]:
    """Reader of the tables of a folder (table in lower case -> URI)."""

    @contextmanager
    def opened() -> Iterator[ReadTable]:
        yield lambda table, columns: _parquet_batches(files.get(table.lower()), columns)

    return opened()


@contextmanager
def sqlite_tables(uri: str) -> Iterator[ReadTable]:
    """Reader of the tables of a sqlite file."""
    with local_copy(uri) as path, open_sqlite(path) as database:
        database.text_factory = bytes
        yield lambda table, columns: _sqlite_batches(database, table, columns)


def read_events(read: ReadTable, patterns: Patterns) -> NvtxEvents:
    """Range events whose names match a pattern, and the domains where the patterns name some."""
    names = {
        number: text
        for batch in _readable(read(STRING_TABLE, ("id", "value")))
        for number, text in _matching(batch["id"], batch["value"], patterns)
    }
    known = pa.array(list(names), type=pa.int64())
    parts: list[Columns] = []
    for batch in _readable(read(NVTX_TABLE, _NVTX_COLUMNS)):
        kind = batch["eventType"]
        means = pc.or_(
            _means(batch["text"], patterns),
            pc.and_(pc.is_null(batch["text"]), pc.is_in(batch["textId"], value_set=known)),
        )
        keep = pc.and_(pc.is_in(kind, value_set=pa.array([PUSH_POP, START_END])), means)
        if patterns.domains:
            keep = pc.or_(keep, pc.equal(kind, DOMAIN_CREATE))
        valid = pc.and_(pc.is_valid(batch["start"]), pc.is_valid(batch["globalTid"]))
        keep = pc.fill_null(pc.and_(keep, valid), False)
        if pc.any(keep).as_py():
            parts.append({name: column.filter(keep) for name, column in batch.items()})
    texts = [
        _decoded(text) if text is not None else names.get(number, "")
        for part in parts
        for text, number in zip(part["text"].to_pylist(), part["textId"].to_pylist(), strict=True)
    ]
    return NvtxEvents(
        event_type=_numbers(parts, "eventType", ABSENT),
        start_ns=_numbers(parts, "start", 0),
        end_ns=_numbers(parts, "end", OPEN_END_NS),
        thread=_numbers(parts, "globalTid", ABSENT),
        # Zero, too, is how exports write "no thread".
        end_thread=np.where((found := _numbers(parts, "endGlobalTid", ABSENT)) == 0, ABSENT, found),
        domain=_numbers(parts, "domainId", ABSENT),
        name=texts,
    )


def read_calls(read: ReadTable) -> Iterator[Calls]:
    """All CUDA API calls that a launch can refer to, a batch at a time."""
    for batch in _readable(read(RUNTIME_TABLE, ("globalTid", "start", "correlationId"))):
        thread, start, correlation = batch["globalTid"], batch["start"], batch["correlationId"]
        # Correlation id 0 stands for none.
        valid = pc.and_(pc.is_valid(thread), pc.and_(pc.is_valid(start), pc.not_equal(correlation, 0)))
        keep = pc.fill_null(valid, False)
        yield Calls(*(column.filter(keep).to_numpy() for column in (thread, start, correlation)))


def _readable(batches: Iterator[Columns]) -> Iterator[Columns]:
    try:
        yield from batches
    except _UNREADABLE:
        return


def _parquet_batches(uri: str | None, columns: tuple[str, ...]) -> Iterator[Columns]:
    if uri is None:
        return
    filesystem, path = locate(uri)
    metadata = pq.read_metadata(path, filesystem=filesystem)
    present = [name for name in columns if name in metadata.schema.names]
    # Repeated texts stay a dictionary: small whatever they expand to, and matched once each.
    texts = sorted(_TEXTS.intersection(present))
    with pq.ParquetFile(path, filesystem=filesystem, metadata=metadata, read_dictionary=texts) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=present, use_threads=False):
            yield {
                name: _as_texts(batch[name])
                if name in texts
                else _as_integers(batch[name] if name in present else pa.nulls(len(batch)))
                for name in columns
            }


def _sqlite_batches(database: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> Iterator[Columns]:
    present = {row[1].decode() for row in database.execute(f'PRAGMA table_info("{table}")')}
    if not present:
        return
    # In sqlite types belong to values; one of another type than the column's is as good as none.
    selected = ", ".join(
        f'CASE WHEN typeof("{name}") = \'{"text" if name in _TEXTS else "integer"}\' THEN "{name}" END'
        if name in present
        else "NULL"
        for name in columns
    )
    cursor = database.execute(f'SELECT {selected} FROM "{table}"')
    while rows := cursor.fetchmany(_BATCH_ROWS):
        yield {
            name: pa.array(values, type=pa.large_binary() if name in _TEXTS else pa.int64())
            for name, values in zip(columns, zip(*rows, strict=True), strict=True)
        }


def _as_texts(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.large_binary()))
    return column.cast(pa.large_binary())


def _as_integers(column: pa.Array) -> pa.Array:
    """Integers of any width as int64; unsigned 64-bit values keep their bits as two's complement."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_uint64(column.type):
        return column.view(pa.int64())
    if pa.types.is_decimal(column.type):
        wrapped = [None if v is None else (int(v) + 2**63) % 2**64 - 2**63 for v in column.to_pylist()]
        return pa.array(wrapped, type=pa.int64())
    return column.cast(pa.int64())


def _means(texts: pa.Array, patterns: Patterns) -> pa.Array:
    """Whether texts match any pattern; false for null."""
    if pa.types.is_null(texts.type) or texts.null_count == len(texts):
        return pa.repeat(False, len(texts))
    encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    words = encoded.dictionary
    hits = pa.repeat(False, len(words))
    for expression in patterns.expressions:
        hits = pc.or_(hits, _search(words, expression))
    return pc.fill_null(hits.take(encoded.indices), False)


def _search(words: pa.Array, expression: str) -> pa.Array:
    try:
        return pc.match_substring_regex(words, expression)
    except pa.ArrowInvalid:
        # Arrow's expressions lack look-around and back-references; the names are matched again afterwards.
        return pa.repeat(True, len(words))


def _matching(ids: pa.Array, values: pa.Array, patterns: Patterns) -> Iterator[tuple[int, str]]:
    """Ids and texts of strings that match, and of the domains that the patterns name."""
    keep = _means(values, patterns)
    if patterns.domains:
        wanted = pa.array([name.encode() for name in patterns.domains], type=pa.large_binary())
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        keep = pc.or_(keep, pc.is_in(plain, value_set=wanted))
    for number, text in zip(ids.filter(keep).to_pylist(), values.filter(keep).to_pylist(), strict=True):
        if number is not None:
            yield number, _decoded(text)


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _numbers(parts: list[Columns], name: str, absent: int) -> Ints:
    if not parts:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([pc.fill_null(part[name], absent).to_numpy(zero_copy_only=False) for part in parts])
