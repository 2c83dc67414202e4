"""The Kineto reader against the json module on real traces, and against what profilers and copies do to files."""

from __future__ import annotations

import gzip
import io
import json
import os
import tracemalloc
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
from stemroot_spark.sources.events import EVENT_SCHEMA, REJECT_REASONS
from stemroot_spark.sources.kineto import is_kineto, probe_kineto, read_batches
from stemroot_spark.sources.text_stream import ReadLimits, UnusableSourceError
from tests.mutations import mutated

_DATA = Path(os.environ.get("STEMROOT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_traces = pytest.mark.skipif(not _DATA.is_dir(), reason=f"no real traces at {_DATA}")

BASE_NS = 1_751_410_836_000_000_000
KERNEL: dict[str, Any] = {
    "ph": "X",
    "cat": "kernel",
    "name": "void gemm<float, 4>(int, (anonymous namespace)::{lambda(float)#1})",
    "pid": 3,
    "tid": 7,
    "ts": 1428625731622.25,
    "dur": 18.112,
    "args": {
        "External id": 5,
        "queued": 0,
        "device": 3,
        "context": 1,
        "stream": 7,
        "correlation": 675771,
        "registers per thread": 16,
        "shared memory": 49152,
        "blocks per SM": 135.515152,
        "grid": [17888, 2, 1],
        "block": [128, 1, 1],
    },
}
SPAN = {
    "ph": "X",
    "cat": "Trace",
    "name": "PyTorch Profiler (0)",
    "pid": "Spans",
    "ts": 1428625731456.483,
    "dur": 9.5,
}
OPERATOR = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 9,
    "tid": 9,
    "ts": 5,
    "dur": 1,
    "args": {"a": []},
}
COPY = {**KERNEL, "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}


def _stream(data: str | bytes) -> io.BytesIO:
    return io.BytesIO(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)


def _trace(*events: Any, **header: Any) -> str:
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": list(events)})


def _changed(**changes: Any) -> dict[str, Any]:
    """The kernel with other members; those of None are left out, those that args have are changed there."""
    args = dict(KERNEL["args"])
    event: dict[str, Any] = {**KERNEL, "args": args}
    for name, value in changes.items():
        target = args if name in KERNEL["args"] else event
        target[name] = value
        if value is None:
            del target[name]
    return event


def _rows(data: str | bytes) -> list[dict[str, Any]]:
    table = pa.Table.from_batches(list(read_batches(_stream(data), 2)), schema=EVENT_SCHEMA)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _reason(data: str | bytes, limits: ReadLimits | None = None) -> str:
    reason = probe_kineto(_stream(data), limits).reason
    assert reason is not None
    with pytest.raises(UnusableSourceError, match=r".") as error:
        list(read_batches(_stream(data), 2, limits=limits))
    assert str(error.value) == reason
    return reason


def _times(data: str | bytes) -> list[tuple[int, int, int]]:
    """Session start, start and duration of the kernels."""
    session_ns = probe_kineto(_stream(data)).session_start_ns or 0
    return [(session_ns, row["start_ns"], row["end_ns"] - row["start_ns"]) for row in _rows(data)]


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
    data = _trace(SPAN, OPERATOR, COPY, KERNEL, baseTimeNanoseconds=BASE_NS)
    session_ns = BASE_NS + 1_428_625_731_456_483
    assert _rows(data) == [
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
    report = probe_kineto(_stream(data))
    assert (report.session_start_ns, report.n_events, report.n_copies) == (session_ns, 1, 1)
    assert report.schema_version == "1"


def test_the_base_may_stand_behind_the_events() -> None:
    text = '{"traceEvents": [%s], "displayTimeUnit": "ms", "baseTimeNanoseconds": %d}'
    assert _times(text % (json.dumps(KERNEL), BASE_NS)) == [(BASE_NS + 1_428_625_731_622_250, 0, 18_112)]


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
    assert _times(f'{{"traceEvents": [{event}]}}') == [(start_ns, 0, duration_ns)]


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
    assert _times(text) == [(expected, 0, int(dur * 1000))]


def test_a_bare_list_old_categories_and_labels_as_ids_are_read() -> None:
    old = {**KERNEL, "cat": "Kernel", "pid": "GPU 3", "tid": "stream 7", "args": {"correlation": "12"}}
    ids = {**KERNEL, "pid": "2", "tid": 5, "args": None, "ts": 1428625731700}
    rows = _rows(json.dumps([old, {**OPERATOR, "cat": "Memcpy"}, ids]))
    assert [(r["device_id"], r["stream_id"], r["correlation_id"], r["grid_x"]) for r in rows] == [
        (None, None, 12, None),
        (2, 5, None, None),
    ]


def test_cluster_and_graph_node_are_read_where_they_are_told() -> None:
    args = {**KERNEL["args"], "cluster": [2, 1, 1], "graph node id": 17}
    row = _rows(_trace({**KERNEL, "args": args}))[0]
    assert (row["cluster_x"], row["cluster_z"], row["graph_node_id"]) == (2, 1, 17)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ts": None}, "null_time"),
        ({"dur": None}, "null_time"),
        ({"ts": 0, "dur": 0}, "zero_duration"),
        ({"dur": 0.0004}, "zero_duration"),
        ({"dur": -1}, "end_before_start"),
        ({"ts": -5}, "bad_number"),
        ({"ts": float("nan")}, "bad_number"),
        ({"dur": float("inf")}, "bad_number"),
        ({"dur": float("-inf")}, "bad_number"),
        ({"ts": "soon"}, "bad_number"),
        ({"ts": True}, "bad_number"),
        ({"dur": [1]}, "bad_number"),
        ({"ts": 10**16}, "bad_number"),
        ({"dur": 10**400}, "bad_number"),
        ({"correlation": 2**63}, "bad_number"),
        ({"correlation": -(2**64)}, "bad_number"),
        ({"stream": "seven"}, "bad_number"),
        ({"device": 2**31}, "bad_number"),
        ({"device": 0.5}, "bad_number"),
        ({"grid": [1, 1]}, "bad_number"),
        ({"grid": [2**31, 1, 1]}, "bad_number"),
        ({"block": 128}, "bad_number"),
        ({"name": None}, "null_name"),
        ({"name": " "}, "null_name"),
        ({"name": {}}, "malformed_row"),
        ({"args": [1]}, "malformed_row"),
        ({"ph": "B"}, "malformed_row"),
        ({"ph": None}, "malformed_row"),
    ],
)
def test_a_bad_kernel_is_rejected_with_its_reason_and_keeps_its_place(
    changes: dict[str, Any], reason: str
) -> None:
    data = _trace(KERNEL, _changed(**changes), OPERATOR, KERNEL)
    assert [row["reject_reason"] for row in _rows(data)] == [None, reason, None]
    report = probe_kineto(_stream(data))
    assert (report.n_events, report.n_kept, dict(report.n_rejected)) == (3, 2, {reason: 1})


@pytest.mark.parametrize(
    "number", ["inf", "-inf", "nan", "-nan", "Infinity", "NaN", "-nan(ind)", "1" * 5_000]
)
@pytest.mark.parametrize("old", ["135.515152", "18.112"])
def test_numbers_that_are_none_spoil_only_what_they_measure(number: str, old: str) -> None:
    data = _trace({**KERNEL, "name": "inf, nan: infer"}, COPY, KERNEL).replace(old, number, 1)
    rows = _rows(data)
    assert [row["reject_reason"] for row in rows] == ["bad_number" if old == "18.112" else None, None]
    assert rows[0]["kernel_name"] == "inf, nan: infer"


@pytest.mark.parametrize(
    "name",
    [
        r"torch\cuda\__init__.py(219): _lazy_init",
        'torch.library.Library("_inductor_test", "IMPL")\n(1): <module>',
        "config.py(0): \x01\x1f",
        "braces } and { brackets ]",
        "ends with a backslash \\\\",
    ],
)
def test_what_python_functions_are_called_costs_no_kernel(name: str) -> None:
    function = f'{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "ts": 1, "dur": 2, "args": {{}}}}'
    data = f'{{"traceEvents": [{json.dumps(KERNEL)}, {function}, {json.dumps(KERNEL)}]}}'
    assert len(_rows(data)) == 2


def test_a_kernel_that_is_no_json_is_rejected_in_its_place() -> None:
    bad = json.dumps(KERNEL).replace("void", 'a "quoted" name')
    data = f'{{"traceEvents": [{json.dumps(KERNEL)}, {bad}, {json.dumps(KERNEL)}]}}'
    assert [row["reject_reason"] for row in _rows(data)] == [None, "malformed_row", None]


def test_a_stray_quotation_mark_never_hides_a_kernel() -> None:
    for kind in ("cpu_op", "kernel"):
        odd = json.dumps({**KERNEL, "cat": kind}).replace("void", 'an"odd')
        for events in ([odd, json.dumps(KERNEL)], [json.dumps(KERNEL), odd, json.dumps(KERNEL)]):
            assert "malformed" in _reason(f'{{"traceEvents": [{", ".join(events)}]}}')


def test_bad_bytes_and_lone_surrogates_stay_in_the_name() -> None:
    data = _trace(KERNEL).encode().replace(b"void", b"v\xff\xfed\x01\\ud800")
    row = _rows(data)[0]
    assert row["reject_reason"] is None
    assert row["kernel_name"].startswith("v\ufffd\ufffdd\x01?")


def test_deep_nesting_in_an_event_is_read() -> None:
    deep = {**KERNEL, "args": {**KERNEL["args"], "more": {"a": {"b": {"c": "}"}}}}}
    assert len(_rows(_trace({**deep, "cat": "cpu_op"}, deep))) == 1


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("is_bare", [True, False])
def test_every_cut_file_is_found(indent: int | None, is_bare: bool) -> None:
    events = [OPERATOR, KERNEL, _changed(correlation=8)]
    content = events if is_bare else {"traceEvents": events, "baseTimeNanoseconds": 12345, "traceName": "x"}
    data = json.dumps(content, indent=indent).encode()
    assert len(_rows(data)) == 2
    for size in range(1, len(data)):
        report = probe_kineto(_stream(data[:size]))
        assert (report.is_cut, report.reason is None) == (True, False)
    packed = gzip.compress(data)
    for size in range(3, len(packed), 7):
        assert probe_kineto(_stream(packed[:size])).is_cut


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("{}", "no traceEvents"),
        ('{"a": [1, {"b": null}]}', "no traceEvents"),
        ('{"traceEvents": {}}', "not a list"),
        ('{"traceEvents": [], "traceEvents": []}', "twice"),
        ('{"traceEvents": [1]}', "not an event"),
        ('{"traceEvents": []}', "no kernel launches"),
        ("[]", "no kernel launches"),
        (_trace(OPERATOR, COPY), "no kernel launches"),
        (_trace(KERNEL) + "x", "text follows"),
        (_trace(KERNEL, KERNEL).replace("}}, {", "}} {"), "malformed"),
        (_trace(KERNEL).replace('"traceEvents":', '"traceEvents"'), "malformed"),
        (_trace(KERNEL).replace("[{", "[{{"), "malformed"),
        (_trace(KERNEL, baseTimeNanoseconds="noon"), "baseTimeNanoseconds"),
        (_trace(KERNEL, baseTimeNanoseconds=2**63 - 1), "beyond 64 bits"),
        ('{"a": ' + "[" * 100_000, "nested"),
        (gzip.compress(_trace(KERNEL).encode())[:-8] + b"\0" * 8, "damaged"),
        (gzip.compress(_trace(KERNEL).encode()) + b"garbage", "damaged"),
        (b"\x1f\x8b\x08 no gzip at all", "damaged"),
    ],
)
def test_unusable_files_say_why(data: str | bytes, part: str) -> None:
    assert part in _reason(data)


