"""The first look at a source: what it is, and every reason why it cannot be used."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stemroot_spark.fleet import PLANTED_SECRETS, FleetSpec, WriterOptions, write_fleet
from stemroot_spark.sources.discover import Source
from stemroot_spark.sources.probe import PROBE_SCHEMA, Probe, probe

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
Tables = dict[str, pa.Table]


def _tables() -> Tables:
    return {
        KERNEL: pa.table(
            {
                "start": pa.array([100, 200], pa.int64()),
                "end": pa.array([150, 270], pa.int64()),
                "demangledName": pa.array([1, 1], pa.uint32()),
                "globalPid": pa.array([2**63 + 2**24, 2**63 + 2**24], pa.uint64()),
            }
        ),
        "StringIds": pa.table(
            {"id": pa.array([1], pa.uint32()), "value": pa.array(["k"], pa.large_string())}
        ),
        "META_DATA_EXPORT": pa.table(
            {
                "name": ["EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION", "EXPORT_HOST"],
                "value": ["2026.2.1", "3.25.0", "secret-host"],
            }
        ),
        "TARGET_INFO_SESSION_START_TIME": pa.table({"utcEpochNs": pa.array([1_700_000_000_000_000_000])}),
        "TARGET_INFO_GPU": pa.table({"name": ["H100", "H100"]}),
    }


def _parquet(folder: Path, tables: Tables) -> Source:
    folder.mkdir()
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return Source(folder.name, str(folder), is_folder=True)


def _sqlite(path: Path, tables: Tables) -> Source:
    with closing(sqlite3.connect(path)) as database, database:
        for name, table in tables.items():
            columns = ", ".join(f'"{column}"' for column in table.column_names)
            database.execute(f'CREATE TABLE "{name}" ({columns})')
            for row in table.to_pylist():
                marks = ", ".join("?" for _ in row)
                database.execute(f'INSERT INTO "{name}" VALUES ({marks})', [_stored(v) for v in row.values()])
    return Source(path.name, str(path), is_folder=False)


def _stored(value: Any) -> Any:
    if isinstance(value, int) and value >= 2**63:
        return value - 2**64
    return float(value) if isinstance(value, Decimal) else value


def _made(kind: str, tmp_path: Path, tables: Tables) -> Source:
    if kind == "parquet":
        return _parquet(tmp_path / "report", tables)
    return _sqlite(tmp_path / "report.sqlite", tables)


def _with(table: str, column: str, values: pa.Array) -> Tables:
    tables = _tables()
    old = tables[table]
    tables[table] = (
        old.set_column(old.column_names.index(column), column, values)
        if column in old.column_names
        else old.append_column(column, values)
    )
    return tables


def _reason(source: Source, wanted: str = "auto") -> str:
    found = probe(source, wanted)
    assert found.reason is not None
    return found.reason


both = pytest.mark.parametrize("kind", ["parquet", "sqlite"])


@both
def test_a_usable_source_is_described(kind: str, tmp_path: Path) -> None:
    source = _made(kind, tmp_path, _tables())
    found = probe(source, "auto")
    assert found.reason is None
    assert (found.format, found.n_rows) == (f"nsys-{kind}", 2)
    assert (found.producer_version, found.schema_version) == ("2026.2.1", "3.25.0")
    assert (found.session_start_ns, found.gpu_name) == (1_700_000_000_000_000_000, "H100")
    read = (
        [tmp_path / "report.sqlite"]
        if kind == "sqlite"
        else [tmp_path / "report" / f"{KERNEL}.parquet", tmp_path / "report" / "StringIds.parquet"]
    )
    assert found.size_bytes == sum(path.stat().st_size for path in read)
    assert set(json.loads(str(found.kernel_columns))) == {"start", "end", "demangledName", "globalPid"}
    assert probe(source, f"nsys-{kind}") == found
    assert set(found.row(3)) == {column.split()[0] for column in PROBE_SCHEMA.split(", ")}


@both
def test_the_content_id_is_of_the_content_not_of_the_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    one = probe(_made(kind, tmp_path / "a", _tables()), "auto")
    same = probe(_made(kind, tmp_path / "b", _tables()), "auto")
    changed = _with(KERNEL, "end", pa.array([150, 271], pa.int64()))
    assert one.content_id == same.content_id
    assert probe(_made(kind, tmp_path / "c", changed), "auto").content_id != one.content_id


@both
def test_another_format_than_asked_for_is_refused(kind: str, tmp_path: Path) -> None:
    other = "nsys-sqlite" if kind == "parquet" else "nsys-parquet"
    assert f"is nsys-{kind}, but --format {other}" in _reason(_made(kind, tmp_path, _tables()), other)


@both
@pytest.mark.parametrize(
    ("table", "text"), [(KERNEL, f"no kernel table: {KERNEL}"), ("StringIds", "StringIds")]
)
def test_an_absent_table_is_named(kind: str, table: str, text: str, tmp_path: Path) -> None:
    tables = _tables()
    del tables[table]
    assert text in _reason(_made(kind, tmp_path, tables))


@both
def test_an_empty_kernel_table_has_no_launches(kind: str, tmp_path: Path) -> None:
    tables = _tables()
    tables[KERNEL] = tables[KERNEL].slice(0, 0)
    assert "no kernel launches" in _reason(_made(kind, tmp_path, tables))


@both
@pytest.mark.parametrize("column", ["start", "end", "demangledName"])
def test_an_absent_or_empty_required_column_is_named(kind: str, column: str, tmp_path: Path) -> None:
    tables = _tables()
    tables[KERNEL] = tables[KERNEL].drop_columns([column])
    (tmp_path / "absent").mkdir()
    assert f"has no column {column}" in _reason(_made(kind, tmp_path / "absent", tables))
    empty = _with(KERNEL, column, pa.nulls(2))
    assert f"column {column} of {KERNEL} has type null" in _reason(_made(kind, tmp_path, empty))


@both
@pytest.mark.parametrize(
    "values",
    [
        pa.array(["1", "2"]),
        pa.array([1.5, 2.5]),
        pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal128(10, 1)),
    ],
    ids=["text", "real", "decimal"],
)
@pytest.mark.parametrize("column", ["start", "globalPid", "correlationId"])
def test_a_column_that_is_no_integer_is_named(
    kind: str, values: pa.Array, column: str, tmp_path: Path
) -> None:
    reason = _reason(_made(kind, tmp_path, _with(KERNEL, column, values)))
    assert reason.startswith(f"column {column} of {KERNEL} has type ")
    assert "expected an integer" in reason


@both
@pytest.mark.parametrize(
    "kind_of_integer",
    [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()],
    ids=str,
)
def test_any_width_of_integer_is_read(kind: str, kind_of_integer: pa.DataType, tmp_path: Path) -> None:
    values = pa.array([1, 2], kind_of_integer)
    assert probe(_made(kind, tmp_path, _with(KERNEL, "start", values)), "auto").reason is None


def test_whole_decimals_are_read(tmp_path: Path) -> None:
    for digits in (20, 38):
        values = pa.array([Decimal(2**63), Decimal(5)], pa.decimal128(digits, 0))
        source = _parquet(tmp_path / str(digits), _with(KERNEL, "globalPid", values))
        found = probe(source, "auto")
        assert found.reason is None
        assert json.loads(str(found.kernel_columns))["globalPid"] == f"decimal128({digits}, 0)"


@both
def test_an_optional_column_without_any_value_is_left_out(kind: str, tmp_path: Path) -> None:
    found = probe(_made(kind, tmp_path, _with(KERNEL, "graphNodeId", pa.nulls(2))), "auto")
    assert found.reason is None
    assert "graphNodeId" not in json.loads(str(found.kernel_columns))


def test_text_and_numbers_in_one_sqlite_column_are_refused(tmp_path: Path) -> None:
    source = _sqlite(tmp_path / "x.sqlite", _tables())
    with closing(sqlite3.connect(source.uri)) as database, database:
        database.execute(f"UPDATE {KERNEL} SET start = 'sk-SECRET' WHERE start = 100")
    assert "column start" in _reason(source)
    assert "SECRET" not in _reason(source)


@both
def test_names_that_are_numbers_are_refused(kind: str, tmp_path: Path) -> None:
    reason = _reason(_made(kind, tmp_path, _with("StringIds", "value", pa.array([5]))))
    assert "column value of StringIds" in reason
    reason = _reason(Source("x", str(tmp_path / "nowhere"), is_folder=False))
    assert reason.startswith("cannot be read: ")


def test_a_file_that_is_no_trace_is_told_what_it_should_be(tmp_path: Path) -> None:
    for content, text in [
        (b"", "the file is empty"),
        (b"PAR1" + bytes(100), "a single Parquet table; name the folder"),
        (b"some text", "not a trace format that is known here"),
        (b"SQLite format 3", "not a trace format that is known here"),
    ]:
        path = tmp_path / "file"
        path.write_bytes(content)
        assert text in _reason(Source("file", str(path), is_folder=False))


def test_a_sqlite_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    source = _sqlite(tmp_path / "x.sqlite", _tables())
    whole = Path(source.uri).read_bytes()
    for size in [16, 50, 100, 101, 4096, len(whole) // 2, len(whole) - 1]:
        Path(source.uri).write_bytes(whole[:size])
        assert "copy it again" in _reason(source)


def test_a_damaged_sqlite_file_is_refused(tmp_path: Path) -> None:
    source = _sqlite(tmp_path / "x.sqlite", _tables())
    whole = bytearray(Path(source.uri).read_bytes())
    whole[100:] = b"\xa5" * (len(whole) - 100)
    Path(source.uri).write_bytes(whole)
    assert "damaged" in _reason(source)


@pytest.mark.parametrize("table", [KERNEL, "StringIds"])
def test_a_parquet_table_cut_anywhere_is_refused(table: str, tmp_path: Path) -> None:
    source = _parquet(tmp_path / "report", _tables())
    path = tmp_path / "report" / f"{table}.parquet"
    whole = path.read_bytes()
    for size in [0, 4, 12, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert f"{table}.parquet is cut or not a Parquet file" in _reason(source)


def test_table_files_are_found_whatever_their_case(tmp_path: Path) -> None:
    source = _parquet(tmp_path / "report", _tables())
    path = tmp_path / "report" / f"{KERNEL}.parquet"
    path.rename(path.with_name(f"{KERNEL.lower()}.PARQUET"))
    assert probe(source, "auto").reason is None


@both
@pytest.mark.parametrize(
    "context",
    [
        {"META_DATA_EXPORT": pa.table({"name": ["EXPORT_SCHEMA_VERSION"], "value": [3]})},
        {"META_DATA_EXPORT": pa.table({"name": ["EXPORT_SCHEMA_VERSION"], "value": pa.nulls(1)})},
        {"META_DATA_EXPORT": pa.table({"other": [3]})},
        {"TARGET_INFO_GPU": pa.table({"name": [3]})},
        {"TARGET_INFO_GPU": pa.table({"id": [3]})},
        {"TARGET_INFO_SESSION_START_TIME": pa.table({"utcEpochNs": ["soon"]})},
        {"TARGET_INFO_SESSION_START_TIME": pa.table({"utcEpochNs": pa.array([2**64 - 1], pa.uint64())})},
        {"META_DATA_EXPORT": pa.table({"name": [], "value": []})},
    ],
    ids=["number", "null", "other", "gpu number", "gpu id", "text time", "wide time", "empty"],
)
def test_odd_context_tables_never_spoil_a_source(kind: str, context: Tables, tmp_path: Path) -> None:
    found = probe(_made(kind, tmp_path, {**_tables(), **context}), "auto")
    assert found.reason is None
    _check_types(found)


def test_context_tables_that_are_broken_never_spoil_a_source(tmp_path: Path) -> None:
    source = _parquet(tmp_path / "report", _tables())
    (tmp_path / "report" / "META_DATA_EXPORT.parquet").write_bytes(b"PAR1")
    not_utf8 = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"name": not_utf8}), tmp_path / "report" / "TARGET_INFO_GPU.parquet")
    found = probe(source, "auto")
    assert (found.reason, found.producer_version) == (None, None)
    _check_types(found)


def _check_types(found: Probe) -> None:
    """As the columns of PROBE_SCHEMA take them."""
    for column in PROBE_SCHEMA.split(", "):
        name, kind = column.split()
        value = found.row(0)[name]
        if kind == "BIGINT":
            assert value is None or (type(value) is int and -(2**63) <= value < 2**63), name
        else:
            assert value is None or type(value) is {"STRING": str, "BOOLEAN": bool, "DOUBLE": float}[kind], (
                name
            )


def test_differing_gpus_have_no_common_name(tmp_path: Path) -> None:
    tables = {**_tables(), "TARGET_INFO_GPU": pa.table({"name": ["H100", "A100"]})}
    assert probe(_parquet(tmp_path / "report", tables), "auto").gpu_name is None


def test_secrets_of_a_trace_never_leave_it(tmp_path: Path) -> None:
    spec = FleetSpec(ranks=1, layers=1, iterations=1)
    write_fleet(tmp_path / "fleet", spec, WriterOptions(plant_secrets=True))
    folder = tmp_path / "fleet" / "rank-00000"
    texts = [str(probe(Source("r", str(folder), is_folder=True), "auto"))]
    for table in (KERNEL, "StringIds", "META_DATA_EXPORT"):
        path = folder / f"{table}.parquet"
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        texts.append(str(probe(Source("r", str(folder), is_folder=True), "auto")))
        path.write_bytes(whole)
    assert sum("reason=None" in text for text in texts) == 2
    assert not any(secret in text for secret in PLANTED_SECRETS for text in texts)
