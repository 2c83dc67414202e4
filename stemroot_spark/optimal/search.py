"""The driver: one multiplier for all kernels, then whole numbers that spend the variance bound.

The dual function sum_k D_k(lambda) - lambda V* is concave, and every evaluation of it brings each kernel's optimal
solution. The solutions at hand bound the dual from above (master) and an evaluation bounds it from below, so the
ladder is refined where they still disagree. What is left is the integer finish: one solution per kernel so that the
sum of variances keeps V*, from the solutions at hand and, while the gap is wide, from near-optimal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.allocation import allocate
from stemroot_spark.optimal.candidates import Candidates, Dual, Master, stratum_cost, stratum_variance
from stemroot_spark.optimal.pareto import choose

IntArray = npt.NDArray[np.int64]

_WIDE_STEPS = 14
_WIDE_RATIO = 4.0
_FIRST_LADDER = (0.6, 0.8, 1.0, 1.25, 1.6)
_NEXT_LADDER = (0.95, 1.0, 1.05)
_MAX_LABELS = 2_048
# Sums over strata round differently in different orders; the bound is kept in every one of them.
_ROUNDING = 1e-9


class Evaluator(Protocol):
    """What the search asks of the kernels; each call is one pass over their histograms."""

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> pd.DataFrame:
        """Optimal strata of every kernel at each multiplier, on coarse cells if asked: rows of FRONTIER_SCHEMA."""

    def alternatives(self, multiplier: float, excess_ns: float) -> pd.DataFrame:
        """Strata of every kernel within about excess_ns of its optimum at the multiplier: FRONTIER_SCHEMA."""


@dataclass(frozen=True)
class SearchOptions:
    """When to stop: gap is (cost - lower bound) / cost.

    The ladder is refined while master and dual differ by more than dual_tolerance, in at most max_passes passes;
    near-optimal strata are looked at while the gap exceeds finish_gap, in at most max_finishes passes.
    """

    dual_tolerance: float = 5e-4
    max_passes: int = 6
    finish_gap: float = 2e-3
    max_finishes: int = 2


@dataclass(frozen=True)
class Selection:
    """Strata and samples of all kernels that keep a variance bound.

    rows: FRONTIER_SCHEMA, one solution per kernel. variance is recomputed from them; lower_bound_ns bounds the
    cost of every plan over allowed strata that keeps `bound`.
    """

    rows: pd.DataFrame
    bound: float
    cost_ns: float
    variance: float
    lower_bound_ns: float

    @property
    def gap(self) -> float:
        """Share of the cost by which the optimum may be cheaper."""
        return max(0.0, 1.0 - self.lower_bound_ns / self.cost_ns)


@dataclass
class Search:
    """Plans for one population under any number of bounds; what one bound taught serves the next."""

    evaluator: Evaluator
    options: SearchOptions = field(default_factory=SearchOptions)
    candidates: Candidates = field(default_factory=Candidates)
    duals: list[Dual] = field(default_factory=list)
    passes: int = 0

    @property
    def total_ns(self) -> float:
        """Profiled time T of all kernels in ns."""
        if not self.passes:
            self._evaluate((0.0,))
        return self.candidates.total_ns

    def lower_bound(self, bound: float) -> float:
        """max over evaluated lambda of sum D - lambda bound: no plan that keeps the bound costs less, in ns."""
        return max((d.value_ns - d.multiplier * bound for d in self.duals), default=0.0)

    def select(self, bound: float, *, finish: bool = True) -> Selection:
        """Cheapest strata and samples found with planning variance at most bound (ns^2, above 0).

        finish=False settles for the solutions at hand once there are any, as a bisection on the bound wants it.
        """
        inner = bound * (1.0 - _ROUNDING)
        total_ns = self.total_ns
        # One launch of each kernel may do already; its candidates are there from the first pass.
        is_new = len(self.duals) < 2 and self.candidates.master(inner).multiplier > 0.0
        if is_new:
            self._look_around(total_ns / inner)
        master = self._refined(inner) if finish or is_new else self.candidates.master(inner)
        selection = self._chosen(inner, master)
        for _ in range(self.options.max_finishes if finish else 0):
            if selection.gap <= self.options.finish_gap:
                break
            before = selection.cost_ns
            self._add_alternatives(inner, selection)
            selection = self._chosen(inner, self.candidates.master(inner))
            if selection.cost_ns > before * (1.0 - self.options.finish_gap / 2):
                break
        return self._polished(selection, inner) if finish else selection

    def _evaluate(self, multipliers: Sequence[float], coarse: bool = False) -> None:
        duals = self.candidates.add(self.evaluator.frontier(multipliers, coarse))
        self.passes += 1
        # Strata of coarser cells are allowed strata, but their optimum bounds nothing.
        if not coarse:
            self.duals += duals

    def _look_around(self, highest: float) -> None:
        """Wide ladder on coarse cells, from where surely enough is simulated: lambda V* = T.

        There cost + lambda V <= T + 0, the price of simulating everything, so that V <= V* (T - cost) / T.
        """
        ladder = highest * _WIDE_RATIO ** -np.arange(_WIDE_STEPS, dtype=np.float64)
        self._evaluate(ladder.tolist(), coarse=True)

    def _refined(self, bound: float) -> Master:
        ladder: Sequence[float] = _FIRST_LADDER
        for _ in range(self.options.max_passes):
            master = self.candidates.master(bound)
            if master.value_ns - self.lower_bound(bound) <= self.options.dual_tolerance * master.value_ns:
                return master
            self._evaluate([master.multiplier * step for step in ladder])
            ladder = _NEXT_LADDER
        return self.candidates.master(bound)

    def _chosen(self, bound: float, master: Master) -> Selection:
        """Best choice of one solution per kernel: first one that keeps the bound, then the best below its excess."""
        choices = self.candidates.choices()
        limit = 4.0 * (self.total_ns + master.multiplier * bound)
        excess, choice = 0.02 * master.value_ns, None
        while choice is None and excess < limit:
            choice = choose(choices, master.multiplier, bound, excess, _MAX_LABELS)
            excess *= 4.0
        if choice is None:
            # Thinning may lose every plan that keeps the bound; the least variances always keep it.
            choice = np.array([c.variance.argmin() for c in choices])
        first = self._selection(self.candidates.rows(choice), bound)
        above = first.cost_ns - master.value_ns
        if above <= excess / 4.0:
            return first
        choice = choose(choices, master.multiplier, bound, above * (1.0 + _ROUNDING), _MAX_LABELS)
        if choice is None:
            return first
        second = self._selection(self.candidates.rows(choice), bound)
        return min((first, second), key=lambda selection: selection.cost_ns)

    def _add_alternatives(self, bound: float, selection: Selection) -> None:
        best = max(self.duals, key=lambda d: d.value_ns - d.multiplier * bound)
        excess = selection.cost_ns - selection.lower_bound_ns
        self.candidates.add(self.evaluator.alternatives(best.multiplier, excess))
        self.passes += 1

    def _polished(self, selection: Selection, bound: float) -> Selection:
        """Samples settled over the strata of all kernels together; never dearer than before."""
        rows = selection.rows
        if "is_pps" in rows.columns:
            return self._selection(rows.assign(n_samples=lowered(rows, bound)), bound)
        samples = allocate(
            rows["n_population"], rows["model_stddev_ns"], rows["mean_ns"], bound, start=rows["n_samples"]
        )
        return self._selection(rows.assign(n_samples=samples), bound)

    def _selection(self, rows: pd.DataFrame, bound: float) -> Selection:
        return Selection(
            rows=rows,
            bound=bound,
            cost_ns=float(stratum_cost(rows).sum()),
            variance=float(stratum_variance(rows).sum()),
            lower_bound_ns=self.lower_bound(bound),
        )


def lowered(rows: pd.DataFrame, bound: float) -> IntArray:
    """Samples of strata of any design, the dearest lowered first while the variance stays within the bound."""
    rows = rows.copy()
    while True:
        m = rows["n_samples"].to_numpy(dtype=np.int64)
        variance = stratum_variance(rows)
        fewer = np.maximum(m - 1, 1)
        after = variance.sum() - variance + stratum_variance(rows.assign(n_samples=fewer))
        saving = np.where((m > 1) & (after <= bound), stratum_cost(rows) / m, 0.0)
        h = int(np.argmax(saving))
        if saving[h] == 0.0:
            return m
        samples = m.copy()
        samples[h] -= 1
        if stratum_variance(rows.assign(n_samples=samples)).sum() > bound:
            return m
        rows["n_samples"] = samples
