"""The Kineto reader against the json module on real traces, and against what profilers and copies do to files."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemroot_spark.fleet.kineto_writer import write_kineto
from stemroot_spark.fleet.spec import FleetSpec
from stemroot_spark.fleet.tables import PLANTED_SECRETS
from stemroot_spark.fleet.workload import Workload, kernel_table, launches
from stemroot_spark.sources import text_stream
from stemroot_spark.sources.kineto import is_kineto, probe_kineto, read_batches
from tests.kineto_texts import (
    BASE_NS,
    COPY,
    KERNEL,
    OPERATOR,
    SPAN,
    changed_kernel,
    kineto_rows,
    kineto_stream,
    kineto_times,
    kineto_trace,
)

_DATA = Path(os.environ.get("STEMROOT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


needs_traces = pytest.mark.skipif(not _DATA.is_dir(), reason=f"no real traces at {_DATA}")


@needs_traces
@pytest.mark.parametrize(
    ("name", "launches", "kernels", "communication", "rank", "world_size"),
    [
        # 8,508 launches of 168 kernels are those without the 60 launches of two NCCL kernels.
        ("trace_diff_control", 8_568, 170, 60, 3, 8),
        ("qwen_h100", 1_465, 26, 0, None, None),
        ("rank-0", 1_154, 194, 10, 0, 128),
        ("rank-1", 1_104, 183, 10, 1, 128),
    ],
)
def test_real_traces_hold_what_the_json_module_finds(
    name: str, launches: int, kernels: int, communication: int, rank: int | None, world_size: int | None
) -> None:
    path = _DATA / "kineto" / f"{name}.json.gz"
    with gzip.open(path, "rt") as stream:
        trace = json.load(stream, parse_float=str)
    expected = [
        (
            event["name"],
            int((Decimal(event["ts"]) * 1000).to_integral_value()) + trace.get("baseTimeNanoseconds", 0),
            int((Decimal(event["dur"]) * 1000).to_integral_value()),
            event["args"]["correlation"],
            event["args"]["stream"],
            event["args"]["device"],
            [*event["args"]["grid"], *event["args"]["block"]],
        )
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel"
    ]
    report = probe_kineto(path)
    rows = pa.Table.from_batches(read_batches(path, 1_000, report)).to_pylist()
    assert report.reason is None
    assert [
        (
            row["kernel_name"],
            (report.session_start_ns or 0) + row["start_ns"],
            row["end_ns"] - row["start_ns"],
            row["correlation_id"],
            row["stream_id"],
            row["device_id"],
            [row[f"{size}_{axis}"] for size in ("grid", "block") for axis in "xyz"],
        )
        for row in rows
    ] == expected
    names = Counter(row["kernel_name"] for row in rows)
    assert (report.n_events, report.n_kept, len(names)) == (launches, launches, kernels)
    assert sum(count for kernel, count in names.items() if "nccl" in kernel.lower()) == communication
    assert (report.rank, report.world_size) == (rank, world_size)
    assert report.n_copies == sum(e.get("cat") in ("gpu_memcpy", "gpu_memset") for e in trace["traceEvents"])
    assert all(row["start_ns"] >= 0 and row["reject_reason"] is None for row in rows)


def test_every_field_lands_in_its_place() -> None:
    data = kineto_trace(SPAN, OPERATOR, COPY, KERNEL, baseTimeNanoseconds=BASE_NS)
    session_ns = BASE_NS + 1_428_625_731_456_483
    assert kineto_rows(data) == [
        {
            "process_key": 0,
            "start_ns": 165_767,
            "end_ns": 183_879,
            "kernel_name": KERNEL["name"],
            "device_id": 3,
            "context_id": 1,
            "stream_id": 7,
            "correlation_id": 675_771,
            "graph_node_id": None,
            "grid_x": 17_888,
            "grid_y": 2,
            "grid_z": 1,
            "block_x": 128,
            "block_y": 1,
            "block_z": 1,
            "dynamic_shared_memory_bytes": None,
            "cluster_x": None,
            "cluster_y": None,
            "cluster_z": None,
            "reject_reason": None,
        }
    ]
    report = probe_kineto(kineto_stream(data))
    assert (report.session_start_ns, report.n_events, report.n_copies) == (session_ns, 1, 1)
    assert report.schema_version == "1"


def test_the_base_may_stand_behind_the_events() -> None:
    text = '{"traceEvents": [%s], "displayTimeUnit": "ms", "baseTimeNanoseconds": %d}'
    assert kineto_times(text % (json.dumps(KERNEL), BASE_NS)) == [
        (BASE_NS + 1_428_625_731_622_250, 0, 18_112)
    ]


@pytest.mark.parametrize(
    ("ts", "dur", "start_ns", "duration_ns"),
    [
        ("1682725898236567", "68", 1_682_725_898_236_567_000, 68_000),
        ("1682725898236567.123", "68.001", 1_682_725_898_236_567_123, 68_001),
        ("1682725898236567.1235", "68.0005", 1_682_725_898_236_567_124, 68_000),
        ("1.682725898236567123e15", "6.8e1", 1_682_725_898_236_567_123, 68_000),
        ('"1682725898236567.123"', '"68"', 1_682_725_898_236_567_123, 68_000),
    ],
)
def test_times_lose_no_digit(ts: str, dur: str, start_ns: int, duration_ns: int) -> None:
    event = json.dumps(KERNEL).replace("1428625731622.25", ts).replace("18.112", dur)
    assert kineto_times(f'{{"traceEvents": [{event}]}}') == [(start_ns, 0, duration_ns)]


@settings(max_examples=60)
@given(
    st.decimals(min_value=1, max_value=10**13, places=3),
    st.decimals(min_value=Decimal("0.001"), max_value=10**6, places=3),
    st.integers(0, 4 * 10**18),
)
def test_times_are_exact_sums(ts: Decimal, dur: Decimal, base_ns: int) -> None:
    event = json.dumps(KERNEL).replace("1428625731622.25", f"{ts:f}").replace("18.112", f"{dur:f}")
    text = f'{{"baseTimeNanoseconds": {base_ns}, "traceEvents": [{event}]}}'
    expected = int((ts * 1000).to_integral_value(ROUND_HALF_EVEN)) + base_ns
    assert kineto_times(text) == [(expected, 0, int(dur * 1000))]


def test_a_bare_list_old_categories_and_labels_as_ids_are_read() -> None:
    old = {**KERNEL, "cat": "Kernel", "pid": "GPU 3", "tid": "stream 7", "args": {"correlation": "12"}}
    ids = {**KERNEL, "pid": "2", "tid": 5, "args": None, "ts": 1428625731700}
    rows = kineto_rows(json.dumps([old, {**OPERATOR, "cat": "Memcpy"}, ids]))
    assert [(r["device_id"], r["stream_id"], r["correlation_id"], r["grid_x"]) for r in rows] == [
        (None, None, 12, None),
        (2, 5, None, None),
    ]


def test_cluster_and_graph_node_are_read_where_they_are_told() -> None:
    args = {**KERNEL["args"], "cluster": [2, 1, 1], "graph node id": 17}
    row = kineto_rows(kineto_trace({**KERNEL, "args": args}))[0]
    assert (row["cluster_x"], row["cluster_z"], row["graph_node_id"]) == (2, 1, 17)


def test_deep_nesting_in_an_event_is_read() -> None:
    deep = {**KERNEL, "args": {**KERNEL["args"], "more": {"a": {"b": {"c": "}"}}}}}
    assert len(kineto_rows(kineto_trace({**deep, "cat": "cpu_op"}, deep))) == 1


def test_the_gpu_is_named_when_the_used_ones_agree() -> None:
    properties = [{"id": 0, "name": "A"}, {"id": 3, "name": "B"}, {"id": 4, "name": "C"}]
    on_other = changed_kernel(device=4)
    assert probe_kineto(kineto_stream(kineto_trace(KERNEL, deviceProperties=properties))).gpu_name == "B"
    assert (
        probe_kineto(kineto_stream(kineto_trace(KERNEL, on_other, deviceProperties=properties))).gpu_name
        is None
    )
    assert (
        probe_kineto(kineto_stream(kineto_trace(KERNEL, deviceProperties=[{"id": 3, "name": ""}]))).gpu_name
        is None
    )


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"rank": 12, "world_size": 128}, (12, 128)),
        ({"rank": "12"}, (12, None)),
        ({"rank": -1, "world_size": "many"}, (None, None)),
        ("rank 12", (None, None)),
    ],
)
def test_rank_is_read_from_distributed_info(info: Any, expected: tuple[int | None, int | None]) -> None:
    report = probe_kineto(kineto_stream(kineto_trace(KERNEL, distributedInfo=info)))
    assert (report.rank, report.world_size) == expected


def test_chunk_borders_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = json.dumps({**KERNEL, "name": "größe"}, ensure_ascii=False).replace("135.515152", "inf")
    data = f'{{"distributedInfo": {{"rank": 12}}, "traceEvents": [{infinite}, {json.dumps(OPERATOR)}, {infinite}]}}'
    expected = kineto_rows(data)
    for size in (1, 2, 7, 100):
        monkeypatch.setattr(text_stream, "CHUNK_BYTES", size)
        assert kineto_rows(data) == expected
        assert kineto_rows(gzip.compress(data.encode())) == expected


def test_members_of_gzip_and_padding_are_read_as_one() -> None:
    data = kineto_trace(KERNEL, KERNEL).encode()
    packed = gzip.compress(data[:300]) + gzip.compress(data[300:]) + b"\0" * 512
    assert is_kineto(packed)
    assert kineto_rows(packed) == kineto_rows(data)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"SQLite format 3\x00",
        b"{}",
        b'{"a": 1}',
        b"Start (ns),Duration (ns)",
        b"\x1f\x8bx",
        b'[{"a": 1}]',
        b"[1]",
    ],
)
def test_other_files_are_not_taken_for_traces(start: bytes) -> None:
    assert not is_kineto(start)


@pytest.mark.parametrize("text", [kineto_trace(KERNEL), json.dumps([KERNEL]), json.dumps([KERNEL], indent=2)])
def test_traces_are_recognised_by_their_beginning(text: str) -> None:
    for data in (
        text.encode(),
        gzip.compress(text.encode()),
        text.encode("utf-8-sig"),
        text.encode("utf-16"),
    ):
        assert is_kineto(data)
        assert len(kineto_rows(data)) == 1


@pytest.mark.parametrize("name", ["rank-1.json", "rank-1.json.gz"])
def test_a_rank_of_a_fleet_reads_as_its_launches(name: str, tmp_path: Path) -> None:
    spec = FleetSpec(ranks=3, iterations=2, layers=2, seed=5)
    totals = write_kineto(tmp_path / name, Workload(spec), 1, plant_secrets=True)
    report = probe_kineto(tmp_path / name)
    rows = pa.Table.from_batches(read_batches(tmp_path / name, 100, report)).to_pylist()
    rows.sort(key=lambda row: row["correlation_id"])
    expected, kernels = launches(spec, 1), kernel_table(spec)
    assert [row["end_ns"] - row["start_ns"] for row in rows] == expected.duration_ns.tolist()
    assert [row["kernel_name"] for row in rows] == [kernels[i].name for i in expected.kernel_index]
    assert (report.rank, report.world_size, report.n_copies) == (1, 3, totals.n_copies)
    assert (report.n_kept, totals.n_kernels) == (len(rows), len(rows))
    assert not any(secret in f"{report}{rows}" for secret in PLANTED_SECRETS)
    (tmp_path / "again").mkdir()
    write_kineto(tmp_path / "again" / name, Workload(spec), 1, plant_secrets=True)
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()
