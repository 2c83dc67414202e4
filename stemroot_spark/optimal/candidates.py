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
    """Planning variance N^2 E[S_y^2] (1/m - 1/N) of each row in ns^2; exactly 0 where m = N."""
    n, m = (rows[name].to_numpy(dtype=np.float64) for name in ("n_population", "n_samples"))
    spread = rows["model_stddev_ns"].to_numpy(dtype=np.float64) ** 2
    variance: FloatArray = n * spread * (n - m) / m
    return variance


class Candidates:
    """Undominated solutions per kernel; rows of FRONTIER_SCHEMA are kept so that a plan can be written from them."""

    def __init__(self) -> None:
        self._rows: list[pd.DataFrame] = []
        self._index = pd.DataFrame(
            {
                "kernel_id": np.zeros(0, dtype=np.int64),
                "cost_ns": np.zeros(0),
                "variance": np.zeros(0),
                "part": np.zeros(0, dtype=np.int64),
                "first": np.zeros(0, dtype=np.int64),
                "last": np.zeros(0, dtype=np.int64),
            }
        )
        self.total_ns = 0.0

    def add(self, rows: pd.DataFrame) -> list[Dual]:
        """Takes solutions of kernels in any order; returns the dual values of multipliers that all kernels share.

        DataError when rows lack columns of FRONTIER_SCHEMA or the first call brings none.
        """
        missing = [name for name in FRONTIER_COLUMNS if name not in rows.columns]
        if missing or (rows.empty and self._index.empty):
            raise DataError(f"solutions without {', '.join(missing) or 'rows'}: plan at least one kernel")
        rows = rows.sort_values(["kernel_id", "solution", "stratum_id"], kind="stable", ignore_index=True)
        kernel, solution = rows["kernel_id"].to_numpy(), rows["solution"].to_numpy()
        starts = np.concatenate(([True], (np.diff(kernel) != 0) | (np.diff(solution) != 0)))
        first = np.flatnonzero(starts)
        time = rows["n_samples"].to_numpy() * rows["mean_ns"].to_numpy()
        fresh = pd.DataFrame(
            {
                "kernel_id": kernel[first],
                "cost_ns": np.add.reduceat(time, first),
                "variance": np.add.reduceat(stratum_variance(rows), first),
                "part": len(self._rows),
                "first": first,
                "last": np.append(first[1:], len(rows)),
            }
        )
        duals = self._duals(rows.iloc[first])
        if not self._rows:
            one = rows.loc[rows["solution"] == rows["solution"].iloc[0]]
            self.total_ns = float((one["n_population"] * one["mean_ns"]).sum())
        self._rows.append(rows)
        index = pd.concat([self._index, fresh], ignore_index=True)
        kept = [
            positions[undominated(*(index[c].to_numpy()[positions] for c in ("cost_ns", "variance")))]
            for positions in index.groupby("kernel_id").indices.values()
        ]
        self._index = index.iloc[np.concatenate(kept)].reset_index(drop=True)
        return duals

    def _duals(self, heads: pd.DataFrame) -> list[Dual]:
        grouped = heads.groupby("multiplier")["dual_ns"]
        return [Dual(float(str(m)), float(np.sum(values.to_numpy()))) for m, values in grouped]

    @property
    def kernel_ids(self) -> IntArray:
        """Kernels in ascending order, shape (kernels,)."""
        return np.unique(self._index["kernel_id"].to_numpy(dtype=np.int64))

    def choices(self) -> list[Choices]:
        """Choices of each kernel, in the order of kernel_ids, ascending by cost."""
        return [
            Choices(*(self._index[c].to_numpy()[positions] for c in ("cost_ns", "variance")))
            for _, positions in sorted(self._index.groupby("kernel_id").indices.items())
        ]

    def rows(self, choice: IntArray) -> pd.DataFrame:
        """Rows of the chosen solution of each kernel; choice of shape (kernels,), as positions in choices()."""
        groups = sorted(self._index.groupby("kernel_id").indices.items())
        picked = [positions[k] for (_, positions), k in zip(groups, choice, strict=True)]
        entries = self._index.iloc[picked]
        places = zip(entries["part"], entries["first"], entries["last"], strict=True)
        parts = [self._rows[part].iloc[first:last] for part, first, last in places]
        chosen: pd.DataFrame = pd.concat(parts, ignore_index=True)
        return chosen

    def master(self, bound: float) -> Master:
        """Multiplier at which the solutions at hand meet the bound (ns^2), by bisection on the sign of the slope."""
        cost, variance = self._padded()
        scale = float(cost[:, 0].sum()) / bound

        def reduced(multiplier: float) -> tuple[float, float]:
            values = cost + multiplier * variance
            best = values.argmin(axis=1)[:, None]
            slope = float(np.take_along_axis(variance, best, 1).sum()) - bound
            return float(np.take_along_axis(values, best, 1).sum()) - multiplier * bound, slope

        if reduced(0.0)[1] <= 0.0:
            return Master(0.0, reduced(0.0)[0])
        low, high = np.log(scale) - 60.0, np.log(scale) + 60.0
        while high - low > 1e-12:
            middle = (low + high) / 2.0
            if reduced(float(np.exp(middle)))[1] > 0.0:
                low = middle
            else:
                high = middle
            if middle in (low, high) and high - low < 1e-10:
                break
        multiplier = float(np.exp(high))
        return Master(multiplier, reduced(multiplier)[0])

    def _padded(self) -> tuple[FloatArray, FloatArray]:
        choices = self.choices()
        width = max(c.cost_ns.size for c in choices)
        cost, variance = np.full((len(choices), width), np.inf), np.zeros((len(choices), width))
        for k, choice in enumerate(choices):
            cost[k, : choice.cost_ns.size] = choice.cost_ns
            variance[k, : choice.variance.size] = choice.variance
        return cost, variance
