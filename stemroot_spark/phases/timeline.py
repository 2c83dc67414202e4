"""Ranges -> what holds on a thread at a time, as sorted step functions that calls are looked up in.

A step function costs as much as the ranges it comes from, and a call a binary search: calls need no order and are
looked up in batches, so that memory depends on the matched ranges of a report and not on its launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from stemroot_spark.phases.patterns import NONE
from stemroot_spark.phases.ranges import PROCESS_MASK, Ints


@dataclass(frozen=True)
class Steps:
    """A step function of time: ``labels[i]`` holds from ``starts_ns[i]`` until the next start."""

    starts_ns: Ints
    labels: Ints

    @staticmethod
    def of(start_ns: Ints, end_ns: Ints, label: Ints) -> Steps:
        """The label of the range begun last among those that hold, [start, end); NONE where there is none.

        For nested ranges that is the innermost one. Ranges are sorted by start, outer ones first.
        """
        starts, labels = [np.iinfo(np.int64).min], [NONE]

        def step(time_ns: int, value: int) -> None:
            if starts[-1] == time_ns:
                labels[-1] = value
            elif labels[-1] != value:
                starts.append(time_ns)
                labels.append(value)

        begun: list[tuple[int, int]] = []

        def end_until(time_ns: int) -> None:
            while begun and begun[-1][0] <= time_ns:
                ended_ns = begun.pop()[0]
                # Start/end ranges may overlap: one below may have ended before the one above it.
                while begun and begun[-1][0] <= ended_ns:
                    begun.pop()
                step(ended_ns, begun[-1][1] if begun else NONE)

        for start, end, value in zip(start_ns.tolist(), end_ns.tolist(), label.tolist(), strict=True):
            end_until(start)
            begun.append((end, value))
            step(start, value)
        end_until(np.iinfo(np.int64).max)
        return Steps(np.array(starts, dtype=np.int64), np.array(labels, dtype=np.int64))

    def at(self, time_ns: Ints) -> Ints:
        """Labels at times."""
        found: Ints = self.labels[np.searchsorted(self.starts_ns, time_ns, side="right") - 1]
        return found


class _Lane(NamedTuple):
    """Iterations and phases of some ranges over time."""

    iteration: Steps
    phase: Steps

    @staticmethod
    def of(ranges: pd.DataFrame) -> _Lane:
        columns = []
        for name in ("iteration", "phase"):
            rows = ranges[ranges[name] != NONE]
            columns.append(Steps.of(*(rows[column].to_numpy() for column in ("start_ns", "end_ns", name))))
        return _Lane(*columns)


class Labeller:
    """Iteration and phase of API calls of one report, by the ranges of their processes.

    A call takes both from the innermost ranges of its own thread, and from shared ranges of its process. What is
    missing then comes from the ranges of the other threads of the process, unless the thread has iterations of its
    own: PyTorch launches the backward pass from an autograd thread, while the ranges are the main thread's.
    """

    def __init__(self, ranges: pd.DataFrame) -> None:
        """``ranges`` are those of ``matched_ranges``, in its order."""
        self._of_process: dict[int, _Lane] = {}
        self._shared: dict[int, _Lane] = {}
        self._of_thread: dict[int, _Lane] = {}
        own = ranges[~ranges["is_shared"]]
        self._independent = set(own.loc[own["iteration"] != NONE, "thread"].tolist())
        for process in ranges["process"].unique().tolist():
            rows = ranges[ranges["process"] == process]
            self._of_process[process] = _Lane.of(rows)
            self._shared[process] = _Lane.of(rows[rows["is_shared"]])
            for thread in rows.loc[~rows["is_shared"], "thread"].unique().tolist():
                self._of_thread[thread] = _Lane.of(rows[rows["is_shared"] | (rows["thread"] == thread)])

    def label(self, thread: Ints, start_ns: Ints) -> tuple[Ints, Ints]:
        """Iteration and phase of calls by the thread that made them and the time they began, NONE for neither."""
        iteration = np.full(len(thread), NONE, dtype=np.int64)
        phase = iteration.copy()
        for one in np.unique(thread).tolist():
            rows = np.flatnonzero(thread == one)
            iteration[rows], phase[rows] = self._on_thread(one, start_ns[rows])
        return iteration, phase

    def _on_thread(self, thread: int, start_ns: Ints) -> tuple[Ints, Ints]:
        process = thread & int(PROCESS_MASK)
        lanes = [self._of_thread.get(thread, self._shared.get(process))]
        if thread not in self._independent:
            lanes.append(self._of_process.get(process))
        found = [np.full(len(start_ns), NONE, dtype=np.int64)] * 2
        for lane in lanes:
            if lane is not None:
                found = [
                    np.where(have == NONE, steps.at(start_ns), have)
                    for have, steps in zip(found, lane, strict=True)
                ]
        return found[0], found[1]


@dataclass(frozen=True)
class CallLabels:
    """Iteration and phase of calls, by correlation id in ascending order, one entry per id."""

    correlation_id: Ints
    start_ns: Ints
    iteration: Ints
    phase: Ints

    @staticmethod
    def none() -> CallLabels:
        """No calls."""
        return CallLabels(*(np.empty(0, dtype=np.int64) for _ in range(4)))

    @staticmethod
    def of(correlation_id: Ints, start_ns: Ints, iteration: Ints, phase: Ints) -> CallLabels:
        """Calls that are in an iteration or a phase; of calls with one id, which no report should have, the first."""
        rows = np.flatnonzero((iteration != NONE) | (phase != NONE))
        rows = rows[np.lexsort((start_ns[rows], correlation_id[rows]))]
        ids = correlation_id[rows]
        rows = rows[np.append(True, ids[1:] != ids[:-1])] if len(rows) else rows
        return CallLabels(correlation_id[rows], start_ns[rows], iteration[rows], phase[rows])

    @staticmethod
    def union(parts: list[CallLabels]) -> CallLabels:
        """Calls of all parts."""
        if not parts:
            return CallLabels.none()
        names = ("correlation_id", "start_ns", "iteration", "phase")
        return CallLabels.of(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def find(self, correlation_id: Ints) -> tuple[Ints, Ints]:
        """Iteration and phase of launches by the id of their call, NONE for neither."""
        if not len(self.correlation_id):
            return np.full(len(correlation_id), NONE), np.full(len(correlation_id), NONE)
        at = np.searchsorted(self.correlation_id, correlation_id).clip(max=len(self.correlation_id) - 1)
        is_found = self.correlation_id[at] == correlation_id
        return np.where(is_found, self.iteration[at], NONE), np.where(is_found, self.phase[at], NONE)