def test_a_merged_trace_is_refused() -> None:
    labels = [
        {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}}
        for pid, label in ((4037, "CPU"), (0, "GPU 0"), (1, "GPU 1"))
    ]
    assert len(_rows(_trace(*labels, KERNEL))) == 1
    assert "several processes" in _reason(_trace(*labels, {**labels[0], "pid": 4045}, KERNEL))


def test_the_gpu_is_named_when_the_used_ones_agree() -> None:
    properties = [{"id": 0, "name": "A"}, {"id": 3, "name": "B"}, {"id": 4, "name": "C"}]
    on_other = _changed(device=4)
    assert probe_kineto(_stream(_trace(KERNEL, deviceProperties=properties))).gpu_name == "B"
    assert probe_kineto(_stream(_trace(KERNEL, on_other, deviceProperties=properties))).gpu_name is None
    assert probe_kineto(_stream(_trace(KERNEL, deviceProperties=[{"id": 3, "name": ""}]))).gpu_name is None


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
    report = probe_kineto(_stream(_trace(KERNEL, distributedInfo=info)))
    assert (report.rank, report.world_size) == expected


def test_chunk_borders_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = json.dumps({**KERNEL, "name": "größe"}, ensure_ascii=False).replace("135.515152", "inf")
    data = f'{{"distributedInfo": {{"rank": 12}}, "traceEvents": [{infinite}, {json.dumps(OPERATOR)}, {infinite}]}}'
    expected = _rows(data)
    for size in (1, 2, 7, 100):
        monkeypatch.setattr(text_stream, "CHUNK_BYTES", size)
        assert _rows(data) == expected
        assert _rows(gzip.compress(data.encode())) == expected


