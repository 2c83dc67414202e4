"""The Kineto reader against bad kernels, cut, hostile and mutated files."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemroot_spark.sources.events import REJECT_REASONS
from stemroot_spark.sources.kineto import is_kineto, probe_kineto
from stemroot_spark.sources.text_stream import ReadLimits
from tests.kineto_texts import (
    BASE_NS,
    COPY,
    KERNEL,
    OPERATOR,
    SPAN,
    changed_kernel,
    kineto_reason,
    kineto_rows,
    kineto_stream,
    kineto_trace,
)
from tests.mutations import mutated


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
    data = kineto_trace(KERNEL, changed_kernel(**changes), OPERATOR, KERNEL)
    assert [row["reject_reason"] for row in kineto_rows(data)] == [None, reason, None]
    report = probe_kineto(kineto_stream(data))
    assert (report.n_events, report.n_kept, dict(report.n_rejected)) == (3, 2, {reason: 1})


@pytest.mark.parametrize(
    "number", ["inf", "-inf", "nan", "-nan", "Infinity", "NaN", "-nan(ind)", "1" * 5_000]
)
@pytest.mark.parametrize("old", ["135.515152", "18.112"])
def test_numbers_that_are_none_spoil_only_what_they_measure(number: str, old: str) -> None:
    data = kineto_trace({**KERNEL, "name": "inf, nan: infer"}, COPY, KERNEL).replace(old, number, 1)
    rows = kineto_rows(data)
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
    assert len(kineto_rows(data)) == 2


def test_a_kernel_that_is_no_json_is_rejected_in_its_place() -> None:
    bad = json.dumps(KERNEL).replace("void", 'a "quoted" name')
    data = f'{{"traceEvents": [{json.dumps(KERNEL)}, {bad}, {json.dumps(KERNEL)}]}}'
    assert [row["reject_reason"] for row in kineto_rows(data)] == [None, "malformed_row", None]


def test_a_stray_quotation_mark_never_hides_a_kernel() -> None:
    for kind in ("cpu_op", "kernel"):
        odd = json.dumps({**KERNEL, "cat": kind}).replace("void", 'an"odd')
        for events in ([odd, json.dumps(KERNEL)], [json.dumps(KERNEL), odd, json.dumps(KERNEL)]):
            assert "malformed" in kineto_reason(f'{{"traceEvents": [{", ".join(events)}]}}')


def test_bad_bytes_and_lone_surrogates_stay_in_the_name() -> None:
    data = kineto_trace(KERNEL).encode().replace(b"void", b"v\xff\xfed\x01\\ud800")
    row = kineto_rows(data)[0]
    assert row["reject_reason"] is None
    assert row["kernel_name"].startswith("v\ufffd\ufffdd\x01?")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("is_bare", [True, False])
def test_every_cut_file_is_found(indent: int | None, is_bare: bool) -> None:
    events = [OPERATOR, KERNEL, changed_kernel(correlation=8)]
    content = events if is_bare else {"traceEvents": events, "baseTimeNanoseconds": 12345, "traceName": "x"}
    data = json.dumps(content, indent=indent).encode()
    assert len(kineto_rows(data)) == 2
    for size in range(1, len(data)):
        report = probe_kineto(kineto_stream(data[:size]))
        assert (report.is_cut, report.reason is None) == (True, False)
    packed = gzip.compress(data)
    for size in range(3, len(packed), 7):
        assert probe_kineto(kineto_stream(packed[:size])).is_cut


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
        (kineto_trace(OPERATOR, COPY), "no kernel launches"),
        (kineto_trace(KERNEL) + "x", "text follows"),
        (kineto_trace(KERNEL, KERNEL).replace("}}, {", "}} {"), "malformed"),
        (kineto_trace(KERNEL).replace('"traceEvents":', '"traceEvents"'), "malformed"),
        (kineto_trace(KERNEL).replace("[{", "[{{"), "malformed"),
        (kineto_trace(KERNEL, baseTimeNanoseconds="noon"), "baseTimeNanoseconds"),
        (kineto_trace(KERNEL, baseTimeNanoseconds=2**63 - 1), "beyond 64 bits"),
        ('{"a": ' + "[" * 100_000, "nested"),
        (gzip.compress(kineto_trace(KERNEL).encode())[:-8] + b"\0" * 8, "damaged"),
        (gzip.compress(kineto_trace(KERNEL).encode()) + b"garbage", "damaged"),
        (b"\x1f\x8b\x08 no gzip at all", "damaged"),
    ],
)
def test_unusable_files_say_why(data: str | bytes, part: str) -> None:
    assert part in kineto_reason(data)


def test_a_merged_trace_is_refused() -> None:
    labels = [
        {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}}
        for pid, label in ((4037, "CPU"), (0, "GPU 0"), (1, "GPU 1"))
    ]
    assert len(kineto_rows(kineto_trace(*labels, KERNEL))) == 1
    assert "several processes" in kineto_reason(kineto_trace(*labels, {**labels[0], "pid": 4045}, KERNEL))


def test_bombs_end_in_a_reason_and_not_in_memory() -> None:
    blanks = gzip.compress(b'{"traceEvents": [' + b" " * (32 << 20))
    long_name = gzip.compress(b'{"traceEvents": [{"name": "' + b"x" * (32 << 20))
    tracemalloc.start()
    try:
        ratio = probe_kineto(kineto_stream(blanks), ReadLimits(gzip_free_bytes=4 << 20)).reason
        size = probe_kineto(kineto_stream(blanks), ReadLimits(text_bytes=8 << 20)).reason
        record = probe_kineto(kineto_stream(long_name), ReadLimits(record_characters=2 << 20)).reason
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


def test_reasons_do_not_quote_the_file() -> None:
    secret = "hf_s3cret"
    for data in (
        secret,
        f'{{"{secret}": {secret}}}',
        f'{{"traceEvents": ["{secret}"]}}',
        kineto_trace(KERNEL, baseTimeNanoseconds=secret),
        kineto_trace(KERNEL, schemaVersion={"a": secret}) + secret,
        kineto_trace({**OPERATOR, "name": secret})[:-3],
    ):
        report = probe_kineto(kineto_stream(data))
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
    data = json.dumps({**header, "traceEvents": [changed_kernel(**change) for change in changes]})
    report = probe_kineto(kineto_stream(data))
    if report.reason is None:
        rows = kineto_rows(data)
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
    text = kineto_trace(
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
        report = probe_kineto(kineto_stream(data))
        if report.reason is None:
            assert len(kineto_rows(data)) == report.n_events
        if not data.startswith(b"\x1f") and (expected := _json_count(data)) is not None:
            assert report.n_events == expected
