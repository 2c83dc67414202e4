"""Samples of a population, drawn many times at once, and the weights that turn a sample into an estimate.

A sample has the same number of launches in every draw, so that 20,000 draws are one array of positions, made in blocks
that fit memory. The estimate of the total is the sum of weight times simulated time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stemroot_spark.errors import DataError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Strata:
    """Strata of a population: number of each launch's stratum, launches to draw of each, and each one's kernel.

    of_launch: shape (n,), numbers 0..H-1 or -1 for a launch that no stratum holds. n_samples, kernel: shape (H,);
    kernel is a position in Population.kernels, ascending. is_pps: shape (H,), whether launches are drawn with
    probabilities proportional to their profiled time; None for strata that all are not.
    """

    of_launch: IntArray
    n_samples: IntArray
    kernel: IntArray
    is_pps: npt.NDArray[np.bool_] | None = None

    @property
    def sizes(self) -> IntArray:
        """Launches of each stratum, shape (H,)."""
        held = self.of_launch[self.of_launch >= 0]
        return np.bincount(held, minlength=self.n_samples.size).astype(np.int64)


class Sample(Protocol):
    """A way to draw launches.

    weights: one per column of positions, shape (m,), to be divided by the profiled time of the launch where is_per_ns,
    shape (m,), is true; None for never. strata: where the draw is stratified by kernel, else None.
    is_simple: every launch is equally likely, so that the sample's own spread tells its error. is_random: draws differ.
    dropped: mask of launches that no draw can hold and no weight stands for, or None for none.
    """

    @property
    def weights(self) -> FloatArray: ...
    @property
    def is_per_ns(self) -> npt.NDArray[np.bool_] | None: ...
    @property
    def strata(self) -> Strata | None: ...
    @property
    def is_simple(self) -> bool: ...
    @property
    def is_random(self) -> bool: ...
    @property
    def dropped(self) -> npt.NDArray[np.bool_] | None: ...
    def draw(self, rng: np.random.Generator, draws: int) -> IntArray:
        """Positions of the drawn launches, shape (draws, m)."""


class StratifiedSample:
    """min(m_h, N_h) launches of each stratum; weight N_h / m_h, or X_h / (m_h x) in strata drawn by PPS.

    Expansion strata are drawn without replacement. PPS strata are drawn systematically: in random order, at equal
    distances of profiled time from one random start, which needs the launches' durations x_ns, shape (n,).
    """

    is_simple = False

    def __init__(self, strata: Strata, x_ns: FloatArray | None = None) -> None:
        sizes = strata.sizes
        if (sizes < 1).any() or (strata.n_samples < 0).any() or (np.diff(strata.kernel) < 0).any():
            raise DataError("strata need launches, samples of 0 or above, and kernels in ascending order")
        self.strata: Strata | None = strata
        self._sizes = sizes
        self._taken = np.minimum(strata.n_samples, sizes)
        order = np.argsort(strata.of_launch, kind="stable")
        self._members = order[np.count_nonzero(strata.of_launch < 0) :]
        self._first = np.concatenate(([0], np.cumsum(sizes)))
        self._column = np.concatenate(([0], np.cumsum(self._taken)))
        sampled = self._taken > 0
        mass, self._is_pps = sizes.astype(np.float64), np.zeros(sizes.size, dtype=np.bool_)
        if strata.is_pps is not None and strata.is_pps.any():
            if x_ns is None:
                raise DataError("strata drawn by PPS need the durations of their launches")
            self._is_pps, self._x = strata.is_pps, x_ns[self._members]
            mass[self._is_pps] = np.add.reduceat(self._x, self._first[:-1])[self._is_pps]
        self.weights = np.repeat(mass[sampled] / self._taken[sampled], self._taken[sampled])
        self.is_per_ns: npt.NDArray[np.bool_] | None = (
            np.repeat(self._is_pps, self._taken) if self._is_pps.any() else None
        )
        self.is_random = bool((self._taken[sampled] < sizes[sampled]).any())
        lost = ~sampled
        missing = (strata.of_launch < 0) | lost[np.maximum(strata.of_launch, 0)]
        self.dropped: npt.NDArray[np.bool_] | None = missing if missing.any() else None

    @property
    def n_answered(self) -> IntArray:
        """Launches that a draw takes of each stratum, shape (H,)."""
        return self._taken

    def draw(self, rng: np.random.Generator, draws: int) -> IntArray:
        """Positions, columns in the order of the strata."""
        columns = np.empty((draws, int(self._column[-1])), dtype=np.int64)
        single = np.flatnonzero((self._taken == 1) & ~self._is_pps)
        inside = rng.integers(0, self._sizes[single], size=(draws, single.size))
        columns[:, self._column[single]] = self._first[single] + inside
        for h in np.flatnonzero((self._taken > 1) | self._is_pps).tolist():
            first, m = int(self._first[h]), int(self._taken[h])
            if self._is_pps[h]:
                x = self._x[first : int(self._first[h + 1])]
                inside = systematic_pps(rng, x, m, draws)
            else:
                inside = without_replacement(rng, int(self._sizes[h]), m, draws)
            columns[:, self._column[h] : self._column[h + 1]] = first + inside
        return self._members[columns]


class FixedSample:
    """The same launches in every draw, each with a weight: designs that choose and do not draw."""

    is_per_ns: npt.NDArray[np.bool_] | None = None
    strata: Strata | None = None
    is_simple = False
    is_random = False
    dropped: npt.NDArray[np.bool_] | None = None

    def __init__(self, positions: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        self.positions = np.asarray(positions, dtype=np.int64)
        self.weights = np.asarray(weights, dtype=np.float64)
        if self.positions.shape != self.weights.shape or self.positions.ndim != 1 or not self.positions.size:
            raise DataError("a fixed sample needs launches and a weight for each")

    def draw(self, rng: np.random.Generator, draws: int) -> IntArray:
        """Positions, each row alike."""
        return np.broadcast_to(self.positions, (draws, self.positions.size))


class SimpleSample:
    """m of all n launches without replacement, each set equally likely; weight n / m."""

    is_per_ns: npt.NDArray[np.bool_] | None = None
    strata: Strata | None = None
    is_simple = True
    dropped: npt.NDArray[np.bool_] | None = None

    def __init__(self, n_population: int, n_samples: int) -> None:
        self.n_population, self.n_samples = n_population, n_samples
        self.weights = np.full(n_samples, n_population / n_samples)
        self.is_random = n_samples < n_population

    def draw(self, rng: np.random.Generator, draws: int) -> IntArray:
        """Positions of the launches."""
        return without_replacement(rng, self.n_population, self.n_samples, draws)


class SystematicSample(SimpleSample):
    """Every (n / m)-th launch in the order of launch from one random start; weight n / m.

    The period may be fractional, so that m launches are drawn whatever the start and each has probability m / n
    (Saerndal, Swensson and Wretman, Model Assisted Survey Sampling, section 3.4).
    """

    def draw(self, rng: np.random.Generator, draws: int) -> IntArray:
        """Positions of the launches, ascending."""
        period = self.n_population / self.n_samples
        start = rng.uniform(0.0, period, size=(draws, 1))
        places = np.floor(start + period * np.arange(self.n_samples)).astype(np.int64)
        return np.minimum(places, self.n_population - 1)


def without_replacement(rng: np.random.Generator, n: int, m: int, draws: int) -> IntArray:
    """m different numbers below n, shape (draws, m), every set equally likely; order within a row is arbitrary.

    Numbers that repeat in a row are drawn again until none does. The rule treats all numbers alike, so every set of m
    comes out equally often. Above n / 2 the numbers left out are drawn instead.
    """
    if not 1 <= m <= n:
        raise DataError(f"{m} launches of {n} cannot be drawn without replacement")
    if m == n:
        return np.broadcast_to(np.arange(n), (draws, n))
    if 2 * m > n:
        kept = np.ones((draws, n), dtype=np.bool_)
        np.put_along_axis(kept, without_replacement(rng, n, n - m, draws), False, axis=1)
        return np.nonzero(kept)[1].reshape(draws, m)
    drawn = rng.integers(0, n, size=(draws, m))
    if m == 1:
        return drawn
    again = np.arange(draws)
    while again.size:
        rows = np.sort(drawn[again], axis=1)
        repeats = np.zeros(rows.shape, dtype=np.bool_)
        repeats[:, 1:] = rows[:, 1:] == rows[:, :-1]
        rows[repeats] = rng.integers(0, n, size=int(repeats.sum()))
        drawn[again] = rows
        again = again[repeats.any(axis=1)]
    return drawn


def systematic_pps(rng: np.random.Generator, x_ns: FloatArray, m: int, draws: int) -> IntArray:
    """m numbers of launches of durations x_ns > 0, shape (draws, m), launch i with expected count m x_i / X.

    The order is random anew in every draw, and one start is random within X / m (Saerndal, Swensson and Wretman, Model
    Assisted Survey Sampling, section 3.6.2). A launch with m x_i > X may be drawn twice.
    """
    if m == 1:
        # The order makes no difference to a single launch.
        return _at(np.cumsum(x_ns), rng.random((draws, 1)) * x_ns.sum())
    drawn = np.empty((draws, m), dtype=np.int64)
    for row in range(draws):
        order = rng.permutation(x_ns.size)
        ends = np.cumsum(x_ns[order])
        drawn[row] = order[_at(ends, (rng.random() + np.arange(m)) * (ends[-1] / m))]
    return drawn


def _at(ends: FloatArray, points: FloatArray) -> IntArray:
    """Numbers of the intervals, ending at ends, that points lie in; rounding keeps them within the last."""
    return np.minimum(np.searchsorted(ends, points, side="right"), ends.size - 1).astype(np.int64)
