"""Solutions of all kernels found so far, and the multiplier at which they would meet a variance bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.optimal.pareto import Choices, undominated
from stemroot_spark.optimal.programme import FRONTIER_COLUMNS

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class Master(NamedTuple):
    """The bound relaxed over mixtures of the solutions at hand: an upper limit of every dual value.

    multiplier: lambda in 1 / ns that maximises value_ns = sum min (cost + lambda V) - lambda bound.
    """

    multiplier: float
    value_ns: float


class Dual(NamedTuple):
    """Sum over kernels of the least cost + lambda V over all allowed strata, in ns, at one multiplier."""

    multiplier: float
    value_ns: float


def stratum_variance(rows: pd.DataFrame) -> FloatArray:
    """Planning variance of each row in ns^2.

    Expansion: N^2 E[S_y^2] (1/m - 1/N), exactly 0 where m = N. Rows with `is_pps`: G / m, where model_stddev_ns is
    sqrt(G) / N.
    """
    n, m = (rows[name].to_numpy(dtype=np.float64) for name in ("n_population", "n_samples"))
    spread = rows["model_stddev_ns"].to_numpy(dtype=np.float64) ** 2
    unseen = n - m
    if "is_pps" in rows.columns:
        unseen = np.where(rows["is_pps"].to_numpy(dtype=np.bool_), n, unseen)
    variance: FloatArray = n * spread * unseen / m
    return variance


def stratum_cost(rows: pd.DataFrame) -> FloatArray:
    """Expected simulated time of each row in ns: its samples times unit_cost_ns, where absent mean_ns."""
    unit = rows["unit_cost_ns" if "unit_cost_ns" in rows.columns else "mean_ns"]
    cost: FloatArray = rows["n_samples"].to_numpy(dtype=np.int64) * unit.to_numpy(dtype=np.float64)
    return cost


class _Entries(NamedTuple):
    """Solutions, ascending by kernel and cost: where their rows are. Arrays of shape (solutions,)."""

    kernel: IntArray
    cost_ns: FloatArray
    variance: FloatArray
    part: IntArray
    first: IntArray
    last: IntArray

    def joined(self, other: _Entries) -> _Entries:
        """Both, sorted, without those that another solution of the kernel beats or equals."""
        kernel, cost, variance = (np.append(a, b) for a, b in zip(self[:3], other[:3], strict=True))
        part, first, last = (np.append(a, b) for a, b in zip(self[3:], other[3:], strict=True))
        by_kernel = np.argsort(kernel, kind="stable")
        groups = np.split(by_kernel, np.flatnonzero(np.diff(kernel[by_kernel])) + 1)
        kept = np.concatenate([group[undominated(cost[group], variance[group])] for group in groups])
        return _Entries(kernel[kept], cost[kept], variance[kept], part[kept], first[kept], last[kept])


class Candidates:
    """Undominated solutions per kernel; rows of FRONTIER_SCHEMA are kept so that a plan can be written from them."""

    def __init__(self) -> None:
        self._rows: list[pd.DataFrame] = []
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
        self._entries = _Entries(none, nothing, nothing, none, none, none)
        self._choices: list[Choices] = []
        self.total_ns = 0.0

    def add(self, rows: pd.DataFrame) -> list[Dual]:
        """Takes solutions of all kernels, in any order; returns the sum of their dual values per multiplier.

        DataError when there are no rows, or rows that lack columns of FRONTIER_SCHEMA.
        """
        missing = [name for name in FRONTIER_COLUMNS if name not in rows.columns]
        if missing or rows.empty:
            raise DataError(f"solutions without {', '.join(missing) or 'rows'}: plan at least one kernel")
        order = np.lexsort([rows[name].to_numpy() for name in ("stratum_id", "solution", "kernel_id")])
        rows = rows.iloc[order].reset_index(drop=True)
        kernel, solution = (rows[name].to_numpy(dtype=np.int64) for name in ("kernel_id", "solution"))
        starts = np.append(True, (np.diff(kernel) != 0) | (np.diff(solution) != 0))
        first = np.flatnonzero(starts)
        time = stratum_cost(rows)
        fresh = _Entries(
            kernel=kernel[first],
            cost_ns=np.add.reduceat(time, first),
            variance=np.add.reduceat(stratum_variance(rows), first),
            part=np.full(first.size, len(self._rows)),
            first=first,
            last=np.append(first[1:], len(rows)),
        )
        if not self._rows:
            one = rows.loc[rows["solution"] == rows["solution"].iloc[0]]
            self.total_ns = float((one["n_population"] * one["mean_ns"]).sum())
        self._rows.append(rows)
        self._entries = self._entries.joined(fresh)
        starts_kernel = np.flatnonzero(np.diff(self._entries.kernel)) + 1
        costs, variances = (np.split(a, starts_kernel) for a in self._entries[1:3])
        self._choices = [Choices(c, v) for c, v in zip(costs, variances, strict=True)]
        return self._duals(rows["multiplier"].to_numpy()[first], rows["dual_ns"].to_numpy()[first])

    def _duals(self, multipliers: FloatArray, dual_ns: FloatArray) -> list[Dual]:
        distinct, place = np.unique(multipliers, return_inverse=True)
        sums = np.bincount(place, dual_ns)
        return [Dual(float(m), float(d)) for m, d in zip(distinct, sums, strict=True)]

    def choices(self) -> list[Choices]:
        """Choices of each kernel, kernels ascending by kernel_id, choices ascending by cost."""
        return self._choices

    def rows(self, choice: IntArray) -> pd.DataFrame:
        """Rows of the chosen solution of each kernel; choice of shape (kernels,), as positions in choices()."""
        sizes = np.array([c.cost_ns.size for c in self._choices])
        entries = self._entries
        picked = np.cumsum(sizes) - sizes + choice
        parts = [
            self._rows[part].iloc[first:last]
            for part, first, last in zip(
                entries.part[picked], entries.first[picked], entries.last[picked], strict=True
            )
        ]
        chosen: pd.DataFrame = pd.concat(parts, ignore_index=True)
        return chosen

    def master(self, bound: float) -> Master:
        """Multiplier at which the solutions at hand meet the bound (ns^2), by bisection on the sign of the slope."""
        cost, variance = self._padded()
        kernels = np.arange(len(cost))

        def reduced(multiplier: float) -> tuple[float, float]:
            values = cost + multiplier * variance
            best = values.argmin(axis=1)
            slope = float(variance[kernels, best].sum()) - bound
            return float(values[kernels, best].sum()) - multiplier * bound, slope

        if reduced(0.0)[1] <= 0.0:
            return Master(0.0, reduced(0.0)[0])
        scale = np.log(float(cost[:, 0].sum()) / bound)
        low, high = scale - 60.0, scale + 60.0
        for _ in range(60):
            middle = (low + high) / 2.0
            if reduced(float(np.exp(middle)))[1] > 0.0:
                low = middle
            else:
                high = middle
        multiplier = float(np.exp(high))
        return Master(multiplier, reduced(multiplier)[0])

    def _padded(self) -> tuple[FloatArray, FloatArray]:
        width = max(c.cost_ns.size for c in self._choices)
        shape = (len(self._choices), width)
        cost, variance = np.full(shape, np.inf), np.zeros(shape)
        for k, choice in enumerate(self._choices):
            cost[k, : choice.cost_ns.size] = choice.cost_ns
            variance[k, : choice.variance.size] = choice.variance
        return cost, variance
