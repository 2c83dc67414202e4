"""Rows of the three event tables of a report, as columns per block of iterations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stemroot_spark.fleet.sequence import NO_LAYER, PHASES, Ints, Template
from stemroot_spark.fleet.tables import Process
from stemroot_spark.fleet.timeline import (
    API_DURATION_NS,
    BETWEEN_ITERATIONS_NS,
    FIRST_ITERATION_NS,
    api_start_ns,
    schedule,
    synchronize_start_ns,
)
from stemroot_spark.fleet.workload import Block, Workload

Columns = Mapping[str, Any]
"""Column name -> array, or one value for all rows; a column that is left out is null."""

ITERATION_LABEL = "iteration {}"
COMPUTATION_STREAM, COMMUNICATION_STREAM = 7, 23
FIRST_CORRELATION_ID = 717
PUSH_POP_RANGE = 59
RUNTIME_API, DRIVER_API = 0, 1
API_NAMES = ("cudaLaunchKernel_v7000", "cuLaunchKernelEx")
SYNCHRONIZE_NAME = "cudaDeviceSynchronize_v3020"
AUTOGRAD_THREAD = 1


Range = tuple[int, int, str | None, int | None, int]
"""Start, end, text, text id and thread of an NVTX range."""


class Strings:
    """The string table of one report: sparse ids, different in every report, in order of first use."""

    def __init__(self, first_id: int) -> None:
        self.ids: dict[str, int] = {"GpuMetrics": 0, "SocMetrics": 1}
        self._next_id = first_id

    def __getitem__(self, value: str) -> int:
        if value not in self.ids:
            self.ids[value] = self._next_id
            self._next_id += 3
        return self.ids[value]


@dataclass(frozen=True)
class PlacedBlock:
    """A block with the times of its iterations and launches in ns since the session's start.

    `start_ns` and `end_ns` hold one entry per iteration (its end: the CPU's synchronisation has returned),
    `iteration`, `kernel_start_ns` and `api_start_ns` one per launch.
    """

    block: Block
    first_launch_index: int
    start_ns: Ints
    end_ns: Ints
    iteration: Ints
    kernel_start_ns: Ints
    api_start_ns: Ints

    @property
    def next_start_ns(self) -> int:
        """Start of the iteration after the block."""
        return int(self.end_ns[-1]) + BETWEEN_ITERATIONS_NS

    @property
    def correlation_id(self) -> Ints:
        """One id per API call in launch order; the synchronisation that ends an iteration takes one too."""
        index = self.first_launch_index + np.arange(len(self.iteration))
        return FIRST_CORRELATION_ID + index + self.iteration


def place(block: Block, first_launch_index: int, start_ns: int = FIRST_ITERATION_NS) -> PlacedBlock:
    """Schedule the iterations of a block one after the other, the first at `start_ns`."""
    sizes = np.diff(block.bounds)
    kernel_start_ns = np.empty_like(block.duration_ns)
    api_ns = np.concatenate([api_start_ns(template) for template in block.templates])
    taken_ns = np.empty(len(sizes), dtype=np.int64)
    for begin, end in _runs(np.array([id(template) for template in block.templates])):
        rows = slice(block.bounds[begin], block.bounds[end + 1])
        template = block.templates[begin]
        one = schedule(template, block.duration_ns[rows].reshape(-1, len(template)))
        kernel_start_ns[rows] = one.kernel_start_ns.ravel()
        taken_ns[begin : end + 1] = one.end_ns
    starts = start_ns + np.cumsum(taken_ns + BETWEEN_ITERATIONS_NS) - (taken_ns + BETWEEN_ITERATIONS_NS)
    launch_base_ns = np.repeat(starts, sizes)
    return PlacedBlock(
        block,
        first_launch_index,
        starts,
        starts + taken_ns,
        block.first_iteration + np.repeat(np.arange(len(sizes)), sizes),
        launch_base_ns + kernel_start_ns,
        launch_base_ns + api_ns,
    )


class KernelRows:
    """CUPTI_ACTIVITY_KIND_KERNEL: what depends on the configuration is looked up in tables."""

    def __init__(self, workload: Workload, process: Process, strings: Strings) -> None:
        kernels = [workload.kernels[i] for i in workload.config_kernel]
        configs = workload.configs
        names = {
            "demangledName": [strings[kernel.name] for kernel in kernels],
            "shortName": [strings[kernel.short_name] for kernel in kernels],
            "mangledName": [strings[kernel.mangled_name] for kernel in kernels],
            "registersPerThread": [kernel.registers_per_thread for kernel in kernels],
            "streamId": [
                COMMUNICATION_STREAM if kernel.is_communication else COMPUTATION_STREAM for kernel in kernels
            ],
        }
        dimensions = {
            f"{name}{axis}": [getattr(config, name)[i] for config in configs]
            for name in ("grid", "block", "cluster")
            for i, axis in enumerate("XYZ")
        }
        dynamic = [config.dynamic_shared_memory_bytes for config in configs]
        memory = {
            "staticSharedMemory": [kernel.static_shared_memory_bytes for kernel in kernels],
            "dynamicSharedMemory": dynamic,
            "sharedMemoryExecuted": [32_768 if size < 32_768 else 233_472 for size in dynamic],
            "sharedMemoryLimitConfig": [int(size >= 49_152) for size in dynamic],
            "maxPotentialClusterSize": [8 if config.cluster[0] else 0 for config in configs],
        }
        tables = names | dimensions | memory
        # The types of the export, so that a look-up needs no cast.
        unsigned = {"demangledName", "shortName", "mangledName", "registersPerThread", "streamId"}
        self._tables: dict[str, npt.NDArray[Any]] = {
            name: np.array(values, dtype=np.uint32 if name in unsigned else np.int32)
            for name, values in tables.items()
        }
        self._constants = {
            "deviceId": process.local_rank,
            "contextId": 1,
            "greenContextId": 0,
            "globalPid": process.global_pid,
            "launchType": 1,
            "cacheConfig": 1,
            "localMemoryPerThread": 0,
            "localMemoryTotal": 250_871_808,
            "clusterSchedulingPolicy": 1,
            "maxActiveClusters": 0,
            "tensorSizeMinusOneElements": "[]",
        }

    def columns(self, placed: PlacedBlock) -> Columns:
        """All kernels of a block, sorted by start as nsys writes them."""
        order = np.argsort(placed.kernel_start_ns, kind="stable")
        start_ns = placed.kernel_start_ns[order]
        config_id = placed.block.config_id[order]
        events = {
            "start": start_ns,
            "end": start_ns + placed.block.duration_ns[order],
            "correlationId": placed.correlation_id[order].astype(np.uint32),
            "gridId": placed.first_launch_index + 1 + order,
        }
        return events | {name: table[config_id] for name, table in self._tables.items()} | self._constants


class RuntimeRows:
    """CUPTI_ACTIVITY_KIND_RUNTIME: the launching API calls, and one synchronisation per iteration."""

    def __init__(
        self, workload: Workload, process: Process, strings: Strings, *, has_autograd_thread: bool
    ) -> None:
        is_driver = np.array([kernel.uses_driver_api for kernel in workload.kernels])[workload.config_kernel]
        self._event_class = np.where(is_driver, DRIVER_API, RUNTIME_API).astype(np.int32)
        name_ids = [strings[name] for name in API_NAMES]
        self._name_id = np.where(is_driver, name_ids[1], name_ids[0]).astype(np.uint32)
        self._synchronize_id = strings[SYNCHRONIZE_NAME]
        self._main_tid = process.global_tid()
        self._tid_by_phase = np.full(len(PHASES), self._main_tid, dtype=np.uint64)
        if has_autograd_thread:
            self._tid_by_phase[PHASES.index("backward")] = process.global_tid(AUTOGRAD_THREAD)

    def columns(self, placed: PlacedBlock) -> Columns:
        """All API calls of a block, sorted by start."""
        config_id = placed.block.config_id
        phase = np.concatenate([template.phase for template in placed.block.templates])
        # Inserted after the last launch of each iteration: the calls are in order of time.
        at = placed.block.bounds[1:]
        waits = [synchronize_start_ns(template) for template in placed.block.templates]
        synchronize_start = placed.start_ns + np.array(waits, dtype=np.int64)
        correlation_id = placed.correlation_id
        return {
            "start": np.insert(placed.api_start_ns, at, synchronize_start),
            "end": np.insert(placed.api_start_ns + API_DURATION_NS, at, placed.end_ns),
            "eventClass": np.insert(self._event_class[config_id], at, RUNTIME_API),
            "globalTid": np.insert(self._tid_by_phase[phase], at, self._main_tid),
            "correlationId": np.insert(correlation_id, at, correlation_id[at - 1] + 1).astype(np.uint32),
            "nameId": np.insert(self._name_id[config_id], at, self._synchronize_id),
            "returnValue": 0,
        }


class NvtxRows:
    """NVTX_EVENTS: push/pop ranges on the CPU around iterations, phases and, on demand, layers.

    Iterations carry their text, phases and layers are registered strings: both happen in real traces.
    """

    def __init__(
        self, process: Process, strings: Strings, *, has_layers: bool, has_autograd_thread: bool
    ) -> None:
        self._strings = strings
        self._has_layers = has_layers
        self._main_tid = process.global_tid()
        self._backward_tid = process.global_tid(AUTOGRAD_THREAD if has_autograd_thread else 0)

    def columns(self, placed: PlacedBlock) -> Columns:
        """All ranges of a block, sorted by start."""
        rows: list[Range] = []
        for offset, template in enumerate(placed.block.templates):
            label = ITERATION_LABEL.format(placed.block.first_iteration + offset)
            start_ns, end_ns = int(placed.start_ns[offset]), int(placed.end_ns[offset])
            rows.append((start_ns, end_ns + 900, label, None, self._main_tid))
            rows += [
                (start_ns + begin, start_ns + end, text, text_id, tid)
                for begin, end, text, text_id, tid in self._ranges(template)
            ]
        starts, ends, texts, text_ids, tids = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
        return {
            "start": np.array(starts, dtype=np.int64),
            "end": np.array(ends, dtype=np.int64),
            "eventType": PUSH_POP_RANGE,
            "text": list(texts),
            "globalTid": np.array(tids, dtype=np.uint64),
            "textId": list(text_ids),
            "domainId": 0,
        }

    def _ranges(self, template: Template) -> list[Range]:
        """Phases and layers of an iteration, in ns since its start."""
        api_ns = api_start_ns(template)
        ranges: list[Range] = []
        for begin, end in _runs(template.phase):
            text_id = self._strings[PHASES[template.phase[begin]]]
            ranges.append((*_around(api_ns, begin, end, 600), None, text_id, self._main_tid))
        if not self._has_layers:
            return ranges
        for begin, end in _runs(template.phase * (len(template) + 1) + template.layer):
            if template.layer[begin] != NO_LAYER:
                is_backward = template.phase[begin] == PHASES.index("backward")
                tid = self._backward_tid if is_backward else self._main_tid
                text_id = self._strings[f"layer {template.layer[begin]}"]
                ranges.append((*_around(api_ns, begin, end, 300), None, text_id, tid))
        return ranges


def _runs(values: Ints) -> list[tuple[int, int]]:
    """First and last position of each run of equal values."""
    breaks = np.flatnonzero(np.diff(values)) + 1
    return [(int(a), int(b) - 1) for a, b in zip([0, *breaks], [*breaks, len(values)], strict=True)]


def _around(api_ns: Ints, begin: int, end: int, margin_ns: int) -> tuple[int, int]:
    return int(api_ns[begin]) - margin_ns, int(api_ns[end]) + API_DURATION_NS + margin_ns
