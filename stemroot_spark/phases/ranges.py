"""NVTX events of one report -> the ranges that are iterations or phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.phases.patterns import NONE, Match, Patterns

PUSH_POP, START_END, DOMAIN_CREATE = 59, 60, 75
# End of a range that was still open when the capture ended, and text id, domain or thread of an event without one.
OPEN_END_NS = np.iinfo(np.int64).max
ABSENT = -1
# Serialised thread ids are <hardware:8><vm:8><process:24><thread:24>.
PROCESS_MASK = np.int64(~0xFFFFFF)

COLUMNS = ("process", "thread", "is_shared", "start_ns", "end_ns", "iteration", "phase")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NvtxEvents:
    """Range and domain events of one report, an entry per event in the order of the export.

    Times are ns; ``end_ns`` is OPEN_END_NS where the export has none. ``thread`` and ``end_thread`` are serialised
    thread ids, ``end_thread`` and ``domain`` ABSENT where there is none. ``name`` holds the text of the event.
    """

    event_type: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    end_thread: Ints
    domain: Ints
    name: list[str]


def matched_ranges(events: NvtxEvents, patterns: Patterns) -> pd.DataFrame:
    """Ranges whose names mean something, in ``COLUMNS``; iteration and phase are NONE where there is none.

    Of the iteration patterns only the first that matches anything in a process counts there, so that a micro-batch
    ``step 3`` inside ``iteration 12`` does not. A range without a number in its name has its position among such
    ranges of its thread, from 0 in order of start. ``is_shared`` marks start/end ranges that another thread ended:
    they belong to the process, every other range to the thread that began it. A push/pop range that was never popped
    ends with the range around it, or is open.
    """
    seen: dict[str, Match] = {}
    for name in events.name:
        if name not in seen:
            seen[name] = patterns.match(name)
    meaning = np.array([seen[name] for name in events.name], dtype=np.int64).reshape(-1, 3)
    is_range = (events.event_type == PUSH_POP) | (events.event_type == START_END)
    keep = is_range & ((meaning[:, 0] != NONE) | (meaning[:, 2] != NONE)) & _in_domains(events, patterns)
    keep &= events.end_ns > events.start_ns
    is_start_end = events.event_type == START_END
    ranges = pd.DataFrame(
        {
            "process": events.thread & PROCESS_MASK,
            "thread": events.thread,
            "is_push_pop": events.event_type == PUSH_POP,
            "is_shared": is_start_end & (events.end_thread != ABSENT) & (events.end_thread != events.thread),
            "start_ns": events.start_ns,
            "end_ns": events.end_ns,
            "rank": meaning[:, 0],
            "number": meaning[:, 1],
            "phase": meaning[:, 2],
        }
    )[keep]
    # A range around another comes before it; between equals the order of the export stays.
    order = np.lexsort((-ranges["end_ns"].to_numpy(), ranges["start_ns"].to_numpy()))
    ranges = ranges.iloc[order].reset_index(drop=True)
    ranges["iteration"] = _iterations(ranges)
    ranges["end_ns"] = _closed(ranges)
    useful = (ranges["iteration"] != NONE) | (ranges["phase"] != NONE)
    found: pd.DataFrame = ranges.loc[useful & (ranges["end_ns"] > ranges["start_ns"]), list(COLUMNS)]
    return found.reset_index(drop=True)


def _in_domains(events: NvtxEvents, patterns: Patterns) -> npt.NDArray[np.bool_]:
    if not patterns.domains:
        return np.ones(len(events.name), dtype=bool)
    process = events.thread & PROCESS_MASK
    created = np.flatnonzero(events.event_type == DOMAIN_CREATE)
    names = {(int(process[i]), int(events.domain[i])): events.name[i] for i in created}
    keys = zip(process.tolist(), events.domain.tolist(), strict=True)
    # The default domain is never created.
    return np.array([names.get(key, "") in patterns.domains for key in keys], dtype=bool)


def _iterations(ranges: pd.DataFrame) -> Ints:
    """Iteration of every range, NONE for those that are none; ranges in order of start."""
    is_iteration = ranges["rank"] != NONE
    first = ranges["rank"].where(is_iteration).groupby(ranges["process"]).transform("min")
    is_iteration &= ranges["rank"] == first
    iteration = ranges["number"].where(is_iteration, NONE).to_numpy(dtype=np.int64, copy=True)
    is_counted = (is_iteration & (ranges["number"] == NONE)).to_numpy()
    iteration[is_counted] = ranges[is_counted].groupby("thread").cumcount()
    return iteration


def _closed(ranges: pd.DataFrame) -> Ints:
    """Ends of ranges, with the end of the range around it for a push/pop range that has none."""
    end_ns = ranges["end_ns"].to_numpy(dtype=np.int64, copy=True)
    is_push_pop = ranges["is_push_pop"].to_numpy()
    start_ns = ranges["start_ns"].to_numpy()
    threads_open = ranges.loc[is_push_pop & (end_ns == OPEN_END_NS), "thread"].unique()
    for thread in threads_open:
        around: list[int] = []
        for i in np.flatnonzero(is_push_pop & (ranges["thread"] == thread).to_numpy()):
            while around and around[-1] <= start_ns[i]:
                around.pop()
            if end_ns[i] == OPEN_END_NS and around:
                end_ns[i] = around[-1]
            around.append(int(end_ns[i]))
    return end_ns
