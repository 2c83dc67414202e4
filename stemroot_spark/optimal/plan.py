"""Optimal plans for each guarantee: search, calibration, and the figures that `strata` and `plans` store.

`transfer`, `total` and `worst-case` bind all kernels together: the driver asks a Work for passes over the kernels.
`per-kernel` binds each kernel alone, so that a kernel's whole plan is made where its histogram is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.allocation import normal_quantile, variance_bound
from stemroot_spark.errors import DataError
from stemroot_spark.optimal.calibration import DRAWS, MAX_ROUNDS, Calibrated, Coverage, calibrate
from stemroot_spark.optimal.candidates import stratum_cost, stratum_variance
from stemroot_spark.optimal.model import DEFAULT_MAX_CELLS, PlanningModel, planning_model
from stemroot_spark.optimal.search import Evaluator, Search, SearchOptions, Selection
from stemroot_spark.optimal.worst_case import relative_deviation, worst_factors

FloatArray = npt.NDArray[np.float64]

# What `plan_kernel_alone` returns on each row of a kernel's strata besides the solution's columns.
ALONE_FIGURES = (
    "lower_bound_ns DOUBLE, calibrated_epsilon DOUBLE, coverage DOUBLE, n_draws BIGINT, is_calibrated BOOLEAN"
)
# The columns of `strata`, and the deviation that the planning variance is made of.
STRATA_COLUMNS = (
    "kernel_id",
    "stratum_id",
    "launch_config_ids",
    "lower_ns",
    "upper_ns",
    "n_population",
    "n_samples",
    "mean_ns",
    "stddev_ns",
    "model_stddev_ns",
)
# What the strata of two profiles carry besides, see stemroot_spark.optimal.designs.
PAIRED_COLUMNS = ("is_pps", "unit_cost_ns", "profile_mean_ns", "profile_stddev_ns", "profile_cost_ns")
_BISECTIONS = 8
_SHRINK = 0.97


@dataclass(frozen=True)
class PlanOptions:
    """What to guarantee: within epsilon at the confidence, for one of GUARANTEES.

    factor_spread and launch_noise belong to `transfer`, rho to `worst-case`. repeat_noise: the spread between two
    profiles assumed of launches that the second one lacks; with two profiles, whose spread is measured, launch_noise is
    what a simulation adds to it. draws is the size of the simulation
    that calibrates; calibrated=False plans for epsilon as it is and only measures the coverage.
    """

    guarantee: str = "transfer"
    epsilon: float = 0.05
    confidence: float = 0.95
    factor_spread: float = 0.5
    launch_noise: float = 0.03
    repeat_noise: float = 0.03
    rho: float = 2.0
    seed: int = 0
    draws: int = DRAWS
    calibrated: bool = True
    max_cells: int = DEFAULT_MAX_CELLS
    search: SearchOptions = field(default_factory=SearchOptions)

    @property
    def model(self) -> PlanningModel:
        """Planning model of the guarantee; DataError for an unknown one."""
        return planning_model(
            self.guarantee,
            factor_spread=self.factor_spread,
            launch_noise=self.launch_noise,
            repeat_noise=self.repeat_noise,
            max_cells=self.max_cells,
        )

    def bound(self, total_ns: float, epsilon: float | None = None) -> float:
        """V* = (epsilon T / z)^2 in ns^2, for another epsilon if given."""
        return variance_bound(total_ns, self.epsilon if epsilon is None else epsilon, self.confidence)


class Work(Evaluator, Protocol):
    """Passes over all kernels that a plan for all of them together needs."""

    def simulate(
        self, strata: pd.DataFrame, factors: Mapping[int, float], *, seed: int, first: int, draws: int
    ) -> pd.DataFrame:
        """Sum over kernels, draw by draw, of DRAWS_SCHEMA scaled by the kernel's factor (1 where missing)."""


