"""Passes over the kernels of two profiles: programme and simulation of one kernel, and a Work in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.optimal.calibration import (
    merge_starts,
    simulated_draws,
    stratum_draws,
    stratum_masks,
    sum_of_draws,
)
from stemroot_spark.optimal.designs import paired_frontier, paired_rows
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.pairs import PairedBuckets, paired_buckets, paired_cells
from stemroot_spark.optimal.plan import (
    OptimalPlan,
    PlanOptions,
    plan_in_process,
    plan_kernel_alone,
)

FloatArray = npt.NDArray[np.float64]

# The programme weighs two designs for every interval; half the cells give a plan within a percent of the whole's cost.
PAIRED_MAX_CELLS = 256
# Multipliers around the best one, whose solutions the integer finish may mix.
_NEAR = tuple(np.exp(np.linspace(-0.35, 0.35, 9)).tolist())


def plan_pairs(pairs: pd.DataFrame, options: PlanOptions) -> OptimalPlan:
    """Plan of all kernels of two profiles in this process.

    pairs: kernel_id and the columns of stemroot_spark.optimal.pairs. Times of the plan are those of the second
    profile, its strata have the columns of PAIRED_SCHEMA besides. DataError for bad rows or options.
    """
    return plan_in_process(PairedWork.of_pairs(pairs, options.model), options)


def plan_pairs_of_kernel(frame: pd.DataFrame, options: PlanOptions) -> pd.DataFrame:
    """plan_kernel_alone from the pairs of one kernel: the body of a grouped pandas UDF."""
    return plan_kernel_alone(PairedWork.of_pairs(frame, options.model), options)


def kernel_pair_frontier(
    frame: pd.DataFrame, multipliers: Sequence[float], model: PlanningModel, *, coarse: bool = False
) -> pd.DataFrame:
    """Rows of PAIRED_SCHEMA of one kernel for each multiplier: the body of a grouped pandas UDF."""
    buckets, relative_variance = paired_buckets(frame, model)
    cells = paired_cells(buckets, relative_variance, model, coarse=coarse)
    kernel_id = int(frame["kernel_id"].iloc[0])
    return paired_rows(kernel_id, cells, paired_frontier(cells, multipliers, model), model)


def near_multipliers(multiplier: float) -> list[float]:
    """Multipliers whose solutions lie near the optimum at the given one."""
    return [multiplier * step for step in _NEAR]


class PairedWork:
    """Passes over kernels in memory: a Work. buckets: by kernel, as paired_buckets returns them."""

    def __init__(self, buckets: Mapping[int, tuple[PairedBuckets, float]], model: PlanningModel) -> None:
        self.buckets = dict(buckets)
        self.model = model

    @classmethod
    def of_pairs(cls, pairs: pd.DataFrame, model: PlanningModel) -> PairedWork:
        """Work over the kernels of rows with kernel_id; DataError without rows or kernel_id."""
        if "kernel_id" not in pairs.columns or pairs.empty:
            raise DataError("pairs without kernels: rows with kernel_id are needed")
        groups = pairs.groupby("kernel_id", sort=True)
        return cls({int(str(kernel)): paired_buckets(rows, model) for kernel, rows in groups}, model)

    def kernels(self) -> list[PairedWork]:
        """A Work over each kernel alone."""
        return [PairedWork({kernel: buckets}, self.model) for kernel, buckets in self.buckets.items()]

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> pd.DataFrame:
        """kernel_pair_frontier of every kernel, one after the other."""
        parts = []
        for kernel, (buckets, relative_variance) in self.buckets.items():
            cells = paired_cells(buckets, relative_variance, self.model, coarse=coarse)
            solutions = paired_frontier(cells, multipliers, self.model)
            parts.append(paired_rows(kernel, cells, solutions, self.model))
        return pd.concat(parts, ignore_index=True)

    def alternatives(self, multiplier: float, excess_ns: float) -> pd.DataFrame:
        """Solutions at multipliers near the given one; excess_ns is not asked for."""
        return self.frontier(near_multipliers(multiplier), False)

    def simulate(
        self, strata: pd.DataFrame, factors: Mapping[int, float], *, seed: int, first: int, draws: int
    ) -> pd.DataFrame:
        """Sum over kernels of their simulated draws."""
        parts = [
            simulate_pairs(
                int(str(kernel)),
                self.buckets[int(str(kernel))][0],
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


def simulate_pairs(
    kernel_id: int,
    buckets: PairedBuckets,
    strata: pd.DataFrame,
    model: PlanningModel,
    *,
    seed: int,
    first: int,
    draws: int,
    factor: float = 1.0,
) -> pd.DataFrame:
    """Errors of the estimated time of one kernel, rows of DRAWS_SCHEMA: y = x2 times a factor per configuration.

    Errors and totals are scaled by factor. Systematic draws in random order are simulated as independent ones, whose
    variance is no smaller. Draw numbers depend on seed and kernel alone. DataError when strata and buckets disagree.
    """
    parts = [_fewer(buckets.at(inside)) for inside in stratum_masks(buckets.first, strata)]
    configs = np.unique(buckets.first.config)
    samples, designs = strata["n_samples"].tolist(), strata["is_pps"].tolist()

    def errors(rng: np.random.Generator, factors: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        for part, m, is_pps in zip(parts, samples, designs, strict=True):
            if is_pps:
                known = factors[:, np.searchsorted(configs, part.first.config)]
                yield _pps_draws(rng, part, m, known)
            else:
                own = factors[:, np.searchsorted(configs, np.unique(part.first.config))]
                yield stratum_draws(rng, part.of_repeat(), m, own, 0.0)

    spread = (model.factor_spread, configs.size)
    return simulated_draws(kernel_id, errors, spread, seed=seed, first=first, draws=draws, factor=factor)


def _fewer(part: PairedBuckets) -> PairedBuckets:
    return part.merged(merge_starts(part.first.config))


def _pps_draws(
    rng: np.random.Generator, part: PairedBuckets, m: int, factors: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Error and total in ns of a PPS stratum, shape (draws,); factors of shape (draws, buckets)."""
    x = part.first.sum_ns.astype(np.float64)
    total_x = float(x.sum())
    ratio = part.repeat_ns / x
    # Of x2 / x with probabilities x: sum x (x2 / x)^2 = R = Q + 2 Y - X.
    squares = (part.difference_ns + 2.0 * part.repeat_ns - x) / x
    spread = np.sqrt(np.maximum(squares - ratio**2, 0.0))
    counts = rng.multinomial(m, x / total_x, size=len(factors))
    drawn = counts * ratio + np.sqrt(counts) * spread * rng.standard_normal(counts.shape)
    total = np.sum(factors * part.repeat_ns, axis=1)
    estimate = np.sum(factors * drawn, axis=1) * (total_x / m)
    return estimate - total, total
