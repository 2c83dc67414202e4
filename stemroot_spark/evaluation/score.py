"""Scores of one sample under one outcome: cost, bias, errors, and how often the stated errors hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stemroot_spark.evaluation.intervals import KernelColumns, StratifiedIntervals, simple_half_widths
from stemroot_spark.evaluation.outcomes import Outcome
from stemroot_spark.evaluation.population import Population
from stemroot_spark.evaluation.samples import Sample, StratifiedSample

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_BLOCK_VALUES = 2_000_000
# From profiled times, simulated times and weights, each of shape (draws, m).
_HalfWidths = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


class Score(NamedTuple):
    """What evaluations stores of a method; errors are relative to the truth of their own row, NaN stands for null.

    n_draws: rows simulated, 1 where nothing is random. n_samples: launches drawn. speedup: mean simulated time of all
    launches over that of the sample. bias: mean of the signed error. bias_se and the other _se: Monte-Carlo standard
    errors. within_epsilon: share of rows with |error| <= epsilon. worst_kernel_within_epsilon: the least such share of
    any kernel by itself, for stratified samples. interval_coverage: share of rows with |error| <= the reported half
    width, NaN for methods that report none; median_half_width is relative. dropped_share: share of the profiled time in
    launches that no draw stands for.
    """

    n_draws: int
    n_samples: int
    speedup: float
    bias: float
    bias_se: float
    mean_error: float
    p95_error: float
    max_error: float
    within_epsilon: float
    within_epsilon_se: float
    worst_kernel_within_epsilon: float
    interval_coverage: float
    interval_coverage_se: float
    median_half_width: float
    dropped_share: float


class _Rows(NamedTuple):
    error: FloatArray
    total: FloatArray
    cost: FloatArray
    half_width: FloatArray
    kernels_within: IntArray


def score(
    population: Population,
    sample: Sample,
    outcome: Outcome,
    *,
    epsilon: float,
    confidence: float,
    launch_noise: float,
    draws: int,
    seed: int,
) -> Score:
    """Draw, simulate and estimate `draws` times.

    Samples and outcomes have random streams of their own, so that all methods of one seed meet the same outcomes.
    launch_noise is the prior of the interval.
    """
    is_random = sample.is_random or outcome.is_random
    rows = _simulate(
        population,
        sample,
        outcome,
        _half_widths(population, sample, confidence, launch_noise),
        epsilon,
        draws if is_random else 1,
        (np.random.default_rng([seed % 2**64, 1]), np.random.default_rng([seed % 2**64, 2])),
    )
    relative = rows.error / rows.total
    absolute = np.abs(relative)
    n = relative.size
    within = float(np.mean(absolute <= epsilon))
    # A half width that was made of the same numbers as the error may differ from it by rounding.
    has_interval = bool(np.isfinite(rows.half_width).all())
    covered = np.abs(rows.error) <= rows.half_width * (1.0 + 1e-12) + 1e-9 * rows.total
    coverage = float(np.mean(covered)) if has_interval else np.nan
    lost = sample.dropped
    return Score(
        n_draws=n,
        n_samples=sample.weights.size,
        speedup=float(rows.total.mean() / rows.cost.mean()) if sample.weights.size else np.nan,
        bias=float(relative.mean()),
        bias_se=float(relative.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0,
        mean_error=float(absolute.mean()),
        p95_error=float(np.quantile(absolute, 0.95, method="higher")),
        max_error=float(absolute.max()),
        within_epsilon=within,
        within_epsilon_se=share_error(within, n),
        worst_kernel_within_epsilon=float(rows.kernels_within.min() / n)
        if rows.kernels_within.size
        else np.nan,
        interval_coverage=coverage,
        interval_coverage_se=share_error(coverage, n) if has_interval else np.nan,
        median_half_width=float(np.median(rows.half_width / rows.total)) if has_interval else np.nan,
        dropped_share=0.0 if lost is None else float(population.x[lost].sum() / population.x.sum()),
    )


def share_error(share: float, n: int) -> float:
    """Monte-Carlo standard error of a share of n rows; of a share of 0 or 1 as if one row differed, 0 for one row."""
    return float(np.sqrt(max(share * (1.0 - share), 1.0 / n) / n)) if n > 1 else 0.0


def _half_widths(
    population: Population, sample: Sample, confidence: float, launch_noise: float
) -> _HalfWidths | None:
    if isinstance(sample, StratifiedSample):
        if sample.dropped is not None:
            return None
        columns = KernelColumns(population, sample)
        intervals = StratifiedIntervals(
            population, sample, columns, launch_noise=launch_noise, confidence=confidence
        )
        return intervals.half_widths
    if sample.is_simple:
        return lambda _, y, __: simple_half_widths(y, population.size, confidence)
    return None


def _simulate(
    population: Population,
    sample: Sample,
    outcome: Outcome,
    half_widths: _HalfWidths | None,
    epsilon: float,
    draws: int,
    streams: tuple[np.random.Generator, np.random.Generator],
) -> _Rows:
    columns = KernelColumns(population, sample) if isinstance(sample, StratifiedSample) else None
    block = max(1, min(draws, _BLOCK_VALUES // max(sample.weights.size, 1)))
    parts = []
    within = np.zeros(population.kernels[0].size if columns else 0, dtype=np.int64)
    for first in range(0, draws, block):
        n = min(block, draws - first)
        positions = sample.draw(streams[0], n)
        truth = outcome.rows(streams[1], n)
        y = truth.values(positions)
        weights = np.broadcast_to(sample.weights, y.shape)
        if sample.is_per_ns is not None:
            weights = np.where(sample.is_per_ns, weights / population.x[positions], weights)
        weighted = y * weights
        total = truth.kernel_totals.sum(axis=1)
        half_width = np.full(n, np.nan)
        if half_widths is not None:
            half_width = half_widths(population.x[positions], y, weights)
        if columns is not None:
            estimates = columns.all_kernels(columns.sums(weighted))
            error = np.abs(estimates - truth.kernel_totals)
            within += (error <= epsilon * truth.kernel_totals).sum(axis=0)
        parts.append((weighted.sum(axis=1) - total, total, y.sum(axis=1), half_width))
    error, total, cost, half_width = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Rows(error, total, cost, half_width, within)
