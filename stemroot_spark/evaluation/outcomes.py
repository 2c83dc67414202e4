"""What the launches take in simulation: the profile itself, another run, or a model of other hardware.

An outcome is asked block by block for the simulated times of positions of launches, row by row, and for the truth that
estimates are compared with. Models draw new factors for every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stemroot_spark.errors import DataError
from stemroot_spark.evaluation.population import Population
from stemroot_spark.histogram import cells_from_histogram, histogram_of
from stemroot_spark.root import best_cut

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MIN_MODE_SHARE = 0.05
MIN_SEPARATION = 4.0


@dataclass(frozen=True)
class Truth:
    """Simulated times of one block of rows.

    values: positions of shape (rows, m) -> times in ns. kernel_totals: time of every kernel, shape (rows, kernels).
    """

    values: Callable[[IntArray], FloatArray]
    kernel_totals: FloatArray


class Outcome(Protocol):
    """Where simulated times come from."""

    @property
    def is_random(self) -> bool:
        """Whether rows differ."""

    def rows(self, rng: np.random.Generator, n: int) -> Truth:
        """The next n rows."""


class FixedOutcome:
    """The same times in every row: the profile itself (P0), or another run (P1, or P2 on other hardware)."""

    is_random = False

    def __init__(self, population: Population, y_ns: FloatArray) -> None:
        self._y = y_ns
        ids, number = population.kernels
        self._totals = np.bincount(number, weights=y_ns, minlength=ids.size)

    def rows(self, rng: np.random.Generator, n: int) -> Truth:
        """n equal rows."""
        return Truth(
            lambda positions: self._y[positions], np.broadcast_to(self._totals, (n, self._totals.size))
        )


class FactorOutcome:
    """y_i = x_i f_g: a lognormal factor of mean 1 per group of launches, new in every row.

    sd is the standard deviation of the factor itself, the sense in which plans state factor_spread; its logarithm has
    variance ln(1 + sd^2).
    """

    is_random = True

    def __init__(self, population: Population, groups: npt.NDArray[np.intp], sd: float) -> None:
        if not 0.0 < sd < np.inf:
            raise DataError(f"factors with standard deviation {sd}: give a number above 0")
        self._x, self._groups = population.x, groups
        ids, number = population.kernels
        kernel_of_group = np.zeros(int(groups.max()) + 1, dtype=np.int64)
        kernel_of_group[groups] = number
        self._order = np.argsort(kernel_of_group, kind="stable")
        self._first = np.searchsorted(kernel_of_group[self._order], np.arange(ids.size))
        self._time = np.bincount(groups, weights=self._x)
        self._log_variance = float(np.log1p(sd**2))

    def rows(self, rng: np.random.Generator, n: int) -> Truth:
        """n rows with new factors."""
        mean, deviation = -self._log_variance / 2.0, np.sqrt(self._log_variance)
        factors = np.exp(mean + deviation * rng.standard_normal((n, self._time.size)))
        totals = np.add.reduceat((factors * self._time)[:, self._order], self._first, axis=1)
        row = np.arange(n)[:, None]
        return Truth(lambda positions: self._x[positions] * factors[row, self._groups[positions]], totals)


class SwappedModes:
    """In every row each kernel of two modes swaps them with the given probability: fast launches slow, slow ones fast.

    A launch of the mode with mean a then takes x b / a, and one of the mode with mean b takes x a / b.
    """

    def __init__(self, population: Population, probability: float) -> None:
        self._x, self._number = population.x, population.kernels[1]
        self.is_random = 0.0 < probability < 1.0
        self.probability = probability
        self._swapped = self._x.copy()
        self.n_kernels, time = 0, 0.0
        for launches in population.by_kernel:
            border = mode_border(population.duration_ns[launches])
            if border is None:
                continue
            x = self._x[launches]
            low = x <= border
            ratio = x[~low].mean() / x[low].mean()
            self._swapped[launches] = np.where(low, x * ratio, x / ratio)
            self.n_kernels += 1
            time += float(x.sum())
        self.time_share = time / float(self._x.sum())
        size = population.kernels[0].size
        self._totals = np.bincount(self._number, weights=self._x, minlength=size)
        self._swapped_totals = np.bincount(self._number, weights=self._swapped, minlength=size)

    def rows(self, rng: np.random.Generator, n: int) -> Truth:
        """n rows with new swaps."""
        swaps = rng.random((n, self._totals.size)) < self.probability
        row = np.arange(n)[:, None]

        def values(positions: IntArray) -> FloatArray:
            return np.where(swaps[row, self._number[positions]], self._swapped[positions], self._x[positions])

        return Truth(values, np.where(swaps, self._swapped_totals, self._totals))


def mode_border(durations_ns: IntArray) -> int | None:
    """Largest duration of the faster of a kernel's two modes, or None where it has not two.

    The modes are the clusters of exact two-way k-means. They count as two if each holds MIN_MODE_SHARE of the launches
    and two of them at least, and if D = sqrt(2) |a - b| / sqrt(s_a^2 + s_b^2) (Ashman, Bird and Zepf 1994) exceeds
    MIN_SEPARATION. The two halves of a normal distribution have D = 2.7 and those of a uniform one 3.5.
    """
    cells = cells_from_histogram(histogram_of(durations_ns))
    if len(cells) < 2:
        return None
    border = int(cells.max_ns[best_cut(cells, 0, len(cells)) - 1])
    x = durations_ns.astype(np.float64)
    low, high = x[x <= border], x[x > border]
    if min(low.size, high.size) < max(2.0, MIN_MODE_SHARE * x.size):
        return None
    spread = np.sqrt(low.var() + high.var())
    separated = np.sqrt(2.0) * (high.mean() - low.mean()) > MIN_SEPARATION * spread
    return border if separated else None
