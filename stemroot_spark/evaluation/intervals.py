"""The half width that a user would see for each of many samples at once, as stemroot_spark.estimators reports it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from stemroot_spark.allocation import planning_variance
from stemroot_spark.errors import DataError
from stemroot_spark.estimators import PRIOR_DEGREES_OF_FREEDOM, half_width_of, shrunk_noise_squared
from stemroot_spark.evaluation.population import Population
from stemroot_spark.evaluation.samples import StratifiedSample

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class KernelColumns:
    """Sums over the columns of each kernel of a stratified sample; kernels without columns stay 0."""

    def __init__(self, population: Population, sample: StratifiedSample) -> None:
        if sample.strata is None:
            raise DataError("a stratified sample without strata")
        kernel = np.repeat(sample.strata.kernel, sample.n_answered)
        self.present, self._first, self.n = np.unique(kernel, return_index=True, return_counts=True)
        self.n_kernels = population.kernels[0].size

    def sums(self, values: FloatArray) -> FloatArray:
        """Sums of values of shape (draws, m), shape (draws, present kernels)."""
        totals: FloatArray = np.add.reduceat(values, self._first, axis=1)
        return totals

    def all_kernels(self, sums: FloatArray) -> FloatArray:
        """sums spread over all kernels of the population, shape (draws, kernels)."""
        if self.present.size == self.n_kernels:
            return sums
        spread = np.zeros((len(sums), self.n_kernels))
        spread[:, self.present] = sums
        return spread


class StratifiedIntervals:
    """Half widths of the total by the formulas of estimators.summarise_kernel and combine, for arrays of draws.

    sum (r / f - 1)^2 over a kernel's draws is taken from the sums of r and r^2, so that every draw costs a few sums.
    """

    def __init__(
        self,
        population: Population,
        sample: StratifiedSample,
        columns: KernelColumns,
        *,
        launch_noise: float,
        confidence: float,
    ) -> None:
        strata = sample.strata
        if strata is None or sample.dropped is not None:
            raise DataError("an interval needs a sample of every stratum")
        self._columns = columns
        self._noise, self._confidence = launch_noise, confidence
        n, m, x = strata.sizes, sample.n_answered, population.x
        squares = np.bincount(strata.of_launch, weights=x**2, minlength=n.size)
        mean = np.bincount(strata.of_launch, weights=x, minlength=n.size) / n
        deviation = np.bincount(strata.of_launch, weights=(x - mean[strata.of_launch]) ** 2, minlength=n.size)
        stddev = np.sqrt(deviation / np.maximum(n - 1, 1))
        weight = squares * (n - m) / m
        if strata.is_pps is not None:
            # As summarise_kernel has it: proportional times are known exactly, and only the noise is left.
            stddev = np.where(strata.is_pps, 0.0, stddev)
            weight = np.where(strata.is_pps, np.maximum((n * mean) ** 2 / m - squares, 0.0), weight)
        by_kernel = [np.flatnonzero(strata.kernel == kernel) for kernel in columns.present.tolist()]
        self._profile_variance = np.array([planning_variance(n[h], stddev[h], m[h]) for h in by_kernel])
        self._noise_weight = np.array([weight[h].sum() for h in by_kernel])

    def half_widths(self, x: FloatArray, y: FloatArray, weights: FloatArray) -> FloatArray:
        """Half widths of draws with profiled times x, simulated times y and weights, all of shape (draws, m)."""
        sums = self._columns.sums
        factor = sums(weights * y) / sums(weights * x)
        ratio = y / x
        n = self._columns.n.astype(np.float64)
        degrees = n - 1.0
        deviation = np.maximum(sums(ratio**2) / factor**2 - 2.0 * sums(ratio) / factor + n, 0.0)
        measured = np.where(degrees > 0, deviation / np.maximum(degrees, 1.0), 0.0)
        pooled = np.full((len(x), 1), np.nan)
        if degrees.sum() > 0:
            pooled[:, 0] = (degrees * measured).sum(axis=1) / degrees.sum()
        noise = shrunk_noise_squared(measured, degrees, self._noise, pooled)
        variance = factor**2 * (self._profile_variance + noise * self._noise_weight)
        total = variance.sum(axis=1)
        parts = (variance**2 / (PRIOR_DEGREES_OF_FREEDOM + degrees)).sum(axis=1)
        freedom = np.divide(total**2, parts, out=np.ones_like(total), where=total > 0)
        return half_width_of(total, freedom, self._confidence)


def simple_half_widths(y: FloatArray, n_population: int, confidence: float) -> FloatArray:
    """Half widths from the sample's own spread: t sqrt(1 - m / n) n s / sqrt(m), as SMARTS states its confidence.

    y: shape (draws, m). NaN for a single launch, which tells no spread.
    """
    m = y.shape[1]
    if m == 1:
        return np.full(len(y), np.nan)
    quantile = float(stdtrit(m - 1.0, (1.0 + confidence) / 2.0))
    scale = quantile * n_population * np.sqrt((1.0 - m / n_population) / m)
    half_widths: FloatArray = scale * np.std(y, axis=1, ddof=1)
    return half_widths
