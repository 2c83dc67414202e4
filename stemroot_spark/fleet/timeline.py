"""When things happen: API calls on the CPU, kernels on a computation and a communication stream.

Nothing outlives an iteration, so all iterations of one template are placed at once, relative to their starts.
"""

from dataclasses import dataclass

import numpy as np

from stemroot_spark.fleet.sequence import Ints, Streams, Template

FIRST_ITERATION_NS = 8_153_204_117
API_INTERVAL_NS = 4_000
API_DURATION_NS = 2_600
API_LEAD_NS = 1_500
LAUNCH_LATENCY_NS = 3_200
KERNEL_GAP_NS = 832
SYNCHRONIZE_LATENCY_NS = 2_417
BETWEEN_ITERATIONS_NS = 20_011


@dataclass(frozen=True)
class Schedule:
    """Iterations of one template, in ns since the start of each.

    `kernel_start_ns` is (iterations, launches); at `end_ns`, (iterations,), the CPU knows the GPU has ended.
    """

    kernel_start_ns: Ints
    end_ns: Ints


def api_start_ns(template: Template) -> Ints:
    """Start of each launching API call since the start of its iteration, (launches,)."""
    return API_LEAD_NS + API_INTERVAL_NS * np.arange(len(template), dtype=np.int64)


def synchronize_start_ns(template: Template) -> int:
    """When the CPU begins to wait for the GPU, since the start of the iteration."""
    return API_LEAD_NS + API_INTERVAL_NS * len(template)


def schedule(template: Template, duration_ns: Ints) -> Schedule:
    """Place the launches of iterations of one template; `duration_ns` is (iterations, launches).

    A kernel starts when its stream is free and its API call has returned; a communication kernel also waits
    for the computation launched before it, and the optimizer for all communication before it.
    """
    ready_ns = api_start_ns(template) + LAUNCH_LATENCY_NS
    kernel_start_ns = np.empty_like(duration_ns)
    end_ns = np.zeros((len(duration_ns), 1), dtype=np.int64)
    for streams in (template.early, template.late):
        end_ns = _place(streams, duration_ns, ready_ns, end_ns, kernel_start_ns)
    waited_ns = np.maximum(end_ns[:, 0], synchronize_start_ns(template))
    return Schedule(kernel_start_ns, waited_ns + SYNCHRONIZE_LATENCY_NS)


def _place(
    streams: Streams, duration_ns: Ints, ready_ns: Ints, floor_ns: Ints, kernel_start_ns: Ints
) -> Ints:
    """Fill `kernel_start_ns` for the given positions; returns when the last has ended, (iterations, 1)."""
    duration = duration_ns[:, streams.computation]
    start = _serve(np.maximum(ready_ns[streams.computation], floor_ns), duration + KERNEL_GAP_NS)
    end = np.concatenate([floor_ns, start + duration], axis=1)
    kernel_start_ns[:, streams.computation] = start

    duration = duration_ns[:, streams.communication]
    ready = np.maximum(ready_ns[streams.communication], end[:, streams.after])
    start = _serve(ready, duration + KERNEL_GAP_NS)
    kernel_start_ns[:, streams.communication] = start
    last_ns: Ints = np.max(start + duration, axis=1, keepdims=True, initial=0)
    later_ns: Ints = np.maximum(last_ns, end[:, -1:])
    return later_ns


def _serve(ready_ns: Ints, service_ns: Ints) -> Ints:
    """Starts in first-come queues, a row each: start[i] = max(ready[i], start[i - 1] + service[i - 1])."""
    before = np.cumsum(service_ns, axis=1) - service_ns
    start_ns: Ints = np.maximum.accumulate(ready_ns - before, axis=1) + before
    return start_ns
