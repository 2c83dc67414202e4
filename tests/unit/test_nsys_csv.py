"""The nsys CSV reader against real exports, headers of every generation, damaged rows and bytes."""

from __future__ import annotations

import csv
import gzip
import os
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemroot_spark.sources import text_stream
from stemroot_spark.sources.events import exact_integer, scaled_integer
from stemroot_spark.sources.nsys_csv import is_nsys_csv, probe_nsys_csv, read_batches
from stemroot_spark.sources.text_stream import UnusableSourceError
from tests.nsys_csv_texts import (
    COPY,
    EXECUTION,
    HEADER,
    KERNELS,
    NAME,
    NOISE,
    ROW,
    SUMMARIES,
    TRACE,
    csv_rows,
    csv_stream,
)

_DATA = Path(os.environ.get("STEMROOT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


needs_traces = pytest.mark.skipif(not _DATA.is_dir(), reason=f"no real traces at {_DATA}")


def _times(text: str | bytes) -> list[tuple[int, int]]:
    return [(row["start_ns"], row["end_ns"]) for row in csv_rows(text)]


def _reason(text: str | bytes) -> str:
    reason = probe_nsys_csv(csv_stream(text)).reason
    assert reason is not None
    return reason


@needs_traces
def test_bn_has_the_moments_of_its_own_summary() -> None:
    path = _DATA / "nsys_csv" / "bn_cuda_gpu_trace.csv"
    report = probe_nsys_csv(path)
    table = pa.Table.from_batches(read_batches(path, 1_000, report))
    names = np.array(table["kernel_name"].to_pylist())
    durations = table["end_ns"].to_numpy() - table["start_ns"].to_numpy()

    with (_DATA / "nsys_csv" / "bn_cuda_gpu_kern_sum.csv").open(newline="") as stream:
        summary = {row["Name"]: row for row in csv.DictReader(stream)}
    assert report.gpu_name == "NVIDIA H100 NVL"
    assert (report.n_events, report.n_kept, report.n_copies) == (4_501, 4_501, 27_005 - 4_501)
    assert set(names) == set(summary)
    for name, row in summary.items():
        own = durations[names == name]
        assert len(own) == int(row["Instances"])
        assert own.sum() == int(row["Total Time (ns)"])
        assert f"{own.mean():.1f}" == row["Avg (ns)"]
        assert f"{own.std(ddof=1) if len(own) > 1 else 0:.1f}" == row["StdDev (ns)"]


@needs_traces
def test_the_real_execution_trace_is_read_by_its_process() -> None:
    path = _DATA / "nsys_csv" / "launch_cuda_kern_exec_trace.csv"
    table = pa.Table.from_batches(read_batches(path, 64))
    with path.open(newline="") as stream:
        expected = [
            (int(row["PID"]), int(row["Kernel Start (ns)"]), int(row["Kernel Dur (ns)"]), row["Kernel Name"])
            for row in csv.DictReader(stream)
        ]
    rows = table.to_pylist()
    assert len(rows) == 500
    assert [
        (r["process_key"], r["start_ns"], r["end_ns"] - r["start_ns"], r["kernel_name"]) for r in rows
    ] == expected
    assert {(r["grid_x"], r["grid_y"], r["block_x"], r["correlation_id"]) for r in rows} == {(32, 1, 1, None)}


@needs_traces
def test_the_real_summary_is_refused() -> None:
    report = probe_nsys_csv(_DATA / "nsys_csv" / "bn_cuda_gpu_kern_sum.csv")
    assert report.reason is not None
    assert "no single launches" in report.reason


def test_every_column_lands_in_its_place() -> None:
    first, second = csv_rows(TRACE)
    assert first == {
        "process_key": 0,
        "start_ns": 1_000,
        "end_ns": 1_250,
        "kernel_name": "void gemm<float, 4>(int, (anonymous namespace)::Shape)",
        "device_id": 3,
        "context_id": 1,
        "stream_id": 13,
        "correlation_id": 7,
        "graph_node_id": None,
        "grid_x": 8,
        "grid_y": 4,
        "grid_z": 2,
        "block_x": 128,
        "block_y": 1,
        "block_z": 1,
        "dynamic_shared_memory_bytes": None,
        "cluster_x": None,
        "cluster_y": None,
        "cluster_z": None,
        "reject_reason": None,
    }
    assert second["kernel_name"] == "triton_poi_fused_0"
    report = probe_nsys_csv(csv_stream(TRACE))
    assert (report.n_events, report.n_copies, report.gpu_name) == (2, 1, "NVIDIA H100 NVL")


@pytest.mark.parametrize(
    ("start", "duration", "unit"),
    [
        ("1234567890", "4321", "ns"),
        ("1234567.890", "4.321", "us"),
        ("1234567.890", "4.321", "μs"),
        ("1234.567890", "0.004321", "ms"),
        ("1.234567890", "0.000004321", "s"),
        ("1.23456789e+00", "4.321E-06", "sec"),
        ("1234567890", "4321", "nsec"),
    ],
)
def test_every_unit_of_time_gives_the_same_ns(start: str, duration: str, unit: str) -> None:
    header = HEADER.replace("(ns)", f"({unit})")
    row = ROW.replace("1000,250", f"{start},{duration}", 1)
    assert _times(f"{header}\n{row}{NAME}\n") == [(1_234_567_890, 1_234_572_211)]


def test_the_header_of_2021_counts_the_start_in_seconds() -> None:
    header = (
        "Start(sec),Duration(nsec),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem,DymSMem,Bytes,Thru(MB/s),"
        "SrcMemKd,DstMemKd,Device,Ctx,Strm,Name"
    )
    text = f"{header}\n3.141593,250,7,8,4,2,128,1,1,32,0,0,,,,,NVIDIA A100 (0),1,7,{NAME}\n"
    assert _times(text) == [(3_141_593_000, 3_141_593_250)]
    assert probe_nsys_csv(csv_stream(text)).schema_version == "2021"


def test_the_header_of_2022_has_no_green_context() -> None:
    header = HEADER.replace("MB/s", "MBps").replace("GreenCtx,", "")
    text = f"{header}\n{ROW.replace('1,,13', '1,13')}{NAME}\n"
    assert [(row["context_id"], row["stream_id"]) for row in csv_rows(text)] == [(1, 13)]
    assert probe_nsys_csv(csv_stream(text)).schema_version == "2022"


def test_shared_memory_in_bytes_is_kept() -> None:
    text = TRACE.replace("DymSMem (MB)", "DymSMem (B)").replace("0.049", "49152")
    assert [row["dynamic_shared_memory_bytes"] for row in csv_rows(text)] == [49_152, 49_152]


def test_execution_trace_has_the_process_and_no_correlation() -> None:
    rows = csv_rows(EXECUTION)
    assert [(r["process_key"], r["start_ns"], r["end_ns"]) for r in rows] == [
        (2344, 1_000, 1_250),
        (2344, 2_000, 2_251),
    ]
    assert (rows[0]["grid_x"], rows[0]["grid_y"], rows[0]["grid_z"], rows[0]["block_x"]) == (8, 4, 2, 128)


@pytest.mark.parametrize("order", [1, -1])
def test_two_reports_of_a_run_are_not_counted_twice(order: int) -> None:
    api = "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name\n5,6,cudaLaunchKernel,0,7,1,1,20,x\n"
    summary = f'{SUMMARIES["cuda_gpu_kern_sum"]}\n100.0,501,2,250.5,250.5,250,251,0.7,"f(int, int)"\n'
    parts = [
        NOISE.format("cuda_api_trace") + api,
        NOISE.format("cuda_kern_exec_trace") + EXECUTION,
        NOISE.format("cuda_gpu_trace") + TRACE,
        NOISE.format("cuda_gpu_kern_sum") + summary,
    ]
    text = "\n".join(parts[::order])
    report = probe_nsys_csv(csv_stream(text))
    assert (report.n_events, report.n_copies, report.report_kind) == (2, 1, "cuda_gpu_trace")
    assert report.note is not None
    assert "cuda_kern_exec_trace" in report.note
    assert csv_rows(text) == csv_rows(TRACE)


def test_lines_of_another_stream_between_rows_lose_no_row() -> None:
    lines = TRACE.splitlines(keepends=True)
    text = "".join([*lines[:2], NOISE.format("cuda_gpu_kern_sum"), "\n", *lines[2:]])
    assert csv_rows(text) == csv_rows(TRACE)


def test_the_same_report_twice_is_read_once_and_two_runs_are_refused() -> None:
    assert csv_rows(f"{TRACE}\n{TRACE}") == csv_rows(TRACE)
    assert "several runs" in _reason(f"{TRACE}\n{TRACE.replace('2000,251', '2000,252')}")


@pytest.mark.parametrize("header", SUMMARIES.values(), ids=SUMMARIES)
def test_summaries_are_recognised_and_refused(header: str) -> None:
    text = f"{NOISE.format('gpukernsum')}{header}\n" + ",".join("1" for _ in header.split(","))
    assert is_nsys_csv(text.encode())
    assert "no single launches" in _reason(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no header"),
        ("hello\nworld\n", "no header"),
        (KERNELS, "no header"),
        (HEADER.replace("Start (ns)", "Start (fortnights)") + "\n" + KERNELS, "no unit of time"),
        (HEADER.replace("Start (ns)", "Start") + "\n" + KERNELS, "no unit of time"),
        (HEADER.replace("SrcMemKd", "Start (us)") + "\n" + KERNELS, "twice"),
        (HEADER, "no rows"),
        (f"{HEADER}\n{COPY}\n", "no kernel launches"),
        (
            "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid\n1,2,f,0,1,1,1\n",
            "no report of single kernels",
        ),
    ],
)
def test_files_without_launches_say_why(text: str, part: str) -> None:
    assert part in _reason(text)
    with pytest.raises(UnusableSourceError, match=part):
        list(read_batches(csv_stream(text), 10))


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16"),
        lambda text: gzip.compress(text.encode()),
        lambda text: text.encode().rstrip(b"\n") + f"\n{COPY}".encode(),
    ],
    ids=["crlf", "bom", "utf-16", "gzip", "no last newline"],
)
def test_ways_to_store_text_do_not_matter(encode: Any) -> None:
    assert is_nsys_csv(encode(TRACE))
    assert csv_rows(encode(TRACE)) == csv_rows(TRACE)


