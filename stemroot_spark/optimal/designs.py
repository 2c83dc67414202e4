"""The programme of two profiles: per interval of x the cheaper of two designs, judged by x2.

Expansion draws m of N launches alike: unit cost mean x2, variance N^2 E[S^2] (1/m - 1/N) with S^2 of x2. PPS draws
with probability m x / X: unit cost sum(x x2) / X, variance G / m with G = X R - Y^2, where X = sum x, Y = sum x2 and
R = sum x2^2 / x (Hansen and Hurwitz 1943; Cochran, Sampling Techniques, section 9A). A launch with m x >= X would be
drawn for certain; PPS is offered only up to the m at which that begins, so that such launches become a stratum of
their own, simulated whole. With a factor per configuration of relative spread s and noise of relative spread p on
every x2 that the simulation adds, y = x2 f_c e, and the expectation of X sum y^2 / x - (sum y)^2 is
G = (X R - Y^2) + s^2 (X R - sum_c Y_c^2) + p^2 (1 + s^2) (X R - sum x2^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stemroot_spark.optimal.cells import (
    IntervalMoments,
    OrderedCells,
    between_excess,
    exact_moments,
    interval_moments,
)
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.pairs import PRIOR_DEGREES_OF_FREEDOM, PairedCells
from stemroot_spark.optimal.programme import (
    FRONTIER_SCHEMA,
    Intervals,
    allowed_runs,
    best_samples,
    cell_runs,
    check_multipliers,
    chosen_intervals,
    forward,
    lagrangian,
    stratum_columns,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# mean_ns and stddev_ns speak of x2, the profile_ columns of x. model_stddev_ns is sqrt(G) / N; unit_cost_ns and
# profile_cost_ns are the expected x2 and x of one draw.
PAIRED_SCHEMA = (
    f"{FRONTIER_SCHEMA}, is_pps BOOLEAN, unit_cost_ns DOUBLE, profile_mean_ns DOUBLE, profile_stddev_ns DOUBLE, "
    "profile_cost_ns DOUBLE"
)

_RELATIVE_TIE = 1e-12


class Designs(NamedTuple):
    """Both designs of runs of cells [start, stop), arrays of shape (runs,).

    n launches; expansion: mean_ns of x2 and spread N^2 E[S^2]; PPS: cost of a draw, G, and the largest m, ns and ns^2.
    """

    n: FloatArray
    mean_ns: FloatArray
    spread: FloatArray
    pps_cost_ns: FloatArray
    pps_spread: FloatArray
    pps_most: FloatArray
    may_be_pps: bool


class PairedSolution(NamedTuple):
    """Strata of one kernel at one multiplier: cells [starts[h], stops[h]), samples and design, shape (strata,)."""

    multiplier: float
    dual_ns: float
    starts: IntArray
    stops: IntArray
    samples: IntArray
    is_pps: BoolArray


def designs_of(
    cells: PairedCells, start: IntArray, stop: IntArray, model: PlanningModel, *, exact: bool = False
) -> Designs:
    """Both designs of runs of cells; exact: with moments centred run by run, for the few strata of a plan."""
    x2 = exact_moments(cells.repeat, start, stop) if exact else interval_moments(cells.repeat, start, stop)
    degrees = np.maximum(_sums(cells.n_matched, start, stop) - 1.0, 0.0)
    n, y = x2.n.astype(np.float64), x2.n * x2.mean_ns
    relative, prior = cells.relative_variance, PRIOR_DEGREES_OF_FREEDOM
    # Expansion: x alone may spread x2 however few launches there are, so that a small spread is raised and no large
    # one lowered.
    variance = x2.m2 / np.maximum(n - 1.0, 1.0)
    shrunk = (degrees * variance + prior * relative * x2.mean_ns**2) / (degrees + prior)
    raised = np.maximum(shrunk - variance, 0.0) * (n - 1.0)
    moments = IntervalMoments(x2.n, x2.mean_ns, x2.m2 + raised, x2.between_m2 + raised)
    spread = n**2 * model.expected_variance(*moments)
    x = _sums(cells.profile.sum_ns, start, stop)
    own = np.maximum(x * _sums(cells.difference_ns, start, stop) - (x - y) ** 2, 0.0)
    own = (degrees * own + prior * relative * y**2) / (degrees + prior)
    excess = between_excess(cells.repeat, start, stop, y)
    noise = model.launch_noise**2 * (1.0 + model.factor_spread**2)
    between_launches = np.maximum(own + y**2 - (x2.m2 + y**2 / n), 0.0)
    pps = own + model.factor_spread**2 * (own + excess) + noise * between_launches
    return Designs(
        n=n,
        mean_ns=x2.mean_ns,
        spread=spread,
        pps_cost_ns=_sums(cells.cross, start, stop) / x,
        pps_spread=pps,
        pps_most=np.floor(x / _largest(cells.profile, start, stop)),
        may_be_pps=cells.may_be_pps,
    )


def paired_frontier(
    cells: PairedCells, multipliers: Sequence[float], model: PlanningModel
) -> list[PairedSolution]:
    """Optimal strata, designs and samples of one kernel for each multiplier."""
    check_multipliers(multipliers)
    whole = designs_of(cells, np.array([0]), np.array([len(cells.n_matched)]), model)
    least_ns = float((cells.repeat.sum_ns / cells.repeat.n).min())
    solutions: list[PairedSolution] = []
    programme: tuple[Intervals, Designs] | None = None
    for multiplier in multipliers:
        one = _single_launch(whole, multiplier, least_ns, len(cells.n_matched))
        if one is None:
            programme = programme or _programme(cells, model)
            one = _solve(*programme, multiplier)
        solutions.append(one)
    return solutions


def paired_columns(
    kernel_id: int, cells: PairedCells, solutions: Sequence[PairedSolution], model: PlanningModel
) -> dict[str, Any]:
    """Columns of PAIRED_SCHEMA for solutions of one kernel, strata in the order of the cells."""
    starts, stops = cell_runs(solutions)
    is_pps = np.concatenate([s.is_pps for s in solutions])
    designs = designs_of(cells, starts, stops, model, exact=True)
    x = exact_moments(cells.profile, starts, stops)
    x2 = exact_moments(cells.repeat, starts, stops)
    return {
        **stratum_columns(kernel_id, cells.profile, solutions),
        "n_population": x.n,
        "mean_ns": x2.mean_ns,
        "stddev_ns": np.sqrt(x2.m2 / np.maximum(x2.n - 1, 1)),
        "model_stddev_ns": np.sqrt(np.where(is_pps, designs.pps_spread, designs.spread)) / designs.n,
        "is_pps": is_pps,
        "unit_cost_ns": np.where(is_pps, designs.pps_cost_ns, designs.mean_ns),
        "profile_mean_ns": x.mean_ns,
        "profile_stddev_ns": np.sqrt(x.m2 / np.maximum(x.n - 1, 1)),
        "profile_cost_ns": np.where(is_pps, (x.m2 / x.n + x.mean_ns**2) / x.mean_ns, x.mean_ns),
    }


def _single_launch(whole: Designs, multiplier: float, least_ns: float, n_cells: int) -> PairedSolution | None:
    """One stratum with one sample, where every other choice costs more: they all take a second launch.

    With several strata the largest of their unit costs is at least the kernel's mean x2, and any is at least the
    least mean of a cell.
    """
    mean, n = float(whole.mean_ns[0]), float(whole.n[0])
    expansion = mean + multiplier * float(whole.spread[0]) * (n - 1.0) / n
    pps = float(whole.pps_cost_ns[0]) + multiplier * float(whole.pps_spread[0])
    is_pps = whole.may_be_pps and pps < expansion * (1.0 - _RELATIVE_TIE)
    value = pps if is_pps else expansion
    if value > mean + least_ns:
        return None
    place = np.array([0]), np.array([n_cells])
    return PairedSolution(multiplier, value, *place, np.array([1]), np.array([is_pps]))


def _programme(cells: PairedCells, model: PlanningModel) -> tuple[Intervals, Designs]:
    start, stop = allowed_runs(cells.profile)
    designs = designs_of(cells, start, stop, model)
    first = np.searchsorted(stop, np.arange(len(cells.n_matched) + 2))
    return Intervals(start, stop, designs.n, designs.mean_ns, designs.spread, first), designs


def _solve(intervals: Intervals, designs: Designs, multiplier: float) -> PairedSolution:
    samples = best_samples(intervals, multiplier)
    costs = lagrangian(intervals, multiplier, samples)
    ratio = multiplier * designs.pps_spread / designs.pps_cost_ns
    pps_samples = np.clip(np.ceil((np.sqrt(1.0 + 4.0 * ratio) - 1.0) / 2.0), 1.0, designs.pps_most)
    pps_costs = pps_samples * designs.pps_cost_ns + multiplier * designs.pps_spread / pps_samples
    is_pps = (pps_costs < costs * (1.0 - _RELATIVE_TIE)) & designs.may_be_pps
    best, chosen = forward(intervals, np.where(is_pps, pps_costs, costs))
    index = chosen_intervals(intervals, chosen)
    return PairedSolution(
        multiplier,
        float(best[-1]),
        intervals.start[index],
        intervals.stop[index],
        np.where(is_pps, pps_samples, samples)[index].astype(np.int64),
        is_pps[index],
    )


def _sums(values: npt.NDArray[np.int64] | FloatArray, start: IntArray, stop: IntArray) -> FloatArray:
    running = np.append(values[:1] * 0, np.cumsum(values))
    difference: FloatArray = (running[stop] - running[start]).astype(np.float64)
    return difference


def _largest(cells: OrderedCells, start: IntArray, stop: IntArray) -> FloatArray:
    """Longest duration of runs of cells: the last one's inside a configuration, else the most over configurations."""
    longest = cells.max_ns[stop - 1].astype(np.float64)
    if len(cells.group_start) == 2:
        return longest
    group_of = np.repeat(np.arange(len(cells.group_start) - 1), np.diff(cells.group_start))
    group_longest = np.maximum.reduceat(cells.max_ns, cells.group_start[:-1])
    mixed = np.flatnonzero(group_of[start] < group_of[stop - 1])
    first, last = group_of[start[mixed]], group_of[stop[mixed] - 1]
    for g in np.unique(first):
        here = first == g
        longest[mixed[here]] = np.maximum.accumulate(group_longest[g:])[last[here] - g]
    return longest
