"""Ordered cells of one kernel: launch configurations by mean duration, buckets of duration inside each.

A stratum of the optimal planner is a run of neighbouring cells, either inside one configuration or made of whole
configurations. Its moments follow from running sums over the cells, centred on the kernel's mean, so that what a
bucket hides inside is counted exactly and only the places of cuts are restricted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.optimal.buckets import Buckets, config_buckets, merged_buckets
from stemroot_spark.optimal.model import PlanningModel

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float64)

# Cells of a first, wide look at a kernel: enough to place the multiplier, sixteen times cheaper than all cells.
COARSE_CELLS = 128
_FINEST_STEP = 1e-6
_COARSEST_STEP = 100.0


@dataclass(frozen=True)
class OrderedCells:
    """Cells of one kernel in the order in which strata are cut.

    n, sum_ns, m2 (sum of squared deviations from the cell's mean, ns^2), min_ns, max_ns: shape (cells,).
    group_start: shape (groups + 1,), cells [group_start[g], group_start[g + 1]) are one launch configuration, or
    one cell of several configurations where there are more of them than cells. config_ids: one array per group,
    None when configurations are ignored. config_squares: shape (groups,), sum over its configurations of X_c^2.
    """

    n: IntArray
    sum_ns: IntArray
    m2: FloatArray
    min_ns: IntArray
    max_ns: IntArray
    group_start: IntArray
    config_ids: tuple[IntArray, ...] | None
    config_squares: FloatArray

    def __len__(self) -> int:
        return len(self.n)

    @property
    def mean_ns(self) -> FloatArray:
        """Mean duration of each cell in ns, shape (cells,)."""
        return self.sum_ns / self.n


class IntervalMoments(NamedTuple):
    """Moments of runs of cells, arrays of one shape: as PlanningModel.expected_variance wants them."""

    n: IntArray
    mean_ns: FloatArray
    m2: FloatArray
    between_m2: FloatArray


def ordered_cells(frame: pd.DataFrame, model: PlanningModel, *, coarse: bool = False) -> OrderedCells:
    """Ordered cells of one kernel from its histogram rows, at most model.max_cells of them.

    frame: histogram rows of one kernel in any order with HISTOGRAM_COLUMNS and, where model.use_configurations,
    launch_config_id. Buckets are merged only where there are too many of them, then on the finest grid of
    relative width that fits: at most 1 % and a third of the coefficient of variation wherever the range of
    durations permits. Configurations beyond the number of cells are merged with neighbours of similar mean.
    coarse: merge these cells further, down to COARSE_CELLS unless there are more configurations.
    Raises DataError for missing columns, no rows or inconsistent rows.
    """
    return cells_of_buckets(config_buckets(frame, model.use_configurations), model, coarse=coarse)


def cells_of_buckets(buckets: Buckets, model: PlanningModel, *, coarse: bool = False) -> OrderedCells:
    """ordered_cells from buckets at hand."""
    order, group, cell = cell_partition(buckets, model, coarse=coarse)
    return _assembled(buckets.at(order), group, cell, model.use_configurations)


def cell_partition(
    buckets: Buckets, model: PlanningModel, *, coarse: bool = False
) -> tuple[IntArray, IntArray, IntArray]:
    """Which cell a bucket belongs to: an order of the buckets, and the group and cell of each in that order."""
    group = _ranked_configurations(buckets, model.max_cells)
    order = np.lexsort((buckets.min_ns, group))
    buckets, group = buckets.at(order), group[order]
    return order, group, _cell_numbers(buckets, group, model.max_cells, coarse)


def interval_moments(cells: OrderedCells, start: IntArray, stop: IntArray) -> IntervalMoments:
    """Moments of many runs of cells [start, stop) at once, from running sums; arrays of shape (intervals,).

    A run must lie inside one group or be made of whole groups.
    """
    n_total, sum_total = int(cells.n.sum()), int(cells.sum_ns.sum())
    centre = round(sum_total / n_total)
    shifted_cells = cells.sum_ns - cells.n * centre
    squared_cells = cells.m2 + shifted_cells.astype(np.float64) ** 2 / cells.n
    n = _difference(cells.n, start, stop)
    shifted = _difference(shifted_cells, start, stop).astype(np.float64)
    mean = centre + shifted / n
    # Deviations inside the cells bound the pooled ones from below; for a single cell they are all there is.
    within = _difference(cells.m2, start, stop)
    m2 = np.maximum(_difference(squared_cells, start, stop) - shifted**2 / n, np.maximum(within, 0.0))
    m2 = np.where(stop - start == 1, cells.m2[start], m2)
    return IntervalMoments(n, mean, m2, m2 + between_excess(cells, start, stop, mean * n) / n)


def between_excess(cells: OrderedCells, start: IntArray, stop: IntArray, total_ns: FloatArray) -> FloatArray:
    """X^2 - sum_c X_c^2 in ns^2 of runs of cells: what the factors add to the spread beyond m2."""
    excess: FloatArray = np.zeros(start.size)
    if cells.config_ids is None:
        return excess
    group_of = np.repeat(np.arange(len(cells.group_start) - 1), np.diff(cells.group_start))
    first, last = group_of[start], group_of[stop - 1]
    several = np.array([ids.size > 1 for ids in cells.config_ids])
    mixed = (first < last) | several[first]
    squares = _difference(cells.config_squares, first[mixed], last[mixed] + 1)
    excess[mixed] = np.maximum(total_ns[mixed] ** 2 - squares, 0.0)
    return excess


def exact_moments(cells: OrderedCells, starts: IntArray, stops: IntArray) -> IntervalMoments:
    """Moments of a few runs of cells, each centred on its own mean, so that tiny spreads lose nothing.

    starts and stops of shape (strata,), runs as in interval_moments; they may overlap.
    """
    size = stops - starts
    first = np.cumsum(size) - size
    cell = np.arange(int(size.sum())) + np.repeat(starts - first, size)
    n = np.add.reduceat(cells.n[cell], first)
    mean = np.add.reduceat(cells.sum_ns[cell], first) / n
    deviation = cells.mean_ns[cell] - np.repeat(mean, size)
    m2 = np.add.reduceat(cells.m2[cell] + cells.n[cell] * deviation**2, first)
    low, high = (
        np.minimum.reduceat(cells.min_ns[cell], first),
        np.maximum.reduceat(cells.max_ns[cell], first),
    )
    m2 = np.where(low == high, 0.0, m2)
    return IntervalMoments(n, mean, m2, m2 + between_excess(cells, starts, stops, mean * n) / n)


def _difference(values: npt.NDArray[_Number], start: IntArray, stop: IntArray) -> npt.NDArray[_Number]:
    running = np.zeros(values.size + 1, dtype=values.dtype)
    np.cumsum(values, out=running[1:])
    difference: npt.NDArray[_Number] = running[stop] - running[start]
    return difference


def _ranked_configurations(buckets: Buckets, limit: int) -> IntArray:
    """Group of each bucket: rank of its configuration by mean duration, neighbours merged beyond the limit."""
    ids, position = np.unique(buckets.config, return_inverse=True)
    launches, time = (np.zeros(ids.size, dtype=np.int64) for _ in range(2))
    np.add.at(launches, position, buckets.n)
    np.add.at(time, position, buckets.sum_ns)
    mean = time / launches
    by_mean = np.lexsort((ids, mean))
    groups = np.arange(ids.size)
    if ids.size > limit:
        octaves, one_group = np.log(mean[by_mean]), np.zeros(ids.size, dtype=np.int64)
        groups = _runs(one_group, octaves, _finest_step(one_group, octaves, limit))
    rank = np.empty(ids.size, dtype=np.int64)
    rank[by_mean] = groups
    return rank[position]


def _cell_numbers(buckets: Buckets, group: IntArray, limit: int, coarse: bool) -> IntArray:
    several = np.zeros(group[-1] + 1, dtype=np.bool_)
    several[group[np.flatnonzero((np.diff(group) == 0) & (np.diff(buckets.config) != 0))]] = True
    # A group of several configurations is never cut inside, so its buckets share one place on the grid.
    octaves = np.where(several[group], 0.0, np.log(buckets.sum_ns / buckets.n))
    step = _finest_step(group, octaves, limit) if several.any() or group.size > limit else 0.0
    fewest = max(COARSE_CELLS, int(group[-1]) + 1)
    if coarse and group.size > fewest:
        # Twice the step joins pairs of cells, so that coarse strata are among those allowed on all cells.
        step = step or _finest_step(group, octaves, fewest)
        while _runs(group, octaves, step)[-1] >= fewest:
            step *= 2.0
    return _runs(group, octaves, step) if step else np.arange(group.size)


def _finest_step(group: IntArray, octaves: FloatArray, limit: int) -> float:
    """Least step of a grid of logarithms that leaves at most `limit` cells (never fewer than groups)."""
    low, high = np.log(_FINEST_STEP), np.log(_COARSEST_STEP)
    for _ in range(40):
        middle = (low + high) / 2
        if _runs(group, octaves, float(np.exp(middle)))[-1] < limit:
            high = middle
        else:
            low = middle
    return float(np.exp(high))


def _runs(group: IntArray, octaves: FloatArray, step: float) -> IntArray:
    """Numbers of runs of neighbours of one group that fall on the same step of the grid."""
    changes = (np.diff(group) != 0) | (np.diff(np.floor(octaves / step)) != 0)
    return np.concatenate(([0], np.cumsum(changes))).astype(np.int64)


def _assembled(buckets: Buckets, group: IntArray, cell: IntArray, use_configurations: bool) -> OrderedCells:
    first = np.concatenate(([0], np.flatnonzero(np.diff(cell)) + 1))
    merged = merged_buckets(buckets, first)
    group_first = np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1))
    group_start = np.append(cell[group_first], cell[-1] + 1).astype(np.int64)
    ids: list[IntArray] = []
    squares = np.empty(group_first.size)
    for g, part in enumerate(np.split(np.arange(group.size), group_first[1:])):
        unique, position = np.unique(buckets.config[part], return_inverse=True)
        time = np.bincount(position, weights=buckets.sum_ns[part].astype(np.float64))
        ids.append(unique)
        squares[g] = float(np.sum(time**2))
    return OrderedCells(
        n=merged.n,
        sum_ns=merged.sum_ns,
        m2=merged.m2,
        min_ns=merged.min_ns,
        max_ns=merged.max_ns,
        group_start=group_start,
        config_ids=tuple(ids) if use_configurations else None,
        config_squares=squares,
    )
