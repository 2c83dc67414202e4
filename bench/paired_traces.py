"""Pairs of runs inside the real traces: ranks of one job, and successive iterations of one process."""

from __future__ import annotations

import gzip
import json
import sqlite3
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from stemroot_spark.evaluation.population import Matched, Population, match
from tests import traces


class Pair(NamedTuple):
    """A profile and its partner: what they are, and the profile's launches with the partner's times."""

    name: str
    matched: Matched


def population(frame: pd.DataFrame) -> Population:
    """Launches in order, with their rank; the n-th launch of a kernel in a rank is its n-th invocation."""
    numbered = frame.assign(
        launch_index=frame.groupby("rank").cumcount(),
        kernel_invocation=frame.groupby(["rank", "kernel_id"]).cumcount(),
    )
    return Population.of_frame(numbered)


def whole(name: str) -> Population:
    """A trace of tests.traces.TRACES as the launches of one rank, in the order of the file."""
    return population(traces.launches(name).assign(rank=0))


def pairs(name: str) -> list[Pair]:
    """Pairs by a name of PAIRS; a step is one training iteration, and trace_diff has six."""
    if name == "h100 ranks":
        return _between(name, [part for _, part in _h100().groupby("rank")])
    if name == "kineto ranks":
        return _between(name, [_kineto("rank-0"), _kineto("rank-1")])
    if name == "kineto steps":
        return [*_steps("rank-0"), *_steps("rank-1")]
    if name == "trace_diff halves":
        frame = _kineto("trace_diff_control")
        half = frame["step"].max() // 2
        return _between(name, [frame[frame["step"].between(0, half)], frame[frame["step"] > half]])
    return _steps("trace_diff_control")


PAIRS = ("h100 ranks", "kineto ranks", "kineto steps", "trace_diff steps", "trace_diff halves")


def triples(name: str) -> list[Pair]:
    """By a name of TRIPLES: a profile with its second profile in repeat_ns, and the times of a third run."""
    if name == "kineto steps, other rank":
        first, second = (_step_runs(rank) for rank in ("rank-0", "rank-1"))
        chosen = [(*a, y) for a, b in ((first, second), (second, first)) for y in b]
    else:
        runs = _step_runs("trace_diff_control")
        chosen = list(zip(runs, runs[1:], runs[2:], strict=False))
    return [
        Pair(f"{name} {i}", match(profile.with_repeat(repeat), third))
        for i, (profile, repeat, third) in enumerate(chosen)
    ]


TRIPLES = ("kineto steps, other rank", "trace_diff steps")


def _steps(name: str) -> list[Pair]:
    runs = _step_runs(name)
    return [Pair(f"{name} steps {i}", match(a, b)) for i, (a, b) in enumerate(pairwise(runs))]


def _step_runs(name: str) -> list[Population]:
    """Training iterations of a process, each a run of its own."""
    frame = _kineto(name)
    parts = [part for _, part in frame[frame["step"] >= 0].groupby("step")]
    return [population(part.assign(rank=0)) for part in parts]


def _between(name: str, parts: list[pd.DataFrame]) -> list[Pair]:
    runs = [population(part.assign(rank=0)) for part in parts]
    return [Pair(f"{name} {i}", match(a, b)) for i, (a, b) in enumerate(pairwise(runs))]


def _ids(frame: pd.DataFrame) -> pd.DataFrame:
    """Names and configurations as numbers; communication and launches without a duration left out."""
    kept = frame[(frame["duration_ns"] > 0) & ~frame["kernel"].str.lower().str.contains("nccl")]
    return kept.assign(
        **{column: kept[source].map(_number) for source, column in _NUMBERED.items()},
    )


_NUMBERED = {"kernel": "kernel_id", "config": "launch_config_id"}


def _number(text: str) -> int:
    """The same number for the same text in every file."""
    return zlib.crc32(text.encode("utf-8"))


@cache
def _h100() -> pd.DataFrame:
    path = traces.DATA / "nsys_sqlite" / "h100_2rank_llm_2026.2.sqlite"
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    try:
        rows = connection.execute(
            "SELECT globalPid, value, end - start, gridX, gridY, gridZ, blockX, blockY, blockZ, dynamicSharedMemory"
            " FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
            " ORDER BY globalPid, correlationId, start"
        ).fetchall()
    finally:
        connection.close()
    frame = pd.DataFrame(
        [(row[0], row[1], row[2], str(row[3:])) for row in rows],
        columns=["process", "kernel", "duration_ns", "config"],
    )
    return _ids(frame).assign(rank=lambda f: pd.factorize(f["process"], sort=True)[0])


@cache
def _kineto(name: str) -> pd.DataFrame:
    """Launches by correlation; step: number of the ProfilerStep in which the launch was called, -1 outside."""
    with gzip.open(traces.DATA / "kineto" / f"{name}.json.gz", "rt") as stream:
        events = json.load(stream)["traceEvents"]
    steps = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep")
    )
    called = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") == "cuda_runtime" and "correlation" in event.get("args", {})
    }
    rows = list(_kernels(events, steps, called))
    frame = pd.DataFrame(rows, columns=["correlation", "step", "kernel", "duration_ns", "config"])
    return _ids(frame.sort_values("correlation", kind="stable")).assign(rank=0)


def _kernels(
    events: list[dict[str, object]], steps: list[tuple[float, float]], called: dict[object, float]
) -> Iterator[tuple[object, int, object, int, str]]:
    for event in events:
        if event.get("cat") != "kernel":
            continue
        args, duration = event["args"], event["dur"]
        if not isinstance(args, dict) or not isinstance(duration, int | float):
            continue
        correlation = args.get("correlation")
        ts = called.get(correlation, -1.0)
        inside = [i for i, (start, end) in enumerate(steps) if start <= ts < end]
        config = f"{args.get('grid')} {args.get('block')} {args.get('shared memory')}"
        yield correlation, inside[0] if inside else -1, event["name"], round(duration * 1000), config
