"""Kernels planned from two profiles, by the pairs of their launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.optimal.calibration import merge_starts, simulated_draws, stratum_draws, stratum_masks
from stemroot_spark.optimal.designs import PAIRED_SCHEMA, paired_columns, paired_frontier
from stemroot_spark.optimal.local import Columns, KernelKind, plan_in_process
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.pairs import PairedBuckets, paired_buckets, paired_cells
from stemroot_spark.optimal.plan import OptimalPlan, PlanOptions

FloatArray = npt.NDArray[np.float64]

# The programme weighs two designs for every interval; half the cells give a plan within a percent of the whole's cost.
PAIRED_MAX_CELLS = 256
# Multipliers around the best one, whose solutions the integer finish may mix.
_NEAR = tuple(np.exp(np.linspace(-0.35, 0.35, 9)).tolist())


class PairedKernel:
    """One kernel of two profiles: a KernelWork with PAIRED_SCHEMA. relative_variance: see paired_buckets."""

    def __init__(
        self, kernel_id: int, buckets: PairedBuckets, relative_variance: float, model: PlanningModel
    ) -> None:
        self._kernel_id = kernel_id
        self._buckets = buckets
        self._relative_variance = relative_variance
        self._model = model

    @classmethod
    def of_rows(cls, rows: pd.DataFrame, model: PlanningModel) -> PairedKernel:
        """From rows of one kernel: kernel_id and the columns of stemroot_spark.optimal.pairs."""
        return cls(int(rows["kernel_id"].iloc[0]), *paired_buckets(rows, model), model)

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> Columns:
        """Optimal strata, designs and samples for each multiplier."""
        cells = paired_cells(self._buckets, self._relative_variance, self._model, coarse=coarse)
        solutions = paired_frontier(cells, multipliers, self._model)
        return paired_columns(self._kernel_id, cells, solutions, self._model)

    def alternatives(self, multiplier: float, excess_ns: float) -> Columns:
        """Solutions at multipliers near the given one; excess_ns is not asked for."""
        return self.frontier([multiplier * step for step in _NEAR], False)

    def simulate(
        self, strata: pd.DataFrame, *, seed: int, first: int, draws: int, factor: float
    ) -> pd.DataFrame:
        """Errors of the estimated time where y = x2 times a factor per configuration, and the model's launch noise.

        Errors and totals are scaled by factor. Systematic draws in random order are simulated as independent ones,
        whose variance is no smaller. Draw numbers depend on seed and kernel alone.
        """
        buckets, noise = self._buckets, self._model.launch_noise
        parts = [_fewer(buckets.at(inside)) for inside in stratum_masks(buckets.first, strata)]
        configs = np.unique(buckets.first.config)
        samples, designs = strata["n_samples"].tolist(), strata["is_pps"].tolist()

        def errors(rng: np.random.Generator, factors: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
            for part, m, is_pps in zip(parts, samples, designs, strict=True):
                if is_pps:
                    known = factors[:, np.searchsorted(configs, part.first.config)]
                    yield _pps_draws(rng, part, m, known, noise)
                else:
                    own = factors[:, np.searchsorted(configs, np.unique(part.first.config))]
                    yield stratum_draws(rng, part.of_repeat(), m, own, noise)

        spread = (self._model.factor_spread, configs.size)
        return simulated_draws(
            self._kernel_id, errors, spread, seed=seed, first=first, draws=draws, factor=factor
        )


PAIRS = KernelKind("pairs", PairedKernel.of_rows, PAIRED_SCHEMA)


def plan_pairs(pairs: pd.DataFrame, options: PlanOptions) -> OptimalPlan:
    """Plan of all kernels of two profiles in this process.

    pairs: kernel_id and the columns of stemroot_spark.optimal.pairs. Times of the plan are those of the second
    profile, its strata have the columns of PAIRED_SCHEMA besides. DataError for bad rows or options.
    """
    return plan_in_process(pairs, PAIRS, options)


def paired_options(options: PlanOptions, between: float, added: float = 0.0) -> PlanOptions:
    """Options for two profiles whose ratio spreads by between, where a simulation adds noise of its own."""
    return replace(options, max_cells=PAIRED_MAX_CELLS, launch_noise=added, repeat_noise=between)


def _fewer(part: PairedBuckets) -> PairedBuckets:
    return part.merged(merge_starts(part.first.config))


def _pps_draws(
    rng: np.random.Generator, part: PairedBuckets, m: int, factors: FloatArray, noise: float
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
    error = np.sum(factors * drawn, axis=1) * (total_x / m) - total
    if noise > 0.0:
        # A drawn launch stands for X / (m x) launches but is one of those estimated: its noise counts that much less 1.
        mean_x = x / part.first.n
        y_squares = part.repeat_m2 + part.repeat_ns**2 / part.first.n
        f_squares, seen = factors**2, counts * squares
        seen_own = np.sqrt(np.sum(f_squares * seen * mean_x**2, axis=1))
        seen_error = np.sqrt(np.sum(f_squares * seen * (total_x / m - mean_x) ** 2, axis=1))
        left = np.sqrt(np.sum(f_squares * np.maximum(y_squares - seen * mean_x**2, 0.0), axis=1))
        of_seen, of_left = noise * rng.standard_normal((2, len(factors)))
        error = error + of_seen * seen_error - of_left * left
        total = total + of_seen * seen_own + of_left * left
    return error, total
