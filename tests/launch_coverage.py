"""Coverage of a plan counted on single launches: an oracle that shares no code with the planner or its calibration.

Launches are drawn one stratum after the other by random keys; a simulated time is the profiled one times a lognormal
factor per kernel and configuration and a lognormal noise per launch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

FloatArray = npt.NDArray[np.float64]
_BLOCK_CELLS = 4_000_000


def least_coverage(
    launches: pd.DataFrame,
    strata: pd.DataFrame,
    *,
    epsilon: float,
    draws: int,
    seed: int,
    factor_spread: float = 0.0,
    launch_noise: float = 0.0,
    kernel_factors: Mapping[int, float] | None = None,
    by_kernel: bool = False,
) -> float:
    """Share of draws with an error of at most epsilon: of the total, or by_kernel of the kernel covered least.

    launches: kernel_id, launch_config_id, duration_ns. strata: as a plan of one profile has them. AssertionError where
    they do not hold every launch once.
    """
    rng = np.random.default_rng(seed)
    error, total = np.zeros(draws), np.zeros(draws)
    shares = []
    for kernel, rows in strata.groupby("kernel_id"):
        mine = launches[launches["kernel_id"] == kernel]
        kernel_error, kernel_total = _errors(mine, rows, draws, factor_spread, launch_noise, rng)
        shares.append(float(np.mean(np.abs(kernel_error) <= epsilon * kernel_total)))
        factor = (kernel_factors or {}).get(int(str(kernel)), 1.0)
        error += factor * kernel_error
        total += factor * kernel_total
    return min(shares) if by_kernel else float(np.mean(np.abs(error) <= epsilon * total))


def _errors(
    launches: pd.DataFrame,
    strata: pd.DataFrame,
    draws: int,
    factor_spread: float,
    launch_noise: float,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    x = launches["duration_ns"].to_numpy(dtype=np.float64)
    configs, config = np.unique(launches["launch_config_id"], return_inverse=True)
    parts = []
    for row in strata.to_dict("records"):
        inside = (x >= row["lower_ns"]) & (x <= row["upper_ns"])
        if row["launch_config_ids"] is not None:
            inside &= np.isin(launches["launch_config_id"], row["launch_config_ids"])
        assert inside.sum() == row["n_population"]
        parts.append((np.flatnonzero(inside), int(row["n_samples"])))
    assert sorted(np.concatenate([part for part, _ in parts]).tolist()) == list(range(x.size))
    errors, totals = [], []
    step = max(1, _BLOCK_CELLS // x.size)
    for first in range(0, draws, step):
        size = min(step, draws - first)
        factors = _lognormal(rng, factor_spread, (size, configs.size))
        error, total = np.zeros(size), np.zeros(size)
        for part, m in parts:
            y = x[part] * factors[:, config[part]] * _lognormal(rng, launch_noise, (size, part.size))
            truth = y.sum(axis=1)
            total += truth
            if m < part.size:
                drawn = rng.random((size, part.size)).argpartition(m - 1, axis=1)[:, :m]
                error += np.take_along_axis(y, drawn, axis=1).sum(axis=1) * (part.size / m) - truth
        errors.append(error)
        totals.append(total)
    return np.concatenate(errors), np.concatenate(totals)


def _lognormal(rng: np.random.Generator, spread: float, shape: tuple[int, int]) -> FloatArray:
    if spread == 0.0:
        return np.ones(shape)
    variance = np.log1p(spread**2)
    return np.exp(rng.normal(-variance / 2, np.sqrt(variance), shape))
