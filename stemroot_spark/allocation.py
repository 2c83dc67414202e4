"""How many launches to draw from each stratum: the cheapest whole numbers that keep a variance bound.

Strata h hold N_h launches of mean mu_h and standard deviation S_h (divisor N_h - 1). Drawing m_h of them
without replacement gives the expansion estimator the variance V = sum N_h^2 S_h^2 (1/m_h - 1/N_h) at the
expected cost sum m_h mu_h (Cochran, Sampling Techniques, 3rd ed., sections 5.3 to 5.5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from stemroot_spark.errors import DataError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Two solutions cost the same when they differ by less than rounding can explain.
_RELATIVE_TIE = 1e-12
# Looking at every pair of strata pays only while their number is moderate.
_MAX_STRATA_FOR_SWAPS = 256
# Keeps exp(multiplier) times any spread within float64, for spreads down to the smallest subnormal.
_MAX_LOG_MULTIPLIER = 500.0


class PlanFigures(NamedTuple):
    """What a plan costs and promises: times in ns, the error relative to the total time."""

    n_population: int
    n_samples: int
    n_strata: int
    total_time_ns: float
    sampled_time_ns: float
    speedup: float
    planned_relative_error: float


class _Strata(NamedTuple):
    n: IntArray
    stddev: FloatArray
    mean: FloatArray
    spread: FloatArray  # N^2 S^2, the variance that one draw would leave were the population infinite

    def variance(self, m: IntArray) -> float:
        return planning_variance(self.n, self.stddev, m)

    def cost(self, m: IntArray) -> float:
        return float(np.sum(m * self.mean))


def normal_quantile(confidence: float) -> float:
    """Two-sided standard normal quantile z: a normal error lies within z sigma with this probability.

    DataError outside 0 < confidence < 1.
    """
    if not 0.0 < confidence < 1.0:
        raise DataError(f"confidence {confidence} is not between 0 and 1: give for example 0.95")
    return float(ndtri((1.0 + confidence) / 2.0))


def variance_bound(total_time_ns: float, epsilon: float, confidence: float) -> float:
    """Largest variance V* = (eps T / z)^2 in ns^2 that keeps the error within eps of T at the confidence.

    Source: STEM+ROOT, MICRO 2025 (error model). DataError outside 0 < epsilon < 1.
    """
    if not 0.0 < epsilon < 1.0:
        raise DataError(f"epsilon {epsilon} is not between 0 and 1: give for example 0.05")
    return (epsilon * total_time_ns / normal_quantile(confidence)) ** 2


def planning_variance(
    n_population: npt.ArrayLike, stddev_ns: npt.ArrayLike, n_samples: npt.ArrayLike
) -> float:
    """Variance sum N^2 S^2 (1/m - 1/N) of the estimated total time, in ns^2.

    All three of shape (strata,). A stratum without spread adds 0 even with m = 0 (its absence is a bias,
    which no variance shows); one with spread and m = 0 makes the result infinite; m above N counts as N.
    Source: Cochran, Sampling Techniques, theorem 5.3.
    """
    n, s, m = (np.asarray(a, dtype=np.float64) for a in (n_population, stddev_ns, n_samples))
    m = np.minimum(m, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        # N S^2 (N - m) / m is exactly 0 at m = N, which 1/m - 1/N need not be.
        terms = np.where(s > 0, n * s**2 * (n - m) / m, 0.0)
    return float(np.sum(terms))


def plan_figures(
    n_population: npt.ArrayLike,
    stddev_ns: npt.ArrayLike,
    mean_ns: npt.ArrayLike,
    n_samples: npt.ArrayLike,
    confidence: float,
) -> PlanFigures:
    """Cost, speedup T / sum m mu and planned relative error z sqrt(V) / T of strata with given samples.

    Arrays of shape (strata,), times in ns. The speedup is infinite when nothing is drawn.
    """
    n, m = (np.asarray(a, dtype=np.int64) for a in (n_population, n_samples))
    mean = np.asarray(mean_ns, dtype=np.float64)
    total, sampled = float(np.sum(n * mean)), float(np.sum(m * mean))
    error = normal_quantile(confidence) * np.sqrt(planning_variance(n, stddev_ns, m)) / total
    return PlanFigures(
        n_population=int(n.sum()),
        n_samples=int(m.sum()),
        n_strata=n.size,
        total_time_ns=total,
        sampled_time_ns=sampled,
        speedup=total / sampled if sampled > 0 else float("inf"),
        planned_relative_error=float(error),
    )


def smallest_sample(n_population: int, stddev_ns: float, bound: float) -> int:
    """Smallest m in 1..N whose variance N^2 S^2 (1/m - 1/N) is at most bound (ns^2) for one stratum."""
    if stddev_ns == 0.0:
        return 1
    spread = n_population * stddev_ns**2
    m = min(max(int(np.ceil(n_population * spread / (bound + spread))), 1), n_population)
    # The formula rounds: settle the last unit with the very expression that a plan is checked with.
    while m > 1 and planning_variance(n_population, stddev_ns, m - 1) <= bound:
        m -= 1
    while m < n_population and planning_variance(n_population, stddev_ns, m) > bound:
        m += 1
    return m


def allocate(
    n_population: npt.ArrayLike,
    stddev_ns: npt.ArrayLike,
    mean_ns: npt.ArrayLike,
    variance_bound: float,
    *,
    start: npt.ArrayLike | None = None,
) -> IntArray:
    """Cheapest whole-number allocation: minimise sum m mu with 1 <= m <= N and V <= variance_bound.

    Arrays of shape (strata,), times in ns, the bound in ns^2; returns m, int64, shape (strata,). Exact for
    one and two strata; beyond that the best of Lagrange solutions just above and below the bound, improved by
    lowering single samples while slack remains and by exchanging samples between pairs. start: an
    allocation that keeps the bound already; the result is then never dearer than it. DataError for counts,
    spreads or means outside their domain, or a bound that is negative.
    """
    strata = _checked_strata(n_population, stddev_ns, mean_ns, variance_bound)
    candidates = [] if start is None else [np.asarray(start, dtype=np.int64).copy()]
    if strata.n.size == 1:
        candidates.append(
            np.array([smallest_sample(int(strata.n[0]), float(strata.stddev[0]), variance_bound)])
        )
    elif strata.n.size == 2:
        candidates.append(_allocate_pair(strata, variance_bound))
    else:
        above, below = _lagrange_allocations(strata, variance_bound)
        candidates += [_raised(strata, m, variance_bound) for m in (above, below)]
        candidates = [
            _exchanged(strata, _lowered(strata, m, variance_bound), variance_bound) for m in candidates
        ]
    feasible = [m for m in candidates if strata.variance(m) <= variance_bound]
    return min(feasible, key=strata.cost)


def _checked_strata(
    n_population: npt.ArrayLike, stddev_ns: npt.ArrayLike, mean_ns: npt.ArrayLike, bound: float
) -> _Strata:
    n = np.asarray(n_population, dtype=np.int64)
    stddev, mean = (np.asarray(a, dtype=np.float64) for a in (stddev_ns, mean_ns))
    if n.ndim != 1 or not n.size or stddev.shape != n.shape or mean.shape != n.shape:
        raise DataError(f"strata of shapes {n.shape}, {stddev.shape}, {mean.shape}: give equal vectors")
    good = (n >= 1) & (stddev >= 0) & np.isfinite(stddev) & (mean > 0) & np.isfinite(mean)
    if not good.all():
        h = int(np.argmin(good))
        raise DataError(
            f"stratum {h} with n_population {n[h]}, stddev_ns {stddev[h]}, mean_ns {mean[h]}: "
            "needs at least one launch, a finite spread and a positive mean"
        )
    if not bound >= 0:
        raise DataError(f"variance bound {bound}: must not be negative")
    stddev = np.where(n > 1, stddev, 0.0)
    return _Strata(n, stddev, mean, n.astype(np.float64) ** 2 * stddev**2)


def _lagrange_allocations(strata: _Strata, bound: float) -> tuple[IntArray, IntArray]:
    """Integer minimisers of sum m mu + lambda V for lambda just keeping and just breaking the bound."""

    def minimiser(multiplier: float) -> IntArray:
        root = (np.sqrt(1.0 + 4.0 * multiplier * strata.spread / strata.mean) - 1.0) / 2.0
        return np.clip(np.ceil(root), 1, strata.n).astype(np.int64)

    free = np.ones_like(strata.n)
    if strata.variance(free) <= bound:
        return free, free
    # Every stratum is taken whole once root >= N, that is lambda >= N (N + 1) mu / G.
    varies = strata.spread > 0
    size = strata.n[varies].astype(np.float64)
    whole = np.log(strata.mean[varies]) - np.log(strata.spread[varies])
    high = min(float(np.max(whole + np.log(size) + np.log(size + 1.0))) + 1e-9, _MAX_LOG_MULTIPLIER)
    low = max(float(np.min(whole)) - 1e-9, -_MAX_LOG_MULTIPLIER)
    while high - low > 1e-13 * max(1.0, abs(high)):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if strata.variance(minimiser(float(np.exp(middle)))) <= bound:
            high = middle
        else:
            low = middle
    return minimiser(float(np.exp(high))), minimiser(float(np.exp(low)))


def _raised(strata: _Strata, m: IntArray, bound: float) -> IntArray:
    """Adds samples, each time where variance falls most per time spent, until the bound is kept."""
    m = m.copy()
    while (variance := strata.variance(m)) > bound:
        fall = np.where(m < strata.n, strata.spread / (m * (m + 1.0)), 0.0)
        enough = fall >= variance - bound
        if enough.any():
            h = int(np.argmin(np.where(enough, strata.mean, np.inf)))
        else:
            h = int(np.argmax(fall / strata.mean))
        if fall[h] == 0.0:
            return strata.n.copy()
        m[h] += 1
    return m


def _lowered(strata: _Strata, m: IntArray, bound: float) -> IntArray:
    """Takes samples away, the dearest first, while the bound allows."""
    m = m.copy()
    slack = bound - strata.variance(m)
    blocked = m <= 1
    while not blocked.all():
        rise = np.where(m > 1, strata.spread / (m * np.maximum(m - 1.0, 1.0)), np.inf)
        fits = ~blocked & (rise <= slack)
        if not fits.any():
            break
        h = int(np.argmax(np.where(fits, strata.mean, -np.inf)))
        m[h] -= 1
        if strata.variance(m) > bound:
            m[h] += 1
            blocked[h] = True
        else:
            slack = bound - strata.variance(m)
            blocked[h] = m[h] <= 1
    return m


def _exchanged(strata: _Strata, m: IntArray, bound: float) -> IntArray:
    """Takes one sample from a dear stratum for one to three of a cheaper one, while that saves time."""
    if not 2 <= strata.n.size <= _MAX_STRATA_FOR_SWAPS:
        return m
    m = m.copy()
    while True:
        slack = bound - strata.variance(m)
        rise = np.where(m > 1, strata.spread / (m * np.maximum(m - 1.0, 1.0)), np.inf)
        best_saving, best = _RELATIVE_TIE * strata.cost(m), None
        for added in (1, 2, 3):
            fall = np.where(m + added <= strata.n, added * strata.spread / (m * (m + float(added))), -np.inf)
            saving = strata.mean[:, None] - added * strata.mean[None, :]
            saving = np.where(rise[:, None] - fall[None, :] <= slack * (1.0 - 1e-9), saving, -np.inf)
            np.fill_diagonal(saving, -np.inf)
            where = int(np.argmax(saving))
            if saving.flat[where] > best_saving:
                best_saving, best = float(saving.flat[where]), (*divmod(where, strata.n.size), added)
        if best is None:
            return m
        trial = m.copy()
        trial[best[0]] -= 1
        trial[best[1]] += best[2]
        trial = _lowered(strata, trial, bound)
        if strata.variance(trial) > bound:
            return m
        m = trial


def _allocate_pair(strata: _Strata, bound: float) -> IntArray:
    """Exact optimum for two strata: search the dearer one's m, the other's follows.

    The cost of the continuous problem is convex in m and bounds that of whole numbers from below, so only the
    m whose continuous cost stays under the cost of a first whole solution need a look: about sqrt(m) of them.
    """
    if not strata.spread.all():
        pairs = zip(strata.n, strata.stddev, strict=True)
        return np.array([smallest_sample(int(n), float(s), bound) for n, s in pairs], dtype=np.int64)
    dear = int(np.argmax(strata.mean))
    n_dear, n_cheap = int(strata.n[dear]), int(strata.n[1 - dear])
    mean_dear, mean_cheap = float(strata.mean[dear]), float(strata.mean[1 - dear])
    g_dear, g_cheap = float(strata.spread[dear]), float(strata.spread[1 - dear])
    budget = bound + float(np.sum(strata.n * strata.stddev**2))  # sum G / m must not exceed it

    def cost(m: float, *, whole: bool = False) -> float:
        left = budget - g_dear / m
        needed = g_cheap / left if left > 0 else np.inf
        # At m = N the budget's remainder rounds; what exceeds N by rounding alone is N.
        if needed > n_cheap * (1 + 1e-9):
            return np.inf
        needed = max(1.0, min(needed, n_cheap))
        return mean_dear * m + mean_cheap * (np.ceil(needed) if whole else needed)

    optimum = np.sqrt(g_dear / mean_dear) * float(np.sum(np.sqrt(strata.spread * strata.mean))) / budget
    if budget > g_cheap:
        optimum = min(optimum, g_dear / (budget - g_cheap))  # beyond it the cheap stratum is down to 1
    cheap_whole = g_dear / max(budget - g_cheap / n_cheap, g_dear / n_dear)
    first = min(max(int(np.ceil(max(optimum, cheap_whole))), 1), n_dear)
    limit = cost(float(first), whole=True) * (1 + 1e-9)
    low = high = first
    step = 1
    while low > 1 and cost(float(low)) <= limit:
        low, step = max(1, low - step), 2 * step
    step = 1
    while high < n_dear and cost(float(high)) <= limit:
        high, step = min(n_dear, high + step), 2 * step
    return _best_pair(strata, bound, budget, np.arange(low, high + 1))


def _best_pair(strata: _Strata, bound: float, budget: float, dear_samples: IntArray) -> IntArray:
    """Cheapest allocation that keeps the bound with the dearer stratum's m among those given."""
    dear = int(np.argmax(strata.mean))
    n_cheap = int(strata.n[1 - dear])
    left = budget - strata.spread[dear] / dear_samples
    needed = np.full(left.shape, float(n_cheap))
    np.divide(strata.spread[1 - dear], left, out=needed, where=left > strata.spread[1 - dear] / n_cheap)
    cheap_samples = np.clip(np.ceil(needed), 1, n_cheap).astype(np.int64)
    cost = strata.mean[dear] * dear_samples + strata.mean[1 - dear] * cheap_samples
    m = np.empty(2, dtype=np.int64)
    for k in np.argsort(cost, kind="stable"):
        # One unit either way: the division above rounds, the expression plans are checked with decides.
        for unit in (-1, 0, 1):
            m[dear] = dear_samples[k]
            m[1 - dear] = min(max(int(cheap_samples[k]) + unit, 1), n_cheap)
            if strata.variance(m) <= bound:
                return m
    return strata.n.copy()
