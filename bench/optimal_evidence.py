"""Evidence for the optimal planner, as Markdown tables: python -m bench.optimal_evidence [section ...].

Sections: traces, guarantees, noise, kernels, speed; all by default. Real traces are read from where
tests/traces.py finds them. Coverage is measured over 20,000 draws that no calibration has seen; its Monte-Carlo
error at 0.95 is 0.0015.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.histogram import cells_from_histogram, histogram_of
from stemroot_spark.optimal.calibration import Coverage, coverage_of
from stemroot_spark.optimal.histogram_kernel import HISTOGRAMS, plan_histogram
from stemroot_spark.optimal.local import LocalWork
from stemroot_spark.optimal.model import GUARANTEES, PlanningModel
from stemroot_spark.optimal.plan import OptimalPlan, PlanOptions, worst_corner
from stemroot_spark.root import split_kernel
from tests import traces

SEED = 20_000
DRAWS = 20_000


def main(sections: Iterable[str]) -> None:
    """Print the sections asked for, or all."""
    for name in sections or SECTIONS:
        print(f"\n## {name} (seed {SEED})\n", flush=True)
        SECTIONS[name]()


def table(header: str, rows: Iterable[Iterable[object]]) -> None:
    """Print a Markdown table row by row, as rows become known."""
    print(f"| {header} |\n|{'---|' * (header.count('|') + 1)}")
    for row in rows:
        cells = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row)
        print(f"| {' | '.join(cells)} |", flush=True)


def published_cost(histogram: pd.DataFrame, epsilon: float = 0.05) -> float:
    """Sampled time in ns of the published method, kernel by kernel."""
    cost = 0.0
    for _, rows in histogram.groupby("kernel_id"):
        split = split_kernel(cells_from_histogram(rows), epsilon=epsilon, confidence=0.95, paper=True)
        cost += sum(leaf.n_samples * leaf.mean_ns for leaf in split.leaves)
    return cost


def coverage(histogram: pd.DataFrame, plan: OptimalPlan, model: PlanningModel) -> Coverage:
    """Coverage of a plan under a model; under the worst corner where the plan is made for it."""
    factors = worst_corner(plan.strata, plan.options.rho) if plan.options.guarantee == "worst-case" else {}
    work = LocalWork.of_rows(histogram, HISTOGRAMS, model)
    draws = work.simulate(plan.strata, factors, seed=SEED, first=0, draws=DRAWS)
    error, total = (draws[name].to_numpy(dtype=np.float64) for name in ("error_ns", "total_ns"))
    return coverage_of(error, total, plan.options.epsilon, plan.options.confidence)


def least_kernel_coverage(histogram: pd.DataFrame, plan: OptimalPlan) -> Coverage:
    """The least coverage of any kernel by itself."""
    found = []
    for kernel, rows in histogram.groupby("kernel_id"):
        strata = plan.strata[plan.strata["kernel_id"] == kernel]
        work = LocalWork.of_rows(rows, HISTOGRAMS, plan.options.model)
        draws = work.simulate(strata, {}, seed=SEED, first=0, draws=DRAWS)
        error, total = (draws[name].to_numpy(dtype=np.float64) for name in ("error_ns", "total_ns"))
        found.append(coverage_of(error, total, plan.options.epsilon, plan.options.confidence))
    return min(found, key=lambda c: c.share)


def every_trace() -> None:
    """Every real trace under every guarantee, calibrated, and at 1.02 epsilon where costs are lumpy."""

    def rows() -> Iterable[Iterable[object]]:
        for name in traces.TRACES:
            histogram = traces.histogram(name)
            total = float(histogram["sum_ns"].sum())
            published = total / published_cost(histogram)
            for guarantee in GUARANTEES:
                options = PlanOptions(guarantee=guarantee)
                started = time.process_time()
                plan = plan_histogram(histogram, options)
                seconds = time.process_time() - started
                looser = plan_histogram(histogram, PlanOptions(guarantee=guarantee, epsilon=0.051))
                measured = coverage(histogram, plan, options.model)
                if guarantee == "per-kernel":
                    measured = least_kernel_coverage(histogram, plan)
                yield (
                    name, guarantee, published, plan.speedup, looser.speedup, plan.optimality_gap,
                    plan.guaranteed_error, plan.calibrated_epsilon, measured.share, plan.n_passes, seconds,
                    plan.reason or "",
                )  # fmt: skip

    table(
        "trace | guarantee | published, exact k-means | speedup | at 1.02 eps | gap | guaranteed error | "
        "calibrated eps | coverage (of the worst kernel for per-kernel) | passes | CPU s | reason",
        rows(),
    )


def guarantees() -> None:
    """Guarantees on h100_2rank when factors per configuration are lognormal with sd s of the logarithm."""

    def rows() -> Iterable[Iterable[object]]:
        histogram = traces.histogram("h100_2rank")
        for guarantee, spread in (("total", 0.0), ("transfer", 0.5), ("transfer", 1.0)):
            for calibrated in (False, True):
                options = PlanOptions(
                    guarantee=guarantee, factor_spread=spread, launch_noise=0.0, calibrated=calibrated
                )
                plan = plan_histogram(histogram, options)
                models = (
                    PlanningModel(float(np.sqrt(np.expm1(s**2))), use_configurations=True) for s in (0.5, 0.7)
                )
                shares = [coverage(histogram, plan, model).share for model in models]
                own = coverage(histogram, plan, options.model).share
                yield guarantee, spread, calibrated, plan.speedup, plan.calibrated_epsilon, *shares, own

    table("guarantee | factor_spread | calibrated | speedup | eps | s = 0.5 | s = 0.7 | own model", rows())


def noise() -> None:
    """What launch noise costs, uncalibrated and calibrated."""

    def rows() -> Iterable[Iterable[object]]:
        for name in ("h100_2rank", "rodinia_gaussian"):
            for level in (0.0, 0.03, 0.05, 0.1):
                plans = (
                    plan_histogram(
                        traces.histogram(name), PlanOptions(launch_noise=level, calibrated=calibrated)
                    )
                    for calibrated in (False, True)
                )
                yield name, level, *(plan.speedup for plan in plans)

    table("trace | launch_noise | speedup, uncalibrated | calibrated", rows())


def population(shape: str, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """20,000 durations in ns of one shape."""
    match shape:
        case "bimodal 95/5":
            slow = rng.random(20_000) < 0.05
            x = np.where(slow, rng.normal(5e6, 1e5, 20_000), rng.normal(1e6, 2e4, 20_000))
        case "lognormal 0.5":
            x = np.exp(rng.normal(13, 0.5, 20_000))
        case _:
            x = 1e6 * (1 + rng.pareto(2.2, 20_000))
    return x.astype(np.int64)


def one_kernel() -> None:
    """Costs in mean launches of one kernel: median and range over eight samples of each distribution."""

    def rows() -> Iterable[Iterable[object]]:
        for shape in ("bimodal 95/5", "lognormal 0.5", "Pareto 2.2"):
            for epsilon in (0.05, 0.01):
                costs = []
                for seed in range(8):
                    x = population(shape, np.random.default_rng(seed))
                    histogram = histogram_of(x).assign(kernel_id=1)
                    plans = (
                        plan_histogram(
                            histogram,
                            PlanOptions(guarantee="total", epsilon=epsilon, calibrated=calibrated),
                        )
                        for calibrated in (False, True)
                    )
                    sampled = (plan.sampled_time_ns for plan in plans)
                    costs.append(np.array([published_cost(histogram, epsilon), *sampled]) / x.mean())
                low, middle, high = np.quantile(costs, [0.0, 0.5, 1.0], axis=0)
                ranges = zip(low, middle, high, strict=True)
                yield shape, epsilon, *(f"{b:.4g} ({a:.4g} to {c:.4g})" for a, b, c in ranges)

    table("shape | eps | published | optimal, uncalibrated | calibrated", rows())


def speed() -> None:
    """CPU seconds of one kernel: a ladder at full resolution, and the whole plan for 10^6 and 10^9 launches."""

    def rows() -> Iterable[Iterable[object]]:
        x = np.exp(np.random.default_rng(SEED).normal(13, 0.5, 1_000_000)).astype(np.int64)
        million = histogram_of(x).assign(kernel_id=1)
        billion = million.assign(**{name: million[name] * 1_000 for name in ("n", "sum_ns", "sum_sq")})
        for label, histogram in (("10^6", million), ("10^9", billion)):
            total = float(histogram["sum_ns"].sum())
            highest = total / PlanOptions().bound(total)
            ladder = (highest * 4.0 ** -np.arange(14.0)).tolist()
            options = PlanOptions(guarantee="total")

            def solved(histogram: pd.DataFrame, ladder: list[float], coarse: bool) -> pd.DataFrame:
                return LocalWork.of_rows(histogram, HISTOGRAMS, PlanningModel()).frontier(ladder, coarse)

            works: dict[str, Callable[[], object]] = {
                "ladder of 14, 512 cells": partial(solved, histogram, ladder, False),
                "ladder of 14, coarse cells": partial(solved, histogram, ladder, True),
                "calibrated plan": partial(plan_histogram, histogram, options),
            }
            for what, work in works.items():
                yield f"{label} launches: {what}", seconds_of(work)

    table("what | CPU s", rows())


def seconds_of(work: Callable[[], object]) -> float:
    """Least CPU time of three runs."""
    times = []
    for _ in range(3):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


SECTIONS: dict[str, Callable[[], None]] = {
    "traces": every_trace,
    "guarantees": guarantees,
    "noise": noise,
    "kernels": one_kernel,
    "speed": speed,
}

if __name__ == "__main__":
    main(sys.argv[1:])
