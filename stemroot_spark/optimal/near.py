"""Near-optimal strata of one kernel: what an integer finish may choose from.

At the best multiplier the Lagrangian optimum of all kernels seldom spends the variance bound exactly. The plans
that do use it lie a little above the optimum: borders shifted by a few cells, strata merged, a sample more or less.
All of them whose excess stays below the duality gap are enumerated here as labels (cost, variance) per cell, which
is exact for small kernels and thinned for large ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stemroot_spark.optimal.cells import OrderedCells
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.pareto import thinned, undominated
from stemroot_spark.optimal.programme import (
    Intervals,
    SingleLaunch,
    Solution,
    allowed_intervals,
    best_samples,
    check_multipliers,
    forward,
    lagrangian,
    solve,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_MAX_ARCS = 6_000
_MAX_LABELS = 128
_MAX_RETURNED = 64


class _Arcs(NamedTuple):
    """Intervals with a number of samples, ascending by stop: arrays of shape (arcs,), first as in Intervals."""

    start: IntArray
    stop: IntArray
    samples: IntArray
    cost: FloatArray
    variance: FloatArray
    first: IntArray


class _Labels(NamedTuple):
    """Partial plans up to one cell; parent counts all labels made before, arc the last stratum."""

    cost: FloatArray
    variance: FloatArray
    parent: IntArray
    arc: IntArray


def cells_alternatives(
    cells: OrderedCells, multiplier: float, excess_ns: float, model: PlanningModel
) -> list[Solution]:
    """Undominated strata and samples of one kernel within excess_ns of its optimum at the multiplier.

    All of them while the kernel is small, otherwise a selection spread over the range of variances. DataError for a
    multiplier (1 / ns) or excess that is negative.
    """
    check_multipliers([multiplier, excess_ns])
    alone = SingleLaunch(cells, model).solution(multiplier, excess_ns)
    if alone is not None:
        return [alone]
    return _near_solutions(allowed_intervals(cells, model), multiplier, excess_ns)


def _near_solutions(intervals: Intervals, multiplier: float, excess_ns: float) -> list[Solution]:
    samples = best_samples(intervals, multiplier)
    costs = lagrangian(intervals, multiplier, samples)
    before, _ = forward(intervals, costs)
    after = _backward(intervals, costs)
    dual = float(before[-1])
    excess = before[intervals.start] + costs + after[intervals.stop] - dual
    # Sums of the same terms in two directions differ by rounding: the optimum itself must stay inside.
    limit = excess_ns + 1e-9 * dual
    arcs = _arcs(intervals, multiplier, samples, excess, limit)
    labels, final = _label_search(arcs, multiplier, after, dual, limit)
    found = [_solution(arcs, labels, label, multiplier, dual) for label in final]
    return [solve(intervals, multiplier), *found]


def _backward(intervals: Intervals, costs: FloatArray) -> FloatArray:
    """Least cost of the cells [i, cells), shape (cells + 1,)."""
    n_cells = intervals.first.size - 2
    order = np.argsort(intervals.start, kind="stable")
    stop, costs = intervals.stop[order], costs[order]
    bounds = np.searchsorted(intervals.start[order], np.arange(n_cells + 1)).tolist()
    best = np.zeros(n_cells + 1)
    for i in range(n_cells - 1, -1, -1):
        part = slice(bounds[i], bounds[i + 1])
        best[i] = (best[stop[part]] + costs[part]).min()
    return best


def _arcs(
    intervals: Intervals, multiplier: float, samples: FloatArray, excess: FloatArray, limit: float
) -> _Arcs:
    """Every interval with every number of samples that a plan within the limit may use."""
    kept = np.flatnonzero(excess <= limit)
    if kept.size > _MAX_ARCS:
        kept = np.sort(kept[np.argsort(excess[kept], kind="stable")[:_MAX_ARCS]])
    mean, spread, n = intervals.mean_ns[kept], multiplier * intervals.spread[kept], intervals.n[kept]
    optimum, room = samples[kept], limit - excess[kept]
    # m mu + lambda G / m <= h: the whole numbers between the roots of a quadratic.
    height = optimum * mean + spread / optimum + room
    root = np.sqrt(np.maximum(height**2 - 4.0 * mean * spread, 0.0))
    low = np.clip(np.ceil((height - root) / (2.0 * mean)), 1.0, optimum)
    high = np.clip(np.floor((height + root) / (2.0 * mean)), optimum, n)
    # Without spread one more sample changes nothing.
    high = np.where(spread > 0.0, high, optimum)
    reach = max(1, _MAX_ARCS // max(kept.size, 1))
    low, high = np.maximum(low, optimum - reach), np.minimum(high, optimum + reach)
    count = (high - low + 1).astype(np.int64)
    which = np.repeat(np.arange(kept.size), count)
    step = np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)
    m = low[which] + step
    whole = kept[which]
    variance = intervals.spread[whole] * (intervals.n[whole] - m) / (m * intervals.n[whole])
    n_cells = intervals.first.size - 2
    return _Arcs(
        start=intervals.start[whole],
        stop=intervals.stop[whole],
        samples=m.astype(np.int64),
        cost=m * intervals.mean_ns[whole],
        variance=variance,
        first=np.searchsorted(intervals.stop[whole], np.arange(n_cells + 2)),
    )


def _label_search(
    arcs: _Arcs, multiplier: float, after: FloatArray, dual: float, limit: float
) -> tuple[_Labels, IntArray]:
    """Undominated plans of all cells whose excess is within the limit: the labels, and which of them end."""
    parts = [_Labels(np.zeros(1), np.zeros(1), np.array([-1]), np.array([-1]))]
    node_first, node_size = np.zeros(after.size, dtype=np.int64), np.zeros(after.size, dtype=np.int64)
    node_size[0] = total = 1
    cost, variance = np.zeros(1 << 10), np.zeros(1 << 10)
    for j in range(1, after.size):
        arc = np.arange(arcs.first[j], arcs.first[j + 1])
        arc = np.repeat(arc, node_size[arcs.start[arc]])
        if not arc.size:
            continue
        parent = _positions(arcs, j, node_first, node_size)
        new_cost, new_variance = cost[parent] + arcs.cost[arc], variance[parent] + arcs.variance[arc]
        excess = new_cost + multiplier * new_variance + (after[j] - dual)
        alive = np.flatnonzero(excess <= limit)
        alive = alive[undominated(new_cost[alive], new_variance[alive])]
        alive = alive[thinned(new_variance[alive], excess[alive], _MAX_LABELS)]
        node_first[j], node_size[j] = total, alive.size
        total += alive.size
        if total > cost.size:
            cost, variance = np.resize(cost, 2 * total), np.resize(variance, 2 * total)
        cost[node_first[j] : total], variance[node_first[j] : total] = new_cost[alive], new_variance[alive]
        parts.append(_Labels(new_cost[alive], new_variance[alive], parent[alive], arc[alive]))
    labels = _Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    final = np.arange(node_first[-1], node_first[-1] + node_size[-1])
    reduced = labels.cost[final] + multiplier * labels.variance[final]
    return labels, final[thinned(labels.variance[final], reduced, _MAX_RETURNED)]


def _positions(arcs: _Arcs, j: int, node_first: IntArray, node_size: IntArray) -> IntArray:
    """Labels that the arcs into cell j extend, arc by arc."""
    start = arcs.start[arcs.first[j] : arcs.first[j + 1]]
    size = node_size[start]
    offset = np.repeat(node_first[start] - (np.cumsum(size) - size), size)
    return offset + np.arange(offset.size)


def _solution(arcs: _Arcs, labels: _Labels, label: int, multiplier: float, dual: float) -> Solution:
    picked = []
    while labels.arc[label] >= 0:
        picked.append(int(labels.arc[label]))
        label = int(labels.parent[label])
    index = np.array(picked[::-1])
    return Solution(multiplier, dual, arcs.start[index], arcs.stop[index], arcs.samples[index])
