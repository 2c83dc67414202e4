"""Passes over the kernels of two profiles: programme and simulation of one kernel, and a Work in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.optimal.calibration import (
    BLOCK,
    stratum_draws,
    sum_of_draws,
    unit_lognormal,
)
from stemroot_spark.optimal.designs import paired_frontier, paired_rows
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.pairs import PairedBuckets, paired_buckets, paired_cells
from stemroot_spark.optimal.plan import OptimalPlan, PlanOptions, plan_together

FloatArray = npt.NDArray[np.float64]

_BUCKETS_PER_STRATUM = 256
# Multipliers around the best one, whose solutions the integer finish may mix.
_NEAR = tuple(np.exp(np.linspace(-0.35, 0.35, 9)).tolist())


def plan_pairs(pairs: pd.DataFrame, options: PlanOptions) -> OptimalPlan:
    """Plan of all kernels of two profiles in this process.

    pairs: kernel_id and the columns of stemroot_spark.optimal.pairs. Guarantee transfer or total; times of the plan
    are those of the second profile, its strata have the columns of PAIRED_SCHEMA besides. DataError for bad rows or
    options.
    """
    if options.guarantee not in ("transfer", "total"):
        raise DataError(f"two profiles are planned with guarantee transfer or total, not {options.guarantee}")
    return plan_together(PairedWork(pairs, options.model), options)


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
    """Passes over kernels in memory: a Work. pairs: rows of all kernels, with kernel_id."""

    def __init__(self, pairs: pd.DataFrame, model: PlanningModel) -> None:
        if "kernel_id" not in pairs.columns or pairs.empty:
            raise DataError("pairs without kernels: rows with kernel_id are needed")
        self.model = model
        groups = pairs.groupby("kernel_id", sort=True)
        self.buckets = {int(str(kernel)): paired_buckets(rows, model) for kernel, rows in groups}

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
        """Sum over kernels of their simulated draws; factors of kernels belong to other guarantees."""
        parts = [
            simulate_pairs(
                int(str(kernel)),
                self.buckets[int(str(kernel))][0],
                rows,
                self.model,
                seed=seed,
                first=first,
                draws=draws,
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
) -> pd.DataFrame:
    """Errors of the estimated time of one kernel, rows of DRAWS_SCHEMA: y = x2 times a factor per configuration.

    Systematic draws in random order are simulated as independent ones, whose variance is no smaller. Draw numbers
    depend on seed and kernel alone. DataError when strata and buckets disagree.
    """
    parts = _parts(buckets, strata)
    configs = np.unique(buckets.first.config)
    samples, designs = strata["n_samples"].to_numpy(dtype=np.int64), strata["is_pps"].to_numpy(dtype=np.bool_)
    errors, totals = [], []
    for block in range(first // BLOCK, -(-(first + draws) // BLOCK)):
        rng = np.random.default_rng([seed % 2**64, kernel_id % 2**64, block])
        factors = unit_lognormal(rng, model.factor_spread, (BLOCK, configs.size))
        error, total = np.zeros(BLOCK), np.zeros(BLOCK)
        for part, m, is_pps in zip(parts, samples, designs, strict=True):
            known = factors[:, np.searchsorted(configs, part.first.config)]
            if is_pps:
                stratum_error, stratum_total = _pps_draws(rng, part, int(m), known)
            else:
                own = factors[:, np.searchsorted(configs, np.unique(part.first.config))]
                stratum_error, stratum_total = stratum_draws(rng, part.of_repeat(), int(m), own, 0.0)
            error += stratum_error
            total += stratum_total
        wanted = slice(max(first - block * BLOCK, 0), min(first + draws - block * BLOCK, BLOCK))
        errors.append(error[wanted])
        totals.append(total[wanted])
    return pd.DataFrame(
        {
            "draw": np.arange(first, first + draws, dtype=np.int32),
            "error_ns": np.rint(np.concatenate(errors)).astype(np.int64),
            "total_ns": np.rint(np.concatenate(totals)).astype(np.int64),
        }
    )


def _parts(buckets: PairedBuckets, strata: pd.DataFrame) -> list[PairedBuckets]:
    parts = []
    columns = (strata[name].tolist() for name in ("lower_ns", "upper_ns", "n_population"))
    for ids, lower, upper, population in zip(strata["launch_config_ids"], *columns, strict=True):
        inside = (buckets.first.min_ns >= lower) & (buckets.first.max_ns <= upper)
        if ids is not None:
            inside &= np.isin(buckets.first.config, np.asarray(ids, dtype=np.int64))
        part = buckets.at(inside)
        if part.first.n.sum() != population:
            raise DataError(
                f"a stratum of {population} launches finds {part.first.n.sum()} pairs and single launches: plan and "
                "pairs are of different runs"
            )
        parts.append(_fewer(part))
    return parts


def _fewer(part: PairedBuckets) -> PairedBuckets:
    """Neighbouring buckets of a configuration merged, so that a stratum has a few hundred at most."""
    size = part.n_matched.size
    step = -(-size // _BUCKETS_PER_STRATUM)
    if step == 1:
        return part
    starts = np.ones(size, dtype=np.bool_)
    starts[1:] = (np.diff(part.first.config) != 0) | (np.arange(1, size) % step == 0)
    return part.merged(np.flatnonzero(starts))


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
