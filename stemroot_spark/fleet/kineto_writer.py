"""Writes a rank of a fleet as a PyTorch profiler (Kineto) trace: the launches of its nsys report, in the other format.

Per launch an operator, the launching API call, a pair of flow events and the kernel; per iteration a copy and a memset.
Times are microseconds with three decimals since baseTimeNanoseconds, which stands behind the events as PyTorch writes
it. Written a block of iterations at a time: memory does not depend on the size of the trace.
"""

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from stemroot_spark.fleet.rows import COMMUNICATION_STREAM, COMPUTATION_STREAM, PlacedBlock, place
from stemroot_spark.fleet.tables import PLANTED_SECRETS, Process
from stemroot_spark.fleet.timeline import API_DURATION_NS, FIRST_ITERATION_NS
from stemroot_spark.fleet.workload import Workload

GPU_NAME = "NVIDIA H100 80GB HBM3"
FILE_NAME = "rank-{:05d}.json"
_COPY_NS, _COPY_BYTES = 2_112, 4_096
# So small that a target size is met within a per cent or so.
_BLOCK_LAUNCHES = 20_000


@dataclass(frozen=True)
class KinetoTotals:
    """What was written: kernels, their time, copies and memsets, and characters of JSON."""

    n_kernels: int
    total_ns: int
    n_copies: int
    n_characters: int


def write_kineto(
    path: Path,
    workload: Workload,
    rank: int,
    *,
    max_characters: int | None = None,
    plant_secrets: bool = False,
) -> KinetoTotals:
    """Write the trace of one rank, gzip where the name ends in ``.gz``.

    Ends with the block of iterations that reaches ``max_characters``. ``plant_secrets`` puts recognisable fake secrets
    where real traces carry names of hosts and users. Raises FleetError for a rank that does not exist.
    """
    process = Process(rank, workload.spec.ranks, workload.spec.night, hardware_id=0)
    base_ns = round(process.session_start_utc.timestamp()) * 1_000_000_000
    n_kernels = total_ns = n_copies = n_characters = 0
    next_start_ns = FIRST_ITERATION_NS
    with _open(path) as stream:
        n_characters += stream.write(_head(process, plant_secrets))
        events = _EventTexts(workload, process)
        for block in workload.blocks(rank, _BLOCK_LAUNCHES):
            placed = place(block, n_kernels, next_start_ns)
            n_characters += stream.write(events.text(placed))
            n_kernels += len(block.config_id)
            total_ns += int(block.duration_ns.sum())
            n_copies += 2 * len(placed.start_ns)
            next_start_ns = placed.next_start_ns
            if max_characters is not None and n_characters >= max_characters:
                break
        n_characters += stream.write(_tail(process, base_ns, next_start_ns, plant_secrets))
    return KinetoTotals(n_kernels, total_ns, n_copies, n_characters)


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    with path.open("wb") as file:
        if path.suffix != ".gz":
            with io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text:
                yield text
            return
        # Without a time and a name, the same trace is the same file.
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=4, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
        ):
            yield text


