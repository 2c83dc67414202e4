"""Readers of the real traces that lie beside the project, for tests and benchmarks that skip without them."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from stemroot_spark.histogram import histogram_of

DATA = Path(os.environ.get("STEMROOT_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))

TRACES = (
    "h100_2rank",
    "h100_2rank with communication",
    "rodinia_gaussian",
    "trace_diff_control",
    "qwen_h100",
    "bn",
)
# Those, and the small ones: a few launches of one kernel up to a Kineto trace of one more rank.
EVERY_TRACE = (*TRACES, "rank-0", "rank-1", "saxpy", "cuda_graph", "launch_kern_exec")


class _Launch(NamedTuple):
    kernel: str
    config: tuple[str, ...]
    duration_ns: int


def _sqlite(name: str) -> Iterator[_Launch]:
    connection = sqlite3.connect(f"file:{DATA / 'nsys_sqlite' / name}?immutable=1", uri=True)
    try:
        rows = connection.execute(
            "SELECT value, end - start, gridX, gridY, gridZ, blockX, blockY, blockZ, dynamicSharedMemory"
            " FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
        ).fetchall()
    finally:
        connection.close()
    for kernel, duration, *config in rows:
        yield _Launch(kernel, tuple(map(str, config)), int(duration))


def _csv(name: str) -> Iterator[_Launch]:
    columns = ("GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ", "DymSMem (MB)")
    with (DATA / "nsys_csv" / name).open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["GrdX"]:
                yield _Launch(row["Name"], tuple(row[c] for c in columns), int(row["Duration (ns)"]))


def _kernel_exec(name: str) -> Iterator[_Launch]:
    with (DATA / "nsys_csv" / name).open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["Kernel Dur (ns)"]:
                config = row["GridXYZ"], row["BlockXYZ"]
                yield _Launch(row["Kernel Name"], config, int(row["Kernel Dur (ns)"]))


def _kineto(name: str) -> Iterator[_Launch]:
    with gzip.open(DATA / "kineto" / name, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    for event in events:
        if event.get("cat") == "kernel":
            args = event.get("args", {})
            config = tuple(str(args.get(key)) for key in ("grid", "block"))
            yield _Launch(event["name"], config, round(event["dur"] * 1000))


def _launches(name: str) -> Iterable[_Launch]:
    match name:
        case "h100_2rank" | "h100_2rank with communication":
            return _sqlite("h100_2rank_llm_2026.2.sqlite")
        case "rodinia_gaussian":
            return _sqlite("rodinia_gaussian_2022.4.sqlite")
        case "saxpy":
            return _sqlite("saxpy_mpi_2022.2.sqlite")
        case "cuda_graph":
            return _sqlite("cuda_graph_2025.5.sqlite")
        case "bn":
            return _csv("bn_cuda_gpu_trace.csv")
        case "launch_kern_exec":
            return _kernel_exec("launch_cuda_kern_exec_trace.csv")
        case _:
            return _kineto(f"{name}.json.gz")


@cache
def launches(name: str) -> pd.DataFrame:
    """Launches of a trace in EVERY_TRACE: kernel_id and launch_config_id numbered by name, duration_ns above 0.

    Communication kernels are left out unless the name of the trace asks for them.
    """
    rows = [
        row
        for row in _launches(name)
        if row.duration_ns > 0 and ("with communication" in name or "nccl" not in row.kernel.lower())
    ]
    frame = pd.DataFrame(rows, columns=list(_Launch._fields))
    return pd.DataFrame(
        {
            "kernel_id": pd.factorize(frame["kernel"], sort=True)[0].astype(np.int64),
            "launch_config_id": pd.factorize(frame["config"], sort=True)[0].astype(np.int64),
            "duration_ns": frame["duration_ns"].astype(np.int64),
        }
    )


@cache
def histogram(name: str) -> pd.DataFrame:
    """Histogram rows of all kernels of a trace, as the moments job writes them."""
    return histogram_of_launches(launches(name))


def histogram_of_launches(frame: pd.DataFrame) -> pd.DataFrame:
    """Histogram rows of launches: kernel_id, launch_config_id, duration_ns."""
    parts = [
        histogram_of(rows["duration_ns"], rows["launch_config_id"]).assign(kernel_id=kernel)
        for kernel, rows in frame.groupby("kernel_id", sort=True)
    ]
    return pd.concat(parts, ignore_index=True)