def test_members_of_gzip_and_padding_are_read_as_one() -> None:
    data = _trace(KERNEL, KERNEL).encode()
    packed = gzip.compress(data[:300]) + gzip.compress(data[300:]) + b"\0" * 512
    assert is_kineto(packed)
    assert _rows(packed) == _rows(data)


def test_bombs_end_in_a_reason_and_not_in_memory() -> None:
    blanks = gzip.compress(b'{"traceEvents": [' + b" " * (32 << 20))
    long_name = gzip.compress(b'{"traceEvents": [{"name": "' + b"x" * (32 << 20))
    tracemalloc.start()
    try:
        ratio = probe_kineto(_stream(blanks), ReadLimits(gzip_free_bytes=4 << 20)).reason
        size = probe_kineto(_stream(blanks), ReadLimits(text_bytes=8 << 20)).reason
        record = probe_kineto(_stream(long_name), ReadLimits(record_characters=2 << 20)).reason
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ratio is not None
    assert "200 times its size" in ratio
    assert size is not None
    assert "bytes of text" in size
    assert record is not None
    assert "2097152 characters" in record
    assert peak < 16 << 20


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


@pytest.mark.parametrize("text", [_trace(KERNEL), json.dumps([KERNEL]), json.dumps([KERNEL], indent=2)])
def test_traces_are_recognised_by_their_beginning(text: str) -> None:
    for data in (
        text.encode(),
        gzip.compress(text.encode()),
        text.encode("utf-8-sig"),
        text.encode("utf-16"),
    ):
        assert is_kineto(data)
        assert len(_rows(data)) == 1


