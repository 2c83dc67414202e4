"""Plans kernels in this process, from histogram rows in memory: for single kernels, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.optimal.buckets import Buckets, config_buckets
from stemroot_spark.optimal.calibration import simulate_buckets, sum_of_draws
from stemroot_spark.optimal.cells import OrderedCells, cells_of_buckets
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.near import cells_alternatives
from stemroot_spark.optimal.plan import (
    OptimalPlan,
    PlanOptions,
    plan_in_process,
    plan_kernel_alone,
)
from stemroot_spark.optimal.programme import Solved, cells_frontier, solution_rows


def plan_histogram(histogram: pd.DataFrame, options: PlanOptions) -> OptimalPlan:
    """Optimal plan of all kernels of a histogram, in this process.

    histogram: kernel_id, launch_config_id (for `transfer`) and HISTOGRAM_COLUMNS. DataError for bad rows or options.
    """
    return plan_in_process(LocalWork.of_histogram(histogram, options.model), options)


def plan_kernel_frame(frame: pd.DataFrame, options: PlanOptions) -> pd.DataFrame:
    """plan_kernel_alone from the histogram rows of one kernel: the body of a grouped pandas UDF."""
    return plan_kernel_alone(LocalWork.of_histogram(frame, options.model), options)


class LocalWork:
    """Passes over kernels in memory: a Work. buckets: by kernel, as config_buckets returns them."""

    def __init__(self, buckets: Mapping[int, Buckets], model: PlanningModel) -> None:
        self.buckets = dict(buckets)
        self.model = model
        self._cells: dict[bool, dict[int, OrderedCells]] = {}

    @classmethod
    def of_histogram(cls, histogram: pd.DataFrame, model: PlanningModel) -> LocalWork:
        """Work over the kernels of histogram rows; DataError without rows or kernel_id."""
        if "kernel_id" not in histogram.columns or histogram.empty:
            raise DataError("histogram without kernels: rows with kernel_id are needed")
        groups = histogram.groupby("kernel_id", sort=True)
        buckets = {int(str(k)): config_buckets(rows, model.use_configurations) for k, rows in groups}
        return cls(buckets, model)

    def kernels(self) -> list[LocalWork]:
        """A Work over each kernel alone."""
        return [LocalWork({kernel: buckets}, self.model) for kernel, buckets in self.buckets.items()]

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> pd.DataFrame:
        """kernel_frontier of every kernel, one after the other."""
        cells = self._ordered(coarse)
        solved = [Solved(k, c, cells_frontier(c, multipliers, self.model)) for k, c in cells.items()]
        return solution_rows(solved, self.model)

    def alternatives(self, multiplier: float, excess_ns: float) -> pd.DataFrame:
        """kernel_alternatives of every kernel, one after the other."""
        cells = self._ordered(False)
        solved = [
            Solved(k, c, cells_alternatives(c, multiplier, excess_ns, self.model)) for k, c in cells.items()
        ]
        return solution_rows(solved, self.model)

    def simulate(
        self, strata: pd.DataFrame, factors: Mapping[int, float], *, seed: int, first: int, draws: int
    ) -> pd.DataFrame:
        """Sum over kernels of their simulated draws."""
        parts = [
            simulate_buckets(
                int(str(kernel)),
                self.buckets[int(str(kernel))],
                rows,
                self.model,
                seed=seed,
                first=first,
                draws=draws,
                factor=factors.get(int(str(kernel)), 1.0),
            )
            for kernel, rows in strata.groupby("kernel_id", sort=True)
        ]
        return sum_of_draws(parts)

    def _ordered(self, coarse: bool) -> dict[int, OrderedCells]:
        if coarse not in self._cells:
            self._cells[coarse] = {
                kernel: cells_of_buckets(buckets, self.model, coarse=coarse)
                for kernel, buckets in self.buckets.items()
            }
        return self._cells[coarse]
