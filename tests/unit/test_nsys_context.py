"""What an nsys export tells about its report: times, GPU, losses, windows."""

from __future__ import annotations

from typing import Any

import pytest

from stemroot_spark.sources.nsys_context import ReportContext, report_context

START_NS = 1_700_000_000_000_000_000


def context(metadata: dict[str, Any] | None = None, **tables: list[dict[str, Any]]) -> ReportContext:
    rows = [{"name": name, "value": value} for name, value in (metadata or {}).items()]
    return report_context(
        {"META_DATA_EXPORT": rows, "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": START_NS}], **tables}
    )


@pytest.mark.parametrize(
    ("metadata", "offset_ns"),
    [
        ({}, 0),
        ({"EXPORT_PARAM_TIME_SHIFT": "0", "EXPORT_PARAM_TIME_NORMALIZE": "false"}, 0),
        ({"EXPORT_PARAM_TIME_SHIFT": "-250"}, -250),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true"}, START_NS),
        ({"EXPORT_PARAM_TIME_SHIFT": "7", "EXPORT_PARAM_TIME_NORMALIZE": "true"}, START_NS + 7),
        ({"EXPORT_PARAM_TIME_SHIFT": "secret", "EXPORT_PARAM_TIME_NORMALIZE": "maybe"}, 0),
    ],
)
def test_what_the_export_added_to_times_is_told(metadata: dict[str, Any], offset_ns: int) -> None:
    found = context(metadata)
    assert (found.time_offset_ns, found.session_start_ns) == (offset_ns, START_NS)


def test_only_the_gpus_in_use_name_the_gpu() -> None:
    gpus = [
        {"id": 0, "name": "A100", "clockRate": 1_410_000_000},
        {"id": 1, "name": "H100", "clockRate": "x"},
    ]
    assert context(TARGET_INFO_GPU=gpus).gpu_name is None
    assert context(TARGET_INFO_GPU=gpus, TARGET_INFO_CUDA_DEVICE=[{"gpuId": 1}]).gpu_name == "H100"
    used = context(TARGET_INFO_GPU=gpus, TARGET_INFO_CUDA_DEVICE=[{"gpuId": 0}])
    assert (used.gpu_name, used.gpu_clock_mhz) == ("A100", 1410.0)


def test_lost_events_are_seen_and_other_diagnostics_are_not() -> None:
    lost = [{"text": "Not all CUDA events might have been collected."}]
    assert context(DIAGNOSTIC_EVENT=lost).has_lost_events
    assert not context(DIAGNOSTIC_EVENT=[{"text": "No NVTX events collected."}, {"text": 3}]).has_lost_events


@pytest.mark.parametrize(
    ("metadata", "capture", "is_window"),
    [
        ({}, {}, None),
        ({"EXPORT_PARAM_TIMES_TO_EXPORT": ""}, {"START_TRIGGER": "Immediate", "START_DELAY_MS": "0"}, None),
        ({"EXPORT_PARAM_TIMES_TO_EXPORT": "1s/2s"}, {}, True),
        ({}, {"START_DELAY_MS": "500"}, True),
        ({}, {"START_TRIGGER": "CudaProfilerApi"}, True),
    ],
)
def test_a_capture_that_says_it_is_a_window(
    metadata: dict[str, str], capture: dict[str, str], is_window: bool | None
) -> None:
    rows = [{"name": name, "value": value} for name, value in capture.items()]
    assert context(metadata, META_DATA_CAPTURE=rows).is_window is is_window
