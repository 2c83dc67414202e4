"""Does a plan cover what it says? Draws its sample and its planning model many times, and replans while it does not.

The bound rests on a normal error. With few draws per stratum and skewed durations the error is not normal, so that
z sqrt(V) <= eps T may cover less than the confidence. A simulation of plan and planning model tells, kernel by
kernel: the errors of kernels add up draw by draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.optimal.buckets import Buckets

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Plan = TypeVar("Plan")
# Errors and totals in ns, shape (n,) each, of the draws first to first + n of a plan.
Draw = Callable[[Plan, int, int], tuple[FloatArray, FloatArray]]

# Whole nanoseconds, so that sums over kernels do not depend on their order.
DRAWS_SCHEMA = "draw INT, error_ns BIGINT, total_ns BIGINT"
DRAWS = 4_000
# A coverage this close to the confidence is settled with more draws.
_CLOSE_ERRORS = 3.0
_MORE_DRAWS = 16_000
MAX_ROUNDS = 12
_LEAST_SHRINK, _MOST_SHRINK = 0.01, 0.5
# A coverage above the confidence by this share of the misses allowed was bought too dear: bisected back, until the
# epsilons are this close.
_OVERSHOOT = 0.2
_CLOSE_EPSILONS = 1.02
_MAX_BISECTIONS = 5

_BLOCK = 4_000
_MOST_FACTORS = 2_000_000
_BUCKETS_PER_STRATUM = 256
_FEW_SAMPLES = 32
_MOST_LAUNCHES = 10**9 - 1  # what numpy's hypergeometric draws from


class Coverage(NamedTuple):
    """Share of draws with |error| <= eps total, over n draws, and the quantile of |error| / total."""

    share: float
    n_draws: int
    error_quantile: float

    @property
    def standard_error(self) -> float:
        """Monte-Carlo standard error of the share."""
        return float(np.sqrt(max(self.share * (1.0 - self.share), 1.0 / self.n_draws) / self.n_draws))


class Calibrated(NamedTuple, Generic[Plan]):
    """A plan, the epsilon it was made for, its simulated coverage, and whether that reaches the confidence."""

    plan: Plan
    epsilon: float
    coverage: Coverage
    reached: bool


def calibrate(
    plan_for: Callable[[float], Plan],
    draw: Draw[Plan],
    *,
    epsilon: float,
    confidence: float,
    draws: int = DRAWS,
    rounds: int = MAX_ROUNDS,
) -> Calibrated[Plan]:
    """Plans for epsilon, or for a smaller one whose simulated coverage of epsilon is the confidence.

    Each round shrinks by the ratio in which the error's quantile exceeds epsilon, and by at least 1, 2, 4, ...
    percent: plans are lumpy, and a smaller epsilon may bring the same one again. Where errors are heavy-tailed that
    goes too far, and bisection comes back towards the last epsilon that did not do. If no round reaches the
    confidence, the plan that came closest is returned with reached=False.
    """

    def tried(aim: float) -> Calibrated[Plan]:
        plan = plan_for(aim)
        coverage = _simulated(plan, draw, epsilon, confidence, draws)
        return Calibrated(plan, aim, coverage, coverage.share >= confidence)

    aim, best, failed = epsilon, None, epsilon
    for number in range(rounds):
        current = tried(aim)
        if current.reached:
            return _less_dear(current, failed, tried, confidence)
        if best is None or current.coverage.share > best.coverage.share:
            best = current
        failed = aim
        least = 1.0 - _LEAST_SHRINK * 2.0**number
        aim *= max(min(epsilon / current.coverage.error_quantile, least), _MOST_SHRINK)
    if best is None:
        raise DataError("calibration without rounds")
    return best


def _less_dear(
    reached: Calibrated[Plan], failed: float, tried: Callable[[float], Calibrated[Plan]], confidence: float
) -> Calibrated[Plan]:
    """The largest epsilon found between one that reaches the confidence by far and one that fails."""
    for _ in range(_MAX_BISECTIONS):
        is_close = failed <= reached.epsilon * _CLOSE_EPSILONS
        if is_close or reached.coverage.share <= confidence + _OVERSHOOT * (1.0 - confidence):
            break
        middle = tried(float(np.sqrt(failed * reached.epsilon)))
        if middle.reached:
            reached = middle
        else:
            failed = middle.epsilon
    return reached


def _simulated(plan: Plan, draw: Draw[Plan], epsilon: float, confidence: float, draws: int) -> Coverage:
    error, total = draw(plan, 0, draws)
    coverage = coverage_of(error, total, epsilon, confidence)
    if abs(coverage.share - confidence) < _CLOSE_ERRORS * coverage.standard_error:
        more = draw(plan, draws, _MORE_DRAWS)
        error, total = np.append(error, more[0]), np.append(total, more[1])
        coverage = coverage_of(error, total, epsilon, confidence)
    return coverage


def coverage_of(error: FloatArray, total: FloatArray, epsilon: float, confidence: float) -> Coverage:
    """Coverage of relative errors within epsilon; error and total in ns, shape (draws,).

    A total that is not positive, as normal noise of order 1 makes some, counts as missed.
    """
    relative = np.full(total.shape, np.inf)
    np.divide(np.abs(error), total, out=relative, where=total > 0)
    quantile = float(np.quantile(relative, confidence, method="higher"))
    return Coverage(float(np.mean(relative <= epsilon)), relative.size, quantile)


def simulated_draws(
    kernel_id: int,
    stratum_errors: Callable[[np.random.Generator, FloatArray], Iterator[tuple[FloatArray, FloatArray]]],
    spread: tuple[float, int],
    *,
    seed: int,
    first: int,
    draws: int,
    factor: float = 1.0,
) -> pd.DataFrame:
    """Rows of DRAWS_SCHEMA of one kernel, scaled by factor, in blocks that depend on seed and kernel alone.

    stratum_errors: from a generator and the factors of the kernel's configurations, shape (block, configurations), to
    error and total in ns of each stratum, shape (block,). spread: of these factors, and the number of configurations.
    """
    errors, totals = [], []
    for block in range(first // _BLOCK, -(-(first + draws) // _BLOCK)):
        rng = np.random.default_rng([seed % 2**64, kernel_id % 2**64, block])
        error, total = np.zeros(_BLOCK), np.zeros(_BLOCK)
        # A kernel of very many configurations is simulated in slices, which bounds the memory.
        step = max(1, min(_BLOCK, _MOST_FACTORS // spread[1]))
        wanted = slice(max(first - block * _BLOCK, 0), min(first + draws - block * _BLOCK, _BLOCK))
        for start in range(0, wanted.stop, step):
            inside = slice(start, min(start + step, _BLOCK))
            factors = unit_lognormal(rng, spread[0], (inside.stop - start, spread[1]))
            for stratum_error, stratum_total in stratum_errors(rng, factors):
                error[inside] += stratum_error
                total[inside] += stratum_total
        errors.append(error[wanted])
        totals.append(total[wanted])
    return pd.DataFrame(
        {
            "draw": np.arange(first, first + draws, dtype=np.int32),
            "error_ns": np.rint(factor * np.concatenate(errors)).astype(np.int64),
            "total_ns": np.rint(factor * np.concatenate(totals)).astype(np.int64),
        }
    )


def sum_of_draws(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of DRAWS_SCHEMA summed over kernels, draw by draw; all parts hold the same draws in the same order."""
    error, total = (
        np.sum([part[name].to_numpy() for part in parts], axis=0) for name in ("error_ns", "total_ns")
    )
    return parts[0].assign(error_ns=error, total_ns=total)