def test_chunk_borders_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    text = NOISE.format("cuda_gpu_trace") + TRACE.replace("triton", "größe")
    expected = csv_rows(text)
    for size in (1, 2, 7, 64):
        monkeypatch.setattr(text_stream, "CHUNK_BYTES", size)
        assert csv_rows(text) == expected
        assert csv_rows(gzip.compress(text.encode())) == expected


@pytest.mark.parametrize(
    "start", [b"", b"\x00\xff\x00", b'{"traceEvents": []}', b"SQLite format 3\x00", b"a,b\n1,2\n"]
)
def test_other_files_are_not_taken_for_csv(start: bytes) -> None:
    assert not is_nsys_csv(start)


def test_headers_without_end_are_refused() -> None:
    assert "more than 1000 reports" in _reason(f"{HEADER}\n" * 2_000)


@settings(max_examples=300)
@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=12),
    st.sampled_from([0, 3, 6, 9]),
)
def test_numbers_are_scaled_as_decimals_are(number: Decimal, power: int) -> None:
    expected = int(number.scaleb(power).to_integral_value(ROUND_HALF_EVEN))
    assert scaled_integer(f"{number:f}", power) == expected
    assert scaled_integer(f"{number:e}", power) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "1 2", "1,2", "0x1", "1_0", "inf", "NaN", "\u0661", "1e9999", "--1", "1e20", "."]
)
def test_what_is_no_number_of_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|range"):
        scaled_integer(text, 0)
    with pytest.raises(ValueError, match=r"number|range"):
        exact_integer(text)
