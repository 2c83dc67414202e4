"""Folders of tables that are hostile, damaged or hold launches of whole graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stemroot_spark.sources import nsys_schema as nsys
from stemroot_spark.sources.discover import Source, discover
from stemroot_spark.sources.probe import probe

N = 20_000


def write(folder: Path, **extra: pa.Table) -> Source:
    folder.mkdir(parents=True, exist_ok=True)
    start = np.cumsum(np.random.default_rng(3).integers(100, 10_000, N))
    kernels = pa.table(
        {
            "start": start,
            "end": start + 50,
            "demangledName": np.ones(N, np.int32),
            "correlationId": np.arange(N),
        }
    )
    tables = {nsys.KERNEL_TABLE: kernels, nsys.STRING_TABLE: pa.table({"id": [1], "value": ["k"]}), **extra}
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="snappy")
    return Source(folder.name, str(folder), is_folder=True)


def graphs(n: int) -> pa.Table:
    start = np.arange(n) * 1_000
    return pa.table({"start": start, "end": start + 900, "graphId": np.arange(n) % 3, "correlationId": start})


def test_launches_of_graphs_count_and_copies_are_counted_apart(tmp_path: Path) -> None:
    copies = pa.table({"start": [1, 2, 3]})
    source = write(tmp_path / "report", **{nsys.GRAPH_TABLE: graphs(7), nsys.COPY_TABLES[0]: copies})
    found = probe(source, "auto")
    assert (found.reason, found.n_rows, found.n_copies) == (None, N + 7, 3)
    assert found.graph_columns is not None


def test_a_report_of_nothing_but_graphs_is_usable(tmp_path: Path) -> None:
    source = write(tmp_path / "report", **{nsys.GRAPH_TABLE: graphs(7)})
    (tmp_path / "report" / f"{nsys.KERNEL_TABLE}.parquet").unlink()
    (tmp_path / "report" / f"{nsys.STRING_TABLE}.parquet").unlink()
    found = probe(source, "auto")
    assert (found.reason, found.n_rows, found.kernel_columns) == (None, 7, None)


def test_the_first_call_tells_of_a_window(tmp_path: Path) -> None:
    calls = pa.table({"correlationId": pa.array([90_001, 90_000, 90_007], pa.uint32())})
    assert probe(write(tmp_path / "a", **{nsys.RUNTIME_TABLE: calls}), "auto").first_call_id == 90_000
    assert probe(write(tmp_path / "b"), "auto").first_call_id is None


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_damaged_page_is_found_although_the_footer_is_whole(where: float, tmp_path: Path) -> None:
    source = write(tmp_path / "report")
    path = tmp_path / "report" / f"{nsys.KERNEL_TABLE}.parquet"
    content = bytearray(path.read_bytes())
    first = int(len(content) * where)
    content[first : first + 2_000] = b"\xa5" * 2_000
    path.write_bytes(content)
    reason = str(probe(source, "auto").reason)
    assert reason.startswith((f"{path.name} is damaged", f"{path.name} is cut"))


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "report")
    n = 20_000_000
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int8)), pa.array([5], pa.int64()))
    bomb = pa.table(dict.fromkeys(("start", "end", "demangledName"), same))
    path = tmp_path / "report" / f"{nsys.KERNEL_TABLE}.parquet"
    pq.write_table(bomb, path, compression="zstd")
    assert path.stat().st_size < 300_000
    assert "has absurd metadata" in str(probe(source, "auto").reason)


def test_links_out_of_the_source_folder_are_refused_and_not_looked_into(tmp_path: Path) -> None:
    root = tmp_path / "night"
    write(root / "good")
    write(tmp_path / "outside")
    (root / "linked").symlink_to(tmp_path / "outside")
    write(root / "table")
    table = root / "table" / f"{nsys.STRING_TABLE}.parquet"
    table.unlink()
    table.symlink_to(tmp_path / "outside" / f"{nsys.STRING_TABLE}.parquet")
    (root / "file.sqlite").symlink_to("/etc/hostname")
    (root / "notes.txt").symlink_to("/etc/hostname")
    (root / "inside").symlink_to(root / "good")
    found = {source.name: probe(source, "auto").reason for source in discover([str(root)])}
    assert found.keys() == {"good", "inside", "linked", "table", "file.sqlite"}
    assert found["good"] is None
    assert found["inside"] is None
    assert all("symbolic link out of" in str(found[name]) for name in ("linked", "table", "file.sqlite"))


def test_a_source_that_is_a_link_itself_is_what_the_operator_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert [probe(source, "auto").reason for source in discover([str(tmp_path / "link")])] == [None]