def test_reasons_do_not_quote_the_file() -> None:
    secret = "hf_s3cret"
    for data in (
        secret,
        f'{{"{secret}": {secret}}}',
        f'{{"traceEvents": ["{secret}"]}}',
        _trace(KERNEL, baseTimeNanoseconds=secret),
        _trace(KERNEL, schemaVersion={"a": secret}) + secret,
        _trace({**OPERATOR, "name": secret})[:-3],
    ):
        report = probe_kineto(_stream(data))
        assert report.reason is not None
        assert secret not in repr(report)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from("ab"), values, max_size=2),
    max_leaves=4,
)
_KEYS = st.sampled_from([*KERNEL, *KERNEL["args"], "cluster", "graph node id"])


@settings(max_examples=100)
@given(
    changes=st.lists(st.dictionaries(_KEYS, _JSON, max_size=2), max_size=3),
    header=st.dictionaries(
        st.sampled_from(["distributedInfo", "deviceProperties", "schemaVersion", "x"]), _JSON, max_size=2
    ),
)
def test_whatever_stands_in_the_events_kernels_read_are_kept_or_rejected(
    changes: list[dict[str, Any]], header: dict[str, Any]
) -> None:
    data = json.dumps({**header, "traceEvents": [_changed(**change) for change in changes]})
    report = probe_kineto(_stream(data))
    if report.reason is None:
        rows = _rows(data)
        rejected = [row["reject_reason"] for row in rows if row["reject_reason"] is not None]
        assert (len(rows), len(rejected)) == (report.n_events, report.n_rejected.total())
        assert set(rejected) <= set(REJECT_REASONS)
        assert all(row["reject_reason"] or row["end_ns"] > row["start_ns"] >= 0 for row in rows)


def _json_count(data: bytes) -> int | None:
    """Kernels that the json module finds, None for what it refuses."""
    try:
        trace = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return None
    return len([e for e in events if e.get("cat") == "kernel" and e.get("ph", "X") in ("X", "B")])


def test_mutated_files_never_raise_and_never_lose_a_kernel() -> None:
    text = _trace(
        SPAN, OPERATOR, KERNEL, COPY, KERNEL, baseTimeNanoseconds=BASE_NS, distributedInfo={"rank": 1}
    )
    seeds = [
        text.encode(),
        json.dumps([KERNEL, OPERATOR, KERNEL], indent=1).encode(),
        gzip.compress(text.encode(), mtime=0),
    ]
    tokens = [
        b'"',
        b",",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\\",
        b"\x00",
        b"\xff",
        b"-",
        b"9" * 25,
        b"inf",
        b"null",
        b'"ph"',
    ]
    for data in mutated(seeds, tokens, files=2_000, most_changes=6, seed=20_261_130):
        is_kineto(data)
        report = probe_kineto(_stream(data))
        if report.reason is None:
            assert len(_rows(data)) == report.n_events
        if not data.startswith(b"\x1f") and (expected := _json_count(data)) is not None:
            assert report.n_events == expected


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