class _EventTexts:
    """Events as texts in which only ids and times are left to fill in."""

    def __init__(self, workload: Workload, process: Process) -> None:
        self._kernels, self._operators = [], []
        self._process = process
        for config, kernel_index in zip(workload.configs, workload.config_kernel, strict=True):
            kernel = workload.kernels[kernel_index]
            stream = COMMUNICATION_STREAM if kernel.is_communication else COMPUTATION_STREAM
            shared_bytes = kernel.static_shared_memory_bytes + config.dynamic_shared_memory_bytes
            self._kernels.append(
                f'  {{\n    "ph": "X", "cat": "kernel", "name": {_literal(kernel.name)}, "pid": {process.local_rank}, '
                f'"tid": {stream},\n    "ts": %d.%03d, "dur": %d.%03d,\n    "args": {{\n      "External id": %d, '
                f'"queued": 0, "device": {process.local_rank}, "context": 1,\n      "stream": {stream}, "correlation": '
                f'%d,\n      "registers per thread": {kernel.registers_per_thread}, "shared memory": {shared_bytes}, '
                f'"blocks per SM": 1.5, "warps per SM": 12.0,\n      "grid": {list(config.grid)}, '
                f'"block": {list(config.block)},\n      "est. achieved occupancy %%": 50\n    }}\n  }},\n'
            )
            api = "cuLaunchKernelEx" if kernel.uses_driver_api else "cudaLaunchKernel"
            category = "cuda_driver" if kernel.uses_driver_api else "cuda_runtime"
            thread = f'"pid": {process.pid}, "tid": {process.pid}'
            self._operators.append(
                f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "aten::{kernel.key}", {thread},\n    "ts": %d.%03d, '
                '"dur": 9.731,\n    "args": {\n      "External id": %d, "Record function id": 0, "Concrete Inputs": '
                '["", "", "-1", "False"], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], '
                '"Input Strides": [[8192, 1], [8192, 1], [], []], "Input Dims": [[4096, 8192], [8192, 8192], [], []], '
                f'"Ev Idx": %d\n    }}\n  }},\n  {{\n    "ph": "X", "cat": "{category}", "name": "{api}", {thread},\n'
                f'    "ts": %d.%03d, "dur": {API_DURATION_NS / 1_000:.3f},\n    "args": {{\n      "External id": %d, '
                '"cbid": 211, "correlation": %d\n    }\n  },\n  {\n    "ph": "s", "id": %d, '
                f'{thread}, "ts": %d.%03d,\n    "cat": "ac2g", "name": "ac2g"\n  }},\n'
            )

    def text(self, placed: PlacedBlock) -> str:
        """All events of a block: the CPU's in order of launch, then the GPU's in order of their start."""
        config_ids = placed.block.config_id.tolist()
        correlation_ids = placed.correlation_id.tolist()
        parts = []
        for config_id, number, api_ns in zip(
            config_ids, correlation_ids, placed.api_start_ns.tolist(), strict=True
        ):
            api = divmod(api_ns, 1_000)
            operator = divmod(api_ns - 2_500, 1_000)
            values = (*operator, number, number, *api, number, number, number, *api)
            parts.append(self._operators[config_id] % values)
        parts.extend(self._copies(placed))
        starts_ns, durations_ns = placed.kernel_start_ns, placed.block.duration_ns
        order = np.argsort(starts_ns, kind="stable")
        for at, start_ns, duration_ns in zip(
            order.tolist(), starts_ns[order].tolist(), durations_ns[order].tolist(), strict=True
        ):
            number = correlation_ids[at]
            values = (*divmod(start_ns, 1_000), *divmod(duration_ns, 1_000), number, number)
            parts.append(self._kernels[config_ids[at]] % values)
        return "".join(parts)

    def _copies(self, placed: PlacedBlock) -> Iterator[str]:
        device = self._process.local_rank
        for start_ns in placed.start_ns.tolist():
            for kind, name in (("memcpy", "Memcpy HtoD (Pinned -> Device)"), ("memset", "Memset (Device)")):
                whole, rest = divmod(start_ns, 1_000)
                # A bandwidth of inf is what PyTorch writes for copies too short to measure; it is no JSON.
                yield (
                    f'  {{\n    "ph": "X", "cat": "gpu_{kind}", "name": "{name}", "pid": {device}, "tid": '
                    f'{COMPUTATION_STREAM},\n    "ts": {whole}.{rest:03d}, "dur": {_COPY_NS / 1_000:.3f},\n    "args": '
                    f'{{\n      "device": {device}, "stream": {COMPUTATION_STREAM}, "bytes": {_COPY_BYTES}, '
                    '"memory bandwidth (GB/s)": inf\n    }\n  },\n'
                )


def _literal(text: str) -> str:
    return json.dumps(text).replace("%", "%%")


def _head(process: Process, plant_secrets: bool) -> str:
    device = {"id": process.local_rank, "name": GPU_NAME, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    header = {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {"backend": "nccl", "rank": process.rank, "world_size": process.world_size},
        "displayTimeUnit": "ms",
    }
    name = f"python {PLANTED_SECRETS[0]}" if plant_secrets else "python"
    metadata = "".join(
        f'  {{\n    "name": "{kind}", "ph": "M", "ts": 0.000, "pid": {pid}, "tid": 0,\n    "args": {{\n      '
        f'"{key}": "{value}"\n    }}\n  }},\n'
        for pid, label in ((process.pid, "CPU"), (process.local_rank, f"GPU {process.local_rank}"))
        for kind, key, value in (("process_name", "name", name), ("process_labels", "labels", label))
    )
    return f'{json.dumps(header, indent=2)[:-2]},\n  "traceEvents": [\n{metadata}'


def _tail(process: Process, base_ns: int, end_ns: int, plant_secrets: bool) -> str:
    name = f"/home/{PLANTED_SECRETS[-1]}/trace.json" if plant_secrets else "trace.json"
    return (
        '  {\n    "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",'
        f'\n    "ts": 1.000, "dur": {end_ns // 1_000}.000,\n    "args": {{\n      "Op count": 0\n    }}\n  }},\n'
        f'  {{\n    "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "",\n'
        f'    "ts": {end_ns // 1_000}.000\n  }}\n  ],\n  "traceName": "{name}",\n'
        f'  "baseTimeNanoseconds": {base_ns}\n}}\n'
    )
