"""When things happen: API calls on the CPU, kernels on a computation and a communication stream."""

from dataclasses import dataclass

import numpy as np

from stemroot_spark.fleet.sequence import Ints, Streams, Template

FIRST_ITERATION_NS = 8_153_204_117
API_INTERVAL_NS = 4_000
API_DURATION_NS = 2_600
API_LEAD_NS = 1_500
LAUNCH_LATENCY_NS = 3_200
KERNEL_GAP_NS = 832
BETWEEN_ITERATIONS_NS = 20_011


@dataclass(frozen=True)
class Schedule:
    """One iteration in ns since the session's start.

    `kernel_start_ns` and `api_start_ns` hold one entry per launch; the CPU waits for the GPU from
    `synchronize_start_ns` until `end_ns`.
    """

    start_ns: int
    kernel_start_ns: Ints
    api_start_ns: Ints
    synchronize_start_ns: int
    end_ns: int

    @property
    def next_start_ns(self) -> int:
        """Earliest start of the following iteration."""
        return self.end_ns + BETWEEN_ITERATIONS_NS


def schedule(template: Template, duration_ns: Ints, start_ns: int) -> Schedule:
    """Place the launches of one iteration.

    A kernel starts when its stream is free and its API call has returned; a communication kernel also waits
    for the computation launched before it, and the optimizer for all communication before it.
    """
    api_start_ns = start_ns + API_LEAD_NS + API_INTERVAL_NS * np.arange(len(template), dtype=np.int64)
    ready_ns = api_start_ns + LAUNCH_LATENCY_NS
    kernel_start_ns = np.empty_like(ready_ns)
    end_ns = start_ns
    for streams in (template.early, template.late):
        end_ns = _place(streams, duration_ns, ready_ns, end_ns, kernel_start_ns)
    synchronize_start_ns = int(api_start_ns[-1]) + API_INTERVAL_NS
    return Schedule(
        start_ns,
        kernel_start_ns,
        api_start_ns,
        synchronize_start_ns,
        max(end_ns, synchronize_start_ns) + 2_417,
    )


def _place(streams: Streams, duration_ns: Ints, ready_ns: Ints, floor_ns: int, kernel_start_ns: Ints) -> int:
    """Fill `kernel_start_ns` for the given positions; returns when the last of them has ended."""
    computation = np.maximum(ready_ns[streams.computation], floor_ns)
    start = _serve(computation, duration_ns[streams.computation] + KERNEL_GAP_NS)
    end = np.concatenate([[floor_ns], start + duration_ns[streams.computation]])
    kernel_start_ns[streams.computation] = start

    communication = np.maximum(ready_ns[streams.communication], end[streams.after])
    start = _serve(communication, duration_ns[streams.communication] + KERNEL_GAP_NS)
    kernel_start_ns[streams.communication] = start
    return max(int(end[-1]), int(np.max(start + duration_ns[streams.communication], initial=floor_ns)))


def _serve(ready_ns: Ints, service_ns: Ints) -> Ints:
    """Start times in a first-come queue: start[i] = max(ready[i], start[i - 1] + service[i - 1])."""
    before = np.cumsum(service_ns) - service_ns
    start_ns: Ints = np.maximum.accumulate(ready_ns - before) + before
    return start_ns