@dataclass(frozen=True)
class OptimalPlan:
    """A plan ready for the tables. Times in ns, errors relative to the total.

    strata: STRATA_COLUMNS, ascending by kernel and stratum; launch_config_ids are lists, or None for all. An
    interval [lower_ns, upper_ns] is closed and holds for the listed configurations only.
    planned_relative_error: z sqrt(V) / T. guaranteed_error: the quantity the guarantee bounds, the largest over
    kernels or factors where it speaks of them. lower_bound_ns: no plan over allowed strata that keeps the nominal
    bound is cheaper; optimality_gap is measured against it and so contains the price of the calibration.
    calibrated_epsilon: what was planned for so that epsilon is covered; coverage: simulated under the planning
    model over n_draws, for `per-kernel` the least of all kernels. reason: why the confidence is not reached, or
    None.
    """

    strata: pd.DataFrame
    options: PlanOptions
    total_time_ns: float
    sampled_time_ns: float
    planned_relative_error: float
    guaranteed_error: float
    lower_bound_ns: float
    calibrated_epsilon: float
    coverage: Coverage
    n_passes: int
    reason: str | None

    @property
    def speedup(self) -> float:
        """Profiled time per expected sampled time."""
        return self.total_time_ns / self.sampled_time_ns

    @property
    def optimality_gap(self) -> float:
        """Share of the expected sampled time by which the optimum may be cheaper."""
        return max(0.0, 1.0 - self.lower_bound_ns / self.sampled_time_ns)


def plan_together(work: Work, options: PlanOptions) -> OptimalPlan:
    """Plan under a guarantee that binds all kernels together: `transfer`, `total` or `worst-case`.

    DataError for `per-kernel` (see plan_kernel_alone) and for options outside their domain.
    """
    if options.guarantee == "per-kernel":
        raise DataError("guarantee per-kernel binds each kernel alone: use plan_kernel_alone per kernel")
    search, result = _calibrated(work, options)
    return _result(
        result.plan.rows,
        options,
        lower_bound_ns=search.lower_bound(options.bound(search.total_ns)),
        calibrated_epsilon=result.epsilon,
        coverage=result.coverage,
        unreached=0 if result.reached else 1,
        n_passes=search.passes,
    )


def plan_kernel_alone(work: Work, options: PlanOptions) -> pd.DataFrame:
    """Plan of one kernel within epsilon of its own time, calibrated by itself: strata with ALONE_FIGURES.

    work: a Work over that kernel only. DataError for options outside their domain.
    """
    search, result = _calibrated(work, options)
    return result.plan.rows.assign(
        lower_bound_ns=search.lower_bound(options.bound(search.total_ns)),
        calibrated_epsilon=result.epsilon,
        coverage=result.coverage.share,
        n_draws=result.coverage.n_draws,
        is_calibrated=result.reached,
    )


def plan_from_kernels(rows: pd.DataFrame, options: PlanOptions) -> OptimalPlan:
    """The plan of all kernels from what plan_kernel_alone says of each; guarantee `per-kernel`."""
    kernels = rows.groupby("kernel_id", sort=True).first()
    worst = kernels.iloc[int(kernels["coverage"].to_numpy().argmin())]
    return _result(
        rows,
        options,
        lower_bound_ns=float(kernels["lower_bound_ns"].sum()),
        calibrated_epsilon=float(kernels["calibrated_epsilon"].min()),
        coverage=Coverage(float(worst["coverage"]), int(worst["n_draws"]), float("nan")),
        unreached=int((~kernels["is_calibrated"].astype(bool)).sum()),
        n_passes=1,
    )


def _calibrated(work: Work, options: PlanOptions) -> tuple[Search, Calibrated[Selection]]:
    search = Search(work, options.search)
    is_worst_case = options.guarantee == "worst-case"

    def select(epsilon: float) -> Selection:
        if is_worst_case:
            return _select_worst_case(search, options, epsilon)
        return search.select(options.bound(search.total_ns, epsilon))

    def draw(selection: Selection, first: int, draws: int) -> tuple[FloatArray, FloatArray]:
        factors = worst_corner(selection.rows, options.rho) if is_worst_case else {}
        rows = work.simulate(selection.rows, factors, seed=options.seed, first=first, draws=draws)
        return rows["error_ns"].to_numpy(dtype=np.float64), rows["total_ns"].to_numpy(dtype=np.float64)

    rounds = MAX_ROUNDS if options.calibrated else 1
    result = calibrate(
        select,
        draw,
        epsilon=options.epsilon,
        confidence=options.confidence,
        draws=options.draws,
        rounds=rounds,
    )
    return search, result


