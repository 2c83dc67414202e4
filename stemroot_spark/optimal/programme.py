"""Dynamic programme of one kernel: the cheapest strata and sample sizes for given multipliers.

For a multiplier lambda (1 / ns) a stratum of N launches of mean mu with G = N^2 E[S_y^2] costs
g = min over m of m mu + lambda G (1/m - 1/N), and the kernel D = min over partitions of sum g: the Lagrangian of
"least simulated time under a bound on the variance", which separates over kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stemroot_spark.errors import DataError
from stemroot_spark.optimal.cells import OrderedCells, exact_moments, interval_moments
from stemroot_spark.optimal.model import PlanningModel

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# One row per kernel, solution and stratum. dual_ns is D at the multiplier; stddev_ns that of the profile and
# model_stddev_ns the root of E[S_y^2], both with divisor n - 1. launch_config_ids is null for all configurations.
FRONTIER_SCHEMA = (
    "kernel_id BIGINT, solution INT, multiplier DOUBLE, dual_ns DOUBLE, stratum_id INT, "
    "launch_config_ids ARRAY<BIGINT>, lower_ns BIGINT, upper_ns BIGINT, n_population BIGINT, n_samples BIGINT, "
    "mean_ns DOUBLE, stddev_ns DOUBLE, model_stddev_ns DOUBLE"
)


def column_names(schema: str) -> tuple[str, ...]:
    """Names of the columns of a schema `name TYPE, ...`."""
    return tuple(column.strip().split(" ")[0] for column in schema.split(","))


FRONTIER_COLUMNS = column_names(FRONTIER_SCHEMA)


class Intervals(NamedTuple):
    """Allowed strata, ascending by stop; shape (intervals,) but for first.

    An interval holds the cells [start, stop), n launches of mean_ns with spread G = N^2 E[S_y^2] in ns^2. Those
    that end at cell j are first[j] to first[j + 1]; first has shape (cells + 2,).
    """

    start: IntArray
    stop: IntArray
    n: FloatArray
    mean_ns: FloatArray
    spread: FloatArray
    first: IntArray


class Solution(NamedTuple):
    """Strata of one kernel at one multiplier: cells [starts[h], stops[h]) and samples m, shape (strata,)."""

    multiplier: float
    dual_ns: float
    starts: IntArray
    stops: IntArray
    samples: IntArray


def cells_frontier(cells: OrderedCells, multipliers: Sequence[float], model: PlanningModel) -> list[Solution]:
    """Optimal solution for each multiplier (1 / ns); a kernel that one launch serves best builds no programme.

    DataError for multipliers that are negative or not finite, or none at all.
    """
    check_multipliers(multipliers)
    alone = SingleLaunch(cells, model)
    programme: Intervals | None = None
    solutions = []
    for multiplier in multipliers:
        solution = alone.solution(multiplier)
        if solution is None:
            programme = programme or allowed_intervals(cells, model)
            solution = solve(programme, multiplier)
        solutions.append(solution)
    return solutions


def check_multipliers(multipliers: Sequence[float]) -> None:
    """DataError unless there are multipliers and all are finite and 0 or above."""
    values = np.asarray(multipliers, dtype=np.float64)
    if not values.size or not (np.isfinite(values) & (values >= 0)).all():
        raise DataError(f"multipliers {list(multipliers)}: give finite numbers, 0 or above")


class SingleLaunch:
    """One stratum with one sample: the choice of most kernels, which then need no programme.

    Any other choice takes a second launch and costs at least mu + min x: with several strata, the largest of
    their means is at least mu. So lambda V(m = 1) + excess <= min x decides exactly.
    """

    def __init__(self, cells: OrderedCells, model: PlanningModel) -> None:
        self._starts, self._stops = np.array([0]), np.array([len(cells)])
        moments = interval_moments(cells, self._starts, self._stops)
        n = float(moments.n[0])
        self._variance = n * (n - 1.0) * float(model.expected_variance(*moments)[0])
        self._mean_ns = float(moments.mean_ns[0])
        self._least_ns = float(cells.min_ns.min())

    def solution(self, multiplier: float, excess_ns: float = 0.0) -> Solution | None:
        """The choice, where every other one lies more than excess_ns above it or is no better; else None."""
        penalty = multiplier * self._variance
        if penalty + excess_ns > self._least_ns:
            return None
        return Solution(multiplier, self._mean_ns + penalty, self._starts, self._stops, np.array([1]))


def allowed_intervals(cells: OrderedCells, model: PlanningModel) -> Intervals:
    """All runs of cells inside one configuration, and all runs of whole neighbouring configurations."""
    start, stop = allowed_runs(cells)
    moments = interval_moments(cells, start, stop)
    n = moments.n.astype(np.float64)
    return Intervals(
        start=start,
        stop=stop,
        n=n,
        mean_ns=moments.mean_ns,
        spread=n**2 * model.expected_variance(*moments),
        first=np.searchsorted(stop, np.arange(len(cells) + 2)),
    )


def allowed_runs(cells: OrderedCells) -> tuple[IntArray, IntArray]:
    """First cell and end of every allowed interval, ascending by the end."""
    starts, stops = [], []
    for low, high in zip(cells.group_start[:-1], cells.group_start[1:], strict=True):
        stop, start = np.tril_indices(high - low)
        starts.append(low + start)
        stops.append(low + stop + 1)
    stop, start = np.tril_indices(len(cells.group_start) - 1, -1)
    starts.append(cells.group_start[start])
    stops.append(cells.group_start[stop + 1])
    start, stop = np.concatenate(starts), np.concatenate(stops)
    order = np.argsort(stop, kind="stable")
    return start[order], stop[order]


def best_samples(intervals: Intervals, multiplier: float) -> FloatArray:
    """Whole m in 1..N that minimises m mu + lambda G (1/m - 1/N) for each interval.

    The smallest m with m (m + 1) mu >= lambda G, from which on one more sample no longer pays.
    """
    ratio = multiplier * intervals.spread / intervals.mean_ns
    samples = np.ceil((np.sqrt(1.0 + 4.0 * ratio) - 1.0) / 2.0)
    return np.clip(samples, 1.0, intervals.n)


def lagrangian(intervals: Intervals, multiplier: float, samples: FloatArray) -> FloatArray:
    """m mu + lambda G (1/m - 1/N) in ns of each interval, exactly m mu where it is simulated whole."""
    unseen = (intervals.n - samples) / (samples * intervals.n)
    return samples * intervals.mean_ns + multiplier * intervals.spread * unseen


def forward(intervals: Intervals, costs: FloatArray) -> tuple[FloatArray, IntArray]:
    """D[j], the least cost of the cells [0, j), shape (cells + 1,), and the interval that ends it."""
    n_cells = intervals.first.size - 2
    best = np.zeros(n_cells + 1)
    chosen = np.full(n_cells + 1, -1, dtype=np.int64)
    bounds = intervals.first.tolist()
    # Inside a configuration all cells before j may start the interval: a slice instead of a gather.
    origin = intervals.start[intervals.first[1:-1]].tolist()
    is_run = (intervals.stop[intervals.first[1:-1]] - origin == np.diff(intervals.first[1:])).tolist()
    for j in range(1, n_cells + 1):
        low, high = bounds[j], bounds[j + 1]
        before = best[origin[j - 1] : j] if is_run[j - 1] else best[intervals.start[low:high]]
        totals = before + costs[low:high]
        k = int(totals.argmin())
        best[j], chosen[j] = totals[k], low + k
    return best, chosen


def chosen_intervals(intervals: Intervals, chosen: IntArray) -> IntArray:
    """The intervals of the best partition of all cells, ascending; chosen as forward returns it."""
    picked = []
    position = chosen.size - 1
    while position > 0:
        picked.append(int(chosen[position]))
        position = int(intervals.start[picked[-1]])
    return np.array(picked[::-1])


def solve(intervals: Intervals, multiplier: float) -> Solution:
    """Optimal partition of one kernel at a multiplier."""
    samples = best_samples(intervals, multiplier)
    best, chosen = forward(intervals, lagrangian(intervals, multiplier, samples))
    index = chosen_intervals(intervals, chosen)
    return Solution(
        multiplier,
        float(best[-1]),
        intervals.start[index],
        intervals.stop[index],
        samples[index].astype(np.int64),
    )


def solution_columns(
    kernel_id: int, cells: OrderedCells, solutions: Sequence[Solution], model: PlanningModel
) -> dict[str, Any]:
    """Columns of FRONTIER_SCHEMA for solutions of one kernel, strata in the order of the cells.

    The interval of a stratum is closed and as tight as its launches. Whole configurations are listed by id, since
    launches of other configurations may lie in the same range of durations.
    """
    moments = exact_moments(cells, *cell_runs(solutions))
    return {
        **stratum_columns(kernel_id, cells, solutions),
        "n_population": moments.n,
        "mean_ns": moments.mean_ns,
        "stddev_ns": np.sqrt(moments.m2 / np.maximum(moments.n - 1, 1)),
        "model_stddev_ns": np.sqrt(model.expected_variance(*moments)),
    }


class StratumRuns(Protocol):
    """What solutions of either programme tell: strata as cells [starts[h], stops[h]), with samples."""

    @property
    def multiplier(self) -> float: ...
    @property
    def dual_ns(self) -> float: ...
    @property
    def starts(self) -> IntArray: ...
    @property
    def stops(self) -> IntArray: ...
    @property
    def samples(self) -> IntArray: ...


def cell_runs(solutions: Sequence[StratumRuns]) -> tuple[IntArray, IntArray]:
    """First cells and cells past the end of the strata of all solutions, one after the other."""
    return np.concatenate([s.starts for s in solutions]), np.concatenate([s.stops for s in solutions])


def stratum_columns(kernel_id: int, cells: OrderedCells, solutions: Sequence[StratumRuns]) -> dict[str, Any]:
    """Columns of FRONTIER_SCHEMA that say which launches a stratum holds and how many are drawn."""
    starts, stops = cell_runs(solutions)
    sizes = [s.starts.size for s in solutions]
    strata = list(zip(starts.tolist(), stops.tolist(), strict=True))
    return {
        "kernel_id": np.full(starts.size, kernel_id),
        "solution": np.repeat(np.arange(len(solutions), dtype=np.int32), sizes),
        "multiplier": np.repeat([s.multiplier for s in solutions], sizes),
        "dual_ns": np.repeat([s.dual_ns for s in solutions], sizes),
        "stratum_id": np.concatenate([np.arange(size, dtype=np.int32) for size in sizes]),
        "launch_config_ids": config_ids_of(cells, starts, stops),
        "lower_ns": np.array([cells.min_ns[a:b].min() for a, b in strata]),
        "upper_ns": np.array([cells.max_ns[a:b].max() for a, b in strata]),
        "n_samples": np.concatenate([s.samples for s in solutions]),
    }


def config_ids_of(cells: OrderedCells, starts: IntArray, stops: IntArray) -> list[list[int] | None]:
    """Launch configurations of runs of cells, sorted; None where configurations are ignored."""
    if cells.config_ids is None:
        return [None] * starts.size
    first = np.searchsorted(cells.group_start, starts, side="right") - 1
    last = np.searchsorted(cells.group_start, stops, side="left")
    return [
        sorted(int(i) for ids in cells.config_ids[a:b] for i in ids) for a, b in zip(first, last, strict=True)
    ]