def unit_lognormal(rng: np.random.Generator, spread: float, shape: tuple[int, ...]) -> FloatArray:
    """Lognormal factors of mean 1 whose logarithm has standard deviation sqrt(ln(1 + spread^2))."""
    if spread == 0.0:
        return np.ones(shape)
    variance = np.log1p(spread**2)
    return np.exp(rng.normal(-variance / 2.0, np.sqrt(variance), shape))


def stratum_masks(buckets: Buckets, strata: pd.DataFrame) -> Iterator[BoolArray]:
    """Which buckets lie in each stratum; DataError where they hold another number of launches than the stratum."""
    columns = (strata[name].tolist() for name in ("lower_ns", "upper_ns", "n_population"))
    for ids, lower, upper, population in zip(strata["launch_config_ids"], *columns, strict=True):
        inside = (buckets.min_ns >= lower) & (buckets.max_ns <= upper)
        if ids is not None:
            inside &= np.isin(buckets.config, np.asarray(ids, dtype=np.int64))
        found = int(buckets.n[inside].sum())
        if found != population:
            raise DataError(
                f"a stratum of {population} launches finds {found} in the histogram: plan and histogram are of "
                "different runs"
            )
        yield inside


def merge_starts(config: IntArray) -> IntArray:
    """First buckets of groups of neighbours in a configuration, so that a stratum has a few hundred at most."""
    step = -(-config.size // _BUCKETS_PER_STRATUM)
    starts = np.ones(config.size, dtype=np.bool_)
    starts[1:] = (np.diff(config) != 0) | (np.arange(1, config.size) % step == 0)
    return np.flatnonzero(starts)


def stratum_draws(
    rng: np.random.Generator, part: Buckets, m: int, factors: FloatArray, noise: float
) -> tuple[FloatArray, FloatArray]:
    """Error and total in ns of one stratum, shape (draws,); factors of shape (draws, configurations)."""
    config_first = np.concatenate(([0], np.flatnonzero(np.diff(part.config)) + 1))
    mean, within = part.sum_ns / part.n, part.m2 / part.n
    time = np.add.reduceat(part.sum_ns, config_first).astype(np.float64)
    squares = np.add.reduceat(part.n * (mean**2 + within), config_first)
    n = int(part.n.sum())
    draws = len(factors)
    is_constant = part.n.size == 1 and part.m2[0] == 0.0
    if m >= n or is_constant:
        seen, seen_squares = (np.broadcast_to(sums * (m / n), factors.shape) for sums in (time, squares))
    elif m == 1 or (m <= _FEW_SAMPLES and n >= m * m):
        seen, seen_squares = _few_launches(rng, part, m, draws, config_first)
    else:
        seen, seen_squares = _many_launches(rng, part, m, draws, config_first)
    unseen = time - seen
    if noise > 0.0:
        # Sums of independent noise: normal, and hardly anything else even for a single launch of small noise.
        seen = seen + noise * np.sqrt(seen_squares) * rng.standard_normal(factors.shape)
        left = np.sqrt(np.maximum(squares - seen_squares, 0.0))
        unseen = unseen + noise * left * rng.standard_normal(factors.shape)
    seen_total, unseen_total = np.sum(factors * seen, axis=1), np.sum(factors * unseen, axis=1)
    total = seen_total + unseen_total
    if m >= n or (is_constant and noise == 0.0):
        return np.zeros(draws), total
    return seen_total * ((n - m) / m) - unseen_total, total


def _few_launches(
    rng: np.random.Generator, part: Buckets, m: int, draws: int, config_first: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Sums of x and x^2 per configuration of m launches, drawn one by one without replacement."""
    n = int(part.n.sum())
    place = np.sort(rng.integers(0, n, (draws, m)), axis=1)
    repeated = np.flatnonzero((np.diff(place, axis=1) == 0).any(axis=1))
    while repeated.size:
        place[repeated] = np.sort(rng.integers(0, n, (repeated.size, m)), axis=1)
        repeated = repeated[(np.diff(place[repeated], axis=1) == 0).any(axis=1)]
    bucket = np.searchsorted(np.cumsum(part.n), place, side="right")
    mean, spread = part.sum_ns / part.n, np.sqrt(part.m2 / part.n)
    x: FloatArray = mean[bucket]
    if spread.any():
        x = x + spread[bucket] * rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), x.shape)
    if config_first.size == 1:
        return np.sum(x, axis=1, keepdims=True), np.sum(x**2, axis=1, keepdims=True)
    config = np.searchsorted(config_first, bucket, side="right") - 1
    key = (np.arange(draws)[:, None] * config_first.size + config).ravel()
    size = draws * config_first.size
    sums, squares = (
        np.bincount(key, values.ravel(), size).astype(np.float64).reshape(draws, config_first.size)
        for values in (x, x**2)
    )
    return sums, squares


def _counts(rng: np.random.Generator, launches: IntArray, m: int, draws: int) -> FloatArray:
    """How many of m launches drawn without replacement fall into each bucket, shape (draws, buckets)."""
    total = int(launches.sum())
    if total <= _MOST_LAUNCHES:
        exact = rng.multivariate_hypergeometric(launches, m, size=draws, method="marginals")
        return np.asarray(exact, dtype=np.float64)
    share = launches / total
    if m <= _MOST_LAUNCHES // 1_000:
        # Of so many launches the draws are all but independent.
        independent = rng.multinomial(m, share, size=draws).astype(np.float64)
        return np.asarray(np.minimum(independent, launches))
    deviation = np.sqrt(share) * rng.standard_normal((draws, share.size))
    deviation -= share * deviation.sum(axis=1, keepdims=True)
    counts = m * share + np.sqrt(m * (1.0 - m / total)) * deviation
    return np.asarray(np.clip(counts, 0.0, launches))


def _many_launches(
    rng: np.random.Generator, part: Buckets, m: int, draws: int, config_first: IntArray
) -> tuple[FloatArray, FloatArray]:
    """The same from the number of launches that fall into each bucket."""
    counts = _counts(rng, part.n, m, draws)
    mean, within = part.sum_ns / part.n, part.m2 / part.n
    sums = np.add.reduceat(counts * mean, config_first, axis=1)
    if within.any():
        spread = np.add.reduceat(counts * (1.0 - counts / part.n) * within, config_first, axis=1)
        sums = sums + np.sqrt(spread) * rng.standard_normal(sums.shape)
    return sums, np.add.reduceat(counts * (mean**2 + within), config_first, axis=1)
