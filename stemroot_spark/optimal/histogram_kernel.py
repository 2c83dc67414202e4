"""Kernels planned from one profile, by the histogram of their durations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.optimal.buckets import Buckets, config_buckets, merged_buckets
from stemroot_spark.optimal.calibration import merge_starts, simulated_draws, stratum_draws, stratum_masks
from stemroot_spark.optimal.cells import OrderedCells, cells_of_buckets
from stemroot_spark.optimal.local import Columns, KernelKind, plan_in_process
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.near import cells_alternatives
from stemroot_spark.optimal.plan import OptimalPlan, PlanOptions
from stemroot_spark.optimal.programme import FRONTIER_SCHEMA, cells_frontier, solution_columns

FloatArray = npt.NDArray[np.float64]


class HistogramKernel:
    """One kernel of a histogram: a KernelWork with FRONTIER_SCHEMA. buckets: as config_buckets returns them."""

    def __init__(self, kernel_id: int, buckets: Buckets, model: PlanningModel) -> None:
        self._kernel_id = kernel_id
        self._buckets = buckets
        self._model = model
        self._cells: dict[bool, OrderedCells] = {}

    @classmethod
    def of_rows(cls, rows: pd.DataFrame, model: PlanningModel) -> HistogramKernel:
        """From rows of one kernel: kernel_id, launch_config_id where the model uses it, HISTOGRAM_COLUMNS."""
        buckets = config_buckets(rows, model.use_configurations)
        return cls(int(rows["kernel_id"].iloc[0]), buckets, model)

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> Columns:
        """Optimal strata for each multiplier; coarse: on few cells, for a wide ladder: dual_ns then bounds nothing."""
        cells = self._ordered(coarse)
        solutions = cells_frontier(cells, multipliers, self._model)
        return solution_columns(self._kernel_id, cells, solutions, self._model)

    def alternatives(self, multiplier: float, excess_ns: float) -> Columns:
        """Undominated strata within excess_ns of the optimum, `solution` numbering them."""
        cells = self._ordered(False)
        solutions = cells_alternatives(cells, multiplier, excess_ns, self._model)
        return solution_columns(self._kernel_id, cells, solutions, self._model)

    def simulate(
        self, strata: pd.DataFrame, *, seed: int, first: int, draws: int, factor: float
    ) -> pd.DataFrame:
        """Errors of the estimated time under the planning model.

        strata: the kernel's rows of a plan (launch_config_ids, lower_ns, upper_ns, n_population, n_samples). Each draw
        takes a sample, a lognormal factor per configuration and the noise of every launch, and compares estimate and
        truth of the simulated time, both scaled by factor. Draw numbers depend on seed and kernel alone.
        """
        buckets, model = self._buckets, self._model
        parts = [_fewer(buckets.at(inside)) for inside in stratum_masks(buckets, strata)]
        configs = np.unique(buckets.config)
        samples = strata["n_samples"].tolist()

        def errors(rng: np.random.Generator, factors: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
            for part, m in zip(parts, samples, strict=True):
                known = factors[:, np.searchsorted(configs, np.unique(part.config))]
                yield stratum_draws(rng, part, m, known, model.launch_noise)

        spread = (model.factor_spread, configs.size)
        return simulated_draws(
            self._kernel_id, errors, spread, seed=seed, first=first, draws=draws, factor=factor
        )

    def _ordered(self, coarse: bool) -> OrderedCells:
        if coarse not in self._cells:
            self._cells[coarse] = cells_of_buckets(self._buckets, self._model, coarse=coarse)
        return self._cells[coarse]


HISTOGRAMS = KernelKind("histogram", HistogramKernel.of_rows, FRONTIER_SCHEMA)


def plan_histogram(histogram: pd.DataFrame, options: PlanOptions) -> OptimalPlan:
    """Optimal plan of all kernels of a histogram, in this process.

    histogram: kernel_id, launch_config_id (for `transfer`) and HISTOGRAM_COLUMNS. DataError for bad rows or options.
    """
    return plan_in_process(histogram, HISTOGRAMS, options)


def _fewer(part: Buckets) -> Buckets:
    return merged_buckets(part, merge_starts(part.config))
