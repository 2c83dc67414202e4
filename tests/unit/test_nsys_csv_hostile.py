"""The nsys CSV reader against bad rows, cut, hostile and mutated files."""

from __future__ import annotations

import csv
import gzip
import io

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemroot_spark.sources.events import REJECT_REASONS
from stemroot_spark.sources.nsys_csv import is_nsys_csv, probe_nsys_csv, read_batches
from stemroot_spark.sources.text_stream import ReadLimits
from tests.mutations import mutated
from tests.nsys_csv_texts import (
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


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        ("1000,250,7", ",250,7", "null_time"),
        ("1000,250,7", "1000,,7", "null_time"),
        ("1000,250,7", '"1,000",250,7', "bad_number"),
        ("1000,250,7", '"1000,5",250,7', "bad_number"),
        ("1000,250,7", "1000,5,250,7", "malformed_row"),
        ("1000,250,7", "1.000.000,250,7", "bad_number"),
        ("1000,250,7", "0x10,250,7", "bad_number"),
        ("1000,250,7", "inf,250,7", "bad_number"),
        ("1000,250,7", "nan,250,7", "bad_number"),
        ("1000,250,7", "1_000,250,7", "bad_number"),
        ("1000,250,7", "1000,1e300,7", "bad_number"),
        ("1000,250,7", f"{2**63 - 100},250,7", "bad_number"),
        ("1000,250,7", "1000,-1,7", "end_before_start"),
        ("1000,250,7", "1000,0,7", "zero_duration"),
        ("1000,250,7", "1000,0.4,7", "zero_duration"),
        ("1000,250,7", f"1000,250,{2**63}", "bad_number"),
        ("8,4,2,128", "8,,2,128", "bad_number"),
        ("8,4,2,128", f"{2**31},4,2,128", "bad_number"),
        (NAME, "", "null_name"),
        (NAME, '"  "', "null_name"),
        ("1,,13,", "1,,13", "malformed_row"),
        (ROW + NAME, "," * 20, "bad_number"),
        (ROW + NAME, "???", "malformed_row"),
    ],
)
def test_a_bad_row_is_rejected_with_its_reason_and_keeps_its_place(good: str, bad: str, reason: str) -> None:
    text = f"{TRACE}{ROW.replace('1000', '3000')}f()\n".replace(good, bad, 1)
    rows = csv_rows(text)
    assert [row["reject_reason"] for row in rows] == [reason, None, None]
    report = probe_nsys_csv(csv_stream(text))
    assert (report.n_events, report.n_kept, dict(report.n_rejected)) == (3, 2, {reason: 1})


def test_rows_swallowed_by_a_missing_quotation_mark_are_counted() -> None:
    open_name = NAME.rstrip('"')
    swallowed = ROW.replace("1000", "1500") + '"plain"\n'
    text = f"{HEADER}\n{ROW}{open_name}\n{swallowed}{ROW}f()\n"
    assert [row["reject_reason"] for row in csv_rows(text)] == ["malformed_row", "malformed_row", None]


def test_every_beginning_of_a_file_gives_true_rows_or_a_reason() -> None:
    data = TRACE.encode()
    whole = csv_rows(TRACE)
    for size in range(len(data)):
        report = probe_nsys_csv(csv_stream(data[:size]))
        if report.reason is None:
            assert csv_rows(data[:size]) == whole[: report.n_events]
            # Cut where a line ends, or within a closing quotation.
            assert report.n_events < 2 or data[size : size + 1] == b"\n"
    inside_name = probe_nsys_csv(csv_stream(data[:-5]))
    assert inside_name.is_cut
    inside_name.reason = None
    rows = pa.Table.from_batches(read_batches(csv_stream(data[:-5]), 10, inside_name)).to_pylist()
    assert [row["reject_reason"] for row in rows] == [None, "malformed_row"]


def test_an_endless_line_ends_in_a_reason() -> None:
    limits = ReadLimits(record_characters=1_000)
    report = probe_nsys_csv(csv_stream(TRACE + "x" * 3_000_000), limits)
    assert report.reason is not None
    assert "more than 1000 characters" in report.reason


def test_reasons_do_not_quote_the_file() -> None:
    secret = "hf_s3cret"
    for text in (
        f"{secret}\n",
        f"{HEADER}\n{secret}",
        f'{HEADER}\n{ROW}"{secret}',
        HEADER.replace("(ns)", f"({secret})") + "\n" + KERNELS,
        f"{SUMMARIES['gpukernsum']}\n{secret}\n",
    ):
        report = probe_nsys_csv(csv_stream(text))
        assert report.reason is not None
        assert secret not in repr(report)


_CELLS = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "1e3", "nan", '"', '""', "1,5", "a\nb", "[CUDA memset]", "  ", "9" * 30, "½"]
    ),
    st.text(max_size=6),
)


_CHANGES = st.dictionaries(st.integers(0, 20), _CELLS, max_size=4)


@settings(max_examples=120)
@given(
    rows=st.lists(st.tuples(_CHANGES, st.integers(0, 30)), max_size=4),
    header=st.one_of(st.just(HEADER), st.permutations(HEADER.split(",")).map(",".join)),
    header_changes=_CHANGES,
    is_quoted=st.booleans(),
)
def test_whatever_stands_in_the_cells_rows_read_are_kept_or_rejected(
    rows: list[tuple[dict[int, str], int]], header: str, header_changes: dict[int, str], is_quoted: bool
) -> None:
    good = f"{ROW}gemm(int)".split(",")
    lines = [[changes.get(n, cell) for n, cell in enumerate(good)][:width] for changes, width in rows]
    if header_changes.keys() & {5, 6}:
        header = ",".join(header_changes.get(n, cell) for n, cell in enumerate(header.split(",")))
    target = io.StringIO()
    if is_quoted:
        csv.writer(target).writerows(lines)
    else:
        target.write("\n".join(map(",".join, lines)))
    data = f"{header}\n{target.getvalue()}\n".encode("utf-8", "surrogatepass")
    report = probe_nsys_csv(csv_stream(data))
    if report.reason is None:
        read = csv_rows(data)
        rejected = [row["reject_reason"] for row in read if row["reject_reason"] is not None]
        assert (len(read), len(rejected)) == (report.n_events, report.n_rejected.total())
        assert set(rejected) <= set(REJECT_REASONS)
        for row in read:
            assert row["reject_reason"] or (row["end_ns"] > row["start_ns"] and row["kernel_name"].strip())


def test_mutated_files_never_raise() -> None:
    seeds = [
        (NOISE.format("cuda_gpu_trace") + TRACE).encode(),
        EXECUTION.encode(),
        gzip.compress(TRACE.encode(), mtime=0),
    ]
    tokens = [b'"', b",", b"\n", b"\r", b"\x00", b"\xff", b"-", b"9" * 25]
    for data in mutated(seeds, tokens, files=1_500, most_changes=8, seed=20_261_130):
        is_nsys_csv(data)
        report = probe_nsys_csv(csv_stream(data))
        if report.reason is None:
            assert len(csv_rows(data)) == report.n_events
