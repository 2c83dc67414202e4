"""Choices that trade simulated time against variance: which are worth keeping, and the best of each kernel.

Both searches of the planner, over the strata of one kernel and over the choices of all kernels, are label searches:
partial plans carry (cost, variance, excess), the excess being how far cost + lambda V lies above its least value. A
plan cheaper than the best known one cannot exceed the duality gap, so labels beyond it are dropped without loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class Choices(NamedTuple):
    """Choices of one kernel: expected simulated time in ns and planning variance in ns^2, shape (choices,)."""

    cost_ns: FloatArray
    variance: FloatArray


def undominated(cost: FloatArray, variance: FloatArray) -> IntArray:
    """Indices, ascending by cost, of entries that no other beats or equals in both cost and variance."""
    order = np.lexsort((variance, cost))
    sorted_variance = variance[order]
    before = np.concatenate(([np.inf], np.minimum.accumulate(sorted_variance)[:-1]))
    return order[sorted_variance < before]


def thinned(variance: FloatArray, excess: FloatArray, limit: int) -> IntArray:
    """At most `limit` indices, ascending: the least excess of each of equal ranges of variance."""
    if variance.size <= limit:
        return np.arange(variance.size)
    low, high = variance.min(), variance.max()
    place = np.minimum((variance - low) / (high - low) * limit, limit - 1).astype(np.int64)
    order = np.lexsort((excess, place))
    first = np.concatenate(([True], np.diff(place[order]) != 0))
    return np.sort(order[first])


def choose(
    kernels: Sequence[Choices], multiplier: float, bound: float, excess_ns: float, max_labels: int
) -> IntArray | None:
    """Index of one choice per kernel: least total cost whose total variance is at most bound.

    Exact among plans whose excess at the multiplier is at most excess_ns, as long as no more than max_labels
    undominated partial plans meet; None when no such plan keeps the bound. Shape of the result: (kernels,).
    """
    reduced = [k.cost_ns + multiplier * k.variance for k in kernels]
    excess = [r - r.min() for r in reduced]
    useful = [np.flatnonzero(e <= excess_ns) for e in excess]
    # Kernels with the widest choice last: until then few partial plans are alive.
    order = sorted(range(len(kernels)), key=lambda k: useful[k].size)
    cost, variance, total_excess = np.zeros(1), np.zeros(1), np.zeros(1)
    steps: list[tuple[int, IntArray, IntArray]] = []
    for k in order:
        choice = useful[k]
        new_cost = np.add.outer(cost, kernels[k].cost_ns[choice]).ravel()
        new_variance = np.add.outer(variance, kernels[k].variance[choice]).ravel()
        new_excess = np.add.outer(total_excess, excess[k][choice]).ravel()
        alive = np.flatnonzero(new_excess <= excess_ns)
        alive = alive[undominated(new_cost[alive], new_variance[alive])]
        alive = alive[thinned(new_variance[alive], new_excess[alive], max_labels)]
        parent, picked = np.divmod(alive, choice.size)
        steps.append((k, parent, choice[picked]))
        cost, variance, total_excess = new_cost[alive], new_variance[alive], new_excess[alive]
    feasible = np.flatnonzero(variance <= bound)
    if not feasible.size:
        return None
    label = int(feasible[np.argmin(cost[feasible])])
    result = np.empty(len(kernels), dtype=np.int64)
    for k, parent, picked in reversed(steps):
        result[k] = picked[label]
        label = int(parent[label])
    return result