def _select_worst_case(search: Search, options: PlanOptions, epsilon: float) -> Selection:
    """Largest variance bound, by bisection, whose plan keeps epsilon at the worst corner of factors."""
    nominal = options.bound(search.total_ns, epsilon)

    def holds(selection: Selection) -> bool:
        return _worst_error(selection.rows, options) <= epsilon

    # V <= V* / rho^4 always holds: sum f^2 V <= rho^2 V and sum f T >= T / rho.
    low, high = -4.0 * np.log(options.rho), 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if holds(search.select(nominal * float(np.exp(middle)), finish=False)):
            low = middle
        else:
            high = middle
    bound = nominal * float(np.exp(low))
    selection = search.select(bound)
    while not holds(selection):
        bound *= _SHRINK
        selection = search.select(bound)
    return selection


def _per_kernel(rows: pd.DataFrame) -> pd.DataFrame:
    """variance in ns^2 and total_ns of each kernel."""
    return (
        rows.assign(variance=stratum_variance(rows), total_ns=rows["n_population"] * rows["mean_ns"])
        .groupby("kernel_id", sort=True)[["variance", "total_ns"]]
        .sum()
    )


def worst_corner(rows: pd.DataFrame, rho: float) -> dict[int, float]:
    """Factor of each kernel, by kernel_id, at which the strata of a plan do worst."""
    kernels = _per_kernel(rows)
    factors = worst_factors(kernels["variance"], kernels["total_ns"], rho)
    return dict(zip(kernels.index.to_list(), factors.tolist(), strict=True))


def _worst_error(rows: pd.DataFrame, options: PlanOptions) -> float:
    kernels = _per_kernel(rows)
    v, t = kernels["variance"].to_numpy(), kernels["total_ns"].to_numpy()
    return normal_quantile(options.confidence) * relative_deviation(v, t, worst_factors(v, t, options.rho))


def _result(
    rows: pd.DataFrame,
    options: PlanOptions,
    *,
    lower_bound_ns: float,
    calibrated_epsilon: float,
    coverage: Coverage,
    unreached: int,
    n_passes: int,
) -> OptimalPlan:
    strata = rows.sort_values(["kernel_id", "stratum_id"], kind="stable", ignore_index=True)
    kernels = _per_kernel(strata)
    z = normal_quantile(options.confidence)
    total = float(kernels["total_ns"].sum())
    planned = z * float(np.sqrt(kernels["variance"].sum())) / total
    guaranteed = planned
    if options.guarantee == "per-kernel":
        guaranteed = z * float((np.sqrt(kernels["variance"]) / kernels["total_ns"]).max())
    elif options.guarantee == "worst-case":
        guaranteed = _worst_error(strata, options)
    reason = None
    if unreached:
        what = f"{unreached} of {len(kernels)} kernels" if options.guarantee == "per-kernel" else "the plan"
        reason = (
            f"simulated coverage of {what} stays at {coverage.share:.4f}, below {options.confidence}: "
            f"{coverage.n_draws} draws of the planning model"
        )
    return OptimalPlan(
        strata=strata.loc[:, [n for n in (*STRATA_COLUMNS, *PAIRED_COLUMNS) if n in strata.columns]],
        options=options,
        total_time_ns=total,
        sampled_time_ns=float(stratum_cost(strata).sum()),
        planned_relative_error=planned,
        guaranteed_error=guaranteed,
        lower_bound_ns=lower_bound_ns,
        calibrated_epsilon=calibrated_epsilon,
        coverage=coverage,
        n_passes=n_passes,
        reason=reason,
    )
